//! The parts that providers are built from.
//!
//! A provider implements the safe traits of [`glue`] (`Fabric`, `Domain`,
//! `Endpoint`, `Msg`, `Tagged`, `Cm` …) and gets from here the C ops tables made
//! from them, and the objects every provider has in the same form: completion
//! queues ([`cq`]), event queues ([`eq`]), counters ([`cntr`]), address vectors
//! ([`av`]) and the peers they name ([`names`]), memory regions ([`mr`]), atomic operations on them ([`atomic`]) and a cache of them ([`mr_cache`]), poll and wait sets ([`poll`]), tag
//! matching ([`matching`]) and the progress thread ([`progress`]).
//!
//! Locks are taken in this order: a provider's engine, then a queue's own lock.
//! No lock of this crate is held while a provider's `progress` is called.
#![cfg_attr(not(test), deny(unsafe_code))]
#[allow(unsafe_code)]
pub mod addr;
#[allow(unsafe_code)]
pub mod atomic;
#[allow(unsafe_code)]
pub mod av;
#[allow(unsafe_code)]
pub mod buf;
#[allow(unsafe_code)]
pub mod buffered;
#[allow(unsafe_code)]
pub mod cntr;
mod coll;
pub mod courtesy;
#[allow(unsafe_code)]
pub mod cq;
#[allow(unsafe_code)]
pub mod eq;
#[allow(unsafe_code)]
pub mod glue;
pub mod inbox;
pub mod later;
pub mod ledger;
#[allow(unsafe_code)]
pub mod lock;
#[allow(unsafe_code)]
pub mod log;
#[allow(unsafe_code)]
pub mod lower;
pub mod matching;
mod mcast;
#[allow(unsafe_code)]
pub mod mem_monitor;
#[allow(unsafe_code)]
pub mod mr;
pub mod mr_cache;
pub mod multi_recv;
pub mod names;
mod notices;
#[allow(unsafe_code)]
pub mod objects;
#[allow(unsafe_code)]
pub mod param;
#[allow(unsafe_code)]
mod peer;
#[allow(unsafe_code)]
pub mod poll;
#[allow(unsafe_code)]
mod primitives;
pub mod progress;
#[allow(unsafe_code)]
pub mod provider;
pub mod reserved;
pub mod sep;
pub mod slab;
#[allow(unsafe_code)]
pub mod sys;
#[doc(hidden)]
pub mod testing;
#[allow(unsafe_code)]
mod uffd;
#[allow(unsafe_code)]
pub mod wait;
#[allow(unsafe_code)]
pub mod worker;

pub use ofi::{abi, boundary, error, fid, info};
