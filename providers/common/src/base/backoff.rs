//! Backoff of threads whose polls find nothing.
//!
//! Many programs poll without a pause, and some run more threads than there are processors. Each thread
//! then keeps its processor until the kernel preempts it, and a thread with work waits for
//! milliseconds. So a thread with empty polls yields its processor. The duration of the yield shows if
//! another thread took the processor. If none does, yields become rare, and their cost is not
//! measurable.
//!
//! | duration of the yield | other threads | subsequent policy |
//! |---|---|---|
//! | next to nothing | none | one yield after 50 us of empty polls, then after twice as many polls |
//! | short | yes, also polling | a yield with every empty poll but the first few |
//! | very long | yes, computing | after 50 us short sleeps instead of yields, for a while |
//! | very long, after short ones | yes, a crowd of polling ones, or computing after several | as before |
//!
//! A yield to a computing thread costs a whole time slice, thousands of times the response time of a
//! peer running on another processor. So the caller keeps polling for the possible response time of a
//! running peer. After this time the peer probably does not run. The response wakes a sleeping thread,
//! and the scheduler prefers it to computing threads because it has not used its share. The caller may
//! also poll for something unable to wake it, so the sleeps are short, and there are none after a long
//! time without events. For some time after the detection of other polling threads, yields begin after
//! 16 polls.
//!
//! With many polling threads for each processor the peer rarely runs, and each poll delays the response.
//! Others take a thread polling for 50 us for a computing one. So each process keeps a score of its
//! waits: an event within 50 us raises it, 50 us without one lower it. At a low score, yields begin
//! after 16 polls, sleeps after 4, and only one wait in 64 polls for 50 us.
//!
//! Only callers in a tight polling loop back off: a caller absent for longer than a poll takes either
//! computes or yields by itself.
use crate::sys::fine_now;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Maximum nanoseconds between two polls of a caller in a tight polling loop.
const AT_ONCE: u64 = 3_000;

/// Nanoseconds below which a yield was not used by another thread.
const DECLINED: u64 = 2_000;

/// Nanoseconds above which a yield was used by a computing thread.
const SLICE: u64 = 500_000;

/// Empty polls before the first yield, if polling threads needed the processor recently.
const FIRST_YIELD: u32 = 16;

/// Nanoseconds of empty polls before the first yield or the first sleep, if no other thread is
/// known to need the processor, or if the others are computing.
const SPIN: u64 = 50_000;

/// Maximum score of waits. An event within [`SPIN`] nanoseconds raises the score by 1.
const SCORE_MOST: u8 = 64;

/// Decrease of the score by a wait of [`SPIN`] nanoseconds without an event.
const SCORE_LOSS: u8 = 8;

/// Minimum score for polls of [`SPIN`] nanoseconds.
const SCORE_WORTH: u8 = 32;

/// Distance of two waits with polls of [`SPIN`] nanoseconds at a low score.
const PROBE: u32 = 64;

/// Nanoseconds after the detection of polling threads during which others are expected to poll.
const LATELY: u64 = 1_000_000_000;

/// Empty polls before the first yield. Some callers poll several queues one after the other, and
/// then yield by themselves.
const FEW: u32 = 4;

/// Consecutive yields without effect after which no other thread is assumed to need the processor.
const DECLINED_OFTEN: u8 = 2;

/// Consecutive yields of more than [`SLICE`] after which polling threads are assumed to compute. A yield
/// to a crowd of polling threads takes as long as all of their polls.
const LONG_OFTEN: u8 = 8;

/// Initial and maximum time, in nanoseconds, without yields after a computing thread took the
/// processor. The time grows while such threads are present.
const PAUSE: u64 = 10_000_000;
const PAUSE_MOST: u64 = 640_000_000;

/// First sleep in nanoseconds; the kernel adds its timer slack. Each sleep without an event is
/// followed by one twice as long.
const SLEEP: u64 = 50_000;

