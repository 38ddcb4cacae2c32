//! Facts while building: what arithmetic, ids and branches give, what predicates promise, and whether one is proven.
//!
//! - Promises are believed from where they stand, and are never checked. What is known folds comparisons, dead branches and
//!   arithmetic with one outcome, and proves the conditions of templates.
//! - In [`Mode::Verify`] nothing is folded by facts: branches that never run are built too, and must not look wrong for it.

use crate::eval;
use crate::facts::{Facts, derive};
use crate::ir::ValueId;
use crate::ops::{Axis, Binary, IdKind, IntPredicate, OpKind};
use crate::types::{ScalarType, Type};

use super::config::{Argument, Fact, Predicate};
use super::names::Binding;
use super::{Builder, Mode};

/// How many of the conditions that a branch's condition is made of are looked into.
const MAX_CONDITIONS: u32 = 64;

/// What is known on entering a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entering {
    /// A condition has this value.
    Condition(ValueId, bool),
    /// A comparison holds.
    Compare(IntPredicate, ValueId, ValueId),
}

impl<'m> Builder<'m> {
    /// What facts make of an op that does not fold: a constant, or one of its operands.
    pub(super) fn decided(&mut self, kind: &OpKind, operands: &[ValueId], ty: &Type) -> Option<ValueId> {
        if self.mode == Mode::Verify {
            return None;
        }
        match kind {
            OpKind::CompareI(predicate) if self.is_number(operands[0]) => {
                let holds = self.facts.compare(*predicate, operands[0], operands[1])?;
                Some(self.constant(ty.clone(), u64::from(holds)))
            }
            OpKind::Binary(Binary::RemUI) if self.is_number(operands[0]) => {
                let (a, b) = (self.facts.get(operands[0]), self.facts.get(operands[1]));
                (a.low >= 0 && a.high < b.low).then_some(operands[0])
            }
            _ => None,
        }
    }

    /// Whether it is a scalar whose facts are numbers as comparisons see them.
    fn is_number(&self, value: ValueId) -> bool {
        matches!(self.ty(value).scalar(), Some(ty) if !ty.is_float() && ty != ScalarType::I1)
    }

    /// The constant that `value` is by its facts, or itself.
    pub(super) fn settled(&mut self, value: ValueId) -> ValueId {
        match (self.ty(value).scalar(), self.facts.get(value).number()) {
            (Some(ty), Some(number)) if self.mode == Mode::Specialise && !ty.is_float() => {
                let bits = number as u64 & (u64::MAX >> (64 - ty.bits()));
                self.constant(Type::Scalar(ty), bits)
            }
            _ => value,
        }
    }

    /// Of the result of a pure op.
    pub(super) fn derived(&self, kind: &OpKind, operands: &[ValueId], ty: &Type) -> Facts {
        if let OpKind::Id(id) = kind {
            return self.id_facts(*id);
        }
        if ty.scalar().is_none_or(ScalarType::is_float) {
            return Facts::of_type(ty);
        }
        let mut known = [(Facts::exactly(0), ty); 3];
        let count = operands.len().min(known.len());
        for (known, operand) in known.iter_mut().zip(operands) {
            *known = (self.facts.get(*operand), self.ty(*operand));
        }
        derive(kind, &known[..count], ty)
    }

    fn id_facts(&self, id: IdKind) -> Facts {
        let size = |axis: Axis| self.workgroup_size.map_or(1024, |size| i64::from(size[axis.index()]));
        let items = self.workgroup_size.map_or(1024, |size| size.iter().map(|size| i64::from(*size)).product());
        let groups = |axis: Axis| match self.workgroups[axis.index()] {
            Some(count) => i64::from(count),
            None => i64::from(u32::MAX),
        };
        // Where no workgroup runs, nothing is asked.
        let below = |limit: i64| Facts::range(0, limit.max(1) - 1);
        match id {
            IdKind::WorkItem(axis) => below(size(axis)),
            IdKind::WorkGroup(axis) => below(groups(axis)),
            IdKind::WorkGroupCount(axis) => Facts::range(1, groups(axis).max(1)),
            IdKind::Dispatch(axis) => below(groups(axis) * size(axis)),
            IdKind::Subgroup => below((items + i64::from(self.subgroup_size) - 1) / i64::from(self.subgroup_size)),
            IdKind::SubgroupLane => below(i64::from(self.subgroup_size)),
        }
    }

    /// On entering a block.
    pub(super) fn entered(&mut self, known: Entering) {
        match known {
            Entering::Condition(condition, holds) => {
                self.facts.assume_condition(condition, holds, &mut MAX_CONDITIONS.clone());
            }
            Entering::Compare(predicate, a, b) => self.facts.assume_compare(predicate, a, b, false),
        }
    }

    /// Whether what is promised of `value` here holds wherever it is defined.
    fn is_always(&self, value: ValueId) -> bool {
        !self.exits && self.home[value.index()] == self.block
    }

    /// The facts of an argument, and its value.
    fn term(&self, argument: &Argument<'m>) -> Option<(Facts, Option<ValueId>)> {
        match argument {
            Argument::Int(int) => Some((Facts::exactly(*int), None)),
            Argument::Name(name, _) => match self.names.get(name) {
                Some(Binding::Value(value)) if self.ty(*value).scalar().is_some_and(|ty| !ty.is_float()) => {
                    Some((self.facts.get(*value), Some(*value)))
                }
                _ => None,
            },
        }
    }

