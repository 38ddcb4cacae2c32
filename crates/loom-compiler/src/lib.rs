//! Loom text to a verified module to images. A pure library: no unsafe code, no device, no I/O.
//!
//! `text --parse--> syntax --build--> IR with calls and config --specialise--> Kernel --tile--> CpuImage`
#![deny(unsafe_code)]

mod build;
mod diag;
pub mod eval;
mod fold;
pub mod ir;
pub mod launch;
mod lex;
pub mod math;
mod module;
pub mod ops;
mod reader;
mod simplify;
mod syntax;
pub mod tile;
pub mod types;

pub use diag::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS};
pub use module::{MAX_SOURCE_BYTES, Module};
pub use tile::CpuImage;

use std::collections::BTreeMap;

/// Why a kernel's text gave no image.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The text, or how it is configured, is wrong.
    #[error("{0}")]
    Source(Diagnostics),
    /// The text is right, and uses what the target cannot do.
    #[error(transparent)]
    Unsupported(#[from] tile::Unsupported),
}

/// Compiles the kernel `kernel` (symbol or export name) of one source for the CPU backend, with `config` bound.
///
/// # Errors
/// Everything wrong with the text, with file (`name`), line and caret; or the op that the tile executor does not have.
pub fn compile_cpu(
    name: &str,
    source: &str,
    kernel: &str,
    config: &BTreeMap<String, String>,
) -> Result<CpuImage, CompileError> {
    let kernel = Module::parse(name, source)
        .and_then(|module| module.specialise(kernel, config))
        .map_err(CompileError::Source)?;
    Ok(tile::compile(&kernel)?)
}
