//! Supported attributes for each core provider (fi_getinfo(3), fi_rxd(7)).
use crate::config::{MAX_PACKET, config};
use crate::paths;
use crate::provider::{RXD, RXD_NAME};
use core::ffi::c_int;
use ofi_provider::abi::*;
use ofi_provider::core_provider;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{
    InfoBuf, InfoChain, InfoQuery, InfoRef, OfferTemplate, ProviderOffer, alter, check, version,
};
use ofi_provider::log;
use std::ffi::CString;

const TX_CAPS: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE | FI_TRIGGER;
const RX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_SOURCE
    | FI_DIRECTED_RECV
    | FI_MULTI_RECV
    | FI_RMA_EVENT
    | FI_TRIGGER;
/// Capabilities provided only on request to applications requesting any.
const HINTED_CAPS: u64 = FI_DIRECTED_RECV | FI_TRIGGER;
/// Subset of [`HINTED_CAPS`] hidden also from applications requesting none: upstream has none of
/// them.
const NAMED_CAPS: u64 = FI_TRIGGER;
const COMM_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const TX_OP_FLAGS: u64 =
    FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_COMPLETION;
const RX_OP_FLAGS: u64 = FI_MULTI_RECV | FI_COMPLETION;

/// Message order. Packets are taken in the order of sending, and a read response is read from
/// memory when it is sent: a write after the read may be executed before that.
const ORDER: u64 = FI_ORDER_RAR
    | FI_ORDER_RAS
    | FI_ORDER_RAW
    | FI_ORDER_SAS
    | FI_ORDER_SAW
    | FI_ORDER_WAS
    | FI_ORDER_WAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

const QUEUE_SIZE: usize = 1024;
const IOV_LIMIT: usize = 4;
const OBJECTS: usize = 128;
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Memory registration modes permitted to a core provider: this provider registers the memory for
/// the core.
const MR_MODE: c_int = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// Requirements permitted to a core provider: this provider fulfils them.
const MODE: u64 = FI_LOCAL_MR | FI_MSG_PREFIX;

/// Maximum size of the headers of an injected operation, as allowed for by upstream libfabric.
const INJECT_HEADS: usize = 16 + 96 + 96 + 8;

/// Returns the maximum bytes of an injected operation, sent as one packet, for packets of this
/// length.
pub(crate) fn inject_size(packet: usize) -> usize {
    packet.saturating_sub(INJECT_HEADS)
}

