//! Replacement of `providers/common/src/primitives.rs` for loom. At each of these operations loom
//! decides the next thread and the value of a load.
//!
//! loom treats sequentially consistent accesses like release and acquire ones, and supports full
//! fences. So such an access is one between two fences here, and nothing else is.
use loom::sync::atomic as at;
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;
pub(crate) use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::SeqCst;

/// Enough to have been through the loop.
pub(crate) const SPINS: u32 = 1;

/// Sufficient for the reuse of a cell by another.
pub(crate) const CELLS: usize = 4;

/// Bytes checked by loom for concurrent use by two threads.
#[derive(Debug)]
pub(crate) struct SharedBytes<const N: usize>(loom::cell::UnsafeCell<[u8; N]>);

// SAFETY: loom finds out whether this holds.
unsafe impl<const N: usize> Sync for SharedBytes<N> {}

impl<const N: usize> SharedBytes<N> {
    pub(crate) fn new() -> Self {
        Self(loom::cell::UnsafeCell::new([0; N]))
    }
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const u8) -> R) -> R {
        self.0.with(|bytes| read(bytes.cast()))
    }
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut u8) -> R) -> R {
        self.0.with_mut(|bytes| write(bytes.cast()))
    }
}

/// Enough for a few connections.
pub(crate) const DOORBELL_WORDS: usize = 1;

pub(crate) fn spin_loop() {
    yield_now();
}

pub(crate) fn fence(order: Ordering) {
    at::fence(order);
}

/// True if the other side passes a barrier in all threads: a compiler fence is then a full fence.
static BARRIERS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);

pub(crate) fn set_barriers(barriers: bool) {
    BARRIERS.store(barriers, SeqCst);
}

/// This and the barrier in all threads order one another as two full fences do.
pub(crate) fn compiler_fence(order: Ordering) {
    if BARRIERS.load(SeqCst) {
        at::fence(order);
    }
}

pub(crate) fn barrier_in_all_threads() -> bool {
    at::fence(SeqCst);
    true
}

pub(crate) fn register_barriers() -> bool {
    true
}

fn fenced<R>(order: Ordering, access: impl FnOnce() -> R) -> R {
    if order != SeqCst {
        return access();
    }
    at::fence(SeqCst);
    let result = access();
    at::fence(SeqCst);
    result
}

macro_rules! atomic {
    ($name:ident, $value:ty, $($method:ident),*) => {
        #[derive(Debug)]
        pub(crate) struct $name(at::$name, Waiters);
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(at::$name::new(value), Waiters::default())
            }
            pub(crate) fn load(&self, order: Ordering) -> $value {
                fenced(order, || self.0.load(order))
            }
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                // An exchange could else read what was there before a store that came first,
                // and take its place all the same: loom 0.7 does not order the two.
                if order == SeqCst {
                    fenced(order, || self.0.swap(value, order));
                } else {
                    self.0.store(value, order);
                }
            }
            pub(crate) fn compare_exchange(
                &self, old: $value, new: $value, order: Ordering, failed: Ordering,
            ) -> Result<$value, $value> {
                fenced(order, || self.0.compare_exchange(old, new, order, failed))
            }
            /// Returns its address; the sleeping function knows the object there.
            pub(crate) fn as_ptr(&self) -> *mut u32 {
                (&raw const *self).cast::<u32>().cast_mut()
            }
            $(pub(crate) fn $method(&self, value: $value, order: Ordering) -> $value {
                fenced(order, || self.0.$method(value, order))
            })*
        }
    };
}
atomic!(AtomicBool, bool, swap);
atomic!(AtomicU32, u32, swap, fetch_add, fetch_sub);
atomic!(AtomicU64, u64, swap, fetch_or);
atomic!(AtomicUsize, usize, swap, fetch_add, fetch_sub, fetch_or);

/// Kernel's side of a word used for sleeping (futex(2)).
#[derive(Debug, Default)]
struct Waiters {
    kernel: Mutex<()>,
    woken: Condvar,
}

/// Returns early if the value is another, as a real one may at any time.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    let kernel = word.1.kernel.lock().unwrap();
    // The kernel looks at what is there, not at what the thread may still believe.
    at::fence(SeqCst);
    if word.0.load(SeqCst) == value {
        drop(word.1.woken.wait(kernel));
    }
}

pub(crate) fn wake_one(word: &AtomicU32) {
    let _kernel = word.1.kernel.lock().unwrap();
    word.1.woken.notify_one();
}

pub(crate) fn wake_all(word: &AtomicU32) {
    let _kernel = word.1.kernel.lock().unwrap();
    word.1.woken.notify_all();
}
