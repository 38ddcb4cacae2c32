//! The launch program: number of workgroups from workload arguments, evaluated on the host in 64 bits.
//!
//! - Nothing is parsed or looked up; a program of at most 64 values, without a loop that carries several,
//!   allocates nothing.
//! - Loops count against a step limit, so a hostile program ends.
//! - Not here: what a backend does with the counts.

use crate::eval::{self, Op};
use crate::ir::{self, BlockId, Body, Parameter, ParameterKind, ValueId};
use crate::ops::{Family, IntPredicate, OpKind};
use crate::types::{ScalarType, Type};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Values that are kept on the stack.
const INLINE_VALUES: usize = 64;

/// The most ops one evaluation runs.
const MAX_STEPS: u64 = 1 << 20;

/// How many workgroups of which size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Workgroups per axis. A zero means no work.
    pub workgroups: [u32; 3],
    /// Work-items per workgroup and axis.
    pub workgroup_size: [u32; 3],
}

/// Why a launch has no geometry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The caller passes other arguments than the kernel has.
    #[error("the kernel has {expected} workload arguments, {found} were given")]
    Arguments {
        /// Of the kernel.
        expected: usize,
        /// Of the caller.
        found: usize,
    },
    /// An `offset` above 2^63 − 1.
    #[error("workload argument {argument} is an offset, {found} is above 2^63 - 1")]
    Offset {
        /// Position in the workload.
        argument: usize,
        /// The slot.
        found: u64,
    },
    /// A negative count, or one that no device takes.
    #[error("{found} workgroups on axis {axis}; accepted: 0 to {}", u32::MAX)]
    Count {
        /// 0, 1 or 2.
        axis: usize,
        /// As computed.
        found: i64,
    },
    /// The program ran too long.
    #[error("the launch program ran more than {MAX_STEPS} ops")]
    Steps,
}

/// The specialised launch region of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchProgram {
    /// Workload arguments, one 64-bit slot each.
    pub workload: Vec<Parameter>,
    /// Constant after specialisation.
    pub workgroup_size: [u32; 3],
    /// Scalar and pure; its entry block ends in a `Yield` of the three counts.
    pub(crate) body: Body,
}

impl LaunchProgram {
    /// The geometry for these workload arguments: one slot each, the value's bits in its low end, the rest ignored.
    ///
    /// # Errors
    /// Another number of arguments, an offset out of range, a count out of range, and a program that does not end.
    pub fn geometry(&self, workload: &[u64]) -> Result<Geometry, LaunchError> {
        if workload.len() != self.workload.len() {
            return Err(LaunchError::Arguments { expected: self.workload.len(), found: workload.len() });
        }
        if self.body.values.len() <= INLINE_VALUES {
            self.evaluate(workload, &mut [0; INLINE_VALUES][..self.body.values.len()])
        } else {
            self.evaluate(workload, &mut vec![0; self.body.values.len()])
        }
    }

    fn evaluate(&self, workload: &[u64], values: &mut [u64]) -> Result<Geometry, LaunchError> {
        // Only the default program, of no kernel, has no blocks.
        let Some(entry) = self.body.blocks.first() else {
            return Ok(Geometry { workgroups: [0; 3], workgroup_size: self.workgroup_size });
        };
        for (at, (argument, slot)) in entry.arguments.iter().zip(workload).enumerate() {
            let ParameterKind::Scalar(ty) = self.workload[at].kind else {
                continue;
            };
            if ty == ScalarType::Offset && *slot >> 63 == 1 {
                return Err(LaunchError::Offset { argument: at, found: *slot });
            }
            values[argument.index()] = slot & (u64::MAX >> (64 - ty.bits()));
        }
        let mut run = Run { body: &self.body, values, steps: 0 };
        let counts = run.block(Body::ENTRY)?;
        let mut workgroups = [0; 3];
        for (axis, (count, value)) in workgroups.iter_mut().zip(counts).enumerate() {
            let found = run.values[value.index()] as i64;
            *count = u32::try_from(found).map_err(|_| LaunchError::Count { axis, found })?;
        }
        Ok(Geometry { workgroups, workgroup_size: self.workgroup_size })
    }
}

/// Runs some ops of one block of a body of scalars, at most `steps`.
pub(crate) fn run_ops(
    body: &Body,
    values: &mut [u64],
    block: BlockId,
    ops: Range<usize>,
    steps: u64,
) -> Result<(), LaunchError> {
    // The steps that are left of the limit are those that may be made.
    let mut run = Run { body, values, steps: MAX_STEPS.saturating_sub(steps) };
    let ops = body.block(block).ops.get(ops).unwrap_or_default();
    ops.iter().try_for_each(|op| run.op(op))
}

