//! Affine lanes: `base + l·item + g·segment`, arithmetic without a register.
//!
//! - What comes out is what the op means on 64-bit integers, or nothing: then the caller takes a register.
//! - A quotient is affine by the divisor that tiles are cut at, and, with one segment a tile, by a multiple of it.

use super::{Compiler, Lane, Line, ONE, Result, Word, ZERO};
use crate::ops::{Binary, Convert, IntPredicate, Ternary};
use crate::tile::program::{Builtin, Op, Shape, Slot};
use crate::types::ScalarType;

impl Compiler<'_> {
    /// The id of an item on the line, in a `Line` program.
    pub(super) fn line_id(&mut self) -> Line {
        if self.program.shape == Shape::Rows {
            let base = self.builtin(Builtin::First);
            return Line { base, l: ONE, g: ZERO };
        }
        let base = self.builtin(Builtin::Flat);
        let g = if self.many && self.has_divisor() { self.builtin(Builtin::Width) } else { ZERO };
        Line { base, l: ONE, g }
    }

    pub(super) fn has_divisor(&self) -> bool {
        !matches!(self.program.shape, Shape::Line { divisor: None })
    }

    pub(super) fn segment_line(&mut self) -> Lane {
        let base = self.builtin(Builtin::Segment);
        if self.many { Lane::Affine(Line { base, l: ZERO, g: ONE }) } else { Lane::Uniform(base) }
    }

    pub(super) fn first_line(&mut self) -> Lane {
        Lane::Affine(Line { base: self.builtin(Builtin::First), l: ONE, g: ZERO })
    }

    /// An affine lane, uniform if nothing depends on the item.
    pub(super) fn line(base: Word, l: Word, g: Word) -> Lane {
        if l == ZERO && g == ZERO { Lane::Uniform(base) } else { Lane::Affine(Line { base, l, g }) }
    }

    pub(super) fn as_line(lane: &Lane) -> Option<Line> {
        match lane {
            Lane::Uniform(word) => Some(Line { base: *word, l: ZERO, g: ZERO }),
            Lane::Affine(line) => Some(*line),
            Lane::Reg(_)
            | Lane::Segment(_)
            | Lane::Memory(_)
            | Lane::Later { .. }
            | Lane::Compare { .. }
            | Lane::Both(_) => None,
        }
    }

    /// `op` without a register, where that is possible.
    pub(super) fn affine_op(&mut self, op: Op, from: &[Lane]) -> Result<Option<Lane>> {
        Ok(match (op, from) {
            (Op::Binary(Binary::AndI, ScalarType::I1), [a, b]) => {
                let lazy = |lane: &Lane| matches!(lane, Lane::Compare { .. } | Lane::Both(_));
                (lazy(a) || lazy(b)).then(|| Lane::Both(Box::new([a.clone(), b.clone()])))
            }
            (Op::Binary(binary, ty), [a, b]) if ty.bits() == 64 && !ty.is_float() => {
                let (Some(x), Some(y)) = (Self::as_line(a), Self::as_line(b)) else {
                    return Ok(None);
                };
                let uniform = |line: &Line| line.l == ZERO && line.g == ZERO;
                match binary {
                    Binary::AddI => {
                        Some(Self::line(self.add(x.base, y.base)?, self.add(x.l, y.l)?, self.add(x.g, y.g)?))
                    }
                    Binary::SubI => {
                        Some(Self::line(self.sub(x.base, y.base)?, self.sub(x.l, y.l)?, self.sub(x.g, y.g)?))
                    }
                    Binary::MulI if uniform(&y) => Some(self.scale(x, y.base)?),
                    Binary::MulI if uniform(&x) => Some(self.scale(y, x.base)?),
                    Binary::ShlI => match y.base {
                        Word::Constant(count) if uniform(&y) => Some(self.scale(x, Word::Constant(1 << (count & 63)))?),
                        _ => None,
                    },
                    Binary::DivUI | Binary::RemUI if uniform(&y) => self.divide(binary, x, y.base)?,
                    _ => None,
                }
            }
            (Op::Ternary(Ternary::FmaI, ty), [a, b, c]) if ty.bits() == 64 => {
                let product = self.affine_op(Op::Binary(Binary::MulI, ty), &[a.clone(), b.clone()])?;
                match product {
                    Some(product) => self.affine_op(Op::Binary(Binary::AddI, ty), &[product, c.clone()])?,
                    None => None,
                }
            }
            (Op::CompareI(predicate, ty), [a, b]) if ty.bits() == 64 => match (a, b) {
                (Lane::Affine(value), Lane::Uniform(limit)) => {
                    Some(Lane::Compare { predicate, value: *value, limit: *limit })
                }
                (Lane::Uniform(limit), Lane::Affine(value)) => {
                    Some(Lane::Compare { predicate: swapped(predicate), value: *value, limit: *limit })
                }
                _ => None,
            },
            (Op::Convert(convert, source, target), [lane @ Lane::Affine(_)])
                if source.bits() == 64 && target.bits() == 64 && !target.is_float() =>
            {
                match convert {
                    Convert::ExtSI | Convert::ExtUI | Convert::TruncI | Convert::Bitcast => Some(lane.clone()),
                    Convert::SiToF
                    | Convert::UiToF
                    | Convert::FToSi
                    | Convert::FToUi
                    | Convert::ExtF
                    | Convert::TruncF => None,
                }
            }
            _ => None,
        })
    }

    fn scale(&mut self, line: Line, by: Word) -> Result<Lane> {
        Ok(Self::line(self.mul(line.base, by)?, self.mul(line.l, by)?, self.mul(line.g, by)?))
    }

    /// `line / by` or `line % by`, where the tiles are cut so that it is affine.
    fn divide(&mut self, op: Binary, line: Line, by: Word) -> Result<Option<Lane>> {
        if let Shape::Line { divisor: Some(divisor) } = self.program.shape
            && line == self.line_id()
        {
            if self.slot_of(by) == divisor {
                return Ok(Some(if op == Binary::DivUI { self.segment_line() } else { self.first_line() }));
            }
            // A multiple of the segment: whole segments share the quotient.
            if let (Word::Constant(by), Some(length)) = (by, self.constant_divisor(divisor))
                && !self.many
                && length > 0
                && by % length == 0
            {
                let segment = self.builtin(Builtin::Segment);
                let factor = Word::Constant(by / length);
                let part = self.word(Op::Binary(op, ScalarType::I64), &[segment, factor])?;
                if op == Binary::DivUI {
                    return Ok(Some(Lane::Uniform(part)));
                }
                let start = self.mul(part, Word::Constant(length))?;
                let first = self.builtin(Builtin::First);
                return Ok(Some(Lane::Affine(Line { base: self.add(start, first)?, l: ONE, g: ZERO })));
            }
        }
        self.lost |= self.many && line.g != ZERO;
        Ok(None)
    }

    fn constant_divisor(&self, divisor: Slot) -> Option<u64> {
        self.constants.iter().find(|&(_, &slot)| slot == divisor).map(|(&bits, _)| bits)
    }
}

/// The predicate with its sides exchanged.
fn swapped(predicate: IntPredicate) -> IntPredicate {
    match predicate {
        IntPredicate::Eq => IntPredicate::Eq,
        IntPredicate::Ne => IntPredicate::Ne,
        IntPredicate::Slt => IntPredicate::Sgt,
        IntPredicate::Sle => IntPredicate::Sge,
        IntPredicate::Sgt => IntPredicate::Slt,
        IntPredicate::Sge => IntPredicate::Sle,
        IntPredicate::Ult => IntPredicate::Ugt,
        IntPredicate::Ule => IntPredicate::Uge,
        IntPredicate::Ugt => IntPredicate::Ult,
        IntPredicate::Uge => IntPredicate::Ule,
    }
}
