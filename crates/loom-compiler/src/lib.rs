//! Loom text to a verified module to images. A pure library: no unsafe code, no device, no I/O.
#![deny(unsafe_code)]

pub mod math;

/// A kernel compiled for the CPU backend's tile executor.
#[derive(Clone, Debug, Default)]
pub struct CpuImage {}
