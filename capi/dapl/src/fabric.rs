//! The calls of libfabric made by the plug-in, with objects closed on drop.
//!
//! Only public calls are made, by the tables of the objects like the inlines of the headers, so any
//! `libfabric.so.1` is sufficient; it is opened with the first adaptor. Contexts of objects and
//! operations are numbers, never dereferenced.
use crate::layout::Handle;
use libc::iovec;
use ofi::abi::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::{size_of, transmute};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A positive code of libfabric's.
pub(crate) type Code = c_int;
/// Requested API version: all features used here are in every later one.
const API: u32 = (1 << 16) | 17;
/// The most segments of one operation.
pub(crate) const SEGMENTS: usize = 4;
/// Maximum bytes of a peer's data in an event.
const EVENT_BYTES: usize = 1024;

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type OpenFabric =
    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;

/// Exports of the library; all else is in the tables of its objects.
struct FabricCalls {
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: OpenFabric,
}

/// Returns the function with this name, in a library never unloaded.
fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a library that was opened, or the null that stands for all of the process.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn open_library(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a string with its end; the library is never closed.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!library.is_null()).then_some(library)
}

fn calls() -> Option<&'static FabricCalls> {
    static CALLS: OnceLock<Option<FabricCalls>> = OnceLock::new();
    CALLS
        .get_or_init(|| {
            let library = open_library(c"libfabric.so.1")?;
            // SAFETY: the functions of these names have these types (fi_getinfo(3), fi_fabric(3)).
            unsafe {
                Some(FabricCalls {
                    getinfo: transmute::<*mut c_void, GetInfo>(symbol(library, c"fi_getinfo")?),
                    freeinfo: transmute::<*mut c_void, FreeInfo>(symbol(library, c"fi_freeinfo")?),
                    dupinfo: transmute::<*mut c_void, DupInfo>(symbol(library, c"fi_dupinfo")?),
                    fabric: transmute::<*mut c_void, OpenFabric>(symbol(library, c"fi_fabric")?),
                })
            }
        })
        .as_ref()
}

/// Calls a function of an object's table, or returns `$missing` if the object has no such call.
macro_rules! call {
    ($missing:expr, $object:expr, $($table:ident).+, $slot:ident $(, $argument:expr)*) => {{
        let object = $object;
        // SAFETY: the object is open, as is its table, and the arguments are those of the call of
        // this name; buffers belong to regions that the application registered and answers for.
        unsafe {
            let table = (*object).$($table).+;
            match if table.is_null() { None } else { (*table).$slot } {
                Some(function) => function(object $(, $argument)*),
                None => $missing,
            }
        }
    }};
}

fn close(object: *mut fid) {
    call!(0, object, ops, close);
}

fn code(answer: c_int) -> Result<(), Code> {
    if answer == 0 { Ok(()) } else { Err(answer.saturating_neg().max(1)) }
}

fn long_code(answer: isize) -> Result<(), Code> {
    code(answer as c_int)
}

fn number(context: *mut c_void) -> Handle {
    context.addr()
}

fn context(number: Handle) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

/// Info created by `fi_getinfo`, or a copy.
pub(crate) struct FabricInfo(*mut fi_info);
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
            if CStr::from_ptr(one.ifa_name).to_bytes() == name.as_bytes()
                && let Some(address) = SocketAddress::of_application(one.ifa_addr.cast())
            {
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
            at = one.ifa_next;
        }
    }
    // SAFETY: of getifaddrs, once.
    unsafe { libc::freeifaddrs(list) };
    Ok(found.map(|(_, text)| text))
}

/// Object of libfabric closed with its last reference.
struct OwnedFid(*mut fid);
// SAFETY: libfabric's objects may be used by any thread, and ours only with the one lock held.
unsafe impl Send for OwnedFid {}
// SAFETY: as above.
unsafe impl Sync for OwnedFid {}

