//! Wire formats of ofi_rxm: connection data and packet headers.
//!
//! The formats are those of upstream libfabric (control version 4, operation version 3 when
//! connecting and 2 in packets), byte for byte; the tests hold golden bytes. Numbers are in the
//! sender's byte order. Both sides must share it if one of them uses another library; otherwise the
//! receiver reads the other order. The module trusts no input.
use core::ffi::c_int;
use ofi_provider::api::{RemoteSegment, RemoteSegments};
use ofi_provider::contexts::Contexts;
use ofi_provider::error::Error;
pub use ofi_provider::malformed::{Malformed, Parsed};
use std::fmt;

/// Version of the connection data.
pub const CM_VERSION: u8 = 1;
/// Version of the connection data known only to this library: such data start like others, name
/// contexts and a key, and may be in either byte order. A peer with another library rejects them.
pub const OWN_CM_VERSION: u8 = 0x81;
/// Version of the control header.
pub const CTRL_VERSION: u8 = 4;
/// Version of the operations, as connection data has it.
pub const OP_VERSION: u8 = 3;
/// Version of the operation header in packets.
pub const OP_HEADER_VERSION: u8 = 2;

/// Mark in connection data, zero with other libraries: the sender has this library, with rendezvous
/// of messages of no bytes. A request has it in the uppermost byte of the connection's number,
/// above the process number. Others return this number unchanged, but libfabric 2.7 uses all bytes
/// formerly padding. An acceptance has it in a byte of padding.
const OURS: u8 = 0x68;
/// Mark of this library, for a sender accepting multicast notices.
const KNOWS_MULTICAST: u8 = 0x67;

/// Returns the mark of this library with its features.
fn kin(ours: bool, multicast: bool) -> u8 {
    match (multicast, ours) {
        (true, _) => KNOWS_MULTICAST,
        (false, true) => OURS,
        (false, false) => 0,
    }
}

/// Position of the mark in the connection number of a request.
const KIN_SHIFT: u32 = 56;

/// Mark in connection numbers, in the half of the process: the sender, of this library, agrees on the
/// end of idle connections ([`PacketKind::Close`]). Earlier releases of this library take it for a bit
/// of the process number, equal in all requests and acceptances of a process. Process
/// numbers have 22 bits.
const CLOSES: u64 = 1 << 55;

/// Returns the connection number sent by a library: a sender of this library (`ours`) adds its mark for
/// the end of idle connections, all bits of another library's number belong to the number.
fn add_closes(conn_id: u64, ours: bool, closes: bool) -> u64 {
    match ours {
        true => conn_id & !CLOSES | if closes { CLOSES } else { 0 },
        false => conn_id,
    }
}

/// Splits a received connection number into the number and the mark for the end of idle connections.
fn split_closes(conn_id: u64, ours: bool) -> (u64, bool) {
    match ours {
        true => (conn_id & !CLOSES, conn_id & CLOSES != 0),
        false => (conn_id, false),
    }
}

/// Returns two flags: the sender has this library; it accepts multicast notices.
fn read_kin(byte: u8) -> (bool, bool) {
    (matches!(byte, OURS | KNOWS_MULTICAST), byte == KNOWS_MULTICAST)
}

/// Bytes of both headers of a packet.
pub const HEADER_LEN: usize = 64;
/// Bytes of the control header, the first of the two.
const CTRL_LEN: usize = 32;
/// Bytes of connection data.
pub const CALL_LEN: usize = 24;
/// Bytes of connection data of [`OWN_CM_VERSION`], before the key.
pub const OWN_CALL_LEN: usize = CALL_LEN + 5;
/// Bytes of the longest authorization key; a core's connection data may be short.
pub const MAX_KEY_LEN: usize = 24;
/// Bytes of the data of an acceptance.
pub const ACCEPT_LEN: usize = 16;
/// Bytes of the payload of a rendezvous: four places and their count.
pub const SEGMENTS_LEN: usize = 104;

