//! Objects of libfabric: the boundary to the C interface.
//!
//! The library is loaded at the start by its name, and its newest functions are used: one
//! program measures every version of it.
use crate::device::Device;
use crate::failure::{During, Failure, Outcomes, fail};
use crate::memory::{Contexts, Memory};
use crate::options::{EpKind, Level, Op, Parameters};
use ofi::abi::*;
use ofi::error::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
type OpenFabric =
    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;

/// Functions of the loaded library.
struct Library {
    version: unsafe extern "C" fn() -> u32,
    getinfo: GetInfo,
    freeinfo: unsafe extern "C" fn(*mut fi_info),
    dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    fabric: OpenFabric,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();
/// API version of the requests: all functions used here are in every later one.
const API: u32 = 1 << 16 | 9;

/// Loads `libfabric.so.1`.
pub(crate) fn load() -> Outcomes {
    // SAFETY: the name is a C string; the library's constructors run, as in any program using it.
    let handle = unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        // SAFETY: after a failed dlopen this is the text of the error.
        let text = unsafe { CStr::from_ptr(libc::dlerror()) };
        return fail(text.to_string_lossy());
    }
    let find = |name: &CStr| {
        // SAFETY: the handle is valid, the name a C string.
        let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
        let missing = || Failure(format!("libfabric.so.1 has no {}", name.to_string_lossy()));
        NonNull::new(function).ok_or_else(missing)
    };
    let [version, getinfo, freeinfo, dupinfo, fabric] =
        [c"fi_version", c"fi_getinfo", c"fi_freeinfo", c"fi_dupinfo", c"fi_fabric"].map(find);
    // SAFETY: these functions have these types in every version of the library; it is never
    // unloaded.
    let library = unsafe {
        Library {
            version: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> u32>(
                version?,
            ),
            getinfo: std::mem::transmute::<NonNull<c_void>, GetInfo>(getinfo?),
            freeinfo: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*mut fi_info)>(
                freeinfo?,
            ),
            dupinfo: std::mem::transmute::<
                NonNull<c_void>,
                unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
            >(dupinfo?),
            fabric: std::mem::transmute::<NonNull<c_void>, OpenFabric>(fabric?),
        }
    };
    LIBRARY.get_or_init(|| library);
    Ok(())
}

fn library() -> &'static Library {
    LIBRARY.get().expect("main loads the library first")
}

/// Returns the version of the loaded library.
pub(crate) fn library_version() -> u32 {
    // SAFETY: no preconditions.
    unsafe { (library().version)() }
}

/// Calls `object->table->function(object, arguments…)` of the C interface.
macro_rules! call {
    ($object:expr, $table:ident . $function:ident ( $($argument:expr),* $(,)? )) => {{
        let object = $object;
        // SAFETY: the object was opened by the provider and is open (`OpenFid` closes it last), so
        // it and its tables exist; every table used here has the function in its first version.
        // Pointers among the arguments outlive the call, or, for transfers, point to the `Memory`
        // and contexts of the endpoint's owner, which outlive the endpoint.
        unsafe {
            match (*(*object).$table).$function {
                Some(function) => Error::check(function(object, $($argument),*) as c_int),
                None => Err(Error::NOSYS),
            }
        }
    }};
}

/// Object opened by the library, closed on drop.
pub(crate) struct OpenFid<T>(NonNull<T>);

// SAFETY: objects may be used by any thread; those of a domain by one thread at a time
// (FI_THREAD_DOMAIN), as their owner is borrowed mutably.
unsafe impl<T> Send for OpenFid<T> {}

impl<T> OpenFid<T> {
    fn new(step: &str, open: impl FnOnce(*mut *mut T) -> Result<c_int>) -> Outcomes<Self> {
        let mut object = ptr::null_mut();
        open(&mut object).during(step)?;
        NonNull::new(object).map(Self).ok_or(Error::INVAL).during(step)
    }
    fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
    /// Every object starts with its fid.
    fn fid(&self) -> *mut fid {
        self.get().cast()
    }
    fn bind<U>(&self, to: &OpenFid<U>, flags: u64) -> Outcomes {
        call!(self.fid(), ops.bind(to.fid(), flags)).during("fi_ep_bind").map(drop)
    }
}
impl<T> Drop for OpenFid<T> {
    fn drop(&mut self) {
        if let Err(error) = call!(self.fid(), ops.close()) {
            eprintln!("fi_perf: fi_close: {error}");
        }
    }
}

