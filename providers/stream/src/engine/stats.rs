//! Published statistics of an engine ([`ofi_provider::stats`]). They are written with the engine's
//! lock held: after a period without progress, before a thread sleeps, and periodically after a
//! number of progress iterations.
use super::conn::{Stage, StreamConn};
use super::ep::{StreamEngineEp, StreamEpKind};
use super::state::StreamState;
use crate::transport::{ByteLink, Transport, peer_of};
use crate::wire::{StreamHeader, StreamOp};
use ofi_provider::addr::Addr;
use ofi_provider::slab::NONE;
use ofi_provider::stats::{
    ANY, EndpointStats, PeerStats, TrafficCounter, coarse_now, kinds, peer_bits, states,
};

/// Maximum progress iterations between two publications of an engine's statistics.
pub(super) const PUBLISHED_EACH: u64 = 4096;

/// Nanoseconds between two publications of an idle engine's statistics.
const PUBLISHED_AFTER: u64 = 10_000_000;

/// Maximum connections published in one pass; the others follow in the next passes.
const MAX_PUBLISHED: u32 = 64;

/// Maximum messages of one connection with their bytes counted.
const MOST_COUNTED: usize = 16;

/// Counts the traffic of a header: messages, and the bytes of messages and memory accesses.
#[inline]
pub(super) fn count_header(passed: &TrafficCounter, header: &StreamHeader) {
    match header.op {
        // The bytes of an announced message come with `Data`.
        StreamOp::TagRts | StreamOp::Cts | StreamOp::ReadReq => {}
        StreamOp::Msg if header.op_data == crate::wire::ACK => {}
        _ => drop(passed.one(usize::try_from(header.len).unwrap_or(0))),
    }
}

/// Returns the text form of an address for display.
fn text(addr: &Addr) -> String {
    addr.for_people()
}

impl StreamEngineEp {
    /// The address of the peer of a connection of this endpoint.
    pub(super) fn published_peer<N: Transport>(&self, conn: &StreamConn<N>) -> Option<String> {
        match self.peers.get(conn.peer) {
            Some(peer) => Some(text(&peer.addr)),
            None => peer_of(&conn.link),
        }
    }
}

impl<N: Transport> StreamConn<N> {
    fn stats(&self) -> PeerStats {
        let state = match self.stage {
            Stage::Connecting => states::CONNECTING,
            Stage::AwaitResponse => states::ASKED,
            Stage::Called => states::CALLED,
            Stage::Connected => states::CONNECTED,
        };
        let [secret, encrypted] = self.link.secrecy();
        let bits = [
            (peer_bits::SENDS_LOCALLY, self.link.tx_over_shm()),
            (peer_bits::RX_OVER_SHM, self.link.rx_over_shm()),
            (peer_bits::BLOCKED, self.blocked),
            (peer_bits::SECRET, secret),
            (peer_bits::ENCRYPTED, encrypted),
        ];
        let bits = bits.iter().fold(0, |bits, (bit, set)| if *set { bits | bit } else { bits });
        let left = |outgoing: &super::transfer::TxRequest| {
            (outgoing.body.len() as u64).saturating_sub(outgoing.sent as u64)
        };
        let ([sent, sent_bytes], [received, received_bytes]) =
            (self.sent.get(), self.received.get());
        PeerStats {
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
            ..PeerStats::default()
        }
    }
}

impl<N: Transport> StreamState<N> {
    /// Publishes the current statistics.
    #[cold]
    #[inline(never)]
    pub(super) fn show(&mut self) {
        self.show_at = self.looks.last() + PUBLISHED_AFTER;
        if !self.stats.is_published() {
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
        let Self { conns, eps, stats, .. } = self;
        let slots = conns.slots() as u32;
        let begin = if stats.cursor < slots { stats.cursor } else { 0 };
        let end = slots.min(begin.saturating_add(MAX_PUBLISHED));
        stats.cursor = end;
        let mut moved = 0;
        for id in begin..end {
            let Some(conn) = conns.get_mut(id) else { continue };
            let ep = &eps[conn.ep];
            let peer = PeerStats {
                written: now,
                endpoint: ep.published.serial(),
                name: ep.peers.get(conn.peer).map_or(ANY, |peer| peer.name),
                ..conn.stats()
            };
            let mut published = std::mem::take(&mut conn.published);
            let address = || ep.published_peer(conn).unwrap_or_default();
            moved = moved.max(published.show(stats, peer, address));
            conn.published = published;
        }
        moved
    }

    #[inline(never)]
    fn show_endpoints(&mut self, now: u64, moved: u64) {
        let Self {
            conns,
            eps,
            stats,
            listeners,
            iterations,
            visits,
            idle,
            waiters,
            cq_blocked,
            serves,
            ..
        } = self;
        let calls_again = self.wakes.is_some();
        let slots = eps.slots() as u32;
        let begin = if stats.ep_cursor < slots { stats.ep_cursor } else { 0 };
        let end = slots.min(begin.saturating_add(MAX_PUBLISHED));
        stats.ep_cursor = end;
        for id in begin..end {
            let Some(ep) = eps.get_mut(id) else { continue };
            let [sent, sent_bytes, received, received_bytes] = ep.past.get();
            let (tx, rx) = (ep.completions.cq(), ep.matcher.completions.cq());
            let one = matches!((tx, rx), (Some(tx), Some(rx)) if std::sync::Arc::ptr_eq(tx, rx));
            let fill = |cq: Option<&std::sync::Arc<ofi_provider::cq::Cq>>| {
                cq.map_or([0; 2], |cq| cq.fill())
            };
            let ([tx_queue, tx_queue_size], [rx_queue, rx_queue_size]) = (fill(tx), fill(rx));
            let cq_blocked = cq_blocked.iter().filter_map(|id| conns.get(*id));
            let mut of = EndpointStats {
                kind: match ep.identity.kind {
                    StreamEpKind::Msg => kinds::MSG,
                    StreamEpKind::Rdm => kinds::RDM,
                    StreamEpKind::Srx => kinds::SRX,
                },
                engine: stats.engine(),
                written: now,
                turns: *iterations,
                visits: *visits,
                idle: u64::from(*idle),
                asleep: waiters.count() as u64,
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
                cq_blocked: cq_blocked.filter(|conn| conn.ep == id).count() as u64,
                connections: conns.len() as u64,
                serves: u64::from(*serves),
                latency: ep.times.classes(),
                ..EndpointStats::default()
            };
            ep.errors.show(&mut of);
            ep.matcher.show(&mut of);
            let msg = ep.identity.kind == StreamEpKind::Msg;
            let link = conns.get(ep.conn).filter(|_| msg).map(|conn| &conn.link);
            let settled = listeners.contains_key(&id) || link.is_some();
            let local = &ep.identity.local;
            ep.published.show(stats, of, settled, || {
                link.and_then(|link| link.local_addr().ok())
                    .map_or_else(|| text(local), |at| text(&at))
            });
            let called = std::mem::replace(&mut ep.called, calls_again);
            if !calls_again && !called {
                continue;
            }
            for (_, peer) in ep.peers.iter_mut() {
                if peer.conn != NONE || peer.extra.parked.is_empty() {
                    peer.extra.published = Default::default();
                    continue;
                }
                let addr = &peer.addr;
                let waits = PeerStats {
                    endpoint: ep.published.serial(),
                    name: peer.name,
                    state: states::LATER,
                    written: now,
                    unsent: peer.extra.parked.len() as u64,
                    refused: peer.extra.retry.rejections().into(),
                    ..PeerStats::default()
                };
                peer.extra.published.show(stats, waits, || text(addr));
            }
        }
    }
}
