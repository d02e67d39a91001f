//! The engine's side of an endpoint.
use super::arrival::UnexpectedPayload;
use super::device_recv::{self, DeviceRecv, DeviceTarget};
use super::incoming::MessageTarget;
use super::transfer::{TxCompletion, TxRequest};
use crate::secret::PskConfig;
use crate::settings::{MAX_UNEXPECTED, StreamSettings};
use crate::transport::LinkRecovery;
use crate::wire::{BEHIND_FIREWALL, RequestNumber};
use ofi_provider::abi::{
    FI_ATOMIC, FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_WRITE, fi_addr_t,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::Bindings;
use ofi_provider::av::Av;
use ofi_provider::completions::TxCompletions;
use ofi_provider::conn_arbiter::{ConnectBackoff, ProcessInstance};
use ofi_provider::contexts::ContextIndex;
use ofi_provider::cq::{CompletionError, Context};
use ofi_provider::device::{BouncePool, DeviceInterfaces};
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::eq::{Eq, EqEvent, EventError, FidPtr};
use ofi_provider::error::{Error, Result};
use ofi_provider::peers::{PeerExtra, PeerTable};
use ofi_provider::reserved::TIMED;
use ofi_provider::rx_matcher::{Envelope, Recv, RxMatcher};
use ofi_provider::slab::NONE;
use ofi_provider::stats::{EndpointErrors, EndpointSlot, PeerSlot, PeersRetired, TransferTimes};
use ofi_provider::traffic_class::TrafficClass;
use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;

/// Largest value of FI_OPT_BUFFERED_MIN, in bytes of a message's start. This size always fits after
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
    /// A shared receive context (fi_srx_context): a matching engine for the endpoints bound to it,
    /// without a connection.
    Srx,
}

/// Access rights of peers to local memory through an endpoint, in addition to those of a region:
/// FI_REMOTE_READ and FI_REMOTE_WRITE, or neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetOf {
    /// Rights of a peer's fi_read and fi_write (FI_RMA).
    pub rma: u64,
    /// Rights of a peer's atomic operations (FI_ATOMIC).
    pub atomics: u64,
}

impl TargetOf {
    /// Rights of an endpoint without any memory access for peers.
    pub const NOTHING: Self = Self { rma: 0, atomics: 0 };

    /// Returns the access rights for these capabilities. FI_RMA and FI_ATOMIC without a direction
    /// mean access in every direction; with a direction only the named ones (fi_getinfo(3)).
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

/// Identity of an endpoint from its opening on: its kind, its address, and the requested
/// attributes.
#[derive(Clone, Debug)]
pub struct StreamIdentity {
    /// The endpoint's kind.
    pub kind: StreamEpKind,
    /// The endpoint advertises to peers: connections to it are impossible (FI_OPT_FIREWALL_ADDR).
    pub behind_firewall: bool,
    /// Peers of this host may be talked to through memory (FI_OPT_SHARED_MEMORY_PERMITTED).
    pub memory: bool,
    /// The endpoint's own address; the port, or the name, may be open until it listens.
    pub local: Addr,
    /// The endpoint connects from the port in `local`, the port of the passive endpoint used to
    /// open it.
    pub keep_port: bool,
    /// Attributes requested by the application.
    pub attr: RdmAttr,
    /// Rights of peers on registered memory through this endpoint.
    pub target: TargetOf,
    /// Pre-shared key of the endpoint, required of its peers, if it differs from the domain's key.
    pub secret: Option<PskConfig>,
    /// Class of the endpoint's packets.
    pub class: TrafficClass,
    /// Interfaces to devices with memory for buffers of the endpoint (FI_HMEM).
    pub interfaces: Option<DeviceInterfaces>,
}

impl AsMut<RdmAttr> for StreamIdentity {
    fn as_mut(&mut self) -> &mut RdmAttr {
        &mut self.attr
    }
}

/// Stream-specific state of a peer of an RDM endpoint, in addition to the state common to all
/// providers.
#[derive(Default, Debug)]
pub(super) struct StreamPeer {
    /// Peer's process, as stated in its connection message.
    pub(super) process: ProcessInstance,
    /// Connection about to end by agreement, or ended in one direction: transfers wait for its end.
    pub(super) closing: Option<u32>,
    /// Connection of this end replaced by one of the peer, until the peer has answered its request
    /// ([`ConnUsage::is_replaced`](super::conn_usage::ConnUsage::is_replaced)).
    pub(super) replaced: Option<u32>,
    /// Transfers waiting for a connection to this peer while there is none.
    pub(super) parked: VecDeque<TxRequest>,
    /// Number of rejected connection requests, and the time of the next attempt.
    pub(super) retry: ConnectBackoff,
    /// Number of the connection request without a response, and true if it was sent. Further attempts
    /// repeat it.
    request: Option<(RequestNumber, bool)>,
    /// Number of the peer's last request rejected because of the established connection.
    rejected: Option<RequestNumber>,
    /// The peer has rejected a connection request since the last connection.
    is_rejected: bool,
    /// The last attempt found no process at the peer's address, and the peer was never connected.
    /// Its transfers wait until it exists
    /// ([`StreamSettings::hold_off`](crate::settings::StreamSettings::hold_off)).
    pub(super) is_absent: bool,
    /// Entry of the peer in the statistics page while it has no connection and transfers wait for
    /// one.
    pub(super) published: PeerSlot,
}

impl StreamPeer {
    /// Returns the number of the next connection request: that of the one without a response, else
    /// `new`.
    pub(super) fn number_request(&mut self, new: Option<RequestNumber>) -> Option<RequestNumber> {
        self.request = self.request.or(new.map(|number| (number, false)));
        self.request.map(|(number, _)| number)
    }

