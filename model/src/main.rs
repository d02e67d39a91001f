//! The locks, wait objects and rings of `providers/common` under every interleaving of threads,
//! explored by loom. It checks mutual exclusion, visibility of accesses, and the absence of lost
//! wakeups.
#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "what is looked at is part of something else"
)]

// Modules expected by those modules in their own crate.
use ofi::{abi, boundary, error};
#[path = "../../providers/common/src/base/lock.rs"]
mod lock;
mod primitives;
mod rings;
mod sys;
#[path = "../../providers/common/src/base/wait.rs"]
mod wait;
#[path = "../../providers/common/src/local/ring_layout.rs"]
mod ring_layout;

mod progress {
    pub trait Progress {
        fn wait_fd(&self) -> std::os::fd::RawFd;
    }
    pub(crate) fn all_fds(source: &dyn Progress) -> impl Iterator<Item = std::os::fd::RawFd> {
        std::iter::once(source.wait_fd())
    }
}
mod worker {
    pub struct Worker;
    impl Worker {
        pub fn start(_: &str, _: impl FnOnce() + Send + 'static) -> crate::error::Result<Self> {
            Err(crate::error::Error::NOSYS)
        }
    }
    pub fn rest<R>(sleep: impl FnOnce() -> R) -> R {
        sleep()
    }
}

use crate::error::Error;
use lock::{BiasedLock, Level, Lock};
use loom::thread::spawn;
use primitives::{AtomicUsize, Ordering};
use std::sync::Arc;
use wait::{Blocking, Lazy, WaitKind, WakeSources};

/// Number watched by loom: concurrent access by two threads ends the run.
struct Watched(loom::cell::UnsafeCell<u64>);

// SAFETY: loom finds out whether this holds.
unsafe impl Send for Watched {}

impl Watched {
    fn new() -> Self {
        Self(loom::cell::UnsafeCell::new(0))
    }
    fn add(&mut self) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
    fn get(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }
}

/// Threads counting under a lock lose no increment.
fn shared(threads: usize, times: usize) {
    let lock = Arc::new(Lock::new(Watched::new()));
    let count = move |lock: &Lock<Watched>| (0..times).for_each(|_| lock.lock().add());
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let lock = lock.clone();
            spawn(move || count(&lock))
        })
        .collect();
    count(&lock);
    others.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(lock.lock().get(), (threads * times) as u64);
}

/// A thread with optional work counts its own increments, concurrently with one always doing its
/// work.
fn idle() {
    let lock = Arc::new(Lock::new(Watched::new()));
    let other = {
        let lock = lock.clone();
        spawn(move || {
            let first = lock.run_for_library(Watched::add).is_some();
            u64::from(first) + u64::from(lock.lock_if_idle().map(|mut it| it.add()).is_some())
        })
    };
    lock.lock().add();
    lock.lock().add();
    let accesses = other.join().unwrap();
    assert_eq!(lock.lock().get(), 2 + accesses);
}

/// An application with serialized calls, and visitors at its biased lock.
fn gated(visitors: usize, calls: usize) {
    let biased_lock = BiasedLock::new().unwrap();
    let locks = Arc::new((
        Lock::with_level(Watched::new(), Level::Gated(biased_lock.clone())),
        Lock::with_level(Watched::new(), Level::Gated(biased_lock)),
    ));
    let visitors: Vec<_> = (0..visitors)
        .map(|_| {
            let locks = locks.clone();
            spawn(move || {
                let access = locks.0.run_for_library(|value| {
                    value.add();
                    locks.1.lock_within().add();
                });
                u64::from(access.is_some())
            })
        })
        .collect();
    for _ in 0..calls {
        let mut first = locks.0.lock();
        first.add();
        locks.1.lock_within().add();
    }
    let accesses: u64 = visitors.into_iter().map(|visitor| visitor.join().unwrap()).sum();
    assert_eq!(locks.0.lock().get(), calls as u64 + accesses);
    assert_eq!(locks.1.lock().get(), calls as u64 + accesses);
}

/// Queue like in `cq.rs`: entries under a lock, their number outside of it, and the wait object
/// notified after each.
struct Queue {
    entries: Lock<Watched>,
    count: AtomicUsize,
    wait: Lazy,
}

impl Queue {
    fn new() -> Arc<Self> {
        let wait = Lazy::new(WaitKind::Fd, false).unwrap();
        wait.get(|_| Ok(())).unwrap();
        Arc::new(Self { entries: Lock::new(Watched::new()), count: AtomicUsize::new(0), wait })
    }

    fn write(&self) {
        let mut entries = self.entries.lock();
        entries.add();
        self.count.fetch_add(1, Ordering::SeqCst);
        drop(entries);
        self.wait.entry_written();
    }

