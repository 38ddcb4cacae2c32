//! The promise that a clean release build of the default features takes under three minutes on two cores.

use crate::shell::{Chore, ChoreError, cargo, finish, root};
use std::time::Instant;

const MINUTES_MOST: f64 = 3.0;

/// Times it in a folder of its own; dependencies are downloaded beforehand.
pub fn run() -> Chore {
    finish(cargo().args(["fetch", "--locked"]))?;
    let folder = root().join("target/build-time");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(crate::shell::at(&folder))?;
    }
    let start = Instant::now();
    finish(cargo().args(["build", "--release", "--jobs", "2", "--offline", "--target-dir"]).arg(&folder))?;
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    println!("clean release build of the default features: {minutes:.2} minutes");
    if minutes > MINUTES_MOST {
        return Err(ChoreError::Words(format!("the build took {minutes:.2} minutes; {MINUTES_MOST} is the most")));
    }
    Ok(())
}
