//! A queue in a ring of slots.

/// Queue of values in a ring of slots, a power of two in number. A full ring doubles. Adding and
/// removing a value take a few instructions; growth is a separate function.
#[derive(Debug)]
pub(crate) struct RingQueue<T> {
    /// The values, the oldest at `head`, those behind it after it and around the end.
    slots: Box<[Option<T>]>,
    /// Number of values removed at the front, and number of values appended.
    head: usize,
    tail: usize,
}

/// The oldest value of a queue, in its place.
#[derive(Debug)]
pub(crate) struct FirstInRing<'a, T> {
    slot: &'a mut Option<T>,
    head: &'a mut usize,
}

impl<T> FirstInRing<'_, T> {
    /// The value.
    #[inline(always)]
    pub(crate) fn value(&self) -> Option<&T> {
        self.slot.as_ref()
    }

    /// Removes the value without dropping it: the caller has verified the absence of anything to
    /// drop.
    #[inline(always)]
    pub(crate) fn forget(self) {
        std::mem::forget(self.slot.take());
        *self.head = self.head.wrapping_add(1);
    }
}

/// Slots of a new queue.
const FIRST_SLOTS: usize = 16;

fn empty<T>(slots: usize) -> Box<[Option<T>]> {
    std::iter::repeat_with(|| None).take(slots).collect()
}

/// Slot behind the last value of a ring.
pub(crate) struct VacantSlot<'a, T> {
    slot: &'a mut Option<T>,
    tail: &'a mut usize,
}

impl<T> VacantSlot<'_, T> {
    /// Adds the value.
    #[inline(always)]
    pub(crate) fn put(self, value: T) {
        // There is nothing in a slot behind the last value, and so nothing to drop.
        std::mem::forget(self.slot.replace(value));
        *self.tail = self.tail.wrapping_add(1);
    }
}

impl<T> Default for RingQueue<T> {
    fn default() -> Self {
        Self { slots: empty(FIRST_SLOTS), head: 0, tail: 0 }
    }
}

impl<T> RingQueue<T> {
    /// The slot of the value at this place, counted from the oldest.
    #[inline(always)]
    fn slot(&self, index: usize) -> usize {
        self.head.wrapping_add(index) & (self.slots.len() - 1)
    }

    /// Returns the number of values.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    /// Adds a value behind the others.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) {
        if self.is_full() {
            self.grow();
        }
        if let Some(vacant) = self.vacant() {
            vacant.put(value);
        }
    }

    /// Returns the slot behind the last value; `None` if the ring has to grow.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<VacantSlot<'_, T>> {
        if self.is_full() {
            return None;
        }
        let Self { slots, tail, .. } = self;
        let slot = *tail & slots.len().wrapping_sub(1);
        slots.get_mut(slot).map(|slot| VacantSlot { slot, tail })
    }

    /// Returns true if the ring has to grow for the next value.
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.len() == self.slots.len()
    }

    #[cold]
    fn grow(&mut self) {
        let mut slots = empty(self.slots.len() * 2);
        for (index, to) in slots.iter_mut().enumerate().take(self.len()) {
            let from = self.slot(index);
            *to = self.slots[from].take();
        }
        (self.slots, self.head, self.tail) = (slots, 0, self.len());
    }

    /// The oldest value.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&T> {
        self.slots[self.slot(0)].as_ref()
    }

    /// Returns the oldest value for examination and optional removal with a single lookup.
    #[inline(always)]
    pub(crate) fn first(&mut self) -> Option<FirstInRing<'_, T>> {
        let slot = self.slot(0);
        let Self { slots, head, .. } = self;
        let slot = &mut slots[slot];
        slot.is_some().then_some(FirstInRing { slot, head })
    }

    /// The values, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|index| self.slots[self.slot(index)].as_ref())
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.slots.swap(self.slot(one), self.slot(other));
    }

    /// Inserts a value before all values accepted by `is_behind`.
    pub(crate) fn insert(&mut self, value: T, is_behind: impl Fn(&T) -> bool) {
        let index = self.iter().position(is_behind).unwrap_or(self.len());
        if self.len() == self.slots.len() {
            self.grow();
        }
        // Those before it, mostly none, move down by one.
        self.head = self.head.wrapping_sub(1);
        let first = self.slot(0);
        self.slots[first] = Some(value);
        (0..index).for_each(|index| self.swap(index, index + 1));
    }

    /// Removes the oldest value accepted by `wanted` among the first `most`.
    pub(crate) fn take(&mut self, most: usize, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let index = self.iter().take(most).position(wanted)?;
        // Those before it move up by one.
        (0..index).rev().for_each(|index| self.swap(index, index + 1));
        let first = self.slot(0);
        let taken = self.slots[first].take();
        self.head = self.head.wrapping_add(1);
        taken
    }

    /// Takes out all values, oldest first.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        let mut all = std::mem::take(self);
        std::iter::from_fn(move || all.take(1, |_| true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn ring_queue_behaves_like_vec_deque() {
        let mut random = 7_u32;
        let mut next = |n: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % n
        };
        let (mut queue, mut model) = (RingQueue::<String>::default(), VecDeque::<String>::new());
        let mut longest = 0;
        for step in 0..20_000 {
            match next(7) {
                0..=2 => {
                    let value = format!("{}{step}", next(9));
                    queue.push(value.clone());
                    model.push_back(value);
                }
                3 => {
                    let value = format!("{}{step}", next(9));
                    let before = |one: &String| one[..1] > value[..1];
                    let index = model.iter().position(before).unwrap_or(model.len());
                    queue.insert(value.clone(), before);
                    model.insert(index, value);
                }
                4 => {
                    let first = queue.first();
                    assert_eq!(first.as_ref().and_then(|first| first.value()), model.front());
                    if let Some(first) = first.filter(|_| next(4) > 0) {
                        drop(first.slot.clone());
                        *first.slot = Some(String::new());
                        first.forget();
                        model.pop_front();
                    }
                }
                5 => {
                    let wanted = next(9).to_string();
                    let most = next(50) as usize;
                    let index = model.iter().take(most).position(|one| one.starts_with(&wanted));
                    let expected = index.and_then(|index| model.remove(index));
                    assert_eq!(queue.take(most, |one| one.starts_with(&wanted)), expected);
                }
                _ if next(50) == 0 => {
                    assert!(queue.drain().eq(model.drain(..)));
                }
                _ => {}
            }
            longest = longest.max(queue.len());
            assert_eq!(queue.len(), model.len());
            assert_eq!(queue.front(), model.front());
            assert!(queue.iter().eq(model.iter()));
        }
        assert!(longest > 4 * FIRST_SLOTS, "{longest}");
    }
}
