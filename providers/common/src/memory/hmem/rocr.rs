//! ROCm: the HSA runtime, `libhsa-runtime64.so.1`.
//!
//! A copy has a signal, 1 while it is in progress. Devices reach host memory at another address
//! than the processor, and only while it is locked: buffers are locked by `pin`, other memory for
//! the time of its copy.
//!
//! Allocations shared with other processes have a number, until the runtime reports their end.
use super::library::{DeviceLibrary, Loaded, calls, cannot_share, keep_own_code, reject_copy};
use crate::abi::fi_hmem_iface;
use crate::device::{CopyDirection, CopyTicket, DeviceInterface};
use crate::device_allocation::{DeviceAllocation, DeviceHandle, HANDLE_LEN};
use crate::error::{Error, Result};
use crate::provider::Provider;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// hsa_status_t; other values than 0 and 1 are errors.
type Status = c_uint;
/// HSA_STATUS_ERROR_INVALID_ARGUMENT, INVALID_ALLOCATION and OUT_OF_RESOURCES.
const INVALID_ARGUMENT: Status = 0x1001;
const INVALID_ALLOCATION: Status = 0x1003;
const OUT_OF_RESOURCES: Status = 0x1008;

/// HSA_AGENT_INFO_DEVICE, and its values HSA_DEVICE_TYPE_CPU and HSA_DEVICE_TYPE_GPU.
const INFO_DEVICE: c_uint = 17;
const TYPE_CPU: c_uint = 0;
const TYPE_GPU: c_uint = 1;

/// HSA_AMD_AGENT_INFO_BDFID, HSA_AMD_AGENT_INFO_DOMAIN and HSA_AMD_AGENT_INFO_UUID.
const INFO_BDFID: c_uint = 0xa006;
const INFO_DOMAIN: c_uint = 0xa00f;
const INFO_UUID: c_uint = 0xa011;
/// Begin of the UUID of a device, followed by 16 digits, or by `XX` if there is none.
const UUID_BEGIN: &[u8] = b"GPU-";

/// HSA_EXT_POINTER_TYPE_HSA, HSA_EXT_POINTER_TYPE_IPC and HSA_EXT_POINTER_TYPE_HSA_VMEM: allocated
/// by the runtime, imported from another process, and mapped by the application.
const POINTERS_OF_AGENTS: [c_uint; 3] = [1, 4, 6];

/// hsa_agent_t
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Agent(u64);

/// hsa_signal_t
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Signal(u64);

/// hsa_amd_pointer_info_t, as of its first version. A runtime fills the first `size` bytes.
#[repr(C)]
struct PointerInfo {
    size: u32,
    kind: c_uint,
    agent_base: usize,
    host_base: usize,
    len: usize,
    user_data: usize,
    owner: Agent,
    global_flags: u32,
}

calls! {
    /// Functions of the runtime.
    struct Calls {
        init: c"hsa_init" unsafe extern "C" fn() -> Status,
        shut_down: c"hsa_shut_down" unsafe extern "C" fn() -> Status,
        status_string: c"hsa_status_string"
            unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        iterate_agents: c"hsa_iterate_agents"
            unsafe extern "C" fn(unsafe extern "C" fn(Agent, *mut c_void) -> Status, *mut c_void) -> Status,
        agent_info: c"hsa_agent_get_info"
            unsafe extern "C" fn(Agent, c_uint, *mut c_void) -> Status,
        pointer_info: c"hsa_amd_pointer_info"
            unsafe extern "C" fn(
                *const c_void, *mut PointerInfo, *const c_void, *mut u32, *mut *mut Agent
            ) -> Status,
        copy: c"hsa_amd_memory_async_copy"
            unsafe extern "C" fn(
                *mut c_void, Agent, *const c_void, Agent, usize, u32, *const Signal, Signal
            ) -> Status,
        lock: c"hsa_amd_memory_lock"
            unsafe extern "C" fn(*mut c_void, usize, *mut Agent, c_int, *mut *mut c_void) -> Status,
        unlock: c"hsa_amd_memory_unlock" unsafe extern "C" fn(*mut c_void) -> Status,
        create_signal: c"hsa_signal_create"
            unsafe extern "C" fn(i64, u32, *const Agent, *mut Signal) -> Status,
        destroy_signal: c"hsa_signal_destroy" unsafe extern "C" fn(Signal) -> Status,
        load_signal: c"hsa_signal_load_scacquire" unsafe extern "C" fn(Signal) -> i64,
        store_signal: c"hsa_signal_store_relaxed" unsafe extern "C" fn(Signal, i64),
    }
}

