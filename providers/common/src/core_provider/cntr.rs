//! A core provider's counter (fi_cntr(3)).
use super::call::{call, close, code};
use super::domain::CoreDomain;
use crate::abi::{self, fi_cntr_attr, fid, fid_cntr};
use crate::boundary::CancelDisabled;
use crate::error::{Error, Result};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Counter of a core provider, for successes only.
#[derive(Debug)]
pub struct CoreCntr {
    raw: NonNull<fid_cntr>,
    _domain: Arc<CoreDomain>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreCntr {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreCntr {}

impl CoreCntr {
    /// Opens a counter (fi_cntr_open(3)).
    pub fn open(domain: &Arc<CoreDomain>) -> Result<Arc<Self>> {
        let mut raw: *mut fid_cntr = ptr::null_mut();
        // SAFETY: all zeros but for the wait object is a valid attribute, which
        // lives for the call.
        unsafe {
            let mut attr = std::mem::zeroed::<fi_cntr_attr>();
            attr.wait_obj = abi::fi_wait_obj::FI_WAIT_NONE.into();
            let open = call!(domain.raw().as_ref().ops, cntr_open);
            code(open(domain.raw().as_ptr(), &mut attr, &mut raw, ptr::null_mut()))?;
        }
        let raw = NonNull::new(raw).ok_or(Error::OTHER)?;
        Ok(Arc::new(Self { raw, _domain: domain.clone() }))
    }

    pub(super) fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// The counter's value.
    pub fn read(&self) -> u64 {
        let _uncancelled = CancelDisabled::new();
        // SAFETY: open.
        unsafe {
            let read = self.raw.as_ref().ops.as_ref().and_then(|table| table.read);
            read.map_or(0, |read| read(self.raw.as_ptr()))
        }
    }
}

impl Drop for CoreCntr {
    fn drop(&mut self) {
        // SAFETY: each object bound to this one holds a reference on it, so none is left.
        let _ = unsafe { close(self.raw.as_ptr().cast()) };
    }
}
