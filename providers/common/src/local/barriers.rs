//! Memory barriers in the running threads of all processes with shared-memory pipes
//! (membarrier(2)). They save the writer of a ring a fence for each message while its reader polls.
//!
//! In a process with several threads the registration takes the time until the kernel has
//! interrupted all processors, possibly tens of milliseconds. So a process registers while it is
//! single-threaded ([`prepare`]), or in a library thread, and rings use fences until then.
use crate::primitives::{
    barrier_in_all_processes, fence, register_barriers, register_global_barriers,
};
use crate::worker::{Worker, rest};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Registration state of this process.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
/// A thread registers it.
const REGISTERING: u32 = 1;
const REGISTERED: u32 = 2;
/// The kernel has no such barriers.
const NONE: u32 = 3;

/// Number of started barriers.
static STARTED: AtomicU64 = AtomicU64::new(0);
/// Number of the last completed barrier.
static OVER: AtomicU64 = AtomicU64::new(0);

/// Registers the process if this takes no time, because it has one thread. At the load of the
/// library it often has.
pub(crate) fn prepare() {
    if STATE.load(Ordering::Relaxed) == UNKNOWN && crate::sys::threads() == Some(1) {
        register();
        // For locks ([`BiasedLock`](crate::lock::BiasedLock)), which register again.
        register_barriers();
    }
}

fn register() {
    let state = if register_global_barriers() { REGISTERED } else { NONE };
    STATE.store(state, Ordering::Release);
}

/// Returns true if this process takes part in such barriers. The first call starts the
/// registration, if the kernel supports it, and does not wait for it.
#[inline]
pub(crate) fn are_there() -> bool {
    match STATE.load(Ordering::Acquire) {
        REGISTERED => true,
        UNKNOWN => begin(),
        _ => false,
    }
}

#[cold]
fn begin() -> bool {
    prepare();
    let started =
        STATE.compare_exchange(UNKNOWN, REGISTERING, Ordering::Relaxed, Ordering::Relaxed);
    if started.is_ok() && Worker::start("ofi-barriers", || rest(register)).is_err() {
        // Fences do as well, and the next ring asks again.
        STATE.store(UNKNOWN, Ordering::Relaxed);
    }
    STATE.load(Ordering::Acquire) == REGISTERED
}

/// Returns the number of started barriers. A later one follows everything before this call.
pub(crate) fn started() -> u64 {
    fence(Ordering::SeqCst);
    STARTED.load(Ordering::SeqCst)
}

/// Waits for the end of a barrier started after the first `before` ones. Without barriers a fence
/// is sufficient, since the other processes then use fences as well.
pub(crate) fn pass_one_after(before: u64, barriers: bool) {
    fence(Ordering::SeqCst);
    if !barriers || OVER.load(Ordering::SeqCst) > before {
        return;
    }
    let number = STARTED.fetch_add(1, Ordering::SeqCst) + 1;
    if !barrier_in_all_processes() {
        // It was there before. What a processor has stored others see within this time.
        std::thread::sleep(Duration::from_millis(1));
    }
    OVER.fetch_max(number, Ordering::SeqCst);
}
