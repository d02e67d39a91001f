//! The provider, as the core knows it.
use core::ffi::CStr;
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// The provider's name.
pub(crate) const RXM_NAME: &CStr = c"ofi_rxm";

/// Provider named in log lines and parameters. Its entry points come with
/// [`fi_prov_ini`](crate::fi_prov_ini).
pub static RXM: Provider = Provider::named(RXM_NAME, PROV_VERSION, API_VERSION);

/// Core provider with IP addresses. Its user also chooses the interface in the name of an endpoint
/// bound to all addresses (`FI_TCP_IFACE`).
pub(crate) static USUAL_CORE: Provider = Provider::named(c"tcp", PROV_VERSION, API_VERSION);
