//! Arithmetic on the bits of scalars: the one home of what the element-wise ops compute.
//!
//! Folding, the launch program, the interpreter and, lane by lane, every other executor agree because they all agree with
//! this. A value of type `T` is its bits in the low `T.bits()` of a `u64`, the rest zero.
//!
//! - Total: no input traps. Out-of-contract inputs have the results that `ops` states.
//! - f16, bf16 and fp8 are computed in f32 (fma in f64, to odd) and rounded once.
//! - Not here: which type an op takes (`build` has checked that); vectors (lane by lane, by the caller).

use half::{bf16, f16};

use crate::math;
use crate::ops::{Binary, Classify, Combine, Convert, Element, FloatPredicate, IntPredicate, Ternary, Unary};
use crate::types::ScalarType;
use serde::{Deserialize, Serialize};

/// The low `bits` of a word.
const fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// `bits` as a signed number of type `ty`. `i1` true is −1.
pub const fn signed(ty: ScalarType, bits: u64) -> i64 {
    let shift = 64 - ty.bits();
    ((bits << shift) as i64) >> shift
}

/// The bits of the float nearest to `value`, ties to even, of a format with `exponent` and `mantissa` bits whose bias is
/// the usual one. Overflow gives `overflow`; a NaN gives `nan`.
fn small_float(value: f64, mantissa: u32, bias: i32, largest: f64, overflow: u64, nan: u64) -> u64 {
    let sign = u64::from(value.is_sign_negative()) << 7;
    if value.is_nan() {
        return sign | nan;
    }
    let magnitude = value.abs();
    // The binade of the value, or that of the subnormals.
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let ulp = 2f64.powi(exponent - mantissa as i32);
    let steps = (magnitude / ulp).round_ties_even();
    if steps * ulp > largest {
        return sign | overflow;
    }
    // `steps` counts from zero for subnormals, and from 2^mantissa for the others; a carry into the next binade adds up.
    sign | ((steps as u64) + (((exponent + bias - 1) as u64) << mantissa))
}

fn small_value(bits: u64, mantissa: u32, bias: i32) -> f64 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = ((bits & 0x7f) >> mantissa) as i32;
    let fraction = (bits & mask(mantissa)) as f64;
    let leading = if exponent == 0 { 0.0 } else { f64::from(1u32 << mantissa) };
    sign * (leading + fraction) * 2f64.powi(exponent.max(1) - bias - mantissa as i32)
}

/// The value of a float's bits, exactly. Zero for types that are no floats.
pub fn to_f64(ty: ScalarType, bits: u64) -> f64 {
    match ty {
        ScalarType::F64 => f64::from_bits(bits),
        ScalarType::F32 => f64::from(f32::from_bits(bits as u32)),
        ScalarType::F16 => f64::from(f16::from_bits(bits as u16).to_f32()),
        ScalarType::BF16 => f64::from(bf16::from_bits(bits as u16).to_f32()),
        ScalarType::F8E4M3 if bits & 0x7f == 0x7f => f64::NAN,
        ScalarType::F8E4M3 => small_value(bits, 3, 7),
        ScalarType::F8E5M2 if bits & 0x7f > 0x7c => f64::NAN,
        ScalarType::F8E5M2 if bits & 0x7f == 0x7c => f64::INFINITY.copysign(if bits & 0x80 == 0 { 1.0 } else { -1.0 }),
        ScalarType::F8E5M2 => small_value(bits, 2, 15),
        ScalarType::Index
        | ScalarType::Offset
        | ScalarType::I1
        | ScalarType::I8
        | ScalarType::I16
        | ScalarType::I32
        | ScalarType::I64 => 0.0,
    }
}

/// `value` in f32, rounded so that a second rounding to at most 22 bits gives what one rounding would: inexact results
/// get an odd last bit (Boldo and Melquiond, "When double rounding is odd").
fn to_odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    // The neighbour on the other side of the value is odd, since the nearest one is even.
    if nearest.is_infinite() || back.abs() > value.abs() {
        f32::from_bits(nearest.to_bits() - 1)
    } else {
        f32::from_bits(nearest.to_bits() + 1)
    }
}

