//! Fabrics and domains.
use super::ep::{UdpEngine, UdpEp};
use super::info::{QUEUE_SIZE, offer};
use crate::plug_in;
use core::ffi::CStr;
use ofi_provider::abi::{FI_SOURCE, fi_ep_type};
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, NewDomain, NoPassiveEp, local_addr, refuse_keys,
};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoRef;
use ofi_provider::progress::Progress;
use ofi_provider::wait::WaitKind;
use std::sync::{Arc, Once};

/// A fabric: a network that some interface is on. It has no state.
#[derive(Debug)]
pub(crate) struct UdpFabric;

impl Fabric for UdpFabric {
    type PassiveEp = NoPassiveEp;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain> {
        plug_in::current().tell();
        refuse_keys(plug_in::provider(), info, api_version)?;
        warn_of_secret();
        let settings =
            DomainSettings::new(info, false)?.with_offers(plug_in::provider(), &[offer()?], info);
        let engine = UdpEngine::new(settings.level.clone())?;
        Ok(UdpDomain { engine, settings, api_version }.into())
    }
}

/// Tells a user who protects `tcp` with a job's secret, once, that datagrams are not protected.
fn warn_of_secret() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let variable = ["FI_TCP_AUTH_KEY_FILE", "FI_TCP_AUTH_KEY"]
            .into_iter()
            .find(|variable| std::env::var_os(variable).is_some());
        if let Some(variable) = variable {
            let prov = plug_in::provider();
            ofi_provider::log!(
                prov,
                WARN,
                DOMAIN,
                "{variable} has no effect here: datagrams are neither authenticated nor encrypted"
            );
        }
    });
}

/// A domain: its endpoints' engine.
///
/// Automatic progress needs no thread of ours: datagrams arrive in the system's buffer by
/// themselves, and calls that wait for one wait on the sockets. Only an application that sleeps on
/// a condition variable has to be woken.
#[derive(Debug)]
pub(crate) struct UdpDomain {
    engine: Arc<UdpEngine>,
    settings: DomainSettings,
    api_version: u32,
}

impl Domain for UdpDomain {
    type Endpoint = UdpEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn blocking_opened(&self, kind: WaitKind) -> Result {
        if kind == WaitKind::MutexCond { self.start_thread() } else { Ok(()) }
    }

    fn thread_name(&self) -> String {
        format!("ofi-{}", plug_in::provider().name().to_string_lossy())
    }

    fn endpoint(&self, info: InfoRef<'_>) -> Result<UdpEp> {
        info.must_be(fi_ep_type::FI_EP_DGRAM)?;
        refuse_keys(plug_in::provider(), info, self.api_version)?;
        let rx_size = info.rx().ok_or(Error::INVAL)?.size.clamp(1, QUEUE_SIZE);
        UdpEp::open(&self.engine, local_addr(info)?, rx_size, info.caps() & FI_SOURCE != 0)
    }
}
