//! Limit of the connections of an endpoint, and the use of each for the choice of those to close.
use ofi_provider::conn_limit::{
    DescriptorShortage, IdleTime, NextTime, REJECTION_PAUSE, TRAFFIC_PAUSE,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Maximum wait for the peers' answers before connections exceed the limit.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of times that the pause after a refused request doubles.
const MAX_DOUBLINGS: u32 = 6;

/// Numbers of connections: all open ones of the process, the ones of a domain with a request of this
/// end to close them, and the ones of a domain queued or not accepted for want of descriptors.
#[derive(Default, Debug)]
pub(super) struct ConnCounts {
    open: Arc<AtomicUsize>,
    ending: Arc<AtomicUsize>,
    missing: Arc<AtomicUsize>,
}

/// Counts a connection for the lifetime of this value.
#[derive(Debug)]
pub(super) struct CountedConn(Arc<AtomicUsize>);

impl CountedConn {
    fn new(sum: &Arc<AtomicUsize>) -> Self {
        sum.fetch_add(1, Ordering::Relaxed);
        Self(sum.clone())
    }
}

impl Drop for CountedConn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnCounts {
    /// Creates the counts of a domain. Simulated domains are processes of their own.
    pub(super) fn of_process() -> Self {
        static OPEN: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);
        let open = if cfg!(test) { Arc::default() } else { OPEN.clone() };
        Self { open, ..Self::default() }
    }

    /// Counts an open connection.
    pub(super) fn count_open(&self) -> CountedConn {
        CountedConn::new(&self.open)
    }

    /// Returns the number of open connections.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of connections about to end.
    pub(super) fn ending(&self) -> usize {
        self.ending.load(Ordering::Relaxed)
    }

    /// Returns the number of connections queued or not accepted for want of descriptors.
    pub(super) fn missing(&self) -> usize {
        self.missing.load(Ordering::Relaxed)
    }
}

/// Messages sent and received, with their bytes.
pub(super) type TrafficMark = [[u64; 2]; 2];

/// Use of a connection, and the agreement on its end.
#[derive(Default, Debug)]
pub(super) struct ConnUsage {
    /// The peer agrees on the end of idle connections.
    pub(super) closes: bool,
    /// This end has called the peer.
    pub(super) is_dialed: bool,
    /// The attempt was replaced by a connection of the peer before the peer's response.
    pub(super) is_replaced: bool,
    /// The connection has messages of the peer only: it is one of a peer's transmit context to a
    /// receive context ([`contexts`](super::contexts)).
    pub(super) is_receive_only: bool,
    /// A further connection was requested by both ends: the peer may still have a request without a
    /// connection.
    pub(super) had_replaced: bool,
    /// Number of the request to close the connection, with the traffic at its time.
    pub(super) requested: Option<(u64, TrafficMark)>,
    /// The ends have agreed on the end of the connection.
    pub(super) is_closed: bool,
    /// Counts the open connection.
    pub(super) open: Option<CountedConn>,
    /// Time since the last traffic.
    pub(super) idle: IdleTime<TrafficMark>,
    /// Number of requests rejected by the peer since the last traffic, and the earliest time of the next.
    rejections: u32,
    rejected_until: Option<Instant>,
}

impl ConnUsage {
    /// Takes a sample of the traffic. After traffic, a peer with a refused request is asked again sooner.
    pub(super) fn sample(&mut self, mark: TrafficMark, now: Instant) {
        if self.idle.sample(mark, now) {
            self.rejections = 0;
            self.rejected_until = self.rejected_until.map(|until| until.min(now + TRAFFIC_PAUSE));
        }
    }

    /// Records a request rejected by the peer: the pause before the next one doubles each time.
    pub(super) fn rejected(&mut self, now: Instant) {
        self.rejected_until =
            Some(now + REJECTION_PAUSE * (1 << self.rejections.min(MAX_DOUBLINGS)));
        self.rejections += 1;
    }

    /// Returns true if the end of the connection may be requested.
    pub(super) fn may_request(&self, now: Instant) -> bool {
        self.requested.is_none() && self.rejected_until.is_none_or(|until| until <= now)
    }
}

/// Space for connections, as the core provider and the limit of this provider have it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ConnSpace {
    /// Number of connections to be closed for those open, or waiting at the listener.
    pub(super) excess: usize,
    /// Another connection may be opened.
    pub(super) has_space: bool,
    /// Number of connection requests waiting at the listener of the core provider for space.
    pub(super) waiting: usize,
    /// At least half of the space is used: traffic is sampled.
    pub(super) is_half_full: bool,
    /// Maximum number of connections.
    pub(super) max: usize,
}

