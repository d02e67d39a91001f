//! Local connection attempts: those in progress, and the peers waiting for one.
use super::conn::{Stage, StreamConn};
use super::conn_limit::is_out_of_descriptors;
use super::conn_request::ConnRequest;
use super::handshake::Handshake;
use super::idle_closer::IdleCloser;
use super::io::EngineIo;
use super::rx_path::RxPath;
use super::transfer::Route;
use super::tx_path::TxPath;
use crate::conn_quota;
use crate::transport::{ByteLink, ShmTransport, peer_of};
use crate::wire::RequestNumber;
use ofi_provider::addr::Addr;
use ofi_provider::conn_arbiter::{CallState, ConnectLimiter};
use ofi_provider::conn_limit::max_calls;
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::slab::NONE;
use ofi_provider::sys::random;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Local connection attempts of an engine.
#[derive(Debug, Default)]
pub(super) struct Connector {
    /// Connections awaiting a response of their peer within a time limit
    /// ([`StreamSettings::connect_timeout`](crate::settings::StreamSettings::connect_timeout)),
    /// with their serial numbers and deadlines, earliest first.
    awaited: VecDeque<(u32, u64, Instant)>,
    /// Connections being established by a link without a time limit of its own, likewise.
    unlimited: VecDeque<(u32, u64, Instant)>,
    /// Attempts to connect to RDM peers in progress.
    calls: ConnectLimiter,
    /// Queued attempts: the number of an endpoint and of its peer. The peer may have been connected
    /// or removed since.
    line: VecDeque<(u32, u32)>,
}

impl Connector {
    /// Begins a link from an endpoint to an address; `param` is the data of the
    /// connection request. Returns the connection's number.
    pub(super) fn dial<N: ShmTransport>(
        &mut self,
        tx: &mut TxPath<N>,
        ep_id: u32,
        to: &Addr,
        param: Vec<u8>,
    ) -> Result<u32> {
        let identity = &tx.eps[ep_id].identity;
        let link =
            tx.io.net.dial_as(identity.secret.as_ref(), &identity.local, identity.keep_port, to)?;
        let id = Self::add_dialed(&mut tx.io, link, ep_id, param)?;
        let own_limit = tx.io.conns[id].link.connect_limit();
        let limits = [
            (&mut self.awaited, N::Link::settings().connect_timeout),
            (&mut self.unlimited, own_limit),
        ];
        for (queue, limit) in limits {
            let Some(limit) = limit else { continue };
            let at = tx.io.net.now() + limit;
            queue.push_back((id, tx.io.conns[id].serial, at));
            tx.io.wake_at(at);
        }
        Ok(id)
    }

    #[inline(never)]
    fn add_dialed<N: ShmTransport>(
        io: &mut EngineIo<N>,
        link: N::Link,
        ep_id: u32,
        param: Vec<u8>,
    ) -> Result<u32> {
        let mut conn = StreamConn::new(link, Stage::Connecting, ep_id);
        conn.usage.is_dialed = true;
        conn.request = Some(Box::new(ConnRequest::new(param)));
        io.add_conn(conn)
    }

    /// Closes connections without a response from the peer in time. Returns the time of the next
    /// check.
    pub(super) fn end_unanswered<N: ShmTransport>(
        &mut self,
        rx: &mut RxPath<N>,
        now: Instant,
    ) -> Option<Instant> {
        let connects = |stage: &Stage| matches!(stage, Stage::Connecting);
        let waits = |stage: &Stage| matches!(stage, Stage::Connecting | Stage::AwaitResponse);
        let unlimited = Self::end_overdue(&mut self.unlimited, rx, now, connects);
        let awaited = Self::end_overdue(&mut self.awaited, rx, now, waits);
        unlimited.into_iter().chain(awaited).min()
    }

    /// Closes the connections of a queue past their deadline, if still in one of these stages.
    /// Returns the next deadline.
    fn end_overdue<N: ShmTransport>(
        queue: &mut VecDeque<(u32, u64, Instant)>,
        rx: &mut RxPath<N>,
        now: Instant,
        is_waiting: impl Fn(&Stage) -> bool,
    ) -> Option<Instant> {
        while let Some(&(id, serial, at)) = queue.front() {
            if at > now {
                return Some(at);
            }
            queue.pop_front();
            let waits = |conn: &&StreamConn<N>| is_waiting(&conn.stage);
            if let Some(conn) = rx.tx.io.conns.named((id, serial)).filter(waits) {
                ofi_provider::log_sparsely!(
                    N::Link::provider(),
                    WARN,
                    EP_CTRL,
                    "{} does not answer a connection request: what waits for it fails",
                    peer_text(peer_of(&conn.link))
                );
                rx.fail(id, Error::TIMEDOUT);
            }
        }
        None
    }

