//! Byte stream of a link over several sockets.
mod fast;
mod rx;

use super::first_frames::{FirstFrames, RailRequest};
use super::frame::{FrameHeader, FrameType, LONG_MAX, SEGMENT_MAX};
use super::reader::FrameReader;
use super::resume::ResumeState;
use super::send_log::{CallQueue, LogMemory};
use super::wanted::{RAILS_MAX, RailBits, WantedEvents};
use super::writer::FrameWriter;
use crate::settings::RailSettings;
use crate::transport::{ByteLink, LinkRecovery, ZerocopyDone};
use ofi_provider::buf::{CopyMode, GatherList};
use ofi_provider::error::{Error, Result};
use std::sync::Arc;
use std::time::Instant;

/// Maximum bytes of waiting frames before an acknowledgement: a peer without reads gets no more.
const ACK_TAIL_MAX: usize = SEGMENT_MAX + (4 << 10);

/// Time in nanoseconds without acknowledgements from the peer's host until a socket is closed, if
/// others carry the stream.
const STALL_MAX: u64 = 10_000_000_000;

/// Socket of a link.
#[derive(Debug)]
struct Rail<L> {
    /// None for the first socket, an argument of each call, and for lost ones.
    link: Option<L>,
    reader: FrameReader,
    writer: FrameWriter,
    state: RailState,
    /// End of the last data frame sent. The receiver reads the frames of a socket in the order of
    /// their offsets, so later ones begin here or behind.
    sent_to: u64,
}

/// State of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RailState {
    /// The peer has not confirmed the use of the socket: it may have given up on the answer to
    /// its join request.
    Unconfirmed,
    /// The socket carries frames.
    Open,
    /// The peer's host has not acknowledged anything since the given time in nanoseconds, although
    /// bytes were sent repeatedly.
    Stalled(u64),
    /// Sending has failed. Earlier bytes of the peer are still to be read.
    Broken,
    /// The socket has ended, or the peer never used it.
    Lost,
}

/// Change of a link's sockets, for its transport.
#[derive(Debug)]
pub(super) enum RailChange<L> {
    /// The socket of this number is lost.
    Lost(usize, Option<L>),
    /// A further socket carries the stream. So many bytes were sent again before.
    Opened(u64),
    /// A new socket is needed: one does not deliver its data.
    Stalled,
}

/// Result of [`RailSet::send_fast`].
#[derive(PartialEq, Eq, Debug)]
pub(super) enum FastSend {
    /// All bytes are sent.
    Sent,
    /// The socket has accepted a part of the frame; the rest is stored.
    InPart,
    /// Nothing is sent.
    Not,
    /// The socket has failed.
    Failed(Error),
}

/// Result of [`RailSet::recv_fast`].
#[derive(PartialEq, Eq, Debug)]
pub(super) enum FastRecv {
    /// So many bytes are received.
    Received(usize),
    /// The same, and an acknowledgement is due.
    WithAck(usize),
    /// Nothing has arrived.
    Nothing,
    /// The frames read ahead are for the slow path.
    Not,
    /// The socket has ended or failed.
    Ended(Result<bool>),
}

