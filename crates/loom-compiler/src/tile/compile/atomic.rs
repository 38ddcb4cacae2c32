//! Atomic accesses: one instruction per lane, in order; the items of a tile go one after the other in each.

use super::{Compiler, Lane, Result, Word};
use crate::ir::Op as IrOp;
use crate::ops::{Atomic, Convert, OpKind};
use crate::tile::program::{Inst, Op, Reg, Slot, Source};
use crate::types::ScalarType;

/// The op's spelling, for faults.
const fn spelling(atomic: Atomic, result: bool, gathered: bool) -> &'static str {
    match (atomic, result, gathered) {
        (Atomic::Load, ..) => "view.atomic.load",
        (Atomic::Store, ..) => "view.atomic.store",
        (Atomic::CompareExchange { .. }, _, false) => "view.atomic.cmpxchg",
        (Atomic::CompareExchange { .. }, _, true) => "vector.atomic.cmpxchg",
        (Atomic::Exchange | Atomic::SubI | Atomic::Combine(_), true, false) => "view.atomic.rmw",
        (Atomic::Exchange | Atomic::SubI | Atomic::Combine(_), true, true) => "vector.atomic.rmw",
        (Atomic::Exchange | Atomic::SubI | Atomic::Combine(_), false, false) => "view.atomic.reduce",
        (Atomic::Exchange | Atomic::SubI | Atomic::Combine(_), false, true) => "vector.atomic.reduce",
    }
}

impl Compiler<'_> {
    pub(super) fn atomic(&mut self, op: &IrOp) -> Result<()> {
        let OpKind::Atomic { atomic, gathered, masked, .. } = op.kind else {
            return self.unsupported("an atomic access that is none");
        };
        let (values, rest) = op.operands.split_at(atomic.values());
        let view = rest[0];
        let rank = self.view_type(view)?.dims.len();
        let (indices, rest) = rest[1..].split_at(rank);
        let (buffer, first, ty) = self.address(view, indices)?;
        let mut places = vec![first.clone()];
        if gathered {
            let Some(&stride) = self.view_type(view)?.strides.last() else {
                return self.unsupported("an atomic access with offsets to a view of rank 0");
            };
            let stride = self.dim(stride)?;
            let offset_ty = self.scalar_type(rest[0])?;
            places.clear();
            for lane in self.lanes(rest[0])? {
                let lane = if offset_ty.bits() < 64 {
                    self.apply(Op::Convert(Convert::ExtSI, offset_ty, ScalarType::I64), &[lane], None)?
                } else {
                    lane
                };
                places.push(self.advance(first.clone(), &lane, &stride, ty)?);
            }
        }
        let values = values.iter().map(|&value| self.lanes(value)).collect::<Result<Vec<_>>>()?;
        let masks = if masked { Some(self.lanes(rest[1])?) } else { None };
        let passes = if masked && !op.results.is_empty() { Some(self.lanes(rest[2])?) } else { None };
        let name = spelling(atomic, !op.results.is_empty(), gathered);
        let mut results = Vec::new();
        for (lane, place) in places.iter().enumerate() {
            let to = if op.results.is_empty() { None } else { Some(self.take(ty)?) };
            if let Some(to) = to {
                self.frame.hold(to);
                results.push(Lane::Reg(to));
            }
            let here: Vec<Lane> = values.iter().map(|lanes| lanes[lane].clone()).collect();
            let access = |this: &mut Self| this.atomic_access(atomic, ty, to, &here, buffer, place, name);
            match &masks {
                None => access(self)?,
                Some(masks) => {
                    if let (Some(to), Some(passes)) = (to, &passes) {
                        self.move_to(ty, to, &passes[lane])?;
                    }
                    self.guard(&masks[lane], access)?;
                }
            }
        }
        if let Some(&result) = op.results.first() {
            self.define_lanes(result, results.clone());
        }
        for lane in &results {
            Self::each_lane_reg(lane, &mut |reg| self.frame.release(reg));
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    fn atomic_access(
        &mut self,
        atomic: Atomic,
        ty: ScalarType,
        to: Option<Reg>,
        values: &[Lane],
        buffer: u32,
        place: &Lane,
        name: &'static str,
    ) -> Result<()> {
        let access = self.access(buffer, place, ty, name)?;
        let mut from = [Source::Slot(Slot(0)); 2];
        for (source, lane) in from.iter_mut().zip(values) {
            *source = self.source(lane)?;
        }
        if values.len() < 2 {
            // Not read, but every slot that is named exists.
            let none = Source::Slot(self.slot_of(Word::Constant(0)));
            from[values.len()..].fill(none);
        }
        self.emit(Inst::Atomic { atomic, ty, to, from, access })
    }
}
