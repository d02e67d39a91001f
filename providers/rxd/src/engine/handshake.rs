//! Handshake between endpoints.
//!
//! An endpoint sends a request (RTS) and the other one responds (CTS). Each assigns an index,
//! required in the other's packets. A requesting endpoint is not trusted, not even its address,
//! before a packet arrives with the index from the response. Until then the request uses an entry
//! among the half-open ones, and its address gets one packet per request, shorter than the request.
//! If the core reports the source of packets, this is the address, regardless of the text in the
//! request.
use super::conn::{HandshakeState, RxdConn};
use super::ep::RxdEngineEp;
use super::half_open::{HalfOpen, Introduced, Introduction, RequestAnswer};
use super::indices::IndexUse;
use super::port::{PacketPort, PacketSource};
use crate::provider::RXD;
use crate::wire::{Cts, Hello, Malformed, Parsed, Rts};
use ofi_provider::abi::FI_ADDR_NOTAVAIL;
use ofi_provider::addr::Addr;
use ofi_provider::av::Av;
use ofi_provider::error::{Error, Result};
use ofi_provider::slab::NONE;

impl RxdEngineEp {
    /// A peer asks for its index.
    pub(super) fn asked(&mut self, rts: &Rts<'_>, source: &PacketSource) -> Parsed {
        let remote = match u32::try_from(rts.index) {
            Ok(0) | Err(_) => return Err(Malformed("an index that no packet can have")),
            Ok(remote) => remote,
        };
        let Ok(text) = Addr::read(self.limits.format, rts.source) else {
            return Err(Malformed("an address that is none"));
        };
        let addr = match source {
            PacketSource::At(addr) => addr.clone(),
            PacketSource::Named(name) => match self.conns.named(*name) {
                Some(id) => self.peers[self.conns[id].peer].addr.clone(),
                None => return Err(Malformed("a packet of a peer that is gone")),
            },
            PacketSource::Unnamed if text.is_unicast() => text.identity(),
            PacketSource::Unnamed => return Err(Malformed("an address that is no endpoint's")),
        };
        let by = Introduction { remote, hello: rts.hello };
        let peer = self.peers.find_at(&addr);
        let id = peer.map_or(NONE, |peer| self.peers[peer].conn);
        let conn = self.conns.get(id);
        let (index, nonce) = match conn {
            Some(conn)
                if conn.stage != HandshakeState::Known || !conn.is_replaced(by, self.now) =>
            {
                (conn.index, conn.nonce)
            }
            _ => {
                // If the peer was known the request may come from another process now, or be forged.
                let is_known = conn.is_some() || is_in_vector(self.av.as_deref(), &addr);
                if !is_known && !self.has_space_for_unknown() {
                    return Err(Malformed("one unknown peer too many"));
                }
                let known = is_known.then(|| self.av.as_deref().map_or(0, Av::count));
                let noted = self.conns.note_request(&addr, known, by);
                noted.map_err(|_| Malformed("a peer that there is no index for"))?
            }
        };
        if let Some(conn) = self.conns.get_mut(id) {
            if conn.stage != HandshakeState::Known {
                let before = conn.introduced;
                conn.introduced = Some(before.map_or(Introduced::As(by), |before| before.and(by)));
            }
        }
        let hello = rts.hello.map(|_| Hello::own(nonce));
        let (packet, len) = Cts { of: rts.index, index: index.into(), hello }.packet();
        self.answers.push(RequestAnswer { to: addr, packet, len });
        Ok(())
    }

