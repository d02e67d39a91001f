//! Operations between their post and their completion.
use crate::fabric::LocalPieces;

/// The most operations of an endpoint or a shared queue.
pub(crate) const DTO_MAX: i32 = 1 << 14;

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedOp {
    pub(crate) cookie: u64,
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) length: u32,
    pub(crate) pieces: LocalPieces,
    /// Address and key of the accessed remote memory.
    pub(crate) remote: (u64, u64),
    /// True if it was posted to the provider.
    pub(crate) passed_on: bool,
}

/// Operations of a queue, each with a nonzero number.
pub(crate) struct PostedOps {
    ops: Vec<Option<(u64, PostedOp)>>,
    next: u64,
    free: Vec<usize>,
    used: usize,
    limit: usize,
}

impl PostedOps {
    /// Creates a queue for at most `limit` operations, allocated as they are posted.
    pub(crate) fn new(limit: usize) -> Self {
        Self { ops: Vec::new(), free: Vec::new(), next: 0, used: 0, limit }
    }

    /// Returns a queue of this capacity, allocated at once, or `None` without memory.
    pub(crate) fn ready(limit: usize) -> Option<Self> {
        let mut ops = Self::new(limit);
        ops.make_ready(limit)?;
        Some(ops)
    }

    /// Reserves space for `limit` operations.
    fn make_ready(&mut self, limit: usize) -> Option<()> {
        let more = limit.saturating_sub(self.ops.len());
        self.ops.try_reserve_exact(more).ok()?;
        // every number may be free at once
        self.free.try_reserve_exact(limit.saturating_sub(self.free.len())).ok()?;
        while self.ops.len() < limit {
            self.ops.push(None);
            self.free.push(self.ops.len());
        }
        Some(())
    }

    /// Returns the number of operations in flight.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns the maximum number of operations in flight.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Changes the maximum number, at least the current one, and allocates memory for it. Returns
    /// `None` without memory.
    pub(crate) fn resize(&mut self, limit: usize) -> Option<()> {
        self.make_ready(limit)?;
        self.limit = limit;
        Some(())
    }

    /// Stores an operation; `None` if there is no space.
    pub(crate) fn add(&mut self, op: PostedOp) -> Option<usize> {
        if self.used >= self.limit {
            return None;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len()
        });
        self.ops[number - 1] = Some((self.next, op));
        self.next += 1;
        self.used += 1;
        Some(number)
    }

    /// The operation of a number.
    pub(crate) fn get(&mut self, number: usize) -> Option<&mut PostedOp> {
        Some(&mut self.ops.get_mut(number.checked_sub(1)?)?.as_mut()?.1)
    }

    /// Forgets an operation.
    pub(crate) fn take(&mut self, number: usize) -> Option<PostedOp> {
        let (_, op) = self.ops.get_mut(number.checked_sub(1)?)?.take()?;
        self.used -= 1;
        self.free.push(number);
        Some(op)
    }

    /// Removes the operation posted first.
    pub(crate) fn take_oldest(&mut self) -> Option<PostedOp> {
        if self.used == 0 {
            return None;
        }
        let posted = |slot: &Option<(u64, PostedOp)>| slot.map_or(u64::MAX, |(posted, _)| posted);
        let (at, _) = self.ops.iter().enumerate().min_by_key(|(_, slot)| posted(slot))?;
        self.take(at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(cookie: u64) -> PostedOp {
        PostedOp {
            cookie,
            kind: 0,
            flags: 0,
            length: 0,
            pieces: LocalPieces::default(),
            remote: (0, 0),
            passed_on: false,
        }
    }

    #[test]
    fn numbers_are_given_up_to_the_limit_and_again_after_a_completion() {
        for ready in [false, true] {
            let mut ops = if ready { PostedOps::ready(2).unwrap() } else { PostedOps::new(2) };
            let (one, two) = (ops.add(op(1)).unwrap(), ops.add(op(2)).unwrap());
            assert!(one != two && one != 0 && two != 0);
            assert!(ops.add(op(3)).is_none());
            assert_eq!(ops.take(one).unwrap().cookie, 1);
            assert!(ops.take(one).is_none() && ops.take(0).is_none() && ops.take(99).is_none());
            assert!(ops.add(op(4)).is_some());
            assert!(ops.resize(3).is_some());
            assert!(ops.add(op(5)).is_some());
            assert!(ops.add(op(6)).is_none());
            for cookie in [2, 4, 5] {
                assert_eq!(ops.take_oldest().unwrap().cookie, cookie);
            }
            assert!(ops.take_oldest().is_none());
            assert_eq!(ops.used(), 0);
        }
    }

    #[test]
    fn impossible_queue_capacity_is_refused() {
        assert!(PostedOps::ready(usize::MAX / 2).is_none());
        let mut ops = PostedOps::ready(1).unwrap();
        assert!(ops.resize(usize::MAX / 2).is_none());
        assert_eq!(ops.limit(), 1);
    }

    #[test]
    fn queue_with_reserved_capacity_never_grows() {
        let mut ops = PostedOps::ready(8).unwrap();
        let capacity = (ops.ops.capacity(), ops.free.capacity());
        for round in 0..100 {
            let number = ops.add(op(round)).unwrap();
            ops.take(number).unwrap();
        }
        assert_eq!((ops.ops.capacity(), ops.free.capacity()), capacity);
    }
}
