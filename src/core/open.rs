//! `fi_open`: objects by which programs give the library services of theirs
//! (fi_open(3), fi_import_log).
use crate::abi::{FI_CLASS_LOG, fi_ops, fi_ops_log, fid, fid_logging};
use crate::boundary::answer;
use crate::core::log;
use crate::error::{Error, Result};
use crate::fid::Embeds;
use crate::info::version;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use std::sync::Arc;

/// What `fi_open("logging")` gives: a program binds a log of its own to it.
#[repr(C)]
struct OpenLog(fid_logging);

// SAFETY: pointers that nobody follows but C, who may use any thread.
unsafe impl Send for OpenLog {}
// SAFETY: as above.
unsafe impl Sync for OpenLog {}

// SAFETY: `repr(C)`, a `fid_logging` first, and C gets it from `into_c` alone.
unsafe impl Embeds<fid> for OpenLog {}

struct Ops(fi_ops);
// SAFETY: functions and a size.
unsafe impl Sync for Ops {}

/// Of the object `fi_open` gives.
static OPEN_OPS: Ops = Ops(ops(close_open, Some(bind)));
/// Of the program's own object, from the moment it is bound.
static BOUND_OPS: Ops = Ops(ops(close_bound, None));

type Close = unsafe extern "C" fn(*mut fid) -> c_int;
type Bind = unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int;

const fn ops(close: Close, bind: Option<Bind>) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: Some(match bind {
            Some(bind) => bind,
            None => no_bind,
        }),
        control: Some(no_control),
        ops_open: Some(no_ops),
        tostr: None,
        ops_set: Some(no_ops_set),
    }
}

/// `fi_open`: `-FI_ENOSYS` for a name that is not known.
pub(super) fn open(
    api: u32,
    name: &CStr,
    attr_len: usize,
    flags: u64,
    context: *mut c_void,
) -> Result<*mut fid> {
    if name != c"logging" {
        return Err(Error::NOSYS);
    }
    if api < version(1, 13) || attr_len != 0 {
        return Err(Error::INVAL);
    }
    if flags != 0 {
        return Err(Error::BADFLAGS);
    }
    let fid =
        fid { fclass: FI_CLASS_LOG as usize, context, ops: (&raw const OPEN_OPS.0).cast_mut() };
    Ok(Arc::new(OpenLog(fid_logging { fid, ops: ptr::null_mut() })).into_c())
}

unsafe extern "C" fn close_open(open: *mut fid) -> c_int {
    answer("fi_close", || -> Result {
        if open.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: these operations belong to what `open` made, closed once.
        drop(unsafe { OpenLog::take(open) });
        Ok(())
    })
}

unsafe extern "C" fn bind(_open: *mut fid, with: *mut fid, flags: u64) -> c_int {
    answer("fi_import_fid", || -> Result {
        // SAFETY: fi_import_fid(3): a live object of the program's.
        let fid = unsafe { with.as_mut() }.ok_or(Error::INVAL)?;
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        if fid.fclass != FI_CLASS_LOG as usize {
            return Err(Error::INVAL);
        }
        // SAFETY: objects of that class are of that type.
        let ops = unsafe { (*with.cast::<fid_logging>()).ops.as_ref() }.ok_or(Error::INVAL)?;
        if ops.size < size_of::<fi_ops_log>() {
            return Err(Error::INVAL);
        }
        if !log::import(with.cast()) {
            return Err(Error::ALREADY);
        }
        fid.ops = (&raw const BOUND_OPS.0).cast_mut();
        Ok(())
    })
}

unsafe extern "C" fn close_bound(with: *mut fid) -> c_int {
    answer("fi_close", || -> Result {
        log::unimport(with.cast());
        Ok(())
    })
}

unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    Error::NOSYS.to_ret()
}

unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    Error::NOSYS.to_ret()
}

unsafe extern "C" fn no_ops(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    Error::NOSYS.to_ret()
}

unsafe extern "C" fn no_ops_set(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    Error::NOSYS.to_ret()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_log_can_be_opened_and_only_as_the_manual_says() {
        let open = |api, name, len, flags| {
            open(api, name, len, flags, ptr::null_mut()).map(|fid| {
                // SAFETY: just opened, and closed once.
                unsafe {
                    assert_eq!((*fid).fclass, FI_CLASS_LOG as usize);
                    close_open(fid)
                }
            })
        };
        assert_eq!(open(version(1, 13), c"logging", 0, 0), Ok(0));
        assert_eq!(open(version(1, 12), c"logging", 0, 0), Err(Error::INVAL));
        assert_eq!(open(version(1, 13), c"logging", 8, 0), Err(Error::INVAL));
        assert_eq!(open(version(1, 13), c"logging", 0, 1), Err(Error::BADFLAGS));
        assert_eq!(open(version(1, 13), c"mr_cache", 0, 0), Err(Error::NOSYS));
    }
}