/// The bits of the float of type `ty` nearest to `value`, ties to even, rounded once. Overflow is an infinity, but ±448 in
/// E4M3, which has none. Zero for types that are no floats.
pub fn from_f64(ty: ScalarType, value: f64) -> u64 {
    match ty {
        ScalarType::F64 => value.to_bits(),
        ScalarType::F32 => u64::from((value as f32).to_bits()),
        ScalarType::F16 => u64::from(f16::from_f32(to_odd_f32(value)).to_bits()),
        ScalarType::BF16 => u64::from(bf16::from_f32(to_odd_f32(value)).to_bits()),
        ScalarType::F8E4M3 => small_float(value, 3, 7, 448.0, 0x7e, 0x7f),
        ScalarType::F8E5M2 => small_float(value, 2, 15, 57344.0, 0x7c, 0x7e),
        ScalarType::Index
        | ScalarType::Offset
        | ScalarType::I1
        | ScalarType::I8
        | ScalarType::I16
        | ScalarType::I32
        | ScalarType::I64 => 0,
    }
}

fn to_f32(ty: ScalarType, bits: u64) -> f32 {
    match ty {
        ScalarType::F32 => f32::from_bits(bits as u32),
        ScalarType::F16 => f16::from_bits(bits as u16).to_f32(),
        ScalarType::BF16 => bf16::from_bits(bits as u16).to_f32(),
        // Exact: fp8 has few bits, and f64 never comes here.
        _ => to_f64(ty, bits) as f32,
    }
}

fn from_f32(ty: ScalarType, value: f32) -> u64 {
    match ty {
        ScalarType::F32 => u64::from(value.to_bits()),
        ScalarType::F16 => u64::from(f16::from_f32(value).to_bits()),
        ScalarType::BF16 => u64::from(bf16::from_f32(value).to_bits()),
        _ => from_f64(ty, f64::from(value)),
    }
}

/// Applies the function for f64 if `ty` is that, else the one for f32, rounding its result to `ty`.
fn unary_float(ty: ScalarType, x: u64, narrow: fn(f32) -> f32, wide: fn(f64) -> f64) -> u64 {
    match ty {
        ScalarType::F64 => wide(f64::from_bits(x)).to_bits(),
        _ => from_f32(ty, narrow(to_f32(ty, x))),
    }
}

fn binary_float(ty: ScalarType, a: u64, b: u64, narrow: fn(f32, f32) -> f32, wide: fn(f64, f64) -> f64) -> u64 {
    match ty {
        ScalarType::F64 => wide(f64::from_bits(a), f64::from_bits(b)).to_bits(),
        _ => from_f32(ty, narrow(to_f32(ty, a), to_f32(ty, b))),
    }
}

/// `op` of the value `x` of type `ty`.
pub fn unary(op: Unary, ty: ScalarType, x: u64) -> u64 {
    let width = ty.bits();
    let sign = 1u64 << (width - 1);
    let float = |narrow: fn(f32) -> f32, wide: fn(f64) -> f64| unary_float(ty, x, narrow, wide);
    match op {
        Unary::NegI => x.wrapping_neg() & mask(width),
        Unary::AbsI => (signed(ty, x).wrapping_abs() as u64) & mask(width),
        Unary::CtlzI => u64::from((x & mask(width)).leading_zeros() - (64 - width)),
        Unary::CttzI => u64::from(x.trailing_zeros().min(width)),
        Unary::CtpopI => u64::from(x.count_ones()),
        Unary::SignI => (signed(ty, x).signum() as u64) & mask(width),
        Unary::NegF => x ^ sign,
        Unary::AbsF => x & !sign,
        Unary::SignF => float(math::sign, math::sign_f64),
        Unary::CeilF => float(f32::ceil, f64::ceil),
        Unary::FloorF => float(f32::floor, f64::floor),
        Unary::TruncF => float(f32::trunc, f64::trunc),
        Unary::RoundF => float(f32::round, f64::round),
        Unary::RoundEvenF => float(f32::round_ties_even, f64::round_ties_even),
        Unary::ExpF => float(math::exp, f64::exp),
        Unary::ApproximateExpF => float(math::approximate_exp, f64::exp),
        Unary::Exp2F => float(math::exp2, f64::exp2),
        Unary::Expm1F => float(math::expm1, f64::exp_m1),
        Unary::LogF => float(math::log, f64::ln),
        Unary::Log2F => float(math::log2, f64::log2),
        Unary::Log10F => float(math::log10, f64::log10),
        Unary::Log1pF => float(math::log1p, f64::ln_1p),
        Unary::SqrtF => float(math::sqrt, f64::sqrt),
        Unary::RsqrtF => float(math::rsqrt, |x| 1.0 / x.sqrt()),
        Unary::CbrtF => float(math::cbrt, f64::cbrt),
        Unary::SinF => float(math::sin, f64::sin),
        Unary::CosF => float(math::cos, f64::cos),
        Unary::TanF => float(math::tan, f64::tan),
        Unary::AsinF => float(math::asin, f64::asin),
        Unary::AcosF => float(math::acos, f64::acos),
        Unary::AtanF => float(math::atan, f64::atan),
        Unary::SinhF => float(math::sinh, f64::sinh),
        Unary::CoshF => float(math::cosh, f64::cosh),
        Unary::TanhF => float(math::tanh, f64::tanh),
        Unary::AsinhF => float(math::asinh, math::asinh_f64),
        Unary::AcoshF => float(math::acosh, math::acosh_f64),
        Unary::AtanhF => float(math::atanh, math::atanh_f64),
        Unary::ErfF => float(math::erf, math::erf_f64),
        Unary::ErfcF => float(math::erfc, math::erfc_f64),
        Unary::SinTurnsF => float(math::sinturns, math::sinturns_f64),
        Unary::CosTurnsF => float(math::costurns, math::costurns_f64),
        Unary::LogisticF => float(math::logistic, math::logistic_f64),
        Unary::SiluF => float(math::silu, math::silu_f64),
        Unary::SoftplusF => float(math::softplus, math::softplus_f64),
        Unary::GeluErfF => float(math::gelu_erf, math::gelu_erf_f64),
        Unary::GeluTanhF => float(math::gelu_tanh, math::gelu_tanh_f64),
    }
}

