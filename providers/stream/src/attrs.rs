//! Capabilities of the engine over any links: the attributes offered by its providers
//! (fi_getinfo(3)).
use crate::secret::SECRET_BYTES;
use ofi_provider::abi::*;
use ofi_provider::av::AvSharing;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::buffered::{self, VARIABLE_MSG};
use ofi_provider::contexts::MAX_CONTEXTS;
use ofi_provider::error::Result;
use ofi_provider::info::{ASKED_DOMAIN_CAPS, InfoRef, OfferTemplate, ProviderOffer, version};
use ofi_provider::param;
use ofi_provider::provider::Provider;

/// Capabilities of every endpoint of the engine: new capabilities are added only here.
const MSG_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_SEND
    | FI_RECV
    | FI_MULTI_RECV
    | FI_RMA
    | FI_ATOMIC
    | FI_READ
    | FI_WRITE
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_RMA_EVENT
    | FI_RMA_PMEM
    | FI_FENCE
    | FI_TRIGGER;
/// Capabilities of FI_EP_RDM endpoints in addition to [`MSG_CAPS`].
const RDM_CAPS: u64 = FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_SOURCE_ERR
    | FI_AV_USER_ID
    | FI_PEER
    | FI_COLLECTIVE
    | FI_MULTICAST;
/// Capabilities of FI_EP_DGRAM endpoints ([`OfferLimits::datagrams`]): those of messages.
const DGRAM_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_SEND
    | FI_RECV
    | FI_MULTI_RECV
    | FI_FENCE
    | FI_TRIGGER
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_SOURCE_ERR;
/// Reachable peers of endpoints; loopback addresses lose FI_REMOTE_COMM.
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// Capabilities of a transmit context; the others are the receiver's.
const TX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_SEND
    | FI_READ
    | FI_WRITE
    | FI_RMA_PMEM
    | FI_FENCE
    | FI_NAMED_RX_CTX
    | FI_TRIGGER
    | FI_COLLECTIVE
    | FI_MULTICAST;
/// Capabilities of a receive context.
const RX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_SOURCE_ERR
    | FI_RMA_EVENT
    | FI_RMA_PMEM
    | VARIABLE_MSG
    | FI_TRIGGER
    | FI_COLLECTIVE
    | FI_MULTICAST;
/// Everything on a connection is done in the order of its posting, but for the
/// answers to reads, of memory and by atomic operations.
const MSG_ORDER: u64 = FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_RAS
    | FI_ORDER_WAW
    | FI_ORDER_WAS
    | FI_ORDER_SAW
    | FI_ORDER_SAS
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAW;
/// Orders guaranteed if operations after a read wait for its response.
const AFTER_READS: u64 = FI_ORDER_WAR | FI_ORDER_SAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR;
const TX_OP_FLAGS: u64 =
    FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_COMPLETION;
/// Operation flags of endpoints with possibly persistent memory in their regions (FI_RMA_PMEM).
const PMEM_OP_FLAGS: u64 = FI_COMMIT_COMPLETE;
const RX_OP_FLAGS: u64 = FI_MULTI_RECV | FI_COMPLETION;

/// Every field of the tag is matched on its own.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Limits of a provider's supported attributes, partly selected by its users.
#[derive(Clone, Debug)]
pub struct OfferLimits {
    /// Operations under way at a time, if the application asks for no number.
    pub tx_size: usize,
    /// Receives posted at a time, if the application asks for no number.
    pub rx_size: usize,
    /// Most bytes of an injected message.
    pub max_inject: usize,
    /// The protocols of FI_EP_RDM and FI_EP_MSG (`ep_attr->protocol`): equal ones can talk with each
    /// other.
    pub protocols: [u32; 2],
    /// Domains and endpoints accept pre-shared keys of the program (`auth_key`).
    pub keys: bool,
    /// Hints may request an order: writes, atomic operations and messages wait for the responses to
    /// reads posted before them.
    pub after_reads: bool,
    /// FI_EP_DGRAM endpoints exist, implemented as FI_EP_RDM without memory access. They come first
    /// in the result.
    pub datagrams: bool,
    /// Contexts of scalable endpoints are offered even to hints not requesting them.
    pub scalable: bool,
    /// Support for address vectors shared between processes (FI_SHARED_AV).
    pub sharing: AvSharing,
    /// Maximum segments of the application's memory, and of a peer's, in a transfer
    /// ([`LinkProvider::segments`](crate::objects::LinkProvider::segments) returns the same
    /// number).
    pub segments: usize,
    /// Maximum segments of a region
    /// ([`LinkProvider::region_segments`](crate::objects::LinkProvider::region_segments) returns
    /// the same number).
    pub region_segments: usize,
}

