//! Base of all parts of the library.
//!
//! [`abi`] mirrors the C ABI. [`boundary`], [`mod@error`] and [`fid`] convert Rust results and
//! objects for C. [`heap`] has a reserve of memory for a failing malloc. [`call_conditions`] are tested
//! by calls of the data path. [`info`] owns and compares
//! `fi_info`, and [`monitor`] is the interface between library and plug-ins for memory monitors.
//! Dependencies point down only: info -> {fid, boundary, heap, error} -> {call_conditions, abi}. Code running only
//! inside `libfabric.so.1` is the package `ofi-core`, in `core/`.
#![cfg_attr(not(test), deny(unsafe_code))]
#[allow(unsafe_code)]
pub mod abi;
#[allow(unsafe_code)]
pub mod boundary;
#[allow(unsafe_code)]
pub mod call_conditions;
pub mod error;
#[allow(unsafe_code)]
pub mod fid;
#[allow(unsafe_code)]
pub mod heap;
pub mod info;
pub mod monitor;
