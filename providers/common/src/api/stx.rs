//! Shared transmit contexts (fi_endpoint(3), fi_stx_context).
//!
//! An application can only open one and bind endpoints to it: transfers, completions and attributes
//! stay with the endpoints. A provider with endpoints sharing nothing for sends needs no more.
use super::unsupported;
use crate::abi::{FI_CLASS_STX_CTX, fi_ops, fid_stx};
use crate::fid::FidObject;
use crate::object::{Base, Object, Parent, fid_ops};
use core::ffi::{c_int, c_void};
use std::sync::Arc;

/// A shared transmit context, as C holds it.
#[repr(C)]
pub(crate) struct Stx {
    c: fid_stx,
    base: Base,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for Stx {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for Stx {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_stx> for Stx {}

static FID_OPS: fi_ops = fid_ops::<Stx, _>();

impl Stx {
    pub(super) fn open(domain: Parent, context: *mut c_void) -> Arc<Self> {
        let c =
            fid_stx { fid: Self::fid(context), ops: (&raw const unsupported::NO_EP).cast_mut() };
        Arc::new(Self { c, base: Base::new(domain) })
    }
}

impl Object<fid_stx> for Stx {
    const CLASS: c_int = FI_CLASS_STX_CTX;
    const CLOSE: &'static str = "fi_close(stx)";

    fn table() -> &'static fi_ops {
        &FID_OPS
    }

    fn base(&self) -> &Base {
        &self.base
    }
}
