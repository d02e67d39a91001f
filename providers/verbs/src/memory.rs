//! Registered memory: the application's regions on the device, and buffers used without a region.
use crate::config::config;
use crate::hmem::{self, say};
use crate::provider::VERBS;
use crate::raw::{self, ibv_odp_transport_cap_bits as odp};
use crate::sys::{IbvRegion, Pd, VerbsDevice, access};
use core::ffi::c_void;
use ofi_provider::abi::*;
use ofi_provider::error::{Error, Result};
use ofi_provider::mr::{Backing, Count, MemoryKind, RegionBacking, RegionRequest};
use ofi_provider::mr_cache::{Cache, Cached, Registrar};
use std::sync::Arc;

/// On-demand paging, as a domain has it: memory is registered without its pages being
/// there, and the device asks for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OnDemand {
    /// All of the address space can be one region.
    implicit: bool,
    /// Peers' atomic operations may access non-resident pages.
    atomics: bool,
}

impl OnDemand {
    /// Chooses on-demand paging for a domain with these capabilities, of connections or of
    /// datagrams, if the user requests it and the device supports it. Logs the reason if only the
    /// device does not.
    pub(crate) fn choose(device: VerbsDevice, caps: u64, datagrams: bool) -> Result<Option<Self>> {
        if !config().use_odp {
            return Ok(None);
        }
        let needs = needs(caps, datagrams, device.attr()?.max_srq > 0);
        let found = Self::of(&device.odp_caps(), datagrams, needs).inspect_err(|lacks| {
            let name = device.name().to_string_lossy();
            ofi_provider::log!(
                &VERBS,
                WARN,
                MR,
                "{name}: no on-demand paging (FI_VERBS_USE_ODP), the device has {lacks}"
            );
        });
        // An iWARP device lets peers write to any memory writable by the device itself.
        Ok(found.ok().map(|found| Self { implicit: found.implicit && !device.is_iwarp(), ..found }))
    }

    /// Returns the features provided by a device with these capabilities to a domain with these
    /// needs; the error names the missing ones.
    fn of(
        caps: &raw::ibv_odp_caps,
        datagrams: bool,
        needs: odp,
    ) -> core::result::Result<Self, String> {
        let general = |bit: raw::ibv_odp_general_caps| caps.general_caps & u64::from(bit.0) != 0;
        if !general(raw::ibv_odp_general_caps::IBV_ODP_SUPPORT) {
            return Err("none".to_owned());
        }
        let kinds = &caps.per_transport_caps;
        let has = if datagrams { kinds.ud_odp_caps } else { kinds.rc_odp_caps };
        let lacks = needs.0 & !has;
        if lacks != 0 {
            return Err(format!(
                "none for all that is needed: it lacks {lacks:#x} of {:#x}",
                needs.0
            ));
        }
        Ok(Self {
            implicit: general(raw::ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT),
            atomics: has & odp::IBV_ODP_SUPPORT_ATOMIC.0 != 0,
        })
    }

    /// Returns the device rights of a region to be given `rights`.
    fn rights(self, rights: u32) -> u32 {
        let none = if self.atomics { 0 } else { access::REMOTE_ATOMIC };
        (rights & !none) | access::ON_DEMAND
    }
}

/// Returns the operations possibly accessing memory of a domain, with or without shared receives.
fn needs(caps: u64, datagrams: bool, shared: bool) -> odp {
    let mut needs = odp::IBV_ODP_SUPPORT_SEND | odp::IBV_ODP_SUPPORT_RECV;
    if datagrams {
        return needs;
    }
    needs |= odp::IBV_ODP_SUPPORT_READ | odp::IBV_ODP_SUPPORT_WRITE;
    if shared {
        needs |= odp::IBV_ODP_SUPPORT_SRQ_RECV;
    }
    if caps & FI_ATOMIC != 0 {
        needs |= odp::IBV_ODP_SUPPORT_ATOMIC;
    }
    needs
}

/// Registers memory with a device, for the cache.
#[derive(Debug)]
pub(crate) struct OfDevice(Arc<Pd>);

impl Registrar for OfDevice {
    type Region = IbvRegion;
    /// Access rights, as ibv_reg_mr(3) has them.
    type Kind = u32;

    fn register(&self, addr: usize, len: usize, rights: u32) -> Result<IbvRegion> {
        register(&self.0, addr, len, rights)
    }

    fn serves(have: u32, want: u32) -> bool {
        have & want == want
    }
}