/// Byte stream of a link over several sockets.
///
/// Small sends go to the first socket. A large send is divided into segments, and each goes to the
/// socket with the earliest expected end. The receiver reads the socket with the next frame
/// of the stream; other frames stay in their sockets.
///
/// With a [`ResumeState`] the link survives the loss of sockets: bytes sent on a lost socket and not
/// acknowledged are sent again on another one.
#[derive(Debug)]
pub(super) struct RailSet<L> {
    rails: Vec<Rail<L>>,
    /// Maximum payload of a frame in bytes, and of a frame with retained bytes on a single socket.
    segment: usize,
    long_segment: usize,
    /// Offset of the next byte sent and received.
    tx_offset: u64,
    rx_offset: u64,
    /// One byte of the last send was not reported as sent, although a frame has it. The caller
    /// passes it again, and so calls until all frames have left.
    is_byte_withheld: bool,
    /// The last send awaits space on the full sockets.
    is_send_waiting: bool,
    /// The last send waits for the next one, to be sent by one call with it.
    is_send_coalesced: bool,
    /// The current call of [`recv`](Self::recv) has received bytes.
    has_received: bool,
    /// The socket of the last data frame.
    last: usize,
    /// Possibly readable sockets, and sockets without space.
    readable: RailBits,
    full: RailBits,
    /// Sockets with a later frame than the next of the stream.
    early: RailBits,
    first_frames: FirstFrames,
    /// None if one of the ends does not resume links, or has given up.
    resume: Option<Box<ResumeState>>,
    /// Ended outages, and bytes sent again.
    resumes: u64,
    repeated: u64,
    /// This end has given up: no socket is added, and nothing is sent again.
    has_given_up: bool,
    calls: CallQueue,
    /// Bytes to be sent again wait for a new socket.
    needs_rail: bool,
    /// Changes not taken yet.
    changes: Vec<RailChange<L>>,
    /// End of the stream without a socket: as received, or an error.
    over: Option<Result>,
    error: Option<Error>,
}

impl<L: ByteLink> Rail<L> {
    fn new(link: Option<L>, state: RailState) -> Self {
        let (reader, writer) = (FrameReader::default(), FrameWriter::default());
        Self { link, reader, writer, state, sent_to: 0 }
    }

    /// Returns true if the socket is in use.
    fn is_live(&self) -> bool {
        self.state != RailState::Lost
    }

    /// Returns true if data may be sent on the socket.
    fn carries(&self) -> bool {
        matches!(self.state, RailState::Open | RailState::Stalled(_))
    }

    /// Returns true if bytes at an offset may be sent again on the socket.
    fn may_repeat(&self, offset: u64) -> bool {
        self.state == RailState::Open && self.sent_to <= offset && self.writer.missing() == 0
    }

    /// Returns true if the peer sends nothing more on the socket.
    fn has_ended(&self) -> bool {
        !self.is_live() || self.reader.has_ended()
    }
}

/// Returns the set of one socket.
fn bit(at: usize) -> RailBits {
    1 << at
}

/// Returns the link of a live socket, by its own one: the first socket has none.
fn link_of<'a, L>(own: &'a Option<L>, first: &'a L) -> &'a L {
    own.as_ref().unwrap_or(first)
}

impl<L: ByteLink> RailSet<L> {
    /// Creates the stream of a new link. The first frame waits to be sent. `connects`: this end
    /// connects further sockets.
    pub(super) fn new(settings: &RailSettings, memory: &Arc<LogMemory>, connects: bool) -> Self {
        let mut first = Rail::new(None, RailState::Open);
        let hello = ResumeState::hello(settings);
        first.writer.push_control(&hello.encode());
        Self {
            rails: vec![first],
            segment: settings.segment.clamp(1, SEGMENT_MAX),
            long_segment: settings.long_segment.clamp(1, LONG_MAX),
            tx_offset: 0,
            rx_offset: 0,
            is_byte_withheld: false,
            is_send_waiting: false,
            is_send_coalesced: false,
            has_received: false,
            last: 0,
            readable: 1,
            full: 0,
            early: 0,
            first_frames: FirstFrames::new(&hello, !connects),
            resume: ResumeState::new(settings, memory),
            resumes: 0,
            repeated: 0,
            has_given_up: false,
            calls: CallQueue::default(),
            needs_rail: false,
            changes: Vec::new(),
            over: None,
            error: None,
        }
    }

