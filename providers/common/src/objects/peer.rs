//! Objects of another provider, the owner, used by a local peer object instead of its own
//! (fi_peer(3)), as passed with `FI_PEER` at its opening.
//!
//! The owner keeps its object until the peer's is closed, accepts calls from any thread, and does
//! the locking and waking (fi_peer(3)). Every `unsafe` here relies on it. Its functions are called
//! with local locks held, so they must not call back into the peer.
use crate::abi::{
    fi_addr_t, fi_av_attr, fi_cq_err_entry, fi_eq_cm_entry, fi_eq_entry, fi_ops_av_owner,
    fi_ops_cntr_owner, fi_ops_cq_owner, fi_peer_av_context, fi_peer_cntr_context,
    fi_peer_cq_context, fi_peer_domain_context, fi_peer_eq_context, fid_domain, fid_ep, fid_eq,
    fid_peer_av, fid_peer_cntr, fid_peer_cq,
};
use crate::completion::{Completion, CompletionError};
use crate::error::{Error, Result};
use crate::event::EqEvent;
use core::ffi::{c_int, c_void};
use libc::ssize_t;
use std::ptr::NonNull;

/// Common layout of all `struct fi_peer_*_context`.
#[repr(C)]
struct PeerContext<T> {
    size: usize,
    object: *mut T,
}
const _: () = {
    let size = size_of::<PeerContext<c_void>>();
    assert!(size == size_of::<fi_peer_cq_context>() && size == size_of::<fi_peer_cntr_context>());
    assert!(size == size_of::<fi_peer_av_context>() && size == size_of::<fi_peer_eq_context>());
    assert!(size == size_of::<fi_peer_domain_context>());
};

/// Returns the object in such a context. Fails with -FI_EINVAL if there is none.
///
/// # Safety
/// `context` is null or points to one with an object of type `T`.
pub(super) unsafe fn object<T>(context: *mut c_void) -> Result<NonNull<T>> {
    // SAFETY: by this function's contract; the size comes first, and says
    // whether there is more.
    unsafe {
        let context = context.cast::<PeerContext<T>>();
        if context.is_null() || (*context).size < size_of::<PeerContext<T>>() {
            return Err(Error::INVAL);
        }
        NonNull::new((*context).object).ok_or(Error::INVAL)
    }
}

/// Returns the owner's table, if it has all bytes of its `size`. Fails with -FI_EINVAL otherwise.
///
/// # Safety
/// `ops` is null or points to a table starting with its size.
pub(super) unsafe fn table<'a, T>(ops: *const T) -> Result<&'a T> {
    // SAFETY: by this function's contract: the size can be read in any case.
    unsafe {
        if ops.is_null() || *ops.cast::<usize>() < size_of::<T>() {
            return Err(Error::INVAL);
        }
        Ok(&*ops)
    }
}

type Write = unsafe extern "C" fn(
    *mut fid_peer_cq,
    *mut c_void,
    u64,
    usize,
    *mut c_void,
    u64,
    u64,
    fi_addr_t,
) -> ssize_t;

/// The owner of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqOwner {
    cq: NonNull<fid_peer_cq>,
    write: Write,
    write_error: unsafe extern "C" fn(*mut fid_peer_cq, *const fi_cq_err_entry) -> ssize_t,
}

// SAFETY: see the module.
unsafe impl Send for CqOwner {}
// SAFETY: see the module.
unsafe impl Sync for CqOwner {}

impl CqOwner {
    /// # Safety
    /// `context` is null or a `struct fi_peer_cq_context`.
    pub(crate) unsafe fn new(context: *mut c_void) -> Result<Self> {
        // SAFETY: by this function's contract.
        unsafe {
            let cq = object::<fid_peer_cq>(context)?;
            let ops: &fi_ops_cq_owner = table((*cq.as_ptr()).owner_ops)?;
            let write = ops.write.ok_or(Error::INVAL)?;
            Ok(Self { cq, write, write_error: ops.writeerr.ok_or(Error::INVAL)? })
        }
    }

