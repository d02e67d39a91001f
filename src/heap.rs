//! Memory allocator of Rust code, with a reserve for a failing malloc.
//!
//! Most collections of Rust end the process when an allocation fails. So each library and plug-in
//! has reserved blocks of memory. When malloc fails, an allocation gets one of them, and its call
//! can complete normally. From then on memory is *short*, until all blocks are present again. Calls
//! starting something first try to replace the missing blocks by new ones of malloc, and fail if
//! they cannot ([`ready`]). Calls ending something, and calls reporting completions, continue.
//! Progress continues while at least half of the blocks are left ([`may_progress`]).
//!
//! A block of the reserve is an ordinary malloc block, so freeing needs no special case. An
//! allocation served by malloc costs a check of the pointer returned by malloc, and nothing else. A
//! call starting something costs the check of one flag. The reserve has no lock: taking a block,
//! and returning one, is one atomic exchange. This is safe between `fork` and `exec`, regardless of
//! the activity of other threads at the fork.
//!
//! An allocation larger than the largest block fails like malloc. Allocations with a size chosen by
//! the program or a peer therefore use fallible calls (`try_reserve`), after [`ready`], so such
//! sizes do not use up the reserve.
use crate::call_conditions::{CALL_CONDITIONS, CallConditions};
use crate::error::{Error, Result};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ffi::c_void;
use core::ptr::{copy_nonoverlapping, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Blocks of one size.
#[derive(Clone, Copy)]
struct SizeClass {
    size: usize,
    count: usize,
    /// Reserved at once, and not only when a fabric is opened ([`keep_all`]).
    early: bool,
}

const fn class(size: usize, count: usize, early: bool) -> SizeClass {
    SizeClass { size, count, early }
}

/// Reserved blocks, smallest first. Of the large ones only the page with malloc's header is backed
/// by memory before their use.
const CLASSES: [SizeClass; 13] = [
    class(64, 48, true),
    class(64, 16, false),
    class(256, 48, true),
    class(256, 80, false),
    class(1 << 10, 12, true),
    class(1 << 10, 52, false),
    class(4 << 10, 3, true),
    class(4 << 10, 13, false),
    class(16 << 10, 1, true),
    class(16 << 10, 7, false),
    class(64 << 10, 4, false),
    class(256 << 10, 2, false),
    class(1 << 20, 2, false),
];

const BLOCKS: usize = {
    let (mut blocks, mut at) = (0, 0);
    while at < CLASSES.len() {
        blocks += CLASSES[at].count;
        at += 1;
    }
    blocks
};

/// Index of the class of each block.
const CLASS_OF: [u8; BLOCKS] = {
    let (mut of, mut at, mut block) = ([0; BLOCKS], 0, 0);
    while at < CLASSES.len() {
        let end = block + CLASSES[at].count;
        while block < end {
            of[block] = at as u8;
            block += 1;
        }
        at += 1;
    }
    of
};

/// Alignment of reserve blocks of 1 KiB and more, for types with a cache line to themselves.
const BLOCK_ALIGN: usize = 128;

/// Minimum alignment of memory returned by malloc.
const MALLOC_ALIGN: usize =
    if cfg!(any(target_pointer_width = "64", target_arch = "x86")) { 16 } else { 8 };

/// Returns memory of malloc, freed by `free`, or null if there is none.
fn obtain(size: usize, align: usize) -> *mut u8 {
    if align <= MALLOC_ALIGN && align <= size {
        // SAFETY: any size may be asked for.
        return unsafe { libc::malloc(size) }.cast();
    }
    let mut at = null_mut();
    // SAFETY: the place is there for the call. The alignment is a power of two, which every `Layout` has, and
    // a multiple of the size of a pointer.
    let ret = unsafe { libc::posix_memalign(&raw mut at, align.max(size_of::<usize>()), size) };
    if ret == 0 { at.cast() } else { null_mut() }
}

/// A block of the reserve; null if there is no memory.
fn obtain_block(size: usize) -> *mut u8 {
    obtain(size, if size < 1 << 10 { MALLOC_ALIGN } else { BLOCK_ALIGN })
}

/// Reserved blocks.
struct HeapReserve {
    /// Blocks; null for a missing one.
    blocks: [AtomicPtr<u8>; BLOCKS],
    /// Memory is short while blocks may be missing.
    conditions: &'static CallConditions,
    /// All size classes are reserved.
    all: AtomicBool,
}

impl HeapReserve {
    const fn new(conditions: &'static CallConditions) -> Self {
        Self {
            blocks: [const { AtomicPtr::new(null_mut()) }; BLOCKS],
            conditions,
            all: AtomicBool::new(false),
        }
    }

    fn with_class(&self) -> impl Iterator<Item = (&AtomicPtr<u8>, SizeClass)> {
        self.blocks.iter().zip(CLASS_OF.iter().map(|of| CLASSES[usize::from(*of)]))
    }

    /// Returns the blocks required to be present.
    fn wanted(&self) -> impl Iterator<Item = (&AtomicPtr<u8>, usize)> {
        let all = self.all.load(Ordering::Relaxed);
        let wanted = self.with_class().filter(move |(_, class)| all || class.early);
        wanted.map(|(block, class)| (block, class.size))
    }

    /// Takes the smallest block large enough for an allocation, or returns null if there is none.
    /// It is freed like any block of malloc.
    #[cold]
    #[inline(never)]
    fn take(&self, layout: Layout) -> *mut u8 {
        self.conditions.set_memory_short(true);
        for (block, class) in self.with_class() {
            let at = block.load(Ordering::Relaxed);
            if class.size < layout.size() || at.is_null() || at.addr() % layout.align() != 0 {
                continue;
            }
            let taken =
                block.compare_exchange(at, null_mut(), Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return at;
            }
        }
        null_mut()
    }

    /// Replaces missing blocks by the results of `obtain` for a size. Returns true if none is
    /// missing then. `free` releases blocks replaced concurrently by another thread.
    fn refill(&self, obtain: impl Fn(usize) -> *mut u8, free: impl Fn(*mut u8)) -> bool {
        // A thread that takes a block from here on says so again.
        self.conditions.set_memory_short(false);
        for (block, size) in self.wanted() {
            if !block.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let new = obtain(size);
            if new.is_null() {
                self.conditions.set_memory_short(true);
                return false;
            }
            let brought =
                block.compare_exchange(null_mut(), new, Ordering::Release, Ordering::Relaxed);
            if brought.is_err() {
                free(new);
            }
        }
        true
    }

    /// Returns true if less than half of the blocks are present.
    fn is_low(&self) -> bool {
        let (mut wanted, mut there) = (0, 0);
        for (block, _) in self.wanted() {
            wanted += 1;
            there += usize::from(!block.load(Ordering::Relaxed).is_null());
        }
        there * 2 < wanted
    }

    /// Gives all blocks back.
    fn release(&self, free: impl Fn(*mut u8)) {
        self.conditions.set_memory_short(true);
        for block in &self.blocks {
            let at = block.swap(null_mut(), Ordering::Acquire);
            if !at.is_null() {
                free(at);
            }
        }
    }
}

/// Reserve of each library and plug-in: a `static` exists in each of them.
static RESERVE: HeapReserve = HeapReserve::new(&CALL_CONDITIONS);

/// Allocator of all Rust code linked to this package.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: memory is that of malloc and its like, which has the size and alignment that were asked for and is the caller's until it is
// freed; so are blocks of the reserve, each of which is given to one caller. Nothing here panics, and nothing here allocates by Rust.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let at = obtain(layout.size(), layout.align());
        if at.is_null() { RESERVE.take(layout) } else { at }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: by the trait's contract it was allocated here, so it is malloc's.
        unsafe { libc::free(at.cast()) };
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if align <= MALLOC_ALIGN && align <= size {
            // SAFETY: any size may be asked for.
            let at = unsafe { libc::calloc(size, 1) }.cast::<u8>();
            if !at.is_null() {
                return at;
            }
        }
        // SAFETY: the caller's layout.
        let at = unsafe { self.alloc(layout) };
        if !at.is_null() {
            // SAFETY: it has that size.
            unsafe { at.write_bytes(0, size) };
        }
        at
    }

    #[inline]
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let align = layout.align();
        if align <= MALLOC_ALIGN && align <= size {
            // SAFETY: `old` is malloc's.
            let at = unsafe { libc::realloc(old.cast::<c_void>(), size) }.cast::<u8>();
            if !at.is_null() {
                return at;
            }
        }
        // SAFETY: by the trait's contract `size` and the alignment make a layout.
        unsafe { move_to(self, old, layout, Layout::from_size_align_unchecked(size, align)) }
    }
}

