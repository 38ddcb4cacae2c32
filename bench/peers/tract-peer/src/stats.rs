//! Samples of time, reduced to the figures that reports print.

use std::time::Duration;

use serde_json::{Value, json};

/// `d` in microseconds.
pub fn us(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}

/// Time samples in ascending order, at least one.
pub struct Samples(Vec<Duration>);

impl Samples {
    /// `None` when there is no sample, of which there would be no percentile.
    pub fn new(mut samples: Vec<Duration>) -> Option<Samples> {
        samples.sort_unstable();
        (!samples.is_empty()).then_some(Samples(samples))
    }

    /// The smallest sample that at least `percent` of all samples do not exceed (nearest rank); `percent` is 1 to 100.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0[rank.clamp(1, self.0.len()) - 1]
    }

    /// `{"p50","p90","p99","max"}` in microseconds.
    pub fn to_json(&self) -> Value {
        let [p50, p90, p99, max] = [50, 90, 99, 100].map(|percent| us(self.percentile(percent)));
        json!({ "p50": p50, "p90": p90, "p99": p99, "max": max })
    }
}

/// Processor time that the calling thread has had; `None` where the kernel does not say. The kernel counts it at its
/// ticks, so it is good to a few milliseconds.
///
/// Source: Linux `Documentation/scheduler/sched-stats.rst`, `/proc/<pid>/schedstat`, first field, nanoseconds.
pub fn thread_cpu() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let on_cpu_ns = stat.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(on_cpu_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sample_has_no_percentile() {
        assert!(Samples::new(Vec::new()).is_none());
    }

    /// Of the samples 1..=n µs, the nearest rank of p percent is ceil(n·p/100) µs.
    #[test]
    fn percentiles_are_nearest_ranks() {
        for (n, p50, p90, p99) in [
            (1, 1, 1, 1),
            (2, 1, 2, 2),
            (100, 50, 90, 99),
            (1000, 500, 900, 990),
        ] {
            // Given in descending order: sorting is part of what is tested.
            let samples = Samples::new((1..=n).rev().map(Duration::from_micros).collect()).unwrap();
            let json = samples.to_json();
            for (name, expected) in [("p50", p50), ("p90", p90), ("p99", p99), ("max", n)] {
                let found = json[name].as_f64().unwrap();
                assert!(
                    (found - expected as f64).abs() < 1e-6,
                    "{name} of 1..={n} is {found}"
                );
            }
        }
    }
}
