//! What a domain's endpoints do: post work requests, take completions from the
//! device and give them to the application, make and end connections.
//!
//! What is known of the requests of a queue pair waits in a queue, in the order of
//! their posting; a request's place there is in its number. A success that nobody
//! wants to know of is not told by the device: it is known when one behind it is. All queue pairs share completion queues of the
//! device's that have room for everything that can be posted.
use crate::cm::{pack, pack_request, unpack};
use crate::config::config;
use crate::device::{has_atomics, mtu};
use crate::info::VERBS;
use crate::memory::{Memory, OfDevice};
use crate::sys::{
    Channel, CmEvent, CmId, CmKind, CompChannel, Device, DeviceEvent, How, HwCq, Pd, Qp, QpSpec,
    Region, Sge, Srq, UdQp, Verb, Way, Work, WorkDone, access, bunch, status, status_text,
};
use core::ffi::{CStr, c_int};
use ofi_provider::abi::*;
use ofi_provider::addr::{Addr, UdAddr};
use ofi_provider::boundary::Uncancelled;
use ofi_provider::buf::{IOV_LIMIT, Local, LocalSegment, RecvBuf};
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::eq::{Event, EventError, FidPtr};
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::{Bindings, RecvOp};
use ofi_provider::lock::{Guard, Lock};
use ofi_provider::mr_cache::Cached;
use ofi_provider::progress::Progress;
use ofi_provider::slab::Slab;
use ofi_provider::sys::{Epoll, Interest};
use ofi_provider::worker::Worker;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// In a request's number: it is one that sends. The endpoint's index is in the
/// upper half.
const SEND: u32 = 1 << 31;

/// Entries of a completion queue of the device's, unless one endpoint needs more.
const CQ_SIZE: usize = 8192;

/// The end of a connection may overtake the last messages, which have a way of
/// their own: so long they are waited for.
const LINGER: Duration = Duration::from_millis(5);

/// So long a caller that says nothing may take to read what accepted it.
const SETTLE: Duration = Duration::from_millis(200);

/// Completion queues are read so often at most before others get their turn.
const POLLS: usize = 8;

/// Requests that are posted together at most (FI_MORE).
const TOGETHER: usize = 16;

/// The vendor that siw says it is of. It knows nothing of the message by which other
/// devices tell that they read their acceptance (RFC 6581).
const SIW: u32 = 0x62_6d74;

/// Regions of the cache that a posted operation uses: the application named none.
type Kept = Option<Box<[Cached<OfDevice>]>>;

/// A domain's endpoints and what they share.
pub(crate) struct Engine {
    pub(crate) device: Device,
    pub(crate) pd: Arc<Pd>,
    memory: Arc<Memory>,
    pub(crate) channel: Arc<Channel>,
    comp: Arc<CompChannel>,
    epoll: Epoll,
    state: Lock<State>,
    activity: AtomicU64,
    /// Somebody may sleep until the device tells of something.
    armed: AtomicBool,
    max_msg_size: usize,
    max_datagram: usize,
    max_cqe: usize,
    /// Segments of a read.
    read_segments: usize,
    atomics: bool,
    /// Its callers have to speak first.
    settles: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.device.name())
    }
}

/// What is behind the engine's lock. Endpoints go before their queues.
pub(crate) struct State {
    eps: Slab<Ep>,
    queues: Vec<Queue>,
    /// The endpoints that take receives from a shared context, by the number of
    /// their queue pair.
    sharers: Sharers,
    /// Endpoints with requests that wait for more (FI_MORE).
    waiting: Vec<u32>,
    /// Those of endpoints that know the way.
    calls: VecDeque<Call>,
    /// Threads that make them.
    callers: usize,
    /// Where completions taken from a queue of the device's at once come.
    bunch: Box<[WorkDone]>,
}

type Sharers = HashMap<u32, u32, BuildHasherDefault<NumberHasher>>;

/// Hashes numbers that the device gives: nobody chooses them to collide.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // Spreads low bits over all (the golden ratio, as Knuth has it).
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A completion queue of the device's.
struct Queue {
    cq: HwCq,
    free: usize,
}

/// What an endpoint is opened with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) tx_iov: usize,
    pub(crate) rx_iov: usize,
    pub(crate) inject: usize,
    pub(crate) atomics: bool,
    /// It sends datagrams (FI_EP_DGRAM).
    pub(crate) datagrams: bool,
    /// Its buffers may be where the processor must not look (FI_HMEM).
    pub(crate) hmem: bool,
}

/// How far an endpoint's connection is.
#[derive(Debug, PartialEq, Eq)]
enum Conn {
    None,
    /// The way to the peer is looked for; then this goes along with the request.
    Resolving(Vec<u8>),
    /// The call is to be made, or is being made: that may take, so it is done without the
    /// engine's lock, by [`Engine::call`].
    Calling,
    Requested,
    Accepted,
    /// Up on a device on which a message may overtake the acceptance, which ends the
    /// connection: until this time we send only when the caller has.
    Settling(Instant),
    Up,
    Down,
    /// Closed by the application while it called. siw lets go of a queue pair only when
    /// the call is answered, which may need both sides, so that is not waited for.
    Leaving {
        /// The answer was there before the call returned.
        answered: bool,
    },
}

/// A call that is to be made, and what goes along with it.
struct Call {
    at: u32,
    id: Arc<CmId>,
    data: Vec<u8>,
}

/// So many calls are under way at most, of those that take.
const CALLERS: usize = 16;

/// How often it is looked for answers to calls of a domain that is closed.
const LOOK_IN: Duration = Duration::from_millis(100);

/// An endpoint or a shared receive context.
struct Ep {
    limits: Limits,
    fid: Option<FidPtr>,
    bindings: Bindings,
    conn: Conn,
    /// Shared with whoever makes its call.
    id: Option<Arc<CmId>>,
    /// Somebody does.
    calling: bool,
    /// What a datagram endpoint has instead of a connection.
    ud: Option<Ud>,
    srq: Option<Srq>,
    /// What its receives report as their source ([`OPT_SOURCE`](ofi_provider::lower::OPT_SOURCE)).
    source: Option<fi_addr_t>,
    /// The queue of the device's that it has a part of.
    queue: Option<usize>,
    inline: usize,
    sent: Fifo<Sent>,
    posted: Fifo<Posted>,
    /// The peer has sent something.
    heard: bool,
    /// Receives of a shared context, in any order.
    shared: Slab<Posted>,
    /// Sends since the last one of which success is told.
    silent: usize,
    /// Sends that are complete but for those before them.
    told: usize,
    /// The last requests, which are posted with the next that has no FI_MORE.
    work: Vec<Work>,
    scratch: Option<Scratch>,
}

/// A datagram endpoint's queue pair, and the ways to the peers it sent to.
struct Ud {
    // Before the queue pair's protection domain goes with it.
    ways: HashMap<UdAddr, Way>,
    pair: UdQp,
}

/// Bytes before a datagram that is received, where the device puts the header of the
/// network (FI_MSG_PREFIX). Datagrams that are sent have none, as the mode of
/// `tx_attr` says.
pub(crate) const PREFIX: usize = 40;

