//! Sending: messages in one packet, in segments or by rendezvous, and remote memory access,
//! executed by the core.
//!
//! A transfer possible at once is started from the application's thread. Otherwise, without an
//! established connection or without space in the core, it waits in the connection. Queued
//! transfers leave in the order of posting.
use super::conn::{Link, Token, Waiting};
use super::ep::RxmEngineEp;
use super::pending::{PendingSteps, RxmMessage, TxOp};
use crate::provider::RXM;
use crate::wire::{
    self, ANSWER_LEN, AtomicHeader, HEADER_LEN, IOCS_LEN, OP_ATOMIC, OP_ATOMIC_COMPARE,
    OP_ATOMIC_FETCH, OP_MSG, OP_TAGGED, PacketKind, REMOTE_CQ_DATA, RxmHeader, SEGMENTS_LEN,
    SegmentPart, read_answer, write_iocs, write_segments,
};
use ofi_provider::abi::{
    FI_ATOMIC, FI_COMMIT_COMPLETE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_FENCE, FI_INJECT,
    FI_INJECT_COMPLETE, FI_KEY_NOTAVAIL, FI_MATCH_COMPLETE, FI_MSG, FI_READ, FI_REMOTE_CQ_DATA,
    FI_REMOTE_READ, FI_RMA, FI_SEND, FI_TAGGED, FI_TRANSMIT_COMPLETE, FI_WRITE,
};
use ofi_provider::api::{
    AtomicOp, FastSend, ReadOp, RemoteSegment, RemoteSegments, SendOp, WriteOp,
};
use ofi_provider::atomic;
use ofi_provider::buf::SendBuf;
use ofi_provider::core_provider::{CoreBuf, Done};
use ofi_provider::cq::Completion;
use ofi_provider::deferred::is_group_notice;
use ofi_provider::error::{Error, Result};
use ofi_provider::reserved::{INTERNAL_OP, TIMED};
use ofi_provider::slab::NONE;

/// A message of so many bytes or more is sent from the application's buffer rather than as a copy.
const DIRECT_MIN: usize = 4096;

/// Flags of an operation excluding the fast path (`send_fast`).
const SPECIAL: u64 = FI_FENCE | DELIVERED | INTERNAL_OP;

/// Completion levels waiting until the peer's endpoint has the message (fi_cq(3)).
const DELIVERED: u64 =
    FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;

impl RxmEngineEp {
    /// fi_send and fi_tsend, in all their forms.
    #[inline(always)]
    pub(crate) fn send(&mut self, op: SendOp, tagged: bool) -> Result {
        // In parts, which stay in registers: for the other cases an operation is put together again.
        let SendOp { buf, dest, context, data, tag, flags } = op;
        let fast = FastSend { buf: &buf, dest, context, data, tag, flags };
        let Some(taken) = self.send_fast(fast, tagged) else {
            return self.send_slow(SendOp { buf, dest, context, data, tag, flags }, tagged);
        };
        if !taken {
            // Apart from the other case, with which it would share, and do always, what it needs.
            return self.send_refused(SendOp { buf, dest, context, data, tag, flags }, tagged);
        }
        Ok(())
    }

    /// Sends a message just rejected by the core: it waits, or a new connection takes it.
    #[cold]
    #[inline(never)]
    fn send_refused(&mut self, op: SendOp, tagged: bool) -> Result {
        self.send_slow(op, tagged)
    }

    /// Fast path for the most common case: a small message without special attributes, copied at
    /// once by the core. Returns none in any other case, and false if the core rejects it; then
    /// nothing has changed.
    #[inline(always)]
    fn send_fast(&mut self, op: FastSend<'_>, tagged: bool) -> Option<bool> {
        let len = op.buf.len();
        let report = op.flags & FI_COMPLETION != 0;
        if op.flags & SPECIAL != 0
            || len > self.fast_max
            || (op.flags & FI_INJECT != 0 && len > self.identity.attr.inject_size)
            || self.tx_left() == 0
            || !self.completions.has_space(report)
        {
            return None;
        }
        let peer = self.peers.first(op.dest).and_then(|peer| self.peers.get(peer))?;
        let conn = self.conns.get(peer.conn)?;
        let link = conn.ep.as_ref().filter(|_| conn.is_ready())?;
        let data = if op.flags & FI_REMOTE_CQ_DATA != 0 { op.data } else { 0 };
        let header = RxmHeader {
            op: if tagged { OP_TAGGED } else { OP_MSG },
            flags: if op.flags & FI_REMOTE_CQ_DATA != 0 { REMOTE_CQ_DATA } else { 0 },
            size: len as u64,
            data,
            tag: op.tag,
            ..RxmHeader::of(PacketKind::Eager, conn.remote_id)
        };
        let (head, body) = self.packet.split_first_chunk_mut().expect("room for a header");
        header.write_to(head);
        op.buf.copy_to(0, &mut body[..len]);
        if link.inject(&self.packet[..HEADER_LEN + len]).is_err() {
            return Some(false);
        }
        conn.sent.one(len);
        let flags = FI_SEND | if tagged { FI_TAGGED } else { FI_MSG };
        self.completions.succeeded(Completion::of(op.context, flags, len), report);
        Some(true)
    }