/// List returned by fi_getinfo, or hints.
pub(crate) struct Info(NonNull<fi_info>);

// SAFETY: plain data owned by the list.
unsafe impl Send for Info {}

/// Returns a copy of memory, freed by fi_freeinfo.
fn c_copy(bytes: &[u8]) -> Outcomes<*mut c_void> {
    // SAFETY: what malloc returns has space for all bytes.
    unsafe {
        let copy = libc::malloc(bytes.len());
        if copy.is_null() {
            return Err(Error::NOMEM).during("hints");
        }
        ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len());
        Ok(copy)
    }
}

fn c_string(text: &str) -> Outcomes<*mut c_char> {
    let text = CString::new(text).map_err(|_| Error::INVAL).during("name")?;
    c_copy(text.as_bytes_with_nul()).map(<*mut c_void>::cast)
}

fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: texts of an info are C strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Info {
    /// Returns the hints for an operation.
    pub(crate) fn hints(
        parameters: &Parameters,
        op: Op,
        provider: Option<&str>,
        domain: Option<&str>,
    ) -> Outcomes<Self> {
        // SAFETY: fi_dupinfo of NULL allocates an empty fi_info with all attributes.
        let info = NonNull::new(unsafe { (library().dupinfo)(ptr::null()) });
        let info = info.map(Self).ok_or(Error::NOMEM).during("fi_allocinfo")?;
        // SAFETY: the info is complete and has no other owner.
        unsafe {
            let i = &mut *info.get();
            i.caps = match op {
                Op::Msg => FI_MSG,
                Op::Tagged => FI_TAGGED,
                Op::Read | Op::Write => FI_RMA,
                Op::WriteData => FI_RMA | FI_MSG,
                Op::Atomic | Op::Fetch | Op::Cswap => FI_ATOMIC,
            };
            i.mode = FI_CONTEXT | FI_CONTEXT2;
            if op == Op::WriteData {
                i.mode |= FI_RX_CQ_DATA;
                (*i.domain_attr).cq_data_size = 4;
            }
            (*i.ep_attr).r#type = match parameters.ep {
                EpKind::Rdm => fi_ep_type::FI_EP_RDM,
                EpKind::Msg => fi_ep_type::FI_EP_MSG,
                EpKind::Dgram => fi_ep_type::FI_EP_DGRAM,
            }
            .into();
            let order =
                if parameters.ep == EpKind::Dgram || op.is_one_sided() { 0 } else { FI_ORDER_SAS };
            (*i.tx_attr).msg_order = order;
            (*i.rx_attr).msg_order = order;
            (*i.tx_attr).op_flags = match parameters.level {
                Level::Default => 0,
                Level::Inject => FI_INJECT_COMPLETE,
                Level::Transmit => FI_TRANSMIT_COMPLETE,
                Level::Delivery => FI_DELIVERY_COMPLETE,
            };
            (*i.domain_attr).threading = fi_threading::FI_THREAD_DOMAIN.into();
            (*i.domain_attr).mr_mode =
                FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
            if let Some(number) = parameters.device {
                // Without the device no provider offers FI_HMEM, and the reason would be unknown.
                Device::open(number)?;
                i.caps |= FI_HMEM;
                (*i.domain_attr).mr_mode |= FI_MR_HMEM;
            }
            if let Some(name) = domain {
                (*i.domain_attr).name = c_string(name)?;
            }
            if let Some(name) = provider {
                (*i.fabric_attr).prov_name = c_string(name)?;
            }
        }
        Ok(info)
    }

    /// Sets the destination of hints.
    pub(crate) fn set_destination(&self, format: u32, address: &[u8]) -> Outcomes {
        // SAFETY: the hints are ours; fi_freeinfo frees the copy.
        unsafe {
            let i = &mut *self.get();
            i.addr_format = format;
            i.dest_addr = c_copy(address)?;
            i.dest_addrlen = address.len();
        }
        Ok(())
    }

    /// Returns the first info for these hints, with this source address.
    pub(crate) fn find(&self, source: Option<&str>) -> Outcomes<Self> {
        let source = source.map(CString::new).transpose();
        let source = source.map_err(|_| Failure("the source address has a zero byte".into()))?;
        let (node, flags) = source.as_ref().map_or((ptr::null(), 0), |s| (s.as_ptr(), FI_SOURCE));
        let mut info = ptr::null_mut();
        // SAFETY: the hints are a complete fi_info, node is null or a C string.
        let r =
            unsafe { (library().getinfo)(API, node, ptr::null(), flags, self.get(), &mut info) };
        Error::check(r).during("fi_getinfo")?;
        NonNull::new(info).map(Self).ok_or(Error::NODATA).during("fi_getinfo")
    }

    fn get(&self) -> *mut fi_info {
        self.0.as_ptr()
    }
    fn view(&self) -> &fi_info {
        // SAFETY: the library returned a complete struct; it is freed with self.
        unsafe { self.0.as_ref() }
    }
    /// Returns the mode bits of memory regions, and the type of address vectors. Older libraries
    /// have shorter attributes, so there is no reference to all of them.
    fn domain_modes(&self) -> (c_int, c_enum<fi_av_type>) {
        // SAFETY: the info of an endpoint has its attributes.
        unsafe { ((*self.view().domain_attr).mr_mode, (*self.view().domain_attr).av_type) }
    }
    pub(crate) fn provider(&self) -> String {
        // SAFETY: as above.
        text_of(unsafe { (*self.view().fabric_attr).prov_name })
    }
    pub(crate) fn provider_version(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.view().fabric_attr).prov_version }
    }
    pub(crate) fn fabric(&self) -> String {
        // SAFETY: as above.
        text_of(unsafe { (*self.view().fabric_attr).name })
    }
    pub(crate) fn domain(&self) -> String {
        // SAFETY: as above.
        text_of(unsafe { (*self.view().domain_attr).name })
    }
    pub(crate) fn format(&self) -> u32 {
        self.view().addr_format
    }
    /// Returns true if addresses are those of IP.
    pub(crate) fn is_ip(&self) -> bool {
        let ip = [FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6];
        ip.iter().any(|format| *format as u32 == self.format())
    }
    pub(crate) fn max_size(&self) -> u64 {
        // SAFETY: the info of an endpoint has its attributes.
        unsafe { (*self.view().ep_attr).max_msg_size as u64 }
    }
    pub(crate) fn inject_size(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.view().tx_attr).inject_size as u64 }
    }
    pub(crate) fn receive_queue(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.view().rx_attr).size as u64 }
    }
    /// Returns true if remote completion data consumes posted receives.
    pub(crate) fn consumes_receives(&self) -> bool {
        self.view().mode & FI_RX_CQ_DATA != 0
    }
}
impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: from fi_getinfo, fi_dupinfo or a connection request, without another owner.
        unsafe { (library().freeinfo)(self.get()) }
    }
}

