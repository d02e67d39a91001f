//! Shared-memory upgrade: detection of a link between two processes of one host, and the exchange
//! of its memory.
//!
//! The end that accepted the link offers the name of an abstract unix socket and a random cookie
//! ([`ShmUpgradeListener::offer`]), over the link itself. Such names live in a network namespace, so
//! elsewhere no socket has the name. The other end connects to it ([`ShmUpgradeListener::call`]). Both
//! query the kernel for the process of the peer, and continue only if it runs as their own user.
//! Then one message carries the cookie and the descriptors of the memory created for the link, and
//! its response carries descriptors as well. No name remains in the file system.
//!
//! Any process of the host may connect. Connections of unknown processes are closed, and so are
//! ones with an unexpected message. A cookie is valid for one handshake. A failure affects nothing
//! but this handshake: the link continues on its socket.
use crate::closer;
use crate::cma::{MemoryToken, PeerMemory};
use crate::doorbell::{Doorbell, PeerDoorbell};
use crate::error::{Error, Result};
use crate::rights::{self, ReceivedFd};
use crate::segment::{MIN_RING, ReceivedMemory, mapped_bytes, segment_bytes};
use crate::shm_channel::ShmChannel;
use crate::sys::{check, count_forks, fill_random, generation, is_own_user};
use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

/// Bytes of an offer: name, number, cookie.
pub const SHM_OFFER_LEN: usize = 40;

/// Maximum number of unused offers: the oldest is withdrawn for another. Peers with little traffic
/// do not use them.
const MAX_OFFERS: usize = 16384;

/// Maximum number of connections without a message: the oldest is closed for another.
const MAX_UNKNOWN_CONNS: usize = 64;

/// Maximum number of connections accepted by one call, for fairness to other work.
const MAX_ACCEPTS: usize = 64;

/// The longest message is one of these two; descriptors beyond [`MAX_FDS`] are not taken.
const HELLO_LEN: usize = 56;
const ANSWER_LEN: usize = 32;
const MAX_FDS: usize = 8;
/// Descriptors of a response: memory and eventfd of a doorbell.
const ANSWER_FDS: usize = 2;

/// Magic number at the start of the messages, with their version.
const HELLO_MARK: [u8; 8] = *b"ofimeet1";
const ANSWER_MARK: [u8; 8] = *b"ofimeet!";

/// Maximum number of pending connections in the kernel's queue (listen(2)).
const BACKLOG: libc::c_int = 4096;

type Secret = [u8; 16];

/// Returns true if two secrets are equal, in constant time.
fn are_same(one: &Secret, other: &Secret) -> bool {
    let differ = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    std::hint::black_box(differ) == 0
}

fn secret() -> Result<Secret> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Returns the socket address of a shared-memory handshake: `struct sockaddr_un`.
fn system_name(name: &Secret) -> Vec<u8> {
    let family = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    [&family, &b"\0ofi-local/"[..], hex.as_bytes()].concat()
}

/// Socket of a shared-memory handshake: packets, with descriptors. No call blocks.
#[derive(Debug)]
struct ShmHandshakeSocket {
    /// Taken by the destructor alone.
    fd: ManuallyDrop<OwnedFd>,
    /// Process that created the socket ([`generation`]). A forked child has it as well.
    process: u32,
}

