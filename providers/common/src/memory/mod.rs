//! Cache of registered memory, monitors for changed mappings, and interfaces to memory of devices.
pub mod hmem;
#[allow(unsafe_code)]
pub mod mem_monitor;
pub(crate) mod memory_events;
pub mod mr_cache;
#[allow(unsafe_code)]
pub(crate) mod uffd;
