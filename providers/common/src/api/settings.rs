//! What every domain is told by the info it is opened with.
use crate::abi::{FI_ADDR_IB_UD, FI_SOCKADDR_IB, fi_ep_type, fi_progress, fi_threading};
use crate::addr::Addr;
use crate::av::AvSharing;
use crate::buf::SegmentLimit;
use crate::error::{Error, Result};
use crate::info::{EndpointLimits, InfoRef, ProviderOffer, version};
use crate::later;
use crate::lock::{Gate, Level};
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

/// Refuses the authorization keys of an info (fi_domain(3), fi_endpoint(3)), with a line in the log, for a
/// provider that does nothing with them: a program that has given one takes its messages for protected.
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
    /// The level of the domain's locks: what keeps calls and threads of the provider apart.
    pub level: Level,
    /// The application serializes all calls (FI_THREAD_DOMAIN).
    promised: bool,
    /// The domain was opened for something that is done when no lock is held ([`later::CAPS`]).
    has_later: bool,
    /// The provider promised to progress by itself.
    pub automatic: bool,
    /// FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IB, FI_ADDR_IB_UD or FI_ADDR_STR.
    pub addr_format: u32,
    /// Whether processes may share address vectors of the domain.
    pub(crate) sharing: AvSharing,
    /// How many segments a transfer may have.
    pub segments: SegmentLimit,
    /// What endpoints may be opened with, and the provider that offers it.
    limits: Option<(&'static Provider, EndpointLimits)>,
    /// The domain's registered memory regions.
    pub regions: Arc<MrTable>,
    thread: Mutex<Option<Thread>>,
    /// The source of progress that the thread drives instead of the engine alone.
    attended: OnceLock<Weak<dyn Progress>>,
}

impl DomainSettings {
    /// The settings that `info` asks for. `manual`: no progress thread, whatever `info` says.
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
            has_later: info.caps() & later::CAPS != 0,
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

    /// For a provider whose endpoints are opened with no more than is in these offers, or in the
    /// domain's own `info`.
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

    /// Checks what an endpoint is opened with: -FI_ENODATA, and a line in the log for each, if
    /// attributes are beyond what is offered.
    pub(crate) fn check_endpoint(&self, info: InfoRef<'_>) -> Result {
        let Some((provider, limits)) = &self.limits else { return Ok(()) };
        let refusals = limits.check(info);
        for refusal in &refusals {
            crate::log!(*provider, WARN, EP_CTRL, "fi_endpoint refused: {refusal}");
        }
        if refusals.is_empty() { Ok(()) } else { Err(Error::NODATA) }
    }

    /// For a provider that says what address vectors may be.
    pub fn with_vectors(self, sharing: AvSharing) -> Self {
        Self { sharing, ..self }
    }

    /// For a provider that offers other numbers of segments than the usual ones, of a transfer and of a
    /// region.
    pub fn with_segments(self, segments: SegmentLimit, of_region: usize) -> Self {
        let regions = Arc::new(self.regions.like().with_segments(of_region));
        Self { segments, regions, ..self }
    }

    /// For a provider whose own threads come as visitors ([`Lock::visit`]): calls
    /// that the application serializes cost nothing although there are such. What a
    /// domain does later ([`crate::later`]) is no visit, so one that may have
    /// something to do gets an ordinary lock.
    ///
    /// [`Lock::visit`]: crate::lock::Lock::visit
    pub fn with_visitors(self) -> Self {
        let automatic = self.automatic;
        self.admitting(automatic)
    }

    /// As [`with_visitors`](Self::with_visitors), of a provider that has threads of its own with
    /// manual progress as well.
    pub fn with_helpers(self) -> Self {
        self.admitting(true)
    }

    fn admitting(mut self, any: bool) -> Self {
        if self.promised
            && any
            && !self.has_later
            && let Some(gate) = Gate::new()
        {
            self.level = Level::Gated(gate);
        }
        self
    }

    /// Sets what the domain's progress thread, which does not run yet, is to drive.
    pub(crate) fn attend(&self, source: &Arc<dyn Progress>) {
        let _ = self.attended.set(Arc::downgrade(source));
    }

    /// Starts the domain's progress thread, once, if progress is automatic.
    pub fn start_thread(&self, name: &str, engine: Weak<dyn Progress>) -> Result {
        if self.automatic { self.need_thread(name, engine) } else { Ok(()) }
    }

    /// Starts the domain's progress thread, once, although progress is manual:
    /// the application may sleep where no call of its own makes progress.
    /// -FI_ENOSYS when it promised that nothing runs beside its calls.
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