/// Where the results of atomic operations come, one place for each send.
struct Scratch {
    // First, so that the device is done with the memory when it goes.
    region: Region,
    words: Box<[AtomicU64]>,
}

/// Operations in the order of their posting, by numbers that go round.
struct Fifo<T> {
    items: VecDeque<T>,
    /// The number of the first.
    first: u32,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), first: 0 }
    }
}

impl<T> Fifo<T> {
    /// The number of the next that is added.
    fn next(&self) -> u32 {
        self.first.wrapping_add(self.items.len() as u32) & !SEND
    }

    /// How many there are up to this number.
    fn up_to(&self, number: u32) -> usize {
        let count = (number.wrapping_sub(self.first) & !SEND) as usize + 1;
        if count <= self.items.len() { count } else { 0 }
    }

    fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.first = self.first.wrapping_add(1) & !SEND;
        Some(item)
    }
}

/// A send, read, write or atomic operation under way.
struct Sent {
    context: Context,
    /// FI_SEND | FI_MSG …
    flags: u64,
    len: usize,
    /// The device tells of its success.
    signalled: bool,
    /// Status and vendor's error, once the device has told of it.
    done: Option<(u32, u32)>,
    /// Its success gets an entry.
    report: bool,
    /// Its failure gets one.
    report_error: bool,
    /// What most have nothing of.
    rare: Option<Box<Rare>>,
}

impl Sent {
    /// A part of an operation, which is over with another request.
    fn is_part(&self) -> bool {
        self.flags == 0
    }
}

/// What goes with few of the operations.
struct Rare {
    _kept: Kept,
    /// Where the former value goes, and the place in the scratch memory it came to.
    fetch: Option<(RecvBuf, usize)>,
}

/// A receive that waits.
struct Posted {
    context: Context,
    flags: u64,
    buf: usize,
    _kept: Kept,
}

/// A request that sends, as the engine takes it.
pub(crate) struct Request<'a> {
    pub(crate) verb: Verb,
    pub(crate) segments: Local<'a>,
    pub(crate) len: usize,
    /// FI_SEND | FI_MSG …
    pub(crate) kind: u64,
    /// Those of the call.
    pub(crate) flags: u64,
    pub(crate) data: u64,
    pub(crate) context: Context,
    /// Who gets a datagram.
    pub(crate) dest: fi_addr_t,
    /// Where an atomic operation's former value goes.
    pub(crate) fetch: Option<RecvBuf>,
}

impl Engine {
    pub(crate) fn new(device: Device, pd: Arc<Pd>, memory: Arc<Memory>) -> Result<Arc<Self>> {
        let (channel, comp, epoll) = (Channel::new()?, CompChannel::new(device)?, Epoll::new()?);
        epoll.add(comp.fd(), 0, Interest::READ)?;
        device.unblock_events()?;
        let (attr, port) = (device.attr()?, device.port(1)?);
        let size = |n: c_int| usize::try_from(n).unwrap_or(0);
        let engine = Arc::new(Self {
            device,
            pd,
            memory,
            channel,
            comp,
            epoll,
            state: Lock::new(State {
                eps: Slab::default(),
                queues: Vec::new(),
                sharers: Sharers::default(),
                waiting: Vec::new(),
                calls: VecDeque::new(),
                callers: 0,
                bunch: bunch(config().cqread_bunch_size),
            }),
            activity: AtomicU64::new(0),
            armed: AtomicBool::new(false),
            max_msg_size: port.max_msg_sz as usize,
            max_datagram: mtu(&port),
            max_cqe: size(attr.max_cqe),
            atomics: has_atomics(&attr),
            settles: device.is_iwarp() && attr.vendor_id == SIW,
            read_segments: size(attr.max_sge_rd).clamp(1, IOV_LIMIT),
        });
        let mut engines = engines();
        engines.retain(|known| known.strong_count() > 0);
        engines.push(Arc::downgrade(&engine));
        Ok(engine)
    }

