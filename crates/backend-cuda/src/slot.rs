//! What a slot owns: its staging, and the graphs over it.

use crate::sys::{Graph, Memory};
use std::ops::Range;

/// A slot's staging, and the graphs over it.
pub struct SlotMemory {
    /// Pinned memory of the host: the parameter block, inputs, outputs, fault records.
    pub(crate) host: Memory,
    /// The same, of the device.
    pub(crate) _device: Memory,
    /// Where each input lies in both, by port of the signature.
    pub(crate) inputs: Box<[Range<usize>]>,
    /// Where each output lies, by port.
    pub(crate) outputs: Box<[Range<usize>]>,
    /// By bucket of the executable.
    pub(crate) graphs: Box<[Graph]>,
}
