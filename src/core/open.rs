//! `fi_open`: parts of the library accepting objects of programs (fi_open(3), fi_import_log), and
//! the published statistics of the process's endpoints (`stats`).
use super::{monitor, stats};
use crate::log;
use core::ffi::{CStr, c_int, c_void};
use ofi::abi::{FI_CLASS_LOG, FI_CLASS_MR_CACHE, fi_ops, fi_ops_log, fid, fid_logging};
use ofi::boundary::ffi_guard;
use ofi::error::{Error, Result};
use ofi::fid::{FidObject, ops};
use ofi::info::version;
use std::sync::Arc;

/// Object returned by `fi_open`; a program binds an own object to it.
#[repr(C)]
struct OpenPart(fid);

// SAFETY: the pointers are followed only by C, from any thread.
unsafe impl Send for OpenPart {}
// SAFETY: as above.
unsafe impl Sync for OpenPart {}

// SAFETY: `repr(C)`, a `fid` first, and C gets it from `into_c` alone.
unsafe impl FidObject<fid> for OpenPart {}

static LOG_OPS: fi_ops = fi_ops { bind: Some(bind_log), ..ops(close_part) };
static MR_CACHE_OPS: fi_ops = fi_ops { bind: Some(bind_monitor), ..ops(close_part) };
/// The operations of the program's own log object, from the moment it is bound.
static BOUND_LOG_OPS: fi_ops = ops(close_log);

/// `fi_open`. Fails with `-FI_ENOSYS` for an unknown name.
///
/// # Safety
/// `attr` has `attr_len` bytes of the type required by the part with this name.
pub(super) unsafe fn open(
    api: u32,
    name: &CStr,
    attr: *const c_void,
    attr_len: usize,
    flags: u64,
    context: *mut c_void,
) -> Result<*mut fid> {
    let is = |part: &CStr| name.to_bytes().eq_ignore_ascii_case(part.to_bytes());
    if name == ofi::monitor::IMPORTED_MONITOR {
        // SAFETY: by this function's contract.
        return unsafe { monitor::open(attr, attr_len, flags, context) };
    }
    let part = match () {
        () if is(c"logging") => Some((FI_CLASS_LOG, &LOG_OPS)),
        () if is(c"mr_cache") => Some((FI_CLASS_MR_CACHE, &MR_CACHE_OPS)),
        () if is(c"stats") => None,
        () => return Err(Error::NOSYS),
    };
    if api < version(1, 13) || attr_len != 0 {
        return Err(Error::INVAL);
    }
    if flags != 0 {
        return Err(Error::BADFLAGS);
    }
    let Some((fclass, ops)) = part else { return Ok(stats::open(context)) };
    if fclass == FI_CLASS_LOG && log::is_imported() {
        return Err(Error::ALREADY);
    }
    let fid = fid { fclass: fclass as usize, context, ops: core::ptr::from_ref(ops).cast_mut() };
    Ok(Arc::new(OpenPart(fid)).into_c())
}

unsafe extern "C" fn close_part(part: *mut fid) -> c_int {
    ffi_guard("fi_close", || -> Result {
        if part.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: these operations belong to what `open` made, closed once.
        drop(unsafe { OpenPart::take(part) });
        Ok(())
    })
}

/// The object to import, if it is of this class and there are no flags: the
/// original answers the same to both mistakes.
///
/// # Safety
/// `with` is null or a live object of the program's.
unsafe fn to_import<'a>(with: *mut fid, class: c_int, flags: u64) -> Result<&'a mut fid> {
    // SAFETY: by this function's contract.
    let fid = unsafe { with.as_mut() }.ok_or(Error::INVAL)?;
    if flags != 0 || fid.fclass != class as usize {
        return Err(Error::INVAL);
    }
    Ok(fid)
}

unsafe extern "C" fn bind_log(_part: *mut fid, with: *mut fid, flags: u64) -> c_int {
    ffi_guard("fi_import_fid", || -> Result {
        // SAFETY: fi_import_fid(3): a live object of the program's, or null.
        let fid = unsafe { to_import(with, FI_CLASS_LOG, flags) }?;
        // SAFETY: objects of that class are of that type.
        let ops = unsafe { (*with.cast::<fid_logging>()).ops.as_ref() }.ok_or(Error::INVAL)?;
        if ops.size < size_of::<fi_ops_log>() {
            return Err(Error::INVAL);
        }
        if !log::import(with.cast()) {
            return Err(Error::ALREADY);
        }
        fid.ops = (&raw const BOUND_LOG_OPS).cast_mut();
        Ok(())
    })
}

unsafe extern "C" fn close_log(with: *mut fid) -> c_int {
    ffi_guard("fi_close", || -> Result {
        log::unimport(with.cast());
        Ok(())
    })
}

unsafe extern "C" fn bind_monitor(_part: *mut fid, with: *mut fid, flags: u64) -> c_int {
    ffi_guard("fi_import_fid", || -> Result {
        // SAFETY: fi_import_fid(3): a live object of the program's, or null.
        unsafe {
            to_import(with, ofi::abi::FI_CLASS_MEM_MONITOR, flags)?;
            monitor::import(with.cast())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null_mut;

    #[test]
    fn library_parts_open_by_name_as_documented() {
        let open = |api, name, len, flags| {
            // SAFETY: without attributes; just opened, and closed once.
            unsafe {
                open(api, name, core::ptr::null(), len, flags, null_mut()).map(|fid| {
                    let class = (*fid).fclass as c_int;
                    assert_eq!(close_part(fid), 0);
                    class
                })
            }
        };
        for (name, class) in [(c"logging", FI_CLASS_LOG), (c"mr_cache", FI_CLASS_MR_CACHE)] {
            assert_eq!(open(version(1, 13), name, 0, 0), Ok(class));
            assert_eq!(open(version(1, 12), name, 0, 0), Err(Error::INVAL));
            assert_eq!(open(version(1, 13), name, 8, 0), Err(Error::INVAL));
            assert_eq!(open(version(1, 13), name, 0, 1), Err(Error::BADFLAGS));
        }
        assert_eq!(open(version(1, 13), c"stats", 8, 0), Err(Error::INVAL));
        assert_eq!(open(version(1, 13), c"MR_Cache", 0, 0), Ok(FI_CLASS_MR_CACHE));
        assert_eq!(open(version(1, 13), c"hmem", 0, 0), Err(Error::NOSYS));
    }
}
