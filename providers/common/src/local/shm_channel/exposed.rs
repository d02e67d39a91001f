//! Buffers of this process exposed to the reader, and the calls exposing them.
use crate::buf::zeroed;
use crate::error::{Error, Result};
use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::collections::VecDeque;

/// Exposed buffer possibly not read by the reader yet.
#[derive(Debug)]
struct ExposedBuffer {
    /// Number of exposed buffers including it, and its cell.
    number: u32,
    cell: u32,
    /// Key of its memory region ([`CopyMode::OfRegion`](crate::buf::CopyMode::OfRegion)).
    key: Option<u64>,
    memory: Range<usize>,
    /// The buffer is in memory of a device, and `memory` is empty.
    is_device: bool,
    /// Its bytes, if the region was to be closed.
    copy: Option<Box<[u8]>>,
}

/// Calls with [`CopyMode::ZeroCopy`](crate::buf::CopyMode::ZeroCopy) whose memory the peer has read, as reported by
/// `ShmChannel::zcopy_completed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZcopyCompletion {
    /// The first call: they count from 0, as far as they took bytes, modulo 2³².
    pub low: u32,
    /// The last call.
    pub high: u32,
}

/// Zero-copy calls, and the number of exposed buffers at the end of the last one.
#[derive(Debug)]
struct ZcopySends {
    calls: ZcopyCompletion,
    exposed: u32,
}

/// Exposed buffers, numbered in the order of their exposure, and calls with exposed buffers.
#[derive(Debug, Default)]
pub(super) struct ExposedBuffers {
    /// Number of the next zero-copy call with accepted bytes.
    next_call: Cell<u32>,
    calls: RefCell<VecDeque<ZcopySends>>,
    buffers: RefCell<VecDeque<ExposedBuffer>>,
}

/// Returns true if the reader has read the buffer with this number, of `fetched` ones.
fn is_fetched(number: u32, fetched: u32) -> bool {
    fetched.wrapping_sub(number) <= u32::MAX / 2
}

impl ExposedBuffers {
    /// Adds a buffer, exposed in this cell.
    pub(super) fn add(&self, number: u32, cell: u32, key: Option<u64>, memory: Range<usize>) {
        let buffer = ExposedBuffer { number, cell, key, memory, is_device: false, copy: None };
        self.buffers.borrow_mut().push_back(buffer);
    }

    /// Adds a buffer in memory of a device, exposed in this cell.
    pub(super) fn add_device(&self, number: u32, cell: u32, key: Option<u64>) {
        let (memory, is_device) = (0..0, true);
        let buffer = ExposedBuffer { number, cell, key, memory, is_device, copy: None };
        self.buffers.borrow_mut().push_back(buffer);
    }

    /// Assigns a number to a zero-copy call with accepted bytes, after `exposed` exposed buffers.
    pub(super) fn add_call(&self, exposed: u32) {
        let number = self.next_call.get();
        self.next_call.set(number.wrapping_add(1));
        let mut calls = self.calls.borrow_mut();
        match calls.back_mut().filter(|last| last.exposed == exposed) {
            // No buffer was exposed since the previous call.
            Some(last) => last.calls.high = number,
            None => {
                let one = ZcopyCompletion { low: number, high: number };
                calls.push_back(ZcopySends { calls: one, exposed });
            }
        }
    }

