//! Completions of operations, in no format.
use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::error::Error;
use core::ffi::{c_int, c_void};

/// The application's pointer returned in a completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Context(pub *mut c_void);

// SAFETY: only handed back, never followed.
unsafe impl Send for Context {}
// SAFETY: the pointer is only handed back, never followed.
unsafe impl Sync for Context {}

impl Context {
    /// No context.
    pub const NULL: Self = Self(std::ptr::null_mut());
}

/// One successful completion, with everything any format reports. The entries of all formats
/// (fi_cq(3)) are beginnings of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// Context of the operation, given by the application.
    pub context: Context,
    /// Kind of the operation: FI_SEND, FI_RECV | FI_MSG, FI_TAGGED | FI_REMOTE_CQ_DATA …
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
    /// Address of the buffer with the received bytes.
    pub buf: usize,
    /// Remote CQ data.
    pub data: u64,
    /// The message's tag.
    pub tag: u64,
    /// The sender's address, FI_ADDR_NOTAVAIL if it is not known.
    pub src: fi_addr_t,
}

/// One failed operation.
#[derive(Clone, Debug)]
pub struct CompletionError {
    /// The failed operation, as far as it is known.
    pub of: Completion,
    /// Bytes exceeding the buffer (FI_ETRUNC).
    pub olen: usize,
    /// Error reported to the application.
    pub error: Error,
    /// The error in the provider's terms (prov_errno): an errno here.
    pub prov_errno: c_int,
    /// Further data in a form of the provider's own (err_data).
    pub data: Vec<u8>,
}

impl Completion {
    /// Returns the completion of an operation with only its kind and its bytes.
    #[inline]
    pub const fn of(context: Context, flags: u64, len: usize) -> Self {
        Self { context, flags, len, buf: 0, data: 0, tag: 0, src: FI_ADDR_NOTAVAIL }
    }
}

impl CompletionError {
    /// A failure with nothing more to say than its code.
    pub fn new(of: Completion, error: Error) -> Self {
        Self { of, olen: 0, error, prov_errno: error.code(), data: Vec::new() }
    }
}
