//! Butterflies of shuffles, as the reductions that they are.
//!
//! ```text
//! %p = shuffle<xor> %v, 16;  %w = maxnum %v, %p;  ... 8, 4, 2, 1 ...   ──>   %z = workgroup.reduce<maxnum> %v
//! ```
//!
//! - The order of `OpKind::SubgroupReduce` is that of such a butterfly. Its ops give the same whichever of two values comes
//!   first (of two NaNs either), so every lane ends with the bits of lane 0, which are those of the reduction.
//! - Only where every lane of every subgroup takes part, and where a subgroup is a workgroup: there a result is kept once
//!   a workgroup, while any other butterfly is as fast as what it would become.

use crate::ir::{Body, Kernel, Op, ValueId};
use crate::ops::{Binary, Combine, OpKind, ShuffleMode};
use crate::types::Type;

/// `kernel` with its butterflies as reductions; `None` if it has none.
pub(super) fn gather(kernel: &Kernel) -> Option<Kernel> {
    let shuffles = |op: &Op| op.kind == OpKind::SubgroupShuffle(ShuffleMode::Xor);
    let ops = &kernel.body.block(Body::ENTRY).ops;
    if kernel.items() != kernel.subgroup_size || !ops.iter().any(shuffles) {
        return None;
    }
    let found = butterflies(kernel);
    if found.is_empty() {
        return None;
    }
    let mut kernel = kernel.clone();
    let ops = &mut kernel.body.blocks[Body::ENTRY.index()].ops;
    let mut gone = vec![false; ops.len()];
    for Butterfly { combine, value, parts } in found {
        parts.iter().for_each(|&part| gone[part] = true);
        let Some(&last) = parts.last() else { continue };
        gone[last] = false;
        ops[last].kind = OpKind::WorkgroupReduce(combine);
        ops[last].operands = vec![value];
    }
    let mut gone = gone.into_iter();
    ops.retain(|_| !gone.next().unwrap_or(false));
    Some(kernel)
}

/// Ops of the entry block that are a reduction of `value` together, the last one of which has its result.
struct Butterfly {
    combine: Combine,
    value: ValueId,
    parts: Vec<usize>,
}

fn butterflies(kernel: &Kernel) -> Vec<Butterfly> {
    let body = &kernel.body;
    let mut uses = vec![0u32; body.values.len()];
    body.ops().for_each(|op| op.each_read(body, |value| uses[value.index()] += 1));
    // Who leaves takes no part in what comes later.
    let ops = &body.block(Body::ENTRY).ops;
    let stay = ops.iter().position(|op| op.kind == OpKind::Exit).unwrap_or(ops.len());
    let mut found = Vec::new();
    let mut at = 0;
    while at < stay {
        match butterfly(kernel, &uses, &ops[..stay], at) {
            Some(butterfly) => {
                at = butterfly.parts.last().map_or(at, |&last| last) + 1;
                found.push(butterfly);
            }
            None => at += 1,
        }
    }
    found
}

/// The butterfly that begins with op `first`.
fn butterfly(kernel: &Kernel, uses: &[u32], ops: &[Op], first: usize) -> Option<Butterfly> {
    let body = &kernel.body;
    let value = *ops[first].operands.first()?;
    let mut held = value;
    let mut found = None;
    let mut parts = Vec::new();
    let mut distance = kernel.subgroup_size / 2;
    let mut at = first;
    while distance > 0 {
        let shuffle = &ops[at];
        let [from, by, width] = shuffle.operands[..] else { return None };
        let [other, valid] = shuffle.results[..] else { return None };
        let fits = shuffle.kind == OpKind::SubgroupShuffle(ShuffleMode::Xor)
            && from == held
            && body.constant(by) == Some(u64::from(distance))
            && body.constant(width) == Some(u64::from(kernel.subgroup_size))
            && matches!(body.ty(from), Type::Scalar(_))
            && uses[other.index()] == 1
            && uses[valid.index()] == 0;
        if !fits {
            return None;
        }
        // Nearly always the next one.
        let made = at + 1 + ops[at + 1..].iter().take(8).position(|op| op.operands.contains(&other))?;
        let OpKind::Binary(binary) = ops[made].kind else { return None };
        let combine = combine_of(binary)?;
        let both = ops[made].operands[..] == [held, other] || ops[made].operands[..] == [other, held];
        if !both || found.is_some_and(|known| known != combine) || held != value && uses[held.index()] != 2 {
            return None;
        }
        found = Some(combine);
        parts.extend([at, made]);
        held = *ops[made].results.first()?;
        distance /= 2;
        if distance > 0 {
            at = made + 1 + ops[made + 1..].iter().take(8).position(|op| op.operands.contains(&held))?;
        }
    }
    Some(Butterfly { combine: found?, value, parts })
}

fn combine_of(binary: Binary) -> Option<Combine> {
    use Combine::{
        AddF, AddI, AndI, MaxNumF, MaxSI, MaxUI, MaximumF, MinNumF, MinSI, MinUI, MinimumF, MulF, MulI, OrI, XorI,
    };
    let all =
        [AddI, AddF, MulI, MulF, MinSI, MaxSI, MinUI, MaxUI, AndI, OrI, XorI, MinimumF, MaximumF, MinNumF, MaxNumF];
    all.into_iter().find(|combine| combine.binary() == binary)
}
