//! Headers of transfers.
use ofi_provider::api::{RemoteSegment, RemoteSegments};
use ofi_provider::atomic::AtomicKind;
use ofi_provider::malformed::{Malformed, Parsed};

/// Version of connection messages and of transfer headers.
pub const VERSION: u8 = 3;

/// Bytes of one place in the receiver's memory: address, length, key.
pub const SEGMENT_LEN: usize = 24;

/// Maximum remote segments in a header, for peers with this capability ([`PeerFeatures::segments`]).
pub const MAX_SEGMENTS: usize = ofi_provider::buf::MAX_SEGMENTS;

/// Maximum remote segments in a header for other peers, as in upstream's protocol.
pub const USUAL_SEGMENTS: usize = 4;

/// Bytes of a header before its optional fields.
pub const BASE_LEN: usize = 16;

/// Longest header in bytes: base, CQ data, an atomic operation's word, and all remote segments. A byte of
/// the header has its length.
pub const MAX_HEADER_LEN: usize = BASE_LEN + 16 + MAX_SEGMENTS * SEGMENT_LEN;
const _: () = assert!(MAX_HEADER_LEN <= u8::MAX as usize);

/// Maximum bytes of memory changed by one atomic operation.
pub const MAX_ATOMIC: usize = 16384;

/// Byte order of a peer's numbers: the local one, or, if the peer's differs, network order in both
/// directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    /// Both sides have the same byte order.
    Native,
    /// The byte orders differ: numbers are in network order.
    Network,
}

impl ByteOrder {
    #[inline]
    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Native => u16::from_ne_bytes(bytes),
            Self::Network => u16::from_be_bytes(bytes),
        }
    }
    #[inline]
    fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Native => u64::from_ne_bytes(bytes),
            Self::Network => u64::from_be_bytes(bytes),
        }
    }
    #[inline]
    fn put16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Native => value.to_ne_bytes(),
            Self::Network => value.to_be_bytes(),
        }
    }
    #[inline]
    fn put64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Native => value.to_ne_bytes(),
            Self::Network => value.to_be_bytes(),
        }
    }

    /// Returns true if the peer's numbers are stored in local byte order.
    #[inline]
    pub fn is_native(self) -> bool {
        self == Self::Native
    }
}

/// Operation announced by a transfer header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum StreamOp {
    /// A message, or an acknowledgement.
    Msg = 0,
    /// A tagged message.
    Tag = 1,
    /// A request to read bytes of the receiver's memory.
    ReadReq = 2,
    /// Bytes requested by the oldest unanswered request.
    ReadRsp = 3,
    /// Bytes for the receiver's memory.
    Write = 4,
    /// RTS: a tagged rendezvous message waits at its sender.
    TagRts = 5,
    /// CTS: the receiver is ready for a message announced with [`StreamOp::TagRts`].
    Cts = 6,
    /// Payload of a message requested with [`StreamOp::Cts`].
    Data = 7,
    /// An atomic operation on the receiver's memory, followed by its operands.
    Atomic = 64,
    /// Refusal of a write, named by its number among the transfers to be acknowledged; its error
    /// code is in `op_data` ([`PeerFeatures::outcomes`]).
    WriteRefused = 66,
    /// Step of the agreement on the end of an idle connection, a [`CloseStep`] in `op_data`
    /// ([`PeerFeatures::closing`]).
    Close = 67,
    /// The result of an atomic operation, and the former values if it fetches them. Answers to
    /// these and to [`StreamOp::ReadReq`] come in the order of the requests.
    AtomicRsp = 65,
    /// A message with a tag, as connected endpoints of the original's 1.17 send
    /// it: on the wire it is [`StreamOp::Msg`] with a flag. We never send it.
    TaggedMsg = 255,
}

/// Header flag turning a [`StreamOp::Msg`] into a [`StreamOp::TaggedMsg`].
const TAGGED_MSG: u16 = 0x80;

/// The header carries remote CQ data.
pub const REMOTE_CQ_DATA: u16 = 1;
/// The sender waits for an acknowledgement.
pub const DELIVERY_COMPLETE: u16 = 4;
/// The sender waits for an acknowledgement, allowed only after the bytes are persistent.
pub const COMMIT_COMPLETE: u16 = 8;

/// The sender waits for an acknowledgement after the message has matched its receive
/// (FI_MATCH_COMPLETE). Used with [`DELIVERY_COMPLETE`], for peers with support for it
/// ([`PeerFeatures::outcomes`]).
pub const MATCH_COMPLETE: u16 = 16;

