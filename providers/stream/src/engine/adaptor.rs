//! The engine as endpoints of the application's call it ([`ofi_provider::endpoint`]).
use super::StreamEngine;
use super::ep::{StreamEpKind, StreamIdentity};
use super::state::StreamState;
use crate::objects::StreamEndpointExt;
use crate::transport::{ByteLink, ShmTransport};
use crate::wire::MAX_ATOMIC;
use ofi_provider::abi::{fi_addr_t, fi_peer_links};
use ofi_provider::addr::Addr;
use ofi_provider::api::{AtomicOp, Bindings, ContextAttr, ReadOp, SendOp, WriteOp};
use ofi_provider::atomic::Operation;
use ofi_provider::closing::Undelivered;
use ofi_provider::contexts::ContextIndex;
use ofi_provider::endpoint::{RdmEndpoint, RdmEngine};
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use ofi_provider::lock::{FastGuard, Guard};
use ofi_provider::peer_srx::{SrxOwner, SrxStartHandler};
use ofi_provider::peers::AvObserver;
use std::sync::{Arc, Weak};

impl<N: ShmTransport> AvObserver for StreamEngine<N> {
    fn name_inserted(&self, ep: u32, name: fi_addr_t, addr: &Addr) {
        self.lock().name_inserted(ep, name, addr);
    }

    fn name_identified(&self, ep: u32, name: fi_addr_t, id: fi_addr_t) {
        self.lock().name_identified(ep, name, id);
    }

    fn name_removed(&self, ep: u32, name: fi_addr_t) {
        self.lock().name_removed(ep, name);
    }
}

impl<N: ShmTransport> SrxStartHandler for StreamEngine<N> {
    fn start_now(&self) {
        self.starts.take_up_or_signal(&self.state, |state| _ = state.take_started());
    }
}

impl<N: ShmTransport> StreamEngine<N> {
    #[inline(never)]
    fn enable_ep(&self, ep: u32, bindings: &Bindings, srx: Option<u32>) -> Result {
        let mut state = self.lock();
        let this = state.ep(ep);
        this.bind(bindings);
        if let Some(srx) = srx {
            // Messages that are reported as they come, and the library's own, belong to
            // one endpoint.
            if this.is_buffered() || this.is_collective() {
                return Err(Error::INVAL);
            }
            state.share_matcher(ep, srx);
        }
        match state.ep(ep).kind() {
            StreamEpKind::Rdm => state.listen(ep),
            StreamEpKind::Msg | StreamEpKind::Srx => Ok(()),
        }
    }
}

impl<N: ShmTransport> RdmEngine for StreamEngine<N> {
    type Identity = StreamIdentity;
    type InternalOps = StreamEndpointExt<N::Link>;
    type State = StreamState<N>;

