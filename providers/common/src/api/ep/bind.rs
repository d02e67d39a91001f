//! Binding of objects to an endpoint, and enabling it (fi_endpoint(3)).
use super::fid::EpFid;
use super::shared::{EndpointEnv, EpShared, Role};
use crate::abi::{
    self, FI_CLASS_AV, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_CLASS_SRX_CTX, FI_CLASS_STX_CTX,
    fi_ep_type, fid, fid_ep,
};
use crate::api::bindings::Bindings;
use crate::api::srx_fids::SRX_FIDS;
use crate::api::stx::Stx;
use crate::api::traits::Endpoint;
use crate::av::Av;
use crate::boundary::ffi_guard_if_memory;
use crate::cntr::Cntr;
use crate::completions::CompletionSink;
use crate::cq::Cq;
use crate::eq::Eq;
use crate::error::{Error, Result};
use crate::fid::{FidObject, class_of};
use crate::object::Object;
use crate::peer_srx::{self, SrxOwner};
use core::ffi::c_int;
use std::any::TypeId;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<E: Endpoint> EpFid<E> {
    fn bind_cq(&self, cq: Arc<Cq>, flags: u64) -> Result {
        if flags & !(abi::FI_TRANSMIT | abi::FI_RECV | abi::FI_SELECTIVE_COMPLETION) != 0 {
            return Err(Error::BADFLAGS);
        }
        let role = self.shared.role;
        if flags & (abi::FI_TRANSMIT | abi::FI_RECV) == 0
            || (flags & abi::FI_TRANSMIT != 0 && !role.sends())
            || (flags & abi::FI_RECV != 0 && !role.receives())
        {
            return Err(Error::INVAL);
        }
        // With FI_SELECTIVE_COMPLETION a success is reported only if the call asks for it, or
        // the endpoint's default flags do for a call without flags.
        let selective = flags & abi::FI_SELECTIVE_COMPLETION != 0;
        let mut bindings = self.bindings();
        let (tx, rx) = (flags & abi::FI_TRANSMIT != 0, flags & abi::FI_RECV != 0);
        if (tx && bindings.completions.tx.cq.is_some())
            || (rx && bindings.completions.rx.cq.is_some())
        {
            return Err(Error::INVAL);
        }
        if tx {
            cq.add_user();
            bindings.completions.tx.cq = Some(cq.clone());
            if selective {
                let marked = self.shared.has_multicast() | self.shared.ground.device_flag();
                self.flags.set_tx(self.shared.tx_defaults | marked, marked);
            }
        }
        if rx {
            cq.add_user();
            bindings.completions.rx.cq = Some(cq);
            bindings.completions.rx.set_selective(selective);
            if selective && role != Role::Srx {
                let marked = self.shared.ground.device_flag();
                self.flags.set_rx(self.shared.rx_defaults | marked, marked);
            }
        }
        Ok(())
    }

    /// Binds an object permitted after the endpoint is enabled, if the provider agrees.
    fn bind_any_time(&self, bind: impl FnOnce(&mut Bindings) -> Result) -> Result {
        let mut bindings = self.bindings();
        let mut more = bindings.clone();
        bind(&mut more)?;
        if self.shared.enabled.load(Ordering::Acquire) && self.shared.role != Role::Srx {
            self.inner().bound_late(&self.completed(more.clone()))?;
        }
        *bindings = more;
        Ok(())
    }

    /// Fails with -FI_EINVAL for an object of another domain: progress of one domain does not drive
    /// the other, and calls are serialized per domain (FI_THREAD_DOMAIN).
    fn own<T>(&self, object: T, is_of: impl FnOnce(&T, &EndpointEnv) -> bool) -> Result<T> {
        if is_of(&object, &self.shared.ground) { Ok(object) } else { Err(Error::INVAL) }
    }

    fn bind_cntr(&self, cntr: &Arc<Cntr>, flags: u64) -> Result {
        const KINDS: [u64; 6] = [
            abi::FI_SEND,
            abi::FI_RECV,
            abi::FI_READ,
            abi::FI_WRITE,
            abi::FI_REMOTE_READ,
            abi::FI_REMOTE_WRITE,
        ];
        let all = KINDS.iter().fold(0, |all, kind| all | kind);
        if flags & !all != 0 {
            return Err(Error::BADFLAGS);
        }
        let out = abi::FI_SEND | abi::FI_READ | abi::FI_WRITE;
        let foreign = match self.shared.role {
            Role::Endpoint | Role::Srx => 0,
            Role::Tx => all & !out,
            Role::Rx => out,
            Role::Scalable => all,
        };
        if flags == 0 || flags & foreign != 0 {
            return Err(Error::INVAL);
        }
        self.bind_any_time(|bindings| {
            let CompletionSink { tx, rx } = &mut bindings.completions;
            let slots = [
                &mut tx.cntr,
                &mut rx.cntr,
                &mut tx.reads,
                &mut tx.writes,
                &mut rx.peers_reads,
                &mut rx.peers_writes,
            ];
            for (_, slot) in KINDS.iter().zip(slots).filter(|(kind, _)| flags & *kind != 0) {
                if slot.is_some() {
                    return Err(Error::INVAL);
                }
                *slot = Some(cntr.clone());
            }
            Ok(())
        })?;
        KINDS.iter().filter(|kind| flags & *kind != 0).for_each(|_| cntr.add_user());
        self.shared.count(flags);
        Ok(())
    }

    fn bind_eq(&self, eq: &Arc<Eq>) -> Result {
        self.bind_any_time(|bindings| {
            if bindings.eq.is_some() {
                return Err(Error::INVAL);
            }
            if !self.shared.ground.progress.is_serialized() {
                eq.add_source(&self.shared.ground.progress)?;
            }
            bindings.eq = Some(eq.clone());
            Ok(())
        })?;
        eq.add_user();
        Ok(())
    }

    /// Binds a shared receive context (fi_ep_bind with a FI_CLASS_SRX_CTX fid).
    fn bind_srx(&self, fid: *mut fid) -> Result {
        if let Some(owner) = peer_srx::find(fid as usize) {
            return self.import_srx(owner);
        }
        if self.shared.role != Role::Endpoint {
            return Err(Error::INVAL);
        }
        // The context cannot be closed before it counts its new user.
        let bound = SRX_FIDS.with(fid as usize, |ep_type| match *ep_type == TypeId::of::<E>() {
            true => self.bind_open_srx(fid),
            false => Err(Error::INVAL),
        });
        bound.unwrap_or(Err(Error::INVAL))
    }

    /// Binds an open shared receive context of this type.
    fn bind_open_srx(&self, fid: *mut fid) -> Result {
        let mut slot = self.srx();
        if slot.is_some() {
            return Err(Error::INVAL);
        }
        // SAFETY: the registry has it, so it is an open context of this type.
        let srx = unsafe { Self::from_c(fid.cast::<fid_ep>()) }?;
        if !srx.shared.ground.parent.is_same(&self.shared.ground.parent) {
            return Err(Error::INVAL);
        }
        srx.shared.users.add();
        *slot = Some(srx.shared.clone());
        self.bindings().completions.rx.outstanding =
            srx.bindings().completions.rx.outstanding.clone();
        Ok(())
    }

    /// Binds another provider's receive queue (fi_peer(3)).
    fn import_srx(&self, owner: SrxOwner) -> Result {
        if self.shared.role != Role::Endpoint
            || self.srx().is_some()
            || self.shared.imports.swap(true, Ordering::AcqRel)
        {
            return Err(Error::INVAL);
        }
        self.inner().import(owner)
    }

    /// # Safety
    /// `bfid` points to a live fid.
    unsafe fn bind(&self, bfid: *mut fid, flags: u64) -> Result {
        // SAFETY: by this function's contract; the class says what to look for.
        unsafe {
            match class_of(bfid).map(|class| class as c_int) {
                // A counter may be bound late: some programs bind one to an endpoint that is in
                // use already.
                Some(FI_CLASS_CNTR) => {
                    let cntr =
                        self.own(Cntr::from_fid(bfid)?, |cntr, on| cntr.is_sibling_of(&on.parent))?;
                    self.bind_cntr(&cntr, flags)
                }
                Some(FI_CLASS_EQ)
                    if matches!(self.shared.role, Role::Endpoint | Role::Scalable) =>
                {
                    self.bind_eq(&Eq::from_fid(bfid)?)
                }
                _ if self.shared.enabled.load(Ordering::Acquire)
                    && self.shared.role != Role::Srx =>
                {
                    Err(Error::OPBADSTATE)
                }
                Some(FI_CLASS_SRX_CTX) => self.bind_srx(bfid),
                Some(FI_CLASS_STX_CTX) if self.shared.role == Role::Endpoint => {
                    let stx =
                        self.own(Stx::from_fid(bfid)?, |stx, on| stx.is_sibling_of(&on.parent))?;
                    self.shared.bind_stx(stx)
                }
                Some(FI_CLASS_CQ) => {
                    let cq =
                        self.own(Cq::from_fid(bfid)?, |cq, on| cq.is_sibling_of(&on.parent))?;
                    self.bind_cq(cq, flags)
                }
                // Contexts have the vector of their scalable endpoint.
                _ if !matches!(self.shared.role, Role::Endpoint | Role::Scalable) => {
                    Err(Error::INVAL)
                }
                Some(FI_CLASS_AV) => {
                    let av =
                        self.own(Av::from_fid(bfid)?, |av, on| av.is_sibling_of(&on.parent))?;
                    let mut bindings = self.bindings();
                    if bindings.av.is_some() {
                        return Err(Error::INVAL);
                    }
                    av.add_user();
                    bindings.av = Some(av);
                    Ok(())
                }
                _ => Err(Error::INVAL),
            }
        }
    }

    /// The endpoint's bindings, completed by those of its shared receive context or scalable
    /// endpoint.
    pub(super) fn completed(&self, mut bindings: Bindings) -> Bindings {
        bindings.completions.set_internal_ops(self.shared.internal_ops());
        if let Some(srx) = &*self.srx() {
            // Objects bound to the shared context serve endpoints that have none of their own.
            let (own, shared) = (&mut bindings.completions.rx, &srx.bindings().completions.rx);
            if own.cq.is_none() {
                own.cq.clone_from(&shared.cq);
                own.reported = shared.reported;
            }
            if own.cntr.is_none() {
                own.cntr.clone_from(&shared.cntr);
            }
        }
        // The source of what a connected endpoint receives is the one that its user has named, if any.
        let rx = &mut bindings.completions.rx;
        let is_peers = rx.cq.as_ref().is_some_and(|cq| cq.has_owner());
        rx.tell_sources(
            self.shared.caps & abi::FI_SOURCE != 0
                || self.shared.ep_type == fi_ep_type::FI_EP_MSG
                || is_peers,
        );
        if let Some(sep) = &self.shared.sep {
            bindings.av.clone_from(&sep.bindings().av);
        }
        bindings
    }

    pub(super) fn enable(&self) -> Result {
        if self.shared.enabled.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(eq) = self.shared.ground.eq.get() {
            if matches!(self.shared.role, Role::Endpoint | Role::Scalable)
                && self.bindings().eq.is_none()
            {
                self.bind_eq(eq)?;
            }
        }
        let bindings = self.bindings().clone();
        let srx = self.srx().clone();
        self.check_shared_contexts(srx.is_some())?;
        if let Some(srx) = &srx {
            let own =
                bindings.completions.rx.cq.iter().map(|cq| (self.shared.address(), cq.clone()));
            srx.change_users(|users| users.extend(own))?;
        }
        if let Some(sep) = &self.shared.sep {
            sep.enable_scalable()?;
        }
        let bindings = self.completed(bindings);
        if self.shared.role == Role::Scalable {
            return self.shared.enable_scalable();
        }
        let either =
            |cq: &Option<Arc<Cq>>, cntr: &Option<Arc<Cntr>>| cq.is_some() || cntr.is_some();
        let directions = self.shared.directions();
        let (send, recv) = (directions & abi::FI_SEND != 0, directions & abi::FI_RECV != 0);
        if (send && !either(&bindings.completions.tx.cq, &bindings.completions.tx.cntr))
            || (recv && !either(&bindings.completions.rx.cq, &bindings.completions.rx.cntr))
        {
            return Err(Error::NOCQ);
        }
        match self.shared.ep_type {
            fi_ep_type::FI_EP_MSG if bindings.eq.is_none() => return Err(Error::NOEQ),
            fi_ep_type::FI_EP_RDM | fi_ep_type::FI_EP_DGRAM if bindings.av.is_none() => {
                return Err(Error::NOAV);
            }
            _ => {}
        }
        self.inner().enable(&bindings, srx.as_ref().map(|srx| &srx.inner))?;
        self.shared.enabled.store(true, Ordering::Release);
        self.shared.publish_trace_id();
        self.use_transfer_tables();
        self.shared.observe_groups()
    }
}

