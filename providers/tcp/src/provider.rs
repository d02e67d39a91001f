//! The provider, as the core knows it.
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// The provider, which log lines and parameters name as theirs. Its entry points come with
/// [`fi_prov_ini`](crate::fi_prov_ini).
pub static TCP: Provider = Provider::named(c"tcp", PROV_VERSION, API_VERSION).with_cleanup(cleanup);

/// Sends what is held back when the process ends: injected messages are complete for the
/// application, which may end without a further call.
extern "C" fn cleanup() {
    // A panic must not leave a destructor of the process.
    let _ = std::panic::catch_unwind(ofi_stream::engine::flush_all);
}
