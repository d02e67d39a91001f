//! Endpoints of an endpoint at the cores, its rails, and calls from the cores: arriving and buffered messages, completions, counts (fi_peer(3)).
//!
//! All of them are made with locks of the core held, so no core is called from here.
use super::message::{LnxActiveRecv, LnxCompletions, LnxSrxStart, LnxUnexpected};
use super::poll_scheduler::CoreActivity;
use super::state::LnxShared;
use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_REMOTE_WRITE, fi_addr_t,
};
use ofi_provider::buf::{MessageBytes, RecvBuf};
use ofi_provider::completions::TxCompletions;
use ofi_provider::core_provider::{ArrivingMessage, CoreRail, QueueOwner};
use ofi_provider::cq::{Completion, CompletionError, Cq};
use ofi_provider::error::Error;
use ofi_provider::lock::Level;
use ofi_provider::slab::NONE;
use std::sync::{Arc, PoisonError};

/// An endpoint's endpoint at a core.
#[derive(Debug)]
pub(crate) struct LnxRail {
    pub(crate) rail: CoreRail<RailOwner>,
    pub(crate) owner: Arc<RailOwner>,
    /// A waiter sleeps on its descriptor, or on that of the core.
    pub(super) is_watched: bool,
}

impl LnxRail {
    /// Makes the core move a message buffered there to a receive, or drop it.
    pub(super) fn start(&self, entry: u32, filling: Option<LnxActiveRecv>) {
        match filling {
            Some(filling) => {
                self.owner.mark_active();
                let buf = filling.recv.buf.clone();
                self.rail.start(entry, &buf, filling);
            }
            None => self.rail.discard(entry),
        }
    }
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
    pub(crate) tx: TxCompletions,
    /// The queue of receives.
    rx: Option<Arc<Cq>>,
    completions: LnxCompletions,
    pub(super) activity: Arc<CoreActivity>,
}

impl RailOwner {
    pub(super) fn new(
        shared: &Arc<LnxShared>,
        ep: u32,
        rail: usize,
        completions: &LnxCompletions,
        activity: &Arc<CoreActivity>,
    ) -> Self {
        let (tx, rx) = {
            let completions = completions.lock().unwrap_or_else(PoisonError::into_inner);
            (completions.tx.clone(), completions.rx.cq().cloned())
        };
        let (shared, completions, activity) =
            (shared.clone(), completions.clone(), activity.clone());
        Self { shared, ep, rail, tx, rx, completions, activity }
    }

    /// Returns true if peers have written too much with data: nothing more is to be taken from the
    /// core until the application has read some of it.
    pub(super) fn is_flooded(&self) -> bool {
        self.rx.as_ref().is_some_and(|cq| {
            let [entries, size] = cq.fill();
            entries > size.saturating_add(EXCESS as u64)
        })
    }

    /// Records a call from or to the core: each progress iteration polls it from now on, until it is
    /// idle.
    #[inline(always)]
    pub(super) fn mark_active(&self) {
        if self.activity.record_call() {
            self.shared.to_do.unsettle();
        }
    }

    /// Returns the application's identifier of a sender reported by a core.
    fn id_of(&self, src: fi_addr_t) -> fi_addr_t {
        let mut state = self.shared.state.lock();
        state.eps.get_mut(self.ep).map_or(FI_ADDR_NOTAVAIL, |ep| {
            let peer = ep.peers.number(src);
            if peer == NONE { FI_ADDR_NOTAVAIL } else { ep.matcher.senders.id_of(peer) }
        })
    }
}

impl QueueOwner for RailOwner {
    type Filling = LnxActiveRecv;

    fn arrived(&self, message: &ArrivingMessage) -> Option<(RecvBuf, LnxActiveRecv)> {
        self.mark_active();
        let filling = self.shared.state.lock().eps.get_mut(self.ep)?.arrived(message)?;
        Some((filling.recv.buf.clone(), filling))
    }

    #[inline(always)]
    fn arrived_short(&self, message: &ArrivingMessage, bytes: impl MessageBytes) -> bool {
        self.mark_active();
        let ArrivingMessage { tagged, src, tag, .. } = *message;
        let state = self.shared.state.try_lock_fast::<{ Level::SERIALIZED }>();
        state.is_some_and(|mut state| {
            let ep = state.eps.get_mut(self.ep);
            // The number of a peer with a name, or of none.
            ep.is_some_and(|ep| ep.matcher.receive_short(src as u32, tagged, tag, None, bytes))
        })
    }

