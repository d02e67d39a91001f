//! Sending: from the application's calls and peers' requests to bytes for a link.
use super::arrival::may_allocate;
use super::conn::StreamConn;
use super::ep::{StreamEngineEp, StreamEpKind};
use super::state::{StreamState, TOKEN_CONN};
use super::stats::count_header;
use super::trace::trace;
use super::transfer::{
    ACKED, COPY_MAX, Route, SendBody, TxCompletion, TxRequest, TxSchedule, body_of, level,
};
use super::zerocopy::Zerocopy;
use crate::transport::{ByteLink, FlushTimer, LinkOp, LinkPoller, Transport};
use crate::wire::{
    AckRun, ByteOrder, COMMIT_COMPLETE, DELIVERY_COMPLETE, MATCH_COMPLETE, SEGMENT_LEN,
    StreamHeader, StreamOp,
};
use ofi_provider::abi::{
    FI_COMPLETION, FI_FENCE, FI_INJECT, FI_INJECT_COMPLETE, FI_MORE, FI_MSG, FI_READ,
    FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_RMA, FI_SEND, FI_TAGGED, FI_WRITE, fi_addr_t,
};
use ofi_provider::api::{FastSend, ReadOp, RemoteSegments, SendOp, WriteOp};
use ofi_provider::buf::{CopyMode, GatherList};
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::deferred::is_group_notice;
use ofi_provider::error::{Error, Result};
use ofi_provider::reserved::{INTERNAL_OP, TIMED};
use ofi_provider::slab::NONE;
use ofi_provider::sys::Interest;
use std::cell::OnceCell;

/// Flags of an operation excluding the fast path (`send_fast`).
const SPECIAL: u64 = FI_MORE | FI_FENCE | ACKED | INTERNAL_OP;

/// Maximum responses and acknowledgements queued for a peer, in addition to local transfers
/// (`tx_size`).
const MAX_ANSWERS: usize = 1 << 16;

/// Bytes of memory for responses and acknowledgements guaranteed to any connection. Beyond it
/// further requests are not read. This always holds for unknown peers, since no local transfers to
/// them can be waiting; for known peers it holds once all connections together use [`MAX_BACKLOG`].
const FAIR_BACKLOG: usize = 512 << 10;

/// Bytes of memory for responses and acknowledgements of all connections. Beyond it connections
/// above [`FAIR_BACKLOG`] are not read.
const MAX_BACKLOG: usize = 128 << 20;

impl TxRequest {
    /// Returns the zero-copy mode of the message's body, if it is sent without a copy. `keeps`: the
    /// link can store the bytes of a region closed before the peer has them
    /// ([`ByteLink::copy_exposed`]).
    fn zcopy(&self, conn: &Option<Box<Zerocopy>>, keeps: bool) -> Option<CopyMode> {
        conn.as_ref().filter(|zerocopy| zerocopy.takes(self.body.len()))?;
        match &self.body {
            SendBody::Exposed(_) if self.header.op != StreamOp::TagRts => Some(CopyMode::ZeroCopy),
            SendBody::Region(segments, _) if keeps => match segments.as_slice() {
                [segment] => Some(CopyMode::OfRegion(segment.key)),
                _ => None,
            },
            _ => None,
        }
    }
}

impl StreamEngineEp {
    /// Runs [`finish_tx`](Self::finish_tx) for a timed transfer.
    #[cold]
    fn finish_timed(&mut self, finish: &TxCompletion, result: Result) {
        self.times.end();
        self.finish_tx(&TxCompletion { flags: finish.flags & !TIMED, ..*finish }, result);
    }

    /// Reports and counts a completed or failed transfer.
    pub(super) fn finish_tx(&mut self, finish: &TxCompletion, result: Result) {
        if finish.internal {
            if finish.flags & FI_REMOTE_READ != 0 && result.is_ok() {
                self.matcher.completions.peer_accessed(false, finish.len);
            }
            return;
        }
        if finish.flags & TIMED != 0 {
            return self.finish_timed(finish, result);
        }
        self.tx_pending -= 1;
        let result = finish.refused.map_or(result, Err);
        #[cfg(any(test, feature = "sim"))]
        match ofi_simulation::injected() {
            Some(ofi_simulation::InjectedFault::LostCompletion) => return,
            Some(ofi_simulation::InjectedFault::SecondCompletion) => {
                self.completions.done(finish.entry(), finish.report);
            }
            _ => {}
        }
        match result {
            Ok(()) => self.completions.done(finish.entry(), finish.report),
            Err(error) => {
                self.errors.add(error);
                self.completions.failed(CompletionError::new(finish.entry(), error));
            }
        }
    }
}

/// Result of [the fast-path send](StreamState::send_fast).
enum FastSendResult {
    /// All of it has left.
    Sent,
    /// It is no such message, or not the time for it.
    Not,
    /// The link took a part of it, or nothing.
    InPart(Result<usize>),
}

impl<N: Transport> StreamState<N> {
    /// Checks if another transfer with these flags may start. Fails with -FI_EINVAL if too much is
    /// injected. Fails with -FI_EAGAIN, after a progress iteration, if tx_attr.size or the
    /// completion queue leaves no space.
    #[inline(always)]
    pub(super) fn admit(&mut self, ep_id: u32, flags: u64, len: usize) -> Result {
        let ep = &mut self.eps[ep_id];
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
        let ep = &mut self.eps[ep_id];
        if ep.identity.kind == StreamEpKind::Msg {
            let connected = self.conns.get(ep.conn).is_some_and(|conn| conn.is_connected());
            return if connected { Ok(Route::Conn(ep.conn)) } else { Err(Error::NOTCONN) };
        }
        let peer = self.eps[ep_id].peer_for(dest)?;
        let entry = &self.eps[ep_id].peers[peer];
        match entry.conn {
            NONE if entry.extra.retry.is_waiting() => Ok(Route::Later(peer)),
            NONE => self.connect_next(ep_id, peer),
            conn => Ok(Route::Conn(conn)),
        }
    }

