//! Writes a stack of LSTM cells with random weights as an ONNX file: `cargo xtask stack`.
//!
//! `cargo run --example lstm_stack -- LAYERS WIDTH SEED FILE`

use lanes_model::onnx::build::LstmStack;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [layers, width, seed, file] = &arguments[..] else { return Err("lstm_stack LAYERS WIDTH SEED FILE".into()) };
    let bytes = LstmStack::random(layers.parse()?, width.parse()?, seed.parse()?).encode();
    std::fs::write(file, &bytes)?;
    println!("{file}: {} bytes", bytes.len());
    Ok(())
}
