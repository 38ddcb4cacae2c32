//! The float functions of the `scalar` and `vector` dialects: one definition for the interpreter and the CPU's tiles.
//!
//! ```text
//! f32 in ──> short f32 polynomial, exact FMAs ──────────────> f32   exp log tanh logistic silu erf
//!        └─> f64 core (`exp_core`, `ln_core`, polynomial) ──> f32   exp2 pow log2 softplus gelu erfc ...
//!        └─> the standard library in f64 ───────────────────> f32   sin cos tan asin acos atan atan2
//! ```
//!
//! - A function gives the same bits however it is compiled: every rounding is written down (`mul_add` where one
//!   rounding is meant, `*` and `+` where two are), so a loop over it may be vectorised at any width.
//! - No branch on data in the first two groups: special cases are selects, so that loops over them do vectorise.
//! - Subnormals are kept, NaN stays NaN (its payload is free), and the sign of zero follows IEEE 754 and C.
//! - The stated accuracy is the largest error that the tests below measured over a sweep of bit patterns, in units in
//!   the last place of the correctly rounded result.
//! - Not here: rounding to 16 and 8 bits (`half`, and the emitters), and what an operation does with integers.
//!
//! The polynomials are minimax fits (Remez exchange in 40 digits) made for this file, on the intervals stated.

use std::f64::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E, LOG10_E};

/// Coefficients, the constant one first: of the functions here, and of what `expand` makes of them for others to run.
pub(crate) mod coefficients {
    /// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2: 3.2e-9 relative to e^r.
    pub const EXP: [f32; 5] = [0.499_999_94, 0.166_665_18, 0.041_668_423, 0.008_369_063, 0.001_381_391_2];
    /// 2 e^r for |r| <= ln(2) / 2: 9.2e-8 relative.
    pub const TWICE_EXP: [f32; 6] = [2.0, 1.999_999_4, 0.999_982_96, 0.333_353_04, 0.083_796_35, 0.016_578_724];
    /// (ln(1 + f) - f + f^2 / 2) / f^3 for |f| <= 1/3: 4.6e-9 relative to ln(1 + f).
    pub const LOG: [f32; 8] = [
        0.333_332_15,
        -0.249_997_97,
        0.200_104_06,
        -0.166_804_92,
        0.140_058_68,
        -0.121_841_96,
        0.139_844_49,
        -0.128_919_45,
    ];
    /// (tanh x - x) / x^3 over x^2 for |x| <= 0.625: 4.4e-9 relative to tanh x.
    pub const TANH: [f32; 5] = [-0.333_332_8, 0.133_314_42, -0.053_739_715, 0.020_639_079, -0.005_704_974_3];
    /// erf(x) / x - 1 over x^2 for |x| <= 0.93: 4.6e-10.
    pub const ERF_SMALL: [f32; 7] =
        [0.128_379_17, -0.376_126_32, 0.112_836_875, -0.026_858_94, 0.005_199_907, -0.000_813_001_3, 8.316_774_6e-5];
    /// -ln(erfc x) for 0.92 <= x <= 4: 4.2e-11 relative to 1.
    pub const ERF_LARGE: [f32; 8] = [
        -0.000_175_874_3,
        1.129_520_8,
        0.633_334_64,
        0.108_293_94,
        -0.025_128_623,
        0.004_174_642_3,
        -0.000_435_218_77,
        2.116_189_9e-5,
    ];
    /// e^r for |r| <= ln 2 / 2.
    pub const EXP_F64: [f64; 11] = [
        1.0,
        1.000_000_000_000_006_7,
        0.499_999_999_999_971_47,
        0.166_666_666_665_533_31,
        0.041_666_666_668_497_214,
        0.008_333_333_386_218_457,
        0.001_388_888_848_739_914_3,
        0.000_198_411_694_067_765_64,
        2.480_192_424_747_918_4e-5,
        2.764_059_292_814_106_7e-6,
        2.748_778_655_347_515_6e-7,
    ];
    /// 2 atanh(s) / s over s^2 for |s| <= 1/5.
    pub const LN_F64: [f64; 8] = [
        2.0,
        0.666_666_666_666_755_1,
        0.399_999_999_953_775_3,
        0.285_714_294_909_038_44,
        0.222_221_325_477_972_74,
        0.181_865_541_014_196_16,
        0.152_468_389_579_802_8,
        0.153_908_340_457_751_54,
    ];
    /// erfc(a) e^(a^2) (1 + 2a) over t = (a - 3) / (a + 3) for 0 <= a <= 10.2: 1.4e-11.
    pub const ERFC_F64: [f64; 14] = [
        1.253_008_058_277_955,
        -0.135_621_106_408_731_07,
        -0.047_562_295_863_896_87,
        0.129_645_175_150_217_95,
        -0.119_273_611_178_493_26,
        0.068_307_772_596_480_98,
        -0.023_771_243_741_237_225,
        0.002_530_854_130_876_774_6,
        0.001_893_494_564_105_762_7,
        -0.000_782_204_034_194_535_4,
        -0.000_119_923_407_269_070_8,
        0.000_119_770_502_099_591_2,
        2.175_204_925_414_261_2e-5,
        -4.031_249_924_996_111_5e-6,
    ];
}

