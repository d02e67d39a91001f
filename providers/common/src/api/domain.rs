//! `struct fid_domain` for any [`Domain`].
use super::domain_fid::{DomainFid, open_on};
use super::ep::fid::EpFid;
use super::imported::ImportedSrx;
use super::new_domain::{BecomesFid, NewDomain, OnFabric};
use super::stx::Stx;
use super::traits::{Atomic, Domain, Endpoint};
use super::{atomic, collective, opened, peer_transfer, trigger};
use crate::abi::{
    self, FI_CLASS_DOMAIN, FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC, FI_MULTICAST, FI_PEER,
    FI_PEER_TRANSFER, FI_REG_MR, FI_TAGGED, c_enum, fi_atomic_attr, fi_av_attr, fi_cntr_attr,
    fi_cntr_events, fi_cq_attr, fi_datatype, fi_hmem_iface, fi_info, fi_mr_attr, fi_op, fi_ops,
    fi_ops_av, fi_ops_domain, fi_ops_mr, fi_poll_attr, fi_rx_attr, fi_tx_attr, fid, fid_av,
    fid_cntr, fid_cq, fid_domain, fid_ep, fid_mr, fid_poll, fid_stx,
};
use crate::atomic::AtomicKind;
use crate::attr::RxAttr;
use crate::av::{self, Av};
use crate::boundary::{ffi_guard, ffi_guard_if_memory};
use crate::cntr::Cntr;
use crate::coll;
use crate::cq::Cq;
use crate::deferred::{self, DeferredProgress, DeferredQueue};
use crate::eq::Eq;
use crate::error::{Error, Result};
use crate::fid::{FidObject, enosys_stub, ops};
use crate::info::InfoRef;
use crate::mr::Mr;
use crate::object::Object;
use crate::peer_srx::SrxOwner;
use crate::poll::PollSet;
use core::ffi::{c_int, c_void};
use libc::iovec;
use std::sync::Arc;

impl<D: Domain> From<D> for NewDomain {
    fn from(domain: D) -> Self {
        Self::new(Box::new(domain))
    }
}

impl<D: Domain> BecomesFid for D {
    fn into_c(
        self: Box<Self>,
        on: OnFabric,
        info: InfoRef<'_>,
        context: *mut c_void,
    ) -> Result<*mut fid_domain> {
        Ok(DomainFid::open(*self, on, info, context)?.into_c())
    }
}

impl<D: Domain> DomainFid<D> {
    const FID_OPS: &'static fi_ops =
        &fi_ops { control: Some(trigger::control::<D>), bind: Some(bind::<D>), ..ops(close::<D>) };

    const OPS: &'static fi_ops_domain = &fi_ops_domain {
        size: size_of::<fi_ops_domain>(),
        av_open: Some(av_open::<D>),
        cq_open: Some(cq_open::<D>),
        endpoint: Some(endpoint::<D>),
        scalable_ep: Some(scalable_ep::<D>),
        cntr_open: Some(cntr_open::<D>),
        poll_open: Some(poll_open::<D>),
        stx_ctx: Some(stx_ctx::<D>),
        srx_ctx: Some(srx_ctx::<D>),
        query_atomic: Some(query_atomic::<D>),
        query_collective: Some(collective::query::<D>),
        endpoint2: Some(endpoint2::<D>),
        xpu_ctx: enosys_stub(),
    };

    const MR_OPS: &'static fi_ops_mr = &fi_ops_mr {
        size: size_of::<fi_ops_mr>(),
        reg: Some(reg::<D>),
        regv: Some(regv::<D>),
        regattr: Some(regattr::<D>),
    };

    fn open(inner: D, on: OnFabric, info: InfoRef<'_>, context: *mut c_void) -> Result<Arc<Self>> {
        let mut progress = inner.progress_source();
        let mut later = None;
        if D::Endpoint::LATER && info.caps() & deferred::CAPS != 0 {
            let new = DeferredQueue::new()?;
            progress = DeferredProgress::new(progress, new.clone());
            inner.settings().attend(&progress);
            later = Some(new);
        }
        let c = fid_domain {
            fid: fid {
                fclass: FI_CLASS_DOMAIN as usize,
                context,
                ops: std::ptr::from_ref(Self::FID_OPS).cast_mut(),
            },
            ops: std::ptr::from_ref(Self::OPS).cast_mut(),
            mr: std::ptr::from_ref(Self::MR_OPS).cast_mut(),
        };
        Ok(Arc::new(Self::new(c, inner, on, progress, later)))
    }
}

