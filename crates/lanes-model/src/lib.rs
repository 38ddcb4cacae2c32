//! ONNX to a checked graph to plans; the kernel library. Never talks to a driver.
//!
//! - [`load`] imports a file: one lane's graph, states paired, lanes proved independent; [`inspect`] says what it found.
//! - [`oracle`] runs a graph plainly, node by node; everything faster is checked against it.
//! - [`lower`] turns a graph into a plan for a device.
//! - [`onnx::build`] writes small models.
#![deny(unsafe_code)]

pub mod error;
pub mod graph;
mod import;
pub mod lower;
pub mod model;
pub mod onnx;
pub mod oracle;
pub mod tensor;

pub use error::ModelError;
pub use graph::{Graph, Node, Op, ValueId, ValueInfo};
pub use import::{
    Dim, Given, ImportOptions, Inspection, PortInspection, Role, StateInspection, StatePair, Unsupported, inspect,
    inspect_bytes, load, load_bytes,
};
pub use model::{MixesLanes, Model, PerLane, StateValues};
pub use tensor::Tensor;
