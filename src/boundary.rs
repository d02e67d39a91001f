//! Boundary between Rust and C: results become codes, panics stay here.
use crate::error::{Error, Result};
use crate::heap;
use core::ffi::c_int;
use libc::ssize_t;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Return type of a C entry point: a count, a code or nothing, and its error value.
pub trait CReturn {
    /// The C type of the answer.
    type C;
    /// Return value of a panicking call.
    const PANICKED: Self::C;
    /// Return value of a call rejected for lack of memory.
    const NO_MEMORY: Self::C;
    /// Returns the C value of this result.
    fn into_c(self) -> Self::C;
}

impl CReturn for Result {
    type C = c_int;
    const PANICKED: c_int = Error::OTHER.to_ret();
    const NO_MEMORY: c_int = Error::NOMEM.to_ret();
    #[inline]
    fn into_c(self) -> c_int {
        match self {
            Ok(()) => 0,
            Err(error) => error.to_ret(),
        }
    }
}

/// Calls returning a small non-negative number, such as `fi_av_insert`.
impl CReturn for Result<c_int> {
    type C = c_int;
    const PANICKED: c_int = Error::OTHER.to_ret();
    const NO_MEMORY: c_int = Error::NOMEM.to_ret();
    #[inline]
    fn into_c(self) -> c_int {
        self.unwrap_or_else(Error::to_ret)
    }
}

/// `ssize_t` calls.
impl CReturn for Result<usize> {
    type C = ssize_t;
    const PANICKED: ssize_t = Error::OTHER.to_ret() as ssize_t;
    const NO_MEMORY: ssize_t = Error::NOMEM.to_ret() as ssize_t;
    #[inline]
    fn into_c(self) -> ssize_t {
        match self {
            Ok(n) => n as ssize_t,
            Err(error) => error.to_ret() as ssize_t,
        }
    }
}

/// Value already in its C form.
impl CReturn for ssize_t {
    type C = ssize_t;
    const PANICKED: ssize_t = Error::OTHER.to_ret() as ssize_t;
    const NO_MEMORY: ssize_t = Error::NOMEM.to_ret() as ssize_t;
    #[inline]
    fn into_c(self) -> ssize_t {
        self
    }
}

/// Counter reads, without an error value.
impl CReturn for u64 {
    type C = u64;
    const PANICKED: u64 = 0;
    const NO_MEMORY: u64 = 0;
    #[inline]
    fn into_c(self) -> u64 {
        self
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// While this is there, the thread is not cancelled (pthread_setcancelstate(3)).
#[derive(Debug)]
pub struct CancelDisabled(c_int);

impl CancelDisabled {
    /// Disables cancellation until the value is dropped.
    #[inline]
    #[allow(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        const PTHREAD_CANCEL_DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: one word is written, which outlives the call.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for CancelDisabled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the state was the thread's before.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Ends the thread if it was cancelled, by unwinding the stack from here.
///
/// # Safety
/// No frame from the caller's to the program's own has anything to clean up.
#[inline]
pub unsafe extern "C-unwind" fn end_if_cancelled() {
    // SAFETY: by this function's contract.
    unsafe { pthread_testcancel() };
}

/// Runs the body of an entry point; a panic becomes an error and stays in Rust.
///
/// The panic's own message has been printed by Rust's panic hook. This adds the entry point, known
/// to the caller of a C library.
///
/// A thread is cancelled only after the call: cancellation unwinds the stack, and Rust frames with
/// something to clean up do not survive it.
pub fn ffi_guard<R: CReturn>(entry: &'static str, body: impl FnOnce() -> R) -> R::C {
    let _uncancelled = CancelDisabled::new();
    ffi_guard_nocancel(entry, body)
}

/// Like [`ffi_guard`], for calls starting something: while memory is short they fail with -FI_ENOMEM,
/// without any effect ([`heap::ready`]).
pub fn ffi_guard_if_memory<R: CReturn>(entry: &'static str, body: impl FnOnce() -> R) -> R::C {
    if heap::ready().is_err() {
        return R::NO_MEMORY;
    }
    ffi_guard(entry, body)
}

/// Like [`ffi_guard`], for calls without any cancellation point: the ones of the data path, too short
/// to disable and enable cancellation.
#[inline]
pub fn ffi_guard_nocancel<R: CReturn>(entry: &'static str, body: impl FnOnce() -> R) -> R::C {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result.into_c(),
        Err(_) => {
            report_panic(entry);
            R::PANICKED
        }
    }
}

#[cold]
fn report_panic(entry: &'static str) {
    eprintln!("libfabric: internal error in {entry}; the call fails, the process goes on");
}

/// Like [`ffi_guard`] for the transfer calls, with 0 in an `ssize_t` for success. While memory is
/// short they fail with -FI_EAGAIN, as without space for another transfer.
#[inline]
pub fn ffi_guard_transfer(entry: &'static str, body: impl FnOnce() -> Result) -> ssize_t {
    if heap::ready().is_err() {
        return Error::AGAIN.to_ret() as ssize_t;
    }
    ffi_guard_segment(entry, body)
}

/// Like [`ffi_guard_transfer`] for a transfer of one segment: `body` checks memory before the first
/// allocation, together with other conditions ([`call_conditions`](crate::call_conditions)).
#[inline]
pub fn ffi_guard_segment(entry: &'static str, body: impl FnOnce() -> Result) -> ssize_t {
    // Turned into C's terms in here: a result that leaves the closure is put together and taken apart.
    ffi_guard_nocancel(entry, || body().into_c() as ssize_t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(ffi_guard("test", || -> Result { panic!("on purpose") }), -256);
        assert_eq!(ffi_guard("test", || -> Result<usize> { panic!("on purpose") }), -256);
    }

    #[test]
    fn results_become_codes() {
        assert_eq!(ffi_guard("test", || -> Result { Ok(()) }), 0);
        assert_eq!(ffi_guard("test", || -> Result { Err(Error::INVAL) }), -22);
        assert_eq!(ffi_guard_transfer("test", || Err(Error::AGAIN)), -11);
    }
}
