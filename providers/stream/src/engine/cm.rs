//! Making and ending connections.
//!
//! RDM endpoints call a peer when there is something to send, and name
//! themselves by the port they listen on; when two call each other at the same
//! time, one of the calls gives way. MSG endpoints are connected by the
//! application, and their events go to the event queue.
use super::conn::{Stage, StreamConn};
use super::ep::{StreamEngineEp, StreamEpKind};
use super::state::{StreamState, TOKEN_CONN, TOKEN_LISTENER};
use super::transfer::{Route, TxRequest};
use crate::accept_queue::{self, HANDSHAKE_TIMEOUT, PendingConn, PendingConnState};
use crate::conn_quota::{self, SimDoorbell, UnknownPeerConn};
use crate::settings::HOLD_OFF_STEP;
use crate::transport::{ByteLink, LinkListener, LinkPoller, Transport, log_not_in_memory, peer_of};
use crate::wire::{
    BEHIND_FIREWALL, ByteOrder, CM_LEN, CmMessage, CmType, Malformed, Parsed, PeerFeatures,
    RDM_ANSWER, RDM_VERSION, RdmHello,
};
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, FI_CONNECTED, FI_SHUTDOWN};
use ofi_provider::addr::{Addr, connect_order};
use ofi_provider::closing::Undelivered;
use ofi_provider::conn_arbiter::{
    BackoffPolicy, ConnReqDecision, ConnectBackoff, IncomingConnReq, LocalConnState,
    ProcessInstance,
};
use ofi_provider::contexts::Contexts;
use ofi_provider::cq::Context;
use ofi_provider::eq::{EqEvent, EventError};
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::slab::NONE;
use ofi_provider::sys::Interest;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections the system may queue for a listener (listen(2)), the same as the original's.
pub const BACKLOG: libc::c_int = 4096;

/// Connection timeout in seconds for a peer without a response.
pub const CONNECT_TIMEOUT: u32 = 9;

/// Delay before connecting to a peer possibly connecting by itself.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Retry rule for rejected connection requests between endpoints, before they fail with
/// -FI_ECONNREFUSED.
const RETRY: BackoffPolicy =
    BackoffPolicy { delay: RETRY_DELAY, longest: Duration::from_millis(100), most: 100 };

/// Retry rule for contexts of scalable endpoints. A peer without support for contexts just
/// disconnects, so fewer attempts suffice.
const RETRY_CONTEXT: BackoffPolicy = BackoffPolicy { most: 10, ..RETRY };

/// Retry rule for absent peers: soon at first, then with growing pauses, up to the user's timeout
/// ([`StreamSettings::hold_off`](crate::settings::StreamSettings::hold_off)).
const AWAIT: BackoffPolicy = BackoffPolicy { longest: HOLD_OFF_STEP, most: 0, ..RETRY };

/// Pause of a listener after a failed accept for lack of descriptors or memory.
pub const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// Maximum connections accepted at a listener in one progress iteration, so that established
/// connections are served as well.
pub const ACCEPTS: usize = 64;

/// Divisor for the number of unknown peers asked to disconnect at a time when there are too many.
const UNKNOWN_CONNS_PER_CLOSING: usize = 8;

/// Wait after asking unknown peers to disconnect before more are asked. A peer polling its
/// connection has disconnected by then. The others would otherwise block pending connections until
/// their timeout.
const NOTICE: Duration = Duration::from_millis(250);

/// Time during which data is still read from an unknown peer asked to disconnect. Its program may
/// not have noticed the request yet, and may take its sent data for delivered.
const FAREWELL: Duration = Duration::from_secs(3);

/// Returns true if accepting failed for lack of descriptors or memory, a temporary condition.
pub fn is_shortage(error: Error) -> bool {
    matches!(error, Error::MFILE | Error::NOBUFS | Error::NOMEM) || error.code() == libc::ENFILE
}

/// Connection request at a passive endpoint, until the application responds.
#[derive(Debug)]
pub struct StreamRequest<L> {
    link: L,
    order: ByteOrder,
    /// Protocol extensions of the connecting peer beyond upstream libfabric.
    knows: PeerFeatures,
    /// Counts the connection among those of unknown peers until the application answers.
    _unknown_conn: UnknownPeerConn,
    /// Counts the request among the unanswered requests of its passive endpoint. The endpoint holds
    /// a weak reference.
    _pending: Arc<()>,
}

impl<L> StreamRequest<L> {
    /// The request of a caller. `pending` is dropped with it, when the application answers.
    pub fn new(caller: PendingConn<L>, message: &CmMessage, pending: Arc<()>) -> Self {
        let PendingConn { link, unknown_conn, .. } = caller;
        let (order, knows) = (message.order, message.knows);
        Self { link, order, knows, _unknown_conn: unknown_conn, _pending: pending }
    }

    /// The connection.
    pub fn link(&self) -> &L {
        &self.link
    }
}

impl<L: ByteLink> ofi_provider::api::Reject for StreamRequest<L> {
    fn reject(self, param: &[u8]) -> Result {
        self.link.send(&CmMessage::encode(CmType::Nack, PeerFeatures::default(), param))?;
        Ok(())
    }
}

impl StreamEngineEp {
    /// Returns the RDM protocol version offered by this endpoint. With buffered receives it is 0,
    /// without messages waiting at their sender: such a message has no start to report.
    fn rdm_version(&self) -> u8 {
        if self.is_buffered() { 0 } else { RDM_VERSION }
    }

    /// Returns the HELLO of the endpoint to an RDM peer, sent from this process.
    fn hello(&self, process: u32) -> RdmHello {
        RdmHello {
            version: self.rdm_version(),
            features: self.features(),
            port: self.identity.local.port(),
            pid: process,
        }
    }

    /// Returns the response of the endpoint to the HELLO of an RDM peer connecting to this process:
    /// the smaller protocol version, and the local identity.
    pub(super) fn answer_to(&self, hello: &RdmHello, process: u32) -> RdmHello {
        let ours = self.hello(process);
        RdmHello { version: hello.version.min(ours.version) | RDM_ANSWER, ..ours }
    }
}