    /// Believes predicates from here on.
    pub(super) fn promise(&mut self, predicates: &[Predicate<'m>]) {
        for predicate in predicates {
            let terms: Option<Vec<_>> = predicate.arguments.iter().map(|argument| self.term(argument)).collect();
            let Some(terms) = terms else {
                continue;
            };
            let comparisons: &[(IntPredicate, usize, usize)] = match predicate.fact {
                Fact::Range => &[(IntPredicate::Sge, 0, 1), (IntPredicate::Sle, 0, 2)],
                _ => match comparison(predicate.fact) {
                    Some(IntPredicate::Eq) => &[(IntPredicate::Eq, 0, 1)],
                    Some(IntPredicate::Ne) => &[(IntPredicate::Ne, 0, 1)],
                    Some(IntPredicate::Slt) => &[(IntPredicate::Slt, 0, 1)],
                    Some(IntPredicate::Sle) => &[(IntPredicate::Sle, 0, 1)],
                    Some(IntPredicate::Sgt) => &[(IntPredicate::Sgt, 0, 1)],
                    Some(IntPredicate::Sge) => &[(IntPredicate::Sge, 0, 1)],
                    _ => &[],
                },
            };
            for (how, a, b) in comparisons {
                match (terms[*a], terms[*b]) {
                    ((_, Some(a)), (_, Some(b))) => {
                        let always = self.is_always(a) && self.is_always(b);
                        self.facts.assume_compare(*how, a, b, always);
                    }
                    ((_, Some(a)), (b, None)) => self.promise_limit(*how, a, b),
                    ((a, None), (_, Some(b))) => self.promise_limit(mirrored(*how), b, a),
                    ((_, None), (_, None)) => {}
                }
            }
            if let (Fact::MultipleOf, [(_, Some(value)), (divisor, _)]) = (predicate.fact, &terms[..])
                && let Some(divisor @ 1..) = divisor.number()
            {
                let always = self.is_always(*value);
                let any = Facts::range(i64::MIN, i64::MAX);
                self.facts.assume(*value, Facts { multiple_of: divisor as u64, ..any }, always);
            }
            if let (Fact::Pow2, [(_, Some(value))]) = (predicate.fact, &terms[..]) {
                let always = self.is_always(*value);
                self.facts.assume(*value, Facts::range(1, i64::MAX), always);
            }
        }
    }

    fn promise_limit(&mut self, how: IntPredicate, value: ValueId, limit: Facts) {
        let facts = match how {
            IntPredicate::Eq => limit,
            IntPredicate::Slt => Facts::range(i64::MIN, limit.high.saturating_sub(1)),
            IntPredicate::Sle => Facts::range(i64::MIN, limit.high),
            IntPredicate::Sgt => Facts::range(limit.low.saturating_add(1), i64::MAX),
            IntPredicate::Sge => Facts::range(limit.low, i64::MAX),
            _ => return,
        };
        let always = self.is_always(value);
        self.facts.assume(value, facts, always);
    }

    /// Whether a predicate over names in scope is known to hold, or known not to.
    pub(super) fn proven(&self, predicate: &Predicate<'m>) -> Option<bool> {
        if let (Fact::NotNan | Fact::NotInf | Fact::Finite, [Argument::Name(name, _)]) =
            (predicate.fact, &predicate.arguments[..])
            && let Some(Binding::Value(value)) = self.names.get(name)
            && let Some(ty) = self.ty(*value).scalar().filter(|ty| ty.is_float())
        {
            let value = eval::to_f64(ty, self.constant_of(*value)?);
            return Some(match predicate.fact {
                Fact::NotNan => !value.is_nan(),
                Fact::NotInf => !value.is_infinite(),
                _ => value.is_finite(),
            });
        }
        let terms: Option<Vec<_>> = predicate.arguments.iter().map(|argument| self.term(argument)).collect();
        let terms = terms?;
        let compare = |how: IntPredicate, a: usize, b: usize| self.facts.compare_terms(how, terms[a], terms[b]);
        match predicate.fact {
            Fact::Range => match (compare(IntPredicate::Sge, 0, 1), compare(IntPredicate::Sle, 0, 2)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Fact::MultipleOf => {
                let divisor = terms[1].0.number()?;
                match terms[0].0 {
                    _ if divisor == 0 => Some(false),
                    facts if facts.is_multiple_of(divisor.unsigned_abs()) => Some(true),
                    facts => facts.number().map(|_| false),
                }
            }
            Fact::Pow2 => match terms[0].0 {
                facts if facts.high <= 0 => Some(false),
                facts => facts.number().map(|number| number.count_ones() == 1),
            },
            Fact::NotNan | Fact::NotInf | Fact::Finite => Some(true),
            fact => compare(comparison(fact)?, 0, 1),
        }
    }
}

/// The comparison that a predicate of two arguments is.
fn comparison(fact: Fact) -> Option<IntPredicate> {
    Some(match fact {
        Fact::Eq => IntPredicate::Eq,
        Fact::Ne => IntPredicate::Ne,
        Fact::Lt => IntPredicate::Slt,
        Fact::Le | Fact::Max => IntPredicate::Sle,
        Fact::Gt => IntPredicate::Sgt,
        Fact::Ge | Fact::Min => IntPredicate::Sge,
        Fact::Range | Fact::MultipleOf | Fact::Pow2 | Fact::NotNan | Fact::NotInf | Fact::Finite => return None,
    })
}

/// The signed comparison with its operands swapped.
fn mirrored(how: IntPredicate) -> IntPredicate {
    match how {
        IntPredicate::Slt => IntPredicate::Sgt,
        IntPredicate::Sle => IntPredicate::Sge,
        IntPredicate::Sgt => IntPredicate::Slt,
        IntPredicate::Sge => IntPredicate::Sle,
        other => other,
    }
}
