//! An endpoint, as the engine keeps it.
use super::request::{Fifo, PostedRecv, Scratch, VerbsTransfer};
use crate::sys::{CmId, Qp, Srq, UdAddressHandle, UdQp, WorkRequest};
use ofi_provider::abi::fi_addr_t;
use ofi_provider::addr::UdAddr;
use ofi_provider::api::Bindings;
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use ofi_provider::slab::Slab;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The sizes and kinds that an endpoint is opened with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerbsEpLimits {
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) tx_iov: usize,
    pub(crate) rx_iov: usize,
    pub(crate) inject: usize,
    pub(crate) atomics: bool,
    /// Whether the endpoint sends datagrams (FI_EP_DGRAM).
    pub(crate) datagrams: bool,
    /// The endpoint's buffers may be where the processor must not look (FI_HMEM).
    pub(crate) hmem: bool,
}

/// How far an endpoint's connection is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QpState {
    /// The endpoint has neither asked for a connection nor accepted one.
    None,
    /// The device looks for the way to the peer; the bytes then go along with the
    /// connection request.
    Resolving(Vec<u8>),
    /// The connection request is to be sent, or is being sent: that may block, so it is
    /// done without the engine's lock, by `Engine::call`.
    Calling,
    /// The connection request is sent, and not answered yet.
    Requested,
    /// The peer's connection request is accepted; the peer has not confirmed that yet.
    Accepted,
    /// The connection is up on a device on which a message may overtake the acceptance,
    /// which would end the connection: until this time, the side that accepted sends
    /// nothing unless it has received something.
    Settling(Instant),
    /// The connection is up.
    Up,
    /// The connection failed or has ended.
    Down,
    /// The application closed the endpoint while its connection request was under way. siw
    /// lets go of a queue pair only when the request is answered, which may need both
    /// sides, so closing does not wait for that.
    Leaving {
        /// The answer was there before the call that sent the request returned.
        answered: bool,
    },
}

/// An endpoint or a shared receive context.
pub(super) struct VerbsEndpoint {
    pub(super) limits: VerbsEpLimits,
    pub(super) fid: Option<FidPtr>,
    pub(super) bindings: Bindings,
    pub(super) conn: QpState,
    /// The connection at librdmacm, shared with the thread that sends its request.
    pub(super) id: Option<Arc<CmId>>,
    /// The connection request is to be sent, or a thread is sending it.
    pub(super) calling: bool,
    /// What a datagram endpoint has instead of a connection.
    pub(super) ud: Option<Ud>,
    /// The queue of receives that a shared receive context is, and no endpoint has.
    pub(super) srq: Option<Srq>,
    /// What receives report as their source ([`OPT_SOURCE`](ofi_provider::core_provider::OPT_SOURCE)).
    pub(super) source: Option<fi_addr_t>,
    /// The index of the device's completion queue in which the endpoint has room.
    pub(super) queue: Option<usize>,
    /// Messages up to this size are copied into the request.
    pub(super) inline: usize,
    /// The sends, reads, writes and atomic operations under way.
    pub(super) sent: Fifo<VerbsTransfer>,
    /// The receives under way.
    pub(super) posted: Fifo<PostedRecv>,
    /// Whether the peer has sent something.
    pub(super) has_received: bool,
    /// The receives under way of a shared context, in any order.
    pub(super) shared: Slab<PostedRecv>,
    /// How many sends were posted since the last one whose success the device reports.
    pub(super) silent: usize,
    /// How many of `sent` the device has reported while others before them are not complete.
    pub(super) signalled_count: usize,
    /// Requests that are noted in `sent` and not posted: they are posted with the next one
    /// that has no FI_MORE.
    pub(super) work: Vec<WorkRequest>,
    /// Where the results of atomic operations go.
    pub(super) scratch: Option<Scratch>,
}

/// A datagram endpoint's queue pair, and the ways to the peers it sent to.
pub(super) struct Ud {
    // Dropped first: with the queue pair goes the protection domain.
    pub(super) address_handles: HashMap<UdAddr, UdAddressHandle>,
    pub(super) pair: UdQp,
}

impl VerbsEndpoint {
    pub(super) fn new(limits: VerbsEpLimits) -> Self {
        Self {
            limits,
            fid: None,
            bindings: Bindings::default(),
            conn: QpState::None,
            id: None,
            calling: false,
            ud: None,
            srq: None,
            source: None,
            queue: None,
            inline: 0,
            sent: Fifo::default(),
            posted: Fifo::default(),
            has_received: false,
            shared: Slab::default(),
            silent: 0,
            signalled_count: 0,
            work: Vec::new(),
            scratch: None,
        }
    }

    /// The endpoint's queue pair.
    #[inline]
    pub(super) fn qp(&self) -> Result<Qp<'_>> {
        match (&self.id, &self.ud) {
            (Some(id), _) => id.qp(),
            (None, Some(ud)) => Ok(ud.pair.qp()),
            (None, None) => Err(Error::NOTCONN),
        }
    }

    /// Whether the endpoint has a connection, or has accepted one.
    pub(super) fn is_made(&self) -> bool {
        matches!(self.conn, QpState::Up | QpState::Accepted | QpState::Settling(_))
    }

    /// How many completions of this endpoint the device's queue has room for.
    pub(super) fn reserved(&self) -> usize {
        self.limits.tx_size + self.limits.rx_size
    }
}
