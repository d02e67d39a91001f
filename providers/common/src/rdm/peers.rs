//! Peers of a reliable datagram endpoint: their identity, their name in the address vector, and
//! their connection (fi_av(3)).
//!
//! A [`PeerTable`] is generic over the provider's additional state of each peer. The endpoint's
//! matching engine depends on the names of peers, so it is notified of each change
//! ([`PeerObserver`]).
use super::address_index::{AddressIndex, Dest};
use super::rx_matcher::{RxMatcher, UnexpectedBody};
use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::addr::Addr;
use crate::av::{Av, AvObserverHandle};
use crate::error::{Error, Result};
use crate::probes::{self, EndpointTraceIds};
use crate::slab::{NONE, Slab};
use std::ops::{Index, IndexMut};
use std::sync::{Arc, Weak};

/// Engine with endpoints notified of changes of their address vector. Closed endpoints are not
/// notified.
pub trait AvObserver: Send + Sync + 'static {
    /// The vector gave `addr` a name.
    fn name_inserted(&self, ep: u32, name: fi_addr_t, addr: &Addr);
    /// Reports the address for completions chosen by the application for a name (FI_AV_USER_ID).
    fn name_identified(&self, ep: u32, name: fi_addr_t, id: fi_addr_t);
    /// A name was removed from the vector.
    fn name_removed(&self, ep: u32, name: fi_addr_t);
}

/// Passes changes of an address vector to an endpoint of an engine.
#[derive(Debug)]
pub struct AvSubscription<E> {
    engine: Weak<E>,
    ep: u32,
}

impl<E: AvObserver> AvSubscription<E> {
    /// Notifies the engine's endpoint of changes of the vector from now on, during the lifetime of
    /// the result.
    pub fn listen(engine: &Arc<E>, ep: u32, av: &Av) -> Arc<Self> {
        let names = Arc::new(Self { engine: Arc::downgrade(engine), ep });
        let weak: Weak<Self> = Arc::downgrade(&names);
        av.listen(weak);
        names
    }
}

impl<E: AvObserver> AvObserverHandle for AvSubscription<E> {
    fn inserted(&self, index: fi_addr_t, addr: &Addr) {
        if let Some(engine) = self.engine.upgrade() {
            engine.name_inserted(self.ep, index, addr);
        }
    }

    fn identified(&self, index: fi_addr_t, id: fi_addr_t) {
        if let Some(engine) = self.engine.upgrade() {
            engine.name_identified(self.ep, index, id);
        }
    }

    fn removed(&self, index: fi_addr_t, _addr: &Addr) {
        if let Some(engine) = self.engine.upgrade() {
            engine.name_removed(self.ep, index);
        }
    }
}

/// Observer of a [`PeerTable`]: the endpoint's matching engine.
pub trait PeerObserver {
    /// There is a new peer of this number and address, without a name so far.
    fn added(&mut self, peer: u32, addr: &Addr);
    /// Reports a change of a peer's name, or of its number reported by completions (FI_AV_USER_ID);
    /// FI_ADDR_NOTAVAIL for an unknown peer.
    fn renamed(&mut self, peer: u32, name: fi_addr_t, id: fi_addr_t);
    /// Returns true if messages of the peer are buffered, so the peer must not be forgotten.
    fn has_buffered_from(&self, peer: u32) -> bool;
    /// The peer is forgotten, and its number may become another's.
    fn forgotten(&mut self, peer: u32);
}

impl<B: UnexpectedBody> PeerObserver for RxMatcher<B> {
    fn added(&mut self, peer: u32, addr: &Addr) {
        self.senders.set_addr(peer, || addr.to_bytes());
        self.senders.set_trace_id(peer, addr.trace_id());
    }

    fn renamed(&mut self, peer: u32, name: fi_addr_t, id: fi_addr_t) {
        self.set_name(peer, name, id);
    }

    fn has_buffered_from(&self, peer: u32) -> bool {
        self.senders.has_buffered_from(peer)
    }

