//! Allocations of devices of other processes of the host, mapped by their handles.
use crate::device::{BouncePool, CopySet, DeviceInterface, DeviceInterfaces, DeviceLocation};
use crate::device_allocation::DeviceHandle;
use crate::error::{Error, Result};
use crate::rights::ReceivedFd;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum allocations of other processes mapped by this process at a time.
const MAPPED_MAX: usize = 4096;

/// Number of mapped allocations of other processes.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Allocation of another process, mapped by this process until the value is dropped.
#[derive(Debug)]
pub struct MappedAllocation {
    location: DeviceLocation,
    base: usize,
    len: usize,
}

impl MappedAllocation {
    /// Maps the allocation of a handle with at least `len` bytes, of the interface with this
    /// number. The handle is another process's: any content is possible. `copy_file` copies a file
    /// named by the handle. Fails with -FI_EOPNOTSUPP without the interface or with a smaller
    /// allocation, with -FI_ENOSPC if too many allocations are mapped, with the error of `copy_file`,
    /// else as [`DeviceInterface::map_handle`].
    pub fn open(
        interfaces: DeviceInterfaces,
        number: u32,
        handle: &DeviceHandle,
        len: usize,
        copy_file: impl FnOnce(RawFd) -> Result<ReceivedFd>,
    ) -> Result<Arc<Self>> {
        let is_named = |interface: &&&dyn DeviceInterface| interface.number() == number;
        let interface = *interfaces.iter().find(is_named).ok_or(Error::OPNOTSUPP)?;
        if MAPPED.fetch_add(1, Ordering::Relaxed) >= MAPPED_MAX {
            MAPPED.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::NOSPC);
        }
        let mapped = handle.file.map(copy_file).transpose().and_then(|file| {
            let file = file.as_ref().and_then(ReceivedFd::get);
            interface.map_handle(handle, file, len)
        });
        match mapped {
            Ok((device, allocation)) => {
                let location = DeviceLocation { interface, device };
                let mapped = Self { location, base: allocation.base, len: allocation.len };
                if len == 0 || mapped.len < len { Err(Error::OPNOTSUPP) } else { Ok(mapped.into()) }
            }
            Err(error) => {
                MAPPED.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Returns the device with the memory.
    pub fn location(&self) -> DeviceLocation {
        self.location
    }

    /// Returns the address in this process of `len` bytes of the allocation from byte `from` on;
    /// none beyond its end.
    pub fn address(&self, from: u64, len: usize) -> Option<usize> {
        let from = usize::try_from(from).ok()?;
        (from <= self.len && len <= self.len - from).then(|| self.base + from)
    }
}

impl Drop for MappedAllocation {
    fn drop(&mut self) {
        self.location.interface.unmap(self.location.device, self.base);
        MAPPED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Copies between a mapped allocation and memory of devices of this process. Dropping it waits for
/// them.
#[derive(Debug)]
pub struct SharedCopies {
    copies: CopySet,
    mapped: Arc<MappedAllocation>,
}

impl SharedCopies {
    /// Returns an empty set. Copies have the time limit of those of `pool`.
    pub fn new(pool: &BouncePool, mapped: &Arc<MappedAllocation>) -> Self {
        Self { copies: CopySet::new(pool.timeout()), mapped: mapped.clone() }
    }

    /// Starts a copy of `len` bytes of the allocation from byte `from` on to memory of a device of
    /// the same interface at `to`. Fails with -FI_EINVAL beyond the end of the allocation, else as
    /// [`DeviceInterface::start_device_copy`].
    ///
    /// # Safety
    /// The memory at `to` stays the caller's until the copies have ended.
    pub(crate) unsafe fn start_copy(
        &mut self,
        from: u64,
        location: DeviceLocation,
        to: usize,
        len: usize,
    ) -> Result {
        let from = self.mapped.address(from, len).ok_or(Error::INVAL)?;
        if location.interface.number() != self.mapped.location.interface.number() {
            return Err(Error::INVAL);
        }
        // SAFETY: the allocation stays mapped until the end of the copies; the target is the
        // caller's by this function's contract.
        let ticket =
            unsafe { location.interface.start_device_copy(location.device, from, to, len) }?;
        self.copies.push(location, ticket);
        Ok(())
    }

    /// Returns true after the end of all copies. An error of one is stored, unless `error` has one.
    pub fn has_ended(&mut self, error: &mut Option<Error>) -> bool {
        self.copies.has_ended(error)
    }
}

impl Drop for SharedCopies {
    fn drop(&mut self) {
        let _ = self.copies.wait();
        if self.copies.is_busy() {
            // The device may still read the memory, so it stays mapped.
            core::mem::forget(self.mapped.clone());
        }
    }
}
