//! Sending: operations become packets, and are complete when the peer has them.
//!
//! Data are read from the application's buffer for each packet, also for a retransmission. Nothing
//! is copied except for buffers returned to the application at once.
use super::budget::Held;
use super::conn::{HandshakeState, RxdConn};
use super::ep::RxdEngineEp;
use super::port::PacketPort;
use crate::provider::RXD;
use crate::wire::{
    ATOMIC, ATOMIC_COMPARE, ATOMIC_FETCH, BASE_LEN, DATA, DATA_HEAD, DATA_READ, DELIVER, DELIVERED,
    DataHead, INJECTED, INLINE, MAX_HEAD, MSG, NO_OP, NO_TX_COMPLETION, PiggybackAck, READ_REQ,
    REJECT_REASON, RxdBase, RxdOperation, TAGGED, WITH_CQ_DATA, WITH_TAG, WRITE,
};
use ofi_provider::abi::{
    FI_ATOMIC, FI_COMPLETION, FI_FENCE, FI_INJECT, FI_MATCH_COMPLETE, FI_MSG, FI_READ,
    FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_RMA, FI_SEND, FI_TAGGED, FI_WRITE,
};
use ofi_provider::api::{AtomicOp, ReadOp, RemoteSegments, SendOp, WriteOp};
use ofi_provider::atomic::AtomicKind;
use ofi_provider::buf::{RecvBuf, SendBuf};
use ofi_provider::core_provider::DatagramBatch;
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::error::{Error, Result};
use ofi_provider::mr::MrTable;
use ofi_provider::reserved::INTERNAL_OP;
use ofi_provider::slab::Slab;

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

/// Location of the data of an operation.
#[derive(Debug)]
pub(super) enum TxData {
    None,
    /// In the application's buffer, borrowed until the operation is complete.
    Exposed(SendBuf),
    /// In a copy.
    Own(Box<[u8]>),
    /// In a region read by the peer.
    Region(RemoteSegments),
}

/// Incomplete operation: one of the application, or a response to a peer.
#[derive(Debug)]
pub(super) struct RxdTx {
    pub(super) conn: u32,
    context: Context,
    /// The flags of the completion entry.
    flags: u64,
    report: bool,
    /// The application has its buffer back, and need not wait for the end.
    injected: bool,
    /// The operation starts when all before it to the same peer are complete (FI_FENCE).
    fence: bool,
    /// The type and flags of the first packet.
    kind: u8,
    wire_flags: u16,
    head: [u8; MAX_HEAD],
    head_len: usize,
    data: TxData,
    /// Bytes of the data, and those in the first packet.
    total: usize,
    first: usize,
    /// Number of packets, number of packets sent, and the number of the first.
    packets: u64,
    sent: u64,
    start: u64,
    /// Number of the operation at its initiator, named by a response.
    pub(super) tx_id: u32,
    /// First packet of a response without available data at its first transmission.
    refused_at: u64,
    /// Buffer for the peer's response, and the number of bytes received.
    pub(super) answer: Option<RecvBuf>,
    pub(super) got: usize,
    /// A peer with this library reports the match of the message.
    pub(super) deliver: bool,
    /// The peer has all of it.
    acked: bool,
    /// It is reported, and only stays until it is acknowledged.
    pub(super) over: bool,
    /// The peer refused it.
    pub(super) error: Option<Error>,
}

impl RxdTx {
    pub(super) fn new(
        conn: u32,
        context: Context,
        flags: u64,
        call: u64,
        kind: u8,
        data: TxData,
    ) -> Self {
        let report = call & FI_COMPLETION != 0;
        Self {
            conn,
            context,
            flags: flags | (call & INTERNAL_OP),
            report,
            injected: call & FI_INJECT != 0,
            fence: call & FI_FENCE != 0,
            kind,
            wire_flags: 0,
            head: [0; MAX_HEAD],
            head_len: 0,
            data,
            total: 0,
            first: 0,
            packets: 1,
            sent: 0,
            start: 0,
            tx_id: 0,
            refused_at: u64::MAX,
            answer: None,
            got: 0,
            deliver: false,
            acked: false,
            over: false,
            error: None,
        }
    }

