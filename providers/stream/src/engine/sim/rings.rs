//! Links within one thread, for tests: pairs of byte rings in a small world with a simulated clock.
//!
//! Sent bytes stay in a ring until the test delivers some of them
//! ([`StreamWorld::something_arrives`]). So links delay and split their data. Data on one link may
//! overtake data on another, but never data on the same link. The test cuts links as needed.
use super::direction::{Close, SimDirection};
use super::unknown_peer::{first_sent, later_sent};
use super::{SimRandom, look};
use crate::settings::StreamSettings;
use crate::transport::{
    ByteLink, CarrierPoller, FlushTarget, FlushTimer, LinkClock, LinkPoller, TIMER_TOKEN,
    Transport, ZeroCopyLink, ZerocopyDone,
};
use faults::{DialRepeats, is_local};
pub(crate) use faults::{DyingLinks, FIRST_REPEAT, ListenerLosses};
use listener::RingListener;
use ofi_provider::addr::Addr;
use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;
use ofi_provider::sys::{Epoll, Interest, PollEvent};
use ofi_simulation::{InjectedFault, here, injected};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Delay in nanoseconds of batched data until the flush timer expires.
const FLUSH_DELAY: u64 = 500_000;

/// Token of descriptors watched for being written to.
const RUNG: u64 = u64::MAX;

/// Bytes of a new link transferred unsplit: the handshake of the pre-shared key and the first
/// message.
const FRESH: usize = 700;

