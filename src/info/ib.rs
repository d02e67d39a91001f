//! Addresses of librdmacm (FI_SOCKADDR_IB): `struct sockaddr_ib`.
use core::fmt;
use core::mem::size_of;
use libc::sa_family_t;
use std::net::Ipv6Addr;

/// The family of these addresses, on Linux.
pub const AF_IB: i32 = 27;
/// The address family as the structure has it.
const FAMILY: [u8; 2] = (AF_IB as sa_family_t).to_ne_bytes();

/// Service behind a port of an InfiniBand network, as defined by `struct sockaddr_ib` of
/// `<infiniband/ib.h>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IbAddr {
    /// The port (GID); zeros stand for any.
    pub gid: [u8; 16],
    /// The key of the partition.
    pub pkey: u16,
    /// Traffic class and flow label.
    pub flow: u32,
    /// The service: a port space in bits 16 to 27 and a port in the lowest 16.
    pub sid: u64,
    /// Significant bits of `sid`.
    pub sid_mask: u64,
    /// Value for the application or librdmacm, in host order.
    pub scope: u64,
}

impl IbAddr {
    /// Bytes of an address.
    pub const LEN: usize = 48;
    /// The port space of these addresses (RDMA_PS_IB).
    const SPACE: u64 = 0x13f;
    /// The default key of a partition, with full membership.
    const PKEY: u16 = 0xffff;

    /// Returns the address of any service, chosen by librdmacm, of this port and partition.
    pub fn new(gid: [u8; 16], pkey: u16) -> Self {
        Self { gid, pkey, flow: 0, sid: Self::SPACE << 16, sid_mask: u64::MAX, scope: 0 }
    }

    /// Any port of the host's.
    pub fn any() -> Self {
        Self::new([0; 16], Self::PKEY)
    }

    /// Returns true if the address names no particular port.
    pub fn is_any(&self) -> bool {
        self.gid == [0; 16]
    }

    /// The number of the service within its port space; 0 stands for any.
    pub fn port(&self) -> u16 {
        self.sid as u16
    }

    /// Another service of the same port space.
    pub fn set_port(&mut self, port: u16) {
        self.sid = self.sid & !0xffff | u64::from(port);
    }

    /// Returns true if both may belong to one partition of one subnet.
    pub fn is_sibling_of(&self, other: &Self) -> bool {
        // The highest bit of a key says how full a member is.
        self.gid[..8] == other.gid[..8] && (self.pkey ^ other.pkey) & 0x7fff == 0
    }

    /// The address in `bytes`; `None` if they are too short or of another family.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        fn get<const N: usize>(bytes: &[u8; IbAddr::LEN], at: usize) -> Option<[u8; N]> {
            bytes.get(at..at + N)?.try_into().ok()
        }
        let bytes: &[u8; Self::LEN] = bytes.get(..Self::LEN)?.try_into().ok()?;
        if bytes[..2] != FAMILY {
            return None;
        }
        Some(Self {
            pkey: u16::from_be_bytes(get(bytes, 2)?),
            flow: u32::from_be_bytes(get(bytes, 4)?),
            gid: get(bytes, 8)?,
            sid: u64::from_be_bytes(get(bytes, 24)?),
            sid_mask: u64::from_be_bytes(get(bytes, 32)?),
            scope: u64::from_ne_bytes(get(bytes, 40)?),
        })
    }

    /// The bytes of the C structure.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&FAMILY);
        put(&self.pkey.to_be_bytes());
        put(&self.flow.to_be_bytes());
        put(&self.gid);
        put(&self.sid.to_be_bytes());
        put(&self.sid_mask.to_be_bytes());
        put(&self.scope.to_ne_bytes());
        bytes
    }

    /// Parses an address string, `fi_sockaddr_ib://[GID]:PKEY:SPACE:SCOPE` with hexadecimal
    /// numbers; `None` for anything else. The string of an address lacks the port within the space,
    /// set to 0 here.
    pub fn from_text(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("fi_sockaddr_ib://[")?;
        let (gid, rest) = rest.split_once("]:")?;
        let mut numbers = rest.split(':').map(|number| {
            let digits = number.strip_prefix("0x").unwrap_or(number);
            // `from_str_radix` takes a sign as well.
            let hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            u16::from_str_radix(digits, 16).ok().filter(|_| hex)
        });
        let (pkey, space, scope) = (numbers.next()??, numbers.next()??, numbers.next()??);
        if numbers.next().is_some() || space > 0xfff {
            return None;
        }
        let mut addr = Self::new(gid.parse::<Ipv6Addr>().ok()?.octets(), pkey);
        addr.sid = u64::from(space) << 16;
        addr.scope = u64::from(u8::try_from(scope).ok()?).to_be();
        Some(addr)
    }
}

