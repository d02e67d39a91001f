//! `fi_info`: ownership, content, comparison and text forms (fi_getinfo(3)).
//!
//! Used by the core and, linked statically, by every plug-in. So nothing here has global state, and
//! all memory freed by C comes from C's malloc, so the `fi_freeinfo` of any `libfabric.so.1` can
//! free it.
//!
//! - [`InfoRef`] is a view of a caller's info, [`InfoBuf`] an owned one, [`InfoChain`] the answer
//!   of a provider's getinfo.
//! - [`check`](mod@check) compares hints with a provider's offers and collects the reason of every
//!   rejection; [`alter`] fills in the echoed values.
//! - [`OfferTemplate`] builds such an offer.
//! - [`ip`] is getinfo for providers with IP addresses, [`name_getinfo`] for those with names as
//!   addresses.
//! - [`addr`] reads and writes address strings, [`ib`] addresses of librdmacm.
//! - [`InfoQuery`] is a caller's query.
//! - [`nic`](mod@nic) describes a network card.
//! - [`TransferPath`] is a row of `fi_info --protocols`.
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
mod paths;
mod query;
mod template;
#[allow(unsafe_code)]
pub mod tostr;
mod version;

pub use check::{ASKED_DOMAIN_CAPS, EndpointLimits, HintsMismatch, ProviderOffer, alter, check};
pub use ip::{
    InterfaceChoice, Interfaces, IpProvider, Unresolved, interface_of, ip_getinfo, resolve,
};
pub use named::{NameProvider, name_getinfo};
pub use nic::Nic;
pub use owned::{ApiLevel, InfoBuf, InfoChain, InfoRef, dup_raw, free_raw};
pub use paths::{PATHS, TransferPath};
pub use query::InfoQuery;
pub use template::OfferTemplate;
pub use version::{API_VERSION, PROV_VERSION, version};

/// Internal flag of fi_getinfo in addition to the ones of the API: the caller is a utility
/// provider, not an application. The library accepts these four from providers.
pub const GETINFO_INTERNAL: u64 = 1 << 58;
/// A flag of fi_getinfo between libraries: ask core providers only.
pub const CORE_PROV_ONLY: u64 = 1 << 59;
/// Set by providers linking others: query hidden providers as well.
pub const GETINFO_HIDDEN: u64 = 1 << 60;
/// Set by providers handing work to others: query offload providers only.
pub const OFFLOAD_PROV_ONLY: u64 = 1 << 61;

// None is a flag that an application passes to fi_getinfo.
const _: () = {
    use crate::abi::{FI_NUMERICHOST, FI_PROV_ATTR_ONLY, FI_RESCAN, FI_SOURCE};
    let public = FI_NUMERICHOST | FI_PROV_ATTR_ONLY | FI_RESCAN | FI_SOURCE;
    let own = GETINFO_INTERNAL | CORE_PROV_ONLY | GETINFO_HIDDEN | OFFLOAD_PROV_ONLY;
    assert!(public & own == 0 && own.count_ones() == 4);
};
