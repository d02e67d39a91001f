//! One connection, and everything under way on it.
use super::batch::Batch;
use super::facts::count_header;
use super::incoming::{AHEAD_OF_LARGE, DIRECT_MIN, Incoming};
use super::trace::trace;
use super::transfer::{COPY_MAX, Outgoing, TransferFinish};
use super::zerocopy::Zerocopy;
use crate::guests::Guest;
use crate::net::{ByteLink, Net};
use crate::wire::{
    AckRun, ByteOrder, DELIVERY_COMPLETE, Knows, MATCH_COMPLETE, StreamHeader, StreamOp,
    USUAL_SEGMENTS,
};
use ofi_provider::buf::RecvBuf;
use ofi_provider::closing::Undelivered;
use ofi_provider::facts::{Passed, PeerPlace};
use ofi_provider::slab::NONE;
use ofi_provider::sys::Interest;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How far the making of a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The link is being made.
    Connecting,
    /// Our connection request is sent; the peer's answer is awaited.
    AwaitResponse,
    /// The peer's connection request has come, and is to be answered.
    Called,
    /// Messages flow.
    Connected,
}

/// A set of message numbers, which are one byte.
#[derive(Debug, Default)]
pub(super) struct NumberSet([u64; 4]);

impl NumberSet {
    fn place(number: u8) -> (usize, u64) {
        (usize::from(number / 64), 1 << (number % 64))
    }

    /// Adds a number; false if it was in the set already.
    pub(super) fn insert(&mut self, number: u8) -> bool {
        let (word, bit) = Self::place(number);
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    pub(super) fn remove(&mut self, number: u8) {
        let (word, bit) = Self::place(number);
        self.0[word] &= !bit;
    }
}

/// Acknowledgements of consecutive transfers, to be sent as one.
#[derive(Debug, Default)]
pub(super) struct AckBatch(Option<AckRun>);

impl AckBatch {
    /// Adds the acknowledgement of this number. Returns the run before it if that is complete.
    pub(super) fn add(&mut self, number: u64) -> Option<AckRun> {
        match &mut self.0 {
            Some(run) => (!run.extend(number)).then(|| std::mem::replace(run, AckRun::of(number))),
            none => {
                *none = Some(AckRun::of(number));
                None
            }
        }
    }

    /// Takes out the run that is to be sent.
    pub(super) fn take(&mut self) -> Option<AckRun> {
        self.0.take()
    }
}

impl Knows {
    /// Whether the peer can do what a header asks it for.
    #[inline]
    pub(super) fn takes(self, header: &StreamHeader) -> bool {
        (self.atomics || header.op != StreamOp::Atomic)
            && (self.places || usize::from(header.segments) <= USUAL_SEGMENTS)
    }

    /// Adapts a transfer to what the peer can tell of its outcome. A write is complete when the peer
    /// says so, unless its user asked for no more than its buffer (FI_INJECT_COMPLETE).
    #[inline]
    pub(super) fn adapt_level(self, header: &mut StreamHeader, finish: &mut TransferFinish) {
        if !self.outcomes {
            header.flags &= !MATCH_COMPLETE;
        } else if header.op == StreamOp::Write && !finish.acked && !finish.weak {
            header.flags |= DELIVERY_COMPLETE;
            finish.acked = true;
        }
    }
}

/// A connection and everything under way on it.
#[derive(Debug)]
pub(crate) struct StreamConn<N: Net> {
    /// The link that carries the connection's bytes.
    pub(super) link: N::Link,
    pub(super) stage: Stage,
    /// Tells this connection from others that had or will have its index.
    pub(super) serial: u64,
    /// The engine's number of the connection's endpoint.
    pub(super) ep: u32,
    /// The peer's number in the endpoint's table; `NONE` if it is not known yet, and always on
    /// connected endpoints.
    pub(super) peer: u32,
    pub(super) order: ByteOrder,
    /// Plain messages smaller than this are sent by the short way (`send_plain`), and reads may
    /// try the short way (`read_plain`); 0 if neither is allowed.
    pub(super) plain_below: usize,
    /// Plain messages may be parsed by the short way (`plain_message`) even where they were read
    /// by another.
    pub(super) hears_plain: bool,
    /// What the poller watches the link for.
    pub(super) interest: Interest,
    /// The poller watches the link, if only for what it tells of whatever a link is watched for.
    pub(super) watched: bool,
    /// Reading stopped: a message has nowhere to go.
    pub(super) blocked: bool,
    /// How often, since the connection moved last, it was read in vain or another one moved.
    pub(super) misses: u32,
    /// The peer's protocol has tagged messages that wait at their sender until they are asked
    /// for ([`StreamOp::TagRts`](crate::wire::StreamOp::TagRts)).
    pub(super) rendezvous: bool,
    /// What the peer knows beyond the protocol of the original.
    pub(super) knows: Knows,

