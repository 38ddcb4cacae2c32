//! What one item of each segment does, such as the leader of a workgroup that stores what all of it came to.
//!
//! - A tile of one item a segment does that at once: an address moves from item to item as it did from segment to segment.
//! - Only maps of what a segment's items share; anything else runs under a mask, as every branch can.

use std::collections::BTreeSet;

use super::{Compiler, Lane, Line, ONE, Result, ZERO};
use crate::ops::{Binary, IntPredicate};
use crate::tile::program::{
    Access, Affine, Block, Buffer, Heads, Inst, Offsets, Op, ScalarInst, Shape, Slot, Source, Target,
};
use crate::types::ScalarType;

/// The most instructions of a branch that is looked at.
const MAX_BODY: usize = 32;

impl Compiler<'_> {
    /// The branch `then` of those for whom `lane` holds, as one that may be done for one item a segment.
    pub(super) fn heads(&mut self, lane: &Lane, then: Block) -> Result<Option<Heads>> {
        let Lane::Compare { predicate: IntPredicate::Eq, value: Line { base, l: ONE, g: ZERO }, limit } = *lane else {
            return Ok(None);
        };
        let insts = &self.program.blocks[then.0 as usize];
        if !self.many || self.program.shape != Shape::Groups || insts.is_empty() || insts.len() > MAX_BODY {
            return Ok(None);
        }
        let insts = insts.clone();
        let item = self.sub(limit, base)?;
        let item = self.slot_of(item);
        let Some(body) = self.narrow(insts, item)? else {
            return Ok(None);
        };
        let block = Block(self.program.blocks.len() as u32);
        for _ in &body {
            self.count()?;
        }
        self.program.blocks.push(body);
        let condition = self.condition(lane)?;
        Ok(Some(Heads { condition, then, item, body: block }))
    }

    fn narrow(&mut self, insts: Vec<Inst>, item: Slot) -> Result<Option<Vec<Inst>>> {
        let mut made = BTreeSet::new();
        let mut out = Vec::new();
        for inst in insts {
            match inst {
                Inst::Scalar(_) | Inst::MapSegments { .. } => out.push(inst),
                Inst::Spread { to, value } => {
                    let value = self.of_item(value, item, &mut out);
                    made.insert(to);
                    out.push(Inst::Spread { to, value });
                }
                Inst::Map { op, to, mut from } => {
                    for source in from.iter_mut().take(op.operands()) {
                        match *source {
                            Source::Reg(reg) if !made.contains(&reg) => return Ok(None),
                            Source::Reg(_) | Source::Slot(_) | Source::Segment(_) => {}
                            Source::Memory(access) => match self.access_of_item(access, item, &mut out) {
                                Some(access) => *source = Source::Memory(access),
                                None => return Ok(None),
                            },
                        }
                    }
                    let to = match to {
                        Target::Reg(reg) => {
                            made.insert(reg);
                            to
                        }
                        Target::Memory(access) => match self.access_of_item(access, item, &mut out) {
                            Some(access) => Target::Memory(access),
                            None => return Ok(None),
                        },
                    };
                    out.push(Inst::Map { op, to, from });
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(out))
    }

    fn access_of_item(&mut self, access: Access, item: Slot, out: &mut Vec<Inst>) -> Option<Access> {
        // Scratch memory has parts.
        let whole =
            matches!(self.program.buffers[access.buffer as usize], Buffer::Argument(_) | Buffer::Constant { .. });
        match access.offsets {
            Offsets::Affine(line) if whole => {
                Some(Access { offsets: Offsets::Affine(self.of_item(line, item, out)), ..access })
            }
            Offsets::Affine(_) | Offsets::Gather(_) => None,
        }
    }

    /// The value for item `item` of each segment, as one of a tile whose segments are an item.
    fn of_item(&mut self, line: Affine, item: Slot, out: &mut Vec<Inst>) -> Affine {
        let (distance, base) = (self.slot(), self.slot());
        let op = |binary| Op::Binary(binary, ScalarType::I64);
        out.push(Inst::Scalar(ScalarInst { op: op(Binary::MulI), to: distance, from: [line.l, item, item] }));
        out.push(Inst::Scalar(ScalarInst { op: op(Binary::AddI), to: base, from: [line.base, distance, distance] }));
        Affine { base, l: line.g, g: line.g }
    }
}
