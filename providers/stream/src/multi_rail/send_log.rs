//! Bytes of a link's stream not acknowledged by the peer, stored for retransmission.
use super::frame::SEGMENT_MAX;
use crate::settings::RailSettings;
use crate::transport::ZerocopyDone;
use ofi_provider::buf::{GatherList, RetainedBytes};
use ofi_provider::error::{Error, Result};
use ofi_provider::malformed::{Malformed, Parsed};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Minimum size of a log's buffer in bytes, available to every link.
const BUFFER_MIN: usize = 64 << 10;

/// Number in place of a socket's: the bytes are to be sent again.
const LOST: usize = RailSettings::MAX;

/// Memory for the logs of all links of a transport.
#[derive(Debug)]
pub(super) struct LogMemory {
    /// Bytes in use, and their maximum.
    used: AtomicUsize,
    limit: usize,
}

impl LogMemory {
    pub(super) fn new(limit: usize) -> Self {
        Self { used: AtomicUsize::new(0), limit }
    }

    /// Takes memory. Returns false if too little is left.
    fn take(&self, bytes: usize) -> bool {
        let fits = self.used.load(Ordering::Relaxed).saturating_add(bytes) <= self.limit;
        if fits {
            self.used.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Queue of bytes.
#[derive(Debug, Default)]
struct ByteQueue {
    buffer: Box<[u8]>,
    /// Position of the first byte, and number of bytes.
    start: usize,
    len: usize,
}

impl ByteQueue {
    fn space(&self) -> usize {
        self.buffer.len() - self.len
    }

    /// Replaces the buffer by a larger one.
    fn grow(&mut self, capacity: usize) -> Result {
        let mut buffer = ofi_provider::buf::zeroed(capacity)?;
        let (one, two) = self.slices(0, self.len);
        buffer[..one.len()].copy_from_slice(one);
        buffer[one.len()..self.len].copy_from_slice(two);
        (self.buffer, self.start) = (buffer, 0);
        Ok(())
    }

    /// Returns the position in the buffer of the queue's byte number `at`.
    fn position(&self, at: usize) -> usize {
        let position = self.start + at;
        if position < self.buffer.len() { position } else { position - self.buffer.len() }
    }

    /// Adds `len` bytes of a list from byte `from` on. The caller has checked the space.
    fn push(&mut self, list: &GatherList<'_>, from: usize, len: usize) {
        let start = self.position(self.len);
        let first = len.min(self.buffer.len() - start);
        list.copy_to(from, &mut self.buffer[start..start + first]);
        if first < len {
            list.copy_to(from + first, &mut self.buffer[..len - first]);
        }
        self.len += len;
    }

    /// Returns `len` bytes from byte number `at` on.
    fn slices(&self, at: usize, len: usize) -> (&[u8], &[u8]) {
        let start = self.position(at);
        let first = len.min(self.buffer.len() - start);
        (&self.buffer[start..start + first], &self.buffer[..len - first])
    }

    /// Removes the first `len` bytes.
    fn skip(&mut self, len: usize) {
        self.start = self.position(len);
        self.len -= len;
    }
}

/// Consecutive bytes of the stream, sent in one or more frames on one socket.
#[derive(Debug)]
struct Segment {
    offset: u64,
    len: usize,
    /// Number of the socket, or [`LOST`].
    rail: usize,
    /// Bytes left in the application's buffer, with the number of acknowledged ones at the start.
    /// `None`: they are in the log's buffer.
    retained: Option<(RetainedBytes, usize)>,
}

/// Bytes of a link's stream not acknowledged by the peer.
#[derive(Debug)]
pub(super) struct SendLog {
    memory: Arc<LogMemory>,
    /// Unacknowledged segments, in the order of their offsets and without gaps.
    segments: VecDeque<Segment>,
    /// Bytes of all segments copied, in their order.
    copied: ByteQueue,
    /// Maximum size of the buffer in bytes.
    limit: usize,
    /// Offsets of the first unacknowledged byte and behind the last byte.
    acked: u64,
    end: u64,
    /// Number and bytes of lost segments.
    lost: usize,
    lost_bytes: usize,
}

impl SendLog {
    /// Creates an empty log with a buffer of up to `limit` bytes.
    pub(super) fn new(limit: usize, memory: Arc<LogMemory>) -> Self {
        Self {
            memory,
            segments: VecDeque::new(),
            copied: ByteQueue::default(),
            limit: limit.max(BUFFER_MIN),
            acked: 0,
            end: 0,
            lost: 0,
            lost_bytes: 0,
        }
    }

    /// Returns true if every byte is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the number of bytes to be sent again.
    pub(super) fn lost_bytes(&self) -> usize {
        self.lost_bytes
    }

    /// Makes space for copies. Returns the number of bytes to be copied, `len` at most.
    pub(super) fn prepare(&mut self, len: usize) -> usize {
        if len > self.copied.space() && self.capacity() < self.limit {
            let wanted = self.copied.len.saturating_add(len).min(self.limit);
            self.grow(wanted.next_power_of_two().clamp(BUFFER_MIN, self.limit));
        }
        len.min(self.copied.space())
    }

    fn capacity(&self) -> usize {
        self.copied.buffer.len()
    }

    /// Enlarges the buffer, if there is memory.
    #[cold]
    fn grow(&mut self, capacity: usize) {
        // Every link gets the minimum.
        let more = shared(capacity) - shared(self.capacity());
        if !self.memory.take(more) {
            if self.capacity() == 0 {
                self.grow(BUFFER_MIN);
            }
        } else if self.copied.grow(capacity).is_err() {
            self.memory.give_back(more);
        }
    }

    /// Releases the memory of an empty log.
    pub(super) fn release_unused(&mut self) {
        if self.is_empty() {
            self.memory.give_back(shared(self.capacity()));
            self.copied = ByteQueue::default();
        }
    }

    /// Adds the next bytes of the stream, `len` bytes of a list from byte `from` on, sent on
    /// socket `rail`: [prepared](Self::prepare) ones as a copy, or `retained` ones.
    pub(super) fn push(
        &mut self,
        list: &GatherList<'_>,
        from: usize,
        len: usize,
        rail: usize,
        is_retained: bool,
    ) {
        let offset = self.end;
        self.end += len as u64;
        let retained = is_retained.then(|| (list.retain(from, len), 0));
        if !is_retained {
            self.copied.push(list, from, len);
            if let Some(last) = self.segments.back_mut() {
                let joins = last.retained.is_none() && last.rail == rail;
                if joins && last.len + len <= SEGMENT_MAX {
                    last.len += len;
                    return;
                }
            }
        }
        self.segments.push_back(Segment { offset, len, rail, retained });
    }

    /// Returns true if [`join`](Self::join) has space for so many bytes sent on a socket: the last
    /// segment is copied and not full, and no bytes are lost.
    #[inline(always)]
    pub(super) fn can_join(&self, len: usize, rail: usize) -> bool {
        let joins = |last: &Segment| {
            last.retained.is_none() && last.rail == rail && last.len + len <= SEGMENT_MAX
        };
        self.lost == 0
            && len <= self.copied.space()
            && self.copied.position(self.copied.len) + len <= self.copied.buffer.len()
            && self.segments.back().is_some_and(joins)
    }

    /// Adds the next bytes of the stream to the last segment ([`can_join`](Self::can_join)).
    #[inline(always)]
    pub(super) fn join(&mut self, bytes: &[u8]) {
        let start = self.copied.position(self.copied.len);
        self.copied.buffer[start..start + bytes.len()].copy_from_slice(bytes);
        self.copied.len += bytes.len();
        self.end += bytes.len() as u64;
        if let Some(last) = self.segments.back_mut() {
            last.len += bytes.len();
        }
    }

    /// Removes the bytes before this offset: the peer has read them. Returns true if any were left.
    pub(super) fn acknowledge(&mut self, offset: u64) -> Parsed<bool> {
        if offset.saturating_sub(1) > self.end {
            return Err(Malformed("bytes never sent are acknowledged"));
        }
        // An encrypting link may have sent one byte more than it has reported.
        let offset = offset.min(self.end);
        if offset <= self.acked {
            // Acknowledgements on different sockets may overtake each other.
            return Ok(false);
        }
        self.acked = offset;
        while let Some(first) = self.segments.front_mut() {
            let acked = (offset.saturating_sub(first.offset) as usize).min(first.len);
            if acked == 0 {
                break;
            }
            match &mut first.retained {
                None => self.copied.skip(acked),
                Some((_, skipped)) => *skipped += acked,
            }
            first.offset += acked as u64;
            first.len -= acked;
            if first.rail == LOST {
                self.lost_bytes -= acked;
            }
            if first.len > 0 {
                break;
            }
            self.lost -= usize::from(first.rail == LOST);
            self.segments.pop_front();
        }
        Ok(true)
    }

    /// Marks the unacknowledged bytes of a socket as lost.
    pub(super) fn lose(&mut self, rail: usize) {
        #[cfg(any(test, feature = "sim"))]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::LostSegment) {
            return;
        }
        for segment in self.segments.iter_mut().filter(|segment| segment.rail == rail) {
            segment.rail = LOST;
            self.lost += 1;
            self.lost_bytes += segment.len;
        }
    }

    /// Returns true if the socket was the last to carry an unacknowledged segment.
    pub(super) fn has_sent_on(&self, rail: usize) -> bool {
        self.segments.iter().any(|segment| segment.rail == rail)
    }

    /// Returns the number of the first lost segment, with its offset and length.
    #[inline]
    pub(super) fn first_lost(&self) -> Option<(usize, u64, usize)> {
        if self.lost == 0 { None } else { self.first_lost_slow() }
    }

    #[cold]
    fn first_lost_slow(&self) -> Option<(usize, u64, usize)> {
        let at = self.segments.iter().position(|segment| segment.rail == LOST)?;
        Some((at, self.segments[at].offset, self.segments[at].len))
    }

    /// Adds the bytes of a segment to a list.
    pub(super) fn gather<'a>(&'a self, at: usize, list: &mut GatherList<'a>) -> Result {
        let segment = &self.segments[at];
        let is_added = match &segment.retained {
            Some((bytes, skipped)) => bytes.gather(*skipped, segment.len, list),
            None => {
                let before = self.segments.iter().take(at).filter(|one| one.retained.is_none());
                let start = before.map(|one| one.len).sum::<usize>();
                let (one, two) = self.copied.slices(start, segment.len);
                list.push_bytes(one) && list.push_bytes(two)
            }
        };
        if is_added { Ok(()) } else { Err(Error::NOMEM) }
    }

    /// Records the repetition of a lost segment on socket `rail`.
    pub(super) fn sent_again(&mut self, at: usize, rail: usize) {
        let segment = &mut self.segments[at];
        segment.rail = rail;
        self.lost -= 1;
        self.lost_bytes -= segment.len;
    }
}

impl Drop for SendLog {
    fn drop(&mut self) {
        self.memory.give_back(shared(self.capacity()));
    }
}

/// Zero-copy calls of a link, in use until the peer has acknowledged their bytes.
#[derive(Debug, Default)]
pub(super) struct CallQueue {
    /// Number of the next call.
    next: u32,
    /// Ends of the calls in use, in the order of their numbers.
    pending: VecDeque<u64>,
    /// Calls done, not reported yet.
    done: u32,
}

impl CallQueue {
    /// Adds a call with bytes up to this offset.
    pub(super) fn push(&mut self, end: u64) {
        self.next = self.next.wrapping_add(1);
        self.pending.push_back(end);
    }

