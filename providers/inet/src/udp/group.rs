//! Multicast groups of the network (fi_join of fi_cm(3)).
//!
//! Messages to a group are sent from the endpoint's own socket. They are also received there, if
//! the system permits it: the socket must be bound to the group's port, and to any address or the
//! group's. Otherwise the group has a separate socket, so any endpoint can be a member.
use super::socket::DgramSocket;
use ofi_provider::abi::fi_addr_t;
use ofi_provider::api::{GroupRole, MULTICAST_ADDR, is_group};
use ofi_provider::error::{Error, Result};
use ofi_provider::slab::Slab;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Joined group.
#[derive(Debug)]
struct GroupMember {
    group: SocketAddr,
    part: GroupRole,
}

/// Reception of a group by an endpoint, regardless of the number of joins.
#[derive(Debug)]
struct Hearing {
    group: SocketAddr,
    count: usize,
    /// The group's own socket; `None` if the group is received through the endpoint's.
    socket: Option<DgramSocket>,
}

/// The groups of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: Slab<GroupMember>,
    joined: Vec<Hearing>,
}

/// Effect of joining or leaving.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// A socket was opened, to be read from now on.
    Opened(RawFd),
}

impl Groups {
    /// Joins a group; returns its address for sends.
    pub(crate) fn join(
        &mut self,
        own: &DgramSocket,
        group: SocketAddr,
        part: GroupRole,
    ) -> Result<(fi_addr_t, Change)> {
        if !group.ip().is_multicast() || group.port() == 0 {
            return Err(Error::INVAL);
        }
        let local = own.local()?;
        if local.is_ipv4() != group.is_ipv4() {
            return Err(Error::INVAL);
        }
        own.send_to_groups_from(&local)?;
        let mut change = Change::Nothing;
        if part.receives {
            match self.joined.iter_mut().find(|joined| joined.group == group) {
                Some(joined) => joined.count += 1,
                None => {
                    let all = local.ip().is_unspecified() || local.ip() == group.ip();
                    let socket = match all && local.port() == group.port() {
                        true => {
                            own.join_group(&group, &local)?;
                            None
                        }
                        false => {
                            let socket = DgramSocket::of_group(&group, &local)?;
                            socket.join_group(&group, &local)?;
                            change = Change::Opened(socket.fd());
                            Some(socket)
                        }
                    };
                    self.joined.push(Hearing { group, count: 1, socket });
                }
            }
        }
        let id = self.members.insert(GroupMember { group, part });
        Ok((MULTICAST_ADDR | fi_addr_t::from(id), change))
    }

    /// Leaves a group. Returns a socket no longer needed.
    pub(crate) fn leave(&mut self, own: &DgramSocket, addr: fi_addr_t) -> Option<DgramSocket> {
        let GroupMember { group, part } = self.members.remove(addr as u32)?;
        if !part.receives {
            return None;
        }
        let at = self.joined.iter().position(|joined| joined.group == group)?;
        self.joined[at].count -= 1;
        if self.joined[at].count > 0 {
            return None;
        }
        let joined = self.joined.swap_remove(at);
        if joined.socket.is_none() {
            if let Ok(local) = own.local() {
                own.leave_group(&group, &local);
            }
        }
        joined.socket
    }

    /// Returns the destination of messages to this address. Fails with -FI_EINVAL if it belongs to
    /// no group joined for sending.
    pub(crate) fn find(&self, addr: fi_addr_t) -> Result<SocketAddr> {
        let member = self.members.get(addr as u32).filter(|_| is_group(addr));
        member.filter(|member| member.part.sends).map(|member| member.group).ok_or(Error::INVAL)
    }

    /// Returns the separate sockets of groups.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = RawFd> {
        self.sockets_of_groups().map(|(fd, _)| fd)
    }

    /// The same, each with its group.
    pub(crate) fn sockets_of_groups(&self) -> impl Iterator<Item = (RawFd, SocketAddr)> {
        let of_group = |joined: &Hearing| Some((joined.socket.as_ref()?.fd(), joined.group));
        self.joined.iter().filter_map(of_group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const BOTH: GroupRole = GroupRole { sends: true, receives: true };

    fn any(port: u16) -> SocketAddr {
        (Ipv4Addr::UNSPECIFIED, port).into()
    }

    #[test]
    fn group_opens_a_socket_only_if_endpoints_cannot_receive_it() {
        let own = DgramSocket::bound(&any(0)).unwrap();
        let port = own.local().unwrap().port();
        let mut groups = Groups::default();
        let same: SocketAddr = format!("239.3.2.1:{port}").parse().unwrap();
        let (addr, change) = groups.join(&own, same, BOTH).unwrap();
        assert_eq!((change, groups.find(addr)), (Change::Nothing, Ok(same)));
        assert!(groups.leave(&own, addr).is_none());
        assert_eq!(groups.find(addr), Err(Error::INVAL));
        let bound = DgramSocket::bound(&"127.0.0.1:0".parse().unwrap()).unwrap();
        // The system keeps the port for the first.
        assert_eq!(groups.join(&bound, same, BOTH).err(), Some(Error::ADDRINUSE));
        drop(own);
        let (first, change) = groups.join(&bound, same, BOTH).unwrap();
        assert!(matches!(change, Change::Opened(_)));
        // After two joins each datagram is received once.
        let (second, change) = groups.join(&bound, same, BOTH).unwrap();
        assert_eq!((change, groups.sockets().count()), (Change::Nothing, 1));
        assert!(groups.leave(&bound, first).is_none());
        assert!(groups.leave(&bound, second).is_some());
        assert_eq!(groups.sockets().count(), 0);
    }

    #[test]
    fn group_roles_allow_only_their_own_direction() {
        let own = DgramSocket::bound(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let mut groups = Groups::default();
        let group = "239.3.2.1:7654".parse().unwrap();
        let receiver = GroupRole { sends: false, receives: true };
        let (addr, _) = groups.join(&own, group, receiver).unwrap();
        assert_eq!(groups.find(addr), Err(Error::INVAL));
        let sends = GroupRole { sends: true, receives: false };
        let (addr, change) = groups.join(&own, group, sends).unwrap();
        assert_eq!((change, groups.find(addr)), (Change::Nothing, Ok(group)));
        // Neither an address of the vector nor what is no group's.
        assert_eq!(groups.find(0), Err(Error::INVAL));
        for wrong in ["127.0.0.1:7654", "239.3.2.1:0", "[ff15::1]:7654"] {
            assert!(groups.join(&own, wrong.parse().unwrap(), BOTH).is_err(), "{wrong}");
        }
    }
}
