//! Progress engine of a domain: its endpoints and their progress.
//!
//! One lock guards the whole state; the core provider is called under it. Each endpoint numbers the
//! packets to a peer and retransmits lost ones ([`conn`]). Operations become packets in [`tx`], and
//! packets become operations in [`rx`]. Packets go through a [`port`], the core provider's
//! endpoint. In tests it is a network losing, duplicating and reordering them.
mod ack_predictor;
mod arriving;
mod budget;
mod conn;
mod conns;
mod ep;
mod half_open;
mod handshake;
mod helper;
mod identity;
mod index_requests;
mod indices;
mod limits;
mod local_address;
mod op;
mod port;
mod round_trip;
mod rx;
#[cfg(test)]
mod sim;
mod transmit;
mod tx;

use crate::linger::{self, Lingering};
pub(crate) use ep::RxdEngineEp;
pub(crate) use identity::{OwnCore, RxdIdentity};
pub(crate) use limits::RxdLimits;

use arriving::RxdUnexpected;
use conns::AcksDue;
use helper::{Helped, Helper};
use limits::clock;
use ofi_provider::api::{Bindings, RecvOp};
use ofi_provider::backoff::{BackoffAction, PollBackoff};
use ofi_provider::closing::{CloseBudget, Undelivered};
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::lock::{Guard, Level, Lock};
use ofi_provider::progress::{Activity, Progress};
use ofi_provider::receives::PostsReceives;
use ofi_provider::rx_matcher::{MatchedMessage, RxMatcher};
use ofi_provider::slab::Slab;
use ofi_provider::sys::{Epoll, Interest, Timer};
use port::PortSource;
pub(crate) use port::{CorePorts, SpareReceives};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The engine of a domain.
pub(crate) struct RxdEngine {
    state: Lock<RxdState>,
    limits: RxdLimits,
    /// Source of packet ports for endpoints.
    ports: Box<dyn PortSource>,
    epoll: Epoll,
    /// Wakes a waiter for retransmissions.
    timer: Timer,
    activity: Activity,
    helper: Helper<Self>,
    /// Limit on the total time spent closing endpoints.
    closing: CloseBudget,
    /// Process that created the engine: a forked child's copy shares sockets with its parent.
    pid: u32,
}

impl std::fmt::Debug for RxdEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RxdEngine")
    }
}

/// State guarded by the engine's lock.
#[derive(Default)]
pub(crate) struct RxdState {
    eps: Slab<Box<RxdEngineEp>>,
    /// Polling pattern of the application while no packets arrive
    /// ([`backoff`](ofi_provider::backoff)).
    looks: PollBackoff,
    /// Number of empty polls since the last received packets.
    idle: u32,
}

impl RxdEngine {
    /// A new engine. Its lock costs nothing if the application serializes its
    /// calls.
    pub(crate) fn new(
        limits: RxdLimits,
        ports: Box<dyn PortSource>,
        level: Level,
    ) -> Result<Arc<Self>> {
        let (epoll, timer) = (Epoll::new()?, Timer::new()?);
        epoll.add(timer.as_raw_fd(), 0, Interest::READ)?;
        if let Some(fd) = ports.fd() {
            epoll.add(fd, 0, Interest::READ)?;
        }
        let state = Lock::with_level(RxdState::default(), level);
        let activity = Activity::default();
        let pid = std::process::id();
        let this = Arc::new_cyclic(|this| {
            let helper = Helper::new(this.clone(), state.admits_visitors());
            let closing = CloseBudget::of_datagrams();
            Self { state, limits, ports, epoll, timer, activity, helper, closing, pid }
        });
        linger::register(&this);
        Ok(this)
    }

