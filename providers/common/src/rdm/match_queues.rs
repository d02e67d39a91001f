//! Queues of posted receives and unexpected messages.
use super::messages::{
    Envelope, MatchedMessage, PeekedMessage, PostOutcome, QUEUES, TAGGED, UnexpectedBody,
    UnexpectedMessage,
};
use super::senders::Sender;
use super::unexpected_quota::UnexpectedQuota;
use crate::abi::{
    FI_ADDR_UNSPEC, FI_CLAIM, FI_DISCARD, FI_MSG, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA,
    FI_TAGGED, fi_addr_t,
};
use crate::buf::MessageBytes;
use crate::completions::RxCompletions;
use crate::cq::Completion;
use crate::error::{Error, Result};
use crate::lock::LockUse;
use crate::matching::{Pattern, Posted, Unexpected};
use crate::multi_recv::{MultiBufs, Recv};
use crate::operation::{FastRecv, RecvOp};
use crate::probes;
use crate::reserved::{INTERNAL_OP, ONLY_TAG};
use crate::stats::{ANY, EndpointStats, PendingOpStats};
use std::collections::HashMap;

/// Number of receives posted to a shared receive context up to which a partially arrived message
/// takes none, so complete messages find some.
pub(super) const SPARE_RECEIVES: usize = 8;

/// Posted receives and unexpected messages, in [`QUEUES`] pairs.
#[derive(Debug)]
pub struct MatchQueues<B> {
    posted: [Posted<Recv>; QUEUES],
    unexpected: [Unexpected<UnexpectedMessage<B>>; QUEUES],
    /// Tagged messages claimed by FI_PEEK, by the claiming context.
    claimed: HashMap<usize, u32>,
    multi: MultiBufs,
    min_multi_recv: usize,
    /// Memory of buffered and collected messages.
    quota: UnexpectedQuota,
    /// Longest receive requested for the collection of a message ([`collects`](Self::collects)).
    longest: usize,
}

impl<B> MatchQueues<B> {
    /// Returns queues in separately allocated memory: they are too large for callers' stack frames.
    #[cold]
    #[inline(never)]
    pub(super) fn boxed(min_multi_recv: usize) -> Box<Self> {
        Box::new(Self::new(min_multi_recv))
    }

    // Inlined: queues are large, and are to be on the stack of a caller once.
    #[inline(always)]
    pub(super) fn new(min_multi_recv: usize) -> Self {
        Self {
            posted: Default::default(),
            unexpected: std::array::from_fn(|_| Unexpected::default()),
            claimed: HashMap::new(),
            multi: MultiBufs::default(),
            min_multi_recv,
            quota: UnexpectedQuota::default(),
            longest: 0,
        }
    }
}

impl<B> MatchQueues<B> {
    /// Returns FI_OPT_MIN_MULTI_RECV: a multi-receive buffer with less free space, in bytes, is
    /// released.
    pub(super) fn min_multi_recv(&self) -> usize {
        self.min_multi_recv
    }

    /// Sets FI_OPT_MIN_MULTI_RECV.
    pub(super) fn set_min_multi_recv(&mut self, size: usize) {
        self.min_multi_recv = size;
    }

    /// Returns the account of the memory of buffered and collected messages.
    #[inline]
    pub(super) fn quota(&self) -> &UnexpectedQuota {
        &self.quota
    }

    /// Returns the account of the memory of buffered and collected messages, to change.
    #[inline]
    pub(super) fn quota_mut(&mut self) -> &mut UnexpectedQuota {
        &mut self.quota
    }

    /// Returns a buffered message.
    pub(super) fn message(&self, queue: usize, number: u32) -> Option<&UnexpectedMessage<B>> {
        self.unexpected[queue].get(number)
    }

    /// Returns a buffered message, to change.
    pub(super) fn message_mut(
        &mut self,
        queue: usize,
        number: u32,
    ) -> Option<&mut UnexpectedMessage<B>> {
        self.unexpected[queue].get_mut(number)
    }

    /// Returns the oldest visible message matching a receive.
    #[inline]
    pub(super) fn find(&mut self, queue: usize, pattern: Pattern) -> Option<u32> {
        self.unexpected[queue].find(pattern)
    }

    /// Reserves space in the tables for another message. Returns -FI_ENOMEM if there is no memory.
    pub(super) fn reserve(&mut self, queue: usize) -> Result {
        self.unexpected[queue].reserve()
    }

