//! Endpoints: one socket each, with the posted receives for its datagrams.
//!
//! A send is one system call from the caller's thread, without a lock. A receive goes from the
//! socket directly into the application's buffer. This happens during progress, only while a
//! receive is posted and the completion queue has space. Everything else waits in the kernel's
//! socket buffer, or is lost there, as usual for datagrams.
use super::group::{Change, Groups};
use super::info::{MAX_MSG_SIZE, MAX_SEALED_SIZE};
use super::sealed::{OpeningReceiver, SealingSender};
use super::socket::{DgramSocket, is_of_earlier};
use super::traced::trace_match;
use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, FI_MSG,
    FI_MULTI_RECV, FI_MULTICAST, FI_RECV, FI_REMOTE_CQ_DATA, FI_SEND, fi_addr_t,
};
use ofi_provider::addr::{self, Addr};
use ofi_provider::api::{
    Atomic, Bindings, Cm, Endpoint, GroupRole, Msg, RecvOp, Rma, SendOp, Tagged,
};
use ofi_provider::buf::RecvBuf;
use ofi_provider::core_provider::{
    DatagramBatch, OPT_ICMP_ERRORS, OPT_RECEIVE_MANY, OPT_SEND_MANY, OPT_UNKNOWN_SOURCES,
    UNKNOWN_SOURCE_LEN,
};
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::datagram_io::{BATCH, Datagram, receive_datagrams};
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::lock::{Level, Lock};
use ofi_provider::probes;
use ofi_provider::progress::{Activity, Progress};
use ofi_provider::slab::Slab;
use ofi_provider::sys::{Epoll, Interest, next_injected_error};
use ofi_stream::secret::SecretKey;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Maximum number of endpoints polled without epoll.
const FEW: usize = 4;

/// Maximum recorded addresses with closed ports.
const MAX_ICMP_ERRORS: usize = 64;

/// Maximum datagrams opened in a progress iteration by an endpoint with a pre-shared key.
const MOST_OPENED: usize = 64;

const IDLE: Interest = Interest { read: false, write: false };

/// Progress engine of a domain's endpoints.
#[derive(Debug)]
pub(crate) struct UdpEngine {
    eps: Lock<Slab<Arc<Receiver>>>,
    epoll: Epoll,
    /// Some socket is not watched, so all are polled, in addition to those reported by epoll.
    cq_blocked: AtomicBool,
    activity: Activity,
    level: Level,
}

impl UdpEngine {
    /// Creates an engine; its locks cost nothing if the application serializes its calls.
    pub(crate) fn new(level: Level) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            eps: Lock::with_level(Slab::default(), level.clone()),
            epoll: Epoll::new()?,
            cq_blocked: AtomicBool::new(false),
            activity: Activity::default(),
            level,
        }))
    }
}

