//! `struct fid_pep` for any [`PassiveEp`].
use super::connreq::{ConnRequest, take_request};
use super::ep::control::give_name;
use super::fabric_fid::FabricFid;
use super::traits::{Fabric, PassiveEp, Reject};
use crate::abi::{
    self, FI_CLASS_EQ, FI_CLASS_PEP, fi_ops, fi_ops_cm, fi_ops_ep, fid, fid_pep, fid_t,
};
use crate::boundary::{ffi_guard, ffi_guard_if_memory};
use crate::eq::{Eq, EqEvent, FidPtr};
use crate::error::{Error, Result};
use crate::fid::{FidObject, class_of, enosys_stub, ops};
use crate::fid_registry::FidRegistry;
use crate::info::{InfoBuf, InfoRef};
use crate::object::{Object, Parent};
use crate::progress::Progress;
use crate::scoped_buf::{bytes, copy_out};
use core::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock, Weak};

/// Maximum length of an option's value in bytes.
const MAX_OPTION: usize = 32;

/// Passive endpoint of providers without one; the type has no values.
#[derive(Debug)]
pub enum NoPassiveEp {}

impl Reject for NoPassiveEp {
    fn reject(self, _param: &[u8]) -> Result {
        match self {}
    }
}

impl PassiveEp for NoPassiveEp {
    type Request = Self;

    fn listen(&self, _eq: Arc<Eq>, _fid: FidPtr) -> Result {
        match *self {}
    }
    fn progress_source(&self) -> Arc<dyn Progress> {
        match *self {}
    }
    fn getname(&self) -> Result<Vec<u8>> {
        match *self {}
    }
    fn setname(&self, _addr: &[u8]) -> Result {
        match *self {}
    }
    fn set_backlog(&self, _backlog: c_int) -> Result {
        match *self {}
    }
    fn cm_data_size(&self) -> usize {
        match *self {}
    }
    fn close(&self) {
        match *self {}
    }
}

/// Reporter of connection requests of a passive endpoint, with their info; common to all providers.
/// Before fi_listen nothing is reported.
#[derive(Debug)]
pub struct ConnReqReporter {
    to: Option<(Arc<Eq>, FidPtr)>,
    /// Info passed to the application with a request, without the addresses.
    info: InfoBuf,
}

impl ConnReqReporter {
    /// Returns the reporter of an endpoint not listening yet.
    pub fn new(info: InfoBuf) -> Self {
        Self { to: None, info }
    }

    /// -FI_EOPBADSTATE if the endpoint listens.
    pub fn check_silent(&self) -> Result {
        if self.to.is_some() { Err(Error::OPBADSTATE) } else { Ok(()) }
    }

    /// Requests go to `eq` from now on, naming `fid`.
    pub fn listen(&mut self, eq: Arc<Eq>, fid: FidPtr) {
        self.to = Some((eq, fid));
    }

    /// Closes the reporter and drops unanswered requests.
    pub fn close(&mut self) {
        if let Some((_, fid)) = self.to.take() {
            ConnRequest::drop_all_of(fid.0 as usize);
        }
    }

    /// Closes the reporter and drops requests with unread events. The application can still answer
    /// the others until it closes the event queue, for providers with requests independent of the
    /// passive endpoint.
    pub fn close_unread(&mut self) {
        if let Some((eq, fid)) = self.to.take() {
            let read = ConnRequest::drop_unread_of(fid.0 as usize, &eq.unread_requests(fid));
            eq.hold_until_closed(Box::new(read));
        }
    }

    /// Reports a request (FI_CONNREQ) to the address `local` from `peer` with this user data to the
    /// application, after `complete` has added further data to its info. Returns the handle for the
    /// application's answer.
    pub fn announce<R: Reject>(
        &self,
        request: R,
        [local, peer]: [Option<&[u8]>; 2],
        data: Vec<u8>,
        complete: impl FnOnce(&mut InfoBuf) -> Result,
    ) -> Result<*const fid> {
        let Some((eq, fid)) = &self.to else { return Err(Error::NOEQ) };
        let mut info = self.info.as_ref().to_owned()?;
        info.set_src_addr(local)?;
        info.set_dest_addr(peer)?;
        complete(&mut info)?;
        let handle = ConnRequest::keep(request, fid.0 as usize);
        info.set_handle(handle);
        let event = abi::FI_CONNREQ as u32;
        eq.write(EqEvent::Cm { event, fid: *fid, info: Some(info), data });
        Ok(handle)
    }
}

/// A passive endpoint of any provider, as far as it has an address.
trait Named: Send + Sync {
    fn name(&self) -> Result<Vec<u8>>;
}

