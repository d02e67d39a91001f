//! Ends of connections, and of the transfers under way on them.
use super::arrival::StreamUnexpected;
use super::conn::StreamConn;
use super::device_recv::DeviceTarget;
use super::ep::StreamEpKind;
use super::incoming::MessageTarget;
use super::rx_path::RxPath;
use super::tx_path::{TxFailure, TxPath, TxResult};
use crate::transport::{ByteLink, LinkPoller, ShmLink, ShmTransport};
use ofi_provider::abi::FI_SHUTDOWN;
use ofi_provider::closing::Undelivered;
use ofi_provider::eq::EqEvent;
use ofi_provider::error::Error;
use ofi_provider::slab::NONE;
use std::time::Duration;

/// Time limit of operations awaiting the response of a disconnected peer, if the next message
/// before the response waits for a receive.
const ANSWER_GRACE: Duration = Duration::from_secs(3);

impl<N: ShmTransport> TxPath<N> {
    /// Returns the transfers still to be delivered to peers, waiting for a connection or for buffer
    /// space ([`TxRequest::is_due`](super::transfer::TxRequest::is_due)).
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

    /// The connections of an endpoint.
    pub(super) fn conns_of(&self, ep_id: u32) -> Vec<u32> {
        self.each_conn_of(ep_id).map(|(id, _)| id).collect()
    }

    /// The connections of an endpoint. A MSG endpoint's only one is not searched for: there may be as
    /// many endpoints as connections.
    pub(super) fn each_conn_of(&self, ep_id: u32) -> impl Iterator<Item = (u32, &StreamConn<N>)> {
        let ep = &self.eps[ep_id];
        let only = (ep.identity.kind == StreamEpKind::Msg).then_some(ep.conn);
        let all = only.is_none().then(|| self.io.conns.iter()).into_iter().flatten();
        let found = only.and_then(|id| self.io.conns.get(id).map(|conn| (id, conn)));
        found.into_iter().chain(all).filter(move |(_, conn)| conn.ep == ep_id)
    }

    /// Marks a connection as established ([`StreamConn::connected`]), with the properties of its
    /// endpoint.
    pub(super) fn set_connected(&mut self, id: u32) {
        let conn = &mut self.io.conns[id];
        let ep = &self.eps[conn.ep];
        conn.connected(self.io.net.is_ring(), ep.is_fast());
        conn.link.set_traffic_class(ep.identity.class);
        ep.trace_connected(&self.io.conns[id]);
        self.io.check_silence_later(id);
    }

    /// Makes a connection the peer's.
    pub(super) fn attach(&mut self, id: u32, peer: u32) {
        let conn = &mut self.io.conns[id];
        conn.peer = peer;
        self.eps[conn.ep].peers.attach(peer);
    }

    /// Takes a connection out of the engine without reporting anything; its transfers are the
    /// caller's to end.
    #[inline(never)]
    pub(super) fn drop_conn(&mut self, id: u32) -> Option<Box<StreamConn<N>>> {
        // The stacks of callers have no room for it.
        let mut conn = Box::new(self.io.conns.remove(id)?);
        conn.count_recovery(&mut self.eps[conn.ep].recovered);
        self.eps[conn.ep].past.add(&conn.sent, &conn.received);
        self.backlog.clear(&mut conn.backlog);
        self.eps[conn.ep].peers.detach(conn.peer, id);
        self.release_transfers(conn.ep, conn.peer, id);
        self.resume_replaced(conn.ep, conn.peer, id);
        self.io.limit.ended();
        self.io.net.poller().remove(conn.link.id());
        self.io.active.remove(id);
        self.io.blocked.remove(id);
        self.batcher.remove(id);
        if !self.io.listeners.paused().is_empty() {
            // There is a descriptor again.
            self.io.wake_in(Duration::ZERO);
        }
        Some(conn)
    }

    /// Ends sending on a connection still read to its end. Transfers queued on it fail with
    /// `error`. Later transfers to the peer use another connection.
    pub(super) fn end_sending(&mut self, id: u32, error: Error) {
        let Some(conn) = self.io.conns.get_mut(id) else { return };
        conn.fetched = 0;
        self.backlog.clear(&mut conn.backlog);
        conn.retained = 0;
        let ep = &mut self.eps[conn.ep];
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
        if ep.peers.get(conn.peer).is_some_and(|peer| peer.conns == 1) {
            if let Some(later) = ep.matcher.completions.internal_ops() {
                later.lost(ep.matcher.senders.name_of(conn.peer), error);
            }
        }
        self.stop_sending(id);
    }

    /// Sends nothing more on a connection without queued transfers, still read to its end. Later
    /// transfers to the peer use another connection.
    pub(super) fn stop_sending(&mut self, id: u32) {
        let Some(conn) = self.io.conns.get_mut(id) else { return };
        conn.sends_no_more = true;
        conn.fast_below = 0;
        self.eps[conn.ep].peers.release(conn.peer, id);
        self.io.watch(id);
    }

