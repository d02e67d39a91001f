//! Progress engine of a domain: its endpoints and their progress.
//!
//! Receives are posted here. Unexpected messages wait at the cores after their announcement
//! (fi_peer(3)), so messages may arrive over any core. One lock guards this state. It is taken in
//! calls from a core, with the core's own locks held ([`owner`]). So no core is ever called with it
//! held. Work at a core is queued, and done when the lock is free ([`LnxEngine::start_messages`]).
mod ep;
mod message;
mod names;
mod owner;
mod peers;
mod poll_scheduler;
mod rails;
mod state;

pub(crate) use rails::OpenedCore;
pub(crate) use state::LnxState;

use crate::host_token::HostToken;
use ep::LnxEngineEp;
use message::{LnxActiveRecv, LnxSrxStart};
use ofi_provider::abi::{FI_COMPLETION, fi_addr_t};
use ofi_provider::api::Bindings;
use ofi_provider::atomic::Operation;
use ofi_provider::core_provider::{CoreRail, CoreWaiter, RailAttr};
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::endpoint::{RdmAttr, RdmEndpoint};
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::link_addr::LinkAddr;
use ofi_provider::lock::{FastGuard, Guard, Level, Lock};
use ofi_provider::mr::MrTable;
use ofi_provider::progress::{Activity, Progress};
use ofi_provider::slab::Slab;
use ofi_provider::sys::{self, Epoll, EventFd, Interest, Timer};
use owner::{LnxRail, RailOwner};
use peers::LnxRoutes;
use poll_scheduler::PollScheduler;
use rails::{AtomicLimits, IdleCores};
use state::{LnxPendingWork, LnxShared};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Maximum sleep of a caller while an endpoint of a core has no descriptor to wake it.
const UNWATCHED_SLEEP: Duration = Duration::from_millis(1);

/// Minimum free space in bytes: a multi-receive buffer with less is released
/// (FI_OPT_MIN_MULTI_RECV).
const MIN_MULTI_RECV: usize = 4096;

/// State shared by the endpoints of a domain.
#[derive(Debug)]
pub(crate) struct LnxCommon {
    /// The cores, those for peers of this host first.
    pub(crate) cores: Vec<OpenedCore>,
    pub(crate) regions: Arc<MrTable>,
    /// Level of the engine's locks. Cores call only within calls to them, regardless of their
    /// threads.
    pub(crate) level: Level,
}

/// State of an application's endpoint available without the engine's lock, once it is enabled: its
/// endpoints at the cores, and the routes to peers.
#[derive(Debug, Default)]
pub(crate) struct LnxEndpointExt(OnceLock<LnxRails>);

/// The ways to an endpoint's peers.
#[derive(Debug)]
struct LnxRails {
    /// Endpoint at the first core, mostly used by messages. Its address is then available without
    /// first reading the number of the core.
    first: Arc<LnxRail>,
    rails: Vec<Arc<LnxRail>>,
    routes: Arc<LnxRoutes>,
}

/// A transfer, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LnxTransfer {
    pub(crate) peer: fi_addr_t,
    pub(crate) context: Context,
    pub(crate) flags: u64,
    /// The flags of its completion entry: FI_SEND | FI_TAGGED …
    pub(crate) kind: u64,
    /// The application's bytes.
    pub(crate) len: usize,
}

/// Route of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LnxRoute<'a> {
    /// The endpoint of the core.
    pub(crate) rail: &'a LnxRail,
    /// Core's name of the peer.
    pub(crate) to: fi_addr_t,
    /// The application is known to have read all entries in the queue of its sends.
    pub(crate) cq_is_drained: bool,
}

/// A domain's engine.
pub(crate) struct LnxEngine {
    shared: Arc<LnxShared>,
    common: LnxCommon,
    /// Endpoints of cores, advanced by progress with the lock held. Taken before the locks of
    /// cores.
    rails: Lock<Vec<Arc<LnxRail>>>,
    to_do: Arc<LnxPendingWork>,
    scheduler: PollScheduler,
    epoll: Epoll,
    idle: IdleCores,
    /// Expires while a caller sleeps and not all endpoints of cores would wake it.
    timer: Timer,
    activity: Activity,
}

