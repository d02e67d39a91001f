//! Joining groups (fi_join of fi_cm(3)).
use super::collective;
use super::ep::fid::EpFid;
use super::ep::shared::EpShared;
use super::mc::Mc;
use super::traits::Endpoint;
use crate::abi::{self, FI_COLLECTIVE, FI_RECV, FI_SEND, fi_collective_addr, fid_ep, fid_mc};
use crate::addr;
use crate::boundary::ffi_guard_if_memory;
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::mcast::{GroupAddr, GroupRole};
use core::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
        mc.set_network(addr);
        let joined = mc.clone();
        // SAFETY: by this function's contract.
        unsafe { out.write(mc.into_c()) };
        joined.complete(Context(context), addr);
        return Ok(());
    }
    let groups = shared.multicast_groups()?;
    let addr = groups.enter(GroupAddr::of(group)?, part)?;
    let mc = Mc::open(shared, eq, context);
    mc.set_multicast(addr);
    let (joining, context) = (mc.clone(), Context(context));
    // SAFETY: by this function's contract. Before the event, which another thread may
    // read first.
    unsafe { out.write(mc.into_c()) };
    groups.begin(addr, move || joining.complete(context, addr));
    Ok(())
}