impl ShmHandshakeSocket {
    fn new() -> Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved; the result is checked, then owned once.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?) };
        Ok(Self::of(fd))
    }

    fn of(fd: OwnedFd) -> Self {
        count_forks();
        Self { fd: ManuallyDrop::new(fd), process: generation() }
    }

    /// Returns the process of the peer, 0 if it is in another pid namespace. Fails with -FI_EACCES
    /// if it does not run as the user of this process.
    fn process(&self) -> Result<i32> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&peer) as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: the kernel writes at most `len` bytes to `peer`, which is what the option is.
        check(unsafe {
            let at = (&raw mut peer).cast();
            libc::getsockopt(self.fd.as_raw_fd(), level, name, at, &raw mut len)
        })?;
        if is_own_user(peer.uid) { Ok(peer.pid) } else { Err(Error::ACCES) }
    }

    /// Sends a message with descriptors, whole or not at all.
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result {
        let mut control = [0u64; 16];
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        assert!(fds.len() <= MAX_FDS);
        let len = size_of_val(&fds[..]);
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: all zeros is a valid msghdr. `control` is aligned for a header, and has room for
        // one with that many descriptors, which are copied behind it.
        let message = unsafe {
            let mut message = std::mem::zeroed::<libc::msghdr>();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(len as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(len as u32) as _;
            libc::CMSG_DATA(header).copy_from_nonoverlapping(fds.as_ptr().cast(), len);
            message
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `message` points to what outlives the call, which only reads it.
        let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, flags) };
        match usize::try_from(sent) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(Error::IO),
            Err(_) => Err(Error::last_os()),
        }
    }

    /// Peeks at the message, required to have the length of `buf` and exactly `FDS` descriptors.
    /// Fails with -FI_EAGAIN if there is none. The message stays queued, possibly with further
    /// descriptors, until it is [taken](Self::take).
    fn look<const FDS: usize>(&self, buf: &mut [u8]) -> Result<[ReceivedFd; FDS]> {
        let mut control = [0u64; 16];
        let mut more = 0u8;
        let len = buf.len();
        let mut parts = [
            libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: len },
            libc::iovec { iov_base: (&raw mut more).cast(), iov_len: 1 },
        ];
        // SAFETY: all zeros is a valid msghdr.
        let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_PEEK;
        // SAFETY: `message` points to what outlives the call, for the kernel to write to.
        let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, flags) };
        let got = usize::try_from(got).map_err(|_| Error::last_os())?;
        let mut fds = Vec::new();
        // SAFETY: the kernel's control data are whole headers with their data; descriptors in them
        // are new ones, each of which is owned once.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            while !header.is_null() {
                if ((*header).cmsg_level, (*header).cmsg_type)
                    == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
                {
                    let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let data = libc::CMSG_DATA(header).cast::<RawFd>();
                    for at in 0..bytes / size_of::<RawFd>() {
                        let fd = OwnedFd::from_raw_fd(data.add(at).read_unaligned());
                        fds.push(ReceivedFd::new(fd));
                    }
                }
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
        }
        match got {
            0 => Err(Error::CONNRESET),
            _ if got != len || message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0 => {
                Err(Error::PROTO)
            }
            _ => fds.try_into().map_err(|_| Error::PROTO),
        }
    }

    /// Removes the examined message from the queue. The close of its descriptors does not block.
    fn take(&self) {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: there is no room to write to.
        unsafe { libc::recv(self.fd.as_raw_fd(), std::ptr::null_mut(), 0, flags) };
    }
}

impl Drop for ShmHandshakeSocket {
    fn drop(&mut self) {
        // SAFETY: the descriptor is not used afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        // A child's copy is not the last, and must not end the parent's.
        if self.process == generation() {
            rights::close_socket(fd);
        }
    }
}

/// Listening socket of an engine for the handshake, during its lifetime.
#[derive(Debug)]
struct ShmListenAddr {
    listener: ShmHandshakeSocket,
    name: Secret,
}

impl ShmListenAddr {
    fn new() -> Result<Self> {
        let (listener, name) = (ShmHandshakeSocket::new()?, secret()?);
        let at = system_name(&name);
        // SAFETY: the kernel reads the address's bytes, which outlive the call.
        check(unsafe {
            libc::bind(listener.fd.as_raw_fd(), at.as_ptr().cast(), at.len() as libc::socklen_t)
        })?;
        // SAFETY: no memory is involved.
        check(unsafe { libc::listen(listener.fd.as_raw_fd(), BACKLOG) })?;
        Ok(Self { listener, name })
    }

    fn accept(&self) -> Result<ShmHandshakeSocket> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let (no_addr, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no address is asked for; the result is checked, then owned once.
        unsafe {
            let fd = libc::accept4(self.listener.fd.as_raw_fd(), no_addr, none, flags);
            Ok(ShmHandshakeSocket::of(OwnedFd::from_raw_fd(check(fd)?)))
        }
    }
}

/// Unused offer.
#[derive(Debug)]
struct OpenOffer {
    number: u64,
    cookie: Secret,
    /// Number of the link in the offering engine.
    link: u32,
}

/// Listener of one engine for shared-memory upgrades, with its known peers.
#[derive(Debug)]
pub struct ShmUpgradeListener {
    doorbell: Doorbell,
    listen_addr: Option<ShmListenAddr>,
    offers: VecDeque<OpenOffer>,
    offered: u64,
    pending_sockets: VecDeque<ShmHandshakeSocket>,
    /// Doorbells of peer engines, each shared by all links to its engine. The key is the peer's
    /// process and the inode number of the memory.
    doorbells: Vec<(DoorbellId, Weak<PeerDoorbell>)>,
    rings: RingMemory,
    /// Token allowing peers to verify reads of this process's memory; `None` if they must not read
    /// it.
    token: Option<MemoryToken>,
}

