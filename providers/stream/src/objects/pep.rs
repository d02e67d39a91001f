//! Passive endpoints: listening for MSG connections.
use super::unanswered::UnansweredRequests;
use crate::accept_queue::{self, AcceptQueue, HANDSHAKE_TIMEOUT, PendingConn, PendingConnState};
use crate::conn_quota::{self, CountedListener};
use crate::engine::{
    ACCEPT_DELAY, ACCEPTS, BACKLOG, StreamRequest, is_out_of_descriptors, is_shortage, max_conns,
    used_descriptors,
};
use crate::repeated_requests::{NumberedRequests, RepeatOutcome};
use crate::transport::{ByteLink, LinkListener, LinkPoller, ShmTransport, TIMER_TOKEN};
use crate::wire::{CM_DATA_MAX, CmMessage, CmType, Malformed, PeerFeatures};
use core::ffi::c_int;
use ofi_provider::addr::Addr;
use ofi_provider::api::{ConnReqReporter, PassiveEp, Reject, take_request};
use ofi_provider::core_provider::{
    ACCEPT_ONE_MORE, ACCEPT_WITHIN_LIMIT, OPT_ACCEPT_LIMIT, OPT_CONN_USAGE,
};
use ofi_provider::eq::{Eq, FidPtr};
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::info::InfoBuf;
use ofi_provider::lock::Lock;
use ofi_provider::progress::{Activity, Progress};
use ofi_provider::sys::{Interest, PollEvent};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Token of the listener in the poller; the token of a pending connection is its index.
const LISTENER: u64 = u64::MAX;

/// Number of the endpoint for all pending connections of a passive endpoint: there is only one.
const ALL: u32 = 0;

/// Maximum pending connections with an incomplete request.
const MAX_SILENT: usize = 1024;

/// Interval between checks for space for another request while there is none.
const SPACE_DELAY: Duration = Duration::from_millis(10);

/// The same for a program closing connections at the limit.
const LIMIT_DELAY: Duration = Duration::from_millis(1);

/// A listening endpoint.
#[derive(Debug)]
pub struct StreamPep<N: ShmTransport> {
    shared: Arc<StreamPepShared<N>>,
}

struct StreamPepShared<N: ShmTransport> {
    state: Lock<StreamPepState<N>>,
    wait_fd: RawFd,
    activity: Activity,
}

impl<N: ShmTransport> std::fmt::Debug for StreamPepShared<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamPepShared")
    }
}

/// Limit of the connections accepted by a passive endpoint with a user closing idle connections
/// ([`OPT_ACCEPT_LIMIT`]).
#[derive(Default)]
struct AcceptLimit {
    is_limited: bool,
    may_exceed: bool,
    /// Number of connections waiting at the listener for space, or for a descriptor.
    waiting: usize,
    /// They wait for a descriptor.
    is_short: bool,
}

struct StreamPepState<N: ShmTransport> {
    net: N,
    local: Addr,
    backlog: c_int,
    /// Listener created by fi_setname, until the endpoint listens.
    bound: Option<N::Listener>,
    listener: Option<(N::Listener, CountedListener)>,
    unanswered: UnansweredRequests,
    /// Requests repeated by their callers after the loss of a socket.
    numbered: NumberedRequests<N::Link>,
    /// Accepted connections with an incomplete request.
    callers: AcceptQueue<N::Link>,
    reporter: ConnReqReporter,
    /// Limit of accepted connections.
    limit: AcceptLimit,
    /// The listener is not watched, because callers cannot be accepted now and the poller would
    /// report them again and again; the timer makes it try again.
    accept_paused: bool,
}

