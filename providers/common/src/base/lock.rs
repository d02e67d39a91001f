//! Lock of the providers, with a cost depending on the threading level.
use crate::primitives::{
    AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, SPINS, barrier_in_all_threads,
    compiler_fence, register_barriers, sleep_while, spin_loop, wake_one, yield_now,
};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// State of the futex: held, and at least one thread sleeps until it is released.
const CONTENDED: u32 = 2;

/// Mutex with a cost depending on the application's promises.
///
/// Without a promise it is a futex lock: one compare-and-swap without contention, otherwise a short
/// spin and then sleep. If the application serializes all calls (FI_THREAD_DOMAIN, fi_domain(3)),
/// taking it is an ordinary load and store. These detect a broken promise, as far as the race
/// permits, and turn it into a panic; the C boundary reports it as an error instead of silent
/// corruption. With the promise and a library thread running concurrently it has a [`BiasedLock`].
#[derive(Debug)]
pub struct Lock<T> {
    state: AtomicU32,
    /// Number of threads sleeping until they get the lock, or about to sleep.
    waiters: AtomicU32,
    level: Level,
    value: UnsafeCell<T>,
}

/// Method of mutual exclusion of a [`Lock`].
#[derive(Clone, Debug)]
pub enum Level {
    // First, so its test takes one instruction less. Users of the other levels notice no
    // difference.
    /// The application serializes all calls, and no library thread runs concurrently.
    Serialized,
    /// Any thread may take the lock at any time.
    Shared,
    /// The application serializes all calls, and library threads running concurrently enter as
    /// visitors. All locks of a domain share one biased lock.
    Gated(Arc<BiasedLock>),
}

impl Level {
    /// Number of levels; [`number`](Self::number) returns the number of each.
    pub const COUNT: usize = 3;
    /// The number of [`Level::Serialized`].
    pub const SERIALIZED: usize = 0;
    /// The number of [`Level::Shared`].
    pub const SHARED: usize = 1;
    /// The number of [`Level::Gated`].
    pub const GATED: usize = 2;

    /// Returns the level's number, below [`COUNT`](Self::COUNT), for functions instantiated for
    /// each level.
    pub fn number(&self) -> usize {
        match self {
            Self::Serialized => Self::SERIALIZED,
            Self::Shared => Self::SHARED,
            Self::Gated(_) => Self::GATED,
        }
    }
}

/// Biased lock: keeps library threads away from an application with serialized calls, at no cost to
/// the application. The application marks its calls with ordinary stores. The rare visitor makes
/// all running threads pass a memory barrier (membarrier(2)) before it relies on the mark.
#[derive(Debug)]
pub struct BiasedLock {
    /// The application is inside a call.
    inside: AtomicBool,
    /// True while a visitor is inside, or checks if it may enter.
    was_accessed: AtomicBool,
    /// Held by the visitor inside; at most one.
    visitors: Mutex<()>,
}

impl BiasedLock {
    /// Returns a biased lock, or `None` if the kernel lacks membarrier(2).
    pub fn new() -> Option<Arc<Self>> {
        register_barriers().then(|| {
            Arc::new(Self {
                inside: AtomicBool::new(false),
                was_accessed: AtomicBool::new(false),
                visitors: Mutex::new(()),
            })
        })
    }

    /// Marks the application as inside, after any visitor has left.
    #[inline]
    fn enter(&self) {
        assert!(!self.inside.load(Ordering::Relaxed), "{OVERLAP}");
        self.announce();
        if self.was_accessed.load(Ordering::Acquire) {
            self.enter_after_visitor();
        }
    }

    /// As [`enter`](Self::enter), but does not wait for a visitor; false if there is one.
    #[inline]
    fn enter_at_once(&self) -> bool {
        assert!(!self.inside.load(Ordering::Relaxed), "{OVERLAP}");
        self.announce();
        let alone = !self.was_accessed.load(Ordering::Acquire);
        if !alone {
            self.leave();
        }
        alone
    }

