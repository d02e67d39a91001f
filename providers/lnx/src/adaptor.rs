//! The engine as the application's endpoints call it ([`ofi_provider::endpoint`]).
use crate::engine::{LnxEndpointExt, LnxEngine, LnxEp, LnxRoute, LnxState, LnxTransfer};
use ofi_provider::abi::{
    FI_ATOMIC, FI_MSG, FI_READ, FI_RMA, FI_SEND, FI_TAGGED, FI_WRITE, fi_addr_t,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{AtomicOp, Bindings, ContextAttr, ReadOp, SendOp, WriteOp};
use ofi_provider::atomic::Operation;
use ofi_provider::contexts::ContextIndex;
use ofi_provider::endpoint::{EndpointExt, RdmAttr, RdmEngine};
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use ofi_provider::lock::{FastGuard, Guard};
use ofi_provider::peers::AvObserver;
use ofi_provider::progress::Progress;
use std::sync::Arc;

impl EndpointExt<LnxEngine> for LnxEndpointExt {}

impl AvObserver for LnxEngine {
    fn name_inserted(&self, ep: u32, name: fi_addr_t, addr: &Addr) {
        self.insert_name(ep, name, addr);
    }

    fn name_identified(&self, ep: u32, name: fi_addr_t, id: fi_addr_t) {
        self.identify_name(ep, name, id);
    }

    fn name_removed(&self, ep: u32, name: fi_addr_t) {
        self.remove_name(ep, name);
    }
}

impl RdmEngine for LnxEngine {
    type Identity = RdmAttr;
    type InternalOps = LnxEndpointExt;
    type State = LnxState;

    #[inline]
    fn state(&self) -> Guard<'_, LnxState> {
        self.lock()
    }

    // Posting a receive without a waiting message has nothing to start.
    #[inline(always)]
    fn try_lock_fast<const LEVEL: usize>(&self) -> Option<FastGuard<'_, LnxState>> {
        self.lock_at_once::<LEVEL>()
    }

    fn level(&self) -> usize {
        self.level()
    }

    fn add(&self, identity: RdmAttr) -> u32 {
        self.add_ep(identity)
    }

    // Endpoints are whole ones: no others are opened.
    fn set_context_index(&self, _ep: u32, _index: ContextIndex) {}

    fn set_fid(&self, ep: u32, fid: FidPtr) {
        self.lock().set_fid(ep, fid);
    }

    fn enable(&self, ep: &LnxEp, bindings: &Bindings, _srx: Option<u32>) -> Result {
        self.enable_ep(ep.id, &ep.ext, bindings)
    }

    fn enable_contexts(&self, _eps: &[u32], _bindings: &Bindings) -> Result {
        Err(Error::NOSYS)
    }

    fn bind_tx(&self, _ep: u32, _bindings: &Bindings) {}

    fn bind_rx(&self, _ep: u32, _bindings: &Bindings) {}

    fn bound_late(&self, ep: u32, bindings: &Bindings) -> Result {
        self.bind_late(ep, bindings)
    }

    fn become_context(&self, _ep: u32, _attr: &ContextAttr) {}

    fn close(&self, ep: u32) {
        self.close_ep(ep);
    }

    fn close_tx(&self, _ep: u32) {}

    fn close_rx(&self, _ep: u32) {}

    fn tx_left(&self, ep: u32) -> usize {
        self.lock().tx_left(ep)
    }

    #[inline(always)]
    fn send(self: &Arc<Self>, ep: &LnxEp, op: SendOp, tagged: bool) -> Result {
        let kind = FI_SEND | if tagged { FI_TAGGED } else { FI_MSG };
        let envelope = LnxTransfer {
            peer: op.dest,
            context: op.context,
            flags: op.flags,
            kind,
            len: op.buf.len(),
        };
        let Some(LnxRoute { rail, to, cq_is_drained }) = self.way(ep, &envelope)? else {
            return Ok(());
        };
        self.began(rail, &envelope, rail.rail.send(to, op, tagged, cq_is_drained))
    }

    fn read(self: &Arc<Self>, ep: &LnxEp, op: ReadOp) -> Result {
        let kind = FI_READ | FI_RMA;
        let envelope = LnxTransfer {
            peer: op.src,
            context: op.context,
            flags: op.flags,
            kind,
            len: op.buf.len(),
        };
        let Some(LnxRoute { rail, to: from, .. }) = self.way(ep, &envelope)? else { return Ok(()) };
        self.began(rail, &envelope, rail.rail.read(from, &op).map(|()| false))
    }

    fn write(self: &Arc<Self>, ep: &LnxEp, op: WriteOp) -> Result {
        let kind = FI_WRITE | FI_RMA;
        let envelope = LnxTransfer {
            peer: op.dest,
            context: op.context,
            flags: op.flags,
            kind,
            len: op.buf.len(),
        };
        let Some(LnxRoute { rail, to, .. }) = self.way(ep, &envelope)? else { return Ok(()) };
        self.began(rail, &envelope, rail.rail.write(to, &op).map(|()| false))
    }

    fn atomic(self: &Arc<Self>, ep: &LnxEp, op: AtomicOp) -> Result {
        let kind = FI_ATOMIC | if op.operation.fetches() { FI_READ } else { FI_WRITE };
        let envelope = LnxTransfer {
            peer: op.dest,
            context: op.context,
            flags: op.flags,
            kind,
            len: op.source.len(),
        };
        let Some(LnxRoute { rail, to, .. }) = self.way(ep, &envelope)? else { return Ok(()) };
        self.began(rail, &envelope, rail.rail.atomic(to, &op).map(|()| false))
    }

    fn has_devices(&self, _ep: u32) -> bool {
        self.has_devices()
    }

    fn p2p_permitted(&self, ep: u32) -> bool {
        self.p2p(ep)
    }

    fn permit_p2p(&self, ep: u32, permitted: bool) {
        self.permit_p2p(ep, permitted);
    }

    fn looks(&self) {
        self.progress();
    }

    #[inline(always)]
    fn posted(&self) {
        self.start_messages();
    }

    fn max_atomic(operation: Operation) -> usize {
        Self::most_atomic(operation)
    }

    fn max_atomic_bytes() -> usize {
        Self::most_atomic_bytes()
    }

    fn getname(&self, ep: u32) -> Result<Vec<u8>> {
        self.lock().name(ep)
    }

    fn setname(&self, _ep: u32, _name: &[u8]) -> Result {
        Err(Error::NOSYS)
    }
}
