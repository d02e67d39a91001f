//! An endpoint of the engine: its peers, its progress, its opening and closing.
use super::budget::HeldSums;
use super::conn::{HandshakeState, RxdConn};
use super::half_open::HalfOpens;
use super::handshake::RequestAnswer;
use super::helper::ParkSlot;
use super::indices::{IndexUse, NumberMap, PeerIndices};
use super::port::PacketPort;
use super::rx::RxdUnexpected;
use super::tx::RxdTx;
use super::{LINGER, LINGER_INJECTED, RxdLimits, clock};
use crate::provider::RXD;
use crate::wire::{Ack, BASE_LEN};
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, FI_COMPLETION, fi_addr_t};
use ofi_provider::addr::Addr;
use ofi_provider::api::Bindings;
use ofi_provider::av::Av;
use ofi_provider::closing::Undelivered;
use ofi_provider::completions::TxCompletions;
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::peers::PeerTable;
use ofi_provider::reserved::INTERNAL_OP;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_provider::slab::{NONE, Slab};
use ofi_provider::sys::random;
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Default space below which a multi-receive buffer is returned.
const MIN_MULTI_RECV: usize = 64;

/// Consecutive retransmissions without a response until the peer is asked to confirm its identity.
const DOUBT: u32 = 4;

/// Maximum closed-port reports handled at a time.
const ICMP_ERRORS_READ: usize = 64;

/// Packets received until an acknowledgement is sent although more arrive.
pub(super) const ACK_EVERY: usize = 8;

/// Selection of the due acknowledgements to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AcksDue {
    /// Urgent acknowledgements.
    Now,
    /// Urgent ones, and those delayed up to their limit while the application makes calls.
    Waited,
    All,
}

/// Identity of an endpoint from its opening on.
#[derive(Clone, Debug)]
pub(crate) struct RxdIdentity {
    /// The endpoint's own address; the port may be 0 until it is enabled.
    pub(crate) local: Addr,
    /// Attributes requested by the application.
    pub(crate) attr: RdmAttr,
    /// Core's attributes, if they differ from those of the domain's other endpoints.
    pub(crate) own: Option<OwnCore>,
}

/// Core's attributes of an endpoint with its own pre-shared key.
#[derive(Clone)]
pub(crate) struct OwnCore {
    /// Core's info, with the pre-shared key.
    pub(crate) info: Arc<InfoBuf>,
    /// The longest packet.
    pub(crate) packet: usize,
}

impl fmt::Debug for OwnCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnCore").field("packet", &self.packet).finish_non_exhaustive()
    }
}

impl AsMut<RdmAttr> for RxdIdentity {
    fn as_mut(&mut self) -> &mut RdmAttr {
        &mut self.attr
    }
}

/// An endpoint of the engine.
pub(crate) struct RxdEngineEp {
    pub(super) limits: RxdLimits,
    pub(super) identity: RxdIdentity,
    pub(super) port: Option<Box<dyn PacketPort>>,
    /// Port for the packets, opened when the endpoint was assigned its address (fi_setname).
    bound: Option<Box<dyn PacketPort>>,
    /// Completion sink of transfers. Receives, and peers' accesses to local memory, are reported by
    /// the matching engine.
    pub(super) completions: TxCompletions,
    pub(super) av: Option<Arc<Av>>,
    pub(crate) matcher: RxMatcher<RxdUnexpected>,
    pub(super) peers: PeerTable<()>,
    pub(super) conns: Slab<Box<RxdConn>>,
    /// Connections by the port's names of their peers.
    pub(super) by_name: NumberMap<fi_addr_t, u32>,
    /// Indices required in peers' packets, and half-open requests.
    pub(super) indices: PeerIndices,
    pub(super) half_open: HalfOpens,
    /// Number of connections with unknown peers, and the earliest time of a useful search for
    /// silent ones.
    pub(super) unknown: usize,
    pub(super) next_search: [Option<Instant>; 2],
    /// Resources held for peers' requests.
    pub(super) sums: HeldSums,
    /// Incomplete operations, and the number of the application's among them.
    pub(super) ops: Slab<Box<RxdTx>>,
    pub(super) own_ops: usize,
    /// Generation number, distinguishing operations with the same entry.
    pub(super) op_generation: u32,
    /// Time at the start of the progress iteration or call.
    pub(super) now: Instant,
    /// No connection has a deadline before this.
    pub(super) next_deadline: Option<Instant>,
    /// Connections with possibly something to send.
    pub(super) ready: Vec<u32>,
    /// Connections with a due acknowledgement.
    pub(super) acks: Vec<u32>,
    /// Connections with their next packet blocked on space freed by the application.
    pub(super) stalled: Vec<u32>,
    /// Connections with their next packet waiting until peers acknowledge responses, and the number
    /// of these to be retried.
    pub(super) held_back: Vec<u32>,
    pub(super) to_retry: usize,
    /// Responses to peers asking for their index.
    pub(super) answers: Vec<RequestAnswer>,
    /// Connections with peers not named by the port yet, and names to be dropped.
    pub(super) unnamed: Vec<u32>,
    pub(super) forgotten: Vec<fi_addr_t>,
    /// Bytes of packets received early.
    pub(super) early_bytes: usize,
    /// Buffer for building packets.
    pub(super) scratch: Vec<u8>,
    /// Helper thread sending delayed data if the application makes no call.
    pub(super) helper: Arc<ParkSlot>,
}