/// Identifier of a link or listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RingId {
    /// An end of a link: the number of the link, and the side.
    End(usize, usize),
    /// A listener.
    Listener(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Making {
    Dialing,
    Made,
    Refused,
}

/// Link: the shared state of its ends, 0 (connecting) and 1 (accepting).
#[derive(Debug)]
struct Pipe {
    making: Making,
    addrs: [Addr; 2],
    /// Data sent by each end.
    directions: [SimDirection; 2],
    /// Ends not closed.
    open: [bool; 2],
    /// Maximum bytes in flight in each direction.
    capacity: usize,
    /// Zero-copy data of each end still used by the link, by number; and the numbers of released
    /// data.
    exposed: [VecDeque<(u32, Vec<Exposed>)>; 2],
    done: [VecDeque<u32>; 2],
    calls: [u32; 2],
    /// Ends with an established connection ([`ByteLink::made`]).
    made: [bool; 2],
    repeats: DialRepeats,
    /// Bytes received by each end afterwards.
    received: [usize; 2],
}

impl Pipe {
    fn dialing(addrs: [Addr; 2], capacity: usize) -> Self {
        Self {
            making: Making::Dialing,
            addrs,
            directions: Default::default(),
            open: [true, false],
            capacity,
            exposed: Default::default(),
            done: Default::default(),
            calls: [0; 2],
            made: [false; 2],
            repeats: DialRepeats::default(),
            received: [0; 2],
        }
    }
}

/// Maximum links of unknown peers.
const MAX_UNKNOWN_PEERS: usize = 6;

/// Memory exposed by an application: its address, and its contents at the time of sending.
#[derive(Debug)]
struct Exposed(*const u8, Vec<u8>);

// SAFETY: what it points to is looked at by the one thread of a world only.
unsafe impl Send for Exposed {}

impl Exposed {
    /// The application must not have changed it meanwhile.
    fn check(&self) {
        // SAFETY: the oracle keeps all buffers of operations.
        let now = unsafe { std::slice::from_raw_parts(self.0, self.1.len()) };
        assert!(now == &self.1[..], "a buffer that is still being sent was given back");
    }
}

#[derive(Debug)]
struct SimListener {
    at: Addr,
    waiting: VecDeque<usize>,
}

/// Events watched on a link or listener.
#[derive(Clone, Copy, Debug)]
enum RingWatch {
    For(Interest),
    /// The end alone.
    End,
}

/// Simulator's state of one engine.
#[derive(Debug, Default)]
struct EngineWatch {
    watched: BTreeMap<RingId, (u64, RingWatch)>,
    timer: Option<u64>,
    flush_at: Option<u64>,
    /// Number of ends of links.
    ends: usize,
}

/// All links and listeners, and the time.
#[derive(Debug)]
pub struct StreamWorld {
    start: Instant,
    pub(crate) nanos: u64,
    pub(super) random: SimRandom,
    /// Events are reported at once.
    pub(super) prompt: bool,
    /// One pair of nodes in so many is not of one host; 0: all are.
    pub(super) apart: usize,
    /// Losses of connection requests.
    pub(super) losses: ListenerLosses,
    /// Links about to die.
    pub(super) dying: DyingLinks,
    /// Maximum ends of links of an engine.
    pub(super) descriptors: usize,
    /// Engines use calls for several links.
    batched: bool,
    pipes: Vec<Option<Pipe>>,
    listeners: Vec<Option<SimListener>>,
    watches: Vec<EngineWatch>,
    port: u16,
    /// Links with an unknown peer at their first end.
    unknown_peers: Vec<usize>,
}

impl StreamWorld {
    /// Creates an empty world.
    pub fn new(start: Instant, random: SimRandom) -> Arc<Mutex<Self>> {
        let (pipes, listeners, watches) = (Vec::new(), Vec::new(), Vec::new());
        Arc::new(Mutex::new(Self {
            start,
            nanos: 0,
            random,
            prompt: false,
            apart: 0,
            losses: ListenerLosses::default(),
            dying: DyingLinks::default(),
            descriptors: usize::MAX,
            batched: false,
            pipes,
            listeners,
            watches,
            port: 1000,
            unknown_peers: Vec::new(),
        }))
    }

    /// Returns the addresses of all listeners.
    #[cfg(test)]
    pub(crate) fn listener_addrs(&self) -> Vec<Addr> {
        self.listeners.iter().flatten().map(|listener| listener.at.clone()).collect()
    }

    /// Returns the number of links with an open end, and the number of listeners.
    pub(crate) fn left(&self) -> (usize, usize) {
        (self.pipes.iter().flatten().count(), self.listeners.iter().flatten().count())
    }

    /// Delivers an event on a random link: bytes arrive, or it is established, refused or ended.
    /// With `all`, everything in flight on it arrives. Returns false if nothing is in flight on any
    /// link.
    pub(crate) fn something_arrives(&mut self, all: bool) -> bool {
        let count = self.pipes.len();
        if count == 0 {
            return false;
        }
        let first = self.random.below(count * 2);
        for index in 0..count * 2 {
            let (id, side) = ((first + index) % (count * 2) / 2, (first + index) % 2);
            let Some(pipe) = &mut self.pipes[id] else { continue };
            if pipe.making == Making::Dialing {
                if pipe.repeats.at > self.nanos {
                    continue;
                }
                let to = pipe.addrs[1].clone();
                let is_open = pipe.open[0];
                let listener =
                    self.listeners.iter_mut().flatten().find(|listener| listener.at == to);
                match listener.filter(|_| is_open) {
                    Some(listener)
                        if self.losses.lose_request(&mut self.random, listener.waiting.len()) =>
                    {
                        pipe.repeats.dial_later(self.nanos);
                    }
                    Some(listener) => {
                        pipe.making = Making::Made;
                        pipe.open[1] = true;
                        listener.waiting.push_back(id);
                    }
                    None => pipe.making = Making::Refused,
                }
                return true;
            }
            if !pipe.exposed[side].is_empty() && (all || self.random.one_in(3)) {
                // The link is done with calls in any order.
                let at = self.random.below(pipe.exposed[side].len());
                if let Some((number, exposed)) = pipe.exposed[side].remove(at) {
                    exposed.iter().for_each(Exposed::check);
                    pipe.done[side].push_back(number);
                }
                return true;
            }
            let direction = &mut pipe.directions[side];
            if !direction.moves() {
                continue;
            }
            let left = direction.bytes.len() - direction.arrived;
            let part = match self.random.below(8) {
                _ if all => left,
                0 => left.min(1 + self.random.below(40)),
                1..3 => 1 + self.random.below(left.max(1)),
                _ => left,
            };
            direction.arrived += part.min(left);
            if direction.arrived == direction.bytes.len() && direction.close.is_some() {
                // Bytes that have arrived can still be read, as from a socket of Linux that was reset.
                direction.closed = true;
            }
            return true;
        }
        false
    }

    /// Returns an open listener.
    fn listener(&mut self, id: usize) -> &mut SimListener {
        self.listeners[id].as_mut().expect("a listener is open as long as its value")
    }

    /// Counts an end of a link of an engine. Fails with -FI_EMFILE if it has too many.
    fn open_end(&mut self, node: usize) -> Result {
        let ends = &mut self.watches[node].ends;
        if *ends >= self.descriptors {
            return Err(Error::MFILE);
        }
        *ends += 1;
        Ok(())
    }

    fn insert(&mut self, pipe: Pipe) -> usize {
        match self.pipes.iter().position(Option::is_none) {
            Some(id) => {
                self.pipes[id] = Some(pipe);
                id
            }
            None => {
                self.pipes.push(Some(pipe));
                self.pipes.len() - 1
            }
        }
    }

    /// Acts as an unknown peer: connects to an address, sends more on an existing connection, or
    /// disconnects.
    pub(super) fn poll_listener(&mut self, random: &mut SimRandom, at: SocketAddr) {
        let known = self.unknown_peers.len();
        if known == 0 || (known < MAX_UNKNOWN_PEERS && random.one_in(4)) {
            self.port += 1;
            let host = IpAddr::from([10, 9, 0, 1 + random.below(2) as u8]);
            let from = Addr::Ip(SocketAddr::new(host, self.port));
            let mut pipe = Pipe::dialing([from, at.into()], 2048);
            pipe.directions[0].bytes.extend(first_sent(random));
            let id = self.insert(pipe);
            self.unknown_peers.push(id);
            return;
        }
        let id = self.unknown_peers[random.below(known)];
        let Some(pipe) = &mut self.pipes[id] else { return };
        if random.one_in(2) {
            // The peer does not always read the responses.
            let notified = &mut pipe.directions[1];
            notified.bytes.drain(..std::mem::take(&mut notified.arrived));
        }
        if random.one_in(12) {
            pipe.directions[0].end(random.pick(&[Close::Fin, Close::Reset]));
        } else if pipe.directions[0].close.is_none() && pipe.making != Making::Refused {
            let encoded = later_sent(random);
            pipe.directions[0].bytes.extend(encoded);
        }
    }

    /// Disconnects all unknown peers.
    pub(super) fn unknown_peers_leave(&mut self) {
        for id in std::mem::take(&mut self.unknown_peers) {
            let Some(pipe) = &mut self.pipes[id] else { continue };
            pipe.directions[0].end(Close::Fin);
            pipe.open[0] = false;
            let waits = pipe.making == Making::Dialing || !pipe.open[1];
            if waits {
                self.pipes[id] = None;
            }
        }
    }

    /// The time of the next timer or ordered visit of any engine.
    pub(in crate::engine) fn next_event(&self) -> Option<u64> {
        let timers = self.watches.iter().flat_map(|watch| [watch.timer, watch.flush_at]).flatten();
        timers.chain(self.losses.next_dial(self.pipes.iter().flatten())).min()
    }

    /// Returns true if an engine's flush timer has expired.
    pub(super) fn takes_flush(&mut self, node: usize) -> bool {
        let nanos = self.nanos;
        self.watches[node].flush_at.take_if(|at| *at <= nanos).is_some()
    }

    /// An engine is gone: it watches nothing any more.
    pub(super) fn ended(&mut self, node: usize) {
        let watch = std::mem::take(&mut self.watches[node]);
        assert!(watch.watched.is_empty(), "{watch:?}");
    }

    /// Returns true if the poller or the timer of an engine has an event to report.
    fn has_events(&self, node: usize) -> bool {
        let watch = &self.watches[node];
        let mut watched = watch.watched.iter();
        watch.timer.is_some_and(|at| at <= self.nanos)
            || watched.any(|(id, (_, watch))| self.is_ready(*id, *watch).is_some())
    }

    fn is_ready(&self, id: RingId, watch: RingWatch) -> Option<(bool, bool)> {
        let (id, side) = match id {
            RingId::Listener(id) => {
                let waits = self.listeners[id]
                    .as_ref()
                    .is_some_and(|listener| !listener.waiting.is_empty());
                return waits.then_some((true, false));
            }
            RingId::End(id, side) => (id, side),
        };
        let pipe = self.pipes[id].as_ref()?;
        let inbound = &pipe.directions[1 - side];
        let ended = inbound.closed || pipe.making == Making::Refused;
        let RingWatch::For(interest) = watch else { return ended.then_some((true, true)) };
        let read = (interest.read && inbound.arrived > 0) || !pipe.done[side].is_empty();
        let capacity =
            pipe.making == Making::Made && pipe.directions[side].bytes.len() < pipe.capacity;
        let write = interest.write && capacity;
        (read || write || ended).then_some((read || ended, write || ended))
    }
}

/// Links without shared memory, and the descriptors for the shared-memory upgrade.
#[derive(Clone, Debug)]
pub struct Rings {
    world: Arc<Mutex<StreamWorld>>,
    /// The engine's number in the world.
    node: usize,
    /// Many links are sent to and received from together.
    batched: bool,
    /// Poller of descriptors, once there are any.
    fds: Arc<OnceLock<Epoll>>,
    /// Edge-triggered poller of doorbells, reporting each write once, polled by `fds`.
    wakeups: Arc<OnceLock<Epoll>>,
}

impl Rings {
    /// Creates the transport of a new engine in this world. `batched` enables batched calls to
    /// many links, if nothing is encrypted.
    pub fn new(world: &Arc<Mutex<StreamWorld>>, batched: bool) -> Self {
        let batched = batched && !RingCursor::settings().secret.encrypts();
        let mut inside = look(world);
        inside.batched |= batched;
        inside.watches.push(EngineWatch::default());
        let node = inside.watches.len() - 1;
        let (fds, wakeups) = (Arc::default(), Arc::default());
        Self { world: world.clone(), node, batched, fds, wakeups }
    }

    pub(super) fn node(&self) -> usize {
        self.node
    }

    fn world(&self) -> MutexGuard<'_, StreamWorld> {
        look(&self.world)
    }

    /// Returns true if [`Transport::poll`] has an event to report, even if delayed.
    pub(super) fn has_events(&self) -> bool {
        let mut any = self.world().has_events(self.node);
        self.poll_fds(|_| any = true);
        any
    }

    fn poll_fds(&self, each: impl FnMut(PollEvent)) {
        if let Some(fds) = self.fds.get() {
            fds.wait(Some(Duration::ZERO), each).unwrap();
        }
    }
}

