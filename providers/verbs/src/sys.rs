//! Wrappers of libibverbs and librdmacm: only this module of the provider calls them. Objects close
//! when they are dropped, and each holds a reference to its parent.
use crate::info::VERBS;
use crate::raw::{self, rdma_cm_event_type as cm_event};
use core::ffi::{CStr, c_int, c_void};
use ofi_provider::addr::{self, Addr, UdAddr};
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::{Error, Result};
use ofi_provider::param;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

/// Timeout in milliseconds of librdmacm for resolving an address or a route.
const RESOLVE_TIMEOUT: c_int = 2000;

/// Checks the result of a call returning -1 with errno set.
fn check(ret: c_int) -> Result {
    if ret == 0 { Ok(()) } else { Err(Error::last_os()) }
}

/// Checks the result of a call returning an errno.
fn check_code(ret: c_int) -> Result {
    if ret == 0 { Ok(()) } else { Err(Error::from_code(ret.abs())) }
}

/// An object of the library's, or errno.
fn object<T>(ptr: *mut T) -> Result<NonNull<T>> {
    NonNull::new(ptr).ok_or_else(Error::last_os)
}

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
pub(crate) struct VerbsDevice(NonNull<raw::ibv_context>);

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
        let mut gids = Vec::new();
        for entry in &entries {
            // SAFETY: any view of the union has these bytes.
            let gid = unsafe { entry.gid.raw };
            let found = (entry.port_num as u8, gid);
            // RoCE has an entry for each version of it.
            let is_ib = gid != [0; 16] && Ipv6Addr::from(gid).to_ipv4_mapped().is_none();
            if is_ib && !gids.contains(&found) {
                gids.push(found);
            }
        }
        gids
    }

    /// An entry of a port's table of partition keys (ibv_query_pkey(3)), as it is in
    /// packets.
    pub(crate) fn pkey(&self, port: u8, index: c_int) -> Result<u16> {
        let mut pkey = 0;
        // SAFETY: the call writes to the key.
        check(unsafe { raw::ibv_query_pkey(self.0.as_ptr(), port, index, &raw mut pkey) })?;
        Ok(u16::from_be(pkey))
    }

    /// Returns the device with this local address, if there is one.
    pub(crate) fn of_address(addr: &SocketAddr) -> Option<Self> {
        let channel = Channel::new().ok()?;
        let mut any_port = Addr::Ip(*addr);
        any_port.set_port(0);
        let id = CmId::new(&channel, 0, &any_port).ok()?;
        id.bind(&any_port).ok()?;
        id.device()
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
pub(crate) struct Pd(NonNull<raw::ibv_pd>, pub(crate) VerbsDevice);

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

/// Notification channel of completion queues (ibv_create_comp_channel(3)).
#[derive(Debug)]
pub(crate) struct CompChannel(NonNull<raw::ibv_comp_channel>);

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CompChannel {}
// SAFETY: as above.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    pub(crate) fn new(device: VerbsDevice) -> Result<Arc<Self>> {
        // SAFETY: the device is open.
        let channel = object(unsafe { raw::ibv_create_comp_channel(device.0.as_ptr()) })?;
        let channel = Arc::new(Self(channel));
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: open until this is dropped.
        unsafe { self.0.as_ref().fd }
    }

    /// Takes all pending notifications of queues.
    pub(crate) fn drain(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel does not block; the queue it names has not been
        // destroyed, since that waits for its events to be acknowledged, as here.
        unsafe {
            while raw::ibv_get_cq_event(self.0.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                raw::ibv_ack_cq_events(cq, 1);
            }
        }
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: its queues hold counts on it, so none is left.
        unsafe { raw::ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}

fn set_nonblocking(fd: RawFd) -> Result {
    // SAFETY: no memory is involved.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(Error::last_os());
        }
    }
    Ok(())
}

/// One work completion (struct ibv_wc), as written by the device's library.
#[repr(transparent)]
pub(crate) struct WorkDone(raw::ibv_wc);

// SAFETY: numbers only.
unsafe impl Send for WorkDone {}