/// Maximum number of times the sleep is doubled.
const DOUBLED: u32 = 4;

/// Nanoseconds without an event after which a caller does not sleep: it may wait for something
/// unable to end a sleep.
const QUIET: u64 = 1_000_000_000;

/// Kind of other threads needing the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Contender {
    None,
    Poll,
    Compute,
}

/// Observations of this process about other threads needing the processor.
#[derive(Debug)]
struct CpuContention {
    /// An [`Contender`], as a number.
    others: AtomicU8,
    /// Consecutive yields without effect.
    declined: AtomicU8,
    /// Consecutive yields of more than [`SLICE`] to polling threads.
    long: AtomicU8,
    /// Time of the next yield to computing threads, in nanoseconds of [`fine_now`], and its
    /// distance from the last yield.
    again_at: AtomicU64,
    pause: AtomicU64,
    /// Time of the last yield taken by a polling thread, in nanoseconds of [`fine_now`]; 0: never.
    polled_at: AtomicU64,
    /// Score of waits, 0 to [`SCORE_MOST`].
    spin_score: AtomicU8,
}

static CPU_CONTENTION: CpuContention = CpuContention::new();

impl CpuContention {
    const fn new() -> Self {
        Self {
            others: AtomicU8::new(Contender::None as u8),
            declined: AtomicU8::new(0),
            long: AtomicU8::new(0),
            again_at: AtomicU64::new(0),
            pause: AtomicU64::new(PAUSE),
            polled_at: AtomicU64::new(0),
            spin_score: AtomicU8::new(SCORE_MOST),
        }
    }

    /// Returns true if polling threads needed the processor recently.
    fn have_polled(&self, now: u64) -> bool {
        let at = self.polled_at.load(Ordering::Relaxed);
        at != 0 && now.saturating_sub(at) < LATELY
    }

    /// Returns true if the score is high enough for polls of [`SPIN`] nanoseconds.
    #[inline]
    fn is_spin_worth(&self) -> bool {
        self.spin_score.load(Ordering::Relaxed) >= SCORE_WORTH
    }

    /// Records a wait with an event before any backoff.
    #[inline]
    fn record_hit(&self) {
        let score = self.spin_score.load(Ordering::Relaxed);
        if score < SCORE_MOST {
            self.spin_score.store(score + 1, Ordering::Relaxed);
        }
    }

    /// Records a wait of [`SPIN`] nanoseconds without an event.
    fn record_miss(&self) {
        let score = self.spin_score.load(Ordering::Relaxed);
        self.spin_score.store(score.saturating_sub(SCORE_LOSS), Ordering::Relaxed);
    }

    #[inline]
    fn others(&self) -> Contender {
        match self.others.load(Ordering::Relaxed) {
            n if n == Contender::Poll as u8 => Contender::Poll,
            n if n == Contender::Compute as u8 => Contender::Compute,
            _ => Contender::None,
        }
    }

    /// Records a yield of more than [`SLICE`]. Returns true if it may have been used by polling threads.
    fn is_crowd(&self) -> bool {
        let long = self.long.load(Ordering::Relaxed) + 1;
        let is_crowd = self.others() == Contender::Poll && long < LONG_OFTEN;
        self.long.store(if is_crowd { long } else { 0 }, Ordering::Relaxed);
        is_crowd
    }

