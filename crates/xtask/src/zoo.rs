//! Public streaming models: 64 churning streams through one resident state, against onnxruntime with one stream at a
//! time and against each stream served alone; and how close the scratch of their plans comes to the least.

use crate::fetch::{environment, folder, unpack_models};
use crate::shell::{Chore, ChoreError, at, cargo, finish, none_chosen, root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The reference and what reads and writes arrays for it.
const REFERENCE: [&str; 2] = ["onnxruntime==1.23.2", "numpy==2.3.5"];

/// |a − e| ≤ this · max(1, |e|): f32 sums of some hundred terms in another order stay well below it.
const TOLERANCE: f64 = 1e-5;

/// A model, what it needs on the command line, and what its reference needs.
struct Entry {
    path: &'static str,
    /// The stream input and one seat's shape.
    input: (&'static str, &'static [usize]),
    fix: Option<&'static str>,
    /// `IN=OUT@AXIS`.
    states: &'static [&'static str],
    /// Spread of the generated input: about that of audio, or of features.
    amplitude: &'static str,
}

const SILERO_STATE: &[&str] = &["state=stateN@1"];
const FLASHVAD_STATES: &[&str] = &[
    "recurrent=next_recurrent@1",
    "cache_0=next_cache_0@0",
    "cache_1=next_cache_1@0",
    "cache_2=next_cache_2@0",
    "cache_3=next_cache_3@0",
];

/// `has_rate`: whether the export still asks for the sample rate.
const fn silero(path: &'static str, has_rate: bool) -> Entry {
    let fix = if has_rate { Some("sr=16000") } else { None };
    Entry { path, input: ("input", &[576]), fix, states: SILERO_STATE, amplitude: "0.1" }
}

const ZOO: [Entry; 5] = [
    silero("silero_vad/data/silero_vad.onnx", true),
    silero("silero_vad/data/silero_vad_16k_op15.onnx", true),
    silero("silero_vad/data/silero_vad_half.onnx", false),
    silero("silero_vad/data/silero_vad_op18_ifless.onnx", true),
    Entry {
        path: "flashvad/_models/flashvad-stream.onnx",
        input: ("feature", &[1, 43]),
        fix: None,
        states: FLASHVAD_STATES,
        amplitude: "1.0",
    },
];

/// `cargo xtask zoo`
#[derive(clap::Args)]
pub struct Options {
    /// Only models whose path contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Concurrent streams
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Calls per stream
    #[arg(long, default_value_t = 24)]
    turns: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { only: String::new(), streams: 64, turns: 24 }
    }
}

/// Fetches, runs and compares.
pub fn run(options: &Options) -> Chore {
    let chosen: Vec<&Entry> = ZOO.iter().filter(|entry| entry.path.contains(&options.only)).collect();
    if chosen.is_empty() {
        return Err(none_chosen("no model of the zoo", &options.only, ZOO.iter().map(|entry| entry.path)));
    }
    let folder = folder();
    unpack_models()?;
    let python = environment(&folder.join("python"), &REFERENCE)?;
    finish(cargo().args(["build", "--release", "--package", "lanes-cli"]))?;
    for entry in chosen {
        compare(entry, options, &folder, &python)?;
        let (input, shape) = entry.input;
        let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let shape = format!("{input}:{}", extents.join(","));
        scratch(&folder.join("models").join(entry.path), entry.fix.into_iter().chain([shape.as_str()]))?;
    }
    scratch(&root().join("models/vad/vad.onnx"), [])
}

/// Scratch of the model's plan, at several counts of seats, takes at most 1.1 times the bytes that are alive at once.
fn scratch<'a>(model: &Path, bound: impl IntoIterator<Item = &'a str>) -> Chore {
    let mut example = cargo();
    example.args(["run", "--quiet", "--release", "--package", "lanes-model", "--example", "scratch", "--"]);
    finish(example.arg(model).args(bound))
}

