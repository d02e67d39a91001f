//! Logging through the core that loaded the provider (fi_provider(7)).
//!
//! A message is formatted only if its level and subsystem are enabled. If the application can see
//! the cause of an error only here, log it once, at the deciding code, with a remedy.
use crate::abi::{self, fi_log_level, fi_log_subsys, fi_provider};
use crate::boundary::CancelDisabled;
use crate::info::{PATHS, TransferPath};
use crate::provider::Provider;
use core::ffi::CStr;
use std::ffi::CString;
use std::sync::Mutex;
use std::time::Instant;

/// Provider named in a log message; it is never freed.
#[derive(Clone, Copy, Debug)]
pub struct LogSource(*const fi_provider);

// SAFETY: only the core reads the provider, which stays, from any thread.
unsafe impl Send for LogSource {}
// SAFETY: only the core reads the provider, which stays, from any thread.
unsafe impl Sync for LogSource {}

impl LogSource {
    /// Returns a source for a provider of another plug-in.
    ///
    /// # Safety
    /// `prov` is never freed.
    pub const unsafe fn new(prov: *const fi_provider) -> Self {
        Self(prov)
    }

    /// The provider's name.
    pub fn name(self) -> String {
        // SAFETY: the provider stays for good; its name is a C string or null.
        unsafe {
            let name = (*self.0).name;
            if name.is_null() {
                String::new()
            } else {
                CStr::from_ptr(name).to_string_lossy().into()
            }
        }
    }
}

impl From<&'static Provider> for LogSource {
    fn from(prov: &'static Provider) -> Self {
        Self(prov.as_ptr())
    }
}

/// Returns a peer's name for log lines: its address if known.
pub fn peer_text(peer: Option<impl std::fmt::Display>) -> String {
    peer.map_or_else(|| "a peer".to_owned(), |peer| peer.to_string())
}

/// Returns true if a message of this level would be printed.
pub fn enabled(prov: impl Into<LogSource>, level: fi_log_level, subsys: fi_log_subsys) -> bool {
    // SAFETY: a `LogSource` is a provider that stays for good.
    unsafe { abi::fi_log_enabled(prov.into().0, level.into(), subsys.into()) != 0 }
}

/// Prints one message. Use the macros; they check the level first.
pub fn write(
    prov: impl Into<LogSource>,
    level: fi_log_level,
    subsys: fi_log_subsys,
    func: &CStr,
    line: u32,
    message: std::fmt::Arguments<'_>,
) {
    // A message with a NUL in it (from a peer, say) is cut there, not lost.
    let mut bytes = message.to_string().into_bytes();
    if let Some(end) = bytes.iter().position(|b| *b == 0) {
        bytes.truncate(end);
    }
    bytes.push(b'\n');
    let Ok(text) = CString::new(bytes) else { return };
    // The core may write to a file, where a cancelled thread would end.
    let _uncancelled = CancelDisabled::new();
    // SAFETY: the format takes exactly one C string, and `text` outlives the call.
    unsafe {
        abi::fi_log(
            prov.into().0,
            level.into(),
            subsys.into(),
            func.as_ptr(),
            line as core::ffi::c_int,
            c"%s".as_ptr(),
            text.as_ptr(),
        );
    }
}

/// Logs the paths of transfers by size, for `fi_info --protocols`: at level trace of the subsystem
/// `ep_data`, if enabled. The call belongs into getinfo.
pub fn write_paths(prov: impl Into<LogSource>, paths: impl FnOnce() -> Vec<TransferPath>) {
    let prov = prov.into();
    let (level, subsys) = (level::TRACE, subsys::EP_DATA);
    if enabled(prov, level, subsys) {
        for path in paths() {
            write(prov, level, subsys, PATHS, line!(), format_args!("{path}"));
        }
    }
}

/// Levels, by the names `log!` uses.
#[allow(missing_docs, reason = "each is the FI_LOG_* value of its name")]
pub mod level {
    use crate::abi::fi_log_level;
    pub const WARN: fi_log_level = fi_log_level::FI_LOG_WARN;
    pub const TRACE: fi_log_level = fi_log_level::FI_LOG_TRACE;
    pub const INFO: fi_log_level = fi_log_level::FI_LOG_INFO;
    pub const DEBUG: fi_log_level = fi_log_level::FI_LOG_DEBUG;
}

