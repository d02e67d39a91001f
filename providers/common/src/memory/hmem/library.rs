//! Loading of the library of an accelerator.
use crate::error::Error;
use crate::provider::Provider;
use core::ffi::{CStr, c_void};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Result of loading; the error is a reason for the user.
pub(super) type Loaded<T> = core::result::Result<T, String>;

/// Logs a copy outside of the memory of its device, never started. Returns -FI_EFAULT.
#[cold]
pub(super) fn reject_copy(provider: &'static Provider, addr: usize, len: usize) -> Error {
    crate::log_sparsely!(
        provider,
        WARN,
        DOMAIN,
        "copy failed: {len} bytes at {addr:#x}: no memory of the device"
    );
    Error::FAULT
}

/// Keeps the code of this plug-in, with the function at this address, loaded for the rest of the
/// process. Returns false if the system cannot.
pub(super) fn keep_own_code(function: *const c_void) -> bool {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: the system writes to the structure if it knows the address. The name stays while the
    // code is loaded, and opening loaded code runs nothing.
    unsafe {
        libc::dladdr(function, info.as_mut_ptr()) != 0
            && !libc::dlopen(info.assume_init().dli_fname, flags).is_null()
    }
}

/// Logs a failed call for memory shared with other processes. It is copied instead. Returns
/// -FI_EOPNOTSUPP.
#[cold]
pub(super) fn cannot_share(provider: &'static Provider, call: &str, name: &str) -> Error {
    crate::log_sparsely!(provider, INFO, DOMAIN, "{call}: {name}");
    Error::OPNOTSUPP
}

/// Library of an accelerator; it stays loaded.
pub(super) struct DeviceLibrary(Library);

impl DeviceLibrary {
    /// Loads the library of this name. Fails with the reason of the loader.
    pub(super) fn load(name: &str) -> Loaded<Self> {
        // SAFETY: loading it runs its code, which an application with such an accelerator runs as
        // well.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        library.map(Self).map_err(|error| error.to_string())
    }

    /// Returns the address of a function. Fails with the reason of the loader.
    pub(super) fn address(&self, name: &CStr) -> Loaded<*const c_void> {
        // SAFETY: the address of a function, of any type.
        let address = unsafe { self.0.get::<*const c_void>(name.to_bytes_with_nul()) };
        address.map(|address| *address).map_err(|error| error.to_string())
    }

    /// Keeps the library loaded for the rest of the process.
    pub(super) fn keep(self) {
        core::mem::forget(self.0);
    }
}

/// Defines a table of a library's functions, with a method `load` filling it.
macro_rules! calls {
    ($(#[$meta:meta])* struct $table:ident { $($field:ident: $name:literal $type:ty),+ $(,)? }) => {
        $(#[$meta])*
        struct $table { $($field: $type),+ }

        impl $table {
            /// Finds the functions. Fails with the reason of the loader.
            fn load(library: &DeviceLibrary) -> Loaded<Self> {
                // SAFETY: the function of each name has this type, by the documentation of the
                // library.
                Ok(unsafe {
                    Self {
                        $($field: core::mem::transmute::<*const c_void, $type>(
                            library.address($name)?
                        )),+
                    }
                })
            }
        }
    };
}

pub(super) use calls;
