//! Fewer, larger operations with the same meaning.
//!
//! - Products that are added become one product; a bias and an activation go into the product that feeds them.
//! - Elementwise operations of one shape become one, unless something between them needs the first to be done.

use super::expr::{Expr, Instr};
use super::mid::{Mid, MidId, MidNode, MidOp};
use crate::graph::{Binary, Unary};
use lanes_core::DType;
use lanes_core::plan::Activation;
use std::sync::Arc;

/// Operands and results of one fused operation, at most: each may be a binding of its kernel.
const BINDINGS_MOST: usize = 16;
/// Steps of one fused operation, at most: they bound what its kernel takes to compile, and how long the search is for what
/// may join it.
const STEPS_MOST: usize = 128;
/// Nodes from the first to the last of one fused operation, at most: all between are searched.
const SPAN_MOST: usize = 1024;

/// Fuses what can be; the values in `kept` stay.
pub fn fuse(mid: &mut Mid, kept: &[MidId]) {
    mid.sweep(kept);
    let mut is_kept = vec![false; mid.values.len()];
    kept.iter().for_each(|id| is_kept[id.0] = true);
    products(mid, &is_kept);
    lift(mid);
    is_kept.resize(mid.values.len(), false);
    elementwise(mid, &is_kept);
    activations(mid, &is_kept);
    mid.sweep(kept);
}

/// The node that makes `id`, if nothing else needs `id`.
fn lone(id: MidId, uses: &[usize], producers: &[Option<usize>], kept: &[bool]) -> Option<usize> {
    (uses[id.0] == 1 && !kept[id.0]).then(|| producers[id.0]).flatten()
}

fn is_sum(op: &MidOp) -> bool {
    matches!(op, MidOp::Map(expr) if expr.instrs == [(Instr::Input(0), DType::F32), (Instr::Input(1), DType::F32), (Instr::Binary(Binary::Add, 0, 1), DType::F32)])
}

fn added(a: Option<Arc<[f32]>>, b: Option<Arc<[f32]>>) -> Option<Arc<[f32]>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.iter().zip(b.iter()).map(|(a, b)| a + b).collect()),
        (a, b) => a.or(b),
    }
}

/// A known value that differs along `axis` of `shape` only, as `[shape[axis]]`.
fn along(mid: &Mid, id: MidId, shape: &[usize], axis: usize) -> Option<Arc<[f32]>> {
    let tensor = mid.constants.get(&id).filter(|tensor| tensor.dtype() == DType::F32)?;
    let values = tensor.values::<f32>();
    let own = tensor.shape();
    let n = shape[axis];
    if values.len() == 1 && own.len() <= shape.len() {
        return Some(vec![values[0]; n].into());
    }
    let at = (axis + own.len()).checked_sub(shape.len())?;
    (values.len() == n && own.get(at) == Some(&n)).then(|| Arc::from(&values[..]))
}

