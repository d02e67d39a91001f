//! The provider's endpoints: FI_EP_MSG and FI_EP_RDM.
use crate::engine::{Identity, Kind};
use crate::net::{Engine, Request};
use crate::sock::to_bytes;
use crate::wire::{CM_DATA_MAX, MAX_ATOMIC};
use core::ffi::c_int;
use ofi_provider::abi::{
    FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN, FI_OPT_CM_DATA_SIZE, FI_OPT_FIREWALL_ADDR,
    FI_OPT_MAX_ATOMIC_SIZE, FI_OPT_MIN_MULTI_RECV, fi_addr_t,
};
use ofi_provider::addr;
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Atomic, AtomicOp, Bindings, Cm, ContextAttr, Endpoint, Msg, ReadOp, RecvOp, Rma, SendOp,
    Tagged, WriteOp,
};
use ofi_provider::atomic::Operation;
use ofi_provider::av::{Av, Listener};
use ofi_provider::contexts::{Group, Half, Part};
use ofi_provider::core_provider::OPT_SOURCE;
use ofi_provider::cq::Context;
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// An endpoint as `api` sees it; all work is done by the engine.
#[derive(Debug)]
pub(crate) struct TcpEp {
    engine: Arc<Engine>,
    id: u32,
    kind: Kind,
    /// The address fi_connect connects to if it is given none.
    dest: Option<SocketAddr>,
    /// The request the endpoint was opened with, until fi_accept.
    request: Mutex<Option<Request>>,
    /// Passes changes of the address vector to the engine.
    names: OnceLock<Arc<Names>>,
    /// Whether this is an endpoint, a scalable one, or a context of one.
    part: Part,
}

/// Passes changes of an address vector to an endpoint of the engine.
#[derive(Debug)]
pub(crate) struct Names {
    engine: Weak<Engine>,
    ep: u32,
}

impl Names {
    /// Tells the engine's endpoint about changes of the vector from now on, as long as the
    /// result lives.
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
            engine.lock().name_inserted(self.ep, index, addr);
        }
    }

    fn identified(&self, index: fi_addr_t, id: fi_addr_t) {
        if let Some(engine) = self.engine.upgrade() {
            engine.lock().name_identified(self.ep, index, id);
        }
    }

    fn removed(&self, index: fi_addr_t, _addr: &Addr) {
        if let Some(engine) = self.engine.upgrade() {
            engine.lock().name_removed(self.ep, index);
        }
    }
}

impl TcpEp {
    pub(crate) fn new(
        engine: Arc<Engine>,
        identity: Identity,
        dest: Option<SocketAddr>,
        request: Option<Request>,
    ) -> Self {
        let kind = identity.kind;
        let id = engine.lock().add_ep(identity);
        Self { dest, request: Mutex::new(request), ..Self::part(engine, id, kind, Part::Whole) }
    }

    /// Makes a scalable endpoint with this many transmit and receive contexts.
    pub(crate) fn scalable(
        engine: Arc<Engine>,
        identity: &Identity,
        counts: [usize; 2],
    ) -> Result<Self> {
        let group = Group::new(counts, |most, receivers| {
            engine.lock().add_contexts(identity, most, receivers)
        })?;
        Ok(Self::part(engine, group.ids()[0], Kind::Rdm, Part::Scalable(Arc::new(group))))
    }

    fn part(engine: Arc<Engine>, id: u32, kind: Kind, part: Part) -> Self {
        let (request, names) = (Mutex::default(), OnceLock::new());
        Self { engine, id, kind, dest: None, request, names, part }
    }

    /// Enables a scalable endpoint: it listens, and hears of changes of its address vector.
    fn enable_contexts(&self, group: &Group, bindings: &Bindings) -> Result {
        let mut state = self.engine.lock();
        for id in group.ids() {
            state.ep(*id).bind(bindings);
            if let Some(av) = &bindings.av {
                group.keep(Names::listen(&self.engine, *id, av));
            }
        }
        state.listen_for(group.ids())
    }

