//! Buffers and views that are chosen at run time: every access of a tile program names its storage.
//!
//! ```text
//! %v = select %c, %a, %b         %which = select %c, 0, 1;  %at = select %c, %offset_a, %offset_b
//! %x = load %v[%i]          ──>  %x = if %which < 1 { load (view %root_a[%at])[%i] } else { load (view %root_b[%at])[%i] }
//! ```
//!
//! - The *roots* of a buffer or view are the arguments and allocations that it may be of. With one root there is nothing to tell
//!   apart, and no branch.
//! - What control flow carries or selects becomes a byte offset (of a view) and the position of its root (where there are several).
//! - An allocation among such roots moves to the head of the kernel, so that every access can name it.
//! - Not here: views that no control flow decides; they stay as they are.

use std::collections::{BTreeSet, HashMap};

use super::Unsupported;
use crate::hoist::hoist;
use crate::ir::{Block, BlockId, Body, Kernel, Op, Span, Value, ValueId};
use crate::ops::{Binary, Convert, Family, Flags, IntPredicate, OpKind};
use crate::simplify::remove_dead;
use crate::types::{Dim, ScalarType, Type};

/// The most roots that one buffer or view may have.
const MAX_ROOTS: usize = 64;

/// The most ops that choosing may add.
const MAX_MADE: usize = 1 << 20;

/// `kernel` without buffers and views that are chosen at run time; `None` if it has none of these.
pub(crate) fn settle(kernel: &Kernel) -> Result<Option<Kernel>, Unsupported> {
    let Some(flow) = Flow::of(&kernel.body) else {
        return Ok(None);
    };
    let refused = |span: Span, what: String| Unsupported { kernel: kernel.name.clone(), what, span };
    let places = flow.places(&kernel.body).map_err(|span| {
        refused(span, format!("a buffer or view that may be of more than {MAX_ROOTS} arguments and allocations"))
    })?;
    let mut kernel = kernel.clone();
    let body = std::mem::take(&mut kernel.body);
    kernel.body = Settler::new(body, places)
        .run()
        .map_err(|span| refused(span, format!("choosing buffers and views at run time in more than {MAX_MADE} ops")))?;
    remove_dead(&mut kernel.body);
    hoist(&mut kernel.body);
    Ok(Some(kernel))
}

fn is_place(body: &Body, value: ValueId) -> bool {
    matches!(body.ty(value), Type::Buffer | Type::View(_))
}

/// The operands of the terminator of `block`.
fn last(body: &Body, block: BlockId) -> &[ValueId] {
    body.block(block).ops.last().map_or(&[], |op| &op.operands)
}

/// Which buffers and views may be which others.
#[derive(Default)]
struct Flow {
    /// (from, to, whether control flow decides it, where).
    edges: Vec<(ValueId, ValueId, bool, Span)>,
    roots: Vec<ValueId>,
}

impl Flow {
    /// `None` if control flow decides nothing.
    fn of(body: &Body) -> Option<Self> {
        let mut flow = Self::default();
        for op in body.ops() {
            let mut joins = |from: &[ValueId], to: &[ValueId]| {
                let pairs = from.iter().zip(to).filter(|(_, to)| is_place(body, **to));
                flow.edges.extend(pairs.map(|(from, to)| (*from, *to, true, op.span)));
            };
            match op.kind.family() {
                Family::Branch(_) => op.blocks.iter().for_each(|block| joins(last(body, *block), &op.results)),
                Family::Counted => {
                    let arguments = body.block(op.blocks[0]).arguments.get(1..).unwrap_or_default();
                    joins(&op.operands[3..], arguments);
                    joins(last(body, op.blocks[0]), arguments);
                    joins(arguments, &op.results);
                }
                Family::Unbounded => {
                    let [head, tail] = [0, 1].map(|at| body.block(op.blocks[at]).arguments.as_slice());
                    let forwarded = last(body, op.blocks[0]).get(1..).unwrap_or_default();
                    joins(&op.operands, head);
                    joins(last(body, op.blocks[1]), head);
                    joins(forwarded, tail);
                    joins(forwarded, &op.results);
                }
                Family::Scratch(_) => flow.roots.extend(&op.results),
                Family::Place => match (op.operands.first(), op.results.first()) {
                    (Some(from), Some(to)) => flow.edges.push((*from, *to, false, op.span)),
                    _ => flow.roots.extend(&op.results),
                },
                _ if op.kind == OpKind::Select => {
                    joins(&op.operands[1..2], &op.results);
                    joins(&op.operands[2..3], &op.results);
                }
                _ => {}
            }
        }
        if flow.edges.iter().all(|(_, _, decided, _)| !decided) {
            return None;
        }
        let arguments = body.block(Body::ENTRY).arguments.iter().copied();
        flow.roots.extend(arguments.filter(|value| is_place(body, *value)));
        Some(flow)
    }