/// Maximum transfers in one acknowledgement.
pub const MAX_ACK_RUN: u16 = u16::MAX;

/// Bits of an acknowledgement's number; the upper bits count the further transfers after the one of
/// this number.
const ACK_NUMBER_BITS: u32 = 48;

/// `op_data` of an acknowledgement.
pub const ACK: u8 = 2;

/// Step of the agreement of both ends on the end of an idle connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CloseStep {
    /// The sender has nothing in flight, and would like to close the connection.
    Request = 1,
    /// The sender of the request may close the connection: the sender of this step has nothing in
    /// flight either, and sends nothing until the connection is closed or other bytes arrive.
    Agree = 2,
    /// The connection is in use, so it stays.
    Refuse = 3,
    /// The connection stays although both ends have agreed, because the sender has used it since its
    /// request.
    Cancel = 4,
}

/// A transfer header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamHeader {
    /// Operation announced by the header.
    pub op: StreamOp,
    /// REMOTE_CQ_DATA, DELIVERY_COMPLETE, COMMIT_COMPLETE.
    pub flags: u16,
    /// [`ACK`], or the number of a rendezvous message. In [`StreamOp::AtomicRsp`],
    /// [`StreamOp::WriteRefused`] and, from peers with support for it, [`StreamOp::ReadRsp`], the
    /// error code, 0 for success.
    pub op_data: u8,
    /// The sender's count of headers on this connection.
    pub id: u8,
    /// Number of segments of the receiver's memory after the header's other fields, for
    /// [`StreamOp::ReadReq`], [`StreamOp::Write`] and [`StreamOp::Atomic`].
    pub segments: u8,
    /// Remote CQ data, with REMOTE_CQ_DATA.
    pub cq_data: u64,
    /// Tag of a tagged message, or the operation of an atomic ([`AtomicWord`]).
    pub tag: u64,
    /// Bytes after the header; in [`StreamOp::TagRts`] the size of the waiting message.
    pub len: u64,
}

/// Atomic operation as one number of the header: from its lowest byte on the data type, the
/// operation, and the kind of call; the rest is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicWord {
    /// Kind of call: its operands and its result.
    pub kind: AtomicKind,
    /// Number of `enum fi_datatype`, possibly an unknown one.
    pub datatype: u8,
    /// Number of `enum fi_op`, possibly an unknown one.
    pub op: u8,
}

impl AtomicWord {
    /// The operation as the header's `tag`.
    pub fn to_word(self) -> u64 {
        u64::from_le_bytes([self.datatype, self.op, self.kind as u8, 0, 0, 0, 0, 0])
    }

    /// Decodes a word written by [`to_word`](Self::to_word).
    pub fn from_word(word: u64) -> Parsed<Self> {
        let [datatype, op, kind, 0, 0, 0, 0, 0] = word.to_le_bytes() else {
            return Err(Malformed("unknown bits in an atomic operation"));
        };
        let kind = match kind {
            0 => AtomicKind::Base,
            1 => AtomicKind::Fetch,
            2 => AtomicKind::Compare,
            _ => return Err(Malformed("unknown kind of atomic operation")),
        };
        Ok(Self { kind, datatype, op })
    }
}

/// The first eight bytes of a plain message's header, as a number.
const FAST_UNTAGGED: u64 =
    u64::from_ne_bytes([VERSION, StreamOp::Msg as u8, 0, 0, 0, 0, BASE_LEN as u8, 0]);
const FAST_TAGGED: u64 =
    u64::from_ne_bytes([VERSION, StreamOp::Tag as u8, 0, 0, 0, 0, BASE_LEN as u8 + 8, 0]);

/// Addition to the first eight bytes of a fast-path message for remote CQ data: the flag, and the
/// size of the data within the header length.
const FAST_DATA: u64 = {
    let [low, high] = REMOTE_CQ_DATA.to_ne_bytes();
    u64::from_ne_bytes([0, 0, low, high, 0, 0, 8, 0])
};

/// Bits of [`FAST_UNTAGGED`] and [`FAST_TAGGED`] compared by a receiver: without the version, the
/// number of segments and the header's number.
const FAST_MASK: u64 = u64::from_ne_bytes([0, 255, 255, 255, 255, 0, 255, 0]);

