//! Connection management of a core provider: event queues, passive endpoints.
use super::call::{bind, call, close, code, control};
use super::discover::copy_info;
use super::fabric::CoreFabric;
use super::options::{ACCEPT_ONE_MORE, ACCEPT_WITHIN_LIMIT, OPT_ACCEPT_LIMIT, OPT_CONN_USAGE};
use super::wait::CoreWaitSet;
use crate::abi::{
    self, fi_eq_attr, fi_eq_cm_entry, fi_eq_err_entry, fi_info, fi_wait_obj, fid, fid_eq, fid_pep,
};
use crate::addr::Addr;
use crate::boundary::CancelDisabled;
use crate::error::{Error, Result};
use crate::info::InfoBuf;
use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard};

/// Maximum bytes of connection data of any core provider.
const CM_DATA: usize = 512;

/// Connection event.
#[derive(Debug)]
pub enum CoreEvent {
    /// Connection request of a peer. The info opens the endpoint for the answer.
    Request {
        /// For the endpoint, or for the refusal.
        info: InfoBuf,
        /// User data of the peer.
        data: Vec<u8>,
    },
    /// An endpoint is connected.
    Connected {
        /// The endpoint's token.
        token: u64,
        /// User data of the peer.
        data: Vec<u8>,
    },
    /// An endpoint's connection ended.
    Ended {
        /// The endpoint's token.
        token: u64,
    },
    /// An endpoint could not be connected.
    Failed {
        /// The endpoint's token.
        token: u64,
        /// Error ending the connection, or preventing its establishment.
        error: Error,
        /// User data of the peer's rejection.
        data: Vec<u8>,
    },
    /// Unknown event, or one of an endpoint closed meanwhile.
    Other,
}

/// A core provider's event queue.
#[derive(Debug)]
pub struct CoreEq {
    raw: NonNull<fid_eq>,
    /// Endpoints by their address as events name them.
    tokens: Mutex<HashMap<usize, u64>>,
    /// Request read without memory to report it.
    unreported: Mutex<Option<UnreportedRequest>>,
    /// Wait set of the queue; it must not be closed before the queue.
    _set: Option<Arc<CoreWaitSet>>,
    _fabric: Arc<CoreFabric>,
}

/// A request for a connection as the core reported it. Its info is ours to free.
#[derive(Debug)]
struct UnreportedRequest {
    info: *mut fi_info,
    data: Vec<u8>,
}

impl Drop for UnreportedRequest {
    fn drop(&mut self) {
        // SAFETY: the info of a request is the reader's (fi_cm(3)); null frees nothing.
        unsafe { abi::fi_freeinfo(self.info) };
    }
}

// SAFETY: an object of a core provider with FI_THREAD_SAFE, which may be used from any thread; an info belongs to no thread.
unsafe impl Send for CoreEq {}
// SAFETY: an object of a core provider with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreEq {}

impl CoreEq {
    /// Opens a queue, in the wait set or else with a wait descriptor if the core provider supports
    /// it.
    pub fn open(fabric: &Arc<CoreFabric>, set: Option<&Arc<CoreWaitSet>>) -> Result<Arc<Self>> {
        let open = |wait: fi_wait_obj| {
            let mut raw: *mut fid_eq = ptr::null_mut();
            // SAFETY: all zeros is a valid attribute; it lives for the call.
            unsafe {
                let mut attr = std::mem::zeroed::<fi_eq_attr>();
                attr.wait_obj = wait.into();
                attr.wait_set = set.map_or(ptr::null_mut(), |set| set.as_ptr());
                let open = call!(fabric.raw().as_ref().ops, eq_open);
                code(open(fabric.raw().as_ptr(), &mut attr, &mut raw, ptr::null_mut()))?;
            }
            NonNull::new(raw).ok_or(Error::OTHER)
        };
        let raw = match set {
            Some(_) => open(fi_wait_obj::FI_WAIT_SET),
            None => open(fi_wait_obj::FI_WAIT_FD).or_else(|_| open(fi_wait_obj::FI_WAIT_NONE)),
        }?;
        let (tokens, unreported, _set) = (Mutex::default(), Mutex::default(), set.cloned());
        Ok(Arc::new(Self { raw, tokens, unreported, _set, _fabric: fabric.clone() }))
    }