impl Drop for OwnedFid {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// A fabric, its domain and its event queue; they close in the order they are written in.
pub(crate) struct FabricDomain {
    eq: OwnedFid,
    domain: OwnedFid,
    domain_wait_set: Option<DomainWaitSet>,
    fabric: OwnedFid,
}

/// Common wait set of all queues of a domain, and its descriptor.
struct DomainWaitSet {
    set: OwnedFid,
    descriptor: c_int,
}

impl DomainWaitSet {
    /// One of this fabric's; none if its provider has no such thing.
    fn open(fabric: *mut fid_fabric) -> Option<Self> {
        let wait_obj = c_enum::from_raw(fi_wait_obj::FI_WAIT_FD as u32);
        let mut attr = fi_wait_attr { wait_obj, flags: 0 };
        let mut set: *mut fid_wait = null_mut();
        code(call!(-FI_ENOSYS, fabric, ops, wait_open, &mut attr, &mut set)).ok()?;
        let set = OwnedFid(set.cast());
        let mut descriptor: c_int = -1;
        let buffer = (&raw mut descriptor).cast();
        code(call!(-FI_ENOSYS, set.0, ops, control, FI_GETWAIT, buffer)).ok()?;
        (descriptor >= 0).then_some(Self { set, descriptor })
    }

    /// Returns the attributes of a queue for this wait set.
    fn of_queue(this: Option<&Self>) -> (c_enum<fi_wait_obj>, *mut fid_wait) {
        let (kind, set) = match this {
            Some(domain_wait_set) => (fi_wait_obj::FI_WAIT_SET, domain_wait_set.set.0.cast()),
            None => (fi_wait_obj::FI_WAIT_NONE, null_mut()),
        };
        (c_enum::from_raw(kind as u32), set)
    }
}

/// Waiter blocking until an event in a domain, or a notification by another thread.
pub(crate) struct DomainWaiter {
    own: OwnedFd,
    domain: Arc<FabricDomain>,
    descriptor: c_int,
}

impl DomainWaiter {
    /// One for this domain; none if there is nothing to block on, or no descriptor.
    pub(crate) fn open(domain: &Arc<FabricDomain>) -> Option<Self> {
        let descriptor = domain.domain_wait_set.as_ref()?.descriptor;
        // SAFETY: a number and flags.
        let own = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if own < 0 {
            return None;
        }
        // SAFETY: a descriptor that was opened here.
        let own = unsafe { OwnedFd::from_raw_fd(own) };
        Some(Self { own, domain: Arc::clone(domain), descriptor })
    }

    /// Returns the number for [`wake`].
    pub(crate) fn number(&self) -> c_int {
        self.own.as_raw_fd()
    }

    /// Returns true if the thread may sleep: nothing is readable.
    pub(crate) fn is_allowed(&self) -> bool {
        let Some(domain_wait_set) = &self.domain.domain_wait_set else { return false };
        let fabric: *mut fid_fabric = self.domain.fabric.0.cast();
        let mut one = domain_wait_set.set.0;
        call!(-FI_ENOSYS, fabric, ops, trywait, &mut one, 1) == 0
    }