/// Memory limits of rings.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    /// Bytes of a ring, a power of two.
    pub ring: usize,
    /// Maximum bytes of all rings of this process, created by it or by its peers.
    pub most: usize,
}

impl RingMemory {
    /// Returns the size of the next ring if `made` bytes are in use. It is halved for each quarter
    /// of the total in use, to leave memory for other peers. Fails with -FI_ENOMEM if the rest is
    /// too small.
    fn next(self, made: usize) -> Result<usize> {
        let quarters = made.saturating_mul(4) / self.most.max(1);
        let ring = (self.ring >> quarters.min(3)).max(MIN_RING);
        let left = self.most.saturating_sub(made);
        if segment_bytes(ring) <= left { Ok(ring) } else { Err(Error::NOMEM) }
    }
}

type DoorbellId = (i32, u64, u64);

/// Handshake request to another engine, not answered yet.
#[derive(Debug)]
pub struct ShmConnect {
    socket: ShmHandshakeSocket,
    process: i32,
    /// Reserved descriptors, closed at the response in favor of the received ones. Without them the
    /// process could be unable to accept the response, and the peer would consider the handshake
    /// complete.
    buf: Vec<OwnedFd>,
}

impl ShmConnect {
    /// Returns the descriptor that is readable at the response.
    pub fn fd(&self) -> RawFd {
        self.socket.fd.as_raw_fd()
    }

    /// Reserves descriptor slots for the response's descriptors.
    fn take_slot(&mut self) -> Result {
        while self.buf.len() < ANSWER_FDS {
            self.buf.push(self.socket.fd.try_clone().map_err(|_| Error::last_os())?);
        }
        Ok(())
    }
}

/// Handshake data of the peer.
#[derive(Debug)]
pub struct ShmPeer {
    /// Doorbell of the peer, and the peer's number of the link.
    pub doorbell: Arc<PeerDoorbell>,
    /// The link's number there.
    pub index: u32,
    /// The other end's memory, if this process may read it.
    pub memory: Option<PeerMemory>,
}

impl ShmPeer {
    /// Attaches the peer to a pipe.
    pub fn join(self, pipe: &ShmChannel) {
        if let Some(memory) = self.memory {
            pipe.set_peer_memory(memory);
        }
        pipe.attach_peer(self.doorbell, self.index);
    }

