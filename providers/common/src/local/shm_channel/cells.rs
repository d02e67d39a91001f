//! Contents of cells.
use crate::ring_layout::RingCell;
use core::sync::atomic::AtomicU64;

/// Memory of the writer's, in place of bytes of the ring.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ZcopyDesc {
    pub(super) addr: u64,
    pub(super) len: u64,
}

/// Returns a word of a cell's description of an exposed buffer ([`ZcopyDesc`]).
pub(super) fn exposed_word(cell: &RingCell, at: usize) -> &AtomicU64 {
    // SAFETY: a cell has room for that behind a word that is aligned, and lives as long as `cell`; each
    // process writes there with care for the other, or else harms what it sends itself.
    cell.body.with(|body| unsafe { AtomicU64::from_ptr(body.cast_mut().cast::<u64>().add(at)) })
}

/// Prefetches the next data during the check for it.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nothing is read but for the cache.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
