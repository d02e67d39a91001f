//! Operations in progress of an endpoint, and the sending of their packets.
use super::arriving::Deliver;
use super::budget::Held;
use super::conn::{HandshakeState, RxdConn};
use super::conns::RxdConns;
use super::limits::RxdLimits;
use super::op::{RxdTx, TxData};
use super::port::PacketPort;
use crate::provider::RXD;
use crate::wire::{
    ATOMIC, BASE_LEN, DATA_HEAD, DELIVERED, INJECTED, INLINE, MSG, Malformed, NO_TX_COMPLETION,
    Parsed, PiggybackAck, REJECT_REASON, RxdBase, RxdOperation, TAGGED, WITH_CQ_DATA, WRITE,
};
use ofi_provider::abi::{FI_COMPLETION, FI_INJECT};
use ofi_provider::buf::RecvBuf;
use ofi_provider::completions::TxCompletions;
use ofi_provider::core_provider::DatagramBatch;
use ofi_provider::cq::{Completion, CompletionError};
use ofi_provider::error::{Error, Result};
use ofi_provider::reserved::INTERNAL_OP;
use ofi_provider::slab::Slab;
use ofi_provider::sys::random;
use std::time::{Duration, Instant};

/// Bytes of packets passed to the core at a time.
const BATCH: usize = 60 << 10;

/// Space before them for the core's own header.
const BEFORE: usize = DatagramBatch::LEN;

/// Bits of an operation's number for the index of its entry. The upper bits distinguish it from
/// earlier operations with the same entry: their responses may still arrive.
const ENTRY_BITS: u32 = 20;
const ENTRY: u32 = (1 << ENTRY_BITS) - 1;
/// Bits of a number returned by an upstream peer: the least significant ones, containing the index
/// of the entry.
const OF_ORIGINAL: u32 = 0xffff;

/// Linger times of a closed endpoint: for peers to receive the responses to their requests, and for
/// peers to receive injected data. A peer may compute for a while before taking it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_INJECTED: Duration = Duration::from_secs(5);

/// Operations not finished: the application's, and responses to peers.
pub(super) struct RxdTransmit {
    ops: Slab<Box<RxdTx>>,
    /// Number of the application's among them.
    own: usize,
    /// Generation number, distinguishing operations with the same entry.
    generation: u32,
    /// Completion sink of transfers. Receives, and peers' accesses to local memory, are reported by
    /// the matching engine.
    completions: TxCompletions,
    /// Buffer for building packets.
    scratch: Vec<u8>,
}

impl RxdTransmit {
    pub(super) fn new() -> Self {
        Self {
            ops: Slab::default(),
            own: 0,
            generation: random() as u32 & 0x7ff,
            completions: TxCompletions::default(),
            scratch: Vec::new(),
        }
    }

    /// Sets the completion sink.
    pub(super) fn bind(&mut self, completions: &TxCompletions) {
        self.completions.clone_from(completions);
    }

    /// Returns the number of the application's operations.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// Returns true if another transfer may start, of at most `size`.
    #[inline]
    pub(super) fn has_space(&self, size: usize, flags: u64) -> bool {
        (self.own < size || flags & INTERNAL_OP != 0)
            && self.completions.has_space(flags & FI_COMPLETION != 0)
    }

    /// Returns the linger time of a closing endpoint for data not acknowledged by peers and not
    /// awaited by the application, if there is any.
    pub(super) fn hold_off(&self) -> Option<Duration> {
        let injected = self.ops.iter().any(|(_, op)| op.is_injected());
        let answers = || self.ops.iter().any(|(_, op)| !op.is_own());
        if injected { Some(LINGER_INJECTED) } else { answers().then_some(LINGER) }
    }

    /// Returns the number of operations still to be delivered by a closing endpoint.
    pub(super) fn undelivered(&self) -> usize {
        self.ops.iter().filter(|(_, op)| op.is_injected() || !op.is_own()).count()
    }

