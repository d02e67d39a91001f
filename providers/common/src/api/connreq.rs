//! Connection requests between FI_CONNREQ and fi_endpoint or fi_reject.
use crate::abi::{FI_CLASS_CONNREQ, fid};
use crate::error::{Error, Result};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

/// What `info->handle` of an FI_CONNREQ event points to. The application only
/// hands it back, to fi_endpoint or fi_reject.
#[repr(C)]
struct ConnReq {
    c: fid,
}

// SAFETY: never changed after it was made.
unsafe impl Sync for ConnReq {}
// SAFETY: never changed after it was made.
unsafe impl Send for ConnReq {}

struct Pending {
    object: Arc<ConnReq>,
    request: Box<dyn Any + Send>,
    /// The passive endpoint that the request came through, by its address.
    owner: usize,
}

/// The requests that the application has not answered. A handle is looked up here before it is
/// believed, so that a stale or invented one is an error and not a crash.
static PENDING: LazyLock<Mutex<HashMap<usize, Pending>>> = LazyLock::new(Mutex::default);

fn pending() -> std::sync::MutexGuard<'static, HashMap<usize, Pending>> {
    PENDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct ConnRequest;

impl ConnRequest {
    /// Keeps `request`, and returns the handle for `info->handle`. `owner` identifies the
    /// passive endpoint.
    pub fn keep<T: Any + Send>(request: T, owner: usize) -> *mut fid {
        let object = Arc::new(ConnReq {
            c: fid {
                fclass: FI_CLASS_CONNREQ as usize,
                context: std::ptr::null_mut(),
                ops: std::ptr::null_mut(),
            },
        });
        let handle = Arc::as_ptr(&object) as usize;
        pending().insert(handle, Pending { object, request: Box::new(request), owner });
        handle as *mut fid
    }

    /// Drops the requests of a passive endpoint that is closed: their peers see
    /// the connection end.
    pub fn drop_all_of(owner: usize) {
        pending().retain(|_, pending| pending.owner != owner);
    }
}

/// Takes the request behind a handle; a handle that is not waiting, or is of
/// another provider, is -FI_EINVAL.
pub fn take_request<T: Any + Send>(handle: *const fid) -> Result<T> {
    let mut pending = pending();
    let entry = pending.remove(&(handle as usize)).ok_or(Error::INVAL)?;
    debug_assert_eq!(entry.object.c.fclass, FI_CLASS_CONNREQ as usize);
    match entry.request.downcast::<T>() {
        Ok(request) => Ok(*request),
        Err(request) => {
            pending.insert(handle as usize, Pending { request, ..entry });
            Err(Error::INVAL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_once_and_an_unknown_handle_is_refused() {
        let handle = ConnRequest::keep(5u8, 1);
        assert_eq!(take_request::<u16>(handle), Err(Error::INVAL));
        assert_eq!(take_request::<u8>(handle), Ok(5));
        assert_eq!(take_request::<u8>(handle), Err(Error::INVAL));
        assert_eq!(take_request::<u8>(std::ptr::null()), Err(Error::INVAL));
        let other = ConnRequest::keep(6u8, 2);
        ConnRequest::drop_all_of(2);
        assert_eq!(take_request::<u8>(other), Err(Error::INVAL));
    }
}
