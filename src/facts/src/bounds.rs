//! How much is read in one look at processes: of one of them, of those of one user, and in sum.
//!
//! What a process shows may be as much as it likes, and other users' processes are looked at too. The bounds
//! are counts of small steps, none of which waits for the process; times are there for steps that take long,
//! such as reading memory that was swapped out.
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Something that is counted while processes are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookCost {
    /// A descriptor whose link is read.
    Descriptor,
    /// What is read of any process that shows something.
    Process,
    /// The state of a thread.
    Thread,
    /// A record of an endpoint, of which more is told than of a peer.
    Endpoint,
    /// A record of a peer.
    Peer,
    /// One more attempt at a record that changed while it was read.
    Attempt,
}

impl LookCost {
    /// How much one costs.
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

/// An amount of what is bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LookAmount {
    descriptors: u64,
    steps: u64,
    time: Duration,
}

impl LookAmount {
    /// The most of one process: two memories with all records that there may be, and threads.
    const OF_PROCESS: Self =
        Self { descriptors: 1 << 20, steps: 280_000, time: Duration::from_secs(4) };
    /// The most of a user's processes: half of the sum at most, so that something is left for those of others.
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

/// What one look has read, and may still read.
#[derive(Debug, Default)]
pub struct LookBounds {
    spent: LookAmount,
    of_users: HashMap<u32, LookAmount>,
}

impl LookBounds {
    /// What may be read of the next process, which is this user's.
    pub fn begin(&self, user: u32) -> ProcessBounds {
        let of_user = self.of_users.get(&user).copied().unwrap_or_default();
        let left = LookAmount::OF_PROCESS
            .least(LookAmount::OF_USER.minus(of_user))
            .least(LookAmount::IN_SUM.minus(self.spent));
        ProcessBounds { user, left, spent: LookAmount::default(), began: Instant::now() }
    }

    /// Counts what was read of a process.
    pub fn end(&mut self, process: ProcessBounds) {
        let spent = LookAmount { time: process.began.elapsed(), ..process.spent };
        self.spent = self.spent.plus(spent);
        let of_user = self.of_users.entry(process.user).or_default();
        *of_user = of_user.plus(spent);
    }
}

/// What may be read of one process.
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

    /// Takes room for at most `wanted` of these; answers for how many there is any.
    pub fn take(&mut self, cost: LookCost, wanted: usize) -> usize {
        let LookAmount { descriptors, steps, .. } = cost.amount();
        if wanted == 0 || self.began.elapsed() >= self.left.time {
            return 0;
        }
        let room = |left: u64, one: u64| left.checked_div(one).unwrap_or(u64::MAX);
        let most = room(self.left.descriptors, descriptors).min(room(self.left.steps, steps));
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

/// What a look left out of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeftOut {
    /// Records of endpoints and peers that were not read.
    pub records: u64,
    /// Records that changed whenever they were read.
    pub changing: u64,
    /// Memories that look like what processes show, and were not opened.
    pub memories: u64,
    /// Some descriptors were not looked at, so that there may be further memories.
    pub descriptors: bool,
    /// The states of some threads were not read.
    pub threads: bool,
}

impl LeftOut {
    /// Whether that is nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The numbers by name; 1 where it is not known how many there are.
    pub fn numbers(&self) -> [(&'static str, u64); 5] {
        [
            ("records", self.records),
            ("changing_records", self.changing),
            ("memories", self.memories),
            ("descriptors", self.descriptors.into()),
            ("threads", self.threads.into()),
        ]
    }

    /// Adds what was left out elsewhere in the process.
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
    fn a_user_leaves_room_for_others() {
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
    fn what_is_left_out_is_said() {
        let mut left_out = LeftOut { records: 7, threads: true, ..LeftOut::default() };
        left_out.add(&LeftOut { records: 1, memories: 2, ..LeftOut::default() });
        assert_eq!(
            left_out.to_string(),
            "8 records that were too many, 2 memories that were too many, some threads"
        );
        assert!(!left_out.is_nothing() && LeftOut::default().is_nothing());
    }
}
