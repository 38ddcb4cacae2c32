//! `lanes bench`: latency and throughput per stream count, closed loop and paced, from one driving thread.
//!
//! - Beside them stands what a device with a clock of its own says of one turn: all of it, and the commands alone.

use crate::args::BenchArgs;
use crate::error::{CliError, CliResult};
use crate::load::{self, Loaded};
use crate::quantile::{Latency, micros};
use crate::run::progress_bar;
use crate::say::{self, count};
use crate::serve::{Drive, chain, drive};
use crate::source::Source;
use lanes::lanes::{Capacity, LanedModel};
use lanes::planned::PlannedModel;
use serde::Serialize;
use std::time::Duration;

/// How long a row is measured when `--turns` is not given.
const SECONDS_PER_ROW: f64 = 2.0;
/// Turns that are timed by the device's own clock.
const DEVICE_SAMPLES: usize = 50;
/// Turns of warm-up and calibration.
const WARM_UP_TURNS: usize = 8;

/// The JSON object; keys are a contract.
#[derive(Serialize)]
struct Report {
    model: String,
    backend: String,
    device: String,
    threads: usize,
    frame_ms: Option<f64>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    streams: u32,
    mode: &'static str,
    calls_per_s: f64,
    us_per_seat: f64,
    turn_us_p50: f64,
    latency_us: Latency,
    seats_per_turn: f64,
    realtime_streams: Option<f64>,
    /// What the device says of turns of the row's seats; `null` for one that keeps no time.
    device_us: Option<DeviceTime>,
}

