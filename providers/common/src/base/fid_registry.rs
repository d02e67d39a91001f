//! Rust values of open C objects.
//!
//! A pointer from the application is looked up here before its use, so a stale or invented one is an
//! error and not a crash.
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Values by the address of their fid, for the whole process.
///
/// The lock is innermost: it is held within the methods, and a closure called with it held calls no
/// method of this registry and takes no lock of an engine. Removed values are dropped or returned
/// after its release, so their destructors may take any lock.
#[derive(Debug)]
pub(crate) struct FidRegistry<T> {
    entries: Mutex<Entries<T>>,
}

#[derive(Debug)]
struct Entries<T> {
    by_fid: BTreeMap<usize, RegisteredValue<T>>,
    /// Number of insertions.
    inserted: u64,
}

#[derive(Debug)]
struct RegisteredValue<T> {
    /// Number of earlier insertions.
    order: u64,
    value: T,
}

impl<T> FidRegistry<T> {
    /// Creates an empty registry.
    pub(crate) const fn new() -> Self {
        Self { entries: Mutex::new(Entries { by_fid: BTreeMap::new(), inserted: 0 }) }
    }

    fn entries(&self) -> MutexGuard<'_, Entries<T>> {
        // Each change of the entries is complete even if a closure panics.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the value of an open object; replaces the value of a closed one at this address.
    pub(crate) fn insert(&self, fid: usize, value: T) {
        let mut entries = self.entries();
        let order = entries.inserted;
        entries.inserted += 1;
        let replaced = entries.by_fid.insert(fid, RegisteredValue { order, value });
        drop(entries);
        drop(replaced);
    }

    /// Removes the value of an object.
    pub(crate) fn remove(&self, fid: usize) -> Option<T> {
        let removed = self.entries().by_fid.remove(&fid);
        removed.map(|removed| removed.value)
    }

    /// Removes the value of an object if `check` succeeds; otherwise returns the error of `check`.
    /// Returns `None` for an unknown object.
    pub(crate) fn remove_if<R, E>(
        &self,
        fid: usize,
        check: impl FnOnce(&T) -> Result<R, E>,
    ) -> Option<Result<R, E>> {
        let mut entries = self.entries();
        let Entry::Occupied(entry) = entries.by_fid.entry(fid) else { return None };
        let checked = check(&entry.get().value);
        let removed = checked.is_ok().then(|| entry.remove());
        drop(entries);
        drop(removed);
        Some(checked)
    }

    /// Removes the values of all objects refused by `keep`.
    pub(crate) fn retain(&self, mut keep: impl FnMut(usize, &mut T) -> bool) {
        let mut entries = self.entries();
        let refused = entries.by_fid.iter_mut().filter_map(|(fid, entry)| {
            let is_refused = !keep(*fid, &mut entry.value);
            is_refused.then_some(*fid)
        });
        let refused: Vec<_> = refused.collect();
        let removed: Vec<_> = refused.into_iter().map(|fid| entries.by_fid.remove(&fid)).collect();
        drop(entries);
        drop(removed);
    }

    /// Calls `at` with the value of an object, which is not removed meanwhile. Returns `None` for an
    /// unknown object.
    pub(crate) fn with<R>(&self, fid: usize, at: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.entries().by_fid.get_mut(&fid).map(|entry| at(&mut entry.value))
    }
}

impl<T: Clone> FidRegistry<T> {
    /// Returns the value of an object.
    pub(crate) fn get(&self, fid: usize) -> Option<T> {
        self.with(fid, |value| value.clone())
    }

    /// Returns all objects and their values, in the order of insertion.
    pub(crate) fn all(&self) -> Vec<(usize, T)> {
        let entries = self.entries();
        let mut all: Vec<_> = entries.by_fid.iter().collect();
        all.sort_by_key(|(_, entry)| entry.order);
        all.into_iter().map(|(fid, entry)| (*fid, entry.value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn values_are_found_until_they_are_removed() {
        let registry = FidRegistry::new();
        assert_eq!((registry.get(8), registry.remove(8)), (None, None));
        registry.insert(8, 'a');
        registry.insert(16, 'b');
        assert_eq!(
            (registry.get(8), registry.get(16), registry.get(9)),
            (Some('a'), Some('b'), None)
        );
        assert_eq!(registry.with(16, |value| std::mem::replace(value, 'c')), Some('b'));
        assert_eq!((registry.remove(16), registry.get(16)), (Some('c'), None));
        registry.insert(8, 'd');
        assert_eq!(registry.all(), [(8, 'd')]);
    }

    #[test]
    fn values_are_listed_in_the_order_of_insertion() {
        let registry = FidRegistry::new();
        for fid in [24, 8, 16, 32] {
            registry.insert(fid, fid + 1);
        }
        registry.insert(24, 0);
        registry.retain(|fid, value| {
            *value += 1;
            fid != 8
        });
        assert_eq!(registry.all(), [(16, 18), (32, 34), (24, 1)]);
    }

    #[test]
    fn a_failing_check_keeps_the_value() {
        let registry = FidRegistry::new();
        registry.insert(8, 1);
        assert_eq!(registry.remove_if(8, |value| Err::<(), _>(*value)), Some(Err(1)));
        assert_eq!(registry.remove_if(8, |value| Ok::<_, ()>(*value)), Some(Ok(1)));
        assert_eq!(registry.remove_if(8, |value| Ok::<_, ()>(*value)), None);
    }

    /// Value with a destructor using the registry.
    struct Nested(Arc<FidRegistry<Nested>>, usize);

    impl Drop for Nested {
        fn drop(&mut self) {
            self.0.remove(self.1);
        }
    }

    #[test]
    fn destructors_of_removed_values_may_use_the_registry() {
        let registry = Arc::new(FidRegistry::new());
        for fid in [1, 2, 3, 4, 1] {
            registry.insert(fid, Nested(registry.clone(), fid + 1));
        }
        // The replaced value removed the next one.
        assert!(registry.with(2, |_| ()).is_none());
        registry.insert(2, Nested(registry.clone(), 9));
        assert_eq!(registry.remove_if(1, |_| Ok::<_, ()>(())), Some(Ok(())));
        assert!(registry.with(2, |_| ()).is_none());
        registry.retain(|fid, _| fid != 3);
        assert!(registry.with(4, |_| ()).is_none());
    }

    #[test]
    fn panic_of_a_closure_leaves_the_registry_usable() {
        let registry = FidRegistry::new();
        registry.insert(8, 1);
        let panicked = std::panic::catch_unwind(|| registry.with(8, |_| panic!("of the test")));
        assert!(panicked.is_err());
        assert_eq!(registry.get(8), Some(1));
    }
}