/// An endpoint of the application's.
pub(crate) type LnxEp = RdmEndpoint<LnxEngine>;

impl std::fmt::Debug for LnxEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LnxEngine({:?})", self.common.cores)
    }
}

impl LnxEngine {
    /// A new engine.
    pub(crate) fn new(common: LnxCommon) -> Result<Arc<Self>> {
        let level = common.level.clone();
        let to_do = Arc::<LnxPendingWork>::default();
        let state = LnxState { eps: Slab::default(), starts: Vec::new(), to_do: to_do.clone() };
        let shared = Arc::new(LnxShared {
            state: Lock::with_level(state, level.clone()),
            to_do: to_do.clone(),
            wake: EventFd::new()?,
        });
        let (epoll, timer) = (Epoll::new()?, Timer::new()?);
        epoll.add(shared.wake.as_raw_fd(), 0, Interest::READ)?;
        epoll.add(timer.as_raw_fd(), 0, Interest::READ)?;
        if common.cores.iter().all(OpenedCore::has_atomics) {
            AtomicLimits::note(common.cores.iter().map(|core| &core.domain));
        }
        for waiter in common.cores.iter().filter_map(|core| core.waiter.as_ref()) {
            epoll.add(waiter.fd(), 0, Interest::READ)?;
        }
        let rails = Lock::with_level(Vec::new(), level);
        let scheduler = PollScheduler::new(common.cores.len());
        let idle = IdleCores::new(&common.cores);
        let activity = Activity::default();
        Ok(Arc::new(Self { shared, common, rails, to_do, scheduler, epoll, idle, timer, activity }))
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, LnxState> {
        self.shared.state.lock()
    }

    /// Takes the lock if it is free, as [`Lock::try_lock_fast`] does.
    #[inline(always)]
    pub(crate) fn lock_at_once<const LEVEL: usize>(&self) -> Option<FastGuard<'_, LnxState>> {
        self.shared.state.try_lock_fast::<LEVEL>()
    }

    /// The number of the lock's level.
    pub(crate) fn level(&self) -> usize {
        self.shared.state.level()
    }

    /// Adds an endpoint; returns its number.
    pub(crate) fn add_ep(&self, attr: RdmAttr) -> u32 {
        self.lock().eps.insert_with(|id| {
            let matcher = attr.matcher(id, MIN_MULTI_RECV, [0; 2]);
            LnxEngineEp::new(matcher, attr.tx_size)
        })
    }

    /// Opens the endpoint's endpoints at the cores.
    pub(crate) fn enable_ep(&self, id: u32, ext: &LnxEndpointExt, bindings: &Bindings) -> Result {
        self.lock().ep(id).matcher.bind(&bindings.completions.rx);
        let completions = Arc::new(Mutex::new(bindings.completions.clone()));
        let (mut rails, mut parts) = (Vec::new(), Vec::new());
        for (number, core) in self.common.cores.iter().enumerate() {
            let owner = RailOwner::new(&self.shared, id, number, &completions, &core.activity);
            let (owner, kinds) = (Arc::new(owner), bindings.completions.kinds());
            let waits = core.waiter.is_none();
            let opens = RailAttr { counted: kinds, waits, takes_whole: !self.has_devices() };
            let rail = CoreRail::open(&core.domain, &core.info, owner.clone(), opens)?;
            if !self.p2p(id) {
                let _ = rail.permit_p2p(false);
            }
            parts.push((core.fabric.clone(), rail.name()?));
            // The kernel bounds how many descriptors are watched in this way.
            let is_watched =
                !waits || rail.fd().is_some_and(|fd| self.epoll.add(fd, 0, Interest::READ).is_ok());
            rails.push(Arc::new(LnxRail { rail, owner, is_watched }));
        }
        // Without one no peer uses cores limited to this host for this endpoint: cores such as shm,
        // and addresses of the loopback interface.
        let beacon = HostToken::new().ok();
        let mark = beacon.as_ref().map(HostToken::mark);
        let addr = LinkAddr::new(&rails::host_name(), mark, &parts)?;
        self.rails.lock().extend(rails.iter().cloned());
        let mut state = self.lock();
        let ep = state.ep(id);
        if let Some(first) = rails.first().cloned() {
            let routes = ep.peers.routes.clone();
            let _ = ext.0.set(LnxRails { first, rails, routes });
        }
        (ep.addr, ep.beacon, ep.completions) = (Some(addr), beacon, Some(completions));
        ep.av.clone_from(&bindings.av);
        drop(state);
        if let Some(av) = &bindings.av {
            for name in av.indices() {
                if let Ok(addr) = av.get(name) {
                    self.insert_name(id, name, &addr);
                    self.identify_name(id, name, av.id_of(name));
                }
            }
        }
        Ok(())
    }

