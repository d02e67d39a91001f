//! Barriers that running threads of all processes with pipes pass (membarrier(2)). They let the
//! writer of a ring go without a fence for each message, as long as its reader polls.
//!
//! To register for them takes a process with several threads as long as the kernel waits for all processors to pass
//! through it, which may be tens of milliseconds. So a process registers when it has one thread ([`prepare`]), or
//! in a thread of the library's, and rings do with fences until then.
use crate::primitives::{
    barrier_in_all_processes, fence, register_barriers, register_global_barriers,
};
use crate::worker::{Worker, rest};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Whether this process takes part.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
/// A thread registers it.
const REGISTERING: u32 = 1;
const REGISTERED: u32 = 2;
/// The kernel has no such barriers.
const NONE: u32 = 3;

/// Barriers that were begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The last one of those that are over.
static OVER: AtomicU64 = AtomicU64::new(0);

/// Registers the process if that takes no time now: it has one thread. When the library is loaded it often has.
pub(crate) fn prepare() {
    if STATE.load(Ordering::Relaxed) == UNKNOWN && crate::sys::threads() == Some(1) {
        register();
        // For locks ([`Gate`](crate::lock::Gate)), which register again.
        register_barriers();
    }
}

fn register() {
    let state = if register_global_barriers() { REGISTERED } else { NONE };
    STATE.store(state, Ordering::Release);
}

/// Whether this process takes part in such barriers. Soon after the first question it does, if the kernel has
/// them; the answer is not waited for.
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
    let begun = STATE.compare_exchange(UNKNOWN, REGISTERING, Ordering::Relaxed, Ordering::Relaxed);
    if begun.is_ok() && Worker::start("ofi-barriers", || rest(register)).is_err() {
        // Fences do as well, and the next ring asks again.
        STATE.store(UNKNOWN, Ordering::Relaxed);
    }
    STATE.load(Ordering::Acquire) == REGISTERED
}

/// How many barriers were begun: a later one comes after everything before this call.
pub(crate) fn begun() -> u64 {
    fence(Ordering::SeqCst);
    BEGUN.load(Ordering::SeqCst)
}

/// Sees to it that a barrier that was begun after so many others is over; where there are none a
/// fence is enough, since others then use fences as well.
pub(crate) fn pass_one_after(before: u64, barriers: bool) {
    fence(Ordering::SeqCst);
    if !barriers || OVER.load(Ordering::SeqCst) > before {
        return;
    }
    let number = BEGUN.fetch_add(1, Ordering::SeqCst) + 1;
    if !barrier_in_all_processes() {
        // It was there before. What a processor has stored others see within this time.
        std::thread::sleep(Duration::from_millis(1));
    }
    OVER.fetch_max(number, Ordering::SeqCst);
}
