//! Tiles of AVX2 with FMA: 16 registers of 8. A tile keeps at most 12 sums, so that a row's broadcast and the columns
//! stay in registers, and at least 8 where it can: two multiply-adds a cycle of four cycles each. Four rows by three
//! vectors would fill all 16, and the compiler then spills.

use super::tile::{Vector, kernels};
use std::arch::x86_64::*;

/// Eight elements.
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256);

// SAFETY (all of them): AVX2 and FMA exist and the memory named is valid, as the trait asks of its callers.
impl Vector for Avx2 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: above.
        Self(unsafe { _mm256_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: above.
        Self(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_upper(from: *const u16) -> Self {
        // SAFETY: above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        let mut elements = [0.0; 8];
        // SAFETY: above; `count < 8`.
        unsafe {
            std::ptr::copy_nonoverlapping(from, elements.as_mut_ptr(), count);
            Self(_mm256_loadu_ps(elements.as_ptr()))
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: above.
        Self(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: above.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // SAFETY: above. The maximum is its second operand when either is NaN and for two zeros.
        unsafe {
            let zero = _mm256_setzero_ps();
            Self(_mm256_add_ps(_mm256_max_ps(zero, self.0), zero))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: above.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // In halves: a masked store is microcode on some machines.
        // SAFETY: above; the pieces add up to `count` elements.
        unsafe {
            let mut part = _mm256_castps256_ps128(self.0);
            let mut to = to;
            if count & 4 != 0 {
                _mm_storeu_ps(to, part);
                part = _mm256_extractf128_ps::<1>(self.0);
                to = to.add(4);
            }
            if count & 2 != 0 {
                _mm_storel_epi64(to.cast(), _mm_castps_si128(part));
                part = _mm_movehl_ps(part, part);
                to = to.add(2);
            }
            if count & 1 != 0 {
                _mm_store_ss(to, part);
            }
        }
    }
}

kernels!(Avx2, "avx2,fma"; super::narrow::NARROW; [1 2 3 4 5 6 7 8] [1 2 3 4 5 6] [1 2 3 4] [1 2] [1 2] [1 2] [1] [1]);
