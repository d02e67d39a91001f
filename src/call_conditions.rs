//! Conditions with more work for calls of the data path than the transfer itself: an attached tracer,
//! and memory running short.
//!
//! All are in one word, so their absence takes a single test.
use core::sync::atomic::{AtomicU32, Ordering};

/// Bits with the number of attached tracers. The kernel changes these 16 bits in place.
const TRACERS: u32 = 0xffff;

/// Set while memory is short.
const MEMORY_SHORT: u32 = 1 << 16;

/// Conditions of a library or plug-in.
#[derive(Debug)]
#[repr(transparent)]
pub struct CallConditions(AtomicU32);

/// Conditions of this library or plug-in: a `static` exists in each of them. The section is the usual
/// one for the semaphores of probes.
// SAFETY: the section contains nothing else, and is writable like any data.
#[unsafe(link_section = ".probes")]
pub static CALL_CONDITIONS: CallConditions = CallConditions::new();

impl CallConditions {
    /// Memory is short at first, with an empty reserve.
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(MEMORY_SHORT))
    }

    /// Returns true if any condition is fulfilled.
    #[inline(always)]
    pub fn has_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Returns true if a tracer is attached.
    #[inline(always)]
    pub fn has_tracer(&self) -> bool {
        self.0.load(Ordering::Relaxed) & TRACERS != 0
    }

    /// Returns true if memory is short.
    #[inline(always)]
    pub(crate) fn is_memory_short(&self) -> bool {
        self.0.load(Ordering::Relaxed) & MEMORY_SHORT != 0
    }

    pub(crate) fn set_memory_short(&self, is_short: bool) {
        if is_short {
            self.0.fetch_or(MEMORY_SHORT, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!MEMORY_SHORT, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_memory_and_tracers_are_independent() {
        let conditions = CallConditions::new();
        assert!(conditions.has_any() && conditions.is_memory_short() && !conditions.has_tracer());
        conditions.set_memory_short(false);
        assert!(!conditions.has_any());
        conditions.0.fetch_add(2, Ordering::Relaxed);
        assert!(conditions.has_any() && conditions.has_tracer() && !conditions.is_memory_short());
        conditions.set_memory_short(true);
        conditions.set_memory_short(false);
        assert!(conditions.has_tracer());
    }
}
