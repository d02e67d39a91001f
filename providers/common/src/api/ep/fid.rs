//! The object behind a `struct fid_ep`.
use super::default_flags::DefaultFlags;
use super::shared::EpShared;
use crate::abi::{fi_ops_atomic, fi_ops_collective, fi_ops_msg, fi_ops_rma, fi_ops_tagged, fid_ep};
use crate::api::bindings::Bindings;
use crate::api::traits::Endpoint;
use crate::buf::SegmentLimit;
use crate::eq::FidPtr;
use crate::error::Result;
use crate::fid::FidObject;
use core::ffi::c_void;
use std::cell::UnsafeCell;
use std::sync::{Arc, MutexGuard};

/// An endpoint, as C holds it.
#[repr(C)]
pub struct EpFid<E> {
    /// The C structure. Its ops tables of transfers change once, when the endpoint is enabled.
    c: UnsafeCell<fid_ep>,
    pub(super) flags: DefaultFlags,
    pub(crate) shared: Arc<EpShared<E>>,
}

// SAFETY: the C part changes only in `enable`, which fi_endpoint(3) orders
// before any transfer; `E` is Send + Sync by its trait, the rest by itself.
unsafe impl<E: Endpoint> Sync for EpFid<E> {}
// SAFETY: the C part changes only in `enable`, before any transfer; `E` is Send + Sync by its
// trait, the rest by itself.
unsafe impl<E: Endpoint> Send for EpFid<E> {}
// SAFETY: repr(C) with the C struct first (UnsafeCell is transparent); made only
// by `new`, in an `Arc`.
unsafe impl<E: Endpoint> FidObject<fid_ep> for EpFid<E> {}

impl<E> std::fmt::Debug for EpFid<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EpFid")
    }
}

/// Ops tables of an enabled endpoint's transfers. `None` leaves a table unchanged.
pub(super) struct TransferTables {
    pub(super) msg: &'static fi_ops_msg,
    pub(super) tagged: &'static fi_ops_tagged,
    pub(super) rma: Option<&'static fi_ops_rma>,
    pub(super) collective: Option<&'static fi_ops_collective>,
    pub(super) atomic: Option<&'static fi_ops_atomic>,
}

impl<E: Endpoint> EpFid<E> {
    /// Returns a fid of an endpoint, to be named by events from now on.
    pub(super) fn new(c: fid_ep, flags: DefaultFlags, shared: Arc<EpShared<E>>) -> Arc<Self> {
        let ep = Arc::new(Self { c: UnsafeCell::new(c), flags, shared });
        ep.shared.fids().push(FidPtr(ep.as_c().cast()));
        ep
    }

    /// Returns the application's context of the fid.
    pub(super) fn app_context(&self) -> *mut c_void {
        // SAFETY: the context is set by the application or never.
        unsafe { (*self.c.get()).fid.context }
    }

    /// Sets the tables of the transfers, when the endpoint is enabled.
    pub(super) fn set_transfer_tables(&self, tables: &TransferTables) {
        // SAFETY: transfers come after enabling, in one thread or ordered by the application
        // (fi_endpoint(3)), so there are no concurrent reads of the fields.
        unsafe {
            let c = self.c.get();
            (*c).msg = std::ptr::from_ref(tables.msg).cast_mut();
            (*c).tagged = std::ptr::from_ref(tables.tagged).cast_mut();
            if let Some(rma) = tables.rma {
                (*c).rma = std::ptr::from_ref(rma).cast_mut();
            }
            if let Some(collective) = tables.collective {
                (*c).collective = std::ptr::from_ref(collective).cast_mut();
            }
            if let Some(atomic) = tables.atomic {
                (*c).atomic = std::ptr::from_ref(atomic).cast_mut();
            }
        }
    }

    pub(crate) fn srx(&self) -> MutexGuard<'_, Option<Arc<EpShared<E>>>> {
        self.shared.srx()
    }

    pub(crate) fn bindings(&self) -> MutexGuard<'_, Bindings> {
        self.shared.bindings()
    }

    /// Removes a fid, of the endpoint or an alias, from the list of open ones. Returns true if it
    /// was the last. If events named the endpoint by it, they name another open one from now on.
    pub(crate) fn leave(&self, fid: FidPtr) -> bool {
        let mut fids = self.shared.fids();
        let names = fids.first() == Some(&fid);
        fids.retain(|open| *open != fid);
        let Some(&heir) = fids.first() else { return true };
        if names {
            self.inner().opened(heir);
            if let Some(eq) = &self.bindings().eq {
                eq.rename(fid, heir);
            }
        }
        false
    }

    /// Returns the maximum number of segments of a transfer.
    #[inline]
    pub(crate) fn most_segments(&self) -> SegmentLimit {
        self.shared.ground.segments
    }

    /// The number of segments of a call; -FI_EINVAL if they are too many.
    #[inline]
    pub(crate) fn segments(&self, count: usize) -> Result<usize> {
        self.most_segments().check(count)
    }

    #[inline]
    pub(crate) fn inner(&self) -> &E {
        &self.shared.inner
    }
}
