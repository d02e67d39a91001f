//! The provider `shm`: endpoints with names for processes of one host (fi_shm(7)).
#![cfg_attr(not(test), forbid(unsafe_code))]
use ofi_host::HostPlugIn;
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// The provider, as the core knows it.
static SHM: Provider =
    Provider::named(c"shm", PROV_VERSION, API_VERSION).with_cleanup(ofi_host::cleanup);

static PLUG_IN: HostPlugIn =
    HostPlugIn { provider: &SHM, scheme: "fi_shm://", wants_virt_addr: true, offered: |_| {} };

ofi_provider::plug_in!(ofi_host::provider_entry(&PLUG_IN));
