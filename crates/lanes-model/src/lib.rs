//! ONNX to a checked graph to plans; the kernel library.
#![deny(unsafe_code)]

pub mod graph;
pub mod lower;
pub mod model;
pub mod tensor;

pub use graph::{Graph, Node, Op, ValueId, ValueInfo};
pub use model::{MixesLanes, Model, PerLane, StateValues};
pub use tensor::Tensor;