impl RxdEngineEp {
    pub(super) fn new(
        id: u32,
        mut limits: RxdLimits,
        identity: RxdIdentity,
        helper: Arc<ParkSlot>,
    ) -> Self {
        limits.packet = identity.own.as_ref().map_or(limits.packet, |own| own.packet);
        Self {
            matcher: identity.attr.matcher(id, MIN_MULTI_RECV, [0; 2]),
            scratch: Vec::new(),
            limits,
            identity,
            port: None,
            bound: None,
            completions: TxCompletions::default(),
            av: None,
            peers: PeerTable::default(),
            conns: Slab::default(),
            by_name: NumberMap::default(),
            indices: PeerIndices::default(),
            half_open: HalfOpens::default(),
            unknown: 0,
            next_search: [None; 2],
            sums: HeldSums::default(),
            ops: Slab::default(),
            own_ops: 0,
            op_generation: random() as u32 & 0x7ff,
            now: clock(),
            next_deadline: None,
            ready: Vec::new(),
            acks: Vec::new(),
            stalled: Vec::new(),
            held_back: Vec::new(),
            to_retry: 0,
            answers: Vec::new(),
            unnamed: Vec::new(),
            forgotten: Vec::new(),
            early_bytes: 0,
            helper,
        }
    }

    /// Returns the identity of the endpoint.
    pub(super) fn identity(&self) -> &RxdIdentity {
        &self.identity
    }

    /// Starts the endpoint, with its packets carried by this port. Returns a descriptor, readable
    /// when a packet arrives.
    pub(super) fn enable(
        &mut self,
        bindings: &Bindings,
        port: Box<dyn PacketPort>,
    ) -> Result<Option<RawFd>> {
        self.bind(bindings);
        self.av.clone_from(&bindings.av);
        self.identity.local = self.address_of(&*port)?;
        let fd = port.fd();
        self.port = Some(port);
        Ok(fd)
    }

    /// The own address once packets come by this port.
    fn address_of(&self, port: &dyn PacketPort) -> Result<Addr> {
        let name = Addr::read(self.limits.format, &port.name()?)?;
        let local = &self.identity.local;
        // The core names an address that peers can use; packets may come from another one.
        Ok(if local.is_any() { local.at_port(name.port()) } else { name })
    }

    /// Applies the objects bound to the endpoint.
    pub(crate) fn bind(&mut self, bindings: &Bindings) {
        self.completions.clone_from(&bindings.completions.tx);
        self.matcher.bind(&bindings.completions.rx);
    }

