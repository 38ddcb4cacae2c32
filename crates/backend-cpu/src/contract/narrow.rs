//! A few columns: rows are the elements of a vector, because columns would not fill one.
//!
//! ```text
//! row 0 ─ a[0, k..k+8] ┐             ┌ a[0..8, k]   ─ fma with weight[k, n]   ─> sums[n] of rows 0..8
//! ..                   ├─ transpose ─┤ ..
//! row 7 ─ a[7, k..k+8] ┘             └ a[0..8, k+7] ─ fma with weight[k+7, n]
//! ```
//!
//! - Each sum is the same chain as in `tile`; only its place in a register differs.
//! - AVX2, and on machines with AVX-512 too: what is slow here is turning eight rows, not multiplying.
//! - Weights stay `[K, N]`. Rows that are missing for a whole vector repeat another; their results are not stored.
#![allow(clippy::needless_range_loop, reason = "sums are a matrix, and equal indices say which belong together")]

use super::tile::{NARROW_ROWS, Tile, TileFn};
use std::arch::x86_64::*;

/// Rows of a vector.
const ROWS: usize = 8;
/// Vectors of rows that pass by each stretch of K together: a chain of multiply-adds waits for itself, and others fill
/// the time.
const GROUPS: usize = NARROW_ROWS / ROWS;

/// `NARROW[n - 1]` computes `n` columns.
pub(super) static NARROW: &[TileFn] =
    &[narrow::<1>, narrow::<2>, narrow::<3>, narrow::<4>, narrow::<5>, narrow::<6>, narrow::<7>];

/// `N` columns of up to `NARROW_ROWS` rows.
///
/// # Safety
/// As `tile::tile`, for `tile.stored` rows; those that fill up its last vector may be read.
#[target_feature(enable = "avx2,fma")]
unsafe fn narrow<const N: usize>(tile: &Tile<'_>) {
    let groups = tile.stored.div_ceil(ROWS);
    debug_assert!(groups <= GROUPS && tile.height == NARROW_ROWS);
    let mut sums = [[_mm256_setzero_ps(); N]; GROUPS];
    // SAFETY: as the caller promises; `sums` is also an array of `[group][column][row of the group]`.
    unsafe {
        let elements = sums.as_mut_ptr().cast::<f32>();
        let element = |row: usize, n: usize| elements.add((row / ROWS * N + n) * ROWS + row % ROWS);
        if !tile.first {
            for row in 0..tile.stored {
                for n in 0..N {
                    *element(row, n) = *tile.out[row].add(n);
                }
            }
        }
        let mut weights = tile.panel.cast::<f32>();
        for run in tile.runs {
            let rows = tile.rows.as_ptr().add(run.slot * tile.height);
            let mut k = 0;
            // Sums rest in memory while the other groups take their turn: they would not all fit into registers.
            while k + 2 * ROWS <= run.len {
                for (g, sums) in sums.iter_mut().enumerate().take(groups) {
                    *sums = eights::<N, 2>(*sums, rows.add(g * ROWS), run.offset + k, weights);
                }
                weights = weights.add(2 * ROWS * N);
                k += 2 * ROWS;
            }
            while k + ROWS <= run.len {
                for (g, sums) in sums.iter_mut().enumerate().take(groups) {
                    *sums = eights::<N, 1>(*sums, rows.add(g * ROWS), run.offset + k, weights);
                }
                weights = weights.add(ROWS * N);
                k += ROWS;
            }
            while k < run.len {
                for (g, sums) in sums.iter_mut().enumerate().take(groups) {
                    let at = |r: usize| *(*rows.add(g * ROWS + r)).add(run.offset + k);
                    let a = _mm256_setr_ps(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
                    for n in 0..N {
                        sums[n] = _mm256_fmadd_ps(a, _mm256_set1_ps(*weights.add(n)), sums[n]);
                    }
                }
                weights = weights.add(N);
                k += 1;
            }
        }
        if tile.last {
            for sums in sums.iter_mut().take(groups) {
                for n in 0..N {
                    sums[n] = _mm256_add_ps(sums[n], _mm256_set1_ps(*tile.bias.add(n)));
                    if tile.relu {
                        // The maximum is its second operand when either is NaN and for two zeros.
                        let zero = _mm256_setzero_ps();
                        sums[n] = _mm256_add_ps(_mm256_max_ps(zero, sums[n]), zero);
                    }
                }
            }
        }
        let elements = sums.as_ptr().cast::<f32>();
        let element = |row: usize, n: usize| elements.add((row / ROWS * N + n) * ROWS + row % ROWS);
        for row in 0..tile.stored {
            for n in 0..N {
                *tile.out[row].add(n) = *element(row, n);
            }
        }
    }
}

/// Adds the products of `B * 8` k, from element `at` of eight rows, to the sums of `N` columns.
///
/// # Safety
/// The rows hold those elements, `weights` the rows of the weights; AVX2 and FMA exist.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn eights<const N: usize, const B: usize>(
    mut sums: [__m256; N],
    rows: *const *const f32,
    at: usize,
    weights: *const f32,
) -> [__m256; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let rows: [*const f32; ROWS] = *rows.cast();
        for b in 0..B {
            for (j, a) in turn(&rows, at + b * ROWS).into_iter().enumerate() {
                for n in 0..N {
                    let weight = _mm256_set1_ps(*weights.add((b * ROWS + j) * N + n));
                    sums[n] = _mm256_fmadd_ps(a, weight, sums[n]);
                }
            }
        }
    }
    sums
}

/// Elements `at..at + 8` of eight rows, as one vector of all rows for each element.
///
/// # Safety
/// The rows hold them, and AVX2 exists.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn turn(rows: &[*const f32; ROWS], at: usize) -> [__m256; 8] {
    let mut out = [_mm256_setzero_ps(); 8];
    for half in 0..2 {
        // Four elements of rows r and r + 4 side by side: then four by four is turned within each half.
        let mut four = [_mm256_setzero_ps(); 4];
        for (r, four) in four.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let low = _mm_loadu_ps(rows[r].add(at + half * 4));
                let high = _mm_loadu_ps(rows[r + 4].add(at + half * 4));
                *four = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high);
            }
        }
        let (a, b) = (_mm256_unpacklo_ps(four[0], four[1]), _mm256_unpackhi_ps(four[0], four[1]));
        let (c, d) = (_mm256_unpacklo_ps(four[2], four[3]), _mm256_unpackhi_ps(four[2], four[3]));
        out[half * 4] = _mm256_shuffle_ps::<0x44>(a, c);
        out[half * 4 + 1] = _mm256_shuffle_ps::<0xee>(a, c);
        out[half * 4 + 2] = _mm256_shuffle_ps::<0x44>(b, d);
        out[half * 4 + 3] = _mm256_shuffle_ps::<0xee>(b, d);
    }
    out
}