    /// Follows every root to where it may come, and every decision to what is made of it.
    fn places(&self, body: &Body) -> Result<Places, Span> {
        let mut from: Vec<Vec<usize>> = vec![Vec::new(); body.values.len()];
        for (at, (source, ..)) in self.edges.iter().enumerate() {
            from[source.index()].push(at);
        }
        let mut places =
            Places { roots: vec![BTreeSet::new(); body.values.len()], loose: vec![false; body.values.len()] };
        let mut todo: Vec<(ValueId, ValueId)> = Vec::new();
        for root in &self.roots {
            places.roots[root.index()].insert(*root);
            todo.push((*root, *root));
        }
        while let Some((value, root)) = todo.pop() {
            for edge in &from[value.index()] {
                let (_, to, _, span) = self.edges[*edge];
                if places.roots[to.index()].insert(root) {
                    if places.roots[to.index()].len() > MAX_ROOTS {
                        return Err(span);
                    }
                    todo.push((to, root));
                }
            }
        }
        let decided = self.edges.iter().filter(|(_, _, decided, _)| *decided);
        let mut todo: Vec<ValueId> = decided.map(|(_, to, ..)| *to).collect();
        while let Some(value) = todo.pop() {
            if !std::mem::replace(&mut places.loose[value.index()], true) {
                todo.extend(from[value.index()].iter().map(|edge| self.edges[*edge].1));
            }
        }
        Ok(places)
    }
}

/// What may be where, by [`ValueId`] of the body as it was.
struct Places {
    /// The arguments and allocations that a buffer or view may be of.
    roots: Vec<BTreeSet<ValueId>>,
    /// Whether control flow decides it, or what it is made of.
    loose: Vec<bool>,
}

impl Places {
    fn is_loose(&self, value: ValueId) -> bool {
        self.loose.get(value.index()).copied().unwrap_or(false)
    }

    fn roots(&self, value: ValueId) -> Vec<ValueId> {
        self.roots.get(value.index()).map_or_else(Vec::new, |roots| roots.iter().copied().collect())
    }
}

/// What stands for a loose buffer or view.
#[derive(Clone, Copy, Default)]
struct Chosen {
    /// The position of its root among those it may have, an `index`; nothing where there is one.
    which: Option<ValueId>,
    /// Of a view: its first byte in the root, an `offset`.
    at: Option<ValueId>,
}

struct Settler {
    body: Body,
    places: Places,
    /// Of loose values, from their definition on.
    chosen: HashMap<ValueId, Chosen>,
    /// The ops that made views.
    makers: HashMap<ValueId, Op>,
    constants: HashMap<(ScalarType, u64), ValueId>,
    /// Constants and allocations that are named from everywhere.
    head: Vec<Op>,
    shared: BTreeSet<ValueId>,
    made: usize,
}

/// Where the limit was passed.
type Made<T> = Result<T, Span>;

impl Settler {
    fn new(body: Body, places: Places) -> Self {
        let made = body.ops().filter(|op| op.kind.family() == Family::Place);
        let makers = made.flat_map(|op| op.results.iter().map(|view| (*view, op.clone()))).collect();
        let loose = (0..body.values.len() as u32).map(ValueId).filter(|value| places.is_loose(*value));
        let shared = loose.flat_map(|value| places.roots(value)).collect();
        Self {
            body,
            places,
            chosen: HashMap::new(),
            makers,
            constants: HashMap::new(),
            head: Vec::new(),
            shared,
            made: 0,
        }
    }

    fn run(mut self) -> Made<Body> {
        self.block(Body::ENTRY, &[], 0)?;
        let head = std::mem::take(&mut self.head);
        self.body.blocks[0].ops.splice(0..0, head);
        Ok(self.body)
    }

    // Making ops.

    fn value(&mut self, ty: Type, constant: Option<u64>) -> ValueId {
        self.body.values.push(Value { ty, constant });
        ValueId(self.body.values.len() as u32 - 1)
    }