    /// Sleeps, so long at most.
    pub(crate) fn sleep(&self, most: Duration) {
        let fd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [fd(self.descriptor), fd(self.number())];
        let most = libc::timespec {
            tv_sec: most.as_secs() as libc::time_t,
            tv_nsec: most.subsec_nanos().into(),
        };
        // SAFETY: two entries, and descriptors that stay open as long as this.
        unsafe { libc::ppoll(both.as_mut_ptr(), 2, &most, null()) };
        if both[1].revents != 0 {
            let mut value = 0u64;
            // SAFETY: room for a number.
            unsafe { libc::read(self.number(), (&raw mut value).cast(), size_of::<u64>()) };
        }
    }
}

/// Wakes the thread sleeping with this number.
pub(crate) fn wake(number: c_int) {
    let one = 1u64;
    // SAFETY: a descriptor of a sleep that is not over, and a number.
    unsafe { libc::write(number, (&raw const one).cast(), size_of::<u64>()) };
}

/// Event of an event queue.
pub(crate) enum FabricEvent {
    /// Connection request to a listener: the listener's owner, the info, and the data.
    Request(Handle, FabricInfo, Vec<u8>),
    Connected(Handle, Vec<u8>),
    Shutdown(Handle),
    /// A connection did not come about or failed, by this code and with this data.
    Failed(Handle, Code, Vec<u8>),
}

impl FabricDomain {
    /// All three.
    pub(crate) fn open(info: &FabricInfo) -> Result<Arc<Self>, Code> {
        let calls = calls().ok_or(FI_ENOSYS)?;
        let mut fabric: *mut fid_fabric = null_mut();
        // SAFETY: the description has its fabric, and there is room for the answer.
        code(unsafe { (calls.fabric)((*info.0).fabric_attr, &mut fabric, null_mut()) })?;
        let fabric_fid = OwnedFid(fabric.cast());
        let mut domain: *mut fid_domain = null_mut();
        code(call!(-FI_ENOSYS, fabric, ops, domain, info.0, &mut domain, null_mut()))?;
        let domain = OwnedFid(domain.cast());
        let mut eq: *mut fid_eq = null_mut();
        let mut open = |domain_wait_set: Option<&DomainWaitSet>| {
            let (wait_obj, wait_set) = DomainWaitSet::of_queue(domain_wait_set);
            let mut attr =
                fi_eq_attr { size: 1024, flags: 0, wait_obj, signaling_vector: 0, wait_set };
            code(call!(-FI_ENOSYS, fabric, ops, eq_open, &mut attr, &mut eq, null_mut()))
        };
        let domain_wait_set = DomainWaitSet::open(fabric)
            .filter(|domain_wait_set| open(Some(domain_wait_set)).is_ok());
        if domain_wait_set.is_none() {
            open(None)?;
        }
        Ok(Arc::new(Self { eq: OwnedFid(eq.cast()), domain, domain_wait_set, fabric: fabric_fid }))
    }

    fn domain(&self) -> *mut fid_domain {
        self.domain.0.cast()
    }

    /// The next event.
    pub(crate) fn event(&self) -> Option<FabricEvent> {
        #[repr(C, align(8))]
        struct EventBuffer(fi_eq_cm_entry, [u8; EVENT_BYTES]);
        let eq: *mut fid_eq = self.eq.0.cast();
        let mut buffer = EventBuffer(
            fi_eq_cm_entry { fid: null_mut(), info: null_mut(), data: [] },
            [0; EVENT_BYTES],
        );
        let mut what = 0;
        let length = size_of::<EventBuffer>();
        let answer = call!(
            -(FI_EAGAIN as isize),
            eq,
            ops,
            read,
            &mut what,
            (&raw mut buffer).cast(),
            length,
            0
        );
        if answer == -(FI_EAVAIL as isize) {
            return self.failure();
        }
        let data = usize::try_from(answer).ok()?.checked_sub(size_of::<fi_eq_cm_entry>())?;
        let data = buffer.1[..data.min(EVENT_BYTES)].to_vec();
        // SAFETY: events of connections are of open objects of ours.
        let of = number(unsafe { (*buffer.0.fid).context });
        match what as c_int {
            FI_CONNREQ => Some(FabricEvent::Request(of, FabricInfo(buffer.0.info), data)),
            FI_CONNECTED => Some(FabricEvent::Connected(of, data)),
            FI_SHUTDOWN => Some(FabricEvent::Shutdown(of)),
            _ => None,
        }
    }

    fn failure(&self) -> Option<FabricEvent> {
        let eq: *mut fid_eq = self.eq.0.cast();
        let mut buffer = [0u8; EVENT_BYTES];
        let mut entry = fi_eq_err_entry {
            fid: null_mut(),
            context: null_mut(),
            data: 0,
            err: 0,
            prov_errno: 0,
            err_data: buffer.as_mut_ptr().cast(),
            err_data_size: buffer.len(),
        };
        let answer = call!(0, eq, ops, readerr, &mut entry, 0);
        if answer <= 0 || entry.fid.is_null() {
            return None;
        }
        let length = entry.err_data_size.min(EVENT_BYTES);
        let mut data = Vec::new();
        if !entry.err_data.is_null() {
            // SAFETY: the data has the length that the entry says, here or at the provider's.
            data =
                unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), length) }.to_vec();
        }
        // SAFETY: an open object of ours.
        let of = number(unsafe { (*entry.fid).context });
        Some(FabricEvent::Failed(of, entry.err, data))
    }
}

