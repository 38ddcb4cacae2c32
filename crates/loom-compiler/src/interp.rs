//! A scalar, bounds-checked interpreter: slow, plain, and what every executor is compared with.
//!
//! ```text
//! workgroup ── items, each with its own values and stack of blocks
//!    run every item until it ends or meets a barrier or collective
//!    then let those go on who stand at the earliest one together: of a subgroup, or of the workgroup
//! ```
//!
//! - Workgroups run in ascending order (x fastest), items in ascending flat id, so a kernel without races has one result.
//! - Every access is checked against the view's extents and the buffer's bytes; every op counts against a step limit.
//! - Workgroup memory starts as the byte 0xA5, so that reading what nobody wrote shows.
//! - Not here: what ops compute on bits (`eval`).

mod atomic;
mod collective;
mod fragment;
mod packed;

use std::collections::HashMap;
use std::rc::Rc;

use crate::copies;
use crate::eval;
use crate::ir::{BlockId, Body, Kernel, Op, ParameterKind, Span, ValueId};
use crate::launch::Geometry;
use crate::ops::{Convert, Element, End, Family, IdKind, IntPredicate, OpKind, Space};
use crate::types::{Dim, ScalarType, Type};

/// What a launch argument is bound to.
#[derive(Debug)]
pub enum Argument<'a> {
    /// The bytes of a binding.
    Buffer(&'a mut [u8]),
    /// A slot whose low bits hold the value; the rest is ignored.
    Scalar(u64),
    /// A binding that is part of another one's bytes: from byte `start` of argument `argument` on.
    Part {
        /// Which argument, itself a [`Argument::Buffer`].
        argument: usize,
        /// First byte.
        start: usize,
        /// How many.
        bytes: usize,
    },
}

/// What a run may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Ops of all items together.
    pub steps: u64,
    /// Bytes for the values of one workgroup's items.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 1 << 32, bytes: 1 << 30 }
    }
}

/// Why a run stopped. What was written before stays written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The arguments do not fit the signature.
    #[error("argument {argument}: the kernel takes {expected}")]
    Argument {
        /// Position; the number of parameters if there are too few or too many.
        argument: usize,
        /// `a buffer`, a scalar type, or the number of arguments.
        expected: String,
    },
    /// An access outside a view or its buffer.
    #[error("{index} is outside {limit} (axis {axis} of the access at byte {} of the source)", at.start)]
    OutOfBounds {
        /// The axis; the rank of the view when it is the buffer that is too short.
        axis: usize,
        /// The index on that axis, or the last byte accessed.
        index: i128,
        /// The extent, or the buffer's length in bytes.
        limit: u64,
        /// The op.
        at: Span,
    },
    /// More ops than [`Limits::steps`].
    #[error("ran more than {limit} ops: its `steps_max`")]
    Steps {
        /// The limit.
        limit: u64,
    },
    /// More memory than [`Limits::bytes`].
    #[error("one workgroup's values need {needed} bytes, {limit} are allowed")]
    Memory {
        /// For all items.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// Items of one scope do not meet at the same barrier or collective.
    #[error("work-items part before the barrier or collective at byte {} of the source", at.start)]
    Diverged {
        /// The op that some arrived at.
        at: Span,
    },
    /// An atomic access to a cell that does not start at a multiple of its size.
    #[error("an atomic access to {bytes} bytes at {index} (the access at byte {} of the source)", at.start)]
    Misaligned {
        /// The first byte, in the buffer.
        index: i128,
        /// Size of the cell.
        bytes: usize,
        /// The op.
        at: Span,
    },
    /// A `kernel.assert` that does not hold.
    #[error("assertion {text:?} (at byte {} of the source) fails for work-item {item:?} of the dispatch", at.start)]
    Assert {
        /// As written.
        text: String,
        /// The dispatch id.
        item: [u64; 3],
        /// The op.
        at: Span,
    },
}

