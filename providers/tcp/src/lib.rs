//! The tcp provider.
pub mod info;

use core::ffi::{c_int, c_void};
use ofi_provider::abi::{fi_fabric_attr, fid_fabric};
use ofi_provider::error::Error;

/// fi_fabric(3) of this provider.
///
/// # Safety
/// As fi_fabric(3) says.
pub unsafe extern "C" fn fabric_open(
    _attr: *mut fi_fabric_attr,
    _fabric: *mut *mut fid_fabric,
    _context: *mut c_void,
) -> c_int {
    Error::NOSYS.to_ret()
}