    /// Starts a connection to an RDM peer. The connection takes over the transfers waiting for the
    /// peer. Fails with -FI_EFIREWALLADDR if the peer cannot accept connections.
    fn call<N: ShmTransport>(&mut self, tx: &mut TxPath<N>, ep_id: u32, peer: u32) -> Result<u32> {
        let ep = &tx.eps[ep_id];
        if ep.is_out_of_reach(peer) {
            return Err(Error::FIREWALLADDR);
        }
        conn_quota::check_reserve()?;
        let hello = ep.hello(tx.io.net.process());
        let addr = ep.peers[peer].addr.clone();
        let id = self.dial(tx, ep_id, &addr, hello.encode().to_vec())?;
        self.calls.started(id, tx.io.conns[id].serial, tx.io.net.now());
        tx.attach(id, peer);
        // The messages for contexts have no number.
        let is_first = tx.eps[ep_id].contexts_to(peer).are_first();
        let entry = &mut tx.eps[ep_id].peers[peer];
        entry.conn = id;
        entry.extra.retry.calling();
        entry.extra.is_absent = false;
        let parked = std::mem::take(&mut entry.extra.parked);
        let (resume, conn) = (N::Link::settings().rails.resume, &mut tx.io.conns[id]);
        if is_first && resume > 0 && tx.io.net.offers_rails(&conn.link) {
            // Without a random number the receiver knows no repetition.
            let number = entry.extra.number_request(RequestNumber::new(random()));
            if let (Some(request), Some(number)) = (&mut conn.request, number) {
                request.set_number(number);
            }
        }
        conn.take_over(parked);
        Ok(id)
    }

    /// Starts a connection to an RDM peer, or has the peer wait in line: while as many are called as
    /// may be at a time ([`ConnectLimiter`](ofi_provider::conn_arbiter::ConnectLimiter)), or until
    /// there is room ([`make_space`](IdleCloser::make_space)).
    #[cold]
    #[inline(never)]
    pub(super) fn connect_next<N: ShmTransport>(
        &mut self,
        tx: &mut TxPath<N>,
        ep_id: u32,
        peer: u32,
    ) -> Result<Route> {
        if self.may_call(tx) {
            match self.call(tx, ep_id, peer) {
                Err(error) if is_out_of_descriptors(error) && tx.retries_after_shortage() => {}
                called => return Ok(Route::Conn(called?)),
            }
        }
        if tx.eps[ep_id].is_out_of_reach(peer) {
            return Err(Error::FIREWALLADDR);
        }
        tx.eps[ep_id].peers[peer].extra.retry.wait_in_line();
        self.line.push_back((ep_id, peer));
        if !tx.io.has_space() {
            tx.io.wake_in(Duration::ZERO);
        } else if let (1, Some(at)) = (self.line.len(), self.calls.next_slot()) {
            tx.io.wake_at(at);
        }
        Ok(Route::Later(peer))
    }

    /// Returns true if another connection may be started.
    fn may_call<N: ShmTransport>(&mut self, tx: &mut TxPath<N>) -> bool {
        let conns = &tx.io.conns;
        let most = N::Link::settings().calls.min(max_calls(tx.io.max_conns()));
        tx.io.has_space()
            && tx.io.has_space_to_accept()
            && self.calls.has_space(most, most, tx.io.net.now(), |id, serial| {
                match conns.named((id, serial)).map(|conn| conn.is_connected()) {
                    Some(false) => CallState::Pending,
                    Some(true) => CallState::Made,
                    None => CallState::Failed,
                }
            })
    }

    /// Returns true if peers wait for other connections to be made, or for room.
    pub(super) fn has_queued(&self) -> bool {
        !self.line.is_empty()
    }

    /// Connects to queued peers, as far as the limits of concurrent attempts and of connections
    /// allow.
    #[inline(never)]
    pub(super) fn call_next<N: ShmTransport>(&mut self, rx: &mut RxPath<N>) {
        if !IdleCloser::new(rx).make_space(|_| self.line.len()) {
            return;
        }
        while !self.line.is_empty() && self.may_call(&mut rx.tx) {
            let tx = &mut rx.tx;
            let Some((ep_id, peer)) = self.line.pop_front() else { return };
            // The endpoint may be closed, the peer may have called or be forgotten.
            let entry = tx.eps.get_mut(ep_id).and_then(|ep| ep.peers.get_mut(peer));
            if entry.is_some_and(|entry| entry.extra.retry.leave_line()) {
                if let Some(id) = self.call_for_parked(tx, ep_id, peer) {
                    Handshake::new(rx).send_early(id);
                }
            }
        }
        let tx = &mut rx.tx;
        if let (false, Some(at)) = (self.line.is_empty(), self.calls.next_slot()) {
            tx.io.wake_at(at);
        }
    }

    /// Calls a peer if transfers wait for it. Returns the connection if one is started.
    pub(super) fn call_for_parked<N: ShmTransport>(
        &mut self,
        tx: &mut TxPath<N>,
        ep_id: u32,
        peer: u32,
    ) -> Option<u32> {
        let entry = &tx.eps[ep_id].peers[peer];
        if entry.conn != NONE || entry.extra.closing.is_some() || entry.extra.parked.is_empty() {
            return None;
        }
        match self.connect_next(tx, ep_id, peer) {
            Ok(Route::Conn(id)) => Some(id),
            Ok(_) => None,
            Err(error) => {
                let parked = std::mem::take(&mut tx.eps[ep_id].peers[peer].extra.parked);
                tx.eps[ep_id].fail_all(parked, error);
                tx.eps[ep_id].forget_peer_if_unused(peer);
                None
            }
        }
    }
}
