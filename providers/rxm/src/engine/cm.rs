//! Connection establishment and teardown.
//!
//! A peer is identified by its listening address. An endpoint connects to a peer when it has data
//! to send. If both connect at once, the one with the larger address wins. Transfers wait in the
//! connection until it is established. A peer connecting by itself rejects the local request, and
//! its own request establishes the connection; without one, this side tries again.
use super::common::clock;
use super::conn::{Link, RxmConn, Token, Waiting, came_on, own_addr, packet_id, process_of};
use super::core_objects::RxmCore;
use super::ep::RxmEngineEp;
use super::further::PeerSupport;
use super::further_calls::{self, PROBE_PORT};
use super::idle_closer;
use crate::provider::RXM;
use crate::wire::{Accept, RejectReason, RxmConnReq};
use ofi_provider::addr::{Addr, connect_order};
use ofi_provider::conn_arbiter::{
    BackoffPolicy, ConnReqDecision, IncomingConnReq, KERNEL_CONNECT_TIME, LocalConnState,
};
use ofi_provider::core_provider::CoreEvent;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::log::peer_text;
use std::time::Duration;

/// Retry rule for rejected connection requests: 10 ms after the first rejection, 1.28 s after the
/// last ones, for more than two minutes in all. A rejecting peer is connecting by itself; this takes
/// long while many processes start. Its request may have been lost at a full accept queue, and its
/// kernel repeats it up to a minute later.
const RETRY: BackoffPolicy = BackoffPolicy {
    delay: Duration::from_millis(5),
    longest: Duration::from_millis(5 << 8),
    most: 108,
};
const _: () = assert!(RETRY.total().as_secs() >= KERNEL_CONNECT_TIME);

impl RxmEngineEp {
    /// Calls a peer; returns the new connection.
    #[cold]
    pub(super) fn call(&mut self, peer: u32) -> Result<u32> {
        if self.peers.is_out_of_reach(self.av.as_deref(), peer) {
            return Err(Error::FIREWALLADDR);
        }
        let id = self.conns.new_conn(&mut self.peers, peer, Link::Refused)?;
        if !idle_closer::may_call(self) {
            idle_closer::wait_in_line(self, id);
        } else if let Err(error) = idle_closer::start_or_wait(self, id) {
            self.conns.remove_unready(id);
            self.peers.detach(peer, id);
            return Err(error);
        }
        self.peers[peer].conn = id;
        Ok(id)
    }

    /// Connects to queued peers, as far as the limits of concurrent attempts and of connections
    /// allow.
    #[cold]
    fn call_next(&mut self) {
        while self.connects.has_queued() && idle_closer::may_call(self) {
            let Some(id) = self.connects.pop() else { return };
            // The peer may have called, or the connection be over.
            let waits = |conn: &mut RxmConn| conn.link == Link::Refused && conn.retry.leave_line();
            if self.conns.get_mut(id).is_some_and(waits) {
                if let Err(error) = idle_closer::start_or_wait(self, id) {
                    self.ended(id, error);
                }
            }
        }
    }

    pub(super) fn start_connect(&mut self, id: u32) -> Result {
        self.connects.started(id, self.conns.source(id));
        let peer = self.peers[self.conns[id].peer].addr.clone();
        let mut info = self.common.info.as_ref().to_owned()?;
        let mut local = self.identity.local.clone();
        // The peer knows us by the address we call from, and our port by the data.
        local.set_port(0);
        let source = (!local.is_any()).then(|| local.to_bytes());
        info.set_src_addr(source.as_deref())?;
        info.set_dest_addr(Some(&peer.to_bytes()))?;
        self.conns.open_link(self.core.as_ref(), id, info, self.identity.local_paths)?;
        let is_probe = self.conns[id].is_probe;
        let call = RxmConnReq {
            port: if is_probe { PROBE_PORT } else { self.identity.local.port() },
            flow_control: self.common.flow_control(),
            eager_limit: self.common.config.eager_limit as u32,
            rx_size: self.common.rx_buffers(self.core.as_ref().is_some_and(RxmCore::is_shared))
                as u32,
            conn_id: self.conns.conn_id(id),
            index: self.conns[id].index,
            contexts: self.context_index.to(self.peers[self.conns[id].peer].rx),
            key: self.identity.key.clone(),
            own: self.conns[id].own,
            swapped: false,
            ours: true,
            multicast: self.identity.attr.multicast,
            closes: true,
        };
        self.conns[id].own = call.is_own();
        let conn = &mut self.conns[id];
        conn.link = Link::Calling;
        conn.usage.is_dialed = true;
        match &conn.ep {
            Some(ep) => ep.connect(&peer.to_bytes(), &call.write()),
            None => Err(Error::OPBADSTATE),
        }
    }