/// Fabric, with an event queue and a listener for connected endpoints.
pub(crate) struct Fabric {
    passive: Option<OpenFid<fid_pep>>,
    events: Option<OpenFid<fid_eq>>,
    fabric: OpenFid<fid_fabric>,
}

impl Fabric {
    pub(crate) fn open(info: &Info, connects: bool) -> Outcomes<Self> {
        let attr = info.view().fabric_attr;
        let fabric = OpenFid::new("fi_fabric", |f| {
            // SAFETY: attr is that of the info.
            Error::check(unsafe { (library().fabric)(attr, f, ptr::null_mut()) })
        })?;
        let events = if connects {
            let mut attr = fi_eq_attr {
                size: 0,
                flags: 0,
                wait_obj: fi_wait_obj::FI_WAIT_UNSPEC.into(),
                signaling_vector: 0,
                wait_set: ptr::null_mut(),
            };
            Some(OpenFid::new("fi_eq_open", |q| {
                call!(fabric.get(), ops.eq_open(&mut attr, q, ptr::null_mut()))
            })?)
        } else {
            None
        };
        Ok(Self { passive: None, events, fabric })
    }

    fn events(&self) -> Outcomes<&OpenFid<fid_eq>> {
        self.events.as_ref().ok_or(Error::NOEQ).during("connection")
    }