/// Subsystems, by the names `log!` uses.
#[allow(missing_docs, reason = "each is the FI_LOG_* value of its name")]
pub mod subsys {
    use crate::abi::fi_log_subsys;
    pub const CORE: fi_log_subsys = fi_log_subsys::FI_LOG_CORE;
    pub const FABRIC: fi_log_subsys = fi_log_subsys::FI_LOG_FABRIC;
    pub const DOMAIN: fi_log_subsys = fi_log_subsys::FI_LOG_DOMAIN;
    pub const EP_CTRL: fi_log_subsys = fi_log_subsys::FI_LOG_EP_CTRL;
    pub const EP_DATA: fi_log_subsys = fi_log_subsys::FI_LOG_EP_DATA;
    pub const AV: fi_log_subsys = fi_log_subsys::FI_LOG_AV;
    pub const CQ: fi_log_subsys = fi_log_subsys::FI_LOG_CQ;
    pub const EQ: fi_log_subsys = fi_log_subsys::FI_LOG_EQ;
    pub const MR: fi_log_subsys = fi_log_subsys::FI_LOG_MR;
    pub const CNTR: fi_log_subsys = fi_log_subsys::FI_LOG_CNTR;
}

/// `log!(prov, WARN, EP_CTRL, "format", ...)`: one line, if enabled.
#[macro_export]
macro_rules! log {
    ($prov:expr, $level:ident, $subsys:ident, $($message:tt)+) => {{
        let (level, subsys) = ($crate::log::level::$level, $crate::log::subsys::$subsys);
        if $crate::log::enabled($prov, level, subsys) {
            const FUNC: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(module_path!(), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
            $crate::log::write($prov, level, subsys, FUNC, line!(), format_args!($($message)+));
        }
    }};
}

/// Lines of one call site printed in a burst, and the rate per second afterwards.
const BURST: u64 = 10;
const PER_SECOND: u64 = 1;

/// Counts the lines of one place ([`log_sparsely!`](crate::log_sparsely)).
#[derive(Debug)]
pub struct Sparse(Mutex<Spent>);

#[derive(Debug)]
struct Spent {
    /// Remaining lines of the burst, and its start.
    left: u64,
    since: Option<Instant>,
    /// Lines suppressed since the last printed one.
    left_out: u64,
}

impl Sparse {
    /// Returns the state of a call site without printed lines.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self(Mutex::new(Spent { left: BURST, since: None, left_out: 0 }))
    }

    /// Returns the number of lines suppressed before if another line may be printed now, else
    /// `None`.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut spent = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let since = *spent.since.get_or_insert(now);
        let more = now.saturating_duration_since(since).as_secs().saturating_mul(PER_SECOND);
        if more > 0 {
            spent.left = spent.left.saturating_add(more).min(BURST);
            spent.since = Some(now);
        }
        if spent.left == 0 {
            spent.left_out += 1;
            return None;
        }
        spent.left -= 1;
        Some(std::mem::take(&mut spent.left_out))
    }
}

/// Logs like [`log!`] events triggered by peers at any rate: for each call site a burst of lines,
/// then one a second with the number of suppressed lines.
#[macro_export]
macro_rules! log_sparsely {
    ($prov:expr, $level:ident, $subsys:ident, $($message:tt)+) => {{
        if $crate::log::enabled($prov, $crate::log::level::$level, $crate::log::subsys::$subsys) {
            static SPARSE: $crate::log::Sparse = $crate::log::Sparse::new();
            match SPARSE.admit() {
                None => {}
                Some(0) => $crate::log!($prov, $level, $subsys, $($message)+),
                Some(left_out) => $crate::log!(
                    $prov,
                    $level,
                    $subsys,
                    "{} ({left_out} similar lines left out)",
                    format_args!($($message)+)
                ),
            }
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn of_many_lines_some_are_printed_and_the_others_are_counted() {
        let (sparse, start) = (Sparse::new(), Instant::now());
        let at = |ms| sparse.admit_at(start + Duration::from_millis(ms));
        assert_eq!((0..1000).filter_map(|_| at(0)).count(), BURST as usize);
        assert_eq!(at(999), None);
        assert_eq!(at(1000), Some(991));
        assert_eq!(at(1001), None);
        assert_eq!(at(5000), Some(1));
        assert_eq!((0..1000).filter_map(|_| at(1_000_000)).sum::<u64>(), 0);
    }
}
