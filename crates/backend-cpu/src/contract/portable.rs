//! Tiles over arrays, for any machine: the compiler vectorises them for the build's target. Without a fused
//! multiply-add in that target each one is a library call: right, and slow.

use super::tile::{Vector, kernels};

/// Eight elements: two registers where they hold four.
#[derive(Clone, Copy)]
pub(super) struct Array([f32; 8]);

/// `[op(0), op(1), ..]`.
macro_rules! each {
    ($i:ident => $x:expr) => {{
        let mut out = [0.0; 8];
        for $i in 0..8 {
            out[$i] = $x;
        }
        Array(out)
    }};
}

impl Vector for Array {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller names 8 elements.
        Self(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_upper(from: *const u16) -> Self {
        // SAFETY: the caller names 8 elements.
        let upper = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        each!(i => f32::from_bits(u32::from(upper[i]) << 16))
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller names `count` elements.
        each!(i => if i < count { unsafe { from.add(i).read_unaligned() } } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        each!(i => self.0[i].mul_add(b.0[i], c.0[i]))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        each!(i => self.0[i] + other.0[i])
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        each!(i => super::activate::relu(self.0[i]))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller names 8 elements.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        for i in 0..count {
            // SAFETY: the caller names `count` elements.
            unsafe { to.add(i).write_unaligned(self.0[i]) }
        }
    }
}

kernels!(Array; &[]; [1 2 3 4] [1 2 3] [1 2] [1 2]);
