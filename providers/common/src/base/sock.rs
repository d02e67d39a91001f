//! Non-blocking stream sockets of any family.
//!
//! Addresses are the bytes of a `sockaddr` of the socket's family.
use crate::buf::ScatterList;
use crate::error::{Error, Result};
use crate::sys::{OwnerProcess, check, count_forks, is_own_user, set_option};
use crate::{closer, rights};
use core::mem::ManuallyDrop;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Bytes of the longest address of such a socket (`struct sockaddr_storage`).
const LONGEST: usize = size_of::<libc::sockaddr_storage>();

/// System call returning an address of a socket: getsockname(2), getpeername(2).
type NameCall =
    unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

/// Control data a socket may receive in addition to bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rights {
    /// Nothing.
    None,
    /// Descriptors of other processes (AF_UNIX), not rejectable by the kernel.
    May,
}

/// Stream socket, bound or connected or neither.
///
/// No call blocks because of descriptors sent by another process ([`rights`]): they end the stream.
#[derive(Debug)]
pub struct StreamSocket {
    /// Taken by the destructor alone.
    fd: ManuallyDrop<OwnedFd>,
    rights: Rights,
    /// Process that created the socket. A forked child has a copy.
    owner: OwnerProcess,
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl StreamSocket {
    /// A new socket of this family (AF_INET, AF_UNIX …).
    pub fn new(family: libc::c_int) -> Result<Self> {
        Self::with_protocol(family, 0)
    }

    /// Creates a socket of this family and protocol (IPPROTO_MPTCP …).
    pub fn with_protocol(family: libc::c_int, protocol: libc::c_int) -> Result<Self> {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved; the result is checked, then owned once.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind, protocol))?) };
        let may = family == libc::AF_UNIX && !rights::refuse(fd.as_fd());
        Ok(Self::of(fd, may))
    }

    /// `may`: other processes may send descriptors to the socket.
    fn of(fd: OwnedFd, may: bool) -> Self {
        count_forks();
        let rights = if may { Rights::May } else { Rights::None };
        Self { fd: ManuallyDrop::new(fd), rights, owner: OwnerProcess::current() }
    }

    /// The socket's descriptor.
    #[inline(always)]
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sets a numeric socket option.
    pub fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> Result {
        set_option(self.fd.as_fd(), level, name, value)
    }

    /// Sets a text option.
    pub fn set_text(&self, level: libc::c_int, name: libc::c_int, value: &[u8]) -> Result {
        let len = value.len() as libc::socklen_t;
        // SAFETY: the kernel reads the text's bytes, which outlive the call.
        check(unsafe { libc::setsockopt(self.fd(), level, name, value.as_ptr().cast(), len) })?;
        Ok(())
    }

    /// Reads a socket option as bytes; returns the number of bytes written to `value`.
    pub fn get_bytes(
        &self,
        level: libc::c_int,
        name: libc::c_int,
        value: &mut [u8],
    ) -> Result<usize> {
        let mut len = value.len() as libc::socklen_t;
        let at = value.as_mut_ptr().cast();
        // SAFETY: the kernel writes at most `len` bytes to `value`, which outlives the call.
        check(unsafe { libc::getsockopt(self.fd(), level, name, at, &raw mut len) })?;
        Ok((len as usize).min(value.len()))
    }

    /// Gives the socket this address.
    pub fn bind(&self, to: &[u8]) -> Result {
        let len = to.len() as libc::socklen_t;
        // SAFETY: the kernel reads the address's bytes, which outlive the call.
        check(unsafe { libc::bind(self.fd(), to.as_ptr().cast(), len) })?;
        Ok(())
    }

    /// Listens for connections, with at most `backlog` pending ones in the kernel's queue.
    pub fn listen(&self, backlog: libc::c_int) -> Result {
        // SAFETY: no memory is involved.
        check(unsafe { libc::listen(self.fd(), backlog) })?;
        Ok(())
    }

    /// Starts connecting; it goes on by itself.
    pub fn connect(&self, to: &[u8]) -> Result {
        let len = to.len() as libc::socklen_t;
        // SAFETY: the kernel reads the address's bytes, which outlive the call.
        match check(unsafe { libc::connect(self.fd(), to.as_ptr().cast(), len) }) {
            Ok(_) | Err(Error::INPROGRESS) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the socket's pending error, such as the result of connecting.
    pub fn take_error(&self) -> Result {
        let mut code: libc::c_int = 0;
        // SAFETY: `code` is what the option is.
        unsafe { self.get(libc::SO_ERROR, &mut code) }?;
        if code == 0 { Ok(()) } else { Err(Error::from_code(code)) }
    }

    /// Returns true if the peer, a process of this host, runs as the same user as this process
    /// (AF_UNIX only).
    pub fn is_of_same_user(&self) -> Result<bool> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        // SAFETY: `peer` is what the option is.
        unsafe { self.get(libc::SO_PEERCRED, &mut peer) }?;
        Ok(is_own_user(peer.uid))
    }

    /// Reads an option of the socket's own level.
    ///
    /// # Safety
    /// `T` is the option's type.
    unsafe fn get<T>(&self, name: libc::c_int, value: &mut T) -> Result {
        let mut len = size_of::<T>() as libc::socklen_t;
        let at = (&raw mut *value).cast();
        // SAFETY: the kernel writes at most `len` bytes to `value`, which by the contract stays
        // one of its type.
        check(unsafe { libc::getsockopt(self.fd(), libc::SOL_SOCKET, name, at, &raw mut len) })?;
        Ok(())
    }

    /// Accepts a pending connection and returns it with its peer's address. Fails with -FI_EAGAIN
    /// if there is none, and with -FI_ENOBUFS if too many connections are being closed.
    pub fn accept(&self) -> Result<(Self, Vec<u8>)> {
        let may = self.rights != Rights::None;
        if may && closer::is_behind() {
            return Err(Error::NOBUFS);
        }
        let mut raw = [0u8; LONGEST];
        let mut len = raw.len() as libc::socklen_t;
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the kernel writes at most `len` bytes to `raw`; the result is
        // checked, then owned once.
        let socket = unsafe {
            let fd = libc::accept4(self.fd(), raw.as_mut_ptr().cast(), &raw mut len, flags);
            OwnedFd::from_raw_fd(check(fd)?)
        };
        Ok((Self::of(socket, may), raw[..(len as usize).min(raw.len())].to_vec()))
    }

    fn name(&self, get: NameCall) -> Result<Vec<u8>> {
        let mut raw = [0u8; LONGEST];
        let mut len = raw.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `raw`.
        check(unsafe { get(self.fd(), raw.as_mut_ptr().cast(), &raw mut len) })?;
        Ok(raw[..(len as usize).min(raw.len())].to_vec())
    }

    /// The socket's own address.
    pub fn local_addr(&self) -> Result<Vec<u8>> {
        self.name(libc::getsockname)
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> Result<Vec<u8>> {
        self.name(libc::getpeername)
    }

    /// Receives without blocking; 0 is the end of the stream. It is no cancellation point
    /// (pthread_cancel(3)), unlike recv(3), which is also slower for this reason.
    #[inline(always)]
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        if self.rights != Rights::None {
            return self.recv_bytes(buf);
        }
        self.recv_any(buf)
    }

    /// [`recv`](Self::recv) from an internet socket, which cannot carry descriptors.
    #[inline(always)]
    pub fn recv_inet(&self, buf: &mut [u8]) -> Result<usize> {
        debug_assert!(self.rights == Rights::None);
        self.recv_any(buf)
    }

    #[inline(always)]
    fn recv_any(&self, buf: &mut [u8]) -> Result<usize> {
        rustix::net::recv(&*self.fd, buf, RecvFlags::DONTWAIT)
            .map(|(n, _)| n)
            .map_err(|errno| Error::from_code(errno.raw_os_error()))
    }

    /// [`recv`](Self::recv) of bytes without descriptors. Fails with -FI_EPROTO if there are
    /// descriptors; they stay queued.
    #[inline(never)]
    fn recv_bytes(&self, buf: &mut [u8]) -> Result<usize> {
        match rights::peek(self.fd(), buf)? {
            (_, true) => Err(Error::PROTO),
            // More may have come since, and stays.
            (n, false) => self.recv_any(&mut buf[..n]),
        }
    }

    /// [`recv`](Self::recv) into the buffers of a list.
    pub fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        if self.rights == Rights::None {
            return list.receive(self.fd());
        }
        list.fill(|buf| self.recv(buf))
    }

    /// Sends without blocking or SIGPIPE and returns the number of bytes accepted by the socket. It
    /// does not use send(3), for the reason given for [`recv`](Self::recv).
    #[inline(always)]
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        rustix::net::send(&*self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            .map_err(|errno| Error::from_code(errno.raw_os_error()))
    }

    /// Returns true if the peer sends nothing any more, or the connection has ended, even with
    /// unread data left.
    pub fn has_ended(&self) -> bool {
        let mut polled = libc::pollfd { fd: self.fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        let some = unsafe { libc::poll(&raw mut polled, 1, 0) > 0 };
        // No error event: the kernel reports the end of a zero-copy send as one. A reset connection
        // has hung up as well.
        some && polled.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLNVAL) != 0
    }

    /// Returns the number of bytes sent and not acknowledged by the peer's kernel; 0 if unknown.
    pub fn unacknowledged(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the kernel writes one number to `bytes`, which outlives the call.
        let known = unsafe { libc::ioctl(self.fd(), libc::TIOCOUTQ, &raw mut bytes) } == 0;
        if known { usize::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    /// Makes a close reset the connection: unsent data is discarded.
    pub fn reset_when_closed(&self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (at, len) = ((&raw const linger).cast(), size_of::<libc::linger>());
        // SAFETY: the kernel reads `linger`, which outlives the call.
        unsafe {
            libc::setsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                at,
                len as libc::socklen_t,
            )
        };
    }

    /// Ends both directions; the peer sees the end of the stream.
    pub fn shutdown(&self) {
        // SAFETY: no memory is involved. The call fails only when there is nothing to end.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
    }

    /// Ends listening, also at the copies of the socket in forked children. A child does not end the
    /// listening of its parent.
    pub fn stop_listening(&self) {
        if self.owner.is_current() {
            self.shutdown();
        }
    }

    /// Ends the direction to the peer. The peer sees the end of the stream and can still send.
    pub fn end_sending(&self) {
        // SAFETY: as in `shutdown`.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_WR) };
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        // SAFETY: the descriptor is not used afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        match self.rights {
            // A child's copy is not the last, and must not end the parent's.
            Rights::May if self.owner.is_current() => rights::close_socket(fd),
            Rights::May | Rights::None => drop(fd),
        }
    }
}

