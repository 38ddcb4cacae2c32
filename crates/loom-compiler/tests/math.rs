//! The math functions against the standard library in f64, over sweeps of f32 bit patterns.

use loom_compiler::math;

/// Every `stride`-th bit pattern, all borders between kinds of number, and dense stretches around the places where
/// functions switch formulas.
fn patterns(stride: usize) -> impl Iterator<Item = f32> {
    let borders = [0x0000_0000u32, 0x0080_0000, 0x3f80_0000, 0x7f80_0000, 0x7fc0_0000]
        .into_iter()
        .flat_map(|b| (-3i32..4).map(move |d| b.wrapping_add(d as u32)))
        .flat_map(|b| [b, b | 0x8000_0000]);
    let seams = [0.1f32, 0.625, 0.925, 1e-3, 1e-5, 1e-6, 2.0, 4.0, 9.01, 10.0, 10.2, 87.3, 88.7, 103.97, 104.0]
        .into_iter()
        .flat_map(|s| (-20i32..20).map(move |d| s.to_bits().wrapping_add((d * 7) as u32)))
        .flat_map(|b| [b, b | 0x8000_0000]);
    let sweep = (0..=u32::MAX).step_by(stride);
    sweep.chain(borders).chain(seams).map(f32::from_bits)
}

/// The distance of `found` from `exact` in units of the last place of the f32 nearest to `exact`.
fn ulps(found: f32, exact: f64) -> f64 {
    let nearest = exact as f32;
    if nearest.is_nan() || found.is_nan() {
        return if nearest.is_nan() && found.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if nearest == found {
        // A zero, an infinity or the best answer; a zero must have the right sign too.
        return if nearest == 0.0 && found.is_sign_negative() != exact.is_sign_negative() {
            f64::INFINITY
        } else if nearest.is_infinite() {
            0.0
        } else {
            (found as f64 - exact).abs() / spacing(nearest)
        };
    }
    if nearest.is_infinite() {
        // The largest finite number is next to infinity.
        return if found.abs() == f32::MAX && found.is_sign_positive() == nearest.is_sign_positive() {
            1.0
        } else {
            f64::INFINITY
        };
    }
    (found as f64 - exact).abs() / spacing(nearest)
}

/// From |x| to the next f32 above, in f64.
fn spacing(x: f32) -> f64 {
    let exponent = ((x.to_bits() >> 23) & 0xff).max(1) as i32;
    2f64.powi(exponent - 150)
}

/// The largest error of `f` against `exact`, which must not exceed `limit`.
#[track_caller]
fn check(name: &str, limit: f64, stride: usize, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
    let (mut worst, mut at) = (0.0, 0.0);
    for x in patterns(stride) {
        let error = ulps(f(x), exact(x as f64));
        if error > worst {
            (worst, at) = (error, x);
        }
    }
    println!("{name}: {worst:.3} ulp at {at:e}");
    assert!(worst <= limit, "{name}({at:e}) = {:e}, exactly {:e}: {worst} ulp", f(at), exact(at as f64));
}

fn log_of(x: f64, f: impl Fn(f64) -> f64) -> f64 {
    if x < 0.0 { f64::NAN } else { f(x) }
}

/// x times `f`, with the limit -0 at -inf.
fn gate(x: f64, f: f64) -> f64 {
    if x == f64::NEG_INFINITY { -0.0 } else { x * f }
}

/// ln(1 + e^x), without overflow.
fn softplus(x: f64) -> f64 {
    if x > 40.0 { x } else { x.exp().ln_1p() }
}

fn sweep(stride: usize) {
    check("exp", 1.0, stride, math::exp, f64::exp);
    check("approximate exp", 6.0, stride, math::approximate_exp, |x| if x < -86.99 { 0.0 } else { x.exp() });
    check("log", 1.0, stride, math::log, |x| log_of(x, f64::ln));
    check("tanh", 1.5, stride, math::tanh, f64::tanh);
    // Written for the reference's own sake: 1/(1 + e^-x) overflows to the right limits in f64.
    check("logistic", 2.3, stride, math::logistic, |x| 1.0 / (1.0 + (-x).exp()));
    check("silu", 2.9, stride, math::silu, |x| gate(x, 1.0 / (1.0 + (-x).exp())));
    check("erf", 1.2, stride, math::erf, math::erf_f64);
    check("sqrt", 0.5, stride, math::sqrt, f64::sqrt);
    check("rsqrt", 1.5, stride, math::rsqrt, |x| 1.0 / x.sqrt());
    check("exp2", 0.51, stride, math::exp2, f64::exp2);
    check("expm1", 0.51, stride, math::expm1, f64::exp_m1);
    check("log2", 0.51, stride, math::log2, |x| log_of(x, f64::log2));
    check("log10", 0.51, stride, math::log10, |x| log_of(x, f64::log10));
    check("log1p", 0.51, stride, math::log1p, |x| if x < -1.0 { f64::NAN } else { x.ln_1p() });
    check("cbrt", 0.51, stride, math::cbrt, f64::cbrt);
    check("sinh", 0.51, stride, math::sinh, f64::sinh);
    check("cosh", 0.51, stride, math::cosh, f64::cosh);
    check("asinh", 0.51, stride, math::asinh, |x| {
        if x.abs() > 1e8 { ((2.0 * x.abs()).ln()).copysign(x) } else { x.asinh() }
    });
    check("acosh", 0.51, stride, math::acosh, f64::acosh);
    check("atanh", 0.51, stride, math::atanh, |x| if x.abs() < 1e-4 { x * (x * x / 3.0 + 1.0) } else { x.atanh() });
    check("erfc", 0.51, stride, math::erfc, math::erfc_f64);
    check("softplus", 0.51, stride, math::softplus, softplus);
    check("gelu erf", 0.51, stride, math::gelu_erf, |x| gate(x, 0.5 * math::erfc_f64(-x / 2f64.sqrt())));
    check("gelu tanh", 0.51, stride, math::gelu_tanh, |x| {
        let u = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        gate(x, 1.0 / (1.0 + (-u).exp()))
    });
    check(
        "gelu logistic",
        0.51,
        stride,
        |x| math::gelu_logistic(x, 1.702),
        |x| gate(x, 1.0 / (1.0 + (-(1.702f32 as f64) * x).exp())),
    );
}

#[test]
fn functions_of_one_argument_are_within_their_error() {
    sweep(80_021);
}

/// The figures in the documentation: some minutes.
#[test]
#[ignore = "slow: measures the documented errors"]
fn the_documented_errors_hold_densely() {
    sweep(401);
}

#[test]
fn powers_are_within_their_error_and_have_the_special_cases() {
    let specials = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        3.0,
        -3.0,
        2.5,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        16_777_215.0,
        16_777_216.0,
        1.000_000_1,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        f32::from_bits((state >> 32) as u32)
    };
    let mut pairs: Vec<(f32, f32)> = specials.iter().flat_map(|&x| specials.iter().map(move |&y| (x, y))).collect();
    for _ in 0..40_000 {
        let (x, y) = (random(), random());
        // Most pairs of random patterns over- or underflow: let some have middling exponents.
        pairs.extend([
            (x, y),
            (
                f32::from_bits(x.to_bits() & 0x87ff_ffff | 0x3800_0000).abs(),
                f32::from_bits(y.to_bits() & 0x81ff_ffff | 0x4000_0000),
            ),
            (x, (y % 20.0).trunc()),
        ]);
    }
    for (x, y) in pairs {
        let error = ulps(math::pow(x, y), (x as f64).powf(y as f64));
        assert!(
            error <= 0.51,
            "pow({x:e}, {y:e}) = {:e}, exactly {:e}: {error} ulp",
            math::pow(x, y),
            (x as f64).powf(y as f64)
        );
    }
}