    /// Opens a listener and returns its address.
    pub(crate) fn listen(&mut self, info: &Info) -> Outcomes<Vec<u8>> {
        let passive = OpenFid::new("fi_passive_ep", |p| {
            call!(self.fabric.get(), ops.passive_ep(info.get(), p, ptr::null_mut()))
        })?;
        passive.bind(self.events()?, 0)?;
        call!(passive.get(), cm.listen()).during("fi_listen")?;
        // SAFETY: the passive endpoint is open.
        let name = name_of(&passive, unsafe { (*passive.get()).cm })?;
        self.passive = Some(passive);
        Ok(name)
    }

    /// Waits up to a tenth of a second for a connection event; a request comes with its info.
    pub(crate) fn event(&self) -> Outcomes<Option<(u32, Option<Info>)>> {
        let queue = self.events()?.get();
        let mut entry = fi_eq_cm_entry { fid: ptr::null_mut(), info: ptr::null_mut(), data: [] };
        let (mut event, size) = (0, size_of::<fi_eq_cm_entry>());
        match call!(queue, ops.sread(&mut event, (&raw mut entry).cast(), size, 100, 0)) {
            Err(error) if error == Error::AVAIL => {
                // SAFETY: all zeroes is an error entry.
                let mut error: fi_eq_err_entry = unsafe { std::mem::zeroed() };
                call!(queue, ops.readerr(&mut error, 0)).during("fi_eq_readerr")?;
                Err(Error::from_code(error.err)).during("connection")
            }
            Err(error)
                if error == Error::AGAIN || error == Error::INTR || error == Error::TIMEDOUT =>
            {
                Ok(None)
            }
            Err(error) => Err(error).during("fi_eq_sread"),
            Ok(_) => Ok(Some((event, NonNull::new(entry.info).map(Info)))),
        }
    }
}

/// Returns the address of an object.
fn name_of<T>(object: &OpenFid<T>, cm: *mut fi_ops_cm) -> Outcomes<Vec<u8>> {
    let mut name = vec![0u8; 512];
    let mut length = name.len();
    // SAFETY: the object and its table exist while it is open; name has length bytes.
    let r = unsafe {
        match (*cm).getname {
            Some(getname) => {
                Error::check(getname(object.fid(), name.as_mut_ptr().cast(), &mut length))
            }
            None => Err(Error::NOSYS),
        }
    };
    r.during("fi_getname")?;
    name.truncate(length);
    Ok(name)
}

/// Completion read from a queue.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) context: Option<usize>,
    pub(crate) length: usize,
    /// Remote completion data, if there are any.
    pub(crate) data: Option<u64>,
}

/// Number of completions read by one call.
const BATCH: usize = 16;

/// Completion queue with the contexts of its transfers.
pub(crate) struct Queue {
    cq: OpenFid<fid_cq>,
    entries: [fi_cq_data_entry; BATCH],
    /// Entries have flags, length and data.
    detailed: bool,
}

// SAFETY: the entries are data without a thread.
unsafe impl Send for Queue {}

impl Queue {
    /// Reads completions, and waits for up to this number of milliseconds if given. An
    /// interrupted or timed-out wait returns 0.
    #[inline]
    pub(crate) fn read(&mut self, wait: Option<c_int>) -> Outcomes<usize> {
        let to = self.entries.as_mut_ptr().cast::<c_void>();
        let r = match wait {
            None => call!(self.cq.get(), ops.read(to, BATCH)),
            Some(time) => call!(self.cq.get(), ops.sread(to, BATCH, ptr::null(), time)),
        };
        match r {
            Ok(count) => Ok(count as usize),
            Err(error) => self.read_failed(error),
        }
    }

