//! Connections over shared memory ([`ByteLink::rx_over_shm`]).
//!
//! Polling such a connection needs no system call. Recently active ones are polled in every
//! progress iteration. The poller is polled rarely then, for the other connections, listeners and
//! disconnects.
//!
//! While only one such connection is active, its poll is the whole work of most iterations
//! ([`StreamState::is_quick`]), as in a ping-pong. The peer of a polled connection just writes. To
//! other connections, and while a thread sleeps and shortly after, it rings a doorbell
//! ([`Transport::is_rung`]).
use super::conn::StreamConn;
use super::state::StreamState;
use super::{COLD_AFTER, LEFT_BEHIND, MEMORY_LOOKS};
use crate::transport::{ByteLink, Transport};
use ofi_provider::shm_channel::InlineRecv;

/// Maximum connections over shared memory polled in every progress iteration: such a poll costs
/// about as much as the one system call for a further connection.
const MAX_LOCAL: usize = 64;

/// Progress iterations between two checks of the doorbells. After activity over shared memory the
/// poller is not polled before that.
const SIGN_GAP: u32 = 8;

/// Progress iterations after a sleep until peers may omit doorbells. Enabling doorbells again
/// before the next sleep costs more than the doorbells of a few messages.
const MIN_POLL_STREAK: u32 = 64;

impl<N: Transport> StreamState<N> {
    /// Returns true if polling the only connection over shared memory may be the whole iteration:
    /// no thread was asleep, and no other connection was active lately.
    #[inline(always)]
    pub(super) fn may_look_quickly(&self) -> bool {
        self.waiters.is_empty() && self.is_polling() && self.active.is_empty()
    }

    /// Returns true if such a poll, with the result `came`, is the whole progress iteration. Every
    /// few iterations there is more to do.
    #[inline(always)]
    pub(super) fn is_quick(&mut self, came: InlineRecv) -> bool {
        let each = match came {
            InlineRecv::Took => u64::from(SIGN_GAP),
            InlineRecv::None if self.since_poll + 1 < self.poll_gap => u64::from(MEMORY_LOOKS),
            InlineRecv::None | InlineRecv::Else => return false,
        };
        if self.iterations.is_multiple_of(each) {
            return false;
        }
        if came == InlineRecv::Took {
            self.idle = 0;
        }
        self.since_poll += 1;
        true
    }

    /// Polls the recently active connections over shared memory. `first`: the result for the only
    /// one, if it was polled. Returns true if nothing else is to be polled in this iteration.
    pub(super) fn poll_shm_conns(&mut self, first: Option<InlineRecv>) -> bool {
        self.wake_up();
        if self.poll_streak < MIN_POLL_STREAK && self.waiters.is_empty() {
            self.poll_streak += 1;
            if self.is_polling() {
                self.set_polled(true);
            }
        }
        let moved = first == Some(InlineRecv::Took) || self.poll_each_shm_conn(first);
        self.since_poll += 1;
        if moved {
            self.idle = 0;
            if !self.iterations.is_multiple_of(u64::from(SIGN_GAP)) && self.active.is_empty() {
                return true;
            }
        }
        // A woken thread polls the poller once no more data arrives through shared memory, before
        // the next sleep.
        let gap = if moved { self.poll_gap.max(SIGN_GAP) } else { self.poll_gap };
        let rung = self.iterations.is_multiple_of(u64::from(SIGN_GAP)) && self.net.is_rung();
        self.active.is_empty() && self.since_poll < gap && !rung
    }