    /// Whether the device has atomic operations.
    pub(crate) fn atomics(&self) -> bool {
        self.atomics
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// A new endpoint; its connection comes with [`State::set_id`].
    pub(crate) fn add(&self, limits: Limits) -> u32 {
        self.lock().eps.insert(Ep::new(limits))
    }

    /// A new shared receive context.
    pub(crate) fn add_shared(&self, limits: Limits) -> Result<u32> {
        let srq = Srq::new(&self.pd, limits.rx_size as u32, limits.rx_iov as u32)?;
        let at = self.add(limits);
        self.lock().eps[at].srq = Some(srq);
        Ok(at)
    }

    /// Makes the endpoint's queue pair.
    pub(crate) fn enable(&self, at: u32, bindings: &Bindings, srx: Option<u32>) -> Result {
        let mut state = self.lock();
        let state = &mut *state;
        state.eps[at].bindings = bindings.clone();
        if state.eps[at].srq.is_some() {
            return Ok(());
        }
        let limits = state.eps[at].limits;
        // Every receive of a shared context may be taken by one endpoint.
        let recvs = srx.map_or(limits.rx_size, |srx| state.eps[srx].limits.rx_size);
        let room = limits.tx_size + recvs;
        let queue = state.reserve(room, self)?;
        let made = state.make_pair(at, queue, srx, &self.pd);
        let scratch = made.and_then(|number| {
            if let (Some(_), Some(number)) = (srx, number) {
                state.sharers.insert(number, at);
            }
            if limits.atomics { Scratch::new(&self.pd, limits.tx_size).map(Some) } else { Ok(None) }
        });
        match scratch {
            Ok(scratch) => {
                let ep = &mut state.eps[at];
                (ep.queue, ep.scratch) = (Some(queue), scratch);
                Ok(())
            }
            Err(error) => {
                state.queues[queue].free += room;
                Err(error)
            }
        }
    }

    /// Ends an endpoint and all it has posted; no completion follows.
    pub(crate) fn close(&self, at: u32) {
        let mut state = self.lock();
        if !state.eps.get_mut(at).is_some_and(|ep| ep.leave(self.settles)) {
            state.remove(at);
        }
    }

    /// Makes the calls that wait, in threads of their own where that takes: siw calls the
    /// peer's system, and waits for it.
    fn call(self: &Arc<Self>) {
        let mut state = self.lock();
        let most = if self.settles { CALLERS } else { 1 };
        let wanted = state.calls.len().min(most.saturating_sub(state.callers));
        state.callers += wanted;
        drop(state);
        for _ in 0..wanted {
            let engine = self.clone();
            let work = move || while engine.make_call() {};
            let begun = self.settles && Worker::start("ofi-verbs-call", work).is_ok();
            if !begun {
                while self.make_call() {}
            }
        }
    }

    /// Makes a call that waits; false, and one caller less, if there is none.
    fn make_call(&self) -> bool {
        let mut state = self.lock();
        let Some(Call { at, id, data }) = state.calls.pop_front() else {
            state.callers -= 1;
            return false;
        };
        if state.eps.get(at).is_some_and(|ep| matches!(ep.conn, Conn::Leaving { .. })) {
            // Closed before its turn came.
            drop(id);
            state.remove(at);
            return true;
        }
        drop(state);
        let made = id.connect(&data);
        // The endpoint has it as well, and ends it with the lock held.
        drop(id);
        self.lock().called(at, made, self.settles);
        true
    }

    /// Takes in what connections tell.
    fn hear(self: &Arc<Self>) {
        let mut ended = Vec::new();
        let mut state = self.lock();
        while let Some(event) = self.channel.next() {
            ended.extend(state.hear(event, self));
        }
        let calls = !state.calls.is_empty();
        drop(state);
        if calls {
            self.call();
        }
        if ended.is_empty() {
            return;
        }
        std::thread::sleep(LINGER);
        let mut state = self.lock();
        ended.into_iter().for_each(|at| state.end(at));
    }

    /// The domain is closed. Calls of its endpoints that are not answered yet go on to be
    /// waited for, by nobody of the application's.
    pub(crate) fn leave(self: &Arc<Self>) {
        let is_left = |engine: &Self| {
            engine.lock().eps.iter().any(|(_, ep)| matches!(ep.conn, Conn::Leaving { .. }))
        };
        if !is_left(self) {
            return;
        }
        let engine = self.clone();
        let work = move || {
            let Ok(epoll) = Epoll::new() else { return };
            let _ = epoll.add(engine.channel.fd(), 0, Interest::READ);
            while is_left(&engine) {
                let _ = epoll.wait(Some(LOOK_IN), |_| ());
                engine.hear();
            }
        };
        if let Err(error) = Worker::start("ofi-verbs-bye", work) {
            ofi_provider::log!(&VERBS, INFO, EP_CTRL, "waiting for calls to be answered: {error}");
        }
    }

    /// Posts a request that sends; -FI_EAGAIN when there is no room, after progress.
    #[inline]
    pub(crate) fn send(&self, at: u32, request: Request<'_>) -> Result {
        let mut state = self.lock();
        if !state.eps[at].has_room()? {
            drop(state);
            self.progress();
            state = self.lock();
            if !state.eps[at].has_room()? {
                return Err(Error::AGAIN);
            }
        }
        let more = request.flags & FI_MORE != 0;
        state.eps[at].send(at, request, self)?;
        if more && state.eps[at].work.len() == 1 {
            state.waiting.push(at);
        }
        Ok(())
    }

    /// Posts a message of one piece that has nothing special to it, as nearly all are;
    /// false, and nothing done, of another, or when there is no room.
    #[inline]
    pub(crate) fn send_plain(
        &self,
        at: u32,
        segment: LocalSegment,
        flags: u64,
        data: u64,
        context: Context,
    ) -> Result<bool> {
        let mut state = self.lock();
        let fits = segment.len.wrapping_sub(1) < self.max_msg_size;
        let special = !fits || flags & (FI_MORE | FI_FENCE) != 0;
        Ok(!special && state.eps[at].send_plain(at, segment, flags, data, context)?)
    }

    /// Posts a receive.
    #[inline]
    pub(crate) fn recv(&self, at: u32, op: RecvOp) -> Result {
        let mut state = self.lock();
        state.eps[at].recv(at, &op, self)
    }

    /// Fills `sges` with the segments; how many, and what of them is registered
    /// for as long as the operation lasts.
    #[inline(always)]
    fn segments(
        &self,
        segments: Local<'_>,
        sges: &mut [Sge; IOV_LIMIT],
        inline: bool,
        right: u32,
    ) -> Result<(usize, Kept)> {
        if let Some(LocalSegment { addr, len, desc }) = segments.only()
            && len > 0
            && (inline || desc != 0)
        {
            sges[0] = Sge { addr: addr as u64, length: len as u32, lkey: desc as u32 };
            return Ok((1, None));
        }
        self.other_segments(segments, sges, inline, right)
    }

    #[inline(never)]
    fn other_segments(
        &self,
        segments: Local<'_>,
        sges: &mut [Sge; IOV_LIMIT],
        inline: bool,
        right: u32,
    ) -> Result<(usize, Kept)> {
        let (mut count, mut kept) = (0, Vec::new());
        for segment in segments.filter(|segment| segment.len > 0) {
            let lkey = match segment.desc {
                _ if inline => 0,
                0 => {
                    let (lkey, region) = self.memory.get(segment.addr, segment.len, right)?;
                    kept.extend(region);
                    lkey
                }
                desc => desc as u32,
            };
            let sge = sges.get_mut(count).ok_or(Error::INVAL)?;
            *sge = Sge { addr: segment.addr as u64, length: segment.len as u32, lkey };
            count += 1;
        }
        Ok((count, (!kept.is_empty()).then(|| kept.into_boxed_slice())))
    }
}

impl Progress for Engine {
    fn progress(&self) {
        // What a device's library calls may be a cancellation point.
        let _uncancelled = Uncancelled::new();
        self.activity.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        state.poll();
        if self.armed.swap(false, Ordering::Relaxed) {
            self.comp.drain();
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn may_block(&self) -> bool {
        let mut state = self.lock();
        self.armed.store(true, Ordering::Relaxed);
        let armed = state.queues.iter().all(|queue| queue.cq.arm().is_ok());
        // What came before that tells nobody.
        armed && !state.poll()
    }

    fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    fn error_text(&self, prov_errno: c_int) -> Option<&'static CStr> {
        status_text(prov_errno)
    }
}

/// The domains of this process. What a device tells is for all that use it, and
/// comes to one of them.
fn engines() -> MutexGuard<'static, Vec<Weak<Engine>>> {
    static ENGINES: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes in what a device told.
fn device_told(device: Device, event: DeviceEvent) {
    let name = device.name().to_string_lossy();
    let say = |what: &str| ofi_provider::log!(&VERBS, WARN, EP_CTRL, "{name}: {what}");
    match event {
        DeviceEvent::PortDown(port) => say(&format!("port {port} is down")),
        DeviceEvent::PortUp(port) => {
            ofi_provider::log!(&VERBS, INFO, EP_CTRL, "{name}: port {port} is up");
        }
        DeviceEvent::QueueFailed => say("a completion queue lost completions"),
        DeviceEvent::PairFailed(pair) => say(&format!("queue pair {pair} failed")),
        DeviceEvent::Failed => say("the device does not work any more; its transfers fail"),
        DeviceEvent::FirstMessage(_) | DeviceEvent::Other => {}
    }
    let engines: Vec<_> = engines().iter().filter_map(Weak::upgrade).collect();
    for engine in engines.iter().filter(|engine| engine.device == device) {
        engine.lock().device_told(event);
    }
}

/// The connections of a domain: a thread looks after them, so that one is made,
/// and what is posted is flushed when its peer goes, whatever the application
/// waits for meanwhile.
#[derive(Debug)]
pub(crate) struct Connections(pub(crate) Arc<Engine>);

/// Takes in what all connections of this process tell: what came before a request to a
/// listener is to be heard before it.
pub(crate) fn hear_all() {
    let engines: Vec<_> = engines().iter().filter_map(Weak::upgrade).collect();
    engines.iter().for_each(Engine::hear);
}

impl Progress for Connections {
    fn progress(&self) {
        while let Some(event) = self.0.device.next_event() {
            device_told(self.0.device, event);
        }
        self.0.hear();
    }

    fn wait_fd(&self) -> RawFd {
        self.0.channel.fd()
    }

    fn wake_fd(&self) -> Option<RawFd> {
        Some(self.0.device.events_fd())
    }