/// A completion queue.
pub(crate) struct FabricQueue {
    cq: OwnedFid,
    _domain: Arc<FabricDomain>,
}

/// Completion of an operation from a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricCompletion {
    pub(crate) context: Handle,
    pub(crate) length: usize,
    /// 0 or the error.
    pub(crate) code: Code,
}

impl FabricQueue {
    /// Opens a queue with space for `size` entries.
    pub(crate) fn open(domain: &Arc<FabricDomain>, size: usize) -> Result<Self, Code> {
        let mut cq: *mut fid_cq = null_mut();
        let of = domain.domain();
        let mut open = |domain_wait_set: Option<&DomainWaitSet>| {
            let (wait_obj, wait_set) = DomainWaitSet::of_queue(domain_wait_set);
            let mut attr = fi_cq_attr {
                size,
                flags: 0,
                format: c_enum::from_raw(fi_cq_format::FI_CQ_FORMAT_MSG as u32),
                wait_obj,
                signaling_vector: 0,
                wait_cond: c_enum::from_raw(fi_cq_wait_cond::FI_CQ_COND_NONE as u32),
                wait_set,
                xpu_ctx: null_mut(),
            };
            code(call!(-FI_ENOSYS, of, ops, cq_open, &mut attr, &mut cq, null_mut()))
        };
        open(domain.domain_wait_set.as_ref()).or_else(|_| open(None))?;
        Ok(Self { cq: OwnedFid(cq.cast()), _domain: Arc::clone(domain) })
    }

    /// The next completion.
    pub(crate) fn read(&self) -> Option<FabricCompletion> {
        let cq: *mut fid_cq = self.cq.0.cast();
        let mut entry = fi_cq_msg_entry { op_context: null_mut(), flags: 0, len: 0 };
        let again = -(FI_EAGAIN as isize);
        let answer = call!(again, cq, ops, read, (&raw mut entry).cast(), 1);
        if answer == 1 {
            let context = number(entry.op_context);
            return Some(FabricCompletion { context, length: entry.len, code: 0 });
        }
        if answer != -(FI_EAVAIL as isize) {
            return None;
        }
        let mut entry = fi_cq_err_entry {
            op_context: null_mut(),
            flags: 0,
            len: 0,
            buf: null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: null_mut(),
            err_data_size: 0,
            src_addr: 0,
        };
        if call!(0, cq, ops, readerr, &mut entry, 0) != 1 {
            return None;
        }
        let (context, length) = (number(entry.op_context), entry.len);
        Some(FabricCompletion { context, length, code: entry.err.max(1) })
    }
}

/// A registered region.
pub(crate) struct FabricRegion {
    mr: OwnedFid,
    _domain: Arc<FabricDomain>,
}

impl FabricRegion {
    /// Registers memory of the application's under a key of ours, if the provider has none.
    pub(crate) fn register(
        domain: &Arc<FabricDomain>,
        address: u64,
        length: u64,
        access: u64,
        key: u32,
    ) -> Result<Self, Code> {
        let mut mr: *mut fid_mr = null_mut();
        let of = domain.domain();
        let at = std::ptr::with_exposed_provenance::<c_void>(address as usize);
        let length = usize::try_from(length).map_err(|_| FI_EINVAL)?;
        // SAFETY: an open domain and its table; the memory belongs to the application, responsible
        // for it until it frees the region.
        let answer = unsafe {
            match (*(*of).mr).reg {
                Some(reg) => {
                    let (to, key) = (&raw mut mr, key.into());
                    reg(of.cast(), at, length, access, 0, key, 0, to, null_mut())
                }
                None => -FI_ENOSYS,
            }
        };
        code(answer)?;
        Ok(Self { mr: OwnedFid(mr.cast()), _domain: Arc::clone(domain) })
    }

