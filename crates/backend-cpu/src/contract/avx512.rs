//! Tiles of AVX-512: 32 registers of 16, so at most 24 sums beside the columns and a row's broadcast.

use super::tile::{Vector, kernels};
use std::arch::x86_64::*;

/// Sixteen elements.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

/// The lowest `count` elements.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    (1 << count) - 1
}

// SAFETY (all of them): AVX-512F exists and the memory named is valid, as the trait asks of its callers.
impl Vector for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: above.
        Self(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: above.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_upper(from: *const u16) -> Self {
        // SAFETY: above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: above; elements that are masked off are not accessed.
        Self(unsafe { _mm512_maskz_loadu_ps(first(count), from) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: above.
        Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // SAFETY: above. The maximum is its second operand when either is NaN and for two zeros.
        unsafe {
            let zero = _mm512_setzero_ps();
            Self(_mm512_add_ps(_mm512_max_ps(zero, self.0), zero))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: above.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: above; elements that are masked off are not accessed.
        unsafe { _mm512_mask_storeu_ps(to, first(count), self.0) }
    }
}

kernels!(
    Avx512, "avx512f,avx2,fma"; super::narrow::NARROW;
    [1 2 3 4 5 6 7 8] [1 2 3 4 5 6 7 8] [1 2 3 4 5 6] [1 2 3 4 5 6] [1 2 3 4] [1 2 3 4] [1 2 3] [1 2 3]
);
