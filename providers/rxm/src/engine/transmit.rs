//! Transfers in progress: their packets, segments and accesses, and their end.
use super::common::Common;
use super::conn::{Link, Token, Waiting};
use super::conns::RxmConns;
use super::pending::{MessageWay, PendingSteps, RxmMessage, TxOp};
use crate::provider::RXM;
use crate::wire::{
    self, HEADER_LEN, PacketKind, RxmHeader, SEGMENTS_LEN, SegmentPart, read_answer, write_segments,
};
use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_COMMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_INJECT, FI_INJECT_COMPLETE,
    FI_KEY_NOTAVAIL, FI_MATCH_COMPLETE, FI_MSG, FI_READ, FI_REMOTE_READ, FI_SEND, FI_TAGGED,
    FI_TRANSMIT_COMPLETE, FI_WRITE,
};
use ofi_provider::api::{Bindings, RemoteSegment, RemoteSegments, SendOp};
use ofi_provider::buf::SendBuf;
use ofi_provider::closing::Undelivered;
use ofi_provider::completions::TxCompletions;
use ofi_provider::core_provider::{CoreBuf, CoreEndpoint};
use ofi_provider::cq::{Completion, CompletionError, Cq};
use ofi_provider::error::{Error, Result};
use ofi_provider::peers::PeerTable;
use ofi_provider::reserved::{INTERNAL_OP, TIMED};
use ofi_provider::slab::{NONE, Slab};
use ofi_provider::stats::{EndpointErrors, EndpointStats, TransferTimes};
use std::ops::{Deref, Index, IndexMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A message of so many bytes or more is sent from the application's buffer rather than as a copy.
pub(crate) const DIRECT_MIN: usize = 4096;

/// Completion levels waiting until the peer's endpoint has the message (fi_cq(3)).
pub(super) const DELIVERED: u64 =
    FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;

/// Time limit of operations waiting for a disconnected peer: the response may follow messages about to be
/// received by the application.
const ENDED_TIMEOUT: Duration = Duration::from_secs(3);

/// The incomplete transfers of an endpoint.
pub(crate) struct RxmTransmit {
    pub(super) common: Arc<Common>,
    pub(super) ops: Slab<TxOp>,
    /// Completion sink of transfers. Receives, and peers' accesses to local memory, are reported by
    /// the matching engine.
    completions: TxCompletions,
    /// Reported errors and lost connections, and durations of transfers, for the statistics page.
    errors: EndpointErrors,
    times: TransferTimes,
    /// Number of the last message in segments, if they may arrive in any order.
    segmented: u32,
}

impl Deref for RxmTransmit {
    type Target = Slab<TxOp>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.ops
    }
}

impl Index<u32> for RxmTransmit {
    type Output = TxOp;

    #[inline(always)]
    fn index(&self, id: u32) -> &TxOp {
        &self.ops[id]
    }
}

impl IndexMut<u32> for RxmTransmit {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut TxOp {
        &mut self.ops[id]
    }
}

/// Returns true if an error of the core means the end of the connection.
pub(super) fn is_end(error: Error) -> bool {
    matches!(error, Error::NOTCONN | Error::SHUTDOWN | Error::CONNRESET)
}

impl RxmTransmit {
    pub(super) fn new(common: Arc<Common>) -> Self {
        Self {
            common,
            ops: Slab::default(),
            completions: TxCompletions::default(),
            errors: EndpointErrors::default(),
            times: TransferTimes::default(),
            segmented: 0,
        }
    }

    /// Takes over the completion queue and counters bound for transmits.
    pub(crate) fn bind(&mut self, bindings: &Bindings) {
        self.completions.clone_from(&bindings.completions.tx);
    }

    /// Returns true if another completion can be reported, if one is wanted.
    #[inline(always)]
    pub(super) fn has_space(&self, wanted: bool) -> bool {
        self.completions.has_space(wanted)
    }

    /// Reports a transfer completed at its start.
    #[inline(always)]
    pub(super) fn succeeded(&self, of: Completion, wanted: bool) {
        self.completions.succeeded(of, wanted);
    }

    /// Returns the queue of the completions.
    pub(super) fn cq(&self) -> Option<&Arc<Cq>> {
        self.completions.cq()
    }

    /// Reports nothing from now on.
    pub(super) fn mute(&mut self) {
        self.completions.mute();
    }

    /// Leaves the completion queue and the counters.
    pub(super) fn close(&mut self) {
        self.completions.close();
    }

