//! Matching engine: posted receives, unexpected messages, multi-receive buffers, peeks and claims
//! of an endpoint (fi_msg(3), fi_tagged(3)).
//!
//! It matches messages with receives and reports them. The transport of bytes to a buffer, and the
//! form of an unexpected message, are the task of the provider. It is notified of every [`MatchedMessage`]
//! of a message and a receive.
//!
//! Endpoints with a shared receive context (fi_endpoint(3)) have one matching engine each, for the
//! reports, and share one set of [`MatchQueues`].
//!
//! Buffered messages are counted by sender, for the quotas of peers. The provider defines the
//! capacity, and the handling of a message exceeding it.
mod traced;

use super::endpoint_queues::{EndpointQueues, QueueOwnership};
use super::match_queues::{FirstPush, MatchQueues};
use super::messages::{COLLECTIVE, TAGGED};
pub use super::messages::{
    Envelope, MatchedMessage, PeekedMessage, PostOutcome, QUEUES, UnexpectedBody, UnexpectedMessage,
};
use super::peer_srx_rx::PeerSrxQueue;
use super::recv_rules::RecvRules;
use super::senders::{Sender, Senders};
use super::unexpected_quota::MessageCost;
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_CLAIM, FI_DISCARD, FI_MORE, FI_MSG, FI_MULTI_RECV, FI_PEEK, FI_RECV,
    FI_TAGGED, fi_addr_t,
};
use crate::buf::{MessageBytes, RecvBuf, is_some};
use crate::buffered::BufferedRecv;
use crate::completions::RxCompletions;
use crate::cq::{Completion, CompletionError, Context};
use crate::error::{Error, Result};
use crate::lock::LockUse;
use crate::matching::Pattern;
use crate::mr::MrTable;
use crate::multi_recv::BUFFERED;
pub use crate::multi_recv::Recv;
use crate::operation::{FastRecv, RecvOp};
use crate::peer_srx::{SrxOwner, SrxStart, SrxStartQueue};
use crate::reserved::{INTERNAL_OP, ONLY_TAG};
use crate::slab::NONE;
use std::sync::Arc;

/// Flags excluding a receive from the fast path of posting.
const SPECIAL: u64 = FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV | INTERNAL_OP | ONLY_TAG;

/// Receiving side of an endpoint: its queues, the state of its peers, and its completion sink.
#[derive(Debug)]
pub struct RxMatcher<B> {
    /// The endpoint's number.
    owner: u32,
    /// Completion sink of the receives.
    pub completions: RxCompletions,
    /// Rules for the match criteria of receives.
    pub rules: RecvRules,
    /// True after the end of the connection: unmatched receives are cancelled at once.
    ended: bool,
    /// Posted receives and unexpected messages.
    pub queues: EndpointQueues<B>,
    /// State of buffered receives (FI_BUFFERED_RECV), if the endpoint has them.
    pub buffering: BufferedRecv,
    /// States of peers.
    pub senders: Senders,
    /// Another provider's receive queue in use.
    imported: Option<Box<PeerSrxQueue>>,
}

impl<B: UnexpectedBody> RxMatcher<B> {
    /// Returns the matching engine of an endpoint not enabled yet. `directed`: the source of a
    /// receive takes part in matching (FI_DIRECTED_RECV). `source_err`: messages of unknown peers
    /// are reported as errors (FI_SOURCE_ERR). `min_multi_recv`: FI_OPT_MIN_MULTI_RECV, in bytes.
    pub fn new(directed: bool, source_err: bool, min_multi_recv: usize) -> Self {
        Self {
            owner: NONE,
            completions: RxCompletions::default(),
            rules: RecvRules::new(directed),
            ended: false,
            queues: EndpointQueues::new(min_multi_recv),
            buffering: BufferedRecv::default(),
            senders: Senders::new(source_err),
            imported: None,
        }
    }

    /// Takes receives from another provider's queue from now on (fi_peer(3)). The provider queues
    /// started buffered messages in `started`. `devices`: the regions of a domain with FI_HMEM, for the
    /// locations of buffers.
    pub fn import(
        &mut self,
        owner: SrxOwner,
        started: &Arc<SrxStartQueue>,
        devices: Option<Arc<MrTable>>,
    ) {
        self.imported = Some(Box::new(PeerSrxQueue::new(owner, started, devices)));
    }

    /// Returns true if receives belong to another provider.
    #[inline]
    pub fn is_imported(&self) -> bool {
        self.imported.is_some()
    }

