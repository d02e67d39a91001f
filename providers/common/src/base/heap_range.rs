//! Addresses of the process's heap (brk(2)). No driver puts memory of a device there, so buffers in it
//! are not looked up.
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Bounds of the heap, side by side for fewer instructions per buffer.
struct HeapRange {
    /// First address; the last possible one without a known heap.
    first: AtomicUsize,
    /// Variable with the end: that of the C library, or [`NO_END`].
    end: AtomicPtr<AtomicUsize>,
}

static NO_END: AtomicUsize = AtomicUsize::new(0);
static HEAP: HeapRange = HeapRange {
    first: AtomicUsize::new(usize::MAX),
    end: AtomicPtr::new((&raw const NO_END).cast_mut()),
};

/// Finds the heap. Without it, as with another C library, no address is known.
pub(crate) fn find() {
    static FOUND: Once = Once::new();
    FOUND.call_once(|| {
        // SAFETY: the name is a C string; the result is an address or null.
        let end = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__curbrk".as_ptr()) };
        if end.is_null() {
            return;
        }
        HEAP.end.store(end.cast(), Ordering::Relaxed);
        // SAFETY: as in `contains`.
        let end = unsafe { &*end.cast::<AtomicUsize>() }.load(Ordering::Relaxed);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        if let Some(first) = first(&maps, end) {
            HEAP.first.store(first, Ordering::Release);
        }
    });
}

/// Returns the first address of the heap with this end in the text of `/proc/self/maps`: that of the
/// mapping with its last byte.
fn first(maps: &str, end: usize) -> Option<usize> {
    maps.lines().find_map(|line| {
        let (first, behind) = line.split(' ').next()?.split_once('-')?;
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        let range = number(first)?..number(behind)?;
        range.contains(&end.checked_sub(1)?).then_some(range.start)
    })
}

/// Returns true if this address is in the heap, false if it is unknown. A buffer beginning in the heap
/// ends there, as its allocation does.
#[inline(always)]
pub(crate) fn contains(addr: usize) -> bool {
    if addr < HEAP.first.load(Ordering::Acquire) {
        return false;
    }
    // SAFETY: the variable is an aligned word, `NO_END` or one of the C library, loaded for ever.
    addr < unsafe { &*HEAP.end.load(Ordering::Relaxed) }.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_address_is_that_of_the_mapping_with_the_last_byte() {
        let maps = "5000-6000 r--p 00000000 fe:00 7  /bin/true\n\
                    aa000-ad000 rw-p 00000000 00:00 0  [heap]\n\
                    ad000-ae000 rw-p 00000000 00:00 0\n";
        for (end, found) in [(0xac800, Some(0xaa000)), (0xad000, Some(0xaa000)), (0xb0000, None)] {
            assert_eq!(first(maps, end), found);
        }
        assert_eq!((first(maps, 0), first("[heap]", 1)), (None, None));
    }

    #[test]
    fn stack_and_memory_beyond_the_end_are_not_in_the_heap() {
        find();
        let on_stack = 0u8;
        assert!(!contains(&raw const on_stack as usize));
        assert!(!contains(usize::MAX));
        // SAFETY: no memory is involved; the call returns the end of the heap.
        let end = unsafe { libc::sbrk(0) } as usize;
        assert!(!contains(end));
        if HEAP.first.load(Ordering::Relaxed) < end {
            assert!(contains(end - 1));
        }
    }
}
