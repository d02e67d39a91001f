//! Shared transmit contexts (fi_endpoint(3), fi_stx_context).
//!
//! An application opens one and binds endpoints to it, and that is all that can
//! be done with it: transfers, completions and attributes stay those of the
//! endpoints. A provider whose endpoints share nothing in sending needs no more.
use super::{Users, is_same, unbuilt};
use crate::abi::{FI_CLASS_STX_CTX, fi_ops, fi_ops_ep, fid, fid_stx};
use crate::boundary::answer;
use crate::error::{Error, Result};
use crate::fid::{Embeds, ops};
use core::ffi::{c_int, c_void};
use std::any::Any;
use std::sync::Arc;

/// A shared transmit context, as C holds it.
#[repr(C)]
pub(super) struct Stx {
    c: fid_stx,
    /// Endpoints that are bound to it.
    pub(super) users: Users,
    leave_domain: Box<dyn Fn() + Send + Sync>,
    domain: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for Stx {}
// SAFETY: as above.
unsafe impl Send for Stx {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl Embeds<fid_stx> for Stx {}

static FID_OPS: fi_ops = ops(close);

static EP_OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(unbuilt::no_cancel),
    getopt: Some(unbuilt::no_getopt),
    setopt: Some(unbuilt::no_setopt),
    tx_ctx: Some(unbuilt::no_tx_ctx),
    rx_ctx: Some(unbuilt::no_rx_ctx),
    rx_size_left: Some(unbuilt::no_size_left),
    tx_size_left: Some(unbuilt::no_size_left),
    export_xpu: Some(unbuilt::no_export_xpu),
};

impl Stx {
    /// Whether it was opened on this domain.
    pub(super) fn is_of(&self, domain: &Arc<dyn Any + Send + Sync>) -> bool {
        is_same(&self.domain, domain)
    }

    pub(super) fn open(
        domain: Arc<dyn Any + Send + Sync>,
        leave_domain: Box<dyn Fn() + Send + Sync>,
        context: *mut c_void,
    ) -> Arc<Self> {
        Arc::new(Self {
            c: fid_stx {
                fid: fid {
                    fclass: FI_CLASS_STX_CTX as usize,
                    context,
                    ops: (&raw const FID_OPS).cast_mut(),
                },
                ops: (&raw const EP_OPS).cast_mut(),
            },
            users: Users::default(),
            leave_domain,
            domain,
        })
    }

    /// The context behind a fid of the application's, if it is one of ours.
    ///
    /// # Safety
    /// `fid` points to a live fid.
    pub(super) unsafe fn from_fid(fid: *mut fid) -> Result<Arc<Self>> {
        // SAFETY: by this function's contract; our ops table marks our contexts.
        unsafe {
            if (*fid).ops.cast_const() != &raw const FID_OPS {
                return Err(Error::INVAL);
            }
            Self::arc_from_c(fid.cast::<fid_stx>())
        }
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    answer("fi_close(stx)", || {
        // SAFETY: reachable only through the ops table of an open context.
        unsafe { Stx::from_c(fid.cast::<fid_stx>()) }?.users.check_none()?;
        // SAFETY: as above; nothing of ours uses it any more.
        let stx = unsafe { Stx::take(fid.cast::<fid_stx>()) };
        (stx.leave_domain)();
        Ok(())
    })
}