    /// Queues a transfer and, unless FI_MORE announces others, sends as much as the link accepts.
    pub(super) fn enqueue(
        &mut self,
        ep_id: u32,
        route: Route,
        mut outgoing: TxRequest,
        flags: u64,
    ) {
        outgoing.fence = flags & FI_FENCE != 0;
        let more = flags & FI_MORE != 0;
        let ep = &mut self.eps[ep_id];
        ep.tx_pending += 1;
        outgoing.finish.flags |= ep.times.begin();
        let id = match route {
            Route::Later(peer) => return ep.peers[peer].extra.parked.push_back(outgoing),
            Route::Conn(id) => id,
        };
        let conn = &mut self.conns[id];
        conn.fenced |= outgoing.fence;
        conn.start_exposing(outgoing.body.len());
        conn.push_transfer(outgoing);
        if !conn.is_connected() {
            return;
        }
        // A request leaves with the answers that are held, before them.
        let with_answers = conn.has_waiting_answers() && self.held.contains(&id);
        if more || with_answers {
            self.hold(id);
        } else {
            self.flush_conn(id);
        }
    }

    /// Sends the data queued on a connection; the rest is sent when the poller reports the link
    /// writable.
    fn flush_conn(&mut self, id: u32) {
        self.flush(id);
        self.mark_active(id);
        self.watch_unsent(id);
    }

    /// Registers a connection with unsent data with the poller: another thread may sleep on the
    /// poller's descriptor, and this one may not call again.
    pub(super) fn watch_unsent(&mut self, id: u32) {
        if self.conns.get(id).is_some_and(StreamConn::has_unsent) {
            self.watch(id);
        }
    }

    /// Adds a connection to the list of connections with batched messages held back.
    fn hold(&mut self, id: u32) {
        if !self.held.contains(&id) {
            self.held.push(id);
        }
    }

    /// fi_send and fi_tsend, in all their forms.
    #[inline(always)]
    pub(crate) fn send(&mut self, ep_id: u32, op: SendOp, tagged: bool) -> Result {
        if op.flags & FI_REMOTE_CQ_DATA != 0 {
            return self.send_with_data(ep_id, op, tagged);
        }
        self.send_either::<false>(ep_id, op, tagged)
    }

    /// Runs [`StreamState::send`] for a message with remote CQ data. A separate function, so it
    /// does not slow down other messages.
    #[inline(never)]
    fn send_with_data(&mut self, ep_id: u32, op: SendOp, tagged: bool) -> Result {
        self.send_either::<true>(ep_id, op, tagged)
    }