    /// Returns the match for a buffered message started or dropped by its owner, or `None` if the
    /// message is not present any more.
    pub fn started(&mut self, started: &SrxStart) -> Option<MatchedMessage> {
        let SrxStart { queue, message, dropped, entry, .. } = *started;
        let is_here = self.queues.buffered_envelope(queue, message).is_some();
        let imported = self.imported.as_deref_mut().filter(|_| is_here)?;
        let recv = match dropped {
            true => {
                imported.owner.free(entry);
                None
            }
            false => {
                let recv = imported.receive(entry)?;
                self.completions.part();
                Some(recv)
            }
        };
        Some(MatchedMessage { queue, message, recv, owner: self.owner, fills: None })
    }

    /// Sets the endpoint's number.
    pub fn set_owner(&mut self, owner: u32) {
        self.owner = owner;
    }

    /// Removes the messages of a closed endpoint from shared queues; later messages take none of
    /// their receives. The caller must hold the lock under which others post there, so no receive
    /// matches a message of a closed endpoint.
    pub fn leave(&mut self) {
        if !self.queues.is_srx_user() {
            return;
        }
        let numbers = self.senders.numbers();
        for peer in numbers.filter(|peer| self.senders.has_buffered_from(*peer)).collect::<Vec<_>>()
        {
            for (queue, id) in self.buffered_from(peer) {
                self.take_buffered(queue, id);
                if queue == TAGGED {
                    self.queues.with(TAGGED, |queues| queues.remove_claim(id));
                }
            }
        }
        self.queues.leave();
    }

    /// Sets if the source of a receive takes part in matching (FI_DIRECTED_RECV), and if messages
    /// of unknown peers are reported as errors (FI_SOURCE_ERR).
    pub fn choose_sources(&mut self, directed: bool, source_err: bool) {
        self.rules.set_directed(directed);
        self.senders.set_source_err(source_err);
    }

    /// Reports completed receives to this completion sink.
    pub fn bind(&mut self, completions: &RxCompletions) {
        self.completions.clone_from(completions);
        if let Some(buffering) = self.buffering.state_mut() {
            buffering.fix();
        }
    }

    /// Records the end of the connection: unmatched receives posted from now on are cancelled.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Returns true if [`end`](Self::end) was called.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Sets the addresses of a peer, as used by the source of receives and as reported by
    /// completions; FI_ADDR_NOTAVAIL for an unknown peer. The two differ with FI_AV_USER_ID.
    pub fn set_name(&mut self, peer: u32, name: fi_addr_t, id: fi_addr_t) {
        let was_unknown_peer = self.senders.is_unknown_peer(peer);
        let known = self.senders.get_mut(peer);
        let before = std::mem::replace(known, Sender { name, id, ..*known });
        let (renamed, identified) = (before.name != name, before.id != id);
        // Receives here choose by the name; another provider, whose receives are imported, knows the
        // sender by the other number alone.
        if before.buffered == 0 || !(renamed || (identified && self.imported.is_some())) {
            return;
        }
        let bytes = before.bytes;
        match (was_unknown_peer, self.senders.is_unknown_peer(peer)) {
            (was, is) if was != is => {
                self.queues.with(0, |queues| queues.quota_mut().reclassify(bytes, is));
            }
            _ => {}
        }
        for (queue, number) in self.buffered_from(peer) {
            if renamed {
                self.queues.with(queue, |queues| queues.set_source(queue, number, name));
            }
            if let Some(imported) = &self.imported {
                imported.name((queue, number), id);
            }
        }
        if let Some(imported) = &self.imported {
            imported.owner.names_changed();
        }
    }

    /// Forgets the state of a peer, so its number can be reused.
    pub fn forget(&mut self, peer: u32) {
        self.set_name(peer, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);
        self.senders.remove_addr(peer);
        self.senders.set_trace_id(peer, 0);
    }

    /// Bytes of memory of a buffered message in addition to its own.
    pub const COST: usize = UnexpectedMessage::<B>::COST;

