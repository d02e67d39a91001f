//! Supported attributes of the provider (fi_getinfo(3), fi_verbs(7)).
use crate::config::config;
use crate::device::{self, DeviceAttributes, KnownDevices, LocalDevice};
use crate::provider::VERBS;
use crate::raw;
use core::ffi::CStr;
use ofi_provider::abi::*;
use ofi_provider::addr::{Addr, UdAddr};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{
    InfoBuf, InfoChain, InfoQuery, InfoRef, ProviderOffer, TransferPath, alter, check,
};
use ofi_provider::log;
use ofi_provider::param;
use std::ffi::CString;

/// Addresses named by an application.
#[derive(Debug)]
struct VerbsEnds {
    src: Option<Addr>,
    dest: Option<Addr>,
}

impl VerbsEnds {
    fn find(query: &InfoQuery<'_>) -> Result<Self> {
        let InfoQuery { node, service, flags, hints, .. } = *query;
        let format = hints.map_or(FI_FORMAT_UNSPEC as u32, InfoRef::addr_format);
        let read = |bytes: Option<&[u8]>| match bytes {
            Some(bytes) => Addr::from_hints(bytes, format).map(Some).map_err(|_| Error::NODATA),
            None => Ok(None),
        };
        let mut src = read(hints.and_then(InfoRef::src_addr))?;
        let mut dest = read(hints.and_then(InfoRef::dest_addr))?;
        // A port without a host says nothing of the route.
        if node.is_some() || (service.is_some() && flags & FI_SOURCE != 0) {
            let found = Addr::resolve(node, service, flags, format).map_err(|why| {
                report(&format!("refused: {why}"));
                why.error()
            })?;
            if flags & FI_SOURCE != 0 {
                src = Some(found);
            } else {
                dest = Some(found);
            }
        } else if flags & FI_SOURCE != 0 {
            report("refused: FI_SOURCE needs a node or a service");
            return Err(Error::INVAL);
        }
        for end in [&src, &dest].into_iter().flatten() {
            if !end.is_of(format) {
                report("refused: addr_format: it is not that of an address");
                return Err(Error::NODATA);
            }
        }
        Ok(Self { src, dest })
    }

    /// The local addresses to make infos of.
    fn locals(&self, format: u32, known: &KnownDevices) -> Vec<LocalDevice> {
        // An address that says only the port stands for all of its kind.
        let any = self.src.as_ref().filter(|src| src.is_any());
        let takes = |local: &LocalDevice| {
            local.addr.is_of(format) && any.is_none_or(|any| any.is_ib() == local.addr.is_ib())
        };
        let named = self.src.clone().filter(|src| !src.is_any());
        if let (Some(src), Some(dest)) = (&self.src, &self.dest) {
            if src.is_ib() != dest.is_ib() {
                return Vec::new();
            }
        }
        if let Some(addr) = named.or_else(|| known.source_for(self.dest.as_ref()?)) {
            let device = known.device_of(&addr);
            return device.map(|device| LocalDevice { addr, device }).into_iter().collect();
        }
        if self.dest.is_some() {
            return Vec::new();
        }
        let mut locals: Vec<LocalDevice> =
            known.locals().iter().filter(|local| takes(local)).cloned().collect();
        for local in &mut locals {
            local.addr.set_port(any.map_or(0, |any| any.port()));
        }
        locals
    }
}

/// Suffix of a datagram device's domain name.
pub(crate) const DATAGRAMS: &CStr = c"-dgram";

