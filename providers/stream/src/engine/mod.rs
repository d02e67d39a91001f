//! Progress engine of a domain: all its endpoints and connections, and their progress.
//!
//! One lock guards the whole state (fi_domain(3): under FI_THREAD_DOMAIN with manual progress it
//! costs nothing). Data is sent from the application's thread when the link accepts it ([`tx`]).
//! Arriving messages are matched ([`rx`]) with posted receives ([`post`]) in an endpoint's
//! [`RxMatcher`](ofi_provider::rx_matcher::RxMatcher). [`cm`] establishes and ends connections, and [`contexts`]
//! adds the connections between contexts of scalable endpoints. Atomic operations are in
//! [`atomic`].
//!
//! An empty progress iteration is one system call. A single active connection is read directly. The
//! poller reports all others and is polled less often while it has no events. It is polled in every
//! iteration while several connections are active, or while other processes want the processor and
//! the last iteration made no progress. Repeated empty polls yield the processor ([`backoff`]).
//! Idle connections cost nothing.
//!
//! If one call can read or write several links ([`Transport::is_ring`]), every iteration polls the poller
//! and uses those calls ([`batched`]). Connections over shared memory have separate rules
//! ([`shm_poll`]).
mod adaptor;
mod arrival;
mod atomic;
mod batch;
mod batch_flusher;
mod batch_io;
mod buffered;
mod cm;
mod conn;
mod contexts;
mod endpoints;
mod ep;
mod incoming;
mod post;
mod rx;
mod shm_poll;
mod state;
mod stats;
mod trace;
mod transfer;
mod tx;
mod waiters;
mod zerocopy;
mod zerocopy_completion;

pub use batch_flusher::BatchFlusher;
pub use cm::{ACCEPT_DELAY, ACCEPTS, BACKLOG, CONNECT_TIMEOUT, StreamRequest, is_shortage};
pub use ep::{StreamEpKind, StreamIdentity, TargetOf};
pub use state::StreamState;

use crate::accept_queue::AcceptQueue;
use crate::transport::{ByteLink, FlushTarget, FlushTimer, LinkOp, LinkPoller, Transport};
use batch::Burst;
use conn::StreamConn;
use ofi_provider::backoff::{self, BackoffAction, PollBackoff};
use ofi_provider::buf::{CopyMode, GatherList, zeroed};
use ofi_provider::closing::CloseBudget;
use ofi_provider::conn_arbiter::ConnectLimiter;
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::lock::{Guard, Level, Lock};
use ofi_provider::mr::{MrTable, RegionUser};
use ofi_provider::peer_srx::SrxStartWaker;
use ofi_provider::progress::{Activity, Progress};
use ofi_provider::shm_channel::InlineRecv;
use ofi_provider::slab::{NONE, Slab};
use ofi_provider::sys::Interest;
use rx::FastReadResult;
use state::{TOKEN_CALLER, TOKEN_CONN, TOKEN_LISTENER};
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use transfer::CopiedPacket;
use waiters::Waiters;

/// Most connections on the hot list (`StreamState::active`). Only a single hot connection is read
/// without asking the poller; from two on the poller is asked, so a longer list would gain nothing.
const MAX_ACTIVE: usize = 2;

/// Consecutive empty reads after which a connection becomes idle and leaves the active list.
const COLD_AFTER: u32 = 4096;

/// Maximum progress iterations between two polls of the poller.
const MAX_POLL_GAP: u32 = 64;

/// Empty progress iterations since the last activity in which the active connection is read
/// directly, even if the application does not poll in quick succession (`PollBackoff::are_at_once`).
const FEW: u32 = 2;

/// Empty polls of the memory of one or two connections that count as one: such a poll costs hardly
/// more than reading the clock.
const MEMORY_LOOKS: u32 = 4;

/// A connection leaves the hot list after others moved so many times while it did not.
const LEFT_BEHIND: u32 = 16;

/// Polling interval of unread connections with an end possibly not reported by the poller.
const UNREAD_LOOK: Duration = Duration::from_secs(1);

