//! Regions and buffers in memory of devices (FI_HMEM).
use super::known_ranges::{DeviceRegion, KnownRanges};
use super::{LocalMemory, MemoryKind, MrTable, Opened, RegionPieces, RegionSegment};
use crate::abi;
use crate::buf::{Locations, MAX_SEGMENTS, RecvBuf, SendBuf};
use crate::device::{DeviceInterface, DeviceInterfaces, DeviceLocation, location_of};
use crate::dmabuf::{DmabufRange, MappedDmabuf, is_mapped_file};
use crate::error::{Error, Result};
use crate::operation::RemoteSegments;
use core::ffi::c_void;
use libc::iovec;
use std::sync::MutexGuard;

/// Minimum size in bytes of regions with memory of hosts and devices: a program registers all of
/// its address space.
const MIXED_SIZE: usize = match 1_usize.checked_shl(40) {
    Some(size) => size,
    // Addresses of 32 bits.
    None => 1 << 31,
};

impl MrTable {
    /// Permits regions and buffers in memory of these devices (FI_HMEM).
    #[must_use]
    pub fn with_devices(self, interfaces: DeviceInterfaces) -> Self {
        Self { interfaces: Some(interfaces), ..self }
    }

    /// Returns the interfaces to devices with memory for regions and buffers; none without FI_HMEM.
    pub fn interfaces(&self) -> Option<DeviceInterfaces> {
        self.interfaces
    }

    pub(super) fn known(&self) -> MutexGuard<'_, KnownRanges> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the device with this address in its memory, from the registered regions or from the
    /// devices' libraries; none for ordinary memory.
    fn location(&self, addr: usize) -> Option<DeviceLocation> {
        let interfaces = self.interfaces?;
        let known = self.known().find(addr);
        known.or_else(|| location_of(interfaces, addr))
    }

    /// Adds a region registered with the backing, under its key.
    pub(super) fn insert_backed(
        &self,
        memory: &[LocalMemory],
        locations: &[Option<DeviceLocation>],
        access: u64,
        offset: u64,
        key: u64,
    ) -> Result {
        let device = self.device_region(memory, locations, access);
        let region = self.region(memory, if device.is_some() { 0 } else { access }, offset)?;
        let mut keys = self.keys();
        keys.regions.insert(key, region);
        if let Some(device) = device {
            keys.devices.insert(key, device);
        }
        Ok(())
    }

    /// Returns a buffer with the locations of its segments in memory of devices.
    pub(crate) fn located(&self, buf: RecvBuf) -> RecvBuf {
        let locations = self.locations(buf.iov());
        buf.with_locations(locations)
    }

    /// Returns the locations of the segments of a buffer in memory of devices.
    pub(crate) fn locations(&self, iov: &[iovec]) -> Locations {
        let mut locations = Locations::default();
        for (iov, location) in iov.iter().zip(&mut locations).filter(|(iov, _)| iov.iov_len > 0) {
            *location = self.location(iov.iov_base as usize);
        }
        locations
    }

    /// Returns the part of a region for copies of peers, without direct access to it: a segment is
    /// in memory of a device, or too large to be of one kind of memory.
    pub(super) fn device_region(
        &self,
        memory: &[LocalMemory],
        locations: &[Option<DeviceLocation>],
        access: u64,
    ) -> Option<DeviceRegion> {
        let is_large = memory.iter().any(|memory| memory.len >= MIXED_SIZE);
        let interfaces = self.interfaces.filter(|_| is_large);
        let has_device = locations.iter().any(Option::is_some) || interfaces.is_some();
        has_device.then(|| DeviceRegion { access, locations: locations.to_vec(), interfaces })
    }

    /// Returns the locations of memory to register, none for each without devices, and the mapping
    /// of a dma-buf with memory of none. Fails with -FI_EINVAL if the application names an
    /// interface without this memory, else as [`MappedDmabuf::open`].
    pub(super) fn checked_locations(
        &self,
        memory: &[LocalMemory],
        kind: MemoryKind,
        access: u64,
    ) -> Result<CheckedLocations> {
        let Some(interfaces) = self.interfaces else {
            return Ok((vec![None; memory.len()], None));
        };
        let wanted = match kind {
            MemoryKind::System => None,
            MemoryKind::Device(iface) => Some(iface.raw()),
            MemoryKind::Dmabuf(range) => return file_location(interfaces, &range, access),
        };
        let locations = memory.iter().map(|memory| location_of(interfaces, memory.base));
        let locations: Vec<_> = locations.collect();
        let is_elsewhere = |location: &Option<DeviceLocation>| {
            wanted.is_some_and(|wanted| {
                location.is_none_or(|location| location.interface.number() != wanted)
            })
        };
        if locations.iter().any(is_elsewhere) { Err(Error::INVAL) } else { Ok((locations, None)) }
    }
}

