//! Descriptors sent by other processes to unix sockets (SCM_RIGHTS).
//!
//! A descriptor of another process is closed in a thread of the application only if its close is
//! known not to block ([`crate::closer`]). This applies to received descriptors and to ones queued
//! in a socket.
use crate::closer::close_later;
use crate::error::{Error, Result};
use crate::sys::{EventFd, is_nonblocking, set_option};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// SO_PASSRIGHTS of Linux 6.16: allows a socket to receive descriptors.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Makes the kernel reject descriptors sent to this socket, or to one later accepted from it.
/// Returns false if it cannot.
pub(crate) fn refuse(socket: BorrowedFd<'_>) -> bool {
    set_option(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, 0).is_ok()
}

/// Closes a socket with possibly queued descriptors of others. The peer sees the end at once. The
/// socket must not have been received from another process.
pub(crate) fn close_socket(socket: OwnedFd) {
    if option(socket.as_fd(), libc::SO_ACCEPTCONN) != 0 {
        close_listener(socket);
    } else if is_empty(socket.as_fd()) {
        drop(socket);
    } else {
        close_later(socket);
    }
}

/// Returns true if the queue of a connected socket is empty and stays empty.
fn is_empty(socket: BorrowedFd<'_>) -> bool {
    let fd = socket.as_raw_fd();
    // Each message then comes with something more than bytes: so one without bytes differs from the end.
    let marks = set_option(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, 1).is_ok();
    // The other end sees at once that the socket is closed, whenever it is.
    // SAFETY: no memory is involved.
    let ended = unsafe { libc::shutdown(fd, libc::SHUT_RDWR) } == 0;
    marks && ended && !has_something(socket)
}

/// Returns a numeric socket option.
fn option(socket: BorrowedFd<'_>, name: libc::c_int) -> libc::c_int {
    let (mut value, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes to `value`, which is what the option is.
    unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, at, &raw mut len) };
    value
}

fn has_something(socket: BorrowedFd<'_>) -> bool {
    let fd = socket.as_raw_fd();
    if option(socket, libc::SO_TYPE) == libc::SOCK_STREAM {
        // Descriptors come with bytes there.
        let mut bytes: libc::c_int = 1;
        // SAFETY: the kernel writes the number of bytes to `bytes`.
        return unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) } != 0 || bytes != 0;
    }
    let mut byte = 0u8;
    let mut look = || peek(fd, std::slice::from_mut(&mut byte));
    // The kernel reports a peer's close with unread data once, before the data in the queue.
    let seen = match look() {
        Err(Error::CONNRESET) => look(),
        seen => seen,
    };
    match seen {
        Ok((0, false)) => false,
        // It never was connected.
        Err(error) => error.code() != libc::ENOTCONN,
        Ok(_) => true,
    }
}

/// Peeks at the next bytes of a socket. Returns their number, and true if they carry control data
/// (there is no buffer for it). Bytes and descriptors stay queued.
pub(crate) fn peek(fd: libc::c_int, buf: &mut [u8]) -> Result<(usize, bool)> {
    let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    // SAFETY: `message` points to what outlives the call, for the kernel to write to.
    let n = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    let n = usize::try_from(n).map_err(|_| Error::last_os())?;
    Ok((n, message.msg_flags & libc::MSG_CTRUNC != 0))
}

/// Closes a listening socket and its pending connections, each with possibly queued descriptors.
/// Its name is free at the return, unless the process has no descriptors left.
fn close_listener(socket: OwnedFd) {
    let fd = socket.as_raw_fd();
    // SAFETY: no memory is involved. No more come.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    loop {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let (no_addr, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no address is asked for; what comes is owned once.
        let accepted = unsafe {
            let fd = libc::accept4(fd, no_addr, none, flags);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        match accepted.ok_or_else(Error::last_os) {
            Ok(caller) => close_socket(caller),
            Err(Error::INTR) => {}
            // None is left.
            Err(Error::INVAL | Error::AGAIN) => return drop(socket),
            Err(_) => return close_later(socket),
        }
    }
}

/// Descriptor of unknown type sent by another process. A drop closes it in a library thread.
#[derive(Debug)]
pub struct ReceivedFd(Option<OwnedFd>);