impl LinkClock for Rings {
    fn now(&self) -> Instant {
        let nanos = self.nanos();
        self.world().start + Duration::from_nanos(nanos)
    }

    fn nanos(&self) -> u64 {
        let mut world = self.world();
        world.nanos += 50;
        world.nanos
    }
}

/// Flush timer driven by the clock of the simulated world.
#[derive(Debug)]
pub struct RingFlusher {
    net: Rings,
    seen: u64,
}

impl FlushTimer for RingFlusher {
    fn order(&mut self, done: u64) -> bool {
        let mut world = self.net.world();
        let at = world.nanos + FLUSH_DELAY;
        let flush_at = &mut world.watches[self.net.node].flush_at;
        if flush_at.is_none() {
            *flush_at = Some(at);
            self.seen = done;
        }
        true
    }

    fn is_needed(&self, done: u64) -> bool {
        self.seen == done
    }
}

impl LinkPoller<RingId> for Rings {
    fn add(&self, id: RingId, token: u64, interest: Interest) -> Result {
        let mut world = self.world();
        let before = world.watches[self.node].watched.insert(id, (token, RingWatch::For(interest)));
        assert!(before.is_none(), "{id:?} is watched twice");
        Ok(())
    }

    fn modify(&self, id: RingId, token: u64, interest: Interest) -> Result {
        let mut world = self.world();
        let before = world.watches[self.node].watched.insert(id, (token, RingWatch::For(interest)));
        assert!(before.is_some(), "{id:?} was not watched");
        Ok(())
    }

