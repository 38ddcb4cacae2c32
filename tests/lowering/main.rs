//! Every operator lowered to plans on the CPU, against the oracle: models written by `onnx::build`, streams of very
//! different scale, each of which must be what it would be alone.

mod elementwise;
mod harness;
mod products;
mod random;
mod recurrent;
mod reductions;
mod shaping;
mod stacks;
mod states;
