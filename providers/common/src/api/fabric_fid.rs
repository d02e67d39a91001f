//! The object behind a `struct fid_fabric`.
use super::traits::Fabric;
use crate::abi::fid_fabric;
use crate::error::Result;
use crate::fid::FidObject;
use crate::object::{Parent, Users};
use std::sync::Arc;

/// A fabric, as C and its domains share it.
#[repr(C)]
pub struct FabricFid<F> {
    c: fid_fabric,
    users: Arc<Users>,
    pub(crate) inner: F,
}

// SAFETY: the C part is written once, by the core right after opening and by
// the opener; `F` is Send + Sync by its trait.
unsafe impl<F: Fabric> Sync for FabricFid<F> {}
// SAFETY: the C part is written once, right after opening; `F` is Send + Sync by its trait.
unsafe impl<F: Fabric> Send for FabricFid<F> {}
// SAFETY: repr(C) with the C struct first; made only by `new`, in an `Arc`.
unsafe impl<F: Fabric> FidObject<fid_fabric> for FabricFid<F> {}

impl<F> std::fmt::Debug for FabricFid<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FabricFid({:?})", self.users)
    }
}

impl<F: Fabric> FabricFid<F> {
    /// Returns the object of a new fabric.
    pub(super) fn new(c: fid_fabric, inner: F) -> Self {
        Self { c, users: Arc::new(Users::default()), inner }
    }

    /// Fails with -FI_EBUSY if an object opened on the fabric is open.
    pub(super) fn check_unused(&self) -> Result {
        self.users.check_none()
    }

    /// The version the application asked `fi_getinfo` for; the core stores it
    /// after opening.
    pub fn api_version(&self) -> u32 {
        // SAFETY: the core writes the field before it hands the fabric out.
        unsafe { (&raw const self.c.api_version).read_volatile() }
    }

    /// Returns this fabric as the parent of an object opened on it.
    pub(crate) fn parent(self: &Arc<Self>) -> Parent {
        Parent::new(self.clone(), self.users.clone())
    }
}
