//! Texts of errors in callers' buffers.
use crate::error::strerror;
use core::ffi::{c_char, c_int};

/// Copies a text to the caller's buffer, truncated to its length, and terminates it with a NUL.
///
/// # Safety
/// `buf` has `len` bytes; `len` is not 0.
pub(super) unsafe fn copy_text(text: &[u8], buf: *mut c_char, len: usize) -> *const c_char {
    let n = text.len().min(len - 1);
    // SAFETY: `n + 1 <= len` bytes are written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, n);
        buf.add(n).write(0);
    }
    buf
}

/// The text of an errno, in the caller's buffer if there is one.
///
/// # Safety
/// `buf` is null or has `len` bytes.
pub(crate) unsafe fn error_text(code: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    if !buf.is_null() && len > 0 {
        // SAFETY: by this function's contract.
        return unsafe { copy_text(strerror(code).as_bytes(), buf, len) };
    }
    match crate::error::ofi_text(code) {
        Some(text) => text.as_ptr(),
        // SAFETY: strerror answers a C string for any number; glibc keeps it per thread.
        None => unsafe { libc::strerror(code.saturating_abs()) },
    }
}