    /// An answer to a peer's request.
    pub(super) fn of_peer(conn: u32, tx_id: u32, data: TxData, total: usize, space: usize) -> Self {
        let op = Self::new(conn, Context::NULL, 0, 0, DATA_READ, data);
        let packets = total.div_ceil(space).max(1) as u64;
        Self { tx_id, total, packets, over: true, ..op }
    }

    /// Creates a refusal of a peer's request with this number of its first packet.
    pub(super) fn reject(conn: u32, tx_id: u32, seq: u64, error: Error) -> Self {
        let op = Self::new(conn, Context::NULL, 0, 0, REJECT_REASON, TxData::None);
        let (code, seq) = (error.code() as usize, seq as usize);
        Self { tx_id, over: true, first: code, total: seq, ..op }
    }

    /// Creates a match notice for a peer's message.
    pub(super) fn delivered(conn: u32, tx_id: u32) -> Self {
        let op = Self::new(conn, Context::NULL, 0, 0, DELIVERED, TxData::None);
        Self { tx_id, over: true, ..op }
    }

    /// Returns true if it belongs to the application.
    pub(super) fn is_own(&self) -> bool {
        !matches!(self.kind, DATA_READ | REJECT_REASON | DELIVERED)
    }

    /// Returns true if the application relies on its delivery, without waiting for it.
    pub(super) fn is_injected(&self) -> bool {
        self.is_own() && self.injected && !self.over
    }

    /// Returns the resources held for a response.
    pub(super) fn held(&self) -> Held {
        match &self.data {
            _ if self.kind == DELIVERED => Held::NOTICE,
            TxData::Own(bytes) => Held::answer(bytes.len()),
            _ => Held::answer(0),
        }
    }

    /// Copies data to a packet; fails with -FI_EINVAL if their region is closed.
    pub(super) fn copy(&self, regions: &MrTable, from: usize, to: &mut [u8]) -> Result {
        match &self.data {
            // For a finished operation; the buffer has other peers' packets.
            TxData::None => to.fill(0),
            TxData::Exposed(buf) => buf.copy_to(from, to),
            TxData::Own(bytes) => to.copy_from_slice(&bytes[from..from + to.len()]),
            TxData::Region(segments) => {
                return regions.open().read(segments, FI_REMOTE_READ, from, to);
            }
        }
        Ok(())
    }

    /// Makes one of the operation's packets, for a peer of this library or not; returns its length.
    /// `again`: it was sent before.
    pub(super) fn build(
        &mut self,
        regions: &MrTable,
        (packet, again): (u64, bool),
        base: RxdBase,
        ours: bool,
        space: &mut [u8],
    ) -> usize {
        let data_space = space.len() - DATA_HEAD;
        let part = |from: usize| self.total.saturating_sub(from).min(data_space);
        let tx_id = self.tx_id;
        match self.kind {
            DATA_READ => {
                let from = packet as usize * data_space;
                let len = part(from);
                base.write(space);
                DataHead { tx_id, rx_id: 0, segment: packet }.write(space);
                match self.copy(regions, from, &mut space[DATA_HEAD..DATA_HEAD + len]) {
                    Ok(()) => DATA_HEAD + len,
                    // The application revoked the data promised to the peer. The peer is notified
                    // once, and also instead of each possibly lost packet, because the peer does
                    // not check its received data.
                    Err(error) if ours && (again || packet <= self.refused_at) => {
                        if !again {
                            self.refused_at = packet;
                        }
                        RxdBase { kind: REJECT_REASON, ..base }.write(space);
                        DataHead { tx_id, rx_id: error.code() as u32, segment: u64::MAX }
                            .write(space);
                        DATA_HEAD
                    }
                    Err(_) => {
                        RxdBase { kind: NO_OP, ..base }.write(space);
                        DATA_HEAD
                    }
                }
            }
            REJECT_REASON | DELIVERED => {
                base.write(space);
                let (rx_id, segment) = (self.first as u32, self.total as u64);
                DataHead { tx_id, rx_id, segment }.write(space);
                DATA_HEAD
            }
            _ => {
                let (data, from, len) = match packet {
                    0 => {
                        let flags = if ours { self.wire_flags } else { self.wire_flags & !DELIVER };
                        RxdBase { flags, ..base }.write(space);
                        let data = BASE_LEN + self.head_len;
                        space[BASE_LEN..data].copy_from_slice(&self.head[..self.head_len]);
                        (data, 0, self.first)
                    }
                    _ => {
                        let from = self.first + (packet as usize - 1) * data_space;
                        RxdBase { kind: DATA, ..base }.write(space);
                        DataHead { tx_id, rx_id: 0, segment: packet - 1 }.write(space);
                        (DATA_HEAD, from, part(from))
                    }
                };
                let copied = self.copy(regions, from, &mut space[data..data + len]);
                debug_assert!(copied.is_ok(), "only answers are taken from regions");
                data + len
            }
        }
    }
}

