//! The float functions as short programs of element-wise ops, for targets whose own functions round otherwise.
//!
//! ```text
//! logistic ──> Steps: abs, neg, fma, .., div     one op a step, all of `eval`
//! ```
//!
//! - Those that `math` computes by polynomials are its formulas again, operation by operation: the same bits, as the tests below
//!   sweep.
//! - Those for which `math` calls the standard library in f64 (sin, cos, tan, asin, acos, atan, atan2, and turns) are computed in
//!   f64 here, to some 1e-15: rounded to f32 they differ where the true value lies that near to the middle of two floats.
//! - No branch: special cases are selects.
//! - Not here: functions of f64 other than `e^x`, which are refused where a target has none.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, FRAC_PI_2, LN_2, LOG2_E, LOG10_E, PI, TAU};

use crate::eval::Op;
use crate::math::{LN_2_LOW, ROUND_F32, ROUND_F64, coefficients};
use crate::ops::{Binary, Convert, FloatPredicate, IntPredicate, Ternary, Unary};
use crate::types::ScalarType;
use ScalarType::{F32, F64, I1, I32, I64};

/// What a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    /// Operand number so and so of the function.
    Input(usize),
    /// The result of an earlier step.
    Step(usize),
    /// These bits.
    Constant(u64),
}

/// A function as steps, the last of which is its value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    /// An op and its operands; those past [`Op::operands`] mean nothing.
    pub(crate) steps: Vec<(Op, [Arg; 3])>,
    /// Which of them are quotients of f32 that a target may have a shorter way to, with the same bits: the divisor is from 1 to
    /// 2^31, the dividend finite and not negative, and 0 or at least 2^-100 where the divisor is not 1; or one of them is not a
    /// number.
    pub(crate) tame: Vec<usize>,
}

/// A value while steps are written.
#[derive(Clone, Copy, Debug)]
struct Value {
    arg: Arg,
    ty: ScalarType,
}

/// An input of type `ty`.
const fn input(at: usize, ty: ScalarType) -> Value {
    Value { arg: Arg::Input(at), ty }
}

fn single(x: f32) -> Value {
    Value { arg: Arg::Constant(u64::from(x.to_bits())), ty: F32 }
}

fn double(x: f64) -> Value {
    Value { arg: Arg::Constant(x.to_bits()), ty: F64 }
}

fn int(ty: ScalarType, x: i64) -> Value {
    Value { arg: Arg::Constant(x as u64 & (u64::MAX >> (64 - ty.bits()))), ty }
}

impl Steps {
    fn push(&mut self, op: Op, from: &[Value]) -> Value {
        let mut args = [Arg::Constant(0); 3];
        for (arg, value) in args.iter_mut().zip(from) {
            *arg = value.arg;
        }
        debug_assert!(from.iter().enumerate().all(|(at, value)| op.operand(at) == value.ty), "{op:?} of {from:?}");
        self.steps.push((op, args));
        Value { arg: Arg::Step(self.steps.len() - 1), ty: op.result() }
    }

    fn unary(&mut self, op: Unary, a: Value) -> Value {
        self.push(Op::Unary(op, a.ty), &[a])
    }

    fn binary(&mut self, op: Binary, a: Value, b: Value) -> Value {
        self.push(Op::Binary(op, a.ty), &[a, b])
    }

    fn add(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::AddF, a, b)
    }

    fn sub(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::SubF, a, b)
    }

    fn mul(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::MulF, a, b)
    }

    fn div(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::DivF, a, b)
    }

    /// `a / b`, of [`Self::tame`] if they are of 32 bits.
    fn quotient(&mut self, a: Value, b: Value) -> Value {
        if a.ty == F32 {
            self.tame.push(self.steps.len());
        }
        self.div(a, b)
    }

    /// `a·b + c`, rounded once.
    fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.push(Op::Ternary(Ternary::FmaF, a.ty), &[a, b, c])
    }

    fn abs(&mut self, a: Value) -> Value {
        self.unary(Unary::AbsF, a)
    }

    fn neg(&mut self, a: Value) -> Value {
        self.unary(Unary::NegF, a)
    }

    fn copysign(&mut self, a: Value, sign: Value) -> Value {
        self.binary(Binary::CopySignF, a, sign)
    }

    fn test(&mut self, predicate: FloatPredicate, a: Value, b: Value) -> Value {
        self.push(Op::CompareF(predicate, a.ty), &[a, b])
    }

    fn lt(&mut self, a: Value, b: Value) -> Value {
        self.test(FloatPredicate::Olt, a, b)
    }

    fn gt(&mut self, a: Value, b: Value) -> Value {
        self.test(FloatPredicate::Ogt, a, b)
    }

    fn eq(&mut self, a: Value, b: Value) -> Value {
        self.test(FloatPredicate::Oeq, a, b)
    }

    fn both(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::AndI, a, b)
    }

    fn either(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::OrI, a, b)
    }

    fn not(&mut self, a: Value) -> Value {
        self.binary(Binary::XorI, a, int(I1, 1))
    }

    fn select(&mut self, c: Value, a: Value, b: Value) -> Value {
        self.push(Op::Select(a.ty), &[c, a, b])
    }

    fn convert(&mut self, op: Convert, a: Value, to: ScalarType) -> Value {
        self.push(Op::Convert(op, a.ty, to), &[a])
    }

    fn bits(&mut self, a: Value) -> Value {
        self.convert(Convert::Bitcast, a, if a.ty == F64 { I64 } else { I32 })
    }

    fn float(&mut self, a: Value) -> Value {
        self.convert(Convert::Bitcast, a, if a.ty == I64 { F64 } else { F32 })
    }

    fn widened(&mut self, a: Value) -> Value {
        self.convert(Convert::ExtF, a, F64)
    }

    fn narrowed(&mut self, a: Value) -> Value {
        self.convert(Convert::TruncF, a, F32)
    }

    /// `c[0] + c[1] x + ..`, one fused multiply-add a step.
    fn poly(&mut self, x: Value, c: &[Value]) -> Value {
        let Some((last, rest)) = c.split_last() else { return x };
        rest.iter().rev().fold(*last, |sum, c| self.fma(sum, x, *c))
    }

    fn poly32(&mut self, x: Value, c: &[f32]) -> Value {
        let c: Vec<Value> = c.iter().map(|c| single(*c)).collect();
        self.poly(x, &c)
    }

    fn poly64(&mut self, x: Value, c: &[f64]) -> Value {
        let c: Vec<Value> = c.iter().map(|c| double(*c)).collect();
        self.poly(x, &c)
    }

    /// The value is `a`, which may be no step.
    fn finish(mut self, a: Value) -> Steps {
        self.push(Op::Move(a.ty), &[a]);
        self
    }
}

