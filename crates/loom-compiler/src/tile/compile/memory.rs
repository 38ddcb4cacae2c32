//! Addresses, loads and stores.
//!
//! - An address is affine for as long as its parts are; else it is gathered from a register.
//! - A load whose only user is element-wise is left to that user, if nothing between may write.

use super::{AHEAD, Compiler, FULL_GROUP, Lane, Result, Value, Word, ZERO};
use crate::ir::{BlockId, Op as IrOp, ValueId};
use crate::ops::{Binary, Family, OpKind, Space};
use crate::tile::program::{Access, Buffer, Builtin, Inst, Offsets, Op, Reg, Shape, Source, Target};
use crate::types::{Dim, ScalarType, Type, ViewType};

impl<'a> Compiler<'a> {
    pub(super) fn alloca(&mut self, op: &IrOp, space: Space, bytes: u64) -> Result<()> {
        let (kind, per) = match space {
            Space::Workgroup => (Buffer::Workgroup { bytes }, Space::Workgroup),
            Space::Private => (Buffer::Private { bytes }, Space::Private),
        };
        self.program.buffers.push(kind);
        let buffer = self.program.buffers.len() as u32 - 1;
        let bytes = Word::Constant(bytes);
        let origin = match per {
            // Only where segments are workgroups does a tile hold several of them.
            Space::Workgroup if self.program.shape == Shape::Groups && self.many => Self::line(ZERO, ZERO, bytes),
            Space::Workgroup => Lane::Uniform(ZERO),
            Space::Private => {
                let g = if self.many && self.has_divisor() {
                    let width = self.builtin(Builtin::Width);
                    self.mul(width, bytes)?
                } else {
                    ZERO
                };
                Self::line(ZERO, bytes, g)
            }
        };
        self.define(op.results[0], Value::Buffer { buffer, origin });
        Ok(())
    }

    /// Read-only bytes, which travel in the program.
    pub(super) fn constant_bytes(&mut self, op: &IrOp, bytes: &[u8]) -> Result<()> {
        let (start, len) = (self.program.data.len() as u32, bytes.len() as u32);
        self.program.data.extend_from_slice(bytes);
        self.program.buffers.push(Buffer::Constant { start, len });
        let buffer = self.program.buffers.len() as u32 - 1;
        self.define(op.results[0], Value::Buffer { buffer, origin: Lane::Uniform(ZERO) });
        Ok(())
    }

