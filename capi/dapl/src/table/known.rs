//! Adaptors of the lines of dat.conf with this plug-in.
use std::sync::{Mutex, MutexGuard};

/// Line of dat.conf for which the plug-in was loaded.
pub(super) struct KnownAdaptor {
    pub(super) name: String,
    pub(super) instance: String,
    pub(super) thread_safe: bool,
    /// Address of its table, never freed.
    pub(super) table: usize,
}

static KNOWN: Mutex<Vec<KnownAdaptor>> = Mutex::new(Vec::new());

pub(super) fn known() -> MutexGuard<'static, Vec<KnownAdaptor>> {
    KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
