//! Primitives under locks, wait objects and rings. The programs of `model/` substitute another
//! version of this module to explore the possible interleavings of threads.
use core::cell::UnsafeCell;
pub(crate) use std::hint::spin_loop;
/// Compiler fence, equivalent to a full fence if the other side uses [`barrier_in_all_threads`].
pub(crate) use std::sync::atomic::compiler_fence;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread::yield_now;

/// Maximum polls of a held lock before a thread sleeps.
pub(crate) const SPINS: u32 = 100;

/// Cells of a ring.
pub(crate) const CELLS: usize = 32;

/// Bytes in memory shared by two processes. A conforming process uses them exclusively, but the
/// other one may break the rules, so no reference to them exists.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct SharedBytes<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: a reference to this gives no reference to the bytes.
unsafe impl<const N: usize> Sync for SharedBytes<N> {}

impl<const N: usize> SharedBytes<N> {
    #[allow(dead_code, reason = "for the programs of `model/`")]
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new([0; N]))
    }

    /// Reads the bytes.
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const u8) -> R) -> R {
        read(self.0.get().cast())
    }

    /// Writes the bytes.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut u8) -> R) -> R {
        write(self.0.get().cast())
    }
}

/// Number of words of a doorbell, each with bits for 64 connections.
pub(crate) const DOORBELL_WORDS: usize = 16;

/// Registers the process for [`barrier_in_all_threads`]. Returns false if the kernel has no such
/// barrier.
pub(crate) fn register_barriers() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// Makes all running threads of the process pass a memory barrier (membarrier(2)).
pub(crate) fn barrier_in_all_threads() -> bool {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

/// Registers the process for [`barrier_in_all_processes`]. Returns false if the kernel has no such
/// barrier.
pub(crate) fn register_global_barriers() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
}

/// Makes all running threads of the registered processes pass a memory barrier (membarrier(2)).
pub(crate) fn barrier_in_all_processes() -> bool {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: no memory of ours is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Sleeps while the word has this value; may return earlier (futex(2)).
#[cold]
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    futex(word, libc::FUTEX_WAIT, value);
}

/// Wakes one thread sleeping on this word.
#[cold]
pub(crate) fn wake_one(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, 1);
}

/// Wakes all threads sleeping on this word.
pub(crate) fn wake_all(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, libc::c_int::MAX as u32);
}

fn futex(word: &AtomicU32, op: libc::c_int, value: u32) {
    // SAFETY: the address is that of a live, aligned 32-bit word; a null timeout waits for
    // ever; spurious returns are handled by the callers.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            op | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        );
    }
}
