//! What the CPU backend loads: a kernel's interface and its program.

use std::collections::BTreeMap;

use crate::diag::Diagnostics;
use crate::ir::{Kernel, Parameter};
use crate::launch::{Geometry, LaunchError, LaunchProgram};
use crate::module::Module;

/// A kernel compiled for the CPU backend's tile executor.
#[derive(Clone, Debug, Default)]
pub struct CpuImage {
    /// The kernel's export name, or its symbol.
    pub name: String,
    /// Launch arguments, in order.
    pub parameters: Vec<Parameter>,
    /// Computes the geometry.
    pub launch: LaunchProgram,
}

impl CpuImage {
    /// The image of a specialised kernel.
    pub fn new(kernel: &Kernel) -> Self {
        Self {
            name: kernel.name.clone(),
            parameters: kernel.parameters.clone(),
            launch: kernel.launch.clone(),
        }
    }

    /// How many workgroups of which size these workload arguments ask for.
    ///
    /// # Errors
    /// As [`LaunchProgram::geometry`].
    pub fn geometry(&self, workload: &[u64]) -> Result<Geometry, LaunchError> {
        self.launch.geometry(workload)
    }
}

/// Parses `source` (called `source_name` in messages) and compiles `kernel`, a symbol or export name, with `config` bound.
///
/// # Errors
/// As [`Module::parse`] and [`Module::specialise`].
pub fn compile_cpu(
    source_name: &str,
    source: &str,
    kernel: &str,
    config: &BTreeMap<String, String>,
) -> Result<CpuImage, Diagnostics> {
    let kernel = Module::parse(source_name, source)?.specialise(kernel, config)?;
    Ok(CpuImage::new(&kernel))
}