    /// Recounts this endpoint's buffered messages and verifies the sums. Returns the number of
    /// messages, and the bytes of all messages in these queues, including the ones being collected.
    /// For tests.
    pub fn check_sums(&self) -> (usize, usize) {
        let numbers = self.senders.numbers();
        let (mut count, mut bytes, mut of_unknown_peers) = (0, 0, 0);
        for peer in numbers {
            let known = self.senders.get(peer);
            let buffered = self.buffered_from(peer);
            let cost = |(queue, id): &(usize, u32)| {
                self.queues.look(*queue, |queues| {
                    let message = queues.message(*queue, *id).expect("it is in the list");
                    assert_eq!((message.envelope.peer, message.owner), (peer, self.owner));
                    message.cost()
                })
            };
            let sum: usize = buffered.iter().map(cost).sum();
            assert_eq!(
                (known.buffered as usize, known.bytes),
                (buffered.len(), sum),
                "of peer {peer}"
            );
            of_unknown_peers += if self.senders.is_unknown_peer(peer) { sum } else { 0 };
            (count, bytes) = (count + buffered.len(), bytes + sum);
        }
        self.queues.look(0, |queues| {
            let sum = queues.quota().of_unknown_peers();
            assert!(queues.quota().bytes() >= bytes && sum >= of_unknown_peers);
            if matches!(self.queues.location(), QueueOwnership::Own(_)) {
                assert_eq!(sum, of_unknown_peers, "bytes of unknown peers");
            }
        });
        (count, self.queues.buffered_bytes())
    }

    /// A receive is filled: returns FI_MULTI_RECV if its completion gives a multi-receive buffer
    /// back, 0 otherwise.
    #[inline]
    fn part_filled(&mut self, recv: &Recv) -> u64 {
        if recv.flags & FI_MULTI_RECV == 0 {
            return 0;
        }
        if recv.import().is_some() {
            // The owner says when the buffer is given back.
            return FI_MULTI_RECV;
        }
        let gives_back = self.queues.fill_part(recv);
        if gives_back == 0 {
            self.completions.part();
        }
        gives_back
    }

    /// Reports a receive with a complete message: as a success, or as an error for a truncated
    /// message (-FI_ETRUNC) or, with FI_SOURCE_ERR, for one of an unknown source
    /// (-FI_EADDRNOTAVAIL).
    #[inline]
    pub fn received(&mut self, recv: &Recv, envelope: &Envelope) {
        let extra = self.part_filled(recv) | (recv.flags & BUFFERED);
        let src = self.senders.id_of(envelope.peer);
        let entry = envelope.completion(recv.context, recv.buf.address(), extra, src);
        if envelope.len > recv.buf.len() {
            let olen = envelope.len - recv.buf.len();
            let of = Completion { len: recv.buf.len(), ..entry };
            self.completions
                .failed(CompletionError { olen, ..CompletionError::new(of, Error::TRUNC) });
        } else {
            let is_unknown = entry.src == FI_ADDR_NOTAVAIL && entry.flags & INTERNAL_OP == 0;
            match is_unknown.then(|| self.senders.addr_of(envelope.peer)).flatten() {
                Some(data) => {
                    // The message is received, but its sender has no fi_addr_t: the error entry
                    // has its address.
                    let error = CompletionError::new(entry, Error::ADDRNOTAVAIL);
                    self.completions.failed(CompletionError { data, ..error });
                }
                None => {
                    // The entry that gives a multi-receive buffer back is always written.
                    let is_given_back = extra & FI_MULTI_RECV != 0;
                    self.completions
                        .done(entry, self.completions.wants(recv.flags) || is_given_back);
                }
            }
        }
        self.release(recv);
    }

    /// Returns a reported receive of another provider to it.
    #[inline]
    fn release(&mut self, recv: &Recv) {
        if let Some(number) = recv.import() {
            if let Some(imported) = &mut self.imported {
                imported.release(number);
            }
        }
    }

    /// Fast path of a completely arrived message without special features for the oldest receive:
    /// saves its envelope and the search for its receive. `tag` is the tag of a tagged message,
    /// otherwise 0; `data` its remote CQ data. Returns false in any other case, without any effect.
    ///
    /// Inlined, since it is nearly a leaf function: all calls are in
    /// [`receive_first`](Self::receive_first). Its caller should do nothing else.
    #[inline(always)]
    pub fn recv_fast(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        self.receive_short(peer, tagged, tag, data, bytes)
            || self.receive_first(peer, tagged, tag, data, bytes)
    }

    /// Handles a short message for [`recv_fast`](Self::recv_fast), if no call is needed.
    #[inline(always)]
    pub fn receive_short(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        is_some(bytes.count()) && self.fill_first::<true>(peer, tagged, tag, data, bytes)
    }

    /// Handles messages of any length, and shared queues, for
    /// [`recv_fast`](Self::recv_fast).
    #[inline(never)]
    pub fn receive_first(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        self.fill_first::<false>(peer, tagged, tag, data, bytes)
    }

