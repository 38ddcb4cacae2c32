//! The loops of a tile product: sixteen rows and columns, sixteen steps of the sums at a time.
//!
//! - An operand is given by its steps: for each `k` the sixteen elements of its column of `A`, or row of `B`.
//! - Each sum is one chain of fused multiply-adds in ascending `k`, on every set of instructions.
//! - Not here: where the elements lie in registers (`run::fragment`).

use crate::isa::Isa;

/// Sixteen rows of sixteen.
pub(super) type Square<T> = [[T; 16]; 16];

/// What the elements of a float operand are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F32,
    F16,
    BF16,
}

/// A float operand: for each step the first of sixteen elements that lie side by side.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub float: Float,
    pub at: [*const u8; 16],
}

/// Where the sixteen rows of a tile of sums lie before a product and after it, sixteen elements each; both may be the same.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub from: [*const f32; 16],
    pub to: [*mut f32; 16],
}

/// `to[row][column] = from[row][column] + Σ a[k][row] · b[k][column]`.
///
/// # Safety
///
/// Each step of the operands and each row that is read is valid for reading sixteen elements, each row that is written for
/// writing them; a row that is written is no operand, and no other row than its own that is read. The set of instructions is
/// available.
pub(super) type Floats = unsafe fn(a: &Steps, b: &Steps, rows: &Rows);

/// The same of integers, wrapping.
///
/// # Safety
///
/// The set of instructions is available.
pub(super) type Integers = unsafe fn(a: &Square<i32>, b: &Square<i32>, sums: &mut Square<i32>);

/// The loops compiled for one set of instructions.
#[derive(Clone, Copy)]
pub(super) struct Products {
    pub floats: Floats,
    pub integers: Integers,
}

/// The loops for `isa`, which must be available.
pub(super) fn products(isa: Isa) -> Products {
    match isa {
        Isa::Portable => Products { floats: floats_portable, integers: integers_portable },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Products { floats: floats_avx2, integers: integers_avx2 },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Products { floats: floats_avx512, integers: integers_avx512 },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => Products { floats: floats_portable, integers: integers_portable },
    }
}

unsafe fn floats_portable(a: &Steps, b: &Steps, rows: &Rows) {
    // SAFETY: the caller's promises are `Floats`'.
    unsafe { floats::<false>(a, b, rows) }
}

