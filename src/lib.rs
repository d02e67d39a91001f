//! What every part of the library stands on.
//!
//! [`abi`] mirrors the C ABI, [`boundary`], [`mod@error`] and [`fid`] are how Rust
//! answers C, [`info`] owns and compares `fi_info`, [`monitor`] is what library
//! and plug-ins share to watch memory, and [`core`] is what runs inside `libfabric.so.1`: start-up, parameters, logging, the provider
//! registry and the `fi_getinfo` pipeline. Dependencies point down only:
//! core -> info -> {fid, boundary, error} -> abi.
pub mod abi;
pub mod boundary;
pub mod core;
pub mod error;
pub mod fid;
pub mod info;
pub mod monitor;