    /// Adds a message, the youngest of its sender, and returns its number.
    pub(super) fn add_message(&mut self, message: UnexpectedMessage<B>) -> u32 {
        let queue = message.envelope.queue();
        let (tag, source, prev) = (message.envelope.tag, message.source, message.prev);
        let unexpected = &mut self.unexpected[queue];
        let id = unexpected.push(tag, source, message);
        if let Some(before) = unexpected.get_mut(prev) {
            before.next = id;
        }
        id
    }

    /// Removes a message, also from the list of its sender's.
    pub(super) fn remove_message(
        &mut self,
        queue: usize,
        number: u32,
    ) -> Option<UnexpectedMessage<B>> {
        let unexpected = &mut self.unexpected[queue];
        let message = unexpected.remove(number)?;
        if let Some(before) = unexpected.get_mut(message.prev) {
            before.next = message.next;
        }
        if let Some(behind) = unexpected.get_mut(message.next) {
            behind.prev = message.prev;
        }
        Some(message)
    }

    /// Sets the name of a message's sender.
    pub(super) fn set_source(&mut self, queue: usize, number: u32, name: fi_addr_t) {
        let unexpected = &mut self.unexpected[queue];
        if let Some(buffered) = unexpected.get_mut(number) {
            buffered.source = name;
        }
        unexpected.set_source(number, name);
    }

    /// Hides a message from receives and peeks.
    pub(super) fn hide(&mut self, queue: usize, message: u32) {
        self.unexpected[queue].claim(message);
    }

    /// Returns true if a message is hidden from receives and peeks.
    pub(super) fn is_hidden(&self, queue: usize, message: u32) -> bool {
        self.unexpected[queue].is_claimed(message)
    }

    /// Returns true if a tagged message is claimed by a peek.
    pub(super) fn is_claimed(&self, message: u32) -> bool {
        self.claimed.values().any(|of| *of == message)
    }

    /// Removes the claim of a tagged message, if there is one.
    pub(super) fn remove_claim(&mut self, message: u32) {
        self.claimed.retain(|_, claimed| *claimed != message);
    }

    /// Posts a receive.
    pub(super) fn push_posted(&mut self, queue: usize, pattern: Pattern, recv: Recv) {
        self.posted[queue].push(pattern, recv);
    }

    /// Takes the oldest receive with this property back.
    pub(super) fn take_posted_if(
        &mut self,
        queue: usize,
        is: impl Fn(&Recv) -> bool,
    ) -> Option<Recv> {
        self.posted[queue].take_if(is)
    }

    /// Takes all receives back.
    pub(super) fn drain_posted(&mut self, queue: usize) -> Vec<Recv> {
        self.posted[queue].drain()
    }

    /// Takes over the receives of other queues.
    pub(super) fn take_over_posted(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.posted, &mut other.posted);
    }

    /// Records a filled part of a multi-receive buffer. Returns FI_MULTI_RECV if it is the
    /// last, else 0.
    #[inline]
    pub(super) fn fill_part(&mut self, recv: &Recv) -> u64 {
        self.multi.filled(recv)
    }

    /// Records a cancelled receive. Returns FI_MULTI_RECV if it gives a multi-receive
    /// buffer back, else 0.
    pub(super) fn cancel(&mut self, recv: &Recv) -> u64 {
        self.multi.cancelled(recv)
    }
}

/// Post of a receive as by [`MatchQueues::push_first`], without calls and panics.
#[derive(Debug)]
pub(super) struct FirstPush {
    pub(super) pattern: Pattern,
    pub(super) op: FastRecv,
    pub(super) tagged: bool,
}

impl<B> LockUse<MatchQueues<B>> for FirstPush {
    type Result = bool;

    /// Returns false, without any effect, if messages wait or another receive needs memory.
    #[inline(always)]
    fn use_value(self, queues: &mut MatchQueues<B>) -> bool {
        let Self { pattern, op, tagged } = self;
        let queue = usize::from(tagged);
        if !queues.unexpected[queue].is_empty() {
            return false;
        }
        let Some(position) = queues.posted[queue].vacant() else { return false };
        position.post(pattern, Recv::new(op.buf.into(), op.context, op.flags));
        true
    }
}

