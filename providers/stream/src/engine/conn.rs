//! One connection, and everything under way on it.
use super::batch::Batch;
use super::conn_request::ConnRequest;
use super::conn_usage::ConnUsage;
use super::early_data::EarlyData;
use super::incoming::{AHEAD_OF_LARGE, DIRECT_MIN, RxRequest};
use super::peer_devices::PeerDevices;
use super::trace::trace;
use super::traffic::count_header;
use super::transfer::{COPY_MAX, TxCompletion, TxRequest};
use super::zerocopy::Zerocopy;
use crate::conn_quota::UnknownPeerConn;
use crate::transport::{ByteLink, LinkRecovery, ShmLink, ShmTransport};
use crate::wire::{
    AckRun, ByteOrder, DELIVERY_COMPLETE, MATCH_COMPLETE, PeerFeatures, StreamHeader, StreamOp,
    USUAL_SEGMENTS,
};
use ofi_provider::buf::RecvBuf;
use ofi_provider::closing::Undelivered;
use ofi_provider::error::{Error, Result};
use ofi_provider::slab::NONE;
use ofi_provider::stats::{PeerSlot, TrafficCounter};
use ofi_provider::sys::Interest;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Stage of connection establishment.
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

/// Set of one-byte message numbers.
#[derive(Debug, Default)]
pub(super) struct NumberSet([u64; 4]);

impl NumberSet {
    fn position(number: u8) -> (usize, u64) {
        (usize::from(number / 64), 1 << (number % 64))
    }

    /// Adds a number; false if it was in the set already.
    pub(super) fn insert(&mut self, number: u8) -> bool {
        let (word, bit) = Self::position(number);
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    pub(super) fn remove(&mut self, number: u8) {
        let (word, bit) = Self::position(number);
        self.0[word] &= !bit;
    }
}

/// Acknowledgements of consecutive transfers, to be sent as one.
#[derive(Debug, Default)]
pub(super) struct AckBatch(Option<AckRun>);

impl AckBatch {
    /// Adds the acknowledgement of this number. Returns the previous run if it is complete.
    pub(super) fn add(&mut self, number: u64) -> Option<AckRun> {
        match &mut self.0 {
            Some(run) => (!run.extend(number)).then(|| std::mem::replace(run, AckRun::of(number))),
            none => {
                *none = Some(AckRun::of(number));
                None
            }
        }
    }

    /// Returns true if there is nothing to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Removes and returns the run to be sent.
    pub(super) fn take(&mut self) -> Option<AckRun> {
        self.0.take()
    }
}

impl PeerFeatures {
    /// Returns true if the peer supports the operation of a header.
    #[inline]
    pub(super) fn takes(self, header: &StreamHeader) -> bool {
        (self.atomics || header.op != StreamOp::Atomic)
            && (self.segments || usize::from(header.segments) <= USUAL_SEGMENTS)
    }