    fn push(&mut self, ops: &mut Vec<Op>, op: Op) -> Made<()> {
        self.made += 1;
        if self.made > MAX_MADE {
            return Err(op.span);
        }
        ops.push(op);
        Ok(())
    }

    fn emit(&mut self, ops: &mut Vec<Op>, kind: OpKind, operands: &[ValueId], ty: Type, span: Span) -> Made<ValueId> {
        let result = self.value(ty, None);
        self.push(ops, plain(kind, operands.to_vec(), vec![result], Vec::new(), span))?;
        Ok(result)
    }

    fn constant(&mut self, ty: ScalarType, bits: u64) -> ValueId {
        if let Some(known) = self.constants.get(&(ty, bits)) {
            return *known;
        }
        let value = self.value(Type::Scalar(ty), Some(bits));
        self.constants.insert((ty, bits), value);
        self.head.push(plain(OpKind::Constant(bits), Vec::new(), vec![value], Vec::new(), Span::default()));
        value
    }

    fn index(&mut self, number: usize) -> ValueId {
        self.constant(ScalarType::Index, number as u64)
    }

    // What stands for what.

    /// New values for those that an op with blocks, or a block, defines.
    fn stand_ins(&mut self, values: &[ValueId]) -> Vec<ValueId> {
        let mut all = Vec::with_capacity(values.len());
        for value in values {
            if !self.places.is_loose(*value) {
                all.push(*value);
                continue;
            }
            let several = self.places.roots(*value).len() > 1;
            let view = matches!(self.body.ty(*value), Type::View(_));
            let which = several.then(|| self.value(Type::Scalar(ScalarType::Index), None));
            let at = view.then(|| self.value(Type::Scalar(ScalarType::Offset), None));
            self.chosen.insert(*value, Chosen { which, at });
            all.extend(which.into_iter().chain(at));
        }
        all
    }

    /// The values that flow into what stands for `taken`.
    fn given(&mut self, ops: &mut Vec<Op>, given: &[ValueId], taken: &[ValueId], span: Span) -> Made<Vec<ValueId>> {
        let mut all = Vec::with_capacity(given.len());
        for (from, to) in given.iter().zip(taken) {
            if !self.places.is_loose(*to) {
                all.push(*from);
                continue;
            }
            let Chosen { which, at } = self.as_one_of(ops, *from, *to, span)?;
            all.extend(which.into_iter().chain(at));
        }
        Ok(all)
    }

    /// `value`, where `to` may be what it is and more.
    fn as_one_of(&mut self, ops: &mut Vec<Op>, value: ValueId, to: ValueId, span: Span) -> Made<Chosen> {
        let (from, into) = (self.places.roots(value), self.places.roots(to));
        let known = self.chosen.get(&value).copied().unwrap_or_default();
        let view = matches!(self.body.ty(to), Type::View(_));
        let at = if view { Some(self.first_byte(ops, value, span)?) } else { None };
        let position = |root: &ValueId| into.iter().position(|other| other == root).unwrap_or(0);
        let which = match known.which {
            _ if into.len() < 2 => None,
            Some(which) if from == into => Some(which),
            None => Some(self.index(from.first().map_or(0, position))),
            // The same root has another position among more of them.
            Some(which) => {
                let mut now = self.index(from.last().map_or(0, position));
                for (at, root) in from.iter().enumerate().rev().skip(1) {
                    let (here, number) = (self.index(at), self.index(position(root)));
                    let is = OpKind::CompareI(IntPredicate::Eq);
                    let hit = self.emit(ops, is, &[which, here], Type::Scalar(ScalarType::I1), span)?;
                    let ty = Type::Scalar(ScalarType::Index);
                    now = self.emit(ops, OpKind::Select, &[hit, number, now], ty, span)?;
                }
                Some(now)
            }
        };
        Ok(Chosen { which, at })
    }

    /// The first byte of a view, in its root.
    fn first_byte(&mut self, ops: &mut Vec<Op>, view: ValueId, span: Span) -> Made<ValueId> {
        if let Some(at) = self.chosen.get(&view).and_then(|chosen| chosen.at) {
            return Ok(at);
        }
        match self.makers.get(&view).cloned() {
            Some(Op { kind: OpKind::BufferView, operands, .. }) => Ok(operands[1]),
            Some(Op { kind: OpKind::Refine, operands, .. }) => self.first_byte(ops, operands[0], span),
            Some(Op { kind: OpKind::Subview, operands, .. }) => {
                let start = self.first_byte(ops, operands[0], span)?;
                self.advanced(ops, start, operands[0], &operands[1..], span)
            }
            _ => Ok(self.constant(ScalarType::Offset, 0)),
        }
    }

