//! Rust objects that C sees as `struct fid_*`.
use crate::abi::{fi_ops, fid};
use crate::error::{Error, Result};
use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// `unbuilt! { fn name(type, type, ...) -> type; }`: functions of these arguments that answer
/// -FI_ENOSYS. Every slot of a table must hold one, because the inline calls do not look
/// (fi_provider(7)).
#[macro_export]
macro_rules! unbuilt {
    ($($vis:vis fn $name:ident($($arg:ty),* $(,)?) -> $ret:ty;)+) => {$(
        $vis unsafe extern "C" fn $name($(_: $arg),*) -> $ret {
            $crate::error::Error::NOSYS.to_ret() as $ret
        }
    )+};
}

/// A Rust object whose first field is the C struct `C`, so that a pointer to
/// one is a pointer to the other.
///
/// C owns one strong count from [`into_c`](Embeds::into_c) until
/// [`take`](Embeds::take), which is what `fi_close` does; everything of ours
/// that needs the object holds a count of its own, so a wrong order of closing
/// is an error code and never a dangling pointer on our side.
///
/// # Safety
/// `Self` is `#[repr(C)]`, its first field is a `C`, `C` starts with a `struct
/// fid`, and every `C` that is handed out lies in a `Self` held by an `Arc`.
pub unsafe trait Embeds<C>: Sized {
    /// The object around `c`, borrowed for the call; null is an error.
    ///
    /// # Safety
    /// `c` is null, or came from [`Embeds::into_c`] and has not been closed.
    #[inline]
    unsafe fn from_c<'a>(c: *const C) -> Result<&'a Self> {
        // SAFETY: by the trait's contract both start at the same address.
        unsafe { c.cast::<Self>().as_ref() }.ok_or(Error::INVAL)
    }

    /// A count of its own on the object around `c`.
    ///
    /// # Safety
    /// As [`Embeds::from_c`].
    unsafe fn arc_from_c(c: *const C) -> Result<Arc<Self>> {
        if c.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: `into_c` made the pointer from an `Arc<Self>` that C still holds.
        unsafe {
            Arc::increment_strong_count(c.cast::<Self>());
            Ok(Arc::from_raw(c.cast::<Self>()))
        }
    }

    /// Hands the object to C, which gives it back with `fi_close`.
    fn into_c(self: Arc<Self>) -> *mut C {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// The pointer C knows the object by, without a count.
    fn as_c(self: &Arc<Self>) -> *mut C {
        Arc::as_ptr(self).cast_mut().cast()
    }

    /// Takes back what `into_c` gave.
    ///
    /// # Safety
    /// As [`Embeds::from_c`]; `c` belongs to the caller no more.
    unsafe fn take(c: *mut C) -> Arc<Self> {
        // SAFETY: `into_c` made it from an `Arc<Self>`.
        unsafe { Arc::from_raw(c.cast::<Self>()) }
    }
}

/// The class of any fid, `None` for null.
///
/// # Safety
/// `fid` is null or points to a live `struct fid`.
pub unsafe fn class_of(fid: *const fid) -> Option<usize> {
    // SAFETY: by this function's contract.
    unsafe { fid.as_ref() }.map(|fid| fid.fclass)
}

/// The operations of an object that can only be closed: what else it does
/// replaces a member.
pub const fn ops(close: unsafe extern "C" fn(*mut fid) -> c_int) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: Some(no_bind),
        control: Some(no_control),
        ops_open: Some(no_ops_open),
        tostr: Some(no_tostr),
        ops_set: Some(no_ops_set),
    }
}

unbuilt! {
    fn no_bind(*mut fid, *mut fid, u64) -> c_int;
    fn no_control(*mut fid, c_int, *mut c_void) -> c_int;
    fn no_ops_open(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    fn no_ops_set(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int;
    fn no_tostr(*const fid, *mut c_char, usize) -> c_int;
}