    /// Adapts a transfer to the acknowledgements supported by the peer. A write is complete when
    /// the peer acknowledges it, unless its completion level needs only the local buffer
    /// (FI_INJECT_COMPLETE).
    #[inline]
    pub(super) fn adapt_level(self, header: &mut StreamHeader, finish: &mut TxCompletion) {
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
pub(crate) struct StreamConn<N: ShmTransport> {
    /// Link carrying the connection's bytes.
    pub(super) link: N::Link,
    pub(super) stage: Stage,
    /// Serial number, distinguishing this connection from earlier and later ones with its index.
    pub(super) serial: u64,
    /// The engine's number of the connection's endpoint.
    pub(super) ep: u32,
    /// The peer's number in the endpoint's table; `NONE` if it is not known yet, and always on
    /// connected endpoints.
    pub(super) peer: u32,
    pub(super) order: ByteOrder,
    /// Plain messages smaller than this are sent by the short way (`send_fast`), and reads may
    /// try the short way (`read_fast`); 0 if neither is allowed.
    pub(super) fast_below: usize,
    /// The fast path (`fast_message`) may parse messages, even if another path has read them.
    pub(super) fast_rx: bool,
    /// Events of the link watched by the poller.
    pub(super) interest: Interest,
    /// The poller watches the link, possibly only for the events always reported.
    pub(super) watched: bool,
    /// Reading stopped: a message has nowhere to go.
    pub(super) blocked: bool,
    /// Copies of memory of devices are polled ([`BlockedConns`](super::blocked_conns::BlockedConns)).
    pub(super) copying: bool,
    /// Empty reads, and moves of other connections, since the last activity of this connection.
    pub(super) misses: u32,
    /// The peer's protocol has tagged rendezvous messages, waiting at their sender until requested
    /// ([`StreamOp::TagRts`](crate::wire::StreamOp::TagRts)).
    pub(super) rendezvous: bool,
    /// Protocol extensions of the peer beyond upstream libfabric.
    pub(super) knows: PeerFeatures,

    /// Batched small transfers, sent before those in `tx`.
    pub(super) batch: Batch,
    /// `batch` or `tx` holds responses, sent after all data received with their requests is parsed.
    pub(super) answers: bool,
    /// Progress iteration of the last message sent by the application.
    pub(super) sent_in: u64,
    /// Progress iteration of the last complete response to a local read.
    pub(super) answered_in: u64,
    /// Progress iteration of the last message for a posted receive with other messages following
    /// it.
    pub(super) received_in: u64,
    /// Messages not sent yet, in order.
    pub(super) tx: VecDeque<TxRequest>,
    /// A transfer in `tx` may be fenced (FI_FENCE).
    pub(super) fenced: bool,
    /// The number of the next header to send (`StreamHeader::id`).
    pub(super) tx_id: u8,
    /// Messages sent or batched with a pending acknowledgement, in order. An entry is none if the
    /// peer has acknowledged only later ones. The first has the number `first_unacked` among all of
    /// them.
    pub(super) unacked: VecDeque<Option<TxCompletion>>,
    pub(super) first_unacked: u64,
    /// Number of messages received with a request for acknowledgement.
    pub(super) asked: u64,
    /// Acknowledgements to be sent together with the bytes being parsed.
    pub(super) acks: AckBatch,
    /// The direction to the peer has ended; the other one is read to its end.
    pub(super) sends_no_more: bool,
    /// The connection is in the engine's list of unread connections
    /// ([`BlockedConns`](super::blocked_conns::BlockedConns)).
    pub(super) is_listed_unread: bool,
    /// Time at which the peer was found disconnected while the connection was not read and
    /// operations awaited its responses, and the number of messages received by then.
    pub(super) ended_at: Option<(Instant, u64)>,
    /// The operations awaiting the peer's responses have failed: later responses are ignored.
    pub(super) ignores_answers: bool,
    /// Messages sent without being copied ([`CopyMode::ZeroCopy`](ofi_provider::buf::CopyMode::ZeroCopy));
    /// none if this connection copies all.
    pub(super) zerocopy: Option<Box<Zerocopy>>,
    /// Allocations of memory of devices shared with the peer, once there are any.
    pub(super) devices: Option<Box<PeerDevices>>,
    /// Local rendezvous messages announced to the peer and not requested yet, by number.
    pub(super) waiting: HashMap<u8, TxRequest>,

    /// Buffers for the responses to local reads and atomic operations already sent, in the order of
    /// the requests.
    pub(super) reads: VecDeque<(RecvBuf, TxCompletion)>,
    /// Bytes of fetched values in unsent responses to the peer's atomic operations.
    pub(super) fetched: usize,
    /// Bytes of memory in responses and acknowledgements not read by the peer yet.
    pub(super) backlog: usize,
    /// Bytes among them of regions closed before the peer had read the exposed buffers.
    pub(super) retained: usize,

    /// The last message was large, and the next is expected to be: its header alone is then read,
    /// to find the buffer for the rest.
    pub(super) large: bool,
    /// The message being received.
    pub(super) incoming: Option<RxRequest>,
    /// Numbers of the peer's announced messages without any payload received, requested or not.
    pub(super) announced: NumberSet,
    /// Announced messages not requested yet, by number: queue and id of their entries in the
    /// matching engine.
    pub(super) at_sender: HashMap<u8, (usize, u32)>,
    /// Requested rendezvous messages of the peer, by number.
    pub(super) expected: HashMap<u8, RxRequest>,
    /// Received bytes not parsed yet: part of a header or of a connection message, or data after a
    /// blocked message.
    pub(super) stash: Vec<u8>,
    /// Our request, until it is sent, or answered if it is repeated.
    pub(super) request: Option<Box<ConnRequest>>,
    /// Messages in `tx` sent before the response to our request.
    pub(super) early: EarlyData,
    /// Set while the peer counts as an unknown peer: it opened the connection, and is in no address
    /// vector.
    pub(super) unknown_conn: Option<UnknownPeerConn>,
    /// Messages and bytes sent to the peer, and received from it.
    pub(super) sent: TrafficCounter,
    pub(super) received: TrafficCounter,
    /// Entry of this connection in the statistics page.
    pub(super) published: PeerSlot,
    /// Recoveries counted in the sum of the endpoint.
    pub(super) recovered: LinkRecovery,
    /// Use of the connection, for the limit of descriptors.
    pub(super) usage: ConnUsage,
}

static SERIAL: AtomicU64 = AtomicU64::new(0);

impl<N: ShmTransport> StreamConn<N> {
    pub(super) fn new(link: N::Link, stage: Stage, ep: u32) -> Self {
        Self {
            link,
            stage,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            ep,
            peer: NONE,
            order: ByteOrder::Native,
            fast_below: 0,
            fast_rx: false,
            interest: if stage == Stage::Connecting { Interest::WRITE } else { Interest::READ },
            watched: false,
            blocked: false,
            copying: false,
            misses: 0,
            rendezvous: false,
            knows: PeerFeatures::default(),
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
            devices: None,
            waiting: HashMap::new(),
            reads: VecDeque::new(),
            fetched: 0,
            backlog: 0,
            retained: 0,
            large: false,
            incoming: None,
            announced: NumberSet::default(),
            at_sender: HashMap::new(),
            expected: HashMap::new(),
            stash: Vec::new(),
            request: None,
            early: EarlyData::default(),
            unknown_conn: None,
            sent: TrafficCounter::default(),
            received: TrafficCounter::default(),
            published: PeerSlot::default(),
            recovered: LinkRecovery::default(),
            usage: ConnUsage::default(),
        }
    }

    /// The connection is made: messages may flow. `by_ring`: bytes go through calls for several
    /// links ([`Transport::is_ring`]); `fast`: the endpoint's messages may go the short ways
    /// ([`StreamEngineEp::is_fast`]). The peer's byte order is known by now.
    pub(super) fn connected(&mut self, by_ring: bool, fast: bool) {
        self.stage = Stage::Connected;
        self.link.made();
        self.zerocopy = Zerocopy::new(&self.link);
        self.allow_fast_rx(fast, by_ring);
    }

    /// Allows the fast paths on an established connection, as in [`connected`](Self::connected).
    pub(super) fn allow_fast_rx(&mut self, fast: bool, by_ring: bool) {
        self.fast_rx = self.order.is_native() && !N::Link::settings().trace && fast;
        if !by_ring || self.link.rx_over_shm() {
            self.allow_fast();
        }
    }

    /// Forbids the fast paths: each header is parsed by `RxPath::begin`.
    pub(super) fn forbid_fast(&mut self) {
        (self.fast_rx, self.fast_below) = (false, 0);
    }

    /// Marks a connection as received through shared memory: the fast path may read and send
    /// messages, even if one call reads several other links.
    pub(super) fn goes_local(&mut self) {
        if self.fast_below == 0 {
            self.allow_fast();
        }
    }

    /// Returns true if polling a connection would find something.
    pub(super) fn is_ready(&self) -> bool {
        self.link.is_ready(!self.blocked, self.has_unsent())
    }

    /// Starts exposing buffers after a message of `len` bytes: the peer reads sufficiently large
    /// messages directly from then on, if it can ([`ShmLink::zcopy_threshold`]).
    pub(super) fn start_exposing(&mut self, len: usize) {
        if len > COPY_MAX && self.zerocopy.is_none() {
            if let Some(from) = self.link.zcopy_threshold() {
                self.zerocopy = Some(Zerocopy::exposing(from));
            }
        }
    }

    /// Disables the fast path because the kernel or the peer uses memory of the application. Data
    /// is sent by the queue until the memory is released, because messages complete in order.
    pub(super) fn exposes(&mut self) {
        self.fast_below = 0;
    }

    /// Allows the short ways of plain messages, if nothing in the connection's nature is against
    /// them.
    pub(super) fn allow_fast(&mut self) {
        if self.fast_rx && !self.is_exposing() && !self.sends_no_more {
            let max = if self.rendezvous { N::Link::settings().max_saved_size } else { usize::MAX };
            let zcopy = match &self.zerocopy {
                Some(zerocopy) if !self.link.tx_over_shm() => zerocopy.from,
                _ => usize::MAX,
            };
            self.fast_below = (max.min(COPY_MAX) + 1).min(zcopy);
        }
    }

    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        self.stage == Stage::Connected
    }

    /// Returns true if data could be sent if the link accepted it.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.batch.is_empty()
            || self.tx.front().is_some_and(|first| !first.is_fenced() || self.is_settled())
    }