    /// Implements [`recv_fast`](Self::recv_fast); with `QUICK` it also returns false if a
    /// call is needed.
    #[inline(always)]
    fn fill_first<const QUICK: bool>(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        if self.senders.has_source_err() || (tagged && self.rules.is_internal_tag(tag)) {
            return false;
        }
        let known = self.senders.get(peer);
        let completions = &self.completions;
        match self.queues.location_mut() {
            QueueOwnership::Own(queues) => {
                queues.fill_first::<QUICK>(completions, known, tagged, tag, data, bytes)
            }
            QueueOwnership::Shared(queues, _) if B::ONE_LOCK && !QUICK => {
                let mut queues = queues.lock_serialized();
                queues.fill_first::<false>(completions, known, tagged, tag, data, bytes)
            }
            QueueOwnership::Shared(..) => false,
        }
    }

    /// Implements [`recv_fast`](Self::recv_fast) for receives of another provider: one of
    /// this library takes such a message in one call, if it carries no remote CQ data.
    #[inline(always)]
    pub fn receive_imported(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        bytes: impl MessageBytes,
    ) -> bool {
        let id = self.senders.id_of(peer);
        if tagged && self.rules.is_internal_tag(tag) {
            return false;
        }
        let imported = self.imported.as_deref_mut();
        imported.is_some_and(|imported| imported.recv_whole_message(tagged, id, tag, bytes))
    }

    /// Second fast path, after [`recv_fast`](Self::recv_fast) or, for receives of another
    /// provider, [`receive_imported`](Self::receive_imported): passes such a message to any
    /// matching posted receive.
    #[inline(never)]
    pub fn receive_whole(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        let len = bytes.count();
        if !self.completions.has_space()
            || self.buffering.is_enabled()
            || (tagged && self.rules.is_internal_tag(tag))
        {
            return false;
        }
        let envelope =
            Envelope { tagged, msg_tag: None, collective: false, tag, len, cq_data: data, peer };
        let Some(recv) = self.take_of(&envelope, false) else { return false };
        bytes.copy_into(&recv.buf);
        self.received(&recv, &envelope);
        true
    }

    /// Reports a receive with a message failing with `error`.
    pub fn failed(&mut self, recv: &Recv, envelope: &Envelope, error: Error) {
        let extra = self.part_filled(recv) | (recv.flags & BUFFERED);
        let src = self.senders.id_of(envelope.peer);
        let entry = envelope.completion(recv.context, recv.buf.address(), extra, src);
        self.completions.failed(CompletionError::new(entry, error));
        self.release(recv);
    }

    /// Takes the oldest posted receive matching a message. Of a multi-receive buffer it takes the
    /// part needed for the message.
    #[inline]
    pub fn take_posted(&mut self, envelope: &Envelope) -> Option<Recv> {
        self.take_of(envelope, true)
    }

    /// Implements [`take_of`](Self::take_of).
    #[inline]
    fn take_untraced(&mut self, envelope: &Envelope, is_last: bool) -> Option<Recv> {
        let (queue, source) = (envelope.queue(), self.senders.name_of(envelope.peer));
        if let Some(imported) = self.imported.as_mut().filter(|_| queue != COLLECTIVE) {
            let recv = imported.take(envelope, self.senders.id_of(envelope.peer), is_last)?;
            // It was posted to the owner.
            self.completions.part();
            return Some(recv);
        }
        self.queues.with(queue, |queues| queues.take_posted(queue, source, envelope, is_last))
    }

    /// Returns true if the unexpected messages of an unknown peer exceed its quota. All unknown
    /// peers together may have `most` bytes here, and one of them up to half of the bytes left free
    /// by all of them.
    pub fn is_too_much(&self, envelope: &Envelope, most: usize) -> bool {
        let bytes = self.senders.get(envelope.peer).bytes;
        self.senders.is_unknown_peer(envelope.peer)
            && self.queues.look(0, |queues| queues.quota().exceeds_share(bytes, most))
    }

    /// Memory of a message and of its sender's messages, including it.
    fn cost_of(&self, envelope: &Envelope) -> MessageCost {
        let overhead = UnexpectedMessage::<B>::COST;
        let cost = envelope.len.saturating_add(overhead);
        MessageCost {
            cost,
            overhead,
            sum: self.senders.get(envelope.peer).bytes.saturating_add(cost),
            of_unknown_peer: self.senders.is_unknown_peer(envelope.peer),
        }
    }