impl Progress for UdpEngine {
    #[inline]
    fn progress(&self) {
        self.activity.another();
        if !heap::may_progress() {
            return;
        }
        let eps = self.eps.lock();
        if eps.len() <= FEW || self.cq_blocked.load(Ordering::Relaxed) {
            let cq_blocked = eps.iter().fold(false, |any, (id, ep)| ep.drain(self, id) | any);
            self.cq_blocked.store(cq_blocked, Ordering::Relaxed);
        } else {
            // The call fails only without an epoll instance, and there is one.
            let _ = self.epoll.wait(Some(Duration::ZERO), |event| {
                let id = event.token as u32;
                eps.get(id).map(|ep| ep.drain(self, id));
            });
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Watches a socket while there are posted receives for its data.
    fn may_block(&self) -> bool {
        for (id, ep) in self.eps.lock().iter() {
            if ep.records_icmp_errors.load(Ordering::Relaxed) {
                ep.take_icmp_errors();
            }
            let mut rx = ep.rx.lock();
            let wanted = !rx.posted.is_empty() && ep.rx_space() > 0;
            ep.watch(self, &mut rx, id, wanted);
            if !wanted {
                self.cq_blocked.store(true, Ordering::Relaxed);
            }
        }
        true
    }

    fn is_serialized(&self) -> bool {
        matches!(self.level, Level::Serialized)
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

/// Posted receive waiting for a datagram.
#[derive(Debug)]
struct UdpRecv {
    buf: RecvBuf,
    context: Context,
    report: bool,
}

#[derive(Debug)]
struct Rx {
    posted: VecDeque<UdpRecv>,
    /// The engine's epoll watches the sockets.
    watched: bool,
    /// Opener of datagrams for an endpoint with a pre-shared key.
    opening: Option<Box<OpeningReceiver>>,
}

/// Receiving half of an endpoint, advanced by progress.
#[derive(Debug)]
struct Receiver {
    socket: DgramSocket,
    /// Receives report the source of the message, and accept several datagrams.
    source: bool,
    several: AtomicBool,
    /// Receives report the addresses of unknown peers.
    unknown_sources: AtomicBool,
    /// The system records closed ports (OPT_REFUSALS), and the records taken from it.
    records_icmp_errors: AtomicBool,
    icmp_errors: Lock<VecDeque<SocketAddr>>,
    rx: Lock<Rx>,
    /// Groups of the endpoint. Their lock is taken with or without the lock of `rx`, and never
    /// before it.
    groups: Lock<Groups>,
    /// Some groups have separate sockets.
    group_sockets: AtomicBool,
    /// Data is not simply received from one socket: there are sockets of groups, or a pre-shared
    /// key.
    special: AtomicBool,
    /// Pre-shared key required of peers.
    secret: Option<Arc<SecretKey>>,
    /// The objects bound to the endpoint, once it is enabled.
    bindings: OnceLock<Bindings>,
}

impl Receiver {
    fn set_group_sockets(&self, any: bool) {
        self.group_sockets.store(any, Ordering::Relaxed);
        self.special.store(any || self.secret.is_some(), Ordering::Relaxed);
    }

    fn rx_space(&self) -> usize {
        let cq = self.bindings.get().and_then(|bound| bound.completions.rx.cq());
        cq.map_or(BATCH, |cq| cq.free_entries())
    }

    fn watch(&self, engine: &UdpEngine, rx: &mut Rx, id: u32, wanted: bool) {
        if rx.watched != wanted {
            rx.watched = wanted;
            let interest = if wanted { Interest::READ } else { IDLE };
            let _ = engine.epoll.modify(self.socket.fd(), id.into(), interest);
            if self.group_sockets.load(Ordering::Relaxed) {
                for fd in self.groups.lock().sockets() {
                    let _ = engine.epoll.modify(fd, id.into(), interest);
                }
            }
        }
    }

    /// Takes the system's notes of closed ports: as long as it has some, a thread cannot sleep.
    #[cold]
    fn take_icmp_errors(&self) {
        let mut icmp_errors = self.icmp_errors.lock();
        for _ in 0..MAX_ICMP_ERRORS {
            let Ok(addr) = next_injected_error(self.socket.fd()) else { return };
            if !icmp_errors.contains(&addr) {
                if icmp_errors.len() >= MAX_ICMP_ERRORS {
                    icmp_errors.pop_front();
                }
                icmp_errors.push_back(addr);
            }
        }
    }

    /// Receives arrived datagrams into posted receives. Returns true if some have to wait for space
    /// in the queue without the socket being watched.
    #[inline]
    fn drain(&self, engine: &UdpEngine, id: u32) -> bool {
        let Some(bound) = self.bindings.get() else { return false };
        let mut rx = self.rx.lock();
        if rx.posted.is_empty() {
            return false;
        }
        if self.rx_space() == 0 {
            return !rx.watched;
        }
        self.watch(engine, &mut rx, id, true);
        if self.special.load(Ordering::Relaxed) && self.drain_special(bound, &mut rx) {
            return false;
        }
        self.drain_socket(self.socket.fd(), bound, &mut rx, usize::MAX);
        false
    }

    /// Receives the datagrams of groups' separate sockets, each with a share of the receives. For
    /// an endpoint with a pre-shared key it receives all datagrams. Returns true in this case.
    #[cold]
    fn drain_special(&self, bound: &Bindings, rx: &mut Rx) -> bool {
        let Some(mut opening) = rx.opening.take() else {
            for fd in self.groups.lock().sockets() {
                self.drain_socket(fd, bound, rx, BATCH);
            }
            return false;
        };
        for (fd, group) in self.groups.lock().sockets_of_groups() {
            self.drain_sealed(&mut opening, (fd, Some(group)), bound, rx, BATCH);
        }
        self.drain_sealed(&mut opening, (self.socket.fd(), None), bound, rx, MOST_OPENED);
        rx.opening = Some(opening);
        true
    }

    /// Receives at most `most` datagrams of one socket, the endpoint's or a group's, as far as
    /// there are receives. Forged ones count, so a progress iteration ends regardless of their
    /// number.
    fn drain_sealed(
        &self,
        opening: &mut OpeningReceiver,
        socket: (RawFd, Option<SocketAddr>),
        bound: &Bindings,
        rx: &mut Rx,
        most: usize,
    ) {
        for _ in 0..most {
            if self.rx_space() == 0 {
                return;
            }
            let Some(recv) = rx.posted.front() else { return };
            match opening.receive(socket, &recv.buf) {
                Err(Error::AGAIN) => return,
                // An error is an earlier send's: see below.
                Err(_) | Ok(None) => {}
                Ok(Some(mut datagram)) => {
                    datagram.from = datagram.from.filter(|_| self.source);
                    if let Some(recv) = rx.posted.pop_front() {
                        self.received(bound, &recv, &datagram);
                    }
                }
            }
        }
    }

    /// Takes up to so many datagrams of one socket, as far as there are receives.
    #[inline]
    fn drain_socket(&self, fd: RawFd, bound: &Bindings, rx: &mut Rx, most: usize) {
        let mut datagrams = [Datagram { len: 0, from: None, segment: 0 }; BATCH];
        let several = self.several.load(Ordering::Relaxed);
        let mut taken = 0;
        while taken < most {
            let space = rx.posted.len().min(self.rx_space()).min(BATCH);
            if space == 0 {
                return;
            }
            let bufs = rx.posted.iter().take(space).map(|recv| &recv.buf);
            // An error belongs to an earlier send, and the system reports it late (no such host or
            // port). It is ignored: the report clears it.
            let got = receive_datagrams(fd, bufs, self.source, several, &mut datagrams);
            let got = got.unwrap_or(0);
            taken += got;
            for (datagram, recv) in datagrams.iter().zip(rx.posted.drain(..got)) {
                self.received(bound, &recv, datagram);
            }
            if got < space {
                return;
            }
        }
    }

    /// Reports a receive completed by a datagram.
    #[inline]
    fn received(&self, bound: &Bindings, recv: &UdpRecv, datagram: &Datagram) {
        let src = source_of(bound, datagram);
        if src == FI_ADDR_NOTAVAIL && self.unknown_sources.load(Ordering::Relaxed) {
            append_source(recv, datagram);
        }
        complete(bound, recv, datagram, src);
    }
}

/// The sender of a datagram in the address vector.
#[inline]
fn source_of(bound: &Bindings, datagram: &Datagram) -> fi_addr_t {
    let name = |from: &SocketAddr| bound.av.as_ref().map(|av| av.find(Addr::Ip(*from)));
    datagram.from.as_ref().and_then(name).unwrap_or(FI_ADDR_NOTAVAIL)
}

/// Puts the address of a datagram's sender at the end of the receive's buffer
/// (OPT_UNKNOWN_SOURCES).
#[cold]
fn append_source(recv: &UdpRecv, datagram: &Datagram) {
    let space = recv.buf.len().checked_sub(UNKNOWN_SOURCE_LEN);
    let Some(at) = space.filter(|at| *at >= datagram.len) else { return };
    let mut source = [0; UNKNOWN_SOURCE_LEN];
    if let Some(from) = &datagram.from {
        let from = addr::to_raw(from);
        source[..from.as_bytes().len()].copy_from_slice(from.as_bytes());
    }
    recv.buf.copy_from(at, &source);
}

/// Reports a receive.
#[inline]
fn complete(bound: &Bindings, recv: &UdpRecv, datagram: &Datagram, src: fi_addr_t) {
    let len = datagram.len.min(recv.buf.len());
    // Size of each of several datagrams (OPT_RECEIVE_MANY).
    let data = if datagram.segment < datagram.len { datagram.segment as u64 } else { 0 };
    let entry = Completion { len, src, data, ..entry(recv) };
    if probes::is_enabled() {
        trace_match(bound, &entry, datagram);
    }
    if datagram.len > recv.buf.len() {
        let olen = datagram.len - recv.buf.len();
        let error = CompletionError { olen, ..CompletionError::new(entry, Error::TRUNC) };
        return bound.completions.rx.failed(error);
    }
    bound.completions.rx.succeeded(entry, recv.report);
}

fn entry(recv: &UdpRecv) -> Completion {
    Completion {
        context: recv.context,
        flags: FI_MSG | FI_RECV,
        len: 0,
        buf: recv.buf.address(),
        data: 0,
        tag: 0,
        src: FI_ADDR_NOTAVAIL,
    }
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct UdpEp {
    engine: Arc<UdpEngine>,
    receiver: Arc<Receiver>,
    id: u32,
    rx_size: usize,
    /// Size in bytes below which messages are sent unsealed: 0 for an endpoint with a pre-shared
    /// key.
    fast_end: usize,
    /// Sealer of datagrams for an enabled endpoint with a pre-shared key.
    sealing: OnceLock<Box<Lock<SealingSender>>>,
}

impl UdpEp {
    /// Opens an endpoint. With a pre-shared key its datagrams are sealed.
    pub(crate) fn open(
        engine: &Arc<UdpEngine>,
        socket: DgramSocket,
        rx_size: usize,
        source: bool,
        secret: Option<Arc<SecretKey>>,
    ) -> Result<Self> {
        let fast_end = if secret.is_some() { 0 } else { MAX_MSG_SIZE + 1 };
        let mut posted = VecDeque::new();
        posted.try_reserve(rx_size).map_err(|_| Error::NOMEM)?;
        let rx = Rx { posted, watched: false, opening: None };
        let receiver = Arc::new(Receiver {
            socket,
            source,
            several: AtomicBool::new(false),
            unknown_sources: AtomicBool::new(false),
            records_icmp_errors: AtomicBool::new(false),
            icmp_errors: Lock::with_level(VecDeque::new(), engine.level.clone()),
            rx: Lock::with_level(rx, engine.level.clone()),
            groups: Lock::with_level(Groups::default(), engine.level.clone()),
            group_sockets: AtomicBool::new(false),
            special: AtomicBool::new(secret.is_some()),
            secret,
            bindings: OnceLock::new(),
        });
        let id = engine.eps.lock().insert(receiver.clone());
        let sealing = OnceLock::new();
        Ok(Self { engine: engine.clone(), receiver, id, rx_size, fast_end, sealing })
    }

    /// Sends a message of an endpoint with a pre-shared key; a message over the size limit fails.
    #[cold]
    fn send_sealed(&self, bound: &Bindings, op: &SendOp) -> Result {
        let sealing = self.sealing.get().ok_or(Error::MSGSIZE)?;
        if op.buf.len() > MAX_SEALED_SIZE {
            return Err(Error::MSGSIZE);
        }
        let report = op.flags & FI_COMPLETION != 0;
        if !bound.completions.tx.has_space(report) {
            self.engine.progress();
            return Err(Error::AGAIN);
        }
        let to = self.destination(bound, op)?;
        let sent = sealing.lock().send(&self.receiver.socket, &to, &op.buf);
        self.sent(bound, op, report, sent)
    }

    /// Returns the destination address of a message.
    #[inline(always)]
    fn destination(&self, bound: &Bindings, op: &SendOp) -> Result<SocketAddr> {
        match bound.av.as_ref().ok_or(Error::NOAV)?.get(op.dest) {
            Ok(to) if op.flags & FI_MULTICAST == 0 => to.ip(),
            _ => self.receiver.groups.lock().find(op.dest),
        }
    }

    /// Reports the result of a send system call.
    #[inline(always)]
    fn sent(&self, bound: &Bindings, op: &SendOp, report: bool, sent: Result) -> Result {
        match sent {
            Err(Error::AGAIN | Error::NOBUFS) => {
                self.engine.progress();
                return Err(Error::AGAIN);
            }
            other => other?,
        }
        let of = Completion::of(op.context, FI_MSG | FI_SEND, op.buf.len());
        bound.completions.tx.succeeded(of, report);
        Ok(())
    }
}

impl Endpoint for UdpEp {
    fn opened(&self, _fid: FidPtr) {}

    fn enable(&self, bindings: &Bindings, _srx: Option<&Self>) -> Result {
        let fd = self.receiver.socket.fd();
        if let Some(secret) = &self.receiver.secret {
            self.receiver.socket.tell_destinations()?;
            let local = self.receiver.socket.local()?;
            let opening = OpeningReceiver::new(secret, local)?;
            self.receiver.rx.lock().opening = Some(Box::new(opening));
            let sealing = SealingSender::new(secret, local)?;
            let sealing = Lock::with_level(sealing, self.engine.level.clone());
            let _ = self.sealing.set(Box::new(sealing));
        }
        self.engine.epoll.add(fd, self.id.into(), IDLE)?;
        // Only ever set here, and an endpoint is enabled once.
        let _ = self.receiver.bindings.set(bindings.clone());
        Ok(())
    }

    fn cancel(&self, context: Context, _ext: bool) -> Result {
        let Some(bound) = self.receiver.bindings.get() else { return Ok(()) };
        let mut rx = self.receiver.rx.lock();
        let found = rx.posted.iter().position(|recv| recv.context == context);
        if let Some(recv) = found.and_then(|at| rx.posted.remove(at)) {
            bound.completions.rx.failed(CompletionError::new(entry(&recv), Error::CANCELED));
        }
        Ok(())
    }

    fn getopt(&self, name: core::ffi::c_int, value: &mut [u8]) -> Result<usize> {
        if name != OPT_ICMP_ERRORS || !self.receiver.records_icmp_errors.load(Ordering::Relaxed) {
            return Err(Error::NOPROTOOPT);
        }
        let space = value.first_chunk_mut::<UNKNOWN_SOURCE_LEN>().ok_or(Error::TOOSMALL)?;
        self.receiver.take_icmp_errors();
        let refused = self.receiver.icmp_errors.lock().pop_front().ok_or(Error::AGAIN)?;
        let refused = addr::to_raw(&refused);
        *space = [0; UNKNOWN_SOURCE_LEN];
        space[..refused.as_bytes().len()].copy_from_slice(refused.as_bytes());
        Ok(UNKNOWN_SOURCE_LEN)
    }

    fn setopt(&self, name: core::ffi::c_int, value: &[u8]) -> Result {
        match name {
            OPT_SEND_MANY => {
                let (DatagramBatch { to, stride }, bytes) = DatagramBatch::read(value)?;
                let bound = self.receiver.bindings.get().ok_or(Error::OPBADSTATE)?;
                let to = bound.av.as_ref().ok_or(Error::NOAV)?.get(to)?.ip()?;
                let (socket, stride) = (&self.receiver.socket, stride as usize);
                match self.sealing.get() {
                    None => socket.send_many(&to, bytes, stride),
                    Some(sealing) => sealing.lock().send_many(socket, &to, bytes, stride),
                }
            }
            OPT_RECEIVE_MANY => {
                let held = value.try_into().map_err(|_| Error::INVAL)?;
                self.receiver.socket.receive_many(usize::from_ne_bytes(held))?;
                self.receiver.several.store(true, Ordering::Relaxed);
                Ok(())
            }
            OPT_ICMP_ERRORS => {
                self.receiver.socket.record_icmp_errors()?;
                self.receiver.records_icmp_errors.store(true, Ordering::Relaxed);
                Ok(())
            }
            OPT_UNKNOWN_SOURCES if self.receiver.source => {
                self.receiver.unknown_sources.store(true, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(Error::NOPROTOOPT),
        }
    }

    const JOINS: bool = true;

    fn join(&self, group: SocketAddr, part: GroupRole) -> Result<fi_addr_t> {
        let rx = self.receiver.rx.lock();
        let mut groups = self.receiver.groups.lock();
        let (addr, change) = groups.join(&self.receiver.socket, group, part)?;
        if let Change::Opened(fd) = change {
            let interest = if rx.watched { Interest::READ } else { IDLE };
            if let Err(error) = self.engine.epoll.add(fd, self.id.into(), interest) {
                groups.leave(&self.receiver.socket, addr);
                return Err(error);
            }
            self.receiver.set_group_sockets(true);
        }
        Ok(addr)
    }

    fn leave(&self, addr: fi_addr_t) {
        let mut groups = self.receiver.groups.lock();
        if let Some(socket) = groups.leave(&self.receiver.socket, addr) {
            // Closing would do, but a child process may have the socket as well.
            self.engine.epoll.remove(socket.fd());
            let any = groups.sockets().next().is_some();
            self.receiver.set_group_sockets(any);
        }
    }

    fn close(&self) {
        self.engine.eps.lock().remove(self.id);
        self.receiver.groups.lock().sockets().for_each(|fd| self.engine.epoll.remove(fd));
        // Closing would do, but a child process may have the socket as well.
        self.engine.epoll.remove(self.receiver.socket.fd());
        let posted = std::mem::take(&mut self.receiver.rx.lock().posted);
        if let Some(bound) = self.receiver.bindings.get() {
            // Silently, as datagrams are lost.
            bound.completions.rx.dropped(posted.len());
            bound.completions.close();
        }
    }

    fn size_left(&self, tx: bool) -> Result<usize> {
        if tx {
            return Err(Error::NOSYS);
        }
        Ok(self.rx_size - self.receiver.rx.lock().posted.len())
    }
}

impl Msg for UdpEp {
    #[inline]
    fn send(&self, op: SendOp) -> Result {
        let bound = self.receiver.bindings.get().ok_or(Error::OPBADSTATE)?;
        if op.flags & FI_REMOTE_CQ_DATA != 0 {
            return Err(Error::NOSYS);
        }
        if op.flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) != 0 {
            return Err(Error::BADFLAGS);
        }
        if op.buf.len() >= self.fast_end {
            return self.send_sealed(bound, &op);
        }
        let report = op.flags & FI_COMPLETION != 0;
        if !bound.completions.tx.has_space(report) {
            self.engine.progress();
            return Err(Error::AGAIN);
        }
        let to = self.destination(bound, &op)?;
        let (fd, to) = (self.receiver.socket.fd(), addr::to_raw(&to));
        let mut sent = op.buf.send_to(fd, &to);
        if is_of_earlier(&sent) {
            // The error kept this one from being sent.
            sent = op.buf.send_to(fd, &to);
        }
        self.sent(bound, &op, report, sent)
    }

    #[inline]
    fn recv(&self, op: RecvOp) -> Result {
        if op.flags & FI_MULTI_RECV != 0 {
            return Err(Error::BADFLAGS);
        }
        let report = op.flags & FI_COMPLETION != 0;
        let mut rx = self.receiver.rx.lock();
        if rx.posted.len() >= self.rx_size {
            drop(rx);
            self.engine.progress();
            return Err(Error::AGAIN);
        }
        rx.posted.push_back(UdpRecv { buf: op.buf, context: op.context, report });
        // A thread may have gone to sleep when no receive was posted. From now on the socket stays
        // watched until a thread goes to sleep again.
        self.receiver.watch(&self.engine, &mut rx, self.id, true);
        Ok(())
    }
}

impl Tagged for UdpEp {}
impl Rma for UdpEp {}

impl Atomic for UdpEp {}

impl Cm for UdpEp {
    fn getname(&self) -> Result<Vec<u8>> {
        Ok(Addr::from_bytes(&self.receiver.socket.name()?)?.name_for_peers().to_bytes())
    }

    fn setname(&self, name: &[u8]) -> Result {
        if self.receiver.bindings.get().is_some() {
            return Err(Error::OPBADSTATE);
        }
        self.receiver.socket.rebind(&addr::from_bytes(name)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;
    use ofi_provider::abi::{FI_SOCKADDR_IN, fi_cq_attr, fi_cq_format, fi_cq_msg_entry, fid_cq};
    use ofi_provider::av::{Av, AvSharing};
    use ofi_provider::buf::SendBuf;
    use ofi_provider::cq::{Cq, OnDomain};
    use ofi_provider::fid::FidObject;
    use ofi_provider::object::Parent;
    use ofi_stream::secret::PskConfig;
    use std::net::Ipv4Addr;
    use std::time::Instant;

    /// Loopback endpoint able to send to itself.
    struct Loop {
        ep: UdpEp,
        cq: Arc<Cq>,
        av: Arc<Av>,
        own: fi_addr_t,
    }

    impl Loop {
        fn open(engine: &Arc<UdpEngine>, cq_size: usize) -> Self {
            Self::open_with(engine, cq_size, false, None)
        }

        /// Opens an endpoint with this pre-shared key, optionally reporting the sources of
        /// messages.
        fn open_with(
            engine: &Arc<UdpEngine>,
            cq_size: usize,
            source: bool,
            secret: Option<&Arc<SecretKey>>,
        ) -> Self {
            let nothing = || Parent::new(Arc::new(()), Arc::default());
            let domain = OnDomain {
                later: None,
                parent: nothing(),
                progress: engine.clone(),
                api_version: ofi_provider::info::API_VERSION,
                level: Level::Shared,
                on_blocking: Box::new(|_| Ok(())),
            };
            // SAFETY: all zeros is a valid attribute: every default.
            let mut attr = unsafe { std::mem::zeroed::<fi_cq_attr>() };
            attr.size = cq_size;
            attr.format = fi_cq_format::FI_CQ_FORMAT_MSG.into();
            // SAFETY: neither a peer nor a wait set.
            let cq = unsafe { Cq::open(domain, Some(&attr), std::ptr::null_mut()) }.unwrap();
            let format = FI_SOCKADDR_IN as u32;
            let null = std::ptr::null_mut();
            // SAFETY: no peer.
            let av = unsafe { Av::open(nothing(), format, AvSharing::Never, None, null) }.unwrap();
            let socket = DgramSocket::bound(&(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let ep = UdpEp::open(engine, socket, 16, source, secret.cloned()).unwrap();
            let own = av.insert(Addr::from_bytes(&ep.getname().unwrap()).unwrap()).unwrap();
            let mut bindings = Bindings { av: Some(av.clone()), ..Bindings::default() };
            bindings.completions.rx.report_to(cq.clone());
            ep.enable(&bindings, None).unwrap();
            Self { ep, cq, av, own }
        }

        fn send(&self, dest: fi_addr_t, bytes: &'static [u8]) -> Result {
            // SAFETY: static memory.
            let buf = unsafe { SendBuf::new(bytes.as_ptr().cast(), bytes.len()) }?;
            self.ep.send(SendOp { buf, dest, context: Context::NULL, data: 0, tag: 0, flags: 0 })
        }

        fn post(&self, space: &'static mut [u8], number: usize) -> Result {
            // SAFETY: static memory that this receive alone has.
            let buf = unsafe { RecvBuf::new(space.as_mut_ptr().cast(), space.len()) }?;
            let context = Context(number as *mut c_void);
            let flags = FI_COMPLETION;
            self.ep.recv(RecvOp { buf, src: 0, tag: 0, ignore: 0, context, flags })
        }

        /// Returns the number and length of the next completed receive.
        fn next(&self) -> (usize, usize) {
            let start = Instant::now();
            let cq: *mut fid_cq = self.cq.as_c();
            loop {
                // SAFETY: all zeros is a valid entry; the queue is open, and has
                // entries of this format.
                let (n, entry) = unsafe {
                    let mut entry = std::mem::zeroed::<fi_cq_msg_entry>();
                    let read = (*(*cq).ops).read.unwrap();
                    (read(cq, (&raw mut entry).cast(), 1), entry)
                };
                if n == 1 {
                    return (entry.op_context as usize, entry.len);
                }
                assert_eq!(n as i32, Error::AGAIN.to_ret());
                assert!(start.elapsed() < Duration::from_secs(60), "nothing arrives");
            }
        }
    }

    fn free_entries() -> &'static mut [u8] {
        Box::leak(vec![0; 64].into_boxed_slice())
    }

    #[test]
    fn receives_complete_in_posting_order_up_to_queue_capacity() {
        let engine = UdpEngine::new(Level::Shared).unwrap();
        let me = Loop::open(&engine, 2);
        (1..=5).for_each(|number| me.post(free_entries(), number).unwrap());
        for bytes in [&b"a"[..], b"bb", b"ccc", b"", b"eeeee"] {
            me.send(me.own, bytes).unwrap();
        }
        for _ in 0..100 {
            engine.progress();
        }
        assert_eq!(me.cq.free_entries(), 0);
        assert_eq!(me.ep.receiver.rx.lock().posted.len(), 3);
        let got: Vec<_> = (0..5).map(|_| me.next()).collect();
        assert_eq!(got, [(1, 1), (2, 2), (3, 3), (4, 0), (5, 5)]);
    }

    #[test]
    fn datagram_to_an_absent_receiver_affects_no_others() {
        let engine = UdpEngine::new(Level::Shared).unwrap();
        let me = Loop::open(&engine, 8);
        let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let no_peer = me.av.insert(Addr::Ip(gone)).unwrap();
        for number in 1..=20 {
            me.post(free_entries(), number).unwrap();
            me.send(no_peer, b"lost").unwrap();
            me.send(me.own, b"here").unwrap();
            assert_eq!(me.next(), (number, 4));
        }
        assert_eq!(me.send(99, b"!"), Err(Error::INVAL));
        assert_eq!(me.send(me.own, &[0; MAX_MSG_SIZE + 1]), Err(Error::MSGSIZE));
    }

    #[test]
    fn many_endpoints_are_served_including_cq_blocked_ones() {
        let engine = UdpEngine::new(Level::Shared).unwrap();
        let all: Vec<_> = (0..FEW + 3).map(|_| Loop::open(&engine, 1)).collect();
        for (number, me) in all.iter().enumerate() {
            me.post(free_entries(), number).unwrap();
            me.post(free_entries(), number + 100).unwrap();
            me.send(me.own, b"one").unwrap();
            me.send(me.own, b"four").unwrap();
        }
        // Every queue is full with its first message when a thread goes to sleep.
        while all.iter().any(|me| me.cq.free_entries() > 0) {
            engine.progress();
        }
        assert!(engine.may_block());
        for (number, me) in all.iter().enumerate() {
            assert_eq!((me.next(), me.next()), ((number, 3), (number + 100, 4)));
        }
        all.iter().for_each(|me| me.ep.close());
        assert_eq!(engine.eps.lock().len(), 0);
    }

    #[test]
    fn unknown_sender_address_follows_datagram_if_the_buffer_fits() {
        let engine = UdpEngine::new(Level::Shared).unwrap();
        let silent = Loop::open(&engine, 8);
        assert_eq!(silent.ep.setopt(OPT_UNKNOWN_SOURCES, &[]), Err(Error::NOPROTOOPT));
        let me = Loop::open_with(&engine, 8, true, None);
        me.ep.setopt(OPT_UNKNOWN_SOURCES, &[]).unwrap();
        let to = me.ep.receiver.socket.local().unwrap();
        let unknown = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = addr::to_raw(&unknown.local_addr().unwrap());
        let fits = 64 - UNKNOWN_SOURCE_LEN;
        for (number, len, notifies) in [(1, fits, true), (2, fits + 1, false), (3, 8, false)] {
            let space = free_entries();
            let at = space.as_ptr();
            me.post(space, number).unwrap();
            match number {
                3 => me.send(me.own, b"my own's").unwrap(),
                _ => drop(unknown.send_to(&[7; 64][..len], to).unwrap()),
            }
            assert_eq!(me.next(), (number, len));
            // SAFETY: static memory, whose receive is complete.
            let end = unsafe { std::slice::from_raw_parts(at.add(fits), UNKNOWN_SOURCE_LEN) };
            assert_eq!(end.starts_with(from.as_bytes()), notifies, "datagram {number}");
        }
    }

    fn secret(bytes: &[u8]) -> Arc<SecretKey> {
        PskConfig::new(bytes, true).key().unwrap().clone()
    }

    #[test]
    fn endpoints_with_a_key_receive_only_from_the_same_key() {
        let engine = UdpEngine::new(Level::Shared).unwrap();
        let job = secret(b"the secret of a job");
        let me = Loop::open_with(&engine, 8, false, Some(&job));
        let other = Loop::open_with(&engine, 8, false, Some(&secret(b"the secret of another")));
        let unsealed = Loop::open(&engine, 8);
        let space = free_entries();
        let at = space.as_ptr();
        me.post(space, 1).unwrap();
        let name = Addr::from_bytes(&me.ep.getname().unwrap()).unwrap();
        for unknown_peer in [&other, &unsealed] {
            let to = unknown_peer.av.insert(name.clone()).unwrap();
            unknown_peer.send(to, b"unknown").unwrap();
        }
        for _ in 0..100 {
            engine.progress();
        }
        assert!(!me.cq.has_entries() && me.ep.receiver.rx.lock().posted.len() == 1);
        me.send(me.own, b"my own's").unwrap();
        assert_eq!(me.next(), (1, 8));
        // SAFETY: static memory, whose receive is complete.
        assert_eq!(unsafe { std::slice::from_raw_parts(at, 8) }, b"my own's");
        assert_eq!(me.send(me.own, &[0; MAX_SEALED_SIZE + 1]), Err(Error::MSGSIZE));
        me.send(me.own, &[0; MAX_SEALED_SIZE]).unwrap();
        me.post(self::free_entries(), 2).unwrap();
        // Longer than its room: an error entry.
        while !me.cq.has_entries() {
            engine.progress();
        }
        assert!(me.ep.receiver.rx.lock().posted.is_empty());
    }

    #[test]
    fn batched_datagrams_are_sealed_individually() {
        let engine = UdpEngine::new(Level::Shared).unwrap();
        let job = secret(b"the secret of a job");
        let me = Loop::open_with(&engine, 8, true, Some(&job));
        me.ep.setopt(OPT_RECEIVE_MANY, &(1usize << 20).to_ne_bytes()).unwrap();
        let mut value = vec![0; DatagramBatch::LEN];
        DatagramBatch { to: me.own, stride: 100 }.write(&mut value);
        value.extend((0..1050).map(|at| at as u8));
        me.ep.setopt(OPT_SEND_MANY, &value).unwrap();
        let (mut got, mut number) = (Vec::new(), 0);
        while got.len() < 1050 {
            let space: &'static mut [u8] = Box::leak(vec![0; 4096].into_boxed_slice());
            let at = space.as_ptr();
            number += 1;
            me.post(space, number).unwrap();
            let (_, len) = me.next();
            // SAFETY: static memory, whose receive is complete.
            got.extend_from_slice(unsafe { std::slice::from_raw_parts(at, len) });
        }
        assert!(got.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        // More than one call takes.
        value.resize(DatagramBatch::LEN + 65000, 0);
        assert_eq!(me.ep.setopt(OPT_SEND_MANY, &value), Err(Error::MSGSIZE));
    }

    #[test]
    fn posted_receives_are_limited_and_a_cancel_frees_an_entry() {
        let engine = UdpEngine::new(Level::Shared).unwrap();
        let me = Loop::open(&engine, 8);
        (1..=16).for_each(|number| me.post(free_entries(), number).unwrap());
        assert_eq!(me.post(free_entries(), 17), Err(Error::AGAIN));
        assert_eq!(me.ep.size_left(false), Ok(0));
        me.ep.cancel(Context(3 as *mut c_void), false).unwrap();
        assert!(me.cq.has_entries());
        assert_eq!(me.post(free_entries(), 17), Ok(()));
    }
}