/// The steps of a function of one float of type `ty`, f32 or f64; `None` where there are none.
pub(crate) fn unary(op: Unary, ty: ScalarType) -> Option<Steps> {
    let mut p = Steps::default();
    let x = input(0, ty);
    let value = match (op, ty) {
        (Unary::SignF, _) => p.sign(x),
        (Unary::RoundF, _) => p.round(x),
        (Unary::RsqrtF, _) => {
            let root = p.unary(Unary::SqrtF, x);
            let one = if ty == F64 { double(1.0) } else { single(1.0) };
            p.div(one, root)
        }
        (Unary::ExpF | Unary::ApproximateExpF, F64) => p.exp_f64(x),
        (_, F32) => p.function(op, x)?,
        _ => return None,
    };
    Some(p.finish(value))
}

/// The steps of a function of two floats of type `ty`.
pub(crate) fn binary(op: Binary, ty: ScalarType) -> Option<Steps> {
    let mut p = Steps::default();
    let (a, b) = (input(0, ty), input(1, ty));
    let value = match (op, ty) {
        (Binary::PowF, F32) => p.pow(a, b),
        (Binary::Atan2F, F32) => {
            let (y, x) = (p.widened(a), p.widened(b));
            let angle = p.angle(y, x);
            p.narrowed(angle)
        }
        (Binary::GeluLogisticF, F32) => {
            let (scale, wide) = (p.widened(b), p.widened(a));
            let u = p.mul(scale, wide);
            p.scaled_logistic(a, u)
        }
        _ => return None,
    };
    Some(p.finish(value))
}

/// `a·b + c` of f64 whose product is exact, with an odd last bit where the sum is not: a second rounding is then right.
pub(crate) fn fma_to_odd() -> Steps {
    let mut p = Steps::default();
    let (a, b, addend) = (input(0, F64), input(1, F64), input(2, F64));
    let product = p.mul(a, b);
    let sum = p.add(product, addend);
    // Knuth's two-sum: `sum + error` is exactly `product + addend`.
    let part = p.sub(sum, product);
    let rest = p.sub(sum, part);
    let (low, high) = (p.sub(product, rest), p.sub(addend, part));
    let error = p.add(low, high);
    let bits = p.bits(sum);
    let odd = p.convert(Convert::TruncI, bits, I1);
    let exact = p.eq(error, double(0.0));
    let magnitude = p.abs(sum);
    let finite = p.lt(magnitude, double(f64::INFINITY));
    let unbounded = p.not(finite);
    let kept = p.either(odd, exact);
    let kept = p.either(kept, unbounded);
    let (up, positive) = (p.gt(error, double(0.0)), p.gt(sum, double(0.0)));
    let differ = p.binary(Binary::XorI, up, positive);
    let by = p.select(differ, int(I64, -1), int(I64, 1));
    let moved = p.binary(Binary::AddI, bits, by);
    let moved = p.float(moved);
    let value = p.select(kept, sum, moved);
    p.finish(value)
}

impl Steps {
    fn sign(&mut self, x: Value) -> Value {
        let (zero, one) = if x.ty == F64 { (double(0.0), double(1.0)) } else { (single(0.0), single(1.0)) };
        let one = self.copysign(one, x);
        let number = self.test(FloatPredicate::One, x, zero);
        self.select(number, one, x)
    }

    /// To nearest, ties away from zero.
    fn round(&mut self, x: Value) -> Value {
        let (half, one) = if x.ty == F64 { (double(0.5), double(1.0)) } else { (single(0.5), single(1.0)) };
        let whole = self.unary(Unary::TruncF, x);
        // Exact; NaN for infinities.
        let rest = self.sub(x, whole);
        let rest = self.abs(rest);
        let far = self.test(FloatPredicate::Oge, rest, half);
        let one = self.copysign(one, x);
        let next = self.add(whole, one);
        let value = self.select(far, next, whole);
        self.copysign(value, x)
    }

