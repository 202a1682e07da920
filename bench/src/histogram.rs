//! A histogram of durations with a bounded relative error.
//!
//! **Invariant.** A recorded duration and the value of its bucket differ by less than 1/64, and recording never allocates.
//! Left out: averages of quantiles over several histograms, which mean nothing; histograms are merged instead.

use std::time::Duration;

const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
/// Enough buckets for 2^42 ns, more than an hour.
const BUCKETS: usize = ((42 - SUB_BITS + 1) as usize) << SUB_BITS;

/// Counts of durations, in buckets whose width grows with the value.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0, sum_ns: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// Records one duration.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[index(ns)] += 1;
        self.total += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many durations were recorded.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The mean, in microseconds.
    pub fn mean_us(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum_ns as f64 / self.total as f64 / 1e3 }
    }

    /// The longest, in microseconds, exactly.
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// A quantile from 0 to 1, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        let rank = ((self.total as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return (value(bucket) as f64).min(self.max_ns as f64) / 1e3;
            }
        }
        self.max_us()
    }

    /// Points of the cumulative distribution, `(microseconds, share)`, for a plot.
    pub fn cdf(&self) -> Vec<(f64, f64)> {
        const SHARES: [f64; 17] =
            [0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0];
        if self.is_empty() {
            return Vec::new();
        }
        SHARES.iter().map(|share| (self.quantile_us(*share), *share)).collect()
    }
}

fn index(ns: u64) -> usize {
    if ns < SUB {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros() - SUB_BITS;
    let bucket = (u64::from(exponent + 1) << SUB_BITS) + ((ns >> exponent) - SUB);
    (bucket as usize).min(BUCKETS - 1)
}

/// The middle of a bucket, in nanoseconds.
fn value(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let exponent = (bucket >> SUB_BITS) - 1;
    let low = (SUB + (bucket & (SUB - 1))) << exponent;
    low + (1 << exponent) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_is_within_its_error() {
        for ns in (0..40).flat_map(|shift| [(1u64 << shift) - 1, 1 << shift, (1 << shift) + (1 << shift) / 3])
        {
            let back = value(index(ns));
            assert!(back.abs_diff(ns) as f64 <= ns as f64 / 64.0, "{ns} became {back}");
        }
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let mut histogram = Histogram::default();
        (1..=1000u64).for_each(|us| histogram.record(Duration::from_micros(us)));
        assert!((histogram.quantile_us(0.5) - 500.0).abs() < 10.0);
        assert!((histogram.quantile_us(0.99) - 990.0).abs() < 20.0);
        assert!((histogram.max_us() - 1000.0).abs() < f64::EPSILON);
        assert!((histogram.mean_us() - 500.5).abs() < 0.1);
    }

    #[test]
    fn merging_is_like_recording_into_one() {
        let (mut one, mut two, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for us in 1..100u64 {
            let duration = Duration::from_micros(us * us);
            if us % 2 == 0 {
                one.record(duration)
            } else {
                two.record(duration)
            }
            both.record(duration);
        }
        one.merge(&two);
        assert_eq!((one.len(), one.cdf()), (both.len(), both.cdf()));
    }
}