    /// Returns true if this message may be buffered, with a capacity of `most` bytes. An unknown
    /// peer has a small quota.
    pub fn may_buffer(&self, envelope: &Envelope, most: usize) -> bool {
        let message = self.cost_of(envelope);
        self.queues.look(0, |queues| queues.quota().admits(message, most))
    }

    /// Returns true if a message over its quota, with a capacity of `most` bytes, would fit without
    /// the messages of other unknown peers. Named peers never evict messages of disconnected
    /// unknown peers; their own messages wait instead.
    pub fn is_excluded_by_unknown_peers(&self, envelope: &Envelope, most: usize) -> bool {
        let message = self.cost_of(envelope);
        self.queues.look(0, |queues| queues.quota().is_excluded_by_unknown_peers(message, most))
    }

    /// Records the disconnection of an unknown peer. Its messages stay for a while: it may have
    /// ended after sending all. Returns true if there are too many such peers, and the messages of
    /// the oldest have to be dropped ([`EndpointQueues::oldest_left`]).
    pub fn unknown_peer_left(&mut self, peer: u32) -> bool {
        if !self.senders.has_buffered_from(peer) || !self.senders.is_unknown_peer(peer) {
            return false;
        }
        let owner = self.owner;
        self.queues.with(0, |queues| queues.quota_mut().record_left(owner, peer))
    }

    /// The waiting messages of a peer, as their queues and numbers, in each queue from the oldest
    /// on.
    pub fn buffered_from(&self, peer: u32) -> Vec<(usize, u32)> {
        let mut buffered = Vec::new();
        let last = self.senders.get(peer).last.into_iter().enumerate();
        for (queue, mut id) in last.filter(|(_, id)| *id != NONE) {
            let first = buffered.len();
            self.queues.look(queue, |queues| {
                while let Some(message) = queues.message(queue, id) {
                    buffered.push((queue, id));
                    id = message.prev;
                }
            });
            buffered[first..].reverse();
        }
        buffered
    }

    /// Accounts for a change, from `before` to `after` bytes, of the memory of a peer's messages.
    /// All sums are in the possibly shared queues.
    fn recount(&mut self, peer: u32, before: usize, after: usize) {
        let known = self.senders.get_mut(peer);
        known.bytes = known.bytes + after - before;
        let unknown_peer = self.senders.is_unknown_peer(peer);
        self.queues.with(0, |queues| queues.quota_mut().change(before, after, unknown_peer));
    }

    /// Buffers a message for a later receive and returns its number.
    pub fn buffer_unexpected(&mut self, envelope: Envelope, body: B) -> u32 {
        let queue = envelope.queue();
        let Sender { name: source, last, .. } = *self.senders.get(envelope.peer);
        let (owner, prev) = (self.owner, last[queue]);
        let message = UnexpectedMessage { envelope, body, owner, source, prev, next: NONE };
        let cost = message.cost();
        let id = self.queues.with(queue, |queues| queues.add_message(message));
        let known = self.senders.get_mut(envelope.peer);
        known.buffered += 1;
        known.last[queue] = id;
        let sender = known.id;
        self.recount(envelope.peer, 0, cost);
        if let Some(imported) = &mut self.imported {
            if queue != COLLECTIVE {
                imported.note(&envelope, sender, owner, id);
            }
        }
        id
    }

    /// Changes the form of an unexpected message, and accounts for its new memory. Returns `None`
    /// if there is no such message.
    pub fn change<R>(
        &mut self,
        queue: usize,
        message: u32,
        change: impl FnOnce(&mut B) -> R,
    ) -> Option<R> {
        let (peer, before, after, result) = self.queues.with(queue, |queues| {
            let buffered = queues.message_mut(queue, message)?;
            let before = buffered.cost();
            let result = change(&mut buffered.body);
            Some((buffered.envelope.peer, before, buffered.cost(), result))
        })?;
        if before != after {
            self.recount(peer, before, after);
        }
        Some(result)
    }

    /// Removes a buffered message to this endpoint.
    pub fn take_buffered(&mut self, queue: usize, number: u32) -> Option<UnexpectedMessage<B>> {
        let message = self.queues.with(queue, |queues| queues.remove_message(queue, number))?;
        if let Some(imported) = &mut self.imported {
            imported.forget((queue, number));
        }
        let known = self.senders.get_mut(message.envelope.peer);
        known.buffered -= 1;
        if message.next == NONE {
            known.last[queue] = message.prev;
        }
        self.recount(message.envelope.peer, message.cost(), 0);
        Some(message)
    }