    #[inline(always)]
    fn arrived_whole(&self, message: &ArrivingMessage, bytes: impl MessageBytes) -> bool {
        self.mark_active();
        let ArrivingMessage { tagged, src, tag, .. } = *message;
        let mut state = self.shared.state.lock();
        let Some(ep) = state.eps.get_mut(self.ep) else { return false };
        // The number of a peer with a name, or of none.
        let peer = src as u32;
        ep.matcher.recv_fast(peer, tagged, tag, None, bytes)
            || (peer != NONE && ep.matcher.receive_whole(peer, tagged, tag, None, bytes))
    }

    fn waits(&self, message: &ArrivingMessage, entry: u32) {
        self.mark_active();
        let buffered = LnxUnexpected { rail: self.rail, entry };
        let mut state = self.shared.state.lock();
        let Some(ep) = state.eps.get_mut(self.ep) else { return };
        if let Some(filling) = ep.waits(message, buffered) {
            // The core is still in the call that announced the message.
            state.put_start(LnxSrxStart { ep: self.ep, buffered, filling: Some(filling) });
            drop(state);
            self.shared.wake.signal();
        }
    }

    fn named(&self, addr_of: &dyn Fn(u32) -> fi_addr_t) {
        let mut state = self.shared.state.lock();
        let Some(ep) = state.eps.get_mut(self.ep) else { return };
        for unknown_peer in ep.peers.unknown_peers() {
            let known =
                ep.matcher.buffered_from(unknown_peer).into_iter().find_map(|(queue, message)| {
                    let buffered = ep.matcher.queues.buffered_as(
                        queue,
                        message,
                        |buffered: &LnxUnexpected| *buffered,
                    )?;
                    let addr = if buffered.rail == self.rail {
                        addr_of(buffered.entry)
                    } else {
                        FI_ADDR_NOTAVAIL
                    };
                    let peer = ep.peers.number(addr);
                    (peer != NONE).then_some(peer)
                });
            if let Some(peer) = known {
                ep.matcher.set_name(
                    unknown_peer,
                    ep.peers.name_of(peer),
                    ep.matcher.senders.id_of(peer),
                );
            }
        }
    }

    fn received(&self, filling: LnxActiveRecv, of: &Completion) {
        self.mark_active();
        let LnxActiveRecv { recv, mut envelope } = filling;
        envelope.len = of.len;
        if of.flags & FI_REMOTE_CQ_DATA != 0 {
            envelope.cq_data = Some(of.data);
        }
        if let Some(ep) = self.shared.state.lock().eps.get_mut(self.ep) {
            ep.matcher.received(&recv, &envelope);
            ep.filled(&envelope);
        }
    }

    fn receive_failed(&self, filling: LnxActiveRecv, error: &CompletionError) {
        self.mark_active();
        let LnxActiveRecv { recv, mut envelope } = filling;
        if error.of.flags & FI_REMOTE_CQ_DATA != 0 {
            envelope.cq_data = Some(error.of.data);
        }
        let mut state = self.shared.state.lock();
        let Some(ep) = state.eps.get_mut(self.ep) else { return };
        if error.error == Error::TRUNC {
            // The bytes exceeding the buffer are computed from the message's length.
            envelope.len = envelope.len.max(error.of.len + error.olen).max(recv.buf.len() + 1);
            ep.matcher.received(&recv, &envelope);
        } else {
            ep.matcher.failed(&recv, &envelope, error.error);
        }
        ep.filled(&envelope);
    }

    fn done(&self, of: Completion) {
        self.mark_active();
        if of.flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
            let src = if of.src == FI_ADDR_NOTAVAIL { of.src } else { self.id_of(of.src) };
            let completions = self.completions.lock().unwrap_or_else(PoisonError::into_inner);
            completions.rx.peer_notified(of.flags, of.len, of.data, src);
            drop(completions);
            if self.is_flooded() {
                self.shared.to_do.unsettle();
            }
            return;
        }
        self.tx.reported(of);
    }

    fn failed(&self, error: CompletionError) {
        self.mark_active();
        self.tx.report_failed(error);
    }

    fn counted(&self, kind: u64, failed: bool) {
        self.mark_active();
        let completions = self.completions.lock().unwrap_or_else(PoisonError::into_inner);
        completions.count(kind, failed);
    }
}
