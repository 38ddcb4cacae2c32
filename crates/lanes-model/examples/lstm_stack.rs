//! Writes a stack of LSTM cells with random weights as an ONNX file: `cargo xtask stack`.
//!
//! `lstm_stack LAYERS WIDTH SEED FILE`. The binary needs nothing beside it, so that a machine without Rust makes what is too large to carry.
//! Exit status: 0 written, 2 what was asked for cannot be.

use lanes_model::onnx::build::LstmStack;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

fn main() -> ExitCode {
    match written(&std::env::args_os().skip(1).collect::<Vec<_>>()) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("lstm_stack: {why}");
            ExitCode::from(2)
        }
    }
}

/// What was written, or why nothing is.
fn written(arguments: &[OsString]) -> Result<String, String> {
    let [layers, width, seed, file] = arguments else {
        return Err(format!("found {} arguments; LAYERS WIDTH SEED FILE are accepted", arguments.len()));
    };
    let [layers, width] = [whole("LAYERS", layers)?, whole("WIDTH", width)?];
    let (seed, file) = (whole("SEED", seed)?, Path::new(file));
    LstmStack::weight_bytes(layers, width).ok_or_else(|| {
        let least = "at least one cell, at least one wide, with less than 2 GiB of weights in all";
        format!("found {layers} cells of width {width}; {least} is accepted")
    })?;
    let bytes = LstmStack::random(layers, width, seed).encode();
    std::fs::write(file, &bytes).map_err(|why| format!("{}: {why}", file.display()))?;
    Ok(format!("{}: {} bytes", file.display(), bytes.len()))
}

fn whole<T: FromStr>(name: &str, given: &OsStr) -> Result<T, String> {
    let given = given.to_string_lossy();
    given.parse().map_err(|_| format!("{name}: found {given:?}; a whole number is accepted"))
}
