//! A thread that sends again what was lost, and what had to wait, while the application makes no
//! call.
//!
//! A transfer is accepted before the peer has it. If the application then waits for something else,
//! under manual progress no call would repeat a lost packet: the helper does, and it sends
//! acknowledgements that were put off for an answer. It looks at intervals while something is under
//! way, keeps out of the way of an application that makes progress itself, and sleeps when nothing
//! was under way for a while.
use super::RxdEngine;
use ofi_provider::progress::Progress;
use ofi_provider::worker::{Worker, rest, unharmed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// How often the helper looks whether it is needed.
const PAUSE: Duration = Duration::from_millis(1);

/// Looks in a row at which nothing was under way after which the helper sleeps.
const LOOKS: u32 = 64;

/// The helper of an engine.
pub(super) struct Helper {
    engine: Weak<RxdEngine>,
    /// The application leaves room for a thread.
    allowed: bool,
    thread: Mutex<Option<Worker>>,
    bed: Arc<Bed>,
}

/// Where the helper sleeps.
#[derive(Default)]
pub(super) struct Bed {
    /// There is a helper.
    taken: AtomicBool,
    /// It does not sleep.
    awake: AtomicBool,
    /// It is to end.
    stop: Mutex<bool>,
    woken: Condvar,
}

impl Bed {
    fn stop(&self) -> MutexGuard<'_, bool> {
        self.stop.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Has the helper look from now on; false if there is none. For who has the engine's lock.
    #[inline]
    pub(super) fn rouse(&self) -> bool {
        self.awake.load(Ordering::Relaxed) || self.knock()
    }

    #[cold]
    fn knock(&self) -> bool {
        if !self.taken.load(Ordering::Relaxed) {
            return false;
        }
        self.awake.store(true, Ordering::Release);
        drop(self.stop());
        self.woken.notify_one();
        true
    }
}

impl Helper {
    /// The helper of this engine, which is not there until it is needed. `allowed`: the
    /// application leaves room for a thread.
    pub(super) fn new(engine: Weak<RxdEngine>, allowed: bool) -> Self {
        Self { engine, allowed, thread: Mutex::default(), bed: Arc::default() }
    }

    /// Where it sleeps.
    pub(super) fn bed(&self) -> &Arc<Bed> {
        &self.bed
    }

    /// Has the helper look from now on.
    #[inline]
    pub(super) fn wake(&self) {
        if !self.bed.awake.load(Ordering::Relaxed) {
            self.start();
        }
    }

    #[cold]
    fn start(&self) {
        if !self.allowed {
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.bed.rouse() {
            return;
        }
        self.bed.awake.store(true, Ordering::Release);
        let (engine, bed) = (self.engine.clone(), self.bed.clone());
        match Worker::start("ofi-rxd-again", move || look(&engine, &bed)) {
            Ok(worker) => {
                *thread = Some(worker);
                self.bed.taken.store(true, Ordering::Release);
            }
            Err(_) => self.bed.awake.store(false, Ordering::Release),
        }
    }

    /// Has all believe that there is a helper, whose part a test takes.
    #[cfg(test)]
    pub(super) fn pretend(&self) {
        self.bed.taken.store(true, Ordering::Relaxed);
        self.bed.awake.store(true, Ordering::Relaxed);
    }
}

/// The helper's thread.
fn look(engine: &Weak<RxdEngine>, bed: &Bed) {
    let (mut seen, mut vain) = (None, 0);
    loop {
        rest(|| std::thread::sleep(PAUSE));
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
            if !may_sleep(&bed.awake, look) {
                continue;
            }
            let mut stop = bed.stop();
            while !*stop && !bed.awake.load(Ordering::Acquire) {
                stop =
                    rest(|| bed.woken.wait(stop)).unwrap_or_else(|poisoned| poisoned.into_inner());
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