/// Adding and subtracting it rounds an f32 of magnitude below 2^22 to an integer, ties to even.
pub(crate) const ROUND_F32: f32 = 12_582_912.0; // 1.5 * 2^23
/// The same for an f64 below 2^51.
pub(crate) const ROUND_F64: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// `c[0] + c[1] x + ...`, one fused multiply-add a step.
#[inline(always)]
fn poly<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum.mul_add(x, c[i]);
    }
    sum
}

/// [`poly`] in f64.
#[inline(always)]
fn poly64<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum.mul_add(x, c[i]);
    }
    sum
}

/// e^x as two factors whose product it is: the first is normal and holds all the rounding, the second is a power of
/// two. Split, because the product may be subnormal while the product of either with something else is not.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, f32) {
    // Beyond these x e^x and e^x are 0 or infinity. Written so that a NaN passes.
    let x = if x < -125.0 { -125.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_F32);
    let n = shifted - ROUND_F32;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = (r * r).mul_add(poly(r, coefficients::EXP), r) + 1.0;
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND_F32.to_bits() as i32);
    let half = n >> 1;
    (p * power_of_two(half), power_of_two(n.wrapping_sub(half)))
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// e^x. 1 ulp.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (p, scale) = exp_parts(x);
    p * scale
}

/// e^x for those who ask for an approximation: 6 ulp, but 0 below -86.99, where e^x is less than 2^-125.5. Half the
/// instructions of [`exp`].
#[inline(always)]
pub fn approximate_exp(x: f32) -> f32 {
    // Written so that a NaN passes.
    let x = if x < -87.3 { -87.3 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_F32);
    let n = shifted - ROUND_F32;
    let r = n.mul_add(-std::f32::consts::LN_2, x);
    // 2^(n-1), which is finite for the greatest n and 0 for the least; the low bits of `shifted` are n.
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(126) << 23);
    poly(r, coefficients::TWICE_EXP) * scale
}

/// ln x. 1 ulp.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    // Subnormals are scaled by 2^23 into the normal range.
    let small = x < f32::MIN_POSITIVE;
    let scaled = if small { x * 8_388_608.0 } else { x };
    let bias = if small { -23.0f32 } else { 0.0 };
    // x = m 2^k with m in [2/3, 4/3).
    let k = (scaled.to_bits() as i32).wrapping_sub(0x3f2a_aaab) >> 23;
    let f = f32::from_bits((scaled.to_bits() as i32).wrapping_sub(k << 23) as u32) - 1.0;
    let k = k as f32 + bias;
    let square = f * f;
    let r = (square * f).mul_add(poly(f, coefficients::LOG), square * -0.5);
    let r = k.mul_add(-2.121_944_4e-4, r) + f;
    let r = k.mul_add(0.693_359_4, r);
    let r = if x == f32::INFINITY { x } else { r };
    let r = if x == 0.0 { f32::NEG_INFINITY } else { r };
    // Negative, or NaN.
    if x >= 0.0 { r } else { f32::NAN }
}

