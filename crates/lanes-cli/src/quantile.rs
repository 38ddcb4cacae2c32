//! Latency distributions: nearest-rank quantiles of microseconds.

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

/// The smallest sample with at least `q` of all samples at or below it; `sorted` ascending, not empty.
fn nearest_rank(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

impl Latency {
    /// The distribution of `samples`, in microseconds, to a tenth of a microsecond.
    pub fn of(samples: &mut [f64]) -> Self {
        if samples.is_empty() {
            return Self::default();
        }
        samples.sort_by(f64::total_cmp);
        let at = |q| (nearest_rank(samples, q) * 10.0).round() / 10.0;
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// A duration in microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_by_rank() {
        let mut samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(Latency::of(&mut samples), Latency { p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 });
        assert_eq!(Latency::of(&mut [3.0]), Latency { p50: 3.0, p90: 3.0, p99: 3.0, max: 3.0 });
        assert_eq!(Latency::of(&mut []), Latency::default());
    }
}
