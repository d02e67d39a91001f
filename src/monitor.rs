//! Common part of the library and its plug-ins for memory monitors (fi_mr(3)).
use core::ffi::CStr;
use std::collections::BTreeMap;
use std::ops::Range;

/// Name passed to `fi_open` by a plug-in for the monitor imported by the program through
/// "mr_cache". The attribute is a `struct fi_ops_mem_notify`. Its function is called for a change
/// of watched memory, with the `struct fid_mem_monitor` returned by `fi_open` and representing the
/// program's.
///
/// Fails with `-FI_ENODATA` if no program has imported one. Other libraries do not know the name
/// and fail with `-FI_ENOSYS`.
pub const IMPORTED_MONITOR: &CStr = c"ofi_imported_monitor";

/// Number of watches of each address: a page watched for two reasons must stay watched when one of
/// them ends.
#[derive(Debug, Default)]
pub struct Coverage {
    /// Number of ranges covering the addresses from this key up to the next one. Keys are the
    /// points of change, so the last value is 0.
    from: BTreeMap<usize, usize>,
}

impl Coverage {
    /// Nothing is covered.
    pub const EMPTY: Self = Self { from: BTreeMap::new() };

    /// Adds a range.
    pub fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        for (_, count) in self.from.range_mut(range) {
            *count += 1;
        }
    }

    /// Removes an added range and returns the parts no longer covered, in order.
    pub fn remove(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut bare: Vec<Range<usize>> = Vec::new();
        if range.is_empty() {
            return bare;
        }
        self.split(range.start);
        self.split(range.end);
        let starts: Vec<usize> = self.from.range(range.clone()).map(|(start, _)| *start).collect();
        for (at, start) in starts.iter().enumerate() {
            let end = starts.get(at + 1).copied().unwrap_or(range.end);
            let Some(count) = self.from.get_mut(start) else { continue };
            *count = count.saturating_sub(1);
            if *count == 0 {
                match bare.last_mut() {
                    Some(last) if last.end == *start => last.end = end,
                    _ => bare.push(*start..end),
                }
            }
        }
        for start in starts.into_iter().chain([range.end]) {
            self.join(start);
        }
        bare
    }

    /// Returns true if nothing is covered.
    pub fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    fn at(&self, addr: usize) -> usize {
        self.from.range(..=addr).next_back().map_or(0, |(_, count)| *count)
    }

    /// Makes `addr` a key.
    fn split(&mut self, addr: usize) {
        let count = self.at(addr);
        self.from.entry(addr).or_insert(count);
    }

    /// Drops the key again if nothing changes there.
    fn join(&mut self, addr: usize) {
        let before = self.from.range(..addr).next_back().map_or(0, |(_, count)| *count);
        if self.from.get(&addr) == Some(&before) {
            self.from.remove(&addr);
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "the lists hold ranges")]
mod tests {
    use super::*;

    #[test]
    fn overlap_stays_covered_until_both_ranges_are_removed() {
        let mut all = Coverage::default();
        all.add(10..30);
        all.add(20..40);
        assert_eq!(all.remove(10..30), [10..20]);
        assert_eq!(all.remove(20..40), [20..40]);
        assert!(all.is_empty());
    }

    #[test]
    fn a_range_inside_another_leaves_its_two_ends() {
        let mut all = Coverage::default();
        all.add(0..100);
        all.add(40..60);
        assert_eq!(all.remove(0..100), [0..40, 60..100]);
        assert_eq!(all.remove(40..60), [40..60]);
        assert!(all.is_empty());
    }

    #[test]
    fn the_same_range_counts_as_often_as_it_is_added() {
        let mut all = Coverage::default();
        all.add(5..6);
        all.add(5..6);
        assert!(all.remove(5..6).is_empty());
        assert_eq!(all.remove(5..6), [5..6]);
        // Removing a range never added, or an empty one, has no effect.
        assert!(all.remove(7..7).is_empty() && all.is_empty());
    }

    #[test]
    fn any_order_of_adding_and_removing_agrees_with_counting_each_address() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % below) as usize
        };
        let (mut all, mut counts, mut live) = (Coverage::default(), [0_u32; 64], Vec::new());
        for _ in 0..2000 {
            if live.len() < 8 && random(2) == 0 {
                let start = random(60);
                let range = start..start + 1 + random(64 - start as u64 - 1);
                range.clone().for_each(|at| counts[at] += 1);
                all.add(range.clone());
                live.push(range);
            } else if !live.is_empty() {
                let range: Range<usize> = live.swap_remove(random(live.len() as u64));
                range.clone().for_each(|at| counts[at] -= 1);
                let bare: Vec<usize> = all.remove(range.clone()).into_iter().flatten().collect();
                let expected: Vec<usize> = range.filter(|at| counts[*at] == 0).collect();
                assert_eq!(bare, expected);
            }
        }
        for range in live {
            all.remove(range);
        }
        assert!(all.is_empty());
    }
}
