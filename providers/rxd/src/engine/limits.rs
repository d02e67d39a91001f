//! Settings of a domain, and the time, as seen by its endpoints.
use crate::config::RxdConfig;
use ofi_provider::mr::MrTable;
use std::sync::Arc;
use std::time::Instant;

/// Domain settings used by an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct RxdLimits {
    /// The format of addresses.
    pub(crate) format: u32,
    /// The longest packet.
    pub(crate) packet: usize,
    pub(crate) config: RxdConfig,
    /// The application's regions.
    pub(crate) regions: Arc<MrTable>,
}

/// The time now; in a simulated world the world's time.
#[inline]
pub(super) fn clock() -> Instant {
    #[cfg(test)]
    return ofi_simulation::here::now();
    #[cfg(not(test))]
    Instant::now()
}