/// Bytes of the places of an atomic operation, before its elements.
pub const IOCS_LEN: usize = 96;
/// Bytes of the answer to an atomic operation, before the former values.
pub const ANSWER_LEN: usize = 8;

/// The packet has remote CQ data (FI_REMOTE_CQ_DATA as the API has it).
pub const REMOTE_CQ_DATA: u32 = 1 << 17;

#[cfg(target_endian = "little")]
const ENDIANNESS: u8 = 2;
#[cfg(target_endian = "big")]
const ENDIANNESS: u8 = 1;

/// Numbers in bytes, in our order or in the other.
#[derive(Clone, Copy)]
struct NumberReader<'a> {
    bytes: &'a [u8],
    swapped: bool,
}

impl NumberReader<'_> {
    #[inline]
    fn u16(self, at: usize) -> u16 {
        let value = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]);
        if self.swapped { value.swap_bytes() } else { value }
    }

    /// Returns the bytes of a number, known to be present.
    #[inline(always)]
    fn of<const LEN: usize>(self, at: usize) -> [u8; LEN] {
        *self.bytes[at..].first_chunk().expect("the bytes of a number")
    }

    #[inline(always)]
    fn u32(self, at: usize) -> u32 {
        let value = u32::from_ne_bytes(self.of(at));
        if self.swapped { value.swap_bytes() } else { value }
    }

    #[inline(always)]
    fn u64(self, at: usize) -> u64 {
        let value = u64::from_ne_bytes(self.of(at));
        if self.swapped { value.swap_bytes() } else { value }
    }
}

/// Returns true if this byte of connection data names the non-local byte order; none if it names no
/// order.
fn other_order(byte: u8) -> Option<bool> {
    match byte {
        1 | 2 => Some(byte != ENDIANNESS),
        _ => None,
    }
}

/// Credit-based flow control: the sides of a connection count each other's receive buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowControl {
    /// The peer is old and does not say.
    Unstated = 0,
    /// Credits hold messages back.
    On = 1,
    /// No credits: the core provider holds messages back by itself.
    Off = 2,
}

impl FlowControl {
    fn read(byte: u8) -> Self {
        match byte {
            1 => Self::On,
            2 => Self::Off,
            _ => Self::Unstated,
        }
    }
}

/// The connection data of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RxmConnReq {
    /// Listening port of the connecting peer; with the peer's address it is its name.
    pub port: u16,
    /// The sender requests credits.
    pub flow_control: FlowControl,
    /// Bytes of the largest eager message; the same on both sides.
    pub eager_limit: u32,
    /// Number of receive buffers of the sender.
    pub rx_size: u32,
    /// Identifier of the connection in packets to the connecting peer.
    pub conn_id: u64,
    /// Index of the connection to the peer; 0 for the first.
    pub index: u8,
    /// Contexts of the two ends of the connection.
    pub contexts: Contexts,
    /// The authorization key; empty if there is none.
    pub key: Vec<u8>,
    /// The data are in the version of this library, required or not.
    pub own: bool,
    /// The caller's byte order is not ours.
    pub swapped: bool,
    /// The peer has a release of this library declaring itself.
    pub ours: bool,
    /// The peer takes notices of multicast groups.
    pub multicast: bool,
    /// The peer, of this library, agrees on the end of idle connections.
    pub closes: bool,
}

/// Reason for rejecting a connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadCall {
    /// The data make no sense, or are of another version.
    Malformed(&'static str),
    /// The byte orders differ; the call would be understood in [`OWN_CM_VERSION`].
    OtherOrder,
}

impl fmt::Display for BadCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed(why) => why,
            Self::OtherOrder => "a peer of the other byte order",
        })
    }
}

impl RxmConnReq {
    /// Returns true if the request is, or has to be, in this library's version of connection data.
    pub fn is_own(&self) -> bool {
        self.own || !self.contexts.are_first() || !self.key.is_empty()
    }