    /// Returns true if calls are in flight.
    #[inline]
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.borrow().is_empty()
    }

    /// Returns true if the peer has read all buffers, as of the last query.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.buffers.borrow().is_empty()
    }

    /// Returns true if the buffers of the oldest call are among the `fetched` ones; `None` without
    /// calls.
    pub(super) fn is_oldest_fetched(&self, fetched: u32) -> Option<bool> {
        Some(is_fetched(self.calls.borrow().front()?.exposed, fetched))
    }

    /// Removes the `fetched` buffers and their calls, and returns these.
    pub(super) fn take_fetched(&self, fetched: u32) -> Option<ZcopyCompletion> {
        let mut buffers = self.buffers.borrow_mut();
        while buffers.front().is_some_and(|buffer| is_fetched(buffer.number, fetched)) {
            buffers.pop_front();
        }
        let mut done: Option<ZcopyCompletion> = None;
        let mut calls = self.calls.borrow_mut();
        while let Some(call) = calls.front().filter(|call| is_fetched(call.exposed, fetched)) {
            let low = done.map_or(call.calls.low, |done| done.low);
            done = Some(ZcopyCompletion { low, high: call.calls.high });
            calls.pop_front();
        }
        done
    }

    /// Passes the start and the length of an unread buffer, or of its copy, to `take`.
    pub(super) fn with_unread(
        &self,
        number: u32,
        fetched: u32,
        take: impl FnOnce(*const u8, usize),
    ) {
        let buffers = self.buffers.borrow();
        let is_meant = |buffer: &&ExposedBuffer| buffer.number == number;
        let found = buffers.iter().find(is_meant).filter(|one| !is_fetched(one.number, fetched));
        let Some(buffer) = found else { return };
        let start = buffer.memory.start as *const u8;
        take(buffer.copy.as_deref().map_or(start, <[u8]>::as_ptr), buffer.memory.len());
    }

    /// Copies the unread buffers of the memory region with this key, and passes the cell of each
    /// and the address of the copy to `relocate`; no address for one in memory of a device, now
    /// withdrawn. Returns the number of bytes copied. Fails with
    /// -FI_ENOBUFS if they exceeded `most`.
    pub(super) fn copy_region(
        &self,
        key: u64,
        most: usize,
        fetched: u32,
        relocate: impl Fn(u32, Option<u64>),
    ) -> Result<usize> {
        let mut copied = 0;
        for buffer in self.buffers.borrow_mut().iter_mut() {
            let is_read = is_fetched(buffer.number, fetched);
            if buffer.key != Some(key) || buffer.copy.is_some() || is_read {
                continue;
            }
            if buffer.is_device {
                relocate(buffer.cell, None);
                continue;
            }
            let len = buffer.memory.len();
            if len > most - copied {
                return Err(Error::NOBUFS);
            }
            let mut bytes = zeroed(len)?;
            // SAFETY: the memory stays unchanged until it was read or this has returned, as
            // promised by its sender; the copy is of the same size.
            unsafe {
                let from = buffer.memory.start as *const u8;
                from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
            }
            relocate(buffer.cell, Some(bytes.as_ptr() as u64));
            buffer.copy = Some(bytes);
            copied += len;
        }
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_complete_with_the_last_of_its_buffers() {
        let exposed = ExposedBuffers::default();
        assert_eq!(exposed.is_oldest_fetched(0), None);
        exposed.add(1, 10, None, 0..8);
        exposed.add(2, 11, None, 8..16);
        exposed.add_call(2);
        // Nothing was exposed by the second call.
        exposed.add_call(2);
        exposed.add(3, 12, None, 16..24);
        exposed.add_call(3);
        assert_eq!(exposed.take_fetched(1), None);
        assert_eq!(exposed.is_oldest_fetched(1), Some(false));
        assert_eq!(exposed.take_fetched(2), Some(ZcopyCompletion { low: 0, high: 1 }));
        assert!(exposed.has_calls());
        assert_eq!(exposed.take_fetched(3), Some(ZcopyCompletion { low: 2, high: 2 }));
        assert!(!exposed.has_calls());
    }

    #[test]
    fn unread_buffers_of_a_closed_region_are_copied_once_and_within_a_limit() {
        let memory = [7u8; 16];
        let at = memory.as_ptr() as usize;
        let exposed = ExposedBuffers::default();
        exposed.add(1, 10, Some(5), at..at + 8);
        exposed.add(2, 11, Some(6), at + 8..at + 16);
        assert_eq!(exposed.copy_region(5, 7, 0, |_, _| ()), Err(Error::NOBUFS));
        assert_eq!(exposed.copy_region(5, 8, 0, |cell, _| assert_eq!(cell, 10)), Ok(8));
        assert_eq!(exposed.copy_region(5, 8, 0, |_, _| unreachable!("it has a copy")), Ok(0));
        assert_eq!(exposed.copy_region(6, 8, 2, |_, _| unreachable!("it was read")), Ok(0));
        exposed.with_unread(1, 0, |start, len| assert!(start as usize != at && len == 8));
        exposed.with_unread(2, 1, |start, len| assert!(start as usize == at + 8 && len == 8));
        exposed.with_unread(1, 1, |_, _| unreachable!("it was read"));
    }

    #[test]
    fn buffers_of_a_device_are_withdrawn_and_never_accessed() {
        let exposed = ExposedBuffers::default();
        exposed.add_device(1, 10, Some(5));
        exposed.with_unread(1, 0, |_, len| assert_eq!(len, 0));
        let withdrawn = Cell::new(None);
        let relocate = |cell, addr| withdrawn.set(Some((cell, addr)));
        assert_eq!(exposed.copy_region(6, 0, 0, relocate), Ok(0));
        assert_eq!((withdrawn.get(), exposed.copy_region(5, 0, 0, relocate)), (None, Ok(0)));
        assert_eq!(withdrawn.get(), Some((10, None)));
    }
}