    /// Reads the core's event queue until it is empty.
    #[inline(never)]
    pub(super) fn connection_events(&mut self) {
        // Bounded, so that a storm of calls does not keep messages waiting.
        for _ in 0..64 {
            let Some(core) = &self.core else { return };
            let event = match core.eq.read() {
                Ok(Some(event)) => event,
                Ok(None) | Err(_) => break,
            };
            match event {
                CoreEvent::Request { info, data } => self.called(info, &data),
                CoreEvent::Connected { token, data } => self.connected(token as u32, &data),
                CoreEvent::Ended { token } => {
                    idle_closer::peer_ended(self, token as u32, Error::CONNRESET);
                }
                CoreEvent::Failed { token, error, data } => {
                    self.call_failed(token as u32, error, &data);
                }
                CoreEvent::Other => {}
            }
        }
        if self.connects.has_rejected() {
            self.call_refused_again();
        }
        idle_closer::limit_connections(self);
        if self.connects.has_queued() {
            self.call_next();
        }
        if !self.conns.wanted.is_empty() {
            further_calls::start_wanted(self);
        }
    }

    /// Answers a peer's call.
    fn called(&mut self, info: InfoBuf, data: &[u8]) {
        let from = info.as_ref().dest_addr().and_then(|addr| Addr::from_bytes(addr).ok());
        let read = RxmConnReq::read(data).map_err(|why| (why.to_string(), RejectReason::of(why)));
        let read = read.and_then(|call| {
            let limit = self.common.config.eager_limit as u32;
            match from.clone() {
                _ if call.key != self.identity.key => {
                    let why = if call.own { RejectReason::OtherKey } else { RejectReason::Refused };
                    Err(("another authorization key (auth_key)".to_owned(), why))
                }
                _ if call.eager_limit != limit => {
                    let theirs = call.eager_limit;
                    let why = format!("FI_OFI_RXM_BUFFER_SIZE is {theirs} there and {limit} here");
                    Err((why, RejectReason::Refused))
                }
                Some(from) if call.port != 0 => Ok((from, call)),
                _ => Err(("no address to know it by".to_owned(), RejectReason::Refused)),
            }
        });
        let (mut addr, call) = match read {
            Ok(read) => read,
            Err((why, reject_reason)) => {
                ofi_provider::log_sparsely!(
                    &RXM,
                    WARN,
                    EP_CTRL,
                    "refused the call of {}: {why}",
                    peer_text(from)
                );
                self.refuse(&info, reject_reason);
                return;
            }
        };
        addr.set_port(call.port);
        let addr = addr.identity();
        if !call.contexts.are_first() {
            self.context_called(info, addr, call);
            return;
        }
        if call.index > 0 {
            further_calls::answer(self, &info, &addr, &call);
            return;
        }
        let mut peer = self.peers.peer_at(self.av.as_deref(), addr.clone(), &mut self.matcher);
        if self.conns.get(self.peers[peer].conn).is_some_and(|conn| conn.link == Link::Closing) {
            idle_closer::end_if_closed(self, self.peers[peer].conn);
            peer = self.peers.peer_at(self.av.as_deref(), addr.clone(), &mut self.matcher);
        }
        let id = self.peers[peer].conn;
        let known = self.conns.get(id);
        let caller = process_of(call.conn_id);
        let incoming = IncomingConnReq {
            order: connect_order(&addr, &own_addr(&self.identity.local, &info)),
            // Peers of this protocol do not tell of firewalls.
            peer_behind_firewall: false,
            behind_firewall: false,
            same_process: known.is_none_or(|conn| conn.process.may_be(caller)),
        };
        match incoming.answer(known.map_or(LocalConnState::None, RxmConn::own_call)) {
            ConnReqDecision::Accept => self.called_anew(peer, &info, &call),
            ConnReqDecision::Replace if call.closes && self.conns[id].link == Link::Calling => {
                idle_closer::replace_attempt(self, id, &info, &call);
            }
            ConnReqDecision::Replace => {
                // The transfers that wait stay with the connection.
                self.conns.drop_link(id);
                self.accept_or_refuse(id, &info, &call);
            }
            ConnReqDecision::Crossing => {
                match self.conns.new_conn(&mut self.peers, peer, Link::Accepting) {
                    Ok(id) => self.accept_or_refuse(id, &info, &call),
                    Err(_) => self.refuse(&info, RejectReason::Unspecified),
                }
            }
            ConnReqDecision::Reject => self.refuse(&info, RejectReason::Already),
            ConnReqDecision::Restarted => {
                self.ended(id, Error::CONNRESET);
                // Ending the other connection may have forgotten a peer without a name.
                let peer = self.peers.peer_at(self.av.as_deref(), addr, &mut self.matcher);
                self.called_anew(peer, &info, &call);
            }
        }
    }

