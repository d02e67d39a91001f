//! Receiving: from bytes to messages to the application's buffers.
//!
//! Small messages are read many at a time into the engine's staging buffer and copied from there.
//! The rest of a large message is read directly into its target buffer. An unexpected message is
//! buffered, up to a bound. Beyond it the connection is not read until a receive matches the
//! blocking message or others, so the rest waits at its sender.
use super::arrival::{StreamUnexpected, UnexpectedPayload, may_allocate, space_after, wants_ack};
use super::conn::StreamConn;
use super::incoming::{AHEAD_OF_LARGE, DIRECT_MIN, Got, HeaderOutcome, MessageTarget, buf_for};
use super::rx_fast::{
    FastReadResult, ImportedReceives, PostedReceives, fast_in_shm, fast_in_shm_to, fast_message,
    fast_messages, only_message,
};
use super::staging::Staging;
use super::trace::trace;
use super::tx_path::TxPath;
use crate::transport::{ByteLink, LinkOp, ShmLink, ShmTransport, peer_of};
use crate::wire::{Malformed, Parsed, StreamHeader, StreamOp};
use ofi_provider::abi::FI_REMOTE_WRITE;
use ofi_provider::buf::ScatterList;
use ofi_provider::error::{Error, Result};
use ofi_provider::malformed;
use ofi_provider::mr::MrTable;
use ofi_provider::packet_sink::PacketSink;
use ofi_provider::peer_srx::SrxStartQueue;
use ofi_provider::shm_channel::{DEVICE_CELL, InlineRecv};
use ofi_provider::slab::NONE;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Message size in bytes from which reading in two calls costs less than copying.
const LARGE: usize = 16 << 10;

/// Maximum reads of one connection in one progress iteration, so that others are served.
const MAX_READS: usize = 8;

/// Receiving side of an engine: bytes of links, and messages under way to receives. Its methods may
/// send, because messages are acknowledged and requests answered.
pub(super) struct RxPath<N: ShmTransport> {
    pub(super) tx: TxPath<N>,
    pub(super) staging: Staging,
    /// Buffered messages started by other providers, if endpoints use receives of such.
    pub(super) started: Option<Arc<SrxStartQueue>>,
}

impl<N: ShmTransport> RxPath<N> {
    #[inline(always)]
    pub(super) fn new(net: N, regions: Arc<MrTable>, staging: Staging) -> Self {
        Self { tx: TxPath::new(net, regions), staging, started: None }
    }

    /// Reads a connection until it is empty, or after [`MAX_READS`] reads. Returns true if data
    /// arrived.
    pub(super) fn read(&mut self, id: u32) -> bool {
        self.expose_staging(&[id], |state, staging| state.read_with(id, staging))
    }

    /// Moves the staging buffer out for `work`, which uses the rest of the state as well. The
    /// buffer is restored even if `work` panics: without it each later read would look like the end
    /// of a stream. After a panic the connections `ids` end, since bytes of them are lost.
    pub(super) fn expose_staging<R>(
        &mut self,
        ids: &[u32],
        work: impl FnOnce(&mut Self, &mut [u8]) -> R,
    ) -> R {
        let mut staging = self.staging.take();
        let result = catch_unwind(AssertUnwindSafe(|| work(self, &mut staging)));
        self.staging.restore(staging);
        result.unwrap_or_else(|panic| {
            self.tx.hearing = NONE;
            ids.iter().for_each(|id| self.fail(*id, Error::OTHER));
            resume_unwind(panic)
        })
    }

