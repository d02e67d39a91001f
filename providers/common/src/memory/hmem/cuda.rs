//! CUDA: the driver API of `libcuda.so.1`.
//!
//! Copies run on streams of their own, in the primary context of their device. A thread of the
//! library has no current context, so calls push it, and pop it again.
mod vmm;

use self::vmm::Vmm;
use super::library::{DeviceLibrary, Loaded, calls, cannot_share};
use crate::abi::fi_hmem_iface;
use crate::device::{CopyDirection, CopyTicket, DeviceInterface};
use crate::device_allocation::{DeviceAllocation, DeviceHandle, HANDLE_LEN};
use crate::error::{Error, Result};
use crate::provider::Provider;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// CUresult.
type CuResult = c_int;
/// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY and CUDA_ERROR_NOT_READY.
const INVALID_VALUE: CuResult = 1;
const OUT_OF_MEMORY: CuResult = 2;
const NOT_READY: CuResult = 600;

/// CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID,
/// CU_POINTER_ATTRIBUTE_IS_MANAGED and CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
/// CU_MEMORYTYPE_DEVICE
const TYPE_DEVICE: c_uint = 2;

/// CU_STREAM_NON_BLOCKING: the stream does not wait for the application's default stream.
const NON_BLOCKING: c_uint = 1;
/// CU_EVENT_DISABLE_TIMING
const NO_TIMING: c_uint = 2;
/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
const LAZY_PEER_ACCESS: c_uint = 1;
/// CU_MEMHOSTREGISTER_PORTABLE: for all contexts.
const PORTABLE: c_uint = 1;

type Context = *mut c_void;
type Stream = *mut c_void;
type Event = *mut c_void;
type DevicePtr = u64;

calls! {
    /// Functions of the driver.
    struct Calls {
        init: c"cuInit" unsafe extern "C" fn(c_uint) -> CuResult,
        device_count: c"cuDeviceGetCount" unsafe extern "C" fn(*mut c_int) -> CuResult,
        device: c"cuDeviceGet" unsafe extern "C" fn(*mut c_int, c_int) -> CuResult,
        retain: c"cuDevicePrimaryCtxRetain" unsafe extern "C" fn(*mut Context, c_int) -> CuResult,
        push: c"cuCtxPushCurrent_v2" unsafe extern "C" fn(Context) -> CuResult,
        pop: c"cuCtxPopCurrent_v2" unsafe extern "C" fn(*mut Context) -> CuResult,
        attributes: c"cuPointerGetAttributes"
            unsafe extern "C" fn(c_uint, *const c_int, *const *mut c_void, DevicePtr) -> CuResult,
        stream: c"cuStreamCreate" unsafe extern "C" fn(*mut Stream, c_uint) -> CuResult,
        event: c"cuEventCreate" unsafe extern "C" fn(*mut Event, c_uint) -> CuResult,
        record: c"cuEventRecord" unsafe extern "C" fn(Event, Stream) -> CuResult,
        query: c"cuEventQuery" unsafe extern "C" fn(Event) -> CuResult,
        to_host: c"cuMemcpyDtoHAsync_v2"
            unsafe extern "C" fn(*mut c_void, DevicePtr, usize, Stream) -> CuResult,
        to_device: c"cuMemcpyHtoDAsync_v2"
            unsafe extern "C" fn(DevicePtr, *const c_void, usize, Stream) -> CuResult,
        pin: c"cuMemHostRegister_v2" unsafe extern "C" fn(*mut c_void, usize, c_uint) -> CuResult,
        unpin: c"cuMemHostUnregister" unsafe extern "C" fn(*mut c_void) -> CuResult,
        error_name: c"cuGetErrorName" unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult,
    }
}

/// CUipcMemHandle.
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcHandle([u8; HANDLE_LEN]);

