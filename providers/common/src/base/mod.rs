//! Modules depending on the system alone: system calls, locks, waiting, threads, progress,
//! matching, buffers, addresses and the arithmetic of atomic operations.
#[allow(unsafe_code)]
pub mod addr;
pub(crate) mod addr_table;
#[allow(unsafe_code)]
pub mod atomic;
pub mod backoff;
#[allow(unsafe_code)]
pub mod buf;
pub(crate) mod closer;
mod cpu_load;
#[allow(unsafe_code)]
pub mod datagram_io;
#[allow(unsafe_code)]
pub mod device;
pub mod device_allocation;
#[allow(unsafe_code)]
pub mod device_sharing;
#[allow(unsafe_code)]
pub mod dmabuf;
pub(crate) mod fid_registry;
mod hang;
#[allow(unsafe_code)]
pub(crate) mod heap_range;
pub mod interfaces;
#[allow(unsafe_code)]
pub(crate) mod io_vecs;
#[allow(unsafe_code)]
pub(crate) mod library_thread;
pub mod link_addr;
#[allow(unsafe_code)]
pub mod lock;
pub mod malformed;
pub mod matching;
#[allow(unsafe_code)]
pub mod packet_sink;
#[allow(unsafe_code)]
pub(crate) mod primitives;
#[allow(unsafe_code)]
pub mod probes;
pub(crate) mod process_end;
pub mod progress;
pub mod reserved;
#[allow(unsafe_code)]
pub(crate) mod rights;
pub(crate) mod ring_queue;
#[allow(unsafe_code)]
pub(crate) mod scoped_buf;
#[allow(unsafe_code)]
pub mod secret;
pub mod slab;
pub(crate) mod slot_context;
#[allow(unsafe_code)]
pub mod sock;
#[allow(unsafe_code)]
pub mod stack;
#[allow(unsafe_code)]
pub mod stats;
#[allow(unsafe_code)]
pub mod sys;
#[doc(hidden)]
pub mod testing;
pub mod traffic_class;
#[allow(unsafe_code)]
pub mod wait;
pub mod waiters;
#[allow(unsafe_code)]
pub mod worker;
