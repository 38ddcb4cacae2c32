//! Many stateful streams through one resident model, on any accelerator.
//!
//! ```text
//! onnx::load ──> Model ──lower──> PlannedModel on a Device ──> LanesBuilder ──> Runnable ──spawn──> Stream ──call──> Outputs
//! ```
//!
//! ```
//! use lanes::lanes::{LanesBuilder, Value};
//!
//! use lanes::onnx::build::ModelBuilder;
//!
//! // A model of one's own making: [batch, 64] times 2. `onnx::load` reads a file.
//! let bytes = ModelBuilder::new(18)
//!     .input("x", lanes::DType::F32, &["batch", "64"])
//!     .tensor("two", &lanes::onnx::Tensor::scalar(2f32))
//!     .node("Mul", &["x", "two"], &["y"], &[])
//!     .output("y", lanes::DType::F32, &["batch", "64"])
//!     .encode();
//! let model = lanes::onnx::load_bytes(bytes, "null", &lanes::onnx::ImportOptions::default())?;
//! let device = lanes::open("cpu", &lanes::OpenOptions::default())?;
//! let runnable = LanesBuilder::new(lanes::planned(device, &model)?).lanes(4).build()?;
//!
//! let stream = runnable.spawn_blocking()?;
//! let outputs = stream.call_blocking(&[Value::new(&[64], &[1.5f32; 64])])?;
//! assert_eq!(outputs.get::<f32>(0), Some(&[3.0f32; 64][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod backends;

pub use backends::{Absent, BackendError, Backends, OpenOptions, absent, devices, open};
pub use lanes_core::*;
/// Loom kernels: text to verified modules to images.
pub use loom_compiler as loom;

use std::sync::Arc;

/// ONNX files: import, inspection, the oracle, and the lowering to plans.
pub mod onnx {
    pub use lanes_model::onnx::build;
    pub use lanes_model::*;
}

/// Why a model cannot be served on a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Something in the model has no lowering.
    #[error(transparent)]
    Lower(#[from] lanes_model::lower::LowerError),
    /// The device does not take the plan.
    #[error(transparent)]
    Device(#[from] device::DeviceError),
}

/// A model lowered for a device, ready for [`lanes::LanesBuilder`].
///
/// # Errors
/// [`PlanError::Lower`] names the node that has no lowering; [`PlanError::Device`] comes from the device's own checks.
pub fn planned(
    device: Arc<dyn device::Device>,
    model: &lanes_model::Model,
) -> Result<planned::PlannedModel, PlanError> {
    planned_in(device, model, plan::Precision::F32)
}

/// [`planned()`] with the operands of products and convolutions rounded to `precision`; everything else is computed as it is there.
///
/// # Errors
/// As [`planned()`]; also [`device::DeviceError::Unsupported`] where the device has no such products.
pub fn planned_in(
    device: Arc<dyn device::Device>,
    model: &lanes_model::Model,
    precision: plan::Precision,
) -> Result<planned::PlannedModel, PlanError> {
    let lowered = lanes_model::lower::lower(model)?;
    let plan = lowered.plan.with_precision(precision);
    Ok(planned::PlannedModel::refusing(device, plan, lowered.signature, lowered.reasons)?)
}

/// Runs the examples of the book.
#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../docs/sessions.md")]
struct SessionsByExample;

#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../docs/inference.md")]
struct InferenceByExample;

#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../docs/stages.md")]
struct StagesByExample;
