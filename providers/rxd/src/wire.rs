//! Packet formats: those of upstream's protocol 2, in the byte order of the host.
//!
//! Some extensions are unknown to upstream libfabric, and invisible to it. After the address in an
//! RTS, where upstream has zeros, and after the end of a CTS, a peer declares this library and
//! identifies the current handshake ([`Hello`]). For such a peer an ACK also reports the packets
//! received after the expected one, and the number of packets taken but not acknowledged. A packet
//! with free space has the ACK after its data ([`PiggybackAck`]).
use ofi_provider::api::{RemoteSegment, RemoteSegments};
pub use ofi_provider::malformed::{Malformed, Parsed};

fn malformed<T>(why: &'static str) -> Parsed<T> {
    Err(Malformed(why))
}

/// The version of the protocol.
pub const VERSION: u8 = 2;

/// Length of the header common to all packets.
pub const BASE_LEN: usize = 16;
/// Length of an RTS.
pub const RTS_LEN: usize = 88;
/// Length of a CTS in bytes, without HELLO.
pub const CTS_LEN: usize = 32;
/// Length of an ACK, and of the header before the data in a data packet.
pub const DATA_HEAD: usize = 32;
/// Size of the sender's address in an RTS.
pub const SOURCE_LEN: usize = 64;
/// Bytes before the operands of an atomic operation with a tag's, CQ data's and all other headers.
pub const ATOMIC_HEAD: usize = BASE_LEN + 8 + SEGMENTS_LEN + MAX_SEGMENTS * SEGMENT_LEN + 8;
/// The longest header of an operation, without the base.
pub const MAX_HEAD: usize = 8 + ATOMIC_HEAD - BASE_LEN;
/// Maximum remote segments named by an operation.
pub const MAX_SEGMENTS: usize = 4;

const SEGMENTS_LEN: usize = 24;
const SEGMENT_LEN: usize = 24;

/// Position of the HELLO in an RTS, and its first bytes.
const HELLO_AT: usize = BASE_LEN + 8 + SOURCE_LEN - Hello::LEN;
const HELLO_MARK: u64 = u64::from_le_bytes(*b"ofi-rxd\x01");

/// Types of packets.
pub const MSG: u8 = 0;
/// A tagged message.
pub const TAGGED: u8 = 1;
/// A request to read memory.
pub const READ_REQ: u8 = 2;
/// A write to memory.
pub const WRITE: u8 = 4;
/// Atomic operation without a response.
pub const ATOMIC: u8 = 6;
/// Atomic operation with the former values in the response.
pub const ATOMIC_FETCH: u8 = 7;
/// A compare-and-swap.
pub const ATOMIC_COMPARE: u8 = 8;
/// RTS: request of a handshake.
pub const RTS: u8 = 9;
/// The answer to an RTS.
pub const CTS: u8 = 10;
/// Acknowledgement of received packets.
pub const ACK: u8 = 11;
/// More data of an operation.
pub const DATA: u8 = 12;
/// The answer to a read or a fetching atomic operation.
pub const DATA_READ: u8 = 13;
/// Nothing.
pub const NO_OP: u8 = 14;
/// Refusal of an operation by the target: only between peers of this library.
pub const REJECT_REASON: u8 = 64;
/// A message with [`DELIVER`] has met its receive: between peers of this library only.
pub const DELIVERED: u8 = 65;

/// Flags of a packet: CQ data follow.
pub const WITH_CQ_DATA: u16 = 1;
/// The sender does not wait for the end of the operation.
pub const NO_TX_COMPLETION: u16 = 2;
/// The application got its buffer back at once.
pub const INJECTED: u16 = 8;
/// A tag follows.
pub const WITH_TAG: u16 = 16;
/// The packet is the whole operation, and has no header of segments.
pub const INLINE: u16 = 32;

/// The sender waits until the message has met its receive: between peers of this library only.
pub const DELIVER: u16 = 1 << 8;
/// The packet ends with an acknowledgement ([`PiggybackAck`]). In an RTS and a CTS with a HELLO,
/// the sender accepts such packets: between peers of this library only.
pub const CARRIES: u16 = 1 << 9;

/// Header common to all packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxdBase {
    /// The type.
    pub kind: u8,
    /// The flags.
    pub flags: u16,
    /// The receiver's index of the sender.
    pub peer: u32,
    /// The sequence number.
    pub seq: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

