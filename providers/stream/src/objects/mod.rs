//! Fabrics, domains and endpoints of a provider over the engine. They are the same for all such
//! providers; [`LinkProvider`] supplies the differences.
mod endpoint_ext;
mod pep;
mod unanswered;

pub use endpoint_ext::StreamEndpointExt;
pub use pep::StreamPep;

use crate::engine::{StreamEngine, StreamEpKind, StreamIdentity, StreamRequest, TargetOf};
use crate::secret::PskConfig;
use crate::transport::{ByteLink, ShmTransport, Transport};
use core::ffi::CStr;
use core::marker::PhantomData;
use ofi_provider::abi::{FI_FORMAT_UNSPEC, FI_HMEM, fi_ep_type, fi_provider};
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, Getinfo, NewDomain, RxAttr, domain_key, endpoint_key,
    getinfo_entry, open_fabric, passive_name, request_of_endpoint,
};
use ofi_provider::buf::SegmentLimit;
use ofi_provider::endpoint::{RdmAttr, RdmEndpoint};
use ofi_provider::error::{Error, Result};
use ofi_provider::hmem;
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef, ProviderOffer};
use ofi_provider::progress::Progress;
use ofi_provider::traffic_class::TrafficClass;
use ofi_provider::wait::WaitKind;
use std::ffi::CString;
use std::sync::Arc;

/// Provider-specific functions in addition to its links.
pub trait LinkProvider: Transport {
    /// Returns the infos for a query (fi_getinfo(3)). The capabilities of the engine are in
    /// [`offers`](crate::attrs::offers).
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain>;

    /// Returns the supported attributes of endpoints: those offered to applications without hints.
    fn offers() -> Result<Vec<ProviderOffer>>;

    /// Enables scalable endpoints and shared contexts.
    const CONTEXTS: bool = true;

    /// Returns the maximum number of segments of a transfer: the number offered
    /// ([`OfferLimits::segments`](crate::attrs::OfferLimits::segments)).
    fn segments() -> SegmentLimit {
        SegmentLimit::default()
    }

    /// Returns the maximum number of segments of a region: the number offered
    /// ([`OfferLimits::region_segments`](crate::attrs::OfferLimits::region_segments)).
    fn region_segments() -> usize {
        1
    }

    /// Returns the address for a new endpoint of this info; any address if the info has none.
    fn address(info: InfoRef<'_>) -> Result<Addr> {
        Addr::of_info(info)
    }

    /// Opens the transport of a new domain's engine. An error rejects the domain.
    fn open() -> Result<Self>;

    /// Opens the transport of a new passive endpoint, used only for listening, pending connections
    /// and the timer.
    fn open_passive() -> Result<Self> {
        Self::open()
    }

    /// Returns the pre-shared key required of peers if the program has its own (`auth_key` of
    /// fi_domain(3)). Fails with -FI_EINVAL if it is invalid, or if links do not authenticate.
    fn own_secret(_key: &[u8]) -> Result<PskConfig> {
        Err(Error::INVAL)
    }

    /// Like [`open`](Self::open), for a domain with a separate pre-shared key
    /// ([`own_secret`](Self::own_secret)).
    fn open_with(_secret: &PskConfig) -> Result<Self> {
        Err(Error::NOSYS)
    }

    /// Like [`open_passive`](Self::open_passive), for a passive endpoint with a separate pre-shared
    /// key.
    fn open_passive_with(_secret: &PskConfig) -> Result<Self> {
        Err(Error::NOSYS)
    }

    /// Returns true if a link was made with this pre-shared key: the program's own, or the user's.
    fn is_for(_link: &Self::Link, own: Option<&PskConfig>) -> bool {
        own.is_none()
    }
}

/// Returns a program's own pre-shared key from a domain's attributes.
fn own_of_domain<N: LinkProvider>(info: InfoRef<'_>, api: u32) -> Result<Option<PskConfig>> {
    domain_key(info, api)?.map(N::own_secret).transpose()
}

/// The same of an endpoint's.
fn own_of_endpoint<N: LinkProvider>(info: InfoRef<'_>, api: u32) -> Result<Option<PskConfig>> {
    endpoint_key(info, api)?.map(N::own_secret).transpose()
}

/// Hands a provider to the core, in `fi_prov_ini`: under another name, if the user wants one.
pub fn provider_entry<N: LinkProvider + ShmTransport>(name: Option<CString>) -> *mut fi_provider {
    let provider = N::Link::provider();
    let (getinfo, fabric) = (getinfo_entry::<StreamFabric<N>>, open_fabric::<StreamFabric<N>>);
    provider.hand_out_with(name, getinfo, fabric)
}

/// An endpoint of the application's.
pub type StreamEp<N> = RdmEndpoint<StreamEngine<N>>;

/// Fabric: a network for links. It has no state.
#[derive(Debug)]
pub struct StreamFabric<N>(PhantomData<fn() -> N>);

impl<N: LinkProvider + ShmTransport> Getinfo for StreamFabric<N> {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        N::getinfo(query)
    }
}