impl RxdEngineEp {
    /// Returns the data to be sent: the application's buffer, or a copy if the buffer is returned
    /// at once.
    fn data_of(&self, buf: SendBuf, flags: u64) -> Result<TxData> {
        if flags & FI_INJECT == 0 {
            return Ok(TxData::Exposed(buf));
        }
        if buf.len() > self.identity.attr.inject_size {
            return Err(Error::MSGSIZE);
        }
        buf.to_boxed().map(TxData::Own)
    }

    /// fi_send and fi_tsend, in all their forms.
    pub(crate) fn send(&mut self, op: SendOp, tagged: bool) -> Result {
        self.may_start(op.flags)?;
        let len = op.buf.len();
        let data = self.data_of(op.buf, op.flags)?;
        let conn = self.conn_to(op.dest)?;
        let flags = FI_SEND | if tagged { FI_TAGGED } else { FI_MSG };
        let kind = if tagged { TAGGED } else { MSG };
        let tx = RxdTx::new(conn, op.context, flags, op.flags, kind, data);
        // A message that the peer has acknowledged is delivered, whether it has met its receive or waits
        // for it (fi_cq(3)).
        let deliver = op.flags & FI_MATCH_COMPLETE != 0;
        let tx = RxdTx { deliver, ..tx };
        let wire_flags = if tagged { WITH_TAG } else { 0 };
        let head = RxdOperation {
            kind,
            flags: wire_flags | if deliver { DELIVER } else { 0 },
            tag: op.tag,
            cq_data: (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data),
            total: len as u64,
            packets: 0,
            tx_id: 0,
            segments: RemoteSegments::EMPTY,
            atomic: (0, 0),
        };
        self.start(tx, head, len, op.flags)
    }

    /// fi_write, in all its forms.
    pub(crate) fn write(&mut self, op: WriteOp) -> Result {
        self.may_start(op.flags)?;
        let len = op.buf.len();
        let data = self.data_of(op.buf, op.flags)?;
        let conn = self.conn_to(op.dest)?;
        let tx = RxdTx::new(conn, op.context, FI_RMA | FI_WRITE, op.flags, WRITE, data);
        let head = RxdOperation {
            kind: WRITE,
            flags: 0,
            tag: 0,
            cq_data: (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data),
            total: len as u64,
            packets: 0,
            tx_id: 0,
            segments: op.remote,
            atomic: (0, 0),
        };
        self.start(tx, head, len, op.flags)
    }

