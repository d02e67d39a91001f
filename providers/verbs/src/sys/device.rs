//! Devices, protection domains and memory regions.
use super::ret::{check, check_code, object, set_nonblocking};
use crate::provider::VERBS;
use crate::raw;
use core::ffi::{CStr, c_int, c_void};
use ofi_provider::error::{Error, Result};
use ofi_provider::param;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Ensures that registered pages stay with the parent after a fork (ibv_fork_init(3)), unless the
/// user excludes forks. The method of libibverbs hides the pages from a child completely, so it is
/// not used on a kernel copying them for the child.
fn keep_from_forks() {
    if param::core_boolean(c"fork_unsafe") == Some(true) || copies_on_fork(&kernel()) {
        return;
    }
    // SAFETY: no device is open yet by this library.
    let code = unsafe { raw::ibv_fork_init() };
    if code != 0 {
        let error = Error::from_code(code.abs());
        ofi_provider::log!(
            &VERBS,
            WARN,
            FABRIC,
            "a fork may take registered memory from this process: {error}"
        );
    }
}

/// The kernel's release, `6.1.0-43-amd64`.
fn kernel() -> String {
    // SAFETY: the structure is texts, so all zeros is a value; the call fills them, each
    // with a zero at its end.
    unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&raw mut name);
        CStr::from_ptr(name.release.as_ptr()).to_string_lossy().into_owned()
    }
}

/// Returns true if a kernel of this release copies pinned pages for a child at once: 5.12 and later
/// ones do.
fn copies_on_fork(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 12),
        _ => false,
    }
}

/// Device opened by librdmacm. It stays open until the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct VerbsDevice(pub(super) NonNull<raw::ibv_context>);

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for VerbsDevice {}
// SAFETY: as above.
unsafe impl Sync for VerbsDevice {}