    fn forgotten(&mut self, peer: u32) {
        self.forget(peer);
    }
}

/// Provider's state of each peer.
pub trait PeerExtra: Default {
    /// Returns true if nothing waits for the peer there, so the peer may be forgotten.
    fn is_idle(&self) -> bool {
        true
    }
}

impl PeerExtra for () {}

/// A peer of an endpoint, connected or not.
#[derive(Debug)]
pub struct RdmPeer<P> {
    /// Identity of the peer: its address without parts irrelevant to it ([`Addr::identity`]).
    pub addr: Addr,
    /// Receive context of the peer; 0 if the peer is not scalable.
    pub rx: u16,
    /// The peer's fi_addr_t in the address vector, FI_ADDR_NOTAVAIL if it has none.
    pub name: fi_addr_t,
    /// Source reported by completions: `name`, or the one chosen by the application
    /// (FI_AV_USER_ID).
    pub id: fi_addr_t,
    /// The connection to send on, [`NONE`] if there is none.
    pub conn: u32,
    /// Number of connections with the peer; more than one only for an endpoint connected to itself,
    /// or for contexts of scalable endpoints.
    pub conns: u32,
    /// True if the peer advertised it cannot accept connections.
    pub behind_firewall: bool,
    /// State of the provider.
    pub extra: P,
}

impl<P> RdmPeer<P> {
    /// Reports an established connection of the endpoint with these numbers to a tracer, if there is
    /// one.
    pub fn trace_connected(&self, ids: Option<&EndpointTraceIds>) {
        if probes::is_enabled() {
            let own = ids.map_or(0, EndpointTraceIds::own);
            probes::connected(own, self.addr.trace_id(), &self.addr.for_people());
        }
    }
}

/// The peers of an endpoint, by number, by address and by name.
#[derive(Debug)]
pub struct PeerTable<P> {
    peers: Slab<RdmPeer<P>>,
    names: AddressIndex,
}

impl<P> Default for PeerTable<P> {
    fn default() -> Self {
        Self { peers: Slab::default(), names: AddressIndex::default() }
    }
}

impl<P> Index<u32> for PeerTable<P> {
    type Output = RdmPeer<P>;

    #[inline]
    fn index(&self, peer: u32) -> &RdmPeer<P> {
        &self.peers[peer]
    }
}

impl<P> IndexMut<u32> for PeerTable<P> {
    #[inline]
    fn index_mut(&mut self, peer: u32) -> &mut RdmPeer<P> {
        &mut self.peers[peer]
    }
}

impl<P> PeerTable<P> {
    /// Returns the number of the peer of a destination, if it is known: nearly always.
    #[inline(always)]
    pub fn first(&self, dest: fi_addr_t) -> Option<u32> {
        self.names.first(dest)
    }

    /// Returns the peer of a destination, if it is known.
    #[inline(always)]
    pub fn named(&self, dest: fi_addr_t) -> Option<&RdmPeer<P>> {
        self.peers.get(self.names.first_or_none(dest))
    }

    /// The peer of this number. One without a name may be forgotten by now.
    #[inline]
    pub fn get(&self, peer: u32) -> Option<&RdmPeer<P>> {
        self.peers.get(peer)
    }

    /// Returns it as a mutable reference.
    #[inline]
    pub fn get_mut(&mut self, peer: u32) -> Option<&mut RdmPeer<P>> {
        self.peers.get_mut(peer)
    }

    /// Returns the number of the peer with this address, if there is one. `addr` is an identity
    /// ([`Addr::identity`]).
    pub fn find_at(&self, addr: &Addr) -> Option<u32> {
        self.names.at(addr.clone(), 0)
    }

