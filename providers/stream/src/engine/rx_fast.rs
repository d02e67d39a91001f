//! Receiving the most common messages: complete, with a posted receive, and without special
//! attributes.
//!
//! [`deliver_fast`] and [`deliver_slow`] pass such a message from any memory to any [`Destination`].
//! The other functions find messages: in the bytes of a socket, or in the cells of shared memory.
use super::arrival::UnexpectedPayload;
use super::conn::StreamConn;
use crate::transport::{ShmLink, ShmTransport};
use crate::wire::{FastHeader, StreamFast, StreamHeader};
use ofi_provider::buf::{InlineBytes, MessageBytes};
use ofi_provider::packet_sink::PacketSink;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_provider::shm_channel::InlineRecv;

/// Destination of the messages of a fast path. Each method returns false if it has delivered
/// nothing; then it has no effect.
pub(super) trait Destination: Copy {
    /// True if messages in cells of shared memory are worth a try of [`deliver_slow`] in place, and
    /// may have remote CQ data.
    const TAKES_ANY: bool;
    /// True for receives of another provider.
    const IS_IMPORTED: bool = false;

    /// Delivers a short message, if this takes no call for messages of the endpoint's own receives.
    fn take_fast(
        self,
        matcher: &mut RxMatcher<UnexpectedPayload>,
        peer: u32,
        header: FastHeader,
        body: impl MessageBytes,
    ) -> bool;

    /// Delivers a message of any length to any matching receive.
    fn take_slow(
        self,
        matcher: &mut RxMatcher<UnexpectedPayload>,
        peer: u32,
        (tagged, tag): (bool, u64),
        data: Option<u64>,
        body: impl MessageBytes,
    ) -> bool {
        (!Self::IS_IMPORTED && matcher.receive_first(peer, tagged, tag, data, body))
            || matcher.receive_whole(peer, tagged, tag, data, body)
    }
}

/// Receives of the endpoint or of its shared receive context.
#[derive(Clone, Copy)]
pub(super) struct PostedReceives;

impl Destination for PostedReceives {
    const TAKES_ANY: bool = true;

    #[inline(always)]
    fn take_fast(
        self,
        matcher: &mut RxMatcher<UnexpectedPayload>,
        peer: u32,
        FastHeader { tagged, tag, data, .. }: FastHeader,
        body: impl MessageBytes,
    ) -> bool {
        matcher.receive_short(peer, tagged, tag, data, body)
    }
}

/// Receives of another provider (fi_peer(3)).
#[derive(Clone, Copy)]
pub(super) struct ImportedReceives;

impl Destination for ImportedReceives {
    const TAKES_ANY: bool = false;
    const IS_IMPORTED: bool = true;

    #[inline(always)]
    fn take_fast(
        self,
        matcher: &mut RxMatcher<UnexpectedPayload>,
        peer: u32,
        FastHeader { tagged, tag, data, .. }: FastHeader,
        body: impl MessageBytes,
    ) -> bool {
        data.is_none() && matcher.receive_imported(peer, tagged, tag, body)
    }
}

/// The utility provider reading the completion queue, then posted receives.
impl Destination for &PacketSink<'_> {
    const TAKES_ANY: bool = false;

    #[inline(always)]
    fn take_fast(
        self,
        matcher: &mut RxMatcher<UnexpectedPayload>,
        peer: u32,
        FastHeader { tagged, data, .. }: FastHeader,
        body: impl MessageBytes,
    ) -> bool {
        !tagged && data.is_none() && matcher.receive_packet(self, peer, body)
    }
}

/// Fast path of a short message: saves the call of [`deliver_slow`]. Returns false in any other
/// case, without any effect.
#[inline(always)]
fn deliver_fast<N: ShmTransport>(
    to: impl Destination,
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    header: FastHeader,
    body: impl MessageBytes,
) -> bool {
    to.take_fast(matcher, conn.peer, header, body) && conn.received.one(body.count())
}

/// Delivers a message of any length, and to any matching receive, after [`deliver_fast`].
#[inline(never)]
fn deliver_slow<N: ShmTransport>(
    to: impl Destination,
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    (tagged, tag): (bool, u64),
    data: Option<u64>,
    body: impl MessageBytes,
) -> bool {
    to.take_slow(matcher, conn.peer, (tagged, tag), data, body) && conn.received.one(body.count())
}

