//! Lanes that change width, dot products of packed lanes, and lanes that lie anywhere in memory.
//!
//! - A bitcast between lanes of other widths is shifts of integers: the wider type is a multiple of the narrower.
//! - A dot product of packed lanes is its chain, lane by lane.

use super::{Compiler, Lane, Result, Value, Word};
use crate::ir::Op as IrOp;
use crate::ops::{Binary, Convert, OpKind, Ternary};
use crate::tile::program::{Buffer, Builtin, Op};
use crate::types::ScalarType;

/// The integer of as many bits.
fn integer(ty: ScalarType) -> ScalarType {
    match ty.bits() {
        1 => ScalarType::I1,
        8 => ScalarType::I8,
        16 => ScalarType::I16,
        32 => ScalarType::I32,
        _ => ScalarType::I64,
    }
}

fn number(bits: u64) -> Lane {
    Lane::Uniform(Word::Constant(bits))
}

impl Compiler<'_> {
    fn convert(&mut self, kind: Convert, from: ScalarType, to: ScalarType, lane: Lane) -> Result<Lane> {
        if from == to { Ok(lane) } else { self.apply(Op::Convert(kind, from, to), &[lane], None) }
    }

    /// A vector bitcast that changes the lane count, lane 0 in the lowest bits.
    pub(super) fn regroup(&mut self, op: &IrOp) -> Result<()> {
        let (from, to) = (self.scalar_type(op.operands[0])?, self.scalar_type(op.results[0])?);
        let (narrow, wide) = (integer(from), integer(to));
        let mut sources = Vec::new();
        for lane in self.lanes(op.operands[0])? {
            let lane = self.settled(lane, op.operands[0])?;
            sources.push(self.convert(Convert::Bitcast, from, narrow, lane)?);
        }
        let mut lanes = Vec::new();
        if narrow.bits() < wide.bits() {
            for parts in sources.chunks((wide.bits() / narrow.bits()) as usize) {
                let mut sum: Option<Lane> = None;
                for (at, part) in parts.iter().enumerate() {
                    let part = self.convert(Convert::ExtUI, narrow, wide, part.clone())?;
                    let distance = number(at as u64 * u64::from(narrow.bits()));
                    let part = if at == 0 {
                        part
                    } else {
                        self.apply(Op::Binary(Binary::ShlI, wide), &[part, distance], None)?
                    };
                    sum = Some(match sum {
                        Some(sum) => self.apply(Op::Binary(Binary::OrI, wide), &[sum, part], None)?,
                        None => part,
                    });
                }
                lanes.extend(sum);
            }
        } else {
            for source in &sources {
                for at in 0..u64::from(narrow.bits() / wide.bits()) {
                    let distance = number(at * u64::from(wide.bits()));
                    let part = if at == 0 {
                        source.clone()
                    } else {
                        self.apply(Op::Binary(Binary::ShrUI, narrow), &[source.clone(), distance], None)?
                    };
                    lanes.push(self.convert(Convert::TruncI, narrow, wide, part)?);
                }
            }
        }
        for lane in &mut lanes {
            *lane = self.convert(Convert::Bitcast, wide, to, lane.clone())?;
        }
        self.define_lanes(op.results[0], lanes);
        Ok(())
    }

    /// `parts` lanes of two operands a lane of the third, each pair widened and joined by `make`.
    fn packed_dot(
        &mut self,
        op: &IrOp,
        parts: usize,
        wide: ScalarType,
        widen: [Convert; 2],
        make: Ternary,
    ) -> Result<()> {
        let ty = self.scalar_type(op.operands[0])?;
        let [a, b, acc] = [0, 1, 2].map(|at| self.lanes(op.operands[at]));
        let (a, b, mut lanes) = (a?, b?, acc?);
        for (at, sum) in lanes.iter_mut().enumerate() {
            for lane in parts * at..parts * (at + 1) {
                let x = self.convert(widen[0], ty, wide, a[lane].clone())?;
                let y = self.convert(widen[1], ty, wide, b[lane].clone())?;
                *sum = self.apply(Op::Ternary(make, wide), &[x, y, sum.clone()], None)?;
            }
        }
        self.define_lanes(op.results[0], lanes);
        Ok(())
    }

    pub(super) fn dot2f(&mut self, op: &IrOp) -> Result<()> {
        self.packed_dot(op, 2, ScalarType::F32, [Convert::ExtF; 2], Ternary::FmaF)
    }

    pub(super) fn dot4i(&mut self, op: &IrOp, a_signed: bool, b_signed: bool) -> Result<()> {
        let widen = [a_signed, b_signed].map(|signed| if signed { Convert::ExtSI } else { Convert::ExtUI });
        self.packed_dot(op, 4, ScalarType::I32, widen, Ternary::FmaI)
    }

    /// The byte offset of each lane of a gathered access, and the type of its elements.
    fn scattered(
        &mut self,
        op: &IrOp,
        view: usize,
        indices: std::ops::Range<usize>,
    ) -> Result<(u32, Vec<Lane>, ScalarType)> {
        let offsets = op.operands[indices.end];
        let (buffer, first, ty) = self.address(op.operands[view], &op.operands[indices])?;
        let stride = match self.view_type(op.operands[view])?.strides.last() {
            Some(stride) => self.dim(*stride)?,
            None => number(1),
        };
        let mut lanes = Vec::new();
        for lane in self.lanes(offsets)? {
            let lane = self.settled(lane, offsets)?;
            lanes.push(self.advance(first.clone(), &lane, &stride, ty)?);
        }
        Ok((buffer, lanes, ty))
    }

    pub(super) fn gather(&mut self, op: &IrOp) -> Result<()> {
        let masked = op.kind == OpKind::GatherMask;
        let end = op.operands.len() - if masked { 3 } else { 1 };
        let (buffer, addresses, ty) = self.scattered(op, 0, 1..end)?;
        let mut lanes = Vec::with_capacity(addresses.len());
        if !masked {
            for address in &addresses {
                lanes.push(self.read(buffer, address, ty, None)?);
            }
            self.define_lanes(op.results[0], lanes);
            return Ok(());
        }
        let (masks, passes) = (self.lanes(op.operands[end + 1])?, self.lanes(op.operands[end + 2])?);
        for ((address, mask), pass) in addresses.iter().zip(&masks).zip(&passes) {
            let to = self.take(ty)?;
            self.move_to(ty, to, pass)?;
            self.guard(mask, |this| this.read(buffer, address, ty, Some(to)).map(|_| ()))?;
            lanes.push(Lane::Reg(to));
        }
        self.define_lanes(op.results[0], lanes);
        Ok(())
    }

    pub(super) fn scatter(&mut self, op: &IrOp) -> Result<()> {
        let masked = op.kind == OpKind::ScatterMask;
        let end = op.operands.len() - if masked { 2 } else { 1 };
        let (buffer, addresses, ty) = self.scattered(op, 1, 2..end)?;
        let values = self.lanes(op.operands[0])?;
        let masks = if masked { self.lanes(op.operands[end + 1])? } else { vec![number(1); values.len()] };
        for ((address, value), mask) in addresses.iter().zip(&values).zip(&masks) {
            self.guard(mask, |this| this.write(buffer, address, ty, value))?;
        }
        Ok(())
    }

    pub(super) fn buffer_length(&mut self, op: &IrOp) -> Result<()> {
        let Some(Value::Buffer { buffer, .. }) = &self.values[op.operands[0].index()] else {
            return self.unsupported("a buffer chosen at run time");
        };
        // That of scratch was folded.
        let Buffer::Argument(argument) = self.program.buffers[*buffer as usize] else {
            return self.unsupported("the length of scratch chosen at run time");
        };
        let word = self.builtin(Builtin::Length(argument));
        self.define_lanes(op.results[0], vec![Lane::Uniform(word)]);
        Ok(())
    }
}
