//! Addresses of the process's heap (brk(2)). No driver puts memory of a device there, so buffers in it
//! are not looked up.
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// First address of the heap; the last possible one without a known heap.
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The C library's variable with the end of the heap, valid if [`FIRST`] is set.
static END: AtomicPtr<AtomicUsize> = AtomicPtr::new(ptr::null_mut());

/// Finds the heap. Without it, as with another C library, no address is known.
pub(crate) fn find() {
    static FOUND: Once = Once::new();
    FOUND.call_once(|| {
        // SAFETY: the name is a C string; the result is an address or null.
        let end = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__curbrk".as_ptr()) };
        if end.is_null() {
            return;
        }
        END.store(end.cast(), Ordering::Relaxed);
        // SAFETY: as in `contains`.
        let end = unsafe { &*end.cast::<AtomicUsize>() }.load(Ordering::Relaxed);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        if let Some(first) = first(&maps, end) {
            FIRST.store(first, Ordering::Release);
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

/// Returns true if `len` bytes at this address are in the heap, false if it is unknown.
#[inline(always)]
pub(crate) fn contains(addr: usize, len: usize) -> bool {
    if addr < FIRST.load(Ordering::Acquire) {
        return false;
    }
    let end = END.load(Ordering::Relaxed);
    // The last possible address is not below the first one of an unknown heap.
    if end.is_null() {
        return false;
    }
    // SAFETY: the variable is an aligned word of the C library, loaded for ever.
    let end = unsafe { &*end }.load(Ordering::Relaxed);
    addr < end && len <= end - addr
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
        assert!(!contains(&raw const on_stack as usize, 1));
        assert!(!contains(usize::MAX, 0));
        // SAFETY: no memory is involved; the call returns the end of the heap.
        let end = unsafe { libc::sbrk(0) } as usize;
        assert!(!contains(end, 1));
        if FIRST.load(Ordering::Relaxed) < end {
            assert!(contains(end - 8, 8));
            assert!(!contains(end - 8, 9));
        }
    }
}