    /// Fails the operations with pending responses from a disconnected peer. Later responses to
    /// them are ignored, and nothing more is sent.
    pub(super) fn end_awaiting(&mut self, id: u32, error: Error) {
        if self.io.conns.get(id).is_some_and(|conn| !conn.sends_no_more) {
            self.end_sending(id, error);
        }
        let Some(conn) = self.io.conns.get_mut(id) else { return };
        conn.ignores_answers = true;
        let left: Vec<_> = conn.awaiting().collect();
        let ep = &mut self.eps[conn.ep];
        for finish in left {
            ep.finish_tx(&finish, Err(error));
        }
    }

    /// Handles the end of a peer on an unread connection, blocked by a message waiting for a
    /// receive. Operations in flight to the peer end; data already received stays. Operations
    /// awaiting the peer's response get [`ANSWER_GRACE`]: the response may follow the blocking
    /// message.
    pub(super) fn look_for_end(&mut self, id: u32) {
        let Some(conn) = self.io.conns.get(id).filter(|conn| conn.blocked) else { return };
        let (unsent, awaits) = (conn.is_exposing() || conn.has_unsent(), conn.awaits_answers());
        // The link is asked first: nothing else has it use a new socket while it is not read.
        if !conn.link.has_ended() || !(unsent || awaits) {
            return;
        }
        if unsent {
            self.end_sending(id, Error::CONNRESET);
        }
        let now = self.io.net.now();
        let Some(conn) = self.io.conns.get_mut(id).filter(|conn| conn.awaits_answers()) else {
            return;
        };
        let [came, _] = conn.received.get();
        match conn.ended_at {
            Some((at, before)) if before == came => {
                if now >= at + ANSWER_GRACE {
                    self.end_awaiting(id, Error::CONNRESET);
                }
            }
            // The application takes messages: the answer may be next.
            _ => conn.ended_at = Some((now, came)),
        }
    }

