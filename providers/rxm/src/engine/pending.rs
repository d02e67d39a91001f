//! Pending operations of an endpoint: transfers, queued messages, and rendezvous reads.
use crate::wire::{
    HEADER_LEN, OP_MSG, OP_TAGGED, PacketKind, REMOTE_CQ_DATA, RxmConnReq, RxmHeader,
};
use ofi_provider::abi::{FI_COMPLETION, FI_FENCE, FI_INJECT, FI_REMOTE_CQ_DATA};
use ofi_provider::addr::Addr;
use ofi_provider::api::{RemoteSegments, SendOp};
use ofi_provider::buf::{RecvBuf, SendBuf};
use ofi_provider::core_provider::{CoreBuf, CoreRegion};
use ofi_provider::cq::Context;
use ofi_provider::error::Error;
use ofi_provider::info::InfoBuf;
use ofi_provider::reserved::{INTERNAL_OP, ONLY_TAG};
use ofi_provider::rx_matcher::{self, Envelope, Recv};
use ofi_provider::slab::NONE;
use std::collections::{HashMap, VecDeque};

/// Memory limit of buffered messages of one endpoint, or of all endpoints sharing their receives.
/// Beyond it nothing more is taken from the core.
pub(super) const MAX_UNEXPECTED: usize = 256 << 20;

/// Form of a buffered unexpected message.
#[derive(Debug)]
pub(crate) enum RxmUnexpected {
    /// All of the message is here.
    Whole(Box<[u8]>),
    /// All of the message is here, in the buffer it came in, behind the header.
    InPacket(CoreBuf, usize),
    /// The message is arriving in segments.
    Partial { bytes: Vec<u8>, conn: u32, msg_id: u64 },
    /// The message is to be fetched from its sender.
    AtSender { conn: u32, header: RxmHeader, segments: RemoteSegments, early: PartialUnexpected },
    /// The message's connection ended before the message was here.
    Lost,
}

impl rx_matcher::UnexpectedBody for RxmUnexpected {
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
            Self::AtSender { early, segments, .. } => {
                let early = match early {
                    PartialUnexpected::None | PartialUnexpected::Unreadable => 0,
                    PartialUnexpected::Coming(len) => *len,
                    PartialUnexpected::Here(bytes) => bytes.len(),
                };
                segments.memory() + early
            }
            Self::Lost => 0,
        }
    }

    /// Endpoints are closed without the engine's lock.
    const ONE_LOCK: bool = false;
}

/// Content of a receive buffer of the core.
#[derive(Debug)]
pub(super) struct RxmPacket {
    pub(super) buf: CoreBuf,
    pub(super) len: usize,
    /// Connection owning the buffer; [`NONE`] if all connections share it.
    pub(super) conn: u32,
    /// Connection of the received packet ([`came_on`]).
    pub(super) source: u64,
    /// The packet is a bare tagged message: in version 1.17 of upstream libfabric, packets of
    /// tagged messages have no header of this provider.
    pub(super) bare: Option<HeaderlessMessage>,
}

/// Event received while the completion queue was full, stored in order.
#[derive(Debug)]
pub(super) enum Parked {
    Packet(RxmPacket),
    /// A peer wrote to local memory: its data, and the number of bytes.
    Written(u64, usize),
}

/// Attributes of a message without a header, as reported by the core.
#[derive(Debug)]
pub(super) struct HeaderlessMessage {
    pub(super) tag: u64,
    pub(super) cq_data: Option<u64>,
}

/// Message read directly from its sender's memory into the receive.
#[derive(Debug)]
pub(super) struct RendezvousGet {
    pub(super) recv: Recv,
    pub(super) envelope: Envelope,
    pub(super) conn: u32,
    pub(super) header: RxmHeader,
    pub(super) segments: RemoteSegments,
    /// Connection for the reads; [`NONE`] before the first one.
    pub(super) via: u32,
    /// Next segment to read, and the number of bytes requested.
    pub(super) next: usize,
    pub(super) asked: usize,
    /// Size of the receive's buffer in bytes.
    pub(super) wanted: usize,
    pub(super) outstanding: u32,
    /// The sender writes the message, so nothing is read.
    pub(super) by_write: bool,
    pub(super) error: Option<Error>,
    pub(super) regions: Vec<CoreRegion>,
    /// Part of the message to be reported with it; none if the message has a receive.
    pub(super) report: Option<Report>,
}

