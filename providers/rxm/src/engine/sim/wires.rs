//! Core provider of a simulated world: connected endpoints over links in memory.
//!
//! A link delivers its data in order; events on different links occur in any order. Nothing happens
//! during the engine's calls: the simulator executes one event at a time.
mod provider;

use core::ffi::{c_char, c_int, c_void};
use ofi_provider::abi::{
    FI_CONNECTED, FI_MSG, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_SHUTDOWN,
    fi_fabric_attr, fi_info, fid_fabric,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{Bindings, ConnReqReporter, RecvOp, RemoteSegments, open_fabric};
use ofi_provider::buf::{RecvBuf, SendBuf};
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::eq::{EqEvent, EventError, FidPtr};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{ApiLevel, dup_raw, free_raw};
use ofi_provider::mr::MrTable;
use ofi_simulation::{InjectedFault, SimRandom, injected};
use provider::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

std::thread_local! {
    /// World of the simulation running on this thread.
    pub(super) static HERE: RefCell<Option<Arc<Mutex<RxmWorld>>>> = const { RefCell::new(None) };
    /// Number of progress calls to the core on this thread.
    pub(super) static ASKED: Cell<usize> = const { Cell::new(0) };
}

// Replacement of libfabric.so in a test binary: the calls of the engine to its core provider,
// implemented by this module.

/// Opens nothing: the simulator opens the engine's domain, without infos.
#[unsafe(no_mangle)]
extern "C" fn fi_getinfo(
    _: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    _: *const fi_info,
    _: *mut *mut fi_info,
) -> c_int {
    Error::NODATA.to_ret()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fi_fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: what the caller passes is as fi_fabric(3) has it.
    unsafe { open_fabric::<WireFabric>(attr, fabric, context) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fi_freeinfo(info: *mut fi_info) {
    // SAFETY: an info is the caller's, and made by the same functions.
    unsafe { free_raw(info) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fi_dupinfo(info: *const fi_info) -> *mut fi_info {
    // SAFETY: as above.
    unsafe { dup_raw(info, ApiLevel::V1_3) }.map_or(std::ptr::null_mut(), |copy| copy.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn fi_version() -> u32 {
    ofi_provider::info::API_VERSION
}

#[unsafe(no_mangle)]
extern "C" fn fi_log_enabled(_: *const c_void, _: c_int, _: c_int) -> c_int {
    0
}

/// Ignores all arguments.
#[unsafe(no_mangle)]
extern "C" fn fi_log() {}

#[unsafe(no_mangle)]
extern "C" fn fi_param_define() -> c_int {
    0
}

/// No parameter is set.
#[unsafe(no_mangle)]
extern "C" fn fi_param_get() -> c_int {
    Error::NODATA.to_ret()
}

/// Core provider's parameters drawn from the seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct WirePlan {
    /// Rejected transfers for lack of space: one in this many; 0: none.
    pub(super) rejections: usize,
    /// Maximum transfers queued in one direction of a link.
    pub(super) depth: usize,
    /// Completions of transfers are reported late.
    pub(super) late: bool,
    /// A write completes only on arrival, even if not requested.
    pub(super) acknowledges: bool,
    /// A message without a posted receive ends the test: the engine counts receives.
    pub(super) strict: bool,
    /// Descriptors of connections at each host: an attempt fails without one, and a connection
    /// request waits at its listener.
    pub(super) descriptors: Option<usize>,
}

/// Transfer not sent yet.
#[derive(Debug)]
struct WirePost {
    what: WireWork,
    context: Context,
    /// As the completion has them.
    kind: u64,
    report: bool,
    delivered: bool,
}

#[derive(Debug)]
enum WireWork {
    Send(SendBuf),
    Bytes(Box<[u8]>),
    Write { buf: SendBuf, to: RemoteSegments, data: Option<u64> },
    WriteBytes { bytes: Box<[u8]>, to: RemoteSegments, data: Option<u64> },
    Read { buf: RecvBuf, from: RemoteSegments },
}

/// Completion state of a transfer.
#[derive(Debug)]
struct WireDone {
    context: Context,
    kind: u64,
    report: bool,
    result: Result,
    /// Data returned by a read.
    bytes: Option<(RecvBuf, Vec<u8>)>,
}

#[derive(Debug)]
struct Flying {
    what: WireWork,
    /// Completes when this has arrived.
    completion: Option<WireDone>,
}

#[derive(Debug, Default)]
struct LinkDirection {
    posted: VecDeque<WirePost>,
    flying: VecDeque<Flying>,
    done: VecDeque<WireDone>,
    /// Nothing follows the data in flight.
    closed: bool,
}

#[derive(Debug)]
struct Wire {
    /// Connecting and accepting endpoint; none if closed, or not accepted yet.
    ports: [Option<usize>; 2],
    made: bool,
    /// The host of the listener has a descriptor of the link.
    taken: bool,
    /// Address of the connecting endpoint, existing or not, and of the listener.
    caller: SocketAddr,
    listener: SocketAddr,
    directions: [LinkDirection; 2],
}

/// A connected endpoint.
struct WirePort {
    local: SocketAddr,
    regions: Arc<MrTable>,
    fid: FidPtr,
    bindings: Option<Bindings>,
    /// The shared receive context.
    pool: Option<usize>,
    source: u64,
    posted: VecDeque<RecvOp>,
    wire: Option<(usize, usize)>,
    /// The application knows about the established connection.
    up: bool,
}

/// Pending event of a connection.
#[derive(Debug)]
enum LinkEvent {
    Called { data: Vec<u8> },
    Connected { data: Vec<u8> },
    Failed { error: Error, data: Vec<u8> },
}

struct SimListener {
    at: SocketAddr,
    reporter: Arc<Mutex<ConnReqReporter>>,
}

/// All there is.
pub(super) struct RxmWorld {
    pub(super) random: SimRandom,
    pub(super) plan: WirePlan,
    /// Nothing is refused any more.
    pub(super) prompt: bool,
    /// Kind of completion to fail next (FI_SEND or FI_WRITE); 0: none.
    pub(super) spoils: u64,
    ports: Vec<Option<WirePort>>,
    pools: Vec<Option<VecDeque<RecvOp>>>,
    listeners: Vec<SimListener>,
    wires: Vec<Option<Wire>>,
    /// Events by link and side; those of one end stay in order.
    events: Vec<(usize, usize, LinkEvent)>,
    next_port: u16,
}

/// Possible next event.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimEvent {
    Transmit(usize, usize),
    Arrives(usize, usize),
    Notified(usize, usize),
    Ends(usize, usize),
    Event(usize),
}

/// Puts something in the first free place.
fn insert_slot<T>(slots: &mut Vec<Option<T>>, what: T) -> usize {
    match slots.iter().position(Option::is_none) {
        Some(at) => {
            slots[at] = Some(what);
            at
        }
        None => {
            slots.push(Some(what));
            slots.len() - 1
        }
    }
}

impl RxmWorld {
    pub(super) fn new(random: SimRandom, plan: WirePlan) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            random,
            plan,
            prompt: false,
            spoils: 0,
            ports: Vec::new(),
            pools: Vec::new(),
            listeners: Vec::new(),
            wires: Vec::new(),
            events: Vec::new(),
            next_port: 20_000,
        }))
    }

    /// Returns the events possible now.
    pub(super) fn happenings(&self) -> Vec<SimEvent> {
        let mut all = Vec::new();
        for (id, wire) in self.wires.iter().enumerate() {
            let Some(wire) = wire.as_ref().filter(|wire| wire.made) else { continue };
            for side in 0..2 {
                let (out, other) = (&wire.directions[side], &wire.directions[1 - side]);
                let up = |side: usize| self.port_of(wire, side).is_some_and(|port| port.up);
                if up(side) && !out.posted.is_empty() {
                    all.push(SimEvent::Transmit(id, side));
                }
                if self.can_arrive(wire, side) {
                    all.push(SimEvent::Arrives(id, side));
                }
                let fits = |done: &WireDone| {
                    let bound = self.port_of(wire, side).and_then(|port| port.bindings.as_ref());
                    bound.is_some_and(|bound| bound.completions.tx.has_space(done.report))
                };
                if out.done.front().is_some_and(fits) {
                    all.push(SimEvent::Notified(id, side));
                }
                if up(side) && other.closed && other.flying.is_empty() {
                    all.push(SimEvent::Ends(id, side));
                }
            }
        }
        for (at, (wire, side, event)) in self.events.iter().enumerate() {
            if matches!(event, LinkEvent::Called { .. }) && !self.may_accept(*wire) {
                continue;
            }
            if !self.events[..at].iter().any(|(of, end, _)| (of, end) == (wire, side)) {
                all.push(SimEvent::Event(at));
            }
        }
        all
    }

    /// One thing happens, if any can.
    pub(super) fn something_happens(&mut self) -> bool {
        let all = self.happenings();
        if all.is_empty() {
            return false;
        }
        match self.random.pick(&all) {
            SimEvent::Transmit(wire, side) => self.leaves(wire, side),
            SimEvent::Arrives(wire, side) => self.arrives(wire, side),
            SimEvent::Notified(..)
                if all.len() > 1 && self.plan.late && self.random.below(4) > 0 => {}
            SimEvent::Notified(wire, side) => self.notified(wire, side),
            SimEvent::Ends(wire, side) => self.ends(wire, side),
            SimEvent::Event(at) => {
                let (wire, side, events) = self.events.remove(at);
                self.received(wire, side, events);
            }
        }
        true
    }

    /// Returns the number of descriptors used by links at a host.
    fn used_descriptors(&self, host: IpAddr) -> usize {
        let used = |wire: &Wire| {
            let dials = wire.caller.ip() == host && wire.ports[0].is_some();
            let accepts = wire.taken && (!wire.made || wire.ports[1].is_some());
            usize::from(dials) + usize::from(accepts && wire.listener.ip() == host)
        };
        self.wires.iter().flatten().map(used).sum()
    }

    fn has_descriptor(&self, host: IpAddr) -> bool {
        self.plan.descriptors.is_none_or(|max| self.used_descriptors(host) < max)
    }

    fn may_accept(&self, wire: usize) -> bool {
        let wire = self.wires[wire].as_ref();
        wire.is_none_or(|wire| self.has_descriptor(wire.listener.ip()))
    }

    /// Returns the descriptors used at a host, their maximum, and the number of connection requests
    /// waiting for one. The maximum is unknown to the host until it is reached.
    fn conn_usage(&self, listener: SocketAddr) -> [usize; 3] {
        let used = self.used_descriptors(listener.ip());
        let waits = |(wire, _, event): &&(usize, usize, LinkEvent)| {
            let wire = self.wires[*wire].as_ref();
            matches!(event, LinkEvent::Called { .. })
                && wire.is_some_and(|wire| wire.listener == listener)
        };
        match self.has_descriptor(listener.ip()) {
            true => [used, 1000, 0],
            false => match self.events.iter().filter(waits).count() {
                0 => [used, 1000, 0],
                waiting => [used, used, waiting],
            },
        }
    }

    fn port_of(&self, wire: &Wire, side: usize) -> Option<&WirePort> {
        wire.ports[side].and_then(|port| self.ports[port].as_ref())
    }

    fn can_arrive(&self, wire: &Wire, side: usize) -> bool {
        let Some(first) = wire.directions[side].flying.front() else { return false };
        let Some(port) = self.port_of(wire, 1 - side) else { return true };
        let Some(bound) = &port.bindings else { return false };
        match &first.what {
            WireWork::Bytes(_) | WireWork::Send(_) => {
                let has_receive = match port.pool {
                    Some(pool) => self.pools[pool].as_ref().is_some_and(|pool| !pool.is_empty()),
                    None => !port.posted.is_empty(),
                };
                assert!(has_receive || !self.plan.strict, "a message finds no receive");
                has_receive && bound.completions.rx.has_space()
            }
            WireWork::Read { .. } => true,
            _ => bound.completions.rx.has_space(),
        }
    }

    /// Sends the oldest posted transfer, and completes it as the link requires.
    fn leaves(&mut self, wire: usize, side: usize) {
        let acknowledges = self.plan.acknowledges;
        let Some(wire) = &mut self.wires[wire] else { return };
        let direction = &mut wire.directions[side];
        let Some(WirePost { what, context, kind, report, delivered }) =
            direction.posted.pop_front()
        else {
            return;
        };
        if direction.closed {
            // A cut link carries nothing more.
            direction.done.push_back(WireDone {
                context,
                kind,
                report,
                result: Err(Error::CONNRESET),
                bytes: None,
            });
            return;
        }
        let (what, late) = match what {
            WireWork::Send(buf) => (WireWork::Bytes(buf.to_boxed().unwrap()), delivered),
            WireWork::Write { buf, to, data } => {
                let late = delivered || acknowledges;
                (WireWork::WriteBytes { bytes: buf.to_boxed().unwrap(), to, data }, late)
            }
            what @ WireWork::Bytes(_) => (what, delivered),
            what => (what, true),
        };
        let done = WireDone { context, kind, report, result: Ok(()), bytes: None };
        let completion = if late {
            Some(done)
        } else {
            direction.done.push_back(done);
            None
        };
        direction.flying.push_back(Flying { what, completion });
        let last = direction.flying.len() - 1;
        if last > 0 && injected() == Some(InjectedFault::SwappedMessages) {
            direction.flying.swap(last, last - 1);
        }
    }

    /// Delivers the oldest transfer in flight.
    fn arrives(&mut self, id: usize, side: usize) {
        let Some(wire) = &mut self.wires[id] else { return };
        let Some(Flying { what, completion }) = wire.directions[side].flying.pop_front() else {
            return;
        };
        let port = wire.ports[1 - side].and_then(|port| self.ports[port].as_mut());
        let Some(port) = port else {
            // The receiver is gone; the sender is notified with the end of the link.
            wire.directions[side]
                .done
                .extend(completion.map(|done| WireDone { result: Err(Error::CONNRESET), ..done }));
            return;
        };
        let Some(bound) = &port.bindings else { return };
        let mut result = Ok(());
        let mut read = None;
        match what {
            WireWork::Bytes(mut bytes) => {
                let posted = match port.pool {
                    Some(pool) => self.pools[pool].as_mut().and_then(VecDeque::pop_front),
                    None => port.posted.pop_front(),
                };
                let Some(recv) = posted else { return };
                if bytes.len() > 100 && injected() == Some(InjectedFault::WrongByte) {
                    if let Some(last) = bytes.last_mut() {
                        *last ^= 1;
                    }
                }
                assert!(bytes.len() <= recv.buf.len(), "a message does not fit");
                recv.buf.copy_from(0, &bytes);
                let of = Completion {
                    context: recv.context,
                    flags: FI_MSG | FI_RECV,
                    len: bytes.len(),
                    buf: recv.buf.address(),
                    data: 0,
                    tag: 0,
                    src: port.source,
                };
                bound.completions.rx.succeeded(of, true);
            }
            WireWork::WriteBytes { bytes, to, data } => {
                result = port.regions.open().check(&to, FI_REMOTE_WRITE);
                if result.is_ok() {
                    result = port.regions.open().write(&to, FI_REMOTE_WRITE, 0, &bytes);
                    if let Some(data) = data {
                        let kind = FI_REMOTE_WRITE | FI_RMA;
                        bound.completions.rx.peer_notified(kind, bytes.len(), data, port.source);
                    }
                }
            }
            WireWork::Read { buf, from } => {
                let mut bytes = vec![0; buf.len()];
                result = port.regions.open().check(&from, FI_REMOTE_READ);
                if result.is_ok() {
                    result = port.regions.open().read(&from, FI_REMOTE_READ, 0, &mut bytes);
                    read = Some((buf, bytes));
                }
            }
            WireWork::Send(_) | WireWork::Write { .. } => unreachable!("it has not left"),
        }
        if let Some(done) = completion {
            wire.directions[side].done.push_back(WireDone { result, bytes: read, ..done });
        }
    }

    /// A transfer's completion is reported.
    fn notified(&mut self, wire: usize, side: usize) {
        let Some(wire) = &mut self.wires[wire] else { return };
        let Some(mut done) = wire.directions[side].done.pop_front() else { return };
        if done.kind & self.spoils != 0 {
            (done.result, self.spoils) = (Err(Error::ACCES), 0);
        }
        let Some(port) = wire.ports[side].and_then(|port| self.ports[port].as_ref()) else {
            return;
        };
        if let Some(bound) = &port.bindings {
            report(bound, done);
        }
    }

    /// Notifies an endpoint of the end of its connection: all its transfers end.
    fn ends(&mut self, id: usize, side: usize) {
        let Some(wire) = &mut self.wires[id] else { return };
        let Some(port) = wire.ports[side].and_then(|port| self.ports[port].as_mut()) else {
            return;
        };
        let direction = &mut wire.directions[side];
        let posted = std::mem::take(&mut port.posted);
        if let Some(bound) = &port.bindings {
            for done in direction.take_all() {
                report(bound, done);
            }
            for recv in posted {
                let of = Completion::of(recv.context, FI_MSG | FI_RECV, 0);
                bound.completions.rx.failed(CompletionError::new(of, Error::CANCELED));
            }
            if let Some(eq) = &bound.eq {
                let event = FI_SHUTDOWN as u32;
                eq.write(EqEvent::Cm { event, fid: port.fid, info: None, data: Vec::new() });
            }
        }
        direction.closed = true;
        (port.wire, port.up, wire.ports[side]) = (None, false, None);
        self.forget_if_unused(id);
    }

    fn forget_if_unused(&mut self, id: usize) {
        let is_unused = |wire: &Wire| wire.made && wire.ports == [None; 2];
        if self.wires[id].as_ref().is_some_and(is_unused) {
            self.wires[id] = None;
            self.events.retain(|(wire, _, _)| *wire != id);
        }
    }

    fn received(&mut self, id: usize, side: usize, events: LinkEvent) {
        let Some(wire) = &mut self.wires[id] else { return };
        match events {
            LinkEvent::Called { data } => {
                let listener = self.listeners.iter().find(|listener| listener.at == wire.listener);
                let Some(listener) = listener else {
                    let (error, data) = (Error::CONNREFUSED, Vec::new());
                    self.events.push((id, 0, LinkEvent::Failed { error, data }));
                    return;
                };
                wire.taken = true;
                let mut from = wire.caller;
                self.next_port = self.next_port.wrapping_add(1).max(20_000);
                from.set_port(self.next_port);
                let (at, from) = (Addr::Ip(listener.at).to_bytes(), Addr::Ip(from).to_bytes());
                let reporter = listener.reporter.clone();
                let ends = [Some(&*at), Some(&*from)];
                let reporter = reporter.lock().unwrap();
                reporter.announce(WireRequest { wire: id }, ends, data, |_| Ok(())).unwrap();
            }
            LinkEvent::Connected { data } => {
                let Some(port) = wire.ports[side].and_then(|port| self.ports[port].as_mut()) else {
                    return;
                };
                port.up = true;
                if let Some(eq) = port.bindings.as_ref().and_then(|bound| bound.eq.as_ref()) {
                    let event = FI_CONNECTED as u32;
                    eq.write(EqEvent::Cm { event, fid: port.fid, info: None, data });
                }
            }
            LinkEvent::Failed { error, data } => {
                if let Some(port) = wire.ports[0].and_then(|port| self.ports[port].as_mut()) {
                    port.wire = None;
                    let posted = std::mem::take(&mut port.posted);
                    let bound = port.bindings.as_ref();
                    for recv in posted {
                        let of = Completion::of(recv.context, FI_MSG | FI_RECV, 0);
                        let error = CompletionError::new(of, Error::CANCELED);
                        bound.unwrap().completions.rx.failed(error);
                    }
                    if let Some(eq) = bound.and_then(|bound| bound.eq.as_ref()) {
                        eq.write(EqEvent::Error(EventError {
                            fid: port.fid,
                            context: Context::NULL,
                            data: 0,
                            error,
                            prov_errno: error.code(),
                            err_data: data,
                        }));
                    }
                }
                self.wires[id] = None;
                self.events.retain(|(wire, _, _)| *wire != id);
            }
        }
    }

    /// Cuts the links between two addresses; returns true if there was any.
    pub(super) fn cut(&mut self, one: SocketAddr, other: SocketAddr) -> bool {
        let mut any = false;
        let wires: Vec<_> = (0..self.wires.len()).collect();
        for id in wires {
            let Some(wire) = self.wires[id].as_ref() else { continue };
            let hosts = [one.ip(), other.ip()];
            if !wire.made {
                // A call that has not arrived is lost.
                let ends = [wire.caller.ip(), wire.listener.ip()];
                let called = |events: &&mut (usize, usize, LinkEvent)| {
                    events.0 == id && matches!(events.2, LinkEvent::Called { .. })
                };
                if ends == hosts || ends == [hosts[1], hosts[0]] {
                    if let Some(events) = self.events.iter_mut().find(called) {
                        let (error, data) = (Error::TIMEDOUT, Vec::new());
                        *events = (id, 0, LinkEvent::Failed { error, data });
                        any = true;
                    }
                }
                continue;
            }
            let host = |side: usize| self.port_of(wire, side).map(|port| port.local.ip());
            let ends = [host(0), host(1)];
            let both = [Some(one.ip()), Some(other.ip())];
            if ends != both && ends != [both[1], both[0]] {
                continue;
            }
            any = true;
            for side in 0..2 {
                let flying =
                    self.wires[id].as_ref().map_or(0, |wire| wire.directions[side].flying.len());
                let left = self.random.below(flying + 1);
                let Some(wire) = &mut self.wires[id] else { continue };
                let direction = &mut wire.directions[side];
                direction.closed = true;
                for lost in direction.flying.split_off(left) {
                    let reset = |done| WireDone { result: Err(Error::CONNRESET), ..done };
                    direction.done.extend(lost.completion.map(reset));
                }
            }
        }
        any
    }

    /// Returns the remaining ports, receive contexts, listeners and links.
    pub(super) fn left(&self) -> [usize; 4] {
        [
            self.ports.iter().flatten().count(),
            self.pools.iter().flatten().count(),
            self.listeners.len(),
            self.wires.iter().flatten().count(),
        ]
    }
}

impl RxmWorld {
    /// Returns true if no transfer posted at this address waits to be sent.
    pub(super) fn has_left(&self, at: IpAddr) -> bool {
        let is_there =
            |port: &usize| self.ports[*port].as_ref().is_some_and(|port| port.local.ip() == at);
        self.wires.iter().flatten().all(|wire| {
            let mut sides = wire.ports.iter().zip(&wire.directions);
            sides.all(|(port, direction)| {
                direction.posted.is_empty() || !port.is_some_and(|port| is_there(&port))
            })
        })
    }
}

impl LinkDirection {
    /// Removes all transfers without a completion, as failures except for the successful ones.
    fn take_all(&mut self) -> Vec<WireDone> {
        let lost = |context, kind, report| WireDone {
            context,
            kind,
            report,
            result: Err(Error::CONNRESET),
            bytes: None,
        };
        let mut all: Vec<_> = self.done.drain(..).collect();
        for flying in self.flying.iter_mut() {
            let completion = flying.completion.take();
            all.extend(completion.map(|done| lost(done.context, done.kind, done.report)));
        }
        all.extend(self.posted.drain(..).map(|post| lost(post.context, post.kind, post.report)));
        all
    }
}

fn report(bound: &Bindings, done: WireDone) {
    let of = Completion::of(done.context, done.kind, 0);
    match done.result {
        Ok(()) => {
            if let Some((buf, bytes)) = done.bytes {
                buf.copy_from(0, &bytes);
            }
            bound.completions.tx.succeeded(of, done.report);
        }
        Err(error) => bound.completions.tx.failed(CompletionError::new(of, error)),
    }
}

fn look(world: &Mutex<RxmWorld>) -> MutexGuard<'_, RxmWorld> {
    world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
