//! Branches, loops, and what is carried through them.
//!
//! - What control flow decides has a *place*, a register or a slot, that every way into the code after it fills.
//! - The places of a block are filled at once: what one still holds may be read for another.

use std::collections::BTreeSet;

use super::turns::Counted;
use super::{Compiler, Lane, Line, Result, Word, ZERO};
use crate::ir::{BlockId, Op as IrOp, ValueId};
use crate::ops::{Binary, Convert, IntPredicate, OpKind};
use crate::tile::program::{Affine, Block, Condition, Inst, Op, Reg, ScalarInst, SiteId, Slot};
use crate::types::{ScalarType, Type};

/// Where a lane is kept while control flow decides what it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    ty: ScalarType,
    home: Home,
}

#[derive(Clone, Copy, Debug)]
enum Home {
    Reg(Reg),
    Slot(Slot),
}

/// Values that a loop carries times values of the kernel, up to which results are computed in place.
const MAX_WANT: usize = 1 << 24;

impl Compiler<'_> {
    pub(super) fn condition(&mut self, lane: &Lane) -> Result<Condition> {
        Ok(match lane {
            Lane::Uniform(word) => Condition::Slot(self.slot_of(*word)),
            Lane::Compare { predicate, value, limit } => {
                Condition::Compare { predicate: *predicate, value: self.affine(*value), limit: self.slot_of(*limit) }
            }
            Lane::Affine(_)
            | Lane::Reg(_)
            | Lane::Segment(_)
            | Lane::Memory(_)
            | Lane::Later { .. }
            | Lane::Both(_) => Condition::Reg(self.reg(lane, ScalarType::I1)?),
        })
    }

    /// Runs what `fill` emits for the items that satisfy `lane`. Both sides of an `and` narrow one after the other.
    pub(super) fn guard(&mut self, lane: &Lane, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match lane {
            Lane::Uniform(Word::Constant(bits)) => {
                if *bits & 1 == 1 {
                    fill(self)
                } else {
                    Ok(())
                }
            }
            Lane::Both(both) => {
                let inner = &both[1];
                // Boxed, or the compiler of this compiler would build this function for ever deeper closures.
                let mut fill = Some(fill);
                let fill: &mut dyn FnMut(&mut Self) -> Result<()> =
                    &mut |this| fill.take().map_or(Ok(()), |fill| fill(this));
                self.guard_dyn(&both[0], &mut |this| this.guard_dyn(inner, fill))
            }
            _ => {
                let condition = self.condition(lane)?;
                let then = self.nested(fill)?;
                match self.heads(lane, then)? {
                    Some(heads) => self.emit(Inst::Heads(Box::new(heads))),
                    None => self.emit(Inst::If { condition, then, otherwise: None }),
                }
            }
        }
    }

    fn guard_dyn(&mut self, lane: &Lane, fill: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.guard(lane, fill)
    }

    /// Where an op with blocks puts each lane of each of its results.
    pub(super) fn results(&mut self, op: &IrOp) -> Result<Vec<Vec<Place>>> {
        let mut all = Vec::with_capacity(op.results.len());
        for &result in &op.results {
            all.push(self.places(result)?);
        }
        Ok(all)
    }

    fn places(&mut self, value: ValueId) -> Result<Vec<Place>> {
        let ty = match self.body.ty(value) {
            Type::Scalar(ty) => *ty,
            Type::Vector(vector) => vector.element,
            Type::Buffer | Type::View(_) | Type::Async(_) => {
                return self.unsupported("a buffer or view carried through control flow");
            }
        };
        let mut places = Vec::new();
        for _ in 0..self.count_lanes(value)? {
            let home = if self.varies[value.index()] {
                let reg = self.take(ty)?;
                self.frame.hold(reg);
                Home::Reg(reg)
            } else {
                Home::Slot(self.slot())
            };
            places.push(Place { ty, home });
        }
        Ok(places)
    }

    fn lanes_of(places: &[Place]) -> Vec<Lane> {
        places
            .iter()
            .map(|place| match place.home {
                Home::Reg(reg) => Lane::Reg(reg),
                Home::Slot(slot) => Lane::Uniform(Word::Slot { slot, launch: false }),
            })
            .collect()
    }

    pub(super) fn release(&mut self, places: &[Place]) {
        for place in places {
            if let Home::Reg(reg) = place.home {
                self.frame.release(reg);
            }
        }
    }

    pub(super) fn define_results(&mut self, op: &IrOp, results: Vec<Vec<Place>>) {
        for (&result, places) in op.results.iter().zip(&results) {
            self.define_lanes(result, Self::lanes_of(places));
            self.release(places);
        }
    }

    fn place(&mut self, place: Place, lane: &Lane) -> Result<()> {
        match (place.home, lane) {
            (Home::Reg(reg), lane) => self.move_to(place.ty, reg, lane),
            (Home::Slot(to), Lane::Uniform(word)) => {
                let from = self.slot_of(*word);
                if from == to {
                    return Ok(());
                }
                self.emit(Inst::Scalar(ScalarInst { op: Op::Move(place.ty), to, from: [from; 3] }))
            }
            (Home::Slot(_), _) => self.unsupported("a uniform value that was not computed as one"),
        }
    }

    /// Moves lanes to places at once: what a place still holds may be read by a later move.
    fn place_all(&mut self, places: &[Place], lanes: &[Lane]) -> Result<()> {
        // The registers and slots of the places before the one that is looked at.
        let (mut regs, mut slots) = (BTreeSet::new(), BTreeSet::new());
        let written = |regs: &BTreeSet<u32>, slots: &BTreeSet<u32>, lane: &Lane| {
            let mut reads = false;
            Self::each_lane_reg(lane, &mut |reg| reads |= regs.contains(&reg.0));
            let word = |word: &Word| matches!(word, Word::Slot { slot, .. } if slots.contains(&slot.0));
            reads
                || match lane {
                    Lane::Uniform(uniform) => word(uniform),
                    Lane::Affine(line) | Lane::Compare { value: line, .. } => {
                        [line.base, line.l, line.g].iter().any(word)
                    }
                    _ => false,
                }
        };
        let mut safe = Vec::with_capacity(lanes.len());
        for (place, lane) in places.iter().zip(lanes) {
            let written = written(&regs, &slots, lane);
            match place.home {
                Home::Reg(Reg(to)) => regs.insert(to),
                Home::Slot(Slot(to)) => slots.insert(to),
            };
            if !written {
                safe.push(lane.clone());
                continue;
            }
            safe.push(match (place.home, lane) {
                (Home::Slot(_), Lane::Uniform(word)) => {
                    let (from, to) = (self.slot_of(*word), self.slot());
                    self.emit(Inst::Scalar(ScalarInst { op: Op::Move(place.ty), to, from: [from; 3] }))?;
                    Lane::Uniform(Word::Slot { slot: to, launch: false })
                }
                _ => {
                    let to = self.take(place.ty)?;
                    self.move_to(place.ty, to, lane)?;
                    Lane::Reg(to)
                }
            });
        }
        for (place, lane) in places.iter().zip(&safe) {
            self.place(*place, lane)?;
        }
        Ok(())
    }

    /// The operands of `block`'s terminator from `skip` on, to `places`.
    pub(super) fn leave(&mut self, block: BlockId, skip: usize, places: &[Vec<Place>]) -> Result<()> {
        let Some(terminator) = self.body.block(block).ops.last() else {
            return Ok(());
        };
        let mut lanes = Vec::new();
        for &value in &terminator.operands[skip.min(terminator.operands.len())..] {
            lanes.extend(self.lanes(value)?);
        }
        let places: Vec<Place> = places.iter().flatten().copied().collect();
        self.place_all(&places, &lanes)
    }

    /// A block whose values still live when `then` runs at its end, in place of its terminator.
    pub(super) fn body_block(&mut self, block: BlockId, then: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let body = self.body;
        let ops = &body.block(block).ops;
        for (at, op) in ops.iter().enumerate() {
            self.span = op.span;
            if at + 1 == ops.len() {
                break;
            }
            if !self.stored.contains(&(block.0, at)) {
                self.op(block, at, op)?;
            }
            self.op_ends(block, at);
        }
        then(self)?;
        self.op_ends(block, ops.len().saturating_sub(1));
        Ok(())
    }

    /// Gives up what nothing after op `at` of `block` reads.
    pub(super) fn op_ends(&mut self, block: BlockId, at: usize) {
        for index in 0..self.live.dying(block, at).len() {
            let value = self.live.dying(block, at)[index];
            self.forget(value);
        }
        self.frame.settle();
    }

    pub(super) fn branch(
        &mut self,
        lane: &Lane,
        then: BlockId,
        otherwise: Option<BlockId>,
        results: &[Vec<Place>],
    ) -> Result<()> {
        let arm = |this: &mut Self, block: BlockId| this.body_block(block, |this| this.leave(block, 0, results));
        let empty = |this: &Self, block: BlockId| this.body.block(block).ops.len() <= 1 && results.is_empty();
        let otherwise = otherwise.filter(|&block| !empty(self, block));
        match (lane, otherwise) {
            (Lane::Uniform(Word::Constant(bits)), _) => {
                if bits & 1 == 1 {
                    return arm(self, then);
                }
                otherwise.map_or(Ok(()), |block| arm(self, block))
            }
            (_, None) => self.guard(lane, |this| arm(this, then)),
            (_, Some(block)) => {
                let condition = self.condition(lane)?;
                let held = if let Condition::Reg(reg) = condition { Some(reg) } else { None };
                if let Some(reg) = held {
                    self.frame.hold(reg);
                }
                let then = self.nested(|this| arm(this, then))?;
                let otherwise = self.nested(|this| arm(this, block))?;
                if let Some(reg) = held {
                    self.frame.release(reg);
                }
                self.emit(Inst::If { condition, then, otherwise: Some(otherwise) })
            }
        }
    }

    pub(super) fn switch(
        &mut self,
        selector: &Lane,
        ty: ScalarType,
        keys: &[i64],
        blocks: &[BlockId],
        results: &[Vec<Place>],
    ) -> Result<()> {
        // An `if` per key, each after the ones before it: the nest is as deep as there are keys.
        const MAX_KEYS: usize = 256;
        if keys.len() > MAX_KEYS || blocks.len() != keys.len() + 1 {
            return self.unsupported("scf.switch with more than 256 keys");
        }
        let arm = |this: &mut Self, block: BlockId| this.body_block(block, |this| this.leave(block, 0, results));
        let Some((&key, rest)) = keys.split_first() else {
            return arm(self, blocks[0]);
        };
        let key = Lane::Uniform(Word::Constant(
            Op::Convert(Convert::TruncI, ScalarType::I64, ty).evaluate([key as u64, 0, 0]),
        ));
        let equal = self.apply(Op::CompareI(IntPredicate::Eq, ty), &[selector.clone(), key], None)?;
        let condition = self.condition(&equal)?;
        let held = if let Condition::Reg(reg) = condition { Some(reg) } else { None };
        if let Some(reg) = held {
            self.frame.hold(reg);
        }
        let then = self.nested(|this| arm(this, blocks[0]))?;
        let otherwise = self.nested(|this| this.switch(selector, ty, rest, &blocks[1..], results))?;
        if let Some(reg) = held {
            self.frame.release(reg);
        }
        self.emit(Inst::If { condition, then, otherwise: Some(otherwise) })
    }

    pub(super) fn for_loop(&mut self, op: &IrOp) -> Result<()> {
        let block = op.blocks[0];
        let arguments = &self.body.block(block).arguments;
        let (counter, carried) = (arguments[0], &arguments[1..]);
        let ty = self.scalar_type(counter)?;
        let [low, high, step] = [0, 1, 2].map(|at| self.lane(op.operands[at]));
        let (low, high, step) = (low?, high?, step?);
        let mut places = Vec::with_capacity(carried.len());
        for (&argument, &initial) in carried.iter().zip(&op.operands[3..]) {
            let lanes = self.lanes(initial)?;
            let home = self.places(argument)?;
            for (place, lane) in home.iter().zip(&lanes) {
                self.place(*place, lane)?;
            }
            self.define_lanes(argument, Self::lanes_of(&home));
            places.push(home);
        }
        let site = self.site("scf.for");
        // A step from below `high` may pass the end of the numbers, which is past `high`. Offsets end long before.
        let [high_most, step_most] = [1, 2].map(|at| i128::from(self.kernel.facts(op.operands[at]).high));
        let passes = ty != ScalarType::Offset && high_most + step_most - 1 > i128::from(i64::MAX);
        let below = if ty == ScalarType::Offset { IntPredicate::Ult } else { IntPredicate::Slt };
        match (&low, &high, &step) {
            (Lane::Uniform(low), Lane::Uniform(high), Lane::Uniform(step)) => {
                let (low, high, step) = (self.slot_of(*low), self.slot_of(*high), self.slot_of(*step));
                let to = self.slot();
                self.define_lanes(counter, vec![Lane::Uniform(Word::Slot { slot: to, launch: false })]);
                self.want(block, carried, &places);
                let apart = self.apart;
                let body = self.nested(|this| this.body_block(block, |this| this.leave(block, 0, &places)))?;
                let zero = self.slot_of(ZERO);
                let counter = Affine { base: to, l: zero, g: zero };
                let unsigned = ty == ScalarType::Offset;
                let low = if self.together(body, counter, high, step, unsigned, &places, apart)? {
                    let start = ScalarInst { op: Op::Move(ScalarType::I64), to, from: [low; 3] };
                    self.count()?;
                    // Before the turns that were just emitted.
                    let here = &mut self.program.blocks[self.at.0 as usize];
                    here.insert(here.len() - 1, Inst::Scalar(start));
                    to
                } else {
                    low
                };
                self.emit(Inst::For { to, low, high, step, unsigned, body, site })?;
            }
            (Lane::Uniform(_) | Lane::Affine(_), _, Lane::Uniform(step)) => {
                // The counter of every item moves alike: one slot moves for all.
                let Some(line) = Self::as_line(&low) else {
                    return Ok(());
                };
                let to = self.slot();
                let base = self.slot_of(line.base);
                self.emit(Inst::Scalar(ScalarInst { op: Op::Move(ScalarType::I64), to, from: [base; 3] }))?;
                let line = Line { base: Word::Slot { slot: to, launch: false }, ..line };
                let now = Self::line(line.base, line.l, line.g);
                self.define_lanes(counter, vec![now.clone()]);
                let step = *step;
                let counter = Some((self.affine(line), self.slot_of(step)));
                let last = if passes {
                    let last = self.sub(Word::Constant(i64::MAX as u64), step)?;
                    Some((self.affine(line), self.slot_of(last)))
                } else {
                    None
                };
                self.turns(op, &now, &high, below, ty, block, &places, site, counter, last, |this| {
                    let next = this.add(line.base, step)?;
                    this.place(Place { ty: ScalarType::I64, home: Home::Slot(to) }, &Lane::Uniform(next))
                })?;
            }
            _ => {
                let to = self.take(ty)?;
                self.frame.hold(to);
                self.move_to(ty, to, &low)?;
                self.define_lanes(counter, vec![Lane::Reg(to)]);
                let now = Lane::Reg(to);
                self.turns(op, &now.clone(), &high, below, ty, block, &places, site, None, None, |this| {
                    let mut next = this.map(Op::Binary(Binary::AddI, ty), &[now.clone(), step.clone()], None)?;
                    if passes {
                        let anew = this.map(Op::CompareI(below, ty), &[next.clone(), now.clone()], None)?;
                        let end = Lane::Uniform(Word::Constant(i64::MAX as u64));
                        next = this.map(Op::Select(ty), &[anew, end, next], None)?;
                    }
                    this.move_to(ty, to, &next)
                })?;
                self.frame.release(to);
            }
        }
        for (&argument, home) in carried.iter().zip(&places) {
            self.forget(argument);
            let _ = home;
        }
        self.define_results(op, places);
        Ok(())
    }

    /// A loop whose items leave one by one: while `now` is below `high`.
    #[allow(clippy::too_many_arguments, reason = "the parts of one loop, used once each")]
    fn turns(
        &mut self,
        op: &IrOp,
        now: &Lane,
        high: &Lane,
        below: IntPredicate,
        ty: ScalarType,
        block: BlockId,
        places: &[Vec<Place>],
        site: SiteId,
        counter: Option<(Affine, Slot)>,
        last: Option<(Affine, Slot)>,
        next: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        debug_assert_eq!(op.kind, OpKind::For);
        let mut condition = None;
        let head = self.nested(|this| {
            let goes_on = this.apply(Op::CompareI(below, ty), &[now.clone(), high.clone()], None)?;
            condition = Some(this.condition(&goes_on)?);
            Ok(())
        })?;
        let Some(condition) = condition else {
            return Ok(());
        };
        let held = if let Condition::Reg(reg) = condition { Some(reg) } else { None };
        if let Some(reg) = held {
            self.frame.hold(reg);
        }
        let apart = self.apart;
        let body = self.nested(|this| {
            this.body_block(block, |this| {
                this.leave(block, 0, places)?;
                next(this)
            })
        })?;
        if let (Some((counter, step)), Lane::Uniform(high)) = (counter, high) {
            let high = self.slot_of(*high);
            self.together(body, counter, high, step, ty == ScalarType::Offset, places, apart)?;
        }
        if let Some(reg) = held {
            self.frame.release(reg);
        }
        self.emit(Inst::Loop { head, condition, last, body, site })
    }

    /// Turns of the loop over `body` taken together, before the loop: whether that is so. `apart` is what was known before it.
    #[allow(clippy::too_many_arguments, reason = "the parts of one loop, used once each")]
    fn together(
        &mut self,
        body: Block,
        counter: Affine,
        high: Slot,
        step: Slot,
        unsigned: bool,
        places: &[Vec<Place>],
        apart: bool,
    ) -> Result<bool> {
        let (mut regs, mut slots) = (Vec::new(), Vec::new());
        for place in places.iter().flatten() {
            match place.home {
                Home::Reg(reg) => regs.push(reg),
                Home::Slot(slot) => slots.push(slot),
            }
        }
        let (taken, folds) = self.turns_together(body, &Counted { counter, high, step, unsigned, regs, slots })?;
        if taken && folds {
            // Rows that are folded one by one may lie where they want.
            self.apart = apart;
        }
        Ok(taken)
    }

    /// Lets the op that computes what a loop carries write it in place, where the old value is not read later.
    fn want(&mut self, block: BlockId, carried: &[ValueId], places: &[Vec<Place>]) {
        let ops = &self.body.block(block).ops;
        let Some(terminator) = ops.last() else { return };
        // The body is looked through for each of them; where that is too much, what they become is copied.
        if carried.len().saturating_mul(self.body.values.len()) > MAX_WANT {
            return;
        }
        for ((&argument, &yielded), home) in carried.iter().zip(&terminator.operands).zip(places) {
            let [Place { home: Home::Reg(reg), .. }] = home[..] else {
                continue;
            };
            let Some(at) = ops.iter().position(|op| op.results.contains(&yielded)) else {
                continue;
            };
            let element_wise = matches!(
                ops[at].kind,
                OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Ternary(_) | OpKind::Select | OpKind::Convert(_)
            );
            let reads = &mut |op: &IrOp| op.operands.contains(&argument);
            let unread_later = !ops[at + 1..].iter().any(|later| self.body.any_within(later, reads));
            // These give a register a second name.
            let shared = ops.iter().any(|op| {
                op.operands.contains(&argument)
                    && matches!(
                        op.kind,
                        OpKind::Splat
                            | OpKind::FromElements
                            | OpKind::Extract
                            | OpKind::Insert
                            | OpKind::Lanes(_)
                            | OpKind::FragmentLabel(..)
                    )
            });
            let once = terminator.operands.iter().filter(|&&value| value == yielded).count() == 1;
            let integer =
                self.body.ty(yielded).scalar().is_none_or(|ty| ty.bits() == 64 && !ty.is_float() || ty.bits() == 1);
            if element_wise && unread_later && !shared && once && !integer {
                self.wanted.insert(yielded, reg);
            }
        }
    }

    pub(super) fn while_loop(&mut self, op: &IrOp) -> Result<()> {
        let (head, tail) = (op.blocks[0], op.blocks[1]);
        let site = self.site("scf.while");
        let state_values = &self.body.block(head).arguments;
        let forwarded_values = &self.body.block(tail).arguments;
        let mut state = Vec::with_capacity(state_values.len());
        for (&argument, &initial) in state_values.iter().zip(&op.operands) {
            let lanes = self.lanes(initial)?;
            let home = self.places(argument)?;
            for (place, lane) in home.iter().zip(&lanes) {
                self.place(*place, lane)?;
            }
            self.define_lanes(argument, Self::lanes_of(&home));
            state.push(home);
        }
        let results = self.results(op)?;
        let mut condition = None;
        let head_block = self.nested(|this| {
            this.body_block(head, |this| {
                let Some(terminator) = this.body.block(head).ops.last() else {
                    return Ok(());
                };
                let goes_on = this.lane(terminator.operands[0])?;
                // The test is made before what it reads can be overwritten; those who stay forward again next time.
                let test = this.condition(&goes_on)?;
                if let Condition::Reg(reg) = test {
                    this.frame.hold(reg);
                }
                condition = Some(test);
                this.leave(head, 1, &results)
            })
        })?;
        let Some(condition) = condition else {
            return self.unsupported("scf.while without a condition");
        };
        for (&argument, home) in forwarded_values.iter().zip(&results) {
            self.define_lanes(argument, Self::lanes_of(home));
        }
        let body = self.nested(|this| this.body_block(tail, |this| this.leave(tail, 0, &state)))?;
        if let Condition::Reg(reg) = condition {
            self.frame.release(reg);
        }
        self.emit(Inst::Loop { head: head_block, condition, last: None, body, site })?;
        for &value in state_values.iter().chain(forwarded_values) {
            self.forget(value);
        }
        for home in &state {
            self.release(home);
        }
        self.define_results(op, results);
        Ok(())
    }
}
