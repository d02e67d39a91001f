//! Receiving: from bytes to messages to the application's buffers.
//!
//! Small messages are read many at a time into the engine's staging buffer and copied from there.
//! The rest of a large message is read directly into its target buffer. An unexpected message is
//! buffered, up to a bound. Beyond it the connection is not read until a receive matches the
//! blocking message or others, so the rest waits at its sender.
use super::arrival::{
    AckAt, Arrival, StreamUnexpected, UnexpectedPayload, may_allocate, space_after, wants_ack,
};
use super::conn::StreamConn;
use super::ep::StreamEngineEp;
use super::incoming::{AHEAD_OF_LARGE, DIRECT_MIN, Got, HeaderOutcome, MessageTarget, RxRequest};
use super::state::StreamState;
use super::stats::count_header;
use super::trace::trace;
use crate::transport::{ByteLink, LinkOp, Transport, peer_of};
use crate::wire::{
    COMMIT_COMPLETE, FastHeader, Malformed, Parsed, REMOTE_CQ_DATA, StreamFast, StreamHeader,
    StreamOp,
};
use ofi_provider::abi::{FI_ATOMIC, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA};
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::{InlineBytes, ScatterList, copied};
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::malformed;
use ofi_provider::reserved::ONLY_TAG;
use ofi_provider::rx_matcher::{Envelope, Recv, RxMatcher};
use ofi_provider::shm_channel::InlineRecv;
use ofi_provider::slab::NONE;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Message size in bytes from which reading in two calls costs less than copying.
const LARGE: usize = 16 << 10;

/// Maximum reads of one connection in one progress iteration, so that others are served.
const MAX_READS: usize = 8;

impl Arrival {
    /// Creates the envelope announced by this header on connection `id`; fails with -FI_EPROTO if
    /// the header is invalid.
    #[inline]
    pub(super) fn new<N: Transport>(
        header: &StreamHeader,
        id: u32,
        conn: &StreamConn<N>,
        ep: &StreamEngineEp,
    ) -> Result<Self> {
        // A length that no buffer can have violates the protocol.
        let len = usize::try_from(header.len).map_err(|_| Error::PROTO)?;
        if len > isize::MAX as usize {
            return Err(Error::PROTO);
        }
        let tagged = matches!(header.op, StreamOp::Tag | StreamOp::TagRts);
        let bare = header.op == StreamOp::TaggedMsg;
        count_header(&conn.received, header);
        let envelope = Envelope {
            tagged,
            msg_tag: bare.then_some(header.tag),
            collective: tagged && ep.matcher.is_internal_tag(header.tag),
            tag: if bare { 0 } else { header.tag },
            len,
            cq_data: (header.flags & REMOTE_CQ_DATA != 0).then_some(header.cq_data),
            peer: conn.peer,
        };
        Ok(Self {
            envelope,
            ack: AckAt::of(header),
            number: conn.asked,
            commit: header.flags & COMMIT_COMPLETE != 0,
            ep: conn.ep,
            conn: id,
            serial: conn.serial,
        })
    }
}

impl StreamEngineEp {
    /// Counts a completed write of a peer, and reports its data. A write without remote segments
    /// needed no key: it is neither counted nor reported.
    fn written(&mut self, envelope: &Envelope, segments: &RemoteSegments) {
        if segments.as_slice().is_empty() {
            return;
        }
        self.matcher.completions.peer_accessed(true, envelope.len);
        self.accessed(envelope, FI_RMA | FI_REMOTE_WRITE);
    }

    /// Reports a peer's access to our memory if it carries remote CQ data.
    pub(super) fn accessed(&mut self, envelope: &Envelope, flags: u64) {
        if let Some(data) = envelope.cq_data {
            self.matcher.completions.peer_notified(
                flags,
                envelope.len,
                data,
                self.matcher.id_of(envelope.peer),
            );
        }
    }

    /// Removes and returns the posted receive matching a message, or the part of it needed by the
    /// message.
    #[inline]
    fn take_posted(&mut self, envelope: &Envelope) -> Option<Recv> {
        #[cfg(any(test, feature = "sim"))]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::SwappedMatch) {
            return super::sim::take_second(&mut self.matcher, envelope);
        }
        self.matcher.take_posted(envelope)
    }

    /// Keeps a message until a receive takes it; -FI_ENOMEM if there is no memory.
    pub(super) fn buffer_unexpected(
        &mut self,
        arrival: &Arrival,
        body: StreamUnexpected,
    ) -> Result<u32> {
        may_allocate()?;
        self.matcher.reserve(arrival)?;
        let Arrival { envelope, ack, number, conn, serial, .. } = *arrival;
        Ok(self
            .matcher
            .buffer_unexpected(envelope, UnexpectedPayload { body, ack, number, conn, serial }))
    }

    /// Returns true if the buffered unexpected messages of a peer reach the user's bound
    /// ([`max_saved`](crate::settings::StreamSettings::max_saved)), if there is one.
    pub(super) fn peer_is_over_bound(&self, peer: u32, bound: Option<usize>) -> bool {
        peer != NONE && bound.is_some_and(|max| self.matcher.buffered_count(peer) >= max)
    }
}

/// Fast path: delivers a complete message without special attributes to its posted receive. Returns
/// the bytes after it. In any other case it returns none and has changed nothing.
#[inline(always)]
fn fast_message<'a, N: Transport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    bytes: &'a [u8],
) -> Option<&'a [u8]> {
    let StreamFast { header, body, rest } = StreamHeader::parse_fast(bytes)?;
    let FastHeader { tagged, tag, data, .. } = header;
    let taken = match (matcher.is_imported(), data) {
        (true, None) => matcher.receive_imported(conn.peer, tagged, tag, body),
        (true, Some(_)) => false,
        (false, data) => matcher.recv_fast(conn.peer, tagged, tag, data, body),
    } || matcher.receive_whole(conn.peer, tagged, tag, data, body);
    if taken {
        conn.received.one(body.len());
    }
    taken.then_some(rest)
}

