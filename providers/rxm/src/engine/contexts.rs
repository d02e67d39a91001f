//! Contexts of scalable endpoints (fi_endpoint(3)).
//!
//! Transmit and receive context of the same index are one [`RxmEngineEp`], so that what
//! they do passes the ways of any endpoint. The first is in all an endpoint that
//! is not scalable: it listens, and peers that know nothing of contexts talk with
//! it. Any other pair of contexts, of a sender and of a receiver, gets a
//! connection of its own, on which only the one sends messages to the other. It
//! is made like all others, from the sender to the listener; the connection data
//! name both, in a version that only this library understands.
use super::conn::{Link, SegmentTarget};
use super::ep::RxmEngineEp;
use super::pending::Handed;
use crate::wire::{Refusal, RxmCall};
use ofi_provider::addr::Addr;
use ofi_provider::api::ContextAttr;
use ofi_provider::contexts::{Contexts, Half};
use ofi_provider::error::Error;
use ofi_provider::info::InfoBuf;
use ofi_provider::slab::NONE;

impl RxmEngineEp {
    /// What a connection to this peer is between.
    pub(super) fn contexts_to(&self, peer: u32) -> Contexts {
        self.place.to(self.peers[peer].rx)
    }

    /// A transmit context calls, for a receive context of ours.
    pub(super) fn context_called(&mut self, info: InfoBuf, addr: Addr, call: RxmCall) {
        match self.place.receiver(call.contexts.rx, NONE) {
            Some(NONE) => {
                if !self.accept_context(&info, addr, &call) {
                    self.refuse(&info, Refusal::Unspecified);
                }
            }
            Some(receiver) => self.handed.push(Handed { receiver, info, addr, call }),
            None => self.refuse(&info, Refusal::Refused),
        }
    }

    /// A connection of its own for a transmit context's messages to this one. False if there is
    /// none to be had: the endpoint that listens is to say so.
    pub(super) fn accept_context(&mut self, info: &InfoBuf, addr: Addr, call: &RxmCall) -> bool {
        let peer = self.peer_at(addr);
        match self.new_conn(peer, Link::Accepting) {
            Ok(id) => self.accept(id, info, call),
            Err(_) => false,
        }
    }

    /// Half of it is opened as a context like this.
    pub(crate) fn become_context(&mut self, attr: &ContextAttr) {
        let (own, inbox) = (&mut self.identity.attr, &mut self.inbox);
        own.become_context(attr, self.common.config.eager_limit, inbox, &self.peers);
    }

    /// A context is closed.
    pub(crate) fn close_half(&mut self, half: Half) {
        match half {
            Half::Transmit => self.close_tx(),
            Half::Receive => self.close_rx(),
        }
    }

    /// A transmit context is closed: what was posted to it is dropped silently.
    fn close_tx(&mut self) {
        self.ledger.mute();
        let ids: Vec<u32> = self.conns.iter().map(|(id, _)| id).collect();
        for id in ids {
            if self.conns.get(id).is_some_and(|conn| conn.link == Link::Connected) {
                // What was injected is complete for the application.
                self.flush(id);
            }
            if self.conns.get(id).is_some_and(|conn| conn.ops > 0) {
                self.ended(id, Error::CANCELED);
            }
        }
        self.ledger.close();
    }

    /// A receive context is closed: what was posted to it is dropped silently, and
    /// with it the connections where some of that is being filled.
    fn close_rx(&mut self) {
        self.inbox.ledger.mute();
        let ids: Vec<u32> = self.conns.iter().map(|(id, _)| id).collect();
        for id in ids {
            if self.is_filling(id) {
                self.ended(id, Error::CANCELED);
            }
        }
        let discarded = [self.inbox.cancel_all(), self.inbox.unclaim_all()];
        discarded.into_iter().flatten().for_each(|meeting| self.meet(meeting));
        self.inbox.ledger.close();
    }

    /// Whether a posted receive is being filled from a connection.
    fn is_filling(&self, id: u32) -> bool {
        let arriving = |conn: &super::conn::RxmConn| {
            conn.partial.iter().any(|partial| matches!(partial.target, SegmentTarget::Recv(_)))
        };
        self.conns.get(id).is_some_and(arriving)
            || self.fetches.iter().any(|(_, fetch)| fetch.conn == id)
    }
}
