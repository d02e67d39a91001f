//! State of an endpoint's connection or connection attempt.
use super::conn_limit::ConnUsage;
use super::device_copies::MessageCopies;
use super::further::FurtherConns;
use ofi_provider::addr::Addr;
use ofi_provider::conn_arbiter::{ConnectBackoff, LocalConnState, ProcessInstance};
use ofi_provider::core_provider::{CoreBuf, CoreEndpoint};
use ofi_provider::info::InfoBuf;
use ofi_provider::rx_matcher::{Envelope, Recv};
use ofi_provider::slab::Slab;
use ofi_provider::stats::{PeerSlot, TrafficCounter};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

/// Initial receive buffers of a connection, if it has its own; more follow when these turn out too
/// few.
pub(super) const FIRST_RX_BUFFERS: usize = 4;

/// Stage of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    /// This side called, and there is no answer yet.
    Calling,
    /// The peer called and this side accepted; the core is still connecting.
    Accepting,
    /// The peer refused, or is not called before others have answered; this side calls (again) unless
    /// the peer calls.
    Refused,
    /// The connection is made, and transfers can go out.
    Connected,
    /// This side has agreed on the end of the idle connection by the peer: nothing is sent before
    /// the end or its cancellation.
    Closing,
    /// The connection has ended, and its messages wait for space in the completion queue.
    Ended,
}

impl Link {
    /// Returns true if both ends have the connection, until it ends.
    pub(super) fn is_established(self) -> bool {
        matches!(self, Self::Connected | Self::Closing)
    }

    /// Returns true if no request for a connection is on its way.
    pub(super) fn is_settled(self) -> bool {
        self.is_established() || self == Self::Refused
    }
}

/// One connection, or the attempt at one.
#[derive(Debug)]
pub(crate) struct RxmConn {
    pub(super) peer: u32,
    pub(super) link: Link,
    /// The ended connection was established before.
    pub(super) was_made: bool,
    /// The core's endpoint; none while the peer has refused.
    pub(super) ep: Option<CoreEndpoint>,
    /// Receive buffers posted to the core's endpoint, if the connection has its own, and the number
    /// to be posted.
    pub(super) rx_posted: usize,
    pub(super) rx_wanted: usize,
    /// Number in packets, in addition to the connection's index, so no packet is attributed to an
    /// earlier connection with the same index. The number need not be hard to guess: the core
    /// reports the connection of a packet.
    pub(super) secret: u32,
    /// Source of the first connection to the peer, if this is a further one with this index; 0 for a
    /// first connection.
    pub(super) first: u64,
    pub(super) index: u8,
    /// The connection attempt only probes the peer for the support of further connections.
    pub(super) is_probe: bool,
    /// Further connections to the peer of a first one, once there is a use for them.
    pub(super) further: Option<Box<FurtherConns>>,
    /// Identifier of the connection in packets to the peer.
    pub(super) remote_id: u64,
    /// The peer's process, as the peer named it.
    pub(super) process: ProcessInstance,
    /// Number of rejections by the peer, and the time of the next attempt.
    pub(super) retry: ConnectBackoff,
    /// Transfers waiting for the connection, or for space in the core.
    pub(super) waiting: VecDeque<Waiting>,
    /// Transfers already started, or awaited by a peer. They go first, even past a fence, because
    /// the fence may wait for the peer's reaction to them.
    pub(super) urgent: VecDeque<Waiting>,
    /// Announced messages waiting at the peer for a receive.
    pub(super) announced: usize,
    /// Messages arriving in segments.
    pub(super) partial: Vec<Partial>,
    /// The connection is on the endpoint's list of stalled ones.
    pub(super) stalled: bool,
    /// Incomplete transfers, including queued ones.
    pub(super) ops: usize,
    /// Time of the first observed end of the connection by the peer, while there is no buffer space
    /// for its messages.
    pub(super) ended_at: Option<Instant>,
    /// Transfers waiting for the peer have failed. Its responses to them, possibly following its
    /// messages, are ignored.
    pub(super) given_up: bool,
    /// Number of atomic operations in `ops`.
    pub(super) atomics: usize,
    /// The first queued transfer waits until all before it are complete (FI_FENCE).
    pub(super) fenced: bool,
    /// The peer is called in this library's version of connection data.
    pub(super) own: bool,
    /// The peer's byte order is not ours.
    pub(super) swapped: bool,
    /// The peer has this library.
    pub(super) ours: bool,
    /// The peer takes notices of multicast groups.
    pub(super) multicast: bool,
    /// Use of the connection, and the agreement on its end.
    pub(super) usage: ConnUsage,
    /// The sides count each other's receive buffers.
    pub(super) counted: bool,
    /// Credits received before this side knew about flow control: the peer's message may overtake
    /// its acceptance.
    pub(super) early: u32,
    /// Receive buffers not announced to the peer yet.
    pub(super) unnotified: u32,
    /// Messages and writes of the application's, and messages of the peer.
    pub(super) sent: TrafficCounter,
    pub(super) received: TrafficCounter,
    /// Entry of the connection in the statistics page.
    pub(super) published: PeerSlot,
}

