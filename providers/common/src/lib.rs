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
pub mod addr;
pub mod atomic;
pub mod av;
pub mod buf;
pub mod buffered;
pub mod cntr;
mod coll;
pub mod courtesy;
pub mod cq;
pub mod eq;
pub mod glue;
pub mod inbox;
pub mod later;
pub mod ledger;
pub mod lock;
pub mod log;
pub mod lower;
pub mod matching;
mod mcast;
pub mod mem_monitor;
pub mod mr;
pub mod mr_cache;
pub mod multi_recv;
pub mod names;
mod notices;
pub mod objects;
pub mod param;
mod peer;
pub mod poll;
mod primitives;
pub mod progress;
pub mod provider;
pub mod reserved;
pub mod sep;
pub mod slab;
pub mod sys;
#[doc(hidden)]
pub mod testing;
mod uffd;
pub mod wait;
pub mod worker;

pub use ofi::{abi, boundary, error, fid, info};
