//! The progress source of a queue.
use crate::progress::Progress;
use std::sync::Arc;

/// Progress source of a queue, and its address: the address of an `Arc`'s content would have to be
/// computed for each call.
pub(super) struct ProgressSource {
    keeps: Arc<dyn Progress>,
    at: *const dyn Progress,
}

impl ProgressSource {
    pub(super) fn new(keeps: Arc<dyn Progress>) -> Self {
        Self { at: Arc::as_ptr(&keeps), keeps }
    }

    #[inline(always)]
    pub(super) fn get(&self) -> &dyn Progress {
        // SAFETY: `keeps` keeps it, and never changes.
        unsafe { &*self.at }
    }

    /// Returns the reference-counted source.
    pub(super) fn source(&self) -> &Arc<dyn Progress> {
        &self.keeps
    }
}
