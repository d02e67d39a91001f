//! fi_getinfo for providers with IP addresses.
use crate::abi::{
    FI_ADDR_STR, FI_FORMAT_UNSPEC, FI_NUMERICHOST, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOURCE,
};
use crate::error::{Error, Result};
use crate::info::check::{ProviderOffer, alter, check, fit_comm_caps};
use crate::info::owned::{InfoBuf, InfoChain, InfoRef};
use crate::info::query::InfoQuery;
use crate::info::{addr, tostr};
use core::ffi::{CStr, c_int};
use core::ptr;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Properties of an IP provider.
pub struct IpProvider<'a> {
    /// Name of the provider, also the name of fabric and domain for addresses belonging to no
    /// interface.
    pub name: &'a CStr,
    /// Offers of the provider for each kind of endpoint, in the order of the answer.
    pub offers: &'a [ProviderOffer],
    /// The one interface to use, from `FI_<PROV>_IFACE`.
    pub iface: Option<&'a str>,
    /// Callback with a line for every reason for a missing info.
    pub report: &'a dyn Fn(&str),
}

/// Returns the infos of an IP provider (fi_getinfo(3)), without names and version of the provider,
/// added by the core.
///
/// Without addresses there is one info for each offer and each address of this host. With a source,
/// or a destination from which the kernel determines one, there is one for each offer. Fails with
/// `-FI_ENODATA` if nothing matches, after calls of `report` with the reasons.
pub fn ip_getinfo(prov: &IpProvider<'_>, query: &InfoQuery<'_>) -> Result<InfoChain> {
    let (version, hints) = (query.version, query.hints);
    let ends = IpEnds::find(prov, query)?;
    let ifaces = ends.ifaces(prov)?;
    let mut chain = InfoChain::new();
    for offer in prov.offers {
        let kind = tostr::ep_type(offer.most.ep().r#type.raw());
        if let Some(hints) = hints {
            let mismatches = check(version, offer, hints);
            if !mismatches.is_empty() {
                for mismatch in mismatches {
                    (prov.report)(&format!("{kind} refused: {mismatch}"));
                }
                continue;
            }
        }
        for iface in &ifaces {
            let mut info = alter(version, offer, hints)?;
            let loopback = iface.addr.is_some_and(|addr| addr.ip().is_loopback());
            if let Err(mismatch) = fit_comm_caps(&mut info, loopback, ends.named(), hints) {
                (prov.report)(&format!("{kind} on {} refused: {mismatch}", iface.name));
                continue;
            }
            iface.describe(&mut info, ends.dest)?;
            if let Some(hints) = hints {
                info.set_handle(hints.handle());
            }
            chain.push(info);
        }
    }
    if chain.is_empty() { Err(Error::NODATA) } else { Ok(chain) }
}

/// The addresses an application named.
struct IpEnds {
    src: Option<SocketAddr>,
    dest: Option<SocketAddr>,
    /// The address format the application takes.
    format: u32,
}

impl IpEnds {
    fn find(prov: &IpProvider<'_>, query: &InfoQuery<'_>) -> Result<Self> {
        let InfoQuery { node, service, flags, hints, .. } = *query;
        let mut format = hints.map_or(FI_FORMAT_UNSPEC as u32, InfoRef::addr_format);
        let of_hints = |addr: Option<&[u8]>| match addr {
            Some(addr) => read_addr(addr, format).map(Some).ok_or_else(|| {
                (prov.report)("refused: an address in the hints is no address of its addr_format");
                Error::NODATA
            }),
            None => Ok(None),
        };
        let mut src = of_hints(hints.and_then(InfoRef::src_addr))?;
        let mut dest = of_hints(hints.and_then(InfoRef::dest_addr))?;
        if node.is_some() || service.is_some() {
            let found = resolve(node, service, flags, format).map_err(|why| {
                let text = |string: Option<&CStr>| {
                    string.map_or("(null)".into(), |string| string.to_string_lossy().into_owned())
                };
                (prov.report)(&format!(
                    "refused: node {} service {}: {why}",
                    text(node),
                    text(service)
                ));
                why.error()
            })?;
            if flags & FI_SOURCE != 0 {
                src = Some(found);
            } else {
                dest = Some(found);
            }
        } else if flags & FI_SOURCE != 0 {
            (prov.report)("refused: FI_SOURCE needs a node or a service");
            return Err(Error::INVAL);
        }
        if format == FI_ADDR_STR as u32 && (src.is_some() || dest.is_some()) {
            // It was the format of what came in; sockets use the real one.
            format = FI_FORMAT_UNSPEC as u32;
        }
        let ends = Self { src, dest, format };
        for addr in [ends.src, ends.dest].iter().flatten() {
            if !addr::format_takes(format, addr) {
                (prov.report)(&format!(
                    "refused: addr_format: wanted {}, have {}",
                    tostr::addr_format(format),
                    addr::to_string(addr)
                ));
                return Err(Error::NODATA);
            }
        }
        Ok(ends)
    }

    /// Returns true if the application named any address.
    fn named(&self) -> bool {
        self.src.is_some() || self.dest.is_some()
    }

    /// The local addresses to make infos of.
    fn ifaces(&self, prov: &IpProvider<'_>) -> Result<Vec<Iface>> {
        let src = self.src.or_else(|| self.dest.and_then(|dest| source_for(&dest)));
        if let Some(src) = src {
            return Ok(vec![Iface::of(src, prov.name)?]);
        }
        if self.dest.is_some() {
            // No route there now; the provider may still be opened.
            return Ok(vec![Iface::nowhere(prov.name)]);
        }
        let ifaces = usable(Iface::all()?, prov.iface, prov.report);
        if ifaces.is_empty() {
            (prov.report)("refused: no network interface is up, not even the loopback");
            return Err(Error::NODATA);
        }
        let (takes, not): (Vec<_>, Vec<_>) = ifaces.into_iter().partition(|iface| {
            iface.addr.is_some_and(|addr| addr::format_takes(self.format, &addr))
        });
        if takes.is_empty() || self.format == FI_ADDR_STR as u32 {
            let have = not.iter().chain(&takes).filter_map(|iface| iface.addr);
            let have = have.map(|addr| addr::to_string(&addr)).collect::<Vec<_>>().join(", ");
            (prov.report)(&format!(
                "refused: addr_format: wanted {}, have {have}",
                tostr::addr_format(self.format)
            ));
            return Err(Error::NODATA);
        }
        Ok(takes)
    }
}

/// Returns the addresses of interfaces in state up, each with its interface's name, in the order of
/// the kernel.
pub fn interfaces() -> Vec<(String, SocketAddr)> {
    let all = Iface::all().unwrap_or_default().into_iter();
    all.filter_map(|iface| Some((iface.name, iface.addr?))).collect()
}

/// Returns an address by which peers can connect to a socket bound to this one: for the wildcard
/// address, the address of the best interface of its family.
pub fn address_for_peers(bound: SocketAddr) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let all = Iface::all().unwrap_or_default();
    let ours = usable(all, None, &|_| {}).into_iter().filter_map(|iface| iface.addr);
    match best_of_family(ours, &bound) {
        Some(mut addr) => {
            addr.set_port(bound.port());
            addr
        }
        None => bound,
    }
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

/// An address in hints: a socket address, or a string if they say so.
fn read_addr(bytes: &[u8], format: u32) -> Option<SocketAddr> {
    if format == FI_ADDR_STR as u32 {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        return addr::from_string(core::str::from_utf8(&bytes[..end]).ok()?);
    }
    addr::from_sock(bytes)
}

/// Reason for a failed resolution of node and service: a readable text, and an error for the call.
#[derive(Debug)]
pub struct Unresolved {
    why: String,
    error: Error,
}

impl Unresolved {
    /// -FI_ENODATA, or -FI_ENOMEM if there was no memory for an answer.
    pub fn error(&self) -> Error {
        self.error
    }
}

impl From<&str> for Unresolved {
    fn from(why: &str) -> Self {
        Self { why: why.to_owned(), error: Error::NODATA }
    }
}

impl core::fmt::Display for Unresolved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.why)
    }
}

