//! Addresses of this host's interfaces, as reported by the kernel.
use crate::error::{Error, Result};
use crate::info::addr;
use core::ffi::{CStr, c_int};
use core::ptr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub(super) name: String,
    /// Index of the interface in its network namespace.
    pub(super) index: i32,
    /// Hardware address.
    pub(super) hardware: Vec<u8>,
    /// State of the interface: IFF_UP, IFF_RUNNING and others.
    flags: u32,
}

#[cfg(test)]
impl Link {
    pub(super) fn for_test(name: &str, index: i32) -> Self {
        Self { name: name.into(), index, hardware: vec![2, 0, 0, 0, 0, index as u8], flags: 0 }
    }
}

/// Address of an interface in state up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct InterfaceAddr {
    /// Name of the interface, followed by the label of the address if it has one: the name of the
    /// domain.
    pub(super) name: String,
    /// Network of the address: the name of the fabric.
    pub(super) network: String,
    pub(super) addr: SocketAddr,
    pub(super) is_point_to_point: bool,
}

impl InterfaceAddr {
    /// Returns the name of the interface, without a label.
    pub(super) fn interface(&self) -> &str {
        self.name.split(':').next().unwrap_or_default()
    }

    /// Returns true for 127.0.0.1 and ::1.
    pub(super) fn is_loopback(&self) -> bool {
        let ip = self.addr.ip();
        ip == IpAddr::V4(Ipv4Addr::LOCALHOST) || ip == IpAddr::V6(Ipv6Addr::LOCALHOST)
    }

    /// Returns true if the address is used unless the user chooses otherwise: no point-to-point
    /// interface, and of the loopback only its well-known addresses.
    pub(super) fn is_usual(&self) -> bool {
        self.is_loopback() || (self.name != "lo" && !self.is_point_to_point)
    }

    /// Returns true if the address is valid on its own link alone.
    pub(super) fn is_link_local(&self) -> bool {
        match self.addr.ip() {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }

    #[cfg(test)]
    pub(super) fn for_test(name: &str, ip: &str) -> Self {
        let ip: IpAddr = ip.parse().unwrap();
        let addr = SocketAddr::new(ip, 0);
        Self { name: name.into(), network: network(ip, None), addr, is_point_to_point: false }
    }
}

/// Interfaces of this host, and their addresses in the order of the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct InterfaceList {
    pub(super) links: Vec<Link>,
    pub(super) addrs: Vec<InterfaceAddr>,
}

impl InterfaceList {
    /// Reads the list from the kernel. It is empty if the kernel does not report it. Fails with
    /// -FI_ENOMEM if there is no memory for the list.
    pub(super) fn read() -> Result<Self> {
        let mut list = ptr::null_mut();
        // SAFETY: a place for the answer.
        if unsafe { libc::getifaddrs(&mut list) } != 0 {
            let error = Error::last_os();
            return if error == Error::NOMEM { Err(error) } else { Ok(Self::default()) };
        }
        let mut all = Self::default();
        let mut next = list;
        while !next.is_null() {
            // SAFETY: an entry of the list that getifaddrs made: its name is a
            // C string, and address and mask have the size of their family.
            unsafe {
                let entry = &*next;
                next = entry.ifa_next;
                let Some(family) = entry.ifa_addr.as_ref().map(|addr| addr.sa_family) else {
                    continue;
                };
                let name = || CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
                if i32::from(family) == libc::AF_PACKET {
                    let addr = entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned();
                    let len = usize::from(addr.sll_halen).min(addr.sll_addr.len());
                    all.links.push(Link {
                        name: name(),
                        index: addr.sll_ifindex,
                        hardware: addr.sll_addr[..len].to_vec(),
                        flags: entry.ifa_flags,
                    });
                    continue;
                }
                let flags = entry.ifa_flags as c_int;
                let Some(len) = sock_len(family) else { continue };
                let Some(addr) = sock_addr(entry.ifa_addr, len) else { continue };
                if flags & libc::IFF_UP == 0 {
                    continue;
                }
                // Some systems leave the mask's family out, so take the address's.
                let mask = match addr {
                    _ if entry.ifa_netmask.is_null() => None,
                    SocketAddr::V4(_) => {
                        let mask = &*entry.ifa_netmask.cast::<libc::sockaddr_in>();
                        Some(IpAddr::V4(Ipv4Addr::from(mask.sin_addr.s_addr.to_ne_bytes())))
                    }
                    SocketAddr::V6(_) => {
                        let mask = &*entry.ifa_netmask.cast::<libc::sockaddr_in6>();
                        Some(IpAddr::V6(Ipv6Addr::from(mask.sin6_addr.s6_addr)))
                    }
                };
                all.addrs.push(InterfaceAddr {
                    name: name(),
                    network: network(addr.ip(), mask),
                    addr,
                    is_point_to_point: flags & libc::IFF_POINTOPOINT != 0,
                });
            }
        }
        // SAFETY: made by getifaddrs, and not used any more.
        unsafe { libc::freeifaddrs(list) };
        Ok(all)
    }

    /// Returns the entry with this address.
    pub(super) fn find(&self, ip: IpAddr) -> Option<&InterfaceAddr> {
        self.addrs.iter().find(|iface| iface.addr.ip() == ip)
    }
}

/// Returns an IP address of the system.
///
/// # Safety
/// `at` is null or valid for `len` bytes.
pub(super) unsafe fn sock_addr(at: *const libc::sockaddr, len: usize) -> Option<SocketAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: by this function's contract.
    addr::from_sock(unsafe { core::slice::from_raw_parts(at.cast(), len) })
}

fn sock_len(family: libc::sa_family_t) -> Option<usize> {
    match i32::from(family) {
        libc::AF_INET => Some(size_of::<libc::sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<libc::sockaddr_in6>()),
        _ => None,
    }
}

/// Returns the network as `192.0.2.0/24`. A loopback address is a separate network, regardless of
/// the interface, because it reaches nothing else.
fn network(ip: IpAddr, mask: Option<IpAddr>) -> String {
    match (ip, mask) {
        (IpAddr::V4(ip), _) if ip.is_loopback() => format!("{ip}/32"),
        (IpAddr::V4(ip), Some(IpAddr::V4(mask))) => {
            let mask = u32::from(mask);
            format!("{}/{}", Ipv4Addr::from(u32::from(ip) & mask), mask.count_ones())
        }
        (IpAddr::V6(ip), Some(IpAddr::V6(mask))) => {
            let mask = u128::from(mask);
            format!("{}/{}", Ipv6Addr::from(u128::from(ip) & mask), mask.count_ones())
        }
        (IpAddr::V4(ip), _) => format!("{ip}/32"),
        (IpAddr::V6(ip), _) => format!("{ip}/128"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_named_by_prefix() {
        let mask = |mask: &str| Some(mask.parse().unwrap());
        let ip = |ip: &str| ip.parse().unwrap();
        assert_eq!(network(ip("10.1.0.7"), mask("255.255.255.252")), "10.1.0.4/30");
        assert_eq!(network(ip("127.0.0.1"), mask("255.0.0.0")), "127.0.0.1/32");
        assert_eq!(network(ip("fe80::fc:1"), mask("ffff:ffff:ffff:ffff::")), "fe80::/64");
    }

    #[test]
    fn every_address_belongs_to_a_link_of_the_list() {
        let list = InterfaceList::read().unwrap();
        assert!(list.find(Ipv4Addr::LOCALHOST.into()).is_some());
        for addr in &list.addrs {
            assert!(list.links.iter().any(|link| link.name == addr.interface()), "{addr:?}");
        }
    }
}
