//! Allocations of devices announced to a peer of this host: the device of the peer then reads messages in
//! them, without a copy by this process (FI_HMEM).
//!
//! The first large message of an allocation announces it, and is sent through bounce buffers. After the
//! peer has mapped the allocation ([`MappedAllocation`](ofi_provider::device_sharing::MappedAllocation)), the
//! bodies of later messages are cells with a place in it. An allocation without a handle, or not mapped
//! by the peer, is not announced again.
use ofi_provider::device::DeviceLocation;
use ofi_provider::device_allocation::{DeviceAllocation, DeviceHandle};
use ofi_provider::shm_channel::DeviceCell;

/// Maximum allocations announced to a peer at a time, the maximum mapped by a peer.
pub(super) const ALLOCATIONS_MAX: usize = 256;

/// Decision of the peer about an announced allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Announced {
    /// The peer has not answered yet.
    Pending,
    /// The peer has mapped it.
    Mapped,
    /// The peer has not mapped it, or it has no handle.
    Refused,
}

/// Name of an allocation for the peer, released when it is dropped.
#[derive(Debug)]
struct ExportedHandle {
    location: DeviceLocation,
    handle: DeviceHandle,
}

impl Drop for ExportedHandle {
    fn drop(&mut self) {
        self.location.interface.release_handle(self.location.device, &self.handle);
    }
}

/// Allocation announced to the peer.
#[derive(Debug)]
struct Exported {
    number: u32,
    location: DeviceLocation,
    allocation: DeviceAllocation,
    state: Announced,
    /// Name of the allocation, until the peer has answered.
    handle: Option<ExportedHandle>,
    /// Time of the last use, by [`DeviceExports::uses`].
    used: u64,
}

/// Allocations announced to the peer of a connection.
#[derive(Debug, Default)]
pub(super) struct DeviceExports {
    allocations: Vec<Exported>,
    /// Number of the last announcement.
    last: u32,
    uses: u64,
}

/// Cells to be sent for a message.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum DevicePlan {
    /// These announcements precede the bytes, sent as copies.
    Copies(Vec<DeviceCell>),
    /// The body is in announced allocations.
    Buffers(Vec<DeviceCell>),
}

impl DevicePlan {
    pub(super) const COPIES: Self = Self::Copies(Vec::new());
}

impl DeviceExports {
    /// Returns the cells for a message with these parts. `is_mapped` returns the peer's answer to
    /// the last announcement.
    pub(super) fn plan(
        &mut self,
        parts: &[(DeviceLocation, usize, usize)],
        is_mapped: impl Fn(u32) -> Option<bool>,
    ) -> DevicePlan {
        if let Some(last) = self.allocations.iter_mut().find(|one| one.state == Announced::Pending)
        {
            if let Some(is_mapped) = is_mapped(last.number) {
                last.state = if is_mapped { Announced::Mapped } else { Announced::Refused };
                last.handle = None;
            }
        }
        let mut buffers = Vec::new();
        for &(location, addr, len) in parts {
            let Ok(allocation) = location.interface.allocation_of(location.device, addr) else {
                return DevicePlan::COPIES;
            };
            let from = addr.wrapping_sub(allocation.base);
            if from > allocation.len || len > allocation.len - from {
                return DevicePlan::COPIES;
            }
            let is_it =
                |one: &&mut Exported| one.location == location && one.allocation == allocation;
            let Some(known) = self.allocations.iter_mut().find(is_it) else {
                return DevicePlan::Copies(self.announce(location, allocation));
            };
            self.uses += 1;
            known.used = self.uses;
            if known.state != Announced::Mapped {
                return DevicePlan::COPIES;
            }
            buffers.push(DeviceCell::buffer(known.number, from, len));
        }
        DevicePlan::Buffers(buffers)
    }

