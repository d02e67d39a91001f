//! Fabrics, domains and registered memory.
use crate::config::config;
use crate::device::source_of;
use crate::engine::{Connections, Engine, Limits};
use crate::ep::VerbsEp;
use crate::info::{DATAGRAMS, VERBS};
use crate::pep::{Caller, VerbsPep};
use crate::sys::{CmId, Device, Pd, Region, access};
use core::ffi::{CStr, c_void};
use ofi_provider::abi::*;
use ofi_provider::addr;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::{
    Domain, DomainSettings, Fabric, RxAttr, local_addr, passive_name, take_request,
};
use ofi_provider::info::InfoRef;
use ofi_provider::mr::{Backed, Backing, Count, MrTable};
use ofi_provider::mr_cache::{Cache, Cached, Registrar};
use ofi_provider::progress::{Progress, Thread};
use ofi_provider::wait::Kind;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A fabric: a network that some device is on. It has no state.
#[derive(Debug)]
pub(crate) struct VerbsFabric;

impl Fabric for VerbsFabric {
    type Domain = VerbsDomain;
    type PassiveEp = VerbsPep;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, _api_version: u32) -> Result<VerbsDomain> {
        let name = info.domain_name().ok_or(Error::INVAL)?;
        let device = Device::all().iter().find(|device| {
            let name = name.to_bytes();
            let name = name.strip_suffix(DATAGRAMS.to_bytes()).unwrap_or(name);
            device.name().to_bytes() == name
        });
        let device = *device.ok_or(Error::NODEV)?;
        let mut settings = DomainSettings::new(info, true)?;
        let pd = Pd::new(device)?;
        let cache = Cache::open(&VERBS, Memory { pd: pd.clone() });
        let mr_mode = info.domain().map_or(0, |attr| attr.mr_mode);
        let regions = Regions { pd: pd.clone(), cache: cache.clone() };
        settings.regions = Arc::new(MrTable::backed(mr_mode, Arc::new(regions)));
        let engine = Engine::new(device, pd, cache)?;
        let connections = Arc::new(Connections(engine.clone()));
        Ok(VerbsDomain { thread: Mutex::new(None), connections, engine, settings })
    }

    fn passive_ep(&self, info: InfoRef<'_>) -> Result<VerbsPep> {
        if info.ep_type() != fi_ep_type::FI_EP_MSG {
            return Err(Error::INVAL);
        }
        VerbsPep::new(info.to_owned()?, &local_addr(info)?)
    }
}

/// A domain: a device of which the application uses a part.
#[derive(Debug)]
pub(crate) struct VerbsDomain {
    /// Looks after the connections, from the first endpoint on.
    thread: Mutex<Option<Thread>>,
    connections: Arc<Connections>,
    engine: Arc<Engine>,
    settings: DomainSettings,
}

impl VerbsDomain {
    fn start_thread(&self) -> Result {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let connections: Weak<Connections> = Arc::downgrade(&self.connections);
            *thread = Some(Thread::start("ofi-verbs-cm", connections)?);
        }
        Ok(())
    }
}

impl Drop for VerbsDomain {
    fn drop(&mut self) {
        self.engine.leave();
    }
}

impl Domain for VerbsDomain {
    type Endpoint = VerbsEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn settings(&self) -> &DomainSettings {
        &self.settings
    }

    fn blocking_opened(&self, kind: Kind) -> Result {
        // The device works by itself and wakes who sleeps on a descriptor.
        if kind != Kind::MutexCond {
            return Ok(());
        }
        let engine: Weak<Engine> = Arc::downgrade(&self.engine);
        self.settings.need_thread("ofi-verbs", engine)
    }

    fn has_atomics(&self) -> bool {
        self.engine.atomics()
    }

    fn endpoint(&self, info: InfoRef<'_>) -> Result<VerbsEp> {
        let datagrams = info.ep_type() == fi_ep_type::FI_EP_DGRAM;
        if info.ep_type() != fi_ep_type::FI_EP_MSG && !datagrams {
            return Err(Error::INVAL);
        }
        let (tx, rx) = (info.tx().ok_or(Error::INVAL)?, info.rx().ok_or(Error::INVAL)?);
        let limits = Limits {
            tx_size: tx.size.clamp(1, 1 << 24),
            rx_size: rx.size.clamp(1, 1 << 24),
            tx_iov: tx.iov_limit.clamp(1, IOV_LIMIT),
            rx_iov: rx.iov_limit.clamp(1, IOV_LIMIT),
            inject: tx.inject_size,
            atomics: info.caps() & FI_ATOMIC != 0 && self.engine.atomics(),
            datagrams,
        };
        if datagrams {
            return Ok(VerbsEp::datagrams(self.engine.clone(), self.engine.add(limits)));
        }
        let handle = info.handle();
        let passive = passive_name(handle).transpose()?;
        let dest = info.dest_addr().map(addr::from_bytes).transpose()?;
        let caller = match handle.is_null() || passive.is_some() {
            true => None,
            false => Some(take_request::<Caller>(handle)?),
        };
        self.start_thread()?;
        let engine = &self.engine;
        let at = engine.add(limits);
        let id = (|| match caller {
            Some(Caller { mut id }) => {
                if id.device() != Some(engine.device) {
                    // It came to another device: the peer sees a rejection.
                    return Err(Error::DOMAIN);
                }
                id.migrate(&engine.channel, at as usize)?;
                Ok(id)
            }
            None => {
                let id = CmId::new(&engine.channel, at as usize)?;
                if passive.is_some() {
                    id.share_port()?;
                }
                let local = match passive.as_deref().or(info.src_addr()) {
                    Some(bytes) => addr::from_bytes(bytes)?,
                    None => source_of(engine.device, dest.as_ref()).ok_or(Error::ADDRNOTAVAIL)?,
                };
                id.bind(&local)?;
                if id.device() != Some(engine.device) {
                    return Err(Error::ADDRNOTAVAIL);
                }
                Ok(id)
            }
        })();
        match id {
            Ok(id) => engine.lock().set_id(at, id),
            Err(error) => {
                engine.lock().forget(at);
                return Err(error);
            }
        }
        Ok(VerbsEp::new(engine.clone(), at, dest))
    }