    /// Confirms a half-open request after a packet with its index: the sender is at this address.
    /// It gets a connection, replacing the one of an earlier process if there was one.
    pub(super) fn confirmed(&mut self, number: u32, source: &PacketSource) -> Parsed<u32> {
        let Some(half) = self.conns.half_open(number) else {
            return Err(Malformed("a packet of no peer that is known"));
        };
        let before = self.peers.find_at(&half.addr).map_or(NONE, |peer| self.peers[peer].conn);
        let is_its = match source {
            PacketSource::Named(name) => {
                self.conns.get(before).is_some_and(|conn| conn.to == *name)
            }
            PacketSource::At(addr) => *addr == half.addr,
            PacketSource::Unnamed => true,
        };
        if !is_its {
            return Err(Malformed("a packet that says to be of another peer"));
        }
        let addr = half.addr.clone();
        if self.conns.get(before).is_some() {
            self.was_restarted(before);
        } else if !is_in_vector(self.av.as_deref(), &addr) && !self.has_space_for_unknown() {
            return Err(Malformed("one unknown peer too many"));
        }
        let Some(half) = self.conns.take_half_open(&addr) else {
            return Err(Malformed("a packet of no peer that is known"));
        };
        let introduced = half.introduced;
        let peer = self.peers.peer_at(self.av.as_deref(), addr, &mut self.matcher);
        let Ok(id) = self.new_conn_of(peer, Some(half)) else {
            self.peers.forget_if_unused(peer, &mut self.matcher);
            return Err(Malformed("a peer that there is no room for"));
        };
        let now = self.now;
        if let PacketSource::Named(name) = source {
            // The name was that of the connection before.
            self.forgotten.retain(|forgotten| forgotten != name);
            self.conns.set_name(id, *name);
        }
        let conn = &mut self.conns[id];
        (conn.last_received, conn.verified) = (now, *source != PacketSource::Unnamed);
        match introduced {
            Introduced::As(Introduction { remote, hello }) => {
                conn.known(remote, hello);
                let peer = conn.peer;
                self.peers[peer].trace_connected(self.matcher.completions.trace_ids());
            }
            Introduced::InSeveralWays => {
                // It is asked when the port is free.
                (conn.stage, conn.deadline) = (HandshakeState::Asking, Some(now));
                self.conns.note_deadline(Some(now));
            }
        }
        Ok(id)
    }

    /// Ends the connection with a process replaced by another one at its address.
    fn was_restarted(&mut self, id: u32) {
        let who = &self.peers[self.conns[id].peer].addr;
        ofi_provider::log_sparsely!(
            &RXD,
            INFO,
            EP_CTRL,
            "{} was started again: what was under way to it fails",
            who.for_people()
        );
        self.drop_conn(id, Error::CONNRESET);
    }

    /// Handles the response of a peer with its index.
    pub(super) fn on_cts(&mut self, cts: &Cts, source: &PacketSource) -> Parsed {
        let index = u32::try_from(cts.of).ok();
        let Some(IndexUse::Conn(id)) = index.and_then(|index| self.conns.index_use(index)) else {
            return Err(Malformed("an answer to no request"));
        };
        self.conns.check_source(id, source, |peer, at| self.peers[peer].addr == *at)?;
        let conn = &mut self.conns[id];
        let Some(index) = u32::try_from(cts.index).ok().filter(|index| *index > 0) else {
            return Err(Malformed("an index that no packet can have"));
        };
        if conn.stage != HandshakeState::Known {
            if let Some(took) = conn.measure_request(self.now) {
                self.requests.answered(took);
            }
            conn.known(index, cts.hello);
            conn.last_received = self.now;
            self.conns.make_ready(id);
            let peer = self.conns[id].peer;
            self.peers[peer].trace_connected(self.matcher.completions.trace_ids());
        } else if conn.hello != cts.hello || conn.remote != index {
            self.was_restarted(id);
        } else {
            conn.lives(self.now);
            let at = conn.deadline;
            self.conns.note_deadline(at);
        }
        Ok(())
    }

    /// Creates a connection to a peer, with the content of its earlier requests, if any.
    pub(super) fn new_conn(&mut self, peer: u32) -> Result<u32> {
        let half = self.conns.take_half_open(&self.peers[peer].addr);
        self.new_conn_of(peer, half)
    }

    /// Creates a connection to a peer, possibly with a half-open request: the response to it stays
    /// valid.
    fn new_conn_of(&mut self, peer: u32, half: Option<HalfOpen>) -> Result<u32> {
        let result = self.try_new_conn(peer, half.as_ref());
        if let (Err(_), Some(half)) = (&result, &half) {
            self.conns.free_index(half.index);
        }
        result
    }

