//! What is wrong with a command line, as one paragraph: what was found, and what would be accepted.

use crate::error::{CliError, CliResult};
use crate::say;
use clap::Command;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::io::Write;

/// What comes of a command line `words` (without its first words, the name of `whole`) that the parser of `whole` did not
/// take: help and version are answers, and printed; anything else is an error.
pub fn answer(error: &clap::Error, whole: &Command, words: &[OsString]) -> CliResult {
    if error.use_stderr() {
        return Err(CliError::usage(paragraph(error, whole, words)));
    }
    match say::printed(error.print().and_then(|()| std::io::stdout().flush())) {
        // A reader that has gone away has had what it wanted.
        Err(CliError::ReaderGone) => Ok(()),
        done => done,
    }
}

/// The parser's error, on one line.
fn paragraph(error: &clap::Error, whole: &Command, words: &[OsString]) -> String {
    let program = whole.get_name();
    let command = words.iter().find_map(|word| whole.find_subcommand(word));
    let text = match error.kind() {
        ErrorKind::InvalidUtf8 => {
            // The parser does not say which. A path may be anything, so it may be among these and not be meant.
            let found = words.iter().filter(|word| word.to_str().is_none());
            let found: Vec<String> = found.map(|word| format!("{word:?}")).collect();
            format!(
                "found {}, which is not UTF-8; only MODEL, FILE and the paths of --out and -o may be otherwise",
                found.join(", ")
            )
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command was given".to_owned(),
        _ => said(&error.to_string()),
    };
    match (error.kind(), command) {
        (ErrorKind::UnknownArgument, Some(command)) => {
            format!("{text}; {program} {} accepts {}", command.get_name(), arguments(command))
        }
        (ErrorKind::MissingRequiredArgument, Some(command)) => {
            format!("{text}; {program} {} {} is accepted", command.get_name(), positionals(command).join(" "))
        }
        (
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::InvalidSubcommand
            | ErrorKind::UnknownArgument,
            _,
        ) => {
            let names: Vec<&str> = whole.get_subcommands().map(Command::get_name).collect();
            format!("{text}; the commands are {}", names.join(", "))
        }
        _ => text,
    }
}

/// The parser's own words, without its usage, its advice and where more can be read.
fn said(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let own = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    own.filter(|line| !line.starts_with("tip:")).collect::<Vec<_>>().join(" ")
}

fn positionals(command: &Command) -> Vec<String> {
    command.get_positionals().map(|argument| argument.to_string()).collect()
}

fn arguments(command: &Command) -> String {
    let options = command.get_arguments().filter_map(clap::Arg::get_long).map(|long| format!("--{long}"));
    positionals(command).into_iter().chain(options).collect::<Vec<_>>().join(", ")
}