impl WorkDone {
    /// Creates an empty completion.
    fn empty() -> Self {
        // SAFETY: numbers only, so all zeros is a value. (Of a completion that failed a
        // device writes only some of the fields.)
        Self(unsafe { std::mem::zeroed() })
    }

    /// Creates the completion of a request of a failed device.
    pub(crate) fn dead() -> Self {
        Self::failed(raw::ibv_wc_status::IBV_WC_FATAL_ERR)
    }

    /// Creates the completion of a request not accepted by the device.
    pub(crate) fn lost() -> Self {
        Self::failed(raw::ibv_wc_status::IBV_WC_GENERAL_ERR)
    }

    /// Creates a completion with only this status.
    pub(crate) fn failed(status: u32) -> Self {
        let mut done = Self::empty();
        done.0.status = status;
        done
    }

    /// The number of the request.
    #[inline]
    pub(crate) fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// 0, or an `enum ibv_wc_status`.
    #[inline]
    pub(crate) fn status(&self) -> u32 {
        self.0.status
    }

    pub(crate) fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }

    /// Returns true if the completion is of a peer's RDMA write with immediate data.
    #[inline]
    pub(crate) fn is_write(&self) -> bool {
        self.0.opcode == raw::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
    }

    /// Bytes received.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.byte_len as usize
    }

    /// The peer's immediate data.
    #[inline]
    pub(crate) fn data(&self) -> Option<u32> {
        let with_data = self.0.wc_flags & raw::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        with_data.then(|| u32::from_be(self.0.imm_data))
    }

    /// The number of the queue pair.
    #[inline]
    pub(crate) fn qp(&self) -> u32 {
        self.0.qp_num
    }
}

/// Work completions taken at once, at most.
pub(crate) const POLL_MAX: usize = 64;

/// A device's completion queue (ibv_create_cq(3)).
#[derive(Debug)]
pub(crate) struct HwCq {
    cq: NonNull<raw::ibv_cq>,
    _channel: Arc<CompChannel>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for HwCq {}
// SAFETY: as above.
unsafe impl Sync for HwCq {}

impl HwCq {
    pub(crate) fn new(
        device: VerbsDevice,
        size: usize,
        channel: &Arc<CompChannel>,
    ) -> Result<Self> {
        let size = c_int::try_from(size).map_err(|_| Error::INVAL)?;
        let ch = channel.0.as_ptr();
        // SAFETY: device and channel are open.
        let cq = unsafe { raw::ibv_create_cq(device.0.as_ptr(), size, ptr::null_mut(), ch, 0) };
        Ok(Self { cq: object(cq)?, _channel: channel.clone() })
    }

    /// The next completion makes the channel readable.
    pub(crate) fn arm(&self) -> Result {
        // SAFETY: the queue is open.
        check_code(unsafe { raw::ibv_req_notify_cq(self.cq.as_ptr(), 0) })
    }

    /// Takes completions, up to the size of `buffer`, at most [`POLL_MAX`].
    #[inline]
    pub(crate) fn poll<'a>(&self, buffer: &'a mut [WorkDone]) -> &'a [WorkDone] {
        let most = buffer.len().min(POLL_MAX) as c_int;
        let first = buffer.as_mut_ptr().cast::<raw::ibv_wc>();
        // SAFETY: the queue is open and writes at most the passed number of entries; `WorkDone` is
        // transparent for them.
        let n = unsafe { raw::ibv_poll_cq(self.cq.as_ptr(), most, first) };
        buffer.get(..usize::try_from(n).unwrap_or(0)).unwrap_or_default()
    }
}

/// Creates a buffer for work completions taken at once: at least one, at most [`POLL_MAX`].
pub(crate) fn bunch(size: usize) -> Box<[WorkDone]> {
    (0..size.clamp(1, POLL_MAX)).map(|_| WorkDone::empty()).collect()
}

