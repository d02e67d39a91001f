//! Configuration of the log by the `FI_LOG_*` variables (fabric(7)).
use crate::log::{self, NameFilter};
use crate::params;

/// Takes the `FI_LOG_*` variables into account.
pub(super) fn configure() {
    let level = params::core_string(c"log_level").filter(|level| !level.is_empty());
    log::set_level(level.as_deref());
    if let Some(interval) = params::core_int(c"log_interval") {
        log::set_interval(u64::from(interval.unsigned_abs()));
    }
    if let Some(list) = params::core_string(c"log_subsys") {
        log::set_subsystems(&NameFilter::parse(&list));
    }
    if let Some(list) = params::core_string(c"log_prov") {
        log::set_providers(NameFilter::parse(&list));
    }
    let mode = params::core_int(c"log_location_mode").unwrap_or(0o600);
    if let Some(location) = params::core_string(c"log_location") {
        log::set_output(&location, mode as u32);
    }
}