    /// [`StreamState::send`]; `DATA`: the message carries remote CQ data.
    #[inline(always)]
    fn send_either<const DATA: bool>(&mut self, ep_id: u32, op: SendOp, tagged: bool) -> Result {
        // In parts, which stay in registers: for the calls below an operation is put together again.
        let SendOp { buf, dest, context, data, tag, flags } = op;
        let fast = FastSend { buf: &buf, dest, context, data, tag, flags };
        let sent = self.send_fast::<DATA>(ep_id, fast, tagged, false);
        // Apart for both cases: what they share would be done before either, sent or not.
        match sent {
            FastSendResult::Sent => Ok(()),
            FastSendResult::Not => {
                let flags = flags | self.eps[ep_id].identity.attr.send_flags;
                self.send_slow(ep_id, &SendOp { buf, dest, context, data, tag, flags }, tagged)
            }
            FastSendResult::InPart(result) => {
                let op = SendOp { buf, dest, context, data, tag, flags };
                self.sent_fast_in_part(ep_id, &op, tagged, result);
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
        match self.send_fast::<false>(ep_id, fast, tagged, cq_is_drained) {
            FastSendResult::Sent => return Ok(true),
            FastSendResult::Not => {
                let flags = flags | self.eps[ep_id].identity.attr.send_flags;
                self.send_slow(ep_id, &SendOp { buf, dest, context, data, tag, flags }, tagged)?;
            }
            FastSendResult::InPart(result) => {
                let op = SendOp { buf, dest, context, data, tag, flags };
                self.sent_fast_in_part(ep_id, &op, tagged, result);
            }
        }
        Ok(false)
    }

    /// Fast path: sends a small message without special flags at once, if nothing is queued before
    /// it. In any other case it has changed nothing.
    #[inline(always)]
    fn send_fast<const DATA: bool>(
        &mut self,
        ep_id: u32,
        op: FastSend<'_>,
        tagged: bool,
        cq_is_drained: bool,
    ) -> FastSendResult {
        let Self { net, eps, conns, packet, iterations, app_idle, batch_flusher, .. } = self;
        let ep = &mut eps[ep_id];
        let len = op.buf.len();
        let report = op.flags & FI_COMPLETION != 0;
        let special = if DATA { SPECIAL } else { SPECIAL | FI_REMOTE_CQ_DATA };
        if (op.flags & (special | FI_INJECT) != 0
            && (op.flags & special != 0 || len > ep.identity.attr.inject_size))
            || ep.tx_pending >= ep.identity.attr.tx_size
        {
            return FastSendResult::Not;
        }
        let next = if report { ep.completions.next_entry() } else { None };
        if next.is_none() && !ep.completions.has_space(report) {
            return FastSendResult::Not;
        }
        let Some(conn) = ep.conn_to(op.dest).and_then(|id| conns.get_mut(id)) else {
            return FastSendResult::Not;
        };
        // A message that follows another in the same turn may wait for more of them, but not if the
        // application has read already that those before have left.
        if len >= conn.fast_below || conn.tx.len() | conn.batch.len() != 0 {
            return FastSendResult::Not;
        }
        let (id, tag) = (conn.tx_id, tagged.then_some(op.tag));
        let data = DATA.then_some(op.data);
        let in_memory = conn.link.tx_over_shm()
            && op.buf.in_one_piece().is_some_and(|body| conn.link.send_fast(id, data, tag, body));
        if !in_memory
            && conn.sent_in == *iterations
            && !cq_is_drained
            && !next
                .as_ref()
                .map_or_else(|| report && ep.completions.cq_is_drained(), |next| next.is_first())
            && Self::gathers(conn, net, batch_flusher, *app_idle)
        {
            return FastSendResult::Not;
        }
        conn.tx_id = id.wrapping_add(1);
        conn.sent.one(len);
        if !in_memory {
            conn.sent_in = *iterations;
            let head = packet.first_chunk_mut().expect("a packet has room for a header");
            let head_len = StreamHeader::write_fast(id, data, tag, len, head);
            let wire_len = head_len + len;
            op.buf.copy_to(0, &mut packet[head_len..wire_len]);
            let result = conn.link.send(&packet[..wire_len]);
            if !matches!(result, Ok(sent) if sent == wire_len) {
                return FastSendResult::InPart(result);
            }
        }
        let flags = FI_SEND | if tagged { FI_TAGGED } else { FI_MSG };
        let of = Completion::of(Context(op.context.0), flags, len);
        match next {
            Some(next) => ep.completions.succeeded_at(next, of),
            None => ep.completions.done(of, report),
        }
        FastSendResult::Sent
    }

    /// Returns true if messages may be batched here. Not if they do not follow each other closely,
    /// nor without a flush timer, nor over shared memory, because no system call is saved there.
    #[inline(never)]
    fn gathers(
        conn: &mut StreamConn<N>,
        net: &N,
        batch_flusher: &Option<N::Flusher>,
        app_idle: u64,
    ) -> bool {
        app_idle != conn.sent_in
            && batch_flusher.is_some()
            && !conn.link.tx_over_shm()
            && conn.batch.is_still_bursting(net)
    }

    /// Queues the rest of a message accepted only in part by the link ([`FastSendResult::InPart`]).
    #[cold]
    fn sent_fast_in_part(&mut self, ep_id: u32, op: &SendOp, tagged: bool, result: Result<usize>) {
        let id = self.eps[ep_id].conn_to(op.dest).unwrap_or(NONE);
        let (header, finish) = Self::header_and_finish(op, tagged);
        let header = StreamHeader { id: self.conns[id].tx_id.wrapping_sub(1), ..header };
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
        if let Route::Conn(id) = route
            && let Some(conn) = self.conns.get_mut(id)
        {
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
        let leaves = if waits {
            TxSchedule::InOrder
        } else {
            self.leaves(route, op.flags, op.buf.len(), false)
        };
        match (route, leaves) {
            (Route::Conn(id), TxSchedule::First | TxSchedule::Next) if !self.net.is_ring() => {
                self.send_immediately(ep_id, id, op, tagged);
                if leaves == TxSchedule::Next {
                    self.batch_has_left(id);
                }
            }
            (Route::Conn(id), TxSchedule::First | TxSchedule::Next | TxSchedule::Batched) => {
                self.send_coalesced(ep_id, id, op, tagged, leaves);
            }
            _ => self.send_later(ep_id, route, op, tagged, waits)?,
        }
        Ok(())
    }

    /// Decides the time of sending for a transfer of `len` bytes on this route; `known`: the
    /// application has already read the completions of the transfers before it.
    #[inline]
    fn leaves(&mut self, route: Route, flags: u64, len: usize, known: bool) -> TxSchedule {
        let app_is_not_polling = self.app_is_not_polling();
        let Route::Conn(id) = route else { return TxSchedule::InOrder };
        if app_is_not_polling && self.conns.get(id).is_some_and(|conn| conn.batch.batch_is_sent()) {
            self.account(id, &mut 0);
        }
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.is_clear()) else {
            return TxSchedule::InOrder;
        };
        conn.start_exposing(len);
        let (more, batched) = (flags & FI_MORE != 0, !conn.batch.is_empty());
        let free =
            (flags & FI_FENCE == 0 || (conn.is_settled() && !batched)) && !conn.sends_zcopy(len);
        let small = len <= COPY_MAX;
        if free && small && self.net.is_ring() {
            return self.leaves_by_ring(more, app_is_not_polling);
        }
        let alone = conn.sent_in != self.iterations
            || app_is_not_polling
            || known
            || conn.link.tx_over_shm();
        if free && small && (more || batched || (!alone && conn.batch.is_burst(&self.net))) {
            TxSchedule::Batched
        } else if free && !more && !batched && !self.net.is_ring() {
            if alone { TxSchedule::First } else { TxSchedule::Next }
        } else {
            TxSchedule::InOrder
        }
    }

    /// fi_write, in all its forms.
    pub(crate) fn write(&mut self, ep_id: u32, mut op: WriteOp) -> Result {
        op.flags |= self.eps[ep_id].identity.attr.access_flags;
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
        if self.cannot_do(ep_id, route, &header, &finish) {
            return Ok(());
        }
        if len <= COPY_MAX
            && let Route::Conn(id) = route
        {
            let known = finish.report && !acked && self.eps[ep_id].completions.cq_is_drained();
            let leaves = self.leaves(route, op.flags, len, known);
            if leaves != TxSchedule::InOrder {
                finish.flags |= self.eps[ep_id].times.begin();
                let dst = self.join(id, header, &op.remote, len, Some(finish));
                op.buf.copy_to(0, dst);
                self.joined(ep_id, id, op.flags, leaves);
                return Ok(());
            }
        }
        let mut outgoing = TxRequest::new(header, body_of(&op.buf, finish.inject)?, finish);
        outgoing.segments = self.encode_segments(route, &op.remote);
        self.enqueue(ep_id, route, outgoing, op.flags);
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
        if self.cannot_do(ep_id, route, &header, &finish) {
            return Ok(());
        }
        if let Route::Conn(id) = route {
            let leaves = self.leaves(route, op.flags, 0, false);
            if leaves != TxSchedule::InOrder {
                self.join(id, header, &op.remote, 0, None);
                finish.flags |= self.eps[ep_id].times.begin();
                self.conns[id].reads.push_back((op.buf, finish));
                self.joined(ep_id, id, op.flags, leaves);
                return Ok(());
            }
        }
        let mut outgoing = TxRequest::new(header, SendBody::Answer(op.buf), finish);
        outgoing.segments = self.encode_segments(route, &op.remote);
        self.enqueue(ep_id, route, outgoing, op.flags);
        Ok(())
    }

    /// Encodes segments of a peer's memory for the wire.
    ///
    /// The byte order is known after the peer's response. Until then the local one is assumed, and
    /// [`StreamState::established`] corrects it.
    pub(super) fn encode_segments(&self, route: Route, segments: &RemoteSegments) -> Box<[u8]> {
        let order = match route {
            Route::Conn(id) => self.conns.get(id).map_or(ByteOrder::Native, |conn| conn.order),
            Route::Later(_) => ByteOrder::Native,
        };
        StreamHeader::write_segments(order, segments.as_slice())
    }

    /// Responds to a peer's read of local memory, after the check of its right. Few bytes are
    /// copied into the batch now; more are gathered from the region when the link accepts them.
    pub(super) fn answer_read(&mut self, id: u32, segments: RemoteSegments, len: usize) -> Result {
        let header = StreamHeader { len: len as u64, ..StreamHeader::of(StreamOp::ReadRsp) };
        // A read that names no place needed no key, and does not count as an access.
        let flags = if segments.as_slice().is_empty() { 0 } else { FI_REMOTE_READ };
        let finish = TxCompletion { flags, len, ..TxCompletion::INTERNAL };
        let Self { conns, regions, .. } = self;
        let Some(conn) = conns.get_mut(id).filter(|conn| conn.batches_responses(len)) else {
            self.answer(id, TxRequest::new(header, SendBody::Region(segments, len), finish));
            return Ok(());
        };
        regions.open().read(&segments, FI_REMOTE_READ, 0, conn.join_answer(header, len, finish))?;
        self.answered(id);
        Ok(())
    }

    /// Copies responses still reading from a memory region about to be closed, so peers get the
    /// data as of their request. Without memory for the copies, or beyond [`MAX_BACKLOG`], the peers'
    /// connections end, because the protocol has no refusal.
    pub(super) fn save_answers(&mut self, key: u64) {
        self.copy_exposed(key);
        if self.backlog == 0 {
            return;
        }
        let reads =
            |conn: &StreamConn<N>| conn.backlog > 0 && conn.tx.iter().any(|one| one.reads(key));
        let ids: Vec<u32> =
            self.conns.iter().filter(|(_, conn)| reads(conn)).map(|(id, _)| id).collect();
        for id in ids {
            let Self { conns, regions, backlog, .. } = self;
            let opened = regions.open();
            let conn = &mut conns[id];
            let mut saved = Ok(());
            for answer in conn.tx.iter_mut().filter(|one| one.reads(key)) {
                saved = saved.and_then(|()| {
                    let more = answer.save(&opened, MAX_BACKLOG.saturating_sub(*backlog))?;
                    conn.backlog += more;
                    *backlog += more;
                    Ok(())
                });
            }
            drop(opened);
            if let Err(error) = saved {
                self.fail(id, error);
            }
        }
    }

    /// Copies exposed responses of a region, not read by the peers yet, to other memory.
    fn copy_exposed(&mut self, key: u64) {
        for id in self.conns.indices(StreamConn::is_exposing) {
            let conn = &mut self.conns[id];
            let most = MAX_BACKLOG.saturating_sub(self.backlog);
            match may_allocate().and_then(|()| conn.link.copy_exposed(key, most)) {
                Ok(retained) => {
                    (conn.retained, conn.backlog) =
                        (conn.retained + retained, conn.backlog + retained);
                    self.backlog += retained;
                }
                Err(error) => self.fail(id, error),
            }
        }
    }

    #[inline(always)]
    fn header_and_finish(op: &SendOp, tagged: bool) -> (StreamHeader, TxCompletion) {
        let (flags, acked) = level(op.flags);
        let len = op.buf.len();
        let header = StreamHeader {
            op: if tagged { StreamOp::Tag } else { StreamOp::Msg },
            flags,
            op_data: 0,
            id: 0,
            segments: 0,
            cq_data: op.data,
            tag: op.tag,
            len: len as u64,
        };
        let finish = TxCompletion {
            context: op.context,
            flags: FI_SEND | if tagged { FI_TAGGED } else { FI_MSG } | (op.flags & INTERNAL_OP),
            report: op.flags & FI_COMPLETION != 0,
            acked,
            weak: false,
            len,
            internal: false,
            inject: op.flags & FI_INJECT != 0,
            exposed: 0,
            refused: None,
        };
        (header, finish)
    }

    /// Queues a message not to be sent at once, or one that `waits` here until the peer requests
    /// it.
    fn send_later(
        &mut self,
        ep_id: u32,
        route: Route,
        op: &SendOp,
        tagged: bool,
        waits: bool,
    ) -> Result {
        let (mut header, finish) = Self::header_and_finish(op, tagged);
        if waits {
            header.op = StreamOp::TagRts;
        }
        let outgoing = TxRequest::new(header, body_of(&op.buf, finish.inject)?, finish);
        self.enqueue(ep_id, route, outgoing, op.flags);
        Ok(())
    }

    /// Adds a small message to the connection's batch, sent now or later as specified by `leaves`.
    fn send_coalesced(
        &mut self,
        ep_id: u32,
        conn_id: u32,
        op: &SendOp,
        tagged: bool,
        leaves: TxSchedule,
    ) {
        let (header, mut finish) = Self::header_and_finish(op, tagged);
        finish.flags |= self.eps[ep_id].times.begin();
        let dst = self.join(conn_id, header, &RemoteSegments::EMPTY, op.buf.len(), Some(finish));
        op.buf.copy_to(0, dst);
        self.joined(ep_id, conn_id, op.flags, leaves);
    }

    /// Adds a transfer to a connection's batch and returns the space for its `len` bytes. With
    /// `finish` it completes when the batch is sent, or when it is acknowledged; without it, when
    /// it is answered.
    #[inline]
    fn join(
        &mut self,
        id: u32,
        mut header: StreamHeader,
        segments: &RemoteSegments,
        len: usize,
        mut finish: Option<TxCompletion>,
    ) -> &mut [u8] {
        let conn = &mut self.conns[id];
        if let Some(finish) = &mut finish {
            conn.knows.adapt_level(&mut header, finish);
        }
        let mut wire = [0; 40];
        let wire_len = conn.write_header(&mut header, &mut wire);
        let (order, segments) = (conn.order, segments.as_slice());
        let before = SEGMENT_LEN * segments.len();
        let dst = match finish {
            // The acknowledgement may come as soon as these bytes have left, with a part of the
            // batch still here.
            Some(finish) if finish.acked => {
                conn.unacked.push_back(Some(finish));
                conn.batch.push_acked(&wire[..wire_len], before + len)
            }
            Some(finish) => conn.batch.push(&wire[..wire_len], before + len, finish),
            None => conn.batch.push_read(&wire[..wire_len], before + len),
        };
        let (of_segments, dst) = dst.split_at_mut(before);
        StreamHeader::put_segments(order, segments, of_segments);
        dst
    }

    /// Called when all bytes of a transfer are in the batch: sends the batch, or holds it until it
    /// is full, the application drives progress, or the flush timer expires.
    #[inline]
    fn joined(&mut self, ep_id: u32, conn_id: u32, flags: u64, leaves: TxSchedule) {
        self.eps[ep_id].tx_pending += 1;
        let conn = &mut self.conns[conn_id];
        let more = flags & FI_MORE != 0;
        // The message that others were held back for takes them along.
        let full = conn.batch.is_full(N::Link::settings().batch) || (conn.batch.more && !more);
        conn.batch.more |= more;
        if leaves != TxSchedule::Batched {
            conn.sent_in = self.iterations;
        }
        if full || leaves != TxSchedule::Batched {
            self.batches += 1;
            self.flush_conn(conn_id);
            if leaves != TxSchedule::First {
                self.batch_has_left(conn_id);
            }
            return;
        }
        self.hold(conn_id);
        let done = self.iterations + self.batches;
        if !more
            && !self.batch_flusher.as_mut().is_some_and(|batch_flusher| batch_flusher.order(done))
        {
            self.flush_conn(conn_id);
        }
    }

    /// Records a sent batch, or a message sent right after others, for the detection of bursts.
    fn batch_has_left(&mut self, id: u32) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.batch.has_left(&self.net);
        }
    }

