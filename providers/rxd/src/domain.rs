//! Fabrics and domains.
use crate::config::{MAX_PACKET, config, note_packet};
use crate::engine::{CorePorts, OwnCore, RxdEngine, RxdIdentity, RxdLimits, SpareReceives};
use crate::ep::RxdEp;
use crate::info::{self, core_hints, core_version};
use crate::provider::RXD;
use crate::wire::{ATOMIC_HEAD, DATA_HEAD};
use core::ffi::CStr;
use ofi_provider::abi::{FI_MSG_PREFIX, FI_SOURCE, fi_ep_type};
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, Getinfo, NewDomain, NoPassiveEp, domain_key, endpoint_key,
};
use ofi_provider::core_provider;
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoBuf, InfoChain, InfoQuery, InfoRef};
use ofi_provider::progress::Progress;
use std::sync::Arc;

/// Fabric. The core's fabric is opened with a domain, because only its info names the core.
#[derive(Debug)]
pub(crate) struct RxdFabric;

impl Fabric for RxdFabric {
    type PassiveEp = NoPassiveEp;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain> {
        let core_info = core_info(info, api_version, [None, domain_key(info, api_version)?])?;
        let settings = DomainSettings::new(info, false)?
            .with_offers(&RXD, &[info::offer(core_info.as_ref())?], info)
            .with_helpers();
        let prefix = core_info.as_ref().ep().map_or(0, |ep| ep.msg_prefix_size);
        let packet = packet_of(core_info.as_ref())?;
        let fabric = core_provider::CoreFabric::open(&core_info)?;
        let domain = core_provider::CoreDomain::open(&fabric, &core_info)?;
        let limits = RxdLimits {
            format: core_info.as_ref().addr_format(),
            packet,
            config: config().clone(),
            regions: settings.regions.clone(),
        };
        let level = settings.level.clone();
        let (inject, mode) = (core_info.tx().inject_size, core_info.tx().mode);
        let notifies = core_info.caps() & FI_SOURCE != 0;
        let ports = CorePorts {
            domain,
            info: core_info,
            packet,
            prefix,
            send_prefix: if mode & FI_MSG_PREFIX != 0 { prefix } else { 0 },
            inject,
            level: level.clone(),
            format: limits.format,
            notifies,
            wait_set: core_provider::CoreWaitSet::open(&fabric).ok(),
            spare_receives: SpareReceives::default(),
        };
        let engine = RxdEngine::new(limits, Box::new(Arc::new(ports)), level)?;
        Ok(RxdDomain { engine, settings, api_version }.into())
    }
}

impl Getinfo for RxdFabric {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        info::getinfo(query)
    }
}

/// The longest packet over a core provider.
fn packet_of(core_info: InfoRef<'_>) -> Result<usize> {
    let (prefix, most) = core_info.ep().map_or((0, 0), |ep| (ep.msg_prefix_size, ep.max_msg_size));
    let packet = most.min(MAX_PACKET).saturating_sub(prefix);
    if packet <= ATOMIC_HEAD.max(DATA_HEAD) {
        return Err(Error::NODATA);
    }
    note_packet(packet);
    Ok(packet)
}

/// Returns the core provider's info corresponding to an info of this provider, with an
/// authorization key of an endpoint or of a domain. Fails with -FI_EINVAL if the core accepts no
/// such key.
fn core_info(info: InfoRef<'_>, api_version: u32, keys: [Option<&[u8]>; 2]) -> Result<InfoBuf> {
    let mut hints = core_hints(Some(info))?;
    hints.set_auth_keys(keys[0], keys[1])?;
    // The destination is an endpoint's business; the source address stays, because it names the
    // interface.
    hints.set_dest_addr(None)?;
    let version = core_version(api_version);
    let caps = hints.caps();
    // Not all cores report the source of a packet. A reported source keeps out packets of other
    // senders.
    for more in [FI_SOURCE, 0] {
        hints.set_caps(caps | more);
        let hints = Some(hints.as_ref());
        let query = InfoQuery { version, node: None, service: None, flags: 0, hints };
        match core_provider::getinfo(&query) {
            Err(Error::NODATA) => {}
            cores => return core_provider::with_domain_of(cores?, info).ok_or(Error::NODATA),
        }
    }
    if keys.iter().any(Option::is_some) {
        ofi_provider::log!(&RXD, WARN, DOMAIN, "auth_key: the core provider takes none such");
        return Err(Error::INVAL);
    }
    Err(Error::NODATA)
}

/// A domain: an engine, and its progress thread when the application wants
/// automatic progress.
#[derive(Debug)]
pub(crate) struct RxdDomain {
    engine: Arc<RxdEngine>,
    settings: DomainSettings,
    api_version: u32,
}

impl RxdDomain {
    /// Returns the core of an endpoint with its own pre-shared key.
    fn core_with_key(&self, info: InfoRef<'_>, key: &[u8]) -> Result<OwnCore> {
        let core = core_info(info, self.api_version, [Some(key), None])?;
        let packet = packet_of(core.as_ref())?.min(self.engine.packet());
        Ok(OwnCore { info: Arc::new(core), packet })
    }
}

impl Domain for RxdDomain {
    type Endpoint = RxdEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn thread_name(&self) -> String {
        "ofi-rxd".to_owned()
    }

    fn endpoint(&self, info: InfoRef<'_>) -> Result<RxdEp> {
        info.must_be(fi_ep_type::FI_EP_RDM)?;
        let key = endpoint_key(info, self.api_version)?;
        let own = key.map(|key| self.core_with_key(info, key)).transpose()?;
        let mut attr = RdmAttr::of(info, self.api_version)?;
        let packet = own.as_ref().map_or(self.engine.packet(), |own| own.packet);
        attr.inject_size = attr.inject_size.min(info::inject_size(packet));
        let identity = RxdIdentity { local: Addr::of_info(info)?, attr, own };
        // Peers send and use our memory whether there is something to wait for or not.
        self.start_thread()?;
        Ok(RxdEp::new(self.engine.clone(), identity, ()))
    }
}