    /// No call of the application's does this.
    fn activity(&self) -> u64 {
        0
    }
}

impl State {
    /// Room for so many completions in a queue of the device's.
    fn reserve(&mut self, room: usize, engine: &Engine) -> Result<usize> {
        let found = self.queues.iter().position(|queue| queue.free >= room);
        let at = match found {
            Some(at) => at,
            None => {
                let size = CQ_SIZE.min(engine.max_cqe).max(room);
                let cq = HwCq::new(engine.device, size, &engine.comp)?;
                if engine.armed.load(Ordering::Relaxed) {
                    cq.arm()?;
                }
                self.queues.push(Queue { cq, free: size });
                self.queues.len() - 1
            }
        };
        self.queues[at].free -= room;
        Ok(at)
    }

    fn make_pair(
        &mut self,
        at: u32,
        queue: usize,
        srx: Option<u32>,
        pd: &Arc<Pd>,
    ) -> Result<Option<u32>> {
        let limits = self.eps[at].limits;
        let mut spec = QpSpec {
            cq: &self.queues[queue].cq,
            srq: None,
            sends: limits.tx_size as u32,
            recvs: limits.rx_size as u32,
            send_segments: limits.tx_iov as u32,
            recv_segments: limits.rx_iov as u32,
            inline: limits.inject as u32,
            datagrams: limits.datagrams,
        };
        if limits.datagrams {
            let pair = UdQp::new(pd, &spec, config().gid_idx as u8)?;
            let ep = &mut self.eps[at];
            (ep.inline, ep.conn) = (pair.inline as usize, Conn::Up);
            ep.ud = Some(Ud { ways: HashMap::new(), pair });
            return Ok(None);
        }
        let mut id = self.eps[at].id.take().ok_or(Error::OPBADSTATE)?;
        spec.srq = srx.and_then(|srx| self.eps[srx].srq.as_ref());
        let made = Arc::get_mut(&mut id).ok_or(Error::OPBADSTATE).and_then(|id| {
            id.create_qp(pd, &spec).or_else(|_| {
                // What it can copy may depend on the other limits.
                spec.inline = 0;
                id.create_qp(pd, &spec)
            })
        });
        let number = id.qp().ok().map(|qp| qp.number());
        let ep = &mut self.eps[at];
        ep.id = Some(id);
        // A device may take more inline than it was asked for.
        ep.inline = if limits.hmem { 0 } else { made? as usize };
        if let Some(srx) = srx {
            // What is reserved is counted by it.
            let recvs = self.eps[srx].limits.rx_size;
            self.eps[at].limits.rx_size = recvs;
        }
        Ok(number)
    }

    /// Ends an endpoint and all it has posted.
    fn remove(&mut self, at: u32) {
        let Some(mut ep) = self.eps.remove(at) else { return };
        if let Some(number) = ep.qp().ok().map(|qp| qp.number()) {
            self.sharers.remove(&number);
        }
        let id = ep.id.take();
        if ep.is_made()
            && let Some(id) = &id
        {
            let _ = id.disconnect();
        }
        drop(id);
        // The pair is gone now, and what it left in the queue is taken out here.
        if let Some(queue) = ep.queue {
            self.poll();
            self.queues[queue].free += ep.reserved();
        }
    }

    pub(crate) fn set_fid(&mut self, at: u32, fid: FidPtr) {
        self.eps[at].fid = Some(fid);
    }

    /// More is bound to an endpoint than when it was enabled.
    pub(crate) fn bind(&mut self, at: u32, bindings: &Bindings) {
        self.eps[at].bindings = bindings.clone();
    }

    /// What receives of this endpoint report as their source.
    pub(crate) fn set_source(&mut self, at: u32, source: fi_addr_t) {
        self.eps[at].source = Some(source);
    }

    pub(crate) fn set_id(&mut self, at: u32, id: CmId) {
        self.eps[at].id = Some(Arc::new(id));
    }

    /// Another address for an endpoint that has no queue pair yet.
    pub(crate) fn rename(&mut self, at: u32, id: CmId) -> Result {
        let ep = &mut self.eps[at];
        if ep.queue.is_some() || ep.srq.is_some() {
            return Err(Error::OPBADSTATE);
        }
        ep.id = Some(Arc::new(id));
        Ok(())
    }

    /// Ends what an endpoint that could not be opened left.
    pub(crate) fn forget(&mut self, at: u32) {
        self.eps.remove(at);
    }

    /// The address of a datagram endpoint.
    pub(crate) fn ud_name(&self, at: u32, device: Device) -> Result<UdAddr> {
        let ud = self.eps[at].ud.as_ref().ok_or(Error::OPBADSTATE)?;
        let gid = device.gid(1, config().gid_idx)?;
        let (lid, pkey) = (device.port(1)?.lid, device.pkey(1, 0)?);
        Ok(UdAddr { gid, qpn: ud.pair.qp().number(), lid, pkey, ..UdAddr::default() })
    }

    pub(crate) fn id(&self, at: u32) -> Result<&CmId> {
        self.eps[at].id.as_deref().ok_or(Error::OPBADSTATE)
    }

    pub(crate) fn is_connected(&self, at: u32) -> bool {
        matches!(self.eps[at].conn, Conn::Up | Conn::Settling(_))
    }

    /// Sends, or receives, that would still be taken.
    pub(crate) fn size_left(&self, at: u32, tx: bool) -> usize {
        let Ep { limits, sent, posted, .. } = &self.eps[at];
        match tx {
            true => limits.tx_size.saturating_sub(sent.items.len()),
            false => limits.rx_size.saturating_sub(posted.items.len()),
        }
    }

    pub(crate) fn connect(&mut self, at: u32, to: &Addr, param: &[u8]) -> Result {
        let ep = &mut self.eps[at];
        match ep.conn {
            Conn::None => {}
            Conn::Up => return Err(Error::ISCONN),
            _ => return Err(Error::OPBADSTATE),
        }
        let id = ep.id.as_ref().ok_or(if ep.srq.is_some() {
            Error::NOSYS
        } else {
            Error::OPBADSTATE
        })?;
        let from = id.local().ok_or(Error::OPBADSTATE)?;
        let packed = pack_request(&from, to, param)?;
        id.resolve_addr(to)?;
        ep.conn = Conn::Resolving(packed);
        Ok(())
    }

    pub(crate) fn accept(&mut self, at: u32, param: &[u8]) -> Result {
        let ep = &mut self.eps[at];
        if ep.conn != Conn::None {
            return Err(Error::OPBADSTATE);
        }
        let id = ep.id.as_ref().ok_or(Error::OPBADSTATE)?;
        id.accept(&pack(param)?)?;
        ep.tune();
        ep.conn = Conn::Accepted;
        Ok(())
    }

    pub(crate) fn shutdown(&mut self, at: u32) -> Result {
        let ep = &mut self.eps[at];
        if ep.conn == Conn::Down {
            // The peer was quicker.
            return Ok(());
        }
        if !ep.is_made() {
            return Err(Error::NOTCONN);
        }
        ep.conn = Conn::Up;
        ep.ring();
        ep.id.as_ref().ok_or(Error::OPBADSTATE)?.disconnect()
    }

