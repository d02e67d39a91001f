//! The entries of a completion queue.
use crate::completion::{Completion, CompletionError};
use crate::error::{Error, Result};
use std::alloc::Layout;
use std::collections::VecDeque;

/// Entries of a queue: a ring, a list behind it, and errors.
#[derive(Debug)]
pub(super) struct EntryRing {
    slots: Box<[Completion]>,
    /// Mask of a slot number for its index in the ring.
    mask: usize,
    /// True if the reader of an entry has more to do: a provider waits for space in the ring
    /// (`Cq::wait_for_space`), or entries wait behind the ring.
    pub(super) awaited: bool,
    /// Entries written while the ring was full, in order.
    pub(super) behind: VecDeque<Completion>,
    pub(super) errors: VecDeque<CompletionError>,
    /// The extra data of the error read last, valid until the next read.
    pub(super) error_data: Vec<u8>,
}

/// Allocates `size` zeroed slots without touching them: the kernel provides memory only for used
/// ones. Fails with -FI_ENOMEM if there is not enough.
pub(super) fn zeroed(size: usize) -> Result<Box<[Completion]>> {
    let layout = Layout::array::<Completion>(size).map_err(|_| Error::NOMEM)?;
    if size == 0 {
        return Ok(Box::default());
    }
    // SAFETY: the layout is that of the slice, and not empty; a completion is numbers and
    // a context, which may be null.
    unsafe {
        let first = std::alloc::alloc_zeroed(layout).cast::<Completion>();
        if first.is_null() {
            return Err(Error::NOMEM);
        }
        Ok(Box::from_raw(std::ptr::slice_from_raw_parts_mut(first, size)))
    }
}

impl EntryRing {
    /// Returns a ring of these slots. Their number is a power of two, or 0 for a permanently full
    /// ring.
    pub(super) fn new(slots: Box<[Completion]>) -> Self {
        Self {
            mask: slots.len().wrapping_sub(1),
            slots,
            awaited: false,
            behind: VecDeque::new(),
            errors: VecDeque::new(),
            error_data: Vec::new(),
        }
    }

    /// Returns the number of slots.
    #[inline(always)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the slot with this number; the low bits are the index in the ring.
    #[inline(always)]
    pub(super) fn slot(&mut self, number: usize) -> &mut Completion {
        // SAFETY: slots are asked for of rings that have some, a power of two, so that the mask gives one.
        unsafe { self.slots.get_unchecked_mut(number & self.mask) }
    }

    /// Writes the entry of a success.
    #[inline(always)]
    pub(super) fn set(&mut self, number: usize, entry: Completion) {
        let slot = self.slot(number);
        // In parts, which stay in registers: as a whole, the entry would be put together and copied.
        (slot.context, slot.flags, slot.len) = (entry.context, entry.flags, entry.len);
        (slot.buf, slot.data, slot.tag, slot.src) = (entry.buf, entry.data, entry.tag, entry.src);
    }
}
