//! Completions: the device's completion queues, shared by all queue pairs of a domain, are emptied
//! into the queues and counters of the application.
use super::ep::{QpState, VerbsEndpoint};
use super::queue::{DeviceQueue, SrxUsers};
use super::request::{PostedRecv, SEND, VerbsTransfer};
use super::state::{VerbsEngine, VerbsState};
use crate::sys::{HwCq, WorkDone, status, status_text};
use core::ffi::{CStr, c_int};
use ofi_provider::abi::{FI_MSG, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA, FI_SHUTDOWN};
use ofi_provider::boundary::CancelDisabled;
use ofi_provider::cq::{Completion, CompletionError};
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::progress::Progress;
use ofi_provider::slab::Slab;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;

/// Entries of a completion queue of the device, unless one endpoint needs more.
const CQ_SIZE: usize = 8192;

/// Maximum consecutive polls of one completion queue of the device before the next one.
const POLLS: usize = 8;

impl Progress for VerbsEngine {
    fn progress(&self) {
        // The library of a device may call what is a cancellation point.
        let _uncancelled = CancelDisabled::new();
        self.activity.another();
        if !heap::may_progress() {
            return;
        }
        let mut state = self.lock();
        state.poll();
        if self.armed.swap(false, Ordering::Relaxed) {
            self.comp.drain();
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn may_block(&self) -> bool {
        let mut state = self.lock();
        self.armed.store(true, Ordering::Relaxed);
        let armed = state.queues.iter().all(|queue| queue.cq.arm().is_ok());
        // The device wakes no thread for completions from before the queues were armed.
        armed && !state.poll()
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }

    fn error_text(&self, prov_errno: c_int) -> Option<&'static CStr> {
        status_text(prov_errno)
    }
}

impl VerbsState {
    /// Reserves space for `slots` completions in a queue of the device; returns the index of the
    /// queue.
    pub(super) fn reserve(&mut self, slots: usize, engine: &VerbsEngine) -> Result<usize> {
        let found = self.queues.iter().position(|queue| queue.free >= slots);
        let at = match found {
            Some(at) => at,
            None => {
                let size = CQ_SIZE.min(engine.max_cqe).max(slots);
                let cq = HwCq::new(engine.device, size, &engine.comp)?;
                if engine.armed.load(Ordering::Relaxed) {
                    cq.arm()?;
                }
                self.queues.push(DeviceQueue { cq, free: size });
                self.queues.len() - 1
            }
        };
        self.queues[at].free -= slots;
        Ok(at)
    }

    /// Takes completions from the device; returns true if there were any.
    pub(super) fn poll(&mut self) -> bool {
        if !self.waiting.is_empty() {
            self.ring_waiting();
        }
        let Self { eps, queues, srx_users, bunch, .. } = self;
        let (mut found, most) = (false, bunch.len());
        for queue in queues {
            for _ in 0..POLLS {
                let came = queue.cq.poll(bunch);
                for done in came {
                    take(eps, srx_users, done);
                }
                found |= !came.is_empty();
                if came.len() < most {
                    break;
                }
            }
        }
        found
    }