impl<N: ShmTransport> StreamPep<N> {
    /// A passive endpoint on `net`, for the address in `info`.
    pub(super) fn new(net: N, info: InfoBuf, local: Addr) -> Result<Self> {
        let wait_fd = net.wait_fd();
        let state = StreamPepState {
            net,
            local,
            backlog: BACKLOG,
            bound: None,
            listener: None,
            unanswered: UnansweredRequests::default(),
            numbered: NumberedRequests::default(),
            callers: AcceptQueue::new(0, MAX_SILENT),
            reporter: ConnReqReporter::new(info),
            limit: AcceptLimit::default(),
            accept_paused: false,
        };
        let activity = Activity::default();
        Ok(Self {
            shared: Arc::new(StreamPepShared { state: Lock::new(state), wait_fd, activity }),
        })
    }
}

impl<N: ShmTransport> PassiveEp for StreamPep<N> {
    type Request = StreamRequest<N::Link>;

    fn listen(&self, eq: Arc<Eq>, fid: FidPtr) -> Result {
        let state = &mut *self.shared.state.lock();
        state.reporter.check_silent()?;
        let listener = match state.bound.take() {
            Some(listener) => listener,
            None => {
                let (listener, local) = state.net.bind(&state.local)?;
                state.local = local;
                listener
            }
        };
        listener.listen(state.backlog)?;
        state.net.poller().add(listener.id(), LISTENER, Interest::READ)?;
        state.listener = Some((listener, CountedListener::open()));
        state.reporter.listen(eq, fid);
        Ok(())
    }

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.shared.clone()
    }

    fn getname(&self) -> Result<Vec<u8>> {
        Ok(self.shared.state.lock().local.to_bytes())
    }

    fn setname(&self, name: &[u8]) -> Result {
        let state = &mut *self.shared.state.lock();
        state.reporter.check_silent()?;
        let addr = Addr::from_application(state.local.format(), name)?;
        // The port is fixed from now on: an active endpoint may be opened with
        // this address (fi_endpoint(3)) instead of listening.
        state.bound = None;
        let (listener, local) = state.net.bind(&addr)?;
        state.local = local;
        state.bound = Some(listener);
        Ok(())
    }

    fn set_backlog(&self, backlog: c_int) -> Result {
        let mut state = self.shared.state.lock();
        state.backlog = backlog;
        state.listener.as_ref().map_or(Ok(()), |(listener, _)| listener.listen(backlog))
    }

    fn cm_data_size(&self) -> usize {
        CM_DATA_MAX
    }

    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize> {
        if name != OPT_CONN_USAGE {
            return Err(Error::NOPROTOOPT);
        }
        let mut state = self.shared.state.lock();
        // Requests that were answered are connections.
        let now = state.net.now();
        state.unanswered.remove_answered(now);
        let [used, max] = state.conn_usage();
        let AcceptLimit { waiting, is_short, .. } = state.limit;
        let max = match conn_quota::check_reserve() {
            Ok(()) if is_short => max.min(used),
            Ok(()) => max,
            Err(_) => 0,
        };
        let usage = [used, max, waiting];
        let bytes = value.first_chunk_mut::<24>().ok_or(Error::TOOSMALL)?;
        for (bytes, number) in bytes.chunks_exact_mut(8).zip(usage) {
            bytes.copy_from_slice(&(number as u64).to_ne_bytes());
        }
        Ok(bytes.len())
    }

    fn setopt(&self, name: c_int, value: &[u8]) -> Result {
        let mut state = self.shared.state.lock();
        match (name, value) {
            (OPT_ACCEPT_LIMIT, [ACCEPT_WITHIN_LIMIT]) => state.limit.is_limited = true,
            (OPT_ACCEPT_LIMIT, [ACCEPT_ONE_MORE]) => state.limit.may_exceed = true,
            (OPT_ACCEPT_LIMIT, _) => return Err(Error::INVAL),
            _ => return Err(Error::NOPROTOOPT),
        }
        Ok(())
    }

    fn close(&self) {
        let mut state = self.shared.state.lock();
        state.bound = None;
        if let Some((listener, _)) = state.listener.take() {
            listener.stop_listening();
        }
        state.callers.drop_all_of(ALL);
        state.unanswered = UnansweredRequests::default();
        state.reporter.close_unread();
    }
}

