//! Transfers of the application: messages, and accesses to memory of peers.
use super::ep::StreamEpKind;
use super::handshake::Handshake;
use super::state::StreamState;
use super::transfer::{
    COPY_MAX, Route, SendBody, TxCompletion, TxRequest, TxSchedule, body_of, level,
};
use super::tx_path::{FastSendResult, header_and_finish};
use crate::transport::{ByteLink, ShmTransport};
use crate::wire::{StreamHeader, StreamOp};
use ofi_provider::abi::{
    FI_COMPLETION, FI_INJECT, FI_INJECT_COMPLETE, FI_READ, FI_REMOTE_CQ_DATA, FI_RMA, FI_WRITE,
    fi_addr_t,
};
use ofi_provider::api::{FastSend, ReadOp, SendOp, WriteOp};
use ofi_provider::buf::{CopyMode, GatherList};
use ofi_provider::deferred::is_group_notice;
use ofi_provider::error::{Error, Result};
use ofi_provider::reserved::INTERNAL_OP;
use ofi_provider::slab::NONE;

impl<N: ShmTransport> StreamState<N> {
    /// Checks if another transfer with these flags may start. Fails with -FI_EINVAL if too much is
    /// injected. Fails with -FI_EAGAIN, after a progress iteration, if tx_attr.size or the
    /// completion queue leaves no space.
    #[inline(always)]
    pub(super) fn admit(&mut self, ep_id: u32, flags: u64, len: usize) -> Result {
        let ep = &mut self.rx.tx.eps[ep_id];
        if flags & FI_INJECT != 0 && len > ep.identity.attr.inject_size {
            return Err(Error::INVAL);
        }
        if (ep.tx_pending >= ep.identity.attr.tx_size && flags & INTERNAL_OP == 0)
            || !ep.completions.has_space(flags & FI_COMPLETION != 0)
        {
            self.poll_once();
            return Err(Error::AGAIN);
        }
        Ok(())
    }

    /// Returns the route of a transfer to `dest`: a connection, started if necessary, or the queue
    /// of a peer with a delayed connection attempt. Fails with -FI_ENOTCONN if a MSG endpoint is
    /// not connected.
    #[inline(always)]
    pub(super) fn route(&mut self, ep_id: u32, dest: fi_addr_t) -> Result<Route> {
        let ep = &mut self.rx.tx.eps[ep_id];
        if ep.identity.kind == StreamEpKind::Msg {
            let connected =
                self.rx.tx.io.conns.get(ep.conn).is_some_and(|conn| conn.is_connected());
            return if connected { Ok(Route::Conn(ep.conn)) } else { Err(Error::NOTCONN) };
        }
        let peer = self.rx.tx.eps[ep_id].peer_for(dest)?;
        let entry = &self.rx.tx.eps[ep_id].peers[peer];
        match entry.conn {
            NONE if entry.extra.is_waiting() => Ok(Route::Later(peer)),
            NONE => self.connector.connect_next(&mut self.rx.tx, ep_id, peer),
            conn => Ok(Route::Conn(conn)),
        }
    }

    /// fi_send and fi_tsend, in all their forms.
    #[inline(always)]
    pub(crate) fn send(&mut self, ep_id: u32, op: SendOp, tagged: bool) -> Result {
        // In parts, which stay in registers: for the calls below an operation is put together again,
        // each time as another one, or the parts would be stored before all of them.
        let SendOp { buf, dest, context, data, tag, flags } = op;
        let fast = FastSend { buf: &buf, dest, context, data, tag, flags };
        match self.rx.tx.send_fast::<false>(ep_id, fast, tagged, false) {
            FastSendResult::Sent => Ok(()),
            FastSendResult::Not => {
                let all = flags | self.rx.tx.eps[ep_id].identity.attr.send_flags;
                let op = SendOp { buf, dest, context, data, tag, flags: all };
                match flags & FI_REMOTE_CQ_DATA {
                    0 => self.send_slow(ep_id, &op, tagged),
                    _ => self.send_with_data(ep_id, &op, flags, tagged),
                }
            }
            FastSendResult::InPart(result) => {
                let op = SendOp { buf, dest, context, data: 0, tag, flags };
                self.sent_fast_in_part(ep_id, &op, tagged, result);
                Ok(())
            }
        }
    }

