//! Ours beside other engines, alternated in one run: the ratios that `docs/performance.md` states.
//!
//! Each round runs every program once; a ratio is taken within its round, and the median of the rounds is printed. The
//! peers are a workspace of their own (`bench/peers`) and take some ten minutes to build once.

use crate::fetch::unpack_models;
use crate::shell::{Chore, ChoreError, cargo, finish, output, root};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// `cargo xtask bench`
#[derive(clap::Args)]
pub struct Options {
    /// Rounds of alternation
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// One comparison: what it is, the least (or, of `at_most`, the most) ratio promised, and the ratio of each round.
struct Comparison {
    what: &'static str,
    bar: f64,
    at_most: bool,
    ratios: Vec<f64>,
}

/// Builds, runs and prints.
pub fn run(options: &Options) -> Chore {
    finish(cargo().args(["build", "--release", "--package", "lanes-cli"]))?;
    finish(cargo().args(["build", "--release", "--package", "lanes-core", "--example", "null_turns"]))?;
    let peers = root().join("bench/peers");
    finish(cargo().args(["build", "--release", "--manifest-path"]).arg(peers.join("Cargo.toml")))?;
    let models = unpack_models()?;
    let silero = models.join("silero_vad/data/silero_vad_op18_ifless.onnx");
    let flashvad = models.join("flashvad/_models/flashvad-stream.onnx");
    let ours = root().join("target/release/lanes");
    let null = root().join("target/release/examples/null_turns");
    let tract = peers.join("target/release/tract-peer");

    let null_row = |mode: &str, streams: &str, seats: &str| {
        let mut command = Command::new(&null);
        command.args(["--mode", mode, "--streams", streams, "--max-seats", seats, "--seconds", "1", "--repeats", "1"]);
        Ok::<_, ChoreError>(json(&mut command)?["rows"][0].clone())
    };
    let tract_null = |streams: &str, turns: &str| {
        json(Command::new(&tract).args(["null-lanes", "--streams", streams, "--turns", turns]))
    };
    let tract_step = |model: &Path, preset: &str, batch: &str| {
        let mut command = Command::new(&tract);
        command.arg("step").arg(model).args(["--preset", preset, "--batch", batch, "--seconds", "2"]);
        json(&mut command)
    };
    let bench = |model: &Path, more: &[&str]| {
        let mut command = Command::new(&ours);
        command.current_dir(root()).arg("bench").arg(model).arg("--json").args(more);
        Ok::<_, ChoreError>(json(&mut command)?["rows"][0].clone())
    };
    const SPEECH: &str = "input=models/vad/speech,frame=576,hop=512";
    let silero_at = |streams: &str, threads: &[&str]| {
        let fed = ["--fix", "sr=16000", "--input", SPEECH, "--max-seats", "256", "--turns", "40", "--streams", streams];
        bench(&silero, &[&fed[..], threads].concat())
    };

    let comparison = |what, bar, at_most| Comparison { what, bar, at_most, ratios: Vec::new() };
    let mut all = [
        comparison("null model, 64 blocking handles: calls/s ÷ tract's laned runnable", 1.5, false),
        comparison("null model, one thread driving 64 streams: calls/s ÷ tract's 64 handles", 8.0, false),
        comparison("null model, one handle alone: p50 ÷ tract's", 0.25, true),
        comparison("silero_vad_op18_ifless, 128 streams, one thread: streams in real time ÷ tract fixed", 1.5, false),
        comparison("FlashVAD, 32 streams, one thread: streams in real time ÷ tract fixed", 1.5, false),
        comparison("null model, one driver: µs per seat at 1024 streams ÷ at 64", 1.2, true),
        comparison("silero_vad_op18_ifless, one driver: µs per seat at 1024 streams ÷ at 64", 1.2, true),
    ];
    for round in 1..=options.rounds {
        let theirs = number(&tract_null("64", "1500")?, "calls_per_s")?;
        all[0].ratios.push(number(&null_row("blocking", "64", "64")?, "calls_per_s")? / theirs);
        all[1].ratios.push(number(&null_row("reaper", "64", "64")?, "calls_per_s")? / theirs);
        let alone = null_row("alone", "1", "1")?;
        if number(&alone, "handoffs_per_call")? != 0.0 {
            return Err(ChoreError::Words("a handle alone was handed to another thread".to_owned()));
        }
        let p50 = |row: &Value| number(&row["latency_us"], "p50");
        all[2].ratios.push(p50(&alone)? / p50(&tract_null("1", "8000")?)?);

        let one = ["--threads", "1"];
        let per_seat = |row: &Value| number(row, "us_per_seat");
        let ours = per_seat(&silero_at("128", &one)?)?;
        all[3].ratios.push(per_seat(&tract_step(&silero, "silero", "128")?)? / ours);
        let fed = ["--input", "feature=normal", "--turns", "4000", "--streams", "32", "--threads", "1"];
        let ours = per_seat(&bench(&flashvad, &fed)?)?;
        all[4].ratios.push(per_seat(&tract_step(&flashvad, "flashvad", "32")?)? / ours);

        let seats = |streams| per_seat(&null_row("reaper", streams, "256")?);
        all[5].ratios.push(seats("1024")? / seats("64")?);
        all[6].ratios.push(per_seat(&silero_at("1024", &[])?)? / per_seat(&silero_at("64", &[])?)?);
        eprintln!("round {round} of {} done", options.rounds);
    }
    println!("median ratio of {} rounds, least to most:", options.rounds);
    for comparison in &mut all {
        comparison.ratios.sort_by(f64::total_cmp);
        let ratios = &comparison.ratios;
        let median = ratios[ratios.len() / 2];
        let holds = if comparison.at_most { median <= comparison.bar } else { median >= comparison.bar };
        let sign = if comparison.at_most { "≤" } else { "≥" };
        println!(
            "{:7.3} ({:.3} to {:.3}) {sign} {}: {}  {}",
            median,
            ratios[0],
            ratios[ratios.len() - 1],
            comparison.bar,
            if holds { "holds" } else { "MISSED" },
            comparison.what
        );
    }
    Ok(())
}

fn json(command: &mut Command) -> Chore<Value> {
    let text = output(command)?;
    serde_json::from_str(&text).map_err(|why| ChoreError::Words(format!("{command:?} printed no JSON object: {why}")))
}

fn number(row: &Value, key: &str) -> Chore<f64> {
    row[key].as_f64().ok_or_else(|| ChoreError::Words(format!("no number `{key}` in {row}")))
}