    pub(super) fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// Returns the descriptor that is readable for an event, if the core provider has one.
    pub fn fd(&self) -> Option<RawFd> {
        let mut fd: c_int = -1;
        // SAFETY: open; FI_GETWAIT of a queue with FI_WAIT_FD fills an int.
        unsafe { control(self.fid(), abi::FI_GETWAIT, (&raw mut fd).cast::<c_void>()) }.ok()?;
        (fd >= 0).then_some(fd)
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<usize, u64>> {
        self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// From now on events name this object by `token`.
    pub(super) fn name(&self, fid: *mut fid, token: u64) {
        self.tokens().insert(fid as usize, token);
    }

    /// Forgets a closed object: later events do not name it.
    pub(super) fn forget(&self, fid: *mut fid) {
        self.tokens().remove(&(fid as usize));
    }

    fn token(&self, fid: *mut fid) -> Option<u64> {
        self.tokens().get(&(fid as usize)).copied()
    }

    fn unreported(&self) -> MutexGuard<'_, Option<UnreportedRequest>> {
        self.unreported.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns a connection request as an event. Without memory it is stored for the next
    /// [`CoreEq::read`]: a lost request is neither accepted nor rejected, and the peer would wait
    /// for ever.
    fn report(&self, mut request: UnreportedRequest) -> Result<CoreEvent> {
        // SAFETY: the request has an info of the core's, or null.
        match unsafe { copy_info(request.info) } {
            Err(Error::NOMEM) => {
                *self.unreported() = Some(request);
                Err(Error::NOMEM)
            }
            copied => {
                let data = std::mem::take(&mut request.data);
                Ok(CoreEvent::Request { info: copied?, data })
            }
        }
    }

    /// The next event; `None` when there is none.
    pub fn read(&self) -> Result<Option<CoreEvent>> {
        let unreported = self.unreported().take();
        if let Some(request) = unreported {
            return self.report(request).map(Some);
        }
        #[repr(C, align(16))]
        struct EventBuf([u8; size_of::<fi_eq_cm_entry>() + CM_DATA]);
        let mut event_buf = EventBuf([0; size_of::<fi_eq_cm_entry>() + CM_DATA]);
        let mut event = 0u32;
        let _uncancelled = CancelDisabled::new();
        // SAFETY: the queue is open, the room is as long as said.
        let n = unsafe {
            let read = call!(self.raw.as_ref().ops, read);
            read(
                self.raw.as_ptr(),
                &mut event,
                event_buf.0.as_mut_ptr().cast(),
                event_buf.0.len(),
                0,
            )
        };
        if n < 0 {
            return match Error::from_code(-n as c_int) {
                Error::AGAIN => Ok(None),
                Error::AVAIL => self.read_error().map(Some),
                error => Err(error),
            };
        }
        let n = (n as usize).min(event_buf.0.len());
        if n < size_of::<fi_eq_cm_entry>() {
            return Ok(Some(CoreEvent::Other));
        }
        let data = event_buf.0[size_of::<fi_eq_cm_entry>()..n].to_vec();
        // SAFETY: the core wrote an entry there, which the room is aligned for;
        // every event that is not of connections has its fid there as well.
        let entry = unsafe { &*event_buf.0.as_ptr().cast::<fi_eq_cm_entry>() };
        let token = self.token(entry.fid);
        Ok(Some(match (event as i32, token) {
            (abi::FI_CONNREQ, _) => self.report(UnreportedRequest { info: entry.info, data })?,
            (abi::FI_CONNECTED, Some(token)) => CoreEvent::Connected { token, data },
            (abi::FI_SHUTDOWN, Some(token)) => CoreEvent::Ended { token },
            _ => CoreEvent::Other,
        }))
    }

    fn read_error(&self) -> Result<CoreEvent> {
        let mut data = [0u8; CM_DATA];
        // SAFETY: all zeros is a valid entry; the core fills it and the room for
        // data, which is as long as said.
        let (entry, data) = unsafe {
            let mut entry = std::mem::zeroed::<fi_eq_err_entry>();
            (entry.err_data, entry.err_data_size) = (data.as_mut_ptr().cast(), data.len());
            let read = call!(self.raw.as_ref().ops, readerr);
            let n = read(self.raw.as_ptr(), &mut entry, 0);
            if n < 0 {
                return Err(Error::from_code(-n as c_int));
            }
            // A core may also point to memory of its own, valid until the next read.
            let len = entry.err_data_size.min(CM_DATA);
            let given = if entry.err_data.is_null() {
                Vec::new()
            } else {
                std::slice::from_raw_parts(entry.err_data.cast::<u8>(), len).to_vec()
            };
            (entry, given)
        };
        Ok(match self.token(entry.fid) {
            Some(token) => CoreEvent::Failed { token, error: Error::from_code(entry.err), data },
            None => CoreEvent::Other,
        })
    }
}

impl Drop for CoreEq {
    fn drop(&mut self) {
        // SAFETY: each object bound to this one holds a reference on it, so none is left.
        let _ = unsafe { close(self.fid()) };
    }
}

/// A core provider's passive endpoint.
#[derive(Debug)]
pub struct CorePassiveEp {
    raw: NonNull<fid_pep>,
    /// Queue for the requests to a listener.
    eq: Option<Arc<CoreEq>>,
    _fabric: Arc<CoreFabric>,
}

// SAFETY: an object of a core provider with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CorePassiveEp {}
// SAFETY: an object of a core provider with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CorePassiveEp {}

impl CorePassiveEp {
    /// Listens at the source address of `info`; requests go to `eq`.
    pub fn listen(fabric: &Arc<CoreFabric>, info: &InfoBuf, eq: &Arc<CoreEq>) -> Result<Self> {
        let mut pep = Self::open(fabric, info)?;
        // SAFETY: both are open, and of one fabric.
        unsafe {
            bind(pep.fid(), eq.fid(), 0)?;
            pep.eq = Some(eq.clone());
            code(call!(pep.raw.as_ref().cm, listen)(pep.raw.as_ptr()))?;
        }
        Ok(pep)
    }

    /// Reserves an address without listening; a port of 0 is replaced by an allocated one.
    pub fn reserve(fabric: &Arc<CoreFabric>, info: &InfoBuf, addr: &Addr) -> Result<Self> {
        let pep = Self::open(fabric, info)?;
        let mut name = addr.to_bytes();
        // SAFETY: open; the core only reads the address, during the call.
        unsafe {
            let setname = call!(pep.raw.as_ref().cm, setname);
            code(setname(pep.fid(), name.as_mut_ptr().cast(), name.len()))?;
        }
        Ok(pep)
    }

    fn open(fabric: &Arc<CoreFabric>, info: &InfoBuf) -> Result<Self> {
        let mut raw: *mut fid_pep = ptr::null_mut();
        // SAFETY: the fabric is open; the core only reads the info, during the call.
        let raw = unsafe {
            let open = call!(fabric.raw().as_ref().ops, passive_ep);
            let info = info.as_ptr().cast_mut();
            code(open(fabric.raw().as_ptr(), info, &mut raw, ptr::null_mut()))?;
            NonNull::new(raw).ok_or(Error::OTHER)?
        };
        Ok(Self { raw, eq: None, _fabric: fabric.clone() })
    }

    fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// The passive endpoint's own address.
    pub fn name(&self) -> Result<Vec<u8>> {
        let mut name = vec![0; 256];
        let mut len = name.len();
        // SAFETY: open; the room is as long as said.
        unsafe {
            let getname = call!(self.raw.as_ref().cm, getname);
            code(getname(self.fid(), name.as_mut_ptr().cast(), &mut len))?;
        }
        name.truncate(len);
        Ok(name)
    }

    /// Returns the descriptors used by connections of the process, their maximum, and the number
    /// of connections waiting at the listener for space ([`OPT_CONN_USAGE`]). The maximum is 0 while no
    /// connection may be opened. Fails if the core provider does not report them.
    pub fn conn_usage(&self) -> Result<[usize; 3]> {
        let mut usage = [0u64; 3];
        let mut len = size_of_val(&usage);
        let (level, name) = (abi::FI_OPT_ENDPOINT as c_int, OPT_CONN_USAGE);
        // SAFETY: open; the value and its length live for the call.
        unsafe {
            let getopt = call!(self.raw.as_ref().ops, getopt);
            code(getopt(self.fid(), level, name, usage.as_mut_ptr().cast(), &mut len))?;
        }
        Ok(usage.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
    }

    /// Has connections wait at the listener while the descriptors of connections reach their maximum
    /// ([`OPT_ACCEPT_LIMIT`]).
    pub fn accept_within_limit(&self) -> Result {
        self.set_accept_limit(ACCEPT_WITHIN_LIMIT)
    }

    /// Lets one of them exceed the maximum.
    pub fn accept_one_more(&self) -> Result {
        self.set_accept_limit(ACCEPT_ONE_MORE)
    }

    fn set_accept_limit(&self, value: u8) -> Result {
        let (level, name) = (abi::FI_OPT_ENDPOINT as c_int, OPT_ACCEPT_LIMIT);
        // SAFETY: open; the value lives for the call.
        unsafe {
            let setopt = call!(self.raw.as_ref().ops, setopt);
            code(setopt(self.fid(), level, name, (&raw const value).cast(), 1))
        }
    }

    /// Refuses a request, sending `data` along.
    pub fn reject(&self, request: &InfoBuf, data: &[u8]) -> Result {
        let handle = request.as_ref().handle();
        // SAFETY: the handle is of a request that came through this endpoint.
        unsafe {
            let reject = call!(self.raw.as_ref().cm, reject);
            code(reject(self.raw.as_ptr(), handle, data.as_ptr().cast(), data.len()))
        }
    }
}

impl Drop for CorePassiveEp {
    fn drop(&mut self) {
        // SAFETY: open, and ours.
        let _ = unsafe { close(self.fid()) };
    }
}
