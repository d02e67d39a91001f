//! Sending.
use super::State;
use super::ep::{Ep, Kind};
use crate::config::config;
use crate::wire::{COMMIT_COMPLETE, DELIVERY_COMPLETE, Header, Op, REMOTE_CQ_DATA};
use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_COMMIT_COMPLETE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_INJECT,
    FI_MATCH_COMPLETE, FI_MORE, FI_MSG, FI_REMOTE_CQ_DATA, FI_SEND, FI_TAGGED,
    FI_TRANSMIT_COMPLETE, fi_addr_t,
};
use ofi_provider::buf::{IoVecs, SendBuf};
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::SendOp;
use ofi_provider::slab::NONE;

/// Messages up to this size are copied behind their header, so that one plain
/// send takes both; larger ones are gathered where they are.
const COPY_MAX: usize = 1024;

/// What is to be done when a message is sent or acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    pub(super) context: Context,
    /// What the completion entry says it was.
    pub(super) flags: u64,
    /// A success gives an entry.
    pub(super) report: bool,
    /// Complete only when the peer acknowledges it.
    pub(super) acked: bool,
    /// The message's size, for counters.
    pub(super) len: usize,
    /// Ours: an acknowledgement, say. Nobody waits for it.
    pub(super) internal: bool,
    /// Injected: its failure is not reported either (fi_msg(3)).
    pub(super) inject: bool,
}

impl Finish {
    const INTERNAL: Self = Self {
        context: Context::NULL,
        flags: 0,
        report: false,
        acked: false,
        len: 0,
        internal: true,
        inject: false,
    };

    fn entry(&self) -> Completion {
        Completion {
            context: self.context,
            flags: self.flags,
            len: self.len,
            buf: 0,
            data: 0,
            tag: 0,
            src: FI_ADDR_NOTAVAIL,
        }
    }
}

/// A message's bytes while it waits to be sent.
#[derive(Debug)]
pub(super) enum Body {
    /// None.
    Empty,
    /// Where the application has them.
    Lent(SendBuf),
    /// Copied, because the application has its buffer back.
    Copied(Box<[u8]>),
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Lent(buf) => buf.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }
}

/// A message that is not sent yet, or not completely.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) header: Header,
    pub(super) body: Body,
    /// The header's bytes, made when the message's turn comes.
    wire: [u8; 40],
    wire_len: usize,
    /// Bytes of header and body that are sent.
    sent: usize,
    pub(super) finish: Finish,
}

impl Outgoing {
    fn new(header: Header, body: Body, finish: Finish) -> Self {
        Self { header, body, wire: [0; 40], wire_len: 0, sent: 0, finish }
    }

    fn total(&self) -> usize {
        self.wire_len + self.body.len()
    }
}

impl Ep {
    /// A send is over, well or not.
    pub(super) fn finish_tx(&mut self, finish: &Finish, result: Result) {
        if finish.internal {
            return;
        }
        self.tx_pending -= 1;
        match result {
            Ok(()) => self.tx_done(finish.entry(), finish.report),
            Err(error) if finish.inject => {
                ofi_provider::log!(
                    &crate::info::TCP,
                    WARN,
                    EP_DATA,
                    "an injected message was lost: {error}; its failure is reported nowhere else"
                );
            }
            Err(error) => self.tx_failed(CompletionError::new(finish.entry(), error)),
        }
    }
}