    /// Returns the key used by peers.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: an open region.
        unsafe { (*self.mr.0.cast::<fid_mr>()).key }
    }

    /// Returns the descriptor used by local operations.
    pub(crate) fn descriptor(&self) -> usize {
        // SAFETY: an open region.
        unsafe { (*self.mr.0.cast::<fid_mr>()).mem_desc }.expose_provenance()
    }
}

/// Local memory of an operation: address, length, descriptor.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LocalPiece {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) descriptor: usize,
}

/// Memory of one operation, as stored.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LocalPieces {
    pub(crate) pieces: [LocalPiece; SEGMENTS],
    pub(crate) count: usize,
}

impl LocalPieces {
    /// Leaves so many bytes of them.
    pub(crate) fn shorten(&mut self, mut length: u32) {
        for k in 0..self.count {
            let piece = &mut self.pieces[k];
            piece.length = piece.length.min(length);
            length -= piece.length;
            if length == 0 {
                self.count = if piece.length == 0 { k } else { k + 1 };
                return;
            }
        }
    }
}

/// The same as libfabric takes it.
struct Vectors<'a> {
    iov: [iovec; SEGMENTS],
    desc: [*mut c_void; SEGMENTS],
    _of: PhantomData<&'a LocalPieces>,
}

impl Vectors<'_> {
    fn new(of: &LocalPieces) -> Self {
        let piece = |k: usize| of.pieces[k];
        let at = |k| std::ptr::with_exposed_provenance_mut(piece(k).address as usize);
        Self {
            iov: std::array::from_fn(|k| iovec {
                iov_base: at(k),
                iov_len: piece(k).length as usize,
            }),
            desc: std::array::from_fn(|k| {
                std::ptr::with_exposed_provenance_mut(piece(k).descriptor)
            }),
            _of: PhantomData,
        }
    }
}

/// Queue of receives shared by endpoints.
pub(crate) struct SharedReceives {
    ep: OwnedFid,
    _domain: Arc<FabricDomain>,
}

fn receive(ep: *mut fid_ep, pieces: &LocalPieces, operation: Handle) -> Result<(), Code> {
    let mut v = Vectors::new(pieces);
    let (iov, desc) = (v.iov.as_ptr(), v.desc.as_mut_ptr());
    let (none, count, operation) = (-(FI_ENOSYS as isize), pieces.count, context(operation));
    long_code(call!(none, ep, msg, recvv, iov, desc, count, FI_ADDR_UNSPEC, operation))
}

impl SharedReceives {
    /// Opens a queue with space for `size` receives.
    pub(crate) fn open(
        domain: &Arc<FabricDomain>,
        info: &FabricInfo,
        size: usize,
    ) -> Result<Arc<Self>, Code> {
        // SAFETY: a description that was found has all of its parts.
        let mut attr = unsafe { *(*info.0).rx_attr };
        attr.size = size;
        let mut ep: *mut fid_ep = null_mut();
        let of = domain.domain();
        code(call!(-FI_ENOSYS, of, ops, srx_ctx, &mut attr, &mut ep, null_mut()))?;
        Ok(Arc::new(Self { ep: OwnedFid(ep.cast()), _domain: Arc::clone(domain) }))
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, pieces: &LocalPieces, operation: Handle) -> Result<(), Code> {
        receive(self.ep.0.cast(), pieces, operation)
    }
}

/// A connected endpoint with its queues.
pub(crate) struct FabricEndpoint {
    // closed in this order: what is bound after what it is bound to
    ep: OwnedFid,
    pub(crate) requests: FabricQueue,
    pub(crate) receives: FabricQueue,
    _shared: Option<Arc<SharedReceives>>,
    _domain: Arc<FabricDomain>,
}