    /// The call as connection data.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = vec![0; CALL_LEN];
        bytes[..4].copy_from_slice(&[CM_VERSION, ENDIANNESS, CTRL_VERSION, OP_VERSION]);
        bytes[4..6].copy_from_slice(&self.port.to_ne_bytes());
        bytes[6] = self.flow_control as u8;
        bytes[7] = self.index;
        bytes[8..12].copy_from_slice(&self.eager_limit.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.rx_size.to_ne_bytes());
        let kin = u64::from(kin(self.ours, self.multicast)) << KIN_SHIFT;
        let conn_id = add_closes(self.conn_id, self.ours, self.closes) & !(0xff << KIN_SHIFT) | kin;
        bytes[16..].copy_from_slice(&conn_id.to_ne_bytes());
        if self.is_own() {
            bytes[0] = OWN_CM_VERSION;
            bytes.extend_from_slice(&self.contexts.tx.to_ne_bytes());
            bytes.extend_from_slice(&self.contexts.rx.to_ne_bytes());
            let key = &self.key[..self.key.len().min(MAX_KEY_LEN)];
            bytes.push(key.len() as u8);
            bytes.extend_from_slice(key);
        }
        bytes
    }

    /// Reads a call from connection data.
    pub fn read(bytes: &[u8]) -> Result<Self, BadCall> {
        let bad = |why| Err(BadCall::Malformed(why));
        // A core provider may pad the data to what it can carry.
        if bytes.len() < CALL_LEN {
            return bad("connection data that are too short");
        }
        let Some(swapped) = other_order(bytes[1]) else {
            return bad("connection data of no byte order");
        };
        if bytes[2] != CTRL_VERSION || bytes[3] != OP_VERSION {
            return bad("a peer of another protocol version");
        }
        let numbers = NumberReader { bytes, swapped };
        let (mut contexts, mut key) = (Contexts::default(), &[][..]);
        match bytes[0] {
            CM_VERSION if swapped => return Err(BadCall::OtherOrder),
            CM_VERSION => {}
            OWN_CM_VERSION if bytes.len() >= OWN_CALL_LEN => {
                contexts = Contexts { tx: numbers.u16(CALL_LEN), rx: numbers.u16(CALL_LEN + 2) };
                let len = usize::from(bytes[OWN_CALL_LEN - 1]);
                let bytes = bytes[OWN_CALL_LEN..].get(..len).filter(|_| len <= MAX_KEY_LEN);
                let Some(bytes) = bytes else {
                    return bad("a key that is not as long as it says, or too long");
                };
                key = bytes;
            }
            _ => return bad("connection data of another version"),
        }
        let conn_id = numbers.u64(16);
        let (ours, multicast) = read_kin((conn_id >> KIN_SHIFT) as u8);
        let (conn_id, closes) = split_closes(conn_id & !(0xff << KIN_SHIFT), ours);
        Ok(Self {
            port: numbers.u16(4),
            flow_control: FlowControl::read(bytes[6]),
            eager_limit: numbers.u32(8),
            rx_size: numbers.u32(12),
            conn_id,
            index: bytes[7],
            contexts,
            key: key.to_vec(),
            own: bytes[0] == OWN_CM_VERSION,
            swapped,
            ours,
            multicast,
            closes,
        })
    }
}

/// The connection data of an acceptance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Identifier of the connection in packets to the accepting side.
    pub conn_id: u64,
    /// Number of receive buffers of the sender.
    pub rx_size: u32,
    /// The sender requests credits.
    pub flow_control: FlowControl,
    /// The byte orders of the two sides differ.
    pub swapped: bool,
    /// The peer has a release of this library declaring itself.
    pub ours: bool,
    /// The peer accepts multicast notices, and the connecting side declared the same.
    pub multicast: bool,
    /// The peer, of this library, agrees on the end of idle connections.
    pub closes: bool,
}

