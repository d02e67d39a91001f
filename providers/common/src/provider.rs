//! A provider as the core knows it: `struct fi_provider` (fi_provider(7)).
use crate::abi::{fi_context, fi_fabric_attr, fi_info, fi_provider, fid_fabric};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};

/// The `getinfo` callback (fi_getinfo(3)).
pub type GetinfoFn = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;

/// The `fabric` callback (fi_fabric(3)); see [`crate::glue::open_fabric`].
pub type FabricFn = unsafe extern "C" fn(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int;

/// A provider's descriptor, one static in each plug-in. The core writes to it
/// (its `context` is the core's), which is why it is not plain data.
pub struct Provider(UnsafeCell<fi_provider>);

// SAFETY: only the core writes to it, and under its own lock.
unsafe impl Sync for Provider {}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Provider")
    }
}

impl Provider {
    /// A provider of this name and version, for this version of the API.
    pub const fn new(
        name: &'static CStr,
        version: u32,
        api_version: u32,
        getinfo: GetinfoFn,
        fabric: FabricFn,
    ) -> Self {
        Self(UnsafeCell::new(fi_provider {
            version,
            fi_version: api_version,
            context: fi_context { internal: [core::ptr::null_mut(); 4] },
            name: name.as_ptr(),
            getinfo: Some(getinfo),
            fabric: Some(fabric),
            cleanup: None,
        }))
    }

    /// With something to be done when the program ends (fi_provider(7)): the core
    /// calls it once, from its destructor, when other threads may still run.
    #[must_use]
    pub const fn with_cleanup(self, cleanup: unsafe extern "C" fn()) -> Self {
        // SAFETY: `self` is owned: nobody else has a pointer to it yet.
        unsafe { (*self.0.get()).cleanup = Some(cleanup) };
        self
    }

    /// The pointer to hand to the core with every call.
    pub const fn as_ptr(&self) -> *mut fi_provider {
        self.0.get()
    }
}
