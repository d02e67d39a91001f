//! The provider, as the core knows it.
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// Provider named in log lines and parameters. Its entry points come with
/// [`fi_prov_ini`](crate::fi_prov_ini).
pub static TCP: Provider =
    Provider::named(c"tcp", PROV_VERSION, API_VERSION).with_cleanup(ofi_inet::cleanup);