impl Drop for HwCq {
    fn drop(&mut self) {
        // SAFETY: endpoints let go of their queue pairs before the engine does of this.
        unsafe { raw::ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

/// The text of a work completion's status.
pub(crate) fn status_text(status: c_int) -> Option<&'static CStr> {
    let status = u32::try_from(status).ok()?;
    // SAFETY: answers a constant string for any number.
    let text = unsafe { raw::ibv_wc_status_str(status) };
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

pub(crate) use raw::ibv_wc_status as status;

/// A piece of registered memory (struct ibv_sge).
pub(crate) type Sge = raw::ibv_sge;

/// Receives shared by queue pairs (ibv_create_srq(3)).
#[derive(Debug)]
pub(crate) struct Srq {
    srq: NonNull<raw::ibv_srq>,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub(crate) fn new(pd: &Arc<Pd>, size: u32, segments: u32) -> Result<Self> {
        let mut attr = raw::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: raw::ibv_srq_attr { max_wr: size, max_sge: segments, srq_limit: 0 },
        };
        // SAFETY: the domain is open, the attributes live for the call.
        let srq = object(unsafe { raw::ibv_create_srq(pd.0.as_ptr(), &raw mut attr) })?;
        Ok(Self { srq, _pd: pd.clone() })
    }

    /// Posts a receive (ibv_post_srq_recv(3)).
    ///
    /// # Safety
    /// The memory of `to` stays the library's until the completion.
    pub(crate) unsafe fn recv(&self, wr_id: u64, to: &mut [Sge]) -> Result {
        let mut wr = recv_wr(wr_id, to);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is open; the request lives for the call.
        check_code(unsafe { raw::ibv_post_srq_recv(self.srq.as_ptr(), &raw mut wr, &raw mut bad) })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: the queue pairs on it are gone: endpoints hold the context open.
        unsafe { raw::ibv_destroy_srq(self.srq.as_ptr()) };
    }
}

fn recv_wr(wr_id: u64, to: &mut [Sge]) -> raw::ibv_recv_wr {
    let sg_list = to.as_mut_ptr();
    raw::ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list, num_sge: to.len() as c_int }
}

/// Operation of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Send,
    Write { addr: u64, key: u32 },
    Read { addr: u64, key: u32 },
    FetchAdd { addr: u64, key: u32, add: u64 },
    CompareSwap { addr: u64, key: u32, compare: u64, swap: u64 },
}

/// Options of a work request.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct WorkFlags {
    /// Immediate data for the peer.
    pub(crate) data: Option<u32>,
    /// The bytes are copied by the call.
    pub(crate) inline: bool,
    /// True if success is reported as well as failure.
    pub(crate) signalled: bool,
    /// After all reads and atomic operations before it.
    pub(crate) fence: bool,
}

/// A work request to be posted.
pub(crate) struct WorkRequest {
    wr: raw::ibv_send_wr,
    /// The request's memory.
    pub(crate) sges: [Sge; IOV_LIMIT],
}

// SAFETY: its pointers are set and read by `CmId::post` alone.
unsafe impl Send for WorkRequest {}

impl Default for WorkRequest {
    #[inline]
    fn default() -> Self {
        // SAFETY: numbers and null pointers, so all zeros is a value.
        unsafe { std::mem::zeroed() }
    }
}

