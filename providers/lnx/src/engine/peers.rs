//! The peers of an endpoint: what the address vector calls them, and which core reaches them.
//!
//! Every name of the vector is given to all cores that have an address of the peer's, as what they are
//! to report for it (FI_AV_USER_ID): so a sender is known whichever way its messages take. Messages
//! to it go one way always, so that they keep their order.
use super::LnxEngine;
use super::rails::LnxRail;
use crate::LNX;
use crate::beacon;
use crate::config::config;
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::link_addr::LinkAddr;
use ofi_provider::slab::{NONE, Slab};
use std::sync::Arc;

/// What is known of a name of the vector.
#[derive(Clone, Debug)]
struct LnxName {
    /// The number of the peer.
    peer: u32,
    /// The core that messages to it take, and its name there; none if none reaches it.
    route: Option<(usize, fi_addr_t)>,
    /// What the cores call it.
    inserted: Vec<(usize, fi_addr_t)>,
}

/// A peer, by the number that the inbox knows it by.
#[derive(Debug, Default)]
struct LnxPeer {
    /// It is in the address vector.
    named: bool,
    /// Receives that are being filled by it.
    filling: usize,
}

/// The peers of an endpoint.
#[derive(Debug, Default)]
pub(super) struct LnxPeers {
    names: Vec<Option<LnxName>>,
    peers: Slab<LnxPeer>,
}

impl LnxPeers {
    fn name(&self, name: fi_addr_t) -> Option<&LnxName> {
        self.names.get(usize::try_from(name).ok()?)?.as_ref()
    }

    /// The core that reaches a peer, and the peer's name there.
    #[inline]
    pub(super) fn route(&self, name: fi_addr_t) -> Result<(usize, fi_addr_t)> {
        self.name(name).ok_or(Error::INVAL)?.route.ok_or(Error::HOSTUNREACH)
    }

    /// The number of a sender, which is a new one for each message of one without a name.
    pub(super) fn sender(&mut self, name: fi_addr_t) -> u32 {
        match self.name(name) {
            Some(known) => known.peer,
            None => self.peers.insert(LnxPeer::default()),
        }
    }

    /// The number of a peer with this name; [`NONE`] if there is none.
    pub(super) fn number(&self, name: fi_addr_t) -> u32 {
        self.name(name).map_or(NONE, |known| known.peer)
    }

    /// The numbers of senders without a name.
    pub(super) fn strangers(&self) -> Vec<u32> {
        self.peers.indices(|peer| !peer.named)
    }

    /// A receive is being filled by the peer.
    pub(super) fn hold(&mut self, peer: u32) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.filling += 1;
        }
    }

    /// A receive was filled by the peer.
    pub(super) fn release(&mut self, peer: u32) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.filling -= 1;
        }
    }

    /// Forgets a peer without a name by which nothing is filled; returns whether it did.
    pub(super) fn forget_if_unused(&mut self, peer: u32) -> bool {
        let unused = self.peers.get(peer).is_some_and(|peer| !peer.named && peer.filling == 0);
        unused && self.peers.remove(peer).is_some()
    }

    /// Adds a name; returns the peer's number, or none if the name is known.
    fn add(&mut self, name: fi_addr_t) -> Option<u32> {
        let index = usize::try_from(name).ok()?;
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        if self.names[index].is_some() {
            return None;
        }
        let peer = self.peers.insert(LnxPeer { named: true, filling: 0 });
        self.names[index] = Some(LnxName { peer, route: None, inserted: Vec::new() });
        Some(peer)
    }

    /// Sets what the cores call a peer, the one that messages take first.
    fn set_routes(&mut self, name: fi_addr_t, inserted: Vec<(usize, fi_addr_t)>) {
        let index = usize::try_from(name).ok();
        if let Some(Some(known)) = index.and_then(|index| self.names.get_mut(index)) {
            known.route = inserted.first().copied();
            known.inserted = inserted;
        }
    }

    /// Takes a name out.
    fn take(&mut self, name: fi_addr_t) -> Option<LnxName> {
        let known = self.names.get_mut(usize::try_from(name).ok()?)?.take()?;
        if let Some(peer) = self.peers.get_mut(known.peer) {
            peer.named = false;
        }
        Some(known)
    }
}

/// Whether an address is one of a host's own, which other hosts have as well.
fn is_loopback(addr: &[u8]) -> bool {
    Addr::from_bytes(addr).and_then(|addr| addr.ip()).is_ok_and(|addr| addr.ip().is_loopback())
}

/// The addresses of a peer that a core takes, by the name of the core's fabric. Those that reach
/// nothing but this host are for peers of it.
pub(super) fn addrs_for<'a>(
    addr: &'a LinkAddr,
    fabric: &'a [u8],
    core_is_local: bool,
    peer_is_here: bool,
) -> impl Iterator<Item = &'a [u8]> {
    let parts = addr.parts().filter(move |(name, _)| *name == fabric);
    parts
        .map(|(_, addr)| addr)
        .filter(move |addr| peer_is_here || !(core_is_local || is_loopback(addr)))
}

