//! Connection messages.
use super::header::{ByteOrder, VERSION};
use ofi_provider::contexts::Contexts;
use ofi_provider::malformed::{Malformed, Parsed};
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// The kinds of connection message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CmType {
    /// A request for a connection.
    Request = 0,
    /// The connection is accepted.
    Response = 1,
    /// The connection is refused.
    Nack = 6,
    /// A request for a connection between contexts of scalable endpoints. The original does not
    /// know this kind and refuses such a connection.
    ContextRequest = 64,
}

/// Bytes of a connection message before the user's data.
pub const CM_LEN: usize = 32;

/// Offset of the byte-order probe in a connection message: a 1 in the sender's byte order.
const CM_PROBE: usize = 24;

/// Offset of the extensions in a connection message, for features beyond upstream's protocol.
/// Upstream sends zeros there and ignores them. A response has extensions only if the request had
/// them, with other bytes, so an echo is not taken for a response.
const CM_EXTENSIONS: usize = 16;

/// Marks at [`CM_EXTENSIONS`] in a request and in a response, followed by one byte with the
/// sender's features.
const REQUEST_MARK: [u8; 7] = *b"ofi-rs?";
const RESPONSE_MARK: [u8; 7] = *b"ofi-rs!";

/// The sender knows atomic operations.
const KNOWS_ATOMICS: u8 = 1;

/// The answer is to a [`CmType::ContextRequest`].
const NAMES_CONTEXTS: u8 = 2;

/// The sender has multicast groups, and takes notices of them.
const KNOWS_MULTICAST: u8 = 4;

/// The sender takes acknowledgements with numbers.
const KNOWS_ACKS: u8 = 8;

/// In a request: the sender may be on the receiver's host, and takes an offer of shared memory. In an
/// answer: its data end with such an offer.
pub(super) const KNOWS_LOCAL: u8 = 16;

/// The sender supports the outcomes of transfers segments in [`PeerFeatures::outcomes`].
const KNOWS_OUTCOMES: u8 = 32;

/// The sender accepts headers with more than [`USUAL_SEGMENTS`] segments.
const KNOWS_SEGMENTS: u8 = 64;

/// In a request: the sender can exchange frames over several sockets. In an answer: the sender
/// exchanges frames from now on ([`MultiRail`](crate::multi_rail::MultiRail)).
const KNOWS_RAILS: u8 = 128;

/// Offset of further features of the sender, in messages with a mark at [`CM_EXTENSIONS`]. Upstream
/// sends zeros there.
const CM_FURTHER: usize = 4;

/// Among the further features: the sender agrees on the end of idle connections
/// ([`StreamOp::Close`](super::StreamOp::Close)).
const KNOWS_CLOSING: u8 = 1;

/// Among the further features of a request: the sender repeats it with the same number after the loss
/// of its socket ([`RequestNumber`]).
const REPEATS_REQUEST: u8 = 2;

/// Among the further features of a request: messages may follow it before the response.
const SENDS_EARLY: u8 = 4;

/// Offset of the [`RequestNumber`] of a [`CmType::Request`], in network order. Upstream sends zeros
/// there.
const CM_NUMBER: usize = 5;

/// Offset of the contexts in a [`CmType::ContextRequest`] and its response, in network order: the
/// connecting peer's transmit context, then the accepting endpoint's receive context.
const CM_CONTEXTS: usize = 8;

/// Offset of a random number, distinguishing the sender's process from earlier and other ones with
/// its process id; only in messages with feature bits.
const CM_INSTANCE: usize = 12;

/// Returns the random number of this process for [`CM_INSTANCE`], never 0.
fn instance() -> u32 {
    static INSTANCE: OnceLock<u32> = OnceLock::new();
    *INSTANCE.get_or_init(|| {
        // The standard library's keys are of the system's randomness.
        (RandomState::new().hash_one(std::process::id()) as u32).max(1)
    })
}

/// Most bytes of user data in a connection message.
pub const CM_DATA_MAX: usize = 256;

/// Bytes of a [`LocalOffer`].
pub const OFFER_LEN: usize = 40;

/// Offer of one end of a link for the shared-memory upgrade, moving the link's bytes through memory
/// from then on ([`ShmUpgrade`](crate::shm_upgrade::ShmUpgrade)).
pub type LocalOffer = [u8; OFFER_LEN];

/// Number of a connection request, repeated with it. It has 56 bits, and is not 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestNumber(u64);

