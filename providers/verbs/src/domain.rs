//! Fabrics and domains.
use crate::config::config;
use crate::device::source_of;
use crate::engine::{Connections, VerbsEngine, VerbsEpLimits};
use crate::ep::VerbsEp;
use crate::info::{self, DATAGRAMS};
use crate::memory::{OnDemand, VerbsMemory};
use crate::pep::{VerbsCaller, VerbsPep};
use crate::sys::{CmId, Pd, VerbsDevice};
use core::ffi::CStr;
use ofi_provider::abi::*;
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Domain, DomainSettings, Fabric, Getinfo, NewDomain, RxAttr, passive_name, take_request,
};
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef};
use ofi_provider::mr::MrTable;
use ofi_provider::progress::{Progress, Thread};
use ofi_provider::wait::WaitKind;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Fabric: a network with a device on it. It has no state.
#[derive(Debug)]
pub(crate) struct VerbsFabric;

impl Fabric for VerbsFabric {
    type PassiveEp = VerbsPep;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, _api_version: u32) -> Result<NewDomain> {
        let name = info.domain_name().ok_or(Error::INVAL)?;
        let datagrams = name.to_bytes().strip_suffix(DATAGRAMS.to_bytes());
        let device = VerbsDevice::all()
            .iter()
            .find(|device| device.name().to_bytes() == datagrams.unwrap_or(name.to_bytes()));
        let device = *device.ok_or(Error::NODEV)?;
        let mut settings = DomainSettings::new(info, true)?;
        let pd = Pd::new(device)?;
        let on_demand = OnDemand::choose(device, info.caps(), datagrams.is_some())?;
        let memory = VerbsMemory::open(&pd, on_demand, info.caps() & FI_HMEM != 0);
        let mr_mode = info.domain().map_or(0, |attr| attr.mr_mode);
        settings.regions = Arc::new(MrTable::backed(mr_mode, memory.clone()));
        let engine = VerbsEngine::new(device, pd, memory)?;
        let connections = Arc::new(Connections(engine.clone()));
        Ok(VerbsDomain { thread: Mutex::new(None), connections, engine, settings }.into())
    }

    fn passive_ep(&self, info: InfoRef<'_>, _api_version: u32) -> Result<VerbsPep> {
        info.must_be(fi_ep_type::FI_EP_MSG)?;
        VerbsPep::new(info.to_owned()?, &Addr::of_info(info)?)
    }
}

impl Getinfo for VerbsFabric {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        info::getinfo(query)
    }
}

/// Domain: a device used in part by the application.
#[derive(Debug)]
pub(crate) struct VerbsDomain {
    /// Thread handling the connections, started with the first endpoint.
    thread: Mutex<Option<Thread>>,
    connections: Arc<Connections>,
    engine: Arc<VerbsEngine>,
    settings: DomainSettings,
}

impl VerbsDomain {
    /// Starts the thread for connection events, once.
    fn look_after(&self) -> Result {
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

    fn blocking_opened(&self, kind: WaitKind) -> Result {
        // The device works by itself and wakes waiters on a descriptor.
        if kind == WaitKind::MutexCond { self.need_thread() } else { Ok(()) }
    }

    fn thread_name(&self) -> String {
        "ofi-verbs".to_owned()
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
        let limits = VerbsEpLimits {
            tx_size: tx.size.clamp(1, 1 << 24),
            rx_size: rx.size.clamp(1, 1 << 24),
            tx_iov: tx.iov_limit.clamp(1, IOV_LIMIT),
            rx_iov: rx.iov_limit.clamp(1, IOV_LIMIT),
            inject: tx.inject_size,
            atomics: info.caps() & FI_ATOMIC != 0 && self.engine.atomics(),
            datagrams,
            hmem: info.caps() & FI_HMEM != 0,
        };
        if datagrams {
            return Ok(VerbsEp::datagrams(self.engine.clone(), self.engine.add(limits)));
        }
        let handle = info.handle();
        let passive = passive_name(handle).transpose()?;
        let dest = info.dest_addr().map(Addr::from_bytes).transpose()?;
        let caller = match handle.is_null() || passive.is_some() {
            true => None,
            false => Some(take_request::<VerbsCaller>(handle)?),
        };
        self.look_after()?;
        let engine = &self.engine;
        let at = engine.add(limits);
        let id = (|| match caller {
            Some(VerbsCaller { mut id }) => {
                if id.device() != Some(engine.device) {
                    // The request came to another device: the peer sees a rejection.
                    return Err(Error::DOMAIN);
                }
                id.migrate(&engine.channel, at as usize)?;
                Ok(id)
            }
            None => {
                let local = match passive.as_deref().or(info.src_addr()) {
                    Some(bytes) => Addr::from_bytes(bytes)?,
                    None => source_of(engine.device, dest.as_ref(), info.addr_format())
                        .ok_or(Error::ADDRNOTAVAIL)?,
                };
                let id = CmId::new(&engine.channel, at as usize, &local)?;
                if passive.is_some() {
                    id.share_port()?;
                }
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
        let ep = VerbsEp::new(engine.clone(), at, dest);
        Ok(if limits.hmem { ep.with_hmem() } else { ep })
    }

    fn srx_context(&self, rx: RxAttr) -> Result<VerbsEp> {
        let config = config();
        let limits = VerbsEpLimits {
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
            hmem: false,
        };
        let at = self.engine.add_shared(limits)?;
        Ok(VerbsEp::new(self.engine.clone(), at, None))
    }
}
