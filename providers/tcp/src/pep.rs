//! Passive endpoints: listening for MSG connections.
use crate::config::config;
use crate::engine::{
    ACCEPTS, BACKLOG, CONNECT_TIMEOUT, DEAF_DELAY, HANDSHAKE_TIMEOUT, Request, Timer, cm_message,
    is_shortage, max_silent,
};
use crate::guests::{self, Door, Guest};
use crate::info::TCP;
use crate::sock::{Socket, to_bytes};
use crate::wire::{CM_DATA_MAX, CM_LEN, CmType};
use core::ffi::c_int;
use ofi_provider::abi::FI_CONNREQ;
use ofi_provider::addr;
use ofi_provider::eq::{Eq, Event, FidPtr};
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::{PassiveEp, Reject, Request as Pending, take_request};
use ofi_provider::info::InfoBuf;
use ofi_provider::lock::Lock;
use ofi_provider::progress::Progress;
use ofi_provider::slab::Slab;
use ofi_provider::sys::{Epoll, Interest};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Token of the listening socket; callers have their index.
const LISTENER: u64 = u64::MAX;

/// Token of the timer.
const TIMER: u64 = u64::MAX - 1;

/// Callers that may be connected without having said what they want.
const MAX_SILENT: usize = 1024;

/// When there is no room for another request, and so long after that.
const ROOM_DELAY: Duration = Duration::from_millis(10);

/// Requests that wait for an answer for longer are refused when others want their place.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// A listening endpoint.
#[derive(Debug)]
pub(crate) struct TcpPep {
    shared: Arc<Shared>,
}

struct Shared {
    epoll: Epoll,
    state: Lock<State>,
    activity: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

/// Somebody whose request is not complete.
struct Caller {
    socket: Socket,
    peer: SocketAddr,
    bytes: Vec<u8>,
    /// Smaller: was here before.
    serial: u64,
    since: Instant,
    guest: Guest,
}

/// A request that the application knows of, by its handle.
struct Unanswered {
    handle: usize,
    /// It is gone when it was answered.
    request: Weak<()>,
    since: Instant,
}

struct State {
    local: SocketAddr,
    backlog: c_int,
    /// Bound by fi_setname, and not listening yet.
    bound: Option<Socket>,
    socket: Option<(Socket, Door)>,
    /// Requests, oldest first; answered ones may be among them.
    unanswered: VecDeque<Unanswered>,
    /// Connected, and their request is not complete.
    callers: Slab<Caller>,
    /// How many callers there were.
    called: u64,
    to: Option<(Arc<Eq>, FidPtr)>,
    /// What the application gets with a request, but for the addresses.
    info: InfoBuf,
    /// Accepting failed for want of descriptors or memory; epoll would report
    /// the callers for ever, so the timer makes us ask.
    deaf: bool,
    timer: Timer,
}

impl TcpPep {
    /// A passive endpoint for the address in `info`.
    pub(crate) fn new(info: InfoBuf, local: SocketAddr) -> Result<Self> {
        let (epoll, timer) = (Epoll::new()?, Timer::new()?);
        epoll.add(timer.as_raw_fd(), TIMER, Interest::READ)?;
        Ok(Self {
            shared: Arc::new(Shared {
                epoll,
                state: Lock::new(State {
                    local,
                    backlog: BACKLOG,
                    bound: None,
                    socket: None,
                    unanswered: VecDeque::new(),
                    callers: Slab::default(),
                    called: 0,
                    to: None,
                    info,
                    deaf: false,
                    timer,
                }),
                activity: AtomicU64::new(0),
            }),
        })
    }
}

/// A socket that has this address; any free port if it leaves the port open.
fn bound(addr: &SocketAddr) -> Result<Socket> {
    let socket = Socket::new(addr)?;
    socket.bind_listener(addr, config().ports)?;
    Ok(socket)
}

impl PassiveEp for TcpPep {
    type Request = Request;

