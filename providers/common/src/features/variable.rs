//! Bits requesting buffered receives (fi_msg(3) as of 1.7 to 1.22).
use crate::abi::FI_BUFFERED_RECV;
use crate::info::{InfoRef, version};

/// FI_VARIABLE_MSG of API versions before 1.21, equivalent to the mode bit FI_BUFFERED_RECV. Later
/// versions reassigned the bit.
pub const VARIABLE_MSG: u64 = 1 << 48;

/// Returns the mode bits and the capability bits requesting buffered receives in this API version.
pub fn bits(api_version: u32) -> (u64, u64) {
    let mode = if api_version < version(2, 0) { FI_BUFFERED_RECV } else { 0 };
    let caps = if api_version < version(1, 21) { VARIABLE_MSG } else { 0 };
    (mode, caps)
}

/// Returns true if an info, or hints, of an application with this API version request buffered
/// receives.
pub fn is_asked(info: InfoRef<'_>, api_version: u32) -> bool {
    let (mode, caps) = bits(api_version);
    info.mode() & mode != 0 || info.caps() & caps != 0
}
