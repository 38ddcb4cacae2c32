//! Arithmetic on single numbers: integers of every width, floats, comparisons.
//!
//! - 8 and 16 bits are computed in 32: operands are sign-extended where the sign matters, results cut.
//! - f16, bf16 and fp8 are computed in f32 and rounded once, as `eval` does; their fused multiply-add in the type itself, or in
//!   f64 to odd.
//! - `.rn` is written wherever it is legal: without it the assembler may fuse a product and a sum.
//! - Functions are short programs of these ops (`expand`), inlined.

use super::emitter::{Emitter, Result};
use super::text::{Class, Operand, class_of};
use crate::eval::{self, Op};
use crate::expand::{self, Arg, Steps};
use crate::facts::Facts;
use crate::ops::{Binary, Classify, Convert, FloatPredicate, IntPredicate, Ternary, Unary};
use crate::types::ScalarType;

/// The comparison and the signedness of a `setp`, without the width.
pub(super) const fn int_comparison(predicate: IntPredicate) -> &'static str {
    match predicate {
        IntPredicate::Eq => "eq.s",
        IntPredicate::Ne => "ne.s",
        IntPredicate::Slt => "lt.s",
        IntPredicate::Sle => "le.s",
        IntPredicate::Sgt => "gt.s",
        IntPredicate::Sge => "ge.s",
        IntPredicate::Ult => "lt.u",
        IntPredicate::Ule => "le.u",
        IntPredicate::Ugt => "gt.u",
        IntPredicate::Uge => "ge.u",
    }
}

const fn is_signed(predicate: IntPredicate) -> bool {
    matches!(predicate, IntPredicate::Slt | IntPredicate::Sle | IntPredicate::Sgt | IntPredicate::Sge)
}

const fn float_comparison(predicate: FloatPredicate) -> &'static str {
    match predicate {
        FloatPredicate::Oeq => "eq",
        FloatPredicate::Ogt => "gt",
        FloatPredicate::Oge => "ge",
        FloatPredicate::Olt => "lt",
        FloatPredicate::Ole => "le",
        FloatPredicate::One => "ne",
        FloatPredicate::Ord => "num",
        FloatPredicate::Ueq => "equ",
        FloatPredicate::Ugt => "gtu",
        FloatPredicate::Uge => "geu",
        FloatPredicate::Ult => "ltu",
        FloatPredicate::Ule => "leu",
        FloatPredicate::Une => "neu",
        FloatPredicate::Uno => "nan",
    }
}

/// The type that floats of type `ty` are computed in.
const fn computed_in(ty: ScalarType) -> ScalarType {
    if matches!(ty, ScalarType::F64) { ty } else { ScalarType::F32 }
}

