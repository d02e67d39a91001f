//! Supported attributes of the provider (fi_getinfo(3), fi_shm(7)).
use crate::name;
use crate::plug_in::{current, provider};
use crate::settings::{MAX_INJECT, ShmConfig, config};
use ofi_provider::abi::*;
use ofi_provider::error::{Error, Result};
use ofi_provider::hmem;
use ofi_provider::info::{
    InfoBuf, InfoChain, InfoQuery, InfoRef, OfferTemplate, ProviderOffer, alter, check, tostr,
};
use ofi_provider::log;
use ofi_stream::attrs::{add_devices, echoed_keys};
use ofi_stream::paths::{Carrier, StreamPaths};
use std::ffi::CStr;

const TX_CAPS: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE;
const RX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_RMA_EVENT
    | FI_SOURCE
    | FI_DIRECTED_RECV;
/// Never FI_REMOTE_COMM: applications requesting it need another provider.
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_AV_USER_ID | FI_PEER;
/// Capabilities of the engine beyond upstream's provider. They are offered only if hints name the
/// provider. Otherwise applications requesting them would get shm instead of a provider reaching
/// other hosts.
const MORE_CAPS: u64 = FI_TRIGGER | FI_FENCE | FI_COLLECTIVE | FI_MULTICAST;
/// Subset of [`MORE_CAPS`] for receive contexts.
const MORE_RX_CAPS: u64 = MORE_CAPS & !FI_FENCE;
const TX_OP_FLAGS: u64 =
    FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
const RX_OP_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;
/// Orders guaranteed at no cost.
const FREE_ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_RAS
    | FI_ORDER_WAW
    | FI_ORDER_WAS
    | FI_ORDER_SAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAW;
/// Orders guaranteed on request: writes, atomic operations and messages following a read wait for
/// its response.
const DEAR_ORDER: u64 = FI_ORDER_WAR | FI_ORDER_SAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR;
const IOV_LIMIT: usize = 4;
/// Every field of the tag is matched on its own.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
const EP_CNT: usize = 256;
/// Maximum segments of a region.
pub(crate) const REGION_SEGMENTS: usize = 4;
const CONTEXTS: usize = 1024;

/// Returns true if hints name the provider.
fn is_named(hints: Option<InfoRef<'_>>) -> bool {
    let name = hints.and_then(InfoRef::prov_name).map(CStr::to_bytes);
    name.is_some_and(|name| {
        name.split(|byte| *byte == b';').any(|one| one == provider().name().to_bytes())
    })
}

/// Returns the attributes supported for these hints.
pub(crate) fn offer(config: &ShmConfig, hints: Option<InfoRef<'_>>) -> Result<ProviderOffer> {
    let more = is_named(hints);
    let asked = hints.filter(|_| more).map_or(0, InfoRef::caps);
    let caps = TX_CAPS | RX_CAPS | DOMAIN_CAPS | (asked & MORE_CAPS);
    let mut offer = OfferTemplate {
        protocol: FI_PROTO_SHM as u32,
        caps,
        directed_caps: [TX_CAPS | MORE_CAPS, RX_CAPS | MORE_RX_CAPS],
        domain_caps: DOMAIN_CAPS,
        op_flags: [TX_OP_FLAGS | if more { FI_INJECT } else { 0 }, RX_OP_FLAGS],
        msg_order: [FREE_ORDER | DEAR_ORDER; 2],
        costly_order: DEAR_ORDER,
        inject_size: MAX_INJECT,
        max_sizes: [config.tx_size, config.rx_size],
        sizes: [config.tx_size, config.rx_size],
        iov_limits: [IOV_LIMIT; 2],
        rma_iov_limit: IOV_LIMIT,
        max_order_sizes: [usize::MAX; 3],
        mem_tag_format: TAG_FORMAT,
        ep_cnt: EP_CNT,
        cq_cnt: CONTEXTS,
        mr_iov_limit: REGION_SEGMENTS,
        ..OfferTemplate::default()
    }
    .build()?;
    let wants_auto = |hints: InfoRef<'_>| {
        hints.domain().is_some_and(|domain| domain.data_progress == fi_progress::FI_PROGRESS_AUTO)
    };
    let automatic = more && hints.is_some_and(wants_auto);
    offer.most.edit_domain(|domain| {
        if !automatic {
            domain.data_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        }
        (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (CONTEXTS, CONTEXTS);
    });
    (current().offered)(&mut offer);
    if hmem::is_requested(hints) && !hmem::interfaces(provider()).is_empty() {
        add_devices(&mut offer);
    }
    Ok(offer)
}

/// Returns true if memory addresses are to be virtual and no order of memory accesses is requested.
/// Upstream libfabric copies directly in this case.
fn is_fast(hints: Option<InfoRef<'_>>) -> bool {
    let Some(hints) = hints else { return true };
    let virtual_addr = hints.domain().is_none_or(|domain| {
        let mode = domain.mr_mode;
        mode & FI_MR_VIRT_ADDR != 0 && mode & (FI_MR_BASIC | FI_MR_SCALABLE) == 0
    });
    virtual_addr && hints.tx().is_none_or(|tx| tx.msg_order & !FI_ORDER_SAS == 0)
}

