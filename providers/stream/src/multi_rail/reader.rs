//! Reader of the frames of one socket.
use super::frame::{CONTROL_MAX, FRAME_LEN, FrameHeader, FrameType, SEGMENT_MAX};
use crate::transport::ByteLink;
use ofi_provider::buf::ScatterList;
use ofi_provider::error::{Error, Result};
use ofi_provider::malformed::Parsed;

/// Bytes read ahead. Frames smaller than this are received together with one call.
const STAGE: usize = 8 << 10;

/// Minimum payload of large frames in bytes: little is read ahead after them.
const LARGE: usize = 16 << 10;

/// Bytes read ahead after a large frame: the header of the next one, and usually a small frame with
/// the header of its message before.
const LARGE_AHEAD: usize = 128;

/// Maximum bytes discarded by one call.
const DISCARD: usize = 4 << 10;

const _: () = assert!(STAGE >= FRAME_LEN + CONTROL_MAX);

/// Next frame of a socket.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum NextFrame {
    /// A data frame with unread payload, from this offset of the stream to the other one.
    Data(u64, u64),
    /// A control frame, with its payload.
    Control(FrameHeader, Vec<u8>),
    /// The header, or the payload of a control frame, has not arrived yet.
    Incomplete,
}

/// Reader of the frames of one socket.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    stage: Box<[u8]>,
    /// Bytes of `stage` received and not processed.
    start: usize,
    end: usize,
    /// The frame of the following payload, and the offset of its first unread byte.
    frame: Option<(FrameHeader, u64)>,
    /// The last data frame was large.
    is_large: bool,
    /// A data frame read to its end requests an acknowledgement.
    wants_ack: bool,
    has_ended: bool,
    /// The last call of the socket returned fewer bytes than it could have.
    is_drained: bool,
}

impl FrameReader {
    /// Returns true if the last call left nothing in the socket: another one costs a system call
    /// and finds only later bytes.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Returns true if no bytes are read ahead.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns true if the socket carries large frames.
    pub(super) fn is_large(&self) -> bool {
        self.is_large
    }

    /// Returns true if the peer has ended the socket, and all frames are read.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns true if the last frame is read to its end, and the next header is not processed.
    pub(super) fn is_between_frames(&self) -> bool {
        self.frame.is_none()
    }

    /// Returns true within the payload of a long frame.
    pub(super) fn is_within_long(&self) -> bool {
        self.frame.is_some_and(|(header, _)| header.len > SEGMENT_MAX)
    }

    /// Returns true if bytes read ahead may continue the stream at this offset.
    pub(super) fn has_staged(&self, offset: u64) -> bool {
        let staged = self.end - self.start;
        match self.frame {
            Some((header, at)) => header.kind == FrameType::Data && at <= offset && staged > 0,
            None => staged >= FRAME_LEN,
        }
    }

    /// Returns the next frame, as far as it is read ahead.
    pub(super) fn next(&mut self) -> Parsed<NextFrame> {
        if self.frame.is_none() {
            let Some(bytes) = self.stage[self.start..self.end].first_chunk() else {
                return Ok(NextFrame::Incomplete);
            };
            let header = FrameHeader::parse(bytes)?;
            self.start += FRAME_LEN;
            self.frame = Some((header, header.offset));
        }
        let Some((header, at)) = self.frame else { return Ok(NextFrame::Incomplete) };
        if header.kind == FrameType::Data {
            return Ok(NextFrame::Data(at, header.offset + header.len as u64));
        }
        let Some(payload) = self.stage[self.start..self.end].get(..header.len) else {
            return Ok(NextFrame::Incomplete);
        };
        let payload = payload.to_vec();
        self.start += header.len;
        self.frame = None;
        Ok(NextFrame::Control(header, payload))
    }

