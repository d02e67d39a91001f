//! Operations waiting for a counter (fi_trigger(3)): transfers with FI_TRIGGER, and deferred work
//! of a domain.
//!
//! Both are requests of the domain's [`DeferredQueue`]. A triggered operation is copied in its call, and
//! completes as any other. Deferred work is not copied: its structures belong to the application
//! until its completion, and are read again at its start. Its completion goes to a separate
//! counter.
use super::atomic::{NO_RESULT, NONE};
use super::domain_fid::DomainFid;
use super::ep::fid::EpFid;
use super::ep::flags::{RX_FLAGS, TX_FLAGS};
use super::ep::message::{recv_op, send_op, trecv_op, tsend_op};
use super::ep::shared::EpShared;
use super::ep::transfer::Transfer;
use super::rma;
use super::traits::{Domain, Endpoint};
use crate::abi::{
    self, FI_ADDR_NOTAVAIL, FI_ATOMIC, FI_CLASS_CNTR, FI_COMPLETION, FI_INJECT, FI_MSG, FI_RECV,
    FI_RMA, FI_TAGGED, FI_TRIGGER, fi_addr_t, fi_deferred_work, fi_op_type, fi_trigger_event,
    fi_triggered_context, fid, fid_cntr, fid_domain,
};
use crate::atomic::AtomicKind;
use crate::boundary::ffi_guard;
use crate::buf::{RecvBuf, SegmentLimit, SendBuf};
use crate::cntr::Cntr;
use crate::completions::CompletionSink;
use crate::cq::{Completion, CompletionError, Context};
use crate::deferred::{
    DeferredQueue, DeferredRequest, InUse, InternalOps, Outcome, RequestName, Task,
};
use crate::error::{Error, Result};
use crate::fid::{FidObject, class_of};
use crate::heap;
use crate::mr;
use crate::notices::Port;
use crate::object::Object;
use crate::operation::{RecvOp, SendOp};
use crate::reserved::INTERNAL_OP;
use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<E: Endpoint> EpFid<E> {
    /// Checks the flags in addition to the ones of any call: none, or FI_TRIGGER if it is
    /// supported.
    #[cold]
    pub(super) fn only_triggered(&self, beyond: u64) -> Result {
        let possible = self.shared.caps & FI_TRIGGER != 0 && self.shared.ground.later.is_some();
        if beyond == 0 || (possible && beyond == FI_TRIGGER) {
            Ok(())
        } else {
            Err(Error::BADFLAGS)
        }
    }

    /// Keeps an operation until the counter in its context has reached its
    /// threshold.
    #[cold]
    pub(super) fn trigger(&self, mut op: Transfer) -> Result {
        let later = self.shared.ground.later.clone().ok_or(Error::NOSYS)?;
        let (context, flags) = op.parts();
        let context = *context;
        *flags &= !FI_TRIGGER;
        let injected = *flags & FI_INJECT != 0;
        // SAFETY: fi_trigger(3): the context of a call with FI_TRIGGER is a struct
        // fi_triggered_context, or one that begins like it, which is the library's
        // until the operation completes.
        let trigger = unsafe { context.0.cast::<fi_triggered_context>().as_ref() };
        let trigger = trigger.ok_or(Error::INVAL)?;
        if trigger.event_type != fi_trigger_event::FI_TRIGGER_THRESHOLD {
            return Err(Error::NOSYS);
        }
        // SAFETY: it is a threshold, as the type says.
        let threshold = unsafe { trigger.trigger.threshold };
        // SAFETY: the counter is an open one of the application's.
        let cntr = unsafe { counter(threshold.cntr, &later) }?;
        // The buffer of an injected transfer is the application's again when the call returns,
        // so its bytes are copied.
        let mut own = None;
        if injected {
            if let Some(source) = op.source() {
                let bytes = source.to_boxed()?;
                // SAFETY: the bytes stay where they are until the task, which owns them,
                // has been run to its end; the operation is injected, so it needs them no
                // longer than the call that posts it.
                *source = unsafe { SendBuf::new(bytes.as_ptr().cast(), bytes.len()) }?;
                own = Some(bytes);
            }
        }
        let (shared, kind) = (self.shared.clone(), op.kind());
        let task_queue = self.shared.task_queue();
        let run = move || {
            let _own = &own;
            match shared.post(op.clone()) {
                Err(error) if error != Error::AGAIN => {
                    shared.report(CompletionError::new(Completion::of(context, kind, 0), error));
                    Ok(())
                }
                result => result,
            }
        };
        let shared = self.shared.clone();
        let cancelled = move || {
            let of = Completion::of(context, kind, 0);
            shared.report(CompletionError::new(of, Error::CANCELED));
        };
        let request = DeferredRequest {
            name: RequestName::Operation(context.0 as usize),
            task: Task::new(task_queue, run),
            counters: Vec::new(),
            cancelled: Some(Box::new(cancelled)),
        };
        later.defer(&cntr, threshold.threshold as u64, request);
        later.run();
        Ok(())
    }
}

