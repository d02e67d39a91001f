//! Making and ending connections.
//!
//! RDM endpoints call a peer when there is something to send, and name
//! themselves by the port they listen on; when two call each other at the same
//! time, one of the calls gives way. MSG endpoints are connected by the
//! application, and their events go to the event queue.
use super::acceptor::Acceptor;
use super::conn::{Stage, StreamConn};
use super::conn_request::{AwaitedRepeat, REPEAT_CHECK, is_loss};
use super::ep::{StreamEngineEp, StreamEpKind};
use super::handshake::Handshake;
use super::idle_closer::IdleCloser;
use super::state::StreamState;
use super::stream_request::StreamRequest;
use super::tx_path::TxPath;
use crate::transport::{ByteLink, ShmTransport};
use crate::unconfirmed_answer::UnconfirmedAnswer;
use crate::wire::{ByteOrder, PeerFeatures, RDM_ANSWER, RDM_VERSION, RdmHello, RequestNumber};
use ofi_provider::abi::FI_CONNECTED;
use ofi_provider::addr::Addr;
use ofi_provider::contexts::Contexts;
use ofi_provider::eq::EqEvent;
use ofi_provider::error::{Error, Result};
use ofi_provider::slab::NONE;
use ofi_provider::sys::random;
use std::sync::Weak;
use std::time::{Duration, Instant};

impl StreamEngineEp {
    /// Returns the RDM protocol version offered by this endpoint. With buffered receives it is 0,
    /// without messages waiting at their sender: such a message has no start to report.
    fn rdm_version(&self) -> u8 {
        if self.is_buffered() { 0 } else { RDM_VERSION }
    }

