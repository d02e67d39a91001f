//! The cores of a domain.
use super::poll_scheduler::CoreActivity;
use crate::info::LnxCore;
use ofi_provider::abi::FI_ATOMIC;
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::core_provider::{CoreDomain, CoreWaiter};
use ofi_provider::error::Result;
use ofi_provider::info::InfoBuf;
use ofi_provider::sys::{Epoll, Interest};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A core of the domain.
#[derive(Debug)]
pub(crate) struct OpenedCore {
    /// Progress function for all endpoints of the core, if available; otherwise each endpoint is
    /// polled.
    pub(super) waiter: Option<CoreWaiter>,
    pub(crate) domain: Arc<CoreDomain>,
    pub(super) info: InfoBuf,
    pub(super) is_local: bool,
    /// Name of its fabric, used to select addresses for it.
    pub(super) fabric: Vec<u8>,
    pub(super) activity: Arc<CoreActivity>,
}

impl OpenedCore {
    /// Creates the state of a core with its domain opened from its info.
    pub(crate) fn new(domain: Arc<CoreDomain>, core: LnxCore) -> Self {
        let LnxCore { info, is_local } = core;
        let fabric =
            info.as_ref().fabric_name().map_or(Vec::new(), |name| name.to_bytes().to_vec());
        let waiter = CoreWaiter::open(&domain);
        let activity = Arc::<CoreActivity>::default();
        Self { waiter, domain, info, is_local, fabric, activity }
    }

    /// The name of its domain, for people.
    pub(super) fn domain_name(&self) -> String {
        let name = self.info.as_ref().domain_name();
        name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// Arms an idle core for a pause in polling, if its descriptor reports all events.
    pub(super) fn arm(&self) {
        self.activity.arm(|| self.waiter.as_ref().is_some_and(CoreWaiter::may_block));
    }

    /// Returns true if it has atomic operations.
    pub(crate) fn has_atomics(&self) -> bool {
        self.info.caps() & FI_ATOMIC != 0
    }
}

/// Descriptors of all cores. One system call checks all armed cores for events.
#[derive(Debug)]
pub(super) struct IdleCores {
    /// None if the kernel watches no more descriptors in this way: then each core is polled.
    epoll: Option<Epoll>,
}

impl IdleCores {
    pub(super) fn new(cores: &[OpenedCore]) -> Self {
        let watch = || -> Result<Epoll> {
            let epoll = Epoll::new()?;
            for (number, core) in cores.iter().enumerate() {
                if let Some(waiter) = &core.waiter {
                    epoll.add(waiter.fd(), number as u64, Interest::READ)?;
                }
            }
            Ok(epoll)
        };
        Self { epoll: watch().ok() }
    }

    /// Returns true if all idle cores except for the lead core are armed, and none of them has an event.
    pub(super) fn are_quiet(&self, cores: &[OpenedCore], lead: usize) -> bool {
        let Some(epoll) = &self.epoll else { return false };
        let mut others = cores.iter().enumerate().filter(|(number, _)| *number != lead);
        let mut are_quiet =
            others.all(|(_, core)| core.activity.is_active() || core.activity.is_armed());
        if are_quiet {
            // The descriptors of active cores may be readable at any time.
            let has_event = |core: &OpenedCore| core.activity.is_armed();
            let polled = epoll.wait(Some(Duration::ZERO), |event| {
                are_quiet &= !cores.get(event.token as usize).is_some_and(has_event);
            });
            are_quiet &= polled.is_ok();
        }
        are_quiet
    }
}

/// The name of the host, as it is in addresses.
pub(super) fn host_name() -> Vec<u8> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_ascii().to_vec()
}

/// Number of data types and of operations.
const NUMBERS: usize = 20;

/// Maximum lengths of atomic operations: those supported by every core opened in this process.
pub(super) struct AtomicLimits;

static LIMITS: [AtomicUsize; 3 * NUMBERS * NUMBERS] =
    [const { AtomicUsize::new(usize::MAX) }; 3 * NUMBERS * NUMBERS];

/// The operations of these numbers.
fn threshold_of(operation: Operation) -> &'static AtomicUsize {
    let (datatype, op) = (operation.datatype() as usize, operation.op() as usize);
    &LIMITS[(operation.kind() as usize * NUMBERS + datatype) * NUMBERS + op]
}

impl AtomicLimits {
    /// Records the capabilities of these cores.
    pub(super) fn note<'a>(domains: impl Iterator<Item = &'a Arc<CoreDomain>> + Clone) {
        let kinds = [AtomicKind::Base, AtomicKind::Fetch, AtomicKind::Compare];
        for (kind, number) in kinds
            .into_iter()
            .flat_map(|kind| (0..NUMBERS * NUMBERS).map(move |number| (kind, number as u32)))
        {
            let numbers = (number / NUMBERS as u32, number % NUMBERS as u32);
            let Ok(operation) = Operation::new(kind, numbers.0, numbers.1) else { continue };
            let least = domains.clone().map(|domain| domain.max_atomic(operation)).min();
            threshold_of(operation).fetch_min(least.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Most bytes of an operation; 0 if a core does not have it.
    pub(super) fn most(operation: Operation) -> usize {
        match threshold_of(operation).load(Ordering::Relaxed) {
            usize::MAX => 0,
            most => most,
        }
    }

    /// Most bytes of any operation.
    pub(super) fn most_of_all() -> usize {
        let known = LIMITS.iter().map(|most| most.load(Ordering::Relaxed));
        known.filter(|most| *most != usize::MAX).max().unwrap_or(0)
    }
}
