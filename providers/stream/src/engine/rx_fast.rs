//! Receiving the most common messages: complete, with a posted receive, and without special
//! attributes.
use super::arrival::UnexpectedPayload;
use super::conn::StreamConn;
use crate::transport::{ShmLink, ShmTransport};
use crate::wire::{FastHeader, StreamFast, StreamHeader};
use ofi_provider::buf::InlineBytes;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_provider::shm_channel::InlineRecv;

/// Fast path: delivers a complete message without special attributes to its posted receive. Returns
/// the bytes after it. In any other case it returns none and has changed nothing.
#[inline(always)]
pub(super) fn fast_message<'a, N: ShmTransport>(
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
pub(super) fn only_message<N: ShmTransport>(
    conn: &StreamConn<N>,
    matcher: &mut RxMatcher<UnexpectedPayload>,
    bytes: &[u8],
) -> bool {
    let Some(start) = bytes.first_chunk::<24>() else { return false };
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| start[8 * at + byte]));
    let words = [word(0), word(1), word(2)];
    let header = StreamHeader::fast_in(words, bytes.len());
    header.is_some_and(|FastHeader { tagged, tag, len, .. }| {
        matcher.recv_fast(conn.peer, tagged, tag, None, &bytes[len..])
            && conn.received.one(bytes.len() - len)
    })
}

/// Runs [`fast_message`] for all messages at the start of the bytes; returns the bytes after them.
#[inline(never)]
pub(super) fn fast_messages<'a, N: ShmTransport>(
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
pub(super) fn imported_in_memory<N: ShmTransport>(
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
pub(super) fn fast_in_shm<N: ShmTransport>(
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
fn data_in_memory<N: ShmTransport>(
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
fn longer_in_memory<N: ShmTransport>(
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
