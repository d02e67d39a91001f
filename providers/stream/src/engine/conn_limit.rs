//! Limit of the descriptors used by connections.
use super::blocked_conns::ConnName;
use crate::conn_quota;
use crate::transport::{ByteLink, ShmTransport};
use ofi_provider::conn_limit::{DescriptorShortage, NextTime};
use ofi_provider::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Minimum time between two searches for idle connections while others are about to end.
const SEARCH_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum wait of a connection for space while peers reject all requests to close one.
const MAX_WAIT: Duration = Duration::from_secs(4);

/// Returns true if a connection was not opened for lack of descriptors.
pub fn is_out_of_descriptors(error: Error) -> bool {
    error == Error::MFILE || error.code() == libc::ENFILE
}

/// Descriptors used by connections of the process.
static OF_PROCESS: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Returns the number of descriptors used by connections of the process.
pub fn used_descriptors() -> usize {
    OF_PROCESS.load(Ordering::Relaxed)
}

/// Returns the maximum descriptors of connections.
pub fn max_conns<N: ShmTransport>() -> usize {
    N::Link::settings().max_connections.unwrap_or_else(conn_quota::most)
}

/// Limit of the descriptors of connections.
#[derive(Debug)]
pub(super) struct ConnLimit {
    pub(super) used: Arc<AtomicUsize>,
    /// Connections about to end, with the time limit for waiting.
    pub(super) ending: Vec<(ConnName, Instant)>,
    /// One more connection may exceed the limit: there was no idle one.
    pub(super) may_exceed: bool,
    /// Time since connections wait for space without one of them opened.
    waiting_since: Option<Instant>,
    pub(super) shortage: DescriptorShortage,
    /// Times of the next sample of the traffic, and of the next search for idle connections.
    pub(super) next_sample: NextTime,
    next_search: NextTime,
    pub(super) requests: u64,
}

impl ConnLimit {
    /// Creates the limit of an engine. The connections of all engines of the process count together,
    /// unless `is_separate`.
    pub(super) fn new(is_separate: bool) -> Self {
        Self {
            used: if is_separate { Arc::default() } else { OF_PROCESS.clone() },
            ending: Vec::new(),
            may_exceed: false,
            waiting_since: None,
            shortage: DescriptorShortage::default(),
            next_sample: NextTime::default(),
            next_search: NextTime::default(),
            requests: 0,
        }
    }

    /// Records an opened or accepted connection: there are descriptors.
    pub(super) fn opened(&mut self) {
        self.may_exceed = false;
        self.waiting_since = None;
        self.shortage.opened();
    }

    /// Returns true if connections have waited for space for [`MAX_WAIT`]. The wait begins with the first
    /// call after an opened connection.
    pub(super) fn has_waited(&mut self, now: Instant) -> bool {
        let since = *self.waiting_since.get_or_insert(now);
        now.saturating_duration_since(since) >= MAX_WAIT
    }

    /// Records the end of a connection: there is a descriptor again.
    pub(super) fn ended(&mut self) {
        self.next_search.clear();
        self.shortage.ended();
    }

    /// Returns true if idle connections are to be searched now: not again within a moment while others
    /// are about to end.
    pub(super) fn may_search(&mut self, now: Instant) -> bool {
        if self.ending.is_empty() {
            self.next_search.clear();
        }
        self.next_search.take_due(now, SEARCH_INTERVAL)
    }

    /// Returns true if connections are about to end.
    pub(super) fn is_any_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Returns the time of the next search for space.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.ending.iter().map(|(_, until)| *until).chain(self.shortage.until()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_space_ends_after_its_maximum_and_begins_again_with_each_connection() {
        let (mut limit, start) = (ConnLimit::new(true), Instant::now());
        assert!(!limit.has_waited(start));
        assert!(!limit.has_waited(start + MAX_WAIT / 2));
        assert!(limit.has_waited(start + MAX_WAIT));
        limit.opened();
        assert!(!limit.has_waited(start + MAX_WAIT));
        assert!(limit.has_waited(start + 2 * MAX_WAIT));
    }
}
