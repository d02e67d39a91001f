//! Links with both ends possibly on one host, upgraded to shared memory.
//!
//! [`ShmUpgrade`] is a [`Transport`] over another one. Its links are those of the other, called carrier
//! connections, and stay so for peers of other hosts. If both ends declare a possible common host,
//! they perform the shared-memory upgrade ([`ofi_provider::shm_handshake`]) while bytes already flow.
//!
//! Each end then switches by itself, between two writes. It publishes in shared memory the number
//! of bytes sent on the carrier connection, and writes all further ones to a ring there. The
//! receiver reads this number of bytes from the carrier connection and then polls only the ring. So
//! the byte stream is unchanged. The engine uses only two optional queries, to save work
//! ([`ShmLink::rx_over_shm`], [`ShmLink::tx_over_shm`]).
//!
//! The carrier connection stays open: its end is the link's end, reported when the ring is empty.
//! An end about to be closed with more bytes than the ring can hold sends them on the carrier
//! connection ([`ShmLink::send_trailing_on_socket`]). The other end finds them there when the ring is empty.
mod host_peers;
mod link;
mod path;
mod shared;

pub use link::{LocalLinkId, LocalListener, UpgradableLink};

use crate::forward::{forward, forward_clock, forward_provider, forward_timer, forward_transport};
use crate::objects::LinkProvider;
use crate::secret::PskConfig;
use crate::transport::{
    AuthenticatedLink, ByteLink, CarrierPoller, LinkPoller, RailTransport, ShmTransport, Transport,
    ZeroCopyLink, log_not_in_memory,
};
use crate::wire::{LocalOffer, OFFER_LEN};
use host_peers::{HostPeers, SocketInterest};
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::shm_handshake::SHM_OFFER_LEN;
use ofi_provider::sys::{Interest, PollEvent};
use std::cell::OnceCell;

const _: () = assert!(OFFER_LEN == SHM_OFFER_LEN);

/// Net with links upgradable to shared memory.
#[derive(Debug)]
pub struct ShmUpgrade<N: Transport> {
    net: N,
    host_peers: OnceCell<Box<HostPeers<CarrierId<N>>>>,
}

/// Identifier of carrier connections in a net's poller.
type CarrierId<N> = <<N as Transport>::Link as ByteLink>::Id;

impl<N> ShmUpgrade<N>
where
    N: Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    /// A net on another one.
    pub fn new(net: N) -> Self {
        ofi_provider::stack::prepare_own_stacks();
        Self { net, host_peers: OnceCell::new() }
    }

    /// Returns the state for shared-memory upgrades, created on first use.
    fn host_peers(&self) -> Result<&HostPeers<CarrierId<N>>> {
        if self.host_peers.get().is_some() {
            return self.known().ok_or(Error::OTHER);
        }
        let new = HostPeers::new(N::Link::settings(), self.net.poller())?;
        Ok(self.host_peers.get_or_init(|| Box::new(new)))
    }

    /// Returns the state of established or attempted upgrades; none in a forked child, because it
    /// has no access to the memory.
    #[inline(always)]
    fn known(&self) -> Option<&HostPeers<CarrierId<N>>> {
        let known = self.host_peers.get().map(Box::as_ref);
        known.filter(|known: &&HostPeers<_>| known.is_own())
    }

    fn is_wanted() -> bool {
        N::Link::settings().local.enabled
    }
}

impl<N> LinkPoller<LocalLinkId<CarrierId<N>>> for ShmUpgrade<N>
where
    N: Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    fn add(&self, id: LocalLinkId<CarrierId<N>>, token: u64, interest: Interest) -> Result {
        let wanted = self.known().and_then(|known| known.watch(id.number, token, interest));
        let wanted = wanted.map_or(SocketInterest::For(interest), |(_, wanted)| wanted);
        wanted.add(self.net.poller(), id.carrier, token)
    }

    fn modify(&self, id: LocalLinkId<CarrierId<N>>, token: u64, interest: Interest) -> Result {
        match self.known().and_then(|known| known.watch(id.number, token, interest)) {
            // Events in shared memory need no call.
            Some((before, wanted)) if before == Some(wanted) => Ok(()),
            Some((_, wanted)) => wanted.modify(self.net.poller(), id.carrier, token),
            None => self.net.poller().modify(id.carrier, token, interest),
        }
    }

    fn remove(&self, id: LocalLinkId<CarrierId<N>>) {
        if let Some(host_peers) = self.known() {
            host_peers.unwatch(id.number);
        }
        self.net.poller().remove(id.carrier);
    }
}