unsafe fn integers_portable(a: &Square<i32>, b: &Square<i32>, sums: &mut Square<i32>) {
    integers(a, b, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn floats_avx2(a: &Steps, b: &Steps, rows: &Rows) {
    // SAFETY: the caller's promises are `Floats`'.
    unsafe { floats::<true>(a, b, rows) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn integers_avx2(a: &Square<i32>, b: &Square<i32>, sums: &mut Square<i32>) {
    integers(a, b, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn floats_avx512(a: &Steps, b: &Steps, rows: &Rows) {
    // SAFETY: the caller's promises are `Floats`'.
    unsafe { floats::<true>(a, b, rows) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn integers_avx512(a: &Square<i32>, b: &Square<i32>, sums: &mut Square<i32>) {
    integers(a, b, sums);
}

/// Rows whose sums stay in registers while `k` runs.
const ROWS: usize = 4;

#[inline(always)]
unsafe fn floats<const F16C: bool>(a: &Steps, b: &Steps, Rows { from, to }: &Rows) {
    let (mut x, mut y) = ([[0.0; 16]; 16], [[0.0; 16]; 16]);
    // SAFETY: the caller's promises are `Floats`'.
    unsafe {
        widened::<F16C>(a, &mut x);
        widened::<F16C>(b, &mut y);
    }
    for block in 0..16 / ROWS {
        let first = block * ROWS;
        // SAFETY: as above; no alignment is asked for.
        let mut acc: [[f32; 16]; ROWS] =
            std::array::from_fn(|row| unsafe { from[first + row].cast::<[f32; 16]>().read_unaligned() });
        for k in 0..16 {
            for (row, sum) in acc.iter_mut().enumerate() {
                let factor = x[k][first + row];
                for (sum, y) in sum.iter_mut().zip(&y[k]) {
                    *sum = factor.mul_add(*y, *sum);
                }
            }
        }
        for (row, sum) in acc.iter().enumerate() {
            // SAFETY: as above.
            unsafe { to[first + row].cast::<[f32; 16]>().write_unaligned(*sum) };
        }
    }
}

#[inline(always)]
fn integers(a: &Square<i32>, b: &Square<i32>, sums: &mut Square<i32>) {
    for (block, rows) in sums.chunks_exact_mut(ROWS).enumerate() {
        let mut acc: [[i32; 16]; ROWS] = std::array::from_fn(|row| rows[row]);
        for k in 0..16 {
            for (row, sum) in acc.iter_mut().enumerate() {
                let factor = a[k][block * ROWS + row];
                for (sum, y) in sum.iter_mut().zip(&b[k]) {
                    *sum = sum.wrapping_add(factor.wrapping_mul(*y));
                }
            }
        }
        rows.copy_from_slice(&acc);
    }
}

/// The operand's elements as f32. `F16C`: whether there is an instruction for halves.
#[inline(always)]
unsafe fn widened<const F16C: bool>(steps: &Steps, to: &mut Square<f32>) {
    for (at, to) in steps.at.iter().zip(to) {
        // SAFETY: the caller's promises are `Floats`'; no alignment is asked for.
        unsafe {
            match steps.float {
                Float::F32 => *to = at.cast::<[f32; 16]>().read_unaligned(),
                #[cfg(target_arch = "x86_64")]
                Float::F16 if F16C => {
                    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
                    for half in 0..2 {
                        let bits = _mm_loadu_si128(at.cast::<[u16; 8]>().add(half).cast());
                        _mm256_storeu_ps(to.as_mut_ptr().add(half * 8), _mm256_cvtph_ps(bits));
                    }
                }
                Float::F16 => *to = at.cast::<[u16; 16]>().read_unaligned().map(f16_to_f32),
                Float::BF16 => {
                    *to = at.cast::<[u16; 16]>().read_unaligned().map(|bits| f32::from_bits(u32::from(bits) << 16));
                }
            }
        }
    }
}

/// The f32 of the same value, without a branch: a NaN stays one, whichever.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const SMALLEST_NORMAL: u32 = 113 << 23;
    let bits = u32::from(bits);
    let sign = (bits & 0x8000) << 16;
    let shifted = (bits & 0x7fff) << 13;
    let exponent = shifted & (0x1f << 23);
    // Rebased; an exponent of all ones stays one.
    let normal = shifted + ((127 - 15) << 23) + if exponent == 0x1f << 23 { (128 - 16) << 23 } else { 0 };
    // A subnormal's significand counts from 2^-14 up: subtracting that leaves the value, exactly.
    let small = f32::from_bits(shifted + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL);
    f32::from_bits(if exponent == 0 { small.to_bits() } else { normal } | sign)
}

/// Eight rows of eight, as eight columns.
pub(super) fn transposed(rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi16, _mm_unpacklo_epi16};
        // SAFETY: SSE2 is part of x86-64, and a row has the sixteen bytes of a register.
        unsafe {
            let mut held: [__m128i; 8] = rows.map(|row| _mm_loadu_si128(row.as_ptr().cast()));
            // Each time the upper bit of an element's row becomes the lowest of its column, and of its column that of its row.
            for _ in 0..3 {
                held = std::array::from_fn(|row| {
                    let (a, b) = (held[row / 2], held[row / 2 + 4]);
                    if row % 2 == 0 { _mm_unpacklo_epi16(a, b) } else { _mm_unpackhi_epi16(a, b) }
                });
            }
            held.map(|row| {
                let mut out = [0; 8];
                _mm_storeu_si128(out.as_mut_ptr().cast(), row);
                out
            })
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::array::from_fn(|row| std::array::from_fn(|column| rows[column][row]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom_compiler::eval;
    use loom_compiler::types::ScalarType;

    #[test]
    fn every_half_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (f16_to_f32(bits), eval::to_f64(ScalarType::F16, u64::from(bits)) as f32);
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{bits:#06x}");
        }
    }

    /// Against the same sums one by one, in place and not, for halves of every kind but NaN.
    #[test]
    fn sums_are_chains_in_ascending_steps_on_every_set_of_instructions() {
        let half = |i: u32| match i.wrapping_mul(0x9e37_79b9) >> 16 {
            bits if bits & 0x7c00 == 0x7c00 => 0x0001 | (bits as u16 & 0x8000),
            bits => bits as u16,
        };
        let a: Square<u16> = std::array::from_fn(|k| std::array::from_fn(|row| half((k * 16 + row) as u32)));
        let b: Square<u16> =
            std::array::from_fn(|k| std::array::from_fn(|column| half(7777 + (k * 16 + column) as u32)));
        let value = |bits: u16| eval::to_f64(ScalarType::F16, u64::from(bits)) as f32;
        let start: Square<f32> = std::array::from_fn(|row| std::array::from_fn(|column| (row * 31 + column) as f32));
        let expected: Square<f32> = std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                (0..16).fold(start[row][column], |sum, k| value(a[k][row]).mul_add(value(b[k][column]), sum))
            })
        });
        let steps = |of: &Square<u16>| Steps { float: Float::F16, at: std::array::from_fn(|k| of[k].as_ptr().cast()) };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let (mut held, mut made) = (start, [[0.0; 16]; 16]);
            let from = std::array::from_fn(|row| held[row].as_ptr());
            let rows = Rows { from, to: std::array::from_fn(|row| made[row].as_mut_ptr()) };
            // SAFETY: rows and steps are of sixteen elements, and nobody else has them.
            unsafe { (products(isa).floats)(&steps(&a), &steps(&b), &rows) };
            assert_eq!(made, expected, "{isa}");
            let to = std::array::from_fn(|row| held[row].as_mut_ptr());
            // SAFETY: as above.
            unsafe { (products(isa).floats)(&steps(&a), &steps(&b), &Rows { from: to.map(|at| at.cast_const()), to }) };
            assert_eq!(held, expected, "{isa}");
        }
    }

    #[test]
    fn columns_of_columns_are_rows() {
        let rows: [[u16; 8]; 8] = std::array::from_fn(|row| std::array::from_fn(|column| (row * 100 + column) as u16));
        let columns = transposed(rows);
        assert_eq!(columns[3], [3, 103, 203, 303, 403, 503, 603, 703]);
        assert_eq!(transposed(columns), rows);
    }
}