/// Direction of a remote memory access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RemoteAccess {
    Read,
    Write,
}

impl FabricEndpoint {
    /// Opens an endpoint ready to connect, or to accept the request of the info.
    pub(crate) fn open(
        domain: &Arc<FabricDomain>,
        info: &FabricInfo,
        of: Handle,
        sizes: (usize, usize),
        shared: Option<&Arc<SharedReceives>>,
    ) -> Result<Self, Code> {
        let info = if let Some(shared) = shared {
            let copy = info.copy()?;
            // SAFETY: a description that was found has all of its parts. The copy loses what the
            // request is known by, which is given back.
            unsafe {
                (*(*copy.0).ep_attr).rx_ctx_cnt = FI_SHARED_CONTEXT;
                (*copy.0).handle = (*info.0).handle;
            }
            Some((copy, shared))
        } else {
            None
        }
        .map_or_else(
            || (None, info.0),
            |(copy, _)| {
                let at = copy.0;
                (Some(copy), at)
            },
        );
        let mut ep: *mut fid_ep = null_mut();
        let from = domain.domain();
        code(call!(-FI_ENOSYS, from, ops, endpoint, info.1, &mut ep, context(of)))?;
        let opened = OwnedFid(ep.cast());
        let requests = FabricQueue::open(domain, sizes.0 + 16)?;
        let receives = FabricQueue::open(domain, sizes.1 + 16)?;
        let bind = |to: *mut fid, flags| code(call!(-FI_ENOSYS, opened.0, ops, bind, to, flags));
        bind(domain.eq.0, 0)?;
        bind(requests.cq.0, FI_TRANSMIT)?;
        bind(receives.cq.0, FI_RECV)?;
        if let Some(shared) = shared {
            bind(shared.ep.0, 0)?;
        }
        code(call!(-FI_ENOSYS, opened.0, ops, control, FI_ENABLE, null_mut()))?;
        let _domain = Arc::clone(domain);
        Ok(Self { ep: opened, requests, receives, _shared: shared.cloned(), _domain })
    }

    fn ep(&self) -> *mut fid_ep {
        self.ep.0.cast()
    }

    /// Closes it; its queues report the results of its operations.
    pub(crate) fn into_queues(self) -> (FabricQueue, FabricQueue) {
        let Self { ep, requests, receives, .. } = self;
        drop(ep);
        (requests, receives)
    }

    /// Calls a listener.
    pub(crate) fn connect(&self, peer: &SocketAddress, data: &[u8]) -> Result<(), Code> {
        let (at, data, length) = (peer.0.as_ptr().cast(), data.as_ptr().cast(), data.len());
        code(call!(-FI_ENOSYS, self.ep(), cm, connect, at, data, length))
    }

    /// Accepts the request whose info it was opened with.
    pub(crate) fn accept(&self, data: &[u8]) -> Result<(), Code> {
        code(call!(-FI_ENOSYS, self.ep(), cm, accept, data.as_ptr().cast(), data.len()))
    }

    /// Ends the connection.
    pub(crate) fn shutdown(&self) {
        let _ = call!(0, self.ep(), cm, shutdown, 0);
    }

    /// The endpoint's own address, or its peer's.
    pub(crate) fn address(&self, peer: bool) -> SocketAddress {
        let mut address = SocketAddress::NONE;
        let mut length = address.0.len();
        let at: *mut c_void = address.0.as_mut_ptr().cast();
        if peer {
            let _ = call!(0, self.ep(), cm, getpeer, at, &mut length);
        } else {
            let ep = self.ep();
            // SAFETY: the table of an open endpoint, and room of the length that is said.
            unsafe {
                if let Some(getname) = (*(*ep).cm).getname {
                    getname(ep.cast(), at, &mut length);
                }
            }
        }
        address
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, pieces: &LocalPieces, operation: Handle) -> Result<(), Code> {
        receive(self.ep(), pieces, operation)
    }