    /// Takes completions from the device; whether there were any.
    fn poll(&mut self) -> bool {
        if !self.waiting.is_empty() {
            self.ring_waiting();
        }
        let Self { eps, queues, sharers, bunch, .. } = self;
        let (mut found, most) = (false, bunch.len());
        for queue in queues {
            for _ in 0..POLLS {
                let came = queue.cq.poll(bunch);
                for done in came {
                    take(eps, sharers, done);
                }
                found |= !came.is_empty();
                if came.len() < most {
                    break;
                }
            }
        }
        found
    }

    /// Who waits for a completion has no more to post.
    #[cold]
    fn ring_waiting(&mut self) {
        while let Some(at) = self.waiting.pop() {
            if let Some(ep) = self.eps.get_mut(at) {
                ep.ring();
            }
        }
    }

    /// Takes in what the device told.
    fn device_told(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::FirstMessage(pair) => {
                let of = |ep: &Ep| ep.qp().is_ok_and(|qp| qp.number() == pair);
                if let Some((_, Ep { conn: Conn::Accepted, id: Some(id), .. })) =
                    self.eps.iter().find(|(_, ep)| of(ep))
                {
                    // Too late if it fails: the handshake came to its end.
                    let _ = id.message_came();
                }
            }
            DeviceEvent::Failed => {
                // It tells of no completion any more.
                self.poll();
                self.eps.iter_mut().for_each(|(_, ep)| ep.device_failed());
            }
            _ => {}
        }
    }

    /// Takes in an event; the endpoint whose connection it ended.
    fn hear(&mut self, event: CmEvent, engine: &Engine) -> Option<u32> {
        let CmEvent { kind, token, status, data, .. } = event;
        let ep = self.eps.get_mut(token as u32)?;
        if let Conn::Leaving { answered } = &mut ep.conn {
            if ep.calling {
                *answered = true;
                return None;
            }
            if kind == CmKind::Established {
                ep.conn = Conn::Up;
            }
            self.remove(token as u32);
            return None;
        }
        match kind {
            CmKind::AddrResolved | CmKind::RouteResolved => match ep.go_on(kind) {
                Ok(call) => {
                    let of = |(id, data)| Call { at: token as u32, id, data };
                    self.calls.extend(call.map(of));
                }
                Err(error) => ep.fail(error, status, Vec::new()),
            },
            CmKind::Established => {
                ep.tune();
                if engine.settles && ep.conn == Conn::Accepted && !ep.heard {
                    ep.conn = Conn::Settling(Instant::now() + SETTLE);
                } else {
                    ep.conn = Conn::Up;
                }
                ep.tell(FI_CONNECTED as u32, unpack(&data));
            }
            CmKind::Rejected => ep.fail(Error::CONNREFUSED, status, unpack(&data)),
            CmKind::Failed if !ep.is_made() => {
                let error = match -status {
                    0 => Error::CONNREFUSED,
                    code => Error::from_code(code),
                };
                ep.fail(error, status, Vec::new());
            }
            // Some failures are of a connection that there was: the way to the peer is
            // lost, or the handshake did not come to its end.
            CmKind::Disconnected | CmKind::Removed | CmKind::Failed => {
                let was_up = ep.is_made();
                ep.conn = Conn::Down;
                if was_up {
                    ep.tell(FI_SHUTDOWN as u32, Vec::new());
                }
                return Some(token as u32);
            }
            CmKind::Request | CmKind::Other => {}
        }
        None
    }

    /// An endpoint's call was made, which may be answered, or not. `answer`: whoever is
    /// closed has to wait for it.
    fn called(&mut self, at: u32, made: Result, answer: bool) {
        let Some(ep) = self.eps.get_mut(at) else { return };
        ep.calling = false;
        match (&ep.conn, made) {
            (Conn::Leaving { answered: false }, Ok(())) if answer => {}
            (Conn::Leaving { .. }, _) => self.remove(at),
            (Conn::Calling, Ok(())) => ep.conn = Conn::Requested,
            (Conn::Calling, Err(error)) => ep.fail(error, -error.code(), Vec::new()),
            // The answer was quicker.
            _ => {}
        }
    }

