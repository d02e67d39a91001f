//! Slots addressed by small reusable numbers.
use crate::error::{Error, Result};
use crate::heap;
use std::ops::{Index, IndexMut};

/// Index of no slot.
pub const NONE: u32 = u32::MAX;

/// Pool of values addressed by index. An index stays valid until its value is removed; the next
/// insertion then reuses it. There are no allocations once the pool has reached its largest size.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<Cell<T>>,
    free: u32,
    len: usize,
}

#[derive(Debug)]
enum Cell<T> {
    Used(T),
    Free(u32),
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NONE, len: 0 }
    }
}

impl<T> Slab<T> {
    /// Reserves capacity for this number of values in all, so their insertion does not allocate.
    /// Returns false without memory.
    pub fn make_space(&mut self, values: usize) -> bool {
        heap::ready().is_ok()
            && self.slots.try_reserve_exact(values.saturating_sub(self.slots.len())).is_ok()
    }

    /// Stores a value; returns its index.
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if self.free == NONE {
            self.slots.push(Cell::Used(value));
            return (self.slots.len() - 1) as u32;
        }
        let index = self.free;
        if let Cell::Free(next) = self.slots[index as usize] {
            self.free = next;
        }
        self.slots[index as usize] = Cell::Used(value);
        index
    }

    /// Stores a value created from its index and returns the index.
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let next = if self.free == NONE { self.slots.len() as u32 } else { self.free };
        self.insert(make(next))
    }

    /// Reserves space for `more` further values. Returns -FI_ENOMEM if there is no memory.
    pub fn try_reserve(&mut self, more: usize) -> Result {
        heap::ready()?;
        let free = self.slots.len() - self.len;
        self.slots.try_reserve(more.saturating_sub(free)).map_err(|_| Error::NOMEM)
    }

    /// Returns the maximum number of values at any time; all indices are below it.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Takes out the value at `index`, `None` if there is none.
    #[inline(always)]
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        if matches!(slot, Cell::Free(_)) {
            return None;
        }
        self.len -= 1;
        let old = std::mem::replace(slot, Cell::Free(self.free));
        self.free = index;
        match old {
            Cell::Used(value) => Some(value),
            Cell::Free(_) => None,
        }
    }

    /// The value at `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        match self.slots.get(index as usize) {
            Some(Cell::Used(value)) => Some(value),
            _ => None,
        }
    }

    /// The value at `index`, to change.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.slots.get_mut(index as usize) {
            Some(Cell::Used(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values with their indices, in the order of the indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| match slot {
            Cell::Used(value) => Some((index as u32, value)),
            Cell::Free(_) => None,
        })
    }

    /// Returns the indices of the values accepted by `is`, in order, for loops changing the slab.
    pub fn indices(&self, is: impl Fn(&T) -> bool) -> Vec<u32> {
        self.iter().filter(|(_, value)| is(value)).map(|(index, _)| index).collect()
    }

    /// All values to change, with their indices.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| match slot {
            Cell::Used(value) => Some((index as u32, value)),
            Cell::Free(_) => None,
        })
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        self.get(index).expect("a slab index is used only while its value lives")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index).expect("a slab index is used only while its value lives")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_indices_of_some_values_are_found_in_order() {
        let mut slab = Slab::default();
        let all: Vec<_> = (0..6).map(|n| slab.insert(n)).collect();
        slab.remove(all[2]);
        assert_eq!(slab.indices(|n| n % 2 == 0), [all[0], all[4]]);
        assert_eq!(slab.indices(|n| *n > 6), []);
    }

    #[test]
    fn an_index_is_reused_only_after_its_value_is_gone() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_ne!(a, b);
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.insert('c'), a);
        assert_eq!((slab[a], slab[b], slab.len()), ('c', 'b', 2));
    }
}
