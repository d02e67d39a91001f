//! Progress: completions and connection events become events of dispatchers.
use crate::answer::*;
use crate::fabric::*;
use crate::layout::*;
use crate::objects::connect::unmarked;
use crate::objects::ep::DatEp;
use crate::state::DatState;
use std::time::{Duration, Instant};

/// Time for an event with the reason of a connection's end after failed transfers.
const DOUBT: Duration = Duration::from_millis(100);

impl DatState {
    /// Moves completions of an endpoint's queue to its dispatcher, while this has space.
    pub(crate) fn drain(&mut self, ep: Handle, receives: bool, all: bool) {
        loop {
            let Some(found) = self.eps.get(ep) else { return };
            let Some(fabric) = &found.fabric else { return };
            let evd = if receives { found.recv_evd } else { found.request_evd };
            let full = self.events.is_full(evd);
            if full && !all {
                return;
            }
            let queue = if receives { &fabric.receives } else { &fabric.requests };
            let Some(completion) = queue.read() else { break };
            self.complete(ep, receives, completion);
        }
        if let Some(found) = self.eps.get_mut(ep) {
            if receives {
                found.pass_on_receives();
                if !found.held_requests.is_empty() {
                    // an application waiting for a response does not poll the completions of
                    // requests
                    self.drain(ep, false, false);
                }
            } else if !found.held_requests.is_empty() {
                self.pass_on_requests(ep);
            }
        }
    }

    /// Reports a finished operation.
    pub(crate) fn complete(&mut self, ep: Handle, receives: bool, completion: FabricCompletion) {
        let Some(found) = self.eps.get_mut(ep) else { return };
        let (evd, srq) = (found.recv_evd, found.srq);
        let (op, evd) = if !receives {
            let op = found.requests.take(completion.context);
            if op.is_some_and(|op| op.kind == DTO_RDMA_READ && op.passed_on) {
                found.reads = found.reads.saturating_sub(1);
            }
            (op, found.request_evd)
        } else if srq == 0 {
            (found.receives.take(completion.context), evd)
        } else {
            let Some(op) = self.srqs.take(srq, completion.context) else { return };
            (op, evd)
        };
        let Some(op) = op else { return };
        let status = match completion.code {
            0 => DTO_SUCCESS,
            libc::ECANCELED => DTO_FLUSHED,
            ofi::abi::FI_ETRUNC | libc::EMSGSIZE => DTO_LOCAL_LENGTH,
            libc::EACCES
            | libc::EPERM
            | libc::EFAULT
            | ofi::abi::FI_EKEYREJECTED
            | libc::EREMOTEIO => DTO_REMOTE_ACCESS,
            // an operation passed on was valid locally: the target does not know the region
            libc::EINVAL if op.passed_on && op.remote != (0, 0) => DTO_REMOTE_ACCESS,
            libc::EINVAL => DTO_LOCAL_PROTECTION,
            _ if receives => DTO_FLUSHED,
            libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ENOTCONN
            | libc::EPIPE
            | libc::ESHUTDOWN => DTO_FLUSHED,
            _ => DTO_TRANSPORT,
        };
        self.doubt(ep, status);
        let length = if op.kind == DTO_RECEIVE { completion.length as u32 } else { op.length };
        let silent = op.flags & COMPLETION_SUPPRESS != 0 && status == DTO_SUCCESS;
        if !silent {
            let event = DatEvent::transfer(ep, op.cookie, status, length, op.kind);
            let tell = op.flags & COMPLETION_UNSIGNALLED == 0 || status != DTO_SUCCESS;
            self.events.put(evd, event, tell);
        }
        if receives && srq != 0 {
            self.srqs.look_at_mark(&mut self.events, srq);
        }
    }

    /// Notes a possible end of the connection after a failed transfer: a device ends it with the
    /// first one, and the peer's kernel does not know of it. An event with more information has
    /// priority.
    fn doubt(&mut self, ep: Handle, status: u32) {
        let Some(found) = self.eps.get_mut(ep) else { return };
        let Some(ia) = self.ias.get_mut(found.ia) else { return };
        let over = status == DTO_FLUSHED || status != DTO_SUCCESS && ia.is_device;
        if over && found.state == EpState::Connected && found.deadline.is_none() {
            found.deadline = Some(Instant::now() + DOUBT);
            ia.waiting.push(ep);
        }
    }

    /// Returns the next event, for a caller not waiting.
    pub(crate) fn evd_dequeue(&mut self, evd: Handle) -> DatResult<DatEvent> {
        let found = require_object(self.events.evd(evd), HANDLE_1)?;
        if found.waiters > 0 {
            return error(INVALID_STATE, STATE_EVD_WAITER);
        }
        if found.queue.is_empty() {
            self.progress(evd);
        }
        match self.events.take_event(evd) {
            Some(event) => Ok(event),
            None => error(QUEUE_EMPTY, 0),
        }
    }

