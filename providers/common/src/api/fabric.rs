//! `struct fid_fabric` for any [`Fabric`].
use super::fabric_fid::FabricFid;
use super::new_domain::OnFabric;
use super::opened;
use super::pep::PepFid;
use super::traits::{Fabric, Getinfo};
use crate::abi::{
    self, FI_CLASS_FABRIC, fi_eq_attr, fi_fabric_attr, fi_info, fi_ops, fi_ops_fabric,
    fi_wait_attr, fid, fid_domain, fid_eq, fid_fabric, fid_pep, fid_wait,
};
use crate::boundary::{ffi_guard, ffi_guard_if_memory};
use crate::eq::Eq;
use crate::error::{Error, Result};
use crate::fid::{FidObject, ops};
use crate::heap;
use crate::info::{ApiLevel, InfoBuf, InfoQuery, InfoRef};
use crate::peer;
use crate::poll::{self, WaitSet};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// The `getinfo` callback of a provider's `struct fi_provider`.
///
/// # Safety
/// As for fi_getinfo(3): strings and hints belong to the caller, or are null. The hints have the
/// layout of the API version of the core that loaded the provider, possibly an older one.
pub unsafe extern "C" fn getinfo_entry<G: Getinfo>(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    ffi_guard_if_memory("fi_getinfo", || -> Result {
        // SAFETY: by this function's contract.
        unsafe {
            let file_out = info.as_mut().ok_or(Error::INVAL)?;
            let string = |at: *const c_char| (!at.is_null()).then(|| CStr::from_ptr(at));
            let hints = if hints.is_null() {
                None
            } else {
                Some(InfoBuf::from_level(hints, ApiLevel::of_release(abi::fi_version()))?)
            };
            let hints = hints.as_ref().map(InfoBuf::as_ref);
            let (node, service) = (string(node), string(service));
            let mut infos = G::getinfo(&InfoQuery { version, node, service, flags, hints })?;
            opened::tell(&mut infos, hints);
            if infos.is_empty() {
                return Err(Error::NODATA);
            }
            *file_out = infos.into_raw();
            Ok(())
        }
    })
}

/// The `fabric` callback of a provider's `struct fi_provider`.
///
/// # Safety
/// As fi_fabric(3): `attr` and `out` are the caller's, or null.
pub unsafe extern "C" fn open_fabric<F: Fabric>(
    attr: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_fabric", || {
        heap::keep_all()?;
        // SAFETY: `attr` points to a fabric attribute or is null; its name is a C string.
        let name = unsafe {
            let attr = attr.as_ref().ok_or(Error::INVAL)?;
            if attr.name.is_null() || out.is_null() {
                return Err(Error::INVAL);
            }
            CStr::from_ptr(attr.name)
        };
        // SAFETY: checked above.
        let api_version = unsafe { (*attr).api_version };
        let c = fid_fabric {
            fid: fid {
                fclass: FI_CLASS_FABRIC as usize,
                context,
                ops: std::ptr::from_ref(FabricFid::<F>::FID_OPS).cast_mut(),
            },
            ops: std::ptr::from_ref(FabricFid::<F>::OPS).cast_mut(),
            api_version,
        };
        let fabric = Arc::new(FabricFid::new(c, F::open(name)?));
        opened::add_fabric(name, fabric.as_c());
        // SAFETY: checked above.
        unsafe { out.write(fabric.into_c()) };
        Ok(())
    })
}

impl<F: Fabric> FabricFid<F> {
    const FID_OPS: &'static fi_ops = &ops(close::<F>);

    const OPS: &'static fi_ops_fabric = &fi_ops_fabric {
        size: size_of::<fi_ops_fabric>(),
        domain: Some(domain::<F>),
        passive_ep: Some(passive_ep::<F>),
        eq_open: Some(eq_open::<F>),
        wait_open: Some(wait_open::<F>),
        trywait: Some(trywait),
        domain2: Some(domain2::<F>),
    };
}

