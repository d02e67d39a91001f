//! Registered memory that is kept for the next use, and who tells that a mapping has changed.
#[allow(unsafe_code)]
pub mod mem_monitor;
pub mod mr_cache;
#[allow(unsafe_code)]
pub(crate) mod uffd;
