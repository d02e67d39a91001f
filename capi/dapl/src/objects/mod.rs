//! Objects by class, each class in a store of its own.
//!
//! [`evd`] has event dispatchers and notification objects: other objects push events to its
//! [`EventSink`](evd::EventSink), and it knows none of them. [`memory`] has protection zones and
//! registered memory, [`srq`] shared receive queues, [`ep`] endpoints, and [`connect`] service
//! points and connection requests.
pub(crate) mod connect;
pub(crate) mod ep;
pub(crate) mod evd;
pub(crate) mod memory;
pub(crate) mod srq;
