//! Sending: messages in one packet, in segments or by rendezvous, and remote memory access,
//! executed by the core.
//!
//! A transfer possible at once is started from the application's thread. Otherwise, without an
//! established connection or without space in the core, it waits in the connection. Queued
//! transfers leave in the order of posting.
use super::conn::{Link, Token, Waiting};
use super::ep::RxmEngineEp;
use super::pending::{PendingSteps, TxOp};
use super::transmit::DELIVERED;
use crate::wire::{
    self, ANSWER_LEN, AtomicHeader, HEADER_LEN, IOCS_LEN, OP_ATOMIC, OP_ATOMIC_COMPARE,
    OP_ATOMIC_FETCH, OP_MSG, OP_TAGGED, PacketKind, REMOTE_CQ_DATA, RxmHeader, write_iocs,
};
use ofi_provider::abi::{
    FI_ATOMIC, FI_COMMIT_COMPLETE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_FENCE, FI_INJECT,
    FI_INJECT_COMPLETE, FI_MSG, FI_READ, FI_REMOTE_CQ_DATA, FI_RMA, FI_SEND, FI_TAGGED,
    FI_TRANSMIT_COMPLETE, FI_WRITE,
};
use ofi_provider::api::{
    AtomicOp, FastSend, ReadOp, RemoteSegment, RemoteSegments, SendOp, WriteOp,
};
use ofi_provider::atomic;
use ofi_provider::core_provider::Done;
use ofi_provider::cq::Completion;
use ofi_provider::error::{Error, Result};
use ofi_provider::reserved::{INTERNAL_OP, WITH_DEVICES};
use ofi_provider::slab::NONE;

