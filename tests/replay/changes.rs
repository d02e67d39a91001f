//! Seeded changes of inputs of fuzz targets.

/// Longest input, in bytes.
const MAX_LEN: usize = 4096;

/// Sequence of numbers from a seed (xorshift64*).
#[derive(Debug)]
pub(crate) struct SeededChanges(u64);

impl SeededChanges {
    /// Creates the sequence of a target: the same in each run.
    pub(crate) fn new(target: &str) -> Self {
        let seed = target.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |seed, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`; 0 if that is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }

    /// Returns an input of random bytes.
    pub(crate) fn random_input(&mut self) -> Vec<u8> {
        let len = self.below(256);
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns an input with one to four changes: bits inverted, bytes replaced by extreme ones, removed
    /// or repeated, the end cut off, or the end of `other` appended.
    pub(crate) fn change(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut changed = input.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(changed.len());
            let to = (at + 1 + self.below(16)).min(changed.len());
            match self.below(6) {
                0 if at < changed.len() => changed[at] ^= 1 << self.below(8),
                1 => {
                    let byte = [0, 0x7f, 0x80, 0xff][self.below(4)];
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
                    changed.extend(&other[self.below(other.len())..]);
                }
            }
        }
        changed.truncate(MAX_LEN);
        changed
    }
}
