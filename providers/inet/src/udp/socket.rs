//! UDP sockets.
use core::ffi::c_int;
use ofi_provider::addr;
use ofi_provider::datagram_io::send_datagrams;
use ofi_provider::error::{Error, Result};
use ofi_provider::sys;
use ofi_provider::traffic_class::TrafficClass;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Value of `linux/in6.h`; libc defines it for no system.
const IPV6_MULTICAST_ALL: c_int = 29;

/// Returns the index of the interface with this address; 0 leaves the choice to the system.
fn interface_of(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(addr) if addr.scope_id() > 0 => addr.scope_id(),
        _ => ofi_provider::info::interface_of(addr.ip()),
    }
}

/// Returns the index of the interface for receiving a group: the one named with it, or the one with
/// this address.
fn interface_for(group: &SocketAddrV6, local: &SocketAddr) -> u32 {
    if group.scope_id() > 0 { group.scope_id() } else { interface_of(local) }
}

/// Returns true if a send may have failed because of an earlier datagram: the system reports such
/// errors with the next call.
pub(crate) fn is_of_earlier(sent: &Result) -> bool {
    matches!(
        sent,
        Err(Error::CONNREFUSED | Error::HOSTUNREACH | Error::NETUNREACH | Error::MSGSIZE)
    )
}

/// A UDP socket with an address.
#[derive(Debug)]
pub(crate) struct DgramSocket(UdpSocket, TrafficClass);

impl DgramSocket {
    /// A socket of this address; port 0 takes a free one.
    pub(crate) fn bound(to: &SocketAddr) -> Result<Self> {
        Ok(Self(UdpSocket::bind(to)?, TrafficClass::default()))
    }

    /// Sets the class of the socket's packets.
    pub(crate) fn with_class(self, class: TrafficClass) -> Self {
        class.set(self.0.as_fd());
        Self(self.0, class)
    }

    /// Moves to another address, keeping the descriptor.
    pub(crate) fn rebind(&self, to: &SocketAddr) -> Result {
        let other = UdpSocket::bind(to)?;
        self.1.set(other.as_fd());
        sys::replace(self.0.as_fd(), other.as_fd())
    }

    /// Creates a separate socket for messages to this group through the interface with this
    /// address.
    pub(crate) fn of_group(group: &SocketAddr, local: &SocketAddr) -> Result<Self> {
        let mut group = *group;
        if let SocketAddr::V6(group) = &mut group {
            // Many groups are another one on each interface.
            group.set_scope_id(interface_for(group, local));
        }
        // Others on this host hear the same group.
        Ok(Self(sys::shared_udp_socket(&group)?, TrafficClass::default()))
    }

    /// The address it is bound to.
    pub(crate) fn local(&self) -> Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    fn set(&self, level: c_int, name: c_int, value: &c_int) -> Result {
        sys::set_option(self.0.as_fd(), level, name, *value)
    }

    /// Makes datagrams to groups leave through the interface with this address, the socket's own.
    pub(crate) fn send_to_groups_from(&self, local: &SocketAddr) -> Result {
        match local {
            SocketAddr::V4(local) if local.ip().is_unspecified() => Ok(()),
            SocketAddr::V4(local) => {
                let addr = c_int::from_ne_bytes(local.ip().octets());
                self.set(libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &addr)
            }
            SocketAddr::V6(_) => match interface_of(local) {
                0 => Ok(()),
                index => self.set(
                    libc::IPPROTO_IPV6,
                    libc::IPV6_MULTICAST_IF,
                    &c_int::try_from(index).unwrap_or(0),
                ),
            },
        }
    }

    /// Makes the socket receive messages to this group through the interface with this address, and
    /// nothing of groups joined only by other sockets of this host.
    pub(crate) fn join_group(&self, group: &SocketAddr, local: &SocketAddr) -> Result {
        match (group, local) {
            (SocketAddr::V4(group), SocketAddr::V4(local)) => {
                self.set(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &0)?;
                self.0.join_multicast_v4(group.ip(), local.ip())?;
            }
            (SocketAddr::V6(group), SocketAddr::V6(_)) => {
                // Systems before Linux 4.20 do not have this option.
                let _ = self.set(libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, &0);
                self.0.join_multicast_v6(group.ip(), interface_for(group, local))?;
            }
            _ => return Err(Error::INVAL),
        }
        Ok(())
    }

    /// Leaves a multicast group at an interface.
    pub(crate) fn leave_group(&self, group: &SocketAddr, local: &SocketAddr) {
        // Not to be in it is what is wanted.
        let _ = match (group, local) {
            (SocketAddr::V4(group), SocketAddr::V4(local)) => {
                self.0.leave_multicast_v4(group.ip(), local.ip())
            }
            (SocketAddr::V6(group), SocketAddr::V6(_)) => {
                self.0.leave_multicast_v6(group.ip(), interface_for(group, local))
            }
            _ => Ok(()),
        };
    }

    /// Has receives take several datagrams of one sender, and the system hold so many bytes.
    pub(crate) fn receive_many(&self, held: usize) -> Result {
        self.set(libc::SOL_UDP, libc::UDP_GRO, &1)?;
        let held = c_int::try_from(held).unwrap_or(c_int::MAX);
        // As much as the system allows.
        let forced = self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &held);
        let _ = forced.or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &held));
        Ok(())
    }

    /// Enables the system's records of datagrams to closed ports ([`sys::next_injected_error`]).
    pub(crate) fn record_icmp_errors(&self) -> Result {
        match self.local()? {
            SocketAddr::V4(_) => self.set(libc::SOL_IP, libc::IP_RECVERR, &1),
            SocketAddr::V6(_) => self.set(libc::SOL_IPV6, libc::IPV6_RECVERR, &1),
        }
    }

    /// Enables reporting of the destinations of received datagrams, if the socket has more than one
    /// address.
    pub(crate) fn tell_destinations(&self) -> Result {
        match self.local()? {
            local if !local.ip().is_unspecified() => Ok(()),
            SocketAddr::V4(_) => self.set(libc::IPPROTO_IP, libc::IP_PKTINFO, &1),
            SocketAddr::V6(_) => self.set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1),
        }
    }

    /// Sends datagrams of `stride` bytes each; the last may be shorter.
    pub(crate) fn send_many(&self, to: &SocketAddr, bytes: &[u8], stride: usize) -> Result {
        let (fd, to) = (self.fd(), addr::to_raw(to));
        let mut sent = send_datagrams(fd, &to, bytes, stride);
        if is_of_earlier(&sent) {
            // The error kept these from being sent.
            sent = send_datagrams(fd, &to, bytes, stride);
        }
        match sent {
            Err(Error::NOBUFS) => Err(Error::AGAIN),
            other => other,
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The address as applications pass it around.
    pub(crate) fn name(&self) -> Result<Vec<u8>> {
        Ok(addr::to_raw(&self.0.local_addr()?).as_bytes().to_vec())
    }
}
