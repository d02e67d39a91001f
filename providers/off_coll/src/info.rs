//! Infos of the provider (fi_getinfo(3), fi_off_coll(7)).
use crate::OFF_COLL;
use core::ffi::CStr;
use ofi_provider::abi::*;
use ofi_provider::coll_paths;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoBuf, InfoChain, InfoQuery, ProviderOffer, check};

const FABRIC_NAME: &CStr = c"UTIL-COLL";
const DOMAIN_NAME: &CStr = c"util-coll";
/// The highest bit of tags is the provider's.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa >> 1;
const TX_SIZE: usize = 16384;
const RX_SIZE: usize = 65536;
const IOV_LIMIT: usize = 4;
const COMM_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// The messages are not the program's, so any order that is asked for is kept.
const ORDERS: u64 = FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_RAS
    | FI_ORDER_WAR
    | FI_ORDER_WAW
    | FI_ORDER_WAS
    | FI_ORDER_SAR
    | FI_ORDER_SAW
    | FI_ORDER_SAS
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

/// Logs why there is no info.
fn refuse(why: &str) -> Error {
    ofi_provider::log!(&OFF_COLL, INFO, FABRIC, "refused: {why}");
    Error::NODATA
}

/// The attributes of the original's `off_coll`, but for progress, which is the owner's to make.
fn offer() -> Result<ProviderOffer> {
    let mut most = InfoBuf::new()?;
    most.set_caps(FI_COLLECTIVE | COMM_CAPS);
    most.set_mode(FI_PEER_TRANSFER);
    most.set_addr_format(FI_SOCKADDR as u32);
    let tx = most.tx_mut();
    (tx.caps, tx.msg_order, tx.size) = (FI_COLLECTIVE, ORDERS, TX_SIZE);
    (tx.iov_limit, tx.rma_iov_limit) = (IOV_LIMIT, IOV_LIMIT);
    let rx = most.rx_mut();
    (rx.caps, rx.msg_order, rx.size) = (FI_COLLECTIVE, ORDERS, RX_SIZE);
    rx.iov_limit = IOV_LIMIT;
    most.edit_ep(|ep| {
        ep.r#type = fi_ep_type::FI_EP_RDM.into();
        (ep.protocol, ep.protocol_version) = (FI_PROTO_COLL as u32, 1);
        ep.max_msg_size = usize::MAX;
        (ep.max_order_raw_size, ep.max_order_war_size) = (usize::MAX, usize::MAX);
        ep.max_order_waw_size = usize::MAX;
        ep.mem_tag_format = TAG_FORMAT;
        (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (1, 1);
    });
    most.edit_domain(|domain| {
        domain.threading = fi_threading::FI_THREAD_SAFE.into();
        domain.control_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        domain.data_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        domain.resource_mgmt = fi_resource_mgmt::FI_RM_ENABLED.into();
        domain.cq_data_size = 8;
        (domain.cq_cnt, domain.ep_cnt) = (65536, 32768);
        (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (1, 1);
        (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
        domain.mr_iov_limit = 1;
        domain.caps = COMM_CAPS;
    });
    Ok(ProviderOffer { most, tx_size: TX_SIZE, rx_size: RX_SIZE, costly_order: 0 })
}

fn is_other(asked: Option<&CStr>, name: &CStr) -> bool {
    asked.is_some_and(|asked| asked.to_bytes() != name.to_bytes())
}

/// The answer to fi_getinfo(3).
pub(crate) fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    let InfoQuery { version: api, hints, .. } = *query;
    let Some(hints) = hints.filter(|hints| hints.mode() & FI_PEER_TRANSFER != 0) else {
        return Err(refuse("mode: FI_PEER_TRANSFER must be accepted"));
    };
    if is_other(hints.fabric_name(), FABRIC_NAME) || is_other(hints.domain_name(), DOMAIN_NAME) {
        return Err(refuse("the names of its fabric and domain are UTIL-COLL and util-coll"));
    }
    let offer = offer()?;
    if let Some(reason) = check(api, &offer, hints).first() {
        return Err(refuse(&reason.to_string()));
    }
    ofi_provider::log::write_paths(&OFF_COLL, coll_paths);
    let ProviderOffer { most: mut info, .. } = offer;
    info.set_fabric_name(FABRIC_NAME)?;
    info.set_domain_name(DOMAIN_NAME)?;
    info.set_handle(hints.handle());
    let mut chain = InfoChain::new();
    chain.push(info);
    Ok(chain)
}
