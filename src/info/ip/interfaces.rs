//! Interfaces used by a provider, in the order of its infos.
use super::choice::InterfaceChoice;
use super::list::{InterfaceAddr, InterfaceList, Link};
use super::system::{DefaultRoutes, InterfaceKind, LinkProperties, SystemFiles};
use crate::error::{Error, Result};
use crate::info::nic::Nic;
use core::cmp::Reverse;
use core::time::Duration;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

/// Interfaces of this host for a provider: those chosen by the user, best first.
///
/// Their properties in sysfs are read once for each list of interfaces, and routes once in a second
/// at most. Threads may share it.
#[derive(Debug, Default)]
pub struct Interfaces {
    choice: InterfaceChoice,
    /// Cards are described with their addresses on the bus.
    has_pci: bool,
    files: SystemFiles,
    cache: Mutex<Cache>,
}

/// Latest state of interfaces and routes.
#[derive(Debug, Default)]
struct Cache {
    links: Arc<KnownLinks>,
    /// Default routes, with the time of reading.
    routes: Option<(Instant, Arc<DefaultRoutes>)>,
}

/// Lifetime of cached routes.
const FRESH: Duration = Duration::from_secs(1);

/// Interfaces with their properties.
#[derive(Debug, Default)]
struct KnownLinks {
    links: Vec<Link>,
    properties: Vec<LinkProperties>,
}

impl KnownLinks {
    fn read(files: &SystemFiles, links: &[Link], has_pci: bool) -> Self {
        let properties = links.iter().map(|link| files.properties(link, has_pci)).collect();
        Self { links: links.to_vec(), properties }
    }

    /// Returns the properties of the interface of an address.
    fn properties(&self, addr: &InterfaceAddr) -> Option<&LinkProperties> {
        let at = self.links.iter().position(|link| link.name == addr.interface())?;
        self.properties.get(at)
    }
}

/// Reason for the order of an address, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum AddrGroup {
    DefaultRoute,
    Kind(InterfaceKind),
    LinkLocal,
    Loopback,
}

/// Returns the first of these addresses of the same family usable without naming an interface, or
/// else the first of the family.
fn best_of_family(
    addrs: impl Iterator<Item = SocketAddr> + Clone,
    like: &SocketAddr,
) -> Option<SocketAddr> {
    let mut family = addrs.filter(|addr| addr.is_ipv4() == like.is_ipv4());
    let is_global = |addr: &SocketAddr| match addr {
        SocketAddr::V4(_) => true,
        SocketAddr::V6(addr) => !addr.ip().is_unicast_link_local(),
    };
    family.clone().find(is_global).or_else(|| family.next())
}

/// Usable address of an interface.
#[derive(Clone, Debug)]
pub(super) struct UsableAddr {
    pub(super) addr: InterfaceAddr,
    /// Card of the interface.
    pub(super) nic: Option<Nic>,
    /// Reason for the place in the order.
    group: AddrGroup,
    speed: u64,
}

/// Reason for the lack of interfaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NoInterface {
    /// The list cannot be read.
    Failed(Error),
    /// The user's choice matches none. The text names the variable.
    Chosen(String),
    /// None is in state up.
    NoneUp,
}

impl From<Error> for NoInterface {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Interfaces {
    /// Creates the interfaces of a user's choice. The addresses of cards on the bus are reported
    /// only on request.
    pub fn new(choice: InterfaceChoice, has_pci: bool) -> Self {
        Self { choice, has_pci, ..Self::default() }
    }

    /// Fails with a message for the user if the choice is malformed.
    pub(super) fn check(&self) -> core::result::Result<(), String> {
        self.choice.check()
    }

    /// Forgets all properties, so they are read again.
    pub(super) fn rescan(&self) {
        if let Some(mut cache) = self.try_lock() {
            *cache = Cache::default();
        }
    }

    /// Returns the chosen addresses of interfaces in state up, best first.
    pub(super) fn usable(&self) -> core::result::Result<Vec<UsableAddr>, NoInterface> {
        self.usable_of(&InterfaceList::read()?)
    }

    fn usable_of(
        &self,
        list: &InterfaceList,
    ) -> core::result::Result<Vec<UsableAddr>, NoInterface> {
        let known = self.known(&list.links);
        let is_original = self.choice.is_original();
        let routes = if is_original { Arc::default() } else { self.routes() };
        let mut usable = Vec::new();
        // Of equal ones the latest is first.
        for addr in list.addrs.iter().rev() {
            let Some(position) = self.choice.position(addr) else { continue };
            let properties = known.properties(addr).cloned().unwrap_or_default();
            let by_interface = match routes.interface(addr.addr.is_ipv4()) {
                Some(name) if name == addr.interface() => AddrGroup::DefaultRoute,
                _ => AddrGroup::Kind(properties.kind),
            };
            let group = match () {
                () if addr.is_loopback() => AddrGroup::Loopback,
                () if addr.is_link_local() => AddrGroup::LinkLocal,
                () => by_interface,
            };
            let groups = match is_original {
                true => None,
                false => Some((group, by_interface)),
            };
            let order = (
                position,
                addr.is_loopback(),
                groups,
                Reverse(properties.speed),
                addr.addr.is_ipv6(),
            );
            let LinkProperties { nic, speed, .. } = properties;
            usable.push((order, UsableAddr { addr: addr.clone(), nic, group, speed }));
        }
        // Stable, so that equals keep the order they have.
        usable.sort_by_key(|(order, _)| *order);
        match (usable.is_empty(), list.addrs.is_empty()) {
            (true, true) => Err(NoInterface::NoneUp),
            (true, false) => Err(NoInterface::Chosen(self.describe_lack(list))),
            _ => Ok(usable.into_iter().map(|(_, usable)| usable).collect()),
        }
    }

