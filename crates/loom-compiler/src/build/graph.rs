//! Functions and kernels of labelled blocks (`cfg.br`, `cfg.cond_br`).
//!
//! ```text
//! ^entry: .. cfg.br ^a(%x: T)          .. while (state != end) { switch state { case a: ..; state = b  case b: .. } }
//! ```
//!
//! - Any graph of blocks becomes one loop over the number of the block that is next, so that nothing is asked of its shape.
//! - What one block gives another, by name or as an argument, the loop carries: scalars and vectors. The first block runs in front
//!   of the loop, so what it makes is there for all, unless it is branched to.

use std::collections::{BTreeSet, HashMap};

use crate::diag::{Built, refuse};
use crate::ir::{BlockId, Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Flags, IntPredicate, OpKind};
use crate::reader::Reader;
use crate::syntax::{self, Region};
use crate::types::{ScalarType, Type};

use super::Builder;
use super::control::Terminator;
use super::names::Binding;

/// What the loop carries from block to block.
struct Slot {
    ty: Type,
    /// In the block that runs one turn.
    value: ValueId,
}

/// A block of the text.
struct Node<'m> {
    block: &'m syntax::Block,
    label: Option<&'m str>,
    /// Its arguments, as slots.
    arguments: Vec<usize>,
}

/// How a block is left.
struct Left {
    next: ValueId,
    changed: HashMap<usize, ValueId>,
}

struct Graph<'m> {
    nodes: Vec<Node<'m>>,
    slots: Vec<Slot>,
    returned: Option<Vec<usize>>,
}

/// The most ops times tokens of a region of labelled blocks: each name is looked for in every block. Some seconds.
const MAX_LABELLED: u64 = 1 << 28;

const INDEX: Type = Type::Scalar(ScalarType::Index);

impl<'m> Builder<'m> {
    /// The ops of a region of several blocks, and what it returns.
    pub(super) fn graph_ops(&mut self, region: &'m Region, ends: Terminator) -> Built<Vec<Binding>> {
        let close = self.module.tokens[region.close as usize].span;
        let ops: u64 = region.blocks.iter().map(|block| block.ops.len() as u64).sum();
        let first = region.blocks.iter().find_map(|block| block.ops.first()).map_or(region.close, |op| op.name);
        let tokens = u64::from(region.close - first);
        if ops * tokens > MAX_LABELLED {
            let message = format!(
                "labelled blocks of {ops} ops in {tokens} tokens are too long to be one loop; the product may be {MAX_LABELLED}"
            );
            return refuse(close, message);
        }
        let mut graph = Graph { nodes: Vec::new(), slots: Vec::new(), returned: None };
        for block in &region.blocks {
            let label = block.label.map(|token| self.module.text(token));
            if let Some(first) = label.filter(|label| graph.nodes.iter().any(|node| node.label == Some(*label))) {
                return refuse(close, format!("`{first}` labels two blocks of this region"));
            }
            if block.ops.is_empty() {
                return refuse(close, "a block ends in cfg.br, cfg.cond_br or the return of its function");
            }
            graph.nodes.push(Node { block, label, arguments: Vec::new() });
        }
        for end in graph.nodes.iter().filter_map(|node| node.block.ops.last()) {
            let labels = self.labels(end);
            let known = |label: &&str| graph.nodes.iter().any(|node| node.label == Some(*label));
            if let Some((label, span)) = labels.into_iter().find(|(label, _)| !known(label)) {
                return refuse(span, format!("`{label}` is no block of this region"));
            }
        }
        let order = self.reached(&graph);
        let targeted: BTreeSet<usize> = order.iter().flat_map(|at| self.targets(&graph, *at)).collect();
        // What the first block defines is seen by all, if nothing comes back to it.
        let inline = !targeted.contains(&0);
        let mut first = None;
        if inline {
            self.ops_before_end(graph.nodes[0].block);
            first = graph.nodes[0].block.ops.last();
        }
        let rest: Vec<usize> = order.into_iter().filter(|at| !(inline && *at == 0)).collect();
        if rest.is_empty() {
            return match first {
                Some(end) => self.returned_by(end, ends),
                None => refuse(close, "this region has no block"),
            };
        }
        let done = self.index(graph.nodes.len() as i64);
        let state = self.new_value(INDEX);
        let (tail, built) = self.in_block(vec![state], |builder| {
            let mark = builder.names.enter();
            let built = builder.turn(&mut graph, &rest, done, ends);
            builder.names.leave(mark);
            built
        });
        let arms = built?;
        // The loop goes on with what the first block gives, or with the first block.
        let mut inits = vec![self.index(0)];
        for slot in 0..graph.slots.len() {
            let ty = graph.slots[slot].ty.clone();
            inits.push(self.constant(ty, 0));
        }
        if let Some(end) = first {
            let left = self.leave_block(&mut graph, end, ends, done, true)?;
            inits[0] = left.next;
            for (slot, value) in left.changed {
                inits[slot + 1] = value;
            }
        }
        let Graph { slots, returned, .. } = graph;
        self.finish_turn(tail, state, &slots, arms);
        let types: Vec<Type> = std::iter::once(INDEX).chain(slots.iter().map(|slot| slot.ty.clone())).collect();
        let mut fresh = || -> Vec<ValueId> { types.iter().map(|ty| self.new_value(ty.clone())).collect() };
        let (head_arguments, results) = (fresh(), fresh());
        let forwarded = head_arguments.clone();
        let (head, built) = self.in_block(head_arguments, |builder| {
            let more = OpKind::CompareI(IntPredicate::Ne);
            let more = builder.emit(more, &[forwarded[0], done], Type::Scalar(ScalarType::I1));
            let operands = [&[more], &forwarded[..]].concat();
            builder.push(OpKind::Condition, &operands, Vec::new(), Vec::new());
            Ok(())
        });
        built?;
        self.push(OpKind::While, &inits, results.clone(), vec![head, tail]);
        let returned = returned.unwrap_or_default();
        Ok(returned.into_iter().map(|slot| Binding::Value(results[slot + 1])).collect())
    }

