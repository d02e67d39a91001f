//! Barriers that running threads of all processes with pipes pass (membarrier(2)). They let the
//! writer of a ring go without a fence for each message, as long as its reader polls.
use crate::primitives::{barrier_in_all_processes, fence, register_global_barriers};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Barriers that were begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The last one of those that are over.
static OVER: AtomicU64 = AtomicU64::new(0);

/// Whether this process takes part in such barriers, which it does from the first question on if
/// the kernel has them.
pub(crate) fn are_there() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(register_global_barriers)
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