    /// Reports nothing from now on.
    pub(super) fn mute(&mut self) {
        self.completions.mute();
    }

    /// Leaves the completion sink.
    pub(super) fn close(&mut self) {
        self.completions.close();
    }

    /// Fails the operations of an ended connection.
    pub(super) fn fail_all(&mut self, conns: &mut RxdConns, conn: u32, error: Error) {
        for op in self.ops.indices(|op| op.conn == conn) {
            self.finish(conns, op, Err(error));
            self.ops.remove(op);
        }
    }

    /// The operations, for tests.
    #[cfg(test)]
    pub(super) fn ops(&self) -> &Slab<Box<RxdTx>> {
        &self.ops
    }

    /// The operations, to be changed by tests.
    #[cfg(test)]
    pub(super) fn ops_mut(&mut self) -> &mut Slab<Box<RxdTx>> {
        &mut self.ops
    }

    /// Adds an operation of the application's with so many bytes of data, and makes its headers.
    /// Fails with -FI_EAGAIN if there is no number for it. `ours`: the peer is known to have this
    /// library.
    pub(super) fn insert(
        &mut self,
        mut tx: RxdTx,
        mut head: RxdOperation,
        len: usize,
        flags: u64,
        (most, is_ours): (usize, bool),
    ) -> Result<u32> {
        if head.cq_data.is_some() {
            head.flags |= WITH_CQ_DATA;
        }
        if flags & FI_INJECT != 0 {
            head.flags |= INJECTED;
        }
        if !tx.report {
            head.flags |= NO_TX_COMPLETION;
        }
        // A message, or a write to one place, without the header of segments.
        let bare = !tx.deliver
            && matches!(head.kind, MSG | TAGGED | WRITE | ATOMIC)
            && (matches!(head.kind, MSG | TAGGED) || head.segments.as_slice().len() == 1);
        if bare {
            let flags = head.flags;
            head.flags |= INLINE;
            let head_len = head.write(&mut tx.head);
            if BASE_LEN + head_len + len <= most {
                (tx.head_len, tx.wire_flags, tx.first) = (head_len, head.flags, len);
                tx.total = len;
            }
            head.flags = flags;
        }
        let is_inline = tx.head_len > 0 || (bare && tx.wire_flags & INLINE != 0);
        let id = self.ops.insert(Box::new(tx));
        // A peer not known yet may be an upstream one.
        if id > if is_ours { ENTRY } else { OF_ORIGINAL } {
            self.ops.remove(id);
            return Err(Error::AGAIN);
        }
        // Never 0, by which operations are named that have no number.
        self.generation = self.generation % (u32::MAX >> ENTRY_BITS) + 1;
        let tx = &mut self.ops[id];
        tx.tx_id = self.generation << ENTRY_BITS | id;
        if !is_inline {
            head.tx_id = tx.tx_id;
            head.packets = 1;
            let head_len = head.write(&mut tx.head);
            let first = len.min(most - BASE_LEN - head_len);
            let packets = 1 + (len - first).div_ceil(most - DATA_HEAD) as u64;
            head.packets = packets;
            head.write(&mut tx.head);
            (tx.head_len, tx.wire_flags) = (head_len, head.flags);
            (tx.total, tx.first, tx.packets) = (len, first, packets);
        }
        self.own += 1;
        Ok(id)
    }

    /// Sends an answer of the engine's own.
    pub(super) fn start_answer(&mut self, conns: &mut RxdConns, tx: RxdTx) -> u32 {
        let (conn, refuses) = (tx.conn, tx.kind == REJECT_REASON);
        // A notice is held since its message came.
        if tx.kind != DELIVERED {
            conns.hold(conn, tx.held());
        }
        let id = self.ops.insert(Box::new(tx));
        let of = &mut conns[conn];
        if refuses {
            of.rejects.push_back(id)
        } else {
            of.replies.push_back(id)
        }
        conns.make_ready(conn);
        id
    }

