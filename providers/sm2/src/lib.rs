//! The provider `sm2`: `shm` by the name of another provider of the original for processes of one host, which was offered from
//! version 1.19 on. Programs and users that name it get endpoints with that provider's attributes (fi_shm(7)).
#![cfg_attr(not(test), forbid(unsafe_code))]
use ofi_host::HostPlugIn;
use ofi_provider::abi::{FI_ORDER_SAS, FI_PROTO_SM2};
use ofi_provider::info::{API_VERSION, PROV_VERSION, ProviderOffer};
use ofi_provider::provider::Provider;

/// Bytes that the original injects at most.
const MAX_INJECT: usize = 3864;

/// The provider, as the core knows it.
static SM2: Provider = Provider::named(c"sm2", PROV_VERSION, API_VERSION)
    .with_cleanup(ofi_host::cleanup)
    .with_parameters_of(&ofi_host::SHM_PARAMETERS);

static PLUG_IN: HostPlugIn = HostPlugIn {
    provider: &SM2,
    scheme: "fi_sm2://",
    asks_virt_addr: false,
    offered: set_attributes,
};

ofi_provider::plug_in!(ofi_host::hand_out(&PLUG_IN));

/// Sets the attributes that the original has in this name.
fn set_attributes(offer: &mut ProviderOffer) {
    offer.most.edit_ep(|ep| ep.protocol = FI_PROTO_SM2 as u32);
    let tx = offer.most.tx_mut();
    tx.inject_size = MAX_INJECT;
    tx.msg_order = FI_ORDER_SAS;
    offer.most.rx_mut().msg_order = FI_ORDER_SAS;
    offer.costly_order = 0;
}
