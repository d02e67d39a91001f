//! Socket addresses as the API passes them: `struct sockaddr_in` and
//! `sockaddr_in6` (FI_SOCKADDR_IN, FI_SOCKADDR_IN6), and their text form.
use crate::abi::{FI_SOCKADDR_IN, FI_SOCKADDR_IN6};
use crate::error::{Error, Result};
use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of the longest address.
pub const MAX_LEN: usize = size_of::<libc::sockaddr_in6>();

/// An address in the kernel's form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawAddr {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl RawAddr {
    /// The bytes that C sees.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// As the socket calls want it.
    pub fn as_sockaddr(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        (self.bytes.as_ptr().cast(), self.len as libc::socklen_t)
    }
}

/// An address in the kernel's form.
pub fn to_raw(addr: &SocketAddr) -> RawAddr {
    let mut raw = RawAddr { bytes: [0; MAX_LEN], len: 0 };
    // Offsets: family 0 (native order), port 2 (network order), then the rest.
    let family = match addr {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    raw.bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    raw.bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => {
            raw.bytes[4..8].copy_from_slice(&v4.ip().octets());
            raw.len = size_of::<libc::sockaddr_in>();
        }
        SocketAddr::V6(v6) => {
            raw.bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            raw.bytes[8..24].copy_from_slice(&v6.ip().octets());
            raw.bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            raw.len = size_of::<libc::sockaddr_in6>();
        }
    }
    raw
}

/// The address in `bytes`, which start with a `sockaddr`; -FI_EINVAL when they
/// are too short, or of another family.
pub fn from_bytes(bytes: &[u8]) -> Result<SocketAddr> {
    let family = bytes.get(..2).ok_or(Error::INVAL)?;
    let family = i32::from(u16::from_ne_bytes([family[0], family[1]]));
    let field = |at: usize, len: usize| bytes.get(at..at + len).ok_or(Error::INVAL);
    let port = field(2, 2)?;
    let port = u16::from_be_bytes([port[0], port[1]]);
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = field(4, 4)?.try_into().map_err(|_| Error::INVAL)?;
            Ok(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let word = |at: usize| -> Result<[u8; 4]> {
                field(at, 4)?.try_into().map_err(|_| Error::INVAL)
            };
            let ip: [u8; 16] = field(8, 16)?.try_into().map_err(|_| Error::INVAL)?;
            let (flow, scope) = (u32::from_be_bytes(word(4)?), u32::from_ne_bytes(word(24)?));
            Ok(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        _ => Err(Error::INVAL),
    }
}

/// Reads the address the application points to, by the family it names.
///
/// # Safety
/// `addr` is null or points to a complete `sockaddr` of its family.
pub unsafe fn from_ptr(addr: *const core::ffi::c_void) -> Result<SocketAddr> {
    if addr.is_null() {
        return Err(Error::INVAL);
    }
    // SAFETY: every sockaddr has its family first; then as long as that says.
    unsafe {
        let family = i32::from(addr.cast::<u16>().read_unaligned());
        let len = len_of_family(family).ok_or(Error::INVAL)?;
        from_bytes(std::slice::from_raw_parts(addr.cast::<u8>(), len))
    }
}

fn len_of_family(family: i32) -> Option<usize> {
    match family {
        libc::AF_INET => Some(size_of::<libc::sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<libc::sockaddr_in6>()),
        _ => None,
    }
}

/// Bytes of an address of this FI_SOCKADDR_* format.
pub fn len_of_format(format: u32) -> usize {
    if format == FI_SOCKADDR_IN6 as u32 {
        size_of::<libc::sockaddr_in6>()
    } else {
        size_of::<libc::sockaddr_in>()
    }
}

/// The FI_SOCKADDR_* format of an address.
pub fn format_of(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => FI_SOCKADDR_IN as u32,
        SocketAddr::V6(_) => FI_SOCKADDR_IN6 as u32,
    }
}

/// The text form of fi_av_straddr: `fi_sockaddr_in://1.2.3.4:5`.
pub fn to_text(addr: &SocketAddr) -> String {
    match addr {
        SocketAddr::V4(v4) => format!("fi_sockaddr_in://{v4}"),
        SocketAddr::V6(v6) => format!("fi_sockaddr_in6://[{}]:{}", v6.ip(), v6.port()),
    }
}

/// Whether messages can be sent there: a real host and port.
pub fn is_reachable(addr: &SocketAddr) -> bool {
    !addr.ip().is_unspecified() && addr.port() != 0
}

/// The addresses of `node` and `service` (getaddrinfo(3)), of this format only
/// unless it is 0.
pub fn resolve(node: Option<&str>, service: Option<&str>, format: u32) -> Result<Vec<SocketAddr>> {
    let c_string =
        |text: Option<&str>| text.map(CString::new).transpose().map_err(|_| Error::INVAL);
    let (node, service) = (c_string(node)?, c_string(service)?);
    // SAFETY: all zeros is a valid addrinfo with no constraint.
    let mut hints = unsafe { std::mem::zeroed::<libc::addrinfo>() };
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_family = match format as i32 {
        FI_SOCKADDR_IN => libc::AF_INET,
        FI_SOCKADDR_IN6 => libc::AF_INET6,
        _ => libc::AF_UNSPEC,
    };
    let mut list = std::ptr::null_mut();
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |t| t.as_ptr());
    // SAFETY: the strings outlive the call; the list is freed below.
    let ret = unsafe {
        libc::getaddrinfo(pointer(&node), pointer(&service), &raw const hints, &raw mut list)
    };
    if ret != 0 {
        return Err(Error::NODATA);
    }
    let mut found = Vec::new();
    let mut entry = list;
    // SAFETY: getaddrinfo made a list that ends in null and lives until freed;
    // each entry's address has ai_addrlen bytes.
    unsafe {
        while let Some(info) = entry.as_ref() {
            let bytes =
                std::slice::from_raw_parts(info.ai_addr.cast::<u8>(), info.ai_addrlen as usize);
            found.extend(from_bytes(bytes));
            entry = info.ai_next;
        }
        libc::freeaddrinfo(list);
    }
    if found.is_empty() { Err(Error::NODATA) } else { Ok(found) }
}

/// The order that decides simultaneous connects: the address bytes, then the
/// port as a number.
pub fn connect_order(a: &SocketAddr, b: &SocketAddr) -> std::cmp::Ordering {
    let bytes = |addr: &SocketAddr| match addr.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    bytes(a).cmp(&bytes(b)).then(a.port().cmp(&b.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_way_through_its_c_form() {
        for text in ["10.1.2.3:456", "[fe80::1]:9"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_bytes(to_raw(&addr).as_bytes()), Ok(addr));
        }
        let v4: SocketAddr = "1.2.3.4:258".parse().unwrap();
        assert_eq!(to_raw(&v4).as_bytes()[2..8], [1, 2, 1, 2, 3, 4]);
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        assert!(from_bytes(&[]).is_err());
        assert!(from_bytes(&[libc::AF_INET as u8, 0, 1, 2, 3]).is_err());
        assert!(from_bytes(&[99; 28]).is_err());
    }

    #[test]
    fn the_text_form_is_the_api_s() {
        assert_eq!(to_text(&"1.2.3.4:5".parse().unwrap()), "fi_sockaddr_in://1.2.3.4:5");
        assert_eq!(to_text(&"[::1]:5".parse().unwrap()), "fi_sockaddr_in6://[::1]:5");
    }
}