/// tanh x. 1.5 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let square = x * x;
    let small = (square * a).mul_add(poly(square, coefficients::TANH), a);
    // Past 10 it is 1 to the last bit; the limit keeps the exponential finite.
    let e = exp(2.0 * if a > 10.0 { 10.0 } else { a });
    let large = 1.0 - 2.0 / (e + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// 1 / (1 + e^-x). 2.3 ulp.
#[inline(always)]
pub fn logistic(x: f32) -> f32 {
    // The exponential of a negative number can not overflow, and e / (1 + e) keeps its digits where it is tiny.
    let (p, scale) = exp_parts(-x.abs());
    let e = p * scale;
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// x / (1 + e^-x). 2.9 ulp.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    let (p, scale) = exp_parts(-x.abs());
    let sum = 1.0 + p * scale;
    // The power of two goes last: e^x may be subnormal where x e^x is not. At -inf the limit is -0.
    let negative = (x * p) / sum * scale;
    let negative = if x < -125.0 { -0.0 } else { negative };
    if x < 0.0 { negative } else { x / sum }
}

/// The error function. 1.2 ulp.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    let small = a.mul_add(poly(a * a, coefficients::ERF_SMALL), a);
    // Past 4 it is 1 to the last bit.
    let a4 = if a > 4.0 { 4.0 } else { a };
    let large = 1.0 - exp(-poly(a4, coefficients::ERF_LARGE));
    (if a < 0.925 { small } else { large }).copysign(x)
}

/// sqrt x, correctly rounded.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// 1 / sqrt x, in two correctly rounded steps. 1.5 ulp.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// e^x in f64 to about 4e-16, for |x| <= 700; NaN stays NaN.
#[inline(always)]
fn exp_core(x: f64) -> f64 {
    let x = if x < -700.0 { -700.0 } else { x };
    let x = if x > 700.0 { 700.0 } else { x };
    let shifted = x.mul_add(LOG2_E, ROUND_F64);
    let n = shifted - ROUND_F64;
    let r = n.mul_add(-LN_2, x);
    let r = n.mul_add(-LN_2_LOW, r);
    let n = shifted.to_bits().wrapping_sub(ROUND_F64.to_bits());
    poly64(r, coefficients::EXP_F64) * f64::from_bits(n.wrapping_add(1023) << 52)
}

/// ln 2 - `LN_2`.
pub(crate) const LN_2_LOW: f64 = 2.319_046_813_846_299_6e-17;

/// ln x in f64 to about 4e-16 relative, for positive normal finite x.
#[inline(always)]
fn ln_core(x: f64) -> f64 {
    // x = m 2^k with m in [2/3, 4/3). The exponent is kept unsigned (2048 more than k), because no 64-bit arithmetic
    // shift and no conversion from i64 exists below AVX-512.
    let above = x.to_bits().wrapping_sub(0x3fe5_5555_5555_5555).wrapping_add(2048 << 52) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub(above.wrapping_sub(2048) << 52));
    let k = f64::from_bits(above | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + 2048.0);
    let s = (m - 1.0) / (m + 1.0);
    k.mul_add(LN_2, s * poly64(s * s, coefficients::LN_F64))
}

/// ln x for any f32, in f64.
#[inline(always)]
fn ln_any(x: f32) -> f64 {
    let r = ln_core(x as f64);
    let r = if x == f32::INFINITY { f64::INFINITY } else { r };
    let r = if x == 0.0 { f64::NEG_INFINITY } else { r };
    if x >= 0.0 { r } else { f64::NAN }
}

