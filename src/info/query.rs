//! Query of a fi_getinfo(3) caller.
use crate::info::owned::{InfoBuf, InfoRef};
use core::ffi::CStr;

/// The arguments of fi_getinfo(3).
#[derive(Clone, Copy)]
pub struct InfoQuery<'a> {
    /// The version of the API the application was written for.
    pub version: u32,
    /// Name or address, as described in the manual page.
    pub node: Option<&'a CStr>,
    /// A port.
    pub service: Option<&'a CStr>,
    /// `FI_NUMERICHOST`, `FI_SOURCE`, `FI_PROV_ATTR_ONLY`, `FI_RESCAN`, internal ones.
    pub flags: u64,
    /// Required attributes of the infos.
    pub hints: Option<InfoRef<'a>>,
}

impl<'a> InfoQuery<'a> {
    /// Returns a query with these hints and without addresses.
    pub fn for_hints(version: u32, hints: &'a InfoBuf) -> Self {
        Self { version, node: None, service: None, flags: 0, hints: Some(hints.as_ref()) }
    }
}
