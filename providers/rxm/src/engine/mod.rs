//! Progress engine of a domain: its endpoints and their progress.
//!
//! One lock guards the whole state; the core provider is called under it. A send goes to the core
//! from the application's thread ([`tx`]). Packets are matched as the core completes their receives
//! ([`rx`]). Connections are established and ended in [`cm`]. A progress iteration reads the core's
//! completion queues. It reads the event queues so rarely as to cost next to nothing.
mod atomic;
mod cm;
mod common;
mod conn;
mod conn_limit;
mod connect_queue;
mod conns;
mod contexts;
mod core_objects;
mod device_copies;
mod device_tx;
mod ep;
mod fetches;
mod further;
mod further_calls;
mod idle_closer;
mod parked;
mod pending;
mod progress;
mod rx;
mod shared_rx;
#[cfg(test)]
mod sim;
mod spread;
mod stats;
mod transmit;
mod tx;

pub(crate) use common::Common;
pub(crate) use core_objects::LocalPaths;
pub(crate) use ep::{RxmEngineEp, RxmIdentity};
pub(crate) use transmit::DIRECT_MIN;

use crate::provider::RXM;
use crate::wire::RejectReason;
use ofi_provider::abi::FI_RMA_EVENT;
use ofi_provider::abi::fi_addr_t;
use ofi_provider::addr::Addr;
use ofi_provider::api::{Bindings, ContextAttr, RecvOp};
use ofi_provider::closing::{CloseBudget, Undelivered};
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::lock::{FastGuard, Guard, Level, Lock};
use ofi_provider::peer_srx::{SrxOwner, SrxStartHandler, SrxStartQueue, SrxStartWaker};
use ofi_provider::peers::AvObserver;
use ofi_provider::progress::{Activity, Progress};
use ofi_provider::receives::PostsReceives;
use ofi_provider::rx_matcher::{MatchedMessage, RxMatcher};
use ofi_provider::slab::Slab;
use ofi_provider::stats::{EngineStats, PublicationTime, PublicationTimer};
use ofi_provider::sys::{Epoll, Interest, fine_now};
use ofi_provider::waiters::Waiters;
use ofi_provider::worker::{Worker, rest, unharmed};
use pending::{ContextConnReq, RxmUnexpected};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// A domain's engine.
pub(crate) struct RxmEngine {
    state: Lock<RxmState>,
    common: Arc<Common>,
    /// Poller of the core's queues, if the core has no wait sets.
    epoll: Option<Epoll>,
    activity: Activity,
    /// Limit on the total time spent closing endpoints.
    closing: CloseBudget,
    helper: Mutex<Option<RxmHelper>>,
    /// Wakes waiters when another provider starts a message.
    starts: SrxStartWaker,
}

/// Helper thread establishing connections, and sending data blocked on space in the core, while the
/// application makes no call.
///
/// A send is accepted before its connection is established. If the application then waits for
/// another event, no call would finish the connection under manual progress: the helper does. It
/// wakes at intervals, yields to an application making progress itself, and ends when nothing has
/// waited for a while.
#[derive(Debug)]
struct RxmHelper {
    worker: Worker,
    stop: Arc<AtomicBool>,
}

/// Interval between two checks of the helper.
const HELPER_PAUSE: Duration = Duration::from_millis(1);

/// Consecutive wake-ups without work after which the helper ends. It does not end at the first,
/// because new work may follow soon.
const HELPER_LOOKS: u32 = 64;

impl std::fmt::Debug for RxmEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RxmEngine")
    }
}

/// State guarded by the engine's lock.
pub(crate) struct RxmState {
    eps: Slab<Box<RxmEngineEp>>,
    /// The helper thread is running.
    helped: bool,
    /// Buffered messages started by other providers, if endpoints use receives of such.
    started: Option<Arc<SrxStartQueue>>,
    /// Statistics page entries of the endpoints.
    stats: EngineStats,
    publication: PublicationTimer,
    /// Progress iterations made by threads of the library.
    thread_iterations: u64,
    /// Threads about to sleep.
    waiters: Waiters,
}

