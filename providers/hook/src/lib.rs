//! The parts that hook providers are built from (fi_hook(7)).
//!
//! A hook provider stands between programs and any provider, ours or not. To the
//! program every object is one of its own, whose tables pass each call on to the
//! provider's object and tell the [`Hook`] of it before and after. Nothing but
//! the public tables is used, and none beyond the end that it says it has: what a
//! provider lacks answers `-FI_ENOSYS`.
//!
//! Objects that the program hands to calls - to bind them, in attributes, in
//! arrays, in deferred work - are replaced by the provider's, and objects that
//! events name by the program's. Contexts and completions pass unchanged.
//!
//! - [`call`] is what a hook sees of a call.
//! - `object` is the program's side of an object, `fids` knows which is which.
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
pub use ofi_provider::provider::Provider;
pub use ofi_provider::sys::{has_more_rights, may_have_size};
pub use ofi_provider::{abi, error, heap, info, param};

use error::Result;

/// What a hook does about calls. It lives as long as anything opened through the
/// fabric it was installed on; any thread may call it.
pub trait Hook: Sized + Send + Sync + 'static {
    /// The hook's short name, as in `FI_HOOK`.
    const NAME: &'static str;
    /// What the hook keeps from the beginning of a call to its end.
    type Entry;

    /// The hook for one fabric, whose provider's name `log` logs in.
    ///
    /// # Errors
    /// Without it the fabric is used as it is.
    fn install(log: HookLog) -> Result<Self>;

    /// A call begins.
    fn enter(&self, call: &HookCall) -> Self::Entry;

    /// A call is over; `ret` is what it answers, 0 for texts.
    ///
    /// # Safety
    /// The pointers in `call` are those of the call that has just answered `ret`.
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

/// Makes a plug-in of a hook: the provider and its entry point. What else is to be done when it is
/// loaded may follow.
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