impl WorkRequest {
    /// Makes it a request with this number, on the first `count` of its segments.
    #[inline(always)]
    pub(crate) fn is(&mut self, wr_id: u64, verb: Verb, count: usize, how: WorkFlags) {
        use raw::ibv_send_flags as flags;
        use raw::ibv_wr_opcode::*;
        let wr = &mut self.wr;
        wr.wr_id = wr_id;
        wr.num_sge = count.min(IOV_LIMIT) as c_int;
        let on = |on: bool, flag: flags| if on { flag.0 } else { 0 };
        wr.send_flags = on(how.inline, flags::IBV_SEND_INLINE)
            | on(how.signalled, flags::IBV_SEND_SIGNALED)
            | on(how.fence, flags::IBV_SEND_FENCE);
        if let Some(data) = how.data {
            wr.imm_data = data.to_be();
        }
        let with_data = how.data.is_some();
        wr.opcode = match verb {
            Verb::Send if with_data => IBV_WR_SEND_WITH_IMM,
            Verb::Send => IBV_WR_SEND,
            Verb::Write { addr, key } => {
                wr.wr.rdma = raw::rdma_t { remote_addr: addr, rkey: key };
                if with_data { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE }
            }
            Verb::Read { addr, key } => {
                wr.wr.rdma = raw::rdma_t { remote_addr: addr, rkey: key };
                IBV_WR_RDMA_READ
            }
            Verb::FetchAdd { addr, key, add } => {
                wr.wr.atomic =
                    raw::atomic_t { remote_addr: addr, compare_add: add, swap: 0, rkey: key };
                IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            Verb::CompareSwap { addr, key, compare, swap } => {
                wr.wr.atomic =
                    raw::atomic_t { remote_addr: addr, compare_add: compare, swap, rkey: key };
                IBV_WR_ATOMIC_CMP_AND_SWP
            }
        };
    }

    /// Makes it a datagram to this peer.
    pub(crate) fn goes(&mut self, way: &UdAddressHandle) {
        let (ah, remote_qpn) = (way.ah.as_ptr(), way.qpn);
        self.wr.wr.ud = raw::ud_t { ah, remote_qpn, remote_qkey: QKEY };
    }
}

/// The attributes of a queue pair to make.
#[derive(Debug)]
pub(crate) struct QpSpec<'a> {
    pub(crate) cq: &'a HwCq,
    pub(crate) srq: Option<&'a Srq>,
    pub(crate) sends: u32,
    pub(crate) recvs: u32,
    pub(crate) send_segments: u32,
    pub(crate) recv_segments: u32,
    pub(crate) inline: u32,
    /// For datagrams, not for a connection.
    pub(crate) datagrams: bool,
}

impl QpSpec<'_> {
    fn attr(&self) -> raw::ibv_qp_init_attr {
        let cq = self.cq.cq.as_ptr();
        raw::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: self.srq.map_or(ptr::null_mut(), |srq| srq.srq.as_ptr()),
            cap: raw::ibv_qp_cap {
                max_send_wr: self.sends,
                max_recv_wr: if self.srq.is_some() { 0 } else { self.recvs },
                max_send_sge: self.send_segments,
                max_recv_sge: self.recv_segments,
                max_inline_data: self.inline,
            },
            qp_type: match self.datagrams {
                true => raw::ibv_qp_type::IBV_QPT_UD,
                false => raw::ibv_qp_type::IBV_QPT_RC,
            },
            sq_sig_all: 0,
        }
    }

    /// Returns true if the device can create such a queue pair.
    pub(crate) fn is_possible(&self, pd: &Arc<Pd>) -> bool {
        let mut attr = self.attr();
        // SAFETY: domain and queues are open; a pair that was made is destroyed.
        unsafe {
            let qp = raw::ibv_create_qp(pd.0.as_ptr(), &raw mut attr);
            !qp.is_null() && raw::ibv_destroy_qp(qp) == 0
        }
    }
}

/// An open queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp<'a>(NonNull<raw::ibv_qp>, PhantomData<&'a ()>);

