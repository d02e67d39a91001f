//! Connections of an endpoint: their lookup, the quotas of their peers, and their pending work.
use super::budget::{Held, HeldSums, IDLE};
use super::conn::{BEYOND, HandshakeState, ICMP_ERRORS, RxdConn};
use super::half_open::{HalfOpen, HalfOpens, Introduction};
use super::indices::{IndexUse, NumberMap, PeerIndices, random_number};
use super::port::{PacketPort, PacketSource};
use crate::wire::{Ack, Malformed, Parsed};
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::slab::Slab;
use std::ops::{Deref, Index, IndexMut};
use std::time::Instant;

/// Maximum connections retried in one progress iteration, of those blocked on space of one kind.
const RETRIED: usize = 16;

/// Packets received until an acknowledgement is sent although more arrive.
const ACK_EVERY: usize = 8;

/// Fewest answers to one peer; more than requests can be under way.
const LEAST_ANSWERS: usize = 256;

/// Returns the maximum unacknowledged responses to one peer, with this maximum of packets in flight.
fn most_answers(max_unacked: usize) -> usize {
    LEAST_ANSWERS.max(max_unacked + BEYOND + ICMP_ERRORS)
}

/// Selection of the due acknowledgements to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AcksDue {
    /// Urgent acknowledgements.
    Now,
    /// Urgent ones, and those delayed up to their limit while the application makes calls.
    Waited,
    All,
}

/// Space missing for the next packet of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingSpace {
    /// Space freed by the application.
    Application,
    /// Space for responses, freed by acknowledgements of peers.
    Responses,
}

/// Search for silent unknown peers, to be replaced by others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SilentSearch {
    All,
    /// Peers with unacknowledged responses.
    Holders,
}

/// The connections of an endpoint.
#[derive(Default)]
pub(super) struct RxdConns {
    conns: Slab<Box<RxdConn>>,
    /// Connections by the port's names of their peers.
    by_name: NumberMap<fi_addr_t, u32>,
    /// Indices required in peers' packets, and half-open requests.
    indices: PeerIndices,
    half_open: HalfOpens,
    /// Resources held for peers' requests.
    sums: HeldSums,
    /// No connection has a deadline before this.
    next_deadline: Option<Instant>,
    /// Connections with possibly something to send.
    ready: Vec<u32>,
    /// Connections with a due acknowledgement.
    acks: Vec<u32>,
    /// Connections with their next packet blocked on space freed by the application.
    stalled: Vec<u32>,
    /// Connections with their next packet waiting until peers acknowledge responses, and the number
    /// of these to be retried.
    held_back: Vec<u32>,
    to_retry: usize,
    /// Bytes of packets received early.
    early_bytes: usize,
    /// Number of connections with unknown peers, and the earliest time of a useful search for
    /// silent ones.
    unknown: usize,
    next_search: [Option<Instant>; 2],
}

impl Deref for RxdConns {
    type Target = Slab<Box<RxdConn>>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.conns
    }
}

impl Index<u32> for RxdConns {
    type Output = RxdConn;

    #[inline(always)]
    fn index(&self, id: u32) -> &RxdConn {
        &self.conns[id]
    }
}

impl IndexMut<u32> for RxdConns {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut RxdConn {
        &mut self.conns[id]
    }
}

impl RxdConns {
    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut RxdConn> {
        self.conns.get_mut(id).map(|conn| &mut **conn)
    }

    /// Adds a connection; its index belongs to it from now on.
    pub(super) fn insert(&mut self, conn: RxdConn) -> u32 {
        let (index, to, unknown) = (conn.index, conn.to, conn.unknown);
        let id = self.conns.insert(Box::new(conn));
        self.unknown += usize::from(unknown);
        self.indices.set(index, IndexUse::Conn(id));
        if to != FI_ADDR_NOTAVAIL {
            self.by_name.insert(to, id);
        }
        id
    }

    /// Removes a connection, and all entries of it.
    pub(super) fn remove(&mut self, id: u32) -> Option<Box<RxdConn>> {
        let conn = self.conns.remove(id)?;
        self.early_bytes -= conn.early.values().map(|packet| packet.len()).sum::<usize>();
        self.stalled.retain(|stalled| *stalled != id);
        self.held_back.retain(|stalled| *stalled != id);
        self.indices.free(conn.index);
        self.unknown -= usize::from(conn.unknown);
        *self.sums.of(conn.unknown) -= conn.held;
        self.to_retry = self.held_back.len();
        if conn.to != FI_ADDR_NOTAVAIL {
            self.by_name.remove(&conn.to);
        }
        Some(conn)
    }