calls! {
    /// Functions of the driver for memory shared with other processes.
    struct SharingCalls {
        uuid: c"cuDeviceGetUuid" unsafe extern "C" fn(*mut [u8; 16], c_int) -> CuResult,
        range: c"cuMemGetAddressRange_v2"
            unsafe extern "C" fn(*mut DevicePtr, *mut usize, DevicePtr) -> CuResult,
        export: c"cuIpcGetMemHandle" unsafe extern "C" fn(*mut IpcHandle, DevicePtr) -> CuResult,
        open: c"cuIpcOpenMemHandle_v2"
            unsafe extern "C" fn(*mut DevicePtr, IpcHandle, c_uint) -> CuResult,
        close: c"cuIpcCloseMemHandle" unsafe extern "C" fn(DevicePtr) -> CuResult,
        between: c"cuMemcpyDtoDAsync_v2"
            unsafe extern "C" fn(DevicePtr, DevicePtr, usize, Stream) -> CuResult,
    }
}

/// CUDA with the devices of this process.
struct Cuda {
    calls: Calls,
    /// None for a driver without them.
    sharing: Option<SharingCalls>,
    vmm: Option<Vmm>,
    provider: &'static Provider,
    devices: Vec<Mutex<Option<CudaDevice>>>,
    is_lost: AtomicBool,
}

/// Device in use: its primary context, and streams for the copies in each direction.
#[derive(Clone)]
struct CudaDevice {
    context: Context,
    to_host: Stream,
    to_device: Stream,
    between: Stream,
    /// Events of ended copies, for others.
    events: Vec<Event>,
}

// SAFETY: contexts, streams and events of CUDA are usable in any thread.
unsafe impl Send for CudaDevice {}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} CUDA devices", self.devices.len())
    }
}