    /// Posts a message.
    pub(crate) fn send(&self, pieces: &LocalPieces, operation: Handle) -> Result<(), Code> {
        let mut v = Vectors::new(pieces);
        let (iov, desc) = (v.iov.as_ptr(), v.desc.as_mut_ptr());
        let (none, count, operation) = (-(FI_ENOSYS as isize), pieces.count, context(operation));
        long_code(call!(none, self.ep(), msg, sendv, iov, desc, count, FI_ADDR_UNSPEC, operation))
    }

    /// Posts an access of remote memory.
    pub(crate) fn access(
        &self,
        which: RemoteAccess,
        pieces: &LocalPieces,
        (address, key): (u64, u64),
        operation: Handle,
    ) -> Result<(), Code> {
        let mut v = Vectors::new(pieces);
        let (iov, desc, count) = (v.iov.as_ptr(), v.desc.as_mut_ptr(), pieces.count);
        let (ep, none, peer) = (self.ep(), -(FI_ENOSYS as isize), FI_ADDR_UNSPEC);
        let operation = context(operation);
        long_code(match which {
            RemoteAccess::Read => {
                call!(none, ep, rma, readv, iov, desc, count, peer, address, key, operation)
            }
            RemoteAccess::Write => {
                call!(none, ep, rma, writev, iov, desc, count, peer, address, key, operation)
            }
        })
    }
}

/// A listener.
pub(crate) struct FabricListener {
    pep: OwnedFid,
    _domain: Arc<FabricDomain>,
}

impl FabricListener {
    /// Listens at the description's address and this port; 0 takes any.
    pub(crate) fn open(
        domain: &Arc<FabricDomain>,
        info: &FabricInfo,
        port: u16,
        of: Handle,
    ) -> Result<Arc<Self>, Code> {
        let mut info = info.copy()?;
        info.set_port(port);
        let mut pep: *mut fid_pep = null_mut();
        let fabric: *mut fid_fabric = domain.fabric.0.cast();
        code(call!(-FI_ENOSYS, fabric, ops, passive_ep, info.0, &mut pep, context(of)))?;
        let opened = OwnedFid(pep.cast());
        code(call!(-FI_ENOSYS, opened.0, ops, bind, domain.eq.0, 0))?;
        code(call!(-FI_ENOSYS, pep, cm, listen))?;
        Ok(Arc::new(Self { pep: opened, _domain: Arc::clone(domain) }))
    }

    /// The port it listens at.
    pub(crate) fn port(&self) -> u16 {
        let mut address = SocketAddress::NONE;
        let mut length = address.0.len();
        let pep: *mut fid_pep = self.pep.0.cast();
        // SAFETY: the table of an open listener, and room of the length that is said.
        unsafe {
            if let Some(getname) = (*(*pep).cm).getname {
                getname(self.pep.0, address.0.as_mut_ptr().cast(), &mut length);
            }
        }
        address.port()
    }

    /// Returns the maximum bytes of data in requests and answers.
    pub(crate) fn data_limit(&self) -> usize {
        let pep: *mut fid_pep = self.pep.0.cast();
        let (mut size, mut length) = (0usize, size_of::<usize>());
        // SAFETY: the table of an open listener, and room for a number.
        let answer = unsafe {
            let table = (*pep).ops;
            match if table.is_null() { None } else { (*table).getopt } {
                Some(getopt) => getopt(
                    self.pep.0,
                    FI_OPT_ENDPOINT,
                    FI_OPT_CM_DATA_SIZE,
                    (&raw mut size).cast(),
                    &mut length,
                ),
                None => -FI_ENOSYS,
            }
        };
        if answer == 0 { size } else { 0 }
    }

    /// Rejects a connection request.
    pub(crate) fn reject(&self, request: &FabricInfo, data: &[u8]) {
        let pep: *mut fid_pep = self.pep.0.cast();
        // SAFETY: the description of a request of this listener's.
        let handle = unsafe { (*request.0).handle };
        let _ = call!(0, pep, cm, reject, handle, data.as_ptr().cast(), data.len());
    }
}
