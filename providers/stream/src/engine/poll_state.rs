//! Schedule of an engine: polls of the poller, and the rest of its threads.
//!
//! Progress iterations are counted here, with and without progress. The poller is polled less often
//! while it has no events, and not at all in most iterations while data arrives through shared
//! memory. Peers omit doorbells while a thread polls, and ring them while one sleeps.
use ofi_provider::backoff::{self, BackoffAction, PollBackoff};
use ofi_provider::shm_channel::InlineRecv;
use ofi_provider::waiters::Waiters;

/// Maximum progress iterations between two polls of the poller.
const MAX_POLL_GAP: u32 = 64;

/// Empty progress iterations since the last activity in which the active connection is read
/// directly, even if the application does not poll in quick succession (`PollBackoff::are_at_once`).
const FEW: u32 = 2;

/// Empty polls of the memory of one or two connections that count as one: such a poll costs hardly
/// more than reading the clock.
const MEMORY_LOOKS: u32 = 4;

/// Progress iterations between two checks of the doorbells. After activity over shared memory the
/// poller is not polled before that.
const SIGN_GAP: u32 = 8;

/// Progress iterations after a sleep until peers may omit doorbells. Enabling doorbells again
/// before the next sleep costs more than the doorbells of a few messages.
const MIN_POLL_STREAK: u32 = 64;

/// Progress iterations of an engine, and its waiting threads.
#[derive(Debug)]
pub(super) struct PollState {
    /// Progress iterations since the creation of the engine.
    iterations: u64,
    /// Progress iterations since any connection was active.
    idle: u32,
    /// Iteration with the last poll of the poller, maximum of iterations from there to the next poll
    /// (`poll_gap`, 1 to [`MAX_POLL_GAP`]), and their sum.
    polled_in: u64,
    poll_gap: u32,
    next_poll: u64,
    /// Progress iterations with polls of shared memory since the last sleep of a thread, up to the
    /// number after which peers may omit doorbells.
    poll_streak: u32,
    /// Threads prepared to sleep on the poller's descriptor, without a progress iteration since;
    /// empty without connections over shared memory.
    waiters: Waiters,
    /// Polling pattern of the application while there is no progress ([`backoff`]).
    looks: PollBackoff,
}

impl PollState {
    pub(super) fn new() -> Self {
        Self {
            iterations: 1,
            idle: 0,
            polled_in: 1,
            poll_gap: 1,
            next_poll: 2,
            poll_streak: 0,
            waiters: Waiters::default(),
            looks: PollBackoff::default(),
        }
    }

    /// Counts a progress iteration, so far without progress.
    #[inline(always)]
    pub(super) fn begin_iteration(&mut self) {
        self.iterations += 1;
        self.idle = self.idle.wrapping_add(1);
    }

    /// Counts a progress iteration within a call of the application.
    pub(super) fn count_iteration(&mut self) {
        self.iterations += 1;
    }

    /// Progress iterations since the creation of the engine.
    #[inline(always)]
    pub(super) fn iterations(&self) -> u64 {
        self.iterations
    }

    /// Returns true in one of `each` iterations.
    #[inline(always)]
    pub(super) fn is_one_of(&self, each: u64) -> bool {
        self.iterations % each == 0
    }

    /// Progress iterations since the last progress.
    #[inline(always)]
    pub(super) fn idle(&self) -> u32 {
        self.idle
    }

    /// Records progress in this iteration.
    #[inline(always)]
    pub(super) fn record_progress(&mut self) {
        self.idle = 0;
    }

    /// Records a poll of the poller in this iteration.
    #[inline(always)]
    pub(super) fn begin_poll(&mut self) {
        self.polled_in = self.iterations;
        self.set_gap(self.poll_gap);
    }

    fn set_gap(&mut self, gap: u32) {
        self.poll_gap = gap;
        self.next_poll = self.polled_in + u64::from(gap);
    }

    /// Records the events of a poll. `is_new`: one of them was not for an active connection.
    pub(super) fn end_poll(&mut self, is_new: bool, moved: bool) {
        if is_new || moved {
            self.idle = 0;
        }
        self.set_gap(if is_new { 1 } else { (self.poll_gap * 2).min(MAX_POLL_GAP) });
    }

    /// Returns true if the only active connection is to be read directly, without a poll of the
    /// poller.
    ///
    /// A poll of the only active connection costs as much as a poll of all through the poller, and
    /// saves one call if data is there. But it delays other connections. This matters if other
    /// threads use the processor in between: recent activity of the connection was no reason to
    /// yield.
    #[inline(always)]
    pub(super) fn reads_directly(&self) -> bool {
        let directly = || self.idle <= FEW || self.looks.are_at_once();
        self.iterations < self.next_poll
            && (self.idle == 1 || (directly() && !backoff::is_shared()))
    }

    /// Returns true if an empty iteration of one or two polls of shared memory is not worth a look
    /// at the clock.
    #[inline(always)]
    pub(super) fn skips_backoff(&self) -> bool {
        self.idle != 1 && self.idle % MEMORY_LOOKS != 0
    }

    /// Returns the advice for a thread after an empty progress iteration.
    #[inline(always)]
    pub(super) fn on_empty_poll(&mut self) -> Option<BackoffAction> {
        self.looks.on_empty_poll(self.idle == 1)
    }

    /// Records the following of the advice by the thread.
    #[inline(always)]
    pub(super) fn record_yield(&mut self) {
        self.looks.record_yield();
    }

