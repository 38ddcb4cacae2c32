//! Removes what nothing uses.
//!
//! - An op stays if it writes memory, meets other work-items, ends a block, or owns one that does; or if a result is used.
//! - A value is used by an op, and by the type of a used value (a view's extents).

use crate::ir::{Block, BlockId, Body, Op, ValueId};
use crate::ops::OpKind;

/// Whether the op itself, apart from its blocks, can be seen from outside.
const fn has_effect(kind: &OpKind) -> bool {
    match kind {
        OpKind::Store
        | OpKind::StoreMask
        | OpKind::Yield
        | OpKind::Condition
        | OpKind::Return
        | OpKind::Barrier(_)
        // These are barriers as well: dropping one would be seen by whoever relies on it.
        | OpKind::WorkgroupReduce(_)
        // May not end: the step limit is an effect.
        | OpKind::While => true,
        OpKind::Constant(_)
        | OpKind::Unary(_)
        | OpKind::Binary(_)
        | OpKind::Ternary(_)
        | OpKind::CompareI(_)
        | OpKind::CompareF(_)
        | OpKind::Classify(_)
        | OpKind::Convert(_)
        | OpKind::Select
        | OpKind::Splat
        | OpKind::FromElements
        | OpKind::Iota
        | OpKind::MaskRange
        | OpKind::Extract
        | OpKind::Insert
        | OpKind::Reduce(_)
        | OpKind::Dot
        | OpKind::Lanes(_)
        | OpKind::Alloca { .. }
        | OpKind::BufferView
        | OpKind::Subview
        | OpKind::Refine
        | OpKind::Load
        | OpKind::LoadMask
        | OpKind::If
        | OpKind::For
        | OpKind::Switch(_)
        | OpKind::Id(_)
        | OpKind::SubgroupShuffle(_)
        | OpKind::SubgroupReduce { .. } => false,
    }
}

/// Removes dead ops; blocks that nothing owns any more are left empty.
pub(crate) fn remove_dead(body: &mut Body) {
    let mut used = vec![false; body.values.len()];
    sweep(body, Body::ENTRY, &mut used);
}

fn mark(body: &Body, used: &mut [bool], value: ValueId) {
    if std::mem::replace(&mut used[value.index()], true) {
        return;
    }
    // Extents are scalars, so this ends at once.
    body.ty(value).each_value(|dim| used[dim.index()] = true);
}

/// Sweeps a block backwards: every use of a value is behind its definition.
fn sweep(body: &mut Body, id: BlockId, used: &mut [bool]) {
    let mut block: Block = std::mem::take(&mut body.blocks[id.index()]);
    for argument in &block.arguments {
        // A carried view's extents are used by whoever carries it.
        body.ty(*argument).each_value(|dim| used[dim.index()] = true);
    }
    let mut kept: Vec<Op> = Vec::with_capacity(block.ops.len());
    for op in std::mem::take(&mut block.ops).into_iter().rev() {
        let live = has_effect(&op.kind)
            || op.results.iter().any(|result| used[result.index()])
            || op.blocks.iter().any(|block| has_effects_inside(body, *block));
        if !live {
            for block in &op.blocks {
                clear(body, *block);
            }
            continue;
        }
        for result in &op.results {
            body.ty(*result).each_value(|dim| used[dim.index()] = true);
        }
        for operand in &op.operands {
            mark(body, used, *operand);
        }
        for block in op.blocks.iter().rev() {
            sweep(body, *block, used);
        }
        kept.push(op);
    }
    kept.reverse();
    block.ops = kept;
    body.blocks[id.index()] = block;
}

fn has_effects_inside(body: &Body, id: BlockId) -> bool {
    body.block(id).ops.iter().any(|op| {
        let ends = matches!(op.kind, OpKind::Yield | OpKind::Condition | OpKind::Return);
        (!ends && has_effect(&op.kind)) || op.blocks.iter().any(|block| has_effects_inside(body, *block))
    })
}

fn clear(body: &mut Body, id: BlockId) {
    let block = std::mem::take(&mut body.blocks[id.index()]);
    for op in &block.ops {
        for inner in &op.blocks {
            clear(body, *inner);
        }
    }
}