/// Time limit of operations awaiting the response of a disconnected peer, if the next message
/// before the response waits for a receive.
const ANSWER_GRACE: Duration = Duration::from_secs(3);

/// A domain's engine.
pub struct StreamEngine<N: Transport> {
    state: Lock<StreamState<N>>,
    /// Descriptor that is readable after any event awaited by the engine.
    wait_fd: RawFd,
    activity: Activity,
    /// Limit on the total time spent closing endpoints.
    closing: CloseBudget,
    /// Wakes waiters when another provider starts a message.
    starts: SrxStartWaker,
    /// Process that created the engine. A forked child has a copy of the engine, but shares its
    /// links and its poller with the parent ([`StreamEngine::is_copy`]).
    pid: u32,
}

/// Engines of all open domains.
static LIVE: Mutex<Vec<Weak<dyn Live>>> = Mutex::new(Vec::new());

/// Engine over any transport.
trait Live: Send + Sync {
    /// Sends batched data, unless this is a forked child's copy.
    fn flush(&self);
}

/// Number of attempts of an exiting process to lock an engine used by another thread; the process
/// pauses after each. A thread holds the lock only briefly, unless it is the exiting thread itself.
const LAST_REQUESTS: usize = 100;
const LAST_PAUSE: Duration = Duration::from_micros(100);

impl<N: Transport> Live for StreamEngine<N> {
    fn flush(&self) {
        // Without threads of the library's own nothing is held back.
        if self.is_copy() || !self.state.admits_visitors() {
            return;
        }
        for _ in 0..LAST_REQUESTS {
            if self.flush_deferred() {
                return;
            }
            std::thread::sleep(LAST_PAUSE);
        }
    }
}

fn live() -> MutexGuard<'static, Vec<Weak<dyn Live>>> {
    LIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Sends batched data in all domains of this process, as far as links accept it now.
pub(crate) fn flush_all() {
    // In a forked child the lock of the list may be held for ever, by a thread that only the
    // parent has.
    let Ok(live) = LIVE.try_lock() else { return };
    live.iter().filter_map(Weak::upgrade).for_each(|engine| engine.flush());
}

impl<N: Transport> std::fmt::Debug for StreamEngine<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamEngine")
    }
}

impl<N: Transport> StreamEngine<N> {
    /// Creates an engine on `net`, for a domain with these registered regions. `level` selects the
    /// locking mode (the lock costs nothing if the application serializes its calls); without
    /// `threads` the engine starts no thread.
    pub fn new(net: N, level: Level, threads: bool, regions: Arc<MrTable>) -> Result<Arc<Self>> {
        let wait_fd = net.wait_fd();
        let of_peers = regions.clone();
        let state = StreamState {
            net,
            conns: Slab::default(),
            eps: Slab::default(),
            listeners: HashMap::new(),
            bound: HashMap::new(),
            active: Vec::with_capacity(MAX_ACTIVE),
            local: Vec::new(),
            waiters: Waiters::default(),
            poll_streak: 0,
            staging: zeroed(N::Link::settings().prefetch)?,
            packet: Box::new([0; size_of::<CopiedPacket>()]),
            cq_blocked: Vec::new(),
            rx_blocked: Vec::new(),
            unread: Vec::new(),
            looked_for: Vec::new(),
            held: Vec::new(),
            batch_flusher: None,
            iterations: 1,
            app_idle: 0,
            batches: 0,
            idle: 0,
            looks: PollBackoff::default(),
            since_poll: 0,
            poll_gap: 1,
            events: Vec::with_capacity(64),
            accept_paused: Vec::new(),
            wakes: None,
            bufs: Vec::new(),
            left_in: 0,
            left: Burst::default(),
            callers: AcceptQueue::new(TOKEN_CALLER, usize::MAX),
            awaited: VecDeque::new(),
            calls: ConnectLimiter::default(),
            line: VecDeque::new(),
            unknown_conns: VecDeque::new(),
            leaving: VecDeque::new(),
            hearing: NONE,
            backlog: 0,
            started: None,
            regions,
            stats: N::stats(),
            show_at: 0,
            visits: 0,
            serves: false,
        };
        let state = Lock::with_level(state, level.clone());
        let pid = std::process::id();
        let engine = Arc::new(Self {
            state,
            wait_fd,
            activity: Activity::default(),
            closing: CloseBudget::default(),
            starts: SrxStartWaker::default(),
            pid,
        });
        let region_user: Weak<Self> = Arc::downgrade(&engine);
        of_peers.set_region_user(region_user);
        let mut live = live();
        live.retain(|engine| engine.strong_count() > 0);
        let flushes: Weak<Self> = Arc::downgrade(&engine);
        live.push(flushes);
        drop(live);
        if threads && !matches!(level, Level::Serialized) && N::Link::settings().batch > 0 {
            let mut state = engine.lock();
            let flush_target: Weak<Self> = Arc::downgrade(&engine);
            state.batch_flusher = Some(state.net.start_flusher(flush_target)?);
        }
        Ok(engine)
    }

