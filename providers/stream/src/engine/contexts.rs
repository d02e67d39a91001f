//! Contexts of scalable endpoints (fi_endpoint(3)).
//!
//! The transmit and the receive context of the same index are one [`StreamEngineEp`], so their
//! operations share the code of ordinary endpoints. Context 0 behaves like a non-scalable endpoint:
//! it listens, and peers without support for contexts connect to it.
//!
//! Any other pair of a sender's and a receiver's context has its own connection, with messages in
//! one direction only. The sender connects to the receiver's listener. The request names both
//! contexts, and the sender by its endpoint's address.
use super::conn::StreamConn;
use super::ep::{StreamEngineEp, StreamIdentity};
use super::incoming::{MessageTarget, RxRequest};
use super::state::StreamState;
use crate::transport::ShmTransport;
use ofi_provider::api::ContextAttr;
use ofi_provider::contexts::Contexts;
use ofi_provider::error::{Error, Result};

impl StreamEngineEp {
    /// Returns the two contexts of a connection to this peer.
    pub(super) fn contexts_to(&self, peer: u32) -> Contexts {
        let rx = self.peers.get(peer).map_or(0, |peer| peer.rx);
        // A connected endpoint has no peers, and no contexts but 0.
        self.context_index.to(rx)
    }

    /// Sets the attributes of a newly opened transmit or receive context.
    pub(crate) fn become_context(&mut self, attr: &ContextAttr) {
        let (own, matcher) = (&mut self.identity.attr, &mut self.matcher);
        own.become_context(attr, usize::MAX, matcher, &self.peers);
    }
}

impl<N: ShmTransport> StreamConn<N> {
    /// Returns true if a transfer or receive of the application is in progress on the connection.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_sending() || self.is_filling()
    }

    /// Returns true if a transfer of the application is incomplete.
    fn is_sending(&self) -> bool {
        !self.is_settled()
            || !self.batch.is_empty()
            || self.tx.iter().any(|outgoing| !outgoing.finish.internal)
    }

    /// Returns true if a posted receive is being filled.
    fn is_filling(&self) -> bool {
        let posted = |incoming: &RxRequest| matches!(incoming.target, MessageTarget::Posted(_));
        self.incoming.as_ref().is_some_and(posted) || self.expected.values().any(posted)
    }
}

impl<N: ShmTransport> StreamState<N> {
    /// Starts listening for a scalable endpoint; all its contexts take its address.
    pub(crate) fn listen_for(&mut self, ids: &[u32]) -> Result {
        self.listen(ids[0])?;
        let StreamIdentity { local, behind_firewall, .. } = self.rx.tx.eps[ids[0]].identity.clone();
        for id in ids {
            let identity = &mut self.rx.tx.eps[*id].identity;
            (identity.local, identity.behind_firewall) = (local.clone(), behind_firewall);
        }
        Ok(())
    }

    /// Closes a transmit context: drops its transfers without reporting them, and closes the
    /// connections with such transfers in progress.
    pub(crate) fn close_tx(&mut self, ep_id: u32) {
        self.rx.tx.eps[ep_id].completions.mute();
        self.rx.flush_ep(ep_id);
        self.end_conns(ep_id, StreamConn::is_sending);
        self.rx.tx.eps[ep_id].fail_parked();
        self.rx.tx.eps[ep_id].completions.close();
    }

    /// Closes a receive context: drops its receives without reporting them, and closes the
    /// connections filling some of them.
    pub(crate) fn close_rx(&mut self, ep_id: u32) {
        self.rx.tx.eps[ep_id].matcher.completions.mute();
        self.end_conns(ep_id, StreamConn::is_filling);
        self.rx.empty_matcher(ep_id);
        self.rx.tx.eps[ep_id].matcher.completions.close();
    }

    /// Closes the connections of an endpoint with an operation in progress.
    fn end_conns(&mut self, ep_id: u32, is_concerned: fn(&StreamConn<N>) -> bool) {
        for id in self.rx.tx.conns_of(ep_id) {
            if self.rx.tx.io.conns.get(id).is_some_and(is_concerned) {
                self.rx.fail(id, Error::CANCELED);
            }
        }
    }
}
