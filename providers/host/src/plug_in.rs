//! Plug-in linked with this crate.
use ofi_provider::info::{API_VERSION, PROV_VERSION, ProviderOffer};
use ofi_provider::provider::Provider;
use std::sync::OnceLock;

/// Name and attributes of a plug-in. A shared object has one.
#[derive(Debug)]
pub struct HostPlugIn {
    /// Name and version of the provider.
    pub provider: &'static Provider,
    /// Scheme of the endpoint names of a process without another name for them: `fi_shm://`.
    pub scheme: &'static str,
    /// Infos request virtual memory addresses and guarantee no order of accesses, if the hints
    /// permit both.
    pub wants_virt_addr: bool,
    /// Adapts the code's attributes to those offered under this name.
    pub offered: fn(&mut ProviderOffer),
}

/// Parameters of `shm`, valid for `sm2` as well.
pub static SHM_PARAMETERS: Provider = Provider::named(c"shm", PROV_VERSION, API_VERSION);

/// The plug-in of unit tests.
static SHM: HostPlugIn = HostPlugIn {
    provider: &SHM_PARAMETERS,
    scheme: "fi_shm://",
    wants_virt_addr: true,
    offered: |_| {},
};

static CURRENT: OnceLock<&'static HostPlugIn> = OnceLock::new();

/// Returns the plug-in of this shared object.
pub(crate) fn current() -> &'static HostPlugIn {
    CURRENT.get().copied().unwrap_or(&SHM)
}

/// Returns the provider named in log lines and parameters.
pub(crate) fn provider() -> &'static Provider {
    current().provider
}

impl HostPlugIn {
    /// Makes this the plug-in of the shared object, unless one was selected before.
    pub(crate) fn select(&'static self) {
        CURRENT.get_or_init(|| self);
    }
}
