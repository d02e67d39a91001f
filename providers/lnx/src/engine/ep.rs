//! Endpoint: its receives, and its endpoints at the cores.
use super::message::{LnxActiveRecv, LnxCompletions, LnxSrxStart, LnxUnexpected};
use super::peers::LnxPeers;
use crate::host_token::HostToken;
use ofi_provider::av::Av;
use ofi_provider::core_provider::ArrivingMessage;
use ofi_provider::link_addr::LinkAddr;
use ofi_provider::rx_matcher::{Envelope, Recv, RxMatcher};
use std::sync::Arc;

/// An endpoint of the engine.
pub(super) struct LnxEngineEp {
    pub(super) matcher: RxMatcher<LnxUnexpected>,
    pub(super) peers: LnxPeers,
    pub(super) tx_size: usize,
    pub(super) addr: Option<LinkAddr>,
    pub(super) beacon: Option<HostToken>,
    pub(super) av: Option<Arc<Av>>,
    pub(super) completions: Option<LnxCompletions>,
    /// Devices of peers on this host may read memory of devices (FI_OPT_FI_HMEM_P2P).
    pub(super) p2p: bool,
}

impl LnxEngineEp {
    pub(super) fn new(mut matcher: RxMatcher<LnxUnexpected>, tx_size: usize) -> Self {
        // Buffered messages are at the cores, with their own limits for unknown peers.
        matcher.senders.trust_all();
        Self {
            matcher,
            peers: LnxPeers::default(),
            tx_size,
            addr: None,
            beacon: None,
            av: None,
            completions: None,
            p2p: true,
        }
    }

    /// Returns the envelope of a message for the matching engine.
    fn envelope(&mut self, message: &ArrivingMessage) -> Envelope {
        let ArrivingMessage { tagged, src, len, tag, cq_data } = *message;
        let peer = self.peers.sender(src);
        Envelope { tagged, msg_tag: None, collective: false, tag, len, cq_data, peer }
    }

    /// Returns the receive matching an arriving message.
    pub(super) fn arrived(&mut self, message: &ArrivingMessage) -> Option<LnxActiveRecv> {
        let envelope = self.envelope(message);
        match self.matcher.take_posted(&envelope) {
            Some(recv) => {
                self.peers.hold(envelope.peer);
                Some(LnxActiveRecv { recv, envelope })
            }
            None => {
                self.settle(envelope.peer);
                None
            }
        }
    }

    /// Stores the entry of a message buffered at a core, or returns a matching receive posted while
    /// the core decided.
    pub(super) fn waits(
        &mut self,
        message: &ArrivingMessage,
        buffered: LnxUnexpected,
    ) -> Option<LnxActiveRecv> {
        let envelope = self.envelope(message);
        if let Some(recv) = self.matcher.take_posted(&envelope) {
            self.peers.hold(envelope.peer);
            return Some(LnxActiveRecv { recv, envelope });
        }
        self.matcher.buffer_unexpected(envelope, buffered);
        None
    }

    /// A receive is reported.
    pub(super) fn filled(&mut self, envelope: &Envelope) {
        self.peers.release(envelope.peer);
        self.settle(envelope.peer);
    }

    /// Removes an unused peer without a name.
    pub(super) fn settle(&mut self, peer: u32) {
        if !self.matcher.senders.has_buffered_from(peer) && self.peers.forget_if_unused(peer) {
            self.matcher.forget(peer);
        }
    }

    /// Handles the match of a buffered message with its receive, or its drop.
    pub(super) fn match_message(
        &mut self,
        ep: u32,
        queue: usize,
        message: u32,
        recv: Option<Recv>,
    ) -> Option<LnxSrxStart> {
        let message = self.matcher.take_buffered(queue, message)?;
        let envelope = message.envelope;
        if recv.is_some() {
            self.peers.hold(envelope.peer);
        }
        self.settle(envelope.peer);
        let filling = recv.map(|recv| LnxActiveRecv { recv, envelope });
        Some(LnxSrxStart { ep, buffered: message.body, filling })
    }

    /// Cancels the remaining receives when the endpoint closes: no message will arrive for them.
    pub(super) fn close(&mut self) {
        let mut ended = self.matcher.cancel_all();
        ended.extend(self.matcher.unclaim_all());
        for matched in ended {
            self.matcher.take_buffered(matched.queue, matched.message);
        }
        self.matcher.completions.close();
    }
}
