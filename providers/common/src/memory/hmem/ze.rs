//! Level Zero: the loader, `libze_loader.so.1`.
//!
//! Copies run on immediate command lists of their own, and an event reports the end of each. The
//! driver reaches any memory of the host, so there is no registration.
//!
//! A handle of memory for other processes begins with a descriptor. Another process replaces it by
//! the descriptor of its own copy of the file.
use super::library::{DeviceLibrary, Loaded, calls, cannot_share, reject_copy};
use crate::abi::fi_hmem_iface;
use crate::device::{CopyDirection, CopyTicket, DeviceInterface};
use crate::device_allocation::{DeviceAllocation, DeviceHandle, HANDLE_LEN};
use crate::error::{Error, Result};
use crate::provider::Provider;
use core::ffi::{c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// ze_result_t
type ZeResult = c_uint;
const NOT_READY: ZeResult = 1;
/// ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY and ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.
const OUT_OF_HOST_MEMORY: ZeResult = 0x7000_0002;
const OUT_OF_DEVICE_MEMORY: ZeResult = 0x7000_0003;
/// ZE_RESULT_ERROR_INVALID_ARGUMENT
const INVALID_ARGUMENT: ZeResult = 0x7800_0004;

/// ze_structure_type_t of the structures below.
const DEVICE_PROPERTIES: c_uint = 0x3;
const CONTEXT_DESC: c_uint = 0xd;
const QUEUE_DESC: c_uint = 0xe;
const EVENT_POOL_DESC: c_uint = 0x10;
const EVENT_DESC: c_uint = 0x11;
const ALLOC_PROPERTIES: c_uint = 0x17;

/// ZE_DEVICE_TYPE_GPU and ZE_MEMORY_TYPE_DEVICE.
const TYPE_GPU: c_uint = 1;
const TYPE_DEVICE: c_uint = 2;
/// ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS
const ASYNCHRONOUS: c_uint = 2;
/// ZE_EVENT_POOL_FLAG_HOST_VISIBLE and ZE_EVENT_SCOPE_FLAG_HOST.
const HOST_VISIBLE: c_uint = 1;
const SCOPE_HOST: c_uint = 4;

/// Number of events created together.
const EVENTS: c_uint = 64;

type Handle = *mut c_void;

/// Descriptor or properties of a type, with fields up to the longest in use. (A structure of the
/// library may be longer than its defined part.)
#[repr(C)]
struct Desc<T> {
    kind: c_uint,
    next: *const c_void,
    fields: T,
}

/// Fields of ze_command_queue_desc_t.
#[repr(C)]
struct Queue {
    ordinal: u32,
    index: u32,
    flags: u32,
    mode: c_uint,
    priority: c_uint,
}

/// Fields of ze_memory_allocation_properties_t.
#[repr(C)]
struct AllocProperties {
    kind: c_uint,
    id: u64,
    page_size: u64,
}

/// Fields of ze_device_properties_t: the type, the UUID, and space for the others.
#[repr(C)]
struct DeviceProperties {
    kind: c_uint,
    numbers: [u64; 9],
    uuid: [u8; 16],
    others: [u64; 53],
}

calls! {
    /// Functions of the loader.
    struct Calls {
        init: c"zeInit" unsafe extern "C" fn(c_uint) -> ZeResult,
        drivers: c"zeDriverGet" unsafe extern "C" fn(*mut u32, *mut Handle) -> ZeResult,
        devices: c"zeDeviceGet" unsafe extern "C" fn(Handle, *mut u32, *mut Handle) -> ZeResult,
        device_properties: c"zeDeviceGetProperties"
            unsafe extern "C" fn(Handle, *mut Desc<DeviceProperties>) -> ZeResult,
        context: c"zeContextCreate"
            unsafe extern "C" fn(Handle, *const Desc<c_uint>, *mut Handle) -> ZeResult,
        alloc_properties: c"zeMemGetAllocProperties"
            unsafe extern "C" fn(
                Handle, *const c_void, *mut Desc<AllocProperties>, *mut Handle
            ) -> ZeResult,
        address_range: c"zeMemGetAddressRange"
            unsafe extern "C" fn(Handle, *const c_void, *mut *mut c_void, *mut usize) -> ZeResult,
        list: c"zeCommandListCreateImmediate"
            unsafe extern "C" fn(Handle, Handle, *const Desc<Queue>, *mut Handle) -> ZeResult,
        copy: c"zeCommandListAppendMemoryCopy"
            unsafe extern "C" fn(
                Handle, *mut c_void, *const c_void, usize, Handle, u32, *mut Handle
            ) -> ZeResult,
        event_pool: c"zeEventPoolCreate"
            unsafe extern "C" fn(
                Handle, *const Desc<[u32; 2]>, u32, *mut Handle, *mut Handle
            ) -> ZeResult,
        event: c"zeEventCreate"
            unsafe extern "C" fn(Handle, *const Desc<[u32; 3]>, *mut Handle) -> ZeResult,
        reset_event: c"zeEventHostReset" unsafe extern "C" fn(Handle) -> ZeResult,
        query_event: c"zeEventQueryStatus" unsafe extern "C" fn(Handle) -> ZeResult,
    }
}

/// ze_ipc_mem_handle_t
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcHandle([u8; HANDLE_LEN]);

calls! {
    /// Functions of the loader for memory shared with other processes.
    struct SharingCalls {
        export: c"zeMemGetIpcHandle"
            unsafe extern "C" fn(Handle, *const c_void, *mut IpcHandle) -> ZeResult,
        open: c"zeMemOpenIpcHandle"
            unsafe extern "C" fn(Handle, Handle, IpcHandle, u32, *mut *mut c_void) -> ZeResult,
        close: c"zeMemCloseIpcHandle" unsafe extern "C" fn(Handle, *const c_void) -> ZeResult,
    }
}

calls! {
    /// Functions of newer loaders: without them, the descriptor of a handle is closed with the memory.
    struct ReleaseCalls {
        put: c"zeMemPutIpcHandle" unsafe extern "C" fn(Handle, IpcHandle) -> ZeResult,
    }
}

/// Level Zero with the devices of this process.
struct Ze {
    calls: Calls,
    /// None for a loader without them.
    sharing: Option<SharingCalls>,
    release: Option<ReleaseCalls>,
    provider: &'static Provider,
    devices: Vec<ZeDevice>,
    is_lost: AtomicBool,
}

struct ZeDevice {
    handle: Handle,
    /// The same in all processes.
    uuid: [u8; 16],
    /// Context of its driver.
    context: Handle,
    state: Mutex<ZeState>,
}

#[derive(Default)]
struct ZeState {
    /// Command lists for copies to the host, to the device, and from memory of other processes.
    lists: Option<[Handle; 3]>,
    /// Unused events.
    events: Vec<Handle>,
}

// SAFETY: handles of Level Zero are usable in any thread; the lists by one thread at a time, with the
// lock of their device.
unsafe impl Send for Ze {}
// SAFETY: as above.
unsafe impl Sync for Ze {}

impl std::fmt::Debug for Ze {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} Level Zero devices", self.devices.len())
    }
}

