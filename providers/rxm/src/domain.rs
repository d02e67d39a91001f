//! Fabrics and domains.
use crate::config::config;
use crate::engine::{Common, LocalPaths, RxmEngine, RxmIdentity};
use crate::ep::RxmEp;
use crate::info::{self, core_hints, core_version, find_cores};
use crate::provider::RXM;
use crate::wire::MAX_KEY_LEN;
use core::ffi::CStr;
use ofi_provider::abi::{FI_HMEM, FI_MR_BASIC, FI_MR_UNSPEC, fi_ep_type};
use ofi_provider::addr::Addr;
use ofi_provider::api::{Domain, DomainSettings, Fabric, Getinfo, NewDomain, NoPassiveEp, RxAttr};
use ofi_provider::core_provider;
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::hmem;
use ofi_provider::info::{GETINFO_HIDDEN, InfoBuf, InfoChain, InfoQuery, InfoRef, version};
use ofi_provider::mr::MrTable;
use ofi_provider::progress::Progress;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Fabric. The core's fabric is opened with a domain, because only its info names the core.
#[derive(Debug)]
pub(crate) struct RxmFabric;

impl Fabric for RxmFabric {
    type PassiveEp = NoPassiveEp;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain> {
        let config = config();
        let core_info = core_info(info, api_version)?;
        let hmem = info.caps() & FI_HMEM != 0;
        let mut settings = DomainSettings::new(info, false)?.with_offers(
            &RXM,
            &[info::offer_over(core_info.as_ref(), hmem)?],
            info,
        );
        let fabric = core_provider::CoreFabric::open(&core_info)?;
        let domain = core_provider::CoreDomain::open(&fabric, &core_info)?;
        let mr_mode = match info.domain().map_or(FI_MR_UNSPEC, |domain| domain.mr_mode) {
            FI_MR_BASIC => FI_MR_BASIC,
            _ => core_info.domain().mr_mode,
        };
        let key_size = core_info.domain().mr_key_size;
        let regions = Arc::new(core_provider::Regions::new(domain.clone(), mr_mode, key_size));
        settings.regions = Arc::new(MrTable::backed(mr_mode, regions));
        if hmem {
            settings = settings.with_devices(hmem::interfaces(&RXM));
        }
        let common = Common::new(domain, core_info, config.clone(), &settings);
        let engine = RxmEngine::new(Arc::new(common))?;
        // Older programs have no keys (fi_domain(3)).
        let has_key = api_version >= version(1, 5);
        let key = info.domain_auth_key().filter(|_| has_key).unwrap_or_default().to_vec();
        Ok(RxmDomain { engine, settings, key, has_key, api_version }.into())
    }
}

impl Getinfo for RxmFabric {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        info::getinfo(query)
    }
}

/// Returns the core provider's info corresponding to an info of this provider.
fn core_info(info: InfoRef<'_>, api_version: u32) -> Result<InfoBuf> {
    let mut hints = core_hints(Some(info))?;
    // The destination is an endpoint's business; the source address stays, because it names the
    // interface.
    hints.set_dest_addr(None)?;
    let version = core_version(api_version);
    // A provider over this one may have found both although the user hides them from applications.
    let flags = GETINFO_HIDDEN;
    let query = InfoQuery { version, node: None, service: None, flags, hints: None };
    core_provider::with_domain_of(find_cores(&query, hints)?, info).ok_or(Error::NODATA)
}

/// Domain: an engine, with its progress thread if the application requests automatic progress, or
/// can sleep without any other source of progress.
#[derive(Debug)]
pub(crate) struct RxmDomain {
    engine: Arc<RxmEngine>,
    settings: DomainSettings,
    /// Authorization key of endpoints without their own.
    key: Vec<u8>,
    /// The program knows of keys.
    has_key: bool,
    api_version: u32,
}

impl RxmDomain {
    /// Returns the identity of an endpoint opened with this info.
    fn identity(&self, info: InfoRef<'_>) -> Result<RxmIdentity> {
        info.must_be(fi_ep_type::FI_EP_RDM)?;
        let mut attr = RdmAttr::of(info, self.api_version)?;
        attr.inject_size = attr.inject_size.min(config().eager_limit);
        let key = info.ep_auth_key().filter(|_| self.has_key).unwrap_or(&self.key).to_vec();
        if key.len() > MAX_KEY_LEN {
            return Err(Error::INVAL);
        }
        Ok(RxmIdentity { local: Addr::of_info(info)?, attr, local_paths: LocalPaths::ALL, key })
    }
}

impl Domain for RxmDomain {
    type Endpoint = RxmEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn thread_name(&self) -> String {
        "ofi-rxm".to_owned()
    }

    /// Shared transmit contexts cost nothing: each connection sends by itself, and there is nothing
    /// to share.
    const SHARED_TX: bool = true;
    const IMPORTS: bool = true;

    fn endpoint(&self, info: InfoRef<'_>) -> Result<RxmEp> {
        let identity = self.identity(info)?;
        // Peers call, send and use our memory whether there is something to wait for or not.
        self.start_thread()?;
        Ok(RxmEp::new(self.engine.clone(), identity, ()))
    }

    fn scalable_ep(&self, info: InfoRef<'_>) -> Result<RxmEp> {
        let identity = self.identity(info)?;
        self.start_thread()?;
        RxmEp::scalable(self.engine.clone(), identity, info)
    }

    fn srx_context(&self, rx: RxAttr) -> Result<RxmEp> {
        let local = Addr::Ip((Ipv4Addr::UNSPECIFIED, 0).into());
        let identity = RxmIdentity {
            local,
            attr: RdmAttr::of_srx(&rx),
            local_paths: LocalPaths::ALL,
            key: Vec::new(),
        };
        Ok(RxmEp::shared_rx(self.engine.clone(), identity, ()))
    }
}
