//! Objects of the simulated core provider.
use super::*;
use core::ffi::{CStr, c_int};
use ofi_provider::abi::{
    FI_DELIVERY_COMPLETE, FI_INJECT, FI_MSG, FI_READ, FI_REMOTE_CQ_DATA, FI_RMA, FI_SEND, FI_WRITE,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Atomic, Bindings, Cm, ConnReqReporter, Domain, DomainSettings, Endpoint, Fabric, Msg,
    NewDomain, PassiveEp, ReadOp, RecvOp, Reject, Rma, RxAttr, SendOp, Tagged, WriteOp,
    take_request,
};
use ofi_provider::core_provider::{OPT_ACCEPT_LIMIT, OPT_CONN_USAGE, OPT_PEER_ENDED, OPT_SOURCE};
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::eq::{Eq, FidPtr};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoRef;
use ofi_provider::progress::Progress;
use ofi_provider::sys::Epoll;
use ofi_provider::wait::WaitKind;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub(super) struct WireFabric;

pub(super) fn here() -> Arc<Mutex<RxmWorld>> {
    HERE.with_borrow(|world| world.clone()).expect("a simulation runs on this thread")
}

impl Fabric for WireFabric {
    type PassiveEp = WirePep;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, _api_version: u32) -> Result<NewDomain> {
        let settings = DomainSettings::new(info, true)?;
        Ok(WireDomain { settings, still: Arc::new(WiresProgress::new()?) }.into())
    }

    fn passive_ep(&self, info: InfoRef<'_>, _api_version: u32) -> Result<WirePep> {
        let at = Addr::of_info(info)?.ip()?;
        let reporter = Arc::new(Mutex::new(ConnReqReporter::new(info.to_owned()?)));
        Ok(WirePep { world: here(), at, reporter, still: Arc::new(WiresProgress::new()?) })
    }
}

/// Nothing happens by itself.
pub(super) struct WiresProgress(Epoll);

impl WiresProgress {
    fn new() -> Result<Self> {
        Ok(Self(Epoll::new()?))
    }
}

impl Progress for WiresProgress {
    fn progress(&self) {
        ASKED.set(ASKED.get() + 1);
    }

    fn wait_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
    fn activity(&self) -> u64 {
        0
    }
}

pub(super) struct WireDomain {
    settings: DomainSettings,
    still: Arc<WiresProgress>,
}

impl Domain for WireDomain {
    type Endpoint = WireEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.still.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn blocking_opened(&self, _kind: WaitKind) -> Result {
        Ok(())
    }

    fn thread_name(&self) -> String {
        String::new()
    }

    fn endpoint(&self, info: InfoRef<'_>) -> Result<WireEp> {
        // Without memory for an endpoint its request waits on, to be rejected.
        ofi_simulation::here::memory()?;
        let handle = info.handle();
        let request = match handle.is_null() {
            true => None,
            false => Some(take_request::<WireRequest>(handle)?),
        };
        let world = here();
        let port = WirePort {
            local: Addr::of_info(info)?.ip()?,
            regions: self.settings.regions.clone(),
            fid: FidPtr(std::ptr::null_mut()),
            bindings: None,
            pool: None,
            source: ofi_provider::abi::FI_ADDR_NOTAVAIL,
            posted: VecDeque::new(),
            wire: None,
            up: false,
        };
        let id = insert_slot(&mut look(&world).ports, port);
        let request = Mutex::new(request);
        Ok(WireEp { world, id, shared: false, request })
    }

    fn srx_context(&self, _rx: RxAttr) -> Result<WireEp> {
        let world = here();
        let id = insert_slot(&mut look(&world).pools, VecDeque::new());
        Ok(WireEp { world, id, shared: true, request: Mutex::default() })
    }
}

/// Pending connection request.
pub(super) struct WireRequest {
    pub(super) wire: usize,
}

impl Reject for WireRequest {
    fn reject(self, param: &[u8]) -> Result {
        let events = LinkEvent::Failed { error: Error::CONNREFUSED, data: param.to_vec() };
        look(&here()).events.push((self.wire, 0, events));
        Ok(())
    }
}

pub(super) struct WirePep {
    world: Arc<Mutex<RxmWorld>>,
    at: SocketAddr,
    reporter: Arc<Mutex<ConnReqReporter>>,
    still: Arc<WiresProgress>,
}

impl PassiveEp for WirePep {
    type Request = WireRequest;

