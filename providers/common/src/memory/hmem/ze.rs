//! Level Zero: the loader, `libze_loader.so.1`.
//!
//! Copies run on immediate command lists of their own, and an event reports the end of each. The
//! driver reaches any memory of the host, so there is no registration.
use super::library::{DeviceLibrary, Loaded, calls, reject_copy};
use crate::abi::fi_hmem_iface;
use crate::device::{CopyDirection, CopyTicket, DeviceInterface};
use crate::error::{Error, Result};
use crate::provider::Provider;
use core::ffi::{c_uint, c_void};
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

/// Fields of ze_device_properties_t: the type, and space for the others.
#[repr(C)]
struct DeviceProperties {
    kind: c_uint,
    others: [u64; 64],
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

/// Level Zero with the devices of this process.
struct Ze {
    calls: Calls,
    provider: &'static Provider,
    devices: Vec<ZeDevice>,
}

struct ZeDevice {
    handle: Handle,
    /// Context of its driver.
    context: Handle,
    state: Mutex<ZeState>,
}

#[derive(Default)]
struct ZeState {
    /// Command lists for copies to the host and to the device.
    lists: Option<[Handle; 2]>,
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
        let gpus: Vec<Handle> = of_driver.into_iter().filter(|gpu| calls.is_gpu(*gpu)).collect();
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
        devices.extend(gpus.into_iter().map(|handle| ZeDevice { handle, context, state: state() }));
    }
    if devices.is_empty() {
        return Err("0 devices".to_owned());
    }
    Ok(Box::leak(Box::new(Ze { calls, provider, devices })))
}

impl Calls {
    /// Returns true for a GPU.
    fn is_gpu(&self, device: Handle) -> bool {
        let fields = DeviceProperties { kind: 0, others: [0; 64] };
        let mut properties = Desc { kind: DEVICE_PROPERTIES, next: core::ptr::null(), fields };
        // SAFETY: the library writes to the structure, with space for all of its fields.
        let found = unsafe { (self.device_properties)(device, &raw mut properties) };
        found == 0 && properties.fields.kind == TYPE_GPU
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
        let (mut base, mut size) = (core::ptr::null_mut(), 0);
        // SAFETY: the library writes to the pointer and to the number.
        let found = unsafe {
            let at = addr as *const c_void;
            (self.calls.address_range)(device.context, at, &raw mut base, &raw mut size)
        };
        let offset = addr.checked_sub(base as usize);
        found == 0 && offset.is_some_and(|offset| offset <= size && len <= size - offset)
    }

    /// Returns the command lists of a device.
    fn lists(&self, device: &ZeDevice, state: &mut ZeState) -> Result<[Handle; 2]> {
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
        Ok(*state.lists.insert([list()?, list()?]))
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
        let mut state = device.state();
        let [to_host, to_device] = self.lists(device, &mut state)?;
        let event = self.event(device, &mut state)?;
        let at = addr as *mut c_void;
        let (list, dst, src) = match direction {
            CopyDirection::ToHost => (to_host, host.cast(), at),
            CopyDirection::ToDevice => (to_device, at, host.cast()),
        };
        // SAFETY: by the contract of the trait; the lock of the device keeps others from the list.
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
}