    /// Sends a message with remote CQ data. A separate function, so it does not slow down other
    /// messages. `flags` are those of the call; the operation's own are for the slow path.
    #[inline(never)]
    fn send_with_data(&mut self, ep_id: u32, op: &SendOp, flags: u64, tagged: bool) -> Result {
        let SendOp { buf, dest, context, data, tag, .. } = op;
        let (dest, context, data, tag) = (*dest, *context, *data, *tag);
        let fast = FastSend { buf, dest, context, data, tag, flags };
        match self.rx.tx.send_fast::<true>(ep_id, fast, tagged, false) {
            FastSendResult::Sent => Ok(()),
            FastSendResult::Not => self.send_slow(ep_id, op, tagged),
            FastSendResult::InPart(result) => {
                self.sent_fast_in_part(ep_id, op, tagged, result);
                Ok(())
            }
        }
    }

    /// Sends a message for another provider, with a completion to be reported. Returns true if it
    /// was sent without a report; false if it will be reported.
    #[inline(always)]
    pub(super) fn send_immediate(
        &mut self,
        ep_id: u32,
        op: SendOp,
        tagged: bool,
        cq_is_drained: bool,
    ) -> Result<bool> {
        let SendOp { buf, dest, context, data, tag, flags } = op;
        let fast = FastSend { buf: &buf, dest, context, data, tag, flags: flags & !FI_COMPLETION };
        match self.rx.tx.send_fast::<false>(ep_id, fast, tagged, cq_is_drained) {
            FastSendResult::Sent => return Ok(true),
            FastSendResult::Not => {
                let flags = flags | self.rx.tx.eps[ep_id].identity.attr.send_flags;
                self.send_slow(ep_id, &SendOp { buf, dest, context, data, tag, flags }, tagged)?;
            }
            FastSendResult::InPart(result) => {
                let op = SendOp { buf, dest, context, data: 0, tag, flags };
                self.sent_fast_in_part(ep_id, &op, tagged, result);
            }
        }
        Ok(false)
    }

    /// Queues the rest of a message accepted only in part by the link ([`FastSendResult::InPart`]).
    #[cold]
    fn sent_fast_in_part(&mut self, ep_id: u32, op: &SendOp, tagged: bool, result: Result<usize>) {
        let id = self.rx.tx.eps[ep_id].conn_to(op.dest).unwrap_or(NONE);
        let (header, finish) = header_and_finish(op, tagged);
        let header = StreamHeader { id: self.rx.tx.io.conns[id].tx_id.wrapping_sub(1), ..header };
        self.sent_in_part(ep_id, id, op, header, finish, result);
    }

    #[inline(never)]
    fn send_slow(&mut self, ep_id: u32, op: &SendOp, tagged: bool) -> Result {
        self.admit(ep_id, op.flags, op.buf.len())?;
        let route = self.route(ep_id, op.dest)?;
        self.send_on(ep_id, route, op, tagged)
    }

    // A frame of its own, of which progress and calling a peer have nothing.
    #[inline(never)]
    fn send_on(&mut self, ep_id: u32, route: Route, op: &SendOp, tagged: bool) -> Result {
        let mut waits = false;
        if let Route::Conn(id) = route {
            if let Some(conn) = self.rx.tx.io.conns.get_mut(id) {
                if tagged
                    && is_group_notice(op.flags, op.tag)
                    && conn.is_connected()
                    && !conn.knows.multicast
                {
                    return Err(Error::OPNOTSUPP);
                }
                // An injected message must not depend on a receive: its endpoint may close.
                waits = tagged
                    && op.flags & FI_INJECT == 0
                    && conn.rendezvous
                    && op.buf.len() > N::Link::settings().max_saved_size;
            }
        }
        let leaves = if waits || op.buf.is_device() {
            TxSchedule::InOrder
        } else {
            self.rx.tx.leaves(route, op.flags, op.buf.len(), false)
        };
        match (route, leaves) {
            (Route::Conn(id), TxSchedule::First | TxSchedule::Next)
                if !self.rx.tx.io.net.is_ring() =>
            {
                self.send_immediately(ep_id, id, op, tagged);
                if leaves == TxSchedule::Next {
                    self.rx.tx.batch_has_left(id);
                }
            }
            (Route::Conn(id), TxSchedule::First | TxSchedule::Next | TxSchedule::Batched) => {
                let sent = self.rx.tx.send_coalesced(ep_id, id, op, tagged, leaves);
                self.rx.conclude(sent);
            }
            _ => {
                let sent = self.rx.tx.send_later(ep_id, route, op, tagged, waits)?;
                self.rx.conclude(sent);
                if let Route::Conn(id) = route {
                    if self.rx.tx.io.conns.get(id).is_some_and(|conn| !conn.is_connected()) {
                        Handshake::new(&mut self.rx).send_early(id);
                    }
                }
                if let (Route::Conn(id), true) = (route, self.rx.tx.io.net.is_due()) {
                    poll_and_flush(self, id);
                }
            }
        }
        Ok(())
    }

