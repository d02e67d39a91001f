//! Published statistics of a process using the library.
//!
//! A plug-in writes statistics of its endpoints and their peers to unnamed memory. Other processes
//! find it among the process's descriptors ([`NAME`]) and may read it as far as the kernel permits.
//! [`layout`] defines the positions. [`memory`] opens such memory and nothing else. [`bounds`]
//! limits the amount read. [`read`] extracts consistent statistics from such memory with changing
//! and arbitrary content. [`doctor`] analyses hangs from the statistics of several processes, of one
//! host or of several ([`origin`]).
#![cfg_attr(not(test), deny(unsafe_code))]
#![warn(missing_docs)]

pub mod bounds;
pub mod doctor;
pub mod layout;
#[allow(unsafe_code)]
mod memory;
pub mod monitor;
pub mod origin;
pub mod read;
pub mod show;

/// The name of the memory, as `/proc/PID/fd` shows it after `/memfd:`.
pub const NAME: &str = "libfabric-stats";