impl VerbsDevice {
    /// All devices of the machine.
    pub(crate) fn all() -> &'static [Self] {
        static ALL: OnceLock<Vec<VerbsDevice>> = OnceLock::new();
        ALL.get_or_init(|| {
            if raw::missing().is_some() {
                return Vec::new();
            }
            keep_from_forks();
            let mut count = 0;
            // SAFETY: the answer is null or has `count` contexts; the list is never
            // freed, so they stay open.
            unsafe {
                let list = raw::rdma_get_devices(&raw mut count);
                if list.is_null() {
                    return Vec::new();
                }
                let count = usize::try_from(count).unwrap_or(0);
                (0..count).filter_map(|at| NonNull::new(*list.add(at)).map(Self)).collect()
            }
        })
    }

    fn device(&self) -> &raw::ibv_device {
        // SAFETY: an open context has a device for as long as it is open.
        unsafe { &*self.0.as_ref().device }
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &'static CStr {
        // SAFETY: a C string that lives as long as the device, which stays open.
        unsafe { CStr::from_ptr(raw::ibv_get_device_name(self.0.as_ref().device)) }
    }

    /// The device's directory in sysfs.
    pub(crate) fn path(&self) -> &CStr {
        // SAFETY: the library ends the text with a zero byte.
        unsafe { CStr::from_ptr(self.device().ibdev_path.as_ptr()) }
    }

    /// Returns true if the device uses iWARP, and not InfiniBand or RoCE.
    pub(crate) fn is_iwarp(&self) -> bool {
        self.device().transport_type == raw::ibv_transport_type::IBV_TRANSPORT_IWARP
    }

    /// Returns the capabilities of the device (ibv_query_device(3)).
    pub(crate) fn attr(&self) -> Result<raw::ibv_device_attr> {
        // SAFETY: numbers only, so all zeros is a value; the call fills it.
        unsafe {
            let mut attr = std::mem::zeroed();
            check_code(raw::ibv_query_device(self.0.as_ptr(), &raw mut attr))?;
            Ok(attr)
        }
    }

    /// Returns the on-demand paging capabilities of the device (ibv_query_device_ex(3)); none if it
    /// does not report any.
    pub(crate) fn odp_caps(&self) -> raw::ibv_odp_caps {
        // SAFETY: numbers only, so all zeros is a value; the context is open.
        unsafe {
            let mut attr: raw::ibv_device_attr_ex = std::mem::zeroed();
            let none = attr.odp_caps;
            match raw::query_device_ex(self.0.as_ptr(), &mut attr) {
                0 => attr.odp_caps,
                _ => none,
            }
        }
    }

    /// Returns true if the device registers memory behind dma-buf files. A probe with a nonexistent
    /// file then fails because of the missing file, and not because dma-bufs are unsupported.
    pub(crate) fn has_dmabuf(&self) -> Result<bool> {
        let pd = Pd::new(*self)?;
        let answer = IbvRegion::of_dmabuf(&pd, (-1, 0), 0, 4096, 0);
        Ok(answer.is_err_and(|error| error.code() == libc::EBADF))
    }

    /// Returns the state of one of its ports (ibv_query_port(3)).
    pub(crate) fn port(&self, port: u8) -> Result<raw::ibv_port_attr> {
        // SAFETY: numbers only, so all zeros is a value; the call fills it.
        unsafe {
            let mut attr = std::mem::zeroed();
            check_code(raw::query_port(self.0.as_ptr(), port, &mut attr))?;
            Ok(attr)
        }
    }

    /// An entry of a port's table of GIDs (ibv_query_gid(3)).
    pub(crate) fn gid(&self, port: u8, index: c_int) -> Result<[u8; 16]> {
        let mut gid = raw::ibv_gid { raw: [0; 16] };
        // SAFETY: the call fills 16 bytes, which any view of the union has.
        unsafe {
            check(raw::ibv_query_gid(self.0.as_ptr(), port, index, &raw mut gid))?;
            Ok(gid.raw)
        }
    }

    /// Returns the GIDs of its ports other than IPv4 addresses, each once: the number of the port,
    /// and the GID. None if the system cannot report them.
    pub(crate) fn gids(&self) -> Vec<(u8, [u8; 16])> {
        let mut gids = Vec::new();
        for entry in self.gid_table() {
            let found = (entry.port, entry.gid);
            // RoCE has an entry for each version of it.
            let is_ib = entry.gid != [0; 16] && !entry.is_ipv4();
            if is_ib && !gids.contains(&found) {
                gids.push(found);
            }
        }
        gids
    }

    /// Returns the index of the GID for datagrams of a port. Over RoCE, routers forward only packets
    /// of RoCE v2, between addresses with a route.
    pub(crate) fn datagram_gid(&self, port: u8) -> u8 {
        let layer = self.port(port).map_or(0, |attr| attr.link_layer);
        if layer != raw::ibv_link_layer::IBV_LINK_LAYER_ETHERNET as u8 {
            return 0;
        }
        datagram_gid(&self.gid_table(), port)
    }

    /// Returns the table of GIDs of all ports; empty if the system cannot report it.
    fn gid_table(&self) -> Vec<Gid> {
        // SAFETY: the function of that name has that type.
        let query: Option<QueryGidTable> = unsafe { optional(c"_ibv_query_gid_table") };
        let Some(query) = query else { return Vec::new() };
        let ports = self.attr().map_or(0, |attr| attr.phys_port_cnt);
        let len =
            |port| self.port(port).ok().and_then(|attr| usize::try_from(attr.gid_tbl_len).ok());
        let most = (1..=ports).filter_map(len).sum();
        let mut entries: Vec<raw::ibv_gid_entry> = Vec::with_capacity(most);
        let (buffer, size) = (entries.as_mut_ptr(), size_of::<raw::ibv_gid_entry>());
        // SAFETY: the context is open, and there is space for the passed number of entries of this
        // size; the answer is the number of filled entries, or an error.
        unsafe {
            let filled = query(self.0.as_ptr(), buffer, most, 0, size);
            entries.set_len(usize::try_from(filled).unwrap_or(0).min(most));
        }
        let read = |entry: &raw::ibv_gid_entry| Gid {
            port: entry.port_num as u8,
            index: entry.gid_index,
            // SAFETY: any view of the union has these bytes.
            gid: unsafe { entry.gid.raw },
            is_roce_v2: entry.gid_type == GID_TYPE_ROCE_V2,
        };
        entries.iter().map(read).collect()
    }

    /// An entry of a port's table of partition keys (ibv_query_pkey(3)), as it is in
    /// packets.
    pub(crate) fn pkey(&self, port: u8, index: c_int) -> Result<u16> {
        let mut pkey = 0;
        // SAFETY: the call writes to the key.
        check(unsafe { raw::ibv_query_pkey(self.0.as_ptr(), port, index, &raw mut pkey) })?;
        Ok(u16::from_be(pkey))
    }
}