impl<N: Transport> StreamState<N> {
    fn add_conn(&mut self, mut conn: StreamConn<N>) -> Result<u32> {
        conn.watched = true;
        let (link, interest) = (conn.link.id(), conn.interest);
        let id = self.conns.insert(conn);
        if let Err(error) = self.net.poller().add(link, TOKEN_CONN | u64::from(id), interest) {
            self.conns.remove(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Begins a link from an endpoint to an address; `param` is the data of the
    /// connection request. Returns the connection's number.
    fn dial(&mut self, ep_id: u32, to: &Addr, param: Vec<u8>) -> Result<u32> {
        let identity = &self.eps[ep_id].identity;
        let link =
            self.net.dial_as(identity.secret.as_ref(), &identity.local, identity.keep_port, to)?;
        let id = self.add_dialed(link, ep_id, param)?;
        if let Some(limit) = N::Link::settings().connect_timeout {
            let at = self.net.now() + limit;
            self.awaited.push_back((id, self.conns[id].serial, at));
            self.wake_at(at);
        }
        Ok(id)
    }

    #[inline(never)]
    fn add_dialed(&mut self, link: N::Link, ep_id: u32, param: Vec<u8>) -> Result<u32> {
        let mut conn = StreamConn::new(link, Stage::Connecting, ep_id);
        conn.param = param;
        self.add_conn(conn)
    }

    /// Closes connections without a response from the peer in time. Returns the time of the next
    /// check.
    fn end_unanswered(&mut self, now: Instant) -> Option<Instant> {
        while let Some(&(id, serial, at)) = self.awaited.front() {
            if at > now {
                return Some(at);
            }
            self.awaited.pop_front();
            let waits = |conn: &&StreamConn<N>| {
                conn.serial == serial
                    && matches!(conn.stage, Stage::Connecting | Stage::AwaitResponse)
            };
            if let Some(conn) = self.conns.get(id).filter(waits) {
                ofi_provider::log_sparsely!(
                    N::Link::provider(),
                    WARN,
                    EP_CTRL,
                    "{} does not answer a connection request: what waits for it fails",
                    peer_text(peer_of(&conn.link))
                );
                self.fail(id, Error::TIMEDOUT);
            }
        }
        None
    }

    /// Starts a connection to an RDM peer. The connection takes over the transfers waiting for the
    /// peer. Fails with -FI_EFIREWALLADDR if the peer cannot accept connections.
    pub(super) fn call(&mut self, ep_id: u32, peer: u32) -> Result<u32> {
        let ep = &self.eps[ep_id];
        if ep.is_out_of_reach(peer) {
            return Err(Error::FIREWALLADDR);
        }
        let hello = ep.hello(self.net.process());
        let addr = ep.peers[peer].addr.clone();
        let id = self.dial(ep_id, &addr, hello.encode().to_vec())?;
        self.calls.started(id, self.conns[id].serial, self.net.now());
        self.attach(id, peer);
        let entry = &mut self.eps[ep_id].peers[peer];
        entry.conn = id;
        entry.extra.retry.calling();
        entry.extra.is_absent = false;
        let parked = std::mem::take(&mut entry.extra.parked);
        self.conns[id].take_over(parked);
        Ok(id)
    }

    /// Starts a connection to an RDM peer, or has the peer wait in line while as many are called as
    /// may be at a time ([`ConnectLimiter`](ofi_provider::conn_arbiter::ConnectLimiter)).
    #[cold]
    #[inline(never)]
    pub(super) fn connect_next(&mut self, ep_id: u32, peer: u32) -> Result<Route> {
        if self.may_call() {
            return Ok(Route::Conn(self.call(ep_id, peer)?));
        }
        if self.eps[ep_id].is_out_of_reach(peer) {
            return Err(Error::FIREWALLADDR);
        }
        self.eps[ep_id].peers[peer].extra.retry.wait_in_line();
        self.line.push_back((ep_id, peer));
        if let (1, Some(at)) = (self.line.len(), self.calls.next_slot()) {
            self.wake_at(at);
        }
        Ok(Route::Later(peer))
    }

    fn may_call(&mut self) -> bool {
        let conns = &self.conns;
        self.calls.has_space(N::Link::settings().calls, self.net.now(), |id, serial| {
            conns.get(id).is_some_and(|conn| conn.serial == serial && !conn.is_connected())
        })
    }

    /// Connects to queued peers, as far as the limit of concurrent attempts allows.
    pub(super) fn call_next(&mut self) {
        while !self.line.is_empty() && self.may_call() {
            let Some((ep_id, peer)) = self.line.pop_front() else { return };
            // The endpoint may be closed, the peer may have called or be forgotten.
            let entry = self.eps.get_mut(ep_id).and_then(|ep| ep.peers.get_mut(peer));
            if entry.is_some_and(|entry| entry.extra.retry.leave_line()) {
                self.call_for_parked(ep_id, peer);
            }
        }
        if let (false, Some(at)) = (self.line.is_empty(), self.calls.next_slot()) {
            self.wake_at(at);
        }
    }

    /// Calls a peer if transfers wait for it.
    fn call_for_parked(&mut self, ep_id: u32, peer: u32) {
        let entry = &self.eps[ep_id].peers[peer];
        if entry.conn == NONE
            && !entry.extra.parked.is_empty()
            && let Err(error) = self.connect_next(ep_id, peer)
        {
            let parked = std::mem::take(&mut self.eps[ep_id].peers[peer].extra.parked);
            self.fail_all(ep_id, parked, error);
            self.eps[ep_id].forget_peer_if_unused(peer);
        }
    }

    /// fi_connect of a MSG endpoint.
    pub fn connect(&mut self, ep_id: u32, to: &Addr, param: &[u8]) -> Result {
        if self.eps[ep_id].conn != NONE {
            return Err(Error::ISCONN);
        }
        if self.eps[ep_id].matcher.has_ended() {
            // The receives of an ended endpoint are cancelled; a new connection takes a new
            // endpoint.
            return Err(Error::OPBADSTATE);
        }
        let id = self.dial(ep_id, to, param.to_vec())?;
        self.eps[ep_id].conn = id;
        // On one host the connection is there already: the request goes now, not
        // at the application's next look at a queue.
        self.handshake(id);
        Ok(())
    }

    /// fi_accept of a MSG endpoint opened with a request.
    pub fn accept(&mut self, ep_id: u32, request: StreamRequest<N::Link>, param: &[u8]) -> Result {
        if self.eps[ep_id].conn != NONE {
            return Err(Error::ISCONN);
        }
        let knows = PeerFeatures { multicast: false, ..request.knows };
        let mut conn = StreamConn::new(request.link, Stage::Called, ep_id);
        (conn.order, conn.knows) = (request.order, knows);
        let id = self.add_conn(conn)?;
        if let Err(error) = self.respond(id, knows, Contexts::default(), param) {
            self.drop_conn(id);
            return Err(error);
        }
        let fast = self.eps[ep_id].is_fast();
        self.conns[id].connected(self.net.is_ring(), fast);
        let ep = &mut self.eps[ep_id];
        ep.conn = id;
        if let Some(eq) = &ep.eq {
            let event = FI_CONNECTED as u32;
            eq.write(EqEvent::Cm { event, fid: ep.fid, info: None, data: Vec::new() });
        }
        self.mark_active(id);
        Ok(())
    }

    /// fi_shutdown of a MSG endpoint.
    pub fn shutdown(&mut self, ep_id: u32) -> Result {
        let id = self.eps[ep_id].conn;
        // The peer may have ended the connection already; then there is nothing left to end.
        if self.conns.get(id).is_some_and(StreamConn::is_connected) {
            self.flush_last(id);
        }
        if let Some(conn) = self.conns.get(id) {
            conn.link.shutdown();
            self.fail(id, Error::CANCELED);
        }
        Ok(())
    }

    /// Sets the address of an endpoint neither listening nor connected. An IP address is bound now,
    /// with a port if none is given. So the endpoint's name equals the address used by its
    /// connections in both directions.
    pub(crate) fn set_address(&mut self, ep_id: u32, addr: Addr) -> Result {
        self.bound.remove(&ep_id);
        let identity = &mut self.eps[ep_id].identity;
        if addr.ip().is_err() || identity.kind == StreamEpKind::Srx {
            identity.local = addr;
            return Ok(());
        }
        let (listener, local) = self.net.bind_as(identity.secret.as_ref(), &addr)?;
        identity.local = local;
        identity.keep_port = identity.kind == StreamEpKind::Msg;
        self.bound.insert(ep_id, listener);
        Ok(())
    }

    /// Starts listening for RDM peers.
    pub(crate) fn listen(&mut self, ep_id: u32) -> Result {
        let identity = &self.eps[ep_id].identity;
        let (listener, local) = match self.bound.remove(&ep_id) {
            Some(listener) => (listener, identity.local.clone()),
            None => self.net.bind_as(identity.secret.as_ref(), &identity.local)?,
        };
        listener.listen(BACKLOG)?;
        let token = TOKEN_LISTENER | u64::from(ep_id);
        self.net.poller().add(listener.id(), token, Interest::READ)?;
        self.eps[ep_id].identity.local = local;
        self.listeners.insert(ep_id, (listener, SimDoorbell::open()));
        Ok(())
    }

    /// Returns true if peers can connect to this endpoint.
    pub(super) fn is_listening(&self, ep_id: u32) -> bool {
        self.listeners.contains_key(&ep_id)
    }

    /// Accepts connections waiting at an endpoint's listener, at most [`ACCEPTS`] of them.
    pub(super) fn accept_all(&mut self, ep_id: u32) {
        for _ in 0..ACCEPTS {
            if !self.bound_unknown_conns() {
                self.pause_accept(ep_id);
                return;
            }
            let Some((listener, _)) = self.listeners.get(&ep_id) else { return };
            match listener.accept() {
                Ok((link, from)) => {
                    let now = self.net.now();
                    match self.callers.admit(self.net.poller(), link, from, ep_id, now) {
                        (id, PendingConnState::Complete) => self.called(id),
                        (_, PendingConnState::Incomplete) => self.wake_in(HANDSHAKE_TIMEOUT),
                        (_, PendingConnState::Over) => {}
                    }
                }
                Err(error) if is_shortage(error) => {
                    if self.callers.drop_oldest() || self.drop_unknown_conns() {
                        continue;
                    }
                    self.pause_accept(ep_id);
                    return;
                }
                Err(error) if error == Error::CONNABORTED || error == Error::INTR => {}
                Err(_) => {
                    // No caller waits at the listener.
                    break;
                }
            }
        }
        // If the listener was deaf for want of descriptors, the poller watches it again.
        if let Some(at) =
            self.accept_paused.iter().position(|accept_paused| *accept_paused == ep_id)
            && let Some((listener, _)) = self.listeners.get(&ep_id)
        {
            self.accept_paused.swap_remove(at);
            let token = TOKEN_LISTENER | u64::from(ep_id);
            let _ = self.net.poller().add(listener.id(), token, Interest::READ);
        }
    }

    /// Callers cannot be accepted now and stay in the system's queue. The poller would report them
    /// again and again, so the listener is taken out of it until the timer expires
    /// ([`ACCEPT_DELAY`]).
    fn pause_accept(&mut self, ep_id: u32) {
        let Some((listener, _)) = self.listeners.get(&ep_id) else { return };
        if !self.accept_paused.contains(&ep_id) {
            ofi_provider::log_sparsely!(
                N::Link::provider(),
                WARN,
                EP_CTRL,
                "cannot accept a connection: out of file descriptors or memory; \
                 trying again (see RLIMIT_NOFILE)"
            );
            self.net.poller().remove(listener.id());
            self.accept_paused.push(ep_id);
        }
        self.wake_in(ACCEPT_DELAY);
    }

    /// Makes the engine's timer expire at this time, unless it expires earlier anyway.
    fn wake_at(&mut self, at: Instant) {
        if self.wakes.is_none_or(|wakes| at < wakes) {
            self.wakes = Some(at);
            let delay = at.saturating_duration_since(self.net.now());
            self.net.set_timer(delay.max(Duration::from_micros(1)));
        }
    }

    pub(super) fn wake_in(&mut self, delay: Duration) {
        self.wake_at(self.net.now() + delay);
    }

    /// Adds a new connection to the list of unknown peers' connections, if the peer is in no
    /// address vector.
    fn note_guest(&mut self, new: u32) {
        let is_srx_user = |conn: &&StreamConn<N>| conn.unknown_conn.is_some();
        let Some(serial) = self.conns.get(new).filter(is_srx_user).map(|conn| conn.serial) else {
            return;
        };
        self.unknown_conns.push_back((new, serial));
        if self.unknown_conns.len() > 2 * self.conns.len() {
            self.forget_guests();
        }
    }

    /// Limits the descriptors used by unknown peers: closes some connections if the process has too
    /// many of them. Returns true if another connection may be accepted; if not, connections wait
    /// in the backlog.
    fn bound_unknown_conns(&mut self) -> bool {
        // An upper bound of their number, which saves looking at each.
        if !conn_quota::are_too_many(self.count_guests()) {
            return true;
        }
        self.forget_guests();
        !conn_quota::are_too_many(self.count_guests())
            || self.callers.drop_oldest()
            || self.drop_unknown_conns()
    }

    fn count_guests(&self) -> usize {
        self.unknown_conns.len() + self.leaving.len() + self.callers.len()
    }

    /// Removes connections from the lists of unknown peers if they have ended or their peer is in
    /// the address vector now.
    fn forget_guests(&mut self) {
        let conns = &self.conns;
        let is_srx_user = |id: u32, serial: u64| {
            conns.get(id).is_some_and(|conn| conn.serial == serial && conn.unknown_conn.is_some())
        };
        self.unknown_conns.retain(|(id, serial)| is_srx_user(*id, *serial));
        self.leaving.retain(|(id, serial, _)| is_srx_user(*id, *serial));
    }

    /// Closes connections of unknown peers asked to disconnect after their time limit. Returns true
    /// if there were any.
    fn end_farewells(&mut self) -> bool {
        let now = self.net.now();
        let mut ended = false;
        while let Some((id, ..)) = self.leaving.pop_front_if(|(.., until)| *until <= now) {
            self.fail(id, Error::CONNABORTED);
            ended = true;
        }
        ended
    }

    /// Asks unknown peers without a transfer of the application in progress to disconnect: first
    /// the oldest of the sources with most connections, then the oldest of all. Returns true if a
    /// connection has ended; the peers asked disconnect soon.
    fn drop_unknown_conns(&mut self) -> bool {
        self.forget_guests();
        let mut ended = self.end_farewells();
        let now = self.net.now();
        let many = conn_quota::many();
        let most = self.unknown_conns.len() / UNKNOWN_CONNS_PER_CLOSING + 1;
        let asked = |until: Instant| now + FAREWELL < until + NOTICE;
        let just_asked = self.leaving.iter().rev().take_while(|(.., until)| asked(*until)).count();
        let mut left = most.saturating_sub(just_asked);
        let before = left;
        for crowds in [true, false] {
            let mut at = 0;
            while left > 0
                && let Some(&(id, serial)) = self.unknown_conns.get(at)
            {
                at += 1;
                let Some(unknown_conn) =
                    self.conns.get(id).and_then(|conn| conn.unknown_conn.as_ref())
                else {
                    continue;
                };
                if !unknown_conn.may_go(now)
                    || (crowds && conn_quota::count_from(unknown_conn.source()) <= many)
                {
                    continue;
                }
                // Received data is read first: a message may match a posted receive.
                if self.conns.get(id).is_some_and(|conn| conn.is_connected() && !conn.blocked) {
                    self.read(id);
                }
                let Some(conn) = self.conns.get(id).filter(|conn| !conn.is_in_use()) else {
                    continue;
                };
                left -= 1;
                if conn.is_connected() {
                    conn.link.end_sending();
                    self.end_sending(id, Error::CONNABORTED);
                    self.leaving.push_back((id, serial, now + FAREWELL));
                    at -= 1;
                    self.unknown_conns.remove(at);
                } else {
                    self.fail(id, Error::CONNABORTED);
                    ended = true;
                }
            }
            if left < before {
                break;
            }
        }
        ended
    }

    /// Continues the handshake of a connection: sends the local request, or reads the peer's
    /// response. Returns true if there was progress.
    pub(super) fn handshake(&mut self, id: u32) -> bool {
        let Some(conn) = self.conns.get_mut(id) else { return false };
        match conn.stage {
            Stage::Connecting => {
                if let Err(error) = conn.link.take_error() {
                    self.not_made(id, error);
                    return true;
                }
                let contexts = self.eps[conn.ep].contexts_to(conn.peer);
                // Contexts of scalable endpoints are in no multicast groups.
                let multicast = self.eps[conn.ep].identity.attr.multicast && contexts.are_first();
                let memory = self.eps[conn.ep].identity.memory;
                let local = memory && self.net.may_be_local(&conn.link);
                let (acks, outcomes) = (true, true);
                let knows = PeerFeatures {
                    atomics: true,
                    multicast,
                    acks,
                    local,
                    outcomes,
                    segments: true,
                };
                let message = CmMessage::encode_for(CmType::Request, knows, contexts, &conn.param);
                match conn.link.send(&message) {
                    Ok(sent) if sent == message.len() => {
                        conn.stage = Stage::AwaitResponse;
                        conn.param = Vec::new();
                        self.watch(id);
                    }
                    // The link is still being made, which is no error: the poller reports the end.
                    Err(Error::AGAIN | Error::NOTCONN | Error::INTR) => return false,
                    // A fresh link that takes less than 300 bytes is broken.
                    Ok(_) => self.fail(id, Error::IO),
                    Err(error) => self.fail(id, error),
                }
                true
            }
            Stage::AwaitResponse => self.receive_response(id),
            Stage::Called | Stage::Connected => false,
        }
    }

    /// Reads the peer's response to the local connection request. Returns true if the outcome was
    /// decided.
    fn receive_response(&mut self, id: u32) -> bool {
        let conn = &mut self.conns[id];
        let mut bytes = [0u8; CM_LEN];
        // First the fixed part, then as much as it says follows, so that no byte
        // of a message behind it is taken.
        loop {
            let want = match CmMessage::len_at(&conn.stash) {
                Ok(Some(len)) if conn.stash.len() == len => break,
                Ok(Some(len)) if conn.stash.len() >= CM_LEN => len - conn.stash.len(),
                Ok(_) => CM_LEN - conn.stash.len(),
                Err(why) => {
                    self.close_malformed(id, why);
                    return true;
                }
            };
            let n = want.min(bytes.len());
            match conn.link.recv(&mut bytes[..n]) {
                Ok(0) | Err(Error::CONNRESET) => {
                    self.hung_up(id);
                    return true;
                }
                Ok(n) => conn.stash.extend_from_slice(&bytes[..n]),
                Err(Error::AGAIN | Error::INTR) => return false,
                Err(error) => {
                    self.fail(id, error);
                    return true;
                }
            }
        }
        let stash = std::mem::take(&mut conn.stash);
        let kind = self.eps[conn.ep].identity.kind;
        let result = CmMessage::parse(&stash).and_then(|message| match message.kind {
            CmType::Response if kind == StreamEpKind::Rdm => self.rdm_answer(id, &message),
            CmType::Response => {
                self.msg_answer(id, message);
                Ok(())
            }
            CmType::Nack => {
                self.on_reject(id, message.data);
                Ok(())
            }
            _ => Err(Malformed("connection message out of turn")),
        });
        if let Err(why) = result {
            self.close_malformed(id, why);
        }
        true
    }

    /// Reads from a pending connection reported by the poller, and responds to a complete request.
    pub(super) fn receive_pending(&mut self, id: u32) {
        if self.callers.receive(id) == PendingConnState::Complete {
            self.called(id);
        }
    }

    /// A caller's request is complete: the caller becomes a peer, waits until the address vector
    /// holds its address ([`only_known`](crate::settings::StreamSettings::only_known)), or is
    /// refused.
    fn called(&mut self, id: u32) {
        let Some((request, from)) = self.callers.request(id) else { return };
        let hello = match RdmHello::parse(&request.data) {
            Ok(hello) => hello,
            Err(why) => {
                accept_queue::log_rejection::<N::Link>(
                    format_args!("of {}", from.for_people()),
                    why,
                );
                self.callers.drop(id);
                return;
            }
        };
        let addr = from.at_port(hello.port).identity();
        if self.holds(id, &addr) {
            return;
        }
        let Some((caller, request)) = self.callers.take(self.net.poller(), id) else { return };
        let mut conn = StreamConn::new(caller.link, Stage::Called, caller.called);
        conn.unknown_conn = Some(caller.unknown_conn);
        (conn.order, conn.knows) = (request.order, request.knows);
        if let Ok(id) = self.add_conn(conn) {
            self.rdm_request(id, &request, &hello, addr);
            self.note_guest(id);
        }
    }

    /// Returns true if a pending connection from this address has to wait until the address vector
    /// contains it. The wait is at most [`HANDSHAKE_TIMEOUT`], as for an incomplete request.
    fn holds(&mut self, id: u32, addr: &Addr) -> bool {
        if !N::Link::settings().only_known {
            return false;
        }
        let av = self.callers.called_by(id).and_then(|ep| self.eps.get(ep)?.av.as_ref());
        if av.is_some_and(|av| av.find(addr.clone()) != FI_ADDR_NOTAVAIL) {
            return false;
        }
        ofi_provider::log_sparsely!(
            N::Link::provider(),
            INFO,
            EP_CTRL,
            "{addr} calls and is not in the address vector; it has to wait ({})",
            N::Link::settings().only_known_by
        );
        self.callers.hold(self.net.poller(), id, addr.clone());
        self.wake_in(HANDSHAKE_TIMEOUT);
        true
    }

    /// Responds to a held pending connection from this address, now contained in the address
    /// vector.
    pub(super) fn admit_held(&mut self, ep_id: u32, addr: &Addr) {
        if N::Link::settings().only_known {
            for id in self.callers.held_as(ep_id, addr) {
                self.receive_pending(id);
            }
        }
    }

    /// Closes the connections of peers removed from the address vector, if only peers in it may
    /// connect ([`only_known`](crate::settings::StreamSettings::only_known)).
    pub(super) fn dismiss(&mut self, ep_id: u32, peers: &[u32]) {
        if !N::Link::settings().only_known {
            return;
        }
        let theirs = |conn: &StreamConn<N>| conn.ep == ep_id && peers.contains(&conn.peer);
        for id in self.conns.indices(theirs) {
            self.fail(id, Error::CONNABORTED);
        }
    }

    /// Handles a disconnect before the peer's response. From an RDM peer this counts as a
    /// rejection: the end of the connection may have overtaken it.
    fn hung_up(&mut self, id: u32) {
        let conn = &self.conns[id];
        let rdm = self.eps[conn.ep].identity.kind == StreamEpKind::Rdm;
        if rdm && conn.stage == Stage::AwaitResponse {
            self.on_reject(id, Vec::new());
        } else {
            self.fail(id, Error::CONNREFUSED);
        }
    }

    /// Closes a connection because the peer does not speak the provider's protocol, and logs it.
    fn close_malformed(&mut self, id: u32, why: Malformed) {
        let peer = peer_text(self.conns.get(id).and_then(|conn| peer_of(&conn.link)));
        accept_queue::log_rejection::<N::Link>(format_args!("with {peer}"), why);
        self.fail(id, Error::NOPROTOOPT);
    }

    /// Marks a connection as established: sends the queued transfers first, then starts reading.
    pub(super) fn established(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        conn.connected(self.net.is_ring(), self.eps[conn.ep].is_fast());
        if let Some(unknown_conn) = &mut conn.unknown_conn {
            unknown_conn.connected(self.net.now());
        }
        if conn.order == ByteOrder::Network {
            // The places in what waits were written before the peer's byte order was known.
            conn.tx.iter_mut().for_each(TxRequest::convert_segments);
        }
        self.refuse_unknown(id);
        self.watch(id);
        self.flush(id);
        self.mark_active(id);
        if self.conns.get(id).is_some() {
            self.watch(id);
        }
    }

    fn msg_answer(&mut self, id: u32, message: CmMessage) {
        self.answered_with(id, &message);
        let ep = &self.eps[self.conns[id].ep];
        if let Some(eq) = &ep.eq {
            let event = FI_CONNECTED as u32;
            eq.write(EqEvent::Cm { event, fid: ep.fid, info: None, data: message.data });
        }
        self.established(id);
    }

    /// Stores the attributes from the peer's response, and starts the shared-memory upgrade if the
    /// peer offers it.
    fn answered_with(&mut self, id: u32, answer: &CmMessage) {
        let conn = &mut self.conns[id];
        (conn.order, conn.knows) = (answer.order, answer.knows);
        if let Some(offer) = &answer.offer {
            self.net.start_shm_upgrade(&conn.link, TOKEN_CONN | u64::from(id), offer);
            self.may_go_local();
        } else {
            self.stays_off_memory(id);
        }
    }

    fn rdm_answer(&mut self, id: u32, message: &CmMessage) -> Parsed {
        let conn = &self.conns[id];
        if message.contexts != self.eps[conn.ep].contexts_to(conn.peer) {
            return Err(Malformed("the peer knows no contexts of scalable endpoints"));
        }
        // A peer of the first protocol version answers without data.
        let version = match RdmHello::parse(&message.data) {
            Ok(hello) => {
                let peer = self.conns[id].peer;
                let ep = self.conns[id].ep;
                let entry = &mut self.eps[ep].peers[peer];
                entry.extra.process =
                    ProcessInstance { pid: hello.pid, instance: message.instance };
                hello.version
            }
            Err(_) => 0,
        };
        self.answered_with(id, message);
        let conn = &mut self.conns[id];
        conn.rendezvous = version & RDM_ANSWER != 0 && version & !RDM_ANSWER >= 1;
        let (ep, peer) = (conn.ep, conn.peer);
        self.eps[ep].peers[peer].extra.retry.made();
        self.established(id);
        Ok(())
    }

    /// Answers an RDM peer's call.
    fn rdm_request(&mut self, id: u32, message: &CmMessage, hello: &RdmHello, addr: Addr) {
        let ep_id = self.conns[id].ep;
        if !message.contexts.are_first() {
            self.context_request(id, message.contexts, hello, addr);
            return;
        }
        let ep = &mut self.eps[ep_id];
        let mut local = ep.identity.local.clone();
        if local.is_any()
            && let Ok(called) = self.conns[id].link.local_addr()
        {
            // The address by which the caller knows this endpoint, so that both decide alike which call goes on.
            local.set_host(&called);
        }
        let peer = ep.peer_at(addr.clone());
        let behind_firewall = hello.features & BEHIND_FIREWALL != 0;
        let process = ProcessInstance { pid: hello.pid, instance: message.instance };
        let call = IncomingConnReq {
            order: connect_order(&addr, &local),
            peer_behind_firewall: behind_firewall,
            behind_firewall: ep.identity.behind_firewall,
            same_process: ep.peers[peer].extra.process.may_be(process),
        };
        ep.peers[peer].behind_firewall = behind_firewall;
        let other = ep.peers[peer].conn;
        let known = self.conns.get(other);
        let answer = call.answer(match known {
            None => LocalConnState::None,
            Some(known) if known.is_connected() => LocalConnState::Made,
            Some(_) => LocalConnState::Calling,
        });
        match answer {
            ConnReqDecision::Accept | ConnReqDecision::Crossing => {}
            ConnReqDecision::Reject => {
                if let Some(known) = known.filter(|known| known.is_connected()) {
                    // The peer may also be a restarted process with the same number, whose old
                    // connection was never ended: probing finds that out.
                    known.link.probe();
                }
                let reject_reason = CmMessage::encode(CmType::Nack, PeerFeatures::default(), &[]);
                let _ = self.conns[id].link.send(&reject_reason);
                self.drop_conn(id);
                return;
            }
            // Operations in flight to the previous process at this address are lost, except for
            // data sent by it before it ended.
            ConnReqDecision::Restarted => {
                if known.is_some_and(|known| known.link.has_ended()) {
                    self.sent_without_effect(other, Error::CONNRESET);
                }
                if self.eps[ep_id].peers.get(peer).is_some_and(|peer| peer.conn == other) {
                    self.fail(other, Error::CONNRESET);
                }
                if self.conns.get(id).is_none() {
                    return;
                }
            }
            ConnReqDecision::Replace => {
                let waiting = std::mem::take(&mut self.conns[other].tx);
                let entry = &mut self.eps[ep_id].peers[peer];
                entry.extra.parked.extend(waiting);
                entry.conn = NONE;
                self.drop_conn(other);
            }
        }
        // `fail` may have forgotten a peer without a name.
        let peer = self.eps[ep_id].peer_at(addr);
        self.eps[ep_id].peers[peer].behind_firewall = behind_firewall;
        if self.eps[ep_id].matcher.name_of(peer) != FI_ADDR_NOTAVAIL {
            self.conns[id].unknown_conn = None;
        }
        let ours = self.eps[ep_id].answer_to(hello, self.net.process());
        self.attach(id, peer);
        let conn = &mut self.conns[id];
        conn.rendezvous = ours.version & !RDM_ANSWER >= 1;
        let multicast = conn.knows.multicast && self.eps[ep_id].identity.attr.multicast;
        let knows = PeerFeatures { multicast, ..conn.knows };
        if self.respond(id, knows, Contexts::default(), &ours.encode()).is_err() {
            self.fail(id, Error::CONNRESET);
            self.call_later(ep_id, peer, RETRY_DELAY);
            return;
        }
        let entry = &mut self.eps[ep_id].peers[peer];
        entry.extra.process = process;
        if answer != ConnReqDecision::Crossing {
            entry.conn = id;
            entry.extra.retry.made();
            let parked = std::mem::take(&mut entry.extra.parked);
            self.conns[id].take_over(parked);
        }
        self.established(id);
    }

    /// Answers a connection request: accepts it, with an offer to meet on the host if the caller
    /// takes one and may be here.
    pub(super) fn respond(
        &mut self,
        id: u32,
        knows: PeerFeatures,
        contexts: Contexts,
        data: &[u8],
    ) -> Result {
        let conn = &self.conns[id];
        let wanted = knows.local && self.eps[conn.ep].identity.memory;
        let token = TOKEN_CONN | u64::from(id);
        let offer = if wanted { self.net.offer_shm_upgrade(&conn.link, token) } else { None };
        let knows = PeerFeatures { local: offer.is_some(), ..knows };
        match offer {
            Some(_) => self.may_go_local(),
            None if wanted => {}
            None => self.stays_off_memory(id),
        }
        let link = &self.conns[id].link;
        let mut answer = CmMessage::encode_for(CmType::Response, knows, contexts, data);
        if let Some(offer) = offer {
            CmMessage::add_offer(&mut answer, &offer);
        }
        link.send(&answer)?;
        Ok(())
    }

    /// Logs the reason for staying on the socket, if shared memory were possible but for one of the
    /// two ends.
    fn stays_off_memory(&self, id: u32) {
        let conn = &self.conns[id];
        if self.net.may_be_local(&conn.link) {
            let why = match self.eps[conn.ep].identity.memory {
                true => "the peer does not do that",
                false => "FI_OPT_SHARED_MEMORY_PERMITTED of this endpoint is off",
            };
            log_not_in_memory(&conn.link, &why);
        }
    }

    /// Handles a failed connection attempt. An absent peer may start later: the attempt is repeated
    /// within the user's timeout.
    fn not_made(&mut self, id: u32, error: Error) {
        let most = N::Link::settings().hold_off;
        let conn = &self.conns[id];
        let (ep_id, peer) = (conn.ep, conn.peer);
        let peers = &self.eps[ep_id].peers;
        let was_there = peers.get(peer).is_none_or(|peer| peer.extra.process.pid != 0);
        if most == 0 || error != Error::CONNREFUSED || was_there {
            self.fail(id, error);
            return;
        }
        if peers.name_of(peer) == FI_ADDR_NOTAVAIL {
            // The address was removed while the peer was called.
            self.fail(id, Error::CANCELED);
            return;
        }
        self.eps[ep_id].peers[peer].extra.is_absent = true;
        self.retry_connect(id, &BackoffPolicy { most, ..AWAIT });
    }

    /// Fails the transfers waiting for absent peers after their addresses were removed from the
    /// address vector. Nothing else would end them.
    pub(super) fn cancel_absent(&mut self, ep_id: u32, peers: &[u32]) {
        for &peer in peers {
            let Some(entry) = self.eps[ep_id].peers.get_mut(peer) else { continue };
            if entry.conn != NONE || !entry.extra.is_absent {
                continue;
            }
            let parked = std::mem::take(&mut entry.extra.parked);
            entry.extra.is_absent = false;
            entry.extra.retry = ConnectBackoff::default();
            self.fail_all(ep_id, parked, Error::CANCELED);
            self.eps[ep_id].forget_peer_if_unused(peer);
        }
    }

    /// The peer refused our call. A MSG endpoint's connection has failed; an RDM peer is called
    /// again after a delay, up to a number of refusals.
    pub(super) fn on_reject(&mut self, id: u32, data: Vec<u8>) {
        let conn = &mut self.conns[id];
        let (ep_id, peer) = (conn.ep, conn.peer);
        let ep = &mut self.eps[ep_id];
        if ep.identity.kind == StreamEpKind::Msg {
            self.msg_failed(id, Error::CONNREFUSED, data);
            return;
        }
        let between_endpoints = ep.contexts_to(peer).are_first();
        if !between_endpoints && !data.is_empty() {
            // The peer has no receive context of this index, and never will.
            self.fail(id, Error::CONNREFUSED);
            return;
        }
        // An RDM peer refuses because it is calling us, or believes it still has
        // a connection that we know is gone. Either way it is worth waiting.
        self.retry_connect(id, if between_endpoints { &RETRY } else { &RETRY_CONTEXT });
    }

    /// Moves queued transfers from a failed connection to the peer's incoming connection, or to the
    /// next attempt.
    fn retry_connect(&mut self, id: u32, rule: &BackoffPolicy) {
        let conn = &mut self.conns[id];
        let (ep_id, peer) = (conn.ep, conn.peer);
        let waiting = std::mem::take(&mut conn.tx);
        self.drop_conn(id);
        let entry = &mut self.eps[ep_id].peers[peer];
        if entry.conn == id {
            entry.conn = NONE;
        }
        if let Some(conn) = self.conns.get_mut(entry.conn) {
            conn.take_over(waiting);
            let other = entry.conn;
            if self.conns[other].is_connected() {
                self.refuse_unknown(other);
                self.flush(other);
                self.mark_active(other);
            }
            return;
        }
        match entry.extra.retry.refused(self.net.now(), rule) {
            Some(due) => {
                entry.extra.parked.extend(waiting);
                self.wake_at(due);
            }
            None => self.fail_all(ep_id, waiting, Error::CONNREFUSED),
        }
        self.eps[ep_id].forget_peer_if_unused(peer);
    }

    /// Has a peer called after `delay` if transfers wait for it and nothing else would send
    /// them.
    fn call_later(&mut self, ep_id: u32, peer: u32, delay: Duration) {
        // A peer for which nothing waits may have been forgotten.
        let Some(entry) = self.eps[ep_id].peers.get_mut(peer) else { return };
        let at = self.net.now() + delay;
        if entry.conn == NONE && !entry.extra.parked.is_empty() && entry.extra.retry.call_at(at) {
            self.wake_at(at);
        }
    }

    /// Handles the expiry of the engine's timer. Closes silent pending connections, retries
    /// rejected connection requests, resumes paused listeners, and sets the timer for the next of
    /// these events.
    pub(super) fn retry_refused(&mut self) {
        self.net.clear_timer();
        self.wakes = None;
        let now = self.net.now();
        let (complete, mut next) = self.callers.end_silence(now);
        complete.into_iter().for_each(|id| self.called(id));
        if let Some(at) = self.end_unanswered(now) {
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        let mut due = Vec::new();
        for (ep_id, ep) in self.eps.iter() {
            for (peer, entry) in ep.peers.iter() {
                match entry.extra.retry.due() {
                    Some(at) if at <= now => due.push((ep_id, peer)),
                    Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    None => {}
                }
            }
        }
        for (ep_id, peer) in due {
            self.eps[ep_id].peers[peer].extra.retry.take_due(now);
            self.call_for_parked(ep_id, peer);
        }
        for ep in self.accept_paused.clone() {
            self.accept_all(ep);
        }
        if !self.looked_for.is_empty() {
            self.look_for_hidden_ends();
        }
        if let Some(next) = next {
            self.wake_at(next);
        }
    }

    pub(super) fn fail_all(&mut self, ep_id: u32, waiting: VecDeque<TxRequest>, error: Error) {
        let ep = &mut self.eps[ep_id];
        for outgoing in waiting {
            ep.finish_tx(&outgoing.finish, Err(error));
        }
    }

    /// Fails the transfers of an endpoint waiting for connections to their peers.
    pub(super) fn fail_parked(&mut self, ep_id: u32) {
        let peers = self.eps[ep_id].peers.iter_mut();
        let parked: Vec<_> =
            peers.map(|(_, peer)| std::mem::take(&mut peer.extra.parked)).collect();
        for waiting in parked {
            self.fail_all(ep_id, waiting, Error::CANCELED);
        }
    }

    /// Returns the transfers still to be delivered to peers, waiting for a connection or for buffer
    /// space ([`TxRequest::is_due`]).
    pub(super) fn undelivered(&self, ep_id: u32) -> Undelivered {
        let mut all = Undelivered::default();
        let Some(ep) = self.eps.get(ep_id) else { return all };
        for (_, peer) in ep.peers.iter() {
            let due = peer.extra.parked.iter().filter(|parked| parked.is_due()).count();
            all.operations += due;
            all.connecting += usize::from(due > 0);
        }
        for (_, conn) in self.each_conn_of(ep_id) {
            all += conn.undelivered();
        }
        all
    }

    /// Sends the data queued on an endpoint's connections, as far as links accept it. Injected
    /// messages are complete for the application, so they must be sent.
    pub(super) fn flush_ep(&mut self, ep_id: u32) {
        let ids = self.conns_of(ep_id);
        self.flush_conns(&ids);
    }

    fn flush_conns(&mut self, ids: &[u32]) {
        for &id in ids {
            if self.conns.get(id).is_some_and(StreamConn::is_connected) {
                self.flush_last(id);
            }
        }
    }

    /// The connections of an endpoint.
    pub(super) fn conns_of(&self, ep_id: u32) -> Vec<u32> {
        self.each_conn_of(ep_id).map(|(id, _)| id).collect()
    }

    /// The connections of an endpoint. A MSG endpoint's only one is not searched for: there may be as
    /// many endpoints as connections.
    pub(super) fn each_conn_of(&self, ep_id: u32) -> impl Iterator<Item = (u32, &StreamConn<N>)> {
        let ep = &self.eps[ep_id];
        let only = (ep.identity.kind == StreamEpKind::Msg).then_some(ep.conn);
        let all = only.is_none().then(|| self.conns.iter()).into_iter().flatten();
        let found = only.and_then(|id| self.conns.get(id).map(|conn| (id, conn)));
        found.into_iter().chain(all).filter(move |(_, conn)| conn.ep == ep_id)
    }

    /// Makes a connection the peer's.
    pub(super) fn attach(&mut self, id: u32, peer: u32) {
        let conn = &mut self.conns[id];
        conn.peer = peer;
        self.eps[conn.ep].peers.attach(peer);
    }

    /// Takes a connection out of the engine without reporting anything; its transfers are the
    /// caller's to end.
    #[inline(never)]
    pub(super) fn drop_conn(&mut self, id: u32) -> Option<Box<StreamConn<N>>> {
        // The stacks of callers have no room for it.
        let conn = Box::new(self.conns.remove(id)?);
        self.eps[conn.ep].past.add(&conn.sent, &conn.received);
        self.backlog -= conn.backlog;
        self.eps[conn.ep].peers.detach(conn.peer, id);
        self.net.poller().remove(conn.link.id());
        self.active.retain(|active| *active != id);
        self.local.retain(|local| *local != id);
        self.cq_blocked.retain(|cq_blocked| *cq_blocked != id);
        self.held.retain(|held| *held != id);
        if !self.accept_paused.is_empty() {
            // There is a descriptor again.
            self.wake_in(Duration::ZERO);
        }
        Some(conn)
    }

    /// Ends a connection: everything under way on it fails with `error`. All other connections
    /// go on.
    pub(super) fn fail(&mut self, id: u32, error: Error) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.is_connected() {
            let ep = &mut self.eps[conn.ep];
            let peer = ep.published_peer(conn);
            ep.errors.lost(error, peer);
        }
        match self.eps[conn.ep].identity.kind {
            StreamEpKind::Msg => self.msg_failed(id, error, Vec::new()),
            StreamEpKind::Rdm | StreamEpKind::Srx => {
                if let Some(mut conn) = self.drop_conn(id) {
                    self.end_transfers(&mut conn, error);
                    let ep = &mut self.eps[conn.ep];
                    if conn.is_connected()
                        && ep.peers.get(conn.peer).is_some_and(|peer| peer.conns == 0)
                        && let Some(later) = ep.matcher.completions.internal_ops()
                    {
                        later.lost(ep.peers.name_of(conn.peer), error);
                    }
                    ep.forget_peer_if_unused(conn.peer);
                    self.peer_left(conn.ep, conn.peer);
                }
            }
        }
    }

    /// Ends sending on a connection still read to its end. Transfers queued on it fail with
    /// `error`. Later transfers to the peer use another connection.
    pub(super) fn end_sending(&mut self, id: u32, error: Error) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let ep = &mut self.eps[conn.ep];
        conn.sends_no_more = true;
        conn.fast_below = 0;
        conn.fetched = 0;
        self.backlog -= std::mem::take(&mut conn.backlog);
        conn.retained = 0;
        if conn.is_exposing() {
            // The application gets its buffers back: a peer that is still there must not take what it reads in
            // them for the message.
            conn.link.reset_when_closed();
        }
        // The system neither sends nor releases what it still has of zero-copy messages.
        let zcopy: Vec<_> = conn.zerocopy.take().map_or_else(Vec::new, |mut z| z.drain().collect());
        for finish in zcopy.into_iter().chain(conn.unsent()) {
            ep.finish_tx(&finish, Err(error));
        }
        if let Some(peer) = ep.peers.get_mut(conn.peer) {
            if peer.conn == id {
                peer.conn = NONE;
            }
            if peer.conns == 1
                && let Some(later) = ep.matcher.completions.internal_ops()
            {
                later.lost(ep.matcher.name_of(conn.peer), error);
            }
        }
        self.watch(id);
    }

    /// Fails the operations with pending responses from a disconnected peer. Later responses to
    /// them are ignored, and nothing more is sent.
    pub(super) fn end_awaiting(&mut self, id: u32, error: Error) {
        if self.conns.get(id).is_some_and(|conn| !conn.sends_no_more) {
            self.end_sending(id, error);
        }
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.ignores_answers = true;
        let left: Vec<_> = conn.awaiting().collect();
        let ep = &mut self.eps[conn.ep];
        for finish in left {
            ep.finish_tx(&finish, Err(error));
        }
    }

    #[inline(never)]
    fn end_transfers(&mut self, conn: &mut StreamConn<N>, error: Error) {
        self.lose_incoming(conn, error);
        let ep = &mut self.eps[conn.ep];
        if conn.is_exposing() {
            // The application gets its buffers back, so the system must not send from them any
            // more.
            conn.link.reset_when_closed();
        }
        let zcopy = conn.zerocopy.iter_mut().flat_map(|zerocopy| zerocopy.drain());
        let zcopy: Vec<_> = zcopy.collect();
        let left: Vec<_> = zcopy.into_iter().chain(conn.awaiting()).collect();
        for finish in left.into_iter().chain(conn.unsent()) {
            ep.finish_tx(&finish, Err(error));
        }
    }

    /// A MSG endpoint's connection is over, or was never made.
    fn msg_failed(&mut self, id: u32, error: Error, data: Vec<u8>) {
        let Some(mut conn) = self.drop_conn(id) else { return };
        let ep_id = conn.ep;
        let was_connected = conn.is_connected();
        self.end_transfers(&mut conn, error);
        drop(conn);
        self.eps[ep_id].conn = NONE;
        if was_connected {
            self.eps[ep_id].matcher.end();
        }
        self.cancel_all(ep_id);
        let ep = &self.eps[ep_id];
        let Some(eq) = &ep.eq else { return };
        if was_connected {
            // The side that called fi_shutdown gets FI_SHUTDOWN as well, as from the original.
            let event = FI_SHUTDOWN as u32;
            eq.write(EqEvent::Cm { event, fid: ep.fid, info: None, data });
        } else {
            eq.write(EqEvent::Error(EventError {
                fid: ep.fid,
                context: Context::NULL,
                data: 0,
                error,
                prov_errno: error.code(),
                err_data: data,
            }));
        }
    }

    /// Sends the remaining data of a connection before it ends. Injected messages are complete for
    /// the application, so they must be sent.
    pub(super) fn flush_last(&mut self, id: u32) {
        self.flush(id);
        if let Some(conn) = self.conns.get(id)
            && conn.link.tx_over_shm()
            && conn.has_unsent()
        {
            conn.link.send_trailing_on_socket();
            self.flush(id);
        }
    }

    /// Closes an endpoint: ends its connections, drops its operations without reporting them
    /// (fi_endpoint(3), fi_close), and forgets its callers.
    pub(crate) fn close_ep(&mut self, ep_id: u32) {
        let ids = self.conns_of(ep_id);
        let ep = &mut self.eps[ep_id];
        // The event queue is not notified of an endpoint that is being closed.
        ep.eq = None;
        ep.completions.mute();
        // A receive that the endpoint has taken from a shared context is given back with an error.
        if !ep.matcher.is_shared() {
            ep.matcher.completions.mute();
        }
        self.flush_conns(&ids);
        for id in ids {
            if let Some(mut conn) = self.drop_conn(id) {
                self.end_transfers(&mut conn, Error::CANCELED);
            }
        }
        self.eps[ep_id].matcher.leave();
        self.cancel_all(ep_id);
        self.fail_parked(ep_id);
        self.bound.remove(&ep_id);
        if let Some((listener, _)) = self.listeners.remove(&ep_id) {
            self.net.poller().remove(listener.id());
        }
        self.callers.drop_all_of(ep_id);
        self.accept_paused.retain(|accept_paused| *accept_paused != ep_id);
        self.remove_ep(ep_id);
    }

    #[inline(never)]
    fn remove_ep(&mut self, ep_id: u32) {
        let Some(ep) = self.eps.remove(ep_id) else { return };
        ep.completions.close();
        if !ep.matcher.is_shared() && ep.identity.kind != StreamEpKind::Srx {
            ep.matcher.completions.close();
        }
    }

    /// Returns true if the peer of a connected endpoint is known to be disconnected.
    pub(crate) fn peer_has_ended(&self, ep_id: u32) -> bool {
        self.connected_link(ep_id).is_some_and(ByteLink::has_ended)
    }

    /// The link of a connected endpoint, for fi_getname and fi_getpeer.
    pub(crate) fn connected_link(&self, ep_id: u32) -> Option<&N::Link> {
        self.conns.get(self.eps.get(ep_id)?.conn).map(|conn| &conn.link)
    }
}