    /// fi_write, in all its forms.
    pub(crate) fn write(&mut self, ep_id: u32, mut op: WriteOp) -> Result {
        op.flags |= self.rx.tx.eps[ep_id].identity.attr.access_flags;
        if op.flags & FI_REMOTE_CQ_DATA != 0 && op.remote.as_slice().is_empty() {
            // Remote CQ data need a place to write to: only the right to write there lets a peer
            // report data.
            return Err(Error::INVAL);
        }
        self.admit(ep_id, op.flags, op.buf.len())?;
        let route = self.route(ep_id, op.dest)?;
        let len = op.buf.len();
        let (flags, acked) = level(op.flags);
        let header = StreamHeader {
            flags,
            segments: op.remote.as_slice().len() as u8,
            cq_data: op.data,
            len: len as u64,
            ..StreamHeader::of(StreamOp::Write)
        };
        let mut finish = TxCompletion {
            context: op.context,
            flags: FI_RMA | FI_WRITE | (op.flags & INTERNAL_OP),
            report: op.flags & FI_COMPLETION != 0,
            acked,
            weak: op.flags & FI_INJECT_COMPLETE != 0,
            len,
            internal: false,
            inject: op.flags & FI_INJECT != 0,
            exposed: 0,
            refused: None,
        };
        if self.rx.tx.cannot_do(ep_id, route, &header, &finish) {
            return Ok(());
        }
        if len <= COPY_MAX && !op.buf.is_device() {
            if let Route::Conn(id) = route {
                let known =
                    finish.report && !acked && self.rx.tx.eps[ep_id].completions.cq_is_drained();
                let leaves = self.rx.tx.leaves(route, op.flags, len, known);
                if leaves != TxSchedule::InOrder {
                    finish.flags |= self.rx.tx.eps[ep_id].times.begin();
                    let dst = self.rx.tx.join(id, header, &op.remote, len, Some(finish));
                    op.buf.copy_to(0, dst);
                    let sent = self.rx.tx.joined(ep_id, id, op.flags, leaves);
                    self.rx.conclude(sent);
                    return Ok(());
                }
            }
        }
        let body = body_of(&op.buf, finish.inject, self.rx.tx.eps[ep_id].bounce.as_ref())?;
        let mut outgoing = TxRequest::new(header, body, finish);
        outgoing.segments = self.rx.tx.encode_segments(route, &op.remote);
        let sent = self.rx.tx.enqueue(ep_id, route, outgoing, op.flags);
        self.rx.conclude(sent);
        Ok(())
    }

    /// fi_read, in all its forms.
    pub(crate) fn read_remote(&mut self, ep_id: u32, op: ReadOp) -> Result {
        self.admit(ep_id, op.flags & !FI_INJECT, op.buf.len())?;
        let route = self.route(ep_id, op.src)?;
        let header = StreamHeader {
            segments: op.remote.as_slice().len() as u8,
            ..StreamHeader::of(StreamOp::ReadReq)
        };
        let mut finish = TxCompletion {
            context: op.context,
            flags: FI_RMA | FI_READ | (op.flags & INTERNAL_OP),
            report: op.flags & FI_COMPLETION != 0,
            acked: false,
            weak: false,
            len: op.buf.len(),
            internal: false,
            inject: false,
            exposed: 0,
            refused: None,
        };
        if self.rx.tx.cannot_do(ep_id, route, &header, &finish) {
            return Ok(());
        }
        if let Route::Conn(id) = route {
            let leaves = self.rx.tx.leaves(route, op.flags, 0, false);
            if leaves != TxSchedule::InOrder {
                self.rx.tx.join(id, header, &op.remote, 0, None);
                finish.flags |= self.rx.tx.eps[ep_id].times.begin();
                self.rx.tx.io.conns[id].reads.push_back((op.buf, finish));
                let sent = self.rx.tx.joined(ep_id, id, op.flags, leaves);
                self.rx.conclude(sent);
                return Ok(());
            }
        }
        let mut outgoing = TxRequest::new(header, SendBody::Answer(op.buf), finish);
        outgoing.segments = self.rx.tx.encode_segments(route, &op.remote);
        let sent = self.rx.tx.enqueue(ep_id, route, outgoing, op.flags);
        self.rx.conclude(sent);
        Ok(())
    }

