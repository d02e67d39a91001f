//! Closing of endpoints: delivery of what the application takes for delivered.
//!
//! An injected operation is complete for the application when the call returns. Its bytes may still
//! wait for the connection to be made or for room at the peer when the endpoint is closed. Closing
//! therefore drives progress until these bytes have left, for a bounded time.
use crate::progress::Progress;
use crate::sys::sleep_on;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time that one close, or several in close succession, wait for peers.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Closes that begin within this time of the end of the last wait share its limit.
const SUCCESSION: Duration = Duration::from_secs(1);

/// Longest sleep between two looks at whether the bytes have left.
const PAUSE: Duration = Duration::from_millis(1);

/// Time that closes have waited in close succession.
#[derive(Clone, Copy, Debug)]
struct Waited {
    total: Duration,
    last_end: Instant,
}

/// Limit on the time that closing the endpoints of one engine takes in sum, however many peers do
/// not answer.
#[derive(Debug, Default)]
pub struct CloseBudget(Mutex<Option<Waited>>);

impl CloseBudget {
    /// Time left for a close that begins at `now`.
    fn left(&self, now: Instant) -> Duration {
        let waited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *waited {
            Some(waited) if now < waited.last_end + SUCCESSION => {
                CLOSE_LIMIT.saturating_sub(waited.total)
            }
            _ => CLOSE_LIMIT,
        }
    }

    /// Records that a close has waited from `start` to `end`.
    fn spend(&self, start: Instant, end: Instant) {
        let total = CLOSE_LIMIT - self.left(start) + (end - start);
        let mut waited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *waited = Some(Waited { total, last_end: end });
    }

    /// Drives an engine until `is_done`, or until the time is up. The caller holds no lock of the
    /// engine.
    pub fn drive(&self, engine: &impl Progress, mut is_done: impl FnMut() -> bool) {
        if is_done() {
            return;
        }
        let start = Instant::now();
        let until = start + self.left(start);
        loop {
            engine.progress();
            if is_done() || Instant::now() >= until {
                break;
            }
            let fd = if engine.may_block() { engine.wait_fd() } else { -1 };
            // Without a descriptor this only sleeps: poll(2) ignores a negative one.
            sleep_on(fd, PAUSE.as_nanos() as u64);
        }
        self.spend(start, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_in_succession_share_one_limit_and_later_ones_have_a_new_one() {
        let budget = CloseBudget::default();
        let start = Instant::now();
        assert_eq!(budget.left(start), CLOSE_LIMIT);
        let end = start + Duration::from_secs(3);
        budget.spend(start, end);
        assert_eq!(budget.left(end), Duration::from_secs(2));
        let next = end + Duration::from_millis(500);
        budget.spend(next, next + Duration::from_secs(2));
        assert_eq!(budget.left(next + Duration::from_secs(2)), Duration::ZERO);
        let later = next + Duration::from_secs(2) + SUCCESSION;
        assert_eq!(budget.left(later), CLOSE_LIMIT);
    }
}
