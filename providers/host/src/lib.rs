//! FI_EP_RDM endpoints within one host, with names (fi_shm(7)), for the providers `shm` and `sm2`.
//!
//! A plug-in supplies its name and its scheme of endpoint names ([`HostPlugIn`]). [`info`] has the
//! supported attributes, and [`name`] the names of endpoints. [`link`] has the links for the engine
//! of `ofi_stream`, authenticated by a pre-shared key if there is one ([`PskTransport`]), and soon
//! upgraded to shared memory ([`ShmUpgrade`]). [`settings`] are the parameters.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod info;
mod link;
mod name;
mod plug_in;
mod settings;

use link::ShmLinks;
use ofi_provider::abi::fi_provider;
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef, ProviderOffer};
use ofi_stream::objects::LinkProvider;
use ofi_stream::psk_transport::PskTransport;
use ofi_stream::shm_upgrade::ShmUpgrade;

pub use ofi_stream::cleanup;
pub use plug_in::{HostPlugIn, SHM_PARAMETERS};

/// Hands the plug-in to the core as a provider of such endpoints, in `fi_prov_ini`.
pub fn provider_entry(plug_in: &'static HostPlugIn) -> *mut fi_provider {
    plug_in.select();
    // The parameters are declared when the provider is loaded, so that fi_getparams lists them.
    settings::declare();
    ofi_stream::objects::provider_entry::<ShmUpgrade<PskTransport<ShmLinks>>>(None)
}

impl LinkProvider for ShmLinks {
    const CONTEXTS: bool = false;

    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        info::getinfo(query)
    }

    fn offers() -> Result<Vec<ProviderOffer>> {
        Ok(vec![info::offer(settings::config(), None)?])
    }

    fn region_segments() -> usize {
        info::REGION_SEGMENTS
    }

    fn address(info: InfoRef<'_>) -> Result<Addr> {
        name::of_endpoint(info)
    }

    fn open() -> Result<Self> {
        Self::new()
    }

    fn open_passive() -> Result<Self> {
        Err(Error::NOSYS)
    }
}