    /// All peers, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &RdmPeer<P>)> {
        self.peers.iter()
    }

    /// Iterates over mutable references.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut RdmPeer<P>)> {
        self.peers.iter_mut()
    }

    /// Returns the peer's fi_addr_t, for matching the source of receives; FI_ADDR_NOTAVAIL if it
    /// has none, or was forgotten.
    #[inline]
    pub fn name_of(&self, peer: u32) -> fi_addr_t {
        self.peers.get(peer).map_or(FI_ADDR_NOTAVAIL, |peer| peer.name)
    }

    /// Returns the source address reported by completions for the peer.
    #[inline]
    pub fn id_of(&self, peer: u32) -> fi_addr_t {
        self.peers.get(peer).map_or(FI_ADDR_NOTAVAIL, |peer| peer.id)
    }

    /// Returns true if a peer cannot accept connections, as advertised by the peer itself or
    /// declared by the application (FI_FIREWALL_ADDR in fi_av_insert(3)).
    pub fn is_out_of_reach(&self, av: Option<&Av>, peer: u32) -> bool {
        let peer = &self.peers[peer];
        peer.behind_firewall || av.is_some_and(|av| av.is_behind_firewall(peer.name))
    }

    /// A connection with the peer begins, or the attempt at one.
    pub fn attach(&mut self, peer: u32) {
        self.peers[peer].conns += 1;
    }

    /// A connection with the peer is over: nothing is sent on it any more.
    pub fn detach(&mut self, peer: u32, conn: u32) {
        self.release(peer, conn);
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.conns -= 1;
        }
    }

    /// Makes new transfers to a peer take another connection than this one; it remains a connection
    /// of the peer.
    pub fn release(&mut self, peer: u32, conn: u32) {
        if let Some(peer) = self.peers.get_mut(peer) {
            if peer.conn == conn {
                peer.conn = NONE;
            }
        }
    }

    /// Sets the address of a peer, and notifies `observer`.
    fn rename(
        &mut self,
        peer: u32,
        name: fi_addr_t,
        id: fi_addr_t,
        observer: &mut impl PeerObserver,
    ) -> bool {
        let Some(entry) = self.peers.get_mut(peer) else { return false };
        (entry.name, entry.id) = (name, id);
        self.names.put(name, entry.rx, peer);
        observer.renamed(peer, name, id);
        true
    }
}

/// Returns the address reported by completions for a name of the vector.
fn id_of(av: Option<&Av>, name: fi_addr_t) -> fi_addr_t {
    av.map_or(name, |av| av.id_of(name))
}

impl<P: PeerExtra> PeerTable<P> {
    /// Returns the number of the peer with this address, added if it is new. `addr` is an identity
    /// ([`Addr::identity`]).
    pub fn peer_at(
        &mut self,
        av: Option<&Av>,
        addr: Addr,
        observer: &mut impl PeerObserver,
    ) -> u32 {
        self.context_at(av, addr, 0, observer)
    }

    /// The number of the peer with this address and receive context `rx`, added if it is new.
    pub fn context_at(
        &mut self,
        av: Option<&Av>,
        addr: Addr,
        rx: u16,
        observer: &mut impl PeerObserver,
    ) -> u32 {
        if let Some(peer) = self.names.at(addr.clone(), rx) {
            return peer;
        }
        let (name, id) = (FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);
        let peer = self.peers.insert(RdmPeer {
            addr: addr.clone(),
            rx,
            name,
            id,
            conn: NONE,
            conns: 0,
            behind_firewall: false,
            extra: P::default(),
        });
        observer.added(peer, &addr);
        self.names.add(addr.clone(), rx, peer);
        if let Some(av) = av {
            let name = av.find(addr);
            self.rename(peer, name, av.id_of(name), observer);
        }
        peer
    }

    /// Returns the number of the peer of a destination, added if it is new. Fails with -FI_ENOAV
    /// without an address vector, and with -FI_EINVAL if the vector does not contain it.
    #[inline]
    pub fn find(
        &mut self,
        av: Option<&Av>,
        dest: fi_addr_t,
        observer: &mut impl PeerObserver,
    ) -> Result<u32> {
        match self.names.first(dest) {
            Some(peer) => Ok(peer),
            None => self.look_up(av, dest, observer),
        }
    }