/// `op` of two values of type `ty`.
pub fn binary(op: Binary, ty: ScalarType, a: u64, b: u64) -> u64 {
    let width = ty.bits();
    let (sa, sb) = (signed(ty, a), signed(ty, b));
    let low = |value: u64| value & mask(width);
    let float = |narrow: fn(f32, f32) -> f32, wide: fn(f64, f64) -> f64| binary_float(ty, a, b, narrow, wide);
    // Every width is a power of two, `i1` included.
    let count = (b & u64::from(width - 1)) as u32;
    match op {
        Binary::AddI => low(a.wrapping_add(b)),
        Binary::SubI => low(a.wrapping_sub(b)),
        Binary::MulI => low(a.wrapping_mul(b)),
        Binary::DivSI => low(if sb == 0 { 0 } else { sa.wrapping_div(sb) as u64 }),
        Binary::RemSI => low(if sb == 0 { 0 } else { sa.wrapping_rem(sb) as u64 }),
        Binary::DivUI => a.checked_div(b).unwrap_or(0),
        Binary::RemUI => a.checked_rem(b).unwrap_or(0),
        Binary::CeilDivSI | Binary::FloorDivSI => {
            if sb == 0 {
                return 0;
            }
            let (quotient, rest) = (sa.wrapping_div(sb), sa.wrapping_rem(sb));
            let positive = (rest < 0) == (sb < 0);
            low(match (op, rest != 0, positive) {
                (Binary::CeilDivSI, true, true) => quotient.wrapping_add(1),
                (Binary::FloorDivSI, true, false) => quotient.wrapping_sub(1),
                _ => quotient,
            } as u64)
        }
        Binary::CeilDivUI => {
            if b == 0 {
                0
            } else {
                a.div_ceil(b)
            }
        }
        Binary::MinSI => {
            if sa < sb {
                a
            } else {
                b
            }
        }
        Binary::MaxSI => {
            if sa > sb {
                a
            } else {
                b
            }
        }
        Binary::MinUI => a.min(b),
        Binary::MaxUI => a.max(b),
        Binary::AndI => a & b,
        Binary::OrI => a | b,
        Binary::XorI => a ^ b,
        Binary::ShlI => low(a << count),
        Binary::ShrSI => low((sa >> count) as u64),
        Binary::ShrUI => a >> count,
        Binary::RotLI | Binary::RotRI => {
            let left = if op == Binary::RotLI { count } else { (width - count) % width };
            if left == 0 { a } else { low(a << left) | (a >> (width - left)) }
        }
        Binary::AddF => float(|a, b| a + b, |a, b| a + b),
        Binary::SubF => float(|a, b| a - b, |a, b| a - b),
        Binary::MulF => float(|a, b| a * b, |a, b| a * b),
        Binary::DivF => float(|a, b| a / b, |a, b| a / b),
        Binary::RemF => float(|a, b| a % b, |a, b| a % b),
        Binary::CopySignF => {
            let sign = 1u64 << (width - 1);
            (a & !sign) | (b & sign)
        }
        Binary::MinNumF => float(math::minnum, math::minnum_f64),
        Binary::MaxNumF => float(math::maxnum, math::maxnum_f64),
        Binary::MinimumF => float(math::minimum, math::minimum_f64),
        Binary::MaximumF => float(math::maximum, math::maximum_f64),
        Binary::PowF => float(math::pow, f64::powf),
        Binary::Atan2F => float(math::atan2, f64::atan2),
        Binary::GeluLogisticF => float(math::gelu_logistic, math::gelu_logistic_f64),
    }
}

