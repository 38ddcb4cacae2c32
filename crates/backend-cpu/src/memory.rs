//! Memory of the host, as a device's memory.
//!
//! - Every byte is initialised from the start, and starts lie on cache lines.
//! - A buffer is worked on by one call at a time: whoever reads, writes or runs over it has entered its turnstile.
//! - Staging and scratch need none: they are reached through the one slot that owns them.

use crate::device::DeviceId;
use lanes_core::device::{BufferObject, Charge, DeviceError, Placement};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Start of every allocation: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// A fixed stretch of zeroed memory, reached by pointer only, so that threads may share it by agreement.
pub(crate) struct Bytes {
    base: NonNull<u8>,
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
        let layout = Layout::from_size_align(len, ALIGN).map_err(|_| out_of_memory())?;
        if len == 0 {
            // Not null and aligned; never read.
            return Ok(Self { base: NonNull::<Line>::dangling().cast(), layout });
        }
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(Self { base, layout })
    }

    /// The first byte; `len()` bytes from it on are initialised for as long as `self` lives.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated in `zeroed` with this layout, and freed only here.
            unsafe { dealloc(self.base.as_ptr(), self.layout) }
        }
    }
}

/// Only for its alignment.
#[repr(align(64))]
struct Line;

/// Lets one in at a time. Unlike a mutex it is left by name, so a turn can hold any number of them without a list.
#[derive(Default)]
pub(crate) struct Turnstile {
    taken: Mutex<bool>,
    left: Condvar,
}

impl Turnstile {
    /// Waits until nobody is in.
    pub fn enter(&self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            taken = self.left.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    /// Lets the next one in.
    pub fn leave(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.left.notify_one();
    }
}

/// Sole use of one buffer, until dropped: a visitor that panics leaves too.
struct Passage<'a>(&'a Turnstile);

impl<'a> Passage<'a> {
    fn new(turnstile: &'a Turnstile) -> Self {
        turnstile.enter();
        Self(turnstile)
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.0.leave();
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

/// Sole use of some buffers, until dropped.
pub(crate) struct Entered<'a>(&'a [Arc<CpuBuffer>]);

impl<'a> Entered<'a> {
    /// Enters all of `buffers`, which every caller names in the order of their addresses: so none waits for another in
    /// a ring.
    pub fn all(buffers: &'a [Arc<CpuBuffer>]) -> Self {
        debug_assert!(buffers.is_sorted_by_key(Arc::as_ptr));
        buffers.iter().for_each(|buffer| buffer.turnstile.enter());
        Self(buffers)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|buffer| buffer.turnstile.leave());
    }
}

impl CpuBuffer {
    /// `offset .. offset + len`, if it lies in the buffer.
    fn range(&self, offset: u64, len: usize) -> Result<usize, DeviceError> {
        let start = usize::try_from(offset)
            .ok()
            .filter(|start| start.checked_add(len).is_some_and(|end| end <= self.memory.len()));
        start.ok_or_else(|| DeviceError::Invalid {
            what: format!("{len} bytes from byte {offset} on of a buffer of {} bytes", self.memory.len()),
        })
    }

    /// Copies `bytes` in.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let start = self.range(offset, bytes.len())?;
        self.turnstile.enter();
        // SAFETY: `range` keeps it in the allocation, the turnstile keeps everyone else out, and a slice of the caller
        // cannot overlap memory that is only ever reached by pointer.
        unsafe { self.memory.base().add(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.turnstile.leave();
        Ok(())
    }

    /// Copies `into.len()` bytes out.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let start = self.range(offset, into.len())?;
        self.turnstile.enter();
        // SAFETY: as in `write`.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(self.memory.base().add(start), into.len()) };
        self.turnstile.leave();
        Ok(())
    }

    /// Copies `len` bytes at `from` over those at `to`.
    pub fn copy_within(&self, from: u64, to: u64, len: usize) -> Result<(), DeviceError> {
        let (from, to) = (self.range(from, len)?, self.range(to, len)?);
        self.turnstile.enter();
        // SAFETY: as in `write`; `copy` allows the two to overlap.
        unsafe { self.memory.base().add(to).copy_from(self.memory.base().add(from), len) };
        self.turnstile.leave();
        Ok(())
    }

    /// Copies `len` bytes at `from` to those at `at` of `target`, which may be this buffer if the two lie apart.
    pub fn copy_to(self: &Arc<Self>, from: u64, target: &Arc<Self>, at: u64, len: usize) -> Result<(), DeviceError> {
        if Arc::ptr_eq(self, target) {
            let (start, end) = (self.range(from, len)?, self.range(at, len)?);
            if start.abs_diff(end) < len {
                let what = format!("{len} bytes copied from byte {start} to byte {end} of one buffer: they overlap");
                return Err(DeviceError::Invalid { what });
            }
            return self.copy_within(from, at, len);
        }
        let (from, to) = (self.range(from, len)?, target.range(at, len)?);
        let mut both = [Arc::clone(self), Arc::clone(target)];
        both.sort_by_key(Arc::as_ptr);
        let _entered = Entered::all(&both);
        // SAFETY: `range` keeps both in their allocations, which are two, and both turnstiles are entered.
        unsafe { target.memory.base().add(to).copy_from_nonoverlapping(self.memory.base().add(from), len) };
        Ok(())
    }

    /// Shows `visit` the bytes where they lie.
    pub fn visit(&self, offset: u64, len: usize, visit: &mut dyn FnMut(&mut [u8])) -> Result<(), DeviceError> {
        let start = self.range(offset, len)?;
        let _entered = Passage::new(&self.turnstile);
        // SAFETY: `range` keeps it in the allocation, every byte is initialised, and the turnstile keeps everyone else
        // out until `visit` has returned.
        visit(unsafe { std::slice::from_raw_parts_mut(self.memory.base().add(start), len) });
        Ok(())
    }

    /// Repeats `byte` over `len` bytes at `at`.
    pub fn fill(&self, at: u64, byte: u8, len: usize) -> Result<(), DeviceError> {
        let at = self.range(at, len)?;
        self.turnstile.enter();
        // SAFETY: as in `write`.
        unsafe { self.memory.base().add(at).write_bytes(byte, len) };
        self.turnstile.leave();
        Ok(())
    }
}