    /// Records a sent connection request.
    pub(super) fn set_request_sent(&mut self) {
        if let Some((_, is_sent)) = &mut self.request {
            *is_sent = true;
        }
    }

    /// Records the rejection of the connection request.
    pub(super) fn set_rejected(&mut self) {
        (self.request, self.is_rejected) = (None, true);
    }

    /// Returns true if the peer has rejected a connection request since the last connection.
    pub(super) fn is_rejected(&self) -> bool {
        self.is_rejected
    }

    /// Returns true if the peer may have received a request whose response was lost.
    pub(super) fn has_sent_request(&self) -> bool {
        self.request.is_some_and(|(_, is_sent)| is_sent)
    }

    /// Records the established connection.
    pub(super) fn connected(&mut self) {
        self.retry.made();
        (self.request, self.rejected, self.is_rejected) = (None, None, false);
    }

    /// Records a request of the peer rejected because of the established connection. Returns true if
    /// the peer knows no connection: the first such request may have been sent before it.
    pub(super) fn add_rejected(&mut self, number: Option<RequestNumber>) -> bool {
        let before = std::mem::replace(&mut self.rejected, number);
        number.is_none() || before.is_some_and(|before| Some(before) != number)
    }

    /// Returns true if transfers to the unconnected peer wait: for a connection attempt made without
    /// further reason, or for the end of an earlier connection.
    pub(super) fn is_waiting(&self) -> bool {
        self.retry.is_waiting() || self.closing.is_some()
    }
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
    /// Completion sink of the endpoint's transfers: completion queue and counters.
    pub(super) completions: TxCompletions,
    pub(super) eq: Option<Arc<Eq>>,
    pub(super) av: Option<Arc<Av>>,
    /// The source reported by receives was set explicitly (`OPT_SOURCE`).
    pub(super) has_source: bool,

    /// Incomplete transfers of the application; at most tx_attr.size.
    pub(super) tx_pending: usize,

    /// Matching engine: the endpoint's receives and unexpected messages, the state of their
    /// senders, and the completion sink of receives and of peers' accesses to local memory.
    pub(super) matcher: RxMatcher<UnexpectedPayload>,

    pub(super) peers: PeerTable<StreamPeer>,

    /// Host memory for copies of memory of devices, if buffers may be there.
    pub(super) bounce: Option<Arc<BouncePool>>,

    /// Index of this context within a scalable endpoint.
    pub(super) context_index: ContextIndex,

    /// The one connection of a MSG endpoint; `NONE` on other endpoints.
    pub(super) conn: u32,

    /// Reported errors, for the statistics page.
    pub(super) errors: EndpointErrors,
    /// Traffic of closed connections.
    pub(super) past: PeersRetired,
    /// Sums of all connections, closed or not.
    pub(super) recovered: LinkRecovery,
    /// Number of idle connections closed at the limit of descriptors.
    pub(super) closed_idle: u64,
    /// Durations of transfers that had to wait.
    pub(super) times: TransferTimes,
    /// At the last publication of the endpoint's statistics, peers due for a connection retry were
    /// searched.
    pub(super) called: bool,
    /// Entry of the endpoint in the statistics page.
    pub(super) published: EndpointSlot,
}

impl StreamEngineEp {
    /// Returns true if devices of peers on this host may read memory of devices of the endpoint.
    pub(super) fn shares_devices(&self) -> bool {
        self.bounce.as_ref().is_some_and(|pool| pool.shares())
    }