impl State {
    /// fi_send and fi_tsend, in all their forms.
    #[inline]
    pub(crate) fn send(&mut self, ep_id: u32, op: SendOp, tagged: bool) -> Result {
        let ep = &mut self.eps[ep_id];
        let inject = op.flags & FI_INJECT != 0;
        if inject && op.buf.len() > ep.identity.inject_size {
            return Err(Error::INVAL);
        }
        let report = op.flags & FI_COMPLETION != 0;
        if ep.tx_pending >= ep.identity.tx_size
            || (report && ep.tx_cq.as_ref().is_some_and(|cq| !cq.has_room()))
        {
            // Make room for the next try.
            self.turn();
            return Err(Error::AGAIN);
        }
        let conn_id = match ep.identity.kind {
            Kind::Msg => ep.conn,
            Kind::Rdm => {
                let peer = self.peer_for(ep_id, op.dest)?;
                let conn = self.eps[ep_id].peers[peer].conn;
                if conn == NONE && self.eps[ep_id].peers[peer].retry.is_some() {
                    let outgoing = self.outgoing(&op, tagged, false);
                    let ep = &mut self.eps[ep_id];
                    ep.tx_pending += 1;
                    ep.peers[peer].parked.push_back(outgoing);
                    return Ok(());
                }
                if conn == NONE { self.call(ep_id, peer)? } else { conn }
            }
        };
        let Some(conn) = self.conns.get_mut(conn_id) else { return Err(Error::NOTCONN) };
        if !conn.is_connected() && self.eps[ep_id].identity.kind == Kind::Msg {
            return Err(Error::NOTCONN);
        }
        let more = op.flags & FI_MORE != 0;
        let waits = tagged && conn.rendezvous && op.buf.len() > config().max_saved_size;
        if conn.is_connected() && conn.tx.is_empty() && !more && !waits {
            return self.send_now(ep_id, conn_id, &op, tagged);
        }
        let rendezvous = conn.rendezvous;
        let connected = conn.is_connected();
        let outgoing = self.outgoing(&op, tagged, rendezvous);
        self.eps[ep_id].tx_pending += 1;
        self.conns[conn_id].tx.push_back(outgoing);
        if connected {
            if more {
                if !self.held.contains(&conn_id) {
                    self.held.push(conn_id);
                }
            } else {
                self.flush(conn_id);
                self.heat(conn_id);
            }
        }
        Ok(())
    }

    /// The peer of this name, with or without a connection.
    #[inline]
    fn peer_for(&mut self, ep_id: u32, dest: fi_addr_t) -> Result<u32> {
        let ep = &mut self.eps[ep_id];
        if let Some(&peer) = usize::try_from(dest).ok().and_then(|dest| ep.by_name.get(dest))
            && peer != NONE
        {
            return Ok(peer);
        }
        let addr = ep.av.as_ref().ok_or(Error::NOAV)?.get(dest)?;
        Ok(ep.peer_at(addr))
    }

    fn header_and_finish(op: &SendOp, tagged: bool) -> (Header, Finish) {
        const ACKED: u64 =
            FI_DELIVERY_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;
        let mut flags = 0;
        if op.flags & FI_REMOTE_CQ_DATA != 0 {
            flags |= REMOTE_CQ_DATA;
        }
        let acked = op.flags & ACKED != 0 && op.flags & FI_INJECT == 0;
        if acked {
            flags |= if op.flags & FI_COMMIT_COMPLETE != 0 {
                COMMIT_COMPLETE
            } else {
                DELIVERY_COMPLETE
            };
        }
        let len = op.buf.len();
        let header = Header {
            op: if tagged { Op::Tag } else { Op::Msg },
            flags,
            op_data: 0,
            id: 0,
            cq_data: op.data,
            tag: op.tag,
            len: len as u64,
        };
        let finish = Finish {
            context: op.context,
            flags: FI_SEND | if tagged { FI_TAGGED } else { FI_MSG },
            report: op.flags & FI_COMPLETION != 0,
            acked,
            len,
            internal: false,
            inject: op.flags & FI_INJECT != 0,
        };
        (header, finish)
    }

    fn outgoing(&self, op: &SendOp, tagged: bool, rendezvous: bool) -> Outgoing {
        let (mut header, finish) = Self::header_and_finish(op, tagged);
        if tagged && rendezvous && op.buf.len() > config().max_saved_size {
            header.op = Op::TagRts;
        }
        let body = match op.buf.len() {
            0 => Body::Empty,
            _ if finish.inject => Body::Copied(op.buf.to_boxed()),
            _ => Body::Lent(op.buf),
        };
        Outgoing::new(header, body, finish)
    }

