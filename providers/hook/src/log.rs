//! Log lines in the name of the hooked provider, as expected by programs.
use ofi_provider::abi::{fi_log_level, fi_log_subsys, fi_provider};
use ofi_provider::log::{self, LogSource};
use std::ffi::CString;

pub use ofi_provider::log::{level, subsys};

/// Log target of a hook.
#[derive(Clone, Copy, Debug)]
pub struct HookLog(Option<LogSource>);

impl HookLog {
    /// No lines at all.
    pub const NOWHERE: Self = Self(None);

    /// Creates a log in the name of `prov`; without a target if it is null.
    ///
    /// # Safety
    /// `prov` is null, or a provider with an unlimited lifetime.
    pub(crate) unsafe fn new(prov: *mut fi_provider) -> Self {
        // SAFETY: by this function's contract.
        Self((!prov.is_null()).then(|| unsafe { LogSource::new(prov) }))
    }

    /// Returns the name of the hooked provider; none if nothing is logged.
    pub fn provider(&self) -> Option<String> {
        self.0.map(|prov| prov.name())
    }

    /// Returns true if a line of this level would be written.
    pub fn enabled(&self, level: fi_log_level, subsys: fi_log_subsys) -> bool {
        self.0.is_some_and(|prov| log::enabled(prov, level, subsys))
    }

    /// Writes a line at level trace, if enabled, in the name of the function `func`.
    #[track_caller]
    pub fn trace(&self, subsys: fi_log_subsys, func: &str, text: core::fmt::Arguments<'_>) {
        self.line(level::TRACE, subsys, func, text);
    }

    /// A line, if its level is enabled, as of the function `func`.
    #[track_caller]
    pub fn line(
        &self,
        level: fi_log_level,
        subsys: fi_log_subsys,
        func: &str,
        text: core::fmt::Arguments<'_>,
    ) {
        let Some(prov) = self.0.filter(|_| self.enabled(level, subsys)) else { return };
        let from = core::panic::Location::caller();
        let func = CString::new(func).unwrap_or_default();
        log::write(prov, level, subsys, &func, from.line(), text);
    }
}
