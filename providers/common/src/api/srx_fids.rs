//! Open shared receive contexts.
use std::any::TypeId;
use std::sync::{Mutex, MutexGuard};

/// Fids of open shared receive contexts, and their type, identifying the provider. A fid bound by
/// the application is looked up here before its use.
static SRX_FIDS: Mutex<Vec<(usize, TypeId)>> = Mutex::new(Vec::new());

/// Returns the list of them, locked.
pub(super) fn list() -> MutexGuard<'static, Vec<(usize, TypeId)>> {
    SRX_FIDS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