impl RxdBase {
    /// Reads the header.
    #[inline]
    pub fn read(packet: &[u8]) -> Parsed<Self> {
        if packet.len() < BASE_LEN {
            return malformed("a packet shorter than its header");
        }
        Ok(Self {
            kind: packet[1],
            flags: u16::from_ne_bytes([packet[2], packet[3]]),
            peer: u32_at(packet, 4),
            seq: u64_at(packet, 8),
        })
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, packet: &mut [u8]) {
        packet[0] = VERSION;
        packet[1] = self.kind;
        packet[2..4].copy_from_slice(&self.flags.to_ne_bytes());
        put32(packet, 4, self.peer);
        put64(packet, 8, self.seq);
    }

    /// Returns true if the packet has a sequence number.
    #[inline]
    pub fn is_in_sequence(&self) -> bool {
        !matches!(self.kind, RTS | CTS | ACK)
    }
}

/// Handshake data between peers of this library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Distinguishes the handshake from earlier ones of the same address.
    pub nonce: u64,
    /// The peer accepts acknowledgements after the data of other packets: version 1.0.0 of this
    /// library does not.
    pub carries: bool,
}

impl Hello {
    /// Length of a HELLO in bytes.
    pub const LEN: usize = 16;

    /// Returns the HELLO of this library.
    pub fn own(nonce: u64) -> Self {
        Self { nonce, carries: true }
    }

    /// Parses a HELLO of a packet with these flags.
    fn read(flags: u16, bytes: &[u8]) -> Option<Self> {
        let carries = flags & CARRIES != 0;
        (bytes.len() >= Self::LEN && u64_at(bytes, 0) == HELLO_MARK)
            .then(|| Self { nonce: u64_at(bytes, 8), carries })
    }

    fn flags(self) -> u16 {
        if self.carries { CARRIES } else { 0 }
    }

    fn write(self, bytes: &mut [u8]) {
        put64(bytes, 0, HELLO_MARK);
        put64(bytes, 8, self.nonce);
    }
}

/// Request of a handshake (RTS).
#[derive(Clone, Copy, Debug)]
pub struct Rts<'a> {
    /// The sender's index for the receiver.
    pub index: u64,
    /// The sender's address, and zeros.
    pub source: &'a [u8],
    /// Present if the peer has this library.
    pub hello: Option<Hello>,
}

impl<'a> Rts<'a> {
    /// Reads the packet behind its header.
    pub fn read(packet: &'a [u8]) -> Parsed<Self> {
        if packet.len() < RTS_LEN {
            return malformed("an RTS that is too short");
        }
        if packet[0] != VERSION {
            return malformed("an RTS of another version");
        }
        let flags = RxdBase::read(packet)?.flags;
        let hello = Hello::read(flags, &packet[HELLO_AT..]);
        let end = if hello.is_some() { HELLO_AT } else { RTS_LEN };
        Ok(Self { index: u64_at(packet, BASE_LEN), source: &packet[BASE_LEN + 8..end], hello })
    }

    /// Encodes the packet. An address exceeding its space is cut.
    pub fn packet(index: u64, source: &[u8], hello: Hello) -> [u8; RTS_LEN] {
        let mut packet = [0; RTS_LEN];
        RxdBase { kind: RTS, flags: hello.flags(), peer: 0, seq: 0 }.write(&mut packet);
        put64(&mut packet, BASE_LEN, index);
        let max_len = SOURCE_LEN - Hello::LEN;
        let len = source.len().min(max_len);
        packet[BASE_LEN + 8..][..len].copy_from_slice(&source[..len]);
        hello.write(&mut packet[HELLO_AT..]);
        packet
    }
}

/// The answer to an RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cts {
    /// The index in the RTS.
    pub of: u64,
    /// The sender's index for the receiver.
    pub index: u64,
    /// Present if the peer has this library.
    pub hello: Option<Hello>,
}

impl Cts {
    /// Reads the packet behind its header.
    pub fn read(packet: &[u8]) -> Parsed<Self> {
        if packet.len() < CTS_LEN {
            return malformed("a CTS that is too short");
        }
        if packet[0] != VERSION {
            return malformed("a CTS of another version");
        }
        let flags = RxdBase::read(packet)?.flags;
        let hello = Hello::read(flags, &packet[CTS_LEN..]);
        Ok(Self { of: u64_at(packet, BASE_LEN), index: u64_at(packet, BASE_LEN + 8), hello })
    }

