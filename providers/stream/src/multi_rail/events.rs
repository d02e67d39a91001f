//! State shared by a transport and its links with frames. The engine's lock guards both.
use super::frame::RailOffer;
use super::rails::{RAILS_MAX, RailBits};
use crate::mailbox::Mailbox;
use ofi_provider::sys::Interest;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Request of a link to its transport.
#[derive(Debug)]
pub(super) enum HubRequest {
    /// The peer requests an offer.
    Offer,
    /// The peer offers to take further sockets.
    Dial(RailOffer),
    /// The wanted events have changed.
    Rewatch,
    /// The link is closed.
    Forget,
}

/// State shared by a transport and its links with frames.
#[derive(Debug, Default)]
pub(super) struct HubShared {
    /// Time of the last poll in nanoseconds.
    now: AtomicU64,
    /// Requests with the numbers of their links.
    pub(super) requests: Mailbox<(u32, HubRequest)>,
}

impl HubShared {
    /// Time of the last poll in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Stores the time of a poll.
    pub(super) fn set_now(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
    }
}

/// Event passed from the transport to a link.
#[derive(Debug)]
pub(super) enum RailEvent<L> {
    /// A further socket has joined.
    Joined(L),
    /// A control frame is to be sent.
    Frame(Vec<u8>),
}

/// State shared by a link and its transport.
#[derive(Debug)]
pub(super) struct LinkShared<L> {
    /// Sockets reported as readable.
    readable: AtomicU32,
    /// [`WantedEvents`] of the link.
    wanted: AtomicU64,
    pub(super) events: Mailbox<RailEvent<L>>,
}

impl<L> Default for LinkShared<L> {
    fn default() -> Self {
        let (readable, wanted) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { readable, wanted, events: Mailbox::default() }
    }
}

impl<L> LinkShared<L> {
    /// Reports sockets as readable.
    pub(super) fn set_readable(&self, rails: RailBits) {
        self.readable.fetch_or(rails, Ordering::Relaxed);
    }

    /// Takes the sockets reported as readable.
    pub(super) fn take_readable(&self) -> RailBits {
        self.readable.swap(0, Ordering::Relaxed)
    }

    /// Stores the events awaited by the link. Returns true if they have changed.
    pub(super) fn set_wanted(&self, wanted: WantedEvents) -> bool {
        self.wanted.swap(wanted.0, Ordering::Relaxed) != wanted.0
    }

    /// Returns the events awaited by the link.
    pub(super) fn wanted(&self) -> WantedEvents {
        WantedEvents(self.wanted.load(Ordering::Relaxed))
    }
}

/// Socket events awaited by a link, as one number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct WantedEvents(u64);

impl WantedEvents {
    const CONTROL: u64 = 1 << 32;
    const STAGED: u64 = 1 << 33;

    /// Creates the events of a link with `early` sockets, not to be read, and `full` ones, with space
    /// awaited by the sender.
    pub(super) fn new(early: RailBits, full: RailBits) -> Self {
        Self(u64::from(early) | u64::from(full) << RAILS_MAX)
    }

    /// Control frames wait for space.
    pub(super) fn set_control(&mut self, is_set: bool) {
        self.0 |= if is_set { Self::CONTROL } else { 0 };
    }

    /// Bytes of the stream are read ahead.
    pub(super) fn set_staged(&mut self, is_set: bool) {
        self.0 |= if is_set { Self::STAGED } else { 0 };
    }

    /// Returns true if bytes of the stream are read ahead.
    pub(super) fn has_staged(self) -> bool {
        self.0 & Self::STAGED != 0
    }

    /// Returns the events to be watched on one socket, for an engine awaiting `interest`.
    pub(super) fn of_rail(self, at: usize, interest: Interest) -> Interest {
        let is_early = self.0 >> at & 1 != 0;
        let is_full = self.0 >> (RAILS_MAX + at) & 1 != 0;
        // Without a full socket the engine waits for the first one.
        let any_full = self.0 >> RAILS_MAX & ((1 << RAILS_MAX) - 1) != 0;
        let waits = interest.write || self.0 & Self::CONTROL != 0;
        let write = waits && (is_full || (!any_full && at == 0));
        Interest { read: interest.read && !is_early, write }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_sockets_are_not_read_and_only_full_ones_are_waited_for() {
        let both = Interest { read: true, write: true };
        let wanted = WantedEvents::new(0b10, 0b100);
        assert_eq!(wanted.of_rail(0, both), Interest::READ);
        assert_eq!(wanted.of_rail(1, both), Interest::NONE);
        assert_eq!(wanted.of_rail(2, both), both);
        assert_eq!(WantedEvents::default().of_rail(0, both), both);
        assert_eq!(WantedEvents::default().of_rail(1, both), Interest::READ);
        let mut wanted = WantedEvents::new(0, 0b10);
        wanted.set_control(true);
        assert_eq!(wanted.of_rail(0, Interest::NONE), Interest::NONE);
        assert_eq!(wanted.of_rail(1, Interest::NONE), Interest { read: false, write: true });
    }
}
