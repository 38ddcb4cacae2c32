//! What a slot owns: its staging, and the graphs over it.

use crate::sys::{Graph, Memory};
use std::ops::Range;
use std::sync::atomic::AtomicU32;

/// A slot's staging, and the graphs over it.
pub struct SlotMemory {
    /// Pinned memory of the host: the parameter block, fault records, the tick, inputs, outputs.
    pub(crate) host: Memory,
    /// The same, of the device.
    pub(crate) device: Memory,
    /// Where each input lies in both, by port of the signature.
    pub(crate) inputs: Box<[Range<usize>]>,
    /// Where each output lies, by port.
    pub(crate) outputs: Box<[Range<usize>]>,
    /// By bucket of the executable.
    pub(crate) graphs: Box<[Graph]>,
    /// The number of the last turn begun: what its graph writes to the tick at its end.
    pub(crate) turns: AtomicU32,
}
