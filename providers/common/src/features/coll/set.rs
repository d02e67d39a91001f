//! Sets of addresses of an address vector (fi_av_set(3)).
use super::plan::MAX_MEMBERS;
use crate::abi::{
    self, FI_ADDR_NOTAVAIL, FI_CLASS_AV_SET, fi_addr_t, fi_av_set_attr, fi_ops, fi_ops_av_set, fid,
    fid_av_set,
};
use crate::av::Av;
use crate::boundary::{ffi_guard, ffi_guard_if_memory};
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::object::Object;
use crate::peer_av_set::AvSetOwner;
use crate::reserved::AV_SET_ADDR;
use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

/// An ordered set, as C holds it.
#[repr(C)]
pub(crate) struct AvSet {
    c: fid_av_set,
    av: Arc<Av>,
    members: Mutex<Vec<fi_addr_t>>,
    source: MemberSource,
}

/// The origin of a set's addresses.
#[derive(Clone, Copy)]
enum MemberSource {
    /// Those of the address vector.
    Vector,
    /// Any: another provider has the vector's addresses (fi_peer(3)).
    Any,
    /// Those of another provider's set.
    Owner(AvSetOwner),
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for AvSet {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for AvSet {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_av_set> for AvSet {}

impl std::fmt::Debug for AvSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AvSet({} members)", self.list().len())
    }
}

/// Flags naming operations supported by the set.
const OPERATIONS: u64 = abi::FI_BARRIER_SET
    | abi::FI_BROADCAST_SET
    | abi::FI_ALLTOALL_SET
    | abi::FI_ALLREDUCE_SET
    | abi::FI_ALLGATHER_SET
    | abi::FI_REDUCE_SCATTER_SET
    | abi::FI_REDUCE_SET
    | abi::FI_SCATTER_SET
    | abi::FI_GATHER_SET;

impl AvSet {
    /// Makes a set (fi_av_set).
    fn open(
        av: Arc<Av>,
        attr: &fi_av_set_attr,
        context: *mut c_void,
        source: MemberSource,
    ) -> Result<Arc<Self>> {
        if attr.flags & !(abi::FI_UNIVERSE | OPERATIONS) != 0 {
            return Err(Error::BADFLAGS);
        }
        if attr.comm_key_size != 0 {
            // Keys of memberships that others manage (comm_key) are not supported.
            return Err(Error::NOSYS);
        }
        let (start, end) = (attr.start_addr, attr.end_addr);
        let stride = attr.stride.max(1);
        let is_any = matches!(source, MemberSource::Any);
        let known = if is_any {
            (0..av.owner_count().min(MAX_MEMBERS as u64 + 1)).collect()
        } else {
            av.indices()
        };
        let members = match (start, end) {
            _ if attr.flags & abi::FI_UNIVERSE != 0 => known,
            (FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL) => Vec::new(),
            (start, end) if start > end || end == FI_ADDR_NOTAVAIL => return Err(Error::INVAL),
            (start, end) if is_any => {
                if (end - start) / stride >= MAX_MEMBERS as u64 {
                    return Err(Error::INVAL);
                }
                (0..=(end - start) / stride).map(|at| start + at * stride).collect()
            }
            (start, end) => {
                let wanted = |i: &fi_addr_t| (start..=end).contains(i) && (i - start) % stride == 0;
                known.into_iter().filter(wanted).collect()
            }
        };
        if attr.count != 0 && members.len() > attr.count && attr.flags & abi::FI_UNIVERSE == 0 {
            return Err(Error::INVAL);
        }
        Ok(Self::make(av, members, source, context))
    }

    /// Makes a set with the members of another provider's set (fi_peer(3)).
    ///
    /// # Safety
    /// `context` is null or a `struct fi_peer_av_set_context`, for the call alone.
    pub(crate) unsafe fn open_peer(av: Arc<Av>, context: *mut c_void) -> Result<Arc<Self>> {
        // SAFETY: by this function's contract.
        let owner = unsafe { AvSetOwner::new(context) }?;
        let source = MemberSource::Owner(owner);
        Ok(Self::make(av, Vec::new(), source, std::ptr::null_mut()))
    }

