//! Rust objects visible to C as `struct fid_*`.
use crate::abi::{FI_ENOSYS, fi_ops, fid};
use crate::error::{Error, Result};
use core::ffi::c_int;
use libc::ssize_t;
use std::sync::Arc;

/// Result type of API calls with negative error codes.
pub trait Answer {
    /// The answer for an error.
    fn of(error: Error) -> Self;
}

impl Answer for c_int {
    fn of(error: Error) -> Self {
        error.to_ret()
    }
}

impl Answer for ssize_t {
    fn of(error: Error) -> Self {
        error.to_ret() as ssize_t
    }
}

/// Function type of a table slot. For each signature there is a function only returning the error
/// `CODE`.
pub trait Slot<const CODE: c_int>: Sized {
    /// Slot with this function.
    const REFUSING: Option<Self>;
}

macro_rules! slot {
    ($($arg:ident)*) => {
        impl<const CODE: c_int, R: Answer, $($arg),*> Slot<CODE>
            for unsafe extern "C" fn($($arg),*) -> R
        {
            const REFUSING: Option<Self> = {
                unsafe extern "C" fn refuse<const CODE: c_int, R: Answer, $($arg),*>(
                    $(_: $arg),*
                ) -> R {
                    R::of(Error::from_code(CODE))
                }
                Some(refuse::<CODE, R, $($arg),*>)
            };
        }
    };
}

/// [`slot!`] for so many arguments and for all smaller numbers of them.
macro_rules! slots {
    () => {};
    ($first:ident $($arg:ident)*) => {
        slot!($first $($arg)*);
        slots!($($arg)*);
    };
}

slots!(A B C D E F G H I J K L M N O P Q);

/// Returns a slot of an unsupported call, returning -FI_ENOSYS. Every slot of a table must contain
/// a function, because the inline calls do not check it (fi_provider(7)).
pub const fn enosys_stub<F: Slot<{ FI_ENOSYS }>>() -> Option<F> {
    F::REFUSING
}

/// Rust object with the C struct `C` as its first field, so a pointer to one is a pointer to the
/// other.
///
/// C owns one strong count from [`into_c`](FidObject::into_c) until [`take`](FidObject::take), called by
/// `fi_close`. Every Rust user of the object holds a separate count. So a wrong order of closing is
/// an error code, and never a dangling pointer on the Rust side.
///
/// # Safety
/// `Self` is `#[repr(C)]`, its first field is a `C`, `C` starts with a `struct fid`, and every `C`
/// passed to C code lies in a `Self` held by an `Arc`.
pub unsafe trait FidObject<C>: Sized {
    /// The object around `c`, borrowed for the call; null is an error.
    ///
    /// # Safety
    /// `c` is null, or came from [`FidObject::into_c`] and has not been closed.
    #[inline]
    unsafe fn from_c<'a>(c: *const C) -> Result<&'a Self> {
        // SAFETY: by the trait's contract both start at the same address.
        unsafe { c.cast::<Self>().as_ref() }.ok_or(Error::INVAL)
    }

    /// A count of its own on the object around `c`.
    ///
    /// # Safety
    /// As [`FidObject::from_c`].
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

    /// Passes the object to C; `fi_close` returns it.
    fn into_c(self: Arc<Self>) -> *mut C {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// The pointer C knows the object by, without a count.
    fn as_c(self: &Arc<Self>) -> *mut C {
        Arc::as_ptr(self).cast_mut().cast()
    }

    /// Takes back a pointer returned by `into_c`.
    ///
    /// # Safety
    /// As [`FidObject::from_c`]; `c` is invalid for the caller afterwards.
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

/// Returns the operations of an object supporting only a close; its other operations replace
/// members.
pub const fn ops(close: unsafe extern "C" fn(*mut fid) -> c_int) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: enosys_stub(),
        control: enosys_stub(),
        ops_open: enosys_stub(),
        tostr: enosys_stub(),
        ops_set: enosys_stub(),
    }
}