impl Qp<'_> {
    /// The queue pair's number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: open.
        unsafe { self.0.as_ref().qp_num }
    }

    /// Posts a receive (ibv_post_recv(3)).
    ///
    /// # Safety
    /// The memory of `to` stays the library's until the completion.
    pub(crate) unsafe fn recv(&self, wr_id: u64, to: &mut [Sge]) -> Result {
        let mut wr = recv_wr(wr_id, to);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is open; the request lives for the call.
        check_code(unsafe { raw::ibv_post_recv(self.0.as_ptr(), &raw mut wr, &raw mut bad) })
    }

    /// Posts work requests, in this order and with one doorbell (ibv_post_send(3)). On failure,
    /// also returns the number of requests posted nevertheless.
    ///
    /// # Safety
    /// The requests' memory stays the library's until their completion, or until the return for
    /// those sent inline.
    #[inline(always)]
    pub(crate) unsafe fn post(
        &self,
        work: &mut [WorkRequest],
    ) -> core::result::Result<(), (Error, usize)> {
        let mut next: *mut raw::ibv_send_wr = ptr::null_mut();
        for work in work.iter_mut().rev() {
            work.wr.sg_list = work.sges.as_mut_ptr();
            work.wr.next = next;
            next = &raw mut work.wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is open; the requests live for the call.
        let posted = check_code(unsafe { raw::ibv_post_send(self.0.as_ptr(), next, &raw mut bad) });
        posted.map_err(|error| {
            let at = |work: &WorkRequest| ptr::eq(&raw const work.wr, bad);
            (error, work.iter().position(at).unwrap_or(0))
        })
    }

    /// Sets the delay until a peer may retry after finding no posted receive.
    pub(crate) fn set_rnr_timer(&self, timer: u8) -> Result {
        // SAFETY: numbers and plain structures, so all zeros is a value; the queue
        // pair is open.
        unsafe {
            let mut attr: raw::ibv_qp_attr = std::mem::zeroed();
            attr.min_rnr_timer = timer;
            let mask = raw::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as c_int;
            check_code(raw::ibv_modify_qp(self.0.as_ptr(), &raw mut attr, mask))
        }
    }

    /// Flushes the posted requests without a connection to end.
    pub(crate) fn fail(&self) -> Result {
        // SAFETY: as above.
        unsafe {
            let mut attr: raw::ibv_qp_attr = std::mem::zeroed();
            attr.qp_state = raw::ibv_qp_state::IBV_QPS_ERR;
            let mask = raw::ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
            check_code(raw::ibv_modify_qp(self.0.as_ptr(), &raw mut attr, mask))
        }
    }

    fn modify(&self, attr: &mut raw::ibv_qp_attr, mask: raw::ibv_qp_attr_mask) -> Result {
        // SAFETY: open; the attributes live for the call.
        check_code(unsafe { raw::ibv_modify_qp(self.0.as_ptr(), attr, mask.0 as c_int) })
    }
}

/// Queue key shared by the datagram endpoints of upstream libfabric and this library.
const QKEY: u32 = 0x1111_1111;

/// A queue pair for datagrams (IBV_QPT_UD), on the first port.
#[derive(Debug)]
pub(crate) struct UdQp {
    qp: NonNull<raw::ibv_qp>,
    pd: Arc<Pd>,
    /// Index of the port's GID used as source of datagrams.
    gid_index: u8,
    /// Maximum bytes sent inline.
    pub(crate) inline: u32,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for UdQp {}
// SAFETY: as above.
unsafe impl Sync for UdQp {}

impl UdQp {
    /// Creates a queue pair for datagrams, ready to send and receive.
    pub(crate) fn new(pd: &Arc<Pd>, spec: &QpSpec<'_>, gid_index: u8) -> Result<Self> {
        let mut attr = spec.attr();
        // SAFETY: all is open; the attributes live for the call.
        let qp = object(unsafe { raw::ibv_create_qp(pd.0.as_ptr(), &raw mut attr) })?;
        let inline = attr.cap.max_inline_data;
        let pair = Self { qp, pd: pd.clone(), gid_index, inline };
        use raw::ibv_qp_attr_mask as mask;
        // SAFETY: numbers and plain structures, so all zeros is a value.
        let mut attr: raw::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.port_num = 1;
        attr.qkey = QKEY;
        attr.qp_state = raw::ibv_qp_state::IBV_QPS_INIT;
        let port = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_QKEY;
        pair.qp().modify(&mut attr, mask::IBV_QP_STATE | port)?;
        attr.qp_state = raw::ibv_qp_state::IBV_QPS_RTR;
        pair.qp().modify(&mut attr, mask::IBV_QP_STATE)?;
        attr.qp_state = raw::ibv_qp_state::IBV_QPS_RTS;
        pair.qp().modify(&mut attr, mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN)?;
        Ok(pair)
    }

    pub(crate) fn qp(&self) -> Qp<'_> {
        Qp(self.qp, PhantomData)
    }

    /// The way to another queue pair.
    pub(crate) fn address_handle_of(&self, to: &UdAddr) -> Result<UdAddressHandle> {
        // SAFETY: numbers only, so all zeros is a value.
        let mut attr: raw::ibv_ah_attr = unsafe { std::mem::zeroed() };
        attr.grh.dgid = raw::ibv_gid { raw: to.gid };
        attr.grh.sgid_index = self.gid_index;
        attr.grh.hop_limit = 64;
        attr.is_global = 1;
        attr.dlid = to.lid;
        attr.sl = to.sl;
        attr.port_num = 1;
        // SAFETY: open; the attributes live for the call.
        let ah = object(unsafe { raw::ibv_create_ah(self.pd.0.as_ptr(), &raw mut attr) })?;
        Ok(UdAddressHandle { ah, qpn: to.qpn, _pd: self.pd.clone() })
    }
}

