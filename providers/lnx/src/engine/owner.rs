//! Calls from the cores: arriving and buffered messages, completions, counts (fi_peer(3)).
//!
//! All of them are made with locks of the core held, so no core is called from here.
use super::rails::LnxTurns;
use super::{LnxKept, LnxLedger, LnxShared, LnxStart};
use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_REMOTE_WRITE, fi_addr_t,
};
use ofi_provider::buf::{MessageBytes, RecvBuf};
use ofi_provider::core_provider::{ArrivingMessage, QueueOwner};
use ofi_provider::cq::{Completion, CompletionError, Cq};
use ofi_provider::error::Error;
use ofi_provider::inbox::{About, Recv};
use ofi_provider::ledger::TxLedger;
use ofi_provider::lock::Level;
use ofi_provider::slab::NONE;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// A receive while a core fills it.
#[derive(Debug)]
pub(crate) struct LnxFilling {
    pub(super) recv: Recv,
    pub(super) about: About,
}

/// Entries permitted in a queue beyond its size until cores are no longer polled: peers' writes
/// with data use no local resources.
const EXCESS: usize = 1024;

/// Receiver of the calls from one endpoint of a core.
#[derive(Debug)]
pub(crate) struct RailOwner {
    shared: Arc<LnxShared>,
    /// The endpoint, and the core's number.
    pub(super) ep: u32,
    pub(super) rail: usize,
    /// Completion sink of sends, reads and writes.
    pub(crate) tx: TxLedger,
    /// The queue of receives.
    rx: Option<Arc<Cq>>,
    ledger: LnxLedger,
    pub(super) turns: Arc<LnxTurns>,
}

impl RailOwner {
    pub(super) fn new(
        shared: &Arc<LnxShared>,
        ep: u32,
        rail: usize,
        ledger: &LnxLedger,
        turns: &Arc<LnxTurns>,
    ) -> Self {
        let (tx, rx) = {
            let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
            (ledger.tx.clone(), ledger.rx.cq().cloned())
        };
        let (shared, ledger, turns) = (shared.clone(), ledger.clone(), turns.clone());
        Self { shared, ep, rail, tx, rx, ledger, turns }
    }

    /// Returns true if peers have written too much with data: nothing more is to be taken from the
    /// core until the application has read some of it.
    pub(super) fn is_flooded(&self) -> bool {
        self.rx.as_ref().is_some_and(|cq| {
            let [entries, size] = cq.fill();
            entries > size.saturating_add(EXCESS as u64)
        })
    }

    /// The core is called: it is looked at in each turn from now on, until nothing goes on there any more.
    #[inline(always)]
    pub(super) fn heat(&self) {
        self.turns.called();
        if !self.turns.is_hot() {
            self.turns.heat();
            self.shared.to_do.unsettle();
        }
    }

    /// Returns the application's identifier of a sender reported by a core.
    fn id_of(&self, src: fi_addr_t) -> fi_addr_t {
        let mut state = self.shared.state.lock();
        state.eps.get_mut(self.ep).map_or(FI_ADDR_NOTAVAIL, |ep| {
            let peer = ep.peers.number(src);
            if peer == NONE { FI_ADDR_NOTAVAIL } else { ep.inbox.id_of(peer) }
        })
    }
}

impl QueueOwner for RailOwner {
    type Filling = LnxFilling;

    fn arrived(&self, message: &ArrivingMessage) -> Option<(RecvBuf, LnxFilling)> {
        self.turns.called();
        let filling = self.shared.state.lock().eps.get_mut(self.ep)?.arrived(message)?;
        self.turns.begin();
        Some((filling.recv.buf.clone(), filling))
    }

    #[inline(always)]
    fn arrived_short(&self, message: &ArrivingMessage, bytes: impl MessageBytes) -> bool {
        self.turns.called();
        let ArrivingMessage { tagged, src, tag, .. } = *message;
        let state = self.shared.state.at_once::<{ Level::SERIALIZED }>();
        state.is_some_and(|mut state| {
            let ep = state.eps.get_mut(self.ep);
            // The number of a peer with a name, or of none.
            ep.is_some_and(|ep| ep.inbox.receive_short(src as u32, tagged, tag, None, bytes))
        })
    }