    fn make(
        av: Arc<Av>,
        members: Vec<fi_addr_t>,
        source: MemberSource,
        context: *mut c_void,
    ) -> Arc<Self> {
        av.add_user();
        Arc::new(Self {
            c: fid_av_set {
                fid: fid {
                    fclass: FI_CLASS_AV_SET as usize,
                    context,
                    ops: (&raw const FID_OPS).cast_mut(),
                },
                ops: (&raw const OPS).cast_mut(),
            },
            av,
            members: Mutex::new(members),
            source,
        })
    }

    /// The members of the set, in order, as its owner has them if there is one.
    pub(crate) fn members(&self) -> Result<Vec<fi_addr_t>> {
        match &self.source {
            MemberSource::Owner(owner) => owner.members(MAX_MEMBERS),
            MemberSource::Vector | MemberSource::Any => Ok(self.list().clone()),
        }
    }

    /// The set behind a fid of the application's, if it is one of ours.
    ///
    /// # Safety
    /// `set` is null or points to a live fid.
    pub(crate) unsafe fn from_fid<'a>(set: *const fid_av_set) -> Result<&'a Self> {
        // SAFETY: by this function's contract; our ops table marks our sets.
        unsafe {
            if set.is_null() || (*set).fid.ops.cast_const() != &raw const FID_OPS {
                return Err(Error::INVAL);
            }
            Self::from_c(set)
        }
    }

    /// The address vector the set is of.
    pub(crate) fn av(&self) -> &Arc<Av> {
        &self.av
    }

    /// The members of the set, in order.
    pub(crate) fn list(&self) -> MutexGuard<'_, Vec<fi_addr_t>> {
        self.members.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for AvSet {
    fn drop(&mut self) {
        self.av.remove_user();
    }
}

static FID_OPS: fi_ops = crate::fid::ops(close);

static OPS: fi_ops_av_set = fi_ops_av_set {
    size: size_of::<fi_ops_av_set>(),
    set_union: Some(union),
    intersect: Some(intersect),
    diff: Some(diff),
    insert: Some(insert),
    remove: Some(remove),
    addr: Some(addr),
};

// SAFETY of the entry points below: each is reachable only through the ops tables of
// a set that `open` made and `close` has not taken back, or with null.

unsafe extern "C" fn close(fid: *mut abi::fid) -> c_int {
    ffi_guard("fi_close(av_set)", || {
        // SAFETY: see above; groups keep their own list of members.
        unsafe {
            AvSet::from_c(fid.cast_const().cast())?;
            drop(AvSet::take(fid.cast()));
        }
        Ok(())
    })
}

/// Changes one set by another of the same vector.
unsafe fn combine(
    entry: &'static str,
    dst: *mut fid_av_set,
    src: *const fid_av_set,
    how: impl FnOnce(&mut Vec<fi_addr_t>, &[fi_addr_t]),
) -> c_int {
    ffi_guard(entry, || {
        // SAFETY: see above; `src` is a set of the application's or null.
        let (dst, src) = unsafe { (AvSet::from_fid(dst)?, AvSet::from_fid(src)?) };
        if !Arc::ptr_eq(&dst.av, &src.av) {
            return Err(Error::INVAL);
        }
        let others = src.list().clone();
        how(&mut dst.list(), &others);
        Ok(())
    })
}

unsafe extern "C" fn union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: see above.
    unsafe {
        combine("fi_av_set_union", dst, src, |members, others| {
            let new: Vec<_> =
                others.iter().filter(|addr| !members.contains(addr)).copied().collect();
            members.extend(new);
        })
    }
}

unsafe extern "C" fn intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: see above.
    unsafe {
        combine("fi_av_set_intersect", dst, src, |members, others| {
            members.retain(|addr| others.contains(addr));
        })
    }
}

