//! Supported attributes for each link (fi_getinfo(3), fi_lnx(7)).
use crate::config::config;
use crate::links::{CoreSpec, LinkSpec};
use crate::{LNX, LNX_NAME};
use core::ffi::{CStr, c_int};
use ofi_provider::abi::*;
use ofi_provider::core_provider;
use ofi_provider::error::{Error, Result};
use ofi_provider::hmem;
use ofi_provider::info::{
    InfoBuf, InfoChain, InfoQuery, InfoRef, OfferTemplate, ProviderOffer, TransferPath, alter,
    check, version,
};
use ofi_provider::log;
use ofi_provider::param;
use std::ffi::CString;

/// Local provider, with endpoints reaching only peers of this host.
const LOCAL: &[u8] = b"shm";

const TX_CAPS: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE | FI_FENCE;
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
    | FI_RMA_EVENT;
/// Capabilities excluded by memory of devices: they need an access of the processor to it.
const HOST_CAPS: u64 = FI_ATOMIC;
const COMM_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// Capabilities required of the cores. This provider adds the rest: matching and reporting.
const CORE_CAPS: u64 = (TX_CAPS | RX_CAPS) & !(FI_MULTI_RECV | FI_DIRECTED_RECV);
const REMOTE_CAPS: u64 =
    FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RMA_EVENT;
/// Capabilities requested from a core although the application did not request them.
const SPARE_CAPS: u64 = FI_FENCE | FI_RMA_EVENT;
const TX_OP_FLAGS: u64 =
    FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_COMPLETION;
const RX_OP_FLAGS: u64 = FI_MULTI_RECV | FI_COMPLETION;
const IOV_LIMIT: usize = 4;
/// Memory registration modes permitted to cores. Keys chosen by the provider are not permitted,
/// since all cores share the same keys.
const MR_MODE: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
/// Requirements permitted to cores on posted transfers, passed on to the application.
const MODE: u64 = FI_CONTEXT | FI_CONTEXT2;
/// Every field of the tag is matched on its own.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Maximum number of core endpoints of an endpoint.
const MOST_RAILS: usize = 16;

/// A core of a link: one domain of a provider.
#[derive(Debug)]
pub(crate) struct LnxCore {
    /// Info for opening the core.
    pub(crate) info: InfoBuf,
    /// It reaches only peers of this host.
    pub(crate) is_local: bool,
}

/// Logs the reason for something missing from the result.
fn report(line: &str) {
    ofi_provider::log!(&LNX, INFO, FABRIC, "{line}");
}

/// Returns the threading model promised to cores. A thread of this provider adds to the
/// application's, unless the application promises serialized calls and manual progress.
fn threading(domain: Option<&fi_domain_attr>) -> fi_threading {
    let alone = domain.is_some_and(|domain| {
        domain.threading == fi_threading::FI_THREAD_DOMAIN
            && domain.data_progress == fi_progress::FI_PROGRESS_MANUAL
    });
    if alone { fi_threading::FI_THREAD_DOMAIN } else { fi_threading::FI_THREAD_SAFE }
}

