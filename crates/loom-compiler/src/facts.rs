//! What is known of integers before they run: range, divisibility, and order between two values.
//!
//! - [`Facts`] describe the number that a scalar of an integer type (`index`, `offset`, `i1` .. `i64`) holds: signed, but for
//!   `i1` (0 or 1) and `offset` (never negative). Of floats, vectors, buffers and views nothing is known.
//! - Facts come from constants, the predicates of config values, assumptions and `where` clauses, ids and launch geometry,
//!   loop bounds, arithmetic, and the comparisons that a branch was taken for. None is ever checked at run time.
//! - A fact of a value holds from where it became known, in the blocks that are dominated: a table takes it back when the
//!   block ends. What [`crate::ir::Kernel::facts`] says holds wherever the value is defined.
//! - Arithmetic that may wrap gives nothing but the power of two that survives.

use std::collections::HashMap;

use crate::ir::ValueId;
use crate::ops::{Binary, Convert, IntPredicate, OpKind, Ternary, Unary};
use crate::types::{ScalarType, Type};

/// What is known of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The least it may be.
    pub low: i64,
    /// The most it may be, inclusive.
    pub high: i64,
    /// It is a multiple of this, at least 1; 0 says that it is zero.
    pub multiple_of: u64,
}

impl Facts {
    /// Nothing known but the type; for what is no integer, nothing at all.
    pub fn of_type(ty: &Type) -> Self {
        let Some(ty) = integer(ty) else {
            return Self { low: i64::MIN, high: i64::MAX, multiple_of: 1 };
        };
        let (low, high) = match ty {
            ScalarType::I1 => (0, 1),
            ScalarType::Offset => (0, i64::MAX),
            ty => (i64::MIN >> (64 - ty.bits()), i64::MAX >> (64 - ty.bits())),
        };
        Self { low, high, multiple_of: 1 }
    }

    /// Exactly this number.
    pub const fn exactly(number: i64) -> Self {
        Self { low: number, high: number, multiple_of: number.unsigned_abs() }
    }

    /// From `low` to `high`, both included.
    pub const fn range(low: i64, high: i64) -> Self {
        Self { low, high, multiple_of: 1 }
    }

    /// The number, if only one is left.
    pub const fn number(self) -> Option<i64> {
        if self.low == self.high { Some(self.low) } else { None }
    }

    /// Whether `divisor`, at least 1, divides it for sure.
    pub const fn is_multiple_of(self, divisor: u64) -> bool {
        divisor != 0 && self.multiple_of.is_multiple_of(divisor)
    }

    /// Whether it fits `bits` bits, at least 1, signed.
    pub const fn fits(self, bits: u32) -> bool {
        match bits {
            0 => false,
            1..64 => self.low >= -(1 << (bits - 1)) && self.high < 1 << (bits - 1),
            64.. => true,
        }
    }

    /// What holds of a value that is one or the other.
    pub fn either(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            multiple_of: gcd(self.multiple_of, other.multiple_of),
        }
    }

    /// What holds of a value of which both is known. Facts that contradict each other (of code that never runs) stay as they
    /// were.
    pub fn both(self, other: Self) -> Self {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        if low > high {
            return self;
        }
        if low == high {
            return Self::exactly(low);
        }
        let (a, b) = (self.multiple_of, other.multiple_of);
        let multiple_of = match (a, b) {
            (0, known) | (known, 0) => known,
            _ => (a / gcd(a, b)).checked_mul(b).unwrap_or(a.max(b)),
        };
        Self { low, high, multiple_of }
    }

    /// As `ty` holds the numbers from `low` to `high`: nothing if it may not hold one.
    fn wrapped(ty: ScalarType, low: i128, high: i128, multiple_of: u64) -> Self {
        let any = Self::of_type(&Type::Scalar(ty));
        if low >= i128::from(any.low) && high <= i128::from(any.high) {
            let (low, high) = (low as i64, high as i64);
            return if low == high { Self::exactly(low) } else { Self { low, high, multiple_of } };
        }
        Self { multiple_of: power_of_two(multiple_of, ty), ..any }
    }
}

