//! Endpoints of the engine, and the notifications of their address vectors.
use super::conn::{Stage, StreamConn};
use super::ep::{StreamEngineEp, StreamIdentity};
use super::state::StreamState;
use crate::transport::{ByteLink, ShmLink, ShmTransport};
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, fi_addr_t, fi_peer_links};
use ofi_provider::addr::Addr;
use ofi_provider::endpoint::count_links;
use ofi_provider::slab::NONE;

impl<N: ShmTransport> StreamState<N> {
    /// The endpoint's FI_OPT_FIREWALL_ADDR, to read or set.
    pub(crate) fn behind_firewall(&mut self, ep: u32) -> &mut bool {
        &mut self.rx.tx.eps[ep].identity.behind_firewall
    }

    /// Returns true if buffers of the endpoint may be in memory of devices (FI_HMEM).
    pub(crate) fn has_devices(&self, ep: u32) -> bool {
        self.rx.tx.eps[ep].bounce.is_some()
    }

    /// Returns the number of the endpoint's connections by kind of link (FI_OPT_PEER_LINKS).
    pub(crate) fn peer_links(&self, ep: u32) -> fi_peer_links {
        let made = |conn: &&StreamConn<N>| conn.stage == Stage::Connected;
        let conns = self.rx.tx.each_conn_of(ep).map(|(_, conn)| conn).filter(made);
        count_links(conns.map(|conn| conn.link.tx_over_shm() && conn.link.rx_over_shm()))
    }

    /// The endpoint's own address.
    pub(crate) fn local(&self, ep: u32) -> &Addr {
        self.rx.tx.eps[ep].local()
    }

    /// Adds an endpoint.
    pub(crate) fn add_ep(&mut self, identity: StreamIdentity) -> u32 {
        let settings = N::Link::settings();
        self.rx.tx.eps.insert_with(|id| StreamEngineEp::new(id, identity, settings))
    }

    /// Sets the source reported by completions of receives (`OPT_SOURCE`).
    pub(crate) fn set_source(&mut self, ep: u32, source: fi_addr_t) {
        self.publisher.set_serving();
        let ep = &mut self.rx.tx.eps[ep];
        ep.has_source = true;
        ep.matcher.set_name(NONE, FI_ADDR_NOTAVAIL, source);
    }

    /// The endpoint with this number, to set it up or ask it.
    pub(crate) fn ep(&mut self, id: u32) -> &mut StreamEngineEp {
        &mut self.rx.tx.eps[id]
    }

    /// Handles the insertion of `addr` in the address vector: the peer and its buffered messages
    /// take the name, and a pending connection waiting for it gets its response.
    pub(crate) fn name_inserted(&mut self, ep_id: u32, name: fi_addr_t, addr: &Addr) {
        let Some(ep) = self.rx.tx.eps.get_mut(ep_id) else { return };
        for peer in ep.peers.name_inserted(ep.av.as_deref(), name, addr, &mut ep.matcher) {
            if let Some(conn) = self.rx.tx.io.conns.get_mut(ep.peers[peer].conn) {
                conn.unknown_conn = None;
            }
        }
        self.acceptor().admit_held(ep_id, addr);
        // More messages of a known peer are buffered. A sleeping thread polls no other connection
        // blocked on that.
        if self.rx.tx.io.blocked.is_any_on_buffer() {
            self.rx.buffer_blocked_rx();
        }
    }

    /// Sets the identifier reported by completions for a name, chosen by the application
    /// (FI_AV_USER_ID).
    pub(crate) fn name_identified(&mut self, ep: u32, name: fi_addr_t, id: fi_addr_t) {
        let Some(ep) = self.rx.tx.eps.get_mut(ep) else { return };
        ep.peers.name_identified(name, id, &mut ep.matcher);
    }

    /// Handles the removal of a name from the address vector. The peer becomes an unknown peer. Its
    /// connection stays unless only known peers may connect
    /// ([`only_known`](crate::settings::StreamSettings::only_known)). Transfers waiting for an
    /// absent peer fail.
    pub(crate) fn name_removed(&mut self, ep_id: u32, name: fi_addr_t) {
        let Some(ep) = self.rx.tx.eps.get_mut(ep_id) else { return };
        let peers = ep.peers.name_removed(name, &mut ep.matcher);
        ep.cancel_absent(&peers);
        for &peer in &peers {
            self.rx.tx.eps.peer_left(ep_id, peer);
        }
        self.dismiss(ep_id, &peers);
    }
}
