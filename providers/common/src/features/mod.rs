//! What follows from completions and messages of the library's own: reports, deferred work,
//! collectives, multicast.
pub(crate) mod coll;
pub mod later;
pub mod ledger;
pub(crate) mod mcast;
pub(crate) mod notices;
pub(crate) mod variable;
