//! Establishment of connections: requests, responses and rejections.
//!
//! RDM endpoints name themselves by the port they listen on. When two of them connect to each other
//! at the same time, one of the connections gives way.
use super::conn::Stage;
use super::conn_request::{is_loss, is_reset};
use super::early_sender::EarlySender;
use super::ep::StreamEpKind;
use super::rx_path::RxPath;
use super::tokens::TOKEN_CONN;
use super::transfer::TxRequest;
use super::tx_path::TxPath;
use crate::accept_queue;
use crate::settings::HOLD_OFF_STEP;
use crate::transport::{ByteLink, ShmTransport, log_not_in_memory, peer_of};
use crate::wire::{
    BEHIND_FIREWALL, ByteOrder, CM_LEN, CmMessage, CmType, Malformed, Parsed, PeerFeatures,
    RDM_ANSWER, RdmHello,
};
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, FI_CONNECTED};
use ofi_provider::addr::{Addr, connect_order};
use ofi_provider::conn_arbiter::{
    BackoffPolicy, ConnReqDecision, IncomingConnReq, KERNEL_CONNECT_TIME, LocalConnState,
    ProcessInstance,
};
use ofi_provider::contexts::Contexts;
use ofi_provider::eq::EqEvent;
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::slab::NONE;
use std::time::Duration;

/// Delay before connecting to a peer possibly connecting by itself.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Retry rule for rejected connection requests between endpoints, before they fail with
/// -FI_ECONNREFUSED after more than two minutes: the peer's own request may have been lost at a full
/// accept queue, and its kernel repeats it up to a minute later.
pub(super) const RETRY: BackoffPolicy =
    BackoffPolicy { delay: RETRY_DELAY, longest: Duration::from_millis(1280), most: 112 };
const _: () = assert!(RETRY.total().as_secs() >= KERNEL_CONNECT_TIME);

/// Maximum number of consecutive connections ended by a peer before its response, about 10 s in all: a
/// peer with another key ends all of them.
pub(super) const UNANSWERED_MOST: u32 = 16;

/// Retry rule for contexts of scalable endpoints. A peer without support for contexts just
/// disconnects, so fewer attempts suffice.
const RETRY_CONTEXT: BackoffPolicy = BackoffPolicy { most: 10, ..RETRY };

/// Retry rule for absent peers: soon at first, then with growing pauses, up to the user's timeout
/// ([`StreamSettings::hold_off`](crate::settings::StreamSettings::hold_off)).
const AWAIT: BackoffPolicy = BackoffPolicy { longest: HOLD_OFF_STEP, most: 0, ..RETRY };

/// Data of a final rejection: the addressed endpoint has no such receive context.
const NO_SUCH_CONTEXT: &[u8] = b"no such context";

/// Handshakes of the connections of an engine.
pub(super) struct Handshake<'a, N: ShmTransport> {
    rx: &'a mut RxPath<N>,
}

impl<'a, N: ShmTransport> Handshake<'a, N> {
    pub(super) fn new(rx: &'a mut RxPath<N>) -> Self {
        Self { rx }
    }

