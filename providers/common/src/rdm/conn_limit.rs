//! Limit of connections: common parts of providers closing idle connections for others.
use std::time::{Duration, Instant};

/// Pause before a connection is opened again after the process ran out of descriptors, and the
/// maximum number of such pauses in a row: peers may need long to answer while many processes start.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
const MAX_SHORTAGES: u32 = 600;

/// Time for the number of descriptors used when the process ran out of them to be the limit.
const FOUND_LIMIT_TIME: Duration = Duration::from_secs(10);

/// Divisor of the limit of connections for the number of concurrent connection attempts. Peers calling
/// this endpoint need space as well: with all of it taken by attempts, peers at their limits would wait
/// for each other.
const CONNS_PER_CALL: usize = 4;

/// Divisor of the limit for the number of connections closed at a time.
const CONNS_PER_CLOSING: usize = 16;

/// Returns the maximum number of unanswered calls at a limit of connections: a quarter is left for the
/// calls of peers.
pub fn max_unanswered(max_conns: usize) -> usize {
    (max_conns - max_conns.div_ceil(4)).max(1)
}

/// Returns the maximum number of concurrent connection attempts at this limit of connections.
pub fn max_calls(limit: usize) -> usize {
    limit / CONNS_PER_CALL + 1
}

/// Returns the maximum number of connections closed at a time at this limit.
pub fn max_closings(limit: usize) -> usize {
    limit / CONNS_PER_CLOSING + 1
}

/// Time for the first message of a peer on its new connection.
const FIRST_MESSAGE_TIME: Duration = Duration::from_millis(100);

/// Returns true if a connection without a message and idle since `since`, unknown before its first
/// sample, is not to be closed: the peer has opened it for a message, and would refuse.
pub fn is_awaited(since: Option<Instant>, now: Instant) -> bool {
    since.is_none_or(|since| now.saturating_duration_since(since) < FIRST_MESSAGE_TIME)
}

/// Pause after a refused request to close a connection before the next one.
pub const REJECTION_PAUSE: Duration = Duration::from_secs(1);

/// The same after later messages: the peer has probably finished with the connection.
pub const TRAFFIC_PAUSE: Duration = Duration::from_millis(10);

/// Lack of descriptors for connections.
#[derive(Clone, Copy, Default, Debug)]
pub struct DescriptorShortage {
    /// Consecutive failures to open a connection, and the end of the pause after them.
    count: u32,
    until: Option<Instant>,
    /// Descriptors used when the process ran out of them, and the end of their use as the limit.
    found: Option<(usize, Instant)>,
}

impl DescriptorShortage {
    /// Records a lack of descriptors with `used` of them in connections: none is opened for a moment.
    pub fn note(&mut self, now: Instant, used: usize) {
        self.until = Some(now + SHORTAGE_PAUSE);
        self.found = Some((used.max(1), now + FOUND_LIMIT_TIME));
    }

    /// Records a connection not opened. Returns false if this has happened too often, and the transfers
    /// waiting for the connection fail.
    pub fn retries(&mut self, now: Instant, used: usize) -> bool {
        self.note(now, used);
        self.count += 1;
        let retries = self.count <= MAX_SHORTAGES;
        if !retries {
            self.count = 0;
        }
        retries
    }

    /// Records an opened connection: there are descriptors.
    pub fn opened(&mut self) {
        (self.count, self.until) = (0, None);
    }

    /// Records the end of a connection: there is a descriptor again.
    pub fn ended(&mut self) {
        self.until = None;
    }

    /// Returns true while no connection is to be opened.
    pub fn is_pausing(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns the end of the pause, if there is one.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns the maximum of descriptors: `configured`, or less if the process ran out of them.
    pub fn max(&self, now: Instant, configured: usize) -> usize {
        let found = self.found.filter(|(_, until)| now < *until);
        found.map_or(configured, |(found, _)| found.min(configured))
    }
}

/// Time of the next of repeated actions.
#[derive(Clone, Copy, Default, Debug)]
pub struct NextTime(Option<Instant>);

impl NextTime {
    /// Returns true if the action is due, and schedules the next one after `interval`.
    pub fn take_due(&mut self, now: Instant, interval: Duration) -> bool {
        let due = self.0.is_none_or(|at| at <= now);
        if due {
            self.0 = Some(now + interval);
        }
        due
    }

