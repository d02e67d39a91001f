//! Calls on service points and connection requests.
use crate::answer::*;
use crate::fabric::*;
use crate::layout::*;
use crate::objects::connect::{DatCr, DatSp, marked, unmarked};
use crate::objects::ep::default_attr;
use crate::state::DatState;
use std::sync::Arc;

impl DatState {
    /// Creates a service point at a port, 0 for any; for one endpoint or for all requests, with or
    /// without an endpoint for each.
    pub(crate) fn sp_create(
        &mut self,
        ia: Handle,
        conn_qual: u64,
        evd: Handle,
        reserved: Option<Handle>,
        makes_endpoints: bool,
    ) -> DatResult<(Handle, u64)> {
        self.has_ia(ia)?;
        let Ok(port) = u16::try_from(conn_qual) else { return bad_argument(2) };
        self.events.check_evd(evd, EVD_CR, HANDLE_EVD_CR)?;
        if let Some(ep) = reserved {
            let found = self.eps.find(ep, HANDLE_EP)?;
            if found.state != EpState::Unconnected {
                return bad_state(found.state);
            }
        }
        let found = self.ias.find(ia, HANDLE_IA)?;
        let kind = if reserved.is_some() { HandleKind::Rsp } else { HandleKind::Psp };
        let sp = self.handles.open(kind, found.provider);
        let listener = match FabricListener::open(&found.domain, &found.info, port, sp) {
            Ok(listener) => listener,
            Err(code) => {
                self.handles.close(sp);
                return Err(match code {
                    libc::EADDRINUSE if port == 0 => DatError(CONN_QUAL_UNAVAILABLE),
                    libc::EADDRINUSE | libc::EACCES => DatError(CONN_QUAL_IN_USE),
                    _ => of_code(code, RESOURCE_DEVICE),
                });
            }
        };
        let conn_qual = if port == 0 { listener.port().into() } else { conn_qual };
        if let Some(ep) = reserved {
            self.eps.find(ep, HANDLE_EP)?.state = EpState::Reserved;
        }
        self.events.use_evd(evd, EVD_CR, HANDLE_EVD_CR)?;
        self.sps.insert(sp, DatSp { ia, evd, conn_qual, reserved, makes_endpoints, listener });
        Ok((sp, conn_qual))
    }

    pub(crate) fn sp_free(&mut self, sp: Handle, reserved: bool) -> DatResult {
        let subtype = if reserved { HANDLE_RSP } else { HANDLE_PSP };
        if self.sps.find(sp, subtype)?.reserved.is_some() != reserved {
            return error(INVALID_HANDLE, subtype);
        }
        let Some(found) = self.sps.close(&mut self.handles, sp) else {
            return error(INVALID_HANDLE, subtype);
        };
        if let Some(ep) = found.reserved.and_then(|ep| self.eps.get_mut(ep)) {
            if ep.state == EpState::Reserved {
                ep.state = EpState::Unconnected;
            }
        }
        self.events.leave_evd(found.evd);
        Ok(())
    }

