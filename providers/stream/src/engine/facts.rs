//! Published statistics of an engine ([`ofi_provider::facts`]). They are written with the engine's
//! lock held: after a period without progress, before a thread sleeps, and periodically after a
//! number of progress iterations.
use super::conn::{Stage, StreamConn};
use super::ep::{StreamEngineEp, StreamEpKind};
use super::state::StreamState;
use crate::net::{ByteLink, Net, peer_of};
use crate::wire::{StreamHeader, StreamOp};
use ofi_provider::addr::Addr;
use ofi_provider::facts::{
    ANY, EndpointFacts, Passed, PeerFacts, coarse_now, kinds, peer_bits, states,
};
use ofi_provider::slab::NONE;

/// Maximum progress iterations between two publications of an engine's statistics.
pub(super) const SHOWN_EACH: u64 = 4096;

/// Nanoseconds between two publications of an idle engine's statistics.
const SHOWN_AFTER: u64 = 10_000_000;

/// Maximum connections published in one pass; the others follow in the next passes.
const MOST_SHOWN: u32 = 64;

/// Maximum messages of one connection with their bytes counted.
const MOST_COUNTED: usize = 16;

/// Counts the traffic of a header: messages, and the bytes of messages and memory accesses.
#[inline]
pub(super) fn count_header(passed: &Passed, header: &StreamHeader) {
    match header.op {
        // The bytes of an announced message come with `Data`.
        StreamOp::TagRts | StreamOp::Cts | StreamOp::ReadReq => {}
        StreamOp::Msg if header.op_data == crate::wire::ACK => {}
        _ => drop(passed.one(usize::try_from(header.len).unwrap_or(0))),
    }
}

/// An address as it is shown.
fn text(addr: &Addr) -> String {
    addr.for_people()
}

impl StreamEngineEp {
    /// The address of the peer of a connection of this endpoint.
    pub(super) fn shown_peer<N: Net>(&self, conn: &StreamConn<N>) -> Option<String> {
        match self.peers.get(conn.peer) {
            Some(peer) => Some(text(&peer.addr)),
            None => peer_of(&conn.link),
        }
    }
}

impl<N: Net> StreamConn<N> {
    fn facts(&self) -> PeerFacts {
        let state = match self.stage {
            Stage::Connecting => states::CONNECTING,
            Stage::AwaitResponse => states::ASKED,
            Stage::Called => states::CALLED,
            Stage::Connected => states::CONNECTED,
        };
        let [secret, encrypted] = self.link.secrecy();
        let bits = [
            (peer_bits::SENDS_LOCALLY, self.link.sends_locally()),
            (peer_bits::HEARS_LOCALLY, self.link.hears_locally()),
            (peer_bits::BLOCKED, self.blocked),
            (peer_bits::SECRET, secret),
            (peer_bits::ENCRYPTED, encrypted),
        ];
        let bits = bits.iter().fold(0, |bits, (bit, set)| if *set { bits | bit } else { bits });
        let left = |outgoing: &super::transfer::Outgoing| {
            (outgoing.body.len() as u64).saturating_sub(outgoing.sent as u64)
        };
        let ([sent, sent_bytes], [received, received_bytes]) =
            (self.sent.get(), self.received.get());
        PeerFacts {
            state: state | bits,
            sent,
            sent_bytes,
            received,
            received_bytes,
            unsent: self.tx.len() as u64 + u64::from(self.has_unsent() && self.tx.is_empty()),
            unsent_bytes: self.tx.iter().take(MOST_COUNTED).map(left).sum(),
            unacknowledged: self.unacked.len() as u64,
            announced: self.waiting.len() as u64,
            at_sender: self.at_sender.len() as u64,
            unanswered: self.reads.len() as u64,
            incomplete: self.left() as u64,
            ..PeerFacts::default()
        }
    }
}

impl<N: Net> StreamState<N> {
    /// Publishes the current statistics.
    #[cold]
    #[inline(never)]
    pub(super) fn show(&mut self) {
        self.show_at = self.looks.last() + SHOWN_AFTER;
        if !self.facts.is_shown() {
            self.show_at = u64::MAX;
            return;
        }
        let now = coarse_now();
        let moved = self.show_peers(now);
        self.show_endpoints(now, moved);
    }

