//! Shared-memory upgrade: detection of a link between two processes of one host, and the exchange
//! of its memory.
//!
//! The end that accepted the link offers the name of an abstract unix socket and a random cookie
//! ([`MeetingHost::offer`]), over the link itself. Such names live in a network namespace, so
//! elsewhere no socket has the name. The other end connects to it ([`MeetingHost::call`]). Both
//! query the kernel for the process of the peer, and continue only if it runs as their own user.
//! Then one message carries the cookie and the descriptors of the memory created for the link, and
//! its response carries descriptors as well. No name remains in the file system.
//!
//! Any process of the host may connect. Connections of unknown processes are closed, and so are
//! ones with an unexpected message. A cookie is valid for one handshake. A failure affects nothing
//! but this handshake: the link continues on its socket.
use crate::closer;
use crate::cma::{MemoryToken, PeerMemory};
use crate::door::{LocalDoor, PeerDoor};
use crate::error::{Error, Result};
use crate::rights::{self, ReceivedFd};
use crate::ring::LocalPipe;
use crate::segment::{MIN_RING, ReceivedMemory, mapped_bytes, segment_bytes};
use crate::sys::{EventFd, check, count_forks, fill_random, generation, is_own_user};
use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

/// Bytes of an offer: name, number, cookie.
pub const MEETING_OFFER_LEN: usize = 40;

/// Maximum number of unused offers: the oldest is withdrawn for another. Peers with little traffic
/// do not use them.
const MAX_OFFERS: usize = 16384;

/// Maximum number of connections without a message: the oldest is closed for another.
const MAX_GUESTS: usize = 64;

/// Maximum number of connections accepted by one call, for fairness to other work.
const MAX_ACCEPTS: usize = 64;

/// The longest message is one of these two; descriptors beyond [`MAX_FDS`] are not taken.
const GREETING_LEN: usize = 56;
const ANSWER_LEN: usize = 32;
const MAX_FDS: usize = 8;
/// Descriptors of an answer: memory and bell of a door.
const ANSWER_FDS: usize = 2;

/// Magic number at the start of the messages, with their version.
const GREETING_MARK: [u8; 8] = *b"ofimeet1";
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

/// The system's name of a meeting place: `struct sockaddr_un`.
fn system_name(name: &Secret) -> Vec<u8> {
    let family = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    [&family, &b"\0ofi-local/"[..], hex.as_bytes()].concat()
}

/// A socket of a meeting: packets, with descriptors. No call blocks.
#[derive(Debug)]
struct MeetingSocket {
    /// Taken by the destructor alone.
    fd: ManuallyDrop<OwnedFd>,
    /// Process that created the socket ([`generation`]). A forked child has it as well.
    process: u32,
}

impl MeetingSocket {
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