forward_clock! { ShmUpgrade }

impl<N> Transport for ShmUpgrade<N>
where
    N: Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    type Link = UpgradableLink<N::Link>;
    type Listener = LocalListener<N::Listener>;
    type Poller = Self;
    type Flusher = N::Flusher;

    #[inline(always)]
    fn poller(&self) -> &Self {
        self
    }

    #[inline(always)]
    fn poll(&self, events: &mut Vec<PollEvent>) {
        let start = events.len();
        self.net.poll(events);
        if let Some(host_peers) = self.known() {
            host_peers.report(self.net.poller(), &self.net, events, start);
        }
    }

    fn dial(&self, local: &Addr, keep_port: bool, to: &Addr) -> Result<Self::Link> {
        self.net.dial(local, keep_port, to).map(UpgradableLink::new)
    }

    fn dial_as(
        &self,
        own: Option<&PskConfig>,
        local: &Addr,
        keep_port: bool,
        to: &Addr,
    ) -> Result<Self::Link> {
        self.net.dial_as(own, local, keep_port, to).map(UpgradableLink::new)
    }

    fn bind_as(&self, own: Option<&PskConfig>, at: &Addr) -> Result<(Self::Listener, Addr)> {
        let (carrier, at) = self.net.bind_as(own, at)?;
        Ok((LocalListener { carrier }, at))
    }

    fn bind(&self, at: &Addr) -> Result<(Self::Listener, Addr)> {
        let (carrier, at) = self.net.bind(at)?;
        Ok((LocalListener { carrier }, at))
    }

    // With calls for several links none of them moves ([`ShmTransport::may_be_local`]).
    forward_timer! {}

    forward_transport! { UpgradableLink::carrier }
}

impl<N> RailTransport for ShmUpgrade<N>
where
    N: RailTransport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    fn offers_rails(&self, link: &Self::Link) -> bool {
        !self.may_be_local(link) && self.net.offers_rails(link.carrier())
    }

    fn start_rails(&self, link: &Self::Link, token: u64, connects: bool) -> Result {
        self.net.start_rails(link.carrier(), token, connects)
    }

    forward! { net:
        fn has_rails(&self) -> bool;
        fn prepare_sleep(&self) -> bool;
    }
}

impl<N> ShmTransport for ShmUpgrade<N>
where
    N: RailTransport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    fn may_be_local(&self, link: &Self::Link) -> bool {
        // Calls for several links exclude shared memory.
        Self::is_wanted() && !self.is_ring() && link.carrier().is_on_this_host()
    }

    fn offer_shm_upgrade(&self, link: &Self::Link, token: u64) -> Option<LocalOffer> {
        if !self.may_be_local(link) {
            return None;
        }
        let carrier = link.carrier().id();
        let offered = self
            .host_peers()
            .and_then(|host_peers| host_peers.offer(self.net.poller(), carrier, token));
        match offered {
            Ok((offer, state)) => link.set_state(state).then_some(offer),
            Err(error) => {
                log_not_in_memory(link.carrier(), &error);
                None
            }
        }
    }

    fn start_shm_upgrade(&self, link: &Self::Link, token: u64, offer: &LocalOffer) {
        if !self.may_be_local(link) {
            return;
        }
        let carrier = link.carrier().id();
        match self.host_peers().map(|host_peers| host_peers.upgrade(carrier, token, offer)) {
            Ok(state) => {
                // There is only one shared-memory upgrade for a link.
                let _ = link.set_state(state);
            }
            Err(error) => log_not_in_memory(link.carrier(), &error),
        }
    }

    #[inline(always)]
    fn is_rung(&self) -> bool {
        self.known().is_some_and(HostPeers::is_rung)
    }

    #[inline(always)]
    fn has_local(&self) -> bool {
        self.known().is_some() || self.has_rails()
    }

    fn is_due(&self) -> bool {
        self.known().is_some_and(HostPeers::is_due)
    }

    fn rest(&self) -> bool {
        self.prepare_sleep() && self.known().is_none_or(HostPeers::rest)
    }

    fn wake(&self) {
        if let Some(host_peers) = self.known() {
            host_peers.wake();
        }
    }
}

impl<N> LinkProvider for ShmUpgrade<N>
where
    N: LinkProvider
        + Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    forward_provider! { N, UpgradableLink::carrier }
}
