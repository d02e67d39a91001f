//! Fast paths of small messages on a link with a single socket.
use super::super::frame::{FRAME_LEN, FrameHeader};
use super::{FastRecv, FastSend, RailSet, RailState, bit};
use crate::transport::ByteLink;
use ofi_provider::error::{Error, Result};

impl<L: ByteLink> RailSet<L> {
    /// Returns true if nothing waits on the single socket.
    #[inline(always)]
    fn is_quiet(&self) -> bool {
        let [rail] = &*self.rails else { return false };
        rail.state == RailState::Open
            && !(self.is_byte_withheld || rail.writer.has_tail() || self.error.is_some())
    }

    /// Sends a small frame on the single socket, with space for its copy and nothing waiting: saves
    /// the choice of a socket and the list of segments.
    #[inline(always)]
    pub(in crate::multi_rail) fn send_fast(&mut self, first: &L, bytes: &[u8]) -> FastSend {
        let fits = (1..=self.segment).contains(&bytes.len());
        if !self.is_quiet() || !fits || self.over.is_some() {
            return FastSend::Not;
        }
        let Some(resume) = &mut self.resume else { return FastSend::Not };
        let rail = &mut self.rails[0];
        if !resume.log.can_join(bytes.len(), 0) || rail.writer.missing() > 0 {
            return FastSend::Not;
        }
        let header = FrameHeader::data(self.tx_offset, bytes.len());
        let total = FRAME_LEN + bytes.len();
        let result = match rail.writer.send_bytes(first, &header, bytes) {
            None | Some(Ok(0) | Err(Error::AGAIN | Error::INTR)) => return FastSend::Not,
            Some(Err(error)) => return FastSend::Failed(error),
            Some(Ok(sent)) if sent < total => FastSend::InPart,
            Some(Ok(_)) => FastSend::Sent,
        };
        resume.log.join(bytes);
        self.tx_offset += bytes.len() as u64;
        rail.sent_to = self.tx_offset;
        if result == FastSend::InPart {
            (self.is_byte_withheld, self.is_send_waiting) = (true, true);
            self.full = bit(0);
        }
        result
    }

    /// Handles a failure of [`send_fast`](Self::send_fast).
    #[cold]
    pub(in crate::multi_rail) fn fail_fast(&mut self, error: Error) -> Result<usize> {
        self.fail_sending(0, error)?;
        Err(Error::AGAIN)
    }

    /// Receives a single data frame on the single socket, with nothing read ahead: saves the search
    /// for the socket with the next frame.
    #[inline(always)]
    pub(in crate::multi_rail) fn recv_fast(&mut self, first: &L, dst: &mut [u8]) -> FastRecv {
        if !self.is_quiet() || self.first_frames.hello().is_none() || dst.is_empty() {
            return FastRecv::Not;
        }
        let reader = &mut self.rails[0].reader;
        if !(reader.is_between_frames() && reader.is_empty()) || reader.is_large() {
            return FastRecv::Not;
        }
        match reader.read_ahead(first) {
            Ok(true) => {}
            Ok(false) if !reader.has_ended() => return FastRecv::Nothing,
            ended => return FastRecv::Ended(ended),
        }
        let Some(n) = reader.take_only(self.rx_offset, dst) else { return FastRecv::Not };
        self.rx_offset += n as u64;
        match &self.resume {
            Some(resume) if resume.is_ack_due(self.rx_offset, false) => FastRecv::WithAck(n),
            _ => FastRecv::Received(n),
        }
    }

    /// Receives the bytes read ahead of a socket that has ended or failed. `ended`: the result of
    /// [`recv_fast`](Self::recv_fast).
    #[cold]
    pub(in crate::multi_rail) fn recv_end(
        &mut self,
        first: &L,
        ended: Result<bool>,
        dst: &mut [u8],
    ) -> Result<usize> {
        if let Err(error) = self.note_read(0, first, ended) {
            self.error.get_or_insert(error);
        }
        self.recv(first, dst)
    }
}