/// Returns the name of a result: that of an error in use here, or its number.
fn name_of(result: ZeResult) -> String {
    match result {
        0 => "ZE_RESULT_SUCCESS".to_owned(),
        NOT_READY => "ZE_RESULT_NOT_READY".to_owned(),
        0x7000_0001 => "ZE_RESULT_ERROR_DEVICE_LOST".to_owned(),
        OUT_OF_HOST_MEMORY => "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY".to_owned(),
        OUT_OF_DEVICE_MEMORY => "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY".to_owned(),
        0x7800_0001 => "ZE_RESULT_ERROR_UNINITIALIZED".to_owned(),
        INVALID_ARGUMENT => "ZE_RESULT_ERROR_INVALID_ARGUMENT".to_owned(),
        other => format!("Level Zero error {other:#x}"),
    }
}

/// Returns the handles of a list of the library; `get` writes their number, and so many of them.
fn handles(mut get: impl FnMut(*mut u32, *mut Handle) -> ZeResult) -> Loaded<Vec<Handle>> {
    let mut count = 0;
    let mut result = get(&raw mut count, core::ptr::null_mut());
    let mut handles = vec![core::ptr::null_mut(); count as usize];
    if result == 0 && count > 0 {
        result = get(&raw mut count, handles.as_mut_ptr());
        handles.truncate(count as usize);
    }
    if result == 0 { Ok(handles) } else { Err(name_of(result)) }
}

