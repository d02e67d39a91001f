//! The provider `net`: upstream's name, in 1.16 and 1.17, of the reliable datagrams over TCP
//! belonging to `tcp` in later versions. It is `tcp` under this name, and reaches the same peers.
#![cfg_attr(not(test), forbid(unsafe_code))]
use ofi_inet::InetPlugIn;
use ofi_provider::av::AvSharing;
use ofi_provider::info::{API_VERSION, PROV_VERSION, ProviderOffer};
use ofi_provider::provider::Provider;

/// The provider, as the core knows it.
static NET: Provider = Provider::named(c"net", PROV_VERSION, API_VERSION)
    .with_cleanup(ofi_inet::cleanup)
    .with_parameters_of(&ofi_inet::TCP_PARAMETERS);

static PLUG_IN: InetPlugIn = InetPlugIn {
    provider: &NET,
    offered: as_it_was,
    scalable: false,
    after_reads: false,
    datagrams: false,
    sharing: AvSharing::Never,
    segments: ofi_provider::buf::IOV_LIMIT,
    region_segments: 1,
    note: None,
};

ofi_provider::plug_in!(ofi_inet::tcp::provider_entry(&PLUG_IN, None));

/// The protocols had no versions.
fn as_it_was(offer: &mut ProviderOffer) {
    offer.most.edit_ep(|ep| ep.protocol_version = 0);
}
