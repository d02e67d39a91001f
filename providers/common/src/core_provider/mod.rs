//! Core provider of a utility provider.
//!
//! A utility provider such as `ofi_rxm` finds its core provider with the exported fi_getinfo and
//! opens it with fi_fabric. From there on it uses the same interface as any application: the ops
//! tables of the core provider's objects. So it works over any core provider, of this library or a
//! third-party plug-in, and inside any libfabric.
//!
//! This module calls these tables, so its users are safe code. Objects close on drop, in the right
//! order, because each holds its parent. Memory possibly still accessed by the core provider is
//! held by the completion queue ([`CoreCq`]) until its completion, or until the endpoint is closed.
mod blocking;
mod call;
mod cm;
mod cntr;
mod dgram;
mod discover;
mod domain;
mod endpoint;
mod fabric;
mod in_flight;
mod memory;
mod options;
mod owner;
mod post;
mod queue;
mod rail;
mod regions;
mod srx;
mod transfer;
mod wait;

pub use cm::{CoreEq, CoreEvent, CorePassiveEp};
pub use cntr::CoreCntr;
pub use dgram::{CoreAv, CoreDgram, DgramMeans};
pub use discover::{getinfo, getinfo_any, with_domain_of};
pub use domain::CoreDomain;
pub use endpoint::CoreEndpoint;
pub use fabric::CoreFabric;
pub use memory::{CoreBuf, CoreRegion};
pub use options::{
    ACCEPT_ONE_MORE, ACCEPT_WITHIN_LIMIT, DatagramBatch, OPT_ACCEPT_LIMIT, OPT_CONN_USAGE,
    OPT_ICMP_ERRORS, OPT_PEER_ENDED, OPT_RECEIVE_MANY, OPT_SEND_MANY, OPT_SOURCE,
    OPT_UNKNOWN_SOURCES, UNKNOWN_SOURCE_LEN,
};
pub use owner::{ArrivingMessage, QueueOwner};
pub use queue::{CoreCq, CoreEntry, Done, Entries};
pub use rail::{CoreRail, CoreWaiter, RailAttr};
pub use regions::{CoreKeys, LinkedRegions, Regions};
pub use srx::{ArrivedPacket, SharedRx};
pub use transfer::PeerTransfers;
pub use wait::CoreWaitSet;