    /// Returns the HELLO of the endpoint to an RDM peer, sent from this process.
    pub(super) fn hello(&self, process: u32) -> RdmHello {
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

impl<N: ShmTransport> StreamState<N> {
    /// fi_connect of a MSG endpoint.
    pub fn connect(&mut self, ep_id: u32, to: &Addr, param: &[u8]) -> Result {
        if self.rx.tx.eps[ep_id].conn != NONE {
            return Err(Error::ISCONN);
        }
        if self.rx.tx.eps[ep_id].matcher.has_ended() {
            // The receives of an ended endpoint are cancelled; a new connection takes a new
            // endpoint.
            return Err(Error::OPBADSTATE);
        }
        let id = self.connector.dial(&mut self.rx.tx, ep_id, to, param.to_vec())?;
        self.rx.tx.eps[ep_id].conn = id;
        let io = &mut self.rx.tx.io;
        let conn = &mut io.conns[id];
        if N::Link::settings().rails.resume > 0 && io.net.offers_rails(&conn.link) {
            // Without a random number the request is sent once.
            if let (Some(request), Some(number)) = (&mut conn.request, RequestNumber::new(random()))
            {
                request.set_number(number);
                request.set_repeated(to.clone());
            }
        }
        // On one host the connection is there already: the request goes now, not
        // at the application's next look at a queue.
        Handshake::new(&mut self.rx).advance(id);
        Ok(())
    }

    /// fi_accept of a MSG endpoint opened with a request.
    pub fn accept(&mut self, ep_id: u32, request: StreamRequest<N::Link>, param: &[u8]) -> Result {
        if self.rx.tx.eps[ep_id].conn != NONE || self.repeats.has(ep_id) {
            return Err(Error::ISCONN);
        }
        let resume = N::Link::settings().rails.resume;
        let caller = request.caller();
        match request.link().answer(|link| self.accept_on(ep_id, link, caller, param)) {
            Err(error) if is_loss(error) && request.is_repeated() && resume > 0 => {
                let until = self.rx.tx.io.net.now() + Duration::from_secs(resume.into());
                let data = param.to_vec();
                self.repeats.add(AwaitedRepeat { ep: ep_id, request, data, until });
                self.rx.tx.io.wake_in(REPEAT_CHECK);
                Ok(())
            }
            result => result,
        }
    }

    /// Accepts the requests repeated after the loss of their sockets. Returns the time of the next
    /// check.
    fn accept_repeated(&mut self, now: Instant) -> Option<Instant> {
        for awaited in self.repeats.take() {
            let AwaitedRepeat { ep: ep_id, request, data, .. } = &awaited;
            let (ep_id, caller) = (*ep_id, request.caller());
            match request.link().answer(|link| self.accept_on(ep_id, link, caller, data)) {
                Ok(()) => {}
                Err(error) if is_loss(error) && now < awaited.until => self.repeats.add(awaited),
                Err(error) => {
                    self.rx.cancel_all(ep_id);
                    self.rx.tx.eps[ep_id].report_not_connected(error, Vec::new());
                }
            }
        }
        (!self.repeats.is_empty()).then(|| now + REPEAT_CHECK)
    }

    /// Accepts the request of a caller on its link. Returns the kept response.
    fn accept_on(
        &mut self,
        ep_id: u32,
        link: N::Link,
        (order, knows): (ByteOrder, PeerFeatures),
        param: &[u8],
    ) -> Result<Weak<UnconfirmedAnswer>> {
        let knows = PeerFeatures { multicast: false, closing: false, ..knows };
        let mut conn = StreamConn::new(link, Stage::Called, ep_id);
        (conn.order, conn.knows) = (order, knows);
        let id = self.rx.tx.io.add_conn(conn)?;
        if let Err(error) =
            Handshake::new(&mut self.rx).respond(id, knows, Contexts::default(), param)
        {
            self.rx.tx.drop_conn(id);
            return Err(error);
        }
        self.rx.tx.set_connected(id);
        let ep = &mut self.rx.tx.eps[ep_id];
        ep.conn = id;
        if let Some(eq) = &ep.eq {
            let event = FI_CONNECTED as u32;
            eq.write(EqEvent::Cm { event, fid: ep.fid, info: None, data: Vec::new() });
        }
        self.rx.tx.io.mark_active(id);
        Ok(self.rx.tx.io.conns[id].link.unconfirmed_answer())
    }

    /// fi_shutdown of a MSG endpoint.
    pub fn shutdown(&mut self, ep_id: u32) -> Result {
        self.repeats.remove(ep_id);
        let id = self.rx.tx.eps[ep_id].conn;
        // The peer may have ended the connection already; then there is nothing left to end.
        if self.rx.tx.io.conns.is_connected(id) {
            self.rx.flush_last(id);
        }
        if let Some(conn) = self.rx.tx.io.conns.get(id) {
            conn.link.shutdown();
            self.rx.fail(id, Error::CANCELED);
        }
        Ok(())
    }

    /// Sets the address of an endpoint neither listening nor connected. An IP address is bound now,
    /// with a port if none is given. So the endpoint's name equals the address used by its
    /// connections in both directions.
    pub(crate) fn set_address(&mut self, ep_id: u32, addr: Addr) -> Result {
        let TxPath { io, eps, .. } = &mut self.rx.tx;
        io.listeners.unbind(ep_id);
        let ep = &mut eps[ep_id];
        if addr.ip().is_err() || ep.kind() == StreamEpKind::Srx {
            ep.identity.local = addr;
            return Ok(());
        }
        ep.identity.local = io.listeners.bind(&io.net, ep_id, ep, &addr)?;
        ep.identity.keep_port = ep.kind() == StreamEpKind::Msg;
        Ok(())
    }

    /// Starts listening for RDM peers.
    pub(crate) fn listen(&mut self, ep_id: u32) -> Result {
        let TxPath { io, eps, .. } = &mut self.rx.tx;
        io.listeners.open(&io.net, ep_id, &mut eps[ep_id])
    }

    /// The accepting side of connection management.
    pub(super) fn acceptor(&mut self) -> Acceptor<'_, N> {
        Acceptor::new(&mut self.rx, &mut self.unknown)
    }

    /// Closes the connections of peers removed from the address vector, if only peers in it may
    /// connect ([`only_known`](crate::settings::StreamSettings::only_known)).
    pub(super) fn dismiss(&mut self, ep_id: u32, peers: &[u32]) {
        if !N::Link::settings().only_known {
            return;
        }
        let theirs = |conn: &StreamConn<N>| conn.ep == ep_id && peers.contains(&conn.peer);
        for id in self.rx.tx.io.conns.indices(theirs) {
            self.rx.fail(id, Error::CONNABORTED);
        }
    }

    /// Handles the expiry of the engine's timer. Closes silent pending connections, retries
    /// rejected connection requests, resumes paused listeners, and sets the timer for the next of
    /// these events.
    #[inline(never)]
    pub(super) fn retry_refused(&mut self) {
        let io = &mut self.rx.tx.io;
        io.timer.clear(&io.net);
        let now = io.net.now();
        let (complete, silence) = io.callers.end_silence(now);
        complete.into_iter().for_each(|id| self.acceptor().answer(id));
        let unanswered = self.connector.end_unanswered(&mut self.rx, now);
        let half_closed = IdleCloser::new(&mut self.rx).end_half_closed_waits(now);
        self.acceptor().look_at_held();
        let silent = self.rx.end_silent(now);
        let repeated = self.accept_repeated(now);
        let times = [silence, unanswered, half_closed, silent, repeated];
        let mut next = times.into_iter().flatten().min();
        let mut due = Vec::new();
        for (ep_id, ep) in self.rx.tx.eps.iter() {
            for (peer, entry) in ep.peers.iter() {
                match entry.extra.retry.due() {
                    Some(at) if at <= now => due.push((ep_id, peer)),
                    Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    None => {}
                }
            }
        }
        for (ep_id, peer) in due {
            self.rx.tx.eps[ep_id].peers[peer].extra.retry.take_due(now);
            self.connector.call_for_parked(&mut self.rx.tx, ep_id, peer);
        }
        for ep in self.rx.tx.io.listeners.paused().to_vec() {
            self.acceptor().accept_all(ep);
        }
        if self.rx.tx.io.blocked.is_any_hidden() {
            self.rx.tx.look_for_hidden_ends();
        }
        if let Some(next) = next {
            self.rx.tx.io.wake_at(next);
        }
    }

    /// Closes an endpoint: ends its connections, drops its operations without reporting them
    /// (fi_endpoint(3), fi_close), and forgets its callers.
    pub(crate) fn close_ep(&mut self, ep_id: u32) {
        self.repeats.remove(ep_id);
        let ids = self.rx.tx.conns_of(ep_id);
        let ep = &mut self.rx.tx.eps[ep_id];
        // The event queue is not notified of an endpoint that is being closed.
        ep.eq = None;
        ep.completions.mute();
        // A receive that the endpoint has taken from a shared context is given back with an error.
        if !ep.matcher.queues.is_shared() {
            ep.matcher.completions.mute();
        }
        self.rx.flush_conns(&ids);
        for id in ids {
            if let Some(mut conn) = self.rx.tx.drop_conn(id) {
                self.rx.tx.io.end_link(&conn.link);
                self.rx.end_transfers(&mut conn, Error::CANCELED);
            }
        }
        self.rx.tx.eps[ep_id].matcher.leave();
        self.rx.cancel_all(ep_id);
        let TxPath { io, eps, .. } = &mut self.rx.tx;
        eps[ep_id].fail_parked();
        io.listeners.close(&io.net, ep_id);
        io.callers.drop_all_of(ep_id);
        eps.close(ep_id);
    }

    /// Returns true if the peer of a connected endpoint is known to be disconnected.
    pub(crate) fn peer_has_ended(&self, ep_id: u32) -> bool {
        self.connected_link(ep_id).is_some_and(ByteLink::has_ended)
    }

    /// The link of a connected endpoint, for fi_getname and fi_getpeer.
    pub(crate) fn connected_link(&self, ep_id: u32) -> Option<&N::Link> {
        self.rx.tx.io.conns.get(self.rx.tx.eps.get(ep_id)?.conn).map(|conn| &conn.link)
    }
}
