//! Limit of the descriptors used by connections, and the end of idle connections at the limit.
//!
//! Two ends with support for [`StreamOp::Close`](crate::wire::StreamOp::Close) agree on the end of an
//! idle connection. The requester has nothing in flight and continues to use the connection. The other
//! end agrees if it has nothing in flight either; its transfers wait from then on
//! ([`StreamPeer::closing`](super::ep::StreamPeer::closing)). The requester closes the connection if it
//! has sent nothing since its request, else it cancels. Any bytes of the requester after the
//! agreement, or the end of the connection, let the other end continue. So neither end closes a
//! connection with bytes on the way. If both ends request at the same time, the request of the
//! accepting end is void.
//!
//! Other peers see the end of one direction, after a longer time without traffic. The other
//! direction is read to its end, and transfers to the peer wait for the end.
use super::conn::{Stage, StreamConn};
use super::conn_limit::max_conns;
use super::conn_usage::{CloseRejection, ClosingState, TrafficMark, UsedDescriptors};
use super::ep::StreamEpKind;
use super::io::EngineIo;
use super::rx_path::RxPath;
use super::tx_path::{TxPath, TxResult};
use crate::conn_quota::ReservedDescriptor;
use crate::transport::{ByteLink, ShmTransport};
use crate::wire::{CloseStep, StreamHeader};
use ofi_provider::conn_limit::{is_awaited, longest_idle, max_closings, max_unanswered};
use ofi_provider::error::{Error, Result};
use ofi_provider::slab::NONE;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum wait for the end of connections before others exceed the limit.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time until the next search while first messages are awaited on new connections.
const AWAITED_INTERVAL: Duration = Duration::from_millis(5);

/// Minimum time without traffic before the end of a connection without agreement.
const SILENCE: Duration = Duration::from_secs(1);

/// Maximum wait of transfers for the end of a connection closed in one direction.
const HALF_CLOSED: Duration = Duration::from_secs(3);

/// Minimum time between two samples of the traffic of all connections.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

impl<N: ShmTransport> EngineIo<N> {
    /// Returns the maximum descriptors of connections, as configured or found.
    pub(super) fn max_conns(&self) -> usize {
        self.limit.shortage.max(self.net.now(), max_conns::<N>())
    }

    pub(super) fn used_descriptors(&self) -> usize {
        self.limit.used.load(Ordering::Relaxed) + self.callers.len()
    }

    /// Counts the descriptors of a new connection.
    pub(super) fn count_descriptors(&self, conn: &mut StreamConn<N>) {
        let mut used = UsedDescriptors::new(&self.limit.used);
        used.set(conn.link.descriptors());
        conn.usage.descriptors = Some(used);
        conn.usage.reserved = ReservedDescriptor::of(conn.link.fd());
    }

    /// Returns true if another connection may be opened or accepted now.
    pub(super) fn has_space(&self) -> bool {
        if self.limit.shortage.is_pausing(self.net.now()) {
            return false;
        }
        self.limit.may_exceed || self.used_descriptors() < self.max_conns()
    }

    /// Returns true if another unanswered call leaves space for calls of peers.
    pub(super) fn has_space_to_accept(&self) -> bool {
        let most = max_unanswered(self.max_conns());
        let is_unanswered =
            |conn: &StreamConn<N>| matches!(conn.stage, Stage::Connecting | Stage::AwaitResponse);
        self.used_descriptors() < most
            || self.conns.iter().filter(|(_, conn)| is_unanswered(conn)).count() < most
    }

    /// Takes a sample of the traffic of all connections, if they use at least half of the limit.
    /// Idle connections are recognized by samples without a difference.
    #[inline(never)]
    pub(super) fn sample_traffic(&mut self) {
        if self.used_descriptors() < self.max_conns() / 2 {
            return;
        }
        let now = self.net.now();
        if !self.limit.next_sample.take_due(now, SAMPLE_INTERVAL) {
            return;
        }
        for (_, conn) in self.conns.iter_mut() {
            conn.sample_traffic(now);
        }
    }
}

impl<N: ShmTransport> StreamConn<N> {
    fn traffic_mark(&self) -> TrafficMark {
        ([&self.sent, &self.received].map(|passed| passed.get()[0]), self.tx_id)
    }

    fn sample_traffic(&mut self, now: Instant) {
        let mark @ (messages, _) = self.traffic_mark();
        self.usage.idle.sample(mark, now);
        if let Some(rejection) = &mut self.usage.rejection {
            rejection.sample(messages, now);
        }
        if let Some(descriptors) = &mut self.usage.descriptors {
            descriptors.set(self.link.descriptors());
        }
    }