/// Runs `kernel` over every workgroup of `geometry`.
///
/// # Errors
/// Arguments that do not fit, and the first [`Fault`] of any item.
pub fn run(kernel: &Kernel, geometry: Geometry, arguments: &mut [Argument<'_>], limits: Limits) -> Result<(), Fault> {
    check_arguments(kernel, arguments)?;
    let made = copies::at_once(kernel);
    let kernel = made.as_ref().unwrap_or(kernel);
    let items = u64::from(kernel.items());
    let slot = |ty: &Type| 32 + 8 * ty.lanes().filter(|_| ty.scalar().is_none()).unwrap_or(0);
    let needed = items * kernel.body.values.iter().map(|value| slot(&value.ty)).sum::<u64>();
    if needed > limits.bytes {
        return Err(Fault::Memory { needed, limit: limits.bytes });
    }
    let mut machine = Machine {
        kernel,
        geometry,
        arguments,
        limits,
        steps: 0,
        workgroup: [0; 3],
        shared: HashMap::new(),
        spare: Vec::new(),
    };
    let [nx, ny, nz] = geometry.workgroups;
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                machine.workgroup = [x, y, z];
                machine.run_workgroup()?;
            }
        }
    }
    Ok(())
}

fn check_arguments(kernel: &Kernel, arguments: &[Argument<'_>]) -> Result<(), Fault> {
    if arguments.len() != kernel.parameters.len() {
        let expected = format!("{} arguments", kernel.parameters.len());
        return Err(Fault::Argument { argument: kernel.parameters.len(), expected });
    }
    for (at, (argument, parameter)) in arguments.iter().zip(&kernel.parameters).enumerate() {
        let expected = match (argument, parameter.kind) {
            (Argument::Part { argument, start, bytes }, ParameterKind::Buffer) => match arguments.get(*argument) {
                Some(Argument::Buffer(whole)) if start.checked_add(*bytes).is_some_and(|end| end <= whole.len()) => {
                    continue;
                }
                _ => "part of the bytes of another argument".to_owned(),
            },
            (Argument::Buffer(_), ParameterKind::Buffer) | (Argument::Scalar(_), ParameterKind::Scalar(_)) => continue,
            (Argument::Scalar(_), ParameterKind::Buffer) => "a buffer".to_owned(),
            (Argument::Buffer(_) | Argument::Part { .. }, ParameterKind::Scalar(ty)) => ty.to_string(),
        };
        return Err(Fault::Argument { argument: at, expected });
    }
    Ok(())
}

/// A storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// A launch argument.
    Argument(usize),
    /// Scratch of the workgroup, named by the op that made it.
    Shared(ValueId),
    /// Scratch of the item.
    Private(ValueId),
}

/// What a value is while it runs.
#[derive(Clone, Debug)]
enum Slot {
    Unset,
    Scalar(u64),
    Lanes(Rc<[u64]>),
    Buffer(Root),
    View(Root, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// At the barrier or collective that the top frame points at.
    Waiting,
    /// Ended with the kernel.
    Done,
    /// Left by `kernel.exit`.
    Gone,
}

/// A block being run: the op that owns the block is the one the frame below points at.
#[derive(Clone, Copy, Debug)]
struct Frame {
    block: BlockId,
    at: usize,
    /// How often the op that owns the block has run it before, since the item came to that op.
    turn: u64,
}

struct Item {
    local: [u32; 3],
    flat: u32,
    slots: Vec<Slot>,
    frames: Vec<Frame>,
    /// What is being passed; empty in between.
    passing: Vec<Slot>,
    private: HashMap<ValueId, Vec<u8>>,
    state: State,
    /// Runs the block of a `kernel.exit`.
    leaving: bool,
}

struct Machine<'k, 'a, 'b> {
    kernel: &'k Kernel,
    geometry: Geometry,
    arguments: &'a mut [Argument<'b>],
    limits: Limits,
    steps: u64,
    workgroup: [u32; 3],
    shared: HashMap<ValueId, Vec<u8>>,
    /// Memory for the values of items that have ended.
    spare: Vec<Vec<Slot>>,
}