/// `a·b + c` in a type narrower than f32, rounded once: the product is exact in f64, the sum is rounded to odd there.
fn fma_narrow(ty: ScalarType, a: u64, b: u64, c: u64) -> u64 {
    let product = to_f64(ty, a) * to_f64(ty, b);
    let addend = to_f64(ty, c);
    let sum = product + addend;
    // Knuth's two-sum: `sum + error` is exactly `product + addend`.
    let part = sum - product;
    let error = (product - (sum - part)) + (addend - part);
    let odd = if error == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        sum
    } else if (error > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    };
    from_f64(ty, odd)
}

/// `op` of three values of type `ty`.
pub fn ternary(op: Ternary, ty: ScalarType, a: u64, b: u64, c: u64) -> u64 {
    match op {
        Ternary::FmaI => binary(Binary::AddI, ty, binary(Binary::MulI, ty, a, b), c),
        Ternary::FmaF => match ty {
            ScalarType::F64 => f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits(),
            ScalarType::F32 => from_f32(ty, to_f32(ty, a).mul_add(to_f32(ty, b), to_f32(ty, c))),
            _ => fma_narrow(ty, a, b, c),
        },
        Ternary::ClampOrderedF => {
            let (value, low, high) = (to_f64(ty, a), to_f64(ty, b), to_f64(ty, c));
            let (raised, bits) = if value < low { (low, b) } else { (value, a) };
            if raised > high { c } else { bits }
        }
    }
}

/// Whether `predicate` holds of two values of type `ty`.
pub fn compare_int(predicate: IntPredicate, ty: ScalarType, a: u64, b: u64) -> bool {
    let (sa, sb) = (signed(ty, a), signed(ty, b));
    match predicate {
        IntPredicate::Eq => a == b,
        IntPredicate::Ne => a != b,
        IntPredicate::Slt => sa < sb,
        IntPredicate::Sle => sa <= sb,
        IntPredicate::Sgt => sa > sb,
        IntPredicate::Sge => sa >= sb,
        IntPredicate::Ult => a < b,
        IntPredicate::Ule => a <= b,
        IntPredicate::Ugt => a > b,
        IntPredicate::Uge => a >= b,
    }
}

/// Whether `predicate` holds of two values of type `ty`.
pub fn compare_float(predicate: FloatPredicate, ty: ScalarType, a: u64, b: u64) -> bool {
    let (a, b) = (to_f64(ty, a), to_f64(ty, b));
    let unordered = a.is_nan() || b.is_nan();
    match predicate {
        FloatPredicate::Oeq => a == b,
        FloatPredicate::Ogt => a > b,
        FloatPredicate::Oge => a >= b,
        FloatPredicate::Olt => a < b,
        FloatPredicate::Ole => a <= b,
        FloatPredicate::One => !unordered && a != b,
        FloatPredicate::Ord => !unordered,
        FloatPredicate::Ueq => unordered || a == b,
        FloatPredicate::Ugt => unordered || a > b,
        FloatPredicate::Uge => unordered || a >= b,
        FloatPredicate::Ult => unordered || a < b,
        FloatPredicate::Ule => unordered || a <= b,
        FloatPredicate::Une => unordered || a != b,
        FloatPredicate::Uno => unordered,
    }
}

