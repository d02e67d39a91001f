//! Program's side of an object: its contents, its opening and closing.
use crate::abi::*;
use crate::call::{HookCall, HookOp};
use crate::error::Error;
use crate::log::HookLog;
use crate::{Args, Hook, fids, tables};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use libc::ssize_t;
use ofi_provider::boundary::{CancelDisabled, ffi_guard_if_memory};
use ofi_provider::info::version;
use std::sync::Arc;

/// State shared by all objects of a hooked fabric.
pub(crate) struct HookedFabric<H> {
    pub(crate) hook: H,
    /// API version of the hooked provider's build, 0 if unknown.
    pub(crate) prov_version: u32,
    /// API version requested by the application, 0 if unknown.
    pub(crate) api_version: u32,
}

/// An object as the program knows it.
#[repr(C)]
pub(crate) struct HookedObject<C, H> {
    /// First field, so a pointer to it is also a pointer to this object.
    outer: UnsafeCell<C>,
    /// The provider's object.
    inner: *mut C,
    /// See [`HookCall::format`].
    pub(crate) format: u32,
    pub(crate) shared: Arc<HookedFabric<H>>,
}

/// Kinds of objects.
///
/// # Safety
/// `Self` is a struct of the API starting with a `struct fid`.
pub(crate) unsafe trait Fid: Sized {
    /// Returns the program's object: the class and the context of `inner`, the hook's tables, and
    /// the fields read directly by programs.
    ///
    /// # Safety
    /// `inner` is open.
    unsafe fn outer<H: Hook>(inner: *mut Self, shared: &HookedFabric<H>) -> Self;

    /// Updates the fields read directly by programs and changed by calls or events.
    ///
    /// # Safety
    /// Both are open, and `outer` was made for `inner`.
    unsafe fn refresh(_outer: *mut Self, _inner: *mut Self) {}
}

/// Conversion of a return value for a hook, and the return value of an impossible call.
pub(crate) trait HookAnswer: Copy {
    fn from_error(error: Error) -> Self;
    fn code(self) -> isize;
}

impl HookAnswer for c_int {
    fn from_error(error: Error) -> Self {
        error.to_ret()
    }
    #[inline]
    fn code(self) -> isize {
        self as isize
    }
}

impl HookAnswer for ssize_t {
    fn from_error(error: Error) -> Self {
        error.to_ret() as ssize_t
    }
    #[inline]
    fn code(self) -> isize {
        self
    }
}

impl HookAnswer for u64 {
    fn from_error(_: Error) -> Self {
        0
    }
    #[inline]
    fn code(self) -> isize {
        self as isize
    }
}

impl HookAnswer for *const c_char {
    fn from_error(_: Error) -> Self {
        ptr::null()
    }
    #[inline]
    fn code(self) -> isize {
        0
    }
}

impl<C: Fid, H: Hook> HookedObject<C, H> {
    /// Returns the object behind a pointer of the program of any type; `None` for null.
    ///
    /// # Safety
    /// `outer` is null or an open object of this kind, made by [`HookedObject::wrap`].
    #[inline]
    pub(crate) unsafe fn of<'a, T>(outer: *const T) -> Option<&'a Self> {
        // SAFETY: by this function's contract; the first field is the object itself.
        unsafe { outer.cast::<Self>().as_ref() }
    }

    /// The provider's object.
    #[inline]
    pub(crate) fn inner(&self) -> *mut C {
        self.inner
    }

    /// Performs a call, and notifies the hook of it.
    #[inline]
    pub(crate) fn around<R: HookAnswer>(
        &self,
        op: HookOp,
        args: Args,
        make: impl FnOnce() -> R,
    ) -> R {
        let object = self.outer.get().cast::<fid>().cast_const();
        let api_version = self.shared.api_version;
        let call = HookCall { op, object, format: self.format, api_version, args };
        // A thread that is cancelled goes on to the end of the call: the frames of hooks
        // have something to clean up.
        let _uncancelled = CancelDisabled::new();
        let entry = self.shared.hook.enter(&call);
        let answer = make();
        // SAFETY: the call that has just answered.
        unsafe { self.shared.hook.leave(entry, &call, answer.code()) };
        answer
    }

