//! Receive queues of other providers, opened with FI_PEER (fi_srx_context, fi_peer(3)): objects
//! bound by an application to endpoints in their place.
//!
//! They need not be closed before the domain, because applications of upstream libfabric do not
//! close them.
use super::unsupported;
use crate::abi::{FI_CLASS_SRX_CTX, fi_ops, fid, fid_ep};
use crate::boundary::ffi_guard;
use crate::fid::{FidObject, ops};
use crate::peer_srx::{self, SrxOwner};
use core::ffi::{c_int, c_void};
use std::sync::Arc;

/// Stands for another provider's receive queue.
#[repr(C)]
pub(super) struct ImportedSrx {
    c: fid_ep,
}

// SAFETY: the C part is written once, in `open`.
unsafe impl Sync for ImportedSrx {}
// SAFETY: the C part is written once, in `open`.
unsafe impl Send for ImportedSrx {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_ep> for ImportedSrx {}

static FID_OPS: fi_ops = ops(close);

impl ImportedSrx {
    /// Opens one for this owner's queue; returns the fid to bind.
    pub(super) fn open(owner: SrxOwner, context: *mut c_void) -> *mut fid_ep {
        let srx = Arc::new(Self {
            c: fid_ep {
                fid: fid {
                    fclass: FI_CLASS_SRX_CTX as usize,
                    context,
                    ops: (&raw const FID_OPS).cast_mut(),
                },
                ops: (&raw const unsupported::NO_EP).cast_mut(),
                cm: (&raw const unsupported::NO_CM).cast_mut(),
                msg: (&raw const unsupported::NO_MSG).cast_mut(),
                rma: (&raw const unsupported::NO_RMA).cast_mut(),
                tagged: (&raw const unsupported::NO_TAGGED).cast_mut(),
                atomic: (&raw const unsupported::NO_ATOMIC).cast_mut(),
                collective: (&raw const unsupported::NO_COLLECTIVE).cast_mut(),
            },
        });
        let fid = srx.into_c();
        peer_srx::open(fid as usize, owner);
        fid
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    ffi_guard("fi_close(srx)", || {
        peer_srx::close(fid as usize);
        // SAFETY: reachable only through the table of one that `open` made, which the application
        // closes once.
        drop(unsafe { ImportedSrx::take(fid.cast::<fid_ep>()) });
        Ok(())
    })
}