/// Search of an endpoint for connections to close at the limit.
#[derive(Default, Debug)]
pub(super) struct ConnLimit {
    /// Connections with a request to close them, by their source, with the time limit of the answer.
    ending: Vec<(u64, Instant, CountedConn)>,
    /// Connections counted as queued or not accepted for want of descriptors, for other endpoints of the domain.
    missing: Vec<CountedConn>,
    /// The core provider reports the descriptors of its connections, and their limit.
    pub(super) reads_core: bool,
    /// More connections are open or wait than the limit.
    pub(super) is_exceeded: bool,
    /// One more connection may exceed the limit: there was no idle one.
    pub(super) may_exceed: bool,
    pub(super) shortage: DescriptorShortage,
    /// Times of the next sample of the traffic, and of the next search.
    pub(super) next_sample: NextTime,
    pub(super) next_search: NextTime,
    requests: u64,
    /// Number of idle connections closed by this end.
    pub(super) closed_idle: u64,
}

impl ConnLimit {
    /// Returns the number of the next request.
    pub(super) fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Records a request sent on a connection.
    pub(super) fn requested(&mut self, source: u64, counts: &ConnCounts, now: Instant) {
        let counted = CountedConn::new(&counts.ending);
        self.ending.push((source, now + CLOSE_TIMEOUT, counted));
    }

    /// Forgets requests with an answer, by `is_pending`, or without one in time.
    pub(super) fn forget_answered(&mut self, now: Instant, is_pending: impl Fn(u64) -> bool) {
        self.ending.retain(|(source, until, _)| now < *until && is_pending(*source));
    }

    /// Counts the connections of the endpoint queued or not accepted for want of descriptors.
    pub(super) fn count_missing(&mut self, counts: &ConnCounts, missing: usize) {
        self.missing.resize_with(missing, || CountedConn::new(&counts.missing));
    }

    /// Records an opened connection.
    pub(super) fn opened(&mut self) {
        self.may_exceed = false;
        self.shortage.opened();
    }

    /// Records the end of a connection.
    pub(super) fn ended(&mut self) {
        self.next_search.clear();
        self.shortage.ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_are_counted_until_they_are_dropped() {
        let counts = ConnCounts::default();
        let open = [(); 3].map(|()| counts.count_open());
        assert_eq!(counts.open(), 3);
        drop(open);
        assert_eq!(counts.open(), 0);
    }

    #[test]
    fn missing_connections_are_those_of_all_endpoints() {
        let counts = ConnCounts::default();
        let mut limits = [(); 2].map(|()| ConnLimit::default());
        limits[0].count_missing(&counts, 3);
        limits[1].count_missing(&counts, 2);
        assert_eq!(counts.missing(), 5);
        limits[0].count_missing(&counts, 1);
        assert_eq!(counts.missing(), 3);
        drop(limits);
        assert_eq!(counts.missing(), 0);
    }

    #[test]
    fn a_request_is_pending_until_the_answer_or_the_time_limit() {
        let (counts, start) = (ConnCounts::default(), Instant::now());
        let mut limit = ConnLimit::default();
        (1..=2).for_each(|source| limit.requested(source, &counts, start));
        let mut left = |at, pending: fn(u64) -> bool| {
            limit.forget_answered(at, pending);
            counts.ending()
        };
        assert_eq!(left(start, |_| true), 2);
        assert_eq!(left(start, |source| source == 1), 1);
        assert_eq!(left(start + CLOSE_TIMEOUT, |_| true), 0);
    }

    #[test]
    fn traffic_after_a_rejection_shortens_the_pause() {
        let (mut usage, now) = (ConnUsage::default(), Instant::now());
        usage.sample([[1, 8], [0, 0]], now);
        usage.rejected(now);
        usage.sample([[1, 8], [0, 0]], now);
        assert!(!usage.may_request(now + TRAFFIC_PAUSE));
        usage.sample([[1, 8], [1, 8]], now);
        assert!(!usage.may_request(now));
        assert!(usage.may_request(now + TRAFFIC_PAUSE));
    }

    #[test]
    fn requests_pause_longer_after_each_rejection_without_traffic() {
        let (mut usage, now) = (ConnUsage::default(), Instant::now());
        let mut pauses = Vec::new();
        for round in 0..9 {
            if round == 8 {
                usage.sample([[1, 8], [0, 0]], now);
            }
            usage.rejected(now);
            pauses.push((0..100).find(|s| usage.may_request(now + Duration::from_secs(*s))));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 1].map(Some));
    }
}
