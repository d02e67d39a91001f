//! The provider `sockets`: endpoints of all types over connections of `ofi_inet`, for programs
//! requesting this name.
//!
//! Upstream's provider with this name has its own protocols. They are not supported here: the peers
//! of an endpoint are those of `tcp`. FI_EP_DGRAM endpoints are those of FI_EP_RDM, as in upstream
//! libfabric: their messages may have any size, have tags and can be triggered.
#![cfg_attr(not(test), forbid(unsafe_code))]
use ofi_inet::InetPlugIn;
use ofi_provider::abi::{
    FI_DIRECTED_RECV, FI_NAMED_RX_CTX, FI_PROTO_SOCK_TCP, FI_SOURCE, fi_ep_type,
};
use ofi_provider::av::AvSharing;
use ofi_provider::buf::MAX_SEGMENTS;
use ofi_provider::info::{API_VERSION, PROV_VERSION, ProviderOffer};
use ofi_provider::mr::MAX_REGION_SEGMENTS;
use ofi_provider::provider::Provider;

/// The provider, as the core knows it.
static SOCKETS: Provider = Provider::named(c"sockets", PROV_VERSION, API_VERSION)
    .with_cleanup(ofi_inet::cleanup)
    .with_parameters_of(&ofi_inet::TCP_PARAMETERS);

static PLUG_IN: InetPlugIn = InetPlugIn {
    provider: &SOCKETS,
    offered: in_this_name,
    scalable: true,
    after_reads: true,
    datagrams: true,
    sharing: AvSharing::ByName,
    segments: MAX_SEGMENTS,
    region_segments: MAX_REGION_SEGMENTS,
    note: Some(
        "sockets is tcp by another name: on the network it speaks its protocol, and reaches no \
         peer that uses sockets of another library",
    ),
};

ofi_provider::plug_in!(ofi_inet::tcp::provider_entry(&PLUG_IN, None));

/// Most bytes of an injected message, at least.
const INJECT: usize = 255;
/// Number of queues, counters and contexts declared by domains; the actual number is limited only
/// by memory.
const OBJECTS: usize = 128;
const REGIONS: usize = 65535;
const ERR_DATA: usize = 256;
/// Capabilities without effect on an endpoint with one connection: its messages come from its peer,
/// without an address in a vector, and go to its only receive context.
const CONNECTED_CAPS: u64 = FI_SOURCE | FI_DIRECTED_RECV | FI_NAMED_RX_CTX;

/// Sets the attributes of this name known to programs.
fn in_this_name(offer: &mut ProviderOffer) {
    let most = &mut offer.most;
    let tx = most.tx_mut();
    tx.inject_size = tx.inject_size.max(INJECT);
    let connected = most.ep().r#type == fi_ep_type::FI_EP_MSG;
    if connected {
        most.set_caps(most.caps() | CONNECTED_CAPS);
        most.tx_mut().caps |= FI_NAMED_RX_CTX;
        most.rx_mut().caps |= FI_SOURCE | FI_DIRECTED_RECV;
    }
    most.edit_ep(|ep| {
        ep.protocol = FI_PROTO_SOCK_TCP as u32;
        ep.protocol_version = 2;
    });
    most.edit_domain(|domain| {
        domain.max_ep_stx_ctx = domain.max_ep_stx_ctx.max(OBJECTS);
        domain.max_ep_srx_ctx = domain.max_ep_srx_ctx.max(OBJECTS);
        domain.cntr_cnt = OBJECTS;
        domain.mr_cnt = REGIONS;
        domain.max_err_data = ERR_DATA;
    });
}