    fn remove(&self, id: RingId) {
        self.world().watches[self.node].watched.remove(&id);
    }
}

impl CarrierPoller<RingId> for Rings {
    fn modify_to_end(&self, id: RingId, token: u64) -> Result {
        let mut world = self.world();
        let before = world.watches[self.node].watched.insert(id, (token, RingWatch::End));
        assert!(before.is_some(), "{id:?} was not watched");
        Ok(())
    }

    fn add_fd(&self, fd: RawFd, token: u64) -> Result {
        here::memory()?;
        self.fds.get_or_init(|| Epoll::new().unwrap()).add(fd, token, Interest::READ)
    }

    fn add_wakeup(&self, fd: RawFd, token: u64) -> Result {
        here::memory()?;
        let wakeups = self.wakeups.get_or_init(|| Epoll::new().unwrap());
        wakeups.add_edge(fd, token)?;
        // A doorbell is reported once; checking for pending reports consumes nothing.
        let fds = self.fds.get_or_init(|| Epoll::new().unwrap());
        fds.add(wakeups.as_raw_fd(), RUNG, Interest::READ)
    }

    fn remove_fd(&self, fd: RawFd) {
        if let Some(fds) = self.fds.get() {
            fds.remove(fd);
        }
    }
}

impl Transport for Rings {
    type Link = RingCursor;
    type Listener = RingListener;
    type Poller = Self;
    type Flusher = RingFlusher;