impl RxmEngine {
    /// A new engine. Its lock costs nothing if the application serializes its
    /// calls.
    pub(crate) fn new(common: Arc<Common>) -> Result<Arc<Self>> {
        // Simulated worlds publish no statistics.
        let stats = if cfg!(test) { EngineStats::hidden() } else { EngineStats::new(&RXM) };
        let state = RxmState {
            eps: Slab::default(),
            helped: false,
            started: None,
            stats,
            publication: PublicationTimer::default(),
            thread_iterations: 0,
            waiters: Waiters::default(),
        };
        let state = Lock::with_level(state, common.level.clone());
        let epoll = if common.wait_set.is_some() { None } else { Some(Epoll::new()?) };
        Ok(Arc::new(Self {
            state,
            common,
            epoll,
            activity: Activity::default(),
            closing: CloseBudget::default(),
            helper: Mutex::default(),
            starts: SrxStartWaker::default(),
        }))
    }

    /// Starts the helper, if it is not running. An application serializing all calls has no helper:
    /// only its calls establish its connections.
    #[cold]
    pub(crate) fn help(self: &Arc<Self>) {
        if matches!(self.common.level, Level::Serialized) {
            return;
        }
        if std::mem::replace(&mut self.lock().helped, true) {
            return;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (engine, stopped) = (Arc::downgrade(self), stop.clone());
        match Worker::start("ofi-rxm-cm", move || help(&engine, &stopped)) {
            // The helper before this one has nothing left to do.
            Ok(worker) => *self.helper() = Some(RxmHelper { worker, stop }),
            Err(_) => self.lock().helped = false,
        }
    }

    fn helper(&self) -> MutexGuard<'_, Option<RxmHelper>> {
        self.helper.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, RxmState> {
        self.state.lock()
    }

    /// Takes the lock as [`Lock::try_lock_fast`] does.
    #[inline(always)]
    pub(crate) fn lock_at_once<const LEVEL: usize>(&self) -> Option<FastGuard<'_, RxmState>> {
        self.state.try_lock_fast::<LEVEL>()
    }

    /// The level of the lock, by its number.
    pub(crate) fn level(&self) -> usize {
        self.state.level()
    }

    /// Adds an endpoint; returns its number.
    pub(crate) fn add_ep(&self, identity: RxmIdentity) -> u32 {
        let common = self.common.clone();
        self.lock().eps.insert_with(|id| Box::new(RxmEngineEp::new(id, common, identity)))
    }

    /// Calls `each` with an endpoint, if it is still open.
    pub(crate) fn with(&self, ep: u32, each: impl FnOnce(&mut RxmEngineEp)) {
        if let Some(ep) = self.lock().eps.get_mut(ep) {
            each(ep);
        }
    }

    /// Applies objects bound after an endpoint was enabled. Fails with -FI_EOPBADSTATE for the first
    /// counter of peers' reads and writes: the core counts these from the beginning or never.
    pub(crate) fn bind_late(&self, ep: u32, bindings: &Bindings) -> Result {
        let mut state = self.lock();
        let ep = state.ep(ep);
        if bindings.completions.rx.counts_peers() != ep.matcher.completions.counts_peers() {
            return Err(Error::OPBADSTATE);
        }
        ep.tx.bind(bindings);
        ep.matcher.bind(&bindings.completions.rx);
        Ok(())
    }

    /// Sets an endpoint's own address, before it listens. The core binds it now, if it can, with a
    /// port if none is given. So the endpoint's name equals the address used by connecting peers.
    pub(crate) fn set_name(&self, ep: u32, local: Addr) -> Result {
        let mut state = self.lock();
        let ep = state.ep(ep);
        if ep.core.is_some() {
            return Err(Error::OPBADSTATE);
        }
        ep.identity.local = ep.bound.reserve(&ep.common, local)?;
        Ok(())
    }