    /// Records the loss of an incomplete buffered message. If the application relies on it, it
    /// stays in the form set by `lost`, and its claim fails. Otherwise it is removed, and its
    /// matched tag fails with `error`.
    pub fn lose(&mut self, queue: usize, message: u32, lost: impl FnOnce(&mut B), error: Error) {
        if self.is_claimed(queue, message) {
            self.change(queue, message, lost);
            return;
        }
        let Some(buffered) = self.take_buffered(queue, message) else { return };
        let buffering = self.buffering.state_mut();
        if let Some(posted) = buffering.and_then(|state| state.take_pending(queue, message)) {
            self.failed(&Recv::new(RecvBuf::none(), posted, 0), &buffered.envelope, error);
        }
    }

    /// Returns true if the application relies on this message: it was claimed by a peek, or
    /// reported by buffered receives, or another provider has a note of it.
    pub fn is_claimed(&self, queue: usize, message: u32) -> bool {
        let claimed = |queues: &MatchQueues<B>| queues.is_claimed(message);
        (self.imported.is_some() && queue != COLLECTIVE)
            || (queue == TAGGED && self.queues.look(TAGGED, claimed))
            || self
                .buffering
                .state()
                .is_some_and(|buffering| buffering.has_notified(queue, message))
    }

    /// Records the match of a buffered message with the tag posted with this context. It is
    /// reported once enough bytes have arrived; no other receive, tag or peek finds it any more.
    pub fn add_pending(&mut self, queue: usize, message: u32, posted: Context) {
        if let Some(buffering) = self.buffering.state_mut() {
            buffering.add_pending(queue, message, posted);
        }
        self.queues.hide(queue, message);
    }

    /// Returns true if a message is hidden from receives and peeks.
    pub fn is_hidden(&self, queue: usize, message: u32) -> bool {
        (self.imported.is_some() && queue != COLLECTIVE)
            || self.queues.look(queue, |queues| queues.is_hidden(queue, message))
    }

    /// Reports a buffered message, to be claimed or discarded: all of it, or this start. `posted`
    /// is the context of the matched tag, if it waited for one. From now on no receive or peek
    /// finds the message.
    pub fn announce(
        &mut self,
        queue: usize,
        message: u32,
        start: Option<Box<[u8]>>,
        posted: Option<Context>,
    ) {
        let Some(envelope) = self.queues.buffered_envelope(queue, message) else { return };
        let here = self.queues.buffered_body(queue, message).and_then(UnexpectedBody::bytes);
        let (at, more) = match (&start, here) {
            (Some(start), _) => (start.as_ptr(), FI_MORE),
            (None, Some(bytes)) => (bytes.as_ptr(), 0),
            (None, None) => return,
        };
        let Some(context) = self.buffering.report((queue, message), posted, start) else { return };
        self.queues.hide(queue, message);
        let src = self.senders.id_of(envelope.peer);
        let entry = envelope.completion(context, at as usize, more, src);
        self.completions.on_rts(entry, posted.is_some());
    }

    /// Posts a tag on an endpoint with buffered receives and returns the matching message, if one
    /// waits.
    pub fn post_tag(&mut self, op: &RecvOp) -> Option<(u32, Envelope)> {
        let pattern = self.rules.pattern(op, false);
        let message = self.queues.with(TAGGED, |queues| queues.find(TAGGED, pattern));
        let Some(message) = message else {
            self.add(TAGGED, pattern, Recv::new(RecvBuf::none(), op.context, op.flags));
            return None;
        };
        Some((message, self.queues.buffered_envelope(TAGGED, message)?))
    }

    /// Handles FI_CLAIM or FI_DISCARD with the context of a reported message. Returns `None` if
    /// there is no such message.
    fn settle_notified(&mut self, op: &RecvOp, queue: usize) -> Option<PostOutcome> {
        let (message, context) = self.buffering.state_mut()?.take(op.context, queue)?;
        let discard = op.flags & FI_DISCARD != 0;
        let recv = (!discard).then(|| Recv::new(op.buf.clone(), context, op.flags));
        self.queues.look(queue, |queues| {
            let matched = queues.match_message(queue, message, recv);
            let buffered = queues.message(queue, message).filter(|_| discard);
            // A discarded message is counted like a claimed one; the announcement was its
            // completion entry.
            let seen = buffered.map(|buffered| PeekedMessage::of(buffered, op.context, 0, true));
            Some(PostOutcome { seen, matched })
        })
    }