/// Registers memory; logs the relevant limit on failure.
fn register(pd: &Arc<Pd>, addr: usize, len: usize, rights: u32) -> Result<IbvRegion> {
    IbvRegion::new(pd, addr, len, with_answers(pd, rights)).inspect_err(|error| {
        let limit = match locked_limit() {
            Some(limit) => format!("; RLIMIT_MEMLOCK is {limit} bytes (ulimit -l)"),
            None => String::new(),
        };
        say(&format!("cannot register {len} bytes at {addr:#x}: {error}{limit}"));
    })
}

/// Returns these rights, and the additional ones required by the device for responses.
fn with_answers(pd: &Pd, rights: u32) -> u32 {
    if pd.1.is_iwarp() && rights & access::LOCAL_WRITE != 0 {
        // The answer to a read is a write of the peer's there.
        return rights | access::REMOTE_WRITE;
    }
    rights
}

/// Returns the limit of this process on locked bytes, if there is one.
fn locked_limit() -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the structure.
    let known = unsafe { libc::getrlimit64(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM64_INFINITY).then_some(limit.rlim_cur)
}

/// The memory of a domain.
#[derive(Debug)]
pub(crate) struct VerbsMemory {
    pd: Arc<Pd>,
    on_demand: Option<OnDemand>,
    /// Regions may be in memory of accelerators.
    hmem: bool,
    own: Own,
}

/// Memory of this process's own transfers, not named by peers.
#[derive(Debug)]
enum Own {
    /// Registered at its first use, and cached.
    Cached(Arc<Cache<OfDevice>>),
    /// Registered already, as all of the address space is.
    Whole(IbvRegion),
}

impl VerbsMemory {
    /// Rights of memory written by the device.
    pub(crate) const WRITABLE: u32 = access::LOCAL_WRITE;

    pub(crate) fn open(pd: &Arc<Pd>, on_demand: Option<OnDemand>, hmem: bool) -> Arc<Self> {
        let whole = on_demand.filter(|on_demand| on_demand.implicit).and_then(|_| {
            let rights = access::ON_DEMAND | Self::WRITABLE;
            let whole = IbvRegion::new(pd, 0, usize::MAX, rights);
            let failed = |error: &Error| say(&format!("no implicit on-demand paging: {error}"));
            whole.inspect_err(failed).ok()
        });
        let cached = || Own::Cached(Cache::open(&VERBS, OfDevice(pd.clone())));
        let own = whole.map_or_else(cached, Own::Whole);
        Arc::new(Self { pd: pd.clone(), on_demand, hmem, own })
    }

    /// Returns the local key of memory not named by peers. It is valid until the domain closes or
    /// until the returned reference is dropped.
    pub(crate) fn get(
        &self,
        addr: usize,
        len: usize,
        rights: u32,
    ) -> Result<(u32, Option<Cached<OfDevice>>)> {
        match &self.own {
            Own::Whole(region) => Ok((region.lkey(), None)),
            Own::Cached(cache) => {
                let region = cache.get(addr, len, rights)?;
                Ok((region.lkey(), Some(region)))
            }
        }
    }

    /// Returns the device rights of a region in system memory to be given these rights.
    fn rights(&self, rights: u32) -> u32 {
        self.on_demand.map_or(rights, |on_demand| on_demand.rights(rights))
    }

    fn of_dmabuf(
        &self,
        file: (i32, u64),
        wanted: &RegionRequest,
        rights: u32,
    ) -> Result<IbvRegion> {
        let RegionRequest { base, len, .. } = *wanted;
        let rights = with_answers(&self.pd, rights);
        IbvRegion::of_dmabuf(&self.pd, file, base, len, rights).inspect_err(|error| {
            let (fd, offset) = file;
            say(&format!(
                "cannot register {len} bytes at {base:#x}, from byte {offset} of dma-buf {fd} on: {error}"
            ));
        })
    }
}

/// Mark in results of fi_mr_desc(3), distinguishing a key of zero from no key. Addresses of 32 bits have
/// no space for it.
const DESC: usize = match 1_usize.checked_shl(32) {
    Some(mark) => mark,
    None => 0,
};

/// A region of the application's, until this is dropped.
struct DeviceRegion {
    lkey: u32,
    /// For local transfers only: an earlier registration is reused.
    _shared: Option<Cached<OfDevice>>,
    /// For peers, not permitted to reach adjacent memory, or for memory other than the system's.
    _alone: Option<IbvRegion>,
}