/// Returns the hints for the cores, so the link can satisfy `hints`, with `extra` in addition. They
/// name no domain and no provider.
fn core_hints(hints: Option<InfoRef<'_>>, extra: u64) -> Result<InfoBuf> {
    let mut core = InfoBuf::new()?;
    let asked = hints.map_or(0, InfoRef::caps);
    let mut caps = match asked & (CORE_CAPS | COMM_CAPS) {
        0 => (CORE_CAPS & !SPARE_CAPS) | extra,
        asked => asked | extra,
    };
    if caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC) == 0 {
        caps |= FI_MSG;
    }
    core.set_caps(caps | FI_PEER | FI_AV_USER_ID | (asked & FI_HMEM));
    core.set_mode(hints.map_or(0, InfoRef::mode) & MODE);
    if let Some(asked) = hints.and_then(InfoRef::tx) {
        let tx = core.tx_mut();
        tx.msg_order = asked.msg_order;
        (tx.inject_size, tx.size) = (asked.inject_size, asked.size);
        (tx.iov_limit, tx.rma_iov_limit, tx.tclass) =
            (asked.iov_limit, asked.rma_iov_limit, asked.tclass);
    }
    if let Some(asked) = hints.and_then(InfoRef::rx) {
        core.rx_mut().msg_order = asked.msg_order;
    }
    core.edit_ep(|ep| ep.r#type = fi_ep_type::FI_EP_RDM.into());
    if let Some(asked) = hints.and_then(InfoRef::ep) {
        core.edit_ep(|ep| {
            ep.max_msg_size = asked.max_msg_size;
            ep.max_order_raw_size = asked.max_order_raw_size;
            ep.max_order_war_size = asked.max_order_war_size;
            ep.max_order_waw_size = asked.max_order_waw_size;
        });
    }
    let domain = hints.and_then(InfoRef::domain);
    core.edit_domain(|to| {
        to.threading = threading(domain).into();
        to.control_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        to.data_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        to.mr_mode = match domain.map(|domain| domain.mr_mode) {
            None | Some(FI_MR_BASIC) => MR_MODE,
            Some(FI_MR_SCALABLE) => 0,
            Some(mode) => mode & MR_MODE,
        };
        if let Some(asked) = domain {
            to.resource_mgmt = asked.resource_mgmt;
            to.mr_key_size = asked.mr_key_size;
            to.cq_data_size = asked.cq_data_size;
        }
    });
    Ok(core)
}

/// Returns true if an info's provider name equals that of a link: the same names in any order,
/// separated by `;`.
fn is_provider(name: &[u8], wanted: &str) -> bool {
    let names = |text: &[u8]| {
        let mut names: Vec<_> =
            text.split(|byte| *byte == b';').map(<[u8]>::to_ascii_lowercase).collect();
        names.sort();
        names
    };
    names(name) == names(wanted.as_bytes())
}

/// The infos of a provider of a link, one for each domain.
fn infos_of(api: u32, spec: &CoreSpec, hints: &InfoBuf) -> Result<Vec<LnxCore>> {
    let is_local = spec.provider.as_bytes() == LOCAL;
    let name = |text: &str| CString::new(text).map_err(|_| Error::INVAL);
    let mut hints = hints.as_ref().to_owned()?;
    hints.set_prov_name(&name(&spec.provider)?)?;
    if is_local {
        hints.set_caps(hints.caps() & !FI_REMOTE_COMM);
    } else {
        // Data to other hosts may be batched. The core's flush timer sends it if the application
        // makes no call: it calls no function of this provider.
        hints.edit_domain(|domain| domain.threading = fi_threading::FI_THREAD_SAFE.into());
    }
    let mut found: Vec<LnxCore> = Vec::new();
    let mut look = |hints: &InfoBuf, domain: Option<&CStr>| -> Result {
        // Older versions cannot say what a provider is asked for as a peer.
        let version = api.max(version(1, 9));
        let hints = Some(hints.as_ref());
        let query = InfoQuery { version, node: None, service: None, flags: 0, hints };
        for mut info in core_provider::getinfo_any(&query)? {
            let names = |core: &LnxCore| {
                let (core, info) = (core.info.as_ref(), info.as_ref());
                core.domain_name() == info.domain_name()
            };
            // The name of a core alone is also answered by utility providers over it.
            let name = info.as_ref().prov_name().map_or(&[][..], CStr::to_bytes);
            if !is_provider(name, &spec.provider) {
                continue;
            }
            // A provider may answer with more than the domain that was asked for.
            if domain.is_some() && info.as_ref().domain_name() != domain {
                continue;
            }
            let key = info.domain().mr_mode & FI_MR_PROV_KEY != 0;
            if found.iter().any(names) || (key && info.caps() & REMOTE_CAPS != 0) {
                continue;
            }
            // The library adds these to its answer, and looks for them again.
            info.tx_mut().op_flags = FI_COMPLETION;
            info.rx_mut().op_flags = 0;
            found.push(LnxCore { info, is_local });
        }
        Ok(())
    };
    if spec.domains.is_empty() {
        look(&hints, None)?;
    }
    for domain in &spec.domains {
        let domain = name(domain)?;
        hints.set_domain_name(&domain)?;
        look(&hints, Some(&domain))?;
    }
    if is_local {
        found.truncate(1);
    }
    if found.is_empty() { Err(Error::NODATA) } else { Ok(found) }
}