/// The address of a node and service, the first one the system knows. `flags`:
/// FI_NUMERICHOST, FI_SOURCE.
pub fn resolve(
    node: Option<&CStr>,
    service: Option<&CStr>,
    flags: u64,
    format: u32,
) -> core::result::Result<SocketAddr, Unresolved> {
    if let Some(addr) = node.and_then(|node| node.to_str().ok()).and_then(addr::from_string) {
        let port = match service.and_then(|service| service.to_str().ok()) {
            Some(service) if addr.port() == 0 => {
                service.parse().map_err(|_| "the service is no port number")?
            }
            _ => addr.port(),
        };
        return Ok(SocketAddr::new(addr.ip(), port));
    }
    // SAFETY: numbers and null pointers.
    let mut ask: libc::addrinfo = unsafe { core::mem::zeroed() };
    ask.ai_socktype = libc::SOCK_STREAM;
    ask.ai_family = match format as c_int {
        FI_SOCKADDR_IN => libc::AF_INET,
        FI_SOCKADDR_IN6 => libc::AF_INET6,
        _ => libc::AF_UNSPEC,
    };
    if flags & FI_NUMERICHOST != 0 {
        ask.ai_flags |= libc::AI_NUMERICHOST;
    }
    if flags & FI_SOURCE != 0 {
        ask.ai_flags |= libc::AI_PASSIVE;
    }
    let pointer = |string: Option<&CStr>| string.map_or(ptr::null(), CStr::as_ptr);
    let mut list = ptr::null_mut();
    // SAFETY: C strings or null, and a place for the answer.
    let ret = unsafe { libc::getaddrinfo(pointer(node), pointer(service), &ask, &mut list) };
    if ret != 0 {
        // SAFETY: the answer is a constant string for every code.
        let text = unsafe { CStr::from_ptr(libc::gai_strerror(ret)) };
        let is_memory = ret == libc::EAI_MEMORY;
        let error = if is_memory { Error::NOMEM } else { Error::NODATA };
        return Err(Unresolved { why: text.to_string_lossy().into_owned(), error });
    }
    let mut found = None;
    let mut next = list;
    while found.is_none() && !next.is_null() {
        // SAFETY: an entry of the list that getaddrinfo made; its address is
        // as long as it says.
        unsafe {
            let entry = &*next;
            found = sock_addr(entry.ai_addr, entry.ai_addrlen as usize);
            next = entry.ai_next;
        }
    }
    // SAFETY: made by getaddrinfo, and not used any more.
    unsafe { libc::freeaddrinfo(list) };
    found.ok_or_else(|| "no IP address".into())
}

