//! Progress engine of a domain: all its endpoints and connections, and their progress.
//!
//! One lock guards the whole state (fi_domain(3): under FI_THREAD_DOMAIN with manual progress it
//! costs nothing). It has layers, each built on the one before:
//!
//! - [`io`]: the transport, its connections and listeners, and their registration with the poller;
//! - [`tx_path`]: sending. Data is sent from the application's thread when the link accepts it. A
//!   failure is returned, because it ends the connection;
//! - [`rx_path`]: receiving, and the end of connections. Arriving messages are matched with posted
//!   receives ([`post`]) in an endpoint's [`RxMatcher`](ofi_provider::rx_matcher::RxMatcher);
//! - [`state`]: progress iterations ([`progress`]), transfers of the application ([`send`],
//!   [`atomic`]) and connection management ([`cm`], [`connector`], [`acceptor`], [`handshake`];
//!   [`contexts`] adds the connections between contexts of scalable endpoints).
//!
//! An empty progress iteration is one system call. A single active connection is read directly. The
//! poller reports all others and is polled less often while it has no events. It is polled in every
//! iteration while several connections are active, or while other processes want the processor and
//! the last iteration made no progress. Repeated empty polls yield the processor ([`backoff`](ofi_provider::backoff)).
//! Idle connections cost nothing.
//!
//! If one call can read or write several links ([`Transport::is_ring`]), every iteration polls the poller
//! and uses those calls ([`batch_io`]). Connections over shared memory have separate rules
//! ([`shm_poll`]).
mod acceptor;
mod active_conns;
mod adaptor;
mod arrival;
mod atomic;
mod backlog;
mod batch;
mod batch_flusher;
mod batch_io;
mod batcher;
mod blocked_conns;
mod buffered;
mod cm;
mod conn;
mod conn_end;
mod conn_limit;
mod conn_request;
mod conn_table;
mod conn_usage;
mod connector;
mod contexts;
mod device_export;
mod device_fetch;
mod device_path;
mod device_recv;
mod device_send;
mod early_data;
mod early_sender;
mod endpoints;
mod ep;
mod ep_table;
mod handshake;
mod idle_closer;
mod incoming;
mod io;
mod listeners;
mod peer_devices;
mod poll_state;
mod post;
mod progress;
mod region_access;
mod responses;
mod rx_begin;
mod rx_fast;
mod rx_finish;
mod rx_path;
mod send;
mod shm_poll;
mod silence;
mod staging;
mod state;
mod stats;
mod stream_request;
mod timer;
mod tokens;
mod trace;
mod traced;
mod traffic;
mod transfer;
mod tx_path;
mod unknown_conns;
mod zerocopy;
mod zerocopy_completion;

pub use acceptor::{ACCEPTS, is_shortage};
pub(crate) use batch::MAX_MESSAGES as MAX_BATCHED;
pub use batch_flusher::BatchFlusher;
pub use conn_limit::{is_out_of_descriptors, max_conns, used_descriptors};
pub use ep::{StreamEpKind, StreamIdentity, TargetOf};
pub use listeners::{ACCEPT_DELAY, BACKLOG};
pub use state::StreamState;
pub use stream_request::StreamRequest;
pub(crate) use transfer::COPY_MAX;

use self::staging::Staging;
use crate::transport::{ByteLink, FlushTarget, ShmTransport};
use ofi_provider::backoff::BackoffAction;
use ofi_provider::closing::CloseBudget;
use ofi_provider::error::Result;
use ofi_provider::heap;
use ofi_provider::lock::{Guard, Level, Lock};
use ofi_provider::mr::{MrTable, RegionUser};
use ofi_provider::packet_sink::PacketSink;
use ofi_provider::peer_srx::SrxStartWaker;
use ofi_provider::progress::{Activity, Progress};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// A domain's engine.
pub struct StreamEngine<N: ShmTransport> {
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

impl<N: ShmTransport> Live for StreamEngine<N> {
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

impl<N: ShmTransport> std::fmt::Debug for StreamEngine<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamEngine")
    }
}