    /// fi_read, in all its forms.
    pub(crate) fn read(&mut self, op: ReadOp) -> Result {
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.src)?;
        let flags = op.flags & !FI_INJECT;
        let len = op.buf.len();
        let tx = RxdTx::new(conn, op.context, FI_RMA | FI_READ, flags, READ_REQ, TxData::None);
        let tx = RxdTx { answer: Some(op.buf), ..tx };
        let head = RxdOperation {
            kind: READ_REQ,
            flags: 0,
            tag: 0,
            cq_data: None,
            total: len as u64,
            packets: 0,
            tx_id: 0,
            segments: op.remote,
            atomic: (0, 0),
        };
        self.start(tx, head, 0, flags)
    }

    /// fi_atomic, fi_fetch_atomic and fi_compare_atomic, in all their forms.
    pub(crate) fn atomic(&mut self, op: AtomicOp) -> Result {
        if op.flags & FI_INJECT != 0 && op.source.len() > self.identity.attr.inject_size {
            return Err(Error::INVAL);
        }
        let (kind, access) = match op.operation.kind() {
            AtomicKind::Base => (ATOMIC, FI_WRITE),
            AtomicKind::Fetch => (ATOMIC_FETCH, FI_READ),
            AtomicKind::Compare => (ATOMIC_COMPARE, FI_READ),
        };
        let mut operands = op.source.to_boxed()?.into_vec();
        operands.extend_from_slice(&op.compare.to_boxed()?);
        if operands.len().max(op.result.len()) > self.limits.packet - crate::wire::ATOMIC_HEAD {
            return Err(Error::MSGSIZE);
        }
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.dest)?;
        // The encoded length is the length of the elements, regardless of the number of operands.
        let (total, len) = (op.remote.total()? as u64, operands.len());
        let data = TxData::Own(operands.into());
        let tx = RxdTx::new(conn, op.context, FI_ATOMIC | access, op.flags, kind, data);
        let tx = RxdTx { answer: (kind != ATOMIC).then_some(op.result), ..tx };
        let head = RxdOperation {
            kind,
            flags: 0,
            tag: 0,
            cq_data: (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data),
            total,
            packets: 0,
            tx_id: 0,
            segments: op.remote,
            atomic: (op.operation.datatype().into(), op.operation.op().into()),
        };
        self.start(tx, head, len, op.flags)
    }

    /// Starts an operation of the application's with so many bytes of data: makes its headers, and
    /// sends as much of it as may be sent now.
    pub(super) fn start(
        &mut self,
        mut tx: RxdTx,
        mut head: RxdOperation,
        len: usize,
        flags: u64,
    ) -> Result {
        let conn = tx.conn;
        if head.cq_data.is_some() {
            head.flags |= WITH_CQ_DATA;
        }
        if flags & FI_INJECT != 0 {
            head.flags |= INJECTED;
        }
        if !tx.report {
            head.flags |= NO_TX_COMPLETION;
        }
        let most = self.limits.packet;
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
        let is_ours = self.conns.get(conn).is_some_and(|conn| conn.is_ours());
        if id > if is_ours { ENTRY } else { OF_ORIGINAL } {
            self.ops.remove(id);
            return Err(Error::AGAIN);
        }
        // Never 0, by which operations are named that have no number.
        self.op_generation = self.op_generation % (u32::MAX >> ENTRY_BITS) + 1;
        let tx = &mut self.ops[id];
        tx.tx_id = self.op_generation << ENTRY_BITS | id;
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
        self.own_ops += 1;
        self.now = super::clock();
        let of = &mut self.conns[conn];
        of.ops += 1;
        of.waiting.push_back(id);
        match of.stage {
            HandshakeState::New => self.ask(conn),
            HandshakeState::Asking => {}
            HandshakeState::Known => {
                if let Some(mut port) = self.port.take() {
                    self.pump(&mut *port, conn);
                    self.port = Some(port);
                }
            }
        }
        Ok(())
    }

    /// Sends an answer of the engine's own.
    pub(super) fn start_answer(&mut self, tx: RxdTx) -> u32 {
        let (conn, refuses) = (tx.conn, tx.kind == REJECT_REASON);
        // A notice is held since its message came.
        if tx.kind != DELIVERED {
            self.hold(conn, tx.held());
        }
        let id = self.ops.insert(Box::new(tx));
        let of = &mut self.conns[conn];
        if refuses {
            of.rejects.push_back(id)
        } else {
            of.replies.push_back(id)
        }
        self.make_ready(conn);
        id
    }

    /// Sends the packets permitted on a connection. Returns false if the core has no space for
    /// more.
    pub(super) fn pump(&mut self, port: &mut dyn PacketPort, id: u32) -> bool {
        let Self { conns, ops, scratch, limits, now, .. } = self;
        let Some(conn) = conns.get_mut(id) else { return true };
        if conn.stage != HandshakeState::Known {
            return true;
        }
        let most = limits.packet;
        if scratch.is_empty() {
            scratch.resize(BEFORE + most.max(BATCH), 0);
        }
        let (now, mut sent, mut unsent) = (*now, Ok(()), false);
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
        self.note_deadline(at);
        if unsent {
            self.queue_ack(id, true);
        }
        match sent {
            Err(Error::AGAIN) => {
                self.make_ready(id);
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
    pub(super) fn settle_acked(&mut self, id: u32) {
        let (mut released, mut rejects) = (Held::default(), false);
        loop {
            let Some(conn) = self.conns.get_mut(id) else { return };
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
                self.finish(op, Err(error));
                self.ops.remove(op);
            } else if tx.answer.is_none() && !(tx.deliver && conn.is_ours()) {
                self.finish(op, Ok(()));
                self.ops.remove(op);
            }
        }
        self.release(id, released);
        if rejects {
            self.settle_taken(id, 0);
        }
    }

    /// Acknowledges a peer's refused requests, if it has taken the refusals among the local packets
    /// before this number. The peer may be unable to acknowledge those, because it has refused
    /// local requests and waits for the same. Those acknowledged are no longer listed.
    pub(super) fn settle_taken(&mut self, id: u32, before: u64) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let held = conn.holds.len();
        let ops = &self.ops;
        conn.holds.retain(|(_, reject)| {
            ops.get(*reject).is_some_and(|reject| reject.sent == 0 || reject.start >= before)
        });
        if conn.holds.len() < held {
            self.queue_ack(id, true);
        }
    }

    /// Returns the application's operation to a peer with the peer's number for it. It must still
    /// exist and be completely sent, because buffers being sent must not be returned.
    pub(super) fn numbered(&self, id: u32, tx_id: u32) -> Option<u32> {
        let known = if self.conns.get(id)?.is_ours() { u32::MAX } else { OF_ORIGINAL };
        let op = tx_id & known & ENTRY;
        let tx = self.ops.get(op)?;
        let is_it = (tx.tx_id ^ tx_id) & known == 0;
        (is_it && tx.conn == id && tx.is_own() && tx.sent == tx.packets).then_some(op)
    }

    /// Handles a peer's refusal of the operation with this number of its first packet, or with this
    /// local operation number.
    pub(super) fn refused(&mut self, id: u32, tx_id: u32, seq: u64, error: Error) {
        let Some(conn) = self.conns.get(id) else { return };
        let started = conn.sent.iter().map(|(_, op)| op).chain(&conn.current);
        let starts = |op: &&u32| {
            self.ops.get(**op).is_some_and(|op| op.is_own() && op.sent > 0 && op.start == seq)
        };
        let op = started.filter(|_| seq != u64::MAX).find(starts).copied();
        let Some(op) = op.or_else(|| self.numbered(id, tx_id)) else { return };
        let tx = &mut self.ops[op];
        tx.error = Some(error);
        if tx.answer.is_some() {
            self.answered(op);
        }
    }

    /// Handles a peer's match notice of a local message.
    pub(super) fn delivered(&mut self, id: u32, tx_id: u32) {
        let Some(op) = self.numbered(id, tx_id).filter(|op| self.ops[*op].deliver) else { return };
        let tx = &mut self.ops[op];
        tx.deliver = false;
        self.answered(op);
    }

    /// The peer's answer is complete, or it refused.
    pub(super) fn answered(&mut self, op: u32) {
        let Some(tx) = self.ops.get(op) else { return };
        let (result, acked) = (tx.error.map_or(Ok(()), Err), tx.acked);
        self.finish(op, result);
        if acked {
            self.ops.remove(op);
        }
    }

    /// Reports an operation, once. Its entry stays until it is removed.
    pub(super) fn finish(&mut self, op: u32, result: Result) {
        let Some(tx) = self.ops.get_mut(op).filter(|tx| tx.is_own()) else { return };
        if std::mem::replace(&mut tx.over, true) {
            return;
        }
        self.own_ops -= 1;
        if let Some(conn) = self.conns.get_mut(tx.conn) {
            conn.ops -= 1;
            // One with FI_FENCE may wait for it.
            if conn.has_waiting() && !std::mem::replace(&mut conn.is_ready, true) {
                self.ready.push(tx.conn);
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
