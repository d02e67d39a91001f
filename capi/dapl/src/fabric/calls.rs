//! Calls of libfabric, loaded at run time.
use crate::layout::Handle;
use ofi::abi::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

/// A positive code of libfabric's.
pub(crate) type Code = c_int;
/// Requested API version: all features used here are in every later one.
pub(super) const API: u32 = (1 << 16) | 17;
/// The most segments of one operation.
pub(crate) const SEGMENTS: usize = 4;
/// Maximum bytes of a peer's data in an event.
pub(super) const EVENT_BYTES: usize = 1024;

pub(super) type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
pub(super) type FreeInfo = unsafe extern "C" fn(*mut fi_info);
pub(super) type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
pub(super) type OpenFabric =
    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;

/// Exports of the library; all else is in the tables of its objects.
pub(super) struct FabricCalls {
    pub(super) getinfo: GetInfo,
    pub(super) freeinfo: FreeInfo,
    pub(super) dupinfo: DupInfo,
    pub(super) fabric: OpenFabric,
}

/// Returns the function with this name, in a library never unloaded.
pub(super) fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a library that was opened, or the null that stands for all of the process.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

pub(super) fn open_library(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a string with its end; the library is never closed.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!library.is_null()).then_some(library)
}

pub(super) fn calls() -> Option<&'static FabricCalls> {
    static CALLS: OnceLock<Option<FabricCalls>> = OnceLock::new();
    CALLS
        .get_or_init(|| {
            let library = open_library(c"libfabric.so.1")?;
            // SAFETY: the functions of these names have these types (fi_getinfo(3), fi_fabric(3)).
            unsafe {
                Some(FabricCalls {
                    getinfo: transmute::<*mut c_void, GetInfo>(symbol(library, c"fi_getinfo")?),
                    freeinfo: transmute::<*mut c_void, FreeInfo>(symbol(library, c"fi_freeinfo")?),
                    dupinfo: transmute::<*mut c_void, DupInfo>(symbol(library, c"fi_dupinfo")?),
                    fabric: transmute::<*mut c_void, OpenFabric>(symbol(library, c"fi_fabric")?),
                })
            }
        })
        .as_ref()
}

/// Calls a function of an object's table, or returns `$missing` if the object has no such call.
macro_rules! call {
    ($missing:expr, $object:expr, $($table:ident).+, $slot:ident $(, $argument:expr)*) => {{
        let object = $object;
        // SAFETY: the object is open, as is its table, and the arguments are those of the call of
        // this name; buffers belong to regions that the application registered and answers for.
        unsafe {
            let table = (*object).$($table).+;
            match if table.is_null() { None } else { (*table).$slot } {
                Some(function) => function(object $(, $argument)*),
                None => $missing,
            }
        }
    }};
}

pub(super) fn close(object: *mut fid) {
    call!(0, object, ops, close);
}

pub(super) fn code(answer: c_int) -> Result<(), Code> {
    if answer == 0 { Ok(()) } else { Err(answer.saturating_neg().max(1)) }
}

pub(super) fn long_code(answer: isize) -> Result<(), Code> {
    code(answer as c_int)
}

pub(super) fn number(context: *mut c_void) -> Handle {
    context.addr()
}

pub(super) fn context(number: Handle) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}
