//! Transfers in flight of a completion queue.
use super::memory::CoreBuf;
use crate::slab::{NONE, Slab};
use crate::slot_context::{self, MAX_SERIAL, MAX_SLOTS};

/// A transfer under way.
#[derive(Debug)]
pub(super) struct InFlightOp {
    /// Internal buffer of the transfer, if any.
    buf: Option<CoreBuf>,
    token: u64,
    /// The endpoint or shared receive context the transfer was posted to.
    owner: u32,
    kind: CoreOpKind,
    /// Distinguishes the transfer from earlier ones in the same slot.
    number: u32,
    /// Neighbours in the list of its owner's transfers.
    prev: u32,
    next: u32,
}

impl InFlightOp {
    /// Returns the number of the endpoint or shared receive context the transfer was posted to.
    #[inline(always)]
    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns the internal buffer of the transfer.
    #[inline(always)]
    pub(super) fn buf(&self) -> Option<&CoreBuf> {
        self.buf.as_ref()
    }

    /// Returns the transfer's token and its internal buffer.
    #[inline]
    pub(super) fn into_parts(self) -> (u64, Option<CoreBuf>) {
        (self.token, self.buf)
    }

    /// Leaks the internal buffer.
    pub(super) fn leak_buf(&mut self) {
        std::mem::forget(self.buf.take());
    }
}

/// Share of a completion queue available to a kind of transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CoreOpKind {
    /// Anything but a receive: all free entries.
    Transfer,
    /// First receive of an endpoint, without which nothing can arrive: up to half of the queue.
    FirstRecv,
    /// A further receive of its endpoint: up to a quarter.
    MoreRecv,
}

/// Transfers in flight, never more than entries of the queue, because a core provider need not
/// store excess ones.
#[derive(Debug, Default)]
pub(super) struct InFlightOps {
    slab: Slab<InFlightOp>,
    /// The last transfer of each owner.
    owners: Slab<u32>,
    numbers: u32,
    /// Entries of the queue.
    capacity: usize,
    /// Number of receives among the transfers.
    receives: usize,
}

impl InFlightOps {
    /// Returns the transfers of a queue with this number of entries.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, ..Default::default() }
    }

    /// Returns the number of another owner, until [`take_all`](Self::take_all).
    pub(super) fn add_owner(&mut self) -> u32 {
        self.owners.insert(NONE)
    }

    /// Returns the number of entries of the queue.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of transfers in flight.
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns true if an owner has transfers other than receives.
    pub(super) fn has_transfers(&self, owner: u32) -> bool {
        self.of(owner).any(|(_, flight)| flight.kind == CoreOpKind::Transfer)
    }

    #[inline]
    pub(super) fn add(
        &mut self,
        buf: Option<CoreBuf>,
        token: u64,
        owner: u32,
        kind: CoreOpKind,
    ) -> core::result::Result<usize, Option<CoreBuf>> {
        let fits = self.slab.len() < self.capacity.min(MAX_SLOTS)
            && match kind {
                CoreOpKind::Transfer => true,
                CoreOpKind::FirstRecv => self.receives < self.capacity / 2,
                CoreOpKind::MoreRecv => self.receives < self.capacity / 4,
            };
        if !fits {
            return Err(buf);
        }
        self.receives += usize::from(kind != CoreOpKind::Transfer);
        // Never 0, so that no context is null.
        self.numbers = (self.numbers.wrapping_add(1) & MAX_SERIAL).max(1);
        let number = self.numbers;
        let prev = self.owners.get(owner).copied().unwrap_or(NONE);
        let flight = InFlightOp { buf, token, owner, kind, number, prev, next: NONE };
        let id = self.slab.insert(flight);
        if let Some(prev) = self.slab.get_mut(prev) {
            prev.next = id;
        }
        if let Some(last) = self.owners.get_mut(owner) {
            *last = id;
        }
        Ok(slot_context::join(number, id))
    }

    /// Returns the transfer named by a completion's context, if it is in flight.
    #[inline(always)]
    pub(super) fn get(&self, context: usize) -> Option<&InFlightOp> {
        let (number, id) = slot_context::split(context);
        self.slab.get(id).filter(|flight| flight.number == number)
    }

    /// Removes the transfer named by a completion's context.
    #[inline]
    pub(super) fn take(&mut self, context: usize) -> Option<InFlightOp> {
        self.get(context)?;
        self.remove(slot_context::split(context).1)
    }

    #[inline]
    fn remove(&mut self, id: u32) -> Option<InFlightOp> {
        let flight = self.slab.remove(id)?;
        self.receives -= usize::from(flight.kind != CoreOpKind::Transfer);
        if let Some(prev) = self.slab.get_mut(flight.prev) {
            prev.next = flight.next;
        }
        if let Some(next) = self.slab.get_mut(flight.next) {
            next.prev = flight.prev;
        } else if let Some(last) = self.owners.get_mut(flight.owner) {
            *last = flight.prev;
        }
        Some(flight)
    }

    /// The transfers of one owner, the last first.
    fn of(&self, owner: u32) -> impl Iterator<Item = (u32, &InFlightOp)> {
        let mut id = self.owners.get(owner).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let this = id;
            let flight = self.slab.get(this)?;
            id = flight.prev;
            Some((this, flight))
        })
    }

    /// Removes all transfers of one owner, in the order of their posting; the owner posts no more.
    pub(super) fn take_all(&mut self, owner: u32) -> Vec<InFlightOp> {
        let mut ids: Vec<_> = self.of(owner).map(|(id, _)| id).collect();
        ids.reverse();
        let flights = ids.into_iter().filter_map(|id| self.remove(id)).collect();
        self.owners.remove(owner);
        flights
    }
}

#[cfg(test)]
mod tests;