    /// Sends a message of any size with nothing queued before it: passes header and bytes directly
    /// to the link.
    #[inline(always)]
    fn send_immediately(&mut self, ep_id: u32, conn_id: u32, op: &SendOp, tagged: bool) {
        let (mut header, mut finish) = Self::header_and_finish(op, tagged);
        let conn = &mut self.conns[conn_id];
        conn.knows.adapt_level(&mut header, &mut finish);
        conn.sent_in = self.iterations;
        let len = op.buf.len();
        let wire = self.packet.first_chunk_mut().expect("a packet has room for a header");
        let wire_len = conn.write_header(&mut header, wire);
        let result = if len <= COPY_MAX {
            op.buf.copy_to(0, &mut self.packet[wire_len..wire_len + len]);
            conn.link.send(&self.packet[..wire_len + len])
        } else {
            let mut list = GatherList::default();
            list.push_bytes(&self.packet[..wire_len]);
            op.buf.gather(0, &mut list);
            conn.link.send_list(&mut list, CopyMode::Copied)
        };
        match result {
            Ok(sent) if sent == wire_len + len => {
                let ep = &mut self.eps[ep_id];
                if finish.acked {
                    ep.tx_pending += 1;
                    finish.flags |= ep.times.begin();
                    conn.unacked.push_back(Some(finish));
                } else {
                    ep.completions.done(finish.entry(), finish.report);
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
        let ep = &mut self.eps[ep_id];
        ep.tx_pending += 1;
        finish.flags |= ep.times.begin();
        let conn = &mut self.conns[conn_id];
        let sent = match result {
            Ok(sent) => Ok(sent),
            Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => Ok(0),
            Err(error) => Err(error),
        };
        let body = body_of(&op.buf, finish.inject);
        let (sent, body) = match sent.and_then(|sent| Ok((sent, body?))) {
            Ok(both) => both,
            Err(error) => {
                // The message fails with all others on this connection.
                conn.tx.push_back(TxRequest::new(header, SendBody::Empty, finish));
                return self.sent_without_effect(conn_id, error);
            }
        };
        let mut outgoing = TxRequest::new(header, body, finish);
        outgoing.wire_len = header.write(conn.order, &mut outgoing.wire);
        outgoing.sent = sent;
        conn.tx.push_back(outgoing);
        if self.net.is_due() {
            self.iterations += 1;
            self.poll_io();
            // It may have ended, and its number be another's, to whom that does nothing.
            if self.conns.get(conn_id).is_none_or(|conn| !conn.is_connected()) {
                return;
            }
            self.flush(conn_id);
        }
        self.mark_active(conn_id);
        self.watch_unsent(conn_id);
    }

    /// Ends a connection after sending failed with `error`. Data sent by the peer on it before is
    /// received first.
    #[cold]
    pub(super) fn sent_without_effect(&mut self, id: u32, error: Error) {
        if self.staging.is_empty() || self.hearing == id {
            // The connection is being read just now, or what was read of it before is understood: what
            // comes behind that must not overtake it. Reading finds the end by itself.
            return;
        }
        while self.conns.get(id).is_some_and(|conn| !conn.blocked) && self.read(id) {}
        match self.conns.get(id) {
            // A message on it waits for a receive: the end of the stream is read behind that.
            Some(conn) if conn.blocked => self.end_sending(id, error),
            _ => self.fail(id, error),
        }
    }

    /// Sends the data queued on a connection, several messages per call, until the link accepts no
    /// more. Returns true if anything was sent or the connection ended.
    pub(super) fn flush(&mut self, id: u32) -> bool {
        let mut moved = false;
        if N::Link::settings().max_saved_size != usize::MAX {
            self.number_announcements(id);
        }
        if self.conns.get(id).is_some_and(|conn| conn.batch.batch_is_sent()) {
            self.account(id, &mut 0);
            moved = true;
        }
        loop {
            let Some(conn) = self.conns.get_mut(id) else { return true };
            if !conn.has_unsent() {
                return moved;
            }
            let (order, mut tx_id) = (conn.order, conn.tx_id);
            let mut list = GatherList::default();
            list.push_bytes(conn.batch.unsent());
            // The table of memory regions is opened only for answers to peers' reads:
            // registering memory must not wait for other sends.
            let opened = OnceCell::new();
            let mut gathered = Ok(());
            let mut way = CopyMode::Copied;
            let settled = conn.is_settled() && conn.batch.is_empty();
            let keeps = conn.link.tx_over_shm();
            for (position, outgoing) in conn.tx.iter_mut().enumerate() {
                if !list.has_space() || (outgoing.is_fenced() && !(settled && position == 0)) {
                    break;
                }
                if outgoing.wire_len == 0 {
                    conn.knows.adapt_level(&mut outgoing.header, &mut outgoing.finish);
                    outgoing.header.id = tx_id;
                    tx_id = tx_id.wrapping_add(1);
                    count_header(&conn.sent, &outgoing.header);
                    outgoing.wire_len = outgoing.header.write(order, &mut outgoing.wire);
                    trace("to", &conn.link, &outgoing.header);
                }
                if let Some(zcopy) = outgoing.zcopy(&conn.zerocopy, keeps) {
                    // The head of a zero-copy message goes with what is before it, then its body
                    // alone.
                    if !outgoing.is_at_body() {
                        outgoing.gather_head(&mut list);
                        way = CopyMode::MoreFollows;
                        break;
                    }
                    way = zcopy;
                }
                let outgoing = &*outgoing;
                gathered = gathered.and(outgoing.gather(&mut list, &self.regions, &opened));
                if way.is_zcopy() {
                    break;
                }
            }
            conn.tx_id = tx_id;
            let wanted = list.len();
            let mut result = match gathered {
                // Exposed buffers are the library's until completion, reported by the kernel unless
                // it copies them.
                Ok(()) => self.net.transfer(&conn.link, LinkOp::SendList(&mut list, way)),
                // A region is gone of which a peer was to be answered, and was not copied
                // ([`StreamState::save_answers`]): with the rest of the answer goes the stream.
                Err(error) => Err(error),
            };
            if way.is_zcopy() && result == Err(Error::NOBUFS) {
                // The system has no memory for more zero-copy notices just now (optmem_max).
                way = CopyMode::Copied;
                result = self.net.transfer(&conn.link, LinkOp::SendList(&mut list, way));
            }
            drop(opened);
            let mut sent = match result {
                Ok(sent) => sent,
                Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => 0,
                Err(error) => {
                    match gathered {
                        Ok(()) => self.sent_without_effect(id, error),
                        Err(_) => self.fail(id, error),
                    }
                    return true;
                }
            };
            if way.is_zcopy()
                && sent > 0
                && let Some(zerocopy) = &mut conn.zerocopy
            {
                zerocopy.called();
                conn.exposes();
                if !std::mem::replace(&mut conn.watched, true) {
                    let token = TOKEN_CONN | u64::from(id);
                    let _ = self.net.poller().add(conn.link.id(), token, Interest::NONE);
                }
            }
            moved |= sent > 0;
            let full = sent < wanted;
            self.account(id, &mut sent);
            // Parts too small to be exposed were copied, so the operation may be complete: no peer
            // signals that, and another thread may wait for it.
            if way.is_zcopy() && self.conns.get(id).is_some_and(|conn| conn.link.tx_over_shm()) {
                self.read_notices(id);
            }
            if full {
                return moved;
            }
        }
    }

    /// Subtracts `sent` bytes from the batch and the queue, and completes the transfers sent to
    /// their last byte, or moves them to those awaiting acknowledgements or responses. Transfers of
    /// the batch with an acknowledgement or response are already waiting there.
    pub(super) fn account(&mut self, id: u32, sent: &mut usize) {
        let conn = &mut self.conns[id];
        let ep = &mut self.eps[conn.ep];
        if !conn.batch.account(sent) {
            return;
        }
        for finish in conn.batch.finished() {
            ep.finish_tx(&finish, Ok(()));
        }
        while let Some(outgoing) = conn.tx.front_mut() {
            if outgoing.wire_len == 0 {
                return;
            }
            let total = outgoing.total();
            let part = (*sent).min(total - outgoing.sent);
            outgoing.sent += part;
            *sent -= part;
            if outgoing.sent < total {
                return;
            }
            let Some(outgoing) = conn.tx.pop_front() else { return };
            let backlog = outgoing.backlog();
            conn.backlog -= backlog;
            self.backlog -= backlog;
            if outgoing.header.op == StreamOp::AtomicRsp {
                conn.fetched -= outgoing.body.len();
            }
            if outgoing.header.op == StreamOp::TagRts {
                conn.waiting.insert(outgoing.header.op_data, outgoing);
            } else if let SendBody::Answer(buf) = outgoing.body {
                conn.reads.push_back((buf, outgoing.finish));
            } else if outgoing.finish.acked {
                let exposed = conn.zerocopy.as_mut().map_or(0, |zerocopy| zerocopy.sent_for_ack());
                conn.unacked.push_back(Some(TxCompletion { exposed, ..outgoing.finish }));
            } else {
                let finish = match &mut conn.zerocopy {
                    Some(zerocopy) => zerocopy.sent(outgoing.finish),
                    None => Some(outgoing.finish),
                };
                if let Some(finish) = finish {
                    ep.finish_tx(&finish, Ok(()));
                }
            }
        }
    }

    /// Sends a header of the provider itself, such as an acknowledgement, in order with other
    /// answers. Ends the connection if too many wait for the peer.
    pub(super) fn send_internal(&mut self, id: u32, header: StreamHeader) {
        if let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.batches_responses(0)) {
            conn.join_answer(header, 0, TxCompletion::INTERNAL);
            return self.answered(id);
        }
        if self.is_overrun(id) {
            return self.fail(id, Error::NOBUFS);
        }
        self.answer(id, TxRequest::new(header, SendBody::Empty, TxCompletion::INTERNAL));
    }

    /// Acknowledges a transfer: `number` counts the connection's transfers with acknowledgement.
    /// Acknowledgements during parsing are sent together at its end.
    pub(super) fn acknowledge(&mut self, id: u32, number: u64) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.knows.outcomes && self.hearing == id {
            conn.answers = true;
            let complete = conn.acks.add(number);
            if let Some(run) = complete {
                self.send_internal(id, StreamHeader::ack(run));
            }
        } else if conn.knows.acks {
            self.send_internal(id, StreamHeader::ack(AckRun::of(number)));
        } else {
            self.send_internal(id, StreamHeader::ack_oldest());
        }
    }

    /// Refuses a peer's read, or a write to be acknowledged under `number`. The peer's other
    /// transfers continue. If the peer does not support refusals
    /// ([`PeerFeatures::outcomes`](crate::wire::PeerFeatures::outcomes)), nothing more is sent, so the peer sees
    /// the end of the connection. Its messages in flight are still received.
    pub(super) fn refuse(&mut self, id: u32, write: Option<u64>, error: Error) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.knows.outcomes {
            let code = u8::try_from(error.code()).unwrap_or(libc::EIO as u8);
            let reject_reason = match write {
                Some(number) => StreamHeader::refuse_write(number, code),
                None => StreamHeader::refuse_read(code),
            };
            return self.send_internal(id, reject_reason);
        }
        if conn.unknown_conn.is_some() {
            // An unknown peer has no messages to lose that the application waits for.
            self.fail(id, error);
        } else if !conn.sends_no_more {
            conn.link.end_sending();
            self.end_sending(id, error);
        }
    }