    /// The short way of fi_recv and fi_trecv, for the commonest case: the receive asks for nothing
    /// special, and no message waits. In any other case the receive comes back.
    #[inline(always)]
    pub fn post_fast(&mut self, op: RecvOp, tagged: bool) -> Option<RecvOp> {
        if op.flags & SPECIAL != 0 || self.ended {
            return Some(op);
        }
        let pattern = self.rules.pattern(&op, false);
        match self.queues.location_mut() {
            QueueOwnership::Own(queues) => queues.push_first(pattern, op, tagged),
            QueueOwnership::Shared(queues, _) if B::ONE_LOCK => {
                queues.lock_serialized().push_first(pattern, op, tagged)
            }
            QueueOwnership::Shared(..) => Some(op),
        }
    }

    /// Fast path of [`post_fast`](Self::post_fast) for queues with space: saves the frame of a
    /// function with calls and panics. Returns false in any other case, without any effect.
    #[inline(always)]
    pub fn try_post_fast(&mut self, op: FastRecv, tagged: bool) -> bool {
        if op.flags & SPECIAL != 0 || self.ended {
            return false;
        }
        let pattern = self.rules.pattern_of((op.src, op.tag, op.ignore), false);
        let first = FirstPush { pattern, op, tagged };
        match self.queues.location_mut() {
            QueueOwnership::Own(queues) => first.use_value(queues),
            QueueOwnership::Shared(queues, _) if B::ONE_LOCK => {
                queues.quickly_serialized(first).unwrap_or(false)
            }
            QueueOwnership::Shared(..) => false,
        }
    }

