//! Fabrics and domains.
use crate::LNX;
use crate::config::config;
use crate::engine::{LnxCommon, LnxEndpointExt, LnxEngine, LnxEp, OpenedCore};
use crate::info;
use core::ffi::CStr;
use ofi_provider::abi::{FI_FORMAT_UNSPEC, FI_HMEM, FI_MR_BASIC, FI_MR_UNSPEC, fi_ep_type};
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, Getinfo, NewDomain, NoPassiveEp, refuse_keys,
};
use ofi_provider::core_provider::{CoreDomain, CoreFabric, LinkedRegions};
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::hmem;
use ofi_provider::info::{API_VERSION, InfoChain, InfoQuery, InfoRef, PROV_VERSION};
use ofi_provider::mr::MrTable;
use ofi_provider::progress::Progress;
use ofi_provider::provider::Provider;
use ofi_provider::secret::key_variable;
use std::sync::Arc;

/// Fabric. The fabrics of the cores are opened with a domain, because only its info names them.
#[derive(Debug)]
pub(crate) struct LnxFabric;

impl Fabric for LnxFabric {
    type PassiveEp = NoPassiveEp;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain> {
        refuse_keys(&LNX, info, api_version)?;
        let cores = cores_of(info, api_version)?;
        warn_of_secret(&cores);
        let hmem = info.caps() & FI_HMEM != 0;
        let offers = [info::offer(&cores, hmem)?];
        let mut settings = DomainSettings::new(info, false)?.with_offers(&LNX, &offers, info);
        settings.addr_format = FI_FORMAT_UNSPEC as u32;
        let mr_mode = match info.domain().map_or(FI_MR_UNSPEC, |domain| domain.mr_mode) {
            FI_MR_BASIC => FI_MR_BASIC,
            _ => info::mr_mode(&cores),
        };
        let key_size = cores.iter().map(|core| core.info.domain().mr_key_size).min();
        let mut opened = Vec::new();
        for core in cores {
            let fabric = CoreFabric::open(&core.info)?;
            let domain = CoreDomain::open(&fabric, &core.info)?;
            opened.push(OpenedCore::new(domain, core));
        }
        let domains = opened.iter().map(|core| core.domain.clone()).collect();
        let regions = Arc::new(LinkedRegions::new(domains, mr_mode, key_size.unwrap_or(8)));
        settings.regions = Arc::new(MrTable::backed(mr_mode, regions));
        if hmem {
            settings = settings.with_devices(hmem::interfaces(&LNX));
        }
        let (level, regions) = (settings.level.clone(), settings.regions.clone());
        let common = LnxCommon { cores: opened, regions, level };
        let engine = LnxEngine::new(common)?;
        Ok(LnxDomain { engine, settings, api_version }.into())
    }
}

impl Getinfo for LnxFabric {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        info::getinfo(query)
    }
}

/// Warns users of a pre-shared key for `tcp`: peers of this host are reached without it.
fn warn_of_secret(cores: &[info::LnxCore]) {
    static TCP: Provider = Provider::named(c"tcp", PROV_VERSION, API_VERSION);
    static SHM: Provider = Provider::named(c"shm", PROV_VERSION, API_VERSION);
    let names_shm = |core: &info::LnxCore| core.info.as_ref().prov_name() == Some(c"shm");
    if cores.iter().any(names_shm) {
        if let Some(variable) = key_variable(&TCP) {
            if key_variable(&SHM).is_none() {
                ofi_provider::log!(
                    &LNX,
                    WARN,
                    DOMAIN,
                    "{variable} has no effect on peers of this host, which shm reaches: see \
             FI_SHM_AUTH_KEY_FILE"
                );
            }
        }
    }
}

/// Returns the cores of the link with its domain named by this info.
fn cores_of(info: InfoRef<'_>, api_version: u32) -> Result<Vec<info::LnxCore>> {
    let links = config().links.as_ref().map_err(|_| Error::NODATA)?;
    let name = info.domain_name().ok_or(Error::INVAL)?;
    for link in links {
        let cores = info::cores_by_name(api_version, link, Some(info), name.to_bytes())?;
        if let Some(cores) = cores {
            return Ok(cores);
        }
    }
    ofi_provider::log!(&LNX, WARN, DOMAIN, "no link has a domain {}", name.to_string_lossy());
    Err(Error::NODATA)
}

/// Domain: the domains of the cores, and the engine combining them.
#[derive(Debug)]
pub(crate) struct LnxDomain {
    engine: Arc<LnxEngine>,
    settings: DomainSettings,
    api_version: u32,
}

impl Domain for LnxDomain {
    type Endpoint = LnxEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn thread_name(&self) -> String {
        "ofi-lnx".to_owned()
    }

    // Cores tell that an operation is complete, and not how long it was.
    const COUNTS_BYTES: bool = false;

    fn has_atomics(&self) -> bool {
        self.engine.has_atomics()
    }

    fn endpoint(&self, info: InfoRef<'_>) -> Result<LnxEp> {
        info.must_be(fi_ep_type::FI_EP_RDM)?;
        refuse_keys(&LNX, info, self.api_version)?;
        let attr = RdmAttr::of(info, self.api_version)?;
        // Peers call, send and use our memory whether there is something to wait for or not.
        self.start_thread()?;
        Ok(LnxEp::new(self.engine.clone(), attr, LnxEndpointExt::default()))
    }
}