    /// Copies the payload of the only frame read ahead to `dst`, if it is a data frame at this offset,
    /// without a request, and fits. Returns the number of bytes.
    #[inline(always)]
    pub(super) fn take_only(&mut self, offset: u64, dst: &mut [u8]) -> Option<usize> {
        let (head, payload) = self.stage[self.start..self.end].split_first_chunk()?;
        let dst = dst.get_mut(..payload.len())?;
        if *head != FrameHeader::data(offset, payload.len()).encode() || payload.is_empty() {
            return None;
        }
        dst.copy_from_slice(payload);
        self.start = self.end;
        Some(dst.len())
    }

    /// Reads ahead. Returns false if nothing has arrived, or the socket has ended.
    pub(super) fn read_ahead(&mut self, link: &impl ByteLink) -> Result<bool> {
        if self.stage.is_empty() {
            self.stage = ofi_provider::buf::zeroed(STAGE)?;
        }
        if self.start < self.end {
            self.stage.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, self.end - self.start);
        let most = if self.is_large && self.frame.is_none() { LARGE_AHEAD } else { STAGE };
        if self.has_ended || self.end >= most {
            return Ok(false);
        }
        match link.recv(&mut self.stage[self.end..most]) {
            Ok(0) if self.end > 0 || self.frame.is_some() => Err(Error::CONNRESET),
            Ok(0) => {
                self.has_ended = true;
                Ok(false)
            }
            Ok(n) => {
                self.is_drained = self.end + n < most;
                self.end += n;
                Ok(true)
            }
            Err(Error::AGAIN | Error::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the sender of a frame read to its end requests an acknowledgement, once.
    pub(super) fn take_ack_request(&mut self) -> bool {
        std::mem::take(&mut self.wants_ack)
    }

    /// Receives up to `len` bytes of payload and discards them. Returns their number; 0 if nothing
    /// has arrived.
    pub(super) fn discard(&mut self, link: &impl ByteLink, len: u64) -> Result<usize> {
        let mut sink = [0; DISCARD];
        let most = len.min(DISCARD as u64) as usize;
        self.receive(link, &mut sink[..most])
    }

    /// Receives payload of the current data frame: from the bytes read ahead, else from the
    /// socket. Returns the number of bytes; 0 if nothing has arrived.
    pub(super) fn receive(&mut self, link: &impl ByteLink, dst: &mut [u8]) -> Result<usize> {
        let Some((header, at)) = self.frame else { return Ok(0) };
        let left = (header.offset + header.len as u64 - at) as usize;
        let most = left.min(dst.len());
        let staged = self.end - self.start;
        let n = if staged > 0 {
            let n = most.min(staged);
            dst[..n].copy_from_slice(&self.stage[self.start..self.start + n]);
            self.start += n;
            n
        } else {
            self.receive_directly(link, &mut dst[..most], most == left, header.len)?
        };
        if n == left {
            self.frame = None;
            self.is_large = header.len >= LARGE;
            self.wants_ack |= header.wants_ack;
        } else {
            self.frame = Some((header, at + n as u64));
        }
        Ok(n)
    }

    /// Receives payload from the socket; with `to_end`, the following frames as well as far as
    /// they are read ahead.
    fn receive_directly(
        &mut self,
        link: &impl ByteLink,
        dst: &mut [u8],
        to_end: bool,
        len: usize,
    ) -> Result<usize> {
        (self.start, self.end) = (0, 0);
        let most = dst.len();
        let ahead = match to_end {
            true if len >= LARGE => LARGE_AHEAD,
            true => STAGE,
            false => 0,
        };
        let mut list = ScatterList::default();
        let _ = list.push_buf(dst) && list.push_buf(&mut self.stage[..ahead]);
        let wanted = list.len();
        match link.recv_list(&mut list) {
            Ok(0) => Err(Error::CONNRESET),
            Ok(n) => {
                self.is_drained = n < wanted;
                self.end = n.saturating_sub(most);
                Ok(n.min(most))
            }
            Err(Error::AGAIN | Error::INTR) => Ok(0),
            Err(error) => Err(error),
        }
    }
}
