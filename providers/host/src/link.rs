//! Links: AF_UNIX sockets with abstract names.
//!
//! An endpoint listens at a socket with a name derived from its own ([`crate::name::of_socket`]).
//! The connecting end first sends its own name. Both sides query the kernel for the other's user,
//! and accept only processes of their own user.
use crate::name;
use crate::plug_in::provider;
use crate::settings::config;
use core::time::Duration;
use ofi_provider::addr::Addr;
use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
use ofi_provider::error::{Error, Result};
use ofi_provider::provider::Provider;
use ofi_provider::sock::{StreamSocket, unix_name_owner};
use ofi_provider::sys::{self, Epoll, Interest, PollEvent};
use ofi_stream::engine::BatchFlusher;
use ofi_stream::settings::StreamSettings;
use ofi_stream::transport::{
    ByteLink, FlushTarget, LinkClock, LinkListener, Transport, Watch, ZeroCopyLink,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum pending connections of a listener without a received name; the oldest is dropped if
/// there are more.
const MAX_NAMELESS: usize = 64;

/// Minimum interval between queries for the owner of an unresponsive peer's socket name.
const OWNER_LOOK: Duration = Duration::from_secs(1);

/// Number of names tried for an endpoint after its own is taken.
const NAMES: usize = 16;

/// Links of an engine, with their poller.
#[derive(Debug)]
pub(crate) struct ShmLinks(Watch);

impl ShmLinks {
    pub(crate) fn new() -> Result<Self> {
        Watch::new().map(Self)
    }
}

impl LinkClock for ShmLinks {}

impl Transport for ShmLinks {
    type Link = ShmLink;
    type Listener = ShmListener;
    type Poller = Epoll;
    type Flusher = BatchFlusher;

    #[inline(always)]
    fn poller(&self) -> &Epoll {
        self.0.poller()
    }

    #[inline(always)]
    fn poll(&self, events: &mut Vec<PollEvent>) {
        self.0.poll(events);
    }

    fn wait_fd(&self) -> RawFd {
        self.0.wait_fd()
    }

    fn set_timer(&self, delay: Duration) {
        self.0.set_timer(delay);
    }

    fn clear_timer(&self) {
        self.0.clear_timer();
    }

    fn start_flusher(&self, engine: Weak<dyn FlushTarget>) -> Result<BatchFlusher> {
        BatchFlusher::new(engine, provider())
    }

    fn dial(&self, local: &Addr, _keep_port: bool, to: &Addr) -> Result<ShmLink> {
        let (own, called) = (name::named(local)?, name::named(to)?);
        let socket = StreamSocket::new(libc::AF_UNIX)?;
        // The engine takes an error for an answer of the other end, and asks the link for it.
        let refused = call(&socket, &name::of_socket(called), &name::encode(own)).err();
        Ok(ShmLink { socket, refused, ends: [local.clone(), to.clone()] })
    }

    fn bind(&self, at: &Addr) -> Result<(ShmListener, Addr)> {
        let at = if at.is_any() { name::fresh()? } else { at.clone() };
        let wanted = name::named(&at)?;
        let others = (1..NAMES).map(|_| name::another(wanted));
        for at in std::iter::once(Ok(at.clone())).chain(others) {
            let at = at?;
            match ShmListener::new(&at) {
                Err(Error::BUSY) if wanted.is_replaceable() => {}
                // From now on peers may know the name.
                made => return Ok((made?, name::settled(&at)?)),
            }
        }
        Err(Error::BUSY)
    }
}

/// Connects to the endpoint with this socket name, and sends it the own name. A socket of this
/// family is connected at once or not at all. Fails with -FI_EACCES if another user has the name.
fn call(socket: &StreamSocket, to: &[u8], own: &[u8]) -> Result {
    match socket.connect(to) {
        // Its queue of callers is full, or it does not listen; it is worth trying again, as when no socket has the name.
        Err(Error::AGAIN | Error::CONNREFUSED) => {
            return Err(if is_of_another_user(to) { Error::ACCES } else { Error::CONNREFUSED });
        }
        done => done?,
    }
    if !socket.is_of_same_user()? {
        return Err(Error::ACCES);
    }
    match socket.send(own) {
        Ok(sent) if sent == own.len() => Ok(()),
        Ok(_) => Err(Error::IO),
        // The listener was closed meanwhile.
        Err(_) => Err(Error::CONNREFUSED),
    }
}

/// Returns true if the socket of this name belongs to another user than this process's or the
/// superuser, as far as the kernel reports it. The kernel scans all sockets of the host, so it is
/// queried at most once a second.
fn is_of_another_user(name: &[u8]) -> bool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (now, next) = (sys::fine_now(), NEXT.load(Ordering::Relaxed));
    let until = now.saturating_add(OWNER_LOOK.as_nanos() as u64);
    if now < next
        || NEXT.compare_exchange(next, until, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return false;
    }
    let Some(owner) = unix_name_owner(name) else { return false };
    let another = owner != sys::user() && owner != 0;
    if another {
        ofi_provider::log_sparsely!(
            provider(),
            WARN,
            EP_CTRL,
            "user {owner} has the name of a peer's socket and does not answer: the peer is not called"
        );
    }
    another
}