impl<N: ShmTransport> Progress for StreamPepShared<N> {
    fn progress(&self) {
        self.activity.another();
        if !heap::may_progress() {
            return;
        }
        let mut events: Vec<PollEvent> = Vec::new();
        let mut state = self.state.lock();
        state.net.poll(&mut events);
        for event in events {
            match event.token {
                LISTENER | TIMER_TOKEN => state.accept_all(),
                caller => state.receive(caller as u32),
            }
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.wait_fd
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

impl<N: ShmTransport> StreamPepState<N> {
    fn accept_all(&mut self) {
        self.net.clear_timer();
        let hold_off = self.end_silence();
        for _ in 0..ACCEPTS {
            if !self.make_space() {
                return self.wait(SPACE_DELAY);
            }
            let Some((listener, _)) = &self.listener else { return };
            if self.is_at_limit() {
                self.limit.waiting = listener.waiting().max(1);
                return self.wait(LIMIT_DELAY);
            }
            let reserve = if self.limit.is_limited { conn_quota::check_reserve() } else { Ok(()) };
            match reserve.and_then(|()| listener.accept()) {
                Ok((link, from)) => {
                    self.limit =
                        AcceptLimit { is_limited: self.limit.is_limited, ..Default::default() };
                    link.waits();
                    let now = self.net.now();
                    match self.callers.admit(self.net.poller(), link, from, ALL, now) {
                        (id, PendingConnState::Complete) => self.called(id),
                        (_, PendingConnState::Incomplete | PendingConnState::Over) => {}
                    }
                }
                Err(Error::CONNABORTED | Error::INTR) => {}
                Err(error) if is_out_of_descriptors(error) && self.limit.is_limited => {
                    self.limit.is_short = true;
                    self.limit.waiting = listener.waiting().max(1);
                    return self.wait(LIMIT_DELAY);
                }
                Err(error) if is_shortage(error) && self.callers.is_empty() => {
                    if !self.accept_paused {
                        ofi_provider::log_sparsely!(
                            N::Link::provider(),
                            WARN,
                            EP_CTRL,
                            "cannot accept a connection: {error}; the caller waits (see RLIMIT_NOFILE)"
                        );
                    }
                    return self.wait(ACCEPT_DELAY);
                }
                Err(error) if is_shortage(error) => {
                    self.callers.drop_oldest();
                }
                Err(_) => {
                    self.limit =
                        AcceptLimit { is_limited: self.limit.is_limited, ..Default::default() };
                    break;
                }
            }
        }
        if std::mem::take(&mut self.accept_paused) {
            if let Some((listener, _)) = &self.listener {
                let _ = self.net.poller().add(listener.id(), LISTENER, Interest::READ);
            }
        }
        if !self.callers.is_empty() {
            let next = hold_off.map(|at| at.saturating_duration_since(self.net.now()));
            self.net.set_timer(next.unwrap_or(HANDSHAKE_TIMEOUT).max(SPACE_DELAY));
        }
    }

    /// Returns the descriptors used by connections of the process and their maximum.
    fn conn_usage(&self) -> [usize; 2] {
        let pending = self.callers.len() + self.unanswered.len();
        [used_descriptors() + pending, max_conns::<N>()]
    }

    /// Returns true if a connection has to wait at the listener until another one is closed.
    fn is_at_limit(&self) -> bool {
        let [used, max] = self.conn_usage();
        self.limit.is_limited && !self.limit.may_exceed && used >= max
    }

    /// Leaves connections in the kernel's accept queue for `delay`: stops watching the listener,
    /// because the poller would report it continually, and sets the timer.
    fn wait(&mut self, delay: Duration) {
        if let Some((listener, _)) = self.listener.as_ref().filter(|_| !self.accept_paused) {
            self.accept_paused = true;
            self.net.poller().remove(listener.id());
        }
        self.net.set_timer(delay);
    }

    /// Closes connections without a complete request in time ([`HANDSHAKE_TIMEOUT`]). Returns the
    /// time of the next check.
    fn end_silence(&mut self) -> Option<Instant> {
        let (complete, next) = self.callers.end_silence(self.net.now());
        complete.into_iter().for_each(|id| self.called(id));
        next
    }

    /// Returns true if the number of requests has reached the backlog, answered ones included.
    fn is_full(&self) -> bool {
        self.unanswered.len() >= usize::try_from(self.backlog).unwrap_or(0).max(1)
    }

    /// Returns true if one more pending connection neither exceeds the backlog nor leaves the
    /// program too few descriptors.
    fn has_space(&self) -> bool {
        let own = self.unanswered.len() + self.callers.len() + 1;
        !self.is_full() && !conn_quota::are_too_many(own)
    }

    /// Returns true if another connection may be accepted. Connections stay in the kernel's accept
    /// queue while the unanswered requests reach the backlog, or unknown peers use up their share
    /// of descriptors. Silent pending connections, and [late](UnansweredRequests::take_late) requests, are
    /// dropped to make space.
    fn make_space(&mut self) -> bool {
        let now = self.net.now();
        loop {
            if self.has_space() {
                return true;
            }
            // Requests that were answered meanwhile take no place.
            self.unanswered.remove_answered(now);
            if self.has_space() {
                return true;
            }
            if !self.is_full() && self.callers.drop_oldest() {
                continue;
            }
            let Some(handle) = self.unanswered.take_late(now) else { return false };
            if let Ok(request) = take_request::<StreamRequest<N::Link>>(handle as *const _) {
                ofi_provider::log_sparsely!(
                    N::Link::provider(),
                    WARN,
                    EP_CTRL,
                    "rejecting a connection request, because the program has answered none for long"
                );
                let _ = request.reject(&[]);
            }
        }
    }

    fn receive(&mut self, id: u32) {
        if self.callers.receive(id) == PendingConnState::Complete {
            self.called(id);
        }
    }

    /// A caller's request is complete: reports FI_CONNREQ to the application.
    fn called(&mut self, id: u32) {
        match self.numbered.handle_repeated(&mut self.callers, self.net.poller(), id) {
            RepeatOutcome::New => {}
            RepeatOutcome::Handled => return,
            RepeatOutcome::Over => {
                let reason = CmMessage::encode(CmType::Nack, PeerFeatures::default(), &[]);
                if let Some((caller, _)) = self.callers.take(self.net.poller(), id) {
                    let _ = caller.link.send(&reason);
                }
                return;
            }
        }
        // Data received on the connection from now on is for an endpoint, and must not wake the
        // event queue.
        let Some((caller, request)) = self.callers.take(self.net.poller(), id) else { return };
        let from = caller.from.clone();
        if request.kind != CmType::Request {
            accept_queue::log_rejection::<N::Link>(
                format_args!("of {}", from.for_people()),
                Malformed("connection message out of turn"),
            );
        } else if let Err(error) = self.announce(caller, request) {
            ofi_provider::log_sparsely!(
                N::Link::provider(),
                WARN,
                EP_CTRL,
                "dropping the connection request of {}: {error}",
                from.for_people()
            );
        }
    }

    fn announce(&mut self, caller: PendingConn<N::Link>, message: CmMessage) -> Result {
        let ends = [caller.link.local_addr()?.to_bytes(), caller.from.to_bytes()];
        let pending = Arc::new(());
        let unanswered = Arc::downgrade(&pending);
        let request = StreamRequest::admit(&mut self.numbered, caller, &message, pending);
        let ends = [Some(&*ends[0]), Some(&*ends[1])];
        let handle = self.reporter.announce(request, ends, message.data, |_| Ok(()))?;
        self.unanswered.add(handle as usize, unanswered, self.net.now());
        Ok(())
    }
}
