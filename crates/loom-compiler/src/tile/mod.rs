//! A verified kernel to a tile program.
//!
//! `Kernel --places, butterfly--> Kernel --uniform, liveness--> compile --> Program`, kept with what a launch needs as a [`CpuImage`].
//!
//! - What this compiler can not express is an [`Unsupported`] error that names the op; nothing is approximated.
//! - Not here: running it (`backend-cpu`), and the meaning of single ops (`eval`).

mod butterfly;
mod compile;
mod encode;
mod frame;
mod liveness;
mod places;
mod program;
mod uniform;
mod validate;

pub use encode::{ImageError, MAX_IMAGE_BYTES};
pub(crate) use places::settle;
pub use program::*;
pub(crate) use uniform::{varying_in_subgroup, varying_in_subgroups};

use crate::copies;
use crate::ir::{Kernel, Parameter, SourceDigest, Span};
use crate::launch::LaunchProgram;
use crate::ops::Atomic;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an image was compiled from: a device of another kind compiles the same kernel for itself out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The texts by name, the one that was linked to first.
    pub texts: Vec<(String, String)>,
    /// The symbol or export name that was asked for.
    pub kernel: String,
    /// Values of `config` declarations.
    pub config: BTreeMap<String, String>,
}

/// A kernel compiled for the CPU backend's tile executor. Every access is checked when it runs, so no image needs trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuImage {
    /// The export name.
    pub name: String,
    /// Which kernel it is of, whatever compiled it and for what; as [`Kernel::source`].
    pub source: SourceDigest,
    /// Launch arguments, in order.
    pub parameters: Vec<Parameter>,
    /// Computes the number of workgroups from workload arguments.
    pub launch: LaunchProgram,
    /// What it was compiled from, where that was a text; [`compile`] alone does not know.
    pub origin: Option<Box<Origin>>,
    /// Private, so that every program was made by [`compile`] or passed [`validate`]: an executor relies on its indices.
    program: Program,
}

impl CpuImage {
    /// What every launch runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether some instruction stores to launch argument `argument`.
    pub fn stores_to(&self, argument: usize) -> bool {
        let is_it = |buffer: u32| match self.program.buffers.get(buffer as usize) {
            Some(Buffer::Argument(at)) => *at as usize == argument,
            Some(Buffer::Workgroup { .. } | Buffer::Private { .. } | Buffer::Constant { .. }) | None => false,
        };
        self.program.blocks.iter().flatten().any(|inst| match inst {
            Inst::Map { to: Target::Memory(access), .. } => is_it(access.buffer),
            Inst::Atomic { atomic: Atomic::Load, .. } => false,
            Inst::Atomic { access, .. } => is_it(access.buffer),
            Inst::FragmentStore(access) => is_it(access.buffer),
            Inst::Map { to: Target::Reg(_), .. }
            | Inst::Scalar(_)
            | Inst::LoadScalar { .. }
            | Inst::MapSegments { .. }
            | Inst::Spread { .. }
            | Inst::If { .. }
            | Inst::For { .. }
            | Inst::Loop { .. }
            | Inst::Heads(_)
            | Inst::Turns(_)
            | Inst::Fold(_)
            | Inst::Fence
            | Inst::Reduce { .. }
            | Inst::Shuffle { .. }
            | Inst::Scan { .. }
            | Inst::Broadcast { .. }
            | Inst::Ballot { .. }
            | Inst::Match { .. }
            | Inst::Assert { .. }
            | Inst::FragmentLoad(_)
            | Inst::Mma(_)
            | Inst::FragmentRepack(_) => false,
        })
    }
}

/// What the tile compiler can not express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}`: {what} at byte {} of the source is not supported on the CPU", span.start)]
pub struct Unsupported {
    /// The kernel's export name.
    pub kernel: String,
    /// The op, and what about it.
    pub what: String,
    /// Where it was written.
    pub span: Span,
}

/// Compiles `kernel` for the tile executor.
pub fn compile(kernel: &Kernel) -> Result<CpuImage, Unsupported> {
    let made = copies::at_once(kernel);
    let kernel = made.as_ref().unwrap_or(kernel);
    let settled = places::settle(kernel)?;
    let kernel = settled.as_ref().unwrap_or(kernel);
    let gathered = butterfly::gather(kernel);
    let kernel = gathered.as_ref().unwrap_or(kernel);
    let program = compile::program(kernel)?;
    Ok(CpuImage {
        name: kernel.name.clone(),
        source: kernel.source,
        parameters: kernel.parameters.clone(),
        launch: kernel.launch.clone(),
        origin: None,
        program,
    })
}