    /// Records the release of the bytes before an offset.
    pub(super) fn finish(&mut self, offset: u64) {
        while self.pending.front().is_some_and(|end| *end <= offset) {
            self.pending.pop_front();
            self.done += 1;
        }
    }

    /// Returns true if [`take_done`](Self::take_done) has calls to return.
    pub(super) fn has_done(&self) -> bool {
        self.done > 0
    }

    /// Returns the calls done since the last query. `copied`: their bytes were copied.
    pub(super) fn take_done(&mut self, copied: bool) -> Option<ZerocopyDone> {
        let count = std::mem::take(&mut self.done);
        let high = self.next.wrapping_sub(self.pending.len() as u32 + 1);
        let low = high.wrapping_sub(count.wrapping_sub(1));
        (count > 0).then_some(ZerocopyDone { low, high, copied })
    }
}

/// Returns the part of a buffer's size taken from the memory of all links.
fn shared(capacity: usize) -> usize {
    capacity.saturating_sub(BUFFER_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(limit: usize) -> SendLog {
        SendLog::new(limit, Arc::new(LogMemory::new(1 << 20)))
    }

    fn push(log: &mut SendLog, bytes: &[u8], rail: usize, is_retained: bool) {
        let mut list = GatherList::default();
        list.push_bytes(bytes);
        assert!(is_retained || log.prepare(bytes.len()) == bytes.len());
        log.push(&list, 0, bytes.len(), rail, is_retained);
    }

    fn lost(log: &SendLog) -> Option<(u64, Vec<u8>)> {
        let (at, offset, len) = log.first_lost()?;
        let mut list = GatherList::default();
        log.gather(at, &mut list).unwrap();
        let mut bytes = vec![0; len];
        assert_eq!((list.len(), list.copy_to(0, &mut bytes)), (len, len));
        Some((offset, bytes))
    }

    #[test]
    fn lost_bytes_are_those_of_the_socket_without_acknowledged_ones() {
        let (mut log, memory) = (log(1 << 16), *b"reserved");
        push(&mut log, b"one", 0, false);
        push(&mut log, b"two", 1, false);
        push(&mut log, &memory, 1, true);
        push(&mut log, b"three", 1, false);
        push(&mut log, b"four", 1, false);
        assert_eq!(lost(&log), None);
        assert_eq!(log.acknowledge(4), Ok(true));
        log.lose(1);
        assert_eq!(log.lost_bytes(), 2 + 8 + 9);
        assert_eq!(lost(&log), Some((4, b"wo".to_vec())));
        log.sent_again(0, 0);
        assert_eq!(log.acknowledge(8), Ok(true));
        assert_eq!(lost(&log), Some((8, b"served".to_vec())));
        log.sent_again(0, 2);
        assert_eq!(lost(&log), Some((14, b"threefour".to_vec())));
        assert_eq!(log.acknowledge(20), Ok(true));
        assert_eq!((lost(&log), log.lost_bytes()), (Some((20, b"our".to_vec())), 3));
        assert_eq!(log.acknowledge(23), Ok(true));
        assert!(log.is_empty() && log.lost_bytes() == 0);
    }

    #[test]
    fn acknowledgements_of_unsent_bytes_are_malformed_and_old_ones_have_no_effect() {
        let mut log = log(1 << 16);
        push(&mut log, b"12345", 0, false);
        assert!(log.acknowledge(7).is_err() && log.acknowledge(u64::MAX).is_err());
        assert_eq!((log.acknowledge(3), log.acknowledge(2)), (Ok(true), Ok(false)));
        assert!(!log.is_empty());
        assert_eq!(
            log.acknowledge(6),
            Ok(true),
            "a byte of an encrypting link is not reported yet"
        );
        assert!(log.is_empty());
    }

    #[test]
    fn buffer_is_bounded_for_each_link_and_in_sum() {
        let memory = Arc::new(LogMemory::new(BUFFER_MIN));
        let [mut one, mut two] = [(); 2].map(|()| SendLog::new(4 * BUFFER_MIN, memory.clone()));
        assert_eq!(one.prepare(usize::MAX), BUFFER_MIN, "four times as much is not left in sum");
        assert_eq!(one.prepare(2 * BUFFER_MIN), 2 * BUFFER_MIN);
        assert_eq!(two.prepare(2 * BUFFER_MIN), BUFFER_MIN, "the minimum is always there");
        drop(one);
        assert_eq!(two.prepare(2 * BUFFER_MIN), 2 * BUFFER_MIN);
        two.release_unused();
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
        let mut small = log(1);
        assert_eq!(small.prepare(usize::MAX), BUFFER_MIN);
        push(&mut small, &vec![0; BUFFER_MIN], 0, false);
        assert_eq!(small.prepare(1), 0);
    }

    #[test]
    fn calls_are_done_in_order_when_their_bytes_are_not_in_use() {
        let mut calls = CallQueue { next: u32::MAX, ..CallQueue::default() };
        let done = |calls: &mut CallQueue| calls.take_done(false).map(|done| (done.low, done.high));
        calls.push(3);
        calls.push(7);
        assert_eq!(done(&mut calls), None);
        calls.finish(6);
        assert_eq!(done(&mut calls), Some((u32::MAX, u32::MAX)));
        calls.push(8);
        calls.finish(8);
        assert_eq!(done(&mut calls), Some((0, 1)));
        assert_eq!(done(&mut calls), None);
    }
}