    /// Polls the connections with an end possibly not reported by the poller, and again later while
    /// there are some.
    pub(super) fn look_for_hidden_ends(&mut self) {
        for (id, serial) in self.io.blocked.take_hidden() {
            if self.io.conns.named((id, serial)).is_some() {
                self.look_for_end(id);
                // Notes it again if it still is one.
                self.io.watch(id);
                self.io.look_for_later(id);
            }
        }
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Ends a connection if it cannot go on after sending.
    #[inline]
    pub(super) fn conclude(&mut self, sent: TxResult) {
        if let Err(failure) = sent {
            self.end_failed(failure);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_failed(&mut self, failure: TxFailure) {
        match failure {
            TxFailure::Link(id, error) => self.sent_without_effect(id, error),
            TxFailure::Connection(id, error) => self.fail(id, error),
        }
    }

    /// Sends the data queued on a connection ([`TxPath::flush`]). Returns true if anything was sent
    /// or the connection has ended.
    pub(super) fn flush(&mut self, id: u32) -> bool {
        match self.tx.flush(id) {
            Ok(moved) => moved,
            Err(failure) => {
                self.end_failed(failure);
                true
            }
        }
    }

    /// Sends the data queued on an endpoint's connections, as far as links accept it. Injected
    /// messages are complete for the application, so they must be sent.
    pub(super) fn flush_ep(&mut self, ep_id: u32) {
        let ids = self.tx.conns_of(ep_id);
        self.flush_conns(&ids);
    }

    pub(super) fn flush_conns(&mut self, ids: &[u32]) {
        for &id in ids {
            if self.tx.io.conns.is_connected(id) {
                self.flush_last(id);
            }
        }
    }

    /// Ends a connection: everything under way on it fails with `error`. All other connections
    /// go on.
    pub(super) fn fail(&mut self, id: u32, error: Error) {
        let Some(conn) = self.tx.io.conns.get(id) else { return };
        if conn.usage.is_ending() {
            return self.end_idle(id);
        }
        // A connection closed by this process is not lost.
        if conn.is_connected() && error != Error::CANCELED {
            let ep = &mut self.tx.eps[conn.ep];
            let peer = ep.published_peer(conn);
            ep.errors.lost(ep.matcher.completions.trace_ids(), error, peer);
        }
        match self.tx.eps[conn.ep].identity.kind {
            StreamEpKind::Msg => self.msg_failed(id, error, Vec::new()),
            StreamEpKind::Rdm | StreamEpKind::Srx => {
                if let Some(mut conn) = self.tx.drop_conn(id) {
                    self.end_transfers(&mut conn, error);
                    let ep = &mut self.tx.eps[conn.ep];
                    if conn.is_connected()
                        && ep.peers.get(conn.peer).is_some_and(|peer| peer.conns == 0)
                    {
                        if let Some(later) = ep.matcher.completions.internal_ops() {
                            later.lost(ep.peers.name_of(conn.peer), error);
                        }
                    }
                    ep.forget_peer_if_unused(conn.peer);
                    self.tx.eps.peer_left(conn.ep, conn.peer);
                }
            }
        }
    }

    /// Ends a connection without anything in flight.
    #[inline(never)]
    pub(super) fn end_idle(&mut self, id: u32) {
        let Some(mut conn) = self.tx.drop_conn(id) else { return };
        self.tx.io.end_link(&conn.link);
        self.end_transfers(&mut conn, Error::CONNRESET);
        let (ep_id, peer) = (conn.ep, conn.peer);
        drop(conn);
        self.tx.eps[ep_id].forget_peer_if_unused(peer);
        self.tx.eps.peer_left(ep_id, peer);
    }

    #[inline(never)]
    pub(super) fn end_transfers(&mut self, conn: &mut StreamConn<N>, error: Error) {
        self.lose_incoming(conn, error);
        let ep = &mut self.tx.eps[conn.ep];
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
    pub(super) fn msg_failed(&mut self, id: u32, error: Error, data: Vec<u8>) {
        let Some(mut conn) = self.tx.drop_conn(id) else { return };
        let ep_id = conn.ep;
        let was_connected = conn.is_connected();
        self.end_transfers(&mut conn, error);
        drop(conn);
        self.tx.eps[ep_id].conn = NONE;
        if was_connected {
            self.tx.eps[ep_id].matcher.end();
        }
        self.cancel_all(ep_id);
        let ep = &self.tx.eps[ep_id];
        if !was_connected {
            return ep.report_not_connected(error, data);
        }
        if let Some(eq) = &ep.eq {
            // The side that called fi_shutdown gets FI_SHUTDOWN as well, as from the original.
            let event = FI_SHUTDOWN as u32;
            eq.write(EqEvent::Cm { event, fid: ep.fid, info: None, data });
        }
    }

    /// Sends the remaining data of a connection before it ends. Injected messages are complete for
    /// the application, so they must be sent.
    pub(super) fn flush_last(&mut self, id: u32) {
        self.flush(id);
        if let Some(conn) = self.tx.io.conns.get(id) {
            if conn.link.tx_over_shm() && conn.has_unsent() {
                conn.link.send_trailing_on_socket();
                self.flush(id);
            }
        }
    }

    /// Takes all posted receives back, as when a connection is over for good.
    pub(super) fn cancel_all(&mut self, ep_id: u32) {
        let taken = self.tx.eps[ep_id].matcher.cancel_all();
        taken.into_iter().for_each(|matched| self.match_message(matched));
    }

    /// Drops all posted receives and claimed messages without further reports.
    pub(super) fn empty_matcher(&mut self, ep_id: u32) {
        self.cancel_all(ep_id);
        let unclaimed = self.tx.eps[ep_id].matcher.unclaim_all();
        unclaimed.into_iter().for_each(|matched| self.match_message(matched));
    }

    /// Ends, with `error`, the operations arriving on a closed connection: receives and reads fail,
    /// and incomplete unexpected messages are dropped.
    pub(super) fn lose_incoming(&mut self, conn: &mut StreamConn<N>, error: Error) {
        let ep = &mut self.tx.eps[conn.ep];
        let under_way =
            conn.incoming.take().into_iter().chain(conn.expected.drain().map(|(_, i)| i));
        let mut buffered = None;
        for incoming in under_way {
            match incoming.target {
                MessageTarget::Posted(recv) => ep.matcher.failed(&recv, &incoming.envelope, error),
                MessageTarget::Answer(_, finish) => ep.finish_tx(&finish, Err(error)),
                MessageTarget::Device(recv) => match recv.finish().0 {
                    DeviceTarget::Posted(recv) => {
                        ep.matcher.failed(&recv, &incoming.envelope, error)
                    }
                    DeviceTarget::Answer(finish) => ep.finish_tx(&finish, Err(error)),
                    DeviceTarget::Region(_) => {}
                },
                MessageTarget::Collected(_) => ep.matcher.queues.collected(incoming.envelope.len),
                MessageTarget::Buffered(number) => {
                    buffered = Some((incoming.envelope.queue(), number))
                }
                MessageTarget::Region(_) | MessageTarget::Atomic(_) | MessageTarget::Discard => {}
            }
        }
        let waiting = conn.at_sender.drain().map(|(_, position)| position);
        for (queue, number) in buffered.into_iter().chain(waiting) {
            ep.matcher.lose(
                queue,
                number,
                |buffered| buffered.body = StreamUnexpected::Lost(Error::CONNRESET),
                error,
            );
        }
    }

    /// Ends a connection after sending failed with `error`. Data sent by the peer on it before is
    /// received first.
    #[cold]
    pub(super) fn sent_without_effect(&mut self, id: u32, error: Error) {
        if self.staging.is_taken() || self.tx.hearing == id {
            // The connection is being read just now, or what was read of it before is understood: what
            // comes behind that must not overtake it. Reading finds the end by itself.
            return;
        }
        while self.tx.io.conns.get(id).is_some_and(|conn| !conn.blocked) && self.read(id) {}
        match self.tx.io.conns.get(id) {
            // A message on it waits for a receive: the end of the stream is read behind that.
            Some(conn) if conn.blocked => self.tx.end_sending(id, error),
            _ => self.fail(id, error),
        }
    }
}