    fn is_ready(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    fn take(&self) -> Result<(), Error> {
        if !self.is_ready() {
            return Err(Error::AGAIN);
        }
        let entries = self.entries.lock();
        if self.count.load(Ordering::Relaxed) == 0 {
            return Err(Error::AGAIN);
        }
        assert_ne!(entries.get(), 0);
        self.count.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    /// fi_cq_sread without a limit.
    fn read(&self) -> Result<(), Error> {
        let wait = self.wait.get(|_| Ok(())).unwrap();
        let mut call = Blocking::new(-1);
        loop {
            let answer = call.look(wait, self, || self.take(), || self.is_ready());
            // SAFETY: these threads are never cancelled.
            if !unsafe { call.can_continue() } {
                return answer;
            }
        }
    }
}

/// Entries wake the readers.
impl WakeSources for Queue {
    fn may_block(&self) -> bool {
        true
    }

    fn end_wait(&self) {}
}

/// Every sleeping reader gets its entry.
fn readers(count: usize) {
    let queue = Queue::new();
    let readers: Vec<_> = (0..count)
        .map(|_| {
            let queue = queue.clone();
            spawn(move || assert_eq!(queue.read(), Ok(())))
        })
        .collect();
    (0..count).for_each(|_| queue.write());
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert!(!queue.is_ready());
}

/// A thread sleeping on the descriptor after fi_trywait is woken by an entry.
fn descriptor() {
    let queue = Queue::new();
    let writer = {
        let queue = queue.clone();
        spawn(move || {
            queue.write();
            queue.write();
        })
    };
    let wait = queue.wait.get(|_| Ok(())).unwrap().unwrap();
    for _ in 0..2 {
        while queue.take().is_err() {
            wait.arm().unwrap();
            if !queue.is_ready() {
                sys::poll(wait.fd());
            }
        }
    }
    writer.join().unwrap();
}

/// fi_cq_signal ends a sleep, once.
fn signal() {
    let queue = Queue::new();
    let reader = {
        let queue = queue.clone();
        spawn(move || assert_eq!(queue.read(), Err(Error::AGAIN)))
    };
    queue.wait.get(|_| Ok(())).unwrap().unwrap().signal();
    reader.join().unwrap();
}

/// The first waiter creates the object, concurrently with a writer.
fn first_waiter() {
    let queue = Arc::new(Queue {
        entries: Lock::new(Watched::new()),
        count: AtomicUsize::new(0),
        wait: Lazy::new(WaitKind::Fd, true).unwrap(),
    });
    let reader = {
        let queue = queue.clone();
        spawn(move || assert_eq!(queue.read(), Ok(())))
    };
    queue.write();
    reader.join().unwrap();
}

type Model = (&'static str, usize, fn());

/// Models, each with the maximum number of preemptions of a thread.
const MODELS: [Model; 26] = [
    ("two threads take a lock twice", 8, || shared(2, 2)),
    ("three threads take a lock", 4, || shared(3, 1)),
    ("a lock is left to others", 8, idle),
    ("a visitor at the gate", 6, || gated(1, 2)),
    ("two visitors at the gate", 4, || gated(2, 1)),
    ("a reader sleeps", 8, || readers(1)),
    ("two readers sleep", 3, || readers(2)),
    ("the descriptor is slept on", 5, descriptor),
    ("a signal ends a sleep", 8, signal),
    ("the first sleeper makes the object", 8, first_waiter),
    ("an entry and its reader", 8, || {
        let queue = Queue::new();
        let writer = {
            let queue = queue.clone();
            spawn(move || queue.write())
        };
        let took = queue.take().is_ok();
        writer.join().unwrap();
        assert_eq!(queue.is_ready(), !took);
    }),
    ("a ring, both look at it", 4, || rings::both_poll(&[3, 3, 2], 2)),
    ("a ring, whatever is there is read", 4, || rings::both_poll(&[2, 2, 2, 2], 4)),
    ("a ring of cells, both look at it", 4, || rings::both_poll(&[1; 6], 4)),
    ("a ring whose reader stops looking, with a barrier", 4, || rings::reader_sleeps(true, 2)),
    ("a ring whose reader stops looking, with a fence", 4, || rings::reader_sleeps(false, 2)),
    ("a ring whose reader promises a barrier later", 4, || rings::reader_promises(2)),
    ("a ring, both sleep", 3, || rings::both_sleep(6, 6, 1)),
    ("a ring, both sleep, many bytes at a time", 2, || rings::both_sleep(9, 9, 4)),
    ("a ring of cells, both sleep", 2, || rings::both_sleep(6, 1, 1)),
    ("exposed buffers", 3, || rings::exposes(3, false)),
    ("exposed buffers, both sleep", 2, || rings::exposes(3, true)),
    ("an exposed buffer copied at request", 3, || rings::copies(1, 2)),
    ("exposed buffers copied at request", 2, || rings::copies(2, 1)),
    ("exposed memory is revoked", 8, rings::withdraws),
    ("two writers ring one doorbell", 3, rings::two_ring),
];

/// Runs the models with names containing the argument, or all without one. With `--quick` the
/// number of preemptions is one less in each model, and at least two: it takes a quarter of the
/// time.
fn main() {
    let mut args = std::env::args().skip(1).peekable();
    let quick = args.next_if(|arg| arg == "--quick").is_some();
    let only = args.next().unwrap_or_default();
    for (name, most, run) in MODELS {
        let preemptions = if quick { (most - 1).max(2) } else { most };
        if !name.contains(&only) {
            continue;
        }
        let tried = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (count, started) = (tried.clone(), std::time::Instant::now());
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 20_000;
        builder.check(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            run();
        });
        let tried = tried.load(std::sync::atomic::Ordering::Relaxed);
        println!("ok   {name}: {tried} orders in {:.1} s", started.elapsed().as_secs_f32());
    }
}
