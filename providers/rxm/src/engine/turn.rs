//! A turn of an endpoint's: what the core completed, connection events, what waits.
use super::common::clock;
use super::conn::{Link, RxmConn, came_on, names};
use super::ep::RxmEngineEp;
use super::pending::RxmUnexpected;
use crate::wire::{RxmHeader, RxmPlain};
use ofi_provider::abi::FI_REMOTE_WRITE;
use ofi_provider::core_provider::Entries;
use ofi_provider::error::Error;
use ofi_provider::inbox::Inbox;
use ofi_provider::slab::Slab;

/// Turns without a completion after which the time is looked at.
const IDLE_TURNS: u32 = 16;

/// A whole message with nothing special to it, for which a receive waits, goes there.
/// False if it is any other case, and then nothing has happened yet.
#[inline(always)]
pub(super) fn plain_message(
    conns: &Slab<RxmConn>,
    inbox: &mut Inbox<RxmUnexpected>,
    source: u64,
    packet: &[u8],
) -> bool {
    let Some(RxmPlain { conn_id, tagged, tag, body }) = RxmHeader::plain(packet) else {
        return false;
    };
    let Some((_, conn)) = came_on(conns, source) else { return false };
    !conn.swapped && names(conn_id, source) && inbox.receive_plain(conn.peer, tagged, tag, body)
}

impl RxmEngineEp {
    /// One turn: completions of the core's, connection events, what waits.
    #[inline]
    pub(super) fn turn(&mut self) {
        if !self.parked.is_empty() {
            self.unpark();
        }
        let (came, most) = (self.came, self.common.config.comp_per_progress);
        let mut read = 0;
        while read < most && self.parked.len() < self.parked_max {
            let wanted = most - read;
            let n = self.read_core(wanted);
            read += n;
            if n == 0 || n < wanted.min(Entries::MAX) {
                break;
            }
        }
        // Many at a time: with more buffers the core keeps fewer messages itself.
        if read > 0 && (self.came - came) * 2 >= self.rx_wanted && self.rx_wanted > 0 {
            self.want_more_shared();
        }
        if !self.stalled.is_empty() {
            self.retry_stalled();
        }
        self.go_on();
        if self.core.as_ref().is_some_and(|core| !core.cntrs.is_empty()) {
            self.pass_counts_on();
        }
        self.since_look += read;
        self.idle_turns = if read == 0 { self.idle_turns + 1 } else { 0 };
        let hurry = self.unready > 0 || self.look_now;
        if hurry
            || self.idle_turns >= IDLE_TURNS
            || self.since_look >= self.common.config.cq_eq_fairness
        {
            self.idle_turns = 0;
            self.look_for_events();
        }
    }

    /// Reads the core's completion queue once, and deals with what there was: how many.
    #[inline(always)]
    fn read_core(&mut self, most: usize) -> usize {
        let Some(core) = &self.core else { return 0 };
        match core.cq.read(most, &mut self.entries) {
            Ok(n) => {
                self.take_entries();
                n
            }
            Err(Error::AVAIL) => self.read_core_error(),
            Err(_) => 0,
        }
    }

    #[cold]
    fn read_core_error(&mut self) -> usize {
        let Some(Ok(done)) = self.core.as_ref().map(|core| core.cq.read_error()) else { return 0 };
        done.into_iter().for_each(|done| self.completed(done));
        1
    }

    /// Deals with what was read of the core's completion queue.
    #[inline(always)]
    fn take_entries(&mut self) {
        while let Self { core: Some(core), entries, .. } = self
            && let Some(entry) = entries.take_next()
        {
            if self.parked.is_empty()
                && let Some(srx) = &core.srx
            {
                let (conns, inbox) = (&self.conns, &mut self.inbox);
                let posted = match srx.arrived(entry) {
                    Some(packet) if plain_message(conns, inbox, packet.source, packet.bytes()) => {
                        Some(packet.post_again())
                    }
                    _ => None,
                };
                if let Some(posted) = posted {
                    self.came += 1;
                    if let Err(buf) = posted {
                        self.not_posted_again(buf);
                    }
                    continue;
                }
            }
            if let Some(done) = core.cq.done(entry) {
                self.completed(done);
            }
        }
    }

    /// Deals with all that is complete. What of it ends other connections, or the same one,
    /// does so at once: a peer can send as much of that as it likes.
    pub(super) fn drain_core(&mut self) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        // What was read is not dealt with yet when one of it ends a connection.
        self.take_entries();
        while self.read_core(Entries::MAX) > 0 {}
        self.draining = false;
    }

    /// Counts for the application what the core counted of peers' accesses.
    fn pass_counts_on(&mut self) {
        let Some(core) = &self.core else { return };
        for (cntr, flag) in &core.cntrs {
            let wrote = *flag == FI_REMOTE_WRITE;
            let (now, passed) = (cntr.read(), &mut self.counted[usize::from(wrote)]);
            (*passed..now).for_each(|_| self.inbox.ledger.peer_accessed(wrote, 0));
            *passed = now;
        }
    }

    /// A peer's atomic operation read our memory, or wrote it.
    pub(super) fn count_remote(&self, wrote: bool) {
        self.inbox.ledger.peer_accessed(wrote, 0);
    }

    /// Looks for connection events if it is time to.
    fn look_for_events(&mut self) {
        self.since_look = 0;
        if self.unready == 0 && !self.look_now {
            let now = clock();
            if now.duration_since(self.last_look) < self.common.config.cm_interval {
                return;
            }
            self.last_look = now;
        }
        self.look_now = false;
        self.connection_events();
    }

    /// Before a caller sleeps: whether everything will wake it.
    pub(super) fn may_block(&mut self) -> bool {
        let Some(core) = &self.core else { return true };
        // The event queue wakes the sleeper, who then has to look there.
        self.look_now = true;
        if !self.handed.is_empty()
            || !self.refused.is_empty()
            || (!self.parked.is_empty() && self.inbox.ledger.has_room())
        {
            return false;
        }
        // What the core has no room for goes on when a transfer before it completes;
        // of what was injected no entry tells that.
        let will_wake = |id: &u32| {
            let ep = self.conns.get(*id).and_then(|conn| conn.ep.as_ref());
            ep.is_none_or(|ep| ep.has_transfers())
        };
        if !self.stalled.iter().all(will_wake) {
            return false;
        }
        // The engine asks the wait set, which is for all endpoints.
        self.common.wait_set.is_some()
            || self.common.domain.fabric().may_block(&[&core.cq], &core.eq)
    }

    /// Whether transfers wait for a connection to be made, or for room in the core.
    pub(super) fn has_waiting(&self) -> bool {
        let waits = |conn: &RxmConn| conn.link != Link::Connected && !conn.waiting.is_empty();
        !self.stalled.is_empty()
            || (self.unready > 0 && self.conns.iter().any(|(_, conn)| waits(conn)))
    }
}