    fn called_anew(&mut self, peer: u32, info: &InfoBuf, call: &RxmConnReq) {
        let Ok(id) = self.conns.new_conn(&mut self.peers, peer, Link::Accepting) else {
            self.refuse(info, RejectReason::Unspecified);
            return;
        };
        self.peers[peer].conn = id;
        self.accept_or_refuse(id, info, call);
    }

    pub(super) fn accept_or_refuse(&mut self, id: u32, info: &InfoBuf, call: &RxmConnReq) {
        if !self.accept(id, info, call) {
            self.refuse(info, RejectReason::Unspecified);
        }
    }

    /// Rejects a connection request.
    pub(super) fn refuse(&self, info: &InfoBuf, why: RejectReason) {
        if let Some(pep) = self.core.as_ref().and_then(|core| core.pep.as_ref()) {
            // The caller may be gone already.
            let _ = pep.reject(info, &why.write());
        }
    }

    /// Accepts a connection request on an existing connection. Returns false if the resources are
    /// missing: the connecting peer is to be notified, and then tries again.
    pub(super) fn accept(&mut self, id: u32, info: &InfoBuf, call: &RxmConnReq) -> bool {
        self.connects.remove_rejected(id);
        let conn = &mut self.conns[id];
        conn.link = Link::Accepting;
        conn.remote_id = packet_id(call.conn_id);
        conn.process = process_of(call.conn_id);
        (conn.swapped, conn.ours, conn.multicast) = (call.swapped, call.ours, call.multicast);
        (conn.usage.closes, conn.usage.is_dialed) = (call.closes, false);
        let accepted = info.as_ref().to_owned().and_then(|info| {
            self.conns.open_link(self.core.as_ref(), id, info, self.identity.local_paths)?;
            self.conns.count_credits(id, call.flow_control);
            let data = Accept {
                conn_id: self.conns.conn_id(id),
                rx_size: self.common.rx_buffers(self.core.as_ref().is_some_and(RxmCore::is_shared))
                    as u32,
                flow_control: self.common.flow_control(),
                swapped: false,
                ours: true,
                multicast: call.multicast && self.identity.attr.multicast,
                closes: true,
            };
            match &self.conns[id].ep {
                Some(ep) => ep.accept(&data.write(call.own)),
                None => Err(Error::OPBADSTATE),
            }
        });
        if let Err(error) = accepted {
            // If the core could not open an endpoint for the request, the request is still there.
            let answered = self.conns[id].ep.is_some();
            self.ended(id, error);
            return answered;
        }
        self.limit.opened();
        true
    }

