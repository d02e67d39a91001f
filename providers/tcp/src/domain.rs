//! Fabrics and domains.
use crate::aside::TcpAside;
use crate::config::config;
use crate::ep::TcpEp;
use crate::net::{Sockets, TcpEngine, TcpRequest};
use crate::pep::TcpPep;
use core::ffi::CStr;
use ofi_provider::abi::fi_ep_type;
use ofi_provider::addr;
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, RxAttr, local_addr, passive_name, take_request,
};
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoRef;
use ofi_provider::progress::Progress;
use ofi_provider::wait::WaitKind;
use ofi_stream::engine::{StreamEpKind, StreamIdentity, TargetOf};
use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};

/// A fabric: a network that some interface is on. It has no state.
#[derive(Debug)]
pub(crate) struct TcpFabric;

impl Fabric for TcpFabric {
    type Domain = TcpDomain;
    type PassiveEp = TcpPep;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<TcpDomain> {
        config().peers.check()?;
        let settings = DomainSettings::new(info, config().no_auto_progress)?.with_visitors();
        let (level, regions) = (settings.level.clone(), settings.regions.clone());
        let threads = !config().no_auto_progress;
        let engine = TcpEngine::new(Sockets::new()?, level, threads, regions)?;
        Ok(TcpDomain { engine, settings, api_version })
    }

    fn passive_ep(&self, info: InfoRef<'_>) -> Result<TcpPep> {
        info.must_be(fi_ep_type::FI_EP_MSG)?;
        config().peers.check()?;
        TcpPep::new(info.to_owned()?, local_addr(info)?)
    }
}

/// A domain: an engine, and its progress thread when the application wants
/// automatic progress.
#[derive(Debug)]
pub(crate) struct TcpDomain {
    engine: Arc<TcpEngine>,
    settings: DomainSettings,
    api_version: u32,
}

impl TcpDomain {
    /// Starts the progress thread of a domain that promises automatic progress.
    fn start_thread(&self) -> Result {
        let engine: Weak<TcpEngine> = Arc::downgrade(&self.engine);
        self.settings.start_thread("ofi-tcp", engine)
    }

    /// The identity of an endpoint to open with `info`; `passive` is the address of the passive
    /// endpoint that it takes over, if any.
    fn identity(&self, info: InfoRef<'_>, passive: Option<&[u8]>) -> Result<StreamIdentity> {
        let kind = match info.ep_type() {
            t if t == fi_ep_type::FI_EP_MSG => StreamEpKind::Msg,
            t if t == fi_ep_type::FI_EP_RDM => StreamEpKind::Rdm,
            _ => return Err(Error::INVAL),
        };
        let local = match passive {
            Some(name) => addr::from_bytes(name)?,
            None => local_addr(info)?,
        };
        let attr = RdmAttr::of(info, self.api_version)?;
        Ok(StreamIdentity {
            kind,
            firewalled: kind == StreamEpKind::Rdm && config().firewall_addr,
            local,
            keep_port: passive.is_some(),
            attr: if kind == StreamEpKind::Msg { attr.of_connected() } else { attr },
            target: TargetOf::new(info.caps()),
        })
    }
}

impl Domain for TcpDomain {
    type Endpoint = TcpEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn blocking_opened(&self, _kind: WaitKind) -> Result {
        self.start_thread()
    }

    const SHARED_TX: bool = true;

    fn endpoint(&self, info: InfoRef<'_>) -> Result<TcpEp> {
        let handle = info.handle();
        let passive = passive_name(handle).transpose()?;
        let identity = self.identity(info, passive.as_deref())?;
        let dest = info.dest_addr().map(addr::from_bytes).transpose()?;
        let request = match identity.kind {
            _ if handle.is_null() => None,
            StreamEpKind::Msg if passive.is_some() => None,
            StreamEpKind::Msg => Some(take_request::<TcpRequest>(handle)?),
            StreamEpKind::Rdm | StreamEpKind::Srx => return Err(Error::INVAL),
        };
        // Connecting, sends that wait for room and peers' accesses to our memory must go on
        // without calls of the application, whether or not it opens something to wait on.
        self.start_thread()?;
        let aside = TcpAside::new(identity.kind, dest, request);
        Ok(TcpEp::new(self.engine.clone(), identity, aside))
    }

    fn scalable_ep(&self, info: InfoRef<'_>) -> Result<TcpEp> {
        let identity = self.identity(info, None)?;
        if identity.kind != StreamEpKind::Rdm || !info.handle().is_null() {
            return Err(Error::INVAL);
        }
        self.start_thread()?;
        TcpEp::scalable(self.engine.clone(), identity, info)
    }

    fn srx_context(&self, rx: RxAttr) -> Result<TcpEp> {
        let identity = StreamIdentity {
            kind: StreamEpKind::Srx,
            firewalled: false,
            local: (Ipv4Addr::UNSPECIFIED, 0).into(),
            keep_port: false,
            attr: RdmAttr::of_srx(&rx),
            target: TargetOf::NOTHING,
        };
        let aside = TcpAside::new(StreamEpKind::Srx, None, None);
        Ok(TcpEp::shared_rx(self.engine.clone(), identity, aside))
    }
}
