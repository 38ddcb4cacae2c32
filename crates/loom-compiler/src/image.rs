//! Text to what the CPU backend loads, in one call.

use std::collections::BTreeMap;

use crate::diag::Diagnostics;
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
    let kernel = Module::parse(source_name, source)?.specialise(kernel, config)?;
    tile::compile(&kernel).map_err(|unsupported| {
        let mut diagnostics = Diagnostics::new(source_name);
        diagnostics.push(source, unsupported.span, format!("{} is not supported on the CPU", unsupported.what));
        diagnostics
    })
}
