//! What stands between a model and its device: tensors, and a bounded pool of inferences in flight.
//!
//! ```text
//! ModelContext ──┬─ Tensor ────────────────┐
//!                └─ prepare(capacity, ..) ─┴─> PreparedModel ──acquire──> Acquired ──submit──> Inference ──> Outputs
//! ```
//!
//! - [`ModelContext`]: a device that is opened when first needed, and its kernels, for everything that shares its budget.
//! - [`Tensor`]: memory of a device with a [`Descriptor`], that remembers who made what is there.
//! - [`PreparedModel`]: a plan recorded once per slot; who comes first gets the next free slot.
//! - Not here: regions and recording (`session`), streams with state (`lanes`).

mod acquire;
mod context;
mod descriptor;
mod download;
mod line;
mod prepare;
mod run;
mod slot;
mod storage;
mod tensor;

pub use acquire::{Acquire, Place, PreparedModel};
pub use context::{Devices, ModelContext};
pub use descriptor::{Descriptor, Layout, RANK_MAX};
pub use download::Download;
pub use prepare::{SlotBuilder, SlotPort, prepare};
pub use run::{Inference, Outputs};
pub use slot::Acquired;
pub use tensor::Tensor;

use crate::device::DeviceError;

fn invalid(what: String) -> DeviceError {
    DeviceError::Invalid { what }
}

/// What an error is about in the end.
fn root(error: &DeviceError) -> &DeviceError {
    let mut cause = error;
    while let DeviceError::Upstream(earlier) = cause {
        cause = earlier;
    }
    cause
}
