//! Loom text to a verified module to images. A pure library: no unsafe code, no device, no I/O.
//!
//! `text --parse--> syntax --build--> IR with calls and config --specialise--> Kernel --tile--> CpuImage`
#![deny(unsafe_code)]

mod build;
mod diag;
pub mod eval;
mod fold;
mod image;
pub mod interp;
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
pub use image::compile_cpu;
pub use module::{MAX_SOURCE_BYTES, Module};
pub use tile::CpuImage;
