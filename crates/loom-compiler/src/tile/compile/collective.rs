//! What the items of a subgroup or workgroup tell each other, and who goes on alone.

use super::{Compiler, Lane, Result};
use crate::ir::{Body, Op as IrOp};
use crate::ops::{Combine, OpKind, Scan};
use crate::tile::program::{Condition, Group, Inst};
use crate::types::ScalarType;

impl Compiler<'_> {
    /// The ops of the entry block from `from` on. What follows a `kernel.exit` is a block that those who leave do not run.
    pub(super) fn entry(&mut self, from: usize) -> Result<()> {
        let body = self.body;
        let ops = &body.block(Body::ENTRY).ops;
        for (at, op) in ops.iter().enumerate().skip(from) {
            self.span = op.span;
            if at + 1 == ops.len() {
                break;
            }
            if op.kind == OpKind::Exit {
                return self.exit(at, op);
            }
            if !self.stored.contains(&(Body::ENTRY.0, at)) {
                self.op(Body::ENTRY, at, op)?;
            }
            self.op_ends(Body::ENTRY, at);
        }
        self.op_ends(Body::ENTRY, ops.len().saturating_sub(1));
        Ok(())
    }

    fn exit(&mut self, at: usize, op: &IrOp) -> Result<()> {
        let lane = self.lane(op.operands[0])?;
        let condition = self.condition(&lane)?;
        let held = if let Condition::Reg(reg) = condition { Some(reg) } else { None };
        if let Some(reg) = held {
            self.frame.hold(reg);
        }
        let then = self.nested(|this| this.body_block(op.blocks[0], |_| Ok(())))?;
        let otherwise = self.nested(|this| {
            this.op_ends(Body::ENTRY, at);
            this.entry(at + 1)
        })?;
        if let Some(reg) = held {
            self.frame.release(reg);
        }
        self.emit(Inst::If { condition, then, otherwise: Some(otherwise) })
    }

    pub(super) fn assert(&mut self, op: &IrOp, text: &str) -> Result<()> {
        let lane = self.lane(op.operands[0])?;
        let condition = self.condition(&lane)?;
        let site = self.site("kernel.assert");
        self.emit(Inst::Assert { condition, text: text.into(), site })
    }

    pub(super) fn scan(&mut self, op: &IrOp, combine: Combine, scan: Scan, group: Group) -> Result<()> {
        let ty = self.scalar_type(op.operands[0])?;
        let mut lanes = Vec::new();
        for lane in self.lanes(op.operands[0])? {
            let from = self.reg(&lane, ty)?;
            let to = self.take(ty)?;
            self.emit(Inst::Scan { combine, scan, ty, to, from, group })?;
            lanes.push(Lane::Reg(to));
        }
        self.define_lanes(op.results[0], lanes);
        Ok(())
    }

    pub(super) fn broadcast(&mut self, op: &IrOp) -> Result<()> {
        let ty = self.scalar_type(op.operands[0])?;
        let lane = match op.operands.get(1) {
            Some(&lane) => {
                let lane = self.lane(lane)?;
                Some(self.source(&lane)?)
            }
            None => None,
        };
        let mut lanes = Vec::new();
        for value in self.lanes(op.operands[0])? {
            let from = self.reg(&value, ty)?;
            let to = self.take(ty)?;
            self.emit(Inst::Broadcast { ty, to, from, lane })?;
            lanes.push(Lane::Reg(to));
        }
        self.define_lanes(op.results[0], lanes);
        Ok(())
    }

    pub(super) fn ballot(&mut self, op: &IrOp) -> Result<()> {
        let ty = self.scalar_type(op.results[0])?;
        let vote = self.lane(op.operands[0])?;
        let from = self.source(&vote)?;
        let to = self.take(ty)?;
        self.emit(Inst::Ballot { ty, to, from })?;
        self.define_lanes(op.results[0], vec![Lane::Reg(to)]);
        Ok(())
    }

    pub(super) fn matching(&mut self, op: &IrOp) -> Result<()> {
        let (ty, mask) = (self.scalar_type(op.operands[0])?, self.scalar_type(op.results[0])?);
        let value = self.lane(op.operands[0])?;
        let from = self.reg(&value, ty)?;
        let to = self.take(mask)?;
        let all = if op.kind == OpKind::SubgroupMatchAll { Some(self.take(ScalarType::I1)?) } else { None };
        self.emit(Inst::Match { ty, from, mask, to, all })?;
        self.define_lanes(op.results[0], vec![Lane::Reg(to)]);
        if let Some(all) = all {
            self.define_lanes(op.results[1], vec![Lane::Reg(all)]);
        }
        Ok(())
    }
}
