//! The udp provider: FI_EP_DGRAM endpoints over UDP sockets, implemented by `ofi_inet`.
#![cfg_attr(not(test), forbid(unsafe_code))]
use ofi_inet::InetPlugIn;
use ofi_provider::av::AvSharing;
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// The provider, as the core knows it.
static UDP: Provider = Provider::named(c"udp", PROV_VERSION, API_VERSION);

static PLUG_IN: InetPlugIn = InetPlugIn {
    provider: &UDP,
    offered: |_| {},
    scalable: false,
    after_reads: false,
    datagrams: false,
    sharing: AvSharing::Never,
    segments: ofi_provider::buf::IOV_LIMIT,
    region_segments: 1,
    note: None,
};

ofi_provider::plug_in!(ofi_inet::udp::provider_entry(&PLUG_IN));
