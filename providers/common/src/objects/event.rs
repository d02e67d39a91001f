//! Events, in no format.
use crate::abi::fid;
use crate::completion::Context;
use crate::error::Error;
use crate::info::InfoBuf;
use core::ffi::c_int;

/// Address of a fid, identifying an object in events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FidPtr(pub *mut fid);

// SAFETY: only handed back to the application, never followed.
unsafe impl Send for FidPtr {}
// SAFETY: the pointer is only handed back to the application, never followed.
unsafe impl Sync for FidPtr {}

/// One event.
#[derive(Debug)]
pub enum EqEvent {
    /// FI_CONNREQ, FI_CONNECTED, FI_SHUTDOWN, with the peer's data.
    Cm {
        /// FI_CONNREQ, FI_CONNECTED or FI_SHUTDOWN.
        event: u32,
        /// Endpoint or passive endpoint of the event.
        fid: FidPtr,
        /// Request of an FI_CONNREQ event, freed by the application.
        info: Option<InfoBuf>,
        /// User data of the peer.
        data: Vec<u8>,
    },
    /// FI_AV_COMPLETE, FI_MR_COMPLETE, FI_JOIN_COMPLETE.
    Done {
        /// Event code.
        event: u32,
        /// Address vector, region or group of the event.
        fid: FidPtr,
        /// Context of the operation, given by the application.
        context: Context,
        /// A count or other result.
        data: u64,
    },
    /// Something the application wrote (fi_eq_write).
    Written {
        /// The event number the application wrote.
        event: u32,
        /// The event's bytes.
        bytes: Vec<u8>,
    },
    /// An asynchronous failure.
    Error(EventError),
}

impl EqEvent {
    /// Returns the object of the event, or `None` for an event written by the application.
    pub(super) fn object(&mut self) -> Option<&mut FidPtr> {
        match self {
            Self::Cm { fid, .. } | Self::Done { fid, .. } => Some(fid),
            Self::Error(error) => Some(&mut error.fid),
            Self::Written { .. } => None,
        }
    }
}

/// An asynchronous failure (struct fi_eq_err_entry).
#[derive(Debug)]
pub struct EventError {
    /// Failed object.
    pub fid: FidPtr,
    /// The operation's context.
    pub context: Context,
    /// Event-specific.
    pub data: u64,
    /// Error reported to the application.
    pub error: Error,
    /// The error in the provider's terms.
    pub prov_errno: c_int,
    /// Further data, such as the user data of a rejection.
    pub err_data: Vec<u8>,
}