    /// Continues the handshake of a connection: sends the local request, or reads the peer's
    /// response. Returns true if there was progress.
    pub(super) fn advance(&mut self, id: u32) -> bool {
        let Some(conn) = self.rx.tx.io.conns.get_mut(id) else { return false };
        match conn.stage {
            Stage::Connecting => {
                if let Err(error) = conn.link.take_error() {
                    if !is_reset(error) || !self.connect_again(id) {
                        self.not_made(id, error);
                    }
                    return true;
                }
                let contexts = self.rx.tx.eps[conn.ep].contexts_to(conn.peer);
                // Contexts of scalable endpoints are in no multicast groups.
                let multicast =
                    self.rx.tx.eps[conn.ep].identity.attr.multicast && contexts.are_first();
                let memory = self.rx.tx.eps[conn.ep].identity.memory;
                let local = memory && self.rx.tx.io.net.may_be_local(&conn.link);
                let (acks, outcomes) = (true, true);
                let rails = self.rx.tx.io.net.offers_rails(&conn.link);
                let early = EarlySender::new(&mut self.rx.tx).may_send(id);
                let conn = &mut self.rx.tx.io.conns[id];
                let knows = PeerFeatures {
                    atomics: true,
                    multicast,
                    acks,
                    local,
                    outcomes,
                    segments: true,
                    rails,
                    closing: self.rx.tx.eps[conn.ep].identity.kind == StreamEpKind::Rdm,
                    early,
                };
                let data = conn.request.as_ref().map_or(&[][..], |request| request.data());
                let mut message = CmMessage::encode_for(CmType::Request, knows, contexts, data);
                let number = conn.request.as_ref().and_then(|request| request.number());
                if let Some(number) = number {
                    CmMessage::add_number(&mut message, number);
                }
                match conn.link.send(&message) {
                    Ok(sent) if sent == message.len() => {
                        conn.stage = Stage::AwaitResponse;
                        if number.is_none() {
                            conn.request = None;
                        } else if let Some(peer) = self.rx.tx.eps[conn.ep].peers.get_mut(conn.peer)
                        {
                            peer.extra.set_request_sent();
                        }
                        self.rx.tx.io.watch(id);
                        if early {
                            self.rx.tx.io.conns[id].early.announce();
                            EarlySender::new(&mut self.rx.tx).send(id);
                        }
                    }
                    // The link is still being made, which is no error: the poller reports the end.
                    Err(Error::AGAIN | Error::NOTCONN | Error::INTR) => return false,
                    // A fresh link that takes less than 300 bytes is broken.
                    Ok(_) => self.rx.fail(id, Error::IO),
                    Err(error) if is_reset(error) && self.connect_again(id) => {}
                    Err(error) if is_loss(error) && self.repeat_request(id) => {}
                    Err(error) => self.rx.fail(id, error),
                }
                true
            }
            Stage::AwaitResponse if conn.usage.is_replaced => self.end_replaced(id),
            Stage::AwaitResponse => self.receive_response(id),
            Stage::Called | Stage::Connected => false,
        }
    }

    /// Sends the request of a new connection, and early data behind it, as far as both are possible now. A
    /// link within the host is mostly made when its connect call returns.
    #[cold]
    #[inline(never)]
    pub(super) fn send_early(&mut self, id: u32) {
        let Some(conn) = self.rx.tx.io.conns.get_mut(id) else { return };
        match conn.stage {
            Stage::Connecting => {
                let is_first = conn.request.as_mut().is_some_and(|one| one.take_first_try());
                if is_first && conn.link.is_on_this_host() {
                    self.advance(id);
                }
            }
            Stage::AwaitResponse => EarlySender::new(&mut self.rx.tx).send(id),
            Stage::Called | Stage::Connected => {}
        }
    }

    /// Reads the response to the request of a connection replaced by one of the peer. The connection ends
    /// with the rejection. The peer accepts a request only after the end of its own connection, by
    /// agreement and possibly on the way. Returns true if the outcome was decided.
    fn end_replaced(&mut self, id: u32) -> bool {
        let conn = &self.rx.tx.io.conns[id];
        if !conn.usage.is_withdrawn && self.agreed_end(id).is_some() {
            return self.receive_response(id);
        }
        let received = conn.link.recv(&mut [0; CM_LEN]);
        let has_answered = !matches!(received, Err(Error::AGAIN | Error::INTR));
        if has_answered {
            self.rx.end_idle(id);
        }
        has_answered
    }

    /// Returns the connection in place of this replaced one, if this end has agreed to its end.
    fn agreed_end(&self, id: u32) -> Option<u32> {
        let TxPath { io, eps, .. } = &self.rx.tx;
        let conn = io.conns.get(id).filter(|conn| conn.usage.is_replaced)?;
        let by = eps[conn.ep].peers.get(conn.peer)?.extra.closing?;
        io.conns.get(by).filter(|conn| conn.usage.has_agreed()).map(|_| by)
    }

