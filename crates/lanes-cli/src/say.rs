//! Results to stdout, words to stderr: a stream that nobody reads, or that is full, is no panic.
//!
//! - What a file or a command line named is printed without control characters, so a line stays one line, and a terminal
//!   does nothing but show it. JSON escapes them itself.

use crate::error::{CliError, CliResult};
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints a table, its lines as `plain` has them.
pub fn lines(lines: &[String]) -> CliResult {
    let text: Vec<_> = lines.iter().map(|line| plain(line)).collect();
    print(&text.join("\n"))
}

/// Prints one JSON object.
pub fn json(value: &impl serde::Serialize) -> CliResult {
    print(&serde_json::to_string(value).map_err(|why| CliError::failed(why.to_string()))?)
}

/// A reader that has gone away (`| head`) has had what it wanted of a result that is there.
fn print(text: &str) -> CliResult {
    match write(text) {
        Err(CliError::ReaderGone) => Ok(()),
        done => done,
    }
}

/// Prints one line of a result that is still being made; `ReaderGone` when there is no use in making more.
pub fn line(text: &str) -> CliResult {
    write(&plain(text))
}

fn write(text: &str) -> CliResult {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))
}

/// What came of printing to stdout.
pub fn printed(result: io::Result<()>) -> CliResult {
    result.map_err(|why| match why.kind() {
        ErrorKind::BrokenPipe => CliError::ReaderGone,
        _ => CliError::failed(format!("writing to stdout: {why}")),
    })
}

/// Says something beside the result, on one line. Where stderr takes nothing there is nobody to tell.
pub fn aside(text: &str) {
    let _ = writeln!(io::stderr(), "lanes: {}", plain(text));
}

/// The first error of `results`; the others are said.
pub fn first_error(results: impl IntoIterator<Item = CliResult>) -> CliResult {
    let mut errors = results.into_iter().filter_map(Result::err);
    let first = errors.next();
    errors.for_each(|error| aside(&error.to_string()));
    first.map_or(Ok(()), Err)
}

/// `text` with its control characters, and those that turn the direction of writing, as Rust escapes them.
pub fn plain(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        c.is_control() || matches!(c, '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// `1 stream`, `2 streams`.
pub fn count(number: impl Display, what: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_spelt_out_and_nothing_else() {
        assert_eq!(plain("größe 模型 µ\\ '\""), "größe 模型 µ\\ '\"");
        assert_eq!(plain("a\nb\x1b[2J\t\u{9b}\u{202e}c"), "a\\nb\\u{1b}[2J\\t\\u{9b}\\u{202e}c");
        assert_eq!([count(0, "turn"), count(1, "turn"), count(11, "turn")], ["0 turns", "1 turn", "11 turns"]);
    }
}
