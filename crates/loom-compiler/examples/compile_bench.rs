//! How long kernels take to compile: text to verified module to image of the CPU, each kernel of each file.
//! `cargo run --release -p loom-compiler --example compile_bench [rounds [FILE.loom...]]`, without files the project's own.
//!
//! Prints for each file its kernels and the median time of the rounds, in milliseconds; then the sum, and the bar of the
//! library: 200 ms. Kernels that need config values, or hold more than the CPU runs, are counted apart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use loom_compiler::{Module, tile};

fn own() -> Vec<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let mut files = Vec::new();
    for folder in ["kernels", "loom"] {
        let entries = std::fs::read_dir(tests.join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "loom"));
    files.sort();
    files
}

/// Kernels compiled, and those that were not.
fn compile(name: &str, text: &str) -> (usize, usize) {
    let module = Module::parse(name, text).unwrap_or_else(|e| panic!("{e}"));
    module.verify().unwrap_or_else(|e| panic!("{e}"));
    let kernels = module.kernels();
    let image = |kernel: &String| {
        let kernel = module.specialise(kernel, &BTreeMap::new()).ok()?;
        tile::compile(&kernel).ok()
    };
    let compiled = kernels.iter().filter_map(image).count();
    (compiled, kernels.len() - compiled)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(5usize).max(1);
    let mut files: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    if files.is_empty() {
        files = own();
    }
    let (mut sum, mut kernels) = (0.0, 0);
    for file in &files {
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut times = Vec::with_capacity(rounds);
        let mut counts = (0, 0);
        for _ in 0..rounds {
            let start = Instant::now();
            counts = compile(&name, &text);
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let time = times[rounds / 2];
        println!("{name:28} {:4} kernels, {:2} left out {time:8.2} ms", counts.0, counts.1);
        (sum, kernels) = (sum + time, kernels + counts.0);
    }
    println!("{:28} {kernels:4} kernels {:21.2} ms, wanted ≤ 200", "all", sum);
}