impl RendezvousGet {
    /// Creates the state of a message with nothing requested yet.
    pub(super) fn new(
        recv: Recv,
        envelope: Envelope,
        conn: u32,
        header: RxmHeader,
        segments: RemoteSegments,
    ) -> Self {
        let wanted = envelope.len.min(recv.buf.len());
        Self {
            recv,
            envelope,
            conn,
            header,
            segments,
            via: NONE,
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

/// Part of a rendezvous message received early.
#[derive(Debug, Default)]
pub(crate) enum PartialUnexpected {
    /// Nothing is fetched.
    #[default]
    None,
    /// So many bytes of the message are being fetched.
    Coming(usize),
    /// The start of the message.
    Here(Box<[u8]>),
    /// No start can be read: the sender writes the whole message to the buffer supplied by the
    /// application.
    Unreadable,
}

/// Part of a message to be read and reported with it.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) queue: usize,
    pub(super) message: u32,
    pub(super) bytes: Vec<u8>,
}

/// Messages to be reported, as queue and number, by peer: messages with too few bytes received, and
/// all after them.
pub(super) type Reports = HashMap<u32, VecDeque<(usize, u32)>>;

/// The largest values of FI_OPT_BUFFERED_LIMIT and FI_OPT_BUFFERED_MIN, in bytes.
pub(super) const MAX_BUFFERED: [usize; 2] = [MAX_UNEXPECTED / 4, 16384];

/// Returns true if a receive only names a tag.
pub(super) fn only_tag(recv: &Recv) -> bool {
    recv.flags & ONLY_TAG != 0
}

/// Connection request for another context than the listening one.
#[derive(Debug)]
pub(super) struct ContextConnReq {
    pub(super) receiver: u32,
    pub(super) info: InfoBuf,
    /// The caller's address.
    pub(super) addr: Addr,
    pub(super) call: RxmConnReq,
}

/// Maximum size of a packet built on the stack and copied by the core.
pub(super) const MAX_INJECT: usize = 256;

/// Form of a sent message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessageWay {
    /// One packet, segments or rendezvous, by its size.
    BySize,
    /// Rendezvous regardless of its size, so the receiver acknowledges the message: it must match a
    /// receive first, or the core does not report delivery.
    Announced,
    /// One packet with the payload in memory of a device, read by the core.
    DevicePacket,
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(super) struct RxmMessage {
    pub(super) buf: SendBuf,
    pub(super) tagged: bool,
    pub(super) tag: u64,
    pub(super) cq_data: Option<u64>,
    /// The message is complete only when its receiver has it.
    pub(super) deliver: bool,
    pub(super) way: MessageWay,
    /// Bytes sent in segments, and the number of these segments.
    pub(super) sent: usize,
    pub(super) segments: u32,
    /// Number of the segmented message, if segments of several may arrive in any order.
    pub(super) number: u32,
}

impl RxmMessage {
    /// Creates the message of an operation, before its first packet. `deliver`: it is complete only
    /// when its receiver has it.
    #[inline(always)]
    pub(super) fn new(op: SendOp, tagged: bool, deliver: bool, way: MessageWay) -> Self {
        Self {
            tagged,
            tag: op.tag,
            cq_data: (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data),
            buf: op.buf,
            deliver,
            way,
            sent: 0,
            segments: 0,
            number: 0,
        }
    }

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

/// Remaining work of a transfer.
#[derive(Debug)]
pub(super) enum PendingSteps {
    /// Nothing is left but to wait for its completion.
    Wait,
    /// A part of it has failed: nothing more of it is sent. It ends with this error when the core
    /// has completed its other parts.
    Failed(Error),
    /// To send a message.
    Send(RxmMessage),
    /// Send a packet, complete except for the connection's number.
    Packet(CoreBuf, usize),
    /// The message was announced; its receiver reads it, or supplies an address for a write.
    Announced(RxmMessage),
    /// To write an announced message to its receiver.
    Deliver {
        buf: SendBuf,
        to: RemoteSegments,
        next: usize,
        written: usize,
        header: RxmHeader,
        /// Completion level of the writes: FI_DELIVERY_COMPLETE or 0.
        level: u64,
    },
    /// To read remote memory.
    Read { buf: RecvBuf, from: RemoteSegments },
    /// To write remote memory.
    Write { buf: SendBuf, to: RemoteSegments, data: u64, flags: u64 },
    /// A write to the peer's memory of bytes copied from the application; as many as `to` has.
    WriteCopy { bytes: CoreBuf, to: RemoteSegments, data: u64, flags: u64 },
}

/// Incomplete transfer.
#[derive(Debug)]
pub(crate) struct TxOp {
    pub(super) conn: u32,
    /// Connection for the parts without an order, chosen at the first of them; [`NONE`] before.
    pub(super) via: u32,
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
    /// Buffer for the peer's response, completing the transfer; none if no response is awaited.
    pub(super) answer: Option<RecvBuf>,
    pub(super) todo: PendingSteps,
    /// Incomplete transfers of the core.
    pub(super) outstanding: u32,
    /// The transfer's memory, registered while it is used.
    pub(super) regions: Vec<CoreRegion>,
    /// Copy of an injected message, to be read by its receiver.
    pub(super) copy: Option<CoreBuf>,
}

impl TxOp {
    /// Creates an unstarted transfer. `kind` has the flags of its completion entry, `flags` those
    /// of the call.
    #[inline]
    pub(super) fn new(
        conn: u32,
        context: Context,
        kind: u64,
        flags: u64,
        todo: PendingSteps,
    ) -> Self {
        let report = flags & FI_COMPLETION != 0;
        Self {
            conn,
            via: NONE,
            context,
            flags: kind | (flags & INTERNAL_OP),
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