    /// Posts the requests held back for more: an application polling for completions has no more to
    /// post.
    #[cold]
    fn ring_waiting(&mut self) {
        while let Some(at) = self.waiting.pop() {
            if let Some(ep) = self.eps.get_mut(at) {
                ep.ring();
            }
        }
    }
}

/// Passes a completion to the endpoint of the completed request.
#[inline(always)]
fn take(eps: &mut Slab<VerbsEndpoint>, srx_users: &SrxUsers, done: &WorkDone) {
    let (at, number) = ((done.wr_id() >> 32) as u32, done.wr_id() as u32);
    let Some(ep) = eps.get_mut(at) else { return };
    if number & SEND != 0 {
        ep.sent_is_done(number & !SEND, done);
    } else if ep.srq.is_some() {
        take_shared(eps, srx_users, done);
    } else if ep.posted.first == number {
        if let Some(posted) = ep.posted.pop() {
            ep.received(&posted, done);
        }
    }
}

/// Passes the completion of a shared context's receive to the endpoint using the receive.
#[inline(never)]
fn take_shared(eps: &mut Slab<VerbsEndpoint>, srx_users: &SrxUsers, done: &WorkDone) {
    let (at, number) = ((done.wr_id() >> 32) as u32, done.wr_id() as u32);
    let Some(posted) = eps.get_mut(at).and_then(|context| context.shared.remove(number)) else {
        return;
    };
    // The endpoint that took the receive reports it.
    let taker = srx_users.get(&done.qp()).copied().unwrap_or(at);
    if let Some(ep) = eps.get_mut(taker) {
        ep.received(&posted, done);
    }
}

impl VerbsEndpoint {
    /// Handles the completion of a send, and of all sends before it without a reported success.
    /// Other sends before it may be incomplete: on siw a message overtakes a read. For the
    /// application all complete in the order of posting nevertheless.
    pub(super) fn sent_is_done(&mut self, number: u32, done: &WorkDone) {
        if self.signalled_count == 0
            && number == self.sent.first
            && done.status() == status::IBV_WC_SUCCESS
        {
            if let Some(sent) = self.sent.pop() {
                return self.send_succeeded(&sent);
            }
        }
        let count = self.sent.up_to(number);
        let Some(sent) = count.checked_sub(1).and_then(|at| self.sent.items.get_mut(at)) else {
            return;
        };
        sent.done = Some((done.status(), done.vendor_error()));
        self.signalled_count += 1;
        while let Some(first) = self.sent.items.front() {
            if first.done.is_none() && (first.signalled || self.signalled_count == 0) {
                return;
            }
            let Some(sent) = self.sent.pop() else { return };
            match sent.done {
                Some((status, vendor_error)) if status != status::IBV_WC_SUCCESS => {
                    self.signalled_count -= 1;
                    self.send_failed(&sent, status, vendor_error);
                }
                done => {
                    self.signalled_count -= usize::from(done.is_some());
                    self.send_succeeded(&sent);
                }
            }
        }
    }

    /// Completes a successful send for the application.
    #[inline]
    fn send_succeeded(&self, sent: &VerbsTransfer) {
        if let Some(extra) = &sent.extra {
            if let (Some((to, index)), Some(scratch)) = (&extra.fetch, &self.scratch) {
                let value = scratch.words[*index].load(Ordering::Acquire);
                to.copy_from(0, &value.to_ne_bytes());
            }
        }
        if !sent.is_part() {
            let of = Completion::of(sent.context, sent.flags, sent.len);
            self.bindings.completions.tx.succeeded(of, sent.report);
        }
    }

    /// Completes a failed send for the application.
    #[cold]
    fn send_failed(&mut self, sent: &VerbsTransfer, status: u32, vendor_error: u32) {
        let completions = &self.bindings.completions.tx;
        if !sent.is_part() {
            let of = Completion::of(sent.context, sent.flags, 0);
            completions.failed(failure(of, status, vendor_error));
        }
        self.broke(status);
    }

    /// Completes a receive, for the application.
    #[inline]
    fn received(&mut self, posted: &PostedRecv, done: &WorkDone) {
        if !self.has_received && done.status() == status::IBV_WC_SUCCESS {
            self.has_received = true;
            if matches!(self.conn, QpState::Settling(_)) {
                self.conn = QpState::Up;
            }
        }
        let kind = if done.is_write() { FI_RMA | FI_REMOTE_WRITE } else { FI_MSG | FI_RECV };
        let mut of = Completion::of(posted.context, kind, 0);
        if done.status() != status::IBV_WC_SUCCESS {
            of.flags = FI_MSG | FI_RECV;
            self.bindings.completions.rx.failed(failure(of, done.status(), done.vendor_error()));
            return self.broke(done.status());
        }
        of.len = done.len();
        of.src = self.source.unwrap_or(of.src);
        of.buf = if done.is_write() { 0 } else { posted.buf };
        if let Some(data) = done.data() {
            of.flags |= FI_REMOTE_CQ_DATA;
            of.data = u64::from(data);
        }
        let wanted = done.is_write() || self.bindings.completions.rx.wants(posted.flags);
        self.bindings.completions.rx.succeeded(of, wanted);
    }

    /// Ends the connection after a failed request: its queue pair is unusable, and the peer is to
    /// be notified.
    fn broke(&self, status: u32) {
        if status != status::IBV_WC_WR_FLUSH_ERR && self.is_made() {
            if let Some(id) = &self.id {
                let _ = id.disconnect();
            }
        }
    }