    /// Stores the mark and checks for a visitor. The processor may reorder both; the visitor's
    /// barrier makes this harmless.
    #[inline]
    fn announce(&self) {
        self.inside.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    #[cold]
    fn enter_after_visitor(&self) {
        while self.was_accessed.load(Ordering::Acquire) {
            self.inside.store(false, Ordering::Release);
            drop(self.visitors.lock().unwrap_or_else(PoisonError::into_inner));
            self.announce();
        }
    }

    #[inline]
    fn leave(&self) {
        self.inside.store(false, Ordering::Release);
    }

    /// Lets a thread of the library in; none while the application is inside.
    fn run_for_library(&self) -> Option<LibraryAccess<'_>> {
        let held = self.visitors.lock().unwrap_or_else(PoisonError::into_inner);
        self.was_accessed.store(true, Ordering::Relaxed);
        let access = LibraryAccess { biased_lock: self, _held: held };
        // A call that enters from now on sees the visitor; one that entered before is seen by
        // it.
        let seen = barrier_in_all_threads();
        (seen && !self.inside.load(Ordering::Acquire)).then_some(access)
    }
}

#[derive(Debug)]
struct LibraryAccess<'a> {
    biased_lock: &'a BiasedLock,
    _held: MutexGuard<'a, ()>,
}

impl Drop for LibraryAccess<'_> {
    fn drop(&mut self) {
        self.biased_lock.was_accessed.store(false, Ordering::Release);
    }
}

const OVERLAP: &str = "calls overlap although the application promised to serialize them";

