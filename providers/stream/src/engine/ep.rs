//! The engine's side of an endpoint.
use super::arrival::Unreceived;
use super::transfer::Outgoing;
use crate::secret::JobSecret;
use crate::settings::{MAX_UNEXPECTED, StreamSettings};
use crate::wire::BEHIND_FIREWALL;
use ofi_provider::abi::{
    FI_ATOMIC, FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_WRITE, fi_addr_t,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::Bindings;
use ofi_provider::av::Av;
use ofi_provider::calls::{CallRetry, ProcessMark};
use ofi_provider::contexts::ContextPlace;
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::eq::{Eq, FidPtr};
use ofi_provider::error::Result;
use ofi_provider::facts::{EndpointErrors, EndpointPlace, PeerPlace, PeersRetired, TransferTimes};
use ofi_provider::inbox::Inbox;
use ofi_provider::ledger::TxLedger;
use ofi_provider::peers::{PeerExtra, PeerTable};
use ofi_provider::slab::NONE;
use std::collections::VecDeque;
use std::sync::Arc;

/// Largest value of FI_OPT_BUFFERED_MIN, in bytes of a message's start: what surely fits behind
/// a header in the staging buffer.
pub(super) const MAX_START: usize = 1024;

/// The largest values of FI_OPT_BUFFERED_LIMIT and FI_OPT_BUFFERED_MIN, in bytes.
pub(super) const MAX_BUFFERED: [usize; 2] = [MAX_UNEXPECTED / 4, MAX_START];

/// The kinds of endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEpKind {
    /// FI_EP_MSG: one connection, made by the application.
    Msg,
    /// FI_EP_RDM: a connection for every peer, made as needed.
    Rdm,
    /// A shared receive context (fi_srx_context): an inbox for the endpoints
    /// that are bound to it, without a connection of its own.
    Srx,
}

/// What an endpoint lets peers do to memory of this side, beside what a region lets
/// them: FI_REMOTE_READ and FI_REMOTE_WRITE, or neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetOf {
    /// Rights of a peer's fi_read and fi_write (FI_RMA).
    pub rma: u64,
    /// Rights of a peer's atomic operations (FI_ATOMIC).
    pub atomics: u64,
}

impl TargetOf {
    /// An endpoint whose peers may not access memory at all.
    pub const NOTHING: Self = Self { rma: 0, atomics: 0 };

    /// What an endpoint with these capabilities lets peers do: FI_RMA and FI_ATOMIC without a
    /// direction mean access in every direction, with a direction only what is named
    /// (fi_getinfo(3)).
    pub fn new(caps: u64) -> Self {
        let both = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let rights = match caps & (FI_READ | FI_WRITE | both) {
            0 => both,
            named => named & both,
        };
        let of = |cap| if caps & cap != 0 { rights } else { 0 };
        Self { rma: of(FI_RMA), atomics: of(FI_ATOMIC) }
    }
}

/// What an endpoint is from its opening on: its kind, its address, and what it was asked to do.
#[derive(Clone, Debug)]
pub struct StreamIdentity {
    /// The endpoint's kind.
    pub kind: StreamEpKind,
    /// The endpoint tells peers that they cannot connect to it (FI_OPT_FIREWALL_ADDR).
    pub firewalled: bool,
    /// Peers of this host may be talked to through memory (FI_OPT_SHARED_MEMORY_PERMITTED).
    pub memory: bool,
    /// The endpoint's own address; the port, or the name, may be open until it listens.
    pub local: Addr,
    /// The endpoint connects from the port in `local`, which is that of the passive endpoint it
    /// was opened with.
    pub keep_port: bool,
    /// What the application asked for.
    pub attr: RdmAttr,
    /// What peers may do to registered memory through this endpoint.
    pub target: TargetOf,
    /// The secret of the endpoint's own that its peers have to have, if it is not its domain's.
    pub secret: Option<JobSecret>,
}

impl AsMut<RdmAttr> for StreamIdentity {
    fn as_mut(&mut self) -> &mut RdmAttr {
        &mut self.attr
    }
}

/// What is kept of a peer of an RDM endpoint beside what every provider keeps.
#[derive(Default, Debug)]
pub(super) struct StreamPeer {
    /// The peer's process, as its connection message said.
    pub(super) process: ProcessMark,
    /// Transfers that wait for a connection to this peer while there is none.
    pub(super) parked: VecDeque<Outgoing>,
    /// How often the peer refused our calls, and when it is called again.
    pub(super) retry: CallRetry,
    /// Whether the last call found no process at the peer's address, and the peer was never heard of: its transfers wait until it exists
    /// ([`StreamSettings::patience`](crate::settings::StreamSettings::patience)).
    pub(super) is_absent: bool,
    /// Where the peer is shown to others while it has no connection and transfers wait for one.
    pub(super) shown: PeerPlace,
}

impl PeerExtra for StreamPeer {
    fn is_idle(&self) -> bool {
        self.parked.is_empty()
    }
}

/// An endpoint of the engine, or a pair of contexts of a scalable endpoint.
pub(crate) struct StreamEngineEp {
    pub(super) identity: StreamIdentity,
    pub(super) fid: FidPtr,
    /// Where the endpoint's transfers are reported: completion queue and counters.
    pub(super) ledger: TxLedger,
    pub(super) eq: Option<Arc<Eq>>,
    pub(super) av: Option<Arc<Av>>,
    /// What receives report as their source was chosen (`OPT_SOURCE`).
    pub(super) has_source: bool,

    /// Transfers of the application that are not complete; at most tx_attr.size.
    pub(super) tx_pending: usize,

    /// The endpoint's receives and unexpected messages, what it knows of their senders, and where
    /// receives and peers' accesses to our memory are reported.
    pub(super) inbox: Inbox<Unreceived>,