    /// Fails all operations in progress because the device is gone.
    pub(super) fn device_failed(&mut self) {
        let done = WorkDone::dead();
        while !self.sent.items.is_empty() {
            let first = self.sent.first;
            self.sent_is_done(first, &done);
        }
        while let Some(posted) = self.posted.pop() {
            self.received(&posted, &done);
        }
        let shared: Vec<u32> = self.shared.iter().map(|(at, _)| at).collect();
        for at in shared {
            if let Some(posted) = self.shared.remove(at) {
                self.received(&posted, &done);
            }
        }
        let was_up = self.is_made() && self.ud.is_none();
        self.conn = QpState::Down;
        if was_up {
            self.tell(FI_SHUTDOWN as u32, Vec::new());
        }
    }
}

/// Returns the error entry of a failed request.
fn failure(of: Completion, status: u32, vendor_error: u32) -> CompletionError {
    use status::*;
    let receives = of.flags & FI_RECV != 0;
    let error = match status {
        IBV_WC_WR_FLUSH_ERR => Error::CANCELED,
        // rxe reports the second when a buffer is too short.
        IBV_WC_LOC_LEN_ERR | IBV_WC_LOC_QP_OP_ERR if receives => Error::TRUNC,
        IBV_WC_LOC_LEN_ERR => Error::MSGSIZE,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR | IBV_WC_REM_ACCESS_ERR => Error::ACCES,
        IBV_WC_REM_INV_REQ_ERR => Error::REMOTEIO,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => Error::TIMEDOUT,
        IBV_WC_RNR_RETRY_EXC_ERR => Error::NORX,
        _ => Error::IO,
    };
    CompletionError {
        prov_errno: status as c_int,
        data: vendor_error.to_ne_bytes().to_vec(),
        ..CompletionError::new(of, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::VerbsEpLimits;
    use ofi_provider::abi::FI_SEND;
    use ofi_provider::cq::Context;

    #[test]
    fn completion_before_an_earlier_request_waits_for_it() {
        let limits = VerbsEpLimits {
            tx_size: 8,
            rx_size: 1,
            tx_iov: 1,
            rx_iov: 1,
            inject: 0,
            atomics: false,
            datagrams: false,
            hmem: false,
        };
        let mut ep = VerbsEndpoint::new(limits);
        for signalled in [true, false, true, false] {
            ep.sent.items.push_back(VerbsTransfer {
                context: Context::NULL,
                flags: 0,
                len: 0,
                signalled,
                done: None,
                report: false,
                extra: None,
            });
        }
        let done = WorkDone::failed;
        ep.sent_is_done(2, &done(status::IBV_WC_SUCCESS));
        assert_eq!((ep.sent.items.len(), ep.signalled_count), (4, 1));
        // The first completes the others as well, but for the last, which may not be complete.
        ep.sent_is_done(0, &done(status::IBV_WC_SUCCESS));
        assert_eq!((ep.sent.items.len(), ep.signalled_count), (1, 0));
        // A completion that comes twice, or of no request, does no harm.
        ep.sent_is_done(2, &done(status::IBV_WC_SUCCESS));
        ep.sent_is_done(3, &done(status::IBV_WC_WR_FLUSH_ERR));
        assert_eq!((ep.sent.items.len(), ep.signalled_count), (0, 0));
    }

    #[test]
    fn failure_carries_the_status_of_the_device() {
        let status = status::IBV_WC_LOC_LEN_ERR;
        let error = failure(Completion::of(Context::NULL, FI_RECV | FI_MSG, 0), status, 7);
        assert_eq!((error.error, error.prov_errno), (Error::TRUNC, 1));
        assert_eq!(error.data, 7u32.to_ne_bytes());
        assert_eq!(
            failure(Completion::of(Context::NULL, FI_SEND, 0), status, 7).error,
            Error::MSGSIZE
        );
        // No software device reports these: rxe takes seven tries for no end of them, and
        // tries a peer without a receive for ever.
        for (status, error, text) in [
            (status::IBV_WC_RETRY_EXC_ERR, Error::TIMEDOUT, "transport retry counter exceeded"),
            (status::IBV_WC_RNR_RETRY_EXC_ERR, Error::NORX, "RNR retry counter exceeded"),
        ] {
            let entry = failure(Completion::of(Context::NULL, FI_SEND, 0), status, 9);
            assert_eq!((entry.error, entry.prov_errno), (error, status as c_int));
            // The words are libibverbs', which need not be there.
            if let Some(found) = status_text(entry.prov_errno) {
                assert_eq!(found.to_str(), Ok(text));
            }
        }
    }
}
