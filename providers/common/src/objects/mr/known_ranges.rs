//! Locations of registered memory in a domain with devices (FI_HMEM).
use crate::device::{DeviceInterfaces, DeviceLocation, location_of};
use std::collections::BTreeMap;

/// Registered memory of devices: the answers to look-ups of addresses while its region is open. No
/// other answer is stored: unregistered memory may be freed at any time, and a region of
/// the host's memory may contain addresses of devices.
#[derive(Debug, Default)]
pub(super) struct KnownRanges {
    /// Length and location by the address of the first byte, and a number.
    ranges: BTreeMap<(usize, u64), (usize, DeviceLocation)>,
    /// Number of the last range.
    last: u64,
}

impl KnownRanges {
    /// Adds a range and returns its name.
    pub(super) fn insert(
        &mut self,
        base: usize,
        len: usize,
        location: DeviceLocation,
    ) -> (usize, u64) {
        self.last += 1;
        let name = (base, self.last);
        self.ranges.insert(name, (len, location));
        name
    }

    /// Removes a range.
    pub(super) fn remove(&mut self, name: &(usize, u64)) {
        self.ranges.remove(name);
    }

    /// Returns the location of an address in the last range beginning before it: none if the range
    /// does not contain the address.
    pub(super) fn find(&self, addr: usize) -> Option<DeviceLocation> {
        let ((base, _), (len, location)) = self.ranges.range(..=(addr, u64::MAX)).next_back()?;
        (addr - base < *len).then_some(*location)
    }
}

/// Region with memory of devices: peers access it only by copies.
#[derive(Clone, Debug)]
pub(super) struct DeviceRegion {
    /// Access rights of peers.
    pub(super) access: u64,
    /// Locations of the segments.
    pub(super) locations: Vec<Option<DeviceLocation>>,
    /// Interfaces for the look-up of each access, if the region is too large to be of one kind of
    /// memory.
    pub(super) interfaces: Option<DeviceInterfaces>,
}

impl DeviceRegion {
    /// Returns the location of memory at `addr` in the segment with this index.
    pub(super) fn location(&self, segment: Option<usize>, addr: usize) -> Option<DeviceLocation> {
        let stored = segment.and_then(|index| *self.locations.get(index)?);
        stored.or_else(|| location_of(self.interfaces?, addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::testing::FakeDevice;

    #[test]
    fn address_is_found_in_open_ranges_alone() {
        let location = FakeDevice::new(None).location();
        let mut known = KnownRanges::default();
        let first = known.insert(0x1000, 0x100, location);
        let second = known.insert(0x1000, 0x200, location);
        let found = |known: &KnownRanges| {
            [0xfff, 0x1000, 0x11ff, 0x1200].map(|at| known.find(at).is_some())
        };
        assert_eq!(found(&known), [false, true, true, false]);
        known.remove(&second);
        assert_eq!(found(&known), [false, true, false, false]);
        known.remove(&first);
        assert_eq!(found(&known), [false; 4]);
    }
}