/// Returns the hints for core providers, so this provider can satisfy `hints`.
pub(crate) fn core_hints(hints: Option<InfoRef<'_>>) -> Result<InfoBuf> {
    let mut core = match hints {
        Some(hints) => hints.to_owned()?,
        None => InfoBuf::new()?,
    };
    core.set_caps(FI_MSG | (core.caps() & COMM_CAPS));
    core.set_mode(MODE);
    core.set_handle(std::ptr::null_mut());
    // The versions of this provider and of its protocol are not the core's.
    core.set_versions(0, 0);
    let tx = core.tx_mut();
    (tx.caps, tx.mode, tx.op_flags, tx.inject_size, tx.size) = (0, 0, 0, 0, 0);
    (tx.msg_order, tx.comp_order, tx.iov_limit, tx.rma_iov_limit) = (0, 0, 0, 0);
    let rx = core.rx_mut();
    (rx.caps, rx.mode, rx.op_flags, rx.iov_limit, rx.size) = (0, 0, 0, 0, 0);
    (rx.msg_order, rx.total_buffered_recv, rx.comp_order) = (0, 0, 0);
    core.edit_ep(|ep| {
        ep.r#type = fi_ep_type::FI_EP_DGRAM.into();
        (ep.protocol, ep.protocol_version, ep.mem_tag_format) = (0, 0, 0);
        (ep.max_msg_size, ep.msg_prefix_size) = (0, 0);
        (ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size) = (0, 0, 0);
        (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (0, 0);
    });
    core.edit_domain(|domain| {
        domain.threading = fi_threading::FI_THREAD_SAFE.into();
        domain.control_progress = fi_progress::FI_PROGRESS_UNSPEC.into();
        domain.data_progress = fi_progress::FI_PROGRESS_UNSPEC.into();
        domain.resource_mgmt = fi_resource_mgmt::FI_RM_UNSPEC.into();
        domain.av_type = fi_av_type::FI_AV_UNSPEC.into();
        (domain.mr_mode, domain.mode, domain.caps) = (MR_MODE, 0, 0);
        (domain.cq_data_size, domain.mr_iov_limit, domain.mr_key_size) = (0, 0, 0);
        (domain.cq_cnt, domain.ep_cnt, domain.cntr_cnt, domain.mr_cnt) = (0, 0, 0, 0);
        (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (0, 0);
        (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (0, 0);
        (domain.max_ep_stx_ctx, domain.max_ep_srx_ctx) = (0, 0);
    });
    // For "core;ofi_rxd" the core's name is requested.
    if let Some(name) = hints.and_then(InfoRef::prov_name) {
        let name = name.to_string_lossy();
        let own = RXD_NAME.to_string_lossy();
        let core_names = name.split(';').filter(|name| !name.eq_ignore_ascii_case(&own));
        let names = core_names.collect::<Vec<_>>().join(";");
        core.set_prov_name(&CString::new(names).map_err(|_| Error::INVAL)?)?;
    }
    Ok(core)
}

/// Returns the API version for the core provider: older ones cannot express its memory
/// requirements.
pub(crate) fn core_version(api: u32) -> u32 {
    api.max(version(1, 5))
}

/// Returns the attributes supported over a core provider.
pub(crate) fn offer(core: InfoRef<'_>) -> Result<ProviderOffer> {
    let core_ep = core.ep().ok_or(Error::NODATA)?;
    let packet = core_ep.max_msg_size.min(MAX_PACKET).saturating_sub(core_ep.msg_prefix_size);
    log::write_paths(&RXD, || paths::rows(config(), packet, inject_size(packet)));
    let mut offer = OfferTemplate {
        protocol: FI_PROTO_RXD as u32,
        caps: TX_CAPS | RX_CAPS | (core.caps() & COMM_CAPS),
        directed_caps: [TX_CAPS, RX_CAPS],
        domain_caps: COMM_CAPS,
        op_flags: [TX_OP_FLAGS, RX_OP_FLAGS],
        msg_order: [ORDER; 2],
        inject_size: inject_size(packet),
        max_sizes: [QUEUE_SIZE; 2],
        sizes: [QUEUE_SIZE; 2],
        iov_limits: [IOV_LIMIT; 2],
        rma_iov_limit: IOV_LIMIT,
        tclass: core.tx().map_or(0, |tx| tx.tclass),
        max_order_sizes: [usize::MAX, 0, usize::MAX],
        mem_tag_format: TAG_FORMAT,
        ep_cnt: OBJECTS,
        cq_cnt: OBJECTS,
        mr_iov_limit: 1,
        ..OfferTemplate::default()
    }
    .build()?;
    // Secrets of the program's own are the core's: a core that has none refuses them.
    offer.most.set_auth_keys(core.ep_auth_key(), core.domain_auth_key())?;
    Ok(offer)
}

/// The info for an application with these hints, over one core provider.
fn layer(api: u32, core: InfoRef<'_>, hints: Option<InfoRef<'_>>) -> Result<Option<InfoBuf>> {
    let offer = offer(core)?;
    if let Some(hints) = hints {
        let mismatches = check(api, &offer, hints);
        if !mismatches.is_empty() {
            for mismatch in mismatches {
                report(&format!("FI_EP_RDM refused: {mismatch}"));
            }
            return Ok(None);
        }
    }
    let mut info = alter(api, &offer, hints)?;
    let unasked = match hints.map_or(0, InfoRef::caps) {
        0 => NAMED_CAPS,
        asked => HINTED_CAPS & !asked,
    };
    info.set_caps(info.caps() & !unasked);
    info.tx_mut().caps &= !unasked;
    info.rx_mut().caps &= !unasked;
    let asked = hints.and_then(InfoRef::domain).map(|domain| domain.data_progress);
    if asked.is_none_or(|progress| progress == fi_progress::FI_PROGRESS_UNSPEC) {
        info.edit_domain(|domain| {
            domain.data_progress = fi_progress::FI_PROGRESS_MANUAL.into();
            domain.control_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        });
    }
    info.edit_domain(|domain| domain.tclass = core.domain().map_or(0, |core| core.tclass));
    info.set_addr_format(core.addr_format());
    info.set_src_addr(core.src_addr())?;
    info.set_dest_addr(core.dest_addr())?;
    if let Some(name) = core.domain_name() {
        info.set_domain_name(name)?;
    }
    if let Some(name) = core.fabric_name() {
        info.set_fabric_name(name)?;
    }
    if let Some(name) = core.prov_name() {
        info.set_prov_name(name)?;
    }
    info.copy_nic(core)?;
    Ok(Some(info))
}

/// The answer to fi_getinfo(3).
pub(crate) fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    let InfoQuery { version: api, flags, hints, .. } = *query;
    let wanted = hints.map_or(Default::default(), InfoRef::ep_type);
    if wanted != fi_ep_type::FI_EP_UNSPEC && wanted != fi_ep_type::FI_EP_RDM {
        report("refused: ep_attr->type: only FI_EP_RDM");
        return Err(Error::NODATA);
    }
    let flags = match config().rescan {
        Some(true) => flags | FI_RESCAN,
        Some(false) => flags & !FI_RESCAN,
        None => flags,
    };
    let mut hinted = core_hints(hints)?;
    if api < version(1, 5) {
        // Programs of these versions have no authorization keys.
        hinted.set_auth_keys(None, None)?;
    }
    let version = core_version(api);
    let asked = InfoQuery { version, flags, hints: Some(hinted.as_ref()), ..*query };
    let cores = core_provider::getinfo(&asked)?;
    let mut chain = InfoChain::new();
    for core in cores.iter() {
        if let Some(info) = layer(api, core, hints)? {
            chain.push(info);
        }
    }
    if chain.is_empty() { Err(Error::NODATA) } else { Ok(chain) }
}

/// Logs the reason for an info missing from the result.
fn report(line: &str) {
    ofi_provider::log!(&RXD, INFO, FABRIC, "{line}");
}