/// Returns the cores of a link suitable for `hints`; none if one of its providers is not.
pub(crate) fn cores_of(
    api: u32,
    link: &LinkSpec,
    hints: Option<InfoRef<'_>>,
) -> Result<Option<Vec<LnxCore>>> {
    // Applications without requests get all available capabilities.
    let extras: &[u64] = match hints.map_or(0, InfoRef::caps) {
        0 => &[SPARE_CAPS, 0],
        _ => &[0],
    };
    let mut cores = Vec::new();
    for extra in extras {
        cores = find_all(api, link, &core_hints(hints, *extra)?)?;
        if !cores.is_empty() {
            break;
        }
    }
    if cores.is_empty() {
        return Ok(None);
    }
    if cores.len() > MOST_RAILS {
        report(&format!(
            "a link has {} domains, of which the first {MOST_RAILS} are used",
            cores.len()
        ));
        cores.truncate(MOST_RAILS);
    }
    // Cores limited to peers of this host are tried first.
    cores.sort_by_key(|core| !core.is_local);
    Ok(Some(cores))
}

/// The cores of a link; none if one of its providers does not do.
fn find_all(api: u32, link: &LinkSpec, hints: &InfoBuf) -> Result<Vec<LnxCore>> {
    let mut cores = Vec::new();
    for spec in link {
        match infos_of(api, spec, hints) {
            Ok(infos) => cores.extend(infos),
            Err(error) => {
                report(&format!(
                    "a link left out: {} does not do for it ({error}); fi_info --explain says why",
                    spec.provider
                ));
                return Ok(Vec::new());
            }
        }
    }
    Ok(cores)
}

