//! Progress iteration of an endpoint: the core's completions, connection events, queued transfers.
use super::common::clock;
use super::conn::{RxmConn, came_on, names};
use super::ep::RxmEngineEp;
use super::idle_closer::SEARCH_INTERVAL;
use super::pending::RxmUnexpected;
use crate::wire::{HEADER_LEN, RxmFast, RxmHeader};
use ofi_provider::buf::UntrustedBytes;
use ofi_provider::core_provider::Entries;
use ofi_provider::error::Error;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_provider::slab::Slab;
use std::time::Duration;

/// Interval between checks for peers disconnected while operations wait for them.
const END_LOOK: Duration = Duration::from_secs(1);

/// Progress iterations without a completion until the time is checked.
const IDLE_ITERATIONS: u32 = 16;

/// The same while there are more connections than the limit.
const LIMITED_ITERATIONS: u32 = 4;

/// Fast path of a whole message without special attributes for the oldest receive: saves the decoded
/// header and the envelope. Returns false in any other case, without any change.
#[inline(always)]
pub(super) fn fast_message(
    conns: &Slab<RxmConn>,
    matcher: &mut RxMatcher<RxmUnexpected>,
    source: u64,
    packet: UntrustedBytes<'_>,
) -> bool {
    let Some(head) = packet.first_chunk::<HEADER_LEN>() else { return false };
    let body = packet.behind(HEADER_LEN);
    let Some(RxmFast { conn_id, tagged, tag }) = RxmHeader::parse_fast(&head, body.len()) else {
        return false;
    };
    let Some((_, conn)) = came_on(conns, source) else { return false };
    !conn.swapped
        && names(conn_id, source)
        && matcher.recv_fast(conn.peer, tagged, tag, None, body)
        && conn.received.one(body.len())
}

impl RxmEngineEp {
    /// Runs one progress iteration: the core's completions, connection events, queued transfers.
    /// `has_core`: another endpoint has already run the core's progress in this iteration, for all
    /// endpoints.
    #[inline(always)]
    pub(super) fn poll_once(&mut self, has_core: bool) {
        if !self.parked.is_empty() {
            self.unpark();
        }
        let (came, mut most) = (self.came, self.common.config.comp_per_progress);
        let mut read = 0;
        if has_core && self.core.as_ref().is_none_or(|core| !core.cq.may_have_entries()) {
            most = 0;
        }
        while read < most && self.parked.has_space() {
            let wanted = (most - read).min(Entries::MAX);
            let n = self.read_core(wanted);
            read += n;
            if n < wanted {
                break;
            }
        }
        // Many messages came at a time: with more buffers the core keeps fewer of them itself.
        if read > 1 && (self.came - came) * 2 >= self.shared.wanted() && self.shared.wanted() > 0 {
            let most = self.common.rx_buffers(true);
            self.shared.grow(self.core.as_ref(), &mut self.conns, &self.matcher, most);
        }
        if !self.conns.stalled().is_empty() {
            self.retry_stalled();
        }
        self.go_on();
        if let Some(core) = self.core.as_ref().filter(|core| !core.cntrs.is_empty()) {
            self.counted.pass_on(core, &self.matcher);
        }
        self.since_look += read;
        self.idle_iterations = if read == 0 { self.idle_iterations + 1 } else { 0 };
        let hurry = self.conns.has_unready() || self.look_now || !self.conns.wanted.is_empty();
        if hurry
            || self.idle_iterations >= IDLE_ITERATIONS
            || (self.limit.is_exceeded && self.idle_iterations >= LIMITED_ITERATIONS)
            || self.since_look >= self.common.config.cq_eq_fairness
        {
            self.idle_iterations = 0;
            self.look_for_events();
        }
    }

