//! `struct fid_mc`: groups joined by an endpoint (fi_join of fi_cm(3)), for collective operations
//! or for multicast.
use super::Endpoint;
use super::collective;
use super::ep::{EpFid, EpShared};
use crate::abi::{
    self, FI_ADDR_NOTAVAIL, FI_CLASS_MC, FI_COLLECTIVE, FI_RECV, FI_SEND, fi_addr_t,
    fi_collective_addr, fi_ops, fid, fid_ep, fid_mc,
};
use crate::addr;
use crate::boundary::{ffi_guard, ffi_guard_if_memory};
use crate::coll::CollGroup;
use crate::cq::Context;
use crate::eq::{Eq, EqEvent, EventError, FidPtr};
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::mcast::{GroupAddr, GroupRole};
use crate::object::Object;
use core::ffi::{c_int, c_void};
use std::cell::UnsafeCell;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Group joined, or being joined, by an endpoint, as seen by C.
#[repr(C)]
pub(super) struct Mc<E> {
    /// C structure. The group's address (`fi_addr`) is written once, before the event reporting it.
    c: UnsafeCell<fid_mc>,
    shared: Arc<EpShared<E>>,
    eq: Arc<Eq>,
    group: OnceLock<Joined>,
}

/// Kind of a joined group.
enum Joined {
    /// A group for collective operations, once joining is complete.
    Set(Arc<CollGroup>),
    /// A multicast group, from the beginning of joining, since it can be left at any time.
    Multicast(fi_addr_t),
    /// A multicast group of the network.
    Network(fi_addr_t),
    /// There is no group, because joining failed.
    Nothing,
}

// SAFETY: the application reads the C part's address after the event of its being
// written, which orders the two; the rest is thread-safe by itself.
unsafe impl<E: Endpoint> Sync for Mc<E> {}
// SAFETY: the C part's address is written before the event reporting it; the rest is thread-safe.
unsafe impl<E: Endpoint> Send for Mc<E> {}
// SAFETY: repr(C) with the C struct first (UnsafeCell is transparent); made only by
// `open`, in an `Arc`.
unsafe impl<E: Endpoint> FidObject<fid_mc> for Mc<E> {}

impl<E: Endpoint> Mc<E> {
    const FID_OPS: &'static fi_ops = &crate::fid::ops(close::<E>);

    /// Returns a group being joined. The completion of the join is reported to this event queue.
    pub(super) fn open(shared: &Arc<EpShared<E>>, eq: Arc<Eq>, context: *mut c_void) -> Arc<Self> {
        eq.add_user();
        Arc::new(Self {
            c: UnsafeCell::new(fid_mc {
                fid: fid {
                    fclass: FI_CLASS_MC as usize,
                    context,
                    ops: std::ptr::from_ref(Self::FID_OPS).cast_mut(),
                },
                fi_addr: FI_ADDR_NOTAVAIL,
            }),
            shared: shared.clone(),
            eq,
            group: OnceLock::new(),
        })
    }

    /// Called when joining a set is complete, or has failed.
    pub(super) fn joined(&self, context: Context, result: Result<Arc<CollGroup>>) {
        match result {
            Ok(group) => {
                let addr = group.addr();
                let _ = self.group.set(Joined::Set(group));
                self.complete(context, addr);
            }
            Err(error) => {
                let _ = self.group.set(Joined::Nothing);
                self.eq.write(EqEvent::Error(EventError {
                    fid: self.fid(),
                    context,
                    data: 0,
                    error,
                    prov_errno: error.code(),
                    err_data: Vec::new(),
                }));
            }
        }
    }

    fn fid(&self) -> FidPtr {
        FidPtr(self.c.get().cast())
    }

    /// Reports to the application, once, the group's address.
    fn complete(&self, context: Context, addr: fi_addr_t) {
        // SAFETY: see the type: this happens once, and before any read.
        unsafe { (*self.c.get()).fi_addr = addr };
        let event = abi::FI_JOIN_COMPLETE as u32;
        self.eq.write(EqEvent::Done { event, fid: self.fid(), context, data: 0 });
    }
}

