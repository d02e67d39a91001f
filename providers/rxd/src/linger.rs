//! Waits at process exit for data not awaited by the application.
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// An engine with data possibly to be delivered after the application's last call.
pub(crate) trait Lingering: Send + Sync {
    /// Runs a progress iteration. Returns the linger time for data not acknowledged by peers and
    /// not awaited by the application, if there is any.
    fn hold_off(&self) -> Option<Duration>;
}

/// Engines of all open domains.
static LIVE: Mutex<Vec<Weak<dyn Lingering>>> = Mutex::new(Vec::new());

/// Records the engine of an opened domain.
pub(crate) fn register<E: Lingering + 'static>(engine: &Arc<E>) {
    let engine: Weak<E> = Arc::downgrade(engine);
    let mut live = LIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    live.retain(|engine| engine.strong_count() > 0);
    live.push(engine);
}

/// Polling interval while lingering at process exit.
const LINGER_PAUSE: Duration = Duration::from_micros(100);

/// Lingers at process exit: gives peers time to receive data not awaited by the application, with
/// retransmissions on request.
pub(crate) fn linger() {
    // In a forked child the lock of the list may be held for ever, by a thread that only the parent
    // has.
    let Ok(live) = LIVE.try_lock() else { return };
    let live: Vec<_> = live.iter().filter_map(Weak::upgrade).collect();
    let start = Instant::now();
    loop {
        let hold_off = live.iter().filter_map(|engine| engine.hold_off()).max();
        if hold_off.is_none_or(|hold_off| start.elapsed() >= hold_off) {
            return;
        }
        std::thread::sleep(LINGER_PAUSE);
    }
}
