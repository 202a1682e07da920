//! Seeded randomness for faults: `SplitMix64`. The same seed and the same order of requests give the same faults.

/// A source of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// True with probability `probability`.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        probability >= 1.0 || (probability > 0.0 && self.unit() < probability)
    }

    /// A number in `0.0..1.0`.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a float exactly")]
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certain_and_impossible_events_need_no_draw() {
        let mut random = Random::new(1);
        assert!((0..1_000).all(|_| random.happens(1.0)));
        assert!((0..1_000).all(|_| !random.happens(0.0)));
    }

    #[test]
    fn a_third_is_about_a_third_and_repeats_with_the_seed() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..3_000).filter(|_| random.happens(1.0 / 3.0)).count()
        };
        assert!((900..1_100).contains(&draw(7)), "count={}", draw(7));
        assert_eq!(draw(7), draw(7));
    }
}