// SAFETY: as for a mutex, a `&Lock` gives out the value to one thread at a time:
// by the futex state, by the application's promise, or by the gate.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Returns a lock usable by any thread at any time.
    pub fn new(value: T) -> Self {
        Self::with_level(value, Level::Shared)
    }

    /// A lock of this level.
    #[inline(always)]
    pub fn with_level(value: T, level: Level) -> Self {
        let (state, waiters) = (AtomicU32::new(FREE), AtomicU32::new(0));
        Self { state, waiters, level, value: UnsafeCell::new(value) }
    }

    /// The number of its level.
    pub fn level(&self) -> usize {
        self.level.number()
    }

    /// Returns true if the application serializes all calls around the lock.
    pub fn is_serialized(&self) -> bool {
        !matches!(self.level, Level::Shared)
    }

    /// Returns true if library threads may enter ([`access`](Self::access)).
    pub fn admits_visitors(&self) -> bool {
        !matches!(self.level, Level::Serialized)
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match &self.level {
            Level::Shared => self.acquire(),
            Level::Serialized => self.mark(),
            Level::Gated(biased_lock) => biased_lock.enter(),
        }
        Guard { lock: self }
    }

    /// Takes the lock for a caller holding another lock of the same domain. The mark or biased lock
    /// of the outer one excludes other threads already.
    #[inline(always)]
    pub fn lock_within(&self) -> NestedGuard<'_, T> {
        if let Level::Shared = self.level {
            self.acquire();
        }
        NestedGuard { lock: self }
    }

    /// Returns true if [`lock_within`](Self::lock_within) has nothing to do.
    pub fn is_alone(&self) -> bool {
        !matches!(self.level, Level::Shared)
    }

    /// Returns the value, for a caller of [`lock_within`](Self::lock_within) on a lock with
    /// [nothing to do](Self::is_alone).
    ///
    /// # Safety
    /// [`is_alone`](Self::is_alone) is true, and no other reference to the value exists while the
    /// caller has this one.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "that is what the caller promises")]
    pub(crate) unsafe fn alone(&self) -> &mut T {
        // SAFETY: by this function's contract.
        unsafe { &mut *self.value.get() }
    }

    /// Takes a lock known to be of [`Level::Serialized`]. Panics if it is of another level.
    #[inline(always)]
    pub fn lock_serialized(&self) -> Serialized<'_, T> {
        assert!(matches!(self.level, Level::Serialized));
        self.mark();
        Serialized { lock: self }
    }

    /// Takes the lock for work other threads can do as well. Returns `None` if a thread holds the
    /// lock or waits for it. Otherwise a thread taking it repeatedly would hold it most of the
    /// time, and waiting threads would rarely get it.
    #[inline]
    pub fn lock_if_idle(&self) -> Option<Guard<'_, T>> {
        match &self.level {
            Level::Shared => {}
            Level::Serialized => return Some(self.lock()),
            Level::Gated(biased_lock) => {
                return biased_lock.enter_at_once().then(|| Guard { lock: self });
            }
        }
        if self.waiters.load(Ordering::Relaxed) != 0 {
            yield_now();
            return None;
        }
        let free = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        free.is_ok().then(|| Guard { lock: self })
    }

    /// Takes a lock of the level with number `LEVEL`, in a few instructions, if neither a call of
    /// the application nor a visitor is inside. A function without other work needs no stack frame,
    /// if nothing in it calls or panics; for [`Level::Shared`] see [`quickly`](Self::quickly).
    /// Returns `None` for a lock of another level.
    #[inline(always)]
    pub fn try_lock_fast<const LEVEL: usize>(&self) -> Option<FastGuard<'_, T>> {
        match &self.level {
            Level::Serialized if LEVEL == Level::SERIALIZED => {
                if self.state.load(Ordering::Relaxed) != FREE {
                    return None;
                }
                self.state.store(HELD, Ordering::Relaxed);
                Some(FastGuard { lock: self, release: FastRelease::Mark })
            }
            Level::Shared if LEVEL == Level::SHARED => {
                let (held, fail) = (Ordering::Acquire, Ordering::Relaxed);
                self.state.compare_exchange(FREE, HELD, held, fail).ok()?;
                Some(FastGuard { lock: self, release: FastRelease::Shared })
            }
            Level::Gated(biased_lock) if LEVEL == Level::GATED => {
                let biased_lock: &BiasedLock = biased_lock;
                if biased_lock.inside.load(Ordering::Relaxed) {
                    return None;
                }
                biased_lock.announce();
                if biased_lock.was_accessed.load(Ordering::Acquire) {
                    biased_lock.leave();
                    return None;
                }
                Some(FastGuard { lock: self, release: FastRelease::Biased(biased_lock) })
            }
            _ => None,
        }
    }

    /// Uses the value of a lock of [`Level::Shared`] if the lock is free and no thread requests it;
    /// `use_it` must not panic. Returns `None` if the lock is held, or of another level. Else
    /// returns the result, and true if a thread sleeps until it gets the lock. The caller then has
    /// to call [`Lock::wake_waiter`].
    #[inline(always)]
    pub fn quickly<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> Option<(R, bool)> {
        let Level::Shared = self.level else { return None };
        let free = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        free.ok()?;
        // SAFETY: the lock is held.
        let result = use_it(unsafe { &mut *self.value.get() });
        Some((result, self.state.swap(FREE, Ordering::Release) == CONTENDED))
    }

    /// Uses the value of a lock of [`Level::Serialized`] if no call of the application is inside; the use
    /// must not panic. Returns `None` if one is, or for a lock of another level. There is no guard, and so
    /// no call to drop it.
    #[inline(always)]
    pub fn quickly_serialized<U: LockUse<T>>(&self, to_do: U) -> Option<U::Result> {
        let Level::Serialized = self.level else { return None };
        if self.state.load(Ordering::Relaxed) != FREE {
            return None;
        }
        self.state.store(HELD, Ordering::Relaxed);
        // SAFETY: no other call is inside, and none comes in: the application serializes its calls.
        let result = to_do.use_value(unsafe { &mut *self.value.get() });
        self.state.store(FREE, Ordering::Relaxed);
        Some(result)
    }

    /// Uses the value from a thread of the library; none if another thread holds the lock, or
    /// the application wants no thread of the library.
    pub fn run_for_library<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        match &self.level {
            Level::Shared => self.lock_if_idle().map(|mut guard| use_it(&mut guard)),
            Level::Serialized => None,
            Level::Gated(biased_lock) => {
                let _access = biased_lock.run_for_library()?;
                // SAFETY: the application is not inside, and does not come in
                // while the visit lasts; neither does another visitor.
                Some(use_it(unsafe { &mut *self.value.get() }))
            }
        }
    }

    #[inline]
    fn acquire(&self) {
        let free = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if free.is_err() {
            self.acquire_contended();
        }
    }

    #[inline(always)]
    fn expect_free(&self) {
        assert!(self.state.load(Ordering::Relaxed) == FREE, "{OVERLAP}");
    }

    #[inline(always)]
    fn mark(&self) {
        self.expect_free();
        self.state.store(HELD, Ordering::Relaxed);
    }

    #[cold]
    fn acquire_contended(&self) {
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == FREE
                && self
                    .state
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            spin_loop();
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            sleep_while(&self.state, CONTENDED);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline]
    fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            wake_one(&self.state);
        }
    }

    /// Wakes a thread sleeping until it gets the lock, after its release ([`Lock::quickly`]).
    #[cold]
    pub fn wake_waiter(&self) {
        wake_one(&self.state);
    }

    /// Releases a lock of any level.
    #[inline(always)]
    fn leave(&self) {
        if let Level::Serialized = self.level {
            return self.state.store(FREE, Ordering::Relaxed);
        }
        match &self.level {
            Level::Gated(biased_lock) => biased_lock.leave(),
            _ => self.release(),
        }
    }
}

