//! Results of the calls of libibverbs and librdmacm, and their descriptors.
use core::ffi::c_int;
use ofi_provider::error::{Error, Result};
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// Checks the result of a call returning -1 with errno set.
pub(super) fn check(ret: c_int) -> Result {
    if ret == 0 { Ok(()) } else { Err(Error::last_os()) }
}

/// Checks the result of a call returning an errno.
pub(super) fn check_code(ret: c_int) -> Result {
    if ret == 0 { Ok(()) } else { Err(Error::from_code(ret.abs())) }
}

/// An object of the library's, or errno.
pub(super) fn object<T>(ptr: *mut T) -> Result<NonNull<T>> {
    NonNull::new(ptr).ok_or_else(Error::last_os)
}

/// Has a descriptor of a library read without blocking.
pub(super) fn set_nonblocking(fd: RawFd) -> Result {
    // SAFETY: no memory is involved.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(Error::last_os());
        }
    }
    Ok(())
}