    fn srx_context(&self, rx: RxAttr) -> Result<VerbsEp> {
        let config = config();
        let limits = Limits {
            tx_size: 0,
            rx_size: if rx.size == 0 { config.rx_size } else { rx.size.min(1 << 24) },
            tx_iov: 0,
            rx_iov: match rx.iov_limit {
                0 => config.rx_iov_limit,
                most => most,
            }
            .clamp(1, IOV_LIMIT),
            inject: 0,
            atomics: false,
            datagrams: false,
        };
        let at = self.engine.add_shared(limits)?;
        Ok(VerbsEp::new(self.engine.clone(), at, None))
    }
}

/// Registers memory with a device, for the cache.
#[derive(Debug)]
pub(crate) struct Memory {
    pd: Arc<Pd>,
}

impl Memory {
    /// The device writes to it.
    pub(crate) const WRITABLE: u32 = access::LOCAL_WRITE;
}

impl Registrar for Memory {
    type Region = Region;
    type Kind = u32;

    fn register(&self, addr: usize, len: usize, access: u32) -> Result<Region> {
        register(&self.pd, addr, len, access)
    }

    fn serves(have: u32, want: u32) -> bool {
        have & want == want
    }
}

/// Registers memory; a refusal says what to do about it.
fn register(pd: &Arc<Pd>, addr: usize, len: usize, mut rights: u32) -> Result<Region> {
    if pd.1.is_iwarp() && rights & access::LOCAL_WRITE != 0 {
        // The answer to a read is a write of the peer's there.
        rights |= access::REMOTE_WRITE;
    }
    Region::new(pd, addr, len, rights).inspect_err(|error| {
        let limit = match locked_limit() {
            Some(limit) => format!("; RLIMIT_MEMLOCK is {limit} bytes (ulimit -l)"),
            None => String::new(),
        };
        ofi_provider::log!(
            &VERBS,
            WARN,
            MR,
            "cannot register {len} bytes at {addr:#x}: {error}{limit}"
        );
    })
}

/// The bytes that this process may lock, if there is a limit.
fn locked_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The application's regions, as the device has them.
#[derive(Debug)]
struct Regions {
    pd: Arc<Pd>,
    cache: Arc<Cache<Memory>>,
}

/// Marks what fi_mr_desc(3) gives, so that a key of zero is not no key.
const DESC: usize = 1 << 32;

/// A region of the application's.
enum Registered {
    /// For its own transfers only: what was registered before does as well.
    Local(Cached<Memory>),
    /// For peers, who must not reach anything beside it.
    Remote(Region),
}

impl Backing for Regions {
    unsafe fn register(
        &self,
        base: usize,
        len: usize,
        rights: u64,
        _offset: u64,
        _wanted: u64,
    ) -> Result<(u64, Box<dyn Backed>)> {
        let mut wanted = 0;
        if rights & (FI_RECV | FI_READ | FI_REMOTE_WRITE) != 0 {
            wanted |= access::LOCAL_WRITE;
        }
        if rights & (FI_REMOTE_READ | FI_REMOTE_WRITE) == 0 {
            let region = self.cache.get(base, len, wanted)?;
            return Ok((FI_KEY_NOTAVAIL, Box::new(Registered::Local(region))));
        }
        if rights & FI_REMOTE_READ != 0 {
            wanted |= access::REMOTE_READ;
        }
        if rights & FI_REMOTE_WRITE != 0 {
            wanted |= access::REMOTE_WRITE;
            if !self.pd.1.is_iwarp() {
                wanted |= access::REMOTE_ATOMIC;
            }
        }
        let region = register(&self.pd, base, len, wanted)?;
        Ok((u64::from(region.rkey()), Box::new(Registered::Remote(region))))
    }
}

impl Backed for Registered {
    fn count(&self) -> Result<Count> {
        // Devices do not tell of peers' writes.
        Err(Error::NOSYS)
    }

    fn desc(&self) -> *mut c_void {
        let lkey = match self {
            Self::Local(region) => region.lkey(),
            Self::Remote(region) => region.lkey(),
        };
        (DESC | lkey as usize) as *mut c_void
    }
}
