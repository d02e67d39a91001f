//! The engine as the application's endpoints call it ([`ofi_provider::endpoint`]).
use crate::config::{max_atomic, max_atomic_bytes};
use crate::engine::{RxmEngine, RxmEngineEp, RxmIdentity, RxmState};
use ofi_provider::abi::fi_peer_links;
use ofi_provider::addr::Addr;
use ofi_provider::api::{AtomicOp, Bindings, ContextAttr, ReadOp, SendOp, WriteOp};
use ofi_provider::atomic::Operation;
use ofi_provider::closing::Undelivered;
use ofi_provider::contexts::ContextIndex;
use ofi_provider::endpoint::{RdmEndpoint, RdmEngine};
use ofi_provider::eq::FidPtr;
use ofi_provider::error::Result;
use ofi_provider::lock::{FastGuard, Guard};
use ofi_provider::peer_srx::SrxOwner;
use std::sync::{Arc, Weak};

/// An endpoint of the application's.
pub(crate) type RxmEp = RdmEndpoint<RxmEngine>;

/// Starts a transfer.
fn transfer(
    engine: &Arc<RxmEngine>,
    id: u32,
    start: impl FnOnce(&mut RxmEngineEp) -> Result,
) -> Result {
    let mut state = engine.lock();
    let ep = state.ep(id);
    let result = start(ep);
    let wants_help = std::mem::take(&mut ep.wants_help);
    help_if(wants_help, engine, state);
    result
}

/// Starts the helper requested by a transfer, after releasing the engine's lock.
#[inline(always)]
fn help_if(wanted: bool, engine: &Arc<RxmEngine>, state: Guard<'_, RxmState>) {
    drop(state);
    if wanted {
        engine.help();
    }
}

impl RdmEngine for RxmEngine {
    type Identity = RxmIdentity;
    type InternalOps = ();
    type State = RxmState;

    #[inline]
    fn state(&self) -> Guard<'_, RxmState> {
        self.lock()
    }

    #[inline(always)]
    fn try_lock_fast<const LEVEL: usize>(&self) -> Option<FastGuard<'_, RxmState>> {
        self.lock_at_once::<LEVEL>()
    }

    fn level(&self) -> usize {
        RxmEngine::level(self)
    }

    fn add(&self, identity: RxmIdentity) -> u32 {
        self.add_ep(identity)
    }

    fn set_context_index(&self, ep: u32, context_index: ContextIndex) {
        self.lock().ep(ep).context_index = context_index;
    }

    fn set_fid(&self, ep: u32, fid: FidPtr) {
        self.lock().ep(ep).matcher.buffering.set_fid(fid);
    }

    fn enable(&self, ep: &RxmEp, bindings: &Bindings, srx: Option<u32>) -> Result {
        if ep.is_srx() {
            self.lock().ep(ep.id).matcher.bind(&bindings.completions.rx);
            return Ok(());
        }
        RxmEngine::enable(self, ep.id, bindings, srx)
    }

    fn enable_contexts(&self, eps: &[u32], bindings: &Bindings) -> Result {
        RxmEngine::enable_contexts(self, eps, bindings)
    }

    fn bind_tx(&self, ep: u32, bindings: &Bindings) {
        self.lock().ep(ep).tx.bind(bindings);
    }

    fn bind_rx(&self, ep: u32, bindings: &Bindings) {
        self.lock().ep(ep).matcher.bind(&bindings.completions.rx);
    }

    fn bound_late(&self, ep: u32, bindings: &Bindings) -> Result {
        self.bind_late(ep, bindings)
    }

    fn become_context(&self, ep: u32, attr: &ContextAttr) {
        self.make_context(ep, attr);
    }

    fn undelivered(&self, ep: u32) -> Undelivered {
        self.not_passed_on(ep)
    }

    #[inline(never)]
    fn drain_sends(&self, ep: u32) {
        // Simulated peers move only when the simulation says so, which drains by itself.
        if cfg!(not(test)) {
            self.closing().drive(self, || self.undelivered(ep));
        }
    }

    #[inline(never)]
    fn close(&self, ep: u32) {
        self.close_ep(ep);
    }

    fn close_tx(&self, ep: u32) {
        self.lock().ep(ep).close_tx();
    }

    fn close_rx(&self, ep: u32) {
        self.lock().ep(ep).close_rx();
    }

    fn tx_left(&self, ep: u32) -> usize {
        let mut state = self.lock();
        let ep = state.ep(ep);
        ep.tx.left(ep.identity.attr.tx_size)
    }

    #[inline(always)]
    fn send(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: SendOp, tagged: bool) -> Result {
        let mut state = self.lock();
        let ep = state.ep(ep.id);
        let result = ep.send(op, tagged);
        let wants_help = std::mem::take(&mut ep.wants_help);
        help_if(wants_help, self, state);
        result
    }

    fn read(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: ReadOp) -> Result {
        transfer(self, ep.id, |ep| ep.read(op))
    }

    fn write(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: WriteOp) -> Result {
        transfer(self, ep.id, |ep| ep.write(op))
    }

    fn atomic(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: AtomicOp) -> Result {
        transfer(self, ep.id, |ep| ep.atomic(op))
    }

    fn max_atomic(operation: Operation) -> usize {
        max_atomic(operation)
    }

    fn max_atomic_bytes() -> usize {
        max_atomic_bytes()
    }

    fn has_devices(&self, _ep: u32) -> bool {
        self.has_bounce()
    }

    fn p2p_permitted(&self, ep: u32) -> bool {
        self.lock().ep(ep).identity.local_paths.p2p
    }

    fn permit_p2p(&self, ep: u32, permitted: bool) {
        self.lock().ep(ep).identity.local_paths.p2p = permitted;
    }

    fn memory_permitted(&self, ep: u32) -> Result<bool> {
        Ok(self.lock().ep(ep).identity.local_paths.memory)
    }

    fn permit_memory(&self, ep: u32, permitted: bool) -> Result {
        self.lock().ep(ep).identity.local_paths.memory = permitted;
        Ok(())
    }

    fn peer_links(&self, ep: u32) -> Result<fi_peer_links> {
        Ok(self.lock().ep(ep).conns.peer_links())
    }

    fn import(self: &Arc<Self>, ep: u32, owner: SrxOwner) -> Result {
        let engine: Weak<Self> = Arc::downgrade(self);
        self.lock().import(ep, owner, engine);
        Ok(())
    }

    fn getname(&self, ep: u32) -> Result<Vec<u8>> {
        Ok(self.lock().ep(ep).identity.local.name_for_peers().to_bytes())
    }

    fn setname(&self, ep: u32, name: &[u8]) -> Result {
        self.set_name(ep, Addr::from_bytes(name)?)
    }
}