    /// The short way: nothing waits before this message, so header and bytes go
    /// to the socket from here.
    #[inline]
    fn send_now(&mut self, ep_id: u32, conn_id: u32, op: &SendOp, tagged: bool) -> Result {
        let (mut header, finish) = Self::header_and_finish(op, tagged);
        let conn = &mut self.conns[conn_id];
        header.id = conn.next_id();
        let mut wire = [0; 40];
        let wire_len = header.write(conn.order, &mut wire);
        let len = op.buf.len();
        let result = if len <= COPY_MAX && self.staging.len() >= wire.len() + COPY_MAX {
            // The room for reading is free: nothing is read meanwhile.
            let packet = &mut self.staging[..wire.len() + COPY_MAX];
            packet[..wire.len()].copy_from_slice(&wire);
            op.buf.copy_to(0, &mut packet[wire_len..wire_len + len]);
            conn.socket.send(&packet[..wire_len + len])
        } else {
            let mut list = IoVecs::default();
            list.push_bytes(&wire[..wire_len]);
            op.buf.gather(0, &mut list);
            // SAFETY: `wire` is alive; the application lends its buffer until
            // the operation completes, which it does not before this returns.
            unsafe { list.send(conn.socket.fd()) }
        };
        let ep = &mut self.eps[ep_id];
        let sent = match result {
            Ok(sent) if sent == wire_len + len => {
                if finish.acked {
                    ep.tx_pending += 1;
                    self.conns[conn_id].unacked.push_back(finish);
                } else {
                    ep.tx_done(finish.entry(), finish.report);
                }
                return Ok(());
            }
            Ok(sent) => sent,
            Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => 0,
            Err(error) => {
                // The message shares the fate of all on this connection.
                ep.tx_pending += 1;
                let outgoing = Outgoing::new(header, Body::Empty, finish);
                self.conns[conn_id].tx.push_back(outgoing);
                self.fail(conn_id, error);
                return Ok(());
            }
        };
        ep.tx_pending += 1;
        let body = match len {
            0 => Body::Empty,
            _ if finish.inject => Body::Copied(op.buf.to_boxed()),
            _ => Body::Lent(op.buf),
        };
        self.conns[conn_id].tx.push_back(Outgoing { header, body, wire, wire_len, sent, finish });
        self.heat(conn_id);
        Ok(())
    }

    /// Sends what waits on a connection, several messages in a call, until the
    /// socket takes no more. Whether anything moved.
    pub(super) fn flush(&mut self, id: u32) -> bool {
        let mut moved = false;
        if config().max_saved_size != usize::MAX {
            self.number_announcements(id);
        }
        loop {
            let Some(conn) = self.conns.get_mut(id) else { return true };
            if conn.tx.is_empty() {
                return moved;
            }
            let (order, mut tx_id) = (conn.order, conn.tx_id);
            let mut list = IoVecs::default();
            for outgoing in &mut conn.tx {
                if !list.has_room() {
                    break;
                }
                if outgoing.wire_len == 0 {
                    outgoing.header.id = tx_id;
                    tx_id = tx_id.wrapping_add(1);
                    outgoing.wire_len = outgoing.header.write(order, &mut outgoing.wire);
                }
                let header_left = outgoing.sent.min(outgoing.wire_len);
                list.push_bytes(&outgoing.wire[header_left..outgoing.wire_len]);
                if outgoing.header.op == Op::TagRts {
                    // Only the announcement goes now.
                    continue;
                }
                let from = outgoing.sent.saturating_sub(outgoing.wire_len);
                match &outgoing.body {
                    Body::Empty => {}
                    Body::Lent(buf) => {
                        buf.gather(from, &mut list);
                    }
                    Body::Copied(bytes) => {
                        list.push_bytes(&bytes[from..]);
                    }
                }
            }
            conn.tx_id = tx_id;
            let wanted = list.len();
            // SAFETY: headers and copies live in the queue, which is not touched
            // meanwhile; lent buffers are the library's until completion.
            let result = unsafe { list.send(conn.socket.fd()) };
            let mut sent = match result {
                Ok(sent) => sent,
                Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => 0,
                Err(error) => {
                    self.fail(id, error);
                    return true;
                }
            };
            moved |= sent > 0;
            let full = sent < wanted;
            self.account(id, &mut sent);
            if full {
                return moved;
            }
        }
    }

