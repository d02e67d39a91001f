//! Address of an endpoint.
use super::identity::RxdIdentity;
use super::port::PacketPort;
use ofi_provider::addr::Addr;
use ofi_provider::error::Result;

/// The endpoint's own address, and the packet port opened with it before the endpoint is enabled.
pub(crate) struct LocalAddress {
    identity: RxdIdentity,
    /// The format of addresses.
    format: u32,
    /// Port for the packets, opened when the endpoint was assigned its address (fi_setname).
    bound: Option<Box<dyn PacketPort>>,
}

impl LocalAddress {
    pub(super) fn new(identity: RxdIdentity, format: u32) -> Self {
        Self { identity, format, bound: None }
    }

    /// Returns the identity of the endpoint.
    pub(super) fn identity(&self) -> &RxdIdentity {
        &self.identity
    }

    /// The endpoint's own address.
    pub(crate) fn name(&self) -> Result<Vec<u8>> {
        Ok(self.identity.local.name_for_peers().to_bytes())
    }

    /// Packets come by this port from now on.
    pub(super) fn set_port(&mut self, port: &dyn PacketPort) -> Result {
        self.identity.local = self.address_of(port)?;
        Ok(())
    }

    /// The own address once packets come by this port.
    fn address_of(&self, port: &dyn PacketPort) -> Result<Addr> {
        let name = Addr::read(self.format, &port.name()?)?;
        let local = &self.identity.local;
        // The core names an address that peers can use; packets may come from another one.
        Ok(if local.is_any() { local.at_port(name.port()) } else { name })
    }

    /// Sets the endpoint's own address, before it is enabled. An IP address is bound now: `open` is
    /// called for the packet port, so the endpoint's name equals the address used by peers.
    pub(super) fn set_local(
        &mut self,
        name: &[u8],
        open: impl FnOnce(&RxdIdentity) -> Result<Box<dyn PacketPort>>,
    ) -> Result {
        self.bound = None;
        self.identity.local = Addr::read(self.format, name)?;
        if self.identity.local.ip().is_ok() {
            let port = open(&self.identity)?;
            self.identity.local = self.address_of(&*port)?;
            self.bound = Some(port);
        }
        Ok(())
    }

    /// Returns the packet port of the address set before, if it was opened then.
    pub(super) fn take_bound(&mut self) -> Option<Box<dyn PacketPort>> {
        self.bound.take()
    }
}