    /// Time of the last empty poll, in nanoseconds ([`PollBackoff::last`]).
    #[inline(always)]
    pub(super) fn last_empty_poll(&self) -> u64 {
        self.looks.last()
    }

    /// Returns true if no thread was asleep, and peers omit doorbells: polling the only connection
    /// over shared memory may be the whole iteration.
    #[inline(always)]
    pub(super) fn may_poll_shm_only(&self) -> bool {
        self.waiters.is_empty() && self.is_polling()
    }

    /// Returns true if such a poll, with the result `came`, is the whole progress iteration. Every
    /// few iterations there is more to do.
    #[inline(always)]
    pub(super) fn is_quick(&mut self, came: InlineRecv) -> bool {
        let each = match came {
            InlineRecv::Took => u64::from(SIGN_GAP),
            InlineRecv::None if self.iterations < self.next_poll => u64::from(MEMORY_LOOKS),
            InlineRecv::None | InlineRecv::Else => return false,
        };
        if self.iterations % each == 0 {
            return false;
        }
        if came == InlineRecv::Took {
            self.idle = 0;
        }
        true
    }

    /// Returns true if the peers of polled connections omit doorbells.
    pub(super) fn is_polling(&self) -> bool {
        self.poll_streak >= MIN_POLL_STREAK
    }

    /// Counts an iteration with polls of shared memory. Returns true if peers may omit doorbells
    /// from now on.
    pub(super) fn starts_polling(&mut self) -> bool {
        if self.poll_streak >= MIN_POLL_STREAK || !self.waiters.is_empty() {
            return false;
        }
        self.poll_streak += 1;
        self.is_polling()
    }

    /// Returns true in iterations with a check of the doorbells.
    pub(super) fn checks_doorbells(&self) -> bool {
        self.iterations % u64::from(SIGN_GAP) == 0
    }

    /// Returns true if the poller need not be polled yet. `moved`: data arrived through shared
    /// memory in this iteration.
    ///
    /// A woken thread polls the poller once no more data arrives through shared memory, before the
    /// next sleep.
    pub(super) fn may_omit_poll(&self, moved: bool) -> bool {
        let gap = if moved { self.poll_gap.max(SIGN_GAP) } else { self.poll_gap };
        self.iterations < self.polled_in + u64::from(gap)
    }

    /// The calling thread prepares to sleep.
    pub(super) fn add_waiter(&mut self) {
        self.waiters.add();
    }

    /// The calling thread does not sleep.
    pub(super) fn remove_waiter(&mut self) {
        self.waiters.remove();
    }

    /// Number of threads prepared to sleep.
    pub(super) fn waiters(&self) -> usize {
        self.waiters.count()
    }

    /// Returns true if a thread has prepared to sleep, and has made no progress iteration since.
    #[inline(always)]
    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Prepares for a sleep with connections over shared memory: after the wake-up the poller is
    /// polled first, and peers ring doorbells. Returns true if peers omitted them.
    pub(super) fn end_polling(&mut self) -> bool {
        self.set_gap(1);
        let polled = self.is_polling();
        self.poll_streak = 0;
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poller_is_polled_less_often_until_it_has_a_new_event() {
        let mut poll = PollState::new();
        let gaps: Vec<_> = (0..8)
            .map(|_| {
                poll.end_poll(false, false);
                poll.poll_gap
            })
            .collect();
        assert_eq!(gaps, [2, 4, 8, 16, 32, 64, 64, 64]);
        poll.begin_poll();
        poll.begin_iteration();
        assert!(poll.reads_directly(), "the first empty iteration after activity");
        poll.end_poll(true, true);
        assert_eq!((poll.idle(), poll.poll_gap), (0, 1));
        poll.begin_iteration();
        assert!(!poll.reads_directly() && !poll.may_omit_poll(false) && poll.may_omit_poll(true));
    }

    #[test]
    fn peers_omit_doorbells_after_many_polls_without_a_sleep() {
        let mut poll = PollState::new();
        let starts: Vec<_> = (0..MIN_POLL_STREAK + 2).map(|_| poll.starts_polling()).collect();
        assert_eq!(starts.iter().filter(|starts| **starts).count(), 1);
        assert!(starts[MIN_POLL_STREAK as usize - 1] && poll.may_poll_shm_only());
        poll.add_waiter();
        assert!(poll.has_waiters() && !poll.may_poll_shm_only());
        assert!(poll.end_polling() && !poll.is_polling() && !poll.starts_polling());
        poll.remove_waiter();
        assert!(!poll.end_polling() && !poll.has_waiters());
    }

    #[test]
    fn every_few_quick_iterations_there_is_more_to_do() {
        let mut poll = PollState::new();
        (0..8).for_each(|_| poll.end_poll(false, false));
        let quick = |poll: &mut PollState, came| {
            let all = (0..32).map(|_| {
                poll.begin_iteration();
                poll.begin_poll();
                usize::from(poll.is_quick(came))
            });
            all.sum::<usize>()
        };
        assert_eq!(quick(&mut poll, InlineRecv::Took), 32 - 32 / SIGN_GAP as usize);
        assert_eq!(quick(&mut poll, InlineRecv::None), 32 - 32 / MEMORY_LOOKS as usize);
        assert_eq!(quick(&mut poll, InlineRecv::Else), 0);
    }
}