    fn connected(&mut self, id: u32, data: &[u8]) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.usage.is_replaced && !idle_closer::resume_replaced(self, id) {
            self.ended(id, Error::CANCELED);
            return;
        }
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.is_probe {
            self.conns.probe_answered(id, PeerSupport::Unsupported);
            self.ended(id, Error::CANCELED);
            return;
        }
        match conn.link {
            Link::Calling => match Accept::read(data, conn.own) {
                Ok(accept) => {
                    conn.swapped = accept.swapped;
                    (conn.ours, conn.multicast) = (accept.ours, accept.multicast);
                    conn.usage.closes = accept.closes;
                    conn.remote_id = packet_id(accept.conn_id);
                    conn.process = process_of(accept.conn_id);
                    self.conns.count_credits(id, accept.flow_control);
                }
                Err(why) => {
                    ofi_provider::log_sparsely!(
                        &RXM,
                        WARN,
                        EP_CTRL,
                        "a peer answered our call with {why}"
                    );
                    self.ended(id, Error::PROTO);
                    return;
                }
            },
            Link::Accepting => {}
            Link::Refused | Link::Connected | Link::Closing | Link::Ended => return,
        }
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.link = Link::Connected;
        conn.retry.made();
        let (index, peer) = (conn.index, conn.peer);
        self.conns.note_established();
        if index > 0 {
            ofi_provider::log!(&RXM, INFO, EP_CTRL, "made connection {index} to a peer");
            self.conns.further_established(id);
        } else if let Some(peer) = self.peers.get(peer) {
            peer.trace_connected(self.matcher.completions.trace_ids());
        }
        self.flush(id);
    }

    /// Handles the failure of a call of ours: calls again, now or later, or ends the connection.
    fn call_failed(&mut self, id: u32, error: Error, data: &[u8]) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let refused = RejectReason::read(data);
        if conn.usage.is_replaced {
            self.ended(id, Error::CANCELED);
            return;
        }
        if conn.first != 0 {
            let refuses = refused == Some(RejectReason::Refused);
            let support = if refuses { PeerSupport::Supported } else { PeerSupport::Unsupported };
            match conn.is_probe {
                true => self.conns.probe_answered(id, support),
                false => self.conns.further_failed(id, refuses),
            }
            self.ended(id, error);
            return;
        }
        // The call is repeated in the version of connection data that either byte order
        // understands.
        let in_own = refused == Some(RejectReason::OtherOrder) && !conn.own;
        conn.own |= in_own;
        let (link, rejections, now) = (conn.link, conn.retry.rejections(), clock());
        let again = link == Link::Calling
            && match refused {
                _ if in_own => conn.retry.refused_form(now, &RETRY),
                Some(RejectReason::Already | RejectReason::Unspecified) => {
                    conn.retry.refused(now, &RETRY).is_some()
                }
                _ => false,
            };
        if !again {
            ofi_provider::log!(
                &RXM,
                INFO,
                EP_CTRL,
                "a connection failed: {error} ({refused:?}; {link:?}, {rejections} refusals before)"
            );
            let keys = refused == Some(RejectReason::OtherKey);
            idle_closer::peer_ended(self, id, if keys { Error::KEYREJECTED } else { error });
            return;
        }
        conn.link = Link::Refused;
        self.conns.drop_link(id);
        self.connects.push_rejected(id);
    }

    fn call_refused_again(&mut self) {
        let now = clock();
        for id in self.connects.take_rejected() {
            let refused = |conn: &&mut RxmConn| conn.link == Link::Refused;
            let Some(conn) = self.conns.get_mut(id).filter(refused) else { continue };
            if !conn.retry.take_due(now) {
                self.connects.push_rejected(id);
            } else if !idle_closer::may_call(self) {
                idle_closer::wait_in_line(self, id);
            } else if let Err(error) = idle_closer::start_or_wait(self, id) {
                self.ended(id, error);
            }
        }
    }

    /// Ends a connection reported as closed by the core, and everything depending on it.
    pub(super) fn ended(&mut self, id: u32, error: Error) {
        let Some(name) = self.conns.get(id).map(|conn| conn.name(id)) else { return };
        // Data received before the end counts.
        self.drain_core();
        // Draining the core's queue may have ended the connection already, and another may have its
        // index by now.
        if came_on(&self.conns, name.into()).is_some() {
            self.end(id, error);
        }
    }

    /// Ends a connection with all its messages taken from the core. Its messages blocked on space
    /// in the completion queue are received first; the connection has no other use from now on. The
    /// cost is independent of the number of other connections.
    pub(super) fn end(&mut self, id: u32, error: Error) {
        if self.conns.get(id).is_some_and(|conn| conn.link == Link::Closing) {
            self.conns.set_closing(id, false);
        }
        let Some(conn) = self.conns.get_mut(id) else { return };
        let link = std::mem::replace(&mut conn.link, Link::Ended);
        let source = u64::from(conn.name(id));
        if link != Link::Ended {
            for further in self.conns.all_further(id) {
                self.end(further, error);
            }
            self.end_transfers(id, link, error);
        }
        // Further connections may have the missing segments of messages.
        if self.parked.has_from(source) || !self.conns.all_further(id).is_empty() {
            self.ending.push((id, error));
            return;
        }
        self.forget_conn(id, error);
    }

    #[inline(never)]
    fn forget_conn(&mut self, id: u32, error: Error) {
        self.conns.remove_further(id);
        let Some(mut conn) = self.conns.remove(id) else { return };
        self.conns.drop_early(&mut conn);
        self.peers.detach(conn.peer, id);
        self.fetches.lose_messages_of(&mut self.matcher, &mut self.conns, (id, &mut conn), error);
        let unconnected = self.peers.get(conn.peer).is_none_or(|peer| peer.conns == 0);
        if conn.was_made && unconnected && !conn.usage.is_closed {
            if let Some(later) = self.matcher.completions.internal_ops() {
                later.lost(self.peers.name_of(conn.peer), error);
            }
        }
        self.peers.forget_if_unused(conn.peer, &mut self.matcher);
    }

    /// Ends connections with all their messages received now.
    pub(super) fn end_received(&mut self) {
        for (id, error) in std::mem::take(&mut self.ending) {
            // Another connection may have the index by now.
            if self.conns.get(id).is_some_and(|conn| conn.link == Link::Ended) {
                self.end(id, error);
            }
        }
    }

    /// Releases the core's endpoint of a connection, and fails the transfers on it; `link` is the
    /// stage reached by the connection.
    #[inline(never)]
    fn end_transfers(&mut self, id: u32, link: Link, error: Error) {
        let conn = &mut self.conns[id];
        conn.was_made = link == Link::Connected;
        let (waiting, urgent) =
            (std::mem::take(&mut conn.waiting), std::mem::take(&mut conn.urgent));
        let (ep, ops) = (conn.ep.take(), conn.ops);
        conn.usage.open = None;
        let (peer, made) = (conn.peer, conn.was_made);
        if !made {
            self.connects.remove_rejected(id);
        }
        self.conns.note_end(id, made);
        #[cfg(test)]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::LeakedConnection) {
            self.peers.attach(peer);
        }
        let conn = &self.conns[id];
        self.past.add(&conn.sent, &conn.received);
        let is_first = conn.first == 0;
        if made && is_first && error != Error::CANCELED {
            let peer = self.peers.get(peer).map(|peer| peer.addr.for_people());
            self.tx.note_lost(error, peer);
        }
        self.peers.release(peer, id);
        // After this the core uses no memory of the connection's transfers.
        if let Some(ep) = ep {
            for (token, buf) in ep.close() {
                self.conns.release(buf);
                if let Token::RendezvousGet(fetch) = Token::from_u64(token) {
                    self.fetches.fetch_part_done(
                        &mut self.matcher,
                        &mut self.conns,
                        fetch,
                        None,
                        Some(error),
                    );
                }
            }
        }
        for waiting in urgent.into_iter().chain(waiting) {
            if let Waiting::Packet(buf, _, _) = waiting {
                self.conns.release(Some(buf));
            }
        }
        if ops > 0 {
            self.tx.fail_ops_of(&mut self.conns, id, error);
        }
        if !is_first && (self.tx.has_via(id) || self.fetches.has_via(id)) {
            // The transfers end with the first connection.
            let first = self.conns.first_of(id);
            let open = |first: &u32| self.conns[*first].link != Link::Ended;
            if let Some(first) = first.filter(open) {
                self.end(first, error);
            }
        }
    }
}
