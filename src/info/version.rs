//! Versions of the API and of providers.
use crate::abi::{FI_MAJOR_VERSION, FI_MINOR_VERSION, FI_REVISION_VERSION};

/// `FI_VERSION(major, minor)` (fi_version(3)).
pub const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// Version of the API described by [`crate::abi`].
pub const API_VERSION: u32 = version(FI_MAJOR_VERSION as u32, FI_MINOR_VERSION as u32);

/// Version reported by providers of this release, 206.0 for 2.6.
pub const PROV_VERSION: u32 = version(
    FI_MAJOR_VERSION as u32 * 100 + FI_MINOR_VERSION as u32,
    FI_REVISION_VERSION as u32 * 10,
);
