//! Flags and queues between the links of a net and the net itself.
//!
//! The engine's lock guards both, so no thread waits for another one here, and the atomic operations
//! are plain loads and stores. Links and nets are `Send`, and this crate has no unsafe code:
//! therefore the shared state is `Sync` by its types.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Flag set by one of link and net, and read by the other.
#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    #[inline(always)]
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Queue from one of link and net to the other, with a flag for a cheap look.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
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

    /// Adds an item.
    pub(crate) fn push(&self, item: T) {
        self.items().push(item);
        self.has_items.set(true);
    }

    /// Returns true if [`take`](Self::take) has an item to return.
    #[inline(always)]
    pub(crate) fn has_items(&self) -> bool {
        self.has_items.get()
    }

    /// Takes all items, oldest first.
    pub(crate) fn take(&self) -> Vec<T> {
        if !self.has_items() {
            return Vec::new();
        }
        self.has_items.set(false);
        std::mem::take(&mut *self.items())
    }
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
