//! tract, timed beside our own engine: `tract-peer null-lanes` and `tract-peer step`.
//!
//! - One JSON object on stdout and nothing else there; one line on stderr when something is wrong.
//! - Exit status 0: timed. 1: tract failed, or gave a wrong answer. 2: the usage is wrong.
//! - A time is never reported for answers that were not looked at: `null_lanes` checks each one, `step` that they are
//!   finite and as wide as the batch.
//! - Not here: what runs it in alternation with ours and compares the two.

mod args;
mod null_lanes;
mod preset;
mod stats;
mod step;

use std::process::ExitCode;

use args::Command;

/// The tract this was built against, as every report names it.
const TRACT_VERSION: &str = "0.23.9";

const USAGE: &str = "\
usage: tract-peer null-lanes --streams N --turns T [--width W] [--linger-us U]
       tract-peer step MODEL --preset silero|flashvad --batch N --seconds S [--plan fixed|symbolic]

null-lanes  tract-core's laned runnable on the null model [B,W] * 2: a blocking thread per stream, T calls each
step        MODEL (ONNX) at batch N on one thread, its states fed back from turn to turn, for S seconds";

fn main() -> ExitCode {
    let report = match Command::parse(std::env::args_os().skip(1)) {
        Ok(Command::NullLanes(bench)) => null_lanes::run(&bench),
        Ok(Command::Step(bench)) => step::run(&bench),
        Ok(Command::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("tract-peer: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match report {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            // `{:#}` prints tract's chain of causes on one line.
            eprintln!("tract-peer: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report must not name another tract than the one linked in.
    #[test]
    fn the_reported_version_is_the_required_one() {
        let manifest = include_str!("../Cargo.toml");
        for name in ["tract-core", "tract-onnx"] {
            let line = format!("{name} = \"={TRACT_VERSION}\"");
            assert!(
                manifest.lines().any(|found| found == line),
                "no line `{line}` in Cargo.toml"
            );
        }
    }
}
