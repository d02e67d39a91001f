//! Published statistics of an endpoint ([`ofi_provider::stats`]). They are written with the
//! engine's lock held, at each check for connection events, and before a thread sleeps.
use super::conn::{Link, RxmConn, Waiting};
use super::ep::RxmEngineEp;
use super::pending::{MAX_UNEXPECTED, PendingSteps};
use ofi_provider::core_provider::CoreEndpoint;
use ofi_provider::stats::{
    ANY, EndpointStats, EngineStats, PeerStats, coarse_now, kinds, peer_bits, states,
};

/// Maximum connections of an endpoint published in one pass; the others follow in the next passes.
const MAX_PUBLISHED: usize = 64;

/// Maximum transfers of one connection with their bytes counted.
const MOST_COUNTED: usize = 16;

impl RxmConn {
    fn stats(&self) -> PeerStats {
        let state = match self.link {
            Link::Calling => states::CALLING,
            Link::Accepting => states::CALLED,
            Link::Refused => states::LATER,
            Link::Connected | Link::Closing | Link::Ended => states::CONNECTED,
        };
        let in_memory = self.ep.as_ref().is_some_and(CoreEndpoint::is_in_memory);
        let ways = if in_memory { peer_bits::SENDS_LOCALLY | peer_bits::RX_OVER_SHM } else { 0 };
        let unsent = self.waiting.len() + self.urgent.len();
        let ([sent, sent_bytes], [received, received_bytes]) =
            (self.sent.get(), self.received.get());
        PeerStats {
            state: state | ways,
            sent,
            sent_bytes,
            received,
            received_bytes,
            unsent: unsent as u64,
            unacknowledged: self.ops.saturating_sub(self.waiting.len()) as u64,
            at_sender: self.announced as u64,
            incomplete: self
                .partial
                .iter()
                .map(|part| (part.envelope.len - part.done) as u64)
                .sum(),
            refused: self.retry.rejections().into(),
            ..PeerStats::default()
        }
    }
}

impl RxmEngineEp {
    /// Publishes the current statistics, with the number of progress iterations and the number made
    /// by threads of the library. `asleep`: the number of threads about to sleep.
    #[cold]
    #[inline(never)]
    pub(super) fn show(
        &mut self,
        stats: &EngineStats,
        [iterations, thread_iterations]: [u64; 2],
        asleep: u64,
    ) {
        if !stats.is_published() || self.core.is_none() {
            return;
        }
        let now = coarse_now();
        let moved = self.show_peers(stats, now);
        let [sent, sent_bytes, received, received_bytes] = self.past.get();
        let (tx, rx) = (self.tx.cq(), self.matcher.completions.cq());
        let one = matches!((tx, rx), (Some(tx), Some(rx)) if std::sync::Arc::ptr_eq(tx, rx));
        let fill =
            |cq: Option<&std::sync::Arc<ofi_provider::cq::Cq>>| cq.map_or([0; 2], |cq| cq.fill());
        let ([tx_queue, tx_queue_size], [rx_queue, rx_queue_size]) = (fill(tx), fill(rx));
        let parked = u64::from(!self.parked.is_empty());
        let mut of = EndpointStats {
            kind: kinds::RDM,
            engine: stats.engine(),
            written: now,
            iterations,
            thread_iterations,
            idle: (moved < now).into(),
            asleep,
            moved,
            sent,
            sent_bytes,
            received,
            received_bytes,
            in_flight: self.tx.len() as u64,
            tx_size: self.identity.attr.tx_size as u64,
            tx_queue,
            tx_queue_size,
            rx_queue,
            rx_queue_size,
            one_queue: one.into(),
            cq_blocked: parked,
            connections: self.conns.len() as u64,
            closed_idle: self.limit.closed_idle,
            ..EndpointStats::default()
        };
        self.tx.show(&mut of);
        self.matcher.queues.show(&mut of);
        let local = &self.identity.local;
        self.published.show(stats, of, true, || local.for_people());
    }

    /// Publishes the statistics of connections; returns the time of the last activity on any of
    /// them.
    fn show_peers(&mut self, stats: &EngineStats, now: u64) -> u64 {
        let slots = self.conns.slots();
        let begin = if self.show_next < slots { self.show_next } else { 0 };
        let end = slots.min(begin + MAX_PUBLISHED);
        self.show_next = end;
        // Bytes that are to be fetched, by connection.
        let mut fetched = [0; MAX_PUBLISHED];
        for (conn, wanted) in self.fetches.sizes() {
            if let Some(sum) = (conn as usize).checked_sub(begin).and_then(|at| fetched.get_mut(at))
            {
                *sum += wanted as u64;
            }
        }
        // No more messages are taken of any peer.
        let full = self.matcher.queues.buffered_bytes() > MAX_UNEXPECTED;
        let mut moved = 0;
        for id in begin..end {
            let Some(conn) = self.conns.get_mut(id as u32) else { continue };
            if conn.first != 0 {
                // The first connection to the peer counts its traffic.
                continue;
            }
            let left = |waiting: &Waiting| match waiting {
                Waiting::Op(op) => match self.tx.get(*op).map(|op| &op.todo) {
                    Some(PendingSteps::Send(message)) => (message.buf.len() - message.sent) as u64,
                    Some(PendingSteps::Packet(_, len)) => *len as u64,
                    _ => 0,
                },
                Waiting::Packet(_, len, _) => *len as u64,
                Waiting::RendezvousGet(_) => 0,
            };
            let of = conn.stats();
            let state = if full { of.state | peer_bits::BLOCKED } else { of.state };
            let peer = PeerStats {
                state,
                written: now,
                endpoint: self.published.serial(),
                name: self.peers.get(conn.peer).map_or(ANY, |peer| peer.name),
                unsent_bytes: conn.waiting.iter().take(MOST_COUNTED).map(left).sum(),
                incomplete: of.incomplete + fetched[id - begin],
                ..of
            };
            let peers = &self.peers;
            let address = || peers.get(conn.peer).map(|peer| peer.addr.for_people());
            moved = moved.max(conn.published.show(stats, peer, || address().unwrap_or_default()));
        }
        moved
    }
}
