//! Buffers, and who may touch them when.
//!
//! - A buffer is worked on by one call at a time, or by the device, in the order submitted: whoever does has passed its
//!   turnstile with a ticket. Tickets are taken under the device's one lock (`flight`).
//! - Staging and scratch need none: they are reached through the one slot, or the one executable, that owns them.

use super::engine::{Engine, Stretch};
use super::host::DeviceId;
use crate::device::{BufferObject, Charge, DeviceError, Placement, Ticket, Turnstile};
use std::sync::Arc;

/// Memory behind a [`Buffer`](crate::device::Buffer).
pub struct Held<E: Engine> {
    pub(super) memory: E::Memory,
    pub(super) turnstile: Turnstile,
    pub(super) device: DeviceId,
    pub(super) placement: Placement,
    /// Given back with the memory.
    pub(super) _charge: Charge,
}

impl<E: Engine> BufferObject for Held<E> {
    fn bytes(&self) -> u64 {
        E::bytes(&self.memory) as u64
    }

    fn placement(&self) -> Placement {
        self.placement
    }
}

impl<E: Engine> Held<E> {
    /// The memory.
    pub fn memory(&self) -> &E::Memory {
        &self.memory
    }

    /// Where `offset .. offset + len` starts, if it lies in the buffer.
    pub(super) fn range(&self, offset: u64, len: usize) -> Result<usize, DeviceError> {
        let bytes = E::bytes(&self.memory);
        let start = usize::try_from(offset).ok().filter(|start| start.checked_add(len).is_some_and(|end| end <= bytes));
        start.ok_or_else(|| DeviceError::Invalid {
            what: format!("{len} bytes from byte {offset} on of a buffer of {bytes} bytes"),
        })
    }
}

/// Sole use of some buffers, until dropped: whoever panics leaves too.
pub(super) struct Entered<'a, E: Engine>(&'a [Arc<Held<E>>]);

impl<'a, E: Engine> Entered<'a, E> {
    /// Enters all of `buffers`, with one ticket each.
    pub fn all(buffers: &'a [Arc<Held<E>>], tickets: &[Ticket]) -> Self {
        debug_assert_eq!(buffers.len(), tickets.len());
        buffers.iter().zip(tickets).for_each(|(buffer, &ticket)| buffer.turnstile.enter(ticket));
        Self(buffers)
    }
}

impl<E: Engine> Drop for Entered<'_, E> {
    fn drop(&mut self) {
        self.0.iter().for_each(|buffer| buffer.turnstile.leave());
    }
}

/// Sole use of one buffer, until dropped.
pub(super) struct Passage<'a, E: Engine>(&'a Held<E>);

impl<'a, E: Engine> Passage<'a, E> {
    pub fn enter(buffer: &'a Held<E>, ticket: Ticket) -> Self {
        buffer.turnstile.enter(ticket);
        Self(buffer)
    }

    /// `len` bytes from `start` on, which [`Held::range`] has found.
    pub fn stretch(&mut self, start: usize, len: usize) -> Stretch<'_, E> {
        Stretch { memory: &self.0.memory, start, len }
    }
}

impl<E: Engine> Drop for Passage<'_, E> {
    fn drop(&mut self) {
        self.0.turnstile.leave();
    }
}

/// One stretch copied or filled between turns.
pub(super) struct Move<E: Engine> {
    buffers: MoveBuffers<E>,
    what: What,
    to: usize,
    len: usize,
}

enum What {
    CopyFrom(usize),
    Fill(u8),
}

/// One or two buffers, in place.
enum MoveBuffers<E: Engine> {
    One([Arc<Held<E>>; 1]),
    Two([Arc<Held<E>>; 2]),
}

/// A byte of a buffer, by offset.
pub(super) type Place<E> = (Arc<Held<E>>, u64);

impl<E: Engine> Move<E> {
    /// `len` bytes from one place to another; within one buffer the two lie apart.
    pub fn copy(from: Place<E>, to: Place<E>, len: usize) -> Result<Self, DeviceError> {
        let (source, target) = (from.0.range(from.1, len)?, to.0.range(to.1, len)?);
        let within = Arc::ptr_eq(&from.0, &to.0);
        if within && source.abs_diff(target) < len {
            let what = format!("{len} bytes copied from byte {source} to byte {target} of one buffer: they overlap");
            return Err(DeviceError::Invalid { what });
        }
        let buffers = if within { MoveBuffers::One([to.0]) } else { MoveBuffers::Two([to.0, from.0]) };
        Ok(Self { buffers, what: What::CopyFrom(source), to: target, len })
    }

    /// `byte` repeated over `len` bytes.
    pub fn fill(to: Place<E>, byte: u8, len: usize) -> Result<Self, DeviceError> {
        let start = to.0.range(to.1, len)?;
        Ok(Self { buffers: MoveBuffers::One([to.0]), what: What::Fill(byte), to: start, len })
    }

    /// What it touches, each once: where it writes, and where it reads if that is another buffer.
    pub fn buffers(&self) -> &[Arc<Held<E>>] {
        match &self.buffers {
            MoveBuffers::One(one) => one,
            MoveBuffers::Two(two) => two,
        }
    }

    /// Does it. For whoever has passed the turnstiles of its buffers.
    pub fn run(&self, engine: &E) -> Result<(), DeviceError> {
        let (to, from) = match &self.buffers {
            MoveBuffers::One([one]) => (one, one),
            MoveBuffers::Two([to, from]) => (to, from),
        };
        let to = Stretch { memory: &to.memory, start: self.to, len: self.len };
        match self.what {
            What::CopyFrom(start) => engine.copy(to, Stretch { memory: &from.memory, start, len: self.len }),
            What::Fill(byte) => engine.fill(to, byte),
        }
    }
}
