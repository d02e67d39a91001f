//! Listeners of an engine's endpoints.
use super::ep::StreamEngineEp;
use super::tokens::TOKEN_LISTENER;
use crate::conn_quota::CountedListener;
use crate::transport::{LinkListener, LinkPoller, Transport};
use ofi_provider::addr::Addr;
use ofi_provider::error::Result;
use ofi_provider::sys::Interest;
use std::collections::HashMap;
use std::time::Duration;

/// Connections the system may queue for a listener (listen(2)), the same as the original's.
pub const BACKLOG: libc::c_int = 4096;

/// Pause of a listener after a failed accept for lack of descriptors or memory.
pub const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// Listeners, by endpoint number.
pub(super) struct Listeners<N: Transport> {
    open: HashMap<u32, (N::Listener, CountedListener)>,
    /// Sockets bound to addresses assigned to endpoints (fi_setname), until the endpoints listen.
    bound: HashMap<u32, N::Listener>,
    /// Endpoints with a paused listener: it could not accept for lack of descriptors or memory, and
    /// is out of the poller until the timer expires.
    paused: Vec<u32>,
}

impl<N: Transport> Default for Listeners<N> {
    fn default() -> Self {
        Self { open: HashMap::new(), bound: HashMap::new(), paused: Vec::new() }
    }
}

impl<N: Transport> Listeners<N> {
    /// Binds a socket to an endpoint's new address. Returns the address with its port.
    pub(super) fn bind(
        &mut self,
        net: &N,
        ep_id: u32,
        ep: &StreamEngineEp,
        addr: &Addr,
    ) -> Result<Addr> {
        let (listener, local) = net.bind_as(ep.identity.secret.as_ref(), addr)?;
        self.bound.insert(ep_id, listener);
        Ok(local)
    }

    /// Closes the socket bound for an endpoint, if there is one.
    pub(super) fn unbind(&mut self, ep_id: u32) {
        self.bound.remove(&ep_id);
    }

    /// Starts listening for the peers of an endpoint.
    pub(super) fn open(&mut self, net: &N, ep_id: u32, ep: &mut StreamEngineEp) -> Result {
        let identity = &ep.identity;
        let (listener, local) = match self.bound.remove(&ep_id) {
            Some(listener) => (listener, identity.local.clone()),
            None => net.bind_as(identity.secret.as_ref(), &identity.local)?,
        };
        listener.listen(BACKLOG)?;
        let token = TOKEN_LISTENER | u64::from(ep_id);
        net.poller().add(listener.id(), token, Interest::READ)?;
        ep.identity.local = local;
        self.open.insert(ep_id, (listener, CountedListener::open()));
        Ok(())
    }

    /// Closes the listener of an endpoint.
    pub(super) fn close(&mut self, net: &N, ep_id: u32) {
        self.unbind(ep_id);
        if let Some((listener, _)) = self.open.remove(&ep_id) {
            net.poller().remove(listener.id());
            listener.stop_listening();
        }
        self.paused.retain(|paused| *paused != ep_id);
    }

    /// Returns true if peers can connect to this endpoint.
    pub(super) fn is_open(&self, ep_id: u32) -> bool {
        self.open.contains_key(&ep_id)
    }

    /// The listener of an endpoint.
    pub(super) fn get(&self, ep_id: u32) -> Option<&N::Listener> {
        self.open.get(&ep_id).map(|(listener, _)| listener)
    }

    /// Takes a listener out of the poller. Otherwise its waiting connections would be reported again
    /// and again. Returns true if it was not paused.
    pub(super) fn pause(&mut self, net: &N, ep_id: u32) -> bool {
        let Some((listener, _)) = self.open.get(&ep_id) else { return false };
        let new = !self.paused.contains(&ep_id);
        if new {
            net.poller().remove(listener.id());
            self.paused.push(ep_id);
        }
        new
    }

    /// Returns a listener to the poller if it was paused.
    pub(super) fn resume(&mut self, net: &N, ep_id: u32) {
        if let Some(at) = self.paused.iter().position(|paused| *paused == ep_id) {
            if let Some((listener, _)) = self.open.get(&ep_id) {
                self.paused.swap_remove(at);
                let token = TOKEN_LISTENER | u64::from(ep_id);
                let _ = net.poller().add(listener.id(), token, Interest::READ);
            }
        }
    }

    /// Endpoints with a paused listener.
    pub(super) fn paused(&self) -> &[u32] {
        &self.paused
    }

    /// Returns true if no endpoint has a listener.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.paused.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sim::{Rings, SimRandom, StreamWorld};
    use crate::engine::{StreamEpKind, StreamIdentity, TargetOf};
    use crate::settings::StreamSettings;
    use ofi_provider::endpoint::RdmAttr;
    use ofi_provider::traffic_class::TrafficClass;
    use std::net::SocketAddr;
    use std::time::Instant;

    fn ep() -> StreamEngineEp {
        let identity = StreamIdentity {
            kind: StreamEpKind::Rdm,
            behind_firewall: false,
            memory: true,
            local: SocketAddr::from(([10, 9, 0, 1], 0)).into(),
            keep_port: false,
            attr: RdmAttr::default(),
            target: TargetOf::NOTHING,
            secret: None,
            class: TrafficClass::default(),
            interfaces: None,
        };
        StreamEngineEp::new(0, identity, &StreamSettings::default())
    }

    #[test]
    fn paused_listener_stays_open_until_it_is_closed() {
        let world = StreamWorld::new(Instant::now(), SimRandom::new(1));
        let (net, mut listeners, mut ep) = (Rings::new(&world, false), Listeners::default(), ep());
        assert!(!listeners.pause(&net, 0), "there is no listener");
        listeners.open(&net, 0, &mut ep).unwrap();
        assert!(listeners.is_open(0) && ep.local().port() != 0);
        assert_eq!([(); 2].map(|()| listeners.pause(&net, 0)), [true, false]);
        assert_eq!((listeners.paused(), listeners.get(0).is_some()), (&[0][..], true));
        listeners.resume(&net, 0);
        assert!(listeners.paused().is_empty());
        listeners.pause(&net, 0);
        listeners.close(&net, 0);
        assert!(listeners.is_empty());
    }

    #[test]
    fn endpoint_listens_at_the_address_bound_for_it() {
        let world = StreamWorld::new(Instant::now(), SimRandom::new(1));
        let (net, mut listeners, mut ep) = (Rings::new(&world, false), Listeners::default(), ep());
        let any = ep.local().clone();
        let bound = listeners.bind(&net, 0, &ep, &any).unwrap();
        ep.identity.local = bound.clone();
        listeners.open(&net, 0, &mut ep).unwrap();
        assert_eq!(*ep.local(), bound);
        listeners.close(&net, 0);
    }
}
