//! Endpoint addresses: [`Addr`], in all address formats of the providers (`addr_format` of
//! fi_getinfo(3)), and the conversion of IP addresses for sockets.
use crate::abi::{
    FI_ADDR_IB_UD, FI_ADDR_STR, FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IB, FI_SOCKADDR_IN6,
};
use crate::error::{Error, Result};
use crate::info::{InfoRef, Unresolved};
use crate::interfaces::interfaces;
use crate::link_addr::{LinkAddr, LinkLen};
use crate::probes;
use core::ffi::{CStr, c_char, c_void};
use core::fmt;
use ofi::info::addr as text;
use ofi::info::ib::{AF_IB, IbAddr};
use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

pub use ofi::info::addr::{SockBytes as RawAddr, to_sock as to_raw, to_string as to_text};

/// Bytes of the longest IP address.
pub const MAX_LEN: usize = size_of::<libc::sockaddr_in6>();

/// Address of an endpoint or a peer. Two addresses are equal if all their parts are equal;
/// [`Addr::identity`] is the part identifying a peer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Addr {
    /// An IP address and a port (FI_SOCKADDR_IN, FI_SOCKADDR_IN6).
    Ip(SocketAddr),
    /// An InfiniBand address of librdmacm's (FI_SOCKADDR_IB).
    Ib(IbAddr),
    /// The address of an unreliable queue pair (FI_ADDR_IB_UD).
    Ud(UdAddr),
    /// The name of an endpoint, as text (FI_ADDR_STR).
    Name(EndpointName),
    /// Several addresses of other providers (FI_FORMAT_UNSPEC, as the format of a domain).
    Link(LinkAddr),
}

/// Name of an endpoint, given by the application or chosen by the endpoint (FI_ADDR_STR). A scheme
/// may precede it, as in `fi_shm://name`; comparisons ignore the scheme.
#[derive(Clone, Debug)]
pub struct EndpointName {
    /// The scheme and the name.
    whole: Arc<CStr>,
    /// Byte offset of the name behind its scheme.
    start: usize,
    /// True if the endpoint takes another name when this one is in use.
    replaceable: bool,
}

impl EndpointName {
    /// Most bytes of a name with its scheme and its NUL.
    pub const MOST: usize = 256;

    const NONE: &CStr = c"";

    /// Returns the name in a string. Fails with -FI_EINVAL if there is none, or if it is too long.
    pub fn new(string: &CStr) -> Result<Self> {
        let bytes = string.to_bytes_with_nul();
        let scheme = bytes.windows(3).position(|three| three == b"://");
        let start = scheme.map_or(0, |at| at + 3);
        if bytes.len() - start < 2 || bytes.len() > Self::MOST {
            return Err(Error::INVAL);
        }
        Ok(Self { whole: string.into(), start, replaceable: false })
    }

    /// Returns the name in a string as a replaceable one: an endpoint takes another name if this
    /// one is in use.
    pub fn proposed(string: &CStr) -> Result<Self> {
        Ok(Self { replaceable: true, ..Self::new(string)? })
    }

    /// Returns true if the endpoint takes another name when this one is in use.
    pub fn is_replaceable(&self) -> bool {
        self.replaceable
    }

    /// The name, without scheme.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.whole.to_bytes_with_nul()[self.start..])
            .unwrap_or(Self::NONE)
    }

    /// The scheme and the name.
    pub fn whole(&self) -> &CStr {
        &self.whole
    }

    /// The name as text; -FI_EINVAL if it is none.
    pub fn as_str(&self) -> Result<&str> {
        self.as_c_str().to_str().map_err(|_| Error::INVAL)
    }
}

impl PartialEq for EndpointName {
    fn eq(&self, other: &Self) -> bool {
        self.as_c_str() == other.as_c_str()
    }
}

impl Eq for EndpointName {}

impl core::hash::Hash for EndpointName {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.as_c_str().hash(state);
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

/// The text of an address as fi_av_straddr(3) has it.
impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => f.write_str(&to_text(addr)),
            Self::Ib(addr) => addr.fmt(f),
            Self::Ud(addr) => {
                f.write_str(&ofi::info::tostr::address(self.format(), Some(&addr.to_bytes())))
            }
            Self::Name(name) => f.write_str(&name.as_c_str().to_string_lossy()),
            Self::Link(addr) => addr.fmt(f),
        }
    }
}