    /// Records a yield from `start` to `end` (nanoseconds).
    fn record_yield(&self, start: u64, end: u64) {
        let others = match end.saturating_sub(start) {
            taken if taken < DECLINED => {
                let declined = self.declined.load(Ordering::Relaxed).saturating_add(1);
                self.declined.store(declined, Ordering::Relaxed);
                if declined < DECLINED_OFTEN {
                    return;
                }
                Contender::None
            }
            taken if taken < SLICE => {
                self.polled_at.store(end, Ordering::Relaxed);
                self.long.store(0, Ordering::Relaxed);
                Contender::Poll
            }
            _ if self.is_crowd() => Contender::Poll,
            _ => {
                let pause = self.pause.load(Ordering::Relaxed);
                self.again_at.store(end + pause, Ordering::Relaxed);
                self.pause.store((pause * 2).min(PAUSE_MOST), Ordering::Relaxed);
                Contender::Compute
            }
        };
        if others != Contender::None {
            self.declined.store(0, Ordering::Relaxed);
        }
        if others != Contender::Compute {
            self.pause.store(PAUSE, Ordering::Relaxed);
        }
        self.others.store(others as u8, Ordering::Relaxed);
    }
}

/// Returns true if other threads needed the processor at the last yield.
#[inline]
pub fn is_shared() -> bool {
    CPU_CONTENTION.others() != Contender::None
}

/// Backoff of a caller after empty polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackoffAction {
    /// The caller yields the processor to other threads (sched_yield(2)).
    Processor,
    /// The caller sleeps so many nanoseconds, or until there is something to do.
    Sleep(u64),
}

impl BackoffAction {
    /// Backs off. `fd` is readable when there is work. The caller must not hold a lock needed by
    /// other threads.
    pub fn make(self, fd: RawFd) {
        match self {
            Self::Processor => {
                let start = fine_now();
                std::thread::yield_now();
                let end = fine_now();
                CPU_CONTENTION.record_yield(start, end);
            }
            Self::Sleep(nanos) => crate::sys::sleep_on(fd, nanos),
        }
    }
}

/// Recent polls of one caller, or of all callers of one engine.
#[derive(Debug, Default)]
pub struct PollBackoff {
    /// Time of the last empty poll, in nanoseconds of [`fine_now`].
    last: u64,
    /// Number of consecutive empty polls.
    empty_polls: u32,
    /// Empty polls before the next yield.
    next: u32,
    /// Time of the last event, in nanoseconds of [`fine_now`], and the number of sleeps since.
    found: u64,
    slept: u32,
    /// True if a poll found an event between the last two empty polls.
    fresh: bool,
    is_tight: bool,
    /// True if the caller backed off since the last event.
    backed_off: bool,
    /// Number of waits.
    waits: u32,
}

impl PollBackoff {
    /// Returns true if the caller recently polled in a tight loop.
    #[inline]
    pub fn are_at_once(&self) -> bool {
        self.is_tight
    }

    /// Returns the end of the last empty poll, except the first of several, in nanoseconds of a
    /// monotonic clock.
    #[inline(always)]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Records an empty poll; `first` if the preceding poll found something. Returns the backoff
    /// action. It must be performed without a lock held.
    #[inline(always)]
    pub fn on_empty_poll(&mut self, first: bool) -> Option<BackoffAction> {
        if first {
            // A single empty poll is common. The next call detects further ones.
            self.fresh = true;
            return None;
        }
        let now = fine_now();
        self.empty_polls_at(now, &CPU_CONTENTION)
    }

    fn empty_polls_at(
        &mut self,
        now: u64,
        cpu_contention: &CpuContention,
    ) -> Option<BackoffAction> {
        self.is_tight = now.saturating_sub(self.last) < AT_ONCE;
        self.last = now;
        let fresh = std::mem::take(&mut self.fresh);
        if fresh {
            if self.empty_polls > 0 && !self.backed_off {
                cpu_contention.record_hit();
            }
            (self.found, self.slept, self.backed_off) = (now, 0, false);
            self.waits = self.waits.wrapping_add(1);
        }
        if fresh || !self.is_tight {
            (self.empty_polls, self.next) = (0, FIRST_YIELD);
            return None;
        }
        self.empty_polls = self.empty_polls.saturating_add(1);
        let backoff = self.backoff_at(now, cpu_contention);
        if backoff.is_some() && !self.backed_off {
            self.backed_off = true;
            if now.saturating_sub(self.found) >= SPIN {
                cpu_contention.record_miss();
            }
        }
        backoff
    }