/// # Safety
/// `at` is null or valid for `len` bytes.
unsafe fn sock_addr(at: *const libc::sockaddr, len: usize) -> Option<SocketAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: by this function's contract.
    addr::from_sock(unsafe { core::slice::from_raw_parts(at.cast(), len) })
}

/// The source the system would use for a destination; no packet is sent.
fn source_for(dest: &SocketAddr) -> Option<SocketAddr> {
    let any: IpAddr = match dest {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // The port plays no role, but the system refuses port 0 in some cases.
    let mut dest = *dest;
    dest.set_port(dest.port().max(1));
    socket.connect(dest).ok()?;
    let mut source = socket.local_addr().ok()?;
    source.set_port(0);
    Some(source)
}

/// Returns the index of the interface with this address; 0 if there is none.
pub fn interface_of(addr: IpAddr) -> u32 {
    let mut all = Iface::all().unwrap_or_default().into_iter();
    let found = all.find(|iface| iface.addr.is_some_and(|a| a.ip() == addr));
    let name = found.and_then(|iface| CString::new(iface.name).ok());
    // SAFETY: a C string, which outlives the call.
    name.map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) })
}

/// Local address with its interface.
#[derive(Clone, Debug)]
struct Iface {
    /// The interface, the name of the domain.
    name: String,
    /// The network, the name of the fabric.
    network: String,
    addr: Option<SocketAddr>,
    /// Link speed in Mbit/s.
    speed: u64,
    point_to_point: bool,
}