    /// Ends our half of a connection that the peer has ended; what is posted is
    /// flushed.
    fn end(&mut self, at: u32) {
        if let Some(Ep { conn: Conn::Down, id: Some(id), .. }) = self.eps.get(at)
            && id.disconnect().is_err()
        {
            let _ = id.qp().and_then(|qp| qp.fail());
        }
    }
}

/// Gives a completion to the endpoint that it is of.
#[inline(always)]
fn take(eps: &mut Slab<Ep>, sharers: &Sharers, done: &WorkDone) {
    let (at, number) = ((done.wr_id() >> 32) as u32, done.wr_id() as u32);
    let Some(ep) = eps.get_mut(at) else { return };
    if number & SEND != 0 {
        ep.sent_is_done(number & !SEND, done);
    } else if ep.srq.is_some() {
        take_shared(eps, sharers, done);
    } else if ep.posted.first == number
        && let Some(posted) = ep.posted.pop()
    {
        ep.received(&posted, done);
    }
}

/// The same of a receive of a shared context.
#[inline(never)]
fn take_shared(eps: &mut Slab<Ep>, sharers: &Sharers, done: &WorkDone) {
    let (at, number) = ((done.wr_id() >> 32) as u32, done.wr_id() as u32);
    let Some(posted) = eps.get_mut(at).and_then(|context| context.shared.remove(number)) else {
        return;
    };
    // The endpoint that took it tells of it.
    let taker = sharers.get(&done.qp()).copied().unwrap_or(at);
    if let Some(ep) = eps.get_mut(taker) {
        ep.received(&posted, done);
    }
}

impl Ep {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            fid: None,
            bindings: Bindings::default(),
            conn: Conn::None,
            id: None,
            calling: false,
            ud: None,
            srq: None,
            source: None,
            queue: None,
            inline: 0,
            sent: Fifo::default(),
            posted: Fifo::default(),
            heard: false,
            shared: Slab::default(),
            silent: 0,
            told: 0,
            work: Vec::new(),
            scratch: None,
        }
    }

    /// Its queue pair.
    #[inline]
    fn qp(&self) -> Result<Qp<'_>> {
        match (&self.id, &self.ud) {
            (Some(id), _) => id.qp(),
            (None, Some(ud)) => Ok(ud.pair.qp()),
            (None, None) => Err(Error::NOTCONN),
        }
    }

    /// Whether it has a connection, or as good as that.
    fn is_made(&self) -> bool {
        matches!(self.conn, Conn::Up | Conn::Accepted | Conn::Settling(_))
    }

    /// Completions that its queue has room for.
    fn reserved(&self) -> usize {
        self.limits.tx_size + self.limits.rx_size
    }

    /// Leaves nothing but what goes with the answer to its call; false if no call of
    /// its is under way, or `answer`, whether that has to be waited for, says no.
    fn leave(&mut self, answer: bool) -> bool {
        let waits = self.calling || (answer && self.conn == Conn::Requested);
        if !waits {
            return false;
        }
        // Now the device uses nothing of what is posted any more.
        if self.qp().and_then(|qp| qp.fail()).is_err() && !self.calling {
            return false;
        }
        let answered = !matches!(self.conn, Conn::Calling | Conn::Requested);
        self.conn = Conn::Leaving { answered };
        (self.fid, self.bindings) = (None, Bindings::default());
        (self.sent, self.posted) = (Fifo::default(), Fifo::default());
        self.work = Vec::new();
        true
    }

    /// The next step of connecting: a call, when that is it.
    fn go_on(&mut self, done: CmKind) -> Result<Option<(Arc<CmId>, Vec<u8>)>> {
        let id = self.id.as_ref().ok_or(Error::OPBADSTATE)?;
        match &mut self.conn {
            Conn::Resolving(_) if done == CmKind::AddrResolved => id.resolve_route()?,
            Conn::Resolving(data) => {
                let call = (id.clone(), std::mem::take(data));
                (self.conn, self.calling) = (Conn::Calling, true);
                return Ok(Some(call));
            }
            _ => {}
        }
        Ok(None)
    }

    /// What librdmacm leaves to us when a queue pair works.
    fn tune(&self) {
        if let Some(id) = &self.id
            && id.device().is_some_and(|device| !device.is_iwarp())
        {
            // Without it a peer waits longer than need be: no failure.
            let _ = id.qp().and_then(|qp| qp.set_rnr_timer(config().min_rnr_timer));
        }
    }

    /// The connection could not be made.
    fn fail(&mut self, error: Error, status: c_int, err_data: Vec<u8>) {
        self.conn = Conn::Down;
        let _ = self.qp().and_then(|qp| qp.fail());
        let (Some(eq), Some(fid)) = (&self.bindings.eq, self.fid) else { return };
        let (context, prov_errno) = (Context::NULL, status);
        eq.write(Event::Error(EventError { fid, context, data: 0, error, prov_errno, err_data }));
    }

    fn tell(&self, event: u32, data: Vec<u8>) {
        if let (Some(eq), Some(fid)) = (&self.bindings.eq, self.fid) {
            eq.write(Event::Cm { event, fid, info: None, data });
        }
    }

    /// Whether another send would be taken.
    #[inline]
    fn has_room(&mut self) -> Result<bool> {
        if !self.is_made() {
            return Err(Error::NOTCONN);
        }
        if let Conn::Settling(end) = self.conn {
            if Instant::now() < end {
                return Ok(false);
            }
            self.conn = Conn::Up;
        }
        Ok(self.has_queue_room())
    }

    /// The same of the queues alone.
    #[inline]
    fn has_queue_room(&self) -> bool {
        self.bindings.ledger.tx.has_room(true) && self.sent.items.len() < self.limits.tx_size
    }

    #[inline]
    fn send_plain(
        &mut self,
        at: u32,
        segment: LocalSegment,
        flags: u64,
        data: u64,
        context: Context,
    ) -> Result<bool> {
        let LocalSegment { addr, len, desc } = segment;
        let inline = len <= self.inline;
        let is_plain = matches!(self.conn, Conn::Up)
            && !self.limits.datagrams
            && self.work.is_empty()
            && match flags & FI_INJECT {
                0 => inline || desc != 0,
                _ => inline && len <= self.limits.inject,
            };
        if !is_plain || !self.has_queue_room() {
            return Ok(false);
        }
        let report = flags & FI_COMPLETION != 0;
        let signalled = self.is_signalled(report || self.bindings.ledger.tx.counts(FI_SEND));
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(data as u32);
        let mut work = Work::default();
        work.sges[0] = Sge { addr: addr as u64, length: len as u32, lkey: desc as u32 };
        let wr_id = u64::from(at) << 32 | u64::from(SEND | self.sent.next());
        work.is(wr_id, Verb::Send, 1, How { data, inline, signalled, fence: false });
        self.post(&mut work)?;
        self.is_sent(Sent {
            context,
            flags: FI_SEND | FI_MSG,
            len,
            signalled,
            done: None,
            report,
            report_error: report || flags & FI_INJECT == 0,
            rare: None,
        });
        Ok(true)
    }

    /// Whether the device tells of the success of the next send, which is `wanted` or
    /// one in so many that others never fill its queue.
    #[inline]
    fn is_signalled(&self, wanted: bool) -> bool {
        wanted || self.silent + 1 >= self.limits.tx_size.div_ceil(2)
    }

    /// Takes note of what is posted.
    #[inline]
    fn is_sent(&mut self, sent: Sent) {
        self.silent = if sent.signalled { 0 } else { self.silent + 1 };
        self.sent.items.push_back(sent);
    }

    #[inline]
    fn send(&mut self, at: u32, request: Request<'_>, engine: &Engine) -> Result {
        let Request { verb, segments, len, kind, flags, data, context, dest, fetch } = request;
        let atomic = matches!(verb, Verb::FetchAdd { .. } | Verb::CompareSwap { .. });
        let read = matches!(verb, Verb::Read { .. });
        let most = if self.limits.datagrams { engine.max_datagram } else { engine.max_msg_size };
        if len > most || (flags & FI_INJECT != 0 && len > self.limits.inject) {
            return Err(Error::MSGSIZE);
        }
        let mut work = Work::default();
        let sges = &mut work.sges;
        let inline = !read && !atomic && len <= self.inline;
        let (mut count, mut kept) = (0, None);
        let mut fetch = fetch.map(|to| (to, 0));
        if atomic {
            let scratch = self.scratch.as_ref().ok_or(Error::OPNOTSUPP)?;
            let place = self.sent.next() as usize % scratch.words.len();
            sges[0] = scratch.sge(place);
            count = 1;
            if let Some(fetch) = &mut fetch {
                fetch.1 = place;
            }
        } else {
            let right = if read { Memory::WRITABLE } else { 0 };
            (count, kept) = engine
                .segments(segments, sges, inline, right)
                .map(|found| (count + found.0, found.1))?;
            if count > self.limits.tx_iov {
                return Err(Error::INVAL);
            }
        }
        let (mut verb, mut first) = (verb, 0);
        if let Verb::Read { addr, key } = &mut verb
            && count > engine.read_segments
        {
            // Each segment is a read of its own; the last one stands for all.
            if self.sent.items.len() + count > self.limits.tx_size {
                return Err(Error::AGAIN);
            }
            while first + 1 < count {
                self.read_part(at, Verb::Read { addr: *addr, key: *key }, sges[first])?;
                *addr += u64::from(sges[first].length);
                first += 1;
            }
        }
        let number = self.sent.next();
        if flags & FI_INJECT != 0 && !inline && !atomic && len > 0 {
            // The device turned out to copy less than it promised.
            return Err(Error::MSGSIZE);
        }
        let report = flags & FI_COMPLETION != 0;
        let counted = self.bindings.ledger.tx.counts(kind);
        let rare =
            (kept.is_some() || fetch.is_some()).then(|| Box::new(Rare { _kept: kept, fetch }));
        let signalled = self.is_signalled(report || counted || rare.is_some());
        let how = How {
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(data as u32),
            inline,
            signalled,
            fence: flags & FI_FENCE != 0,
        };
        let wr_id = u64::from(at) << 32 | u64::from(SEND | number);
        if first > 0 {
            sges.copy_within(first..count, 0);
        }
        work.is(wr_id, verb, count - first, how);
        if self.limits.datagrams {
            work.goes(self.way_to(dest)?);
        }
        // What is to be copied now cannot wait.
        let more = flags & (FI_MORE | FI_INJECT) == FI_MORE && self.work.len() + 1 < TOGETHER;
        if more || !self.work.is_empty() {
            self.work.push(work);
        } else {
            self.post(&mut work)?;
        }
        let report_error = report || flags & FI_INJECT == 0;
        self.is_sent(Sent {
            context,
            flags: kind,
            len,
            signalled,
            done: None,
            report,
            report_error,
            rare,
        });
        if !more && !self.work.is_empty() {
            self.ring();
        }
        Ok(())
    }

    /// The way to a peer of a datagram endpoint.
    fn way_to(&mut self, dest: fi_addr_t) -> Result<&Way> {
        let Addr::Ud(to) = self.bindings.av.as_ref().ok_or(Error::NOAV)?.get(dest)? else {
            return Err(Error::INVAL);
        };
        let Ud { ways, pair } = self.ud.as_mut().ok_or(Error::OPBADSTATE)?;
        match ways.entry(to) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(pair.way_to(&to)?)),
        }
    }

    /// Posts one request.
    #[inline]
    fn post(&self, work: &mut Work) -> Result {
        let qp = self.qp()?;
        // SAFETY: the application lends the memory until the completion, which is
        // when `Sent` goes and with it what keeps the memory registered; an
        // inlined message is copied.
        let posted = unsafe { qp.post(std::slice::from_mut(work)) };
        posted.map_err(|(error, _)| post_error(error))
    }

    /// Posts what waits, together. What the device does not take fails.
    fn ring(&mut self) {
        if self.work.is_empty() {
            return;
        }
        // They are the last of what is under way, in the same order.
        let count = self.work.len();
        let mut work = std::mem::take(&mut self.work);
        let posted = match self.qp() {
            // SAFETY: as in `post`.
            Ok(qp) => unsafe { qp.post(&mut work) },
            Err(error) => Err((error, 0)),
        };
        work.clear();
        self.work = work;
        let Err((error, posted)) = posted else { return };
        ofi_provider::log!(&VERBS, WARN, EP_DATA, "{} sends not posted: {error}", count - posted);
        let end = self.sent.next();
        for back in (1..=count - posted).rev() {
            let number = end.wrapping_sub(back as u32) & !SEND;
            self.sent_is_done(number, &WorkDone::lost());
        }
    }

    /// Posts a part of a read, of which only failure is told.
    fn read_part(&mut self, at: u32, verb: Verb, to: Sge) -> Result {
        self.ring();
        let wr_id = u64::from(at) << 32 | u64::from(SEND | self.sent.next());
        let mut work = Work::default();
        work.sges[0] = to;
        work.is(wr_id, verb, 1, How::default());
        self.post(&mut work)?;
        self.is_sent(Sent {
            context: Context::NULL,
            flags: 0,
            len: 0,
            signalled: false,
            done: None,
            report: false,
            report_error: false,
            rare: None,
        });
        Ok(())
    }

    #[inline]
    fn recv(&mut self, at: u32, op: &RecvOp, engine: &Engine) -> Result {
        let posted = if self.srq.is_some() { self.shared.len() } else { self.posted.items.len() };
        if posted >= self.limits.rx_size {
            return Err(Error::AGAIN);
        }
        if self.conn == Conn::Down {
            return Err(Error::NOTCONN);
        }
        let mut sges = [Sge { addr: 0, length: 0, lkey: 0 }; IOV_LIMIT];
        let (mut count, kept) =
            engine.segments(op.buf.local(), &mut sges, false, Memory::WRITABLE)?;
        if count > self.limits.rx_iov {
            return Err(Error::INVAL);
        }
        if count == 0 && engine.device.is_iwarp() {
            // siw takes no receive without a segment; an empty one does.
            count = 1;
        }
        let (context, flags) = (op.context, op.flags);
        let item = Posted { context, flags, buf: op.buf.address(), _kept: kept };
        let number = match &self.srq {
            Some(_) => self.shared.insert(item),
            None => {
                let number = self.posted.next();
                self.posted.items.push_back(item);
                number
            }
        };
        let wr_id = u64::from(at) << 32 | u64::from(number);
        let to = &mut sges[..count];
        // SAFETY: the application lends the memory until the completion, which is
        // when `Posted` goes and with it what keeps the memory registered.
        let result = unsafe {
            match &self.srq {
                Some(srq) => srq.recv(wr_id, to),
                None => self.qp().and_then(|qp| qp.recv(wr_id, to)),
            }
        };
        result.map_err(|error| {
            match &self.srq {
                Some(_) => drop(self.shared.remove(number)),
                None => drop(self.posted.items.pop_back()),
            }
            post_error(error)
        })
    }

    /// A send is complete, and all before it of which success is not told. Others
    /// before it may not be: on siw a message overtakes a read. They complete for
    /// the application in the order of their posting all the same.
    fn sent_is_done(&mut self, number: u32, done: &WorkDone) {
        if self.told == 0
            && number == self.sent.first
            && done.status() == status::IBV_WC_SUCCESS
            && let Some(sent) = self.sent.pop()
        {
            return self.send_succeeded(&sent);
        }
        let count = self.sent.up_to(number);
        let Some(sent) = count.checked_sub(1).and_then(|at| self.sent.items.get_mut(at)) else {
            return;
        };
        sent.done = Some((done.status(), done.vendor_error()));
        self.told += 1;
        while let Some(first) = self.sent.items.front() {
            if first.done.is_none() && (first.signalled || self.told == 0) {
                return;
            }
            let Some(sent) = self.sent.pop() else { return };
            match sent.done {
                Some((status, vendor_error)) if status != status::IBV_WC_SUCCESS => {
                    self.told -= 1;
                    self.send_failed(&sent, status, vendor_error);
                }
                done => {
                    self.told -= usize::from(done.is_some());
                    self.send_succeeded(&sent);
                }
            }
        }
    }

    /// The device is gone: what it was to do fails.
    fn device_failed(&mut self) {
        let done = WorkDone::dead();
        while !self.sent.items.is_empty() {
            let first = self.sent.first;
            self.sent_is_done(first, &done);
        }
        while let Some(posted) = self.posted.pop() {
            self.received(&posted, &done);
        }
        let shared: Vec<u32> = self.shared.iter().map(|(at, _)| at).collect();
        for at in shared {
            if let Some(posted) = self.shared.remove(at) {
                self.received(&posted, &done);
            }
        }
        let was_up = self.is_made() && self.ud.is_none();
        self.conn = Conn::Down;
        if was_up {
            self.tell(FI_SHUTDOWN as u32, Vec::new());
        }
    }

    #[inline]
    fn send_succeeded(&self, sent: &Sent) {
        if let Some(rare) = &sent.rare
            && let (Some((to, place)), Some(scratch)) = (&rare.fetch, &self.scratch)
        {
            let value = scratch.words[*place].load(Ordering::Acquire);
            to.copy_from(0, &value.to_ne_bytes());
        }
        if !sent.is_part() {
            let of = Completion::of(sent.context, sent.flags, sent.len);
            self.bindings.ledger.tx.succeeded(of, sent.report);
        }
    }

    #[cold]
    fn send_failed(&mut self, sent: &Sent, status: u32, vendor_error: u32) {
        let ledger = &self.bindings.ledger.tx;
        if sent.report_error {
            let of = Completion::of(sent.context, sent.flags, 0);
            ledger.failed(failure(of, status, vendor_error));
        } else if !sent.is_part() {
            ledger.failed_unseen(sent.flags);
        }
        if !sent.report_error && status != status::IBV_WC_WR_FLUSH_ERR {
            let text = status_text(status as c_int).unwrap_or_default().to_string_lossy();
            ofi_provider::log!(
                &VERBS,
                WARN,
                EP_DATA,
                "an injected message was lost: {text}; its failure is reported nowhere else"
            );
        }
        self.broke(status);
    }

    /// A queue pair that failed does not work any more: the peer hears of it.
    fn broke(&self, status: u32) {
        if status != status::IBV_WC_WR_FLUSH_ERR
            && self.is_made()
            && let Some(id) = &self.id
        {
            let _ = id.disconnect();
        }
    }

    #[inline]
    fn received(&mut self, posted: &Posted, done: &WorkDone) {
        if !self.heard && done.status() == status::IBV_WC_SUCCESS {
            self.heard = true;
            if matches!(self.conn, Conn::Settling(_)) {
                self.conn = Conn::Up;
            }
        }
        let kind = if done.is_write() { FI_RMA | FI_REMOTE_WRITE } else { FI_MSG | FI_RECV };
        let mut of = Completion::of(posted.context, kind, 0);
        if done.status() != status::IBV_WC_SUCCESS {
            of.flags = FI_MSG | FI_RECV;
            self.bindings.ledger.rx.failed(failure(of, done.status(), done.vendor_error()));
            return self.broke(done.status());
        }
        of.len = done.len();
        of.src = self.source.unwrap_or(of.src);
        of.buf = if done.is_write() { 0 } else { posted.buf };
        if let Some(data) = done.data() {
            of.flags |= FI_REMOTE_CQ_DATA;
            of.data = u64::from(data);
        }
        let wanted = done.is_write() || self.bindings.ledger.rx.wants(posted.flags);
        self.bindings.ledger.rx.succeeded(of, wanted);
    }
}