    /// Handles a connection request to a service point.
    pub(crate) fn request(&mut self, ia: Handle, sp: Handle, info: FabricInfo, data: &[u8]) {
        let Some(found) = self.sps.get(sp) else {
            // the point was freed, and listens only until its requests are answered
            if let Some(cr) = self.crs.values().find(|cr| cr.sp == sp) {
                cr.listener.reject(&info, &[]);
            }
            return;
        };
        let listener = Arc::clone(&found.listener);
        let Some(data) = unmarked(data) else { return listener.reject(&info, &[]) };
        let (evd, conn_qual, reserved) = (found.evd, found.conn_qual, found.reserved);
        let made = found.makes_endpoints;
        let Some(adaptor) = self.ias.get(ia) else { return };
        let (provider, own) = (adaptor.provider, *adaptor.address);
        let local = std::ptr::from_ref(&*adaptor.address).addr();
        if self.events.is_full_or_gone(evd) {
            listener.reject(&info, &[]);
            let overflow = DatEvent::asynchronous(ASYNC_EVD_OVERFLOW, evd, 0);
            return self.events.push_async(ia, overflow);
        }
        if let Some(ep) = reserved {
            // the point is gone with its one request
            let _ = self.sp_free(sp, true);
            if let Some(ep) = self.eps.get_mut(ep) {
                ep.state = EpState::PassivePending;
            }
        }
        let peer = Box::new(info.address(true));
        let ep = if made {
            // without a zone and dispatchers: the application gives it some before it accepts
            let attr = default_attr(self.ias.get(ia));
            let ep = self.ep_insert((provider, ia), 0, [0; 3], None, attr, own);
            if let Some(ep) = self.eps.get_mut(ep) {
                ep.state = EpState::PassivePending;
            }
            ep
        } else {
            reserved.unwrap_or(0)
        };
        let cr = DatCr { ia, peer, data: data.into(), ep, made, sp, listener, info };
        let cr = self.crs.open(&mut self.handles, (HandleKind::Cr, provider), cr);
        let named = if reserved.is_some() { 0 } else { sp };
        self.events.put(evd, DatEvent::request(named, local, conn_qual, cr, false), true);
    }

    pub(crate) fn cr_accept(&mut self, cr: Handle, ep: Handle, data: &[u8]) -> DatResult {
        let request = self.crs.find(cr, HANDLE_CR)?;
        let ep = match (request.ep, ep) {
            (0, ep) => ep,
            (own, 0) => own,
            (own, ep) if own == ep => ep,
            _ => return error(INVALID_HANDLE, HANDLE_EP),
        };
        let own = request.ep != 0;
        let found = self.eps.find(ep, HANDLE_EP)?;
        let wanted = if own { EpState::PassivePending } else { EpState::Unconnected };
        if found.ia != request.ia {
            return error(INVALID_HANDLE, HANDLE_EP);
        }
        if found.state != wanted {
            return bad_state(found.state);
        }
        if found.connect_evd == 0 {
            return error(INVALID_STATE, STATE_EP_NOTREADY);
        }
        if data.len() > self.ias.find(request.ia, HANDLE_IA)?.private_max {
            return bad_argument(3);
        }
        let request = require_object(self.crs.close(&mut self.handles, cr), HANDLE_CR)?;
        if let Err(error) = self.realize(ep, Some(&request.info)) {
            request.listener.reject(&request.info, &[]);
            if error != DatError(INTERNAL_ERROR) {
                self.eps.find(ep, HANDLE_EP)?.state = EpState::Unconnected;
                return Err(error);
            }
            // for a disconnected peer a device creates no endpoint: this is an event as well
            self.eps.find(ep, HANDLE_EP)?.state = EpState::CompletionPending;
            self.end_connection(ep, ACCEPT_COMPLETION_ERROR, &[]);
            return Ok(());
        }
        let found = self.eps.find(ep, HANDLE_EP)?;
        *found.peer = *request.peer;
        let answer = match &found.fabric {
            Some(fabric) => fabric.accept(&marked(data)),
            None => Err(libc::EINVAL),
        };
        // the peer may have gone: that is an event, as it would be a moment later
        found.state = EpState::CompletionPending;
        if answer.is_err() {
            self.end_connection(ep, ACCEPT_COMPLETION_ERROR, &[]);
        }
        Ok(())
    }

    pub(crate) fn cr_reject(&mut self, cr: Handle, data: &[u8]) -> DatResult {
        let request = self.crs.find(cr, HANDLE_CR)?;
        if data.len() > self.ias.find(request.ia, HANDLE_IA)?.private_max {
            return bad_argument(2);
        }
        request.listener.reject(&request.info, &marked(data));
        let (ep, made) = (request.ep, request.made);
        self.crs.close(&mut self.handles, cr);
        if made {
            let _ = self.ep_free(ep);
        } else if let Some(ep) = self.eps.get_mut(ep) {
            ep.state = EpState::Unconnected;
        }
        Ok(())
    }
}
