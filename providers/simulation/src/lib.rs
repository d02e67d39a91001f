//! Common parts of the simulators of engines.
//!
//! A simulator runs 2 to 8 endpoints, each with a separate engine, in a world without sockets,
//! threads or real time. One seed determines all events and their timing. A provider supplies the
//! world: links or a core provider in memory ([`SimWorld`]). This crate supplies the rest.
//!
//! [`random`] draws numbers. [`Sim`] lets endpoints send, receive, access each other's memory,
//! cancel, close, reopen, and insert and remove each other's addresses. An oracle, independent of
//! the engine, checks all reports. [`seeds`] runs seeds and names a failing one. [`here`] is the
//! environment queried by engines under test: their injected fault, the time, and the availability
//! of memory.
//!
//! It is only used by tests. No installed crate depends on it.
#![warn(missing_docs)]
mod connected;
pub mod device;
pub mod here;
mod oracle;
mod plan;
mod queues;
pub mod random;
pub mod seeds;
mod sim;

pub use connected::{ConnectedSim, ConnectedWorld};
pub use here::{InjectedFault, injected};
pub use plan::{EndpointRole, NodeConfig, NodeEnv, SimPlan, SimWorld};
pub use random::SimRandom;
pub use sim::{Sim, address};