    /// Returns true if the peer has just opened the connection, and sends its first message.
    fn is_awaited(&self, now: Instant) -> bool {
        let is_new = self.is_connected() && !self.usage.is_dialed && self.received.get()[0] == 0;
        is_new && is_awaited(self.usage.idle.since(), now)
    }

    /// Returns true if nothing is in flight in either direction, as far as this end knows.
    fn is_idle(&self) -> bool {
        #[cfg(any(test, feature = "sim"))]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::ClosedInUse) {
            return self.is_connected() && !self.sends_no_more;
        }
        let unsent = self.tx.len() + self.batch.len() + self.backlog + self.retained + self.fetched;
        let arriving = self.at_sender.len() + self.expected.len() + self.stash.len();
        self.is_connected()
            && !self.sends_no_more
            && !self.blocked
            && self.incoming.is_none()
            && self.is_settled()
            && self.acks.is_empty()
            && unsent + arriving == 0
    }
}

impl<N: ShmTransport> TxPath<N> {
    /// Returns true if this connection of a reliable datagram endpoint may be closed: it is the only
    /// one with its peer, except for one it replaced, and nothing is in flight. The end of an unknown
    /// peer's last connection would permit dropping its buffered messages.
    fn may_end(&self, conn: &StreamConn<N>) -> bool {
        let ep = &self.eps[conn.ep];
        let senders = &ep.matcher.senders;
        ep.identity.kind == StreamEpKind::Rdm
            && !conn.usage.is_half_closed()
            && ep.peers.get(conn.peer).is_some_and(|peer| {
                // The peer may have no descriptor for the request before this one is closed.
                peer.conns == 1 + u32::from(peer.extra.replaced.is_some())
            })
            && conn.is_idle()
            && !(senders.is_unknown_peer(conn.peer) && senders.has_buffered_from(conn.peer))
    }

    /// Returns connections closable at this end, those idle longest first, at most `count`
    /// of them.
    fn idle_conns(&self, now: Instant, count: usize) -> Vec<u32> {
        let idle = self.io.conns.iter().filter_map(|(id, conn)| {
            let since = conn.usage.idle.since()?;
            let is_silent = || {
                // A response would have no way to the peer.
                conn.asked == 0 && now.saturating_duration_since(since) >= SILENCE
            };
            let is_meant = conn.usage.state == ClosingState::Open
                && conn.usage.rejection.as_ref().is_none_or(|rejection| rejection.is_over(now))
                && (conn.knows.closing || is_silent())
                && !conn.is_awaited(now)
                && self.may_end(conn);
            is_meant.then_some((since, id))
        });
        longest_idle(idle, count)
    }

    /// Starts the end of an idle connection: requests it, or ends the direction to a peer without
    /// agreement.
    pub(super) fn begin_closing(&mut self, id: u32, now: Instant) -> TxResult {
        let conn = &mut self.io.conns[id];
        let name = (id, conn.serial);
        if !conn.knows.closing {
            conn.usage.state = ClosingState::HalfClosed;
            conn.link.end_sending();
            self.eps[conn.ep].closed_idle += 1;
            self.io.limit.ending.push((name, now + HALF_CLOSED));
            self.hold_transfers(id);
            self.stop_sending(id);
            return Ok(());
        }
        self.io.limit.requests += 1;
        let number = self.io.limit.requests;
        self.io.limit.ending.push((name, now + CLOSE_TIMEOUT));
        let sent = self.send_internal(id, StreamHeader::close(CloseStep::Request, number));
        if let Some(conn) = self.io.conns.get_mut(id) {
            conn.usage.state = ClosingState::Requested(number, conn.traffic_mark());
        }
        sent
    }

    /// Makes transfers to the peer of a connection wait for its end, if they would use it.
    fn hold_transfers(&mut self, id: u32) {
        let conn = &self.io.conns[id];
        let Some(peer) = self.eps[conn.ep].peers.get_mut(conn.peer) else { return };
        if peer.conn == id {
            (peer.conn, peer.extra.closing) = (NONE, Some(id));
        }
    }

    /// Resumes the transfers waiting for the end of a connection: they start another one.
    pub(super) fn release_transfers(&mut self, ep_id: u32, peer: u32, id: u32) {
        let Some(entry) = self.eps[ep_id].peers.get_mut(peer) else { return };
        if entry.extra.closing != Some(id) {
            return;
        }
        entry.extra.closing = None;
        let now = self.io.net.now();
        if !entry.extra.parked.is_empty() && entry.extra.retry.call_at(now) {
            self.io.wake_at(now);
        }
        if !self.io.callers.is_empty() {
            self.io.wake_at(now);
        }
    }

