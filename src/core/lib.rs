//! Code running only inside `libfabric.so.1`: start-up, parameters, logging, the provider registry
//! and the `fi_getinfo` pipeline.
//!
//! - [`params`] is `fi_param_define`, `fi_param_get` and `fi_getparams`.
//! - [`log`] is `fi_log` and the filter for log lines; `log_config` sets it up.
//! - [`registry`] finds and orders providers; `plugin_file` loads one, `provider` checks it.
//! - [`getinfo`] queries them, layers them and filters their answers.
//! - `open` is `fi_open`: the log and the memory monitor of a program, and the published statistics
//!   of its endpoints.
//! - [`entry`] is the C interface of all of it; `capi` gives it symbol versions.
//!
//! Start-up happens once, at the first call needing providers. Only `capi` links this package: in a
//! plug-in it would be a second copy with separate statics.
#![cfg_attr(not(test), deny(unsafe_code))]
#[allow(unsafe_code)]
pub mod entry;
#[allow(unsafe_code)]
pub mod getinfo;
mod hook_mapping;
#[allow(unsafe_code)]
mod hooks;
#[allow(unsafe_code)]
pub mod log;
mod log_config;
#[allow(unsafe_code)]
mod monitor;
#[allow(unsafe_code)]
mod open;
#[allow(unsafe_code)]
pub mod params;
#[allow(unsafe_code)]
mod plugin_file;
#[allow(unsafe_code)]
mod provider;
#[allow(unsafe_code)]
pub mod registry;
#[allow(unsafe_code)]
mod stats;

use core::cell::Cell;
use ofi::error::Result;
use std::sync::Once;

static STARTED: Once = Once::new();

thread_local! {
    /// True while this thread is inside start-up.
    static STARTING: Cell<bool> = const { Cell::new(false) };
}

/// Reads the environment and loads the providers, unless done already. Fails with -FI_ENOMEM if
/// there was no memory for one of the plug-ins. The next call tries again.
///
/// Every thread waits until it is done. A plug-in with an entry point calling back into the library
/// finds it half started instead of waiting for itself.
pub fn start() -> Result {
    if is_starting() {
        return Ok(());
    }
    if !STARTED.is_completed() {
        // The tables of providers and parameters grow from here on.
        ofi::heap::keep_all()?;
    }
    STARTED.call_once(|| {
        let _starting = Starting::begin();
        params::define_core();
        log_config::configure();
        registry::load();
    });
    if registry::is_complete() {
        return Ok(());
    }
    let _starting = Starting::begin();
    registry::complete()
}

/// Returns true on the thread inside start-up, for calls of a plug-in's entry point.
fn is_starting() -> bool {
    STARTING.get()
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
