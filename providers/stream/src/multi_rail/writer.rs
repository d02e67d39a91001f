//! Writer of the frames of one socket.
use super::frame::{FRAME_LEN, FrameHeader};
use crate::transport::ByteLink;
use ofi_provider::buf::{CopyMode, GatherList};
use ofi_provider::error::{Error, Result};

/// Maximum payload in bytes of a frame copied behind its header, and sent by one call.
const COPY_MAX: usize = 512;

/// Maximum bytes of frames waiting for a following one, to be sent by one call with it.
const COALESCE_MAX: usize = 4 << 10;

/// Minimum time in nanoseconds between two measurements of a socket's rate.
const RATE_SAMPLE: u64 = 5_000_000;

/// Writer of the frames of one socket.
#[derive(Debug, Default)]
pub(super) struct FrameWriter {
    /// Frames, or the rest of one, not accepted by the socket yet; sent up to `tail_sent`.
    tail: Vec<u8>,
    tail_sent: usize,
    /// Missing payload of the last frame in bytes: the next bytes of the stream.
    missing: usize,
    /// Control frames behind the missing payload.
    later: Vec<u8>,
    /// The last small frame.
    small: Vec<u8>,
    /// Bytes passed to this writer.
    total: u64,
    rate: RateEstimate,
}

/// Measured rate of a socket, from the bytes acknowledged by the peer's host.
#[derive(Debug, Default)]
struct RateEstimate {
    /// Time of the last sample in nanoseconds, and the bytes acknowledged by then.
    at: u64,
    acknowledged: u64,
    /// The socket had unacknowledged bytes at the last sample.
    was_busy: bool,
    /// Bytes per second; 0 if unknown.
    rate: u64,
}

impl RateEstimate {
    /// Takes a sample, if the last one is old enough.
    fn sample(&mut self, now: u64, acknowledged: u64, in_flight: usize) {
        let elapsed = now.saturating_sub(self.at);
        if elapsed < RATE_SAMPLE {
            return;
        }
        let bytes = acknowledged.saturating_sub(self.acknowledged);
        if self.was_busy && bytes > 0 {
            let rate = (u128::from(bytes) * 1_000_000_000 / u128::from(elapsed)) as u64;
            self.rate = if self.rate == 0 { rate } else { (self.rate * 3 + rate) / 4 }.max(1);
        }
        (self.at, self.acknowledged, self.was_busy) = (now, acknowledged, in_flight > 0);
    }
}

impl FrameWriter {
    /// Returns true if frames wait for space in the socket.
    pub(super) fn has_tail(&self) -> bool {
        self.tail_sent < self.tail.len()
    }

    /// Returns the number of bytes not passed to the socket yet.
    pub(super) fn tail_len(&self) -> usize {
        self.tail.len() - self.tail_sent + self.later.len()
    }

    /// Returns the missing payload in bytes of the last frame. No other frame is sent before it.
    pub(super) fn missing(&self) -> usize {
        self.missing
    }

    /// Appends a control frame.
    pub(super) fn push_control(&mut self, frame: &[u8]) {
        self.total += frame.len() as u64;
        let queue = if self.missing > 0 { &mut self.later } else { &mut self.tail };
        queue.extend_from_slice(frame);
    }

    /// Appends a small data frame to be sent by one call with the next frame. Returns false if it
    /// is to be sent now.
    pub(super) fn coalesce(
        &mut self,
        header: &FrameHeader,
        list: &GatherList<'_>,
        from: usize,
    ) -> Result<bool> {
        let len = FRAME_LEN + header.len;
        if self.missing > 0 || self.has_tail() || len > COALESCE_MAX {
            return Ok(false);
        }
        self.tail.try_reserve(len).map_err(|_| Error::NOMEM)?;
        self.tail.extend_from_slice(&header.encode());
        let start = self.tail.len();
        self.tail.resize(start + header.len, 0);
        list.copy_to(from, &mut self.tail[start..]);
        self.total += len as u64;
        Ok(true)
    }