impl<N: LinkProvider + ShmTransport> Fabric for StreamFabric<N> {
    type PassiveEp = StreamPep<N>;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self(PhantomData))
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain> {
        let secret = own_of_domain::<N>(info, api_version)?;
        let net = secret.as_ref().map_or_else(N::open, N::open_with)?;
        let (threads, sharing) = (N::Link::settings().threads, N::Link::settings().sharing);
        let mut settings = DomainSettings::new(info, !threads)?
            .with_offers(N::Link::provider(), &N::offers()?, info)
            .with_segments(N::segments(), N::region_segments())
            .with_vectors(sharing)
            .with_visitors();
        if info.caps() & FI_HMEM != 0 {
            settings = settings.with_devices(hmem::interfaces(N::Link::provider()));
        }
        let (level, regions) = (settings.level.clone(), settings.regions.clone());
        let engine = StreamEngine::new(net, level, threads, regions)?;
        let class = TrafficClass::of_domain(info, api_version);
        Ok(StreamDomain { engine, settings, api_version, secret, class }.into())
    }

    fn passive_ep(&self, info: InfoRef<'_>, api_version: u32) -> Result<StreamPep<N>> {
        info.must_be(fi_ep_type::FI_EP_MSG)?;
        let secret = match own_of_endpoint::<N>(info, api_version)? {
            None => own_of_domain::<N>(info, api_version)?,
            own => own,
        };
        let net = secret.as_ref().map_or_else(N::open_passive, N::open_passive_with)?;
        StreamPep::new(net, info.to_owned()?, Addr::of_info(info)?)
    }
}

/// A domain: an engine, and its progress thread when the application wants
/// automatic progress.
#[derive(Debug)]
pub struct StreamDomain<N: ShmTransport> {
    engine: Arc<StreamEngine<N>>,
    settings: DomainSettings,
    api_version: u32,
    /// Pre-shared key of the program for endpoints without their own.
    secret: Option<PskConfig>,
    /// Traffic class of endpoints without their own.
    class: TrafficClass,
}

impl<N: LinkProvider + ShmTransport> StreamDomain<N> {
    /// Returns the identity of an endpoint to open with `info`; `passive` is the address taken over
    /// from a passive endpoint, if any.
    fn identity(&self, info: InfoRef<'_>, passive: Option<&[u8]>) -> Result<StreamIdentity> {
        let kind = match info.ep_type() {
            t if t == fi_ep_type::FI_EP_MSG => StreamEpKind::Msg,
            // Datagram guarantees are weaker than those of the engine.
            t if t == fi_ep_type::FI_EP_RDM || t == fi_ep_type::FI_EP_DGRAM => StreamEpKind::Rdm,
            _ => return Err(Error::INVAL),
        };
        let local = match passive {
            Some(name) => Addr::from_application(info.addr_format(), name)?,
            None => N::address(info)?,
        };
        let attr = RdmAttr::of(info, self.api_version)?;
        Ok(StreamIdentity {
            kind,
            behind_firewall: kind == StreamEpKind::Rdm && N::Link::settings().behind_firewall,
            memory: true,
            local,
            keep_port: passive.is_some(),
            attr: if kind == StreamEpKind::Msg { attr.of_connected() } else { attr },
            target: TargetOf::new(info.caps()),
            secret: own_of_endpoint::<N>(info, self.api_version)?,
            class: TrafficClass::of_endpoint(info, self.api_version).or(self.class),
            interfaces: self.settings.interfaces(),
        })
    }
}

impl<N: LinkProvider + ShmTransport> Domain for StreamDomain<N> {
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
        let dest = info.dest_addr().map(|dest| Addr::from_application(format, dest)).transpose()?;
        let request = match identity.kind {
            _ if handle.is_null() => None,
            StreamEpKind::Msg if passive.is_some() => None,
            StreamEpKind::Msg => {
                let request = request_of_endpoint::<StreamRequest<N::Link>>(handle)?;
                // The passive endpoint's secret is what was proven.
                let secret = identity.secret.as_ref().or(self.secret.as_ref());
                let is_for = |request: &StreamRequest<_>| {
                    // A lost link is of the same secret as the one after it.
                    request.link().with(|link| N::is_for(link, secret)).unwrap_or(true)
                };
                if request.look(is_for) != Some(true) {
                    ofi_provider::log!(
                        N::Link::provider(),
                        WARN,
                        EP_CTRL,
                        "the passive endpoint had another auth_key than the endpoint that takes \
                         the connection"
                    );
                    return Err(Error::KEYREJECTED);
                }
                Some(request)
            }
            StreamEpKind::Rdm | StreamEpKind::Srx => return Err(Error::INVAL),
        };
        // Connecting, sends that wait for room and peers' accesses to our memory must go on
        // without calls of the application, whether or not it opens something to wait on.
        self.start_thread()?;
        let ext = StreamEndpointExt::new(identity.kind, dest, request);
        Ok(StreamEp::new(self.engine.clone(), identity, ext))
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
            behind_firewall: false,
            memory: false,
            local: Addr::any(FI_FORMAT_UNSPEC as u32),
            keep_port: false,
            attr: RdmAttr::of_srx(&rx),
            target: TargetOf::NOTHING,
            secret: None,
            class: self.class,
            interfaces: None,
        };
        let ext = StreamEndpointExt::new(StreamEpKind::Srx, None, None);
        Ok(StreamEp::shared_rx(self.engine.clone(), identity, ext))
    }
}
