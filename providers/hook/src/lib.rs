//! Common parts of hook providers (fi_hook(7)).
//!
//! A hook provider stands between programs and any provider of any library. The program sees only
//! objects of the hook. Their tables pass each call on to the provider's object, and notify the
//! [`Hook`] before and after it. Only the public tables are used, and never beyond their declared
//! size: functions missing in a provider return `-FI_ENOSYS`.
//!
//! Objects passed by the program to calls - to bind them, in attributes, in arrays, in deferred
//! work - are replaced by the provider's, and objects named by events are replaced by the
//! program's. Contexts and completions pass unchanged.
//!
//! - [`call`] is a hook's view of a call.
//! - `object` is the program's side of an object, `fids` maps the objects.
//! - `tables` are the calls, each written once.
pub mod call;
mod fids;
pub mod log;
mod object;
mod tables;
pub mod text;

pub use call::{
    Args, HookCall, HookCompletion, HookOp, OpenArgs, OpenAttr, Pieces, RegionArgs, TransferArgs,
};
pub use log::HookLog;
pub use object::open_fabric;
pub use ofi_provider::errno_of_entry;
pub use ofi_provider::provider::Provider;
pub use ofi_provider::sys::{has_more_rights, may_have_size};
pub use ofi_provider::{abi, error, heap, info, param};

use error::Result;

/// Actions of a hook on calls. It lives as long as any object opened through the fabric with the
/// hook; any thread may call it.
pub trait Hook: Sized + Send + Sync + 'static {
    /// The hook's short name, as in `FI_HOOK`.
    const NAME: &'static str;
    /// State of the hook from the start of a call to its end.
    type Entry;

    /// Creates the hook for one fabric; `log` logs in the name of its provider.
    ///
    /// # Errors
    /// After a failure the fabric is used without the hook.
    fn install(log: HookLog) -> Result<Self>;

    /// A call begins.
    fn enter(&self, call: &HookCall) -> Self::Entry;

    /// Runs at the end of a call; `ret` is its return value, 0 for texts.
    ///
    /// # Safety
    /// The pointers in `call` are those of the call just returning `ret`.
    unsafe fn leave(&self, entry: Self::Entry, call: &HookCall, ret: isize);

    /// The fabric is about to be closed.
    fn finish(&self) {}
}

/// The provider's object behind one of the program's; null if there is none.
pub fn inner_of(object: *mut abi::fid) -> *mut abi::fid {
    let inner = fids::inner(object);
    if inner == object { core::ptr::null_mut() } else { inner }
}

/// The program's object in front of one of the provider's; null if there is none.
pub fn outer_of(object: *mut abi::fid) -> *mut abi::fid {
    fids::outer(object).unwrap_or(core::ptr::null_mut())
}

/// Turns a hook into a plug-in: the provider and its entry point. Further actions at load time may
/// follow.
#[macro_export]
macro_rules! plug_in {
    ($name:literal, $hook:ty $(, $loaded:expr)?) => {
        static PROVIDER: $crate::Provider = $crate::Provider::new_hook(
            match core::ffi::CStr::from_bytes_with_nul(concat!("ofi_hook_", $name, "\0").as_bytes())
            {
                Ok(name) => name,
                Err(_) => panic!("a name without zeros"),
            },
            $crate::info::PROV_VERSION,
            $crate::info::API_VERSION,
            $crate::open_fabric::<$hook>,
        );

        /// The provider's object behind one of the program's, for the library; null if
        /// there is none.
        #[unsafe(no_mangle)]
        pub extern "C" fn ofi_hook_inner(object: *mut $crate::abi::fid) -> *mut $crate::abi::fid {
            $crate::inner_of(object)
        }

        /// The program's object in front of one of the provider's, for the library; null if
        /// there is none.
        #[unsafe(no_mangle)]
        pub extern "C" fn ofi_hook_outer(object: *mut $crate::abi::fid) -> *mut $crate::abi::fid {
            $crate::outer_of(object)
        }

        $crate::errno_of_entry!();

        /// The entry point of the plug-in (fi_provider(7)).
        #[unsafe(no_mangle)]
        pub extern "C" fn fi_prov_ini() -> *mut $crate::abi::fi_provider {
            if !$crate::heap::ready_or_errno() {
                return ::core::ptr::null_mut();
            }
            $($loaded;)?
            PROVIDER.as_ptr()
        }
    };
}
