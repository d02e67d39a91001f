//! Settings of every domain from its info.
use crate::abi::{FI_ADDR_IB_UD, FI_SOCKADDR_IB, fi_ep_type, fi_progress, fi_threading};
use crate::addr::Addr;
use crate::av::AvSharing;
use crate::buf::SegmentLimit;
use crate::deferred;
use crate::device::DeviceInterfaces;
use crate::error::{Error, Result};
use crate::heap_range;
use crate::info::{EndpointLimits, InfoRef, ProviderOffer, version};
use crate::lock::{BiasedLock, Level};
use crate::mr::MrTable;
use crate::progress::{Progress, Thread};
use crate::provider::Provider;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The IP address an endpoint is to have; the unspecified one if `info` leaves it open.
pub fn local_addr(info: InfoRef<'_>) -> Result<SocketAddr> {
    Addr::of_info(info)?.ip()
}

/// The authorization key among a domain's attributes, if there is one. Programs of versions before 1.5
/// have none, and their attributes end before these fields. -FI_EINVAL: a length without a key, or
/// FI_AV_AUTH_KEY for its length.
pub fn domain_key(info: InfoRef<'_>, api: u32) -> Result<Option<&[u8]>> {
    given_key(api, || (info.domain().map(|domain| domain.auth_key_size), info.domain_auth_key()))
}

/// The same among an endpoint's attributes.
pub fn endpoint_key(info: InfoRef<'_>, api: u32) -> Result<Option<&[u8]>> {
    given_key(api, || (info.ep().map(|ep| ep.auth_key_size), info.ep_auth_key()))
}

fn given_key<'a>(
    api: u32,
    given: impl FnOnce() -> (Option<usize>, Option<&'a [u8]>),
) -> Result<Option<&'a [u8]>> {
    if api < version(1, 5) {
        return Ok(None);
    }
    match given() {
        (None | Some(0), _) => Ok(None),
        (Some(_), Some(key)) => Ok(Some(key)),
        (Some(_), None) => Err(Error::INVAL),
    }
}

/// Rejects the authorization keys of an info (fi_domain(3), fi_endpoint(3)), with a log message,
/// for a provider not using them: a program with a key considers its messages protected. Fails with
/// -FI_EINVAL. Programs of versions before 1.5 have no keys.
pub fn refuse_keys(provider: &'static Provider, info: InfoRef<'_>, api_version: u32) -> Result {
    let given = [
        (info.domain_auth_key(), info.domain().map_or(0, |domain| domain.auth_key_size)),
        (info.ep_auth_key(), info.ep().map_or(0, |ep| ep.auth_key_size)),
    ];
    let is_given = |(key, size): &(Option<&[u8]>, usize)| key.is_some() || *size > 0;
    if api_version < version(1, 5) || !given.iter().any(is_given) {
        return Ok(());
    }
    crate::log!(
        provider,
        WARN,
        DOMAIN,
        "auth_key is refused: the provider authenticates no messages"
    );
    Err(Error::INVAL)
}

/// Threading, progress, addresses and memory registration of a domain, and its
/// progress thread if it has one (fi_domain(3)).
#[derive(Debug)]
pub struct DomainSettings {
    /// Level of the domain's locks: the mutual exclusion of calls and threads of the provider.
    pub level: Level,
    /// The application serializes all calls (FI_THREAD_DOMAIN).
    promised: bool,
    /// True if the domain was opened for deferred work ([`deferred::CAPS`]).
    has_later: bool,
    /// The provider promised to progress by itself.
    pub automatic: bool,
    /// FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IB, FI_ADDR_IB_UD or FI_ADDR_STR.
    pub addr_format: u32,
    /// Permission for processes to share address vectors of the domain.
    pub(crate) sharing: AvSharing,
    /// Maximum number of segments of a transfer.
    pub segments: SegmentLimit,
    /// Limits for opening endpoints, and the provider offering them.
    limits: Option<(&'static Provider, EndpointLimits)>,
    /// The domain's registered memory regions.
    pub regions: Arc<MrTable>,
    thread: Mutex<Option<Thread>>,
    /// Progress source driven by the thread instead of the engine alone.
    attended: OnceLock<Weak<dyn Progress>>,
}

impl DomainSettings {
    /// Returns the settings requested by `info`. `manual`: no progress thread, regardless of
    /// `info`.
    pub fn new(info: InfoRef<'_>, manual: bool) -> Result<Self> {
        let attr = info.domain().ok_or(Error::INVAL)?;
        let manual = manual
            || attr.data_progress == fi_progress::FI_PROGRESS_MANUAL
            || attr.data_progress == fi_progress::FI_PROGRESS_CONTROL_UNIFIED;
        // Connections are made by reading an event queue, which belongs to no
        // domain: another thread may do that beside all calls for the domain.
        let events = info.ep_type() == fi_ep_type::FI_EP_MSG;
        let promised = !events && attr.threading == fi_threading::FI_THREAD_DOMAIN;
        // A general format (FI_SOCKADDR) says nothing: the address does.
        let addr_format = match info.addr_format() {
            format if [FI_ADDR_IB_UD as u32, FI_SOCKADDR_IB as u32].contains(&format) => format,
            _ => Addr::of_info(info)?.format(),
        };
        Ok(Self {
            level: if manual && promised { Level::Serialized } else { Level::Shared },
            promised,
            has_later: info.caps() & deferred::CAPS != 0,
            automatic: !manual,
            addr_format,
            sharing: AvSharing::Never,
            segments: SegmentLimit::default(),
            limits: None,
            regions: Arc::new(MrTable::new(attr.mr_mode)),
            thread: Mutex::new(None),
            attended: OnceLock::new(),
        })
    }