impl Drop for UdQp {
    fn drop(&mut self) {
        // SAFETY: open, and ours.
        unsafe { raw::ibv_destroy_qp(self.qp.as_ptr()) };
    }
}

/// The way to a peer's queue pair for datagrams (ibv_create_ah(3)).
#[derive(Debug)]
pub(crate) struct UdAddressHandle {
    ah: NonNull<raw::ibv_ah>,
    qpn: u32,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for UdAddressHandle {}
// SAFETY: as above.
unsafe impl Sync for UdAddressHandle {}

impl Drop for UdAddressHandle {
    fn drop(&mut self) {
        // SAFETY: open, and requests that use it were copied when they were posted.
        unsafe { raw::ibv_destroy_ah(self.ah.as_ptr()) };
    }
}

/// Logs the rejection of an InfiniBand address: the kernel may reject the address of an existing
/// port.
fn refused(what: &str, addr: &Addr, error: &Error) {
    if addr.is_ib() {
        ofi_provider::log!(
            &VERBS,
            WARN,
            EP_CTRL,
            "cannot {what} to {addr}: {error}; the kernel takes such addresses on ports of \
             InfiniBand, and RoCE needs IP addresses"
        );
    }
}

/// A connection's identifier (rdma_create_id(3)), with its queue pair once it
/// has one.
#[derive(Debug)]
pub(crate) struct CmId {
    id: NonNull<raw::rdma_cm_id>,
    channel: Arc<Channel>,
    pd: Option<Arc<Pd>>,
}

// SAFETY: librdmacm and libibverbs may be called from any thread.
unsafe impl Send for CmId {}
// SAFETY: what changes it behind a shared reference are the calls of the
// libraries, which lock by themselves.
unsafe impl Sync for CmId {}

impl CmId {
    /// Creates an identifier for addresses of this kind; its events go to `channel` with `token`.
    pub(crate) fn new(channel: &Arc<Channel>, token: usize, kind: &Addr) -> Result<Self> {
        let mut id = ptr::null_mut();
        let space = match kind {
            Addr::Ib(_) => raw::rdma_port_space::RDMA_PS_IB,
            _ => raw::rdma_port_space::RDMA_PS_TCP,
        };
        let token = token as *mut c_void;
        // SAFETY: the channel is open.
        check(unsafe { raw::rdma_create_id(channel.0.as_ptr(), &raw mut id, token, space) })?;
        Ok(Self { id: object(id)?, channel: channel.clone(), pd: None })
    }

    /// Has events of the identifier come to `channel` with `token` from now on.
    pub(crate) fn migrate(&mut self, channel: &Arc<Channel>, token: usize) -> Result {
        // SAFETY: both are open; all events were acknowledged when they were read.
        unsafe {
            (*self.id.as_ptr()).context = token as *mut c_void;
            check(raw::rdma_migrate_id(self.id.as_ptr(), channel.0.as_ptr()))?;
        }
        self.channel = channel.clone();
        Ok(())
    }

    /// Takes this local address; port 0 stands for any.
    pub(crate) fn bind(&self, to: &Addr) -> Result {
        let mut bytes = to.to_bytes();
        // SAFETY: the identifier is open; the address, which is only read, lives
        // for the call.
        check(unsafe { raw::rdma_bind_addr(self.id.as_ptr(), bytes.as_mut_ptr().cast()) })
            .inspect_err(|error| refused("bind", to, error))
    }