/// Adds of products and of biases.
fn products(mid: &mut Mid, kept: &[bool]) {
    let (uses, mut producers) = (mid.uses(), mid.producers());
    let mut gone = vec![false; mid.nodes.len()];
    for at in 0..mid.nodes.len() {
        if !is_sum(&mid.nodes[at].op) {
            continue;
        }
        let (inputs, out) = (mid.nodes[at].inputs.clone(), mid.nodes[at].outputs[0]);
        let makers: Vec<Option<usize>> =
            inputs.iter().map(|&id| lone(id, &uses, &producers, kept).filter(|&n| !gone[n])).collect();
        let shape = mid.shape(out).to_vec();
        let same = |n: usize| mid.shape(inputs[n]) == shape;
        let merged = match makers[..] {
            [Some(a), Some(b)] if same(0) && same(1) => match (&mid.nodes[a].op, &mid.nodes[b].op) {
                (
                    MidOp::Linear { weights: wa, bias: ba, activation: Activation::None },
                    MidOp::Linear { weights: wb, bias: bb, activation: Activation::None },
                ) => {
                    let op = MidOp::Linear {
                        weights: wa.iter().chain(wb).cloned().collect(),
                        bias: added(ba.clone(), bb.clone()),
                        activation: Activation::None,
                    };
                    let inputs = [&mid.nodes[a].inputs[..], &mid.nodes[b].inputs].concat();
                    Some((op, inputs, vec![a, b]))
                }
                _ => None,
            },
            _ => None,
        };
        let merged = merged.or_else(|| {
            (0..2).find_map(|n| {
                let maker = makers[n].filter(|_| same(n))?;
                let mut op = mid.nodes[maker].op.clone();
                match &mut op {
                    MidOp::Linear { bias, activation: Activation::None, .. } => {
                        let more = along(mid, inputs[1 - n], &shape, shape.len().checked_sub(1)?)?;
                        *bias = added(bias.take(), Some(more));
                    }
                    MidOp::Conv { bias, activation: Activation::None, .. } => {
                        let more = along(mid, inputs[1 - n], &shape, 1)?;
                        *bias = added(bias.take(), Some(more));
                    }
                    _ => return None,
                }
                Some((op, mid.nodes[maker].inputs.clone(), vec![maker]))
            })
        });
        if let Some((op, inputs, replaced)) = merged {
            replaced.into_iter().for_each(|n| gone[n] = true);
            let label = mid.nodes[at].label.clone();
            mid.nodes[at] = MidNode { label, op, inputs, outputs: vec![out] };
            producers[out.0] = Some(at);
        }
    }
    let mut at = 0;
    mid.nodes.retain(|_| {
        at += 1;
        !gone[at - 1]
    });
}

/// Elementwise operations on a reshaped value, done before it is reshaped: where it was made, others may be waiting for them.
fn lift(mid: &mut Mid) {
    let mut producers = mid.producers();
    let mut nodes = std::mem::take(&mut mid.nodes);
    let mut lifted = Vec::with_capacity(nodes.len());
    for at in 0..nodes.len() {
        let ([input], [out]) = (&nodes[at].inputs[..], &nodes[at].outputs[..]) else { continue };
        let (input, out) = (*input, *out);
        let Some(maker) = producers[input.0].filter(|_| matches!(nodes[at].op, MidOp::Map(_))) else { continue };
        let from = nodes[maker].inputs.first().copied();
        let Some(from) = from.filter(|_| matches!(nodes[maker].op, MidOp::Reshape)) else { continue };
        let made = producers[from.0].map(|at| &nodes[at].op);
        let is_work = matches!(made, Some(MidOp::Map(_) | MidOp::Linear { .. } | MidOp::Conv { .. }));
        if !is_work || mid.shape(input) != mid.shape(out) {
            continue;
        }
        let (name, dtype, shape) = (mid.values[out.0].name.clone(), mid.dtype(out), mid.shape(from).to_vec());
        let early = mid.value(name, dtype, shape);
        producers.push(Some(at));
        let node = &mut nodes[at];
        let reshape =
            MidNode { label: node.label.clone(), op: MidOp::Reshape, inputs: vec![early], outputs: vec![out] };
        (node.inputs, node.outputs) = (vec![from], vec![early]);
        lifted.push((at, reshape));
    }
    let mut lifted = lifted.into_iter().peekable();
    for (at, node) in nodes.into_iter().enumerate() {
        mid.nodes.push(node);
        mid.nodes.extend(lifted.next_if(|(after, _)| *after == at).map(|(_, reshape)| reshape));
    }
}

/// Elementwise operations that are all of what becomes of a product.
fn activations(mid: &mut Mid, kept: &[bool]) {
    let (uses, producers) = (mid.uses(), mid.producers());
    let mut gone = vec![false; mid.nodes.len()];
    for (at, done) in gone.iter_mut().enumerate() {
        let node = &mid.nodes[at];
        let MidOp::Map(expr) = &node.op else { continue };
        let ([input], [out]) = (&node.inputs[..], &node.outputs[..]) else { continue };
        let Some(found) = activation_of(expr) else { continue };
        let Some(maker) = lone(*input, &uses, &producers, kept) else { continue };
        if mid.shape(*input) != mid.shape(*out) {
            continue;
        }
        let out = *out;
        if let MidOp::Linear { activation, .. } | MidOp::Conv { activation, .. } = &mut mid.nodes[maker].op
            && *activation == Activation::None
        {
            *activation = found;
            mid.nodes[maker].outputs = vec![out];
            *done = true;
        }
    }
    let mut at = 0;
    mid.nodes.retain(|_| {
        at += 1;
        !gone[at - 1]
    });
}

