//! Memory behind handles.
//!
//! `libdat2` finds the provider by dereferencing a handle, before any check of its validity. So
//! this memory is never freed, and a closed handle is reused only after many others.
use crate::layout::{Handle, HandleKind};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of closed handles before the oldest is reused.
const REST: usize = 1 << 14;

/// The first word is the provider, for `libdat2`.
#[repr(C, align(16))]
struct HandleHead {
    provider: AtomicUsize,
}

/// Open handles and their objects.
#[derive(Default)]
pub(crate) struct HandleTable {
    open: HashMap<Handle, (HandleKind, &'static HandleHead, u64)>,
    closed: VecDeque<&'static HandleHead>,
}

impl HandleTable {
    /// A new handle of an object of this provider's.
    pub(crate) fn open(&mut self, kind: HandleKind, provider: usize) -> Handle {
        let head = if self.closed.len() > REST { self.closed.pop_front() } else { None };
        let head = head
            .unwrap_or_else(|| Box::leak(Box::new(HandleHead { provider: AtomicUsize::new(0) })));
        head.provider.store(provider, Relaxed);
        let handle = std::ptr::from_ref(head).expose_provenance();
        self.open.insert(handle, (kind, head, 0));
        handle
    }

    /// Forgets a handle.
    pub(crate) fn close(&mut self, handle: Handle) {
        if let Some((_, head, _)) = self.open.remove(&handle) {
            self.closed.push_back(head);
        }
    }

    /// Returns the kind of an open handle's object.
    pub(crate) fn kind(&self, handle: Handle) -> Option<HandleKind> {
        self.open.get(&handle).map(|(kind, ..)| *kind)
    }

    /// Returns the application's word stored with an object.
    pub(crate) fn context(&mut self, handle: Handle) -> Option<&mut u64> {
        self.open.get_mut(&handle).map(|(.., context)| context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_rests_and_still_names_its_provider() {
        let mut table = HandleTable::default();
        let first = table.open(HandleKind::Pz, 4711);
        table.close(first);
        assert_eq!(table.kind(first), None);
        for _ in 0..REST {
            let next = table.open(HandleKind::Ep, 4711);
            assert_ne!(next, first);
            table.close(next);
        }
        assert_eq!(table.closed[0].provider.load(Relaxed), 4711);
        assert_eq!(table.open(HandleKind::Ep, 12), first);
        assert_eq!(table.kind(first), Some(HandleKind::Ep));
    }
}
