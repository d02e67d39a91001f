//! Threads that sleep while their peers may write to memory that nobody looks at.
//!
//! A thread that sleeps on the poller's descriptor must be woken whatever other threads do
//! meanwhile. So who prepares to sleep leaves a mark, and peers give signs until the marks are gone:
//! each thread takes its own away when it makes its next turn. A mark that stays, of a thread that
//! never comes back or does something else, costs peers a call for each message, so after many turns
//! of others all sleepers are woken and the marks are forgotten.
/// Turns of other threads after which a sleeper is woken, and after as many more forgotten.
const STALE: u32 = 1 << 11;

/// Marks of the threads that prepared to sleep.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    marks: Vec<usize>,
    /// Turns of other threads since a thread prepared to sleep last.
    turns: u32,
}

/// What tells the calling thread from all others that live.
fn mark() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl Sleepers {
    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The calling thread prepares to sleep.
    pub(super) fn add(&mut self) {
        self.turns = 0;
        if !self.marks.contains(&mark()) {
            self.marks.push(mark());
        }
    }

    /// The calling thread makes a turn. Returns whether nobody sleeps now, and whether all who do
    /// are to be woken.
    pub(super) fn turn(&mut self) -> (bool, bool) {
        let own = mark();
        self.marks.retain(|mark| *mark != own);
        self.turns = self.turns.saturating_add(1);
        if self.turns > 2 * STALE {
            self.marks.clear();
        }
        (self.is_empty(), self.turns == STALE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_is_woken_by_signs_until_it_comes_back() {
        let mut sleepers = Sleepers::default();
        sleepers.add();
        sleepers.add();
        assert_eq!((sleepers.is_empty(), sleepers.turn()), (false, (true, false)));
        std::thread::scope(|scope| {
            scope.spawn(|| sleepers.add()).join().unwrap();
        });
        sleepers.add();
        let news: Vec<_> = (0..2 * STALE).filter(|_| sleepers.turn() == (false, true)).collect();
        assert_eq!(news, [STALE - 1], "who stays away is woken once");
        assert!(!sleepers.is_empty());
        assert_eq!(sleepers.turn(), (true, false), "and then forgotten");
    }
}
