//! Frames of links with several sockets: a header of [`FRAME_LEN`] bytes, then the payload.
//!
//! Each socket of a link carries whole frames. The offset of a data frame is the position of its
//! first byte in the link's byte stream, so the frames of all sockets together are the stream.
//! Numbers are in network order.
use ofi_provider::malformed::{Malformed, Parsed};
use std::net::{IpAddr, SocketAddr};

/// Bytes of a frame header.
pub const FRAME_LEN: usize = 16;

/// Maximum payload in bytes of a data frame to any peer.
pub const SEGMENT_MAX: usize = 64 << 10;

/// Maximum payload in bytes of a data frame to a peer permitting longer ones
/// ([`Hello::max_payload`]).
pub const LONG_MAX: usize = 1 << 20;

/// Maximum bytes read without an acknowledgement.
pub const ACK_INTERVAL_MAX: usize = 256 << 10;

/// Maximum payload of a control frame in bytes.
pub const CONTROL_MAX: usize = 512;

/// Bytes of a [`RailToken`].
pub const TOKEN_LEN: usize = 16;

/// Maximum number of addresses in an [`RailOffer`].
pub const ADDRS_MAX: usize = 16;

/// Proof of a socket's membership in a link: 128 random bits.
pub type RailToken = [u8; TOKEN_LEN];

/// Kinds of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameType {
    /// Bytes of the stream, at the offset.
    Data = 1,
    /// The connecting end requests a [`RailOffer`].
    OfferRequest = 2,
    /// Answer: a [`RailOffer`].
    Offer = 3,
    /// First frame of a further socket: a [`JoinRequest`].
    Join = 4,
    /// Answer: the socket belongs to the link.
    Joined = 5,
    /// First frame of each end of a link: a [`Hello`].
    Hello = 6,
    /// The sender of this frame has read the stream up to the offset.
    Ack = 7,
    /// The peer is to acknowledge the stream up to the offset.
    AckRequest = 8,
    /// The stream ends at the offset, by decision of its sender.
    End = 9,
    /// Answer to a [`JoinRequest`] without a link of this token.
    Rejected = 10,
}

impl FrameType {
    /// Returns true if the header has a position in the stream.
    fn has_offset(self) -> bool {
        matches!(self, Self::Data | Self::Ack | Self::AckRequest | Self::End)
    }
}

/// Header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Kind of the frame.
    pub kind: FrameType,
    /// Bytes of payload.
    pub len: usize,
    /// Position in the stream; 0 in frames without one.
    pub offset: u64,
    /// The receiver of this data frame acknowledges its end at once.
    pub wants_ack: bool,
}

impl FrameHeader {
    /// Returns the header of a data frame.
    pub fn data(offset: u64, len: usize) -> Self {
        Self { kind: FrameType::Data, len, offset, wants_ack: false }
    }

    /// Returns the header of a frame with a position in the stream and without payload.
    pub fn position(kind: FrameType, offset: u64) -> Self {
        Self { kind, len: 0, offset, wants_ack: false }
    }

    /// Returns the header of a control frame.
    pub fn control(kind: FrameType, len: usize) -> Self {
        Self { kind, len, offset: 0, wants_ack: false }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; FRAME_LEN] {
        let mut out = [0; FRAME_LEN];
        out[0] = self.kind as u8;
        out[1] = u8::from(self.wants_ack);
        out[4..8].copy_from_slice(&(self.len as u32).to_be_bytes());
        out[8..].copy_from_slice(&self.offset.to_be_bytes());
        out
    }

    /// Parses a header.
    pub fn parse(bytes: &[u8; FRAME_LEN]) -> Parsed<Self> {
        let [kind, flags @ 0..=1, 0, 0, l0, l1, l2, l3, offset @ ..] = *bytes else {
            return Err(Malformed("reserved bytes of a frame are not 0"));
        };
        let (kind, min, max) = match kind {
            1 => (FrameType::Data, 1, LONG_MAX),
            2 => (FrameType::OfferRequest, 0, 0),
            3 => (FrameType::Offer, TOKEN_LEN + 8 + 1, CONTROL_MAX),
            4 => (FrameType::Join, JoinRequest::LEN, JoinRequest::LEN),
            5 => (FrameType::Joined, 0, 0),
            6 => (FrameType::Hello, Hello::LEN, Hello::LEN),
            7 => (FrameType::Ack, 0, 0),
            8 => (FrameType::AckRequest, 0, 0),
            9 => (FrameType::End, 0, 0),
            10 => (FrameType::Rejected, 0, 0),
            _ => return Err(Malformed("unknown frame")),
        };
        let len = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if !(min..=max).contains(&len) {
            return Err(Malformed("a frame of this kind does not have this length"));
        }
        let offset = u64::from_be_bytes(offset);
        if offset > 0 && !kind.has_offset() {
            return Err(Malformed("a frame of this kind has no offset"));
        }
        let wants_ack = flags != 0;
        if wants_ack && kind != FrameType::Data {
            return Err(Malformed("a control frame requests an acknowledgement"));
        }
        if offset.checked_add(len as u64).is_none() {
            return Err(Malformed("the end of a frame is beyond the largest offset"));
        }
        Ok(Self { kind, len, offset, wants_ack })
    }
}