impl<E: Endpoint> Port for EpShared<E> {
    fn send(&self, to: fi_addr_t, tag: u64, buf: SendBuf, context: Context) -> Result {
        self.post(Transfer::Tsend(SendOp {
            buf,
            dest: to,
            context,
            data: 0,
            tag,
            flags: INTERNAL_OP,
        }))
    }

    fn recv(&self, from: fi_addr_t, tag: u64, buf: RecvBuf, context: Context) -> Result {
        self.post(Transfer::Trecv(RecvOp {
            buf,
            src: from,
            tag,
            ignore: 0,
            context,
            flags: INTERNAL_OP,
        }))
    }

    fn cancel(&self, context: Context) {
        if !self.closed.load(Ordering::SeqCst) {
            let _ = self.inner.cancel(context, true);
        }
    }

    fn id_of(&self, member: fi_addr_t) -> fi_addr_t {
        if E::TRANSFERS {
            return member;
        }
        self.bindings().av.as_ref().map_or(FI_ADDR_NOTAVAIL, |av| av.id_of(member))
    }
}

impl<E: Endpoint> EpShared<E> {
    /// Returns the task queue of this endpoint.
    pub(super) fn task_queue(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Posts an operation from a task.
    pub(super) fn post(&self, op: Transfer) -> Result {
        // `stop_later` sets `closed`, and waits for tasks afterwards.
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::CANCELED);
        }
        self.hand_transfer(op)
    }

    /// Returns the endpoint's access to the domain's deferred work, if the domain was opened for
    /// it.
    pub(super) fn internal_ops(&self) -> Option<InternalOps> {
        Some(InternalOps { later: self.ground.later.clone()?, task_queue: self.task_queue() })
    }

    /// Called when the endpoint closes: tasks of the domain post nothing to it any more.
    pub(super) fn stop_later(&self) {
        if let Some(later) = &self.ground.later {
            self.closed.store(true, Ordering::SeqCst);
            later.stop(self.task_queue());
        }
    }

    /// Forgets the endpoint's operations in flight in the domain's deferred work, at its close.
    pub(super) fn leave_later(&self) {
        if let Some(later) = &self.ground.later {
            later.leave(self.task_queue());
            if let Some(collectives) = self.collectives.get() {
                collectives.close();
            }
            if let Some(multicast) = self.multicast.get() {
                multicast.groups().close();
            }
        }
    }

    /// Cancels (fi_cancel) an operation still waiting for its counter. Returns false if there is
    /// none.
    pub(super) fn cancel_triggered(&self, context: *mut c_void) -> bool {
        let name = RequestName::Operation(context as usize);
        self.ground.later.as_ref().is_some_and(|later| later.cancel(name).is_ok())
    }

    /// Returns a copy of the endpoint's completion sink, to report operations not passed to the
    /// provider without holding a lock.
    pub(super) fn completions(&self) -> CompletionSink {
        self.bindings().completions.clone()
    }

    /// Reports the failure of an operation not passed to the provider, like any other.
    pub(super) fn report(&self, error: CompletionError) {
        if !self.closed.load(Ordering::SeqCst) {
            self.completions().fail(error);
        }
    }
}

/// Returns a counter usable as a trigger in this domain.
///
/// # Safety
/// `cntr` is null or points to an open counter.
unsafe fn counter(cntr: *mut fid_cntr, later: &Arc<DeferredQueue>) -> Result<Arc<Cntr>> {
    if cntr.is_null() {
        return Err(Error::INVAL);
    }
    // SAFETY: by this function's contract.
    let cntr = unsafe { Cntr::from_fid(cntr.cast::<fid>()) }?;
    if cntr.triggers(later) { Ok(cntr) } else { Err(Error::INVAL) }
}

