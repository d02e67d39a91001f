//! Passive endpoints: listening for MSG connections.
use crate::config::config;
use crate::net::TcpRequest;
use crate::provider::TCP;
use crate::sock::{TcpSocket, to_bytes};
use core::ffi::c_int;
use ofi_provider::addr;
use ofi_provider::api::{Announcer, PassiveEp, Reject, take_request};
use ofi_provider::eq::{Eq, FidPtr};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::lock::Lock;
use ofi_provider::progress::Progress;
use ofi_provider::sys::{Epoll, Interest, Timer};
use ofi_stream::callers::{self, Caller, CallerState, Callers, HANDSHAKE_TIMEOUT};
use ofi_stream::engine::{ACCEPTS, BACKLOG, CONNECT_TIMEOUT, DEAF_DELAY, is_shortage};
use ofi_stream::guests::{self, Door};
use ofi_stream::wire::{CM_DATA_MAX, CmMessage, CmType, Malformed};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Epoll token of the listening socket; a caller's token is its index.
const LISTENER: u64 = u64::MAX;

/// Epoll token of the timer.
const TIMER: u64 = u64::MAX - 1;

/// The number that all callers of a passive endpoint call: there is only one endpoint.
const ALL: u32 = 0;

/// Most callers whose connection request is not complete.
const MAX_SILENT: usize = 1024;

/// How often it is checked whether there is room for another request while there is none.
const ROOM_DELAY: Duration = Duration::from_millis(10);

/// A request that the application has not answered for so long may be refused when another
/// caller needs its place.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// A listening endpoint.
#[derive(Debug)]
pub(crate) struct TcpPep {
    shared: Arc<TcpPepShared>,
}

struct TcpPepShared {
    epoll: Epoll,
    state: Lock<TcpPepState>,
    activity: AtomicU64,
}

impl std::fmt::Debug for TcpPepShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TcpPepShared")
    }
}

/// A request that the application knows of, by its handle.
struct Unanswered {
    handle: usize,
    /// Dead once the request was answered or rejected.
    request: Weak<()>,
    since: Instant,
}

struct TcpPepState {
    local: SocketAddr,
    backlog: c_int,
    /// The socket bound by fi_setname, until the endpoint listens.
    bound: Option<TcpSocket>,
    socket: Option<(TcpSocket, Door)>,
    /// Requests that the application knows of, oldest first; answered ones may be among them.
    unanswered: VecDeque<Unanswered>,
    /// Accepted connections whose request is not complete.
    callers: Callers<TcpSocket>,
    announcer: Announcer,
    /// The listener is out of epoll, because callers cannot be accepted now and epoll would
    /// report them again and again; the timer makes it try again.
    deaf: bool,
    timer: Timer,
}

impl TcpPep {
    /// A passive endpoint for the address in `info`.
    pub(crate) fn new(info: InfoBuf, local: SocketAddr) -> Result<Self> {
        let (epoll, timer) = (Epoll::new()?, Timer::new()?);
        epoll.add(timer.as_raw_fd(), TIMER, Interest::READ)?;
        Ok(Self {
            shared: Arc::new(TcpPepShared {
                epoll,
                state: Lock::new(TcpPepState {
                    local,
                    backlog: BACKLOG,
                    bound: None,
                    socket: None,
                    unanswered: VecDeque::new(),
                    callers: Callers::new(0, MAX_SILENT),
                    announcer: Announcer::new(info),
                    deaf: false,
                    timer,
                }),
                activity: AtomicU64::new(0),
            }),
        })
    }
}

/// A socket bound to this address, to any free port if the address leaves the port open.
fn bound(addr: &SocketAddr) -> Result<TcpSocket> {
    let socket = TcpSocket::new(addr)?;
    socket.bind_listener(addr, config().ports)?;
    Ok(socket)
}

impl PassiveEp for TcpPep {
    type Request = TcpRequest;