unsafe extern "C" fn diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: see above.
    unsafe {
        combine("fi_av_set_diff", dst, src, |members, others| {
            members.retain(|addr| !others.contains(addr));
        })
    }
}

unsafe extern "C" fn insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    ffi_guard_if_memory("fi_av_set_insert", || {
        // SAFETY: see above.
        let set = unsafe { AvSet::from_fid(set) }?;
        match set.source {
            MemberSource::Vector => drop(set.av.get(addr)?),
            MemberSource::Any if addr == FI_ADDR_NOTAVAIL => return Err(Error::INVAL),
            MemberSource::Any => {}
            // The owner inserts into its own set.
            MemberSource::Owner(_) => return Err(Error::NOSYS),
        }
        let mut members = set.list();
        if members.contains(&addr) {
            return Err(Error::INVAL);
        }
        members.push(addr);
        Ok(())
    })
}

unsafe extern "C" fn remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    ffi_guard("fi_av_set_remove", || {
        // SAFETY: see above.
        let set = unsafe { AvSet::from_fid(set) }?;
        let mut members = set.list();
        let at = members.iter().position(|member| *member == addr).ok_or(Error::INVAL)?;
        members.remove(at);
        Ok(())
    })
}

unsafe extern "C" fn addr(set: *mut fid_av_set, addr: *mut fi_addr_t) -> c_int {
    ffi_guard("fi_av_set_addr", || {
        // SAFETY: see above; `addr` is the caller's or null.
        unsafe {
            let set = AvSet::from_fid(set)?;
            if addr.is_null() {
                return Err(Error::INVAL);
            }
            // Joining names the set as well, so that it need not be found by this.
            addr.write(AV_SET_ADDR | (std::ptr::from_ref(set) as fi_addr_t & (AV_SET_ADDR - 1)));
        }
        Ok(())
    })
}

/// Opens a set of an address vector with `open`, which gets the vector and the attributes.
///
/// # Safety
/// The vector is an open one of this library or null; the attributes and `set` are the caller's or null.
unsafe fn open_set(
    av: *mut abi::fid_av,
    attr: *mut fi_av_set_attr,
    set: *mut *mut fid_av_set,
    open: impl FnOnce(Arc<Av>, &fi_av_set_attr) -> Result<Arc<AvSet>>,
) -> c_int {
    ffi_guard_if_memory("fi_av_set", || {
        // SAFETY: by this function's contract.
        unsafe {
            let av = Av::arc_from_c(av)?;
            let attr = attr.as_ref().ok_or(Error::INVAL)?;
            if set.is_null() {
                return Err(Error::INVAL);
            }
            set.write(open(av, attr)?.into_c());
        }
        Ok(())
    })
}

/// `fi_av_set` of any address vector.
pub(crate) unsafe extern "C" fn av_set(
    av: *mut abi::fid_av,
    attr: *mut fi_av_set_attr,
    set: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    // SAFETY: reachable only through the table of an open vector of ours, or with null.
    unsafe {
        open_set(av, attr, set, |av, attr| AvSet::open(av, attr, context, MemberSource::Vector))
    }
}

/// `fi_av_set` of an address vector with another provider's addresses: with FI_PEER the set is
/// another provider's as well (fi_peer(3)).
pub(crate) unsafe extern "C" fn peer_av_set(
    av: *mut abi::fid_av,
    attr: *mut fi_av_set_attr,
    set: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see `av_set`; with FI_PEER the context is as fi_peer(3) has it.
    unsafe {
        open_set(av, attr, set, |av, attr| match attr.flags & abi::FI_PEER {
            0 => AvSet::open(av, attr, context, MemberSource::Any),
            _ => AvSet::open_peer(av, context),
        })
    }
}