/// Medians, in microseconds, of graphs timed one after the other, as other engines' are.
#[derive(Clone, Copy, Serialize)]
struct DeviceTime {
    seats: u32,
    /// Inputs and rows up, commands, outputs down.
    turn: f64,
    /// The commands alone: inputs lie on the device, outputs stay there.
    compute: Option<f64>,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> CliResult {
    let device = load::device(&args.serve.backend, args.serve.threads)?;
    let loaded = load::load(&args.model)?;
    for &streams in &args.streams {
        let turns = args.turns.map_or(1, |turns| turns as usize);
        loaded.sources.iter().try_for_each(|source| source.holds(streams as usize, turns))?;
    }
    let frame_ms = args.frame_ms.or_else(|| loaded.sources.iter().find_map(Source::frame_ms));
    if frame_ms.is_none() {
        say::aside("the inputs have no rate; give --frame-ms for paced rows and streams in real time");
    }
    let capabilities = device.capabilities();
    let mut report = Report {
        model: args.model.path.display().to_string(),
        backend: capabilities.backend.to_owned(),
        device: capabilities.name.clone(),
        threads: capabilities.units,
        frame_ms,
        rows: Vec::new(),
    };
    let mut model = load::planned(&device, &loaded.model, &args.model)?;
    // As long as this is prepared its weights lie on the device for all rows. What does not fit, the row that needs it says.
    let _ = model.prepare(Capacity { rows: 3, max_seats: 1 });
    let bar = progress_bar(args.streams.len() as u64);
    for &streams in &args.streams {
        let paced = frame_ms.map(|ms| Some(Duration::from_secs_f64(ms / 1000.0)));
        let mut timed = None;
        for pace in [None].into_iter().chain(paced) {
            let (row, seats) = row(args, &model, &loaded, streams, pace, frame_ms)?;
            // Once for all rows of as many streams, when what served them is gone.
            let device_us = match timed {
                Some(device_us) => device_us,
                None => *timed.insert(device_time(&model, &loaded, seats)),
            };
            let row = Row { device_us, ..row };
            if !args.json {
                // As it comes, so that one who has seen enough stops the rest; and no head where nothing comes.
                let head = if report.rows.is_empty() { head(&report) } else { Vec::new() };
                bar.suspend(|| head.iter().chain([&shown(&row)]).try_for_each(|line| say::line(line)))?;
            }
            report.rows.push(row);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json { say::json(&report) } else { Ok(()) }
}

fn head(report: &Report) -> Vec<String> {
    let threads = count(report.threads, "thread");
    let columns = "streams  mode    calls/s  µs/seat  turn p50 µs  latency p50 / p99 µs  seats/turn  real-time streams  device turn / compute µs";
    vec![format!("{} on {} ({}), {threads}", report.model, report.backend, report.device), columns.to_owned()]
}

fn shown(row: &Row) -> String {
    let streams = row.realtime_streams.map_or("-".to_owned(), |s| format!("{s:.0}"));
    // Of a paced row it would say how often calls were due, and nothing of the seat.
    let us_per_seat = if row.mode == "paced" { "-".to_owned() } else { format!("{:.2}", row.us_per_seat) };
    let device = row.device_us.map_or("-".to_owned(), |device| {
        let compute = device.compute.map_or("-".to_owned(), |compute| format!("{compute:.1}"));
        format!("{:.1} / {compute}", device.turn)
    });
    format!(
        "{:7}  {:6} {:8.0} {us_per_seat:>8} {:12.1} {:10.1} / {:8.1} {:11.1}  {streams:>17}  {device}",
        row.streams,
        row.mode,
        row.calls_per_s,
        row.turn_us_p50,
        row.latency_us.p50,
        row.latency_us.p99,
        row.seats_per_turn
    )
}

/// What the device says of a turn of so many seats.
fn device_time(model: &PlannedModel, loaded: &Loaded, seats: u32) -> Option<DeviceTime> {
    if !model.device().capabilities().clock {
        return None;
    }
    let stacked = |(source, port): (&Source, &lanes::Port)| {
        let seats = if port.scope == lanes::Scope::Seat { seats as usize } else { 1 };
        let mut bytes = vec![0; source.bytes() * seats];
        let places = bytes.chunks_exact_mut(source.bytes().max(1));
        places.enumerate().for_each(|(stream, place)| source.fill(stream, 0, place));
        bytes
    };
    let inputs: Vec<Vec<u8>> = loaded.sources.iter().zip(&model.signature().inputs).map(stacked).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let times = model.measure(seats, &inputs, DEVICE_SAMPLES).unwrap_or_else(|why| {
        // What is served is timed all the same.
        say::aside(&format!("turns of {} are not timed on the device: {}", count(seats, "seat"), chain(&why)));
        None
    });
    let median = |mut samples: Vec<Duration>| {
        samples.sort_unstable();
        samples.get(samples.len() / 2).map(|&median| micros(median))
    };
    times.and_then(|times| Some(DeviceTime { seats, turn: median(times.turn)?, compute: median(times.compute) }))
}

/// A row without what the device says, and the most seats that a turn of its streams has.
fn row(
    args: &BenchArgs,
    model: &PlannedModel,
    loaded: &Loaded,
    streams: u32,
    pace: Option<Duration>,
    frame_ms: Option<f64>,
) -> CliResult<(Row, u32)> {
    let runnable = load::serve(model.unprepared(), &args.model, &args.serve, streams)?;
    let sources: Vec<Source> = loaded.sources.iter().map(|source| source.rendered(streams as usize)).collect();
    let timed = |turns: usize, pace: Option<Duration>| {
        let streams = streams as usize;
        let drive_it = Drive {
            runnable: &runnable,
            sources: &sources,
            first: 0,
            streams,
            turns,
            seed: args.model.seed,
            churn: args.serve.churn,
            keep: false,
            last_from: usize::MAX,
            pace,
        };
        drive(&drive_it, |_| {})
    };
    // An array may hold fewer turns than a row takes: its turns are then what is timed.
    let held = loaded.sources.iter().filter(|s| s.frame_ms().is_none()).filter_map(|s| s.turns(streams as usize)).min();
    let most = held.unwrap_or(usize::MAX);
    let warm = timed(WARM_UP_TURNS.min(most), None)?;
    let per_turn = warm.wall.as_secs_f64() / WARM_UP_TURNS.min(most) as f64;
    let period = pace.map_or(per_turn, |pace| pace.as_secs_f64().max(per_turn));
    let turns = match args.turns {
        Some(turns) => turns as usize,
        None => ((SECONDS_PER_ROW / period.max(1e-9)) as usize).clamp(WARM_UP_TURNS, 1_000_000),
    };
    let before = runnable.stats();
    let mut served = timed(turns.min(most), pace)?;
    if let Some(first) = served.first_error {
        return Err(CliError::failed(format!(
            "{} of {} calls failed; the first: {first}",
            served.errors, served.calls
        )));
    }
    let stats = runnable.stats();
    let wall = served.wall.as_secs_f64().max(1e-9);
    let calls_per_s = served.calls as f64 / wall;
    let row = Row {
        streams,
        mode: if pace.is_some() { "paced" } else { "closed" },
        calls_per_s,
        us_per_seat: wall * 1e6 / served.calls.max(1) as f64,
        turn_us_p50: micros(stats.turn_time_p50),
        latency_us: Latency::of(&mut served.latencies),
        seats_per_turn: (stats.seats - before.seats) as f64 / (stats.turns - before.turns).max(1) as f64,
        realtime_streams: frame_ms.map(|ms| calls_per_s * ms / 1000.0),
        device_us: None,
    };
    // The environment may say less than the options do.
    Ok((row, streams.min(runnable.lanes()).min(runnable.max_seats())))
}
