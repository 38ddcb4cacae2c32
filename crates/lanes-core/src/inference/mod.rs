//! What stands between a model and its device: one context, shared by all that run on it.
//!
//! - [`ModelContext`]: a device that is opened when first needed, and its kernels, for everything that shares its budget.
//! - Not here: resident memory and recorded plans (`session`), streams (`lanes`).

mod context;

pub use context::{Devices, ModelContext};