    fn process(&self) -> u32 {
        ofi_simulation::here::pid().unwrap_or_else(std::process::id)
    }

    fn poller(&self) -> &Self {
        self
    }

    fn poll(&self, events: &mut Vec<PollEvent>) {
        let world = &mut *self.world();
        self.poll_fds(|event| events.push(event));
        for (&id, &(token, watch)) in &world.watches[self.node].watched {
            if let Some((readable, writable)) = world.is_ready(id, watch) {
                events.push(PollEvent { token, readable, writable });
            }
        }
        // Events may be reported later.
        events.retain(|_| world.prompt || world.random.below(8) > 0);
        if let Some(at) = events.iter().position(|event| event.token == RUNG) {
            if let Some(wakeups) = self.wakeups.get() {
                events.swap_remove(at);
                wakeups.wait(Some(Duration::ZERO), |event| events.push(event)).unwrap();
            }
        }
        let watch = &world.watches[self.node];
        if watch.timer.is_some_and(|at| at <= world.nanos) {
            events.push(PollEvent { token: TIMER_TOKEN, readable: true, writable: false });
        }
        if events.len() > 1 {
            let middle = world.random.below(events.len());
            events.rotate_left(middle);
        }
    }

    fn is_ring(&self) -> bool {
        self.batched
    }

    fn wait_fd(&self) -> RawFd {
        -1
    }

    fn set_timer(&self, delay: Duration) {
        let mut world = self.world();
        let at = world.nanos + delay.as_nanos() as u64;
        world.watches[self.node].timer = Some(at);
    }

    fn clear_timer(&self) {
        self.world().watches[self.node].timer = None;
    }

    fn start_flusher(&self, _engine: Weak<dyn FlushTarget>) -> Result<RingFlusher> {
        Ok(RingFlusher { net: self.clone(), seen: 0 })
    }

    fn dial(&self, local: &Addr, _keep_port: bool, to: &Addr) -> Result<RingCursor> {
        here::memory()?;
        let mut world = self.world();
        world.open_end(self.node)?;
        world.port += 1;
        let from = local.at_port(world.port);
        let mut pipe = Pipe::dialing([from, to.clone()], 1024 << world.random.below(7));
        pipe.directions[1].dies_at = world.dying.next_position();
        let id = world.insert(pipe);
        Ok(RingCursor { net: self.clone(), pipe: id, side: 0 })
    }

    fn bind(&self, at: &Addr) -> Result<(RingListener, Addr)> {
        let mut world = self.world();
        let mut at = at.clone();
        if at.port() == 0 {
            world.port += 1;
            at.set_port(world.port);
        }
        if world.listeners.iter().flatten().any(|listener| listener.at == at) {
            return Err(Error::ADDRINUSE);
        }
        world.listeners.push(Some(SimListener { at: at.clone(), waiting: VecDeque::new() }));
        let id = world.listeners.len() - 1;
        Ok((RingListener { net: self.clone(), id }, at))
    }
}

/// One end of a link.
#[derive(Debug)]
pub struct RingCursor {
    net: Rings,
    pipe: usize,
    side: usize,
}

impl RingCursor {
    fn with<R>(&self, work: impl FnOnce(&mut Pipe, &mut SimRandom) -> R) -> R {
        let world = &mut *self.net.world();
        let pipe = world.pipes[self.pipe].as_mut().expect("a link is there as long as its ends");
        work(pipe, &mut world.random)
    }

