//! Sends to multicast groups (FI_MULTICAST of fi_msg(3)): one part for each member.
use super::ep::shared::{EpShared, Parts, Role};
use super::ep::transfer::Transfer;
use super::multicast::Multicast;
use super::traits::Endpoint;
use crate::abi::{
    self, FI_COLLECTIVE, FI_COMPLETION, FI_INJECT, FI_MSG, FI_MULTICAST, FI_SEND, FI_TAGGED,
};
use crate::addr::Addr;
use crate::buf::SendBuf;
use crate::cq::{Completion, CompletionError, Context};
use crate::deferred::{DeferredQueue, Outcome, Task};
use crate::error::{Error, Result};
use crate::mcast::MulticastGroups;
use crate::operation::SendOp;
use crate::reserved::{INTERNAL_OP, TO_GROUPS};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Flags of a send to a group passed on to the message of each member.
const OF_PARTS: u64 = abi::FI_REMOTE_CQ_DATA
    | abi::FI_INJECT_COMPLETE
    | abi::FI_TRANSMIT_COMPLETE
    | abi::FI_DELIVERY_COMPLETE
    | abi::FI_MATCH_COMPLETE
    | abi::FI_FENCE;

impl<E: Endpoint> Parts<E> {
    /// [`TO_GROUPS`] if the endpoint can be in multicast groups, else 0.
    pub(super) fn has_multicast(&self) -> u64 {
        let can = self.caps & FI_MULTICAST != 0 && self.ground.later.is_some();
        if can && !E::JOINS && self.role == Role::Endpoint { TO_GROUPS } else { 0 }
    }
}

/// Send to a group in flight.
struct GroupSend<E> {
    shared: Arc<EpShared<E>>,
    /// The completion of the whole send.
    of: Completion,
    flags: u64,
    len: usize,
    /// Number of unfinished messages to members, plus one while they are being posted.
    left: AtomicUsize,
    /// Error of the first failed message to a member.
    error: Mutex<Option<Error>>,
    /// A copy of the bytes, if they were injected.
    _copy: Option<Box<[u8]>>,
}

impl<E: Endpoint> GroupSend<E> {
    /// Records the end of the message to one member.
    fn part_over(&self, result: Result) {
        if let Err(error) = result {
            let mut slot = self.error.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            slot.get_or_insert(error);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.over();
        }
    }

    /// Completes the send after the end of the messages to all members.
    fn over(&self) {
        if let Some(multicast) = self.shared.multicast.get() {
            multicast.finish_send();
        }
        let error = *self.error.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match error {
            None => self.shared.sent(self.of, self.flags, self.len),
            // An injected send is reported only by a counter.
            Some(_) if self.flags & FI_INJECT != 0 => {
                if let Some(cntr) = self.shared.completions().cntr_of(FI_SEND) {
                    cntr.failed();
                }
            }
            Some(error) => self.shared.report(CompletionError::new(self.of, error)),
        }
    }
}

impl<E: Endpoint> EpShared<E> {
    /// Starts to receive notices of peers, when an endpoint with FI_COLLECTIVE or FI_MULTICAST is
    /// enabled.
    pub(super) fn observe_groups(self: &Arc<Self>) -> Result {
        let can = self.caps & FI_COLLECTIVE != 0 && self.ground.later.is_some();
        if can && self.role == Role::Endpoint {
            self.collectives()?.start_listening();
            self.receive_ids()?;
        }
        let (Some(later), Some(av)) = (&self.ground.later, self.bindings().av.clone()) else {
            return Ok(());
        };
        if self.has_multicast() == 0 {
            return Ok(());
        }
        let own = Addr::read(av.format(), &self.inner.getname()?)?;
        let weak: Weak<Self> = Arc::downgrade(self);
        let groups = MulticastGroups::new(weak, later.clone(), self.task_queue(), av, own.port());
        let _ = self.multicast.set(Multicast::new(groups));
        Ok(())
    }

    /// The endpoint's multicast groups; an error if it has none.
    pub(super) fn multicast_groups(&self) -> Result<&MulticastGroups> {
        Ok(self.multicast.get().ok_or(Error::NOSYS)?.groups())
    }

    /// fi_send or fi_tsend, in all their forms, to a group.
    pub(super) fn send_to_group(self: &Arc<Self>, op: SendOp, tagged: bool) -> Result {
        let (multicast, later) = match (self.multicast.get(), &self.ground.later) {
            (Some(multicast), Some(later)) => (multicast, later),
            _ => return Err(Error::INVAL),
        };
        if op.flags & FI_INJECT != 0 && op.buf.len() > self.inject_size {
            return Err(Error::INVAL);
        }
        match self.try_send_to_group(op, tagged, multicast, later) {
            Err(Error::AGAIN) => {
                self.ground.progress.progress();
                Err(Error::AGAIN)
            }
            result => {
                later.run();
                result
            }
        }
    }

    fn try_send_to_group(
        self: &Arc<Self>,
        mut op: SendOp,
        tagged: bool,
        multicast: &Multicast,
        later: &Arc<DeferredQueue>,
    ) -> Result {
        let members = multicast.groups().members(op.dest)?;
        if multicast.has_pending(self.tx_size.max(1))
            || !self.bindings().completions.tx.has_space(op.flags & FI_COMPLETION != 0)
        {
            return Err(Error::AGAIN);
        }
        let (flags, len, context) = (op.flags, op.buf.len(), op.context);
        let mut copy = None;
        if flags & FI_INJECT != 0 {
            let bytes = op.buf.to_boxed()?;
            // SAFETY: the bytes stay where they are until all parts are over, since what
            // owns them waits for each of those.
            op.buf = unsafe { SendBuf::new(bytes.as_ptr().cast(), bytes.len()) }?;
            copy = Some(bytes);
        }
        multicast.start_send();
        let what = if tagged { FI_TAGGED } else { FI_MSG };
        let sending = Arc::new(GroupSend {
            shared: self.clone(),
            of: Completion::of(context, FI_SEND | what | FI_MULTICAST, 0),
            flags,
            len,
            left: AtomicUsize::new(members.len() + 1),
            error: Mutex::new(None),
            _copy: copy,
        });
        op.flags = flags & OF_PARTS | INTERNAL_OP;
        for member in members {
            let of_part = sending.clone();
            let context = later.expect(self.task_queue(), move |outcome: Outcome| {
                of_part.part_over(outcome.map_or_else(|error| Err(error.error), |_| Ok(())));
            });
            let part = SendOp { dest: member, context, ..op.clone() };
            let part = if tagged { Transfer::Tsend(part) } else { Transfer::Send(part) };
            self.post_part(later, part, context, &sending);
        }
        sending.part_over(Ok(()));
        Ok(())
    }

    /// Posts the message to one member, now or as soon as there is space for it.
    fn post_part(
        self: &Arc<Self>,
        later: &Arc<DeferredQueue>,
        part: Transfer,
        context: Context,
        sending: &Arc<GroupSend<E>>,
    ) {
        let (shared, of_later, sending) = (self.clone(), later.clone(), sending.clone());
        let post = move || match shared.post(part.clone()) {
            Err(error) if error != Error::AGAIN => {
                of_later.unexpect(context);
                sending.part_over(Err(error));
                Ok(())
            }
            result => result,
        };
        if post() == Err(Error::AGAIN) {
            later.add([Task::new(self.task_queue(), post)]);
        }
    }

    /// Reports a send to a group with completed messages to all members.
    fn sent(&self, of: Completion, flags: u64, len: usize) {
        self.completions().succeed(Completion { len, ..of }, flags & FI_COMPLETION != 0);
    }
}
