//! Functions and kernels of labelled blocks (`cfg.br`, `cfg.cond_br`).
//!
//! ```text
//! ^entry: .. cfg.br ^a(%x: T)          .. while (state != end) { switch state { case a: ..; state = b  case b: .. } }
//! ```
//!
//! - Any graph of blocks becomes one loop over the number of the block that is next, so that nothing is asked of its shape.
//! - What one block gives another, by name or as an argument, the loop carries. The first block runs in front
//!   of the loop, so what it makes is there for all, unless it is branched to.
//! - Buffers and views are carried, too. A block that takes a view takes a dense one as long as it is given nothing else; if
//!   it is, the blocks are built anew and strides are carried beside the views that blocks take.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::diag::{Built, Refusal, refuse};
use crate::ir::{BlockId, Span, ValueId};
use crate::lex::Kind;
use crate::module::Module;
use crate::ops::{Flags, IntPredicate, OpKind, Space};
use crate::reader::Reader;
use crate::syntax::{self, Region};
use crate::types::{Dim, ScalarType, Type};

use super::Builder;
use super::control::Terminator;
use super::names::{Binding, Layout};
use super::types::same;

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
    /// The block of each label.
    labels: HashMap<&'m str, usize>,
    /// The block that each value's name stands in, if only one has it.
    named: HashMap<&'m str, Option<usize>>,
    slots: Vec<Slot>,
    returned: Option<Vec<usize>>,
    /// The slots of the strides of what is in a slot: of a view that blocks give with strides of their own.
    strides: HashMap<usize, Vec<usize>>,
    /// The slots of what blocks define that others name.
    shared: HashMap<ValueId, usize>,
    /// Whether each view that a block takes has slots for its strides.
    carries: bool,
    /// Whether a view was given with strides that its slot does not have.
    changed: bool,
    /// The block that the loop stands in, and the one that runs a turn.
    outer: BlockId,
    tail: BlockId,
}

impl<'m> Graph<'m> {
    fn new(module: &'m Module, nodes: Vec<Node<'m>>, outer: BlockId, carries: bool) -> Self {
        let labels = nodes.iter().enumerate().filter_map(|(at, node)| Some((node.label?, at))).collect();
        let mut named = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            let (Some(first), Some(last)) = (node.block.ops.first(), node.block.ops.last()) else { continue };
            for token in first.name..last.rest.end {
                if module.tokens[token as usize].kind == Kind::Value {
                    let only = named.entry(module.text(token)).or_insert(Some(at));
                    *only = only.filter(|only| *only == at);
                }
            }
        }
        Self {
            nodes,
            labels,
            named,
            slots: Vec::new(),
            returned: None,
            strides: HashMap::new(),
            shared: HashMap::new(),
            carries,
            changed: false,
            outer,
            tail: outer,
        }
    }
}

/// The most blocks times tokens of a region of labelled blocks: each block hands on all that any of them names. Some seconds.
const MAX_LABELLED: u64 = 1 << 28;

const INDEX: Type = Type::Scalar(ScalarType::Index);

impl<'m> Builder<'m> {
    /// The ops of a region of several blocks, and what it returns.
    pub(super) fn graph_ops(&mut self, region: &'m Region, ends: Terminator) -> Built<Vec<Binding>> {
        let close = self.module.tokens[region.close as usize].span;
        let blocks = region.blocks.len() as u64;
        let first = region.blocks.iter().find_map(|block| block.ops.first()).map_or(region.close, |op| op.name);
        let tokens = u64::from(region.close - first);
        if blocks * tokens > MAX_LABELLED {
            let message = format!(
                "{blocks} labelled blocks of {tokens} tokens are too long to be one loop; the product may be {MAX_LABELLED}"
            );
            return refuse(close, message);
        }
        let mut nodes: Vec<Node<'m>> = Vec::new();
        let mut known = HashSet::new();
        for block in &region.blocks {
            let label = block.label.map(|token| self.module.text(token));
            if let Some(first) = label.filter(|label| !known.insert(*label)) {
                return refuse(close, format!("`{first}` labels two blocks of this region"));
            }
            if block.ops.is_empty() {
                return refuse(close, "a block ends in cfg.br, cfg.cond_br or the return of its function");
            }
            nodes.push(Node { block, label, arguments: Vec::new() });
        }
        for end in nodes.iter().filter_map(|node| node.block.ops.last()) {
            let labels = self.labels(end);
            if let Some((label, span)) = labels.into_iter().find(|(label, _)| !known.contains(label)) {
                return refuse(span, format!("`{label}` is no block of this region"));
            }
        }
        let graph = Graph::new(self.module, nodes, self.block, false);
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
        let attempt = self.attempt();
        if let Some(returned) = self.looped(graph, first, &rest, ends)? {
            return Ok(returned);
        }
        if self.failed(&attempt) {
            return Err(Refusal::Reported);
        }
        self.take_back(attempt);
        let nodes = region.blocks.iter().map(|block| Node {
            block,
            label: block.label.map(|token| self.module.text(token)),
            arguments: Vec::new(),
        });
        let graph = Graph::new(self.module, nodes.collect(), self.block, true);
        match self.looped(graph, first, &rest, ends)? {
            Some(returned) => Ok(returned),
            None => refuse(close, "a view that is shared by name has strides that its blocks do not share"),
        }
    }