    /// The blocks that can be reached, each behind one that leads to it.
    fn reached(&self, graph: &Graph<'m>) -> Vec<usize> {
        let mut seen = vec![false; graph.nodes.len()];
        let mut post = Vec::new();
        let mut stack = vec![(0, 0)];
        seen[0] = true;
        while let Some((at, next)) = stack.pop() {
            let targets = self.targets(graph, at);
            match targets.get(next) {
                Some(&target) => {
                    stack.push((at, next + 1));
                    if !std::mem::replace(&mut seen[target], true) {
                        stack.push((target, 0));
                    }
                }
                None => post.push(at),
            }
        }
        post.reverse();
        post
    }

    /// The labels that `cfg.br` or `cfg.cond_br` names.
    fn labels(&self, end: &syntax::Op) -> Vec<(&'m str, Span)> {
        let module = self.module;
        if !module.op_name(end).starts_with("cfg.") {
            return Vec::new();
        }
        let tokens = (end.rest.start..end.rest.end).map(|at| (module.text(at), module.tokens[at as usize]));
        tokens.filter(|(_, token)| token.kind == Kind::Label).map(|(text, token)| (text, token.span)).collect()
    }

    /// The blocks that block `at` may go on with.
    fn targets(&self, graph: &Graph<'m>, at: usize) -> Vec<usize> {
        let labels = graph.nodes[at].block.ops.last().map_or_else(Vec::new, |end| self.labels(end));
        let node = |label: &str| graph.nodes.iter().position(|node| node.label == Some(label));
        labels.into_iter().filter_map(|(label, _)| node(label)).collect()
    }

    /// Builds all ops of a block but its last.
    fn ops_before_end(&mut self, block: &'m syntax::Block) {
        for op in &block.ops[..block.ops.len() - 1] {
            self.op(op);
        }
    }

    /// One turn of the loop: a switch over the blocks. Gives each block's IR block and how it is left.
    fn turn(
        &mut self,
        graph: &mut Graph<'m>,
        order: &[usize],
        done: ValueId,
        ends: Terminator,
    ) -> Built<Vec<(usize, BlockId, Left)>> {
        for at in order {
            let node = &graph.nodes[*at];
            let (Some(label), Some(first)) = (node.block.label, node.block.ops.first()) else { continue };
            // The tokens of the head stand in front of the first op's.
            let mut reader = self.reader(first);
            reader.at = label as usize + 1;
            let mut arguments = Vec::new();
            if reader.accept(Kind::ParenOpen) && !reader.accept(Kind::ParenClose) {
                loop {
                    let name = reader.value_name()?;
                    reader.expect(Kind::Colon)?;
                    let ty = self.plain_type(&mut reader)?;
                    arguments.push(self.slot(graph, Some(name), ty)?);
                    if !reader.accept(Kind::Comma) {
                        reader.expect(Kind::ParenClose)?;
                        break;
                    }
                }
            }
            graph.nodes[*at].arguments = arguments;
        }
        let mut arms = Vec::new();
        for at in order {
            let (block, built) = self.in_block(Vec::new(), |builder| {
                let mark = builder.names.enter();
                let built = builder.arm(graph, *at, done, ends);
                builder.names.leave(mark);
                builder.flags = Flags::default();
                builder.push(OpKind::Yield, &[], Vec::new(), Vec::new());
                built
            });
            let (left, given) = built?;
            let mut left = left;
            // What it defined for others.
            for (name, value) in given {
                let ty = self.ty(value).clone();
                let slot = self.slot(graph, Some(name), ty)?;
                left.changed.insert(slot, value);
            }
            arms.push((*at, block, left));
        }
        Ok(arms)
    }

