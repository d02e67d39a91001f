//! Objects bound to an endpoint.
use crate::av::Av;
use crate::completions::CompletionSink;
use crate::eq::Eq;
use std::sync::Arc;

/// Objects bound to an endpoint by the application (fi_ep_bind).
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// Queues, counters, and the access to the domain's deferred work.
    pub completions: CompletionSink,
    /// The event queue for connection events.
    pub eq: Option<Arc<Eq>>,
    /// The address vector of the endpoint's peers.
    pub av: Option<Arc<Av>>,
}
