//! Sends, reads, writes and atomic operations, from the call to the device.
use super::ep::{QpState, Ud, VerbsEndpoint};
use super::request::{ExtraRequestState, SEND, VerbsTransfer, WorkSpec, post_error};
use super::state::VerbsEngine;
use crate::memory::VerbsMemory;
use crate::provider::VERBS;
use crate::sys::{Sge, UdAddressHandle, Verb, WorkDone, WorkFlags, WorkRequest};
use ofi_provider::abi::{
    FI_COMPLETION, FI_FENCE, FI_INJECT, FI_MORE, FI_MSG, FI_REMOTE_CQ_DATA, FI_SEND, fi_addr_t,
};
use ofi_provider::addr::Addr;
use ofi_provider::buf::LocalSegment;
use ofi_provider::cq::Context;
use ofi_provider::error::{Error, Result};
use ofi_provider::progress::Progress;
use std::collections::hash_map::Entry;
use std::time::Instant;

/// Maximum requests posted as one batch (FI_MORE).
const MAX_BATCH: usize = 16;

impl VerbsEngine {
    /// Posts a send, read, write or atomic operation. Returns -FI_EAGAIN if there is no space even
    /// after progress.
    #[inline]
    pub(crate) fn send(&self, at: u32, request: WorkSpec<'_>) -> Result {
        let mut state = self.lock();
        if !state.eps[at].has_tx_space()? {
            drop(state);
            self.progress();
            state = self.lock();
            if !state.eps[at].has_tx_space()? {
                return Err(Error::AGAIN);
            }
        }
        let more = request.flags & FI_MORE != 0;
        state.eps[at].send(at, request, self)?;
        if more && state.eps[at].work.len() == 1 {
            state.waiting.push(at);
        }
        Ok(())
    }

    /// Fast path: posts a message of one segment without special attributes, the most common case.
    /// Returns false without any change for any other message, or without queue space.
    #[inline]
    pub(crate) fn send_fast(
        &self,
        at: u32,
        segment: LocalSegment,
        flags: u64,
        data: u64,
        context: Context,
    ) -> Result<bool> {
        let mut state = self.lock();
        let fits = segment.len.wrapping_sub(1) < self.max_msg_size;
        let special = !fits || flags & (FI_MORE | FI_FENCE) != 0;
        Ok(!special && state.eps[at].send_fast(at, segment, flags, data, context)?)
    }
}

impl VerbsEndpoint {
    /// Returns true if the endpoint would accept another send; fails if it has no connection.
    #[inline]
    fn has_tx_space(&mut self) -> Result<bool> {
        if !self.is_made() {
            return Err(Error::NOTCONN);
        }
        if let QpState::Settling(end) = self.conn {
            if Instant::now() < end {
                return Ok(false);
            }
            self.conn = QpState::Up;
        }
        Ok(self.has_queue_space())
    }

    /// Returns true if the queues of the endpoint and of the application have space for another
    /// send.
    #[inline]
    fn has_queue_space(&self) -> bool {
        self.bindings.completions.tx.has_space(true) && self.sent.items.len() < self.limits.tx_size
    }

    /// Posts a message as [`VerbsEngine::send_fast`] does.
    #[inline]
    fn send_fast(
        &mut self,
        at: u32,
        segment: LocalSegment,
        flags: u64,
        data: u64,
        context: Context,
    ) -> Result<bool> {
        let LocalSegment { addr, len, desc } = segment;
        let inline = len <= self.inline;
        let is_fast = matches!(self.conn, QpState::Up)
            && !self.limits.datagrams
            && self.work.is_empty()
            && match flags & FI_INJECT {
                0 => inline || desc != 0,
                _ => inline && len <= self.limits.inject,
            };
        if !is_fast || !self.has_queue_space() {
            return Ok(false);
        }
        let report = flags & FI_COMPLETION != 0;
        let signalled = self.is_signalled(report || self.bindings.completions.tx.counts(FI_SEND));
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(data as u32);
        let mut work = WorkRequest::default();
        work.sges[0] = Sge { addr: addr as u64, length: len as u32, lkey: desc as u32 };
        let wr_id = u64::from(at) << 32 | u64::from(SEND | self.sent.next());
        work.is(wr_id, Verb::Send, 1, WorkFlags { data, inline, signalled, fence: false });
        self.post(&mut work)?;
        self.is_sent(VerbsTransfer {
            context,
            flags: FI_SEND | FI_MSG,
            len,
            signalled,
            done: None,
            report,
            extra: None,
        });
        Ok(true)
    }

    /// Returns true if the device is to report the success of the next send: if it is `wanted`, and
    /// periodically, so unreported sends never fill its queue.
    #[inline]
    fn is_signalled(&self, wanted: bool) -> bool {
        wanted || self.silent + 1 >= self.limits.tx_size.div_ceil(2)
    }

    /// Records a request, posted or held back.
    #[inline]
    fn is_sent(&mut self, sent: VerbsTransfer) {
        self.silent = if sent.signalled { 0 } else { self.silent + 1 };
        self.sent.items.push_back(sent);
    }