impl<E: Endpoint> EpFid<E> {
    /// Checks the shared contexts required by the endpoint's info are bound (fi_endpoint(3)).
    fn check_shared_contexts(&self, has_srx: bool) -> Result {
        let [tx, rx] = self.shared.shares;
        let imports = self.shared.imports.load(Ordering::Acquire);
        if (tx && !self.shared.has_stx()) || (rx && !has_srx && !imports) {
            return Err(Error::INVAL);
        }
        Ok(())
    }
}

impl<E: Endpoint> EpShared<E> {
    /// Enables a scalable endpoint, by itself or with the first of its contexts: peers can reach
    /// it from now on.
    fn enable_scalable(&self) -> Result {
        // The lock is held throughout, since several threads may enable contexts.
        let bindings = self.bindings();
        if self.enabled.load(Ordering::Acquire) {
            return Ok(());
        }
        if bindings.av.is_none() {
            return Err(Error::NOAV);
        }
        let mut complete = bindings.clone();
        complete.completions.set_internal_ops(self.internal_ops());
        self.inner.enable(&complete, None)?;
        self.enabled.store(true, Ordering::Release);
        Ok(())
    }
}

pub(super) unsafe extern "C" fn bind<E: Endpoint>(
    fid: *mut fid,
    bfid: *mut fid,
    flags: u64,
) -> c_int {
    ffi_guard_if_memory("fi_ep_bind", || {
        // SAFETY: see above; `bfid` is an open object of the application's or null.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        // SAFETY: see above.
        unsafe { ep.bind(bfid, flags) }?;
        if ep.shared.role == Role::Srx {
            // The endpoint is already enabled, so the provider is notified of the new binding here.
            let bindings = ep.bindings().clone();
            ep.inner().enable(&bindings, None)?;
        }
        Ok(())
    })
}
