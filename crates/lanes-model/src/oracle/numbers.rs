//! Elements of any type as f64 or i128, and back with one rounding.

use crate::tensor::{Element, Tensor};
use half::{bf16, f16};
use lanes_core::DType;

/// The elements of a tensor, in a type wide enough for every element type of their kind.
pub(super) enum Numbers {
    /// Floating point. Exact: f64 holds every f16, bf16 and f32.
    Float(Vec<f64>),
    /// Integers and truth values. Exact.
    Int(Vec<i128>),
}

impl Numbers {
    /// The elements of `tensor`.
    pub(super) fn read(tensor: &Tensor) -> Self {
        fn ints<T: Element + Into<i128>>(tensor: &Tensor) -> Numbers {
            Numbers::Int(tensor.values::<T>().iter().map(|&value| value.into()).collect())
        }
        match tensor.dtype() {
            DType::I8 => ints::<i8>(tensor),
            DType::I16 => ints::<i16>(tensor),
            DType::I32 => ints::<i32>(tensor),
            DType::I64 => ints::<i64>(tensor),
            DType::U8 => ints::<u8>(tensor),
            DType::U16 => ints::<u16>(tensor),
            DType::U32 => ints::<u32>(tensor),
            DType::U64 => ints::<u64>(tensor),
            DType::Bool => Self::Int(tensor.bools().iter().map(|&byte| byte.into()).collect()),
            _ => Self::Float(floats(tensor)),
        }
    }

    /// A tensor of `dtype` with these elements: floating point rounds to nearest, integers wrap. A kind that is not
    /// `dtype`'s is converted as [`cast`](super::elementwise::cast) says.
    pub(super) fn write(self, dtype: DType, shape: &[usize]) -> Tensor {
        match self {
            Self::Float(values) => write_floats(values, dtype, shape),
            Self::Int(values) => write_ints(values, dtype, shape),
        }
    }
}

/// The elements of a floating-point tensor. Panics on another type: import refuses what would come here with one.
pub(super) fn floats(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F16 => tensor.values::<f16>().iter().map(|value| value.to_f64()).collect(),
        DType::BF16 => tensor.values::<bf16>().iter().map(|value| value.to_f64()).collect(),
        DType::F32 => tensor.values::<f32>().iter().map(|&value| value.into()).collect(),
        DType::F64 => tensor.values::<f64>().to_vec(),
        other => panic!("{other} where a floating-point type was declared"),
    }
}

/// A function that writes `$wide` elements as any type. `as` is what is meant: to integers a float truncates towards zero
/// and saturates, NaN giving 0, and an integer wraps; to floats both round to nearest.
macro_rules! writer {
    ($name:ident, $wide:ty) => {
        fn $name(values: Vec<$wide>, dtype: DType, shape: &[usize]) -> Tensor {
            fn to<T: Element>(values: Vec<$wide>, shape: &[usize], to: impl Fn($wide) -> T) -> Tensor {
                Tensor::from_vec(shape.to_vec(), values.into_iter().map(to).collect())
            }
            match dtype {
                DType::F16 => to(values, shape, |value| f16::from_f64(value as f64)),
                DType::BF16 => to(values, shape, |value| bf16::from_f64(value as f64)),
                DType::F32 => to(values, shape, |value| value as f32),
                DType::F64 => to(values, shape, |value| value as f64),
                DType::Bool => {
                    let zero = 0 as $wide;
                    Tensor::from_bools(shape.to_vec(), values.into_iter().map(|value| value != zero).collect())
                }
                DType::I8 => to(values, shape, |value| value as i8),
                DType::I16 => to(values, shape, |value| value as i16),
                DType::I32 => to(values, shape, |value| value as i32),
                DType::I64 => to(values, shape, |value| value as i64),
                DType::U8 => to(values, shape, |value| value as u8),
                DType::U16 => to(values, shape, |value| value as u16),
                DType::U32 => to(values, shape, |value| value as u32),
                DType::U64 => to(values, shape, |value| value as u64),
                other => panic!("{other} is no element type of a model"),
            }
        }
    };
}
writer!(write_floats, f64);
writer!(write_ints, i128);

/// The error function to f64 precision: `2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (1·3·…·(2n+1))`, whose terms are all of one
/// sign (Abramowitz and Stegun 7.1.6). Beyond |x| = 6 it is ±1 in f64.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() >= 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-18 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from Abramowitz and Stegun, table 7.1.
    #[test]
    fn erf_matches_the_table() {
        for (x, expected) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (2.0, 0.995_322_265_0),
            (-1.0, -0.842_700_792_9),
        ] {
            assert!((erf(x) - expected).abs() < 5e-11, "erf({x}) = {}", erf(x));
        }
        assert_eq!(erf(f64::INFINITY), 1.0);
        assert!(erf(f64::NAN).is_nan());
    }
}
