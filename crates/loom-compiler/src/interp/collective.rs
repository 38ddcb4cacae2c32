//! Who meets whom, and what they tell each other.
//!
//! - Items run on their own until each stands at an op that needs others. *Together* at such an op are the items of the scope
//!   that came there by the same way: the same blocks, in the same turns of their loops.
//! - Ways are ordered as a machine would run them that takes a branch's sides one after the other and a loop's turns in
//!   step: the earliest goes on first, so that whoever left a branch early is there again after it.
//! - Exchanges of a subgroup are between those who are together. At a barrier, and at whatever the whole workgroup does,
//!   everybody must be, but for items that `kernel.exit` has ended.

use super::{Fault, Item, Machine, Slot, State, collect};
use crate::eval;
use crate::ir::Op;
use crate::ops::{BarrierScope, Combine, Family, OpKind, REDUCTION_CHAINS, Scan, ShuffleMode};
use crate::types::ScalarType;

/// A way to an op: for each block around it (turn, which of its owner's blocks, position).
type Way = Vec<(u64, usize, usize)>;

impl<'k> Machine<'k, '_, '_> {
    fn waiting_op(&self, item: &Item) -> Option<&'k Op> {
        let frame = item.frames.last().filter(|_| item.state == State::Waiting)?;
        self.body().block(frame.block).ops.get(frame.at)
    }

    fn way(&self, item: &Item) -> Way {
        let mut owner: Option<&Op> = None;
        let mut way = Vec::with_capacity(item.frames.len());
        for frame in &item.frames {
            let which = owner.and_then(|op| op.blocks.iter().position(|block| *block == frame.block));
            way.push((frame.turn, which.unwrap_or(0), frame.at));
            owner = self.body().block(frame.block).ops.get(frame.at);
        }
        way
    }

    /// The items that came the earliest way, and the op they wait at.
    fn earliest(&self, items: &[Item]) -> Option<(Vec<usize>, &'k Op)> {
        let waiting = items.iter().enumerate().filter(|(_, item)| item.state == State::Waiting);
        let ways: Vec<(usize, Way)> = waiting.map(|(at, item)| (at, self.way(item))).collect();
        let least = ways.iter().map(|(_, way)| way).min()?;
        let members: Vec<usize> = ways.iter().filter(|(_, way)| way == least).map(|(at, _)| *at).collect();
        let op = self.waiting_op(&items[*members.first()?])?;
        Some((members, op))
    }

    /// Lets those go on who need nobody else.
    pub(super) fn meet(&mut self, items: &mut [Item]) -> Result<(), Fault> {
        let remaining = |items: &[Item]| items.iter().filter(|item| item.state != State::Gone).count();
        let mut progress = false;
        for group in items.chunks_mut(self.kernel.subgroup_size as usize) {
            let Some((members, op)) = self.earliest(group) else {
                continue;
            };
            let all = members.len() == remaining(group);
            match op.kind.family() {
                // A tile is spread over all lanes.
                Family::Exchange if matches!(op.kind, OpKind::Mma(_) | OpKind::FragmentRepack { .. }) => {
                    if members.len() != group.len() {
                        return Err(Fault::Diverged { at: op.span });
                    }
                }
                Family::Exchange => {}
                _ if op.kind == OpKind::Barrier(BarrierScope::Subgroup) => {
                    if !all {
                        return Err(Fault::Diverged { at: op.span });
                    }
                }
                _ => continue,
            }
            self.exchange(group, &members, op);
            progress = true;
        }
        if progress {
            return Ok(());
        }
        let Some((members, op)) = self.earliest(items) else {
            return Ok(());
        };
        if members.len() != remaining(items) {
            return Err(Fault::Diverged { at: op.span });
        }
        self.exchange(items, &members, op);
        Ok(())
    }

    /// Gives each of the `members` of a scope its results, and steps over the op.
    fn exchange(&self, items: &mut [Item], members: &[usize], op: &'k Op) {
        let results: Vec<Vec<Slot>> = match op.kind {
            OpKind::Mma(product) => self.mma(items, op, product),
            OpKind::FragmentRepack { from, to } => self.repack(items, op, from, to),
            OpKind::WorkgroupReduce(combine) => {
                let all = members.iter().map(|item| (*item, *item));
                vec![vec![self.combined(items, op, combine, all)]; members.len()]
            }
            _ => members.iter().map(|at| self.told(items, members, *at, op)).collect(),
        };
        for (at, results) in members.iter().zip(results) {
            let item = &mut items[*at];
            for (value, slot) in op.results.iter().zip(results) {
                item.slots[value.index()] = slot;
            }
            item.step_over();
            item.state = State::Ready;
        }
    }

    /// What item `at` gets to know.
    fn told(&self, items: &[Item], members: &[usize], at: usize, op: &Op) -> Vec<Slot> {
        let operand = |of: usize, operand: usize| items[of].scalar(op.operands[operand]);
        let is_member = |lane: &usize| members.contains(lane);
        let mask = |holds: &dyn Fn(usize) -> bool| {
            members.iter().filter(|lane| holds(**lane)).fold(0u64, |mask, lane| mask | 1 << lane)
        };
        match op.kind {
            OpKind::SubgroupShuffle(mode) => {
                let (offset, width) = (operand(at, 1) as u32, operand(at, 2) as u32);
                let source = shuffle_source(mode, at as u32, offset, width, self.kernel.subgroup_size);
                let source = source.filter(is_member);
                let value = items[source.unwrap_or(at)].slot(op.operands[0]);
                vec![value, Slot::Scalar(u64::from(source.is_some()))]
            }
            OpKind::SubgroupReduce { combine, size, stride } => {
                let lanes = cluster(at, size, stride).enumerate().filter(|(_, lane)| is_member(lane));
                vec![self.combined(items, op, combine, lanes)]
            }
            OpKind::SubgroupScan { combine, scan, size, stride } => {
                vec![self.scanned(items, op, combine, scan, at, cluster(at, size, stride).filter(is_member))]
            }
            OpKind::SubgroupBroadcast => {
                let lane = Some(operand(at, 1) as usize).filter(is_member);
                vec![items[lane.unwrap_or(at)].slot(op.operands[0])]
            }
            OpKind::SubgroupBroadcastFirst => vec![items[members[0]].slot(op.operands[0])],
            OpKind::SubgroupBallot => vec![Slot::Scalar(mask(&|lane| operand(lane, 0) == 1))],
            OpKind::SubgroupMatchAny => vec![Slot::Scalar(mask(&|lane| operand(lane, 0) == operand(at, 0)))],
            OpKind::SubgroupMatchAll => {
                let same = members.iter().all(|lane| operand(*lane, 0) == operand(at, 0));
                let lanes = if same { mask(&|_| true) } else { 0 };
                vec![Slot::Scalar(lanes), Slot::Scalar(u64::from(same))]
            }
            OpKind::WorkgroupScan(combine, scan) => {
                vec![self.scanned(items, op, combine, scan, at, members.iter().copied())]
            }
            // A barrier tells nothing, and what tells everybody the same is settled already.
            _ => Vec::new(),
        }
    }

    /// The operands of `members`, each with its position, combined in the order of [`OpKind::SubgroupReduce`], lane by lane.
    fn combined(
        &self,
        items: &[Item],
        op: &Op,
        combine: Combine,
        members: impl Iterator<Item = (usize, usize)>,
    ) -> Slot {
        let mut chains: Vec<Option<Vec<u64>>> = vec![None; REDUCTION_CHAINS];
        for (position, at) in members {
            let chain = &mut chains[position % REDUCTION_CHAINS];
            self.join(op, combine, chain, items[at].lanes(op.operands[0]));
        }
        while chains.len() > 1 {
            let upper = chains.split_off(chains.len() / 2);
            for (a, b) in chains.iter_mut().zip(upper) {
                if let Some(b) = b {
                    self.join(op, combine, a, &b);
                }
            }
        }
        self.or_identity(op, combine, chains.pop().flatten())
    }

    /// Combines what there is with `value`, lane by lane.
    fn join(&self, op: &Op, combine: Combine, sum: &mut Option<Vec<u64>>, value: &[u64]) {
        let element = self.body().ty(op.operands[0]).element().unwrap_or(ScalarType::I64);
        match sum {
            Some(sum) => {
                for (a, b) in sum.iter_mut().zip(value) {
                    *a = eval::binary(combine.binary(), element, *a, *b);
                }
            }
            None => *sum = Some(value.to_vec()),
        }
    }

    fn or_identity(&self, op: &Op, combine: Combine, value: Option<Vec<u64>>) -> Slot {
        let ty = self.body().ty(op.operands[0]);
        let element = ty.element().unwrap_or(ScalarType::I64);
        let identity = || vec![eval::identity(combine, element); ty.lanes().unwrap_or(1) as usize];
        collect(ty, value.unwrap_or_else(identity).into_iter())
    }

    /// What comes before item `at` among `members`, combined from the far end.
    fn scanned(
        &self,
        items: &[Item],
        op: &Op,
        combine: Combine,
        scan: Scan,
        at: usize,
        members: impl Iterator<Item = usize>,
    ) -> Slot {
        let before = |lane: &usize| if scan.reverse { *lane >= at } else { *lane <= at };
        let mut before: Vec<usize> = members.filter(|lane| before(lane) && (*lane != at || !scan.exclusive)).collect();
        if scan.reverse {
            before.reverse();
        }
        let mut sum = None;
        for lane in before {
            self.join(op, combine, &mut sum, items[lane].lanes(op.operands[0]));
        }
        self.or_identity(op, combine, sum)
    }
}

/// The lanes of the cluster that `lane` is in, ascending, whether they are there or not.
fn cluster(lane: usize, size: u32, stride: u32) -> impl Iterator<Item = usize> {
    let (size, stride) = (size as usize, stride as usize);
    let base = lane / (size * stride) * (size * stride) + lane % stride;
    (0..size).map(move |k| base + k * stride)
}

/// The lane read by lane `lane` of a subgroup; `None` if that is not valid.
fn shuffle_source(mode: ShuffleMode, lane: u32, offset: u32, width: u32, subgroup: u32) -> Option<usize> {
    if !width.is_power_of_two() || width > subgroup {
        return None;
    }
    let local = lane % width;
    let source = match mode {
        ShuffleMode::Xor => Some(local ^ offset),
        ShuffleMode::Up => local.checked_sub(offset),
        ShuffleMode::Down => local.checked_add(offset),
        ShuffleMode::Index => Some(offset),
    };
    source.filter(|source| *source < width).map(|source| (lane - local + source) as usize)
}