    fn listen(&self, eq: Arc<Eq>, fid: FidPtr) -> Result {
        let mut state = self.shared.state.lock();
        if state.socket.is_some() {
            return Err(Error::OPBADSTATE);
        }
        let socket = match state.bound.take() {
            Some(socket) => socket,
            None => bound(&state.local)?,
        };
        socket.listen(state.backlog)?;
        state.local = socket.local_addr()?;
        self.shared.epoll.add(socket.fd(), LISTENER, Interest::READ)?;
        state.socket = Some((socket, Door::open()));
        state.to = Some((eq, fid));
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
        if state.socket.is_some() {
            return Err(Error::OPBADSTATE);
        }
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
        state.callers = Slab::default();
        state.unanswered.clear();
        if let Some((_, fid)) = state.to.take() {
            Pending::drop_all_of(fid.0 as usize);
        }
    }
}

impl Progress for Shared {
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

impl State {
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
                    if self.callers.len() >= max_silent().min(MAX_SILENT) {
                        self.drop_oldest();
                    }
                    let fd = socket.fd();
                    let (bytes, serial, since) = (Vec::new(), self.called, Instant::now());
                    let guest = Guest::new(peer.ip());
                    self.called += 1;
                    let caller = Caller { socket, peer, bytes, serial, since, guest };
                    let id = self.callers.insert(caller);
                    if epoll.add(fd, u64::from(id), Interest::READ).is_err() {
                        self.callers.remove(id);
                    } else {
                        self.hear(id, epoll);
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
                Err(error) if is_shortage(error) => self.drop_oldest(),
                Err(_) => break,
            }
        }
        if std::mem::take(&mut self.deaf)
            && let Some((listener, _)) = &self.socket
        {
            let _ = epoll.add(listener.fd(), LISTENER, Interest::READ);
        }
        if !self.callers.is_empty() {
            self.timer.set(patience.unwrap_or(HANDSHAKE_TIMEOUT));
        }
    }

    /// Callers stay in the system's queue. Epoll would report them for ever, so it must
    /// not; the timer makes us ask.
    fn wait(&mut self, epoll: &Epoll, delay: Duration) {
        if let Some((listener, _)) = self.socket.as_ref().filter(|_| !self.deaf) {
            self.deaf = true;
            epoll.remove(listener.fd());
        }
        self.timer.set(delay);
    }

    /// Ends connections on which nobody said for long what he wants. When the next one is to
    /// be looked at.
    fn end_silence(&mut self, epoll: &Epoll) -> Option<Duration> {
        let late = |(_, caller): &(u32, &Caller)| caller.since.elapsed() >= HANDSHAKE_TIMEOUT;
        let late: Vec<_> = self.callers.iter().filter(late).map(|(id, _)| id).collect();
        for id in late {
            // It may be us who did not listen.
            self.hear(id, epoll);
            self.callers.remove(id);
        }
        let oldest = self.callers.iter().map(|(_, caller)| caller.since).min()?;
        Some((HANDSHAKE_TIMEOUT - oldest.elapsed().min(HANDSHAKE_TIMEOUT)).max(ROOM_DELAY))
    }

    /// Whether there are as many requests as the backlog says, answered ones included.
    fn is_full(&self) -> bool {
        self.unanswered.len() >= usize::try_from(self.backlog).unwrap_or(0).max(1)
    }

    /// Whether one more neither exceeds the backlog nor leaves the program too few descriptors.
    fn has_room(&self) -> bool {
        let own = self.unanswered.len() + self.callers.len() + 1;
        !self.is_full() && !guests::are_too_many(own)
    }

