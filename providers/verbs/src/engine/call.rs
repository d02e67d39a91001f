//! Sending of connection requests, possibly blocking, and the remaining state of an endpoint closed
//! meanwhile.
use super::ep::{QpState, VerbsEndpoint};
use super::request::{Fifo, PendingConnReq};
use super::state::{VerbsEngine, VerbsState};
use crate::provider::VERBS;
use ofi_provider::api::Bindings;
use ofi_provider::error::Result;
use ofi_provider::sys::{Epoll, Interest};
use ofi_provider::worker::{Worker, rest};
use std::sync::Arc;
use std::time::Duration;

/// Maximum concurrent connection requests on devices with blocking requests.
const CALLERS: usize = 16;

/// Interval between checks for responses to the requests of a closed domain.
const LOOK_IN: Duration = Duration::from_millis(100);

impl VerbsEngine {
    /// Sends the queued connection requests, in separate threads if they block: siw contacts the
    /// peer's system and waits for it.
    pub(super) fn call(self: &Arc<Self>) {
        let mut state = self.lock();
        let most = if self.settles { CALLERS } else { 1 };
        let wanted = state.calls.len().min(most.saturating_sub(state.callers));
        state.callers += wanted;
        drop(state);
        for _ in 0..wanted {
            let engine = self.clone();
            let work = move || while engine.make_call() {};
            let started = self.settles && Worker::start("ofi-verbs-call", work).is_ok();
            if !started {
                while self.make_call() {}
            }
        }
    }

    /// Sends one of the queued connection requests; if there is none, counts one thread less and
    /// returns false.
    fn make_call(&self) -> bool {
        let mut state = self.lock();
        let Some(PendingConnReq { at, id, data }) = state.calls.pop_front() else {
            state.callers -= 1;
            return false;
        };
        if state.eps.get(at).is_some_and(|ep| matches!(ep.conn, QpState::Leaving { .. })) {
            // The endpoint was closed before its call's turn came.
            drop(id);
            state.remove(at);
            return true;
        }
        drop(state);
        let made = rest(|| id.connect(&data));
        // The endpoint keeps another reference and ends the connection with the lock held.
        drop(id);
        self.lock().called(at, made, self.settles);
        true
    }

    /// Leaves the engine when the domain is closed: if calls of closed endpoints are not
    /// answered yet, a thread waits for the answers.
    pub(crate) fn leave(self: &Arc<Self>) {
        let is_left = |engine: &Self| {
            engine.lock().eps.iter().any(|(_, ep)| matches!(ep.conn, QpState::Leaving { .. }))
        };
        if !is_left(self) {
            return;
        }
        let engine = self.clone();
        let work = move || {
            let Ok(epoll) = Epoll::new() else { return };
            let _ = epoll.add(engine.channel.fd(), 0, Interest::READ);
            while is_left(&engine) {
                let _ = rest(|| epoll.wait(Some(LOOK_IN), |_| ()));
                engine.process_events();
            }
        };
        if let Err(error) = Worker::start("ofi-verbs-bye", work) {
            ofi_provider::log!(&VERBS, INFO, EP_CTRL, "waiting for calls to be answered: {error}");
        }
    }
}

impl VerbsState {
    /// Records an endpoint's request as sent; the response may have arrived already. `answer`: a
    /// closed endpoint has to wait for it.
    fn called(&mut self, at: u32, made: Result, answer: bool) {
        let Some(ep) = self.eps.get_mut(at) else { return };
        ep.calling = false;
        match (&ep.conn, made) {
            (QpState::Leaving { answered: false }, Ok(())) if answer => {}
            (QpState::Leaving { .. }, _) => self.remove(at),
            (QpState::Calling, Ok(())) => ep.conn = QpState::Requested,
            (QpState::Calling, Err(error)) => ep.fail(error, -error.code(), Vec::new()),
            // The answer came before the call returned.
            _ => {}
        }
    }
}

impl VerbsEndpoint {
    /// Drops all of a closed endpoint except for the state required by its request until the
    /// response, and returns true. Returns false if the endpoint can be removed at once. An
    /// endpoint waits while its request is being sent and, with `answer`, until the response.
    pub(super) fn leave(&mut self, answer: bool) -> bool {
        let waits = self.calling || (answer && self.conn == QpState::Requested);
        if !waits {
            return false;
        }
        // A failed queue pair uses nothing of what is posted any more.
        if self.qp().and_then(|qp| qp.fail()).is_err() && !self.calling {
            return false;
        }
        let answered = !matches!(self.conn, QpState::Calling | QpState::Requested);
        self.conn = QpState::Leaving { answered };
        (self.fid, self.bindings) = (None, Bindings::default());
        (self.sent, self.posted) = (Fifo::default(), Fifo::default());
        self.work = Vec::new();
        true
    }
}