impl<'k> Machine<'k, '_, '_> {
    fn body(&self) -> &'k Body {
        &self.kernel.body
    }

    fn run_workgroup(&mut self) -> Result<(), Fault> {
        self.shared.clear();
        let [sx, sy, sz] = self.kernel.workgroup_size;
        let mut items = Vec::new();
        for z in 0..sz {
            for y in 0..sy {
                for x in 0..sx {
                    items.push(self.item([x, y, z], x + sx * (y + sy * z)));
                }
            }
        }
        loop {
            for item in &mut items {
                if item.state == State::Ready {
                    self.run_item(item)?;
                }
            }
            if items.iter().all(|item| matches!(item.state, State::Done | State::Gone)) {
                return Ok(());
            }
            self.meet(&mut items)?;
        }
    }

    fn item(&self, local: [u32; 3], flat: u32) -> Item {
        let frames = vec![Frame { block: Body::ENTRY, at: 0, turn: 0 }];
        Item {
            local,
            flat,
            slots: Vec::new(),
            frames,
            passing: Vec::new(),
            private: HashMap::new(),
            state: State::Ready,
            leaving: false,
        }
    }

    /// The values of an item that has not run yet.
    fn slots(&mut self) -> Vec<Slot> {
        let body = self.body();
        let mut slots = self.spare.pop().unwrap_or_default();
        slots.clear();
        slots.resize(body.values.len(), Slot::Unset);
        for (at, value) in body.block(Body::ENTRY).arguments.iter().enumerate() {
            slots[value.index()] = match (&self.arguments[at], body.ty(*value).scalar()) {
                (Argument::Scalar(slot), Some(ty)) => Slot::Scalar(slot & (u64::MAX >> (64 - ty.bits()))),
                _ => Slot::Buffer(Root::Argument(at)),
            };
        }
        slots
    }

    // One item.

    fn run_item(&mut self, item: &mut Item) -> Result<(), Fault> {
        let body = self.body();
        if item.slots.is_empty() {
            item.slots = self.slots();
        }
        while let Some(frame) = item.frames.last().copied() {
            let Some(op) = body.block(frame.block).ops.get(frame.at) else {
                break;
            };
            self.steps += 1;
            if self.steps > self.limits.steps {
                return Err(Fault::Steps { limit: self.limits.steps });
            }
            match op.kind.family() {
                Family::End(End::Return) => break,
                Family::Exchange | Family::Meeting => {
                    item.state = State::Waiting;
                    return Ok(());
                }
                Family::Branch(branch) => {
                    let block = op.blocks[branch.block(item.scalar(op.operands[0]))];
                    item.frames.push(Frame { block, at: 0, turn: 0 });
                }
                Family::Counted => {
                    let block = op.blocks[0];
                    let arguments = &body.block(block).arguments;
                    let low = item.scalar(op.operands[0]);
                    if below(body, op, low, item.scalar(op.operands[1])) {
                        item.pass(&op.operands[3..], &arguments[1..]);
                        item.slots[arguments[0].index()] = Slot::Scalar(low);
                        item.frames.push(Frame { block, at: 0, turn: 0 });
                    } else {
                        item.pass(&op.operands[3..], &op.results);
                        item.step_over();
                    }
                }
                Family::Unbounded => {
                    let block = op.blocks[0];
                    item.pass(&op.operands, &body.block(block).arguments);
                    item.frames.push(Frame { block, at: 0, turn: 0 });
                }
                Family::End(End::Yield) => self.yielded(item, op),
                Family::End(End::Condition) => {
                    let turn = frame.turn;
                    let Some(owner) = self.leave(item) else { break };
                    if item.scalar(op.operands[0]) == 1 {
                        let block = owner.blocks[1];
                        item.pass(&op.operands[1..], &body.block(block).arguments);
                        item.frames.push(Frame { block, at: 0, turn });
                    } else {
                        item.pass(&op.operands[1..], &owner.results);
                        item.step_over();
                    }
                }
                Family::Exit => {
                    if item.scalar(op.operands[0]) == 1 {
                        item.leaving = true;
                        item.frames.push(Frame { block: op.blocks[0], at: 0, turn: 0 });
                    } else {
                        item.step_over();
                    }
                }
                Family::Check => {
                    if let OpKind::Assert(text) = &op.kind
                        && item.scalar(op.operands[0]) != 1
                    {
                        let id = |axis: usize| {
                            let size = u64::from(self.kernel.workgroup_size[axis]);
                            u64::from(self.workgroup[axis]) * size + u64::from(item.local[axis])
                        };
                        return Err(Fault::Assert { text: text.to_string(), item: [0, 1, 2].map(id), at: op.span });
                    }
                    item.step_over();
                }
                Family::Constant(bits) if is_alone(body, op) => item.becomes(op, bits),
                Family::Element(element) if is_alone(body, op) => {
                    let bits = [0, 1, 2].map(|at| op.operands.get(at).map_or(0, |value| item.scalar(*value)));
                    item.becomes(op, lane(body, op, element, bits));
                }
                Family::Id(id) => item.becomes(op, self.id(item, id)),
                Family::Read if matches!(op.kind, OpKind::Load) && is_alone(body, op) => {
                    let access = Access::new(body, item, op.operands[0], &op.operands[1..], &[]);
                    let bits = self.load(item, op, &access, 0)?;
                    item.becomes(op, bits);
                }
                Family::Constant(_)
                | Family::Element(_)
                | Family::Vector
                | Family::Scratch(_)
                | Family::Place
                | Family::Read
                | Family::Write
                | Family::Atomic
                | Family::ReadLane
                | Family::WriteLane => {
                    let slot = self.value(item, op)?;
                    if let Some(result) = op.result() {
                        item.slots[result.index()] = slot;
                    }
                    item.step_over();
                }
            }
        }
        item.state = if item.leaving { State::Gone } else { State::Done };
        self.spare.push(std::mem::take(&mut item.slots));
        Ok(())
    }

    /// Leaves the current block: the op that owns it.
    fn leave(&self, item: &mut Item) -> Option<&'k Op> {
        item.frames.pop();
        let frame = item.frames.last()?;
        self.body().block(frame.block).ops.get(frame.at)
    }

    fn yielded(&self, item: &mut Item, op: &Op) {
        let body = self.body();
        let turn = item.frames.last().map_or(0, |frame| frame.turn) + 1;
        let Some(owner) = self.leave(item) else {
            return;
        };
        match owner.kind {
            OpKind::For => {
                let block = owner.blocks[0];
                let arguments = &body.block(block).arguments;
                let at = item.scalar(arguments[0]);
                let next = at.wrapping_add(item.scalar(owner.operands[2]));
                item.pass(&op.operands, &arguments[1..]);
                // A step past the end of the type ends the loop; a step of zero runs into the step limit.
                if !below(body, owner, next, at) && below(body, owner, next, item.scalar(owner.operands[1])) {
                    item.slots[arguments[0].index()] = Slot::Scalar(next);
                    item.frames.push(Frame { block, at: 0, turn });
                } else {
                    item.pass(&arguments[1..], &owner.results);
                    item.step_over();
                }
            }
            OpKind::While => {
                let block = owner.blocks[0];
                item.pass(&op.operands, &body.block(block).arguments);
                item.frames.push(Frame { block, at: 0, turn });
            }
            _ => {
                item.pass(&op.operands, &owner.results);
                item.step_over();
            }
        }
    }

    /// The result of an op without blocks that meets nobody.
    fn value(&mut self, item: &mut Item, op: &Op) -> Result<Slot, Fault> {
        let body = self.body();
        let operand = |at: usize| item.lanes(op.operands[at]);
        let element = |at: usize| body.ty(op.operands[at]).element().unwrap_or(ScalarType::I64);
        let result_ty = op.result().map_or(&Type::Buffer, |result| body.ty(result));
        let count = result_ty.lanes().unwrap_or(1) as usize;
        let lanes: Vec<u64> = match &op.kind {
            OpKind::Constant(bits) => return Ok(collect(result_ty, (0..count).map(|_| *bits))),
            OpKind::Convert(Convert::Bitcast) => {
                let to = result_ty.element().unwrap_or(ScalarType::I64);
                regroup(operand(0), element(0).bits(), to.bits(), count)
            }
            OpKind::Select if !matches!(body.ty(op.operands[0]), Type::Vector(_)) => {
                return Ok(item.slot(op.operands[if item.scalar(op.operands[0]) == 1 { 1 } else { 2 }]));
            }
            OpKind::Unary(_)
            | OpKind::Binary(_)
            | OpKind::Ternary(_)
            | OpKind::CompareI(_)
            | OpKind::CompareF(_)
            | OpKind::Classify(_)
            | OpKind::Convert(_)
            | OpKind::Select => {
                let Family::Element(element) = op.kind.family() else {
                    return Ok(Slot::Unset);
                };
                let operands = [0, 1, 2].map(|at| op.operands.get(at).map_or(&[][..], |value| item.lanes(*value)));
                let bits = |at: usize| operands.map(|lanes| lanes.get(at).copied().unwrap_or(0));
                return Ok(collect(result_ty, (0..count).map(|at| lane(body, op, element, bits(at)))));
            }
            OpKind::Splat => vec![operand(0)[0]; count],
            OpKind::FromElements => op.operands.iter().map(|value| item.scalar(*value)).collect(),
            OpKind::Iota => {
                let (base, step) = (item.scalar(op.operands[0]), item.scalar(op.operands[1]));
                let mask = u64::MAX >> (64 - element(0).bits());
                (0..count as u64).map(|lane| base.wrapping_add(lane.wrapping_mul(step)) & mask).collect()
            }
            OpKind::MaskRange => {
                let [low, high, step] = [0, 1, 2].map(|at| item.scalar(op.operands[at]) as i64);
                let inside = |lane: i64| u64::from(low.wrapping_add(lane.wrapping_mul(step)) < high);
                (0..count as i64).map(inside).collect()
            }
            OpKind::Extract => {
                let at = part_start(body, item, op, op.operands[0], &op.operands[1..], count)?;
                return Ok(collect(result_ty, operand(0)[at..at + count].iter().copied()));
            }
            OpKind::Insert => {
                let part = operand(0);
                let at = part_start(body, item, op, op.operands[1], &op.operands[2..], part.len())?;
                let mut whole = operand(1).to_vec();
                whole[at..at + part.len()].copy_from_slice(part);
                whole
            }
            OpKind::Reduce(combine) => {
                let sum = operand(0)
                    .iter()
                    .fold(operand(1)[0], |sum, lane| eval::binary(combine.binary(), element(0), sum, *lane));
                vec![sum]
            }
            OpKind::Dot => {
                let (a, b) = (operand(0), operand(1));
                let sum = a.iter().zip(b).fold(operand(2)[0], |sum, (a, b)| {
                    eval::ternary(crate::ops::Ternary::FmaF, element(0), *a, *b, sum)
                });
                vec![sum]
            }
            OpKind::Dot2F => packed::dot2f(element(0), operand(0), operand(1), operand(2)),
            OpKind::Dot4I { a_signed, b_signed } => {
                packed::dot4i(*a_signed, *b_signed, operand(0), operand(1), operand(2))
            }
            OpKind::Lanes(map) => {
                if let [whole] = op.operands[..] {
                    let whole = item.lanes(whole);
                    return Ok(collect(result_ty, map.iter().map(|lane| whole[*lane as usize])));
                }
                let all: Vec<u64> = op.operands.iter().flat_map(|value| item.lanes(*value)).copied().collect();
                return Ok(collect(result_ty, map.iter().map(|lane| all[*lane as usize])));
            }
            OpKind::Bytes(bytes) => {
                let Some(name) = op.result() else {
                    return Ok(Slot::Unset);
                };
                item.private.insert(name, bytes.to_vec());
                return Ok(Slot::Buffer(Root::Private(name)));
            }
            OpKind::Alloca { space, bytes, .. } => return Ok(self.alloca(item, op, *space, *bytes)),
            OpKind::BufferView => {
                let Slot::Buffer(root) = item.slot(op.operands[0]) else {
                    return Ok(Slot::Unset);
                };
                return Ok(Slot::View(root, item.scalar(op.operands[1])));
            }
            OpKind::Subview => {
                let (Slot::View(root, offset), Type::View(view)) = (item.slot(op.operands[0]), body.ty(op.operands[0]))
                else {
                    return Ok(Slot::Unset);
                };
                let mut at = i128::from(offset);
                for (index, stride) in op.operands[1..].iter().zip(&view.strides) {
                    let index = i128::from(item.scalar(*index) as i64);
                    at += index * i128::from(item.dim(*stride)) * i128::from(view.element.bytes());
                }
                return match u64::try_from(at) {
                    Ok(offset) => Ok(Slot::View(root, offset)),
                    Err(_) => {
                        Err(Fault::OutOfBounds { axis: view.dims.len(), index: at, limit: u64::MAX, at: op.span })
                    }
                };
            }
            OpKind::Refine => return Ok(item.slot(op.operands[0])),
            OpKind::Load => {
                let access = Access::new(body, item, op.operands[0], &op.operands[1..], extents(result_ty));
                (0..count).map(|lane| self.load(item, op, &access, lane)).collect::<Result<_, _>>()?
            }
            OpKind::LoadMask => {
                let (indices, rest) = op.operands[1..].split_at(op.operands.len() - 3);
                let access = Access::new(body, item, op.operands[0], indices, extents(result_ty));
                let mut lanes = item.lanes(rest[1]).to_vec();
                for (lane, value) in lanes.iter_mut().enumerate() {
                    if item.lanes(rest[0])[lane] == 1 {
                        *value = self.load(item, op, &access, lane)?;
                    }
                }
                lanes
            }
            OpKind::Store => {
                let ty = body.ty(op.operands[0]);
                let access = Access::new(body, item, op.operands[1], &op.operands[2..], extents(ty));
                for lane in 0..operand(0).len() {
                    let value = item.lanes(op.operands[0])[lane];
                    self.store(item, op, &access, lane, value)?;
                }
                return Ok(Slot::Unset);
            }
            OpKind::StoreMask => {
                let (indices, rest) = op.operands[2..].split_at(op.operands.len() - 3);
                let access = Access::new(body, item, op.operands[1], indices, extents(body.ty(op.operands[0])));
                for lane in 0..operand(0).len() {
                    if item.lanes(rest[0])[lane] == 1 {
                        let value = item.lanes(op.operands[0])[lane];
                        self.store(item, op, &access, lane, value)?;
                    }
                }
                return Ok(Slot::Unset);
            }
            OpKind::BufferLength => match item.slot(op.operands[0]) {
                Slot::Buffer(root) => vec![self.bytes(item, root).len() as u64],
                _ => return Ok(Slot::Unset),
            },
            OpKind::Gather | OpKind::GatherMask => self.gather(item, op)?,
            OpKind::Scatter | OpKind::ScatterMask => {
                self.scatter(item, op)?;
                return Ok(Slot::Unset);
            }
            OpKind::FragmentLabel(..) => return Ok(item.slot(op.operands[0])),
            OpKind::FragmentLoad(fragment) => self.fragment_load(item, op, *fragment)?,
            OpKind::FragmentStore(fragment) => {
                self.fragment_store(item, op, *fragment)?;
                return Ok(Slot::Unset);
            }
            OpKind::Atomic { .. } => return self.atomic(item, op),
            // Those that `run_item` answers itself, and those that `copies` leaves none of.
            OpKind::AsyncCopy { .. }
            | OpKind::AsyncGroup
            | OpKind::AsyncWait { .. }
            | OpKind::Id(_)
            | OpKind::If
            | OpKind::For
            | OpKind::While
            | OpKind::Switch(_)
            | OpKind::Yield
            | OpKind::Condition
            | OpKind::Return
            | OpKind::Barrier(_)
            | OpKind::SubgroupShuffle(_)
            | OpKind::SubgroupReduce { .. }
            | OpKind::SubgroupBroadcast
            | OpKind::SubgroupBroadcastFirst
            | OpKind::SubgroupScan { .. }
            | OpKind::SubgroupBallot
            | OpKind::SubgroupMatchAny
            | OpKind::SubgroupMatchAll
            | OpKind::WorkgroupReduce(_)
            | OpKind::Mma(_)
            | OpKind::FragmentRepack { .. }
            | OpKind::WorkgroupScan(..)
            | OpKind::Exit
            | OpKind::Assert(_) => return Ok(Slot::Unset),
            // One item runs at a time, and sees what the others did.
            OpKind::Fence { .. } => return Ok(Slot::Unset),
        };
        Ok(collect(result_ty, lanes.into_iter()))
    }

    fn id(&self, item: &Item, id: IdKind) -> u64 {
        u64::from(match id {
            IdKind::WorkItem(axis) => item.local[axis.index()],
            IdKind::WorkGroup(axis) => self.workgroup[axis.index()],
            IdKind::WorkGroupCount(axis) => self.geometry.workgroups[axis.index()],
            IdKind::Dispatch(axis) => {
                let at = axis.index();
                let size = u64::from(self.kernel.workgroup_size[at]);
                return u64::from(self.workgroup[at]) * size + u64::from(item.local[at]);
            }
            IdKind::Subgroup => item.flat / self.kernel.subgroup_size,
            IdKind::SubgroupLane => item.flat % self.kernel.subgroup_size,
        })
    }

    // Memory.

    fn alloca(&mut self, item: &mut Item, op: &Op, space: Space, bytes: u64) -> Slot {
        let Some(name) = op.result() else {
            return Slot::Unset;
        };
        let fresh = || vec![0xa5; bytes as usize];
        match space {
            Space::Workgroup => {
                self.shared.entry(name).or_insert_with(fresh);
                Slot::Buffer(Root::Shared(name))
            }
            Space::Private => {
                item.private.insert(name, fresh());
                Slot::Buffer(Root::Private(name))
            }
        }
    }

    fn bytes<'s>(&'s mut self, item: &'s mut Item, root: Root) -> &'s mut [u8] {
        match root {
            Root::Argument(at) => {
                let (whole, part) = match self.arguments[at] {
                    Argument::Part { argument, start, bytes } => (argument, Some(start..start + bytes)),
                    Argument::Buffer(_) | Argument::Scalar(_) => (at, None),
                };
                let Argument::Buffer(bytes) = &mut self.arguments[whole] else {
                    return &mut [];
                };
                match part {
                    Some(part) => &mut bytes[part],
                    None => bytes,
                }
            }
            Root::Shared(name) => self.shared.entry(name).or_default(),
            Root::Private(name) => item.private.entry(name).or_default(),
        }
    }

    fn load(&mut self, item: &mut Item, op: &Op, access: &Access<'_>, lane: usize) -> Result<u64, Fault> {
        let start = access.byte(item, op, lane)?;
        let bytes = part(self.bytes(item, access.root), start, access.size, access.dims.len(), op)?;
        let mut word = [0; 8];
        word[..access.size].copy_from_slice(bytes);
        Ok(u64::from_le_bytes(word))
    }

    fn store(&mut self, item: &mut Item, op: &Op, access: &Access<'_>, lane: usize, value: u64) -> Result<(), Fault> {
        let start = access.byte(item, op, lane)?;
        let bytes = part(self.bytes(item, access.root), start, access.size, access.dims.len(), op)?;
        bytes.copy_from_slice(&value.to_le_bytes()[..access.size]);
        Ok(())
    }
}

