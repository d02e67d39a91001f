//! Resources of a domain for a new queue or counter.
use crate::error::Result;
use crate::lock::Level;
use crate::object::Parent;
use crate::progress::Progress;
use crate::wait::WaitKind;
use std::sync::Arc;

/// A counter awaited by requests.
pub trait AwaitedCntr {
    /// Returns a number identifying the counter while it is open.
    fn key(&self) -> usize;
    /// Returns the counter's value.
    fn value(&self) -> u64;
    /// Returns the sum of the counter's value and of its errors.
    fn sum(&self) -> u64;
    /// Sets the smallest sum awaited by a request.
    fn set_next(&self, next: u64);
}

/// Observer of the counters of a domain.
pub trait CntrWatch: Send + Sync {
    /// Reports a counter possibly at an awaited value. Any lock may be held.
    fn reached(&self, cntr: &dyn AwaitedCntr);
    /// Runs the resulting work, without any lock held.
    fn run(&self);
}

/// Resources of the domain for a queue or counter.
pub struct OnDomain {
    /// Domain itself; it cannot be closed while the object is open.
    pub parent: Parent,
    /// Progress source driving the domain.
    pub progress: Arc<dyn Progress>,
    /// The version the application asked `fi_getinfo` for.
    pub api_version: u32,
    /// The level of the locks of the domain's objects (FI_THREAD_DOMAIN or not).
    pub level: Level,
    /// Called if the application can block on the new object: the domain then starts its
    /// progress thread if it promised automatic progress.
    pub on_blocking: Box<dyn Fn(WaitKind) -> Result + Send + Sync>,
    /// Deferred work of the domain, if requests may wait for a counter.
    pub later: Option<Arc<dyn CntrWatch>>,
}

impl std::fmt::Debug for OnDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDomain")
    }
}