/// Access to the value, for as long as the lock is held.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

/// Access to the value under [`Lock::lock_within`], while another lock of the domain is held.
#[derive(Debug)]
pub struct NestedGuard<'a, T> {
    lock: &'a Lock<T>,
}

/// Use of a locked value in place: unlike the code of a closure, its code cannot become a call.
pub trait LockUse<T> {
    /// Result of the use.
    type Result;

    /// Uses the value; implemented with `inline(always)`.
    fn use_value(self, value: &mut T) -> Self::Result;
}

/// Access to the value under [`Lock::try_lock_fast`].
#[derive(Debug)]
pub struct FastGuard<'a, T> {
    lock: &'a Lock<T>,
    release: FastRelease<'a>,
}

/// Release of a [`FastGuard`]'s lock, by its level.
#[derive(Debug)]
enum FastRelease<'a> {
    Mark,
    Shared,
    Biased(&'a BiasedLock),
}

/// Access to the value under [`Lock::lock_serialized`].
#[derive(Debug)]
pub struct Serialized<'a, T> {
    lock: &'a Lock<T>,
}

macro_rules! gives_the_value {
    ($guard:ident, $this:ident => $leave:expr) => {
        impl<T> Deref for $guard<'_, T> {
            type Target = T;
            #[inline]
            fn deref(&self) -> &T {
                // SAFETY: the guard exists only while the lock is held.
                unsafe { &*self.lock.value.get() }
            }
        }

        impl<T> DerefMut for $guard<'_, T> {
            #[inline]
            fn deref_mut(&mut self) -> &mut T {
                // SAFETY: the guard exists only while the lock is held, and is
                // borrowed mutably.
                unsafe { &mut *self.lock.value.get() }
            }
        }

        impl<T> Drop for $guard<'_, T> {
            #[inline(always)]
            fn drop(&mut self) {
                let $this = self;
                $leave;
            }
        }
    };
}

