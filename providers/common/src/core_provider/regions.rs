//! Memory registered with several core providers under one key, so peers can reach it over any of
//! them.
use super::{CoreDomain, CoreKeys, CoreRegistration, MAX_KEYS};
use crate::abi::{FI_KEY_NOTAVAIL, FI_MR_BASIC, FI_MR_VIRT_ADDR};
use crate::error::{Error, Result};
use crate::mr::{Backing, Count, RegionBacking, RegionRequest, Unbacked, grants_peers};
use core::ffi::{c_int, c_void};
use libc::iovec;
use std::sync::{Arc, OnceLock};

/// The application's regions, as the tables of several domains have them registered.
#[derive(Debug)]
pub struct LinkedRegions {
    domains: Vec<Arc<CoreDomain>>,
    /// True if peers address memory by its virtual address, even with core providers not requiring
    /// it.
    virtual_addr: bool,
    /// The keys, if they are the provider's to choose.
    keys: Option<CoreKeys>,
}

impl LinkedRegions {
    /// Returns regions of an application with this `mr_mode`, in these domains, with keys of
    /// `key_size` bytes.
    pub fn new(domains: Vec<Arc<CoreDomain>>, mr_mode: c_int, key_size: usize) -> Self {
        let basic = mr_mode == FI_MR_BASIC;
        let keys = basic.then(|| CoreKeys::new(key_size));
        Self { domains, virtual_addr: basic || mr_mode & FI_MR_VIRT_ADDR != 0, keys }
    }

    fn register_as(&self, wanted: &RegionRequest, key: u64) -> Result<LinkedRegion> {
        let RegionRequest { base, len, access, offset, .. } = *wanted;
        let iov = iovec { iov_base: base as *mut c_void, iov_len: len };
        let offset = if self.virtual_addr { base as u64 } else { offset };
        let of = |domain: &Arc<CoreDomain>| {
            let region = domain.register(iov, access, offset, key)?;
            // A core that chooses keys by itself cannot share one with others.
            let registered = CoreRegistration { region, cntr: OnceLock::new() };
            if registered.region.key() == key { Ok(registered) } else { Err(Error::OPNOTSUPP) }
        };
        self.domains.iter().map(of).collect::<Result<Vec<_>>>().map(LinkedRegion)
    }
}

impl Backing for LinkedRegions {
    unsafe fn register(&self, wanted: &RegionRequest) -> Result<(u64, Box<dyn RegionBacking>)> {
        // Transfers pass no core a descriptor of the application's, so cores know of what peers use alone.
        if !grants_peers(wanted.access) {
            return Ok((FI_KEY_NOTAVAIL, Box::new(Unbacked)));
        }
        let Some(keys) = &self.keys else {
            return Ok((wanted.key, Box::new(self.register_as(wanted, wanted.key)?)));
        };
        for _ in 0..MAX_KEYS {
            let key = keys.draw();
            match self.register_as(wanted, key) {
                Err(Error::NOKEY) => {}
                other => return Ok((key, Box::new(other?))),
            }
        }
        Err(Error::NOKEY)
    }
}

/// One region, at all cores.
struct LinkedRegion(Vec<CoreRegistration>);

impl RegionBacking for LinkedRegion {
    fn count(&self) -> Result<Count> {
        let counts = self.0.iter().map(CoreRegistration::count).collect::<Result<Vec<Count>>>()?;
        Ok(Box::new(move || counts.iter().map(|count| count()).sum()))
    }
}
