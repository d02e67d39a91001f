//! The cores of a domain, and an endpoint's endpoints there: its rails.
use super::owner::{LnxFilling, RailOwner};
use crate::info::LnxCore;
use ofi_provider::abi::FI_ATOMIC;
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::core_provider::{CoreDomain, CoreRail, CoreWaiter};
use ofi_provider::info::InfoBuf;
use ofi_provider::lock::Level;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Looks at a core that brought nothing after which it is not looked at in each turn any more.
const COLD: u32 = 64;

/// What goes on at a core, by which it is decided how often to look there.
#[derive(Debug)]
pub(super) struct LnxTurns {
    /// How often the core has called, or was called.
    calls: AtomicU64,
    /// Transfers and receives under way, of which the core will tell, less injected ones that failed.
    under_way: AtomicIsize,
    /// Calls come one at a time.
    serialized: bool,
    /// It is looked at in each turn: something went on there lately, or will.
    hot: AtomicBool,
    /// The calls when it was looked at last, and the looks since the last one that brought any.
    seen: AtomicU64,
    idle: AtomicU32,
}

impl LnxTurns {
    fn new(level: &Level) -> Self {
        Self {
            calls: AtomicU64::new(0),
            under_way: AtomicIsize::new(0),
            serialized: matches!(level, Level::Serialized),
            hot: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            idle: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(super) fn called(&self) {
        // Nothing depends on each single call being counted.
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Something began of which the core will tell.
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
            // What one instruction would do without the others' leave takes much longer.
            self.under_way.store(self.under_way.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        } else {
            self.under_way.fetch_add(by, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(super) fn is_hot(&self) -> bool {
        self.hot.load(Ordering::Relaxed)
    }

    /// Something will go on.
    #[cold]
    pub(super) fn heat(&self) {
        self.idle.store(0, Ordering::Relaxed);
        self.hot.store(true, Ordering::Relaxed);
    }

    /// It was looked at: returns whether something had gone on since the last look.
    pub(super) fn looked(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        let busy = calls != self.seen.load(Ordering::Relaxed);
        if busy {
            self.seen.store(calls, Ordering::Relaxed);
            self.heat();
        } else {
            let idle = self.idle.load(Ordering::Relaxed).saturating_add(1);
            self.idle.store(idle, Ordering::Relaxed);
            if idle >= COLD && self.under_way.load(Ordering::Relaxed) == 0 {
                self.hot.store(false, Ordering::Relaxed);
            }
        }
        busy
    }
}

/// A core of the domain.
#[derive(Debug)]
pub(crate) struct OpenedCore {
    /// What makes progress for all endpoints there, if there is such; else each does by itself.
    pub(super) waiter: Option<CoreWaiter>,
    pub(crate) domain: Arc<CoreDomain>,
    pub(super) info: InfoBuf,
    pub(super) is_local: bool,
    /// The name of its fabric, by which addresses are for it or not.
    pub(super) fabric: Vec<u8>,
    pub(super) turns: Arc<LnxTurns>,
}

impl OpenedCore {
    /// A core whose domain was opened with its info.
    pub(crate) fn new(domain: Arc<CoreDomain>, core: LnxCore) -> Self {
        let LnxCore { info, is_local } = core;
        let fabric =
            info.as_ref().fabric_name().map_or(Vec::new(), |name| name.to_bytes().to_vec());
        let waiter = CoreWaiter::open(&domain);
        let turns = Arc::new(LnxTurns::new(&domain.level()));
        Self { waiter, domain, info, is_local, fabric, turns }
    }

    /// The name of its domain, for people.
    pub(super) fn domain_name(&self) -> String {
        let name = self.info.as_ref().domain_name();
        name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// Whether it has atomic operations.
    pub(crate) fn has_atomics(&self) -> bool {
        self.info.caps() & FI_ATOMIC != 0
    }
}

/// An endpoint's endpoint at a core.
#[derive(Debug)]
pub(crate) struct LnxRail {
    pub(crate) rail: CoreRail<RailOwner>,
    pub(super) owner: Arc<RailOwner>,
}

impl LnxRail {
    /// Has the core move a message that waits there to a receive, or drop it.
    pub(super) fn start(&self, entry: u32, filling: Option<LnxFilling>) {
        match filling {
            Some(filling) => {
                self.owner.turns.begin();
                self.owner.heat();
                let buf = filling.recv.buf.clone();
                self.rail.start(entry, &buf, filling);
            }
            None => self.rail.discard(entry),
        }
    }
}

/// The endpoints at the cores of all endpoints of a domain, and when those cores are looked at where
/// nothing goes on.
#[derive(Debug)]
pub(super) struct LnxRails {
    pub(super) all: Vec<Arc<LnxRail>>,
    pub(super) looks: LooksAtAll,
}

impl LnxRails {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), looks: LooksAtAll::new() }
    }
}

/// What turns need to know that look at one core and do nothing else: they take no lock, so that two at
/// a time may count as one.
#[derive(Debug, Default)]
pub(super) struct QuickTurns {
    /// The core where something went on last, which is looked at in each turn.
    lead: AtomicUsize,
    /// Turns until one asks the clock.
    left: AtomicU32,
}

impl QuickTurns {
    #[inline(always)]
    pub(super) fn lead(&self) -> usize {
        self.lead.load(Ordering::Relaxed)
    }

    pub(super) fn set_lead(&self, lead: usize) {
        self.lead.store(lead, Ordering::Relaxed);
    }

    /// Counts a turn: whether it asks the clock.
    #[inline(always)]
    pub(super) fn asks_the_clock(&self) -> bool {
        match self.left.load(Ordering::Relaxed) {
            0 => true,
            left => {
                self.left.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// A turn asked the clock, as the one does that comes so many turns later.
    pub(super) fn begin(&self, turns: u32) {
        self.left.store(turns - 1, Ordering::Relaxed);
    }
}

/// All cores are looked at when so much time has passed.
const COLD_TIME: Duration = Duration::from_micros(20);

/// Most turns from one look at the clock to the next.
const MOST_TURNS: u32 = 16;

/// Which turns look at all cores, also at those where nothing goes on: a look in vain costs time, and may
/// give the processor away. So does a look at the clock: the quicker turns follow each other, the fewer
/// of them look there.
#[derive(Debug)]
pub(super) struct LooksAtAll {
    /// The last look at all cores, and at the clock.
    last: Instant,
    last_time: Instant,
    /// Turns from one look at the clock to the next.
    gap: u32,
}

impl LooksAtAll {
    fn new() -> Self {
        let now = Instant::now();
        Self { last: now, last_time: now, gap: 1 }
    }

    /// Turns from the one that asked the clock last to the next that does.
    pub(super) fn gap(&self) -> u32 {
        self.gap
    }

    /// Whether this turn looks at all cores.
    pub(super) fn is_time_for_all(&mut self, now: Instant) -> bool {
        self.gap = match now - self.last_time {
            // As many turns as this may be too many next time.
            passed if passed >= COLD_TIME => 1,
            passed if passed >= COLD_TIME / 4 => self.gap,
            _ => (2 * self.gap).min(MOST_TURNS),
        };
        self.last_time = now;
        let due = now - self.last >= COLD_TIME;
        if due {
            self.last = now;
        }
        due
    }
}

/// The name of the host, as it is in addresses.
pub(super) fn host_name() -> Vec<u8> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_ascii().to_vec()
}

/// Data types and operations that there are.
const NUMBERS: usize = 20;

/// How long atomic operations may be: what every core has that was opened in this process.
pub(super) struct AtomicLimits;

static LIMITS: [AtomicUsize; 3 * NUMBERS * NUMBERS] =
    [const { AtomicUsize::new(usize::MAX) }; 3 * NUMBERS * NUMBERS];

/// The operations of these numbers.
fn place(operation: Operation) -> &'static AtomicUsize {
    let (datatype, op) = (operation.datatype() as usize, operation.op() as usize);
    &LIMITS[(operation.kind() as usize * NUMBERS + datatype) * NUMBERS + op]
}

impl AtomicLimits {
    /// Notes what these cores can do.
    pub(super) fn note<'a>(domains: impl Iterator<Item = &'a Arc<CoreDomain>> + Clone) {
        let kinds = [AtomicKind::Base, AtomicKind::Fetch, AtomicKind::Compare];
        for (kind, number) in kinds
            .into_iter()
            .flat_map(|kind| (0..NUMBERS * NUMBERS).map(move |number| (kind, number as u32)))
        {
            let numbers = (number / NUMBERS as u32, number % NUMBERS as u32);
            let Ok(operation) = Operation::new(kind, numbers.0, numbers.1) else { continue };
            let least = domains.clone().map(|domain| domain.max_atomic(operation)).min();
            place(operation).fetch_min(least.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Most bytes of an operation; 0 if a core does not have it.
    pub(super) fn most(operation: Operation) -> usize {
        match place(operation).load(Ordering::Relaxed) {
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

impl super::LnxEngine {
    /// Most bytes of elements that an atomic operation of this kind can have.
    pub(crate) fn most_atomic(operation: Operation) -> usize {
        AtomicLimits::most(operation)
    }

    /// Most bytes of elements that any atomic operation can have.
    pub(crate) fn most_atomic_bytes() -> usize {
        AtomicLimits::most_of_all()
    }

    /// Whether all cores have atomic operations.
    pub(crate) fn has_atomics(&self) -> bool {
        self.common.cores.iter().all(OpenedCore::has_atomics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns that look at all cores, of so many that follow each other in `pace`.
    fn looks(looks: &mut LooksAtAll, now: &mut Instant, turns: u32, pace: Duration) -> u32 {
        let (mut due, quick) = (0, QuickTurns::default());
        for _ in 0..turns {
            *now += pace;
            if quick.asks_the_clock() {
                due += u32::from(looks.is_time_for_all(*now));
                quick.begin(looks.gap());
            }
        }
        due
    }

    #[test]
    fn all_cores_are_looked_at_by_time_however_quickly_turns_follow() {
        let mut all = LooksAtAll::new();
        let mut now = all.last;
        // 100 nanoseconds each: in 2 milliseconds not more than one in 20 microseconds.
        let quick = looks(&mut all, &mut now, 20_000, Duration::from_nanos(100));
        assert!((60..=100).contains(&quick), "{quick}");
        assert_eq!(all.gap, MOST_TURNS);
        // Whoever turns slow after that is late once at most, and then looks each time.
        let slow = looks(&mut all, &mut now, 100, Duration::from_millis(1));
        assert!(slow >= 100 - MOST_TURNS, "{slow}");
        assert_eq!(all.gap, 1);
    }
}
