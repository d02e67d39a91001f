//! The one lock of the providers, which costs what the threading level needs.
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody sleeps until it is not.
const CONTENDED: u32 = 2;

/// A mutex that can be told, when it is made, that the application serializes
/// all calls (FI_THREAD_DOMAIN, fi_domain(3)).
///
/// Without that promise it is a futex lock: one compare-and-swap when nobody
/// competes, a short spin and then sleep when somebody does. With it, taking it
/// is a plain load and store. Those stay because they turn a broken promise
/// into a panic, which the C boundary answers as an error, instead of silent
/// corruption (as far as the race lets them see it).
#[derive(Debug)]
pub struct Lock<T> {
    state: AtomicU32,
    /// Threads that sleep until they get it, or are about to.
    waiters: AtomicU32,
    serialized: bool,
    value: UnsafeCell<T>,
}

// SAFETY: as for a mutex, a `&Lock` gives out the value to one thread at a time:
// by the futex state, or by the application's promise when `serialized`.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock that any thread may take at any time.
    pub const fn new(value: T) -> Self {
        Self::with_level(value, false)
    }

    /// A lock around which the application serializes all calls, if
    /// `serialized` says so.
    pub const fn with_level(value: T, serialized: bool) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            waiters: AtomicU32::new(0),
            serialized,
            value: UnsafeCell::new(value),
        }
    }

    /// Whether the application serializes all calls around it.
    pub fn is_serialized(&self) -> bool {
        self.serialized
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.serialized {
            assert!(
                self.state.load(Ordering::Relaxed) == FREE,
                "calls overlap although the application promised to serialize them"
            );
            self.state.store(HELD, Ordering::Relaxed);
        } else if self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_contended();
        }
        Guard { lock: self }
    }

    /// The lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Guard { lock: self })
    }

    /// The lock for something that can as well be left to others: none if
    /// somebody holds it, or waits for it. Without this a thread that takes it
    /// again and again would have it most of the time, and those that wait
    /// would hardly ever be quick enough.
    #[inline]
    pub fn lock_if_idle(&self) -> Option<Guard<'_, T>> {
        if self.serialized {
            return Some(self.lock());
        }
        if self.waiters.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
            return None;
        }
        self.try_lock()
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..100 {
            if self.state.load(Ordering::Relaxed) == FREE
                && self
                    .state
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, CONTENDED);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline]
    fn unlock(&self) {
        if self.serialized {
            self.state.store(FREE, Ordering::Relaxed);
        } else if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            self.futex(libc::FUTEX_WAKE, 1);
        }
    }

    #[cold]
    fn futex(&self, op: libc::c_int, value: u32) {
        // SAFETY: the address is that of a live, aligned 32-bit word; a null
        // timeout waits for ever; spurious returns are handled by the callers.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.state.as_ptr(),
                op | libc::FUTEX_PRIVATE_FLAG,
                value,
                std::ptr::null::<libc::timespec>(),
            );
        }
    }
}

/// The value, for as long as the lock is held.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while the lock is held, and is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_count_without_losing_one() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn what_can_be_left_to_others_stands_back_for_those_who_wait() {
        let lock = Lock::new(0);
        let guard = lock.lock();
        assert!(lock.lock_if_idle().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| *lock.lock() += 1);
            while lock.waiters.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(guard);
            // Free or not, it is the waiting thread's turn.
            while lock.waiters.load(Ordering::Relaxed) != 0 {
                assert!(lock.lock_if_idle().is_none() || lock.waiters.load(Ordering::Relaxed) == 0);
            }
        });
        assert_eq!(*lock.lock_if_idle().unwrap(), 1);
    }

    #[test]
    fn a_serialized_lock_notices_that_it_is_taken_twice() {
        let lock = Lock::with_level((), true);
        let guard = lock.lock();
        let second = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.lock())));
        assert!(second.is_err());
        drop(guard);
        drop(lock.lock());
    }
}
