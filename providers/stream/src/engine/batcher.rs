//! Rules for holding back small messages, and for their later sending.
//!
//! The messages themselves are in the batches of their connections ([`batch`](super::batch)).
use super::batch::Burst;
use super::conn::StreamConn;
use super::transfer::TxSchedule;
use crate::transport::{FlushTimer, LinkClock, ShmLink, ShmTransport};
use std::mem::take;

/// Connections with held-back messages, and the flush timer.
pub(super) struct TxBatcher<F> {
    /// Connections with batched messages held back.
    held: Vec<u32>,
    /// Flush timer: thread sending batched messages if the application makes no call. None if the
    /// application serializes its calls or permits no thread of the library; then messages are held
    /// back only with FI_MORE.
    flusher: Option<F>,
    /// Number of the last progress iteration with held messages sent by the flush timer. If
    /// it is still the same, the application has not driven progress since, and a message held back
    /// now would wait for the flush timer again.
    app_idle: u64,
    /// Batches sent from the application's thread, without the flush timer.
    batches: u64,
    /// Progress iteration of the last message sent at once with calls for many connections, and its
    /// time (`left`).
    left_in: u64,
    left: Burst,
}

impl<F> Default for TxBatcher<F> {
    fn default() -> Self {
        Self {
            held: Vec::new(),
            flusher: None,
            app_idle: 0,
            batches: 0,
            left_in: 0,
            left: Burst::default(),
        }
    }
}

impl<F: FlushTimer> TxBatcher<F> {
    pub(super) fn set_flusher(&mut self, flusher: F) {
        self.flusher = Some(flusher);
    }

    /// Adds a connection to the list of connections with batched messages held back.
    pub(super) fn hold(&mut self, id: u32) {
        if !self.held.contains(&id) {
            self.held.push(id);
        }
    }

    /// Returns connections to the list.
    pub(super) fn hold_all(&mut self, ids: Vec<u32>) {
        self.held.extend(ids);
    }

    /// Removes an ended connection.
    pub(super) fn remove(&mut self, id: u32) {
        self.held.retain(|held| *held != id);
    }

    /// Connections with batched messages held back.
    #[inline(always)]
    pub(super) fn held(&self) -> &[u32] {
        &self.held
    }

    pub(super) fn take_held(&mut self) -> Vec<u32> {
        take(&mut self.held)
    }

    /// Takes the connections selected by `is_meant` off the list.
    pub(super) fn take_held_if(&mut self, is_meant: impl Fn(u32) -> bool) -> Vec<u32> {
        let (taken, others) = take(&mut self.held).into_iter().partition(|id| is_meant(*id));
        self.held = others;
        taken
    }

    /// Counts a batch sent from the application's thread.
    pub(super) fn count_batch(&mut self) {
        self.batches += 1;
    }

    /// Arms the flush timer. Returns false if there is none.
    pub(super) fn arm(&mut self, iterations: u64) -> bool {
        let done = iterations + self.batches;
        self.flusher.as_mut().is_some_and(|flusher| flusher.order(done))
    }

    /// Records an expiry of the flush timer: the application was idle if it has done nothing since
    /// the timer was armed.
    pub(super) fn expire(&mut self, iterations: u64) {
        let done = iterations + self.batches;
        if self.flusher.as_ref().is_some_and(|flusher| flusher.is_needed(done)) {
            self.app_idle = iterations;
        }
    }

    /// Returns true if no message may be held back: neither the application nor the flush timer
    /// would send it soon.
    #[inline(always)]
    pub(super) fn app_is_not_polling(&self, iterations: u64) -> bool {
        self.app_idle == iterations || self.flusher.is_none()
    }

    /// Returns true if messages may be batched here. Not if they do not follow each other closely,
    /// nor without a flush timer, nor over shared memory, because no system call is saved there.
    #[inline(never)]
    pub(super) fn gathers<N: ShmTransport<Flusher = F>>(
        &self,
        conn: &mut StreamConn<N>,
        net: &N,
    ) -> bool {
        self.app_idle != conn.sent_in
            && self.flusher.is_some()
            && !conn.link.tx_over_shm()
            && conn.batch.is_still_bursting(net)
    }

    /// Decides, with calls for many connections, if a small transfer is sent at once or together
    /// with those to other peers. Nothing is queued before it on its connection. `more`: the
    /// application announced others.
    pub(super) fn leaves_by_ring(
        &mut self,
        clock: &impl LinkClock,
        iteration: u64,
        more: bool,
    ) -> TxSchedule {
        let follows = self.left_in == iteration && !self.app_is_not_polling(iteration);
        if more || (follows && self.left.is_on(clock)) {
            return TxSchedule::Batched;
        }
        self.left_in = iteration;
        self.left.has_left(clock);
        if follows { TxSchedule::Next } else { TxSchedule::First }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Flush timer controlled by the test.
    #[derive(Debug, Default)]
    struct TestFlusher {
        seen: u64,
    }

    impl FlushTimer for TestFlusher {
        fn order(&mut self, done: u64) -> bool {
            self.seen = done;
            true
        }

        fn is_needed(&self, done: u64) -> bool {
            self.seen == done
        }
    }

    /// Clock set by the test.
    struct TestClock(Cell<u64>);

    impl LinkClock for TestClock {
        fn nanos(&self) -> u64 {
            self.0.get()
        }
    }

    #[test]
    fn nothing_is_held_back_for_an_application_without_progress() {
        let mut batcher = TxBatcher::<TestFlusher>::default();
        assert!(batcher.app_is_not_polling(7) && !batcher.arm(7), "there is no flush timer");
        batcher.set_flusher(TestFlusher::default());
        assert!(!batcher.app_is_not_polling(7) && batcher.arm(7));
        batcher.count_batch();
        batcher.expire(7);
        assert!(!batcher.app_is_not_polling(7), "the application has sent a batch meanwhile");
        assert!(batcher.arm(7));
        batcher.expire(7);
        assert!(batcher.app_is_not_polling(7) && !batcher.app_is_not_polling(8));
    }

    #[test]
    fn held_connections_are_listed_once_until_taken_or_ended() {
        let mut batcher = TxBatcher::<TestFlusher>::default();
        [3, 4, 3, 5].iter().for_each(|id| batcher.hold(*id));
        batcher.remove(4);
        assert_eq!(batcher.held(), [3, 5]);
        assert_eq!(batcher.take_held_if(|id| id == 5), [5]);
        batcher.hold_all(vec![6]);
        assert_eq!((batcher.take_held(), batcher.held().len()), (vec![3, 6], 0));
    }

    #[test]
    fn messages_to_many_peers_are_batched_from_the_second_of_an_iteration() {
        let (clock, mut batcher) = (TestClock(Cell::new(0)), TxBatcher::<TestFlusher>::default());
        batcher.set_flusher(TestFlusher::default());
        assert_eq!(batcher.leaves_by_ring(&clock, 9, false), TxSchedule::First);
        assert_eq!(batcher.leaves_by_ring(&clock, 9, false), TxSchedule::Batched);
        clock.0.set(1_000_000);
        assert_eq!(batcher.leaves_by_ring(&clock, 9, false), TxSchedule::Next, "not at once");
        assert_eq!(batcher.leaves_by_ring(&clock, 10, true), TxSchedule::Batched);
        assert_eq!(batcher.leaves_by_ring(&clock, 10, false), TxSchedule::First);
    }
}