    fn function(&mut self, op: Unary, x: Value) -> Option<Value> {
        let p = self;
        Some(match op {
            Unary::ExpF => p.exp(x),
            Unary::ApproximateExpF => p.approximate_exp(x),
            Unary::Exp2F => {
                let wide = p.widened(x);
                let scaled = p.mul(wide, double(LN_2));
                let value = p.exp_core(scaled);
                p.narrowed(value)
            }
            Unary::Expm1F => {
                let wide = p.widened(x);
                let inner = p.fma(wide, double(0.5), double(1.0));
                let small = p.mul(wide, inner);
                let e = p.exp_core(wide);
                let large = p.sub(e, double(1.0));
                let a = p.abs(x);
                let near = p.lt(a, single(1e-5));
                let value = p.select(near, small, large);
                p.narrowed(value)
            }
            Unary::LogF => p.log(x),
            Unary::Log2F | Unary::Log10F => {
                let l = p.ln_any(x);
                let value = p.mul(l, double(if op == Unary::Log2F { LOG2_E } else { LOG10_E }));
                p.narrowed(value)
            }
            Unary::Log1pF => {
                let wide = p.widened(x);
                let r = p.ln_1p_core(wide);
                let r = p.narrowed(r);
                let infinite = p.eq(x, single(f32::INFINITY));
                let r = p.select(infinite, x, r);
                let pole = p.eq(x, single(-1.0));
                let r = p.select(pole, single(f32::NEG_INFINITY), r);
                let legal = p.test(FloatPredicate::Oge, x, single(-1.0));
                p.select(legal, r, single(f32::NAN))
            }
            Unary::CbrtF => {
                let a = p.abs(x);
                let wide = p.widened(a);
                let l = p.ln_core(wide);
                let third = p.mul(l, double(1.0 / 3.0));
                let e = p.exp_core(third);
                let r = p.narrowed(e);
                let (zero, infinite) = (p.eq(x, single(0.0)), p.eq(a, single(f32::INFINITY)));
                let kept = p.either(zero, infinite);
                let r = p.select(kept, x, r);
                let r = p.copysign(r, x);
                let nan = p.test(FloatPredicate::Uno, x, x);
                p.select(nan, x, r)
            }
            Unary::SinF | Unary::CosF | Unary::TanF => {
                let (quarter, r) = p.quarters(x);
                let (sin, cos) = p.circle(quarter, r);
                let value = match op {
                    Unary::SinF => sin,
                    Unary::CosF => cos,
                    _ => p.div(sin, cos),
                };
                let value = p.narrowed(value);
                if op == Unary::CosF { value } else { p.copysigned_zero(value, x) }
            }
            Unary::SinTurnsF | Unary::CosTurnsF => {
                let wide = p.widened(x);
                let whole = p.unary(Unary::TruncF, wide);
                let fraction = p.sub(wide, whole);
                let quarters = p.mul(fraction, double(4.0));
                let quarter = p.round(quarters);
                let back = p.mul(quarter, double(0.25));
                let rest = p.sub(fraction, back);
                let r = p.mul(rest, double(TAU));
                let quarter = p.convert(Convert::FToSi, quarter, I32);
                let (sin, cos) = p.circle(quarter, r);
                if op == Unary::SinTurnsF {
                    let value = p.narrowed(sin);
                    let (none, zero) = (p.eq(value, single(0.0)), p.copysign(single(0.0), x));
                    p.select(none, zero, value)
                } else {
                    // -0 becomes 0.
                    let value = p.add(cos, double(0.0));
                    p.narrowed(value)
                }
            }
            Unary::AsinF | Unary::AcosF => {
                let wide = p.widened(x);
                let (below, above) = (p.sub(double(1.0), wide), p.add(double(1.0), wide));
                let square = p.mul(below, above);
                let other = p.unary(Unary::SqrtF, square);
                let angle = if op == Unary::AsinF { p.angle(wide, other) } else { p.angle(other, wide) };
                p.narrowed(angle)
            }
            Unary::AtanF => {
                let wide = p.widened(x);
                let angle = p.angle(wide, double(1.0));
                p.narrowed(angle)
            }
            Unary::SinhF => {
                let a = p.abs(x);
                let a = p.widened(a);
                let square = p.mul(a, a);
                let series = p.poly64(square, &[1.0, 1.0 / 6.0, 1.0 / 120.0, 1.0 / 5040.0]);
                let small = p.mul(a, series);
                let e = p.exp_core(a);
                let inverse = p.div(double(1.0), e);
                let difference = p.sub(e, inverse);
                let large = p.mul(difference, double(0.5));
                let near = p.lt(a, double(0.1));
                let value = p.select(near, small, large);
                let value = p.narrowed(value);
                p.copysign(value, x)
            }
            Unary::CoshF => {
                let a = p.abs(x);
                let a = p.widened(a);
                let e = p.exp_core(a);
                let inverse = p.div(double(1.0), e);
                let sum = p.add(e, inverse);
                let value = p.mul(sum, double(0.5));
                p.narrowed(value)
            }
            Unary::TanhF => p.tanh(x),
            Unary::AsinhF => {
                let a = p.abs(x);
                let a = p.widened(a);
                let square = p.mul(a, a);
                let series = p.poly64(square, &[1.0, -1.0 / 6.0, 3.0 / 40.0]);
                let small = p.mul(a, series);
                let more = p.add(square, double(1.0));
                let root = p.unary(Unary::SqrtF, more);
                let sum = p.add(a, root);
                let large = p.ln_core(sum);
                let finite = p.lt(a, double(f64::INFINITY));
                let r = p.select(finite, large, a);
                let near = p.lt(a, double(1e-3));
                let value = p.select(near, small, r);
                let value = p.narrowed(value);
                p.copysign(value, x)
            }
            Unary::AcoshF => {
                let wide = p.widened(x);
                let t = p.sub(wide, double(1.0));
                let more = p.add(t, double(2.0));
                let product = p.mul(t, more);
                let root = p.unary(Unary::SqrtF, product);
                let sum = p.add(double(1.0), t);
                let sum = p.add(sum, root);
                let r = p.ln_core(sum);
                let infinite = p.eq(x, single(f32::INFINITY));
                let r = p.select(infinite, double(f64::INFINITY), r);
                let r = p.narrowed(r);
                let legal = p.test(FloatPredicate::Oge, x, single(1.0));
                p.select(legal, r, single(f32::NAN))
            }
            Unary::AtanhF => {
                let a = p.abs(x);
                let a = p.widened(a);
                let square = p.mul(a, a);
                let series = p.poly64(square, &[1.0, 1.0 / 3.0, 1.0 / 5.0]);
                let small = p.mul(a, series);
                let (above, below) = (p.add(double(1.0), a), p.sub(double(1.0), a));
                let ratio = p.div(above, below);
                let l = p.ln_core(ratio);
                let large = p.mul(double(0.5), l);
                let near = p.lt(a, double(1e-3));
                let r = p.select(near, small, large);
                let pole = p.eq(a, double(1.0));
                let r = p.select(pole, double(f64::INFINITY), r);
                let legal = p.test(FloatPredicate::Ole, a, double(1.0));
                let r = p.select(legal, r, double(f64::NAN));
                let r = p.narrowed(r);
                p.copysign(r, x)
            }
            Unary::ErfF => p.erf(x),
            Unary::ErfcF => {
                let wide = p.widened(x);
                let value = p.erfc_core(wide);
                p.narrowed(value)
            }
            Unary::LogisticF => {
                let (e, sum) = p.decay(x);
                let negative = p.lt(x, single(0.0));
                let top = p.select(negative, e, single(1.0));
                // From 1 to 2, and 1 where the exponential is tiny.
                p.quotient(top, sum)
            }
            Unary::SiluF => p.silu(x),
            Unary::SoftplusF => {
                let wide = p.widened(x);
                let negative = p.lt(wide, double(0.0));
                let positive = p.select(negative, double(0.0), wide);
                let a = p.abs(wide);
                let a = p.neg(a);
                let e = p.exp_core(a);
                let l = p.ln_1p_core(e);
                let value = p.add(positive, l);
                p.narrowed(value)
            }
            Unary::GeluErfF => {
                let wide = p.widened(x);
                let half = p.mul(double(0.5), wide);
                let opposite = p.neg(wide);
                let scaled = p.mul(opposite, double(FRAC_1_SQRT_2));
                let tail = p.erfc_core(scaled);
                let r = p.mul(half, tail);
                let r = p.narrowed(r);
                let far = p.lt(x, single(-40.0));
                p.select(far, single(-0.0), r)
            }
            Unary::GeluTanhF => {
                let wide = p.widened(x);
                let scaled = p.mul(double(1.595_769_121_605_730_7), wide);
                let cubic = p.mul(double(0.044_715), wide);
                let factor = p.fma(cubic, wide, double(1.0));
                let u = p.mul(scaled, factor);
                p.scaled_logistic(x, u)
            }
            _ => return None,
        })
    }