    /// Sends the match notice of a message, if requested.
    pub(super) fn tell(&mut self, conns: &mut RxdConns, deliver: Deliver) {
        let Some((index, tx_id)) = deliver else { return };
        if let Some(id) = conns.of_index(index) {
            self.start_answer(conns, RxdTx::delivered(id, tx_id));
        }
    }

    /// Refuses a peer's request. A peer of the original learns nothing of it.
    #[cold]
    pub(super) fn refuse(&mut self, conns: &mut RxdConns, id: u32, tx_id: u32, error: Error) {
        ofi_provider::log_sparsely!(&RXD, WARN, EP_DATA, "a peer's access is refused: {error}");
        if !conns[id].is_ours() {
            return;
        }
        let seq = conns[id].expected;
        let op = self.start_answer(conns, RxdTx::reject(id, tx_id, seq, error));
        // The peer must have received the rejection before the acknowledgement of its request.
        conns[id].holds.push_back((seq, op));
    }

    /// Sends the packets permitted on a connection. Returns false if the core has no space for
    /// more.
    pub(super) fn pump(
        &mut self,
        conns: &mut RxdConns,
        limits: &RxdLimits,
        port: &mut dyn PacketPort,
        id: u32,
        now: Instant,
    ) -> bool {
        let Self { ops, scratch, .. } = self;
        let Some(conn) = conns.get_mut(id) else { return true };
        if conn.stage != HandshakeState::Known {
            return true;
        }
        let most = limits.packet;
        if scratch.is_empty() {
            scratch.resize(BEFORE + most.max(BATCH), 0);
        }
        let (mut sent, mut unsent) = (Ok(()), false);
        while sent.is_ok() && conn.may_repeat() {
            let Some((seq, again)) = conn.take_lost(now) else { break };
            let Some(op) = ops.get_mut(again.op) else { continue };
            let base = RxdBase { kind: op.kind, flags: 0, peer: conn.remote, seq };
            let space = &mut scratch[..most];
            let part = (again.packet, true);
            let len = op.build(&limits.regions, part, base, conn.is_ours(), space);
            sent = port.send(conn.to, &scratch[..len], len);
            if sent == Err(Error::AGAIN) {
                conn.not_sent(seq..seq + 1);
            }
        }
        // Packets of full length one behind the other, of which the last may be shorter.
        while sent != Err(Error::AGAIN) && (conn.space() > 0 || conn.may_refuse()) {
            let (mut at, mut stride, first, mut carries) = (BEFORE, 0, conn.next, false);
            while at + most <= scratch.len() {
                let Some(op_id) = next_op(conn, ops) else { break };
                let Some(op) = ops.get_mut(op_id) else { continue };
                if op.sent == 0 {
                    op.start = conn.next;
                }
                let seq = conn.send_next(op_id, op.sent, now);
                let base = RxdBase { kind: op.kind, flags: 0, peer: conn.remote, seq };
                let space = &mut scratch[at..at + most];
                let part = (op.sent, false);
                let mut len = op.build(&limits.regions, part, base, conn.is_ours(), space);
                if at == BEFORE && conn.carries() && len + PiggybackAck::LEN <= most {
                    conn.ack_predictor.answered(now);
                    if let Some(piggybacked) = conn.take_piggybacked(limits.config.max_unacked) {
                        (len, carries) = (piggybacked.append(space, len), true);
                    }
                }
                op.sent += 1;
                if op.sent == op.packets {
                    conn.sent.push_back((conn.next, op_id));
                } else {
                    // Only an operation of one packet overtakes the one that was begun.
                    debug_assert!(conn.current.is_none());
                    conn.current = Some(op_id);
                }
                stride = if at == BEFORE { len } else { stride };
                at += len;
                // The sockets of the original's peers do not hold a window of packets: these come one
                // by one, while the peer takes those before them.
                if len < most || !conn.is_ours() {
                    break;
                }
            }
            if at == BEFORE {
                break;
            }
            sent = port.send_many(conn.to, &mut scratch[..at], stride);
            if sent == Err(Error::AGAIN) {
                conn.not_sent(first..conn.next);
            }
            unsent |= carries && sent.is_err();
        }
        let at = conn.deadline;
        conns.note_deadline(at);
        if unsent {
            conns.queue_ack(id, true);
        }
        match sent {
            Err(Error::AGAIN) => {
                conns.make_ready(id);
                false
            }
            Err(error) => {
                ofi_provider::log_sparsely!(&RXD, INFO, EP_DATA, "a packet was not sent: {error}");
                true
            }
            Ok(()) => true,
        }
    }

