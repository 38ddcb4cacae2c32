//! Every chore of the project: `cargo xtask ci | zoo | corpus | ptx | bench | bundle | stack | build-time`.
#![deny(unsafe_code)]

mod bench;
mod build_time;
mod bundle;
mod ci;
mod corpus;
mod fetch;
mod ptx;
mod shell;
mod stack;
mod zoo;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Every chore of the project")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// All that must hold before a change lands: format, lints, tests, docs, zoo
    Ci,
    /// Fetch public models and compare 64 churning streams with onnxruntime, one stream at a time
    Zoo(zoo::Options),
    /// Fetch public Loom kernels, compile them for the CPU and run their cases
    Corpus(corpus::Options),
    /// Fetch NVIDIA's assembler, assemble every kernel for five targets, and compare registers with a table
    Ptx(ptx::Options),
    /// Ours beside other engines, alternated in one run; builds the peers first, which takes some ten minutes once
    Bench(bench::Options),
    /// One archive that proves the CUDA backend on a machine with a GPU and without Rust
    Bundle(bundle::Options),
    /// Write a random-weight stack of LSTM cells as an ONNX file
    Stack(stack::Options),
    /// Time a clean release build of the default features, downloads excluded
    BuildTime,
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Ci => ci::run(),
        Chore::Zoo(options) => zoo::run(&options),
        Chore::Corpus(options) => corpus::run(&options),
        Chore::Ptx(options) => ptx::run(&options),
        Chore::Bench(options) => bench::run(&options),
        Chore::Bundle(options) => bundle::run(&options),
        Chore::Stack(options) => stack::run(&options),
        Chore::BuildTime => build_time::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
