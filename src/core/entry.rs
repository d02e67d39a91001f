//! Functions exported by `libfabric.so.1`, one implementation for each version of each: null
//! checks, conversions and nothing more.
//!
//! `fi_getinfo`, `fi_freeinfo` and `fi_dupinfo` exist once per API version of `struct fi_info`: an
//! older caller's structures are shorter. The returned ones always have the current version; its
//! beginning is that of the older ones.
#![allow(clippy::missing_safety_doc, reason = "each is as its manual page, named here, says")]
use crate::{getinfo, log, open, params, start};
use core::cell::{Cell, OnceCell};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use ofi::abi::*;
use ofi::boundary::{CancelDisabled, ffi_guard, ffi_guard_if_memory};
use ofi::error::{Error, Result, ofi_text};
use ofi::info::{API_VERSION, ApiLevel, InfoQuery, InfoRef, dup_raw, free_raw, tostr, version};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Like [`ffi_guard`], for functions returning something other than a code.
fn guard<R>(panicked: R, body: impl FnOnce() -> R) -> R {
    let _uncancelled = CancelDisabled::new();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(panicked)
}

/// # Safety
/// `string` is null or a C string outliving `'a`.
unsafe fn optional<'a>(string: *const c_char) -> Option<&'a CStr> {
    // SAFETY: by this function's contract.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })
}

/// Hints of an older generation, brought up to date for a call.
struct Hints(*mut fi_info);

impl Drop for Hints {
    fn drop(&mut self) {
        // SAFETY: made by `dup_raw`, or null.
        unsafe { free_raw(self.0) };
    }
}

/// # Safety
/// As for fi_getinfo(3), with hints of this API version.
unsafe fn getinfo_of(
    api_level: ApiLevel,
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    ffi_guard_if_memory("fi_getinfo", || -> Result {
        // SAFETY: by this function's contract.
        unsafe {
            let info = info.as_mut().ok_or(Error::INVAL)?;
            *info = ptr::null_mut();
            let copied = if hints.is_null() || api_level == ApiLevel::CURRENT {
                None
            } else {
                Some(Hints(dup_raw(hints, api_level)?.as_ptr()))
            };
            let hints = copied.as_ref().map_or(hints, |copied| copied.0);
            let request = InfoQuery {
                version,
                node: optional(node),
                service: optional(service),
                flags,
                hints: InfoRef::from_c(hints).ok(),
            };
            *info = getinfo::getinfo(request)?.into_raw();
        }
        Ok(())
    })
}

macro_rules! per_level {
    ($($api_level:ident: $getinfo:ident, $dupinfo:ident;)+) => {$(
        /// fi_getinfo(3).
        pub unsafe extern "C" fn $getinfo(
            version: u32,
            node: *const c_char,
            service: *const c_char,
            flags: u64,
            hints: *const fi_info,
            info: *mut *mut fi_info,
        ) -> c_int {
            // SAFETY: by the contract of the caller, linked against this API version.
            unsafe { getinfo_of(ApiLevel::$api_level, version, node, service, flags, hints, info) }
        }

        /// fi_dupinfo, fi_getinfo(3); of null, an empty info; null without memory.
        pub unsafe extern "C" fn $dupinfo(info: *const fi_info) -> *mut fi_info {
            // SAFETY: by the contract of the caller, linked against this API version.
            guard(ptr::null_mut(), || unsafe { dup_raw(info, ApiLevel::$api_level) }
                .map_or(ptr::null_mut(), |copy| copy.as_ptr()))
        }
    )+};
}

per_level! {
    V1_0: getinfo_1_0, dupinfo_1_0;
    V1_1: getinfo_1_1, dupinfo_1_1;
    V1_2: getinfo_1_2, dupinfo_1_2;
    V1_3: getinfo_1_3, dupinfo_1_3;
    V1_7: getinfo_1_7, dupinfo_1_7;
    V1_8: getinfo_1_8, dupinfo_1_8;
    V1_9: getinfo_1_9, dupinfo_1_9;
    V1_10: getinfo_1_10, dupinfo_1_10;
}