/// Whether the value `x` of type `ty` is of the class.
pub fn classify(class: Classify, ty: ScalarType, x: u64) -> bool {
    let x = to_f64(ty, x);
    match class {
        Classify::IsNan => x.is_nan(),
        Classify::IsInf => x.is_infinite(),
        Classify::IsFinite => x.is_finite(),
    }
}

/// `x` of type `from` as a value of type `to`.
pub fn convert(op: Convert, from: ScalarType, to: ScalarType, x: u64) -> u64 {
    let width = to.bits();
    match op {
        Convert::ExtSI => (signed(from, x) as u64) & mask(width),
        Convert::ExtUI | Convert::Bitcast => x,
        Convert::TruncI => x & mask(width),
        // Straight to the type: by way of f64, an i64 would be rounded twice.
        Convert::SiToF => {
            let value = signed(from, x);
            match to {
                ScalarType::F32 => u64::from((value as f32).to_bits()),
                ScalarType::F64 => (value as f64).to_bits(),
                _ => from_f64(to, odd_from_u64(value.unsigned_abs()).copysign(if value < 0 { -1.0 } else { 1.0 })),
            }
        }
        Convert::UiToF => match to {
            ScalarType::F32 => u64::from((x as f32).to_bits()),
            ScalarType::F64 => (x as f64).to_bits(),
            _ => from_f64(to, odd_from_u64(x)),
        },
        Convert::FToSi => {
            let value = to_f64(from, x).trunc();
            let limit = i64::MAX >> (64 - width);
            // `as` saturates at 64 bits and turns NaN into 0; the clamp does the narrower widths.
            ((value as i64).clamp(-limit - 1, limit) as u64) & mask(width)
        }
        Convert::FToUi => (to_f64(from, x).trunc() as u64).min(mask(width)),
        Convert::ExtF | Convert::TruncF => from_f64(to, to_f64(from, x)),
    }
}

/// `x` in f64, inexact results made odd, so that rounding once more to a narrow type is right.
fn odd_from_u64(x: u64) -> f64 {
    if x >> 53 == 0 {
        return x as f64;
    }
    let drop = 11;
    let sticky = u64::from(x & mask(drop) != 0);
    ((x >> drop) | sticky) as f64 * f64::from(1u32 << drop)
}

/// What combines with any value of type `ty` to that value: what an exclusive scan starts with.
pub fn identity(combine: Combine, ty: ScalarType) -> u64 {
    let all = mask(ty.bits());
    match combine {
        Combine::AddI | Combine::OrI | Combine::XorI | Combine::MaxUI => 0,
        Combine::MulI => 1,
        Combine::AndI | Combine::MinUI => all,
        Combine::MinSI => all >> 1,
        Combine::MaxSI => all - (all >> 1),
        Combine::AddF => 0,
        Combine::MulF => from_f64(ty, 1.0),
        Combine::MinimumF | Combine::MinNumF => from_f64(ty, f64::INFINITY),
        Combine::MaximumF | Combine::MaxNumF => from_f64(ty, f64::NEG_INFINITY),
    }
}

/// One element-wise op at its types, as the launch program and tile programs run it. Operand types are in the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// `(T) -> T`, unchanged.
    Move(ScalarType),
    /// `(T) -> T`.
    Unary(Unary, ScalarType),
    /// `(T, T) -> T`.
    Binary(Binary, ScalarType),
    /// `(T, T, T) -> T`.
    Ternary(Ternary, ScalarType),
    /// `(T, T) -> i1`.
    CompareI(IntPredicate, ScalarType),
    /// `(T, T) -> i1`.
    CompareF(FloatPredicate, ScalarType),
    /// `(T) -> i1`.
    Classify(Classify, ScalarType),
    /// `(i1, T, T) -> T`.
    Select(ScalarType),
    /// `(from) -> to`.
    Convert(Convert, ScalarType, ScalarType),
    /// `(T, T, f32) -> f32`: the narrow floats are extended, exactly, and then fused: no other rounding than the fma's.
    FmaExtended(ScalarType),
    /// `t·(a - b) + b` of `t`, `a` and `b`, f32: the difference is rounded, product and sum once together.
    Blend,
    /// `(a - b)·c`, f32: difference and product are rounded.
    ScaledDifference,
    /// `exp(a - b)`, f32: the difference is rounded. The function is [`Unary::ExpF`] or [`Unary::ApproximateExpF`].
    ExpDifference {
        /// Whether it is the latter.
        approximate: bool,
    },
}