    /// Reads the peer's response to the local connection request. Returns true if the outcome was
    /// decided.
    fn receive_response(&mut self, id: u32) -> bool {
        let conn = &mut self.rx.tx.io.conns[id];
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
                Ok(0) => {
                    self.hung_up(id);
                    return true;
                }
                Ok(n) => conn.stash.extend_from_slice(&bytes[..n]),
                Err(Error::AGAIN | Error::INTR) => return false,
                Err(error) => {
                    self.lose_answer(id, error);
                    return true;
                }
            }
        }
        let answer = CmMessage::parse(&conn.stash);
        if conn.usage.is_replaced {
            let is_accepted = answer.as_ref().is_ok_and(|answer| answer.kind == CmType::Response);
            // Nothing is on the way there, and its end makes this one the peer's again.
            match self.agreed_end(id).filter(|_| is_accepted) {
                Some(by) => self.rx.end_idle(by),
                None => {
                    self.rx.end_idle(id);
                    return true;
                }
            }
        }
        if answer.as_ref().is_ok_and(|answer| answer.kind == CmType::Response && answer.knows.rails)
        {
            match self.receive_first_frames(id) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    self.lose_answer(id, error);
                    return true;
                }
            }
        }
        let conn = &mut self.rx.tx.io.conns[id];
        conn.request = None;
        conn.stash = Vec::new();
        let kind = self.rx.tx.eps[conn.ep].identity.kind;
        let result = answer.and_then(|message| match message.kind {
            CmType::Response if kind == StreamEpKind::Rdm => self.rdm_answer(id, &message),
            CmType::Response => {
                self.msg_answer(id, message);
                Ok(())
            }
            CmType::Nack => {
                self.on_reject(id, Some(message.data));
                Ok(())
            }
            _ => Err(Malformed("connection message out of turn")),
        });
        if let Err(why) = result {
            self.close_malformed(id, why);
        }
        true
    }

    /// Receives the frames of the peer behind its answer. Without them the peer cannot be reached again
    /// after the loss of the socket. Returns false while some are missing.
    fn receive_first_frames(&mut self, id: u32) -> Result<bool> {
        self.start_rails(id, true).map_err(|_| Error::NOPROTOOPT)?;
        self.rx.tx.io.conns[id].link.receive_first_frames()
    }

    /// Handles the failure of a socket before the peer's response has arrived as a whole.
    fn lose_answer(&mut self, id: u32, error: Error) {
        if self.rx.tx.io.conns[id].usage.is_replaced {
            return self.rx.end_idle(id);
        }
        if is_loss(error) && self.repeat_request(id) {
            return;
        }
        if is_reset(error) { self.hung_up(id) } else { self.rx.fail(id, error) }
    }

    /// Handles the loss of a socket before the request was sent: connects again, an RDM endpoint as after
    /// a rejection. Returns false if it does not.
    fn connect_again(&mut self, id: u32) -> bool {
        let conn = &self.rx.tx.io.conns[id];
        let is_rdm = self.rx.tx.eps[conn.ep].identity.kind == StreamEpKind::Rdm;
        if is_rdm {
            self.on_reject(id, None);
        }
        is_rdm || self.repeat_request(id)
    }

    /// Connects again after the loss of a socket before the peer's response, to repeat the request.
    /// Returns false if the request is not repeated.
    #[cold]
    fn repeat_request(&mut self, id: u32) -> bool {
        let TxPath { io, eps, .. } = &mut self.rx.tx;
        let Some(conn) = io.conns.get_mut(id) else { return false };
        let Some(to) = conn.request.as_mut().and_then(|request| request.repeat()) else {
            return false;
        };
        let identity = &eps[conn.ep].identity;
        let dial =
            |keep_port| io.net.dial_as(identity.secret.as_ref(), &identity.local, keep_port, &to);
        // The lost socket may still have the port.
        let link = dial(identity.keep_port).or_else(|_| dial(false));
        ofi_provider::log_sparsely!(
            N::Link::provider(),
            WARN,
            EP_CTRL,
            "the connection with {to} is lost before its response; repeating the request"
        );
        if let Err(error) = link.and_then(|link| io.replace_link(id, link)) {
            self.rx.fail(id, error);
        }
        true
    }

    /// Handles a disconnect before the peer's response. From an RDM peer this counts as a
    /// rejection: the end of the connection may have overtaken it.
    fn hung_up(&mut self, id: u32) {
        let conn = &self.rx.tx.io.conns[id];
        if conn.usage.is_replaced {
            return self.rx.end_idle(id);
        }
        let rdm = self.rx.tx.eps[conn.ep].identity.kind == StreamEpKind::Rdm;
        if rdm && conn.stage == Stage::AwaitResponse {
            self.on_reject(id, None);
        } else {
            self.rx.fail(id, Error::CONNREFUSED);
        }
    }

    /// Closes a connection because the peer does not speak the provider's protocol, and logs it.
    fn close_malformed(&mut self, id: u32, why: Malformed) {
        let peer = peer_text(self.rx.tx.io.conns.get(id).and_then(|conn| peer_of(&conn.link)));
        accept_queue::log_rejection::<N::Link>(format_args!("with {peer}"), why);
        self.rx.fail(id, Error::NOPROTOOPT);
    }

    /// Marks a connection as established: sends the queued transfers first, then starts reading.
    pub(super) fn established(&mut self, id: u32) {
        self.rx.tx.set_connected(id);
        EarlySender::new(&mut self.rx.tx).complete(id);
        let conn = &mut self.rx.tx.io.conns[id];
        if let Some(unknown_conn) = &mut conn.unknown_conn {
            unknown_conn.connected(self.rx.tx.io.net.now());
        }
        if conn.order == ByteOrder::Network {
            // The places in what waits were written before the peer's byte order was known.
            conn.tx.iter_mut().for_each(TxRequest::convert_segments);
        }
        self.rx.tx.refuse_unknown(id);
        self.rx.flush(id);
        self.rx.tx.io.mark_active(id);
        self.rx.tx.io.watch(id);
    }

    fn msg_answer(&mut self, id: u32, message: CmMessage) {
        self.answered_with(id, &message);
        let ep = &self.rx.tx.eps[self.rx.tx.io.conns[id].ep];
        if let Some(eq) = &ep.eq {
            let event = FI_CONNECTED as u32;
            eq.write(EqEvent::Cm { event, fid: ep.fid, info: None, data: message.data });
        }
        self.established(id);
    }

    /// Stores the attributes from the peer's response, and starts the shared-memory upgrade if the
    /// peer offers it.
    fn answered_with(&mut self, id: u32, answer: &CmMessage) {
        let conn = &mut self.rx.tx.io.conns[id];
        (conn.order, conn.knows) = (answer.order, answer.knows);
        if answer.knows.rails && self.start_rails(id, true).is_err() {
            return self.rx.fail(id, Error::NOPROTOOPT);
        }
        let conn = &mut self.rx.tx.io.conns[id];
        if let Some(offer) = &answer.offer {
            self.rx.tx.io.net.start_shm_upgrade(&conn.link, TOKEN_CONN | u64::from(id), offer);
            self.rx.tx.io.may_go_local();
        } else {
            self.stays_off_memory(id);
        }
    }

    fn rdm_answer(&mut self, id: u32, message: &CmMessage) -> Parsed {
        let conn = &self.rx.tx.io.conns[id];
        if message.contexts != self.rx.tx.eps[conn.ep].contexts_to(conn.peer) {
            return Err(Malformed("the peer knows no contexts of scalable endpoints"));
        }
        // A peer of the first protocol version answers without data.
        let version = match RdmHello::parse(&message.data) {
            Ok(hello) => {
                let peer = self.rx.tx.io.conns[id].peer;
                let ep = self.rx.tx.io.conns[id].ep;
                let entry = &mut self.rx.tx.eps[ep].peers[peer];
                entry.extra.process =
                    ProcessInstance { pid: hello.pid, instance: message.instance };
                hello.version
            }
            Err(_) => 0,
        };
        self.answered_with(id, message);
        let conn = &mut self.rx.tx.io.conns[id];
        conn.rendezvous = version & RDM_ANSWER != 0 && version & !RDM_ANSWER >= 1;
        let (ep, peer) = (conn.ep, conn.peer);
        self.rx.tx.eps[ep].peers[peer].extra.connected();
        self.established(id);
        Ok(())
    }

    /// Answers an RDM peer's call.
    pub(super) fn rdm_request(
        &mut self,
        id: u32,
        message: &CmMessage,
        hello: &RdmHello,
        addr: Addr,
    ) {
        if message.knows.early && message.order == ByteOrder::Network {
            // Early data is in the byte order of the sender. The next request has none.
            return self.reject(id, &[]);
        }
        let ep_id = self.rx.tx.io.conns[id].ep;
        if !message.contexts.are_first() {
            self.context_request(id, message.contexts, hello, addr);
            return;
        }
        let ep = &mut self.rx.tx.eps[ep_id];
        let mut local = ep.identity.local.clone();
        if local.is_any() {
            if let Ok(called) = self.rx.tx.io.conns[id].link.local_addr() {
                // The address by which the caller knows this endpoint, so that both decide alike which call goes on.
                local.set_host(&called);
            }
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
        let (known, extra) = (self.rx.tx.io.conns.get(other), &ep.peers[peer].extra);
        let answer = call.answer(match known {
            // The peer may have accepted the request whose answer was lost.
            None if extra.has_sent_request() && extra.retry.is_waiting() => LocalConnState::Calling,
            None => LocalConnState::None,
            Some(known) if known.is_connected() => LocalConnState::Made,
            Some(known) if known.stage == Stage::Connecting && !extra.has_sent_request() => {
                LocalConnState::Dialing
            }
            Some(_) => LocalConnState::Calling,
        });
        match answer {
            ConnReqDecision::Accept | ConnReqDecision::Crossing => {}
            ConnReqDecision::Replace if known.is_none() => {}
            ConnReqDecision::Reject => {
                if let Some(known) = known.filter(|known| known.is_connected()) {
                    // The peer may also be a restarted process with the same number, whose old
                    // connection was never ended: probing finds that out.
                    if ep.peers[peer].extra.add_rejected(message.number) {
                        known.link.probe();
                    }
                }
                return self.reject(id, &[]);
            }
            // Operations in flight to the previous process at this address are lost, except for
            // data sent by it before it ended.
            ConnReqDecision::Restarted => {
                if known.is_some_and(|known| known.link.has_ended()) {
                    self.rx.sent_without_effect(other, Error::CONNRESET);
                }
                if self.rx.tx.eps[ep_id].peers.get(peer).is_some_and(|peer| peer.conn == other) {
                    self.rx.fail(other, Error::CONNRESET);
                }
                if self.rx.tx.io.conns.get(id).is_none() {
                    return;
                }
            }
            ConnReqDecision::Replace => {
                if self.rx.tx.io.conns[other].early.has_sent() {
                    if self.rx.tx.io.conns[id].link.has_ended() {
                        // The peer may accept our request.
                        self.rx.tx.drop_conn(id);
                        return;
                    }
                    // From now on the peer ignores our request.
                    self.rx.tx.io.conns[other].link.end_sending();
                    self.rx.tx.io.conns[other].usage.is_withdrawn = true;
                }
                let waiting = self.rx.tx.io.conns[other].take_queue();
                let entry = &mut self.rx.tx.eps[ep_id].peers[peer];
                entry.extra.parked.extend(waiting);
                entry.conn = NONE;
                let closing = self.rx.tx.io.conns[id].knows.closing;
                let replaced = &mut self.rx.tx.io.conns[other];
                if closing && replaced.stage == Stage::AwaitResponse {
                    // Its request may reach the peer after the end of the new connection: so it stays
                    // until the peer has answered it.
                    replaced.usage.is_replaced = true;
                    entry.extra.replaced = Some(other);
                } else {
                    self.rx.tx.drop_conn(other);
                }
            }
        }
        // `fail` may have forgotten a peer without a name.
        let peer = self.rx.tx.eps[ep_id].peer_at(addr);
        self.rx.tx.eps[ep_id].peers[peer].behind_firewall = behind_firewall;
        if self.rx.tx.eps[ep_id].matcher.senders.name_of(peer) != FI_ADDR_NOTAVAIL {
            self.rx.tx.io.conns[id].unknown_conn = None;
        }
        let ours = self.rx.tx.eps[ep_id].answer_to(hello, self.rx.tx.io.net.process());
        self.rx.tx.attach(id, peer);
        let conn = &mut self.rx.tx.io.conns[id];
        conn.rendezvous = ours.version & !RDM_ANSWER >= 1;
        let multicast = conn.knows.multicast && self.rx.tx.eps[ep_id].identity.attr.multicast;
        let knows = PeerFeatures { multicast, ..conn.knows };
        if self.respond(id, knows, Contexts::default(), &ours.encode()).is_err() {
            self.rx.fail(id, Error::CONNRESET);
            self.call_later(ep_id, peer, RETRY_DELAY);
            return;
        }
        let entry = &mut self.rx.tx.eps[ep_id].peers[peer];
        entry.extra.process = process;
        if answer != ConnReqDecision::Crossing {
            entry.conn = id;
            entry.extra.connected();
            let parked = std::mem::take(&mut entry.extra.parked);
            self.rx.tx.io.conns[id].take_over(parked);
        }
        self.established(id);
    }

    /// Rejects a connection request with these data, and closes its link.
    fn reject(&mut self, id: u32, data: &[u8]) {
        let reject_reason = CmMessage::encode(CmType::Nack, PeerFeatures::default(), data);
        let _ = self.rx.tx.io.conns[id].link.send(&reject_reason);
        self.rx.tx.drop_conn(id);
    }

    /// Answers a connection request: accepts it, with an offer of shared memory if the caller
    /// takes one and may be here.
    pub(super) fn respond(
        &mut self,
        id: u32,
        knows: PeerFeatures,
        contexts: Contexts,
        data: &[u8],
    ) -> Result {
        let conn = &self.rx.tx.io.conns[id];
        let wanted = knows.local && self.rx.tx.eps[conn.ep].identity.memory;
        let token = TOKEN_CONN | u64::from(id);
        let offer =
            if wanted { self.rx.tx.io.net.offer_shm_upgrade(&conn.link, token) } else { None };
        let rails = knows.rails && offer.is_none() && self.start_rails(id, false).is_ok();
        let knows = PeerFeatures { local: offer.is_some(), rails, early: false, ..knows };
        match offer {
            Some(_) => self.rx.tx.io.may_go_local(),
            None if wanted => {}
            None => self.stays_off_memory(id),
        }
        let link = &self.rx.tx.io.conns[id].link;
        let mut answer = CmMessage::encode_for(CmType::Response, knows, contexts, data);
        if let Some(offer) = offer {
            CmMessage::add_offer(&mut answer, &offer);
        }
        link.send_answer(&answer)?;
        Ok(())
    }

    /// Has a connection exchange frames over several sockets from its establishment on.
    fn start_rails(&self, id: u32, connects: bool) -> Result {
        let (net, link) = (&self.rx.tx.io.net, &self.rx.tx.io.conns[id].link);
        if !net.offers_rails(link) {
            return Err(Error::NOSYS);
        }
        net.start_rails(link, TOKEN_CONN | u64::from(id), connects)
    }

    /// Logs the reason for staying on the socket, if shared memory were possible but for one of the
    /// two ends.
    fn stays_off_memory(&self, id: u32) {
        let conn = &self.rx.tx.io.conns[id];
        if self.rx.tx.io.net.may_be_local(&conn.link) {
            let why = match self.rx.tx.eps[conn.ep].identity.memory {
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
        let conn = &self.rx.tx.io.conns[id];
        let (ep_id, peer) = (conn.ep, conn.peer);
        let peers = &self.rx.tx.eps[ep_id].peers;
        let was_there = peers.get(peer).is_none_or(|peer| peer.extra.process.pid != 0);
        if most == 0 || error != Error::CONNREFUSED || was_there {
            self.rx.fail(id, error);
            return;
        }
        if peers.name_of(peer) == FI_ADDR_NOTAVAIL {
            // The address was removed while the peer was called.
            self.rx.fail(id, Error::CANCELED);
            return;
        }
        self.rx.tx.eps[ep_id].peers[peer].extra.is_absent = true;
        self.retry_connect(id, &BackoffPolicy { most, ..AWAIT }, true);
    }

    /// Handles a rejection by the peer with these data, or the end of the connection without a response.
    /// A MSG endpoint's connection has failed; an RDM peer is called again after a delay, up to a number
    /// of rejections.
    pub(super) fn on_reject(&mut self, id: u32, data: Option<Vec<u8>>) {
        let is_answered = data.is_some();
        let data = data.unwrap_or_default();
        let conn = &mut self.rx.tx.io.conns[id];
        let (ep_id, peer) = (conn.ep, conn.peer);
        let ep = &mut self.rx.tx.eps[ep_id];
        if ep.identity.kind == StreamEpKind::Msg {
            self.rx.msg_failed(id, Error::CONNREFUSED, data);
            return;
        }
        if is_answered {
            ep.peers[peer].extra.set_rejected();
        }
        let between_endpoints = ep.contexts_to(peer).are_first();
        if !between_endpoints && !data.is_empty() {
            // The peer has no receive context of this index, and never will.
            self.rx.fail(id, Error::CONNREFUSED);
            return;
        }
        // An RDM peer refuses because it is calling us, or believes it still has
        // a connection that we know is gone. Either way it is worth waiting.
        let rule = if between_endpoints { &RETRY } else { &RETRY_CONTEXT };
        self.retry_connect(id, rule, is_answered);
    }

    /// Moves queued transfers from a failed connection to the peer's incoming connection, or to the
    /// next attempt.
    fn retry_connect(&mut self, id: u32, rule: &BackoffPolicy, is_answered: bool) {
        let conn = &mut self.rx.tx.io.conns[id];
        let (ep_id, peer) = (conn.ep, conn.peer);
        let waiting = conn.take_queue();
        self.rx.tx.drop_conn(id);
        let entry = &mut self.rx.tx.eps[ep_id].peers[peer];
        if entry.conn == id {
            entry.conn = NONE;
        }
        if let Some(conn) = self.rx.tx.io.conns.get_mut(entry.conn) {
            conn.take_over(waiting);
            let other = entry.conn;
            if self.rx.tx.io.conns[other].is_connected() {
                self.rx.tx.refuse_unknown(other);
                self.rx.flush(other);
                self.rx.tx.io.mark_active(other);
            }
            return;
        }
        let (retry, now) = (&mut entry.extra.retry, self.rx.tx.io.net.now());
        let due = match is_answered {
            true => retry.refused(now, rule),
            false => retry.ended_unanswered(now, rule, UNANSWERED_MOST),
        };
        match due {
            Some(due) => {
                entry.extra.parked.extend(waiting);
                self.rx.tx.io.wake_at(due);
            }
            None => self.rx.tx.eps[ep_id].fail_all(waiting, Error::CONNREFUSED),
        }
        self.rx.tx.eps[ep_id].forget_peer_if_unused(peer);
    }

    /// Has a peer called after `delay` if transfers wait for it and nothing else would send
    /// them.
    fn call_later(&mut self, ep_id: u32, peer: u32, delay: Duration) {
        // A peer for which nothing waits may have been forgotten.
        let Some(entry) = self.rx.tx.eps[ep_id].peers.get_mut(peer) else { return };
        let at = self.rx.tx.io.net.now() + delay;
        if entry.conn == NONE && !entry.extra.parked.is_empty() && entry.extra.retry.call_at(at) {
            self.rx.tx.io.wake_at(at);
        }
    }

    /// Answers a connection request of a peer's transmit context for one of our receive
    /// contexts; refuses it if there is no such context.
    pub(super) fn context_request(
        &mut self,
        id: u32,
        contexts: Contexts,
        hello: &RdmHello,
        addr: Addr,
    ) {
        let listener = self.rx.tx.io.conns[id].ep;
        let ep = &self.rx.tx.eps[listener];
        let Some(receiver) = ep.context_index.receiver(contexts.rx, listener) else {
            return self.reject(id, NO_SUCH_CONTEXT);
        };
        let answer = ep.answer_to(hello, self.rx.tx.io.net.process());
        let peer = self.rx.tx.eps[receiver].peer_at(addr);
        self.rx.tx.io.conns[id].ep = receiver;
        if self.rx.tx.eps[receiver].matcher.senders.name_of(peer) != FI_ADDR_NOTAVAIL {
            self.rx.tx.io.conns[id].unknown_conn = None;
        }
        self.rx.tx.eps[receiver].peers[peer].behind_firewall =
            hello.features & BEHIND_FIREWALL != 0;
        self.rx.tx.attach(id, peer);
        let conn = &mut self.rx.tx.io.conns[id];
        conn.rendezvous = answer.version & !RDM_ANSWER >= 1;
        // Contexts of scalable endpoints are in no multicast groups.
        let knows = PeerFeatures { multicast: false, ..conn.knows };
        match self.respond(id, knows, contexts, &answer.encode()) {
            Ok(()) => self.established(id),
            Err(error) => self.rx.fail(id, error),
        }
    }
}