    /// Applies counters bound after the endpoint was enabled.
    pub(crate) fn bind_late(&self, id: u32, bindings: &Bindings) -> Result {
        let mut state = self.lock();
        let ep = state.ep(id);
        ep.matcher.bind(&bindings.completions.rx);
        let completions = ep.completions.clone();
        drop(state);
        let Some(completions) = completions else { return Err(Error::OPBADSTATE) };
        let known = {
            let mut completions = completions.lock().unwrap_or_else(PoisonError::into_inner);
            let known = completions.kinds();
            *completions = bindings.completions.clone();
            known
        };
        let new = bindings.completions.kinds() & !known;
        self.rails_of(id).iter().try_for_each(|rail| rail.rail.count(new))
    }

    /// Returns true if devices of peers on this host may read memory of devices of an endpoint.
    pub(crate) fn p2p(&self, id: u32) -> bool {
        self.lock().ep(id).p2p
    }

    /// Permits or forbids it.
    pub(crate) fn permit_p2p(&self, id: u32, permitted: bool) {
        self.lock().ep(id).p2p = permitted;
        for rail in self.rails_of(id) {
            // A core that knows no such memory need not be forbidden to use it.
            let _ = rail.rail.permit_p2p(permitted);
        }
    }

    /// Returns the endpoints of an endpoint at the cores, by their numbers; none if it is not
    /// enabled.
    fn rails_of(&self, id: u32) -> Vec<Arc<LnxRail>> {
        let rails = self.rails.lock();
        rails.iter().filter(|rail| rail.owner.ep == id).cloned().collect()
    }

    /// Closes an endpoint.
    pub(crate) fn close_ep(&self, id: u32) {
        let rails = self.rails_of(id);
        // A thread polling everything, or starting messages, holds the lock: no thread does after
        // this call.
        self.rails.lock().retain(|rail| rail.owner.ep != id);
        for rail in &rails {
            if let Some(fd) = rail.rail.fd() {
                self.epoll.remove(fd);
            }
            rail.rail.shut();
        }
        let mut state = self.lock();
        let (of_ep, others) =
            std::mem::take(&mut state.starts).into_iter().partition(|start| start.ep == id);
        state.starts = others;
        let Some(mut ep) = state.eps.remove(id) else { return };
        drop(state);
        let of_ep: Vec<LnxSrxStart> = of_ep;
        // Operations of a closed endpoint are dropped without being reported (fi_endpoint(3)).
        ep.matcher.completions.mute();
        for LnxActiveRecv { recv, envelope } in of_ep.into_iter().filter_map(|start| start.filling)
        {
            ep.matcher.failed(&recv, &envelope, Error::CANCELED);
        }
        ep.close();
        drop(rails);
    }