    #[inline(never)]
    fn send_slow(&mut self, op: SendOp, tagged: bool) -> Result {
        let len = op.buf.len();
        let inject = op.flags & FI_INJECT != 0;
        if inject && len > self.identity.attr.inject_size {
            return Err(Error::MSGSIZE);
        }
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.dest)?;
        let (id, ready) = self.send_on(conn, op, tagged)?;
        self.start(id, conn, ready)
    }

    /// Creates the operation sending a message on a connection. Returns true if it may start now.
    // A frame of its own, of which calling a peer and the core have nothing.
    #[inline(never)]
    fn send_on(&mut self, conn: u32, op: SendOp, tagged: bool) -> Result<(u32, bool)> {
        let len = op.buf.len();
        let inject = op.flags & FI_INJECT != 0;
        let deliver = op.flags & DELIVERED != 0;
        let processed = op.flags & FI_DELIVERY_COMPLETE != 0 && !self.common.core_delivers;
        let eager = len <= self.common.config.eager_limit && !deliver;
        let copy = if inject && !eager { Some(self.copy_of(&op.buf)?) } else { None };
        let flags = FI_SEND | if tagged { FI_TAGGED } else { FI_MSG };
        let message = RxmMessage {
            buf: copy.as_ref().map_or(op.buf, |(_, buf)| buf.clone()),
            tagged,
            tag: op.tag,
            cq_data: (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data),
            deliver,
            notified: op.flags & FI_MATCH_COMPLETE != 0 || processed,
            sent: 0,
            segments: 0,
        };
        let ready = self.may_go(conn, op.flags);
        if ready && tagged && !self.knows(conn, op.flags, op.tag) {
            return Err(Error::OPNOTSUPP);
        }
        let mut packet = None;
        let total = HEADER_LEN + len;
        let direct = !inject && self.goes_direct(&message);
        if eager && !direct && (ready || inject) {
            let mut buf = self.buffer()?;
            let mut header = message.header(PacketKind::Eager);
            header.conn_id = self.conns[conn].remote_id;
            header.write(&mut buf);
            message.buf.copy_to(0, &mut buf[HEADER_LEN..total]);
            packet = Some(PendingSteps::Packet(buf, total));
        }
        let todo = packet.unwrap_or(PendingSteps::Send(message));
        let id = self.ops.insert(TxOp {
            copy: copy.map(|(buffered, _)| buffered),
            len,
            ..TxOp::new(conn, op.context, flags, op.flags, todo)
        });
        self.conns[conn].sent.one(len);
        Ok((id, ready))
    }

    /// Copies the application's data; returns the copy, and the same as the buffer to send.
    #[cold]
    fn copy_of(&mut self, buf: &SendBuf) -> Result<(CoreBuf, SendBuf)> {
        let mut copy = self.buffer()?;
        let sent = copy.copy_of(buf)?;
        Ok((copy, sent))
    }

    /// fi_read, in all its forms.
    pub(crate) fn read(&mut self, op: ReadOp) -> Result {
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.src)?;
        let flags = self.behind_atomics(conn, op.flags) & !FI_INJECT;
        let ready = self.may_go(conn, flags);
        let len = op.buf.len();
        let todo = PendingSteps::Read { buf: op.buf, from: op.remote };
        let new = TxOp::new(conn, op.context, FI_RMA | FI_READ, flags, todo);
        let id = self.ops.insert(TxOp { len, ..new });
        self.start(id, conn, ready)
    }

    /// fi_write, in all its forms.
    pub(crate) fn write(&mut self, op: WriteOp) -> Result {
        let inject = op.flags & FI_INJECT != 0;
        let len = op.buf.len();
        if inject && len > self.identity.attr.inject_size {
            return Err(Error::MSGSIZE);
        }
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.dest)?;
        let fenced = self.behind_atomics(conn, op.flags);
        let ready = self.may_go(conn, fenced);
        let (to, data) = (op.remote, op.data);
        let levels = FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
        let flags = op.flags & (FI_REMOTE_CQ_DATA | FI_COMMIT_COMPLETE | levels);
        let todo = if inject {
            let mut bytes = self.buffer()?;
            op.buf.copy_to(0, &mut bytes[..len]);
            PendingSteps::WriteCopy { bytes, to, data, flags }
        } else {
            PendingSteps::Write { buf: op.buf, to, data, flags }
        };
        let new = TxOp::new(conn, op.context, FI_RMA | FI_WRITE, fenced, todo);
        let id = self.ops.insert(TxOp { len, ..new });
        self.conns[conn].sent.one(len);
        self.start(id, conn, ready)
    }

    /// Returns true if a transfer with these flags can start right now.
    #[inline]
    fn may_go(&self, conn: u32, flags: u64) -> bool {
        self.is_ready(conn) && (flags & FI_FENCE == 0 || self.conns[conn].ops == 0)
    }

    /// Returns true if the peer of a connection accepts this tagged message: multicast notices
    /// require a peer with this feature.
    fn knows(&self, conn: u32, flags: u64, tag: u64) -> bool {
        !is_group_notice(flags, tag) || self.conns[conn].multicast
    }

    /// Returns the flags of a read or write, executed by the peer's core on arrival. While atomic
    /// operations wait for the peer's software, it must not overtake them (FI_ORDER_RAW,
    /// FI_ORDER_WAW), so it gets a fence.
    #[inline]
    fn behind_atomics(&self, conn: u32, flags: u64) -> u64 {
        if self.conns[conn].atomics > 0 { flags | FI_FENCE } else { flags }
    }

    /// fi_atomic, fi_fetch_atomic and fi_compare_atomic, in all their forms.
    pub(crate) fn atomic(&mut self, op: AtomicOp) -> Result {
        if op.flags & FI_INJECT != 0 && op.source.len() > self.identity.attr.inject_size {
            return Err(Error::INVAL);
        }
        if op.flags & FI_REMOTE_CQ_DATA != 0 {
            // The protocol has no field for CQ data of atomic operations.
            return Err(Error::OPNOTSUPP);
        }
        let payload = IOCS_LEN + op.source.len() + op.compare.len();
        if payload.max(ANSWER_LEN + op.result.len()) > self.common.config.eager_limit {
            return Err(Error::MSGSIZE);
        }
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.dest)?;
        let ready = self.may_go(conn, op.flags);
        let (number, access) = match op.operation.kind() {
            atomic::AtomicKind::Base => (OP_ATOMIC, FI_WRITE),
            atomic::AtomicKind::Fetch => (OP_ATOMIC_FETCH, FI_READ),
            atomic::AtomicKind::Compare => (OP_ATOMIC_COMPARE, FI_READ),
        };
        let mut buf = self.buffer()?;
        let elements = HEADER_LEN + IOCS_LEN;
        let (middle, end) = (elements + op.source.len(), HEADER_LEN + payload);
        // On the wire the places' lengths are numbers of elements.
        let mut segments = RemoteSegments::EMPTY;
        for segment in op.remote.as_slice() {
            let len = segment.len / op.operation.size() as u64;
            segments.push(RemoteSegment { len, ..*segment })?;
        }
        write_iocs(&segments, &mut buf[HEADER_LEN..]);
        op.source.copy_to(0, &mut buf[elements..middle]);
        op.compare.copy_to(0, &mut buf[middle..end]);
        let segments = op.remote.as_slice().len() as u8;
        let what =
            AtomicHeader { datatype: op.operation.datatype(), op: op.operation.op(), segments };
        let id = self.ops.insert(TxOp {
            len: op.source.len().max(op.result.len()),
            answer: Some(op.result),
            ..TxOp::new(conn, op.context, FI_ATOMIC | access, op.flags, PendingSteps::Wait)
        });
        let header = RxmHeader {
            msg_id: u64::from(id),
            op: number,
            size: payload as u64,
            tag: what.to_tag(),
            ..RxmHeader::of(PacketKind::Atomic, 0)
        };
        header.write(&mut buf);
        self.ops[id].todo = PendingSteps::Packet(buf, end);
        self.conns[conn].atomics += 1;
        self.start(id, conn, ready)
    }

    /// Handles the answer to an atomic operation. False if no answer was awaited.
    pub(super) fn answered(&mut self, conn: u32, header: &RxmHeader, payload: &[u8]) -> bool {
        let Ok(id) = u32::try_from(header.msg_id) else { return false };
        let Some(op) = self.ops.get(id).filter(|op| op.conn == conn) else { return false };
        let (Some(answer), Ok((status, bytes))) = (&op.answer, read_answer(payload)) else {
            return false;
        };
        let result = match status {
            0 if bytes.len() == answer.len() => {
                answer.copy_from(0, bytes);
                Ok(())
            }
            0 => Err(Error::PROTO),
            // Releases of the original differ in the sign of the code.
            status => Err(Error::from_code(status.saturating_abs())),
        };
        self.finish_op(id, result);
        true
    }

    /// Starts a transfer, or lets it wait in its connection.
    #[inline]
    fn start(&mut self, id: u32, conn: u32, ready: bool) -> Result {
        self.conns[conn].ops += 1;
        self.ops[id].flags |= self.times.begin();
        if ready {
            match self.advance(id) {
                Ok(()) => return Ok(()),
                Err(Error::AGAIN) => self.stall(conn),
                Err(Error::NOTCONN | Error::SHUTDOWN | Error::CONNRESET) => {
                    return self.start_anew(id, conn);
                }
                Err(error) if self.ops[id].outstanding > 0 => {
                    self.ended(conn, error);
                    return Ok(());
                }
                Err(error) => {
                    self.drop_op(id);
                    return Err(error);
                }
            }
        }
        let fenced = self.ops[id].fence;
        let conn = &mut self.conns[conn];
        self.wants_help |= conn.link != Link::Connected || conn.stalled;
        conn.fenced |= fenced && conn.waiting.is_empty();
        conn.waiting.push_back(Waiting::Op(id));
        Ok(())
    }

    /// Returns true if a fenced transfer removed from the queue must keep waiting for others before
    /// it.
    fn is_fenced_off(&self, id: u32) -> bool {
        let Some(op) = self.ops.get(id).filter(|op| op.fence) else { return false };
        let conn = &self.conns[op.conn];
        let waiting = conn.waiting.iter().filter(|w| matches!(w, Waiting::Op(_))).count();
        conn.ops > waiting + 1
    }

    /// Moves the transfer to a new connection, because the old one has ended without an event yet.
    #[cold]
    fn start_anew(&mut self, id: u32, conn: u32) -> Result {
        let peer = self.conns[conn].peer;
        let op = &mut self.ops[id];
        if op.outstanding > 0 || matches!(&op.todo, PendingSteps::Send(message) if message.sent > 0)
        {
            // Its first segments are lost with the connection, and so is the whole message.
            self.ended(conn, Error::CONNRESET);
            return Ok(());
        }
        op.conn = NONE;
        let answered = op.answer.is_some();
        let of = &mut self.conns[conn];
        (of.ops, of.atomics) = (of.ops - 1, of.atomics - usize::from(answered));
        self.ended(conn, Error::CONNRESET);
        let known = self.peers.get(peer).map(|peer| peer.conn);
        let conn = match known {
            Some(NONE) => self.call(peer),
            Some(conn) => Ok(conn),
            None => Err(Error::NOTCONN),
        };
        let conn = conn.inspect_err(|_| drop(self.drop_op(id)))?;
        self.ops[id].conn = conn;
        self.conns[conn].ops += 1;
        self.conns[conn].atomics += usize::from(self.ops[id].answer.is_some());
        self.conns[conn].waiting.push_back(Waiting::Op(id));
        Ok(())
    }

    /// Ends a transfer permanently rejected by the core. If the core already has parts of it, using
    /// its memory, the connection ends as well.
    #[cold]
    fn give_up(&mut self, id: u32, conn: u32, error: Error) {
        match self.ops.get(id).is_some_and(|op| op.outstanding > 0) {
            true => self.ended(conn, error),
            false => self.finish_op(id, Err(error)),
        }
    }

    pub(super) fn stall(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        if !conn.stalled && conn.link != Link::Ended {
            conn.stalled = true;
            self.stalled.push(id);
        }
    }

    /// Returns true if an eager message is sent from the application's buffer.
    #[inline]
    fn goes_direct(&self, message: &RxmMessage) -> bool {
        message.buf.len() >= DIRECT_MIN && self.may_go_direct(&message.buf)
    }

    fn may_go_direct(&self, buf: &SendBuf) -> bool {
        self.common.config.direct_send
            && !self.common.domain.wants_local()
            && buf.segments() < self.common.core_iov
    }

    /// Advances a transfer as far as possible. Fails with -FI_EAGAIN if there is more to do, but
    /// the core has no space.
    fn advance(&mut self, id: u32) -> Result {
        let Some(op) = self.ops.get_mut(id) else { return Ok(()) };
        match std::mem::replace(&mut op.todo, PendingSteps::Wait) {
            PendingSteps::Wait => Ok(()),
            PendingSteps::Packet(buf, len) => self.advance_packet(id, buf, len),
            PendingSteps::Send(message) => self.advance_message(id, message),
            todo @ (PendingSteps::Announced(_) | PendingSteps::Failed(_)) => {
                op.todo = todo;
                Ok(())
            }
            todo @ PendingSteps::Deliver { .. } => {
                op.todo = todo;
                self.advance_delivery(id)
            }
            PendingSteps::WriteCopy { bytes, to, data, flags } => {
                let conn = &self.conns[self.ops[id].conn];
                let link = conn.ep.as_ref().ok_or(Error::NOTCONN)?;
                let token = Token::Rma(id).to_u64();
                link.write_own(bytes, to.as_slice(), data, flags, token).map_err(
                    |(error, bytes)| {
                        self.ops[id].todo = PendingSteps::WriteCopy { bytes, to, data, flags };
                        error
                    },
                )
            }
            todo => {
                let result = self.advance_rma(id, &todo);
                if let (Err(_), Some(op)) = (result, self.ops.get_mut(id)) {
                    op.todo = todo;
                }
                result
            }
        }
    }

    /// Sends a packet, complete except for the connection's number.
    fn advance_packet(&mut self, id: u32, mut buf: CoreBuf, len: usize) -> Result {
        let conn = &self.conns[self.ops[id].conn];
        let link = conn.ep.as_ref().ok_or(Error::NOTCONN)?;
        wire::name_conn(&mut buf, conn.remote_id);
        if len <= self.common.core_inject {
            match link.inject(&buf[..len]) {
                Ok(()) => {
                    self.release(Some(buf));
                    self.sent(id);
                    return Ok(());
                }
                Err(error) => {
                    self.ops[id].todo = PendingSteps::Packet(buf, len);
                    return Err(error);
                }
            }
        }
        // A transfer completed by a response may end, and its number be reused, before the core
        // reports the send of the request. If sending the request fails, the connection ends.
        let answered = self.ops[id].answer.is_some();
        let token = if answered { Token::Packet } else { Token::Message(id) };
        link.send(buf, len, token.to_u64()).map_err(|(error, buf)| {
            self.ops[id].todo = PendingSteps::Packet(buf, len);
            error
        })
    }

    fn advance_message(&mut self, id: u32, message: RxmMessage) -> Result {
        let op = &self.ops[id];
        if message.tagged && !self.knows(op.conn, op.flags, message.tag) {
            return Err(Error::OPNOTSUPP);
        }
        let len = message.buf.len();
        let config = &self.common.config;
        let (eager, sar) = (config.eager_limit, config.sar_limit);
        // Other libraries do not fetch a message of no bytes, and never say that they have it.
        let announced = message.notified && (len > 0 || self.conns[op.conn].ours);
        // A small message is delivered when the peer's core has received it: it may be buffered
        // there for a later receive (FI_DELIVERY_COMPLETE, fi_cq(3)).
        let result = if announced {
            self.announce(id, &message)
        } else if len <= eager {
            self.send_part(
                id,
                &message,
                message.header(PacketKind::Eager),
                0,
                len,
                Token::Message(id),
            )
        } else if len <= sar {
            return self.send_segments(id, message);
        } else {
            self.announce(id, &message)
        };
        if result.is_err() {
            // The message is sent again when there is room, or another connection takes it.
            self.ops[id].todo = PendingSteps::Send(message);
        }
        result
    }

    /// Sends one packet with `len` bytes of a message from `from` on.
    fn send_part(
        &mut self,
        id: u32,
        message: &RxmMessage,
        mut header: RxmHeader,
        from: usize,
        len: usize,
        token: Token,
    ) -> Result {
        let mut buf = self.buffer()?;
        let conn = &self.conns[self.ops[id].conn];
        let Some(link) = &conn.ep else { return Err(Error::NOTCONN) };
        header.conn_id = conn.remote_id;
        header.write(&mut buf);
        let total = HEADER_LEN + len;
        // The core delivers in order: of a message in segments the last one is enough.
        let last = from + len == message.buf.len();
        let deliver = last && message.deliver && self.common.core_delivers;
        let whole = matches!(token, Token::Message(_)) && !deliver;
        if whole && total <= self.common.core_inject {
            // A message that had to wait goes the same way as one that had not, so that none
            // overtakes another.
            message.buf.copy_to(from, &mut buf[HEADER_LEN..total]);
            let result = link.inject(&buf[..total]);
            self.release(Some(buf));
            return result.map(|()| self.sent(id));
        }
        let token = token.to_u64();
        let sent = if len >= DIRECT_MIN && !deliver && self.may_go_direct(&message.buf) {
            ofi_provider::log!(&RXM, DEBUG, EP_DATA, "sending {len} bytes from where it is");
            let part = message.buf.part(from, len);
            link.send_with(buf, HEADER_LEN, &part, &[], 0, token)
        } else if deliver {
            message.buf.copy_to(from, &mut buf[HEADER_LEN..total]);
            let none = message.buf.part(from, 0);
            link.send_with(buf, total, &none, &[], FI_DELIVERY_COMPLETE, token)
        } else {
            message.buf.copy_to(from, &mut buf[HEADER_LEN..total]);
            link.send(buf, total, token)
        };
        sent.map_err(|(error, buf)| {
            self.release(Some(buf));
            error
        })
    }

    fn send_segments(&mut self, id: u32, mut message: RxmMessage) -> Result {
        let (len, most) = (message.buf.len(), self.common.config.eager_limit);
        if message.sent == 0 {
            ofi_provider::log!(&RXM, DEBUG, EP_DATA, "sending {len} bytes in segments of {most}");
        }
        while message.sent < len {
            let part = (len - message.sent).min(most);
            let which = match message.sent {
                0 => SegmentPart::First,
                sent if sent + part == len => SegmentPart::Last,
                _ => SegmentPart::Middle,
            };
            let mut header = message.header(PacketKind::Segment);
            header.seg_size = part as u16;
            header.seg_no = message.segments;
            header.msg_id = u64::from(id);
            header.ctrl_data = which as u64;
            if let Err(error) =
                self.send_part(id, &message, header, message.sent, part, Token::Segment(id))
            {
                self.ops[id].todo = PendingSteps::Send(message);
                return Err(error);
            }
            self.ops[id].outstanding += 1;
            message.sent += part;
            message.segments += 1;
        }
        Ok(())
    }

    /// Sends the RTS of a message to be read by its receiver.
    fn announce(&mut self, id: u32, message: &RxmMessage) -> Result {
        let common = self.common.clone();
        let mut segments = RemoteSegments::EMPTY;
        if message.buf.is_empty() {
            // A message of no bytes has nothing to fetch.
        } else if common.config.rndv_write {
            segments.push(RemoteSegment {
                addr: 0,
                len: message.buf.len() as u64,
                key: FI_KEY_NOTAVAIL,
            })?;
        } else {
            if self.ops[id].regions.is_empty() {
                let access = FI_READ | FI_WRITE | FI_REMOTE_READ;
                let regions = common.domain.register_send(&message.buf, access, || common.key())?;
                self.ops[id].regions = regions;
            }
            for region in &self.ops[id].regions {
                let (addr, len) = (region.base(), region.len() as u64);
                segments.push(RemoteSegment { addr, len, key: region.key() })?;
            }
        }
        let mut buf = self.buffer()?;
        let conn = &self.conns[self.ops[id].conn];
        let mut header = message.header(PacketKind::RndvRequest);
        header.conn_id = conn.remote_id;
        header.msg_id = u64::from(id);
        header.write(&mut buf);
        write_segments(&segments, &mut buf[HEADER_LEN..]);
        let Some(link) = &conn.ep else { return Err(Error::NOTCONN) };
        let sent = link.send(buf, HEADER_LEN + SEGMENTS_LEN, Token::Packet.to_u64());
        if let Err((error, buf)) = sent {
            self.release(Some(buf));
            return Err(error);
        }
        let how = if common.config.rndv_write { "written" } else { "read" };
        let len = message.buf.len();
        ofi_provider::log!(&RXM, DEBUG, EP_DATA, "announced {len} bytes to be {how}");
        self.ops[id].todo = PendingSteps::Announced(message.clone());
        Ok(())
    }

    /// Handles the receiver's notification of the receipt of an announced message. Returns false if
    /// there is no such message.
    pub(super) fn message_fetched(&mut self, conn: u32, msg_id: u64) -> bool {
        let Some(id) = self.on_rts(conn, msg_id) else { return false };
        self.finish_op(id, Ok(()));
        true
    }

    /// Handles a receiver's request to write an announced message there. False if there is no such
    /// message, or it cannot be written there.
    pub(super) fn deliver_to(&mut self, conn: u32, header: &RxmHeader, to: RemoteSegments) -> bool {
        let Some(id) = self.on_rts(conn, header.msg_id) else { return false };
        let op = &mut self.ops[id];
        let PendingSteps::Announced(message) = &op.todo else { return false };
        let buf = message.buf.clone();
        let delivers = message.deliver && self.common.core_delivers;
        // The packet following the writes reports their end; nothing else waits for them.
        let level = if delivers { FI_DELIVERY_COMPLETE } else { FI_INJECT_COMPLETE };
        if !to.total().is_ok_and(|total| total <= buf.len()) {
            return false;
        }
        op.todo = PendingSteps::Deliver { buf, to, next: 0, written: 0, header: *header, level };
        if self.is_ready_for_urgent(conn) {
            match self.advance(id) {
                Ok(()) => return true,
                Err(Error::AGAIN) => self.stall(conn),
                // The message ends with the connection, whose end the core is about to report.
                Err(Error::NOTCONN | Error::SHUTDOWN | Error::CONNRESET) => self.look_now = true,
                Err(error) => {
                    self.give_up(id, conn, error);
                    return true;
                }
            }
        }
        self.conns[conn].urgent.push_back(Waiting::Op(id));
        true
    }

    /// Returns true if responses on a connection belong to transfers already failed.
    pub(super) fn is_given_up(&self, conn: u32) -> bool {
        self.conns.get(conn).is_some_and(|conn| conn.given_up)
    }

    fn on_rts(&self, conn: u32, msg_id: u64) -> Option<u32> {
        let id = u32::try_from(msg_id).ok()?;
        let op = self.ops.get(id)?;
        (op.conn == conn && matches!(op.todo, PendingSteps::Announced(_))).then_some(id)
    }

    fn advance_delivery(&mut self, id: u32) -> Result {
        let common = self.common.clone();
        loop {
            let op = &mut self.ops[id];
            let PendingSteps::Deliver { buf, to, next, written, header, level } = &op.todo else {
                return Ok(());
            };
            let (next, written, header, level) = (*next, *written, *header, *level);
            let Some(segment) = to.as_slice().get(next).copied() else {
                if op.outstanding == 0 {
                    self.delivered(id, &header);
                }
                return Ok(());
            };
            let part = buf.part(written, segment.len as usize);
            let mut regions = Vec::new();
            if common.domain.wants_local() {
                regions = common.domain.register_send(&part, FI_WRITE, || common.key())?;
            }
            let Some(link) = &self.conns[op.conn].ep else { return Err(Error::NOTCONN) };
            let token = Token::Deliver(id).to_u64();
            link.write(&part, &regions, &[segment], 0, level, token)?;
            let op = &mut self.ops[id];
            op.regions.append(&mut regions);
            op.outstanding += 1;
            if let PendingSteps::Deliver { next, written, .. } = &mut op.todo {
                *next += 1;
                *written += part.len();
            }
        }
    }

    /// Notifies the receiver of the completed write of its message.
    fn delivered(&mut self, id: u32, to: &RxmHeader) {
        let conn = self.ops[id].conn;
        let mut header = RxmHeader::of(PacketKind::RndvWriteDone, 0);
        (header.msg_id, header.ctrl_data) = (to.msg_id, to.ctrl_data);
        self.send_control(conn, header, None);
        self.finish_op(id, Ok(()));
    }

    fn advance_rma(&mut self, id: u32, todo: &PendingSteps) -> Result {
        let common = self.common.clone();
        let conn = self.ops[id].conn;
        let local = common.domain.wants_local();
        if local && self.ops[id].regions.is_empty() {
            self.ops[id].regions = match todo {
                PendingSteps::Read { buf, .. } => {
                    common.domain.register_recv(buf, FI_READ, || common.key())?
                }
                PendingSteps::Write { buf, .. } => {
                    common.domain.register_send(buf, FI_WRITE, || common.key())?
                }
                _ => Vec::new(),
            };
        }
        let regions = &self.ops[id].regions;
        let Some(link) = &self.conns[conn].ep else { return Err(Error::NOTCONN) };
        let token = Token::Rma(id).to_u64();
        match todo {
            PendingSteps::Read { buf, from } => link.read(buf, regions, from.as_slice(), 0, token),
            PendingSteps::Write { buf, to, data, flags } => {
                link.write(buf, regions, to.as_slice(), *data, *flags, token)
            }
            _ => Ok(()),
        }
    }

    /// Sends a control packet of the provider, outside the order of messages.
    pub(super) fn send_control(
        &mut self,
        id: u32,
        header: RxmHeader,
        segments: Option<&RemoteSegments>,
    ) {
        // Without memory for a packet the peer waits until the connection ends.
        let Ok(mut buf) = self.buffer() else { return };
        let mut len = 0;
        if let Some(segments) = segments {
            write_segments(segments, &mut buf[HEADER_LEN..]);
            len = SEGMENTS_LEN;
        }
        self.send_made(id, header, buf, len);
    }

    /// Sends a packet with its payload of `len` bytes already in the buffer.
    pub(super) fn send_made(
        &mut self,
        id: u32,
        mut header: RxmHeader,
        mut buf: CoreBuf,
        len: usize,
    ) {
        let Some(conn) = self.conns.get(id) else {
            self.release(Some(buf));
            return;
        };
        header.conn_id = conn.remote_id;
        header.write(&mut buf);
        let ready = self.is_ready_for_urgent(id);
        self.send_packet(id, buf, HEADER_LEN + len, ready);
    }

    fn send_packet(&mut self, id: u32, buf: CoreBuf, len: usize, ready: bool) {
        let token = Token::Packet;
        let Some(link) = self.conns[id].ep.as_ref().filter(|_| ready) else {
            self.conns[id].urgent.push_back(Waiting::Packet(buf, len, token));
            return;
        };
        if let Err((error, buf)) = link.send(buf, len, token.to_u64()) {
            if error == Error::AGAIN {
                self.conns[id].urgent.push_back(Waiting::Packet(buf, len, token));
                self.stall(id);
            } else {
                self.release(Some(buf));
            }
        }
    }

    /// Sends the transfers queued in a connection, as far as the core has space.
    pub(super) fn flush(&mut self, id: u32) {
        self.grant(id);
        loop {
            let Some(conn) = self.conns.get_mut(id) else { return };
            conn.fenced = false;
            let urgent = !conn.urgent.is_empty();
            let queue = if urgent { &mut conn.urgent } else { &mut conn.waiting };
            let Some(waiting) = queue.pop_front() else { return };
            if let Waiting::Op(op) = waiting
                && !urgent
                && self.is_fenced_off(op)
            {
                let conn = &mut self.conns[id];
                conn.fenced = true;
                conn.waiting.push_front(waiting);
                return;
            }
            let Some(conn) = self.conns.get_mut(id) else { return };
            let result = match waiting {
                Waiting::Op(op) => self.advance(op).map_err(|error| (error, Waiting::Op(op))),
                Waiting::RendezvousGet(fetch) => self
                    .advance_fetch(fetch)
                    .map_err(|error| (error, Waiting::RendezvousGet(fetch))),
                Waiting::Packet(mut buf, len, token) => {
                    // The packet may have been made before the peer had named the connection: a
                    // peer may send before this side knows that the connection is made.
                    wire::name_conn(&mut buf, conn.remote_id);
                    let sent = match &conn.ep {
                        Some(link) => link.send(buf, len, token.to_u64()),
                        None => return,
                    };
                    sent.map_err(|(error, buf)| (error, Waiting::Packet(buf, len, token)))
                }
            };
            match result {
                Ok(()) => {}
                Err((Error::AGAIN, waiting)) => {
                    if let Some(conn) = self.conns.get_mut(id) {
                        conn.put_back(waiting, urgent);
                        self.stall(id);
                    }
                    return;
                }
                Err((Error::NOTCONN | Error::SHUTDOWN | Error::CONNRESET, waiting)) => {
                    // The core still has parts of the transfer; when it reports the end of the
                    // connection, all that waits there ends.
                    if let Some(conn) = self.conns.get_mut(id) {
                        conn.put_back(waiting, urgent);
                    }
                    self.look_now = true;
                    return;
                }
                Err((error, Waiting::Op(op))) => self.give_up(op, id, error),
                Err((error, Waiting::RendezvousGet(fetch))) => self.fetch_failed(fetch, error),
                Err((_, Waiting::Packet(buf, ..))) => self.release(Some(buf)),
            }
        }
    }

    /// Retries the transfers blocked on space in the core.
    #[cold]
    pub(super) fn retry_stalled(&mut self) {
        for id in std::mem::take(&mut self.stalled) {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.stalled = false;
                self.flush(id);
            }
        }
    }

    /// Handles a completed transfer of the core's.
    #[inline(never)]
    pub(super) fn completed(&mut self, done: Done) {
        let Some(token) = done.token else {
            if done.error.is_none() {
                self.peer_wrote(&done);
            }
            return;
        };
        let result = done.error.map_or(Ok(()), Err);
        match Token::from_u64(token) {
            Token::Rx(conn) => self.packet_came(conn, done),
            Token::Message(id) => {
                self.release(done.buf);
                match result {
                    Ok(()) => self.sent(id),
                    Err(error) => self.finish_op(id, Err(error)),
                }
            }
            Token::Rma(id) => {
                self.release(done.buf);
                self.finish_op(id, result);
            }
            Token::Packet => self.release(done.buf),
            Token::Segment(id) | Token::Deliver(id) => {
                self.release(done.buf);
                self.part_done(id, result);
            }
            Token::RendezvousGet(id) => self.fetch_part_done(id, done.buf, done.error),
        }
    }

    /// Called when the only packet of a transfer has left.
    #[inline]
    fn sent(&mut self, id: u32) {
        if self.ops.get(id).is_some_and(|op| op.answer.is_none()) {
            self.finish_op(id, Ok(()));
        }
    }

    /// Handles the completion or failure of a segment of a message, or of one of its writes. The
    /// message ends when all its parts have, and fails if one of them did.
    fn part_done(&mut self, id: u32, result: Result) {
        let Some(op) = self.ops.get_mut(id) else { return };
        op.outstanding -= 1;
        if let Err(error) = result {
            self.part_failed(id, error);
        }
        let Some(op) = self.ops.get(id).filter(|op| op.outstanding == 0) else { return };
        match &op.todo {
            PendingSteps::Wait => self.finish_op(id, Ok(())),
            PendingSteps::Failed(error) => {
                let (conn, error) = (op.conn, *error);
                self.finish_op(id, Err(error));
                // The receiver's message will never be complete. The end of the connection notifies
                // the receiver.
                self.ended(conn, error);
            }
            PendingSteps::Deliver { to, next, header, .. } if *next == to.as_slice().len() => {
                let header = *header;
                self.delivered(id, &header);
            }
            _ => {}
        }
    }

    /// Stops sending a transfer with a failed part, and removes it from its connection's queue. The
    /// first error of its parts is the one reported.
    #[cold]
    fn part_failed(&mut self, id: u32, error: Error) {
        let op = &mut self.ops[id];
        if matches!(op.todo, PendingSteps::Failed(_)) {
            return;
        }
        op.todo = PendingSteps::Failed(error);
        if let Some(conn) = self.conns.get_mut(op.conn) {
            let is_other = |of: &Waiting| !matches!(of, Waiting::Op(of) if *of == id);
            conn.waiting.retain(is_other);
            conn.urgent.retain(is_other);
        }
    }

    /// Ends a transfer, and reports it.
    #[inline]
    pub(super) fn finish_op(&mut self, id: u32, result: Result) {
        let Some(mut op) = self.drop_op(id) else { return };
        op.flags &= !TIMED;
        #[cfg(test)]
        match ofi_simulation::injected() {
            Some(ofi_simulation::InjectedFault::LostCompletion) => return,
            Some(ofi_simulation::InjectedFault::SecondCompletion) => {
                self.report(Completion::of(op.context, op.flags, op.len), op.report, result);
            }
            _ => {}
        }
        self.report(Completion::of(op.context, op.flags, op.len), op.report, result);
    }

    /// Forgets a transfer.
    #[inline]
    fn drop_op(&mut self, id: u32) -> Option<TxOp> {
        let mut op = self.ops.remove(id)?;
        if op.flags & TIMED != 0 {
            self.times.end();
        }
        if let Some(conn) = self.conns.get_mut(op.conn) {
            conn.ops -= 1;
            conn.atomics -= usize::from(op.answer.is_some());
            if conn.fenced {
                self.stall(op.conn);
            }
        }
        if let PendingSteps::Packet(buf, _) | PendingSteps::WriteCopy { bytes: buf, .. } =
            std::mem::replace(&mut op.todo, PendingSteps::Wait)
        {
            self.release(Some(buf));
        }
        if op.copy.is_some() {
            // The memory must not be registered any more when another transfer gets this entry.
            op.regions.clear();
            self.release(op.copy.take());
        }
        Some(op)
    }

    /// Fails the transfers waiting only for the peer of a connection.
    #[cold]
    pub(super) fn fail_awaiting(&mut self, conn: u32, error: Error) {
        let awaits = |op: &TxOp| {
            let of_peer = matches!(op.todo, PendingSteps::Announced(_))
                || (op.answer.is_some() && matches!(op.todo, PendingSteps::Wait));
            op.conn == conn && op.outstanding == 0 && of_peer
        };
        for id in self.ops.indices(awaits) {
            self.finish_op(id, Err(error));
        }
    }

    /// Fails the transfers of a closed connection, in the order of posting.
    pub(super) fn fail_ops_of(&mut self, conn: u32, error: Error) {
        for id in self.ops.indices(|op| op.conn == conn) {
            self.finish_op(id, Err(error));
        }
    }
}
