//! Memory of the host, as a device's memory.
//!
//! - Every byte is initialised from the start, and starts lie on cache lines.
//! - Not here: who may touch them when (`lanes_core::device::flight`).

use lanes_core::device::DeviceError;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Start of every allocation: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// A fixed stretch of zeroed memory, reached by pointer only, so that threads may share it by agreement.
pub struct Bytes {
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
    pub(crate) fn zeroed(what: &str, len: usize) -> Result<Self, DeviceError> {
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
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The byte `start`, which lies inside or is the end.
    pub(crate) fn at(&self, start: usize) -> *mut u8 {
        self.base().wrapping_add(start)
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed only here.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}
