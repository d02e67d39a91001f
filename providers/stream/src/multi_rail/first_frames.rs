//! First frames of the ends of a link: their hellos, and their offers of further sockets.
use super::frame::{FRAME_LEN, FrameHeader, FrameType, Hello, RailOffer};
use super::wanted::RailBits;
use ofi_provider::malformed::{Malformed, Parsed};

/// Request of the peer, received in a control frame.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum RailRequest {
    /// The peer requests a [`RailOffer`].
    OfferRequest,
    /// The peer offers to take further sockets.
    Offer(RailOffer),
}

/// First frames of the ends of a link.
///
/// The accepting end sends its own with the answer to the connection request. If the first socket is
/// lost before those of the connecting end have arrived, the accepting end requests them again on the
/// next socket.
#[derive(Debug)]
pub(super) struct FirstFrames {
    /// The peer connects further sockets, and may do so before its own first frames have arrived.
    is_accepting: bool,
    /// Hello of the peer.
    hello: Option<Hello>,
    /// Requests of the peer not taken yet. A peer sends one of each kind.
    requests: Vec<RailRequest>,
    has_requested: bool,
    has_offered: bool,
    /// The offer has arrived on the first socket. It may be repeated on another one before.
    is_first_offer_known: bool,
    /// Frames of this end, and the sockets on which they were repeated.
    own: Vec<u8>,
    repeated: RailBits,
}

impl FirstFrames {
    /// Creates the state of a new link. `hello`: the first frame of this end.
    pub(super) fn new(hello: &Hello, is_accepting: bool) -> Self {
        Self {
            is_accepting,
            hello: None,
            requests: Vec::new(),
            has_requested: false,
            has_offered: false,
            is_first_offer_known: false,
            own: hello.encode(),
            repeated: 0,
        }
    }

    /// Adds the offer of this end, a whole frame.
    pub(super) fn add_offer(&mut self, frame: &[u8]) {
        self.own.extend_from_slice(frame);
    }

    /// Returns the frames of this end, if an offer is among them.
    pub(super) fn own_with_offer(&self) -> Option<&[u8]> {
        (self.own.len() > FRAME_LEN + Hello::LEN).then_some(&self.own)
    }

    /// Returns true if the first frames of the accepting end have arrived: its hello, followed by its
    /// offer if it resumes links.
    pub(super) fn are_complete(&self) -> bool {
        self.hello.is_some_and(|hello| hello.resume == 0 || self.has_offered)
    }

    /// Hello of the peer.
    pub(super) fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// Returns true if the peer has offered to take further sockets.
    pub(super) fn has_offered(&self) -> bool {
        self.has_offered
    }

    /// Returns true if either end can connect a socket after the loss of all: the peer's offer has
    /// arrived, or the peer has this end's one.
    pub(super) fn may_resume(&self) -> bool {
        let is_peer_resuming = self.hello.is_none_or(|hello| hello.resume > 0);
        self.has_offered || (self.is_accepting && is_peer_resuming)
    }

    /// Returns true if the peer resumes links. `is_first_lost`: the first socket is lost, with the hello
    /// unless it has arrived; only a resuming peer connects another one.
    pub(super) fn is_peer_resuming(&self, is_first_lost: bool) -> bool {
        let is_assumed = self.is_accepting && is_first_lost;
        self.hello.map_or(is_assumed, |hello| hello.resume > 0)
    }

    /// Records the end of the peer's stream: a peer without an offer connects no other socket.
    pub(super) fn end(&mut self) {
        self.is_accepting = false;
    }

    /// Returns true if the peer's offer has not arrived.
    pub(super) fn is_missing(&self) -> bool {
        self.is_accepting && !self.has_offered
    }

    /// Records a hello received on socket `at`. Returns it unless it is a repeated one.
    pub(super) fn set_hello(&mut self, at: usize, payload: &[u8]) -> Parsed<Option<Hello>> {
        let hello = Hello::parse(payload)?;
        match self.hello {
            None => Ok(self.hello.insert(hello)).map(|hello| Some(*hello)),
            Some(known) if at > 0 && known == hello => Ok(None),
            Some(_) => Err(Malformed("the first frame is repeated")),
        }
    }

