//! Connection requests between FI_CONNREQ and fi_endpoint or fi_reject.
use crate::abi::{FI_CLASS_CONNREQ, fid};
use crate::error::{Error, Result};
use crate::fid_registry::FidRegistry;
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Target of `info->handle` of an FI_CONNREQ event. The application only passes it back, to
/// fi_endpoint or fi_reject.
#[repr(C)]
struct ConnReq {
    c: fid,
}

impl std::fmt::Debug for ConnReq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnReq")
    }
}

// SAFETY: never changed after it was made.
unsafe impl Sync for ConnReq {}
// SAFETY: never changed after it was made.
unsafe impl Send for ConnReq {}

struct Pending {
    object: Arc<ConnReq>,
    /// `Mutex<Option<T>>` containing the request until it is answered.
    slot: Arc<dyn Any + Send + Sync>,
    /// An endpoint was opened with the request.
    is_of_endpoint: bool,
    /// Address of the passive endpoint of the request.
    owner: usize,
}

impl Pending {
    /// The slot of a request of this type; -FI_EINVAL for one of another provider.
    fn slot<T: Any + Send>(&self) -> Result<Arc<Mutex<Option<T>>>> {
        self.slot.clone().downcast().map_err(|_| Error::INVAL)
    }
}

/// Request of an endpoint opened with it, until the endpoint accepts it or the application rejects
/// it (fi_cm(3)).
#[derive(Debug)]
pub struct EndpointRequest<T> {
    slot: Arc<Mutex<Option<T>>>,
    /// Nothing else has the handle meanwhile.
    object: Arc<ConnReq>,
}

impl<T> EndpointRequest<T> {
    /// The request, for the answer; none if it was rejected or answered.
    pub fn take(&self) -> Option<T> {
        lock(&self.slot).take()
    }

    /// Calls `at` with the request and returns its result, or `None` if the request was rejected or
    /// accepted.
    pub fn look<R>(&self, at: impl FnOnce(&T) -> R) -> Option<R> {
        lock(&self.slot).as_ref().map(at)
    }
}

impl<T> Drop for EndpointRequest<T> {
    fn drop(&mut self) {
        PENDING.remove(Arc::as_ptr(&self.object) as usize);
    }
}

fn lock<T>(slot: &Mutex<Option<T>>) -> MutexGuard<'_, Option<T>> {
    slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Unanswered requests, by their handles.
static PENDING: FidRegistry<Pending> = FidRegistry::new();

/// Pending connection request.
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
        let slot = Arc::new(Mutex::new(Some(request)));
        PENDING.insert(handle, Pending { object, slot, is_of_endpoint: false, owner });
        handle as *mut fid
    }

    /// Drops the requests of a closed passive endpoint; their peers see the end of the connection.
    pub fn drop_all_of(owner: usize) {
        PENDING.retain(|_, pending| pending.owner != owner);
    }

    /// Drops the requests of a closed passive endpoint with one of these handles. The application
    /// can still answer the others during the lifetime of the returned value.
    pub fn drop_unread_of(owner: usize, unread: &[usize]) -> ReadRequests {
        /// Odd owner numbers, distinct from addresses of endpoints.
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let read = ReadRequests { owner: NEXT.fetch_add(2, Ordering::Relaxed) };
        PENDING.retain(|handle, pending| {
            let own = pending.owner == owner;
            if own {
                pending.owner = read.owner;
            }
            !(own && unread.contains(&handle))
        });
        read
    }
}

/// Requests read by the application, of a closed passive endpoint. A drop ends the unanswered ones.
#[derive(Debug)]
pub struct ReadRequests {
    owner: usize,
}

impl Drop for ReadRequests {
    fn drop(&mut self) {
        ConnRequest::drop_all_of(self.owner);
    }
}

