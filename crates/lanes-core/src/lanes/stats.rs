//! What a runnable has done: counted here for `stats()`, and told to the host's `metrics` recorder.
//!
//! Metrics are bound once, when the runnable is built: a recorder installed before sees them, and a turn looks
//! nothing up. All carry the label `model`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets per doubling of the turn time: a quantile is within an eighth of the truth.
const PER_OCTAVE: u64 = 8;
const BUCKETS: usize = 62 * PER_OCTAVE as usize;

/// A reading of a runnable's counters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Turns that ran, failed ones too.
    pub turns: u64,
    /// Seats of those turns.
    pub seats: u64,
    /// Seats that were launched and not occupied.
    pub padded_seats: u64,
    /// Seats that the model refused for their data, or that disagreed on a shared input.
    pub refused_seats: u64,
    /// Seats of turns that failed as a whole.
    pub failed_seats: u64,
    /// Seats that had read what came to nothing, because a turn before theirs failed or refused their stream's call, and
    /// were seated again: 0 with one slot.
    pub void_seats: u64,
    /// Seats that ran on another thread than the one that called: 0 while the baton rule serves a caller alone.
    pub handoffs: u64,
    /// All lanes.
    pub lanes: u32,
    /// Lanes held by streams.
    pub lanes_taken: u32,
    /// Requests queued; at most the bound.
    pub queue_depth: usize,
    /// Requests that wait for room in the queue.
    pub queue_waiting: usize,
    /// Time that the seats spent between their call and their turn, in all.
    pub queue_wait: Duration,
    /// Time that turns took, stacking and handing out included, in all.
    pub turn_time: Duration,
    /// The median turn, within an eighth.
    pub turn_time_p50: Duration,
    /// What 99 of 100 turns stay below, within an eighth.
    pub turn_time_p99: Duration,
}

impl Stats {
    /// Seats of the mean turn; 0 before the first.
    pub fn seats_per_turn(&self) -> f64 {
        if self.turns == 0 { 0.0 } else { self.seats as f64 / self.turns as f64 }
    }
}

/// What one turn adds.
#[derive(Default)]
pub(super) struct TurnCount {
    pub seats: u64,
    pub padded: u64,
    pub refused: u64,
    pub failed: u64,
    pub void: u64,
    pub handed_off: bool,
    pub queue_wait: Duration,
    pub time: Duration,
}

pub(super) struct Counters {
    turns: AtomicU64,
    seats: AtomicU64,
    padded: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    void: AtomicU64,
    handoffs: AtomicU64,
    queue_wait_ns: AtomicU64,
    turn_ns: AtomicU64,
    turn_times: Box<[AtomicU64]>,
    meters: Meters,
}

struct Meters {
    turns: metrics::Counter,
    seats: metrics::Counter,
    seats_per_turn: metrics::Histogram,
    padded: metrics::Counter,
    lanes_taken: metrics::Gauge,
    queue_depth: metrics::Gauge,
    queue_wait: metrics::Histogram,
    turn_time: metrics::Histogram,
    refused: metrics::Counter,
    failed: metrics::Counter,
    void: metrics::Counter,
}

impl Counters {
    /// Binds the metrics of `model`.
    pub fn new(model: &str) -> Self {
        let label = || [("model", model.to_owned())];
        let zero = AtomicU64::default;
        Self {
            turns: zero(),
            seats: zero(),
            padded: zero(),
            refused: zero(),
            failed: zero(),
            void: zero(),
            handoffs: zero(),
            queue_wait_ns: zero(),
            turn_ns: zero(),
            turn_times: (0..BUCKETS).map(|_| zero()).collect(),
            meters: Meters {
                turns: metrics::counter!("lanes_turns_total", &label()),
                seats: metrics::counter!("lanes_seats_total", &label()),
                seats_per_turn: metrics::histogram!("lanes_seats_per_turn", &label()),
                padded: metrics::counter!("lanes_padded_seats_total", &label()),
                lanes_taken: metrics::gauge!("lanes_taken", &label()),
                queue_depth: metrics::gauge!("lanes_queue_depth", &label()),
                queue_wait: metrics::histogram!("lanes_queue_wait_seconds", &label()),
                turn_time: metrics::histogram!("lanes_turn_seconds", &label()),
                refused: metrics::counter!("lanes_refused_seats_total", &label()),
                failed: metrics::counter!("lanes_failed_seats_total", &label()),
                void: metrics::counter!("lanes_void_seats_total", &label()),
            },
        }
    }

