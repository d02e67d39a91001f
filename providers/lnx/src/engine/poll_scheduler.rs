//! Polling rates of the cores of a domain.
//!
//! Each progress iteration polls the lead core, the one with the most recent activity, and the
//! other active cores. Idle cores are checked at a fixed interval of time.
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Consecutive empty polls of a core before it is idle.
const MAX_EMPTY_POLLS: u32 = 512;

/// Value of [`CoreActivity`] for an armed core: an idle one with a descriptor reporting each event.
const ARMED: u32 = MAX_EMPTY_POLLS + 1;

/// Recent activity of a core.
#[derive(Debug)]
pub(super) struct CoreActivity {
    /// Consecutive polls without a call from or to the core, at most [`MAX_EMPTY_POLLS`]; or
    /// [`ARMED`]. Concurrent threads may lose a poll, or a call until the next check of the idle
    /// cores.
    empty_polls: AtomicU32,
}

impl Default for CoreActivity {
    fn default() -> Self {
        Self { empty_polls: AtomicU32::new(MAX_EMPTY_POLLS) }
    }
}

impl CoreActivity {
    /// Records a call from or to the core; returns true if the core was idle.
    #[inline(always)]
    pub(super) fn record_call(&self) -> bool {
        let was_idle = !self.is_active();
        self.empty_polls.store(0, Ordering::Relaxed);
        was_idle
    }

    /// Returns true if each progress iteration polls the core.
    #[inline(always)]
    pub(super) fn is_active(&self) -> bool {
        self.empty_polls.load(Ordering::Relaxed) < MAX_EMPTY_POLLS
    }

    /// Records a poll; returns true if there were calls since the last one.
    pub(super) fn record_poll(&self) -> bool {
        let empty_polls = self.empty_polls.load(Ordering::Relaxed);
        self.empty_polls.store((empty_polls + 1).min(MAX_EMPTY_POLLS), Ordering::Relaxed);
        empty_polls == 0
    }

    /// Returns true if the core is armed: its descriptor becomes readable on any event.
    pub(super) fn is_armed(&self) -> bool {
        self.empty_polls.load(Ordering::Relaxed) == ARMED
    }

    /// Arms an idle core by `prepare`, unless this fails or a call is recorded meanwhile.
    pub(super) fn arm(&self, prepare: impl FnOnce() -> bool) {
        let empty_polls = self.empty_polls.load(Ordering::Acquire);
        if empty_polls == MAX_EMPTY_POLLS && prepare() {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = self.empty_polls.compare_exchange(empty_polls, ARMED, order.0, order.1);
        }
    }
}

/// Nanoseconds between two checks of the idle cores.
const CHECK_INTERVAL: u64 = 20_000;

/// Maximum number of progress iterations between two reads of the clock.
const MAX_ITERATIONS: u32 = 32;

/// Choice of the lead core, and of the progress iterations checking the idle cores.
///
/// The number of iterations between two reads of the clock doubles from one check of the idle cores
/// to the next one. So fast iterations rarely read the clock, and slow ones are not late. No lock is
/// taken: two concurrent iterations may count as one.
#[derive(Debug)]
pub(super) struct PollScheduler {
    /// Number of the lead core.
    lead: AtomicUsize,
    /// Progress iterations before the next read of the clock.
    iterations_left: AtomicU32,
    /// Progress iterations between the next two reads of the clock.
    iterations: AtomicU32,
    /// Time of the last check of the idle cores, in nanoseconds.
    last_check: AtomicU64,
    /// The lead core is the only one.
    is_single: bool,
}

impl PollScheduler {
    /// Creates the state for this number of cores.
    pub(super) fn new(cores: usize) -> Self {
        Self {
            lead: AtomicUsize::new(0),
            iterations_left: AtomicU32::new(0),
            iterations: AtomicU32::new(1),
            last_check: AtomicU64::new(0),
            is_single: cores == 1,
        }
    }

    /// Returns the number of the lead core.
    #[inline(always)]
    pub(super) fn lead(&self) -> usize {
        self.lead.load(Ordering::Relaxed)
    }

    /// Makes a core the lead core.
    pub(super) fn set_lead(&self, lead: usize) {
        self.lead.store(lead, Ordering::Relaxed);
    }