    // ---- as `math` has them

    /// e^x as two factors.
    fn exp_parts(&mut self, x: Value) -> (Value, Value) {
        let p = self;
        let below = p.lt(x, single(-125.0));
        let x = p.select(below, single(-125.0), x);
        let above = p.gt(x, single(89.0));
        let x = p.select(above, single(89.0), x);
        let shifted = p.fma(x, single(std::f32::consts::LOG2_E), single(ROUND_F32));
        let n = p.sub(shifted, single(ROUND_F32));
        let r = p.fma(n, single(-0.693_359_4), x);
        let r = p.fma(n, single(2.121_944_4e-4), r);
        let series = p.poly32(r, &coefficients::EXP);
        let square = p.mul(r, r);
        let value = p.fma(square, series, r);
        let value = p.add(value, single(1.0));
        let bits = p.bits(shifted);
        let n = p.binary(Binary::SubI, bits, int(I32, i64::from(ROUND_F32.to_bits())));
        let half = p.binary(Binary::ShrSI, n, int(I32, 1));
        let rest = p.binary(Binary::SubI, n, half);
        let (first, second) = (p.power_of_two(half), p.power_of_two(rest));
        (p.mul(value, first), second)
    }

    fn power_of_two(&mut self, n: Value) -> Value {
        let biased = self.binary(Binary::AddI, n, int(I32, 127));
        let bits = self.binary(Binary::ShlI, biased, int(I32, 23));
        self.float(bits)
    }

    fn exp(&mut self, x: Value) -> Value {
        let (value, scale) = self.exp_parts(x);
        self.mul(value, scale)
    }

    fn approximate_exp(&mut self, x: Value) -> Value {
        let p = self;
        let below = p.lt(x, single(-87.3));
        let x = p.select(below, single(-87.3), x);
        let above = p.gt(x, single(89.0));
        let x = p.select(above, single(89.0), x);
        let shifted = p.fma(x, single(std::f32::consts::LOG2_E), single(ROUND_F32));
        let n = p.sub(shifted, single(ROUND_F32));
        let r = p.fma(n, single(-std::f32::consts::LN_2), x);
        let value = p.poly32(r, &coefficients::TWICE_EXP);
        let bits = p.bits(shifted);
        let biased = p.binary(Binary::AddI, bits, int(I32, 126));
        let scale = p.binary(Binary::ShlI, biased, int(I32, 23));
        let scale = p.float(scale);
        p.mul(value, scale)
    }

    /// e^−|x|, and one more than that.
    fn decay(&mut self, x: Value) -> (Value, Value) {
        let a = self.abs(x);
        let a = self.neg(a);
        let e = self.exp(a);
        (e, self.add(single(1.0), e))
    }

    fn silu(&mut self, x: Value) -> Value {
        let p = self;
        let a = p.abs(x);
        let a = p.neg(a);
        let (value, scale) = p.exp_parts(a);
        let e = p.mul(value, scale);
        let sum = p.add(single(1.0), e);
        let top = p.mul(x, value);
        let ratio = p.div(top, sum);
        let negative = p.mul(ratio, scale);
        let far = p.lt(x, single(-125.0));
        let negative = p.select(far, single(-0.0), negative);
        let positive = p.div(x, sum);
        let below = p.lt(x, single(0.0));
        p.select(below, negative, positive)
    }

    fn tanh(&mut self, x: Value) -> Value {
        let p = self;
        let a = p.abs(x);
        let square = p.mul(x, x);
        let series = p.poly32(square, &coefficients::TANH);
        let cube = p.mul(square, a);
        let small = p.fma(cube, series, a);
        let far = p.gt(a, single(10.0));
        let bounded = p.select(far, single(10.0), a);
        let doubled = p.mul(single(2.0), bounded);
        let e = p.exp(doubled);
        let sum = p.add(e, single(1.0));
        let ratio = p.quotient(single(2.0), sum);
        let large = p.sub(single(1.0), ratio);
        let near = p.lt(a, single(0.625));
        let value = p.select(near, small, large);
        p.copysign(value, x)
    }

    fn log(&mut self, x: Value) -> Value {
        let p = self;
        let small = p.lt(x, single(f32::MIN_POSITIVE));
        let raised = p.mul(x, single(8_388_608.0));
        let scaled = p.select(small, raised, x);
        let bias = p.select(small, single(-23.0), single(0.0));
        let bits = p.bits(scaled);
        let above = p.binary(Binary::SubI, bits, int(I32, 0x3f2a_aaab));
        let k = p.binary(Binary::ShrSI, above, int(I32, 23));
        let power = p.binary(Binary::ShlI, k, int(I32, 23));
        let fraction = p.binary(Binary::SubI, bits, power);
        let fraction = p.float(fraction);
        let f = p.sub(fraction, single(1.0));
        let k = p.convert(Convert::SiToF, k, F32);
        let k = p.add(k, bias);
        let square = p.mul(f, f);
        let series = p.poly32(f, &coefficients::LOG);
        let cube = p.mul(square, f);
        let half = p.mul(square, single(-0.5));
        let r = p.fma(cube, series, half);
        let low = p.fma(k, single(-2.121_944_4e-4), r);
        let r = p.add(low, f);
        let r = p.fma(k, single(0.693_359_4), r);
        let infinite = p.eq(x, single(f32::INFINITY));
        let r = p.select(infinite, x, r);
        let zero = p.eq(x, single(0.0));
        let r = p.select(zero, single(f32::NEG_INFINITY), r);
        let legal = p.test(FloatPredicate::Oge, x, single(0.0));
        p.select(legal, r, single(f32::NAN))
    }