    /// Queues a response awaited by a peer, and sends it now or with others.
    pub(super) fn answer(&mut self, id: u32, answer: TxRequest) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| !conn.sends_no_more) else { return };
        let backlog = answer.backlog();
        conn.backlog += backlog;
        self.backlog += backlog;
        conn.start_exposing(answer.body.len());
        conn.push_answer(answer);
        self.answered(id);
    }

    /// Sends a newly queued response: now, or at the end of parsing if bytes of this connection are
    /// being parsed.
    fn answered(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        let enough = conn.batch.is_full(N::Link::settings().batch) && conn.tx.is_empty();
        if self.hearing == id && !enough {
            conn.answers = true;
        } else {
            self.push_on(id);
        }
    }

    /// Sends the responses to the requests just parsed.
    #[inline]
    pub(super) fn send_answers(&mut self, id: u32) {
        if let Some(conn) = self.conns.get_mut(id)
            && std::mem::take(&mut conn.answers)
        {
            if let Some(run) = conn.acks.take() {
                self.send_internal(id, StreamHeader::ack(run));
            }
            if self.may_hold_answers(id) {
                return self.hold(id);
            }
            self.flush(id);
            self.see_to_rest(id);
        }
    }

    /// Returns true if responses may be sent in the next progress iteration, because local reads
    /// have completed in this one. The application is about to post others. Their requests would
    /// follow many bytes of responses otherwise, and the two directions of the connection would
    /// alternate.
    fn may_hold_answers(&mut self, id: u32) -> bool {
        let (iteration, done) = (self.iterations, self.iterations + self.batches);
        let both =
            |conn: &StreamConn<N>| conn.answered_in == iteration && conn.has_waiting_answers();
        self.conns.get(id).is_some_and(both)
            && self.batch_flusher.as_mut().is_some_and(|batch_flusher| batch_flusher.order(done))
    }

    /// Schedules the sending of data not accepted by the link.
    fn see_to_rest(&mut self, id: u32) {
        if self.conns.get(id).is_some_and(StreamConn::has_unsent) {
            self.mark_active(id);
            self.watch_unsent(id);
        }
    }

    /// Returns true if responses queued for a peer use too much memory. Its requests are then not
    /// read until it reads some responses.
    #[inline]
    pub(super) fn has_many_pending(&self, id: u32) -> bool {
        let much = |conn: &StreamConn<N>| {
            conn.backlog > FAIR_BACKLOG
                && (self.backlog > MAX_BACKLOG
                    || self.eps[conn.ep].matcher.is_unknown_peer(conn.peer))
        };
        self.conns.get(id).is_some_and(much)
    }

    /// Returns true if too many responses are queued for a peer, and its connection must end. The
    /// application's own transfers in the queue are bounded by tx_attr.size.
    pub(super) fn is_overrun(&self, id: u32) -> bool {
        let own = |conn: &StreamConn<N>| self.eps[conn.ep].identity.attr.tx_size;
        self.conns.get(id).is_some_and(|conn| conn.tx.len() >= MAX_ANSWERS + own(conn))
    }

    /// Sends a newly queued transfer if it is alone in the queue or before a fence; the rest is
    /// sent later.
    pub(super) fn push_on(&mut self, id: u32) {
        let tx = &self.conns[id].tx;
        if tx.len() <= 1 || tx.iter().take(2).any(TxRequest::is_fenced) {
            self.flush(id);
        }
        self.see_to_rest(id);
    }

    /// Handles the peer's acknowledgement of these transfers, or of the oldest unacknowledged one.
    /// Fails with -FI_EPROTO if there are none.
    pub(super) fn acknowledged(&mut self, id: u32, run: Option<AckRun>) -> Result {
        match run {
            None => self.settle(id, None, None)?,
            Some(AckRun { first, count }) => {
                for number in first..first.saturating_add(count.into()) {
                    self.settle(id, Some(number), None)?;
                }
            }
        }
        self.lift_fence(id);
        Ok(())
    }

    /// The peer refused the write of this number; -FI_EPROTO if there is none.
    pub(super) fn write_refused(&mut self, id: u32, number: u64, error: Error) -> Result {
        self.settle(id, Some(number), Some(error))?;
        self.lift_fence(id);
        Ok(())
    }

    /// Ends the transfer of this number, or the oldest one, among those awaiting an
    /// acknowledgement. Fails with -FI_EPROTO if there is none.
    fn settle(&mut self, id: u32, number: Option<u64>, refused: Option<Error>) -> Result {
        let Some(conn) = self.conns.get_mut(id) else { return Ok(()) };
        if conn.ignores_answers {
            return Ok(());
        }
        let finish = conn.take_unacked(number).ok_or(Error::PROTO)?;
        let finish = TxCompletion { refused, ..finish };
        let over = match &mut conn.zerocopy {
            Some(zerocopy) if finish.exposed != 0 => zerocopy.acknowledged(finish.exposed, finish),
            _ => Some(finish),
        };
        if let Some(finish) = over {
            self.eps[conn.ep].finish_tx(&finish, Ok(()));
        }
        Ok(())
    }

    /// Sends fenced transfers waiting for the operation just completed.
    pub(super) fn lift_fence(&mut self, id: u32) {
        if self.conns.get(id).is_some_and(|conn| !conn.tx.is_empty() && conn.has_unsent()) {
            self.push_on(id);
        }
    }

    /// The peer asks for the announced message of this number: sends it. -FI_EPROTO if there is
    /// none.
    pub(super) fn clear_to_send(&mut self, id: u32, number: u8) -> Result {
        let conn = &mut self.conns[id];
        if conn.ignores_answers {
            return Ok(());
        }
        let waiting = conn.waiting.remove(&number).ok_or(Error::PROTO)?;
        let header = StreamHeader {
            op: StreamOp::Data,
            flags: waiting.header.flags & (DELIVERY_COMPLETE | COMMIT_COMPLETE | MATCH_COMPLETE),
            op_data: number,
            id: 0,
            segments: 0,
            cq_data: 0,
            tag: 0,
            len: waiting.body.len() as u64,
        };
        self.answer(id, TxRequest::new(header, waiting.body, waiting.finish));
        Ok(())
    }

    /// Numbers the rendezvous messages (1 to 255) with their RTS about to be sent; without a free
    /// number a message is sent eagerly.
    fn number_announcements(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let mut used: Vec<u8> = conn.waiting.keys().copied().collect();
        used.extend(
            conn.tx
                .iter()
                // Numbers of messages that are announced already, or asked for and not sent yet.
                .filter(|o| {
                    matches!(o.header.op, StreamOp::TagRts | StreamOp::Data)
                        && o.header.op_data != 0
                })
                .map(|o| o.header.op_data),
        );
        for outgoing in &mut conn.tx {
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