    /// Returns the core for a transfer, and its name of the peer. None for a finished transfer,
    /// because no core reaches the peer.
    #[inline(always)]
    pub(crate) fn way<'a>(
        &self,
        ep: &'a LnxEp,
        envelope: &LnxTransfer,
    ) -> Result<Option<LnxRoute<'a>>> {
        let Some(LnxRails { first, rails, routes }) = ep.ext.0.get() else {
            return Err(Error::OPBADSTATE);
        };
        let (core, to) = routes.route(envelope.peer);
        let rail = match core {
            0 => first,
            core => match rails.get(core as usize) {
                Some(rail) => rail,
                None => {
                    let LnxTransfer { context, kind, .. } = *envelope;
                    return self.no_way(ep.id, (context, kind), core).map(|()| None);
                }
            },
        };
        let cq_is_drained = rail.owner.tx.cq_is_drained();
        if !cq_is_drained && !rail.owner.tx.has_space(envelope.flags & FI_COMPLETION != 0) {
            return Err(self.is_full());
        }
        Ok(Some(LnxRoute { rail, to, cq_is_drained }))
    }

    /// Returns the error for a send queue without space for another entry.
    #[cold]
    fn is_full(&self) -> Error {
        self.progress();
        Error::AGAIN
    }

    /// Handles the core's return value of a transfer call: returns true if the transfer is
    /// complete, and will not be reported.
    #[inline(always)]
    pub(crate) fn began(
        &self,
        LnxRail { owner, .. }: &LnxRail,
        envelope: &LnxTransfer,
        answer: Result<bool>,
    ) -> Result {
        owner.mark_active();
        match answer {
            Ok(complete) => {
                owner.tx.handed_on();
                if complete {
                    owner.tx.reported(Completion::of(
                        envelope.context,
                        envelope.kind,
                        envelope.len,
                    ));
                }
                Ok(())
            }
            Err(error) => Err(if error == Error::AGAIN { self.is_full() } else { error }),
        }
    }

    /// Reports a failed transfer to a peer without a route.
    #[cold]
    fn no_way(&self, ep: u32, (context, kind): (Context, u64), core: u32) -> Result {
        let error = peers::why_none(core);
        if error != Error::HOSTUNREACH {
            return Err(error);
        }
        let completions = self.lock().ep(ep).completions.clone().ok_or(Error::OPBADSTATE)?;
        let completions = completions.lock().unwrap_or_else(PoisonError::into_inner);
        let error = CompletionError::new(Completion::of(context, kind, 0), error);
        completions.tx.failed(error);
        Ok(())
    }

    /// Notifies the cores of matched messages and messages to be dropped. No lock of this engine is
    /// held during the notification.
    #[inline(always)]
    pub(crate) fn start_messages(&self) {
        if self.to_do.starts.load(Ordering::Acquire) {
            self.start_now();
        }
    }

    #[cold]
    fn start_now(&self) {
        // While this lock is held, no endpoint is closed. Its holder starts the messages as well.
        match self.rails.lock_if_idle() {
            Some(open) => self.start_all(&open),
            None => self.shared.wake.signal(),
        }
    }

    #[cold]
    fn start_all(&self, open: &[Arc<LnxRail>]) {
        loop {
            let mut state = self.lock();
            state.to_do.starts.store(false, Ordering::Release);
            let starts = std::mem::take(&mut state.starts);
            if starts.is_empty() {
                return;
            }
            // Those of an endpoint that is being closed, or opened, stay.
            let rail_of = |start: &LnxSrxStart| {
                let of = (start.ep, start.buffered.rail);
                open.iter().find(|rail| (rail.owner.ep, rail.owner.rail) == of).cloned()
            };
            let (mut started, mut left) = (Vec::new(), Vec::new());
            for start in starts {
                match rail_of(&start) {
                    Some(rail) => started.push((rail, start)),
                    None => left.push(start),
                }
            }
            let some = !started.is_empty();
            state.starts = left;
            drop(state);
            for (rail, start) in started {
                rail.start(start.buffered.entry, start.filling);
            }
            if !some {
                return;
            }
        }
    }
}

impl LnxEngine {
    /// Runs a progress iteration: polls the lead core, if there is no other work.
    #[inline(always)]
    fn poll_once(&self) {
        if !self.to_do.settled.load(Ordering::Acquire) || self.common.regions.has_counters() {
            return self.poll_active(false);
        }
        match self.common.cores.get(self.scheduler.lead()).and_then(|core| core.waiter.as_ref()) {
            // No lock is taken: the core has its own, with which it keeps endpoints there open.
            Some(lead) => lead.progress(),
            None => self.poll_active(false),
        }
    }

