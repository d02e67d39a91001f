//! IP addresses as the API carries them: `struct sockaddr` bytes and address strings.
use crate::abi::{
    FI_ADDR_STR, FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IP,
};
use core::mem::{offset_of, size_of};
use libc::{AF_INET, AF_INET6, sa_family_t, sockaddr_in, sockaddr_in6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The bytes of a `struct sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SockBytes {
    bytes: [u8; size_of::<sockaddr_in6>()],
    len: usize,
}

impl SockBytes {
    /// The bytes to store in an info or hand to the operating system.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The C form of an address.
pub fn to_sock(addr: &SocketAddr) -> SockBytes {
    let mut sock = SockBytes { bytes: [0; size_of::<sockaddr_in6>()], len: 0 };
    let mut put = |at: usize, field: &[u8]| sock.bytes[at..at + field.len()].copy_from_slice(field);
    match addr {
        SocketAddr::V4(v4) => {
            put(offset_of!(sockaddr_in, sin_family), &(AF_INET as sa_family_t).to_ne_bytes());
            put(offset_of!(sockaddr_in, sin_port), &v4.port().to_be_bytes());
            put(offset_of!(sockaddr_in, sin_addr), &v4.ip().octets());
            sock.len = size_of::<sockaddr_in>();
        }
        SocketAddr::V6(v6) => {
            put(offset_of!(sockaddr_in6, sin6_family), &(AF_INET6 as sa_family_t).to_ne_bytes());
            put(offset_of!(sockaddr_in6, sin6_port), &v6.port().to_be_bytes());
            put(offset_of!(sockaddr_in6, sin6_flowinfo), &v6.flowinfo().to_ne_bytes());
            put(offset_of!(sockaddr_in6, sin6_addr), &v6.ip().octets());
            put(offset_of!(sockaddr_in6, sin6_scope_id), &v6.scope_id().to_ne_bytes());
            sock.len = size_of::<sockaddr_in6>();
        }
    }
    sock
}

/// The address in C's bytes; `None` if they are too short or of another family.
pub fn from_sock(bytes: &[u8]) -> Option<SocketAddr> {
    fn get<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
        bytes.get(at..at + N)?.try_into().ok()
    }
    let family = sa_family_t::from_ne_bytes(get(bytes, offset_of!(sockaddr_in, sin_family))?);
    match i32::from(family) {
        AF_INET if bytes.len() >= size_of::<sockaddr_in>() => {
            let ip: [u8; 4] = get(bytes, offset_of!(sockaddr_in, sin_addr))?;
            let port = u16::from_be_bytes(get(bytes, offset_of!(sockaddr_in, sin_port))?);
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        AF_INET6 => {
            let ip: [u8; 16] = get(bytes, offset_of!(sockaddr_in6, sin6_addr))?;
            let port = u16::from_be_bytes(get(bytes, offset_of!(sockaddr_in6, sin6_port))?);
            let flow = u32::from_ne_bytes(get(bytes, offset_of!(sockaddr_in6, sin6_flowinfo))?);
            let scope = u32::from_ne_bytes(get(bytes, offset_of!(sockaddr_in6, sin6_scope_id))?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        _ => None,
    }
}

/// `FI_SOCKADDR_IN` or `FI_SOCKADDR_IN6`.
pub fn format_of(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => FI_SOCKADDR_IN as u32,
        SocketAddr::V6(_) => FI_SOCKADDR_IN6 as u32,
    }
}

/// Returns true if an application requesting `format` accepts this kind of address.
pub fn format_takes(format: u32, addr: &SocketAddr) -> bool {
    let any = [FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IP, FI_ADDR_STR];
    format == format_of(addr) || any.iter().any(|any| *any as u32 == format)
}

/// The address string of an IP address, `fi_sockaddr_in://192.0.2.1:7471`.
pub fn to_string(addr: &SocketAddr) -> String {
    match addr {
        SocketAddr::V4(v4) => format!("fi_sockaddr_in://{}:{}", v4.ip(), v4.port()),
        SocketAddr::V6(v6) => format!("fi_sockaddr_in6://[{}]:{}", v6.ip(), v6.port()),
    }
}

/// Reads an address string: `fi_sockaddr_in://192.0.2.1:7471`,
/// `fi_sockaddr_in6://[::1]:7471`, `fi_sockaddr://` with either; a missing port
/// is 0. `None` for anything else.
pub fn from_string(string: &str) -> Option<SocketAddr> {
    let (scheme, rest) = string.split_once("://")?;
    let (v4, v6) = match scheme {
        "fi_sockaddr" => (true, true),
        "fi_sockaddr_in" => (true, false),
        "fi_sockaddr_in6" => (false, true),
        _ => return None,
    };
    let addr = rest.parse().ok().or_else(|| {
        let host = rest.strip_suffix(':').unwrap_or(rest);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 0))
    })?;
    (if addr.is_ipv4() { v4 } else { v6 }).then_some(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_string_reads_as_it_was_written() {
        for addr in ["192.0.2.1:7471", "[::1]:7471", "[fe80::fc:ff:fe00:1]:0"] {
            let addr: SocketAddr = addr.parse().unwrap();
            assert_eq!(from_string(&to_string(&addr)), Some(addr));
            assert_eq!(from_sock(to_sock(&addr).as_bytes()), Some(addr));
        }
        assert_eq!(from_string("fi_sockaddr_in://192.0.2.1"), "192.0.2.1:0".parse().ok());
    }

    #[test]
    fn malformed_address_string_is_refused() {
        for not in ["", "://", "192.0.2.1:5", "fi_sockaddr_in://[::1]:5", "fi_sockaddr_in://host:5"]
        {
            assert_eq!(from_string(not), None, "{not}");
        }
    }

    #[test]
    fn short_or_foreign_bytes_are_no_address() {
        let sock = to_sock(&"192.0.2.1:5".parse().unwrap());
        assert_eq!(sock.as_bytes().len(), 16);
        for len in 0..16 {
            assert_eq!(from_sock(&sock.as_bytes()[..len]), None);
        }
        assert_eq!(from_sock(&[9; 28]), None);
    }
}