impl RequestNumber {
    /// Encoded length in bytes.
    const LEN: usize = CM_INSTANCE - CM_NUMBER;

    /// Returns the number with these low 56 bits; `None` for 0.
    pub fn new(number: u64) -> Option<Self> {
        let [_, low @ ..] = number.to_be_bytes();
        Self::parse(low)
    }

    fn parse(bytes: [u8; Self::LEN]) -> Option<Self> {
        let [b0, b1, b2, b3, b4, b5, b6] = bytes;
        let number = u64::from_be_bytes([0, b0, b1, b2, b3, b4, b5, b6]);
        (number != 0).then_some(Self(number))
    }

    fn encode(self) -> [u8; Self::LEN] {
        let [_, low @ ..] = self.0.to_be_bytes();
        low
    }
}

/// Features of a peer beyond upstream's protocol.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PeerFeatures {
    /// The sender knows [`StreamOp::Atomic`], and has our byte order.
    pub atomics: bool,
    /// The sender takes notices of multicast groups.
    pub multicast: bool,
    /// The sender accepts numbered acknowledgements. Other peers match acknowledgements with
    /// messages in order, although a message waiting for its receive is acknowledged late.
    pub acks: bool,
    /// The sender may be on the receiver's host and takes a [`LocalOffer`]; an answer has one.
    pub local: bool,
    /// The sender accepts refusals of reads and writes, acknowledges writes even without a request,
    /// accepts one acknowledgement for several transfers, and distinguishes [`MATCH_COMPLETE`] from
    /// [`DELIVERY_COMPLETE`]. To other peers a refusal ends the connection.
    pub outcomes: bool,
    /// The sender accepts headers with up to [`MAX_SEGMENTS`] segments of its memory. Others accept
    /// [`USUAL_SEGMENTS`], and close a connection with more.
    pub segments: bool,
    /// The sender exchanges frames, possibly over several sockets, after the response.
    pub rails: bool,
    /// The sender agrees on the end of idle connections ([`StreamOp::Close`](super::StreamOp::Close)).
    pub closing: bool,
    /// Messages of the sender may follow the request before its response.
    pub early: bool,
}

impl PeerFeatures {
    /// Returns the byte at the end of the extensions, and the byte at [`CM_FURTHER`].
    fn bits(self) -> [u8; 2] {
        let bit = |knows, bit| if knows { bit } else { 0 };
        let first = bit(self.atomics, KNOWS_ATOMICS)
            | bit(self.multicast, KNOWS_MULTICAST)
            | bit(self.acks, KNOWS_ACKS)
            | bit(self.local, KNOWS_LOCAL)
            | bit(self.outcomes, KNOWS_OUTCOMES)
            | bit(self.segments, KNOWS_SEGMENTS)
            | bit(self.rails, KNOWS_RAILS);
        [first, bit(self.closing, KNOWS_CLOSING) | bit(self.early, SENDS_EARLY)]
    }
}

/// Connection message: the first message of a connection, in each direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CmMessage {
    /// Request, acceptance or rejection of a connection.
    pub kind: CmType,
    /// The sender's byte order, relative to ours.
    pub order: ByteOrder,
    /// Features of the sender beyond upstream's protocol.
    pub knows: PeerFeatures,
    /// Contexts of the two ends of the connection.
    pub contexts: Contexts,
    /// The random number of the sender's process; 0 if the message has none.
    pub instance: u32,
    /// Number of a request repeated by its sender after the loss of its socket.
    pub number: Option<RequestNumber>,
    /// User data, passed by the application to fi_connect, fi_accept or fi_reject, or an
    /// [`RdmHello`].
    pub data: Vec<u8>,
    /// Offer after the user data, in a response to a request accepting one.
    pub offer: Option<LocalOffer>,
}

impl CmMessage {
    /// The connection message at the start of `bytes`; `None` while only a part of it is there.
    pub fn first_in(bytes: &[u8]) -> Parsed<Option<Self>> {
        match Self::len_at(bytes)? {
            Some(len) if bytes.len() >= len => Self::parse(&bytes[..len]).map(Some),
            _ => Ok(None),
        }
    }

    /// Encodes a connection message; data beyond [`CM_DATA_MAX`] are cut, an error of the caller. A
    /// request has all local features, a response only those also in the request.
    pub fn encode(kind: CmType, knows: PeerFeatures, data: &[u8]) -> Vec<u8> {
        Self::write(kind, knows.bits(), data)
    }