/// hsa_amd_ipc_memory_t
type IpcHandle = [u8; 32];

const _: () = assert!(size_of::<IpcHandle>() <= HANDLE_LEN);

calls! {
    /// Functions of the runtime for memory shared with other processes.
    struct SharingCalls {
        create: c"hsa_amd_ipc_memory_create"
            unsafe extern "C" fn(*mut c_void, usize, *mut IpcHandle) -> Status,
        attach: c"hsa_amd_ipc_memory_attach"
            unsafe extern "C" fn(
                *const IpcHandle, usize, u32, *const Agent, *mut *mut c_void
            ) -> Status,
        detach: c"hsa_amd_ipc_memory_detach" unsafe extern "C" fn(*mut c_void) -> Status,
        notify: c"hsa_amd_register_deallocation_callback"
            unsafe extern "C" fn(
                *mut c_void, unsafe extern "C" fn(*mut c_void, *mut c_void), *mut c_void
            ) -> Status,
    }
}

/// Numbers of shared allocations by their first address. No call of the runtime is made with the lock
/// held: the runtime calls [`freed`] with its own.
static NUMBERS: Mutex<(u64, BTreeMap<usize, u64>)> = Mutex::new((0, BTreeMap::new()));

fn numbers() -> MutexGuard<'static, (u64, BTreeMap<usize, u64>)> {
    NUMBERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Forgets a freed allocation.
unsafe extern "C" fn freed(base: *mut c_void, _: *mut c_void) {
    numbers().1.remove(&(base as usize));
}

/// ROCm with the devices of this process.
struct Rocr {
    calls: Calls,
    /// None for a runtime without them.
    sharing: Option<SharingCalls>,
    provider: &'static Provider,
    /// Agent for the memory of the host.
    host: Agent,
    devices: Vec<Agent>,
    state: Mutex<RocrState>,
    is_lost: AtomicBool,
}

#[derive(Default)]
struct RocrState {
    /// Length and address for devices of locked buffers by their address.
    pinned: BTreeMap<usize, (usize, usize)>,
    /// Addresses of memory locked for the copy with this signal.
    locked: BTreeMap<Signal, usize>,
    /// Signals of ended copies, for others.
    signals: Vec<Signal>,
}

impl std::fmt::Debug for Rocr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ROCm devices", self.devices.len())
    }
}

/// Adds an agent to the list behind `list`.
unsafe extern "C" fn add_agent(agent: Agent, list: *mut c_void) -> Status {
    // SAFETY: the list is the one of `load`, which waits for the iteration.
    unsafe { &mut *list.cast::<Vec<Agent>>() }.push(agent);
    0
}

