//! Strides that control flow decides: they are carried beside the views that they are of.
//!
//! ```text
//! %r = scf.for .. (%v = %a : view<4x4xf32>)     a turn gives a view of other strides: the loop carries these, too,
//!                                               and `%v` has the strides that its turn was given
//! ```
//!
//! - A loop is built with the strides of what it begins with, as most keep them: static ones stay static. Where a turn gives
//!   others, the loop is built anew and carries what changed.

use std::collections::BTreeSet;

use super::Builder;
use crate::ir::{BlockId, ValueId};
use crate::types::{Dim, ScalarType, Type};

/// Strides that are carried: which of the carried values, and which of its axes.
pub(super) type Loose = BTreeSet<(usize, usize)>;

/// Where an attempt at building began.
pub(super) struct Attempt {
    blocks: usize,
    exits: bool,
    workgroup_bytes: u64,
    private_bytes: u64,
    faults: usize,
}

fn strides(ty: &Type) -> &[Dim] {
    if let Type::View(view) = ty { &view.strides } else { &[] }
}

impl Builder<'_> {
    pub(super) fn attempt(&self) -> Attempt {
        Attempt {
            blocks: self.body.blocks.len(),
            exits: self.exits,
            workgroup_bytes: self.workgroup_bytes,
            private_bytes: self.private_bytes,
            faults: self.diagnostics.items.len(),
        }
    }

    /// Whether something was reported since.
    pub(super) fn failed(&self, attempt: &Attempt) -> bool {
        self.diagnostics.items.len() > attempt.faults
    }

    /// Forgets the blocks built since. Values stay, without a definition; nothing names them.
    pub(super) fn take_back(&mut self, attempt: Attempt) {
        self.body.blocks.truncate(attempt.blocks);
        self.exits = attempt.exits;
        self.workgroup_bytes = attempt.workgroup_bytes;
        self.private_bytes = attempt.private_bytes;
    }

    /// New values of these types, and of the strides among them that are `loose`.
    pub(super) fn carried(&mut self, types: &[Type], loose: &Loose) -> (Vec<ValueId>, Vec<ValueId>) {
        let mut types = types.to_vec();
        let mut carried = Vec::with_capacity(loose.len());
        for (at, axis) in loose {
            let stride = self.new_value(Type::Scalar(ScalarType::Index));
            if let Type::View(view) = &mut types[*at] {
                view.strides[*axis] = Dim::Value(stride);
            }
            carried.push(stride);
        }
        (types.into_iter().map(|ty| self.new_value(ty)).collect(), carried)
    }

    /// The `loose` strides of `values`.
    pub(super) fn loose_strides(&mut self, values: &[ValueId], loose: &Loose) -> Vec<ValueId> {
        let dims: Vec<Dim> = loose.iter().map(|(at, axis)| strides(self.ty(values[*at]))[*axis]).collect();
        dims.into_iter().map(|dim| self.dim_value(dim)).collect()
    }

    /// Has the last op of `block` give the `loose` strides of `values`, too.
    pub(super) fn give_strides(&mut self, block: BlockId, values: &[ValueId], loose: &Loose) {
        let given = self.loose_strides(values, loose);
        if let Some(end) = self.body.blocks[block.index()].ops.last_mut() {
            end.operands.extend(given);
        }
    }

    /// The strides of `values` that `types` has otherwise, beside those that are `loose` already.
    pub(super) fn changed(&self, values: &[ValueId], types: &[Type], loose: &Loose) -> Loose {
        let mut changed = Loose::new();
        for (at, (value, ty)) in values.iter().zip(types).enumerate() {
            let pairs = strides(self.ty(*value)).iter().zip(strides(ty)).enumerate();
            changed.extend(pairs.filter(|(_, (found, known))| found != known).map(|(axis, _)| (at, axis)));
        }
        &changed - loose
    }

    /// The strides of `types` that are not known in the block that is being built.
    pub(super) fn unseen(&self, types: &[Type]) -> Loose {
        let hidden = |dim: &Dim| matches!(dim, Dim::Value(value) if !self.is_visible(*value));
        let all = types.iter().enumerate();
        all.flat_map(|(at, ty)| {
            strides(ty).iter().enumerate().filter(|(_, dim)| hidden(dim)).map(move |(axis, _)| (at, axis))
        })
        .collect()
    }
}