impl Addr {
    /// Parses the address in `bytes` by the family in its `sockaddr`. Fails with -FI_EINVAL for an
    /// unknown family, or if `bytes` is too short.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match IbAddr::from_bytes(bytes) {
            Some(addr) => Ok(Self::Ib(addr)),
            None => from_bytes(bytes).map(Self::Ip),
        }
    }

    /// Parses the address in `bytes` in this format: FI_SOCKADDR_IN, _IN6 or _IB, FI_ADDR_IB_UD, or
    /// FI_ADDR_STR with its NUL. Fails with -FI_EINVAL if `bytes` is too short or of another
    /// family.
    pub fn read(format: u32, bytes: &[u8]) -> Result<Self> {
        if format == FI_ADDR_IB_UD as u32 {
            UdAddr::from_bytes(bytes).map(Self::Ud)
        } else if format == FI_SOCKADDR_IB as u32 {
            IbAddr::from_bytes(bytes).map(Self::Ib).ok_or(Error::INVAL)
        } else if format == FI_ADDR_STR as u32 {
            let string = CStr::from_bytes_until_nul(bytes).map_err(|_| Error::INVAL)?;
            EndpointName::new(string).map(Self::Name)
        } else if format == FI_FORMAT_UNSPEC as u32 {
            LinkAddr::read(bytes).map(Self::Link)
        } else {
            from_bytes(bytes).map(Self::Ip)
        }
    }

    /// Parses an address of an application's hints in this format. A string names an IP address or
    /// an InfiniBand port, as in `fi_sockaddr_in://192.0.2.1:7471`.
    pub fn from_hints(bytes: &[u8], format: u32) -> Result<Self> {
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
    pub fn resolve(
        node: Option<&CStr>,
        service: Option<&CStr>,
        flags: u64,
        format: u32,
    ) -> core::result::Result<Self, Unresolved> {
        let string = node.and_then(|node| node.to_str().ok());
        let mut addr = match string.and_then(IbAddr::from_text) {
            Some(addr) => addr,
            None if format != FI_SOCKADDR_IB as u32 => {
                return ofi::info::resolve(node, service, flags, format).map(Self::Ip);
            }
            None if node.is_none() => IbAddr::any(),
            None => return Err("the node is no address string (fi_sockaddr_ib://)".into()),
        };
        if let Some(service) = service.filter(|_| addr.port() == 0) {
            let number = service.to_str().ok().and_then(|service| service.parse().ok());
            addr.set_port(number.ok_or("the service is no port number")?);
        }
        Ok(Self::Ib(addr))
    }

    /// Returns the wildcard address of this format, used by an endpoint without an address. For
    /// unspecific formats it is the IPv4 wildcard.
    pub fn any(format: u32) -> Self {
        if format == FI_SOCKADDR_IB as u32 {
            Self::Ib(IbAddr::any())
        } else if format == FI_ADDR_STR as u32 {
            Self::Name(EndpointName { whole: c"".into(), start: 0, replaceable: true })
        } else if format == FI_SOCKADDR_IN6 as u32 {
            Self::Ip((Ipv6Addr::UNSPECIFIED, 0).into())
        } else {
            Self::Ip((Ipv4Addr::UNSPECIFIED, 0).into())
        }
    }

    /// Returns the source address of this info, or the wildcard address if it has none.
    pub fn of_info(info: InfoRef<'_>) -> Result<Self> {
        let format = info.addr_format();
        info.src_addr()
            .map_or_else(|| Ok(Self::any(format)), |bytes| Self::from_application(format, bytes))
    }

    /// Parses the address in `bytes` from an info or a call of the application: a string or a queue
    /// pair address if its infos have that format, else by the family in the `sockaddr`.
    pub fn from_application(format: u32, bytes: &[u8]) -> Result<Self> {
        if [FI_ADDR_STR as u32, FI_ADDR_IB_UD as u32].contains(&format) {
            return Self::read(format, bytes);
        }
        Self::from_bytes(bytes)
    }

    /// The address in bytes as infos, names and system calls have it; a name ends with a NUL.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Ip(addr) => to_raw(addr).as_bytes().to_vec(),
            Self::Ib(addr) => addr.to_bytes().to_vec(),
            Self::Ud(addr) => addr.to_bytes().to_vec(),
            Self::Name(name) => name.as_c_str().to_bytes_with_nul().to_vec(),
            Self::Link(addr) => addr.as_bytes().to_vec(),
        }
    }

    /// Returns the address of an endpoint in the format of fi_getname(3): a name with its scheme,
    /// any other address as in [`to_bytes`](Self::to_bytes).
    pub fn to_own_bytes(&self) -> Vec<u8> {
        match self {
            Self::Name(name) => name.whole().to_bytes_with_nul().to_vec(),
            other => other.to_bytes(),
        }
    }

    /// The address's format: FI_SOCKADDR_IN, _IN6 or _IB, FI_ADDR_IB_UD or FI_ADDR_STR.
    pub fn format(&self) -> u32 {
        match self {
            Self::Ip(addr) => text::format_of(addr),
            Self::Ib(_) => FI_SOCKADDR_IB as u32,
            Self::Ud(_) => FI_ADDR_IB_UD as u32,
            Self::Name(_) => FI_ADDR_STR as u32,
            Self::Link(_) => FI_FORMAT_UNSPEC as u32,
        }
    }

    /// Returns true if an application requesting this format accepts the address.
    pub fn is_of(&self, format: u32) -> bool {
        let any = [FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IB, FI_ADDR_STR];
        match self {
            Self::Ip(addr) => text::format_takes(format, addr),
            Self::Ib(_) => any.iter().any(|any| *any as u32 == format),
            _ => format == FI_FORMAT_UNSPEC as u32 || format == self.format(),
        }
    }

    /// The IP address; -FI_EINVAL if it is another kind.
    #[inline]
    pub fn ip(&self) -> Result<SocketAddr> {
        if let Self::Ip(addr) = self { Ok(*addr) } else { Err(Error::INVAL) }
    }

    /// Returns the part of the address identifying a peer: without the IPv6 flow label, and for an
    /// InfiniBand port only the network, partition and service.
    pub fn identity(self) -> Self {
        match self {
            Self::Ip(SocketAddr::V6(mut addr)) => {
                addr.set_flowinfo(0);
                Self::Ip(addr.into())
            }
            Self::Ib(addr) => {
                Self::Ib(IbAddr { sid: addr.sid, ..IbAddr::new(addr.gid, addr.pkey) })
            }
            other => other,
        }
    }

    /// Returns the number of an endpoint with this address in traces: a hash of the address's
    /// [`identity`](Self::identity).
    pub fn trace_id(&self) -> u64 {
        match self {
            Self::Ip(SocketAddr::V4(addr)) => {
                probes::hash(addr.ip().octets().into_iter().chain(addr.port().to_be_bytes()))
            }
            Self::Ip(SocketAddr::V6(addr)) => {
                probes::hash(addr.ip().octets().into_iter().chain(addr.port().to_be_bytes()))
            }
            other => probes::hash(other.clone().identity().to_bytes()),
        }
    }

    /// Returns true if messages can be sent to the address: an IP address must name a real host and
    /// port.
    pub fn is_reachable(&self) -> bool {
        match self {
            Self::Ip(addr) => !addr.ip().is_unspecified() && addr.port() != 0,
            Self::Name(_) => !self.is_any(),
            _ => true,
        }
    }

    /// Returns true if this is the wildcard address of its kind.
    pub fn is_any(&self) -> bool {
        match self {
            Self::Ip(addr) => addr.ip().is_unspecified(),
            Self::Ib(addr) => addr.is_any(),
            Self::Name(name) => name.as_c_str().is_empty(),
            Self::Ud(_) | Self::Link(_) => false,
        }
    }

    /// Returns the address used by peers to connect to an endpoint of this address. The IP wildcard
    /// is replaced by the address of the best interface of this plug-in ([`interfaces`]).
    pub fn name_for_peers(&self) -> Self {
        match self {
            Self::Ip(addr) => Self::Ip(interfaces().address_for_peers(*addr)),
            other => other.clone(),
        }
    }

    /// Returns true if this is the address of an InfiniBand port.
    pub fn is_ib(&self) -> bool {
        matches!(self, Self::Ib(_))
    }

    /// Returns a number distinguishing the endpoints of one host, equal on every host: the port, or
    /// a hash of the name.
    pub fn port(&self) -> u16 {
        match self {
            Self::Ip(addr) => addr.port(),
            Self::Ib(addr) => addr.port(),
            Self::Ud(addr) => addr.qpn as u16,
            Self::Name(name) => {
                let mix = |hash: u16, byte: &u8| hash.wrapping_mul(31) ^ u16::from(*byte);
                name.as_c_str().to_bytes().iter().fold(1, mix)
            }
            Self::Link(_) => 0,
        }
    }

    /// Sets the port, for addresses with a port.
    pub fn set_port(&mut self, port: u16) {
        match self {
            Self::Ip(addr) => addr.set_port(port),
            Self::Ib(addr) => addr.set_port(port),
            Self::Ud(_) | Self::Name(_) | Self::Link(_) => {}
        }
    }

    /// Sets the host to the one of the other address; the port stays.
    pub fn set_host(&mut self, other: &Self) {
        match (self, other) {
            (Self::Ip(addr), Self::Ip(other)) => addr.set_ip(other.ip()),
            (Self::Ib(addr), Self::Ib(other)) => addr.gid = other.gid,
            _ => {}
        }
    }

    /// Returns the common part of all addresses of one host. Names do not distinguish hosts.
    pub fn host(&self) -> Self {
        match self {
            Self::Ip(addr) => Self::Ip(SocketAddr::new(addr.ip(), 0)),
            Self::Ib(addr) => Self::Ib(IbAddr::new(addr.gid, addr.pkey)),
            Self::Ud(addr) => Self::Ud(UdAddr { gid: addr.gid, ..UdAddr::default() }),
            Self::Name(_) => Self::any(FI_ADDR_STR as u32),
            Self::Link(_) => self.clone(),
        }
    }

    /// Returns the address of another port of the same host, without unneeded parts of the address.
    /// Addresses without ports are returned unchanged.
    pub fn at_port(&self, port: u16) -> Self {
        let mut other = match self {
            Self::Ip(_) => self.host(),
            other => other.clone(),
        };
        other.set_port(port);
        other
    }

    /// Text for people: as programs write addresses, without the scheme of [`Addr`]'s own text.
    pub fn for_people(&self) -> String {
        self.ip().map_or_else(|_| self.to_string(), |addr| addr.to_string())
    }

    /// Returns true if the address is, as far as can be determined, that of a single endpoint: not
    /// multicast or broadcast, no wildcard, and with a port.
    pub fn is_unicast(&self) -> bool {
        let is_one = |ip: IpAddr| match ip.to_canonical() {
            IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
            IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified(),
        };
        match self {
            Self::Ip(addr) => is_one(addr.ip()) && addr.port() != 0,
            // Over Ethernet a GID is an IP address; within a subnet the LID leads there.
            Self::Ud(addr) => {
                let gid = Ipv6Addr::from(addr.gid);
                let one = gid.is_unspecified() || is_one(gid.into());
                one && addr.lid < UdAddr::FIRST_GROUP && (2..UdAddr::QPN).contains(&addr.qpn)
            }
            Self::Ib(addr) => is_one(Ipv6Addr::from(addr.gid).into()),
            Self::Name(_) | Self::Link(_) => true,
        }
    }

    /// Returns true if both addresses are of the same host. Ports are ignored.
    pub fn is_same_host(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(one), Self::Ip(other)) => one.ip() == other.ip(),
            (Self::Ib(one), Self::Ib(other)) => one.gid == other.gid,
            _ => false,
        }
    }

    /// Returns true if a connection between both addresses is possible.
    pub fn may_share_memory(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(one), Self::Ip(other)) => one.is_ipv4() == other.is_ipv4(),
            (Self::Ib(one), Self::Ib(other)) => one.is_sibling_of(other),
            _ => false,
        }
    }
}

