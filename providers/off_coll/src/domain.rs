//! Fabrics and domains.
use crate::OFF_COLL;
use crate::endpoint::OffloadEp;
use crate::info;
use core::ffi::CStr;
use ofi_provider::abi::FI_ADDR_STR;
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, Getinfo, NewDomain, NoPassiveEp, refuse_keys,
};
use ofi_provider::core_provider::PeerTransfers;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef};
use ofi_provider::lock::Level;
use ofi_provider::progress::{Activity, Progress};
use ofi_provider::sys::{Epoll, Interest};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A fabric, of which there is one.
#[derive(Debug)]
pub(crate) struct OffloadFabric;

impl Fabric for OffloadFabric {
    type PassiveEp = NoPassiveEp;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain> {
        refuse_keys(&OFF_COLL, info, api_version)?;
        let mut settings = DomainSettings::new(info, true)?;
        // The owner's threads come with the ends of transfers, whatever the application has promised.
        settings.level = Level::Shared;
        settings.addr_format = FI_ADDR_STR as u32;
        Ok(OffloadDomain { settings, progress: OffloadProgress::new()? }.into())
    }
}

impl Getinfo for OffloadFabric {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        info::getinfo(query)
    }
}

/// A domain.
#[derive(Debug)]
pub(crate) struct OffloadDomain {
    settings: DomainSettings,
    progress: Arc<OffloadProgress>,
}

impl Domain for OffloadDomain {
    type Endpoint = OffloadEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.progress.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn thread_name(&self) -> String {
        "ofi-off_coll".to_owned()
    }

    const COUNTS_BYTES: bool = false;

    fn has_atomics(&self) -> bool {
        false
    }

    fn endpoint(&self, _info: InfoRef<'_>) -> Result<OffloadEp> {
        // Without another provider's endpoint there is nothing by which to send.
        Err(Error::INVAL)
    }

    fn transfer_endpoint(
        &self,
        owner: Option<InfoRef<'_>>,
        transfers: Arc<PeerTransfers>,
    ) -> Result<OffloadEp> {
        if owner.and_then(|owner| owner.prov_name()).is_some_and(needs_its_own) {
            ofi_provider::log!(
                &OFF_COLL,
                WARN,
                EP_CTRL,
                "refused: the original's ofi_rxm uses private structures of the off_coll that it was built with. \
                 Ask for the ofi_rxm of this library, or for tcp, which have collectives of their own"
            );
            return Err(Error::NOSYS);
        }
        self.progress.add(&transfers)?;
        Ok(OffloadEp(transfers))
    }
}

/// Returns true if an owner with this name accesses private structures of its peer. This library's own `ofi_rxm`
/// asks for no `off_coll`.
fn needs_its_own(name: &CStr) -> bool {
    name.to_bytes().split(|byte| *byte == b';').any(|part| part == b"ofi_rxm")
}

/// Progress of a domain: receives that were not posted yet are posted. The library runs the steps of collectives.
#[derive(Debug)]
struct OffloadProgress {
    endpoints: Mutex<Vec<Weak<PeerTransfers>>>,
    epoll: Epoll,
    activity: Activity,
}

impl OffloadProgress {
    fn new() -> Result<Arc<Self>> {
        let (endpoints, activity) = (Mutex::default(), Activity::default());
        Ok(Arc::new(Self { endpoints, epoll: Epoll::new()?, activity }))
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<Weak<PeerTransfers>>> {
        self.endpoints.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add(&self, transfers: &Arc<PeerTransfers>) -> Result {
        self.epoll.add(transfers.wake_fd(), 0, Interest::READ)?;
        let mut endpoints = self.endpoints();
        endpoints.retain(|known| known.strong_count() != 0);
        endpoints.push(Arc::downgrade(transfers));
        Ok(())
    }
}

impl Progress for OffloadProgress {
    fn progress(&self) {
        self.activity.another();
        let endpoints = self.endpoints().clone();
        endpoints.iter().filter_map(Weak::upgrade).for_each(|transfers| transfers.post_again());
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_known_by_any_part_of_their_name() {
        assert!(needs_its_own(c"ofi_rxm") && needs_its_own(c"tcp;ofi_rxm"));
        assert!(!needs_its_own(c"tcp") && !needs_its_own(c"") && !needs_its_own(c"ofi_rxm2;tcp"));
    }
}
