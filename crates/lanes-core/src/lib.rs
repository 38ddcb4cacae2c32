//! Lanes, rows and turns; devices, plans and hazards. No unsafe block, and no knowledge of any backend.
//!
//! `stream --call--> queue --seat--> turn --run over rows--> model --plan--> device`
//!
//! - [`signature`]: what a model asks for, declared once. Everything else is derived from it.
//! - [`lanes`]: streams, leases, the queue and the worker that forms turns.
//! - [`device`]: what every backend implements; buffers, images, executables, completions.
//! - [`plan`]: recorded commands over declared storage; [`hazard`]: the order they need; [`scratch`]: where what lives
//!   within a turn lies; [`planned`]: a plan on a device as a model that lanes can serve.
//! - [`compile`]: kernels from text to images, in batches, through a cache.
//! - [`checks`]: the cases that kernel texts carry, on a device.
//! - [`session`]: resident memory, kernels and recorded plans, without lanes.
//! - [`inference`]: what everything that runs on one device shares.
//! - Not here: ONNX (`lanes-model`), kernel text (`loom-compiler`), any driver (`backend-*`).
#![deny(unsafe_code)]

pub mod checks;
pub mod compile;
pub mod device;
pub mod dtype;
pub mod hazard;
pub mod inference;
pub mod lanes;
pub mod plan;
pub mod planned;
pub mod scratch;
pub mod session;
pub mod signature;

pub use dtype::DType;
pub use signature::{Port, Scope, Signature, StateKind, StateSpec};