/// Addresses of one format, one behind the other, as fi_av_insert(3) takes them: strings
/// behind their NULs.
#[derive(Debug)]
pub struct AddrList {
    at: *const u8,
    left: usize,
    format: u32,
}

impl AddrList {
    /// # Safety
    /// `at` points to `count` addresses of this format. They must not change while the list is
    /// used.
    pub unsafe fn new(format: u32, at: *const c_void, count: usize) -> Self {
        Self { at: at.cast(), left: count, format }
    }
}

impl Iterator for AddrList {
    type Item = Result<Addr>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: by the contract of `new`, as many are left.
        unsafe {
            let Ok(bytes) = string_or_bytes(self.format, self.at.cast()) else {
                // The start of the next address is unknown.
                return Some(Err(Error::INVAL));
            };
            self.at = self.at.add(bytes.len());
            Some(Addr::read(self.format, bytes))
        }
    }
}

/// Returns the bytes of an address of this format. Fails with -FI_EINVAL if the address contains
/// its length and the length is invalid.
///
/// # Safety
/// The address is complete and does not change during `'a`.
pub unsafe fn string_or_bytes<'a>(format: u32, addr: *const c_void) -> Result<&'a [u8]> {
    // SAFETY: by the contract.
    unsafe {
        if format == FI_ADDR_STR as u32 {
            return Ok(CStr::from_ptr(addr.cast::<c_char>()).to_bytes_with_nul());
        }
        let mut len = len_of_format(format);
        if format == FI_FORMAT_UNSPEC as u32 {
            len = 0;
            // No more is read than the address is known to have.
            while let LinkLen::AtLeast(more) =
                LinkAddr::len_of(std::slice::from_raw_parts(addr.cast(), len))?
            {
                len = more;
            }
            if let LinkLen::Exactly(all) =
                LinkAddr::len_of(std::slice::from_raw_parts(addr.cast(), len))?
            {
                len = all;
            }
        }
        Ok(std::slice::from_raw_parts(addr.cast(), len))
    }
}

