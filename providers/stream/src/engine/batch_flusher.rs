//! Flush timer: thread sending batched data if the application makes no call.
use crate::transport::{FlushTarget, FlushTimer};
use ofi_provider::error::Result;
use ofi_provider::provider::Provider;
use ofi_provider::sys::Timer;
use ofi_provider::worker::{Worker, rest, unharmed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Maximum delay of a batched message if the application makes no call.
const FLUSH_DELAY: Duration = Duration::from_micros(500);

/// Sends batched messages if the application, busy with its own work, makes no call. The thread is
/// started on first use and sleeps unless messages are held back.
#[derive(Debug)]
pub struct BatchFlusher {
    shared: Arc<FlusherShared>,
    engine: Weak<dyn FlushTarget>,
    /// The name of the thread.
    thread: String,
    worker: Option<Worker>,
    /// The application's count of progress and batches when the next visit was ordered.
    seen: u64,
}

#[derive(Debug)]
struct FlusherShared {
    timer: Timer,
    ordered: AtomicBool,
    stop: AtomicBool,
}

impl BatchFlusher {
    /// Creates a flush timer for an engine of this provider.
    pub fn new(engine: Weak<dyn FlushTarget>, provider: &Provider) -> Result<Self> {
        let thread = format!("ofi-{}-late", provider.name().to_string_lossy());
        let (ordered, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(FlusherShared { timer: Timer::new()?, ordered, stop });
        Ok(Self { shared, engine, thread, worker: None, seen: 0 })
    }
}

impl FlushTimer for BatchFlusher {
    /// Arms the flush timer with [`FLUSH_DELAY`]. Returns false if its thread cannot be started.
    fn order(&mut self, done: u64) -> bool {
        if self.worker.is_none() {
            let (shared, engine) = (self.shared.clone(), self.engine.clone());
            self.worker = Worker::start(&self.thread, move || shared.run(&engine)).ok();
        }
        if self.shared.order() {
            self.seen = done;
        }
        self.worker.is_some()
    }

    fn is_needed(&self, done: u64) -> bool {
        self.seen == done
    }
}

impl FlusherShared {
    /// Arms the flush timer if it is not armed; returns true if it was not.
    fn order(&self) -> bool {
        let first = !self.ordered.swap(true, Ordering::Relaxed);
        if first {
            self.timer.set(FLUSH_DELAY);
        }
        first
    }

    fn run(&self, engine: &Weak<dyn FlushTarget>) {
        loop {
            rest(|| self.timer.wait());
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.timer.set(Duration::ZERO);
            self.ordered.store(false, Ordering::Relaxed);
            let Some(engine) = engine.upgrade() else { return };
            if unharmed(|| engine.flush_deferred()) == Some(false) {
                // Another thread holds the engine's lock; in case it does not send what is held,
                // we come again.
                self.order();
            }
        }
    }
}

impl Drop for BatchFlusher {
    fn drop(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        worker.end(|| {
            self.shared.stop.store(true, Ordering::Release);
            self.shared.timer.set(Duration::from_nanos(1));
        });
    }
}
