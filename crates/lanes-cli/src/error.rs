//! How a command ends when it does not end well.

use std::fmt;
use std::path::Path;

/// One paragraph for the user, and the exit status that goes with it.
#[derive(Debug)]
pub enum CliError {
    /// The input or the usage is wrong: exit 2.
    Usage(String),
    /// A check found a difference, or a run failed: exit 1.
    Failed(String),
    /// Nobody reads stdout any more, so the rest was not done: exit 1, without a word.
    ReaderGone,
}

impl CliError {
    /// A usage error.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// A failure.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    /// A file that could not be read, written or understood.
    pub fn file(path: &Path, why: impl fmt::Display) -> Self {
        Self::Usage(format!("{}: {why}", path.display()))
    }

    /// The exit status.
    pub const fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) | Self::ReaderGone => 1,
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Failed(text) => f.write_str(text),
            Self::ReaderGone => f.write_str("nobody reads stdout"),
        }
    }
}

/// What every command returns.
pub type CliResult<T = ()> = Result<T, CliError>;
