//! Limit of the descriptors used by connections.
use super::blocked_conns::ConnName;
use ofi_provider::error::Error;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Minimum time between two searches for idle connections while others are about to end.
const SEARCH_INTERVAL: Duration = Duration::from_millis(1);

/// Pause before a connection is opened again after the process ran out of descriptors, and the
/// maximum number of such pauses in a row.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
const MAX_SHORTAGES: u32 = 20;

/// Returns true if a connection was not opened for lack of descriptors.
pub(super) fn is_out_of_descriptors(error: Error) -> bool {
    error == Error::MFILE || error.code() == libc::ENFILE
}

/// Limit of the descriptors of connections.
#[derive(Debug)]
pub(super) struct ConnLimit {
    pub(super) used: Arc<AtomicUsize>,
    /// Connections about to end, with the time limit for waiting.
    pub(super) ending: Vec<(ConnName, Instant)>,
    /// One more connection may exceed the limit: there was no idle one.
    pub(super) may_exceed: bool,
    /// The process ran out of descriptors: no connection is opened before this time.
    pub(super) short_until: Option<Instant>,
    /// Consecutive failures to open a connection for lack of descriptors.
    shortages: u32,
    /// Time of the next sample of the traffic, and of the next search for idle connections.
    pub(super) sample_at: Option<Instant>,
    search_at: Option<Instant>,
    pub(super) requests: u64,
}

impl ConnLimit {
    /// Creates the limit of an engine. The connections of all engines of the process count together,
    /// unless `is_separate`.
    pub(super) fn new(is_separate: bool) -> Self {
        static OF_PROCESS: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);
        Self {
            used: if is_separate { Arc::default() } else { OF_PROCESS.clone() },
            ending: Vec::new(),
            may_exceed: false,
            short_until: None,
            shortages: 0,
            sample_at: None,
            search_at: None,
            requests: 0,
        }
    }

    /// Records an opened or accepted connection: there are descriptors.
    pub(super) fn opened(&mut self) {
        (self.shortages, self.short_until, self.may_exceed) = (0, None, false);
    }

    /// Records the end of a connection: there is a descriptor again.
    pub(super) fn ended(&mut self) {
        (self.short_until, self.search_at) = (None, None);
    }

    /// Records a lack of descriptors: no connection is opened for a moment.
    pub(super) fn note_shortage(&mut self, now: Instant) {
        self.short_until = Some(now + SHORTAGE_PAUSE);
    }

    /// Records a connection not opened for lack of descriptors. Returns false if this has happened
    /// too often, and the transfers waiting for the connection fail.
    pub(super) fn retries_after_shortage(&mut self, now: Instant) -> bool {
        self.note_shortage(now);
        self.shortages += 1;
        let retries = self.shortages <= MAX_SHORTAGES;
        if !retries {
            self.shortages = 0;
        }
        retries
    }

    /// Returns true if idle connections are to be searched now: not again within a moment while others
    /// are about to end.
    pub(super) fn may_search(&mut self, now: Instant) -> bool {
        let may = self.ending.is_empty() || self.search_at.is_none_or(|at| at <= now);
        if may {
            self.search_at = Some(now + SEARCH_INTERVAL);
        }
        may
    }

    /// Returns true if connections are about to end.
    pub(super) fn is_any_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Returns the time of the next search for space.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.ending.iter().map(|(_, until)| *until).chain(self.short_until).min()
    }
}
