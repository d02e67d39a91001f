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
