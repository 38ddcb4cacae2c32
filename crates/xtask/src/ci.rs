//! The steps of continuous integration, in order; the first that fails ends the run.

use crate::ptx;
use crate::shell::{Chore, cargo, finish};
use crate::zoo;
use std::time::Instant;

/// Runs all steps.
pub fn run() -> Chore {
    let start = Instant::now();
    step("format", || finish(cargo().args(["fmt", "--all", "--check"])))?;
    step("lints", || {
        let all = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
        finish(cargo().args(all))
    })?;
    step("tests", || finish(cargo().args(["test", "--workspace"])))?;
    // With a driver's library of the tests' own: no GPU is needed.
    step("tests with cuda", || {
        finish(cargo().args(["test", "--package", "lanes-cli", "--features", "cuda", "--test", "cli", "driver"]))
    })?;
    step("docs", || {
        let docs = ["doc", "--workspace", "--all-features", "--no-deps"];
        finish(cargo().env("RUSTDOCFLAGS", "-D warnings").args(docs))
    })?;
    step("ptx", || ptx::run(&ptx::Options::default()))?;
    step("zoo", || zoo::run(&zoo::Options::default()))?;
    println!("ci: all steps passed in {:.1} minutes", start.elapsed().as_secs_f64() / 60.0);
    Ok(())
}

fn step(name: &str, work: impl FnOnce() -> Chore) -> Chore {
    println!("ci: {name} …");
    let start = Instant::now();
    let done = work();
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    println!("ci: {name} {} after {minutes:.1} minutes", if done.is_ok() { "passed" } else { "FAILED" });
    done
}
