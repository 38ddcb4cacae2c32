//! One small archive that proves the CUDA backend on a machine with a GPU and without Rust.
//!
//! ```text
//! lanes-bundle/  run.sh   gpu_beside.py   commit   bin/ conformance null_turn products proofs lanes lstm_stack   models/
//! ```
//!
//! - Binaries are the release profile's, stripped. They need the C library alone, no newer than [`GLIBC_MOST`], which is checked.
//! - `run.sh` runs everything, or the parts that it is given, writes a report, and ends with 1 if a part failed.

use crate::shell::{Chore, ChoreError, at, cargo, finish, output, root};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest C library that binaries must run with.
const GLIBC_MOST: (u32, u32) = (2, 36);

/// The most bytes of an archive.
const BYTES_MAX: u64 = 64 << 20;

const EXAMPLES: [&str; 3] = ["null_turn", "products", "proofs"];

/// What makes models that are too large to take along.
const STACK: &str = "lstm_stack";

/// Ours beside PyTorch, where there is one.
const BESIDE: &str = "gpu_beside.py";

/// `cargo xtask bundle`
#[derive(clap::Args)]
pub struct Options {
    /// Where the archive goes; `target/lanes-bundle.tar.gz` of the repository if not given
    #[arg(long)]
    out: Option<PathBuf>,
    /// A model, FILE.onnx, to take along beside those of `models/`; repeatable. All its inputs are generated
    #[arg(long)]
    model: Vec<PathBuf>,
}

/// Builds, packs and checks it.
pub fn run(options: &Options) -> Chore {
    // Before what takes minutes.
    let models = named(&options.model)?;
    let out = options.out.clone().unwrap_or_else(|| root().join("target/lanes-bundle.tar.gz"));
    if out.is_dir() {
        return Err(ChoreError::Words(format!(
            "--out {}: found a folder; the path of a file is accepted",
            out.display()
        )));
    }
    let folder = root().join("target/bundle/lanes-bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at(&folder))?;
    }
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).map_err(at(&bin))?;

    let cuda = ["--release", "-p", "backend-cuda", "--features", "instruments"];
    let mut built = cargo();
    built.arg("test").args(cuda).args([
        "--test",
        "conformance",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    take(Path::new(&executable(&output(&mut built)?, "conformance")?), &bin.join("conformance"))?;
    let mut examples = cargo();
    examples.arg("build").args(cuda);
    for name in EXAMPLES {
        examples.args(["--example", name]);
    }
    finish(&mut examples)?;
    finish(cargo().args(["build", "--release", "-p", "lanes-model", "--example", STACK]))?;
    for name in EXAMPLES.into_iter().chain([STACK]) {
        take(&root().join("target/release/examples").join(name), &bin.join(name))?;
    }
    finish(cargo().args(["build", "--release", "-p", "lanes-cli", "--features", "cuda"]))?;
    take(&root().join("target/release/lanes"), &bin.join("lanes"))?;

    for name in ["vad.onnx", "speech"] {
        copy_all(&root().join("models/vad").join(name), &folder.join("models/vad").join(name))?;
    }
    for (name, model) in models {
        copy_all(model, &folder.join("models/more").join(name))?;
    }
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(root()).args(arguments));
    let changed = if git(&["status", "--porcelain"])?.is_empty() { "" } else { ", with changes" };
    let commit = format!("{}{changed}\n", git(&["log", "-1", "--format=%H of %cs"])?.trim());
    write(&folder.join("commit"), &commit)?;
    write(&folder.join("run.sh"), RUN)?;
    finish(Command::new("chmod").arg("+x").arg(folder.join("run.sh")))?;
    copy_all(&root().join("bench/peers").join(BESIDE), &folder.join(BESIDE))?;
    if let Some(parent) = out.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(at(parent))?;
    }
    finish(Command::new("tar").arg("-czf").arg(&out).arg("-C").arg(root().join("target/bundle")).arg("lanes-bundle"))?;
    let bytes = fs::metadata(&out).map_err(at(&out))?.len();
    if bytes > BYTES_MAX {
        return Err(ChoreError::Words(format!(
            "{}: {bytes} bytes, and at most {BYTES_MAX} are allowed",
            out.display()
        )));
    }
    println!("{}: {:.1} MiB, {commit}", out.display(), bytes as f64 / f64::from(1 << 20));
    Ok(())
}