impl Accept {
    /// The acceptance as connection data, in answer to a call in this library's version if `own`.
    pub fn write(&self, own: bool) -> [u8; ACCEPT_LEN] {
        let mut bytes = [0; ACCEPT_LEN];
        let conn_id = add_closes(self.conn_id, self.ours, self.closes);
        bytes[..8].copy_from_slice(&conn_id.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.rx_size.to_ne_bytes());
        bytes[12] = self.flow_control as u8;
        if own {
            bytes[13] = ENDIANNESS;
        }
        bytes[14] = kin(self.ours, self.multicast);
        bytes
    }

    /// Reads an acceptance from connection data, in answer to a call in this library's version if
    /// `own`.
    pub fn read(bytes: &[u8], own: bool) -> Parsed<Self> {
        let order = bytes.get(13).filter(|_| own).copied();
        let swapped = order.and_then(other_order).unwrap_or(false);
        let numbers = NumberReader { bytes, swapped };
        // Peers before flow control end after the size.
        if bytes.len() < ACCEPT_LEN - 4 {
            return Err(Malformed("an acceptance that is too short"));
        }
        let (ours, multicast) = read_kin(bytes.get(14).copied().unwrap_or(0));
        let (conn_id, closes) = split_closes(numbers.u64(0), ours);
        Ok(Self {
            conn_id,
            rx_size: numbers.u32(8),
            flow_control: FlowControl::read(bytes.get(12).copied().unwrap_or(0)),
            swapped,
            ours,
            multicast,
            closes,
        })
    }
}

/// Reject reason of a connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RejectReason {
    /// No reject reason, or an unknown one.
    Unspecified = 0,
    /// The two endpoints do not fit together.
    Refused = 1,
    /// There is a connection, or the called side is calling itself.
    Already = 2,
    /// The byte orders differ; a call in [`OWN_CM_VERSION`] would do.
    OtherOrder = 0x81,
    /// The authorization keys differ. Sent only in response to a connection request with
    /// [`OWN_CM_VERSION`].
    OtherKey = 0x82,
}

impl RejectReason {
    /// Returns the reject reason for an unacceptable request.
    pub fn of(why: BadCall) -> Self {
        match why {
            BadCall::Malformed(_) => Self::Refused,
            BadCall::OtherOrder => Self::OtherOrder,
        }
    }

    /// Encodes the rejection as connection data; the part unknown to other libraries follows the
    /// known part.
    pub fn write(self) -> Vec<u8> {
        match self {
            Self::OtherOrder | Self::OtherKey => {
                vec![CM_VERSION, Self::Refused as u8, self as u8]
            }
            _ => vec![CM_VERSION, self as u8],
        }
    }

    /// Reads a refusal from connection data; none if it does not come from a peer of this provider.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [CM_VERSION, 1, 0x81, ..] => Some(Self::OtherOrder),
            [CM_VERSION, 1, 0x82, ..] => Some(Self::OtherKey),
            [CM_VERSION, 1, ..] => Some(Self::Refused),
            [CM_VERSION, 2, ..] => Some(Self::Already),
            [CM_VERSION, _, ..] => Some(Self::Unspecified),
            _ => None,
        }
    }
}

/// The kinds of packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PacketKind {
    /// A whole message.
    Eager = 0,
    /// A segment of a message.
    Segment = 1,
    /// RTS of a message waiting at its sender.
    RndvRequest = 2,
    /// The message announced was read.
    RndvReadDone = 3,
    /// An atomic operation.
    Atomic = 4,
    /// The result of an atomic operation.
    AtomicResponse = 5,
    /// Receive buffers are free again.
    Credit = 6,
    /// Target addresses for the write of an announced message.
    RndvWriteTo = 7,
    /// The message is written to the receiver's memory.
    RndvWriteDone = 8,
    /// Step of the agreement on the end of an idle connection, between peers of this library
    /// ([`CloseStep`]).
    Close = 0x80,
}

