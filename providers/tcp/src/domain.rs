//! Fabrics and domains.
use crate::config::config;
use crate::engine::{Engine, Identity, Kind, Request};
use crate::ep::TcpEp;
use crate::pep::TcpPep;
use core::ffi::{CStr, c_int};
use ofi_provider::abi::{
    FI_DIRECTED_RECV, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, fi_ep_type, fi_progress, fi_threading,
};
use ofi_provider::addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::{Domain, Fabric, passive_name, take_request};
use ofi_provider::info::InfoRef;
use ofi_provider::progress::{Progress, Thread};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};

/// A fabric: a network that some interface is on. It has no state.
#[derive(Debug)]
pub(crate) struct TcpFabric;

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

impl Fabric for TcpFabric {
    type Domain = TcpDomain;
    type PassiveEp = TcpPep;

    fn open(_name: &CStr) -> Result<Self> {
        Ok(Self)
    }

    fn domain(&self, info: InfoRef<'_>, _api_version: u32) -> Result<TcpDomain> {
        let attr = info.domain().ok_or(Error::INVAL)?;
        let manual = attr.data_progress == fi_progress::FI_PROGRESS_MANUAL
            || attr.data_progress == fi_progress::FI_PROGRESS_CONTROL_UNIFIED
            || config().no_auto_progress;
        let serialized = manual && attr.threading == fi_threading::FI_THREAD_DOMAIN;
        let format = match info.addr_format() {
            format if format == FI_SOCKADDR_IN6 as u32 => FI_SOCKADDR_IN6,
            format if format == FI_SOCKADDR_IN as u32 => FI_SOCKADDR_IN,
            // The general format: as the address says.
            _ if local_addr(info)?.is_ipv6() => FI_SOCKADDR_IN6,
            _ => FI_SOCKADDR_IN,
        };
        Ok(TcpDomain {
            engine: Engine::new(serialized)?,
            serialized,
            automatic: !manual,
            thread: Mutex::new(None),
            addr_format: format as u32,
            mr_mode: attr.mr_mode,
        })
    }

    fn passive_ep(&self, info: InfoRef<'_>) -> Result<TcpPep> {
        if info.ep_type() != fi_ep_type::FI_EP_MSG {
            return Err(Error::INVAL);
        }
        TcpPep::new(info.to_owned()?, local_addr(info)?)
    }
}

/// A domain: an engine, and its progress thread when the application wants
/// automatic progress and has something to block on.
#[derive(Debug)]
pub(crate) struct TcpDomain {
    engine: Arc<Engine>,
    serialized: bool,
    automatic: bool,
    thread: Mutex<Option<Thread>>,
    addr_format: u32,
    mr_mode: c_int,
}

impl Domain for TcpDomain {
    type Endpoint = TcpEp;

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.engine.clone()
    }

    fn serialized(&self) -> bool {
        self.serialized
    }

    fn blocking_opened(&self) -> Result {
        if !self.automatic {
            return Ok(());
        }
        let mut thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if thread.is_none() {
            let engine: Weak<Engine> = Arc::downgrade(&self.engine);
            *thread = Some(Thread::start("ofi-tcp", engine)?);
        }
        Ok(())
    }

    fn addr_format(&self) -> u32 {
        self.addr_format
    }

    fn mr_mode(&self) -> c_int {
        self.mr_mode
    }

    fn endpoint(&self, info: InfoRef<'_>) -> Result<TcpEp> {
        let kind = match info.ep_type() {
            t if t == fi_ep_type::FI_EP_MSG => Kind::Msg,
            t if t == fi_ep_type::FI_EP_RDM => Kind::Rdm,
            _ => return Err(Error::INVAL),
        };
        let handle = info.handle();
        let passive = passive_name(handle).transpose()?;
        let local = match &passive {
            Some(name) => addr::from_bytes(name)?,
            None => local_addr(info)?,
        };
        let (tx, rx) = (info.tx().ok_or(Error::INVAL)?, info.rx().ok_or(Error::INVAL)?);
        let identity = Identity {
            kind,
            local,
            keep_port: passive.is_some(),
            directed: kind == Kind::Rdm && (info.caps() | rx.caps) & FI_DIRECTED_RECV != 0,
            tx_size: tx.size.max(1),
            inject_size: tx.inject_size,
        };
        let dest = info.dest_addr().map(addr::from_bytes).transpose()?;
        let request = match kind {
            _ if handle.is_null() => None,
            Kind::Msg if passive.is_some() => None,
            Kind::Msg => Some(take_request::<Request>(handle)?),
            Kind::Rdm => return Err(Error::INVAL),
        };
        Ok(TcpEp::new(self.engine.clone(), identity, dest, request))
    }
}