/// Models by the name that each has in the archive.
fn named(models: &[PathBuf]) -> Chore<BTreeMap<&OsStr, &Path>> {
    let mut by_name = BTreeMap::new();
    for model in models {
        let refused = |found: &str| {
            let accepted = "a file whose name ends in .onnx, and that no other has, is accepted";
            Err(ChoreError::Words(format!("--model {}: found {found}; {accepted}", model.display())))
        };
        let Some(name) = model.file_name().filter(|_| model.extension().is_some_and(|ending| ending == "onnx")) else {
            return refused("another name");
        };
        if !model.is_file() {
            return refused(if model.exists() { "no file" } else { "nothing" });
        }
        if let Some(other) = by_name.insert(name, &**model) {
            return refused(&format!("the name of {}", other.display()));
        }
    }
    Ok(by_name)
}

fn write(path: &Path, text: &str) -> Chore {
    fs::write(path, text).map_err(at(path))
}

/// The path of the test binary `name` in what cargo printed, a JSON object a line.
fn executable(printed: &str, name: &str) -> Chore<String> {
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut found = messages.filter(|message| message["target"]["name"] == name);
    let path = found.find_map(|message| message["executable"].as_str().map(str::to_owned));
    path.ok_or_else(|| ChoreError::Words(format!("cargo built no {name}")))
}

/// Copies a binary without its symbols, once it is sure that it starts where it has to.
fn take(from: &Path, to: &Path) -> Chore {
    let bytes = fs::read(from).map_err(at(from))?;
    let newest = glibc(&bytes);
    if newest > GLIBC_MOST {
        let ((a, b), (c, d)) = (newest, GLIBC_MOST);
        return Err(ChoreError::Words(format!("{} needs glibc {a}.{b}, and {c}.{d} is to do", from.display())));
    }
    fs::copy(from, to).map_err(at(to))?;
    finish(Command::new("strip").arg(to))
}

/// The newest version of the C library that a binary names.
fn glibc(bytes: &[u8]) -> (u32, u32) {
    const NAME: &[u8] = b"GLIBC_";
    let starts = bytes.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME).map(|(at, _)| at);
    let version = |at: usize| {
        let rest = &bytes[at + NAME.len()..];
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        let mut numbers = std::str::from_utf8(&rest[..len]).ok()?.split('.').map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    starts.filter_map(version).max().unwrap_or((0, 0))
}

/// Copies a file, or a folder with all in it.
fn copy_all(from: &Path, to: &Path) -> Chore {
    if !from.is_dir() {
        let parent = to.parent().unwrap_or(to);
        fs::create_dir_all(parent).map_err(at(parent))?;
        return fs::copy(from, to).map(|_| ()).map_err(at(from));
    }
    for entry in fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        copy_all(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// What runs it all.
const RUN: &str = include_str!("run.sh");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_that_is_named_is_found() {
        assert_eq!(glibc(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_"), (2, 34));
        assert_eq!(glibc(b""), (0, 0));
    }

    #[test]
    fn the_binary_is_the_one_of_that_name() {
        let printed = "{\"target\":{\"name\":\"a\"},\"executable\":\"/a\"}\nwarning\n{\"target\":{\"name\":\"b\"},\"executable\":null}\n\
                       {\"target\":{\"name\":\"b\"},\"executable\":\"/b\"}";
        assert_eq!(executable(printed, "b").ok().as_deref(), Some("/b"));
        assert!(executable(printed, "c").is_err());
    }
    /// What a run there would not find, or find only one of, is refused before anything is built.
    #[test]
    fn models_are_files_with_names_of_their_own() {
        let here = root().join("models/vad");
        let said = |names: &[&str]| {
            let models: Vec<PathBuf> = names.iter().map(|name| here.join(name)).collect();
            named(&models).map(|models| models.len()).map_err(|why| why.to_string())
        };
        assert_eq!(said(&[]), Ok(0));
        assert_eq!(said(&["vad.onnx"]), Ok(1));
        for (names, found) in [
            (&["none.onnx"][..], "found nothing"),
            (&["speech"], "found another name"),
            (&[".."], "found another name"),
            (&["vad.onnx", "../vad/vad.onnx"], "found the name of"),
        ] {
            let why = said(names).unwrap_err();
            assert!(why.starts_with("--model ") && why.contains(found) && why.contains(".onnx, "), "{why}");
        }
    }
}