/// Step of the agreement on the end of an idle connection. The packet has the number of the request
/// in its message identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseStep {
    /// The sender has nothing in flight, and asks to close the connection.
    Request = 1,
    /// The sender has nothing in flight either, and sends nothing until the end of the connection.
    Agree = 2,
    /// The sender uses the connection.
    Refuse = 3,
    /// The sender of the request has used the connection since, and does not close it.
    Cancel = 4,
}

impl PacketKind {
    fn read(byte: u8) -> Parsed<Self> {
        Ok(match byte {
            0 => Self::Eager,
            1 => Self::Segment,
            2 => Self::RndvRequest,
            3 => Self::RndvReadDone,
            4 => Self::Atomic,
            5 => Self::AtomicResponse,
            6 => Self::Credit,
            7 => Self::RndvWriteTo,
            8 => Self::RndvWriteDone,
            0x80 => Self::Close,
            _ => return Err(Malformed("a packet of unknown kind")),
        })
    }
}

/// The place of a segment in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentPart {
    /// The first segment of several.
    First = 1,
    /// Neither first nor last.
    Middle = 2,
    /// The last segment.
    Last = 3,
}

/// The operation of an untagged message.
pub const OP_MSG: u8 = 0;
/// A tagged message.
pub const OP_TAGGED: u8 = 1;
/// Atomic operation without a result.
pub const OP_ATOMIC: u8 = 6;
/// Atomic operation returning the former values.
pub const OP_ATOMIC_FETCH: u8 = 7;
/// Atomic operation with a comparison, returning the former values.
pub const OP_ATOMIC_COMPARE: u8 = 8;

/// Kind of an atomic operation, in the header field of a message's tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicHeader {
    /// enum fi_datatype.
    pub datatype: u8,
    /// enum fi_op.
    pub op: u8,
    /// Places in the target's memory.
    pub segments: u8,
}

impl AtomicHeader {
    /// The kind as a header's tag.
    pub fn to_tag(self) -> u64 {
        u64::from_ne_bytes([self.datatype, self.op, self.segments, 0, 0, 0, 0, 0])
    }

    /// Reads the kind from a header's tag.
    pub fn from_tag(tag: u64) -> Self {
        let [datatype, op, segments, ..] = tag.to_ne_bytes();
        Self { datatype, op, segments }
    }
}

/// The headers of a packet, as far as any kind of packet uses their fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxmHeader {
    /// The packet's kind.
    pub kind: PacketKind,
    /// Bytes of this segment.
    pub seg_size: u16,
    /// Number of this segment, from 0 on.
    pub seg_no: u32,
    /// Receiver's identifier of the connection.
    pub conn_id: u64,
    /// Names the transfer.
    pub msg_id: u64,
    /// Number depending on the kind of packet.
    pub ctrl_data: u64,
    /// The operation ([`OP_MSG`] …).
    pub op: u8,
    /// [`REMOTE_CQ_DATA`].
    pub flags: u32,
    /// Bytes of the message in all.
    pub size: u64,
    /// Remote CQ data.
    pub data: u64,
    /// The tag.
    pub tag: u64,
}

/// Header of a whole message, as [`RxmHeader::parse_fast`] finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxmFast {
    /// Receiver's identifier of the connection.
    pub conn_id: u64,
    /// The message is tagged.
    pub tagged: bool,
    /// The tag of a tagged message, or 0.
    pub tag: u64,
}

impl RxmHeader {
    /// A header of this kind on this connection, all else zero.
    pub fn of(kind: PacketKind, conn_id: u64) -> Self {
        Self {
            kind,
            seg_size: 0,
            seg_no: 0,
            conn_id,
            msg_id: 0,
            ctrl_data: 0,
            op: OP_MSG,
            flags: 0,
            size: 0,
            data: 0,
            tag: 0,
        }
    }

    /// Writes the header to the start of `bytes`.
    #[inline]
    pub fn write(&self, bytes: &mut [u8]) {
        self.write_to(bytes.first_chunk_mut().expect("packets have room for a header"));
    }