    /// Returns a dispatcher with a new event, if there is one.
    pub(crate) fn cno_look(&mut self, cno: Handle) -> DatResult<Option<Handle>> {
        let invalid = DatError(INVALID_HANDLE | HANDLE_CNO);
        if let Some(evd) = self.events.cno_mut(cno).ok_or(invalid)?.triggered.pop_front() {
            return Ok(Some(evd));
        }
        for evd in self.events.evds_of(cno) {
            self.progress(evd);
        }
        let invalid = DatError(INVALID_HANDLE | HANDLE_CNO);
        Ok(self.events.cno_mut(cno).ok_or(invalid)?.triggered.pop_front())
    }

    /// Polls all sources of a dispatcher.
    pub(crate) fn progress(&mut self, evd: Handle) {
        let Some(found) = self.events.evd(evd) else { return };
        let (ia, connections) = (found.ia, found.flags & (EVD_CONNECTION | EVD_ASYNC) != 0);
        let feeders = self.events.take_feeders(evd);
        for &(ep, receives) in &feeders {
            self.drain(ep, receives, false);
        }
        self.events.give_back_feeders(evd, feeders);
        self.looks = self.looks.wrapping_add(1);
        if connections && self.looks % 64 == 0 {
            // some providers notice the end of a connection only where its transfers are looked for
            let of = |ep: &DatEp| ep.ia == ia && ep.state == EpState::Connected;
            for ep in self.eps.which(of) {
                self.drain(ep, true, false);
            }
        }
        self.handle_events(ia);
    }

    /// Polls all sources of every dispatcher of the adaptor of this dispatcher or notification
    /// object.
    pub(crate) fn poll_once_inner(&mut self, waited: Handle) {
        let Some(ia) = self.events.ia_of(waited) else { return };
        for ep in self.eps.which(|ep| ep.ia == ia) {
            self.drain(ep, true, false);
            self.drain(ep, false, false);
        }
        self.handle_events(ia);
    }

    /// Processes the events of an adaptor's connections, and connections in progress.
    pub(crate) fn handle_events(&mut self, ia: Handle) {
        for _ in 0..64 {
            let Some(found) = self.ias.get(ia) else { return };
            let Some(event) = found.domain.event() else { break };
            match event {
                FabricEvent::Request(sp, info, data) => self.request(ia, sp, info, &data),
                FabricEvent::Connected(ep, data) => {
                    let Some(found) = self.eps.get_mut(ep) else { continue };
                    if !matches!(found.state, EpState::ActivePending | EpState::CompletionPending) {
                        continue;
                    }
                    found.state = EpState::Connected;
                    found.deadline = None;
                    if let Some(fabric) = &found.fabric {
                        *found.local = fabric.address(false);
                    }
                    if let Some(ia) = self.ias.get_mut(ia) {
                        ia.waiting.retain(|&h| h != ep);
                    }
                    let data = unmarked(&data).unwrap_or(&[]);
                    self.tell_connection(ep, ESTABLISHED, data);
                }
                FabricEvent::Shutdown(ep) => {
                    let Some(found) = self.eps.get(ep) else { continue };
                    let number = match found.state {
                        EpState::Connected | EpState::DisconnectPending => DISCONNECTED,
                        EpState::CompletionPending => ACCEPT_COMPLETION_ERROR,
                        EpState::ActivePending => NON_PEER_REJECTED,
                        _ => continue,
                    };
                    self.end_connection(ep, number, &[]);
                }
                FabricEvent::Failed(ep, code, data) => {
                    let Some(found) = self.eps.get(ep) else { continue };
                    let ours = unmarked(&data);
                    let number = match (found.state, code) {
                        (EpState::ActivePending, libc::ECONNREFUSED) if ours.is_some() => {
                            PEER_REJECTED
                        }
                        (EpState::ActivePending, libc::ECONNREFUSED) => NON_PEER_REJECTED,
                        (EpState::ActivePending, libc::ETIMEDOUT) => TIMED_OUT,
                        (EpState::ActivePending, _) => UNREACHABLE,
                        (EpState::CompletionPending, _) => ACCEPT_COMPLETION_ERROR,
                        (EpState::Connected | EpState::DisconnectPending, _) => BROKEN,
                        _ => continue,
                    };
                    let data = ours.unwrap_or(&[]).to_vec();
                    self.end_connection(ep, number, &data);
                }
            }
        }
        self.look_at_waiting(ia);
    }

    fn look_at_waiting(&mut self, ia: Handle) {
        let Some(found) = self.ias.get(ia) else { return };
        if found.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        for ep in found.waiting.clone() {
            self.drain(ep, false, false);
            let Some(found) = self.eps.get(ep) else { continue };
            match found.state {
                EpState::ActivePending if found.deadline.is_some_and(|at| at <= now) => {
                    self.end_connection(ep, TIMED_OUT, &[]);
                }
                EpState::Connected if found.deadline.is_some_and(|at| at <= now) => {
                    if let Some(fabric) = &found.fabric {
                        fabric.shutdown();
                    }
                    self.end_connection(ep, BROKEN, &[]);
                }
                EpState::DisconnectPending if found.requests.used() == 0 => self.hang_up(ep),
                _ => {}
            }
        }
    }
}