impl<P: PassiveEp> Named for PepFid<P> {
    fn name(&self) -> Result<Vec<u8>> {
        self.inner.getname()
    }
}

/// The open passive endpoints by the address of their fid. A handle is looked up here, not
/// followed.
static OPEN: FidRegistry<Weak<dyn Named>> = FidRegistry::new();

/// Returns the address of the passive endpoint named by an endpoint's `info->handle`
/// (fi_endpoint(3)): the endpoint takes this address. Returns `None` if the handle is not an open
/// passive endpoint.
pub fn passive_name(handle: *const fid) -> Option<Result<Vec<u8>>> {
    let pep = OPEN.get(handle as usize)?.upgrade()?;
    Some(pep.name())
}

/// A passive endpoint, as C holds it.
#[repr(C)]
pub struct PepFid<P> {
    c: fid_pep,
    inner: P,
    eq: OnceLock<Arc<Eq>>,
    reject: fn(*const fid, &[u8]) -> Result,
    fabric: Parent,
}

// SAFETY: the C part is written once, in `open`; `P` is Send + Sync by its trait.
unsafe impl<P: PassiveEp> Sync for PepFid<P> {}
// SAFETY: the C part is written once, in `open`; `P` is Send + Sync by its trait.
unsafe impl<P: PassiveEp> Send for PepFid<P> {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl<P: PassiveEp> FidObject<fid_pep> for PepFid<P> {}

impl<P> std::fmt::Debug for PepFid<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PepFid")
    }
}

fn reject_request<R: Reject>(handle: *const fid, param: &[u8]) -> Result {
    take_request::<R>(handle)?.reject(param)
}

impl<P: PassiveEp> PepFid<P> {
    const FID_OPS: &'static fi_ops =
        &fi_ops { bind: Some(bind::<P>), control: Some(control::<P>), ..ops(close::<P>) };

    const EP_OPS: &'static fi_ops_ep = &fi_ops_ep {
        size: size_of::<fi_ops_ep>(),
        cancel: enosys_stub(),
        getopt: Some(getopt::<P>),
        setopt: Some(setopt::<P>),
        tx_ctx: enosys_stub(),
        rx_ctx: enosys_stub(),
        rx_size_left: enosys_stub(),
        tx_size_left: enosys_stub(),
        export_xpu: enosys_stub(),
    };

    const CM_OPS: &'static fi_ops_cm = &fi_ops_cm {
        size: size_of::<fi_ops_cm>(),
        setname: Some(setname::<P>),
        getname: Some(getname::<P>),
        getpeer: enosys_stub(),
        connect: enosys_stub(),
        listen: Some(listen::<P>),
        accept: enosys_stub(),
        reject: Some(reject::<P>),
        shutdown: enosys_stub(),
        join: enosys_stub(),
    };

    pub(super) fn open<F: Fabric<PassiveEp = P>>(
        fabric: &Arc<FabricFid<F>>,
        info: InfoRef<'_>,
        context: *mut c_void,
    ) -> Result<Arc<Self>> {
        let inner = fabric.inner.passive_ep(info, fabric.api_version())?;
        let pep = Arc::new(Self {
            c: fid_pep {
                fid: fid {
                    fclass: FI_CLASS_PEP as usize,
                    context,
                    ops: std::ptr::from_ref(Self::FID_OPS).cast_mut(),
                },
                ops: std::ptr::from_ref(Self::EP_OPS).cast_mut(),
                cm: std::ptr::from_ref(Self::CM_OPS).cast_mut(),
            },
            inner,
            eq: OnceLock::new(),
            reject: reject_request::<P::Request>,
            fabric: fabric.parent(),
        });
        let named: Weak<dyn Named> = Arc::downgrade(&(pep.clone() as Arc<dyn Named>));
        OPEN.insert(Arc::as_ptr(&pep) as usize, named);
        Ok(pep)
    }
}

// SAFETY of the entry points below: each is reachable only through the ops
// tables of a passive endpoint of the same `P` that is open, or with null.

unsafe extern "C" fn close<P: PassiveEp>(fid: *mut fid) -> c_int {
    ffi_guard("fi_close(pep)", || {
        // SAFETY: see above; checked for null before it is taken back.
        let pep = unsafe {
            PepFid::<P>::from_c(fid.cast::<fid_pep>())?;
            PepFid::<P>::take(fid.cast::<fid_pep>())
        };
        OPEN.remove(fid as usize);
        pep.inner.close();
        if let Some(eq) = pep.eq.get() {
            eq.forget(FidPtr(fid));
            eq.remove_user();
        }
        pep.fabric.leave();
        Ok(())
    })
}

