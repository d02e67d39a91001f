//! A thread that sends again what was lost, and what had to wait, while the application makes no
//! call.
//!
//! A transfer is accepted before the peer has it. If the application then waits for something else,
//! under manual progress no call would repeat a lost packet: the helper does. It looks at intervals
//! while something is under way, keeps out of the way of an application that makes progress itself,
//! and sleeps when nothing was under way for a while.
use super::RxdEngine;
use ofi_provider::progress::Progress;
use ofi_provider::worker::{Worker, unharmed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// How often the helper looks whether it is needed.
const PAUSE: Duration = Duration::from_millis(1);

/// Looks in a row at which nothing was under way after which the helper sleeps.
const LOOKS: u32 = 64;

/// The helper of an engine.
#[derive(Default)]
pub(super) struct Helper {
    /// It sleeps, or was never started.
    awake: Arc<AtomicBool>,
    thread: Mutex<Option<Worker>>,
    bed: Arc<Bed>,
}

/// Where the helper sleeps.
#[derive(Default)]
struct Bed {
    /// It is to end.
    stop: Mutex<bool>,
    woken: Condvar,
}

impl Bed {
    fn stop(&self) -> MutexGuard<'_, bool> {
        self.stop.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Helper {
    /// Has the helper look from now on. An application that serializes all calls has none: its
    /// packets are sent by its calls only.
    #[inline]
    pub(super) fn wake(&self, engine: &Arc<RxdEngine>) {
        if !self.awake.load(Ordering::Relaxed) {
            self.start(engine);
        }
    }

    #[cold]
    fn start(&self, engine: &Arc<RxdEngine>) {
        if engine.is_serialized() || self.awake.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if thread.is_some() {
            drop(self.bed.stop());
            self.bed.woken.notify_one();
            return;
        }
        let (engine, bed, awake) = (Arc::downgrade(engine), self.bed.clone(), self.awake.clone());
        match Worker::start("ofi-rxd-again", move || look(&engine, &bed, &awake)) {
            Ok(worker) => *thread = Some(worker),
            Err(_) => self.awake.store(false, Ordering::Release),
        }
    }
}

/// The helper's thread.
fn look(engine: &Weak<RxdEngine>, bed: &Bed, awake: &AtomicBool) {
    let (mut seen, mut vain) = (None, 0);
    loop {
        std::thread::sleep(PAUSE);
        if *bed.stop() {
            return;
        }
        let Some(of) = engine.upgrade() else { return };
        let now = Some(of.activity());
        // Even if a turn panics, the helper must go on for the other endpoints.
        let busy = unharmed(|| of.help(now == seen)).unwrap_or(true);
        drop(of);
        seen = now;
        vain = if busy { 0 } else { vain + 1 };
        if vain >= LOOKS {
            vain = 0;
            let look =
                || engine.upgrade().is_some_and(|of| unharmed(|| of.help(false)) == Some(true));
            if !may_sleep(awake, look) {
                continue;
            }
            let mut stop = bed.stop();
            while !*stop && !awake.load(Ordering::Acquire) {
                stop = bed.woken.wait(stop).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }
}

/// Says that the helper sleeps, and then has it look once more: something may have begun after the
/// last look by a thread that saw the helper awake.
fn may_sleep(awake: &AtomicBool, look: impl FnOnce() -> bool) -> bool {
    awake.store(false, Ordering::Release);
    // The look takes the engine's lock. Who takes that later sees that the helper sleeps.
    if !look() {
        return true;
    }
    awake.store(true, Ordering::Release);
    false
}

impl Drop for Helper {
    fn drop(&mut self) {
        let worker = self.thread.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(mut worker) = worker {
            worker.end(|| {
                *self.bed.stop() = true;
                self.bed.woken.notify_one();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_while_the_helper_falls_asleep_is_looked_after() {
        let awake = AtomicBool::new(true);
        // Begun by a thread that saw it awake, and so did not wake it.
        assert!(!may_sleep(&awake, || true));
        assert!(awake.load(Ordering::Relaxed));
        // Begun during that look: whoever does it sees the helper asleep.
        assert!(may_sleep(&awake, || {
            assert!(!awake.load(Ordering::Relaxed));
            false
        }));
        assert!(!awake.load(Ordering::Relaxed));
    }
}