    /// The packet, and its length.
    pub fn packet(&self) -> ([u8; CTS_LEN + Hello::LEN], usize) {
        let mut packet = [0; CTS_LEN + Hello::LEN];
        let (peer, flags) = (self.of as u32, self.hello.map_or(0, Hello::flags));
        RxdBase { kind: CTS, flags, peer, seq: 0 }.write(&mut packet);
        put64(&mut packet, BASE_LEN, self.of);
        put64(&mut packet, BASE_LEN + 8, self.index);
        let Some(hello) = self.hello else { return (packet, CTS_LEN) };
        hello.write(&mut packet[CTS_LEN..]);
        (packet, CTS_LEN + Hello::LEN)
    }
}

/// Content of an ACK in addition to the next expected number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// Packets permitted in flight after the expected one; 0: the sender must stop.
    pub window: u32,
    /// Bit mask of packets received after the expected one; bit 0 is the next to it. Always 0 from
    /// upstream peers.
    pub here: u64,
    /// Number of packets taken and not acknowledged. The first of them belongs to a refused
    /// operation, not to appear complete before the refusal is known. Always 0 from upstream peers,
    /// and from version 1.0.0 of this library.
    pub taken: u32,
}

impl Ack {
    /// Reads the packet behind its header.
    pub fn read(packet: &[u8]) -> Parsed<Self> {
        if packet.len() < DATA_HEAD {
            return malformed("an ACK that is too short");
        }
        Ok(Self {
            window: u32_at(packet, BASE_LEN + 4),
            here: u64_at(packet, BASE_LEN + 8),
            taken: u32_at(packet, BASE_LEN),
        })
    }

    /// The packet.
    pub fn packet(&self, peer: u32, next: u64) -> [u8; DATA_HEAD] {
        let mut packet = [0; DATA_HEAD];
        RxdBase { kind: ACK, flags: 0, peer, seq: next }.write(&mut packet);
        put32(&mut packet, BASE_LEN, self.taken);
        put32(&mut packet, BASE_LEN + 4, self.window);
        put64(&mut packet, BASE_LEN + 8, self.here);
        packet
    }
}

/// Acknowledgement behind the data of another packet. It has less content than an [`Ack`]: no
/// packet behind the expected one has been received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PiggybackAck {
    /// Next expected number.
    pub next: u64,
    /// Packets permitted in flight after the next expected one.
    pub window: u32,
}

impl PiggybackAck {
    /// Length behind the data.
    pub const LEN: usize = 12;

    /// Removes the acknowledgement from a packet with one; returns the rest.
    #[inline]
    pub fn split<'a>(base: &RxdBase, packet: &'a [u8]) -> Parsed<(&'a [u8], Option<Self>)> {
        if base.flags & CARRIES == 0 {
            return Ok((packet, None));
        }
        let end = packet.len().saturating_sub(Self::LEN);
        if end < BASE_LEN {
            return malformed("a packet shorter than what it carries");
        }
        let piggybacked = Self { next: u64_at(packet, end), window: u32_at(packet, end + 8) };
        Ok((&packet[..end], Some(piggybacked)))
    }

    /// Appends the acknowledgement to a packet of this length, with the space for it; returns the
    /// length including it.
    #[inline]
    pub fn append(self, buf: &mut [u8], len: usize) -> usize {
        let flags = u16::from_ne_bytes([buf[2], buf[3]]) | CARRIES;
        buf[2..4].copy_from_slice(&flags.to_ne_bytes());
        put64(buf, len, self.next);
        put32(buf, len + 8, self.window);
        len + Self::LEN
    }
}

/// Header before the bytes of a data packet, or the whole content of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataHead {
    /// The number of the operation at its initiator.
    pub tx_id: u32,
    /// Unused; in a refusal the error.
    pub rx_id: u32,
    /// Position of this packet among the operation's data packets; in a refusal the number of the
    /// refused operation's first packet.
    pub segment: u64,
}