    /// Makes the connection replaced by this ended one the peer's again: its request is on the way.
    /// A request with early data stays withdrawn.
    pub(super) fn resume_replaced(&mut self, ep_id: u32, peer: u32, ended: u32) {
        let Some(entry) = self.eps[ep_id].peers.get_mut(peer) else { return };
        let Some(id) = entry.extra.replaced else { return };
        if id == ended {
            entry.extra.replaced = None;
            return;
        }
        let conn = &mut self.io.conns[id];
        let has_other = entry.conn != NONE || entry.extra.closing.is_some();
        if has_other || conn.usage.is_withdrawn {
            return;
        }
        conn.usage.is_replaced = false;
        (entry.conn, entry.extra.replaced) = (id, None);
        entry.extra.retry.calling();
        conn.take_over(std::mem::take(&mut entry.extra.parked));
    }

    /// Returns true if a connection not opened for lack of descriptors is opened later
    /// ([`DescriptorShortage::retries`](ofi_provider::conn_limit::DescriptorShortage::retries)).
    pub(super) fn retries_after_shortage(&mut self) -> bool {
        let (now, used) = (self.io.net.now(), self.io.used_descriptors());
        self.io.limit.shortage.retries(now, used)
    }

    /// Continues the use of a connection after this end had agreed to its end: the peer has sent
    /// something on it.
    #[inline(never)]
    pub(super) fn resume_use(&mut self, id: u32) {
        let Some(conn) = self.io.conns.get_mut(id).filter(|conn| conn.usage.has_agreed()) else {
            return;
        };
        conn.usage.state = ClosingState::Open;
        let ep = &mut self.eps[conn.ep];
        conn.allow_fast_rx(ep.is_fast(), self.io.net.is_ring());
        let Some(peer) = ep.peers.get_mut(conn.peer) else { return };
        if peer.extra.closing != Some(id) {
            return;
        }
        peer.extra.closing = None;
        if peer.conn == NONE {
            peer.conn = id;
            // Sent with the responses to the bytes being parsed.
            conn.answers |= !peer.extra.parked.is_empty();
            conn.take_over(std::mem::take(&mut peer.extra.parked));
            self.refuse_unknown(id);
        }
        if !self.io.callers.is_empty() {
            self.io.wake_in(Duration::ZERO);
        }
    }
}

/// Closing of idle connections.
pub(super) struct IdleCloser<'a, N: ShmTransport> {
    rx: &'a mut RxPath<N>,
}

impl<'a, N: ShmTransport> IdleCloser<'a, N> {
    pub(super) fn new(rx: &'a mut RxPath<N>) -> Self {
        Self { rx }
    }

    /// Closes so many connections, those idle longest. As many more are closed as peers have not answered
    /// in time.
    #[inline(never)]
    fn close_idle(&mut self, now: Instant, excess: usize) {
        let mut requested = 0;
        for (_, conn) in self.rx.tx.io.conns.iter_mut() {
            conn.sample_traffic(now);
            requested += usize::from(matches!(conn.usage.state, ClosingState::Requested(..)));
        }
        let ending = self.rx.tx.io.limit.ending.len();
        let missing = (excess + requested.saturating_sub(ending)).saturating_sub(ending);
        for id in self.rx.tx.idle_conns(now, missing) {
            // Received data may be a message for a posted receive, or the start of one.
            if !self.rx.tx.io.conns[id].knows.closing {
                self.rx.read(id);
            }
            if self.rx.tx.io.conns.get(id).is_some_and(|conn| self.rx.tx.may_end(conn)) {
                let started = self.rx.tx.begin_closing(id, now);
                self.rx.conclude(started);
            }
        }
    }

    /// Makes space at the limit for waiting connections: closes those idle longest. Returns true if a
    /// connection may be opened now. Otherwise the engine's timer expires when there may be space.
    #[inline(never)]
    pub(super) fn make_space(&mut self, waiting: impl Fn(&RxPath<N>) -> usize) -> bool {
        if self.rx.tx.io.has_space() {
            return true;
        }
        let now = self.rx.tx.io.net.now();
        self.end_half_closed_waits(now);
        let waiting = waiting(self.rx);
        let TxPath { io, .. } = &mut self.rx.tx;
        let conns = &io.conns;
        let is_ending =
            |conn: &StreamConn<N>| conn.usage.state != ClosingState::Open || conn.sends_no_more;
        io.limit.ending.retain(|(name, _)| conns.named(*name).is_some_and(is_ending));
        let (used, most) = (io.used_descriptors(), io.max_conns());
        let excess = (used + waiting).saturating_sub(most).clamp(1, max_closings(most));
        if excess > io.limit.ending.len() && io.limit.may_search(now) {
            self.close_idle(now, excess);
        }
        let TxPath { io, .. } = &mut self.rx.tx;
        let is_any_awaited =
            io.limit.ending.is_empty() && io.conns.iter().any(|(_, conn)| conn.is_awaited(now));
        let limit = &mut io.limit;
        let has_waited = limit.has_waited(now);
        limit.may_exceed = (limit.ending.is_empty() && !is_any_awaited) || has_waited;
        let next = is_any_awaited.then_some(now + AWAITED_INTERVAL).or(limit.next_look());
        let has_space = self.rx.tx.io.has_space();
        if let (false, Some(next)) = (has_space, next) {
            self.rx.tx.io.wake_at(next);
        }
        has_space
    }

