//! What is wrong with a command line, as one paragraph: what was found, and what would be accepted.

use crate::args::Cli;
use clap::error::ErrorKind;
use clap::{Command, CommandFactory};
use std::ffi::OsString;

/// The parser's error for the command line `words` (without the program's name), on one line.
pub fn paragraph(error: &clap::Error, words: &[OsString]) -> String {
    let whole = Cli::command();
    let command = words.iter().find_map(|word| whole.find_subcommand(word));
    let text = match error.kind() {
        ErrorKind::InvalidUtf8 => {
            // The parser does not say which. A path may be anything, so it may be among these and not be meant.
            let found = words.iter().filter(|word| word.to_str().is_none());
            let found: Vec<String> = found.map(|word| format!("{word:?}")).collect();
            format!(
                "found {}, which is not UTF-8; only MODEL and the folder of --out may be otherwise",
                found.join(", ")
            )
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command was given".to_owned(),
        _ => said(&error.to_string()),
    };
    match (error.kind(), command) {
        (ErrorKind::UnknownArgument, Some(command)) => {
            format!("{text}; lanes {} accepts {}", command.get_name(), arguments(command))
        }
        (ErrorKind::MissingRequiredArgument, Some(command)) => {
            format!("{text}; lanes {} {} is accepted", command.get_name(), positionals(command).join(" "))
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