/// Handles the most common case of [`fast_message`]: a single message for the oldest receive. A
/// separate function, to have all registers available.
#[inline(never)]
fn only_message<N: Transport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    bytes: &[u8],
) -> bool {
    let ([first, second, third, ..], _) = bytes.as_chunks() else { return false };
    let words = [first, second, third].map(|word| u64::from_ne_bytes(*word));
    let header = StreamHeader::fast_in(words, bytes.len());
    header.is_some_and(|FastHeader { tagged, tag, len, .. }| {
        matcher.recv_fast(conn.peer, tagged, tag, None, &bytes[len..])
            && conn.received.one(bytes.len() - len)
    })
}

/// Runs [`fast_message`] for all messages at the start of the bytes; returns the bytes after them.
#[inline(never)]
fn fast_messages<'a, N: Transport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    bytes: &'a [u8],
) -> &'a [u8] {
    let mut rest = bytes;
    while let Some(behind) = fast_message(conn, matcher, rest) {
        rest = behind;
    }
    rest
}

/// Runs [`fast_in_shm`] with receives of another provider.
#[inline(never)]
fn imported_in_memory<N: Transport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
) -> InlineRecv {
    let came = conn.link.recv_inline(|short| {
        let bytes = short.all();
        let header = StreamHeader::fast_in(short.words(), bytes.len());
        header.is_some_and(|FastHeader { tagged, tag, len, .. }| {
            matcher.receive_imported(conn.peer, tagged, tag, bytes.behind(len))
                && conn.received.one(bytes.len() - len)
        })
    });
    if came != InlineRecv::Else {
        return came;
    }
    conn.link.recv_whole_message(|words, bytes| {
        let header = StreamHeader::any_fast_in(words, bytes.len());
        header.is_some_and(|FastHeader { tagged, tag, data, len }| {
            let body = bytes.behind(len);
            ((data.is_none() && matcher.receive_imported(conn.peer, tagged, tag, body))
                || matcher.receive_whole(conn.peer, tagged, tag, data, body))
                && conn.received.one(bytes.len() - len)
        })
    })
}

/// Runs [`fast_messages`] directly on the bytes in shared memory.
#[inline(always)]
fn fast_in_shm<N: Transport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
) -> InlineRecv {
    let came = conn.link.recv_inline(|short| {
        let bytes = short.all();
        match StreamHeader::fast_in(short.words(), bytes.len()) {
            Some(FastHeader { tagged, tag, len, .. }) => {
                matcher.recv_fast(conn.peer, tagged, tag, None, bytes.behind(len))
                    && conn.received.one(bytes.len() - len)
            }
            None => data_in_memory(conn, matcher, short),
        }
    });
    if came == InlineRecv::Else { longer_in_memory(conn, matcher) } else { came }
}

/// Runs [`fast_in_shm`] for a message with remote CQ data. A separate function, so it does not
/// slow down other messages.
#[inline(never)]
fn data_in_memory<N: Transport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    short: InlineBytes<'_>,
) -> bool {
    let bytes = short.all();
    let header = StreamHeader::fast_with_data_in(short.words(), bytes.len());
    header.is_some_and(|FastHeader { tagged, tag, data, len }| {
        matcher.recv_fast(conn.peer, tagged, tag, data, bytes.behind(len))
            && conn.received.one(bytes.len() - len)
    })
}

/// Runs [`fast_in_shm`] for longer messages, or for messages not matching the oldest receive.
#[inline(never)]
fn longer_in_memory<N: Transport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
) -> InlineRecv {
    let peer = conn.peer;
    conn.link.recv_whole_message(|words, bytes| {
        let header = StreamHeader::any_fast_in(words, bytes.len());
        header.is_some_and(|FastHeader { tagged, tag, data, len }| {
            (matcher.receive_first(peer, tagged, tag, data, bytes.behind(len))
                || matcher.receive_whole(peer, tagged, tag, data, bytes.behind(len)))
                && conn.received.one(bytes.len() - len)
        })
    })
}

/// Result of [the fast-path read](StreamState::read_fast).
pub(super) enum FastReadResult {
    /// All there is was read, and was plain messages.
    Done,
    /// Something came.
    Moved,
    /// Nothing came.
    Nothing,
    /// The connection is in another state (a message is under way, blocks it, or waits to be sent):
    /// nothing was read.
    Not,
}

