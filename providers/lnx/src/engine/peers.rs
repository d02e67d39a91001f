//! Peers of an endpoint: their names in the address vector, and their routes over the cores.
//!
//! All cores with an address of a peer are requested to report its local number for it
//! (FI_AV_USER_ID). So a sender is known for every route, without a table lookup. Messages to it
//! always use the same route, so they stay in order. Senders find the route without the engine's
//! lock ([`LnxRoutes`]).
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use ofi_provider::addr::Addr;
use ofi_provider::error::Error;
use ofi_provider::link_addr::LinkAddr;
use ofi_provider::slab::{NONE, Slab};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Core of the route to a peer, and its name there.
#[derive(Debug)]
struct RouteCell {
    /// Number of the core; [`NONE`] for a missing name, [`UNREACHED`] for a name without a route.
    core: AtomicU32,
    to: AtomicU64,
}

const UNREACHED: u32 = NONE - 1;

impl RouteCell {
    fn new() -> Self {
        Self { core: AtomicU32::new(NONE), to: AtomicU64::new(0) }
    }
}

/// Names found with a single index.
const FIRST_NAMES: usize = 64;

/// Routes by the names of the vector, read without a lock. Only names being inserted or removed
/// change, and no thread sends to these.
#[derive(Debug)]
pub(super) struct LnxRoutes {
    first: [RouteCell; FIRST_NAMES],
    /// Arrays of doubling size: each has as many entries as all before it.
    more: [OnceLock<Box<[RouteCell]>>; 32],
}

impl Default for LnxRoutes {
    fn default() -> Self {
        Self {
            first: std::array::from_fn(|_| RouteCell::new()),
            more: [const { OnceLock::new() }; 32],
        }
    }
}

impl LnxRoutes {
    /// Returns the array of a name outside the first one, its size, and the name's index there.
    fn piece(&self, name: fi_addr_t) -> Option<(&OnceLock<Box<[RouteCell]>>, usize, usize)> {
        let number = (name / FIRST_NAMES as u64).checked_ilog2()?;
        let size = FIRST_NAMES << number.min(32);
        Some((self.more.get(number as usize)?, size, name as usize - size))
    }

    fn far(&self, name: fi_addr_t) -> Option<&RouteCell> {
        let (piece, _, index) = self.piece(name)?;
        piece.get()?.get(index)
    }

    /// Returns the number of the core for a peer, and the peer's name there. Without a route there
    /// is no core with this number, and [`why_none`] returns the reason.
    #[inline(always)]
    pub(super) fn route(&self, name: fi_addr_t) -> (u32, fi_addr_t) {
        match self.first.get(name as usize).or_else(|| self.far(name)) {
            Some(cell) => (cell.core.load(Ordering::Acquire), cell.to.load(Ordering::Relaxed)),
            None => (NONE, 0),
        }
    }

    fn set(&self, name: fi_addr_t, core: u32, to: fi_addr_t) {
        let cell = self.first.get(name as usize).or_else(|| {
            let (piece, size, index) = self.piece(name)?;
            piece.get_or_init(|| (0..size).map(|_| RouteCell::new()).collect()).get(index)
        });
        if let Some(cell) = cell {
            cell.to.store(to, Ordering::Relaxed);
            cell.core.store(core, Ordering::Release);
        }
    }
}

/// Returns the error for a route without a core: -FI_EINVAL for a missing name, -FI_EHOSTUNREACH
/// for a name without a route.
pub(super) fn why_none(core: u32) -> Error {
    if core == UNREACHED { Error::HOSTUNREACH } else { Error::INVAL }
}

/// State of a name in the vector.
#[derive(Clone, Debug)]
struct LnxName {
    /// The number of the peer.
    peer: u32,
    /// Names of the peer at the cores.
    inserted: Vec<(u32, fi_addr_t)>,
}

/// Peer, indexed by its number in the matching engine.
#[derive(Debug)]
struct LnxPeer {
    /// Name in the address vector; FI_ADDR_NOTAVAIL if it has none.
    name: fi_addr_t,
    /// Receives being filled by it.
    filling: usize,
}

impl LnxPeer {
    fn is_unknown_peer(&self) -> bool {
        self.name == FI_ADDR_NOTAVAIL
    }
}

/// The peers of an endpoint.
#[derive(Debug, Default)]
pub(super) struct LnxPeers {
    names: Vec<Option<LnxName>>,
    peers: Slab<LnxPeer>,
    pub(super) routes: Arc<LnxRoutes>,
}

impl LnxPeers {
    fn name(&mut self, name: fi_addr_t) -> Option<&mut Option<LnxName>> {
        self.names.get_mut(usize::try_from(name).ok()?)
    }

    /// Returns the number of a sender reported by cores as `src`; a new one for each message of a
    /// sender without a name.
    pub(super) fn sender(&mut self, src: fi_addr_t) -> u32 {
        match self.number(src) {
            NONE => self.peers.insert(LnxPeer { name: FI_ADDR_NOTAVAIL, filling: 0 }),
            known => known,
        }
    }

    /// Returns the number of a sender reported by cores as `src`; [`NONE`] if it has no name.
    pub(super) fn number(&self, src: fi_addr_t) -> u32 {
        let number = u32::try_from(src).unwrap_or(NONE);
        if self.name_of(number) == FI_ADDR_NOTAVAIL { NONE } else { number }
    }

