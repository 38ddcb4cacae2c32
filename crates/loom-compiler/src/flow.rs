//! Where fragments come from: through loops, branches, selects and element-wise ops, back to the op that laid them out.
//!
//! `resolve` uses it on a built body to settle what each `vector.mma` multiplies, and to refuse fragments used in another role
//! than their own.

use crate::fragment::{Format, Fragment, Role};
use crate::ir::{BlockId, Body, Op, Span, ValueId};
use crate::ops::{Branch, End, Family, OpKind};
use crate::types::{ScalarType, Type};

/// For every value the values that it may be a copy of, by control flow and whole-value selects.
pub(crate) fn copies(body: &Body) -> Vec<Vec<ValueId>> {
    let mut copies = vec![Vec::new(); body.values.len()];
    let mut copy = |to: &[ValueId], from: &[ValueId]| {
        for (to, from) in to.iter().zip(from) {
            copies[to.index()].push(*from);
        }
    };
    let ends = |block: BlockId| body.block(block).ops.last().map_or(&[][..], |op| &op.operands);
    let arguments = |block: BlockId| &body.block(block).arguments[..];
    for op in body.ops() {
        match op.kind.family() {
            Family::Branch(Branch::If | Branch::Switch(_)) => {
                for block in &op.blocks {
                    copy(&op.results, ends(*block));
                }
            }
            Family::Counted => {
                let (inits, yielded) = (&op.operands[3..], ends(op.blocks[0]));
                for to in [&arguments(op.blocks[0])[1..], &op.results] {
                    copy(to, inits);
                    copy(to, yielded);
                }
            }
            Family::Unbounded => {
                let (head, tail) = (op.blocks[0], op.blocks[1]);
                copy(arguments(head), &op.operands);
                copy(arguments(head), ends(tail));
                let forwarded = ends(head).get(1..).unwrap_or_default();
                copy(arguments(tail), forwarded);
                copy(&op.results, forwarded);
            }
            Family::Element(_) if op.kind == OpKind::Select && matches!(body.ty(op.operands[0]), Type::Scalar(_)) => {
                copy(&op.results, &op.operands[1..2]);
                copy(&op.results, &op.operands[2..3]);
            }
            Family::Constant(_)
            | Family::Element(_)
            | Family::Vector
            | Family::Scratch(_)
            | Family::Place
            | Family::Read
            | Family::Write
            | Family::ReadLane
            | Family::WriteLane
            | Family::End(End::Yield | End::Condition | End::Return)
            | Family::Id(_)
            | Family::Exchange
            | Family::Meeting
            | Family::Atomic
            | Family::Exit
            | Family::Check => {}
        }
    }
    copies
}

/// What laid a fragment out: how, and the numbers it was said to hold.
type Origin = (Fragment, Option<Format>);

struct Origins<'a> {
    /// By value: the op that defines it.
    defined: Vec<Option<&'a Op>>,
    copies: Vec<Vec<ValueId>>,
}

impl<'a> Origins<'a> {
    fn new(body: &'a Body) -> Self {
        let mut defined = vec![None; body.values.len()];
        for op in body.ops() {
            for result in &op.results {
                defined[result.index()] = Some(op);
            }
        }
        Self { defined, copies: copies(body) }
    }

    /// Every op that may have laid `value` out.
    fn of(&self, value: ValueId) -> Vec<Origin> {
        let mut seen = vec![false; self.defined.len()];
        let mut waiting = vec![value];
        let mut found = Vec::new();
        while let Some(value) = waiting.pop() {
            if std::mem::replace(&mut seen[value.index()], true) {
                continue;
            }
            waiting.extend(&self.copies[value.index()]);
            let Some(op) = self.defined[value.index()] else {
                continue;
            };
            match &op.kind {
                OpKind::FragmentLabel(fragment, format) => found.push((*fragment, *format)),
                OpKind::FragmentLoad(fragment) => found.push((*fragment, None)),
                OpKind::FragmentRepack { to, .. } => found.push((*to, None)),
                OpKind::Mma(product) => found.push((product.sum, None)),
                kind if matches!(kind.family(), Family::Element(_)) => waiting.extend(&op.operands),
                _ => {}
            }
        }
        found
    }
}