/// fi_freeinfo, fi_getinfo(3).
pub unsafe extern "C" fn freeinfo(info: *mut fi_info) {
    // SAFETY: the caller's to give away.
    guard((), || unsafe { free_raw(info) });
}

/// fi_version(3).
pub extern "C" fn fi_version() -> u32 {
    API_VERSION
}

/// fi_strerror, fi_errno(3); the text of a system error lasts until the next call.
pub extern "C" fn strerror(code: c_int) -> *const c_char {
    match ofi_text(code) {
        Some(text) => text.as_ptr(),
        // SAFETY: any number is fine.
        None => unsafe { libc::strerror(code.saturating_abs()) },
    }
}

/// fi_fabric(3).
pub unsafe extern "C" fn fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_fabric", || {
        // SAFETY: fi_fabric(3): valid attributes and a place, or null.
        unsafe { getinfo::fabric(attr, fabric.as_mut().ok_or(Error::INVAL)?, context) }
    })
}

/// fi_fabric(3) of the version before applications passed their version in it.
pub unsafe extern "C" fn fabric_1_0(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_fabric", || {
        // SAFETY: fi_fabric(3); the version lies in what was padding then.
        unsafe {
            let mut attr = fi_fabric_attr {
                api_version: version(1, 0),
                ..attr.as_ref().copied().ok_or(Error::INVAL)?
            };
            getinfo::fabric(&mut attr, fabric.as_mut().ok_or(Error::INVAL)?, context)
        }
    })
}

/// fi_fabric2, fi_fabric(3); flags must be 0.
pub unsafe extern "C" fn fabric2(
    info: *mut fi_info,
    fabric: *mut *mut fid_fabric,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_fabric2", || {
        if flags != 0 {
            return Err(Error::INVAL);
        }
        // SAFETY: fi_fabric(3): an info and a place, or null.
        unsafe {
            let info = info.as_ref().ok_or(Error::INVAL)?;
            getinfo::fabric(info.fabric_attr, fabric.as_mut().ok_or(Error::INVAL)?, context)
        }
    })
}

/// fi_open(3).
pub unsafe extern "C" fn fi_open(
    version: u32,
    name: *const c_char,
    attr: *mut c_void,
    attr_len: usize,
    flags: u64,
    fid: *mut *mut fid,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_open", || -> Result {
        start()?;
        // SAFETY: fi_open(3): a name, attributes and a place, or null.
        unsafe {
            let out = fid.as_mut().ok_or(Error::INVAL)?;
            let name = optional(name).ok_or(Error::INVAL)?;
            *out = open::open(version, name, attr, attr_len, flags, context)?;
        }
        Ok(())
    })
}

/// fi_tostr_r, fabric(7): the text, cut off to the buffer; null without one.
pub unsafe extern "C" fn tostr_r(
    buf: *mut c_char,
    len: usize,
    data: *const c_void,
    datatype: c_enum<fi_type>,
) -> *mut c_char {
    guard(ptr::null_mut(), || {
        if buf.is_null() || len == 0 {
            return ptr::null_mut();
        }
        // SAFETY: fabric(7): `data` is of that type, or null.
        let Some(text) = (unsafe { tostr::value(data, datatype.raw()) }) else {
            return ptr::null_mut();
        };
        let text = &text.as_bytes()[..text.len().min(len - 1)];
        // SAFETY: `buf` has `len` bytes, and the text is shorter.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), text.len());
            buf.add(text.len()).write(0);
        }
        buf
    })
}

/// fi_tostr, fabric(7): the text, until this thread asks for another.
pub unsafe extern "C" fn tostr(data: *const c_void, datatype: c_enum<fi_type>) -> *mut c_char {
    thread_local! {
        // On the heap: a program that is linked with the library has what is thread-local on each stack.
        static BUF: OnceCell<Box<[Cell<c_char>]>> = const { OnceCell::new() };
    }
    guard(ptr::null_mut(), || {
        let buf = BUF.try_with(|buf| {
            buf.get_or_init(|| vec![Cell::new(0); tostr::BUFFER].into()).as_ptr().cast_mut()
        });
        // SAFETY: the caller's data, and a buffer that only this thread writes to.
        buf.map_or(ptr::null_mut(), |buf| unsafe {
            tostr_r(buf.cast(), tostr::BUFFER, data, datatype)
        })
    })
}

