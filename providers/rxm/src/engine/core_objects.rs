//! Core provider's objects of an endpoint.
use super::common::Common;
use super::pending::RxmUnexpected;
use ofi_provider::abi::{FI_REMOTE_WRITE, FI_SHARED_CONTEXT};
use ofi_provider::addr::Addr;
use ofi_provider::core_provider;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::rx_matcher::RxMatcher;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Paths to peers of this host, permitted to a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPaths {
    /// Shared memory (FI_OPT_SHARED_MEMORY_PERMITTED).
    pub(crate) memory: bool,
    /// Devices of peers may read memory of devices (FI_OPT_FI_HMEM_P2P).
    pub(crate) p2p: bool,
}

impl LocalPaths {
    pub(crate) const ALL: Self = Self { memory: true, p2p: true };
}

/// Core provider's objects of an endpoint. They are closed in the order of the fields.
#[derive(Debug)]
pub(super) struct RxmCore {
    /// Listens for calls; none on the contexts of a scalable endpoint but the first.
    pub(super) pep: Option<core_provider::CorePassiveEp>,
    pub(super) srx: Option<Arc<core_provider::SharedRx>>,
    /// Core's counters of peers' reads and writes, if requested by the application.
    pub(super) cntrs: Vec<(Arc<core_provider::CoreCntr>, u64)>,
    pub(super) cq: Arc<core_provider::CoreCq>,
    pub(super) eq: Arc<core_provider::CoreEq>,
}

impl RxmCore {
    /// Returns true if connections share receive buffers.
    pub(super) fn is_shared(&self) -> bool {
        self.srx.is_some()
    }

    /// Opens the core's receive context shared by all connections, if it is wanted and the core has
    /// one. `info` is changed accordingly.
    pub(super) fn open_srx(
        common: &Common,
        cq: &Arc<core_provider::CoreCq>,
        info: &mut InfoBuf,
    ) -> Result<Option<Arc<core_provider::SharedRx>>> {
        let wanted = common.config.use_srx;
        if !common.may_share {
            return Ok(None);
        }
        let mut attr = *info.rx();
        attr.size = common.rx_buffers(true);
        match core_provider::SharedRx::open(cq, &attr) {
            Ok(srx) => {
                info.edit_ep(|ep| ep.rx_ctx_cnt = FI_SHARED_CONTEXT);
                Ok(Some(srx))
            }
            Err(error) if wanted == Some(true) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// The descriptors of the core's queues, if no wait set has these.
    pub(super) fn fds(&self, common: &Common) -> [Option<RawFd>; 2] {
        if common.wait_set.is_none() { [self.cq.fd(), self.eq.fd()] } else { [None; 2] }
    }
}

/// Holds the address assigned to the endpoint (fi_setname), until the endpoint listens.
#[derive(Default)]
pub(super) struct ReservedPort(Option<core_provider::CorePassiveEp>);

impl ReservedPort {
    /// Reserves the address, with a port if none is given, and returns the reserved one. A core
    /// without this feature changes nothing.
    pub(super) fn reserve(&mut self, common: &Common, local: Addr) -> Result<Addr> {
        self.0 = None;
        match core_provider::CorePassiveEp::reserve(common.domain.fabric(), &common.info, &local) {
            Ok(reserved) => {
                let local = Addr::from_bytes(&reserved.name()?)?;
                self.0 = Some(reserved);
                Ok(local)
            }
            Err(Error::NOSYS) => Ok(local),
            Err(error) => Err(error),
        }
    }

    /// The core's passive endpoint for calls.
    pub(super) fn listen(
        &mut self,
        fabric: &Arc<core_provider::CoreFabric>,
        info: &InfoBuf,
        eq: &Arc<core_provider::CoreEq>,
    ) -> Result<core_provider::CorePassiveEp> {
        // The reserved port is released only after the passive endpoint listens at it, if the core
        // supports that.
        let previous = self.0.take();
        match core_provider::CorePassiveEp::listen(fabric, info, eq) {
            Err(Error::ADDRINUSE) if previous.is_some() => {
                drop(previous);
                core_provider::CorePassiveEp::listen(fabric, info, eq)
            }
            made => made,
        }
    }
}

/// Counts of peers' reads and writes already passed from the core's counters to the application's.
#[derive(Default)]
pub(super) struct PeerCounts([u64; 2]);

impl PeerCounts {
    /// Adds the core's counts of peers' accesses to the application's counters.
    #[inline(never)]
    pub(super) fn pass_on(&mut self, core: &RxmCore, matcher: &RxMatcher<RxmUnexpected>) {
        for (cntr, flag) in &core.cntrs {
            let wrote = *flag == FI_REMOTE_WRITE;
            let (now, passed) = (cntr.read(), &mut self.0[usize::from(wrote)]);
            (*passed..now).for_each(|_| matcher.completions.peer_accessed(wrote, 0));
            *passed = now;
        }
    }
}
