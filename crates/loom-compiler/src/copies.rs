//! What asynchronous copies become before anything runs them.
//!
//! ```text
//! at_once     copy ──> load, store (in an `if` of its mask)        group, wait ──> nothing
//! in_flight   copy ──> copy                 group ──> ends a group of copies       wait ──> until `newer` groups may go on
//! ```
//!
//! - Both leave no value of a type `kernel.async`: loops carry these for nobody but the count below.
//! - In flight, copies end in groups in the order in which these were made, and a group is of *every* copy since the one before,
//!   also of those whose token it was not given. Its own tokens stand before it, so they are in it or in an older one; and a wait
//!   for it is one for all that are older. A copy may so be waited for earlier than asked, never later.
//! - `newer_groups` says how many groups behind the one waited for may go on; hardware counts from the newest one back. They are
//!   the same where at least as many groups were made behind it on every way there. How many were is followed here through
//!   branches and loops, and a wait is made stricter where it would not reach its group: waiting for more is always correct.
//! - A ring is a loop that carries its groups, oldest first: it waits for the oldest with `newer_groups` of one less than it
//!   carries, makes a group each turn (of no token where nothing is left to copy), and yields it as the newest.

use std::collections::HashMap;

use crate::ir::{Block, BlockId, Body, Kernel, Op, Value, ValueId};
use crate::ops::{Branch, Family, Flags, OpKind};
use crate::types::{ScalarType, Type, VectorType};

/// Copies made where they stand; `None` for a kernel that has none.
pub(crate) fn at_once(kernel: &Kernel) -> Option<Kernel> {
    settled(kernel, |body| {
        let mut zero = None;
        for block in 0..body.blocks.len() {
            let ops = std::mem::take(&mut body.blocks[block].ops);
            let mut made = Vec::with_capacity(ops.len());
            for op in ops {
                match op.kind {
                    OpKind::AsyncCopy { masked } => copy(body, &mut made, &op, masked, &mut zero),
                    OpKind::AsyncGroup | OpKind::AsyncWait { .. } => {}
                    _ => made.push(op),
                }
            }
            body.blocks[block].ops = made;
        }
        if let Some((_, Some(op))) = zero {
            body.blocks[0].ops.insert(0, op);
        }
    })
}

/// Copies as they are, in groups; waits count from the newest group back. `None` for a kernel that has none.
pub(crate) fn in_flight(kernel: &Kernel) -> Option<Kernel> {
    settled(kernel, |body| {
        let waits = Ages::of(body);
        for (block, ops) in body.blocks.iter_mut().enumerate() {
            for (at, op) in ops.ops.iter_mut().enumerate() {
                if let OpKind::AsyncWait { newer } = &mut op.kind {
                    // None that is never reached.
                    *newer = waits.get(&(BlockId(block as u32), at)).copied().unwrap_or(0);
                }
            }
        }
    })
}

/// The kernel as `change` leaves it, without values that stand for copies.
fn settled(kernel: &Kernel, change: impl FnOnce(&mut Body)) -> Option<Kernel> {
    let is_copy = |op: &Op| {
        matches!(op.kind, OpKind::AsyncCopy { .. } | OpKind::AsyncGroup | OpKind::AsyncWait { .. })
            || op.results.iter().any(|result| matches!(kernel.body.ty(*result), Type::Async(_)))
    };
    if !kernel.body.ops().any(is_copy) {
        return None;
    }
    let mut kernel = kernel.clone();
    change(&mut kernel.body);
    let Body { values, blocks } = &mut kernel.body;
    let stays = |value: &ValueId| !matches!(values[value.index()].ty, Type::Async(_));
    for block in blocks {
        block.arguments.retain(stays);
        for op in &mut block.ops {
            op.operands.retain(stays);
        }
        // One that chose among them, or stands for none, is for nothing.
        block.ops.retain(|op| {
            let effect = !op.blocks.is_empty() || op.kind.family() == Family::Write;
            effect || op.results.is_empty() || op.results.iter().any(stays)
        });
        for op in &mut block.ops {
            op.results.retain(stays);
        }
    }
    Some(kernel)
}

