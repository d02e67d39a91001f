//! Byte stream of a link over several sockets.
use super::frame::{FrameHeader, FrameType, RailOffer, SEGMENT_MAX};
use super::reader::{FrameReader, NextFrame};
use super::writer::FrameWriter;
use crate::settings::RailSettings;
use crate::transport::ByteLink;
use ofi_provider::buf::GatherList;
use ofi_provider::error::{Error, Result};
use ofi_provider::malformed::{Malformed, log_closing};

/// Maximum number of sockets of a link.
pub(super) const RAILS_MAX: usize = RailSettings::MAX;

/// Socket of a link.
#[derive(Debug)]
struct Rail<L> {
    /// None for the first socket, an argument of each call.
    link: Option<L>,
    reader: FrameReader,
    writer: FrameWriter,
    state: RailState,
}

/// State of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RailState {
    /// The peer has not confirmed the use of the socket: it may have given up on the answer to
    /// its join request.
    Unconfirmed,
    /// The socket carries frames.
    Open,
    /// The peer never used the socket.
    Unused,
}

/// Set of sockets, one bit each.
pub(super) type RailBits = u32;

const _: () = assert!(RAILS_MAX <= RailBits::BITS as usize);

/// Request of the peer, received in a control frame.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum RailRequest {
    /// The peer requests a [`RailOffer`].
    OfferRequest,
    /// The peer offers to take further sockets.
    Offer(RailOffer),
}

/// Byte stream of a link over several sockets.
///
/// Small sends go to the first socket. A large send is divided into segments, and each goes to the
/// socket with the earliest expected end. The receiver reads the socket with the next frame
/// of the stream; other frames stay in their sockets.
#[derive(Debug)]
pub(super) struct RailSet<L> {
    rails: Vec<Rail<L>>,
    /// Maximum payload of a frame in bytes.
    segment: usize,
    /// Offset of the next byte sent and received.
    tx_offset: u64,
    rx_offset: u64,
    /// One byte of the last send was not reported as sent, although a frame has it. The caller
    /// passes it again, and so calls until all frames have left.
    is_byte_withheld: bool,
    /// The socket of the last data frame.
    last: usize,
    /// Possibly readable sockets, and sockets without space.
    readable: RailBits,
    full: RailBits,
    /// Sockets with a later frame than the next of the stream.
    early: RailBits,
    /// Request of the peer not taken yet. A peer sends one.
    request: Option<RailRequest>,
    was_requested: bool,
    error: Option<Error>,
}

impl<L: ByteLink> Rail<L> {
    /// Returns true if the peer sends nothing more on the socket.
    fn has_ended(&self) -> bool {
        self.state == RailState::Unused || self.reader.has_ended()
    }

    /// Reads ahead. Returns false if nothing has arrived, or the socket has ended.
    fn read_ahead(&mut self, first: &L) -> Result<bool> {
        if self.state == RailState::Unused {
            return Ok(false);
        }
        let result = self.reader.read_ahead(self.link.as_ref().unwrap_or(first));
        let is_over = result.is_err() || self.reader.has_ended();
        if self.state == RailState::Unconfirmed && is_over {
            self.state = RailState::Unused;
            return Ok(false);
        }
        result
    }
}

/// Returns the set of one socket.
fn bit(at: usize) -> RailBits {
    1 << at
}

impl<L: ByteLink> RailSet<L> {
    /// Creates the stream of a new link, with frames of up to `segment` bytes of payload.
    pub(super) fn new(segment: usize) -> Self {
        let (reader, writer) = (FrameReader::default(), FrameWriter::default());
        let first = Rail { link: None, reader, writer, state: RailState::Open };
        Self {
            rails: vec![first],
            segment: segment.clamp(1, SEGMENT_MAX),
            tx_offset: 0,
            rx_offset: 0,
            is_byte_withheld: false,
            last: 0,
            readable: 1,
            full: 0,
            early: 0,
            request: None,
            was_requested: false,
            error: None,
        }
    }

    /// Adds a socket. The connecting end confirms its use; the accepting end sends nothing on it
    /// before.
    pub(super) fn add(&mut self, link: L, connects: bool) {
        if self.rails.len() == RAILS_MAX {
            return;
        }
        self.readable |= bit(self.rails.len());
        let (reader, mut writer) = (FrameReader::default(), FrameWriter::default());
        let state = if connects { RailState::Open } else { RailState::Unconfirmed };
        if connects {
            writer.push_control(&FrameHeader::control(FrameType::Joined, 0).encode());
        }
        self.rails.push(Rail { link: Some(link), reader, writer, state });
    }

