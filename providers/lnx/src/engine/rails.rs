//! The cores of a domain and their polling.
use crate::info::LnxCore;
use ofi_provider::abi::FI_ATOMIC;
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::core_provider::{CoreDomain, CoreWaiter};
use ofi_provider::error::Result;
use ofi_provider::info::InfoBuf;
use ofi_provider::lock::Level;
use ofi_provider::sys::{Epoll, Interest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Consecutive empty polls of a core after which it becomes idle, and is not polled in each
/// progress iteration.
const COLD: u32 = 64;

/// Activity of a core, determining its polling rate.
#[derive(Debug)]
pub(super) struct CoreActivity {
    /// Number of calls from and to the core.
    calls: AtomicU64,
    /// Transfers and receives in progress, with a pending report of the core, less failed injected
    /// ones.
    under_way: AtomicIsize,
    /// Calls come one at a time.
    serialized: bool,
    /// True if each progress iteration polls it: it was active lately, or will be.
    active: AtomicBool,
    /// Calls at the last poll, and the polls since the last one with new calls.
    seen: AtomicU64,
    idle: AtomicU32,
}

impl CoreActivity {
    fn new(level: &Level) -> Self {
        Self {
            calls: AtomicU64::new(0),
            under_way: AtomicIsize::new(0),
            serialized: matches!(level, Level::Serialized),
            active: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            idle: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(super) fn called(&self) {
        // Nothing depends on each single call being counted.
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the approximate number of calls from and to the core.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Records the start of an operation with a later report of the core.
    #[inline]
    pub(super) fn begin(&self) {
        self.change(1);
    }

    /// It is over.
    #[inline]
    pub(super) fn over(&self) {
        self.change(-1);
    }

    #[inline]
    fn change(&self, by: isize) {
        if self.serialized {
            // An atomic read-modify-write would be much slower.
            self.under_way.store(self.under_way.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        } else {
            self.under_way.fetch_add(by, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Something will go on.
    #[cold]
    pub(super) fn mark_active(&self) {
        self.idle.store(0, Ordering::Relaxed);
        self.active.store(true, Ordering::Relaxed);
    }

    /// Records a poll; returns true if there was activity since the last one.
    pub(super) fn looked(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        let busy = calls != self.seen.load(Ordering::Relaxed);
        if busy {
            self.seen.store(calls, Ordering::Relaxed);
            self.mark_active();
        } else {
            let idle = self.idle.load(Ordering::Relaxed).saturating_add(1);
            self.idle.store(idle, Ordering::Relaxed);
            if idle >= COLD && self.under_way.load(Ordering::Relaxed) == 0 {
                self.active.store(false, Ordering::Relaxed);
            }
        }
        busy
    }
}

/// A core of the domain.
#[derive(Debug)]
pub(crate) struct OpenedCore {
    /// Progress function for all endpoints of the core, if available; otherwise each endpoint is
    /// polled.
    pub(super) waiter: Option<CoreWaiter>,
    pub(crate) domain: Arc<CoreDomain>,
    pub(super) info: InfoBuf,
    pub(super) is_local: bool,
    /// Name of its fabric, used to select addresses for it.
    pub(super) fabric: Vec<u8>,
    pub(super) activity: Arc<CoreActivity>,
}

impl OpenedCore {
    /// Creates the state of a core with its domain opened from its info.
    pub(crate) fn new(domain: Arc<CoreDomain>, core: LnxCore) -> Self {
        let LnxCore { info, is_local } = core;
        let fabric =
            info.as_ref().fabric_name().map_or(Vec::new(), |name| name.to_bytes().to_vec());
        let waiter = CoreWaiter::open(&domain);
        let activity = Arc::new(CoreActivity::new(&domain.level()));
        Self { waiter, domain, info, is_local, fabric, activity }
    }

    /// The name of its domain, for people.
    pub(super) fn domain_name(&self) -> String {
        let name = self.info.as_ref().domain_name();
        name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// Prepares for a pause in polling. Returns true if the core's descriptor becomes readable on
    /// any event. A local core is still polled while another one is: this costs little, and its
    /// peers would otherwise have to wake it.
    pub(super) fn rest(&self) -> bool {
        !self.is_local && self.waiter.as_ref().is_some_and(CoreWaiter::may_block)
    }

    /// Returns true if it has atomic operations.
    pub(crate) fn has_atomics(&self) -> bool {
        self.info.caps() & FI_ATOMIC != 0
    }
}

/// Idle cores. One system call checks all of them for events, as if a thread slept until then.
#[derive(Debug)]
pub(super) struct IdleCores {
    /// None if the kernel watches no more descriptors in this way: then each core is polled.
    epoll: Option<Epoll>,
    /// All cores not polled in each progress iteration [rest](OpenedCore::rest), and none was
    /// polled since.
    all: AtomicBool,
}

impl IdleCores {
    pub(super) fn new(cores: &[OpenedCore]) -> Self {
        let watch = || -> Result<Epoll> {
            let epoll = Epoll::new()?;
            let others = cores.iter().filter(|core| !core.is_local);
            for waiter in others.filter_map(|core| core.waiter.as_ref()) {
                epoll.add(waiter.fd(), 0, Interest::READ)?;
            }
            Ok(epoll)
        };
        Self { epoll: watch().ok(), all: AtomicBool::new(false) }
    }

    /// They rest from now on.
    pub(super) fn begin(&self) {
        self.all.store(true, Ordering::Release);
    }

    /// One of them is looked at.
    pub(super) fn disturb(&self) {
        self.all.store(false, Ordering::Release);
    }

    /// They rest, and nothing came since they do.
    pub(super) fn has_nothing_come(&self) -> bool {
        let Some(epoll) = self.epoll.as_ref().filter(|_| self.all.load(Ordering::Acquire)) else {
            return false;
        };
        epoll.wait(Some(Duration::ZERO), |_| {}).is_ok_and(|events| events == 0)
    }
}

/// Polling rate of idle cores: minimum and maximum nanoseconds between two polls, and the divisor
/// for the share of the time spent on such polls.
#[derive(Debug)]
struct PollInterval {
    pauses: [u64; 2],
    share: u64,
}

/// Rate while the leading core is active.
const BUSY: PollInterval = PollInterval { pauses: [100_000, 200_000], share: 256 };

/// Rate while it is idle: a waiting application may as well wait for data over another core.
const STILL: PollInterval = PollInterval { pauses: [5_000, 50_000], share: 16 };

/// Nanoseconds after an event of the leading core during which it counts as active.
const GOES_ON: u64 = 5_000;

/// Target in nanoseconds between two progress iterations reading the clock.
const ASKED_WITHIN: u64 = 10_000;

/// Maximum number of progress iterations between two reads of the clock.
const MAX_ITERATIONS: u32 = 32;

impl PollInterval {
    fn pause(&self, took: u64) -> u64 {
        took.saturating_mul(self.share).clamp(self.pauses[0], self.pauses[1])
    }
}

/// Selection of the core polled by a progress iteration without other work, and of the iterations
/// polling all cores, including idle ones. An empty poll costs time, and may yield the processor,
/// so its duration determines the time of the next one. Reading the clock costs time as well: the
/// faster the iterations, the fewer of them read it. No lock is taken, so two concurrent iterations
/// may count as one.
#[derive(Debug)]
pub(super) struct FastPollScheduler {
    /// Most recently active core, polled in each progress iteration.
    lead: AtomicUsize,
    /// There is no other.
    is_alone: bool,
    /// Progress iterations until the next reading of the clock, and the interval between such
    /// iterations.
    left: AtomicU32,
    gap: AtomicU32,
    /// When the clock was asked last, in nanoseconds of it.
    asked: AtomicU64,
    /// Calls of the leading core at this time, and the time of their last change.
    calls: AtomicU64,
    moved: AtomicU64,
    /// Time of the last poll of all cores, and the duration of polling the idle ones.
    looked: AtomicU64,
    took: AtomicU64,
}

impl FastPollScheduler {
    /// Creates the state for this number of cores.
    pub(super) fn new(cores: usize) -> Self {
        let (is_alone, zero) = (cores == 1, || AtomicU64::new(0));
        Self {
            is_alone,
            lead: AtomicUsize::new(0),
            left: AtomicU32::new(if is_alone { u32::MAX } else { 0 }),
            gap: AtomicU32::new(1),
            asked: zero(),
            calls: zero(),
            moved: zero(),
            looked: zero(),
            took: zero(),
        }
    }

    #[inline(always)]
    pub(super) fn lead(&self) -> usize {
        self.lead.load(Ordering::Relaxed)
    }

    pub(super) fn set_lead(&self, lead: usize) {
        self.lead.store(lead, Ordering::Relaxed);
    }

    /// Counts a progress iteration; returns false if it is one to read the clock and possibly poll
    /// all cores.
    #[inline(always)]
    pub(super) fn count_iteration(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left != 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left != 0
    }

    /// Returns true if all cores are to be polled, by the clock and [the calls](CoreActivity::calls) of
    /// the leading core.
    pub(super) fn is_time(&self, now: u64, calls: u64) -> bool {
        if self.is_alone {
            self.left.store(u32::MAX, Ordering::Relaxed);
            return false;
        }
        let since = |at: &AtomicU64| now.saturating_sub(at.load(Ordering::Relaxed));
        let gap = self.gap.load(Ordering::Relaxed);
        let gap = match since(&self.asked) {
            // As many turns as this may be too many next time.
            passed if passed >= ASKED_WITHIN => 1,
            passed if passed >= ASKED_WITHIN / 4 => gap,
            _ => (2 * gap).min(MAX_ITERATIONS),
        };
        self.gap.store(gap, Ordering::Relaxed);
        self.left.store(gap - 1, Ordering::Relaxed);
        self.asked.store(now, Ordering::Relaxed);
        if self.calls.load(Ordering::Relaxed) != calls {
            self.calls.store(calls, Ordering::Relaxed);
            self.moved.store(now, Ordering::Relaxed);
        }
        let pace = if since(&self.moved) < GOES_ON { BUSY } else { STILL };
        since(&self.looked) >= pace.pause(self.took.load(Ordering::Relaxed))
    }

    /// Records a poll of all cores, with the nanoseconds taken for idle ones.
    pub(super) fn looked(&self, now: u64, took: u64) {
        self.looked.store(now, Ordering::Relaxed);
        self.took.store(took, Ordering::Relaxed);
    }
}

/// The name of the host, as it is in addresses.
pub(super) fn host_name() -> Vec<u8> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_ascii().to_vec()
}

/// Number of data types and of operations.
const NUMBERS: usize = 20;

/// Maximum lengths of atomic operations: those supported by every core opened in this process.
pub(super) struct AtomicLimits;

static LIMITS: [AtomicUsize; 3 * NUMBERS * NUMBERS] =
    [const { AtomicUsize::new(usize::MAX) }; 3 * NUMBERS * NUMBERS];

/// The operations of these numbers.
fn threshold_of(operation: Operation) -> &'static AtomicUsize {
    let (datatype, op) = (operation.datatype() as usize, operation.op() as usize);
    &LIMITS[(operation.kind() as usize * NUMBERS + datatype) * NUMBERS + op]
}

impl AtomicLimits {
    /// Records the capabilities of these cores.
    pub(super) fn note<'a>(domains: impl Iterator<Item = &'a Arc<CoreDomain>> + Clone) {
        let kinds = [AtomicKind::Base, AtomicKind::Fetch, AtomicKind::Compare];
        for (kind, number) in kinds
            .into_iter()
            .flat_map(|kind| (0..NUMBERS * NUMBERS).map(move |number| (kind, number as u32)))
        {
            let numbers = (number / NUMBERS as u32, number % NUMBERS as u32);
            let Ok(operation) = Operation::new(kind, numbers.0, numbers.1) else { continue };
            let least = domains.clone().map(|domain| domain.max_atomic(operation)).min();
            threshold_of(operation).fetch_min(least.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Most bytes of an operation; 0 if a core does not have it.
    pub(super) fn most(operation: Operation) -> usize {
        match threshold_of(operation).load(Ordering::Relaxed) {
            usize::MAX => 0,
            most => most,
        }
    }

    /// Most bytes of any operation.
    pub(super) fn most_of_all() -> usize {
        let known = LIMITS.iter().map(|most| most.load(Ordering::Relaxed));
        known.filter(|most| *most != usize::MAX).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of iterations polling all cores, of `activity` iterations. `pace` is the
    /// time between iterations and the duration of such a poll in nanoseconds; `can_continue`: the
    /// leading core is active.
    fn looks(
        quick: &FastPollScheduler,
        now: &mut u64,
        count: u32,
        pace: [u64; 2],
        can_continue: bool,
    ) -> u32 {
        let ([pace, took], mut due) = (pace, 0);
        for _ in 0..count {
            *now += pace;
            let calls = if can_continue { *now } else { 0 };
            if !quick.count_iteration() && quick.is_time(*now, calls) {
                quick.looked(*now, took);
                due += 1;
            }
        }
        due
    }

    #[test]
    fn all_cores_are_polled_at_a_time_interval() {
        let (quick, mut now) = (FastPollScheduler::new(2), 1_000_000);
        // 100 nanoseconds each: in 2 milliseconds not more than one in 100 microseconds.
        let often = looks(&quick, &mut now, 20_000, [100, 100], true);
        assert!((18..=20).contains(&often), "{often}");
        assert_eq!(quick.gap.load(Ordering::Relaxed), MAX_ITERATIONS);
        // Looks that take a microsecond have one part of so many of the time, or the longest pause.
        let seldom = looks(&quick, &mut now, 20_000, [100, 1000], true);
        assert!((9..=11).contains(&seldom), "{seldom}");
        // Slow iterations after that are late once at most, and then poll each time.
        let slow = looks(&quick, &mut now, 100, [1_000_000, 1000], true);
        assert!(slow >= 100 - MAX_ITERATIONS, "{slow}");
        assert_eq!(quick.gap.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn all_cores_are_polled_more_often_if_the_lead_core_is_idle() {
        let (quick, mut now) = (FastPollScheduler::new(2), 1_000_000);
        looks(&quick, &mut now, 1000, [100, 100], true);
        // A look each 5 microseconds, and such as take a microsecond each 16.
        let waiting = looks(&quick, &mut now, 20_000, [100, 100], false);
        assert!((280..=400).contains(&waiting), "{waiting}");
        let dear = looks(&quick, &mut now, 20_000, [100, 1000], false);
        assert!((100..=126).contains(&dear), "{dear}");
    }

    #[test]
    fn single_core_is_polled_without_reading_the_clock() {
        let quick = FastPollScheduler::new(1);
        assert!((0..1000).all(|_| quick.count_iteration()));
        quick.left.store(0, Ordering::Relaxed);
        assert!(!quick.is_time(1 << 62, 1) && quick.left.load(Ordering::Relaxed) > MAX_ITERATIONS);
    }
}
