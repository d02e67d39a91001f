//! Making things move: what drives a provider's engine, and when.
//!
//! The rule is one for every object: reading a completion queue, a counter or
//! an event queue (also with room for no entry), and a transfer call that finds
//! no room, progress everything of the domain. A domain with automatic progress
//! and an object somebody may block on also has a [`Thread`].
use crate::error::Result;
use crate::sys::{Epoll, EventFd, Interest};
use crate::worker::Worker;
use core::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Something that moves only when it is driven.
pub trait Progress: Send + Sync {
    /// Moves what can be moved without blocking.
    fn progress(&self);

    /// The same on a thread of ours; whether it [may block](Self::may_block)
    /// after it, or what there is to do was left to the application, which is at
    /// it.
    fn visit(&self) -> bool {
        self.progress();
        self.may_block()
    }

    /// A descriptor that is readable whenever [`progress`](Self::progress) has
    /// something to do.
    fn wait_fd(&self) -> RawFd;

    /// Another such descriptor. The kernel bounds how deep descriptors may contain
    /// each other, so the two are not made one.
    fn wake_fd(&self) -> Option<RawFd> {
        None
    }

    /// Makes `wait_fd` tell the truth before a caller blocks on it; false when
    /// there is something to do right now.
    fn may_block(&self) -> bool {
        true
    }

    /// Whether all calls must come from one thread at a time, because the
    /// application promised that for the domain (FI_THREAD_DOMAIN). An event
    /// queue belongs to no domain and may be read beside it, so it leaves such
    /// a source alone.
    fn is_serialized(&self) -> bool {
        false
    }

    /// The text of a completion error's `prov_errno`, where that is no errno.
    fn error_text(&self, _prov_errno: c_int) -> Option<&'static CStr> {
        None
    }

    /// A count that changes with every call of `progress` that the application
    /// made, so that the progress thread can keep out of its way.
    fn activity(&self) -> u64;
}

/// A thread that progresses an engine while the application does not.
///
/// It sleeps in epoll, not in a loop. While the application drives progress
/// itself the thread stands back and only looks in now and then: otherwise both
/// would wake for every message and fight for the engine's lock.
#[derive(Debug)]
pub struct Thread {
    shared: Arc<Shared>,
    worker: Worker,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    wake: EventFd,
    turns: AtomicU64,
}

/// How long the thread sleeps at most.
const LOOK_IN: Duration = Duration::from_secs(1);

/// How long the thread stands back after it saw the application at work.
const STAND_BACK: Duration = Duration::from_millis(1);

/// The same while the application stays at work: each look costs it a little.
const STAND_BACK_MOST: Duration = Duration::from_millis(16);

impl Thread {
    /// Starts the thread. It ends when this is dropped, or when `engine` is gone.
    pub fn start(name: &str, engine: Weak<dyn Progress>) -> Result<Self> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            wake: EventFd::new()?,
            turns: AtomicU64::new(0),
        });
        let epoll = Epoll::new()?;
        epoll.add(shared.wake.as_raw_fd(), 0, Interest::READ)?;
        if let Some(engine) = engine.upgrade() {
            for fd in [Some(engine.wait_fd()), engine.wake_fd()].into_iter().flatten() {
                epoll.add(fd, 1, Interest::READ)?;
            }
        }
        let of_thread = shared.clone();
        let worker = Worker::start(name, move || run(&of_thread, &epoll, &engine))?;
        Ok(Self { shared, worker })
    }
}

fn run(shared: &Shared, epoll: &Epoll, engine: &Weak<dyn Progress>) {
    let mut seen = 0;
    let mut stand_back = STAND_BACK;
    while !shared.stop.load(Ordering::Acquire) {
        let Some(engine) = engine.upgrade() else { return };
        let now = engine.activity();
        let busy = now != seen;
        seen = now;
        if busy {
            drop(engine);
            // Only the wake-up descriptor counts here; the engine's would be
            // readable most of the time.
            std::thread::sleep(stand_back);
            stand_back = (stand_back * 2).min(STAND_BACK_MOST);
            continue;
        }
        stand_back = STAND_BACK;
        let may_block = engine.visit();
        // What progress did itself is not the application's activity.
        seen = engine.activity();
        drop(engine);
        if may_block {
            // A time limit, because the application may take over meanwhile
            // and be gone again without an event for us.
            let _ = epoll.wait(Some(LOOK_IN), |_| ());
        } else {
            std::thread::yield_now();
        }
        shared.turns.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let Self { shared, worker } = self;
        worker.end(|| {
            shared.stop.store(true, Ordering::Release);
            shared.wake.signal();
        });
    }
}
