//! Fabrics, domains and endpoints of a provider whose links the engine runs over: the same for all
//! such providers, which say by [`LinkProvider`] what is their own.
mod aside;
mod pep;

pub use aside::StreamAside;
pub use pep::StreamPep;

use crate::engine::{StreamEngine, StreamEpKind, StreamIdentity, StreamRequest, TargetOf};
use crate::net::{ByteLink, Net};
use core::ffi::CStr;
use core::marker::PhantomData;
use ofi_provider::abi::{FI_FORMAT_UNSPEC, fi_ep_type, fi_provider};
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, Getinfo, RxAttr, getinfo_entry, open_fabric, passive_name,
    take_request,
};
use ofi_provider::endpoint::{RdmAttr, RdmEndpoint};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef};
use ofi_provider::progress::Progress;
use ofi_provider::wait::WaitKind;
use std::ffi::CString;
use std::sync::Arc;

/// What a provider says and opens beside its links.
pub trait LinkProvider: Net {
    /// The infos for a query (fi_getinfo(3)). What the engine can do is in
    /// [`offers`](crate::offer::offers).
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain>;

    /// Whether there are scalable endpoints, and contexts that endpoints share.
    const CONTEXTS: bool = true;

    /// The address that a new endpoint of this info is to have; any if the info says none.
    fn address(info: InfoRef<'_>) -> Result<Addr> {
        Addr::of_info(info)
    }

    /// What the engine of a new domain stands on. An error refuses the domain.
    fn open() -> Result<Self>;

    /// What a new passive endpoint stands on, of which only listening, callers and the timer are
    /// asked.
    fn open_passive() -> Result<Self> {
        Self::open()
    }
}

/// Hands a provider to the core, in `fi_prov_ini`: under another name, if the user wants one.
pub fn hand_out<N: LinkProvider>(name: Option<CString>) -> *mut fi_provider {
    let provider = N::Link::provider();
    let (getinfo, fabric) = (getinfo_entry::<StreamFabric<N>>, open_fabric::<StreamFabric<N>>);
    provider.hand_out_with(name, getinfo, fabric)
}

/// An endpoint of the application's.
pub type StreamEp<N> = RdmEndpoint<StreamEngine<N>>;

/// A fabric: a network that links can be begun in. It has no state.
#[derive(Debug)]
pub struct StreamFabric<N>(PhantomData<fn() -> N>);

impl<N: LinkProvider> Getinfo for StreamFabric<N> {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        N::getinfo(query)
    }
}

impl<N: LinkProvider> Fabric for StreamFabric<N> {
    type Domain = StreamDomain<N>;
    type PassiveEp = StreamPep<N>;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self(PhantomData))
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<StreamDomain<N>> {
        let net = N::open()?;
        let threads = N::Link::settings().threads;
        let settings = DomainSettings::new(info, !threads)?.with_visitors();
        let (level, regions) = (settings.level.clone(), settings.regions.clone());
        let engine = StreamEngine::new(net, level, threads, regions)?;
        Ok(StreamDomain { engine, settings, api_version })
    }

    fn passive_ep(&self, info: InfoRef<'_>) -> Result<StreamPep<N>> {
        info.must_be(fi_ep_type::FI_EP_MSG)?;
        StreamPep::new(N::open_passive()?, info.to_owned()?, Addr::of_info(info)?)
    }
}

/// A domain: an engine, and its progress thread when the application wants
/// automatic progress.
#[derive(Debug)]
pub struct StreamDomain<N: Net> {
    engine: Arc<StreamEngine<N>>,
    settings: DomainSettings,
    api_version: u32,
}

impl<N: LinkProvider> StreamDomain<N> {
    /// The identity of an endpoint to open with `info`; `passive` is the address of the passive
    /// endpoint that it takes over, if any.
    fn identity(&self, info: InfoRef<'_>, passive: Option<&[u8]>) -> Result<StreamIdentity> {
        let kind = match info.ep_type() {
            t if t == fi_ep_type::FI_EP_MSG => StreamEpKind::Msg,
            t if t == fi_ep_type::FI_EP_RDM => StreamEpKind::Rdm,
            _ => return Err(Error::INVAL),
        };
        let local = match passive {
            Some(name) => Addr::told(info.addr_format(), name)?,
            None => N::address(info)?,
        };
        let attr = RdmAttr::of(info, self.api_version)?;
        Ok(StreamIdentity {
            kind,
            firewalled: kind == StreamEpKind::Rdm && N::Link::settings().firewalled,
            memory: true,
            local,
            keep_port: passive.is_some(),
            attr: if kind == StreamEpKind::Msg { attr.of_connected() } else { attr },
            target: TargetOf::new(info.caps()),
        })
    }
}

impl<N: LinkProvider> Domain for StreamDomain<N> {
    type Endpoint = StreamEp<N>;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn blocking_opened(&self, _kind: WaitKind) -> Result {
        self.start_thread()
    }

    fn thread_name(&self) -> String {
        format!("ofi-{}", N::Link::provider().name().to_string_lossy())
    }

    const SHARED_TX: bool = N::CONTEXTS;
    const IMPORTS: bool = true;

    fn endpoint(&self, info: InfoRef<'_>) -> Result<StreamEp<N>> {
        let handle = info.handle();
        let passive = passive_name(handle).transpose()?;
        let identity = self.identity(info, passive.as_deref())?;
        let format = info.addr_format();
        let dest = info.dest_addr().map(|dest| Addr::told(format, dest)).transpose()?;
        let request = match identity.kind {
            _ if handle.is_null() => None,
            StreamEpKind::Msg if passive.is_some() => None,
            StreamEpKind::Msg => Some(take_request::<StreamRequest<N::Link>>(handle)?),
            StreamEpKind::Rdm | StreamEpKind::Srx => return Err(Error::INVAL),
        };
        // Connecting, sends that wait for room and peers' accesses to our memory must go on
        // without calls of the application, whether or not it opens something to wait on.
        self.start_thread()?;
        let aside = StreamAside::new(identity.kind, dest, request);
        Ok(StreamEp::new(self.engine.clone(), identity, aside))
    }

    fn scalable_ep(&self, info: InfoRef<'_>) -> Result<StreamEp<N>> {
        if !N::CONTEXTS {
            return Err(Error::NOSYS);
        }
        let identity = self.identity(info, None)?;
        if identity.kind != StreamEpKind::Rdm || !info.handle().is_null() {
            return Err(Error::INVAL);
        }
        self.start_thread()?;
        StreamEp::scalable(self.engine.clone(), identity, info)
    }

    fn srx_context(&self, rx: RxAttr) -> Result<StreamEp<N>> {
        if !N::CONTEXTS {
            return Err(Error::INVAL);
        }
        let identity = StreamIdentity {
            kind: StreamEpKind::Srx,
            firewalled: false,
            memory: false,
            local: Addr::any(FI_FORMAT_UNSPEC as u32),
            keep_port: false,
            attr: RdmAttr::of_srx(&rx),
            target: TargetOf::NOTHING,
        };
        let aside = StreamAside::new(StreamEpKind::Srx, None, None);
        Ok(StreamEp::shared_rx(self.engine.clone(), identity, aside))
    }
}
