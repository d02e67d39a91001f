//! Indices required in peers' packets.
//!
//! A peer learns its index only from a packet sent to its address, since each index is drawn from
//! the system's random numbers. A packet with the index proves the reachability of its sender at
//! this address.
use ofi_provider::error::{Error, Result};
use ofi_provider::sys::fill_random;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Meaning of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IndexUse {
    /// The connection of this number.
    Conn(u32),
    /// The request in this place of the half-open ones.
    HalfOpen(u32),
}

/// Hash of numbers not chosen by peers.
#[derive(Default)]
pub(super) struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // An odd number with as many ones as zeros: 2^64 divided by the golden ratio.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Map with keys not chosen by peers.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<IndexHasher>>;

/// Returns a random number from the system; a forked child draws new ones.
pub(super) fn random_number() -> Result<u64> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The indices of an endpoint's peers.
#[derive(Default)]
pub(super) struct PeerIndices(NumberMap<u32, IndexUse>);

impl PeerIndices {
    /// Returns the meaning of an index; `None` for an unassigned one.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<IndexUse> {
        self.0.get(&index).copied()
    }

    /// Draws an unused index, never 0. Fails with -FI_ENOSPC in the unlikely case of finding no
    /// free one.
    pub(super) fn draw(&self) -> Result<u32> {
        for _ in 0..64 {
            let index = random_number()? as u32;
            if index != 0 && !self.0.contains_key(&index) {
                return Ok(index);
            }
        }
        Err(Error::NOSPC)
    }

    /// Sets the meaning of an index.
    pub(super) fn set(&mut self, index: u32, used: IndexUse) {
        self.0.insert(index, used);
    }

    /// Frees an index.
    pub(super) fn free(&mut self, index: u32) {
        self.0.remove(&index);
    }

    /// Returns the number of indices in use.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_random_and_each_stands_for_one_thing() {
        let mut indices = PeerIndices::default();
        let mut drawn = Vec::new();
        for number in 0..1000 {
            let index = indices.draw().unwrap();
            assert!(index != 0 && indices.get(index).is_none());
            indices.set(index, IndexUse::Conn(number));
            drawn.push(index);
        }
        // No half of a bit's values is missing, as it would be of numbers that are counted.
        for bit in 0..32 {
            let ones = drawn.iter().filter(|index| **index >> bit & 1 == 1).count();
            assert!((300..700).contains(&ones), "bit {bit} is set in {ones} of 1000");
        }
        for (number, index) in (0..).zip(&drawn) {
            assert_eq!(indices.get(*index), Some(IndexUse::Conn(number)));
            indices.free(*index);
            assert_eq!(indices.get(*index), None);
        }
        assert_eq!(indices.len(), 0);
    }
}