    /// Returns the data still to be delivered to the peer, even if the endpoint closes now.
    pub(super) fn undelivered(&self) -> Undelivered {
        // Unknown peers get nothing of the application's, and must not make it wait.
        if self.unknown_conn.is_some() {
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

    /// Returns true if everything sent is complete, so a fenced transfer may be sent. No
    /// acknowledgement, response or announced message is pending at the peer, and the kernel uses
    /// no memory of the application.
    pub(super) fn is_settled(&self) -> bool {
        let answering = matches!(&self.incoming, Some(incoming) if incoming.is_answer());
        self.unacked.is_empty()
            && self.reads.is_empty()
            && self.waiting.is_empty()
            && !answering
            && !self.is_exposing()
    }

    /// Removes and returns the message acknowledged by the peer, the one of this number or the
    /// oldest; none if there is no such message.
    pub(super) fn take_unacked(&mut self, number: Option<u64>) -> Option<TxCompletion> {
        let position = number.map_or(Some(0), |number| number.checked_sub(self.first_unacked))?;
        let finish = self.unacked.get_mut(usize::try_from(position).ok()?)?.take()?;
        while self.unacked.front().is_some_and(Option::is_none) {
            self.unacked.pop_front();
            self.first_unacked += 1;
        }
        Some(finish)
    }

    /// Ends the transfer of this number, or the oldest one, after the peer's acknowledgement or
    /// refusal. Returns its completion unless its buffer is still exposed. A transfer refused before
    /// its last byte is sent ends with that byte. Fails with -FI_EPROTO if there is no such transfer.
    pub(super) fn settle(
        &mut self,
        number: Option<u64>,
        refused: Option<Error>,
    ) -> Result<Option<TxCompletion>> {
        let Some(finish) = self.take_unacked(number) else {
            let is_being_sent = refused.is_some_and(|error| self.refuse_unsent(number, error));
            return if is_being_sent { Ok(None) } else { Err(Error::PROTO) };
        };
        let finish = TxCompletion { refused: refused.or(finish.refused), ..finish };
        Ok(match &mut self.zerocopy {
            Some(zerocopy) if finish.exposed != 0 => zerocopy.acknowledged(finish.exposed, finish),
            _ => Some(finish),
        })
    }

    /// Records the peer's refusal of the transfer being sent. Returns false if it has not this
    /// number.
    #[cold]
    fn refuse_unsent(&mut self, number: Option<u64>, error: Error) -> bool {
        let next = self.first_unacked + self.unacked.len() as u64;
        let awaits = |first: &&mut TxRequest| {
            first.wire_len > 0 && first.finish.acked && first.finish.refused.is_none()
        };
        match self.tx.front_mut().filter(awaits) {
            Some(first) if number == Some(next) => {
                first.finish.refused = Some(error);
                true
            }
            _ => false,
        }
    }

    /// Adds a wholly sent transfer to those awaiting an acknowledgement. Returns the completion of a
    /// transfer refused before, unless its buffer is still exposed.
    pub(super) fn await_ack(&mut self, finish: TxCompletion) -> Option<TxCompletion> {
        let exposed = self.zerocopy.as_mut().map_or(0, |zerocopy| zerocopy.sent_for_ack());
        let finish = TxCompletion { exposed, ..finish };
        self.unacked.push_back(Some(finish));
        finish.refused?;
        let last = self.first_unacked + self.unacked.len() as u64 - 1;
        self.settle(Some(last), None).ok().flatten()
    }

    /// Returns true if the transfer of this number is sent, and may be acknowledged.
    pub(super) fn is_sent(&self, number: u64) -> bool {
        self.ignores_answers || number < self.first_unacked + self.unacked.len() as u64
    }

    /// Returns the missing bytes of the message being received; 0 if there is none.
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.incoming.as_ref().map_or(0, RxRequest::left)
    }

    /// Returns true if the rest of a large message is still to arrive.
    #[inline]
    pub(super) fn is_in_large(&self) -> bool {
        self.left() >= DIRECT_MIN
    }

    /// Copies the stash to the start of `staging`. Returns the space behind it for the next read,
    /// limited to a useful size.
    #[inline]
    pub(super) fn buf_in<'r>(&self, staging: &'r mut [u8]) -> &'r mut [u8] {
        let (stash, dst) = staging.split_at_mut(self.stash.len());
        stash.copy_from_slice(&self.stash);
        let worth = if self.large { dst.len().min(AHEAD_OF_LARGE) } else { dst.len() };
        &mut dst[..worth]
    }