    /// Fast path of complete messages with posted receives and without special attributes, read by
    /// one call: saves the states of messages in progress and of the connection. Messages go to
    /// `sink` if it takes them.
    #[inline(always)]
    pub(super) fn read_fast(&mut self, id: u32, sink: Option<&PacketSink<'_>>) -> FastReadResult {
        let Self { tx: TxPath { io, eps, .. }, staging, .. } = self;
        let Some(conn) = io.conns.get_mut(id) else { return FastReadResult::Not };
        if !conn.is_fast_recv() {
            return FastReadResult::Not;
        }
        let staging = staging.buf();
        let n = match conn.link.recv(staging) {
            Ok(n) if n > 0 => n,
            Err(Error::AGAIN | Error::INTR) => return FastReadResult::Nothing,
            Err(DEVICE_CELL) => return FastReadResult::Not,
            end => {
                self.fail(id, end.err().unwrap_or(Error::CONNRESET));
                return FastReadResult::Moved;
            }
        };
        conn.misses = 0;
        // The link is empty if the call brought less than it might have.
        let all = n < staging.len();
        let bytes = &staging[..n];
        let matcher = &mut eps[conn.ep].matcher;
        let left = match n < LARGE {
            true if sink.is_none()
                && !matcher.is_imported()
                && only_message(conn, matcher, bytes) =>
            {
                0
            }
            true => fast_messages(conn, matcher, sink, bytes).len(),
            false => n,
        };
        if left == 0 && all {
            return FastReadResult::Done;
        }
        if left < n {
            conn.received_in = io.poll.iterations();
        }
        if (left == 0 || self.parse_staged(id, n - left..n)) && !all {
            self.read(id);
        }
        FastReadResult::Moved
    }

    /// Runs [`read_fast`](Self::read_fast) directly on messages in shared memory.
    #[inline(always)]
    pub(super) fn read_fast_shm(&mut self, id: u32, sink: Option<&PacketSink<'_>>) -> InlineRecv {
        let TxPath { io, eps, .. } = &mut self.tx;
        let Some(conn) = io.conns.get_mut(id) else { return InlineRecv::Else };
        if !conn.is_fast_recv() {
            return InlineRecv::Else;
        }
        let matcher = &mut eps[conn.ep].matcher;
        let came = match sink {
            Some(sink) => fast_in_shm_to(sink, conn, matcher),
            None if matcher.is_imported() => fast_in_shm_to(ImportedReceives, conn, matcher),
            None => fast_in_shm(PostedReceives, conn, matcher),
        };
        match came {
            InlineRecv::Took => conn.misses = 0,
            InlineRecv::None => conn.misses += 1,
            InlineRecv::Else => {}
        }
        came
    }

    #[inline(never)]
    fn parse_staged(&mut self, id: u32, part: Range<usize>) -> bool {
        self.expose_staging(&[id], |state, staging| state.parse(id, &staging[part]))
    }

    fn read_with(&mut self, id: u32, staging: &mut [u8]) -> bool {
        let mut moved = false;
        for _ in 0..MAX_READS {
            let Some(conn) = self.tx.io.conns.get_mut(id) else { return true };
            if conn.blocked {
                return moved;
            }
            let left = conn.left();
            let (result, wanted) = if left >= DIRECT_MIN {
                match self.read_direct(id, staging) {
                    (Err(error), 0) if self.refuse_rest(id, error) => continue,
                    read => read,
                }
            } else {
                let dst = conn.buf_in(staging);
                let wanted = dst.len();
                (self.tx.io.net.transfer(&conn.link, LinkOp::Receive(dst)), wanted)
            };
            match self.take_in(id, staging, wanted, result) {
                Got::Nothing => return moved,
                Got::More => moved = true,
                Got::Last => return true,
            }
        }
        moved
    }

