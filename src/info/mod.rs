//! `fi_info`: who owns it, what is in it, and what it says (fi_getinfo(3)).
//!
//! Used by the core and, linked statically, by every plug-in; so nothing in
//! here keeps state of its own, and whatever C may free comes from C's malloc,
//! so that the `fi_freeinfo` of any `libfabric.so.1` can free it.
//!
//! - [`InfoRef`] is a view of a caller's info, [`InfoBuf`] an owned one,
//!   [`InfoChain`] what a provider's getinfo answers.
//! - [`check`](mod@check) compares hints with what a provider offers and keeps the
//!   reason of every refusal; [`alter`] fills in what is echoed back.
//! - [`ip`] is getinfo for providers whose addresses are IP addresses, [`name_getinfo`] for those
//!   whose addresses are names.
//! - [`addr`] reads and writes address strings, [`ib`] addresses of librdmacm's own.
//! - [`InfoQuery`] is what somebody asks.
//! - [`nic`](mod@nic) is what is known of a card.
//! - [`tostr`] is the text of `fi_tostr`.
pub mod addr;
pub mod check;
pub mod ib;
#[allow(unsafe_code)]
pub mod ip;
mod named;
#[allow(unsafe_code)]
pub mod nic;
#[allow(unsafe_code)]
mod owned;
mod query;
#[allow(unsafe_code)]
pub mod tostr;

pub use check::{
    ASKED_DOMAIN_CAPS, EndpointLimits, HintsRefusal, ProviderOffer, alter, check, usual_domain,
};
pub use ip::{IpProvider, Unresolved, address_for_peers, interface_of, ip_getinfo, resolve};
pub use named::{NameProvider, name_getinfo};
pub use nic::Nic;
pub use owned::{Era, InfoBuf, InfoChain, InfoRef, dup_raw, free_raw};
pub use query::InfoQuery;

/// `FI_VERSION(major, minor)` (fi_version(3)).
pub const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// In the flags of fi_getinfo, beside those of the API: a utility provider asks, not an
/// application. The library takes these four for what providers ask of it.
pub const GETINFO_INTERNAL: u64 = 1 << 58;
/// A flag of fi_getinfo between libraries: ask core providers only.
pub const CORE_PROV_ONLY: u64 = 1 << 59;
/// Set by providers that link others: ask hidden providers as well.
pub const GETINFO_HIDDEN: u64 = 1 << 60;
/// Set by providers that hand work to others: ask offload providers only.
pub const OFFLOAD_PROV_ONLY: u64 = 1 << 61;

// None is a flag that an application passes to fi_getinfo.
const _: () = {
    use crate::abi::{FI_NUMERICHOST, FI_PROV_ATTR_ONLY, FI_RESCAN, FI_SOURCE};
    let public = FI_NUMERICHOST | FI_PROV_ATTR_ONLY | FI_RESCAN | FI_SOURCE;
    let own = GETINFO_INTERNAL | CORE_PROV_ONLY | GETINFO_HIDDEN | OFFLOAD_PROV_ONLY;
    assert!(public & own == 0 && own.count_ones() == 4);
};

/// The version of the API that [`crate::abi`] describes.
pub const API_VERSION: u32 =
    version(crate::abi::FI_MAJOR_VERSION as u32, crate::abi::FI_MINOR_VERSION as u32);

/// The version that providers of this release report, 206.0 for 2.6.
pub const PROV_VERSION: u32 = version(
    crate::abi::FI_MAJOR_VERSION as u32 * 100 + crate::abi::FI_MINOR_VERSION as u32,
    crate::abi::FI_REVISION_VERSION as u32 * 10,
);
