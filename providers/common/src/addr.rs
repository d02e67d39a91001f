//! Socket addresses as the API passes them: `struct sockaddr_in` and
//! `sockaddr_in6` (FI_SOCKADDR_IN, FI_SOCKADDR_IN6), and their text form.
use crate::abi::FI_SOCKADDR_IN6;
use crate::error::{Error, Result};
use std::ffi::CString;
use std::net::{IpAddr, SocketAddr};

pub use ofi::info::addr::{
    SockBytes as RawAddr, format_of, to_sock as to_raw, to_string as to_text,
};

/// Bytes of the longest address.
pub const MAX_LEN: usize = size_of::<libc::sockaddr_in6>();

/// As the socket calls want it.
pub fn as_sockaddr(addr: &RawAddr) -> (*const libc::sockaddr, libc::socklen_t) {
    let bytes = addr.as_bytes();
    (bytes.as_ptr().cast(), bytes.len() as libc::socklen_t)
}

/// The address in `bytes`, which start with a `sockaddr`; -FI_EINVAL when they
/// are too short, or of another family.
pub fn from_bytes(bytes: &[u8]) -> Result<SocketAddr> {
    ofi::info::addr::from_sock(bytes).ok_or(Error::INVAL)
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

/// Whether messages can be sent there: a real host and port.
pub fn is_reachable(addr: &SocketAddr) -> bool {
    !addr.ip().is_unspecified() && addr.port() != 0
}

/// The first address of `node` and `service` (getaddrinfo(3)) in this format;
/// -FI_ENODATA when there is none.
pub fn resolve(node: &str, service: &str, format: u32) -> Result<SocketAddr> {
    let c_string = |text: &str| CString::new(text).map_err(|_| Error::INVAL);
    let (node, service) = (c_string(node)?, c_string(service)?);
    ofi::info::resolve(Some(&node), Some(&service), 0, format).map_err(|_| Error::NODATA)
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
    fn short_and_foreign_addresses_are_refused() {
        assert!(from_bytes(&[]).is_err());
        assert!(from_bytes(&[libc::AF_INET as u8, 0, 1, 2, 3]).is_err());
        assert!(from_bytes(&[99; 28]).is_err());
    }

    #[test]
    fn the_address_decides_before_the_port() {
        let order = |a: &str, b: &str| connect_order(&a.parse().unwrap(), &b.parse().unwrap());
        assert_eq!(order("10.0.0.1:9", "10.0.0.2:1"), std::cmp::Ordering::Less);
        assert_eq!(order("10.0.0.1:9", "10.0.0.1:1"), std::cmp::Ordering::Greater);
        assert_eq!(order("[::1]:1", "[::1]:1"), std::cmp::Ordering::Equal);
    }
}