impl<B: UnexpectedBody> MatchQueues<B> {
    /// Posts a receive, or returns it if messages wait.
    #[inline(always)]
    pub(super) fn push_first(
        &mut self,
        pattern: Pattern,
        op: RecvOp,
        tagged: bool,
    ) -> Option<RecvOp> {
        let queue = usize::from(tagged);
        if !self.unexpected[queue].is_empty() {
            return Some(op);
        }
        self.posted[queue].push(pattern, Recv::new(op.buf, op.context, op.flags));
        None
    }

    /// Passes a message to the oldest receive, if it is an ordinary one, matches, and is large
    /// enough, and the completion queue has space. With `QUICK` nothing requiring a call is done.
    /// During a trace the other paths, with probes, are taken.
    #[inline(always)]
    pub(super) fn fill_first<const QUICK: bool>(
        &mut self,
        completions: &RxCompletions,
        from: &Sender,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        if probes::is_enabled() {
            return false;
        }
        let len = bytes.count();
        let posted = &mut self.posted[usize::from(tagged)];
        let Some(first) = posted.first_to_take(from.name, tag) else { return false };
        let Some(recv) = first.value() else { return false };
        let (context, flags) = (recv.context, recv.flags);
        let Some(dst) = recv.buf.in_one_piece() else { return false };
        if flags & (FI_MULTI_RECV | INTERNAL_OP | ONLY_TAG) != 0 || dst.len() < len {
            return false;
        }
        let next = if QUICK { completions.next_entry() } else { None };
        if if QUICK { next.is_none() } else { !completions.has_space() } {
            return false;
        }
        bytes.copy_into_buf::<QUICK>(dst);
        let buf = dst.address();
        first.forget();
        let kind = FI_RECV
            | if tagged { FI_TAGGED } else { FI_MSG }
            | if data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        let data = data.unwrap_or(0);
        let entry = Completion { context, flags: kind, len, buf, data, tag, src: from.id };
        match next {
            Some(next) => completions.succeeded_at(next, entry, completions.wants(flags)),
            None => completions.succeeded(entry, completions.wants(flags)),
        }
        true
    }

    /// Takes the oldest receive matching a message. Of a multi-receive buffer it takes the part
    /// needed for the message. A receive in memory of a device stays unless `takes_devices`.
    #[inline]
    pub(super) fn take_posted(
        &mut self,
        queue: usize,
        source: fi_addr_t,
        envelope: &Envelope,
        takes_devices: bool,
    ) -> Option<Recv> {
        let posted = &mut self.posted[queue];
        let taken = posted.take(source, envelope.tag)?;
        if !takes_devices && taken.value.buf.is_device() {
            posted.put_back(taken);
            return None;
        }
        Some(self.multi.part_of(posted, taken, envelope.len, self.min_multi_recv))
    }

    /// Returns the match of a message, with a receive or to be discarded.
    pub(super) fn match_message(
        &self,
        queue: usize,
        message: u32,
        recv: Option<Recv>,
    ) -> Option<MatchedMessage> {
        let owner = self.unexpected[queue].get(message)?.owner;
        Some(MatchedMessage { queue, message, recv, owner, fills: None })
    }

    /// FI_PEEK, alone or with FI_CLAIM or FI_DISCARD.
    pub(super) fn peek(&mut self, op: &RecvOp, pattern: Pattern) -> Result<PostOutcome> {
        let unexpected = &mut self.unexpected[TAGGED];
        let Some(number) = unexpected.find(pattern) else { return Ok(PostOutcome::default()) };
        let Some(message) = unexpected.get(number) else { return Ok(PostOutcome::default()) };
        // As much of the message as the caller has room for, if it is here; the entry
        // names the buffer only when something was put there.
        let bytes = message.body.bytes().filter(|_| !op.buf.is_device());
        let copied = bytes.map_or(0, |bytes| op.buf.copy_from(0, bytes));
        let buf = if copied > 0 { op.buf.address() } else { 0 };
        let seen =
            Some(PeekedMessage { buf, ..PeekedMessage::of(message, op.context, op.flags, false) });
        if op.flags & FI_CLAIM != 0 {
            if self.claimed.contains_key(&(op.context.0 as usize)) {
                return Err(Error::INVAL);
            }
            unexpected.claim(number);
            self.claimed.insert(op.context.0 as usize, number);
        }
        let discards = op.flags & FI_DISCARD != 0;
        let matched = discards.then(|| self.match_message(TAGGED, number, None)).flatten();
        Ok(PostOutcome { seen, matched })
    }