/// The address as socket calls want it.
pub fn as_sockaddr(addr: &RawAddr) -> (*const libc::sockaddr, libc::socklen_t) {
    let bytes = addr.as_bytes();
    (bytes.as_ptr().cast(), bytes.len() as libc::socklen_t)
}

/// Parses the address in `bytes`, beginning with a `sockaddr`. Fails with -FI_EINVAL if they are
/// too short, or of another family.
pub fn from_bytes(bytes: &[u8]) -> Result<SocketAddr> {
    ofi::info::addr::from_sock(bytes).ok_or(Error::INVAL)
}

/// Reads the address the application points to, by the family it names.
///
/// # Safety
/// As for [`bytes_at`].
pub unsafe fn from_ptr(addr: *const c_void) -> Result<SocketAddr> {
    // SAFETY: by the contract.
    from_bytes(unsafe { bytes_at(addr) }?)
}

/// Returns the bytes of the address behind the application's pointer, with the length of its
/// family. Fails with -FI_EINVAL for null or an unknown family.
///
/// # Safety
/// `addr` is null or points to a complete `sockaddr` of its family, unchanged during `'a`.
pub unsafe fn bytes_at<'a>(addr: *const c_void) -> Result<&'a [u8]> {
    if addr.is_null() {
        return Err(Error::INVAL);
    }
    // SAFETY: every sockaddr has its family first; then as long as that says.
    unsafe {
        let family = i32::from(addr.cast::<u16>().read_unaligned());
        let len = len_of_family(family).ok_or(Error::INVAL)?;
        Ok(std::slice::from_raw_parts(addr.cast::<u8>(), len))
    }
}