/// Returns the user owning the AF_UNIX socket with this name (`struct sockaddr_un`), from the
/// kernel's socket list (sock_diag(7)). Returns `None` if no socket has the name, or if the kernel
/// does not report it.
pub fn unix_name_owner(name: &[u8]) -> Option<u32> {
    let path = name.get(size_of::<libc::sa_family_t>()..)?;
    // SAFETY: no memory is involved; the result is checked, then owned once.
    let fd = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        OwnedFd::from_raw_fd(check(libc::socket(libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG)).ok()?)
    };
    let request = unix_diag_request();
    // SAFETY: the kernel reads the request's bytes, which outlive the call.
    let sent = unsafe { libc::send(fd.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if usize::try_from(sent) != Ok(request.len()) {
        return None;
    }
    let mut buf = vec![0u8; 32 << 10];
    // The kernel has made each part of the list by the time it is asked for it.
    for _ in 0..MOST_PARTS {
        // SAFETY: the kernel writes within the room, which outlives the call.
        let got = unsafe {
            libc::recv(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT)
        };
        let part = buf.get(..usize::try_from(got).ok()?)?;
        match owner_in(part, path) {
            ListPart::Owner(uid) => return Some(uid),
            ListPart::More => {}
            ListPart::Last => return None,
        }
    }
    None
}

/// Maximum number of parts of the kernel's socket list to read.
const MOST_PARTS: usize = 4096;
/// Constants of `linux/netlink.h`, `linux/sock_diag.h` and `linux/unix_diag.h`.
const NETLINK_SOCK_DIAG: libc::c_int = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const UDIAG_SHOW_NAME_AND_UID: u32 = 0x1 | 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
/// The lengths of `struct nlmsghdr` and `struct unix_diag_msg`.
const HEADER: usize = 16;
const DIAG: usize = 16;

/// The request for all sockets of the family, with their names and users.
fn unix_diag_request() -> Vec<u8> {
    let body_len = 24;
    let mut request = Vec::with_capacity(HEADER + body_len);
    request.extend_from_slice(&((HEADER + body_len) as u32).to_ne_bytes());
    request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(&[libc::AF_UNIX as u8, 0, 0, 0]);
    // Sockets in any state.
    request.extend_from_slice(&u32::MAX.to_ne_bytes());
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(&UDIAG_SHOW_NAME_AND_UID.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    request
}

/// Content of a part of the kernel's socket list.
enum ListPart {
    Owner(u32),
    More,
    Last,
}

/// Searches a part of the list for the user of the socket of this name.
fn owner_in(mut part: &[u8], path: &[u8]) -> ListPart {
    while let Some((len, kind)) = head(part, 4) {
        let Some(message) = part.get(HEADER..len) else { break };
        match kind {
            NLMSG_DONE | NLMSG_ERROR => return ListPart::Last,
            _ => {
                let (mut name, mut uid) = (None, None);
                let mut attributes = message.get(DIAG..).unwrap_or_default();
                while let Some((len, kind)) = head(attributes, 2) {
                    match attributes.get(4..len) {
                        Some(value) if kind == UNIX_DIAG_NAME => name = Some(value),
                        Some(value) if kind == UNIX_DIAG_UID => {
                            uid = value.try_into().ok().map(u32::from_ne_bytes);
                        }
                        Some(_) => {}
                        None => break,
                    }
                    attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
                }
                if let (Some(name), Some(uid)) = (name, uid) {
                    if name == path {
                        return ListPart::Owner(uid);
                    }
                }
            }
        }
        part = part.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    ListPart::More
}

/// Returns the length and the type at the start of a message (a 4-byte length) or an attribute (a
/// 2-byte length).
fn head(bytes: &[u8], width: usize) -> Option<(usize, u16)> {
    let number = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let len = match width {
        4 => u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize,
        _ => usize::from(number(0)?),
    };
    // A length below the header size would lead to an endless loop.
    (len >= 2 * width).then_some((len, number(width)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the address of a socket of this host with this abstract name.
    fn raw(name: &str) -> Vec<u8> {
        let family = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
        [&family, &b"\0"[..], name.as_bytes()].concat()
    }

    #[test]
    fn the_user_of_a_name_of_a_unix_socket_is_found() {
        let name = |number: u32| {
            let family = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
            let path = format!("\0ofi-test/{}/{number}", std::process::id());
            [&family[..], path.as_bytes()].concat()
        };
        let socket = StreamSocket::new(libc::AF_UNIX).unwrap();
        socket.bind(&name(1)).unwrap();
        // SAFETY: no memory is involved.
        let own = unsafe { libc::geteuid() };
        // Not every system has the list.
        assert!([None, Some(own)].contains(&unix_name_owner(&name(1))));
        assert_eq!(unix_name_owner(&name(2)), None);
    }

    #[test]
    fn search_of_malformed_socket_lists_terminates() {
        let message = |len: u32, kind: u16, rest: &[u8]| {
            [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], rest].concat()
        };
        let named = |uid: &[u8]| {
            let attributes = [&[6, 0, 0, 0, 0, b'x', 0, 0, 8, 0, 7, 0], uid].concat();
            let rest = [&[0; DIAG][..], &attributes].concat();
            message((HEADER + rest.len()) as u32, SOCK_DIAG_BY_FAMILY, &rest)
        };
        if cfg!(target_endian = "little") {
            let found = owner_in(&named(&1000u32.to_ne_bytes()), b"\0x");
            assert!(matches!(found, ListPart::Owner(1000)));
        }
        assert!(matches!(owner_in(&named(&[0; 4]), b"\0y"), ListPart::More));
        assert!(matches!(owner_in(&message(16, NLMSG_DONE, &[]), b"x"), ListPart::Last));
        for len in [0, 1, 7, 8, 15, 16, 17, u32::MAX] {
            assert!(matches!(owner_in(&message(len, 20, &[0, 0, 1, 0]), b"x"), ListPart::More));
        }
    }

    #[test]
    fn processes_without_mapped_users_never_count_as_same_user() {
        let at = raw(&format!("ofi-sock-users/{}", std::process::id()));
        let status = crate::sys::forked(|| {
            // SAFETY: no memory is involved; the child has one thread.
            if unsafe { libc::unshare(libc::CLONE_NEWUSER) } < 0 {
                return 2;
            }
            let [listener, caller] = [0; 2].map(|_| StreamSocket::new(libc::AF_UNIX).unwrap());
            listener.bind(&at).and_then(|()| listener.listen(1)).unwrap();
            caller.connect(&at).unwrap();
            let accepted = listener.accept().unwrap().0;
            let same = [caller.is_of_same_user(), accepted.is_of_same_user()];
            (same != [Ok(false); 2]).into()
        });
        if status != 0 {
            assert_eq!(libc::WEXITSTATUS(status), 2);
            crate::testing::skip("no namespaces of users");
        }
    }

    /// Returns sockets on which the kernel accepts descriptors of others.
    fn unrefusing() -> StreamSocket {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved; the result is checked, then owned once.
        let fd =
            unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0)).unwrap()) };
        StreamSocket::of(fd, true)
    }

    #[test]
    fn received_descriptors_are_dropped_without_blocking_a_call() {
        let at = raw(&format!("ofi-sock-rights/{}", std::process::id()));
        let listener = unrefusing();
        listener.bind(&at).unwrap();
        listener.listen(8).unwrap();
        let mut rests = Vec::new();
        let mut calls = |bytes: &[u8], with: &[u8]| {
            let caller = unrefusing();
            caller.connect(&at).unwrap();
            assert_eq!(caller.send(bytes), Ok(bytes.len()));
            if !with.is_empty() {
                let (fd, rest) = rights::lingering();
                rights::send_with(caller.fd.as_fd(), with, fd.as_fd());
                rests.push(rest);
            }
            caller
        };
        let mut buf = [0; 8];
        let honest = calls(b"before", b"");
        let accepted = listener.accept().unwrap().0;
        let (mut list, mut bufs) = (ScatterList::default(), [[0; 4]; 2]);
        bufs.iter_mut().for_each(|buf| assert!(list.push_buf(buf)));
        assert_eq!((accepted.recv_list(&mut list), &bufs), (Ok(6), &[*b"befo", *b"re\0\0"]));
        assert_eq!(accepted.recv(&mut buf), Err(Error::AGAIN));
        drop(honest);
        assert_eq!(accepted.recv(&mut buf), Ok(0));
        let hostile = calls(b"before", b"with");
        let accepted = listener.accept().unwrap().0;
        // One look finds both.
        let mut list = ScatterList::default();
        list.push_buf(&mut buf[..4]);
        assert_eq!(accepted.recv_list(&mut list), Err(Error::PROTO));
        assert_eq!(accepted.recv(&mut buf), Err(Error::PROTO));
        drop(accepted);
        assert_eq!(hostile.send(b"more"), Err(Error::from_code(libc::EPIPE)));
        // Those that wait to be accepted, as well.
        let _waiting = [calls(b"", b"x"), calls(b"", b"x")];
        drop(listener);
        let again = unrefusing();
        // A child that another test has forked just now has the listener as well.
        while let Err(error) = again.bind(&at) {
            assert_eq!(error, Error::ADDRINUSE);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn sockets_of_a_family_without_ports_connect_by_the_names_they_were_given() {
        let at = raw(&format!("ofi-sock-test/{}", std::process::id()));
        let new = || StreamSocket::new(libc::AF_UNIX).unwrap();
        assert_eq!(new().connect(&at), Err(Error::CONNREFUSED));
        let (listener, caller) = (new(), new());
        listener.bind(&at).unwrap();
        assert_eq!(new().bind(&at), Err(Error::ADDRINUSE));
        listener.listen(1).unwrap();
        assert_eq!(listener.accept().unwrap_err(), Error::AGAIN);
        let from = [&at[..], b"/1"].concat();
        caller.bind(&from).unwrap();
        caller.connect(&at).unwrap();
        let (accepted, name) = listener.accept().unwrap();
        assert_eq!((name, accepted.peer_addr()), (from.clone(), Ok(from)));
        assert_eq!((accepted.local_addr(), caller.peer_addr()), (Ok(at.clone()), Ok(at)));
        assert_eq!((accepted.is_of_same_user(), caller.take_error()), (Ok(true), Ok(())));
        assert_eq!(accepted.recv(&mut [0; 4]), Err(Error::AGAIN));
        assert_eq!(caller.send(b"abc"), Ok(3));
        let mut buf = [0; 4];
        assert_eq!((accepted.recv(&mut buf), &buf), (Ok(3), b"abc\0"));
        assert_eq!((caller.send(b"d"), accepted.has_ended()), (Ok(1), false));
        caller.shutdown();
        assert!(accepted.has_ended(), "though there is something to receive");
        assert_eq!((accepted.recv(&mut buf), buf[0]), (Ok(1), b'd'));
        assert_eq!(accepted.recv(&mut buf), Ok(0));
        assert_eq!(accepted.send(b"abc"), Err(Error::from_code(libc::EPIPE)));
    }
}
