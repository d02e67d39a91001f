//! Requests of an endpoint for the indices of its peers: those without a response, and those waiting.
//!
//! Requests are repeated until their responses arrive. Without a limit, thousands of peers asked at once
//! by each of thousands of endpoints would mostly receive repetitions.
use super::conn::HandshakeState;
use super::conns::RxdConns;
use super::round_trip::RoundTrip;
use ofi_provider::conn_arbiter::{
    CALLS_AT_A_TIME, CallState, ConnectLimiter, MOST_CALLS_AT_A_TIME,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum requests without a response, at first and in all.
const LIMITS: [usize; 2] =
    if cfg!(test) { [2, 4] } else { [CALLS_AT_A_TIME, MOST_CALLS_AT_A_TIME] };

/// Requests of an endpoint.
#[derive(Debug, Default)]
pub(super) struct IndexRequests {
    limiter: ConnectLimiter,
    /// Waiting connections, by number and index. They may have ended, or their peer may be known.
    waiting: VecDeque<(u32, u32)>,
    round_trip: RoundTrip,
    /// A request may have ended since the last call of [`next`](Self::next).
    has_changed: bool,
}

impl IndexRequests {
    /// Begins a request on a new connection. Returns true if it is to be sent now, false if it waits for
    /// the responses to others.
    pub(super) fn begin(&mut self, conns: &mut RxdConns, id: u32, now: Instant) -> bool {
        let index = conns[id].index;
        if self.waiting.is_empty() && self.has_space(conns, now) {
            self.limiter.started(id, index.into(), now);
            return true;
        }
        self.waiting.push_back((id, index));
        conns[id].stage = HandshakeState::Waiting;
        conns.note_deadline(self.deadline());
        false
    }

    /// Returns the next connection with a request to be sent now.
    pub(super) fn next(&mut self, conns: &mut RxdConns, now: Instant) -> Option<u32> {
        while let Some(&(id, index)) = self.waiting.front() {
            let waits = conns
                .get(id)
                .is_some_and(|conn| conn.index == index && conn.stage == HandshakeState::Waiting);
            if waits && !self.has_space(conns, now) {
                break;
            }
            self.waiting.pop_front();
            if waits {
                self.limiter.started(id, index.into(), now);
                return Some(id);
            }
        }
        self.has_changed = false;
        conns.note_deadline(self.deadline());
        None
    }

    fn has_space(&mut self, conns: &RxdConns, now: Instant) -> bool {
        self.limiter.has_space(LIMITS[0], LIMITS[1], now, |id, index| {
            let conn = conns.get(id).filter(|conn| u64::from(conn.index) == index);
            match conn.map(|conn| conn.stage) {
                None => CallState::Failed,
                Some(HandshakeState::Asking) => CallState::Pending,
                Some(_) => CallState::Made,
            }
        })
    }

    /// Records a response, and the time since the first transmission of its request.
    pub(super) fn answered(&mut self, took: Duration) {
        self.round_trip.measure(took);
        self.has_changed = true;
    }

    /// Records the end of a request without a response.
    pub(super) fn ended(&mut self) {
        self.has_changed = true;
    }

    /// Records a repetition: fewer requests are to be in flight.
    pub(super) fn repeated(&mut self) {
        self.limiter.slow_down();
    }

    /// Checks the time limit of requests without a response.
    pub(super) fn expire(&mut self, now: Instant) {
        self.has_changed |= self.deadline().is_some_and(|at| at <= now);
    }

    /// Returns the time of the next [`expire`](Self::expire), if requests wait.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.limiter.next_slot().filter(|_| !self.waiting.is_empty())
    }

    /// Returns true if waiting requests may be sent now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.has_changed && !self.waiting.is_empty()
    }

    /// Returns the expected time from a request to its response, at most, from earlier ones.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.round_trip.timeout()
    }
}
