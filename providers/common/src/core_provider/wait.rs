//! A core provider's wait sets: one thing to block on for many queues.
use super::call::{call, close, code, control};
use super::fabric::CoreFabric;
use crate::abi::{self, fi_wait_attr, fi_wait_obj, fid_wait};
use crate::error::{Error, Result};
use core::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A core provider's wait set, with a descriptor.
#[derive(Debug)]
pub struct CoreWaitSet {
    raw: NonNull<fid_wait>,
    fd: RawFd,
    fabric: Arc<CoreFabric>,
}

// SAFETY: an object of a core provider with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreWaitSet {}
// SAFETY: an object of a core provider with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreWaitSet {}

impl CoreWaitSet {
    /// Opens a wait set (fi_poll(3)). Fails if the core provider has none with a wait descriptor.
    pub fn open(fabric: &Arc<CoreFabric>) -> Result<Arc<Self>> {
        // Asked of one that is not used: a core may signal entries of those that were
        // asked, which takes a system call each.
        match Self::new(fabric)?.try_wait() {
            Ok(()) | Err(Error::AGAIN) => Ok(Arc::new(Self::new(fabric)?)),
            Err(_) => Err(Error::NOSYS),
        }
    }

    fn new(fabric: &Arc<CoreFabric>) -> Result<Self> {
        let mut raw: *mut fid_wait = ptr::null_mut();
        // SAFETY: the fabric is open; all zeros is a valid attribute, which lives
        // for the call.
        let raw = unsafe {
            let mut attr = std::mem::zeroed::<fi_wait_attr>();
            attr.wait_obj = fi_wait_obj::FI_WAIT_FD.into();
            let open = call!(fabric.raw().as_ref().ops, wait_open);
            code(open(fabric.raw().as_ptr(), &mut attr, &mut raw))?;
            NonNull::new(raw).ok_or(Error::OTHER)?
        };
        let mut set = Self { raw, fd: -1, fabric: fabric.clone() };
        // SAFETY: open; FI_GETWAIT of a set with FI_WAIT_FD fills an int.
        unsafe {
            let fd = (&raw mut set.fd).cast::<c_void>();
            control(raw.as_ptr().cast(), abi::FI_GETWAIT, fd)?;
        }
        if set.fd >= 0 { Ok(set) } else { Err(Error::NOSYS) }
    }

    /// Returns the descriptor that is readable for an entry of any member.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    pub(super) fn as_ptr(&self) -> *mut fid_wait {
        self.raw.as_ptr()
    }

    fn try_wait(&self) -> Result {
        // SAFETY: open, and of this fabric.
        unsafe { self.fabric.try_wait(&mut [self.raw.as_ptr().cast()]) }
    }

    /// Returns true if a caller may sleep until the descriptor is readable (fi_trywait(3)).
    pub fn may_block(&self) -> bool {
        self.try_wait().is_ok()
    }
}

impl Drop for CoreWaitSet {
    fn drop(&mut self) {
        // SAFETY: its members hold a count on this, so none is left.
        let _ = unsafe { close(self.raw.as_ptr().cast()) };
    }
}