    /// Records the loss of a connection to this peer.
    pub(super) fn note_lost(&mut self, error: Error, peer: Option<String>) {
        self.errors.lost(self.completions.trace_ids(), error, peer);
    }

    /// Adds the errors and durations to an endpoint's statistics.
    pub(super) fn show(&self, of: &mut EndpointStats) {
        of.latency = self.times.classes();
        self.errors.show(of);
    }

    /// Adds a transfer.
    #[inline]
    pub(super) fn insert(&mut self, op: TxOp) -> u32 {
        self.ops.insert(op)
    }

    /// Starts the measurement of a transfer's duration, if it is to be measured.
    #[inline]
    pub(super) fn begin(&mut self, id: u32) {
        self.ops[id].flags |= self.times.begin();
    }

    /// Handles the answer to an atomic operation. False if no answer was awaited.
    pub(super) fn answered(
        &mut self,
        conns: &mut RxmConns,
        conn: u32,
        header: &RxmHeader,
        payload: &[u8],
    ) -> bool {
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
        self.finish_op(conns, id, result);
        true
    }

    /// Reports a completed or failed transfer.
    #[inline]
    pub(super) fn report(&mut self, of: Completion, wanted: bool, result: Result) {
        match result {
            Ok(()) => self.completions.done(of, wanted),
            Err(error) => {
                self.errors.add(error);
                self.completions.failed(CompletionError::new(of, error));
            }
        }
    }

    /// Returns true if a fenced transfer removed from the queue must keep waiting for others before
    /// it.
    pub(super) fn is_fenced_off(&self, conns: &RxmConns, id: u32) -> bool {
        let Some(op) = self.ops.get(id).filter(|op| op.fence) else { return false };
        let conn = &conns[op.conn];
        let waiting = conn.waiting.iter().filter(|w| matches!(w, Waiting::Op(_))).count();
        conn.ops > waiting + 1
    }

    /// Returns true if an eager message is sent from the application's buffer.
    #[inline]
    pub(super) fn goes_direct(&self, message: &RxmMessage) -> bool {
        message.buf.len() >= DIRECT_MIN && self.may_go_direct(&message.buf)
    }

    pub(super) fn may_go_direct(&self, buf: &SendBuf) -> bool {
        self.common.config.direct_send
            && !self.common.domain.wants_local()
            && buf.segments() < self.common.core_iov
    }

    /// Advances a transfer as far as possible. Fails with -FI_EAGAIN if there is more to do, but
    /// the core has no space.
    pub(super) fn advance(&mut self, conns: &mut RxmConns, id: u32) -> Result {
        let Some(op) = self.ops.get_mut(id) else { return Ok(()) };
        match std::mem::replace(&mut op.todo, PendingSteps::Wait) {
            PendingSteps::Wait => Ok(()),
            PendingSteps::Packet(buf, len) => self.advance_packet(conns, id, buf, len),
            PendingSteps::Send(message) => self.advance_message(conns, id, message),
            todo @ (PendingSteps::Announced(_) | PendingSteps::Failed(_)) => {
                op.todo = todo;
                Ok(())
            }
            todo @ PendingSteps::Deliver { .. } => {
                op.todo = todo;
                self.advance_delivery(conns, id)
            }
            PendingSteps::WriteCopy { bytes, to, data, flags } => {
                let conn = self.via(conns, id);
                let flags = self.write_level(flags);
                let Some(link) = &conns[conn].ep else { return Err(Error::NOTCONN) };
                let token = Token::Rma(id).to_u64();
                link.write_own(bytes, to.as_slice(), data, flags, token).map_err(
                    |(error, bytes)| {
                        self.ops[id].todo = PendingSteps::WriteCopy { bytes, to, data, flags };
                        self.leave_via(id, error)
                    },
                )
            }
            todo => {
                let result = self.advance_rma(conns, id, &todo);
                let result = result.map_err(|error| self.leave_via(id, error));
                if let (Err(_), Some(op)) = (result, self.ops.get_mut(id)) {
                    op.todo = todo;
                }
                result
            }
        }
    }

    /// Returns the connection for the parts of a transfer without an order.
    fn via(&mut self, conns: &mut RxmConns, id: u32) -> u32 {
        let op = &mut self.ops[id];
        if op.via == NONE {
            op.via = conns.spread(op.conn);
        }
        op.via
    }