    /// Passes the entry of a success to the owner. A rejected entry is lost: the capacity is the
    /// owner's responsibility (fi_peer(3)).
    pub(crate) fn write(&self, entry: &Completion) -> Result {
        let (buf, context) = (entry.buf as *mut c_void, entry.context.0);
        let Completion { flags, len, data, tag, src, .. } = *entry;
        // SAFETY: see the module.
        let ret =
            unsafe { (self.write)(self.cq.as_ptr(), context, flags, len, buf, data, tag, src) };
        Error::check(ret as c_int).map(drop)
    }

    /// Hands the entry of a failure to the owner.
    pub(crate) fn write_error(&self, error: &CompletionError) -> Result {
        let Completion { context, flags, len, buf, data, tag, src } = error.of;
        let err_data = match error.data.len() {
            0 => std::ptr::null_mut(),
            _ => error.data.as_ptr().cast_mut().cast(),
        };
        let entry = fi_cq_err_entry {
            op_context: context.0,
            flags,
            len,
            buf: buf as *mut c_void,
            data,
            tag,
            olen: error.olen,
            err: error.error.code(),
            prov_errno: error.prov_errno,
            err_data,
            err_data_size: error.data.len(),
            src_addr: src,
        };
        // SAFETY: see the module; the entry and its data are read in the call.
        let ret = unsafe { (self.write_error)(self.cq.as_ptr(), &raw const entry) };
        Error::check(ret as c_int).map(drop)
    }
}

/// The owner of a counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CntrOwner {
    cntr: NonNull<fid_peer_cntr>,
    inc: unsafe extern "C" fn(*mut fid_peer_cntr),
    inc_error: unsafe extern "C" fn(*mut fid_peer_cntr),
}

// SAFETY: see the module.
unsafe impl Send for CntrOwner {}
// SAFETY: see the module.
unsafe impl Sync for CntrOwner {}

impl CntrOwner {
    /// # Safety
    /// `context` is null or a `struct fi_peer_cntr_context`.
    pub(crate) unsafe fn new(context: *mut c_void) -> Result<Self> {
        // SAFETY: by this function's contract.
        unsafe {
            let cntr = object::<fid_peer_cntr>(context)?;
            let ops: &fi_ops_cntr_owner = table((*cntr.as_ptr()).owner_ops)?;
            let inc = ops.inc.ok_or(Error::INVAL)?;
            Ok(Self { cntr, inc, inc_error: ops.incerr.ok_or(Error::INVAL)? })
        }
    }

    /// Counts one operation in the owner's counter.
    pub(crate) fn completed(&self) {
        // SAFETY: see the module.
        unsafe { (self.inc)(self.cntr.as_ptr()) };
    }

    /// Counts one failure in the owner's counter.
    pub(crate) fn failed(&self) {
        // SAFETY: see the module.
        unsafe { (self.inc_error)(self.cntr.as_ptr()) };
    }
}

/// The owner of an address vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AvOwner {
    av: NonNull<fid_peer_av>,
    query: unsafe extern "C" fn(*mut fid_peer_av, *mut fi_av_attr) -> c_int,
    ep_addr: unsafe extern "C" fn(*mut fid_peer_av, *mut fid_ep) -> fi_addr_t,
}

// SAFETY: see the module.
unsafe impl Send for AvOwner {}
// SAFETY: see the module.
unsafe impl Sync for AvOwner {}

impl AvOwner {
    /// # Safety
    /// `context` is null or a `struct fi_peer_av_context`.
    pub(crate) unsafe fn new(context: *mut c_void) -> Result<Self> {
        // SAFETY: by this function's contract.
        unsafe {
            let av = object::<fid_peer_av>(context)?;
            let ops: &fi_ops_av_owner = table((*av.as_ptr()).owner_ops)?;
            let query = ops.query.ok_or(Error::INVAL)?;
            Ok(Self { av, query, ep_addr: ops.ep_addr.ok_or(Error::INVAL)? })
        }
    }

