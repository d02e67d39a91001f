//! The provider `sm2`: `shm` under the name of another upstream provider for processes of one host,
//! available from version 1.19 on. Programs and users naming it get endpoints with its attributes
//! (fi_shm(7)).
#![cfg_attr(not(test), forbid(unsafe_code))]
use ofi_host::HostPlugIn;
use ofi_provider::abi::{FI_ORDER_SAS, FI_PROTO_SM2};
use ofi_provider::info::{API_VERSION, PROV_VERSION, ProviderOffer};
use ofi_provider::provider::Provider;

/// Upstream's maximum of injected bytes.
const MAX_INJECT: usize = 3864;

/// The provider, as the core knows it.
static SM2: Provider = Provider::named(c"sm2", PROV_VERSION, API_VERSION)
    .with_cleanup(ofi_host::cleanup)
    .with_parameters_of(&ofi_host::SHM_PARAMETERS);

static PLUG_IN: HostPlugIn = HostPlugIn {
    provider: &SM2,
    scheme: "fi_sm2://",
    wants_virt_addr: false,
    offered: set_attributes,
};

ofi_provider::plug_in!(ofi_host::provider_entry(&PLUG_IN));

/// Sets the attributes of upstream's provider with this name.
fn set_attributes(offer: &mut ProviderOffer) {
    offer.most.edit_ep(|ep| ep.protocol = FI_PROTO_SM2 as u32);
    let tx = offer.most.tx_mut();
    tx.inject_size = MAX_INJECT;
    tx.msg_order = FI_ORDER_SAS;
    offer.most.rx_mut().msg_order = FI_ORDER_SAS;
    offer.costly_order = 0;
}