impl Scratch {
    fn new(pd: &Arc<Pd>, count: usize) -> Result<Self> {
        let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let bytes = size_of_val(&words[..]);
        let region = Region::new(pd, words.as_ptr() as usize, bytes, access::LOCAL_WRITE)?;
        Ok(Self { region, words })
    }

    fn sge(&self, place: usize) -> Sge {
        let addr = (&raw const self.words[place]) as u64;
        Sge { addr, length: size_of::<u64>() as u32, lkey: self.region.lkey() }
    }
}

/// A queue of the device's that is full has room again soon.
fn post_error(error: Error) -> Error {
    if error == Error::NOMEM { Error::AGAIN } else { error }
}

/// The error entry of a request that failed.
fn failure(of: Completion, status: u32, vendor_error: u32) -> CompletionError {
    use status::*;
    let receives = of.flags & FI_RECV != 0;
    let error = match status {
        IBV_WC_WR_FLUSH_ERR => Error::CANCELED,
        // rxe says the second of a buffer that is too short.
        IBV_WC_LOC_LEN_ERR | IBV_WC_LOC_QP_OP_ERR if receives => Error::TRUNC,
        IBV_WC_LOC_LEN_ERR => Error::MSGSIZE,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR | IBV_WC_REM_ACCESS_ERR => Error::ACCES,
        IBV_WC_REM_INV_REQ_ERR => Error::REMOTEIO,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => Error::TIMEDOUT,
        IBV_WC_RNR_RETRY_EXC_ERR => Error::NORX,
        _ => Error::IO,
    };
    CompletionError {
        prov_errno: status as c_int,
        data: vendor_error.to_ne_bytes().to_vec(),
        ..CompletionError::new(of, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_fifo_go_round_and_name_what_is_in_it() {
        let mut fifo = Fifo { items: VecDeque::new(), first: !SEND - 1 };
        for item in 0..4 {
            assert_eq!(fifo.next(), (!SEND - 1).wrapping_add(item) & !SEND);
            fifo.items.push_back(item);
        }
        assert_eq!((fifo.up_to(!SEND - 1), fifo.up_to(!SEND), fifo.up_to(1)), (1, 2, 4));
        assert_eq!((fifo.up_to(2), fifo.up_to(!SEND - 2)), (0, 0));
        assert_eq!((fifo.pop(), fifo.pop(), fifo.pop()), (Some(0), Some(1), Some(2)));
        assert_eq!((fifo.up_to(1), fifo.up_to(0), fifo.next()), (1, 0, 2));
    }

    #[test]
    fn what_completes_before_an_earlier_request_waits_for_it() {
        let limits = Limits {
            tx_size: 8,
            rx_size: 1,
            tx_iov: 1,
            rx_iov: 1,
            inject: 0,
            atomics: false,
            datagrams: false,
            hmem: false,
        };
        let mut ep = Ep::new(limits);
        for signalled in [true, false, true, false] {
            ep.sent.items.push_back(Sent {
                context: Context::NULL,
                flags: 0,
                len: 0,
                signalled,
                done: None,
                report: false,
                report_error: false,
                rare: None,
            });
        }
        let done = WorkDone::failed;
        ep.sent_is_done(2, &done(status::IBV_WC_SUCCESS));
        assert_eq!((ep.sent.items.len(), ep.told), (4, 1));
        // The first takes the others along, but for the last, of which nothing is known.
        ep.sent_is_done(0, &done(status::IBV_WC_SUCCESS));
        assert_eq!((ep.sent.items.len(), ep.told), (1, 0));
        // Told twice, or of nothing: no matter.
        ep.sent_is_done(2, &done(status::IBV_WC_SUCCESS));
        ep.sent_is_done(3, &done(status::IBV_WC_WR_FLUSH_ERR));
        assert_eq!((ep.sent.items.len(), ep.told), (0, 0));
    }

    #[test]
    fn failures_say_what_the_device_said() {
        let status = status::IBV_WC_LOC_LEN_ERR;
        let error = failure(Completion::of(Context::NULL, FI_RECV | FI_MSG, 0), status, 7);
        assert_eq!((error.error, error.prov_errno), (Error::TRUNC, 1));
        assert_eq!(error.data, 7u32.to_ne_bytes());
        assert_eq!(
            failure(Completion::of(Context::NULL, FI_SEND, 0), status, 7).error,
            Error::MSGSIZE
        );
        // No software device shows these: rxe takes our seven tries for no end of them, and
        // a peer without a receive is tried for ever.
        for (status, error, text) in [
            (status::IBV_WC_RETRY_EXC_ERR, Error::TIMEDOUT, "transport retry counter exceeded"),
            (status::IBV_WC_RNR_RETRY_EXC_ERR, Error::NORX, "RNR retry counter exceeded"),
        ] {
            let entry = failure(Completion::of(Context::NULL, FI_SEND, 0), status, 9);
            assert_eq!((entry.error, entry.prov_errno), (error, status as c_int));
            let said = status_text(entry.prov_errno).unwrap().to_str().unwrap();
            assert_eq!(said, text);
        }
    }
}