    /// A new slot, whose name is in scope for the blocks that follow.
    fn slot(&mut self, graph: &mut Graph<'m>, name: Option<(&'m str, Span)>, ty: Type) -> Built<usize> {
        if !matches!(ty, Type::Scalar(_) | Type::Vector(_)) {
            let span = name.map_or(self.span, |(_, span)| span);
            return refuse(span, format!("what passes from block to block is a scalar or a vector, found {ty}"));
        }
        let value = self.new_value(ty.clone());
        if let Some((name, span)) = name {
            self.define(name, span, Binding::Value(value));
        }
        graph.slots.push(Slot { ty, value });
        Ok(graph.slots.len() - 1)
    }

    /// The ops of a block; how it is left, and what it defines that other blocks name.
    #[allow(clippy::type_complexity, reason = "two answers of one reading, taken apart at once")]
    fn arm(
        &mut self,
        graph: &mut Graph<'m>,
        at: usize,
        done: ValueId,
        ends: Terminator,
    ) -> Built<(Left, Vec<((&'m str, Span), ValueId)>)> {
        let block = graph.nodes[at].block;
        self.ops_before_end(block);
        let Some(end) = block.ops.last() else {
            return refuse(self.span, "a block ends in cfg.br, cfg.cond_br or the return of its function");
        };
        let left = self.leave_block(graph, end, ends, done, false)?;
        let others: Vec<usize> = (0..graph.nodes.len()).filter(|other| *other != at).collect();
        let mut given = Vec::new();
        for token in block.ops.iter().flat_map(|op| &op.results) {
            let text = self.module.text(*token);
            let named = |node: &Node<'m>| {
                let (first, last) = (node.block.ops.first()?, node.block.ops.last()?);
                (first.name..last.rest.end).find(|token| {
                    self.module.tokens[*token as usize].kind == Kind::Value && self.module.text(*token) == text
                })
            };
            if !others.iter().any(|other| named(&graph.nodes[*other]).is_some()) {
                continue;
            }
            if let Some(Binding::Value(value)) = self.names.get(&text[1..]) {
                given.push(((&text[1..], self.module.tokens[*token as usize].span), *value));
            }
        }
        Ok((left, given))
    }

    /// What the last op of a block does. In front of the loop nothing is carried yet.
    fn leave_block(
        &mut self,
        graph: &mut Graph<'m>,
        end: &'m syntax::Op,
        ends: Terminator,
        done: ValueId,
        in_front: bool,
    ) -> Built<Left> {
        let mut reader = self.reader(end);
        self.span = reader.span();
        match reader.name() {
            "cfg.br" => {
                let (target, values) = self.branch_target(graph, &mut reader)?;
                reader.end()?;
                let arguments = graph.nodes[target].arguments.clone();
                let next = self.index(target as i64);
                Ok(Left { next, changed: arguments.into_iter().zip(values).collect() })
            }
            "cfg.cond_br" => {
                let span = reader.here();
                let condition = self.operand(&mut reader)?;
                self.require(&reader, condition, span, ScalarType::I1)?;
                reader.expect(Kind::Comma)?;
                let taken = self.branch_target(graph, &mut reader)?;
                reader.expect(Kind::Comma)?;
                let other = self.branch_target(graph, &mut reader)?;
                if reader.accept(Kind::Colon) {
                    self.typed(&mut reader, condition)?;
                }
                reader.end()?;
                let [a, b] = [taken.0, other.0].map(|target| self.index(target as i64));
                let next = self.emit(OpKind::Select, &[condition, a, b], INDEX);
                let mut changed: HashMap<usize, [Option<ValueId>; 2]> = HashMap::new();
                for (way, (target, values)) in [taken, other].into_iter().enumerate() {
                    for (slot, value) in graph.nodes[target].arguments.iter().zip(values) {
                        changed.entry(*slot).or_default()[way] = Some(value);
                    }
                }
                let mut chosen = HashMap::new();
                for (slot, ways) in changed {
                    let Slot { ty, value, .. } = &graph.slots[slot];
                    // What goes another way leaves the arguments of this one as they were.
                    let old = if in_front { self.constant(ty.clone(), 0) } else { *value };
                    let [a, b] = ways.map(|way| way.unwrap_or(old));
                    chosen.insert(slot, self.emit(OpKind::Select, &[condition, a, b], ty.clone()));
                }
                Ok(Left { next, changed: chosen })
            }
            _ => {
                let given = self.returned_by(end, ends)?;
                let mut values = Vec::new();
                for given in given {
                    match given {
                        Binding::Value(value) => values.push(value),
                        _ => return refuse(self.span, "encodings are not returned from one of several blocks"),
                    }
                }
                let slots = match graph.returned.clone() {
                    Some(slots) => slots,
                    None => {
                        let mut slots = Vec::new();
                        for value in &values {
                            let ty = self.ty(*value).clone();
                            slots.push(self.slot(graph, None, ty)?);
                        }
                        graph.returned = Some(slots.clone());
                        slots
                    }
                };
                let same = slots.len() == values.len()
                    && slots.iter().zip(&values).all(|(slot, value)| graph.slots[*slot].ty == *self.ty(*value));
                if !same {
                    return refuse(self.span, "the blocks of this region return different types");
                }
                Ok(Left { next: done, changed: slots.into_iter().zip(values).collect() })
            }
        }
    }

    /// `^label[(%a: T, ..)]` or `^label[(%a, .. : T, ..)]`.
    fn branch_target(&mut self, graph: &Graph<'m>, reader: &mut Reader<'m>) -> Built<(usize, Vec<ValueId>)> {
        let token = reader.expect(Kind::Label)?;
        let label = reader.text(token);
        // All are known by now.
        let Some(target) = graph.nodes.iter().position(|node| node.label == Some(label)) else {
            return refuse(token.span, format!("`{label}` is no block of this region"));
        };
        let mut values = Vec::new();
        if reader.accept(Kind::ParenOpen) && !reader.accept(Kind::ParenClose) {
            loop {
                let group = values.len();
                values.push(self.operand(reader)?);
                while reader.accept(Kind::Comma) {
                    values.push(self.operand(reader)?);
                }
                reader.expect(Kind::Colon)?;
                self.all_typed(reader, values[group..].to_vec())?;
                if !reader.accept(Kind::Comma) {
                    reader.expect(Kind::ParenClose)?;
                    break;
                }
            }
        }
        let taken: Vec<Type> = graph.nodes[target].arguments.iter().map(|slot| graph.slots[*slot].ty.clone()).collect();
        let fits = taken.len() == values.len() && taken.iter().zip(&values).all(|(ty, value)| ty == self.ty(*value));
        if !fits {
            let found: Vec<String> = values.iter().map(|value| self.ty(*value).to_string()).collect();
            let taken: Vec<String> = taken.iter().map(Type::to_string).collect();
            let message = format!("`{label}` takes ({}), found ({})", taken.join(", "), found.join(", "));
            return refuse(token.span, message);
        }
        Ok((target, values))
    }

    /// Gives the switch of a turn to its block, now that everything that is carried is known.
    fn finish_turn(&mut self, tail: BlockId, state: ValueId, slots: &[Slot], arms: Vec<(usize, BlockId, Left)>) {
        let carried: Vec<ValueId> = slots.iter().map(|slot| slot.value).collect();
        for value in &carried {
            self.home[value.index()] = tail;
        }
        self.body.blocks[tail.index()].arguments.extend(&carried);
        let mut arms = arms;
        arms.sort_by_key(|(at, ..)| *at);
        let mut keys: Vec<i64> = Vec::with_capacity(arms.len());
        let mut blocks = Vec::with_capacity(arms.len());
        for (at, block, left) in arms {
            let values = carried.iter().enumerate().map(|(slot, old)| left.changed.get(&slot).copied().unwrap_or(*old));
            let operands: Vec<ValueId> = std::iter::once(left.next).chain(values).collect();
            if let Some(end) = self.body.blocks[block.index()].ops.last_mut() {
                end.operands = operands;
            }
            keys.push(at as i64);
            blocks.push(block);
        }
        // The last block stands for every other number too.
        keys.pop();
        let types = std::iter::once(INDEX).chain(slots.iter().map(|slot| slot.ty.clone()));
        let results: Vec<ValueId> = types.map(|ty| self.new_value(ty)).collect();
        for result in &results {
            self.home[result.index()] = tail;
        }
        let outer = std::mem::replace(&mut self.block, tail);
        self.push(OpKind::Switch(keys.into_boxed_slice()), &[state], results.clone(), blocks);
        self.push(OpKind::Yield, &results, Vec::new(), Vec::new());
        self.block = outer;
    }
}