    /// Wraps the provider's object in `out` in an object of the hook, if `ret` reports a
    /// successful open.
    ///
    /// # Safety
    /// `out` belongs to a call opening a `D` with the return value `ret`.
    pub(crate) unsafe fn opened<D: Fid>(&self, ret: c_int, out: *mut *mut D, format: u32) -> c_int {
        if ret == 0 && !out.is_null() {
            // SAFETY: by this function's contract the place holds an open object.
            unsafe { *out = HookedObject::wrap(*out, format, &self.shared) };
        }
        ret
    }

    /// An object of ours in front of `inner`; null for null.
    ///
    /// # Safety
    /// `inner` is null or open.
    unsafe fn wrap(inner: *mut C, format: u32, shared: &Arc<HookedFabric<H>>) -> *mut C {
        if inner.is_null() {
            return inner;
        }
        // SAFETY: by this function's contract.
        let outer = UnsafeCell::new(unsafe { C::outer(inner, shared) });
        let object = Box::new(Self { outer, inner, format, shared: shared.clone() });
        let outer = Box::into_raw(object).cast::<C>();
        fids::add(outer, inner);
        outer
    }

    /// Updates the fields read directly by programs.
    ///
    /// # Safety
    /// The object is open.
    pub(crate) unsafe fn refresh(&self) {
        // SAFETY: by this function's contract; what is written is the program's to
        // read after the call that changed it.
        unsafe { C::refresh(self.outer.get(), self.inner) };
    }
}

/// Closes the provider's object, and the program's after a success.
pub(crate) unsafe extern "C" fn close<C: Fid, H: Hook>(outer: *mut fid) -> c_int {
    // SAFETY: fi_close: an open object, which is the program's no more if this succeeds.
    unsafe {
        let Some(object) = HookedObject::<C, H>::of(outer) else { return Error::INVAL.to_ret() };
        let shared = object.shared.clone();
        if (*outer).fclass == FI_CLASS_FABRIC as usize {
            shared.hook.finish();
        }
        let call = HookCall {
            op: HookOp::Close,
            object: outer,
            format: object.format,
            api_version: shared.api_version,
            args: Args::None,
        };
        let entry = shared.hook.enter(&call);
        let inner = object.inner.cast::<fid>();
        let ret = match tables::slot!((*inner).ops, fi_ops, close) {
            Some(close) => close(inner),
            None => Error::NOSYS.to_ret(),
        };
        if ret == 0 {
            fids::remove(outer.cast::<C>());
            drop(Box::from_raw(outer.cast::<HookedObject<C, H>>()));
        }
        shared.hook.leave(entry, &call, ret as isize);
        ret
    }
}

/// Implements the `fabric` callback of a hook provider: opens a fabric in front of the one in
/// `attr`, with its provider in `context`.
///
/// # Safety
/// As the core calls hook providers (fi_provider(7)): attributes with a fabric, a location for the
/// result, and a provider with an unlimited lifetime, or null.
pub unsafe extern "C" fn open_fabric<H: Hook>(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_fabric", || {
        let prov = context.cast::<fi_provider>();
        // SAFETY: by this function's contract.
        unsafe {
            let attr = attr.as_ref().filter(|attr| !attr.fabric.is_null()).ok_or(Error::INVAL)?;
            let out = fabric.as_mut().ok_or(Error::INVAL)?;
            let log = HookLog::new(prov);
            let func = format!("hook_{}_fabric", H::NAME);
            log.trace(
                crate::log::subsys::FABRIC,
                &func,
                format_args!("Installing {} hook", H::NAME),
            );
            let prov_version = prov.as_ref().map_or(0, |prov| prov.fi_version);
            let since_1_5 = prov_version >= version(1, 5);
            let api_version = if since_1_5 { (*attr.fabric).api_version } else { 0 };
            let shared = HookedFabric { hook: H::install(log)?, prov_version, api_version };
            *out = HookedObject::wrap(attr.fabric, 0, &Arc::new(shared));
        }
        Ok(())
    })
}

/// The head of the program's object: class and context are the provider's.
///
/// # Safety
/// `inner` is open.
pub(crate) unsafe fn head<C: Fid, H: Hook>(inner: *mut C) -> fid {
    // SAFETY: by this function's contract; every object starts with a fid.
    let head = unsafe { inner.cast::<fid>().read() };
    fid { ops: tables::fid_ops::<C, H>(), ..head }
}