fn len_of_family(family: i32) -> Option<usize> {
    match family {
        libc::AF_INET => Some(size_of::<libc::sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<libc::sockaddr_in6>()),
        AF_IB => Some(IbAddr::LEN),
        _ => None,
    }
}

/// Bytes of an address of this format: FI_SOCKADDR_IN, _IN6 or _IB, or FI_ADDR_IB_UD.
fn len_of_format(format: u32) -> usize {
    if format == FI_ADDR_IB_UD as u32 {
        UdAddr::LEN
    } else if format == FI_SOCKADDR_IB as u32 {
        IbAddr::LEN
    } else if format == FI_SOCKADDR_IN6 as u32 {
        size_of::<libc::sockaddr_in6>()
    } else {
        size_of::<libc::sockaddr_in>()
    }
}

/// The address of a datagram endpoint of an RDMA device (FI_ADDR_IB_UD). On the
/// wire: GID, then in host order the number of its queue pair (4 bytes), LID, key of
/// the partition and service (2 bytes each), service level; zeros up to 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct UdAddr {
    /// The GID of the port.
    pub gid: [u8; 16],
    /// The queue pair, of 24 bits.
    pub qpn: u32,
    /// The port, within an InfiniBand subnet.
    pub lid: u16,
    /// The key of the partition.
    pub pkey: u16,
    /// Service number given to the endpoint by the application.
    pub service: u16,
    /// The service level.
    pub sl: u8,
}