    /// Adds a socket with this number. The connecting end confirms its use; the accepting end sends
    /// no data on it before. If the link is resumed, both ends confirm it by an acknowledgement.
    pub(super) fn add(&mut self, at: usize, link: L, connects: bool) {
        while self.rails.len() <= at.min(RAILS_MAX - 1) {
            self.rails.push(Rail::new(None, RailState::Lost));
        }
        if at == 0 || at >= RAILS_MAX || self.rails[at].is_live() {
            return;
        }
        self.readable |= bit(at);
        let is_open = connects && self.resume.is_none();
        let state = if is_open { RailState::Open } else { RailState::Unconfirmed };
        let mut rail = Rail::new(Some(link), state);
        if connects {
            rail.writer.push_control(&FrameHeader::control(FrameType::Joined, 0).encode());
        }
        if self.resume.is_some() {
            rail.writer.push_control(&position(FrameType::Ack, self.rx_offset));
            if self.first_frames.is_missing() {
                rail.writer.push_control(&offer_request());
            }
        }
        self.rails[at] = rail;
    }

    /// Number of sockets in use.
    pub(super) fn count(&self) -> usize {
        self.rails.iter().filter(|rail| rail.carries()).count()
    }

    /// Returns true if the link has no socket at present.
    pub(super) fn is_resuming(&self) -> bool {
        self.resume.is_some() && self.count() == 0
    }

    /// Returns true if the loss of sockets does not end the link: both ends want it, and one has the
    /// other's addresses.
    pub(super) fn is_resumable(&self) -> bool {
        self.resume.is_some() && self.first_frames.may_resume()
    }

    /// Returns the state after the loss of sockets.
    pub(super) fn recovery(&self) -> LinkRecovery {
        LinkRecovery {
            is_resuming: self.is_resuming(),
            resumes: self.resumes,
            repeated_bytes: self.repeated,
        }
    }