    /// The attributes of the owner's vector as they are now.
    pub(crate) fn query(&self) -> Result<fi_av_attr> {
        // SAFETY: all zeros is a valid fi_av_attr: numbers and null pointers.
        let mut attr = unsafe { std::mem::zeroed::<fi_av_attr>() };
        // SAFETY: see the module.
        Error::check(unsafe { (self.query)(self.av.as_ptr(), &raw mut attr) })?;
        Ok(attr)
    }

    /// The address of a local endpoint in the owner's vector, FI_ADDR_NOTAVAIL if it has none.
    pub(crate) fn ep_addr(&self, ep: *mut fid_ep) -> fi_addr_t {
        // SAFETY: see the module; the owner only compares the endpoint.
        unsafe { (self.ep_addr)(self.av.as_ptr(), ep) }
    }
}

/// The owner's event queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EqOwner(NonNull<fid_eq>);

// SAFETY: see the module.
unsafe impl Send for EqOwner {}
// SAFETY: see the module.
unsafe impl Sync for EqOwner {}

impl EqOwner {
    /// # Safety
    /// `context` is null or a `struct fi_peer_eq_context`.
    pub(crate) unsafe fn new(context: *mut c_void) -> Result<Self> {
        // SAFETY: by this function's contract.
        unsafe {
            let eq = object::<fid_eq>(context)?;
            table((*eq.as_ptr()).ops)?.write.ok_or(Error::INVAL)?;
            Ok(Self(eq))
        }
    }

    /// Passes an event on, or returns it: failures cannot be written to another provider's queue,
    /// and the queue may reject others.
    pub(crate) fn write(&self, event: EqEvent) -> std::result::Result<(), EqEvent> {
        let done = match &event {
            EqEvent::Error(_) => return Err(event),
            EqEvent::Written { event, bytes } => self.write_bytes(*event, bytes),
            EqEvent::Done { event, fid, context, data } => {
                let entry = fi_eq_entry { fid: fid.0, context: context.0, data: *data };
                self.write_bytes(*event, as_bytes(&entry))
            }
            EqEvent::Cm { event, fid, info, data } => {
                let info = info.as_ref().map_or(std::ptr::null_mut(), |i| i.as_ptr().cast_mut());
                // The data starts behind the entry, of which it is no part in Rust.
                let entry = fi_eq_cm_entry { fid: fid.0, info, data: [] };
                self.write_bytes(*event, &[as_bytes(&entry), data].concat())
            }
        };
        match (done, event) {
            (Err(_), event) => Err(event),
            (Ok(()), EqEvent::Cm { info: Some(info), .. }) => {
                // The reader of the event frees it.
                info.into_raw();
                Ok(())
            }
            (Ok(()), _) => Ok(()),
        }
    }

    fn write_bytes(&self, event: u32, bytes: &[u8]) -> Result {
        // SAFETY: see the module; `new` has seen that there is such a function.
        let ret = unsafe {
            let write = (*(*self.0.as_ptr()).ops).write.ok_or(Error::NOSYS)?;
            write(self.0.as_ptr(), event, bytes.as_ptr().cast(), bytes.len(), 0)
        };
        Error::check(ret as c_int).map(drop)
    }
}

/// Returns an entry as the bytes for `fi_eq_write`.
fn as_bytes<T: EqEntry>(entry: &T) -> &[u8] {
    // SAFETY: plain old data without padding, see `EqEntry`.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(entry).cast(), size_of::<T>()) }
}

/// # Safety
/// A `repr(C)` structure without padding.
unsafe trait EqEntry {}
// SAFETY: three words.
unsafe impl EqEntry for fi_eq_entry {}
// SAFETY: two words, and an array of no length.
unsafe impl EqEntry for fi_eq_cm_entry {}

/// Checks for a domain in a `struct fi_peer_domain_context`. Standalone providers do not use its
/// operations.
///
/// # Safety
/// `context` is null or such a structure.
pub(crate) unsafe fn check_domain(context: *mut c_void) -> Result {
    // SAFETY: by this function's contract.
    unsafe { object::<fid_domain>(context) }.map(drop)
}
