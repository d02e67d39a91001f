//! What is under way at an endpoint: transfers, messages that wait, and those that are fetched.
use crate::wire::{HEADER_LEN, OP_MSG, OP_TAGGED, PacketKind, REMOTE_CQ_DATA, RxmCall, RxmHeader};
use ofi_provider::abi::{FI_COMPLETION, FI_FENCE, FI_INJECT};
use ofi_provider::addr::Addr;
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::{RecvBuf, SendBuf};
use ofi_provider::core_provider::{CoreBuf, CoreRegion};
use ofi_provider::cq::Context;
use ofi_provider::error::Error;
use ofi_provider::inbox::{self, About, Recv};
use ofi_provider::info::InfoBuf;
use ofi_provider::reserved::{ASIDE, ONLY_TAG};
use std::collections::{HashMap, VecDeque};

/// Memory that waiting messages of one endpoint, or of all that share their
/// receives, may take before no more are taken from the core.
pub(super) const MAX_KEPT: usize = 256 << 20;

/// How a message waits for a receive.
#[derive(Debug)]
pub(crate) enum RxmUnexpected {
    /// All of the message is here.
    Whole(Box<[u8]>),
    /// All of the message is here, in the buffer it came in, behind the header.
    InPacket(CoreBuf, usize),
    /// The message is arriving in segments.
    Partial { bytes: Vec<u8>, conn: u32, msg_id: u64 },
    /// The message is to be fetched from its sender.
    AtSender { conn: u32, header: RxmHeader, places: RemoteSegments, early: Early },
    /// The message's connection ended before the message was here.
    Lost,
}

impl inbox::UnexpectedBody for RxmUnexpected {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::InPacket(buf, len) => Some(&buf[HEADER_LEN..*len]),
            Self::Partial { .. } | Self::AtSender { .. } | Self::Lost => None,
        }
    }

    fn cost(&self, _len: usize) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::InPacket(buf, _) => buf.len(),
            Self::Partial { bytes, .. } => bytes.len(),
            Self::AtSender { early, places, .. } => {
                let early = match early {
                    Early::None | Early::Unreadable => 0,
                    Early::Coming(len) => *len,
                    Early::Here(bytes) => bytes.len(),
                };
                places.memory() + early
            }
            Self::Lost => 0,
        }
    }

    /// Endpoints are closed without the engine's lock.
    const ONE_LOCK: bool = false;
}

/// What came in a receive buffer of the core's.
#[derive(Debug)]
pub(super) struct RxmPacket {
    pub(super) buf: CoreBuf,
    pub(super) len: usize,
    /// The connection whose buffer it is; [`NONE`] if all connections share the buffer.
    pub(super) conn: u32,
    /// The connection that the packet came on ([`came_on`]).
    pub(super) source: u64,
    /// The packet is a tagged message and nothing else: the packets that version 1.17 of
    /// the original sends tagged messages in have no header of this provider's.
    pub(super) bare: Option<Bare>,
}

/// What came while the completion queue was full, and keeps its place in the order.
#[derive(Debug)]
pub(super) enum Parked {
    Packet(RxmPacket),
    /// A peer wrote to our memory: its data, and how many bytes it were.
    Written(u64, usize),
}

/// What the core says of a message that comes without a header.
#[derive(Debug)]
pub(super) struct Bare {
    pub(super) tag: u64,
    pub(super) cq_data: Option<u64>,
}

/// A message that goes straight from its sender's memory to the receive.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) recv: Recv,
    pub(super) about: About,
    pub(super) conn: u32,
    pub(super) header: RxmHeader,
    pub(super) places: RemoteSegments,
    /// The next place to read, and how many bytes are asked for.
    pub(super) next: usize,
    pub(super) asked: usize,
    /// Bytes the receive has room for.
    pub(super) wanted: usize,
    pub(super) outstanding: u32,
    /// Whether the sender writes the message, so that nothing is read.
    pub(super) by_write: bool,
    pub(super) error: Option<Error>,
    pub(super) regions: Vec<CoreRegion>,
    /// What is to be reported with the message; none if the message has a receive.
    pub(super) report: Option<Report>,
}

impl Fetch {
    /// A message of which nothing is asked for yet.
    pub(super) fn new(
        recv: Recv,
        about: About,
        conn: u32,
        header: RxmHeader,
        places: RemoteSegments,
    ) -> Self {
        let wanted = about.len.min(recv.buf.len());
        Self {
            recv,
            about,
            conn,
            header,
            places,
            next: 0,
            asked: 0,
            wanted,
            outstanding: 0,
            by_write: false,
            error: None,
            regions: Vec::new(),
            report: None,
        }
    }
}

/// What is here of a message that waits at its sender.
#[derive(Debug, Default)]
pub(crate) enum Early {
    /// Nothing is fetched.
    #[default]
    None,
    /// So many bytes of the message are being fetched.
    Coming(usize),
    /// The start of the message.
    Here(Box<[u8]>),
    /// No start can be fetched: the sender writes the message, all of it, to where the application
    /// wants it.
    Unreadable,
}

