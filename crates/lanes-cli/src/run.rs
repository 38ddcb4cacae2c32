//! `lanes run`: N concurrent streams through one resident state.

use crate::args::RunArgs;
use crate::error::{CliError, CliResult};
use crate::load;
use crate::out::Out;
use crate::quantile::Latency;
use crate::say::{self, count};
use crate::serve::{Drive, drive};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// The JSON object; keys are a contract.
#[derive(Serialize)]
struct Report {
    model: String,
    backend: String,
    device: String,
    streams: u32,
    lanes: u32,
    max_seats: u32,
    turns: u64,
    seats: u64,
    seats_per_turn: f64,
    padded_seats: u64,
    calls: u64,
    calls_per_s: f64,
    wall_s: f64,
    latency_us: Latency,
    state_bytes_per_lane: usize,
    device_bytes: u64,
    errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    frame_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    realtime_streams: Option<f64>,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> CliResult {
    if let Some(folder) = &args.out {
        Out::make_folder(folder)?;
    }
    let device = load::device(&args.serve.backend, args.serve.threads)?;
    let loaded = load::load(&args.model)?;
    let streams = args.streams as usize;
    let turns = load::turns(&loaded.sources, streams, args.turns)?;
    let planned = load::planned(&device, &loaded.model, &args.model)?;
    let runnable = load::serve(planned, &args.model, &args.serve, args.streams)?;
    let out = args.out.as_ref().map(|folder| Out::choose(folder, &loaded.model.signature.outputs)).transpose()?;
    let bar = progress_bar((streams * turns) as u64);
    let mut served = drive(
        &Drive {
            runnable: &runnable,
            sources: &loaded.sources,
            first: 0,
            streams,
            turns,
            seed: args.model.seed,
            churn: args.serve.churn,
            keep: args.out.is_some(),
            last_from: usize::MAX,
            pace: None,
        },
        |calls| bar.set_position(calls),
    )?;
    bar.finish_and_clear();
    let stats = runnable.stats();
    let frame_ms = loaded.sources.iter().find_map(crate::source::Source::frame_ms);
    let calls_per_s = served.calls as f64 / served.wall.as_secs_f64().max(1e-9);
    let report = Report {
        model: args.model.path.display().to_string(),
        backend: device.capabilities().backend.to_owned(),
        device: device.capabilities().name.clone(),
        streams: args.streams,
        lanes: runnable.lanes(),
        max_seats: runnable.max_seats(),
        turns: stats.turns,
        seats: stats.seats,
        seats_per_turn: stats.seats_per_turn(),
        padded_seats: stats.padded_seats,
        calls: served.calls,
        calls_per_s,
        wall_s: served.wall.as_secs_f64(),
        latency_us: Latency::of(&mut served.latencies),
        state_bytes_per_lane: runnable.signature().state_bytes_per_lane(),
        device_bytes: runnable.device_bytes(),
        errors: served.errors,
        frame_ms,
        realtime_streams: frame_ms.map(|ms| calls_per_s * ms / 1000.0),
    };
    // The figures first: a disk that fills up must not take them too.
    let said = if args.json { say::json(&report) } else { say::lines(&table(&report)) };
    let written = match &out {
        Some(out) => out.write(&loaded.model.signature.outputs, &served.outputs, streams, turns),
        None => Ok(()),
    };
    let served_all = match served.first_error {
        Some(first) => {
            Err(CliError::failed(format!("{} of {} calls failed; the first: {first}", served.errors, served.calls)))
        }
        None => Ok(()),
    };
    say::first_error([served_all, written, said])
}

fn table(report: &Report) -> Vec<String> {
    let latency = &report.latency_us;
    let mut lines = vec![
        format!("model      {} on {} ({})", report.model, report.backend, report.device),
        format!(
            "streams    {} over {}, at most {} a turn",
            report.streams,
            count(report.lanes, "lane"),
            count(report.max_seats, "seat")
        ),
        format!("calls      {} in {:.3} s: {:.0} a second", report.calls, report.wall_s, report.calls_per_s),
        format!("occupancy  {:.1} seats a turn over {}", report.seats_per_turn, count(report.turns, "turn")),
        format!(
            "latency    p50 {} µs, p90 {} µs, p99 {} µs, max {} µs",
            latency.p50, latency.p90, latency.p99, latency.max
        ),
        format!(
            "memory     {} of state a lane, {} on the device",
            count(report.state_bytes_per_lane, "byte"),
            count(report.device_bytes, "byte")
        ),
    ];
    if let (Some(frame), Some(streams)) = (report.frame_ms, report.realtime_streams) {
        let streams = count(format!("{streams:.0}"), "stream");
        lines.push(format!("real time  {streams} at {frame} ms a frame"));
    }
    lines
}

/// A bar on a terminal, nothing elsewhere.
pub fn progress_bar(calls: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(calls), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} calls, {per_sec}, {eta} left") {
        bar.set_style(style);
    }
    bar
}
