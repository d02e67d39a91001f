//! Sending of early data.
//!
//! Without it a first message leaves in a later progress iteration of its sender, after the response. A
//! sender without further calls would delay it. The peer reads early data after accepting the request;
//! a rejection discards it with the link. So its transfers stay in the connection's queue: they
//! complete with the response, and are sent again on another connection after a rejection.
//!
//! Links with early data are sockets of one host: the end of the requester's direction is known to the peer
//! at once, and a sent response arrives. So a requester withdraws its request, and a peer drops a request
//! withdrawn before its response.
use super::conn::Stage;
use super::ep::StreamEpKind;
use super::trace::trace;
use super::traffic::count_header;
use super::tx_path::TxPath;
use crate::transport::{ByteLink, ShmLink, ShmTransport};
use crate::wire::ByteOrder;
use ofi_provider::buf::{CopyMode, GatherList};
use std::cell::OnceCell;

/// Sender of the early data of an engine's connections.
pub(super) struct EarlySender<'a, N: ShmTransport> {
    tx: &'a mut TxPath<N>,
}

impl<'a, N: ShmTransport> EarlySender<'a, N> {
    pub(super) fn new(tx: &'a mut TxPath<N>) -> Self {
        Self { tx }
    }

    /// Returns true if early data may follow the request of a connection: of a reliable datagram endpoint,
    /// on a link without frames, unless the peer has rejected a request.
    pub(super) fn may_send(&self, id: u32) -> bool {
        let Some(conn) = self.tx.io.conns.get(id) else { return false };
        let ep = &self.tx.eps[conn.ep];
        let is_rejected = |peer| ep.peers.get(peer).is_none_or(|peer| peer.extra.is_rejected());
        N::Link::settings().early_data > 0
            && ep.identity.kind == StreamEpKind::Rdm
            && !is_rejected(conn.peer)
            && !self.tx.io.net.offers_rails(&conn.link)
    }

    /// Sends queued messages of a connection awaiting its response, as far as the link accepts them.
    /// The response, or the end of the link, reports errors.
    #[cold]
    pub(super) fn send(&mut self, id: u32) {
        let most = N::Link::settings().early_data;
        let Some(conn) = self.tx.io.conns.get_mut(id) else { return };
        if conn.stage != Stage::AwaitResponse
            || conn.usage.is_replaced
            || !conn.early.is_announced()
        {
            return;
        }
        for outgoing in &mut conn.tx {
            if outgoing.wire_len == 0 {
                if !outgoing.can_be_early() {
                    return;
                }
                outgoing.header.id = conn.tx_id;
                outgoing.wire_len = outgoing.header.write(ByteOrder::Native, &mut outgoing.wire);
                if !conn.early.has_space(outgoing.total(), most) {
                    outgoing.restart();
                    return;
                }
                conn.tx_id = conn.tx_id.wrapping_add(1);
            }
            let left = outgoing.total() - outgoing.sent;
            if left == 0 {
                continue;
            }
            let (opened, mut list) = (OnceCell::new(), GatherList::default());
            if outgoing.gather(&mut list, &self.tx.regions, &opened).is_err() {
                return;
            }
            let sent = conn.link.send_list(&mut list, CopyMode::Copied).unwrap_or(0);
            outgoing.sent += sent;
            conn.early.count(sent);
            if sent < left {
                return;
            }
        }
    }

    /// Completes the messages sent before the response accepting the connection.
    pub(super) fn complete(&mut self, id: u32) {
        let Some(conn) = self.tx.io.conns.get_mut(id) else { return };
        let Some(sent) = conn.early.end() else { return };
        conn.link.count_early(sent);
        for outgoing in conn.tx.iter().take_while(|outgoing| outgoing.wire_len > 0) {
            count_header(&conn.sent, &outgoing.header);
            trace("to", &conn.link, &outgoing.header);
        }
        self.tx.account(id, &mut 0);
    }
}