/// ln(1 + x) in f64 for 0 <= x, to about 1e-10 relative.
#[inline(always)]
fn ln_1p_core(x: f64) -> f64 {
    let small = x * x.mul_add(-0.5, 1.0);
    let large = ln_core(1.0 + x);
    if x.abs() < 1e-6 { small } else { large }
}

/// 2^x. 1 ulp.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    exp_core(x as f64 * LN_2) as f32
}

/// e^x - 1. 1 ulp.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let wide = x as f64;
    let small = wide * wide.mul_add(0.5, 1.0);
    let large = exp_core(wide) - 1.0;
    // A zero keeps its sign; the square of a subnormal vanishes.
    (if x.abs() < 1e-5 { small } else { large }) as f32
}

/// log2 x. 1 ulp.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    (ln_any(x) * LOG2_E) as f32
}

/// log10 x. 1 ulp.
#[inline(always)]
pub fn log10(x: f32) -> f32 {
    (ln_any(x) * LOG10_E) as f32
}

/// ln(1 + x). 1 ulp.
#[inline(always)]
pub fn log1p(x: f32) -> f32 {
    let r = ln_1p_core(x as f64) as f32;
    let r = if x == f32::INFINITY { x } else { r };
    let r = if x == -1.0 { f32::NEG_INFINITY } else { r };
    if x >= -1.0 { r } else { f32::NAN }
}

/// x^y with the special cases of IEEE 754 `pow`. 1 ulp.
#[inline(always)]
pub fn pow(x: f32, y: f32) -> f32 {
    let a = x.abs();
    // |x| = 0 and |x| = inf give infinite logarithms, which y = 0 must not multiply: that case is decided below.
    let l = ln_any(a) * y as f64;
    let r = exp_core(l) as f32;
    // y is an integer, and odd. Every f32 from 2^24 on is an even integer.
    let whole = y.trunc() == y;
    let halved = y * 0.5;
    let odd = whole & (halved.trunc() != halved) & (y.abs() < 16_777_216.0);
    let r = if odd { r.copysign(x) } else { r };
    let r = if (x < 0.0) & !whole & (a < f32::INFINITY) { f32::NAN } else { r };
    // (-1)^(+-inf) = 1, and ln 1 * inf is NaN.
    let r = if (a == 1.0) & (y.abs() == f32::INFINITY) { 1.0 } else { r };
    if (y == 0.0) | (x == 1.0) { 1.0 } else { r }
}

/// The real cube root. 1 ulp.
#[inline(always)]
pub fn cbrt(x: f32) -> f32 {
    let r = exp_core(ln_core(x.abs() as f64) * (1.0 / 3.0)) as f32;
    let r = if (x == 0.0) | (x.abs() == f32::INFINITY) { x } else { r };
    if x.is_nan() { x } else { r.copysign(x) }
}

/// sin x. 1 ulp.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    (x as f64).sin() as f32
}

/// cos x. 1 ulp.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    (x as f64).cos() as f32
}

/// tan x. 1 ulp.
#[inline(always)]
pub fn tan(x: f32) -> f32 {
    (x as f64).tan() as f32
}

/// sin(2 pi x), exact at multiples of a quarter. 1 ulp.
#[inline(always)]
pub fn sinturns(x: f32) -> f32 {
    sinturns_f64(x as f64) as f32
}

/// cos(2 pi x), exact at multiples of a quarter. 1 ulp.
#[inline(always)]
pub fn costurns(x: f32) -> f32 {
    costurns_f64(x as f64) as f32
}

/// arcsin x. 1 ulp.
#[inline(always)]
pub fn asin(x: f32) -> f32 {
    (x as f64).asin() as f32
}

/// arccos x. 1 ulp.
#[inline(always)]
pub fn acos(x: f32) -> f32 {
    (x as f64).acos() as f32
}

/// arctan x. 1 ulp.
#[inline(always)]
pub fn atan(x: f32) -> f32 {
    (x as f64).atan() as f32
}