    /// Returns true if the peer of a pipe has joined it. Until then it cannot signal free space, so
    /// nothing should be sent to it.
    pub fn has_joined(pipe: &ShmChannel) -> bool {
        pipe.out().can_signal()
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

impl ShmUpgradeListener {
    /// Returns the listener of an engine with rings of these sizes. With `reads` both ends may read
    /// each other's memory if the kernel permits it.
    pub fn new(rings: RingMemory, reads: bool) -> Result<Self> {
        Ok(Self {
            doorbell: Doorbell::new()?,
            listen_addr: None,
            offers: VecDeque::new(),
            offered: 0,
            pending_sockets: VecDeque::new(),
            doorbells: Vec::new(),
            rings,
            token: if reads { MemoryToken::new().ok() } else { None },
        })
    }

    /// Returns the engine's doorbell.
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Opens the listening socket, if it is not open, and returns its descriptor. It is readable
    /// for a pending connection. Returns `None` if it was open.
    pub fn open(&mut self) -> Result<Option<RawFd>> {
        if self.listen_addr.is_some() {
            return Ok(None);
        }
        let listen_addr = self.listen_addr.insert(ShmListenAddr::new()?);
        Ok(Some(listen_addr.listener.fd.as_raw_fd()))
    }

    /// Closes the listening socket until it is opened again.
    pub fn shut(&mut self) {
        self.listen_addr = None;
    }

    /// Returns the descriptor of the listening socket if it is open.
    pub fn listen_addr(&self) -> Option<RawFd> {
        self.listen_addr.as_ref().map(|listen_addr| listen_addr.listener.fd.as_raw_fd())
    }

    /// Offers the other end of a link to meet here. The engine calls the link by the number `link`.
    pub fn offer(&mut self, link: u32) -> Result<[u8; SHM_OFFER_LEN]> {
        let listen_addr = self.listen_addr.as_ref().ok_or(Error::OPBADSTATE)?;
        let cookie = secret()?;
        if self.offers.len() >= MAX_OFFERS {
            self.offers.pop_front();
        }
        self.offered += 1;
        let number = self.offered;
        self.offers.push_back(OpenOffer { number, cookie, link });
        let mut offer = [0; SHM_OFFER_LEN];
        offer[..16].copy_from_slice(&listen_addr.name);
        offer[16..24].copy_from_slice(&number.to_ne_bytes());
        offer[24..].copy_from_slice(&cookie);
        Ok(offer)
    }

    /// Withdraws the offers of a closed link.
    pub fn withdraw(&mut self, link: u32) {
        self.offers.retain(|offer| offer.link != link);
    }

    /// Returns the number of unused offers.
    pub fn open_offers(&self) -> usize {
        self.offers.len()
    }

    /// Starts the handshake offered by the peer of a link, with a new pipe for the link. This
    /// engine identifies the link by `link`. Calls `watch` with the descriptor of the response
    /// before sending anything: a peer must not get the pipe if its response could not be received.
    pub fn call(
        &self,
        offer: &[u8; SHM_OFFER_LEN],
        link: u32,
        watch: impl FnOnce(RawFd) -> Result,
    ) -> Result<(ShmConnect, ShmChannel)> {
        let socket = ShmHandshakeSocket::new()?;
        let at = system_name(offer[..16].first_chunk().ok_or(Error::INVAL)?);
        // SAFETY: the kernel reads the address's bytes, which outlive the call.
        check(unsafe {
            let len = at.len() as libc::socklen_t;
            libc::connect(socket.fd.as_raw_fd(), at.as_ptr().cast(), len)
        })?;
        let process = socket.process()?;
        let (pipe, segment) = ShmChannel::create(self.rings.next(mapped_bytes())?)?;
        let mut hello = [0; HELLO_LEN];
        hello[..8].copy_from_slice(&HELLO_MARK);
        hello[8..32].copy_from_slice(&offer[16..]);
        hello[32..].copy_from_slice(&self.of_us(link));
        let mut call = ShmConnect { socket, process, buf: Vec::new() };
        call.take_slot()?;
        watch(call.fd())?;
        call.socket
            .send(&hello, &[segment.as_fd(), self.doorbell.memory(), self.doorbell.wakeup()])?;
        Ok((call, pipe))
    }

    /// Returns the handshake data of this end: its number of the link, and the identification of
    /// its memory.
    fn of_us(&self, link: u32) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&u64::from(link).to_ne_bytes());
        if let Some(token) = &self.token {
            bytes[8..16].copy_from_slice(&token.address().to_ne_bytes());
            bytes[16..].copy_from_slice(&token.value().to_ne_bytes());
        }
        bytes
    }

    /// Parses the handshake data of the peer.
    fn of_peer(
        &mut self,
        reply: &[u8],
        process: i32,
        [doorbell, wakeup]: [ReceivedFd; ANSWER_FDS],
    ) -> Result<ShmPeer> {
        let index = u32::try_from(word(reply, 0)).map_err(|_| Error::PROTO)?;
        let memory = match (&self.token, word(reply, 8)) {
            (None, _) | (_, 0) => None,
            (Some(_), address) => PeerMemory::open(process, address, word(reply, 16)).ok(),
        };
        Ok(ShmPeer { doorbell: self.doorbell_of(process, doorbell, wakeup)?, index, memory })
    }

    /// Returns the doorbell of these descriptors, mapped once for all links to the same engine.
    fn doorbell_of(
        &mut self,
        process: i32,
        doorbell: ReceivedFd,
        wakeup: ReceivedFd,
    ) -> Result<Arc<PeerDoorbell>> {
        let (wakeup, doorbell) = (wakeup.into_event_fd()?, ReceivedMemory::new(doorbell)?);
        let (device, number) = doorbell.id()?;
        let id = (process, device, number);
        self.doorbells.retain(|(_, doorbell)| doorbell.strong_count() > 0);
        // A process in another pid namespace has no number distinguishing it from others there.
        let known = self.doorbells.iter().find(|(known, _)| *known == id && process != 0);
        if let Some(known) = known.and_then(|(_, doorbell)| doorbell.upgrade()) {
            return Ok(known);
        }
        let doorbell = Arc::new(PeerDoorbell::open(doorbell.as_fd(), wakeup, process)?);
        self.doorbells.push((id, Arc::downgrade(&doorbell)));
        Ok(doorbell)
    }

