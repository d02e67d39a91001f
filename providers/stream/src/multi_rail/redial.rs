//! Replacement of lost sockets of a link: times of the calls, and the log.
use crate::transport::ByteLink;
use ofi_provider::log::peer_text;
use std::fmt::Display;

/// Pause in nanoseconds after the first call without success, and its maximum.
const PAUSE_MIN: u64 = 20_000_000;
const PAUSE_MAX: u64 = 1_000_000_000;

/// Refused calls in succession, and the pause in nanoseconds between them, until the peer is known
/// to be gone: a single one may have been reset on its way.
const REJECTIONS: u32 = 3;
const REJECTION_PAUSE: u64 = 5_000_000;

/// Maximum number of joined sockets without a change of the link's sockets: the peer, or this process,
/// does not use them.
const JOINED_MAX: u32 = 2;

/// Next step of a [`Redial`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RedialAction {
    Wait,
    /// The peer is to be called.
    Dial,
    /// The time limit has passed.
    GiveUp,
}

/// Replacement of lost sockets of a link. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Redial {
    since: u64,
    /// Time of the next call, and the pause after it.
    at: u64,
    pause: u64,
    /// Time limit of a link without a socket.
    deadline: Option<u64>,
    rejections: u32,
    /// Sockets joined since the last change of the link's sockets.
    joined: u32,
}

impl Redial {
    /// Starts with a call at once.
    pub(super) fn new(now: u64) -> Self {
        Self { since: now, at: now, pause: PAUSE_MIN, deadline: None, rejections: 0, joined: 0 }
    }

    /// Time of the loss.
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    /// Sets the time limit, `limit` nanoseconds from now: the last socket is lost.
    pub(super) fn limit(&mut self, now: u64, limit: Option<u64>) {
        if let (Some(limit), None) = (limit, self.deadline) {
            self.deadline = Some(now.saturating_add(limit));
            (self.at, self.pause) = (now, PAUSE_MIN);
        }
    }

    /// Removes the time limit: the link has a socket again. Returns true if there was one.
    pub(super) fn end_outage(&mut self) -> bool {
        self.rejections = 0;
        self.deadline.take().is_some()
    }

    /// Records a joined socket.
    pub(super) fn add_joined(&mut self) {
        self.joined += 1;
    }

    /// Records a change of the link's sockets: one was opened or lost.
    pub(super) fn clear_joined(&mut self) {
        self.joined = 0;
    }

    /// Returns the next step. `is_dialing`: a call is under way.
    pub(super) fn next_action(&mut self, now: u64, is_dialing: bool) -> RedialAction {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return RedialAction::GiveUp;
        }
        if now < self.at {
            return RedialAction::Wait;
        }
        self.at = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        // A call without an answer may still succeed: a second one uses a new socket.
        let is_awaited = (is_dialing && self.pause < PAUSE_MAX) || self.joined >= JOINED_MAX;
        if is_awaited { RedialAction::Wait } else { RedialAction::Dial }
    }

    /// Records a refused call. Returns true if the peer is known to be gone.
    pub(super) fn refused(&mut self, now: u64) -> bool {
        self.rejections += 1;
        self.at = now + REJECTION_PAUSE;
        self.rejections >= REJECTIONS
    }

    /// Returns the time of the next step.
    pub(super) fn next_time(&self) -> u64 {
        self.deadline.map_or(self.at, |deadline| self.at.min(deadline))
    }
}

/// Logs the loss of a link's last socket.
#[cold]
pub(super) fn log_resuming<L: ByteLink>(peer: Option<String>) {
    ofi_provider::log_sparsely!(
        L::provider(),
        WARN,
        EP_CTRL,
        "the connection with {} is lost; resuming it",
        peer_text(peer)
    );
}

/// Logs a link with a socket again.
#[cold]
pub(super) fn log_resumed<L: ByteLink>(peer: Option<String>, nanos: u64, repeated: u64) {
    ofi_provider::log_sparsely!(
        L::provider(),
        WARN,
        EP_CTRL,
        "the connection with {} is resumed after {} ms; {repeated} bytes were sent again so far",
        peer_text(peer),
        nanos / 1_000_000
    );
}

/// Logs the end of a link because of its peer.
#[cold]
pub(super) fn log_given_up<L: ByteLink>(peer: Option<String>, why: &dyn Display) {
    ofi_provider::log_sparsely!(
        L::provider(),
        WARN,
        EP_CTRL,
        "the connection with {} is not resumed: {why}",
        peer_text(peer)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_repeated_with_growing_pauses_until_the_limit() {
        let mut redial = Redial::new(0);
        redial.limit(0, Some(10_000_000_000));
        let (mut now, mut calls) = (0, 0);
        while redial.next_action(now, false) != RedialAction::GiveUp {
            calls += 1;
            now = redial.next_time();
        }
        assert_eq!((now, calls), (10_000_000_000, 6 + 9));
    }

    #[test]
    fn unused_sockets_end_the_calls_until_one_is_opened_or_lost() {
        let mut redial = Redial::new(0);
        redial.add_joined();
        assert_eq!(redial.next_action(0, false), RedialAction::Dial);
        redial.add_joined();
        assert_eq!(redial.next_action(redial.next_time(), false), RedialAction::Wait);
        redial.clear_joined();
        assert_eq!(redial.next_action(redial.next_time(), false), RedialAction::Dial);
    }

    #[test]
    fn third_rejection_is_final() {
        let mut redial = Redial::new(0);
        assert_eq!(redial.next_action(0, false), RedialAction::Dial);
        assert!(!redial.refused(10));
        assert_eq!(redial.next_time(), 10 + REJECTION_PAUSE);
        assert!(!redial.refused(20));
        assert!(redial.refused(30));
    }
}
