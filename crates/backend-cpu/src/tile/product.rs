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

/// `sums[row][column] += Σ a[k][row] · b[k][column]`.
///
/// # Safety
///
/// Each step of the operands is valid for reading sixteen elements. The set of instructions is available.
pub(super) type Floats = unsafe fn(a: &Steps, b: &Steps, sums: &mut Square<f32>);

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

unsafe fn floats_portable(a: &Steps, b: &Steps, sums: &mut Square<f32>) {
    // SAFETY: the caller's promises are `Floats`'.
    unsafe { floats(a, b, sums) }
}

unsafe fn integers_portable(a: &Square<i32>, b: &Square<i32>, sums: &mut Square<i32>) {
    integers(a, b, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn floats_avx2(a: &Steps, b: &Steps, sums: &mut Square<f32>) {
    // SAFETY: the caller's promises are `Floats`'.
    unsafe { floats(a, b, sums) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn integers_avx2(a: &Square<i32>, b: &Square<i32>, sums: &mut Square<i32>) {
    integers(a, b, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn floats_avx512(a: &Steps, b: &Steps, sums: &mut Square<f32>) {
    // SAFETY: the caller's promises are `Floats`'.
    unsafe { floats(a, b, sums) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn integers_avx512(a: &Square<i32>, b: &Square<i32>, sums: &mut Square<i32>) {
    integers(a, b, sums);
}

/// Rows whose sums stay in registers while `k` runs.
const ROWS: usize = 4;

#[inline(always)]
unsafe fn floats(a: &Steps, b: &Steps, sums: &mut Square<f32>) {
    let (mut x, mut y) = ([[0.0; 16]; 16], [[0.0; 16]; 16]);
    // SAFETY: the caller's promises are `Floats`'.
    unsafe {
        widened(a, &mut x);
        widened(b, &mut y);
    }
    for (block, rows) in sums.chunks_exact_mut(ROWS).enumerate() {
        let mut acc: [[f32; 16]; ROWS] = std::array::from_fn(|row| rows[row]);
        for k in 0..16 {
            for (row, sum) in acc.iter_mut().enumerate() {
                let factor = x[k][block * ROWS + row];
                for (sum, y) in sum.iter_mut().zip(&y[k]) {
                    *sum = factor.mul_add(*y, *sum);
                }
            }
        }
        rows.copy_from_slice(&acc);
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

/// The operand's elements as f32.
#[inline(always)]
unsafe fn widened(steps: &Steps, to: &mut Square<f32>) {
    for (at, to) in steps.at.iter().zip(to) {
        // SAFETY: the caller's promises are `Floats`'; no alignment is asked for.
        unsafe {
            match steps.float {
                Float::F32 => *to = at.cast::<[f32; 16]>().read_unaligned(),
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
}
