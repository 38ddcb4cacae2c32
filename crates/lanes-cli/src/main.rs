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
use clap::Parser;
use error::CliError;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(why) => {
            if !why.use_stderr() {
                // Help and version are answers. A reader that has gone away has had what it wanted.
                return match say::printed(why.print().and_then(|()| std::io::stdout().flush())) {
                    Ok(()) | Err(CliError::ReaderGone) => ExitCode::SUCCESS,
                    Err(why) => end(&why),
                };
            }
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            return end(&CliError::usage(usage::paragraph(&why, &words)));
        }
    };
    let done = match &cli.command {
        Command::Devices(args) => devices::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Loom { rest } => Err(CliError::usage(format!(
            "{}: checking, formatting, compiling and testing Loom files from the command line is not written yet",
            [&["loom".to_owned()], &rest[..]].concat().join(" ")
        ))),
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