    /// Peeks at the message, required to have the length of `room` and exactly `FDS` descriptors.
    /// Fails with -FI_EAGAIN if there is none. The message stays queued, possibly with further
    /// descriptors, until it is [taken](Self::take).
    fn look<const FDS: usize>(&self, room: &mut [u8]) -> Result<[ReceivedFd; FDS]> {
        let mut control = [0u64; 16];
        let mut more = 0u8;
        let len = room.len();
        let mut parts = [
            libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: len },
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

impl Drop for MeetingSocket {
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
struct MeetingPlace {
    listener: MeetingSocket,
    name: Secret,
}

impl MeetingPlace {
    fn new() -> Result<Self> {
        let (listener, name) = (MeetingSocket::new()?, secret()?);
        let at = system_name(&name);
        // SAFETY: the kernel reads the address's bytes, which outlive the call.
        check(unsafe {
            libc::bind(listener.fd.as_raw_fd(), at.as_ptr().cast(), at.len() as libc::socklen_t)
        })?;
        // SAFETY: no memory is involved.
        check(unsafe { libc::listen(listener.fd.as_raw_fd(), BACKLOG) })?;
        Ok(Self { listener, name })
    }

    fn accept(&self) -> Result<MeetingSocket> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let (nobody, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no address is asked for; the result is checked, then owned once.
        unsafe {
            let fd = libc::accept4(self.listener.fd.as_raw_fd(), nobody, none, flags);
            Ok(MeetingSocket::of(OwnedFd::from_raw_fd(check(fd)?)))
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
pub struct MeetingHost {
    door: LocalDoor,
    place: Option<MeetingPlace>,
    offers: VecDeque<OpenOffer>,
    offered: u64,
    guests: VecDeque<MeetingSocket>,
    /// Doorbells of peer engines, each shared by all links to its engine. The key is the peer's
    /// process and the inode number of the memory.
    doors: Vec<(DoorId, Weak<PeerDoor>)>,
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

type DoorId = (i32, u64, u64);

/// Handshake request to another engine, not answered yet.
#[derive(Debug)]
pub struct MeetingCall {
    socket: MeetingSocket,
    process: i32,
    /// Reserved descriptors, closed at the response to make room for the received ones. Without
    /// them the process could be unable to accept the response, and the peer would consider the
    /// handshake complete.
    room: Vec<OwnedFd>,
}

impl MeetingCall {
    /// Returns the descriptor that is readable at the response.
    pub fn fd(&self) -> RawFd {
        self.socket.fd.as_raw_fd()
    }

    /// Takes room for the answer's descriptors.
    fn take_room(&mut self) -> Result {
        while self.room.len() < ANSWER_FDS {
            self.room.push(self.socket.fd.try_clone().map_err(|_| Error::last_os())?);
        }
        Ok(())
    }
}

/// Handshake data of the peer.
#[derive(Debug)]
pub struct MetPeer {
    /// Doorbell of the peer, and the peer's number of the link.
    pub door: Arc<PeerDoor>,
    /// The link's number there.
    pub index: u32,
    /// The other end's memory, if this process may read it.
    pub memory: Option<PeerMemory>,
}

impl MetPeer {
    /// Attaches the peer to a pipe.
    pub fn join(self, pipe: &LocalPipe) {
        if let Some(memory) = self.memory {
            pipe.set_peer_memory(memory);
        }
        pipe.attach_peer(self.door, self.index);
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

impl MeetingHost {
    /// Returns the listener of an engine with rings of these sizes. With `reads` both ends may read
    /// each other's memory if the kernel permits it.
    pub fn new(rings: RingMemory, reads: bool) -> Result<Self> {
        Ok(Self {
            door: LocalDoor::new()?,
            place: None,
            offers: VecDeque::new(),
            offered: 0,
            guests: VecDeque::new(),
            doors: Vec::new(),
            rings,
            token: if reads { MemoryToken::new().ok() } else { None },
        })
    }

    /// The engine's door.
    pub fn door(&self) -> &LocalDoor {
        &self.door
    }

    /// Opens the listening socket, if it is not open, and returns its descriptor. It is readable
    /// for a pending connection. Returns `None` if it was open.
    pub fn open(&mut self) -> Result<Option<RawFd>> {
        if self.place.is_some() {
            return Ok(None);
        }
        let place = self.place.insert(MeetingPlace::new()?);
        Ok(Some(place.listener.fd.as_raw_fd()))
    }

    /// Closes the listening socket until it is opened again.
    pub fn shut(&mut self) {
        self.place = None;
    }

    /// Returns the descriptor of the listening socket if it is open.
    pub fn place(&self) -> Option<RawFd> {
        self.place.as_ref().map(|place| place.listener.fd.as_raw_fd())
    }

    /// Offers the other end of a link to meet here. The engine calls the link by the number `link`.
    pub fn offer(&mut self, link: u32) -> Result<[u8; MEETING_OFFER_LEN]> {
        let place = self.place.as_ref().ok_or(Error::OPBADSTATE)?;
        let cookie = secret()?;
        if self.offers.len() >= MAX_OFFERS {
            self.offers.pop_front();
        }
        self.offered += 1;
        let number = self.offered;
        self.offers.push_back(OpenOffer { number, cookie, link });
        let mut offer = [0; MEETING_OFFER_LEN];
        offer[..16].copy_from_slice(&place.name);
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
        offer: &[u8; MEETING_OFFER_LEN],
        link: u32,
        watch: impl FnOnce(RawFd) -> Result,
    ) -> Result<(MeetingCall, LocalPipe)> {
        let socket = MeetingSocket::new()?;
        let at = system_name(offer[..16].first_chunk().ok_or(Error::INVAL)?);
        // SAFETY: the kernel reads the address's bytes, which outlive the call.
        check(unsafe {
            let len = at.len() as libc::socklen_t;
            libc::connect(socket.fd.as_raw_fd(), at.as_ptr().cast(), len)
        })?;
        let process = socket.process()?;
        let (pipe, segment) = LocalPipe::create(self.rings.next(mapped_bytes())?)?;
        let mut greeting = [0; GREETING_LEN];
        greeting[..8].copy_from_slice(&GREETING_MARK);
        greeting[8..32].copy_from_slice(&offer[16..]);
        greeting[32..].copy_from_slice(&self.of_us(link));
        let mut call = MeetingCall { socket, process, room: Vec::new() };
        call.take_room()?;
        watch(call.fd())?;
        call.socket.send(&greeting, &[segment.as_fd(), self.door.memory(), self.door.bell()])?;
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
        said: &[u8],
        process: i32,
        [door, bell]: [ReceivedFd; ANSWER_FDS],
    ) -> Result<MetPeer> {
        let index = u32::try_from(word(said, 0)).map_err(|_| Error::PROTO)?;
        let memory = match (&self.token, word(said, 8)) {
            (None, _) | (_, 0) => None,
            (Some(_), address) => PeerMemory::open(process, address, word(said, 16)).ok(),
        };
        Ok(MetPeer { door: self.door_of(process, door, bell)?, index, memory })
    }

    /// Returns the doorbell of these descriptors, mapped once for all links to the same engine.
    fn door_of(
        &mut self,
        process: i32,
        door: ReceivedFd,
        bell: ReceivedFd,
    ) -> Result<Arc<PeerDoor>> {
        let (bell, door) = (EventFd::received(bell)?, ReceivedMemory::new(door)?);
        let (device, number) = door.id()?;
        let id = (process, device, number);
        self.doors.retain(|(_, door)| door.strong_count() > 0);
        // A process in another pid namespace has no number distinguishing it from others there.
        let known = self.doors.iter().find(|(known, _)| *known == id && process != 0);
        if let Some(known) = known.and_then(|(_, door)| door.upgrade()) {
            return Ok(known);
        }
        let door = Arc::new(PeerDoor::open(door.as_fd(), bell, process)?);
        self.doors.push((id, Arc::downgrade(&door)));
        Ok(door)
    }

    /// Returns the response to a handshake request. Fails with -FI_EAGAIN until it arrives; after
    /// any other error the link stays on its socket.
    pub fn hear(&mut self, call: &mut MeetingCall) -> Result<MetPeer> {
        let mut answer = [0; ANSWER_LEN];
        call.room.clear();
        let heard = call.socket.look::<ANSWER_FDS>(&mut answer);
        if heard.as_ref().is_err_and(|error| matches!(*error, Error::AGAIN | Error::INTR)) {
            let _ = call.take_room();
        }
        let fds = heard?;
        if answer[..8] != ANSWER_MARK {
            return Err(Error::PROTO);
        }
        let peer = self.of_peer(&answer[8..], call.process, fds)?;
        call.socket.take();
        Ok(peer)
    }

    /// Accepts connections and processes their requests. Calls `guest` with the descriptor of each
    /// connection without a message, to be watched for reading; the caller then repeats this call.
    /// Calls `met` with the number and the new pipe of each upgraded link, and `failed` for each
    /// failed handshake.
    ///
    /// Fails if connections cannot be accepted now, for lack of descriptors or memory.
    pub fn receive(
        &mut self,
        mut guest: impl FnMut(RawFd),
        mut met: impl FnMut(u32, LocalPipe),
        mut failed: impl FnMut(u32, Error),
    ) -> Result {
        let Some(place) = &self.place else { return Ok(()) };
        let (mut new, mut result) = (Vec::new(), Ok(()));
        for _ in 0..MAX_ACCEPTS {
            if closer::is_behind() {
                result = Err(Error::NOBUFS);
                break;
            }
            match place.accept() {
                Ok(socket) => new.push(socket),
                Err(Error::AGAIN) => break,
                Err(Error::CONNABORTED | Error::INTR) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let known = self.guests.len();
        let all: Vec<_> = self.guests.drain(..).chain(new).collect();
        for (at, socket) in all.into_iter().enumerate() {
            match self.greet(&socket) {
                Ok((link, pipe)) => met(link, pipe),
                Err((_, Error::AGAIN | Error::INTR)) => {
                    if at >= known {
                        guest(socket.fd.as_raw_fd());
                    }
                    self.guests.push_back(socket);
                }
                Err((Some(link), error)) => failed(link, error),
                Err((None, _)) => {}
            }
        }
        while self.guests.len() > MAX_GUESTS {
            self.guests.pop_front();
        }
        result
    }

    /// Processes a handshake request: returns the requested link and the pipe to its peer. An error
    /// contains the reason to close the connection, and the link with its offer consumed.
    fn greet(
        &mut self,
        socket: &MeetingSocket,
    ) -> core::result::Result<(u32, LocalPipe), (Option<u32>, Error)> {
        let process = socket.process().map_err(|error| (None, error))?;
        let mut greeting = [0; GREETING_LEN];
        let [segment, door, bell] = socket.look(&mut greeting).map_err(|error| (None, error))?;
        let link = self.take_offer(&greeting).ok_or((None, Error::ACCES))?;
        let pipe = ReceivedMemory::new(segment)
            .and_then(|segment| LocalPipe::open_within(segment.as_fd(), self.rings.most))
            .and_then(|pipe| {
                self.of_peer(&greeting[32..], process, [door, bell])?.join(&pipe);
                socket.take();
                Ok(pipe)
            })
            .and_then(|pipe| {
                let mut answer = [0; ANSWER_LEN];
                answer[..8].copy_from_slice(&ANSWER_MARK);
                answer[8..].copy_from_slice(&self.of_us(link));
                // Without the answer the other end has not met this one, and goes on as before.
                socket.send(&answer, &[self.door.memory(), self.door.bell()])?;
                Ok(pipe)
            });
        pipe.map(|pipe| (link, pipe)).map_err(|error| (Some(link), error))
    }

    /// Returns the link of the offer with the number and cookie in a HELLO, and consumes the offer.
    fn take_offer(&mut self, greeting: &[u8; GREETING_LEN]) -> Option<u32> {
        let cookie: Secret = *greeting[16..].first_chunk()?;
        if greeting[..8] != GREETING_MARK {
            return None;
        }
        let number = word(greeting, 8);
        let at = self.offers.binary_search_by_key(&number, |offer| offer.number).ok()?;
        if !are_same(&self.offers[at].cookie, &cookie) {
            return None;
        }
        self.offers.remove(at).map(|offer| offer.link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const PAGES: RingMemory = RingMemory { ring: 4096, most: usize::MAX / 4 };

    #[test]
    fn rings_get_smaller_with_their_number_until_there_are_none() {
        let rings = RingMemory { ring: 64 << 10, most: 64 << 20 };
        let (mut made, mut sizes) = (0, Vec::new());
        while let Ok(ring) = rings.next(made) {
            made += segment_bytes(ring);
            sizes.push(ring);
        }
        assert!(made <= rings.most && made + segment_bytes(8 << 10) > rings.most);
        assert!(sizes.is_sorted_by(|one, next| one >= next));
        assert_eq!((sizes[0], sizes.last()), (64 << 10, Some(&(8 << 10))));
        assert!(sizes.len() > 4 * (rings.most / segment_bytes(rings.ring)) / 2);
        let few = RingMemory { ring: 4096, most: 0 };
        assert_eq!(few.next(0), Err(Error::NOMEM));
    }

    fn host() -> MeetingHost {
        let mut host = MeetingHost::new(PAGES, true).unwrap();
        assert!(host.open().unwrap().is_some() && host.open().unwrap().is_none());
        host
    }

    /// Returns the handshakes of a listener: upgraded links, and failed ones.
    fn visits(host: &mut MeetingHost) -> (Vec<(u32, LocalPipe)>, Vec<(u32, Error)>) {
        let (mut met, mut failed) = (Vec::new(), Vec::new());
        host.receive(|_| (), |link, pipe| met.push((link, pipe)), |link, e| failed.push((link, e)))
            .unwrap();
        (met, failed)
    }

    fn nobody_comes(host: &mut MeetingHost) {
        let (met, failed) = visits(host);
        assert!(met.is_empty() && failed.is_empty(), "{met:?} {failed:?}");
    }

    /// Performs a valid handshake for link 7 of `host`, called 9 by the other side.
    fn meets(host: &mut MeetingHost, offer: &[u8; MEETING_OFFER_LEN]) {
        let mut other = MeetingHost::new(PAGES, true).unwrap();
        let (mut call, theirs) = other.call(offer, 9, |_| Ok(())).unwrap();
        assert_eq!(other.hear(&mut call).err(), Some(Error::AGAIN));
        let (mut met, failed) = visits(host);
        assert_eq!((met.len(), failed.len()), (1, 0));
        let (link, ours) = met.pop().unwrap();
        assert_eq!(link, 7);
        let peer = other.hear(&mut call).unwrap();
        assert_eq!(peer.index, 7);
        peer.join(&theirs);
        let mut room = [0; 8];
        assert_eq!((theirs.send(b"there"), ours.recv(&mut room)), (Ok(5), Ok(5)));
        assert_eq!((ours.send(b"back"), theirs.recv(&mut room)), (Ok(4), Ok(4)));
        let mut rung = [Vec::new(), Vec::new()];
        host.door().ready(&mut rung[0]);
        other.door().ready(&mut rung[1]);
        assert_eq!(rung, [[7], [9]]);
        // Both are this process, which may read its own memory where there is process_vm_readv(2).
        let own = MemoryToken::new().unwrap();
        let reads = PeerMemory::open(std::process::id() as i32, own.address(), own.value()).is_ok();
        assert_eq!((ours.can_lend(), theirs.can_lend()), (reads, reads));
    }

    #[test]
    fn connect_sends_no_hello_if_its_reply_cannot_be_watched() {
        let mut host = host();
        let offer = host.offer(7).unwrap();
        let other = MeetingHost::new(PAGES, true).unwrap();
        let mut watched = None;
        let called = other.call(&offer, 9, |fd| {
            // A request sent before would be answered.
            let (met, failed) = visits(&mut host);
            watched = Some((fd, met.len() + failed.len()));
            Err(Error::NOSPC)
        });
        assert_eq!(called.err(), Some(Error::NOSPC));
        assert!(matches!(watched, Some((0.., 0))), "{watched:?}");
        nobody_comes(&mut host);
    }

    /// A stranger at the place of an offer.
    fn stranger(offer: &[u8; MEETING_OFFER_LEN]) -> MeetingSocket {
        let socket = MeetingSocket::new().unwrap();
        let at = system_name(offer[..16].first_chunk().unwrap());
        // SAFETY: the kernel reads the address's bytes, which outlive the call.
        check(unsafe {
            let len = at.len() as libc::socklen_t;
            libc::connect(socket.fd.as_raw_fd(), at.as_ptr().cast(), len)
        })
        .unwrap();
        socket
    }

    fn greeting(offer: &[u8; MEETING_OFFER_LEN]) -> [u8; GREETING_LEN] {
        let mut greeting = [0; GREETING_LEN];
        greeting[..8].copy_from_slice(&GREETING_MARK);
        greeting[8..32].copy_from_slice(&offer[16..]);
        greeting
    }

    fn is_hung_up_on(socket: &MeetingSocket) {
        assert_eq!(socket.look::<2>(&mut [0; ANSWER_LEN]).err(), Some(Error::CONNRESET));
    }

    #[test]
    fn cookie_is_accepted_once() {
        let mut host = host();
        let offer = host.offer(7).unwrap();
        meets(&mut host, &offer);
        assert_eq!(host.open_offers(), 0);
        let mut late = MeetingHost::new(PAGES, false).unwrap();
        let (mut call, _) = late.call(&offer, 1, |_| Ok(())).unwrap();
        nobody_comes(&mut host);
        assert_eq!(late.hear(&mut call).err(), Some(Error::CONNRESET), "a cookie that is used up");
        let offer = host.offer(7).unwrap();
        meets(&mut host, &offer);
        let offer = host.offer(7).unwrap();
        host.withdraw(7);
        let (mut call, _) = late.call(&offer, 1, |_| Ok(())).unwrap();
        nobody_comes(&mut host);
        assert_eq!(late.hear(&mut call).err(), Some(Error::CONNRESET), "a link that has ended");
        drop(host);
        assert_eq!(late.call(&offer, 1, |_| Ok(())).err(), Some(Error::CONNREFUSED));
    }

    #[test]
    fn links_to_one_engine_share_one_doorbell() {
        let (mut host, mut other) = (host(), MeetingHost::new(PAGES, true).unwrap());
        let mut doors = Vec::new();
        for link in 0..2 {
            let offer = host.offer(link).unwrap();
            let (mut call, _pipe) = other.call(&offer, link, |_| Ok(())).unwrap();
            assert_eq!(visits(&mut host).0.len(), 1);
            doors.push(other.hear(&mut call).unwrap().door);
        }
        assert!(Arc::ptr_eq(&doors[0], &doors[1]));
        let third = MeetingHost::new(PAGES, true).unwrap();
        let received = |fd: BorrowedFd<'_>| ReceivedFd::new(fd.try_clone_to_owned().unwrap());
        let [memory, own] = [&host, &third].map(|host| received(host.door().memory()));
        let bell = || received(third.door().bell());
        let process = std::process::id() as i32;
        assert!(!Arc::ptr_eq(&doors[0], &other.door_of(process, own, bell()).unwrap()));
        let claimed = other.door_of(process + 1, memory, bell()).unwrap();
        assert!(!Arc::ptr_eq(&doors[0], &claimed), "another process may not stand in for one");
    }

    #[test]
    fn malformed_hello_is_disconnected_without_side_effects() {
        let mut host = host();
        let offer = host.offer(7).unwrap();
        let good = greeting(&offer);
        let with = |at: usize| {
            let mut wrong = good;
            wrong[at] ^= 1;
            wrong.to_vec()
        };
        let long = [&good[..], b"x"].concat();
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            long,
            good[..GREETING_LEN - 1].to_vec(),
            with(0),
            with(8),
            with(16),
            with(31),
        ] {
            let (mut kept, given) = std::io::pipe().unwrap();
            let socket = stranger(&offer);
            socket.send(&bytes, &[given.as_fd(); 3]).unwrap();
            drop(given);
            nobody_comes(&mut host);
            is_hung_up_on(&socket);
            assert_eq!(kept.read(&mut [0]).unwrap(), 0, "descriptors are closed");
        }
        for count in [0, 1, 2, 4, MAX_FDS] {
            let (mut kept, given) = std::io::pipe().unwrap();
            let socket = stranger(&offer);
            socket.send(&good, &vec![given.as_fd(); count]).unwrap();
            drop(given);
            nobody_comes(&mut host);
            is_hung_up_on(&socket);
            assert_eq!(kept.read(&mut [0]).unwrap(), 0, "{count} descriptors are closed");
        }
        // A connection closed at once, too.
        drop(stranger(&offer));
        nobody_comes(&mut host);
        meets(&mut host, &offer);
    }

    #[test]
    fn invalid_descriptors_fail_only_their_own_upgrade() {
        let mut host = host();
        let other = MeetingHost::new(PAGES, true).unwrap();
        let (_pipe, segment) = LocalPipe::create(4096).unwrap();
        let (_end, blocking) = std::io::pipe().unwrap();
        let (segment, door, bell) = (segment.as_fd(), other.door().memory(), other.door().bell());
        let (blocking, pipe) = (blocking.as_fd(), std::io::pipe().unwrap().1);
        // SAFETY: no memory is involved. Owner signals would be raised in its writers.
        unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        for fds in [
            [door, door, bell],
            [bell, door, bell],
            [segment, segment, bell],
            [segment, bell, bell],
            [segment, door, blocking],
            [segment, door, pipe.as_fd()],
        ] {
            let offer = host.offer(7).unwrap();
            let socket = stranger(&offer);
            socket.send(&greeting(&offer), &fds).unwrap();
            let (met, failed) = visits(&mut host);
            assert_eq!((met.len(), failed.len(), host.open_offers()), (0, 1, 0));
            assert_eq!(failed[0].0, 7);
            is_hung_up_on(&socket);
        }
        // The other way round.
        let offer = host.offer(7).unwrap();
        let mut caller = MeetingHost::new(PAGES, true).unwrap();
        for (mark, fds) in [(b"ofimeet?", [door, bell]), (&ANSWER_MARK, [door, door])] {
            let (mut call, _pipe) = caller.call(&offer, 9, |_| Ok(())).unwrap();
            let guest = host.place.as_ref().unwrap().accept().unwrap();
            let mut answer = [0; ANSWER_LEN];
            answer[..8].copy_from_slice(mark);
            guest.send(&answer, &fds).unwrap();
            assert!(!matches!(caller.hear(&mut call), Ok(_) | Err(Error::AGAIN)));
        }
    }

    #[test]
    fn received_rings_count_toward_the_memory_limit() {
        let mut host = host();
        let other = MeetingHost::new(PAGES, true).unwrap();
        // Other tests have rings meanwhile.
        for (most, met) in [(segment_bytes(16 << 20), 0), (usize::MAX / 4, 1)] {
            host.rings.most = most;
            let offer = host.offer(7).unwrap();
            let (_pipe, segment) = LocalPipe::create(16 << 20).unwrap();
            let socket = stranger(&offer);
            let fds = [segment.as_fd(), other.door().memory(), other.door().bell()];
            socket.send(&greeting(&offer), &fds).unwrap();
            let (came, failed) = visits(&mut host);
            assert_eq!((came.len(), failed.len()), (met, 1 - met));
            assert!(failed.iter().all(|(_, error)| *error == Error::NOMEM));
        }
    }

    #[test]
    fn silent_connections_and_unused_offers_are_bounded() {
        let mut host = host();
        let first = host.offer(7).unwrap();
        let mut silent: Vec<_> = (0..3 * MAX_GUESTS).map(|_| stranger(&first)).collect();
        for _ in 0..silent.len().div_ceil(MAX_ACCEPTS) {
            nobody_comes(&mut host);
        }
        meets(&mut host, &first);
        nobody_comes(&mut host);
        nobody_comes(&mut host);
        assert_eq!(host.guests.len(), MAX_GUESTS);
        is_hung_up_on(&silent[0]);
        // One that was slow.
        let offer = host.offer(8).unwrap();
        let slow = silent.pop().unwrap();
        let other = MeetingHost::new(PAGES, true).unwrap();
        let (_pipe, segment) = LocalPipe::create(4096).unwrap();
        let fds = [segment.as_fd(), other.door().memory(), other.door().bell()];
        slow.send(&greeting(&offer), &fds).unwrap();
        assert_eq!(visits(&mut host).0.len(), 1);
        let offers: Vec<_> = (0..=MAX_OFFERS).map(|_| host.offer(7).unwrap()).collect();
        assert_eq!(host.open_offers(), MAX_OFFERS);
        let mut late = MeetingHost::new(PAGES, false).unwrap();
        let (mut call, _) = late.call(&offers[0], 1, |_| Ok(())).unwrap();
        nobody_comes(&mut host);
        assert_eq!(late.hear(&mut call).err(), Some(Error::CONNRESET), "the oldest is withdrawn");
        meets(&mut host, &offers[1]);
    }

    /// Runs `work` in a thread acting for another user. Returns `None` if this process may not.
    fn as_somebody_else<R: Send>(work: impl FnOnce() -> R + Send) -> Option<R> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: no memory is involved. The call is for this thread alone.
                let done = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_533, -1) };
                (done == 0).then(work)
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn shared_memory_upgrade_is_refused_to_another_user() {
        let mut host = host();
        let offer = host.offer(7).unwrap();
        let Some(calling) = as_somebody_else(|| {
            let socket = stranger(&offer);
            let other = MeetingHost::new(PAGES, true).unwrap();
            let (_pipe, segment) = LocalPipe::create(4096).unwrap();
            let fds = [segment.as_fd(), other.door().memory(), other.door().bell()];
            socket.send(&greeting(&offer), &fds).unwrap();
            socket
        }) else {
            return;
        };
        nobody_comes(&mut host);
        is_hung_up_on(&calling);
        let (theirs, offered) = as_somebody_else(|| {
            let mut theirs = self::host();
            let offer = theirs.offer(7).unwrap();
            (theirs, offer)
        })
        .unwrap();
        assert_eq!(host.call(&offered, 1, |_| Ok(())).err(), Some(Error::ACCES));
        drop(theirs);
        meets(&mut host, &offer);
    }
}