    /// Takes what was sent off the queue.
    fn account(&mut self, id: u32, sent: &mut usize) {
        let conn = &mut self.conns[id];
        let ep = &mut self.eps[conn.ep];
        while let Some(outgoing) = conn.tx.front_mut() {
            if outgoing.wire_len == 0 {
                return;
            }
            let total = match outgoing.header.op {
                Op::TagRts => outgoing.wire_len,
                _ => outgoing.total(),
            };
            let part = (*sent).min(total - outgoing.sent);
            outgoing.sent += part;
            *sent -= part;
            if outgoing.sent < total {
                return;
            }
            let Some(outgoing) = conn.tx.pop_front() else { return };
            if outgoing.header.op == Op::TagRts {
                conn.waiting.insert(outgoing.header.op_data, outgoing);
            } else if outgoing.finish.acked {
                conn.unacked.push_back(outgoing.finish);
            } else {
                ep.finish_tx(&outgoing.finish, Ok(()));
            }
        }
    }

    /// Sends something of ours behind what waits already.
    pub(super) fn send_internal(&mut self, id: u32, header: Header) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.tx.push_back(Outgoing::new(header, Body::Empty, Finish::INTERNAL));
        if conn.tx.len() == 1 {
            self.flush(id);
        }
        if self.conns.get(id).is_some_and(|conn| !conn.tx.is_empty()) {
            self.heat(id);
        }
    }

    /// The peer acknowledged the oldest message that waits for it.
    pub(super) fn acknowledged(&mut self, id: u32) -> Result {
        let conn = &mut self.conns[id];
        let finish = conn.unacked.pop_front().ok_or(Error::PROTO)?;
        self.eps[conn.ep].finish_tx(&finish, Ok(()));
        Ok(())
    }

    /// The peer is ready for a message that waits here.
    pub(super) fn clear_to_send(&mut self, id: u32, number: u8) -> Result {
        let conn = &mut self.conns[id];
        let waiting = conn.waiting.remove(&number).ok_or(Error::PROTO)?;
        let header = Header {
            op: Op::Data,
            flags: waiting.header.flags & (DELIVERY_COMPLETE | COMMIT_COMPLETE),
            op_data: number,
            id: 0,
            cq_data: 0,
            tag: 0,
            len: waiting.body.len() as u64,
        };
        conn.tx.push_back(Outgoing::new(header, waiting.body, waiting.finish));
        if conn.tx.len() == 1 {
            self.flush(id);
        }
        if self.conns.get(id).is_some_and(|conn| !conn.tx.is_empty()) {
            self.heat(id);
        }
        Ok(())
    }

    /// Numbers the announcements that are about to be sent; without a free
    /// number a message is sent whole.
    fn number_announcements(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let mut used: Vec<u8> = conn.waiting.keys().copied().collect();
        used.extend(
            conn.tx
                .iter()
                .filter(|o| o.header.op == Op::TagRts && o.header.op_data != 0)
                .map(|o| o.header.op_data),
        );
        for outgoing in &mut conn.tx {
            if outgoing.header.op != Op::TagRts || outgoing.header.op_data != 0 {
                continue;
            }
            match (1..=u8::MAX).find(|number| !used.contains(number)) {
                Some(number) => {
                    used.push(number);
                    outgoing.header.op_data = number;
                }
                None => outgoing.header.op = Op::Tag,
            }
        }
    }
}
