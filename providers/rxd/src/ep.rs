//! The engine as the application's endpoints call it ([`ofi_provider::endpoint`]).
use crate::config::{max_atomic, max_atomic_bytes};
use crate::engine::{RxdEngine, RxdIdentity, RxdState};
use ofi_provider::abi::fi_addr_t;
use ofi_provider::addr::Addr;
use ofi_provider::api::{AtomicOp, Bindings, ContextAttr, ReadOp, SendOp, WriteOp};
use ofi_provider::atomic::Operation;
use ofi_provider::closing::Undelivered;
use ofi_provider::contexts::ContextIndex;
use ofi_provider::endpoint::{RdmEndpoint, RdmEngine};
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use ofi_provider::lock::Guard;
use ofi_provider::peers::AvObserver;
use std::sync::Arc;

/// An endpoint of the application's.
pub(crate) type RxdEp = RdmEndpoint<RxdEngine>;

impl AvObserver for RxdEngine {
    fn name_inserted(&self, ep: u32, name: fi_addr_t, addr: &Addr) {
        self.with(ep, |ep| ep.name_inserted(name, addr));
    }

    fn name_identified(&self, ep: u32, name: fi_addr_t, id: fi_addr_t) {
        self.with(ep, |ep| ep.name_identified(name, id));
    }

    fn name_removed(&self, ep: u32, name: fi_addr_t) {
        self.with(ep, |ep| ep.name_removed(name));
    }
}

impl RdmEngine for RxdEngine {
    type Identity = RxdIdentity;
    type InternalOps = ();
    type State = RxdState;

    #[inline]
    fn state(&self) -> Guard<'_, RxdState> {
        self.lock()
    }

    fn add(&self, identity: RxdIdentity) -> u32 {
        self.add_ep(identity)
    }

    fn set_context_index(&self, _ep: u32, _index: ContextIndex) {}

    fn set_fid(&self, ep: u32, fid: FidPtr) {
        self.lock().ep(ep).matcher.buffering.set_fid(fid);
    }

    fn enable(&self, ep: &RxdEp, bindings: &Bindings, srx: Option<u32>) -> Result {
        match srx {
            Some(_) => Err(Error::NOSYS),
            None => RxdEngine::enable(self, ep.id, bindings),
        }
    }

    fn enable_contexts(&self, _eps: &[u32], _bindings: &Bindings) -> Result {
        Err(Error::NOSYS)
    }

    fn bind_tx(&self, _ep: u32, _bindings: &Bindings) {}

    fn bind_rx(&self, _ep: u32, _bindings: &Bindings) {}

    fn bound_late(&self, ep: u32, bindings: &Bindings) -> Result {
        self.lock().ep(ep).bind(bindings);
        Ok(())
    }

    fn become_context(&self, _ep: u32, _attr: &ContextAttr) {}

    fn undelivered(&self, ep: u32) -> Undelivered {
        RxdEngine::undelivered(self, ep)
    }

    #[inline(never)]
    fn drain_sends(&self, ep: u32) {
        // Simulated peers move only when the simulation says so, which drains by itself.
        if cfg!(not(test)) {
            self.drain(ep);
        }
    }

    #[inline(never)]
    fn close(&self, ep: u32) {
        self.close_ep(ep);
    }

    fn close_tx(&self, _ep: u32) {}

    fn close_rx(&self, _ep: u32) {}

    fn tx_left(&self, ep: u32) -> usize {
        self.lock().ep(ep).tx_left()
    }

    #[inline]
    fn send(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: SendOp, tagged: bool) -> Result {
        self.transfer(ep.id, |ep| ep.send(op, tagged))
    }

    fn read(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: ReadOp) -> Result {
        self.transfer(ep.id, |ep| ep.read(op))
    }

    fn write(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: WriteOp) -> Result {
        self.transfer(ep.id, |ep| ep.write(op))
    }

    fn atomic(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: AtomicOp) -> Result {
        self.transfer(ep.id, |ep| ep.atomic(op))
    }

    fn max_atomic(operation: Operation) -> usize {
        max_atomic(operation)
    }

    fn max_atomic_bytes() -> usize {
        max_atomic_bytes()
    }

    fn getname(&self, ep: u32) -> Result<Vec<u8>> {
        self.lock().ep(ep).local.name()
    }

    fn setname(&self, ep: u32, name: &[u8]) -> Result {
        self.set_name(ep, name)
    }
}
