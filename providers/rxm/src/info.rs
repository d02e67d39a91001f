//! Supported attributes for each core provider (fi_getinfo(3), fi_rxm(7)).
use crate::config::{MSG_TX_SIZE, config};
use crate::paths;
use crate::provider::{RXM, RXM_NAME};
use crate::wire::{HEADER_LEN, MAX_KEY_LEN};
use core::ffi::c_int;
use ofi_provider::abi::*;
use ofi_provider::addr::Addr;
use ofi_provider::buffered;
use ofi_provider::contexts::MAX_CONTEXTS;
use ofi_provider::core_provider;
use ofi_provider::error::{Error, Result};
use ofi_provider::hmem;
use ofi_provider::info::{
    ASKED_DOMAIN_CAPS, InfoBuf, InfoChain, InfoQuery, InfoRef, OfferTemplate, ProviderOffer, alter,
    check, version,
};
use ofi_provider::log;
use std::ffi::CString;

const MSG_CAPS: u64 =
    FI_MSG | FI_TAGGED | FI_SEND | FI_RECV | FI_MULTI_RECV | FI_SOURCE | FI_AV_USER_ID;
const RMA_CAPS: u64 = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Capabilities provided only on request.
const HINTED_CAPS: u64 = FI_ATOMIC
    | FI_DIRECTED_RECV
    | FI_RMA_EVENT
    | FI_RMA_PMEM
    | FI_FENCE
    | FI_SOURCE_ERR
    | FI_PEER
    | FI_TRIGGER
    | FI_COLLECTIVE
    | FI_MULTICAST
    | FI_HMEM
    | FI_NAMED_RX_CTX;
/// Capabilities without effect on applications not using them: reported to applications requesting
/// none in particular.
const IDLE_CAPS: u64 = FI_AV_USER_ID | FI_PEER;
/// Subset of [`HINTED_CAPS`], offered only if the core provider has them.
const CORE_CAPS: u64 = FI_RMA_EVENT | FI_RMA_PMEM | FI_HMEM;
/// Capabilities excluded by memory of devices: they need an access of the processor to it, or take
/// the receives of another provider.
const HOST_CAPS: u64 =
    FI_ATOMIC | FI_COLLECTIVE | FI_MULTICAST | FI_PEER | FI_RMA_PMEM | FI_NAMED_RX_CTX;
const COMM_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const TX_CAPS: u64 = FI_ATOMIC
    | FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_SEND
    | FI_READ
    | FI_WRITE
    | FI_RMA_PMEM
    | FI_FENCE
    | FI_TRIGGER
    | FI_COLLECTIVE
    | FI_MULTICAST
    | FI_HMEM
    | FI_NAMED_RX_CTX;
const RX_CAPS: u64 = FI_ATOMIC
    | FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_SOURCE_ERR
    | FI_RMA_EVENT
    | FI_RMA_PMEM
    | FI_TRIGGER
    | FI_COLLECTIVE
    | FI_MULTICAST
    | FI_HMEM;
const TX_OP_FLAGS: u64 =
    FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_COMPLETION;
const RX_OP_FLAGS: u64 = FI_MULTI_RECV | FI_COMPLETION;

/// Orders kept with several connections to a peer: messages among themselves, and atomics.
const SEVERAL_CONN_ORDERS: u64 = FI_ORDER_SAS
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

const MAX_TX_SIZE: usize = 16384;
const MAX_RX_SIZE: usize = 65536;
const IOV_LIMIT: usize = 4;
/// Every field of the tag is matched on its own.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Memory registration modes (FI_MR_*) permitted to a core provider: this provider registers the
/// memory for the core.
const MR_MODE: c_int = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// Requirements permitted to a core provider (fi_getinfo(3), MODE): this provider fulfils them.
const MODE: u64 = FI_LOCAL_MR | FI_RX_CQ_DATA;

