//! What a slot owns: its staging.

use crate::memory::Bytes;

/// Where a slot's inputs and outputs lie.
pub struct SlotMemory {
    /// By port of the signature; empty where the plan does not use it.
    pub(crate) inputs: Box<[Bytes]>,
    /// By port of the signature.
    pub(crate) outputs: Box<[Bytes]>,
}

/// Input `port`, if there is one.
///
/// # Safety
/// Nobody else touches it for as long as the slice lives.
#[allow(clippy::mut_from_ref, reason = "memory that is shared by agreement")]
pub(crate) unsafe fn input(slot: &SlotMemory, port: usize) -> Option<&mut [u8]> {
    let memory = slot.inputs.get(port)?;
    // SAFETY: `len()` initialised bytes that live as long as the slot, and the caller's promise.
    Some(unsafe { std::slice::from_raw_parts_mut(memory.base(), memory.len()) })
}

/// Output `port`, if there is one.
///
/// # Safety
/// Nobody writes it for as long as the slice lives.
pub(crate) unsafe fn output(slot: &SlotMemory, port: usize) -> Option<&[u8]> {
    let memory = slot.outputs.get(port)?;
    // SAFETY: as in `input`.
    Some(unsafe { std::slice::from_raw_parts(memory.base(), memory.len()) })
}
