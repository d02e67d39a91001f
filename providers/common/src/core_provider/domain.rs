//! A core provider's domain (fi_domain(3)).
use super::call::{call, close, code};
use super::fabric::CoreFabric;
use crate::abi::{self, fi_rx_attr, fid_domain, fid_ep};
use crate::error::{Error, Result};
use crate::info::InfoBuf;
use crate::lock::Level;
use crate::stack::on_own_stack;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A core provider's domain.
#[derive(Debug)]
pub struct CoreDomain {
    raw: NonNull<fid_domain>,
    /// True if memory of transfers must be registered (FI_MR_LOCAL).
    local: bool,
    /// True if peers address memory by its virtual address (FI_MR_VIRT_ADDR).
    virt_addr: bool,
    /// True if calls are promised to be serialized (FI_THREAD_DOMAIN).
    serialized: bool,
    fabric: Arc<CoreFabric>,
}

// SAFETY: an object of a core provider with FI_THREAD_SAFE, which may be used from any thread, or with
// FI_THREAD_DOMAIN, where the application has promised that and no thread of ours calls.
unsafe impl Send for CoreDomain {}
// SAFETY: as for `Send`.
unsafe impl Sync for CoreDomain {}

impl CoreDomain {
    /// Opens the domain described by `info` (fi_domain(3)).
    pub fn open(fabric: &Arc<CoreFabric>, info: &InfoBuf) -> Result<Arc<Self>> {
        let mut raw: *mut fid_domain = ptr::null_mut();
        // SAFETY: the fabric is open; the core only reads the info, during the call.
        unsafe {
            let open = call!(fabric.raw().as_ref().ops, domain);
            let info = info.as_ptr().cast_mut();
            code(on_own_stack(|| open(fabric.raw().as_ptr(), info, &mut raw, ptr::null_mut())))?;
        }
        let raw = NonNull::new(raw).ok_or(Error::OTHER)?;
        let (mode, mr_mode) = (info.mode(), info.domain().mr_mode);
        let local = mode & abi::FI_LOCAL_MR != 0 || mr_mode & abi::FI_MR_LOCAL != 0;
        let basic = mr_mode == abi::FI_MR_BASIC;
        let virt_addr = basic || mr_mode & abi::FI_MR_VIRT_ADDR != 0;
        let serialized = info.domain().threading == abi::fi_threading::FI_THREAD_DOMAIN;
        Ok(Arc::new(Self { raw, local, virt_addr, serialized, fabric: fabric.clone() }))
    }

    /// Returns the level of locks taken only by calls for this domain, and by calls from there.
    pub fn level(&self) -> Level {
        if self.serialized { Level::Serialized } else { Level::Shared }
    }

    pub(super) fn raw(&self) -> NonNull<fid_domain> {
        self.raw
    }

    /// Opens an endpoint without enabling it.
    pub(super) fn open_endpoint(&self, info: &InfoBuf) -> Result<NonNull<fid_ep>> {
        let mut ep = ptr::null_mut();
        // SAFETY: the domain is open; the core only reads the info, during the call.
        unsafe {
            let open = call!(self.raw.as_ref().ops, endpoint);
            let info = info.as_ptr().cast_mut();
            code(open(self.raw.as_ptr(), info, &mut ep, ptr::null_mut()))?;
        }
        NonNull::new(ep).ok_or(Error::OTHER)
    }

    /// Returns true if peers address memory by its virtual address.
    pub(super) fn has_virt_addr(&self) -> bool {
        self.virt_addr
    }

    /// The fabric it is opened on.
    pub fn fabric(&self) -> &Arc<CoreFabric> {
        &self.fabric
    }

    /// Returns true if memory of every transfer must be registered.
    pub fn wants_local(&self) -> bool {
        self.local
    }

    /// Opens a shared receive context (fi_srx_context(3)).
    pub(super) fn srx(&self, attr: &fi_rx_attr) -> Result<NonNull<fid_ep>> {
        let mut raw: *mut fid_ep = ptr::null_mut();
        let mut attr = *attr;
        // SAFETY: the domain is open, the attribute lives for the call.
        unsafe {
            let open = call!(self.raw.as_ref().ops, srx_ctx);
            code(on_own_stack(|| open(self.raw.as_ptr(), &mut attr, &mut raw, ptr::null_mut())))?;
        }
        NonNull::new(raw).ok_or(Error::OTHER)
    }
}

impl Drop for CoreDomain {
    fn drop(&mut self) {
        // SAFETY: everything opened on it holds a count on this, so nothing is left.
        let _ = unsafe { close(self.raw.as_ptr().cast()) };
    }
}