    /// Small transfers that leave together, before those in `tx`.
    pub(super) batch: Batch,
    /// `batch` or `tx` holds answers that are sent when all that came with their requests is
    /// parsed.
    pub(super) answers: bool,
    /// The turn in which a message of the application left last.
    pub(super) sent_in: u64,
    /// The turn in which an answer to a read of ours was complete last.
    pub(super) answered_in: u64,
    /// The turn in which a message came last that was for a posted receive, if others were behind it.
    pub(super) received_in: u64,
    /// Messages not sent yet, in order.
    pub(super) tx: VecDeque<Outgoing>,
    /// A transfer in `tx` may be fenced (FI_FENCE).
    pub(super) fenced: bool,
    /// The number of the next header to send (`StreamHeader::id`).
    pub(super) tx_id: u8,
    /// Messages sent, or in the batch, that are complete when the peer says so, in order; none
    /// where the peer has said so of a later one only. The first has the number `first_unacked`
    /// among all of them.
    pub(super) unacked: VecDeque<Option<TransferFinish>>,
    pub(super) first_unacked: u64,
    /// How many messages the peer has sent that it wants acknowledged.
    pub(super) asked: u64,
    /// Acknowledgements that go out when the bytes being parsed are.
    pub(super) acks: AckBatch,
    /// The direction to the peer has ended; the other one is read to its end.
    pub(super) sends_no_more: bool,
    /// The connection is in the engine's list of those that are not read
    /// ([`StreamState::unread`](super::state::StreamState::unread)).
    pub(super) is_listed_unread: bool,
    /// When the peer was found to have ended while the connection was not read and operations awaited its answers, and how
    /// many messages had come by then.
    pub(super) ended_at: Option<(Instant, u64)>,
    /// The operations that awaited the peer's answers have failed: answers that still come mean nothing.
    pub(super) ignores_answers: bool,
    /// Messages sent without being copied ([`Way::Uncopied`](ofi_provider::buf::Way::Uncopied));
    /// none if this connection copies all.
    pub(super) zerocopy: Option<Box<Zerocopy>>,
    /// Messages of ours that were announced to the peer and wait here until it asks for them, by
    /// number.
    pub(super) waiting: HashMap<u8, Outgoing>,

    /// Where the answers go to reads of the peer's memory and atomic operations that were sent,
    /// in the order of the requests.
    pub(super) reads: VecDeque<(RecvBuf, TransferFinish)>,
    /// Bytes of fetched values in answers to the peer's atomic operations that are not sent yet.
    pub(super) fetched: usize,
    /// Bytes of memory that answers and acknowledgements take which wait for the peer to read
    /// them.
    pub(super) owed: usize,
    /// Bytes among them of regions that were closed before the peer had read them where they were.
    pub(super) kept: usize,