    /// Makes the action due at once.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

/// Time of the last traffic of a connection, known from samples of its counters.
#[derive(Clone, Copy, Debug)]
pub struct IdleTime<M>(Option<(M, Instant)>);

impl<M> Default for IdleTime<M> {
    fn default() -> Self {
        Self(None)
    }
}

impl<M: Copy + PartialEq> IdleTime<M> {
    /// Takes a sample of the counters. Returns true if there was traffic since the last one.
    pub fn sample(&mut self, mark: M, now: Instant) -> bool {
        let moved = self.0.is_none_or(|(before, _)| before != mark);
        if moved {
            self.0 = Some((mark, now));
        }
        moved
    }

    /// Returns the time of the first sample without later traffic; none before the first sample.
    pub fn since(&self) -> Option<Instant> {
        self.0.map(|(_, since)| since)
    }
}

/// Returns the connections idle longest, at most `count` of them, by the start of their idle time.
pub fn longest_idle(conns: impl Iterator<Item = (Instant, u32)>, count: usize) -> Vec<u32> {
    let mut idle: Vec<_> = conns.collect();
    idle.sort_unstable();
    idle.into_iter().take(count).map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_limit_is_left_for_calls_of_peers() {
        let limits = [1, 2, 4, 96, 10_000];
        assert_eq!(limits.map(max_unanswered), [1, 1, 3, 72, 7500]);
    }

    #[test]
    fn the_descriptors_used_at_a_shortage_are_the_limit_for_a_while() {
        let (mut shortage, now) = (DescriptorShortage::default(), Instant::now());
        assert_eq!(shortage.max(now, 36), 36);
        shortage.note(now, 28);
        assert_eq!([36, 20].map(|configured| shortage.max(now, configured)), [28, 20]);
        assert_eq!(shortage.max(now + FOUND_LIMIT_TIME, 36), 36);
        shortage.note(now, 0);
        assert_eq!(shortage.max(now, 36), 1, "a connection at a time");
    }

    #[test]
    fn a_lack_of_descriptors_is_retried_for_a_limited_number_of_times() {
        let (mut shortage, now) = (DescriptorShortage::default(), Instant::now());
        let tries = (0..).take_while(|_| shortage.retries(now, 5)).count();
        assert_eq!(tries, MAX_SHORTAGES as usize);
        assert!(shortage.is_pausing(now) && !shortage.is_pausing(now + SHORTAGE_PAUSE));
        shortage.opened();
        assert!(!shortage.is_pausing(now) && shortage.retries(now, 5));
    }

    #[test]
    fn a_connection_is_idle_since_the_first_sample_with_its_traffic() {
        let start = Instant::now();
        let later = start + SHORTAGE_PAUSE;
        let mut idle = IdleTime::default();
        for (mark, at, since) in [(1, start, start), (1, later, start), (2, later, later)] {
            assert_eq!(idle.sample(mark, at), at == since);
            assert_eq!(idle.since(), Some(since));
        }
        let all = [(later, 1), (start, 2), (later, 0)];
        assert_eq!(longest_idle(all.into_iter(), 2), [2, 0]);
    }

    #[test]
    fn repeated_actions_have_their_interval() {
        let (mut next, now) = (NextTime::default(), Instant::now());
        let due = [0, 5, 10, 15]
            .map(|ms| next.take_due(now + Duration::from_millis(ms), Duration::from_millis(10)));
        assert_eq!(due, [true, false, true, false]);
        next.clear();
        assert!(next.take_due(now, SHORTAGE_PAUSE));
    }
}