    /// Returns true if bytes of zero-copy sends stay in place until acknowledged.
    pub(super) fn may_retain(&self) -> bool {
        self.resume.is_some()
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

    /// Returns the socket events awaited by the link.
    pub(super) fn wanted(&self) -> WantedEvents {
        let primary = self.primary();
        let mut wanted = WantedEvents::new(self.early, self.full, primary.unwrap_or(0));
        wanted.set_control(self.has_control());
        wanted.set_staged(self.has_staged());
        let is_log_full = self.resume.as_ref().is_some_and(|resume| resume.is_log_full);
        wanted.set_blocked(is_log_full || primary.is_none());
        wanted
            .set_unacknowledged(self.resume.as_ref().is_some_and(|resume| !resume.log.is_empty()));
        wanted.set_unconfirmed(unconfirmed(&self.rails));
        wanted
    }

    /// First frames of both ends.
    pub(super) fn first_frames(&mut self) -> &mut FirstFrames {
        &mut self.first_frames
    }

    /// Takes the peer's requests, and the changes of the sockets, if there are any.
    pub(super) fn take_requests(&mut self) -> Option<(Vec<RailRequest>, Vec<RailChange<L>>)> {
        if !self.first_frames.has_requests() && self.changes.is_empty() {
            return None;
        }
        Some((self.first_frames.take_requests(), std::mem::take(&mut self.changes)))
    }

    /// Returns true if the peer has ended all sockets, and no other one can be connected. Sends
    /// nothing more on ended sockets: with unread bytes of the peer, nothing else reports their end.
    pub(super) fn look_for_end(&mut self, first: &L) -> bool {
        if !self.is_resumable() {
            return first.has_ended();
        }
        let mut ended = 0;
        for (at, rail) in self.rails.iter().enumerate().filter(|(_, rail)| rail.carries()) {
            if link_of(&rail.link, first).has_ended() {
                ended |= bit(at);
            }
        }
        if !self.first_frames.has_offered() {
            return ended != 0 && ended.count_ones() as usize == self.count();
        }
        (0..self.rails.len()).filter(|at| ended & bit(*at) != 0).for_each(|at| self.break_rail(at));
        false
    }

    /// Returns the number of the socket of small sends.
    pub(super) fn primary(&self) -> Option<usize> {
        first_open(&self.rails).or_else(|| self.rails.iter().position(Rail::carries))
    }

    /// Returns true if frames wait for space, although no send of the engine waits.
    pub(super) fn has_control(&self) -> bool {
        // A send waiting for the same space comes again, but not one waiting for an acknowledgement.
        let is_log_full = self.resume.as_ref().is_some_and(|resume| resume.is_log_full);
        let left = if self.is_send_waiting && !is_log_full { self.full } else { 0 };
        let has_tail =
            |(at, rail): (usize, &Rail<L>)| rail.writer.has_tail() && left & bit(at) == 0;
        (!self.is_byte_withheld || is_log_full)
            && !self.is_send_coalesced
            && (self.rails.iter().enumerate().any(has_tail)
                || can_send_again(&self.rails, self.resume.as_deref()))
    }

    /// Sends bytes on the first socket, and the first frames by the same call. Returns the number of
    /// those bytes accepted.
    pub(super) fn send_with_first_frames(&mut self, first: &L, bytes: &[u8]) -> Result<usize> {
        self.rails[0].writer.send_behind(first, bytes)
    }

    /// Sends a control frame, now or later. Without a socket it is dropped.
    pub(super) fn push_control(&mut self, frame: &[u8]) {
        if let Some(at) = self.primary() {
            self.rails[at].writer.push_control(frame);
        }
    }

    /// Sends waiting control frames, and bytes to be sent again.
    pub(super) fn flush_control(&mut self, first: &L) -> Result {
        if !self.is_send_waiting {
            self.full = 0;
        }
        self.send_again(first)?;
        self.flush(first, 0).map(drop)
    }

    /// Bytes on this host not acknowledged by the peer's.
    pub(super) fn unacknowledged(&self, first: &L) -> usize {
        let live = self.rails.iter().filter(|rail| rail.is_live());
        let in_sockets: usize = live
            .map(|rail| link_of(&rail.link, first).unacknowledged() + rail.writer.tail_len())
            .sum();
        in_sockets + self.resume.as_ref().map_or(0, |resume| resume.log.lost_bytes())
    }

    /// Returns the zero-copy calls done since the last query.
    pub(super) fn take_done_calls(&mut self) -> Result<ZerocopyDone> {
        self.calls.take_done(self.resume.is_none()).ok_or(Error::AGAIN)
    }

    /// Sends bytes of the stream ([`ByteLink::send_list`]). `now`: the time in nanoseconds. With
    /// zero copy they stay in place until acknowledged.
    pub(super) fn send(
        &mut self,
        first: &L,
        list: &GatherList<'_>,
        mode: CopyMode,
        now: u64,
    ) -> Result<usize> {
        self.full = 0;
        self.is_send_waiting = false;
        self.is_send_coalesced = false;
        let len = list.len();
        if len == 0 {
            return Ok(0);
        }
        if self.over.is_some() || (self.resume.is_none() && self.count() == 0) {
            return Err(self.over.and_then(Result::err).unwrap_or(Error::CONNRESET));
        }
        let is_retained = mode.is_zcopy();
        let mut done = usize::from(std::mem::take(&mut self.is_byte_withheld));
        if let Some(at) = self.incomplete().filter(|_| self.resume.is_some()) {
            // The next bytes go to another socket: a stalled one with an incomplete frame is not used again.
            if self.rails[at].state != RailState::Open && self.primary() != Some(at) {
                self.break_rail(at);
            }
        }
        let mut result = self.send_again(first);
        while done < len && result == Ok(true) {
            let sent = self.send_some(first, list, done, mode, now);
            result = sent.map(|(n, is_all)| {
                done += n;
                is_all
            });
        }
        let is_clear = self.is_send_coalesced || self.flush(first, self.full)?;
        if !is_clear && done > 0 && self.incomplete().is_none() {
            self.is_byte_withheld = true;
            done -= 1;
        }
        self.is_send_waiting = done < len;
        if is_retained && done > 0 {
            self.calls.push(self.tx_offset);
            if self.resume.is_none() {
                self.calls.finish(self.tx_offset);
            }
        }
        match result {
            Ok(_) if done == 0 => Err(Error::AGAIN),
            Err(error) if done == 0 => Err(error),
            // An error is returned again by the next call.
            _ => Ok(done),
        }
    }

    /// Sends bytes of a list from byte `from` on, up to the end of a frame. Returns their number, and
    /// true if more may be sent.
    fn send_some(
        &mut self,
        first: &L,
        list: &GatherList<'_>,
        from: usize,
        mode: CopyMode,
        now: u64,
    ) -> Result<(usize, bool)> {
        let is_retained = mode.is_zcopy();
        let incomplete = self.incomplete();
        let is_in_parts = is_retained && self.resume.is_some() && self.count() == 1;
        let most = match (incomplete, self.first_frames.hello()) {
            (Some(at), _) => self.rails[at].writer.missing(),
            (None, Some(hello)) if is_in_parts => self.long_segment.min(hello.max_payload()),
            _ => self.segment,
        };
        let left = list.len() - from;
        let mut len = left.min(most);
        if let Some(resume) = &mut self.resume {
            len = resume.prepare(len, is_retained);
        }
        let Some(at) = incomplete.or_else(|| self.primary()).filter(|_| len > 0) else {
            return Ok((0, false));
        };
        if incomplete.is_some() {
            return self.send_in_parts(at, first, None, list, from, len, is_retained);
        }
        let mut header = FrameHeader::data(self.tx_offset, len);
        header.wants_ack = is_retained && self.resume.is_some() && len == left;
        if is_in_parts {
            return self.send_in_parts(at, first, Some(&header), list, from, len, is_retained);
        }
        let is_coalesced = mode == CopyMode::MoreFollows && self.resume.is_some() && len == left;
        let is_sent = if self.rails.len() > 1 && len == self.segment {
            self.send_segment(first, &header, list, from, is_retained, now)?
        } else if is_coalesced && self.rails[at].writer.coalesce(&header, list, from)? {
            self.is_send_coalesced = true;
            self.note_sent(at, list, from, len, is_retained);
            true
        } else {
            self.send_on(at, first, &header, list, from, is_retained)?
        };
        Ok((if is_sent { len } else { 0 }, is_sent))
    }

    /// Returns the number of the socket with a frame to be completed by the next bytes.
    fn incomplete(&self) -> Option<usize> {
        self.rails.iter().position(|rail| rail.writer.missing() > 0)
    }

    /// Sends a new frame, or a part of the incomplete one (`None`), on one socket: `len` bytes of a
    /// list at most. Returns the number of bytes accepted, and true if these are all.
    #[allow(clippy::too_many_arguments, reason = "a frame and its bytes")]
    fn send_in_parts(
        &mut self,
        at: usize,
        first: &L,
        header: Option<&FrameHeader>,
        list: &GatherList<'_>,
        from: usize,
        len: usize,
        is_retained: bool,
    ) -> Result<(usize, bool)> {
        let rail = &mut self.rails[at];
        let link = link_of(&rail.link, first);
        match rail.writer.send_in_parts(link, header, list, from, len) {
            Ok(n) => {
                self.note_sent(at, list, from, n, is_retained);
                if n < len {
                    self.full |= bit(at);
                }
                Ok((n, n == len))
            }
            Err(error) => self.fail_sending(at, error).map(|()| (0, false)),
        }
    }

    /// Records the next bytes of the stream as sent on a socket.
    fn note_sent(
        &mut self,
        at: usize,
        list: &GatherList<'_>,
        from: usize,
        len: usize,
        is_retained: bool,
    ) {
        self.tx_offset += len as u64;
        self.rails[at].sent_to = self.tx_offset;
        let Some(resume) = &mut self.resume else { return };
        let mut done = 0;
        while done < len {
            // Each part is sent again in a frame of its own.
            let part = (len - done).min(self.segment);
            resume.log.push(list, from + done, part, at, is_retained);
            done += part;
        }
    }

    /// Sends waiting frames of all sockets but these `full` ones. Returns true if no frame with data is
    /// left.
    fn flush(&mut self, first: &L, full: RailBits) -> Result<bool> {
        let mut is_clear = true;
        for at in 0..self.rails.len() {
            let rail = &mut self.rails[at];
            if !rail.writer.has_tail() {
                continue;
            }
            if full & bit(at) != 0 {
                is_clear &= !has_unsent_frame(rail, at, self.resume.as_deref());
                continue;
            }
            match rail.writer.flush(link_of(&rail.link, first)) {
                Ok(true) => self.full &= !bit(at),
                Ok(false) => {
                    self.full |= bit(at);
                    is_clear &= !has_unsent_frame(rail, at, self.resume.as_deref());
                }
                Err(error) => self.fail_sending(at, error)?,
            }
        }
        Ok(is_clear)
    }

    /// Sends a data frame with bytes of a list on one socket. Returns false if it accepts nothing.
    fn send_on(
        &mut self,
        at: usize,
        first: &L,
        header: &FrameHeader,
        list: &GatherList<'_>,
        from: usize,
        is_retained: bool,
    ) -> Result<bool> {
        let rail = &mut self.rails[at];
        let link = link_of(&rail.link, first);
        match rail.writer.send(link, header, list, from) {
            Ok(true) => {
                self.note_sent(at, list, from, header.len, is_retained);
                Ok(true)
            }
            Ok(false) => {
                self.full |= bit(at);
                Ok(false)
            }
            Err(error) => self.fail_sending(at, error).map(|()| false),
        }
    }

    /// Sends one segment on the accepting socket with the earliest expected end. Returns
    /// false if none does.
    fn send_segment(
        &mut self,
        first: &L,
        header: &FrameHeader,
        list: &GatherList<'_>,
        from: usize,
        is_retained: bool,
        now: u64,
    ) -> Result<bool> {
        let assumed = self.rails.iter().map(|rail| rail.writer.rate()).max().unwrap_or(0);
        let mut order = [(u64::MAX, 0); RAILS_MAX];
        for (at, rail) in self.rails.iter_mut().enumerate() {
            if rail.state != RailState::Open {
                continue;
            }
            let link = link_of(&rail.link, first);
            order[at] = (rail.writer.finish_time(link, now, header.len, assumed), at);
        }
        order.sort_unstable();
        for &(_, at) in order.iter().filter(|(time, _)| *time < u64::MAX) {
            if self.send_on(at, first, header, list, from, is_retained)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends unacknowledged bytes of lost sockets again. Returns false if they wait for space: nothing
    /// is sent before them. While they wait for a new socket, the others are used.
    fn send_again(&mut self, first: &L) -> Result<bool> {
        let Some(resume) = &mut self.resume else { return Ok(true) };
        while let Some((segment, offset, len)) = resume.log.first_lost() {
            let may_repeat = |(_, rail): &(usize, &Rail<L>)| rail.may_repeat(offset);
            let mut suitable = self.rails.iter().enumerate().filter(may_repeat);
            let free = suitable.clone().find(|(at, _)| self.full & bit(*at) == 0);
            let Some((at, _)) = free else {
                if suitable.next().is_none() && !self.needs_rail {
                    // A new socket has no other frames yet.
                    self.needs_rail = true;
                    self.changes.push(RailChange::Stalled);
                }
                return Ok(self.needs_rail);
            };
            let rail = &mut self.rails[at];
            let link = link_of(&rail.link, first);
            let mut list = GatherList::default();
            resume.log.gather(segment, &mut list)?;
            let header = FrameHeader { wants_ack: true, ..FrameHeader::data(offset, len) };
            match rail.writer.send(link, &header, &list, 0) {
                Ok(true) => {
                    resume.log.sent_again(segment, at);
                    rail.sent_to = offset + len as u64;
                    self.repeated += len as u64;
                }
                Ok(false) => self.full |= bit(at),
                Err(error) => {
                    self.fail_sending(at, error)?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Handles a failed send on a socket. Fails with its error if the link cannot go on.
    #[cold]
    fn fail_sending(&mut self, at: usize, error: Error) -> Result {
        if error == Error::NOMEM || !self.is_resumable() {
            return Err(error);
        }
        self.break_rail(at);
        Ok(())
    }

    /// Ends sending on a socket. Its unacknowledged bytes are to be sent again.
    fn break_rail(&mut self, at: usize) {
        let rail = &mut self.rails[at];
        (rail.state, rail.writer) = (RailState::Broken, FrameWriter::default());
        self.full &= !bit(at);
        if let Some(resume) = &mut self.resume {
            resume.lose(at);
        }
        if self.count() == 0 {
            self.changes.push(RailChange::Stalled);
        }
    }

    /// Handles the end of a socket. Fails with its error if the link cannot go on.
    #[cold]
    fn fail_rail(&mut self, at: usize, first: &L, outcome: Result) -> Result {
        let is_unused = self.rails[at].state == RailState::Unconfirmed;
        if outcome == Err(Error::NOMEM) || !(is_unused || self.is_resumable()) {
            return outcome;
        }
        self.lose_rail(at, first, outcome);
        Ok(())
    }

    /// Handles sockets without acknowledgements of the peer's system. Fails if the link cannot go on.
    #[cold]
    pub(super) fn fail_silent(&mut self, first: &L, now: Instant) -> Result {
        for at in 0..self.rails.len() {
            let rail = &self.rails[at];
            if rail.is_live() && link_of(&rail.link, first).is_silent(now) {
                self.fail_rail(at, first, Err(Error::TIMEDOUT))?;
            }
        }
        Ok(())
    }

    /// Takes a socket out of use. Its unacknowledged bytes are to be sent again.
    pub(super) fn lose_rail(&mut self, at: usize, first: &L, outcome: Result) {
        let lost = std::mem::replace(&mut self.rails[at], Rail::new(None, RailState::Lost));
        if !lost.is_live() {
            return;
        }
        if at == 0 {
            first.shutdown();
        }
        self.changes.push(RailChange::Lost(at, lost.link));
        for bits in [&mut self.readable, &mut self.full, &mut self.early] {
            *bits &= !bit(at);
        }
        self.first_frames.forget(at);
        if self.last == at {
            self.last = 0;
        }
        let is_last = self.count() == 0;
        if let Some(resume) = &mut self.resume {
            resume.lose(at);
            if is_last && resume.outcome.is_none() {
                resume.outcome = Some(outcome);
            }
        }
    }

    /// Starts sending data on a socket confirmed by the peer.
    fn open_rail(&mut self, at: usize, first: &L) {
        self.rails[at].state = RailState::Open;
        self.needs_rail = false;
        let Some(resume) = &mut self.resume else { return };
        self.resumes += u64::from(resume.outcome.take().is_some());
        self.changes.push(RailChange::Opened(self.repeated));
        if resume.has_ended_sending {
            let end = position(FrameType::End, self.tx_offset);
            self.rails[at].writer.push_control(&end);
        }
        for at in 0..self.rails.len() {
            if matches!(self.rails[at].state, RailState::Stalled(_) | RailState::Broken) {
                self.lose_rail(at, first, Err(Error::TIMEDOUT));
            }
        }
    }

    /// Gives up: sockets lost from now on, or already, end the link.
    pub(super) fn give_up(&mut self) {
        self.has_given_up |= self.resume.is_some();
        self.stop_resuming();
    }

    /// Stops acknowledging and storing bytes, for a peer without these.
    fn stop_resuming(&mut self) {
        let Some(resume) = self.resume.take() else { return };
        if self.rails.iter().any(Rail::carries) {
            // The sockets have copies of all bytes.
            self.calls.finish(u64::MAX);
        } else if !self.rails.iter().any(Rail::is_live) {
            self.over = Some(resume.outcome.unwrap_or(Ok(())));
        }
    }

    /// Ends the stream to the peer, as far as the socket accepts it.
    pub(super) fn end_sending(&mut self, first: &L) {
        if let Some(resume) = &mut self.resume {
            if !std::mem::replace(&mut resume.has_ended_sending, true) {
                self.push_control(&position(FrameType::End, self.tx_offset));
            }
            let _ = self.flush(first, 0);
        }
    }

    /// Looks for stalled sockets, and requests an acknowledgement. `now`: the time in nanoseconds.
    pub(super) fn check_progress(&mut self, first: &L, now: u64) {
        let Some(resume) = &mut self.resume else { return };
        if resume.log.is_empty() {
            resume.log.release_unused();
            return;
        }
        let is_due = !resume.has_asked;
        self.needs_rail = false;
        for at in 0..self.rails.len() {
            let rail = &mut self.rails[at];
            let is_stalled = rail.carries() && link_of(&rail.link, first).is_stalled();
            match (rail.state, is_stalled) {
                (RailState::Open, true) => rail.state = RailState::Stalled(now),
                (RailState::Stalled(_), false) => rail.state = RailState::Open,
                (RailState::Stalled(since), true) => {
                    let is_long = now.saturating_sub(since) > STALL_MAX;
                    if is_long && first_open(&self.rails).is_some() {
                        self.lose_rail(at, first, Err(Error::TIMEDOUT));
                    }
                }
                _ => {}
            }
        }
        let has_open = first_open(&self.rails).is_some();
        let Some(resume) = &mut self.resume else { return };
        let mut is_any_stalled = false;
        for (at, rail) in self.rails.iter().enumerate() {
            if !matches!(rail.state, RailState::Stalled(_)) {
                continue;
            }
            is_any_stalled = true;
            if has_open {
                resume.log.lose(at);
            }
        }
        if has_open && is_due {
            resume.has_asked = true;
            self.push_control(&position(FrameType::AckRequest, self.tx_offset));
        } else if !has_open && is_any_stalled {
            self.changes.push(RailChange::Stalled);
        }
    }

    /// Sends an acknowledgement, if one is due.
    pub(super) fn acknowledge(&mut self) {
        let Some(resume) = &self.resume else { return };
        let is_long = self.rails[self.last].reader.is_within_long();
        if !resume.is_ack_due(self.rx_offset, is_long) {
            return;
        }
        let (Some(at), Some(resume)) = (first_open(&self.rails), &mut self.resume) else { return };
        let writer = &mut self.rails[at].writer;
        if writer.tail_len() <= ACK_TAIL_MAX {
            writer.push_control(&position(FrameType::Ack, self.rx_offset));
            resume.set_acked(self.rx_offset);
        }
    }
}

/// Returns the sockets not confirmed by the peer.
fn unconfirmed<L>(rails: &[Rail<L>]) -> RailBits {
    let unconfirmed =
        rails.iter().enumerate().filter(|(_, rail)| rail.state == RailState::Unconfirmed);
    unconfirmed.fold(0, |bits, (at, _)| bits | bit(at))
}

/// Returns the number of the first open socket.
fn first_open<L>(rails: &[Rail<L>]) -> Option<usize> {
    rails.iter().position(|rail| rail.state == RailState::Open)
}

/// Returns true if socket `at` has stored bytes of unacknowledged frames. Other bytes of a stalled socket
/// are on their way on another one, or have arrived.
fn has_unsent_frame<L>(rail: &Rail<L>, at: usize, resume: Option<&ResumeState>) -> bool {
    rail.writer.has_tail() && resume.is_none_or(|resume| resume.log.has_sent_on(at))
}

/// Returns true if a socket may carry the next bytes to be sent again.
fn can_send_again<L: ByteLink>(rails: &[Rail<L>], resume: Option<&ResumeState>) -> bool {
    let lost = resume.and_then(|resume| resume.log.first_lost());
    lost.is_some_and(|(_, offset, _)| rails.iter().any(|rail| rail.may_repeat(offset)))
}

/// Returns a frame requesting a [`RailOffer`](super::frame::RailOffer).
pub(super) fn offer_request() -> Vec<u8> {
    FrameHeader::control(FrameType::OfferRequest, 0).encode().to_vec()
}

/// Returns a frame with a position in the stream.
fn position(kind: FrameType, offset: u64) -> Vec<u8> {
    FrameHeader::position(kind, offset).encode().to_vec()
}
