//! Endpoints with transfers made by another provider's endpoint (`FI_PEER_TRANSFER` of fi_peer(3)):
//! opening them, the table for the owner's reports of ended transfers, and joining collective
//! groups.
use super::domain_fid::{DomainFid, open_on};
use super::ep::fid::EpFid;
use super::ep::shared::EpShared;
use super::mc::Mc;
use super::traits::{Domain, Endpoint};
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_COLLECTIVE, fi_addr_t, fi_collective_addr, fi_cq_err_entry,
    fi_cq_tagged_entry, fi_info, fi_ops_transfer_peer, fi_peer_transfer_context, fid_domain,
    fid_ep, fid_mc,
};
use crate::boundary::ffi_guard_nocancel;
use crate::coll::{AvSet, Identification, MAX_MEMBERS, RankOf};
use crate::core_provider::PeerTransfers;
use crate::cq::Context;
use crate::deferred::Task;
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::info::InfoRef;
use core::ffi::c_void;
use libc::ssize_t;
use std::sync::Arc;

static TRANSFER_OPS: fi_ops_transfer_peer = fi_ops_transfer_peer {
    size: size_of::<fi_ops_transfer_peer>(),
    complete: Some(complete),
    comperr: Some(comperr),
};

/// Opens an endpoint (fi_endpoint2 with FI_PEER_TRANSFER). The context is for opening alone.
///
/// # Safety
/// The domain is null or an open one of this type; `info` is the caller's or null; `context` is null or a
/// `struct fi_peer_transfer_context`. Its endpoint stays open until this one is closed; its info is
/// null or valid.
pub(super) unsafe fn open<D: Domain>(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut fi_peer_transfer_context,
) -> Result {
    // SAFETY: by this function's contract.
    unsafe {
        let info = InfoRef::from_c(info)?;
        let transfers = PeerTransfers::new(context)?;
        let owner = InfoRef::from_c((*context).info).ok();
        open_on::<D, EpFid<D::Endpoint>, _>(domain, out, |domain: &Arc<DomainFid<D>>| {
            if domain.deferred_work().is_none() || info.caps() & FI_COLLECTIVE == 0 {
                return Err(Error::INVAL);
            }
            let parent = domain.parent();
            domain.inner.settings().check_endpoint(info)?;
            let inner = domain.inner.transfer_endpoint(owner, transfers.clone())?;
            let ep = EpFid::open(inner, info, domain.ground(parent), std::ptr::null_mut());
            transfers.opened(ep.as_c());
            Ok(ep)
        })?;
        PeerTransfers::answer(context, &TRANSFER_OPS);
    }
    Ok(())
}

impl<E: Endpoint> EpShared<E> {
    /// Returns the exchange of ids with peers.
    fn identification(self: &Arc<Self>) -> Result<&Arc<Identification>> {
        let transfers = self.inner.transfers().ok_or(Error::NOSYS)?;
        let later = self.ground.later.as_ref().ok_or(Error::NOSYS)?;
        let collectives = self.collectives()?;
        Ok(transfers.identification().get_or_init(|| {
            let (weak, engine) = (Arc::downgrade(self), Arc::downgrade(collectives));
            let at = (later.clone(), self.task_queue());
            Identification::new(transfers.ids().clone(), weak, at, move |addr| {
                // Operations that wait for the endpoint that was at this index fail.
                if let Some(engine) = engine.upgrade() {
                    engine.lost(addr, Error::CONNRESET);
                }
            })
        }))
    }

    /// Begins to hear peers' questions for the endpoint's id, when it is enabled.
    pub(super) fn receive_ids(self: &Arc<Self>) -> Result {
        if E::TRANSFERS {
            if let Some(later) = &self.ground.later {
                // The owner's endpoint may not be ready yet.
                let identification = self.identification()?.clone();
                later.add([Task::new(self.task_queue(), move || {
                    identification.listen();
                    Ok(())
                })]);
            }
        }
        Ok(())
    }
}

/// Joins the group of a set of the owner's indices (fi_join_collective).
///
/// # Safety
/// The set in `to` is null or an open one of the application's; `out` can be written to.
pub(super) unsafe fn join<E: Endpoint>(
    shared: &Arc<EpShared<E>>,
    to: &fi_collective_addr,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> Result {
    // SAFETY: by this function's contract.
    let set = unsafe { AvSet::from_fid(to.set) }?;
    let bindings = shared.bindings();
    let eq = bindings.eq.clone().ok_or(Error::NOEQ)?;
    if !bindings.av.as_ref().is_some_and(|av| Arc::ptr_eq(av, set.av())) {
        return Err(Error::INVAL);
    }
    drop(bindings);
    let members: Arc<[fi_addr_t]> = set.members()?.into();
    let transfers = shared.inner.transfers().ok_or(Error::NOSYS)?;
    // Owners know their own endpoint, or take the peer's for it, whose name is the same.
    let asked = [shared.fid(), Some(transfers.ep())].into_iter().flatten();
    let mut addrs = asked.map(|ep| set.av().owner_addr(ep));
    let own = addrs.find(|addr| *addr != FI_ADDR_NOTAVAIL).ok_or(Error::INVAL)?;
    let rank = members.iter().position(|member| *member == own).ok_or(Error::INVAL)?;
    if members.len() > MAX_MEMBERS {
        return Err(Error::INVAL);
    }
    let member = RankOf { rank, of: members.len() };
    let (engine, identification) = (shared.collectives()?.clone(), shared.identification()?);
    let mc = Mc::open(shared, eq, context);
    let (joining, context) = (mc.clone(), Context(context));
    // SAFETY: by this function's contract. Before the event, which another thread may read first.
    unsafe { out.write(mc.into_c()) };
    identification.identify(members.clone(), rank, move |names| match names {
        Ok(names) => {
            engine.join(members, member, &names, move |result| joining.joined(context, result));
        }
        Err(error) => joining.joined(context, Err(error)),
    });
    Ok(())
}

// SAFETY of the entry points below: the owner calls them with entries of its own (fi_peer(3)). The endpoint is looked up
// before it is believed.

unsafe extern "C" fn complete(
    ep: *mut fid_ep,
    entry: *mut fi_cq_tagged_entry,
    _src: fi_addr_t,
) -> ssize_t {
    // SAFETY: see above.
    let complete = || unsafe { PeerTransfers::complete(ep.cast_const(), entry) };
    ffi_guard_nocancel("fi_ops_transfer_peer.complete", complete) as ssize_t
}

unsafe extern "C" fn comperr(ep: *mut fid_ep, entry: *mut fi_cq_err_entry) -> ssize_t {
    // SAFETY: see above.
    let comperr = || unsafe { PeerTransfers::comperr(ep.cast_const(), entry) };
    ffi_guard_nocancel("fi_ops_transfer_peer.comperr", comperr) as ssize_t
}