    /// Shares its port with other identifiers doing the same, while none listens.
    pub(crate) fn share_port(&self) -> Result {
        // RDMA_OPTION_ID and RDMA_OPTION_ID_REUSEADDR (rdma_set_option(3)).
        const OPTION: [c_int; 2] = [0, 1];
        let mut on: c_int = 1;
        let (at, len) = ((&raw mut on).cast(), size_of::<c_int>());
        // SAFETY: the identifier is open; the value lives for the call.
        check(unsafe { raw::rdma_set_option(self.id.as_ptr(), OPTION[0], OPTION[1], at, len) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Result {
        // SAFETY: the identifier is open.
        check(unsafe { raw::rdma_listen(self.id.as_ptr(), backlog) })
    }

    /// Starts to resolve the route to an address.
    pub(crate) fn resolve_addr(&self, to: &Addr) -> Result {
        let mut bytes = to.to_bytes();
        let name = bytes.as_mut_ptr().cast();
        // SAFETY: as in `bind`.
        check(unsafe {
            raw::rdma_resolve_addr(self.id.as_ptr(), ptr::null_mut(), name, RESOLVE_TIMEOUT)
        })
        .inspect_err(|error| refused("connect", to, error))
    }

    /// Continues with resolving the route, after the address was resolved.
    pub(crate) fn resolve_route(&self) -> Result {
        // SAFETY: the identifier is open.
        check(unsafe { raw::rdma_resolve_route(self.id.as_ptr(), RESOLVE_TIMEOUT) })
    }

    /// The device it is bound to.
    pub(crate) fn device(&self) -> Option<VerbsDevice> {
        // SAFETY: the identifier is open.
        NonNull::new(unsafe { self.id.as_ref().verbs }).map(VerbsDevice)
    }

    /// The connection's own address, if it is bound to one.
    pub(crate) fn local(&self) -> Option<Addr> {
        // SAFETY: an address starts with its family, and the storage is as long as any.
        unsafe {
            let at = &raw const self.id.as_ref().src_storage;
            Addr::from_bytes(addr::bytes_at(at.cast()).ok()?).ok()
        }
    }

    /// The peer's address, if there is one.
    pub(crate) fn peer(&self) -> Option<Addr> {
        // SAFETY: as in `local`.
        unsafe {
            let at = &raw const self.id.as_ref().dst_storage;
            Addr::from_bytes(addr::bytes_at(at.cast()).ok()?).ok()
        }
    }

    /// Creates its queue pair (rdma_create_qp(3)); returns the maximum bytes sent inline.
    pub(crate) fn create_qp(&mut self, pd: &Arc<Pd>, spec: &QpSpec<'_>) -> Result<u32> {
        let mut attr = spec.attr();
        // SAFETY: all is open; the attributes live for the call.
        check(unsafe { raw::rdma_create_qp(self.id.as_ptr(), pd.0.as_ptr(), &raw mut attr) })?;
        self.pd = Some(pd.clone());
        Ok(attr.cap.max_inline_data)
    }

    /// The connection's queue pair, once it has one.
    pub(crate) fn qp(&self) -> Result<Qp<'_>> {
        // SAFETY: the identifier is open; its queue pair lives as long.
        let qp = NonNull::new(unsafe { self.id.as_ref().qp }).ok_or(Error::NOTCONN)?;
        Ok(Qp(qp, PhantomData))
    }

    /// Returns the parameters of a request or its acceptance.
    fn param(data: &[u8]) -> raw::rdma_conn_param {
        raw::rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: data.len() as u8,
            // As much as the devices on both sides have.
            responder_resources: u8::MAX,
            initiator_depth: u8::MAX,
            flow_control: 1,
            retry_count: 15,
            // For ever: the receiver decides when it posts.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        }
    }

    pub(crate) fn connect(&self, data: &[u8]) -> Result {
        let mut param = Self::param(data);
        // SAFETY: the identifier is open; parameters and data live for the call.
        check(unsafe { raw::rdma_connect(self.id.as_ptr(), &raw mut param) })
    }

    pub(crate) fn accept(&self, data: &[u8]) -> Result {
        let mut param = Self::param(data);
        // SAFETY: as above.
        check(unsafe { raw::rdma_accept(self.id.as_ptr(), &raw mut param) })
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Result {
        let (at, len) = (data.as_ptr().cast(), data.len() as u8);
        // SAFETY: as above.
        check(unsafe { raw::rdma_reject(self.id.as_ptr(), at, len) })
    }

    /// Reports a message received before the end of the handshake, completing the handshake in its
    /// place.
    pub(crate) fn message_came(&self) -> Result {
        let event = raw::ibv_event_type::IBV_EVENT_COMM_EST;
        // SAFETY: the identifier is open.
        check(unsafe { raw::rdma_notify(self.id.as_ptr(), event) })
    }

    /// Ends the connection; posted requests are flushed.
    pub(crate) fn disconnect(&self) -> Result {
        // SAFETY: the identifier is open.
        check(unsafe { raw::rdma_disconnect(self.id.as_ptr()) })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: open, and ours; all its events are acknowledged, so the call
        // does not wait.
        unsafe {
            if !self.id.as_ref().qp.is_null() {
                raw::rdma_destroy_qp(self.id.as_ptr());
            }
            raw::rdma_destroy_id(self.id.as_ptr());
        }
    }
}

/// Kind of a connection event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CmKind {
    AddrResolved,
    RouteResolved,
    Request,
    Established,
    Rejected,
    /// The connection could not be made: no listener, no route, or no answer.
    Failed,
    Disconnected,
    /// The device goes away.
    Removed,
    Other,
}

/// An event of a connection.
#[derive(Debug)]
pub(crate) struct CmEvent {
    pub(crate) kind: CmKind,
    /// Token of the event's identifier; for a request, of the listener.
    pub(crate) token: usize,
    /// The new connection, for a request.
    pub(crate) request: Option<CmId>,
    /// 0, a negative errno, or the reason of a rejection.
    pub(crate) status: c_int,
    /// Private data sent by the peer.
    pub(crate) data: Vec<u8>,
}

/// Event channel of connections (rdma_create_event_channel(3)).
#[derive(Debug)]
pub(crate) struct Channel(NonNull<raw::rdma_event_channel>);

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new() -> Result<Arc<Self>> {
        // SAFETY: no memory is passed.
        let channel = object(unsafe { raw::rdma_create_event_channel() })?;
        let channel = Arc::new(Self(channel));
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: open until this is dropped.
        unsafe { self.0.as_ref().fd }
    }

    /// The next event, if there is one.
    pub(crate) fn next(self: &Arc<Self>) -> Option<CmEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open and does not block; what it answers is an
        // event until it is acknowledged, and its private data is as long as it says.
        unsafe {
            if raw::rdma_get_cm_event(self.0.as_ptr(), &raw mut event) != 0 || event.is_null() {
                return None;
            }
            let of = &*event;
            let conn = of.conn;
            let data = match conn.private_data.is_null() {
                true => Vec::new(),
                false => {
                    let len = usize::from(conn.private_data_len);
                    std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec()
                }
            };
            let kind = match of.event {
                cm_event::RDMA_CM_EVENT_ADDR_RESOLVED => CmKind::AddrResolved,
                cm_event::RDMA_CM_EVENT_ROUTE_RESOLVED => CmKind::RouteResolved,
                cm_event::RDMA_CM_EVENT_CONNECT_REQUEST => CmKind::Request,
                cm_event::RDMA_CM_EVENT_ESTABLISHED => CmKind::Established,
                cm_event::RDMA_CM_EVENT_REJECTED => CmKind::Rejected,
                cm_event::RDMA_CM_EVENT_DISCONNECTED => CmKind::Disconnected,
                cm_event::RDMA_CM_EVENT_DEVICE_REMOVAL => CmKind::Removed,
                cm_event::RDMA_CM_EVENT_ADDR_ERROR
                | cm_event::RDMA_CM_EVENT_ROUTE_ERROR
                | cm_event::RDMA_CM_EVENT_CONNECT_ERROR
                | cm_event::RDMA_CM_EVENT_UNREACHABLE => CmKind::Failed,
                _ => CmKind::Other,
            };
            let (status, id) = (of.status, NonNull::new(of.id));
            let token = id.map_or(0, |id| id.as_ref().context as usize);
            raw::rdma_ack_cm_event(event);
            // Only after that may the new identifier move to another channel.
            let request = match (kind, id) {
                (CmKind::Request, Some(id)) => Some(CmId { id, channel: self.clone(), pd: None }),
                _ => None,
            };
            Some(CmEvent { kind, token, request, status, data })
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its identifiers hold counts on it, so none is left.
        unsafe { raw::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests;
