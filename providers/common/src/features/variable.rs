//! By which bits an application asks for buffered receives (fi_msg(3) as of 1.7 to 1.22).
use crate::abi::FI_BUFFERED_RECV;
use crate::info::{InfoRef, version};

/// FI_VARIABLE_MSG as programs for versions before 1.21 know it, which asks for
/// the same as the mode bit FI_BUFFERED_RECV. Later the bit was given away.
pub const VARIABLE_MSG: u64 = 1 << 48;

/// Which bits mean buffered receives to an application of this API version: of
/// the mode, and of the capabilities.
pub fn bits(api_version: u32) -> (u64, u64) {
    let mode = if api_version < version(2, 0) { FI_BUFFERED_RECV } else { 0 };
    let caps = if api_version < version(1, 21) { VARIABLE_MSG } else { 0 };
    (mode, caps)
}

/// Whether an info, or hints, of an application of this API version ask for
/// buffered receives.
pub fn is_asked(info: InfoRef<'_>, api_version: u32) -> bool {
    let (mode, caps) = bits(api_version);
    info.mode() & mode != 0 || info.caps() & caps != 0
}