/// `size` bytes from `start`, if the buffer has them.
fn part<'b>(bytes: &'b mut [u8], start: i128, size: usize, rank: usize, op: &Op) -> Result<&'b mut [u8], Fault> {
    let limit = bytes.len() as u64;
    let outside = Fault::OutOfBounds { axis: rank, index: start + size as i128 - 1, limit, at: op.span };
    let Ok(start) = usize::try_from(start) else {
        return Err(outside);
    };
    let Some(end) = start.checked_add(size) else {
        return Err(outside);
    };
    bytes.get_mut(start..end).ok_or(outside)
}

/// Where the lanes of one access lie.
#[derive(Clone, Copy)]
struct Access<'o> {
    root: Root,
    /// Of the view, in bytes.
    offset: u64,
    size: usize,
    /// Index of lane 0.
    origin: &'o [ValueId],
    /// What is added to it on the last axis, and on the one before.
    shift: [i64; 2],
    dims: &'o [Dim],
    strides: &'o [Dim],
    /// Extents of the vector, for the trailing axes; empty for a scalar.
    shape: &'o [Dim],
}

impl<'o> Access<'o> {
    fn new(body: &'o Body, item: &Item, view: ValueId, origin: &'o [ValueId], shape: &'o [Dim]) -> Self {
        let (size, dims, strides): (u64, &[Dim], &[Dim]) = match body.ty(view) {
            Type::View(view) => (view.element.bytes(), &view.dims, &view.strides),
            _ => (1, &[], &[]),
        };
        let (root, offset) =
            if let Slot::View(root, offset) = item.slot(view) { (root, offset) } else { (Root::Argument(0), 0) };
        Self { root, offset, size: size as usize, origin, shift: [0; 2], dims, strides, shape }
    }

