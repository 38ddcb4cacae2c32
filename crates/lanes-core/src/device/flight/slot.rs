//! An executable and its slots: one in-flight instance each, and who has it.
//!
//! ```text
//! free ──lease──> idle ──submit──> flying ──the turn has ended──> idle ──drop──> free
//!                                     └──drop──> orphaned ──the turn has ended──> free
//! ```
//!
//! - An idle slot's staging belongs to the handle, a flying or orphaned one's to its turn.
//! - What a queued turn needs is kept here between turns, so that queueing one allocates nothing.

use super::buffer::Held;
use super::engine::{Engine, Idle};
use super::host::DeviceId;
use crate::device::{Completion, Completions, DeviceError, ExecutableObject, MemoryUse, SlotObject, Ticket};
use crate::lanes::{Capacity, SeatRows};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A prepared plan, and what its turns need besides.
pub(super) struct Ready<E: Engine> {
    pub device: DeviceId,
    pub capacity: Capacity,
    /// Whether turns read or write rows.
    pub has_states: bool,
    /// Whether `submit` should return before the turn is over.
    pub overlap: bool,
    /// The buffers of states and residents, each once.
    pub entered: Box<[Arc<Held<E>>]>,
    pub memory: MemoryUse,
    /// How many slots there are.
    pub slots: usize,
    /// Those on lease to nobody.
    pub free: Mutex<Vec<Arc<SlotCell<E>>>>,
    /// Goes after the slots, which may be made of it.
    pub plan: E::Plan,
}

impl<E: Engine> Ready<E> {
    fn free(&self) -> MutexGuard<'_, Vec<Arc<SlotCell<E>>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Engine> ExecutableObject for Ready<E> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }
}

/// A turn that waits to be run.
pub(super) struct Queued {
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
pub(super) struct SlotCell<E: Engine> {
    pub staging: E::Staging,
    state: AtomicU8,
    queued: Mutex<Queued>,
}

impl<E: Engine> SlotCell<E> {
    pub fn new(staging: E::Staging, seats_max: usize, buffers: usize) -> Self {
        let queued = Queued {
            seats: Vec::with_capacity(seats_max),
            after: Vec::with_capacity(AFTER),
            tickets: Vec::with_capacity(buffers),
            completions: Completions::new(COMPLETIONS),
        };
        Self { staging, state: AtomicU8::new(IDLE), queued: Mutex::new(queued) }
    }

    /// Locked by whoever has the slot, so never waited for.
    pub fn queued(&self) -> MutexGuard<'_, Queued> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the slot to a turn.
    pub fn fly(&self) {
        self.state.store(FLYING, Ordering::Relaxed);
    }

    /// Gives it back to its handle or, if that is gone, to the executable.
    pub fn land(self: Arc<Self>, ready: &Ready<E>) {
        if self.state.swap(IDLE, Ordering::AcqRel) == ORPHANED {
            ready.free().push(self);
        }
    }
}

/// A slot on lease.
pub(super) struct Leased<E: Engine> {
    pub ready: Arc<Ready<E>>,
    pub cell: Arc<SlotCell<E>>,
}

impl<E: Engine> Leased<E> {
    /// One of the executable's slots, or `Busy`.
    pub fn of(ready: Arc<Ready<E>>) -> Result<Self, DeviceError> {
        let cell = ready.free().pop();
        match cell {
            Some(cell) => Ok(Self { ready, cell }),
            None => Err(DeviceError::Busy { depth: ready.slots }),
        }
    }

    /// `Busy` while a turn has it.
    pub fn idle(&self) -> Result<Idle<'_, E>, DeviceError> {
        // Acquire: what the turn wrote is seen.
        match self.cell.state.load(Ordering::Acquire) {
            IDLE => Ok(Idle(&self.cell.staging)),
            _ => Err(DeviceError::Busy { depth: 1 }),
        }
    }
}

impl<E: Engine> Drop for Leased<E> {
    fn drop(&mut self) {
        let orphaned = self.cell.state.compare_exchange(FLYING, ORPHANED, Ordering::AcqRel, Ordering::Acquire);
        if orphaned.is_err() {
            self.ready.free().push(Arc::clone(&self.cell));
        }
    }
}

fn no_port(what: &str, port: usize) -> DeviceError {
    DeviceError::Invalid { what: format!("the plan has no {what} {port}") }
}

impl<E: Engine> SlotObject for Leased<E> {
    fn input_mut(&mut self, port: usize) -> Result<&mut [u8], DeviceError> {
        // Only a submission ends that the slot is idle, and that borrows the handle mutably, as this does.
        E::input(self.idle()?, port).ok_or_else(|| no_port("input", port))
    }

    fn output(&self, port: usize) -> Result<&[u8], DeviceError> {
        E::output(self.idle()?, port).ok_or_else(|| no_port("output", port))
    }
}