    /// fi_recv and fi_trecv in all their forms but tags alone ([`post_tag`](Self::post_tag)).
    /// For FI_PEEK the caller makes progress first: the message asked for may be on its way.
    pub fn post(&mut self, op: RecvOp, tagged: bool) -> Result<PostOutcome> {
        if op.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) != 0 {
            return self.special(op, tagged);
        }
        let collective =
            op.flags & INTERNAL_OP != 0 && tagged && self.rules.is_internal_tag(op.tag);
        let queue = usize::from(tagged) + usize::from(collective);
        let pattern = self.rules.pattern(&op, collective);
        if op.flags & FI_MULTI_RECV != 0 && !op.buf.is_contiguous() {
            // A multi-receive buffer must be contiguous: messages get its parts front to back.
            return Err(Error::INVAL);
        }
        let recv = Recv::new(op.buf, op.context, op.flags);
        if op.flags & FI_MULTI_RECV != 0 {
            // A multi-receive buffer may take many waiting messages. It is the oldest matching
            // receive for all of them: a message that an older receive matches is not waiting.
            self.queues.with(queue, |queues| queues.push_posted(queue, pattern, recv));
            return Ok(PostOutcome { matched: self.fill(queue, pattern), seen: None });
        }
        let message = self.queues.with(queue, |queues| queues.find(queue, pattern));
        let matched = match message {
            Some(message) => {
                self.queues.with(queue, |queues| queues.match_message(queue, message, Some(recv)))
            }
            None => {
                self.add(queue, pattern, recv);
                None
            }
        };
        Ok(PostOutcome { matched, seen: None })
    }

    /// Posts an unmatched receive. If no message can arrive any more it is cancelled: posting stays
    /// possible, because the application may not have read of the end yet.
    fn add(&mut self, queue: usize, pattern: Pattern, recv: Recv) {
        if self.ended {
            self.cancelled(queue, &recv);
        } else {
            self.queues.with(queue, |queues| queues.push_posted(queue, pattern, recv));
        }
    }

    /// Passes the next matching buffered message to a multi-receive buffer just posted. It does so
    /// even without space in the completion queue, because no later call would do it, and the
    /// buffered messages must not be overtaken. Their number is limited.
    pub fn fill(&mut self, queue: usize, pattern: Pattern) -> Option<MatchedMessage> {
        let matched = self.queues.with(queue, |queues| queues.fill(queue, pattern));
        if matched.is_none() && self.ended {
            // The rest of the buffer gets no message any more.
            self.cancel_posted();
        }
        matched
    }

    /// FI_PEEK, FI_CLAIM and FI_DISCARD of tagged receives; with buffered receives FI_CLAIM and
    /// FI_DISCARD of untagged ones, too.
    fn special(&mut self, op: RecvOp, tagged: bool) -> Result<PostOutcome> {
        let (peeks, claims) = (op.flags & FI_PEEK != 0, op.flags & FI_CLAIM != 0);
        if !peeks {
            if let Some(settled) = self.settle_notified(&op, usize::from(tagged)) {
                return Ok(settled);
            }
            if !claims {
                // FI_DISCARD alone names only what was reported.
                let buffers = self.buffering.is_enabled();
                return Err(if buffers { Error::INVAL } else { Error::BADFLAGS });
            }
            if !tagged {
                return Err(Error::INVAL);
            }
            return self.queues.with(TAGGED, |queues| queues.settle(op));
        }
        if claims && op.flags & FI_DISCARD != 0 {
            return Err(Error::BADFLAGS);
        }
        let pattern = self.rules.pattern(&op, false);
        let found = self.queues.with(TAGGED, |queues| queues.peek(&op, pattern))?;
        if found.seen.is_none() {
            let of =
                Completion { tag: op.tag, ..Completion::of(op.context, FI_RECV | FI_TAGGED, 0) };
            self.completions.found_none(CompletionError::new(of, Error::NOMSG));
        }
        Ok(found)
    }

    /// Reports a message of this endpoint peeked at, claimed or discarded.
    pub fn report_seen(&self, seen: &PeekedMessage) {
        let src = self.senders.id_of(seen.envelope.peer);
        let entry = seen.envelope.completion(seen.context, seen.buf, 0, src);
        let wanted = self.completions.wants(seen.flags);
        if seen.counts {
            self.completions.done(entry, wanted);
        } else {
            self.completions.looked_at(entry, wanted);
        }
    }

    /// fi_cancel: takes the receive with this context back.
    pub fn cancel(&mut self, context: Context, internal: bool) {
        let is =
            |recv: &Recv| recv.context == context && (recv.flags & INTERNAL_OP != 0) == internal;
        for queue in 0..QUEUES {
            if let Some(recv) = self.queues.with(queue, |queues| queues.take_posted_if(queue, is)) {
                self.cancelled(queue, &recv);
                return;
            }
        }
    }

    /// Cancels all posted receives, unless they are those of a shared receive context.
    #[inline(never)]
    fn cancel_posted(&mut self) {
        if self.queues.is_srx_user() {
            return;
        }
        for queue in 0..QUEUES {
            for recv in self.queues.with(queue, |queues| queues.drain_posted(queue)) {
                self.cancelled(queue, &recv);
            }
        }
    }

    /// Cancels all posted receives, at the close of the endpoint or the final end of its
    /// connection. Receives of a shared receive context stay until it is closed. Returns the
    /// messages to be discarded.
    #[must_use]
    pub fn cancel_all(&mut self) -> Vec<MatchedMessage> {
        self.cancel_posted();
        if self.buffering.is_enabled() { self.cancel_pending() } else { Vec::new() }
    }

    /// Cancels incomplete buffered messages with a matched tag: they still count as posted
    /// receives.
    #[inline(never)]
    fn cancel_pending(&mut self) -> Vec<MatchedMessage> {
        let Some(buffering) = self.buffering.state_mut() else { return Vec::new() };
        let mut discarded = Vec::new();
        for (queue, message, posted) in buffering.take_all_pending() {
            self.cancelled(queue, &Recv::new(RecvBuf::none(), posted, 0));
            discarded.extend(
                self.queues.look(queue, |queues| queues.match_message(queue, message, None)),
            );
        }
        discarded
    }

    /// Forgets messages claimed by a peek, or reported by buffered receives, and returns them to be
    /// discarded.
    #[must_use]
    pub fn unclaim_all(&mut self) -> Vec<MatchedMessage> {
        let mut discarded = self.queues.with(TAGGED, MatchQueues::take_claimed);
        if let Some(buffering) = self.buffering.state_mut() {
            for (queue, id) in buffering.take_all_notified() {
                discarded.extend(
                    self.queues.look(queue, |queues| queues.match_message(queue, id, None)),
                );
            }
        }
        discarded
    }

    fn cancelled(&mut self, queue: usize, recv: &Recv) {
        let gives_back = self.queues.with(0, |queues| queues.cancel(recv));
        if recv.flags & FI_MULTI_RECV != 0 && gives_back == 0 {
            // The buffer is given back by its last part, which is being filled.
            self.completions.part();
        }
        let extra = gives_back | (recv.flags & INTERNAL_OP);
        let flags = FI_RECV | if queue == 0 { FI_MSG } else { FI_TAGGED } | extra;
        let of = Completion { buf: recv.buf.address(), ..Completion::of(recv.context, flags, 0) };
        self.completions.failed(CompletionError::new(of, Error::CANCELED));
    }
}

#[cfg(test)]
mod tests;
