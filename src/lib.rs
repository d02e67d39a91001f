//! What every part of the library stands on.
//!
//! [`abi`] mirrors the C ABI, [`boundary`], [`mod@error`] and [`fid`] are how Rust
//! answers C, [`heap`] has a reserve of memory for when there is none, [`info`] owns and compares `fi_info`, and [`monitor`] is what library
//! and plug-ins share to watch memory. Dependencies point down only:
//! info -> {fid, boundary, heap, error} -> abi. What runs inside `libfabric.so.1` only is the
//! package `ofi-core`, in `core/`.
#![cfg_attr(not(test), deny(unsafe_code))]
#[allow(unsafe_code)]
pub mod abi;
#[allow(unsafe_code)]
pub mod boundary;
pub mod error;
#[allow(unsafe_code)]
pub mod fid;
#[allow(unsafe_code)]
pub mod heap;
pub mod info;
pub mod monitor;