/// Listener of an endpoint.
#[derive(Debug)]
pub(crate) struct ShmListener {
    socket: StreamSocket,
    /// Poller of pending connections, new ones and those with received data.
    watch: Epoll,
    /// Pending connections without a received name, oldest first.
    nameless: RefCell<VecDeque<UnnamedPendingConn>>,
    at: Addr,
}

/// Pending connection with an incomplete name.
#[derive(Debug)]
struct UnnamedPendingConn {
    socket: StreamSocket,
    received: Vec<u8>,
}

impl UnnamedPendingConn {
    /// Returns the peer's address, once its name is complete; fails with -FI_EAGAIN before.
    fn receive_name(&mut self) -> Result<Addr> {
        loop {
            let mut buf = [0; 256];
            match name::missing(&self.received) {
                0 => return name::caller(&self.received),
                // No byte of what comes behind the name is taken.
                most => match self.socket.recv(&mut buf[..most])? {
                    0 => return Err(Error::CONNABORTED),
                    n => self.received.extend_from_slice(&buf[..n]),
                },
            }
        }
    }
}

impl ShmListener {
    /// Creates a listener with this name; fails with -FI_EBUSY if it is in use.
    fn new(at: &Addr) -> Result<Self> {
        let (socket, watch) = (StreamSocket::new(libc::AF_UNIX)?, Epoll::new()?);
        match socket.bind(&name::of_socket(name::named(at)?)) {
            Err(Error::ADDRINUSE) => return Err(Error::BUSY),
            done => done?,
        }
        watch.add(socket.fd(), 0, Interest::READ)?;
        Ok(Self { socket, watch, nameless: RefCell::default(), at: at.clone() })
    }

    fn made(&self, caller: UnnamedPendingConn, from: Addr) -> (ShmLink, Addr) {
        let ends = [self.at.clone(), from.clone()];
        (ShmLink { socket: caller.socket, refused: None, ends }, from)
    }
}

impl LinkListener for ShmListener {
    type Link = ShmLink;

    fn id(&self) -> RawFd {
        self.watch.as_raw_fd()
    }

    fn listen(&self, backlog: i32) -> Result {
        self.socket.listen(backlog)
    }

    fn stop_listening(&self) {
        self.socket.stop_listening();
    }

    fn accept(&self) -> Result<(ShmLink, Addr)> {
        let mut nameless = self.nameless.borrow_mut();
        let received =
            nameless.iter_mut().enumerate().find_map(|(at, caller)| match caller.receive_name() {
                Err(Error::AGAIN | Error::INTR) => None,
                received => Some((at, received)),
            });
        if let Some((at, received)) = received {
            if let Some(caller) = nameless.remove(at) {
                self.watch.remove(caller.socket.fd());
                let from = received.map_err(|_| Error::CONNABORTED)?;
                return Ok(self.made(caller, from));
            }
        }
        loop {
            let (socket, _) = self.socket.accept()?;
            // Every user of the host can call; only processes of ours are peers.
            if !socket.is_of_same_user()? {
                return Err(Error::CONNABORTED);
            }
            let mut caller = UnnamedPendingConn { socket, received: Vec::new() };
            match caller.receive_name() {
                Ok(from) => return Ok(self.made(caller, from)),
                Err(Error::AGAIN | Error::INTR) => {
                    if nameless.len() >= MAX_NAMELESS {
                        nameless.pop_front();
                    }
                    self.watch.add(caller.socket.fd(), 0, Interest::READ)?;
                    nameless.push_back(caller);
                }
                Err(_) => return Err(Error::CONNABORTED),
            }
        }
    }
}

/// One end of a link.
#[derive(Debug)]
pub(crate) struct ShmLink {
    socket: StreamSocket,
    /// Reason for a missing peer.
    refused: Option<Error>,
    /// Addresses of this end and of the other.
    ends: [Addr; 2],
}

impl ByteLink for ShmLink {
    type Id = RawFd;

    fn provider() -> &'static Provider {
        provider()
    }

    #[inline(always)]
    fn settings() -> &'static StreamSettings {
        &config().engine
    }

    #[inline(always)]
    fn id(&self) -> RawFd {
        self.socket.fd()
    }

    #[inline(always)]
    fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        self.socket.recv(buf)
    }

    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.socket.send(bytes)
    }

    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        self.socket.recv_list(list)
    }

    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize> {
        list.send_by(self.socket.fd(), way)
    }

    fn take_error(&self) -> Result {
        self.refused.map_or_else(|| self.socket.take_error(), Err)
    }

    fn is_on_this_host(&self) -> bool {
        true
    }

    /// Returns 0: the kernel delivers sent bytes after a close.
    fn unacknowledged(&self) -> usize {
        0
    }

    fn has_ended(&self) -> bool {
        self.socket.has_ended()
    }

    fn local_addr(&self) -> Result<Addr> {
        Ok(self.ends[0].clone())
    }

    fn peer_addr(&self) -> Result<Addr> {
        Ok(self.ends[1].clone())
    }

    fn fd(&self) -> Result<RawFd> {
        Ok(self.socket.fd())
    }

    fn shutdown(&self) {
        self.socket.shutdown();
    }

    fn end_sending(&self) {
        self.socket.end_sending();
    }
}