    /// Returns the name in the address vector of the peer with this number; FI_ADDR_NOTAVAIL if it
    /// has none.
    pub(super) fn name_of(&self, peer: u32) -> fi_addr_t {
        self.peers.get(peer).map_or(FI_ADDR_NOTAVAIL, |peer| peer.name)
    }

    /// The number of the peer with this name of the vector; [`NONE`] if there is none.
    pub(super) fn named(&mut self, name: fi_addr_t) -> u32 {
        self.name(name).and_then(|known| known.as_ref()).map_or(NONE, |known| known.peer)
    }

    /// The numbers of senders without a name.
    pub(super) fn unknown_peers(&self) -> Vec<u32> {
        self.peers.indices(LnxPeer::is_unknown_peer)
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

    /// Removes a peer without a name and without receives being filled by it; returns true if it
    /// did.
    pub(super) fn forget_if_unused(&mut self, peer: u32) -> bool {
        let unused =
            self.peers.get(peer).is_some_and(|peer| peer.is_unknown_peer() && peer.filling == 0);
        unused && self.peers.remove(peer).is_some()
    }

    /// Adds a name; returns the peer's number, or none if the name is known.
    pub(super) fn add(&mut self, name: fi_addr_t) -> Option<u32> {
        let index = usize::try_from(name).ok()?;
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        if self.names[index].is_some() {
            return None;
        }
        let peer = self.peers.insert(LnxPeer { name, filling: 0 });
        self.names[index] = Some(LnxName { peer, inserted: Vec::new() });
        self.routes.set(name, UNREACHED, 0);
        Some(peer)
    }

    /// Sets the names of a peer at the cores, with the preferred route first.
    pub(super) fn set_routes(&mut self, name: fi_addr_t, inserted: Vec<(u32, fi_addr_t)>) {
        let first = inserted.first().copied();
        if let Some(Some(known)) = self.name(name) {
            known.inserted = inserted;
            let (core, to) = first.unwrap_or((UNREACHED, 0));
            self.routes.set(name, core, to);
        }
    }

    /// Removes the routes of a name; returns the removed ones.
    pub(super) fn end_routes(&mut self, name: fi_addr_t) -> Vec<(u32, fi_addr_t)> {
        self.routes.set(name, NONE, 0);
        match self.name(name) {
            Some(Some(known)) => std::mem::take(&mut known.inserted),
            _ => Vec::new(),
        }
    }

    /// Takes a name out; returns the peer's number.
    pub(super) fn take(&mut self, name: fi_addr_t) -> Option<u32> {
        let LnxName { peer, .. } = self.name(name)?.take()?;
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.name = FI_ADDR_NOTAVAIL;
        }
        Some(peer)
    }
}

/// Returns true if an address is a loopback address, valid on any host.
fn is_loopback(addr: &[u8]) -> bool {
    Addr::from_bytes(addr).and_then(|addr| addr.ip()).is_ok_and(|addr| addr.ip().is_loopback())
}

/// Returns the addresses of a peer usable by a core, selected by the name of the core's fabric.
/// Addresses limited to this host are used only for peers on it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::link_addr::MARK_LEN;

    #[test]
    fn core_gets_addresses_of_its_fabric_and_local_ones_on_same_host() {
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
        let routes = peers.routes.clone();
        assert_eq!(routes.route(3).0, NONE);
        let peer = peers.add(3).unwrap();
        assert_eq!((peers.add(3), peers.named(3), peers.named(4)), (None, peer, NONE));
        assert_eq!((peers.sender(peer.into()), peers.number(7)), (peer, NONE));
        assert_eq!(why_none(routes.route(3).0), Error::HOSTUNREACH);
        peers.set_routes(3, vec![(1, 9), (0, 5)]);
        assert_eq!(routes.route(3), (1, 9));
        peers.hold(peer);
        assert_eq!(peers.end_routes(3), [(1, 9), (0, 5)]);
        assert_eq!((why_none(routes.route(3).0), peers.number(peer.into())), (Error::INVAL, peer));
        assert_eq!((peers.take(3), peers.unknown_peers()), (Some(peer), vec![peer]));
        assert_eq!(peers.number(peer.into()), NONE);
        assert!(!peers.forget_if_unused(peer), "a receive is being filled");
        let again = peers.add(3).unwrap();
        assert_ne!(again, peer);
        peers.release(peer);
        assert!(peers.forget_if_unused(peer) && !peers.forget_if_unused(peer));
        // Each message of an unknown sender has a number of its own.
        let unknown_peers = [peers.sender(FI_ADDR_NOTAVAIL), peers.sender(FI_ADDR_NOTAVAIL)];
        assert_ne!(unknown_peers[0], unknown_peers[1]);
        assert!(!peers.forget_if_unused(again));
    }

    #[test]
    fn ways_are_found_by_any_name() {
        let routes = LnxRoutes::default();
        let names = [0, 1, 63, 64, 65, 127, 128, 255, 256, 4095, 4096, 100_000];
        for name in names {
            assert_eq!(routes.route(name).0, NONE);
            routes.set(name, 2, name + 7);
        }
        for name in names {
            assert_eq!(routes.route(name), (2, name + 7));
            routes.set(name, NONE, 0);
            assert_eq!(routes.route(name).0, NONE);
        }
        for name in [FI_ADDR_NOTAVAIL, u64::MAX / 2, 1 << 38, 1 << 37] {
            assert_eq!(routes.route(name).0, NONE);
        }
    }
}