    /// The last message was large, and so will be the next: its beginning is enough
    /// to find the place that the rest can be read to.
    pub(super) large: bool,
    /// The message being received.
    pub(super) incoming: Option<Incoming>,
    /// Numbers of the peer's announced messages that have not begun to arrive, asked for or not.
    pub(super) announced: NumberSet,
    /// Announced messages that are not asked for yet, by number: the queue and id under which
    /// the inbox keeps a note of each.
    pub(super) at_sender: HashMap<u8, (usize, u32)>,
    /// Messages asked for that waited at the peer, by their number.
    pub(super) expected: HashMap<u8, Incoming>,
    /// Bytes received and not understood yet: part of a header or of a
    /// connection message, or what came behind a message that blocks.
    pub(super) stash: Vec<u8>,
    /// The user data to send with our request.
    pub(super) param: Vec<u8>,
    /// Set while the peer counts as a stranger: it called, and is in no address vector.
    pub(super) guest: Option<Guest>,
    /// Messages and bytes that went to the peer, and that came from it.
    pub(super) sent: Passed,
    pub(super) received: Passed,
    /// Where this connection is shown to others.
    pub(super) shown: PeerPlace,
}

static SERIAL: AtomicU64 = AtomicU64::new(0);

impl<N: Net> StreamConn<N> {
    pub(super) fn new(link: N::Link, stage: Stage, ep: u32) -> Self {
        Self {
            link,
            stage,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            ep,
            peer: NONE,
            order: ByteOrder::Native,
            plain_below: 0,
            hears_plain: false,
            interest: if stage == Stage::Connecting { Interest::WRITE } else { Interest::READ },
            watched: false,
            blocked: false,
            misses: 0,
            rendezvous: false,
            knows: Knows::default(),
            batch: Batch::default(),
            answers: false,
            sent_in: 0,
            answered_in: 0,
            received_in: 0,
            tx: VecDeque::new(),
            fenced: false,
            tx_id: 0,
            unacked: VecDeque::new(),
            first_unacked: 0,
            asked: 0,
            acks: AckBatch::default(),
            sends_no_more: false,
            is_listed_unread: false,
            ended_at: None,
            ignores_answers: false,
            zerocopy: None,
            waiting: HashMap::new(),
            reads: VecDeque::new(),
            fetched: 0,
            owed: 0,
            kept: 0,
            large: false,
            incoming: None,
            announced: NumberSet::default(),
            at_sender: HashMap::new(),
            expected: HashMap::new(),
            stash: Vec::new(),
            param: Vec::new(),
            guest: None,
            sent: Passed::default(),
            received: Passed::default(),
            shown: PeerPlace::default(),
        }
    }

    /// The connection is made: messages may flow. `by_ring`: bytes go through calls for several
    /// links ([`Net::is_ring`]); `plain`: the endpoint's messages may go the short ways
    /// ([`StreamEngineEp::is_plain`]). The peer's byte order is known by now.
    pub(super) fn connected(&mut self, by_ring: bool, plain: bool) {
        self.stage = Stage::Connected;
        self.link.made();
        self.zerocopy = Zerocopy::new(&self.link);
        self.hears_plain = self.order.is_native() && !N::Link::settings().trace && plain;
        if !by_ring {
            self.allow_plain();
        }
    }

    /// Bytes come through memory from now on: messages may be read, and sent, by the short way, even
    /// where one call reads several other links.
    pub(super) fn goes_local(&mut self) {
        if self.plain_below == 0 {
            self.allow_plain();
        }
    }

    /// Whether a connection that is looked at has something to be seen.
    pub(super) fn has_come(&self) -> bool {
        self.link.has_come(!self.blocked, self.has_unsent())
    }

    /// With a message of `len` bytes, those large enough are read by the peer where they are from now on, if it can
    /// ([`ByteLink::lends_from`]).
    pub(super) fn begin_lending(&mut self, len: usize) {
        if len > COPY_MAX
            && self.zerocopy.is_none()
            && let Some(from) = self.link.lends_from()
        {
            self.zerocopy = Some(Zerocopy::lending(from));
        }
    }

    /// The system, or the peer, uses memory that the application lent: what is sent goes by the
    /// queue until it does not any more, because messages are complete in their order.
    pub(super) fn lends(&mut self) {
        self.plain_below = 0;
    }