impl RxmConn {
    /// Returns true if a posted receive is being filled by segments of the connection.
    pub(super) fn is_filling(&self) -> bool {
        self.partial.iter().any(|partial| partial.target.is_recv())
    }

    pub(super) fn new(peer: u32, link: Link) -> Self {
        Self {
            peer,
            link,
            was_made: false,
            ep: None,
            rx_posted: 0,
            rx_wanted: FIRST_RX_BUFFERS,
            // The secret is 0 in neither byte order.
            secret: (RandomState::new().hash_one(peer) as u32 & SECRET_MASK).max(1),
            first: 0,
            index: 0,
            is_probe: false,
            further: None,
            remote_id: 0,
            process: ProcessInstance::default(),
            retry: ConnectBackoff::default(),
            waiting: VecDeque::new(),
            urgent: VecDeque::new(),
            announced: 0,
            partial: Vec::new(),
            stalled: false,
            ops: 0,
            ended_at: None,
            given_up: false,
            atomics: 0,
            fenced: false,
            own: false,
            swapped: false,
            ours: false,
            multicast: false,
            usage: ConnUsage::default(),
            counted: false,
            early: 0,
            unnotified: 0,
            sent: TrafficCounter::default(),
            received: TrafficCounter::default(),
            published: PeerSlot::default(),
        }
    }

    /// The connection's name in packets and to the core, made of its index.
    pub(super) fn name(&self, id: u32) -> u32 {
        self.secret << INDEX_BITS | id
    }

    /// Returns the stage of the connection, for the response to a connection request of the peer.
    pub(super) fn own_call(&self) -> LocalConnState {
        match self.link {
            Link::Calling => LocalConnState::Calling,
            Link::Refused => LocalConnState::Refused,
            Link::Accepting | Link::Connected | Link::Closing | Link::Ended => LocalConnState::Made,
        }
    }

    /// Returns true if transfers can be sent right now.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.link == Link::Connected && self.waiting.is_empty() && self.urgent.is_empty()
    }

    /// Puts a removed transfer back as the next one to be sent.
    pub(super) fn put_back(&mut self, waiting: Waiting, urgent: bool) {
        let queue = if urgent { &mut self.urgent } else { &mut self.waiting };
        queue.push_front(waiting);
    }
}

/// Bits of a connection's index in its identifier; the others, except for the sign, are its random
/// number.
pub(super) const INDEX_BITS: u32 = 20;

pub(super) const SECRET_MASK: u32 = (1 << (31 - INDEX_BITS)) - 1;

