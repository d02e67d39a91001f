//! The shm provider: FI_EP_RDM endpoints of this host, which have names (fi_shm(7)).
//!
//! [`info`] says what the provider offers, [`name`] how its endpoints are called, and [`link`] gives
//! the engine of `ofi_stream`, which does the work, its links, which soon move their bytes through
//! memory ([`WithLocal`]). [`settings`] are the parameters.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod info;
mod link;
mod name;
mod settings;

use link::ShmLinks;
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{API_VERSION, InfoChain, InfoQuery, InfoRef, PROV_VERSION, ProviderOffer};
use ofi_provider::provider::Provider;
use ofi_stream::local::WithLocal;
use ofi_stream::objects::{LinkProvider, hand_out};

/// The provider, which log lines and parameters name as theirs.
static SHM: Provider =
    Provider::named(c"shm", PROV_VERSION, API_VERSION).with_cleanup(ofi_stream::cleanup);

ofi_provider::plug_in!({
    // The parameters are declared when the provider is loaded, so that fi_getparams lists them.
    settings::declare();
    hand_out::<WithLocal<ShmLinks>>(None)
});

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