/// The type, if it is an integer scalar.
fn integer(ty: &Type) -> Option<ScalarType> {
    ty.scalar().filter(|ty| !ty.is_float())
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The power of two in a divisor: what is left of it after wrapping.
fn power_of_two(divisor: u64, ty: ScalarType) -> u64 {
    if divisor == 0 { 1 << (ty.bits() - 1) } else { (1 << divisor.trailing_zeros()).min(1 << (ty.bits() - 1)) }
}

/// Of a result of type `ty`, from the facts of the operands and their element types.
pub(crate) fn derive(kind: &OpKind, operands: &[(Facts, &Type)], ty: &Type) -> Facts {
    let any = Facts::of_type(ty);
    let Some(to) = integer(ty) else {
        return any;
    };
    let operand = |at: usize| operands.get(at).filter(|(_, ty)| integer(ty).is_some()).map(|(facts, _)| *facts);
    let derived = match kind {
        OpKind::Unary(op) => operand(0).map(|a| unary(*op, to, a)),
        // In i1 the bit 1 is −1 to some of these: only what is true of bits.
        OpKind::Binary(op) if to == ScalarType::I1 => operand(0).zip(operand(1)).and_then(|(a, b)| match op {
            Binary::AndI => Some(Facts::range(a.low.min(b.low), a.high.min(b.high))),
            Binary::OrI => Some(Facts::range(a.low.max(b.low), a.high.max(b.high))),
            _ => None,
        }),
        OpKind::Binary(op) => operand(0).zip(operand(1)).map(|(a, b)| binary(*op, to, a, b)),
        OpKind::Ternary(Ternary::FmaI) if to != ScalarType::I1 => match (operand(0), operand(1), operand(2)) {
            (Some(a), Some(b), Some(c)) => {
                let (low, high, multiple) = product(a, b);
                let (low, high) = (low + i128::from(c.low), high + i128::from(c.high));
                Some(Facts::wrapped(to, low, high, gcd(multiple, c.multiple_of)))
            }
            _ => None,
        },
        OpKind::Convert(op) => {
            operands.first().and_then(|(facts, from)| Some(convert(*op, integer(from)?, to, *facts)))
        }
        OpKind::Select => operand(1).zip(operand(2)).map(|(a, b)| a.either(b)),
        _ => None,
    };
    derived.unwrap_or(any)
}

fn unary(op: Unary, ty: ScalarType, a: Facts) -> Facts {
    let any = Facts::of_type(&Type::Scalar(ty));
    match op {
        _ if ty == ScalarType::I1 => any,
        Unary::CtlzI | Unary::CttzI | Unary::CtpopI if ty.bits() > 8 => Facts::range(0, i64::from(ty.bits())),
        Unary::SignI if a.low > 0 => Facts::exactly(1),
        Unary::SignI => Facts::range(any.low.max(-1), 1),
        Unary::AbsI if a.low >= 0 => a,
        Unary::NegI => Facts::wrapped(ty, -i128::from(a.high), -i128::from(a.low), a.multiple_of),
        _ => any,
    }
}

/// The product's range, and what divides it.
fn product(a: Facts, b: Facts) -> (i128, i128, u64) {
    let of = |a: i64, b: i64| i128::from(a) * i128::from(b);
    let corners = [of(a.low, b.low), of(a.low, b.high), of(a.high, b.low), of(a.high, b.high)];
    let low = corners.into_iter().fold(corners[0], i128::min);
    let high = corners.into_iter().fold(corners[0], i128::max);
    (low, high, a.multiple_of.checked_mul(b.multiple_of).unwrap_or(a.multiple_of.max(b.multiple_of)))
}

fn binary(op: Binary, ty: ScalarType, a: Facts, b: Facts) -> Facts {
    let any = Facts::of_type(&Type::Scalar(ty));
    let wide = |value: i64| i128::from(value);
    let common = gcd(a.multiple_of, b.multiple_of);
    // Where both are not negative and there is no division by zero, signed and unsigned agree.
    let natural = a.low >= 0 && b.low >= 0;
    let divides = a.low >= 0 && b.low >= 1;
    match op {
        Binary::AddI => Facts::wrapped(ty, wide(a.low) + wide(b.low), wide(a.high) + wide(b.high), common),
        Binary::SubI => Facts::wrapped(ty, wide(a.low) - wide(b.high), wide(a.high) - wide(b.low), common),
        Binary::MulI => {
            let (low, high, multiple) = product(a, b);
            Facts::wrapped(ty, low, high, multiple)
        }
        Binary::DivUI | Binary::DivSI | Binary::FloorDivSI if divides => {
            let multiple_of = match b.number() {
                Some(divisor) if a.is_multiple_of(divisor as u64) => a.multiple_of / divisor as u64,
                _ => 1,
            };
            Facts::wrapped(ty, wide(a.low / b.high), wide(a.high / b.low), multiple_of)
        }
        Binary::CeilDivUI | Binary::CeilDivSI if divides => {
            let up = |a: i64, b: i64| wide(a / b) + i128::from(a % b != 0);
            Facts::wrapped(ty, up(a.low, b.high), up(a.high, b.low), 1)
        }
        Binary::RemUI | Binary::RemSI if divides => {
            if a.high < b.low {
                return a;
            }
            Facts::wrapped(ty, 0, wide(a.high.min(b.high - 1)), common)
        }
        Binary::MinSI => Facts::wrapped(ty, wide(a.low.min(b.low)), wide(a.high.min(b.high)), common),
        Binary::MaxSI => Facts::wrapped(ty, wide(a.low.max(b.low)), wide(a.high.max(b.high)), common),
        Binary::MinUI if natural => Facts::wrapped(ty, wide(a.low.min(b.low)), wide(a.high.min(b.high)), common),
        Binary::MaxUI if natural => Facts::wrapped(ty, wide(a.low.max(b.low)), wide(a.high.max(b.high)), common),
        Binary::AndI if a.low >= 0 || b.low >= 0 => {
            let high = match (a.low >= 0, b.low >= 0) {
                (true, true) => a.high.min(b.high),
                (true, false) => a.high,
                _ => b.high,
            };
            let multiple_of = power_of_two(a.multiple_of, ty).max(power_of_two(b.multiple_of, ty));
            Facts::wrapped(ty, 0, wide(high), multiple_of)
        }
        Binary::OrI | Binary::XorI if natural => {
            let bits = 64 - (a.high | b.high).leading_zeros();
            let multiple_of = power_of_two(common, ty);
            Facts::wrapped(ty, 0, (1i128 << bits) - 1, multiple_of)
        }
        Binary::ShlI => match b.number() {
            Some(count @ 0..=62) if count < i64::from(ty.bits()) => {
                let (low, high, multiple) = product(a, Facts::exactly(1 << count));
                Facts::wrapped(ty, low, high, multiple)
            }
            _ => any,
        },
        Binary::ShrUI | Binary::ShrSI if a.low >= 0 => match b.number() {
            Some(count @ 0..=62) if count < i64::from(ty.bits()) => {
                let step = 1u64 << count;
                let multiple_of = if a.is_multiple_of(step) { a.multiple_of / step } else { 1 };
                Facts::wrapped(ty, wide(a.low >> count), wide(a.high >> count), multiple_of)
            }
            _ => Facts::wrapped(ty, 0, wide(a.high), 1),
        },
        _ => any,
    }
}

fn convert(op: Convert, from: ScalarType, to: ScalarType, a: Facts) -> Facts {
    let any = Facts::of_type(&Type::Scalar(to));
    match op {
        _ if to == ScalarType::I1 || (from == ScalarType::I1 && op == Convert::Bitcast) => any,
        // True is −1.
        Convert::ExtSI if from == ScalarType::I1 => Facts::wrapped(to, -i128::from(a.high), -i128::from(a.low), 1),
        Convert::ExtSI | Convert::TruncI | Convert::Bitcast => {
            Facts::wrapped(to, i128::from(a.low), i128::from(a.high), a.multiple_of)
        }
        Convert::ExtUI if a.low >= 0 => Facts::wrapped(to, i128::from(a.low), i128::from(a.high), a.multiple_of),
        Convert::ExtUI => {
            Facts::wrapped(to, 0, i128::from(u64::MAX >> (64 - from.bits())), power_of_two(a.multiple_of, from))
        }
        _ => any,
    }
}

/// How the first of two values may be to the second: a set of these bits.
const LESS: u8 = 1;
const EQUAL: u8 = 2;
const GREATER: u8 = 4;

/// The orders that a signed predicate allows; nothing for unsigned ones.
const fn orders(predicate: IntPredicate) -> Option<u8> {
    Some(match predicate {
        IntPredicate::Eq => EQUAL,
        IntPredicate::Ne => LESS | GREATER,
        IntPredicate::Slt => LESS,
        IntPredicate::Sle => LESS | EQUAL,
        IntPredicate::Sgt => GREATER,
        IntPredicate::Sge => GREATER | EQUAL,
        IntPredicate::Ult | IntPredicate::Ule | IntPredicate::Ugt | IntPredicate::Uge => return None,
    })
}

/// The signed predicate that says the same of numbers that are not negative.
const fn as_signed(predicate: IntPredicate) -> IntPredicate {
    match predicate {
        IntPredicate::Ult => IntPredicate::Slt,
        IntPredicate::Ule => IntPredicate::Sle,
        IntPredicate::Ugt => IntPredicate::Sgt,
        IntPredicate::Uge => IntPredicate::Sge,
        signed => signed,
    }
}

/// What holds when `predicate` does not.
const fn negated(predicate: IntPredicate) -> IntPredicate {
    match predicate {
        IntPredicate::Eq => IntPredicate::Ne,
        IntPredicate::Ne => IntPredicate::Eq,
        IntPredicate::Slt => IntPredicate::Sge,
        IntPredicate::Sle => IntPredicate::Sgt,
        IntPredicate::Sgt => IntPredicate::Sle,
        IntPredicate::Sge => IntPredicate::Slt,
        IntPredicate::Ult => IntPredicate::Uge,
        IntPredicate::Ule => IntPredicate::Ugt,
        IntPredicate::Ugt => IntPredicate::Ule,
        IntPredicate::Uge => IntPredicate::Ult,
    }
}

/// The order seen from the other side.
const fn swapped(orders: u8) -> u8 {
    (orders & EQUAL) | (if orders & LESS != 0 { GREATER } else { 0 }) | (if orders & GREATER != 0 { LESS } else { 0 })
}

/// What is taken back when a block ends.
enum Undo {
    Facts(ValueId, Facts),
    Order(ValueId, ValueId, Option<u8>),
}

/// A number: what is known of it, and the value that it is.
pub(crate) type Term = (Facts, Option<ValueId>);

/// The facts of the values of a body that is being built.
#[derive(Default)]
pub(crate) struct Table {
    /// By [`ValueId`]: what holds here.
    now: Vec<Facts>,
    /// By [`ValueId`]: what holds wherever the value is defined.
    always: Vec<Facts>,
    /// Of pairs in ascending order.
    orders: HashMap<(ValueId, ValueId), u8>,
    /// How values of type i1 came about.
    conditions: HashMap<ValueId, (OpKind, Vec<ValueId>)>,
    log: Vec<Undo>,
}

impl Table {
    /// The next value, of which `facts` hold from its definition on.
    pub(crate) fn define(&mut self, facts: Facts) {
        self.now.push(facts);
        self.always.push(facts);
    }

    /// More of a value that is defined just now.
    pub(crate) fn refine(&mut self, value: ValueId, facts: Facts) {
        self.now[value.index()] = facts;
        self.always[value.index()] = facts;
    }

    /// How the condition `value` was computed.
    pub(crate) fn condition(&mut self, value: ValueId, kind: OpKind, operands: &[ValueId]) {
        self.conditions.insert(value, (kind, operands.to_vec()));
    }

    pub(crate) fn get(&self, value: ValueId) -> Facts {
        self.now[value.index()]
    }

    /// Where the log is; what is assumed from here on is taken back by [`Self::leave`].
    pub(crate) fn enter(&self) -> usize {
        self.log.len()
    }

    pub(crate) fn leave(&mut self, mark: usize) {
        for undo in self.log.drain(mark..).rev() {
            match undo {
                Undo::Facts(value, facts) => self.now[value.index()] = facts,
                Undo::Order(a, b, Some(orders)) => drop(self.orders.insert((a, b), orders)),
                Undo::Order(a, b, None) => drop(self.orders.remove(&(a, b))),
            }
        }
    }

    /// Everything for a body that is built, and nothing left for the next.
    pub(crate) fn take(&mut self) -> Vec<Facts> {
        std::mem::take(self).always
    }

    /// These facts hold of `value` from here on; if `always`, they do wherever the value is defined.
    pub(crate) fn assume(&mut self, value: ValueId, facts: Facts, always: bool) {
        let known = self.get(value);
        let narrowed = known.both(facts);
        if narrowed != known {
            self.log.push(Undo::Facts(value, known));
            self.now[value.index()] = narrowed;
        }
        if always {
            self.always[value.index()] = self.always[value.index()].both(facts);
        }
    }

    fn order(&self, (fa, a): Term, (fb, b): Term) -> u8 {
        let any = LESS | EQUAL | GREATER;
        let mut possible = match (a, b) {
            (Some(a), Some(b)) if a == b => EQUAL,
            (Some(a), Some(b)) if a < b => self.orders.get(&(a, b)).copied().unwrap_or(any),
            (Some(a), Some(b)) => swapped(self.orders.get(&(b, a)).copied().unwrap_or(any)),
            _ => any,
        };
        if fa.high < fb.low {
            possible &= LESS;
        } else if fa.high <= fb.low {
            possible &= LESS | EQUAL;
        }
        if fa.low > fb.high {
            possible &= GREATER;
        } else if fa.low >= fb.high {
            possible &= GREATER | EQUAL;
        }
        possible
    }

    /// Whether the comparison holds, if that is known.
    pub(crate) fn compare(&self, predicate: IntPredicate, a: ValueId, b: ValueId) -> Option<bool> {
        self.compare_terms(predicate, (self.get(a), Some(a)), (self.get(b), Some(b)))
    }

    /// [`Self::compare`] of numbers that need not be values.
    pub(crate) fn compare_terms(&self, predicate: IntPredicate, a: Term, b: Term) -> Option<bool> {
        let allowed = match orders(predicate) {
            Some(allowed) => allowed,
            None if a.0.low >= 0 && b.0.low >= 0 => orders(as_signed(predicate))?,
            None => return None,
        };
        match self.order(a, b) {
            // Facts that exclude each other: code that never runs.
            0 => None,
            possible if possible & !allowed == 0 => Some(true),
            possible if possible & allowed == 0 => Some(false),
            _ => None,
        }
    }

    /// The signed comparison holds from here on.
    pub(crate) fn assume_compare(&mut self, predicate: IntPredicate, a: ValueId, b: ValueId, always: bool) {
        let (predicate, a, b) = match predicate {
            IntPredicate::Ugt => (IntPredicate::Ult, b, a),
            IntPredicate::Uge => (IntPredicate::Ule, b, a),
            other => (other, a, b),
        };
        let allowed = match orders(predicate) {
            Some(allowed) => allowed,
            // Below a number that is not negative, unsigned: not negative either.
            None if self.get(b).low >= 0 => {
                self.assume(a, Facts::range(0, i64::MAX), always);
                orders(as_signed(predicate)).unwrap_or(LESS | EQUAL | GREATER)
            }
            None => return,
        };
        let (low, high, known) = if a < b { (a, b, allowed) } else { (b, a, swapped(allowed)) };
        let before = self.orders.get(&(low, high)).copied();
        let after = before.unwrap_or(LESS | EQUAL | GREATER) & known;
        if a != b && Some(after) != before && after != 0 {
            self.log.push(Undo::Order(low, high, before));
            self.orders.insert((low, high), after);
        }
        let (fa, fb) = (self.get(a), self.get(b));
        let below = |limit: Facts, strict: bool| Facts::range(i64::MIN, limit.high.saturating_sub(i64::from(strict)));
        let above = |limit: Facts, strict: bool| Facts::range(limit.low.saturating_add(i64::from(strict)), i64::MAX);
        let strict = allowed & EQUAL == 0;
        match allowed {
            EQUAL => {
                self.assume(a, fb, always);
                self.assume(b, fa, always);
            }
            LESS | 3 => {
                self.assume(a, below(fb, strict), always);
                self.assume(b, above(fa, strict), always);
            }
            GREATER | 6 => {
                self.assume(a, above(fb, strict), always);
                self.assume(b, below(fa, strict), always);
            }
            _ => {}
        }
    }

    /// The condition has this value from here on. Of a condition made of others, `budget` are looked into.
    pub(crate) fn assume_condition(&mut self, condition: ValueId, holds: bool, budget: &mut u32) {
        self.assume(condition, Facts::exactly(i64::from(holds)), false);
        let Some((kind, operands)) = self.conditions.get(&condition).filter(|_| *budget > 0).cloned() else {
            return;
        };
        *budget -= 1;
        match kind {
            OpKind::CompareI(predicate) => {
                let predicate = if holds { predicate } else { negated(predicate) };
                self.assume_compare(predicate, operands[0], operands[1], false);
            }
            OpKind::Binary(Binary::AndI) if holds => {
                operands.iter().for_each(|operand| self.assume_condition(*operand, true, budget));
            }
            OpKind::Binary(Binary::OrI) if !holds => {
                operands.iter().for_each(|operand| self.assume_condition(*operand, false, budget));
            }
            OpKind::Binary(Binary::XorI) => {
                for (condition, other) in [(operands[0], operands[1]), (operands[1], operands[0])] {
                    if let Some(flips) = self.get(other).number() {
                        self.assume_condition(condition, holds != (flips == 1), budget);
                    }
                }
            }
            _ => {}
        }
    }
}