/// The angle of the point (x, y). 1 ulp.
#[inline(always)]
pub fn atan2(y: f32, x: f32) -> f32 {
    (y as f64).atan2(x as f64) as f32
}

/// sinh x. 1 ulp.
#[inline(always)]
pub fn sinh(x: f32) -> f32 {
    let a = x.abs() as f64;
    let square = a * a;
    let small = a * poly64(square, [1.0, 1.0 / 6.0, 1.0 / 120.0, 1.0 / 5040.0]);
    let e = exp_core(a);
    let large = (e - 1.0 / e) * 0.5;
    ((if a < 0.1 { small } else { large }) as f32).copysign(x)
}

/// cosh x. 1 ulp.
#[inline(always)]
pub fn cosh(x: f32) -> f32 {
    let e = exp_core(x.abs() as f64);
    ((e + 1.0 / e) * 0.5) as f32
}

/// arsinh x. 1 ulp.
#[inline(always)]
pub fn asinh(x: f32) -> f32 {
    let a = x.abs() as f64;
    let square = a * a;
    let small = a * poly64(square, [1.0, -1.0 / 6.0, 3.0 / 40.0]);
    let large = ln_core(a + (square + 1.0).sqrt());
    // Infinity and NaN stay.
    let r = if a < f64::INFINITY { large } else { a };
    ((if a < 1e-3 { small } else { r }) as f32).copysign(x)
}

/// arcosh x. 1 ulp.
#[inline(always)]
pub fn acosh(x: f32) -> f32 {
    let t = x as f64 - 1.0;
    let r = ln_core(1.0 + t + (t * (t + 2.0)).sqrt());
    let r = if x == f32::INFINITY { f64::INFINITY } else { r };
    if x >= 1.0 { r as f32 } else { f32::NAN }
}

/// artanh x. 1 ulp.
#[inline(always)]
pub fn atanh(x: f32) -> f32 {
    let a = x.abs() as f64;
    let square = a * a;
    let small = a * poly64(square, [1.0, 1.0 / 3.0, 1.0 / 5.0]);
    let large = 0.5 * ln_core((1.0 + a) / (1.0 - a));
    let r = if a < 1e-3 { small } else { large };
    let r = if a == 1.0 { f64::INFINITY } else { r };
    let r = if a <= 1.0 { r } else { f64::NAN };
    (r as f32).copysign(x)
}

/// erfc x in f64 to about 2e-11 relative, for any x.
#[inline(always)]
fn erfc_core(x: f64) -> f64 {
    let a = x.abs();
    // Past 10.1 it is below half of the least f32.
    let c = if a > 10.2 { 10.2 } else { a };
    let p = poly64((c - 3.0) / (c + 3.0), coefficients::ERFC_F64) / (1.0 + 2.0 * c);
    let r = p * exp_core(-a * a);
    if x < 0.0 { 2.0 - r } else { r }
}

/// 1 - erf x. 1 ulp.
#[inline(always)]
pub fn erfc(x: f32) -> f32 {
    erfc_core(x as f64) as f32
}

/// ln(1 + e^x). 1 ulp.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let wide = x as f64;
    let positive = if wide < 0.0 { 0.0 } else { wide };
    (positive + ln_1p_core(exp_core(-wide.abs()))) as f32
}

/// x Φ(x), Φ being the normal distribution. 1 ulp.
#[inline(always)]
pub fn gelu_erf(x: f32) -> f32 {
    let wide = x as f64;
    // The product of -inf with the tail's 0 is NaN where the limit is -0.
    let r = 0.5 * wide * erfc_core(-wide * FRAC_1_SQRT_2);
    if x < -40.0 { -0.0 } else { r as f32 }
}

/// x (1 + tanh(sqrt(2/π) (x + 0.044715 x³))) / 2. 1 ulp.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    let wide = x as f64;
    // (1 + tanh u) / 2 is the logistic function of 2u, which does not cancel.
    let u = 1.595_769_121_605_730_7 * wide * (0.044_715 * wide).mul_add(wide, 1.0);
    scaled_logistic(x, u)
}

