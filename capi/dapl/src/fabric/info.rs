//! Infos, and addresses.
use super::calls::*;
use ofi::abi::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::size_of;
use std::ptr::{null, null_mut};

/// Info created by `fi_getinfo`, or a copy.
pub(crate) struct FabricInfo(pub(super) *mut fi_info);
// SAFETY: it is memory, and changed by its owner alone.
unsafe impl Send for FabricInfo {}

impl Drop for FabricInfo {
    fn drop(&mut self) {
        if let Some(calls) = calls() {
            // SAFETY: of fi_getinfo, fi_dupinfo or an event, and freed once.
            unsafe { (calls.freeinfo)(self.0) };
        }
    }
}

impl FabricInfo {
    /// Returns an info of connected endpoints with shared receives and remote access at this local
    /// address, of the first of these providers offering it.
    pub(crate) fn find(providers: &[&str], address: &str) -> Result<Self, Code> {
        let calls = calls().ok_or(FI_ENOSYS)?;
        let text = |text: &str| CString::new(text).map_err(|_| FI_EINVAL);
        let address = text(address)?;
        // One may be asked for by its name. Of several all are asked at once, for the library
        // warns of each question that has no answer.
        let only = if let [only] = providers { Some(text(only)?) } else { None };
        // SAFETY: null asks for an empty description.
        let hints = unsafe { (calls.dupinfo)(null()) };
        if hints.is_null() {
            return Err(FI_ENOMEM);
        }
        let hints = Self(hints);
        // SAFETY: an empty description has all of its parts; the string is one that
        // fi_freeinfo frees.
        unsafe {
            (*hints.0).caps = FI_MSG | FI_RMA;
            (*hints.0).mode = 0;
            (*(*hints.0).ep_attr).r#type = c_enum::from_raw(fi_ep_type::FI_EP_MSG as u32);
            (*(*hints.0).domain_attr).mr_mode =
                FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
            if let Some(only) = &only {
                (*(*hints.0).fabric_attr).prov_name = libc::strdup(only.as_ptr());
            }
        }
        let mut found = null_mut();
        // SAFETY: strings with their ends, and room for the answer.
        let answer = unsafe {
            (calls.getinfo)(API, address.as_ptr(), null(), FI_SOURCE, hints.0, &mut found)
        };
        code(answer)?;
        let all = Self(found);
        let found = providers
            .iter()
            .find_map(|name| all.list().find(|info| info.provider() == *name))
            .ok_or(FI_ENODATA)?
            .copy()?;
        // SAFETY: an info returned by the search has all of its parts. A provider omits unneeded
        // bits in its answer. A domain opened with this bit has regions addressed by peers by their
        // address, like segments of DAT.
        unsafe { (*(*found.0).domain_attr).mr_mode |= FI_MR_VIRT_ADDR };
        Ok(found)
    }

    /// Each description of a list.
    fn list(&self) -> impl Iterator<Item = std::mem::ManuallyDrop<Self>> {
        let mut at = self.0;
        std::iter::from_fn(move || {
            let this = (!at.is_null()).then_some(at)?;
            // SAFETY: a link of a list is null or another description, and the list is there.
            at = unsafe { (*this).next };
            Some(std::mem::ManuallyDrop::new(Self(this)))
        })
    }

    /// A copy.
    pub(crate) fn copy(&self) -> Result<Self, Code> {
        let calls = calls().ok_or(FI_ENOSYS)?;
        // SAFETY: a description that is there.
        let copy = unsafe { (calls.dupinfo)(self.0) };
        if copy.is_null() { Err(FI_ENOMEM) } else { Ok(Self(copy)) }
    }

    /// The bytes of the local address (`false`) or the peer's (`true`).
    pub(crate) fn address(&self, peer: bool) -> SocketAddress {
        // SAFETY: an address has the length that is said beside it.
        unsafe {
            let (at, length) = if peer {
                ((*self.0).dest_addr, (*self.0).dest_addrlen)
            } else {
                ((*self.0).src_addr, (*self.0).src_addrlen)
            };
            SocketAddress::read(at, length)
        }
    }

    /// Another local port.
    pub(crate) fn set_port(&mut self, port: u16) {
        let mut address = self.address(false);
        address.set_port(port);
        // SAFETY: it has the length that it was read with.
        unsafe {
            let length = (*self.0).src_addrlen.min(address.0.len());
            if !(*self.0).src_addr.is_null() {
                address.0.as_ptr().copy_to((*self.0).src_addr.cast(), length);
            }
        }
    }