/// First frame of each end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Time in seconds without a socket until the sender gives up the link; 0: at once.
    pub resume: u32,
    /// Maximum bytes read without an acknowledgement, limited by the receiver to
    /// [`ACK_INTERVAL_MAX`]. A larger number permits longer frames as well.
    pub ack_interval: u32,
}

impl Hello {
    /// Encoded length in bytes.
    pub const LEN: usize = 8;

    /// Returns the maximum payload in bytes of data frames to the sender of this frame. Versions
    /// without long frames send a number up to [`ACK_INTERVAL_MAX`].
    pub fn max_payload(&self) -> usize {
        match self.ack_interval as usize {
            interval if interval > ACK_INTERVAL_MAX => interval.min(LONG_MAX),
            _ => SEGMENT_MAX,
        }
    }

    /// Encodes the whole frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FrameHeader::control(FrameType::Hello, Self::LEN).encode().to_vec();
        out.extend(self.resume.to_be_bytes());
        out.extend(self.ack_interval.to_be_bytes());
        out
    }

    /// Parses the payload.
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        let [r0, r1, r2, r3, a0, a1, a2, a3] = *bytes else {
            return Err(Malformed("the first frame is cut"));
        };
        let resume = u32::from_be_bytes([r0, r1, r2, r3]);
        Ok(Self { resume, ack_interval: u32::from_be_bytes([a0, a1, a2, a3]) })
    }
}

/// Request of a socket to belong to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JoinRequest {
    /// Number of the link at the accepting end.
    pub link: u64,
    /// Token of the link, from its [`RailOffer`].
    pub token: RailToken,
}

impl JoinRequest {
    /// Encoded length in bytes.
    pub const LEN: usize = 8 + TOKEN_LEN;

    /// Encodes the whole frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FrameHeader::control(FrameType::Join, Self::LEN).encode().to_vec();
        out.extend(self.link.to_be_bytes());
        out.extend(self.token);
        out
    }

    /// Parses the payload.
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        let (link, token) = bytes.split_first_chunk().ok_or(Malformed("a join request is cut"))?;
        let token = token.try_into().map_err(|_| Malformed("a join request is cut"))?;
        Ok(Self { link: u64::from_be_bytes(*link), token })
    }
}

/// Offer of the accepting end to take further sockets for a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RailOffer {
    /// Content of the [`JoinRequest`] for each socket.
    pub join: JoinRequest,
    /// Addresses of listeners for these sockets, at most [`ADDRS_MAX`].
    pub addrs: Vec<SocketAddr>,
}

