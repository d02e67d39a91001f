//! Cache of registered memory, and monitors for changed mappings.
#[allow(unsafe_code)]
pub mod mem_monitor;
pub(crate) mod memory_events;
pub mod mr_cache;
#[allow(unsafe_code)]
pub(crate) mod uffd;
