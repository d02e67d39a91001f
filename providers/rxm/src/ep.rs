//! The provider's endpoints, for `ofi_provider::api`.
use crate::config::{max_atomic, max_atomic_bytes};
use crate::engine::{Engine, Ep, Identity};
use core::ffi::c_int;
use ofi_provider::abi::{
    FI_CLAIM, FI_DISCARD, FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN, FI_OPT_MAX_ATOMIC_SIZE,
    FI_OPT_MIN_MULTI_RECV, FI_PEEK, fi_addr_t,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Atomic, AtomicOp, Bindings, Cm, ContextAttr, Endpoint, Msg, ReadOp, RecvOp, Rma, SendOp,
    Tagged, WriteOp,
};
use ofi_provider::atomic::Operation;
use ofi_provider::av::{Av, Listener};
use ofi_provider::cq::Context;
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use ofi_provider::reserved::ONLY_TAG;
use ofi_provider::sep::{Group, Half, Part};
use std::sync::{Arc, OnceLock, Weak};

/// An endpoint; what it does happens in the engine.
#[derive(Debug)]
pub(crate) struct RxmEp {
    engine: Arc<Engine>,
    id: u32,
    kind: Kind,
    /// Hears of insertions into the address vector.
    names: OnceLock<Arc<Names>>,
    /// What it is of a scalable endpoint.
    part: Part,
}

/// The kinds of endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// FI_EP_RDM.
    Rdm,
    /// A shared receive context: an inbox, which reaches nobody itself.
    Srx,
}

/// Passes news of the address vector to the engine.
#[derive(Debug)]
struct Names {
    engine: Weak<Engine>,
    ep: u32,
}

impl Names {
    /// Tells this endpoint of the engine's about the vector from now on, for as
    /// long as the result lives.
    fn listen(engine: &Arc<Engine>, ep: u32, av: &Av) -> Arc<Self> {
        let names = Arc::new(Self { engine: Arc::downgrade(engine), ep });
        let weak: Weak<Self> = Arc::downgrade(&names);
        av.listen(weak);
        names
    }
}

impl Listener for Names {
    fn inserted(&self, index: fi_addr_t, addr: &Addr) {
        if let Some(engine) = self.engine.upgrade() {
            engine.with(self.ep, |ep| ep.name_inserted(index, addr));
        }
    }

    fn identified(&self, index: fi_addr_t, id: fi_addr_t) {
        if let Some(engine) = self.engine.upgrade() {
            engine.with(self.ep, |ep| ep.name_identified(index, id));
        }
    }

    fn removed(&self, index: fi_addr_t, _addr: &Addr) {
        if let Some(engine) = self.engine.upgrade() {
            engine.with(self.ep, |ep| ep.name_removed(index));
        }
    }
}

impl RxmEp {
    pub(crate) fn new(engine: Arc<Engine>, kind: Kind, identity: Identity) -> Self {
        let id = engine.add_ep(identity);
        Self::part(engine, id, kind, Part::Whole)
    }

    /// A scalable endpoint with so many transmit and receive contexts.
    pub(crate) fn scalable(
        engine: Arc<Engine>,
        identity: &Identity,
        counts: [usize; 2],
    ) -> Result<Self> {
        let add = |most, receivers| engine.add_contexts(identity, most, receivers);
        let group = Group::new(counts, add)?;
        Ok(Self::part(engine, group.ids()[0], Kind::Rdm, Part::Scalable(Arc::new(group))))
    }

    fn part(engine: Arc<Engine>, id: u32, kind: Kind, part: Part) -> Self {
        Self { engine, id, kind, names: OnceLock::new(), part }
    }

    /// A scalable endpoint is reachable from now on.
    fn enable_contexts(&self, group: &Group, bindings: &Bindings) -> Result {
        for id in group.ids() {
            if let Some(av) = &bindings.av {
                group.keep(Names::listen(&self.engine, *id, av));
            }
        }
        self.engine.enable_contexts(group.ids(), bindings)
    }

    /// Starts a transfer.
    #[inline]
    fn transfer(&self, start: impl FnOnce(&mut Ep) -> Result) -> Result {
        let mut state = self.engine.lock();
        let ep = state.ep(self.id);
        let result = start(ep);
        if std::mem::take(&mut ep.wants_help) {
            drop(state);
            self.engine.help();
        }
        result
    }
}

impl Endpoint for RxmEp {
    const ACKNOWLEDGES: bool = true;
    const LATER: bool = true;
    const BUFFERS: bool = true;

    fn opened(&self, fid: FidPtr) {
        // The two contexts of an index are one to the engine, which names the
        // one that receives.
        if !matches!(self.part, Part::Scalable(_) | Part::Context(_, Half::Transmit, _)) {
            self.engine.lock().ep(self.id).inbox.set_fid(fid);
        }
    }

    fn enable(&self, bindings: &Bindings, srx: Option<&Self>) -> Result {
        match &self.part {
            Part::Scalable(group) => return self.enable_contexts(group, bindings),
            Part::Context(_, half, _) => {
                self.engine.lock().ep(self.id).bind_half(*half, bindings);
                return Ok(());
            }
            Part::Whole if self.kind == Kind::Srx => {
                self.engine.lock().ep(self.id).inbox.bind(&bindings.ledger.rx);
                return Ok(());
            }
            Part::Whole => {}
        }
        if srx.is_some_and(|srx| !Arc::ptr_eq(&self.engine, &srx.engine)) {
            return Err(Error::INVAL);
        }
        // Before any peer can call: what is inserted after its name was looked
        // up must be heard of.
        if let Some(av) = &bindings.av {
            self.names.get_or_init(|| Names::listen(&self.engine, self.id, av));
        }
        self.engine.enable(self.id, bindings, srx.map(|srx| srx.id))
    }