    pub(super) fn view_type(&self, view: ValueId) -> Result<&'a ViewType> {
        match self.body.ty(view) {
            Type::View(ty) => Ok(ty),
            Type::Scalar(_) | Type::Vector(_) | Type::Buffer | Type::Async(_) => {
                self.unsupported("an access to something that is no view")
            }
        }
    }

    /// Buffer, byte offset and element type of the element at `indices`.
    pub(super) fn address(&mut self, view: ValueId, indices: &[ValueId]) -> Result<(u32, Lane, ScalarType)> {
        let ty = self.view_type(view)?;
        let Some(Value::View { buffer, offset }) = self.values[view.index()].clone() else {
            return self.unsupported("a view chosen at run time");
        };
        let mut address = offset;
        for (&index, &stride) in indices.iter().zip(&ty.strides) {
            let (index, stride) = (self.lane(index)?, self.dim(stride)?);
            address = self.advance(address, &index, &stride, ty.element)?;
        }
        Ok((buffer, address, ty.element))
    }

    /// `address + index · stride · size`.
    pub(super) fn advance(&mut self, address: Lane, index: &Lane, stride: &Lane, ty: ScalarType) -> Result<Lane> {
        let (mul, add) = (Op::Binary(Binary::MulI, ScalarType::I64), Op::Binary(Binary::AddI, ScalarType::I64));
        let stride = self.apply(mul, &[stride.clone(), Lane::Uniform(Word::Constant(ty.bytes()))], None)?;
        let distance = self.apply(mul, &[index.clone(), stride], None)?;
        self.apply(add, &[address, distance], None)
    }

    pub(super) fn access(&mut self, buffer: u32, offset: &Lane, ty: ScalarType, op: &'static str) -> Result<Access> {
        let offsets = match Self::as_line(offset) {
            Some(line) => {
                // Rows of a workgroup each that do not follow each other are copied together, unless a tile is one of them.
                let apart = line.l == Word::Constant(ty.bytes()) && !self.side_by_side(offset, ty);
                self.apart |= apart && self.many && self.program.whole_groups && self.kernel.items() >= FULL_GROUP;
                Offsets::Affine(self.affine(line))
            }
            None => Offsets::Gather(self.reg(offset, ScalarType::I64)?),
        };
        debug_assert!(ty.bits() >= 8);
        Ok(Access { buffer, offsets, site: self.site(op) })
    }

    /// The byte offsets of a vector's lanes, from its first on.
    fn lane_addresses(
        &mut self,
        view: ValueId,
        indices: &[ValueId],
        dims: &[Dim],
    ) -> Result<(u32, Vec<Lane>, ScalarType)> {
        let (buffer, first, ty) = self.address(view, indices)?;
        let view = self.view_type(view)?;
        let strides = &view.strides[view.strides.len().saturating_sub(dims.len())..];
        let mut all = vec![first];
        for (&dim, &stride) in dims.iter().zip(strides) {
            let (extent, stride) = (dim.constant().unwrap_or(0), self.dim(stride)?);
            let mut next = Vec::with_capacity(all.len() * extent as usize);
            for lane in all {
                for at in 0..extent {
                    next.push(self.advance(lane.clone(), &Lane::Uniform(Word::Constant(at)), &stride, view.element)?);
                }
            }
            all = next;
        }
        Ok((buffer, all, ty))
    }

    fn vector_dims(&self, value: ValueId) -> Vec<Dim> {
        match self.body.ty(value) {
            Type::Vector(ty) => ty.dims.clone(),
            Type::Scalar(_) | Type::Buffer | Type::View(_) | Type::Async(_) => Vec::new(),
        }
    }

    /// Reads one element: into a slot if all items share it, else as `to`, or a register of its own.
    pub(super) fn read(&mut self, buffer: u32, offset: &Lane, ty: ScalarType, to: Option<Reg>) -> Result<Lane> {
        if let (Lane::Uniform(offset), None) = (offset, to) {
            let site = self.site("view.load");
            let (to, offset) = (self.slot(), self.slot_of(*offset));
            self.emit(Inst::LoadScalar { ty, to, buffer, offset, site })?;
            return Ok(Lane::Uniform(Word::Slot { slot: to, launch: false }));
        }
        let access = self.access(buffer, offset, ty, "view.load")?;
        let to = match to {
            Some(to) => to,
            None => self.take(ty)?,
        };
        self.emit(Inst::Map { op: Op::Move(ty), to: Target::Reg(to), from: [Source::Memory(access); 3] })?;
        Ok(Lane::Reg(to))
    }

    pub(super) fn load(&mut self, block: BlockId, at: usize, op: &IrOp) -> Result<()> {
        let (view, indices, result) = (op.operands[0], &op.operands[1..], op.results[0]);
        if let Type::Vector(_) = self.body.ty(result) {
            let (buffer, offsets, ty) = self.lane_addresses(view, indices, &self.vector_dims(result))?;
            let mut lanes = Vec::with_capacity(offsets.len());
            for offset in &offsets {
                lanes.push(self.read(buffer, offset, ty, None)?);
            }
            self.define_lanes(result, lanes);
            return Ok(());
        }
        let (buffer, offset, ty) = self.address(view, indices)?;
        if !matches!(offset, Lane::Uniform(_)) && self.read_in_place(block, at, result, self.side_by_side(&offset, ty))
        {
            let access = self.access(buffer, &offset, ty, "view.load")?;
            self.define_lanes(result, vec![Lane::Memory(access)]);
            self.pending.insert(result);
            return Ok(());
        }
        let lane = self.read(buffer, &offset, ty, None)?;
        self.define_lanes(result, vec![lane]);
        Ok(())
    }

    /// Whether the elements of a tile lie side by side as far as is known now: reading them again costs nothing.
    fn side_by_side(&self, offset: &Lane, ty: ScalarType) -> bool {
        let row = ty.bytes() * u64::from(self.kernel.workgroup_size[0]);
        Self::as_line(offset).is_some_and(|line| {
            line.l == Word::Constant(ty.bytes())
                && (line.g == ZERO || self.program.shape == Shape::Groups && line.g == Word::Constant(row))
        })
    }

    /// Whether only element-wise ops and reductions of the same block use `value`, one or, if `again`, several, and nothing
    /// before the last of them may write memory.
    pub(super) fn read_in_place(&self, block: BlockId, at: usize, value: ValueId, again: bool) -> bool {
        let mut uses = self.live.uses[value.index()];
        if uses != 1 && !again {
            return false;
        }
        for op in self.body.block(block).ops.iter().skip(at + 1).take(AHEAD) {
            let simple = matches!(op.kind.family(), Family::Element(_))
                && op.results.iter().all(|&result| matches!(self.body.ty(result), Type::Scalar(_)));
            let meets = matches!(op.kind, OpKind::WorkgroupReduce(_) | OpKind::SubgroupReduce { .. });
            let here = op.operands.iter().filter(|&&operand| operand == value).count() as u32;
            if here > 0 && !simple && !meets {
                return false;
            }
            uses = uses.saturating_sub(here);
            if uses == 0 {
                return true;
            }
            let quiet = matches!(op.kind.family(), Family::Element(_)) || meets;
            if !quiet && !matches!(op.kind, OpKind::Constant(_) | OpKind::Load | OpKind::Id(_)) {
                return false;
            }
        }
        false
    }

    pub(super) fn load_mask(&mut self, op: &IrOp) -> Result<()> {
        let result = op.results[0];
        let count = op.operands.len();
        let (mask, pass) = (op.operands[count - 2], op.operands[count - 1]);
        let (buffer, offsets, ty) =
            self.lane_addresses(op.operands[0], &op.operands[1..count - 2], &self.vector_dims(result))?;
        let (masks, passes) = (self.lanes(mask)?, self.lanes(pass)?);
        let mut lanes = Vec::with_capacity(offsets.len());
        for ((offset, condition), pass) in offsets.iter().zip(&masks).zip(&passes) {
            let to = self.take(ty)?;
            self.frame.hold(to);
            self.move_to(ty, to, pass)?;
            self.guard(condition, |this| this.read(buffer, offset, ty, Some(to)).map(|_| ()))?;
            lanes.push(Lane::Reg(to));
        }
        self.define_lanes(result, lanes.clone());
        for lane in &lanes {
            Self::each_lane_reg(lane, &mut |reg| self.frame.release(reg));
        }
        Ok(())
    }

    pub(super) fn write(&mut self, buffer: u32, offset: &Lane, ty: ScalarType, value: &Lane) -> Result<()> {
        let access = self.access(buffer, offset, ty, "view.store")?;
        let from = self.source(value)?;
        self.emit(Inst::Map { op: Op::Move(ty), to: Target::Memory(access), from: [from; 3] })
    }

    pub(super) fn store(&mut self, op: &IrOp) -> Result<()> {
        let value = op.operands[0];
        let lanes = self.lanes(value)?;
        let (buffer, offsets, ty) = self.lane_addresses(op.operands[1], &op.operands[2..], &self.vector_dims(value))?;
        for (offset, lane) in offsets.iter().zip(&lanes) {
            self.write(buffer, offset, ty, lane)?;
        }
        Ok(())
    }

    pub(super) fn store_mask(&mut self, op: &IrOp) -> Result<()> {
        let value = op.operands[0];
        let mask = op.operands[op.operands.len() - 1];
        let (lanes, masks) = (self.lanes(value)?, self.lanes(mask)?);
        let indices = &op.operands[2..op.operands.len() - 1];
        let (buffer, offsets, ty) = self.lane_addresses(op.operands[1], indices, &self.vector_dims(value))?;
        for ((offset, lane), condition) in offsets.iter().zip(&lanes).zip(&masks) {
            self.guard(condition, |this| this.write(buffer, offset, ty, lane))?;
        }
        Ok(())
    }
}
