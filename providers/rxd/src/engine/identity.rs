//! Identity of an endpoint.
use ofi_provider::addr::Addr;
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::info::InfoBuf;
use std::fmt;
use std::sync::Arc;

/// Identity of an endpoint from its opening on.
#[derive(Clone, Debug)]
pub(crate) struct RxdIdentity {
    /// The endpoint's own address; the port may be 0 until it is enabled.
    pub(crate) local: Addr,
    /// Attributes requested by the application.
    pub(crate) attr: RdmAttr,
    /// Core's attributes, if they differ from those of the domain's other endpoints.
    pub(crate) own: Option<OwnCore>,
}

/// Core's attributes of an endpoint with its own pre-shared key.
#[derive(Clone)]
pub(crate) struct OwnCore {
    /// Core's info, with the pre-shared key.
    pub(crate) info: Arc<InfoBuf>,
    /// The longest packet.
    pub(crate) packet: usize,
}

impl fmt::Debug for OwnCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnCore").field("packet", &self.packet).finish_non_exhaustive()
    }
}

impl AsMut<RdmAttr> for RxdIdentity {
    fn as_mut(&mut self) -> &mut RdmAttr {
        &mut self.attr
    }
}