    /// The first byte of a lane, its index being inside the view.
    fn byte(&self, item: &Item, op: &Op, lane: usize) -> Result<i128, Fault> {
        let rank = self.dims.len();
        let mut at = i128::from(self.offset);
        let mut rest = lane as u64;
        for axis in (0..rank).rev() {
            let mut index = i128::from(item.scalar(self.origin[axis]) as i64);
            index += i128::from(self.shift.get(rank - 1 - axis).copied().unwrap_or(0));
            if axis + self.shape.len() >= rank {
                let extent = item.dim(self.shape[axis + self.shape.len() - rank]);
                index += i128::from(rest % extent);
                rest /= extent;
            }
            let limit = item.dim(self.dims[axis]);
            if index < 0 || index >= i128::from(limit) {
                return Err(Fault::OutOfBounds { axis, index, limit, at: op.span });
            }
            at += index * i128::from(item.dim(self.strides[axis])) * self.size as i128;
        }
        Ok(at)
    }
}

/// The extents of a vector; none of anything else.
fn extents(ty: &Type) -> &[Dim] {
    match ty {
        Type::Vector(vector) => &vector.dims,
        _ => &[],
    }
}

impl Item {
    fn slot(&self, value: ValueId) -> Slot {
        self.slots[value.index()].clone()
    }