impl ZeroCopyLink for ShmLink {}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::abi::FI_ADDR_STR;
    use ofi_provider::addr::EndpointName;
    use ofi_stream::objects::LinkProvider;
    use ofi_stream::psk_transport::PskTransport;
    use ofi_stream::secret::PskConfig;
    use ofi_stream::shm_upgrade::ShmUpgrade;

    #[test]
    fn links_satisfy_the_engine_contract() {
        let any = Addr::any(FI_ADDR_STR as u32);
        let [server, client] = [(); 2].map(|()| ShmLinks::new().unwrap());
        ofi_stream::transport_conformance::check(&server, &client, &any);
    }

    #[test]
    fn links_upgraded_to_shared_memory_satisfy_the_contract() {
        let any = Addr::any(FI_ADDR_STR as u32);
        let [server, client] =
            [(); 2].map(|()| ShmUpgrade::<PskTransport<ShmLinks>>::open().unwrap());
        ofi_stream::transport_conformance::check(&server, &client, &any);
        ofi_stream::transport_conformance::check_local(&server, &client, &any);
    }

    #[test]
    fn links_with_a_secret_are_as_well() {
        let any = Addr::any(FI_ADDR_STR as u32);
        for encrypts in [false, true] {
            let keyed = || {
                let secret = PskConfig::new(b"the secret of a job", encrypts);
                PskTransport::with_config(ShmLinks::open().unwrap(), secret)
            };
            let [server, client] = [(); 2].map(|()| keyed());
            ofi_stream::transport_conformance::check(&server, &client, &any);
            let [server, client] = [(); 2].map(|()| ShmUpgrade::new(keyed()));
            ofi_stream::transport_conformance::check(&server, &client, &any);
            ofi_stream::transport_conformance::check_local(&server, &client, &any);
        }
    }

    #[test]
    fn taken_name_is_replaced_if_proposed_and_refused_if_required() {
        let links = ShmLinks::new().unwrap();
        let (first, at) = links.bind(&Addr::any(FI_ADDR_STR as u32)).unwrap();
        let whole = name::named(&at).unwrap().whole();
        let proposed = Addr::Name(EndpointName::proposed(whole).unwrap());
        let (_second, other) = links.bind(&proposed).unwrap();
        assert_ne!(other, at);
        let insisted = Addr::Name(EndpointName::new(whole).unwrap());
        assert_eq!(links.bind(&insisted).unwrap_err(), Error::BUSY);
        first.listen(1).unwrap();
        assert_eq!(links.bind(&insisted).unwrap_err(), Error::BUSY);
        drop(first);
        assert_eq!(links.bind(&insisted).map(|(_, at)| at), Ok(insisted));
    }

    #[test]
    fn unnamed_pending_connections_are_bounded_and_block_no_others() {
        let links = ShmLinks::new().unwrap();
        let (listener, at) = links.bind(&Addr::any(FI_ADDR_STR as u32)).unwrap();
        listener.listen(4 * MAX_NAMELESS as i32).unwrap();
        let socket_name = name::of_socket(name::named(&at).unwrap());
        let called = || {
            let socket = StreamSocket::new(libc::AF_UNIX).unwrap();
            socket.connect(&socket_name).unwrap();
            socket
        };
        let silent: Vec<_> = (0..2 * MAX_NAMELESS).map(|_| called()).collect();
        assert_eq!(listener.accept().unwrap_err(), Error::AGAIN);
        assert_eq!(listener.nameless.borrow().len(), MAX_NAMELESS);
        // The last ones are there; a name in two parts is put together.
        let last = silent.last().unwrap();
        last.send(b"\x03a").unwrap();
        assert_eq!(listener.accept().unwrap_err(), Error::AGAIN);
        last.send(b"bcrest").unwrap();
        let (link, from) = listener.accept().unwrap();
        assert_eq!(from.to_bytes(), b"abc\0");
        let mut rest = [0; 8];
        assert_eq!((link.recv(&mut rest), &rest[..4]), (Ok(4), &b"rest"[..]));
        // Peers sending malformed names or disconnecting are dropped, and others are served.
        let (wrong, _) = (silent[silent.len() - 2].send(b"\x03://"), ());
        wrong.unwrap();
        assert_eq!(listener.accept().unwrap_err(), Error::CONNABORTED);
        drop(silent);
        let ends =
            (0..MAX_NAMELESS).filter(|_| listener.accept().err() == Some(Error::CONNABORTED));
        assert_eq!(ends.count(), MAX_NAMELESS - 2);
        assert!(listener.nameless.borrow().is_empty());
        let own = name::fresh().unwrap();
        let link = links.dial(&own, false, &at).unwrap();
        assert_eq!(link.take_error(), Ok(()));
        assert_eq!(listener.accept().unwrap().1, own);
    }
}
