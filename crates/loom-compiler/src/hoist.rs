//! Moves what a loop computes again and again in front of it.
//!
//! - An op moves if it has no effect, reads no memory, and reads only values from outside of the loop. Arithmetic is total, so it
//!   may be computed though the loop may not run.
//! - Only ops that every turn runs: what stands in a branch inside of the loop stays there.
//! - Where `arcp` allows it, a division by a value from outside becomes a product with its reciprocal, taken once.
//! - Not here: equal ops, which are built once (`build`), and dead ones (`simplify`).

use std::collections::{HashMap, HashSet};

use crate::eval;
use crate::ir::{BlockId, Body, Op, Value, ValueId};
use crate::ops::{Binary, Convert, Family, Flags, OpKind};
use crate::types::{ScalarType, Type};

/// Hoists out of every loop of `body`, the innermost first.
pub(crate) fn hoist(body: &mut Body) {
    let mut ones = HashMap::new();
    let mut new = Vec::new();
    block(body, Body::ENTRY, &mut ones, &mut new);
    body.blocks[0].ops.splice(0..0, new);
}

/// The constants 1 made so far, by type, and the ops that define them.
type Ones = HashMap<Type, ValueId>;

fn block(body: &mut Body, id: BlockId, ones: &mut Ones, new: &mut Vec<Op>) {
    let ops = std::mem::take(&mut body.blocks[id.index()].ops);
    let mut kept = Vec::with_capacity(ops.len());
    for op in ops {
        for inner in &op.blocks {
            block(body, *inner, ones, new);
        }
        if matches!(op.kind.family(), Family::Counted | Family::Unbounded) {
            let mut inside = HashSet::new();
            for inner in &op.blocks {
                defined_in(body, *inner, &mut inside);
            }
            for inner in &op.blocks {
                out_of(body, *inner, &mut inside, &mut kept, ones, new);
            }
        }
        kept.push(op);
    }
    body.blocks[id.index()].ops = kept;
}

/// Everything that is defined in a block and those inside of it.
fn defined_in(body: &Body, id: BlockId, inside: &mut HashSet<ValueId>) {
    let block = body.block(id);
    inside.extend(&block.arguments);
    for op in &block.ops {
        inside.extend(&op.results);
        op.blocks.iter().for_each(|inner| defined_in(body, *inner, inside));
    }
}

fn pure(op: &Op) -> bool {
    op.blocks.is_empty()
        && matches!(op.kind.family(), Family::Element(_) | Family::Vector | Family::Place | Family::Id(_))
}

fn out_of(
    body: &mut Body,
    id: BlockId,
    inside: &mut HashSet<ValueId>,
    before: &mut Vec<Op>,
    ones: &mut Ones,
    new: &mut Vec<Op>,
) {
    let ops = std::mem::take(&mut body.blocks[id.index()].ops);
    let mut kept = Vec::with_capacity(ops.len());
    let mut reciprocals: HashMap<ValueId, ValueId> = HashMap::new();
    for mut op in ops {
        let mut reads_inside = false;
        op.each_read(body, |value| reads_inside |= inside.contains(&value));
        if pure(&op) && !reads_inside {
            op.results.iter().for_each(|result| {
                inside.remove(result);
            });
            before.push(op);
            continue;
        }
        if op.kind == OpKind::Binary(Binary::DivF)
            && op.flags.contains(Flags::ARCP)
            && !inside.contains(&op.operands[1])
        {
            let divisor = op.operands[1];
            let reciprocal = match reciprocals.get(&divisor) {
                Some(known) => *known,
                None => {
                    let ty = body.ty(divisor).clone();
                    let one = one(body, &ty, op.flags, ones, new);
                    let result = value(body, ty, None);
                    let operands = vec![one, divisor];
                    before.push(Op { operands, results: vec![result], ..op.clone() });
                    reciprocals.insert(divisor, result);
                    result
                }
            };
            op.kind = OpKind::Binary(Binary::MulF);
            op.operands[1] = reciprocal;
        }
        kept.push(op);
    }
    body.blocks[id.index()].ops = kept;
}

fn value(body: &mut Body, ty: Type, constant: Option<u64>) -> ValueId {
    body.values.push(Value { ty, constant });
    ValueId(body.values.len() as u32 - 1)
}

/// The constant 1 of a float type.
fn one(body: &mut Body, ty: &Type, flags: Flags, ones: &mut Ones, new: &mut Vec<Op>) -> ValueId {
    if let Some(known) = ones.get(ty) {
        return *known;
    }
    let element = ty.element().unwrap_or(ScalarType::F32);
    let bits = eval::convert(Convert::UiToF, ScalarType::I32, element, 1);
    let result = value(body, ty.clone(), Some(bits));
    new.push(Op {
        kind: OpKind::Constant(bits),
        operands: Vec::new(),
        results: vec![result],
        blocks: Vec::new(),
        flags,
        span: crate::ir::Span::default(),
    });
    ones.insert(ty.clone(), result);
    result
}
