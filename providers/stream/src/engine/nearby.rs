//! Connections whose bytes come through memory ([`ByteLink::hears_locally`]).
//!
//! A look at such a connection is no system call. Those that moved lately are looked at in every
//! turn, without the poller, which is asked rarely then: it still has to tell of the others, of
//! listeners and of ends. While there is one such connection and no other moved, that look is all of most turns
//! ([`StreamState::is_quick`]): what a program waits for in a ping-pong is that look. The peer of a connection that is looked at writes and does nothing more;
//! to others, and while a thread sleeps and shortly after, it gives a sign ([`Net::is_rung`]).
use super::conn::StreamConn;
use super::state::StreamState;
use super::{COLD_AFTER, LEFT_BEHIND, MEMORY_LOOKS};
use crate::net::{ByteLink, Net};
use ofi_provider::ring::ShortCells;

/// Most connections that are looked at in every turn because bytes come through memory: such a look
/// costs about as much as the one call of the system that a further connection needs.
const MAX_LOCAL: usize = 64;

/// Turns in which the signs of others are looked at once; if something comes through memory in them, the
/// poller is not asked before.
const SIGN_GAP: u32 = 8;

/// Turns after a sleep from which on peers need not give signs: telling them to do so again, before
/// the next sleep, costs more than the signs of a few messages.
const AWAKE_AFTER: u32 = 64;

impl<N: Net> StreamState<N> {
    /// Whether a look at the one connection whose bytes come through memory may be all of a turn: no
    /// thread was asleep, and no other connection moved lately.
    #[inline(always)]
    pub(super) fn may_look_quickly(&self) -> bool {
        self.sleepers.is_empty() && self.is_awake() && self.hot.is_empty()
    }

    /// Whether such a look, of which that came, is all of this turn. Every few turns there is more to do.
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

    /// Looks at the connections whose bytes come through memory and that moved lately. `first`: what came
    /// of the only one, if it was looked at. Returns whether nothing else is to be looked at in this turn.
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
        // Who was woken asks the poller when nothing more comes through memory: before the next sleep.
        let gap = if moved { self.poll_gap.max(SIGN_GAP) } else { self.poll_gap };
        let rung = self.turns.is_multiple_of(u64::from(SIGN_GAP)) && self.net.is_rung();
        self.hot.is_empty() && self.since_poll < gap && !rung
    }

    /// Looks at each connection; that came of the first already, if it was looked at. Returns whether
    /// anything moved.
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
                // What moved may have ended, or have ended others.
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

    /// Serves a connection that may have more than plain messages. Returns whether anything moved.
    fn service_nearby(&mut self, id: u32) -> bool {
        let moved = self.service(id);
        if !moved && let Some(conn) = self.conns.get_mut(id) {
            conn.misses += 1;
        }
        moved
    }

    /// Puts a connection whose bytes come through memory, and that moved, on the list of those that
    /// are looked at in every turn.
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

    /// Takes a connection off the list of those that are looked at in every turn, unless something
    /// has come on it.
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

    /// Whether the peers of connections that are looked at give no signs.
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
        // What woke a sleeper is asked of the poller first.
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

    /// A connection may move to memory from now on, the first one perhaps, of which a thread that
    /// sleeps already will have to be told.
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