    /// Reads the core's completion queue once, and handles the entries. Returns the number of
    /// entries, and of messages delivered without one: with shared receive buffers, and no earlier
    /// packet parked.
    #[inline(always)]
    fn read_core(&mut self, most: usize) -> usize {
        let Some(core) = &self.core else { return 0 };
        let mut delivered = 0;
        let entries = &mut self.entries;
        let read = if core.srx.is_some() && self.parked.is_empty() {
            let (conns, matcher) = (&*self.conns, &mut self.matcher);
            core.cq.read_into(most, entries, |source, packet| {
                let taken = fast_message(conns, matcher, source, packet);
                delivered += usize::from(taken);
                taken
            })
        } else {
            core.cq.read(most, entries)
        };
        match read {
            Ok(n) => {
                self.take_entries();
                n + delivered
            }
            Err(Error::AVAIL) => self.read_core_error(),
            Err(_) => 0,
        }
    }

    /// Handles the entries read from the core's completion queue.
    #[inline(always)]
    fn take_entries(&mut self) {
        while let Self { core: Some(core), entries, .. } = self {
            let Some(entry) = entries.take_next() else { break };
            if self.parked.is_empty() {
                if let Some(srx) = &core.srx {
                    let (conns, matcher) = (&*self.conns, &mut self.matcher);
                    let posted = match srx.arrived(entry) {
                        Some(packet)
                            if fast_message(conns, matcher, packet.source, packet.bytes()) =>
                        {
                            Some(packet.post_again())
                        }
                        _ => None,
                    };
                    if let Some(posted) = posted {
                        self.came += 1;
                        if let Err(buf) = posted {
                            self.shared.note_used();
                            self.conns.release(Some(buf));
                        }
                        continue;
                    }
                }
            }
            if let Some(done) = core.cq.done(entry) {
                self.completed(done);
            }
        }
    }

    /// Handles all entries of the core's completion queue. Entries ending a connection do so at
    /// once, because a peer can cause any number of them.
    pub(super) fn drain_core(&mut self) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        // Entries may be left when one of them ends a connection.
        self.take_entries();
        while self.read_core(Entries::MAX) > 0 {}
        self.draining = false;
    }

    /// Reads connection events if it is time to.
    fn look_for_events(&mut self) {
        if self.fetches.copies.is_any() {
            self.fetches.copies.poll(&mut self.matcher, &mut self.peers);
        }
        self.since_look = 0;
        let now = clock();
        let interval = match self.common.config.cm_interval {
            // Connections end and start one after the other.
            interval if self.limit.is_exceeded => interval.min(SEARCH_INTERVAL),
            interval => interval,
        };
        let early = now.duration_since(self.last_look) < interval;
        if !early {
            (self.last_look, self.looked) = (now, true);
            if now.duration_since(self.last_end_look) >= END_LOOK {
                self.last_end_look = now;
                self.tx.fail_ended(&mut self.conns, now);
            }
        } else if !self.conns.has_unready() && !self.look_now && self.conns.wanted.is_empty() {
            return;
        }
        self.look_now = self.fetches.copies.is_any();
        self.connection_events();
    }

    /// Prepares a thread to sleep. Returns true if every event awaited by the endpoint will wake
    /// it.
    pub(super) fn may_block(&mut self) -> bool {
        let Some(core) = &self.core else { return true };
        // The event queue wakes the waiter, and then has to be read.
        self.look_now = true;
        if self.fetches.copies.is_any()
            || !self.handed.is_empty()
            || self.connects.has_rejected()
            || self.connects.has_queued()
            || (!self.parked.is_empty() && self.matcher.completions.has_space())
        {
            return false;
        }
        // A transfer for which the core has no room goes on when one before it completes; but an
        // injected transfer gives no entry when it completes.
        let has_transfers = |id: &u32| {
            let ep = self.conns.get(*id).and_then(|conn| conn.ep.as_ref());
            ep.is_none_or(|ep| ep.has_transfers())
        };
        let will_wake =
            |id: &u32| has_transfers(id) || self.conns.all_further(*id).iter().any(has_transfers);
        if !self.conns.stalled().iter().all(will_wake) {
            return false;
        }
        // The engine asks the wait set, which is for all endpoints.
        self.common.wait_set.is_some()
            || self.common.domain.fabric().may_block(&[&core.cq], Some(&core.eq))
    }

    #[cold]
    fn read_core_error(&mut self) -> usize {
        let Some(Ok(done)) = self.core.as_ref().map(|core| core.cq.read_error()) else { return 0 };
        done.into_iter().for_each(|done| self.completed(done));
        1
    }
}