/// Moves an allocation to another one of `heap`. Returns null, with `old` unchanged, if there is no
/// memory.
///
/// # Safety
/// `old` was allocated by `heap` with the layout `before`, and belongs to the caller.
#[cold]
unsafe fn move_to(heap: &Heap, old: *mut u8, before: Layout, after: Layout) -> *mut u8 {
    // SAFETY: layouts of a reallocation are not of size 0; both allocations are as large as what is copied, and they are two.
    unsafe {
        let new = heap.alloc(after);
        if !new.is_null() {
            copy_nonoverlapping(old, new, before.size().min(after.size()));
            heap.dealloc(old, before);
        }
        new
    }
}

/// Returns true if an allocation failed and blocks of the reserve may be missing since, or were not
/// reserved yet.
#[inline(always)]
fn is_short() -> bool {
    CALL_CONDITIONS.is_memory_short()
}

/// Verifies the reserve is complete, after replacing missing blocks if necessary. Fails with
/// -FI_ENOMEM if not.
///
/// For calls starting something, and for large fallible allocations: while blocks are missing, the
/// remaining ones are for calls already started.
#[inline(always)]
pub fn ready() -> Result {
    if is_short() { refill() } else { Ok(()) }
}

/// [`ready`] for entry points returning a pointer, null on failure. Sets `errno` to ENOMEM if the
/// reserve is not complete.
pub fn ready_or_errno() -> bool {
    let ready = ready();
    if let Err(error) = ready {
        // SAFETY: errno is the calling thread's own.
        unsafe { *libc::__errno_location() = error.code() };
    }
    ready.is_ok()
}

