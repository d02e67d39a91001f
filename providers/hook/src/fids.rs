//! Mapping between the objects of the program and the objects of the provider.
//!
//! A wrapped object is identified only by its address, so a foreign object is never accessed. Hooks
//! in a stack each know their own layer.
use core::ptr;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Addresses of objects, in both directions.
#[derive(Default)]
struct Fids {
    inner: HashMap<usize, usize>,
    outer: HashMap<usize, usize>,
}

static FIDS: RwLock<Option<Fids>> = RwLock::new(None);

fn read() -> RwLockReadGuard<'static, Option<Fids>> {
    FIDS.read().unwrap_or_else(PoisonError::into_inner)
}

/// `outer` stands for `inner` from now on.
pub(crate) fn add<C>(outer: *const C, inner: *const C) {
    let mut fids = FIDS.write().unwrap_or_else(PoisonError::into_inner);
    let fids = fids.get_or_insert_default();
    fids.inner.insert(outer.addr(), inner.expose_provenance());
    fids.outer.insert(inner.addr(), outer.expose_provenance());
}

/// Removes the closed `outer`. Its provider may have opened another object at the address of the
/// inner one since; the entry of that object stays.
pub(crate) fn remove<C>(outer: *const C) {
    let mut fids = FIDS.write().unwrap_or_else(PoisonError::into_inner);
    let fids = fids.get_or_insert_default();
    if let Some(inner) = fids.inner.remove(&outer.addr()) {
        if fids.outer.get(&inner) == Some(&outer.addr()) {
            fids.outer.remove(&inner);
        }
    }
}

/// The provider's object behind one of the program's; any other is itself.
pub(crate) fn inner<C>(outer: *mut C) -> *mut C {
    let fids = read();
    let inner = fids.as_ref().and_then(|fids| fids.inner.get(&outer.addr()));
    inner.map_or(outer, |inner| ptr::with_exposed_provenance_mut(*inner))
}

/// The program's object in front of one of the provider's, if there is one.
pub(crate) fn outer<C>(inner: *mut C) -> Option<*mut C> {
    let fids = read();
    let outer = fids.as_ref().and_then(|fids| fids.outer.get(&inner.addr()));
    outer.map(|outer| ptr::with_exposed_provenance_mut(*outer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_in_both_directions_until_they_are_closed() {
        let mut objects = [0_u64; 4];
        let [top, middle, bottom, foreign] = objects.each_mut().map(ptr::from_mut);
        add(middle, bottom);
        add(top, middle);
        assert_eq!((inner(top), inner(middle), inner(foreign)), (middle, bottom, foreign));
        assert_eq!((outer(bottom), outer(middle), outer(top)), (Some(middle), Some(top), None));
        remove(top);
        assert_eq!((inner(top), outer(middle)), (top, None));
        remove(middle);
        assert_eq!(outer(bottom), None);
    }

    #[test]
    fn new_object_at_a_reused_address_survives_the_old_close() {
        let mut objects = [0_u64; 3];
        let [old, new, bottom] = objects.each_mut().map(ptr::from_mut);
        add(old, bottom);
        add(new, bottom);
        remove(old);
        assert_eq!(outer(bottom), Some(new));
        remove(new);
    }
}
