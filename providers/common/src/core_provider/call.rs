//! Calls common to all objects of a core provider, and their results.
use crate::abi::{self, fi_ops, fid, fid_ep};
use crate::error::{Error, Result};
use core::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// The table of every object, and a call in it.
///
/// # Safety
/// `fid` is a live object of a core provider's.
unsafe fn fi_ops_of<'a>(fid: *mut fid) -> Result<&'a fi_ops> {
    // SAFETY: by this function's contract.
    unsafe { (*fid).ops.as_ref() }.ok_or(Error::NOSYS)
}

/// fi_close(3).
///
/// # Safety
/// `fid` is a live object of a core provider, and not in use any more.
pub(super) unsafe fn close(fid: *mut fid) -> Result {
    // SAFETY: by this function's contract.
    unsafe { code(fi_ops_of(fid)?.close.ok_or(Error::NOSYS)?(fid)) }
}

/// fi_ep_bind(3).
///
/// # Safety
/// Both are live objects of one core provider's.
pub(super) unsafe fn bind(fid: *mut fid, to: *mut fid, flags: u64) -> Result {
    // SAFETY: by this function's contract.
    unsafe { code(fi_ops_of(fid)?.bind.ok_or(Error::NOSYS)?(fid, to, flags)) }
}

/// fi_control(3).
///
/// # Safety
/// `fid` is a live object of a core provider, and `arg` is valid for the command.
pub(super) unsafe fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> Result {
    // SAFETY: by this function's contract.
    unsafe { code(fi_ops_of(fid)?.control.ok_or(Error::NOSYS)?(fid, command, arg)) }
}

/// Converts the return value of a core provider's call.
pub(super) fn code(ret: c_int) -> Result {
    Error::check(ret).map(drop)
}

/// Converts the return value of a core provider's data transfer call.
pub(super) fn check(ret: libc::ssize_t) -> Result {
    if ret == 0 { Ok(()) } else { Err(Error::from_code(-ret as c_int)) }
}

/// The call of an ops table, or -FI_ENOSYS when the core has none.
macro_rules! call {
    ($table:expr, $name:ident) => {
        $table.as_ref().ok_or(Error::NOSYS)?.$name.ok_or(Error::NOSYS)?
    };
}
pub(super) use call;

/// Sets an option of level FI_OPT_ENDPOINT (fi_setopt(3)).
///
/// # Safety
/// `ep` is an open endpoint.
pub(super) unsafe fn set_option<T>(ep: NonNull<fid_ep>, name: c_int, value: &T) -> Result {
    let (value, len) = (std::ptr::from_ref(value).cast::<u8>(), size_of_val(value));
    // SAFETY: by this function's contract; a value of any type has bytes that can be read.
    unsafe { set_bytes(ep, name, std::slice::from_raw_parts(value, len)) }
}

/// Sets FI_OPT_FI_HMEM_P2P.
///
/// # Safety
/// `ep` is an open endpoint.
pub(super) unsafe fn set_p2p(ep: NonNull<fid_ep>, permitted: bool) -> Result {
    let value = if permitted { abi::FI_HMEM_P2P_ENABLED } else { abi::FI_HMEM_P2P_DISABLED };
    // SAFETY: by this function's contract.
    unsafe { set_option(ep, abi::FI_OPT_FI_HMEM_P2P, &value) }
}

/// Sets an option of level FI_OPT_ENDPOINT to these bytes.
///
/// # Safety
/// `ep` is an open endpoint.
pub(super) unsafe fn set_bytes(ep: NonNull<fid_ep>, name: c_int, value: &[u8]) -> Result {
    let level = abi::FI_OPT_ENDPOINT as c_int;
    // SAFETY: by this function's contract; the value lives for the call.
    unsafe {
        let setopt = call!(ep.as_ref().ops, setopt);
        code(setopt(ep.as_ptr().cast(), level, name, value.as_ptr().cast(), value.len()))
    }
}