unsafe extern "C" fn close<E: Endpoint>(fid: *mut fid) -> c_int {
    ffi_guard("fi_close(mc)", || {
        // SAFETY: reachable only through the table of a group of the same `E`.
        let mc = unsafe { Mc::<E>::from_c(fid.cast::<fid_mc>().cast_const()) }?;
        let shared = &mc.shared;
        match mc.group.get() {
            _ if shared.closed.load(Ordering::SeqCst) => {}
            None => return Err(Error::BUSY),
            Some(Joined::Nothing) => {}
            Some(Joined::Set(group)) => shared.collectives()?.leave(group)?,
            Some(Joined::Multicast(addr)) => shared.multicast_groups()?.leave(*addr),
            Some(Joined::Network(addr)) => shared.inner.leave(*addr),
        }
        mc.eq.forget(FidPtr(fid));
        mc.eq.remove_user();
        // SAFETY: an open group of this type, which nothing of ours uses any more.
        drop(unsafe { Mc::<E>::take(fid.cast::<fid_mc>()) });
        Ok(())
    })
}

/// fi_join. With FI_COLLECTIVE the address is a `struct fi_collective_addr`, else the one of a
/// multicast group.
pub(super) unsafe extern "C" fn join<E: Endpoint>(
    ep: *mut fid_ep,
    addr: *const c_void,
    flags: u64,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_join", || {
        if flags & !(FI_COLLECTIVE | FI_SEND | FI_RECV) != 0 {
            return Err(Error::BADFLAGS);
        }
        // SAFETY: reachable only through the table of an open endpoint of the same `E`, or
        // with null.
        let ep = unsafe { EpFid::<E>::from_c(ep.cast_const()) }?;
        let shared = &ep.shared;
        let cap = if flags & FI_COLLECTIVE != 0 { FI_COLLECTIVE } else { abi::FI_MULTICAST };
        let joins = E::JOINS && cap == abi::FI_MULTICAST;
        if shared.caps & cap == 0 || !(joins || shared.ground.later.is_some()) {
            return Err(Error::NOSYS);
        }
        if !shared.enabled.load(Ordering::Acquire) {
            return Err(Error::OPBADSTATE);
        }
        if addr.is_null() || out.is_null() {
            return Err(Error::INVAL);
        }
        if cap == FI_COLLECTIVE {
            // SAFETY: checked above; with FI_COLLECTIVE it is such a structure.
            let to = unsafe { &*addr.cast::<fi_collective_addr>() };
            // SAFETY: the set in it is the application's, `out` not null.
            unsafe { collective::join(shared, to, out, context) }?;
        } else {
            // SAFETY: it is a whole socket address, as fi_cm(3) says.
            let group = unsafe { addr::from_ptr(addr) }?;
            // SAFETY: checked above.
            unsafe { join_multicast(shared, group, flags, out, context) }?;
        }
        if let Some(later) = &shared.ground.later {
            later.run();
        }
        Ok(())
    })
}

/// Joins a multicast group.
///
/// # Safety
/// `out` can be written to.
unsafe fn join_multicast<E: Endpoint>(
    shared: &Arc<EpShared<E>>,
    group: SocketAddr,
    flags: u64,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> Result {
    let can = shared.directions();
    // Without FI_SEND and FI_RECV the endpoint joins for all that it can do.
    let named = flags & (FI_SEND | FI_RECV);
    let wanted = if named == 0 { can } else { named };
    if wanted & !can != 0 {
        return Err(Error::INVAL);
    }
    let part = GroupRole { sends: wanted & FI_SEND != 0, receives: wanted & FI_RECV != 0 };
    let eq = shared.bindings().eq.clone().ok_or(Error::NOEQ)?;
    if E::JOINS {
        let addr = shared.inner.join(group, part)?;
        let mc = Mc::open(shared, eq, context);
        let _ = mc.group.set(Joined::Network(addr));
        let joined = mc.clone();
        // SAFETY: by this function's contract.
        unsafe { out.write(mc.into_c()) };
        joined.complete(Context(context), addr);
        return Ok(());
    }
    let groups = shared.multicast_groups()?;
    let addr = groups.enter(GroupAddr::of(group)?, part)?;
    let mc = Mc::open(shared, eq, context);
    let _ = mc.group.set(Joined::Multicast(addr));
    let (joining, context) = (mc.clone(), Context(context));
    // SAFETY: by this function's contract. Before the event, which another thread may
    // read first.
    unsafe { out.write(mc.into_c()) };
    groups.begin(addr, move || joining.complete(context, addr));
    Ok(())
}
