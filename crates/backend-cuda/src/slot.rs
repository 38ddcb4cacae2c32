//! One in-flight instance of an executable: its staging, and who has it.
//!
//! ```text
//! free ──lease──> idle ──submit──> flying ──the turn has ended──> idle ──drop──> free
//!                                     └──drop──> orphaned ──the turn has ended──> free
//! ```
//!
//! - An idle slot's staging belongs to the handle, a flying or orphaned one's to its turn.
//! - What a queued turn needs is kept here between turns, so that queueing one allocates nothing.

use crate::plan::CudaExecutable;
use crate::sys::{Graph, Memory};
use lanes_core::device::{Completion, Completions, DeviceError, SlotObject, Ticket};
use lanes_core::lanes::SeatRows;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A slot's staging, and the graphs over it.
pub(crate) struct SlotMemory {
    /// Pinned memory of the host: the parameter block, inputs, outputs, fault records.
    pub host: Memory,
    /// The same, of the device.
    pub _device: Memory,
    /// Where each input lies in both, by port of the signature.
    pub inputs: Box<[Range<usize>]>,
    /// Where each output lies, by port.
    pub outputs: Box<[Range<usize>]>,
    /// By bucket of the executable.
    pub graphs: Box<[Graph]>,
}

/// A turn that waits to be run.
pub(crate) struct Queued {
    pub seats: Vec<SeatRows>,
    pub after: Vec<Completion>,
    /// One for each buffer that the executable enters.
    pub tickets: Vec<Ticket>,
    /// Those of the slot's turns.
    pub completions: Completions,
}

const IDLE: u8 = 0;
const FLYING: u8 = 1;
const ORPHANED: u8 = 2;

/// Enough that a caller may keep the completions of a slot's last turns, and its next one still allocates nothing.
const COMPLETIONS: usize = 4;

/// How many submissions a turn may come after before their list allocates.
const AFTER: usize = 8;

/// A slot, on lease or not.
pub(crate) struct SlotCell {
    pub memory: SlotMemory,
    state: AtomicU8,
    /// Locked by whoever has the slot, so never waited for.
    pub queued: Mutex<Queued>,
}

impl SlotCell {
    pub fn new(memory: SlotMemory, seats_max: usize, buffers: usize) -> Self {
        let queued = Queued {
            seats: Vec::with_capacity(seats_max),
            after: Vec::with_capacity(AFTER),
            tickets: Vec::with_capacity(buffers),
            completions: Completions::new(COMPLETIONS),
        };
        Self { memory, state: AtomicU8::new(IDLE), queued: Mutex::new(queued) }
    }

    /// Gives the slot to a turn.
    pub fn fly(&self) {
        self.state.store(FLYING, Ordering::Relaxed);
    }

    /// Gives it back to its handle or, if that is gone, to the executable.
    pub fn land(self: Arc<Self>, executable: &CudaExecutable) {
        if self.state.swap(IDLE, Ordering::AcqRel) == ORPHANED {
            executable.free.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }
}

/// A slot on lease.
pub(crate) struct CudaSlot {
    pub executable: Arc<CudaExecutable>,
    pub cell: Arc<SlotCell>,
}

impl CudaSlot {
    /// One of the executable's slots, or `Busy`.
    pub fn lease(executable: Arc<CudaExecutable>) -> Result<Self, DeviceError> {
        let cell = executable.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match cell {
            Some(cell) => Ok(Self { executable, cell }),
            None => Err(DeviceError::Busy { depth: executable.slots }),
        }
    }

    /// `Busy` while a turn has it.
    pub fn idle(&self) -> Result<(), DeviceError> {
        // Acquire: what the turn wrote is seen.
        match self.cell.state.load(Ordering::Acquire) {
            IDLE => Ok(()),
            _ => Err(DeviceError::Busy { depth: 1 }),
        }
    }
}

impl Drop for CudaSlot {
    fn drop(&mut self) {
        let orphaned = self.cell.state.compare_exchange(FLYING, ORPHANED, Ordering::AcqRel, Ordering::Acquire);
        if orphaned.is_err() {
            let cell = Arc::clone(&self.cell);
            self.executable.free.lock().unwrap_or_else(PoisonError::into_inner).push(cell);
        }
    }
}

fn no_port(what: &str, port: usize) -> DeviceError {
    DeviceError::Invalid { what: format!("the plan has no {what} {port}") }
}

impl SlotObject for CudaSlot {
    fn input_mut(&mut self, port: usize) -> Result<&mut [u8], DeviceError> {
        self.idle()?;
        let memory = &self.cell.memory;
        let range = memory.inputs.get(port).ok_or_else(|| no_port("input", port))?;
        // SAFETY: reached only through this handle while the slot is idle, which only a submission ends, and that borrows
        // the handle mutably. Inputs of two ports lie apart.
        Ok(unsafe { memory.host.bytes(range.start, range.len()) })
    }

    fn output(&self, port: usize) -> Result<&[u8], DeviceError> {
        self.idle()?;
        let memory = &self.cell.memory;
        let range = memory.outputs.get(port).ok_or_else(|| no_port("output", port))?;
        // SAFETY: as in `input_mut`; nothing but a turn writes outputs.
        Ok(unsafe { memory.host.bytes(range.start, range.len()) })
    }
}