    /// Writes the header to the start of a packet, known to have the space.
    #[inline(always)]
    pub fn write_to(&self, header: &mut [u8; HEADER_LEN]) {
        let [s0, s1] = self.seg_size.to_ne_bytes();
        let [n0, n1, n2, n3] = self.seg_no.to_ne_bytes();
        let [f0, f1, f2, f3] = self.flags.to_ne_bytes();
        let words = [
            [CTRL_VERSION, self.kind as u8, s0, s1, n0, n1, n2, n3],
            self.conn_id.to_ne_bytes(),
            self.msg_id.to_ne_bytes(),
            self.ctrl_data.to_ne_bytes(),
            [OP_HEADER_VERSION, 0, self.op, 0, f0, f1, f2, f3],
            self.size.to_ne_bytes(),
            self.data.to_ne_bytes(),
            self.tag.to_ne_bytes(),
        ];
        // Word by word, not as bytes to copy: that would be a call.
        for (to, word) in header.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word);
        }
    }

    /// Reads the header at the start of a packet, and returns the bytes after it.
    ///
    /// Fields not used by a kind are ignored: senders leave previous contents in them.
    #[inline]
    pub fn read(packet: &[u8]) -> Parsed<(Self, &[u8])> {
        Self::read_as(packet, false)
    }

    /// Reads a packet from a peer of the other byte order.
    #[cold]
    pub fn read_swapped(packet: &[u8]) -> Parsed<(Self, &[u8])> {
        Self::read_as(packet, true)
    }

    #[inline(always)]
    fn read_as(packet: &[u8], swapped: bool) -> Parsed<(Self, &[u8])> {
        if packet.len() < HEADER_LEN {
            return Self::read_short(packet, swapped);
        }
        let (bytes, payload) = packet.split_at(HEADER_LEN);
        if bytes[0] != CTRL_VERSION {
            return Err(Malformed("a packet of another version"));
        }
        let kind = PacketKind::read(bytes[1])?;
        if kind != PacketKind::Credit && bytes[32] != OP_HEADER_VERSION {
            return Err(Malformed("an operation of another version"));
        }
        let numbers = NumberReader { bytes, swapped };
        // The tag of an atomic operation is bytes, and no number.
        let atomic = matches!(kind, PacketKind::Atomic | PacketKind::AtomicResponse);
        let tag = NumberReader { bytes, swapped: swapped && !atomic };
        let header = Self {
            kind,
            seg_size: numbers.u16(2),
            seg_no: numbers.u32(4),
            conn_id: numbers.u64(8),
            msg_id: numbers.u64(16),
            ctrl_data: numbers.u64(24),
            op: bytes[34],
            flags: numbers.u32(36),
            size: numbers.u64(40),
            data: numbers.u64(48),
            tag: tag.u64(56),
        };
        match kind {
            PacketKind::Eager if header.size != payload.len() as u64 => {
                Err(Malformed("a message that is not as long as it says"))
            }
            PacketKind::Segment if usize::from(header.seg_size) != payload.len() => {
                Err(Malformed("a segment that is not as long as it says"))
            }
            PacketKind::Segment if header.part().is_none() => {
                Err(Malformed("a segment of no message"))
            }
            PacketKind::Eager | PacketKind::Segment | PacketKind::RndvRequest
                if header.op > OP_TAGGED =>
            {
                Err(Malformed("a message that is no message"))
            }
            _ => Ok((header, payload)),
        }
    }

    /// Returns the message of a packet with a whole message without special attributes, with `len`
    /// bytes after the header; none for any other packet.
    #[inline(always)]
    pub fn parse_fast(head: &[u8; HEADER_LEN], len: usize) -> Option<RxmFast> {
        let numbers = NumberReader { bytes: head, swapped: false };
        // Version, a byte of no meaning, operation, another, and the flags, of which there are none.
        const MEANT: u64 = u64::from_ne_bytes([255, 0, 255, 0, 255, 255, 255, 255]);
        const MSG: u64 = u64::from_ne_bytes([OP_HEADER_VERSION, 0, OP_MSG, 0, 0, 0, 0, 0]);
        const TAGGED: u64 = u64::from_ne_bytes([OP_HEADER_VERSION, 0, OP_TAGGED, 0, 0, 0, 0, 0]);
        let kind = numbers.u64(32) & MEANT;
        let tagged = kind == TAGGED;
        if head[..2] != [CTRL_VERSION, PacketKind::Eager as u8]
            || !(tagged || kind == MSG)
            || numbers.u64(40) != len as u64
        {
            return None;
        }
        let tag = if tagged { numbers.u64(56) } else { 0 };
        Some(RxmFast { conn_id: numbers.u64(8), tagged, tag })
    }

    /// Returns the connection identifier of any packet.
    pub fn conn_id(packet: &[u8]) -> Option<u64> {
        packet.get(8..16)?.try_into().map(u64::from_ne_bytes).ok()
    }

    /// Reads the header of a credit packet, possibly without its second half.
    #[cold]
    fn read_short(packet: &[u8], swapped: bool) -> Parsed<(Self, &[u8])> {
        if packet.len() < CTRL_LEN || PacketKind::read(packet[1]) != Ok(PacketKind::Credit) {
            return Err(Malformed("a packet shorter than its header"));
        }
        if packet[0] != CTRL_VERSION {
            return Err(Malformed("a packet of another version"));
        }
        let numbers = NumberReader { bytes: packet, swapped };
        let header = Self {
            conn_id: numbers.u64(8),
            ctrl_data: numbers.u64(24),
            ..Self::of(PacketKind::Credit, 0)
        };
        Ok((header, &[]))
    }

    /// Returns true if a packet concerns a transfer in progress, and carries no message.
    #[inline]
    pub fn is_control(packet: &[u8]) -> bool {
        let kind = packet.get(1).map_or(Err(Malformed("")), |kind| PacketKind::read(*kind));
        !matches!(
            kind,
            Ok(PacketKind::Eager
                | PacketKind::Segment
                | PacketKind::RndvRequest
                | PacketKind::Atomic)
        )
    }

    /// The segment's place in its message.
    pub fn part(&self) -> Option<SegmentPart> {
        match self.ctrl_data & 3 {
            1 => Some(SegmentPart::First),
            2 => Some(SegmentPart::Middle),
            3 => Some(SegmentPart::Last),
            _ => None,
        }
    }

    /// A packet reporting the end of the read of an announced message, or its failure. Only this
    /// library looks at the error.
    pub fn read_done(msg_id: u64, error: Option<Error>) -> Self {
        let header = Self::of(PacketKind::RndvReadDone, 0);
        let code = error.map_or(0, |error| error.code().unsigned_abs());
        Self { msg_id, ctrl_data: code.into(), ..header }
    }

    /// Returns the code of the failed read reported by such a packet; none for a complete one.
    pub fn fetch_error(&self) -> Option<c_int> {
        c_int::try_from(self.ctrl_data).ok().filter(|code| *code > 0)
    }

    /// A packet with a step of the agreement on the end of a connection.
    pub fn of_close(step: CloseStep, number: u64) -> Self {
        let header = Self::of(PacketKind::Close, 0);
        Self { msg_id: number, ctrl_data: step as u64, ..header }
    }

    /// The step of such a packet, if it has one.
    pub fn close_step(&self) -> Option<CloseStep> {
        match self.ctrl_data {
            1 => Some(CloseStep::Request),
            2 => Some(CloseStep::Agree),
            3 => Some(CloseStep::Refuse),
            4 => Some(CloseStep::Cancel),
            _ => None,
        }
    }

    /// Returns true if the message is tagged.
    #[inline]
    pub fn is_tagged(&self) -> bool {
        self.op == OP_TAGGED
    }

    /// The message's remote CQ data, if it has any.
    #[inline]
    pub fn cq_data(&self) -> Option<u64> {
        (self.flags & REMOTE_CQ_DATA != 0).then_some(self.data)
    }
}

