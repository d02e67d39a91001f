//! Non-blocking TCP sockets.
use super::silence::{AckState, SilenceMonitor};
use ofi_provider::addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::sock::StreamSocket;
use ofi_provider::traffic_class::TrafficClass;
use ofi_stream::transport::ZerocopyDone;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, RawFd};
use std::time::{Duration, Instant};

fn millis(seconds: u32) -> libc::c_int {
    seconds.min(1 << 20) as libc::c_int * 1000
}

/// Returns the address family.
fn family(addr: &SocketAddr) -> libc::c_int {
    if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// Returns true if an address belongs to this machine, as visible to this process.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    // Any address accepted by bind is local.
    ip.is_loopback() || UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

/// Origin of a zero-copy notification (linux/errqueue.h), and its code for bytes copied after all.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

/// Unanswered retransmissions of a stalled connection: the fourth follows after about three seconds.
const STALL_RETRANSMISSIONS: u8 = 3;

/// Attributes of a connection known without a system call.
#[derive(Default, Debug)]
struct KnownAttrs {
    /// Address of this end; none if the kernel selects it.
    local: Cell<Option<IpAddr>>,
    /// Address of the peer.
    peer: Cell<Option<SocketAddr>>,
    /// The peer's address belongs to this machine.
    on_this_host: Cell<Option<bool>>,
    /// The options of [`set_peer_timeout`](TcpSocket::set_peer_timeout) are set, with this limit in
    /// seconds.
    peer_timeout: Cell<Option<u32>>,
    /// Limit in seconds of the keepalive probes, if they are enabled. Their number is set as well.
    keepalive: Cell<Option<u32>>,
}

/// A TCP socket, bound or connected or neither.
#[derive(Debug)]
pub(crate) struct TcpSocket(pub(crate) StreamSocket, SilenceMonitor, KnownAttrs);

impl TcpSocket {
    fn of(socket: StreamSocket) -> Self {
        Self(socket, SilenceMonitor::default(), KnownAttrs::default())
    }

    /// A new socket for addresses like `like`.
    pub(crate) fn new(like: &SocketAddr) -> Result<Self> {
        StreamSocket::new(family(like)).map(Self::of)
    }

    /// Creates a socket of MPTCP for addresses like `like`.
    pub(crate) fn new_multipath(like: &SocketAddr) -> Result<Self> {
        StreamSocket::with_protocol(family(like), libc::IPPROTO_MPTCP).map(Self::of)
    }

    /// Returns true if the socket is of MPTCP, even after a fall back to TCP.
    pub(crate) fn is_multipath(&self) -> bool {
        let mut protocol = [0; 4];
        let known = self.0.get_bytes(libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut protocol);
        known == Ok(4) && i32::from_ne_bytes(protocol) == libc::IPPROTO_MPTCP
    }

    #[inline(always)]
    pub(crate) fn fd(&self) -> RawFd {
        self.0.fd()
    }

    /// Sets the class of the socket's packets.
    pub(crate) fn set_class(&self, class: TrafficClass) {
        class.set(self.0.as_fd());
    }

    /// Makes small segments leave at once (TCP_NODELAY).
    pub(crate) fn set_nodelay(&self) {
        let _ = self.0.set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    }

    /// Lets a connection between two sockets of this host send at the speed of the peer's reads.
    /// There is no network between them to protect. But a congestion control with network
    /// measurements (bbr) delays the end of each large message until the beginning is acknowledged.
    /// A purely loss-based one does not, and every system has it.
    pub(crate) fn set_no_network(&self) {
        if self.has_one_address() {
            // Nothing is lost if the system refuses.
            let _ = self.0.set_text(libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno");
        }
    }

    /// Ends connecting if the other side's system answers nothing for so many seconds.
    pub(crate) fn set_connect_timeout(&self, seconds: u32) {
        self.2.peer_timeout.set(None);
        let _ = self.0.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis(seconds));
        self.set_keepalive(seconds);
    }

    /// Ends the connection if the peer's system does not respond for `seconds` seconds; 0: the
    /// system decides. The peer's system responds independently of its program.
    ///
    /// For sent data the kernel takes about `seconds` seconds, 15 at least. Before Linux 6.15 the
    /// engine has to [check](Self::is_silent) the socket.
    pub(crate) fn set_peer_timeout(&self, seconds: u32) {
        const TCP_RTO_MAX_MS: libc::c_int = 44;
        if self.2.peer_timeout.replace(Some(seconds)) == Some(seconds) {
            return;
        }
        let _ = self.0.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0);
        self.set_keepalive(seconds);
        if seconds > 0 {
            // TCP sends again 15 times, most of them after this time.
            let again = (millis(seconds) / 11).clamp(1000, 120_000);
            let is_set = self.0.set(libc::IPPROTO_TCP, TCP_RTO_MAX_MS, again).is_ok();
            // The state of a subflow is not that of the connection.
            if !is_set && !self.is_multipath() {
                self.1.start(seconds);
            }
        }
    }

    /// Returns the interval of [checks](Self::is_silent), if they are needed.
    pub(crate) fn silence_interval(&self) -> Option<Duration> {
        self.1.interval()
    }

    /// Returns true if sent data is unacknowledged for the time limit set by
    /// [`set_peer_timeout`](Self::set_peer_timeout).
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.1.is_silent(&self.0, now)
    }

    fn set_keepalive(&self, seconds: u32) {
        let limit = Some(seconds).filter(|seconds| *seconds > 0);
        let known = self.2.keepalive.replace(limit);
        if known == limit {
            return;
        }
        let is_on = known.is_some();
        if is_on != limit.is_some() {
            let _ = self.0.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, (seconds > 0).into());
        }
        if seconds > 0 {
            // The peer's system is asked three times before: after a third of the time, and then
            // twice more.
            let third = (seconds / 3).clamp(1, 32_767) as libc::c_int;
            let _ = self.0.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, third);
            let _ = self.0.set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, third);
            if !is_on {
                let _ = self.0.set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 2);
            }
        }
    }

    /// Probes the peer's system for the connection at once, if nothing was received for a second;
    /// an unknown connection ends. Waiting for the response takes as long as for any data.
    pub(crate) fn probe(&self) {
        let _ = self.0.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
        let _ = self.0.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1);
    }

    pub(crate) fn bind(&self, to: &SocketAddr) -> Result {
        self.0.bind(addr::to_raw(to).as_bytes())?;
        self.2.local.set(Some(to.ip()).filter(|ip| !ip.is_unspecified()));
        Ok(())
    }

    /// Binds to a source address for connecting; the port is chosen at the connect. It may then be
    /// shared with connections to other peers. So many peers do not exhaust the system's ports, and
    /// the search for a free one stays short.
    pub(crate) fn bind_source(&self, mut addr: SocketAddr) -> Result {
        // Without this option (Linux before 4.2) the port is taken now.
        let _ = self.0.set(libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        addr.set_port(0);
        self.bind(&addr)
    }

    /// Binds to listen: the address may still be in use by connections of a
    /// predecessor. With a `ports` range, the first free port of it.
    pub(crate) fn bind_listener(&self, to: &SocketAddr, ports: Option<(u16, u16)>) -> Result {
        self.0.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        let (Some((low, high)), 0) = (ports, to.port()) else { return self.bind(to) };
        let mut last = Err(Error::ADDRINUSE);
        for port in low..=high {
            let mut addr = *to;
            addr.set_port(port);
            last = self.bind(&addr);
            if last != Err(Error::ADDRINUSE) {
                break;
            }
        }
        last
    }

    /// Starts connecting in the background.
    pub(crate) fn connect(&self, to: &SocketAddr) -> Result {
        self.0.connect(addr::to_raw(to).as_bytes())?;
        self.2.peer.set(Some(*to).filter(|to| !to.ip().is_unspecified()));
        Ok(())
    }

    /// Accepts a waiting connection, with its peer's address; fails with -FI_EAGAIN if none waits.
    /// The connection has the options of the listener.
    pub(crate) fn accept(&self) -> Result<(Self, SocketAddr)> {
        let (socket, from) = self.0.accept()?;
        let (socket, from) = (Self::of(socket), addr::from_bytes(&from)?);
        let known = &socket.2;
        known.local.set(self.2.local.get());
        known.peer.set(Some(from));
        if let Some(seconds) = self.2.peer_timeout.get() {
            known.peer_timeout.set(Some(seconds));
            known.keepalive.set(self.2.keepalive.get());
            if self.1.interval().is_some() {
                socket.1.start(seconds);
            }
        }
        Ok((socket, from))
    }

    pub(crate) fn local_addr(&self) -> Result<SocketAddr> {
        addr::from_bytes(&self.0.local_addr()?)
    }

    pub(crate) fn peer_addr(&self) -> Result<SocketAddr> {
        let known = self.2.peer.get().map(Ok);
        known.unwrap_or_else(|| addr::from_bytes(&self.0.peer_addr()?))
    }

    /// Returns the addresses of both ends without their ports.
    fn ends(&self) -> Result<[IpAddr; 2]> {
        let local = self.2.local.get().map_or_else(|| self.local_addr().map(|a| a.ip()), Ok)?;
        if !local.is_unspecified() {
            self.2.local.set(Some(local));
        }
        Ok([local, self.peer_addr()?.ip()])
    }

    /// Returns true if both ends have the same address: their sockets are of one system.
    fn has_one_address(&self) -> bool {
        self.ends().is_ok_and(|[local, peer]| local == peer)
    }

    /// Returns true if the peer's address belongs to this machine, as visible to this process.
    pub(crate) fn is_on_this_host(&self) -> bool {
        let Ok([local, peer]) = self.ends() else { return false };
        let known = &self.2.on_this_host;
        let is_here = || peer.to_canonical() == local.to_canonical() || is_local(peer);
        let is_here = known.get().unwrap_or_else(is_here);
        known.set(Some(is_here));
        is_here
    }

    /// Returns true if sent bytes were repeated [`STALL_RETRANSMISSIONS`] times without an
    /// acknowledgement of the peer's host. A host with a full receive buffer acknowledges.
    pub(crate) fn is_stalled(&self) -> bool {
        AckState::of(&self.0).is_some_and(|acks| acks.retransmissions >= STALL_RETRANSMISSIONS)
    }

    /// Lets calls send bytes without copying them (MSG_ZEROCOPY). MPTCP copies them, and never
    /// reports their release.
    pub(crate) fn set_zerocopy(&self) -> Result {
        if self.is_multipath() {
            return Err(Error::NOSYS);
        }
        self.0.set(libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
    }

    /// The next zero-copy notice on the socket's error queue; -FI_EAGAIN if there is none.
    pub(crate) fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        let mut control = [0u64; 32];
        // SAFETY: all zeros is a valid msghdr: no name, no data.
        let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the kernel writes control data within `control`, which is aligned
        // for it, and says in `message` how much.
        if unsafe { libc::recvmsg(self.fd(), &raw mut message, flags) } < 0 {
            return Err(Error::last_os());
        }
        // SAFETY: `message` describes the control data that the kernel just wrote.
        let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !header.is_null() {
            // SAFETY: the kernel's control data are whole headers with their data;
            // one of these kinds has a sock_extended_err.
            unsafe {
                let kind = ((*header).cmsg_level, (*header).cmsg_type);
                if matches!(
                    kind,
                    (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
                ) {
                    let data = libc::CMSG_DATA(header).cast::<libc::sock_extended_err>();
                    let extended = data.read_unaligned();
                    if extended.ee_origin == SO_EE_ORIGIN_ZEROCOPY {
                        return Ok(ZerocopyDone {
                            low: extended.ee_info,
                            high: extended.ee_data,
                            copied: extended.ee_code & SO_EE_CODE_ZEROCOPY_COPIED != 0,
                        });
                    }
                }
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
        }
        Err(Error::AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn congestion_control(socket: &TcpSocket) -> String {
        let mut name = [0u8; 16];
        let mut len = name.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `name`.
        let code = unsafe {
            libc::getsockopt(
                socket.fd(),
                libc::IPPROTO_TCP,
                libc::TCP_CONGESTION,
                name.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        assert_eq!(code, 0);
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into_owned()
    }

    #[test]
    fn connections_within_the_host_go_by_losses_alone() {
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = TcpSocket::new(&any).unwrap();
        listener.bind_listener(&any, None).unwrap();
        listener.0.listen(1).unwrap();
        let caller = TcpSocket::new(&any).unwrap();
        let before = congestion_control(&caller);
        // A socket that is not connected: nothing is known of its network yet.
        caller.set_no_network();
        assert_eq!(congestion_control(&caller), before);
        caller.connect(&listener.local_addr().unwrap()).unwrap();
        caller.set_no_network();
        assert_eq!(congestion_control(&caller), "reno");
        // Two addresses are two machines, as far as one can tell.
        let other = TcpSocket::new(&any).unwrap();
        other.bind(&"127.0.0.2:0".parse().unwrap()).unwrap();
        other.connect(&listener.local_addr().unwrap()).unwrap();
        other.set_no_network();
        assert_eq!(congestion_control(&other), before);
    }

    fn option(socket: &TcpSocket, name: libc::c_int) -> i32 {
        let mut value = [0; 4];
        socket.0.get_bytes(libc::IPPROTO_TCP, name, &mut value).unwrap();
        i32::from_ne_bytes(value)
    }

    #[test]
    fn accepted_connections_have_the_options_of_their_listener() {
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = TcpSocket::new(&any).unwrap();
        listener.set_nodelay();
        listener.set_peer_timeout(30);
        listener.bind_listener(&any, None).unwrap();
        listener.0.listen(1).unwrap();
        let caller = TcpSocket::new(&any).unwrap();
        let at = listener.local_addr().unwrap();
        caller.connect(&at).unwrap();
        let (accepted, from) = listener.accept().unwrap();
        let of_messages = |socket: &TcpSocket| {
            let names = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
            (names.map(|name| option(socket, name)), option(socket, libc::TCP_USER_TIMEOUT))
        };
        assert_eq!(option(&accepted, libc::TCP_NODELAY), 1);
        assert_eq!(of_messages(&accepted), ([10, 10, 2], 0));
        assert_eq!(accepted.silence_interval().is_some(), listener.silence_interval().is_some());
        assert_eq!((accepted.peer_addr(), caller.peer_addr()), (Ok(from), Ok(at)));
        assert!(accepted.is_on_this_host() && caller.is_on_this_host());
        for socket in [&accepted, &caller] {
            socket.set_connect_timeout(9);
            assert_eq!(of_messages(socket), ([3, 3, 2], 9000));
            socket.set_peer_timeout(30);
            assert_eq!(of_messages(socket), ([10, 10, 2], 0));
        }
    }

    #[test]
    fn a_notice_of_a_send_without_a_copy_is_not_the_end() {
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = TcpSocket::new(&any).unwrap();
        listener.bind_listener(&any, None).unwrap();
        listener.0.listen(1).unwrap();
        let caller = TcpSocket::new(&any).unwrap();
        caller.connect(&listener.local_addr().unwrap()).unwrap();
        let Ok((accepted, _)) = listener.accept() else { panic!("no connection") };
        caller.set_zerocopy().unwrap();
        let bytes = [7u8; 1000];
        // SAFETY: the kernel reads `bytes`, which are there until the test ends.
        let sent = unsafe {
            libc::send(caller.fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_ZEROCOPY)
        };
        assert_eq!(sent, 1000);
        assert_eq!(accepted.0.recv(&mut [0; 2000]), Ok(1000));
        let mut polled = libc::pollfd { fd: caller.fd(), events: 0, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 30_000) }, 1, "a notice comes");
        assert!(!caller.0.has_ended());
        caller.zerocopy_done().unwrap();
        assert_eq!(accepted.0.send(b"not read"), Ok(8));
        // Closing with unread data resets the connection.
        assert_eq!(caller.0.send(b"not read"), Ok(8));
        drop(accepted);
        assert!(caller.0.has_ended());
    }
}
