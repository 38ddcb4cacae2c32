//! Loom text to a verified module to images. A pure library: no unsafe code, no device, no I/O.
//!
//! ```text
//! text ──lex, syntax──> Module ──build: config bound, calls inlined, folded──passes──> ir::Kernel ──tile──> CpuImage
//!                                                                                  ├──ptx──> ptx::Image
//!                                                                                  └──interp──> its meaning, slowly
//! ```
//!
//! - [`Module::link`] makes one module of a text and of what it reaches in others.
//! - [`Module`] is any text whose tokens, nesting and symbols are right; `build` verifies each op that a kernel reaches.
//! - [`Module::format`] lays a module out in the one canonical way; [`Module::check`] reports everything that is wrong at once.
//! - [`ops`] says what an op means, [`eval`] computes it on bits: folding, launch programs, the interpreter and the tile
//!   executor share that one definition.
//! - Text is untrusted: no input panics, and nesting, inlining, vectors, scratch, steps and messages are bounded.
//! - Not here: running tiles (`backend-cpu`), and which kernels a model needs (`lanes-model`).
#![deny(unsafe_code)]

mod build;
pub mod check;
mod copies;
mod diag;
pub mod eval;
mod expand;
pub mod facts;
mod flow;
mod fold;
mod format;
pub mod fragment;
mod hoist;
mod image;
pub mod interp;
pub mod ir;
pub mod launch;
mod lex;
mod link;
pub mod math;
mod module;
mod opaque;
pub mod ops;
mod passes;
pub mod ptx;
mod reader;
mod simplify;
mod spelling;
mod syntax;
pub mod tile;
pub mod types;

pub use diag::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS};
pub use image::compile_cpu;
pub use module::{MAX_SOURCE_BYTES, Module};
pub use opaque::{Visible, layout_opaque};
pub use tile::{CpuImage, ImageError, MAX_IMAGE_BYTES, Origin};

/// This compiler: the crate's version, and a name for the state of its sources. Two with one version make the same images of
/// the same text and read each other's encoded ones.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("LOOM_COMPILER_SOURCES"));
