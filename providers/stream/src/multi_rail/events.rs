//! State shared by a transport and its links with frames. The engine's lock guards both.
use super::frame::RailOffer;
use super::rails::{RAILS_MAX, RailBits, RailChange};
use super::send_log::LogMemory;
use crate::mailbox::Mailbox;
use ofi_provider::sys::Interest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Request of a link to its transport.
#[derive(Debug)]
pub(super) enum HubRequest<L> {
    /// The peer requests an offer.
    Offer,
    /// The peer offers to take further sockets.
    Offered(RailOffer),
    /// Further sockets are to be connected.
    Dial,
    /// A socket is lost or stalled, or carries the stream again.
    Change(RailChange<L>),
    /// The peer may be gone: it is to be called.
    Verify,
    /// The peer is gone for certain: a link without a socket ends.
    GiveUp,
    /// The wanted events have changed.
    Rewatch,
    /// The link is closed.
    Forget,
}

/// State shared by a transport and its links with frames.
#[derive(Debug)]
pub(super) struct HubShared<L> {
    /// Time of the last poll in nanoseconds.
    now: AtomicU64,
    /// Requests with the numbers of their links.
    pub(super) requests: Mailbox<(u32, HubRequest<L>)>,
    /// Memory for bytes to be sent again.
    pub(super) log_memory: Arc<LogMemory>,
}

impl<L> HubShared<L> {
    pub(super) fn new(log_memory: usize) -> Self {
        Self {
            now: AtomicU64::new(0),
            requests: Mailbox::default(),
            log_memory: Arc::new(LogMemory::new(log_memory)),
        }
    }

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
    /// A further socket has joined, with this number.
    Joined(usize, L),
    /// A control frame is to be sent.
    Frame(Vec<u8>),
    /// Progress is to be checked.
    Check,
    /// The peer is gone, or was not reached in time.
    GiveUp,
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
    const UNACKNOWLEDGED: u64 = 1 << 34;
    const BLOCKED: u64 = 1 << 35;
    const PRIMARY_SHIFT: u32 = 36;

    /// Creates the events of a link with `early` sockets, not to be read, and `full` ones, with space
    /// awaited by the sender; without any, it awaits space on the socket `primary`.
    pub(super) fn new(early: RailBits, full: RailBits, primary: usize) -> Self {
        let primary = (primary as u64) << Self::PRIMARY_SHIFT;
        Self(u64::from(early) | u64::from(full) << RAILS_MAX | primary)
    }

    fn set(&mut self, flag: u64, is_set: bool) {
        self.0 |= if is_set { flag } else { 0 };
    }

    /// Control frames wait for space.
    pub(super) fn set_control(&mut self, is_set: bool) {
        self.set(Self::CONTROL, is_set);
    }

    /// Bytes of the stream are read ahead.
    pub(super) fn set_staged(&mut self, is_set: bool) {
        self.set(Self::STAGED, is_set);
    }

    /// The peer has not acknowledged everything.
    pub(super) fn set_unacknowledged(&mut self, is_set: bool) {
        self.set(Self::UNACKNOWLEDGED, is_set);
    }

    /// Sends of the engine do not wait for space in a socket.
    pub(super) fn set_blocked(&mut self, is_set: bool) {
        self.set(Self::BLOCKED, is_set);
    }

    /// Returns true if the peer has not acknowledged everything.
    pub(super) fn has_unacknowledged(self) -> bool {
        self.0 & Self::UNACKNOWLEDGED != 0
    }

    /// Returns true if bytes of the stream are read ahead.
    pub(super) fn has_staged(self) -> bool {
        self.0 & Self::STAGED != 0
    }

    /// Returns the events to be watched on one socket, for an engine awaiting `interest`.
    pub(super) fn of_rail(self, at: usize, interest: Interest) -> Interest {
        let is_early = self.0 >> at & 1 != 0;
        let is_full = self.0 >> (RAILS_MAX + at) & 1 != 0;
        // Without a full socket the engine waits for the one of small sends.
        let any_full = self.0 >> RAILS_MAX & ((1 << RAILS_MAX) - 1) != 0;
        let is_blocked = self.0 & Self::BLOCKED != 0;
        let waits = (interest.write && !is_blocked) || self.0 & Self::CONTROL != 0;
        let primary = (self.0 >> Self::PRIMARY_SHIFT) as usize;
        let write = waits && (is_full || (!any_full && at == primary));
        Interest { read: interest.read && !is_early, write }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_sockets_are_not_read_and_only_full_ones_are_waited_for() {
        let both = Interest { read: true, write: true };
        let wanted = WantedEvents::new(0b10, 0b100, 0);
        assert_eq!(wanted.of_rail(0, both), Interest::READ);
        assert_eq!(wanted.of_rail(1, both), Interest::NONE);
        assert_eq!(wanted.of_rail(2, both), both);
        assert_eq!(WantedEvents::default().of_rail(0, both), both);
        assert_eq!(WantedEvents::default().of_rail(1, both), Interest::READ);
        let mut wanted = WantedEvents::new(0, 0b10, 0);
        wanted.set_control(true);
        assert_eq!(wanted.of_rail(0, Interest::NONE), Interest::NONE);
        assert_eq!(wanted.of_rail(1, Interest::NONE), Interest { read: false, write: true });
    }
    #[test]
    fn blocked_sends_wait_for_no_socket_and_control_frames_for_the_one_of_small_sends() {
        let both = Interest { read: true, write: true };
        let mut wanted = WantedEvents::new(0, 0, 3);
        assert_eq!((wanted.of_rail(0, both), wanted.of_rail(3, both)), (Interest::READ, both));
        wanted.set_blocked(true);
        assert_eq!(wanted.of_rail(3, both), Interest::READ);
        wanted.set_control(true);
        assert_eq!(wanted.of_rail(3, both), both);
    }
}
