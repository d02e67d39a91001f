//! Connection requests known to the application, and not answered yet.
use std::collections::VecDeque;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// Time without an answer to any request after which the oldest one may be rejected in favor of another
/// pending connection.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Request known to the application by its handle.
struct UnansweredRequest {
    handle: usize,
    /// Dead once the request was answered or rejected.
    request: Weak<()>,
    since: Instant,
}

/// Requests of a passive endpoint, oldest first; answered ones may be among them.
#[derive(Default)]
pub(super) struct UnansweredRequests {
    requests: VecDeque<UnansweredRequest>,
    /// Time when answered ones were found last.
    answered: Option<Instant>,
}

impl UnansweredRequests {
    /// Returns the number of requests, including those answered since the last
    /// [`remove_answered`](Self::remove_answered).
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request, with its handle known to the application. `request` is dead once it is answered.
    pub(super) fn add(&mut self, handle: usize, request: Weak<()>, now: Instant) {
        self.requests.push_back(UnansweredRequest { handle, request, since: now });
    }

    /// Removes the answered requests.
    pub(super) fn remove_answered(&mut self, now: Instant) {
        let before = self.requests.len();
        self.requests.retain(|request| request.request.strong_count() > 0);
        if self.requests.len() < before {
            self.answered = Some(now);
        }
    }

    /// Removes the oldest request, if the application has answered none for [`ANSWER_TIME`]. Returns its
    /// handle. A busy application answers many requests one after the other, however long this takes.
    pub(super) fn take_late(&mut self, now: Instant) -> Option<usize> {
        let since = self.requests.front()?.since;
        let last = self.answered.map_or(since, |at| at.max(since));
        if now.saturating_duration_since(last) < ANSWER_TIME {
            return None;
        }
        let oldest = self.requests.pop_front()?;
        // The handle of an answered one may be that of a later request.
        (oldest.request.strong_count() > 0).then_some(oldest.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn requests_are_late_only_if_none_is_answered() {
        let (start, mut requests) = (Instant::now(), UnansweredRequests::default());
        let mut alive = VecDeque::new();
        for handle in 0..4 {
            alive.push_back(Arc::new(()));
            requests.add(handle, alive.back().map(Arc::downgrade).unwrap(), start);
        }
        assert_eq!(requests.take_late(start + ANSWER_TIME / 2), None);
        // One is answered; the others are as old.
        alive.pop_front();
        let later = start + ANSWER_TIME;
        requests.remove_answered(later);
        assert_eq!((requests.len(), requests.take_late(later)), (3, None));
        requests.remove_answered(later + ANSWER_TIME);
        assert_eq!(requests.take_late(later + ANSWER_TIME), Some(1));
        assert_eq!(requests.take_late(later + ANSWER_TIME), Some(2));
        // A new one has its own time.
        alive.push_back(Arc::new(()));
        alive.pop_front();
        requests.add(4, alive.back().map(Arc::downgrade).unwrap(), later + ANSWER_TIME);
        assert_eq!(requests.take_late(later + ANSWER_TIME), Some(3));
        assert_eq!(requests.take_late(later + ANSWER_TIME), None);
    }
}