    /// Handles a step of the agreement on the end of a connection. Fails with -FI_EPROTO if this end
    /// does not take part.
    #[inline(never)]
    pub(super) fn on_step(&mut self, id: u32, header: &StreamHeader) -> Result {
        let conn = &self.rx.tx.io.conns[id];
        let rdm = self.rx.tx.eps[conn.ep].identity.kind == StreamEpKind::Rdm;
        let step = header.close_step().filter(|_| rdm && conn.knows.closing);
        match step.ok_or(Error::PROTO)? {
            CloseStep::Request => self.on_request(id, header.cq_data),
            CloseStep::Agree => self.on_agreed(id, header.cq_data),
            CloseStep::Refuse => {
                let now = self.rx.tx.io.net.now();
                let conn = &mut self.rx.tx.io.conns[id];
                let (messages, _) = conn.traffic_mark();
                let usage = &mut conn.usage;
                if matches!(usage.state, ClosingState::Requested(n, _) if n == header.cq_data) {
                    usage.state = ClosingState::Open;
                    usage.rejection = Some(CloseRejection::new(messages, now));
                    self.look_for_space();
                }
            }
            CloseStep::Cancel => self.rx.tx.resume_use(id),
        }
        Ok(())
    }

    /// Ends the wait of transfers for connections closed in one direction, after the time limit.
    /// Returns the next time limit.
    #[inline(never)]
    pub(super) fn end_half_closed_waits(&mut self, now: Instant) -> Option<Instant> {
        let io = &self.rx.tx.io;
        let half_closed = |name| {
            let conn = io.conns.named(name).filter(|conn| conn.usage.is_half_closed())?;
            Some((conn.ep, conn.peer, name.0))
        };
        let is_due = |until: Instant| until <= now;
        let ending = io.limit.ending.iter();
        let next = ending.clone().map(|(_, until)| *until).filter(|until| !is_due(*until)).min();
        let due = ending.filter(|(_, until)| is_due(*until));
        for (ep_id, peer, id) in due.filter_map(|(name, _)| half_closed(*name)).collect::<Vec<_>>()
        {
            self.rx.tx.release_transfers(ep_id, peer, id);
        }
        self.rx.tx.io.limit.ending.retain(|(_, until)| !is_due(*until));
        next
    }

    /// Has the engine's timer expire, because a peer has answered.
    fn look_for_space(&mut self) {
        self.rx.tx.io.wake_in(Duration::ZERO);
    }

    fn on_request(&mut self, id: u32, number: u64) {
        let usage = &mut self.rx.tx.io.conns[id].usage;
        if matches!(usage.state, ClosingState::Requested(..)) {
            if usage.is_dialed {
                // Both ends have sent a request: the peer answers this one.
                return;
            }
            usage.state = ClosingState::Open;
        }
        let agrees = self.rx.tx.may_end(&self.rx.tx.io.conns[id]);
        let step = if agrees { CloseStep::Agree } else { CloseStep::Refuse };
        if agrees {
            let conn = &mut self.rx.tx.io.conns[id];
            conn.usage.state = ClosingState::Agreed;
            conn.forbid_fast();
            self.rx.tx.hold_transfers(id);
        }
        let sent = self.rx.tx.send_internal(id, StreamHeader::close(step, number));
        self.rx.conclude(sent);
    }

    fn on_agreed(&mut self, id: u32, number: u64) {
        let conn = &mut self.rx.tx.io.conns[id];
        let ClosingState::Requested(requested, mark) = conn.usage.state else { return };
        if requested != number {
            return;
        }
        // Received messages do not matter: the peer sent them before it agreed.
        let (([sent, _], next), ([sent_before, _], next_before)) = (conn.traffic_mark(), mark);
        let is_unused = (sent, next) == (sent_before, next_before);
        conn.usage.state = ClosingState::Open;
        let conn = &self.rx.tx.io.conns[id];
        if is_unused && self.rx.tx.may_end(conn) {
            self.rx.tx.eps[conn.ep].closed_idle += 1;
            self.rx.end_idle(id);
        } else {
            let sent = self.rx.tx.send_internal(id, StreamHeader::close(CloseStep::Cancel, number));
            self.rx.conclude(sent);
        }
        self.look_for_space();
    }
}