/// The index 0, and the op that defines it unless one does already.
type Zero = Option<(ValueId, Option<Op>)>;

fn value(body: &mut Body, ty: Type, constant: Option<u64>) -> ValueId {
    body.values.push(Value { ty, constant });
    ValueId(body.values.len() as u32 - 1)
}

/// An op made of a copy.
fn part(of: &Op, kind: OpKind, operands: Vec<ValueId>, results: Vec<ValueId>, blocks: Vec<BlockId>) -> Op {
    Op { kind, operands, results, blocks, flags: Flags::default(), span: of.span }
}

/// A load and a store of what the views of the copy `op` cover.
fn copy(body: &mut Body, ops: &mut Vec<Op>, op: &Op, masked: bool, zero: &mut Zero) {
    let (from, to) = (op.operands[0], op.operands[1]);
    let Type::View(view) = body.ty(from).clone() else { return };
    let rank = view.dims.len();
    let ty = match rank {
        0 => Type::Scalar(view.element),
        _ => Type::Vector(VectorType { element: view.element, dims: view.dims }),
    };
    let mut indices = Vec::new();
    if rank > 0 {
        indices = vec![index_zero(body, zero, op); rank];
    }
    let moved = value(body, ty, None);
    let load = part(op, OpKind::Load, [&[from], &indices[..]].concat(), vec![moved], Vec::new());
    let store = part(op, OpKind::Store, [&[moved, to], &indices[..]].concat(), Vec::new(), Vec::new());
    if !masked {
        ops.extend([load, store]);
        return;
    }
    let ends = || part(op, OpKind::Yield, Vec::new(), Vec::new(), Vec::new());
    let mut blocks = Vec::with_capacity(2);
    for inside in [vec![load, store, ends()], vec![ends()]] {
        body.blocks.push(Block { arguments: Vec::new(), ops: inside });
        blocks.push(BlockId(body.blocks.len() as u32 - 1));
    }
    ops.push(part(op, OpKind::If, vec![op.operands[2]], Vec::new(), blocks));
}

fn index_zero(body: &mut Body, zero: &mut Zero, op: &Op) -> ValueId {
    if let Some((known, _)) = zero {
        return *known;
    }
    let ty = Type::Scalar(ScalarType::Index);
    let is_zero = |op: &&Op| op.kind == OpKind::Constant(0) && op.result().is_some_and(|value| *body.ty(value) == ty);
    let known = body.block(Body::ENTRY).ops.iter().find(is_zero).and_then(Op::result);
    let (known, made) = match known {
        Some(known) => (known, None),
        None => {
            let made = value(body, ty, Some(0));
            (made, Some(part(op, OpKind::Constant(0), Vec::new(), vec![made], Vec::new())))
        }
    };
    *zero = Some((known, made));
    known
}

/// More groups than any wait leaves going on.
const MANY: u32 = 32;

/// The most ops that are looked at, those of a loop each time anew.
const MAX_LOOKS: u32 = 1 << 19;

/// How often a loop is looked at before its groups count as new.
const MAX_ROUNDS: u32 = 4;

/// How many groups were made behind each, at least, on every way to a point.
struct Ages<'a> {
    body: &'a Body,
    /// Groups made on the way here, at least.
    now: u32,
    /// `now` when a group was the newest, by the group: what is missing was made nowhere.
    born: HashMap<ValueId, i64>,
    /// How many newest groups each wait may leave going on.
    waits: HashMap<(BlockId, usize), u32>,
    looks: u32,
}

impl<'a> Ages<'a> {
    fn of(body: &'a Body) -> HashMap<(BlockId, usize), u32> {
        let mut ages = Self { body, now: 0, born: HashMap::new(), waits: HashMap::new(), looks: 0 };
        ages.block(Body::ENTRY);
        if ages.looks > MAX_LOOKS {
            return HashMap::new();
        }
        ages.waits
    }

    /// Groups made behind `group`.
    fn age(&self, group: ValueId) -> u32 {
        let born = self.born.get(&group).copied();
        born.map_or(MANY, |born| u32::try_from(i64::from(self.now) - born).unwrap_or(0).min(MANY))
    }