struct Run<'a> {
    body: &'a Body,
    values: &'a mut [u64],
    steps: u64,
}

impl<'a> Run<'a> {
    /// Runs a block: the operands of its terminator. Depth is bounded by the syntax.
    fn block(&mut self, id: BlockId) -> Result<&'a [ValueId], LaunchError> {
        for op in &self.body.block(id).ops {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(LaunchError::Steps);
            }
            if matches!(op.kind, OpKind::Yield | OpKind::Condition) {
                return Ok(&op.operands);
            }
            self.op(op)?;
        }
        Ok(&[])
    }

    fn get(&self, value: ValueId) -> u64 {
        self.values[value.index()]
    }

    /// Copies `from` to `to` as if all at once.
    fn pass(&mut self, from: &[ValueId], to: &[ValueId]) {
        // One at a time would be wrong when a loop swaps its carried values.
        if let ([from], [to]) = (from, to) {
            self.values[to.index()] = self.get(*from);
            return;
        }
        let values: Vec<u64> = from.iter().map(|value| self.get(*value)).collect();
        for (to, value) in to.iter().zip(values) {
            self.values[to.index()] = value;
        }
    }

    fn element(&self, value: ValueId) -> ScalarType {
        match self.body.ty(value) {
            Type::Scalar(scalar) => *scalar,
            // Building refuses anything but scalars here.
            Type::Vector(_) | Type::Buffer | Type::View(_) | Type::Async(_) => ScalarType::Index,
        }
    }

    fn op(&mut self, op: &'a ir::Op) -> Result<(), LaunchError> {
        let operand = |run: &Self, at: usize| op.operands.get(at).map_or(0, |value| run.get(*value));
        let (a, b, c) = (operand(self, 0), operand(self, 1), operand(self, 2));
        let ty = op.operands.first().map_or(ScalarType::Index, |value| self.element(*value));
        let value = match op.kind.family() {
            Family::Constant(bits) => bits,
            Family::Element(element) => {
                let to = op.result().map_or(ty, |result| self.element(result));
                Op::new(element, ty, to).evaluate([a, b, c])
            }
            Family::Branch(branch) => {
                let values = self.block(op.blocks[branch.block(a)])?;
                self.pass(values, &op.results);
                return Ok(());
            }
            Family::Counted => return self.count(op, ty, [a, b, c]),
            Family::Unbounded => {
                let (before, after) = (op.blocks[0], op.blocks[1]);
                self.pass(&op.operands, &self.body.block(before).arguments);
                loop {
                    let values = self.block(before)?;
                    if self.get(values[0]) != 1 {
                        self.pass(&values[1..], &op.results);
                        return Ok(());
                    }
                    self.pass(&values[1..], &self.body.block(after).arguments);
                    let state = self.block(after)?;
                    self.pass(state, &self.body.block(before).arguments);
                }
            }
            // Building refuses vectors, memory and work-items in a launch region.
            Family::Vector
            | Family::Scratch(_)
            | Family::Place
            | Family::Read
            | Family::Write
            | Family::ReadLane
            | Family::WriteLane
            | Family::End(_)
            | Family::Id(_)
            | Family::Exchange
            | Family::Meeting
            | Family::Atomic
            | Family::Exit
            | Family::Check => return Ok(()),
        };
        if let Some(result) = op.result() {
            self.values[result.index()] = value;
        }
        Ok(())
    }

    fn count(&mut self, op: &'a ir::Op, ty: ScalarType, [low, high, step]: [u64; 3]) -> Result<(), LaunchError> {
        let block = op.blocks[0];
        let arguments = &self.body.block(block).arguments;
        let below = if ty == ScalarType::Offset { IntPredicate::Ult } else { IntPredicate::Slt };
        self.pass(&op.operands[3..], &arguments[1..]);
        let mut at = low;
        while eval::compare_int(below, ty, at, high) {
            self.values[arguments[0].index()] = at;
            let values = self.block(block)?;
            self.pass(values, &arguments[1..]);
            // Past the end of the type the loop is over; a step of zero runs into the step limit.
            let next = at.wrapping_add(step);
            if eval::compare_int(below, ty, next, at) {
                break;
            }
            at = next;
        }
        self.pass(&arguments[1..], &op.results);
        Ok(())
    }
}