    #[cold]
    fn read_failed(&mut self, error: Error) -> Outcomes<usize> {
        if error == Error::AGAIN || error == Error::INTR || error == Error::TIMEDOUT {
            return Ok(0);
        }
        if error != Error::AVAIL {
            return Err(error).during("fi_cq_read");
        }
        // SAFETY: all zeroes is an error entry; no buffer for error data.
        let mut entry: fi_cq_err_entry = unsafe { std::mem::zeroed() };
        call!(self.cq.get(), ops.readerr(&mut entry, 0)).during("fi_cq_readerr")?;
        Err(Error::from_code(entry.err)).during("transfer")
    }

    /// Returns a completion of the last read.
    #[inline]
    pub(crate) fn completion(&self, at: usize, contexts: &Contexts) -> Completion {
        if self.detailed {
            let entry = &self.entries[at];
            let has_data = entry.flags & FI_REMOTE_CQ_DATA != 0;
            return Completion {
                context: contexts.index(entry.op_context),
                length: entry.len,
                data: has_data.then_some(entry.data),
            };
        }
        let entries = self.entries.as_ptr().cast::<fi_cq_entry>();
        assert!(at < BATCH);
        // SAFETY: the array has space for more entries of this smaller format.
        let entry = unsafe { *entries.add(at) };
        Completion { context: contexts.index(entry.op_context), length: 0, data: None }
    }
}

/// Domain with a completion queue, for the endpoints of one thread.
pub(crate) struct Domain {
    av: Option<OpenFid<fid_av>>,
    domain: OpenFid<fid_domain>,
    provided_key: bool,
    virtual_address: bool,
    binds_regions: bool,
}

/// Requirements of a completion queue.
pub(crate) struct QueueNeeds {
    pub(crate) entries: usize,
    pub(crate) blocks: bool,
    pub(crate) detailed: bool,
}