impl Emitter<'_> {
    /// `op` of operands of its types. `divisor`: what is known of the second operand.
    pub(super) fn evaluate(&mut self, op: Op, from: [Operand; 3], divisor: Option<Facts>) -> Result<Operand> {
        let [a, b, c] = from;
        // Building folds; what expansions make of constants is folded here.
        let known = |operand: Operand| operand.bits();
        if let (Some(x), true) = (known(a), op.operands() == 1) {
            return Ok(Operand::Bits(class_of(op.result()), op.evaluate([x, 0, 0])));
        }
        if let (Some(x), Some(y), true) = (known(a), known(b), op.operands() == 2) {
            return Ok(Operand::Bits(class_of(op.result()), op.evaluate([x, y, 0])));
        }
        match op {
            Op::Move(_) => Ok(a),
            Op::Unary(op, ty) => self.unary(op, ty, a),
            Op::Binary(op, ty) => self.binary(op, ty, a, b, divisor),
            Op::Ternary(op, ty) => self.ternary(op, ty, a, b, c),
            Op::CompareI(predicate, ty) => Ok(self.compare_int(predicate, ty, a, b)),
            Op::CompareF(predicate, ty) => {
                let (a, b) = (self.extended(ty, a)?, self.extended(ty, b)?);
                let mnemonic = format!("setp.{}.{}", float_comparison(predicate), computed_in(ty));
                Ok(self.make(Class::Pred, &mnemonic, &[a, b]))
            }
            Op::Classify(class, ty) => {
                let a = self.extended(ty, a)?;
                let ty = computed_in(ty);
                Ok(match class {
                    Classify::IsNan => self.make(Class::Pred, &format!("setp.nan.{ty}"), &[a, a]),
                    Classify::IsInf => self.make(Class::Pred, &format!("testp.infinite.{ty}"), &[a]),
                    Classify::IsFinite => self.make(Class::Pred, &format!("testp.finite.{ty}"), &[a]),
                })
            }
            Op::Select(_) => Ok(self.choose(a, b, c)),
            Op::Convert(convert, source, target) => self.convert(convert, source, target, a),
            Op::Blend => {
                let difference = self.pair(Binary::SubF, ScalarType::F32, b, c)?;
                self.ternary(Ternary::FmaF, ScalarType::F32, a, difference, c)
            }
            Op::ScaledDifference => {
                let difference = self.pair(Binary::SubF, ScalarType::F32, a, b)?;
                self.pair(Binary::MulF, ScalarType::F32, difference, c)
            }
            Op::ExpDifference { approximate } => {
                let difference = self.pair(Binary::SubF, ScalarType::F32, a, b)?;
                self.evaluate(Op::Unary(Unary::exp(approximate), ScalarType::F32), [difference; 3], None)
            }
            Op::FmaExtended(ty) => {
                let (a, b) = (self.extended(ty, a)?, self.extended(ty, b)?);
                Ok(self.make(Class::Word, "fma.rn.f32", &[a, b, c]))
            }
        }
    }

    /// `op` of two values of type `ty`.
    pub(super) fn pair(&mut self, op: Binary, ty: ScalarType, a: Operand, b: Operand) -> Result<Operand> {
        self.evaluate(Op::Binary(op, ty), [a, b, b], None)
    }

    /// A float in the type that it is computed in.
    pub(super) fn extended(&mut self, ty: ScalarType, a: Operand) -> Result<Operand> {
        if computed_in(ty) == ty {
            return Ok(a);
        }
        self.evaluate(Op::Convert(Convert::ExtF, ty, ScalarType::F32), [a; 3], None)
    }

    /// A float of the type that `ty` is computed in, rounded to `ty`.
    pub(super) fn rounded(&mut self, ty: ScalarType, a: Operand) -> Result<Operand> {
        if computed_in(ty) == ty {
            return Ok(a);
        }
        self.evaluate(Op::Convert(Convert::TruncF, ScalarType::F32, ty), [a; 3], None)
    }

    /// A tame quotient of f32: what `ptxas` makes of `div.rn` where nothing is too large or too small, without the test for that,
    /// whose branch keeps everything behind it waiting. A reciprocal that is off by a unit is mended, and the quotient with its
    /// exact remainder, after which it is the nearest float (Markstein, IBM J. Res. Dev. 34, 1990).
    fn quotient(&mut self, a: Operand, b: Operand) -> Operand {
        let fma = |emitter: &mut Self, x, y, z| emitter.make(Class::Word, "fma.rn.f32", &[x, y, z]);
        let negative = self.make(Class::Word, "neg.f32", &[b]);
        let guess = self.make(Class::Word, "rcp.approx.ftz.f32", &[b]);
        let error = fma(self, negative, guess, Operand::word(1f32.to_bits()));
        let reciprocal = fma(self, guess, error, guess);
        let quotient = self.make(Class::Word, "mul.rn.f32", &[a, reciprocal]);
        let rest = fma(self, negative, quotient, a);
        fma(self, rest, reciprocal, quotient)
    }

    /// Runs an expansion: its operands are of the type it computes in.
    pub(super) fn expansion(&mut self, steps: &Steps, inputs: &[Operand]) -> Result<Operand> {
        let mut values: Vec<Operand> = Vec::with_capacity(steps.steps.len());
        for (op, from) in &steps.steps {
            let mut operands = [Operand::word(0); 3];
            for (at, (operand, arg)) in operands.iter_mut().zip(from).enumerate().take(op.operands()) {
                *operand = match *arg {
                    Arg::Input(input) => inputs[input],
                    Arg::Step(step) => values[step],
                    Arg::Constant(bits) => Operand::Bits(class_of(op.operand(at)), bits),
                };
            }
            let value = match steps.tame.contains(&values.len()) {
                true => self.quotient(operands[0], operands[1]),
                false => self.evaluate(*op, operands, None)?,
            };
            values.push(value);
        }
        match values.last() {
            Some(value) => Ok(*value),
            None => self.refuse("a function without steps"),
        }
    }

    /// An expansion of floats of type `ty`, in f32 for narrow ones.
    fn function(&mut self, name: &str, ty: ScalarType, steps: Option<Steps>, inputs: &[Operand]) -> Result<Operand> {
        let Some(steps) = steps else {
            return self.refuse(format!("{name} of {ty}"));
        };
        let mut extended = Vec::with_capacity(2);
        for input in inputs {
            extended.push(self.extended(ty, *input)?);
        }
        let value = self.expansion(&steps, &extended)?;
        self.rounded(ty, value)
    }

    // ---- integers

    /// Cut to the width of `ty`: what a 32-bit result of 8 or 16 bits may have above.
    fn cut(&mut self, ty: ScalarType, a: Operand) -> Operand {
        match ty.bits() {
            width @ (8 | 16) => match a.bits() {
                Some(bits) => Operand::word(bits as u32 & (u32::MAX >> (32 - width))),
                None => self.make(Class::Word, "and.b32", &[a, Operand::word(u32::MAX >> (32 - width))]),
            },
            _ => a,
        }
    }

    /// With the sign of `ty` in all 32 bits.
    pub(super) fn signed(&mut self, ty: ScalarType, a: Operand) -> Operand {
        match (ty.bits(), a.bits()) {
            (8 | 16, Some(bits)) => Operand::word(eval::signed(ty, bits) as u32),
            (8, None) => self.make(Class::Word, "cvt.s32.s8", &[a]),
            (16, None) => self.make(Class::Word, "cvt.s32.s16", &[a]),
            _ => a,
        }
    }

    /// `32` or `64`, and the class.
    const fn width(ty: ScalarType) -> (u32, Class) {
        if ty.bits() == 64 { (64, Class::Long) } else { (32, Class::Word) }
    }

    fn constant(ty: ScalarType, number: i64) -> Operand {
        let (width, class) = Self::width(ty);
        Operand::Bits(class, number as u64 & (u64::MAX >> (64 - width)))
    }

    fn unary(&mut self, op: Unary, ty: ScalarType, a: Operand) -> Result<Operand> {
        if ty == ScalarType::I1 {
            // Of one bit: negation and magnitude change nothing, of 0 one bit is leading, and the sign of 1 is −1, which is 1.
            return Ok(match op {
                Unary::CtlzI | Unary::CttzI => self.not(a),
                _ => a,
            });
        }
        let (width, class) = Self::width(ty);
        Ok(match op {
            Unary::NegI => {
                let negative = self.make(class, &format!("neg.s{width}"), &[a]);
                self.cut(ty, negative)
            }
            Unary::AbsI => {
                let a = self.signed(ty, a);
                let negative = self.make(class, &format!("neg.s{width}"), &[a]);
                let larger = self.make(class, &format!("max.s{width}"), &[a, negative]);
                self.cut(ty, larger)
            }
            Unary::CtlzI => {
                let count = self.make(Class::Word, &format!("clz.b{width}"), &[a]);
                let count = match 32u32.checked_sub(ty.bits()) {
                    Some(above @ 1..) => self.make(Class::Word, "sub.s32", &[count, Operand::word(above)]),
                    _ => count,
                };
                self.count_of(ty, count)
            }
            Unary::CttzI => {
                let reversed = self.make(class, &format!("brev.b{width}"), &[a]);
                let count = self.make(Class::Word, &format!("clz.b{width}"), &[reversed]);
                let count = match ty.bits() {
                    bits @ (8 | 16) => self.make(Class::Word, "min.u32", &[count, Operand::word(bits)]),
                    _ => count,
                };
                self.count_of(ty, count)
            }
            Unary::CtpopI => {
                let count = self.make(Class::Word, &format!("popc.b{width}"), &[a]);
                self.count_of(ty, count)
            }
            Unary::SignI => {
                let a = self.signed(ty, a);
                let low = self.make(class, &format!("max.s{width}"), &[a, Self::constant(ty, -1)]);
                let sign = self.make(class, &format!("min.s{width}"), &[low, Self::constant(ty, 1)]);
                self.cut(ty, sign)
            }
            Unary::NegF | Unary::AbsF => {
                let sign = 1u64 << (ty.bits() - 1);
                let class = class_of(ty);
                let bits = class.bits_type();
                if op == Unary::NegF {
                    self.make(class, &format!("xor.{bits}"), &[a, Operand::Bits(class, sign)])
                } else {
                    self.make(class, &format!("and.{bits}"), &[a, Operand::Bits(class, sign - 1)])
                }
            }
            Unary::CeilF | Unary::FloorF | Unary::TruncF | Unary::RoundEvenF => {
                let rounding = match op {
                    Unary::CeilF => "rpi",
                    Unary::FloorF => "rmi",
                    Unary::TruncF => "rzi",
                    _ => "rni",
                };
                let a = self.extended(ty, a)?;
                let float = computed_in(ty);
                let value = self.make(class_of(float), &format!("cvt.{rounding}.{float}.{float}"), &[a]);
                self.rounded(ty, value)?
            }
            Unary::SqrtF => {
                let a = self.extended(ty, a)?;
                let float = computed_in(ty);
                let root = self.make(class_of(float), &format!("sqrt.rn.{float}"), &[a]);
                self.rounded(ty, root)?
            }
            _ => {
                let steps = expand::unary(op, computed_in(ty));
                self.function(&format!("{op:?}"), ty, steps, &[a])?
            }
        })
    }

    /// A count of bits as a number of type `ty`.
    fn count_of(&mut self, ty: ScalarType, count: Operand) -> Operand {
        if ty.bits() == 64 { self.make(Class::Long, "cvt.u64.u32", &[count]) } else { count }
    }

    fn binary(
        &mut self,
        op: Binary,
        ty: ScalarType,
        a: Operand,
        b: Operand,
        divisor: Option<Facts>,
    ) -> Result<Operand> {
        if op.is_float() {
            return self.binary_float(op, ty, a, b);
        }
        if ty == ScalarType::I1 {
            return self.binary_bit(op, a, b);
        }
        let (width, class) = Self::width(ty);
        let plain = |this: &mut Self, mnemonic: &str| {
            let value = this.make(class, &format!("{mnemonic}{width}"), &[a, b]);
            this.cut(ty, value)
        };
        Ok(match op {
            Binary::AddI => plain(self, "add.s"),
            Binary::SubI => plain(self, "sub.s"),
            Binary::MulI => plain(self, "mul.lo.s"),
            Binary::AndI => plain(self, "and.b"),
            Binary::OrI => plain(self, "or.b"),
            Binary::XorI => plain(self, "xor.b"),
            Binary::MinUI => plain(self, "min.u"),
            Binary::MaxUI => plain(self, "max.u"),
            Binary::MinSI | Binary::MaxSI => {
                let (a, b) = (self.signed(ty, a), self.signed(ty, b));
                let which = if op == Binary::MinSI { "min" } else { "max" };
                let value = self.make(class, &format!("{which}.s{width}"), &[a, b]);
                self.cut(ty, value)
            }
            Binary::ShlI | Binary::ShrUI | Binary::ShrSI => {
                let count = self.shift_count(ty, b);
                let (mnemonic, a) = match op {
                    Binary::ShlI => ("shl.b", a),
                    Binary::ShrUI => ("shr.u", a),
                    _ => ("shr.s", self.signed(ty, a)),
                };
                let value = self.make(class, &format!("{mnemonic}{width}"), &[a, count]);
                self.cut(ty, value)
            }
            Binary::RotLI | Binary::RotRI => {
                let count = self.shift_count(ty, b);
                if ty.bits() == 32 {
                    let direction = if op == Binary::RotLI { "l" } else { "r" };
                    return Ok(self.make(class, &format!("shf.{direction}.wrap.b32"), &[a, a, count]));
                }
                let back = self.make(Class::Word, "neg.s32", &[count]);
                let back = self.make(Class::Word, "and.b32", &[back, Operand::word(ty.bits() - 1)]);
                let (left, right) = if op == Binary::RotLI { (count, back) } else { (back, count) };
                let high = self.make(class, &format!("shl.b{width}"), &[a, left]);
                let low = self.make(class, &format!("shr.u{width}"), &[a, right]);
                let value = self.make(class, &format!("or.b{width}"), &[high, low]);
                self.cut(ty, value)
            }
            Binary::DivUI | Binary::RemUI if b.bits().is_some_and(u64::is_power_of_two) => {
                self.by_power(class, op == Binary::RemUI, a, b)
            }
            Binary::DivUI | Binary::RemUI | Binary::CeilDivUI => {
                let zero = self.is_zero(ty, b, divisor);
                let safe = self.choose(zero, Self::constant(ty, 1), b);
                let rest = op == Binary::RemUI;
                if rest {
                    let value = self.make(class, &format!("rem.u{width}"), &[a, safe]);
                    // A rest of a division by 1 is 0, which is what it is to be.
                    return Ok(value);
                }
                let mut value = self.make(class, &format!("div.u{width}"), &[a, safe]);
                if op == Binary::CeilDivUI {
                    value = self.rounded_up(width, class, a, safe, value);
                }
                self.choose(zero, Self::constant(ty, 0), value)
            }
            Binary::DivSI | Binary::RemSI | Binary::CeilDivSI | Binary::FloorDivSI => {
                let (a, b) = (self.signed(ty, a), self.signed(ty, b));
                let value = self.divide_signed(op, ty, a, b, divisor);
                self.cut(ty, value)
            }
            _ => return self.refuse(format!("{op:?} of {ty}")),
        })
    }

    /// The quotient, or the rest, of `a` by `power`, which is known to be a power of two: the assembler does not see that in uniform
    /// registers.
    pub(super) fn by_power(&mut self, class: Class, is_rest: bool, a: Operand, power: Operand) -> Operand {
        let (power, width) = (power.bits().unwrap_or(1), if class == Class::Long { 64 } else { 32 });
        if is_rest {
            return self.make(class, &format!("and.b{width}"), &[a, Operand::Bits(class, power - 1)]);
        }
        self.make(class, &format!("shr.u{width}"), &[a, Operand::word(power.trailing_zeros())])
    }

    /// One more than the quotient where there is a rest.
    fn rounded_up(&mut self, width: u32, class: Class, a: Operand, b: Operand, quotient: Operand) -> Operand {
        let product = self.make(class, &format!("mul.lo.s{width}"), &[quotient, b]);
        let rest = self.make(Class::Pred, &format!("setp.ne.s{width}"), &[product, a]);
        let more = self.make(class, &format!("add.s{width}"), &[quotient, Operand::Bits(class, 1)]);
        self.choose(rest, more, quotient)
    }

    /// Whether a divisor is zero.
    fn is_zero(&mut self, ty: ScalarType, b: Operand, facts: Option<Facts>) -> Operand {
        if let Some(bits) = b.bits() {
            return Operand::truth(bits == 0);
        }
        if facts.is_some_and(|facts| facts.low > 0 || facts.high < 0) {
            return Operand::truth(false);
        }
        let (width, _) = Self::width(ty);
        self.make(Class::Pred, &format!("setp.eq.s{width}"), &[b, Self::constant(ty, 0)])
    }

    /// Of sign-extended operands. By 0 it is 0, by −1 the negative: no division is made that a machine need not define.
    fn divide_signed(&mut self, op: Binary, ty: ScalarType, a: Operand, b: Operand, facts: Option<Facts>) -> Operand {
        let (width, class) = Self::width(ty);
        let zero = self.is_zero(ty, b, facts);
        let minus_one = Self::constant(ty, -1);
        let minus = match b.bits() {
            Some(_) => Operand::truth(b == minus_one),
            None if facts.is_some_and(|facts| facts.low > -1 || facts.high < -1) => Operand::truth(false),
            None => self.make(Class::Pred, &format!("setp.eq.s{width}"), &[b, minus_one]),
        };
        let unsafe_divisor = self.or(zero, minus);
        let safe = self.choose(unsafe_divisor, Self::constant(ty, 1), b);
        if op == Binary::RemSI {
            // A rest of a division by 1 is 0, which is what it is to be.
            return self.make(class, &format!("rem.s{width}"), &[a, safe]);
        }
        let mut value = self.make(class, &format!("div.s{width}"), &[a, safe]);
        if op != Binary::DivSI {
            let product = self.make(class, &format!("mul.lo.s{width}"), &[value, safe]);
            let rest = self.make(class, &format!("sub.s{width}"), &[a, product]);
            let inexact = self.make(Class::Pred, &format!("setp.ne.s{width}"), &[rest, Self::constant(ty, 0)]);
            let signs = self.make(class, &format!("xor.b{width}"), &[rest, safe]);
            // The quotient lies below the true one where rest and divisor have one sign.
            let (comparison, by) = if op == Binary::CeilDivSI { ("ge", 1) } else { ("lt", -1) };
            let off = self.make(Class::Pred, &format!("setp.{comparison}.s{width}"), &[signs, Self::constant(ty, 0)]);
            let off = self.and(inexact, off);
            let moved = self.make(class, &format!("add.s{width}"), &[value, Self::constant(ty, by)]);
            value = self.choose(off, moved, value);
        }
        if minus != Operand::truth(false) {
            let negative = self.make(class, &format!("neg.s{width}"), &[a]);
            value = self.choose(minus, negative, value);
        }
        self.choose(zero, Self::constant(ty, 0), value)
    }

    /// A count in 32 bits, taken modulo the width.
    fn shift_count(&mut self, ty: ScalarType, count: Operand) -> Operand {
        let count = self.low(count);
        let mask = ty.bits() - 1;
        match count.bits() {
            Some(bits) => Operand::word(bits as u32 & mask),
            None => self.make(Class::Word, "and.b32", &[count, Operand::word(mask)]),
        }
    }

    /// Of single bits; signed ones are 0 and −1.
    fn binary_bit(&mut self, op: Binary, a: Operand, b: Operand) -> Result<Operand> {
        Ok(match op {
            // The greater unsigned is the lesser signed.
            Binary::AndI | Binary::MulI | Binary::MinUI | Binary::MaxSI => self.and(a, b),
            Binary::OrI | Binary::MaxUI | Binary::MinSI => self.or(a, b),
            Binary::AddI | Binary::SubI | Binary::XorI => match (a.bits(), b.bits()) {
                (Some(bits), _) => {
                    if bits == 1 {
                        self.not(b)
                    } else {
                        b
                    }
                }
                (_, Some(bits)) => {
                    if bits == 1 {
                        self.not(a)
                    } else {
                        a
                    }
                }
                _ => self.make(Class::Pred, "xor.pred", &[a, b]),
            },
            // By 0 it is 0; by the only other divisor it is the dividend, rounded or not.
            Binary::DivSI | Binary::DivUI | Binary::CeilDivSI | Binary::CeilDivUI | Binary::FloorDivSI => {
                self.and(a, b)
            }
            Binary::RemSI | Binary::RemUI => Operand::truth(false),
            // Counts are taken modulo 1.
            _ => a,
        })
    }

    fn compare_int(&mut self, predicate: IntPredicate, ty: ScalarType, a: Operand, b: Operand) -> Operand {
        if ty == ScalarType::I1 {
            return match predicate {
                IntPredicate::Eq => {
                    let differ = self.make(Class::Pred, "xor.pred", &[a, b]);
                    self.not(differ)
                }
                IntPredicate::Ne => self.make(Class::Pred, "xor.pred", &[a, b]),
                IntPredicate::Slt | IntPredicate::Ugt => self.and_not(a, b),
                IntPredicate::Sgt | IntPredicate::Ult => self.and_not(b, a),
                IntPredicate::Sle | IntPredicate::Uge => {
                    let other = self.and_not(b, a);
                    self.not(other)
                }
                IntPredicate::Sge | IntPredicate::Ule => {
                    let other = self.and_not(a, b);
                    self.not(other)
                }
            };
        }
        let (a, b) = if is_signed(predicate) { (self.signed(ty, a), self.signed(ty, b)) } else { (a, b) };
        let (width, _) = Self::width(ty);
        self.make(Class::Pred, &format!("setp.{}{width}", int_comparison(predicate)), &[a, b])
    }

    // ---- floats

    fn binary_float(&mut self, op: Binary, ty: ScalarType, a: Operand, b: Operand) -> Result<Operand> {
        if op == Binary::CopySignF {
            let class = class_of(ty);
            let (sign, bits) = (1u64 << (ty.bits() - 1), class.bits_type());
            let magnitude = self.make(class, &format!("and.{bits}"), &[a, Operand::Bits(class, sign - 1)]);
            let sign = self.make(class, &format!("and.{bits}"), &[b, Operand::Bits(class, sign)]);
            return Ok(self.make(class, &format!("or.{bits}"), &[magnitude, sign]));
        }
        let float = computed_in(ty);
        let class = class_of(float);
        let mnemonic = match op {
            Binary::AddF => "add.rn",
            Binary::SubF => "sub.rn",
            Binary::MulF => "mul.rn",
            Binary::DivF => "div.rn",
            Binary::MinNumF => "min",
            Binary::MaxNumF => "max",
            Binary::MinimumF | Binary::MaximumF => {
                let (a, b) = (self.extended(ty, a)?, self.extended(ty, b)?);
                let which = if op == Binary::MinimumF { "min" } else { "max" };
                let value = if float == ScalarType::F32 && self.may(80, (7, 0)) {
                    self.make(class, &format!("{which}.NaN.f32"), &[a, b])
                } else {
                    let value = self.make(class, &format!("{which}.{float}"), &[a, b]);
                    let unordered = self.make(Class::Pred, &format!("setp.nan.{float}"), &[a, b]);
                    let nan = Operand::Bits(class, eval::from_f64(float, f64::NAN));
                    self.choose(unordered, nan, value)
                };
                return self.rounded(ty, value);
            }
            Binary::RemF => {
                let (a, b) = (self.extended(ty, a)?, self.extended(ty, b)?);
                let rest = self.remainder(float, a, b)?;
                return self.rounded(ty, rest);
            }
            _ => {
                let steps = expand::binary(op, float);
                return self.function(&format!("{op:?}"), ty, steps, &[a, b]);
            }
        };
        let (a, b) = (self.extended(ty, a)?, self.extended(ty, b)?);
        let value = self.make(class, &format!("{mnemonic}.{float}"), &[a, b]);
        self.rounded(ty, value)
    }

    fn ternary(&mut self, op: Ternary, ty: ScalarType, a: Operand, b: Operand, c: Operand) -> Result<Operand> {
        match op {
            Ternary::FmaI if matches!(ty.bits(), 32 | 64) => {
                let (width, class) = Self::width(ty);
                Ok(self.make(class, &format!("mad.lo.s{width}"), &[a, b, c]))
            }
            Ternary::FmaI => {
                let product = self.pair(Binary::MulI, ty, a, b)?;
                self.pair(Binary::AddI, ty, product, c)
            }
            Ternary::FmaF => match ty {
                ScalarType::F32 | ScalarType::F64 => Ok(self.make(class_of(ty), &format!("fma.rn.{ty}"), &[a, b, c])),
                ScalarType::F16 => Ok(self.make(Class::Half, "fma.rn.f16", &[a, b, c])),
                ScalarType::BF16 if self.may(80, (7, 0)) => Ok(self.make(Class::Half, "fma.rn.bf16", &[a, b, c])),
                _ => {
                    let mut wide = [a, b, c];
                    for operand in &mut wide {
                        let extend = Op::Convert(Convert::ExtF, ty, ScalarType::F64);
                        *operand = self.evaluate(extend, [*operand; 3], None)?;
                    }
                    let sum = self.expansion(&expand::fma_to_odd(), &wide)?;
                    self.evaluate(Op::Convert(Convert::TruncF, ScalarType::F64, ty), [sum; 3], None)
                }
            },
            Ternary::ClampOrderedF => {
                let float = computed_in(ty);
                let [value, low, high] = [self.extended(ty, a)?, self.extended(ty, b)?, self.extended(ty, c)?];
                let below = self.make(Class::Pred, &format!("setp.lt.{float}"), &[value, low]);
                let raised = self.choose(below, low, value);
                let bits = self.choose(below, b, a);
                let above = self.make(Class::Pred, &format!("setp.gt.{float}"), &[raised, high]);
                Ok(self.choose(above, c, bits))
            }
        }
    }

    /// C `fmod`, exactly: the rest of a long division of the significands, some 40 or 11 bits a turn.
    fn remainder(&mut self, ty: ScalarType, a: Operand, b: Operand) -> Result<Operand> {
        let double = ty == ScalarType::F64;
        // Bits of the fraction, and of the dividend that a turn takes: a rest below 2^24 or 2^53 and these fit 64 bits.
        let (fraction, step) = if double { (52u32, 11u32) } else { (23, 40) };
        let exponents = if double { 0x7ff } else { 0xff };
        let long = |this: &mut Self, bits: Operand| {
            if double { bits } else { this.make(Class::Long, "cvt.u64.u32", &[bits]) }
        };
        let sign = 1u64 << (ty.bits() - 1);
        let class = class_of(ty);
        let bits_type = class.bits_type();
        let mut parts = [[a; 2]; 2];
        for (part, operand) in parts.iter_mut().zip([a, b]) {
            let magnitude = self.make(class, &format!("and.{bits_type}"), &[operand, Operand::Bits(class, sign - 1)]);
            let bits = long(self, magnitude);
            let exponent = self.make(Class::Long, "shr.u64", &[bits, Operand::word(fraction)]);
            let exponent = self.low(exponent);
            let significand = self.make(Class::Long, "and.b64", &[bits, Operand::long((1 << fraction) - 1)]);
            let normal = self.make(Class::Pred, "setp.ne.s32", &[exponent, Operand::word(0)]);
            let leading = self.choose(normal, Operand::long(1 << fraction), Operand::long(0));
            let significand = self.make(Class::Long, "or.b64", &[significand, leading]);
            let exponent = self.make(Class::Word, "max.s32", &[exponent, Operand::word(1)]);
            *part = [significand, exponent];
        }
        let [[dividend, high], [divisor, low]] = parts;
        let empty = self.make(Class::Pred, "setp.eq.s64", &[divisor, Operand::long(0)]);
        let divisor = self.choose(empty, Operand::long(1), divisor);
        let (rest, count) = (self.text.reg(Class::Long), self.text.reg(Class::Word));
        let (turn, done) = (self.text.label(), self.text.label());
        self.copy(rest, dividend);
        self.emit("sub.s32", count.into(), &[high, low]);
        self.emit("rem.u64", rest.into(), &[rest.into(), divisor]);
        self.text.at(turn);
        let left = self.make(Class::Pred, "setp.gt.s32", &[count.into(), Operand::word(0)]);
        self.branch(left, false, done);
        let shift = self.make(Class::Word, "min.s32", &[count.into(), Operand::word(step)]);
        self.emit("shl.b64", rest.into(), &[rest.into(), shift]);
        self.emit("rem.u64", rest.into(), &[rest.into(), divisor]);
        self.emit("sub.s32", count.into(), &[count.into(), shift]);
        self.jump(turn);
        self.text.at(done);
        // Rest times the divisor's unit, a power of two of which each half is a normal number: exact.
        let number = self.make(Class::Long, "cvt.rn.f64.u64", &[rest.into()]);
        let scaled = if double {
            let unit = self.make(Class::Word, "add.s32", &[low, Operand::word(-1075i32 as u32)]);
            let half = self.make(Class::Word, "shr.s32", &[unit, Operand::word(1)]);
            let other = self.make(Class::Word, "sub.s32", &[unit, half]);
            let once = self.scaled(number, half);
            self.scaled(once, other)
        } else {
            let unit = self.make(Class::Word, "add.s32", &[low, Operand::word(-150i32 as u32)]);
            let wide = self.scaled(number, unit);
            self.make(Class::Word, "cvt.rn.f32.f64", &[wide])
        };
        let sign_of = self.make(class, &format!("and.{bits_type}"), &[a, Operand::Bits(class, sign)]);
        let value = self.make(class, &format!("or.{bits_type}"), &[scaled, sign_of]);
        // A dividend below the divisor is the rest; an infinite one, and a divisor of zero, have none.
        let magnitudes = [a, b]
            .map(|operand| self.make(class, &format!("and.{bits_type}"), &[operand, Operand::Bits(class, sign - 1)]));
        let smaller = self.make(Class::Pred, &format!("setp.lt.{ty}"), &magnitudes);
        let value = self.choose(smaller, a, value);
        let infinity = Operand::Bits(class, exponents << fraction);
        let infinite = self.make(Class::Pred, &format!("setp.geu.{ty}"), &[magnitudes[0], infinity]);
        let unknown = self.make(Class::Pred, &format!("setp.nan.{ty}"), &[magnitudes[1], magnitudes[1]]);
        let none = self.or(infinite, unknown);
        let none = self.or(none, empty);
        let nan = Operand::Bits(class, eval::from_f64(ty, f64::NAN));
        Ok(self.choose(none, nan, value))
    }

    /// An f64 times 2^n, which is a normal number.
    fn scaled(&mut self, a: Operand, n: Operand) -> Operand {
        let biased = self.make(Class::Word, "add.s32", &[n, Operand::word(1023)]);
        let biased = self.make(Class::Long, "cvt.u64.u32", &[biased]);
        let power = self.make(Class::Long, "shl.b64", &[biased, Operand::word(52)]);
        self.make(Class::Long, "mul.rn.f64", &[a, power])
    }
}