    /// Moves received bytes to each of the buffers.
    fn take<'a>(&self, bufs: impl Iterator<Item = &'a mut [u8]>) -> Result<usize> {
        self.with(|pipe, random| {
            if pipe.making == Making::Refused {
                return Err(Error::CONNREFUSED);
            }
            let direction = &mut pipe.directions[1 - self.side];
            if direction.arrived == 0 {
                return match direction.close {
                    Some(Close::Fin) if direction.closed => Ok(0),
                    Some(Close::Reset) if direction.closed => Err(Error::CONNRESET),
                    _ => Err(Error::AGAIN),
                };
            }
            // Now and then a call gives less than there is.
            let mut most = direction.arrived;
            if random.below(16) == 0 {
                most = 1 + random.below(most);
            }
            let mut taken = 0;
            for capacity in bufs {
                let part = capacity.len().min(most - taken);
                let (one, two) = direction.bytes.as_slices();
                let of_one = part.min(one.len());
                capacity[..of_one].copy_from_slice(&one[..of_one]);
                capacity[of_one..part].copy_from_slice(&two[..part - of_one]);
                direction.bytes.drain(..part);
                taken += part;
                if taken == most {
                    break;
                }
            }
            direction.arrived -= taken;
            if pipe.made[self.side] {
                pipe.received[self.side] += taken;
            }
            Ok(taken)
        })
    }

    fn put<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Result<usize> {
        self.with(|pipe, random| {
            match pipe.making {
                Making::Dialing => return Err(Error::AGAIN),
                Making::Refused => return Err(Error::CONNREFUSED),
                Making::Made => {}
            }
            let inbound = &pipe.directions[1 - self.side];
            if inbound.closed && inbound.close == Some(Close::Reset) {
                return Err(Error::CONNRESET);
            }
            let direction = &mut pipe.directions[self.side];
            let mut capacity = pipe.capacity.saturating_sub(direction.bytes.len());
            if let Some(position) = direction.resets_at {
                if position == direction.passed {
                    direction.end(Close::Reset);
                    return Err(Error::CONNRESET);
                }
                capacity = capacity.min(position - direction.passed);
            }
            if capacity == 0 {
                return Err(Error::AGAIN);
            }
            // The first bytes of a link are accepted whole, as by a socket.
            if direction.passed >= FRESH && random.below(32) == 0 {
                capacity = 1 + random.below(capacity);
            }
            let mut taken = 0;
            for part in parts {
                let part = &part[..part.len().min(capacity - taken)];
                if direction.close.is_none() {
                    direction.bytes.extend(part);
                    if part.len() > 40 && injected() == Some(InjectedFault::WrongByte) {
                        if let Some(last) = direction.bytes.back_mut() {
                            *last ^= 1;
                        }
                    }
                }
                taken += part.len();
                if taken == capacity {
                    break;
                }
            }
            direction.passed += taken;
            if !pipe.open[1 - self.side] {
                // The peer is gone, as the response to these bytes reports.
                direction.bytes.clear();
                direction.arrived = 0;
                pipe.directions[1 - self.side].close = Some(Close::Reset);
            } else if direction.dies() {
                pipe.directions.iter_mut().for_each(|direction| direction.end(Close::Reset));
            }
            Ok(taken)
        })
    }
}