    fn take_request(&self) -> Option<Request> {
        self.request.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    fn only(&self, kind: Kind) -> Result {
        if self.kind == kind { Ok(()) } else { Err(Error::NOSYS) }
    }
}

impl Endpoint for TcpEp {
    const BUFFERS: bool = true;
    const ACKNOWLEDGES: bool = true;
    const LATER: bool = true;

    fn opened(&self, fid: FidPtr) {
        // The two contexts of an index are one to the engine, which names the
        // one that receives.
        if !matches!(self.part, Part::Scalable(_) | Part::Context(_, Half::Transmit, _)) {
            self.engine.lock().ep(self.id).set_fid(fid);
        }
    }

    fn enable(&self, bindings: &Bindings, srx: Option<&Self>) -> Result {
        match &self.part {
            Part::Whole => {}
            Part::Scalable(group) => return self.enable_contexts(group, bindings),
            Part::Context(_, half, _) => {
                self.engine.lock().bind_half(self.id, *half, bindings);
                return Ok(());
            }
        }
        let mut state = self.engine.lock();
        state.ep(self.id).bind(bindings);
        if let Some(srx) = srx {
            if self.kind == Kind::Srx || !Arc::ptr_eq(&self.engine, &srx.engine) {
                return Err(Error::INVAL);
            }
            // Messages that are reported as they come, and the library's own, belong to
            // one endpoint.
            if state.ep(self.id).is_buffered() || state.ep(self.id).is_collective() {
                return Err(Error::INVAL);
            }
            state.share_inbox(self.id, srx.id);
        }
        if self.kind == Kind::Rdm {
            // Before any peer can call: what is inserted after its name was looked
            // up must be heard of.
            if let Some(av) = &bindings.av {
                self.names.get_or_init(|| Names::listen(&self.engine, self.id, av));
            }
            state.listen(self.id)?;
        }
        Ok(())
    }