impl LnxEngine {
    /// The vector gave an address a name: the cores are told of it.
    pub(crate) fn insert_name(&self, id: u32, name: fi_addr_t, addr: &Addr) {
        let Addr::Link(addr) = addr else { return };
        let mut state = self.lock();
        let Some(ep) = state.eps.get_mut(id).filter(|ep| !ep.rails.is_empty()) else { return };
        let Some(peer) = ep.peers.add(name) else { return };
        // What comes from now on is known to be from this peer.
        ep.inbox.set_name(peer, name, name);
        let rails = ep.rails.clone();
        drop(state);
        let inserted = self.insert_at_cores(&rails, name, addr);
        if inserted.is_empty() {
            ofi_provider::log!(&LNX, WARN, AV, "{addr}: no provider of the link reaches it");
        }
        if let Some(ep) = self.lock().eps.get_mut(id) {
            ep.peers.set_routes(name, inserted);
        }
    }

    /// Gives the cores a peer's addresses, as far as they take them. The first one that messages take
    /// comes first.
    fn insert_at_cores(
        &self,
        rails: &[Arc<LnxRail>],
        name: fi_addr_t,
        addr: &LinkAddr,
    ) -> Vec<(usize, fi_addr_t)> {
        let here = addr.mark().is_some_and(|mark| beacon::is_here(&mark));
        let mut inserted = Vec::new();
        for (number, (rail, core)) in rails.iter().zip(&self.common.cores).enumerate() {
            if core.is_local && config().no_local {
                continue;
            }
            for part in addrs_for(addr, &core.fabric, core.is_local, here) {
                match rail.rail.insert(part, name) {
                    Ok(of_core) => inserted.push((number, of_core)),
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

    /// The application chose what completions report for a name.
    pub(crate) fn identify_name(&self, id: u32, name: fi_addr_t, as_id: fi_addr_t) {
        let mut state = self.lock();
        let Some(ep) = state.eps.get_mut(id) else { return };
        let peer = ep.peers.number(name);
        if peer != NONE {
            ep.inbox.set_name(peer, name, as_id);
        }
    }

    /// A name was removed from the vector: the peer is a stranger from now on.
    pub(crate) fn remove_name(&self, id: u32, name: fi_addr_t) {
        let mut state = self.lock();
        let Some(ep) = state.eps.get_mut(id) else { return };
        let Some(known) = ep.peers.take(name) else { return };
        ep.inbox.set_name(known.peer, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);
        ep.settle(known.peer);
        let rails = ep.rails.clone();
        drop(state);
        for (rail, of_core) in known.inserted {
            rails[rail].rail.remove(of_core);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::link_addr::MARK_LEN;

    #[test]
    fn a_core_gets_the_addresses_of_its_fabric_and_local_ones_only_of_peers_that_are_here() {
        let ip = |text: &str| Addr::Ip(text.parse().unwrap()).to_bytes();
        let (near, far) = (ip("127.0.0.1:7"), ip("192.0.2.1:7"));
        let parts = [
            (b"shm".to_vec(), b"17:0:1\0".to_vec()),
            (b"127.0.0.0/8".to_vec(), near.clone()),
            (b"192.0.2.0/24".to_vec(), far.clone()),
        ];
        let addr = LinkAddr::new(b"node", Some([1; MARK_LEN]), &parts).unwrap();
        let of = |fabric: &str, local, here| -> Vec<Vec<u8>> {
            addrs_for(&addr, fabric.as_bytes(), local, here).map(<[u8]>::to_vec).collect()
        };
        assert_eq!(of("shm", true, true), [b"17:0:1\0".to_vec()]);
        assert!(of("shm", true, false).is_empty(), "an equal host name is no proof");
        assert_eq!(of("127.0.0.0/8", false, true), [near]);
        assert!(of("127.0.0.0/8", false, false).is_empty(), "every host has that address");
        assert_eq!(of("192.0.2.0/24", false, false), [far]);
        assert!(of("192.0.2.0/25", false, true).is_empty());
    }

    #[test]
    fn a_peer_keeps_its_number_as_long_as_something_is_its() {
        let mut peers = LnxPeers::default();
        assert_eq!(peers.route(3), Err(Error::INVAL));
        let peer = peers.add(3).unwrap();
        assert_eq!((peers.add(3), peers.sender(3), peers.number(4)), (None, peer, NONE));
        assert_eq!(peers.route(3), Err(Error::HOSTUNREACH));
        peers.set_routes(3, vec![(1, 9), (0, 5)]);
        assert_eq!(peers.route(3), Ok((1, 9)));
        peers.hold(peer);
        assert_eq!(peers.take(3).unwrap().inserted, [(1, 9), (0, 5)]);
        assert_eq!((peers.route(3), peers.strangers()), (Err(Error::INVAL), vec![peer]));
        assert!(!peers.forget_if_unused(peer), "a receive is being filled");
        let again = peers.add(3).unwrap();
        assert_ne!(again, peer);
        peers.release(peer);
        assert!(peers.forget_if_unused(peer) && !peers.forget_if_unused(peer));
        // Each message of an unknown sender has a number of its own.
        let strangers = [peers.sender(FI_ADDR_NOTAVAIL), peers.sender(FI_ADDR_NOTAVAIL)];
        assert_ne!(strangers[0], strangers[1]);
        assert!(!peers.forget_if_unused(again));
    }
}
