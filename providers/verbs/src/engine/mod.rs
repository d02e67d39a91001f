//! Progress engine of a domain: the operations of its endpoints on the device.
//!
//! One lock guards the state of all endpoints. Requests of the application are recorded
//! ([`request`]) and posted to the device ([`tx`], [`rx`]) with their memory segments
//! ([`segments`]). The device's completion queues are emptied into the application's queues at each
//! progress call ([`cq`]).
//!
//! Endpoints ([`ep`]) get and lose their queue pairs in [`open`]. A thread of the domain handles
//! the events of its connections and its device ([`events`]). Connections are established and ended
//! in [`conn`]. Blocking connection requests are sent from separate threads ([`call`]).
mod call;
mod conn;
mod cq;
mod ep;
mod events;
mod open;
mod queue;
mod request;
#[allow(unsafe_code)]
mod rx;
mod segments;
mod state;
#[allow(unsafe_code)]
mod tx;

pub(crate) use ep::VerbsEpLimits;
pub(crate) use events::{Connections, process_all_events};
pub(crate) use request::WorkSpec;
pub(crate) use state::VerbsEngine;
