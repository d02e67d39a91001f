//! Contexts of scalable endpoints (fi_endpoint(3)).
//!
//! The transmit and the receive context of the same index are one [`RxmEngineEp`], so their
//! operations share the code of ordinary endpoints. Context 0 behaves like a non-scalable endpoint:
//! it listens, and peers without support for contexts connect to it.
//!
//! Any other pair of a sender's and a receiver's context has its own connection, with messages in
//! one direction only. The sender connects to the receiver's listener. The connection data name
//! both contexts, in a version understood only by this library.
use super::conn::{Link, RxmConn};
use super::ep::RxmEngineEp;
use super::pending::ContextConnReq;
use crate::wire::{RejectReason, RxmConnReq};
use ofi_provider::addr::Addr;
use ofi_provider::error::Error;
use ofi_provider::info::InfoBuf;
use ofi_provider::slab::NONE;

impl RxmEngineEp {
    /// Answers a call from a peer's transmit context for a receive context of this endpoint.
    pub(super) fn context_called(&mut self, info: InfoBuf, addr: Addr, call: RxmConnReq) {
        match self.context_index.receiver(call.contexts.rx, NONE) {
            Some(NONE) => {
                if !self.accept_context(&info, addr, &call) {
                    self.refuse(&info, RejectReason::Unspecified);
                }
            }
            Some(receiver) => self.handed.push(ContextConnReq { receiver, info, addr, call }),
            None => self.refuse(&info, RejectReason::Refused),
        }
    }

    /// Accepts a request as a new connection, for a transmit context's messages to this receive
    /// context. Returns false if there is no memory for one: the listening endpoint rejects the
    /// request.
    pub(super) fn accept_context(&mut self, info: &InfoBuf, addr: Addr, call: &RxmConnReq) -> bool {
        let peer = self.peers.peer_at(self.av.as_deref(), addr, &mut self.matcher);
        match self.conns.new_conn(&mut self.peers, peer, Link::Accepting) {
            Ok(id) => {
                self.conns[id].usage.is_receive_only = true;
                self.accept(id, info, call)
            }
            Err(_) => false,
        }
    }

    /// Closes a transmit context: its transfers are dropped without being reported.
    pub(crate) fn close_tx(&mut self) {
        self.tx.mute();
        let ids = self.conns.indices(|_| true);
        for id in ids {
            if self.conns.get(id).is_some_and(|conn| conn.link == Link::Connected) {
                // Injected messages are complete for the application, so they must leave.
                self.flush(id);
            }
            if self.conns.get(id).is_some_and(|conn| conn.ops > 0) {
                self.ended(id, Error::CANCELED);
            }
        }
        self.tx.close();
    }

    /// Closes a receive context: drops its receives without reporting them, and closes the
    /// connections filling some of them.
    pub(crate) fn close_rx(&mut self) {
        self.matcher.completions.mute();
        let ids = self.conns.indices(|_| true);
        for id in ids {
            if self.conns.get(id).is_some_and(RxmConn::is_filling)
                || self.fetches.sizes().any(|(conn, _)| conn == id)
            {
                self.ended(id, Error::CANCELED);
            }
        }
        let discarded = [self.matcher.cancel_all(), self.matcher.unclaim_all()];
        discarded.into_iter().flatten().for_each(|matched| {
            self.fetches.match_message(&mut self.matcher, &mut self.conns, &mut self.peers, matched)
        });
        self.matcher.completions.close();
    }
}