    /// Number of sockets in use.
    pub(super) fn count(&self) -> usize {
        self.rails.iter().filter(|rail| rail.state == RailState::Open).count()
    }

    /// Passes each socket but the first to `each`.
    pub(super) fn for_others(&self, each: impl FnMut(&L)) {
        self.rails.iter().filter_map(|rail| rail.link.as_ref()).for_each(each);
    }

    /// Bytes sent and received in this link.
    pub(super) fn traffic(&self) -> u64 {
        self.tx_offset + self.rx_offset
    }

    /// Marks sockets as readable.
    pub(super) fn set_readable(&mut self, rails: RailBits) {
        self.readable |= rails;
    }

    /// Sockets not to be read before other ones.
    pub(super) fn early(&self) -> RailBits {
        self.early
    }

    /// Sockets with space awaited by the sender.
    pub(super) fn full(&self) -> RailBits {
        self.full
    }

    /// Takes the peer's request.
    pub(super) fn take_request(&mut self) -> Option<RailRequest> {
        self.request.take()
    }

    /// Returns true if control frames wait for space, although no send of the engine waits.
    pub(super) fn has_control(&self) -> bool {
        !self.is_byte_withheld && self.rails.iter().any(|rail| rail.writer.has_tail())
    }

    /// Sends a control frame on the first socket, now or later.
    pub(super) fn push_control(&mut self, frame: &[u8]) {
        self.rails[0].writer.push_control(frame);
    }

    /// Sends waiting control frames.
    pub(super) fn flush_control(&mut self, first: &L) -> Result {
        self.full = 0;
        self.flush(first).map(drop)
    }

    /// Bytes on this host not acknowledged by the peer's.
    pub(super) fn unacknowledged(&self, first: &L) -> usize {
        let of = |rail: &Rail<L>| {
            rail.link.as_ref().unwrap_or(first).unacknowledged() + rail.writer.tail_len()
        };
        self.rails.iter().map(of).sum()
    }

    /// Sends bytes of the stream ([`ByteLink::send_list`]). `now`: the time in nanoseconds.
    pub(super) fn send(&mut self, first: &L, list: &GatherList<'_>, now: u64) -> Result<usize> {
        self.full = 0;
        let len = list.len();
        if len == 0 {
            return Ok(0);
        }
        let mut done = usize::from(std::mem::take(&mut self.is_byte_withheld));
        let mut result = Ok(true);
        while done < len && result == Ok(true) {
            let segment = (len - done).min(self.segment);
            result = if self.rails.len() > 1 && segment == self.segment {
                self.send_segment(first, list, done, now)
            } else {
                self.send_on(0, first, list, done, segment)
            };
            if result == Ok(true) {
                done += segment;
            }
        }
        let is_clear = self.flush(first)?;
        if !is_clear && done > 0 {
            self.is_byte_withheld = true;
            done -= 1;
        }
        match result {
            Ok(_) if done == 0 => Err(Error::AGAIN),
            Err(error) if done == 0 => Err(error),
            // An error is returned again by the next call.
            _ => Ok(done),
        }
    }

    /// Sends waiting frames of all sockets. Returns true if none is left.
    fn flush(&mut self, first: &L) -> Result<bool> {
        let mut is_clear = true;
        for (at, rail) in self.rails.iter_mut().enumerate() {
            if !rail.writer.flush(rail.link.as_ref().unwrap_or(first))? {
                self.full |= bit(at);
                is_clear = false;
            }
        }
        Ok(is_clear)
    }

    /// Sends a frame of `len` bytes on one socket. Returns false if it accepts nothing.
    fn send_on(
        &mut self,
        at: usize,
        first: &L,
        list: &GatherList<'_>,
        from: usize,
        len: usize,
    ) -> Result<bool> {
        let rail = &mut self.rails[at];
        let link = rail.link.as_ref().unwrap_or(first);
        let is_sent = rail.writer.send(link, self.tx_offset, list, from, len)?;
        if is_sent {
            self.tx_offset += len as u64;
        } else {
            self.full |= bit(at);
        }
        Ok(is_sent)
    }