/// Decoded header of a fast-path message: tagged or untagged, with or without remote CQ data,
/// without other flags and segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastHeader {
    /// The message is tagged.
    pub tagged: bool,
    /// The tag of a tagged message, or 0.
    pub tag: u64,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// Bytes of the header.
    pub len: usize,
}

impl FastHeader {
    /// Returns the header without remote CQ data starting with this word, and its tag if it is
    /// tagged; none for anything else.
    #[inline(always)]
    fn without_data(start: u64, tag: u64) -> Option<Self> {
        let kind = start & FAST_MASK;
        if kind == FAST_TAGGED & FAST_MASK {
            Some(Self { tagged: true, tag, data: None, len: BASE_LEN + 8 })
        } else if kind == FAST_UNTAGGED & FAST_MASK {
            Some(Self { tagged: false, tag: 0, data: None, len: BASE_LEN })
        } else {
            None
        }
    }

    /// Returns the header with remote CQ data starting with this word, and its tag if it is tagged;
    /// none for anything else.
    #[inline(always)]
    fn with_data(start: u64, data: u64, tag: u64) -> Option<Self> {
        let without = Self::without_data(start.wrapping_sub(FAST_DATA), tag)?;
        Some(Self { data: Some(data), len: without.len + 8, ..without })
    }
}

/// A plain message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamFast<'a> {
    /// Decoded header.
    pub header: FastHeader,
    /// The message's bytes.
    pub body: &'a [u8],
    /// Bytes after the message.
    pub rest: &'a [u8],
}

impl StreamOp {
    /// Returns true if the header has a separate number: a tag, or the word of an atomic operation.
    #[inline]
    fn has_word(self) -> bool {
        matches!(self, Self::Tag | Self::TagRts | Self::Atomic | Self::TaggedMsg)
    }
}

/// Transfers of consecutive numbers acknowledged as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckRun {
    /// The number of the first.
    pub first: u64,
    /// Number of transfers, at least 1.
    pub count: u16,
}

impl AckRun {
    /// The run of one transfer.
    pub fn of(number: u64) -> Self {
        Self { first: number, count: 1 }
    }

    /// Adds the transfer of this number if it follows those of the run; false if not.
    pub fn extend(&mut self, number: u64) -> bool {
        let follows = number == self.first + u64::from(self.count) && self.count < MAX_ACK_RUN;
        self.count += u16::from(follows);
        follows
    }
}

impl StreamHeader {
    /// Bytes the header takes on the wire.
    #[inline]
    pub fn wire_len(&self) -> usize {
        let data = if self.flags & REMOTE_CQ_DATA != 0 { 8 } else { 0 };
        BASE_LEN
            + data
            + match self.op {
                StreamOp::Msg
                | StreamOp::Cts
                | StreamOp::Data
                | StreamOp::ReadRsp
                | StreamOp::WriteRefused
                | StreamOp::Close
                | StreamOp::AtomicRsp => 0,
                StreamOp::Tag | StreamOp::TaggedMsg => 8,
                StreamOp::Atomic => 8 + SEGMENT_LEN * self.segments as usize,
                StreamOp::TagRts => 16,
                StreamOp::ReadReq | StreamOp::Write => SEGMENT_LEN * self.segments as usize,
            }
    }

    /// Bytes of the header without the places in the receiver's memory.
    #[inline]
    pub fn head_len(&self) -> usize {
        self.wire_len() - SEGMENT_LEN * self.segments as usize
    }

    /// Writes the header, but for the places in the receiver's memory, to the
    /// start of `out`; its length.
    #[inline]
    pub fn write(&self, order: ByteOrder, out: &mut [u8; 40]) -> usize {
        // The byte order is tested once instead of for each number.
        if order.is_native() {
            self.write_in(ByteOrder::Native, out)
        } else {
            self.write_in(ByteOrder::Network, out)
        }
    }

    #[inline(always)]
    fn write_in(&self, order: ByteOrder, out: &mut [u8; 40]) -> usize {
        let mut at = BASE_LEN;
        if self.flags & REMOTE_CQ_DATA != 0 {
            out[at..at + 8].copy_from_slice(&order.put64(self.cq_data));
            at += 8;
        }
        if self.op.has_word() {
            out[at..at + 8].copy_from_slice(&order.put64(self.tag));
            at += 8;
        }
        let mut payload = self.len;
        if self.op == StreamOp::TagRts {
            out[at..at + 8].copy_from_slice(&order.put64(self.len));
            at += 8;
            payload = 0;
        }
        let len = at + SEGMENT_LEN * self.segments as usize;
        let (op, flags) = match self.op {
            StreamOp::TaggedMsg => (StreamOp::Msg, self.flags | TAGGED_MSG),
            op => (op, self.flags),
        };
        let [low, high] = order.put16(flags);
        let start = [VERSION, op as u8, low, high, self.op_data, self.segments, len as u8, self.id];
        out[..8].copy_from_slice(&start);
        out[8..16].copy_from_slice(&order.put64(payload + len as u64));
        at
    }