    fn scalar(&self, value: ValueId) -> u64 {
        match &self.slots[value.index()] {
            Slot::Scalar(bits) => *bits,
            Slot::Lanes(lanes) => lanes.first().copied().unwrap_or(0),
            Slot::Unset | Slot::Buffer(_) | Slot::View(..) => 0,
        }
    }

    fn lanes(&self, value: ValueId) -> &[u64] {
        match &self.slots[value.index()] {
            Slot::Lanes(lanes) => lanes,
            Slot::Scalar(bits) => std::slice::from_ref(bits),
            Slot::Unset | Slot::Buffer(_) | Slot::View(..) => &[0],
        }
    }

    fn dim(&self, dim: Dim) -> u64 {
        match dim {
            Dim::Static(extent) => extent,
            Dim::Value(value) => self.scalar(value),
        }
    }

    /// Copies values as if all at once: a loop may swap what it carries.
    fn pass(&mut self, from: &[ValueId], to: &[ValueId]) {
        if let ([from], [to]) = (from, to) {
            self.slots[to.index()] = self.slot(*from);
            return;
        }
        let mut slots = std::mem::take(&mut self.passing);
        slots.extend(from.iter().map(|value| self.slot(*value)));
        for (to, slot) in to.iter().zip(slots.drain(..)) {
            self.slots[to.index()] = slot;
        }
        self.passing = slots;
    }