impl RailOffer {
    /// Encodes the whole frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; FRAME_LEN];
        out.extend(self.join.link.to_be_bytes());
        out.extend(self.join.token);
        let addrs = &self.addrs[..self.addrs.len().min(ADDRS_MAX)];
        out.push(addrs.len() as u8);
        for addr in addrs {
            match addr.ip() {
                IpAddr::V4(ip) => {
                    out.push(4);
                    out.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.push(6);
                    out.extend(ip.octets());
                }
            }
            out.extend(addr.port().to_be_bytes());
        }
        let header = FrameHeader::control(FrameType::Offer, out.len() - FRAME_LEN).encode();
        out[..FRAME_LEN].copy_from_slice(&header);
        out
    }

    /// Parses the payload.
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        const CUT: Malformed = Malformed("an offer of sockets is cut");
        let (join, rest) = bytes.split_at_checked(JoinRequest::LEN).ok_or(CUT)?;
        let (&count, mut rest) = rest.split_first().ok_or(CUT)?;
        if usize::from(count) > ADDRS_MAX {
            return Err(Malformed("an offer of sockets has too many addresses"));
        }
        let mut addrs = Vec::new();
        for _ in 0..count {
            let (&family, after) = rest.split_first().ok_or(CUT)?;
            let (ip, after) = match family {
                4 => {
                    let (ip, after) = after.split_first_chunk::<4>().ok_or(CUT)?;
                    (IpAddr::from(*ip), after)
                }
                6 => {
                    let (ip, after) = after.split_first_chunk::<16>().ok_or(CUT)?;
                    (IpAddr::from(*ip), after)
                }
                _ => return Err(Malformed("an offer of sockets has an unknown kind of address")),
            };
            let (port, after) = after.split_first_chunk::<2>().ok_or(CUT)?;
            addrs.push(SocketAddr::new(ip, u16::from_be_bytes(*port)));
            rest = after;
        }
        if !rest.is_empty() {
            return Err(Malformed("an offer of sockets has bytes behind its end"));
        }
        Ok(Self { join: JoinRequest::parse(join)?, addrs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: u8, len: u32, offset: u64) -> Parsed<FrameHeader> {
        let mut bytes = [0; FRAME_LEN];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&len.to_be_bytes());
        bytes[8..].copy_from_slice(&offset.to_be_bytes());
        FrameHeader::parse(&bytes)
    }

    #[test]
    fn parsed_header_equals_the_encoded_one() {
        for header in [
            FrameHeader::data(0, 1),
            FrameHeader::data(u64::MAX - LONG_MAX as u64, LONG_MAX),
            FrameHeader::control(FrameType::OfferRequest, 0),
            FrameHeader::control(FrameType::Joined, 0),
            FrameHeader::control(FrameType::Join, JoinRequest::LEN),
            FrameHeader::control(FrameType::Hello, Hello::LEN),
            FrameHeader::position(FrameType::Ack, u64::MAX),
            FrameHeader::position(FrameType::AckRequest, 1),
            FrameHeader::position(FrameType::End, 0),
            FrameHeader::control(FrameType::Rejected, 0),
            FrameHeader { wants_ack: true, ..FrameHeader::data(7, 9) },
        ] {
            assert_eq!(FrameHeader::parse(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn headers_with_impossible_lengths_or_offsets_are_rejected() {
        assert!(parse(1, 0, 0).is_err() && parse(1, 1 + LONG_MAX as u32, 0).is_err());
        assert!(parse(1, u32::MAX, 0).is_err() && parse(1, 2, u64::MAX - 1).is_err());
        assert!(parse(0, 1, 0).is_err() && parse(11, 0, 0).is_err() && parse(2, 1, 0).is_err());
        assert!(parse(6, 0, 0).is_err() && parse(7, 1, 0).is_err() && parse(10, 0, 1).is_err());
        assert!(parse(5, 0, 1).is_err() && parse(3, 1 + CONTROL_MAX as u32, 0).is_err());
        let mut reserved = FrameHeader::data(0, 1).encode();
        reserved[2] = 1;
        assert!(FrameHeader::parse(&reserved).is_err());
        let mut control = FrameHeader::control(FrameType::Joined, 0).encode();
        control[1] = 1;
        assert!(FrameHeader::parse(&control).is_err());
    }

    #[test]
    fn parsed_hello_equals_the_encoded_one() {
        let hello = Hello { resume: 60, ack_interval: 1 << 18 };
        let encoded = hello.encode();
        assert_eq!(Hello::parse(&encoded[FRAME_LEN..]), Ok(hello));
        assert!(Hello::parse(&encoded[FRAME_LEN + 1..]).is_err());
    }

    #[test]
    fn long_frames_need_an_interval_beyond_that_of_versions_without_them() {
        let max_payload = |ack_interval| Hello { resume: 1, ack_interval }.max_payload();
        assert_eq!((max_payload(0), max_payload(256 << 10)), (SEGMENT_MAX, SEGMENT_MAX));
        assert_eq!(max_payload((256 << 10) + 1), (256 << 10) + 1);
        assert_eq!((max_payload(1 << 20), max_payload(u32::MAX)), (LONG_MAX, LONG_MAX));
    }

    #[test]
    fn parsed_offer_equals_the_encoded_one_and_a_cut_offer_is_rejected() {
        let join = JoinRequest { link: 7, token: [9; TOKEN_LEN] };
        let addrs = ["10.1.2.3:4", "[fe80::1]:65535", "0.0.0.0:0"];
        let addrs = addrs.map(|addr| addr.parse().unwrap()).to_vec();
        let offer = RailOffer { join, addrs };
        let encoded = offer.encode();
        let header = FrameHeader::parse(encoded.first_chunk().unwrap()).unwrap();
        assert_eq!((header.kind, header.len), (FrameType::Offer, encoded.len() - FRAME_LEN));
        let payload = &encoded[FRAME_LEN..];
        assert_eq!(RailOffer::parse(payload), Ok(offer));
        for cut in 0..payload.len() {
            assert!(RailOffer::parse(&payload[..cut]).is_err(), "{cut}");
        }
        assert!(RailOffer::parse(&[payload, &[0]].concat()).is_err());
        let mut many = payload.to_vec();
        many[JoinRequest::LEN] = 1 + ADDRS_MAX as u8;
        assert!(RailOffer::parse(&many).is_err());
    }

    #[test]
    fn longest_offer_fits_in_a_control_frame() {
        let join = JoinRequest { link: 0, token: [0; TOKEN_LEN] };
        let addrs = vec!["[fe80::1]:1".parse().unwrap(); ADDRS_MAX + 1];
        let encoded = RailOffer { join, addrs }.encode();
        assert!(encoded.len() - FRAME_LEN <= CONTROL_MAX);
        assert!(FrameHeader::parse(encoded.first_chunk().unwrap()).is_ok());
    }
}