    /// Returns the backoff action after an empty poll of a tight loop.
    #[inline(always)]
    fn backoff_at(&mut self, now: u64, cpu_contention: &CpuContention) -> Option<BackoffAction> {
        let is_spin_worth = || cpu_contention.is_spin_worth() || self.waits % PROBE == 0;
        let spins = now.saturating_sub(self.found) < SPIN && is_spin_worth();
        match cpu_contention.others() {
            _ if self.empty_polls < FEW => None,
            Contender::None if self.empty_polls < self.next => None,
            Contender::None if spins && !cpu_contention.have_polled(now) => None,
            Contender::Compute if spins => None,
            Contender::None => {
                self.next = self.empty_polls.saturating_mul(2);
                Some(BackoffAction::Processor)
            }
            Contender::Poll => Some(BackoffAction::Processor),
            Contender::Compute if now >= cpu_contention.again_at.load(Ordering::Relaxed) => {
                Some(BackoffAction::Processor)
            }
            Contender::Compute if now - self.found < QUIET => {
                self.slept += 1;
                Some(BackoffAction::Sleep(SLEEP << (self.slept - 1).min(DOUBLED)))
            }
            Contender::Compute => None,
        }
    }

    /// Records the end of a yield, so its duration does not count as the caller's own time.
    pub fn record_yield(&mut self) {
        self.last = fine_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the backoff actions of a caller polling `times` times in a tight loop.
    fn polls(
        own: &mut PollBackoff,
        times: u64,
        start: u64,
        cpu_contention: &CpuContention,
    ) -> Vec<(u64, BackoffAction)> {
        own.fresh = true;
        let poll = |n| Some((n, own.empty_polls_at(start + n * 300, cpu_contention)?));
        (0..times).filter_map(poll).collect()
    }

    #[test]
    fn unused_yields_become_rare() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        let made = polls(&mut own, 1000, 0, &cpu_contention);
        // The first after 50 us.
        assert_eq!(made, [167, 334, 668].map(|n| (n, BackoffAction::Processor)));
    }

