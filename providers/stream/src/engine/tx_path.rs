//! Sending: from transfers to bytes for a link.
use super::backlog::Backlog;
use super::batcher::TxBatcher;
use super::device_send::ReadyBytes;
use super::ep_table::EpTable;
use super::incoming::DIRECT_MIN;
use super::io::EngineIo;
use super::peer_devices;
use super::tokens::TOKEN_CONN;
use super::trace::trace;
use super::traffic::count_header;
use super::transfer::{
    ACKED, COPY_MAX, CopiedPacket, Route, SendBody, TxCompletion, TxRequest, TxSchedule, body_of,
    level,
};
use super::zerocopy::Zerocopy;
use crate::transport::{ByteLink, LinkOp, LinkPoller, ShmLink, ShmTransport};
use crate::wire::{ByteOrder, SEGMENT_LEN, StreamHeader, StreamOp};
use ofi_provider::abi::{
    FI_COMPLETION, FI_FENCE, FI_INJECT, FI_MORE, FI_MSG, FI_REMOTE_CQ_DATA, FI_SEND, FI_TAGGED,
};
use ofi_provider::api::{FastSend, RemoteSegments, SendOp};
use ofi_provider::buf::{CopyMode, GatherList};
use ofi_provider::cq::{Completion, Context};
use ofi_provider::deferred::is_group_notice;
use ofi_provider::error::{Error, Result};
use ofi_provider::mr::MrTable;
use ofi_provider::reserved::{INTERNAL_OP, WITH_DEVICES};
use ofi_provider::slab::NONE;
use ofi_provider::sys::Interest;
use std::cell::OnceCell;
use std::sync::Arc;

/// Flags of an operation excluding the fast path (`send_fast`).
const SPECIAL: u64 = FI_MORE | FI_FENCE | ACKED | INTERNAL_OP | WITH_DEVICES;

/// Reason for the end of the connection with this number. [`RxPath::conclude`](super::rx_path::RxPath::conclude)
/// ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TxFailure {
    /// The link takes no bytes. Data sent by the peer before is still to be received.
    Link(u32, Error),
    /// The connection ends.
    Connection(u32, Error),
}

/// Result of sending on a connection.
pub(super) type TxResult<T = ()> = std::result::Result<T, TxFailure>;