/// Writes the payload of a rendezvous.
pub fn write_segments(segments: &RemoteSegments, bytes: &mut [u8]) {
    let bytes = &mut bytes[..SEGMENTS_LEN];
    bytes.fill(0);
    for (segment, bytes) in segments.as_slice().iter().zip(bytes.chunks_exact_mut(24)) {
        bytes[..8].copy_from_slice(&segment.addr.to_ne_bytes());
        bytes[8..16].copy_from_slice(&segment.len.to_ne_bytes());
        bytes[16..].copy_from_slice(&segment.key.to_ne_bytes());
    }
    bytes[96] = segments.as_slice().len() as u8;
}

/// The payload of a rendezvous, from a peer of the other byte order if it is
/// `swapped`.
pub fn read_segments(bytes: &[u8], swapped: bool) -> Parsed<RemoteSegments> {
    let Some(bytes) = bytes.get(..SEGMENTS_LEN) else {
        return Err(Malformed("a rendezvous that is too short"));
    };
    let mut segments = RemoteSegments::EMPTY;
    for bytes in bytes[..96].chunks_exact(24).take(usize::from(bytes[96])) {
        let numbers = NumberReader { bytes, swapped };
        let (addr, len, key) = (numbers.u64(0), numbers.u64(8), numbers.u64(16));
        // There is room for all places that a payload can have.
        let _ = segments.push(RemoteSegment { addr, len, key });
    }
    if segments.as_slice().len() != usize::from(bytes[96]) || segments.total().is_err() {
        return Err(Malformed("a rendezvous whose places do not add up"));
    }
    Ok(segments)
}

