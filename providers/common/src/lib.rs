//! Building blocks of providers.
//!
//! A provider implements the safe traits of [`api`] (`Fabric`, `Domain`, `Endpoint`, `Msg`,
//! `Tagged`, `Cm` …). This crate creates the C ops tables from them, and contains the objects
//! common to all providers: completion queues ([`cq`]), event queues ([`eq`]), counters ([`cntr`]),
//! address vectors ([`av`]) and their peers ([`names`]), memory regions ([`mr`]), atomic operations
//! on them ([`atomic`]) and a cache of them ([`mr_cache`]), poll and wait sets ([`poll`]), tag
//! matching ([`matching`]) and the progress thread ([`progress`]).
//!
//! Locks are taken in this order: a provider's engine, then a queue's own lock. No lock of this
//! crate is held while a provider's `progress` is called.
//!
//! The folders are layers: a module imports from its own and from those before it in this list, and
//! `cargo test --test layering` checks it. Modules are named without their layer.
#![cfg_attr(not(test), deny(unsafe_code))]
// the shelves; lines between them keep rustfmt from sorting them
mod plugin;

mod base;

#[allow(unsafe_code)]
mod objects;

mod memory;

mod local;

mod features;

#[allow(unsafe_code)]
pub mod core_provider;

#[allow(unsafe_code)]
pub mod api;

mod rdm;

pub use base::{
    addr, atomic, backoff, buf, datagram_io, device, device_allocation, device_sharing, dmabuf,
    interfaces, link_addr, lock, malformed, matching, packet_sink, probes, progress, reserved,
    secret, slab, sock, stack, stats, sys, testing, traffic_class, wait, waiters, worker,
};
use base::{
    addr_table, closer, fid_registry, heap_range, io_vecs, library_thread, primitives, process_end,
    rights, ring_queue, scoped_buf, slot_context,
};
pub use features::coll::paths::coll_paths;
use features::{coll, mcast, notices, variable};
pub use features::{completions, deferred};
use local::{barriers, ring_layout, segment};
pub use local::{cma, doorbell, shm_channel, shm_handshake};
pub use memory::{hmem, mem_monitor, mr_cache};
use memory::{memory_events, uffd};
pub use objects::{attr, av, cntr, cq, eq, mr, object, operation, peer_srx, poll};
use objects::{
    av_table, completion, cq_format, entry_ring, error_text, event, on_domain, peer, peer_av_set,
    progress_source, wait_set,
};
pub use plugin::{log, own_core, param, provider};
pub use rdm::{
    address_index, buffered, closing, conn_arbiter, conn_limit, contexts, endpoint, multi_recv,
    peers, receives, rx_matcher,
};

/// Initializes a loaded plug-in before the program continues and starts more threads, see
/// [`plug_in`](crate::plug_in). Returns false, with `errno` set, without memory for the plug-in.
#[doc(hidden)]
#[must_use]
pub fn plugin_loaded() -> bool {
    if !heap::ready_or_errno() {
        return false;
    }
    sys::note_user();
    barriers::prepare();
    true
}

pub use ofi::{abi, boundary, call_conditions, error, fid, heap, info};