    /// Returns the interface with this address, and its card.
    pub(super) fn find(&self, ip: IpAddr) -> Result<Option<(InterfaceAddr, Option<Nic>)>> {
        let list = InterfaceList::read()?;
        Ok(list.find(ip).map(|addr| {
            let known = self.known(&list.links);
            (addr.clone(), known.properties(addr).and_then(|properties| properties.nic.clone()))
        }))
    }

    /// Returns an address for connections of peers to a socket bound to this one: for the wildcard
    /// address, the address of the best interface of its family.
    pub fn address_for_peers(&self, bound: SocketAddr) -> SocketAddr {
        if !bound.ip().is_unspecified() {
            return bound;
        }
        let usable = self.usable().unwrap_or_default();
        match best_of_family(usable.iter().map(|usable| usable.addr.addr), &bound) {
            Some(mut addr) => {
                addr.set_port(bound.port());
                addr
            }
            None => bound,
        }
    }

    /// Returns lines with the reason for the order of these addresses, and for the absence of
    /// others.
    pub(super) fn explain(&self, usable: &[UsableAddr]) -> Vec<String> {
        self.explain_of(usable, &InterfaceList::read().unwrap_or_default())
    }

    fn explain_of(&self, usable: &[UsableAddr], list: &InterfaceList) -> Vec<String> {
        let mut lines: Vec<_> = usable
            .iter()
            .enumerate()
            .map(|(at, usable)| {
                let InterfaceAddr { name, addr, .. } = &usable.addr;
                let why = self.describe_order(usable);
                format!("interface {}: {name} {}: {why}", at + 1, addr.ip())
            })
            .collect();
        let variable = self.choice.variable();
        let is_missing =
            |addr: &&InterfaceAddr| !usable.iter().any(|usable| usable.addr.addr == addr.addr);
        lines.extend(list.addrs.iter().filter(is_missing).map(|addr| {
            let why = match self.choice.position(addr) {
                None if addr.is_usual() => format!("not in {variable}"),
                None if addr.is_point_to_point => {
                    format!("a point-to-point interface not named in {variable}")
                }
                None => format!("an address of the loopback not named in {variable}"),
                Some(_) => "not of the requested addr_format".into(),
            };
            format!("interface {} {} is not used: {why}", addr.name, addr.addr.ip())
        }));
        lines
    }

    fn describe_order(&self, usable: &UsableAddr) -> String {
        let speed = usable.speed;
        let order = match usable.group {
            _ if self.choice.is_original() => format!("{speed} Mb/s, in the original's order"),
            AddrGroup::DefaultRoute => "the interface with the default route".into(),
            AddrGroup::Kind(InterfaceKind::Device) => format!("a device of {speed} Mb/s"),
            AddrGroup::Kind(InterfaceKind::Virtual) => "without a device".into(),
            AddrGroup::Kind(InterfaceKind::Container) => {
                "a network of containers or virtual machines, with the same addresses on other \
                 hosts"
                    .into()
            }
            AddrGroup::LinkLocal => "an address of its link alone".into(),
            AddrGroup::Loopback => "the loopback reaches no other host".into(),
        };
        match self.choice.includes() {
            true => format!("{order}; named in {}", self.choice.variable()),
            false => order,
        }
    }

    /// Describes a choice without any interface, for the user.
    fn describe_lack(&self, list: &InterfaceList) -> String {
        let there = list.addrs.iter().map(|addr| format!("{} {}", addr.name, addr.addr.ip()));
        let there = there.collect::<Vec<_>>().join(", ");
        let unmatched: Vec<_> = self.choice.unmatched(&list.addrs).collect();
        let variable = self.choice.variable();
        match unmatched.is_empty() {
            true => format!("{variable} excludes all interfaces; there are: {there}"),
            false => {
                let unmatched = unmatched.join(",");
                format!("{variable}: no interface is \"{unmatched}\"; there are: {there}")
            }
        }
    }

    /// Returns the cache, without waiting: a forked process may have inherited a locked mutex.
    fn try_lock(&self) -> Option<MutexGuard<'_, Cache>> {
        match self.cache.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the properties of these interfaces, reading them if the interfaces have changed.
    fn known(&self, links: &[Link]) -> Arc<KnownLinks> {
        if let Some(cache) = self.try_lock() {
            if cache.links.links == links {
                return cache.links.clone();
            }
        }
        let known = Arc::new(KnownLinks::read(&self.files, links, self.has_pci));
        if let Some(mut cache) = self.try_lock() {
            *cache = Cache { links: known.clone(), routes: None };
        }
        known
    }

    /// Returns the default routes, reading them if they are not fresh.
    fn routes(&self) -> Arc<DefaultRoutes> {
        let cached = self.try_lock().and_then(|cache| cache.routes.clone());
        if let Some((_, routes)) = cached.filter(|(since, _)| since.elapsed() < FRESH) {
            return routes;
        }
        let routes = Arc::new(self.files.default_routes());
        if let Some(mut cache) = self.try_lock() {
            cache.routes = Some((Instant::now(), routes.clone()));
        }
        routes
    }
}

#[cfg(test)]
mod tests;
