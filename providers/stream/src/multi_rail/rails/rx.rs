//! Receiving of a link's byte stream over several sockets.
use super::super::frame::{FrameHeader, FrameType};
use super::super::reader::NextFrame;
use super::{Rail, RailBits, RailSet, RailState, bit, link_of};
use crate::transport::ByteLink;
use ofi_provider::error::{Error, Result};
use ofi_provider::malformed::{Malformed, Parsed, log_closing};

/// Maximum parts of repeated bytes discarded by one search for the next frame.
const DISCARDS_MAX: usize = 64;

impl<L: ByteLink> RailSet<L> {
    /// Receives bytes of the stream ([`ByteLink::recv`]).
    pub(in crate::multi_rail) fn recv(&mut self, first: &L, dst: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        self.has_received = false;
        self.is_send_coalesced = false;
        while done < dst.len() {
            match self.recv_some(first, &mut dst[done..]) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    self.has_received = true;
                    // The only socket has nothing more.
                    let is_drained = match &*self.rails {
                        [rail] => rail.reader.is_drained() && rail.reader.is_empty(),
                        _ => false,
                    };
                    if is_drained {
                        break;
                    }
                }
                Err(error) => {
                    self.error.get_or_insert(error);
                    break;
                }
            }
        }
        match self.error {
            _ if done > 0 => Ok(done),
            _ if self.has_ended() => Ok(0),
            Some(error) => Err(error),
            None => Err(self.over.and_then(Result::err).unwrap_or(Error::AGAIN)),
        }
    }

    /// Returns true if the stream is read to its end.
    fn has_ended(&self) -> bool {
        match &self.resume {
            Some(resume) if self.is_resumable() => resume.is_read_to_end(self.rx_offset),
            _ if self.error.is_some() => false,
            _ => self.over.unwrap_or(Ok(())).is_ok() && self.rails.iter().all(Rail::has_ended),
        }
    }

    /// Receives bytes of one frame. Returns their number; 0 if none have arrived. Fails if the next
    /// bytes of the stream were lost.
    fn recv_some(&mut self, first: &L, dst: &mut [u8]) -> Result<usize> {
        // A socket that no longer delivers may hold a part of a frame repeated on another one.
        let mut tried = 0;
        while let Some(at) = self.next_rail(first, tried)? {
            match self.recv_from(at, first, dst)? {
                0 if self.resume.is_some() && self.rails.len() > 1 => tried |= bit(at),
                n => return Ok(n),
            }
        }
        // This end has given up, and all sockets left have later bytes than the next ones, or none.
        let is_early =
            |(at, rail): (usize, &Rail<L>)| rail.has_ended() || self.early & bit(at) != 0;
        let is_missing =
            self.has_given_up && self.early != 0 && self.rails.iter().enumerate().all(is_early);
        if is_missing { Err(Error::CONNRESET) } else { Ok(0) }
    }

    /// Receives the peer's confirmation of new sockets, independent of the stream: the caller
    /// may not read it, and sends wait for a socket.
    pub(in crate::multi_rail) fn receive_confirmations(&mut self, first: &L) {
        for at in 1..self.rails.len() {
            if self.rails[at].state == RailState::Unconfirmed && self.readable & bit(at) != 0 {
                let next = self.is_next(at, first, true);
                self.error = self.error.or(next.err());
            }
        }
    }

    /// Receives bytes of the stream from the socket with the next ones.
    fn recv_from(&mut self, at: usize, first: &L, dst: &mut [u8]) -> Result<usize> {
        let rail = &mut self.rails[at];
        if self.has_received && rail.reader.is_drained() && !rail.reader.has_staged(self.rx_offset)
        {
            // The caller returns the bytes received before.
            return Ok(0);
        }
        let received = rail.reader.receive(link_of(&rail.link, first), dst);
        let n = match received {
            Ok(n) => n,
            Err(error) => {
                self.fail_rail(at, first, Err(error))?;
                return Ok(0);
            }
        };
        self.rx_offset += n as u64;
        if n == 0 {
            self.readable &= !bit(at);
        }
        let rail = &mut self.rails[at];
        if rail.reader.is_between_frames() {
            // The next frame of the stream may be on any socket.
            self.early = 0;
            if rail.reader.take_ack_request() {
                if let Some(resume) = &mut self.resume {
                    resume.want_ack(self.rx_offset);
                }
            }
        }
        Ok(n)
    }

    /// Returns true if [`recv`](Self::recv) finds bytes read ahead, or zero-copy calls are done.
    pub(in crate::multi_rail) fn has_staged(&self) -> bool {
        self.calls.has_done()
            || self.rails.iter().any(|rail| rail.reader.has_staged(self.rx_offset))
    }

    /// Returns the socket with the next frame of the stream. Reads the headers of possible sockets.
    /// `tried`: sockets left out.
    fn next_rail(&mut self, first: &L, tried: RailBits) -> Result<Option<usize>> {
        let count = self.rails.len();
        let reads_all = self.rails[self.last].reader.is_large();
        let from = self.last;
        for at in (from..count).chain(0..from) {
            if tried & bit(at) != 0 {
                continue;
            }
            let is_read = reads_all || at == self.last || self.readable & bit(at) != 0;
            if self.is_next(at, first, is_read)? {
                self.last = at;
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Reads the first frames of the peer before any other exchange. Returns false while some are
    /// missing, and fails if the socket has ended before them.
    pub(in crate::multi_rail) fn receive_first_frames(&mut self, first: &L) -> Result<bool> {
        if self.resume.is_none() || self.first_frames.are_complete() {
            return Ok(true);
        }
        // Data behind the hello: the peer has no address for an offer.
        let next = self.is_next(0, first, true);
        self.error = self.error.or(next.err());
        let is_followed = next?;
        let has_all = is_followed || self.resume.is_none() || self.first_frames.are_complete();
        if !has_all && self.rails[0].reader.has_ended() {
            return Err(Error::CONNRESET);
        }
        Ok(has_all)
    }

    /// Returns true if a socket has the next frame of the stream. `is_read`: it may be read.
    fn is_next(&mut self, at: usize, first: &L, is_read: bool) -> Result<bool> {
        self.early &= !bit(at);
        if at > 0 && self.first_frames.hello().is_none() && self.rails[0].is_live() {
            // The first frame is on its way on the first socket.
            self.early |= bit(at);
            return Ok(false);
        }
        let mut discards = 0;
        while self.rails[at].is_live() {
            let rail = &mut self.rails[at];
            match rail.reader.next().map_err(|why| reject(first, why))? {
                NextFrame::Data(offset, _) if offset == self.rx_offset => return Ok(true),
                NextFrame::Data(offset, _) if offset > self.rx_offset => {
                    self.early |= bit(at);
                    return Ok(false);
                }
                NextFrame::Data(offset, end) if self.resume.is_some() => {
                    discards += 1;
                    let len = end.min(self.rx_offset) - offset;
                    if discards > DISCARDS_MAX || !self.discard(at, first, len)? {
                        return Ok(false);
                    }
                }
                NextFrame::Data(..) => {
                    return Err(reject(first, Malformed("two frames have the same bytes")));
                }
                NextFrame::Control(header, payload) => {
                    let handled = self.handle_control(at, first, &header, &payload);
                    handled.map_err(|why| reject(first, why))?;
                }
                // The caller returns the bytes received before.
                NextFrame::Incomplete if self.has_received && rail.reader.is_drained() => {
                    return Ok(false);
                }
                NextFrame::Incomplete => {
                    if !is_read || !self.read_ahead(at, first)? {
                        self.readable &= !bit(at);
                        return Ok(false);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Discards bytes of a frame received before on another socket. Returns false if none have
    /// arrived.
    fn discard(&mut self, at: usize, first: &L, len: u64) -> Result<bool> {
        let rail = &mut self.rails[at];
        match rail.reader.discard(link_of(&rail.link, first), len) {
            Ok(n) => {
                if rail.reader.is_between_frames() && rail.reader.take_ack_request() {
                    if let Some(resume) = &mut self.resume {
                        resume.want_ack(0);
                    }
                }
                Ok(n > 0)
            }
            Err(error) => self.fail_rail(at, first, Err(error)).map(|()| false),
        }
    }

    /// Reads ahead. Returns false if nothing has arrived, or the socket has ended.
    fn read_ahead(&mut self, at: usize, first: &L) -> Result<bool> {
        let rail = &mut self.rails[at];
        let result = rail.reader.read_ahead(link_of(&rail.link, first));
        self.note_read(at, first, result)
    }

    /// Handles the result of a call reading ahead on socket `at`.
    pub(super) fn note_read(&mut self, at: usize, first: &L, result: Result<bool>) -> Result<bool> {
        let rail = &self.rails[at];
        let has_ended = rail.reader.has_ended();
        match result {
            Ok(false) if has_ended => {
                let is_unused = rail.state == RailState::Unconfirmed;
                if at == 0 && self.first_frames.is_missing() {
                    self.first_frames.end();
                }
                let is_early = self.is_resumable() && !self.has_ended();
                if is_unused || is_early {
                    self.lose_rail(at, first, Ok(()));
                }
                Ok(false)
            }
            Err(error) => self.fail_rail(at, first, Err(error)).map(|()| false),
            result => result,
        }
    }

    /// Handles a control frame received on socket `at`.
    fn handle_control(
        &mut self,
        at: usize,
        first: &L,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Parsed {
        const UNEXPECTED: Malformed = Malformed("a frame of this kind is not expected here");
        let is_unconfirmed = self.rails[at].state == RailState::Unconfirmed;
        let is_broken = self.rails[at].state == RailState::Broken;
        let has_hello = self.first_frames.hello().is_some();
        let is_first_lost = !self.rails[0].is_live();
        let may_resume = self.first_frames.is_peer_resuming(is_first_lost);
        match header.kind {
            FrameType::Hello if at == 0 || may_resume => {
                let Some(hello) = self.first_frames.set_hello(at, payload)? else { return Ok(()) };
                self.early = 0;
                match &mut self.resume {
                    Some(resume) if hello.resume > 0 => resume.set_peer(&hello),
                    _ => self.stop_resuming(),
                }
                Ok(())
            }
            _ if !has_hello && !may_resume => Err(Malformed("the first frame is of another kind")),
            // Sending on the socket may have failed already.
            FrameType::Joined if is_unconfirmed || is_broken => {
                if self.resume.is_none() && is_unconfirmed {
                    self.open_rail(at, first);
                }
                Ok(())
            }
            FrameType::OfferRequest | FrameType::Offer if at == 0 || may_resume => {
                if let Some(own) = self.first_frames.add_request(at, header, payload)? {
                    self.rails[at].writer.push_control(own);
                }
                Ok(())
            }
            FrameType::Ack | FrameType::AckRequest | FrameType::End if may_resume => {
                self.handle_position(at, first, header)
            }
            _ => Err(UNEXPECTED),
        }
    }

    /// Handles a control frame with a position in the stream.
    fn handle_position(&mut self, at: usize, first: &L, header: &FrameHeader) -> Parsed {
        // After this end has given up they have no effect.
        let Some(resume) = &mut self.resume else { return Ok(()) };
        match header.kind {
            FrameType::Ack => {
                resume.acknowledge(header.offset)?;
                self.calls.finish(header.offset);
                if self.rails[at].state == RailState::Unconfirmed {
                    self.open_rail(at, first);
                }
            }
            FrameType::AckRequest => resume.want_ack(header.offset),
            _ => resume.set_rx_end(header.offset, self.rx_offset)?,
        }
        Ok(())
    }
}

/// Logs malformed frames of a peer. Returns the final error of the link.
#[cold]
fn reject<L: ByteLink>(first: &L, why: Malformed) -> Error {
    log_closing(L::provider(), crate::transport::peer_of(first), why);
    Error::IO
}
