//! What decides how a kernel's items are cut into tiles: which ids it names, whether its items meet, what it divides by.

use std::collections::BTreeSet;

use crate::ir::{Body, ValueId};
use crate::ops::{Axis, Binary, Family, IdKind, IntPredicate, OpKind, Space};

/// What decides how a kernel's items are cut into tiles.
pub(super) struct Traits {
    /// Workgroups or positions in them are named.
    pub(super) groups: bool,
    /// Items of a workgroup meet or share memory.
    pub(super) meets: bool,
    /// Workgroups along y are told apart.
    pub(super) rows: bool,
    /// The dispatch id along x.
    ids: BTreeSet<ValueId>,
    /// Values that the dispatch id is divided by.
    pub(super) divisors: Vec<ValueId>,
}

impl Traits {
    pub(super) fn of(body: &Body) -> Self {
        let mut traits = Self { groups: false, meets: false, rows: false, ids: BTreeSet::new(), divisors: Vec::new() };
        for op in body.ops() {
            match op.kind.family() {
                Family::Id(id) => match id {
                    IdKind::Dispatch(Axis::X) => traits.ids.extend(op.result()),
                    IdKind::Dispatch(Axis::Y) | IdKind::WorkGroup(Axis::Y) => traits.rows = true,
                    IdKind::WorkGroup(Axis::X)
                    | IdKind::WorkItem(Axis::X)
                    | IdKind::Subgroup
                    | IdKind::SubgroupLane => traits.groups = true,
                    // Uniform in every tile, or zero but in a workgroup with rows, whose size has settled the shape.
                    IdKind::Dispatch(Axis::Z)
                    | IdKind::WorkGroup(Axis::Z)
                    | IdKind::WorkItem(Axis::Y | Axis::Z)
                    | IdKind::WorkGroupCount(_) => {}
                },
                Family::Exchange
                | Family::Meeting
                | Family::ReadLane
                | Family::WriteLane
                | Family::Scratch(Space::Workgroup) => traits.meets = true,
                Family::Scratch(Space::Private)
                | Family::Constant(_)
                | Family::Element(_)
                | Family::Vector
                | Family::Place
                | Family::Read
                | Family::Write
                | Family::Branch(_)
                | Family::Counted
                | Family::Unbounded
                | Family::End(_)
                | Family::Atomic
                | Family::Exit
                | Family::Check => {}
            }
        }
        for op in body.ops() {
            if let (OpKind::Binary(Binary::DivUI | Binary::RemUI), &[id, by]) = (&op.kind, &op.operands[..])
                && traits.ids.contains(&id)
            {
                traits.divisors.push(by);
            }
        }
        traits
    }

    /// The `if` that all effects of the kernel are in, when it only asks whether the dispatch id is below a limit: where
    /// it stands in the entry block, the limit, and whether the comparison is signed.
    pub(super) fn clip(&self, body: &Body) -> Option<(usize, ValueId, bool)> {
        let ops = &body.block(Body::ENTRY).ops;
        let (at, guard) = ops.iter().enumerate().find(|(_, op)| !op.blocks.is_empty())?;
        let harmless = |kind: &OpKind| {
            !matches!(
                kind.family(),
                Family::Read
                    | Family::Write
                    | Family::ReadLane
                    | Family::WriteLane
                    | Family::Meeting
                    | Family::Atomic
                    | Family::Exit
                    | Family::Check
            )
        };
        let alone = ops.iter().enumerate().all(|(other, op)| other == at || op.blocks.is_empty() && harmless(&op.kind));
        let nothing_else = guard.blocks.get(1).is_none_or(|&block| body.block(block).ops.len() <= 1);
        if guard.kind != OpKind::If || !guard.results.is_empty() || !alone || !nothing_else {
            return None;
        }
        let test = ops[..at].iter().find(|op| op.result() == guard.operands.first().copied())?;
        let (signed, id, limit) = match (&test.kind, &test.operands[..]) {
            (OpKind::CompareI(IntPredicate::Slt), &[id, limit]) => (true, id, limit),
            (OpKind::CompareI(IntPredicate::Ult), &[id, limit]) => (false, id, limit),
            _ => return None,
        };
        self.ids.contains(&id).then_some((at, limit, signed))
    }

    /// The divisor to cut tiles by: the least constant, else the first of all.
    pub(super) fn divisor(&self, body: &Body) -> Option<ValueId> {
        let constants = self.divisors.iter().filter(|&&value| body.constant(value).is_some_and(|bits| bits > 0));
        constants.min_by_key(|&&value| body.constant(value)).or(self.divisors.first()).copied()
    }
}