    fn listen(&self, eq: Arc<Eq>, fid: FidPtr) -> Result {
        let mut state = self.shared.state.lock();
        state.announcer.check_silent()?;
        let socket = match state.bound.take() {
            Some(socket) => socket,
            None => bound(&state.local)?,
        };
        socket.listen(state.backlog)?;
        state.local = socket.local_addr()?;
        self.shared.epoll.add(socket.fd(), LISTENER, Interest::READ)?;
        state.socket = Some((socket, Door::open()));
        state.announcer.listen(eq, fid);
        Ok(())
    }

    fn progress_source(&self) -> Arc<dyn Progress> {
        self.shared.clone()
    }

    fn getname(&self) -> Result<Vec<u8>> {
        Ok(to_bytes(&self.shared.state.lock().local))
    }

    fn setname(&self, name: &[u8]) -> Result {
        let addr = addr::from_bytes(name)?;
        let mut state = self.shared.state.lock();
        state.announcer.check_silent()?;
        // The port is fixed from now on: an active endpoint may be opened with
        // this address (fi_endpoint(3)) instead of listening.
        state.bound = None;
        let socket = bound(&addr)?;
        state.local = socket.local_addr()?;
        state.bound = Some(socket);
        Ok(())
    }

    fn set_backlog(&self, backlog: c_int) -> Result {
        let mut state = self.shared.state.lock();
        state.backlog = backlog;
        match &state.socket {
            Some((socket, _)) => socket.listen(backlog),
            None => Ok(()),
        }
    }

    fn cm_data_size(&self) -> usize {
        CM_DATA_MAX
    }

    fn close(&self) {
        let mut state = self.shared.state.lock();
        state.bound = None;
        state.socket = None;
        state.callers.drop_all_of(ALL);
        state.unanswered.clear();
        state.announcer.close();
    }
}

impl Progress for TcpPepShared {
    fn progress(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
        let mut tokens = Vec::new();
        let _ = self.epoll.wait(Some(Duration::ZERO), |event| tokens.push(event.token));
        if tokens.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for token in tokens {
            if token == LISTENER || token == TIMER {
                state.accept_all(&self.epoll);
            } else {
                state.hear(token as u32, &self.epoll);
            }
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }
}

impl TcpPepState {
    fn accept_all(&mut self, epoll: &Epoll) {
        self.timer.set(Duration::ZERO);
        let patience = self.end_silence(epoll);
        for _ in 0..ACCEPTS {
            if !self.makes_room() {
                return self.wait(epoll, ROOM_DELAY);
            }
            let Some((listener, _)) = &self.socket else { return };
            match listener.accept() {
                Ok((_, peer)) if !config().peers.admits(peer.ip()) => {}
                Ok((socket, peer)) => {
                    if config().nodelay {
                        socket.set_nodelay();
                    }
                    socket.set_connect_timeout(CONNECT_TIMEOUT);
                    match self.callers.admit(epoll, socket, peer, ALL, Instant::now()) {
                        (id, CallerState::Complete) => self.called(id, epoll),
                        (_, CallerState::Incomplete | CallerState::Over) => {}
                    }
                }
                Err(Error::CONNABORTED | Error::INTR) => {}
                Err(error) if is_shortage(error) && self.callers.is_empty() => {
                    if !self.deaf {
                        ofi_provider::log_sparsely!(
                            &TCP,
                            WARN,
                            EP_CTRL,
                            "cannot accept a connection: {error}; the caller waits (see RLIMIT_NOFILE)"
                        );
                    }
                    return self.wait(epoll, DEAF_DELAY);
                }
                Err(error) if is_shortage(error) => {
                    self.callers.drop_oldest();
                }
                Err(_) => break,
            }
        }
        if std::mem::take(&mut self.deaf)
            && let Some((listener, _)) = &self.socket
        {
            let _ = epoll.add(listener.fd(), LISTENER, Interest::READ);
        }
        if !self.callers.is_empty() {
            let next = patience.map(|at| at.saturating_duration_since(Instant::now()));
            self.timer.set(next.unwrap_or(HANDSHAKE_TIMEOUT).max(ROOM_DELAY));
        }
    }

