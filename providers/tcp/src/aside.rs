//! What the provider keeps of an endpoint of the application's beside the engine.
use crate::sock::TcpSocket;
use ofi_provider::error::{Error, Result};
use ofi_stream::engine::{StreamEpKind, StreamRequest};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

/// What the provider keeps of an endpoint of the application's.
#[derive(Debug)]
pub(crate) struct TcpAside {
    pub(crate) kind: StreamEpKind,
    /// The address fi_connect connects to if it is given none.
    pub(crate) dest: Option<SocketAddr>,
    /// The request the endpoint was opened with, until fi_accept.
    request: Mutex<Option<StreamRequest<TcpSocket>>>,
}

impl Default for TcpAside {
    fn default() -> Self {
        Self::new(StreamEpKind::Rdm, None, None)
    }
}

impl TcpAside {
    pub(crate) fn new(
        kind: StreamEpKind,
        dest: Option<SocketAddr>,
        request: Option<StreamRequest<TcpSocket>>,
    ) -> Self {
        Self { kind, dest, request: Mutex::new(request) }
    }

    pub(crate) fn request(&self) -> MutexGuard<'_, Option<StreamRequest<TcpSocket>>> {
        self.request.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// -FI_ENOSYS unless this is an endpoint for one connection.
    pub(crate) fn is_msg(&self) -> Result {
        if self.kind == StreamEpKind::Msg { Ok(()) } else { Err(Error::NOSYS) }
    }
}