    #[inline(always)]
    fn state(&self) -> Guard<'_, StreamState<N>> {
        self.lock()
    }

    #[inline(always)]
    fn try_lock_fast<const LEVEL: usize>(&self) -> Option<FastGuard<'_, StreamState<N>>> {
        self.state.try_lock_fast::<LEVEL>()
    }

    fn level(&self) -> usize {
        self.state.level()
    }

    fn add(&self, identity: StreamIdentity) -> u32 {
        self.lock().add_ep(identity)
    }

    fn set_context_index(&self, ep: u32, context_index: ContextIndex) {
        self.lock().ep(ep).context_index = context_index;
    }

    fn set_fid(&self, ep: u32, fid: FidPtr) {
        self.lock().ep(ep).set_fid(fid);
    }

    fn enable(&self, ep: &RdmEndpoint<Self>, bindings: &Bindings, srx: Option<u32>) -> Result {
        self.enable_ep(ep.id, bindings, srx)?;
        // Others may look before the first turn.
        self.lock().show();
        Ok(())
    }

    fn enable_contexts(&self, eps: &[u32], bindings: &Bindings) -> Result {
        let mut state = self.lock();
        eps.iter().for_each(|id| state.ep(*id).bind(bindings));
        state.listen_for(eps)
    }

    fn bind_tx(&self, ep: u32, bindings: &Bindings) {
        self.lock().ep(ep).bind_tx(bindings);
    }

    fn bind_rx(&self, ep: u32, bindings: &Bindings) {
        self.lock().ep(ep).bind_rx(bindings);
    }

    fn bound_late(&self, ep: u32, bindings: &Bindings) -> Result {
        self.lock().ep(ep).bind(bindings);
        Ok(())
    }

    fn become_context(&self, ep: u32, attr: &ContextAttr) {
        self.lock().ep(ep).become_context(attr);
    }

    #[inline(never)]
    fn undelivered(&self, ep: u32) -> Undelivered {
        self.lock().rx.tx.undelivered(ep)
    }

    #[inline(never)]
    fn drain_sends(&self, ep: u32) {
        // Simulated peers move only when the simulation says so, which drains by itself.
        if cfg!(not(any(test, feature = "sim"))) {
            self.closing.drive(self, || self.lock().rx.tx.undelivered(ep));
        }
    }

    #[inline(never)]
    fn close(&self, ep: u32) {
        self.lock().close_ep(ep);
    }

    #[inline(never)]
    fn close_tx(&self, ep: u32) {
        self.lock().close_tx(ep);
    }

    #[inline(never)]
    fn close_rx(&self, ep: u32) {
        self.lock().close_rx(ep);
    }

    fn is_copy(&self) -> bool {
        StreamEngine::is_copy(self)
    }

    fn tx_left(&self, ep: u32) -> usize {
        self.lock().ep(ep).tx_left()
    }

    #[inline(always)]
    fn send(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: SendOp, tagged: bool) -> Result {
        self.lock().send(ep.id, op, tagged)
    }

    const SENDS_AT_ONCE: bool = true;

    #[inline(always)]
    fn send_immediate(
        &self,
        ep: u32,
        op: SendOp,
        tagged: bool,
        cq_is_drained: bool,
    ) -> Result<bool> {
        self.lock().send_immediate(ep, op, tagged, cq_is_drained)
    }

    fn read(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: ReadOp) -> Result {
        self.lock().read_remote(ep.id, op)
    }

    fn write(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: WriteOp) -> Result {
        self.lock().write(ep.id, op)
    }

    fn atomic(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: AtomicOp) -> Result {
        self.lock().atomic(ep.id, op)
    }

    fn max_atomic(_operation: Operation) -> usize {
        MAX_ATOMIC
    }

    fn max_atomic_bytes() -> usize {
        MAX_ATOMIC
    }

    fn import(self: &Arc<Self>, ep: u32, owner: SrxOwner) -> Result {
        let engine: Weak<Self> = Arc::downgrade(self);
        self.lock().rx.import(ep, owner, engine);
        Ok(())
    }

    fn has_devices(&self, ep: u32) -> bool {
        self.lock().has_devices(ep)
    }

    fn p2p_permitted(&self, ep: u32) -> bool {
        self.lock().rx.tx.eps[ep].shares_devices()
    }

    fn permit_p2p(&self, ep: u32, permitted: bool) {
        let permitted = permitted && N::Link::settings().hmem_shares;
        self.lock().rx.tx.eps[ep].share_devices(permitted);
    }

    fn memory_permitted(&self, ep: u32) -> Result<bool> {
        Ok(self.lock().ep(ep).identity.memory)
    }

    fn permit_memory(&self, ep: u32, permitted: bool) -> Result {
        self.lock().ep(ep).identity.memory = permitted;
        Ok(())
    }

    fn peer_links(&self, ep: u32) -> Result<fi_peer_links> {
        Ok(self.lock().peer_links(ep))
    }

    fn getname(&self, ep: u32) -> Result<Vec<u8>> {
        let mut state = self.lock();
        let ep = state.ep(ep);
        match ep.kind() {
            StreamEpKind::Rdm => Ok(ep.local().name_for_peers().to_own_bytes()),
            StreamEpKind::Msg | StreamEpKind::Srx => Ok(ep.local().to_own_bytes()),
        }
    }

    fn setname(&self, ep: u32, name: &[u8]) -> Result {
        let mut state = self.lock();
        if state.rx.tx.io.listeners.is_open(ep) || state.connected_link(ep).is_some() {
            // Peers may know the address already.
            return Err(Error::BUSY);
        }
        let addr = Addr::from_application(state.ep(ep).local().format(), name)?;
        state.set_address(ep, addr)
    }
}