    /// Returns the response to a handshake request. Fails with -FI_EAGAIN until it arrives; after
    /// any other error the link stays on its socket.
    pub fn accept(&mut self, call: &mut ShmConnect) -> Result<ShmPeer> {
        let mut answer = [0; ANSWER_LEN];
        call.buf.clear();
        let reply = call.socket.look::<ANSWER_FDS>(&mut answer);
        if reply.as_ref().is_err_and(|error| matches!(*error, Error::AGAIN | Error::INTR)) {
            let _ = call.take_slot();
        }
        let fds = reply?;
        if answer[..8] != ANSWER_MARK {
            return Err(Error::PROTO);
        }
        let peer = self.of_peer(&answer[8..], call.process, fds)?;
        call.socket.take();
        Ok(peer)
    }

    /// Accepts connections and processes their requests. Calls `pending_socket` with the descriptor of each
    /// connection without a message, to be watched for reading; the caller then repeats this call.
    /// Calls `upgraded` with the number and the new pipe of each upgraded link, and `failed` for each
    /// failed handshake.
    ///
    /// Fails if connections cannot be accepted now, for lack of descriptors or memory.
    pub fn receive(
        &mut self,
        mut pending_socket: impl FnMut(RawFd),
        mut upgraded: impl FnMut(u32, ShmChannel),
        mut failed: impl FnMut(u32, Error),
    ) -> Result {
        let Some(listen_addr) = &self.listen_addr else { return Ok(()) };
        let (mut new, mut result) = (Vec::new(), Ok(()));
        for _ in 0..MAX_ACCEPTS {
            if closer::is_behind() {
                result = Err(Error::NOBUFS);
                break;
            }
            match listen_addr.accept() {
                Ok(socket) => new.push(socket),
                Err(Error::AGAIN) => break,
                Err(Error::CONNABORTED | Error::INTR) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let known = self.pending_sockets.len();
        let all: Vec<_> = self.pending_sockets.drain(..).chain(new).collect();
        for (at, socket) in all.into_iter().enumerate() {
            match self.greet(&socket) {
                Ok((link, pipe)) => upgraded(link, pipe),
                Err((_, Error::AGAIN | Error::INTR)) => {
                    if at >= known {
                        pending_socket(socket.fd.as_raw_fd());
                    }
                    self.pending_sockets.push_back(socket);
                }
                Err((Some(link), error)) => failed(link, error),
                Err((None, _)) => {}
            }
        }
        while self.pending_sockets.len() > MAX_UNKNOWN_CONNS {
            self.pending_sockets.pop_front();
        }
        result
    }

    /// Processes a handshake request: returns the requested link and the pipe to its peer. An error
    /// contains the reason to close the connection, and the link with its offer consumed.
    fn greet(
        &mut self,
        socket: &ShmHandshakeSocket,
    ) -> core::result::Result<(u32, ShmChannel), (Option<u32>, Error)> {
        let process = socket.process().map_err(|error| (None, error))?;
        let mut hello = [0; HELLO_LEN];
        let [segment, doorbell, wakeup] = socket.look(&mut hello).map_err(|error| (None, error))?;
        let link = self.take_offer(&hello).ok_or((None, Error::ACCES))?;
        let pipe = ReceivedMemory::new(segment)
            .and_then(|segment| ShmChannel::open_within(segment.as_fd(), self.rings.most))
            .and_then(|pipe| {
                self.of_peer(&hello[32..], process, [doorbell, wakeup])?.join(&pipe);
                socket.take();
                Ok(pipe)
            })
            .and_then(|pipe| {
                let mut answer = [0; ANSWER_LEN];
                answer[..8].copy_from_slice(&ANSWER_MARK);
                answer[8..].copy_from_slice(&self.of_us(link));
                // Without the answer the other end has not met this one, and goes on as before.
                socket.send(&answer, &[self.doorbell.memory(), self.doorbell.wakeup()])?;
                Ok(pipe)
            });
        pipe.map(|pipe| (link, pipe)).map_err(|error| (Some(link), error))
    }

    /// Returns the link of the offer with the number and cookie in a HELLO, and consumes the offer.
    fn take_offer(&mut self, hello: &[u8; HELLO_LEN]) -> Option<u32> {
        let cookie: Secret = *hello[16..].first_chunk()?;
        if hello[..8] != HELLO_MARK {
            return None;
        }
        let number = word(hello, 8);
        let at = self.offers.binary_search_by_key(&number, |offer| offer.number).ok()?;
        if !are_same(&self.offers[at].cookie, &cookie) {
            return None;
        }
        self.offers.remove(at).map(|offer| offer.link)
    }
}

#[cfg(test)]
mod tests;