    #[test]
    fn yields_start_early_if_other_threads_polled_recently() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        cpu_contention.record_yield(0, 20_000);
        (0..2).for_each(|_| cpu_contention.record_yield(30_000, 30_300));
        assert_eq!(cpu_contention.others(), Contender::None);
        let made = polls(&mut own, 100, 30_300, &cpu_contention);
        assert_eq!(made, [16, 32, 64].map(|n| (n, BackoffAction::Processor)));
    }

    #[test]
    fn every_empty_poll_is_followed_by_a_yield_while_others_use_them() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        cpu_contention.record_yield(0, 20_000);
        assert_eq!(cpu_contention.others(), Contender::Poll);
        assert_eq!(polls(&mut own, 10, 0, &cpu_contention).len(), 6);
        cpu_contention.record_yield(0, 300);
        assert_eq!(cpu_contention.others(), Contender::Poll);
        cpu_contention.record_yield(0, 300);
        assert_eq!(cpu_contention.others(), Contender::None);
        assert_eq!(polls(&mut own, 10, 100_000, &cpu_contention), []);
    }

    #[test]
    fn short_sleeps_replace_yields_while_other_threads_compute() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        cpu_contention.record_yield(0, 3_000_000);
        let made = polls(&mut own, 170, 3_000_000, &cpu_contention);
        assert_eq!(made, [167, 168, 169].map(|n| (n, BackoffAction::Sleep(SLEEP << (n - 167)))));
        let again = 3_000_000 + PAUSE;
        assert_eq!(polls(&mut own, 168, again, &cpu_contention), [(167, BackoffAction::Processor)]);
        // They are still there.
        cpu_contention.record_yield(again, again + 3_000_000);
        let still = polls(&mut own, 168, again + PAUSE + 3_000_000, &cpu_contention);
        assert_eq!(still, [(167, BackoffAction::Sleep(SLEEP))]);
    }

    #[test]
    fn long_yields_to_polling_threads_are_those_of_a_crowd_until_there_are_many() {
        let cpu_contention = CpuContention::new();
        let long = |start| cpu_contention.record_yield(start, start + SLICE);
        for _ in 0..2 {
            cpu_contention.record_yield(0, 20_000);
            (1..u64::from(LONG_OFTEN)).for_each(|n| long(n * SLICE));
            assert_eq!(cpu_contention.others(), Contender::Poll);
        }
        long(100 * SLICE);
        assert_eq!(cpu_contention.others(), Contender::Compute);
        // One is enough without polling threads.
        (0..2).for_each(|_| cpu_contention.record_yield(0, 300));
        assert_eq!(cpu_contention.others(), Contender::None);
        long(200 * SLICE);
        assert_eq!(cpu_contention.others(), Contender::Compute);
    }

    #[test]
    fn poller_without_events_for_long_does_not_sleep() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        own.fresh = true;
        own.empty_polls_at(0, &cpu_contention);
        cpu_contention.record_yield(QUIET - 3_000_000, QUIET);
        for n in 0..10 {
            assert_eq!(own.empty_polls_at(QUIET + n * 300, &cpu_contention), None);
        }
    }

    #[test]
    fn caller_with_long_gaps_between_polls_does_not_yield() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        cpu_contention.record_yield(0, 20_000);
        own.fresh = true;
        for n in 0..100 {
            assert_eq!(own.empty_polls_at(n * 10_000, &cpu_contention), None);
        }
        assert!(!own.are_at_once());
    }

    /// Records waits of 60 us without an event.
    fn miss_often(own: &mut PollBackoff, cpu_contention: &CpuContention) {
        for n in 0..10 {
            polls(own, 200, n * 100_000, cpu_contention);
        }
    }

    #[test]
    fn backoff_starts_early_while_long_polls_find_nothing() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        miss_often(&mut own, &cpu_contention);
        assert!(!cpu_contention.is_spin_worth());
        let made = polls(&mut own, 40, 2_000_000, &cpu_contention);
        assert_eq!(made, [16, 32].map(|n| (n, BackoffAction::Processor)));
        cpu_contention.record_yield(3_000_000, 6_000_000);
        let made = polls(&mut own, 7, 6_000_000, &cpu_contention);
        assert_eq!(made, [4, 5, 6].map(|n| (n, BackoffAction::Sleep(SLEEP << (n - 4)))));
    }

    #[test]
    fn one_wait_of_many_polls_for_long_while_long_polls_find_nothing() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        miss_often(&mut own, &cpu_contention);
        let first = |n| polls(&mut own, 200, n * 100_000, &cpu_contention)[0].0;
        let first: Vec<u64> = (100..100 + u64::from(PROBE)).map(first).collect();
        assert_eq!(first.iter().filter(|n| **n == 167).count(), 1);
        assert_eq!(first.iter().filter(|n| **n == 16).count(), PROBE as usize - 1);
    }

    #[test]
    fn long_polls_are_worth_their_time_again_after_events_in_time() {
        let (cpu_contention, mut own) = (CpuContention::new(), PollBackoff::default());
        miss_often(&mut own, &cpu_contention);
        for n in 0..=u64::from(SCORE_MOST) {
            assert_eq!(polls(&mut own, 10, 2_000_000 + n * 10_000, &cpu_contention), []);
        }
        assert!(cpu_contention.is_spin_worth());
    }

    #[test]
    fn a_sleep_ends_when_there_is_something_to_do() {
        let event = crate::sys::EventFd::new().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&event);
        BackoffAction::Sleep(SLEEP).make(fd);
        event.signal();
        // For ever, if it did not.
        crate::sys::sleep_on(fd, u64::MAX);
    }
}
