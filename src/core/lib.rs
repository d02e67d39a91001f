//! What runs inside `libfabric.so.1`: start-up, parameters, logging, the
//! provider registry and the `fi_getinfo` pipeline.
//!
//! - [`params`] is `fi_param_define`, `fi_param_get` and `fi_getparams`.
//! - [`log`] is `fi_log` and what decides whether a line is written.
//! - [`registry`] finds, loads and orders providers.
//! - [`getinfo`] asks them, layers them and filters what they answer.
//! - `open` is `fi_open`: the log and the memory monitor that a program gives us, and what the
//!   process shows of its endpoints.
//! - [`entry`] is the C face of it all, which `capi` gives symbol versions.
//!
//! Start-up happens once, at the first call that needs providers. Only `capi` links this
//! package: in a plug-in it would be a second copy with statics of its own.
#![cfg_attr(not(test), deny(unsafe_code))]
#[allow(unsafe_code)]
pub mod entry;
#[allow(unsafe_code)]
pub mod getinfo;
#[allow(unsafe_code)]
mod hooks;
#[allow(unsafe_code)]
pub mod log;
#[allow(unsafe_code)]
mod monitor;
#[allow(unsafe_code)]
mod open;
#[allow(unsafe_code)]
pub mod params;
#[allow(unsafe_code)]
pub mod registry;
#[allow(unsafe_code)]
mod stats;

use core::cell::Cell;
use ofi::error::Result;
use std::sync::Once;

static STARTED: Once = Once::new();

thread_local! {
    /// Whether this thread is inside start-up.
    static STARTING: Cell<bool> = const { Cell::new(false) };
}

/// Reads the environment and loads the providers, unless that is done already; -FI_ENOMEM if there was no memory for
/// one of the plug-ins. The next call tries again.
///
/// Every thread waits until it is; a plug-in whose entry point calls back into
/// the library finds it half started rather than waiting for itself.
pub fn start() -> Result {
    if STARTING.get() {
        return Ok(());
    }
    if !STARTED.is_completed() {
        // The tables of providers and parameters grow from here on.
        ofi::heap::keep_all()?;
    }
    STARTED.call_once(|| {
        let _starting = Starting::begin();
        params::define_core();
        log::configure();
        registry::load();
    });
    if registry::is_complete() {
        return Ok(());
    }
    let _starting = Starting::begin();
    registry::complete()
}

/// This thread is inside start-up.
struct Starting;

impl Starting {
    fn begin() -> Self {
        STARTING.set(true);
        Self
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        STARTING.set(false);
    }
}