    /// Permits or forbids devices of peers on this host to read memory of devices.
    pub(super) fn share_devices(&self, permitted: bool) {
        if let Some(pool) = &self.bounce {
            pool.set_shares(permitted);
        }
    }

    /// Reports the failure of a connection before its establishment. `data`: user data of a rejection.
    #[cold]
    pub(super) fn report_not_connected(&self, error: Error, data: Vec<u8>) {
        if let Some(eq) = &self.eq {
            eq.write(EqEvent::Error(EventError {
                fid: self.fid,
                context: Context::NULL,
                data: 0,
                error,
                prov_errno: error.code(),
                err_data: data,
            }));
        }
    }

    pub(super) fn new(id: u32, identity: StreamIdentity, settings: &StreamSettings) -> Self {
        let least = settings.min_multi_recv;
        let mut matcher = identity.attr.matcher(id, least, MAX_BUFFERED);
        if identity.kind != StreamEpKind::Rdm || identity.attr.buffered {
            // The application chose the peer of a connected endpoint. With buffered receives it
            // requests reports from all senders.
            matcher.senders.trust_all();
        }
        let (limit, timeout) = (settings.hmem_bounce, settings.hmem_timeout);
        let bounce = identity.interfaces.map(|all| BouncePool::new(all, limit, timeout));
        if let Some(pool) = &bounce {
            pool.set_shares(settings.hmem_shares);
        }
        Self {
            bounce,
            identity,
            fid: FidPtr(std::ptr::null_mut()),
            completions: TxCompletions::default(),
            eq: None,
            av: None,
            has_source: false,
            tx_pending: 0,
            matcher,
            peers: PeerTable::default(),
            context_index: ContextIndex::default(),
            conn: NONE,
            errors: EndpointErrors::default(),
            past: PeersRetired::default(),
            recovered: LinkRecovery::default(),
            closed_idle: 0,
            times: TransferTimes::default(),
            called: false,
            published: EndpointSlot::default(),
        }
    }

    /// Returns the connection to the destination of an operation, if it is a known peer; `NONE` if
    /// the peer has no connection.
    #[inline(always)]
    pub(super) fn conn_to(&self, dest: fi_addr_t) -> Option<u32> {
        if self.identity.kind == StreamEpKind::Msg {
            return Some(self.conn);
        }
        Some(self.peers.named(dest)?.conn)
    }

    /// Returns the peer with this address, added if it is new. `addr` has no IPv6 flow label,
    /// because the label does not distinguish peers.
    pub(super) fn peer_at(&mut self, addr: Addr) -> u32 {
        self.peers.peer_at(self.av.as_deref(), addr, &mut self.matcher)
    }

    /// Returns the peer named by a destination. Fails with -FI_ENOAV without an address vector.
    pub(super) fn peer_for(&mut self, dest: fi_addr_t) -> Result<u32> {
        self.peers.find(self.av.as_deref(), dest, &mut self.matcher)
    }

    /// Removes an unreferenced peer: not connected, not in the address vector, without buffered
    /// messages and queued transfers.
    pub(super) fn forget_peer_if_unused(&mut self, peer: u32) {
        #[cfg(any(test, feature = "sim"))]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::LeakedPeer) {
            return;
        }
        self.peers.forget_if_unused(peer, &mut self.matcher);
    }
}

impl StreamEngineEp {
    /// Returns the feature bits ([`RdmHello`](crate::wire::RdmHello)) advertised to peers at
    /// connection time.
    pub(super) fn features(&self) -> u8 {
        if self.identity.behind_firewall { BEHIND_FIREWALL } else { 0 }
    }

    /// Returns true if a peer cannot accept connections, as declared by the peer or by the
    /// application (FI_FIREWALL_ADDR in fi_av_insert(3)).
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
        self.completions.clone_from(&bindings.completions.tx);
    }

    /// Takes over the completion queue and counters bound for receives and for peers' accesses
    /// to our memory.
    pub(super) fn bind_rx(&mut self, bindings: &Bindings) {
        self.matcher.bind(&bindings.completions.rx);
    }

    /// Returns true if the endpoint has buffered receives (FI_BUFFERED_RECV).
    pub(crate) fn is_buffered(&self) -> bool {
        self.matcher.buffering.state().is_some()
    }

    /// Returns true if messages may use the fast paths. These check only the flags of the call and
    /// deliver no buffered message. They leave messages from and to memory of devices to the others.
    pub(crate) fn is_fast(&self) -> bool {
        !self.is_buffered() && self.identity.attr.send_flags == 0
    }

    /// Returns true if the endpoint accepts the library's internal messages (FI_COLLECTIVE,
    /// FI_MULTICAST).
    pub(crate) fn is_collective(&self) -> bool {
        self.identity.attr.collective
    }

    /// Sets the fid naming the endpoint in events.
    pub(crate) fn set_fid(&mut self, fid: FidPtr) {
        self.fid = fid;
        self.matcher.buffering.set_fid(fid);
    }

    pub(crate) fn kind(&self) -> StreamEpKind {
        self.identity.kind
    }

    /// The endpoint's own address.
    pub(crate) fn local(&self) -> &Addr {
        &self.identity.local
    }

    /// Returns the number of transfers allowed to start: tx_attr.size less those in progress.
    pub(crate) fn tx_left(&self) -> usize {
        self.identity.attr.tx_size.saturating_sub(self.tx_pending)
    }
}

