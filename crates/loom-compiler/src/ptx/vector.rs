//! Vectors: lanes made, moved, chosen, and summed within one work-item.
//!
//! - A lane is a register or known bits; moving lanes about costs nothing.
//! - Sums go in ascending order, as the interpreter's do.

use super::emitter::{Emitter, Result};
use super::text::{Class, Operand, class_of};
use crate::eval;
use crate::ir::{Op, ValueId};
use crate::ops::{Binary, IntPredicate, OpKind, Ternary};
use crate::types::{ScalarType, Type};

impl Emitter<'_> {
    pub(super) fn vector(&mut self, op: &Op) -> Result {
        let result = op.results[0];
        let lanes = match &op.kind {
            OpKind::Splat => vec![self.scalar(op.operands[0])?; self.lane_count(result)?],
            OpKind::FromElements => {
                let mut lanes = Vec::with_capacity(op.operands.len());
                for operand in &op.operands {
                    lanes.push(self.scalar(*operand)?);
                }
                lanes
            }
            OpKind::Iota => {
                let ty = self.element_type(result)?;
                let (base, step) = (self.scalar(op.operands[0])?, self.scalar(op.operands[1])?);
                let class = class_of(ty);
                let mut lanes = Vec::new();
                for lane in 0..self.lane_count(result)? as u64 {
                    let lane = Operand::Bits(class, lane & (u64::MAX >> (64 - ty.bits())));
                    let distance = self.pair(Binary::MulI, ty, lane, step)?;
                    lanes.push(self.pair(Binary::AddI, ty, base, distance)?);
                }
                lanes
            }
            OpKind::MaskRange => {
                let mut bounds = [Operand::long(0); 3];
                for (bound, operand) in bounds.iter_mut().zip(&op.operands) {
                    *bound = self.scalar(*operand)?;
                }
                let [low, high, step] = bounds;
                let mut lanes = Vec::new();
                for lane in 0..self.lane_count(result)? as u64 {
                    let distance = self.pair(Binary::MulI, ScalarType::Index, Operand::long(lane), step)?;
                    let at = self.pair(Binary::AddI, ScalarType::Index, low, distance)?;
                    let below = eval::Op::CompareI(IntPredicate::Slt, ScalarType::Index);
                    lanes.push(self.evaluate(below, [at, high, high], None)?);
                }
                lanes
            }
            OpKind::Extract => self.extract(op)?,
            OpKind::Insert => self.insert(op)?,
            OpKind::Reduce(combine) => {
                let ty = self.element_type(op.operands[0])?;
                let (lanes, mut sum) = (self.lanes(op.operands[0])?, self.scalar(op.operands[1])?);
                for lane in lanes.iter() {
                    sum = self.pair(combine.binary(), ty, sum, *lane)?;
                }
                vec![sum]
            }
            OpKind::Dot => {
                let ty = self.element_type(op.operands[0])?;
                let (a, b) = (self.lanes(op.operands[0])?, self.lanes(op.operands[1])?);
                let mut sum = self.scalar(op.operands[2])?;
                for (a, b) in a.iter().zip(b.iter()) {
                    sum = self.evaluate(eval::Op::Ternary(Ternary::FmaF, ty), [*a, *b, sum], None)?;
                }
                vec![sum]
            }
            OpKind::Dot2F => {
                let ty = self.element_type(op.operands[0])?;
                let (a, b) = (self.lanes(op.operands[0])?, self.lanes(op.operands[1])?);
                let mut sums = self.lanes(op.operands[2])?.to_vec();
                for (at, sum) in sums.iter_mut().enumerate() {
                    for lane in [2 * at, 2 * at + 1] {
                        *sum = self.evaluate(eval::Op::FmaExtended(ty), [a[lane], b[lane], *sum], None)?;
                    }
                }
                sums
            }
            OpKind::Dot4I { a_signed, b_signed } => {
                let [a, b] = [op.operands[0], op.operands[1]].map(|operand| self.lanes(operand));
                let (a, b) = (a?, b?);
                let (a, b) = (self.pack(ScalarType::I8, &a), self.pack(ScalarType::I8, &b));
                let sums = self.lanes(op.operands[2])?;
                let sign = |signed: bool| if signed { "s32" } else { "u32" };
                let mnemonic = format!("dp4a.{}.{}", sign(*a_signed), sign(*b_signed));
                let sum = |(at, sum): (usize, &Operand)| self.make(Class::Word, &mnemonic, &[a[at], b[at], *sum]);
                sums.iter().enumerate().map(sum).collect()
            }
            OpKind::Lanes(map) => {
                let mut all = Vec::new();
                for operand in &op.operands {
                    all.extend_from_slice(&self.lanes(*operand)?);
                }
                map.iter().map(|lane| all[*lane as usize]).collect()
            }
            _ => return self.refuse("a vector op of another kind"),
        };
        match (self.body.ty(result), &lanes[..]) {
            (Type::Scalar(_), [lane]) => self.set_scalar(result, *lane),
            _ => self.set_lanes(result, lanes),
        }
        Ok(())
    }

    /// Which part of a vector some indices name: its number, known or computed, among how many.
    fn part(&mut self, whole: ValueId, indices: &[ValueId]) -> Result<(Operand, usize)> {
        let body = self.body;
        let Type::Vector(vector) = body.ty(whole) else {
            return Ok((Operand::word(0), 1));
        };
        let (mut at, mut parts) = (Operand::word(0), 1);
        for (&index, dim) in indices.iter().zip(&vector.dims) {
            let extent = dim.constant().unwrap_or(1);
            let raw = self.raw(index)?;
            let index = self.low(raw);
            at = match (at.bits(), index.bits()) {
                (Some(at), Some(index)) => {
                    Operand::word((at as u32).wrapping_mul(extent as u32).wrapping_add(index as u32))
                }
                (Some(0), None) => index,
                _ => self.make(Class::Word, "mad.lo.s32", &[at, Operand::word(extent as u32), index]),
            };
            parts *= extent as usize;
        }
        Ok((at, parts))
    }

    /// Whether the part's number is `at`.
    fn is_part(&mut self, part: Operand, at: usize) -> Operand {
        match part.bits() {
            Some(bits) => Operand::truth(bits == at as u64),
            None => self.make(Class::Pred, "setp.eq.s32", &[part, Operand::word(at as u32)]),
        }
    }

    fn extract(&mut self, op: &Op) -> Result<Vec<Operand>> {
        let whole = self.lanes(op.operands[0])?;
        let count = self.lane_count(op.results[0])?;
        let (part, parts) = self.part(op.operands[0], &op.operands[1..])?;
        if let Some(at) = part.bits() {
            let at = at as usize * count;
            return match whole.get(at..at + count) {
                Some(lanes) => Ok(lanes.to_vec()),
                None => self.refuse("vector.extract past the end of its vector"),
            };
        }
        let mut found = whole[..count].to_vec();
        for at in 1..parts {
            let here = self.is_part(part, at);
            for (found, lane) in found.iter_mut().zip(&whole[at * count..]) {
                *found = self.choose(here, *lane, *found);
            }
        }
        Ok(found)
    }

    fn insert(&mut self, op: &Op) -> Result<Vec<Operand>> {
        let value = self.lanes(op.operands[0])?;
        let mut whole = self.lanes(op.operands[1])?.to_vec();
        let (part, parts) = self.part(op.operands[1], &op.operands[2..])?;
        for at in 0..parts {
            let here = self.is_part(part, at);
            for (lane, value) in whole[at * value.len()..].iter_mut().zip(value.iter()) {
                *lane = self.choose(here, *value, *lane);
            }
        }
        Ok(whole)
    }
}
