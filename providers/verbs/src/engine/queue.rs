//! Completion queues of the device, and the endpoints using shared receives.
use crate::sys::HwCq;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Completion queue of the device. Space for all requests possibly posted by its endpoints is
/// reserved in it.
pub(super) struct DeviceQueue {
    pub(super) cq: HwCq,
    /// Entries not reserved for an endpoint.
    pub(super) free: usize,
}

/// Endpoints using receives of shared contexts, by the numbers of their queue pairs.
pub(super) type SrxUsers = HashMap<u32, u32, BuildHasherDefault<NumberHasher>>;

/// Hash of numbers assigned by the device, so no peer can choose colliding ones.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // Spreads low bits over all (the golden ratio, as Knuth has it).
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