/// The name of a link's domain: those of its cores.
pub(crate) fn domain_name(cores: &[LnxCore]) -> Result<CString> {
    let names: Vec<_> = cores
        .iter()
        .filter_map(|core| core.info.as_ref().domain_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    CString::new(names.join("+")).map_err(|_| Error::INVAL)
}

/// Returns the cores whose domains form this domain name of a link; none if it belongs to another
/// link.
fn named(cores: Vec<LnxCore>, name: &[u8]) -> Option<Vec<LnxCore>> {
    let mut rest = name;
    let mut chosen = Vec::new();
    for core in cores {
        let own = core.info.as_ref().domain_name().map_or(&[][..], |name| name.to_bytes());
        let Some(behind) = rest.strip_prefix(own).filter(|_| !own.is_empty()) else { continue };
        match behind.strip_prefix(b"+") {
            Some(more) => rest = more,
            None if behind.is_empty() => {
                chosen.push(core);
                return Some(chosen);
            }
            // Another domain whose name begins so.
            None => continue,
        }
        chosen.push(core);
    }
    None
}

/// Returns the cores of a link forming the domain of this name; none if it belongs to another link.
pub(crate) fn cores_by_name(
    api: u32,
    link: &LinkSpec,
    hints: Option<InfoRef<'_>>,
    name: &[u8],
) -> Result<Option<Vec<LnxCore>>> {
    // An info has more than was asked for: which peers its cores reach together, none of them has to.
    let mut hints = hints.map(InfoRef::to_owned).transpose()?;
    if let Some(hints) = &mut hints {
        hints.set_caps(hints.caps() & !COMM_CAPS);
    }
    let cores = cores_of(api, link, hints.as_ref().map(InfoBuf::as_ref))?;
    let found = cores.and_then(|cores| named(cores, name));
    if found.is_none() {
        report("a link left out: domain_attr->name is another");
    }
    Ok(found)
}

/// Returns the memory registration modes required by all cores of a link.
pub(crate) fn mr_mode(cores: &[LnxCore]) -> c_int {
    cores.iter().fold(0, |all, core| all | core.info.domain().mr_mode) & MR_MODE
}

/// Returns the attributes supported over these cores. `hmem`: buffers may be in memory of devices.
pub(crate) fn offer(cores: &[LnxCore], hmem: bool) -> Result<ProviderOffer> {
    let infos = || cores.iter().map(|core| &core.info);
    let least = |of: fn(&InfoBuf) -> usize| infos().map(of).min().unwrap_or(0);
    let all = |of: fn(&InfoBuf) -> u64| infos().fold(u64::MAX, |all, info| all & of(info));
    let any = |of: fn(&InfoBuf) -> u64| infos().fold(0, |any, info| any | of(info));
    let of_cores = all(InfoBuf::caps) & CORE_CAPS;
    let comm = any(|info| info.caps() & COMM_CAPS) | FI_LOCAL_COMM;
    let mut caps = of_cores | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_AV_USER_ID | comm;
    if hmem {
        caps = caps & !HOST_CAPS | all(InfoBuf::caps) & FI_HMEM;
    }

    let tx_size = least(|info| info.tx().size);
    let rx_size = least(|info| info.rx().size).max(1 << 16);
    let mut offer = OfferTemplate {
        protocol: FI_PROTO_LNX as u32,
        caps,
        directed_caps: [TX_CAPS | FI_HMEM, RX_CAPS | FI_HMEM],
        domain_caps: comm | FI_AV_USER_ID,
        mode: any(InfoBuf::mode),
        op_flags: [TX_OP_FLAGS, RX_OP_FLAGS],
        msg_order: [all(|info| info.tx().msg_order), all(|info| info.rx().msg_order)],
        inject_size: least(|info| info.tx().inject_size),
        max_sizes: [tx_size, rx_size],
        sizes: [tx_size, rx_size.min(1024)],
        iov_limits: [least(|info| info.tx().iov_limit).min(IOV_LIMIT), IOV_LIMIT],
        rma_iov_limit: least(|info| info.tx().rma_iov_limit).min(IOV_LIMIT),
        max_msg_size: least(|info| info.ep().max_msg_size),
        max_order_sizes: [
            least(|info| info.ep().max_order_raw_size),
            least(|info| info.ep().max_order_war_size),
            least(|info| info.ep().max_order_waw_size),
        ],
        mem_tag_format: TAG_FORMAT,
        ep_cnt: least(|info| info.domain().ep_cnt),
        cq_cnt: 65536,
        mr_mode: mr_mode(cores),
        mr_key_size: least(|info| info.domain().mr_key_size),
        mr_iov_limit: 1,
        cq_data_size: least(|info| info.domain().cq_data_size).min(size_of::<u64>()),
        ..OfferTemplate::default()
    }
    .build()?;
    offer.most.tx_mut().mode = any(|info| info.tx().mode);
    Ok(offer)
}

/// The info of a link for an application with these hints.
fn info_of(api: u32, cores: &[LnxCore], hints: Option<InfoRef<'_>>) -> Result<Option<InfoBuf>> {
    let offer = offer(cores, hmem::is_requested(hints))?;
    let mismatches = hints.map_or(Vec::new(), |hints| check(api, &offer, hints));
    for mismatch in &mismatches {
        report(&format!("FI_EP_RDM refused: {mismatch}"));
    }
    if !mismatches.is_empty() {
        return Ok(None);
    }
    let mut info = alter(api, &offer, hints)?;
    let asked = hints.and_then(InfoRef::domain).map(|domain| domain.data_progress);
    if asked.is_none_or(|progress| progress == fi_progress::FI_PROGRESS_UNSPEC) {
        info.edit_domain(|domain| {
            domain.data_progress = fi_progress::FI_PROGRESS_MANUAL.into();
            domain.control_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        });
    }
    // The addresses are of no format that others know (fi_getinfo(3), FI_FORMAT_UNSPEC).
    info.set_addr_format(FI_FORMAT_UNSPEC as u32);
    info.set_fabric_name(LNX_NAME)?;
    info.set_domain_name(&domain_name(cores)?)?;
    if let Some(hints) = hints {
        info.set_handle(hints.handle());
    }
    Ok(Some(info))
}

/// The answer to fi_getinfo(3).
pub(crate) fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    let InfoQuery { version: api, hints, .. } = *query;
    let links = match &config().links {
        Ok(links) => links,
        Err(why) => {
            report(&format!("refused: {why}"));
            return Err(Error::NODATA);
        }
    };
    log::write_paths(&LNX, || paths(links));
    let wanted = hints.map_or(Default::default(), InfoRef::ep_type);
    if wanted != fi_ep_type::FI_EP_UNSPEC && wanted != fi_ep_type::FI_EP_RDM {
        report("refused: ep_attr->type: only FI_EP_RDM");
        return Err(Error::NODATA);
    }
    if hints.map_or(FI_FORMAT_UNSPEC as u32, InfoRef::addr_format) != FI_FORMAT_UNSPEC as u32 {
        report("refused: addr_format: only FI_FORMAT_UNSPEC, addresses are no one else's");
        return Err(Error::NODATA);
    }
    if hmem::is_requested(hints) && hmem::interfaces(&LNX).is_empty() {
        report("refused: FI_HMEM: no device");
        return Err(Error::NODATA);
    }
    let given = |name: Option<&CStr>| name.map(|name| name.to_bytes().to_vec());
    let fabric = given(hints.and_then(InfoRef::fabric_name));
    if fabric.is_some_and(|name| name != LNX_NAME.to_bytes()) {
        report("refused: fabric_attr->name: only lnx");
        return Err(Error::NODATA);
    }
    let domain = given(hints.and_then(InfoRef::domain_name));
    let mut chain = InfoChain::new();
    for link in links {
        let cores = match &domain {
            None => cores_of(api, link, hints)?,
            Some(name) => cores_by_name(api, link, hints, name)?,
        };
        if let Some(cores) = cores {
            if let Some(info) = info_of(api, &cores, hints)? {
                chain.push(info);
            }
        }
    }
    if chain.is_empty() { Err(Error::NODATA) } else { Ok(chain) }
}