impl OfferLimits {
    /// The usual ones, for these protocols.
    pub fn usual(protocols: [u32; 2]) -> Self {
        Self {
            tx_size: 256,
            rx_size: 256,
            max_inject: 128,
            protocols,
            keys: false,
            after_reads: false,
            datagrams: false,
            scalable: false,
            sharing: AvSharing::Never,
            segments: IOV_LIMIT,
            region_segments: 1,
        }
    }

    /// Reads the user's choice from parameters of this provider, FI_TCP_TX_SIZE and so on. The call
    /// declares them to the core.
    pub fn of_params(prov: &'static Provider, protocols: [u32; 2]) -> Self {
        let usual = Self::usual(protocols);
        let size = |name, default, help| param::size(prov, name, default, help);
        Self {
            tx_size: size(
                c"tx_size",
                usual.tx_size,
                c"transmit queue size when the application names none (256)",
            ),
            rx_size: size(
                c"rx_size",
                usual.rx_size,
                c"receive queue size when the application names none (256)",
            ),
            max_inject: size(
                c"max_inject",
                usual.max_inject,
                c"largest message of an inject call, in bytes (128)",
            ),
            ..usual
        }
    }
}

/// Returns the supported attributes for an application with these hints, in the order of the
/// result.
///
/// Shared contexts and contexts of scalable endpoints change the use of an endpoint. So they are
/// offered only to applications requesting them, or to applications without hints, with a list to
/// choose from: there the connected endpoint over a shared receive context is the last one. Some
/// providers offer contexts of scalable endpoints to all ([`OfferLimits::scalable`]).
pub fn offers(
    limits: &OfferLimits,
    version: u32,
    hints: Option<InfoRef<'_>>,
) -> Result<Vec<ProviderOffer>> {
    let asked = hints.and_then(|hints| hints.ep());
    let counts = asked.map_or([0; 2], |ep| [ep.tx_ctx_cnt, ep.rx_ctx_cnt]);
    let shared = counts.map(|count| count == FI_SHARED_CONTEXT);
    let several = counts.iter().any(|count| *count > 1 && *count != FI_SHARED_CONTEXT);
    let named = hints.is_some_and(|hints| hints.caps() & FI_NAMED_RX_CTX != 0);
    let (contexts, named) = match several || named || limits.scalable {
        true => (MAX_CONTEXTS, FI_NAMED_RX_CTX),
        false => (1, 0),
    };
    // Buffered receives (FI_BUFFERED_RECV) are not offered with shared receive contexts.
    let (buffers, variable) = if shared[1] { (0, 0) } else { buffered::bits(version) };
    let caps = hints.map_or(0, InfoRef::caps) & variable;
    // An application that can do with every mode asks for none.
    let modes = hints.map(InfoRef::mode).filter(|mode| *mode != u64::MAX);
    let mode = modes.unwrap_or(0) & buffers;
    // Triggered operations and collectives take ordinary receives; collectives also take an
    // endpoint that both sends and receives, with contexts of its own.
    let without = match mode & FI_BUFFERED_RECV == 0 && caps == 0 {
        false => FI_TRIGGER | FI_COLLECTIVE | FI_MULTICAST,
        true if contexts > 1 || shared[1] => FI_COLLECTIVE | FI_MULTICAST,
        true => 0,
    };
    let rdm = OfferedEndpoint {
        ep_type: fi_ep_type::FI_EP_RDM,
        caps: ((MSG_CAPS | RDM_CAPS) & !without) | named | caps,
        mode,
        protocol: limits.protocols[0],
        protocol_version: 1,
        max_tx_size: 65536,
        max_rx_size: 65536,
        shared,
        contexts,
        ep_cnt: 256,
        max_ep_srx_ctx: if shared[1] { 256 } else { 0 },
    };
    let msg = OfferedEndpoint {
        ep_type: fi_ep_type::FI_EP_MSG,
        caps: (MSG_CAPS & !without) | caps,
        mode,
        protocol: limits.protocols[1],
        protocol_version: 0,
        max_tx_size: 1024,
        max_rx_size: if shared[1] { 65536 } else { 1024 },
        shared,
        contexts: 1,
        ep_cnt: 8192,
        max_ep_srx_ctx: 8192,
    };
    // Programs that choose from a list instead of asking find a connected endpoint over a shared
    // receive context behind the others.
    let mut kinds = vec![rdm, msg];
    if limits.datagrams {
        let caps = (DGRAM_CAPS & !without) | named | caps;
        kinds.insert(0, OfferedEndpoint { ep_type: fi_ep_type::FI_EP_DGRAM, caps, ..rdm });
    }
    if hints.is_none() {
        kinds.push(OfferedEndpoint { max_rx_size: 65536, shared: [false, true], ..msg });
    }
    let keys = echoed_keys(limits.keys, version, hints);
    kinds
        .iter()
        .map(|kind| {
            let mut offer = kind.offer(limits)?;
            offer.most.set_auth_keys(keys[0], keys[1])?;
            Ok(offer)
        })
        .collect()
}

