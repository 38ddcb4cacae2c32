//! `--out DIR`: one array per output, in files that no two outputs share.
//!
//! - `NAME.npy`, as long as every character of the name is a letter, a digit, or one of `.`, `_` and `-`, it does not
//!   begin with a dot, and it is short enough for a file system.
//! - Otherwise `_` stands for what was found. A name cut short, or one that would meet another output's, ends in `~` and
//!   the output's place among the outputs, from 1. No name of the first kind has a `~`, so none meets that.

use crate::error::{CliError, CliResult};
use crate::{npy, say};
use lanes::Port;
use std::path::{Path, PathBuf};

/// The longest name that is kept whole. File systems take 255 bytes, and a file is written under a longer name first.
const NAME_BYTES_MAX: usize = 200;
/// Where file systems take names that differ by case alone for one.
const FOLDS_CASE: bool = cfg!(any(windows, target_os = "macos"));

/// The files of a run's outputs.
pub struct Out(Vec<PathBuf>);

impl Out {
    /// Makes the folder: what cannot be is found out before the work, not after it.
    pub fn make_folder(folder: &Path) -> CliResult {
        std::fs::create_dir_all(folder).map_err(|why| match folder.is_dir() {
            false if folder.exists() => CliError::usage(format!("--out {}: not a folder", folder.display())),
            _ => CliError::usage(format!("--out {}: {why}", folder.display())),
        })
    }

    /// Chooses a file in `folder` for each of `outputs`, and says which where it is not `NAME.npy`, and when there is
    /// none. A file that cannot be is refused.
    pub fn choose(folder: &Path, outputs: &[Port]) -> CliResult<Self> {
        if outputs.is_empty() {
            say::aside(&format!(
                "--out {}: no file is written, as the model's outputs are all states",
                folder.display()
            ));
        }
        let names: Vec<&str> = outputs.iter().map(|port| port.name.as_str()).collect();
        let stems = stems(&names, FOLDS_CASE);
        for (name, stem) in names.iter().zip(&stems) {
            if name != stem {
                say::aside(&format!("output `{name}` goes to {stem}.npy"));
            }
        }
        let files: Vec<_> = stems.into_iter().map(|stem| folder.join(format!("{stem}.npy"))).collect();
        for file in &files {
            npy::probe(file).map_err(|why| CliError::usage(format!("--out: {why}")))?;
        }
        Ok(Self(files))
    }

    /// Writes the values of `outputs`, `[stream, turn, …]` each.
    pub fn write(&self, outputs: &[Port], values: &[Vec<u8>], streams: usize, turns: usize) -> CliResult {
        for ((path, port), bytes) in self.0.iter().zip(outputs).zip(values) {
            let shape: Vec<usize> = [streams, turns].into_iter().chain(port.shape.iter().copied()).collect();
            npy::write(path, port.dtype, &shape, bytes)?;
        }
        Ok(())
    }
}

/// File names without their ending, one per output, no two equal.
fn stems(names: &[&str], folds_case: bool) -> Vec<String> {
    let safe: Vec<String> = names.iter().map(|name| safe(name)).collect();
    let key = |stem: &str| if folds_case { stem.to_lowercase() } else { stem.to_owned() };
    let altered = |at: usize| safe[at] != names[at];
    let stem = |at: usize| {
        let place = at + 1;
        // An ordinary name gives way to an earlier ordinary one, and any other to all.
        let gives_way = |to: usize| altered(at) || (to < at && !altered(to));
        let meets = (0..names.len()).any(|to| to != at && key(&safe[to]) == key(&safe[at]) && gives_way(to));
        if safe[at].len() > NAME_BYTES_MAX {
            let fits = safe[at].char_indices().take_while(|(start, c)| start + c.len_utf8() <= NAME_BYTES_MAX);
            format!("{}~{place}", fits.map(|(_, c)| c).collect::<String>())
        } else if meets {
            format!("{}~{place}", safe[at])
        } else {
            safe[at].clone()
        }
    };
    (0..names.len()).map(stem).collect()
}

/// `name` with what a path, or a file system, would read otherwise replaced.
fn safe(name: &str) -> String {
    let safe: String = name.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    // A file of a dot's own is hidden, or a folder.
    if safe.is_empty() || safe.starts_with('.') { format!("_{safe}") } else { safe }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_kept_and_no_two_outputs_share_a_file() {
        let long = "ü".repeat(200);
        for (names, folds_case, expected) in [
            (&["output", "a.b-c_1", "größe"][..], true, &["output", "a.b-c_1", "größe"][..]),
            (&["a/b:0"], false, &["a_b_0"]),
            (&["a/b", "a:b", "a_b"], false, &["a_b~1", "a_b~2", "a_b"]),
            (&["a_b", "a/b"], false, &["a_b", "a_b~2"]),
            (&["a~1", "a_1"], false, &["a_1~1", "a_1"]),
            (&["", ".", "..", "_", "../x", ".h"], false, &["_~1", "_.", "_..", "_", "_.._x", "_.h"]),
            (&["Y", "y"], false, &["Y", "y"]),
            (&["Y", "y", "a/", "A_"], true, &["Y", "y~2", "a_~3", "A_"]),
            (&[&long, "x"], false, &[&format!("{}~1", "ü".repeat(100)), "x"]),
        ] {
            assert_eq!(stems(names, folds_case), expected, "{names:?}");
        }
    }
}