    /// Counts a progress iteration; returns true if it reads the clock for [`Self::is_check_due`].
    #[inline(always)]
    pub(super) fn count_iteration(&self) -> bool {
        let left = self.iterations_left.load(Ordering::Relaxed);
        if left != 0 {
            self.iterations_left.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// Returns true if the iteration at this time checks the idle cores; the next check is due after
    /// [`CHECK_INTERVAL`].
    pub(super) fn is_check_due(&self, now: u64) -> bool {
        if self.is_single {
            self.iterations_left.store(u32::MAX, Ordering::Relaxed);
            return false;
        }
        let is_due = now.saturating_sub(self.last_check.load(Ordering::Relaxed)) >= CHECK_INTERVAL;
        let mut iterations = 1;
        if is_due {
            self.last_check.store(now, Ordering::Relaxed);
        } else {
            iterations = self.iterations.load(Ordering::Relaxed);
        }
        self.iterations_left.store(iterations - 1, Ordering::Relaxed);
        self.iterations.store((2 * iterations).min(MAX_ITERATIONS), Ordering::Relaxed);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clock reads and checks in `count` iterations of `duration` nanoseconds.
    fn iterate(scheduler: &PollScheduler, now: &mut u64, count: u32, duration: u64) -> [u32; 2] {
        let [mut reads, mut checks] = [0; 2];
        for _ in 0..count {
            *now += duration;
            if scheduler.count_iteration() {
                reads += 1;
                checks += u32::from(scheduler.is_check_due(*now));
            }
        }
        [reads, checks]
    }

    #[test]
    fn idle_cores_are_checked_at_a_fixed_interval() {
        let (scheduler, mut now) = (PollScheduler::new(2), 1_000_000);
        // 2 milliseconds in iterations of 100 nanoseconds: a check each 20 to 23 microseconds.
        let [reads, checks] = iterate(&scheduler, &mut now, 20_000, 100);
        assert!((85..=100).contains(&checks), "{checks}");
        assert!(reads <= 20_000 / 16, "{reads}");
        // Iterations of 9 microseconds: a check after each 3 to 6.
        let [_, checks] = iterate(&scheduler, &mut now, 600, 9_000);
        assert!((100..=200).contains(&checks), "{checks}");
    }

    #[test]
    fn slow_iterations_after_fast_ones_are_late_once() {
        let (scheduler, mut now) = (PollScheduler::new(2), 1_000_000);
        iterate(&scheduler, &mut now, 20_190, 100);
        let [_, checks] = iterate(&scheduler, &mut now, 100, 1_000_000);
        assert!(checks >= 100 - MAX_ITERATIONS, "{checks}");
        assert_eq!(iterate(&scheduler, &mut now, 100, 1_000_000), [100, 100]);
    }

    #[test]
    fn single_core_is_polled_without_reading_the_clock() {
        let (scheduler, mut now) = (PollScheduler::new(1), 1_000_000);
        assert_eq!(iterate(&scheduler, &mut now, 10_000, 1_000_000), [1, 0]);
    }

    #[test]
    fn core_is_active_until_many_polls_were_empty() {
        let activity = CoreActivity::default();
        assert!(!activity.is_active() && !activity.record_poll());
        assert!(activity.record_call() && !activity.record_call());
        assert!(activity.record_poll());
        assert!((2..MAX_EMPTY_POLLS).all(|_| !activity.record_poll() && activity.is_active()));
        assert!(!activity.record_poll() && !activity.is_active());
        assert!(!activity.record_poll() && activity.record_call() && activity.is_active());
    }

    #[test]
    fn idle_core_is_armed_until_it_is_polled_or_called() {
        let activity = CoreActivity::default();
        activity.arm(|| false);
        assert!(!activity.is_armed());
        activity.arm(|| true);
        assert!(activity.is_armed() && !activity.is_active());
        assert!(!activity.record_poll() && !activity.is_armed() && !activity.is_active());
        activity.arm(|| true);
        assert!(activity.record_call() && !activity.is_armed() && activity.is_active());
        activity.arm(|| panic!("an active core is not armed"));
        for _ in 0..MAX_EMPTY_POLLS {
            activity.record_poll();
        }
        // A call of another thread while the core prepares.
        activity.arm(|| activity.record_call());
        assert!(!activity.is_armed() && activity.is_active());
    }
}
