//! Objects opened by programs on fabrics and domains: queues, counters, address vectors, memory
//! regions, poll and wait sets, and their common part (`object`).
pub mod attr;
pub mod av;
pub(crate) mod av_table;
pub mod cntr;
pub(crate) mod completion;
pub mod cq;
pub(crate) mod cq_format;
pub(crate) mod entry_ring;
pub mod eq;
pub(crate) mod error_text;
pub(crate) mod event;
pub mod mr;
pub mod object;
pub(crate) mod on_domain;
pub mod operation;
pub(crate) mod peer;
pub(crate) mod peer_av_set;
pub mod peer_srx;
pub mod poll;
pub(crate) mod progress_source;
pub(crate) mod wait_set;
