//! tract-core's laned runnable on a model that does next to nothing, so that what is timed is the serving itself.
//!
//! `thread per stream --run()--> queue --> worker: one turn of [seats, width] * 2 --> each thread its own row`
//!
//! - Every stream makes its warm-up calls before any timed call starts: spawning and first touches are not timed.
//! - Every call brings a new row and its answer is compared with the row doubled, outside the call's latency but inside
//!   the wall time that `calls_per_s` is taken over.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tract_core::internal::*;
use tract_core::lanes::{LanedRunnable, TRACT_TURN_LINGER_US};
use tract_core::ops::math::mul;
use tract_core::runtime::{DefaultRuntime, Runnable, Runtime, State};

use crate::TRACT_VERSION;
use crate::stats::Samples;

/// Calls that a stream makes before the timed ones, if it makes as many timed ones.
const WARMUP_CALLS: usize = 64;

/// What to run.
#[derive(Debug)]
pub struct NullLanes {
    /// Streams, each on a thread of its own; also the lanes of the state.
    pub streams: usize,
    /// Timed calls of each stream.
    pub turns: usize,
    /// f32 values in one stream's row.
    pub width: usize,
    /// How long a turn waits for more seats, in microseconds.
    pub linger_us: usize,
}

/// Runs `bench` and reports
/// `{"peer","version","model","streams","width","linger_us","calls","wall_s","calls_per_s","latency_us","turns","seats_per_turn"}`,
/// where `turns` and `seats_per_turn` count the warm-up too, as tract's counters do.
///
/// # Errors
/// What tract reports, a thread that could not be started, or an answer that is not its row doubled.
pub fn run(bench: &NullLanes) -> TractResult<Value> {
    let runnable = laned_null_model(bench)?;
    let start_line = Arc::new(Barrier::new(bench.streams + 1));
    let mut clients = Vec::with_capacity(bench.streams);
    for stream in 0..bench.streams {
        let mut handle = runnable.spawn()?;
        let (start_line, width, turns) = (start_line.clone(), bench.width, bench.turns);
        let client = move || {
            let warmed_up = calls(handle.as_mut(), stream, width, turns.min(WARMUP_CALLS));
            // Reached even after a failure, or everyone else would wait for ever.
            start_line.wait();
            warmed_up?;
            calls(handle.as_mut(), stream, width, turns)
        };
        let thread = thread::Builder::new()
            .name(format!("stream{stream}"))
            .spawn(client);
        clients.push(thread.with_context(|| {
            format!(
                "starting the thread of stream {stream} of {}",
                bench.streams
            )
        })?);
    }
    start_line.wait();
    let start = Instant::now();
    let mut latencies = Vec::with_capacity(bench.streams * bench.turns);
    for (stream, client) in clients.into_iter().enumerate() {
        let latency = client
            .join()
            .map_err(|_| format_err!("the thread of stream {stream} panicked"))?;
        latencies.extend(latency.with_context(|| format!("stream {stream}"))?);
    }
    let wall_s = start.elapsed().as_secs_f64();
    let calls = latencies.len();
    let (turns, seats) = runnable.turns_and_seats();
    Ok(json!({
        "peer": "tract-lanes",
        "version": TRACT_VERSION,
        "model": "null",
        "streams": bench.streams,
        "width": bench.width,
        "linger_us": bench.linger_us,
        "calls": calls,
        "wall_s": wall_s,
        "calls_per_s": calls as f64 / wall_s,
        "latency_us": Samples::new(latencies).map(|samples| samples.to_json()),
        "turns": turns,
        "seats_per_turn": seats as f64 / turns as f64,
    }))
}

/// `output[b, i] = 2 * input[b, i]`, f32, batched over `b`.
fn laned_null_model(bench: &NullLanes) -> TractResult<LanedRunnable> {
    let mut model = TypedModel::default();
    let batch = model.symbols.sym("B");
    let input = model.add_source("input", f32::fact(dims!(batch, bench.width)))?;
    let two = model.add_const("two", tensor2(&[[2f32]]))?;
    let output = model.wire_node("output", mul(), &[input, two])?;
    model.select_output_outlets(&output)?;
    // Read once, by `wrap`.
    TRACT_TURN_LINGER_US.set(bench.linger_us);
    LanedRunnable::wrap(DefaultRuntime.prepare(model)?.into(), bench.streams)
}

/// Makes `turns` calls one after the other and returns each one's latency.
fn calls(
    handle: &mut dyn State,
    stream: usize,
    width: usize,
    turns: usize,
) -> TractResult<Vec<Duration>> {
    let mut latencies = Vec::with_capacity(turns);
    let mut row = vec![0f32; width];
    for turn in 0..turns {
        // Below 2^24 and so exact in f32; differs between streams and between a stream's turns, so that an answer
        // that belongs to another of either is noticed.
        let value = (stream % 4096 * 4096 + turn % 4096) as f32;
        row.fill(value);
        let seat = Tensor::from_shape(&[1, width], &row)?.into_tvalue();
        let asked = Instant::now();
        let answer = handle.run(tvec!(seat))?;
        latencies.push(asked.elapsed());
        let found = answer[0].try_as_plain_ram()?;
        let found = found.as_slice::<f32>()?;
        ensure!(
            found.len() == width && found.iter().all(|x| *x == 2.0 * value),
            "turn {turn} asked for {width} times {value} doubled and was answered {found:?}"
        );
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_counted_and_answered() {
        let bench = NullLanes {
            streams: 5,
            turns: 7,
            width: 3,
            linger_us: 0,
        };
        let report = run(&bench).unwrap();
        assert_eq!(report["calls"], 35);
        let (turns, seats_per_turn) = (
            report["turns"].as_f64().unwrap(),
            report["seats_per_turn"].as_f64().unwrap(),
        );
        // 7 warm-up calls and 7 timed ones per stream, each one seat of one turn.
        assert!((turns * seats_per_turn - 70.0).abs() < 1e-6, "{report}");
        assert!(
            report["latency_us"]["p50"].as_f64().unwrap()
                <= report["latency_us"]["max"].as_f64().unwrap()
        );
    }
}