    /// Handles the `result` of one read of at most `wanted` bytes: the rest of a large message,
    /// already in its target buffer, and the bytes in `staging` after the stash.
    #[inline(always)]
    pub(super) fn take_in(
        &mut self,
        id: u32,
        staging: &[u8],
        wanted: usize,
        result: Result<usize>,
    ) -> Got {
        let n = match result {
            Ok(0) => {
                self.fail(id, Error::CONNRESET);
                return Got::Last;
            }
            Ok(n) => n,
            Err(Error::AGAIN | Error::INTR) => return Got::Nothing,
            Err(DEVICE_CELL) => return self.device_cell(id),
            Err(error) => {
                self.fail(id, error);
                return Got::Last;
            }
        };
        let conn = &mut self.tx.io.conns[id];
        let left = conn.left();
        let ahead = if left >= DIRECT_MIN {
            // Bytes that were read straight into the message's place are not parsed again.
            let direct = n.min(left);
            if let Some(incoming) = &mut conn.incoming {
                incoming.received(direct);
                if incoming.left() == 0 && !self.complete_incoming(id) {
                    self.pause_for_copies(id, &staging[..n - direct]);
                    return Got::Last;
                }
            }
            n - direct
        } else {
            let start = conn.stash.len();
            conn.stash.clear();
            start + n
        };
        if ahead > 0 && !self.parse(id, &staging[..ahead]) {
            return Got::Last;
        }
        // The link is empty after a partial read: another read would only confirm it. But a large
        // exposed message is separate from its header.
        let exposed = |conn: &StreamConn<N>| conn.left() >= DIRECT_MIN && conn.link.rx_over_shm();
        if n < wanted && !self.tx.io.conns.get(id).is_some_and(exposed) {
            Got::Last
        } else {
            Got::More
        }
    }

    /// Reads once, with the first bytes going directly to the target buffer of the message in
    /// progress. Returns the result and the number of bytes requested: 0 if the region written by
    /// the peer is closed.
    // A frame of its own, of which parsing has nothing.
    #[inline(never)]
    fn read_direct(&mut self, id: u32, staging: &mut [u8]) -> (Result<usize>, usize) {
        let conn = &mut self.tx.io.conns[id];
        // Received part of an unexpected message, taken from the matching engine while the call
        // writes to it.
        let mut arriving = None;
        // Table of memory regions, opened if a peer writes to one, and kept open until the call is
        // made.
        let mut opened = None;
        let mut list = ScatterList::default();
        let Some(incoming) = &mut conn.incoming else { return (Err(Error::AGAIN), 0) };
        let left = incoming.left();
        let placed = match &mut incoming.target {
            MessageTarget::Posted(recv) => recv.buf.scatter(incoming.done, left, &mut list),
            MessageTarget::Buffered(message) => {
                let matcher = &mut self.tx.eps[conn.ep].matcher;
                let taken = matcher.change(incoming.envelope.queue(), *message, |buffered| {
                    let StreamUnexpected::Arriving(bytes) = &mut buffered.body else {
                        return Ok(None);
                    };
                    space_after(bytes, incoming.done, incoming.envelope.len)?;
                    Ok(Some(std::mem::take(bytes)))
                });
                match taken.unwrap_or(Ok(None)) {
                    Ok(Some(bytes)) => {
                        let dst = &mut arriving.insert((*message, bytes)).1[incoming.done..];
                        let placed = dst.len();
                        list.push_buf(dst);
                        placed
                    }
                    Ok(None) => 0,
                    Err(error) => return (Err(error), 1),
                }
            }
            // Room for a part only: the sender may never send the rest.
            MessageTarget::Collected(bytes) => {
                match buf_for(bytes, incoming.done, left.min(LARGE)) {
                    Ok(dst) => {
                        let placed = dst.len();
                        list.push_buf(dst);
                        placed
                    }
                    Err(error) => return (Err(error), 1),
                }
            }
            MessageTarget::Region(segments) => {
                let opened = opened.insert(self.tx.regions.open());
                match opened.scatter(segments, FI_REMOTE_WRITE, incoming.done, left, &mut list) {
                    Ok(placed) => placed,
                    Err(error) => return (Err(error), 0),
                }
            }
            MessageTarget::Atomic(request) => {
                list.push_buf(&mut request.operands[incoming.done..]);
                left
            }
            MessageTarget::Answer(buf, _) => buf.scatter(incoming.done, left, &mut list),
            MessageTarget::Device(recv) => match recv.space(left) {
                Some([]) => {
                    self.tx.io.await_copies(id);
                    return (Err(Error::AGAIN), 1);
                }
                Some(dst) => {
                    let placed = dst.len();
                    list.push_buf(dst);
                    placed
                }
                None => 0,
            },
            MessageTarget::Discard => 0,
        };
        if placed < left {
            // Bytes that do not fit in the receive are read to be dropped, and nothing behind
            // them in the same call.
            if placed == 0 {
                let n = left.min(staging.len());
                list.push_buf(&mut staging[..n]);
            }
        } else {
            let tail = AHEAD_OF_LARGE.min(staging.len());
            list.push_buf(&mut staging[..tail]);
        }
        let wanted = list.len();
        let result = self.tx.io.net.transfer(&conn.link, LinkOp::ReceiveList(&mut list));
        drop(opened);
        if let Some((message, bytes)) = arriving {
            let matcher = &mut self.tx.eps[conn.ep].matcher;
            let back = |buffered: &mut UnexpectedPayload| {
                buffered.body = StreamUnexpected::Arriving(bytes)
            };
            matcher.change(incoming.envelope.queue(), message, back);
        }
        (result, wanted)
    }