/// x · logistic(scale · x). 1 ulp.
#[inline(always)]
pub fn gelu_logistic(x: f32, scale: f32) -> f32 {
    scaled_logistic(x, scale as f64 * x as f64)
}

/// x · logistic(u), in f64, rounded once.
#[inline(always)]
fn scaled_logistic(x: f32, u: f64) -> f32 {
    // `exp_core` stops at e^700: smaller than any f32 by far, and finite.
    let r = x as f64 / (1.0 + exp_core(-u));
    if (x == f32::NEG_INFINITY) & (u < 0.0) { -0.0 } else { r as f32 }
}

/// A choice between two floats of either width: `a` where `first` holds, else `b`; of equal values, which differ in bits
/// only as -0 and +0, the one that `zeros` makes of their bits.
macro_rules! choice {
    ($doc:literal, [$($name:ident: $float:ident),*], |$a:ident, $b:ident| first: $first:expr, zeros: $zeros:tt) => {
        $(
            #[doc = $doc]
            #[inline(always)]
            pub fn $name($a: $float, $b: $float) -> $float {
                let equal = $float::from_bits($a.to_bits() $zeros $b.to_bits());
                let r = if $first { $a } else { $b };
                if $a == $b { equal } else { r }
            }
        )*
    };
}
choice!("C `fmin`, with -0 below +0: a NaN loses to a number.",
    [minnum: f32, minnum_f64: f64], |a, b| first: (a < b) | b.is_nan(), zeros: |);
choice!("C `fmax`, with -0 below +0: a NaN loses to a number.",
    [maxnum: f32, maxnum_f64: f64], |a, b| first: (a > b) | b.is_nan(), zeros: &);
choice!("IEEE 754-2019 `minimum`: NaN if either is, -0 below +0.",
    [minimum: f32, minimum_f64: f64], |a, b| first: (a < b) | a.is_nan(), zeros: |);
choice!("IEEE 754-2019 `maximum`: NaN if either is, -0 below +0.",
    [maximum: f32, maximum_f64: f64], |a, b| first: (a > b) | a.is_nan(), zeros: &);

macro_rules! signs {
    ($($name:ident: $float:ident),*) => {
        $(
            /// -1, 0 or 1 by sign; zeros keep theirs, NaN stays NaN.
            #[inline(always)]
            pub fn $name(x: $float) -> $float {
                if (x == 0.0) | x.is_nan() { x } else { (1.0 as $float).copysign(x) }
            }
        )*
    };
}
signs!(sign: f32, sign_f64: f64);

/// The quarter turn nearest to x (mod 4), and the rest of the angle in radians.
#[inline(always)]
fn quarter_turns(x: f64) -> (i64, f64) {
    let fraction = x - x.trunc(); // exact; NaN for infinities
    let quarter = (fraction * 4.0).round();
    (quarter as i64 & 3, (fraction - quarter * 0.25) * std::f64::consts::TAU)
}

/// sin(2 pi x), exact at multiples of a quarter; a zero has the sign of x.
#[inline(always)]
pub fn sinturns_f64(x: f64) -> f64 {
    let (quarter, r) = quarter_turns(x);
    let sine = match quarter {
        0 => r.sin(),
        1 => r.cos(),
        2 => -r.sin(),
        _ => -r.cos(),
    };
    if sine == 0.0 { 0f64.copysign(x) } else { sine }
}

/// cos(2 pi x), exact at multiples of a quarter; a zero is +0.
#[inline(always)]
pub fn costurns_f64(x: f64) -> f64 {
    let (quarter, r) = quarter_turns(x);
    let cosine = match quarter {
        0 => r.cos(),
        1 => -r.sin(),
        2 => -r.cos(),
        _ => r.sin(),
    };
    cosine + 0.0
}

