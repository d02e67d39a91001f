//! Closing of endpoints: delivery of operations complete for the application.
//!
//! An injected operation is complete for the application at the return of the call. At the close of
//! the endpoint its bytes may still wait for the connection, or for buffer space at the peer. The
//! close therefore drives progress until these bytes are sent, for a limited time.
use crate::progress::Progress;
use crate::sys::sleep_on;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time one close, or several in close succession, wait for peers continuously accepting
/// data.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Maximum time without accepted data by any connected peer.
const QUIET_LIMIT: Duration = Duration::from_secs(1);

/// Maximum distance of a close from the end of the last wait to share its limits.
const SUCCESSION: Duration = Duration::from_secs(1);

/// Maximum sleep between two checks of the undelivered bytes.
const PAUSE: Duration = Duration::from_millis(1);

/// Maximum share of one sleep in [`QUIET_LIMIT`]: on a busy host sleeps are longer, and peers
/// slower.
const MAX_COUNTED: Duration = Duration::from_millis(4);

/// Undelivered data of an endpoint being closed. It differs between two checks if a peer, or its
/// kernel, has accepted something.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Undelivered {
    /// Number of operations complete for the application, or awaited by peers.
    pub operations: usize,
    /// Bytes sent by the provider and not acknowledged by any peer's kernel.
    pub bytes: usize,
    /// Number of handshake steps made by their connections.
    pub steps: usize,
    /// Number of connections needed by operations and not completed by peers. A computing peer
    /// completes none.
    pub connecting: usize,
}

impl Undelivered {
    /// Returns true if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.operations == 0 && self.bytes == 0
    }
}

impl std::ops::AddAssign for Undelivered {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.steps += other.steps;
        self.connecting += other.connecting;
    }
}

/// Time waited by closes in close succession.
#[derive(Clone, Copy, Debug)]
struct Waited {
    /// Since the first began to wait.
    total: Duration,
    /// Since a peer took something.
    quiet: Duration,
    last_end: Instant,
}

impl Waited {
    /// Nothing, up to `now`.
    fn nothing(now: Instant) -> Self {
        Self { total: Duration::ZERO, quiet: Duration::ZERO, last_end: now }
    }

    /// Returns true if the close continues without delivering the rest.
    fn is_over(&self, quiet_limit: Duration) -> bool {
        self.total >= CLOSE_LIMIT || self.quiet >= quiet_limit
    }

    /// Counts the time up to `now`, with or without data accepted by a peer.
    fn count(&mut self, now: Instant, taken: bool) {
        let passed = now.saturating_duration_since(self.last_end);
        self.total += passed;
        self.quiet = if taken { Duration::ZERO } else { self.quiet + passed.min(MAX_COUNTED) };
        self.last_end = now;
    }
}

/// Limit on the total time for closing the endpoints of one engine, for any number of unresponsive
/// peers. The close waits for all peers at once.
#[derive(Debug)]
pub struct CloseBudget {
    waited: Mutex<Option<Waited>>,
    quiet_limit: Duration,
}

impl Default for CloseBudget {
    fn default() -> Self {
        Self { waited: Mutex::default(), quiet_limit: QUIET_LIMIT }
    }
}

impl CloseBudget {
    /// Returns the limit for peers without a kernel accepting data for them. A computing peer then
    /// accepts nothing, so the time is the same as for an accepting peer.
    pub fn of_datagrams() -> Self {
        Self { waited: Mutex::default(), quiet_limit: CLOSE_LIMIT }
    }

    /// Returns the time waited before, for a close starting at `now`.
    fn begin(&self, now: Instant) -> Waited {
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        match waited {
            Some(waited) if now < waited.last_end + SUCCESSION => {
                Waited { last_end: now, ..waited }
            }
            _ => Waited::nothing(now),
        }
    }