/// The part of a message that is fetched to be reported with it.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) queue: usize,
    pub(super) message: u32,
    pub(super) bytes: Vec<u8>,
}

/// Messages that are to be reported, as queue and number, by peer: messages of which not enough is
/// here yet, and all behind them.
pub(super) type Reports = HashMap<u32, VecDeque<(usize, u32)>>;

/// The largest values of FI_OPT_BUFFERED_LIMIT and FI_OPT_BUFFERED_MIN, in bytes.
pub(super) const MAX_BUFFERED: [usize; 2] = [MAX_KEPT / 4, 16384];

/// Whether a receive only names a tag.
pub(super) fn only_tag(recv: &Recv) -> bool {
    recv.flags & ONLY_TAG != 0
}

/// A call for another context than the one that listens.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) receiver: u32,
    pub(super) info: InfoBuf,
    /// The caller's address.
    pub(super) addr: Addr,
    pub(super) call: RxmCall,
}

/// The largest packet that is made on the stack for the core to copy.
pub(super) const MAX_INJECT: usize = 256;

/// A message on its way.
#[derive(Clone, Debug)]
pub(super) struct RxmMessage {
    pub(super) buf: SendBuf,
    pub(super) tagged: bool,
    pub(super) tag: u64,
    pub(super) cq_data: Option<u64>,
    /// The message is complete only when its receiver has it.
    pub(super) deliver: bool,
    /// The message is announced whatever its size, so that the receiver says when it has it: the
    /// message is to meet a receive first, or the core does not tell.
    pub(super) told: bool,
    /// Bytes that were sent in segments, and how many segments those were.
    pub(super) sent: usize,
    pub(super) segments: u32,
}

impl RxmMessage {
    pub(super) fn header(&self, kind: PacketKind) -> RxmHeader {
        RxmHeader {
            op: if self.tagged { OP_TAGGED } else { OP_MSG },
            flags: if self.cq_data.is_some() { REMOTE_CQ_DATA } else { 0 },
            size: self.buf.len() as u64,
            data: self.cq_data.unwrap_or(0),
            tag: self.tag,
            ..RxmHeader::of(kind, 0)
        }
    }
}

/// What is still to be done for a transfer.
#[derive(Debug)]
pub(super) enum Todo {
    /// Nothing is left but to wait for its completion.
    Wait,
    /// A part of it has failed: nothing more is sent of it, and it ends with this error when the
    /// core is done with the parts that it has.
    Failed(Error),
    /// To send a message.
    Send(RxmMessage),
    /// To send a packet that is ready but for the connection's number.
    Packet(CoreBuf, usize),
    /// The message was announced; its receiver fetches it, or says where to.
    Announced(RxmMessage),
    /// To write an announced message to its receiver.
    Deliver {
        buf: SendBuf,
        to: RemoteSegments,
        next: usize,
        written: usize,
        header: RxmHeader,
        /// How the writes complete: FI_DELIVERY_COMPLETE or 0.
        level: u64,
    },
    /// To read remote memory.
    Read { buf: RecvBuf, from: RemoteSegments },
    /// To write remote memory.
    Write { buf: SendBuf, to: RemoteSegments, data: u64, flags: u64 },
    /// A write to the peer's memory of bytes copied from the application; as many as `to` has.
    WriteCopy { bytes: CoreBuf, to: RemoteSegments, data: u64, flags: u64 },
}

/// A transfer that is not complete.
#[derive(Debug)]
pub(super) struct TxOp {
    pub(super) conn: u32,
    pub(super) context: Context,
    /// The flags of the completion entry.
    pub(super) flags: u64,
    /// The application's bytes, as the completion entry and counters of bytes have them.
    pub(super) len: usize,
    pub(super) report: bool,
    /// The application has its buffer back already (FI_INJECT).
    pub(super) injected: bool,
    /// The transfer starts when all before it to the same peer are complete (FI_FENCE).
    pub(super) fence: bool,
    /// Where the peer's answer goes, which completes the transfer; none if no answer is awaited.
    pub(super) answer: Option<RecvBuf>,
    pub(super) todo: Todo,
    /// Transfers of the core's that are not complete.
    pub(super) outstanding: u32,
    /// The transfer's memory, registered while it is used.
    pub(super) regions: Vec<CoreRegion>,
    /// A copy of an injected message that its receiver fetches.
    pub(super) copy: Option<CoreBuf>,
}

impl TxOp {
    /// A transfer that has not started. `kind` has the flags of its completion entry, `flags` those
    /// of the call.
    #[inline]
    pub(super) fn new(conn: u32, context: Context, kind: u64, flags: u64, todo: Todo) -> Self {
        let report = flags & FI_COMPLETION != 0;
        Self {
            conn,
            context,
            flags: kind | (flags & ASIDE),
            len: 0,
            report,
            injected: flags & FI_INJECT != 0,
            fence: flags & FI_FENCE != 0,
            answer: None,
            todo,
            outstanding: 0,
            regions: Vec::new(),
            copy: None,
        }
    }
}