    #[inline(always)]
    fn arrived_whole(&self, message: &ArrivingMessage, bytes: impl MessageBytes) -> bool {
        self.turns.called();
        let ArrivingMessage { tagged, src, tag, .. } = *message;
        let mut state = self.shared.state.lock();
        let Some(ep) = state.eps.get_mut(self.ep) else { return false };
        // The number of a peer with a name, or of none.
        let peer = src as u32;
        ep.inbox.receive_plain(peer, tagged, tag, None, bytes)
            || (peer != NONE && ep.inbox.receive_whole(peer, tagged, tag, None, bytes))
    }

    fn waits(&self, message: &ArrivingMessage, entry: u32) {
        self.turns.called();
        let kept = LnxKept { rail: self.rail, entry };
        let mut state = self.shared.state.lock();
        let Some(ep) = state.eps.get_mut(self.ep) else { return };
        if let Some(filling) = ep.waits(message, kept) {
            // The core is still in the call that announced the message.
            state.put_start(LnxStart { ep: self.ep, kept, filling: Some(filling) });
            drop(state);
            self.shared.wake.signal();
        }
    }

    fn named(&self, addr_of: &dyn Fn(u32) -> fi_addr_t) {
        let mut state = self.shared.state.lock();
        let Some(ep) = state.eps.get_mut(self.ep) else { return };
        for stranger in ep.peers.strangers() {
            let known = ep.inbox.kept_from(stranger).into_iter().find_map(|(queue, message)| {
                let kept = ep.inbox.kept_as(queue, message, |kept: &LnxKept| *kept)?;
                let addr =
                    if kept.rail == self.rail { addr_of(kept.entry) } else { FI_ADDR_NOTAVAIL };
                let peer = ep.peers.number(addr);
                (peer != NONE).then_some(peer)
            });
            if let Some(peer) = known {
                ep.inbox.set_name(stranger, ep.peers.name_of(peer), ep.inbox.id_of(peer));
            }
        }
    }

    fn received(&self, filling: LnxFilling, of: &Completion) {
        self.turns.called();
        self.turns.over();
        let LnxFilling { recv, mut about } = filling;
        about.len = of.len;
        if of.flags & FI_REMOTE_CQ_DATA != 0 {
            about.cq_data = Some(of.data);
        }
        if let Some(ep) = self.shared.state.lock().eps.get_mut(self.ep) {
            ep.inbox.received(&recv, &about);
            ep.filled(&about);
        }
    }

    fn receive_failed(&self, filling: LnxFilling, error: &CompletionError) {
        self.turns.called();
        self.turns.over();
        let LnxFilling { recv, mut about } = filling;
        if error.of.flags & FI_REMOTE_CQ_DATA != 0 {
            about.cq_data = Some(error.of.data);
        }
        let mut state = self.shared.state.lock();
        let Some(ep) = state.eps.get_mut(self.ep) else { return };
        if error.error == Error::TRUNC {
            // The bytes exceeding the buffer are computed from the message's length.
            about.len = about.len.max(error.of.len + error.olen).max(recv.buf.len() + 1);
            ep.inbox.received(&recv, &about);
        } else {
            ep.inbox.failed(&recv, &about, error.error);
        }
        ep.filled(&about);
    }

    fn done(&self, of: Completion) {
        self.turns.called();
        if of.flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
            let src = if of.src == FI_ADDR_NOTAVAIL { of.src } else { self.id_of(of.src) };
            let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            ledger.rx.peer_told(of.flags, of.len, of.data, src);
            drop(ledger);
            if self.is_flooded() {
                self.shared.to_do.flooded.store(true, Ordering::Relaxed);
                self.shared.to_do.unsettle();
            }
            return;
        }
        self.turns.over();
        self.tx.reported(of);
    }

    fn failed(&self, error: CompletionError) {
        self.turns.called();
        self.turns.over();
        self.tx.report_failed(error);
    }

    fn counted(&self, kind: u64, failed: bool) {
        self.turns.called();
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.count(kind, failed);
    }
}