    /// Ends the operations with all packets acknowledged by the peer.
    pub(super) fn settle_acked(&mut self, conns: &mut RxdConns, id: u32) {
        let (mut released, mut rejects) = (Held::default(), false);
        loop {
            let Some(conn) = conns.get_mut(id) else { return };
            let next = conn.sent.front().filter(|(end, _)| *end <= conn.acked());
            let Some(&(_, op)) = next else { break };
            conn.sent.pop_front();
            let Some(tx) = self.ops.get_mut(op) else { continue };
            tx.acked = true;
            if !tx.is_own() {
                released += tx.held();
                rejects |= tx.kind == REJECT_REASON;
                self.ops.remove(op);
            } else if tx.over {
                self.ops.remove(op);
            } else if let Some(error) = tx.error {
                self.finish(conns, op, Err(error));
                self.ops.remove(op);
            } else if tx.answer.is_none() && !(tx.deliver && conn.is_ours()) {
                self.finish(conns, op, Ok(()));
                self.ops.remove(op);
            }
        }
        conns.release(id, released);
        if rejects {
            self.settle_taken(conns, id, 0);
        }
    }

    /// Acknowledges a peer's refused requests, if it has taken the refusals among the local packets
    /// before this number. The peer may be unable to acknowledge those, because it has refused
    /// local requests and waits for the same. Those acknowledged are no longer listed.
    pub(super) fn settle_taken(&self, conns: &mut RxdConns, id: u32, before: u64) {
        let Some(conn) = conns.get_mut(id) else { return };
        let held = conn.holds.len();
        let ops = &self.ops;
        conn.holds.retain(|(_, reject)| {
            ops.get(*reject).is_some_and(|reject| reject.sent == 0 || reject.start >= before)
        });
        if conn.holds.len() < held {
            conns.queue_ack(id, true);
        }
    }

    /// Returns the application's operation to a peer with the peer's number for it. It must still
    /// exist and be completely sent, because buffers being sent must not be returned.
    pub(super) fn numbered(&self, conns: &RxdConns, id: u32, tx_id: u32) -> Option<u32> {
        let known = if conns.get(id)?.is_ours() { u32::MAX } else { OF_ORIGINAL };
        let op = tx_id & known & ENTRY;
        let tx = self.ops.get(op)?;
        let is_it = (tx.tx_id ^ tx_id) & known == 0;
        (is_it && tx.conn == id && tx.is_own() && tx.sent == tx.packets).then_some(op)
    }

    /// Handles a peer's refusal of the operation with this number of its first packet, or with this
    /// local operation number.
    pub(super) fn refused(
        &mut self,
        conns: &mut RxdConns,
        id: u32,
        tx_id: u32,
        seq: u64,
        error: Error,
    ) {
        let Some(conn) = conns.get(id) else { return };
        let started = conn.sent.iter().map(|(_, op)| op).chain(&conn.current);
        let starts = |op: &&u32| {
            self.ops.get(**op).is_some_and(|op| op.is_own() && op.sent > 0 && op.start == seq)
        };
        let op = started.filter(|_| seq != u64::MAX).find(starts).copied();
        let Some(op) = op.or_else(|| self.numbered(conns, id, tx_id)) else { return };
        let tx = &mut self.ops[op];
        tx.error = Some(error);
        if tx.answer.is_some() {
            self.answered(conns, op);
        }
    }

