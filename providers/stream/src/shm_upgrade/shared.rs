//! State shared by the links of a net and the net itself.
//!
//! The engine's lock guards both, so no thread waits for another one here, and the atomic operations
//! are plain loads and stores. Links and nets are `Send`, and this crate has no unsafe code:
//! therefore the shared state is `Sync` by its types.
use crate::wire::LocalOffer;
use ofi_provider::error::Error;
use ofi_provider::shm_channel::ShmChannel;
use ofi_provider::shm_handshake::ShmPeer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Event of the shared-memory upgrade, passed from the net to a link.
#[derive(Debug)]
pub(super) enum UpgradeEvent {
    /// This end has requested the upgrade, and created this pipe.
    Requested(Box<ShmChannel>),
    /// The other end came: the pipe to it.
    Came(Box<ShmChannel>),
    /// The other end answered.
    Answered(ShmPeer),
    /// The other end is not met, for this reason.
    Failed(Error),
}

/// Flag set by one of link and net, and read by the other.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    #[inline(always)]
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn set(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Queue from one of link and net to the other, with a flag for a cheap look.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    has_items: Flag,
    items: Mutex<Vec<T>>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { has_items: Flag::default(), items: Mutex::default() }
    }
}

impl<T> Mailbox<T> {
    fn items(&self) -> MutexGuard<'_, Vec<T>> {
        self.items.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn push(&self, item: T) {
        self.items().push(item);
        self.has_items.set(true);
    }

    #[inline(always)]
    pub(super) fn has_items(&self) -> bool {
        self.has_items.get()
    }

    /// Takes all items, oldest first.
    pub(super) fn take(&self) -> Vec<T> {
        self.has_items.set(false);
        std::mem::take(&mut *self.items())
    }
}

/// State shared by a link and its net.
#[derive(Debug, Default)]
pub(super) struct LinkShared {
    pub(super) events: Mailbox<UpgradeEvent>,
    /// The poller reported the carrier connection.
    pub(super) carrier: Flag,
    /// Data of the other end may arrive through shared memory: it has access, or is about to get
    /// it.
    pub(super) may_receive: Flag,
    /// True if the last poll of the memory found nothing, or it is not read yet.
    pub(super) drained: Flag,
    /// Bytes leave through memory.
    pub(super) sends: Flag,
}

/// Request of a link to its net.
#[derive(Debug)]
pub(super) enum LinkRequest {
    /// The link with this number has ended.
    Forget(u32),
    /// The link with this number had enough traffic for the upgrade.
    Upgrade(u32, LocalOffer),
}

/// State shared by all links of a net and the net.
#[derive(Debug, Default)]
pub(super) struct NetShared {
    pub(super) requests: Mailbox<LinkRequest>,
    /// A link accepted nothing, so the engine makes a progress iteration
    /// ([`ShmTransport::is_due`](crate::transport::ShmTransport::is_due)).
    pub(super) is_due: Flag,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailbox_returns_items_in_order_and_is_empty_afterwards() {
        let mailbox = Mailbox::default();
        assert!(!mailbox.has_items() && mailbox.take().is_empty());
        mailbox.push(1);
        mailbox.push(2);
        assert!(mailbox.has_items());
        assert_eq!((mailbox.take(), mailbox.has_items()), (vec![1, 2], false));
    }
}
