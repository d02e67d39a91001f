//! Memory borrowed from a caller for the duration of a call.
use core::ffi::c_void;

/// Copies `bytes` to the caller's buffer, up to its size, and stores the full length in `len`.
/// Returns true if everything fitted.
///
/// # Safety
/// `len` points to the number of bytes in `buf`.
pub(crate) unsafe fn copy_out(bytes: &[u8], buf: *mut c_void, len: *mut usize) -> bool {
    // SAFETY: by this function's contract.
    unsafe {
        let capacity = if buf.is_null() { 0 } else { *len };
        *len = bytes.len();
        let n = bytes.len().min(capacity);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast::<u8>(), n);
        n == bytes.len()
    }
}

/// The caller's bytes; nothing for a null pointer.
///
/// # Safety
/// `buf` is null or has `len` readable bytes for as long as the result lives.
pub(crate) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> &'a [u8] {
    if buf.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(buf.cast(), len) }
}
