//! Waiters: threads sleeping until an engine has something to do.
//!
//! A thread sleeping on an engine's descriptor must be woken regardless of other threads. So a
//! thread preparing to sleep sets a mark, and peers writing to shared memory ring doorbells until
//! all marks are cleared. Each thread clears its own mark at its next progress iteration, or at
//! the end of its blocking call ([`Progress::end_wait`](crate::progress::Progress::end_wait)). A
//! remaining mark costs peers one system call per message.
use crate::sys::thread_number;

/// Marks of the threads prepared to sleep.
#[derive(Debug, Default)]
pub struct Waiters(Vec<usize>);

impl Waiters {
    /// Returns true if no thread is about to sleep.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of waiters.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The calling thread prepares to sleep.
    pub fn add(&mut self) {
        if !self.0.contains(&thread_number()) {
            self.0.push(thread_number());
        }
    }

    /// The calling thread does not sleep.
    pub fn remove(&mut self) {
        let own = thread_number();
        self.0.retain(|mark| *mark != own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiter_is_counted_until_its_own_thread_returns() {
        let mut waiters = Waiters::default();
        waiters.add();
        waiters.add();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                waiters.remove();
                assert!(!waiters.is_empty(), "another thread sleeps");
                waiters.add();
            });
        });
        waiters.remove();
        waiters.remove();
        assert_eq!(waiters.0.len(), 1, "the other thread's mark stays");
    }
}