impl DataHead {
    /// Reads the packet behind its header, and its data.
    #[inline]
    pub fn read(packet: &[u8]) -> Parsed<(Self, &[u8])> {
        if packet.len() < DATA_HEAD {
            return malformed("a data packet that is too short");
        }
        let head = Self {
            tx_id: u32_at(packet, BASE_LEN),
            rx_id: u32_at(packet, BASE_LEN + 4),
            segment: u64_at(packet, BASE_LEN + 8),
        };
        Ok((head, &packet[DATA_HEAD..]))
    }

    /// Writes it behind the base.
    #[inline]
    pub fn write(&self, packet: &mut [u8]) {
        put32(packet, BASE_LEN, self.tx_id);
        put32(packet, BASE_LEN + 4, self.rx_id);
        put64(packet, BASE_LEN + 8, self.segment);
    }
}

/// Operation, as described by its first packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RxdOperation {
    /// The type of the packet.
    pub kind: u8,
    /// The flags of the packet.
    pub flags: u16,
    /// The tag of a tagged message.
    pub tag: u64,
    /// CQ data, if there are some.
    pub cq_data: Option<u64>,
    /// Bytes of data in all packets; for a read the requested bytes.
    pub total: u64,
    /// Number of packets.
    pub packets: u64,
    /// The number of the operation at its initiator.
    pub tx_id: u32,
    /// Target memory.
    pub segments: RemoteSegments,
    /// Datatype and operation of an atomic operation.
    pub atomic: (u32, u32),
}

/// Takes bytes off the front.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Parsed<&'a [u8]> {
    let Some((part, behind)) = rest.split_at_checked(len) else {
        return malformed("an operation shorter than its headers");
    };
    *rest = behind;
    Ok(part)
}

impl RxdOperation {
    /// Returns true if a type of packet starts an operation.
    pub fn is_one(kind: u8) -> bool {
        matches!(kind, MSG | TAGGED | READ_REQ | WRITE | ATOMIC | ATOMIC_FETCH | ATOMIC_COMPARE)
    }

    fn has_segments(kind: u8) -> bool {
        !matches!(kind, MSG | TAGGED)
    }

    fn is_atomic(kind: u8) -> bool {
        matches!(kind, ATOMIC | ATOMIC_FETCH | ATOMIC_COMPARE)
    }

    /// Returns true if an operation has a response, named by the number in its header of segments.
    fn is_answered(kind: u8) -> bool {
        matches!(kind, READ_REQ | ATOMIC_FETCH | ATOMIC_COMPARE)
    }

