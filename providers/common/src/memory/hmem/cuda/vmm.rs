//! Memory of the driver's virtual memory management (cuMemCreate), shared by descriptors: it has no
//! handle of cuIpcGetMemHandle.
use crate::error::{Error, Result};
use crate::hmem::library::{DeviceLibrary, Loaded, calls};
use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

/// CUresult and CUdeviceptr.
type CuResult = c_int;
type DevicePtr = u64;

/// Converts a result of the call with this name.
type Check<'a> = &'a dyn Fn(&str, CuResult) -> Result;

/// CUmemGenericAllocationHandle.
type Memory = u64;

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
const POSIX_DESCRIPTOR: c_int = 1;
/// CU_MEM_LOCATION_TYPE_DEVICE
const OF_DEVICE: c_int = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE
const READ_WRITE: c_int = 3;

/// CUmemAccessDesc.
#[repr(C)]
struct Access {
    kind: c_int,
    device: c_int,
    flags: c_int,
}

calls! {
    /// Functions of the driver for memory with its own addresses.
    struct Calls {
        retain: c"cuMemRetainAllocationHandle"
            unsafe extern "C" fn(*mut Memory, *mut c_void) -> CuResult,
        release: c"cuMemRelease" unsafe extern "C" fn(Memory) -> CuResult,
        export: c"cuMemExportToShareableHandle"
            unsafe extern "C" fn(*mut c_void, Memory, c_int, u64) -> CuResult,
        import: c"cuMemImportFromShareableHandle"
            unsafe extern "C" fn(*mut Memory, *mut c_void, c_int) -> CuResult,
        reserve: c"cuMemAddressReserve"
            unsafe extern "C" fn(*mut DevicePtr, usize, usize, DevicePtr, u64) -> CuResult,
        free: c"cuMemAddressFree" unsafe extern "C" fn(DevicePtr, usize) -> CuResult,
        map: c"cuMemMap" unsafe extern "C" fn(DevicePtr, usize, usize, Memory, u64) -> CuResult,
        unmap: c"cuMemUnmap" unsafe extern "C" fn(DevicePtr, usize) -> CuResult,
        access: c"cuMemSetAccess"
            unsafe extern "C" fn(DevicePtr, usize, *const Access, usize) -> CuResult,
    }
}

/// Virtual memory management of the driver.
pub(super) struct Vmm {
    calls: Calls,
    /// Mapped allocations of other processes: first address and length.
    mapped: Mutex<HashMap<usize, usize>>,
}

impl Vmm {
    pub(super) fn load(library: &DeviceLibrary) -> Loaded<Self> {
        Ok(Self { calls: Calls::load(library)?, mapped: Mutex::default() })
    }

    fn mapped(&self) -> MutexGuard<'_, HashMap<usize, usize>> {
        self.mapped.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns a descriptor of the allocation at this address, made by cuMemCreate for descriptors.
    /// Fails with the error of `check` for any other.
    pub(super) fn export(&self, base: usize, check: Check<'_>) -> Result<RawFd> {
        let (calls, mut file, mut memory) = (&self.calls, -1, 0);
        // SAFETY: the driver checks the address, and writes to the handle.
        let retained = unsafe { (calls.retain)(&raw mut memory, base as *mut c_void) };
        check("cuMemRetainAllocationHandle", retained)?;
        // SAFETY: the handle is the one above, released once; the driver writes to the number.
        let exported = unsafe {
            let exported = (calls.export)((&raw mut file).cast(), memory, POSIX_DESCRIPTOR, 0);
            (calls.release)(memory);
            exported
        };
        check("cuMemExportToShareableHandle", exported)?;
        // Programs started by this process do not get the descriptor.
        // SAFETY: no memory is involved; any number is permitted.
        match unsafe { libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC) } {
            0 => Ok(file),
            _ => Err(Error::OPNOTSUPP),
        }
    }

    /// Maps the first `len` bytes of the memory of another process's descriptor, for the first of
    /// these devices and for the others able to access it. Returns the first address.
    pub(super) fn map(
        &self,
        devices: &[c_int],
        file: BorrowedFd<'_>,
        len: usize,
        check: Check<'_>,
    ) -> Result<usize> {
        let mut memory = 0;
        // The driver takes the number of a descriptor in place of an address.
        let number = file.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the driver checks the file, and writes to the handle.
        let imported = unsafe { (self.calls.import)(&raw mut memory, number, POSIX_DESCRIPTOR) };
        check("cuMemImportFromShareableHandle", imported)?;
        let base = self.map_memory(devices, memory, len, check);
        // SAFETY: the handle is the one above, released once; a mapping keeps the memory.
        unsafe { (self.calls.release)(memory) };
        base
    }

    fn map_memory(
        &self,
        devices: &[c_int],
        memory: Memory,
        len: usize,
        check: Check<'_>,
    ) -> Result<usize> {
        let (calls, mut at) = (&self.calls, 0);
        // SAFETY: the driver chooses the addresses, and writes the first one.
        let reserved = unsafe { (calls.reserve)(&raw mut at, len, 0, 0, 0) };
        check("cuMemAddressReserve", reserved)?;
        // SAFETY: the addresses were reserved above; the driver checks the length.
        let mapped = unsafe { (calls.map)(at, len, 0, memory, 0) };
        let permitted = check("cuMemMap", mapped).and_then(|()| {
            self.permit(devices, at, len, check).inspect_err(|_| {
                // SAFETY: the mapping is the one above, used by nothing.
                unsafe { (calls.unmap)(at, len) };
            })
        });
        match permitted {
            Ok(()) => {
                self.mapped().insert(at as usize, len);
                Ok(at as usize)
            }
            Err(error) => {
                // SAFETY: nothing is mapped at the addresses reserved above.
                unsafe { (calls.free)(at, len) };
                Err(error)
            }
        }
    }

    /// Permits accesses of a mapping by the first device, and by others if they are able to.
    fn permit(&self, devices: &[c_int], at: DevicePtr, len: usize, check: Check<'_>) -> Result {
        let (first, others) = devices.split_first().ok_or(Error::NODEV)?;
        let set = |device: &c_int| {
            let access = Access { kind: OF_DEVICE, device: *device, flags: READ_WRITE };
            // SAFETY: the driver reads the structure, and checks the addresses.
            let set = unsafe { (self.calls.access)(at, len, &raw const access, 1) };
            check("cuMemSetAccess", set)
        };
        set(first)?;
        others.iter().for_each(|other| {
            let _ = set(other);
        });
        Ok(())
    }

    /// Returns true if a mapping begins at this address.
    pub(super) fn has(&self, base: usize) -> bool {
        self.mapped().contains_key(&base)
    }

    /// Ends the mapping at this address.
    pub(super) fn unmap(&self, base: usize) {
        let Some(len) = self.mapped().remove(&base) else { return };
        let at = base as DevicePtr;
        // SAFETY: the mapping and its addresses are those of `map`; its copies have ended.
        unsafe {
            (self.calls.unmap)(at, len);
            (self.calls.free)(at, len);
        }
    }
}