    /// Parses bytes received on a connection, and sends the responses to them. Returns false when
    /// the connection is closed or blocked; unparsed bytes are then in its stash.
    pub(super) fn parse(&mut self, id: u32, bytes: &[u8]) -> bool {
        self.tx.hearing = id;
        let can_continue = self.parse_messages(id, bytes);
        self.tx.hearing = NONE;
        let sent = self.tx.send_answers(id);
        self.conclude(sent);
        can_continue && self.tx.io.conns.get(id).is_some()
    }

    fn parse_messages(&mut self, id: u32, bytes: &[u8]) -> bool {
        let mut at = 0;
        while at < bytes.len() {
            let Some(conn) = self.tx.io.conns.get_mut(id) else { return false };
            let rest = &bytes[at..];
            if let Some(incoming) = &mut conn.incoming {
                let matcher = &mut self.tx.eps[conn.ep].matcher;
                match incoming.feed(matcher, &self.tx.regions, rest) {
                    Ok(0) => {
                        self.pause_for_copies(id, rest);
                        return false;
                    }
                    Ok(n) => at += n,
                    // The region was closed that the peer writes.
                    Err(error) if self.refuse_rest(id, error) => continue,
                    Err(error) => {
                        // There is no memory for the bytes.
                        self.fail(id, error);
                        return false;
                    }
                }
                if self
                    .tx
                    .io
                    .conns
                    .get(id)
                    .and_then(|c| c.incoming.as_ref())
                    .is_some_and(|i| i.left() == 0)
                    && !self.complete_incoming(id)
                {
                    self.pause_for_copies(id, &bytes[at..]);
                    return false;
                }
                continue;
            }
            if conn.fast_rx {
                let matcher = &mut self.tx.eps[conn.ep].matcher;
                if let Some(behind) = fast_message(conn, matcher, None, rest) {
                    let n = rest.len() - behind.len();
                    conn.large = n >= LARGE;
                    conn.received_in = self.tx.io.poll.iterations();
                    at += n;
                    continue;
                }
            }
            if conn.received_in == self.tx.io.poll.iterations()
                && self.tx.eps[conn.ep].matcher.is_imported()
                && conn.fast_rx
                && StreamHeader::parse_fast(rest).is_some()
            {
                self.defer_to_next_poll(id, rest);
                return false;
            }
            let (header, len) = match next_header(conn, rest) {
                Ok(Some(found)) => found,
                Ok(None) => return self.stash(id, rest),
                Err(why) => {
                    self.refuse_bytes(id, why);
                    return false;
                }
            };
            trace("from", &conn.link, &header);
            conn.large = header.op != StreamOp::TagRts && header.len >= LARGE as u64;
            let mut started = self.begin(id, &header, &rest[..len], &rest[len..]);
            if matches!(started, Err(Error::PROTO)) && finish_sending(self, id) {
                started = self.begin(id, &header, &rest[..len], &rest[len..]);
            }
            if is_acknowledged(&header)
                && matches!(started, Ok(HeaderOutcome::Taken(_) | HeaderOutcome::Blocked))
            {
                if let Some(conn) = self.tx.io.conns.get_mut(id) {
                    conn.asked += 1;
                }
            }
            match started {
                Ok(HeaderOutcome::Taken(n)) => at += len + n,
                Ok(HeaderOutcome::Blocked) => {
                    if self.block(id, &rest[len..]) {
                        self.tx.io.watch(id);
                    }
                    return false;
                }
                Ok(HeaderOutcome::CqBlocked) => {
                    if self.block(id, rest) {
                        self.tx.starve(id);
                        self.tx.io.watch(id);
                    }
                    return false;
                }
                Ok(HeaderOutcome::Short) => {
                    return self.stash(id, rest);
                }
                Ok(HeaderOutcome::Gone) => return false,
                Err(Error::PROTO) => {
                    self.refuse_bytes(id, Malformed("a header that fits nothing under way"));
                    return false;
                }
                Err(error) => {
                    self.fail(id, error);
                    return false;
                }
            }
        }
        true
    }

