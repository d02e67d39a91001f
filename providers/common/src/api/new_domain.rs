//! Domains opened by a fabric, on their way to the application.
use crate::abi::fid_domain;
use crate::error::Result;
use crate::info::InfoRef;
use crate::object::Parent;
use core::ffi::c_void;

/// Parent fabric of a domain.
pub(super) struct OnFabric {
    pub(super) parent: Parent,
    pub(super) api_version: u32,
}

/// Domain of any type opened by a fabric, to be converted to a fid. The type may depend on the
/// info: a fabric can have several.
pub struct NewDomain(Box<dyn BecomesFid>);

impl std::fmt::Debug for NewDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewDomain")
    }
}

impl NewDomain {
    /// Wraps a domain of one type.
    pub(super) fn new(domain: Box<dyn BecomesFid>) -> Self {
        Self(domain)
    }

    /// Returns the domain's fid, owned by the application from now on.
    pub(super) fn into_c(
        self,
        on: OnFabric,
        info: InfoRef<'_>,
        context: *mut c_void,
    ) -> Result<*mut fid_domain> {
        self.0.into_c(on, info, context)
    }
}

/// A domain of any type, before the application has its fid.
pub(super) trait BecomesFid {
    /// Returns the domain's fid, owned by the application from now on.
    fn into_c(
        self: Box<Self>,
        on: OnFabric,
        info: InfoRef<'_>,
        context: *mut c_void,
    ) -> Result<*mut fid_domain>;
}
