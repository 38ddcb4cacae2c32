//! Buffers: memory of the device, or of the host where both reach it.
//!
//! - Every byte is zero from the start.
//! - A buffer is worked on by one call or turn at a time, in the order submitted: whoever does has entered its turnstile
//!   with a ticket. Tickets are taken under the device's one lock (`flight`).
//! - Staging and scratch need none: they are reached through the one slot, or the one executable, that owns them.

use crate::device::DeviceId;
use crate::sys::{Context, Memory};
use lanes_core::device::{BufferObject, Charge, DeviceError, Placement, Ticket, Turnstile};
use std::sync::Arc;

/// Memory behind a `Buffer` of a GPU.
pub(crate) struct CudaBuffer {
    pub memory: Memory,
    pub turnstile: Turnstile,
    pub device: DeviceId,
    pub placement: Placement,
    /// Given back with the memory.
    pub _charge: Charge,
}

impl BufferObject for CudaBuffer {
    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    fn placement(&self) -> Placement {
        self.placement
    }
}

impl CudaBuffer {
    /// Where `offset .. offset + len` starts, if it lies in the buffer.
    pub fn range(&self, offset: u64, len: usize) -> Result<usize, DeviceError> {
        let start = usize::try_from(offset)
            .ok()
            .filter(|start| start.checked_add(len).is_some_and(|end| end <= self.memory.len()));
        start.ok_or_else(|| DeviceError::Invalid {
            what: format!("{len} bytes from byte {offset} on of a buffer of {} bytes", self.memory.len()),
        })
    }
}

/// Sole use of some buffers, until dropped.
pub(crate) struct Entered<'a>(&'a [Arc<CudaBuffer>]);

impl<'a> Entered<'a> {
    /// Enters all of `buffers`, with one ticket each.
    pub fn all(buffers: &'a [Arc<CudaBuffer>], tickets: &[Ticket]) -> Self {
        debug_assert_eq!(buffers.len(), tickets.len());
        buffers.iter().zip(tickets).for_each(|(buffer, &ticket)| buffer.turnstile.enter(ticket));
        Self(buffers)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|buffer| buffer.turnstile.leave());
    }
}

/// Sole use of one buffer, until dropped: a visitor that panics leaves too.
pub(crate) struct Passage<'a>(&'a CudaBuffer);

impl<'a> Passage<'a> {
    pub fn enter(buffer: &'a CudaBuffer, ticket: Ticket) -> Self {
        buffer.turnstile.enter(ticket);
        Self(buffer)
    }

    /// `len` bytes from `start` on, which `CudaBuffer::range` has found, of a buffer that the host sees.
    pub fn bytes(&mut self, start: usize, len: usize) -> &mut [u8] {
        // SAFETY: the turnstile keeps everyone else out for as long as the passage, which is borrowed, lives.
        unsafe { self.0.memory.bytes(start, len) }
    }

    /// Copies `bytes` into the buffer from `start` on.
    pub fn write(&mut self, context: &Context, start: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        if !self.0.memory.is_host() {
            return context.upload(&self.0.memory, start, bytes);
        }
        context.health()?;
        self.bytes(start, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    /// Copies out of the buffer from `start` on.
    pub fn read(&mut self, context: &Context, start: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        if !self.0.memory.is_host() {
            return context.download(&self.0.memory, start, into);
        }
        context.health()?;
        into.copy_from_slice(self.bytes(start, into.len()));
        Ok(())
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.0.turnstile.leave();
    }
}

/// One stretch copied or filled between turns.
pub(crate) struct Move {
    /// What it touches, each once: where it writes, and where it reads if that is another buffer.
    pub buffers: MoveBuffers,
    what: What,
    to: usize,
    len: usize,
}

enum What {
    CopyFrom(usize),
    Fill(u8),
}

/// One or two buffers, in place.
pub(crate) enum MoveBuffers {
    One([Arc<CudaBuffer>; 1]),
    Two([Arc<CudaBuffer>; 2]),
}

impl MoveBuffers {
    pub fn as_slice(&self) -> &[Arc<CudaBuffer>] {
        match self {
            Self::One(one) => one,
            Self::Two(two) => two,
        }
    }
}

impl Move {
    /// `len` bytes from one place to another; within one buffer the two lie apart.
    pub fn copy(from: (Arc<CudaBuffer>, u64), to: (Arc<CudaBuffer>, u64), len: usize) -> Result<Self, DeviceError> {
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
    pub fn fill(to: (Arc<CudaBuffer>, u64), byte: u8, len: usize) -> Result<Self, DeviceError> {
        let start = to.0.range(to.1, len)?;
        Ok(Self { buffers: MoveBuffers::One([to.0]), what: What::Fill(byte), to: start, len })
    }

    /// Does it.
    ///
    /// # Safety
    /// The turnstiles of its buffers are entered.
    pub unsafe fn run(&self, context: &Context) -> Result<(), DeviceError> {
        let buffers = self.buffers.as_slice();
        let (to, from) = (&buffers[0].memory, &buffers[buffers.len() - 1].memory);
        // SAFETY: nobody else touches the buffers, as the caller has entered, and `copy` keeps the stretches apart.
        unsafe {
            match self.what {
                What::CopyFrom(start) => context.copy((to, self.to), (from, start), self.len),
                What::Fill(byte) => context.fill((to, self.to), byte, self.len),
            }
        }
    }
}