fn activation_of(expr: &Expr) -> Option<Activation> {
    let steps: Vec<Instr> = expr.instrs.iter().map(|&(instr, _)| instr).collect();
    if expr.dtype(0) != DType::F32 || expr.results[..] != [steps.len() - 1] {
        return None;
    }
    Some(match steps[..] {
        [Instr::Input(0), Instr::Unary(Unary::Relu, 0)] => Activation::Relu,
        [Instr::Input(0), Instr::Unary(Unary::Sigmoid, 0)] => Activation::Sigmoid,
        [Instr::Input(0), Instr::Unary(Unary::Tanh, 0)] => Activation::Tanh,
        [
            Instr::Input(0),
            Instr::Unary(Unary::Sigmoid, 0),
            Instr::Binary(Binary::Mul, 0, 1) | Instr::Binary(Binary::Mul, 1, 0),
        ] => Activation::Silu,
        _ => return None,
    })
}

/// Groups of elementwise operations, each to be one.
fn elementwise(mid: &mut Mid, kept: &[bool]) {
    let producers = mid.producers();
    let mut group_of: Vec<Option<usize>> = vec![None; mid.nodes.len()];
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut seen = Seen { marks: vec![0; mid.nodes.len()], now: 0 };
    for at in 0..mid.nodes.len() {
        let MidOp::Map(_) = mid.nodes[at].op else { continue };
        let shape = mid.shape(mid.nodes[at].outputs[0]).to_vec();
        let makers = mid.nodes[at].inputs.iter().filter_map(|id| producers[id.0]);
        let mut candidates: Vec<usize> = makers.filter_map(|maker| group_of[maker]).collect();
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        candidates.dedup();
        // It joins every group that feeds it, youngest first: what the youngest waits for is done by then.
        let mut members = vec![at];
        for group in candidates {
            let first = groups[group][0];
            if mid.shape(mid.nodes[first].outputs[0]) != shape || at - first > SPAN_MOST {
                continue;
            }
            let mut joined = [&groups[group][..], &members].concat();
            joined.sort_unstable();
            if steps(mid, &joined) <= STEPS_MOST
                && bindings(mid, &joined) <= BINDINGS_MOST
                && closed(mid, &producers, &joined, &mut seen)
            {
                members = joined;
                groups[group].clear();
            }
        }
        members.iter().for_each(|&member| group_of[member] = Some(groups.len()));
        groups.push(members);
    }
    let mut outside = kept.to_vec();
    for (at, node) in mid.nodes.iter().enumerate() {
        for input in &node.inputs {
            let maker = producers[input.0];
            if maker.is_some_and(|maker| group_of[maker].is_none() || group_of[maker] != group_of[at]) {
                outside[input.0] = true;
            }
        }
    }
    let mut fused: Vec<Option<MidNode>> = mid.nodes.iter().cloned().map(Some).collect();
    for members in groups.iter().filter(|members| members.len() > 1) {
        let node = merged(mid, members, &outside);
        members.iter().for_each(|&member| fused[member] = None);
        fused[members[members.len() - 1]] = Some(node);
    }
    mid.nodes = in_order(fused.into_iter().flatten().collect(), mid.values.len());
}

/// Steps of a group, a step at least for each member.
fn steps(mid: &Mid, members: &[usize]) -> usize {
    let of = |&member: &usize| match &mid.nodes[member].op {
        MidOp::Map(expr) => (expr.instrs.len() - expr.inputs).max(1),
        _ => 1,
    };
    members.iter().map(of).sum()
}

/// Distinct operands of a group, and one result: most stay in registers.
fn bindings(mid: &Mid, members: &[usize]) -> usize {
    let nodes = || members.iter().map(|&n| &mid.nodes[n]);
    let mut made: Vec<MidId> = nodes().flat_map(|node| node.outputs.iter().copied()).collect();
    made.sort_unstable();
    let outside = |id: &MidId| made.binary_search(id).is_err();
    let mut read: Vec<MidId> = nodes().flat_map(|node| node.inputs.iter().copied()).filter(outside).collect();
    read.sort_unstable();
    read.dedup();
    read.len() + 1
}

