//! From a checked graph to a plan over lanes: contractions, Loom kernels, copies and fills.
//!
//! `Graph --rewrite--> Mid --fuse--> Mid --emit--> Plan`
//!
//! The graph is one lane's worth of the model; a plan says what is computed for each seat; so lowering never meets the
//! lane axis, and what it computes for a seat cannot depend on another.
//!
//! - Values are views of storages. A transpose, a slice, a reshape moves nothing where strides can say it, and whoever
//!   makes a value writes it where its reader wants it: in the middle of a padded window, as one piece of a
//!   concatenation, channels innermost for a convolution.
//! - A state's row is kept in the order its readers want, whatever the model's own; [`Lowered::signature`] has the
//!   initial values in that order.
//! - Not here: lanes and their proofs (`import`), and how a command runs (`backend-*`).

mod emit;
mod expr;
mod fuse;
mod kernels;
mod known;
mod mid;
mod rewrite;
mod view;

pub use emit::{Lowered, lower};

/// Something in the graph that has no lowering.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} ({op}) cannot be lowered: {why}")]
pub struct LowerError {
    /// The node's name.
    pub node: String,
    /// The operator's name in the model.
    pub op: String,
    /// What was found, and what is supported.
    pub why: String,
}
