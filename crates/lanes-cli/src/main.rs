//! The command line of `lanes`: serve, check, inspect and time streaming models.
//!
//! Results go to stdout, everything else to stderr. Exit status: 0 done, 1 a check found a difference or a run failed,
//! 2 the input or the usage is wrong.
#![deny(unsafe_code)]

mod args;
mod bench;
mod check;
mod churn;
mod devices;
mod error;
mod inspect;
mod load;
mod loom;
mod machine;
mod npy;
mod out;
mod quantile;
mod random;
mod run;
mod say;
mod serve;
mod source;
mod spec;
mod usage;
mod wav;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use error::CliError;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(why) => {
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            return match usage::answer(&why, &Cli::command(), &words) {
                Ok(()) => ExitCode::SUCCESS,
                Err(why) => end(&why),
            };
        }
    };
    let done = match &cli.command {
        Command::Devices(args) => devices::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Loom { rest } => loom::run(rest),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => end(&why),
    }
}

fn end(why: &CliError) -> ExitCode {
    if !matches!(why, CliError::ReaderGone) {
        say::aside(&why.to_string());
    }
    ExitCode::from(why.status())
}
