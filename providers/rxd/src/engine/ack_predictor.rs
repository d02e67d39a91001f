//! Delayed-acknowledgement heuristic: predicts prompt answers of an application to its peer.
//!
//! A prompt answer can carry the acknowledgement of the message answered, saving half of the
//! packets of such an exchange. Without an answer the peer has waited for nothing. So the
//! acknowledgement is delayed only after a series of prompt answers. After each missing answer the
//! next series has to be twice as long, until one was very long.
use std::time::{Duration, Instant};

/// An answer at once comes within this time.
const AT_ONCE: Duration = Duration::from_micros(20);

/// Series of prompt answers required before another one is expected: initial and maximum length.
const FEWEST: u32 = 8;
const MOST: u32 = 4096;
/// After so many times as many another one is expected sooner again.
const FORGIVEN: u32 = 64;

/// Statistics of an application's answers to one peer.
#[derive(Debug)]
pub(super) struct AckPredictor {
    /// Time of the end of the peer's oldest unanswered operation.
    ended: Option<Instant>,
    /// Current number of prompt answers in a series, and the required number.
    row: u32,
    needed: u32,
}

impl Default for AckPredictor {
    fn default() -> Self {
        Self { ended: None, row: 0, needed: FEWEST }
    }
}

impl AckPredictor {
    /// Records the end of a peer's operation possibly answered by the application. Returns true if
    /// a prompt answer is expected.
    #[inline]
    pub(super) fn ended(&mut self, now: Instant) -> bool {
        if self.is_late(now) {
            (self.ended, self.row) = (None, 0);
        }
        self.ended.get_or_insert(now);
        self.row >= self.needed
    }

    /// Records a packet to the peer, suitable for a piggybacked acknowledgement.
    #[inline]
    pub(super) fn answered(&mut self, now: Instant) {
        let late = self.is_late(now);
        if self.ended.take().is_none() {
            return;
        }
        self.row = if late { 0 } else { self.row + 1 };
        if self.row >= FORGIVEN * self.needed {
            (self.needed, self.row) = ((self.needed / 2).max(FEWEST), self.needed);
        }
    }

    /// Returns true if it is too late for a prompt answer.
    #[inline]
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.ended.is_some_and(|at| now.saturating_duration_since(at) > AT_ONCE)
    }

    /// An answer was expected, and the acknowledgement had to go without it.
    pub(super) fn unanswered(&mut self) {
        self.needed = (self.needed * 2).min(MOST);
        (self.ended, self.row) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates prompt answers until another one is expected; returns their number.
    fn prompt_until_expected(ack_predictor: &mut AckPredictor, now: &mut Instant) -> u32 {
        let mut count = 0;
        while !ack_predictor.ended(*now) {
            *now += AT_ONCE;
            ack_predictor.answered(*now);
            count += 1;
        }
        count
    }

    #[test]
    fn a_row_of_prompt_answers_promises_another_and_a_broken_promise_costs_a_longer_row() {
        let (mut ack_predictor, mut now) = (AckPredictor::default(), Instant::now());
        let mut needed = FEWEST;
        for _ in 0..20 {
            assert_eq!(prompt_until_expected(&mut ack_predictor, &mut now), needed);
            assert!(!ack_predictor.is_late(now + AT_ONCE));
            now += AT_ONCE + Duration::from_micros(1);
            assert!(ack_predictor.is_late(now));
            ack_predictor.unanswered();
            assert!(!ack_predictor.is_late(now));
            needed = (2 * needed).min(MOST);
        }
        assert_eq!(needed, MOST);
        // All is forgiven, in the end.
        for _ in 0..2 * FORGIVEN * MOST {
            ack_predictor.ended(now);
            ack_predictor.answered(now);
        }
        assert_eq!(ack_predictor.needed, FEWEST);
    }

    #[test]
    fn late_or_missing_answers_reset_the_ack_predictor() {
        let (mut ack_predictor, mut now) = (AckPredictor::default(), Instant::now());
        for answers in [true, false].into_iter().cycle().take(20) {
            for _ in 0..FEWEST - 1 {
                assert!(!ack_predictor.ended(now));
                ack_predictor.answered(now);
            }
            assert!(!ack_predictor.ended(now));
            now += 2 * AT_ONCE;
            if answers {
                ack_predictor.answered(now);
            }
        }
        // A packet to a peer without an ended operation is no answer.
        ack_predictor.answered(now);
        assert!(!ack_predictor.ended(now));
        ack_predictor.answered(now);
        assert_eq!(prompt_until_expected(&mut ack_predictor, &mut now), FEWEST - 1);
    }
}