    /// Runs a progress iteration checking the idle cores if they are due.
    #[inline(never)]
    fn poll_by_clock(&self) {
        let is_due = self.scheduler.is_check_due(sys::fine_now());
        if is_due && !self.idle.are_quiet(&self.common.cores, self.scheduler.lead()) {
            self.poll_active(true);
        } else {
            self.poll_once();
        }
    }

    /// Runs a progress iteration checking all possible work of the active cores, and of the idle
    /// ones if requested.
    #[inline(never)]
    fn poll_active(&self, and_idle: bool) {
        // The thread holding the lock is making progress, or about to release the lock.
        let Some(rails) = self.rails.lock_if_idle() else { return };
        // Work arising from here on belongs to the next iteration.
        self.to_do.settled.store(true, Ordering::SeqCst);
        if rails.iter().any(|rail| rail.owner.is_flooded()) {
            return self.to_do.unsettle();
        }
        let lead = self.scheduler.lead();
        for (number, core) in self.common.cores.iter().enumerate() {
            if and_idle || number == lead || core.activity.is_active() {
                self.poll_core(number, core, &rails);
            }
        }
        if and_idle {
            self.others().for_each(OpenedCore::arm);
        }
        if self.to_do.starts.load(Ordering::Acquire) {
            self.start_all(&rails);
        }
        let lead = self.scheduler.lead();
        if self.common.cores[lead].waiter.is_none()
            || self.others().any(|core| core.activity.is_active())
        {
            self.to_do.unsettle();
        }
        drop(rails);
        self.common.regions.pass_counts_on();
    }

    /// Polls a core. After activity it is the lead core.
    fn poll_core(&self, number: usize, core: &OpenedCore, rails: &[Arc<LnxRail>]) {
        match &core.waiter {
            Some(waiter) => waiter.progress(),
            None => {
                let of_core = rails.iter().filter(|rail| rail.owner.rail == number);
                of_core.for_each(|rail| rail.rail.progress());
            }
        }
        if core.activity.record_poll() {
            self.scheduler.set_lead(number);
        }
    }

    /// Returns all cores but the lead core.
    fn others(&self) -> impl Iterator<Item = &OpenedCore> {
        let lead = self.scheduler.lead();
        let cores = self.common.cores.iter().enumerate();
        cores.filter(move |(number, _)| *number != lead).map(|(_, core)| core)
    }
}

impl Progress for LnxEngine {
    fn progress(&self) {
        self.activity.another();
        if !heap::may_progress() {
            return;
        }
        if self.scheduler.count_iteration() { self.poll_by_clock() } else { self.poll_once() }
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn may_block(&self) -> bool {
        self.shared.wake.drain();
        if self.to_do.starts.load(Ordering::Acquire) {
            return false;
        }
        let rails = self.rails.lock();
        if rails.iter().any(|rail| !rail.is_watched) {
            self.timer.set(UNWATCHED_SLEEP);
        }
        let mut waiters = self.common.cores.iter().filter_map(|core| core.waiter.as_ref());
        waiters.all(CoreWaiter::may_block)
            && rails.iter().all(|rail| rail.rail.fd().is_none() || rail.rail.may_block())
    }

    fn end_wait(&self) {
        // Idle cores stay armed.
        let lead = self.scheduler.lead();
        for (number, core) in self.common.cores.iter().enumerate() {
            if number == lead || core.activity.is_active() {
                core.waiter.iter().for_each(CoreWaiter::end_wait);
            }
        }
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

impl LnxEngine {
    /// Returns the maximum bytes of elements of an atomic operation of this kind.
    pub(crate) fn most_atomic(operation: Operation) -> usize {
        AtomicLimits::most(operation)
    }

    /// Returns the maximum bytes of elements of any atomic operation.
    pub(crate) fn most_atomic_bytes() -> usize {
        AtomicLimits::most_of_all()
    }

    /// Returns true if buffers may be in memory of devices (FI_HMEM).
    pub(crate) fn has_devices(&self) -> bool {
        self.common.regions.interfaces().is_some()
    }

    /// Returns true if all cores have atomic operations.
    pub(crate) fn has_atomics(&self) -> bool {
        self.common.cores.iter().all(OpenedCore::has_atomics)
    }
}