impl Iface {
    /// Returns all addresses of interfaces in state up, in the order of the kernel, or none if it
    /// does not report them. Fails with -FI_ENOMEM if there is no memory for the answer.
    fn all() -> Result<Vec<Self>> {
        let mut list = ptr::null_mut();
        // SAFETY: a place for the answer.
        if unsafe { libc::getifaddrs(&mut list) } != 0 {
            let error = Error::last_os();
            return if error == Error::NOMEM { Err(error) } else { Ok(Vec::new()) };
        }
        let mut all = Vec::new();
        let mut next = list;
        while !next.is_null() {
            // SAFETY: an entry of the list that getifaddrs made: its name is a
            // C string, and address and mask have the size of their family.
            unsafe {
                let entry = &*next;
                next = entry.ifa_next;
                let flags = entry.ifa_flags as c_int;
                let Some(len) = entry.ifa_addr.as_ref().and_then(sock_len) else { continue };
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
                let name = CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
                // The system answers slowly: it is asked once for each interface.
                let known = all.iter().find(|other: &&Self| other.name == name);
                all.push(Self {
                    network: network(addr.ip(), mask),
                    speed: match known {
                        Some(other) => other.speed,
                        None if flags & libc::IFF_LOOPBACK != 0 => UNKNOWN_SPEED,
                        None => link_speed(&name),
                    },
                    name,
                    addr: Some(addr),
                    point_to_point: flags & libc::IFF_POINTOPOINT != 0,
                });
            }
        }
        // SAFETY: made by getifaddrs, and not used any more.
        unsafe { libc::freeifaddrs(list) };
        Ok(all)
    }

    /// Returns the interface of a given source address.
    fn of(src: SocketAddr, prov: &CStr) -> Result<Self> {
        let found = Self::all()?
            .into_iter()
            .find(|iface| iface.addr.is_some_and(|addr| addr.ip() == src.ip()));
        Ok(Self { addr: Some(src), ..found.unwrap_or_else(|| Self::nowhere(prov)) })
    }

    /// No interface: the provider's own names stand in.
    fn nowhere(prov: &CStr) -> Self {
        let name = prov.to_string_lossy().into_owned();
        Self { network: name.clone(), name, addr: None, speed: 0, point_to_point: false }
    }

    fn describe(&self, info: &mut InfoBuf, dest: Option<SocketAddr>) -> Result {
        let c_string = |name: &str| CString::new(name).map_err(|_| Error::INVAL);
        info.set_domain_name(&c_string(&self.name)?)?;
        info.set_fabric_name(&c_string(&self.network)?)?;
        let format =
            self.addr.or(dest).map_or(FI_FORMAT_UNSPEC as u32, |addr| addr::format_of(&addr));
        info.set_addr_format(format);
        let bytes = self.addr.map(|addr| addr::to_sock(&addr));
        info.set_src_addr(bytes.as_ref().map(addr::SockBytes::as_bytes))?;
        let bytes = dest.map(|addr| addr::to_sock(&addr));
        info.set_dest_addr(bytes.as_ref().map(addr::SockBytes::as_bytes))
    }
}

fn sock_len(addr: &libc::sockaddr) -> Option<usize> {
    match i32::from(addr.sa_family) {
        libc::AF_INET => Some(size_of::<libc::sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<libc::sockaddr_in6>()),
        _ => None,
    }
}

/// Returns the interfaces to offer, best first: by speed, IPv4 before IPv6, in reverse kernel
/// order. Loopback comes behind all others, with only its well-known addresses.
fn usable(all: Vec<Iface>, wanted: Option<&str>, report: &dyn Fn(&str)) -> Vec<Iface> {
    if let Some(wanted) = wanted {
        let named: Vec<_> =
            all.iter().rev().filter(|iface| iface.name == wanted).cloned().collect();
        if !named.is_empty() {
            return ranked(named);
        }
        report(&format!("interface {wanted} is not up or has no address; using all others"));
    }
    let is_loopback = |iface: &&Iface| iface.addr.is_some_and(|addr| is_the_loopback(addr.ip()));
    let others = all
        .iter()
        .rev()
        .filter(|iface| iface.name != "lo" && !is_loopback(iface) && !iface.point_to_point);
    let mut list = ranked(others.cloned().collect());
    list.extend(ranked(all.iter().filter(is_loopback).cloned().collect()));
    list
}

fn ranked(mut ifaces: Vec<Iface>) -> Vec<Iface> {
    // Stable, so that equals keep the order they have.
    ifaces.sort_by_key(|iface| {
        (core::cmp::Reverse(iface.speed), iface.addr.is_some_and(|addr| addr.is_ipv6()))
    });
    ifaces
}