    /// Records a request received on socket `at`. Returns the frames to be sent there, if they are to
    /// be repeated.
    pub(super) fn add_request(
        &mut self,
        at: usize,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Parsed<Option<&[u8]>> {
        const REPEATED: Malformed = Malformed("a request is repeated");
        let (request, is_known) = match header.kind {
            FrameType::Offer => {
                if at == 0 && std::mem::replace(&mut self.is_first_offer_known, true) {
                    return Err(REPEATED);
                }
                (RailRequest::Offer(RailOffer::parse(payload)?), &mut self.has_offered)
            }
            _ if at > 0 => {
                let is_again = self.repeated & 1 << at != 0;
                self.repeated |= 1 << at;
                return if is_again { Err(REPEATED) } else { Ok(Some(&self.own)) };
            }
            _ if self.has_requested => return Err(REPEATED),
            _ => (RailRequest::OfferRequest, &mut self.has_requested),
        };
        if !std::mem::replace(is_known, true) {
            self.requests.push(request);
        }
        Ok(None)
    }

    /// Forgets the repetition on a lost socket: its number may be used again.
    pub(super) fn forget(&mut self, at: usize) {
        self.repeated &= !(1 << at);
    }

    /// Takes the peer's requests.
    pub(super) fn take_requests(&mut self) -> Vec<RailRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Returns true if [`take_requests`](Self::take_requests) has any to return.
    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multi_rail::frame::JoinRequest;

    const HELLO: Hello = Hello { resume: 60, ack_interval: 1 };

    fn offer() -> Vec<u8> {
        let join = JoinRequest { link: 1, token: [7; 16] };
        RailOffer { join, addrs: vec!["10.0.0.1:5".parse().unwrap()] }.encode()
    }

    fn add(frames: &mut FirstFrames, at: usize, frame: &[u8]) -> Parsed<Option<Vec<u8>>> {
        let header = FrameHeader::parse(frame.first_chunk().unwrap()).unwrap();
        Ok(frames.add_request(at, &header, &frame[FRAME_LEN..])?.map(<[u8]>::to_vec))
    }

    #[test]
    fn accepting_end_resumes_before_the_offer_of_a_peer_that_may_resume() {
        for (is_accepting, resume, expected) in [
            (true, None, true),
            (true, Some(0), false),
            (true, Some(1), true),
            (false, Some(1), false),
        ] {
            let mut frames = FirstFrames::new(&HELLO, is_accepting);
            if let Some(resume) = resume {
                let hello = Hello { resume, ..HELLO }.encode();
                frames.set_hello(0, &hello[FRAME_LEN..]).unwrap();
            }
            assert_eq!(frames.may_resume(), expected, "{is_accepting} {resume:?}");
            assert_eq!(add(&mut frames, 0, &offer()), Ok(None));
            assert!(frames.may_resume() && frames.take_requests().len() == 1);
        }
        let mut frames = FirstFrames::new(&HELLO, true);
        frames.end();
        assert!(!frames.may_resume());
    }

    #[test]
    fn frames_are_repeated_on_further_sockets_only_and_once_on_each() {
        let mut frames = FirstFrames::new(&HELLO, false);
        frames.add_offer(&offer());
        let request = FrameHeader::control(FrameType::OfferRequest, 0).encode();
        let own = [HELLO.encode(), offer()].concat();
        assert_eq!(add(&mut frames, 0, &request), Ok(None));
        assert!(add(&mut frames, 0, &request).is_err());
        assert_eq!(add(&mut frames, 3, &request), Ok(Some(own.clone())));
        assert!(add(&mut frames, 3, &request).is_err());
        frames.forget(3);
        assert_eq!(add(&mut frames, 3, &request), Ok(Some(own)));
        assert_eq!(frames.take_requests(), [RailRequest::OfferRequest]);
    }

    #[test]
    fn repeated_frames_of_the_peer_have_no_effect() {
        let mut frames = FirstFrames::new(&HELLO, true);
        let hello = HELLO.encode();
        assert_eq!(frames.set_hello(0, &hello[FRAME_LEN..]), Ok(Some(HELLO)));
        assert!(frames.set_hello(0, &hello[FRAME_LEN..]).is_err());
        assert_eq!(frames.set_hello(1, &hello[FRAME_LEN..]), Ok(None));
        let other = Hello { resume: 7, ..HELLO }.encode();
        assert!(frames.set_hello(1, &other[FRAME_LEN..]).is_err());
        for at in [0, 2] {
            assert_eq!(add(&mut frames, at, &offer()), Ok(None));
        }
        assert_eq!(frames.take_requests().len(), 1);
        assert!(add(&mut frames, 0, &offer()).is_err());
    }

    #[test]
    fn offer_may_arrive_on_the_first_socket_after_its_repetition() {
        let mut frames = FirstFrames::new(&HELLO, true);
        for at in [2, 0, 2] {
            assert_eq!(add(&mut frames, at, &offer()), Ok(None));
        }
        assert_eq!(frames.take_requests().len(), 1);
        assert!(add(&mut frames, 0, &offer()).is_err());
    }
}
