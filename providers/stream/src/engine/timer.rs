//! The engine's timer.
use crate::transport::Transport;
use std::time::{Duration, Instant};

/// Timer of a transport. It expires when refused connections are to be tried again, silent pending
/// connections to be ended, or accept-paused listeners to accept again.
#[derive(Debug, Default)]
pub(super) struct EngineTimer {
    /// Expiry time; `None` if the timer is not set.
    expires: Option<Instant>,
}

impl EngineTimer {
    /// Makes the timer expire at this time, unless it expires earlier anyway.
    pub(super) fn set(&mut self, net: &impl Transport, at: Instant) {
        if self.expires.is_none_or(|expires| at < expires) {
            self.expires = Some(at);
            let delay = at.saturating_duration_since(net.now());
            net.set_timer(delay.max(Duration::from_micros(1)));
        }
    }

    /// Returns true if the timer is set.
    pub(super) fn is_set(&self) -> bool {
        self.expires.is_some()
    }

    /// Stops the timer after its expiry.
    pub(super) fn clear(&mut self, net: &impl Transport) {
        net.clear_timer();
        self.expires = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sim::{Rings, SimRandom, StreamWorld};
    use crate::transport::LinkClock;

    #[test]
    fn timer_expires_at_the_earliest_time_asked_for() {
        let world = StreamWorld::new(Instant::now(), SimRandom::new(1));
        let (net, mut timer) = (Rings::new(&world, false), EngineTimer::default());
        let expiry = || world.lock().unwrap().next_event();
        let now = net.now();
        let mut set = |seconds| {
            timer.set(&net, now + Duration::from_secs(seconds));
            // Each look at the simulated clock takes some nanoseconds.
            expiry().map(|nanos| nanos / 1_000_000_000)
        };
        assert_eq!([2, 3, 1].map(&mut set), [Some(2), Some(2), Some(1)]);
        assert!(timer.is_set());
        timer.clear(&net);
        assert_eq!((expiry(), timer.is_set()), (None, false));
        // A time in the past is soon, not never.
        timer.set(&net, now);
        assert!(expiry().is_some_and(|nanos| nanos < 1_000_000));
    }
}
