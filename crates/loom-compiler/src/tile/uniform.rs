//! Which values are the same for all work-items of a tile.
//!
//! A value is *varying* if it may differ between two active items of one tile. The analysis is a monotone pass over the
//! structured body, repeated until nothing changes; at most once per value.
//!
//! - Uniform here promises that the compiler can compute it in a slot: every operand is uniform too.
//! - Not here: values that vary but are affine in the item (`compile`).

use crate::ir::{BlockId, Body, Op, ValueId};
use crate::ops::{Axis, Binary, Family, IdKind, OpKind, Space};
use std::collections::HashSet;

/// What the shape of the tiles makes of the ids.
#[derive(Clone, Copy)]
pub(super) struct Ids {
    /// Whether workgroups along x differ within a tile.
    pub group_x_varies: bool,
    /// Whether workgroups along y do.
    pub group_y_varies: bool,
    /// Whether a tile is one workgroup: what all of it combine to is one value.
    pub one_group: bool,
    /// Whether subgroups differ within a tile.
    pub subgroup_varies: bool,
    /// How many subgroups, from a multiple of it on, are looked at as if they were a tile, 0 for all: their numbers divided by it, or a
    /// multiple, are one.
    pub subgroups: u64,
}

/// For every value whether it may differ between the lanes of one subgroup.
pub(crate) fn varying_in_subgroup(body: &Body) -> Vec<bool> {
    let ids =
        Ids { group_x_varies: false, group_y_varies: false, one_group: true, subgroup_varies: false, subgroups: 0 };
    varying(body, ids)
}

/// For every value whether it may differ between the items of `subgroups` subgroups of a workgroup, from a multiple of that many on.
pub(crate) fn varying_in_subgroups(body: &Body, subgroups: u64) -> Vec<bool> {
    let ids = Ids { group_x_varies: false, group_y_varies: false, one_group: true, subgroup_varies: true, subgroups };
    varying(body, ids)
}

/// For every value whether it varies.
pub(super) fn varying(body: &Body, ids: Ids) -> Vec<bool> {
    let is_subgroup = |op: &&Op| matches!(op.kind.family(), Family::Id(IdKind::Subgroup));
    let subgroups = body.ops().filter(is_subgroup).filter_map(Op::result).collect();
    let mut analysis = Analysis { body, ids, subgroups, varies: vec![false; body.values.len()], changed: true };
    while analysis.changed {
        analysis.changed = false;
        analysis.block(Body::ENTRY);
    }
    analysis.varies
}

struct Analysis<'a> {
    body: &'a Body,
    ids: Ids,
    /// Numbers of subgroups.
    subgroups: HashSet<ValueId>,
    varies: Vec<bool>,
    changed: bool,
}

impl Analysis<'_> {
    fn is(&self, value: ValueId) -> bool {
        self.varies[value.index()]
    }

    fn set(&mut self, value: ValueId, varies: bool) {
        if varies && !self.varies[value.index()] {
            self.varies[value.index()] = true;
            self.changed = true;
        }
    }

    fn any(&self, values: &[ValueId]) -> bool {
        values.iter().any(|&value| {
            let mut varies = self.is(value);
            self.body.ty(value).each_value(|dim| varies |= self.is(dim));
            varies
        })
    }

    /// The operands of a block's terminator.
    fn terminator(&self, block: BlockId) -> &[ValueId] {
        self.body.block(block).ops.last().map_or(&[], |op| &op.operands)
    }

    fn block(&mut self, block: BlockId) {
        let body = self.body;
        for op in &body.block(block).ops {
            self.op(op);
        }
    }

    fn op(&mut self, op: &Op) {
        match op.kind.family() {
            Family::Id(id) => {
                let varies = match id {
                    IdKind::WorkGroup(Axis::X) => self.ids.group_x_varies,
                    IdKind::WorkGroup(Axis::Y) => self.ids.group_y_varies,
                    IdKind::WorkGroup(Axis::Z) => false,
                    IdKind::WorkGroupCount(_) => false,
                    IdKind::Subgroup => self.ids.subgroup_varies,
                    IdKind::WorkItem(_) | IdKind::Dispatch(_) | IdKind::SubgroupLane => true,
                };
                self.results(op, varies);
            }
            Family::Scratch(space) => {
                let varies = match space {
                    Space::Private => true,
                    Space::Workgroup => self.ids.group_x_varies,
                };
                self.results(op, varies);
            }
            Family::Exchange | Family::Meeting | Family::ReadLane => {
                let one = self.ids.one_group && matches!(op.kind, OpKind::WorkgroupReduce(_));
                self.results(op, !one);
            }
            Family::Atomic => self.results(op, true),
            // Without results; what follows an exit is for fewer items, which differ no more than before.
            Family::Exit | Family::Check => op.blocks.iter().for_each(|block| self.block(*block)),
            Family::Branch(_) => {
                let selector = self.is(op.operands[0]);
                for &block in &op.blocks {
                    self.block(block);
                    for (at, &result) in op.results.iter().enumerate() {
                        let varies = selector || self.is(self.terminator(block)[at]);
                        self.set(result, varies);
                    }
                }
            }
            Family::Counted => {
                let bounds = self.any(&op.operands[..3]);
                let block = op.blocks[0];
                let arguments = &self.body.block(block).arguments;
                // Items that are still in the loop share the counter if they started with the same.
                let counter = self.is(op.operands[0]) || self.is(op.operands[2]);
                self.set(arguments[0], counter);
                self.block(block);
                for (at, &result) in op.results.iter().enumerate() {
                    let varies = bounds || self.is(op.operands[3 + at]) || self.is(self.terminator(block)[at]);
                    self.set(arguments[1 + at], varies);
                    self.set(result, varies);
                }
            }
            Family::Unbounded => {
                let (head, tail) = (op.blocks[0], op.blocks[1]);
                self.block(head);
                self.block(tail);
                // All or nothing: a state that varies makes the test, and so the number of turns, vary in nearly every case.
                let varies =
                    self.any(&op.operands) || self.any(self.terminator(head)) || self.any(self.terminator(tail));
                let arguments = [head, tail].map(|block| &self.body.block(block).arguments);
                for &value in arguments.into_iter().flatten().chain(&op.results) {
                    self.set(value, varies);
                }
            }
            Family::Constant(_)
            | Family::Element(_)
            | Family::Vector
            | Family::Place
            | Family::Read
            | Family::Write
            | Family::WriteLane
            | Family::End(_) => {
                let varies = self.any(&op.operands) && !self.is_one(op);
                self.results(op, varies);
            }
        }
    }

    /// Whether an op makes one number of those of the subgroups that are looked at.
    fn is_one(&self, op: &Op) -> bool {
        let OpKind::Binary(Binary::DivUI) = op.kind else { return false };
        let by = self.body.constant(op.operands[1]);
        self.subgroups.contains(&op.operands[0])
            && by.is_some_and(|by| by > 0 && self.ids.subgroups > 0 && by.is_multiple_of(self.ids.subgroups))
    }

    fn results(&mut self, op: &Op, varies: bool) {
        for &result in &op.results {
            // A view's extents are read with it.
            let mut varies = varies;
            self.body.ty(result).each_value(|dim| varies |= self.is(dim));
            self.set(result, varies);
        }
    }
}