/// Takes the request of a handle, also from an endpoint opened with it. Fails with -FI_EINVAL for a
/// handle without a pending request, or of another provider.
pub fn take_request<T: Any + Send>(handle: *const fid) -> Result<T> {
    let slot = PENDING.remove_if(handle as usize, |entry| {
        debug_assert_eq!(entry.object.c.fclass, FI_CLASS_CONNREQ as usize);
        entry.slot::<T>()
    });
    let slot = slot.unwrap_or(Err(Error::INVAL))?;
    let request = lock(&slot).take();
    request.ok_or(Error::INVAL)
}

/// Takes the request of a handle for an endpoint opened with it. The application may still reject
/// it by its handle. Fails as [`take_request`] does; only one endpoint can be opened with a
/// request.
pub fn request_of_endpoint<T: Any + Send>(handle: *const fid) -> Result<EndpointRequest<T>> {
    let taken = PENDING.with(handle as usize, |entry| {
        if entry.is_of_endpoint {
            return Err(Error::INVAL);
        }
        let slot = entry.slot::<T>()?;
        entry.is_of_endpoint = true;
        Ok(EndpointRequest { slot, object: entry.object.clone() })
    });
    taken.unwrap_or(Err(Error::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Owners are even, like the addresses of endpoints: those of read requests are odd, and dropped by
    // other tests at the same time.

    #[test]
    fn a_request_is_answered_once_and_an_unknown_handle_is_refused() {
        let handle = ConnRequest::keep(5u8, 2);
        assert_eq!(take_request::<u16>(handle), Err(Error::INVAL));
        assert_eq!(take_request::<u8>(handle), Ok(5));
        assert_eq!(take_request::<u8>(handle), Err(Error::INVAL));
        assert_eq!(take_request::<u8>(std::ptr::null()), Err(Error::INVAL));
        let other = ConnRequest::keep(6u8, 4);
        ConnRequest::drop_all_of(4);
        assert_eq!(take_request::<u8>(other), Err(Error::INVAL));
    }

    #[test]
    fn read_requests_outlive_their_passive_endpoint() {
        let (read, unread) = (ConnRequest::keep(1u8, 6), ConnRequest::keep(2u8, 6));
        let another = ConnRequest::keep(3u8, 8);
        let left = ConnRequest::drop_unread_of(6, &[unread as usize, another as usize]);
        assert_eq!(take_request::<u8>(unread), Err(Error::INVAL));
        assert_eq!(take_request::<u8>(another), Ok(3));
        ConnRequest::drop_all_of(6);
        assert_eq!(take_request::<u8>(read), Ok(1), "the address may be a later endpoint's");
        let unanswered = ConnRequest::keep(4u8, 10);
        let later = ConnRequest::drop_unread_of(10, &[]);
        drop(left);
        assert!(PENDING.with(unanswered as usize, |_| ()).is_some());
        drop(later);
        assert_eq!(take_request::<u8>(unanswered), Err(Error::INVAL));
    }

    #[test]
    fn a_request_of_an_endpoint_can_be_rejected_until_it_is_accepted() {
        let handle = ConnRequest::keep(7u8, 12);
        assert!(request_of_endpoint::<u16>(handle).is_err());
        let own = request_of_endpoint::<u8>(handle).unwrap();
        assert_eq!(own.look(|request| *request), Some(7));
        assert!(request_of_endpoint::<u8>(handle).is_err());
        assert_eq!(take_request::<u16>(handle), Err(Error::INVAL));
        assert_eq!(take_request::<u8>(handle), Ok(7));
        assert_eq!((own.take(), own.look(|request| *request)), (None, None));
        let handle = ConnRequest::keep(8u8, 12);
        let own = request_of_endpoint::<u8>(handle).unwrap();
        assert_eq!(own.take(), Some(8));
        assert_eq!(take_request::<u8>(handle), Err(Error::INVAL));
        let handle = ConnRequest::keep(9u8, 12);
        drop(request_of_endpoint::<u8>(handle).unwrap());
        assert_eq!(take_request::<u8>(handle), Err(Error::INVAL));
    }
}