    /// Polls each connection; `first` is the result for the first one, if it was polled. Returns
    /// true if there was progress.
    #[inline(never)]
    fn poll_each_shm_conn(&mut self, mut first: Option<InlineRecv>) -> bool {
        let (mut moved, mut index) = (false, 0);
        while let Some(&id) = self.local.get(index) {
            let moves = match first.take().unwrap_or_else(|| self.read_fast_shm(id)) {
                InlineRecv::Took => true,
                InlineRecv::None => false,
                InlineRecv::Else => self.service_shm_conn(id),
            };
            if moves {
                moved = true;
                // An active connection may have ended, or have ended others.
                index += usize::from(self.local.get(index) == Some(&id));
                continue;
            }
            if self.local.get(index) != Some(&id) {
                continue;
            }
            index += 1;
            if self.conns[id].misses > COLD_AFTER && self.mark_shm_idle(id) {
                index -= 1;
            }
        }
        moved
    }

    /// Serves a connection with possibly more than fast-path messages. Returns true if there was
    /// progress.
    fn service_shm_conn(&mut self, id: u32) -> bool {
        let moved = self.service(id);
        if !moved && let Some(conn) = self.conns.get_mut(id) {
            conn.misses += 1;
        }
        moved
    }

    /// Adds an active connection over shared memory to the list of connections polled in every
    /// iteration.
    #[cold]
    pub(super) fn mark_shm_active(&mut self, id: u32) {
        if self.local.contains(&id) {
            return;
        }
        self.active.retain(|active| *active != id);
        if self.local.len() >= MAX_LOCAL {
            let misses = |id: &&u32| self.conns.get(**id).map_or(0, |conn| conn.misses);
            let idlest = self.local.iter().max_by_key(misses).copied();
            let idle = |id: &u32| self.conns[*id].misses > LEFT_BEHIND;
            if !idlest.filter(idle).is_some_and(|idlest| self.mark_shm_idle(idlest)) {
                return self.watch(id);
            }
        }
        let poll_streak = self.is_polling();
        if let Some(conn) = self.conns.get_mut(id) {
            conn.goes_local();
            conn.link.set_polled(poll_streak);
            self.local.push(id);
        }
    }

    /// Removes a connection from the list polled in every iteration, unless data has arrived on it.
    fn mark_shm_idle(&mut self, id: u32) -> bool {
        let poll_streak = self.is_polling();
        let conn = &mut self.conns[id];
        conn.misses = 0;
        if poll_streak {
            conn.link.set_polled(false);
        }
        if conn.is_ready() {
            conn.link.set_polled(poll_streak);
            return false;
        }
        self.local.retain(|local| *local != id);
        self.watch(id);
        true
    }

    /// Returns true if the peers of polled connections omit doorbells.
    fn is_polling(&self) -> bool {
        self.poll_streak >= MIN_POLL_STREAK
    }

    fn set_polled(&self, polled: bool) {
        let conns = self.local.iter().filter_map(|id| self.conns.get(*id));
        conns.for_each(|conn| conn.link.set_polled(polled));
    }

    /// The calling thread is about to sleep on the poller's descriptor: false if something has
    /// come.
    pub(super) fn rest(&mut self) -> bool {
        self.waiters.add();
        if !self.net.has_local() {
            return true;
        }
        // After a wake-up the poller is polled first.
        self.poll_gap = 1;
        if self.is_polling() {
            self.set_polled(false);
        }
        self.poll_streak = 0;
        // All are asked: what each did before it was looked at no more is settled by that.
        let is_ready =
            |come: bool, id: &u32| self.conns.get(*id).is_some_and(StreamConn::is_ready) | come;
        self.net.rest() && !self.local.iter().fold(false, is_ready)
    }

    /// Marks the calling thread as awake: it makes a progress iteration.
    #[inline(always)]
    pub(super) fn wake_up(&mut self) {
        if !self.waiters.is_empty() {
            self.woken();
        }
    }

    /// Wakes the poller because a connection may move to shared memory, possibly the first one. A
    /// sleeping thread has to be notified of it.
    pub(super) fn may_go_local(&self) {
        if self.waiters.is_empty() {
            self.net.wake();
        }
    }

    #[inline(never)]
    fn woken(&mut self) {
        self.waiters.remove();
        self.may_go_local();
    }
}