    /// Returns the number of the peer of a destination unknown to [`first`](Self::first): a new
    /// one, or a peer's receive context (fi_rx_addr).
    #[cold]
    fn look_up(
        &mut self,
        av: Option<&Av>,
        dest: fi_addr_t,
        observer: &mut impl PeerObserver,
    ) -> Result<u32> {
        match self.names.look_up(av.ok_or(Error::NOAV)?, dest)? {
            Dest::Peer(peer) => Ok(peer),
            Dest::New(name, addr, rx) => {
                let peer = self.context_at(av, addr, rx, observer);
                if self.peers[peer].name != name {
                    self.rename(peer, name, id_of(av, name), observer);
                }
                Ok(peer)
            }
        }
    }

    /// Records the insertion of `addr` in the address vector and returns the peers with the new
    /// name. Addresses without a peer are looked up at their first send.
    pub fn name_inserted(
        &mut self,
        av: Option<&Av>,
        name: fi_addr_t,
        addr: &Addr,
        observer: &mut impl PeerObserver,
    ) -> Vec<u32> {
        let peers = self.names.all_at(addr);
        for &peer in &peers {
            self.rename(peer, name, id_of(av, name), observer);
        }
        peers
    }

    /// Sets the address for completions chosen by the application for a name (FI_AV_USER_ID).
    pub fn name_identified(
        &mut self,
        name: fi_addr_t,
        id: fi_addr_t,
        observer: &mut impl PeerObserver,
    ) {
        for peer in self.names.named(name) {
            self.rename(peer, name, id, observer);
        }
    }

    /// Records the removal of a name from the address vector: its peers become unknown. Returns
    /// their numbers; unreferenced ones are no longer valid.
    pub fn name_removed(&mut self, name: fi_addr_t, observer: &mut impl PeerObserver) -> Vec<u32> {
        let peers = self.names.take(name);
        for &peer in &peers {
            self.rename(peer, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, observer);
            self.forget_if_unused(peer, observer);
        }
        peers
    }

