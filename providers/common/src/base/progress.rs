//! Progress: the driver of a provider's engine.
//!
//! The rule is the same for every object. Reading a completion queue, a counter or an event queue
//! (also with a buffer for no entry) progresses the whole domain, and so does a transfer call
//! without queue space. A domain with automatic progress and an object for blocking calls also has
//! a [`Thread`].
use super::cpu_load::CpuLoad;
use crate::error::Result;
use crate::heap;
use crate::packet_sink::PacketSink;
use crate::sys::{Epoll, EventFd, Interest, sleep_on};
use crate::worker::{Worker, rest, unharmed};
use core::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Source of events, advanced only by calls.
pub trait Progress: Send + Sync {
    /// Advances everything possible without blocking.
    fn progress(&self);

    /// Advances everything like [`progress`](Self::progress). Completely arrived messages may be
    /// passed to `sink`, if no earlier message of their source waits.
    fn progress_into(&self, _sink: &PacketSink<'_>) {
        self.progress();
    }

    /// Makes progress on a library thread. Returns true if the thread may sleep afterwards (see
    /// `may_block`). Returns false also if progress was left to the application, currently making
    /// it.
    fn run_for_library(&self) -> bool {
        self.progress();
        self.may_block()
    }

    /// Returns a descriptor that is readable while [`progress`](Self::progress) has something to
    /// do.
    fn wait_fd(&self) -> RawFd;

    /// The calling thread, one of the library, leaves progress to the application for a while: it
    /// does not sleep on `wait_fd` after the last [`may_block`](Self::may_block) any more.
    fn hold_off(&self) {}

    /// The calling thread returns to the application: it does not sleep on `wait_fd` after the last
    /// [`may_block`](Self::may_block) any more.
    fn end_wait(&self) {}

    /// Returns further descriptors that are readable when there is something to do. The kernel
    /// limits the nesting depth of epoll instances, so they are not combined.
    fn wake_fds(&self) -> [Option<RawFd>; 2] {
        [None, None]
    }

    /// Makes `wait_fd` tell the truth before a caller blocks on it; false when
    /// there is something to do right now.
    fn may_block(&self) -> bool {
        true
    }

    /// Returns true if all calls must be serialized, as promised by the application for the domain
    /// (FI_THREAD_DOMAIN). An event queue belongs to no domain and may be read concurrently, so it
    /// does not drive such a source.
    fn is_serialized(&self) -> bool {
        false
    }

    /// Returns the text of a completion error's `prov_errno`, if it is not an errno.
    fn error_text(&self, _prov_errno: c_int) -> Option<&'static CStr> {
        None
    }

    /// Returns a count changed by every `progress` call of the application, so the progress thread
    /// can back off.
    fn activity(&self) -> u64;
}

/// Returns all descriptors that are readable when there is something to do.
pub(crate) fn all_fds(source: &(impl Progress + ?Sized)) -> impl Iterator<Item = RawFd> {
    std::iter::once(source.wait_fd()).chain(source.wake_fds().into_iter().flatten())
}

/// Counter of the calls of [`Progress::progress`] for [`Progress::activity`]. Only the progress
/// thread reads it, to detect changes and not for an exact count, so an ordinary load and store
/// suffice.
#[derive(Debug, Default)]
pub struct Activity(AtomicU64);

impl Activity {
    /// Increments the counter and returns the previous count.
    #[inline(always)]
    pub fn another(&self) -> u64 {
        let count = self.count() + 1;
        self.0.store(count, Ordering::Relaxed);
        count
    }

    /// Returns the count.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Thread progressing an engine while the application does not.
///
/// It sleeps in epoll instead of polling. While the application itself drives progress, the thread
/// backs off and only checks periodically. Otherwise both would wake for every message and contend
/// for the engine's lock.
#[derive(Debug)]
pub struct Thread {
    shared: Arc<ProgressThreadState>,
    worker: Worker,
}

#[derive(Debug)]
struct ProgressThreadState {
    stop: AtomicBool,
    wake: EventFd,
    iterations: AtomicU64,
}

/// Longest sleep of the thread.
const LOOK_IN: Duration = Duration::from_secs(1);

/// Hold-off of the thread after progress by the application.
const STAND_BACK: Duration = Duration::from_millis(1);

/// Minimum hold-off, for an application repeatedly stopping at once.
const STAND_BACK_LEAST: Duration = Duration::from_micros(50);

/// Maximum hold-off while the application keeps making progress, because each check costs the
/// application a little.
const STAND_BACK_MOST: Duration = Duration::from_millis(16);

/// Maximum hold-off in a system with more ready threads than processors. The application makes
/// progress when it gets a processor, and each wake-up of the thread would take one from it.
const STAND_BACK_LOADED: Duration = Duration::from_millis(256);

/// Hold-off of a thread making progress for the application.
///
/// The hold-off grows for an application making continuous progress. An application making a call
/// or two and then reading only its memory, as a target of remote writes may, advances only with
/// the thread. If it stopped within the first hold-off, the next first hold-off is halved, and
/// otherwise doubled.
#[derive(Debug)]
pub struct ProgressHoldoff {
    /// The first wait after the application was seen to do nothing.
    first: Duration,
    next: Duration,
    /// Number of consecutive checks with progress by the application.
    iterations: u32,
    load: CpuLoad,
}

impl Default for ProgressHoldoff {
    fn default() -> Self {
        Self { first: STAND_BACK, next: STAND_BACK, iterations: 0, load: CpuLoad::default() }
    }
}

impl ProgressHoldoff {
    /// Records progress by the application since the last check. Returns the time to the next check, 50
    /// us to 256 ms: the more threads are ready to run per processor, the longer.
    pub fn record_activity(&mut self) -> Duration {
        // Applications often stopping at once are not delayed.
        let time = self.active();
        if time < STAND_BACK { time } else { Self::extended(time, self.load.get()) }
    }