    /// The one result of `op` is this scalar; goes on.
    fn becomes(&mut self, op: &Op, bits: u64) {
        if let Some(result) = op.result() {
            self.slots[result.index()] = Slot::Scalar(bits);
        }
        self.step_over();
    }

    fn step_over(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.at += 1;
        }
    }
}

/// Whether the loop `op` goes on at `at`.
fn below(body: &Body, op: &Op, at: u64, limit: u64) -> bool {
    let ty = body.ty(op.operands[0]).scalar().unwrap_or(ScalarType::Index);
    let predicate = if ty == ScalarType::Offset { IntPredicate::Ult } else { IntPredicate::Slt };
    eval::compare_int(predicate, ty, at, limit)
}

/// Whether the result is a scalar.
fn is_alone(body: &Body, op: &Op) -> bool {
    op.result().is_some_and(|result| matches!(body.ty(result), Type::Scalar(_)))
        && !op.operands.iter().any(|value| matches!(body.ty(*value), Type::Vector(_)))
}

/// One lane of an element-wise op.
fn lane(body: &Body, op: &Op, element: Element, [a, b, c]: [u64; 3]) -> u64 {
    let ty = body.ty(op.operands[0]).element().unwrap_or(ScalarType::I64);
    match element {
        Element::Unary(kind) => eval::unary(kind, ty, a),
        Element::Binary(kind) => eval::binary(kind, ty, a, b),
        Element::Ternary(kind) => eval::ternary(kind, ty, a, b, c),
        Element::CompareI(predicate) => eval::compare_int(predicate, ty, a, b).into(),
        Element::CompareF(predicate) => eval::compare_float(predicate, ty, a, b).into(),
        Element::Classify(class) => eval::classify(class, ty, a).into(),
        Element::Convert(kind) => {
            let to = op.result().and_then(|result| body.ty(result).element()).unwrap_or(ScalarType::I64);
            eval::convert(kind, ty, to, a)
        }
        Element::Select => {
            if a == 1 {
                b
            } else {
                c
            }
        }
    }
}