    fn erf(&mut self, x: Value) -> Value {
        let p = self;
        let a = p.abs(x);
        let square = p.mul(a, a);
        let series = p.poly32(square, &coefficients::ERF_SMALL);
        let small = p.fma(a, series, a);
        let far = p.gt(a, single(4.0));
        let bounded = p.select(far, single(4.0), a);
        let exponent = p.poly32(bounded, &coefficients::ERF_LARGE);
        let exponent = p.neg(exponent);
        let e = p.exp(exponent);
        let large = p.sub(single(1.0), e);
        let near = p.lt(a, single(0.925));
        let value = p.select(near, small, large);
        p.copysign(value, x)
    }

    fn exp_core(&mut self, x: Value) -> Value {
        let p = self;
        let below = p.lt(x, double(-700.0));
        let x = p.select(below, double(-700.0), x);
        let above = p.gt(x, double(700.0));
        let x = p.select(above, double(700.0), x);
        let (series, n) = p.exp_series(x);
        let biased = p.binary(Binary::AddI, n, int(I64, 1023));
        let power = p.binary(Binary::ShlI, biased, int(I64, 52));
        let power = p.float(power);
        p.mul(series, power)
    }

    /// e^(x − n ln 2), and n.
    fn exp_series(&mut self, x: Value) -> (Value, Value) {
        let p = self;
        let shifted = p.fma(x, double(LOG2_E), double(ROUND_F64));
        let n = p.sub(shifted, double(ROUND_F64));
        let r = p.fma(n, double(-LN_2), x);
        let r = p.fma(n, double(-LN_2_LOW), r);
        let bits = p.bits(shifted);
        let n = p.binary(Binary::SubI, bits, int(I64, ROUND_F64.to_bits() as i64));
        let series = p.poly64(r, &coefficients::EXP_F64);
        (series, n)
    }

    fn ln_core(&mut self, x: Value) -> Value {
        let p = self;
        let bits = p.bits(x);
        let above = p.binary(Binary::SubI, bits, int(I64, 0x3fe5_5555_5555_5555));
        let above = p.binary(Binary::AddI, above, int(I64, 2048 << 52));
        let above = p.binary(Binary::ShrUI, above, int(I64, 52));
        let k = p.binary(Binary::SubI, above, int(I64, 2048));
        let power = p.binary(Binary::ShlI, k, int(I64, 52));
        let m = p.binary(Binary::SubI, bits, power);
        let m = p.float(m);
        let k = p.convert(Convert::SiToF, k, F64);
        let (below, more) = (p.sub(m, double(1.0)), p.add(m, double(1.0)));
        let s = p.div(below, more);
        let square = p.mul(s, s);
        let series = p.poly64(square, &coefficients::LN_F64);
        let series = p.mul(s, series);
        p.fma(k, double(LN_2), series)
    }

    fn ln_any(&mut self, x: Value) -> Value {
        let p = self;
        let wide = p.widened(x);
        let r = p.ln_core(wide);
        let infinite = p.eq(x, single(f32::INFINITY));
        let r = p.select(infinite, double(f64::INFINITY), r);
        let zero = p.eq(x, single(0.0));
        let r = p.select(zero, double(f64::NEG_INFINITY), r);
        let legal = p.test(FloatPredicate::Oge, x, single(0.0));
        p.select(legal, r, double(f64::NAN))
    }

    fn ln_1p_core(&mut self, x: Value) -> Value {
        let p = self;
        let inner = p.fma(x, double(-0.5), double(1.0));
        let small = p.mul(x, inner);
        let more = p.add(double(1.0), x);
        let large = p.ln_core(more);
        let a = p.abs(x);
        let near = p.lt(a, double(1e-6));
        p.select(near, small, large)
    }

    fn pow(&mut self, x: Value, y: Value) -> Value {
        let p = self;
        let a = p.abs(x);
        let l = p.ln_any(a);
        let wide = p.widened(y);
        let l = p.mul(l, wide);
        let e = p.exp_core(l);
        let r = p.narrowed(e);
        let trunc = p.unary(Unary::TruncF, y);
        let whole = p.eq(trunc, y);
        let halved = p.mul(y, single(0.5));
        let half = p.unary(Unary::TruncF, halved);
        let uneven = p.test(FloatPredicate::Une, half, halved);
        let magnitude = p.abs(y);
        let countable = p.lt(magnitude, single(16_777_216.0));
        let odd = p.both(whole, uneven);
        let odd = p.both(odd, countable);
        let signed = p.copysign(r, x);
        let r = p.select(odd, signed, r);
        let negative = p.lt(x, single(0.0));
        let broken = p.not(whole);
        let finite = p.lt(a, single(f32::INFINITY));
        let none = p.both(negative, broken);
        let none = p.both(none, finite);
        let r = p.select(none, single(f32::NAN), r);
        let (one, infinite) = (p.eq(a, single(1.0)), p.eq(magnitude, single(f32::INFINITY)));
        let flat = p.both(one, infinite);
        let r = p.select(flat, single(1.0), r);
        let (zeroth, unit) = (p.eq(y, single(0.0)), p.eq(x, single(1.0)));
        let always = p.either(zeroth, unit);
        p.select(always, single(1.0), r)
    }

    fn erfc_core(&mut self, x: Value) -> Value {
        let p = self;
        let a = p.abs(x);
        let far = p.gt(a, double(10.2));
        let c = p.select(far, double(10.2), a);
        let (below, above) = (p.sub(c, double(3.0)), p.add(c, double(3.0)));
        let t = p.div(below, above);
        let series = p.poly64(t, &coefficients::ERFC_F64);
        let doubled = p.mul(double(2.0), c);
        let weight = p.add(double(1.0), doubled);
        let series = p.div(series, weight);
        let opposite = p.neg(a);
        let square = p.mul(opposite, a);
        let e = p.exp_core(square);
        let r = p.mul(series, e);
        let other = p.sub(double(2.0), r);
        let negative = p.lt(x, double(0.0));
        p.select(negative, other, r)
    }