/// Loads the driver and counts the devices.
pub(super) fn load(provider: &'static Provider) -> Loaded<&'static dyn DeviceInterface> {
    let library = DeviceLibrary::load("libcuda.so.1")?;
    let calls = Calls::load(&library)?;
    let sharing = SharingCalls::load(&library).ok();
    let vmm = Vmm::load(&library).ok();
    library.keep();
    let mut count = 0;
    // SAFETY: the driver is initialized first; it writes to the number.
    let result = unsafe {
        match (calls.init)(0) {
            0 => (calls.device_count)(&raw mut count),
            error => error,
        }
    };
    if result != 0 || count <= 0 {
        return Err(format!("{count} devices, {}", calls.name_of(result)));
    }
    let devices = (0..count).map(|_| Mutex::new(None)).collect();
    let is_lost = AtomicBool::new(false);
    Ok(Box::leak(Box::new(Cuda { calls, sharing, vmm, provider, devices, is_lost })))
}

impl Calls {
    /// Returns the name of a result: `CUDA_ERROR_NO_DEVICE`.
    fn name_of(&self, result: CuResult) -> String {
        let mut name = core::ptr::null();
        // SAFETY: the driver writes to the pointer.
        let found = unsafe { (self.error_name)(result, &raw mut name) };
        if found != 0 || name.is_null() {
            return format!("CUDA error {result}");
        }
        // SAFETY: the name is a C string that stays.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl Cuda {
    /// Converts a result of the driver; an error is logged with the name of the call.
    fn check(&self, call: &str, result: CuResult) -> Result {
        if result == 0 {
            return Ok(());
        }
        let name = self.calls.name_of(result);
        crate::log_sparsely!(self.provider, WARN, DOMAIN, "{call} failed: {name}");
        Err(match result {
            INVALID_VALUE => Error::FAULT,
            OUT_OF_MEMORY => Error::NOMEM,
            _ => Error::IO,
        })
    }

    fn device(&self, device: u32) -> Result<MutexGuard<'_, Option<CudaDevice>>> {
        let device = self.devices.get(device as usize).ok_or(Error::NODEV)?;
        Ok(device.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Runs `work` with the primary context of a device as current context of this thread.
    fn with<T>(&self, device: u32, work: impl FnOnce(&mut CudaDevice) -> Result<T>) -> Result<T> {
        let mut guard = self.device(device)?;
        let context = match &*guard {
            Some(open) => open.context,
            None => self.retain(device)?,
        };
        // SAFETY: the context stays retained.
        self.check("cuCtxPushCurrent", unsafe { (self.calls.push)(context) })?;
        let open = match &mut *guard {
            Some(open) => Ok(open),
            none => self.open(context).map(|open| none.insert(open)),
        };
        let result = open.and_then(work);
        let mut popped = core::ptr::null_mut();
        // SAFETY: the driver writes to the pointer.
        let _ = unsafe { (self.calls.pop)(&raw mut popped) };
        result
    }

    /// Retains the primary context of a device.
    fn retain(&self, device: u32) -> Result<Context> {
        let (mut number, mut context) = (0, core::ptr::null_mut());
        // SAFETY: the driver writes to the number and to the pointer.
        unsafe {
            self.check("cuDeviceGet", (self.calls.device)(&raw mut number, device as c_int))?;
            let retained = (self.calls.retain)(&raw mut context, number);
            self.check("cuDevicePrimaryCtxRetain", retained)?;
        }
        Ok(context)
    }

    /// Creates the streams of a device with its context current.
    fn open(&self, context: Context) -> Result<CudaDevice> {
        let stream = || {
            let mut stream = core::ptr::null_mut();
            // SAFETY: the driver writes to the pointer.
            let created = unsafe { (self.calls.stream)(&raw mut stream, NON_BLOCKING) };
            self.check("cuStreamCreate", created).map(|()| stream)
        };
        let (to_host, to_device, between) = (stream()?, stream()?, stream()?);
        Ok(CudaDevice { context, to_host, to_device, between, events: Vec::new() })
    }

    /// Returns an unused event.
    fn event(&self, device: &mut CudaDevice) -> Result<Event> {
        if let Some(event) = device.events.pop() {
            return Ok(event);
        }
        let mut event = core::ptr::null_mut();
        // SAFETY: the driver writes to the pointer.
        let created = unsafe { (self.calls.event)(&raw mut event, NO_TIMING) };
        self.check("cuEventCreate", created).map(|()| event)
    }
}

impl Cuda {
    /// Starts a copy with `copy`. It returns the name of its call, the result, and the stream.
    fn start(
        &self,
        device: u32,
        copy: impl FnOnce(&Calls, &CudaDevice) -> (&'static str, CuResult, Stream),
    ) -> Result<CopyTicket> {
        self.with(device, |open| {
            let event = self.event(open)?;
            let (call, result, stream) = copy(&self.calls, open);
            let recorded = self.check(call, result).and_then(|()| {
                // SAFETY: the stream and the event are of the current context.
                self.check("cuEventRecord", unsafe { (self.calls.record)(event, stream) })
            });
            match recorded {
                Ok(()) => Ok(CopyTicket(event as usize)),
                Err(error) => {
                    open.events.push(event);
                    Err(error)
                }
            }
        })
    }

    fn sharing(&self) -> Result<&SharingCalls> {
        self.sharing.as_ref().ok_or(Error::OPNOTSUPP)
    }

    /// Converts a result of a call for memory shared with other processes: without it the memory
    /// is copied. An error is logged with the name of the call.
    fn check_sharing(&self, call: &str, result: CuResult) -> Result {
        if result == 0 {
            return Ok(());
        }
        Err(cannot_share(self.provider, call, &self.calls.name_of(result)))
    }

    /// Returns the driver's number of a device.
    fn number_of(&self, device: u32) -> Result<c_int> {
        let mut number = 0;
        // SAFETY: the driver writes to the number.
        let found = unsafe { (self.calls.device)(&raw mut number, device as c_int) };
        self.check_sharing("cuDeviceGet", found).map(|()| number)
    }

    /// Returns the UUID of a device.
    fn uuid(&self, device: u32) -> Result<[u8; 16]> {
        let (number, mut uuid) = (self.number_of(device)?, [0; 16]);
        // SAFETY: the driver writes to the UUID.
        let found = unsafe { (self.sharing()?.uuid)(&raw mut uuid, number) };
        self.check_sharing("cuDeviceGetUuid", found).map(|()| uuid)
    }

    /// Returns the first address and the length of the allocation with this address.
    fn range(&self, addr: DevicePtr) -> Result<(usize, usize)> {
        let (mut base, mut len) = (0, 0);
        // SAFETY: the driver writes to the two numbers.
        let found = unsafe { (self.sharing()?.range)(&raw mut base, &raw mut len, addr) };
        self.check_sharing("cuMemGetAddressRange", found).map(|()| (base as usize, len))
    }
}

impl DeviceInterface for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn number(&self) -> u32 {
        fi_hmem_iface::FI_HMEM_CUDA as u32
    }

    fn device_of(&self, addr: usize) -> Option<u32> {
        let (mut memory_type, mut managed, mut ordinal) = (0 as c_uint, 0 as c_uint, -1 as c_int);
        let names = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL];
        let values: [*mut c_void; 3] =
            [(&raw mut memory_type).cast(), (&raw mut managed).cast(), (&raw mut ordinal).cast()];
        // SAFETY: the driver writes to the three numbers. For memory of the host, known to it or
        // not, it answers with success and another type, or with an error.
        let result = unsafe {
            (self.calls.attributes)(3, names.as_ptr(), values.as_ptr(), addr as DevicePtr)
        };
        if result != 0 && result != INVALID_VALUE {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        // The type of managed memory changes with its place; its copies work at any.
        let is_device = result == 0 && (memory_type == TYPE_DEVICE || managed != 0);
        is_device.then(|| u32::try_from(ordinal).ok()).flatten()
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
        self.start(device, |calls, open| {
            let at = addr as DevicePtr;
            // SAFETY: by the contract of the trait; the streams are of the current context.
            unsafe {
                match direction {
                    CopyDirection::ToHost => {
                        let copied = (calls.to_host)(host.cast(), at, len, open.to_host);
                        ("cuMemcpyDtoHAsync", copied, open.to_host)
                    }
                    CopyDirection::ToDevice => {
                        let copied = (calls.to_device)(at, host.cast(), len, open.to_device);
                        ("cuMemcpyHtoDAsync", copied, open.to_device)
                    }
                }
            }
        })
    }

    fn poll_copy(&self, device: u32, ticket: &CopyTicket) -> Result<bool> {
        let event = ticket.0 as Event;
        // SAFETY: the event is one of `start_copy`.
        let result = unsafe { (self.calls.query)(event) };
        if result == NOT_READY {
            return Ok(false);
        }
        if let Ok(mut guard) = self.device(device) {
            if let Some(open) = &mut *guard {
                open.events.push(event);
            }
        }
        self.check("cuEventQuery", result).map(|()| true)
    }

    unsafe fn pin(&self, host: *mut u8, len: usize) -> Result {
        self.with(0, |_| {
            // SAFETY: by the contract of the trait.
            let pinned = unsafe { (self.calls.pin)(host.cast(), len, PORTABLE) };
            self.check("cuMemHostRegister", pinned)
        })
    }

    fn unpin(&self, host: *mut u8) {
        // SAFETY: the driver answers with an error for memory that is not registered.
        let _ = self.with(0, |_| Ok(unsafe { (self.calls.unpin)(host.cast()) }));
    }

    fn allocation_of(&self, _device: u32, addr: usize) -> Result<DeviceAllocation> {
        let (base, len) = self.range(addr as DevicePtr)?;
        let mut id = 0u64;
        let value: *mut c_void = (&raw mut id).cast();
        // SAFETY: the driver writes to the number.
        let found = unsafe { (self.calls.attributes)(1, &BUFFER_ID, &value, addr as DevicePtr) };
        self.check_sharing("cuPointerGetAttributes", found)?;
        Ok(DeviceAllocation { base, len, id })
    }

    fn export_handle(&self, device: u32, allocation: &DeviceAllocation) -> Result<DeviceHandle> {
        let sharing = self.sharing()?;
        let uuid = self.uuid(device)?;
        let mut handle = IpcHandle([0; HANDLE_LEN]);
        let exported = self.with(device, |_| {
            // SAFETY: the driver writes to the handle.
            let exported =
                unsafe { (sharing.export)(&raw mut handle, allocation.base as DevicePtr) };
            self.check_sharing("cuIpcGetMemHandle", exported)
        });
        if exported.is_ok() {
            return Ok(DeviceHandle { device: uuid, bytes: handle.0, file: None });
        }
        let vmm = self.vmm.as_ref().ok_or(Error::OPNOTSUPP)?;
        let check = |call: &str, result| self.check_sharing(call, result);
        let file = self.with(device, |_| vmm.export(allocation.base, &check))?;
        Ok(DeviceHandle { device: uuid, bytes: [0; HANDLE_LEN], file: Some(file) })
    }

    fn release_handle(&self, _device: u32, handle: &DeviceHandle) {
        if let Some(file) = handle.file {
            // SAFETY: the descriptor is one of `export_handle`, released once.
            unsafe { libc::close(file) };
        }
    }

    fn map_handle(
        &self,
        handle: &DeviceHandle,
        file: Option<BorrowedFd<'_>>,
        len: usize,
    ) -> Result<(u32, DeviceAllocation)> {
        let sharing = self.sharing()?;
        // Another process may see other devices, in another order.
        let is_it = |device: &u32| self.uuid(*device) == Ok(handle.device);
        let device = (0..self.devices.len() as u32).find(is_it).ok_or(Error::OPNOTSUPP)?;
        if let Some(file) = file {
            let vmm = self.vmm.as_ref().ok_or(Error::OPNOTSUPP)?;
            let others = (0..self.devices.len() as u32).filter(|other| *other != device);
            let numbers = std::iter::once(device).chain(others).map(|one| self.number_of(one));
            let numbers = numbers.collect::<Result<Vec<_>>>()?;
            let check = |call: &str, result| self.check_sharing(call, result);
            let base = self.with(device, |_| vmm.map(&numbers, file, len, &check))?;
            return Ok((device, DeviceAllocation { base, len, id: 0 }));
        }
        let mut at = 0;
        self.with(device, |_| {
            // SAFETY: the driver checks the handle, and writes to the address.
            let opened =
                unsafe { (sharing.open)(&raw mut at, IpcHandle(handle.bytes), LAZY_PEER_ACCESS) };
            self.check_sharing("cuIpcOpenMemHandle", opened)
        })?;
        match self.range(at) {
            Ok((base, len)) => Ok((device, DeviceAllocation { base, len, id: 0 })),
            Err(error) => {
                self.unmap(device, at as usize);
                Err(error)
            }
        }
    }

    fn unmap(&self, device: u32, base: usize) {
        if let Some(vmm) = self.vmm.as_ref().filter(|vmm| vmm.has(base)) {
            let _ = self.with(device, |_| {
                vmm.unmap(base);
                Ok(())
            });
            return;
        }
        if let Ok(sharing) = self.sharing() {
            // SAFETY: the address is one of `map_handle`; its copies have ended.
            let _ = self.with(device, |_| Ok(unsafe { (sharing.close)(base as DevicePtr) }));
        }
    }

    unsafe fn start_device_copy(
        &self,
        device: u32,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<CopyTicket> {
        let sharing = self.sharing()?;
        self.start(device, |_, open| {
            let (to, from) = (to as DevicePtr, from as DevicePtr);
            // SAFETY: by the contract of the trait; the stream is of the current context.
            let copied = unsafe { (sharing.between)(to, from, len, open.between) };
            ("cuMemcpyDtoDAsync", copied, open.between)
        })
    }
}
