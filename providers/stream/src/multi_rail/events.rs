//! State shared by a transport and its links with frames. The engine's lock guards both.
use super::frame::RailOffer;
use super::rails::RailChange;
use super::send_log::LogMemory;
use super::wanted::{RailBits, WantedEvents};
use crate::mailbox::Mailbox;
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
    /// The offer of this end is to be sent, a whole frame.
    Offer(Vec<u8>),
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
        match self.readable.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.readable.swap(0, Ordering::Relaxed),
        }
    }

    /// Stores the events awaited by the link. Returns true if they have changed.
    pub(super) fn set_wanted(&self, wanted: WantedEvents) -> bool {
        let is_changed = self.wanted.load(Ordering::Relaxed) != wanted.0;
        if is_changed {
            self.wanted.store(wanted.0, Ordering::Relaxed);
        }
        is_changed
    }

    /// Returns the events awaited by the link.
    pub(super) fn wanted(&self) -> WantedEvents {
        WantedEvents(self.wanted.load(Ordering::Relaxed))
    }
}
