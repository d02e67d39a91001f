//! What simulators of engines have in common.
//!
//! A simulator runs 2 to 8 endpoints, each with an engine of its own, in a world without sockets,
//! threads or real time, in which what happens and when is drawn from one seed. A provider has
//! the world: links or a core provider in memory ([`SimWorld`]). Of this crate is the rest:
//! [`random`] draws, [`Sim`] has endpoints send, receive, write and read each other's memory,
//! cancel, close, come again, and come to know and forget each other's names, an oracle,
//! which knows nothing of the engine, checks all that is reported, and [`seeds`] runs seeds and
//! names one that fails. [`here`] is what engines under test ask: which fault is planted in them,
//! what time it is, and whether there is memory.
//!
//! It is a part of tests. No crate that is installed depends on it.
#![warn(missing_docs)]
mod connected;
pub mod here;
mod oracle;
mod queues;
pub mod random;
pub mod seeds;
mod sim;

pub use connected::{ConnectedSim, ConnectedWorld};
pub use here::{PlantedFault, planted};
pub use random::SimRandom;
pub use sim::{EndpointRole, NodePlace, Shape, Sim, SimPlan, SimWorld, address};