/// Adds buffers in memory of devices (FI_HMEM) to an offer, without the capabilities in need of an
/// access of the processor to them.
pub fn add_devices(offer: &mut ProviderOffer) {
    const WITHOUT: u64 = FI_ATOMIC | FI_COLLECTIVE | FI_MULTICAST | FI_RMA_PMEM | FI_NAMED_RX_CTX;
    let of_devices = |caps: u64| (caps & !(WITHOUT | VARIABLE_MSG)) | FI_HMEM;
    let most = &mut offer.most;
    most.set_caps(of_devices(most.caps()));
    most.set_mode(most.mode() & !FI_BUFFERED_RECV);
    let tx = most.tx_mut();
    tx.caps = of_devices(tx.caps);
    tx.op_flags &= !FI_COMMIT_COMPLETE;
    let rx = most.rx_mut();
    rx.caps = of_devices(rx.caps);
}

/// Returns the authorization keys of the hints, an endpoint's and a domain's, repeated in the
/// result if they are valid pre-shared keys. Programs of API versions before 1.5 have none.
pub fn echoed_keys(taken: bool, api: u32, hints: Option<InfoRef<'_>>) -> [Option<&[u8]>; 2] {
    let hints = hints.filter(|_| taken && api >= version(1, 5));
    let lens = SECRET_BYTES.0..=SECRET_BYTES.1;
    hints.map_or([None; 2], |hints| {
        [hints.ep_auth_key(), hints.domain_auth_key()]
            .map(|key| key.filter(|key| lens.contains(&key.len())))
    })
}

/// Differences between the kinds of endpoints.
#[derive(Clone, Copy)]
struct OfferedEndpoint {
    ep_type: fi_ep_type,
    caps: u64,
    mode: u64,
    protocol: u32,
    protocol_version: u32,
    /// Largest transmit and receive queues (tx_attr.size, rx_attr.size).
    max_tx_size: usize,
    max_rx_size: usize,
    /// Use of shared contexts: transmit, receive.
    shared: [bool; 2],
    /// Most contexts of a scalable endpoint, of either kind.
    contexts: usize,
    ep_cnt: usize,
    /// Most shared receive contexts of a domain.
    max_ep_srx_ctx: usize,
}