/// Flags of an operation excluding the fast path (`send_fast`).
const SPECIAL: u64 = FI_FENCE | DELIVERED | INTERNAL_OP | WITH_DEVICES;

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

    /// Fast path of a small message without special attributes, copied at once by the core: saves
    /// the record of the transfer. Returns none in any other case, and false if the core rejects it;
    /// then nothing has changed.
    #[inline(always)]
    fn send_fast(&mut self, op: FastSend<'_>, tagged: bool) -> Option<bool> {
        let len = op.buf.len();
        let report = op.flags & FI_COMPLETION != 0;
        if op.flags & SPECIAL != 0
            || len > self.fast_max
            || (op.flags & FI_INJECT != 0 && len > self.identity.attr.inject_size)
            || self.tx.left(self.identity.attr.tx_size) == 0
            || !self.tx.has_space(report)
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
        self.tx.succeeded(Completion::of(op.context, flags, len), report);
        Some(true)
    }

    #[inline(never)]
    fn send_slow(&mut self, op: SendOp, tagged: bool) -> Result {
        if op.flags & (FI_INJECT | WITH_DEVICES) != 0 {
            if op.flags & FI_INJECT != 0 && op.buf.len() > self.identity.attr.inject_size {
                return Err(Error::MSGSIZE);
            }
            if op.flags & WITH_DEVICES != 0 {
                return send_device(self, op, tagged);
            }
        }
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.dest)?;
        let (id, ready) = self.tx.send_on(&mut self.conns, conn, op, tagged)?;
        self.start(id, conn, ready)
    }

    /// fi_read, in all its forms.
    pub(crate) fn read(&mut self, op: ReadOp) -> Result {
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.src)?;
        let flags = self.conns.behind_atomics(conn, op.flags) & !FI_INJECT;
        let ready = self.conns.may_go(conn, flags);
        let len = op.buf.len();
        let todo = PendingSteps::Read { buf: op.buf, from: op.remote };
        let new = TxOp::new(conn, op.context, FI_RMA | FI_READ, flags, todo);
        let id = self.tx.insert(TxOp { len, ..new });
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
        let fenced = self.conns.behind_atomics(conn, op.flags);
        let ready = self.conns.may_go(conn, fenced);
        let (to, data) = (op.remote, op.data);
        let levels = FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
        let flags = op.flags & (FI_REMOTE_CQ_DATA | FI_COMMIT_COMPLETE | levels);
        let todo = if inject {
            let (bytes, _) = self.conns.copy_of(&op.buf)?;
            PendingSteps::WriteCopy { bytes, to, data, flags }
        } else {
            PendingSteps::Write { buf: op.buf, to, data, flags }
        };
        let new = TxOp::new(conn, op.context, FI_RMA | FI_WRITE, fenced, todo);
        let id = self.tx.insert(TxOp { len, ..new });
        self.conns[conn].sent.one(len);
        self.start(id, conn, ready)
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
        let ready = self.conns.may_go(conn, op.flags);
        let (number, access) = match op.operation.kind() {
            atomic::AtomicKind::Base => (OP_ATOMIC, FI_WRITE),
            atomic::AtomicKind::Fetch => (OP_ATOMIC_FETCH, FI_READ),
            atomic::AtomicKind::Compare => (OP_ATOMIC_COMPARE, FI_READ),
        };
        let mut buf = self.conns.buffer()?;
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
        let id = self.tx.insert(TxOp {
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
        self.tx[id].todo = PendingSteps::Packet(buf, end);
        self.conns[conn].atomics += 1;
        self.start(id, conn, ready)
    }

    /// Starts a transfer, or lets it wait in its connection.
    #[inline]
    fn start(&mut self, id: u32, conn: u32, ready: bool) -> Result {
        self.conns[conn].ops += 1;
        self.tx.begin(id);
        if ready {
            match self.tx.advance(&mut self.conns, id) {
                Ok(()) => return Ok(()),
                Err(Error::AGAIN) => self.conns.stall(conn),
                Err(Error::NOTCONN | Error::SHUTDOWN | Error::CONNRESET) => {
                    return self.start_anew(id, conn);
                }
                Err(error) if self.tx[id].outstanding > 0 => {
                    self.ended(conn, error);
                    return Ok(());
                }
                Err(error) => {
                    self.tx.drop_op(&mut self.conns, id);
                    return Err(error);
                }
            }
        }
        let fenced = self.tx[id].fence;
        let conn = &mut self.conns[conn];
        self.wants_help |= conn.link != Link::Connected || conn.stalled;
        conn.fenced |= fenced && conn.waiting.is_empty();
        conn.waiting.push_back(Waiting::Op(id));
        Ok(())
    }

    /// Moves the transfer to a new connection, because the old one has ended without an event yet.
    #[cold]
    fn start_anew(&mut self, id: u32, conn: u32) -> Result {
        let peer = self.conns[conn].peer;
        let op = &mut self.tx[id];
        if op.outstanding > 0 || matches!(&op.todo, PendingSteps::Send(message) if message.sent > 0)
        {
            // Its first segments are lost with the connection, and so is the whole message.
            self.ended(conn, Error::CONNRESET);
            return Ok(());
        }
        (op.conn, op.via) = (NONE, NONE);
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
        let conn = conn.inspect_err(|_| drop(self.tx.drop_op(&mut self.conns, id)))?;
        self.tx[id].conn = conn;
        self.conns[conn].ops += 1;
        self.conns[conn].atomics += usize::from(self.tx[id].answer.is_some());
        self.conns[conn].waiting.push_back(Waiting::Op(id));
        Ok(())
    }

    /// Handles a receiver's request to write an announced message there. False if there is no such
    /// message, or it cannot be written there.
    pub(super) fn deliver_to(&mut self, conn: u32, header: &RxmHeader, to: RemoteSegments) -> bool {
        let Some(id) = self.tx.on_rts(conn, header.msg_id) else { return false };
        let op = &mut self.tx[id];
        let PendingSteps::Announced(message) = &op.todo else { return false };
        let buf = message.buf.clone();
        let delivers = message.deliver && self.common.core_delivers;
        // The packet following the writes reports their end; nothing else waits for them.
        let level = if delivers { FI_DELIVERY_COMPLETE } else { FI_INJECT_COMPLETE };
        if !to.total().is_ok_and(|total| total <= buf.len()) {
            return false;
        }
        op.todo = PendingSteps::Deliver { buf, to, next: 0, written: 0, header: *header, level };
        if self.conns.is_ready_for_urgent(conn) {
            match self.tx.advance(&mut self.conns, id) {
                Ok(()) => return true,
                Err(Error::AGAIN) => self.conns.stall(conn),
                // The message ends with the connection, whose end the core is about to report.
                Err(Error::NOTCONN | Error::SHUTDOWN | Error::CONNRESET) => self.look_now = true,
                Err(error) => {
                    if self.tx.give_up(&mut self.conns, id, error) {
                        self.ended(conn, error);
                    }
                    return true;
                }
            }
        }
        self.conns[conn].urgent.push_back(Waiting::Op(id));
        true
    }

    /// Sends the transfers queued in a connection, as far as the core has space.
    pub(super) fn flush(&mut self, id: u32) {
        self.conns.grant(id);
        loop {
            let Some(conn) = self.conns.get_mut(id) else { return };
            if conn.link == Link::Closing {
                return;
            }
            conn.fenced = false;
            let urgent = !conn.urgent.is_empty();
            let queue = if urgent { &mut conn.urgent } else { &mut conn.waiting };
            let Some(waiting) = queue.pop_front() else { return };
            if let Waiting::Op(op) = waiting {
                if !urgent && self.tx.is_fenced_off(&self.conns, op) {
                    let conn = &mut self.conns[id];
                    conn.fenced = true;
                    conn.waiting.push_front(waiting);
                    return;
                }
            }
            let Some(conn) = self.conns.get_mut(id) else { return };
            let result = match waiting {
                Waiting::Op(op) => {
                    self.tx.advance(&mut self.conns, op).map_err(|error| (error, Waiting::Op(op)))
                }
                Waiting::RendezvousGet(fetch) => self
                    .fetches
                    .advance_fetch(&mut self.matcher, &mut self.conns, fetch)
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
                        self.conns.stall(id);
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
                Err((error, Waiting::Op(op))) => {
                    if self.tx.give_up(&mut self.conns, op, error) {
                        self.ended(id, error);
                    }
                }
                Err((error, Waiting::RendezvousGet(fetch))) => {
                    self.fetches.fetch_failed(&mut self.matcher, &mut self.conns, fetch, error)
                }
                Err((_, Waiting::Packet(buf, ..))) => self.conns.release(Some(buf)),
            }
        }
    }

    /// Retries the transfers blocked on space in the core.
    #[cold]
    pub(super) fn retry_stalled(&mut self) {
        for id in self.conns.take_stalled() {
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
                self.parked.peer_wrote(&self.matcher, &done);
            }
            return;
        };
        let result = done.error.map_or(Ok(()), Err);
        match Token::from_u64(token) {
            Token::Rx(conn) => self.packet_came(conn, done),
            Token::Message(id) => {
                self.conns.release(done.buf);
                match result {
                    Ok(()) => self.tx.sent(&mut self.conns, id),
                    Err(error) => self.tx.finish_op(&mut self.conns, id, Err(error)),
                }
            }
            Token::Rma(id) => {
                self.conns.release(done.buf);
                self.tx.finish_op(&mut self.conns, id, result);
            }
            Token::Packet => self.conns.release(done.buf),
            Token::Segment(id) | Token::Deliver(id) => {
                self.conns.release(done.buf);
                if let Some((conn, error)) = self.tx.part_done(&mut self.conns, id, result) {
                    self.ended(conn, error);
                }
            }
            Token::RendezvousGet(id) => self.fetches.fetch_part_done(
                &mut self.matcher,
                &mut self.conns,
                id,
                done.buf,
                done.error,
            ),
        }
    }
}

/// Sends a message in memory of a device. An injected one is copied, and the call waits for it.
#[cold]
fn send_device(ep: &mut RxmEngineEp, op: SendOp, tagged: bool) -> Result {
    let op = SendOp { flags: op.flags & !WITH_DEVICES, ..op };
    if op.flags & FI_INJECT != 0 {
        let (copy, buf) = ep.conns.copy_of(&op.buf)?;
        let result = ep.send_slow(SendOp { buf, ..op }, tagged);
        ep.conns.release(Some(copy));
        return result;
    }
    ep.may_start(op.flags)?;
    let conn = ep.conn_to(op.dest)?;
    let (id, ready) = ep.tx.send_device_on(&mut ep.conns, conn, op, tagged)?;
    ep.start(id, conn, ready)
}