impl UdAddr {
    /// Bytes of an FI_ADDR_IB_UD address.
    pub const LEN: usize = 32;
    const QPN: u32 = (1 << 24) - 1;
    /// LIDs from here on are of multicast groups.
    const FIRST_GROUP: u16 = 0xc000;

    /// The address in `bytes`, -FI_EINVAL when they are too short.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; Self::LEN] =
            bytes.get(..Self::LEN).and_then(|b| b.try_into().ok()).ok_or(Error::INVAL)?;
        let two = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[..16]);
        let qpn = u32::from_ne_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]) & Self::QPN;
        Ok(Self { gid, qpn, lid: two(20), pkey: two(22), service: two(24), sl: bytes[26] })
    }

    /// The bytes of the address.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..20].copy_from_slice(&self.qpn.to_ne_bytes());
        bytes[20..22].copy_from_slice(&self.lid.to_ne_bytes());
        bytes[22..24].copy_from_slice(&self.pkey.to_ne_bytes());
        bytes[24..26].copy_from_slice(&self.service.to_ne_bytes());
        bytes[26] = self.sl;
        bytes
    }
}

/// The first address of `node` and `service` (getaddrinfo(3)) in this format, of IP
/// addresses; -FI_ENODATA when there is none, -FI_ENOMEM without memory.
pub fn resolve(node: &str, service: &str, format: u32) -> Result<SocketAddr> {
    let c_string = |text: &str| CString::new(text).map_err(|_| Error::INVAL);
    let (node, service) = (c_string(node)?, c_string(service)?);
    ofi::info::resolve(Some(&node), Some(&service), 0, format).map_err(|why| why.error())
}

