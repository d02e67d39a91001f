//! Conversion of objects in arguments and events, between the program's and the provider's.
use crate::abi::*;
use crate::object::HookedObject;
use crate::{Hook, fids};
use core::ffi::{c_int, c_void};
use libc::ssize_t;
use ofi_provider::info::version;

/// Replaces the program's object in a structure by the provider's, until it is dropped. The
/// provider's other writes to the structure stay.
pub(super) struct Swap<T>(*mut *mut T, *mut T);

impl<T> Swap<T> {
    /// # Safety
    /// `out` is null, or stays valid as long as the answer.
    pub(super) unsafe fn new(out: *mut *mut T) -> Option<Self> {
        // SAFETY: by this function's contract.
        let outer = unsafe { out.as_ref() }.copied().filter(|outer| !outer.is_null())?;
        let inner = fids::inner(outer);
        (inner != outer).then(|| {
            // SAFETY: as above.
            unsafe { *out = inner };
            Self(out, outer)
        })
    }
}

impl<T> Drop for Swap<T> {
    fn drop(&mut self) {
        // SAFETY: by the contract of `new`.
        unsafe { *self.0 = self.1 };
    }
}

/// Objects possible in an info: a handle, a domain, a fabric.
pub(super) struct SwapInfo {
    _handle: Option<Swap<fid>>,
    _domain: Option<Swap<fid_domain>>,
    _fabric: Option<Swap<fid_fabric>>,
}

impl SwapInfo {
    /// # Safety
    /// `info` is null, or stays valid as long as the answer.
    pub(super) unsafe fn new(info: *mut fi_info) -> Option<Self> {
        if info.is_null() {
            return None;
        }
        // SAFETY: by this function's contract; attributes are there or null.
        unsafe {
            let domain = (*info).domain_attr;
            let fabric = (*info).fabric_attr;
            Some(Self {
                _handle: Swap::new(&raw mut (*info).handle),
                _domain: (!domain.is_null())
                    .then(|| Swap::new(&raw mut (*domain).domain))
                    .flatten(),
                _fabric: (!fabric.is_null())
                    .then(|| Swap::new(&raw mut (*fabric).fabric))
                    .flatten(),
            })
        }
    }
}

/// # Safety
/// `info` is null or valid.
pub(super) unsafe fn addr_format(info: *const fi_info) -> u32 {
    // SAFETY: by this function's contract.
    unsafe { info.as_ref() }.map_or(FI_FORMAT_UNSPEC as u32, |info| info.addr_format)
}

/// Replaces the triggering counter of a request by the provider's, permanently: the context stays
/// with the provider, so the counter does as well.
///
/// # Safety
/// `context` belongs to a request with `flags`.
pub(super) unsafe fn trigger(flags: u64, context: *mut c_void) {
    if flags & FI_TRIGGER == 0 || context.is_null() {
        return;
    }
    let context = context.cast::<fi_triggered_context>();
    // SAFETY: with FI_TRIGGER a context is one of these (fi_trigger(3)).
    unsafe {
        if (*context).event_type == fi_trigger_event::FI_TRIGGER_THRESHOLD {
            inside(&raw mut (*context).trigger.threshold.cntr);
        }
    }
}

/// Replaces an object of the program's for good by the provider's.
///
/// # Safety
/// `out` is valid.
pub(super) unsafe fn inside<T>(out: *mut *mut T) {
    // SAFETY: by this function's contract.
    unsafe {
        let inner = fids::inner(*out);
        if inner != *out {
            *out = inner;
        }
    }
}

/// Replaces the objects of deferred work by the provider's. The provider stores the structures
/// until the work is done; the program may submit them again unchanged.
///
/// # Safety
/// `work` is null or as specified by fi_trigger(3).
pub(super) unsafe fn deferred(work: *mut fi_deferred_work) {
    use fi_op_type::*;
    if work.is_null() {
        return;
    }
    // SAFETY: by this function's contract; the union holds what the type says, and each
    // of its structures starts with the endpoint or the counter.
    unsafe {
        inside(&raw mut (*work).triggering_cntr);
        inside(&raw mut (*work).completion_cntr);
        let (kind, op) = ((*work).op_type.raw(), (*work).op.msg);
        if op.is_null() {
            return;
        }
        if (FI_OP_RECV as u32..=FI_OP_COMPARE_ATOMIC as u32).contains(&kind) {
            inside(&raw mut (*op).ep);
        } else if kind == FI_OP_CNTR_SET as u32 || kind == FI_OP_CNTR_ADD as u32 {
            inside(&raw mut (*(*work).op.cntr).cntr);
        }
    }
}