/// Deferred work of the application (struct fi_deferred_work).
#[derive(Clone, Copy)]
struct DeferredWork(*const fi_deferred_work);

// SAFETY: fi_trigger(3): the structures are the library's, not a thread's, until
// the work is done or taken back.
unsafe impl Send for DeferredWork {}

impl DeferredWork {
    /// Returns the transfer described by the work, and its flags.
    ///
    /// # Safety
    /// The structures are as fi_trigger(3) requires, and not reclaimed yet.
    unsafe fn op<E: Endpoint>(self, most: SegmentLimit) -> Result<(Transfer, u64)> {
        use fi_op_type::*;
        let tx = |flags: u64| match flags & !(TX_FLAGS | FI_TRIGGER) {
            0 => Ok(flags & !(FI_COMPLETION | FI_INJECT | FI_TRIGGER) | INTERNAL_OP),
            _ => Err(Error::BADFLAGS),
        };
        // A multi-receive buffer has several completions, so that none of them is that of the
        // work.
        let rx = |flags: u64| match flags & !((RX_FLAGS | FI_TRIGGER) & !abi::FI_MULTI_RECV) {
            0 => Ok(flags & !(FI_COMPLETION | FI_TRIGGER) | INTERNAL_OP),
            _ => Err(Error::NOSYS),
        };
        // SAFETY: by this function's contract; the type says which member it is.
        unsafe {
            let work = &*self.0;
            let is = |of: fi_op_type| work.op_type == of;
            if work.op.msg.is_null() {
                return Err(Error::INVAL);
            }
            if is(FI_OP_SEND) || is(FI_OP_RECV) {
                let op = &*work.op.msg;
                let made = match is(FI_OP_SEND) {
                    true => Transfer::Send(send_op(&op.msg, most, tx(op.flags)?)?),
                    false => Transfer::Recv(recv_op(&op.msg, most, rx(op.flags)?)?),
                };
                return Ok((made, op.flags));
            }
            if is(FI_OP_TSEND) || is(FI_OP_TRECV) {
                let op = &*work.op.tagged;
                let made = match is(FI_OP_TSEND) {
                    true => Transfer::Tsend(tsend_op(&op.msg, most, tx(op.flags)?)?),
                    false => Transfer::Trecv(trecv_op(&op.msg, most, rx(op.flags)?)?),
                };
                return Ok((made, op.flags));
            }
            if is(FI_OP_READ) || is(FI_OP_WRITE) {
                let op = &*work.op.rma;
                let made = match is(FI_OP_READ) {
                    true => Transfer::Read(rma::read_op(&op.msg, most, tx(op.flags)?)?),
                    false => Transfer::Write(rma::write_op(&op.msg, most, tx(op.flags)?)?),
                };
                return Ok((made, op.flags));
            }
            let made = if is(FI_OP_ATOMIC) {
                let op = &*work.op.atomic;
                let flags = tx(op.flags & !FI_ATOMIC)?;
                let made =
                    EpFid::<E>::msg_op(AtomicKind::Base, &op.msg, NONE, NO_RESULT, most, flags)?;
                (made, op.flags)
            } else if is(FI_OP_FETCH_ATOMIC) {
                let op = &*work.op.fetch_atomic;
                let flags = tx(op.flags & !FI_ATOMIC)?;
                let result = (op.fetch.msg_iov, op.fetch.iov_count);
                (
                    EpFid::<E>::msg_op(AtomicKind::Fetch, &op.msg, NONE, result, most, flags)?,
                    op.flags,
                )
            } else if is(FI_OP_COMPARE_ATOMIC) {
                let op = &*work.op.compare_atomic;
                let flags = tx(op.flags & !FI_ATOMIC)?;
                let result = (op.fetch.msg_iov, op.fetch.iov_count);
                let with = (op.compare.msg_iov, op.compare.iov_count);
                (
                    EpFid::<E>::msg_op(AtomicKind::Compare, &op.msg, with, result, most, flags)?,
                    op.flags,
                )
            } else {
                return Err(Error::NOSYS);
            };
            Ok((Transfer::Atomic(made.0), made.1))
        }
    }

