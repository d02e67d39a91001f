//! An endpoint of the engine: its peers, its progress, its opening and closing.
use super::arriving::RxdUnexpected;
use super::conn::HandshakeState;
use super::conns::{AcksDue, RxdConns, SilentSearch};
use super::half_open::RequestAnswer;
use super::helper::ParkSlot;
use super::identity::RxdIdentity;
use super::index_requests::IndexRequests;
use super::limits::{RxdLimits, clock};
use super::local_address::LocalAddress;
use super::port::PacketPort;
use super::transmit::RxdTransmit;
use crate::provider::RXD;
use crate::wire::BASE_LEN;
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use ofi_provider::addr::Addr;
use ofi_provider::api::Bindings;
use ofi_provider::av::Av;
use ofi_provider::closing::Undelivered;
use ofi_provider::error::{Error, Result};
use ofi_provider::peers::PeerTable;
use ofi_provider::probes;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_provider::slab::NONE;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Default space below which a multi-receive buffer is returned.
const MIN_MULTI_RECV: usize = 64;

/// Consecutive retransmissions without a response until the peer is asked to confirm its identity.
const DOUBT: u32 = 4;

/// Maximum closed-port reports handled at a time.
const ICMP_ERRORS_READ: usize = 64;

/// An endpoint of the engine.
pub(crate) struct RxdEngineEp {
    pub(super) limits: RxdLimits,
    pub(crate) local: LocalAddress,
    pub(super) port: Option<Box<dyn PacketPort>>,
    pub(super) av: Option<Arc<Av>>,
    pub(crate) matcher: RxMatcher<RxdUnexpected>,
    pub(super) peers: PeerTable<()>,
    pub(super) conns: RxdConns,
    /// Requests for the peers' indices.
    pub(super) requests: IndexRequests,
    /// Operations in progress.
    pub(super) tx: RxdTransmit,
    /// Time at the start of the progress iteration or call.
    pub(super) now: Instant,
    /// Responses to peers asking for their index.
    pub(super) answers: Vec<RequestAnswer>,
    /// Connections with peers not named by the port yet, and names to be dropped.
    pub(super) unnamed: Vec<u32>,
    pub(super) forgotten: Vec<fi_addr_t>,
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
            local: LocalAddress::new(identity, limits.format),
            limits,
            port: None,
            av: None,
            peers: PeerTable::default(),
            conns: RxdConns::default(),
            requests: IndexRequests::default(),
            tx: RxdTransmit::new(),
            now: clock(),
            answers: Vec::new(),
            unnamed: Vec::new(),
            forgotten: Vec::new(),
            helper,
        }
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
        self.local.set_port(&*port)?;
        let fd = port.fd();
        self.port = Some(port);
        Ok(fd)
    }

    /// Applies the objects bound to the endpoint.
    pub(crate) fn bind(&mut self, bindings: &Bindings) {
        self.tx.bind(&bindings.completions.tx);
        self.matcher.bind(&bindings.completions.rx);
    }

    /// Returns a descriptor, readable when a packet arrives.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.port.as_ref().and_then(|port| port.fd())
    }

    /// Returns the number of transfers allowed to start.
    pub(crate) fn tx_left(&self) -> usize {
        self.local.identity().attr.tx_size.saturating_sub(self.tx.own())
    }

    /// Checks if another transfer may start now.
    #[inline]
    pub(super) fn may_start(&mut self, flags: u64) -> Result {
        let fits = |ep: &Self| ep.tx.has_space(ep.local.identity().attr.tx_size, flags);
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
        for peer in peers {
            let id = self.peers.get(peer).map_or(NONE, |peer| peer.conn);
            self.conns.set_unknown(id, false);
        }
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
        for peer in peers {
            let id = self.peers.get(peer).map_or(NONE, |peer| peer.conn);
            self.conns.set_unknown(id, true);
        }
        if self.conns.unknown() > self.limits.config.max_peers {
            self.now = clock();
            self.forget_idle();
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
                    self.conns.set_unknown(conn, false);
                }
                Ok(conn)
            }
        }
    }

    /// Ends a connection; its operations in progress fail.
    pub(super) fn drop_conn(&mut self, id: u32, error: Error) {
        let Some(mut conn) = self.conns.remove(id) else { return };
        if probes::is_enabled() && conn.stage == HandshakeState::Known && error != Error::CANCELED {
            let own = self.matcher.completions.trace_ids().map_or(0, |ids| ids.own());
            let peer = self.peers.get(conn.peer).map(|peer| peer.addr.for_people());
            probes::lost(own, error.code().into(), &peer.unwrap_or_default());
        }
        self.peers.detach(conn.peer, id);
        self.requests.ended();
        // Nothing is looked for where nothing can be: packets can end connections at any rate.
        if conn.ops > 0 || conn.has_waiting() || !conn.sent.is_empty() {
            self.tx.fail_all(&mut self.conns, id, error);
        }
        if let Some(arriving) = conn.arriving.take() {
            arriving.lose(&mut self.matcher, error);
        }
        if conn.to != FI_ADDR_NOTAVAIL {
            self.forgotten.push(conn.to);
        }
        self.peers.forget_if_unused(conn.peer, &mut self.matcher);
    }

    /// Runs one progress iteration. Returns true if packets arrived.
    pub(super) fn poll_once(&mut self) -> bool {
        let Some(mut port) = self.port.take() else { return false };
        self.now = clock();
        // Acknowledgements delayed in favor of the application's response.
        if self.conns.has_acks() {
            let window = self.limits.config.max_unacked as u32;
            self.conns.send_acks(&mut *port, AcksDue::Waited, window, self.now);
        }
        if self.conns.has_stalled() {
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
        if self.conns.deadline().is_some_and(|at| at <= self.now) {
            self.receive_icmp_errors(&mut *port);
            self.port = Some(port);
            self.expire();
            let Some(back) = self.port.take() else { return taken > 0 };
            port = back;
        }
        self.answer(&mut *port);
        self.port = Some(port);
        if self.requests.is_due() {
            self.send_requests();
        }
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
        if self.conns.has_acks() {
            let window = self.limits.config.max_unacked as u32;
            self.conns.send_acks(port, AcksDue::Now, window, self.now);
        }
        while let Some(id) = self.conns.take_ready() {
            if !self.tx.pump(&mut self.conns, &self.limits, port, id, self.now) {
                break;
            }
        }
    }

    /// Sends acknowledgements.
    pub(super) fn send_acks(&mut self, due: AcksDue) {
        if self.conns.has_acks() {
            if let Some(port) = &mut self.port {
                self.now = clock();
                let window = self.limits.config.max_unacked as u32;
                self.conns.send_acks(&mut **port, due, window, self.now);
            }
        }
    }

    /// Retransmits packets not acknowledged in time, and gives up peers considered gone.
    #[cold]
    fn expire(&mut self) {
        let now = self.now;
        self.requests.expire(now);
        for id in self.conns.take_expired(now) {
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
                self.requests.repeated();
                self.ask(id);
            } else if doubtful {
                // It may have been started again, and know nothing of us: then its answer is
                // another one than before.
                self.send_rts(id);
                self.conns.make_ready(id);
            } else if let Some(probe) = conn.probe() {
                let (to, mut packet) = (conn.to, [0; BASE_LEN]);
                probe.write(&mut packet);
                if let Some(port) = &mut self.port {
                    let _ = port.send(to, &packet, packet.len());
                }
                self.conns.make_ready(id);
            } else {
                self.conns.make_ready(id);
            }
        }
        self.conns.find_deadline();
        self.conns.note_deadline(self.requests.deadline());
    }

    /// Prepares a thread to sleep. Returns true if every event awaited by the endpoint will wake
    /// it.
    pub(super) fn may_block(&self) -> bool {
        let Some(port) = &self.port else { return true };
        !self.requests.is_due()
            && self.conns.may_block(|| !self.matcher.completions.has_space())
            && port.may_block()
    }

    /// Returns the linger time of a closing endpoint for data not acknowledged by peers and not
    /// awaited by the application, if there is any.
    pub(super) fn hold_off(&self) -> Option<Duration> {
        self.port.as_ref()?;
        self.tx.hold_off()
    }

    /// Returns the operations still to be delivered by a closing endpoint.
    pub(super) fn undelivered(&self) -> Undelivered {
        if self.port.is_none() {
            return Undelivered::default();
        }
        let acked = self.conns.iter().map(|(_, conn)| conn.acked() as usize);
        Undelivered {
            operations: self.tx.undelivered(),
            bytes: 0,
            connecting: 0,
            steps: acked.fold(self.conns.len(), usize::wrapping_add),
        }
    }

    /// Closes the endpoint. Incomplete operations are dropped without a report (fi_endpoint(3)).
    pub(super) fn close(&mut self) {
        self.tx.mute();
        self.matcher.completions.mute();
        self.matcher.leave();
        for id in self.conns.indices(|_| true) {
            self.drop_conn(id, Error::CANCELED);
        }
        self.port = None;
        for matched in self.matcher.cancel_all() {
            self.match_message(matched);
        }
        self.tx.close();
        self.matcher.completions.close();
    }

    /// Returns true if another response to a peer, or another refusal, may be held.
    pub(super) fn may_answer(&mut self, id: u32, reject: bool) -> bool {
        let max_unacked = self.limits.config.max_unacked;
        let (admits, unknown_hold) = self.conns.admits_answer(id, max_unacked, reject);
        if unknown_hold {
            self.forget_silent(SilentSearch::Holders, self.limits.config.max_peers / 16 + 1);
        }
        admits
    }

    /// Returns true if another unknown peer is permitted. Peers silent for a while are dropped to
    /// make space.
    pub(super) fn has_space_for_unknown(&mut self) -> bool {
        let most = self.limits.config.max_peers;
        if self.conns.unknown() >= most {
            self.forget_idle();
        }
        self.conns.unknown() < most
    }

    /// Drops silent unknown peers, if their number has reached the limit: first those without held
    /// resources.
    #[cold]
    pub(super) fn forget_idle(&mut self) {
        let most = self.limits.config.max_peers;
        if self.conns.unknown() < most {
            return;
        }
        // Some more than needed, so that it is not looked for them each time.
        let count = self.conns.unknown() - most + 1 + most / 16;
        self.forget_silent(SilentSearch::All, count);
    }

    /// Drops some unknown peers after a period of silence.
    #[cold]
    fn forget_silent(&mut self, what: SilentSearch, count: usize) {
        for id in self.conns.silent(what, count, self.now) {
            self.drop_conn(id, Error::CONNRESET);
        }
    }
}