/// Returns the paths of transfers, for `fi_info --protocols`: those of the providers of each link.
fn paths(links: &[LinkSpec]) -> Vec<TransferPath> {
    let variable = |name| param::variable(&LNX, name);
    let names = |link: &LinkSpec| {
        let names: Vec<_> = link.iter().map(|core| core.provider.as_str()).collect();
        names.join("+")
    };
    let row = |link: &LinkSpec| {
        let names = names(link);
        let text =
            format!("a provider of {names} that reaches the peer, with the paths of that provider");
        TransferPath::new("all", "link", text)
            .limit(variable(c"prov_links"), names)
            .limit(variable(c"disable_shm"), u8::from(config().no_local))
    };
    links.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(names: &[&str]) -> Vec<LnxCore> {
        let core = |name: &&str| {
            let mut info = InfoBuf::new().unwrap();
            info.set_domain_name(&CString::new(*name).unwrap()).unwrap();
            LnxCore { info, is_local: *name == "shm" }
        };
        names.iter().map(core).collect()
    }

    #[test]
    fn core_belongs_to_the_named_provider_not_to_a_layer_over_it() {
        assert!(is_provider(b"tcp", "tcp") && is_provider(b"TCP;ofi_rxm", "ofi_rxm;tcp"));
        assert!(!is_provider(b"tcp;ofi_rxm", "tcp") && !is_provider(b"tcp", "tcp;ofi_rxm"));
        assert!(!is_provider(b"", "tcp"));
    }

    #[test]
    fn domain_name_selects_the_cores_it_consists_of() {
        let all = || cores(&["shm", "eth0", "eth01", "a+b", "lo"]);
        let chosen = |name: &str| {
            let cores = named(all(), name.as_bytes())?;
            Some(domain_name(&cores).unwrap().into_string().unwrap())
        };
        for name in ["shm", "shm+eth0+eth01+a+b+lo", "eth01", "shm+lo", "a+b", "eth0+lo"] {
            assert_eq!(chosen(name).as_deref(), Some(name));
        }
        for name in ["", "shm+", "lo+shm", "eth", "shm+eth0+wlan0", "+shm", "shm++lo"] {
            assert_eq!(chosen(name), None, "{name}");
        }
    }
}