// SAFETY of the entry points below: each is reachable only through the ops
// tables of a domain of the same `D`, or with null. Attributes are copied field
// by field, because an old caller's structure is shorter than ours.

unsafe extern "C" fn close<D: Domain>(fid: *mut fid) -> c_int {
    ffi_guard("fi_close(domain)", || {
        // SAFETY: see above.
        unsafe { DomainFid::<D>::from_c(fid.cast()) }?.check_unused()?;
        opened::remove_domain(fid.cast());
        // SAFETY: see above; nothing of ours uses it any more.
        let domain = unsafe { DomainFid::<D>::take(fid.cast()) };
        domain.leave();
        Ok(())
    })
}

unsafe extern "C" fn bind<D: Domain>(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    ffi_guard_if_memory("fi_domain_bind", || {
        if bfid.is_null() {
            return Err(Error::INVAL);
        }
        // Registration is never asynchronous (FI_REG_MR).
        if flags & FI_REG_MR != 0 {
            return Err(Error::NOSYS);
        }
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        // SAFETY: see above; the application binds an open event queue.
        let (domain, eq) = unsafe { (DomainFid::<D>::from_c(fid.cast())?, Eq::from_fid(bfid)?) };
        domain.eq().set(eq)
    })
}

/// Calls of an address vector, with sets for collectives.
static AV_OPS: fi_ops_av = fi_ops_av { av_set: Some(coll::av_set), ..av::AV_OPS };

/// The same for addresses of another provider (fi_peer(3)).
static PEER_AV_OPS: fi_ops_av = fi_ops_av { av_set: Some(coll::peer_av_set), ..av::AV_OPS };

unsafe extern "C" fn av_open<D: Domain>(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_av_open", || {
        // SAFETY: see above; the attributes are the caller's or null.
        unsafe {
            open_on::<D, Av, _>(domain, out, |domain| {
                let settings = domain.inner.settings();
                let (format, sharing) = (settings.addr_format, settings.sharing);
                let av = Av::open(domain.parent(), format, sharing, attr.as_mut(), context)?
                    .with_default_eq(domain.eq().clone());
                Ok(av.with_ops(if D::Endpoint::TRANSFERS { &PEER_AV_OPS } else { &AV_OPS }))
            })
        }
    })
}

unsafe extern "C" fn cq_open<D: Domain>(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_cq_open", || {
        // SAFETY: see above; of the attributes only the part every version has is read.
        unsafe {
            let attr = (!attr.is_null()).then(|| fi_cq_attr {
                size: (*attr).size,
                flags: (*attr).flags,
                format: (*attr).format,
                wait_obj: (*attr).wait_obj,
                signaling_vector: (*attr).signaling_vector,
                wait_cond: (*attr).wait_cond,
                wait_set: (*attr).wait_set,
                xpu_ctx: std::ptr::null_mut(),
            });
            open_on::<D, Cq, _>(domain, out, |domain| {
                Cq::open(domain.for_queue(), attr.as_ref(), context)
            })
        }
    })
}

unsafe extern "C" fn cntr_open<D: Domain>(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_cntr_open", || {
        // SAFETY: see above; of the attributes only the part every version has is read.
        unsafe {
            let attr = (!attr.is_null()).then(|| fi_cntr_attr {
                events: (*attr).events,
                wait_obj: (*attr).wait_obj,
                wait_set: (*attr).wait_set,
                flags: (*attr).flags,
                xpu_ctx: std::ptr::null_mut(),
            });
            open_on::<D, Cntr, _>(domain, out, |domain| {
                let bytes =
                    |attr: &fi_cntr_attr| attr.events == fi_cntr_events::FI_CNTR_EVENTS_BYTES;
                if !D::COUNTS_BYTES && attr.as_ref().is_some_and(bytes) {
                    return Err(Error::NOSYS);
                }
                Cntr::open(domain.for_queue(), attr.as_ref(), context)
            })
        }
    })
}