impl Domain {
    pub(crate) fn open(
        fabric: &Fabric,
        info: &Info,
        needs: &QueueNeeds,
    ) -> Outcomes<(Self, Queue)> {
        let null = ptr::null_mut;
        let domain = OpenFid::new("fi_domain", |d| {
            call!(fabric.fabric.get(), ops.domain(info.get(), d, null()))
        })?;
        // SAFETY: all zeroes requests the defaults.
        let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
        attr.format = if needs.detailed {
            fi_cq_format::FI_CQ_FORMAT_DATA
        } else {
            fi_cq_format::FI_CQ_FORMAT_CONTEXT
        }
        .into();
        attr.wait_obj =
            if needs.blocks { fi_wait_obj::FI_WAIT_UNSPEC } else { fi_wait_obj::FI_WAIT_NONE }
                .into();
        attr.size = needs.entries;
        let cq =
            OpenFid::new("fi_cq_open", |q| call!(domain.get(), ops.cq_open(&mut attr, q, null())))?;
        // SAFETY: all zeroes are entries.
        let entries = unsafe { std::mem::zeroed() };
        let queue = Queue { cq, entries, detailed: needs.detailed };
        // SAFETY: the info of an endpoint has its attributes.
        let kind = unsafe { (*info.view().ep_attr).r#type };
        let av = if kind == c_enum::from(fi_ep_type::FI_EP_MSG) {
            None
        } else {
            // SAFETY: as above.
            let mut attr: fi_av_attr = unsafe { std::mem::zeroed() };
            attr.r#type = info.domain_modes().1;
            Some(OpenFid::new("fi_av_open", |a| {
                call!(domain.get(), ops.av_open(&mut attr, a, null()))
            })?)
        };
        let mode = info.domain_modes().0;
        let domain = Self {
            av,
            domain,
            provided_key: mode & FI_MR_PROV_KEY != 0,
            virtual_address: mode & FI_MR_VIRT_ADDR != 0,
            binds_regions: mode & FI_MR_ENDPOINT != 0,
        };
        Ok((domain, queue))
    }

    /// Returns the number of elements of an atomic operation.
    pub(crate) fn max_atomic(&self, op: Op) -> u64 {
        let (operation, flags) = match op {
            Op::Atomic => (fi_op::FI_SUM, 0),
            Op::Fetch => (fi_op::FI_SUM, FI_FETCH_ATOMIC),
            _ => (fi_op::FI_CSWAP, FI_COMPARE_ATOMIC),
        };
        let mut attr = fi_atomic_attr { count: 0, size: 0 };
        let datatype = fi_datatype::FI_UINT64.into();
        let r = call!(
            self.domain.get(),
            ops.query_atomic(datatype, operation.into(), &mut attr, flags)
        );
        if r.is_ok() { attr.count as u64 } else { 0 }
    }

    /// Registers memory of the host or of a device.
    fn register(&self, memory: &Memory, access: u64, key: u64) -> Outcomes<OpenFid<fid_mr>> {
        let part = libc::iovec { iov_base: memory.at(0), iov_len: memory.len() };
        // SAFETY: all zeroes are attributes of memory of the host.
        let mut attr: fi_mr_attr = unsafe { std::mem::zeroed() };
        (attr.mr_iov, attr.iov_count) = ((&raw const part).cast(), 1);
        (attr.access, attr.requested_key) = (access, key);
        if let Some(number) = memory.device() {
            attr.iface = fi_hmem_iface::FI_HMEM_CUDA.into();
            attr.device.cuda = number as c_int;
        }
        let object = self.domain.get();
        OpenFid::new("fi_mr_reg", |region| {
            // SAFETY: the domain is open; the memory outlives the region. Memory of the host is
            // registered by the function of all versions of the library.
            unsafe {
                let ops = &*(*object).mr;
                match (ops.reg, ops.regattr, memory.device()) {
                    (Some(reg), _, None) => Error::check(reg(
                        object.cast(),
                        part.iov_base,
                        part.iov_len,
                        access,
                        0,
                        key,
                        0,
                        region,
                        ptr::null_mut(),
                    )),
                    (_, Some(regattr), Some(_)) => {
                        Error::check(regattr(object.cast(), &attr, 0, region))
                    }
                    _ => Err(Error::NOSYS),
                }
            }
        })
    }

    /// Inserts the address of a peer.
    fn insert(&self, address: &[u8]) -> Outcomes<fi_addr_t> {
        let av = self.av.as_ref().ok_or(Error::NOAV).during("fi_av_insert")?;
        let mut peer = FI_ADDR_NOTAVAIL;
        let count =
            call!(av.get(), ops.insert(address.as_ptr().cast(), 1, &mut peer, 0, ptr::null_mut()))
                .during("fi_av_insert")?;
        if count == 1 { Ok(peer) } else { Err(Error::INVAL).during("fi_av_insert") }
    }
}

/// Part of a buffer and of the peer's memory, for one transfer.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    pub(crate) local: usize,
    pub(crate) length: usize,
    /// Offset in the peer's memory.
    pub(crate) remote: u64,
    /// Offsets of the results and the comparands of atomics.
    pub(crate) result: usize,
    pub(crate) compare: usize,
    /// Number of the context.
    pub(crate) context: usize,
    pub(crate) data: u64,
    pub(crate) injected: bool,
    /// Requests FI_DELIVERY_COMPLETE for this operation.
    pub(crate) delivered: bool,
}

const TAG: u64 = 1234;

/// Endpoint with its memory.
pub(crate) struct Endpoint {
    ep: OpenFid<fid_ep>,
    region: Option<OpenFid<fid_mr>>,
    pub(crate) memory: Memory,
    desc: *mut c_void,
    peer: fi_addr_t,
    remote_base: u64,
    remote_key: u64,
}

// SAFETY: the descriptor is a handle for the domain's thread; the rest has no thread.
unsafe impl Send for Endpoint {}

/// Rights of the peer and of the endpoint itself.
const ACCESS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