    fn bound_late(&self, bindings: &Bindings) -> Result {
        let mut state = self.engine.lock();
        match &self.part {
            Part::Whole => state.ep(self.id).bind(bindings),
            Part::Context(_, half, _) => state.bind_half(self.id, *half, bindings),
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
            // A transmit context has no receives: those of the engine's endpoint are the receive
            // context's.
            return Ok(());
        }
        self.engine.lock().cancel(self.id, context, aside);
        Ok(())
    }

    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize> {
        let size = match name {
            FI_OPT_MIN_MULTI_RECV => *self.engine.lock().min_multi_recv(self.id),
            FI_OPT_CM_DATA_SIZE if self.kind == Kind::Msg => CM_DATA_MAX,
            FI_OPT_MAX_ATOMIC_SIZE if self.kind != Kind::Srx => MAX_ATOMIC,
            FI_OPT_FIREWALL_ADDR if self.kind == Kind::Rdm => {
                // FI_OPT_FIREWALL_ADDR is an int, as in the original.
                let bytes = c_int::from(*self.engine.lock().firewalled(self.id)).to_ne_bytes();
                value[..bytes.len()].copy_from_slice(&bytes);
                return Ok(bytes.len());
            }
            name => self.engine.lock().ep(self.id).buffering(name)?,
        };
        let bytes = size.to_ne_bytes();
        value[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn setopt(&self, name: c_int, value: &[u8]) -> Result {
        match name {
            FI_OPT_MIN_MULTI_RECV => {
                let bytes = value.try_into().map_err(|_| Error::INVAL)?;
                *self.engine.lock().min_multi_recv(self.id) = usize::from_ne_bytes(bytes);
                Ok(())
            }
            FI_OPT_FIREWALL_ADDR if self.kind == Kind::Rdm => {
                // The value may be a bool, or the int that fi_getopt gives.
                let behind = match value.len() {
                    1 | 4 => value.iter().any(|byte| *byte != 0),
                    _ => return Err(Error::INVAL),
                };
                *self.engine.lock().firewalled(self.id) = behind;
                Ok(())
            }
            OPT_SOURCE if self.kind == Kind::Msg => {
                let bytes = value.try_into().map_err(|_| Error::INVAL)?;
                self.engine.lock().set_source(self.id, u64::from_ne_bytes(bytes));
                Ok(())
            }
            FI_OPT_BUFFERED_LIMIT | FI_OPT_BUFFERED_MIN => {
                let bytes = value.try_into().map_err(|_| Error::INVAL)?;
                self.engine.lock().ep(self.id).set_buffering(name, usize::from_ne_bytes(bytes))
            }
            _ => Err(Error::NOPROTOOPT),
        }
    }

    fn fd(&self) -> Result<RawFd> {
        self.only(Kind::Msg)?;
        Ok(self.engine.lock().connected_socket(self.id).ok_or(Error::NOTCONN)?.fd())
    }

    fn close(&self) {
        if self.engine.is_copy() {
            // In a forked child only the domain's closing closes the descriptors.
            return;
        }
        match &self.part {
            Part::Whole => self.engine.lock().close_ep(self.id),
            Part::Scalable(group) => {
                let mut state = self.engine.lock();
                group.ids().iter().for_each(|id| state.close_ep(*id));
            }
            Part::Context(group, half, index) => {
                group.give_back(*half, *index, |id| self.engine.lock().close_half(id, *half));
            }
        }
        drop(self.take_request());
    }

    fn size_left(&self, tx: bool) -> Result<usize> {
        if tx { Ok(self.engine.lock().ep(self.id).tx_left()) } else { Err(Error::NOSYS) }
    }
}

impl Msg for TcpEp {
    #[inline(always)]
    fn send(&self, op: SendOp) -> Result {
        self.engine.lock().send(self.id, &op, false)
    }
    #[inline(always)]
    fn recv(&self, op: RecvOp) -> Result {
        self.engine.lock().post(self.id, op, false)
    }
}

impl Tagged for TcpEp {
    #[inline(always)]
    fn tsend(&self, op: SendOp) -> Result {
        self.engine.lock().send(self.id, &op, true)
    }
    #[inline(always)]
    fn trecv(&self, op: RecvOp) -> Result {
        self.engine.lock().post(self.id, op, true)
    }
}

impl Rma for TcpEp {
    fn read(&self, op: ReadOp) -> Result {
        self.engine.lock().read_remote(self.id, op)
    }
    fn write(&self, op: WriteOp) -> Result {
        self.engine.lock().write(self.id, op)
    }
}

impl Atomic for TcpEp {
    const OFFERED: bool = true;
    fn max_bytes(_operation: Operation) -> usize {
        MAX_ATOMIC
    }
    fn atomic(&self, op: AtomicOp) -> Result {
        self.engine.lock().atomic(self.id, op)
    }
}

impl Cm for TcpEp {
    fn getname(&self) -> Result<Vec<u8>> {
        if self.kind == Kind::Srx {
            return Err(Error::NOSYS);
        }
        let mut state = self.engine.lock();
        if let Some(socket) = state.connected_socket(self.id) {
            return Ok(to_bytes(&socket.local_addr()?));
        }
        Ok(to_bytes(&state.ep(self.id).local()))
    }

    fn setname(&self, name: &[u8]) -> Result {
        let addr = addr::from_bytes(name)?;
        self.engine.lock().ep(self.id).set_local(addr);
        Ok(())
    }

    fn getpeer(&self) -> Result<Vec<u8>> {
        self.only(Kind::Msg)?;
        let state = self.engine.lock();
        let socket = state.connected_socket(self.id).ok_or(Error::NOTCONN)?;
        Ok(to_bytes(&socket.peer_addr()?))
    }

    fn connect(&self, to: Option<&[u8]>, param: &[u8]) -> Result {
        self.only(Kind::Msg)?;
        if param.len() > CM_DATA_MAX {
            return Err(Error::INVAL);
        }
        let to = match to {
            Some(bytes) => addr::from_bytes(bytes)?,
            None => self.dest.ok_or(Error::INVAL)?,
        };
        self.engine.lock().connect(self.id, &to, param)
    }

    fn accept(&self, param: &[u8]) -> Result {
        self.only(Kind::Msg)?;
        if param.len() > CM_DATA_MAX {
            return Err(Error::INVAL);
        }
        let request = self.take_request().ok_or(Error::INVAL)?;
        self.engine.lock().accept(self.id, request, param)
    }

    fn shutdown(&self) -> Result {
        self.only(Kind::Msg)?;
        self.engine.lock().shutdown(self.id)
    }
}
