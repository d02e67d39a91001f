//! A core provider's fabric (fi_fabric(3)).
use super::call::{call, close, code};
use crate::abi::{self, fid, fid_fabric};
use crate::error::{Error, Result};
use crate::info::InfoBuf;
use core::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A core provider's fabric.
#[derive(Debug)]
pub struct CoreFabric(NonNull<fid_fabric>);

// SAFETY: what a core provider with FI_THREAD_SAFE hands out may be used from
// any thread, and every domain here is opened with that.
unsafe impl Send for CoreFabric {}
// SAFETY: what a core provider with FI_THREAD_SAFE hands out may be used from
// any thread, and every domain here is opened with that.
unsafe impl Sync for CoreFabric {}

impl CoreFabric {
    /// Opens the fabric of `info` (fi_fabric(3)).
    pub fn open(info: &InfoBuf) -> Result<Arc<Self>> {
        let mut raw: *mut fid_fabric = ptr::null_mut();
        let mut attr = *info.fabric();
        // SAFETY: the attribute and its names live for the call.
        unsafe { code(abi::fi_fabric(&mut attr, &mut raw, ptr::null_mut()))? };
        NonNull::new(raw).map(|raw| Arc::new(Self(raw))).ok_or(Error::OTHER)
    }

    pub(super) fn raw(&self) -> NonNull<fid_fabric> {
        self.0
    }

    /// fi_trywait(3).
    ///
    /// # Safety
    /// All are open objects of this fabric.
    pub(super) unsafe fn try_wait(&self, fids: &mut [*mut fid]) -> Result {
        // SAFETY: by this function's contract.
        unsafe {
            let trywait = call!(self.0.as_ref().ops, trywait);
            code(trywait(self.0.as_ptr(), fids.as_mut_ptr(), fids.len() as c_int))
        }
    }
}

impl Drop for CoreFabric {
    fn drop(&mut self) {
        // SAFETY: everything opened on it holds a count on this, so nothing is left.
        let _ = unsafe { close(self.0.as_ptr().cast()) };
    }
}
