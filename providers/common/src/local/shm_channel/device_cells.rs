//! Cells about memory of devices: announcements of allocations to the peer, and buffers in announced
//! allocations, copied by the peer's device.
use crate::device_allocation::{DeviceHandle, HANDLE_LEN};
use crate::error::Error;

/// Error of [`ShmChannel::recv`](super::ShmChannel::recv) before a cell about memory of devices.
pub const DEVICE_CELL: Error = Error::NODEV;

/// Word of a cell with the state of an exposed buffer, and its value if the buffer is withdrawn.
pub(super) const STATE_WORD: usize = 4;
pub(super) const WITHDRAWN: u64 = 1;

/// Purpose of a cell about memory of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceCellKind {
    /// Announcement of an allocation.
    Allocation,
    /// Buffer in an announced allocation: the next bytes of the stream.
    Buffer,
}

/// Cell about memory of devices. A received one may have any content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCell {
    /// Purpose of the cell.
    pub kind: DeviceCellKind,
    /// Number of the allocation, as announced; 0 if only the end of another is announced.
    pub number: u32,
    /// Announcement: an ended earlier allocation, or 0.
    pub ended: u32,
    /// Announcement: number of the interface (`enum fi_hmem_iface`).
    pub interface: u32,
    /// Buffer: offset in the allocation.
    pub from: u64,
    /// Bytes of the allocation, or of the buffer.
    pub len: u64,
    /// Announcement: handle of the allocation.
    pub handle: DeviceHandle,
}

impl DeviceCell {
    /// Returns an announcement of an allocation of `len` bytes. `number` is not 0.
    pub fn allocation(number: u32, interface: u32, len: usize, handle: DeviceHandle) -> Self {
        let (kind, len) = (DeviceCellKind::Allocation, len as u64);
        Self { kind, number, ended: 0, interface, from: 0, len, handle }
    }

    /// Returns the announcement of the end of an allocation.
    pub fn ended(ended: u32) -> Self {
        Self { kind: DeviceCellKind::Allocation, number: 0, ended, ..Self::buffer(0, 0, 0) }
    }

    /// Returns a buffer of `len` bytes in an allocation, from byte `from` on.
    pub fn buffer(number: u32, from: usize, len: usize) -> Self {
        let (from, len) = (from as u64, len as u64);
        let handle = DeviceHandle { device: [0; 16], bytes: [0; HANDLE_LEN], file: None };
        Self { kind: DeviceCellKind::Buffer, number, ended: 0, interface: 0, from, len, handle }
    }
}