    /// Returns the transfers of an endpoint not passed to the core yet.
    pub(crate) fn not_passed_on(&self, ep: u32) -> Undelivered {
        let mut state = self.lock();
        let ep = state.ep(ep);
        ep.tx.undelivered(&ep.conns, &ep.peers)
    }

    /// Sets the attributes of a newly opened transmit or receive context.
    pub(crate) fn make_context(&self, ep: u32, attr: &ContextAttr) {
        let mut state = self.lock();
        let ep = state.ep(ep);
        let limit = ep.common.config.eager_limit;
        ep.identity.attr.become_context(attr, limit, &mut ep.matcher, &ep.peers);
    }

    /// Starts an endpoint, with the receives of `srx` if given; its core's queues are watched from
    /// then on.
    pub(crate) fn enable(&self, ep: u32, bindings: &Bindings, srx: Option<u32>) -> Result {
        let mut state = self.lock();
        if let Some(srx) = srx {
            let queues = state.ep(srx).matcher.queues.expose();
            state.ep(ep).matcher.queues.join(queues);
        }
        let fds = state.ep(ep).enable(bindings)?;
        // An endpoint never polled is to be identifiable by its address in the statistics page.
        let RxmState { eps, stats, thread_iterations, waiters, .. } = &mut *state;
        eps[ep].show(stats, [self.activity(), *thread_iterations], waiters.count() as u64);
        self.watch(fds)
    }

    /// Has blocked calls wake for these queues of the core's as well.
    fn watch(&self, fds: [Option<RawFd>; 2]) -> Result {
        if let Some(epoll) = &self.epoll {
            fds.into_iter().flatten().try_for_each(|fd| epoll.add(fd, 0, Interest::READ))?;
        }
        Ok(())
    }

    /// Returns true if buffers may be in memory of devices (FI_HMEM).
    pub(crate) fn has_bounce(&self) -> bool {
        self.common.bounce.is_some()
    }

    /// Returns the limit on the total time spent closing endpoints.
    pub(crate) fn closing(&self) -> &CloseBudget {
        &self.closing
    }

    /// Closes an endpoint.
    pub(crate) fn close_ep(&self, ep: u32) {
        let mut state = self.lock();
        let ep = state.eps.remove(ep);
        if let Some(mut ep) = ep {
            ep.matcher.leave();
            // Closing the core's objects takes long, and needs no lock.
            drop(state);
            if let Some(epoll) = &self.epoll {
                ep.core
                    .iter()
                    .flat_map(|core| core.fds(&ep.common))
                    .flatten()
                    .for_each(|fd| epoll.remove(fd));
            }
            ep.close();
        }
    }
}

/// The helper's thread.
fn help(engine: &Weak<RxmEngine>, stop: &AtomicBool) {
    let (mut seen, mut empty_polls) = (None, 0);
    while !stop.load(Ordering::Acquire) {
        rest(|| std::thread::sleep(HELPER_PAUSE));
        let Some(engine) = engine.upgrade() else { return };
        let now = Some(engine.activity());
        let mut state = engine.lock();
        if state.eps.iter().any(|(_, ep)| ep.conns.has_waiting()) {
            empty_polls = 0;
            if now == seen {
                // Even if a turn panics, the helper must go on for the other endpoints.
                let _ = unharmed(|| state.poll_once());
            }
        } else if empty_polls >= HELPER_LOOKS {
            // An operation that has to wait from now on starts another helper.
            state.helped = false;
            return;
        } else {
            empty_polls += 1;
        }
        seen = now;
    }
}

impl Drop for RxmEngine {
    fn drop(&mut self) {
        if let Some(RxmHelper { mut worker, stop }) = self.helper().take() {
            worker.end(|| stop.store(true, Ordering::Release));
        }
    }
}

impl SrxStartHandler for RxmEngine {
    fn start_now(&self) {
        self.starts.take_up_or_signal(&self.state, |state| _ = state.take_started());
    }
}

impl Progress for RxmEngine {
    #[inline]
    fn progress(&self) {
        let iterations = self.activity.another();
        if !heap::may_progress() {
            return;
        }
        self.lock().count_iterations(iterations);
        self.common.regions.pass_counts_on();
    }