    /// Announces an allocation, and the ends of others. Returns no cells while the answer to an
    /// earlier announcement is pending.
    fn announce(
        &mut self,
        location: DeviceLocation,
        allocation: DeviceAllocation,
    ) -> Vec<DeviceCell> {
        if self.allocations.iter().any(|one| one.state == Announced::Pending) {
            return Vec::new();
        }
        let mut cells = Vec::new();
        self.allocations.retain(|one| {
            let now =
                one.location.interface.allocation_of(one.location.device, one.allocation.base);
            let exists = now == Ok(one.allocation);
            if !exists && one.state == Announced::Mapped {
                cells.push(DeviceCell::ended(one.number));
            }
            exists
        });
        if self.allocations.len() >= ALLOCATIONS_MAX {
            let oldest = self.allocations.iter().enumerate().min_by_key(|(_, one)| one.used);
            if let Some((index, _)) = oldest {
                let oldest = self.allocations.swap_remove(index);
                cells.push(DeviceCell::ended(oldest.number));
            }
        }
        self.last = self.last.wrapping_add(1).max(1);
        self.uses += 1;
        let (number, used) = (self.last, self.uses);
        let interface = location.interface;
        let (state, handle) = match interface.export_handle(location.device, &allocation) {
            Ok(handle) => {
                let number_of = interface.number();
                cells.push(DeviceCell::allocation(number, number_of, allocation.len, handle));
                (Announced::Pending, Some(ExportedHandle { location, handle }))
            }
            Err(_) => (Announced::Refused, None),
        };
        self.allocations.push(Exported { number, location, allocation, state, handle, used });
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::device::{CopyDirection, CopyTicket, DeviceInterface};
    use ofi_provider::device_allocation::HANDLE_LEN;
    use ofi_provider::error::{Error, Result};
    use ofi_provider::shm_channel::DeviceCellKind;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    const SIZE: usize = 1 << 20;

    /// Device with an allocation at each multiple of [`SIZE`]; no allocation at 0 has a handle.
    #[derive(Debug, Default)]
    struct Fake {
        generation: AtomicU64,
        /// Handles not released yet.
        handles: AtomicU64,
    }

    impl DeviceInterface for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }
        fn number(&self) -> u32 {
            1
        }
        fn device_of(&self, _: usize) -> Option<u32> {
            Some(0)
        }
        unsafe fn start_copy(
            &self,
            _: u32,
            _: CopyDirection,
            _: usize,
            _: *mut u8,
            _: usize,
        ) -> Result<CopyTicket> {
            Err(Error::IO)
        }
        fn poll_copy(&self, _: u32, _: &CopyTicket) -> Result<bool> {
            Err(Error::IO)
        }
        unsafe fn pin(&self, _: *mut u8, _: usize) -> Result {
            Ok(())
        }
        fn unpin(&self, _: *mut u8) {}
        fn allocation_of(&self, _: u32, addr: usize) -> Result<DeviceAllocation> {
            let id = self.generation.load(Ordering::Relaxed);
            Ok(DeviceAllocation { base: addr / SIZE * SIZE, len: SIZE, id })
        }
        fn export_handle(&self, _: u32, allocation: &DeviceAllocation) -> Result<DeviceHandle> {
            match allocation.base {
                0 => Err(Error::OPNOTSUPP),
                _ => {
                    self.handles.fetch_add(1, Ordering::Relaxed);
                    Ok(DeviceHandle { device: [0; 16], bytes: [0; HANDLE_LEN], file: None })
                }
            }
        }
        fn release_handle(&self, _: u32, _: &DeviceHandle) {
            self.handles.fetch_sub(1, Ordering::Relaxed);
        }
    }

    struct Peer {
        exports: DeviceExports,
        device: &'static Fake,
        answer: Cell<Option<bool>>,
    }

    impl Peer {
        fn new() -> Self {
            let device = Box::leak(Box::default());
            Self { exports: DeviceExports::default(), device, answer: Cell::new(None) }
        }

        fn plan(&mut self, parts: &[(usize, usize)]) -> DevicePlan {
            let location = DeviceLocation { interface: self.device, device: 0 };
            let parts: Vec<_> = parts.iter().map(|(addr, len)| (location, *addr, *len)).collect();
            self.exports.plan(&parts, |_| self.answer.get())
        }

        /// Announces the allocation with this number, mapped by the peer.
        fn map(&mut self, allocation: usize) -> Vec<DeviceCell> {
            self.answer.set(Some(true));
            let DevicePlan::Copies(cells) = self.plan(&[(allocation * SIZE, 8)]) else {
                panic!("it is known")
            };
            cells
        }
    }

    #[test]
    fn an_allocation_is_announced_once_and_used_after_the_answer() {
        let mut peer = Peer::new();
        let DevicePlan::Copies(cells) = peer.plan(&[(SIZE + 5, 8)]) else { panic!() };
        assert_eq!((cells.len(), cells[0].number, cells[0].len), (1, 1, SIZE as u64));
        assert_eq!(peer.plan(&[(SIZE + 5, 8)]), DevicePlan::COPIES, "the answer is pending");
        assert_eq!(peer.plan(&[(2 * SIZE, 8)]), DevicePlan::COPIES, "one at a time");
        assert_eq!(peer.device.handles.load(Ordering::Relaxed), 1);
        peer.answer.set(Some(true));
        let buffers = DevicePlan::Buffers(vec![DeviceCell::buffer(1, 5, 8)]);
        assert_eq!(peer.plan(&[(SIZE + 5, 8)]), buffers);
        assert_eq!(peer.device.handles.load(Ordering::Relaxed), 0, "the peer has answered");
        assert_eq!(peer.plan(&[(2 * SIZE - 4, 8)]), DevicePlan::COPIES, "beyond the allocation");
        let both = [(SIZE, 8), (3 * SIZE, 8)];
        assert!(matches!(peer.plan(&both), DevicePlan::Copies(cells) if cells[0].number == 2));
        assert!(matches!(peer.plan(&both), DevicePlan::Buffers(cells) if cells.len() == 2));
    }

    #[test]
    fn an_allocation_without_a_mapping_or_a_handle_is_not_announced_again() {
        let mut peer = Peer::new();
        assert_eq!(peer.plan(&[(0, 8)]), DevicePlan::COPIES);
        assert_eq!((peer.plan(&[(0, 8)]), peer.exports.last), (DevicePlan::COPIES, 1));
        assert!(matches!(peer.plan(&[(SIZE, 8)]), DevicePlan::Copies(cells) if cells.len() == 1));
        peer.answer.set(Some(false));
        assert_eq!((peer.plan(&[(SIZE, 8)]), peer.exports.last), (DevicePlan::COPIES, 2));
    }

    #[test]
    fn a_freed_allocation_and_the_oldest_beyond_the_limit_are_ended() {
        let mut peer = Peer::new();
        for number in 1..=ALLOCATIONS_MAX {
            assert_eq!(peer.map(number).len(), 1);
            assert!(matches!(peer.plan(&[(number * SIZE, 8)]), DevicePlan::Buffers(_)));
        }
        assert!(
            matches!(peer.plan(&[(SIZE, 8)]), DevicePlan::Buffers(_)),
            "the first is used again"
        );
        let cells = peer.map(ALLOCATIONS_MAX + 1);
        assert_eq!((cells.len(), cells[0].ended, cells[1].ended), (2, 2, 0));
        assert!(cells.iter().all(|cell| cell.kind == DeviceCellKind::Allocation));
        assert!(matches!(peer.plan(&[(SIZE, 8)]), DevicePlan::Buffers(_)));
        // All are freed, and another one is at the address of the first.
        peer.device.generation.store(1, Ordering::Relaxed);
        let cells = peer.map(1);
        assert_eq!((cells.len(), peer.exports.allocations.len()), (ALLOCATIONS_MAX + 1, 1));
        assert_eq!(
            peer.plan(&[(SIZE, 8)]),
            DevicePlan::Buffers(vec![DeviceCell::buffer(cells[ALLOCATIONS_MAX].number, 0, 8,)])
        );
    }
}