gives_the_value!(Guard, this => this.lock.leave());
gives_the_value!(NestedGuard, this => if let Level::Shared = this.lock.level {
    this.lock.release();
});
gives_the_value!(FastGuard, this => match this.release {
    FastRelease::Biased(biased_lock) => biased_lock.leave(),
    FastRelease::Mark => this.lock.state.store(FREE, Ordering::Relaxed),
    FastRelease::Shared => this.lock.release(),
});
gives_the_value!(Serialized, this => this.lock.state.store(FREE, Ordering::Relaxed));

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
    fn fast_lock_path_excludes_other_threads_and_wakes_waiters() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..20_000).for_each(|_| *lock.lock() += 1));
                scope.spawn(|| {
                    let mut times = 0;
                    while times < 20_000 {
                        let Some((_, wake)) = lock.quickly(|value| *value += 1) else { continue };
                        times += 1;
                        if wake {
                            lock.wake_waiter();
                        }
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
        fn try_lock_fast(lock: &Lock<u64>) -> Option<()> {
            let serialized = lock.try_lock_fast::<{ Level::SERIALIZED }>();
            let own = serialized.or_else(|| lock.try_lock_fast::<{ Level::GATED }>());
            *own.or_else(|| lock.try_lock_fast::<{ Level::SHARED }>())? += 1;
            Some(())
        }
        let levels = [Level::Serialized, Level::Shared].into_iter();
        for level in levels.chain(BiasedLock::new().map(Level::Gated)) {
            let lock = Lock::with_level(0, level);
            let guard = lock.lock();
            assert_eq!(try_lock_fast(&lock), None);
            drop(guard);
            assert_eq!(try_lock_fast(&lock), Some(()));
            assert_eq!(*lock.lock(), 1);
            let quick = lock.quickly(|value| *value += 1);
            assert_eq!(quick.is_some(), matches!(lock.level, Level::Shared));
        }
    }

    #[test]
    fn optional_lock_attempt_yields_to_waiters() {
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
    fn serialized_lock_detects_double_locking() {
        for level in [Some(Level::Serialized), BiasedLock::new().map(Level::Gated)] {
            let Some(level) = level else {
                crate::testing::skip("no membarrier");
                continue;
            };
            let lock = Lock::with_level((), level);
            let guard = lock.lock();
            let twice = std::panic::AssertUnwindSafe(|| drop(lock.lock()));
            assert!(std::panic::catch_unwind(twice).is_err());
            drop(guard);
            drop(lock.lock());
        }
    }

    #[test]
    fn visitors_and_the_application_count_without_losing_one() {
        const TIMES: u64 = 20_000;
        let Some(biased_lock) = BiasedLock::new() else {
            return crate::testing::skip("no membarrier");
        };
        let lock = Lock::with_level(0u64, Level::Gated(biased_lock.clone()));
        let other = Lock::with_level(0u64, Level::Gated(biased_lock));
        let ended = AtomicBool::new(false);
        let accesses = std::thread::scope(|scope| {
            let visitors = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut accesses = 0;
                    while !ended.load(Ordering::Relaxed) {
                        let access = lock.run_for_library(|value| {
                            *value += 1;
                            *other.lock_within() += 1;
                        });
                        accesses += u64::from(access.is_some());
                    }
                    accesses
                })
            });
            for _ in 0..TIMES {
                *lock.lock() += 1;
                *other.lock() += 1;
            }
            // Each one enters after the other has left.
            while *lock.lock() == TIMES {
                std::thread::yield_now();
            }
            ended.store(true, Ordering::Relaxed);
            visitors.map(|visitor| visitor.join().unwrap())
        });
        let all = TIMES + accesses.iter().sum::<u64>();
        assert_eq!(*lock.lock(), all);
        assert_eq!(*other.lock(), all);
    }

    /// The visitor may wait for something held by the caller: an owner of receives starts a message
    /// while the visitor requests a receive from it.
    #[test]
    fn optional_lock_attempt_fails_during_library_access() {
        let Some(biased_lock) = BiasedLock::new() else {
            return crate::testing::skip("no membarrier");
        };
        let lock = Lock::with_level(0, Level::Gated(biased_lock));
        let access = lock.run_for_library(|_| assert!(lock.lock_if_idle().is_none()));
        assert_eq!(access, Some(()));
        assert!(lock.lock_if_idle().is_some());
    }

    #[test]
    fn a_visitor_stays_out_while_the_application_is_inside() {
        let Some(biased_lock) = BiasedLock::new() else {
            return crate::testing::skip("no membarrier");
        };
        let lock = Lock::with_level(0, Level::Gated(biased_lock));
        let guard = lock.lock();
        assert_eq!(lock.run_for_library(|_| ()), None);
        drop(guard);
        assert_eq!(lock.run_for_library(|value| *value), Some(0));
    }
}