impl Op {
    /// `element` on first operands of type `from` with a result of type `to`.
    pub const fn new(element: Element, from: ScalarType, to: ScalarType) -> Self {
        match element {
            Element::Unary(op) => Self::Unary(op, from),
            Element::Binary(op) => Self::Binary(op, from),
            Element::Ternary(op) => Self::Ternary(op, from),
            Element::CompareI(predicate) => Self::CompareI(predicate, from),
            Element::CompareF(predicate) => Self::CompareF(predicate, from),
            Element::Classify(class) => Self::Classify(class, from),
            Element::Convert(convert) => Self::Convert(convert, from, to),
            Element::Select => Self::Select(to),
        }
    }

    /// How many operands it takes: the first so many of an instruction's three count.
    pub const fn operands(self) -> usize {
        match self {
            Self::Move(_) | Self::Unary(..) | Self::Classify(..) | Self::Convert(..) => 1,
            Self::Binary(..) | Self::CompareI(..) | Self::CompareF(..) | Self::ExpDifference { .. } => 2,
            Self::Ternary(..) | Self::Select(_) | Self::FmaExtended(_) | Self::Blend | Self::ScaledDifference => 3,
        }
    }

    /// The type of operand `at`.
    pub const fn operand(self, at: usize) -> ScalarType {
        match self {
            Self::Move(ty)
            | Self::Unary(_, ty)
            | Self::Binary(_, ty)
            | Self::Ternary(_, ty)
            | Self::CompareI(_, ty)
            | Self::CompareF(_, ty)
            | Self::Classify(_, ty)
            | Self::Convert(_, ty, _) => ty,
            Self::Select(ty) => {
                if at == 0 {
                    ScalarType::I1
                } else {
                    ty
                }
            }
            Self::Blend | Self::ScaledDifference | Self::ExpDifference { .. } => ScalarType::F32,
            Self::FmaExtended(ty) => {
                if at == 2 {
                    ScalarType::F32
                } else {
                    ty
                }
            }
        }
    }

    /// The bits of the result for the bits of the operands.
    pub fn evaluate(self, [a, b, c]: [u64; 3]) -> u64 {
        match self {
            Self::Move(_) => a,
            Self::Unary(op, ty) => unary(op, ty, a),
            Self::Binary(op, ty) => binary(op, ty, a, b),
            Self::Ternary(op, ty) => ternary(op, ty, a, b, c),
            Self::CompareI(predicate, ty) => compare_int(predicate, ty, a, b).into(),
            Self::CompareF(predicate, ty) => compare_float(predicate, ty, a, b).into(),
            Self::Classify(class, ty) => classify(class, ty, a).into(),
            Self::Select(_) => {
                if a & 1 == 1 {
                    b
                } else {
                    c
                }
            }
            Self::Convert(op, source, target) => convert(op, source, target, a),
            Self::FmaExtended(ty) => {
                let [a, b] = [a, b].map(|bits| convert(Convert::ExtF, ty, ScalarType::F32, bits));
                ternary(Ternary::FmaF, ScalarType::F32, a, b, c)
            }
            Self::Blend => {
                let difference = binary(Binary::SubF, ScalarType::F32, b, c);
                ternary(Ternary::FmaF, ScalarType::F32, a, difference, c)
            }
            Self::ExpDifference { approximate } => {
                unary(Unary::exp(approximate), ScalarType::F32, binary(Binary::SubF, ScalarType::F32, a, b))
            }
            Self::ScaledDifference => {
                let difference = binary(Binary::SubF, ScalarType::F32, a, b);
                binary(Binary::MulF, ScalarType::F32, difference, c)
            }
        }
    }

    /// The type of the result.
    pub const fn result(self) -> ScalarType {
        match self {
            Self::Move(ty) | Self::Unary(_, ty) | Self::Binary(_, ty) | Self::Ternary(_, ty) | Self::Select(ty) => ty,
            Self::CompareI(..) | Self::CompareF(..) | Self::Classify(..) => ScalarType::I1,
            Self::Convert(_, _, ty) => ty,
            Self::FmaExtended(_) | Self::Blend | Self::ScaledDifference | Self::ExpDifference { .. } => ScalarType::F32,
        }
    }
}