/// Values computed with 40 digits.
#[test]
fn the_error_function_in_f64_has_the_known_values() {
    let known = [
        (0.1, 0.112_462_916_018_284_9, 0.887_537_083_981_715),
        (0.5, 0.520_499_877_813_046_5, 0.479_500_122_186_953_5),
        (1.0, 0.842_700_792_949_714_9, 0.157_299_207_050_285_13),
        (2.0, 0.995_322_265_018_952_7, 0.004_677_734_981_047_266),
        (3.0, 0.999_977_909_503_001_4, 2.209_049_699_858_544e-5),
        (6.0, 1.0, 2.151_973_671_249_891_3e-17),
    ];
    for (x, erf, erfc) in known {
        assert!((math::erf_f64(x) - erf).abs() < 1e-15, "erf({x})");
        assert!((math::erf_f64(-x) + erf).abs() < 1e-15, "erf(-{x})");
        assert!((math::erfc_f64(x) / erfc - 1.0).abs() < 1e-12, "erfc({x}) = {:e}", math::erfc_f64(x));
        assert!((math::erfc_f64(-x) - (1.0 + erf)).abs() < 1e-15, "erfc(-{x})");
    }
}

/// A loop that the compiler may vectorise, and the same function one call at a time, agree bit for bit.
#[test]
fn vectorised_and_scalar_bits_agree() {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn wide(f: usize, x: &[f32], out: &mut [f32]) {
            macro_rules! go {
                ($($i:literal $f:ident),*) => { match f { $($i => for (o, &x) in out.iter_mut().zip(x) { *o = math::$f(x) },)* _ => unreachable!() } };
            }
            go!(0 exp, 1 log, 2 tanh, 3 logistic, 4 silu, 5 erf, 6 rsqrt, 7 exp2, 8 log2, 9 softplus, 10 erfc, 11 gelu_erf, 12 gelu_tanh, 13 cbrt, 14 log1p, 15 expm1, 16 approximate_exp)
        }
        if !std::is_x86_feature_detected!("avx2") || !std::is_x86_feature_detected!("fma") {
            return;
        }
        let scalar: [fn(f32) -> f32; 17] = [
            math::exp,
            math::log,
            math::tanh,
            math::logistic,
            math::silu,
            math::erf,
            math::rsqrt,
            math::exp2,
            math::log2,
            math::softplus,
            math::erfc,
            math::gelu_erf,
            math::gelu_tanh,
            math::cbrt,
            math::log1p,
            math::expm1,
            math::approximate_exp,
        ];
        let x: Vec<f32> = patterns(400_009).collect();
        let mut out = vec![0.0; x.len()];
        for (f, one) in scalar.iter().enumerate() {
            // SAFETY: both features were detected.
            unsafe { wide(f, &x, &mut out) };
            for (&x, &found) in x.iter().zip(&out) {
                let expected = one(x);
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                    "function {f} at {x:e}: {found:e} against {expected:e}"
                );
            }
        }
    }
}

