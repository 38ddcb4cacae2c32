//! Heap allocations of a whole process, counted.
//!
//! `#[global_allocator] static ALLOCATOR: Counting = Counting::new();` in a test binary of its own, without
//! a harness (`harness = false`): another test, or the harness's thread, would allocate meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Rounds that are not counted: what is made once has been made after them.
const WARM_UP: u8 = 20;

/// The system's allocator, and how often it was asked for memory.
#[derive(Default)]
pub struct Counting(AtomicU64);

impl Counting {
    /// Nothing counted; for a static.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Allocations, by any thread, of `rounds` rounds after 20 to warm up. A round is given its number.
    pub fn in_rounds(&self, rounds: u8, mut round: impl FnMut(u8)) -> u64 {
        (0..WARM_UP).for_each(&mut round);
        let before = self.0.load(Ordering::SeqCst);
        (0..rounds).for_each(&mut round);
        self.0.load(Ordering::SeqCst) - before
    }
}

// SAFETY: every call is the system allocator's own; counting touches no memory of it. Growing in place is counted as the
// default does it: an allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above, so from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}