    fn listen(&self, eq: Arc<Eq>, fid: FidPtr) -> Result {
        self.reporter.lock().unwrap().listen(eq, fid);
        let listener = SimListener { at: self.at, reporter: self.reporter.clone() };
        look(&self.world).listeners.push(listener);
        Ok(())
    }

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.still.clone()
    }

    fn getname(&self) -> Result<Vec<u8>> {
        Ok(Addr::Ip(self.at).to_bytes())
    }

    fn setname(&self, _addr: &[u8]) -> Result {
        Err(Error::NOSYS)
    }

    fn set_backlog(&self, _backlog: c_int) -> Result {
        Ok(())
    }

    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize> {
        let world = look(&self.world);
        if name != OPT_CONN_USAGE || world.plan.descriptors.is_none() {
            return Err(Error::NOPROTOOPT);
        }
        let usage = world.conn_usage(self.at).map(|number| (number as u64).to_ne_bytes());
        let bytes = usage.as_flattened();
        value.get_mut(..bytes.len()).ok_or(Error::TOOSMALL)?.copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn setopt(&self, name: c_int, _value: &[u8]) -> Result {
        let is_limited = name == OPT_ACCEPT_LIMIT && look(&self.world).plan.descriptors.is_some();
        if is_limited { Ok(()) } else { Err(Error::NOPROTOOPT) }
    }

    fn cm_data_size(&self) -> usize {
        256
    }

    fn close(&self) {
        self.reporter.lock().unwrap().close();
        let mut world = look(&self.world);
        world.listeners.retain(|listener| listener.at != self.at);
        // Unanswered requests are disconnected.
        let at = self.at;
        let asking = |wire: &Option<Wire>| {
            wire.as_ref().is_some_and(|wire| !wire.made && wire.listener == at)
        };
        for id in 0..world.wires.len() {
            let notified = |events: &(usize, usize, LinkEvent)| {
                events.0 == id && !matches!(events.2, LinkEvent::Connected { .. })
            };
            if asking(&world.wires[id]) && !world.events.iter().any(notified) {
                let events = LinkEvent::Failed { error: Error::CONNREFUSED, data: Vec::new() };
                world.events.push((id, 0, events));
            }
        }
    }
}

/// An endpoint, or a shared receive context.
pub(super) struct WireEp {
    world: Arc<Mutex<RxmWorld>>,
    id: usize,
    shared: bool,
    request: Mutex<Option<WireRequest>>,
}

impl WireEp {
    fn with<R>(&self, work: impl FnOnce(&mut WirePort) -> R) -> R {
        work(look(&self.world).ports[self.id].as_mut().expect("an endpoint is open until closed"))
    }

    fn post(&self, what: WireWork, context: Context, kind: u64, flags: u64) -> Result {
        let mut world = look(&self.world);
        let WirePlan { rejections, depth, .. } = world.plan;
        let prompt = world.prompt;
        let full = !prompt && world.random.one_in(rejections);
        let port = world.ports[self.id].as_ref().expect("an endpoint is open until closed");
        let Some((wire, side)) = port.wire.filter(|_| port.up) else { return Err(Error::NOTCONN) };
        let report = flags & ofi_provider::abi::FI_COMPLETION != 0;
        let fits =
            port.bindings.as_ref().is_some_and(|bound| bound.completions.tx.has_space(report));
        let direction =
            &mut world.wires[wire].as_mut().expect("a wire has this end").directions[side];
        if full || direction.posted.len() >= depth || !fits {
            return Err(Error::AGAIN);
        }
        let what = match what {
            WireWork::Send(buf) if flags & FI_INJECT != 0 => {
                WireWork::Bytes(buf.to_boxed().unwrap())
            }
            what => what,
        };
        let delivered = flags & FI_DELIVERY_COMPLETE != 0;
        direction.posted.push_back(WirePost { what, context, kind, report, delivered });
        Ok(())
    }
}

impl Endpoint for WireEp {
    fn opened(&self, fid: FidPtr) {
        if !self.shared {
            self.with(|port| port.fid = fid);
        }
    }

    fn enable(&self, bindings: &Bindings, srx: Option<&Self>) -> Result {
        if !self.shared {
            self.with(|port| {
                port.bindings = Some(bindings.clone());
                port.pool = srx.map(|srx| srx.id);
            });
        }
        Ok(())
    }

    fn cancel(&self, _context: Context, _ext: bool) -> Result {
        Err(Error::NOSYS)
    }

    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize> {
        if name != OPT_PEER_ENDED {
            return Err(Error::NOPROTOOPT);
        }
        let world = look(&self.world);
        let port = world.ports[self.id].as_ref().expect("an endpoint is open until closed");
        let wire = port.wire.and_then(|(wire, side)| Some((world.wires[wire].as_ref()?, side)));
        let ended = wire.is_some_and(|(wire, side)| wire.directions[1 - side].closed);
        *value.first_mut().ok_or(Error::TOOSMALL)? = ended.into();
        Ok(1)
    }