    fn run_for_library(&self) -> bool {
        self.lock().thread_iterations += 1;
        self.progress();
        self.may_block()
    }

    fn wait_fd(&self) -> RawFd {
        let set = || self.common.wait_set.as_ref().map(|set| set.fd());
        self.epoll.as_ref().map(|epoll| epoll.as_raw_fd()).or_else(set).unwrap_or(-1)
    }

    fn wake_fds(&self) -> [Option<RawFd>; 2] {
        [self.starts.fd(), None]
    }

    fn may_block(&self) -> bool {
        self.starts.undo();
        let mut state = self.lock();
        // A started message may complete here, and then has to be polled.
        if state.take_started() {
            return false;
        }
        state.waiters.add();
        let all = state.eps.iter_mut().all(|(_, ep)| ep.may_block());
        let may = all && self.common.wait_set.as_ref().is_none_or(|set| set.may_block());
        if may {
            state.show();
        }
        may
    }

    fn end_wait(&self) {
        self.lock().end_wait();
    }

    fn hold_off(&self) {
        // The core takes a thread that asks it something for one that does not sleep.
        self.state.run_for_library(RxmState::poll_once);
    }

    fn is_serialized(&self) -> bool {
        self.state.is_serialized()
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

impl AvObserver for RxmEngine {
    fn name_inserted(&self, ep: u32, name: fi_addr_t, addr: &Addr) {
        self.with(ep, |ep| {
            ep.peers.name_inserted(ep.av.as_deref(), name, addr, &mut ep.matcher);
        });
    }

    fn name_identified(&self, ep: u32, name: fi_addr_t, id: fi_addr_t) {
        self.with(ep, |ep| ep.peers.name_identified(name, id, &mut ep.matcher));
    }

    fn name_removed(&self, ep: u32, name: fi_addr_t) {
        // The connection stays; the peer is an unknown peer again.
        self.with(ep, |ep| {
            ep.peers.name_removed(name, &mut ep.matcher);
        });
    }
}

impl RxmState {
    /// The endpoint with this number.
    #[inline]
    pub(crate) fn ep(&mut self, id: u32) -> &mut RxmEngineEp {
        &mut self.eps[id]
    }

    /// Has an endpoint take its receives from another provider's queue.
    pub(crate) fn import(&mut self, ep: u32, owner: SrxOwner, engine: Weak<dyn SrxStartHandler>) {
        let started = self.started.get_or_insert_with(|| SrxStartQueue::new(engine));
        // The provider offers no receives of another one with FI_HMEM.
        self.eps[ep].matcher.import(owner, started, None);
    }

    /// Continues the buffered messages started by other providers; returns true if there were any.
    #[inline(always)]
    fn take_started(&mut self) -> bool {
        let started = self.started.as_ref().and_then(|started| started.take());
        started.map(|started| self.take_up(started)).is_some()
    }

    /// Performs one progress iteration.
    #[inline(never)]
    pub(crate) fn poll_once(&mut self) {
        self.poll_once_inner();
    }

    /// Runs the application's progress iteration number `iterations`.
    #[inline(always)]
    fn count_iterations(&mut self, iterations: u64) {
        self.stats.count_iterations(iterations);
        self.poll_once_inner();
    }

    /// [`RxmState::poll_once`], inlined into its caller.
    #[inline(always)]
    fn poll_once_inner(&mut self) {
        self.take_started();
        if !self.waiters.is_empty() {
            self.waiters.remove();
        }
        let (mut due, mut has_core) = (0, false);
        for (_, ep) in self.eps.iter_mut() {
            ep.poll_once(has_core);
            due |= ep.handed.len() | usize::from(ep.looked);
            // Endpoints without a queue of the core's have made no progress.
            has_core |= ep.core.is_some();
        }
        if due != 0 {
            self.after_iteration();
        }
    }

    /// Runs the rare work of a progress iteration: passes connection requests to other contexts,
    /// and publishes statistics.
    #[cold]
    #[inline(never)]
    fn after_iteration(&mut self) {
        if self.eps.iter().any(|(_, ep)| !ep.handed.is_empty()) {
            self.hand_over();
        }
        self.eps.iter_mut().for_each(|(_, ep)| ep.looked = false);
        if self.publication.is_due(fine_now()) {
            let begin = PublicationTime::now();
            self.show();
            self.publication.restart(begin);
        }
    }

    /// Ends the wait of the calling thread.
    fn end_wait(&mut self) {
        self.waiters.remove();
        let asleep = self.waiters.count() as u64;
        // The endpoints' cores are of one domain.
        if let Some(core) = self.eps.iter().find_map(|(_, ep)| ep.core.as_ref()) {
            core.cq.end_wait();
        }
        self.eps.iter_mut().for_each(|(_, ep)| ep.published.set_asleep(asleep));
    }

    /// Publishes the statistics of the endpoints.
    #[cold]
    fn show(&mut self) {
        let (iterations, asleep) = (self.stats.iterations(), self.waiters.count() as u64);
        for (_, ep) in self.eps.iter_mut() {
            ep.show(&self.stats, [iterations, self.thread_iterations], asleep);
        }
    }
}

impl PostsReceives for RxmState {
    type Buffered = RxmUnexpected;

    #[inline]
    fn matcher(&mut self, ep: u32) -> &mut RxMatcher<RxmUnexpected> {
        &mut self.eps[ep].matcher
    }

    #[inline(always)]
    fn matcher_if_open(&mut self, ep: u32) -> Option<&mut RxMatcher<RxmUnexpected>> {
        self.eps.get_mut(ep).map(|ep| &mut ep.matcher)
    }

    fn post_tag(&mut self, ep: u32, op: &RecvOp) {
        let ep = &mut self.eps[ep];
        ep.fetches.post_tag(&mut ep.matcher, &mut ep.conns, op);
    }

    fn look(&mut self) {
        self.poll_once();
    }

    fn match_message(&mut self, matched: MatchedMessage) {
        if let Some(ep) = self.eps.get_mut(matched.owner) {
            ep.fetches.match_message(&mut ep.matcher, &mut ep.conns, &mut ep.peers, matched);
            ep.look_now |= ep.fetches.copies.is_any();
        }
    }

    fn after_match(&mut self) {
        // Endpoints that had to stop for want of room go on.
        self.eps.iter_mut().for_each(|(_, ep)| ep.go_on());
    }
}

impl RxmState {
    /// Passes connection requests received by the listening context to their contexts.
    #[cold]
    pub(super) fn hand_over(&mut self) {
        let all: Vec<_> =
            self.eps.iter_mut().map(|(id, ep)| (id, std::mem::take(&mut ep.handed))).collect();
        for (listener, handed) in all {
            for ContextConnReq { receiver, info, addr, call } in handed {
                // The contexts are closed together.
                let Some(ep) = self.eps.get_mut(receiver) else { continue };
                if !ep.accept_context(&info, addr, &call) {
                    // Contexts do not listen themselves.
                    self.eps[listener].refuse(&info, RejectReason::Unspecified);
                }
            }
        }
    }
}

impl RxmEngine {
    /// The scalable endpoint can be called from now on, and its contexts name
    /// themselves by its address.
    pub(crate) fn enable_contexts(&self, ids: &[u32], bindings: &Bindings) -> Result {
        let mut state = self.lock();
        // Contexts may be opened later, but connections stay, so that all count what peers read and
        // wrote from the beginning.
        let counts = [self.common.info.as_ref().caps() & FI_RMA_EVENT != 0; 2];
        for id in ids {
            let local = state.eps[ids[0]].identity.local.clone();
            let ep = &mut state.eps[*id];
            ep.av.clone_from(&bindings.av);
            ep.identity.local = local;
            let fds = ep.open(*id == ids[0], counts)?;
            self.watch(fds)?;
        }
        Ok(())
    }
}
