//! The object behind a `struct fid_domain`.
use super::ep::shared::EndpointEnv;
use super::new_domain::OnFabric;
use super::traits::Domain;
use crate::abi::fid_domain;
use crate::deferred::DeferredQueue;
use crate::eq::DomainEq;
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::object::{Parent, Users};
use crate::on_domain::{CntrWatch, OnDomain};
use crate::progress::Progress;
use std::sync::Arc;

/// A domain, as C and the objects opened on it share it.
#[repr(C)]
pub struct DomainFid<D> {
    c: fid_domain,
    users: Arc<Users>,
    api_version: u32,
    fabric: Parent,
    /// Deferred work of the domain, if it was opened for it.
    later: Option<Arc<DeferredQueue>>,
    progress: Arc<dyn Progress>,
    /// Event queue for objects of the domain without their own one (fi_domain_bind).
    eq: DomainEq,
    /// Provider's part, reference-counted for objects outliving the fid.
    pub(crate) inner: Arc<D>,
}

// SAFETY: the C part is written once, by `open`; `D` is Send + Sync by its trait.
unsafe impl<D: Domain> Sync for DomainFid<D> {}
// SAFETY: the C part is written once, by `open`; `D` is Send + Sync by its trait.
unsafe impl<D: Domain> Send for DomainFid<D> {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl<D: Domain> FidObject<fid_domain> for DomainFid<D> {}

impl<D> std::fmt::Debug for DomainFid<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DomainFid({:?})", self.users)
    }
}

impl<D: Domain> DomainFid<D> {
    /// Returns the object of a new domain.
    pub(super) fn new(
        c: fid_domain,
        inner: D,
        on: OnFabric,
        progress: Arc<dyn Progress>,
        later: Option<Arc<DeferredQueue>>,
    ) -> Self {
        Self {
            c,
            users: Arc::new(Users::default()),
            api_version: on.api_version,
            fabric: on.parent,
            later,
            progress,
            eq: DomainEq::default(),
            inner: Arc::new(inner),
        }
    }

    /// Fails with -FI_EBUSY if an object opened on the domain is open.
    pub(super) fn check_unused(&self) -> Result {
        self.users.check_none()
    }

    /// Returns the event queue for objects of the domain without their own one.
    pub(super) fn eq(&self) -> &DomainEq {
        &self.eq
    }

    /// Returns the deferred work of the domain, if it was opened for it.
    pub(super) fn deferred_work(&self) -> Option<&Arc<DeferredQueue>> {
        self.later.as_ref()
    }

    /// Ends the use of the bound event queue and of the fabric, at closing.
    pub(super) fn leave(&self) {
        self.eq.leave();
        self.fabric.leave();
    }

    /// Returns this domain as the parent of an object opened on it.
    pub(crate) fn parent(self: &Arc<Self>) -> Parent {
        Parent::new(self.clone(), self.users.clone())
    }

    /// Returns the resources of this domain for a new endpoint with this parent.
    pub(super) fn ground(self: &Arc<Self>, parent: Parent) -> EndpointEnv {
        EndpointEnv {
            api_version: self.api_version,
            addr_format: self.inner.settings().addr_format,
            segments: self.inner.settings().segments,
            parent,
            progress: self.progress.clone(),
            later: self.later.clone(),
            eq: self.eq.clone(),
            devices: self.inner.settings().devices(),
        }
    }

    /// Returns the resources of this domain for a new queue or counter.
    pub(super) fn for_queue(self: &Arc<Self>) -> OnDomain {
        let domain = self.inner.clone();
        OnDomain {
            parent: self.parent(),
            progress: self.progress.clone(),
            api_version: self.api_version,
            level: self.inner.settings().level.clone(),
            on_blocking: Box::new(move |kind| domain.blocking_opened(kind)),
            later: self.later.clone().map(|later| later as Arc<dyn CntrWatch>),
        }
    }
}

/// Opens an object counted as a user of the domain and passes it to C.
///
/// # Safety
/// `domain` is null or an open domain of this type; `out` is null or can be written to.
pub(super) unsafe fn open_on<D: Domain, T: FidObject<C>, C>(
    domain: *mut fid_domain,
    out: *mut *mut C,
    open: impl FnOnce(&Arc<DomainFid<D>>) -> Result<Arc<T>>,
) -> Result {
    // SAFETY: by this function's contract.
    let domain = unsafe { DomainFid::<D>::arc_from_c(domain) }?;
    if out.is_null() {
        return Err(Error::INVAL);
    }
    let object = open(&domain)?;
    // SAFETY: checked above.
    unsafe { out.write(object.into_c()) };
    Ok(())
}
