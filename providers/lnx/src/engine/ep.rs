//! Endpoint: its receives, and its endpoints at the cores.
use super::owner::LnxFilling;
use super::peers::LnxPeers;
use super::rails::LnxRail;
use super::{LnxKept, LnxLedger, LnxStart};
use crate::beacon::Beacon;
use ofi_provider::av::Av;
use ofi_provider::core_provider::ArrivingMessage;
use ofi_provider::inbox::{About, Inbox, Recv};
use ofi_provider::link_addr::LinkAddr;
use std::sync::Arc;

/// An endpoint of the engine.
pub(super) struct LnxEngineEp {
    pub(super) inbox: Inbox<LnxKept>,
    pub(super) peers: LnxPeers,
    pub(super) tx_size: usize,
    /// Its endpoints at the cores, once it is enabled.
    pub(super) rails: Vec<Arc<LnxRail>>,
    pub(super) addr: Option<LinkAddr>,
    pub(super) beacon: Option<Beacon>,
    pub(super) av: Option<Arc<Av>>,
    pub(super) ledger: Option<LnxLedger>,
}

impl LnxEngineEp {
    pub(super) fn new(mut inbox: Inbox<LnxKept>, tx_size: usize) -> Self {
        // Buffered messages are at the cores, with their own limits for unknown peers.
        inbox.trust_all();
        Self {
            inbox,
            peers: LnxPeers::default(),
            tx_size,
            rails: Vec::new(),
            addr: None,
            beacon: None,
            av: None,
            ledger: None,
        }
    }

    /// A message as the inbox knows it.
    fn about(&mut self, message: &ArrivingMessage) -> About {
        let ArrivingMessage { tagged, src, len, tag, cq_data } = *message;
        let peer = self.peers.sender(src);
        About { tagged, msg_tag: None, collective: false, tag, len, cq_data, peer }
    }

    /// Returns the receive matching an arriving message.
    pub(super) fn arrived(&mut self, message: &ArrivingMessage) -> Option<LnxFilling> {
        let about = self.about(message);
        match self.inbox.take_posted(&about) {
            Some(recv) => {
                self.peers.hold(about.peer);
                Some(LnxFilling { recv, about })
            }
            None => {
                self.settle(about.peer);
                None
            }
        }
    }

    /// Stores the entry of a message buffered at a core, or returns a matching receive posted while
    /// the core decided.
    pub(super) fn waits(&mut self, message: &ArrivingMessage, kept: LnxKept) -> Option<LnxFilling> {
        let about = self.about(message);
        if let Some(recv) = self.inbox.take_posted(&about) {
            self.peers.hold(about.peer);
            return Some(LnxFilling { recv, about });
        }
        self.inbox.keep(about, kept);
        None
    }

    /// A receive is reported.
    pub(super) fn filled(&mut self, about: &About) {
        self.peers.release(about.peer);
        self.settle(about.peer);
    }

    /// Removes an unused peer without a name.
    pub(super) fn settle(&mut self, peer: u32) {
        if !self.inbox.keeps_from(peer) && self.peers.forget_if_unused(peer) {
            self.inbox.forget(peer);
        }
    }

    /// Handles the match of a buffered message with its receive, or its drop.
    pub(super) fn meet(
        &mut self,
        ep: u32,
        queue: usize,
        message: u32,
        recv: Option<Recv>,
    ) -> Option<LnxStart> {
        let message = self.inbox.take_kept(queue, message)?;
        let about = message.about;
        if recv.is_some() {
            self.peers.hold(about.peer);
        }
        self.settle(about.peer);
        let filling = recv.map(|recv| LnxFilling { recv, about });
        Some(LnxStart { ep, kept: message.body, filling })
    }

    /// Cancels the remaining receives when the endpoint closes: no message will arrive for them.
    pub(super) fn close(&mut self) {
        let mut met = self.inbox.cancel_all();
        met.extend(self.inbox.unclaim_all());
        for meeting in met {
            self.inbox.take_kept(meeting.queue, meeting.message);
        }
        self.inbox.ledger.close();
    }
}
