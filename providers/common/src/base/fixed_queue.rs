//! A queue of a fixed size.

/// A queue of at most `N` values, a power of two. Adding a value never moves the others, which keeps it short: a
/// growing queue spends most of a posted receive's time on how it would grow.
#[derive(Debug)]
pub(crate) struct FixedQueue<T, const N: usize> {
    /// The values, the oldest at `head`, those behind it after it and around the end.
    slots: Box<[Option<T>; N]>,
    /// Counts the values taken out at the front.
    head: usize,
    len: usize,
}

impl<T, const N: usize> FixedQueue<T, N> {
    const MASK: usize = {
        assert!(N.is_power_of_two());
        N - 1
    };

    /// An empty queue.
    pub(crate) fn new() -> Self {
        Self { slots: Box::new([const { None }; N]), head: 0, len: 0 }
    }

    /// How many values there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a value behind the others; the value if there is no room.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if self.len == N {
            return Err(value);
        }
        self.slots[self.head.wrapping_add(self.len) & Self::MASK] = Some(value);
        self.len += 1;
        Ok(())
    }

    /// The oldest value.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&T> {
        self.slots[self.head & Self::MASK].as_ref()
    }

    /// Drops the oldest value.
    #[inline(always)]
    pub(crate) fn drop_front(&mut self) {
        if self.slots[self.head & Self::MASK].take().is_some() {
            self.head = self.head.wrapping_add(1);
            self.len -= 1;
        }
    }

    /// The values, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).filter_map(|place| self.at(place).as_ref())
    }

    fn at(&self, place: usize) -> &Option<T> {
        &self.slots[self.head.wrapping_add(place) & Self::MASK]
    }

    fn swap(&mut self, one: usize, other: usize) {
        let slot = |place| self.head.wrapping_add(place) & Self::MASK;
        self.slots.swap(slot(one), slot(other));
    }

    /// Adds a value before all for which `is_behind`; the value if there is no room.
    pub(crate) fn insert(&mut self, value: T, is_behind: impl Fn(&T) -> bool) -> Result<(), T> {
        let place = self.iter().position(is_behind).unwrap_or(self.len);
        self.push(value)?;
        (place..self.len - 1).rev().for_each(|place| self.swap(place, place + 1));
        Ok(())
    }

    /// Takes out the oldest value that is `wanted`.
    pub(crate) fn take(&mut self, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let place = self.iter().position(wanted)?;
        // Those before it move up by one.
        (0..place).rev().for_each(|place| self.swap(place, place + 1));
        let taken = self.slots[self.head & Self::MASK].take();
        self.head = self.head.wrapping_add(1);
        self.len -= 1;
        taken
    }

    /// Takes out all values, oldest first.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.take(|_| true)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn it_does_what_a_growing_queue_does_until_it_is_full() {
        let mut random = 7_u32;
        let mut next = |n: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % n
        };
        let (mut queue, mut model) = (FixedQueue::<String, 8>::new(), VecDeque::<String>::new());
        for step in 0..20_000 {
            match next(6) {
                0 | 1 => {
                    let full = model.len() == 8;
                    let value = format!("{}{step}", next(9));
                    assert_eq!(queue.push(value.clone()).err(), full.then(|| value.clone()));
                    if !full {
                        model.push_back(value);
                    }
                }
                2 => {
                    let (full, value) = (model.len() == 8, format!("{}{step}", next(9)));
                    let before = |one: &String| one[..1] > value[..1];
                    let place = model.iter().position(before).unwrap_or(model.len());
                    assert_eq!(queue.insert(value.clone(), before).is_err(), full);
                    if !full {
                        model.insert(place, value);
                    }
                }
                3 => {
                    queue.drop_front();
                    model.pop_front();
                }
                4 => {
                    let wanted = next(9).to_string();
                    let place = model.iter().position(|one| one.starts_with(&wanted));
                    let expected = place.and_then(|place| model.remove(place));
                    assert_eq!(queue.take(|one| one.starts_with(&wanted)), expected);
                }
                _ if next(50) == 0 => {
                    assert!(queue.drain().into_iter().eq(model.drain(..)));
                }
                _ => {}
            }
            assert_eq!(queue.len(), model.len());
            assert_eq!(queue.front(), model.front());
            assert!(queue.iter().eq(model.iter()));
        }
    }
}
