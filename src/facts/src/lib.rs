//! What a process that uses the library shows of itself.
//!
//! A plug-in writes facts about its endpoints and their peers to memory without a name, which others
//! find among the process's descriptors ([`NAME`]) and may read as far as the kernel lets them look at
//! that process. [`layout`] says where what is; [`memory`] opens such memory and nothing else; [`bounds`] says how much of
//! it is read; [`read`] makes of such memory, which may change
//! meanwhile and may hold anything, facts that are consistent; [`doctor`] says of the facts of several
//! processes why nothing moves.
#![cfg_attr(not(test), deny(unsafe_code))]
#![warn(missing_docs)]

pub mod bounds;
pub mod doctor;
pub mod layout;
#[allow(unsafe_code)]
mod memory;
pub mod monitor;
pub mod read;
pub mod show;

/// The name of the memory, as `/proc/PID/fd` shows it after `/memfd:`.
pub const NAME: &str = "libfabric-stats";