    fn write(kind: CmType, [extensions, further]: [u8; 2], data: &[u8]) -> Vec<u8> {
        let data = &data[..data.len().min(CM_DATA_MAX)];
        let mut out = vec![0; CM_LEN + data.len()];
        out[0] = VERSION;
        out[1] = kind as u8;
        out[2..4].copy_from_slice(&(data.len() as u16).to_be_bytes());
        if let (Some(mark), true) = (Self::mark(kind), extensions | further != 0) {
            Self::put_extensions(&mut out, mark, [extensions, further]);
        }
        out[CM_PROBE..CM_LEN].copy_from_slice(&1u64.to_ne_bytes());
        out[CM_LEN..].copy_from_slice(data);
        out
    }

    fn put_extensions(out: &mut [u8], mark: [u8; 7], [extensions, further]: [u8; 2]) {
        out[CM_FURTHER] = further;
        out[CM_INSTANCE..CM_EXTENSIONS].copy_from_slice(&instance().to_be_bytes());
        out[CM_EXTENSIONS..CM_PROBE - 1].copy_from_slice(&mark);
        out[CM_PROBE - 1] = extensions;
    }

    /// A request for a connection between these contexts, or the answer to one.
    pub fn encode_for(
        kind: CmType,
        knows: PeerFeatures,
        contexts: Contexts,
        data: &[u8],
    ) -> Vec<u8> {
        if contexts.are_first() {
            return Self::encode(kind, knows, data);
        }
        let kind = if kind == CmType::Request { CmType::ContextRequest } else { kind };
        let [extensions, further] = knows.bits();
        let mut out = Self::write(kind, [extensions | NAMES_CONTEXTS, further], data);
        if Self::mark(kind).is_some() {
            out[CM_CONTEXTS..CM_CONTEXTS + 2].copy_from_slice(&contexts.tx.to_be_bytes());
            out[CM_CONTEXTS + 2..CM_CONTEXTS + 4].copy_from_slice(&contexts.rx.to_be_bytes());
        }
        out
    }

    /// Appends an offer to the data of a response, and sets its feature bit ([`PeerFeatures::local`]).
    pub fn add_offer(answer: &mut Vec<u8>, offer: &LocalOffer) {
        let data = answer.len() - CM_LEN + OFFER_LEN;
        answer[2..4].copy_from_slice(&(data as u16).to_be_bytes());
        answer.extend_from_slice(offer);
    }

    /// Adds a number to an encoded [`CmType::Request`].
    pub fn add_number(request: &mut [u8], number: RequestNumber) {
        debug_assert_eq!(request[1], CmType::Request as u8);
        let bits = [request[CM_PROBE - 1], request[CM_FURTHER] | REPEATS_REQUEST];
        Self::put_extensions(request, REQUEST_MARK, bits);
        request[CM_NUMBER..CM_INSTANCE].copy_from_slice(&number.encode());
    }

    fn mark(kind: CmType) -> Option<[u8; 7]> {
        match kind {
            CmType::Request | CmType::ContextRequest => Some(REQUEST_MARK),
            CmType::Response => Some(RESPONSE_MARK),
            CmType::Nack => None,
        }
    }

    /// Returns the length of the message at the start of `bytes`; `None` if more bytes are needed.
    pub fn len_at(bytes: &[u8]) -> Parsed<Option<usize>> {
        // The first byte identifies unauthenticated peers at once, without waiting for more bytes
        // that may never arrive.
        match bytes.first() {
            None => return Ok(None),
            Some(&VERSION) => {}
            Some(_) => return Err(Malformed("protocol version is not 3")),
        }
        let Some(len) = bytes.get(2..4) else { return Ok(None) };
        // Only answers have room for an offer.
        let more = if bytes[1] == CmType::Response as u8 { OFFER_LEN } else { 0 };
        match u16::from_be_bytes([len[0], len[1]]) as usize {
            len if len <= CM_DATA_MAX + more => Ok(Some(CM_LEN + len)),
            _ => Err(Malformed("too much connection data")),
        }
    }