    /// Sends a message of any size with nothing queued before it: passes header and bytes directly
    /// to the link.
    #[inline(always)]
    fn send_immediately(&mut self, ep_id: u32, conn_id: u32, op: &SendOp, tagged: bool) {
        let (mut header, mut finish) = header_and_finish(op, tagged);
        let conn = &mut self.rx.tx.io.conns[conn_id];
        conn.knows.adapt_level(&mut header, &mut finish);
        conn.sent_in = self.rx.tx.io.poll.iterations();
        let len = op.buf.len();
        let wire = self.rx.tx.packet.first_chunk_mut().expect("a packet has room for a header");
        let wire_len = conn.write_header(&mut header, wire);
        let result = if len <= COPY_MAX {
            op.buf.copy_to(0, &mut self.rx.tx.packet[wire_len..wire_len + len]);
            conn.link.send(&self.rx.tx.packet[..wire_len + len])
        } else {
            let mut list = GatherList::default();
            list.push_bytes(&self.rx.tx.packet[..wire_len]);
            op.buf.gather(0, &mut list);
            conn.link.send_list(&mut list, CopyMode::Copied)
        };
        match result {
            Ok(sent) if sent == wire_len + len => {
                let ep = &mut self.rx.tx.eps[ep_id];
                if finish.acked {
                    ep.tx_pending += 1;
                    finish.flags |= ep.times.begin();
                    conn.unacked.push_back(Some(finish));
                } else {
                    ep.completions.done(finish.entry(), finish.report);
                }
                if len > COPY_MAX && self.rx.tx.io.net.is_due() {
                    poll_and_flush(self, conn_id);
                }
            }
            result => self.sent_in_part(ep_id, conn_id, op, header, finish, result),
        }
    }

    /// Queues the rest of a message not completely accepted by the link, or fails it with the
    /// connection if the link has failed.
    #[cold]
    fn sent_in_part(
        &mut self,
        ep_id: u32,
        conn_id: u32,
        op: &SendOp,
        header: StreamHeader,
        mut finish: TxCompletion,
        result: Result<usize>,
    ) {
        let ep = &mut self.rx.tx.eps[ep_id];
        ep.tx_pending += 1;
        finish.flags |= ep.times.begin();
        let conn = &mut self.rx.tx.io.conns[conn_id];
        let sent = match result {
            Ok(sent) => Ok(sent),
            Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => Ok(0),
            Err(error) => Err(error),
        };
        let body = body_of(&op.buf, finish.inject, None);
        let (sent, body) = match sent.and_then(|sent| Ok((sent, body?))) {
            Ok(both) => both,
            Err(error) => {
                // The message fails with all others on this connection.
                conn.tx.push_back(TxRequest::new(header, SendBody::Empty, finish));
                return self.rx.sent_without_effect(conn_id, error);
            }
        };
        let mut outgoing = TxRequest::new(header, body, finish);
        outgoing.wire_len = header.write(conn.order, &mut outgoing.wire);
        outgoing.sent = sent;
        conn.tx.push_back(outgoing);
        if self.rx.tx.io.net.is_due() {
            return poll_and_flush(self, conn_id);
        }
        self.rx.tx.io.mark_active(conn_id);
        self.rx.tx.io.watch_unsent(conn_id);
    }
}

/// Runs the progress iteration requested by a link, then sends the data queued on a
/// connection.
#[cold]
fn poll_and_flush<N: ShmTransport>(state: &mut StreamState<N>, conn_id: u32) {
    state.rx.tx.io.poll.count_iteration();
    state.poll_io(None);
    // It may have ended, and its number be another's, to whom that does nothing.
    if state.rx.tx.io.conns.get(conn_id).is_none_or(|conn| !conn.is_connected()) {
        return;
    }
    state.rx.flush(conn_id);
    state.rx.tx.io.mark_active(conn_id);
    state.rx.tx.io.watch_unsent(conn_id);
}
