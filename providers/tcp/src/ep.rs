//! What endpoints of this provider have beside the engine: FI_EP_MSG, whose connection the
//! application makes, and options.
use crate::aside::TcpAside;
use crate::net::TcpEngine;
use crate::sock::to_bytes;
use core::ffi::c_int;
use ofi_provider::abi::{FI_OPT_CM_DATA_SIZE, FI_OPT_FIREWALL_ADDR};
use ofi_provider::addr;
use ofi_provider::api::destination;
use ofi_provider::core_provider::OPT_SOURCE;
use ofi_provider::endpoint::{EndpointAside, RdmEndpoint, put_number};
use ofi_provider::error::{Error, Result};
use ofi_stream::engine::StreamEpKind;
use ofi_stream::wire::CM_DATA_MAX;
use std::os::fd::RawFd;

/// An endpoint of the application's.
pub(crate) type TcpEp = RdmEndpoint<TcpEngine>;

/// -FI_EINVAL for user data that no connection message has room for.
fn fits(param: &[u8]) -> Result {
    if param.len() > CM_DATA_MAX { Err(Error::INVAL) } else { Ok(()) }
}

impl EndpointAside<TcpEngine> for TcpAside {
    fn getopt(ep: &TcpEp, name: c_int, value: &mut [u8]) -> Result<usize> {
        match (name, ep.aside.kind) {
            (FI_OPT_CM_DATA_SIZE, StreamEpKind::Msg) => put_number(CM_DATA_MAX, value),
            (FI_OPT_FIREWALL_ADDR, StreamEpKind::Rdm) => {
                // FI_OPT_FIREWALL_ADDR is an int, as in the original.
                let bytes = c_int::from(*ep.engine.lock().firewalled(ep.id)).to_ne_bytes();
                value[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            _ => Err(Error::NOPROTOOPT),
        }
    }

    fn setopt(ep: &TcpEp, name: c_int, value: &[u8]) -> Result {
        match (name, ep.aside.kind) {
            (FI_OPT_FIREWALL_ADDR, StreamEpKind::Rdm) => {
                // The value may be a bool, or the int that fi_getopt gives.
                let behind = match value.len() {
                    1 | 4 => value.iter().any(|byte| *byte != 0),
                    _ => return Err(Error::INVAL),
                };
                *ep.engine.lock().firewalled(ep.id) = behind;
                Ok(())
            }
            (OPT_SOURCE, StreamEpKind::Msg) => {
                let bytes = value.try_into().map_err(|_| Error::INVAL)?;
                ep.engine.lock().set_source(ep.id, u64::from_ne_bytes(bytes));
                Ok(())
            }
            _ => Err(Error::NOPROTOOPT),
        }
    }

    fn getname(ep: &TcpEp) -> Option<Result<Vec<u8>>> {
        let state = ep.engine.lock();
        let socket = state.connected_link(ep.id)?;
        Some(socket.local_addr().map(|addr| to_bytes(&addr)))
    }

    fn fd(ep: &TcpEp) -> Result<RawFd> {
        ep.aside.is_msg()?;
        Ok(ep.engine.lock().connected_link(ep.id).ok_or(Error::NOTCONN)?.fd())
    }

    fn getpeer(ep: &TcpEp) -> Result<Vec<u8>> {
        ep.aside.is_msg()?;
        let state = ep.engine.lock();
        let socket = state.connected_link(ep.id).ok_or(Error::NOTCONN)?;
        Ok(to_bytes(&socket.peer_addr()?))
    }

    fn connect(ep: &TcpEp, to: Option<&[u8]>, param: &[u8]) -> Result {
        ep.aside.is_msg()?;
        fits(param)?;
        let to = destination(to, ep.aside.dest.as_ref(), addr::from_bytes)?;
        ep.engine.lock().connect(ep.id, &to, param)
    }

    fn accept(ep: &TcpEp, param: &[u8]) -> Result {
        ep.aside.is_msg()?;
        fits(param)?;
        let request = ep.aside.request().take().ok_or(Error::INVAL)?;
        ep.engine.lock().accept(ep.id, request, param)
    }

    fn shutdown(ep: &TcpEp) -> Result {
        ep.aside.is_msg()?;
        ep.engine.lock().shutdown(ep.id)
    }

    fn closed(&self) {
        drop(self.request().take());
    }
}