    /// Returns the time to the next check with this number of ready threads per processor.
    fn extended(time: Duration, load: u32) -> Duration {
        time.saturating_mul(load).min(STAND_BACK_LOADED)
    }

    /// Records progress by the application, and returns the time to the next check with enough
    /// processors.
    fn active(&mut self) -> Duration {
        if self.iterations == 1 {
            self.first = (self.first * 2).min(STAND_BACK);
        }
        self.iterations = self.iterations.saturating_add(1);
        let now = self.next;
        self.next = (now * 2).min(STAND_BACK_MOST);
        now
    }

    /// Records a check without progress by the application.
    pub fn record_idle(&mut self) {
        if self.iterations == 1 {
            self.first = (self.first / 2).max(STAND_BACK_LEAST);
        }
        (self.next, self.iterations) = (self.first, 0);
    }
}

/// Hold-off after a panic in a progress call of the thread, and the maximum after consecutive
/// panics. Each panic is reported on stderr.
const SHAKEN: Duration = Duration::from_millis(1);
const SHAKEN_MOST: Duration = LOOK_IN;

impl Thread {
    /// Starts the thread. It ends when this is dropped, or when `engine` is gone.
    pub fn start(name: &str, engine: Weak<dyn Progress>) -> Result<Self> {
        let shared = Arc::new(ProgressThreadState {
            stop: AtomicBool::new(false),
            wake: EventFd::new()?,
            iterations: AtomicU64::new(0),
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

fn run(shared: &ProgressThreadState, epoll: &Epoll, engine: &Weak<dyn Progress>) {
    let mut seen = 0;
    let (mut hold_off, mut shaken) = (ProgressHoldoff::default(), SHAKEN);
    while !shared.stop.load(Ordering::Acquire) {
        let Some(engine) = engine.upgrade() else { return };
        let now = engine.activity();
        let busy = now != seen;
        seen = now;
        if busy {
            engine.hold_off();
            drop(engine);
            // While the thread stands back only its wake-up descriptor counts: the engine's is
            // readable most of the time.
            let nanos = hold_off.record_activity().as_nanos() as u64;
            rest(|| sleep_on(shared.wake.as_raw_fd(), nanos));
            continue;
        }
        hold_off.record_idle();
        if !heap::may_progress() {
            drop(engine);
            rest(|| std::thread::sleep(STAND_BACK));
            continue;
        }
        // A panic was reported, and everything else goes on: what failed may concern one
        // connection only.
        let Some(may_block) = unharmed(|| engine.run_for_library()) else {
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
        shared.iterations.fetch_add(1, Ordering::Relaxed);
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
    fn holdoff_grows_while_active_and_shrinks_after_short_activity() {
        let mut hold_off = ProgressHoldoff::default();
        for n in [1, 2, 4, 8, 16, 16, 16] {
            assert_eq!(hold_off.active(), STAND_BACK * n);
        }
        hold_off.record_idle();
        // A long activity does not predict the next stop.
        assert_eq!(hold_off.active(), STAND_BACK);
        for n in [2, 4, 8, 16] {
            hold_off.record_idle();
            assert_eq!(hold_off.active(), STAND_BACK / n);
        }
        for _ in 0..10 {
            hold_off.record_idle();
            hold_off.active();
        }
        hold_off.record_idle();
        assert_eq!(hold_off.active(), STAND_BACK_LEAST);
        // it goes on again
        assert_eq!(hold_off.active(), STAND_BACK_LEAST * 2);
        hold_off.record_idle();
        assert_eq!(hold_off.active(), STAND_BACK_LEAST * 2);
        // only empty polls
        for _ in 0..3 {
            hold_off.record_idle();
        }
        assert_eq!(hold_off.active(), STAND_BACK_LEAST);
    }

    #[test]
    fn holdoff_grows_with_the_load_of_the_processors() {
        assert_eq!(ProgressHoldoff::extended(STAND_BACK_MOST, 1), STAND_BACK_MOST);
        assert_eq!(ProgressHoldoff::extended(STAND_BACK, 3), STAND_BACK * 3);
        assert_eq!(ProgressHoldoff::extended(STAND_BACK_MOST, 100), STAND_BACK_LOADED);
        let mut hold_off = ProgressHoldoff::default();
        (hold_off.next, hold_off.first) = (STAND_BACK_LEAST, STAND_BACK_LEAST);
        assert_eq!(hold_off.record_activity(), STAND_BACK_LEAST);
        assert!(hold_off.record_activity() < STAND_BACK);
    }

    /// Engine with a given number of panicking progress calls.
    struct Shaky {
        wake: EventFd,
        panics: AtomicU64,
        requests: Mutex<Sender<u64>>,
    }

    impl Progress for Shaky {
        fn progress(&self) {}
        fn run_for_library(&self) -> bool {
            let left = self.panics.load(Ordering::Relaxed);
            self.requests
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
    fn panic_in_a_progress_call_does_not_end_the_thread() {
        let (requests, seen) = channel();
        let (wake, requests) = (EventFd::new().unwrap(), Mutex::new(requests));
        let engine = Arc::new(Shaky { wake, panics: AtomicU64::new(3), requests });
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
