//! What is wrong with a text, where, and what would be legal.
//!
//! - A diagnostic names file, line and column (both from 1, columns in characters), quotes the line and points at it.
//! - One run reports up to [`MAX_DIAGNOSTICS`]; one op reports at most once, and use of a value whose definition failed
//!   reports nothing.

use std::fmt;

use crate::ir::Span;

/// The most diagnostics one run reports.
pub const MAX_DIAGNOSTICS: usize = 50;

/// The most characters of a source line that are quoted.
const QUOTE_CHARS: usize = 160;

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What was found, and what is legal.
    pub message: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Characters pointed at, at least 1.
    pub width: usize,
    /// The line, or the part of it around the column.
    pub quote: String,
    /// Characters of `quote` before the column.
    pub quote_column: usize,
    /// Where it is, in bytes.
    pub(crate) at: u32,
}

/// Everything one run refused. Never empty when it is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    /// The name that the caller gave the source.
    pub name: String,
    /// In order of discovery.
    pub items: Vec<Diagnostic>,
    /// Whether there were more than [`MAX_DIAGNOSTICS`].
    pub truncated: bool,
}

impl Diagnostics {
    /// None yet.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), items: Vec::new(), truncated: false }
    }

    /// Whether no more will be recorded.
    pub(crate) fn is_full(&self) -> bool {
        self.truncated
    }

    /// Records one refusal at `span` of `source`.
    pub(crate) fn push(&mut self, source: &str, span: Span, message: impl Into<String>) {
        if self.items.len() == MAX_DIAGNOSTICS {
            self.truncated = true;
            return;
        }
        let start = floor_char(source, span.start as usize);
        let end = floor_char(source, span.end as usize).max(start);
        let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = source[start..].find('\n').map_or(source.len(), |at| start + at);
        let column = source[line_start..start].chars().count();
        let skip = column.saturating_sub(QUOTE_CHARS / 2);
        let quote: String = source[line_start..line_end].chars().skip(skip).take(QUOTE_CHARS).collect();
        let width = source[start..end.min(line_end)].chars().count().clamp(1, QUOTE_CHARS / 2);
        self.items.push(Diagnostic {
            message: message.into(),
            line: source[..start].bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: column + 1,
            width,
            // A control character in the quote must not reach a terminal as such, and a tab would move the caret.
            quote: quote.trim_end().chars().map(|char| if char.is_control() { ' ' } else { char }).collect(),
            quote_column: column - skip,
            at: start as u32,
        });
    }

    /// `value` if nothing was refused.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, Self> {
        if self.items.is_empty() { Ok(value) } else { Err(self) }
    }
}

/// The last character boundary at or before `at`.
fn floor_char(source: &str, at: usize) -> usize {
    let mut at = at.min(source.len());
    while !source.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, item) in self.items.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{}:{}:{}: {}", self.name, item.line, item.column, item.message)?;
            writeln!(f, "  {}", item.quote)?;
            write!(f, "  {}{}", " ".repeat(item.quote_column), "^".repeat(item.width))?;
        }
        if self.truncated {
            write!(f, "\n{}: more than {MAX_DIAGNOSTICS} errors; the rest is not shown", self.name)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// Why an op could not be built.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// To be reported.
    At(Span, String),
    /// Something it uses was already reported.
    Reported,
}

/// The result of reading or building a part of one op.
pub(crate) type Built<T> = Result<T, Refusal>;

/// A refusal at `span`.
pub(crate) fn refuse<T>(span: Span, message: impl Into<String>) -> Built<T> {
    Err(Refusal::At(span, message.into()))
}