    fn scaled_logistic(&mut self, x: Value, u: Value) -> Value {
        let p = self;
        let opposite = p.neg(u);
        let e = p.exp_core(opposite);
        let sum = p.add(double(1.0), e);
        let wide = p.widened(x);
        let r = p.div(wide, sum);
        let r = p.narrowed(r);
        let (infinite, negative) = (p.eq(x, single(f32::NEG_INFINITY)), p.lt(u, double(0.0)));
        let limit = p.both(infinite, negative);
        p.select(limit, single(-0.0), r)
    }

    // ---- for which `math` asks the standard library

    /// e^x of f64, subnormal results rounded twice.
    fn exp_f64(&mut self, x: Value) -> Value {
        let p = self;
        let below = p.lt(x, double(-760.0));
        let bounded = p.select(below, double(-760.0), x);
        let above = p.gt(bounded, double(720.0));
        let bounded = p.select(above, double(720.0), bounded);
        let (series, n) = p.exp_series(bounded);
        // Two factors: either may be out of range alone.
        let half = p.binary(Binary::ShrSI, n, int(I64, 1));
        let rest = p.binary(Binary::SubI, n, half);
        let mut value = series;
        for part in [half, rest] {
            let biased = p.binary(Binary::AddI, part, int(I64, 1023));
            let power = p.binary(Binary::ShlI, biased, int(I64, 52));
            let power = p.float(power);
            value = p.mul(value, power);
        }
        value
    }

    /// A zero of `value` takes the sign of `x`: so that the sine of −0 is −0.
    fn copysigned_zero(&mut self, value: Value, x: Value) -> Value {
        let zero = self.eq(x, single(0.0));
        self.select(zero, x, value)
    }

    /// The quarter turn nearest to x radians (mod 4), and what is left, in f64. For magnitudes up to 2^20 in three parts of π/2,
    /// beyond by fixed-point multiplication with the bits of 2/π that matter.
    fn quarters(&mut self, x: Value) -> (Value, Value) {
        let p = self;
        // π/2 in three parts, the first two with zeros enough behind for an exact product with a number below 2^20.
        const PARTS: [f64; 3] =
            [f64::from_bits(0x3ff9_21fb_5440_0000), f64::from_bits(0x3dd0_b461_1a60_0000), 2.022_266_248_795_950_6e-21];
        let wide = p.widened(x);
        let scaled = p.mul(wide, double(FRAC_2_PI));
        let near = p.unary(Unary::RoundEvenF, scaled);
        let mut r = wide;
        for part in PARTS {
            r = p.fma(near, double(-part), r);
        }
        let quarter = p.convert(Convert::FToSi, near, I32);
        let (far_quarter, far) = p.far_quarters(x);
        let a = p.abs(x);
        let small = p.lt(a, single(1_048_576.0));
        let quarter = p.select(small, quarter, far_quarter);
        let r = p.select(small, r, far);
        // An infinity has no angle.
        let finite = p.lt(a, single(f32::INFINITY));
        (quarter, p.select(finite, r, double(f64::NAN)))
    }

    /// The same for magnitudes from 2^20: x is m·2^e with m below 2^24, and of m·(2/π) only 64 bits from 2^1 down matter.
    fn far_quarters(&mut self, x: Value) -> (Value, Value) {
        let p = self;
        // 2/π as words of 32 bits, the first bit behind the point first; a word of zeros before.
        const WORDS: [u32; 8] =
            [0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];
        let bits = p.bits(x);
        let exponent = p.binary(Binary::ShrUI, bits, int(I32, 23));
        let exponent = p.binary(Binary::AndI, exponent, int(I32, 0xff));
        let fraction = p.binary(Binary::AndI, bits, int(I32, 0x7f_ffff));
        let m = p.binary(Binary::OrI, fraction, int(I32, 0x80_0000));
        let m = p.convert(Convert::ExtUI, m, I64);
        // e = exponent − 150 is −3 .. 104 here. Bits of 2/π from place e − 1 on behind the point count; those before give whole
        // turns. With a word before, the window starts at bit 32 + e − 2.
        let start = p.binary(Binary::SubI, exponent, int(I32, 150 - 30));
        let word = p.binary(Binary::ShrUI, start, int(I32, 5));
        let shift = p.binary(Binary::AndI, start, int(I32, 31));
        let shift = p.convert(Convert::ExtUI, shift, I64);
        let mut window = [int(I64, 0); 4];
        for (at, slot) in window.iter_mut().enumerate() {
            let mut found = int(I64, i64::from(WORDS[at]));
            for first in 1..5 {
                let Some(next) = WORDS.get(first + at) else { break };
                let here = p.push(Op::CompareI(IntPredicate::Uge, I32), &[word, int(I32, first as i64)]);
                found = p.select(here, int(I64, i64::from(*next)), found);
            }
            *slot = found;
        }
        // Three words from the window's first bit on.
        let mut words = [int(I64, 0); 3];
        for (at, slot) in words.iter_mut().enumerate() {
            let high = p.binary(Binary::ShlI, window[at], int(I64, 32));
            let both = p.binary(Binary::OrI, high, window[at + 1]);
            let moved = p.binary(Binary::ShlI, both, shift);
            *slot = p.binary(Binary::ShrUI, moved, int(I64, 32));
        }
        // m · (w0·2^64 + w1·2^32 + w2), modulo 2^96: the upper 64 bits, in which the top two are quarters.
        let low = p.binary(Binary::MulI, m, words[2]);
        let low = p.binary(Binary::ShrUI, low, int(I64, 32));
        let middle = p.binary(Binary::MulI, m, words[1]);
        let high = p.binary(Binary::MulI, m, words[0]);
        let high = p.binary(Binary::ShlI, high, int(I64, 32));
        let sum = p.binary(Binary::AddI, high, middle);
        let sum = p.binary(Binary::AddI, sum, low);
        // To the nearest quarter, what is left being signed.
        let nearest = p.binary(Binary::AddI, sum, int(I64, 1 << 61));
        let quarter = p.binary(Binary::ShrUI, nearest, int(I64, 62));
        let whole = p.binary(Binary::ShlI, quarter, int(I64, 62));
        let rest = p.binary(Binary::SubI, sum, whole);
        let rest = p.convert(Convert::SiToF, rest, F64);
        let r = p.mul(rest, double(FRAC_PI_2 / (1u64 << 62) as f64));
        let quarter = p.convert(Convert::TruncI, quarter, I32);
        let opposite = p.neg(r);
        let negative = p.lt(x, single(0.0));
        let back = p.unary(Unary::NegI, quarter);
        (p.select(negative, back, quarter), p.select(negative, opposite, r))
    }

