//! State of the engine guarded by its lock, and shared with the queues of its cores.
use super::ep::LnxEngineEp;
use super::message::{LnxSrxStart, LnxUnexpected};
use ofi_provider::api::RecvOp;
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use ofi_provider::lock::Lock;
use ofi_provider::receives::PostsReceives;
use ofi_provider::rx_matcher::{MatchedMessage, RxMatcher};
use ofi_provider::slab::Slab;
use ofi_provider::sys::EventFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// State guarded by the engine's lock.
pub(crate) struct LnxState {
    pub(super) eps: Slab<LnxEngineEp>,
    pub(super) starts: Vec<LnxSrxStart>,
    pub(super) to_do: Arc<LnxPendingWork>,
}

/// Pending work, visible without the lock.
#[derive(Debug, Default)]
pub(super) struct LnxPendingWork {
    /// There are messages to be started.
    pub(super) starts: AtomicBool,
    /// No work is pending except for polling the lead core. A progress iteration checking all
    /// possible work sets this flag before the check.
    pub(super) settled: AtomicBool,
}

impl LnxPendingWork {
    /// Signals possible work besides polling the lead core.
    pub(super) fn unsettle(&self) {
        self.settled.store(false, Ordering::Release);
    }
}

/// State shared by the engine and the queues of its cores.
pub(crate) struct LnxShared {
    pub(super) state: Lock<LnxState>,
    pub(super) to_do: Arc<LnxPendingWork>,
    /// Wakes a waiter when a core's call has left pending work.
    pub(super) wake: EventFd,
}

impl std::fmt::Debug for LnxShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LnxShared")
    }
}

impl LnxState {
    /// The endpoint with this number.
    #[inline]
    pub(super) fn ep(&mut self, id: u32) -> &mut LnxEngineEp {
        &mut self.eps[id]
    }

    /// Queues the notification of a core about a message.
    pub(super) fn put_start(&mut self, start: LnxSrxStart) {
        self.starts.push(start);
        self.to_do.starts.store(true, Ordering::Release);
        self.to_do.unsettle();
    }

    /// Sets the fid naming the endpoint in events.
    pub(crate) fn set_fid(&mut self, ep: u32, fid: FidPtr) {
        self.ep(ep).matcher.buffering.set_fid(fid);
    }

    /// Returns the maximum number of transfers in progress.
    pub(crate) fn tx_left(&mut self, ep: u32) -> usize {
        self.ep(ep).tx_size
    }

    /// The endpoint's own address, once it is enabled.
    pub(crate) fn name(&mut self, ep: u32) -> Result<Vec<u8>> {
        self.ep(ep).addr.as_ref().map(|addr| addr.as_bytes().to_vec()).ok_or(Error::OPBADSTATE)
    }
}

impl PostsReceives for LnxState {
    type Buffered = LnxUnexpected;

    #[inline]
    fn matcher(&mut self, ep: u32) -> &mut RxMatcher<LnxUnexpected> {
        &mut self.eps[ep].matcher
    }

    fn matcher_if_open(&mut self, ep: u32) -> Option<&mut RxMatcher<LnxUnexpected>> {
        self.eps.get_mut(ep).map(|ep| &mut ep.matcher)
    }

    // Endpoints with buffered receives are not offered.
    fn post_tag(&mut self, _ep: u32, _op: &RecvOp) {}

    // Cores are not called with the lock held: the next read of a queue polls them.
    fn look(&mut self) {}

    fn match_message(&mut self, matched: MatchedMessage) {
        let MatchedMessage { queue, message, recv, owner, .. } = matched;
        let start =
            self.eps.get_mut(owner).and_then(|ep| ep.match_message(owner, queue, message, recv));
        if let Some(start) = start {
            self.put_start(start);
        }
    }
}