/// The info of a device for an application with these hints; with datagrams or
/// connections.
fn info_of(
    version: u32,
    attributes: &mut DeviceAttributes,
    hints: Option<InfoRef<'_>>,
    datagrams: bool,
) -> Result<Option<InfoBuf>> {
    let wanted = hints.and_then(InfoRef::ep).map_or(0, |ep| ep.rx_ctx_cnt);
    // An endpoint takes its receives from a shared context when one is bound to it.
    let count = if wanted == FI_SHARED_CONTEXT { FI_SHARED_CONTEXT } else { 1 };
    // Features incompatible with accelerator memory are missing only if it is requested.
    let hmem = ofi_provider::hmem::is_requested(hints);
    let connected = attributes.hmem.as_mut().filter(|_| hmem).unwrap_or(&mut attributes.offer);
    connected.most.edit_ep(|ep| ep.rx_ctx_cnt = count);
    let mut name = attributes.device.name().to_owned();
    if datagrams {
        name = CString::new([name.as_bytes(), DATAGRAMS.to_bytes()].concat()).unwrap_or(name);
    }
    let offer = match &attributes.datagrams {
        _ if !datagrams => connected,
        Some(offer) => offer,
        None => return Ok(None),
    };
    if let Some(hints) = hints {
        let mismatches = check(version, offer, hints);
        for mismatch in &mismatches {
            report(&format!("{} refused: {mismatch}", name.to_string_lossy()));
        }
        if hmem && !datagrams && offer.most.caps() & FI_HMEM == 0 {
            report("no FI_HMEM: the device registers no dma-bufs, or FI_HMEM_DISABLE_P2P is set");
        }
        if !mismatches.is_empty() {
            return Ok(None);
        }
    }
    let mut info = alter(version, offer, hints)?;
    let mode = offer.most.mode();
    info.rx_mut().mode = FI_RX_CQ_DATA | mode;
    if hints.is_none_or(|hints| hints.mode() & FI_RX_CQ_DATA != 0) {
        // Data that comes with a write takes a receive.
        info.set_mode(FI_RX_CQ_DATA | mode);
    } else {
        info.set_mode(mode);
        info.edit_domain(|domain| domain.cq_data_size = 0);
    }
    // As many as there can be, each behind an endpoint of its own.
    info.edit_domain(|domain| {
        domain.max_ep_tx_ctx = domain.tx_ctx_cnt;
        domain.max_ep_rx_ctx = domain.rx_ctx_cnt;
    });
    let wanted = hints.and_then(InfoRef::domain).map_or(!0, |domain| domain.mr_mode);
    if datagrams && wanted & FI_MR_PROV_KEY != 0 {
        // Regions are the same although no peer uses them.
        let offered = offer.most.domain().mr_mode;
        info.edit_domain(|domain| domain.mr_mode |= offered & wanted);
    }
    info.set_domain_name(&name)?;
    info.set_fabric_name(&attributes.fabric)?;
    info.set_nic(&attributes.nic)?;
    Ok(Some(info))
}

