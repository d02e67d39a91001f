//! Supported attributes (fi_getinfo(3), fi_udp(7)).
use crate::plug_in::provider;
use ofi_provider::abi::*;
use ofi_provider::error::Result;
use ofi_provider::info::{OfferTemplate, ProviderOffer, TransferPath};
use ofi_stream::secret::PskConfig;
use ofi_stream::secret::datagrams::DATAGRAM_OVERHEAD;
use std::sync::OnceLock;

/// Maximum message size: the payload of one unfragmented datagram over Ethernet.
pub(crate) const MAX_MSG_SIZE: usize = 1472;

/// Maximum size in bytes of a message of an endpoint with a pre-shared key.
pub(crate) const MAX_SEALED_SIZE: usize = MAX_MSG_SIZE - DATAGRAM_OVERHEAD;

const TX_CAPS: u64 = FI_MSG | FI_SEND | FI_MULTICAST;
const RX_CAPS: u64 = FI_MSG | FI_RECV | FI_SOURCE;
/// Peers reachable from endpoints; loopback addresses lose the remote half.
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// Operation flags of sends. A send completes when the kernel has accepted it, as these flags
/// require for an unreliable endpoint.
const TX_OP_FLAGS: u64 = FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_COMPLETION;

/// Maximum posted receives; sends never wait.
pub(crate) const QUEUE_SIZE: usize = 1024;
const IOV_LIMIT: usize = 4;
const OBJECTS: usize = 256;

/// Returns the attributes supported by this provider, with or without a pre-shared key.
pub(crate) fn offer(sealed: bool) -> Result<ProviderOffer> {
    let max_msg_size = if sealed { MAX_SEALED_SIZE } else { MAX_MSG_SIZE };
    OfferTemplate {
        ep_type: fi_ep_type::FI_EP_DGRAM,
        protocol: FI_PROTO_UDP as u32,
        protocol_version: 0,
        caps: TX_CAPS | RX_CAPS | DOMAIN_CAPS,
        directed_caps: [TX_CAPS, RX_CAPS],
        domain_caps: DOMAIN_CAPS,
        op_flags: [TX_OP_FLAGS, FI_COMPLETION],
        inject_size: max_msg_size,
        max_sizes: [QUEUE_SIZE; 2],
        sizes: [QUEUE_SIZE; 2],
        iov_limits: [IOV_LIMIT; 2],
        max_msg_size,
        ep_cnt: OBJECTS,
        cq_cnt: OBJECTS,
        cq_data_size: 0,
        ..OfferTemplate::default()
    }
    .build()
}

/// Returns the paths of messages, for `fi_info --protocols`.
pub(crate) fn paths(sealed: bool) -> Vec<TransferPath> {
    let (max, how) = match sealed {
        true => (MAX_SEALED_SIZE, "one datagram, encrypted; the kernel copies"),
        false => (MAX_MSG_SIZE, "one datagram; the kernel copies from the application's buffer"),
    };
    let row = |transfers, path, text| TransferPath::new(transfers, path, text).of(0, max);
    vec![
        row("inject", "datagram", "the buffer is free when the call returns"),
        row("messages", "datagram", how),
    ]
}

/// Returns the user's pre-shared key (FI_UDP_AUTH_KEY_FILE), read once; declares the parameter to
/// the core at first use.
pub(crate) fn secret() -> &'static PskConfig {
    static SECRET: OnceLock<PskConfig> = OnceLock::new();
    SECRET.get_or_init(|| PskConfig::of_datagram_params(provider()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::info::{API_VERSION, InfoBuf, alter, check};

    #[test]
    fn the_source_of_messages_is_reported_only_on_request() {
        let offer = offer(false).unwrap();
        let mut hints = InfoBuf::new().unwrap();
        hints.set_caps(FI_MSG);
        let info = alter(API_VERSION, &offer, Some(hints.as_ref())).unwrap();
        assert_eq!(info.caps() & FI_SOURCE, 0);
        hints.set_caps(FI_MSG | FI_SOURCE);
        let info = alter(API_VERSION, &offer, Some(hints.as_ref())).unwrap();
        assert_eq!(info.caps() & FI_SOURCE, FI_SOURCE);
    }

    #[test]
    fn hints_beyond_datagram_capabilities_are_refused() {
        let offer = offer(false).unwrap();
        let mut hints = InfoBuf::new().unwrap();
        hints.set_caps(FI_MSG | FI_TAGGED);
        assert!(!check(API_VERSION, &offer, hints.as_ref()).is_empty());
        hints.set_caps(FI_MSG);
        assert!(check(API_VERSION, &offer, hints.as_ref()).is_empty());
        hints.edit_ep(|ep| ep.max_msg_size = MAX_MSG_SIZE + 1);
        assert!(!check(API_VERSION, &offer, hints.as_ref()).is_empty());
    }
}
