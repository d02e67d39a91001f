//! Socket addresses as the API passes them: `struct sockaddr_in` and
//! `sockaddr_in6` (FI_SOCKADDR_IN, FI_SOCKADDR_IN6), and their text form.
use crate::abi::{FI_ADDR_IB_UD, FI_SOCKADDR_IB, FI_SOCKADDR_IN6};
use crate::error::{Error, Result};
use core::ffi::c_void;
use ofi::info::ib::{AF_IB, IbAddr};
use std::ffi::CString;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

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
/// As for [`bytes_at`].
pub unsafe fn from_ptr(addr: *const c_void) -> Result<SocketAddr> {
    // SAFETY: by the contract.
    from_bytes(unsafe { bytes_at(addr) }?)
}

/// The bytes of the address the application points to, as many as the family has that
/// it names; -FI_EINVAL for null, or one that is not known.
///
/// # Safety
/// `addr` is null or points to a complete `sockaddr` of its family, which stays as it
/// is for `'a`.
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
pub fn len_of_format(format: u32) -> usize {
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

/// An address of this format (as for [`len_of_format`]) in the form in which address
/// vectors keep it; -FI_EINVAL when it is too short, or of another family.
pub fn read(format: u32, bytes: &[u8]) -> Result<SocketAddr> {
    if format == FI_ADDR_IB_UD as u32 {
        Ok(UdAddr::from_bytes(bytes)?.to_socket())
    } else if format == FI_SOCKADDR_IB as u32 {
        // Port, partition and service: what makes two addresses the same peer.
        let addr = IbAddr::from_bytes(bytes).ok_or(Error::INVAL)?;
        let (flow, scope) = ((addr.sid >> 32) as u32, addr.sid as u32);
        Ok(SocketAddrV6::new(addr.gid.into(), addr.pkey, flow, scope).into())
    } else {
        from_bytes(bytes)
    }
}

/// The bytes of what [`read`] made, as the application gets them.
pub fn write(format: u32, addr: &SocketAddr) -> Result<Vec<u8>> {
    if format == FI_ADDR_IB_UD as u32 {
        Ok(UdAddr::from_socket(addr)?.to_bytes().to_vec())
    } else if format == FI_SOCKADDR_IB as u32 {
        let SocketAddr::V6(addr) = addr else { return Err(Error::INVAL) };
        let sid = u64::from(addr.flowinfo()) << 32 | u64::from(addr.scope_id());
        let ib = IbAddr { sid, ..IbAddr::new(addr.ip().octets(), addr.port()) };
        Ok(ib.to_bytes().to_vec())
    } else {
        Ok(to_raw(addr).as_bytes().to_vec())
    }
}

/// The address of a datagram endpoint of an RDMA device (FI_ADDR_IB_UD). On the
/// wire: GID, then in host order the number of its queue pair (4 bytes), LID, key of
/// the partition and service (2 bytes each), service level; zeros up to 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UdAddr {
    /// The port, as the network knows it.
    pub gid: [u8; 16],
    /// The queue pair, of 24 bits.
    pub qpn: u32,
    /// The port, within an InfiniBand subnet.
    pub lid: u16,
    /// The key of the partition.
    pub pkey: u16,
    /// What the application calls it by.
    pub service: u16,
    /// The service level.
    pub sl: u8,
}

impl UdAddr {
    /// Bytes of one.
    pub const LEN: usize = 32;
    const QPN: u32 = (1 << 24) - 1;

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

    /// The bytes.
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

    /// The form in which address vectors keep it. Nothing gets lost.
    pub fn to_socket(&self) -> SocketAddr {
        let scope = u32::from(self.lid) << 16 | u32::from(self.pkey);
        let flow = u32::from(self.sl) << 24 | self.qpn;
        SocketAddrV6::new(self.gid.into(), self.service, flow, scope).into()
    }

    /// What [`to_socket`](Self::to_socket) made.
    pub fn from_socket(addr: &SocketAddr) -> Result<Self> {
        let SocketAddr::V6(addr) = addr else { return Err(Error::INVAL) };
        let (flow, scope) = (addr.flowinfo(), addr.scope_id());
        Ok(Self {
            gid: addr.ip().octets(),
            qpn: flow & Self::QPN,
            lid: (scope >> 16) as u16,
            pkey: scope as u16,
            service: addr.port(),
            sl: (flow >> 24) as u8,
        })
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
        assert_eq!(UdAddr::from_socket(&addr.to_socket()), Ok(addr));
        assert_eq!(UdAddr::from_bytes(&bytes[..31]), Err(Error::INVAL));
        assert_eq!(bytes[27..], [0; 5]);
    }

    #[test]
    fn what_an_application_points_to_is_as_long_as_its_family_says() {
        let mut room = [0xee_u8; 64];
        for (family, len) in [(libc::AF_INET, 16), (libc::AF_INET6, 28), (AF_IB, 48), (99, 0)] {
            room[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
            // SAFETY: longer than any address.
            let bytes = unsafe { bytes_at(room.as_ptr().cast()) };
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
            (crate::abi::FI_SOCKADDR_IN, ip.as_bytes()),
        ] {
            let format = format as u32;
            assert_eq!(len_of_format(format), bytes.len());
            let kept = read(format, bytes).unwrap();
            assert_eq!(write(format, &kept).as_deref(), Ok(bytes));
            assert_eq!(read(format, &bytes[..bytes.len() - 1]), Err(Error::INVAL));
        }
        assert_eq!(read(FI_SOCKADDR_IB as u32, &[9; 48]), Err(Error::INVAL));
    }

    #[test]
    fn the_address_decides_before_the_port() {
        let order = |a: &str, b: &str| connect_order(&a.parse().unwrap(), &b.parse().unwrap());
        assert_eq!(order("10.0.0.1:9", "10.0.0.2:1"), std::cmp::Ordering::Less);
        assert_eq!(order("10.0.0.1:9", "10.0.0.1:1"), std::cmp::Ordering::Greater);
        assert_eq!(order("[::1]:1", "[::1]:1"), std::cmp::Ordering::Equal);
    }
}
