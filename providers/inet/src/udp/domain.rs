//! Fabrics and domains.
use super::ep::{UdpEngine, UdpEp};
use super::info::{QUEUE_SIZE, offer, paths, secret};
use super::socket::DgramSocket;
use crate::plug_in::{self, TCP_PARAMETERS, provider};
use core::ffi::CStr;
use ofi_provider::abi::{FI_SOURCE, fi_ep_type};
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, Getinfo, NewDomain, NoPassiveEp, domain_key, endpoint_key,
    local_addr,
};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef};
use ofi_provider::log;
use ofi_provider::progress::Progress;
use ofi_provider::secret::{KEY_FILE, key_variable};
use ofi_provider::traffic_class::TrafficClass;
use ofi_provider::wait::WaitKind;
use ofi_stream::attrs::echoed_keys;
use ofi_stream::secret::PskConfig;
use std::sync::{Arc, Once};

/// Fabric: a network with a local interface. It has no state.
#[derive(Debug)]
pub(crate) struct UdpFabric;

impl Fabric for UdpFabric {
    type PassiveEp = NoPassiveEp;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain> {
        plug_in::current().tell();
        let secret = match domain_key(info, api_version)? {
            Some(key) => secret().with_program_key(plug_in::provider(), key)?,
            None => secret().clone(),
        };
        secret.check(plug_in::provider())?;
        if secret.key().is_none() {
            warn_of_secret();
        }
        let offer = offer(secret.key().is_some())?;
        let settings =
            DomainSettings::new(info, false)?.with_offers(plug_in::provider(), &[offer], info);
        let engine = UdpEngine::new(settings.level.clone())?;
        let class = TrafficClass::of_domain(info, api_version).or(plug_in::traffic_class());
        Ok(UdpDomain { engine, settings, api_version, secret, class }.into())
    }
}

impl Getinfo for UdpFabric {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        secret().explain_datagrams(provider());
        log::write_paths(provider(), || paths(secret().is_wanted()));
        let keys = echoed_keys(true, query.version, query.hints);
        let mut offer = offer(secret().is_wanted() || keys.iter().any(Option::is_some))?;
        offer.most.set_auth_keys(keys[0], keys[1])?;
        (plug_in::current().offered)(&mut offer);
        plug_in::infos(&[offer], query)
    }
}

/// Warns users of a pre-shared key for `tcp`, once: datagrams are not protected by it.
fn warn_of_secret() {
    static NOTIFIED: Once = Once::new();
    NOTIFIED.call_once(|| {
        if let Some(variable) = key_variable(&TCP_PARAMETERS) {
            let prov = plug_in::provider();
            let own = plug_in::variable(KEY_FILE);
            ofi_provider::log!(
                prov,
                WARN,
                DOMAIN,
                "{variable} has no effect here: datagrams are neither authenticated nor encrypted \
                 without {own}"
            );
        }
    });
}

/// Domain: the engine of its endpoints.
///
/// Automatic progress needs no thread: datagrams arrive in the kernel's buffer by themselves, and
/// blocking calls wait on the sockets. Only an application sleeping on a condition variable has to
/// be woken.
#[derive(Debug)]
pub(crate) struct UdpDomain {
    engine: Arc<UdpEngine>,
    settings: DomainSettings,
    api_version: u32,
    /// Pre-shared key of endpoints without their own: the program's, or the user's.
    secret: PskConfig,
    /// Traffic class of endpoints without their own: the program's, or the user's.
    class: TrafficClass,
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
        let own = match endpoint_key(info, self.api_version)? {
            Some(key) => Some(secret().with_program_key(plug_in::provider(), key)?),
            None => None,
        };
        let key = own.as_ref().unwrap_or(&self.secret).key().cloned();
        let rx_size = info.rx().ok_or(Error::INVAL)?.size.clamp(1, QUEUE_SIZE);
        let class = TrafficClass::of_endpoint(info, self.api_version).or(self.class);
        let socket = DgramSocket::bound(&local_addr(info)?)?.with_class(class);
        UdpEp::open(&self.engine, socket, rx_size, info.caps() & FI_SOURCE != 0, key)
    }
}
