//! Connections: made, accepted and ended, by calls of the application and by events.
use super::ep::{QpState, VerbsEndpoint};
use super::request::PendingConnReq;
use super::state::{VerbsEngine, VerbsState};
use crate::cm::{pack, pack_request, unpack};
use crate::config::config;
use crate::sys::{CmEvent, CmId, CmKind};
use core::ffi::c_int;
use ofi_provider::abi::{FI_CONNECTED, FI_SHUTDOWN};
use ofi_provider::addr::Addr;
use ofi_provider::cq::Context;
use ofi_provider::eq::{EqEvent, EventError};
use ofi_provider::error::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Delay of the accepting side before its first send, while the other side has sent nothing: the
/// time for reading the acceptance ([`QpState::Settling`]).
const SETTLE: Duration = Duration::from_millis(200);

impl VerbsState {
    /// An endpoint's connection at librdmacm.
    pub(crate) fn id(&self, at: u32) -> Result<&CmId> {
        self.eps[at].id.as_deref().ok_or(Error::OPBADSTATE)
    }

    /// Returns true if an endpoint's connection is established.
    pub(crate) fn is_connected(&self, at: u32) -> bool {
        matches!(self.eps[at].conn, QpState::Up | QpState::Settling(_))
    }

    /// Begins to connect an endpoint (fi_connect(3)).
    pub(crate) fn connect(&mut self, at: u32, to: &Addr, param: &[u8]) -> Result {
        let ep = &mut self.eps[at];
        match ep.conn {
            QpState::None => {}
            QpState::Up => return Err(Error::ISCONN),
            _ => return Err(Error::OPBADSTATE),
        }
        let id = ep.id.as_ref().ok_or(if ep.srq.is_some() {
            Error::NOSYS
        } else {
            Error::OPBADSTATE
        })?;
        let from = id.local().ok_or(Error::OPBADSTATE)?;
        let packed = pack_request(&from, to, param);
        id.resolve_addr(to)?;
        ep.conn = QpState::Resolving(packed);
        Ok(())
    }

    /// Accepts the connection request used to open the endpoint (fi_accept(3)).
    pub(crate) fn accept(&mut self, at: u32, param: &[u8]) -> Result {
        let ep = &mut self.eps[at];
        if ep.conn != QpState::None {
            return Err(Error::OPBADSTATE);
        }
        let id = ep.id.as_ref().ok_or(Error::OPBADSTATE)?;
        id.accept(&pack(param))?;
        ep.tune();
        ep.conn = QpState::Accepted;
        Ok(())
    }

    /// Ends an endpoint's connection (fi_shutdown(3)); requests held back for more are posted
    /// before.
    pub(crate) fn shutdown(&mut self, at: u32) -> Result {
        let ep = &mut self.eps[at];
        if ep.conn == QpState::Down {
            // The peer has ended it before.
            return Ok(());
        }
        if !ep.is_made() {
            return Err(Error::NOTCONN);
        }
        ep.conn = QpState::Up;
        ep.ring();
        ep.id.as_ref().ok_or(Error::OPBADSTATE)?.disconnect()
    }

    /// Handles an event of a connection; returns the endpoint, if the event ended its connection.
    pub(super) fn handle_event(&mut self, event: CmEvent, engine: &VerbsEngine) -> Option<u32> {
        let CmEvent { kind, token, status, data, .. } = event;
        let ep = self.eps.get_mut(token as u32)?;
        if let QpState::Leaving { answered } = &mut ep.conn {
            if ep.calling {
                *answered = true;
                return None;
            }
            if kind == CmKind::Established {
                ep.conn = QpState::Up;
            }
            self.remove(token as u32);
            return None;
        }
        match kind {
            CmKind::AddrResolved | CmKind::RouteResolved => match ep.go_on(kind) {
                Ok(call) => {
                    let of = |(id, data)| PendingConnReq { at: token as u32, id, data };
                    self.calls.extend(call.map(of));
                }
                Err(error) => ep.fail(error, status, Vec::new()),
            },
            CmKind::Established => {
                ep.tune();
                if engine.settles && ep.conn == QpState::Accepted && !ep.has_received {
                    ep.conn = QpState::Settling(Instant::now() + SETTLE);
                } else {
                    ep.conn = QpState::Up;
                }
                ep.tell(FI_CONNECTED as u32, unpack(&data));
            }
            CmKind::Rejected => ep.fail(Error::CONNREFUSED, status, unpack(&data)),
            CmKind::Failed if !ep.is_made() => {
                let error = match -status {
                    0 => Error::CONNREFUSED,
                    code => Error::from_code(code),
                };
                ep.fail(error, status, Vec::new());
            }
            // A failure of a connection that was up or accepted: the way to the peer is
            // lost, or the handshake did not come to its end.
            CmKind::Disconnected | CmKind::Removed | CmKind::Failed => {
                let was_up = ep.is_made();
                ep.conn = QpState::Down;
                if was_up {
                    ep.tell(FI_SHUTDOWN as u32, Vec::new());
                }
                return Some(token as u32);
            }
            CmKind::Request | CmKind::Other => {}
        }
        None
    }

    /// Ends this side of a connection ended by the peer; posted requests are flushed.
    pub(super) fn end(&mut self, at: u32) {
        if let Some(VerbsEndpoint { conn: QpState::Down, id: Some(id), .. }) = self.eps.get(at) {
            if id.disconnect().is_err() {
                let _ = id.qp().and_then(|qp| qp.fail());
            }
        }
    }
}

impl VerbsEndpoint {
    /// Takes the next step of connecting after `done`; returns the connection request to send and
    /// its data, if sending is the next step.
    fn go_on(&mut self, done: CmKind) -> Result<Option<(Arc<CmId>, Vec<u8>)>> {
        let id = self.id.as_ref().ok_or(Error::OPBADSTATE)?;
        match &mut self.conn {
            QpState::Resolving(_) if done == CmKind::AddrResolved => id.resolve_route()?,
            QpState::Resolving(data) => {
                let call = (id.clone(), std::mem::take(data));
                (self.conn, self.calling) = (QpState::Calling, true);
                return Ok(Some(call));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Sets attributes of a ready queue pair not set by librdmacm.
    fn tune(&self) {
        if let Some(id) = &self.id {
            if id.device().is_some_and(|device| !device.is_iwarp()) {
                // Its failure does no harm: a peer waits longer than need be.
                let _ = id.qp().and_then(|qp| qp.set_rnr_timer(config().min_rnr_timer));
            }
        }
    }

    /// Reports a failed connection attempt.
    pub(super) fn fail(&mut self, error: Error, status: c_int, err_data: Vec<u8>) {
        self.conn = QpState::Down;
        let _ = self.qp().and_then(|qp| qp.fail());
        let (Some(eq), Some(fid)) = (&self.bindings.eq, self.fid) else { return };
        let (context, prov_errno) = (Context::NULL, status);
        eq.write(EqEvent::Error(EventError { fid, context, data: 0, error, prov_errno, err_data }));
    }

    /// Writes an event of the connection to the event queue.
    pub(super) fn tell(&self, event: u32, data: Vec<u8>) {
        if let (Some(eq), Some(fid)) = (&self.bindings.eq, self.fid) {
            eq.write(EqEvent::Cm { event, fid, info: None, data });
        }
    }
}