unsafe extern "C" fn bind<P: PassiveEp>(fid: *mut fid, bfid: *mut fid, _flags: u64) -> c_int {
    ffi_guard_if_memory("fi_pep_bind", || {
        // SAFETY: see above; `bfid` is an open object of the application's or null.
        unsafe {
            let pep = PepFid::<P>::from_c(fid.cast::<fid_pep>())?;
            if class_of(bfid) != Some(FI_CLASS_EQ as usize) {
                return Err(Error::INVAL);
            }
            let eq = Eq::from_fid(bfid)?;
            eq.add_source(&pep.inner.progress_source())?;
            eq.add_user();
            pep.eq.set(eq).map_err(|eq| {
                eq.remove_user();
                Error::INVAL
            })
        }
    })
}

unsafe extern "C" fn control<P: PassiveEp>(
    fid: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    ffi_guard("fi_control(pep)", || {
        // SAFETY: see above.
        let pep = unsafe { PepFid::<P>::from_c(fid.cast::<fid_pep>()) }?;
        match command {
            abi::FI_BACKLOG => {
                // SAFETY: FI_BACKLOG passes an int (fi_endpoint(3)).
                let backlog = unsafe { arg.cast::<c_int>().as_ref() }.ok_or(Error::INVAL)?;
                pep.inner.set_backlog(*backlog)
            }
            _ => Err(Error::NOSYS),
        }
    })
}

unsafe extern "C" fn getopt<P: PassiveEp>(
    fid: fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    ffi_guard("fi_getopt(pep)", || {
        // SAFETY: see above.
        let pep = unsafe { PepFid::<P>::from_c(fid.cast::<fid_pep>()) }?;
        if level != abi::FI_OPT_ENDPOINT {
            return Err(Error::NOPROTOOPT);
        }
        let mut option = [0; MAX_OPTION];
        let n = match name {
            abi::FI_OPT_CM_DATA_SIZE => {
                let size = pep.inner.cm_data_size().to_ne_bytes();
                option[..size.len()].copy_from_slice(&size);
                size.len()
            }
            name => pep.inner.getopt(name, &mut option)?,
        };
        if value.is_null() || len.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: the caller gives `*len` bytes at `value`.
        if unsafe { copy_out(&option[..n], value, len) } { Ok(()) } else { Err(Error::TOOSMALL) }
    })
}

unsafe extern "C" fn setname<P: PassiveEp>(fid: fid_t, addr: *mut c_void, len: usize) -> c_int {
    ffi_guard("fi_setname(pep)", || {
        // SAFETY: see above; the caller gives `len` bytes at `addr`.
        unsafe { PepFid::<P>::from_c(fid.cast::<fid_pep>())?.inner.setname(bytes(addr, len)) }
    })
}

unsafe extern "C" fn getname<P: PassiveEp>(
    fid: fid_t,
    addr: *mut c_void,
    len: *mut usize,
) -> c_int {
    ffi_guard("fi_getname(pep)", || {
        // SAFETY: see above; the buffer is the caller's.
        unsafe {
            let name = PepFid::<P>::from_c(fid.cast::<fid_pep>())?.inner.getname()?;
            give_name(&name, addr, len)
        }
    })
}

unsafe extern "C" fn listen<P: PassiveEp>(pep: *mut fid_pep) -> c_int {
    ffi_guard_if_memory("fi_listen", || {
        // SAFETY: see above.
        let inner = unsafe { PepFid::<P>::from_c(pep) }?;
        let eq = inner.eq.get().ok_or(Error::NOEQ)?;
        inner.inner.listen(eq.clone(), FidPtr(pep.cast()))
    })
}

unsafe extern "C" fn reject<P: PassiveEp>(
    pep: *mut fid_pep,
    handle: fid_t,
    param: *const c_void,
    param_len: usize,
) -> c_int {
    ffi_guard("fi_reject", || {
        // SAFETY: see above; `param` has `param_len` bytes. The handle is looked
        // up, not followed.
        unsafe {
            let pep = PepFid::<P>::from_c(pep)?;
            // Data exceeding a message is cut off (fi_cm(3)).
            let len = param_len.min(pep.inner.cm_data_size());
            (pep.reject)(handle, bytes(param, len))
        }
    })
}

unsafe extern "C" fn setopt<P: PassiveEp>(
    fid: fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    ffi_guard("fi_setopt(pep)", || {
        // SAFETY: see above.
        let pep = unsafe { PepFid::<P>::from_c(fid.cast::<fid_pep>()) }?;
        if level != abi::FI_OPT_ENDPOINT {
            return Err(Error::NOPROTOOPT);
        }
        // SAFETY: the caller gives `len` bytes at `value`, or null.
        pep.inner.setopt(name, unsafe { bytes(value, len) })
    })
}