/// Returns the part of a connection's number used in packets: peers have their process in the upper
/// half, omitted in packets.
pub(super) fn packet_id(conn_id: u64) -> u64 {
    conn_id & u64::from(u32::MAX)
}

/// Returns the peer's process, as encoded in a connection's number.
pub(super) fn process_of(conn_id: u64) -> ProcessInstance {
    ProcessInstance { pid: (conn_id >> 32) as u32, instance: 0 }
}

/// Returns true if a packet names the connection of its arrival, identified by `source`.
#[inline(always)]
pub(super) fn names(conn_id: u64, source: u64) -> bool {
    u64::from(conn_id as u32) == source
}

/// Returns the address of this endpoint as known to a connecting peer.
pub(super) fn own_addr(local: &Addr, info: &InfoBuf) -> Addr {
    let mut own = local.clone();
    if own.is_any() {
        let called = info.as_ref().src_addr().and_then(|addr| Addr::from_bytes(addr).ok());
        if let Some(called) = called {
            own.set_host(&called);
        }
    }
    own
}

/// Returns the connection of a received packet, as reported by the core; none if the connection is
/// closed.
#[inline(always)]
pub(super) fn came_on(conns: &Slab<RxmConn>, source: u64) -> Option<(u32, &RxmConn)> {
    let id = source as u32 & ((1 << INDEX_BITS) - 1);
    let conn = conns.get(id)?;
    (u64::from(conn.name(id)) == source).then_some((id, conn))
}

/// Purpose of a core transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// A receive buffer, of a connection's own or shared.
    Rx(u32),
    /// All of a message.
    Message(u32),
    /// A segment of a message.
    Segment(u32),
    /// A packet without any consumer of its completion.
    Packet,
    /// A read or write of the application's.
    Rma(u32),
    /// Part of a message read from its sender.
    RendezvousGet(u32),
    /// Part of a message written to its receiver.
    Deliver(u32),
}

impl Token {
    pub(super) fn to_u64(self) -> u64 {
        let (kind, id) = match self {
            Self::Rx(id) => (0, id),
            Self::Message(id) => (1, id),
            Self::Segment(id) => (2, id),
            Self::Packet => (3, 0),
            Self::Rma(id) => (4, id),
            Self::RendezvousGet(id) => (5, id),
            Self::Deliver(id) => (6, id),
        };
        kind << 32 | u64::from(id)
    }

    pub(super) fn from_u64(token: u64) -> Self {
        let id = token as u32;
        match token >> 32 {
            0 => Self::Rx(id),
            1 => Self::Message(id),
            2 => Self::Segment(id),
            4 => Self::Rma(id),
            5 => Self::RendezvousGet(id),
            6 => Self::Deliver(id),
            _ => Self::Packet,
        }
    }
}

/// An entry of a connection's waiting list.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A transfer of the application's.
    Op(u32),
    /// Local packet, its length, and its purpose.
    Packet(CoreBuf, usize, Token),
    /// A message to read from its sender.
    RendezvousGet(u32),
}

/// Target of the segments of a message.
#[derive(Debug)]
pub(super) enum SegmentTarget {
    Recv(Recv),
    /// Receive in memory of a device, with the copies of the segments.
    Device(Recv, Box<MessageCopies>),
    /// Segments for the buffered message with this number.
    Buffered(u32),
    Nowhere,
}

impl SegmentTarget {
    /// Returns the target of the segments of a message with this receive.
    pub(super) fn of(recv: Recv) -> Self {
        match recv.buf.is_device() {
            true => Self::Device(recv, Box::default()),
            false => Self::Recv(recv),
        }
    }

    /// Returns true for a receive.
    pub(super) fn is_recv(&self) -> bool {
        matches!(self, Self::Recv(_) | Self::Device(..))
    }
}

/// Message with segments still to arrive.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) msg_id: u64,
    pub(super) envelope: Envelope,
    pub(super) done: usize,
    pub(super) next: u32,
    pub(super) target: SegmentTarget,
}