impl Backing for VerbsMemory {
    unsafe fn register(&self, wanted: &RegionRequest) -> Result<(u64, Box<dyn RegionBacking>)> {
        let RegionRequest { base, len, access: asked, .. } = *wanted;
        let remote = asked & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0;
        let mut rights = 0;
        if asked & (FI_RECV | FI_READ | FI_REMOTE_WRITE) != 0 {
            rights |= access::LOCAL_WRITE;
        }
        if asked & FI_REMOTE_READ != 0 {
            rights |= access::REMOTE_READ;
        }
        if asked & FI_REMOTE_WRITE != 0 {
            rights |= access::REMOTE_WRITE;
            if !self.pd.1.is_iwarp() {
                rights |= access::REMOTE_ATOMIC;
            }
        }
        let region = match wanted.kind {
            MemoryKind::System if !remote => {
                let (lkey, shared) = self.get(base, len, self.rights(rights))?;
                let region = DeviceRegion { lkey, _shared: shared, _alone: None };
                return Ok((FI_KEY_NOTAVAIL, Box::new(region)));
            }
            MemoryKind::System => register(&self.pd, base, len, self.rights(rights))?,
            MemoryKind::Dmabuf(file) => self.of_dmabuf((file.fd, file.offset), wanted, rights)?,
            MemoryKind::Device(iface) => {
                let file = hmem::export(iface, base, len)?;
                self.of_dmabuf((file.fd, file.offset), wanted, rights)?
            }
        };
        let key = if remote { u64::from(region.rkey()) } else { FI_KEY_NOTAVAIL };
        let lkey = region.lkey();
        Ok((key, Box::new(DeviceRegion { lkey, _shared: None, _alone: Some(region) })))
    }

    fn hmem(&self) -> bool {
        self.hmem
    }
}

impl RegionBacking for DeviceRegion {
    fn count(&self) -> Result<Count> {
        // Devices do not tell of peers' writes.
        Err(Error::NOSYS)
    }

    fn desc(&self) -> *mut c_void {
        (DESC | self.lkey as usize) as *mut c_void
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raw::ibv_odp_general_caps as general_caps;

    /// Returns the device capabilities with this support of on-demand paging.
    fn caps(general: u32, rc: odp, ud: odp) -> raw::ibv_odp_caps {
        // SAFETY: numbers only.
        let mut caps: raw::ibv_odp_caps = unsafe { std::mem::zeroed() };
        caps.general_caps = u64::from(general);
        caps.per_transport_caps.rc_odp_caps = rc.0;
        caps.per_transport_caps.ud_odp_caps = ud.0;
        caps
    }

    const ON: u32 = general_caps::IBV_ODP_SUPPORT.0;
    const IMPLICIT: u32 = general_caps::IBV_ODP_SUPPORT_IMPLICIT.0;
    const MSG: odp = odp(odp::IBV_ODP_SUPPORT_SEND.0 | odp::IBV_ODP_SUPPORT_RECV.0);
    const RMA: odp = odp(MSG.0 | odp::IBV_ODP_SUPPORT_READ.0 | odp::IBV_ODP_SUPPORT_WRITE.0);

    #[test]
    fn a_device_without_on_demand_paging_or_a_part_of_it_is_used_without() {
        let needs = needs(FI_MSG | FI_RMA, false, false);
        assert_eq!(needs.0, RMA.0);
        let of = |general, rc| OnDemand::of(&caps(general, rc, odp(0)), false, needs);
        assert!(of(0, odp(!0)).is_err_and(|lacks| lacks == "none"));
        assert!(of(IMPLICIT, odp(!0)).is_err());
        assert!(of(ON, MSG).is_err_and(|lacks| lacks.contains("lacks 0xc of 0xf")));
        assert_eq!(of(ON, RMA), Ok(OnDemand { implicit: false, atomics: false }));
        assert_eq!(of(ON | IMPLICIT, odp(!0)), Ok(OnDemand { implicit: true, atomics: true }));
    }

    #[test]
    fn shared_receives_and_atomic_operations_need_more_and_datagrams_less() {
        assert_eq!(needs(FI_MSG, false, true).0, RMA.0 | odp::IBV_ODP_SUPPORT_SRQ_RECV.0);
        assert_eq!(needs(FI_ATOMIC, false, false).0, RMA.0 | odp::IBV_ODP_SUPPORT_ATOMIC.0);
        let datagrams = needs(FI_MSG, true, true);
        assert_eq!(datagrams.0, MSG.0);
        assert!(OnDemand::of(&caps(ON, odp(!0), odp(0)), true, datagrams).is_err());
        assert!(OnDemand::of(&caps(ON, odp(0), MSG), true, datagrams).is_ok());
    }

    #[test]
    fn rights_unsupported_on_demand_are_not_granted() {
        let wanted = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        let rights = |atomics| OnDemand { implicit: false, atomics }.rights(wanted);
        assert_eq!(rights(true), wanted | access::ON_DEMAND);
        assert_eq!(rights(false), (wanted & !access::REMOTE_ATOMIC) | access::ON_DEMAND);
    }
}
