//! State of an application's endpoint outside the engine: FI_EP_MSG with its connection made by the
//! application, and options.
use crate::engine::{StreamEngine, StreamEpKind, StreamRequest};
use crate::transport::{ByteLink, ShmTransport};
use crate::wire::CM_DATA_MAX;
use core::ffi::c_int;
use ofi_provider::abi::{FI_OPT_CM_DATA_SIZE, FI_OPT_FIREWALL_ADDR};
use ofi_provider::addr::Addr;
use ofi_provider::api::{EndpointRequest, destination};
use ofi_provider::core_provider::{OPT_PEER_ENDED, OPT_SOURCE};
use ofi_provider::endpoint::{EndpointExt, RdmEndpoint, RdmEngine, put_number};
use ofi_provider::error::{Error, Result};
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard};

/// State of an application's endpoint outside the engine.
#[derive(Debug)]
pub struct StreamEndpointExt<L> {
    kind: StreamEpKind,
    /// The address fi_connect connects to if it is given none.
    dest: Option<Addr>,
    /// The request the endpoint was opened with, until fi_accept.
    request: Mutex<Option<EndpointRequest<StreamRequest<L>>>>,
}

impl<L> Default for StreamEndpointExt<L> {
    fn default() -> Self {
        Self::new(StreamEpKind::Rdm, None, None)
    }
}

impl<L> StreamEndpointExt<L> {
    pub(crate) fn new(
        kind: StreamEpKind,
        dest: Option<Addr>,
        request: Option<EndpointRequest<StreamRequest<L>>>,
    ) -> Self {
        Self { kind, dest, request: Mutex::new(request) }
    }

    fn request(&self) -> MutexGuard<'_, Option<EndpointRequest<StreamRequest<L>>>> {
        self.request.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// -FI_ENOSYS unless this is an endpoint for one connection.
    fn is_msg(&self) -> Result {
        if self.kind == StreamEpKind::Msg { Ok(()) } else { Err(Error::NOSYS) }
    }
}

impl<N: ShmTransport> EndpointExt<StreamEngine<N>> for StreamEndpointExt<N::Link> {
    fn getopt(ep: &RdmEndpoint<StreamEngine<N>>, name: c_int, value: &mut [u8]) -> Result<usize> {
        match (name, ep.ext.kind) {
            (FI_OPT_CM_DATA_SIZE, StreamEpKind::Msg) => put_number(CM_DATA_MAX, value),
            (OPT_PEER_ENDED, StreamEpKind::Msg) => {
                let ended = ep.engine.lock().peer_has_ended(ep.id);
                *value.first_mut().ok_or(Error::TOOSMALL)? = ended.into();
                Ok(1)
            }
            (FI_OPT_FIREWALL_ADDR, StreamEpKind::Rdm) => {
                // FI_OPT_FIREWALL_ADDR is an int, as in the original.
                let bytes = c_int::from(*ep.engine.lock().behind_firewall(ep.id)).to_ne_bytes();
                value[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            _ => Err(Error::NOPROTOOPT),
        }
    }

    fn setopt(ep: &RdmEndpoint<StreamEngine<N>>, name: c_int, value: &[u8]) -> Result {
        match (name, ep.ext.kind) {
            (FI_OPT_FIREWALL_ADDR, StreamEpKind::Rdm) => {
                // The value may be a bool, or the int that fi_getopt gives.
                let behind = match value.len() {
                    1 | 4 => value.iter().any(|byte| *byte != 0),
                    _ => return Err(Error::INVAL),
                };
                *ep.engine.lock().behind_firewall(ep.id) = behind;
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

    fn getname(ep: &RdmEndpoint<StreamEngine<N>>) -> Option<Result<Vec<u8>>> {
        let state = ep.engine.lock();
        let link = state.connected_link(ep.id)?;
        Some(link.local_addr().map(|addr| addr.to_bytes()))
    }

    fn fd(ep: &RdmEndpoint<StreamEngine<N>>) -> Result<RawFd> {
        ep.ext.is_msg()?;
        ep.engine.lock().connected_link(ep.id).ok_or(Error::NOTCONN)?.fd()
    }

    fn getpeer(ep: &RdmEndpoint<StreamEngine<N>>) -> Result<Vec<u8>> {
        ep.ext.is_msg()?;
        let state = ep.engine.lock();
        let link = state.connected_link(ep.id).ok_or(Error::NOTCONN)?;
        Ok(link.peer_addr()?.to_bytes())
    }

    fn connect(ep: &RdmEndpoint<StreamEngine<N>>, to: Option<&[u8]>, param: &[u8]) -> Result {
        ep.ext.is_msg()?;
        let mut state = ep.engine.lock();
        let format = state.local(ep.id).format();
        let to =
            destination(to, ep.ext.dest.as_ref(), |bytes| Addr::from_application(format, bytes))?;
        state.connect(ep.id, &to, param)
    }

    fn accept(ep: &RdmEndpoint<StreamEngine<N>>, param: &[u8]) -> Result {
        ep.ext.is_msg()?;
        let request = ep.ext.request().take().and_then(|own| own.take()).ok_or(Error::INVAL)?;
        ep.engine.lock().accept(ep.id, request, param)
    }

    fn shutdown(ep: &RdmEndpoint<StreamEngine<N>>) -> Result {
        ep.ext.is_msg()?;
        ep.engine.drain_sends(ep.id);
        ep.engine.lock().shutdown(ep.id)
    }

    fn closed(&self) {
        drop(self.request().take());
    }
}