    /// Returns true if this engine is a forked child's copy of its parent's engine. Closing a copy
    /// must not touch state shared by both processes: the connections, and the poller's
    /// registrations.
    pub fn is_copy(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Yields the processor to other threads or sleeps after an empty progress iteration, as
    /// [`backoff`] advises.
    #[inline(always)]
    fn back_off(&self, mut state: Guard<'_, StreamState<N>>) {
        let first = state.idle == 1;
        let in_memory = state.active.is_empty() && matches!(state.local.len(), 1 | 2);
        if in_memory && !first && !state.idle.is_multiple_of(MEMORY_LOOKS) {
            return;
        }
        let offer = state.looks.on_empty_poll(first);
        if state.looks.last() >= state.show_at {
            state.show();
        }
        let Some(offer) = offer else { return };
        if offer != BackoffAction::Processor && !state.prepare_to_block() {
            return;
        }
        drop(state);
        offer.make(self.wait_fd());
        if let Some(mut state) = self.state.lock_if_idle() {
            state.looks.record_yield();
        }
    }

    /// Takes the engine's lock, waiting for it if need be.
    #[inline]
    pub fn lock(&self) -> Guard<'_, StreamState<N>> {
        self.state.lock()
    }
}

impl<N: Transport> FlushTarget for StreamEngine<N> {
    fn flush_deferred(&self) -> bool {
        self.state.run_for_library(StreamState::flush_app_idle).is_some()
    }
}

impl<N: Transport> RegionUser for StreamEngine<N> {
    fn closing(&self, key: u64) {
        if !self.is_copy() {
            self.lock().save_answers(key);
        }
    }
}

impl<N: Transport> Progress for StreamEngine<N> {
    #[inline]
    fn progress(&self) {
        self.activity.another();
        if !heap::may_progress() {
            return;
        }
        // The thread that holds the lock is making progress, or about to let go of it.
        if let Some(mut state) = self.state.lock_if_idle() {
            state.poll_once_inner();
            if state.idle != 0 {
                self.back_off(state);
            }
        }
    }

    fn run_for_library(&self) -> bool {
        let run_for_library = self.state.run_for_library(|state| {
            // Not without the lock: what was signalled is taken up below.
            self.starts.undo();
            state.visits += 1;
            state.poll_once();
            state.prepare_to_sleep()
        });
        run_for_library.unwrap_or(false)
    }

    fn wait_fd(&self) -> RawFd {
        self.wait_fd
    }

    fn wake_fds(&self) -> [Option<RawFd>; 2] {
        [self.starts.fd(), None]
    }

    fn may_block(&self) -> bool {
        self.starts.undo();
        self.lock().prepare_to_sleep()
    }

    fn hold_off(&self) {
        // The lock holder makes progress, and this thread retries.
        self.state.run_for_library(StreamState::wake_up);
    }