    fn bound_late(&self, bindings: &Bindings) -> Result {
        let mut state = self.engine.lock();
        let ep = state.ep(self.id);
        match &self.part {
            Part::Whole => ep.bound_late(bindings)?,
            Part::Context(_, half, _) => ep.bind_half(*half, bindings),
            Part::Scalable(_) => return Err(Error::OPBADSTATE),
        }
        Ok(())
    }

    fn context(&self, index: usize, attr: &ContextAttr) -> Result<Self> {
        let Part::Scalable(group) = &self.part else { return Err(Error::INVAL) };
        let (id, half) = group.take(index, attr)?;
        self.engine.lock().ep(id).become_context(attr);
        let part = Part::Context(group.clone(), half, index);
        Ok(Self::part(self.engine.clone(), id, self.kind, part))
    }

    fn cancel(&self, context: Context, aside: bool) -> Result {
        if matches!(self.part, Part::Context(_, Half::Transmit, _)) {
            // It has no receives; those of the engine's endpoint are another's.
            return Ok(());
        }
        self.engine.lock().ep(self.id).inbox.cancel(context, aside);
        Ok(())
    }

    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize> {
        match name {
            FI_OPT_MIN_MULTI_RECV => {
                let size = self.engine.lock().ep(self.id).inbox.min_multi_recv().to_ne_bytes();
                value[..size.len()].copy_from_slice(&size);
                Ok(size.len())
            }
            FI_OPT_MAX_ATOMIC_SIZE => {
                let size = max_atomic_bytes().to_ne_bytes();
                value[..size.len()].copy_from_slice(&size);
                Ok(size.len())
            }
            FI_OPT_BUFFERED_LIMIT | FI_OPT_BUFFERED_MIN => {
                let size = self.engine.lock().ep(self.id).buffering(name)?.to_ne_bytes();
                value[..size.len()].copy_from_slice(&size);
                Ok(size.len())
            }
            _ => Err(Error::NOPROTOOPT),
        }
    }

    fn setopt(&self, name: c_int, value: &[u8]) -> Result {
        match name {
            FI_OPT_MIN_MULTI_RECV => {
                let bytes = value.try_into().map_err(|_| Error::INVAL)?;
                let size = usize::from_ne_bytes(bytes);
                self.engine.lock().ep(self.id).inbox.set_min_multi_recv(size);
                Ok(())
            }
            FI_OPT_BUFFERED_LIMIT | FI_OPT_BUFFERED_MIN => {
                let bytes = value.try_into().map_err(|_| Error::INVAL)?;
                self.engine.lock().ep(self.id).set_buffering(name, usize::from_ne_bytes(bytes))
            }
            _ => Err(Error::NOPROTOOPT),
        }
    }

    fn close(&self) {
        match &self.part {
            Part::Whole => self.engine.close_ep(self.id),
            Part::Scalable(group) => group.ids().iter().for_each(|id| self.engine.close_ep(*id)),
            Part::Context(group, half, index) => {
                group.give_back(*half, *index, |id| self.engine.lock().close_half(id, *half));
            }
        }
    }

    fn size_left(&self, tx: bool) -> Result<usize> {
        if tx { Ok(self.engine.lock().ep(self.id).tx_left()) } else { Err(Error::NOSYS) }
    }
}

impl Msg for RxmEp {
    #[inline]
    fn send(&self, op: SendOp) -> Result {
        self.transfer(|ep| ep.send(op, false))
    }
    #[inline]
    fn recv(&self, op: RecvOp) -> Result {
        let mut state = self.engine.lock();
        if op.flags & (FI_CLAIM | FI_DISCARD) != 0 {
            return state.special(self.id, op, false);
        }
        state.post(self.id, op, false)
    }
}

impl Tagged for RxmEp {
    #[inline]
    fn tsend(&self, op: SendOp) -> Result {
        self.transfer(|ep| ep.send(op, true))
    }
    #[inline]
    fn trecv(&self, op: RecvOp) -> Result {
        let mut state = self.engine.lock();
        if op.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD | ONLY_TAG) != 0 {
            return state.special(self.id, op, true);
        }
        state.post(self.id, op, true)
    }
}

impl Rma for RxmEp {
    fn read(&self, op: ReadOp) -> Result {
        self.transfer(|ep| ep.read(op))
    }
    fn write(&self, op: WriteOp) -> Result {
        self.transfer(|ep| ep.write(op))
    }
}

impl Atomic for RxmEp {
    const OFFERED: bool = true;
    fn max_bytes(operation: Operation) -> usize {
        max_atomic(operation)
    }
    fn atomic(&self, op: AtomicOp) -> Result {
        self.transfer(|ep| ep.atomic(op))
    }
}

impl Cm for RxmEp {
    fn getname(&self) -> Result<Vec<u8>> {
        if self.kind == Kind::Srx {
            return Err(Error::NOSYS);
        }
        self.engine.lock().ep(self.id).name()
    }

    fn setname(&self, name: &[u8]) -> Result {
        self.engine.lock().ep(self.id).set_local(Addr::from_bytes(name)?)
    }
}