    /// Whether another caller may be accepted: while the application has as many requests
    /// to answer as its backlog says, or strangers have as many descriptors as they may, the
    /// system keeps the callers. Who says nothing, or gets no answer for long, goes first.
    fn makes_room(&mut self) -> bool {
        loop {
            if self.has_room() {
                return true;
            }
            // Some of them may have been answered.
            self.unanswered.retain(|request| request.request.strong_count() > 0);
            if self.has_room() {
                return true;
            }
            if !self.is_full() && !self.callers.is_empty() {
                self.drop_oldest();
                continue;
            }
            let late = |request: &mut Unanswered| request.since.elapsed() >= ANSWER_TIME;
            let Some(late) = self.unanswered.pop_front_if(late) else { return false };
            if late.request.strong_count() > 0
                && let Ok(request) = take_request::<Request>(late.handle as *const _)
            {
                let _ = request.reject(&[]);
            }
        }
    }

    /// Strangers must not use up our descriptors by silence.
    fn drop_oldest(&mut self) {
        let oldest = self.callers.iter().min_by_key(|(_, caller)| caller.serial);
        if let Some(id) = oldest.map(|(id, _)| id) {
            self.callers.remove(id);
        }
    }

    /// Reads a caller's request; when it is complete the application hears of it.
    fn hear(&mut self, id: u32, epoll: &Epoll) {
        let Some(Caller { socket, peer, bytes, .. }) = self.callers.get_mut(id) else { return };
        let mut room = [0u8; CM_LEN + CM_DATA_MAX];
        loop {
            // No byte behind the request may be taken: it belongs to a message.
            let want = match crate::wire::CmMessage::len_at(bytes) {
                Ok(Some(len)) if bytes.len() >= CM_LEN => len - bytes.len(),
                _ => CM_LEN - bytes.len().min(CM_LEN),
            };
            if want == 0 {
                break;
            }
            match socket.recv(&mut room[..want]) {
                Ok(0) => {
                    self.callers.remove(id);
                    return;
                }
                Ok(n) => bytes.extend_from_slice(&room[..n]),
                Err(Error::AGAIN | Error::INTR) => break,
                Err(_) => {
                    self.callers.remove(id);
                    return;
                }
            }
            if crate::wire::CmMessage::len_at(bytes).is_err() {
                break;
            }
        }
        let message = match cm_message(bytes) {
            Ok(None) => return,
            Ok(Some(message)) if message.kind == CmType::Request => message,
            Ok(Some(_)) => {
                self.callers.remove(id);
                return;
            }
            Err(why) => {
                ofi_provider::log_sparsely!(
                    &TCP,
                    WARN,
                    EP_CTRL,
                    "refusing the connection of {peer}: {why}"
                );
                self.callers.remove(id);
                return;
            }
        };
        let Some(Caller { socket, peer, guest, .. }) = self.callers.remove(id) else { return };
        // What comes next is for an endpoint: it must not wake the event queue.
        epoll.remove(socket.fd());
        if let Err(error) = self.announce(socket, &peer, message, guest) {
            ofi_provider::log_sparsely!(
                &TCP,
                WARN,
                EP_CTRL,
                "dropping the connection request of {peer}: {error}"
            );
        }
    }

    fn announce(
        &mut self,
        socket: Socket,
        peer: &SocketAddr,
        message: crate::wire::CmMessage,
        guest: Guest,
    ) -> Result {
        let Some((eq, fid)) = &self.to else { return Err(Error::NOEQ) };
        let local = socket.local_addr()?;
        let mut info = self.info.as_ref().to_owned()?;
        info.set_src_addr(Some(&to_bytes(&local)))?;
        info.set_dest_addr(Some(&to_bytes(peer)))?;
        let (order, atomics, pending) = (message.order, message.knows.atomics, Arc::new(()));
        let unanswered = Arc::downgrade(&pending);
        let request = Request { socket, order, atomics, _guest: guest, _pending: pending };
        let handle = Pending::keep(request, fid.0 as usize);
        info.set_handle(handle);
        let (handle, since) = (handle as usize, Instant::now());
        self.unanswered.push_back(Unanswered { handle, request: unanswered, since });
        let event = FI_CONNREQ as u32;
        eq.write(Event::Cm { event, fid: *fid, info: Some(info), data: message.data });
        Ok(())
    }
}