    /// Returns the task of a deferred transfer, and the counters it needs.
    ///
    /// # Safety The contract of [`DeferredWork::op`].
    unsafe fn transfer<E: Endpoint>(
        self,
        most: SegmentLimit,
        later: &Arc<DeferredQueue>,
    ) -> Result<(Task, Vec<InUse>)> {
        // Errors in the work are reported now, not when its time has come.
        // SAFETY: by this function's contract.
        let (op, asked) = unsafe { self.op::<E>(most) }?;
        // SAFETY: by this function's contract; the endpoint comes first in the
        // structure of every transfer.
        let (ep, completion) = unsafe { ((*(*self.0).op.msg).ep, (*self.0).completion_cntr) };
        if !later.knows(ep as usize) {
            return Err(Error::INVAL);
        }
        // SAFETY: the domain knows it, so it is an open endpoint of this type.
        let shared = unsafe { EpFid::<E>::from_c(ep.cast_const()) }?.shared.clone();
        if !shared.enabled.load(Ordering::Acquire) {
            return Err(Error::OPBADSTATE);
        }
        let kind = op.kind();
        let needed = kind & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
        let role = shared.role;
        let has_it = if kind & FI_RECV != 0 { role.receives() } else { role.sends() };
        if needed & shared.caps == 0 || !has_it {
            return Err(Error::NOSYS);
        }
        let mut to = match completion.is_null() {
            true => None,
            // SAFETY: an open counter of the application's.
            false => Some(Arc::new(InUse::new(unsafe { counter(completion, later) }?))),
        };
        let (task_queue, later) = (shared.task_queue(), Arc::downgrade(later));
        let run = move || {
            let Some(later) = later.upgrade() else { return Ok(()) };
            // SAFETY: fi_trigger(3): the structures stay until the work is done,
            // which it is not yet.
            let (mut op, context) = match unsafe { { self }.op::<E>(most) } {
                Ok((mut op, _)) => {
                    let context = *op.parts().0;
                    (op, context)
                }
                Err(error) => {
                    let failed =
                        CompletionError::new(Completion::of(Context::NULL, kind, 0), error);
                    shared.finish(asked, to.take(), Err(failed));
                    return Ok(());
                }
            };
            let (of, counts) = (shared.clone(), to.clone());
            let expected = later.expect(task_queue, move |outcome| {
                let outcome = renamed(outcome, context);
                of.finish(asked, counts, outcome);
            });
            *op.parts().0 = expected;
            match shared.post(op) {
                Ok(()) => Ok(()),
                Err(Error::AGAIN) => {
                    later.unexpect(expected);
                    Err(Error::AGAIN)
                }
                Err(error) => {
                    later.done(Err(CompletionError::new(Completion::of(expected, kind, 0), error)));
                    Ok(())
                }
            }
        };
        Ok((Task::new(task_queue, run), Vec::new()))
    }

    /// Returns the task of a deferred counter update, and the counter.
    ///
    /// # Safety The contract of [`DeferredWork::op`].
    unsafe fn count(self, set: bool, later: &Arc<DeferredQueue>) -> Result<(Task, Vec<InUse>)> {
        // SAFETY: by this function's contract; the type says which member it is.
        let (work, op) = unsafe { (&*self.0, (*self.0).op.cntr.as_ref().ok_or(Error::INVAL)?) };
        if !work.completion_cntr.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: an open counter of the application's.
        let cntr = unsafe { counter(op.cntr, later) }?;
        let counters = vec![InUse::new(cntr.clone())];
        let run = move || {
            // SAFETY: fi_trigger(3): the structures stay until the work is done.
            let value = unsafe { (*(*{ self }.0).op.cntr).value };
            if set {
                cntr.set(value)
            } else {
                cntr.add(value)
            }
            Ok(())
        };
        Ok((Task::new(COUNTERS, run), counters))
    }
}

/// Task queue of counter updates; they are never retried.
const COUNTERS: usize = 0;

/// Replaces the context of an outcome by the application's.
fn renamed(outcome: Outcome, context: Context) -> Outcome {
    match outcome {
        Ok(of) => Ok(Completion { context, flags: of.flags & !INTERNAL_OP, ..of }),
        Err(mut error) => {
            (error.of.context, error.of.flags) = (context, error.of.flags & !INTERNAL_OP);
            Err(error)
        }
    }
}

