//! Running other programs, and saying in words what went wrong.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a chore stopped.
#[derive(Debug, thiserror::Error)]
pub enum ChoreError {
    /// A program could not be started.
    #[error("cannot start `{program}`: {why}")]
    Start {
        /// Its name.
        program: String,
        /// The system's answer.
        why: std::io::Error,
    },
    /// A program ended badly.
    #[error("`{line}` ended with {status}")]
    Ended {
        /// The command line.
        line: String,
        /// Its exit status.
        status: std::process::ExitStatus,
    },
    /// A file could not be read or written.
    #[error("{path}: {why}")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        why: std::io::Error,
    },
    /// Anything else, in words.
    #[error("{0}")]
    Words(String),
}

/// What a chore returns.
pub type Chore<T = ()> = Result<T, ChoreError>;

/// The repository's root.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// A file error with its path.
pub fn at(path: &Path) -> impl FnOnce(std::io::Error) -> ChoreError {
    let path = path.to_owned();
    move |why| ChoreError::File { path, why }
}

/// `cargo`, the one that started this.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// That `what` has `only` in its path: an error, with some of what there is.
pub fn none_chosen(what: &str, only: &str, names: impl IntoIterator<Item = impl std::fmt::Display>) -> ChoreError {
    const SHOWN: usize = 40;
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    let shown = names[..names.len().min(SHOWN)].join(", ");
    ChoreError::Words(format!("--only {only}: {what} has that in its path; there are {shown}{more}"))
}

/// Runs a program to its end, its output going where ours goes.
pub fn finish(command: &mut Command) -> Chore {
    let status = command
        .status()
        .map_err(|why| ChoreError::Start { program: command.get_program().to_string_lossy().into_owned(), why })?;
    if status.success() {
        return Ok(());
    }
    Err(ChoreError::Ended { line: line_of(command), status })
}

/// Runs a program to its end; what it printed on stdout.
pub fn output(command: &mut Command) -> Chore<String> {
    let done = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|why| ChoreError::Start { program: command.get_program().to_string_lossy().into_owned(), why })?;
    if !done.status.success() {
        return Err(ChoreError::Ended { line: line_of(command), status: done.status });
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_none_names_what_there_is() {
        let said = |count: usize| none_chosen("no file", "x", (0..count).map(|at| format!("f{at}"))).to_string();
        assert_eq!(said(2), "--only x: no file has that in its path; there are f0, f1");
        assert!(said(41).ends_with("f39 and 1 more"), "{}", said(41));
    }
}
