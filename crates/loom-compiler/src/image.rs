//! Text to what the CPU backend loads, in one call.

use std::collections::BTreeMap;

use crate::diag::Diagnostics;
use crate::ir::Span;
use crate::module::Module;
use crate::tile::{self, CpuImage};

/// Parses `source` (called `source_name` in messages) and compiles `kernel`, a symbol or export name, with `config` bound.
///
/// # Errors
/// As [`Module::parse`] and [`Module::specialise`]; and what the tile compiler can not express, at the op it names.
pub fn compile_cpu(
    source_name: &str,
    source: &str,
    kernel: &str,
    config: &BTreeMap<String, String>,
) -> Result<CpuImage, Diagnostics> {
    Module::parse(source_name, source)?.compile_cpu(kernel, config)
}

impl Module {
    /// Compiles `kernel`, a symbol or export name, with `config` bound.
    ///
    /// # Errors
    /// As [`Self::specialise`]; and what the tile compiler can not express, at the op it names.
    pub fn compile_cpu(&self, kernel: &str, config: &BTreeMap<String, String>) -> Result<CpuImage, Diagnostics> {
        let kernel = self.specialise(kernel, config)?;
        tile::compile(&kernel).map_err(|unsupported| {
            self.refusal(unsupported.span, &format!("{} is not supported on the CPU", unsupported.what))
        })
    }

    /// One refusal at `span` of the text: what an emitter says of an op that it does not express.
    pub fn refusal(&self, span: Span, message: &str) -> Diagnostics {
        let mut diagnostics = Diagnostics::of_files(&self.name, &self.files);
        diagnostics.push(&self.source, span, message);
        diagnostics
    }
}