/// Returns the hints for core providers, so this provider can satisfy `hints`.
pub(crate) fn core_hints(hints: Option<InfoRef<'_>>) -> Result<InfoBuf> {
    let mut core = match hints {
        Some(hints) => hints.to_owned()?,
        None => InfoBuf::new()?,
    };
    let wanted = core.caps() & (COMM_CAPS | CORE_CAPS);
    let remote = core.caps() & (FI_RMA | FI_ATOMIC) != 0 || core.caps() == 0;
    core.set_caps(FI_MSG | FI_RMA | wanted);
    core.set_mode(MODE);
    core.set_handle(std::ptr::null_mut());
    // Keys are checked here and not passed to the core.
    core.set_auth_keys(None, None)?;
    // The versions of this provider and of its protocol are not the core's.
    core.set_versions(0, 0);
    let tx = core.tx_mut();
    (tx.caps, tx.mode, tx.op_flags, tx.inject_size) = (0, 0, 0, 0);
    (tx.iov_limit, tx.rma_iov_limit) = (0, 0);
    tx.size = config().msg_tx_size;
    let rx = core.rx_mut();
    (rx.caps, rx.mode, rx.op_flags, rx.iov_limit, rx.size) = (0, 0, 0, 0, 0);
    (rx.total_buffered_recv, rx.comp_order) = (0, 0);
    core.edit_ep(|ep| {
        ep.r#type = fi_ep_type::FI_EP_MSG.into();
        (ep.protocol, ep.protocol_version, ep.mem_tag_format) = (0, 0, 0);
        (ep.max_msg_size, ep.msg_prefix_size) = (0, 0);
        (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (0, 0);
    });
    // Memory of devices is registered by this provider as well.
    let mr_mode = if wanted & FI_HMEM != 0 { MR_MODE | FI_MR_HMEM } else { MR_MODE };
    let own_mr_mode = mr_mode & (FI_MR_LOCAL | FI_MR_HMEM);
    core.edit_domain(|domain| {
        domain.threading = fi_threading::FI_THREAD_SAFE.into();
        domain.control_progress = fi_progress::FI_PROGRESS_UNSPEC.into();
        domain.data_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        domain.av_type = fi_av_type::FI_AV_UNSPEC.into();
        domain.mr_mode = match domain.mr_mode {
            // Peers never name the application's memory, only memory that this provider registers.
            _ if !remote => mr_mode,
            FI_MR_BASIC => mr_mode,
            FI_MR_SCALABLE => own_mr_mode,
            _ if hints.is_none() => mr_mode,
            mode => (mode & MR_MODE) | own_mr_mode,
        };
        (domain.mode, domain.caps) = (0, 0);
        (domain.cq_data_size, domain.mr_iov_limit, domain.mr_key_size) = (0, 0, 0);
        (domain.cq_cnt, domain.ep_cnt, domain.cntr_cnt, domain.mr_cnt) = (0, 0, 0, 0);
        (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (0, 0);
        (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (0, 0);
        (domain.max_ep_stx_ctx, domain.max_ep_srx_ctx) = (0, 0);
    });
    // For "core;ofi_rxm" the core's name is requested.
    if let Some(name) = hints.and_then(InfoRef::prov_name) {
        let name = name.to_string_lossy();
        let own = RXM_NAME.to_string_lossy();
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

/// The authorization keys of an endpoint and of a domain.
type AuthKeys<'a> = [Option<&'a [u8]>; 2];

/// Bits of an application's request for buffered receives.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BufferedBits {
    mode: u64,
    caps: u64,
}

/// Returns the attributes supported over a core provider. `shared`: for endpoints sharing a
/// transmit, or a receive, context; `contexts`: number of contexts of a scalable endpoint. An
/// application not requesting contexts sees none. `hmem`: buffers may be in memory of devices.
fn offer(
    core: InfoRef<'_>,
    shared: [bool; 2],
    contexts: usize,
    keys: AuthKeys<'_>,
    buffers: BufferedBits,
    hmem: bool,
) -> Result<ProviderOffer> {
    let missing = || Error::NODATA;
    let (core_tx, core_rx) = (core.tx().ok_or_else(missing)?, core.rx().ok_or_else(missing)?);
    let (core_ep, core_domain) =
        (core.ep().ok_or_else(missing)?, core.domain().ok_or_else(missing)?);
    let mut caps = MSG_CAPS | (HINTED_CAPS & !CORE_CAPS) | (core.caps() & (COMM_CAPS | CORE_CAPS));
    // Deferred work and collective operations take endpoints that both send and receive.
    caps &= match contexts {
        ..=1 => !FI_NAMED_RX_CTX,
        _ => !(FI_TRIGGER | FI_COLLECTIVE | FI_MULTICAST),
    };
    // An application that gets atomics gets the modifiers that go with them.
    if core.caps() & FI_RMA != 0 {
        caps |= RMA_CAPS;
    }
    let config = config();
    let (mut contexts, mut buffers) = (contexts, buffers);
    if hmem {
        caps &= !HOST_CAPS;
        (contexts, buffers) = (1, BufferedBits { mode: 0, caps: 0 });
    } else {
        caps &= !FI_HMEM;
    }
    if buffers != (BufferedBits { mode: 0, caps: 0 }) {
        // Deferred work, collectives and multicast take receives that are not buffered.
        caps &= !(FI_TRIGGER | FI_COLLECTIVE | FI_MULTICAST);
        caps |= buffers.caps;
    }
    let several = config.num_msg_eps > 1;
    let orders = if several { SEVERAL_CONN_ORDERS } else { u64::MAX };
    let pmem_flags = if caps & FI_RMA_PMEM != 0 { FI_COMMIT_COMPLETE } else { 0 };
    let mut offer = OfferTemplate {
        protocol: FI_PROTO_RXM as u32,
        caps,
        directed_caps: [TX_CAPS, RX_CAPS],
        domain_caps: COMM_CAPS | ASKED_DOMAIN_CAPS,
        mode: buffers.mode,
        op_flags: [TX_OP_FLAGS | pmem_flags, RX_OP_FLAGS],
        msg_order: [core_tx.msg_order & orders, core_rx.msg_order & orders],
        inject_size: config.eager_limit,
        max_sizes: [MAX_TX_SIZE.max(config.tx_size), MAX_RX_SIZE.max(config.rx_size)],
        sizes: [config.tx_size, config.rx_size],
        iov_limits: [IOV_LIMIT; 2],
        rma_iov_limit: IOV_LIMIT.min(core_tx.rma_iov_limit),
        tclass: core_tx.tclass,
        max_msg_size: core_ep.max_msg_size,
        max_order_sizes: match several {
            true => [0; 3],
            false => {
                [core_ep.max_order_raw_size, core_ep.max_order_war_size, core_ep.max_order_waw_size]
            }
        },
        mem_tag_format: TAG_FORMAT,
        shared_contexts: shared,
        max_contexts: contexts,
        ep_cnt: 32768,
        cq_cnt: 65536,
        mr_mode: core_domain.mr_mode & MR_MODE & !FI_MR_LOCAL,
        mr_key_size: core_domain.mr_key_size,
        mr_iov_limit: 1,
        // The CQ data of a write is carried by the core.
        cq_data_size: core_domain.cq_data_size.min(size_of::<u64>()),
        ..OfferTemplate::default()
    }
    .build()?;
    offer.most.set_auth_keys(keys[0], keys[1])?;
    offer.most.edit_domain(|domain| {
        [domain.max_ep_stx_ctx, domain.max_ep_srx_ctx] =
            shared.map(|shared| if shared { domain.ep_cnt } else { 0 });
        (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (1, 1);
    });
    Ok(offer)
}

/// Returns the attributes supported over a core provider, for applications without special
/// requests other than for memory of devices (`hmem`).
pub(crate) fn offer_over(core: InfoRef<'_>, hmem: bool) -> Result<ProviderOffer> {
    offer(core, [false; 2], 1, [None; 2], BufferedBits { mode: 0, caps: 0 }, hmem)
}

/// Returns the inject size for an application without its own: the core's size without a local
/// copy, or, if this is zero, the size copied by this provider.
fn default_inject(core: InfoRef<'_>) -> usize {
    let most = config().eager_limit;
    match core.tx().map_or(0, |tx| tx.inject_size.saturating_sub(HEADER_LEN)) {
        0 => most,
        size => size.min(most),
    }
}

/// The info for an application with these hints, over one core provider.
fn layer(api: u32, core: InfoRef<'_>, hints: Option<InfoRef<'_>>) -> Result<Option<InfoBuf>> {
    let asked = hints.and_then(InfoRef::ep);
    let counts = asked.map_or([0; 2], |ep| [ep.tx_ctx_cnt, ep.rx_ctx_cnt]);
    let shared = counts.map(|count| count == FI_SHARED_CONTEXT);
    let several = counts.iter().any(|count| *count > 1 && *count != FI_SHARED_CONTEXT);
    let named = hints.is_some_and(|hints| hints.caps() & FI_NAMED_RX_CTX != 0);
    let contexts = if several || named { MAX_CONTEXTS } else { 1 };
    let keys = hints.filter(|_| api >= version(1, 5)).map_or([None; 2], |hints| {
        [hints.ep_auth_key(), hints.domain_auth_key()]
            .map(|key| key.filter(|key| key.len() <= MAX_KEY_LEN))
    });
    // Messages that are reported as they come belong to one endpoint.
    let (mode, caps) = if shared[1] { (0, 0) } else { buffered::bits(api) };
    // Hints with all mode bits set ask for none of them.
    let modes = hints.map(InfoRef::mode).filter(|mode| *mode != u64::MAX);
    let buffers = BufferedBits {
        mode: modes.unwrap_or(0) & mode,
        caps: hints.map_or(0, InfoRef::caps) & caps,
    };
    let hmem = hmem::is_requested(hints) && core.caps() & FI_HMEM != 0;
    let offer = offer(core, shared, contexts, keys, buffers, hmem)?;
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
    let asked = hints.map_or(0, InfoRef::caps);
    let unasked = HINTED_CAPS & !asked;
    let idle = if asked == 0 { IDLE_CAPS } else { 0 };
    info.set_caps((info.caps() & !unasked) | idle);
    if hints.and_then(InfoRef::domain).is_none_or(|domain| domain.caps == 0) {
        info.edit_domain(|domain| domain.caps |= idle);
    }
    info.tx_mut().caps &= !unasked;
    info.rx_mut().caps &= !unasked;
    if hints.and_then(InfoRef::tx).is_none_or(|tx| tx.inject_size == 0) {
        info.tx_mut().inject_size = default_inject(core);
    }
    let asked = hints.and_then(InfoRef::domain).map(|domain| domain.data_progress);
    if asked.is_none_or(|progress| progress == fi_progress::FI_PROGRESS_UNSPEC) {
        let progress = match config().auto_progress {
            true => fi_progress::FI_PROGRESS_AUTO,
            false => fi_progress::FI_PROGRESS_MANUAL,
        };
        info.edit_domain(|domain| {
            domain.data_progress = progress.into();
            domain.control_progress = progress.into();
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

/// Returns `info`, the result for an application not requesting capabilities, with collective
/// operations added; none if they are not possible. An application choosing from a list finds these
/// after the others.
fn with_collectives(
    api: u32,
    core: InfoRef<'_>,
    hints: Option<InfoRef<'_>>,
    info: &InfoBuf,
) -> Result<Option<InfoBuf>> {
    let (ep, most) = (info.ep(), info.domain());
    if ep.rx_ctx_cnt == FI_SHARED_CONTEXT || most.max_ep_rx_ctx > 1 || info.mode() != 0 {
        return Ok(None);
    }
    let mut asked = match hints {
        Some(hints) => hints.to_owned()?,
        None => InfoBuf::new()?,
    };
    asked.set_caps(info.caps() | FI_COLLECTIVE);
    if hints.is_none() {
        asked.edit_domain(|domain| domain.mr_mode = most.mr_mode);
    }
    layer(api, core, Some(asked.as_ref()))
}

/// The answer to fi_getinfo(3).
pub(crate) fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    let InfoQuery { version: api, flags, hints, .. } = *query;
    let wanted = hints.map_or(Default::default(), InfoRef::ep_type);
    if wanted != fi_ep_type::FI_EP_UNSPEC && wanted != fi_ep_type::FI_EP_RDM {
        report("refused: ep_attr->type: only FI_EP_RDM");
        return Err(Error::NODATA);
    }
    if hmem::is_requested(hints) && hmem::interfaces(&RXM).is_empty() {
        report("refused: FI_HMEM: no device");
        return Err(Error::NODATA);
    }
    let flags = match config().rescan {
        Some(true) => flags | FI_RESCAN,
        Some(false) => flags & !FI_RESCAN,
        None => flags,
    };
    let asked = InfoQuery { version: core_version(api), flags, ..*query };
    let mut cores = find_cores(&asked, core_hints(hints)?)?;
    if let Some(port) = open_source(&asked, &cores) {
        cores = at_each_interface(&asked, hints, port)?;
    }
    log::write_paths(&RXM, || paths::rows(config(), paths::CoreKinds::of(&cores)));
    let lists = hints.is_none_or(|hints| hints.caps() == 0);
    let (mut chain, mut collective) = (InfoChain::new(), InfoChain::new());
    for core in cores.iter() {
        if [FI_SOCKADDR_IB, FI_ADDR_STR].iter().any(|not| *not as u32 == core.addr_format()) {
            report("a core left out: only those with IP addresses");
            continue;
        }
        if let Some(info) = layer(api, core, hints)? {
            if lists {
                if let Some(more) = with_collectives(api, core, hints, &info)? {
                    collective.push(more);
                }
            }
            chain.push(info);
        }
    }
    chain.append(collective);
    if chain.is_empty() { Err(Error::NODATA) } else { Ok(chain) }
}

/// Returns the port of a program naming a source only by its port, if the cores respond with the
/// address of all interfaces. No peer can connect to such an address.
fn open_source(query: &InfoQuery<'_>, cores: &InfoChain) -> Option<u16> {
    if query.flags & FI_SOURCE == 0 || query.node.is_some() {
        return None;
    }
    let source = Addr::from_bytes(cores.iter().next()?.src_addr()?).ok()?;
    source.is_any().then(|| source.port())
}

/// The cores at each address of this host, with this port.
fn at_each_interface(
    query: &InfoQuery<'_>,
    hints: Option<InfoRef<'_>>,
    port: u16,
) -> Result<InfoChain> {
    let flags = query.flags & !FI_SOURCE;
    let unbound = InfoQuery { service: None, flags, ..*query };
    let mut cores = find_cores(&unbound, core_hints(hints)?)?;
    for core in cores.iter_mut() {
        let Some(source) = core.as_ref().src_addr() else { continue };
        let source = Addr::from_bytes(source)?.at_port(port);
        core.set_src_addr(Some(&source.to_bytes()))?;
    }
    Ok(cores)
}

/// Finds the core providers suitable for `hints` and the addresses of `query`, with the largest
/// available transmit size, up to the user's value (FI_OFI_RXM_MSG_TX_SIZE).
pub(crate) fn find_cores(query: &InfoQuery<'_>, mut hints: InfoBuf) -> Result<InfoChain> {
    loop {
        let found = core_provider::getinfo(&InfoQuery { hints: Some(hints.as_ref()), ..*query });
        let size = &mut hints.tx_mut().size;
        if *size <= MSG_TX_SIZE || !matches!(found, Err(Error::NODATA)) {
            return found;
        }
        *size = (*size / 2).max(MSG_TX_SIZE);
    }
}

/// Logs the reason for an info missing from the result.
fn report(line: &str) {
    ofi_provider::log!(&RXM, INFO, FABRIC, "{line}");
}
