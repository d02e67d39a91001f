//! Recognition of this project's library by its plug-ins.
use crate::abi;
use core::ffi::{CStr, c_void};
use std::mem::MaybeUninit;

/// A function exported only by this project's library: elsewhere it is an inline of the headers.
const OWN_CALL: (&CStr, &CStr) = (c"fi_barrier", c"FABRIC_OFI_1.0");

/// Returns true if this project's library has loaded the plug-in. A provider for other providers
/// has no use in the original: its providers access private structures of each other.
pub fn is_own_core() -> bool {
    let call = abi::fi_version as *const c_void;
    let mut found_at = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the function is the library's that was linked; what is written is read only if there was success, and
    // the file's name stays as long as the library is loaded. The library is loaded, so that opening it runs nothing.
    unsafe {
        if libc::dladdr(call, found_at.as_mut_ptr()) == 0 {
            return false;
        }
        let file = found_at.assume_init().dli_fname;
        let library = libc::dlopen(file, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return false;
        }
        let (name, version) = OWN_CALL;
        #[cfg(target_env = "gnu")]
        let found = libc::dlvsym(library, name.as_ptr(), version.as_ptr());
        // Other C libraries know no versions.
        #[cfg(not(target_env = "gnu"))]
        let found = (libc::dlsym(library, name.as_ptr()), version).0;
        libc::dlclose(library);
        !found.is_null()
    }
}