#[test]
fn minima_and_maxima_order_zeros_and_treat_nan_as_said() {
    let nan = f32::NAN;
    assert_eq!(math::minnum(nan, 1.0), 1.0);
    assert_eq!(math::maxnum(1.0, nan), 1.0);
    assert!(math::minnum(nan, nan).is_nan());
    assert!(math::minimum(nan, 1.0).is_nan() && math::minimum(1.0, nan).is_nan());
    assert!(math::maximum(nan, 1.0).is_nan() && math::maximum(1.0, nan).is_nan());
    for f in [math::minnum, math::minimum] {
        assert!(f(0.0, -0.0).is_sign_negative() && f(-0.0, 0.0).is_sign_negative() && f(0.0, 0.0).is_sign_positive());
        assert_eq!(f(1.0, 2.0), 1.0);
        assert_eq!(f(2.0, 1.0), 1.0);
    }
    for f in [math::maxnum, math::maximum] {
        assert!(f(0.0, -0.0).is_sign_positive() && f(-0.0, 0.0).is_sign_positive() && f(-0.0, -0.0).is_sign_negative());
        assert_eq!(f(1.0, 2.0), 2.0);
        assert_eq!(f(2.0, 1.0), 2.0);
    }
}

#[test]
fn turns_are_exact_at_quarters() {
    for (x, sine, cosine) in
        [(0.0f32, 0.0, 1.0), (0.25, 1.0, 0.0), (0.5, 0.0, -1.0), (0.75, -1.0, 0.0), (1e6, 0.0, 1.0), (-0.25, -1.0, 0.0)]
    {
        assert_eq!(math::sinturns(x), sine, "sin of {x} turns");
        assert_eq!(math::costurns(x), cosine, "cos of {x} turns");
    }
    assert!(ulps(math::sinturns(0.1), 0.587_785_252_292_473_1) < 0.6 + 1.0, "0.1 is rounded");
    // IEEE 754-2019, 9.2.1: sinPi(n) has the sign of n, and cosPi(n + 1/2) is +0.
    for at in -8..=8i32 {
        let (half, odd) = (at as f32 * 0.5, at as f32 * 0.5 + 0.25);
        let zero = if at < 0 { -0.0f32 } else { 0.0 };
        assert_eq!(math::sinturns(half).to_bits(), zero.to_bits(), "sin of {half} turns");
        assert_eq!(math::costurns(odd).to_bits(), 0, "cos of {odd} turns");
    }
    assert_eq!(math::sinturns(-0.0).to_bits(), (-0.0f32).to_bits());
}