std::thread_local! {
    static CHOSEN: Cell<Option<&'static StreamSettings>> = const { Cell::new(None) };
    /// Action of another process while this one starts to read from a link.
    static MEANWHILE: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// Has the thread's engines use these settings in place of the usual ones.
pub(crate) fn choose(settings: Option<&'static StreamSettings>) {
    CHOSEN.set(settings);
}

impl ByteLink for RingCursor {
    type Id = RingId;

    fn provider() -> &'static Provider {
        static RINGS: Provider = Provider::named(c"rings", PROV_VERSION, API_VERSION);
        &RINGS
    }

    fn settings() -> &'static StreamSettings {
        static USUAL: LazyLock<StreamSettings> = LazyLock::new(StreamSettings::default);
        CHOSEN.get().unwrap_or_else(|| &USUAL)
    }

    fn id(&self) -> RingId {
        RingId::End(self.pipe, self.side)
    }

    fn recv(&self, capacity: &mut [u8]) -> Result<usize> {
        if let Some(happens) = MEANWHILE.take() {
            happens();
        }
        self.take(std::iter::once(capacity))
    }

    fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.put(std::iter::once(bytes))
    }

    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        let message = list.message();
        // SAFETY: the message points to as many vectors, whose memory the list borrows for what
        // is done here.
        let bufs = unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen as _) };
        self.take(bufs.iter().map(|one| {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts_mut(one.iov_base.cast(), one.iov_len) }
        }))
    }

    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize> {
        let message = list.message();
        // SAFETY: the message points to as many vectors, whose memory the list borrows for what
        // is done here.
        let parts = unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen as _) };
        let parts = parts.iter().map(|one| {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(one.iov_base.cast::<u8>(), one.iov_len) }
        });
        if !way.is_zcopy() {
            return self.put(parts);
        }
        let taken = self.put(parts.clone())?;
        let mut left = taken;
        let exposed = parts.map(|part| {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            Exposed(part.as_ptr(), part.to_vec())
        });
        let exposed = exposed.collect();
        self.with(|pipe, _| {
            pipe.exposed[self.side].push_back((pipe.calls[self.side], exposed));
            pipe.calls[self.side] += 1;
        });
        Ok(taken)
    }

    fn take_error(&self) -> Result {
        self.with(|pipe, _| match pipe.making {
            Making::Refused => Err(Error::CONNREFUSED),
            _ => Ok(()),
        })
    }

    fn local_addr(&self) -> Result<Addr> {
        Ok(self.with(|pipe, _| pipe.addrs[self.side].clone()))
    }

    fn peer_addr(&self) -> Result<Addr> {
        Ok(self.with(|pipe, _| pipe.addrs[1 - self.side].clone()))
    }

    fn is_on_this_host(&self) -> bool {
        let apart = self.net.world().apart;
        self.with(|pipe, _| is_local(&pipe.addrs, apart))
    }

    fn made(&self) {
        self.with(|pipe, _| pipe.made[self.side] = true);
    }

    fn has_ended(&self) -> bool {
        self.with(|pipe, _| {
            let inbound = &pipe.directions[1 - self.side];
            // Early data needs links with an immediate report of the end.
            let closes = Self::settings().early_data > 0 && inbound.close.is_some();
            pipe.making == Making::Refused || inbound.closed || closes
        })
    }

    fn unacknowledged(&self) -> usize {
        self.with(|pipe, _| {
            let direction = &pipe.directions[self.side];
            direction.bytes.len().saturating_sub(direction.arrived)
        })
    }

    fn reset_when_closed(&self) {
        self.with(|pipe, _| {
            let direction = &mut pipe.directions[self.side];
            direction.bytes.truncate(direction.arrived);
            direction.end(Close::Reset);
            pipe.exposed[self.side].clear();
        });
    }

    fn shutdown(&self) {
        self.with(|pipe, _| {
            pipe.directions[self.side].end(Close::Fin);
            let inbound = &mut pipe.directions[1 - self.side];
            inbound.end(Close::Fin);
            inbound.closed = true;
        });
    }
}

impl ZeroCopyLink for RingCursor {
    fn set_zerocopy(&self) -> Result {
        Ok(())
    }

    fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        let done = self.with(|pipe, _| pipe.done[self.side].pop_front()).ok_or(Error::AGAIN)?;
        Ok(ZerocopyDone { low: done, high: done, copied: false })
    }
}

impl Drop for RingCursor {
    fn drop(&mut self) {
        let world = &mut *self.net.world();
        world.watches[self.net.node].ends -= 1;
        for watch in &mut world.watches {
            watch.watched.remove(&RingId::End(self.pipe, self.side));
        }
        let Some(pipe) = &mut world.pipes[self.pipe] else { return };
        pipe.open[self.side] = false;
        pipe.exposed[self.side].clear();
        // Closing an end with unread data is reported to the other end.
        let inbound = &pipe.directions[1 - self.side];
        let unread = inbound.arrived > 0;
        pipe.directions[self.side].end(if unread { Close::Reset } else { Close::Fin });
        if pipe.open == [false, false] {
            world.pipes[self.pipe] = None;
        }
    }
}

mod faults;
mod listener;
#[cfg(test)]
mod tests;