    /// Publishes the statistics of connections; returns the time of the last activity on any of
    /// them.
    #[inline(never)]
    fn show_peers(&mut self, now: u64) -> u64 {
        let Self { conns, eps, facts, .. } = self;
        let slots = conns.slots() as u32;
        let begin = if facts.cursor < slots { facts.cursor } else { 0 };
        let end = slots.min(begin.saturating_add(MOST_SHOWN));
        facts.cursor = end;
        let mut moved = 0;
        for id in begin..end {
            let Some(conn) = conns.get_mut(id) else { continue };
            let ep = &eps[conn.ep];
            let peer = PeerFacts {
                written: now,
                endpoint: ep.shown.serial(),
                name: ep.peers.get(conn.peer).map_or(ANY, |peer| peer.name),
                ..conn.facts()
            };
            let mut shown = std::mem::take(&mut conn.shown);
            let address = || ep.shown_peer(conn).unwrap_or_default();
            moved = moved.max(shown.show(facts, peer, address));
            conn.shown = shown;
        }
        moved
    }

    #[inline(never)]
    fn show_endpoints(&mut self, now: u64, moved: u64) {
        let Self {
            conns,
            eps,
            facts,
            listeners,
            turns,
            visits,
            idle,
            sleepers,
            starved,
            serves,
            ..
        } = self;
        let calls_again = self.wakes.is_some();
        let slots = eps.slots() as u32;
        let begin = if facts.ep_cursor < slots { facts.ep_cursor } else { 0 };
        let end = slots.min(begin.saturating_add(MOST_SHOWN));
        facts.ep_cursor = end;
        for id in begin..end {
            let Some(ep) = eps.get_mut(id) else { continue };
            let [sent, sent_bytes, received, received_bytes] = ep.past.get();
            let (tx, rx) = (ep.ledger.cq(), ep.inbox.ledger.cq());
            let one = matches!((tx, rx), (Some(tx), Some(rx)) if std::sync::Arc::ptr_eq(tx, rx));
            let fill = |cq: Option<&std::sync::Arc<ofi_provider::cq::Cq>>| {
                cq.map_or([0; 2], |cq| cq.fill())
            };
            let ([tx_queue, tx_queue_size], [rx_queue, rx_queue_size]) = (fill(tx), fill(rx));
            let starved = starved.iter().filter_map(|id| conns.get(*id));
            let mut of = EndpointFacts {
                kind: match ep.identity.kind {
                    StreamEpKind::Msg => kinds::MSG,
                    StreamEpKind::Rdm => kinds::RDM,
                    StreamEpKind::Srx => kinds::SRX,
                },
                engine: facts.engine(),
                written: now,
                turns: *turns,
                visits: *visits,
                idle: u64::from(*idle),
                asleep: sleepers.count() as u64,
                moved,
                sent,
                sent_bytes,
                received,
                received_bytes,
                in_flight: ep.tx_pending as u64,
                tx_size: ep.identity.attr.tx_size as u64,
                tx_queue,
                tx_queue_size,
                rx_queue,
                rx_queue_size,
                one_queue: one.into(),
                starved: starved.filter(|conn| conn.ep == id).count() as u64,
                connections: conns.len() as u64,
                serves: u64::from(*serves),
                latency: ep.times.classes(),
                ..EndpointFacts::default()
            };
            ep.errors.show(&mut of);
            ep.inbox.show(&mut of);
            let msg = ep.identity.kind == StreamEpKind::Msg;
            let link = conns.get(ep.conn).filter(|_| msg).map(|conn| &conn.link);
            let settled = listeners.contains_key(&id) || link.is_some();
            let local = &ep.identity.local;
            ep.shown.show(facts, of, settled, || {
                link.and_then(|link| link.local_addr().ok())
                    .map_or_else(|| text(local), |at| text(&at))
            });
            let called = std::mem::replace(&mut ep.called, calls_again);
            if !calls_again && !called {
                continue;
            }
            for (_, peer) in ep.peers.iter_mut() {
                if peer.conn != NONE || peer.extra.parked.is_empty() {
                    peer.extra.shown = Default::default();
                    continue;
                }
                let addr = &peer.addr;
                let waits = PeerFacts {
                    endpoint: ep.shown.serial(),
                    name: peer.name,
                    state: states::LATER,
                    written: now,
                    unsent: peer.extra.parked.len() as u64,
                    refused: peer.extra.retry.refusals().into(),
                    ..PeerFacts::default()
                };
                peer.extra.shown.show(facts, waits, || text(addr));
            }
        }
    }
}