    fn is_serialized(&self) -> bool {
        self.state.is_serialized()
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

impl<N: Transport> StreamState<N> {
    /// Runs one progress iteration: resumes connections blocked on queue space, sends batched
    /// messages, and reads the connections reported by the poller or the active one.
    #[inline(never)]
    pub(crate) fn poll_once(&mut self) {
        self.poll_once_inner();
    }

    /// [`StreamState::poll_once`], inlined into its caller.
    #[inline(always)]
    fn poll_once_inner(&mut self) {
        self.iterations += 1;
        self.idle = self.idle.wrapping_add(1);
        self.stats.count_iterations(self.iterations);
        // One test for the three, of which there is nearly always none.
        if self.cq_blocked.len() | self.rx_blocked.len() | self.held.len() != 0 {
            self.resume_blocked();
        }
        // Nearly always there is one connection to look at, with messages on it or nothing.
        let first = match self.local[..] {
            [only] if self.may_look_quickly() => {
                let came = self.read_fast_shm(only);
                if self.is_quick(came) {
                    return;
                }
                Some(came)
            }
            _ => None,
        };
        self.look_further(first);
    }

    /// Runs the rest of a progress iteration. `first`: the result of polling the only connection
    /// over shared memory, if it was polled.
    #[inline(never)]
    fn look_further(&mut self, first: Option<InlineRecv>) {
        if self.iterations.is_multiple_of(stats::PUBLISHED_EACH) {
            self.show();
            if !self.unread.is_empty() {
                self.look_at_unread();
            }
        }
        if !self.local.is_empty() && self.poll_shm_conns(first) {
            return;
        }
        self.since_poll += 1;
        // A poll of the only active connection costs as much as a poll of all through the poller,
        // and saves one call if data is there. But it delays other connections. This matters if
        // other threads use the processor in between: recent activity of the connection was no
        // reason to yield.
        let directly = || self.idle <= FEW || self.looks.are_at_once();
        if let [only] = self.active[..]
            && self.since_poll < self.poll_gap
            && (self.idle == 1 || (directly() && !backoff::is_shared()))
        {
            self.poll_conn(only);
        } else {
            self.since_poll = 0;
            self.poll_io();
        }
    }

    /// Resumes work blocked on buffer space, on memory, or deferred to the next iteration.
    #[inline(never)]
    fn resume_blocked(&mut self) {
        if !self.cq_blocked.is_empty() {
            self.resume_cq_blocked();
        }
        if !self.rx_blocked.is_empty() {
            self.buffer_blocked_rx();
        }
        if !self.held.is_empty() {
            self.flush_held();
        }
    }

    /// Reads the most recently active connection.
    #[inline(always)]
    fn poll_conn(&mut self, id: u32) {
        let moved = match self.read_fast(id) {
            FastReadResult::Done => {
                self.idle = 0;
                return;
            }
            FastReadResult::Moved => true,
            FastReadResult::Nothing => false,
            // Reading the link again and again would hinder the system in filling it, and take the
            // large message in small pieces; asking the poller does not.
            FastReadResult::Not if self.conns.get(id).is_some_and(StreamConn::is_in_large) => {
                self.since_poll = 0;
                return self.poll_io();
            }
            FastReadResult::Not => self.service_any(id),
        };
        // `service` may have taken it off the list.
        if self.active.first() != Some(&id) {
            return;
        }
        if moved {
            self.idle = 0;
            return;
        }
        let conn = &mut self.conns[id];
        conn.misses += 1;
        if conn.misses > COLD_AFTER {
            self.mark_idle(id);
        }
    }

    fn poll_io(&mut self) {
        self.take_started();
        self.wake_up();
        self.watch_looked_at();
        let mut events = std::mem::take(&mut self.events);
        self.net.poll(&mut events);
        let (mut is_new, mut moved) = (false, false);
        let mut ready = Vec::new();
        for event in events.drain(..) {
            let id = event.token as u32;
            match event.token & !u64::from(u32::MAX) {
                TOKEN_CONN => {
                    // The connection may be gone since the event was reported.
                    if self.conns.get(id).is_some() {
                        is_new |= !self.active.contains(&id) && !self.local.contains(&id);
                        moved = true;
                        self.look_for_end(id);
                        if self.net.is_ring() {
                            ready.push(id);
                        } else if self.service(id) {
                            self.mark_active(id);
                        }
                    }
                }
                TOKEN_LISTENER => {
                    is_new = true;
                    self.accept_all(id);
                }
                TOKEN_CALLER => {
                    is_new = true;
                    self.receive_pending(id);
                }
                _ => {
                    is_new = true;
                    self.retry_refused();
                }
            }
        }
        if !ready.is_empty() {
            self.serve_batched(&ready);
        }
        self.events = events;
        if !self.line.is_empty() {
            self.call_next();
        }
        if is_new || moved {
            self.idle = 0;
        }
        self.poll_gap = if is_new { 1 } else { (self.poll_gap * 2).min(MAX_POLL_GAP) };
    }

    /// Handles the end of a peer on an unread connection, blocked by a message waiting for a
    /// receive. Operations in flight to the peer end; data already received stays. Operations
    /// awaiting the peer's response get [`ANSWER_GRACE`]: the response may follow the blocking
    /// message.
    fn look_for_end(&mut self, id: u32) {
        let Some(conn) = self.conns.get(id).filter(|conn| conn.blocked) else { return };
        let (unsent, awaits) = (conn.is_exposing() || conn.has_unsent(), conn.awaits_answers());
        if !(unsent || awaits) || !conn.link.has_ended() {
            return;
        }
        if unsent {
            self.end_sending(id, Error::CONNRESET);
        }
        let now = self.net.now();
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.awaits_answers()) else {
            return;
        };
        let [came, _] = conn.received.get();
        match conn.ended_at {
            Some((at, before)) if before == came => {
                if now >= at + ANSWER_GRACE {
                    self.end_awaiting(id, Error::CONNRESET);
                }
            }
            // The application takes messages: the answer may be next.
            _ => conn.ended_at = Some((now, came)),
        }
    }

    /// Polls the connections with an end possibly not reported by the poller, and again later while
    /// there are some.
    pub(super) fn look_for_hidden_ends(&mut self) {
        for (id, serial) in std::mem::take(&mut self.looked_for) {
            if self.conns.get(id).is_some_and(|conn| conn.serial == serial) {
                self.look_for_end(id);
                // Notes it again if it still is one.
                self.watch(id);
                self.look_for_later(id);
            }
        }
    }

    /// Schedules a timer poll of an unread connection with operations awaiting the peer's
    /// responses.
    fn look_for_later(&mut self, id: u32) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.blocked && conn.awaits_answers() {
            self.note_hidden(id, conn.serial);
        }
    }