    /// Sends other bytes, and the waiting frames behind them by the same call. Returns the number of
    /// those bytes accepted.
    pub(super) fn send_behind(&mut self, link: &impl ByteLink, bytes: &[u8]) -> Result<usize> {
        let all = [bytes, &self.tail[self.tail_sent..]].concat();
        let sent = link.send(&all)?;
        self.tail_sent += sent.saturating_sub(bytes.len());
        Ok(sent.min(bytes.len()))
    }

    /// Sends waiting frames. Returns true if none is left.
    pub(super) fn flush(&mut self, link: &impl ByteLink) -> Result<bool> {
        while self.has_tail() {
            match link.send(&self.tail[self.tail_sent..]) {
                Ok(n) => self.tail_sent += n,
                Err(Error::AGAIN | Error::INTR) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.tail.clear();
        self.tail_sent = 0;
        Ok(true)
    }

    /// Sends a data frame with this header and bytes of a list from byte `from` on. Returns false if
    /// the socket accepts nothing. An incompletely accepted frame is sent later
    /// ([`flush`](Self::flush)).
    pub(super) fn send(
        &mut self,
        link: &impl ByteLink,
        header: &FrameHeader,
        list: &GatherList<'_>,
        from: usize,
    ) -> Result<bool> {
        if !self.flush(link)? {
            return Ok(false);
        }
        let (len, header) = (header.len, header.encode());
        // Space for the rest, so that an accepted beginning is never lost.
        self.tail.try_reserve(FRAME_LEN + len).map_err(|_| Error::NOMEM)?;
        let sent = if len <= COPY_MAX {
            self.send_small(link, &header, list, from, len)
        } else {
            send_large(link, &header, list, from, len)?
        };
        self.sent(sent, &header, list, from, len)
    }

    /// Sends a data frame with this header, or the missing payload of the last one (`None`), from
    /// byte `from` of a list on, `len` bytes at most. Returns the number of bytes of payload
    /// accepted. The caller passes the others again before any other data
    /// ([`missing`](Self::missing)).
    pub(super) fn send_in_parts(
        &mut self,
        link: &impl ByteLink,
        header: Option<&FrameHeader>,
        list: &GatherList<'_>,
        from: usize,
        len: usize,
    ) -> Result<usize> {
        // A short tail and the header are in one record of an encrypting link. So the link has the
        // whole header with any byte of it.
        if self.tail.len() - self.tail_sent > COALESCE_MAX && !self.flush(link)? {
            return Ok(0);
        }
        let encoded = header.map(FrameHeader::encode);
        let head: &[u8] = encoded.as_ref().map_or(&[], |encoded| encoded);
        self.tail.try_reserve(FRAME_LEN).map_err(|_| Error::NOMEM)?;
        let mut parts = GatherList::default();
        parts.push_bytes(&self.tail[self.tail_sent..]);
        parts.push_bytes(head);
        // A part of a list with too many elements.
        let _ = list.share(from, len, &mut parts);
        let sent = match link.send_list(&mut parts, CopyMode::Copied) {
            Err(Error::AGAIN | Error::INTR) => 0,
            sent => sent?,
        };
        let of_tail = sent.min(self.tail.len() - self.tail_sent);
        self.tail_sent += of_tail;
        if self.has_tail() {
            return Ok(0);
        }
        self.tail.clear();
        self.tail_sent = 0;
        let of_head = (sent - of_tail).min(head.len());
        if let Some(header) = header {
            if of_head == 0 {
                return Ok(0);
            }
            self.tail.extend_from_slice(&head[of_head..]);
            self.missing = header.len;
            self.total += FRAME_LEN as u64;
        }
        let n = sent - of_tail - of_head;
        self.total += n as u64;
        self.missing -= n;
        if self.missing == 0 {
            self.tail = std::mem::take(&mut self.later);
        }
        Ok(n)
    }

    /// Sends a small frame, with no other one waiting. Returns `None` if it is too large. The part
    /// not accepted by the socket is stored.
    #[inline(always)]
    pub(super) fn send_bytes(
        &mut self,
        link: &impl ByteLink,
        header: &FrameHeader,
        bytes: &[u8],
    ) -> Option<Result<usize>> {
        let total = FRAME_LEN + bytes.len();
        let frame = self.small.get_mut(..total)?;
        frame[..FRAME_LEN].copy_from_slice(&header.encode());
        frame[FRAME_LEN..].copy_from_slice(bytes);
        let sent = link.send(frame);
        if let Ok(n @ 1..) = sent {
            self.total += total as u64;
            if n < total {
                self.tail.extend_from_slice(&frame[n..]);
            }
        }
        Some(sent)
    }

    /// Sends a small frame by a call with a single buffer.
    fn send_small(
        &mut self,
        link: &impl ByteLink,
        header: &[u8; FRAME_LEN],
        list: &GatherList<'_>,
        from: usize,
        len: usize,
    ) -> Result<usize> {
        self.small.resize(FRAME_LEN + COPY_MAX, 0);
        let frame = &mut self.small[..FRAME_LEN + len];
        frame[..FRAME_LEN].copy_from_slice(header);
        list.copy_to(from, &mut frame[FRAME_LEN..]);
        link.send(frame)
    }

    /// Stores the part of a frame not accepted by the socket.
    fn sent(
        &mut self,
        sent: Result<usize>,
        header: &[u8; FRAME_LEN],
        list: &GatherList<'_>,
        from: usize,
        len: usize,
    ) -> Result<bool> {
        let sent = match sent {
            Ok(0) | Err(Error::AGAIN | Error::INTR) => return Ok(false),
            sent => sent?,
        };
        self.total += (FRAME_LEN + len) as u64;
        let of_header = sent.min(FRAME_LEN);
        let of_payload = sent - of_header;
        if sent < FRAME_LEN + len {
            self.tail.extend_from_slice(&header[of_header..]);
            let start = self.tail.len();
            self.tail.resize(start + len - of_payload, 0);
            list.copy_to(from + of_payload, &mut self.tail[start..]);
        }
        Ok(true)
    }

    /// Returns the expected time in nanoseconds until the peer's host has acknowledged `more`
    /// further bytes; with an unknown rate, at the rate `assumed` in bytes per second.
    pub(super) fn finish_time(
        &mut self,
        link: &impl ByteLink,
        now: u64,
        more: usize,
        assumed: u64,
    ) -> u64 {
        let in_flight = link.unacknowledged() + self.tail_len();
        self.rate.sample(now, self.total.saturating_sub(in_flight as u64), in_flight);
        let rate = if self.rate.rate == 0 { assumed } else { self.rate.rate };
        ((in_flight + more) as u128 * 1_000_000_000 / u128::from(rate.max(1))) as u64
    }

    /// Returns the measured rate in bytes per second; 0 if unknown.
    pub(super) fn rate(&self) -> u64 {
        self.rate.rate
    }
}

/// Sends a frame by a call with a list. Fails without memory for a copy of too many parts.
#[inline(never)]
fn send_large(
    link: &impl ByteLink,
    header: &[u8; FRAME_LEN],
    list: &GatherList<'_>,
    from: usize,
    len: usize,
) -> Result<Result<usize>> {
    let mut frame = GatherList::default();
    frame.push_bytes(header);
    if list.share(from, len, &mut frame) {
        return Ok(link.send_list(&mut frame, CopyMode::Copied));
    }
    let mut copy = ofi_provider::buf::zeroed(FRAME_LEN + len)?;
    copy[..FRAME_LEN].copy_from_slice(header);
    list.copy_to(from, &mut copy[FRAME_LEN..]);
    Ok(link.send(&copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_measured_only_while_bytes_are_in_flight() {
        let mut rate = RateEstimate::default();
        rate.sample(RATE_SAMPLE, 1000, 0);
        assert_eq!(rate.rate, 0);
        // Idle until now: the elapsed time says nothing about the network.
        rate.sample(3 * RATE_SAMPLE, 2000, 5000);
        assert_eq!(rate.rate, 0);
        rate.sample(4 * RATE_SAMPLE, 7000, 0);
        assert_eq!(rate.rate, 1_000_000);
        rate.sample(4 * RATE_SAMPLE + 1, 9000, 0);
        assert_eq!((rate.rate, rate.acknowledged), (1_000_000, 7000), "too soon");
    }
}
