//! Use of connections: their descriptors and traffic, and the agreement on their end.
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

/// Use of a connection, and the agreement on its end.
#[derive(Default, Debug)]
pub(super) struct ConnUsage {
    pub(super) state: ClosingState,
    /// The connection was replaced by one of the peer before the peer's response.
    pub(super) is_replaced: bool,
    /// This end has opened the connection.
    pub(super) is_dialed: bool,
    pub(super) descriptors: Option<UsedDescriptors>,
    /// Last sample of the traffic, and the time of the first sample with these numbers.
    pub(super) sample: Option<(TrafficMark, Instant)>,
    /// The peer has refused a request: none is sent before this time.
    pub(super) refused_until: Option<Instant>,
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
