//! Latency distributions: nearest-rank quantiles of microseconds.

use crate::random::Random;
use serde::Serialize;
use std::time::Duration;

/// The `latency_us` object of the JSON contract. All zeros when there were no calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

/// Samples kept at most: a long run must not grow with its calls.
const KEPT_MOST: usize = 1 << 22;

/// All samples while they are few; a uniform choice of them afterwards (Vitter 1985, algorithm R). The largest is exact.
pub struct Samples {
    kept: Vec<f64>,
    most: usize,
    seen: u64,
    max: f64,
    random: Random,
}

impl Default for Samples {
    fn default() -> Self {
        Self { kept: Vec::new(), most: KEPT_MOST, seen: 0, max: 0.0, random: Random::of(&[0x006C_6174_656E_6379]) }
    }
}

impl Samples {
    /// One more, not negative.
    pub fn push(&mut self, value: f64) {
        self.seen += 1;
        self.max = self.max.max(value);
        if self.kept.len() < self.most {
            self.kept.push(value);
        } else if let Some(place) = self.kept.get_mut((self.random.up_to(self.seen) - 1) as usize) {
            *place = value;
        }
    }
}

/// The smallest sample with at least `q` of all samples at or below it; `sorted` ascending, not empty.
fn nearest_rank(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

impl Latency {
    /// The distribution of `samples`, in microseconds, to a tenth of a microsecond.
    pub fn of(samples: &mut Samples) -> Self {
        if samples.kept.is_empty() {
            return Self::default();
        }
        samples.kept.sort_by(f64::total_cmp);
        let tenths = |value: f64| (value * 10.0).round() / 10.0;
        let at = |q| tenths(nearest_rank(&samples.kept, q));
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: tenths(samples.max) }
    }
}

/// A duration in microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = f64>, most: usize) -> Samples {
        let mut samples = Samples { most, ..Samples::default() };
        values.into_iter().for_each(|value| samples.push(value));
        samples
    }

    #[test]
    fn quantiles_are_samples_by_rank() {
        let of = |values: &[f64]| Latency::of(&mut samples(values.iter().copied(), KEPT_MOST));
        let many: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(of(&many), Latency { p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 });
        assert_eq!(of(&[3.0]), Latency { p50: 3.0, p90: 3.0, p99: 3.0, max: 3.0 });
        assert_eq!(of(&[]), Latency::default());
    }

    /// 2000 of 200 000 ascending values: a rank's standard error is √(q(1 − q) / 2000), so five of them are 5.6 % at
    /// the median and 3.4 % at 0.9. The first or the last 2000 alone would be far outside.
    #[test]
    fn a_long_run_keeps_a_uniform_choice_and_the_largest() {
        let mut long = samples((0..200_000).map(f64::from), 2000);
        assert_eq!(long.kept.len(), 2000);
        let found = Latency::of(&mut long);
        assert!((found.p50 - 100_000.0).abs() < 11_200.0 && (found.p90 - 180_000.0).abs() < 6_800.0, "{found:?}");
        assert_eq!(found.max, 199_999.0);
    }
}
