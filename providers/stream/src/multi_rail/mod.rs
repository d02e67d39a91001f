//! Links with several sockets.
//!
//! [`MultiRail`] is a [`Transport`] over another one. Its links begin with one socket. If both ends
//! are configured for it, they agree during the connection handshake to exchange frames
//! ([`frame`]): then the byte stream is divided into data frames, each with its offset in the
//! stream, and any socket may carry any frame.
//!
//! After sufficient traffic the connecting end requests addresses and a token, connects further
//! sockets, and begins each with a join request containing the token. Small sends stay on the first
//! socket, large ones are divided ([`rails`]). The receiver reads frames in the order of their
//! offsets; an early frame waits in the kernel's buffer of its socket.
//!
//! If both ends want it, a link survives the loss of its sockets ([`resume`]): sent bytes are stored
//! until acknowledged ([`send_log`]). Both ends call each other after a loss ([`redial`]), and send
//! the bytes without an acknowledgement again. An orderly end is a frame of its own.
//!
//! Peers without this feature, and links without an agreement, see no difference.
mod events;
mod first_frames;
pub mod frame;
mod hub;
mod link;
mod rails;
mod reader;
mod redial;
mod resume;
mod routes;
mod send_log;
mod timers;
mod wanted;
mod writer;

pub use link::{RailId, RailLink};

use crate::forward::{forward_clock, forward_provider, forward_transport};
use crate::objects::LinkProvider;
use crate::secret::PskConfig;
use crate::settings::RailSettings;
use crate::transport::{
    ByteLink, CarrierPoller, LinkListener, LinkPoller, RailTransport, Transport,
};
use core::time::Duration;
use hub::RailHub;
use ofi_provider::addr::Addr;
use ofi_provider::error::Result;
use ofi_provider::slab::NONE;
use ofi_provider::sys::{Interest, PollEvent};
use std::cell::OnceCell;
use std::os::fd::RawFd;
use timers::SharedTimer;

/// Identifier of links in the poller of the lower transport.
type CarrierId<N> = <<N as Transport>::Link as ByteLink>::Id;

/// Listener of links with possibly several sockets.
#[derive(Debug)]
pub struct FirstListener<S> {
    listener: S,
    own: Option<PskConfig>,
}

impl<S: LinkListener> LinkListener for FirstListener<S> {
    type Link = RailLink<S::Link>;

    fn id(&self) -> RailId<<S::Link as ByteLink>::Id> {
        RailId { first: self.listener.id(), number: NONE }
    }

    fn listen(&self, backlog: i32) -> Result {
        self.listener.listen(backlog)
    }

    fn stop_listening(&self) {
        self.listener.stop_listening();
    }

    fn waiting(&self) -> usize {
        self.listener.waiting()
    }

    fn accept(&self) -> Result<(Self::Link, Addr)> {
        let (link, from) = self.listener.accept()?;
        Ok((RailLink::new(link, self.own.as_ref()), from))
    }
}

/// Transport over another one, with several sockets for a link.
#[derive(Debug)]
pub struct MultiRail<N: Transport> {
    net: N,
    hub: OnceCell<Box<RailHub<N>>>,
    timer: SharedTimer,
}

impl<N: Transport> MultiRail<N> {
    /// Creates a transport over another one.
    pub fn new(net: N) -> Self {
        Self { net, hub: OnceCell::new(), timer: SharedTimer::default() }
    }

    fn settings() -> &'static RailSettings {
        &N::Link::settings().rails
    }
}

impl<N: Transport> Drop for MultiRail<N> {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.get() {
            hub.close(&self.net);
        }
    }
}

impl<N: Transport> LinkPoller<RailId<CarrierId<N>>> for MultiRail<N> {
    fn add(&self, id: RailId<CarrierId<N>>, token: u64, interest: Interest) -> Result {
        match self.hub.get() {
            Some(hub) if hub.watch(&self.net, id.number, Some((token, interest))) => Ok(()),
            _ => self.net.poller().add(id.first, token, interest),
        }
    }

