//! Simulated memory of a device (FI_HMEM): ordinary memory with all bytes changed. An access without a
//! copy finds, or leaves, wrong bytes.
use ofi_provider::buf::Locations;
use ofi_provider::device::{
    CopyDirection, CopyTicket, DeviceInterface, DeviceInterfaces, DeviceLocation,
};
use ofi_provider::error::Result;
use std::cell::RefCell;

/// Interfaces of engines in a world with devices.
pub const INTERFACES: DeviceInterfaces = &[&SimDevice];

/// Difference between a byte and its representation in memory of a device.
const MASK: u8 = 0x5a;

/// Maximum polls of a copy in progress.
const POLLS_MAX: usize = 4;

/// Device of the thread's simulation.
#[derive(Debug)]
struct SimDevice;

/// Forgets the copies of earlier simulations of the thread.
pub(crate) fn clear() {
    COPIES.take();
}

/// Copy in progress.
#[derive(Clone, Copy, Debug)]
struct SimCopy {
    direction: CopyDirection,
    addr: usize,
    host: usize,
    len: usize,
    polls: usize,
}

std::thread_local! {
    static COPIES: RefCell<Vec<Option<SimCopy>>> = const { RefCell::new(Vec::new()) };
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
        COPIES.with_borrow_mut(|copies| {
            let (host, polls) = (host as usize, copies.len() % POLLS_MAX);
            copies.push(Some(SimCopy { direction, addr, host, len, polls }));
            Ok(CopyTicket(copies.len() - 1))
        })
    }

    fn poll_copy(&self, _device: u32, ticket: &CopyTicket) -> Result<bool> {
        COPIES.with_borrow_mut(|copies| {
            let slot = &mut copies[ticket.0];
            let copy = slot.as_mut().expect("a copy is polled after its end");
            if copy.polls > 0 {
                copy.polls -= 1;
                return Ok(false);
            }
            let SimCopy { direction, addr, host, len, .. } = *copy;
            *slot = None;
            let (from, to) = match direction {
                CopyDirection::ToHost => (addr, host),
                CopyDirection::ToDevice => (host, addr),
            };
            // SAFETY: the oracle keeps the buffers of all operations, and the engine the bounce buffer
            // until the end of the copy. They are different allocations.
            let to = unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len);
                std::slice::from_raw_parts_mut(to as *mut u8, len)
            };
            mask(to);
            Ok(true)
        })
    }

    unsafe fn pin(&self, _host: *mut u8, _len: usize) -> Result {
        Ok(())
    }

    fn unpin(&self, _host: *mut u8) {}
}