impl fmt::Display for IbAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gid, space) = (Ipv6Addr::from(self.gid), self.sid >> 16 & 0xfff);
        let scope = u64::from_be(self.scope) as u8;
        write!(f, "fi_sockaddr_ib://[{gid}]:{:#x}:{space:#x}:{scope:#x}", self.pkey)
    }
}

const _: () = assert!(size_of::<libc::sockaddr_storage>() >= IbAddr::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> IbAddr {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[15]) = (0xfe, 0x80, 1);
        IbAddr { flow: 7, scope: 1, ..IbAddr::new(gid, 0x8001) }
    }

    #[test]
    fn bytes_are_those_of_the_c_structure_and_come_back_as_they_were() {
        let mut addr = example();
        addr.set_port(0x1234);
        let bytes = addr.to_bytes();
        assert_eq!(IbAddr::from_bytes(&bytes), Some(addr));
        assert_eq!(bytes[..2], 27_u16.to_ne_bytes());
        assert_eq!(bytes[2..8], [0x80, 1, 0, 0, 0, 7]);
        assert_eq!(bytes[8..24], addr.gid);
        assert_eq!(bytes[24..32], [0, 0, 0, 0, 1, 0x3f, 0x12, 0x34]);
        assert_eq!(bytes[32..40], [255; 8]);
        assert_eq!(bytes[40..], 1_u64.to_ne_bytes());
    }

    #[test]
    fn short_and_foreign_bytes_are_no_address() {
        let mut bytes = example().to_bytes();
        for len in 0..IbAddr::LEN {
            assert_eq!(IbAddr::from_bytes(&bytes[..len]), None);
        }
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        assert_eq!(IbAddr::from_bytes(&bytes), None);
    }

    #[test]
    fn the_text_names_port_partition_and_space_and_reads_back() {
        let mut addr = example();
        addr.flow = 0;
        addr.scope = 9_u64.to_be();
        let text = "fi_sockaddr_ib://[fe80::1]:0x8001:0x13f:0x9";
        assert_eq!(addr.to_string(), text);
        assert_eq!(IbAddr::from_text(text), Some(addr));
        addr.set_port(5);
        assert_eq!((addr.to_string().as_str(), addr.port()), (text, 5));
    }

    #[test]
    fn malformed_address_string_is_refused() {
        let good = "fi_sockaddr_ib://[fe80::1]:0xffff:0x13f:0x0";
        assert!(IbAddr::from_text(good).is_some());
        for (of, to) in [
            ("_ib", "_in6"),
            ("[fe80::1]", "fe80::1"),
            ("fe80::1", "host"),
            ("0xffff", "0x1ffff"),
            ("0xffff", "+1"),
            ("0xffff", "\u{e9}"),
            ("0x13f", "0x1000"),
            (":0x0", ":0x100"),
            (":0x0", ""),
            (":0x0", ":0x0:0x0"),
            (":0x0", ":"),
        ] {
            assert_eq!(IbAddr::from_text(&good.replace(of, to)), None, "{of} as {to}");
        }
        assert_eq!(IbAddr::from_text(""), None);
    }

    #[test]
    fn adjacent_addresses_share_subnet_and_partition() {
        let (one, mut other) = (example(), example());
        other.gid[15] = 2;
        other.pkey = 1;
        assert!(one.is_sibling_of(&other));
        other.pkey = 2;
        assert!(!one.is_sibling_of(&other));
        assert!(IbAddr::any().is_any() && !one.is_any() && !one.is_sibling_of(&IbAddr::any()));
    }
}