    /// The loop over the blocks `rest`, and what it returns; nothing if a view's strides have to be carried for that.
    fn looped(
        &mut self,
        mut graph: Graph<'m>,
        first: Option<&'m syntax::Op>,
        rest: &[usize],
        ends: Terminator,
    ) -> Built<Option<Vec<Binding>>> {
        let done = self.index(graph.nodes.len() as i64);
        let state = self.new_value(INDEX);
        let (tail, built) = self.in_block(vec![state], |builder| {
            let mark = builder.names.enter();
            graph.tail = builder.block;
            let built = builder.turn(&mut graph, rest, done, ends);
            builder.names.leave(mark);
            built
        });
        let arms = built?;
        let mut front = None;
        if let Some(end) = first {
            front = Some(self.leave_block(&mut graph, end, ends, done, true)?);
        }
        if graph.changed {
            return Ok(None);
        }
        // The loop goes on with what the first block gives, or with the first block.
        let mut inits = vec![self.index(0)];
        for slot in 0..graph.slots.len() {
            let given = arms.iter().filter_map(|(_, _, left)| left.changed.get(&slot).copied()).collect();
            let init = match front.as_ref().and_then(|left| left.changed.get(&slot)) {
                Some(value) => *value,
                None => self.nothing(&graph.slots[slot], given),
            };
            inits.push(init);
        }
        if let Some(left) = front {
            inits[0] = left.next;
        }
        let Graph { slots, returned, .. } = graph;
        self.finish_turn(tail, state, &slots, arms);
        let (head_arguments, results) = (self.fresh(&slots), self.fresh(&slots));
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
        Ok(Some(returned.into_iter().map(|slot| Binding::Value(results[slot + 1])).collect()))
    }

    /// New values for the number of the next block and for what is in the slots.
    fn fresh(&mut self, slots: &[Slot]) -> Vec<ValueId> {
        let next = self.new_value(INDEX);
        let values: Vec<ValueId> = slots.iter().map(|slot| self.new_value(slot.ty.clone())).collect();
        let now: HashMap<ValueId, ValueId> = slots.iter().map(|slot| slot.value).zip(values.iter().copied()).collect();
        for value in &values {
            self.body.values[value.index()].ty.map_dims(|dim| Dim::Value(now.get(&dim).copied().unwrap_or(dim)));
        }
        [&[next], &values[..]].concat()
    }