/// Runs [`deliver_fast`], then [`deliver_slow`].
#[inline(always)]
fn deliver<N: ShmTransport>(
    to: impl Destination,
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    header: FastHeader,
    body: impl MessageBytes,
) -> bool {
    // In parts, which stay in registers.
    let FastHeader { tagged, tag, data, .. } = header;
    deliver_fast(to, conn, matcher, header, body)
        || deliver_slow(to, conn, matcher, (tagged, tag), data, body)
}

/// Delivers a single message to the oldest receive, the usual content of one read. A separate
/// function, to have all registers available.
#[inline(never)]
pub(super) fn only_message<N: ShmTransport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    bytes: &[u8],
) -> bool {
    let Some(start) = bytes.first_chunk::<24>() else { return false };
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| start[8 * at + byte]));
    let words = [word(0), word(1), word(2)];
    let header = StreamHeader::fast_in(words, bytes.len());
    let Some(FastHeader { tagged, tag, len, .. }) = header else { return false };
    let Some(body) = bytes.get(len..) else { return false };
    // Compiled for each kind of message.
    let was_delivered = if tagged {
        matcher.recv_fast(conn.peer, true, tag, None, body)
    } else {
        matcher.recv_fast(conn.peer, false, tag, None, body)
    };
    was_delivered && conn.received.one(body.len())
}

/// Delivers the message at the start of the bytes, and returns the bytes after it. Returns none
/// for anything else than a complete message without special attributes and with a receive.
#[inline(always)]
pub(super) fn fast_message<'a, N: ShmTransport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    sink: Option<&PacketSink<'_>>,
    bytes: &'a [u8],
) -> Option<&'a [u8]> {
    let StreamFast { header, body, rest } = StreamHeader::parse_fast(bytes)?;
    let taken = match sink {
        Some(sink) => deliver(sink, conn, matcher, header, body),
        None if matcher.is_imported() => deliver(ImportedReceives, conn, matcher, header, body),
        None => deliver(PostedReceives, conn, matcher, header, body),
    };
    taken.then_some(rest)
}

/// Runs [`fast_message`] for all messages at the start of the bytes; returns the bytes after them.
#[inline(never)]
pub(super) fn fast_messages<'a, N: ShmTransport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    sink: Option<&PacketSink<'_>>,
    bytes: &'a [u8],
) -> &'a [u8] {
    let mut rest = bytes;
    while let Some(behind) = fast_message(conn, matcher, sink, rest) {
        rest = behind;
    }
    rest
}

/// Delivers the messages in shared memory, directly from there.
#[inline(always)]
pub(super) fn fast_in_shm<D: Destination, N: ShmTransport>(
    to: D,
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
) -> InlineRecv {
    let came = conn.link.recv_inline(|short| {
        let bytes = short.all();
        match StreamHeader::fast_in(short.words(), bytes.len()) {
            Some(header) if D::TAKES_ANY => {
                deliver(to, conn, matcher, header, bytes.behind(header.len))
            }
            Some(header) => deliver_fast(to, conn, matcher, header, bytes.behind(header.len)),
            None => D::TAKES_ANY && data_in_shm(to, conn, matcher, short),
        }
    });
    if came == InlineRecv::Else { whole_in_shm(to, conn, matcher) } else { came }
}

/// Runs [`fast_in_shm`] with less common receives. A separate function, so it does not slow down
/// other endpoints.
#[inline(never)]
pub(super) fn fast_in_shm_to<D: Destination, N: ShmTransport>(
    to: D,
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
) -> InlineRecv {
    fast_in_shm(to, conn, matcher)
}

/// Runs [`fast_in_shm`] for a message with remote CQ data. A separate function, so it does not
/// slow down other messages.
#[inline(never)]
fn data_in_shm<N: ShmTransport>(
    to: impl Destination,
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    short: InlineBytes<'_>,
) -> bool {
    let bytes = short.all();
    let header = StreamHeader::fast_with_data_in(short.words(), bytes.len());
    header.is_some_and(|header| deliver(to, conn, matcher, header, bytes.behind(header.len)))
}

/// Runs [`fast_in_shm`] for messages of any length.
#[inline(never)]
fn whole_in_shm<N: ShmTransport>(
    to: impl Destination,
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
) -> InlineRecv {
    conn.link.recv_whole_message(|words, bytes| {
        let header = StreamHeader::any_fast_in(words, bytes.len());
        header.is_some_and(|header| deliver(to, conn, matcher, header, bytes.behind(header.len)))
    })
}

/// Result of [the fast-path read](super::rx_path::RxPath::read_fast).
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
