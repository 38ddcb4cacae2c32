//! Random-weight stacks of LSTM cells as ONNX files: `lanes bench target/zoo/lstm-3x512.onnx --input x=noise`.

use crate::fetch::folder;
use crate::shell::{Chore, at, cargo, finish};
use std::path::PathBuf;

/// `cargo xtask stack`
#[derive(clap::Args)]
pub struct Options {
    /// Cells, one fed by the other
    #[arg(long, default_value_t = 3)]
    layers: usize,
    /// Width of each
    #[arg(long, default_value_t = 512)]
    width: usize,
    /// Of the weights: the same gives the same file
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where to; `target/zoo/lstm-LAYERSxWIDTH.onnx` of the repository if not given
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Writes it.
pub fn run(options: &Options) -> Chore {
    let Options { layers, width, seed, out } = options;
    let out = match out {
        // Of where the chore was started, which cargo does not run the example in.
        Some(out) => std::path::absolute(out).map_err(at(out))?,
        None => {
            let folder = folder();
            std::fs::create_dir_all(&folder).map_err(at(&folder))?;
            folder.join(format!("lstm-{layers}x{width}.onnx"))
        }
    };
    let mut example = cargo();
    example.args(["run", "--quiet", "--package", "lanes-model", "--example", "lstm_stack", "--"]);
    finish(example.args([layers.to_string(), width.to_string(), seed.to_string()]).arg(out))
}
