//! Return values of calls: a type and a subtype, as in `dat2/dat_error.h`.
use crate::layout::*;

/// Error of a failed call, without the class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DatError(pub(crate) u32);

/// Result of a call.
pub(crate) type DatResult<T = ()> = Result<T, DatError>;

/// An error of this type and subtype.
pub(crate) fn error<T>(kind: u32, subtype: u32) -> DatResult<T> {
    Err(DatError(kind | subtype))
}

/// Returns the object of a handle, or fails with this subtype of DAT_INVALID_HANDLE.
pub(crate) fn require_object<T>(found: Option<T>, subtype: u32) -> DatResult<T> {
    match found {
        Some(object) => Ok(object),
        None => error(INVALID_HANDLE, subtype),
    }
}

/// The parameter in this place, counted from 1, is not valid.
pub(crate) fn bad_argument<T>(argument: u32) -> DatResult<T> {
    error(INVALID_PARAMETER, ARG_1 + argument - 1)
}

/// A call is not for an endpoint in this state.
pub(crate) fn bad_state<T>(state: EpState) -> DatResult<T> {
    let subtype = match state {
        EpState::Unconnected => STATE_EP_UNCONNECTED,
        EpState::Reserved => STATE_EP_RESERVED,
        EpState::PassivePending => STATE_EP_PASSCONNPENDING,
        EpState::ActivePending => STATE_EP_ACTCONNPENDING,
        EpState::Connected => STATE_EP_CONNECTED,
        EpState::DisconnectPending => STATE_EP_DISCPENDING,
        EpState::Disconnected => STATE_EP_DISCONNECTED,
        EpState::CompletionPending => STATE_EP_COMPLPENDING,
    };
    error(INVALID_STATE, subtype)
}

/// Not enough of something.
pub(crate) fn exhausted<T>(subtype: u32) -> DatResult<T> {
    error(INSUFFICIENT_RESOURCES, subtype)
}

/// Converts a code of libfabric for a failed creation of an object.
pub(crate) fn of_code(code: i32, resource: u32) -> DatError {
    DatError(match code {
        libc::ENOMEM => INSUFFICIENT_RESOURCES | RESOURCE_MEMORY,
        libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOSPC | libc::ENOBUFS => {
            INSUFFICIENT_RESOURCES | resource
        }
        _ => INTERNAL_ERROR,
    })
}

impl DatError {
    /// Returns the number returned by the call.
    pub(crate) fn to_return(self) -> u32 {
        if self.0 == QUEUE_EMPTY {
            // bare, as the providers of the reference answer for queues of transfers: programs
            // that poll, dtest among them, compare with just this
            return QUEUE_EMPTY;
        }
        CLASS_ERROR | self.0
    }
}
