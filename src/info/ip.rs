//! fi_getinfo for providers with IP addresses.
mod choice;
mod interfaces;
mod list;
mod system;

use crate::abi::{
    FI_ADDR_STR, FI_FORMAT_UNSPEC, FI_NUMERICHOST, FI_RESCAN, FI_SOCKADDR_IN, FI_SOCKADDR_IN6,
    FI_SOURCE,
};
use crate::error::{Error, Result};
use crate::info::check::{ProviderOffer, alter, check, fit_comm_caps};
use crate::info::nic::Nic;
use crate::info::owned::{InfoBuf, InfoChain, InfoRef};
use crate::info::query::InfoQuery;
use crate::info::{addr, tostr};
use core::ffi::{CStr, c_int};
use core::ptr;
use interfaces::{NoInterface, UsableAddr};
use list::{InterfaceAddr, InterfaceList, sock_addr};
use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

pub use choice::InterfaceChoice;
pub use interfaces::Interfaces;

/// Properties of an IP provider.
pub struct IpProvider<'a> {
    /// Name of the provider, also the name of fabric and domain for addresses belonging to no
    /// interface.
    pub name: &'a CStr,
    /// Offers of the provider for each kind of endpoint, in the order of the answer.
    pub offers: &'a [ProviderOffer],
    /// Interfaces of the provider, chosen by `FI_<PROV>_IFACE`.
    pub interfaces: &'a Interfaces,
    /// Callback with a line for every reason for a missing info.
    pub report: &'a dyn Fn(&str),
    /// Callback with a line about a choice of interfaces without any.
    pub warn: &'a dyn Fn(&str),
    /// Callback with a line for each interface, with the reason for its place in the order, if the
    /// lines are wanted.
    pub explain: Option<&'a dyn Fn(&str)>,
}

/// Returns the infos of an IP provider (fi_getinfo(3)), without names and version of the provider,
/// added by the core.
///
/// Without addresses there is one info for each offer and each address of this host. With a source,
/// or a destination from which the kernel determines one, there is one for each offer. Fails with
/// `-FI_ENODATA` if nothing matches, after calls of `report` with the reasons, and with `-FI_EINVAL`
/// for a malformed choice of interfaces.
pub fn ip_getinfo(prov: &IpProvider<'_>, query: &InfoQuery<'_>) -> Result<InfoChain> {
    let (version, hints) = (query.version, query.hints);
    prov.interfaces.check().map_err(|why| {
        (prov.warn)(&why);
        Error::INVAL
    })?;
    if query.flags & FI_RESCAN != 0 {
        prov.interfaces.rescan();
    }
    let ends = IpEnds::find(prov, query)?;
    let locals = ends.local_addrs(prov)?;
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
        for local in &locals {
            let mut info = alter(version, offer, hints)?;
            let loopback = local.addr.is_some_and(|addr| addr.ip().is_loopback());
            if let Err(mismatch) = fit_comm_caps(&mut info, loopback, ends.named(), hints) {
                (prov.report)(&format!("{kind} on {} refused: {mismatch}", local.name));
                continue;
            }
            local.describe(&mut info, ends.dest)?;
            if let Some(hints) = hints {
                info.tx_mut().tclass = hints.tx().map_or(0, |tx| tx.tclass);
                let tclass = hints.domain().map_or(0, |domain| domain.tclass);
                info.edit_domain(|domain| domain.tclass = tclass);
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

    /// Returns the local addresses to make infos of.
    fn local_addrs(&self, prov: &IpProvider<'_>) -> Result<Vec<LocalAddr>> {
        let src = self.src.or_else(|| self.dest.and_then(|dest| source_for(&dest)));
        if let Some(src) = src {
            return Ok(vec![LocalAddr::of(src, prov)?]);
        }
        if self.dest.is_some() {
            // No route there now; the provider may still be opened.
            return Ok(vec![LocalAddr::nowhere(prov.name)]);
        }
        let usable = prov.interfaces.usable().map_err(|why| match why {
            NoInterface::Failed(error) => error,
            NoInterface::Chosen(why) => {
                (prov.warn)(&why);
                Error::NODATA
            }
            NoInterface::NoneUp => {
                (prov.report)("refused: no network interface is up, not even the loopback");
                Error::NODATA
            }
        })?;
        let (takes, not): (Vec<_>, Vec<_>) = usable
            .into_iter()
            .partition(|usable| addr::format_takes(self.format, &usable.addr.addr));
        if takes.is_empty() || self.format == FI_ADDR_STR as u32 {
            let have = not.iter().chain(&takes).map(|usable| addr::to_string(&usable.addr.addr));
            let have = have.collect::<Vec<_>>().join(", ");
            (prov.report)(&format!(
                "refused: addr_format: wanted {}, have {have}",
                tostr::addr_format(self.format)
            ));
            return Err(Error::NODATA);
        }
        if let Some(explain) = prov.explain {
            prov.interfaces.explain(&takes).iter().for_each(|line| explain(line));
        }
        Ok(takes.into_iter().map(LocalAddr::from).collect())
    }
}

/// Returns the addresses of interfaces in state up, each with its interface's name, in the order of
/// the kernel.
pub fn interfaces() -> Vec<(String, SocketAddr)> {
    let all = InterfaceList::read().unwrap_or_default().addrs;
    all.into_iter().map(|iface| (iface.name, iface.addr)).collect()
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
    let all = InterfaceList::read().unwrap_or_default();
    let name = all.find(addr).and_then(|iface| CString::new(iface.name.clone()).ok());
    // SAFETY: a C string, which outlives the call.
    name.map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) })
}

