//! Allocations of memory of devices, and their names for other processes of the host.

use std::os::fd::RawFd;

/// Bytes of a handle.
pub const HANDLE_LEN: usize = 64;

/// Allocation of memory of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceAllocation {
    /// First address.
    pub base: usize,
    /// Number of bytes.
    pub len: usize,
    /// Number of the allocation: a later one at the same address has another.
    pub id: u64,
}

/// Name of an allocation for other processes of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceHandle {
    /// Device with the memory, the same in all processes; zeros if the handle itself names it.
    pub device: [u8; 16],
    /// Bytes meaningful for the interface.
    pub bytes: [u8; HANDLE_LEN],
    /// Descriptor of the exporting process, copied by other processes to use the handle.
    pub file: Option<RawFd>,
}
