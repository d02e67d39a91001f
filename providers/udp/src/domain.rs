//! Fabrics and domains.
use crate::ep::{Engine, UdpEp};
use crate::info::QUEUE_SIZE;
use core::ffi::{CStr, c_int};
use ofi_provider::abi::{
    FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOURCE, fi_ep_type, fi_progress, fi_threading,
};
use ofi_provider::addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::{Domain, Fabric, NoPassiveEp};
use ofi_provider::info::InfoRef;
use ofi_provider::progress::{Progress, Thread};
use ofi_provider::wait::Kind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};

/// A fabric: a network that some interface is on. It has no state.
#[derive(Debug)]
pub(crate) struct UdpFabric;

/// The address an endpoint is to have; any when `info` leaves it open.
fn local_addr(info: InfoRef<'_>) -> Result<SocketAddr> {
    match info.src_addr() {
        Some(bytes) => addr::from_bytes(bytes),
        None if info.addr_format() == FI_SOCKADDR_IN6 as u32 => {
            Ok((Ipv6Addr::UNSPECIFIED, 0).into())
        }
        None => Ok((Ipv4Addr::UNSPECIFIED, 0).into()),
    }
}

impl Fabric for UdpFabric {
    type Domain = UdpDomain;
    type PassiveEp = NoPassiveEp;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, _api_version: u32) -> Result<UdpDomain> {
        let attr = info.domain().ok_or(Error::INVAL)?;
        let manual = attr.data_progress == fi_progress::FI_PROGRESS_MANUAL
            || attr.data_progress == fi_progress::FI_PROGRESS_CONTROL_UNIFIED;
        let serialized = manual && attr.threading == fi_threading::FI_THREAD_DOMAIN;
        let format = if local_addr(info)?.is_ipv6() { FI_SOCKADDR_IN6 } else { FI_SOCKADDR_IN };
        Ok(UdpDomain {
            engine: Engine::new(serialized)?,
            serialized,
            automatic: !manual,
            thread: Mutex::new(None),
            addr_format: format as u32,
            mr_mode: attr.mr_mode,
        })
    }
}

/// A domain: its endpoints' engine.
///
/// Automatic progress needs no thread of ours: datagrams arrive in the system's
/// buffer by themselves, and whoever waits for one waits on the sockets. Only an
/// application that sleeps on a condition variable has to be woken.
#[derive(Debug)]
pub(crate) struct UdpDomain {
    engine: Arc<Engine>,
    serialized: bool,
    automatic: bool,
    thread: Mutex<Option<Thread>>,
    addr_format: u32,
    mr_mode: c_int,
}

impl Domain for UdpDomain {
    type Endpoint = UdpEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn serialized(&self) -> bool {
        self.serialized
    }

    fn blocking_opened(&self, kind: Kind) -> Result {
        if self.automatic && kind == Kind::MutexCond {
            let mut thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if thread.is_none() {
                let engine: Weak<Engine> = Arc::downgrade(&self.engine);
                *thread = Some(Thread::start("ofi-udp", engine)?);
            }
        }
        Ok(())
    }

    fn addr_format(&self) -> u32 {
        self.addr_format
    }

    fn mr_mode(&self) -> c_int {
        self.mr_mode
    }

    fn endpoint(&self, info: InfoRef<'_>) -> Result<UdpEp> {
        if info.ep_type() != fi_ep_type::FI_EP_DGRAM {
            return Err(Error::INVAL);
        }
        let rx_size = info.rx().ok_or(Error::INVAL)?.size.clamp(1, QUEUE_SIZE);
        UdpEp::open(&self.engine, local_addr(info)?, rx_size, info.caps() & FI_SOURCE != 0)
    }
}