impl Endpoint {
    /// Opens and enables an endpoint; `number` becomes the key of its memory.
    pub(crate) fn open(
        fabric: &Fabric,
        domain: &Domain,
        queue: &Queue,
        info: &Info,
        memory: Memory,
        number: u64,
        op: Op,
    ) -> Outcomes<Self> {
        let ep = OpenFid::new("fi_endpoint", |e| {
            call!(domain.domain.get(), ops.endpoint(info.get(), e, ptr::null_mut()))
        })?;
        if let Some(events) = &fabric.events {
            ep.bind(events, 0)?;
        }
        if let Some(av) = &domain.av {
            ep.bind(av, 0)?;
        }
        ep.bind(&queue.cq, FI_TRANSMIT | FI_RECV)?;
        call!(ep.fid(), ops.control(FI_ENABLE, ptr::null_mut())).during("fi_enable")?;
        let needs_local = info.domain_modes().0 & FI_MR_LOCAL != 0;
        let is_remote = op.is_one_sided() || op == Op::WriteData;
        let region = if needs_local || is_remote || memory.device().is_some() {
            let key = if domain.provided_key { 0 } else { number };
            let access = if is_remote { ACCESS } else { FI_SEND | FI_RECV };
            let region = domain.register(&memory, access, key)?;
            if domain.binds_regions {
                region.bind(&ep, 0)?;
                call!(region.fid(), ops.control(FI_ENABLE, ptr::null_mut()))
                    .during("fi_mr_enable")?;
            }
            Some(region)
        } else {
            None
        };
        // SAFETY: the region is open.
        let desc = region.as_ref().map_or(ptr::null_mut(), |r| unsafe { (*r.get()).mem_desc });
        Ok(Self { ep, region, memory, desc, peer: FI_ADDR_UNSPEC, remote_base: 0, remote_key: 0 })
    }

    pub(crate) fn connect(&self, address: &[u8]) -> Outcomes {
        call!(self.ep.get(), cm.connect(address.as_ptr().cast(), ptr::null(), 0))
            .during("fi_connect")
            .map(drop)
    }
    pub(crate) fn accept(&self) -> Outcomes {
        call!(self.ep.get(), cm.accept(ptr::null(), 0)).during("fi_accept").map(drop)
    }
    /// Ends the connection; the peer may have ended it first.
    pub(crate) fn shut_down(&self) {
        let _ = call!(self.ep.get(), cm.shutdown(0));
    }
    pub(crate) fn name(&self) -> Outcomes<Vec<u8>> {
        // SAFETY: the endpoint is open.
        name_of(&self.ep, unsafe { (*self.ep.get()).cm })
    }
    /// Returns address and key of the memory for the peer.
    pub(crate) fn region(&self, domain: &Domain) -> (u64, u64) {
        // SAFETY: the region is open.
        let key = self.region.as_ref().map_or(0, |region| unsafe { (*region.get()).key });
        (if domain.virtual_address { self.memory.at(0) as u64 } else { 0 }, key)
    }
    /// Sets the peer; its address is empty for connected endpoints.
    pub(crate) fn set_peer(
        &mut self,
        domain: &Domain,
        address: &[u8],
        base: u64,
        key: u64,
    ) -> Outcomes {
        if !address.is_empty() {
            self.peer = domain.insert(address)?;
        }
        (self.remote_base, self.remote_key) = (base, key);
        Ok(())
    }

    /// Posts a receive.
    #[inline]
    pub(crate) fn receive(
        &self,
        op: Op,
        contexts: &Contexts,
        context: usize,
        offset: usize,
        length: usize,
    ) -> Result<c_int> {
        let (ep, to, context) = (self.ep.get(), self.memory.at(offset), contexts.get(context));
        if op == Op::Tagged {
            call!(ep, tagged.recv(to, length, self.desc, FI_ADDR_UNSPEC, TAG, 0, context))
        } else {
            call!(ep, msg.recv(to, length, self.desc, FI_ADDR_UNSPEC, context))
        }
    }

