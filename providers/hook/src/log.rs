//! Log lines in the name of the provider that is hooked, as programs expect.
use ofi_provider::abi::{fi_log_level, fi_log_subsys, fi_provider};
use ofi_provider::log::{self, LogSource};
use std::ffi::CString;

pub use ofi_provider::log::{level, subsys};

/// Where a hook logs.
#[derive(Clone, Copy, Debug)]
pub struct HookLog(Option<LogSource>);

impl HookLog {
    /// No lines at all.
    pub const NOWHERE: Self = Self(None);

    /// In the name of `prov`; nowhere if that is null.
    ///
    /// # Safety
    /// `prov` is null or a provider that stays for good.
    pub(crate) unsafe fn new(prov: *mut fi_provider) -> Self {
        // SAFETY: by this function's contract.
        Self((!prov.is_null()).then(|| unsafe { LogSource::new(prov) }))
    }

    /// The name of the provider that is hooked; none if nothing is logged.
    pub fn provider(&self) -> Option<String> {
        self.0.map(|prov| prov.name())
    }

    /// Whether a line of this level would be written.
    pub fn enabled(&self, level: fi_log_level, subsys: fi_log_subsys) -> bool {
        self.0.is_some_and(|prov| log::enabled(prov, level, subsys))
    }

    /// A line at level trace, if that is enabled, as of the function `func`.
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