    fn try_new_conn(&mut self, peer: u32, half: Option<&HalfOpen>) -> Result<u32> {
        let (index, nonce) = match half {
            Some(half) => (half.index, half.nonce),
            None => self.conns.draw()?,
        };
        // During a turn the port is busy: it names the peer before anything is sent there.
        let to = match &mut self.port {
            Some(port) => port.resolve(&self.peers[peer].addr)?,
            None => FI_ADDR_NOTAVAIL,
        };
        let unknown = self.peers.name_of(peer) == FI_ADDR_NOTAVAIL;
        let mut conn = RxdConn::new(peer, to, index, self.limits.config.max_unacked, self.now);
        (conn.nonce, conn.unknown) = (nonce, unknown);
        conn.expect_rto(self.requests.timeout());
        conn.introduced = half.map(|half| half.introduced);
        let id = self.conns.insert(conn);
        self.peers.attach(peer);
        self.peers[peer].conn = id;
        if to == FI_ADDR_NOTAVAIL {
            self.unnamed.push(id);
        }
        Ok(id)
    }

    /// Makes the port drop the names of ended connections, and name the peers of new ones.
    pub(super) fn name_peers(&mut self, port: &mut dyn PacketPort) {
        for to in self.forgotten.drain(..) {
            port.forget(to);
        }
        for id in std::mem::take(&mut self.unnamed) {
            // One that ended may be there twice, if the next one has its number.
            let unnamed = |conn: &&mut RxdConn| conn.to == FI_ADDR_NOTAVAIL;
            let Some(conn) = self.conns.get_mut(id).filter(unnamed) else { continue };
            match port.resolve(&self.peers[conn.peer].addr) {
                Ok(to) => self.conns.set_name(id, to),
                Err(error) => self.drop_conn(id, error),
            }
        }
    }

    /// Sends the responses to requesting peers. A peer without a connection has a name just for
    /// this send.
    pub(super) fn send_answers(&mut self, port: &mut dyn PacketPort) {
        for RequestAnswer { to, packet, len } in std::mem::take(&mut self.answers) {
            let conn =
                self.peers.find_at(&to).and_then(|peer| self.conns.get(self.peers[peer].conn));
            let named = conn.map(|conn| conn.to).filter(|to| *to != FI_ADDR_NOTAVAIL);
            let Some(name) = named.or_else(|| port.resolve(&to).ok()) else { continue };
            // A packet that is not sent is a packet that is lost.
            let _ = port.send(name, &packet[..len], len);
            if named.is_none() {
                port.forget(name);
            }
        }
    }

    /// Asks a new peer for its index, now or after the responses to others.
    pub(super) fn request(&mut self, id: u32) {
        if self.requests.begin(&mut self.conns, id, self.now) {
            self.ask(id);
        }
    }

    /// Sends the waiting requests, as far as their number in flight permits it.
    #[cold]
    pub(super) fn send_requests(&mut self) {
        while let Some(id) = self.requests.next(&mut self.conns, self.now) {
            self.ask(id);
        }
    }

    /// Asks a peer for its index.
    pub(super) fn ask(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.stage = HandshakeState::Asking;
        conn.arm_asking(self.now);
        let at = conn.deadline;
        self.conns.note_deadline(at);
        self.send_rts(id);
    }

    pub(super) fn send_rts(&mut self, id: u32) {
        let Some(conn) = self.conns.get(id) else { return };
        let (source, hello) = (self.local.identity().local.to_bytes(), Hello::own(conn.nonce));
        let packet = Rts::packet(conn.index.into(), &source, hello);
        if let Some(port) = &mut self.port {
            // A packet that is not sent is a packet that is lost.
            let _ = port.send(conn.to, &packet, packet.len());
        }
    }
}

fn is_in_vector(av: Option<&Av>, addr: &Addr) -> bool {
    av.is_some_and(|av| av.find(addr.clone()) != FI_ADDR_NOTAVAIL)
}