    /// Encodes segments of the receiver's memory, to follow the bytes written by
    /// [`write`](Self::write).
    pub fn write_segments(order: ByteOrder, segments: &[RemoteSegment]) -> Box<[u8]> {
        let mut bytes = vec![0; SEGMENT_LEN * segments.len()].into_boxed_slice();
        Self::put_segments(order, segments, &mut bytes);
        bytes
    }

    /// Writes segments of the receiver's memory to `out`, with exactly the space for these.
    #[inline]
    pub fn put_segments(order: ByteOrder, segments: &[RemoteSegment], out: &mut [u8]) {
        let words = segments.iter().flat_map(|s| [s.addr, s.len, s.key]);
        for (to, word) in out.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&order.put64(word));
        }
    }

    /// Decodes the segments of local memory named by the header at the start of `bytes`.
    pub fn read_segments(&self, bytes: &[u8], order: ByteOrder) -> Parsed<RemoteSegments> {
        let part = bytes.get(self.head_len()..self.wire_len());
        let mut all = RemoteSegments::EMPTY;
        for one in part.ok_or(Malformed("header is cut"))?.chunks_exact(SEGMENT_LEN) {
            let word = |at: usize| {
                let word = one[at..at + 8].try_into();
                word.map(|word| order.u64(word)).map_err(|_| Malformed("header is cut"))
            };
            let segment = RemoteSegment { addr: word(0)?, len: word(8)?, key: word(16)? };
            all.push(segment).map_err(|_| Malformed("too many remote segments"))?;
        }
        Ok(all)
    }

    /// Returns the length of the header at the start of `bytes`; `None` if more bytes are needed.
    #[inline]
    pub fn len_at(bytes: &[u8]) -> Parsed<Option<usize>> {
        if bytes.len() < BASE_LEN {
            return Ok(None);
        }
        match bytes[6] as usize {
            len @ BASE_LEN..=MAX_HEADER_LEN => Ok(Some(len)),
            _ => Err(Malformed("header length out of range")),
        }
    }

    /// The plain message at the start of `bytes`, from a peer with our byte order, if all of it
    /// is there; none if anything else is.
    #[inline(always)]
    pub fn parse_fast(bytes: &[u8]) -> Option<StreamFast<'_>> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            word.map(u64::from_ne_bytes)
        };
        let [start, size] = [word(0)?, word(8)?];
        let [third, fourth] = [word(16).unwrap_or(0), word(24).unwrap_or(0)];
        let header = FastHeader::without_data(start, third)
            .or_else(|| FastHeader::with_data(start, third, fourth))?;
        let (_, rest) = bytes.split_at_checked(header.len)?;
        let len = usize::try_from(size).ok()?.checked_sub(header.len)?;
        let (body, rest) = rest.split_at_checked(len)?;
        Some(StreamFast { header, body, rest })
    }

    /// Returns the header of a fast-path message without remote CQ data, filling all of `len`
    /// bytes, from its first three words. None for anything else.
    #[inline(always)]
    pub fn fast_in([start, size, third]: [u64; 3], len: usize) -> Option<FastHeader> {
        let header = FastHeader::without_data(start, third)?;
        (size == len as u64 && len >= header.len).then_some(header)
    }

    /// [`fast_in`](Self::fast_in) of a message with remote CQ data, by its first four words.
    #[inline(always)]
    pub fn fast_with_data_in(words: [u64; 4], len: usize) -> Option<FastHeader> {
        let [start, size, third, fourth] = words;
        let header = FastHeader::with_data(start, third, fourth)?;
        (size == len as u64 && len >= header.len).then_some(header)
    }

    /// The header of a plain message of either kind, as [`fast_in`](Self::fast_in) and
    /// [`fast_with_data_in`](Self::fast_with_data_in) find it.
    #[inline]
    pub fn any_fast_in(words: [u64; 4], len: usize) -> Option<FastHeader> {
        let [first, second, third, _] = words;
        Self::fast_in([first, second, third], len).or_else(|| Self::fast_with_data_in(words, len))
    }

    /// Returns the first two words of the header with this number, and the header's length, for a
    /// message of `len` bytes. The message has no special attributes except for optional remote CQ
    /// data, and the peer uses local byte order. The data are the next word, followed by the tag.
    #[inline(always)]
    pub fn fast_words(id: u8, tagged: bool, data: bool, len: usize) -> ([u64; 2], usize) {
        let (start, head) =
            if tagged { (FAST_TAGGED, BASE_LEN + 8) } else { (FAST_UNTAGGED, BASE_LEN) };
        let (start, head) = if data { (start + FAST_DATA, head + 8) } else { (start, head) };
        let numbered = start | u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, id]);
        ([numbered, (len + head) as u64], head)
    }

    /// Writes the header with this number for a message of `len` bytes, without special attributes
    /// except for optional remote CQ data, for a peer with local byte order; returns its length.
    #[inline(always)]
    pub fn write_fast(
        id: u8,
        data: Option<u64>,
        tag: Option<u64>,
        len: usize,
        out: &mut [u8; 40],
    ) -> usize {
        let (words, head) = Self::fast_words(id, tag.is_some(), data.is_some(), len);
        let mut put =
            |at: usize, word: u64| out[8 * at..][..8].copy_from_slice(&word.to_ne_bytes());
        if let Some(word) = data.or(tag) {
            put(2, word);
        }
        if let (Some(_), Some(tag)) = (data, tag) {
            put(3, tag);
        }
        put(0, words[0]);
        put(1, words[1]);
        head
    }

    /// Parses the header filling all of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8], order: ByteOrder) -> Parsed<Self> {
        if Self::len_at(bytes)? != Some(bytes.len()) {
            return Err(Malformed("header is cut"));
        }
        let word = |at: usize| -> Parsed<u64> {
            let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            word.map(|word| order.u64(word)).ok_or(Malformed("header too short for its operation"))
        };
        let op = match bytes[1] {
            0 => StreamOp::Msg,
            1 => StreamOp::Tag,
            5 => StreamOp::TagRts,
            6 => StreamOp::Cts,
            7 => StreamOp::Data,
            2 => StreamOp::ReadReq,
            3 => StreamOp::ReadRsp,
            4 => StreamOp::Write,
            64 => StreamOp::Atomic,
            65 => StreamOp::AtomicRsp,
            66 => StreamOp::WriteRefused,
            67 => StreamOp::Close,
            _ => return Err(Malformed("unknown operation")),
        };
        let flags = order.u16([bytes[2], bytes[3]]);
        let (op, flags) = match op {
            StreamOp::Msg if flags & TAGGED_MSG != 0 => (StreamOp::TaggedMsg, flags & !TAGGED_MSG),
            op => (op, flags),
        };
        if flags & !(REMOTE_CQ_DATA | DELIVERY_COMPLETE | COMMIT_COMPLETE | MATCH_COMPLETE) != 0 {
            return Err(Malformed("unknown flags"));
        }
        // In headers that name no place the original does not clear the number of places.
        let remote = matches!(op, StreamOp::ReadReq | StreamOp::Write | StreamOp::Atomic);
        let segments = if remote { bytes[5] } else { 0 };
        // A transfer of no bytes may name no place, unless it carries CQ data: reporting data
        // takes the right to some place.
        let notifies = op == StreamOp::Write && flags & REMOTE_CQ_DATA != 0;
        let least = usize::from(op == StreamOp::Atomic || notifies);
        if remote && !(least..=MAX_SEGMENTS).contains(&(segments as usize)) {
            return Err(Malformed("wrong number of remote segments"));
        }
        let size = word(8)?;
        let payload = size
            .checked_sub(bytes.len() as u64)
            .ok_or(Malformed("size smaller than the header"))?;
        let mut header = Self {
            op,
            flags,
            op_data: bytes[4],
            id: bytes[7],
            segments,
            cq_data: 0,
            tag: 0,
            len: payload,
        };
        let mut at = BASE_LEN;
        if flags & REMOTE_CQ_DATA != 0 {
            header.cq_data = word(at)?;
            at += 8;
        }
        if op.has_word() {
            header.tag = word(at)?;
            at += 8;
        }
        if op == StreamOp::TagRts {
            header.len = word(at)?;
        }
        if header.wire_len() != bytes.len() {
            return Err(Malformed("header length does not fit its operation"));
        }
        let acknowledges = op == StreamOp::Msg && header.op_data == ACK;
        if payload != 0
            && (acknowledges
                || matches!(
                    op,
                    StreamOp::TagRts
                        | StreamOp::Cts
                        | StreamOp::ReadReq
                        | StreamOp::WriteRefused
                        | StreamOp::Close
                ))
        {
            return Err(Malformed("bytes after a header that has none"));
        }
        match op {
            StreamOp::Atomic => {
                AtomicWord::from_word(header.tag)?;
                if payload > 2 * MAX_ATOMIC as u64 {
                    return Err(Malformed("an atomic operation too large"));
                }
            }
            StreamOp::AtomicRsp if header.op_data != 0 && payload != 0 => {
                return Err(Malformed("bytes after a refusal"));
            }
            StreamOp::WriteRefused if header.op_data == 0 || flags & REMOTE_CQ_DATA == 0 => {
                return Err(Malformed("a refusal of nothing"));
            }
            StreamOp::Close if header.close_step().is_none() || flags != REMOTE_CQ_DATA => {
                return Err(Malformed("unknown step of closing"));
            }
            _ => {}
        }
        if matches!(op, StreamOp::TagRts | StreamOp::Cts | StreamOp::Data) && header.op_data == 0 {
            return Err(Malformed("waiting message without a number"));
        }
        Ok(header)
    }

    /// A header of this kind with nothing in it.
    pub fn of(op: StreamOp) -> Self {
        Self { op, flags: 0, op_data: 0, id: 0, segments: 0, cq_data: 0, tag: 0, len: 0 }
    }

    /// Creates an acknowledgement of the oldest unacknowledged message.
    pub fn ack_oldest() -> Self {
        Self { op_data: ACK, ..Self::of(StreamOp::Msg) }
    }

    /// Creates an acknowledgement of transfers by their numbers among those with acknowledgement
    /// ([`PeerFeatures::acks`]). More than one transfer requires a peer with [`PeerFeatures::outcomes`].
    pub fn ack(run: AckRun) -> Self {
        let more = u64::from(run.count - 1) << ACK_NUMBER_BITS;
        let cq_data = (run.first & ((1 << ACK_NUMBER_BITS) - 1)) | more;
        Self { op_data: ACK, flags: REMOTE_CQ_DATA, cq_data, ..Self::of(StreamOp::Msg) }
    }

    /// Returns the transfers of an acknowledgement, if it names them.
    pub fn acked(&self) -> Option<AckRun> {
        let more = self.cq_data >> ACK_NUMBER_BITS;
        let count = u16::try_from(more + 1).unwrap_or(MAX_ACK_RUN);
        let first = self.cq_data & ((1 << ACK_NUMBER_BITS) - 1);
        (self.flags & REMOTE_CQ_DATA != 0).then_some(AckRun { first, count })
    }

    /// Creates the refusal of the write of this number among the transfers with acknowledgement,
    /// for peers with [`PeerFeatures::outcomes`].
    pub fn refuse_write(number: u64, error: u8) -> Self {
        let (flags, op_data) = (REMOTE_CQ_DATA, error.max(1));
        Self { op_data, flags, cq_data: number, ..Self::of(StreamOp::WriteRefused) }
    }

    /// Creates a step of the agreement on the end of an idle connection, for peers with
    /// [`PeerFeatures::closing`]. `number` is the number of the request.
    pub fn close(step: CloseStep, number: u64) -> Self {
        let (flags, op_data) = (REMOTE_CQ_DATA, step as u8);
        Self { op_data, flags, cq_data: number, ..Self::of(StreamOp::Close) }
    }

    /// Returns the step of a [`StreamOp::Close`]; none if it is unknown.
    pub fn close_step(&self) -> Option<CloseStep> {
        let all = [CloseStep::Request, CloseStep::Agree, CloseStep::Refuse, CloseStep::Cancel];
        all.into_iter().find(|step| *step as u8 == self.op_data)
    }

    /// Creates the response to a refused read, for peers with [`PeerFeatures::outcomes`].
    pub fn refuse_read(error: u8) -> Self {
        Self { op_data: error.max(1), ..Self::of(StreamOp::ReadRsp) }
    }

    /// Returns true if the header is an acknowledgement.
    #[inline]
    pub fn is_ack(&self) -> bool {
        self.op == StreamOp::Msg && self.op_data == ACK
    }
}