impl ReceivedFd {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }

    /// Returns the descriptor, after the caller verified a non-blocking close.
    pub(crate) fn into_known(mut self) -> Option<OwnedFd> {
        self.0.take()
    }

    /// Returns the descriptor as an eventfd. Fails with -FI_EPROTO if it is not an eventfd (without
    /// owner signals), or if it blocks writers.
    pub(crate) fn into_event_fd(self) -> Result<EventFd> {
        let raw = self.get().ok_or(Error::PROTO)?.as_raw_fd();
        let what = std::fs::read_link(format!("/proc/thread-self/fd/{raw}"));
        let is_event = what.is_ok_and(|what| what.as_os_str() == "anon_inode:[eventfd]");
        if !is_event || !is_nonblocking(raw)? {
            return Err(Error::PROTO);
        }
        self.into_known().map(EventFd::from_owned).ok_or(Error::PROTO)
    }

    pub(crate) fn get(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

/// Sends bytes with a descriptor.
#[cfg(test)]
pub(crate) fn send_with(to: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) {
    let mut control = [0u64; 8];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let len = size_of::<libc::c_int>() as u32;
    // SAFETY: all zeros is a valid msghdr, and what it points to outlives the calls; `control` is aligned for a
    // header, and has room for one with a descriptor.
    let sent = unsafe {
        let mut message = std::mem::zeroed::<libc::msghdr>();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(len) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(len) as _;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(fd.as_raw_fd());
        libc::sendmsg(to.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    assert_eq!(usize::try_from(sent), Ok(bytes.len()));
}

/// Returns a descriptor whose close blocks for a quarter of an hour, or until the other one is
/// closed.
#[cfg(test)]
pub(crate) fn lingering() -> (OwnedFd, OwnedFd) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    set_option(listener.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 900 };
    let (at, len) = ((&raw const linger).cast(), size_of_val(&linger) as libc::socklen_t);
    // SAFETY: the kernel reads `linger`, which outlives the call.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
    assert_eq!(set, 0);
    (socket.into(), other.into())
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            close_later(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair of connected sockets.
    fn pair(kind: libc::c_int) -> [OwnedFd; 2] {
        let mut fds = [0; 2];
        // SAFETY: the kernel writes two descriptors, each of which is owned once.
        unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()), 0);
            fds.map(|fd| OwnedFd::from_raw_fd(fd))
        }
    }

    fn send(to: &OwnedFd, bytes: &[u8]) {
        // SAFETY: the bytes outlive the call, which only reads them.
        let sent = unsafe { libc::send(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        assert_eq!(usize::try_from(sent), Ok(bytes.len()));
    }

    #[test]
    fn a_socket_is_empty_when_nothing_is_in_its_queue_and_nothing_can_come() {
        for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
            let (null, stream) =
                (std::fs::File::open("/dev/null").unwrap(), kind == libc::SOCK_STREAM);
            let empty = |fill: &dyn Fn(&OwnedFd)| {
                let [socket, other] = pair(kind);
                fill(&other);
                let empty = is_empty(socket.as_fd());
                // SAFETY: no memory is read; the call fails.
                let sent = unsafe {
                    libc::send(other.as_raw_fd(), [1u8].as_ptr().cast(), 1, libc::MSG_NOSIGNAL)
                };
                assert_eq!((sent, Error::last_os().code()), (-1, libc::EPIPE));
                empty
            };
            assert!(empty(&|_| ()));
            assert!(!empty(&|other| send(other, b"x")));
            assert!(!empty(&|other| send_with(other.as_fd(), b"x", null.as_fd())));
            // The other end has gone, and left something unread.
            let [socket, other] = pair(kind);
            send(&socket, b"x");
            drop(other);
            assert!(is_empty(socket.as_fd()));
            // A packet without bytes is one, and may have descriptors.
            assert_eq!(empty(&|other| send(other, b"")), stream);
            if !stream {
                assert!(!empty(&|other| send_with(other.as_fd(), b"", null.as_fd())));
            }
        }
    }

    #[test]
    fn received_descriptors_are_closed_off_the_calling_thread() {
        let mut rests = Vec::new();
        for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
            let (fd, rest) = lingering();
            let [socket, other] = pair(kind);
            send_with(other.as_fd(), b"x", fd.as_fd());
            drop(fd);
            rests.push(rest);
            close_socket(socket);
        }
        let (fd, rest) = lingering();
        drop(ReceivedFd::new(fd));
        rests.push(rest);
    }
}