fn compare(entry: &Entry, options: &Options, folder: &Path, python: &Path) -> Chore {
    let model = folder.join("models").join(entry.path);
    let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let work = folder.join("runs").join(&name);
    let inputs = work.join("inputs");
    std::fs::create_dir_all(&inputs).map_err(at(&inputs))?;
    let (input, shape) = entry.input;
    let array = inputs.join(format!("{input}.npy"));
    let axes: Vec<String> = [options.streams, options.turns].iter().chain(shape).map(ToString::to_string).collect();
    // Every stream at a level of its own, over four decades, so that a leak between lanes is not lost in rounding.
    let make = "import sys, numpy as n\n\
        path, amplitude, shape = sys.argv[1], float(sys.argv[2]), tuple(map(int, sys.argv[3].split(',')))\n\
        levels = amplitude * 10.0 ** n.linspace(-3, 1, shape[0]).reshape((-1,) + (1,) * (len(shape) - 1))\n\
        n.save(path, (n.random.default_rng(7).standard_normal(shape) * levels).astype(n.float32))\n";
    finish(Command::new(python).args(["-c", make]).arg(&array).args([entry.amplitude, &axes.join(",")]))?;

    let expected = work.join("onnxruntime");
    let mut reference = Command::new(python);
    reference.arg(root().join("bench/peers/ort_reference.py")).arg(&model);
    reference.arg("--inputs").arg(&inputs).arg("--out").arg(&expected);
    if let Some(fix) = entry.fix {
        reference.args(["--fix", fix]);
    }
    for state in entry.states {
        reference.args(["--state", state]);
    }
    finish(&mut reference)?;

    let serve = |out: &Path, more: &[&str]| {
        let mut lanes = Command::new(root().join("target/release/lanes"));
        lanes.arg("run").arg(&model).arg("--streams").arg(options.streams.to_string()).arg("--out").arg(out);
        lanes.arg("--input").arg(format!("{input}={}", array.display()));
        if let Some(fix) = entry.fix {
            lanes.args(["--fix", fix]);
        }
        finish(lanes.args(more))
    };
    let (together, alone) = (work.join("together"), work.join("alone"));
    serve(&together, &["--churn", "0.2"])?;
    serve(&alone, &["--lanes", "1", "--max-seats", "1", "--threads", "1"])?;

    let mut worst = 0.0_f64;
    for file in arrays(&expected)? {
        let (ours, theirs) = (together.join(&file), expected.join(&file));
        let (a, e) = (floats(&ours)?, floats(&theirs)?);
        if a.len() != e.len() {
            return Err(ChoreError::Words(format!(
                "{}: {} values, onnxruntime has {}",
                ours.display(),
                a.len(),
                e.len()
            )));
        }
        for (i, (a, e)) in a.iter().zip(&e).enumerate() {
            let error = f64::from((a - e).abs() / e.abs().max(1.0));
            worst = worst.max(error);
            if error.is_nan() || error > TOLERANCE {
                let text = format!("{name}: {} element {i} is {a}, onnxruntime gives {e}", file.display());
                return Err(ChoreError::Words(text));
            }
        }
        let bytes = |path: &Path| std::fs::read(path).map_err(at(path));
        if bytes(&ours)? != bytes(&alone.join(&file))? {
            let text = format!("{name}: {} differs between streams together and each alone", file.display());
            return Err(ChoreError::Words(text));
        }
    }
    println!(
        "zoo: {name}: {} streams, {} turns: largest |a-e|/max(1,|e|) against onnxruntime {worst:.1e}; together = alone, bit for bit",
        options.streams, options.turns
    );
    Ok(())
}

/// Names of the arrays in a folder; a folder without any is an error.
fn arrays(folder: &Path) -> Chore<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.extension().is_some_and(|e| e == "npy") {
            found.extend(path.file_name().map(PathBuf::from));
        }
    }
    if found.is_empty() {
        return Err(ChoreError::Words(format!("{}: no arrays to compare", folder.display())));
    }
    found.sort();
    Ok(found)
}

/// The elements of a little-endian f32 array as both sides write it: format 1.0, in C order.
fn floats(path: &Path) -> Chore<Vec<f32>> {
    let bytes = std::fs::read(path).map_err(at(path))?;
    let refuse = || ChoreError::Words(format!("{}: not a .npy array of float32 in C order", path.display()));
    let start = match bytes[..] {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high, ..] => 10 + usize::from(u16::from_le_bytes([low, high])),
        _ => return Err(refuse()),
    };
    let (header, elements) = bytes.split_at_checked(start).ok_or_else(refuse)?;
    let says = |words: &[u8]| header.windows(words.len()).any(|found| found == words);
    if !says(b"'<f4'") || !says(b"'fortran_order': False") {
        return Err(refuse());
    }
    Ok(elements.chunks_exact(4).map(|e| f32::from_le_bytes([e[0], e[1], e[2], e[3]])).collect())
}