    /// Handles a peer's match notice of a local message.
    pub(super) fn delivered(&mut self, conns: &mut RxdConns, id: u32, tx_id: u32) {
        let Some(op) = self.numbered(conns, id, tx_id).filter(|op| self.ops[*op].deliver) else {
            return;
        };
        let tx = &mut self.ops[op];
        tx.deliver = false;
        self.answered(conns, op);
    }

    /// Handles data requested by a read or a fetching operation.
    pub(super) fn answer_came(
        &mut self,
        conns: &mut RxdConns,
        id: u32,
        tx_id: u32,
        data: &[u8],
    ) -> Parsed {
        // The rest of an answer that was refused half-way.
        let Some(op) = self.numbered(conns, id, tx_id).filter(|op| !self.ops[*op].over) else {
            return Ok(());
        };
        let tx = &mut self.ops[op];
        let got = tx.got + data.len();
        let Some(answer) = tx.answer.as_ref().filter(|answer| got <= answer.len()) else {
            return Err(Malformed("an answer nobody asked for, or a longer one"));
        };
        answer.copy_from(tx.got, data);
        let whole = got == answer.len();
        tx.got = got;
        if whole {
            self.answered(conns, op);
        }
        Ok(())
    }

    /// The peer's answer is complete, or it refused.
    fn answered(&mut self, conns: &mut RxdConns, op: u32) {
        let Some(tx) = self.ops.get(op) else { return };
        let (result, acked) = (tx.error.map_or(Ok(()), Err), tx.acked);
        self.finish(conns, op, result);
        if acked {
            self.ops.remove(op);
        }
    }

    /// Reports an operation, once. Its entry stays until it is removed.
    fn finish(&mut self, conns: &mut RxdConns, op: u32, result: Result) {
        let Some(tx) = self.ops.get_mut(op).filter(|tx| tx.is_own()) else { return };
        if std::mem::replace(&mut tx.over, true) {
            return;
        }
        self.own -= 1;
        if let Some(conn) = conns.get_mut(tx.conn) {
            conn.ops -= 1;
            // One with FI_FENCE may wait for it.
            if conn.has_waiting() {
                conns.make_ready(tx.conn);
            }
        }
        let len = tx.answer.as_ref().map_or(tx.total, RecvBuf::len);
        // The application has its buffers back.
        tx.data = TxData::None;
        tx.answer = tx.answer.take().map(|_| RecvBuf::none());
        let of = Completion::of(tx.context, tx.flags, len);
        #[cfg(test)]
        match ofi_simulation::injected() {
            Some(ofi_simulation::InjectedFault::LostCompletion) => return,
            Some(ofi_simulation::InjectedFault::SecondCompletion) => {
                self.completions.done(of, tx.report);
            }
            _ => {}
        }
        match result {
            Ok(()) => self.completions.done(of, tx.report),
            Err(error) => self.completions.failed(CompletionError::new(of, error)),
        }
    }
}

/// Removes the operation with the next packet to send, if there is space for it: a refusal, else
/// the one already started, else a response to the peer, else the next queued one. A fenced one
/// waits until all before it are complete.
fn next_op(conn: &mut RxdConn, ops: &Slab<Box<RxdTx>>) -> Option<u32> {
    if conn.may_refuse() {
        return conn.rejects.pop_front();
    }
    if conn.space() == 0 {
        return None;
    }
    if let Some(op) = conn.current.take().or_else(|| conn.replies.pop_front()) {
        return Some(op);
    }
    let op = *conn.waiting.front()?;
    let fenced = ops.get(op).is_some_and(|op| op.fence);
    if fenced && conn.ops > conn.waiting.len() {
        return None;
    }
    conn.waiting.pop_front()
}
