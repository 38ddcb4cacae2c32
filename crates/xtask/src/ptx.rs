//! Every kernel of the project as PTX, assembled by NVIDIA's `ptxas` for the targets that count; no GPU is needed. Those of `backend-cuda`
//! are by its own tests, which get the assembler's path.
//!
//! - The assembler is fetched by version and hash: a newer one accepts versions of PTX that the driver of today refuses.
//! - Registers and spilled bytes of each kernel are compared with `ptx-registers.txt` among the compiler's golden files, so that a change that costs some is seen;
//!   `--bless` writes it anew.

use crate::fetch;
use crate::shell::{Chore, ChoreError, at, cargo, finish, none_chosen, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// For which the emitter chooses instructions, and for which its texts are assembled.
const TARGETS: [&str; 5] = ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_120"];

/// `cargo xtask ptx`
#[derive(clap::Args, Default)]
pub struct Options {
    /// Write the table of registers anew
    #[arg(long)]
    bless: bool,
    /// Only kernels whose file contains this; the table is not compared
    #[arg(long, default_value = "")]
    only: String,
}

/// Registers and spilled bytes of a kernel, by target.
type Table = BTreeMap<String, BTreeMap<&'static str, (u32, u32)>>;

/// Runs it.
pub fn run(options: &Options) -> Chore {
    let ptxas = fetch::ptxas()?;
    let mut sources = Vec::new();
    for folder in ["crates/tests/loom", "crates/tests/kernels"] {
        let folder = root().join(folder);
        for entry in std::fs::read_dir(&folder).map_err(at(&folder))?.flatten() {
            sources.push(entry.path());
        }
    }
    sources.retain(|path| path.extension().is_some_and(|ending| ending == "loom"));
    sources.sort();
    let (mut jobs, mut others) = (Vec::new(), BTreeSet::new());
    for target in TARGETS {
        for checked in [false, true] {
            // Checks are the same on every target; one is enough.
            if checked && target != "sm_90" {
                continue;
            }
            let out = root().join("target/ptx").join(if checked { "checked" } else { target });
            write_texts(&out, target, checked, &sources)?;
            for entry in std::fs::read_dir(&out).map_err(at(&out))?.flatten() {
                let path = entry.path();
                if path.extension().is_none_or(|ending| ending != "ptx") {
                    continue;
                }
                if path.to_string_lossy().contains(&options.only) {
                    jobs.push((path, target, checked));
                } else {
                    others.insert(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
    }
    if jobs.is_empty() {
        return Err(none_chosen("no text", &options.only, &others));
    }
    jobs.sort();
    println!("ptx: {} texts", jobs.len());
    let (table, wrong) = assemble(&ptxas, &jobs);
    for words in &wrong {
        println!("{words}");
    }
    if !wrong.is_empty() {
        return Err(ChoreError::Words(format!("{} texts do not assemble", wrong.len())));
    }
    if !options.only.is_empty() {
        return Ok(());
    }
    // What the CUDA backend writes by itself: moves, and contractions in every tile.
    let tests = ["test", "--package", "backend-cuda", "--lib", "--", "assembler", "texts_of_contractions_compile"];
    finish(cargo().args(tests).env("PTXAS", &ptxas))?;
    compare(&table, options.bless)
}

/// The texts of all kernels, in an empty folder.
fn write_texts(out: &Path, target: &str, checked: bool, sources: &[PathBuf]) -> Chore {
    if out.exists() {
        std::fs::remove_dir_all(out).map_err(at(out))?;
    }
    let mut tool = cargo();
    tool.args(["run", "--quiet", "--package", "loom-compiler", "--example", "ptx_cases", "--"]);
    tool.arg(out).args(["--no-cases", "--config", "rows.width=128", "--target", target]);
    if checked {
        tool.arg("--checked");
    }
    finish(tool.args(sources))
}

/// Assembles all, on all processors: what each kernel takes, and what went wrong.
fn assemble(ptxas: &Path, jobs: &[(PathBuf, &'static str, bool)]) -> (Table, Vec<String>) {
    let next = AtomicUsize::new(0);
    let found = Mutex::new((Table::new(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((path, target, checked)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let taken = assemble_one(ptxas, path, target);
                    let mut found = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match taken {
                        Ok(taken) if !checked => {
                            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                            found.0.entry(name).or_default().insert(target, taken);
                        }
                        Ok(_) => {}
                        Err(why) => found.1.push(format!("{} for {target}: {why}", path.display())),
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Registers and spilled bytes of a text, or what the assembler says.
fn assemble_one(ptxas: &Path, path: &Path, target: &str) -> Result<(u32, u32), String> {
    let mut command = Command::new(ptxas);
    command.args(["-v", "-o", "/dev/null", "-arch", target]).arg(path);
    let done = command.output().map_err(|why| format!("cannot start {}: {why}", ptxas.display()))?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
    if !done.status.success() {
        return Err(said.lines().take(3).collect::<Vec<_>>().join("; "));
    }
    // "Used 20 registers, ..", "0 bytes spill stores, 8 bytes spill loads"
    let before = |words: &str| {
        let at = said.find(words)?;
        said[..at].split_whitespace().next_back()?.parse::<u32>().ok()
    };
    let registers = before(" registers").ok_or_else(|| format!("says no registers: {said}"))?;
    Ok((registers, before(" bytes spill stores").unwrap_or(0)))
}

/// Compares with the table that is kept, or writes it.
fn compare(table: &Table, bless: bool) -> Chore {
    let path = root().join("crates/loom-compiler/tests/golden/ptx-registers.txt");
    let mut lines =
        vec![format!("# registers/spilled bytes for {}; `cargo xtask ptx --bless` writes this", TARGETS.join(", "))];
    for (kernel, taken) in table {
        let row = TARGETS.map(|target| match taken.get(target) {
            Some((registers, 0)) => registers.to_string(),
            Some((registers, spilled)) => format!("{registers}/{spilled}"),
            None => "-".to_owned(),
        });
        lines.push(format!("{kernel}: {}", row.join(" ")));
    }
    let found = lines.join("\n") + "\n";
    if bless {
        return std::fs::write(&path, found).map_err(at(&path));
    }
    let kept = std::fs::read_to_string(&path).map_err(at(&path))?;
    let differ: Vec<String> = kept
        .lines()
        .filter(|line| !lines.iter().any(|other| other == line))
        .map(|line| format!("- {line}"))
        .chain(lines.iter().filter(|line| !kept.lines().any(|other| other == *line)).map(|line| format!("+ {line}")))
        .collect();
    if differ.is_empty() {
        println!("ptx: {} kernels assemble for {}", table.len(), TARGETS.join(", "));
        return Ok(());
    }
    differ.iter().for_each(|line| println!("{line}"));
    Err(ChoreError::Words(format!("{} differs; if that is meant, `cargo xtask ptx --bless`", path.display())))
}