impl<N: ShmTransport> StreamEngine<N> {
    /// Creates an engine on `net`, for a domain with these registered regions. `level` selects the
    /// locking mode (the lock costs nothing if the application serializes its calls); without
    /// `threads` the engine starts no thread.
    ///
    /// Not inlined: the copies of the state on the stack must not add to those of opening `net`, as
    /// threads may have no more than 16 KiB.
    #[inline(never)]
    pub fn new(net: N, level: Level, threads: bool, regions: Arc<MrTable>) -> Result<Arc<Self>> {
        let wait_fd = net.wait_fd();
        let of_peers = regions.clone();
        let staging = Staging::new(N::Link::settings().prefetch)?;
        let state = StreamState::new(net, regions, staging);
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
            let flush_target: Weak<Self> = Arc::downgrade(&engine);
            engine.lock().start_flusher(flush_target)?;
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
    /// [`PollState::on_empty_poll`](poll_state::PollState::on_empty_poll) advises.
    #[inline(always)]
    fn back_off(&self, mut state: Guard<'_, StreamState<N>>) {
        let io = &mut state.rx.tx.io;
        let in_memory = io.active.sockets().is_empty() && matches!(io.active.shm().len(), 1 | 2);
        if in_memory && io.poll.skips_backoff() {
            return;
        }
        let offer = io.poll.on_empty_poll();
        if state.publisher.is_due(state.rx.tx.io.poll.last_empty_poll()) {
            state.show();
        }
        let Some(offer) = offer else { return };
        if offer != BackoffAction::Processor && !state.prepare_to_block() {
            state.rx.tx.io.wake_up();
            return;
        }
        drop(state);
        offer.make(self.wait_fd());
        if let Some(mut state) = self.state.lock_if_idle() {
            state.rx.tx.io.poll.record_yield();
            state.rx.tx.io.wake_up();
        }
    }

    /// Takes the engine's lock, waiting for it if need be.
    #[inline]
    pub fn lock(&self) -> Guard<'_, StreamState<N>> {
        self.state.lock()
    }
}

impl<N: ShmTransport> FlushTarget for StreamEngine<N> {
    fn flush_deferred(&self) -> bool {
        self.state.run_for_library(StreamState::flush_app_idle).is_some()
    }
}

impl<N: ShmTransport> RegionUser for StreamEngine<N> {
    fn closing(&self, key: u64) {
        if !self.is_copy() {
            self.lock().rx.save_answers(key);
        }
    }
}

impl<N: ShmTransport> StreamEngine<N> {
    /// Runs a progress iteration of the application. Messages go to `sink` if it takes them.
    #[inline(always)]
    fn progress_to(&self, sink: Option<&PacketSink<'_>>) {
        self.activity.another();
        if !heap::may_progress() {
            return;
        }
        // The thread that holds the lock is making progress, or about to let go of it.
        if let Some(mut state) = self.state.lock_if_idle() {
            state.poll_once_inner(sink);
            if state.rx.tx.io.poll.idle() != 0 {
                self.back_off(state);
            }
        }
    }
}

impl<N: ShmTransport> Progress for StreamEngine<N> {
    #[inline]
    fn progress(&self) {
        self.progress_to(None);
    }

    fn progress_into(&self, sink: &PacketSink<'_>) {
        self.progress_to(Some(sink));
    }

    fn run_for_library(&self) -> bool {
        let run_for_library = self.state.run_for_library(|state| {
            // Not without the lock: what was signalled is taken up below.
            self.starts.undo();
            state.publisher.count_library_iteration();
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
        self.state.run_for_library(|state| state.rx.tx.io.wake_up());
    }

    fn end_wait(&self) {
        let mut state = self.lock();
        let tx = &mut state.rx.tx;
        tx.io.wake_up();
        tx.eps.show_asleep(tx.io.poll.waiters() as u64);
    }

    fn is_serialized(&self) -> bool {
        self.state.is_serialized()
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

#[cfg(any(test, feature = "sim"))]
pub mod sim;