    /// Drives an engine until nothing is `undelivered`, or until the time is up. The caller holds no lock of the
    /// engine.
    pub fn drive(&self, engine: &impl Progress, mut undelivered: impl FnMut() -> Undelivered) {
        let mut before = undelivered();
        if before.is_empty() {
            return;
        }
        let mut waited = self.begin(Instant::now());
        loop {
            engine.progress();
            let left = undelivered();
            waited.count(Instant::now(), left != before || left.connecting > 0);
            if left.is_empty() || waited.is_over(self.quiet_limit) {
                break;
            }
            before = left;
            let fd = if engine.may_block() { engine.wait_fd() } else { -1 };
            // Without a descriptor this only sleeps: poll(2) ignores a negative one.
            sleep_on(fd, PAUSE.as_nanos() as u64);
        }
        engine.end_wait();
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) = Some(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::RawFd;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Waits in steps of `step` until the limit and returns the total time.
    fn wait(waited: &mut Waited, step: Duration, taken: impl Fn(Duration) -> bool) -> Duration {
        let start = waited.last_end;
        while !waited.is_over(QUIET_LIMIT) {
            let now = waited.last_end + step;
            waited.count(now, taken(now - start));
        }
        waited.last_end - start
    }

    #[test]
    fn close_waits_one_second_in_total_for_unresponsive_peers() {
        let budget = CloseBudget::default();
        let start = Instant::now();
        let mut first = budget.begin(start);
        assert_eq!(wait(&mut first, PAUSE, |_| false), QUIET_LIMIT);
        *budget.waited.lock().unwrap() = Some(first);
        let mut now = first.last_end;
        for _ in 0..1000 {
            let mut next = budget.begin(now);
            assert!(next.is_over(QUIET_LIMIT));
            next.count(now + Duration::from_micros(1), false);
            *budget.waited.lock().unwrap() = Some(next);
            now = next.last_end;
        }
        // One that is closed later waits as long as the first.
        assert_eq!(wait(&mut budget.begin(now + SUCCESSION), PAUSE, |_| false), QUIET_LIMIT);
    }

    #[test]
    fn close_waits_longer_for_peers_taking_data() {
        let mut waited = Waited::nothing(Instant::now());
        let slow = |passed: Duration| passed.as_millis() % 900 == 0;
        assert_eq!(wait(&mut waited, PAUSE, slow), CLOSE_LIMIT);
        // A peer that stops after two seconds.
        let mut waited = Waited::nothing(Instant::now());
        let took = wait(&mut waited, PAUSE, |passed| passed <= Duration::from_secs(2));
        assert_eq!(took, Duration::from_secs(3));
    }

    #[test]
    fn a_busy_host_gives_peers_more_time() {
        let mut waited = Waited::nothing(Instant::now());
        let took = wait(&mut waited, 3 * MAX_COUNTED, |_| false);
        assert_eq!(took, 3 * QUIET_LIMIT);
    }

    /// Engine with peers accepting one operation per progress iteration, except stopped ones.
    struct TakingPeers {
        left: AtomicUsize,
        stopped: usize,
    }
    impl Progress for TakingPeers {
        fn progress(&self) {
            let left = self.left.load(Ordering::Relaxed);
            self.left.store(left.saturating_sub(1).max(self.stopped), Ordering::Relaxed);
        }
        fn wait_fd(&self) -> RawFd {
            -1
        }
        fn activity(&self) -> u64 {
            0
        }
    }

    #[test]
    fn close_waits_for_unconnected_peers_as_for_active_ones() {
        let budget = CloseBudget { quiet_limit: PAUSE, ..CloseBudget::default() };
        let peers = TakingPeers { left: 0.into(), stopped: 1 };
        let mut looks = 0;
        let undelivered = || {
            looks += 1;
            Undelivered {
                operations: 1,
                connecting: usize::from(looks < 50),
                ..Undelivered::default()
            }
        };
        budget.drive(&peers, undelivered);
        assert!(looks >= 50, "{looks}");
    }

    #[test]
    fn stopped_peers_hold_up_no_others() {
        for stopped in [0, 1, 6] {
            let peers = TakingPeers { left: (20 + stopped).into(), stopped };
            let left = || peers.left.load(Ordering::Relaxed);
            let undelivered = || Undelivered { operations: left(), ..Undelivered::default() };
            CloseBudget::default().drive(&peers, undelivered);
            assert_eq!(left(), stopped);
        }
    }
}