    fn modify(&self, id: RailId<CarrierId<N>>, token: u64, interest: Interest) -> Result {
        match self.hub.get() {
            Some(hub) if hub.watch(&self.net, id.number, Some((token, interest))) => Ok(()),
            _ => self.net.poller().modify(id.first, token, interest),
        }
    }

    fn remove(&self, id: RailId<CarrierId<N>>) {
        match self.hub.get() {
            Some(hub) if hub.watch(&self.net, id.number, None) => {}
            _ => self.net.poller().remove(id.first),
        }
    }
}

impl<N: Transport<Poller: CarrierPoller<CarrierId<N>>>> CarrierPoller<RailId<CarrierId<N>>>
    for MultiRail<N>
{
    fn modify_to_end(&self, id: RailId<CarrierId<N>>, token: u64) -> Result {
        self.net.poller().modify_to_end(id.first, token)
    }

    fn add_fd(&self, fd: RawFd, token: u64) -> Result {
        self.net.poller().add_fd(fd, token)
    }

    fn add_wakeup(&self, fd: RawFd, token: u64) -> Result {
        self.net.poller().add_wakeup(fd, token)
    }

    fn remove_fd(&self, fd: RawFd) {
        self.net.poller().remove_fd(fd);
    }
}

forward_clock! { MultiRail }

impl<N: Transport> Transport for MultiRail<N> {
    type Link = RailLink<N::Link>;
    type Listener = FirstListener<N::Listener>;
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
        if let Some(hub) = self.hub.get() {
            self.timer.filter(&self.net, events, start);
            hub.poll(&self.net, &self.timer, events, start);
        }
    }

    fn dial(&self, local: &Addr, keep_port: bool, to: &Addr) -> Result<Self::Link> {
        self.dial_as(None, local, keep_port, to)
    }

    fn dial_as(
        &self,
        own: Option<&PskConfig>,
        local: &Addr,
        keep_port: bool,
        to: &Addr,
    ) -> Result<Self::Link> {
        Ok(RailLink::new(self.net.dial_as(own, local, keep_port, to)?, own))
    }

    fn bind(&self, at: &Addr) -> Result<(Self::Listener, Addr)> {
        self.bind_as(None, at)
    }

    fn bind_as(&self, own: Option<&PskConfig>, at: &Addr) -> Result<(Self::Listener, Addr)> {
        let (listener, at) = self.net.bind_as(own, at)?;
        Ok((FirstListener { listener, own: own.cloned() }, at))
    }

    fn set_timer(&self, delay: Duration) {
        self.timer.set(&self.net, delay);
    }

    fn clear_timer(&self) {
        self.timer.clear(&self.net);
    }

    // With calls for several links no link has frames ([`RailTransport::offers_rails`]).
    forward_transport! { RailLink::first }
}

impl<N: Transport> RailTransport for MultiRail<N> {
    fn offers_rails(&self, _link: &Self::Link) -> bool {
        let settings = Self::settings();
        (settings.count() > 1 || settings.resume > 0) && !self.is_ring()
    }

    fn start_rails(&self, link: &Self::Link, token: u64, connects: bool) -> Result {
        let hub = self.hub.get_or_init(Box::default);
        // The connecting end starts with the arrival of the answer, before the first frames.
        if link.has_started() { Ok(()) } else { hub.add(&self.net, link, token, connects) }
    }

    #[inline(always)]
    fn has_rails(&self) -> bool {
        self.hub.get().is_some()
    }

    fn prepare_sleep(&self) -> bool {
        self.hub.get().is_none_or(|hub| hub.rest(&self.net, &self.timer))
    }
}

impl<N: LinkProvider> LinkProvider for MultiRail<N> {
    forward_provider! { N, RailLink::first }
}

#[cfg(test)]
mod tests;
