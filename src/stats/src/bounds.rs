//! Limits for reading the statistics of processes: of one process, of the processes of one user,
//! and in total.
//!
//! A process may publish any amount of data, and processes of other users are read too. The limits
//! are counts of small steps, none of them waiting for the process. Time limits exist for long
//! steps, such as reading swapped-out memory.
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Unit counted while processes are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookCost {
    /// Descriptor with its link read.
    Descriptor,
    /// Fixed part of any process with published statistics.
    Process,
    /// The state of a thread.
    Thread,
    /// Record of an endpoint, larger than the one of a peer.
    Endpoint,
    /// A record of a peer.
    Peer,
    /// Repeated read of a record changed during the read.
    Attempt,
}

impl LookCost {
    /// Returns the cost of one unit.
    fn amount(self) -> LookAmount {
        let steps = |steps| LookAmount { steps, ..LookAmount::default() };
        match self {
            Self::Descriptor => LookAmount { descriptors: 1, ..LookAmount::default() },
            Self::Process => steps(64),
            Self::Thread => steps(8),
            Self::Endpoint => steps(128),
            Self::Peer => steps(1),
            Self::Attempt => steps(4),
        }
    }
}

/// Amount of the limited resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LookAmount {
    descriptors: u64,
    steps: u64,
    time: Duration,
}

impl LookAmount {
    /// Maximum for one process: two memory segments with all possible records, and threads.
    const OF_PROCESS: Self =
        Self { descriptors: 1 << 20, steps: 280_000, time: Duration::from_secs(4) };
    /// Maximum for a user's processes: half of the total at most, so something is left for those of
    /// others.
    const OF_USER: Self =
        Self { descriptors: 1 << 20, steps: 1 << 20, time: Duration::from_secs(10) };
    /// The most of all processes.
    const IN_SUM: Self =
        Self { descriptors: 1 << 22, steps: 1 << 21, time: Duration::from_secs(20) };

    fn minus(self, spent: Self) -> Self {
        Self {
            descriptors: self.descriptors.saturating_sub(spent.descriptors),
            steps: self.steps.saturating_sub(spent.steps),
            time: self.time.saturating_sub(spent.time),
        }
    }

    fn plus(self, more: Self) -> Self {
        Self {
            descriptors: self.descriptors.saturating_add(more.descriptors),
            steps: self.steps.saturating_add(more.steps),
            time: self.time.saturating_add(more.time),
        }
    }

    fn least(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.min(other.descriptors),
            steps: self.steps.min(other.steps),
            time: self.time.min(other.time),
        }
    }
}

/// Amounts read by one pass, and its limits.
#[derive(Debug, Default)]
pub struct LookBounds {
    spent: LookAmount,
    of_users: HashMap<u32, LookAmount>,
}

impl LookBounds {
    /// Returns the limits for the next process, belonging to this user.
    pub fn begin(&self, user: u32) -> ProcessBounds {
        let of_user = self.of_users.get(&user).copied().unwrap_or_default();
        let left = LookAmount::OF_PROCESS
            .least(LookAmount::OF_USER.minus(of_user))
            .least(LookAmount::IN_SUM.minus(self.spent));
        ProcessBounds { user, left, spent: LookAmount::default(), began: Instant::now() }
    }

    /// Adds the amounts read of a process.
    pub fn end(&mut self, process: ProcessBounds) {
        let spent = LookAmount { time: process.began.elapsed(), ..process.spent };
        self.spent = self.spent.plus(spent);
        let of_user = self.of_users.entry(process.user).or_default();
        *of_user = of_user.plus(spent);
    }
}

/// Limits for one process.
#[derive(Debug)]
pub struct ProcessBounds {
    user: u32,
    left: LookAmount,
    spent: LookAmount,
    began: Instant,
}

impl ProcessBounds {
    /// No other bounds than those of one process.
    pub fn alone() -> Self {
        LookBounds::default().begin(0)
    }

    /// The same without a limit of time, for tests on a busy machine.
    #[cfg(test)]
    pub(crate) fn untimed() -> Self {
        let mut bounds = Self::alone();
        bounds.left.time = Duration::MAX;
        bounds
    }

