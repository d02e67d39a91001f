//! Names of the address vector: their insertion at the cores, and their removal.
use super::LnxEngine;
use super::owner::LnxRail;
use super::peers::addrs_for;
use crate::LNX;
use crate::config::config;
use crate::host_token;
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use ofi_provider::addr::Addr;
use ofi_provider::link_addr::LinkAddr;
use ofi_provider::slab::NONE;
use std::sync::Arc;

impl LnxEngine {
    /// Reports a new address in the vector to the cores.
    pub(crate) fn insert_name(&self, id: u32, name: fi_addr_t, addr: &Addr) {
        let trace_id = addr.trace_id();
        let Addr::Link(addr) = addr else { return };
        let rails = self.rails_of(id);
        if rails.is_empty() {
            return;
        }
        let mut state = self.lock();
        let Some(ep) = state.eps.get_mut(id) else { return };
        let Some(peer) = ep.peers.add(name) else { return };
        let as_id = ep.av.as_ref().map_or(name, |av| av.id_of(name));
        // Messages from now on are attributed to this peer.
        ep.matcher.set_name(peer, name, as_id);
        ep.matcher.senders.set_trace_id(peer, trace_id);
        drop(state);
        let inserted = self.insert_at_cores(&rails, peer, addr);
        if inserted.is_empty() {
            ofi_provider::log!(&LNX, WARN, AV, "{addr}: no provider of the link reaches it");
        }
        if let Some(ep) = self.lock().eps.get_mut(id) {
            ep.peers.set_routes(name, inserted);
        }
    }

    /// Inserts a peer's addresses at the cores, as far as they accept them. The preferred route
    /// comes first.
    fn insert_at_cores(
        &self,
        rails: &[Arc<LnxRail>],
        peer: u32,
        addr: &LinkAddr,
    ) -> Vec<(u32, fi_addr_t)> {
        let here = addr.mark().is_some_and(|mark| host_token::is_here(&mark));
        let mut inserted = Vec::new();
        for (number, (rail, core)) in rails.iter().zip(&self.common.cores).enumerate() {
            if core.is_local && config().no_local {
                continue;
            }
            for part in addrs_for(addr, &core.fabric, core.is_local, here) {
                match rail.rail.insert(part, peer.into()) {
                    Ok(of_core) => inserted.push((number as u32, of_core)),
                    Err(error) => ofi_provider::log!(
                        &LNX,
                        WARN,
                        AV,
                        "{}: an address of {addr} was refused: {error}",
                        core.domain_name()
                    ),
                }
            }
        }
        inserted
    }

    /// Sets the identifier reported by completions for a name, chosen by the application.
    pub(crate) fn identify_name(&self, id: u32, name: fi_addr_t, as_id: fi_addr_t) {
        let mut state = self.lock();
        let Some(ep) = state.eps.get_mut(id) else { return };
        let peer = ep.peers.named(name);
        if peer != NONE {
            ep.matcher.set_name(peer, name, as_id);
        }
    }

    /// Handles the removal of an address from the vector: the peer is an unknown peer from now on.
    pub(crate) fn remove_name(&self, id: u32, name: fi_addr_t) {
        let rails = self.rails_of(id);
        let mut state = self.lock();
        let Some(ep) = state.eps.get_mut(id) else { return };
        let inserted = ep.peers.end_routes(name);
        drop(state);
        // The number is another's only when no core reports it any more.
        for (core, name) in inserted {
            // The endpoint may be closing.
            if let Some(rail) = rails.get(core as usize) {
                rail.rail.remove(name);
            }
        }
        let mut state = self.lock();
        let Some(ep) = state.eps.get_mut(id) else { return };
        if ep.peers.take(name).is_none() {
            return;
        }
        // The peer, and the senders of messages buffered before the name was inserted.
        for unknown_peer in ep.peers.unknown_peers() {
            if ep.matcher.senders.name_of(unknown_peer) == name {
                ep.matcher.set_name(unknown_peer, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);
                ep.settle(unknown_peer);
            }
        }
    }
}