/// Answers a query with the infos of the devices.
pub(crate) fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    let InfoQuery { version, node, flags, hints, .. } = *query;
    let wanted = hints.map_or(Default::default(), InfoRef::ep_type);
    let is_wanted = |kind| wanted == fi_ep_type::FI_EP_UNSPEC || wanted == kind;
    let [messages, datagrams] = [fi_ep_type::FI_EP_MSG, fi_ep_type::FI_EP_DGRAM].map(is_wanted);
    if !messages && !datagrams {
        report("refused: ep_attr->type: only FI_EP_MSG and FI_EP_DGRAM");
        return Err(Error::NODATA);
    }
    raw::load()?;
    let mut known = device::known(flags & FI_RESCAN != 0, &report);
    let known = known.as_mut().ok_or(Error::NODATA)?;
    if known.attributes.is_empty() {
        match raw::missing() {
            Some(missing) => report(&format!("refused: {missing}")),
            None => report("refused: no RDMA device"),
        }
        return Err(Error::NODATA);
    }
    let format = hints.map_or(FI_FORMAT_UNSPEC as u32, InfoRef::addr_format);
    // Queue pairs are known by other addresses than connections.
    let of_pairs = format == FI_ADDR_IB_UD as u32;
    let (ends, locals) = match messages && !of_pairs {
        true => {
            let ends = VerbsEnds::find(query);
            match ends {
                Ok(ends) => {
                    let locals = ends.locals(format, known);
                    (ends, locals)
                }
                Err(error) if !datagrams => return Err(error),
                Err(_) => (VerbsEnds { src: None, dest: None }, Vec::new()),
            }
        }
        false => (VerbsEnds { src: None, dest: None }, Vec::new()),
    };
    let mut datagrams = datagrams && (of_pairs || format == FI_FORMAT_UNSPEC as u32);
    if datagrams && node.is_some() && flags & FI_SOURCE == 0 {
        report("FI_EP_DGRAM refused: no name service knows the address of a queue pair");
        datagrams = false;
    }
    let mut chain = InfoChain::new();
    for attributes in &mut known.attributes {
        let before = chain.iter().count();
        let own = locals.iter().filter(|local| local.device == attributes.device).cloned();
        for local in own.collect::<Vec<_>>() {
            let Some(mut info) = info_of(version, attributes, hints, false)? else { break };
            info.set_addr_format(local.addr.format());
            info.set_src_addr(Some(&local.addr.to_bytes()))?;
            let dest = ends.dest.as_ref().map(Addr::to_bytes);
            info.set_dest_addr(dest.as_deref())?;
            if let Some(hints) = hints {
                info.set_handle(hints.handle());
            }
            chain.push(info);
        }
        if datagrams {
            if let Some(mut info) = info_of(version, attributes, hints, true)? {
                let given = |bytes: Option<&[u8]>| {
                    bytes.filter(|_| of_pairs).map(UdAddr::from_bytes).transpose()
                };
                // An endpoint's own is known once it has a queue pair.
                let src = given(hints.and_then(InfoRef::src_addr))?.unwrap_or_default();
                let dest = given(hints.and_then(InfoRef::dest_addr))?;
                info.set_addr_format(FI_ADDR_IB_UD as u32);
                info.set_src_addr(Some(&src.to_bytes()))?;
                info.set_dest_addr(
                    dest.map(|dest| dest.to_bytes()).as_ref().map(|dest| &dest[..]),
                )?;
                chain.push(info);
            }
        }
        if chain.iter().count() > before {
            log::write_paths(&VERBS, || paths(attributes));
        }
    }
    if chain.is_empty() {
        report("refused: no device has an address that does");
        return Err(Error::NODATA);
    }
    Ok(chain)
}

/// Returns the paths of transfers of a device, for `fi_info --protocols`. Devices have different limits,
/// so a row names its device.
fn paths(attributes: &DeviceAttributes) -> Vec<TransferPath> {
    let name = attributes.device.name().to_string_lossy();
    let inject = |offer: &ProviderOffer| offer.most.as_ref().tx().map_or(0, |tx| tx.inject_size);
    let inline = inject(&attributes.offer);
    let inline_size = param::variable(&VERBS, c"inline_size");
    let copied = |transfers, most| {
        let text = "copied to the work request; some devices copy larger messages, too";
        TransferPath::new(transfers, "inline", format!("{name}: {text}"))
            .of(0, most)
            .limit(&inline_size, config().inline_size)
    };
    let direct = |transfers| {
        let text = "the device reads and writes the application's registered memory";
        TransferPath::new(transfers, "zero copy", format!("{name}: {text}"))
    };
    let mut rows = vec![
        copied("inject, messages, writes", inline),
        direct("messages, writes").of(inline + 1, usize::MAX),
        direct("reads, atomics"),
    ];
    if let Some(datagrams) = &attributes.datagrams {
        let (inline, most) = (inject(datagrams), datagrams.most.as_ref().ep());
        let most = most.map_or(0, |ep| ep.max_msg_size);
        rows.push(copied("datagrams", inline));
        rows.push(direct("datagrams").of(inline + 1, most));
    }
    if attributes.hmem.is_some() {
        let text = format!("{name}: with FI_HMEM nothing is inline");
        rows.push(TransferPath::new("device memory", "zero copy", text));
    }
    rows
}

/// Reports to the core the reason for something missing from the result.
fn report(line: &str) {
    ofi_provider::log!(&VERBS, INFO, FABRIC, "{line}");
}
