//! Results to stdout, words to stderr: a stream that nobody reads, or that is full, is no panic.

use crate::error::{CliError, CliResult};
use std::io::{ErrorKind, Write};

/// Prints a result and a line feed. A reader that has gone away (`| head`) has had what it wanted.
pub fn result(text: &str) -> CliResult {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => Err(CliError::failed(format!("writing to stdout: {why}"))),
        _ => Ok(()),
    }
}

/// Prints one JSON object.
pub fn json(value: &impl serde::Serialize) -> CliResult {
    result(&serde_json::to_string(value).map_err(|why| CliError::failed(why.to_string()))?)
}

/// Says something beside the result. Where stderr takes nothing there is nobody to tell.
pub fn aside(text: &str) {
    let _ = writeln!(std::io::stderr(), "lanes: {text}");
}
