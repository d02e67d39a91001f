//! Helper thread retransmitting lost packets, and sending delayed data, while the application makes
//! no call.
//!
//! A transfer is accepted before the peer has it. If the application then waits for another event,
//! no call would retransmit a lost packet under manual progress: the helper does. It also sends
//! acknowledgements delayed in favor of an answer. It polls at intervals while data is in flight,
//! holds off while an application makes progress itself, and sleeps after an idle period.
use ofi_provider::progress::{Progress, ProgressHoldoff};
use ofi_provider::worker::{Worker, rest, unharmed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// Polling interval of the helper while the application makes no progress.
const PAUSE: Duration = Duration::from_millis(1);

/// Consecutive idle polls after which the helper sleeps.
const LOOKS: u32 = 64;

/// An engine with a helper.
pub(super) trait Helped: Progress {
    /// Makes progress for an application making none, if data is in flight. Returns true if it is,
    /// as far as visible to the helper.
    fn help(&self, idle: bool) -> bool;
}

/// The helper of an engine.
pub(super) struct Helper<E: Helped + 'static> {
    engine: Weak<E>,
    /// True if the application permits a library thread.
    allowed: bool,
    thread: Mutex<Option<Worker>>,
    bed: Arc<ParkSlot>,
}

/// Sleep state of the helper.
#[derive(Default)]
pub(super) struct ParkSlot {
    /// There is a helper.
    taken: AtomicBool,
    /// It does not sleep.
    active: AtomicBool,
    /// It is to end.
    stop: Mutex<bool>,
    woken: Condvar,
}

impl ParkSlot {
    fn stop(&self) -> MutexGuard<'_, bool> {
        self.stop.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Pauses the helper. Returns true if it is to end.
    fn pause(&self, time: Duration) -> bool {
        let stop = self.stop();
        let woken = rest(|| self.woken.wait_timeout_while(stop, time, |stop| !*stop));
        *woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// Wakes the helper; returns false if there is none. The caller holds the engine's lock.
    #[inline]
    pub(super) fn rouse(&self) -> bool {
        self.active.load(Ordering::Relaxed) || self.knock()
    }

    #[cold]
    fn knock(&self) -> bool {
        if !self.taken.load(Ordering::Relaxed) {
            return false;
        }
        self.active.store(true, Ordering::Release);
        drop(self.stop());
        self.woken.notify_one();
        true
    }
}

impl<E: Helped + 'static> Helper<E> {
    /// Creates the helper of this engine, without a thread until it is needed. `allowed`: the
    /// application permits a thread.
    pub(super) fn new(engine: Weak<E>, allowed: bool) -> Self {
        Self { engine, allowed, thread: Mutex::default(), bed: Arc::default() }
    }

    /// Returns its sleep state.
    pub(super) fn bed(&self) -> &Arc<ParkSlot> {
        &self.bed
    }

    /// Starts polling by the helper.
    #[inline]
    pub(super) fn wake(&self) {
        if !self.bed.active.load(Ordering::Relaxed) {
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
        self.bed.active.store(true, Ordering::Release);
        let (engine, bed) = (self.engine.clone(), self.bed.clone());
        match Worker::start("ofi-rxd-again", move || look(&engine, &bed)) {
            Ok(worker) => {
                *thread = Some(worker);
                self.bed.taken.store(true, Ordering::Release);
            }
            Err(_) => self.bed.active.store(false, Ordering::Release),
        }
    }

    /// Pretends the existence of a helper, for a test acting in its role.
    #[cfg(test)]
    pub(super) fn pretend(&self) {
        self.bed.taken.store(true, Ordering::Relaxed);
        self.bed.active.store(true, Ordering::Relaxed);
    }
}

/// The helper's thread.
fn look<E: Helped>(engine: &Weak<E>, bed: &ParkSlot) {
    let (mut seen, mut empty_polls) = (None, 0);
    let (mut hold_off, mut pause) = (ProgressHoldoff::default(), PAUSE);
    while !bed.pause(pause) {
        let Some(of) = engine.upgrade() else { return };
        let now = Some(of.activity());
        // Even if a turn panics, the helper must go on for the other endpoints.
        let is_idle = now == seen;
        let busy = unharmed(|| of.help(is_idle)).unwrap_or(true);
        drop(of);
        seen = now;
        pause = match is_idle {
            true => {
                hold_off.record_idle();
                PAUSE
            }
            false => hold_off.record_activity(),
        };
        empty_polls = if busy { 0 } else { empty_polls + 1 };
        if empty_polls >= LOOKS {
            empty_polls = 0;
            let look =
                || engine.upgrade().is_some_and(|of| unharmed(|| of.help(false)) == Some(true));
            if !may_sleep(&bed.active, look) {
                continue;
            }
            let mut stop = bed.stop();
            while !*stop && !bed.active.load(Ordering::Acquire) {
                stop =
                    rest(|| bed.woken.wait(stop)).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }
}

/// Marks the helper as sleeping, and then polls once more: an operation may have started after the
/// last poll, in a thread still seeing the helper active.
fn may_sleep(active: &AtomicBool, look: impl FnOnce() -> bool) -> bool {
    active.store(false, Ordering::Release);
    // The poll takes the engine's lock. A thread taking it later sees the helper asleep.
    if !look() {
        return true;
    }
    active.store(true, Ordering::Release);
    false
}

impl<E: Helped + 'static> Drop for Helper<E> {
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
    fn work_started_while_the_helper_falls_asleep_is_served() {
        let active = AtomicBool::new(true);
        // Begun by a thread that saw it awake, and so did not wake it.
        assert!(!may_sleep(&active, || true));
        assert!(active.load(Ordering::Relaxed));
        // Started during this poll: the starting thread sees the helper asleep.
        assert!(may_sleep(&active, || {
            assert!(!active.load(Ordering::Relaxed));
            false
        }));
        assert!(!active.load(Ordering::Relaxed));
    }
}