/// Where the textbook's formula overflows, or takes nearly all away: by the logarithms and the roots that they come to there.
#[test]
fn inverse_hyperbolic_functions_of_f64_at_their_ends() {
    use std::f64::consts::LN_2;
    let near = |found: f64, expected: f64| {
        assert!((found - expected).abs() <= 4e-16 * expected.abs(), "{found:e}, {expected:e}");
    };
    // The largest number is 2^1024 (1 - 2^-53); twice it is 2^1025.
    near(math::asinh_f64(f64::MAX), 1025.0 * LN_2);
    near(math::asinh_f64(-f64::MAX), -1025.0 * LN_2);
    near(math::acosh_f64(f64::MAX), 1025.0 * LN_2);
    near(math::asinh_f64(1e-300), 1e-300);
    near(math::asinh_f64(-1e-9), -1e-9);
    // arcosh(1 + t) is sqrt(2t) (1 - t/12 + ..).
    near(math::acosh_f64(1.0 + 2f64.powi(-51)), 2f64.powi(-25));
    near(math::acosh_f64(1.0 + 2f64.powi(-31)), 2f64.powi(-15) * (1.0 - 2f64.powi(-31) / 12.0));
    // (1 + x) / (1 - x) with x = 1 - 2^-53 is 2^54 - 1.
    near(math::atanh_f64(1.0 - 2f64.powi(-53)), 27.0 * LN_2);
    near(math::atanh_f64(2f64.powi(-53) - 1.0), -27.0 * LN_2);
    near(math::atanh_f64(-0.9375), -0.5 * 31f64.ln());
    near(math::atanh_f64(-1e-300), -1e-300);
    for (found, expected) in [
        (math::atanh_f64(1.0), f64::INFINITY),
        (math::atanh_f64(-1.0), f64::NEG_INFINITY),
        (math::asinh_f64(f64::NEG_INFINITY), f64::NEG_INFINITY),
        (math::acosh_f64(f64::INFINITY), f64::INFINITY),
        (math::acosh_f64(1.0), 0.0),
        (math::asinh_f64(-0.0), -0.0),
        (math::atanh_f64(-0.0), -0.0),
    ] {
        assert_eq!(found.to_bits(), expected.to_bits(), "{found:e}, {expected:e}");
    }
    for nan in [math::atanh_f64(1.5), math::atanh_f64(f64::INFINITY), math::acosh_f64(0.5), math::asinh_f64(f64::NAN)] {
        assert!(nan.is_nan());
    }
}