    fn ages(&self, values: &[ValueId]) -> Vec<u32> {
        values.iter().map(|value| self.age(*value)).collect()
    }

    fn set(&mut self, values: &[ValueId], ages: &[u32]) {
        for (value, age) in values.iter().zip(ages) {
            if *age < MANY {
                self.born.insert(*value, i64::from(self.now) - i64::from(*age));
            } else {
                self.born.remove(value);
            }
        }
    }

    /// Follows a block: what its terminator gives.
    fn block(&mut self, id: BlockId) -> &'a [ValueId] {
        let block = self.body.block(id);
        for (at, op) in block.ops.iter().enumerate() {
            self.looks += 1;
            if self.looks > MAX_LOOKS {
                return &[];
            }
            self.op((id, at), op);
        }
        block.ops.last().map_or(&[], |end| &end.operands)
    }

    fn op(&mut self, at: (BlockId, usize), op: &'a Op) {
        match op.kind.family() {
            _ if op.kind == OpKind::AsyncGroup => {
                self.now += 1;
                self.set(&op.results, &[0]);
            }
            _ if op.kind == OpKind::Select => {
                let (a, b) = (self.age(op.operands[1]), self.age(op.operands[2]));
                self.set(&op.results, &[a.min(b)]);
            }
            Family::Write => {
                if let OpKind::AsyncWait { newer } = op.kind {
                    self.waits.insert(at, newer.min(self.age(op.operands[0])).min(MANY - 1));
                }
            }
            Family::Branch(Branch::If | Branch::Switch(_)) => {
                let (start, mut end, mut given) = (self.now, u32::MAX, vec![MANY; op.results.len()]);
                for block in &op.blocks {
                    self.now = start;
                    let values = self.block(*block);
                    given = least(&given, &self.ages(values));
                    end = end.min(self.now);
                }
                self.now = end.min(self.now);
                self.set(&op.results, &given);
            }
            Family::Counted => {
                let (start, carried) = (self.now, &self.body.block(op.blocks[0]).arguments[1..]);
                let mut ages = self.ages(&op.operands[3..]);
                for round in 0.. {
                    self.now = start;
                    self.set(carried, &ages);
                    let yielded = self.block(op.blocks[0]);
                    let found = least(&ages, &self.ages(yielded));
                    if found == ages || self.looks > MAX_LOOKS {
                        break;
                    }
                    ages = if round < MAX_ROUNDS { found } else { vec![0; ages.len()] };
                }
                // It may not have run.
                self.now = start;
                self.set(&op.results, &ages);
            }
            Family::Unbounded => {
                let (head, tail) = (op.blocks[0], op.blocks[1]);
                let (start, mut ages) = (self.now, self.ages(&op.operands));
                for round in 0.. {
                    self.now = start;
                    self.set(&self.body.block(head).arguments, &ages);
                    let forwarded = self.block(head).get(1..).unwrap_or_default();
                    let (left, given) = (self.now, self.ages(forwarded));
                    self.set(&self.body.block(tail).arguments, &given);
                    let yielded = self.block(tail);
                    let found = least(&ages, &self.ages(yielded));
                    self.now = left;
                    self.set(&op.results, &given);
                    if found == ages || self.looks > MAX_LOOKS {
                        break;
                    }
                    ages = if round < MAX_ROUNDS { found } else { vec![0; ages.len()] };
                }
            }
            Family::Exit => {
                let start = self.now;
                op.blocks.iter().for_each(|block| {
                    self.block(*block);
                });
                self.now = start;
            }
            Family::Constant(_)
            | Family::Element(_)
            | Family::Vector
            | Family::Scratch(_)
            | Family::Place
            | Family::Read
            | Family::ReadLane
            | Family::WriteLane
            | Family::End(_)
            | Family::Id(_)
            | Family::Exchange
            | Family::Meeting
            | Family::Atomic
            | Family::Check => {}
        }
    }
}

/// The lesser of each.
fn least(a: &[u32], b: &[u32]) -> Vec<u32> {
    a.iter().zip(b).map(|(a, b)| *a.min(b)).collect()
}