/// Local address of infos, with the names of its interface.
struct LocalAddr {
    /// The interface, the name of the domain.
    name: String,
    /// The network, the name of the fabric.
    network: String,
    addr: Option<SocketAddr>,
    /// Card of the interface.
    nic: Option<Nic>,
}

impl From<UsableAddr> for LocalAddr {
    fn from(UsableAddr { addr, nic, .. }: UsableAddr) -> Self {
        Self { name: addr.name, network: addr.network, addr: Some(addr.addr), nic }
    }
}

impl LocalAddr {
    /// Returns a given source address with its interface.
    fn of(src: SocketAddr, prov: &IpProvider<'_>) -> Result<Self> {
        let found = prov.interfaces.find(src.ip())?;
        let of_interface = |(addr, nic): (InterfaceAddr, _)| Self {
            name: addr.name,
            network: addr.network,
            addr: None,
            nic,
        };
        let local = found.map_or_else(|| Self::nowhere(prov.name), of_interface);
        Ok(Self { addr: Some(src), ..local })
    }

    /// No interface: the provider's own names stand in.
    fn nowhere(prov: &CStr) -> Self {
        let name = prov.to_string_lossy().into_owned();
        Self { network: name.clone(), name, addr: None, nic: None }
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
        info.set_dest_addr(bytes.as_ref().map(addr::SockBytes::as_bytes))?;
        if let Some(nic) = &self.nic {
            info.set_nic(nic)?;
        }
        Ok(())
    }
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
            interfaces: &Interfaces::default(),
            report: &|line| reported.borrow_mut().push(line.to_owned()),
            warn: &|line| reported.borrow_mut().push(line.to_owned()),
            explain: None,
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
    fn every_rejection_has_a_reason() {
        let mut hints = InfoBuf::new().unwrap();
        hints.set_caps(FI_MSG | FI_ATOMIC);
        hints.tx_mut().size = 4096;
        let (chain, reported) = ask(None, None, 0, &hints);
        assert_eq!(chain.unwrap_err(), Error::NODATA);
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert_eq!(reported[0], "FI_EP_RDM refused: caps: FI_ATOMIC is not offered");
        assert_eq!(reported[1], "FI_EP_RDM refused: tx_attr->size: wanted 4096, have 1024");
    }
}
