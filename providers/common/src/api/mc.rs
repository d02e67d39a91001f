//! `struct fid_mc`: groups joined by an endpoint (fi_join of fi_cm(3)), for collective operations
//! or for multicast.
use super::ep::shared::EpShared;
use super::traits::Endpoint;
use crate::abi::{self, FI_ADDR_NOTAVAIL, FI_CLASS_MC, fi_addr_t, fi_ops, fid, fid_mc};
use crate::boundary::ffi_guard;
use crate::coll::CollGroup;
use crate::cq::Context;
use crate::eq::{Eq, EqEvent, EventError, FidPtr};
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::object::Object;
use core::ffi::{c_int, c_void};
use std::cell::UnsafeCell;
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

    /// Records the multicast group being joined.
    pub(super) fn set_multicast(&self, addr: fi_addr_t) {
        let _ = self.group.set(Joined::Multicast(addr));
    }

    /// Records the joined group of the network.
    pub(super) fn set_network(&self, addr: fi_addr_t) {
        let _ = self.group.set(Joined::Network(addr));
    }

    fn fid(&self) -> FidPtr {
        FidPtr(self.c.get().cast())
    }

    /// Reports to the application, once, the group's address.
    pub(super) fn complete(&self, context: Context, addr: fi_addr_t) {
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