    /// Allows the short ways of plain messages, if nothing in the connection's nature is against
    /// them.
    pub(super) fn allow_plain(&mut self) {
        let plain = self.zerocopy.is_none() || (self.link.sends_locally() && !self.is_lending());
        if self.hears_plain && plain && !self.sends_no_more {
            let max = if self.rendezvous { N::Link::settings().max_saved_size } else { usize::MAX };
            self.plain_below = max.min(COPY_MAX) + 1;
        }
    }

    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        self.stage == Stage::Connected
    }

    /// Whether something could be sent if the link took it.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.batch.is_empty()
            || self.tx.front().is_some_and(|first| !first.is_fenced() || self.is_settled())
    }

    /// What is still to reach the peer that has to, even if the endpoint closes now.
    pub(super) fn undelivered(&self) -> Undelivered {
        // Unknown peers get nothing of the application's, and must not make it wait.
        if self.guest.is_some() {
            return Undelivered::default();
        }
        let due = self.tx.iter().filter(|outgoing| outgoing.is_due()).count();
        let operations = self.batch.len() + due;
        Undelivered {
            operations,
            connecting: usize::from(operations > 0 && !self.is_connected()),
            bytes: if self.is_connected() { self.link.unacknowledged() } else { 0 },
            steps: self.stage as usize,
        }
    }

    /// Whether all that has left is complete, so that a fenced transfer may leave: nothing is
    /// outstanding at the peer, no acknowledgement, no answer and no announced message, and the
    /// system uses no memory of the application any more.
    pub(super) fn is_settled(&self) -> bool {
        let answering = matches!(&self.incoming, Some(incoming) if incoming.is_answer());
        self.unacked.is_empty()
            && self.reads.is_empty()
            && self.waiting.is_empty()
            && !answering
            && !self.is_lending()
    }

    /// Takes out the message that the peer has acknowledged, the one of this number or the oldest;
    /// none if there is no such message.
    pub(super) fn take_unacked(&mut self, number: Option<u64>) -> Option<TransferFinish> {
        let place = number.map_or(Some(0), |number| number.checked_sub(self.first_unacked))?;
        let finish = self.unacked.get_mut(usize::try_from(place).ok()?)?.take()?;
        while self.unacked.pop_front_if(|one| one.is_none()).is_some() {
            self.first_unacked += 1;
        }
        Some(finish)
    }

    /// Bytes still to come of the message that is being received; 0 if there is none.
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.incoming.as_ref().map_or(0, Incoming::left)
    }

    /// Whether the rest of a large message is to come.
    #[inline]
    pub(super) fn is_in_large(&self) -> bool {
        self.left() >= DIRECT_MIN
    }

    /// Copies the stash to the start of `staging`. Returns the room behind it for the next read,
    /// as much as is worth reading.
    #[inline]
    pub(super) fn room_in<'r>(&self, staging: &'r mut [u8]) -> &'r mut [u8] {
        let (stash, room) = staging.split_at_mut(self.stash.len());
        stash.copy_from_slice(&self.stash);
        let worth = if self.large { room.len().min(AHEAD_OF_LARGE) } else { room.len() };
        &mut room[..worth]
    }

    /// Whether operations that have left await the peer's answers.
    pub(super) fn awaits_answers(&self) -> bool {
        !(self.unacked.is_empty() && self.reads.is_empty() && self.waiting.is_empty())
    }

    /// Takes out the operations that await the peer's answers.
    pub(super) fn awaiting(&mut self) -> impl Iterator<Item = TransferFinish> {
        let unacked = self.unacked.drain(..).flatten();
        let waiting = self.waiting.drain().map(|(_, outgoing)| outgoing.finish);
        unacked.chain(waiting).chain(self.reads.drain(..).map(|(_, finish)| finish))
    }

    /// Takes out all transfers that are not sent completely, in order.
    pub(super) fn unsent(&mut self) -> impl Iterator<Item = TransferFinish> {
        let (batch, reads, acked) = std::mem::take(&mut self.batch).into_finishes();
        let reads = self.reads.split_off(self.reads.len().saturating_sub(reads));
        let acked = self.unacked.split_off(self.unacked.len().saturating_sub(acked));
        let batch = batch.into_iter().chain(acked.into_iter().flatten());
        let batch = batch.chain(reads.into_iter().map(|(_, finish)| finish));
        batch.chain(self.tx.drain(..).map(|outgoing| outgoing.finish))
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.stage == Stage::Connecting
    }

    /// Queues an answer the peer waits for. It goes before a fenced transfer, whose fence may
    /// wait for what the peer sends only after the answer.
    pub(super) fn push_answer(&mut self, answer: Outgoing) {
        let mut place = answer.place_in(&self.tx);
        if self.fenced {
            let fence = self.tx.iter().position(Outgoing::is_fenced);
            self.fenced = fence.is_some();
            place = place.min(fence.unwrap_or(place));
        }
        self.tx.insert(place, answer);
    }

    /// Queues a transfer of the application.
    pub(super) fn push_transfer(&mut self, transfer: Outgoing) {
        self.tx.insert(transfer.place_in(&self.tx), transfer);
    }

    /// Whether answers wait in the queue that have not begun to leave.
    pub(super) fn has_waiting_answers(&self) -> bool {
        self.tx.back().is_some_and(Outgoing::is_waiting_answer)
    }

    /// Whether an answer of `len` bytes may join the batch: it is small, nothing waits in `tx`,
    /// and the batch is not full.
    #[inline]
    pub(super) fn answers_together(&self, len: usize) -> bool {
        len <= COPY_MAX
            && self.is_clear()
            && !self.sends_no_more
            && !self.batch.is_full(N::Link::settings().batch)
    }

    /// Adds an answer to the batch ([`StreamConn::answers_together`]); returns the room for its `len`
    /// bytes.
    #[inline]
    pub(super) fn join_answer(
        &mut self,
        mut header: StreamHeader,
        len: usize,
        finish: TransferFinish,
    ) -> &mut [u8] {
        let mut wire = [0; 40];
        let wire_len = self.write_header(&mut header, &mut wire);
        self.batch.push(&wire[..wire_len], len, finish)
    }

    /// Queues transfers that waited for a connection to the peer while there was none.
    pub(super) fn take_over(&mut self, waiting: VecDeque<Outgoing>) {
        self.fenced = true;
        self.tx.extend(waiting);
    }

    /// Numbers a header that leaves now or with the batch, and writes it to the start of `wire`.
    /// Returns its length in bytes.
    #[inline(always)]
    pub(super) fn write_header(&mut self, header: &mut StreamHeader, wire: &mut [u8; 40]) -> usize {
        header.id = self.tx_id;
        self.tx_id = header.id.wrapping_add(1);
        count_header(&self.sent, header);
        trace("to", &self.link, header);
        header.write(self.order, wire)
    }

    /// Whether plain messages may be read by the short way: nothing is begun, kept or to be sent.
    #[inline(always)]
    pub(super) fn takes_plain(&self) -> bool {
        // One test for several things, of which there is nearly always none.
        let waiting = self.stash.len() | self.tx.len() | self.batch.len();
        self.plain_below != 0
            && self.incoming.is_none()
            && waiting == 0
            && !(self.blocked | self.large)
    }

    /// Whether a message may leave at once: nothing waits before it.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.tx.is_empty() && self.is_connected()
    }

    /// Whether a message of `len` bytes has to go through the queue for zero-copy: it is to be
    /// sent without being copied, or follows one that is.
    #[inline]
    pub(super) fn leaves_uncopied(&self, len: usize) -> bool {
        self.zerocopy.as_ref().is_some_and(|zerocopy| zerocopy.takes(len) || zerocopy.is_busy())
    }

    /// Whether the system still uses memory that the application lent for messages on this
    /// connection.
    #[inline]
    pub(super) fn is_lending(&self) -> bool {
        self.zerocopy.as_ref().is_some_and(|zerocopy| zerocopy.is_busy())
    }
}