    /// Gives the domain memory of devices (FI_HMEM): regions and buffers may be there.
    #[must_use]
    pub fn with_devices(self, interfaces: DeviceInterfaces) -> Self {
        heap_range::find();
        let regions = Arc::new(self.regions.like().with_devices(interfaces));
        Self { regions, ..self }
    }

    /// Returns the interfaces to devices with memory for buffers of the domain; none without
    /// FI_HMEM.
    pub fn interfaces(&self) -> Option<DeviceInterfaces> {
        self.regions.interfaces()
    }

    /// Returns the regions of the domain if buffers may be in memory of devices.
    pub(crate) fn devices(&self) -> Option<Arc<MrTable>> {
        self.interfaces().map(|_| self.regions.clone())
    }

    /// Limits endpoints to these offers, and to the domain's own `info`.
    pub fn with_offers<'a>(
        self,
        provider: &'static Provider,
        offers: impl IntoIterator<Item = &'a ProviderOffer>,
        info: InfoRef<'_>,
    ) -> Self {
        let mut limits = EndpointLimits::of(offers);
        if limits.has_type(info) {
            limits.admit(info);
        }
        Self { limits: Some((provider, limits)), ..self }
    }

    /// Checks the info of a new endpoint. Fails with -FI_ENODATA, and a log message for each, if
    /// attributes exceed the offers.
    pub(crate) fn check_endpoint(&self, info: InfoRef<'_>) -> Result {
        let Some((provider, limits)) = &self.limits else { return Ok(()) };
        let mismatches = limits.check(info);
        for mismatch in &mismatches {
            crate::log!(*provider, WARN, EP_CTRL, "fi_endpoint refused: {mismatch}");
        }
        if mismatches.is_empty() { Ok(()) } else { Err(Error::NODATA) }
    }

    /// Logs the reason for the failed registration of a dma-buf.
    pub(crate) fn report_dmabuf(&self, error: Error) {
        let Some((provider, _)) = &self.limits else { return };
        let reason = match error {
            Error::OPNOTSUPP => "its exporter permits no mapping, and no device has its address",
            Error::ACCES => "the file permits no writing",
            Error::BADF => "there is no such file",
            Error::INVAL => {
                "the range is not within the file, or this is neither a dma-buf nor memory that cannot shrink"
            }
            _ => return crate::log!(*provider, WARN, MR, "fi_mr_regattr of a dma-buf: {error}"),
        };
        crate::log!(*provider, WARN, MR, "fi_mr_regattr of a dma-buf: {error}: {reason}");
    }

    /// Sets the provider's support for shared address vectors.
    pub fn with_vectors(self, sharing: AvSharing) -> Self {
        Self { sharing, ..self }
    }

    /// Sets the provider's maximum number of segments of a transfer and of a region, different from
    /// the defaults.
    pub fn with_segments(self, segments: SegmentLimit, of_region: usize) -> Self {
        let regions = Arc::new(self.regions.like().with_segments(of_region));
        Self { segments, regions, ..self }
    }

    /// Selects locks for a provider with threads entering as visitors ([`Lock::run_for_library`]): serialized
    /// calls of the application cost nothing despite these threads. Deferred work of a domain
    /// ([`crate::later`]) is no visit, so a domain with possible deferred work gets an ordinary
    /// lock.
    ///
    /// [`Lock::run_for_library`]: crate::lock::Lock::run_for_library
    pub fn with_visitors(self) -> Self {
        let automatic = self.automatic;
        self.admitting(automatic)
    }

    /// Like [`with_visitors`](Self::with_visitors), for a provider with own threads even with
    /// manual progress.
    pub fn with_helpers(self) -> Self {
        self.admitting(true)
    }

    fn admitting(mut self, any: bool) -> Self {
        if self.promised && any && !self.has_later {
            if let Some(biased_lock) = BiasedLock::new() {
                self.level = Level::Gated(biased_lock);
            }
        }
        self
    }

    /// Sets the source to be driven by the domain's progress thread, not running yet.
    pub(crate) fn attend(&self, source: &Arc<dyn Progress>) {
        let _ = self.attended.set(Arc::downgrade(source));
    }

    /// Starts the domain's progress thread, once, if progress is automatic.
    pub fn start_thread(&self, name: &str, engine: Weak<dyn Progress>) -> Result {
        if self.automatic { self.need_thread(name, engine) } else { Ok(()) }
    }

    /// Starts the domain's progress thread, once, despite manual progress: the application may
    /// sleep without any call making progress. Fails with -FI_ENOSYS if the application promised to
    /// serialize everything with its calls.
    pub fn need_thread(&self, name: &str, engine: Weak<dyn Progress>) -> Result {
        if matches!(self.level, Level::Serialized) {
            return Err(Error::NOSYS);
        }
        let mut thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if thread.is_none() {
            let engine = self.attended.get().cloned().unwrap_or(engine);
            *thread = Some(Thread::start(name, engine)?);
        }
        Ok(())
    }
}
