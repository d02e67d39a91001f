//! Open objects of one class by their handles.
use crate::answer::{DatResult, require_object};
use crate::handles::HandleTable;
use crate::layout::{Handle, HandleKind};
use std::collections::HashMap;

/// An object of an adaptor.
pub(crate) trait OfAdaptor {
    /// The handle of the adaptor.
    fn ia(&self) -> Handle;
}

/// Open objects of one class. Objects name each other by their handles, so a closed object is not
/// found instead of being a dangling pointer.
pub(crate) struct Handles<T>(HashMap<Handle, T>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Handles<T> {
    /// Opens an object, by a new handle of this provider.
    pub(crate) fn open(
        &mut self,
        handles: &mut HandleTable,
        (kind, provider): (HandleKind, usize),
        object: T,
    ) -> Handle {
        let handle = handles.open(kind, provider);
        self.0.insert(handle, object);
        handle
    }

    /// Adds an object with an open handle.
    pub(crate) fn insert(&mut self, handle: Handle, object: T) {
        self.0.insert(handle, object);
    }

    /// Finds an object, or fails with this subtype of DAT_INVALID_HANDLE.
    pub(crate) fn find(&mut self, handle: Handle, subtype: u32) -> DatResult<&mut T> {
        require_object(self.0.get_mut(&handle), subtype)
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<&T> {
        self.0.get(&handle)
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.0.get_mut(&handle)
    }

    pub(crate) fn contains(&self, handle: Handle) -> bool {
        self.0.contains_key(&handle)
    }

    /// Closes an object.
    pub(crate) fn close(&mut self, handles: &mut HandleTable, handle: Handle) -> Option<T> {
        let object = self.0.remove(&handle)?;
        handles.close(handle);
        Some(object)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.0.iter().map(|(handle, object)| (*handle, object))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    /// Returns the handles of the objects with a property.
    pub(crate) fn which(&self, property: impl Fn(&T) -> bool) -> Vec<Handle> {
        self.iter().filter(|(_, object)| property(object)).map(|(handle, _)| handle).collect()
    }
}

impl<T: OfAdaptor> Handles<T> {
    /// Returns true if any object belongs to this adaptor.
    pub(crate) fn has_of(&self, ia: Handle) -> bool {
        self.values().any(|object| object.ia() == ia)
    }

    /// Closes all objects of an adaptor.
    pub(crate) fn close_of(&mut self, handles: &mut HandleTable, ia: Handle) {
        for handle in self.which(|object| object.ia() == ia) {
            self.close(handles, handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(Handle);

    impl OfAdaptor for Thing {
        fn ia(&self) -> Handle {
            self.0
        }
    }

    #[test]
    fn closing_an_adaptor_closes_its_objects_only() {
        let (mut table, mut things) = (HandleTable::default(), Handles::default());
        let own = things.open(&mut table, (HandleKind::Pz, 1), Thing(7));
        let other = things.open(&mut table, (HandleKind::Pz, 1), Thing(8));
        assert!(things.has_of(7) && things.find(own, 0).is_ok());
        things.close_of(&mut table, 7);
        assert!(!things.has_of(7) && !things.contains(own) && things.contains(other));
        assert_eq!((table.kind(own), table.kind(other)), (None, Some(HandleKind::Pz)));
        assert!(things.close(&mut table, own).is_none());
    }
}
