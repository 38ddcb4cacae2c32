//! Fragments: accesses to tiles and tile products, each one instruction over all slots of a payload.

use std::collections::BTreeMap;

use super::{Compiler, Lane, Result, Word};
use crate::fragment::{Fragment, Product};
use crate::ir::{Op as IrOp, ValueId};
use crate::ops::Binary;
use crate::tile::program::{Inst, Op, Reg, Repack, Source, TileAccess, TileProduct};
use crate::types::{Dim, ScalarType, Type};

impl Compiler<'_> {
    /// The registers of a payload. Lanes that are one number share a register.
    fn payload(&mut self, value: ValueId) -> Result<(ScalarType, Vec<Reg>)> {
        let ty = self.scalar_type(value)?;
        let mut known: BTreeMap<u32, Reg> = BTreeMap::new();
        let mut registers = Vec::new();
        for lane in self.lanes(value)? {
            registers.push(match lane {
                Lane::Uniform(word) => {
                    let slot = self.slot_of(word);
                    match known.get(&slot.0) {
                        Some(reg) => *reg,
                        None => {
                            let reg = self.reg(&lane, ty)?;
                            known.insert(slot.0, reg);
                            reg
                        }
                    }
                }
                lane => self.reg(&lane, ty)?,
            });
        }
        Ok((ty, registers))
    }

    fn results_of(&mut self, ty: ScalarType, count: usize) -> Result<Vec<Reg>> {
        (0..count).map(|_| self.take(ty)).collect()
    }

    fn define_registers(&mut self, value: ValueId, registers: &[Reg]) {
        self.define_lanes(value, registers.iter().map(|&reg| Lane::Reg(reg)).collect());
    }

    /// The number, in a slot or a register of its own.
    fn number(&mut self, lane: &Lane) -> Result<Source> {
        match self.source(lane)? {
            Source::Segment(_) | Source::Memory(_) => Ok(Source::Reg(self.reg(lane, ScalarType::I64)?)),
            source => Ok(source),
        }
    }

    fn tile_access(
        &mut self,
        view: ValueId,
        indices: &[ValueId],
        fragment: Fragment,
        registers: Vec<Reg>,
        op: &'static str,
    ) -> Result<Box<TileAccess>> {
        let (buffer, origin, ty) = self.address(view, indices)?;
        let Type::View(view) = self.body.ty(view) else {
            return self.unsupported("a tile of something that is no view");
        };
        let mut steps = Vec::new();
        for &stride in view.strides.iter().rev().take(2).rev() {
            steps.push(self.step(stride, ty)?);
        }
        let [rows, columns] = steps[..] else {
            return self.unsupported("a tile of a view of rank 1");
        };
        let origin = self.number(&origin)?;
        let site = self.site(op);
        Ok(Box::new(TileAccess { fragment, ty, registers, buffer, origin, steps: [rows, columns], site }))
    }

    /// Bytes from an element to the next along an axis.
    fn step(&mut self, stride: Dim, ty: ScalarType) -> Result<Source> {
        let stride = self.dim(stride)?;
        let size = Lane::Uniform(Word::Constant(ty.bytes()));
        let bytes = self.apply(Op::Binary(Binary::MulI, ScalarType::I64), &[stride, size], None)?;
        self.number(&bytes)
    }

    pub(super) fn fragment_load(&mut self, op: &IrOp, fragment: Fragment) -> Result<()> {
        let ty = self.scalar_type(op.results[0])?;
        let registers = self.results_of(ty, fragment.slots() as usize)?;
        let access =
            self.tile_access(op.operands[0], &op.operands[1..], fragment, registers.clone(), "vector.fragment.load")?;
        self.emit(Inst::FragmentLoad(access))?;
        self.define_registers(op.results[0], &registers);
        Ok(())
    }

    pub(super) fn fragment_store(&mut self, op: &IrOp, fragment: Fragment) -> Result<()> {
        let (_, registers) = self.payload(op.operands[0])?;
        let access =
            self.tile_access(op.operands[1], &op.operands[2..], fragment, registers, "vector.fragment.store")?;
        self.emit(Inst::FragmentStore(access))
    }

    pub(super) fn fragment_repack(&mut self, op: &IrOp, from: Fragment, to: Fragment) -> Result<()> {
        let (ty, values) = self.payload(op.operands[0])?;
        let results = self.results_of(ty, to.slots() as usize)?;
        self.emit(Inst::FragmentRepack(Box::new(Repack { from, to, ty, values, results: results.clone() })))?;
        self.define_registers(op.results[0], &results);
        Ok(())
    }

    pub(super) fn mma(&mut self, op: &IrOp, product: Product) -> Result<()> {
        let (lhs, rhs) = (self.payload(op.operands[0])?, self.payload(op.operands[1])?);
        let (ty, from) = self.payload(op.operands[2])?;
        let to = self.results_of(ty, from.len())?;
        self.emit(Inst::Mma(Box::new(TileProduct { product, lhs, rhs, ty, from, to: to.clone() })))?;
        self.define_registers(op.results[0], &to);
        Ok(())
    }
}