#[cold]
#[inline(never)]
fn refill() -> Result {
    // SAFETY: what comes here to be freed was just obtained.
    let full = RESERVE.refill(obtain_block, |at| unsafe { libc::free(at.cast()) });
    if full { Ok(()) } else { Err(Error::NOMEM) }
}

/// Returns true if there is memory for a progress iteration: while it is short and less than half
/// of the reserve is left, nothing is accepted from peers.
#[inline(always)]
pub fn may_progress() -> bool {
    !is_short() || may_progress_shortly()
}

#[cold]
#[inline(never)]
fn may_progress_shortly() -> bool {
    refill().is_ok() || !RESERVE.is_low()
}

/// Reserves all blocks, not only the part used for answering fi_getinfo(3). Fails with -FI_ENOMEM
/// if there is no memory.
///
/// The C library allocates the thread-local variables of this library at their first use in the
/// calling thread, and ends the process if it cannot. It does so here, while there is memory.
pub fn keep_all() -> Result {
    thread_local!(static USED: Cell<bool> = const { Cell::new(false) });
    RESERVE.all.store(true, Ordering::Relaxed);
    refill()?;
    USED.set(true);
    Ok(())
}

/// Gives the reserve back, when the library goes.
pub fn release() {
    // SAFETY: blocks of the reserve are malloc's, and no longer in it.
    RESERVE.release(|at| unsafe { libc::free(at.cast()) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn new_reserve() -> HeapReserve {
        HeapReserve::new(Box::leak(Box::new(CallConditions::new())))
    }

    fn block(size: usize) -> *mut u8 {
        obtain_block(size)
    }

    fn free(at: *mut u8) {
        // SAFETY: the tests free what they have, once.
        unsafe { libc::free(at.cast()) };
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    fn full() -> HeapReserve {
        let reserve = new_reserve();
        reserve.all.store(true, Ordering::Relaxed);
        assert!(reserve.refill(block, free));
        reserve
    }

    #[test]
    fn a_reserve_is_short_until_it_is_filled_and_after_a_block_was_taken() {
        let reserve = new_reserve();
        assert!(reserve.conditions.is_memory_short());
        assert!(reserve.take(layout(8, 8)).is_null(), "nothing is set aside yet");
        assert!(reserve.refill(block, free));
        assert!(!reserve.conditions.is_memory_short());
        let taken = reserve.take(layout(8, 8));
        assert!(!taken.is_null() && reserve.conditions.is_memory_short());
        assert!(reserve.refill(block, free));
        assert!(!reserve.conditions.is_memory_short());
        free(taken);
        reserve.release(free);
    }

    #[test]
    fn partly_filled_reserve_keeps_its_blocks() {
        let (reserve, left) = (new_reserve(), Cell::new(10));
        let few = |size| {
            if left.get() == 0 {
                return null_mut();
            }
            left.set(left.get() - 1);
            block(size)
        };
        assert!(!reserve.refill(few, free));
        assert!(reserve.conditions.is_memory_short() && reserve.is_low());
        let there = reserve.blocks.iter().filter(|at| !at.load(Ordering::Relaxed).is_null());
        assert_eq!(there.count(), 10);
        left.set(usize::MAX);
        assert!(reserve.refill(few, free) && !reserve.is_low());
        reserve.release(free);
    }

    #[test]
    fn allocation_gets_the_smallest_fitting_block() {
        let reserve = full();
        let first =
            |size: usize| CLASS_OF.iter().position(|of| CLASSES[usize::from(*of)].size == size);
        let is_there = |at: usize| !reserve.blocks[at].load(Ordering::Relaxed).is_null();
        for (size, of) in [(1, 64), (64, 64), (65, 256), (5000, 16 << 10), (1 << 20, 1 << 20)] {
            let at = first(of).unwrap();
            let at = at
                + reserve.blocks[at..]
                    .iter()
                    .take_while(|at| at.load(Ordering::Relaxed).is_null())
                    .count();
            let taken = reserve.take(layout(size, 8));
            assert!(!taken.is_null() && !is_there(at), "{size} bytes");
            // SAFETY: the block has that size.
            unsafe { taken.write_bytes(1, size) };
            free(taken);
        }
        assert!(reserve.take(layout((1 << 20) + 1, 8)).is_null());
        let aligned = reserve.take(layout(8, BLOCK_ALIGN));
        assert!(aligned.addr() % BLOCK_ALIGN == 0);
        free(aligned);
        reserve.release(free);
    }

    #[test]
    fn exhausted_class_is_served_from_larger_classes() {
        let reserve = full();
        let mut taken = Vec::new();
        loop {
            let at = reserve.take(layout(16, 8));
            if at.is_null() {
                break;
            }
            taken.push(at);
        }
        assert_eq!(taken.len(), BLOCKS);
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), BLOCKS, "no block is given twice");
        assert!(reserve.is_low());
        taken.into_iter().for_each(free);
    }

    #[test]
    fn concurrent_take_and_refill_share_no_block() {
        let (reserve, live) = (full(), AtomicUsize::new(0));
        let obtain = |size| {
            live.fetch_add(1, Ordering::Relaxed);
            block(size)
        };
        let free = |at| {
            live.fetch_sub(1, Ordering::Relaxed);
            free(at);
        };
        live.store(BLOCKS, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for id in 0..4_u8 {
                let (reserve, obtain, free) = (&reserve, &obtain, &free);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let mine: Vec<_> = (0..20).map(|_| reserve.take(layout(64, 8))).collect();
                        let mine: Vec<_> = mine.into_iter().filter(|at| !at.is_null()).collect();
                        // SAFETY: blocks that only this thread has, of 64 bytes at least.
                        mine.iter().for_each(|at| unsafe { at.write_bytes(id, 64) });
                        // SAFETY: as above.
                        let same =
                            |at: &*mut u8| (0..64).all(|n| unsafe { at.add(n).read() } == id);
                        assert!(mine.iter().all(same));
                        mine.into_iter().for_each(free);
                        reserve.refill(obtain, free);
                    }
                });
            }
        });
        assert!(reserve.refill(obtain, free));
        reserve.release(free);
        assert_eq!(live.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn allocator_returns_requested_sizes_and_moves_contents() {
        let heap = Heap;
        for (size, align) in [(1, 1), (24, 8), (24, 16), (40, 16), (100, 64), (4096, 4096)] {
            let small = layout(size, align);
            // SAFETY: layouts of more than no bytes; each allocation is used as large as it is, and freed once.
            unsafe {
                let at = heap.alloc_zeroed(small);
                assert!(at.addr() % align == 0);
                assert!((0..size).all(|n| at.add(n).read() == 0));
                at.write_bytes(7, size);
                let at = heap.realloc(at, small, size * 100);
                assert!(at.addr() % align == 0);
                assert!((0..size).all(|n| at.add(n).read() == 7));
                let large = layout(size * 100, align);
                let at = move_to(&heap, at, large, small);
                assert!((0..size).all(|n| at.add(n).read() == 7));
                heap.dealloc(at, small);
            }
        }
    }
}