    /// Defers messages to the next progress iteration, after others of this one have matched their
    /// receives. By then the application may have posted one receive for each message seen.
    /// Recording them with another provider, to be started later one by one, takes several times as
    /// long.
    fn defer_to_next_poll(&mut self, id: u32, bytes: &[u8]) {
        if self.block(id, bytes) {
            self.tx.io.blocked.block_on_cq(id);
        }
    }

    /// Pauses the parsing of a connection and stores these bytes until it resumes. Returns false if
    /// there is no memory for them; this ends the connection.
    pub(super) fn block(&mut self, id: u32, bytes: &[u8]) -> bool {
        let buffered = self.stash(id, bytes);
        if buffered {
            self.tx.io.conns[id].blocked = true;
            self.tx.io.note_unread(id);
        }
        buffered
    }

    /// Stores bytes to be parsed later. Returns false if there is no memory for them; this ends the
    /// connection.
    fn stash(&mut self, id: u32, bytes: &[u8]) -> bool {
        let Some(conn) = self.tx.io.conns.get_mut(id) else { return false };
        if may_allocate().is_err() || conn.stash.try_reserve(bytes.len()).is_err() {
            self.fail(id, Error::NOMEM);
            return false;
        }
        conn.stash.extend_from_slice(bytes);
        true
    }

    /// Closes the connection of a peer that sent malformed bytes; no other connection is affected.
    fn refuse_bytes(&mut self, id: u32, why: Malformed) {
        let peer = self.tx.io.conns.get(id).and_then(|conn| peer_of(&conn.link));
        malformed::log_closing(N::Link::provider(), peer, why);
        self.fail(id, Error::PROTO);
    }
}

/// Returns true if a message or write with this header is acknowledged on completion. For a
/// rendezvous message this applies to the payload, not to the RTS. An atomic operation gets a
/// response instead.
fn is_acknowledged(header: &StreamHeader) -> bool {
    wants_ack(header) && !matches!(header.op, StreamOp::TagRts | StreamOp::Atomic)
}

/// The header at the start of `bytes` with its length, once all of it is there.
#[inline]
fn next_header<N: ShmTransport>(
    conn: &StreamConn<N>,
    bytes: &[u8],
) -> Parsed<Option<(StreamHeader, usize)>> {
    match StreamHeader::len_at(bytes)? {
        Some(len) if bytes.len() >= len => {
            Ok(Some((StreamHeader::parse(&bytes[..len], conn.order)?, len)))
        }
        _ => Ok(None),
    }
}

/// Sends the rest of the transfers in progress before the answer to one of them: a link with several
/// sockets may have delivered all bytes, and not reported the last one as sent. Returns true if anything
/// was sent and the connection has not ended.
#[cold]
#[inline(never)]
fn finish_sending<N: ShmTransport>(rx: &mut RxPath<N>, id: u32) -> bool {
    if !rx.tx.io.conns.get(id).is_some_and(StreamConn::has_unsent) {
        return false;
    }
    let flushed = rx.tx.flush(id);
    rx.conclude(flushed.map(drop));
    flushed == Ok(true) && rx.tx.io.conns.get(id).is_some()
}

#[cfg(test)]
mod tests;