    /// Returns a descriptor, readable when a packet arrives.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.port.as_ref().and_then(|port| port.fd())
    }

    /// The endpoint's own address.
    pub(crate) fn name(&self) -> Result<Vec<u8>> {
        Ok(self.identity.local.name_for_peers().to_bytes())
    }

    /// Sets the endpoint's own address, before it is enabled. An IP address is bound now: `open` is
    /// called for the packet port, so the endpoint's name equals the address used by peers.
    pub(super) fn set_local(
        &mut self,
        name: &[u8],
        open: impl FnOnce(&RxdIdentity) -> Result<Box<dyn PacketPort>>,
    ) -> Result {
        if self.port.is_some() {
            return Err(Error::OPBADSTATE);
        }
        self.bound = None;
        self.identity.local = Addr::read(self.limits.format, name)?;
        if self.identity.local.ip().is_ok() {
            let port = open(&self.identity)?;
            self.identity.local = self.address_of(&*port)?;
            self.bound = Some(port);
        }
        Ok(())
    }

    /// Returns the packet port of the address set before, if it was opened then.
    pub(super) fn take_bound(&mut self) -> Option<Box<dyn PacketPort>> {
        self.bound.take()
    }

    /// Returns the number of transfers allowed to start.
    pub(crate) fn tx_left(&self) -> usize {
        self.identity.attr.tx_size.saturating_sub(self.own_ops)
    }

    /// Checks if another transfer may start now.
    #[inline]
    pub(super) fn may_start(&mut self, flags: u64) -> Result {
        let fits = |ep: &Self| {
            (ep.own_ops < ep.identity.attr.tx_size || flags & INTERNAL_OP != 0)
                && ep.completions.has_space(flags & FI_COMPLETION != 0)
        };
        if self.port.is_none() {
            return Err(Error::OPBADSTATE);
        }
        if !fits(self) {
            self.poll_once();
            if !fits(self) {
                return Err(Error::AGAIN);
            }
        }
        Ok(())
    }

    /// The address vector gave `addr` a name.
    pub(crate) fn name_inserted(&mut self, name: fi_addr_t, addr: &Addr) {
        let peers = self.peers.name_inserted(self.av.as_deref(), name, addr, &mut self.matcher);
        peers.into_iter().for_each(|peer| self.set_unknown(peer, false));
    }

    /// Sets the identifier reported by completions for a name, chosen by the application
    /// (FI_AV_USER_ID).
    pub(crate) fn name_identified(&mut self, name: fi_addr_t, id: fi_addr_t) {
        self.peers.name_identified(name, id, &mut self.matcher);
    }

    /// A name was removed from the address vector: the peer is unknown again, and forgotten as others
    /// are.
    pub(crate) fn name_removed(&mut self, name: fi_addr_t) {
        let peers = self.peers.name_removed(name, &mut self.matcher);
        peers.into_iter().for_each(|peer| self.set_unknown(peer, true));
        if self.unknown > self.limits.config.max_peers {
            self.now = clock();
            self.forget_idle();
        }
    }

    /// A peer is in the address vector now, or in none.
    fn set_unknown(&mut self, peer: u32, unknown: bool) {
        let id = self.peers.get(peer).map_or(NONE, |peer| peer.conn);
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.unknown != unknown) else {
            return;
        };
        conn.unknown = unknown;
        let held = conn.held;
        *self.sums.of(!unknown) -= held;
        *self.sums.of(unknown) += held;
        if unknown {
            self.unknown += 1;
        } else {
            self.unknown -= 1;
        }
    }

    /// Returns the connection to a peer, created if there is none.
    #[inline]
    pub(super) fn conn_to(&mut self, dest: fi_addr_t) -> Result<u32> {
        let peer = self.peers.find(self.av.as_deref(), dest, &mut self.matcher)?;
        match self.peers[peer].conn {
            NONE => self.new_conn(peer),
            conn => {
                // A peer whose address was in the address vector before the endpoint subscribed to
                // it.
                if self.conns[conn].unknown && self.peers.name_of(peer) != FI_ADDR_NOTAVAIL {
                    self.set_unknown(peer, false);
                }
                Ok(conn)
            }
        }
    }

    /// Returns the connection with this index.
    #[inline]
    pub(super) fn conn_of(&self, index: u32) -> Option<u32> {
        match self.indices.get(index) {
            Some(IndexUse::Conn(id)) => Some(id),
            _ => None,
        }
    }

    /// Ends a connection; its operations in progress fail.
    pub(super) fn drop_conn(&mut self, id: u32, error: Error) {
        let Some(mut conn) = self.conns.remove(id) else { return };
        self.early_bytes -= conn.early.values().map(|packet| packet.len()).sum::<usize>();
        self.stalled.retain(|stalled| *stalled != id);
        self.held_back.retain(|stalled| *stalled != id);
        self.indices.free(conn.index);
        self.unknown -= usize::from(conn.unknown);
        *self.sums.of(conn.unknown) -= conn.held;
        self.to_retry = self.held_back.len();
        self.peers.detach(conn.peer, id);
        // Nothing is looked for where nothing can be: packets can end connections at any rate.
        if conn.ops > 0 || conn.has_waiting() || !conn.sent.is_empty() {
            for op in self.ops.indices(|op| op.conn == id) {
                self.finish(op, Err(error));
                self.ops.remove(op);
            }
        }
        if let Some(arriving) = conn.arriving.take() {
            self.lose_arriving(arriving, error);
        }
        if conn.to != FI_ADDR_NOTAVAIL {
            self.by_name.remove(&conn.to);
            self.forgotten.push(conn.to);
        }
        self.peers.forget_if_unused(conn.peer, &mut self.matcher);
    }

    pub(super) fn note_deadline(&mut self, at: Option<Instant>) {
        self.next_deadline = [self.next_deadline, at].into_iter().flatten().min();
    }

    /// When something has to be sent again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Runs one progress iteration. Returns true if packets arrived.
    pub(super) fn poll_once(&mut self) -> bool {
        let Some(mut port) = self.port.take() else { return false };
        self.now = clock();
        // Acknowledgements delayed in favor of the application's response.
        if !self.acks.is_empty() {
            self.send_acks_by(&mut *port, AcksDue::Waited);
        }
        if !self.stalled.is_empty() || self.to_retry > 0 {
            self.retry_stalled();
        }
        let most = match self.limits.config.spin_count {
            0 => usize::MAX,
            count => count,
        };
        let mut taken = 0;
        loop {
            let (came, more) = port.receive(&mut |source, packet| self.packet_came(source, packet));
            taken += came;
            if came > 0 {
                self.answer(&mut *port);
            }
            if !more || taken >= most {
                break;
            }
        }
        if self.next_deadline.is_some_and(|at| at <= self.now) {
            self.receive_icmp_errors(&mut *port);
            self.port = Some(port);
            self.expire();
            let Some(back) = self.port.take() else { return taken > 0 };
            port = back;
        }
        self.answer(&mut *port);
        self.port = Some(port);
        taken > 0
    }

    /// Records the peers with closed ports, as reported by their hosts.
    #[cold]
    fn receive_icmp_errors(&mut self, port: &mut dyn PacketPort) {
        for _ in 0..ICMP_ERRORS_READ {
            let Some(addr) = port.refused() else { return };
            let peer = self.peers.find_at(&addr);
            let conn = peer.and_then(|peer| self.conns.get_mut(self.peers[peer].conn));
            if let Some(conn) = conn {
                conn.refused += 1;
            }
        }
    }

    /// Sends the responses requested by received packets.
    fn answer(&mut self, port: &mut dyn PacketPort) {
        if !self.forgotten.is_empty() || !self.unnamed.is_empty() {
            self.name_peers(port);
        }
        if !self.answers.is_empty() {
            self.send_answers(port);
        }
        if !self.acks.is_empty() {
            self.send_acks_by(port, AcksDue::Now);
        }
        while let Some(id) = self.ready.pop() {
            let Some(conn) = self.conns.get_mut(id) else { continue };
            conn.is_ready = false;
            if !self.pump(port, id) {
                break;
            }
        }
    }

    fn send_acks_by(&mut self, port: &mut dyn PacketPort, due: AcksDue) {
        let (window, now) = (self.limits.config.max_unacked as u32, self.now);
        let conns = &mut self.conns;
        self.acks.retain(|id| {
            let Some(conn) = conns.get_mut(*id).filter(|conn| conn.ack_due) else { return false };
            if conn.stage != HandshakeState::Known {
                conn.ack_due = false;
                return false;
            }
            let waits = match due {
                AcksDue::Now => true,
                AcksDue::Waited => conn.ack_put_off && !conn.ack_predictor.is_late(now),
                AcksDue::All => false,
            };
            if waits && !conn.ack_now && conn.came < ACK_EVERY {
                return true;
            }
            let ours = conn.is_ours();
            let next = conn.holds.front().map_or(conn.expected, |(limit, _)| *limit);
            let taken = (conn.expected - next) as u32;
            let here = if ours && next == conn.expected { conn.early_bits() } else { 0 };
            let window = if conn.stalled { 0 } else { window };
            let packet = Ack { window, here, taken }.packet(conn.remote, next);
            if port.send(conn.to, &packet, packet.len()) == Err(Error::AGAIN) {
                return true;
            }
            conn.stop_notified = window == 0;
            if conn.ack_put_off {
                conn.ack_predictor.unanswered();
            }
            conn.ack_is_sent();
            false
        });
    }

    /// Sends acknowledgements.
    pub(super) fn send_acks(&mut self, due: AcksDue) {
        if !self.acks.is_empty()
            && let Some(mut port) = self.port.take()
        {
            self.now = clock();
            self.send_acks_by(&mut *port, due);
            self.port = Some(port);
        }
    }

    /// An acknowledgement is due to a peer, at once or when the application had time to answer.
    pub(super) fn queue_ack(&mut self, id: u32, now: bool) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.ack_now |= now;
        if !std::mem::replace(&mut conn.ack_due, true) {
            self.acks.push(id);
        }
    }

    /// Schedules a connection with possibly something to send.
    pub(super) fn make_ready(&mut self, id: u32) {
        if let Some(conn) = self.conns.get_mut(id)
            && !std::mem::replace(&mut conn.is_ready, true)
        {
            self.ready.push(id);
        }
    }

    /// Retransmits packets not acknowledged in time, and gives up peers considered gone.
    #[cold]
    fn expire(&mut self) {
        let now = self.now;
        self.next_deadline = None;
        // Peers may have been silent for long enough to make room.
        self.to_retry = self.held_back.len();
        for id in self.conns.indices(|conn| conn.deadline.is_some_and(|at| at <= now)) {
            let conn = &mut self.conns[id];
            if conn.stage == HandshakeState::Known && !self.limits.config.retry {
                conn.deadline = None;
                continue;
            }
            if !conn.expired(now, conn.hold_off(self.limits.config.peer_timeout)) {
                let who = &self.peers[conn.peer].addr;
                ofi_provider::log_sparsely!(
                    &RXD,
                    WARN,
                    EP_DATA,
                    "{} does not answer: its operations fail",
                    who.for_people()
                );
                self.drop_conn(id, Error::CONNREFUSED);
                continue;
            }
            let doubtful = conn.stage == HandshakeState::Known && conn.retries() >= DOUBT;
            if conn.stage == HandshakeState::Asking {
                self.ask(id);
            } else if doubtful {
                // It may have been started again, and know nothing of us: then its answer is
                // another one than before.
                self.send_rts(id);
                self.make_ready(id);
            } else if let Some(probe) = conn.probe() {
                let (to, mut packet) = (conn.to, [0; BASE_LEN]);
                probe.write(&mut packet);
                if let Some(port) = &mut self.port {
                    let _ = port.send(to, &packet, packet.len());
                }
                self.make_ready(id);
            } else {
                self.make_ready(id);
            }
        }
        self.next_deadline = self.conns.iter().filter_map(|(_, conn)| conn.deadline).min();
    }

    /// Prepares a thread to sleep. Returns true if every event awaited by the endpoint will wake
    /// it.
    pub(super) fn may_block(&self) -> bool {
        let Some(port) = &self.port else { return true };
        self.ready.is_empty()
            && (self.stalled.is_empty() || !self.matcher.completions.has_space())
            && self.to_retry == 0
            && port.may_block()
    }

    /// Returns true if data is in flight, with possible retransmissions, or queued.
    pub(super) fn is_busy(&self) -> bool {
        self.next_deadline.is_some() || !self.acks.is_empty() || !self.ready.is_empty()
    }

    /// Returns the linger time of a closing endpoint for data not acknowledged by peers and not
    /// awaited by the application, if there is any.
    pub(super) fn hold_off(&self) -> Option<Duration> {
        self.port.as_ref()?;
        let injected = self.ops.iter().any(|(_, op)| op.is_injected());
        let answers = || self.ops.iter().any(|(_, op)| !op.is_own());
        if injected { Some(LINGER_INJECTED) } else { answers().then_some(LINGER) }
    }

    /// Returns the operations still to be delivered by a closing endpoint.
    pub(super) fn undelivered(&self) -> Undelivered {
        if self.port.is_none() {
            return Undelivered::default();
        }
        let unsent = self.ops.iter().filter(|(_, op)| op.is_injected() || !op.is_own());
        let acked = self.conns.iter().map(|(_, conn)| conn.acked() as usize);
        Undelivered {
            operations: unsent.count(),
            bytes: 0,
            connecting: 0,
            steps: acked.fold(self.conns.len(), usize::wrapping_add),
        }
    }

    /// Closes the endpoint. Incomplete operations are dropped without a report (fi_endpoint(3)).
    pub(super) fn close(&mut self) {
        self.completions.mute();
        self.matcher.completions.mute();
        self.matcher.leave();
        for id in self.conns.indices(|_| true) {
            self.drop_conn(id, Error::CANCELED);
        }
        self.port = None;
        for matched in self.matcher.cancel_all() {
            self.match_message(matched);
        }
        self.completions.close();
        self.matcher.completions.close();
    }
}
