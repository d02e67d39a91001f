//! Pseudorandom numbers from a seed, or from a script.

/// Numbers drawn from a seed (xorshift64*), or from the bytes of a script as long as there are any.
#[derive(Clone, Debug)]
pub struct SimRandom {
    state: u64,
    script: Option<std::vec::IntoIter<u8>>,
}

impl SimRandom {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        // Seeds next to each other must not begin alike.
        let mixed = (seed.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { state: (mixed ^ mixed >> 29) | 1, script: None }
    }

    /// Creates a generator with the numbers of a script, followed by those of a seed.
    pub fn scripted(script: Vec<u8>) -> Self {
        let seed = script.len() as u64;
        Self { script: Some(script.into_iter()), ..Self::new(seed) }
    }

    /// Returns true if there was a script, and it is used up.
    pub fn is_spent(&self) -> bool {
        self.script.as_ref().is_some_and(|script| script.len() == 0)
    }

    /// A number of so many bytes from the script.
    fn read(&mut self, bytes: usize) -> Option<u64> {
        let script = self.script.as_mut().filter(|script| script.len() > 0)?;
        Some((0..bytes).fold(0, |number, _| number << 8 | u64::from(script.next().unwrap_or(0))))
    }

    /// A number of 53 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        if let Some(number) = self.read(6) {
            return number;
        }
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number below `n`, and 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n.max(1) as u64;
        // A script is not to be longer than it must.
        let bytes = (64 - (n - 1).leading_zeros() as usize).div_ceil(8);
        let number = self.read(bytes).unwrap_or_else(|| self.next());
        (number % n) as usize
    }

    /// True once in `n` times; never for 0.
    pub fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripted_random_numbers_follow_the_script_to_its_end() {
        let mut random = SimRandom::scripted(vec![7, 1, 2, 200]);
        assert_eq!((random.below(1), random.below(10), random.below(1000)), (0, 7, 258));
        assert!(!random.is_spent());
        assert_eq!((random.below(100), random.is_spent()), (0, true));
        let mut again = SimRandom::scripted(vec![0; 4]);
        (0..4).for_each(|_| assert_eq!(again.below(2), 0));
        assert!((0..20).map(|_| again.below(2)).sum::<usize>() > 0);
        assert!(!SimRandom::new(1).is_spent());
    }

    #[test]
    fn seeds_next_to_each_other_begin_with_different_numbers() {
        let first: std::collections::BTreeSet<_> =
            (0..100).map(|seed| SimRandom::new(seed).next()).collect();
        assert_eq!(first.len(), 100);
    }
}
