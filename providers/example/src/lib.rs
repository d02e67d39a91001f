//! Example of a provider, to be copied: FI_EP_RDM and FI_EP_MSG endpoints within this host, over
//! AF_UNIX sockets.
//!
//! docs/new-provider.md explains it step by step. This file describes the provider to the core and
//! to programs; [`link`] passes links to the engine of `ofi_stream` with the protocol.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod link;

use link::HostLinks;
use ofi_provider::abi::FI_PROV_SPECIFIC;
use ofi_provider::error::Result;
use ofi_provider::info::{
    API_VERSION, InfoChain, InfoQuery, NameProvider, PROV_VERSION, ProviderOffer, name_getinfo,
};
use ofi_provider::provider::Provider;
use ofi_stream::attrs::{OfferLimits, offers};
use ofi_stream::objects::{LinkProvider, provider_entry};
use ofi_stream::psk_transport::PskTransport;
use ofi_stream::settings::StreamSettings;
use ofi_stream::shm_upgrade::ShmUpgrade;
use std::sync::LazyLock;

/// Provider named in log lines and parameters.
static EXAMPLE: Provider =
    Provider::named(c"example", PROV_VERSION, API_VERSION).with_cleanup(ofi_stream::cleanup);

/// User settings of the engine: the parameters FI_EXAMPLE_MAX_UNEXPECTED and so on.
static SETTINGS: LazyLock<StreamSettings> = LazyLock::new(|| StreamSettings::of_params(&EXAMPLE));

/// User settings of the infos: FI_EXAMPLE_TX_SIZE and so on.
static LIMITS: LazyLock<OfferLimits> =
    LazyLock::new(|| OfferLimits::of_params(&EXAMPLE, PROTOCOLS));

/// Protocols of FI_EP_RDM and FI_EP_MSG (`ep_attr->protocol`). The messages are those of tcp, but
/// endpoints of tcp are unreachable: so the numbers belong to no other provider.
const PROTOCOLS: [u32; 2] = [FI_PROV_SPECIFIC | 0xe0, FI_PROV_SPECIFIC | 0xe1];

ofi_provider::plug_in!({
    // The parameters are declared when the provider is loaded, so that fi_getparams lists them.
    LazyLock::force(&SETTINGS);
    LazyLock::force(&LIMITS);
    provider_entry::<ShmUpgrade<PskTransport<HostLinks>>>(None)
});

impl LinkProvider for HostLinks {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        let offers = offers(&LIMITS, query.version, query.hints)?;
        let report = |line: &str| ofi_provider::log!(&EXAMPLE, INFO, FABRIC, "{line}");
        name_getinfo(
            &NameProvider { name: EXAMPLE.name(), offers: &offers, report: &report },
            query,
        )
    }

    fn offers() -> Result<Vec<ProviderOffer>> {
        offers(&LIMITS, API_VERSION, None)
    }

    fn open() -> Result<Self> {
        Self::new()
    }
}