impl<E: Endpoint> EpShared<E> {
    /// Counts finished deferred work, and reports it to the endpoint's queue and counter if
    /// requested by its flags.
    fn finish(&self, asked: u64, to: Option<Arc<InUse>>, outcome: Outcome) {
        // The counter is not in use any more: an application that sees the count may close it.
        let to = to.map(|in_use| in_use.0.clone());
        let reported = asked & FI_COMPLETION != 0;
        let flags = outcome.as_ref().map_or_else(|error| error.of.flags, |of| of.flags);
        let completions = self.completions();
        let own = completions
            .cntr_of(flags)
            .filter(|own| reported && to.as_ref().is_none_or(|to| !Arc::ptr_eq(own, to)));
        for cntr in own.into_iter().chain(&to) {
            match &outcome {
                Ok(of) => cntr.completed(of.len),
                Err(_) => cntr.failed(),
            }
        }
        // A failure that no counter shows is reported in any case.
        if (reported || (to.is_none() && outcome.is_err())) && !self.closed.load(Ordering::SeqCst) {
            let sent = flags & FI_RECV == 0;
            completions
                .write(outcome.map(|of| Completion { len: if sent { 0 } else { of.len }, ..of }));
        }
    }
}

/// # Safety
/// `work` is valid as required by fi_trigger(3).
unsafe fn queue<D: Domain>(
    most: SegmentLimit,
    later: &Arc<DeferredQueue>,
    work: *const fi_deferred_work,
) -> Result {
    let of = DeferredWork(work);
    // SAFETY: by this function's contract.
    let work = unsafe { work.as_ref() }.ok_or(Error::INVAL)?;
    // SAFETY: by this function's contract.
    let cntr = unsafe { counter(work.triggering_cntr, later) }?;
    let is = |kind: fi_op_type| work.op_type == kind;
    let (set, add) = (is(fi_op_type::FI_OP_CNTR_SET), is(fi_op_type::FI_OP_CNTR_ADD));
    // SAFETY: by this function's contract.
    let (task, counters) = unsafe {
        if set || add { of.count(set, later) } else { of.transfer::<D::Endpoint>(most, later) }
    }?;
    let name = RequestName::Work(of.0 as usize);
    later.defer(&cntr, work.threshold, DeferredRequest { name, task, counters, cancelled: None });
    later.run();
    Ok(())
}

/// Returns the counter restricting a flush: none, a given one, or the one of a structure as for the
/// other commands.
///
/// # Safety
/// `arg` is null, or points to an open counter or a struct fi_deferred_work.
unsafe fn flushed(arg: *mut c_void, later: &Arc<DeferredQueue>) -> Result<Option<Arc<Cntr>>> {
    if arg.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract; either begins with more than a fid's size.
    unsafe {
        // The structure of deferred work begins with room of the library's, in which the library
        // puts nothing that looks like a counter.
        let is_counter = class_of(arg.cast::<fid>()) == Some(FI_CLASS_CNTR as usize);
        if is_counter {
            if let Ok(cntr) = counter(arg.cast(), later) {
                return Ok(Some(cntr));
            }
        }
        counter((*arg.cast::<fi_deferred_work>()).triggering_cntr, later).map(Some)
    }
}

/// fi_control of a domain.
pub(super) unsafe extern "C" fn control<D: Domain>(
    fid: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    ffi_guard("fi_control(domain)", || {
        // SAFETY: reachable only through the ops table of an open domain of the same
        // `D`, or with null; `arg` is what the command asks for (fi_trigger(3)).
        unsafe {
            let domain = DomainFid::<D>::from_c(fid.cast::<fid_domain>())?;
            match command {
                // Keys of peers' regions are used as they are (fi_mr(3)).
                abi::FI_MAP_RAW_MR => {
                    let map = arg.cast::<abi::fi_mr_map_raw>().as_ref().ok_or(Error::INVAL)?;
                    return mr::map_raw(map);
                }
                abi::FI_UNMAP_KEY => return if arg.is_null() { Err(Error::INVAL) } else { Ok(()) },
                _ => {}
            }
            let later = domain.deferred_work().ok_or(Error::NOSYS)?;
            match command {
                abi::FI_QUEUE_WORK => {
                    heap::ready()?;
                    queue::<D>(domain.inner.settings().segments, later, arg.cast())
                }
                abi::FI_CANCEL_WORK if arg.is_null() => Err(Error::INVAL),
                abi::FI_CANCEL_WORK => later.cancel(RequestName::Work(arg as usize)),
                abi::FI_FLUSH_WORK => {
                    later.flush(flushed(arg, later)?.as_deref());
                    Ok(())
                }
                _ => Err(Error::NOSYS),
            }
        }
    })
}