    /// Reads the headers of the packet with this base, and its data.
    #[inline]
    pub fn read<'a>(base: &RxdBase, packet: &'a [u8]) -> Parsed<(Self, &'a [u8])> {
        let RxdBase { kind, flags, .. } = *base;
        let mut rest = &packet[BASE_LEN..];
        let tag = match flags & WITH_TAG {
            0 => 0,
            _ => u64_at(take(&mut rest, 8)?, 0),
        };
        let cq_data = match flags & WITH_CQ_DATA {
            0 => None,
            _ => Some(u64_at(take(&mut rest, 8)?, 0)),
        };
        let mut op = Self {
            kind,
            flags,
            tag,
            cq_data,
            total: 0,
            packets: 1,
            tx_id: 0,
            segments: RemoteSegments::EMPTY,
            atomic: (0, 0),
        };
        let mut segments = 1;
        let inline = flags & INLINE != 0;
        if inline && Self::is_answered(kind) {
            return malformed("an operation that is to be answered, without its number");
        }
        if !inline {
            let sizes = take(&mut rest, SEGMENTS_LEN)?;
            (op.total, op.packets) = (u64_at(sizes, 0), u64_at(sizes, 8));
            op.tx_id = u32_at(sizes, 16);
            segments = usize::from(sizes[20]);
        }
        if Self::has_segments(kind) {
            if segments > MAX_SEGMENTS {
                return malformed("an operation on too many places");
            }
            for _ in 0..segments {
                let segment = take(&mut rest, SEGMENT_LEN)?;
                let (addr, len, key) =
                    (u64_at(segment, 0), u64_at(segment, 8), u64_at(segment, 16));
                let pushed = op.segments.push(RemoteSegment { addr, len, key });
                debug_assert!(pushed.is_ok(), "no more than there is room for");
            }
        }
        if Self::is_atomic(kind) {
            let atomic = take(&mut rest, 8)?;
            op.atomic = (u32_at(atomic, 0), u32_at(atomic, 4));
        }
        if inline {
            op.total = rest.len() as u64;
        }
        if op.packets == 0 || op.total > isize::MAX as u64 {
            return malformed("an operation of no packets, or of more bytes than there can be");
        }
        match kind {
            // The response has as many bytes as requested.
            READ_REQ if !op.segments.total().is_ok_and(|len| len as u64 == op.total) => {
                malformed("a read of another length than its places have")
            }
            WRITE if !op.segments.total().is_ok_and(|len| len as u64 == op.total) => {
                malformed("a write of another length than its places have")
            }
            READ_REQ => Ok((op, &[])),
            // Their operands are looked at when they are carried out.
            _ if Self::is_atomic(kind) => Ok((op, rest)),
            _ if op.packets == 1 && op.total != rest.len() as u64 => {
                malformed("an operation that is not as long as it says")
            }
            _ if op.packets > 1 && op.total <= rest.len() as u64 => {
                malformed("an operation that is complete and says that it is not")
            }
            _ => Ok((op, rest)),
        }
    }

    /// Writes the headers behind the base; returns their length. `segments` as on the wire.
    pub fn write(&self, buf: &mut [u8; MAX_HEAD]) -> usize {
        let mut at = 0;
        if self.flags & WITH_TAG != 0 {
            put64(buf, at, self.tag);
            at += 8;
        }
        if self.flags & WITH_CQ_DATA != 0 {
            put64(buf, at, self.cq_data.unwrap_or(0));
            at += 8;
        }
        if self.flags & INLINE == 0 {
            put64(buf, at, self.total);
            put64(buf, at + 8, self.packets);
            put32(buf, at + 16, self.tx_id);
            buf[at + 20..at + 24].fill(0);
            buf[at + 20] = self.segments.as_slice().len() as u8;
            at += SEGMENTS_LEN;
        }
        if Self::has_segments(self.kind) {
            for segment in self.segments.as_slice() {
                put64(buf, at, segment.addr);
                put64(buf, at + 8, segment.len);
                put64(buf, at + 16, segment.key);
                at += SEGMENT_LEN;
            }
        }
        if Self::is_atomic(self.kind) {
            put32(buf, at, self.atomic.0);
            put32(buf, at + 4, self.atomic.1);
            at += 8;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(op: RxdOperation, data: &[u8]) {
        let base = RxdBase { kind: op.kind, flags: op.flags, peer: 7, seq: 9 };
        let mut head = [0; MAX_HEAD];
        let len = op.write(&mut head);
        let mut packet = vec![0; BASE_LEN];
        base.write(&mut packet);
        packet.extend_from_slice(&head[..len]);
        packet.extend_from_slice(data);
        assert_eq!(RxdBase::read(&packet), Ok(base));
        assert_eq!(RxdOperation::read(&base, &packet), Ok((op, data)));
        // Cut anywhere in its headers it is refused.
        for short in 0..len {
            assert!(RxdOperation::read(&base, &packet[..BASE_LEN + short]).is_err());
        }
    }

    const OP: RxdOperation = RxdOperation {
        kind: TAGGED,
        flags: WITH_TAG,
        tag: 5,
        cq_data: None,
        total: 3,
        packets: 1,
        tx_id: 4,
        segments: RemoteSegments::EMPTY,
        atomic: (0, 0),
    };

    #[test]
    fn operation_with_a_response_must_have_a_number() {
        for kind in [READ_REQ, ATOMIC_FETCH, ATOMIC_COMPARE] {
            let base = RxdBase { kind, flags: INLINE, peer: 7, seq: 9 };
            let mut packet = [0; BASE_LEN + SEGMENT_LEN + 9];
            base.write(&mut packet);
            // As many bytes behind the place as it has.
            packet[BASE_LEN + 8] = 9;
            assert!(RxdOperation::read(&base, &packet).is_err());
        }
    }

    #[test]
    fn operations_come_out_as_they_went_in() {
        round_trip(OP, b"abc");
        round_trip(RxdOperation { flags: WITH_TAG | WITH_CQ_DATA, cq_data: Some(8), ..OP }, b"abc");
        round_trip(RxdOperation { flags: WITH_TAG | INLINE, tx_id: 0, ..OP }, b"abc");
        round_trip(RxdOperation { packets: 4, total: 5000, ..OP }, b"abc");
        let segments = RemoteSegments::one(1, 3, 2);
        round_trip(
            RxdOperation {
                kind: WRITE,
                flags: INLINE,
                tag: 0,
                tx_id: 0,
                segments: segments.clone(),
                ..OP
            },
            b"abc",
        );
        round_trip(
            RxdOperation { kind: READ_REQ, flags: 0, tag: 0, segments: segments.clone(), ..OP },
            b"",
        );
        let atomic = (3, 2);
        round_trip(
            RxdOperation { kind: ATOMIC_FETCH, flags: 0, tag: 0, segments, atomic, ..OP },
            b"abc",
        );
    }

    #[test]
    fn contradictory_packets_are_refused() {
        for (op, data) in [
            (RxdOperation { total: 4, ..OP }, &b"abc"[..]),
            (RxdOperation { packets: 2, ..OP }, b"abc"),
            (RxdOperation { packets: 0, ..OP }, b"abc"),
            (RxdOperation { kind: WRITE, segments: RemoteSegments::one(1, 4, 2), ..OP }, b"abc"),
            (RxdOperation { kind: READ_REQ, segments: RemoteSegments::one(1, 4, 2), ..OP }, b""),
            (RxdOperation { total: u64::MAX, packets: 2, ..OP }, b"abc"),
        ] {
            let base = RxdBase { kind: op.kind, flags: op.flags, peer: 7, seq: 9 };
            let mut head = [0; MAX_HEAD];
            let len = op.write(&mut head);
            let packet = [&[0; BASE_LEN], &head[..len], data].concat();
            assert!(RxdOperation::read(&base, &packet).is_err(), "{op:?}");
        }
    }

    #[test]
    fn peers_of_this_library_know_each_other_and_others_see_zeros() {
        let hello = Hello::own(77);
        let packet = Rts::packet(3, b"address", hello);
        let rts = Rts::read(&packet).unwrap();
        assert_eq!((rts.index, rts.hello), (3, Some(hello)));
        assert!(rts.source.starts_with(b"address\0"));
        let mut zeroed = packet;
        // The first version of this library takes no acknowledgements behind data.
        zeroed[2..4].fill(0);
        let first = Hello { nonce: 77, carries: false };
        assert_eq!(Rts::read(&zeroed).unwrap().hello, Some(first));
        zeroed[HELLO_AT..].fill(0);
        assert_eq!(Rts::read(&zeroed).unwrap().hello, None);
        zeroed[0] = 1;
        assert!(Rts::read(&zeroed).is_err() && Rts::read(&packet[..87]).is_err());
        for hello in [None, Some(hello), Some(first)] {
            let cts = Cts { of: 3, index: 4, hello };
            let (packet, len) = cts.packet();
            assert_eq!(Cts::read(&packet[..len]), Ok(cts));
        }
        let ack = Ack { window: 128, here: 5, taken: 3 };
        assert_eq!(Ack::read(&ack.packet(3, 9)), Ok(ack));
    }

    #[test]
    fn an_acknowledgement_behind_data_comes_off_as_it_was_put_there() {
        let base = RxdBase { kind: TAGGED, flags: INLINE, peer: 7, seq: 9 };
        let mut packet = [0; BASE_LEN + 3 + PiggybackAck::LEN];
        base.write(&mut packet);
        packet[BASE_LEN..BASE_LEN + 3].copy_from_slice(b"abc");
        let zeroed = &packet[..BASE_LEN + 3];
        assert_eq!(PiggybackAck::split(&base, zeroed), Ok((zeroed, None)));
        let piggybacked = PiggybackAck { next: 8, window: 128 };
        assert_eq!(piggybacked.append(&mut packet, BASE_LEN + 3), packet.len());
        let base = RxdBase::read(&packet).unwrap();
        assert_eq!(base.flags, INLINE | CARRIES);
        let (rest, other) = PiggybackAck::split(&base, &packet).unwrap();
        assert_eq!((&rest[BASE_LEN..], other), (&b"abc"[..], Some(piggybacked)));
        assert!(PiggybackAck::split(&base, &packet[..BASE_LEN + PiggybackAck::LEN - 1]).is_err());
    }
}