/// Replaces the object named by an event with the program's; infos of connection requests name the
/// program's domain and fabric.
///
/// # Safety
/// `buf` holds `len` bytes of an event of this kind.
pub(super) unsafe fn event<H: Hook>(kind: u32, buf: *mut c_void, len: ssize_t) {
    let known = FI_CONNREQ as u32..=FI_JOIN_COMPLETE as u32;
    if !known.contains(&kind) || len < size_of::<*mut fid>() as ssize_t || buf.is_null() {
        return;
    }
    // SAFETY: by this function's contract: every such event starts with a fid, and one
    // of a connection request goes on with an info.
    unsafe {
        outside::<H>(buf.cast());
        if kind == FI_CONNREQ as u32 && len >= size_of::<fi_eq_cm_entry>() as ssize_t {
            let entry = buf.cast::<fi_eq_cm_entry>();
            if let Some(info) = (&raw const (*entry).info).read_unaligned().as_ref() {
                let name = |out: *mut *mut fid| {
                    if let Some(outer) = fids::outer(*out) {
                        *out = outer;
                    }
                };
                if !info.domain_attr.is_null() {
                    name((&raw mut (*info.domain_attr).domain).cast());
                }
                if !info.fabric_attr.is_null() {
                    name((&raw mut (*info.fabric_attr).fabric).cast());
                }
            }
        }
    }
}

/// Replaces an object of the provider by the program's, if there is one, and updates the subject of
/// the event.
///
/// # Safety
/// `out` has space for a pointer, and contains a fid or nothing of the hook's.
pub(super) unsafe fn outside<H: Hook>(out: *mut *mut fid) {
    // SAFETY: by this function's contract; an object that `fids` knows is open, and of
    // the kind that its class says.
    unsafe {
        let Some(outer) = fids::outer(out.read_unaligned()) else { return };
        out.write_unaligned(outer);
        match (*outer).fclass as c_int {
            FI_CLASS_MR => {
                if let Some(mr) = HookedObject::<fid_mr, H>::of(outer) {
                    mr.refresh();
                }
            }
            FI_CLASS_MC => {
                if let Some(mc) = HookedObject::<fid_mc, H>::of(outer) {
                    mc.refresh();
                }
            }
            _ => {}
        }
    }
}

/// Replaces the program's wait set in attributes by the provider's.
///
/// # Safety
/// The location stays valid as long as the result.
pub(super) unsafe fn swap_set(
    attr: Option<(c_enum<fi_wait_obj>, *mut *mut fid_wait)>,
) -> Option<Swap<fid_wait>> {
    let (_, out) = attr.filter(|(wait_obj, _)| *wait_obj == fi_wait_obj::FI_WAIT_SET)?;
    // SAFETY: by this function's contract.
    unsafe { Swap::new(out) }
}

/// Replaces the address vector in a region's authorization key by the provider's, if the key names
/// a peer (fi_mr(3)).
///
/// # Safety
/// `attr` is null, or stays valid as long as the result and has the fields of this version.
pub(super) unsafe fn swap_key(attr: *const fi_mr_attr, api_version: u32) -> Option<Swap<fid_av>> {
    if attr.is_null() || api_version < version(1, 20) {
        return None;
    }
    // SAFETY: by this function's contract; a key of this size is one of these if it
    // starts with an address vector of ours.
    unsafe {
        let (key, size) = ((*attr).auth_key, (*attr).auth_key_size);
        let named = size == size_of::<fi_mr_auth_key>()
            && !key.is_null()
            && key.cast::<*mut fid_av>().is_aligned();
        if named { Swap::new(&raw mut (*key.cast::<fi_mr_auth_key>()).av) } else { None }
    }
}