    /// Parses the message filling all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Parsed<Self> {
        if Self::len_at(bytes)? != Some(bytes.len()) {
            return Err(Malformed("connection message is cut"));
        }
        let kind = match bytes[1] {
            0 => CmType::Request,
            1 => CmType::Response,
            6 => CmType::Nack,
            64 => CmType::ContextRequest,
            _ => return Err(Malformed("unknown connection message")),
        };
        let mut probe = [0; 8];
        probe.copy_from_slice(&bytes[CM_PROBE..CM_LEN]);
        let order = match u64::from_ne_bytes(probe) {
            1 => ByteOrder::Native,
            _ => ByteOrder::Network,
        };
        let [mark @ .., extensions] = &bytes[CM_EXTENSIONS..CM_PROBE] else {
            return Err(Malformed("connection message is cut"));
        };
        let ours = Self::mark(kind).is_some_and(|ours| mark == ours);
        let has_bit = |bit: u8| ours && extensions & bit != 0;
        let knows = PeerFeatures {
            // Elements are not put into another order.
            atomics: has_bit(KNOWS_ATOMICS) && order == ByteOrder::Native,
            multicast: has_bit(KNOWS_MULTICAST),
            acks: has_bit(KNOWS_ACKS),
            // Data of the offer are in this machine's byte order.
            local: has_bit(KNOWS_LOCAL) && order == ByteOrder::Native,
            outcomes: has_bit(KNOWS_OUTCOMES),
            segments: has_bit(KNOWS_SEGMENTS),
            rails: has_bit(KNOWS_RAILS),
            closing: ours && bytes[CM_FURTHER] & KNOWS_CLOSING != 0,
            early: ours && bytes[CM_FURTHER] & SENDS_EARLY != 0,
        };
        let contexts = match bytes[CM_CONTEXTS..CM_CONTEXTS + 4] {
            [t0, t1, r0, r1] if has_bit(NAMES_CONTEXTS) && kind != CmType::Request => {
                Contexts { tx: u16::from_be_bytes([t0, t1]), rx: u16::from_be_bytes([r0, r1]) }
            }
            _ => Contexts::default(),
        };
        if contexts.are_first() && kind == CmType::ContextRequest {
            return Err(Malformed("a request for contexts that names none"));
        }
        let instance = match bytes[CM_INSTANCE..CM_EXTENSIONS] {
            [i0, i1, i2, i3] if ours => u32::from_be_bytes([i0, i1, i2, i3]),
            _ => 0,
        };
        let has_number =
            ours && kind == CmType::Request && bytes[CM_FURTHER] & REPEATS_REQUEST != 0;
        let number = bytes[CM_NUMBER..].first_chunk().filter(|_| has_number);
        let number = number.and_then(|number| RequestNumber::parse(*number));
        let mut data = &bytes[CM_LEN..];
        let mut offer = None;
        if kind == CmType::Response && has_bit(KNOWS_LOCAL) {
            let (before, last) = data.split_last_chunk().ok_or(Malformed("an offer is cut"))?;
            (data, offer) = (before, knows.local.then_some(*last));
        }
        if data.len() > CM_DATA_MAX {
            return Err(Malformed("too much connection data"));
        }
        Ok(Self { kind, order, knows, contexts, instance, number, data: data.to_vec(), offer })
    }
}

/// Connection data of reliable-datagram endpoints: the identity of the connecting peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmHello {
    /// Protocol version: 0 or 1; bit 7 marks an answer.
    pub version: u8,
    /// Feature bits of the sender: [`BEHIND_FIREWALL`]; others are ignored.
    pub features: u8,
    /// Listening port of the connecting peer; with its address it identifies the peer.
    pub port: u16,
    /// The caller's process, to tell a restarted peer; 0 if not known.
    pub pid: u32,
}

/// The version of [`RdmHello`] we speak: from 1 on, messages may wait at their
/// sender.
pub const RDM_VERSION: u8 = 1;

/// Feature of a connecting peer unable to accept connections.
pub const BEHIND_FIREWALL: u8 = 1;

/// Marks the version of an answer.
pub const RDM_ANSWER: u8 = 0x80;

impl RdmHello {
    /// The hello as connection data.
    pub fn encode(&self) -> [u8; 8] {
        let [p0, p1] = self.port.to_be_bytes();
        let [i0, i1, i2, i3] = self.pid.to_be_bytes();
        [self.version, self.features, p0, p1, i0, i1, i2, i3]
    }

    /// Parses a hello from connection data, possibly longer in later versions.
    pub fn parse(data: &[u8]) -> Parsed<Self> {
        match *data {
            [version, features, p0, p1, i0, i1, i2, i3, ..] => Ok(Self {
                version,
                features,
                port: u16::from_be_bytes([p0, p1]),
                pid: u32::from_be_bytes([i0, i1, i2, i3]),
            }),
            _ => Err(Malformed("connection data too short to name the caller")),
        }
    }
}