/// Writes the connection's identifier into an otherwise complete packet header.
pub fn name_conn(packet: &mut [u8], conn_id: u64) {
    packet[8..16].copy_from_slice(&conn_id.to_ne_bytes());
}

/// Writes the places of an atomic operation; lengths are numbers of elements.
pub fn write_iocs(segments: &RemoteSegments, bytes: &mut [u8]) {
    let mut whole = [0; SEGMENTS_LEN];
    write_segments(segments, &mut whole);
    bytes[..IOCS_LEN].copy_from_slice(&whole[..IOCS_LEN]);
}

/// Reads the `count` remote segments of an atomic operation, and returns the elements after them.
pub fn read_iocs(payload: &[u8], count: u8) -> Parsed<(RemoteSegments, &[u8])> {
    if payload.len() < IOCS_LEN {
        return Err(Malformed("an atomic operation that is too short"));
    }
    let (iocs, elements) = payload.split_at(IOCS_LEN);
    let mut whole = [0; SEGMENTS_LEN];
    whole[..IOCS_LEN].copy_from_slice(iocs);
    whole[IOCS_LEN] = count;
    Ok((read_segments(&whole, false)?, elements))
}

/// Writes the start of the response to an atomic operation: 0 or an error code, and the number of
/// bytes following. Both are in network order.
pub fn write_answer(status: i32, len: u32, bytes: &mut [u8]) {
    bytes[..4].copy_from_slice(&status.to_be_bytes());
    bytes[4..ANSWER_LEN].copy_from_slice(&len.to_be_bytes());
}

/// Reads the answer to an atomic operation: the status, and the former values.
pub fn read_answer(payload: &[u8]) -> Parsed<(i32, &[u8])> {
    if payload.len() < ANSWER_LEN {
        return Err(Malformed("an answer that is too short"));
    }
    let (head, result) = payload.split_at(ANSWER_LEN);
    let status = i32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let len = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    let result = usize::try_from(len).ok().and_then(|len| result.get(..len));
    Ok((status, result.ok_or(Malformed("an answer shorter than it says"))?))
}

#[cfg(test)]
#[path = "wire/tests.rs"]
mod tests;
