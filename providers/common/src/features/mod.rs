//! Work following from completions, and internal messages of the library: reports, deferred work,
//! collectives, multicast.
pub(crate) mod coll;
pub mod completions;
pub mod deferred;
pub(crate) mod mcast;
pub(crate) mod notices;
pub(crate) mod variable;
