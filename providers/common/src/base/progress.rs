//! Making things move: what drives a provider's engine, and when.
//!
//! The rule is one for every object: reading a completion queue, a counter or an event queue (also
//! with room for no entry), and a transfer call that finds no room, progress everything of the
//! domain. A domain with automatic progress and an object that calls may block on also has a
//! [`Thread`].
use crate::error::Result;
use crate::heap;
use crate::sys::{Epoll, EventFd, Interest};
use crate::worker::{Worker, rest, unharmed};
use core::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Something that moves only when it is driven.
pub trait Progress: Send + Sync {
    /// Makes progress on all that can go on without blocking.
    fn progress(&self);

    /// Makes progress on a thread of the library. Returns whether the thread may sleep
    /// afterwards (see `may_block`); false also if progress was left to the application, which
    /// is making it just now.
    fn visit(&self) -> bool {
        self.progress();
        self.may_block()
    }

    /// A descriptor that is readable whenever [`progress`](Self::progress) has
    /// something to do.
    fn wait_fd(&self) -> RawFd;

    /// The calling thread, one of the library, leaves progress to the application for a while: it
    /// does not sleep on `wait_fd` after the last [`may_block`](Self::may_block) any more.
    fn stands_back(&self) {}

    /// Other descriptors that are readable when there is something to do. The kernel bounds how
    /// deep epoll instances nest, so they are not made one.
    fn wake_fds(&self) -> [Option<RawFd>; 2] {
        [None, None]
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

/// All descriptors that are readable when there is something to do.
pub(crate) fn all_fds(source: &(impl Progress + ?Sized)) -> impl Iterator<Item = RawFd> {
    std::iter::once(source.wait_fd()).chain(source.wake_fds().into_iter().flatten())
}

/// Counts the calls of [`Progress::progress`] for [`Progress::activity`]. Only the progress thread reads
/// it, which needs to see it move and no exact count, so a plain load and store do.
#[derive(Debug, Default)]
pub struct Activity(AtomicU64);

impl Activity {
    /// Counts one more; returns how many there were.
    #[inline(always)]
    pub fn another(&self) -> u64 {
        let count = self.count() + 1;
        self.0.store(count, Ordering::Relaxed);
        count
    }

    /// How many there were.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread that progresses an engine while the application does not.
///
/// It sleeps in epoll, not in a loop. While the application drives progress
/// itself the thread stands back and only looks in now and then: otherwise both
/// would wake for every message and fight for the engine's lock.
#[derive(Debug)]
pub struct Thread {
    shared: Arc<Attendance>,
    worker: Worker,
}

#[derive(Debug)]
struct Attendance {
    stop: AtomicBool,
    wake: EventFd,
    turns: AtomicU64,
}

/// Longest sleep of the thread.
const LOOK_IN: Duration = Duration::from_secs(1);

/// How long the thread stands back after it saw the application make progress.
const STAND_BACK: Duration = Duration::from_millis(1);

/// How long it stands back at least, where the application stops at once time after time.
const STAND_BACK_LEAST: Duration = Duration::from_micros(50);

/// How long the thread stands back at most while the application goes on making progress,
/// because each look costs the application a little.
const STAND_BACK_MOST: Duration = Duration::from_millis(16);

/// How long the thread stands back.
///
/// An application that goes on is left alone for longer and longer. One that makes a call or two and
/// then looks at its memory alone, as targets of remote writes may, moves only when the thread comes:
/// each time that it had stopped within the first wait, the next first wait is half as long, and
/// twice as long as soon as it had not.
#[derive(Debug)]
struct Patience {
    /// The first wait after the application was seen to do nothing.
    first: Duration,
    next: Duration,
    /// How often in a row it was seen to make progress.
    turns: u32,
}

impl Patience {
    fn new() -> Self {
        Self { first: STAND_BACK, next: STAND_BACK, turns: 0 }
    }

    /// The application made progress since the last look: how long to wait for the next.
    fn active(&mut self) -> Duration {
        if self.turns == 1 {
            self.first = (self.first * 2).min(STAND_BACK);
        }
        self.turns = self.turns.saturating_add(1);
        let now = self.next;
        self.next = (now * 2).min(STAND_BACK_MOST);
        now
    }

    /// It made none.
    fn idle(&mut self) {
        if self.turns == 1 {
            self.first = (self.first / 2).max(STAND_BACK_LEAST);
        }
        (self.next, self.turns) = (self.first, 0);
    }
}

/// How long the thread stands back after a visit that panicked, and how long at most if
/// one after the other does: each says so on stderr.
const SHAKEN: Duration = Duration::from_millis(1);
const SHAKEN_MOST: Duration = LOOK_IN;

impl Thread {
    /// Starts the thread. It ends when this is dropped, or when `engine` is gone.
    pub fn start(name: &str, engine: Weak<dyn Progress>) -> Result<Self> {
        let shared = Arc::new(Attendance {
            stop: AtomicBool::new(false),
            wake: EventFd::new()?,
            turns: AtomicU64::new(0),
        });
        let epoll = Epoll::new()?;
        epoll.add(shared.wake.as_raw_fd(), 0, Interest::READ)?;
        if let Some(engine) = engine.upgrade() {
            for fd in all_fds(&*engine) {
                epoll.add(fd, 1, Interest::READ)?;
            }
        }
        let of_thread = shared.clone();
        let worker = Worker::start(name, move || run(&of_thread, &epoll, &engine))?;
        Ok(Self { shared, worker })
    }
}

fn run(shared: &Attendance, epoll: &Epoll, engine: &Weak<dyn Progress>) {
    let mut seen = 0;
    let (mut patience, mut shaken) = (Patience::new(), SHAKEN);
    while !shared.stop.load(Ordering::Acquire) {
        let Some(engine) = engine.upgrade() else { return };
        let now = engine.activity();
        let busy = now != seen;
        seen = now;
        if busy {
            engine.stands_back();
            drop(engine);
            // While the thread stands back only its wake-up descriptor counts: the engine's is
            // readable most of the time.
            rest(|| std::thread::sleep(patience.active()));
            continue;
        }
        patience.idle();
        if !heap::may_progress() {
            drop(engine);
            rest(|| std::thread::sleep(STAND_BACK));
            continue;
        }
        // A panic was reported, and everything else goes on: what failed may concern one
        // connection only.
        let Some(may_block) = unharmed(|| engine.visit()) else {
            drop(engine);
            rest(|| std::thread::sleep(shaken));
            shaken = (shaken * 2).min(SHAKEN_MOST);
            continue;
        };
        shaken = SHAKEN;
        // Progress that the thread itself made is not the application's activity.
        seen = engine.activity();
        drop(engine);
        if may_block {
            // A time limit, because the application may take over meanwhile
            // and be gone again without an event for us.
            let _ = rest(|| epoll.wait(Some(LOOK_IN), |_| ()));
        } else {
            rest(std::thread::yield_now);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    #[test]
    fn one_that_goes_on_is_left_alone_and_one_that_stops_at_once_is_not() {
        let mut patience = Patience::new();
        for n in [1, 2, 4, 8, 16, 16, 16] {
            assert_eq!(patience.active(), STAND_BACK * n);
        }
        patience.idle();
        // what had gone on for long says nothing of how soon it stops
        assert_eq!(patience.active(), STAND_BACK);
        for n in [2, 4, 8, 16] {
            patience.idle();
            assert_eq!(patience.active(), STAND_BACK / n);
        }
        for _ in 0..10 {
            patience.idle();
            patience.active();
        }
        patience.idle();
        assert_eq!(patience.active(), STAND_BACK_LEAST);
        // it goes on again
        assert_eq!(patience.active(), STAND_BACK_LEAST * 2);
        patience.idle();
        assert_eq!(patience.active(), STAND_BACK_LEAST * 2);
        // nothing but looks in vain
        for _ in 0..3 {
            patience.idle();
        }
        assert_eq!(patience.active(), STAND_BACK_LEAST);
    }

    /// An engine of which visits panic, as many as are said.
    struct Shaky {
        wake: EventFd,
        panics: AtomicU64,
        visited: Mutex<Sender<u64>>,
    }

    impl Progress for Shaky {
        fn progress(&self) {}
        fn visit(&self) -> bool {
            let left = self.panics.load(Ordering::Relaxed);
            self.visited
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .send(left)
                .unwrap();
            if left > 0 {
                self.panics.store(left - 1, Ordering::Relaxed);
                panic!("on purpose");
            }
            true
        }
        fn wait_fd(&self) -> RawFd {
            self.wake.as_raw_fd()
        }
        fn activity(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_visit_that_panics_does_not_end_the_thread() {
        let (visited, seen) = channel();
        let (wake, visited) = (EventFd::new().unwrap(), Mutex::new(visited));
        let engine = Arc::new(Shaky { wake, panics: AtomicU64::new(3), visited });
        let weak: Weak<dyn Progress> = Arc::downgrade(&(engine.clone() as Arc<dyn Progress>));
        let thread = Thread::start("test", weak).unwrap();
        let next = || seen.recv_timeout(Duration::from_secs(60)).expect("it has ended");
        assert_eq!([next(), next(), next(), next()], [3, 2, 1, 0]);
        // It goes on for what comes after that.
        engine.wake.signal();
        assert_eq!(next(), 0);
        drop(thread);
    }
}