    /// `start` plus the distance of the element at `indices` of `view`, in bytes.
    fn advanced(
        &mut self,
        ops: &mut Vec<Op>,
        start: ValueId,
        view: ValueId,
        indices: &[ValueId],
        span: Span,
    ) -> Made<ValueId> {
        let Type::View(ty) = self.body.ty(view).clone() else {
            return Ok(start);
        };
        let (product, index) = (OpKind::Binary(Binary::MulI), Type::Scalar(ScalarType::Index));
        let offset = Type::Scalar(ScalarType::Offset);
        let size = self.constant(ScalarType::Index, ty.element.bytes());
        let mut sum = start;
        for (at, stride) in indices.iter().zip(&ty.strides) {
            let stride = match *stride {
                Dim::Static(number) => self.constant(ScalarType::Index, number),
                Dim::Value(value) => value,
            };
            let step = self.emit(ops, product.clone(), &[stride, size], index.clone(), span)?;
            let bytes = self.emit(ops, product.clone(), &[*at, step], index.clone(), span)?;
            let bytes = self.emit(ops, OpKind::Convert(Convert::Bitcast), &[bytes], offset.clone(), span)?;
            sum = self.emit(ops, OpKind::Binary(Binary::AddI), &[sum, bytes], offset.clone(), span)?;
        }
        Ok(sum)
    }

    // Ops.

    /// Rewrites a block; the operands of its terminator from `skip` on flow into `taken`.
    fn block(&mut self, id: BlockId, taken: &[ValueId], skip: usize) -> Made<()> {
        let block = std::mem::take(&mut self.body.blocks[id.index()]);
        let mut ops = Vec::with_capacity(block.ops.len());
        let end = block.ops.len().saturating_sub(1);
        for (at, mut op) in block.ops.into_iter().enumerate() {
            if at == end && matches!(op.kind.family(), Family::End(_)) {
                let skip = skip.min(op.operands.len());
                let given = op.operands.split_off(skip);
                op.operands.extend(self.given(&mut ops, &given, taken, op.span)?);
                ops.push(op);
            } else {
                self.op(&mut ops, op)?;
            }
        }
        self.body.blocks[id.index()] = Block { arguments: block.arguments, ops };
        Ok(())
    }

    fn op(&mut self, ops: &mut Vec<Op>, mut op: Op) -> Made<()> {
        let span = op.span;
        match op.kind.family() {
            Family::Scratch(_) if self.shared.contains(&op.results[0]) => self.head.push(op),
            Family::Place if op.operands.is_empty() && self.shared.contains(&op.results[0]) => self.head.push(op),
            Family::Place if self.places.is_loose(op.results[0]) => {
                let from = self.chosen.get(&op.operands[0]).copied().unwrap_or_default();
                let at = match op.kind {
                    OpKind::BufferView => Some(op.operands[1]),
                    OpKind::Subview => {
                        let start = self.first_byte(ops, op.operands[0], span)?;
                        Some(self.advanced(ops, start, op.operands[0], &op.operands[1..], span)?)
                    }
                    _ => from.at,
                };
                self.chosen.insert(op.results[0], Chosen { which: from.which, at });
            }
            Family::Branch(_) => {
                let results = std::mem::take(&mut op.results);
                for block in &op.blocks {
                    self.block(*block, &results, 0)?;
                }
                op.results = self.stand_ins(&results);
                ops.push(op);
            }
            Family::Counted => {
                let arguments = self.body.block(op.blocks[0]).arguments.clone();
                let (counter, carried) = arguments.split_at(1);
                let given = op.operands.split_off(3);
                op.operands.extend(self.given(ops, &given, carried, span)?);
                let now = self.stand_ins(carried);
                self.body.blocks[op.blocks[0].index()].arguments = [counter, &now].concat();
                self.block(op.blocks[0], carried, 0)?;
                op.results = self.stand_ins(&op.results);
                ops.push(op);
            }
            Family::Unbounded => {
                let [head, tail] = [0, 1].map(|at| self.body.block(op.blocks[at]).arguments.clone());
                op.operands = self.given(ops, &op.operands, &head, span)?;
                self.body.blocks[op.blocks[0].index()].arguments = self.stand_ins(&head);
                self.block(op.blocks[0], &tail, 1)?;
                self.body.blocks[op.blocks[1].index()].arguments = self.stand_ins(&tail);
                self.block(op.blocks[1], &head, 0)?;
                op.results = self.stand_ins(&op.results);
                ops.push(op);
            }
            Family::Exit => {
                for block in &op.blocks {
                    self.block(*block, &[], 0)?;
                }
                ops.push(op);
            }
            Family::Element(_) if op.results.first().is_some_and(|result| self.places.is_loose(*result)) => {
                let result = op.results[0];
                let a = self.as_one_of(ops, op.operands[1], result, span)?;
                let b = self.as_one_of(ops, op.operands[2], result, span)?;
                let mut choose = |a: Option<ValueId>, b: Option<ValueId>, ty: ScalarType| match (a, b) {
                    (Some(a), Some(b)) => {
                        self.emit(ops, OpKind::Select, &[op.operands[0], a, b], Type::Scalar(ty), span).map(Some)
                    }
                    _ => Ok(None),
                };
                let which = choose(a.which, b.which, ScalarType::Index)?;
                let at = choose(a.at, b.at, ScalarType::Offset)?;
                self.chosen.insert(result, Chosen { which, at });
            }
            _ => match op.operands.iter().position(|operand| self.places.is_loose(*operand)) {
                Some(at) => self.told_apart(ops, op, at)?,
                None => ops.push(op),
            },
        }
        Ok(())
    }

