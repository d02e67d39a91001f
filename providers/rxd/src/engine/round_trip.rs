//! Estimate of round-trip times (RFC 6298).
use std::time::Duration;

/// Smoothed round-trip time and its variation, if any was measured.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct RoundTrip(Option<(Duration, Duration)>);

impl RoundTrip {
    /// Adds a measurement.
    pub(super) fn measure(&mut self, took: Duration) {
        self.0 = Some(match self.0 {
            None => (took, took / 2),
            Some((mean, spread)) => {
                let off = took.abs_diff(mean);
                ((mean * 7 + took) / 8, (spread * 3 + off) / 4)
            }
        });
    }

    /// Returns the mean.
    pub(super) fn mean(&self) -> Option<Duration> {
        self.0.map(|(mean, _)| mean)
    }

    /// Returns the retransmission timeout.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.0.map(|(mean, spread)| mean + 4 * spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_follows_the_measurements() {
        let mut trip = RoundTrip::default();
        assert_eq!((trip.mean(), trip.timeout()), (None, None));
        trip.measure(Duration::from_millis(8));
        assert_eq!(trip.mean(), Some(Duration::from_millis(8)));
        assert_eq!(trip.timeout(), Some(Duration::from_millis(24)));
        trip.measure(Duration::from_millis(16));
        assert_eq!(trip.mean(), Some(Duration::from_millis(9)));
        assert_eq!(trip.timeout(), Some(Duration::from_millis(29)));
    }
}