    /// The longest packet.
    pub(crate) fn packet(&self) -> usize {
        self.limits.packet
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, RxdState> {
        self.state.lock()
    }

    /// Adds an endpoint; returns its number.
    pub(crate) fn add_ep(&self, identity: RxdIdentity) -> u32 {
        let (limits, helper) = (self.limits.clone(), self.helper.bed().clone());
        self.lock().eps.insert_with(|id| Box::new(RxdEngineEp::new(id, limits, identity, helper)))
    }

    /// Calls `each` with an endpoint, if it is still open.
    pub(crate) fn with(&self, ep: u32, each: impl FnOnce(&mut RxdEngineEp)) {
        if let Some(ep) = self.lock().eps.get_mut(ep) {
            each(ep);
        }
    }

    /// Starts a transfer.
    #[inline]
    pub(crate) fn transfer(
        &self,
        ep: u32,
        start: impl FnOnce(&mut RxdEngineEp) -> Result,
    ) -> Result {
        let result = start(self.lock().ep(ep));
        self.helper.wake();
        result
    }

    /// Starts an endpoint.
    pub(crate) fn enable(&self, ep: u32, bindings: &Bindings) -> Result {
        let mut state = self.lock();
        let ep = state.ep(ep);
        let port = match ep.local.take_bound() {
            Some(port) => port,
            None => self.ports.open(ep.local.identity())?,
        };
        let fd = ep.enable(bindings, port)?;
        match fd {
            Some(fd) => self.epoll.add(fd, 0, Interest::READ),
            None => Ok(()),
        }
    }

    /// Sets the address of an endpoint before it is enabled.
    pub(crate) fn set_name(&self, ep: u32, name: &[u8]) -> Result {
        let mut state = self.lock();
        let ep = state.ep(ep);
        if ep.port.is_some() {
            return Err(Error::OPBADSTATE);
        }
        ep.local.set_local(name, |identity| self.ports.open(identity))
    }

    /// Returns the operations not acknowledged by peers: those the application takes for delivered,
    /// and responses to peers' requests.
    pub(crate) fn undelivered(&self, ep: u32) -> Undelivered {
        self.lock().eps.get_mut(ep).map_or_else(Undelivered::default, |ep| ep.undelivered())
    }

    /// Makes progress until nothing is [undelivered](Self::undelivered), for a bounded time.
    pub(crate) fn drain(&self, ep: u32) {
        let start = Instant::now();
        self.closing.drive(self, || {
            let mut state = self.lock();
            let Some(ep) = state.eps.get_mut(ep) else { return Undelivered::default() };
            let is_over = ep.hold_off().is_none_or(|hold_off| start.elapsed() >= hold_off);
            if is_over { Undelivered::default() } else { ep.undelivered() }
        });
    }

    /// Closes an endpoint.
    pub(crate) fn close_ep(&self, ep: u32) {
        let mut state = self.lock();
        let Some(mut ep) = state.eps.remove(ep) else { return };
        ep.poll_once();
        ep.send_acks(AcksDue::All);
        if let Some(fd) = ep.fd() {
            self.epoll.remove(fd);
        }
        ep.close();
    }
}

impl RxdEngine {
    /// Sends delayed data, and sets the timer waking a thread; returns false if there is work right
    /// now.
    fn prepare_to_sleep(&self, state: &mut RxdState) -> bool {
        let mut next: Option<Instant> = None;
        let mut may = true;
        for (_, ep) in state.eps.iter_mut() {
            ep.send_acks(AcksDue::All);
            may &= ep.may_block();
            next = [next, ep.conns.deadline()].into_iter().flatten().min();
        }
        may &= self.ports.may_block();
        let left = next.map(|at| at.saturating_duration_since(clock()));
        if left == Some(Duration::ZERO) {
            return false;
        }
        // No time turns the timer off.
        self.timer.set(left.unwrap_or(Duration::ZERO));
        may
    }
}

impl Helped for RxdEngine {
    // Polls on behalf of the helper: makes progress for an application making none, if data is in
    // flight. Returns true if it is, as far as visible to the helper.
    fn help(&self, idle: bool) -> bool {
        self.state.run_for_library(|state| state.help(idle)).unwrap_or(true)
    }
}

impl Lingering for RxdEngine {
    // A forked child does not linger.
    fn hold_off(&self) -> Option<Duration> {
        let hold_off = |state: &mut RxdState| {
            state.poll_once();
            let mut hold_off = None;
            for (_, ep) in state.eps.iter_mut() {
                ep.send_acks(AcksDue::All);
                hold_off = hold_off.max(ep.hold_off());
            }
            hold_off
        };
        if self.pid == std::process::id() {
            self.state.run_for_library(hold_off).flatten()
        } else {
            None
        }
    }
}

impl Progress for RxdEngine {
    #[inline]
    fn progress(&self) {
        self.activity.another();
        if !heap::may_progress() {
            return;
        }
        let mut state = self.lock();
        if state.poll_once() {
            state.idle = 0;
            return;
        }
        state.idle = state.idle.saturating_add(1);
        let first = state.idle == 1;
        let Some(offer) = state.looks.on_empty_poll(first) else { return };
        drop(state);
        if offer != BackoffAction::Processor && !self.may_block() {
            return;
        }
        offer.make(self.epoll.as_raw_fd());
        if let Some(mut state) = self.state.lock_if_idle() {
            state.looks.record_yield();
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn run_for_library(&self) -> bool {
        let run_for_library = self.state.run_for_library(|state| {
            state.poll_once();
            self.prepare_to_sleep(state)
        });
        run_for_library.unwrap_or(false)
    }

    fn may_block(&self) -> bool {
        self.prepare_to_sleep(&mut self.lock())
    }

    fn is_serialized(&self) -> bool {
        self.state.is_serialized()
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

impl RxdState {
    /// The endpoint with this number.
    #[inline]
    pub(crate) fn ep(&mut self, id: u32) -> &mut RxdEngineEp {
        &mut self.eps[id]
    }

    /// Performs one poll of the helper ([`RxdEngine::help`]).
    fn help(&mut self, idle: bool) -> bool {
        let busy = self.eps.iter().any(|(_, ep)| ep.conns.has_work());
        if busy && idle {
            self.poll_once();
        }
        if busy {
            // The application does not answer what comes while it makes no calls.
            let due = if idle { AcksDue::All } else { AcksDue::Waited };
            self.eps.iter_mut().for_each(|(_, ep)| ep.send_acks(due));
        }
        busy
    }

    /// Runs one progress iteration. Returns true if packets arrived.
    #[inline]
    fn poll_once(&mut self) -> bool {
        self.eps.iter_mut().fold(false, |came, (_, ep)| ep.poll_once() || came)
    }
}

impl PostsReceives for RxdState {
    type Buffered = RxdUnexpected;

    #[inline]
    fn matcher(&mut self, ep: u32) -> &mut RxMatcher<RxdUnexpected> {
        &mut self.eps[ep].matcher
    }

    fn matcher_if_open(&mut self, ep: u32) -> Option<&mut RxMatcher<RxdUnexpected>> {
        self.eps.get_mut(ep).map(|ep| &mut ep.matcher)
    }

    fn post_tag(&mut self, _ep: u32, _op: &RecvOp) {}

    fn look(&mut self) {
        self.poll_once();
    }

    fn match_message(&mut self, matched: MatchedMessage) {
        if let Some(ep) = self.eps.get_mut(matched.owner) {
            ep.match_message(matched);
        }
    }
}
