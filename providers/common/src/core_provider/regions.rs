//! The application's regions, registered with one core provider, or with several under one key for
//! peers to reach them over any of them.
use super::call::bind;
use super::cntr::CoreCntr;
use super::domain::CoreDomain;
use super::memory::{CoreMemory, CoreRegion, MAX_KEYS};
use crate::abi::{self, FI_KEY_NOTAVAIL, FI_MR_BASIC, FI_MR_VIRT_ADDR};
use crate::error::{Error, Result};
use crate::mr::{Backing, Count, RegionBacking, RegionRequest, Unbacked, grants_peers};
use core::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The application's regions, as a domain's table has them registered.
#[derive(Debug)]
pub struct Regions {
    domain: Arc<CoreDomain>,
    /// Keys for FI_MR_BASIC over a core provider with fewer requirements: the keys are chosen here,
    /// and addresses are virtual all the same.
    basic: Option<CoreKeys>,
}

/// Keys not guessable by peers, for a core provider with keys chosen by its user.
#[derive(Debug)]
pub struct CoreKeys {
    drawn: AtomicU64,
    secret: RandomState,
    /// Valid bits of the core provider's keys.
    mask: u64,
}

impl CoreKeys {
    /// Returns keys for a core provider with keys of this many bytes (domain_attr.mr_key_size).
    pub fn new(key_size: usize) -> Self {
        let mask = match u32::try_from(key_size) {
            Ok(size @ 1..8) => (1 << (8 * size)) - 1,
            _ => u64::MAX,
        };
        Self { drawn: AtomicU64::new(0), secret: RandomState::new(), mask }
    }

    /// Returns another key, possibly in use.
    pub fn draw(&self) -> u64 {
        let key = self.secret.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed)) & self.mask;
        // FI_KEY_NOTAVAIL is no key.
        if key == abi::FI_KEY_NOTAVAIL { self.draw() } else { key }
    }
}

impl Regions {
    /// Returns regions of an application with this `mr_mode`, registered in this domain, with keys
    /// of `key_size` bytes.
    pub fn new(domain: Arc<CoreDomain>, mr_mode: c_int, key_size: usize) -> Self {
        let basic = mr_mode == abi::FI_MR_BASIC && !domain.has_virt_addr();
        Self { domain, basic: basic.then(|| CoreKeys::new(key_size)) }
    }
}

impl Backing for Regions {
    unsafe fn register(&self, wanted: &RegionRequest) -> Result<(u64, Box<dyn RegionBacking>)> {
        let RegionRequest { base, access, offset, key, .. } = *wanted;
        // Transfers pass the core no descriptor of the application's, so it knows of what peers use alone.
        if !grants_peers(access) {
            return Ok((abi::FI_KEY_NOTAVAIL, Box::new(Unbacked)));
        }
        let memory = CoreMemory::of_region(wanted);
        let region = match &self.basic {
            None => self.domain.register(memory, access, offset, key)?,
            Some(keys) => self.domain.register_any(memory, access, base as u64, || keys.draw())?,
        };
        Ok((region.key(), Box::new(CoreRegistration::new(region))))
    }
}

/// One of the application's regions. Fields close in this order.
struct CoreRegistration {
    region: CoreRegion,
    /// The counter of peers' writes to the region.
    cntr: OnceLock<Arc<CoreCntr>>,
}

impl CoreRegistration {
    fn new(region: CoreRegion) -> Self {
        Self { region, cntr: OnceLock::new() }
    }
}

impl RegionBacking for CoreRegistration {
    fn count(&self) -> Result<Count> {
        let cntr = CoreCntr::open(self.region.domain())?;
        let (mr, to) = (self.region.fid(), cntr.fid());
        // SAFETY: both are open, and on one domain.
        unsafe { bind(mr, to, abi::FI_REMOTE_WRITE) }?;
        self.cntr.set(cntr.clone()).map_err(|_| Error::INVAL)?;
        Ok(Box::new(move || cntr.read()))
    }
}

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
        let RegionRequest { base, access, offset, .. } = *wanted;
        let memory = CoreMemory::of_region(wanted);
        let offset = if self.virtual_addr { base as u64 } else { offset };
        let of = |domain: &Arc<CoreDomain>| {
            let region = domain.register(memory, access, offset, key)?;
            // A core that chooses keys by itself cannot share one with others.
            let registered = CoreRegistration::new(region);
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