    /// Forgets an unreferenced peer: not connected, not in the address vector, without buffered
    /// messages and pending transfers. Returns true if it did.
    pub fn forget_if_unused(&mut self, peer: u32, observer: &mut impl PeerObserver) -> bool {
        let Some(entry) = self.peers.get(peer) else { return false };
        let unused = entry.conn == NONE
            && entry.conns == 0
            && entry.name == FI_ADDR_NOTAVAIL
            && entry.extra.is_idle()
            && !observer.has_buffered_from(peer);
        if unused {
            self.names.remove(entry.addr.clone(), entry.rx);
            self.peers.remove(peer);
            observer.forgotten(peer);
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Pending work for a peer, and the notifications about it.
    #[derive(Default)]
    struct TestQueue(usize);

    impl PeerExtra for TestQueue {
        fn is_idle(&self) -> bool {
            self.0 == 0
        }
    }

    #[derive(Default)]
    struct EventsReceived {
        events: Vec<(u32, Option<(fi_addr_t, fi_addr_t)>)>,
        retained: HashSet<u32>,
        forgotten: Vec<u32>,
    }

    impl PeerObserver for EventsReceived {
        fn added(&mut self, peer: u32, _addr: &Addr) {
            self.events.push((peer, None));
        }
        fn renamed(&mut self, peer: u32, name: fi_addr_t, id: fi_addr_t) {
            self.events.push((peer, Some((name, id))));
        }
        fn has_buffered_from(&self, peer: u32) -> bool {
            self.retained.contains(&peer)
        }
        fn forgotten(&mut self, peer: u32) {
            self.forgotten.push(peer);
        }
    }

    const NO_PEER: (fi_addr_t, fi_addr_t) = (FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);

    fn addr(port: u16) -> Addr {
        Addr::Ip(([127, 0, 0, 1], port).into())
    }

    #[test]
    fn unknown_peer_has_its_av_address_from_insert_to_removal() {
        let (mut table, mut events) = (PeerTable::<()>::default(), EventsReceived::default());
        let peer = table.peer_at(None, addr(7), &mut events);
        assert_eq!(table.peer_at(None, addr(7), &mut events), peer);
        assert_eq!(events.events, [(peer, None)]);
        assert_eq!((table.name_of(peer), table.first(3)), (FI_ADDR_NOTAVAIL, None));

        table.attach(peer);
        assert_eq!(table.name_inserted(None, 3, &addr(7), &mut events), [peer]);
        assert_eq!(table.name_inserted(None, 4, &addr(8), &mut events), []);
        table.name_identified(3, 77, &mut events);
        assert_eq!((table.first(3), table.name_of(peer), table.id_of(peer)), (Some(peer), 3, 77));
        assert_eq!(table.name_removed(3, &mut events), [peer]);
        assert_eq!((table.first(3), table.name_of(peer)), (None, FI_ADDR_NOTAVAIL));
        let names = [(3, 3), (3, 77), NO_PEER].map(|names| (peer, Some(names)));
        assert_eq!(events.events[1..], names);
        // It is connected, and so still a peer.
        assert_eq!(table.peer_at(None, addr(7), &mut events), peer);
    }

    #[test]
    fn a_peer_is_forgotten_when_nothing_refers_to_it() {
        let (mut table, mut events) =
            (PeerTable::<TestQueue>::default(), EventsReceived::default());
        let peer = table.peer_at(None, addr(7), &mut events);
        table.name_inserted(None, 3, &addr(7), &mut events);
        table.attach(peer);
        table[peer].conn = 9;
        table[peer].extra.0 = 1;
        events.retained.insert(peer);

        assert!(!table.forget_if_unused(peer, &mut events), "it has a name");
        table.name_removed(3, &mut events);
        assert!(!table.forget_if_unused(peer, &mut events), "it is connected");
        table.detach(peer, 9);
        assert_eq!((table[peer].conn, table[peer].conns), (NONE, 0));
        assert!(!table.forget_if_unused(peer, &mut events), "something waits for it");
        table[peer].extra.0 = 0;
        assert!(!table.forget_if_unused(peer, &mut events), "a message of its is kept");
        events.retained.clear();
        assert!(events.forgotten.is_empty());
        assert!(table.forget_if_unused(peer, &mut events));
        assert!(!table.forget_if_unused(peer, &mut events), "once");
        assert_eq!(events.forgotten, [peer]);
        assert_eq!((table.name_of(peer), table.iter().count()), (FI_ADDR_NOTAVAIL, 0));
    }

    #[test]
    fn another_connection_of_a_peer_stays_the_one_to_send_on() {
        let (mut table, mut events) = (PeerTable::<()>::default(), EventsReceived::default());
        let peer = table.peer_at(None, addr(7), &mut events);
        table.attach(peer);
        table.attach(peer);
        table[peer].conn = 5;
        table.detach(peer, 6);
        assert_eq!((table[peer].conn, table[peer].conns), (5, 1));
        table.detach(peer, 5);
        assert_eq!((table[peer].conn, table[peer].conns), (NONE, 0));
        // A forgotten peer has no connections to count.
        table.forget_if_unused(peer, &mut events);
        table.detach(peer, 5);
    }

    #[test]
    fn contexts_of_a_peer_are_peers_of_their_own_with_its_name() {
        let (mut table, mut events) = (PeerTable::<()>::default(), EventsReceived::default());
        let first = table.context_at(None, addr(7), 0, &mut events);
        table.name_inserted(None, 3, &addr(7), &mut events);
        let other = table.context_at(None, addr(7), 2, &mut events);
        assert_ne!(first, other);
        table.rename(other, 3, 3, &mut events);
        assert_eq!((table.first(3), table[other].rx), (Some(first), 2));
        assert_eq!(table.name_removed(3, &mut events), [first, other]);
        assert_eq!(events.forgotten, [first, other]);
    }
}
