//! Texts of the program's structures and addresses for hooks.
use crate::HookCall;
use crate::abi::*;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use ofi_provider::info::{addr, tostr};

/// A pointer as C writes it.
#[derive(Clone, Copy, Debug)]
pub struct Pointer(pub usize);

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("(nil)"),
            address => write!(f, "{address:#x}"),
        }
    }
}

/// Returns the text of `fi_tostr` without the final newline.
///
/// # Safety
/// `data` is null or of this type.
pub unsafe fn dump(data: *const c_void, kind: fi_type) -> String {
    // SAFETY: by this function's contract.
    let text = unsafe { tostr::value(data, kind as u32) }.unwrap_or_default();
    text.strip_suffix('\n').unwrap_or(&text).to_owned()
}

/// Returns the text of an address in this format, `(null)` for a kind without a text.
///
/// # Safety
/// `address` is null, or an address accepted by an endpoint of this format.
pub unsafe fn address(format: u32, address: *const c_void) -> String {
    let text = match format as c_int {
        _ if address.is_null() => None,
        FI_ADDR_STR => {
            // SAFETY: by this function's contract a text that ends in a zero.
            let text = unsafe { CStr::from_ptr(address.cast()) };
            Some(text.to_string_lossy().into_owned())
        }
        FI_FORMAT_UNSPEC | FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IN6 | FI_SOCKADDR_IP => {
            // SAFETY: every socket address starts with its family.
            let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
            let len = match c_int::from(family) {
                libc::AF_INET => size_of::<libc::sockaddr_in>(),
                libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
                _ => 0,
            };
            // SAFETY: an address of that family has that length.
            let bytes = unsafe { core::slice::from_raw_parts(address.cast::<u8>(), len) };
            addr::from_sock(bytes).map(|addr| addr::to_string(&addr))
        }
        _ => None,
    };
    text.unwrap_or_else(|| "(null)".to_owned())
}

/// Returns the completion queue's text for a provider error.
///
/// # Safety
/// `call` belongs to an open completion queue.
pub unsafe fn cq_strerror(call: &HookCall, prov_errno: c_int, data: *const c_void) -> String {
    let mut buf = [0 as c_char; 256];
    // SAFETY: by this function's contract the object is a queue, and all of its tables'
    // slots are there, because it is one of ours; the answer is a text or null.
    unsafe {
        let cq = call.object.cast_mut().cast::<fid_cq>();
        let Some(strerror) = (*(*cq).ops).strerror else { return String::new() };
        let text = strerror(cq, prov_errno, data, buf.as_mut_ptr(), buf.len());
        if text.is_null() {
            return String::new();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sockets_and_texts_are_written_out() {
        let v4 = [2_u8, 0, 0x12, 0x34, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: addresses of these formats.
        unsafe {
            assert_eq!(address(0, v4.as_ptr().cast()), "fi_sockaddr_in://127.0.0.1:4660");
            assert_eq!(address(FI_ADDR_STR as u32, c"fi_shm://x".as_ptr().cast()), "fi_shm://x");
            assert_eq!(address(FI_ADDR_EFA as u32, v4.as_ptr().cast()), "(null)");
            assert_eq!(address(0, core::ptr::null()), "(null)");
        }
    }
}