    /// What is in a slot that no block has given anything to yet. Nobody looks at it; of a buffer or view it is best one that
    /// the slot gets anyway, for then there is one less to tell apart.
    fn nothing(&mut self, slot: &Slot, mut given: Vec<ValueId>) -> ValueId {
        if !matches!(slot.ty, Type::Buffer | Type::View(_)) {
            return self.constant(slot.ty.clone(), 0);
        }
        let mut buffer = None;
        let mut seen = BTreeSet::new();
        while let Some(value) = given.pop() {
            if *self.ty(value) == Type::Buffer && self.is_visible(value) {
                buffer = Some(value);
                break;
            }
            let maker = self.body.ops().find(|op| op.results.contains(&value));
            if let (true, Some(op)) = (seen.insert(value), maker) {
                let from = op.operands.iter().copied();
                given.extend(from.filter(|value| matches!(self.ty(*value), Type::Buffer | Type::View(_))));
            }
        }
        let alloca = OpKind::Alloca { space: Space::Private, align: 8, bytes: 8 };
        let buffer = buffer.unwrap_or_else(|| self.emit_here(alloca, &[], Type::Buffer));
        let mut ty = slot.ty.clone();
        if ty == Type::Buffer {
            return buffer;
        }
        ty.map_dims(|dim| if self.is_visible(dim) { Dim::Value(dim) } else { Dim::Static(0) });
        let start = self.constant(Type::Scalar(ScalarType::Offset), 0);
        self.emit_here(OpKind::BufferView, &[buffer, start], ty)
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
        labels.into_iter().filter_map(|(label, _)| graph.labels.get(label).copied()).collect()
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
            for (name, binding) in given {
                let Binding::Value(value) = binding else {
                    self.define(name.0, name.1, binding);
                    continue;
                };
                let slot = self.shared_slot(graph, Some(name), value, &mut left.changed)?;
                left.changed.insert(slot, value);
            }
            arms.push((*at, block, left));
        }
        Ok(arms)
    }

    /// A new slot, whose name is in scope for the blocks that follow. A view without strides is dense, or gets slots for them.
    fn slot(&mut self, graph: &mut Graph<'m>, name: Option<(&'m str, Span)>, mut ty: Type) -> Built<usize> {
        let mut strides = Vec::new();
        if let Type::View(view) = &mut ty
            && view.strides.is_empty()
        {
            let of_a_turn = |dim: &Dim| matches!(dim, Dim::Value(value) if self.home[value.index()] == graph.tail);
            if graph.carries || view.dims.iter().any(of_a_turn) {
                for _ in &view.dims {
                    let slot = self.slot(graph, None, INDEX)?;
                    view.strides.push(Dim::Value(graph.slots[slot].value));
                    strides.push(slot);
                }
            } else {
                // In front of the loop, so that they are known behind it, too.
                let inner = std::mem::replace(&mut self.block, graph.outer);
                let dense = self.dense_strides(&view.dims);
                self.block = inner;
                view.strides = dense?;
            }
        }
        let value = self.new_value(ty.clone());
        self.home[value.index()] = graph.tail;
        if let Some((name, span)) = name {
            self.define(name, span, Binding::Value(value));
        }
        graph.slots.push(Slot { ty, value });
        let slot = graph.slots.len() - 1;
        if !strides.is_empty() {
            graph.strides.insert(slot, strides);
        }
        Ok(slot)
    }

    /// A new slot for what a block defines; extents and strides that only the block knows get slots, too.
    fn shared_slot(
        &mut self,
        graph: &mut Graph<'m>,
        name: Option<(&'m str, Span)>,
        value: ValueId,
        changed: &mut HashMap<usize, ValueId>,
    ) -> Built<usize> {
        let mut ty = self.ty(value).clone();
        let mut hidden = Vec::new();
        ty.each_value(|dim| hidden.extend((!self.is_visible(dim)).then_some(dim)));
        for dim in hidden {
            if !graph.shared.contains_key(&dim) {
                let slot = self.slot(graph, None, INDEX)?;
                graph.shared.insert(dim, slot);
                changed.insert(slot, dim);
            }
        }
        ty.map_dims(|dim| Dim::Value(graph.shared.get(&dim).map_or(dim, |slot| graph.slots[*slot].value)));
        let slot = self.slot(graph, name, ty)?;
        graph.shared.insert(value, slot);
        Ok(slot)
    }

    /// Puts `value` into a slot, and its strides into theirs.
    fn give(&mut self, graph: &mut Graph<'m>, slot: usize, value: ValueId, changed: &mut HashMap<usize, ValueId>) {
        changed.insert(slot, value);
        let (Type::View(found), Type::View(known)) = (self.ty(value).clone(), &graph.slots[slot].ty) else {
            return;
        };
        match graph.strides.get(&slot) {
            Some(slots) => {
                for (slot, stride) in slots.iter().zip(found.strides) {
                    let stride = self.dim_value(stride);
                    changed.insert(*slot, stride);
                }
            }
            None => graph.changed |= found.strides != known.strides,
        }
    }

    /// The ops of a block; how it is left, and what it defines that other blocks name.
    #[allow(clippy::type_complexity, reason = "two answers of one reading, taken apart at once")]
    fn arm(
        &mut self,
        graph: &mut Graph<'m>,
        at: usize,
        done: ValueId,
        ends: Terminator,
    ) -> Built<(Left, Vec<((&'m str, Span), Binding)>)> {
        let block = graph.nodes[at].block;
        self.ops_before_end(block);
        let Some(end) = block.ops.last() else {
            return refuse(self.span, "a block ends in cfg.br, cfg.cond_br or the return of its function");
        };
        let left = self.leave_block(graph, end, ends, done, false)?;
        let mut given = Vec::new();
        for token in block.ops.iter().flat_map(|op| &op.results) {
            let text = self.module.text(*token);
            if graph.named.get(text).is_none_or(|only| *only == Some(at)) {
                continue;
            }
            // Layouts whose strides are values of the block stay with it.
            if let Some(binding @ (Binding::Value(_) | Binding::Encoding(_) | Binding::Layout(Layout::Dense))) =
                self.names.get(&text[1..])
            {
                given.push(((&text[1..], self.module.tokens[*token as usize].span), binding.clone()));
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
                let mut changed = HashMap::new();
                for (slot, value) in arguments.into_iter().zip(values) {
                    self.give(graph, slot, value, &mut changed);
                }
                Ok(Left { next, changed })
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
                let mut changed: BTreeMap<usize, [Option<ValueId>; 2]> = BTreeMap::new();
                for (way, (target, values)) in [taken, other].into_iter().enumerate() {
                    let mut given = HashMap::new();
                    for (slot, value) in graph.nodes[target].arguments.clone().into_iter().zip(values) {
                        self.give(graph, slot, value, &mut given);
                    }
                    for (slot, value) in given {
                        changed.entry(slot).or_default()[way] = Some(value);
                    }
                }
                let mut chosen = HashMap::new();
                for (slot, ways) in changed {
                    let Slot { ty, value, .. } = &graph.slots[slot];
                    // What goes another way leaves the arguments of this one as they were.
                    let old = if in_front { ways[0].or(ways[1]).unwrap_or(*value) } else { *value };
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
                            let ty = self.leaving(graph, *value, in_front)?;
                            slots.push(self.slot(graph, None, ty)?);
                        }
                        graph.returned = Some(slots.clone());
                        slots
                    }
                };
                let same = slots.len() == values.len()
                    && slots.iter().zip(&values).all(|(slot, value)| same(&graph.slots[*slot].ty, self.ty(*value)));
                if !same {
                    return refuse(self.span, "the blocks of this region return different types");
                }
                let mut changed = HashMap::new();
                for (slot, value) in slots.into_iter().zip(values) {
                    self.give(graph, slot, value, &mut changed);
                }
                Ok(Left { next: done, changed })
            }
        }
    }

    /// The type of what a block returns, as it is known behind the loop.
    fn leaving(&mut self, graph: &Graph<'m>, value: ValueId, in_front: bool) -> Built<Type> {
        let mut ty = self.ty(value).clone();
        let inner = [self.block, graph.tail];
        let hidden = |dim: &Dim| match dim {
            Dim::Value(value) => {
                !in_front && self.constant_of(*value).is_none() && inner.contains(&self.home[value.index()])
            }
            Dim::Static(_) => false,
        };
        if let Type::View(view) = &mut ty {
            if view.dims.iter().any(hidden) {
                return refuse(
                    self.span,
                    "the extents of a view that one of several blocks returns are not known outside",
                );
            }
            if graph.carries || view.strides.iter().any(hidden) {
                view.strides.clear();
            }
        }
        Ok(ty)
    }

    /// `^label[(%a: T, ..)]` or `^label[(%a, .. : T, ..)]`.
    fn branch_target(&mut self, graph: &Graph<'m>, reader: &mut Reader<'m>) -> Built<(usize, Vec<ValueId>)> {
        let token = reader.expect(Kind::Label)?;
        let label = reader.text(token);
        // All are known by now.
        let Some(&target) = graph.labels.get(label) else {
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
        let fits =
            taken.len() == values.len() && taken.iter().zip(&values).all(|(ty, value)| same(ty, self.ty(*value)));
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
        let results = self.fresh(slots);
        for result in &results {
            self.home[result.index()] = tail;
        }
        let outer = std::mem::replace(&mut self.block, tail);
        self.push(OpKind::Switch(keys.into_boxed_slice()), &[state], results.clone(), blocks);
        self.push(OpKind::Yield, &results, Vec::new(), Vec::new());
        self.block = outer;
    }
}
