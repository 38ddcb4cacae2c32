//! One in-flight instance of an executable: its staging, and who has it.
//!
//! ```text
//! free ──lease──> idle ──submit──> flying ──the turn has ended──> idle ──drop──> free
//!                                     └──drop──> orphaned ──the turn has ended──> free
//! ```
//!
//! - An idle slot's staging belongs to the handle, a flying or orphaned one's to its turn.
//! - What a queued turn needs is kept here between turns, so that queueing one allocates nothing.

use crate::memory::Bytes;
use crate::plan::CpuExecutable;
use lanes_core::device::{Completion, Completions, DeviceError, SlotObject, Ticket};
use lanes_core::lanes::SeatRows;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where a slot's inputs and outputs lie.
pub(crate) struct SlotMemory {
    /// By port of the signature; empty where the plan does not use it.
    pub inputs: Box<[Bytes]>,
    /// By port of the signature.
    pub outputs: Box<[Bytes]>,
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
    pub fn land(self: Arc<Self>, executable: &CpuExecutable) {
        if self.state.swap(IDLE, Ordering::AcqRel) == ORPHANED {
            executable.free.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }
}

/// A slot on lease.
pub(crate) struct CpuSlot {
    pub executable: Arc<CpuExecutable>,
    pub cell: Arc<SlotCell>,
}

impl CpuSlot {
    /// One of the executable's slots, or `Busy`.
    pub fn lease(executable: Arc<CpuExecutable>) -> Result<Self, DeviceError> {
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

impl Drop for CpuSlot {
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

impl SlotObject for CpuSlot {
    fn input_mut(&mut self, port: usize) -> Result<&mut [u8], DeviceError> {
        self.idle()?;
        let memory = self.cell.memory.inputs.get(port).ok_or_else(|| no_port("input", port))?;
        // SAFETY: `len()` initialised bytes, reached only through this handle while the slot is idle, which only a
        // submission ends, and that borrows the handle mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(memory.base(), memory.len()) })
    }

    fn output(&self, port: usize) -> Result<&[u8], DeviceError> {
        self.idle()?;
        let memory = self.cell.memory.outputs.get(port).ok_or_else(|| no_port("output", port))?;
        // SAFETY: as in `input_mut`; nothing but a turn writes outputs.
        Ok(unsafe { std::slice::from_raw_parts(memory.base(), memory.len()) })
    }
}
