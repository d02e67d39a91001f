//! Connections of several paths: MPTCP (RFC 8684), requested by FI_TCP_MPTCP.
//!
//! The kernel adds subflows to a connection as `ip mptcp` configures them, and falls back to TCP if
//! the peer has no MPTCP.
use super::config::config;
use super::sock::{TcpSocket, is_local};
use crate::plug_in::{provider, variable};
use ofi_provider::error::{Error, Result};
use ofi_provider::log;
use ofi_provider::sock::StreamSocket;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Once;

/// Level and name of the option with the state of MPTCP (linux/mptcp.h).
const SOL_MPTCP: libc::c_int = 284;
const MPTCP_INFO: libc::c_int = 1;

/// State of a connection: members of `struct mptcp_info` (linux/mptcp.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MptcpInfo {
    /// Number of subflows, the first included.
    subflows: u64,
    /// Maximum number of subflows, the first included.
    max_subflows: u64,
}

impl MptcpInfo {
    /// Parses the kernel's bytes, as many as it has.
    fn parse(bytes: &[u8]) -> Self {
        let at = |offset: usize| u64::from(bytes.get(offset).copied().unwrap_or(0));
        // mptcpi_subflows and mptcpi_subflows_max do not count the first subflow.
        // mptcpi_subflows_total (Linux 6.6) does, and only while it exists.
        let total = match at(80) {
            0 => at(0) + 1,
            total => total,
        };
        Self { subflows: total, max_subflows: at(3) + 1 }
    }

    /// Reads the state of a socket. Fails for sockets of other protocols, and after a fall back to
    /// TCP.
    fn of(socket: &StreamSocket) -> Result<Self> {
        let mut bytes = [0; 128];
        let len = socket.get_bytes(SOL_MPTCP, MPTCP_INFO, &mut bytes)?;
        Ok(Self::parse(&bytes[..len]))
    }
}

/// Returns the number of subflows of a connection; 0 if it is of TCP.
pub(crate) fn subflows(socket: &StreamSocket) -> u64 {
    MptcpInfo::of(socket).map_or(0, |info| info.subflows)
}

/// Returns a socket for a connection to `to`: of MPTCP between hosts, if requested by the user.
pub(crate) fn connecting_socket(to: &SocketAddr) -> Result<TcpSocket> {
    match config().mptcp && !is_local(to.ip()) {
        true => multipath_or_tcp(to),
        false => TcpSocket::new(to),
    }
}

/// Returns a socket to listen at `at`. One of MPTCP also accepts connections of TCP.
pub(crate) fn listening_socket(at: &SocketAddr) -> Result<TcpSocket> {
    if config().mptcp { multipath_or_tcp(at) } else { TcpSocket::new(at) }
}

/// Returns true if a failure to create a socket means a system without MPTCP: none in the kernel,
/// or `net.mptcp.enabled` is 0.
fn is_missing(error: Error) -> bool {
    matches!(error.code(), libc::EPROTONOSUPPORT | libc::EINVAL | libc::ENOPROTOOPT)
}

/// Returns a socket of MPTCP, or of TCP on a system without MPTCP.
fn multipath_or_tcp(like: &SocketAddr) -> Result<TcpSocket> {
    match TcpSocket::new_multipath(like) {
        Err(error) if is_missing(error) => {
            static NOTIFIED: Once = Once::new();
            NOTIFIED.call_once(|| {
                ofi_provider::log!(provider(), WARN, DOMAIN, "{}", no_effect(error));
            });
            TcpSocket::new(like)
        }
        created => created,
    }
}

/// Describes a system without MPTCP, for the log.
fn no_effect(error: Error) -> String {
    format!(
        "the system has no MPTCP ({error}; net.mptcp.enabled): connections use TCP, and {} has no \
         effect",
        variable(c"mptcp")
    )
}

/// Logs the use of MPTCP, also for `fi_info --explain`.
pub(crate) fn explain() {
    let prov = provider();
    if !config().mptcp || !log::enabled(prov, log::level::INFO, log::subsys::FABRIC) {
        return;
    }
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let info = TcpSocket::new_multipath(&any).and_then(|socket| MptcpInfo::of(&socket.0));
    let text = match info {
        Ok(MptcpInfo { max_subflows, .. }) => format!(
            "connections with other hosts use MPTCP, each up to {max_subflows} subflows \
             (ip mptcp limits, ip mptcp endpoint); fi_ps shows their number"
        ),
        Err(error) => no_effect(error),
    };
    ofi_provider::log!(prov, INFO, FABRIC, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a connection between two sockets of this host, or `None` on a system without MPTCP.
    fn connection(listens: bool, connects: bool) -> Option<(TcpSocket, TcpSocket)> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let new = |multipath| match multipath {
            true => TcpSocket::new_multipath(&any).ok(),
            false => TcpSocket::new(&any).ok(),
        };
        let (listener, caller) = (new(listens)?, new(connects)?);
        listener.bind_listener(&any, None).unwrap();
        listener.0.listen(1).unwrap();
        caller.connect(&listener.local_addr().unwrap()).unwrap();
        loop {
            match listener.accept() {
                Err(Error::AGAIN) => {}
                accepted => return Some((caller, accepted.unwrap().0)),
            }
        }
    }

    #[test]
    fn state_is_read_from_kernels_of_any_version() {
        let parse = |bytes: &[u8]| MptcpInfo::parse(bytes);
        let old = parse(&[2, 0, 0, 4]);
        assert_eq!(old, MptcpInfo { subflows: 3, max_subflows: 5 });
        let mut bytes = [0; 96];
        (bytes[0], bytes[3], bytes[80]) = (2, 2, 2);
        assert_eq!(parse(&bytes), MptcpInfo { subflows: 2, max_subflows: 3 });
        assert_eq!(parse(&[]), MptcpInfo { subflows: 1, max_subflows: 1 });
    }

    #[test]
    fn connection_has_subflows_only_if_both_ends_have_mptcp() {
        for (listens, connects) in [(true, true), (true, false), (false, true), (false, false)] {
            let Some((caller, accepted)) = connection(listens, connects) else { return };
            assert_eq!(accepted.0.send(b"abc"), Ok(3));
            while caller.0.recv(&mut [0; 4]) == Err(Error::AGAIN) {}
            let expected = u64::from(listens && connects);
            assert_eq!((subflows(&caller.0), subflows(&accepted.0)), (expected, expected));
            assert_eq!(caller.is_multipath(), connects);
            assert_eq!(accepted.is_multipath(), listens && connects);
        }
    }

    #[test]
    fn refused_options_leave_a_multipath_connection_usable() {
        let Some((caller, accepted)) = connection(true, true) else { return };
        for socket in [&caller, &accepted] {
            socket.set_nodelay();
            socket.set_connect_timeout(9);
            socket.set_peer_timeout(180);
            socket.set_no_network();
            socket.probe();
            assert_eq!(socket.set_zerocopy(), Err(Error::NOSYS));
            assert_eq!(socket.0.take_error(), Ok(()));
        }
        assert_eq!(caller.0.send(b"abc"), Ok(3));
        assert!(caller.0.unacknowledged() <= 3);
        let mut buf = [0; 4];
        while accepted.0.recv(&mut buf) == Err(Error::AGAIN) {}
        assert_eq!(&buf, b"abc\0");
        assert!(!accepted.0.has_ended());
        drop(caller);
        while !accepted.0.has_ended() {}
    }

    #[test]
    fn address_of_this_host_needs_no_other_path() {
        assert!(is_local([127, 0, 0, 1].into()) && !is_local([192, 0, 2, 1].into()));
    }
}