/// Loads the loader and finds the devices.
pub(super) fn load(provider: &'static Provider) -> Loaded<&'static dyn DeviceInterface> {
    let library = DeviceLibrary::load("libze_loader.so.1")?;
    let calls = Calls::load(&library)?;
    let (sharing, release) = (SharingCalls::load(&library), ReleaseCalls::load(&library));
    library.keep();
    // SAFETY: the library is initialized before any other call.
    let initialized = unsafe { (calls.init)(0) };
    if initialized != 0 {
        return Err(format!("zeInit failed: {}", name_of(initialized)));
    }
    let mut devices = Vec::new();
    // SAFETY: the library writes so many handles, at most, as the first argument has.
    for driver in handles(|count, to| unsafe { (calls.drivers)(count, to) })? {
        // SAFETY: as above.
        let of_driver = handles(|count, to| unsafe { (calls.devices)(driver, count, to) })?;
        let gpus: Vec<(Handle, [u8; 16])> =
            of_driver.into_iter().filter_map(|gpu| Some((gpu, calls.gpu(gpu)?))).collect();
        if gpus.is_empty() {
            continue;
        }
        let desc = Desc { kind: CONTEXT_DESC, next: core::ptr::null(), fields: 0 };
        let mut context = core::ptr::null_mut();
        // SAFETY: the library writes to the handle.
        let created = unsafe { (calls.context)(driver, &raw const desc, &raw mut context) };
        if created != 0 {
            return Err(format!("zeContextCreate failed: {}", name_of(created)));
        }
        let state = Mutex::default;
        let with = |(handle, uuid)| ZeDevice { handle, uuid, context, state: state() };
        devices.extend(gpus.into_iter().map(with));
    }
    if devices.is_empty() {
        return Err("0 devices".to_owned());
    }
    let (sharing, release) = (sharing.ok(), release.ok());
    let is_lost = AtomicBool::new(false);
    Ok(Box::leak(Box::new(Ze { calls, sharing, release, provider, devices, is_lost })))
}

impl Calls {
    /// Returns the UUID of a GPU; none for another device.
    fn gpu(&self, device: Handle) -> Option<[u8; 16]> {
        let fields = DeviceProperties { kind: 0, numbers: [0; 9], uuid: [0; 16], others: [0; 53] };
        let mut properties = Desc { kind: DEVICE_PROPERTIES, next: core::ptr::null(), fields };
        // SAFETY: the library writes to the structure, with space for all of its fields.
        let found = unsafe { (self.device_properties)(device, &raw mut properties) };
        (found == 0 && properties.fields.kind == TYPE_GPU).then_some(properties.fields.uuid)
    }
}

impl Ze {
    /// Converts a result of the library; an error is logged with the name of the call.
    fn check(&self, call: &str, result: ZeResult) -> Result {
        if result == 0 {
            return Ok(());
        }
        let name = name_of(result);
        crate::log_sparsely!(self.provider, WARN, DOMAIN, "{call} failed: {name}");
        Err(match result {
            INVALID_ARGUMENT => Error::FAULT,
            OUT_OF_HOST_MEMORY | OUT_OF_DEVICE_MEMORY => Error::NOMEM,
            _ => Error::IO,
        })
    }

    fn sharing(&self) -> Result<&SharingCalls> {
        self.sharing.as_ref().ok_or(Error::OPNOTSUPP)
    }

    /// Converts a result of a call for memory shared with other processes: without it the memory is
    /// copied. An error is logged with the name of the call.
    fn check_sharing(&self, call: &str, result: ZeResult) -> Result {
        match result {
            0 => Ok(()),
            _ => Err(cannot_share(self.provider, call, &name_of(result))),
        }
    }

    /// Returns the first address and the length of the allocation with this address.
    fn range(&self, device: &ZeDevice, addr: usize) -> Result<(usize, usize)> {
        let (mut base, mut size) = (core::ptr::null_mut(), 0);
        // SAFETY: the library writes to the pointer and to the number.
        let found = unsafe {
            let at = addr as *const c_void;
            (self.calls.address_range)(device.context, at, &raw mut base, &raw mut size)
        };
        self.check_sharing("zeMemGetAddressRange", found).map(|()| (base as usize, size))
    }

    /// Returns the device with this address in its memory; none for any other address.
    fn find(&self, addr: usize) -> Option<usize> {
        let mut context = core::ptr::null_mut();
        for (index, device) in self.devices.iter().enumerate() {
            if device.context == context {
                continue;
            }
            context = device.context;
            let fields = AllocProperties { kind: 0, id: 0, page_size: 0 };
            let mut found = Desc { kind: ALLOC_PROPERTIES, next: core::ptr::null(), fields };
            let mut owner = core::ptr::null_mut();
            // SAFETY: the library writes to the structure and to the handle. Memory unknown to it has
            // another type.
            let result = unsafe {
                let at = addr as *const c_void;
                (self.calls.alloc_properties)(context, at, &raw mut found, &raw mut owner)
            };
            if result != 0 && result != INVALID_ARGUMENT {
                self.is_lost.store(true, Ordering::Relaxed);
            }
            if result == 0 && found.fields.kind == TYPE_DEVICE {
                // The owner may be a part of a device.
                let owner = self.devices.iter().position(|device| device.handle == owner);
                return Some(owner.unwrap_or(index));
            }
        }
        None
    }

    /// Returns true if `len` bytes at an address are in one allocation of a device.
    fn is_within(&self, device: &ZeDevice, addr: usize, len: usize) -> bool {
        let Ok((base, size)) = self.range(device, addr) else { return false };
        let offset = addr.checked_sub(base);
        offset.is_some_and(|offset| offset <= size && len <= size - offset)
    }

    /// Returns the command lists of a device.
    fn lists(&self, device: &ZeDevice, state: &mut ZeState) -> Result<[Handle; 3]> {
        if let Some(lists) = state.lists {
            return Ok(lists);
        }
        let queue = Queue { ordinal: 0, index: 0, flags: 0, mode: ASYNCHRONOUS, priority: 0 };
        let desc = Desc { kind: QUEUE_DESC, next: core::ptr::null(), fields: queue };
        let list = || {
            let (context, mut list) = (device.context, core::ptr::null_mut());
            // SAFETY: the library writes to the handle.
            let created = unsafe {
                (self.calls.list)(context, device.handle, &raw const desc, &raw mut list)
            };
            self.check("zeCommandListCreateImmediate", created).map(|()| list)
        };
        Ok(*state.lists.insert([list()?, list()?, list()?]))
    }

    /// Starts a copy on one of the command lists of a device.
    ///
    /// # Safety
    /// `len` bytes at both addresses stay valid, and unused by anything else, until the end of the
    /// copy.
    unsafe fn start(
        &self,
        device: &ZeDevice,
        list: usize,
        dst: *mut c_void,
        src: *const c_void,
        len: usize,
    ) -> Result<CopyTicket> {
        let mut state = device.state();
        let list = self.lists(device, &mut state)?[list];
        let event = self.event(device, &mut state)?;
        // SAFETY: by this function's contract; the lock of the device keeps others from the list.
        let copied =
            unsafe { (self.calls.copy)(list, dst, src, len, event, 0, core::ptr::null_mut()) };
        match self.check("zeCommandListAppendMemoryCopy", copied) {
            Ok(()) => Ok(CopyTicket(event as usize)),
            Err(error) => {
                state.events.push(event);
                Err(error)
            }
        }
    }

    /// Returns an unused event.
    fn event(&self, device: &ZeDevice, state: &mut ZeState) -> Result<Handle> {
        if let Some(event) = state.events.pop() {
            // SAFETY: no copy uses the event.
            let reset = unsafe { (self.calls.reset_event)(event) };
            return self.check("zeEventHostReset", reset).map(|()| event);
        }
        let next = core::ptr::null();
        let desc = Desc { kind: EVENT_POOL_DESC, next, fields: [HOST_VISIBLE, EVENTS] };
        let mut pool = core::ptr::null_mut();
        // SAFETY: the library writes to the handle. No list of devices stands for all of the context.
        let created = unsafe {
            let none = core::ptr::null_mut();
            (self.calls.event_pool)(device.context, &raw const desc, 0, none, &raw mut pool)
        };
        self.check("zeEventPoolCreate", created)?;
        for index in 0..EVENTS {
            let desc = Desc { kind: EVENT_DESC, next, fields: [index, SCOPE_HOST, SCOPE_HOST] };
            let mut event = core::ptr::null_mut();
            // SAFETY: the library writes to the handle.
            let created = unsafe { (self.calls.event)(pool, &raw const desc, &raw mut event) };
            self.check("zeEventCreate", created)?;
            state.events.push(event);
        }
        state.events.pop().ok_or(Error::NOMEM)
    }
}

impl ZeDevice {
    fn state(&self) -> MutexGuard<'_, ZeState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl DeviceInterface for Ze {
    fn name(&self) -> &'static str {
        "ze"
    }

    fn number(&self) -> u32 {
        fi_hmem_iface::FI_HMEM_ZE as u32
    }

    fn device_of(&self, addr: usize) -> Option<u32> {
        self.find(addr).and_then(|device| u32::try_from(device).ok())
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    unsafe fn start_copy(
        &self,
        device: u32,
        direction: CopyDirection,
        addr: usize,
        host: *mut u8,
        len: usize,
    ) -> Result<CopyTicket> {
        let device = self.devices.get(device as usize).ok_or(Error::NODEV)?;
        // An address outside of the memory would be one of the host's for the driver.
        if !self.is_within(device, addr, len) {
            return Err(reject_copy(self.provider, addr, len));
        }
        let at = addr as *mut c_void;
        let (list, dst, src) = match direction {
            CopyDirection::ToHost => (0, host.cast(), at),
            CopyDirection::ToDevice => (1, at, host.cast()),
        };
        // SAFETY: by the contract of the trait.
        unsafe { self.start(device, list, dst, src, len) }
    }

    fn poll_copy(&self, device: u32, ticket: &CopyTicket) -> Result<bool> {
        let event = ticket.0 as Handle;
        // SAFETY: the event is one of `start_copy`.
        let result = unsafe { (self.calls.query_event)(event) };
        if result == NOT_READY {
            return Ok(false);
        }
        if let Some(device) = self.devices.get(device as usize).filter(|_| result == 0) {
            device.state().events.push(event);
        }
        self.check("zeEventQueryStatus", result).map(|()| true)
    }

    unsafe fn pin(&self, _: *mut u8, _: usize) -> Result {
        Ok(())
    }

    fn unpin(&self, _: *mut u8) {}

    fn allocation_of(&self, device: u32, addr: usize) -> Result<DeviceAllocation> {
        self.sharing()?;
        let device = self.devices.get(device as usize).ok_or(Error::NODEV)?;
        let (base, len) = self.range(device, addr)?;
        let fields = AllocProperties { kind: 0, id: 0, page_size: 0 };
        let mut found = Desc { kind: ALLOC_PROPERTIES, next: core::ptr::null(), fields };
        // SAFETY: the library writes to the structure.
        let result = unsafe {
            let (at, none) = (addr as *const c_void, core::ptr::null_mut());
            (self.calls.alloc_properties)(device.context, at, &raw mut found, none)
        };
        self.check_sharing("zeMemGetAllocProperties", result)?;
        Ok(DeviceAllocation { base, len, id: found.fields.id })
    }

    fn export_handle(&self, device: u32, allocation: &DeviceAllocation) -> Result<DeviceHandle> {
        let sharing = self.sharing()?;
        let device_number = device;
        let device = self.devices.get(device as usize).ok_or(Error::NODEV)?;
        let mut handle = IpcHandle([0; HANDLE_LEN]);
        // SAFETY: the library checks the allocation, and writes to the handle.
        let exported = unsafe {
            let base = allocation.base as *const c_void;
            (sharing.export)(device.context, base, &raw mut handle)
        };
        self.check_sharing("zeMemGetIpcHandle", exported)?;
        let (first, _) = handle.0.split_first_chunk().ok_or(Error::OPNOTSUPP)?;
        let file = RawFd::from_ne_bytes(*first);
        let handle = DeviceHandle { device: device.uuid, bytes: handle.0, file: Some(file) };
        // Programs started by this process do not get the descriptor.
        // SAFETY: no memory is involved; any number is permitted.
        if unsafe { libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            self.release_handle(device_number, &handle);
            return Err(cannot_share(self.provider, "zeMemGetIpcHandle", "no descriptor"));
        }
        Ok(handle)
    }

    fn release_handle(&self, device: u32, handle: &DeviceHandle) {
        let device = self.devices.get(device as usize);
        if let (Some(device), Some(release)) = (device, &self.release) {
            // SAFETY: the handle is one of `export_handle`, released once.
            let _ = unsafe { (release.put)(device.context, IpcHandle(handle.bytes)) };
        }
    }

    fn map_handle(
        &self,
        handle: &DeviceHandle,
        file: Option<BorrowedFd<'_>>,
        _len: usize,
    ) -> Result<(u32, DeviceAllocation)> {
        let sharing = self.sharing()?;
        let file = file.ok_or(Error::OPNOTSUPP)?;
        // Another process may see other devices, in another order.
        let is_it = |device: &ZeDevice| device.uuid == handle.device;
        let index = self.devices.iter().position(is_it).ok_or(Error::OPNOTSUPP)?;
        let (number, device) = (index as u32, &self.devices[index]);
        let mut bytes = handle.bytes;
        *bytes.first_chunk_mut().ok_or(Error::OPNOTSUPP)? = file.as_raw_fd().to_ne_bytes();
        let mut at = core::ptr::null_mut();
        // SAFETY: the library checks the handle, and writes to the address.
        let opened = unsafe {
            (sharing.open)(device.context, device.handle, IpcHandle(bytes), 0, &raw mut at)
        };
        self.check_sharing("zeMemOpenIpcHandle", opened)?;
        let base = at as usize;
        let left = self.range(device, base).and_then(|(first, len)| {
            len.checked_sub(base.wrapping_sub(first)).ok_or(Error::OPNOTSUPP)
        });
        match left {
            Ok(len) => Ok((number, DeviceAllocation { base, len, id: 0 })),
            Err(error) => {
                self.unmap(number, base);
                Err(error)
            }
        }
    }

    fn unmap(&self, device: u32, base: usize) {
        let device = self.devices.get(device as usize);
        if let (Some(device), Ok(sharing)) = (device, self.sharing()) {
            // SAFETY: the address is one of `map_handle`; its copies have ended.
            let _ = unsafe { (sharing.close)(device.context, base as *const c_void) };
        }
    }

    unsafe fn start_device_copy(
        &self,
        device: u32,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<CopyTicket> {
        let device = self.devices.get(device as usize).ok_or(Error::NODEV)?;
        // An address outside of the memory would be one of the host's for the driver.
        if !self.is_within(device, to, len) {
            return Err(reject_copy(self.provider, to, len));
        }
        // SAFETY: by the contract of the trait.
        unsafe { self.start(device, 2, to as *mut c_void, from as *const c_void, len) }
    }
}