    /// An op whose operand `at` is loose: once for each root that this may have.
    fn told_apart(&mut self, ops: &mut Vec<Op>, op: Op, at: usize) -> Made<()> {
        let roots = self.places.roots(op.operands[at]);
        let chosen = self.chosen.get(&op.operands[at]).copied().unwrap_or_default();
        self.among(ops, op, at, chosen, &roots, 0)
    }

    /// [`Self::told_apart`] among the roots from position `first` on.
    fn among(
        &mut self,
        ops: &mut Vec<Op>,
        mut op: Op,
        at: usize,
        chosen: Chosen,
        roots: &[ValueId],
        first: usize,
    ) -> Made<()> {
        let span = op.span;
        let (Some(which), true) = (chosen.which, roots.len() > 1) else {
            // A place that never gets a value is never reached either.
            let Some(root) = roots.first().copied() else {
                return Err(span);
            };
            let ty = self.body.ty(op.operands[at]).clone();
            op.operands[at] = match chosen.at {
                Some(byte) => self.emit(ops, OpKind::BufferView, &[root, byte], ty, span)?,
                None => root,
            };
            // A copy has two places.
            return match op.operands.iter().position(|operand| self.places.is_loose(*operand)) {
                Some(at) => self.told_apart(ops, op, at),
                None => self.push(ops, op),
            };
        };
        let (low, high) = roots.split_at(roots.len() / 2);
        let middle = self.index(first + low.len());
        let below = OpKind::CompareI(IntPredicate::Ult);
        let lower = self.emit(ops, below, &[which, middle], Type::Scalar(ScalarType::I1), span)?;
        let results = std::mem::take(&mut op.results);
        let mut blocks = Vec::with_capacity(2);
        for (roots, first) in [(low, first), (high, first + low.len())] {
            let mut inner = op.clone();
            for result in &results {
                let ty = self.body.ty(*result).clone();
                inner.results.push(self.value(ty, None));
            }
            let given = inner.results.clone();
            let mut inside = Vec::new();
            self.among(&mut inside, inner, at, chosen, roots, first)?;
            inside.push(plain(OpKind::Yield, given, Vec::new(), Vec::new(), span));
            self.body.blocks.push(Block { arguments: Vec::new(), ops: inside });
            blocks.push(BlockId(self.body.blocks.len() as u32 - 1));
        }
        self.push(ops, plain(OpKind::If, vec![lower], results, blocks, span))
    }
}

/// An op without permissions.
fn plain(kind: OpKind, operands: Vec<ValueId>, results: Vec<ValueId>, blocks: Vec<BlockId>, span: Span) -> Op {
    Op { kind, operands, results, blocks, flags: Flags::default(), span }
}
