//! Use of connections: their descriptors and traffic, and the agreement on their end.
use crate::conn_quota::ReservedDescriptor;
use ofi_provider::conn_limit::{IdleTime, REJECTION_PAUSE, TRAFFIC_PAUSE};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Descriptors used by a link, for the lifetime of this value.
#[derive(Debug)]
pub(super) struct UsedDescriptors {
    count: usize,
    sum: Arc<AtomicUsize>,
}

impl UsedDescriptors {
    pub(super) fn new(sum: &Arc<AtomicUsize>) -> Self {
        Self { count: 0, sum: sum.clone() }
    }

    pub(super) fn set(&mut self, count: usize) {
        if count != self.count {
            self.sum.fetch_add(count, Ordering::Relaxed);
            self.sum.fetch_sub(self.count, Ordering::Relaxed);
            self.count = count;
        }
    }
}

impl Drop for UsedDescriptors {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Numbers changing with the traffic of a connection: messages sent and received, and the number
/// of the next header.
pub(super) type TrafficMark = ([u64; 2], u8);

/// State of the agreement on the end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum ClosingState {
    /// The connection is in use.
    #[default]
    Open,
    /// This end has sent the request of this number, and only this since the mark.
    Requested(u64, TrafficMark),
    /// This end has agreed, and sends nothing.
    Agreed,
    /// This end has ended its direction without agreement.
    HalfClosed,
}

/// Rejection of a request to close a connection. The steps of the agreement are no traffic: their own
/// headers would have the peer asked again and again.
#[derive(Debug)]
pub(super) struct CloseRejection {
    /// No request is sent before this time.
    until: Instant,
    /// Messages sent and received by then.
    messages: [u64; 2],
}

impl CloseRejection {
    /// Records a rejection, after so many messages sent and received.
    pub(super) fn new(messages: [u64; 2], now: Instant) -> Self {
        Self { until: now + REJECTION_PAUSE, messages }
    }

    /// Takes a sample of the numbers of messages: after traffic the pause is shorter.
    pub(super) fn sample(&mut self, messages: [u64; 2], now: Instant) {
        if std::mem::replace(&mut self.messages, messages) != messages {
            self.until = self.until.min(now + TRAFFIC_PAUSE);
        }
    }

    /// Returns true if the peer may be asked again.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }
}

/// Use of a connection, and the agreement on its end.
#[derive(Default, Debug)]
pub(super) struct ConnUsage {
    pub(super) state: ClosingState,
    /// The connection was replaced by one of the peer before the peer's response.
    pub(super) is_replaced: bool,
    /// The request of the replaced connection had early data: its direction is ended, so the peer ignores
    /// it.
    pub(super) is_withdrawn: bool,
    /// This end has opened the connection.
    pub(super) is_dialed: bool,
    pub(super) descriptors: Option<UsedDescriptors>,
    pub(super) reserved: Option<ReservedDescriptor>,
    /// Time since the last traffic.
    pub(super) idle: IdleTime<TrafficMark>,
    /// Last rejection of a request by the peer.
    pub(super) rejection: Option<CloseRejection>,
}

impl ConnUsage {
    /// Returns true if this end has agreed to the end of the connection, or has ended its
    /// direction: nothing in flight is lost by the end.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.state, ClosingState::Agreed | ClosingState::HalfClosed)
    }

    /// Returns true if this end waits for the peer to close the connection.
    pub(super) fn has_agreed(&self) -> bool {
        self.state == ClosingState::Agreed
    }

    /// Returns true if this end has ended its direction, and reads the other one to its end.
    pub(super) fn is_half_closed(&self) -> bool {
        self.state == ClosingState::HalfClosed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_after_a_rejection_is_shorter_after_messages_only() {
        let now = Instant::now();
        let mut rejection = CloseRejection::new([3, 4], now);
        rejection.sample([3, 4], now);
        assert!(
            !rejection.is_over(now + TRAFFIC_PAUSE) && rejection.is_over(now + REJECTION_PAUSE)
        );
        rejection.sample([3, 5], now);
        assert!(!rejection.is_over(now) && rejection.is_over(now + TRAFFIC_PAUSE));
    }
}