    /// Sends one segment on the accepting socket with the earliest expected end. Returns
    /// false if none does.
    fn send_segment(
        &mut self,
        first: &L,
        list: &GatherList<'_>,
        from: usize,
        now: u64,
    ) -> Result<bool> {
        let assumed = self.rails.iter().map(|rail| rail.writer.rate()).max().unwrap_or(0);
        let mut order = [(u64::MAX, 0); RAILS_MAX];
        for (at, rail) in self.rails.iter_mut().enumerate() {
            if rail.state != RailState::Open {
                continue;
            }
            let link = rail.link.as_ref().unwrap_or(first);
            order[at] = (rail.writer.finish_time(link, now, self.segment, assumed), at);
        }
        order.sort_unstable();
        for &(_, at) in order.iter().filter(|(time, _)| *time < u64::MAX) {
            if self.send_on(at, first, list, from, self.segment)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Receives bytes of the stream ([`ByteLink::recv`]).
    pub(super) fn recv(&mut self, first: &L, dst: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < dst.len() {
            match self.recv_some(first, &mut dst[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) => {
                    self.error.get_or_insert(error);
                    break;
                }
            }
        }
        match self.error {
            _ if done > 0 => Ok(done),
            Some(error) => Err(error),
            None if self.rails.iter().all(Rail::has_ended) => Ok(0),
            None => Err(Error::AGAIN),
        }
    }

    fn recv_some(&mut self, first: &L, dst: &mut [u8]) -> Result<usize> {
        let Some(at) = self.next_rail(first)? else { return Ok(0) };
        let rail = &mut self.rails[at];
        let n = rail.reader.receive(rail.link.as_ref().unwrap_or(first), dst)?;
        self.rx_offset += n as u64;
        if n == 0 {
            self.readable &= !bit(at);
        }
        if rail.reader.is_between_frames() {
            // The next frame of the stream may be on any socket.
            self.early = 0;
        }
        Ok(n)
    }

    /// Returns true if [`recv`](Self::recv) finds bytes read ahead.
    pub(super) fn has_staged(&self) -> bool {
        self.rails.iter().any(|rail| rail.reader.has_staged(self.rx_offset))
    }

    /// Returns the socket with the next frame of the stream. Reads the headers of possible sockets.
    fn next_rail(&mut self, first: &L) -> Result<Option<usize>> {
        let count = self.rails.len();
        let reads_all = self.rails[self.last].reader.is_large();
        for at in (self.last..count).chain(0..self.last) {
            let is_read = reads_all || at == self.last || self.readable & bit(at) != 0;
            if self.is_next(at, first, is_read)? {
                self.last = at;
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Returns true if a socket has the next frame of the stream. `is_read`: it may be read.
    fn is_next(&mut self, at: usize, first: &L, is_read: bool) -> Result<bool> {
        self.early &= !bit(at);
        loop {
            let rail = &mut self.rails[at];
            match rail.reader.next().map_err(|why| reject(first, why))? {
                NextFrame::Data(offset) if offset == self.rx_offset => return Ok(true),
                NextFrame::Data(offset) if offset > self.rx_offset => {
                    self.early |= bit(at);
                    return Ok(false);
                }
                NextFrame::Data(_) => {
                    return Err(reject(first, Malformed("two frames have the same bytes")));
                }
                NextFrame::Control(FrameType::Joined, _)
                    if rail.state == RailState::Unconfirmed =>
                {
                    rail.state = RailState::Open;
                }
                NextFrame::Control(kind, payload) => {
                    let request = parse_request(at, kind, &payload);
                    let request = request.map_err(|why| reject(first, why))?;
                    if self.was_requested {
                        return Err(reject(first, Malformed("a request is repeated")));
                    }
                    self.was_requested = true;
                    self.request = Some(request);
                }
                NextFrame::Incomplete => {
                    if !is_read || !rail.read_ahead(first)? {
                        self.readable &= !bit(at);
                        return Ok(false);
                    }
                }
            }
        }
    }
}

/// Parses a control frame received on socket `at`.
fn parse_request(
    at: usize,
    kind: FrameType,
    payload: &[u8],
) -> core::result::Result<RailRequest, Malformed> {
    match kind {
        FrameType::OfferRequest if at == 0 => Ok(RailRequest::OfferRequest),
        FrameType::Offer if at == 0 => RailOffer::parse(payload).map(RailRequest::Offer),
        _ => Err(Malformed("a frame of this kind is not expected here")),
    }
}

/// Logs malformed frames of a peer. Returns the final error of the link.
#[cold]
fn reject<L: ByteLink>(first: &L, why: Malformed) -> Error {
    log_closing(L::provider(), crate::transport::peer_of(first), why);
    Error::IO
}

/// Returns a frame requesting a [`RailOffer`].
pub(super) fn offer_request() -> Vec<u8> {
    FrameHeader::control(FrameType::OfferRequest, 0).encode().to_vec()
}