impl OfferedEndpoint {
    fn offer(&self, limits: &OfferLimits) -> Result<ProviderOffer> {
        let domain_caps = match limits.sharing {
            AvSharing::Never => DOMAIN_CAPS,
            AvSharing::ByName => DOMAIN_CAPS | FI_SHARED_AV,
        };
        let caps = self.caps | domain_caps;
        let order = MSG_ORDER | if limits.after_reads { AFTER_READS } else { 0 };
        let pmem_flags = if caps & FI_RMA_PMEM != 0 { PMEM_OP_FLAGS } else { 0 };
        let max_after_reads = if limits.after_reads { usize::MAX } else { 0 };
        let mut offer = OfferTemplate {
            ep_type: self.ep_type,
            protocol: self.protocol,
            protocol_version: self.protocol_version,
            caps,
            directed_caps: [TX_CAPS, RX_CAPS],
            domain_caps: domain_caps | (self.caps & ASKED_DOMAIN_CAPS),
            mode: self.mode,
            op_flags: [TX_OP_FLAGS | pmem_flags, RX_OP_FLAGS],
            msg_order: [order; 2],
            costly_order: AFTER_READS,
            inject_size: limits.max_inject,
            max_sizes: [self.max_tx_size.max(limits.tx_size), self.max_rx_size.max(limits.rx_size)],
            sizes: [limits.tx_size, limits.rx_size],
            iov_limits: [limits.segments; 2],
            rma_iov_limit: if caps & FI_RMA != 0 { limits.segments } else { 0 },
            max_order_sizes: [usize::MAX, max_after_reads, usize::MAX],
            mem_tag_format: TAG_FORMAT,
            shared_contexts: self.shared,
            max_contexts: self.contexts,
            ep_cnt: self.ep_cnt,
            cq_cnt: 256,
            mr_iov_limit: limits.region_segments,
            ..OfferTemplate::default()
        }
        .build()?;
        offer.most.edit_domain(|domain| {
            domain.max_ep_stx_ctx = if self.shared[0] { self.ep_cnt } else { 0 };
            domain.max_ep_srx_ctx = self.max_ep_srx_ctx;
        });
        Ok(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::info::API_VERSION;
    use ofi_provider::info::{InfoBuf, alter, check};

    fn offered(hints: Option<InfoRef<'_>>) -> Vec<ProviderOffer> {
        offers(&OfferLimits::usual([0; 2]), API_VERSION, hints).unwrap()
    }

    #[test]
    fn query_without_hints_gets_the_defaults() {
        for offer in offered(None) {
            let info = alter(API_VERSION, &offer, None).unwrap();
            assert_eq!((info.tx().size, info.rx().size, info.tx().inject_size), (256, 256, 128));
            assert_eq!(info.tx().op_flags | info.rx().op_flags, 0);
            assert_eq!(info.tx().caps & FI_RECV, 0);
            let (ep, domain) = (info.ep(), info.domain());
            assert_eq!(ep.tx_ctx_cnt, 1);
            assert_eq!((domain.max_ep_tx_ctx, domain.max_ep_rx_ctx), (1, 1));
            assert_eq!(info.caps() & FI_NAMED_RX_CTX, 0);
        }
    }

    #[test]
    fn hints_raise_sizes_up_to_the_largest_queue() {
        let mut hints = InfoBuf::new().unwrap();
        for (shared, size, offers_that_do) in
            [(false, 1024, 2), (false, 65536, 1), (true, 65536, 2), (false, 65537, 0)]
        {
            hints.rx_mut().size = size;
            hints.edit_ep(|ep| ep.rx_ctx_cnt = if shared { FI_SHARED_CONTEXT } else { 0 });
            let accepted =
                |offer: &&ProviderOffer| check(API_VERSION, offer, hints.as_ref()).is_empty();
            let offers = offered(Some(hints.as_ref()));
            assert_eq!(offers.iter().filter(accepted).count(), offers_that_do, "{size}");
        }
    }

    #[test]
    fn shared_avs_are_offered_with_and_without_a_request() {
        let mut limits = OfferLimits::usual([0; 2]);
        let mut hints = InfoBuf::new().unwrap();
        hints.set_caps(FI_MSG | FI_SHARED_AV);
        let missing = |limits: &OfferLimits, hints: &InfoBuf| {
            let offers = offers(limits, API_VERSION, Some(hints.as_ref())).unwrap();
            offers
                .iter()
                .filter(|offer| check(API_VERSION, offer, hints.as_ref()).is_empty())
                .count()
        };
        assert_eq!(missing(&limits, &hints), 0);
        limits.sharing = AvSharing::ByName;
        assert_eq!(missing(&limits, &hints), 2);
        hints.set_caps(FI_MSG);
        for offer in offers(&limits, API_VERSION, Some(hints.as_ref())).unwrap() {
            let info = alter(API_VERSION, &offer, Some(hints.as_ref())).unwrap();
            assert_eq!(info.caps() & info.domain().caps & FI_SHARED_AV, FI_SHARED_AV);
            assert_eq!((info.tx().caps | info.rx().caps) & FI_SHARED_AV, 0);
        }
    }

    #[test]
    fn directed_receive_is_offered_only_by_connectionless_endpoints() {
        let offers = offered(None);
        let [rdm, msg, shared] = &offers[..] else { panic!("three offers") };
        assert_eq!(rdm.most.caps() & RDM_CAPS, RDM_CAPS);
        assert_eq!((msg.most.caps() | shared.most.caps()) & RDM_CAPS, 0);
    }

    #[test]
    fn a_list_has_an_endpoint_over_a_shared_receive_context_behind_all_others() {
        let counts = |hints: Option<InfoRef<'_>>| -> Vec<usize> {
            offered(hints).iter().map(|offer| offer.most.ep().rx_ctx_cnt).collect()
        };
        assert_eq!(counts(None), [1, 1, FI_SHARED_CONTEXT]);
        assert_eq!(counts(Some(InfoBuf::new().unwrap().as_ref())), [1, 1]);
    }

    #[test]
    fn modes_are_answered_only_if_requested_and_known_to_the_api() {
        let mut hints = InfoBuf::new().unwrap();
        let (all, buffers) = (u64::MAX, FI_BUFFERED_RECV);
        for (mode, api, answer) in [
            (FI_CONTEXT | buffers, version(1, 22), buffers),
            (FI_CONTEXT | buffers, version(2, 0), 0),
            (FI_CONTEXT | FI_MSG_PREFIX, version(2, 0), 0),
            (all, version(1, 17), 0),
        ] {
            hints.set_mode(mode);
            for offer in offers(&OfferLimits::usual([0; 2]), api, Some(hints.as_ref())).unwrap() {
                let info = alter(api, &offer, Some(hints.as_ref())).unwrap();
                assert_eq!(info.mode(), answer);
                assert_eq!((info.rx().mode, info.tx().mode), (0, 0));
                assert_eq!(info.ep().msg_prefix_size, 0);
            }
        }
    }

    #[test]
    fn scalable_contexts_are_offered_only_if_several_are_requested() {
        let mut hints = InfoBuf::new().unwrap();
        hints.edit_ep(|ep| ep.tx_ctx_cnt = MAX_CONTEXTS);
        let offers = offered(Some(hints.as_ref()));
        let refused = |offer: &ProviderOffer| !check(API_VERSION, offer, hints.as_ref()).is_empty();
        assert_eq!(offers.iter().map(refused).collect::<Vec<_>>(), [false, true]);
        let info = alter(API_VERSION, &offers[0], Some(hints.as_ref())).unwrap();
        assert_eq!(info.domain().max_ep_rx_ctx, MAX_CONTEXTS);
        assert_eq!(info.ep().tx_ctx_cnt, MAX_CONTEXTS);
        hints.edit_ep(|ep| ep.tx_ctx_cnt = MAX_CONTEXTS + 1);
        assert!(
            offered(Some(hints.as_ref()))
                .iter()
                .all(|offer| { !check(API_VERSION, offer, hints.as_ref()).is_empty() })
        );
    }
}
