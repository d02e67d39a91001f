//! Reported changes of memory.
use crate::error::Result;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of stored reports; a cache with more unread ones invalidates all its regions.
const RANGES: usize = 64;

/// Reported changes of memory, for any number of caches.
#[derive(Debug)]
pub struct MemoryEvents {
    /// Counts beginnings of reports.
    started: AtomicU64,
    ring: Mutex<EventRing>,
}

#[derive(Debug)]
struct EventRing {
    /// Start and end of each reported range.
    ranges: [(usize, usize); RANGES],
    /// Total number of reported ranges; the low bits are the next index.
    written: u64,
}

impl Default for MemoryEvents {
    fn default() -> Self {
        Self {
            started: AtomicU64::new(0),
            ring: Mutex::new(EventRing { ranges: [(0, 0); RANGES], written: 0 }),
        }
    }
}

/// Position of a cache in the reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadUpTo {
    started: u64,
    written: u64,
}

/// The changes since a cache has read last.
pub(crate) struct Changes {
    ranges: [(usize, usize); RANGES],
    count: usize,
}

impl Changes {
    /// Returns the changed ranges; a single one covering all memory if there were too many.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.ranges[..self.count].iter().map(|(start, end)| *start..*end)
    }
}

impl MemoryEvents {
    fn ring(&self) -> MutexGuard<'_, EventRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the changes passed on by `report`. Lookups starting after its start wait for its
    /// end. So a source blocking a change until the start need not wait for anything else. `report`
    /// must not allocate or free.
    pub(crate) fn report(&self, report: impl FnOnce(&mut dyn FnMut(Range<usize>))) {
        let mut ring = self.ring();
        self.started.fetch_add(1, Ordering::SeqCst);
        report(&mut |range| {
            let slot = ring.written as usize % RANGES;
            ring.ranges[slot] = (range.start, range.end);
            ring.written += 1;
        });
    }

    /// The present position: reports from now on count.
    pub(crate) fn now(&self) -> ReadUpTo {
        let ring = self.ring();
        ReadUpTo { started: self.started.load(Ordering::SeqCst), written: ring.written }
    }

    /// Returns the changes reported since `seen` and advances it to the current position; `None` if
    /// there are none.
    #[inline]
    pub(crate) fn since(&self, seen: &mut ReadUpTo) -> Option<Changes> {
        if self.started.load(Ordering::SeqCst) == seen.started {
            return None;
        }
        let ring = self.ring();
        seen.started = self.started.load(Ordering::SeqCst);
        let (first, last) = (seen.written, ring.written);
        seen.written = last;
        let mut ranges = [(0, 0); RANGES];
        if last - first > RANGES as u64 {
            ranges[0] = (0, usize::MAX);
            return Some(Changes { ranges, count: 1 });
        }
        for (to, from) in ranges.iter_mut().zip(first..last) {
            *to = ring.ranges[from as usize % RANGES];
        }
        Some(Changes { ranges, count: (last - first) as usize })
    }
}

/// Source of memory changes, reporting to [`MemoryEvents`].
pub(crate) trait MemoryWatch: Send + Sync {
    /// Reports changes of these pages from now on. They may be watched already.
    fn watch(&self, pages: Range<usize>) -> Result;
    /// Ends reports of changes of these pages.
    fn unwatch(&self, pages: Range<usize>);
    /// Returns true if the memory there is still the registered one, as far as the source can
    /// determine.
    fn is_valid(&self, _pages: Range<usize>) -> bool {
        true
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "the lists hold ranges")]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_once_and_an_overflow_covers_all_memory() {
        let notices = MemoryEvents::default();
        let mut seen = notices.now();
        let read = |seen: &mut ReadUpTo| {
            notices.since(seen).map(|changes| changes.ranges().collect::<Vec<_>>())
        };
        assert_eq!(read(&mut seen), None);
        notices.report(|tell| {
            tell(1..2);
            tell(5..9);
        });
        assert_eq!(read(&mut seen), Some(vec![1..2, 5..9]));
        assert_eq!(read(&mut seen), None);
        for at in 0..RANGES {
            notices.report(|tell| tell(at..at + 1));
        }
        let mut other = seen;
        assert_eq!(read(&mut seen).map(|ranges| ranges.len()), Some(RANGES));
        notices.report(|tell| tell(3..4));
        assert_eq!(read(&mut other), Some(vec![0..usize::MAX]));
        assert_eq!(read(&mut seen), Some(vec![3..4]));
    }
}