/// Compares two addresses to arbitrate simultaneous connects: by address bytes, then by port as a
/// number.
pub fn connect_order(a: &Addr, b: &Addr) -> std::cmp::Ordering {
    let bytes = |addr: &Addr| match addr {
        Addr::Ip(addr) => match addr.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        },
        other => other.to_bytes(),
    };
    bytes(a).cmp(&bytes(b)).then(a.port().cmp(&b.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FI_SOCKADDR_IN, FI_SOURCE};

    #[test]
    fn groups_and_addresses_without_a_port_are_no_one_s() {
        let ip = |addr: &str| Addr::Ip(addr.parse().unwrap()).is_unicast();
        for addr in ["192.0.2.1:5", "[2001:db8::1]:5", "127.0.0.1:65535"] {
            assert!(ip(addr), "{addr}");
        }
        for addr in ["224.0.0.1:5", "255.255.255.255:5", "0.0.0.0:5", "192.0.2.1:0", "[ff02::1]:5"]
        {
            assert!(!ip(addr), "{addr}");
        }
        assert!(!ip("[::ffff:224.0.0.1]:5") && !ip("[::]:5"));
        let ud = |gid: &str, lid, qpn| {
            let gid = gid.parse::<Ipv6Addr>().unwrap().octets();
            Addr::Ud(UdAddr { gid, lid, qpn, ..UdAddr::default() }).is_unicast()
        };
        assert!(ud("fe80::1", 0, 17) && ud("::ffff:192.0.2.1", 0, 17) && ud("::", 7, 17));
        assert!(!ud("ff12::1", 0, 17) && !ud("::ffff:224.0.0.1", 0, 17));
        assert!(!ud("fe80::1", 0xc001, 17) && !ud("fe80::1", 7, 0xff_ffff) && !ud("fe80::1", 7, 1));
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        assert!(from_bytes(&[]).is_err());
        assert!(from_bytes(&[libc::AF_INET as u8, 0, 1, 2, 3]).is_err());
        assert!(from_bytes(&[99; 28]).is_err());
    }

    #[test]
    fn addresses_of_datagram_endpoints_come_out_of_every_form_as_they_went_in() {
        let addr = UdAddr {
            gid: [7; 16],
            qpn: 0x12_3456,
            lid: 0xfffe,
            pkey: 0x8001,
            service: 0xabcd,
            sl: 0xf5,
        };
        let bytes = addr.to_bytes();
        assert_eq!(UdAddr::from_bytes(&bytes), Ok(addr));
        assert_eq!(UdAddr::from_bytes(&bytes[..31]), Err(Error::INVAL));
        assert_eq!(bytes[27..], [0; 5]);
        assert_eq!(Addr::from_application(FI_ADDR_IB_UD as u32, &bytes), Ok(Addr::Ud(addr)));
    }

    #[test]
    fn address_length_follows_from_its_family() {
        let mut storage = [0xee_u8; 64];
        for (family, len) in [(libc::AF_INET, 16), (libc::AF_INET6, 28), (AF_IB, 48), (99, 0)] {
            storage[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
            // SAFETY: longer than any address.
            let bytes = unsafe { bytes_at(storage.as_ptr().cast()) };
            assert_eq!(bytes.map_or(0, <[u8]>::len), len);
        }
        // SAFETY: null.
        assert_eq!(unsafe { bytes_at(std::ptr::null()) }, Err(Error::INVAL));
    }

    #[test]
    fn vectors_give_addresses_of_every_format_back_as_they_took_them() {
        let mut ib = IbAddr::new([9; 16], 0x8001);
        ib.sid = 0x1234_5678_9abc_def0;
        let ud = UdAddr { gid: [7; 16], qpn: 5, ..UdAddr::default() };
        let ip = to_raw(&"192.0.2.1:5".parse().unwrap());
        for (format, bytes) in [
            (FI_SOCKADDR_IB, &ib.to_bytes()[..]),
            (FI_ADDR_IB_UD, &ud.to_bytes()[..]),
            (FI_SOCKADDR_IN, ip.as_bytes()),
        ] {
            let format = format as u32;
            let read = Addr::read(format, bytes).unwrap();
            assert_eq!((read.format(), &read.to_bytes()[..]), (format, bytes));
            assert_eq!(read.clone().identity().to_bytes(), bytes);
            assert_eq!(Addr::read(format, &bytes[..bytes.len() - 1]), Err(Error::INVAL));
        }
        assert_eq!(Addr::read(FI_SOCKADDR_IB as u32, &[9; 48]), Err(Error::INVAL));
    }

    #[test]
    fn a_name_is_the_same_with_and_without_its_scheme() {
        let keys = std::hash::RandomState::new();
        let name = |text| EndpointName::new(text).map(Addr::Name);
        let one = name(c"fi_shm://17:0:1").unwrap();
        assert_eq!(one, name(c"17:0:1").unwrap());
        assert_ne!(one, name(c"17:0:2").unwrap());
        assert_eq!((one.to_bytes(), one.to_string()), (b"17:0:1\0".to_vec(), "17:0:1".to_owned()));
        assert_eq!(Addr::read(one.format(), b"x://17:0:1\0").as_ref(), Ok(&one));
        assert_eq!(one.to_own_bytes(), b"fi_shm://17:0:1\0");
        let hash = |addr: &Addr| std::hash::BuildHasher::hash_one(&keys, addr);
        assert_eq!(hash(&one), hash(&name(c"17:0:1").unwrap()));
        for not in [c"", c"fi_shm://"] {
            assert_eq!(name(not), Err(Error::INVAL));
        }
        let long = |len| EndpointName::new(&CString::new(vec![b'x'; len]).unwrap()).is_ok();
        assert!(long(EndpointName::MOST - 1) && !long(EndpointName::MOST));
        assert_eq!(Addr::read(one.format(), b"without end"), Err(Error::INVAL));
    }

    #[test]
    fn names_of_no_endpoint_stand_for_all_and_tell_no_hosts_apart() {
        let any = Addr::any(FI_ADDR_STR as u32);
        let one = EndpointName::new(c"one").map(Addr::Name).unwrap();
        assert!(any.is_any() && !any.is_reachable() && any.format() == FI_ADDR_STR as u32);
        assert!(!one.is_any() && one.is_reachable());
        assert_eq!(
            (one.at_port(9), ip("192.0.2.1:5").at_port(9)),
            (one.clone(), ip("192.0.2.1:9"))
        );
        assert_eq!(one.host(), EndpointName::new(c"two").map(Addr::Name).unwrap().host());
        assert_eq!(one.for_people(), "one");
        assert_eq!(Addr::from_application(FI_ADDR_STR as u32, b"x://one\0"), Ok(one));
        for text in ["192.0.2.1:5", "[fe80::1]:5"] {
            let addr = ip(text);
            assert_eq!((addr.for_people(), addr.host().port()), (text.to_owned(), 0));
            assert_eq!(addr.host(), ip(&text.replace(":5", ":7")).host());
            assert_ne!(addr.host(), ip("192.0.2.2:5").host());
            assert_eq!(Addr::from_application(FI_SOCKADDR_IN as u32, &addr.to_bytes()), Ok(addr));
        }
    }

    #[test]
    fn address_list_ends_after_the_given_count() {
        let strings = b"one\0x://two\0three\0";
        // SAFETY: that many strings.
        let list = unsafe { AddrList::new(FI_ADDR_STR as u32, strings.as_ptr().cast(), 2) };
        let names: Vec<_> = list.map(|addr| addr.unwrap().to_string()).collect();
        assert_eq!(names, ["one", "two"]);
        let ips: Vec<Addr> =
            ["192.0.2.1:5", "192.0.2.2:6"].map(|a| Addr::Ip(a.parse().unwrap())).into();
        let bytes = [ips[0].to_bytes(), ips[1].to_bytes()].concat();
        // SAFETY: two addresses.
        let list = unsafe { AddrList::new(ips[0].format(), bytes.as_ptr().cast(), 2) };
        assert_eq!(list.collect::<Result<Vec<_>>>().as_ref(), Ok(&ips));
    }

    #[test]
    fn the_address_decides_before_the_port() {
        let ip = |text: &str| Addr::Ip(text.parse().unwrap());
        let order = |a: &str, b: &str| connect_order(&ip(a), &ip(b));
        assert_eq!(order("10.0.0.1:9", "10.0.0.2:1"), std::cmp::Ordering::Less);
        assert_eq!(order("10.0.0.1:9", "10.0.0.1:1"), std::cmp::Ordering::Greater);
        assert_eq!(order("[::1]:1", "[::1]:1"), std::cmp::Ordering::Equal);
    }

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
            assert_eq!(Addr::from_bytes(&bytes), Ok(addr.clone()));
            // SAFETY: a complete address.
            assert_eq!(unsafe { bytes_at(bytes.as_ptr().cast()) }, Ok(&bytes[..]));
            assert_eq!(Addr::from_hints(&bytes, addr.format()), Ok(addr.clone()));
            let string = format!("{addr}\0");
            assert_eq!(Addr::from_hints(string.as_bytes(), FI_ADDR_STR as u32), Ok(addr.clone()));
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
            assert_eq!(find(Some(node), Some(c"7471"), format), Some(with_port.clone()));
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
        assert!(!ib().may_share_memory(&v4) && !ip("[fe80::1]:0").may_share_memory(&ib()));
        assert!(!ib().is_same_host(&ip("[fe80::1]:0")) && ib().may_share_memory(&ib()));
        assert!(v4.may_share_memory(&ip("198.51.100.7:2")) && !v4.may_share_memory(&ip("[::1]:2")));
    }
}