impl TxRequest {
    /// Returns the zero-copy mode of the message's body, if it is sent without a copy. `keeps`: the
    /// link can store the bytes of a region closed before the peer has them
    /// ([`ShmLink::copy_exposed`]).
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

#[inline(always)]
pub(super) fn header_and_finish(op: &SendOp, tagged: bool) -> (StreamHeader, TxCompletion) {
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

/// Result of [the fast-path send](TxPath::send_fast).
pub(super) enum FastSendResult {
    /// All of it has left.
    Sent,
    /// It is no such message, or not the time for it.
    Not,
    /// The link took a part of it, or nothing.
    InPart(Result<usize>),
}

/// Sending side of an engine: transfers of the application, and responses to peers.
pub(super) struct TxPath<N: ShmTransport> {
    pub(super) io: EngineIo<N>,
    pub(super) eps: EpTable,
    pub(super) batcher: TxBatcher<N::Flusher>,
    /// Buffer for a header and a small message sent together at once.
    pub(super) packet: Box<CopiedPacket>,
    /// Registered memory regions of the domain, readable and writable by peers.
    pub(super) regions: Arc<MrTable>,
    pub(super) backlog: Backlog,
    /// Connection with its bytes being parsed, or `NONE`: its responses are sent when parsing is
    /// done.
    pub(super) hearing: u32,
}

impl<N: ShmTransport> TxPath<N> {
    #[inline(always)]
    pub(super) fn new(net: N, regions: Arc<MrTable>) -> Self {
        Self {
            io: EngineIo::new(net),
            eps: EpTable::default(),
            batcher: TxBatcher::default(),
            packet: Box::new([0; size_of::<CopiedPacket>()]),
            regions,
            backlog: Backlog::default(),
            hearing: NONE,
        }
    }

    /// Returns true if the peer is connected and does not support the operation of a header. Only
    /// the transfer fails then.
    #[inline]
    pub(super) fn cannot_do(
        &mut self,
        ep_id: u32,
        route: Route,
        header: &StreamHeader,
        finish: &TxCompletion,
    ) -> bool {
        let Route::Conn(id) = route else { return false };
        let can = self
            .io
            .conns
            .get(id)
            .is_none_or(|conn| conn.knows.takes(header) || !conn.is_connected());
        if !can {
            let ep = &mut self.eps[ep_id];
            ep.tx_pending += 1;
            ep.finish_tx(finish, Err(Error::OPNOTSUPP));
        }
        !can
    }

    /// Fails the transfers queued for a new connection if its peer does not support them: atomic
    /// operations, several remote segments, or multicast notices. Nothing else fails.
    pub(super) fn refuse_unknown(&mut self, id: u32) {
        let Some(conn) = self.io.conns.get_mut(id) else { return };
        let knows = conn.knows;
        let is_notice = |outgoing: &TxRequest| {
            outgoing.header.op == StreamOp::Tag
                && is_group_notice(outgoing.finish.flags, outgoing.header.tag)
        };
        let is_unknown = |outgoing: &TxRequest| {
            !knows.takes(&outgoing.header) || (!knows.multicast && is_notice(outgoing))
        };
        if !conn.tx.iter().any(is_unknown) {
            return;
        }
        for outgoing in std::mem::take(&mut conn.tx) {
            if is_unknown(&outgoing) {
                self.eps[conn.ep].finish_tx(&outgoing.finish, Err(Error::OPNOTSUPP));
            } else {
                conn.tx.push_back(outgoing);
            }
        }
    }

    /// Queues a transfer and, unless FI_MORE announces others, sends as much as the link accepts.
    pub(super) fn enqueue(
        &mut self,
        ep_id: u32,
        route: Route,
        mut outgoing: TxRequest,
        flags: u64,
    ) -> TxResult {
        outgoing.fence = flags & FI_FENCE != 0;
        let more = flags & FI_MORE != 0;
        let ep = &mut self.eps[ep_id];
        ep.tx_pending += 1;
        outgoing.finish.flags |= ep.times.begin();
        let id = match route {
            Route::Later(peer) => {
                ep.peers[peer].extra.parked.push_back(outgoing);
                return Ok(());
            }
            Route::Conn(id) => id,
        };
        let conn = &mut self.io.conns[id];
        conn.fenced |= outgoing.fence;
        conn.start_exposing(outgoing.body.len());
        conn.push_transfer(outgoing);
        if !conn.is_connected() {
            return Ok(());
        }
        // A request leaves with the answers that are held, before them.
        let with_answers = conn.has_waiting_answers() && self.batcher.held().contains(&id);
        if more || with_answers {
            self.batcher.hold(id);
            return Ok(());
        }
        self.flush_conn(id)
    }

    /// Sends the data queued on a connection; the rest is sent when the poller reports the link
    /// writable.
    fn flush_conn(&mut self, id: u32) -> TxResult {
        let flushed = self.flush(id);
        self.io.mark_active(id);
        self.io.watch_unsent(id);
        flushed.map(|_| ())
    }

    /// Fast path of a small message without special flags, with nothing queued before it: saves the
    /// queue entry and its flush. In any other case it has changed nothing.
    #[inline(always)]
    pub(super) fn send_fast<const DATA: bool>(
        &mut self,
        ep_id: u32,
        op: FastSend<'_>,
        tagged: bool,
        cq_is_drained: bool,
    ) -> FastSendResult {
        let Self { io: EngineIo { net, conns, poll, .. }, eps, packet, batcher, .. } = self;
        let packet: &mut CopiedPacket = packet;
        let Some(ep) = eps.get(ep_id) else { return FastSendResult::Not };
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
            && conn.sent_in == poll.iterations()
            && !cq_is_drained
            && !next
                .as_ref()
                .map_or_else(|| report && ep.completions.cq_is_drained(), |next| next.is_first())
            && batcher.gathers(conn, net)
        {
            return FastSendResult::Not;
        }
        conn.tx_id = id.wrapping_add(1);
        conn.sent.one(len);
        if !in_memory {
            conn.sent_in = poll.iterations();
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

    /// Decides the time of sending for a transfer of `len` bytes on this route; `known`: the
    /// application has already read the completions of the transfers before it.
    #[inline]
    pub(super) fn leaves(
        &mut self,
        route: Route,
        flags: u64,
        len: usize,
        known: bool,
    ) -> TxSchedule {
        let app_is_not_polling = self.batcher.app_is_not_polling(self.io.poll.iterations());
        let Route::Conn(id) = route else { return TxSchedule::InOrder };
        if app_is_not_polling
            && self.io.conns.get(id).is_some_and(|conn| conn.batch.batch_is_sent())
        {
            self.account(id, &mut 0);
        }
        let Some(conn) = self.io.conns.get_mut(id).filter(|conn| conn.is_clear()) else {
            return TxSchedule::InOrder;
        };
        conn.start_exposing(len);
        let (more, batched) = (flags & FI_MORE != 0, !conn.batch.is_empty());
        let free =
            (flags & FI_FENCE == 0 || (conn.is_settled() && !batched)) && !conn.sends_zcopy(len);
        let small = len <= COPY_MAX;
        if free && small && self.io.net.is_ring() {
            return self.batcher.leaves_by_ring(&self.io.net, self.io.poll.iterations(), more);
        }
        let alone = conn.sent_in != self.io.poll.iterations()
            || app_is_not_polling
            || known
            || conn.link.tx_over_shm();
        if free && small && (more || batched || (!alone && conn.batch.is_burst(&self.io.net))) {
            TxSchedule::Batched
        } else if free && !more && !batched && !self.io.net.is_ring() {
            if alone { TxSchedule::First } else { TxSchedule::Next }
        } else {
            TxSchedule::InOrder
        }
    }

    /// Encodes segments of a peer's memory for the wire.
    ///
    /// The byte order is known after the peer's response. Until then the local one is assumed, and
    /// [`Handshake`](super::handshake::Handshake) corrects it.
    pub(super) fn encode_segments(&self, route: Route, segments: &RemoteSegments) -> Box<[u8]> {
        let order = match route {
            Route::Conn(id) => self.io.conns.get(id).map_or(ByteOrder::Native, |conn| conn.order),
            Route::Later(_) => ByteOrder::Native,
        };
        StreamHeader::write_segments(order, segments.as_slice())
    }

    /// Queues a message not to be sent at once, or one that `waits` here until the peer requests
    /// it.
    pub(super) fn send_later(
        &mut self,
        ep_id: u32,
        route: Route,
        op: &SendOp,
        tagged: bool,
        waits: bool,
    ) -> Result<TxResult> {
        let (mut header, finish) = header_and_finish(op, tagged);
        if waits {
            header.op = StreamOp::TagRts;
        }
        let body = body_of(&op.buf, finish.inject, self.eps[ep_id].bounce.as_ref())?;
        let outgoing = TxRequest::new(header, body, finish);
        Ok(self.enqueue(ep_id, route, outgoing, op.flags))
    }

    /// Adds a small message to the connection's batch, sent now or later as specified by `leaves`.
    pub(super) fn send_coalesced(
        &mut self,
        ep_id: u32,
        conn_id: u32,
        op: &SendOp,
        tagged: bool,
        leaves: TxSchedule,
    ) -> TxResult {
        let (header, mut finish) = header_and_finish(op, tagged);
        finish.flags |= self.eps[ep_id].times.begin();
        let dst = self.join(conn_id, header, &RemoteSegments::EMPTY, op.buf.len(), Some(finish));
        op.buf.copy_to(0, dst);
        self.joined(ep_id, conn_id, op.flags, leaves)
    }

    /// Adds a transfer to a connection's batch and returns the space for its `len` bytes. With
    /// `finish` it completes when the batch is sent, or when it is acknowledged; without it, when
    /// it is answered.
    #[inline]
    pub(super) fn join(
        &mut self,
        id: u32,
        mut header: StreamHeader,
        segments: &RemoteSegments,
        len: usize,
        mut finish: Option<TxCompletion>,
    ) -> &mut [u8] {
        let conn = &mut self.io.conns[id];
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
    pub(super) fn joined(
        &mut self,
        ep_id: u32,
        conn_id: u32,
        flags: u64,
        leaves: TxSchedule,
    ) -> TxResult {
        self.eps[ep_id].tx_pending += 1;
        let conn = &mut self.io.conns[conn_id];
        let more = flags & FI_MORE != 0;
        // The message that others were held back for takes them along.
        let full = conn.batch.is_full(N::Link::settings().batch) || (conn.batch.more && !more);
        conn.batch.more |= more;
        if leaves != TxSchedule::Batched {
            conn.sent_in = self.io.poll.iterations();
        }
        if full || leaves != TxSchedule::Batched {
            self.batcher.count_batch();
            let flushed = self.flush_conn(conn_id);
            if leaves != TxSchedule::First {
                self.batch_has_left(conn_id);
            }
            return flushed;
        }
        self.batcher.hold(conn_id);
        if !more && !self.batcher.arm(self.io.poll.iterations()) {
            return self.flush_conn(conn_id);
        }
        Ok(())
    }

    /// Records a sent batch, or a message sent right after others, for the detection of bursts.
    pub(super) fn batch_has_left(&mut self, id: u32) {
        if let Some(conn) = self.io.conns.get_mut(id) {
            conn.batch.has_left(&self.io.net);
        }
    }

    /// Sends the data queued on a connection, several messages per call, until the link accepts no
    /// more. Returns true if anything was sent or the connection has ended.
    pub(super) fn flush(&mut self, id: u32) -> TxResult<bool> {
        let mut moved = false;
        if N::Link::settings().max_saved_size != usize::MAX {
            if let Some(conn) = self.io.conns.get_mut(id) {
                conn.number_announcements();
            }
        }
        if self.io.conns.get(id).is_some_and(|conn| conn.batch.batch_is_sent()) {
            self.account(id, &mut 0);
            moved = true;
        }
        loop {
            let Some(conn) = self.io.conns.get_mut(id) else { return Ok(true) };
            if !conn.has_unsent() {
                return Ok(moved);
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
            let (mut copied, mut failed, mut by_cells) = (ReadyBytes::All, None, false);
            for (position, outgoing) in conn.tx.iter_mut().enumerate() {
                if !list.has_space() || (outgoing.is_fenced() && !(settled && position == 0)) {
                    break;
                }
                if let SendBody::Device(send) = &mut outgoing.body {
                    let pool = self.eps[conn.ep].bounce.as_ref();
                    if let Some(pool) = pool.filter(|_| outgoing.header.op != StreamOp::TagRts) {
                        let least = N::Link::settings().local.min.max(DIRECT_MIN);
                        peer_devices::plan(&mut conn.devices, &conn.link, send, pool, least);
                        by_cells = send.next_cell().is_some();
                    }
                    if !by_cells {
                        match outgoing.advance_copies(pool) {
                            Ok(ready) => copied = ready,
                            Err(error) => failed = Some(error),
                        }
                    }
                    if copied == ReadyBytes::None || failed.is_some() {
                        break;
                    }
                }
                if outgoing.wire_len == 0 {
                    conn.knows.adapt_level(&mut outgoing.header, &mut outgoing.finish);
                    outgoing.header.id = tx_id;
                    tx_id = tx_id.wrapping_add(1);
                    count_header(&conn.sent, &outgoing.header);
                    outgoing.wire_len = outgoing.header.write(order, &mut outgoing.wire);
                    trace("to", &conn.link, &outgoing.header);
                }
                if by_cells {
                    // The head goes with the data before it, then the cells alone.
                    if !outgoing.is_at_body() {
                        outgoing.gather_head(&mut list);
                        way = CopyMode::MoreFollows;
                    }
                    break;
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
                if way.is_zcopy() || copied != ReadyBytes::All {
                    break;
                }
            }
            conn.tx_id = tx_id;
            if list.is_empty() && gathered.is_ok() {
                drop(opened);
                if let Some(error) = failed {
                    self.fail_first(id, error)?;
                    moved = true;
                    continue;
                }
                if by_cells {
                    if !self.send_cells(id)? {
                        return Ok(moved);
                    }
                    moved = true;
                    continue;
                }
                self.await_tx_copies(id);
                return Ok(moved);
            }
            let wanted = list.len();
            let mut result = match gathered {
                // Exposed buffers are the library's until completion, reported by the kernel unless
                // it copies them.
                Ok(()) => self.io.net.transfer(&conn.link, LinkOp::SendList(&mut list, way)),
                // A region is gone of which a peer was to be answered, and was not copied
                // ([`RxPath::save_answers`](super::rx_path::RxPath::save_answers)): with the rest of the answer goes the stream.
                Err(error) => Err(error),
            };
            if way.is_zcopy() && result == Err(Error::NOBUFS) {
                // The system has no memory for more zero-copy notices just now (optmem_max).
                way = CopyMode::Copied;
                result = self.io.net.transfer(&conn.link, LinkOp::SendList(&mut list, way));
            }
            drop(opened);
            let mut sent = match result {
                Ok(sent) => sent,
                Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => 0,
                Err(error) => {
                    return Err(match gathered {
                        Ok(()) => TxFailure::Link(id, error),
                        Err(_) => TxFailure::Connection(id, error),
                    });
                }
            };
            if way.is_zcopy() && sent > 0 {
                self.called_zcopy(id);
            }
            moved |= sent > 0;
            let full = sent < wanted;
            self.account(id, &mut sent);
            // Parts too small to be exposed were copied, so the operation may be complete: no peer
            // signals that, and another thread may wait for it.
            if way.is_zcopy() && self.io.conns.get(id).is_some_and(|conn| conn.link.tx_over_shm()) {
                self.read_notices(id);
            }
            if full {
                return Ok(moved);
            }
        }
    }

    /// Records a zero-copy call for the message being sent on a connection.
    pub(super) fn called_zcopy(&mut self, id: u32) {
        let conn = &mut self.io.conns[id];
        if let Some(zerocopy) = &mut conn.zerocopy {
            zerocopy.called();
            conn.exposes();
            if !std::mem::replace(&mut conn.watched, true) {
                let token = TOKEN_CONN | u64::from(id);
                let _ = self.io.net.poller().add(conn.link.id(), token, Interest::NONE);
            }
        }
    }

    /// Subtracts `sent` bytes from the batch and the queue, and completes the transfers sent to
    /// their last byte, or moves them to those awaiting acknowledgements or responses. Transfers of
    /// the batch with an acknowledgement or response are already waiting there.
    pub(super) fn account(&mut self, id: u32, sent: &mut usize) {
        let conn = &mut self.io.conns[id];
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
            self.backlog.subtract(&mut conn.backlog, backlog);
            if outgoing.header.op == StreamOp::AtomicRsp {
                conn.fetched -= outgoing.body.len();
            }
            if outgoing.header.op == StreamOp::TagRts {
                conn.waiting.insert(outgoing.header.op_data, outgoing);
            } else if let SendBody::Answer(buf) = outgoing.body {
                conn.reads.push_back((buf, outgoing.finish));
            } else if outgoing.finish.acked {
                if let Some(finish) = conn.await_ack(outgoing.finish) {
                    ep.finish_tx(&finish, Ok(()));
                }
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
}
