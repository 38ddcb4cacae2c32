//! Loom text to a verified module to images. A pure library: no unsafe code, no device, no I/O.
//!
//! `text --parse--> syntax --build--> IR with calls and config --specialise--> Kernel --tile--> CpuImage`
#![deny(unsafe_code)]

pub mod eval;
pub mod ir;
pub mod launch;
pub mod math;
pub mod ops;
pub mod types;

/// A kernel compiled for the CPU backend's tile executor.
#[derive(Clone, Debug, Default)]
pub struct CpuImage {}