    pub fn turn(&self, turn: &TurnCount) {
        let handed_off = if turn.handed_off { turn.seats } else { 0 };
        let add = |counter: &AtomicU64, meter: Option<&metrics::Counter>, more: u64| {
            if more > 0 {
                counter.fetch_add(more, Relaxed);
                if let Some(meter) = meter {
                    meter.increment(more);
                }
            }
        };
        let meters = &self.meters;
        add(&self.turns, Some(&meters.turns), 1);
        add(&self.seats, Some(&meters.seats), turn.seats);
        add(&self.padded, Some(&meters.padded), turn.padded);
        add(&self.failed, Some(&meters.failed), turn.failed);
        add(&self.void, Some(&meters.void), turn.void);
        add(&self.handoffs, None, handed_off);
        add(&self.queue_wait_ns, None, nanos(turn.queue_wait));
        add(&self.turn_ns, None, nanos(turn.time));
        self.refused(turn.refused);
        self.turn_times[bucket(nanos(turn.time))].fetch_add(1, Relaxed);
        meters.seats_per_turn.record(turn.seats as f64);
        meters.turn_time.record(turn.time);
    }

    pub fn refused(&self, seats: u64) {
        if seats > 0 {
            self.refused.fetch_add(seats, Relaxed);
            self.meters.refused.increment(seats);
        }
    }

    pub fn queue_wait(&self, wait: Duration) {
        self.meters.queue_wait.record(wait);
    }

    pub fn queue_depth(&self, depth: usize) {
        self.meters.queue_depth.set(depth as f64);
    }

    /// A lane was leased.
    pub fn lane_taken(&self) {
        self.meters.lanes_taken.increment(1.0);
    }

    /// A lane was given back. Steps, and no readings: of two readings the later could be told first.
    pub fn lane_released(&self) {
        self.meters.lanes_taken.decrement(1.0);
    }

    /// A reading; what the counters do not know is left zero.
    pub fn read(&self) -> Stats {
        let counts: Vec<u64> = self.turn_times.iter().map(|count| count.load(Relaxed)).collect();
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Stats {
            turns: get(&self.turns),
            seats: get(&self.seats),
            padded_seats: get(&self.padded),
            refused_seats: get(&self.refused),
            failed_seats: get(&self.failed),
            void_seats: get(&self.void),
            handoffs: get(&self.handoffs),
            lanes: 0,
            lanes_taken: 0,
            queue_depth: 0,
            queue_waiting: 0,
            queue_wait: Duration::from_nanos(get(&self.queue_wait_ns)),
            turn_time: Duration::from_nanos(get(&self.turn_ns)),
            turn_time_p50: quantile(&counts, 50),
            turn_time_p99: quantile(&counts, 99),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Below `PER_OCTAVE` one bucket a nanosecond, then `PER_OCTAVE` equal ones per doubling.
fn bucket(ns: u64) -> usize {
    if ns < PER_OCTAVE {
        return ns as usize;
    }
    let octave = u64::from(ns.ilog2() - PER_OCTAVE.ilog2());
    ((octave + 1) * PER_OCTAVE + (ns >> octave) % PER_OCTAVE) as usize
}

/// The middle of a bucket.
fn middle(bucket: usize) -> Duration {
    let bucket = bucket as u64;
    if bucket < PER_OCTAVE {
        return Duration::from_nanos(bucket);
    }
    let octave = bucket / PER_OCTAVE - 1;
    Duration::from_nanos(((PER_OCTAVE + bucket % PER_OCTAVE) << octave) + (1 << octave) / 2)
}

fn quantile(counts: &[u64], percent: u64) -> Duration {
    let total: u64 = counts.iter().sum();
    let mut below = 0;
    for (at, count) in counts.iter().enumerate() {
        below += count;
        if total > 0 && below * 100 >= total * percent {
            return middle(at);
        }
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_quantile_is_within_an_eighth(mut times in prop::collection::vec(1u64..10_000_000_000, 1..200)) {
            let counters = Counters::new("m");
            for ns in &times {
                counters.turn(&TurnCount { time: Duration::from_nanos(*ns), seats: 1, ..TurnCount::default() });
            }
            times.sort_unstable();
            let stats = counters.read();
            prop_assert_eq!(stats.turns, times.len() as u64);
            for (percent, found) in [(50, stats.turn_time_p50), (99, stats.turn_time_p99)] {
                let exact = times[(times.len() * percent).div_ceil(100) - 1] as f64;
                let error = (found.as_nanos() as f64 - exact).abs() / exact;
                prop_assert!(error <= 0.125, "p{}: {:?} for {}", percent, found, exact);
            }
        }

        #[test]
        fn every_time_has_a_bucket(ns in any::<u64>()) {
            prop_assert!(bucket(ns) < BUCKETS);
        }
    }
}