// SAFETY of the entry points below: each is reachable only through the ops
// tables of a fabric of the same `F`, or with null.

unsafe extern "C" fn close<F: Fabric>(fid: *mut fid) -> c_int {
    ffi_guard("fi_close(fabric)", || {
        // SAFETY: see above.
        unsafe { FabricFid::<F>::from_c(fid.cast()) }?.check_unused()?;
        opened::remove_fabric(fid.cast());
        // SAFETY: see above; nothing of ours uses it any more.
        drop(unsafe { FabricFid::<F>::take(fid.cast()) });
        Ok(())
    })
}

unsafe fn open_domain<F: Fabric>(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result {
    // SAFETY: see above; the info is the caller's.
    let (fabric, info) = unsafe { (FabricFid::<F>::arc_from_c(fabric)?, InfoRef::from_c(info)?) };
    if out.is_null() {
        return Err(Error::INVAL);
    }
    let api_version = fabric.api_version();
    let domain = fabric.inner.domain(info, api_version)?;
    let on = OnFabric { parent: fabric.parent(), api_version };
    let domain = domain.into_c(on, info, context)?;
    opened::add_domain(info.domain_name().unwrap_or_default(), fabric.as_c(), domain);
    // SAFETY: checked above.
    unsafe { out.write(domain) };
    Ok(())
}

unsafe extern "C" fn domain<F: Fabric>(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    ffi_guard_if_memory("fi_domain", || unsafe { open_domain::<F>(fabric, info, out, context) })
}

unsafe extern "C" fn domain2<F: Fabric>(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_domain2", || {
        if flags & !abi::FI_PEER != 0 {
            return Err(Error::BADFLAGS);
        }
        let mut context = context;
        if flags & abi::FI_PEER != 0 {
            // SAFETY: with FI_PEER that is what the context is, and it is only
            // for opening (fi_peer(3)).
            unsafe { peer::check_domain(context) }?;
            context = std::ptr::null_mut();
        }
        // SAFETY: see above.
        unsafe { open_domain::<F>(fabric, info, out, context) }
    })
}

unsafe extern "C" fn passive_ep<F: Fabric>(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_passive_ep", || {
        // SAFETY: see above; the info is the caller's.
        let (fabric, info) =
            unsafe { (FabricFid::<F>::arc_from_c(fabric)?, InfoRef::from_c(info)?) };
        if out.is_null() {
            return Err(Error::INVAL);
        }
        let pep = PepFid::open(&fabric, info, context)?;
        // SAFETY: checked above.
        unsafe { out.write(pep.into_c()) };
        Ok(())
    })
}

unsafe extern "C" fn eq_open<F: Fabric>(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_eq_open", || {
        // SAFETY: see above; the attributes are the caller's or null.
        let (fabric, attr) = unsafe { (FabricFid::<F>::arc_from_c(fabric)?, attr.as_ref()) };
        if out.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: see above; the context is as fi_eq_open(3) has it.
        let eq = unsafe { Eq::open(attr, context, fabric.parent()) }?;
        // SAFETY: checked above.
        unsafe { out.write(eq.into_c()) };
        Ok(())
    })
}

unsafe extern "C" fn wait_open<F: Fabric>(
    fabric: *mut fid_fabric,
    attr: *mut fi_wait_attr,
    out: *mut *mut fid_wait,
) -> c_int {
    ffi_guard_if_memory("fi_wait_open", || {
        // SAFETY: see above; the attributes are the caller's or null.
        let (fabric, attr) = unsafe { (FabricFid::<F>::arc_from_c(fabric)?, attr.as_ref()) };
        if out.is_null() {
            return Err(Error::INVAL);
        }
        let set = WaitSet::open(attr, fabric.parent())?;
        // SAFETY: checked above.
        unsafe { out.write(set.into_c()) };
        Ok(())
    })
}

unsafe extern "C" fn trywait(_fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    // SAFETY: the fids are `count` open objects of the caller's.
    ffi_guard("fi_trywait", || unsafe { poll::try_wait(fids, count) })
}