    /// Sine and cosine of a number of quarter turns (mod 4) and an angle of at most an eighth of a turn.
    fn circle(&mut self, quarter: Value, r: Value) -> (Value, Value) {
        let p = self;
        // The Maclaurin series: the terms left out are below 1e-17.
        let series = |first: u32| -> Vec<f64> {
            let term = |k: u32| {
                let factorial: f64 = (1..=2 * k + first).map(f64::from).product();
                (if k.is_multiple_of(2) { 1.0 } else { -1.0 }) / factorial
            };
            (0..9).map(term).collect()
        };
        let square = p.mul(r, r);
        let odd = p.poly64(square, &series(1)[1..]);
        let cube = p.mul(square, r);
        let sin = p.fma(odd, cube, r);
        let cos = p.poly64(square, &series(0));
        let swap = p.convert(Convert::TruncI, quarter, I1);
        let (first, second) = (p.select(swap, cos, sin), p.select(swap, sin, cos));
        let half = p.binary(Binary::ShrUI, quarter, int(I32, 1));
        let down = p.convert(Convert::TruncI, half, I1);
        let left = p.binary(Binary::XorI, swap, down);
        let (below, behind) = (p.neg(first), p.neg(second));
        (p.select(down, below, first), p.select(left, behind, second))
    }

    /// The angle of the point (x, y) in f64: C `atan2`.
    fn angle(&mut self, y: Value, x: Value) -> Value {
        let p = self;
        let (ax, ay) = (p.abs(x), p.abs(y));
        let steep = p.gt(ay, ax);
        let (small, large) = (p.select(steep, ax, ay), p.select(steep, ay, ax));
        let ratio = p.div(small, large);
        // 0/0 is the angle 0, and of two infinities an eighth of a turn.
        let none = p.eq(large, double(0.0));
        let ratio = p.select(none, double(0.0), ratio);
        let endless = p.eq(small, double(f64::INFINITY));
        let ratio = p.select(endless, double(1.0), ratio);
        let value = p.atan_unit(ratio);
        let turned = p.sub(double(FRAC_PI_2), value);
        let value = p.select(steep, turned, value);
        let bits = p.bits(x);
        let behind = p.push(Op::CompareI(IntPredicate::Slt, I64), &[bits, int(I64, 0)]);
        let opposite = p.sub(double(PI), value);
        let value = p.select(behind, opposite, value);
        let value = p.copysign(value, y);
        let unknown = p.test(FloatPredicate::Uno, x, y);
        p.select(unknown, double(f64::NAN), value)
    }

    /// The arc tangent of 0 to 1: about 0, 1/2 or 1, by what is left.
    fn atan_unit(&mut self, x: Value) -> Value {
        let p = self;
        let (past, high) = (p.test(FloatPredicate::Oge, x, double(0.25)), p.test(FloatPredicate::Oge, x, double(0.75)));
        let centre = p.select(past, double(0.5), double(0.0));
        let centre = p.select(high, double(1.0), centre);
        let base = p.select(past, double(0.463_647_609_000_806_1), double(0.0));
        let base = p.select(high, double(std::f64::consts::FRAC_PI_4), base);
        let top = p.sub(x, centre);
        let bottom = p.fma(x, centre, double(1.0));
        let t = p.div(top, bottom);
        let square = p.mul(t, t);
        let series: Vec<f64> =
            (1..14u32).map(|k| (if k.is_multiple_of(2) { 1.0 } else { -1.0 }) / f64::from(2 * k + 1)).collect();
        let tail = p.poly64(square, &series);
        let cube = p.mul(square, t);
        let value = p.fma(tail, cube, t);
        p.add(base, value)
    }
}

impl Steps {
    /// The value for the bits of the inputs.
    #[cfg(test)]
    fn run(&self, inputs: &[u64]) -> u64 {
        self.run_with(inputs, |a, b| a / b)
    }

    /// The same, tame quotients as `quotient` has them.
    #[cfg(test)]
    fn run_with(&self, inputs: &[u64], quotient: impl Fn(f32, f32) -> f32) -> u64 {
        let mut values: Vec<u64> = Vec::with_capacity(self.steps.len());
        for (op, args) in &self.steps {
            let operands = args.map(|arg| match arg {
                Arg::Input(at) => inputs[at],
                Arg::Step(at) => values[at],
                Arg::Constant(bits) => bits,
            });
            values.push(if self.tame.contains(&values.len()) {
                let [a, b, _] = operands.map(|bits| f32::from_bits(bits as u32));
                u64::from(quotient(a, b).to_bits())
            } else {
                op.evaluate(operands)
            });
        }
        values.last().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval;

    /// Bit patterns over all exponents, both signs, and the special ones.
    fn sweep() -> impl Iterator<Item = u32> {
        let special =
            [0.0f32, -0.0, 1.0, -1.0, 0.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45];
        special.into_iter().map(f32::to_bits).chain((0..u32::MAX / 99_991).map(|at| at.wrapping_mul(99_991)))
    }

    /// Whether two f32 are the same bits, or both NaN.
    fn same(a: u64, b: u64) -> bool {
        a == b || f32::from_bits(a as u32).is_nan() && f32::from_bits(b as u32).is_nan()
    }

    fn distance(a: u64, b: u64) -> u32 {
        let ordered = |bits: u64| {
            let bits = bits as u32 as i32;
            if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits }
        };
        ordered(a).abs_diff(ordered(b))
    }