unsafe extern "C" fn poll_open<D: Domain>(
    domain: *mut fid_domain,
    attr: *mut fi_poll_attr,
    out: *mut *mut fid_poll,
) -> c_int {
    ffi_guard_if_memory("fi_poll_open", || {
        // SAFETY: see above; the attributes are the caller's or null.
        unsafe {
            open_on::<D, PollSet, _>(domain, out, |domain| {
                PollSet::open(attr.as_ref(), domain.parent())
            })
        }
    })
}

unsafe fn open_endpoint<D: Domain>(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result {
    // SAFETY: see above; the info is the caller's.
    unsafe {
        let info = InfoRef::from_c(info)?;
        open_on::<D, EpFid<D::Endpoint>, _>(domain, out, |domain| {
            let parent = domain.parent();
            if D::Endpoint::LATER
                && info.caps() & FI_MULTICAST != 0
                && domain.deferred_work().is_none()
            {
                // Peers would wait for answers that only a domain opened for these capabilities
                // gives.
                return Err(Error::INVAL);
            }
            domain.inner.settings().check_endpoint(info)?;
            let inner = domain.inner.endpoint(info)?;
            Ok(EpFid::open(inner, info, domain.ground(parent), context))
        })
    }
}

unsafe extern "C" fn endpoint<D: Domain>(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_endpoint", || {
        if D::Endpoint::TRANSFERS {
            // SAFETY: see above; with FI_PEER_TRANSFER in the info's mode the context is as fi_peer(3) has it.
            return unsafe { peer_transfer::open::<D>(domain, info, out, context.cast()) };
        }
        // SAFETY: see above.
        unsafe { open_endpoint::<D>(domain, info, out, context) }
    })
}

unsafe extern "C" fn endpoint2<D: Domain>(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_endpoint2", || {
        if D::Endpoint::TRANSFERS && flags == FI_PEER_TRANSFER {
            // SAFETY: see above; with FI_PEER_TRANSFER the context is as fi_peer(3) has it.
            return unsafe { peer_transfer::open::<D>(domain, info, out, context.cast()) };
        }
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        // SAFETY: see above.
        unsafe { open_endpoint::<D>(domain, info, out, context) }
    })
}

unsafe extern "C" fn scalable_ep<D: Domain>(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_scalable_ep", || {
        // SAFETY: see above; the info is the caller's.
        unsafe {
            let info = InfoRef::from_c(info)?;
            open_on::<D, EpFid<D::Endpoint>, _>(domain, out, |domain| {
                let parent = domain.parent();
                domain.inner.settings().check_endpoint(info)?;
                let inner = domain.inner.scalable_ep(info)?;
                Ok(EpFid::open_scalable(inner, info, domain.ground(parent), context))
            })
        }
    })
}

unsafe extern "C" fn stx_ctx<D: Domain>(
    domain: *mut fid_domain,
    _attr: *mut fi_tx_attr,
    out: *mut *mut fid_stx,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_stx_context", || {
        if !D::SHARED_TX {
            return Err(Error::NOSYS);
        }
        // SAFETY: see above.
        unsafe {
            open_on::<D, Stx, _>(domain, out, |domain| Ok(Stx::open(domain.parent(), context)))
        }
    })
}

/// Opens another provider's receive queue.
///
/// # Safety
/// As for [`srx_ctx`] with a context that is null or a `struct fi_peer_srx_context`.
unsafe fn import_srx<D: Domain>(
    domain: *mut fid_domain,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result {
    // SAFETY: by this function's contract.
    unsafe {
        DomainFid::<D>::arc_from_c(domain)?;
        if !D::IMPORTS {
            return Err(Error::NOSYS);
        }
        let out = out.as_mut().ok_or(Error::INVAL)?;
        // With FI_PEER the context was only for opening.
        *out = ImportedSrx::open(SrxOwner::new(context)?, std::ptr::null_mut());
    }
    Ok(())
}

unsafe extern "C" fn srx_ctx<D: Domain>(
    domain: *mut fid_domain,
    attr: *mut fi_rx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_srx_context", || {
        // SAFETY: see above; of the attributes, which are the caller's or null,
        // only fields that every version has are read.
        unsafe {
            let rx = if attr.is_null() {
                RxAttr::default()
            } else {
                if (*attr).op_flags & FI_PEER != 0 {
                    return import_srx::<D>(domain, out, context);
                }
                RxAttr {
                    caps: (*attr).caps,
                    op_flags: (*attr).op_flags,
                    msg_order: (*attr).msg_order,
                    size: (*attr).size,
                    iov_limit: (*attr).iov_limit,
                }
            };
            open_on::<D, EpFid<D::Endpoint>, _>(domain, out, |domain| {
                let parent = domain.parent();
                let inner = domain.inner.srx_context(rx)?;
                Ok(EpFid::open_srx(inner, rx, domain.ground(parent), context))
            })
        }
    })
}