    /// Posts a request as [`VerbsEngine::send`] does.
    #[inline]
    fn send(&mut self, at: u32, request: WorkSpec<'_>, engine: &VerbsEngine) -> Result {
        let WorkSpec { verb, segments, len, kind, flags, data, context, dest, fetch } = request;
        let atomic = matches!(verb, Verb::FetchAdd { .. } | Verb::CompareSwap { .. });
        let read = matches!(verb, Verb::Read { .. });
        let most = if self.limits.datagrams { engine.max_datagram } else { engine.max_msg_size };
        if len > most || (flags & FI_INJECT != 0 && len > self.limits.inject) {
            return Err(Error::MSGSIZE);
        }
        let mut work = WorkRequest::default();
        let sges = &mut work.sges;
        let inline = !read && !atomic && len <= self.inline;
        let (mut count, mut regions) = (0, None);
        let mut fetch = fetch.map(|to| (to, 0));
        if atomic {
            let scratch = self.scratch.as_ref().ok_or(Error::OPNOTSUPP)?;
            let index = self.sent.next() as usize % scratch.words.len();
            sges[0] = scratch.sge(index);
            count = 1;
            if let Some(fetch) = &mut fetch {
                fetch.1 = index;
            }
        } else {
            let right = if read { VerbsMemory::WRITABLE } else { 0 };
            (count, regions) = engine
                .segments(segments, sges, inline, right)
                .map(|found| (count + found.0, found.1))?;
            if count > self.limits.tx_iov {
                return Err(Error::INVAL);
            }
        }
        let (mut verb, mut first) = (verb, 0);
        if let Verb::Read { addr, key } = &mut verb {
            if count > engine.read_segments {
                // Each segment becomes a read of its own; the last one completes the operation.
                if self.sent.items.len() + count > self.limits.tx_size {
                    return Err(Error::AGAIN);
                }
                while first + 1 < count {
                    self.read_part(at, Verb::Read { addr: *addr, key: *key }, sges[first])?;
                    *addr += u64::from(sges[first].length);
                    first += 1;
                }
            }
        }
        let number = self.sent.next();
        if flags & FI_INJECT != 0 && !inline && !atomic && len > 0 {
            // The device copies less into a request than it offered.
            return Err(Error::MSGSIZE);
        }
        let report = flags & FI_COMPLETION != 0;
        let counted = self.bindings.completions.tx.counts(kind);
        let extra = (regions.is_some() || fetch.is_some())
            .then(|| Box::new(ExtraRequestState { _regions: regions, fetch }));
        let signalled = self.is_signalled(report || counted || extra.is_some());
        let how = WorkFlags {
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(data as u32),
            inline,
            signalled,
            fence: flags & FI_FENCE != 0,
        };
        let wr_id = u64::from(at) << 32 | u64::from(SEND | number);
        if first > 0 {
            sges.copy_within(first..count, 0);
        }
        work.is(wr_id, verb, count - first, how);
        if self.limits.datagrams {
            work.goes(self.address_handle_of(dest)?);
        }
        // A message that is to be copied now (FI_INJECT) cannot wait for more.
        let more = flags & (FI_MORE | FI_INJECT) == FI_MORE && self.work.len() + 1 < MAX_BATCH;
        if more || !self.work.is_empty() {
            self.work.push(work);
        } else {
            self.post(&mut work)?;
        }
        self.is_sent(VerbsTransfer {
            context,
            flags: kind,
            len,
            signalled,
            done: None,
            report,
            extra,
        });
        if !more && !self.work.is_empty() {
            self.ring();
        }
        Ok(())
    }

    /// The way from a datagram endpoint to a peer.
    fn address_handle_of(&mut self, dest: fi_addr_t) -> Result<&UdAddressHandle> {
        let Addr::Ud(to) = self.bindings.av.as_ref().ok_or(Error::NOAV)?.get(dest)? else {
            return Err(Error::INVAL);
        };
        let Ud { address_handles, pair } = self.ud.as_mut().ok_or(Error::OPBADSTATE)?;
        match address_handles.entry(to) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(pair.address_handle_of(&to)?)),
        }
    }

    /// Posts one request.
    #[inline]
    fn post(&self, work: &mut WorkRequest) -> Result {
        let qp = self.qp()?;
        // SAFETY: the application lends the memory until the completion, which is
        // when `VerbsTransfer` goes and with it what keeps the memory registered; an
        // inlined message is copied.
        let posted = unsafe { qp.post(std::slice::from_mut(work)) };
        posted.map_err(|(error, _)| post_error(error))
    }

    /// Posts the requests held back as one batch. Requests not accepted by the device fail.
    pub(super) fn ring(&mut self) {
        if self.work.is_empty() {
            return;
        }
        // The requests that wait are the last of those in `sent`, in the same order.
        let count = self.work.len();
        let mut work = std::mem::take(&mut self.work);
        let posted = match self.qp() {
            // SAFETY: as in `post`.
            Ok(qp) => unsafe { qp.post(&mut work) },
            Err(error) => Err((error, 0)),
        };
        work.clear();
        self.work = work;
        let Err((error, posted)) = posted else { return };
        ofi_provider::log!(&VERBS, WARN, EP_DATA, "{} sends not posted: {error}", count - posted);
        let end = self.sent.next();
        for back in (1..=count - posted).rev() {
            let number = end.wrapping_sub(back as u32) & !SEND;
            self.sent_is_done(number, &WorkDone::lost());
        }
    }

    /// Posts a part of a read, with only failures reported by the device.
    fn read_part(&mut self, at: u32, verb: Verb, to: Sge) -> Result {
        self.ring();
        let wr_id = u64::from(at) << 32 | u64::from(SEND | self.sent.next());
        let mut work = WorkRequest::default();
        work.sges[0] = to;
        work.is(wr_id, verb, 1, WorkFlags::default());
        self.post(&mut work)?;
        self.is_sent(VerbsTransfer {
            context: Context::NULL,
            flags: 0,
            len: 0,
            signalled: false,
            done: None,
            report: false,
            extra: None,
        });
        Ok(())
    }
}