    /// Leaves callers in the system's queue for `delay`: takes the listener out of epoll, which
    /// would report them again and again, and sets the timer.
    fn wait(&mut self, epoll: &Epoll, delay: Duration) {
        if let Some((listener, _)) = self.socket.as_ref().filter(|_| !self.deaf) {
            self.deaf = true;
            epoll.remove(listener.fd());
        }
        self.timer.set(delay);
    }

    /// Ends connections whose request was not complete in time ([`HANDSHAKE_TIMEOUT`]). Returns
    /// when to look at the next one.
    fn end_silence(&mut self, epoll: &Epoll) -> Option<Instant> {
        let (complete, next) = self.callers.end_silence(Instant::now());
        complete.into_iter().for_each(|id| self.called(id, epoll));
        next
    }

    /// Whether there are as many requests as the backlog says, answered ones included.
    fn is_full(&self) -> bool {
        self.unanswered.len() >= usize::try_from(self.backlog).unwrap_or(0).max(1)
    }

    /// Whether one more caller neither exceeds the backlog nor leaves the program too few
    /// descriptors.
    fn has_room(&self) -> bool {
        let own = self.unanswered.len() + self.callers.len() + 1;
        !self.is_full() && !guests::are_too_many(own)
    }

    /// Whether another caller may be accepted: while the application has as many requests to
    /// answer as its backlog says, or strangers have as many descriptors as they may, the system
    /// keeps the callers. Silent callers, and requests unanswered for [`ANSWER_TIME`], are
    /// dropped to make room.
    fn makes_room(&mut self) -> bool {
        loop {
            if self.has_room() {
                return true;
            }
            // Requests that were answered meanwhile take no place.
            self.unanswered.retain(|request| request.request.strong_count() > 0);
            if self.has_room() {
                return true;
            }
            if !self.is_full() && self.callers.drop_oldest() {
                continue;
            }
            let late = |request: &mut Unanswered| request.since.elapsed() >= ANSWER_TIME;
            let Some(late) = self.unanswered.pop_front_if(late) else { return false };
            if late.request.strong_count() > 0
                && let Ok(request) = take_request::<TcpRequest>(late.handle as *const _)
            {
                let _ = request.reject(&[]);
            }
        }
    }

    fn hear(&mut self, id: u32, epoll: &Epoll) {
        if self.callers.hear(id) == CallerState::Complete {
            self.called(id, epoll);
        }
    }

    /// A caller's request is complete: reports FI_CONNREQ to the application.
    fn called(&mut self, id: u32, epoll: &Epoll) {
        // What comes on the connection from now on is for an endpoint, and must not wake the
        // event queue.
        let Some((caller, request)) = self.callers.take(epoll, id) else { return };
        let from = caller.from;
        if request.kind != CmType::Request {
            callers::refuse::<TcpSocket>(
                format_args!("of {from}"),
                Malformed("connection message out of turn"),
            );
        } else if let Err(error) = self.announce(caller, request) {
            ofi_provider::log_sparsely!(
                &TCP,
                WARN,
                EP_CTRL,
                "dropping the connection request of {from}: {error}"
            );
        }
    }

    fn announce(&mut self, caller: Caller<TcpSocket>, message: CmMessage) -> Result {
        let ends = [to_bytes(&caller.link.local_addr()?), to_bytes(&caller.from)];
        let pending = Arc::new(());
        let unanswered = Arc::downgrade(&pending);
        let request = TcpRequest::new(caller, &message, pending);
        let ends = [Some(&*ends[0]), Some(&*ends[1])];
        let handle = self.announcer.announce(request, ends, message.data, |_| Ok(()))?;
        let (handle, since) = (handle as usize, Instant::now());
        self.unanswered.push_back(Unanswered { handle, request: unanswered, since });
        Ok(())
    }
}