/// Loads the runtime and finds the devices.
pub(super) fn load(provider: &'static Provider) -> Loaded<&'static dyn DeviceInterface> {
    let library = DeviceLibrary::load("libhsa-runtime64.so.1")?;
    let calls = Calls::load(&library)?;
    let sharing = SharingCalls::load(&library).ok();
    let sharing = sharing.filter(|_| keep_own_code(freed as *const c_void));
    library.keep();
    // SAFETY: the runtime is initialized before any other call.
    let initialized = unsafe { (calls.init)() };
    if initialized != 0 {
        return Err(format!("hsa_init failed: {}", calls.name_of(initialized)));
    }
    let mut agents: Vec<Agent> = Vec::new();
    // SAFETY: the runtime calls `add_agent` with the list, in this thread.
    let listed = unsafe { (calls.iterate_agents)(add_agent, (&raw mut agents).cast()) };
    let is = |agent: &Agent, wanted| calls.type_of(*agent) == Some(wanted);
    let devices: Vec<Agent> = agents.iter().copied().filter(|agent| is(agent, TYPE_GPU)).collect();
    let host = agents.iter().copied().find(|agent| is(agent, TYPE_CPU));
    let (Some(host), false) = (host, devices.is_empty()) else {
        // SAFETY: ends the use of the runtime by this library, not by the application.
        unsafe { (calls.shut_down)() };
        return Err(format!("0 devices, {}", calls.name_of(listed)));
    };
    let (state, is_lost) = (Mutex::default(), AtomicBool::new(false));
    Ok(Box::leak(Box::new(Rocr { calls, sharing, provider, host, devices, state, is_lost })))
}

impl Calls {
    /// Returns the name of a status: `HSA_STATUS_ERROR_OUT_OF_RESOURCES`.
    fn name_of(&self, status: Status) -> String {
        let mut name = core::ptr::null();
        // SAFETY: the runtime writes to the pointer.
        let found = unsafe { (self.status_string)(status, &raw mut name) };
        if found != 0 || name.is_null() {
            return format!("HSA status {status:#x}");
        }
        // SAFETY: the name, with a description after it, is a C string that stays.
        let text = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        text.split(':').next().unwrap_or(&text).to_owned()
    }

    /// Returns the type of an agent.
    fn type_of(&self, agent: Agent) -> Option<c_uint> {
        let mut kind: c_uint = 0;
        // SAFETY: the value of this attribute is a number of this size.
        let found = unsafe { (self.agent_info)(agent, INFO_DEVICE, (&raw mut kind).cast()) };
        (found == 0).then_some(kind)
    }
}

impl Rocr {
    /// Converts a status of the runtime; an error is logged with the name of the call.
    fn check(&self, call: &str, status: Status) -> Result {
        if status == 0 {
            return Ok(());
        }
        let name = self.calls.name_of(status);
        crate::log_sparsely!(self.provider, WARN, DOMAIN, "{call} failed: {name}");
        Err(match status {
            INVALID_ARGUMENT | INVALID_ALLOCATION => Error::FAULT,
            OUT_OF_RESOURCES => Error::NOMEM,
            _ => Error::IO,
        })
    }

    fn state(&self) -> MutexGuard<'_, RocrState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the information of the runtime about an address in memory of an agent; none for any
    /// other address.
    fn info(&self, addr: usize) -> Option<PointerInfo> {
        let size = size_of::<PointerInfo>();
        let mut info = PointerInfo {
            size: size as u32,
            kind: 0,
            agent_base: 0,
            host_base: 0,
            len: 0,
            user_data: 0,
            owner: Agent(0),
            global_flags: 0,
        };
        // SAFETY: the runtime writes to the structure of the stated size. For memory unknown to it, it
        // answers with another type, or with an error.
        let found = unsafe {
            let (agents, none) = (core::ptr::null_mut(), core::ptr::null());
            (self.calls.pointer_info)(
                addr as *const c_void,
                &raw mut info,
                none,
                agents,
                core::ptr::null_mut(),
            )
        };
        if found != 0 && found != INVALID_ARGUMENT {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        (found == 0 && POINTERS_OF_AGENTS.contains(&info.kind)).then_some(info)
    }

    /// Returns the device with this address in its memory, and the bytes from there to the end of
    /// the allocation; none for any other address.
    fn find(&self, addr: usize) -> Option<(u32, usize)> {
        let info = self.info(addr)?;
        let device = self.devices.iter().position(|device| *device == info.owner)?;
        let left = info.len.checked_sub(addr.checked_sub(info.agent_base)?)?;
        Some((u32::try_from(device).ok()?, left))
    }

    fn sharing(&self) -> Result<&SharingCalls> {
        self.sharing.as_ref().ok_or(Error::OPNOTSUPP)
    }

    /// Converts a status of a call for memory shared with other processes: without it the memory is
    /// copied. An error is logged with the name of the call.
    fn check_sharing(&self, call: &str, status: Status) -> Result {
        match status {
            0 => Ok(()),
            _ => Err(cannot_share(self.provider, call, &self.calls.name_of(status))),
        }
    }

    /// Returns a name of a device in all processes: the digits of its UUID, else its PCI address.
    fn identity(&self, device: u32) -> Result<[u8; 16]> {
        let agent = *self.devices.get(device as usize).ok_or(Error::NODEV)?;
        let (mut uuid, mut bdf, mut domain) = ([0u8; 64], 0u32, 0u32);
        // SAFETY: the value of an attribute is a number of this size, or text of 21 bytes at most.
        let (named, found) = unsafe {
            let get = self.calls.agent_info;
            let found = match get(agent, INFO_BDFID, (&raw mut bdf).cast()) {
                0 => get(agent, INFO_DOMAIN, (&raw mut domain).cast()),
                error => error,
            };
            (get(agent, INFO_UUID, uuid.as_mut_ptr().cast()), found)
        };
        let digits = uuid.strip_prefix(UUID_BEGIN).and_then(|rest| rest.first_chunk::<16>());
        match digits {
            Some(digits) if named == 0 && digits.iter().all(u8::is_ascii_hexdigit) => Ok(*digits),
            _ => {
                self.check_sharing("hsa_agent_get_info", found)?;
                let mut address = *b"PCI             ";
                address[4..8].copy_from_slice(&domain.to_ne_bytes());
                address[8..12].copy_from_slice(&bdf.to_ne_bytes());
                Ok(address)
            }
        }
    }

    /// Returns the number of the allocation at this address, until it is freed.
    fn number_of(&self, base: usize) -> Result<u64> {
        let sharing = self.sharing()?;
        let number = {
            let (last, numbers) = &mut *numbers();
            if let Some(number) = numbers.get(&base) {
                return Ok(*number);
            }
            *last += 1;
            numbers.insert(base, *last);
            *last
        };
        // SAFETY: the function stays loaded, and takes any address.
        let status = unsafe { (sharing.notify)(base as *mut c_void, freed, core::ptr::null_mut()) };
        let checked = self.check_sharing("hsa_amd_register_deallocation_callback", status);
        if checked.is_err() {
            numbers().1.remove(&base);
        }
        checked.map(|()| number)
    }

    /// Starts a copy with `copy`, with a signal of its own.
    fn start(&self, copy: impl FnOnce(Signal) -> Result<Status>) -> Result<CopyTicket> {
        let signal = self.signal()?;
        let started =
            copy(signal).and_then(|status| self.check("hsa_amd_memory_async_copy", status));
        match started {
            Ok(()) => Ok(CopyTicket(signal.0 as usize)),
            Err(error) => {
                self.retire(signal, true);
                Err(error)
            }
        }
    }

    /// Locks host memory and returns its address for devices.
    ///
    /// # Safety
    /// The memory stays valid until [`unlock`](Self::unlock).
    unsafe fn lock(&self, host: *mut u8, len: usize) -> Result<usize> {
        let mut at = core::ptr::null_mut();
        // SAFETY: the runtime writes to the pointer. No list of agents stands for all of them.
        let locked =
            unsafe { (self.calls.lock)(host.cast(), len, core::ptr::null_mut(), 0, &raw mut at) };
        self.check("hsa_amd_memory_lock", locked).map(|()| at as usize)
    }

    fn unlock(&self, host: usize) {
        // SAFETY: the memory is locked; its copies have ended.
        let _ = unsafe { (self.calls.unlock)(host as *mut c_void) };
    }

    /// Returns an unused signal with the value 1.
    fn signal(&self) -> Result<Signal> {
        let unused = self.state().signals.pop();
        if let Some(signal) = unused {
            // SAFETY: no copy uses the signal.
            unsafe { (self.calls.store_signal)(signal, 1) };
            return Ok(signal);
        }
        let mut signal = Signal(0);
        // SAFETY: the runtime writes to the handle. No list of consumers stands for all agents.
        let created =
            unsafe { (self.calls.create_signal)(1, 0, core::ptr::null(), &raw mut signal) };
        self.check("hsa_signal_create", created).map(|()| signal)
    }

    /// Returns the address for devices of host memory for a copy with this signal, locked for it if
    /// necessary.
    ///
    /// # Safety
    /// The memory stays valid until the end of the copy.
    unsafe fn reach(&self, host: *mut u8, len: usize, signal: Signal) -> Result<usize> {
        let at = host as usize;
        let mut state = self.state();
        if let Some((base, (size, agent))) = state.pinned.range(..=at).next_back() {
            if at - base < *size && len <= size - (at - base) {
                return Ok(agent + (at - base));
            }
        }
        // SAFETY: by the contract of this function.
        let agent = unsafe { self.lock(host, len) }?;
        state.locked.insert(signal, at);
        Ok(agent)
    }

    /// Ends the use of a signal, with that of the memory locked for its copy.
    fn retire(&self, signal: Signal, is_reusable: bool) {
        let mut state = self.state();
        if let Some(host) = state.locked.remove(&signal) {
            self.unlock(host);
        }
        if is_reusable {
            state.signals.push(signal);
        } else {
            // SAFETY: the copy with the signal has ended.
            let _ = unsafe { (self.calls.destroy_signal)(signal) };
        }
    }
}

impl DeviceInterface for Rocr {
    fn name(&self) -> &'static str {
        "rocr"
    }

    fn number(&self) -> u32 {
        fi_hmem_iface::FI_HMEM_ROCR as u32
    }

    fn device_of(&self, addr: usize) -> Option<u32> {
        self.find(addr).map(|(device, _)| device)
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
        let agent = *self.devices.get(device as usize).ok_or(Error::NODEV)?;
        // A device ends the process at an access outside of its memory, for example of freed memory.
        if self.find(addr).is_none_or(|(found, left)| found != device || len > left) {
            return Err(reject_copy(self.provider, addr, len));
        }
        self.start(|signal| {
            // SAFETY: by the contract of the trait; the memory is locked until the end of the copy.
            let reached = unsafe { self.reach(host, len, signal) }?;
            let (dst, dst_agent, src, src_agent) = match direction {
                CopyDirection::ToHost => (reached, self.host, addr, agent),
                CopyDirection::ToDevice => (addr, agent, reached, self.host),
            };
            let (dst, src) = (dst as *mut c_void, src as *const c_void);
            let none = core::ptr::null();
            // SAFETY: as above.
            Ok(unsafe { (self.calls.copy)(dst, dst_agent, src, src_agent, len, 0, none, signal) })
        })
    }

    fn poll_copy(&self, _: u32, ticket: &CopyTicket) -> Result<bool> {
        let signal = Signal(ticket.0 as u64);
        // SAFETY: the signal is one of `start_copy`.
        let value = unsafe { (self.calls.load_signal)(signal) };
        if value > 0 {
            return Ok(false);
        }
        self.retire(signal, value == 0);
        if value < 0 {
            let call = "hsa_amd_memory_async_copy";
            crate::log_sparsely!(
                self.provider,
                WARN,
                DOMAIN,
                "{call} failed: its signal has the value {value}"
            );
            return Err(Error::IO);
        }
        Ok(true)
    }

    unsafe fn pin(&self, host: *mut u8, len: usize) -> Result {
        // SAFETY: by the contract of the trait.
        let agent = unsafe { self.lock(host, len) }?;
        self.state().pinned.insert(host as usize, (len, agent));
        Ok(())
    }

    fn unpin(&self, host: *mut u8) {
        let pinned = self.state().pinned.remove(&(host as usize));
        if pinned.is_some() {
            self.unlock(host as usize);
        }
    }

    fn allocation_of(&self, _device: u32, addr: usize) -> Result<DeviceAllocation> {
        let info = self.info(addr).ok_or(Error::OPNOTSUPP)?;
        let id = self.number_of(info.agent_base)?;
        Ok(DeviceAllocation { base: info.agent_base, len: info.len, id })
    }

    fn export_handle(&self, device: u32, allocation: &DeviceAllocation) -> Result<DeviceHandle> {
        let sharing = self.sharing()?;
        let mut handle: IpcHandle = [0; 32];
        // SAFETY: the runtime checks the allocation, and writes to the handle.
        let created = unsafe {
            (sharing.create)(allocation.base as *mut c_void, allocation.len, &raw mut handle)
        };
        self.check_sharing("hsa_amd_ipc_memory_create", created)?;
        let mut bytes = [0; HANDLE_LEN];
        bytes[..handle.len()].copy_from_slice(&handle);
        Ok(DeviceHandle { device: self.identity(device)?, bytes, file: None })
    }

    fn map_handle(
        &self,
        handle: &DeviceHandle,
        _file: Option<BorrowedFd<'_>>,
        len: usize,
    ) -> Result<(u32, DeviceAllocation)> {
        let sharing = self.sharing()?;
        // Another process may see other devices, in another order.
        let is_it = |device: &u32| self.identity(*device) == Ok(handle.device);
        let device = (0..self.devices.len() as u32).find(is_it).ok_or(Error::OPNOTSUPP)?;
        let (bytes, _) = handle.bytes.split_first_chunk::<32>().ok_or(Error::OPNOTSUPP)?;
        let mut at = core::ptr::null_mut();
        // SAFETY: the runtime checks the handle and the length, and writes to the address. No list of
        // agents stands for all of them.
        let attached = unsafe { (sharing.attach)(bytes, len, 0, core::ptr::null(), &raw mut at) };
        self.check_sharing("hsa_amd_ipc_memory_attach", attached)?;
        let base = at as usize;
        let left = self
            .info(base)
            .and_then(|info| info.len.checked_sub(base.checked_sub(info.agent_base)?));
        match left {
            Some(len) => Ok((device, DeviceAllocation { base, len, id: 0 })),
            None => {
                self.unmap(device, base);
                Err(Error::OPNOTSUPP)
            }
        }
    }

    fn unmap(&self, _device: u32, base: usize) {
        if let Ok(sharing) = self.sharing() {
            // SAFETY: the address is one of `map_handle`; its copies have ended.
            let _ = unsafe { (sharing.detach)(base as *mut c_void) };
        }
    }

    unsafe fn start_device_copy(
        &self,
        device: u32,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<CopyTicket> {
        let agent = *self.devices.get(device as usize).ok_or(Error::NODEV)?;
        if self.find(to).is_none_or(|(found, left)| found != device || len > left) {
            return Err(reject_copy(self.provider, to, len));
        }
        let owner = self.find(from).and_then(|(found, _)| self.devices.get(found as usize));
        let owner = *owner.unwrap_or(&agent);
        let (dst, src, none) = (to as *mut c_void, from as *const c_void, core::ptr::null());
        self.start(|signal| {
            // SAFETY: by the contract of the trait.
            Ok(unsafe { (self.calls.copy)(dst, agent, src, owner, len, 0, none, signal) })
        })
    }
}