/// fi_log_enabled, fi_provider(7).
pub unsafe extern "C" fn log_enabled(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
) -> c_int {
    // SAFETY: the caller's provider.
    guard(0, || c_int::from(unsafe { log::enabled(prov, level, subsys) }))
}

/// fi_log_ready, fi_provider(7).
pub unsafe extern "C" fn log_ready(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
    showtime: *mut u64,
) -> c_int {
    guard(0, || {
        // SAFETY: the caller's provider and place.
        unsafe {
            showtime.as_mut().map_or(0, |time| c_int::from(log::ready(prov, level, subsys, time)))
        }
    })
}

/// fi_log, fi_provider(7), after its text has been formatted.
pub unsafe extern "C" fn log_text(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
    func: *const c_char,
    line: c_int,
    text: *const c_char,
) {
    guard((), || {
        // SAFETY: the caller's provider and C strings.
        unsafe {
            if let Some(text) = optional(text) {
                log::log(prov, level, subsys, log::func_name(func), line, text);
            }
        }
    });
}

/// Returns the name under which a provider's parameters are known.
///
/// # Safety
/// `prov` is null or a live provider.
unsafe fn param_owner<'a>(prov: *const fi_provider) -> Result<Option<&'a CStr>> {
    // SAFETY: by this function's contract.
    unsafe {
        match prov.as_ref() {
            None => Ok(None),
            Some(prov) => optional(prov.name).map(Some).ok_or(Error::INVAL),
        }
    }
}

/// fi_param_define, fi_provider(7), after its help has been formatted.
pub unsafe extern "C" fn param_define_text(
    prov: *const fi_provider,
    name: *const c_char,
    kind: c_enum<fi_param_type>,
    help: *const c_char,
) -> c_int {
    ffi_guard("fi_param_define", || -> Result {
        // SAFETY: the caller's provider and C strings.
        unsafe {
            let owner = param_owner(prov)?;
            let name = optional(name).ok_or(Error::INVAL)?;
            let help = optional(help).filter(|help| !help.is_empty()).ok_or(Error::INVAL)?;
            params::define(owner, name, kind, help);
        }
        Ok(())
    })
}

/// fi_param_get, fi_provider(7).
pub unsafe extern "C" fn param_get(
    prov: *mut fi_provider,
    name: *const c_char,
    value: *mut c_void,
) -> c_int {
    ffi_guard("fi_param_get", || -> Result {
        if value.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: the caller's provider and C string, and a place for a value
        // of the type with which the parameter was defined.
        unsafe {
            let owner = param_owner(prov)?;
            match params::get(owner, optional(name).ok_or(Error::INVAL)?)? {
                params::Value::String(string) => value.cast::<*const c_char>().write(string),
                params::Value::Int(number) | params::Value::Bool(number) => {
                    value.cast::<c_int>().write(number);
                }
                params::Value::Size(size) => value.cast::<usize>().write(size),
            }
        }
        Ok(())
    })
}

/// fi_getparams, fi_provider(7).
pub unsafe extern "C" fn getparams(list: *mut *mut fi_param, count: *mut c_int) -> c_int {
    ffi_guard("fi_getparams", || -> Result {
        start()?;
        // SAFETY: the caller's places, or null.
        unsafe {
            let (list, count) = (list.as_mut(), count.as_mut());
            let (Some(list), Some(count)) = (list, count) else { return Err(Error::INVAL) };
            let (params, number) = params::list()?;
            (*list, *count) = (params, number as c_int);
        }
        Ok(())
    })
}

/// fi_freeparams, fi_provider(7).
pub unsafe extern "C" fn freeparams(list: *mut fi_param) {
    // SAFETY: the caller's to give away.
    guard((), || unsafe { params::free(list) });
}