/// Nodes that a search has met, without a list of its own for each search.
struct Seen {
    marks: Vec<usize>,
    now: usize,
}

/// Whether `members`, in order, can be done at once: nothing that one of them waits for waits for another.
fn closed(mid: &Mid, producers: &[Option<usize>], members: &[usize], seen: &mut Seen) -> bool {
    let makers = |at: usize| mid.nodes[at].inputs.iter().filter_map(|id| producers[id.0]);
    let first = members[0];
    // Marks of this search: a member, and a node that others wait for.
    let (member, met) = (seen.now + 1, seen.now + 2);
    seen.now = met;
    members.iter().for_each(|&at| seen.marks[at] = member);
    let outside = |&maker: &usize| members.binary_search(&maker).is_err();
    let mut stack: Vec<usize> = members.iter().flat_map(|&at| makers(at).filter(outside)).collect();
    while let Some(at) = stack.pop() {
        // Nodes are in order: what comes before the first member cannot need it.
        if at < first || seen.marks[at] == met {
            continue;
        }
        if seen.marks[at] == member {
            return false;
        }
        seen.marks[at] = met;
        stack.extend(makers(at));
    }
    true
}

fn merged(mid: &Mid, members: &[usize], outside: &[bool]) -> MidNode {
    let (mut inputs, mut outputs): (Vec<MidId>, Vec<MidId>) = (Vec::new(), Vec::new());
    let made: Vec<MidId> = members.iter().flat_map(|&n| mid.nodes[n].outputs.iter().copied()).collect();
    for &n in members {
        for &id in &mid.nodes[n].inputs {
            if !made.contains(&id) && !inputs.contains(&id) {
                inputs.push(id);
            }
        }
    }
    let mut expr = Expr::of(&inputs.iter().map(|&id| mid.dtype(id)).collect::<Vec<_>>());
    let mut registers: Vec<(MidId, usize)> = inputs.iter().enumerate().map(|(n, &id)| (id, n)).collect();
    for &n in members {
        let node = &mid.nodes[n];
        let MidOp::Map(part) = &node.op else { continue };
        let at = |id: &MidId| registers.iter().rev().find(|(known, _)| known == id).map_or(0, |&(_, reg)| reg);
        let operands: Vec<usize> = node.inputs.iter().map(at).collect();
        let results = expr.inline(part, &operands);
        registers.extend(node.outputs.iter().copied().zip(results));
    }
    for &(id, reg) in &registers[inputs.len()..] {
        if outside[id.0] {
            outputs.push(id);
            expr.results.push(reg);
        }
    }
    let last = members[members.len() - 1];
    MidNode { label: mid.nodes[last].label.clone(), op: MidOp::Map(expr), inputs, outputs }
}

/// The nodes again in an order where operands come first; the given order where that leaves a choice.
fn in_order(nodes: Vec<MidNode>, values: usize) -> Vec<MidNode> {
    let mut maker = vec![None; values];
    for (at, node) in nodes.iter().enumerate() {
        node.outputs.iter().for_each(|out| maker[out.0] = Some(at));
    }
    let mut done = vec![false; nodes.len()];
    let mut order = Vec::with_capacity(nodes.len());
    for root in 0..nodes.len() {
        // With how many operands of each are known to be done.
        let mut stack = vec![(root, 0)];
        while let Some((at, known)) = stack.last_mut() {
            let rest = if done[*at] { &[] } else { &nodes[*at].inputs[*known..] };
            let waiting = rest.iter().position(|id| maker[id.0].is_some_and(|n| !done[n]));
            match waiting.and_then(|skipped| Some((skipped, maker[rest[skipped].0]?))) {
                Some((skipped, first)) => {
                    *known += skipped;
                    stack.push((first, 0));
                }
                None => {
                    if !std::mem::replace(&mut done[*at], true) {
                        order.push(*at);
                    }
                    stack.pop();
                }
            }
        }
    }
    let mut nodes: Vec<Option<MidNode>> = nodes.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| nodes[at].take()).collect()
}
