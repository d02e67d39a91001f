//! An endpoint's multicast: its groups, and the number of sends to them in flight.
use crate::mcast::MulticastGroups;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An endpoint's multicast.
pub(crate) struct Multicast {
    groups: Arc<MulticastGroups>,
    /// Number of incomplete sends to groups.
    pending: AtomicUsize,
}

impl Multicast {
    pub(super) fn new(groups: Arc<MulticastGroups>) -> Self {
        Self { groups, pending: AtomicUsize::new(0) }
    }

    pub(super) fn groups(&self) -> &MulticastGroups {
        &self.groups
    }

    /// Returns true if this many sends to groups, or more, are incomplete.
    pub(super) fn has_pending(&self, sends: usize) -> bool {
        self.pending.load(Ordering::Relaxed) >= sends
    }

    /// Counts a started send to a group.
    pub(super) fn start_send(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a send to a group.
    pub(super) fn finish_send(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