impl<N: Transport> StreamState<N> {
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
        let mut staging = std::mem::take(&mut self.staging);
        let result = catch_unwind(AssertUnwindSafe(|| work(self, &mut staging)));
        self.staging = staging;
        result.unwrap_or_else(|panic| {
            self.hearing = NONE;
            ids.iter().for_each(|id| self.fail(*id, Error::OTHER));
            resume_unwind(panic)
        })
    }

    /// Fast path for the most common case: one call reads all available bytes, and they hold only
    /// messages with posted receives and without special attributes.
    #[inline(always)]
    pub(super) fn read_fast(&mut self, id: u32) -> FastReadResult {
        let Self { conns, eps, staging, .. } = self;
        let Some(conn) = conns.get_mut(id) else { return FastReadResult::Not };
        if !conn.is_fast_recv() {
            return FastReadResult::Not;
        }
        let staging = &mut staging[..];
        let n = match conn.link.recv(staging) {
            Ok(n) if n > 0 => n,
            Err(Error::AGAIN | Error::INTR) => return FastReadResult::Nothing,
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
            true if !matcher.is_imported() && only_message(conn, matcher, bytes) => 0,
            true => fast_messages(conn, matcher, bytes).len(),
            false => n,
        };
        if left == 0 && all {
            return FastReadResult::Done;
        }
        if left < n {
            conn.received_in = self.iterations;
        }
        if (left == 0 || self.parse_staged(id, n - left..n)) && !all {
            self.read(id);
        }
        FastReadResult::Moved
    }

    /// Runs [`StreamState::read_fast`] directly on messages in shared memory.
    #[inline(always)]
    pub(super) fn read_fast_shm(&mut self, id: u32) -> InlineRecv {
        let Self { conns, eps, .. } = self;
        let Some(conn) = conns.get_mut(id) else { return InlineRecv::Else };
        if !conn.is_fast_recv() {
            return InlineRecv::Else;
        }
        let matcher = &mut eps[conn.ep].matcher;
        let came = match matcher.is_imported() {
            true => imported_in_memory(conn, matcher),
            false => fast_in_shm(conn, matcher),
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
            let Some(conn) = self.conns.get_mut(id) else { return true };
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
                (self.net.transfer(&conn.link, LinkOp::Receive(dst)), wanted)
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
            Err(error) => {
                self.fail(id, error);
                return Got::Last;
            }
        };
        let conn = &mut self.conns[id];
        let left = conn.left();
        let ahead = if left >= DIRECT_MIN {
            // Bytes that were read straight into the message's place are not parsed again.
            let direct = n.min(left);
            if let Some(incoming) = &mut conn.incoming {
                incoming.done += direct;
                if incoming.left() == 0 && !self.complete_incoming(id) {
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
        if n < wanted && !self.conns.get(id).is_some_and(exposed) { Got::Last } else { Got::More }
    }

    /// Reads once, with the first bytes going directly to the target buffer of the message in
    /// progress. Returns the result and the number of bytes requested: 0 if the region written by
    /// the peer is closed.
    // A frame of its own, of which parsing has nothing.
    #[inline(never)]
    fn read_direct(&mut self, id: u32, staging: &mut [u8]) -> (Result<usize>, usize) {
        let conn = &mut self.conns[id];
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
                let matcher = &mut self.eps[conn.ep].matcher;
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
                let opened = opened.insert(self.regions.open());
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
        let result = self.net.transfer(&conn.link, LinkOp::ReceiveList(&mut list));
        drop(opened);
        if let Some((message, bytes)) = arriving {
            let matcher = &mut self.eps[conn.ep].matcher;
            let back = |buffered: &mut UnexpectedPayload| {
                buffered.body = StreamUnexpected::Arriving(bytes)
            };
            matcher.change(incoming.envelope.queue(), message, back);
        }
        (result, wanted)
    }

    /// Parses bytes received on a connection, and sends the responses to them. Returns false when
    /// the connection is closed or blocked; unparsed bytes are then in its stash.
    fn parse(&mut self, id: u32, bytes: &[u8]) -> bool {
        self.hearing = id;
        let can_continue = self.parse_messages(id, bytes);
        self.hearing = NONE;
        self.send_answers(id);
        can_continue && self.conns.get(id).is_some()
    }

    fn parse_messages(&mut self, id: u32, bytes: &[u8]) -> bool {
        let mut at = 0;
        while at < bytes.len() {
            let Some(conn) = self.conns.get_mut(id) else { return false };
            let rest = &bytes[at..];
            if conn.incoming.is_some() {
                match self.feed(id, rest) {
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
                    .conns
                    .get(id)
                    .and_then(|c| c.incoming.as_ref())
                    .is_some_and(|i| i.left() == 0)
                    && !self.complete_incoming(id)
                {
                    return false;
                }
                continue;
            }
            if conn.fast_rx
                && let Some(behind) = fast_message(conn, &mut self.eps[conn.ep].matcher, rest)
            {
                let n = rest.len() - behind.len();
                conn.large = n >= LARGE;
                conn.received_in = self.iterations;
                at += n;
                continue;
            }
            if conn.received_in == self.iterations
                && self.eps[conn.ep].matcher.is_imported()
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
            let started = self.begin(id, &header, &rest[..len], &rest[len..]);
            if is_acknowledged(&header)
                && matches!(started, Ok(HeaderOutcome::Taken(_) | HeaderOutcome::Blocked))
                && let Some(conn) = self.conns.get_mut(id)
            {
                conn.asked += 1;
            }
            match started {
                Ok(HeaderOutcome::Taken(n)) => at += len + n,
                Ok(HeaderOutcome::Blocked) => {
                    if self.block(id, &rest[len..]) {
                        self.watch(id);
                    }
                    return false;
                }
                Ok(HeaderOutcome::CqBlocked) => {
                    if self.block(id, rest) {
                        self.starve(id);
                        self.watch(id);
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
            self.cq_blocked.push(id);
        }
    }

    /// Pauses the parsing of a connection and stores these bytes until it resumes. Returns false if
    /// there is no memory for them; this ends the connection.
    fn block(&mut self, id: u32, bytes: &[u8]) -> bool {
        let buffered = self.stash(id, bytes);
        if buffered {
            self.conns[id].blocked = true;
            self.note_unread(id);
        }
        buffered
    }

    /// Stores bytes to be parsed later. Returns false if there is no memory for them; this ends the
    /// connection.
    fn stash(&mut self, id: u32, bytes: &[u8]) -> bool {
        let Some(conn) = self.conns.get_mut(id) else { return false };
        if may_allocate().is_err() || conn.stash.try_reserve(bytes.len()).is_err() {
            self.fail(id, Error::NOMEM);
            return false;
        }
        conn.stash.extend_from_slice(bytes);
        true
    }

    /// Closes the connection of a peer that sent malformed bytes; no other connection is affected.
    fn refuse_bytes(&mut self, id: u32, why: Malformed) {
        let peer = self.conns.get(id).and_then(|conn| peer_of(&conn.link));
        malformed::log_closing(N::Link::provider(), peer, why);
        self.fail(id, Error::PROTO);
    }

    /// Copies bytes to the message in progress. Returns the number of bytes used by it.
    fn feed(&mut self, id: u32, bytes: &[u8]) -> Result<usize> {
        let conn = &mut self.conns[id];
        let Some(incoming) = &mut conn.incoming else { return Ok(0) };
        let n = incoming.left().min(bytes.len());
        match &mut incoming.target {
            MessageTarget::Posted(recv) => {
                recv.buf.copy_from(incoming.done, &bytes[..n]);
            }
            MessageTarget::Buffered(message) => {
                let matcher = &mut self.eps[conn.ep].matcher;
                let fed: Option<Result> =
                    matcher.change(incoming.envelope.queue(), *message, |buffered| {
                        let StreamUnexpected::Arriving(to) = &mut buffered.body else {
                            return Ok(());
                        };
                        let mut rest = &bytes[..n];
                        while !rest.is_empty() {
                            let done = incoming.done + n - rest.len();
                            let dst = space_after(to, done, incoming.envelope.len)?;
                            let part = dst.len().min(rest.len());
                            dst[..part].copy_from_slice(&rest[..part]);
                            rest = &rest[part..];
                        }
                        Ok(())
                    });
                fed.unwrap_or(Ok(()))?;
            }
            MessageTarget::Collected(to) => {
                buf_for(to, incoming.done, n)?.copy_from_slice(&bytes[..n]);
            }
            MessageTarget::Region(segments) => {
                self.regions.open().write(segments, FI_REMOTE_WRITE, incoming.done, &bytes[..n])?;
            }
            MessageTarget::Atomic(request) => {
                request.operands[incoming.done..incoming.done + n].copy_from_slice(&bytes[..n]);
            }
            MessageTarget::Answer(buf, _) => {
                buf.copy_from(incoming.done, &bytes[..n]);
            }
            MessageTarget::Discard => {}
        }
        incoming.done += n;
        Ok(n)
    }

    /// Starts the operation announced by a header; `bytes` are the header's own, `behind` the bytes
    /// after it. An error ends the connection; -FI_EPROTO is a violation of the protocol.
    #[inline]
    fn begin(
        &mut self,
        id: u32,
        header: &StreamHeader,
        bytes: &[u8],
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        let wants_reply =
            matches!(header.op, StreamOp::ReadReq | StreamOp::Atomic) || wants_ack(header);
        if wants_reply && self.has_many_pending(id) {
            return Ok(HeaderOutcome::CqBlocked);
        }
        match header.op {
            StreamOp::Msg if header.is_ack() => {
                self.acknowledged(id, header.acked())?;
                Ok(HeaderOutcome::Taken(0))
            }
            // Such a message is taken only on endpoints that report a source of their own
            // (`OPT_SOURCE`), whose user can make something of it.
            StreamOp::TaggedMsg if !self.eps[self.conns[id].ep].has_source => Err(Error::PROTO),
            StreamOp::Msg | StreamOp::Tag | StreamOp::TaggedMsg => {
                self.begin_message(id, header, behind)
            }
            StreamOp::TagRts => self.on_rts(id, header),
            StreamOp::Cts => {
                self.clear_to_send(id, header.op_data)?;
                Ok(self.started(id, 0))
            }
            StreamOp::Write => self.begin_write(id, header, bytes, behind),
            StreamOp::WriteRefused => {
                if !self.conns[id].knows.outcomes {
                    return Err(Error::PROTO);
                }
                let error = Error::from_code(header.op_data.into());
                self.write_refused(id, header.cq_data, error)?;
                Ok(self.started(id, 0))
            }
            StreamOp::ReadReq => {
                let segments = self.segments(id, header, bytes)?;
                let len = segments.total()?;
                let granted = self
                    .admit_access(id, FI_REMOTE_READ)
                    .and_then(|()| self.grant(id, &segments, FI_REMOTE_READ, &[]));
                if self.is_overrun(id) {
                    return Err(Error::NOBUFS);
                }
                match granted {
                    Ok(()) => self.answer_read(id, segments, len)?,
                    Err(error) => self.refuse(id, None, error),
                }
                Ok(self.started(id, 0))
            }
            StreamOp::Atomic => self.begin_atomic(id, header, bytes, behind),
            StreamOp::ReadRsp | StreamOp::AtomicRsp => {
                let conn = &mut self.conns[id];
                let envelope = Arrival::new(header, id, conn, &self.eps[conn.ep])?;
                if conn.ignores_answers {
                    if envelope.len > 0 {
                        conn.incoming =
                            Some(RxRequest { envelope, target: MessageTarget::Discard, done: 0 });
                    }
                    return Ok(HeaderOutcome::Taken(0));
                }
                let (_, asked) = conn.reads.front().ok_or(Error::PROTO)?;
                if (asked.flags & FI_ATOMIC != 0) != (header.op == StreamOp::AtomicRsp) {
                    return Err(Error::PROTO);
                }
                let (buf, finish) = conn.reads.pop_front().ok_or(Error::PROTO)?;
                let refusable = header.op == StreamOp::AtomicRsp
                    || (conn.knows.outcomes && envelope.len == 0 && !buf.is_empty());
                if refusable && header.op_data != 0 {
                    let error = Error::from_code(header.op_data.into());
                    self.eps[conn.ep].finish_tx(&finish, Err(error));
                    self.lift_fence(id);
                    return Ok(self.started(id, 0));
                }
                let right_size = buf.len() == envelope.len;
                if right_size && envelope.len <= behind.len() {
                    conn.answered_in = self.iterations;
                    buf.copy_from(0, &behind[..envelope.len]);
                    self.eps[conn.ep].finish_tx(&finish, Ok(()));
                    self.lift_fence(id);
                    return Ok(self.started(id, envelope.len));
                }
                conn.incoming = Some(RxRequest {
                    envelope,
                    target: MessageTarget::Answer(buf, finish),
                    done: 0,
                });
                if !right_size {
                    return Err(Error::PROTO);
                }
                Ok(HeaderOutcome::Taken(0))
            }
            StreamOp::Data => {
                let conn = &mut self.conns[id];
                let mut incoming = conn.expected.remove(&header.op_data).ok_or(Error::PROTO)?;
                conn.announced.remove(header.op_data);
                if header.len != incoming.envelope.len as u64 {
                    conn.incoming = Some(incoming);
                    return Err(Error::PROTO);
                }
                if wants_ack(header) {
                    incoming.envelope.ack = AckAt::of(header);
                }
                incoming.envelope.number = conn.asked;
                conn.incoming = Some(incoming);
                if header.len == 0 && !self.complete_incoming(id) {
                    return Ok(HeaderOutcome::Gone);
                }
                Ok(HeaderOutcome::Taken(0))
            }
        }
    }

    /// [`HeaderOutcome::Taken`] with `n` bytes, or [`HeaderOutcome::Gone`] if the connection has ended
    /// meanwhile.
    pub(super) fn started(&self, id: u32, n: usize) -> HeaderOutcome {
        if self.conns.get(id).is_some() { HeaderOutcome::Taken(n) } else { HeaderOutcome::Gone }
    }

    /// Returns the remote segments of local memory named by a header. For a write their length must
    /// equal the announced length; otherwise it fails with -FI_EPROTO.
    fn segments(&self, id: u32, header: &StreamHeader, bytes: &[u8]) -> Result<RemoteSegments> {
        let segments =
            header.read_segments(bytes, self.conns[id].order).map_err(|_| Error::PROTO)?;
        let total = segments.total()?;
        if header.op == StreamOp::Write && total as u64 != header.len {
            Err(Error::PROTO)
        } else {
            Ok(segments)
        }
    }

    /// Checks the peer's right to the remote segments, and writes `bytes` there. Logs an error; the
    /// access is then to be [refused](StreamState::refuse).
    fn grant(&self, id: u32, segments: &RemoteSegments, right: u64, bytes: &[u8]) -> Result {
        let opened = self.regions.open();
        let checked = opened.check(segments, right);
        let written = checked.and_then(|()| match bytes {
            [] => Ok(()),
            bytes => opened.write(segments, right, 0, bytes),
        });
        drop(opened);
        written.inspect_err(|error| {
            let peer = peer_of(&self.conns[id].link);
            ofi_provider::log_sparsely!(
                N::Link::provider(),
                WARN,
                EP_DATA,
                "{} asked for memory it has no right to ({error}): {segments:?}",
                peer_text(peer)
            );
        })
    }

    /// Checks if the endpoint permits peers to read or write memory at all (FI_REMOTE_READ,
    /// FI_REMOTE_WRITE). Otherwise it fails with -FI_EACCES, and the access is to be refused.
    fn admit_access(&self, id: u32, right: u64) -> Result {
        let conn = &self.conns[id];
        if self.eps[conn.ep].identity.target.rma & right != 0 {
            return Ok(());
        }
        let peer = peer_of(&conn.link);
        ofi_provider::log_sparsely!(
            N::Link::provider(),
            WARN,
            EP_DATA,
            "{} asked for memory of an endpoint that was opened without {}",
            peer_text(peer),
            if right == FI_REMOTE_READ { "FI_REMOTE_READ" } else { "FI_REMOTE_WRITE" }
        );
        Err(Error::ACCES)
    }

    /// Starts a peer's write to local memory: checks its right, and stores the available bytes.
    fn begin_write(
        &mut self,
        id: u32,
        header: &StreamHeader,
        bytes: &[u8],
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        let segments = self.segments(id, header, bytes)?;
        let conn = &self.conns[id];
        let mut envelope = Arrival::new(header, id, conn, &self.eps[conn.ep])?;
        let cq_blocked =
            envelope.cq_data.is_some() && !self.eps[conn.ep].matcher.completions.has_space();
        let here = if cq_blocked { 0 } else { envelope.len.min(behind.len()) };
        let granted = self
            .admit_access(id, FI_REMOTE_WRITE)
            .and_then(|()| self.grant(id, &segments, FI_REMOTE_WRITE, &behind[..here]));
        if cq_blocked && granted.is_ok() {
            return Ok(HeaderOutcome::CqBlocked);
        }
        let target = match granted {
            Ok(()) if here == envelope.len => {
                self.written(&envelope, &segments);
                if envelope.ack.is_awaited() {
                    self.acknowledge(id, envelope.number);
                }
                return Ok(self.started(id, here));
            }
            Ok(()) => MessageTarget::Region(segments),
            Err(error) => {
                self.refuse_write(id, &mut envelope, error);
                MessageTarget::Discard
            }
        };
        // The refusal may have ended the connection.
        let Some(conn) = self.conns.get_mut(id) else { return Ok(HeaderOutcome::Gone) };
        let here = envelope.len.min(behind.len());
        if here < envelope.len {
            conn.incoming = Some(RxRequest { envelope, target, done: here });
        }
        Ok(HeaderOutcome::Taken(here))
    }

    /// Refuses a peer's write, with its bytes to be discarded. Without an acknowledgement the peer
    /// takes the write for complete, and need not lose the connection over it.
    fn refuse_write(&mut self, id: u32, envelope: &mut Arrival, error: Error) {
        let conn = &self.conns[id];
        if envelope.ack.is_awaited() || (conn.unknown_conn.is_some() && !conn.knows.outcomes) {
            self.refuse(id, Some(envelope.number), error);
        }
        envelope.ack = AckAt::Never;
    }

    /// Refuses the rest of a peer's write in progress after its region was closed. Returns false if
    /// the message in progress is no such write.
    fn refuse_rest(&mut self, id: u32, error: Error) -> bool {
        let Some(conn) = self.conns.get_mut(id) else { return false };
        let is_write = |one: &mut RxRequest| matches!(one.target, MessageTarget::Region(_));
        let Some(mut incoming) = conn.incoming.take_if(is_write) else { return false };
        incoming.target = MessageTarget::Discard;
        self.refuse_write(id, &mut incoming.envelope, error);
        if let Some(conn) = self.conns.get_mut(id) {
            conn.incoming = Some(incoming);
        }
        true
    }

    /// Finishes a peer's write with all bytes stored: makes them durable if requested, counts and
    /// reports it.
    fn written(&mut self, envelope: &Arrival, segments: &RemoteSegments) {
        if envelope.commit {
            // A region that is closed by now need not be made durable.
            let _ = self.regions.open().commit(segments, FI_REMOTE_WRITE);
        }
        self.regions.written(segments);
        self.eps[envelope.ep].written(envelope, segments);
    }

    #[inline]
    fn begin_message(
        &mut self,
        id: u32,
        header: &StreamHeader,
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        let conn = &mut self.conns[id];
        let ep = &mut self.eps[conn.ep];
        if !ep.matcher.completions.has_space() {
            return Ok(HeaderOutcome::CqBlocked);
        }
        let envelope = Arrival::new(header, id, conn, ep)?;
        let here = envelope.len.min(behind.len());
        if let Some(buffering) = ep.matcher.buffering()
            && buffering.is_long(envelope.len)
            && behind.len() < buffering.wanted(envelope.len)
        {
            return Ok(HeaderOutcome::Short);
        }
        if here < envelope.len
            && ep.matcher.is_shared()
            && ep.has_source
            && envelope.queue() == 0
            && ep.matcher.collects(envelope.len, N::Link::settings().max_unexpected)?
        {
            conn.incoming =
                Some(RxRequest { envelope, target: MessageTarget::Collected(Vec::new()), done: 0 });
            return Ok(HeaderOutcome::Taken(0));
        }
        if let Some(recv) = ep.take_posted(&envelope) {
            if recv.flags & ONLY_TAG != 0 {
                return self.begin_buffered(id, envelope, behind, Some(recv));
            }
            recv.buf.copy_from(0, &behind[..here]);
            if here == envelope.len {
                ep.matcher.received(&recv, &envelope);
                if envelope.ack.is_awaited() {
                    self.acknowledge(id, envelope.number);
                    if self.conns.get(id).is_none() {
                        return Ok(HeaderOutcome::Gone);
                    }
                }
            } else {
                conn.incoming =
                    Some(RxRequest { envelope, target: MessageTarget::Posted(recv), done: here });
            }
            return Ok(HeaderOutcome::Taken(here));
        }
        self.begin_unexpected(id, envelope, behind)
    }

    /// Starts a message without a matching receive: buffers it, reports it (buffered receives), or
    /// drops it.
    fn begin_unexpected(
        &mut self,
        id: u32,
        envelope: Arrival,
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        let matcher = &self.eps[envelope.ep].matcher;
        if matcher.buffering().is_some() {
            return self.begin_buffered(id, envelope, behind, None);
        }
        if matcher.drops(&envelope) {
            let here = envelope.len.min(behind.len());
            self.conns[id].incoming =
                Some(RxRequest { envelope, target: MessageTarget::Discard, done: here });
            return match here < envelope.len || self.complete_incoming(id) {
                true => Ok(HeaderOutcome::Taken(here)),
                false => Ok(HeaderOutcome::Gone),
            };
        }
        Ok(self.start_buffered(id, envelope, behind)?.1)
    }

    /// Buffers an unexpected message with its first bytes in `behind`. Without buffer space it
    /// blocks its connection. Returns its number in the matching engine.
    pub(super) fn start_buffered(
        &mut self,
        id: u32,
        envelope: Arrival,
        behind: &[u8],
    ) -> Result<(u32, HeaderOutcome)> {
        let mut envelope = envelope;
        let has_space = self.makes_room(&envelope);
        let conn = &mut self.conns[id];
        let ep = &mut self.eps[conn.ep];
        let here = envelope.len.min(behind.len());
        if !has_space || ep.peer_is_over_bound(conn.peer, N::Link::settings().max_saved) {
            let message = ep.buffer_unexpected(&envelope, StreamUnexpected::Blocking)?;
            conn.incoming =
                Some(RxRequest { envelope, target: MessageTarget::Buffered(message), done: 0 });
            self.rx_blocked.push((id, envelope.serial));
            return Ok((message, HeaderOutcome::Blocked));
        }
        if here == envelope.len {
            let delivered = envelope.ack.take_delivery();
            let message =
                ep.buffer_unexpected(&envelope, StreamUnexpected::Whole(copied(&behind[..here])?))?;
            if delivered {
                self.acknowledge(id, envelope.number);
            }
            return Ok((message, self.started(id, here)));
        }
        let message = ep.buffer_unexpected(
            &envelope,
            StreamUnexpected::arriving(envelope.len, &behind[..here])?,
        )?;
        conn.incoming =
            Some(RxRequest { envelope, target: MessageTarget::Buffered(message), done: here });
        Ok((message, HeaderOutcome::Taken(here)))
    }

    /// Returns true if there is space to buffer a message. If necessary, drops messages of
    /// disconnected unknown peers to buffer one of another peer.
    fn makes_room(&mut self, envelope: &Arrival) -> bool {
        let most = N::Link::settings().max_unexpected;
        loop {
            let matcher = &self.eps[envelope.ep].matcher;
            if matcher.may_buffer(envelope, most) {
                return true;
            }
            if !matcher.unknown_peers_keep_out(envelope, most)
                || !self.drop_oldest_left(envelope.ep)
            {
                return false;
            }
        }
    }

    /// Drops the buffered messages of the unknown peer disconnected first, among those of this
    /// endpoint and of others sharing its matching engine. Returns false if there is none.
    fn drop_oldest_left(&mut self, ep_id: u32) -> bool {
        while let Some((owner, peer)) = self.eps[ep_id].matcher.oldest_left() {
            let Some(ep) = self.eps.get_mut(owner) else { continue };
            let gone = ep.peers.get(peer).is_some_and(|entry| entry.conns == 0);
            if !gone || !ep.matcher.is_unknown_peer(peer) || !ep.matcher.has_buffered_from(peer) {
                continue;
            }
            for (queue, number) in ep.matcher.buffered_from(peer) {
                if !ep.matcher.is_hidden(queue, number) {
                    ep.matcher.take_buffered(queue, number);
                }
            }
            ep.forget_peer_if_unused(peer);
            return true;
        }
        false
    }

    /// Handles the end of a connection of this peer. After an unknown peer's last one, its buffered
    /// messages may be dropped.
    pub(super) fn peer_left(&mut self, ep_id: u32, peer: u32) {
        let ep = &mut self.eps[ep_id];
        if ep.peers.get(peer).is_some_and(|entry| entry.conns == 0)
            && ep.matcher.unknown_peer_left(peer)
        {
            self.drop_oldest_left(ep_id);
        }
    }

    /// Starts a rendezvous message ([`StreamOp::TagRts`]): requests it if a receive matches, or
    /// records it in the matching engine.
    fn on_rts(&mut self, id: u32, header: &StreamHeader) -> Result<HeaderOutcome> {
        let conn = &mut self.conns[id];
        let ep = &mut self.eps[conn.ep];
        if !ep.matcher.completions.has_space() {
            return Ok(HeaderOutcome::CqBlocked);
        }
        if ep.matcher.buffering().is_some() {
            // An endpoint with buffered receives offered protocol version 0, which has no such
            // messages.
            return Err(Error::PROTO);
        }
        let envelope = Arrival::new(header, id, conn, ep)?;
        // The number is taken until the message arrives, whether it is asked for yet or not.
        if !conn.announced.insert(header.op_data) {
            return Err(Error::PROTO);
        }
        let target = match ep.take_posted(&envelope) {
            Some(recv) => MessageTarget::Posted(recv),
            None if ep.matcher.drops(&envelope) => MessageTarget::Discard,
            None if ep.matcher.may_note(N::Link::settings().max_unexpected) => {
                let message =
                    ep.buffer_unexpected(&envelope, StreamUnexpected::AtSender(header.op_data))?;
                conn.at_sender.insert(header.op_data, (envelope.queue(), message));
                return Ok(HeaderOutcome::Taken(0));
            }
            // There is no room even for notes of announced messages.
            None => return Err(Error::PROTO),
        };
        conn.expected.insert(header.op_data, RxRequest { envelope, target, done: 0 });
        self.send_cts(id, header.op_data);
        Ok(self.started(id, 0))
    }

    pub(super) fn send_cts(&mut self, id: u32, number: u8) {
        let header = StreamHeader { op_data: number, ..StreamHeader::of(StreamOp::Cts) };
        self.send_internal(id, header);
    }

    /// Finishes the message in progress after all bytes have arrived: reports it, and acknowledges
    /// it if requested. Returns false when the connection is closed.
    pub(super) fn complete_incoming(&mut self, id: u32) -> bool {
        let conn = &mut self.conns[id];
        let Some(incoming) = conn.incoming.take() else { return true };
        let ep = &mut self.eps[conn.ep];
        let (mut ack, mut delivered) = (incoming.envelope.ack.is_awaited(), incoming.envelope.ack);
        match incoming.target {
            MessageTarget::Posted(recv) => ep.matcher.received(&recv, &incoming.envelope),
            MessageTarget::Discard => {}
            MessageTarget::Collected(mut bytes) => {
                let envelope = incoming.envelope;
                ep.matcher.collected(envelope.len);
                bytes.truncate(envelope.len);
                if let Some(recv) = ep.take_posted(&envelope) {
                    recv.buf.copy_from(0, &bytes);
                    ep.matcher.received(&recv, &envelope);
                } else {
                    ack = delivered.take_delivery();
                    let envelope = Arrival { ack: delivered, ..envelope };
                    if let Err(error) =
                        ep.buffer_unexpected(&envelope, StreamUnexpected::Whole(bytes.into()))
                    {
                        self.fail(id, error);
                        return false;
                    }
                }
            }
            MessageTarget::Region(segments) => self.written(&incoming.envelope, &segments),
            MessageTarget::Atomic(request) => {
                ack = false;
                self.carry_out(id, &incoming.envelope, &request, &request.operands);
            }
            MessageTarget::Answer(_, finish) => {
                conn.answered_in = self.iterations;
                ep.finish_tx(&finish, Ok(()));
                self.lift_fence(id);
            }
            MessageTarget::Buffered(message) => {
                ack = delivered.take_delivery();
                let whole = ep.matcher.change(incoming.envelope.queue(), message, |buffered| {
                    let StreamUnexpected::Arriving(bytes) = &mut buffered.body else {
                        return false;
                    };
                    buffered.body = StreamUnexpected::Whole(std::mem::take(bytes));
                    buffered.ack = delivered;
                    true
                });
                if whole == Some(true) {
                    ep.is_whole(&incoming.envelope, message);
                }
            }
        }
        if ack {
            self.acknowledge(id, incoming.envelope.number);
        }
        self.conns.get(id).is_some()
    }

    /// Resumes a blocked connection: parses its stash, then permits reading again.
    pub(super) fn unblock(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.blocked = false;
        let stash = std::mem::take(&mut conn.stash);
        self.mark_active(id);
        if !stash.is_empty() {
            self.idle = 0;
            self.parse(id, &stash);
        }
        if self.conns.get(id).is_some() {
            self.watch(id);
        }
    }

    /// Resumes connections blocked by a message without buffer space, if there is space now. The
    /// next messages on them may match posted receives.
    pub(super) fn buffer_blocked_rx(&mut self) {
        for (id, serial) in std::mem::take(&mut self.rx_blocked) {
            let Some(conn) = self.conns.get(id).filter(|conn| conn.serial == serial) else {
                continue;
            };
            // If a receive took the message meanwhile, nothing is left to do.
            let Some(RxRequest { envelope, target: MessageTarget::Buffered(number), .. }) =
                &conn.incoming
            else {
                continue;
            };
            let (envelope, number, queue) = (*envelope, *number, envelope.queue());
            let matcher = &mut self.eps[conn.ep].matcher;
            let blocks =
                |buffered: &UnexpectedPayload| matches!(buffered.body, StreamUnexpected::Blocking);
            if matcher.buffered_as(queue, number, blocks) != Some(true) {
                continue;
            }
            // Another message by now, reported by its start: the application says where it goes.
            if matcher.buffering().is_some_and(|buffering| buffering.has_notified(queue, number)) {
                continue;
            }
            let max = N::Link::settings().max_saved.unwrap_or(usize::MAX);
            // The blocking message is counted itself, hence more than `max`.
            let over = envelope.peer != NONE && matcher.buffered_count(envelope.peer) > max;
            if over || !matcher.may_buffer(&envelope, N::Link::settings().max_unexpected) {
                self.rx_blocked.push((id, serial));
                continue;
            }
            match StreamUnexpected::arriving(envelope.len, &[]) {
                Ok(body) => matcher.change(queue, number, |buffered| buffered.body = body),
                Err(error) => {
                    self.fail(id, error);
                    continue;
                }
            };
            if envelope.len > 0 || self.complete_incoming(id) {
                self.unblock(id);
            }
        }
    }

    /// Ends, with `error`, the operations arriving on a closed connection: receives and reads fail,
    /// and incomplete unexpected messages are dropped.
    pub(super) fn lose_incoming(&mut self, conn: &mut StreamConn<N>, error: Error) {
        let ep = &mut self.eps[conn.ep];
        let under_way =
            conn.incoming.take().into_iter().chain(conn.expected.drain().map(|(_, i)| i));
        let mut buffered = None;
        for incoming in under_way {
            match incoming.target {
                MessageTarget::Posted(recv) => ep.matcher.failed(&recv, &incoming.envelope, error),
                MessageTarget::Answer(_, finish) => ep.finish_tx(&finish, Err(error)),
                MessageTarget::Collected(_) => ep.matcher.collected(incoming.envelope.len),
                MessageTarget::Buffered(number) => {
                    buffered = Some((incoming.envelope.queue(), number))
                }
                MessageTarget::Region(_) | MessageTarget::Atomic(_) | MessageTarget::Discard => {}
            }
        }
        let waiting = conn.at_sender.drain().map(|(_, position)| position);
        for (queue, number) in buffered.into_iter().chain(waiting) {
            ep.matcher.lose(
                queue,
                number,
                |buffered| buffered.body = StreamUnexpected::Lost,
                error,
            );
        }
    }
}

/// Returns the space for `wanted` more bytes of a collected message, after the `done` bytes
/// received.
fn buf_for(bytes: &mut Vec<u8>, done: usize, wanted: usize) -> Result<&mut [u8]> {
    let end = done + wanted;
    if bytes.len() < end {
        may_allocate()?;
        bytes.try_reserve(end - bytes.len()).map_err(|_| Error::NOMEM)?;
        bytes.resize(end, 0);
    }
    Ok(&mut bytes[done..end])
}

/// Returns true if a message or write with this header is acknowledged on completion. For a
/// rendezvous message this applies to the payload, not to the RTS. An atomic operation gets a
/// response instead.
fn is_acknowledged(header: &StreamHeader) -> bool {
    wants_ack(header) && !matches!(header.op, StreamOp::TagRts | StreamOp::Atomic)
}

/// The header at the start of `bytes` with its length, once all of it is there.
#[inline]
fn next_header<N: Transport>(
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

#[cfg(test)]
mod tests;