    /// Posts an operation.
    #[inline]
    pub(crate) fn start(&self, op: Op, contexts: &Contexts, t: &Transfer) -> Result<c_int> {
        let (ep, peer, desc) = (self.ep.get(), self.peer, self.desc);
        let (local, length) = (self.memory.at(t.local), t.length);
        match op {
            Op::Tagged if t.injected => call!(ep, tagged.inject(local, length, peer, TAG)),
            Op::Tagged => {
                call!(ep, tagged.send(local, length, desc, peer, TAG, contexts.get(t.context)))
            }
            Op::Msg if t.injected => call!(ep, msg.inject(local, length, peer)),
            Op::Msg => call!(ep, msg.send(local, length, desc, peer, contexts.get(t.context))),
            _ => self.start_remote(op, contexts, t),
        }
    }

    fn start_remote(&self, op: Op, contexts: &Contexts, t: &Transfer) -> Result<c_int> {
        let (ep, peer, desc) = (self.ep.get(), self.peer, self.desc);
        let (local, length) = (self.memory.at(t.local), t.length);
        let (address, key) = (self.remote_base.wrapping_add(t.remote), self.remote_key);
        let context = contexts.get(t.context);
        let (count, number) = (length / 8, fi_datatype::FI_UINT64.into());
        let sum = fi_op::FI_SUM.into();
        match op {
            Op::Read => call!(ep, rma.read(local, length, desc, peer, address, key, context)),
            Op::Write if t.injected => call!(ep, rma.inject(local, length, peer, address, key)),
            Op::Write if t.delivered => {
                let iov = libc::iovec { iov_base: local, iov_len: length };
                let remote = fi_rma_iov { addr: address, len: length, key };
                let mut desc = desc;
                let message = fi_msg_rma {
                    msg_iov: (&raw const iov).cast(),
                    desc: &raw mut desc,
                    iov_count: 1,
                    addr: peer,
                    rma_iov: &raw const remote,
                    rma_iov_count: 1,
                    context,
                    data: 0,
                };
                call!(ep, rma.writemsg(&message, FI_COMPLETION | FI_DELIVERY_COMPLETE))
            }
            Op::Write => call!(ep, rma.write(local, length, desc, peer, address, key, context)),
            Op::WriteData if t.injected => {
                call!(ep, rma.injectdata(local, length, t.data, peer, address, key))
            }
            Op::WriteData => {
                call!(ep, rma.writedata(local, length, desc, t.data, peer, address, key, context))
            }
            Op::Atomic if t.injected => {
                call!(ep, atomic.inject(local, count, peer, address, key, number, sum))
            }
            Op::Atomic if t.delivered => {
                let ioc = fi_ioc { addr: local, count };
                let remote = fi_rma_ioc { addr: address, count, key };
                let mut desc = desc;
                let message = fi_msg_atomic {
                    msg_iov: &raw const ioc,
                    desc: &raw mut desc,
                    iov_count: 1,
                    addr: peer,
                    rma_iov: &raw const remote,
                    rma_iov_count: 1,
                    datatype: number,
                    op: sum,
                    context,
                    data: 0,
                };
                call!(ep, atomic.writemsg(&message, FI_COMPLETION | FI_DELIVERY_COMPLETE))
            }
            Op::Atomic => {
                call!(
                    ep,
                    atomic.write(local, count, desc, peer, address, key, number, sum, context)
                )
            }
            Op::Fetch => {
                let result = self.memory.at(t.result);
                call!(
                    ep,
                    atomic.readwrite(
                        local, count, desc, result, desc, peer, address, key, number, sum, context
                    )
                )
            }
            Op::Cswap => {
                let (result, compare) = (self.memory.at(t.result), self.memory.at(t.compare));
                let swap = fi_op::FI_CSWAP.into();
                call!(
                    ep,
                    atomic.compwrite(
                        local, count, desc, compare, desc, result, desc, peer, address, key,
                        number, swap, context
                    )
                )
            }
            Op::Msg | Op::Tagged => Err(Error::NOSYS),
        }
    }
}