/// Asynchronous events of a device (ibv_get_async_event(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceEvent {
    /// The first message came to the queue pair with this number.
    FirstMessage(u32),
    /// The queue pair of this number does not work any more.
    PairFailed(u32),
    /// Completions were lost.
    QueueFailed,
    /// The device does not work any more.
    Failed,
    /// A port works.
    PortUp(i32),
    /// A port does not carry traffic.
    PortDown(i32),
    Other,
}

impl VerbsDevice {
    /// Readable when there is an event; never blocks.
    pub(crate) fn events_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { self.0.as_ref().async_fd }
    }

    /// Has events read without blocking; once for each device.
    pub(crate) fn unblock_events(&self) -> Result {
        set_nonblocking(self.events_fd())
    }

    /// The next event, if there is one.
    pub(crate) fn next_event(&self) -> Option<DeviceEvent> {
        let mut event = MaybeUninit::<raw::ibv_async_event>::zeroed();
        // SAFETY: the context is open and its events do not block.
        if unsafe { raw::ibv_get_async_event(self.0.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        use raw::ibv_event_type::*;
        // SAFETY: the call filled it. Its kind is read as the number it is, since a
        // newer kernel may know more kinds; what it is about stays until it is
        // acknowledged.
        unsafe {
            let of = event.as_mut_ptr();
            let kind = (*of).event_type;
            let envelope = &raw const (*of).qp;
            let pair = |make: fn(u32) -> DeviceEvent| {
                envelope.read().as_ref().map_or(DeviceEvent::Other, |qp| make(qp.qp_num))
            };
            let port = envelope.cast::<i32>().read();
            let event = match kind {
                k if k == IBV_EVENT_COMM_EST => pair(DeviceEvent::FirstMessage),
                k if k == IBV_EVENT_QP_FATAL
                    || k == IBV_EVENT_QP_REQ_ERR
                    || k == IBV_EVENT_QP_ACCESS_ERR =>
                {
                    pair(DeviceEvent::PairFailed)
                }
                k if k == IBV_EVENT_CQ_ERR => DeviceEvent::QueueFailed,
                k if k == IBV_EVENT_DEVICE_FATAL => DeviceEvent::Failed,
                k if k == IBV_EVENT_PORT_ACTIVE => DeviceEvent::PortUp(port),
                k if k == IBV_EVENT_PORT_ERR => DeviceEvent::PortDown(port),
                _ => DeviceEvent::Other,
            };
            raw::ibv_ack_async_event(of);
            Some(event)
        }
    }
}

/// A protection domain (ibv_alloc_pd(3)).
#[derive(Debug)]
pub(crate) struct Pd(pub(super) NonNull<raw::ibv_pd>, pub(crate) VerbsDevice);

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(device: VerbsDevice) -> Result<Arc<Self>> {
        // SAFETY: the device is open.
        let pd = object(unsafe { raw::ibv_alloc_pd(device.0.as_ptr()) })?;
        Ok(Arc::new(Self(pd, device)))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything opened on it holds a count on it, so nothing is left.
        unsafe { raw::ibv_dealloc_pd(self.0.as_ptr()) };
    }
}

/// Access rights of memory, as in `enum ibv_access_flags`.
pub(crate) mod access {
    use crate::raw::ibv_access_flags as flags;
    pub(crate) const LOCAL_WRITE: u32 = flags::IBV_ACCESS_LOCAL_WRITE.0;
    pub(crate) const REMOTE_WRITE: u32 = flags::IBV_ACCESS_REMOTE_WRITE.0;
    pub(crate) const REMOTE_READ: u32 = flags::IBV_ACCESS_REMOTE_READ.0;
    pub(crate) const REMOTE_ATOMIC: u32 = flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    /// Pages need not be there before they are used.
    pub(crate) const ON_DEMAND: u32 = flags::IBV_ACCESS_ON_DEMAND.0;
}

