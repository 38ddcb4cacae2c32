//! The ONNX file format: reading a file safely, and writing small ones.
//!
//! - [`proto`]: the messages, with the fields that are used.
//! - [`file`]: bytes or a path to a decoded model; external data; tensors.
//! - [`build`]: models written by tests and tools.
//! - Not here: what an operator means (`import`).

pub mod build;
pub(crate) mod file;
pub mod proto;

use crate::error::ModelError;
use crate::tensor::Tensor;

/// The tensor that a message holds, without external data.
///
/// # Errors
/// When the message does not hold what its shape and type say.
pub fn read_tensor(proto: &proto::TensorProto) -> Result<Tensor, ModelError> {
    file::TensorSource::in_memory().tensor(proto, &format!("tensor {:?}", proto.name))
}