    /// Returns the flags of a write. With several connections it completes after the peer has
    /// performed it: nothing on another connection then overtakes it.
    fn write_level(&self, flags: u64) -> u64 {
        match self.common.config.num_msg_eps > 1 && self.common.core_delivers {
            true => flags & !FI_INJECT_COMPLETE | FI_DELIVERY_COMPLETE,
            false => flags,
        }
    }

    /// Handles a failed start of a transfer on a connection ended without an event yet: the first
    /// connection is tried next.
    fn leave_via(&mut self, id: u32, error: Error) -> Error {
        let op = &mut self.ops[id];
        if op.via == op.conn || !is_end(error) {
            return error;
        }
        op.via = op.conn;
        Error::AGAIN
    }

    /// Returns true if transfers use a further connection.
    pub(super) fn has_via(&self, conn: u32) -> bool {
        self.ops.iter().any(|(_, op)| op.via == conn)
    }

    /// Sends a packet, complete except for the connection's number.
    pub(super) fn advance_packet(
        &mut self,
        conns: &mut RxmConns,
        id: u32,
        mut buf: CoreBuf,
        len: usize,
    ) -> Result {
        let conn = &conns[self.ops[id].conn];
        let link = conn.ep.as_ref().ok_or(Error::NOTCONN)?;
        wire::name_conn(&mut buf, conn.remote_id);
        if len <= self.common.core_inject {
            match link.inject(&buf[..len]) {
                Ok(()) => {
                    conns.release(Some(buf));
                    self.sent(conns, id);
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

    pub(super) fn advance_message(
        &mut self,
        conns: &mut RxmConns,
        id: u32,
        message: RxmMessage,
    ) -> Result {
        let op = &self.ops[id];
        if message.tagged && !conns.knows(op.conn, op.flags, message.tag) {
            return Err(Error::OPNOTSUPP);
        }
        let len = message.buf.len();
        let config = &self.common.config;
        let (eager, sar) = (config.eager_limit, config.sar_limit);
        // A small message is delivered when the peer's core has received it: it may be buffered
        // there for a later receive (FI_DELIVERY_COMPLETE, fi_cq(3)).
        let other = match message.way {
            MessageWay::BySize => None,
            way => self.advance_other(conns, id, &message, way),
        };
        let result = if let Some(result) = other {
            result
        } else if len <= eager {
            self.send_part(
                conns,
                id,
                &message,
                message.header(PacketKind::Eager),
                0,
                len,
                Token::Message(id),
            )
        } else if len <= sar {
            return self.send_segments(conns, id, message);
        } else {
            self.announce(conns, id, &message)
        };
        if result.is_err() {
            // The message is sent again when there is room, or another connection takes it.
            self.ops[id].todo = PendingSteps::Send(message);
        }
        result
    }

    /// Sends one packet with `len` bytes of a message from `from` on.
    pub(super) fn send_part(
        &mut self,
        conns: &mut RxmConns,
        id: u32,
        message: &RxmMessage,
        mut header: RxmHeader,
        from: usize,
        len: usize,
        token: Token,
    ) -> Result {
        let mut buf = conns.buffer()?;
        let op = &self.ops[id];
        let via = if from == 0 || op.via == NONE { op.conn } else { op.via };
        let Some(link) = &conns[via].ep else { return Err(Error::NOTCONN) };
        header.conn_id = conns[op.conn].remote_id;
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
            conns.release(Some(buf));
            return result.map(|()| self.sent(conns, id));
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
            conns.release(Some(buf));
            error
        })
    }

    pub(super) fn send_segments(
        &mut self,
        conns: &mut RxmConns,
        id: u32,
        mut message: RxmMessage,
    ) -> Result {
        let (len, most) = (message.buf.len(), self.common.config.eager_limit);
        if message.sent == 0 {
            ofi_provider::log!(&RXM, DEBUG, EP_DATA, "sending {len} bytes in segments of {most}");
            if conns.num_msg_eps() > 1 {
                // The number of the transfer may be reused while segments are on their way.
                self.segmented = self.segmented.wrapping_add(1);
                message.number = self.segmented;
            }
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
            header.msg_id = u64::from(message.number) << 32 | u64::from(id);
            header.ctrl_data = which as u64;
            if message.sent > 0 && !message.deliver {
                // The delivery of the last segment proves that of all only on one connection.
                self.via(conns, id);
            }
            if let Err(error) =
                self.send_part(conns, id, &message, header, message.sent, part, Token::Segment(id))
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
    pub(super) fn announce(
        &mut self,
        conns: &mut RxmConns,
        id: u32,
        message: &RxmMessage,
    ) -> Result {
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
        let mut buf = conns.buffer()?;
        let conn = &conns[self.ops[id].conn];
        let mut header = message.header(PacketKind::RndvRequest);
        header.conn_id = conn.remote_id;
        header.msg_id = u64::from(id);
        header.write(&mut buf);
        write_segments(&segments, &mut buf[HEADER_LEN..]);
        let Some(link) = &conn.ep else { return Err(Error::NOTCONN) };
        let sent = link.send(buf, HEADER_LEN + SEGMENTS_LEN, Token::Packet.to_u64());
        if let Err((error, buf)) = sent {
            conns.release(Some(buf));
            return Err(error);
        }
        let how = if common.config.rndv_write { "written" } else { "read" };
        let len = message.buf.len();
        ofi_provider::log!(&RXM, DEBUG, EP_DATA, "announced {len} bytes to be {how}");
        self.ops[id].todo = PendingSteps::Announced(message.clone());
        Ok(())
    }

    /// Handles the receiver's notification of the receipt of an announced message, or of a failed
    /// read of it. Returns false if there is no such message.
    pub(super) fn message_fetched(
        &mut self,
        conns: &mut RxmConns,
        conn: u32,
        header: &RxmHeader,
    ) -> bool {
        let Some(id) = self.on_rts(conn, header.msg_id) else { return false };
        let error = header.fetch_error().filter(|_| conns[conn].ours);
        self.finish_op(conns, id, error.map_or(Ok(()), |code| Err(Error::from_code(code))));
        true
    }

    pub(super) fn on_rts(&self, conn: u32, msg_id: u64) -> Option<u32> {
        let id = u32::try_from(msg_id).ok()?;
        let op = self.ops.get(id)?;
        (op.conn == conn && matches!(op.todo, PendingSteps::Announced(_))).then_some(id)
    }

    pub(super) fn advance_delivery(&mut self, conns: &mut RxmConns, id: u32) -> Result {
        let common = self.common.clone();
        loop {
            let op = &mut self.ops[id];
            let PendingSteps::Deliver { buf, to, next, written, header, level } = &op.todo else {
                return Ok(());
            };
            let (next, written, header, level) = (*next, *written, *header, *level);
            let Some(segment) = to.as_slice().get(next).copied() else {
                if op.outstanding == 0 {
                    self.delivered(conns, id, &header);
                }
                return Ok(());
            };
            let part = buf.part(written, segment.len as usize);
            let mut regions = Vec::new();
            if common.domain.wants_local() {
                regions = common.domain.register_send(&part, FI_WRITE, || common.key())?;
            }
            let via = self.via(conns, id);
            // The packet reporting the end takes the first connection.
            let level = self.write_level(level);
            let Some(link) = &conns[via].ep else { return Err(Error::NOTCONN) };
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
    pub(super) fn delivered(&mut self, conns: &mut RxmConns, id: u32, to: &RxmHeader) {
        let conn = self.ops[id].conn;
        let mut header = RxmHeader::of(PacketKind::RndvWriteDone, 0);
        (header.msg_id, header.ctrl_data) = (to.msg_id, to.ctrl_data);
        conns.send_control(conn, header, None);
        self.finish_op(conns, id, Ok(()));
    }

    pub(super) fn advance_rma(
        &mut self,
        conns: &mut RxmConns,
        id: u32,
        todo: &PendingSteps,
    ) -> Result {
        let common = self.common.clone();
        let conn = self.via(conns, id);
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
        let Some(link) = &conns[conn].ep else { return Err(Error::NOTCONN) };
        let token = Token::Rma(id).to_u64();
        match todo {
            PendingSteps::Read { buf, from } => link.read(buf, regions, from.as_slice(), 0, token),
            PendingSteps::Write { buf, to, data, flags } => {
                let flags = self.write_level(*flags);
                link.write(buf, regions, to.as_slice(), *data, flags, token)
            }
            _ => Ok(()),
        }
    }

    /// Called when the only packet of a transfer has left.
    #[inline]
    pub(super) fn sent(&mut self, conns: &mut RxmConns, id: u32) {
        if self.ops.get(id).is_some_and(|op| op.answer.is_none()) {
            self.finish_op(conns, id, Ok(()));
        }
    }

    /// Stops sending a transfer with a failed part, and removes it from its connection's queue. The
    /// first error of its parts is the one reported.
    #[cold]
    pub(super) fn part_failed(&mut self, conns: &mut RxmConns, id: u32, error: Error) {
        let op = &mut self.ops[id];
        if matches!(op.todo, PendingSteps::Failed(_)) {
            return;
        }
        op.todo = PendingSteps::Failed(error);
        if let Some(conn) = conns.get_mut(op.conn) {
            let is_other = |of: &Waiting| !matches!(of, Waiting::Op(of) if *of == id);
            conn.waiting.retain(is_other);
            conn.urgent.retain(is_other);
        }
    }

    /// Ends a transfer, and reports it.
    #[inline]
    pub(super) fn finish_op(&mut self, conns: &mut RxmConns, id: u32, result: Result) {
        let Some(mut op) = self.drop_op(conns, id) else { return };
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
    pub(super) fn drop_op(&mut self, conns: &mut RxmConns, id: u32) -> Option<TxOp> {
        let mut op = self.ops.remove(id)?;
        if op.flags & TIMED != 0 {
            self.times.end();
        }
        if let Some(conn) = conns.get_mut(op.conn) {
            conn.ops -= 1;
            conn.atomics -= usize::from(op.answer.is_some());
            if conn.fenced {
                conns.stall(op.conn);
            }
        }
        if let PendingSteps::Packet(buf, _) | PendingSteps::WriteCopy { bytes: buf, .. } =
            std::mem::replace(&mut op.todo, PendingSteps::Wait)
        {
            conns.release(Some(buf));
        }
        if op.copy.is_some() {
            // The memory must not be registered any more when another transfer gets this entry.
            op.regions.clear();
            conns.release(op.copy.take());
        }
        Some(op)
    }

    /// Fails the transfers waiting only for the peer of a connection.
    #[cold]
    pub(super) fn fail_awaiting(&mut self, conns: &mut RxmConns, conn: u32, error: Error) {
        let awaits = |op: &TxOp| {
            let of_peer = matches!(op.todo, PendingSteps::Announced(_))
                || (op.answer.is_some() && matches!(op.todo, PendingSteps::Wait));
            op.conn == conn && op.outstanding == 0 && of_peer
        };
        for id in self.ops.indices(awaits) {
            self.finish_op(conns, id, Err(error));
        }
    }

    /// Fails the transfers of a closed connection, in the order of posting.
    pub(super) fn fail_ops_of(&mut self, conns: &mut RxmConns, conn: u32, error: Error) {
        for id in self.ops.indices(|op| op.conn == conn) {
            self.finish_op(conns, id, Err(error));
        }
    }

    /// Creates the operation sending a message on a connection. Returns true if it may start now.
    // A frame of its own, of which calling a peer and the core have nothing.
    #[inline(never)]
    pub(super) fn send_on(
        &mut self,
        conns: &mut RxmConns,
        conn: u32,
        op: SendOp,
        tagged: bool,
    ) -> Result<(u32, bool)> {
        let len = op.buf.len();
        let inject = op.flags & FI_INJECT != 0;
        let deliver = op.flags & DELIVERED != 0;
        let processed = op.flags & FI_DELIVERY_COMPLETE != 0 && !self.common.core_delivers;
        let eager = len <= self.common.config.eager_limit && !deliver;
        let copy = if inject && !eager { Some(conns.copy_of(&op.buf)?) } else { None };
        let flags = FI_SEND | if tagged { FI_TAGGED } else { FI_MSG };
        let way = match op.flags & FI_MATCH_COMPLETE != 0 || processed {
            true => MessageWay::Announced,
            false => MessageWay::BySize,
        };
        let (context, op_flags) = (op.context, op.flags);
        let buf = copy.as_ref().map_or(op.buf, |(_, buf)| buf.clone());
        let message = RxmMessage::new(SendOp { buf, ..op }, tagged, deliver, way);
        let ready = conns.may_go(conn, op_flags);
        if ready && tagged && !conns.knows(conn, op_flags, message.tag) {
            return Err(Error::OPNOTSUPP);
        }
        let mut packet = None;
        let total = HEADER_LEN + len;
        let direct = !inject && self.goes_direct(&message);
        if eager && !direct && (ready || inject) {
            let mut buf = conns.buffer()?;
            let mut header = message.header(PacketKind::Eager);
            header.conn_id = conns[conn].remote_id;
            header.write(&mut buf);
            message.buf.copy_to(0, &mut buf[HEADER_LEN..total]);
            packet = Some(PendingSteps::Packet(buf, total));
        }
        let todo = packet.unwrap_or(PendingSteps::Send(message));
        let id = self.ops.insert(TxOp {
            copy: copy.map(|(buffered, _)| buffered),
            len,
            ..TxOp::new(conn, context, flags, op_flags, todo)
        });
        conns[conn].sent.one(len);
        Ok((id, ready))
    }

    /// Returns the number of transfers allowed to start, of `size` in all.
    #[inline(always)]
    pub(crate) fn left(&self, size: usize) -> usize {
        size.saturating_sub(self.ops.len())
    }

    /// Handles the completion or failure of a segment of a message, or of one of its writes. The
    /// message ends when all its parts have, and fails if one of them did.
    ///
    /// Returns a connection to be ended, with the error: the receiver's message will never be
    /// complete, and the end of the connection notifies the receiver.
    pub(super) fn part_done(
        &mut self,
        conns: &mut RxmConns,
        id: u32,
        result: Result,
    ) -> Option<(u32, Error)> {
        let op = self.ops.get_mut(id)?;
        op.outstanding -= 1;
        if let Err(error) = result {
            self.part_failed(conns, id, error);
        }
        let op = self.ops.get(id).filter(|op| op.outstanding == 0)?;
        match &op.todo {
            PendingSteps::Wait => self.finish_op(conns, id, Ok(())),
            PendingSteps::Failed(error) => {
                let (conn, error) = (op.conn, *error);
                self.finish_op(conns, id, Err(error));
                return Some((conn, error));
            }
            PendingSteps::Deliver { to, next, header, .. } if *next == to.as_slice().len() => {
                let header = *header;
                self.delivered(conns, id, &header);
            }
            _ => {}
        }
        None
    }

    /// Ends a transfer permanently rejected by the core. Returns true if the core already has parts
    /// of it, using its memory: then the connection is to be ended instead.
    #[cold]
    pub(super) fn give_up(&mut self, conns: &mut RxmConns, id: u32, error: Error) -> bool {
        let has_parts = self.ops.get(id).is_some_and(|op| op.outstanding > 0);
        if !has_parts {
            self.finish_op(conns, id, Err(error));
        }
        has_parts
    }

    /// Checks connections with transfers in progress for a disconnect of the peer. The core's event
    /// follows all received data, possibly unread until the application posts receives for it.
    #[cold]
    pub(super) fn fail_ended(&mut self, conns: &mut RxmConns, now: Instant) {
        for id in conns.indices(|conn| conn.ops > 0 && conn.link == Link::Connected) {
            let conn = &mut conns[id];
            if !conn.ep.as_ref().is_some_and(CoreEndpoint::peer_has_ended) {
                conn.ended_at = None;
            } else if now.duration_since(*conn.ended_at.get_or_insert(now)) >= ENDED_TIMEOUT {
                conn.given_up = true;
                self.fail_awaiting(conns, id, Error::CONNRESET);
            }
        }
    }

    /// Returns the transfers complete for the application, or required by a known peer's
    /// operations, and not passed to the core yet.
    pub(super) fn undelivered(&self, conns: &RxmConns, peers: &PeerTable<()>) -> Undelivered {
        let is_due = |op: &TxOp| op.injected || op.flags & INTERNAL_OP != 0;
        let is_packet = |waiting: &Waiting| matches!(waiting, Waiting::Packet(..));
        let ops = self.ops.iter();
        let due =
            ops.filter(|(_, op)| is_due(op) && !matches!(op.todo, PendingSteps::Failed(_))).count();
        let mut all = Undelivered { operations: due, ..Undelivered::default() };
        for (_, conn) in conns.iter() {
            if peers.name_of(conn.peer) != FI_ADDR_NOTAVAIL {
                let waiting = conn.urgent.iter().chain(&conn.waiting);
                all.operations += waiting.filter(|waiting| is_packet(waiting)).count();
            }
            all.steps += usize::from(conn.link == Link::Connected);
            let is_awaited = matches!(
                conn.link,
                Link::Calling | Link::Accepting | Link::Refused | Link::Closing
            );
            all.connecting += usize::from(is_awaited && due > 0 && !conn.waiting.is_empty());
        }
        all
    }
}
