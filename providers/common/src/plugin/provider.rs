//! A provider as the core knows it: `struct fi_provider` (fi_provider(7)).
use crate::abi::{fi_context, fi_fabric_attr, fi_info, fi_provider, fid_fabric};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::CString;

/// The `getinfo` callback (fi_getinfo(3)).
pub type GetinfoFn = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;

/// The `fabric` callback (fi_fabric(3)); see [`crate::api::open_fabric`].
pub type FabricFn = unsafe extern "C" fn(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int;

/// Descriptor of a provider, one static in each plug-in. The core writes to it (its `context`
/// belongs to the core), so it is not ordinary data.
pub struct Provider {
    c: UnsafeCell<fi_provider>,
    handed_out: AtomicBool,
    /// Provider with parameters valid if this provider's own are not set.
    base: Option<&'static Provider>,
}

// SAFETY: only the core writes to it, under its own lock, and before it knows
// of it `provider_entry`, once.
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
        Self::of(name, version, api_version, Some(getinfo), fabric)
    }

    /// Returns a provider without entry points; [`hand_out_with`](Self::hand_out_with) adds them,
    /// so the called code can name the provider in its log lines.
    pub const fn named(name: &'static CStr, version: u32, api_version: u32) -> Self {
        Self {
            c: UnsafeCell::new(fi_provider {
                version,
                fi_version: api_version,
                context: fi_context { internal: [core::ptr::null_mut(); 4] },
                name: name.as_ptr(),
                getinfo: None,
                fabric: None,
                cleanup: None,
            }),
            handed_out: AtomicBool::new(false),
            base: None,
        }
    }

    /// Makes the parameters of another provider (`FI_TCP_PEERS`) valid for this one if its own
    /// (`FI_SOCKETS_PEERS`) are not set: for a provider implementing the other one under another
    /// name. Only the other's name is needed for it.
    #[must_use]
    pub const fn with_parameters_of(mut self, base: &'static Provider) -> Self {
        self.base = Some(base);
        self
    }

    /// Returns the providers with parameters valid for this one, itself first.
    pub fn and_bases(&'static self) -> impl Iterator<Item = &'static Provider> {
        std::iter::successors(Some(self), |prov| prov.base)
    }

    /// Returns a hook provider: it is never queried for infos, and its fabrics wrap those of others
    /// (fi_hook(7)).
    pub const fn new_hook(
        name: &'static CStr,
        version: u32,
        api_version: u32,
        fabric: FabricFn,
    ) -> Self {
        Self::of(name, version, api_version, None, fabric)
    }

    const fn of(
        name: &'static CStr,
        version: u32,
        api_version: u32,
        getinfo: Option<GetinfoFn>,
        fabric: FabricFn,
    ) -> Self {
        let mut provider = Self::named(name, version, api_version);
        let c = provider.c.get_mut();
        (c.getinfo, c.fabric) = (getinfo, Some(fabric));
        provider
    }

    /// Hands the provider to the core, at the start of a plug-in's `fi_prov_ini`: with another
    /// name, if the user wants one, the first time.
    pub fn provider_entry(&'static self, name: Option<CString>) -> *mut fi_provider {
        if !self.handed_out.swap(true, Ordering::AcqRel) {
            if let Some(name) = name {
                // SAFETY: the core, which reads the name, does not know us yet. The
                // name stays for as long as the plug-in does.
                unsafe { (*self.c.get()).name = CString::into_raw(name) };
            }
        }
        self.as_ptr()
    }

    /// Completes a provider with only a name by these entry points and returns it.
    pub fn hand_out_with(
        &'static self,
        name: Option<CString>,
        getinfo: GetinfoFn,
        fabric: FabricFn,
    ) -> *mut fi_provider {
        if !self.handed_out.load(Ordering::Acquire) {
            let c = self.c.get();
            // SAFETY: the core, which reads these, does not know us yet: it asks for the
            // provider first, and from one thread.
            unsafe { ((*c).getinfo, (*c).fabric) = (Some(getinfo), Some(fabric)) };
        }
        self.provider_entry(name)
    }

    /// The provider's name.
    pub fn name(&self) -> &CStr {
        // SAFETY: the name is a C string that stays; it is changed before the core, and so any
        // application, knows the provider.
        unsafe { CStr::from_ptr((*self.c.get()).name) }
    }

    /// Adds a cleanup function for the end of the program (fi_provider(7)): the core calls it once,
    /// from its destructor, possibly with other threads still running.
    #[must_use]
    pub const fn with_cleanup(self, cleanup: unsafe extern "C" fn()) -> Self {
        // SAFETY: `self` is owned, and no other pointer to it exists yet.
        unsafe { (*self.c.get()).cleanup = Some(cleanup) };
        self
    }

    /// The pointer to hand to the core with every call.
    pub const fn as_ptr(&self) -> *mut fi_provider {
        self.c.get()
    }
}

