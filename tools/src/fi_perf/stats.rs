//! Statistics of samples: histogram, percentiles, bootstrap confidence interval.

/// Bits of a value stored exactly: larger values have a relative error of 1 / 1024 at most.
const PRECISION: u32 = 11;
const HALF: u64 = 1 << (PRECISION - 1);

/// Counts of values in buckets: exact below 2048, above with 1024 buckets for each power of two.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        let buckets = HALF as usize * (64 - PRECISION as usize + 2);
        Self { counts: vec![0; buckets], total: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

/// Returns the bucket of a value.
fn bucket(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    let shift = bits.saturating_sub(PRECISION);
    (u64::from(shift) * HALF + (value >> shift)) as usize
}

/// Returns the largest value of a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * HALF {
        return bucket;
    }
    let shift = bucket / HALF - 1;
    let first = (bucket - shift * HALF) << shift;
    first + ((1 << shift) - 1)
}

impl Histogram {
    #[inline]
    pub(crate) fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.total += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, more)| *own += more);
        self.total += other.total;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum as f64 / self.total as f64 }
    }

    pub(crate) fn min(&self) -> u64 {
        if self.total == 0 { 0 } else { self.min }
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Returns the smallest value with at least `percent` of all values at or below it (nearest
    /// rank), as the largest value of its bucket.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let wanted = rank(self.total, percent);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return bucket_end(at).min(self.max);
            }
        }
        self.max
    }

    /// Returns the counts by upper limit, in `steps` classes for each power of two; only classes
    /// from the first to the last used one.
    pub(crate) fn classes(&self, steps: u64) -> Vec<(u64, u64)> {
        let mut classes: Vec<(u64, u64)> = Vec::new();
        for (at, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let end = class_end(bucket_end(at), steps);
            let first = classes.last().map_or(end, |(last, _)| *last);
            let mut last = first;
            while last < end && classes.len() < 4096 {
                last = class_end(last + 1, steps);
                classes.push((last, 0));
            }
            match classes.last_mut() {
                Some((last, sum)) if *last == end => *sum += count,
                _ => classes.push((end, *count)),
            }
        }
        classes
    }
}

/// Returns the end of the class of a value, with `steps` classes (a power of two) for each power
/// of two.
fn class_end(value: u64, steps: u64) -> u64 {
    let bits = u64::BITS - value.leading_zeros();
    let shift = bits.saturating_sub(steps.trailing_zeros() + 1);
    (((value >> shift) + 1) << shift).wrapping_sub(1)
}

/// Returns the number of values at or below the percentile.
fn rank(total: u64, percent: f64) -> u64 {
    // Percentages such as 99.9 are no binary fractions.
    let exact = percent * total as f64 / 100.0;
    ((exact - 1e-9 * total as f64).ceil() as u64).clamp(1, total.max(1))
}

/// Returns the median; 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Number of resamples of the bootstrap.
const RESAMPLES: usize = 2000;

/// Median and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Returns the median of the values with its 95 % interval: the percentile bootstrap, with a
/// constant seed.
pub(crate) fn bootstrap(values: &[f64]) -> Interval {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let resample: Vec<f64> =
                values.iter().map(|_| values[(next() % values.len() as u64) as usize]).collect();
            median(&resample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |part: f64| medians[((RESAMPLES - 1) as f64 * part).round() as usize];
    Interval { median: median(values), low: at(0.025), high: at(0.975) }
}
