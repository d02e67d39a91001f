//! Supported attributes (fi_getinfo(3), fi_tcp(7)).
use super::config::config;
use super::multipath;
use crate::plug_in::{self, provider, variable};
use ofi_provider::abi::{FI_PROTO_SOCK_TCP, FI_PROTO_XNET};
use ofi_provider::error::Result;
use ofi_provider::hmem;
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef, ProviderOffer};
use ofi_provider::interfaces;
use ofi_provider::log;
use ofi_stream::attrs::{OfferLimits, add_devices, offers};
use ofi_stream::paths::{Carrier, StreamPaths};
use std::sync::OnceLock;

/// Returns the user's limits on the infos from environment variables, read once; declares these to
/// the core at first use.
pub(crate) fn limits() -> &'static OfferLimits {
    static LIMITS: OnceLock<OfferLimits> = OnceLock::new();
    LIMITS.get_or_init(|| {
        let protocols = [FI_PROTO_XNET as u32, FI_PROTO_SOCK_TCP as u32];
        let limits = OfferLimits {
            keys: true,
            scalable: plug_in::current().scalable,
            after_reads: plug_in::current().after_reads,
            datagrams: plug_in::current().datagrams,
            sharing: plug_in::current().sharing,
            segments: plug_in::current().segments,
            region_segments: plug_in::current().region_segments,
            ..OfferLimits::of_params(provider(), protocols)
        };
        interfaces::choose(provider());
        limits
    })
}

/// Returns the attributes supported by this plug-in for an application with these hints.
pub(crate) fn offered(api: u32, hints: Option<InfoRef<'_>>) -> Result<Vec<ProviderOffer>> {
    let mut offers = offers(limits(), api, hints)?;
    offers.iter_mut().for_each(plug_in::current().offered);
    if hmem::is_requested(hints) && !hmem::interfaces(provider()).is_empty() {
        offers.iter_mut().for_each(add_devices);
    }
    Ok(offers)
}

/// The infos for a query.
pub(crate) fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    let prov = provider();
    let io_uring = config().io_uring.then(|| format!("{} is on", variable(c"io_uring")));
    config().engine.local.explain(prov, io_uring.as_deref());
    config().engine.secret.explain(prov);
    multipath::explain();
    log::write_paths(prov, || {
        let settings = &config().engine;
        let carrier = if config().io_uring { Carrier::IoUring } else { Carrier::Sockets };
        let (max_inject, inject_param) = (limits().max_inject, Some(c"max_inject"));
        StreamPaths { prov, settings, carrier, max_inject, inject_param }.rows()
    });
    plug_in::infos(&offered(query.version, query.hints)?, query)
}