/// Defines the entry point of a plug-in under the name expected by the core (fi_provider(7)). The
/// expression returns the [`Provider`]'s pointer.
#[macro_export]
macro_rules! plug_in {
    ($provider:expr) => {
        $crate::errno_of_entry!();

        /// The entry point of the plug-in (fi_provider(7)).
        // Programs that fuzz have several providers linked to them.
        #[cfg_attr(not(fuzzing), unsafe(no_mangle))]
        pub extern "C" fn fi_prov_ini() -> *mut $crate::abi::fi_provider {
            if !$crate::plugin_loaded() {
                return ::core::ptr::null_mut();
            }
            $provider
        }
    };
}

/// Exports a symbol for the core: `errno` is `ENOMEM` after an entry point without memory.
#[macro_export]
macro_rules! errno_of_entry {
    () => {
        /// Tells the core to read `errno` if the entry point returns null.
        #[allow(non_upper_case_globals, reason = "a name of C")]
        #[cfg_attr(not(fuzzing), unsafe(no_mangle))]
        pub static ofi_errno_of_fi_prov_ini: u8 = 1;
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn no_getinfo(
        _version: u32,
        _node: *const c_char,
        _service: *const c_char,
        _flags: u64,
        _hints: *const fi_info,
        _info: *mut *mut fi_info,
    ) -> c_int {
        -1
    }

    unsafe extern "C" fn no_fabric(
        _attr: *mut fi_fabric_attr,
        _fabric: *mut *mut fid_fabric,
        _context: *mut c_void,
    ) -> c_int {
        -1
    }

    #[test]
    fn a_provider_is_renamed_before_the_core_knows_it_and_never_after() {
        static PROV: Provider = Provider::new(c"zed", 0, 0, no_getinfo, no_fabric);
        // SAFETY: a static provider with a C string for a name.
        let name = |prov: *mut fi_provider| unsafe { CStr::from_ptr((*prov).name) };
        assert_eq!(name(PROV.as_ptr()), c"zed");
        assert_eq!(name(PROV.provider_entry(Some(c"other".into()))), c"other");
        assert_eq!(name(PROV.provider_entry(Some(c"third".into()))), c"other");
        assert_eq!(PROV.name(), c"other");
    }

    #[test]
    fn parameters_of_another_provider_come_behind_its_own() {
        static OLD: Provider = Provider::named(c"old", 0, 0);
        static NEW: Provider = Provider::named(c"new", 0, 0).with_parameters_of(&OLD);
        let names = NEW.and_bases().map(Provider::name);
        assert_eq!(names.collect::<Vec<_>>(), [c"new", c"old"]);
        assert_eq!(OLD.and_bases().count(), 1);
    }

    #[test]
    fn provider_with_only_a_name_gets_entry_points_on_export() {
        static PROV: Provider = Provider::named(c"zed", 3, 4);
        let prov = PROV.hand_out_with(None, no_getinfo, no_fabric);
        // SAFETY: a static provider without other references.
        let prov = unsafe { &*prov };
        assert!(prov.getinfo.is_some() && prov.fabric.is_some());
        assert_eq!((prov.version, prov.fi_version), (3, 4));
    }
}
