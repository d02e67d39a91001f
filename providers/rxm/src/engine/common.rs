//! State shared by the endpoints of a domain.
use super::conn_limit::ConnCounts;
use crate::config::RxmConfig;
use crate::provider::RXM;
use crate::wire::FlowControl;
use crate::wire::HEADER_LEN;
use ofi_provider::abi::FI_PROTO_IWARP;
use ofi_provider::api::DomainSettings;
use ofi_provider::buf::SendBuf;
use ofi_provider::core_provider::{self, CoreBuf};
use ofi_provider::device::BouncePool;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::lock::Level;
use ofi_provider::mr::MrTable;
use std::sync::Arc;
use std::time::Instant;

/// The time now; in a simulated world the world's time.
#[inline]
pub(super) fn clock() -> Instant {
    #[cfg(test)]
    return ofi_simulation::here::now();
    #[cfg(not(test))]
    Instant::now()
}

/// Returns the number distinguishing this process from others for peers.
pub(super) fn process_id() -> u32 {
    #[cfg(test)]
    if let Some(pid) = ofi_simulation::here::pid() {
        return pid;
    }
    std::process::id()
}

/// Minimum receive buffers of a connection with credit-based flow control. A packet announcing more
/// uses one itself: with fewer, each announcement would be answered by another, endlessly.
const LEAST_COUNTED: usize = 4;

/// State shared by the endpoints of a domain.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) domain: Arc<core_provider::CoreDomain>,
    /// The core's info, to make those of its endpoints of.
    pub(crate) info: InfoBuf,
    pub(crate) config: RxmConfig,
    pub(crate) level: Level,
    /// Core's wait set containing all of its queues, if the core has wait sets.
    pub(super) wait_set: Option<Arc<core_provider::CoreWaitSet>>,
    /// The application's regions.
    pub(super) regions: Arc<MrTable>,
    /// Maximum packet size copied at once by the core.
    pub(super) core_inject: usize,
    /// Most segments of one transfer of the core's.
    pub(super) core_iov: usize,
    /// Host memory for copies of memory of devices, if the domain has FI_HMEM.
    pub(super) bounce: Option<Arc<BouncePool>>,
    /// Connections of all endpoints.
    pub(super) conn_counts: ConnCounts,
    /// The core can report the delivery of a message to the peer's core.
    pub(super) core_delivers: bool,
    /// Generator of keys for regions registered by this provider, if the core does not choose them.
    pub(super) keys: core_provider::CoreKeys,
    /// Peers count each other's receives, so no message is sent without one: over this core such a
    /// message ends the connection.
    pub(super) flow_control: bool,
    /// Connections may share receive buffers: only if the core reports the connection of a received
    /// message. The content of a message itself may be forged.
    pub(super) may_share: bool,
}

impl Common {
    pub(crate) fn new(
        domain: Arc<core_provider::CoreDomain>,
        info: InfoBuf,
        config: RxmConfig,
        settings: &DomainSettings,
    ) -> Self {
        let (core_inject, core_iov) = (info.tx().inject_size, info.tx().iov_limit);
        let keys = core_provider::CoreKeys::new(info.domain().mr_key_size);
        let (level, regions) = (settings.level.clone(), settings.regions.clone());
        let core = info
            .as_ref()
            .prov_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let wait_set = match config.waits_by_fd(&core) {
            true => None,
            false => core_provider::CoreWaitSet::open(domain.fabric()).ok(),
        };
        let (limit, timeout) = (config.hmem_bounce, config.hmem_timeout);
        let bounce = settings.interfaces().map(|all| BouncePool::new(all, limit, timeout));
        let iwarp = info.as_ref().ep().is_some_and(|ep| ep.protocol == FI_PROTO_IWARP as u32);
        // Shared receives cannot be promised to one peer, and of a single receive nothing would be
        // left to promise.
        let few = config.rx_buffers(false) < 2;
        let notifies = || {
            let mut any = info.as_ref().to_owned()?;
            any.set_src_addr(None)?;
            Ok::<_, Error>(core_provider::CoreEndpoint::gives_source(&domain, &any))
        };
        let notifies = config.use_srx != Some(false) && notifies().unwrap_or(false);
        let flow_control = iwarp && !(notifies && config.use_srx == Some(true)) && !few;
        let may_share = notifies && !flow_control;
        if config.use_srx == Some(true) && !notifies {
            ofi_provider::log!(
                &RXM,
                WARN,
                DOMAIN,
                "receive buffers are not shared, although FI_OFI_RXM_USE_SRX says so: {core} does \
                 not tell on which connection a message came"
            );
        }
        Self {
            domain,
            info,
            config,
            level,
            wait_set,
            regions,
            core_inject,
            core_iov,
            // Over iWARP a transfer is complete as soon as it was sent.
            core_delivers: !iwarp,
            keys,
            flow_control,
            may_share,
            bounce,
            conn_counts: ConnCounts::of_process(),
        }
    }

    /// Returns a key unlikely to be chosen by an application, and not guessable by a peer.
    pub(super) fn key(&self) -> u64 {
        self.keys.draw()
    }

    /// Copies the application's data to a buffer like [`CoreBuf::copy_of`], also from memory of a
    /// device: then the call waits for the copies.
    pub(super) fn copy_of(&self, buf: &SendBuf, to: &mut CoreBuf) -> Result<SendBuf> {
        match &self.bounce {
            Some(pool) if buf.is_device() => to.copy_of_device(buf, pool),
            _ => to.copy_of(buf),
        }
    }

    /// A new buffer for one packet.
    pub(super) fn buffer(&self) -> Result<CoreBuf> {
        self.domain.buffer(HEADER_LEN + self.config.eager_limit, || self.key())
    }

    /// Returns the number of receive buffers of one endpoint, or of all endpoints sharing them.
    pub(super) fn rx_buffers(&self, shared: bool) -> usize {
        let buffers = self.config.rx_buffers(shared);
        if self.flow_control && !shared { buffers.max(LEAST_COUNTED) } else { buffers }
    }

    /// Returns the flow control told to peers.
    pub(super) fn flow_control(&self) -> FlowControl {
        if self.flow_control { FlowControl::On } else { FlowControl::Off }
    }
}
