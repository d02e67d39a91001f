//! Mapping of objects by hook providers, between the program's and the provider's.
use ofi::abi::fid;

/// Answers the other side's object, or null if it knows none.
pub(super) type OtherSide = unsafe extern "C" fn(*mut fid) -> *mut fid;

/// Functions of a hook that map its objects to the provider's and back. They are exported by
/// plug-ins of this library in addition to their entry point.
#[derive(Clone, Copy, Debug)]
pub(super) struct HookMapping {
    /// The provider's object behind one of the program's.
    pub(super) inner: OtherSide,
    /// The program's object in front of one of the provider's.
    pub(super) outer: OtherSide,
}

/// Hook named by `FI_HOOK`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    /// Address of its provider, identifying it.
    pub(super) hook: usize,
    /// Mapping functions; `None` for a hook without them.
    pub(super) sides: Option<HookMapping>,
}