    /// Returns true if sent operations await the peer's responses.
    pub(super) fn awaits_answers(&self) -> bool {
        !(self.unacked.is_empty() && self.reads.is_empty() && self.waiting.is_empty())
    }

    /// Removes and returns the operations awaiting the peer's responses.
    pub(super) fn awaiting(&mut self) -> impl Iterator<Item = TxCompletion> {
        let unacked = self.unacked.drain(..).flatten();
        let waiting = self.waiting.drain().map(|(_, outgoing)| outgoing.finish);
        unacked.chain(waiting).chain(self.reads.drain(..).map(|(_, finish)| finish))
    }

    /// Removes and returns all transfers not sent completely, in order.
    pub(super) fn unsent(&mut self) -> impl Iterator<Item = TxCompletion> {
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

    /// Queues a response awaited by the peer. It precedes any fenced transfer: the fence may wait
    /// for data sent by the peer only after the response.
    pub(super) fn push_answer(&mut self, answer: TxRequest) {
        let mut position = answer.position_in(&self.tx);
        if self.fenced {
            let fence = self.tx.iter().position(TxRequest::is_fenced);
            self.fenced = fence.is_some();
            position = position.min(fence.unwrap_or(position));
        }
        self.tx.insert(position, answer);
    }

    /// Queues a transfer of the application.
    pub(super) fn push_transfer(&mut self, transfer: TxRequest) {
        self.tx.insert(transfer.position_in(&self.tx), transfer);
    }

    /// Returns true if the queue holds responses not started yet.
    pub(super) fn has_waiting_answers(&self) -> bool {
        self.tx.back().is_some_and(TxRequest::is_waiting_answer)
    }

    /// Returns true if a response of `len` bytes may join the batch: it is small, `tx` is empty,
    /// and the batch is not full.
    #[inline]
    pub(super) fn batches_responses(&self, len: usize) -> bool {
        len <= COPY_MAX
            && self.is_clear()
            && !self.sends_no_more
            && !self.batch.is_full(N::Link::settings().batch)
    }

    /// Adds an answer to the batch ([`StreamConn::batches_responses`]). Returns the space for its
    /// `len` bytes.
    #[inline]
    pub(super) fn join_answer(
        &mut self,
        mut header: StreamHeader,
        len: usize,
        finish: TxCompletion,
    ) -> &mut [u8] {
        let mut wire = [0; 40];
        let wire_len = self.write_header(&mut header, &mut wire);
        self.batch.push(&wire[..wire_len], len, finish)
    }

    /// Queues transfers submitted while there was no connection to the peer.
    pub(super) fn take_over(&mut self, waiting: VecDeque<TxRequest>) {
        self.fenced = true;
        self.tx.extend(waiting);
    }

    /// Removes and returns the queue of a connection without a response, to be sent on another one.
    pub(super) fn take_queue(&mut self) -> VecDeque<TxRequest> {
        self.early.end();
        let mut queue = std::mem::take(&mut self.tx);
        queue.iter_mut().for_each(TxRequest::restart);
        queue
    }

    /// Numbers a header sent now or with the batch, and writes it to the start of `wire`. Returns
    /// its length in bytes.
    #[inline(always)]
    pub(super) fn write_header(&mut self, header: &mut StreamHeader, wire: &mut [u8; 40]) -> usize {
        header.id = self.tx_id;
        self.tx_id = header.id.wrapping_add(1);
        count_header(&self.sent, header);
        trace("to", &self.link, header);
        header.write(self.order, wire)
    }

    /// Returns true if the fast path may read messages: nothing is in progress, stored or queued.
    #[inline(always)]
    pub(super) fn is_fast_recv(&self) -> bool {
        // One test for several things, of which there is nearly always none.
        let waiting = self.stash.len() | self.tx.len() | self.batch.len();
        self.fast_below != 0
            && self.incoming.is_none()
            && waiting == 0
            && !(self.blocked | self.large)
    }

    /// Returns true if a message may be sent at once: nothing is queued before it.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.tx.is_empty() && self.is_connected()
    }