/// Adapts the result to the expectations of programs for upstream libfabric, beyond the adaptations
/// common to all providers.
fn adapt(info: &mut InfoBuf, hints: Option<InfoRef<'_>>) {
    if hints.is_none_or(|hints| hints.caps() == 0) {
        info.set_caps(info.caps() | DOMAIN_CAPS);
    }
    if hints.and_then(InfoRef::domain).is_none_or(|domain| domain.caps == 0) {
        let caps = info.caps();
        info.edit_domain(|domain| domain.caps |= caps & DOMAIN_CAPS);
    }
    if current().wants_virt_addr && is_fast(hints) {
        info.tx_mut().msg_order = FI_ORDER_SAS;
        info.edit_domain(|domain| domain.mr_mode |= FI_MR_VIRT_ADDR);
        info.edit_ep(|ep| {
            ep.max_order_raw_size = 0;
            ep.max_order_war_size = 0;
            ep.max_order_waw_size = 0;
        });
    }
}

/// Returns the address named by a node and a service; the process's own without either.
fn resolve(node: Option<&CStr>, service: Option<&CStr>) -> Result<Vec<u8>> {
    let own = name::of_process()?;
    let parts: &[&[u8]] = match (node.map(CStr::to_bytes), service.map(CStr::to_bytes)) {
        (Some(node), _) if node.windows(3).any(|part| part == b"://") => &[node],
        (Some(node), Some(service)) => &[b"fi_ns://", node, b":", service],
        (None, Some(service)) => &[b"fi_ns://", service],
        (Some(node), None) => &[current().scheme.as_bytes(), node],
        (None, None) => &[own.to_bytes()],
    };
    Ok([&parts.concat()[..], b"\0"].concat())
}

/// The source and the destination in the answer.
fn ends(query: &InfoQuery<'_>) -> Result<[Option<Vec<u8>>; 2]> {
    let InfoQuery { node, service, flags, hints, .. } = *query;
    if flags & FI_SOURCE != 0 {
        if node.is_none() && service.is_none() {
            return Err(Error::INVAL);
        }
        let dest = hints.and_then(InfoRef::dest_addr).map(<[u8]>::to_vec);
        return Ok([Some(resolve(node, service)?), dest]);
    }
    let of_hints = |addr: Option<&[u8]>| addr.map(<[u8]>::to_vec);
    let src = match of_hints(hints.and_then(InfoRef::src_addr)) {
        Some(src) => src,
        None => resolve(None, None)?,
    };
    let dest = match of_hints(hints.and_then(InfoRef::dest_addr)) {
        Some(dest) if node.is_none() && service.is_none() => dest,
        _ => resolve(node, service)?,
    };
    Ok([Some(src), Some(dest)])
}

/// Returns the infos for a query. Fails with -FI_ENODATA if nothing matches; a log line names the
/// reason.
pub(crate) fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    let InfoQuery { version, hints, .. } = *query;
    let refuse = |why: &str| {
        ofi_provider::log!(provider(), INFO, FABRIC, "refused: {why}");
        Err(Error::NODATA)
    };
    config().engine.local.explain(provider(), None);
    config().engine.secret.explain(provider());
    log::write_paths(provider(), || {
        let (prov, settings) = (provider(), &config().engine);
        let (carrier, max_inject) = (Carrier::Memory, MAX_INJECT);
        StreamPaths { prov, settings, carrier, max_inject, inject_param: None }.rows()
    });
    let format = hints.map_or(FI_FORMAT_UNSPEC as u32, InfoRef::addr_format);
    if ![FI_FORMAT_UNSPEC, FI_ADDR_STR].iter().any(|taken| *taken as u32 == format) {
        let (wanted, have) = (tostr::addr_format(format), tostr::addr_format(FI_ADDR_STR as u32));
        return refuse(&format!("addr_format: wanted {wanted}, have {have}"));
    }
    let Ok([src, dest]) = ends(query) else {
        return refuse("FI_SOURCE needs a node or a service");
    };
    let mut offer = offer(config(), hints)?;
    let keys = echoed_keys(is_named(hints), version, hints);
    offer.most.set_auth_keys(keys[0], keys[1])?;
    let mismatches = hints.map_or(Vec::new(), |hints| check(version, &offer, hints));
    if !mismatches.is_empty() {
        for mismatch in &mismatches {
            ofi_provider::log!(provider(), INFO, FABRIC, "refused: {mismatch}");
        }
        return Err(Error::NODATA);
    }
    let mut info = alter(version, &offer, hints)?;
    adapt(&mut info, hints);
    info.set_domain_name(provider().name())?;
    info.set_fabric_name(provider().name())?;
    info.set_addr_format(FI_ADDR_STR as u32);
    info.set_src_addr(src.as_deref())?;
    info.set_dest_addr(dest.as_deref())?;
    if let Some(hints) = hints {
        info.set_handle(hints.handle());
    }
    let mut chain = InfoChain::new();
    chain.push(info);
    Ok(chain)
}
