//! Simulated memory of a device (FI_HMEM): ordinary memory with all bytes changed. An access without a
//! copy finds, or leaves, wrong bytes.
use ofi_provider::buf::Locations;
use ofi_provider::device::{
    CopyDirection, CopyTicket, DeviceInterface, DeviceInterfaces, DeviceLocation,
};
use ofi_provider::device_allocation::{DeviceAllocation, DeviceHandle, HANDLE_LEN};
use ofi_provider::error::{Error, Result};
use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;

/// Interfaces of engines in a world with devices.
pub const INTERFACES: DeviceInterfaces = &[&SimDevice];

/// Difference between a byte and its representation in memory of a device.
const MASK: u8 = 0x5a;

/// The device has one allocation with all addresses, replaced after so many queries.
const ALLOCATION_QUERIES: u64 = 20;

/// One of so many allocations has no handle, and one of so many handles is not mapped.
const NO_HANDLE: u64 = 7;
const NO_MAPPING: u64 = 5;

/// Maximum polls of a copy in progress.
const POLLS_MAX: usize = 4;

/// Device of the thread's simulation.
#[derive(Debug)]
struct SimDevice;

/// Forgets the copies of earlier simulations of the thread.
pub(crate) fn clear() {
    COPIES.take();
    SHARING.take();
}

/// Copy in progress.
#[derive(Clone, Copy, Debug)]
struct SimCopy {
    from: usize,
    to: usize,
    len: usize,
    /// The bytes change between host and device.
    is_masked: bool,
    polls: usize,
}

/// Use of allocations by other processes.
#[derive(Clone, Copy, Default, Debug)]
struct SimSharing {
    queries: u64,
    handles: u64,
    mapped: usize,
    /// Copies of mapped memory to memory of the device.
    copies: u64,
}

std::thread_local! {
    static COPIES: RefCell<Vec<Option<SimCopy>>> = const { RefCell::new(Vec::new()) };
    static SHARING: Cell<SimSharing> = const { Cell::new(SimSharing {
        queries: 0, handles: 0, mapped: 0, copies: 0,
    }) };
}

/// Returns the number of copies of mapped memory to memory of the device, in the thread's simulation.
pub fn shared_copies() -> u64 {
    SHARING.get().copies
}

/// Changes the use of allocations.
fn count<R>(change: impl FnOnce(&mut SimSharing) -> R) -> R {
    let mut sharing = SHARING.get();
    let result = change(&mut sharing);
    SHARING.set(sharing);
    result
}

/// Starts a copy.
fn start(from: usize, to: usize, len: usize, is_masked: bool) -> CopyTicket {
    COPIES.with_borrow_mut(|copies| {
        let polls = copies.len() % POLLS_MAX;
        copies.push(Some(SimCopy { from, to, len, is_masked, polls }));
        CopyTicket(copies.len() - 1)
    })
}

/// Changes bytes between their values and their representation in memory of a device.
pub(crate) fn mask(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte ^= MASK);
}

/// Returns locations with the first segment in memory of the device.
pub(crate) fn locations() -> Locations {
    let mut locations = Locations::default();
    locations[0] = Some(DeviceLocation { interface: &SimDevice, device: 0 });
    locations
}

impl DeviceInterface for SimDevice {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn number(&self) -> u32 {
        1
    }

    fn device_of(&self, _addr: usize) -> Option<u32> {
        None
    }

    unsafe fn start_copy(
        &self,
        _device: u32,
        direction: CopyDirection,
        addr: usize,
        host: *mut u8,
        len: usize,
    ) -> Result<CopyTicket> {
        let (from, to) = match direction {
            CopyDirection::ToHost => (addr, host as usize),
            CopyDirection::ToDevice => (host as usize, addr),
        };
        Ok(start(from, to, len, true))
    }

    fn poll_copy(&self, _device: u32, ticket: &CopyTicket) -> Result<bool> {
        COPIES.with_borrow_mut(|copies| {
            let slot = &mut copies[ticket.0];
            let copy = slot.as_mut().expect("a copy is polled after its end");
            if copy.polls > 0 {
                copy.polls -= 1;
                return Ok(false);
            }
            let SimCopy { from, to, len, is_masked, .. } = *copy;
            *slot = None;
            // SAFETY: the oracle keeps the buffers of all operations, and the engine the bounce buffer
            // until the end of the copy. They are different allocations.
            let to = unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len);
                std::slice::from_raw_parts_mut(to as *mut u8, len)
            };
            if is_masked {
                mask(to);
            }
            Ok(true)
        })
    }

    unsafe fn pin(&self, _host: *mut u8, _len: usize) -> Result {
        Ok(())
    }

    fn unpin(&self, _host: *mut u8) {}

    fn allocation_of(&self, _device: u32, _addr: usize) -> Result<DeviceAllocation> {
        let id = count(|sharing| {
            sharing.queries += 1;
            sharing.queries / ALLOCATION_QUERIES
        });
        Ok(DeviceAllocation { base: 0, len: usize::MAX / 2, id })
    }

    fn export_handle(&self, _device: u32, allocation: &DeviceAllocation) -> Result<DeviceHandle> {
        let has_none = allocation.id % NO_HANDLE == NO_HANDLE - 1;
        let handle = DeviceHandle { device: [0; 16], bytes: [0; HANDLE_LEN], file: None };
        if has_none { Err(Error::OPNOTSUPP) } else { Ok(handle) }
    }

    fn map_handle(
        &self,
        _handle: &DeviceHandle,
        _file: Option<BorrowedFd<'_>>,
        len: usize,
    ) -> Result<(u32, DeviceAllocation)> {
        count(|sharing| {
            sharing.handles += 1;
            if sharing.handles % NO_MAPPING == 0 {
                return Err(Error::OPNOTSUPP);
            }
            sharing.mapped += 1;
            Ok((0, DeviceAllocation { base: 0, len, id: 0 }))
        })
    }

    fn unmap(&self, _device: u32, _base: usize) {
        count(|sharing| sharing.mapped = sharing.mapped.saturating_sub(1));
    }

    unsafe fn start_device_copy(
        &self,
        _device: u32,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<CopyTicket> {
        count(|sharing| {
            assert!(sharing.mapped > 0, "no allocation is mapped");
            sharing.copies += 1;
        });
        Ok(start(from, to, len, false))
    }
}
