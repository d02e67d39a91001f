//! The provider, as the core knows it.
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// Provider named in log lines and parameters. Its entry points come with
/// [`fi_prov_ini`](crate::fi_prov_ini).
pub static VERBS: Provider = Provider::named(c"verbs", PROV_VERSION, API_VERSION);