    /// Returns true if a message of `len` bytes has to use the queue for zero copy: it is sent
    /// without a copy, or follows such a message.
    #[inline]
    pub(super) fn sends_zcopy(&self, len: usize) -> bool {
        self.zerocopy.as_ref().is_some_and(|zerocopy| zerocopy.takes(len) || zerocopy.is_busy())
    }

    /// Returns true if the kernel still uses memory exposed by the application for messages on this
    /// connection.
    #[inline]
    pub(super) fn is_exposing(&self) -> bool {
        self.zerocopy.as_ref().is_some_and(|zerocopy| zerocopy.is_busy())
    }

    /// Numbers the rendezvous messages (1 to 255) with their RTS about to be sent; without a free
    /// number a message is sent eagerly.
    pub(super) fn number_announcements(&mut self) {
        let mut used: Vec<u8> = self.waiting.keys().copied().collect();
        used.extend(
            self.tx
                .iter()
                // Numbers of messages that are announced already, or asked for and not sent yet.
                .filter(|o| {
                    matches!(o.header.op, StreamOp::TagRts | StreamOp::Data)
                        && o.header.op_data != 0
                })
                .map(|o| o.header.op_data),
        );
        for outgoing in &mut self.tx {
            if outgoing.header.op != StreamOp::TagRts || outgoing.header.op_data != 0 {
                continue;
            }
            match (1..=u8::MAX).find(|number| !used.contains(number)) {
                Some(number) => {
                    used.push(number);
                    outgoing.header.op_data = number;
                }
                None => outgoing.header.op = StreamOp::Tag,
            }
        }
    }
}