    /// Sets the port's name of a connection's peer.
    pub(super) fn set_name(&mut self, id: u32, name: fi_addr_t) {
        self.conns[id].to = name;
        self.by_name.insert(name, id);
    }

    /// Returns the connection with the peer with this name of the port.
    pub(super) fn named(&self, name: fi_addr_t) -> Option<u32> {
        self.by_name.get(&name).copied()
    }

    /// Returns the meaning of an index.
    #[inline]
    pub(super) fn index_use(&self, index: u32) -> Option<IndexUse> {
        self.indices.get(index)
    }

    /// Returns the connection with this index.
    #[inline]
    pub(super) fn of_index(&self, index: u32) -> Option<u32> {
        match self.indices.get(index) {
            Some(IndexUse::Conn(id)) => Some(id),
            _ => None,
        }
    }

    /// Returns an unused index and a nonce.
    pub(super) fn draw(&self) -> Result<(u32, u64)> {
        Ok((self.indices.draw()?, random_number()?))
    }

    /// Frees an index without a connection.
    pub(super) fn free_index(&mut self, index: u32) {
        self.indices.free(index);
    }

    /// Records a request from this address; see [`HalfOpens::note`].
    pub(super) fn note_request(
        &mut self,
        addr: &Addr,
        known: Option<usize>,
        by: Introduction,
    ) -> Result<(u32, u64)> {
        self.half_open.note(addr, known, by, &mut self.indices)
    }

    /// Returns the half-open request with this number.
    pub(super) fn half_open(&self, number: u32) -> Option<&HalfOpen> {
        self.half_open.get(number)
    }

    /// Removes the request of this address; its index belongs to the caller from now on.
    pub(super) fn take_half_open(&mut self, addr: &Addr) -> Option<HalfOpen> {
        self.half_open.take(addr)
    }

    /// Checks the source of a packet with a connection's index, as far as the core reports it;
    /// `is_at` compares the known address of a peer. A peer may have several addresses: a peer without
    /// any packet from its known address is identified by the index alone.
    #[inline]
    pub(super) fn check_source(
        &mut self,
        id: u32,
        source: &PacketSource,
        is_at: impl FnOnce(u32, &Addr) -> bool,
    ) -> Parsed {
        let conn = &mut self.conns[id];
        let is_its = match source {
            PacketSource::Named(name) => *name == conn.to,
            PacketSource::At(at) => is_at(conn.peer, at),
            PacketSource::Unnamed => false,
        };
        if !is_its && conn.verified {
            return Err(Malformed("a packet that says to be of another peer"));
        }
        conn.verified |= is_its;
        Ok(())
    }

