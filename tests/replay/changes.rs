//! Seeded changes of inputs of fuzz targets.
use ofi_simulation::SimRandom;

/// Longest input, in bytes.
const MAX_LEN: usize = 4096;

/// Seeded changes of the inputs of a target.
#[derive(Debug)]
pub(crate) struct SeededChanges(SimRandom);

impl SeededChanges {
    /// Creates the changes of a target: the same in each run.
    pub(crate) fn new(target: &str) -> Self {
        let seed = target
            .bytes()
            .fold(0_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        Self(SimRandom::new(seed))
    }

    /// Returns an input of random bytes.
    pub(crate) fn random_input(&mut self) -> Vec<u8> {
        let len = self.0.below(256);
        self.0.bytes(len)
    }

    /// Returns an input with one to four changes: bits inverted, bytes replaced by extreme ones, removed
    /// or repeated, the end cut off, or the end of `other` appended.
    pub(crate) fn change(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut changed = input.to_vec();
        for _ in 0..=self.0.below(4) {
            let at = self.0.below(changed.len());
            let to = (at + 1 + self.0.below(16)).min(changed.len());
            match self.0.below(6) {
                0 if at < changed.len() => changed[at] ^= 1 << self.0.below(8),
                1 => {
                    let byte = self.0.pick(&[0, 0x7f, 0x80, 0xff]);
                    changed.iter_mut().take(to).skip(at).for_each(|changed| *changed = byte);
                }
                2 => drop(changed.drain(at..to)),
                3 => {
                    let part = changed[at..to].to_vec();
                    changed.splice(at..at, part);
                }
                4 => changed.truncate(at),
                _ => {
                    changed.truncate(at);
                    changed.extend(&other[self.0.below(other.len())..]);
                }
            }
        }
        changed.truncate(MAX_LEN);
        changed
    }
}