    fn setopt(&self, name: c_int, value: &[u8]) -> Result {
        if name != OPT_SOURCE {
            return Err(Error::NOPROTOOPT);
        }
        let bytes = value.try_into().map_err(|_| Error::INVAL)?;
        self.with(|port| port.source = u64::from_ne_bytes(bytes));
        Ok(())
    }

    fn close(&self) {
        let world = &mut *look(&self.world);
        if self.shared {
            world.pools[self.id] = None;
            return;
        }
        let Some(mut port) = world.ports[self.id].take() else { return };
        let mut left = Vec::new();
        if let Some((id, side)) = port.wire {
            if let Some(wire) = &mut world.wires[id] {
                let direction = &mut wire.directions[side];
                left = direction.take_all();
                direction.closed = true;
                wire.ports[side] = None;
                world.forget_if_unused(id);
            }
        }
        if let Some(bound) = &mut port.bindings {
            // Nothing is reported, but all is accounted for.
            bound.completions.tx.mute();
            for done in left {
                let of = Completion::of(done.context, done.kind, 0);
                bound.completions.tx.failed(CompletionError::new(of, Error::CANCELED));
            }
            bound.completions.tx.close();
            bound.completions.rx.dropped(port.posted.len());
            if port.pool.is_none() {
                bound.completions.rx.close();
            }
        }
        // A request that it was opened for and did not answer.
        if let Some(request) = self.request.lock().unwrap().take() {
            let events = LinkEvent::Failed { error: Error::CONNREFUSED, data: Vec::new() };
            world.events.push((request.wire, 0, events));
        }
    }
}

impl Msg for WireEp {
    fn send(&self, op: SendOp) -> Result {
        self.post(WireWork::Send(op.buf), op.context, FI_SEND | FI_MSG, op.flags)
    }

    fn recv(&self, op: RecvOp) -> Result {
        let world = &mut *look(&self.world);
        let WirePlan { rejections, strict, .. } = world.plan;
        let queue = if self.shared {
            world.pools[self.id].as_mut().expect("a context is open until closed")
        } else {
            &mut world.ports[self.id].as_mut().expect("an endpoint is open until closed").posted
        };
        // Without the first nothing could come, and where receives are counted each is promised.
        let may_refuse = !world.prompt && !strict && !queue.is_empty();
        if may_refuse && world.random.one_in(rejections * 4) {
            return Err(Error::AGAIN);
        }
        queue.push_back(op);
        Ok(())
    }
}

impl Tagged for WireEp {}

impl Rma for WireEp {
    fn read(&self, op: ReadOp) -> Result {
        let what = WireWork::Read { buf: op.buf, from: op.remote };
        self.post(what, op.context, FI_READ | FI_RMA, op.flags)
    }

    fn write(&self, op: WriteOp) -> Result {
        let data = (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data);
        let what = WireWork::Write { buf: op.buf, to: op.remote, data };
        self.post(what, op.context, FI_WRITE | FI_RMA, op.flags)
    }
}

impl Atomic for WireEp {}

impl Cm for WireEp {
    fn connect(&self, addr: Option<&[u8]>, param: &[u8]) -> Result {
        let listener = Addr::from_bytes(addr.ok_or(Error::INVAL)?)?.ip()?;
        let world = &mut *look(&self.world);
        let caller = world.ports[self.id].as_ref().map_or(listener, |port| port.local);
        let (ports, directions) = ([Some(self.id), None], Default::default());
        if !world.has_descriptor(caller.ip()) {
            return Err(Error::MFILE);
        }
        let wire = Wire { ports, made: false, taken: false, caller, listener, directions };
        let id = insert_slot(&mut world.wires, wire);
        world.events.push((id, 1, LinkEvent::Called { data: param.to_vec() }));
        let port = world.ports[self.id].as_mut().expect("an endpoint is open until closed");
        port.wire = Some((id, 0));
        Ok(())
    }

    fn accept(&self, param: &[u8]) -> Result {
        let request = self.request.lock().unwrap().take().ok_or(Error::INVAL)?;
        let world = &mut *look(&self.world);
        let wire = world.wires[request.wire].as_mut().expect("a caller waits");
        (wire.ports[1], wire.made) = (Some(self.id), true);
        let port = world.ports[self.id].as_mut().expect("an endpoint is open until closed");
        port.wire = Some((request.wire, 1));
        world.events.push((request.wire, 1, LinkEvent::Connected { data: Vec::new() }));
        world.events.push((request.wire, 0, LinkEvent::Connected { data: param.to_vec() }));
        Ok(())
    }
}
