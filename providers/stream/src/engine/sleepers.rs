//! Threads that sleep while their peers may write to memory that nobody looks at.
//!
//! A thread that sleeps on the poller's descriptor must be woken whatever other threads do
//! meanwhile. So who prepares to sleep leaves a mark, and peers give signs until all marks are gone:
//! each thread takes its own away when it makes its next turn, or goes to do something else. A mark
//! that stays, of a thread that never comes back, costs peers a call for each message.

use ofi_provider::sys::thread_number;

/// Marks of the threads that prepared to sleep.
#[derive(Debug, Default)]
pub(super) struct Sleepers(Vec<usize>);

impl Sleepers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many threads there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The calling thread prepares to sleep.
    pub(super) fn add(&mut self) {
        if !self.0.contains(&thread_number()) {
            self.0.push(thread_number());
        }
    }

    /// The calling thread does not sleep.
    pub(super) fn remove(&mut self) {
        let own = thread_number();
        self.0.retain(|mark| *mark != own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_does_so_until_it_comes_back_itself() {
        let mut sleepers = Sleepers::default();
        sleepers.add();
        sleepers.add();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleepers.remove();
                assert!(!sleepers.is_empty(), "another thread sleeps");
                sleepers.add();
            });
        });
        sleepers.remove();
        sleepers.remove();
        assert_eq!(sleepers.0.len(), 1, "the other thread's mark stays");
    }
}
