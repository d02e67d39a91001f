//! Buffered receives of 1.x (fi_msg(3) as of 1.7 to 1.22): messages come to the
//! provider's buffers, and the application claims or discards what is reported.
use crate::abi::{FI_BUFFERED_RECV, fi_recv_context};
use crate::cq::Context;
use crate::eq::FidPtr;
use crate::info::{InfoRef, version};
use std::cell::UnsafeCell;

/// FI_VARIABLE_MSG as programs for versions before 1.21 know it, which asks for
/// the same as the mode bit FI_BUFFERED_RECV. Later the bit was given away.
pub const VARIABLE_MSG: u64 = 1 << 48;

/// Which bits mean buffered receives to an application of this API version: of
/// the mode, and of the capabilities.
pub fn bits(api_version: u32) -> (u64, u64) {
    let mode = if api_version < version(2, 0) { FI_BUFFERED_RECV } else { 0 };
    let caps = if api_version < version(1, 21) { VARIABLE_MSG } else { 0 };
    (mode, caps)
}

/// Whether an info, or hints, of an application of this API version ask for
/// buffered receives.
pub fn is_asked(info: InfoRef<'_>, api_version: u32) -> bool {
    let (mode, caps) = bits(api_version);
    info.mode() & mode != 0 || info.caps() & caps != 0
}

/// What a message that was reported is claimed or discarded by. The application
/// has its address, and may write to its member `context`, until then.
#[derive(Debug)]
pub struct RecvContext(Box<UnsafeCell<fi_recv_context>>);

// SAFETY: shared references give out nothing but the address; what is behind it
// is read only by `into_context`, which owns it.
unsafe impl Sync for RecvContext {}
// SAFETY: as above; the pointers in it are the application's, for the application.
unsafe impl Send for RecvContext {}

impl RecvContext {
    /// One for a message that came to this endpoint.
    pub fn new(ep: FidPtr) -> Self {
        let context = fi_recv_context { ep: ep.0.cast(), context: std::ptr::null_mut() };
        Self(Box::new(UnsafeCell::new(context)))
    }

    /// Its address, as the application knows it.
    pub fn address(&self) -> Context {
        Context(self.0.get().cast())
    }

    /// What the application put into it for the completion of its claim.
    pub fn into_context(self) -> Context {
        Context(self.0.into_inner().context)
    }
}
