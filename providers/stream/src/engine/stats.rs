//! Published statistics of an engine ([`ofi_provider::stats`]). They are written with the engine's
//! lock held: after a period without progress, before a thread sleeps, and periodically after a
//! number of progress iterations.
use super::conn::{Stage, StreamConn};
use super::ep::{StreamEngineEp, StreamEpKind};
use super::tx_path::TxPath;
use crate::transport::{AuthenticatedLink, ByteLink, LinkRecovery, ShmLink, ShmTransport, peer_of};
use ofi_provider::addr::Addr;
use ofi_provider::slab::NONE;
use ofi_provider::stats::{
    ANY, EndpointStats, EngineStats, PeerStats, PublicationTime, PublicationTimer, coarse_now,
    kinds, peer_bits, states,
};

/// Maximum progress iterations between two publications of an engine's statistics.
pub(super) const PUBLISHED_EACH: u64 = 4096;

/// Maximum connections published in one pass; the others follow in the next passes.
const MAX_PUBLISHED: u32 = 64;

/// Maximum messages of one connection with their bytes counted.
const MOST_COUNTED: usize = 16;

/// Returns the text form of an address for display.
fn text(addr: &Addr) -> String {
    addr.for_people()
}

impl StreamEngineEp {
    /// The address of the peer of a connection of this endpoint.
    pub(super) fn published_peer<N: ShmTransport>(&self, conn: &StreamConn<N>) -> Option<String> {
        match self.peers.get(conn.peer) {
            Some(peer) => Some(text(&peer.addr)),
            None => peer_of(&conn.link),
        }
    }
}

impl<N: ShmTransport> StreamConn<N> {
    /// Adds the recoveries from lost sockets since the last call to a sum.
    pub(super) fn count_recovery(&mut self, sum: &mut LinkRecovery) {
        let now = self.link.recovery();
        let before = std::mem::replace(&mut self.recovered, now);
        sum.resumes += now.resumes - before.resumes;
        sum.repeated_bytes += now.repeated_bytes - before.repeated_bytes;
    }

    fn stats(&self) -> PeerStats {
        let recovery = self.link.recovery();
        let state = match self.stage {
            Stage::Connected if recovery.is_resuming => states::RESUMING,
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
            subflows: self.link.subflows(),
            sockets: self.link.sockets(),
            resumes: recovery.resumes,
            repeated_bytes: recovery.repeated_bytes,
            ..PeerStats::default()
        }
    }
}

/// Published statistics of an engine.
#[derive(Debug)]
pub(super) struct StatsPublisher {
    page: EngineStats,
    timer: PublicationTimer,
    /// Progress iterations made by threads of the library.
    thread_iterations: u64,
    /// The endpoints serve those of a utility provider.
    serves: bool,
}

impl StatsPublisher {
    pub(super) fn new(page: EngineStats) -> Self {
        Self { page, timer: PublicationTimer::default(), thread_iterations: 0, serves: false }
    }

    /// Counts a progress iteration; `iterations` is the sum of all.
    #[inline(always)]
    pub(super) fn count_iterations(&mut self, iterations: u64) {
        self.page.count_iterations(iterations);
    }

    /// Counts a progress iteration made by a thread of the library.
    pub(super) fn count_library_iteration(&mut self) {
        self.thread_iterations += 1;
    }

    /// Records endpoints serving those of a utility provider.
    pub(super) fn set_serving(&mut self) {
        self.serves = true;
    }

    /// Returns true if an idle engine's statistics are to be published at this time, in nanoseconds of
    /// [`PollBackoff::last`](ofi_provider::backoff::PollBackoff::last).
    #[inline(always)]
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.timer.is_due(now)
    }

    /// Publishes the current statistics.
    #[cold]
    #[inline(never)]
    pub(super) fn show<N: ShmTransport>(&mut self, tx: &mut TxPath<N>) {
        if !self.page.is_published() {
            self.timer.stop();
            return;
        }
        let (begin, now) = (PublicationTime::now(), coarse_now());
        let moved = self.show_peers(tx, now);
        self.show_endpoints(tx, now, moved);
        self.timer.restart(begin);
    }

    /// Publishes the statistics of connections; returns the time of the last activity on any of
    /// them.
    #[inline(never)]
    fn show_peers<N: ShmTransport>(&mut self, tx: &mut TxPath<N>, now: u64) -> u64 {
        let (conns, eps, stats) = (&mut tx.io.conns, &mut tx.eps, &mut self.page);
        let slots = conns.slots();
        let begin = if stats.cursor < slots { stats.cursor } else { 0 };
        let end = slots.min(begin.saturating_add(MAX_PUBLISHED));
        stats.cursor = end;
        let mut moved = 0;
        for id in begin..end {
            let Some(conn) = conns.get_mut(id) else { continue };
            let ep = &mut eps[conn.ep];
            conn.count_recovery(&mut ep.recovered);
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
    fn show_endpoints<N: ShmTransport>(&mut self, tx: &mut TxPath<N>, now: u64, moved: u64) {
        let (TxPath { io, eps, .. }, stats) = (tx, &mut self.page);
        let conns = &io.conns;
        let calls_again = io.timer.is_set();
        let slots = eps.slots();
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
            let cq_blocked = io.blocked.on_cq().filter_map(|id| conns.get(id));
            let mut of = EndpointStats {
                kind: match ep.identity.kind {
                    StreamEpKind::Msg => kinds::MSG,
                    StreamEpKind::Rdm => kinds::RDM,
                    StreamEpKind::Srx => kinds::SRX,
                },
                engine: stats.engine(),
                written: now,
                iterations: io.poll.iterations(),
                thread_iterations: self.thread_iterations,
                idle: u64::from(io.poll.idle()),
                asleep: io.poll.waiters() as u64,
                moved,
                sent,
                sent_bytes,
                received,
                received_bytes,
                resumes: ep.recovered.resumes,
                repeated_bytes: ep.recovered.repeated_bytes,
                closed_idle: ep.closed_idle,
                in_flight: ep.tx_pending as u64,
                tx_size: ep.identity.attr.tx_size as u64,
                tx_queue,
                tx_queue_size,
                rx_queue,
                rx_queue_size,
                one_queue: one.into(),
                cq_blocked: cq_blocked.filter(|conn| conn.ep == id).count() as u64,
                connections: conns.len() as u64,
                serves: u64::from(self.serves),
                latency: ep.times.classes(),
                ..EndpointStats::default()
            };
            ep.errors.show(&mut of);
            ep.matcher.queues.show(&mut of);
            let msg = ep.identity.kind == StreamEpKind::Msg;
            let link = conns.get(ep.conn).filter(|_| msg).map(|conn| &conn.link);
            let settled = io.listeners.is_open(id) || link.is_some();
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