impl StreamEngineEp {
    /// Runs [`finish_tx`](Self::finish_tx) for a timed transfer.
    #[cold]
    fn finish_timed(&mut self, finish: &TxCompletion, result: Result) {
        self.times.end();
        self.finish_tx(&TxCompletion { flags: finish.flags & !TIMED, ..*finish }, result);
    }

    /// Stores a message in the buffer of its receive, and reports it.
    pub(super) fn deliver(&mut self, recv: &Recv, envelope: &Envelope, bytes: &[u8]) {
        match device_recv::store(&recv.buf, bytes, self.bounce.as_ref()) {
            Ok(()) => self.matcher.received(recv, envelope),
            Err(error) => self.matcher.failed(recv, envelope, error),
        }
    }

    /// Returns the target of a message with bytes still to arrive for a receive.
    pub(super) fn target_of(&self, recv: Recv) -> MessageTarget {
        match &self.bounce {
            Some(pool) if recv.buf.is_device() => {
                let (buf, target) = (recv.buf.clone(), DeviceTarget::Posted(recv));
                MessageTarget::Device(Box::new(DeviceRecv::new(buf, target, pool)))
            }
            _ => MessageTarget::Posted(recv),
        }
    }

    /// Reports and counts a completed or failed transfer.
    pub(super) fn finish_tx(&mut self, finish: &TxCompletion, result: Result) {
        if finish.internal {
            if finish.flags & FI_REMOTE_READ != 0 && result.is_ok() {
                self.matcher.completions.peer_accessed(false, finish.len);
            }
            return;
        }
        if finish.flags & TIMED != 0 {
            return self.finish_timed(finish, result);
        }
        self.tx_pending -= 1;
        let result = finish.refused.map_or(result, Err);
        #[cfg(any(test, feature = "sim"))]
        match ofi_simulation::injected() {
            Some(ofi_simulation::InjectedFault::LostCompletion) => return,
            Some(ofi_simulation::InjectedFault::SecondCompletion) => {
                self.completions.done(finish.entry(), finish.report);
            }
            _ => {}
        }
        match result {
            Ok(()) => self.completions.done(finish.entry(), finish.report),
            Err(error) => {
                self.errors.add(error);
                self.completions.failed(CompletionError::new(finish.entry(), error));
            }
        }
    }

    /// Fails transfers queued without a connection.
    pub(super) fn fail_all(&mut self, waiting: VecDeque<TxRequest>, error: Error) {
        for outgoing in waiting {
            self.finish_tx(&outgoing.finish, Err(error));
        }
    }

    /// Fails the transfers waiting for connections to their peers.
    pub(super) fn fail_parked(&mut self) {
        let parked: Vec<_> =
            self.peers.iter_mut().map(|(_, peer)| take(&mut peer.extra.parked)).collect();
        for waiting in parked {
            self.fail_all(waiting, Error::CANCELED);
        }
    }

    /// Fails the transfers waiting for absent peers after their addresses were removed from the
    /// address vector. Nothing else would end them.
    pub(super) fn cancel_absent(&mut self, peers: &[u32]) {
        for &peer in peers {
            let Some(entry) = self.peers.get_mut(peer) else { continue };
            if entry.conn != NONE || !entry.extra.is_absent {
                continue;
            }
            let parked = take(&mut entry.extra.parked);
            entry.extra.is_absent = false;
            entry.extra.retry = ConnectBackoff::default();
            self.fail_all(parked, Error::CANCELED);
            self.forget_peer_if_unused(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_request_rejected_on_a_connection_is_not_from_before_it() {
        let mut peer = StreamPeer::default();
        let numbers = [1, 1, 2].map(RequestNumber::new);
        assert_eq!(numbers.map(|number| peer.add_rejected(number)), [false, false, true]);
        peer.connected();
        assert_eq!(numbers.map(|number| peer.add_rejected(number)), [false, false, true]);
        assert!(peer.add_rejected(None), "peers without numbers");
    }
}