/// Past this, sqrt(x² ± 1) is x in f64, and 2x may be no number.
const ROOT_IS_ALL: f64 = (1u64 << 28) as f64;

/// arsinh x in f64, to about 1e-15 relative.
pub fn asinh_f64(x: f64) -> f64 {
    let a = x.abs();
    let r = if a > ROOT_IS_ALL { a.ln() + LN_2 } else { (a + a * a / (1.0 + (a * a + 1.0).sqrt())).ln_1p() };
    r.copysign(x)
}

/// arcosh x in f64, to about 1e-15 relative.
pub fn acosh_f64(x: f64) -> f64 {
    let t = x - 1.0; // negative below 1, and then the root is NaN
    if x > ROOT_IS_ALL { x.ln() + LN_2 } else { (t + t.sqrt() * (t + 2.0).sqrt()).ln_1p() }
}

/// artanh x in f64, to about 1e-15 relative.
pub fn atanh_f64(x: f64) -> f64 {
    // Of the magnitude: near -1 the quotient loses what is left.
    let a = x.abs();
    (0.5 * (2.0 * a / (1.0 - a)).ln_1p()).copysign(x)
}

/// The error function in f64, to about 1e-15 absolute: its Maclaurin series, or the complement.
pub fn erf_f64(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a < 2.0 {
        // x (1 + 2x^2/3 + (2x^2)^2/15 + ...) e^(-x^2) 2/sqrt(pi): all terms of one sign.
        let square = 2.0 * a * a;
        let (mut term, mut sum, mut odd) = (1.0, 1.0, 1.0);
        while term > 1e-18 * sum {
            odd += 2.0;
            term *= square / odd;
            sum += term;
        }
        return x * sum * (-a * a).exp() * std::f64::consts::FRAC_2_SQRT_PI;
    }
    (1.0 - erfc_f64(a)).copysign(x)
}

/// 1 - erf x in f64, to about 1e-13 relative: by a continued fraction (DLMF 7.9.1) from 2 on.
pub fn erfc_f64(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x < 0.0 {
        return if x < -2.0 { 2.0 - erfc_f64(-x) } else { 1.0 + erf_f64(-x) };
    }
    if x < 2.0 {
        // 1 - erf loses at most 8 of the 53 bits here.
        return 1.0 - erf_f64(x);
    }
    if x > 27.3 {
        return 0.0; // below the least f64
    }
    let mut tail = x;
    for k in (1..120).rev() {
        tail = x + 0.5 * k as f64 / tail;
    }
    (-x * x).exp() / tail * 0.5 * std::f64::consts::FRAC_2_SQRT_PI
}

/// 1 / (1 + e^-x) in f64.
pub fn logistic_f64(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// x / (1 + e^-x) in f64.
pub fn silu_f64(x: f64) -> f64 {
    if x == f64::NEG_INFINITY { -0.0 } else { x * logistic_f64(x) }
}

/// ln(1 + e^x) in f64.
pub fn softplus_f64(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

/// x Φ(x) in f64, Φ being the normal distribution.
pub fn gelu_erf_f64(x: f64) -> f64 {
    if x == f64::NEG_INFINITY { -0.0 } else { 0.5 * x * erfc_f64(-x * FRAC_1_SQRT_2) }
}

/// x (1 + tanh(sqrt(2/π) (x + 0.044715 x³))) / 2 in f64.
pub fn gelu_tanh_f64(x: f64) -> f64 {
    let u = 1.595_769_121_605_730_7 * x * (0.044_715 * x).mul_add(x, 1.0);
    if x == f64::NEG_INFINITY { -0.0 } else { x * logistic_f64(u) }
}

/// x · logistic(scale · x) in f64.
pub fn gelu_logistic_f64(x: f64, scale: f64) -> f64 {
    let u = scale * x;
    if (x == f64::NEG_INFINITY) & (u < 0.0) { -0.0 } else { x * logistic_f64(u) }
}