    /// The provider's name.
    pub(crate) fn provider(&self) -> String {
        // SAFETY: a provider has a name, with its end.
        let name = unsafe { CStr::from_ptr((*(*self.0).fabric_attr).prov_name) };
        name.to_string_lossy().into_owned()
    }

    /// Returns the limits of objects.
    pub(crate) fn limits(&self) -> FabricLimits {
        // SAFETY: a description that was found has all of its parts.
        unsafe {
            let (tx, rx) = (&*(*self.0).tx_attr, &*(*self.0).rx_attr);
            let ep = &*(*self.0).ep_attr;
            let link = (*self.0).nic.as_ref().and_then(|nic| nic.link_attr.as_ref());
            FabricLimits {
                receives: rx.size,
                segments: tx.iov_limit.min(rx.iov_limit).min(SEGMENTS),
                message: ep.max_msg_size,
                packet: link.map(|link| link.mtu).filter(|mtu| *mtu != 0),
            }
        }
    }
}

/// Limits of an adaptor's endpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricLimits {
    pub(crate) receives: usize,
    pub(crate) segments: usize,
    pub(crate) message: usize,
    /// Maximum bytes of a packet on the device's link, if reported by the provider.
    pub(crate) packet: Option<usize>,
}

/// A `sockaddr` of IPv4 or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(8))]
pub(crate) struct SocketAddress(pub(crate) [u8; 128]);

impl SocketAddress {
    /// None.
    pub(crate) const NONE: Self = Self([0; 128]);

    /// # Safety
    /// `length` bytes can be read at `at`, unless it is null.
    unsafe fn read(at: *const c_void, length: usize) -> Self {
        let mut address = Self::NONE;
        if !at.is_null() {
            let length = length.min(address.0.len());
            // SAFETY: the caller's, and no longer than the room.
            unsafe { at.cast::<u8>().copy_to(address.0.as_mut_ptr(), length) };
        }
        address
    }

    /// Returns the address behind an application's pointer.
    ///
    /// # Safety
    /// `at` is null or points to a `sockaddr` of its family's length.
    pub(crate) unsafe fn of_application(at: *const c_void) -> Option<Self> {
        if at.is_null() {
            return None;
        }
        // SAFETY: every address has its family.
        let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
        let length = match family as c_int {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => return Some(Self::NONE),
        };
        // SAFETY: the caller's.
        Some(unsafe { Self::read(at, length) })
    }

    /// AF_INET, AF_INET6, or another number for none.
    pub(crate) fn family(&self) -> c_int {
        u16::from_ne_bytes([self.0[0], self.0[1]]).into()
    }

    /// Returns the port, at the same offset in both families.
    pub(crate) fn port(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// Another port.
    pub(crate) fn set_port(&mut self, port: u16) {
        self.0[2..4].copy_from_slice(&port.to_be_bytes());
    }

    /// Returns true for a broadcast or multicast address.
    pub(crate) fn is_for_many(&self) -> bool {
        match self.family() {
            libc::AF_INET => self.0[4] >= 224,
            _ => self.0[8] == 0xff,
        }
    }
}

/// The first address of a network interface of the host's, as text; none if no interface has this
/// name.
pub(crate) fn interface_address(name: &str) -> Result<Option<String>, Code> {
    let mut list = null_mut();
    // SAFETY: room for the answer.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    let (mut at, mut found) = (list, None::<(c_int, String)>);
    while !at.is_null() {
        // SAFETY: the list lives until it is freed below; names have ends, and addresses the
        // length of their family.
        unsafe {
            let one = &*at;
            if CStr::from_ptr(one.ifa_name).to_bytes() == name.as_bytes() {
                if let Some(address) = SocketAddress::of_application(one.ifa_addr.cast()) {
                    let text = match address.family() {
                        libc::AF_INET => {
                            let b = &address.0[4..8];
                            Some(format!("{}.{}.{}.{}", b[0], b[1], b[2], b[3]))
                        }
                        libc::AF_INET6 => {
                            let mut b = [0; 16];
                            b.copy_from_slice(&address.0[8..24]);
                            let ip = std::net::Ipv6Addr::from(b);
                            (ip.segments()[0] & 0xffc0 != 0xfe80).then(|| ip.to_string())
                        }
                        _ => None,
                    };
                    let better = found.as_ref().is_none_or(|(family, _)| {
                        *family == libc::AF_INET6 && address.family() == libc::AF_INET
                    });
                    if let (Some(text), true) = (text, better) {
                        found = Some((address.family(), text));
                    }
                }
            }
            at = one.ifa_next;
        }
    }
    // SAFETY: of getifaddrs, once.
    unsafe { libc::freeifaddrs(list) };
    Ok(found.map(|(_, text)| text))
}