    fn note_hidden(&mut self, id: u32, serial: u64) {
        if !self.looked_for.contains(&(id, serial)) {
            self.looked_for.push((id, serial));
            self.wake_in(UNREAD_LOOK);
        }
    }

    /// Records a connection as unread from now on. Operations awaiting responses may be posted
    /// there later by fast paths, without a check; [`StreamState::look_at_unread`] finds them.
    pub(super) fn note_unread(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        if !std::mem::replace(&mut conn.is_listed_unread, true) {
            self.unread.push((id, conn.serial));
        }
    }

    /// Checks the connections recorded as unread.
    #[cold]
    fn look_at_unread(&mut self) {
        for (id, serial) in std::mem::take(&mut self.unread) {
            let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.serial == serial) else {
                continue;
            };
            conn.is_listed_unread = conn.blocked;
            if conn.blocked {
                self.unread.push((id, serial));
                self.look_for_later(id);
            }
        }
    }

    /// Serves one connection: continues connecting, sends queued data, reads. Returns true if there
    /// was progress.
    #[inline(always)]
    fn service(&mut self, id: u32) -> bool {
        match self.read_fast(id) {
            FastReadResult::Done | FastReadResult::Moved => true,
            FastReadResult::Nothing => false,
            FastReadResult::Not => self.service_any(id),
        }
    }

    #[inline(never)]
    fn service_any(&mut self, id: u32) -> bool {
        let was_connected = self.conns.get(id).is_some_and(StreamConn::is_connected);
        let mut moved = self.advance(id);
        if was_connected && self.conns.get(id).is_some_and(|conn| !conn.blocked) {
            moved |= self.read(id);
        }
        if moved && let Some(conn) = self.conns.get_mut(id) {
            conn.misses = 0;
        }
        moved
    }

    /// Serves a connection except for reading: handshake, zero-copy notifications, queued data.
    /// Returns true if there was progress.
    fn advance(&mut self, id: u32) -> bool {
        let Some(conn) = self.conns.get(id) else { return false };
        if !conn.is_connected() {
            return self.handshake(id);
        }
        let mut moved = false;
        if conn.is_exposing() {
            moved |= self.reclaim(id);
        }
        if self.conns.get(id).is_some_and(StreamConn::has_unsent) {
            moved |= self.flush(id);
        }
        moved
    }

    /// Adds an active connection to the active list: it is read in every iteration while no other
    /// is active. If one call reads several links no connection is on the list: one call polls all,
    /// another reads all of them.
    fn mark_active(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.misses = 0;
        if conn.link.rx_over_shm() {
            return self.mark_shm_active(id);
        }
        if self.active.len() > 1 || self.active.first().is_some_and(|only| *only != id) {
            self.leave_behind(id);
        }
        if self.active.contains(&id) {
            return;
        }
        if self.active.len() < MAX_ACTIVE && !self.net.is_ring() {
            self.active.push(id);
        } else {
            self.watch(id);
        }
    }

    /// Removes other connections from the active list after activity on `moved`, if they have been
    /// idle too long ([`LEFT_BEHIND`]).
    fn leave_behind(&mut self, moved: u32) {
        let mut index = 0;
        while let Some(&id) = self.active.get(index) {
            let conn = &mut self.conns[id];
            conn.misses += u32::from(id != moved);
            if id != moved && conn.misses > LEFT_BEHIND {
                self.mark_idle(id);
            } else {
                index += 1;
            }
        }
    }

    /// Registers the directly polled connections with the poller for the events awaited by them.
    fn watch_looked_at(&mut self) {
        for index in (0..self.active.len()).rev() {
            let id = self.active[index];
            if self.conns.get(id).is_some_and(|conn| conn.link.rx_over_shm()) {
                self.active.remove(index);
                self.mark_shm_active(id);
            } else {
                self.watch(id);
            }
        }
        for index in 0..self.local.len() {
            self.watch(self.local[index]);
        }
    }

    fn mark_idle(&mut self, id: u32) {
        self.active.retain(|active| *active != id);
        self.watch(id);
    }

    /// Registers the connection with the poller for the events awaited by it.
    fn watch(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let wanted = Interest {
            read: !conn.blocked && !conn.is_connecting(),
            write: conn.is_connecting() || (conn.is_connected() && conn.has_unsent()),
        };
        // A link without awaited events is removed. Otherwise the poller would keep reporting its
        // end, without effect before the link is read again. But zero-copy notifications are
        // reported for any watched link.
        let watched = wanted != Interest::NONE || conn.is_exposing();
        let unread = (conn.blocked && watched && conn.link.hides_end()).then_some(conn.serial);
        let before = (std::mem::replace(&mut conn.watched, watched), conn.interest);
        conn.interest = wanted;
        let (link, token) = (conn.link.id(), TOKEN_CONN | u64::from(id));
        let poller = self.net.poller();
        let _ = match (before, watched) {
            ((true, interest), true) if interest == wanted => Ok(()),
            ((true, _), true) => poller.modify(link, token, wanted),
            ((true, _), false) => {
                poller.remove(link);
                Ok(())
            }
            ((false, _), true) => poller.add(link, token, wanted),
            ((false, _), false) => Ok(()),
        };
        if let Some(serial) = unread {
            self.note_hidden(id, serial);
        }
    }

    /// Runs [`StreamState::prepare_to_block`] for a longer sleep: the statistics page shows a
    /// sleeping thread.
    fn prepare_to_sleep(&mut self) -> bool {
        let may = self.prepare_to_block();
        if may {
            self.show();
        }
        may
    }

    /// Prepares a thread to sleep on the poller's descriptor. Returns true if every event awaited
    /// by the engine will make the descriptor readable.
    fn prepare_to_block(&mut self) -> bool {
        // A started message may complete here, and then has to be polled.
        if self.take_started() {
            return false;
        }
        if !self.rx_blocked.is_empty() {
            self.buffer_blocked_rx();
        }
        if !self.held.is_empty() {
            self.flush_held();
        }
        if !self.unread.is_empty() {
            self.look_at_unread();
        }
        self.watch_looked_at();
        if !self.rest() {
            return false;
        }
        // A connection that waits for room in a queue goes on when the application reads the
        // queue, which is a call into the library.
        !self.cq_blocked.iter().any(|id| self.may_be_fed(*id))
    }

    /// Returns true if a connection blocked on queue space may continue.
    fn may_be_fed(&self, id: u32) -> bool {
        self.conns.get(id).is_some_and(|conn| self.eps[conn.ep].matcher.completions.has_space())
            && !self.has_many_pending(id)
    }

    /// Resumes connections with space in their completion queue again.
    fn resume_cq_blocked(&mut self) {
        for id in std::mem::take(&mut self.cq_blocked) {
            if self.may_be_fed(id) {
                self.unblock(id);
            } else if self.conns.get(id).is_some() {
                self.starve(id);
            }
        }
    }

    /// Blocks the connection until there is space in a completion queue.
    fn starve(&mut self, id: u32) {
        if let Some(cq) =
            self.conns.get(id).and_then(|conn| self.eps[conn.ep].matcher.completions.cq())
        {
            cq.wait_for_space();
        }
        self.cq_blocked.push(id);
    }

    /// Returns true if no message may be held back: neither the application nor the flush timer
    /// would send it soon.
    #[inline(always)]
    fn app_is_not_polling(&self) -> bool {
        self.app_idle == self.iterations || self.batch_flusher.is_none()
    }

    /// Sends batched messages for the flush timer, and records (`app_idle`) if the application was
    /// idle since the timer was armed.
    fn flush_app_idle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let done = self.iterations + self.batches;
        if self.batch_flusher.as_ref().is_some_and(|batch_flusher| batch_flusher.is_needed(done)) {
            self.app_idle = self.iterations;
        }
        // Resulting completions are passed to another provider only within calls to it. That
        // provider need not support threads of this library, and locks nothing if its application
        // promised serialized calls.
        let held = std::mem::take(&mut self.held);
        let (others, own) = held.into_iter().partition(|id| self.is_reported_elsewhere(*id));
        self.held = own;
        self.flush_held();
        let others: Vec<u32> = others;
        others.iter().for_each(|id| self.send_bytes(*id));
        self.held.extend(others);
    }

    /// Returns true if the connection's transfers are reported to another provider's queue.
    fn is_reported_elsewhere(&self, id: u32) -> bool {
        self.conns.get(id).is_some_and(|conn| self.eps[conn.ep].completions.has_owner())
    }

    /// Sends batched bytes of a connection, as far as the link accepts them now, and leaves the
    /// completions to the next progress iteration.
    fn send_bytes(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.is_connected()) else { return };
        let mut list = GatherList::default();
        list.push_bytes(conn.batch.unsent());
        let op = LinkOp::SendList(&mut list, CopyMode::Copied);
        // An error recurs when the rest is sent.
        let sent = self.net.transfer(&conn.link, op).unwrap_or(0);
        conn.batch.left_early(sent);
    }

    fn flush_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        if self.net.is_ring() {
            self.send_batches(&held);
        }
        for id in held {
            if self.conns.get(id).is_some_and(|conn| conn.is_connected()) {
                self.flush(id);
                self.mark_active(id);
                self.watch_unsent(id);
            }
        }
    }
}

#[cfg(any(test, feature = "sim"))]
pub mod sim;