/// Locations of memory to register, and the mapped file with it.
pub(super) type CheckedLocations = (Vec<Option<DeviceLocation>>, Option<MappedDmabuf>);

/// Returns the location of a dma-buf: the device with its memory, if a device's library knows the
/// address, else its mapping.
fn file_location(
    interfaces: DeviceInterfaces,
    range: &DmabufRange,
    access: u64,
) -> Result<CheckedLocations> {
    let by_device = |&interface: &&'static dyn DeviceInterface| {
        let device = interface.device_of(range.addr()?)?;
        Some(DeviceLocation { interface, device }).filter(|location| !is_mapped_file(location))
    };
    if let Some(location) = interfaces.iter().find_map(by_device) {
        return Ok((vec![Some(location)], None));
    }
    let sources = abi::FI_SEND | abi::FI_WRITE | abi::FI_REMOTE_READ;
    let targets = abi::FI_RECV | abi::FI_READ | abi::FI_REMOTE_WRITE;
    let is_writable = access & targets != 0 || access & sources == 0;
    let file = MappedDmabuf::open(range, is_writable)?;
    Ok((vec![Some(file.location())], Some(file)))
}

impl Opened<'_> {
    /// Returns the memory of `remote` as segments with their locations, if a region of it has memory
    /// of devices. Fails as [`check`](Self::check), with -FI_EACCES also if no region has such
    /// memory, and with -FI_EINVAL for too many segments.
    fn device_segments(
        &self,
        remote: &RemoteSegments,
        right: u64,
    ) -> Result<([iovec; MAX_SEGMENTS], Locations, usize)> {
        let none = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (mut iov, mut locations, mut count) = ([none; MAX_SEGMENTS], Locations::default(), 0);
        let mut has_device = false;
        for segment in remote.as_slice() {
            let region = self.0.regions.get(&segment.key).ok_or(Error::INVAL)?;
            let device = self.0.devices.get(&segment.key);
            has_device |= device.is_some();
            if device.map_or(region.access, |device| device.access) & right != right {
                return Err(Error::ACCES);
            }
            let pieces = RegionPieces { region, addr: segment.addr, left: Some(segment.len) };
            for piece in pieces {
                let LocalMemory { base, len } = piece?;
                let memory = || std::iter::once(&region.first).chain(&region.more);
                let holds = |segment: &RegionSegment| {
                    base.wrapping_sub(segment.memory.base) <= segment.memory.len
                };
                let location =
                    device.and_then(|device| device.location(memory().position(holds), base));
                *iov.get_mut(count).ok_or(Error::INVAL)? =
                    iovec { iov_base: base as *mut c_void, iov_len: len };
                locations[count] = location;
                count += 1;
            }
        }
        if !has_device {
            return Err(Error::ACCES);
        }
        Ok((iov, locations, count))
    }

    /// Returns the memory of `remote` to be read for a peer by copies, if a region of it has memory
    /// of devices. Fails as [`check`](Self::check), and with -FI_EACCES if no region has such
    /// memory. The buffer is valid until its regions close ([`RegionUser::closing`]).
    pub fn device_source(&self, remote: &RemoteSegments, right: u64) -> Result<SendBuf> {
        let (iov, locations, count) = self.device_segments(remote, right)?;
        // SAFETY: see the type; the user of the regions is notified before they close.
        Ok(unsafe { SendBuf::from_iov(iov.as_ptr(), count) }?.with_locations(locations))
    }

    /// Returns the memory of `remote` to be written for a peer by copies, like
    /// [`device_source`](Self::device_source).
    pub fn device_target(&self, remote: &RemoteSegments, right: u64) -> Result<RecvBuf> {
        let (iov, locations, count) = self.device_segments(remote, right)?;
        // SAFETY: see the type; the user of the regions is notified before they close.
        Ok(unsafe { RecvBuf::from_iov(iov.as_ptr(), count) }?.with_locations(locations))
    }
}