/// What a fragment is used as.
fn agrees(origin: Role, used: Role) -> bool {
    origin == used || origin.is_accumulator() && used.is_accumulator()
}

/// Settles the formats of every product, and checks roles.
///
/// # Errors
/// Where, and what does not fit.
pub(crate) fn resolve(body: &mut Body) -> Result<(), (Span, String)> {
    let fragments =
        |op: &Op| matches!(op.kind, OpKind::Mma(_) | OpKind::FragmentStore(_) | OpKind::FragmentRepack { .. });
    if !body.ops().any(fragments) {
        return Ok(());
    }
    let origins = Origins::new(body);
    let mut settled = Vec::new();
    for (block, ops) in body.blocks.iter().enumerate() {
        for (at, op) in ops.ops.iter().enumerate() {
            let uses: &[Role] = match &op.kind {
                OpKind::Mma(_) => &[Role::Lhs, Role::Rhs, Role::Init],
                OpKind::FragmentStore(fragment) if fragment.role == Role::Lhs => &[Role::Lhs],
                OpKind::FragmentStore(fragment) if fragment.role == Role::Rhs => &[Role::Rhs],
                OpKind::FragmentStore(_) | OpKind::FragmentRepack { .. } => &[Role::Result],
                _ => continue,
            };
            let name = match &op.kind {
                OpKind::Mma(_) => "vector.mma",
                OpKind::FragmentStore(_) => "vector.fragment.store",
                _ => "vector.fragment.repack",
            };
            let mut formats: [Option<(Format, u32)>; 3] = [None; 3];
            // Of operands that some op laid out, whether they are split, and how long their sums are.
            let mut laid: [Option<(bool, u32)>; 3] = [None; 3];
            for (operand, (&value, &role)) in op.operands.iter().zip(uses).enumerate() {
                for (fragment, format) in origins.of(value) {
                    if !agrees(fragment.role, role) {
                        let (found, role) = (fragment.role.name(), role.name());
                        return Err((op.span, format!("`{name}`: a fragment of role {found} used as {role}")));
                    }
                    let layout = (fragment.split, fragment.depth());
                    if laid[operand].replace(layout).is_some_and(|other| other != layout) {
                        return Err((op.span, format!("`{name}`: an operand that may be laid out in two ways")));
                    }
                    let Some(format) = format.filter(|_| body.ty(value).element().is_some_and(ScalarType::is_integer))
                    else {
                        continue;
                    };
                    let said = (format, fragment.depth());
                    match formats[operand] {
                        Some(other) if other != said => {
                            let message = format!("`{name}`: an operand that may hold {:?} or {format:?}", other.0);
                            return Err((op.span, message));
                        }
                        _ => formats[operand] = Some(said),
                    }
                }
            }
            if let OpKind::Mma(product) = &op.kind {
                let mut product = *product;
                let mut depths = [product.depth; 2];
                let mut splits = [product.split; 2];
                for ((depth, split), laid) in depths.iter_mut().zip(&mut splits).zip(laid) {
                    if let Some((found, length)) = laid {
                        (*split, *depth) = (found, length);
                    }
                }
                if splits[0] != splits[1] {
                    let message = "`vector.mma`: one operand is held once by all lanes, the other by each 16 of them";
                    return Err((op.span, message.to_owned()));
                }
                product.split = splits[0];
                if let Some((format, depth)) = formats[0] {
                    (product.lhs, depths[0]) = (format, depth);
                }
                if let Some((format, depth)) = formats[1] {
                    (product.rhs, depths[1]) = (format, depth);
                }
                if depths[0] != depths[1] {
                    let [lhs, rhs] = depths;
                    return Err((op.span, format!("`vector.mma`: the lhs has {lhs} columns, the rhs {rhs} rows")));
                }
                product.depth = depths[0];
                let sum = body.ty(op.operands[2]).element().unwrap_or(ScalarType::I1);
                if let Err(legal) = product.check(sum) {
                    let (lhs, rhs) = (product.lhs, product.rhs);
                    return Err((op.span, format!("`vector.mma`: {lhs:?} by {rhs:?} into {sum}; {legal}")));
                }
                settled.push((block, at, product));
            }
        }
    }
    for (block, at, product) in settled {
        body.blocks[block].ops[at].kind = OpKind::Mma(product);
    }
    Ok(())
}
