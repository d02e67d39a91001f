//! The addresses of connections: IP addresses, and those that librdmacm has of its
//! own for ports of InfiniBand networks (AF_IB).
use core::ffi::CStr;
use core::fmt;
use ofi_provider::abi::{FI_ADDR_STR, FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IB};
use ofi_provider::addr as ip;
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::local_addr;
use ofi_provider::info::ib::IbAddr;
use ofi_provider::info::{InfoRef, addr as text, resolve};
use std::net::SocketAddr;

/// Where an endpoint is, or a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Addr {
    /// FI_SOCKADDR_IN, FI_SOCKADDR_IN6.
    Ip(SocketAddr),
    /// FI_SOCKADDR_IB.
    Ib(IbAddr),
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => f.write_str(&text::to_string(addr)),
            Self::Ib(addr) => addr.fmt(f),
        }
    }
}

impl Addr {
    /// The address in `bytes`, by the family that they start with; -FI_EINVAL for
    /// another one, or when they are too short.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match IbAddr::from_bytes(bytes) {
            Some(addr) => Ok(Self::Ib(addr)),
            None => ip::from_bytes(bytes).map(Self::Ip),
        }
    }

    /// An address of an application's hints, which are of this format.
    pub(crate) fn from_hints(bytes: &[u8], format: u32) -> Result<Self> {
        if format != FI_ADDR_STR as u32 {
            return Self::from_bytes(bytes);
        }
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let string = core::str::from_utf8(&bytes[..end]).map_err(|_| Error::INVAL)?;
        let ib = IbAddr::from_text(string).map(Self::Ib);
        ib.or_else(|| text::from_string(string).map(Self::Ip)).ok_or(Error::INVAL)
    }

    /// The address of a node and service; the error is a text for people. Nothing but
    /// an address string names an InfiniBand port.
    pub(crate) fn resolve(
        node: Option<&CStr>,
        service: Option<&CStr>,
        flags: u64,
        format: u32,
    ) -> core::result::Result<Self, String> {
        let string = node.and_then(|node| node.to_str().ok());
        let mut addr = match string.and_then(IbAddr::from_text) {
            Some(addr) => addr,
            None if format != FI_SOCKADDR_IB as u32 => {
                return resolve(node, service, flags, format).map(Self::Ip);
            }
            None if node.is_none() => IbAddr::any(),
            None => return Err("the node is no address string (fi_sockaddr_ib://)".to_owned()),
        };
        if let Some(service) = service.filter(|_| addr.port() == 0) {
            let number = service.to_str().ok().and_then(|service| service.parse().ok());
            addr.set_port(number.ok_or_else(|| "the service is no port number".to_owned())?);
        }
        Ok(Self::Ib(addr))
    }

    /// The address that an endpoint of this info is to have; any if it says none.
    pub(crate) fn of_info(info: InfoRef<'_>) -> Result<Self> {
        match info.src_addr() {
            Some(bytes) => Self::from_bytes(bytes),
            None if info.addr_format() == FI_SOCKADDR_IB as u32 => Ok(Self::Ib(IbAddr::any())),
            None => local_addr(info).map(Self::Ip),
        }
    }

    /// As infos and names have it, and system calls.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Ip(addr) => ip::to_raw(&addr).as_bytes().to_vec(),
            Self::Ib(addr) => addr.to_bytes().to_vec(),
        }
    }

    /// FI_SOCKADDR_IN, FI_SOCKADDR_IN6 or FI_SOCKADDR_IB.
    pub(crate) fn format(&self) -> u32 {
        match self {
            Self::Ip(addr) => text::format_of(addr),
            Self::Ib(_) => FI_SOCKADDR_IB as u32,
        }
    }

    /// Whether an application that asked for this format takes it.
    pub(crate) fn is_of(&self, format: u32) -> bool {
        let any = [FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IB, FI_ADDR_STR];
        match self {
            Self::Ip(addr) => text::format_takes(format, addr),
            Self::Ib(_) => any.iter().any(|any| *any as u32 == format),
        }
    }

    pub(crate) fn is_ib(&self) -> bool {
        matches!(self, Self::Ib(_))
    }

    /// Whether it stands for all addresses of its kind.
    pub(crate) fn is_any(&self) -> bool {
        match self {
            Self::Ip(addr) => addr.ip().is_unspecified(),
            Self::Ib(addr) => addr.is_any(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Ip(addr) => addr.port(),
            Self::Ib(addr) => addr.port(),
        }
    }

    pub(crate) fn set_port(&mut self, port: u16) {
        match self {
            Self::Ip(addr) => addr.set_port(port),
            Self::Ib(addr) => addr.set_port(port),
        }
    }

    /// Whether both are the same host's, whatever the port.
    pub(crate) fn is_same_host(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(one), Self::Ip(other)) => one.ip() == other.ip(),
            (Self::Ib(one), Self::Ib(other)) => one.gid == other.gid,
            _ => false,
        }
    }

    /// Whether a connection may have the one and the other as its ends.
    pub(crate) fn may_meet(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(one), Self::Ip(other)) => one.is_ipv4() == other.is_ipv4(),
            (Self::Ib(one), Self::Ib(other)) => one.is_beside(other),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::abi::{FI_SOCKADDR_IN, FI_SOURCE};

    const TEXT: &str = "fi_sockaddr_ib://[fe80::1]:0xffff:0x13f:0x0";

    fn ib() -> Addr {
        Addr::Ib(IbAddr::from_text(TEXT).unwrap())
    }

    fn ip(text: &str) -> Addr {
        Addr::Ip(text.parse().unwrap())
    }

    #[test]
    fn addresses_of_each_kind_come_out_of_bytes_and_text_as_they_went_in() {
        for addr in [ib(), ip("192.0.2.1:7471"), ip("[fe80::1]:0")] {
            let bytes = addr.to_bytes();
            assert_eq!(Addr::from_bytes(&bytes), Ok(addr));
            // SAFETY: a complete address.
            assert_eq!(unsafe { ip::bytes_at(bytes.as_ptr().cast()) }, Ok(&bytes[..]));
            assert_eq!(Addr::from_hints(&bytes, addr.format()), Ok(addr));
            let string = format!("{addr}\0");
            assert_eq!(Addr::from_hints(string.as_bytes(), FI_ADDR_STR as u32), Ok(addr));
            assert!(addr.is_of(addr.format()) && addr.is_of(FI_SOCKADDR as u32));
        }
        assert_eq!(ib().to_string(), TEXT);
    }

    #[test]
    fn bytes_and_text_of_nothing_are_refused() {
        let bytes = ib().to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Addr::from_bytes(&bytes[..len]), Err(Error::INVAL));
        }
        for text in [&b""[..], b"\0", b"\xff", TEXT.trim_end_matches("0x0").as_bytes()] {
            assert_eq!(Addr::from_hints(text, FI_ADDR_STR as u32), Err(Error::INVAL));
        }
    }

    #[test]
    fn a_node_is_an_infiniband_port_only_as_an_address_string() {
        let find = |node: Option<&CStr>, service: Option<&CStr>, format: i32| {
            Addr::resolve(node, service, FI_SOURCE, format as u32).ok()
        };
        let node = c"fi_sockaddr_ib://[fe80::1]:0xffff:0x13f:0x0";
        let mut with_port = ib();
        with_port.set_port(7471);
        for format in [FI_FORMAT_UNSPEC, FI_SOCKADDR_IB, FI_ADDR_STR] {
            assert_eq!(find(Some(node), None, format), Some(ib()));
            assert_eq!(find(Some(node), Some(c"7471"), format), Some(with_port));
            assert_eq!(find(Some(node), Some(c"x"), format), None);
        }
        assert_eq!(find(Some(c"127.0.0.1"), None, FI_SOCKADDR_IB), None);
        let any = find(None, Some(c"7471"), FI_SOCKADDR_IB).unwrap();
        assert!(any.is_any() && any.is_ib() && any.port() == 7471);
        assert_eq!(find(Some(c"127.0.0.1"), Some(c"5"), 0), Some(ip("127.0.0.1:5")));
    }

    #[test]
    fn kinds_do_not_mix() {
        let v4 = ip("192.0.2.1:1");
        assert!(!ib().is_of(FI_SOCKADDR_IN as u32) && !v4.is_of(FI_SOCKADDR_IB as u32));
        assert!(!ib().may_meet(&v4) && !ip("[fe80::1]:0").may_meet(&ib()));
        assert!(!ib().is_same_host(&ip("[fe80::1]:0")) && ib().may_meet(&ib()));
        assert!(v4.may_meet(&ip("198.51.100.7:2")) && !v4.may_meet(&ip("[::1]:2")));
    }
}