/// Opens a region. `iface` is null or points to the interface of its memory, readable if the
/// application requested FI_HMEM.
unsafe fn register<D: Domain>(
    fid: *mut fid,
    mut attr: fi_mr_attr,
    iface: *const c_enum<fi_hmem_iface>,
    flags: u64,
    out: *mut *mut fid_mr,
) -> Result {
    // SAFETY: see above; a domain's fid is its first field; what the attributes point to
    // is the caller's, whose version is one that knows FI_HMEM if that is asked for.
    unsafe {
        open_on::<D, Mr, _>(fid.cast(), out, |domain| {
            let regions = domain.inner.settings().regions.clone();
            if regions.hmem() && !iface.is_null() {
                attr.iface = *iface;
            }
            Mr::open(regions, domain.parent(), &attr, flags).inspect_err(|error| {
                if flags & abi::FI_MR_DMABUF != 0 {
                    domain.inner.settings().report_dmabuf(*error);
                }
            })
        })
    }
}

fn mr_attr(
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> fi_mr_attr {
    // SAFETY: all zeros is a valid fi_mr_attr: numbers and null pointers.
    let mut attr = unsafe { std::mem::zeroed::<fi_mr_attr>() };
    attr.mr_iov = iov;
    attr.iov_count = count;
    attr.access = access;
    attr.offset = offset;
    attr.requested_key = key;
    attr.context = context;
    attr
}

unsafe extern "C" fn reg<D: Domain>(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_mr_reg", || {
        let iov = iovec { iov_base: buf.cast_mut(), iov_len: len };
        let attr = mr_attr(&raw const iov, 1, access, offset, key, context);
        // SAFETY: see above; `iov` outlives the call.
        unsafe { register::<D>(fid, attr, std::ptr::null(), flags, out) }
    })
}

unsafe extern "C" fn regv<D: Domain>(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_mr_regv", || {
        let attr = mr_attr(iov, count, access, offset, key, context);
        // SAFETY: see above; the iovecs are the caller's.
        unsafe { register::<D>(fid, attr, std::ptr::null(), flags, out) }
    })
}

unsafe extern "C" fn regattr<D: Domain>(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    ffi_guard_if_memory("fi_mr_regattr", || {
        if attr.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: see above; only fields that every version has are read here.
        unsafe {
            let iface = &raw const (*attr).iface;
            let attr = mr_attr(
                (*attr).mr_iov,
                (*attr).iov_count,
                (*attr).access,
                (*attr).offset,
                (*attr).requested_key,
                (*attr).context,
            );
            register::<D>(fid, attr, iface, flags, out)
        }
    })
}

unsafe extern "C" fn query_atomic<D: Domain>(
    domain: *mut fid_domain,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    ffi_guard("fi_query_atomic", || {
        let kind = match flags {
            0 => AtomicKind::Base,
            FI_FETCH_ATOMIC => AtomicKind::Fetch,
            FI_COMPARE_ATOMIC => AtomicKind::Compare,
            // Atomic operations on tagged receives are not supported.
            flags if flags & FI_TAGGED != 0 => return Err(Error::INVAL),
            _ => return Err(Error::BADFLAGS),
        };
        if !<D::Endpoint as Atomic>::OFFERED {
            return Err(Error::NOSYS);
        }
        // SAFETY: see above.
        let domain = unsafe { DomainFid::<D>::from_c(domain) }?;
        if attr.is_null() {
            return Err(Error::INVAL);
        }
        if !domain.inner.has_atomics() {
            return Err(Error::OPNOTSUPP);
        }
        let found = atomic::query::<D::Endpoint>(kind, datatype.raw(), op.raw())?;
        // SAFETY: not null, and the caller's.
        unsafe { attr.write(found) };
        Ok(())
    })
}
