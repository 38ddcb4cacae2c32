//! Memory of the host, as a device's memory.
//!
//! - Every byte is initialised from the start, and starts lie on cache lines.
//! - A buffer is worked on by one call or turn at a time, in the order submitted: whoever does has entered its turnstile
//!   with a ticket. Tickets are taken under the device's one lock (`flight`).
//! - Staging and scratch need none: they are reached through the one slot, or the one executable, that owns them.

use crate::device::DeviceId;
use lanes_core::device::{BufferObject, Charge, DeviceError, Placement, Ticket, Turnstile};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

/// Start of every allocation: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// A fixed stretch of zeroed memory, reached by pointer only, so that threads may share it by agreement.
pub(crate) struct Bytes {
    base: NonNull<u8>,
    len: usize,
    /// What was allocated: `base` lies in it.
    allocation: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is plain memory without thread affinity, and has no method that touches the contents.
unsafe impl Send for Bytes {}
// SAFETY: as above; every access goes through `base`, whose users argue for themselves.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// `len` zeroed bytes for `what`.
    pub fn zeroed(what: &str, len: usize) -> Result<Self, DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory { what: what.to_string(), asked: len as u64 };
        // Asked for less alignment and more room than it takes: of a stricter alignment the allocator would write every
        // page to zero it, where pages fresh from the system are zero until somebody needs them.
        let room = len.checked_add(ALIGN).ok_or_else(out_of_memory)?;
        let layout = Layout::from_size_align(room, 1).map_err(|_| out_of_memory())?;
        // SAFETY: the size is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        // SAFETY: less than `ALIGN` bytes are skipped, and `len` are left.
        let base = unsafe { allocation.add(allocation.align_offset(ALIGN)) };
        Ok(Self { base, len, allocation, layout })
    }

    /// The first byte; `len()` bytes from it on are initialised for as long as `self` lives.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed only here.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// Memory behind a `Buffer` of the CPU.
pub(crate) struct CpuBuffer {
    pub memory: Bytes,
    pub turnstile: Turnstile,
    pub device: DeviceId,
    pub placement: Placement,
    /// Given back with the memory.
    pub _charge: Charge,
}

impl BufferObject for CpuBuffer {
    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    fn placement(&self) -> Placement {
        self.placement
    }
}

impl CpuBuffer {
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
pub(crate) struct Entered<'a>(&'a [Arc<CpuBuffer>]);

impl<'a> Entered<'a> {
    /// Enters all of `buffers`, with one ticket each.
    pub fn all(buffers: &'a [Arc<CpuBuffer>], tickets: &[Ticket]) -> Self {
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
pub(crate) struct Passage<'a>(&'a CpuBuffer);

impl<'a> Passage<'a> {
    pub fn enter(buffer: &'a CpuBuffer, ticket: Ticket) -> Self {
        buffer.turnstile.enter(ticket);
        Self(buffer)
    }

    /// `len` bytes from `start` on, which `CpuBuffer::range` has found.
    pub fn bytes(&mut self, start: usize, len: usize) -> &mut [u8] {
        let memory = &self.0.memory;
        assert!(start.checked_add(len).is_some_and(|end| end <= memory.len()), "{start} + {len} is outside");
        // SAFETY: inside the allocation, every byte of which is initialised; the turnstile keeps everyone else out for as
        // long as the passage, which is borrowed, lives.
        unsafe { std::slice::from_raw_parts_mut(memory.base().wrapping_add(start), len) }
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
    One([Arc<CpuBuffer>; 1]),
    Two([Arc<CpuBuffer>; 2]),
}

impl MoveBuffers {
    pub fn as_slice(&self) -> &[Arc<CpuBuffer>] {
        match self {
            Self::One(one) => one,
            Self::Two(two) => two,
        }
    }
}

impl Move {
    /// `len` bytes from one place to another; within one buffer the two lie apart.
    pub fn copy(from: (Arc<CpuBuffer>, u64), to: (Arc<CpuBuffer>, u64), len: usize) -> Result<Self, DeviceError> {
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
    pub fn fill(to: (Arc<CpuBuffer>, u64), byte: u8, len: usize) -> Result<Self, DeviceError> {
        let start = to.0.range(to.1, len)?;
        Ok(Self { buffers: MoveBuffers::One([to.0]), what: What::Fill(byte), to: start, len })
    }

    /// Does it.
    ///
    /// # Safety
    /// The turnstiles of its buffers are entered.
    pub unsafe fn run(&self) {
        let buffers = self.buffers.as_slice();
        let (first, last) = (&buffers[0], &buffers[buffers.len() - 1]);
        // SAFETY: `range` kept both stretches in their allocations and `copy` keeps them apart; nobody else touches them,
        // as the caller has entered.
        unsafe {
            let to = first.memory.base().add(self.to);
            match self.what {
                What::CopyFrom(from) => to.copy_from_nonoverlapping(last.memory.base().add(from), self.len),
                What::Fill(byte) => to.write_bytes(byte, self.len),
            }
        }
    }
}
