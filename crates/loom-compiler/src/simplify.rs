//! Removes what nothing uses.
//!
//! - An op stays if it writes memory, meets other work-items, ends a block, or owns one that does; or if a result is used.
//! - A value is used by an op, and by the type of a used value (a view's extents).

use crate::ir::{Block, BlockId, Body, Op};
use crate::ops::{Family, OpKind};

/// Whether the op itself, apart from its blocks, can be seen from outside.
fn has_effect(kind: &OpKind) -> bool {
    match kind.family() {
        // A loop that does not end runs into the step limit, which is an effect.
        Family::Write
        | Family::WriteLane
        | Family::End(_)
        | Family::Meeting
        | Family::Unbounded
        | Family::Atomic
        | Family::Exit
        | Family::Check => true,
        Family::Constant(_)
        | Family::Element(_)
        | Family::Vector
        | Family::Scratch(_)
        | Family::Place
        | Family::Read
        | Family::ReadLane
        | Family::Branch(_)
        | Family::Counted
        | Family::Id(_)
        | Family::Exchange => false,
    }
}

/// Whether it only ends a block: outside of its owner that is not seen.
fn ends(kind: &OpKind) -> bool {
    matches!(kind.family(), Family::End(_))
}

/// Removes dead ops; blocks that nothing owns any more are left empty.
pub(crate) fn remove_dead(body: &mut Body) {
    let mut used = vec![false; body.values.len()];
    sweep(body, Body::ENTRY, &mut used);
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
            || body.any_within(&op, &mut |inner| has_effect(&inner.kind) && !ends(&inner.kind));
        if !live {
            for block in &op.blocks {
                clear(body, *block);
            }
            continue;
        }
        op.each_read(body, |value| used[value.index()] = true);
        for block in op.blocks.iter().rev() {
            sweep(body, *block, used);
        }
        kept.push(op);
    }
    kept.reverse();
    block.ops = kept;
    body.blocks[id.index()] = block;
}

fn clear(body: &mut Body, id: BlockId) {
    let block = std::mem::take(&mut body.blocks[id.index()]);
    for op in &block.ops {
        for inner in &op.blocks {
            clear(body, *inner);
        }
    }
}