    #[test]
    fn functions_of_our_own_are_the_same_bits() {
        use Unary::*;
        for op in [
            SignF,
            RoundF,
            ExpF,
            ApproximateExpF,
            Exp2F,
            Expm1F,
            LogF,
            Log2F,
            Log10F,
            Log1pF,
            RsqrtF,
            CbrtF,
            SinhF,
            CoshF,
            TanhF,
            AsinhF,
            AcoshF,
            AtanhF,
            ErfF,
            ErfcF,
            LogisticF,
            SiluF,
            SoftplusF,
            GeluErfF,
            GeluTanhF,
        ] {
            let steps = unary(op, F32).expect("it has steps");
            for x in sweep() {
                let (found, expected) = (steps.run(&[u64::from(x)]), eval::unary(op, F32, u64::from(x)));
                assert!(same(found, expected), "{op:?} of {}: {found:#x}, {expected:#x}", f32::from_bits(x));
            }
        }
    }

    /// Tame quotients are: from a reciprocal that is off by one of its units, as hardware's is, by multiply-adds without a test,
    /// come the bits of a division, whatever the argument of the function.
    #[test]
    fn tame_quotients_need_no_test() {
        use Unary::*;
        for op in [LogisticF, TanhF] {
            let steps = unary(op, F32).expect("it has steps");
            assert!(!steps.tame.is_empty(), "{op:?}");
            for off in [-1i32, 0, 1] {
                let mended = |a: f32, b: f32| {
                    let exact = (1.0 / f64::from(b)) as f32;
                    // The one divisor of a binade for which the guess has to be exact: Markstein's exception.
                    let is_right = b.is_nan() || b.to_bits() & 0x7f_ffff == 0x7f_ffff;
                    let guess = f32::from_bits(exact.to_bits().wrapping_add_signed(if is_right { 0 } else { off }));
                    let reciprocal = guess.mul_add((-b).mul_add(guess, 1.0), guess);
                    let quotient = a * reciprocal;
                    (-b).mul_add(quotient, a).mul_add(reciprocal, quotient)
                };
                // The usual range besides, densely.
                let usual = (0..1u32 << 16).map(|at| (at as f32 / 1024.0 - 32.0).to_bits());
                for x in sweep().chain(usual) {
                    let (found, expected) =
                        (steps.run_with(&[u64::from(x)], mended), eval::unary(op, F32, u64::from(x)));
                    let of = f32::from_bits(x);
                    assert!(same(found, expected), "{op:?} of {of}, off by {off}: {found:#x}, {expected:#x}");
                }
            }
        }
    }

    #[test]
    fn functions_of_the_standard_library_are_as_good_as_the_same() {
        use Unary::*;
        for op in [SinF, CosF, TanF, AsinF, AcosF, AtanF, SinTurnsF, CosTurnsF] {
            let steps = unary(op, F32).expect("it has steps");
            let mut differ = 0;
            for x in sweep() {
                let (found, expected) = (steps.run(&[u64::from(x)]), eval::unary(op, F32, u64::from(x)));
                if same(found, expected) {
                    continue;
                }
                differ += 1;
                assert!(distance(found, expected) <= 1, "{op:?} of {}: {found:#x}, {expected:#x}", f32::from_bits(x));
            }
            assert!(differ <= 2, "{op:?} differs {differ} times");
        }
    }

    #[test]
    fn functions_of_two_numbers() {
        let mut some: Vec<u32> = sweep().step_by(397).collect();
        some.extend([2.0f32, 3.0, -3.0, 4.0, 1e7, 1e8, 0.25].map(f32::to_bits));
        for op in [Binary::PowF, Binary::Atan2F, Binary::GeluLogisticF] {
            let steps = binary(op, F32).expect("it has steps");
            for (&x, &y) in some.iter().flat_map(|x| some.iter().map(move |y| (x, y))) {
                let (x, y) = (u64::from(x), u64::from(y));
                let (found, expected) = (steps.run(&[x, y]), eval::binary(op, F32, x, y));
                let near = op == Binary::Atan2F && distance(found, expected) <= 1;
                assert!(same(found, expected) || near, "{op:?} of {x:#x}, {y:#x}: {found:#x}, {expected:#x}");
            }
        }
    }

    #[test]
    fn an_exponential_in_f64_is_right_to_two_units() {
        let steps = unary(Unary::ExpF, F64).expect("it has steps");
        for at in -7600..7300 {
            let x = f64::from(at) * 0.1;
            let (found, expected) = (f64::from_bits(steps.run(&[x.to_bits()])), x.exp());
            let unit = expected * f64::EPSILON * 2.0 + 5e-324;
            assert!(found == expected || (found - expected).abs() <= unit, "e^{x}: {found:e}, {expected:e}");
        }
        for (x, e) in [(f64::INFINITY, f64::INFINITY), (f64::NEG_INFINITY, 0.0), (0.0, 1.0)] {
            assert_eq!(f64::from_bits(steps.run(&[x.to_bits()])), e);
        }
        assert!(f64::from_bits(steps.run(&[f64::NAN.to_bits()])).is_nan());
    }

    #[test]
    fn a_fused_multiply_add_of_narrow_floats_rounds_once() {
        let steps = fma_to_odd();
        for ty in [ScalarType::BF16, ScalarType::F16, ScalarType::F8E4M3, ScalarType::F8E5M2] {
            let some: Vec<u64> = (0..1u64 << ty.bits()).step_by(if ty.bits() == 8 { 5 } else { 1171 }).collect();
            for &a in &some {
                for &b in &some {
                    for &c in &some {
                        let wide = [a, b, c].map(|x| eval::to_f64(ty, x).to_bits());
                        let found = eval::from_f64(ty, f64::from_bits(steps.run(&wide)));
                        let expected = eval::ternary(Ternary::FmaF, ty, a, b, c);
                        let nan = |bits: u64| eval::to_f64(ty, bits).is_nan();
                        assert!(found == expected || nan(found) && nan(expected), "{ty}: {a:#x}·{b:#x} + {c:#x}");
                    }
                }
            }
        }
    }
}
