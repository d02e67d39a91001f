//! The provider, as the core knows it.
use core::ffi::CStr;
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// The provider's name.
pub(crate) const RXD_NAME: &CStr = c"ofi_rxd";

/// Provider named in log lines and parameters. Its entry points come with
/// [`fi_prov_ini`](crate::fi_prov_ini).
pub static RXD: Provider =
    Provider::named(RXD_NAME, PROV_VERSION, API_VERSION).with_cleanup(cleanup);

extern "C" fn cleanup() {
    // A panic must not leave a destructor of the process.
    let _ = std::panic::catch_unwind(crate::linger::linger);
}

/// Core provider with IP addresses. Its user also chooses the interface in the name of an endpoint
/// bound to all addresses (`FI_UDP_IFACE`).
pub(crate) static USUAL_CORE: Provider = Provider::named(c"udp", PROV_VERSION, API_VERSION);