    /// Reserves at most `wanted` of these units and returns the number granted.
    pub fn take(&mut self, cost: LookCost, wanted: usize) -> usize {
        let LookAmount { descriptors, steps, .. } = cost.amount();
        if wanted == 0 || self.began.elapsed() >= self.left.time {
            return 0;
        }
        let quotient = |left: u64, one: u64| left.checked_div(one).unwrap_or(u64::MAX);
        let most =
            quotient(self.left.descriptors, descriptors).min(quotient(self.left.steps, steps));
        let count = most.min(wanted as u64);
        let taken = LookAmount {
            descriptors: count * descriptors,
            steps: count * steps,
            time: Duration::ZERO,
        };
        self.left = self.left.minus(taken);
        self.spent = self.spent.plus(taken);
        count as usize
    }
}

/// Data of a process not read by a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeftOut {
    /// Records of endpoints and peers not read.
    pub records: u64,
    /// Records changing during every read.
    pub changing: u64,
    /// Memory segments resembling published statistics, and not opened.
    pub memories: u64,
    /// True if some descriptors were not examined, so there may be further segments.
    pub descriptors: bool,
    /// The states of some threads were not read.
    pub threads: bool,
}

impl LeftOut {
    /// Returns true if nothing was left out.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the numbers by name; 1 for an unknown number.
    pub fn numbers(&self) -> [(&'static str, u64); 5] {
        [
            ("records", self.records),
            ("changing_records", self.changing),
            ("memories", self.memories),
            ("descriptors", self.descriptors.into()),
            ("threads", self.threads.into()),
        ]
    }

    /// Returns the value with these numbers by name.
    pub fn of_numbers(number: impl Fn(&str) -> u64) -> Self {
        Self {
            records: number("records"),
            changing: number("changing_records"),
            memories: number("memories"),
            descriptors: number("descriptors") != 0,
            threads: number("threads") != 0,
        }
    }

    /// Adds data of the process left out elsewhere.
    pub fn add(&mut self, more: &Self) {
        self.records = self.records.saturating_add(more.records);
        self.changing = self.changing.saturating_add(more.changing);
        self.memories = self.memories.saturating_add(more.memories);
        self.descriptors |= more.descriptors;
        self.threads |= more.threads;
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = [
            (self.records, "records that were too many"),
            (self.changing, "records that changed while they were read"),
            (self.memories, "memories that were too many"),
        ];
        let known = [(self.descriptors, "some descriptors"), (self.threads, "some threads")];
        let counted = counted.iter().filter(|(count, _)| *count > 0);
        let counted = counted.map(|(count, what)| format!("{count} {what}"));
        let known = known.iter().filter(|(is, _)| *is).map(|(_, what)| (*what).to_string());
        f.write_str(&counted.chain(known).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_bound() {
        let mut bounds = ProcessBounds::alone();
        assert_eq!(bounds.take(LookCost::Peer, 5), 5);
        assert_eq!(bounds.take(LookCost::Peer, usize::MAX), 280_000 - 5);
        assert_eq!([bounds.take(LookCost::Peer, 1), bounds.take(LookCost::Endpoint, 1)], [0, 0]);
        assert_eq!(bounds.take(LookCost::Descriptor, usize::MAX), 1 << 20);
    }

    #[test]
    fn one_user_leaves_capacity_to_other_users() {
        let mut look = LookBounds::default();
        let mut read = |user| {
            let mut process = look.begin(user);
            let taken = process.take(LookCost::Peer, usize::MAX);
            look.end(process);
            taken
        };
        assert_eq!((0..9).map(|_| read(1)).sum::<usize>(), 1 << 20);
        assert_eq!(read(1), 0);
        assert_eq!(read(2), 280_000);
        // In sum there is a bound, too.
        assert_eq!((3..100).map(read).sum::<usize>(), (1 << 20) - 280_000);
    }

    #[test]
    fn time_is_bounded() {
        let mut look = LookBounds::default();
        let mut process = look.begin(1);
        process.began = Instant::now().checked_sub(LookAmount::OF_PROCESS.time).unwrap();
        assert_eq!(process.take(LookCost::Peer, 1), 0);
        process.began = process.began.checked_sub(LookAmount::OF_USER.time).unwrap();
        look.end(process);
        assert_eq!(look.begin(1).take(LookCost::Peer, 1), 0);
        assert_eq!(look.begin(2).take(LookCost::Peer, 1), 1);
    }

    #[test]
    fn omitted_records_are_reported() {
        let mut left_out = LeftOut { records: 7, threads: true, ..LeftOut::default() };
        left_out.add(&LeftOut { records: 1, memories: 2, ..LeftOut::default() });
        assert_eq!(
            left_out.to_string(),
            "8 records that were too many, 2 memories that were too many, some threads"
        );
        assert!(!left_out.is_nothing() && LeftOut::default().is_nothing());
    }
}