    /// Handles FI_CLAIM of a message claimed by a peek, to receive or to drop it.
    pub(super) fn settle(&mut self, op: RecvOp) -> Result<PostOutcome> {
        let number = self.claimed.remove(&(op.context.0 as usize)).ok_or(Error::INVAL)?;
        if op.flags & FI_DISCARD == 0 {
            // The completion is that of any receive: only buffered messages are marked with
            // FI_CLAIM.
            let recv = Recv::new(op.buf, op.context, op.flags & !FI_CLAIM);
            return Ok(PostOutcome {
                matched: self.match_message(TAGGED, number, Some(recv)),
                seen: None,
            });
        }
        let buffered = self.unexpected[TAGGED].get(number);
        let seen = buffered.map(|message| PeekedMessage::of(message, op.context, op.flags, true));
        Ok(PostOutcome { matched: self.match_message(TAGGED, number, None), seen })
    }

    /// Returns the match of a buffered message and the multi-receive buffer with this pattern.
    pub(super) fn fill(&mut self, queue: usize, pattern: Pattern) -> Option<MatchedMessage> {
        if self.posted[queue].is_empty() {
            return None;
        }
        let number = self.unexpected[queue].find(pattern)?;
        let buffered = self.unexpected[queue].get(number)?;
        let (envelope, source) = (buffered.envelope, buffered.source);
        let recv = self.take_posted(queue, source, &envelope, true)?;
        let matched = self.match_message(queue, number, Some(recv))?;
        Some(MatchedMessage { fills: Some(pattern), ..matched })
    }

    /// Forgets all claims by peeks; returns their messages to be discarded.
    pub(super) fn take_claimed(&mut self) -> Vec<MatchedMessage> {
        let claimed = std::mem::take(&mut self.claimed).into_values();
        claimed.filter_map(|message| self.match_message(TAGGED, message, None)).collect()
    }

    /// Returns true if a partially arrived message has to be collected completely before it takes a
    /// receive of a shared receive context: complete messages must not wait for its rest, because
    /// it may never arrive. Nothing is collected while there are plenty of receives. Fails with
    /// -FI_EPROTO if the message is longer than any receive before.
    pub(super) fn collects(&mut self, len: usize, most: usize) -> Result<bool> {
        let posted = &self.posted[0];
        if posted.len() > SPARE_RECEIVES {
            return Ok(false);
        }
        if let Some(recv) = posted.first(FI_ADDR_UNSPEC, 0) {
            self.longest = self.longest.max(recv.buf.len());
        }
        if len > self.longest && self.longest > 0 {
            return Err(Error::PROTO);
        }
        let cost = len.saturating_add(UnexpectedMessage::<B>::COST);
        let collects = self.longest > 0 && self.quota.has_space(cost, most);
        if collects {
            self.quota.change(0, cost, false);
        }
        Ok(collects)
    }

    /// Publishes the numbers of posted receives and unexpected messages.
    pub(super) fn show(&self, stats: &mut EndpointStats) {
        let kind = |queue: usize| queue as u64 + 1;
        stats.posted = std::array::from_fn(|queue| self.posted[queue].len() as u64);
        stats.unexpected = std::array::from_fn(|queue| self.unexpected[queue].len() as u64);
        stats.unexpected_bytes = self.quota.bytes() as u64;
        let order = [TAGGED, 0];
        let (most, most_messages) = (stats.receives.len(), stats.messages.len());
        let receives = order.iter().flat_map(|queue| {
            let one = |recv: &Recv| recv.flags & FI_MULTI_RECV == 0;
            let oldest = self.posted[*queue].oldest(most, one);
            oldest.into_iter().map(|pattern| PendingOpStats {
                kind: kind(*queue),
                tag: pattern.tag,
                ignore_or_len: pattern.ignore,
                source: pattern.src.unwrap_or(ANY),
            })
        });
        stats.receives.iter_mut().zip(receives).for_each(|(to, from)| *to = from);
        let messages = order.iter().flat_map(|queue| {
            let oldest = self.unexpected[*queue].oldest(most_messages);
            oldest.map(|message| PendingOpStats {
                kind: kind(*queue),
                tag: message.envelope.tag,
                ignore_or_len: message.envelope.len as u64,
                source: message.source,
            })
        });
        stats.messages.iter_mut().zip(messages).for_each(|(to, from)| *to = from);
    }
}