/// The value of type `ty` that has these lanes.
fn collect(ty: &Type, mut lanes: impl Iterator<Item = u64>) -> Slot {
    match ty {
        Type::Vector(_) => Slot::Lanes(lanes.collect()),
        _ => Slot::Scalar(lanes.next().unwrap_or(0)),
    }
}

/// The same bits in lanes of another width, lane 0 lowest.
fn regroup(lanes: &[u64], from: u32, to: u32, count: usize) -> Vec<u64> {
    if from == to {
        return lanes.to_vec();
    }
    let bit = |at: u64| lanes[(at / u64::from(from)) as usize] >> (at % u64::from(from)) & 1;
    (0..count as u64)
        .map(|lane| (0..u64::from(to)).fold(0, |word, at| word | bit(lane * u64::from(to) + at) << at))
        .collect()
}

/// The first lane of the part of `whole` that the indices name.
fn part_start(
    body: &Body,
    item: &Item,
    op: &Op,
    whole: ValueId,
    indices: &[ValueId],
    part: usize,
) -> Result<usize, Fault> {
    let Type::Vector(vector) = body.ty(whole) else {
        return Ok(0);
    };
    let mut at = 0;
    for (axis, (index, dim)) in indices.iter().zip(&vector.dims).enumerate() {
        let (index, extent) = (item.scalar(*index), item.dim(*dim));
        if index >= extent {
            return Err(Fault::OutOfBounds { axis, index: i128::from(index as i64), limit: extent, at: op.span });
        }
        at = at * extent as usize + index as usize;
    }
    Ok(at * part)
}