fn is_the_loopback(ip: IpAddr) -> bool {
    ip == IpAddr::V4(Ipv4Addr::LOCALHOST) || ip == IpAddr::V6(Ipv6Addr::LOCALHOST)
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

/// Assumed link speed if unknown, in Mbit/s: a modest one.
const UNKNOWN_SPEED: u64 = 100;

/// Link speed in Mbit/s.
fn link_speed(name: &str) -> u64 {
    let mut text = [0; 20];
    let read = File::open(format!("/sys/class/net/{name}/speed"))
        // Reads "-1" or fails to read for what has no speed.
        .and_then(|mut file| file.read(&mut text));
    let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or("");
    text.trim().parse().unwrap_or(UNKNOWN_SPEED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::*;
    use core::cell::RefCell;

    fn offer() -> ProviderOffer {
        let mut most = InfoBuf::new().unwrap();
        let caps = FI_MSG | FI_SEND | FI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SOURCE;
        most.set_caps(caps);
        most.tx_mut().caps = FI_MSG | FI_SEND;
        most.tx_mut().size = 1024;
        most.rx_mut().caps = FI_MSG | FI_RECV | FI_SOURCE;
        most.rx_mut().size = 1024;
        most.edit_ep(|ep| ep.r#type = fi_ep_type::FI_EP_RDM.into());
        most.edit_domain(|domain| domain.threading = fi_threading::FI_THREAD_SAFE.into());
        ProviderOffer { most, tx_size: 256, rx_size: 256, costly_order: 0 }
    }

    type IpAnswer = (Result<InfoChain>, Vec<String>);

    fn ask(node: Option<&CStr>, service: Option<&CStr>, flags: u64, hints: &InfoBuf) -> IpAnswer {
        let reported = RefCell::new(Vec::new());
        let offers = [offer()];
        let prov = IpProvider {
            name: c"tcp",
            offers: &offers,
            iface: None,
            report: &|line| reported.borrow_mut().push(line.to_owned()),
        };
        let of_hints = InfoQuery::for_hints(crate::info::API_VERSION, hints);
        let chain = ip_getinfo(&prov, &InfoQuery { node, service, flags, ..of_hints });
        (chain, reported.into_inner())
    }

    fn addresses(chain: Result<InfoChain>) -> Vec<(String, String)> {
        let text = |addr: Option<&[u8]>| {
            addr.and_then(addr::from_sock).map_or(String::new(), |addr| addr.to_string())
        };
        chain.unwrap().iter().map(|info| (text(info.src_addr()), text(info.dest_addr()))).collect()
    }

    #[test]
    fn a_wildcard_address_is_named_by_the_best_one_of_its_family() {
        let addrs = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let ours: Vec<SocketAddr> =
            addrs(&["[fe80::1]:0", "192.0.2.1:0", "[2001:db8::1]:0", "127.0.0.1:0", "[::1]:0"]);
        let best = |like: &str| best_of_family(ours.iter().copied(), &like.parse().unwrap());
        assert_eq!(best("0.0.0.0:1"), Some(ours[1]));
        assert_eq!(best("[::]:1"), Some(ours[2]));
        assert_eq!(
            best_of_family(ours[..1].iter().copied(), &"[::]:1".parse().unwrap()),
            Some(ours[0])
        );
        assert_eq!(best_of_family(ours[..1].iter().copied(), &"0.0.0.0:1".parse().unwrap()), None);
        let bound = "192.0.2.7:5".parse().unwrap();
        assert_eq!(address_for_peers(bound), bound);
        let named = address_for_peers("0.0.0.0:5".parse().unwrap());
        assert_eq!(named.port(), 5);
    }

    #[test]
    fn without_addresses_there_is_an_info_for_each_and_loopback_comes_last() {
        let chain = ask(None, None, 0, &InfoBuf::new().unwrap()).0.unwrap();
        let names: Vec<_> = chain.iter().map(|info| info.fabric_name().unwrap()).collect();
        let lo = names.iter().position(|name| *name == c"127.0.0.1/32").unwrap();
        assert!(names[lo + 1..].iter().all(|name| *name == c"::1/128"), "{names:?}");
    }

    #[test]
    fn loopback_reaches_only_this_host() {
        let mut hints = InfoBuf::new().unwrap();
        for (node, flags) in [(None, 0), (Some(c"127.0.0.1"), 0), (Some(c"127.0.0.1"), FI_SOURCE)] {
            let chain = ask(node, None, flags, &hints).0.unwrap();
            let lo = chain.iter().find(|info| info.domain_name() == Some(c"lo")).unwrap();
            assert_eq!(lo.caps() & (FI_LOCAL_COMM | FI_REMOTE_COMM), FI_LOCAL_COMM);
        }
        hints.set_caps(FI_MSG | FI_REMOTE_COMM);
        let (chain, reported) = ask(None, None, 0, &hints);
        // A host may have nothing but its loopback.
        let chain = chain.unwrap_or_default();
        assert!(chain.iter().all(|info| info.domain_name() != Some(c"lo")));
        assert!(reported.iter().any(|line| line.contains("FI_REMOTE_COMM")), "{reported:?}");
        // An application naming the address and requesting both knows its reach.
        let chain = ask(Some(c"127.0.0.1"), None, FI_SOURCE, &hints).0.unwrap();
        assert!(chain.iter().all(|info| info.caps() & FI_REMOTE_COMM != 0));
    }

    #[test]
    fn a_node_is_the_destination_or_with_fi_source_the_source() {
        let hints = InfoBuf::new().unwrap();
        let pair = |src: &str, dest: &str| vec![(src.to_owned(), dest.to_owned())];
        let node = Some(c"127.0.0.1");
        let port = Some(c"7000");
        assert_eq!(addresses(ask(node, port, 0, &hints).0), pair("127.0.0.1:0", "127.0.0.1:7000"));
        assert_eq!(addresses(ask(node, port, FI_SOURCE, &hints).0), pair("127.0.0.1:7000", ""));
        let string = Some(c"fi_sockaddr_in://127.0.0.1:5");
        assert_eq!(addresses(ask(string, None, 0, &hints).0), pair("127.0.0.1:0", "127.0.0.1:5"));
    }

    #[test]
    fn hints_fill_the_address_missing_from_node() {
        let mut hints = InfoBuf::new().unwrap();
        hints.set_addr_format(FI_SOCKADDR_IN as u32);
        let local = addr::to_sock(&"127.0.0.1:3".parse().unwrap());
        hints.set_src_addr(Some(local.as_bytes())).unwrap();
        assert_eq!(
            addresses(ask(Some(c"127.0.0.1"), Some(c"80"), 0, &hints).0),
            [("127.0.0.1:3".to_owned(), "127.0.0.1:80".to_owned())]
        );
        hints.set_src_addr(Some(&local.as_bytes()[..4])).unwrap();
        assert_eq!(ask(None, None, 0, &hints).0.unwrap_err(), Error::NODATA);
    }

    #[test]
    fn an_address_of_no_interface_has_the_providers_names() {
        let hints = InfoBuf::new().unwrap();
        let chain = ask(Some(c"198.51.100.7"), Some(c"7000"), FI_SOURCE, &hints).0.unwrap();
        let info = chain.iter().next().unwrap();
        assert_eq!((info.domain_name(), info.fabric_name()), (Some(c"tcp"), Some(c"tcp")));
    }

    #[test]
    fn fi_source_alone_is_an_error() {
        let (chain, reported) = ask(None, None, FI_SOURCE, &InfoBuf::new().unwrap());
        assert_eq!((chain.unwrap_err(), reported.len()), (Error::INVAL, 1));
    }

    #[test]
    fn every_refusal_has_a_reason() {
        let mut hints = InfoBuf::new().unwrap();
        hints.set_caps(FI_MSG | FI_ATOMIC);
        hints.tx_mut().size = 4096;
        let (chain, reported) = ask(None, None, 0, &hints);
        assert_eq!(chain.unwrap_err(), Error::NODATA);
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert_eq!(reported[0], "FI_EP_RDM refused: caps: FI_ATOMIC is not offered");
        assert_eq!(reported[1], "FI_EP_RDM refused: tx_attr->size: wanted 4096, have 1024");
    }

    #[test]
    fn networks_are_named_by_prefix() {
        let mask = |mask: &str| Some(mask.parse().unwrap());
        let ip = |ip: &str| ip.parse().unwrap();
        assert_eq!(network(ip("10.1.0.7"), mask("255.255.255.252")), "10.1.0.4/30");
        assert_eq!(network(ip("127.0.0.1"), mask("255.0.0.0")), "127.0.0.1/32");
        assert_eq!(network(ip("fe80::fc:1"), mask("ffff:ffff:ffff:ffff::")), "fe80::/64");
    }
}
