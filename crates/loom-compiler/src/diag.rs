//! What is wrong with a text, where, and what would be legal.
//!
//! - A diagnostic names file, line and column (both from 1, columns in characters), quotes the line and points at it.
//! - A source may be several files, one behind the other, as linking leaves it: each diagnostic is in the file it is in.
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
    /// The name of the file it is in.
    pub file: String,
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
    /// Where each file behind the first begins in the source.
    files: Vec<FileStart>,
}

/// A file of a source made of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStart {
    pub(crate) name: String,
    /// In bytes.
    pub(crate) start: u32,
}

impl Diagnostics {
    /// None yet.
    pub(crate) fn new(name: &str) -> Self {
        Self::of_files(name, &[])
    }

    /// None yet, of a source that begins with the file `name` and goes on with `files`.
    pub(crate) fn of_files(name: &str, files: &[FileStart]) -> Self {
        Self { name: name.to_owned(), items: Vec::new(), truncated: false, files: files.to_vec() }
    }

    /// The file that byte `at` is in, with its bounds in the source.
    fn file(&self, source: &str, at: u32) -> (&str, usize, usize) {
        let behind = self.files.partition_point(|file| file.start <= at);
        let end = self.files.get(behind).map_or(source.len(), |file| file.start as usize);
        match behind.checked_sub(1).and_then(|before| self.files.get(before)) {
            Some(file) => (&file.name, file.start as usize, end.min(source.len())),
            None => (&self.name, 0, end.min(source.len())),
        }
    }

    /// `file:line:column` of `span`, for messages that name a second place.
    pub(crate) fn place(&self, source: &str, span: Span) -> String {
        let (name, first, last) = self.file(source, span.start);
        let text = source.get(first..last).unwrap_or_default();
        let at = floor_char(text, (span.start as usize).saturating_sub(first));
        let line_start = text[..at].rfind('\n').map_or(0, |at| at + 1);
        let line = text[..at].bytes().filter(|byte| *byte == b'\n').count() + 1;
        format!("{name}:{line}:{}", text[line_start..at].chars().count() + 1)
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
        let (file, first, last) = self.file(source, span.start);
        let file = file.to_owned();
        let source = source.get(first..last).unwrap_or_default();
        let start = floor_char(source, (span.start as usize).saturating_sub(first));
        let end = floor_char(source, (span.end as usize).saturating_sub(first)).max(start);
        let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = source[start..].find('\n').map_or(source.len(), |at| start + at);
        let column = source[line_start..start].chars().count();
        let skip = column.saturating_sub(QUOTE_CHARS / 2);
        let quote: String = source[line_start..line_end].chars().skip(skip).take(QUOTE_CHARS).collect();
        let width = source[start..end.min(line_end)].chars().count().clamp(1, QUOTE_CHARS / 2);
        self.items.push(Diagnostic {
            file,
            message: message.into(),
            line: source[..start].bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: column + 1,
            width,
            // A control character in the quote must not reach a terminal as such, and a tab would move the caret.
            quote: quote.trim_end().chars().map(|char| if char.is_control() { ' ' } else { char }).collect(),
            quote_column: column - skip,
            at: (first + start) as u32,
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
            writeln!(f, "{}:{}:{}: {}", item.file, item.line, item.column, item.message)?;
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