/// Registered memory (ibv_reg_mr(3)).
#[derive(Debug)]
pub(crate) struct IbvRegion {
    mr: NonNull<raw::ibv_mr>,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for IbvRegion {}
// SAFETY: as above.
unsafe impl Sync for IbvRegion {}

impl IbvRegion {
    /// Registers `len` bytes at `addr`. The system checks their existence, except with
    /// [`access::ON_DEMAND`]. The device uses them only for transfers naming this region.
    pub(crate) fn new(pd: &Arc<Pd>, addr: usize, len: usize, access: u32) -> Result<Self> {
        let at = addr as *mut c_void;
        // SAFETY: the call at most pins pages; memory that is not there is an error, if not
        // now, then of the transfer.
        let mr = object(unsafe { raw::ibv_reg_mr(pd.0.as_ptr(), at, len, access as c_int) })?;
        Ok(Self { mr, _pd: pd.clone() })
    }

    /// Registers `len` bytes of a dma-buf file, from its byte `offset` on, under the
    /// virtual address `addr`. The file may be closed then.
    pub(crate) fn of_dmabuf(
        pd: &Arc<Pd>,
        (fd, offset): (RawFd, u64),
        addr: usize,
        len: usize,
        access: u32,
    ) -> Result<Self> {
        let register = reg_dmabuf_mr().ok_or(Error::NOSYS)?;
        let access = access as c_int;
        // SAFETY: a file that is no dma-buf, or too short, is an error.
        let mr = object(unsafe { register(pd.0.as_ptr(), offset, len, addr as u64, fd, access) })?;
        Ok(Self { mr, _pd: pd.clone() })
    }

    /// Key of the region in local work requests.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: registered until this is dropped.
        unsafe { self.mr.as_ref().lkey }
    }

    /// Key of the region for peers.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref().rkey }
    }
}

impl Drop for IbvRegion {
    fn drop(&mut self) {
        // SAFETY: registered, and its keys are no longer in use by this process.
        unsafe { raw::ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// The type of ibv_reg_dmabuf_mr(3).
type RegDmabufMr =
    unsafe extern "C" fn(*mut raw::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut raw::ibv_mr;

fn reg_dmabuf_mr() -> Option<RegDmabufMr> {
    static FOUND: OnceLock<Option<RegDmabufMr>> = OnceLock::new();
    // SAFETY: the function of that name has that type.
    *FOUND.get_or_init(|| unsafe { optional(c"ibv_reg_dmabuf_mr") })
}

/// Type of a GID of RoCE v2 (IBV_GID_TYPE_ROCE_V2).
const GID_TYPE_ROCE_V2: u32 = 2;

/// Entry of a table of GIDs.
#[derive(Clone, Copy, Debug)]
struct Gid {
    port: u8,
    index: u32,
    gid: [u8; 16],
    is_roce_v2: bool,
}

impl Gid {
    fn is_ipv4(&self) -> bool {
        Ipv6Addr::from(self.gid).to_ipv4_mapped().is_some()
    }

    /// Returns true if the GID is an IPv6 address with a route beyond its link.
    fn is_global_ipv6(&self) -> bool {
        let addr = Ipv6Addr::from(self.gid);
        let is_local = addr.is_unicast_link_local() || addr.is_unspecified() || addr.is_loopback();
        !self.is_ipv4() && !is_local
    }
}

/// Returns the index of the GID for datagrams of a port of RoCE: the first of RoCE v2 with an IPv4
/// address, else with a global IPv6 address, else 0.
fn datagram_gid(table: &[Gid], port: u8) -> u8 {
    let first = |is_meant: fn(&Gid) -> bool| {
        let of_port = table.iter().filter(|entry| entry.port == port && entry.is_roce_v2);
        let indices = of_port.filter(|entry| is_meant(entry)).map(|entry| entry.index);
        indices.min().and_then(|index| u8::try_from(index).ok())
    };
    first(Gid::is_ipv4).or_else(|| first(Gid::is_global_ipv6)).unwrap_or(0)
}

/// The type of ibv_query_gid_table(3), behind its inline form.
type QueryGidTable = unsafe extern "C" fn(
    *mut raw::ibv_context,
    *mut raw::ibv_gid_entry,
    usize,
    u32,
    usize,
) -> isize;

/// Returns a function missing in some versions of libibverbs; its users work without it.
///
/// # Safety
/// `F` is the type of a pointer to the function of this name.
unsafe fn optional<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: what is found is a pointer to that function.
    raw::optional(name).map(|found| unsafe { std::mem::transmute_copy(&found) })
}

#[cfg(test)]
mod tests;
