//! Logging through the core that loaded the provider (fi_provider(7)).
//!
//! A message is formatted only when its level and subsystem are enabled. Where
//! the application can see the cause of an error only here, log it once, at the
//! place that decides, with what can be done about it.
use crate::abi::{self, fi_log_level, fi_log_subsys, fi_provider};
use core::ffi::CStr;
use std::ffi::CString;

/// Whether a message of this level would be printed.
pub fn enabled(prov: &'static fi_provider, level: fi_log_level, subsys: fi_log_subsys) -> bool {
    // SAFETY: `prov` is a provider that lives as long as the process.
    unsafe { abi::fi_log_enabled(prov, level.into(), subsys.into()) != 0 }
}

/// Prints one message. Use the macros, which check the level first.
pub fn write(
    prov: &'static fi_provider,
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
    // SAFETY: the format takes exactly one C string, and `text` outlives the call.
    unsafe {
        abi::fi_log(
            prov,
            level.into(),
            subsys.into(),
            func.as_ptr(),
            line as core::ffi::c_int,
            c"%s".as_ptr(),
            text.as_ptr(),
        );
    }
}

/// `log!(prov, WARN, EP_CTRL, "format", ...)`: one line, if enabled.
#[macro_export]
macro_rules! log {
    ($prov:expr, $level:ident, $subsys:ident, $($message:tt)+) => {{
        use $crate::abi::{fi_log_level as level, fi_log_subsys as subsys};
        $crate::log!(@ $prov, level, $level, subsys, $subsys, $($message)+)
    }};
    (@ $prov:expr, $lt:ident, WARN, $st:ident, $subsys:ident, $($message:tt)+) => {
        $crate::log!(# $prov, $lt::FI_LOG_WARN, $st, $subsys, $($message)+)
    };
    (@ $prov:expr, $lt:ident, INFO, $st:ident, $subsys:ident, $($message:tt)+) => {
        $crate::log!(# $prov, $lt::FI_LOG_INFO, $st, $subsys, $($message)+)
    };
    (@ $prov:expr, $lt:ident, DEBUG, $st:ident, $subsys:ident, $($message:tt)+) => {
        $crate::log!(# $prov, $lt::FI_LOG_DEBUG, $st, $subsys, $($message)+)
    };
    (# $prov:expr, $level:expr, $st:ident, EP_CTRL, $($message:tt)+) => {
        $crate::log!(! $prov, $level, $st::FI_LOG_EP_CTRL, $($message)+)
    };
    (# $prov:expr, $level:expr, $st:ident, EP_DATA, $($message:tt)+) => {
        $crate::log!(! $prov, $level, $st::FI_LOG_EP_DATA, $($message)+)
    };
    (# $prov:expr, $level:expr, $st:ident, DOMAIN, $($message:tt)+) => {
        $crate::log!(! $prov, $level, $st::FI_LOG_DOMAIN, $($message)+)
    };
    (# $prov:expr, $level:expr, $st:ident, FABRIC, $($message:tt)+) => {
        $crate::log!(! $prov, $level, $st::FI_LOG_FABRIC, $($message)+)
    };
    (# $prov:expr, $level:expr, $st:ident, CQ, $($message:tt)+) => {
        $crate::log!(! $prov, $level, $st::FI_LOG_CQ, $($message)+)
    };
    (# $prov:expr, $level:expr, $st:ident, AV, $($message:tt)+) => {
        $crate::log!(! $prov, $level, $st::FI_LOG_AV, $($message)+)
    };
    (! $prov:expr, $level:expr, $subsys:expr, $($message:tt)+) => {
        if $crate::log::enabled($prov, $level, $subsys) {
            const FUNC: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(module_path!(), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
            $crate::log::write($prov, $level, $subsys, FUNC, line!(), format_args!($($message)+));
        }
    };
}