    pub(super) peers: PeerTable<StreamPeer>,

    /// Which of a scalable endpoint's contexts this is.
    pub(super) place: ContextPlace,

    /// The one connection of a MSG endpoint; `NONE` on other endpoints.
    pub(super) conn: u32,

    /// Errors that were reported, for others to be shown.
    pub(super) errors: EndpointErrors,
    /// What passed over connections that are no more.
    pub(super) past: PeersRetired,
    /// How long transfers take that wait.
    pub(super) times: TransferTimes,
    /// Peers that are to be called again were looked for when the endpoint was shown last.
    pub(super) called: bool,
    /// Where the endpoint is shown to others.
    pub(super) shown: EndpointPlace,
}

impl StreamEngineEp {
    pub(super) fn new(id: u32, identity: StreamIdentity, settings: &StreamSettings) -> Self {
        let least = settings.min_multi_recv;
        let mut inbox = identity.attr.inbox(id, least, MAX_BUFFERED);
        if identity.kind != StreamEpKind::Rdm || identity.attr.buffered {
            // The application chose the peer of a connected endpoint; with buffered receives it
            // asks to be told of all senders.
            inbox.trust_all();
        }
        Self {
            identity,
            fid: FidPtr(std::ptr::null_mut()),
            ledger: TxLedger::default(),
            eq: None,
            av: None,
            has_source: false,
            tx_pending: 0,
            inbox,
            peers: PeerTable::default(),
            place: ContextPlace::default(),
            conn: NONE,
            errors: EndpointErrors::default(),
            past: PeersRetired::default(),
            times: TransferTimes::default(),
            called: false,
            shown: EndpointPlace::default(),
        }
    }

    /// The connection to the destination of an operation, if that is a known peer; `NONE` if the
    /// peer has no connection.
    #[inline(always)]
    pub(super) fn conn_to(&self, dest: fi_addr_t) -> Option<u32> {
        if self.identity.kind == StreamEpKind::Msg {
            return Some(self.conn);
        }
        Some(self.peers.named(dest)?.conn)
    }

    /// The peer with this address, added if it is new. `addr` is without an IPv6 flow label,
    /// which does not tell peers apart.
    pub(super) fn peer_at(&mut self, addr: Addr) -> u32 {
        self.peers.peer_at(self.av.as_deref(), addr, &mut self.inbox)
    }

    /// The peer that a destination names. -FI_ENOAV without an address vector.
    pub(super) fn peer_for(&mut self, dest: fi_addr_t) -> Result<u32> {
        self.peers.find(self.av.as_deref(), dest, &mut self.inbox)
    }

    /// Removes a peer that nothing refers to: not connected, not in the address vector, without
    /// kept messages and waiting transfers.
    pub(super) fn forget_peer_if_unused(&mut self, peer: u32) {
        #[cfg(any(test, feature = "sim"))]
        if ofi_simulation::planted() == Some(ofi_simulation::PlantedFault::LeakedPeer) {
            return;
        }
        self.peers.forget_if_unused(peer, &mut self.inbox);
    }
}

impl StreamEngineEp {
    /// The feature bits ([`RdmHello`](crate::wire::RdmHello)) that the endpoint tells peers when
    /// a connection is made.
    pub(super) fn features(&self) -> u8 {
        if self.identity.firewalled { BEHIND_FIREWALL } else { 0 }
    }

    /// Whether a peer cannot be called, as the peer itself said or the application
    /// (FI_FIREWALL_ADDR in fi_av_insert(3)).
    pub(super) fn is_out_of_reach(&self, peer: u32) -> bool {
        self.peers.is_out_of_reach(self.av.as_deref(), peer)
    }
}

impl StreamEngineEp {
    /// Takes over the objects bound to the endpoint, when it is enabled.
    pub(crate) fn bind(&mut self, bindings: &Bindings) {
        self.bind_tx(bindings);
        self.bind_rx(bindings);
        self.eq.clone_from(&bindings.eq);
        self.av.clone_from(&bindings.av);
    }

    /// Takes over the completion queue and counters bound for transmits.
    pub(super) fn bind_tx(&mut self, bindings: &Bindings) {
        self.ledger.clone_from(&bindings.ledger.tx);
    }

    /// Takes over the completion queue and counters bound for receives and for peers' accesses
    /// to our memory.
    pub(super) fn bind_rx(&mut self, bindings: &Bindings) {
        self.inbox.bind(&bindings.ledger.rx);
    }

    /// Whether the endpoint has buffered receives (FI_BUFFERED_RECV).
    pub(crate) fn is_buffered(&self) -> bool {
        self.inbox.buffering().is_some()
    }

    /// Whether messages may go the short ways, which look at no flags but those of the call and
    /// hand over no message that is buffered.
    pub(crate) fn is_plain(&self) -> bool {
        !self.is_buffered() && self.identity.attr.send_flags == 0
    }

    /// Whether the endpoint takes messages of the library's own (FI_COLLECTIVE, FI_MULTICAST).
    pub(crate) fn is_collective(&self) -> bool {
        self.identity.attr.collective
    }

    /// Sets the fid by which events name the endpoint.
    pub(crate) fn set_fid(&mut self, fid: FidPtr) {
        self.fid = fid;
        self.inbox.set_fid(fid);
    }

    pub(crate) fn kind(&self) -> StreamEpKind {
        self.identity.kind
    }

    /// The endpoint's own address.
    pub(crate) fn local(&self) -> &Addr {
        &self.identity.local
    }

    /// How many more transfers may be started: tx_attr.size less those under way.
    pub(crate) fn tx_left(&self) -> usize {
        self.identity.attr.tx_size.saturating_sub(self.tx_pending)
    }
}
