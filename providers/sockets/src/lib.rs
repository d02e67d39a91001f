//! The provider `sockets`: endpoints of all types over the sockets of `ofi_inet`, for programs that
//! ask for this name.
//!
//! The original's provider of this name speaks protocols of its own. Nothing of these is here: the
//! peers of an endpoint are those of `tcp`, or, for FI_EP_DGRAM, of `udp`.
#![cfg_attr(not(test), forbid(unsafe_code))]
use ofi_inet::InetPlugIn;
use ofi_provider::abi::FI_PROTO_SOCK_TCP;
use ofi_provider::info::{API_VERSION, PROV_VERSION, ProviderOffer};
use ofi_provider::provider::Provider;

/// The provider, as the core knows it.
static SOCKETS: Provider = Provider::named(c"sockets", PROV_VERSION, API_VERSION)
    .with_cleanup(ofi_inet::cleanup)
    .with_parameters_of(&ofi_inet::TCP_PARAMETERS);

static PLUG_IN: InetPlugIn = InetPlugIn {
    provider: &SOCKETS,
    offered: in_this_name,
    scalable: true,
    note: Some(
        "sockets is tcp, and udp for datagrams, by another name: on the network it speaks their \
         protocols, and reaches no peer that uses sockets of another library",
    ),
};

ofi_provider::plug_in!(ofi_inet::both::hand_out(&PLUG_IN));

/// Most bytes of an injected message, at least.
const INJECT: usize = 255;
/// What domains say of queues, counters and contexts, of which there are as many as there is memory for.
const OBJECTS: usize = 128;
const REGIONS: usize = 65535;
const ERR_DATA: usize = 256;

/// The attributes that programs know the name by.
fn in_this_name(offer: &mut ProviderOffer) {
    let most = &mut offer.most;
    let tx = most.tx_mut();
    tx.inject_size = tx.inject_size.max(INJECT);
    most.edit_ep(|ep| {
        ep.protocol = FI_PROTO_SOCK_TCP as u32;
        ep.protocol_version = 2;
    });
    most.edit_domain(|domain| {
        domain.cntr_cnt = OBJECTS;
        domain.mr_cnt = REGIONS;
        domain.max_err_data = ERR_DATA;
    });
}
