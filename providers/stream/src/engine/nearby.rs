//! Connections whose bytes come through memory ([`ByteLink::hears_locally`]).
//!
//! A look at such a connection is no system call. Those that moved lately are looked at in every
//! turn, without the poller, which is asked rarely then: it still has to tell of the others, of
//! listeners and of ends. The peer of a connection that is looked at writes and does nothing more;
//! to others, and while a thread sleeps, it gives a sign ([`Net::is_rung`]).
//!
//! A thread that sleeps on the poller's descriptor must be woken whatever other threads do
//! meanwhile. So who prepares to sleep leaves a mark, and peers give signs until the marks are gone:
//! each thread takes its own away when it makes its next turn. A mark that stays, of a thread that
//! never comes back or does something else, costs peers a call for each message, so after many turns
//! of others all sleepers are woken and the marks are forgotten.
use super::conn::StreamConn;
use super::state::StreamState;
use super::{COLD_AFTER, LEFT_BEHIND};
use crate::net::{ByteLink, Net};

/// Most connections that are looked at in every turn because bytes come through memory.
const MAX_LOCAL: usize = 16;

/// Turns of other threads after which a sleeper is woken, and after as many more forgotten.
const STALE: u32 = 1 << 14;

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
    fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The calling thread prepares to sleep.
    fn add(&mut self) {
        self.turns = 0;
        if !self.marks.contains(&mark()) {
            self.marks.push(mark());
        }
    }

    /// The calling thread makes a turn. Returns whether nobody sleeps now, and whether all who do
    /// are to be woken.
    fn turn(&mut self) -> (bool, bool) {
        let own = mark();
        self.marks.retain(|mark| *mark != own);
        self.turns = self.turns.saturating_add(1);
        if self.turns > 2 * STALE {
            self.marks.clear();
        }
        (self.is_empty(), self.turns == STALE)
    }
}

impl<N: Net> StreamState<N> {
    /// Looks at the connections whose bytes come through memory and that moved lately. Returns
    /// whether nothing else is to be looked at in this turn.
    pub(super) fn look_nearby(&mut self) -> bool {
        self.wake_up();
        let (mut moved, mut index) = (false, 0);
        while let Some(&id) = self.local.get(index) {
            let found = self.service(id);
            moved |= found;
            // What moved may have ended, or have ended others.
            if self.local.get(index) != Some(&id) {
                continue;
            }
            index += 1;
            let conn = &mut self.conns[id];
            if found {
                conn.misses = 0;
            } else {
                conn.misses += 1;
                if conn.misses > COLD_AFTER && self.cool_nearby(id) {
                    index -= 1;
                }
            }
        }
        if moved {
            self.idle = 0;
        }
        self.since_poll += 1;
        self.hot.is_empty() && self.since_poll < self.poll_gap && !self.net.is_rung()
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
        if let Some(conn) = self.conns.get_mut(id) {
            conn.goes_local();
            conn.link.set_polled(self.sleepers.is_empty());
            self.local.push(id);
        }
    }

    /// Takes a connection off the list of those that are looked at in every turn, unless something
    /// has come on it.
    fn cool_nearby(&mut self, id: u32) -> bool {
        let conn = &mut self.conns[id];
        conn.misses = 0;
        conn.link.set_polled(false);
        if conn.has_come() {
            conn.link.set_polled(self.sleepers.is_empty());
            return false;
        }
        self.local.retain(|local| *local != id);
        self.watch(id);
        true
    }

    /// The calling thread is about to sleep on the poller's descriptor: false if something has
    /// come.
    pub(super) fn rest(&mut self) -> bool {
        self.sleepers.add();
        // What woke a sleeper is asked of the poller first.
        self.poll_gap = 1;
        let looked_at = |state: &Self, told: fn(&StreamConn<N>) -> bool| {
            let conns = state.local.iter().filter_map(|id| state.conns.get(*id));
            conns.fold(false, |all, conn| told(conn) | all)
        };
        looked_at(self, |conn| {
            conn.link.set_polled(false);
            false
        });
        self.net.rest() && !looked_at(self, |conn| conn.has_come())
    }

    /// The calling thread makes a turn, and so does not sleep.
    #[inline(always)]
    pub(super) fn wake_up(&mut self) {
        if !self.sleepers.is_empty() {
            self.woken();
        }
    }

    #[inline(never)]
    fn woken(&mut self) {
        let (nobody, all) = self.sleepers.turn();
        if all {
            self.net.ring_sleepers();
        }
        if nobody {
            self.net.wake();
            let conns = self.local.iter().filter_map(|id| self.conns.get(*id));
            conns.for_each(|conn| conn.link.set_polled(true));
        }
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
