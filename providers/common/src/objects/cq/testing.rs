//! Queues for unit tests of their writers.
use super::*;
use crate::object::Parent;
use crate::testing::IdleProgress;

/// Returns the resources of a domain without events.
pub(crate) fn domain() -> OnDomain {
    OnDomain {
        parent: Parent::new(Arc::new(()), Arc::default()),
        progress: Arc::new(IdleProgress),
        api_version: crate::info::API_VERSION,
        level: Level::Shared,
        on_blocking: Box::new(|_| Ok(())),
        later: None,
    }
}

/// A queue of the usual size.
pub(crate) fn queue() -> Arc<Cq> {
    // SAFETY: neither a peer nor a wait set.
    unsafe { Cq::open(domain(), None, std::ptr::null_mut()) }.unwrap()
}

impl Cq {
    /// Takes out the oldest entry.
    pub(crate) fn take(&self) -> Option<core::result::Result<Completion, CompletionError>> {
        if let Some(error) = self.take_error() {
            return Some(Err(error));
        }
        let mut ring = self.ring.lock();
        let read = self.read.load(Ordering::Relaxed);
        let entry = (self.len() != 0).then(|| *ring.slot(read))?;
        self.pop(&mut ring, read);
        Some(Ok(entry))
    }
}