    /// Records a peer as known by an address vector, or by none.
    pub(super) fn set_unknown(&mut self, id: u32, unknown: bool) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.unknown != unknown) else {
            return;
        };
        conn.unknown = unknown;
        let held = conn.held;
        *self.sums.of(!unknown) -= held;
        *self.sums.of(unknown) += held;
        if unknown {
            self.unknown += 1;
        } else {
            self.unknown -= 1;
        }
    }

    /// Returns the number of connections with unknown peers.
    pub(super) fn unknown(&self) -> usize {
        self.unknown
    }

    /// Records resources held for a peer.
    pub(super) fn hold(&mut self, id: u32, more: Held) {
        let conn = &mut self.conns[id];
        conn.held += more;
        *self.sums.of(conn.unknown) += more;
    }

    /// Records resources no longer held for a peer.
    pub(super) fn release(&mut self, id: u32, less: Held) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.held -= less;
        *self.sums.of(conn.unknown) -= less;
        if less != Held::default() {
            self.to_retry = self.held_back.len();
        }
    }

    /// Returns true if another response to a peer may be held. Refusals have their own space, for
    /// the maximum number of requests in flight, when there is none for other responses:
    /// acknowledgements wait for them. If unknown peers hold too much, the second value is true.
    pub(super) fn admits_answer(&self, id: u32, max_unacked: usize, reject: bool) -> (bool, bool) {
        let most = most_answers(max_unacked) * if reject { 2 } else { 1 };
        let conn = &self.conns[id];
        let admits = self.sums.admits_answer(conn.unknown, conn.held, most);
        (admits, !admits && conn.held.answers < most && conn.unknown)
    }

    /// Returns true if another message with a match notice may be received.
    pub(super) fn admits_notice(&self, id: u32) -> bool {
        let conn = &self.conns[id];
        self.sums.admits_notice(conn.unknown, conn.held)
    }

    /// Returns true if this number of bytes of a response may be copied.
    pub(super) fn admits_copy(&self, id: u32, bytes: usize) -> bool {
        let conn = &self.conns[id];
        self.sums.admits_copy(conn.unknown, conn.held, bytes)
    }

    /// Returns true if a non-repeatable result of this size may be held.
    pub(super) fn admits_result(&self, id: u32, bytes: usize) -> bool {
        let conn = &self.conns[id];
        self.sums.admits_result(conn.unknown, conn.held, bytes)
    }

    /// Returns up to `count` silent unknown peers.
    pub(super) fn silent(
        &mut self,
        what: SilentSearch,
        count: usize,
        now: Instant,
    ) -> impl Iterator<Item = u32> + use<> {
        let search = what as usize;
        let which = |held: Held| what == SilentSearch::All || held.answers > 0;
        let mut silent = Vec::new();
        if self.next_search[search].is_none_or(|at| now >= at) {
            let mut soonest: Option<Instant> = None;
            for (id, conn) in self.conns.iter() {
                if !conn.unknown || conn.ops > 0 {
                    continue;
                }
                if now.saturating_duration_since(conn.last_received) < IDLE {
                    let at = conn.last_received + IDLE;
                    soonest = Some(soonest.map_or(at, |before| before.min(at)));
                } else if which(conn.held) {
                    let busy = !conn.is_quiet() || conn.arriving.is_some();
                    silent.push((busy, conn.last_received, id));
                }
            }
            if silent.len() <= count {
                // Not before another one can have become silent.
                self.next_search[search] = Some(soonest.unwrap_or(now + IDLE));
            }
            silent.sort_unstable();
            silent.truncate(count);
        }
        silent.into_iter().map(|(_, _, id)| id)
    }

    /// Stores a packet received early, if there is space; `most`: the maximum bytes of all of them.
    pub(super) fn store_early(&mut self, id: u32, seq: u64, packet: &[u8], most: usize) -> bool {
        let fits = self.early_bytes + packet.len() <= most;
        if fits {
            let bytes = &mut self.early_bytes;
            self.conns[id].early.entry(seq).or_insert_with(|| {
                *bytes += packet.len();
                packet.into()
            });
        }
        fits
    }

    /// Takes the stored next packet of a connection.
    pub(super) fn take_early(&mut self, id: u32) -> Option<Box<[u8]>> {
        let conn = self.conns.get_mut(id)?;
        let packet = conn.early.remove(&conn.expected)?;
        self.early_bytes -= packet.len();
        Some(packet)
    }

    /// Stores the next packet of a connection again.
    pub(super) fn put_back_early(&mut self, id: u32, packet: Box<[u8]>) {
        if let Some(conn) = self.conns.get_mut(id) {
            self.early_bytes += packet.len();
            conn.early.insert(conn.expected, packet);
        }
    }

    /// Blocks a connection because there is no space for the peer's data.
    pub(super) fn stall(&mut self, id: u32, missing: MissingSpace) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if !std::mem::replace(&mut conn.stalled, true) {
            match missing {
                MissingSpace::Responses => self.held_back.push(id),
                MissingSpace::Application => self.stalled.push(id),
            }
        }
    }

    /// Returns true if connections may be retried.
    pub(super) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty() || self.to_retry > 0
    }

    /// Takes some connections to be retried. They are few at a time, because peers in a permanent
    /// deadlock must cost others little.
    pub(super) fn take_stalled(&mut self) -> Vec<u32> {
        let stalled = self.stalled.len().min(RETRIED);
        let held_back = self.held_back.len().min(RETRIED).min(self.to_retry);
        self.to_retry -= held_back;
        self.stalled.drain(..stalled).chain(self.held_back.drain(..held_back)).collect()
    }

    pub(super) fn note_deadline(&mut self, at: Option<Instant>) {
        self.next_deadline = [self.next_deadline, at].into_iter().flatten().min();
    }

    /// When something has to be sent again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Takes the connections with a passed deadline. All held-back ones are retried,
    /// because silent peers may have made room.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<u32> {
        self.next_deadline = None;
        self.to_retry = self.held_back.len();
        self.conns.indices(|conn| conn.deadline.is_some_and(|at| at <= now))
    }

    /// Computes the next deadline anew.
    pub(super) fn find_deadline(&mut self) {
        self.next_deadline = self.conns.iter().filter_map(|(_, conn)| conn.deadline).min();
    }

    /// Schedules a connection with possibly something to send.
    pub(super) fn make_ready(&mut self, id: u32) {
        if let Some(conn) = self.conns.get_mut(id) {
            if !std::mem::replace(&mut conn.is_ready, true) {
                self.ready.push(id);
            }
        }
    }

    /// Takes a connection with possibly something to send.
    #[inline]
    pub(super) fn take_ready(&mut self) -> Option<u32> {
        while let Some(id) = self.ready.pop() {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.is_ready = false;
                return Some(id);
            }
        }
        None
    }

    /// An acknowledgement is due to a peer, at once or when the application had time to answer.
    pub(super) fn queue_ack(&mut self, id: u32, now: bool) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.ack_now |= now;
        if !std::mem::replace(&mut conn.ack_due, true) {
            self.acks.push(id);
        }
    }

    /// Returns true if an acknowledgement is due.
    #[inline]
    pub(super) fn has_acks(&self) -> bool {
        !self.acks.is_empty()
    }

    /// Sends due acknowledgements, with this window.
    pub(super) fn send_acks(
        &mut self,
        port: &mut dyn PacketPort,
        due: AcksDue,
        window: u32,
        now: Instant,
    ) {
        let conns = &mut self.conns;
        self.acks.retain(|id| {
            let Some(conn) = conns.get_mut(*id).filter(|conn| conn.ack_due) else { return false };
            if conn.stage != HandshakeState::Known {
                conn.ack_due = false;
                return false;
            }
            let waits = match due {
                AcksDue::Now => true,
                AcksDue::Waited => conn.ack_put_off && !conn.ack_predictor.is_late(now),
                AcksDue::All => false,
            };
            if waits && !conn.ack_now && conn.came < ACK_EVERY {
                return true;
            }
            let ours = conn.is_ours();
            let next = conn.holds.front().map_or(conn.expected, |(limit, _)| *limit);
            let taken = (conn.expected - next) as u32;
            let here = if ours && next == conn.expected { conn.early_bits() } else { 0 };
            let window = if conn.stalled { 0 } else { window };
            let packet = Ack { window, here, taken }.packet(conn.remote, next);
            if port.send(conn.to, &packet, packet.len()) == Err(Error::AGAIN) {
                return true;
            }
            conn.stop_notified = window == 0;
            if conn.ack_put_off {
                conn.ack_predictor.unanswered();
            }
            conn.ack_is_sent();
            false
        });
    }

    /// Returns true if data is in flight, with possible retransmissions, or queued.
    pub(super) fn has_work(&self) -> bool {
        self.next_deadline.is_some() || !self.acks.is_empty() || !self.ready.is_empty()
    }

    /// Returns true if nothing is to be sent or retried now; `is_full`: the application has to make
    /// space first.
    pub(super) fn may_block(&self, is_full: impl FnOnce() -> bool) -> bool {
        self.ready.is_empty() && (self.stalled.is_empty() || is_full()) && self.to_retry == 0
    }
}

#[cfg(test)]
impl RxdConns {
    pub(super) fn sums(&mut self) -> (Held, Held) {
        (*self.sums.of(false), *self.sums.of(true))
    }

    pub(super) fn index_counts(&self) -> (usize, usize) {
        (self.indices.len(), self.half_open.len())
    }

    pub(super) fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    pub(super) fn stalled_count(&self) -> usize {
        self.stalled.len() + self.held_back.len()
    }

    pub(super) fn stalled_mut(&mut self) -> &mut Vec<u32> {
        &mut self.stalled
    }
}
