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

/// Sizes and kinds of an endpoint at its opening.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerbsEpLimits {
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) tx_iov: usize,
    pub(crate) rx_iov: usize,
    pub(crate) inject: usize,
    pub(crate) atomics: bool,
    /// The endpoint sends datagrams (FI_EP_DGRAM).
    pub(crate) datagrams: bool,
    /// The endpoint's buffers may be in memory not accessible to the processor (FI_HMEM).
    pub(crate) hmem: bool,
}

/// State of an endpoint's connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QpState {
    /// The endpoint has neither asked for a connection nor accepted one.
    None,
    /// The device resolves the route to the peer; the bytes are then sent with the connection
    /// request.
    Resolving(Vec<u8>),
    /// The connection request is to be sent, or is being sent. Sending may block, so it is done
    /// without the engine's lock, by `Engine::call`.
    Calling,
    /// The connection request is sent, and not answered yet.
    Requested,
    /// The peer's connection request is accepted, without the peer's confirmation yet.
    Accepted,
    /// The connection is established on a device with messages possibly overtaking the acceptance,
    /// ending the connection. Until this time, the accepting side sends nothing unless it has
    /// received data.
    Settling(Instant),
    /// The connection is up.
    Up,
    /// The connection failed or has ended.
    Down,
    /// The application closed the endpoint while its connection request was in progress. siw
    /// releases a queue pair only after the response to the request. The response may need both
    /// sides, so closing does not wait for it.
    Leaving {
        /// The response arrived before the return of the call sending the request.
        answered: bool,
    },
}

/// An endpoint or a shared receive context.
pub(super) struct VerbsEndpoint {
    pub(super) limits: VerbsEpLimits,
    pub(super) fid: Option<FidPtr>,
    pub(super) bindings: Bindings,
    pub(super) conn: QpState,
    /// Connection at librdmacm, shared with the thread sending its request.
    pub(super) id: Option<Arc<CmId>>,
    /// The connection request is to be sent, or a thread is sending it.
    pub(super) calling: bool,
    /// Queue pair of a datagram endpoint, in place of a connection.
    pub(super) ud: Option<Ud>,
    /// Receive queue of a shared receive context; no endpoint has one.
    pub(super) srq: Option<Srq>,
    /// Source reported by receives ([`OPT_SOURCE`](ofi_provider::core_provider::OPT_SOURCE)).
    pub(super) source: Option<fi_addr_t>,
    /// Index of the device's completion queue with space reserved for the endpoint.
    pub(super) queue: Option<usize>,
    /// Messages up to this size are copied into the request.
    pub(super) inline: usize,
    /// The sends, reads, writes and atomic operations under way.
    pub(super) sent: Fifo<VerbsTransfer>,
    /// The receives under way.
    pub(super) posted: Fifo<PostedRecv>,
    /// The peer has sent data.
    pub(super) has_received: bool,
    /// The receives under way of a shared context, in any order.
    pub(super) shared: Slab<PostedRecv>,
    /// Number of sends posted since the last signalled one.
    pub(super) silent: usize,
    /// Number of entries in `sent` reported by the device while others before them are incomplete.
    pub(super) signalled_count: usize,
    /// Requests recorded in `sent` and not posted: they are posted with the next one without
    /// FI_MORE.
    pub(super) work: Vec<WorkRequest>,
    /// Memory for the results of atomic operations.
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

    /// Returns true if the endpoint has a connection, or has accepted one.
    pub(super) fn is_made(&self) -> bool {
        matches!(self.conn, QpState::Up | QpState::Accepted | QpState::Settling(_))
    }

    /// Returns the number of this endpoint's completions with reserved space in the device's queue.
    pub(super) fn reserved(&self) -> usize {
        self.limits.tx_size + self.limits.rx_size
    }
}
