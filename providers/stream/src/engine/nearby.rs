//! Connections over shared memory ([`ByteLink::hears_locally`]).
//!
//! Polling such a connection needs no system call. Recently active ones are polled in every
//! progress iteration. The poller is polled rarely then, for the other connections, listeners and
//! disconnects.
//!
//! While only one such connection is active, its poll is the whole work of most iterations
//! ([`StreamState::is_quick`]), as in a ping-pong. The peer of a polled connection just writes. To
//! other connections, and while a thread sleeps and shortly after, it rings a doorbell
//! ([`Net::is_rung`]).
use super::conn::StreamConn;
use super::state::StreamState;
use super::{COLD_AFTER, LEFT_BEHIND, MEMORY_LOOKS};
use crate::net::{ByteLink, Net};
use ofi_provider::ring::ShortCells;

/// Maximum connections over shared memory polled in every progress iteration: such a poll costs
/// about as much as the one system call for a further connection.
const MAX_LOCAL: usize = 64;

/// Progress iterations between two checks of the doorbells. After activity over shared memory the
/// poller is not polled before that.
const SIGN_GAP: u32 = 8;

/// Progress iterations after a sleep until peers may omit doorbells. Enabling doorbells again
/// before the next sleep costs more than the doorbells of a few messages.
const AWAKE_AFTER: u32 = 64;

impl<N: Net> StreamState<N> {
    /// Returns true if polling the only connection over shared memory may be the whole iteration:
    /// no thread was asleep, and no other connection was active lately.
    #[inline(always)]
    pub(super) fn may_look_quickly(&self) -> bool {
        self.sleepers.is_empty() && self.is_awake() && self.hot.is_empty()
    }

    /// Returns true if such a poll, with the result `came`, is the whole progress iteration. Every
    /// few iterations there is more to do.
    #[inline(always)]
    pub(super) fn is_quick(&mut self, came: ShortCells) -> bool {
        let each = match came {
            ShortCells::Took => u64::from(SIGN_GAP),
            ShortCells::None if self.since_poll + 1 < self.poll_gap => u64::from(MEMORY_LOOKS),
            ShortCells::None | ShortCells::Else => return false,
        };
        if self.turns.is_multiple_of(each) {
            return false;
        }
        if came == ShortCells::Took {
            self.idle = 0;
        }
        self.since_poll += 1;
        true
    }

    /// Polls the recently active connections over shared memory. `first`: the result for the only
    /// one, if it was polled. Returns true if nothing else is to be polled in this iteration.
    pub(super) fn look_nearby(&mut self, first: Option<ShortCells>) -> bool {
        self.wake_up();
        if self.awake < AWAKE_AFTER && self.sleepers.is_empty() {
            self.awake += 1;
            if self.is_awake() {
                self.set_polled(true);
            }
        }
        let moved = first == Some(ShortCells::Took) || self.look_at_each_nearby(first);
        self.since_poll += 1;
        if moved {
            self.idle = 0;
            if !self.turns.is_multiple_of(u64::from(SIGN_GAP)) && self.hot.is_empty() {
                return true;
            }
        }
        // A woken thread polls the poller once no more data arrives through shared memory, before
        // the next sleep.
        let gap = if moved { self.poll_gap.max(SIGN_GAP) } else { self.poll_gap };
        let rung = self.turns.is_multiple_of(u64::from(SIGN_GAP)) && self.net.is_rung();
        self.hot.is_empty() && self.since_poll < gap && !rung
    }

    /// Polls each connection; `first` is the result for the first one, if it was polled. Returns
    /// true if there was progress.
    #[inline(never)]
    fn look_at_each_nearby(&mut self, mut first: Option<ShortCells>) -> bool {
        let (mut moved, mut index) = (false, 0);
        while let Some(&id) = self.local.get(index) {
            let moves = match first.take().unwrap_or_else(|| self.read_plain_nearby(id)) {
                ShortCells::Took => true,
                ShortCells::None => false,
                ShortCells::Else => self.service_nearby(id),
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
            if self.conns[id].misses > COLD_AFTER && self.cool_nearby(id) {
                index -= 1;
            }
        }
        moved
    }

    /// Serves a connection with possibly more than fast-path messages. Returns true if there was
    /// progress.
    fn service_nearby(&mut self, id: u32) -> bool {
        let moved = self.service(id);
        if !moved && let Some(conn) = self.conns.get_mut(id) {
            conn.misses += 1;
        }
        moved
    }

    /// Adds an active connection over shared memory to the list of connections polled in every
    /// iteration.
    #[cold]
    pub(super) fn heat_nearby(&mut self, id: u32) {
        if self.local.contains(&id) {
            return;
        }
        self.hot.retain(|hot| *hot != id);
        if self.local.len() >= MAX_LOCAL {
            let misses = |id: &&u32| self.conns.get(**id).map_or(0, |conn| conn.misses);
            let idlest = self.local.iter().max_by_key(misses).copied();
            let idle = |id: &u32| self.conns[*id].misses > LEFT_BEHIND;
            if !idlest.filter(idle).is_some_and(|idlest| self.cool_nearby(idlest)) {
                return self.watch(id);
            }
        }
        let awake = self.is_awake();
        if let Some(conn) = self.conns.get_mut(id) {
            conn.goes_local();
            conn.link.set_polled(awake);
            self.local.push(id);
        }
    }

    /// Removes a connection from the list polled in every iteration, unless data has arrived on it.
    fn cool_nearby(&mut self, id: u32) -> bool {
        let awake = self.is_awake();
        let conn = &mut self.conns[id];
        conn.misses = 0;
        if awake {
            conn.link.set_polled(false);
        }
        if conn.has_come() {
            conn.link.set_polled(awake);
            return false;
        }
        self.local.retain(|local| *local != id);
        self.watch(id);
        true
    }

    /// Returns true if the peers of polled connections omit doorbells.
    fn is_awake(&self) -> bool {
        self.awake >= AWAKE_AFTER
    }

    fn set_polled(&self, polled: bool) {
        let conns = self.local.iter().filter_map(|id| self.conns.get(*id));
        conns.for_each(|conn| conn.link.set_polled(polled));
    }

    /// The calling thread is about to sleep on the poller's descriptor: false if something has
    /// come.
    pub(super) fn rest(&mut self) -> bool {
        self.sleepers.add();
        if !self.net.has_local() {
            return true;
        }
        // After a wake-up the poller is polled first.
        self.poll_gap = 1;
        if self.is_awake() {
            self.set_polled(false);
        }
        self.awake = 0;
        // All are asked: what each did before it was looked at no more is settled by that.
        let has_come =
            |come: bool, id: &u32| self.conns.get(*id).is_some_and(StreamConn::has_come) | come;
        self.net.rest() && !self.local.iter().fold(false, has_come)
    }

    /// The calling thread makes a turn, and so does not sleep.
    #[inline(always)]
    pub(super) fn wake_up(&mut self) {
        if !self.sleepers.is_empty() {
            self.woken();
        }
    }

    /// Wakes the poller because a connection may move to shared memory, possibly the first one. A
    /// sleeping thread has to be notified of it.
    pub(super) fn may_go_local(&self) {
        if self.sleepers.is_empty() {
            self.net.wake();
        }
    }

    #[inline(never)]
    fn woken(&mut self) {
        self.sleepers.remove();
        self.may_go_local();
    }
}
