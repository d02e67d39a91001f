//! The memory of one collective operation.
use super::plan::{Bytes, Step};
use crate::atomic::Operation;
use crate::buf::{RecvBuf, SendBuf};
use crate::error::{Error, Result};
use std::ptr::NonNull;

/// Memory read and written by transfers, while the owning operation processes the rest. The plan
/// assigns its parts over time: transfers of a round access disjoint bytes unless all of them read,
/// and steps run between rounds.
pub(crate) struct Area {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain bytes; the plan of the operation determines their accesses, independently of the
// thread.
unsafe impl Send for Area {}
// SAFETY: plain bytes; an operation's steps and calls come one after the other, so that no two
// threads touch a part at the same time unless both read it.
unsafe impl Sync for Area {}

impl Area {
    /// An area of `len` zero bytes; -FI_ENOMEM if there is no memory.
    pub(crate) fn new(len: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Error::NOMEM)?;
        bytes.resize(len, 0u8);
        let bytes: &mut [u8] = Box::leak(bytes.into_boxed_slice());
        Ok(Self { base: NonNull::from(&mut *bytes).cast(), len })
    }

    fn at(&self, part: Bytes) -> *mut u8 {
        assert!(part.at <= self.len && part.len <= self.len - part.at, "a plan within its area");
        // SAFETY: within the area, by the line above.
        unsafe { self.base.as_ptr().add(part.at) }
    }

    /// A part of the area, as a buffer to send from.
    pub(crate) fn send(&self, part: Bytes) -> SendBuf {
        // SAFETY: the operation keeps the area until all its transfers are over.
        unsafe { SendBuf::new(self.at(part).cast(), part.len) }
            .unwrap_or_else(|_| unreachable!("not null"))
    }

    /// A part of the area, as a buffer to receive into.
    pub(crate) fn recv(&self, part: Bytes) -> RecvBuf {
        // SAFETY: the operation keeps the area until all its transfers are over.
        unsafe { RecvBuf::new(self.at(part).cast(), part.len) }.unwrap_or_else(|_| RecvBuf::none())
    }

    /// Fills the beginning with the application's bytes.
    pub(super) fn fill(&self, input: &SendBuf) {
        let to = self.at(Bytes { at: 0, len: input.len() });
        // SAFETY: within the area; no transfer was posted yet.
        input.copy_to(0, unsafe { std::slice::from_raw_parts_mut(to, input.len()) });
    }

    /// Writes bytes of the library's own at an offset, before any transfer is posted.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(Bytes { at, len: bytes.len() });
        // SAFETY: within the area; `bytes` is none of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Returns the bytes of a part without pending receives into it.
    pub(crate) fn bytes(&self, part: Bytes) -> &[u8] {
        // SAFETY: within the area; what is still under way, if anything, reads it.
        unsafe { std::slice::from_raw_parts(self.at(part), part.len) }
    }

    /// Carries a step of the plan out.
    pub(super) fn step(&self, step: Step, reduction: Option<Operation>) {
        match step {
            Step::Copy { from, to } => {
                let to = self.at(Bytes { at: to, len: from.len });
                // SAFETY: both are within the area, and no transfer is under way.
                unsafe { std::ptr::copy(self.at(from), to, from.len) };
            }
            Step::Reduce { from, into } => {
                let Some(operation) = reduction else { return };
                let target = self.at(Bytes { at: into, len: from.len });
                // SAFETY: both are within the area and disjoint, and no transfer is in flight, so
                // there are no other accesses to them.
                unsafe {
                    let source = std::slice::from_raw_parts(self.at(from), from.len);
                    operation.apply(target, from.len, source, &[], &mut []);
                }
            }
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.len);
        // SAFETY: what `new` leaked, once; every transfer is over.
        drop(unsafe { Box::from_raw(bytes) });
    }
}
