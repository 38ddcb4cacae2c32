//! Turns of loops that can be taken together, found in the instructions of a loop's body.
//!
//! - A body of maps: what a turn makes depends on nothing that another turn made, but for what is folded (`acc = op(acc, x)`,
//!   where nothing else of the body reads `acc`).
//! - Addresses are affine in the item and in the counter; anything else leaves the loop as it is.
//! - Not here: whether turns lie side by side, stay in bounds and touch nothing of each other, which is known when they run.

use std::collections::{BTreeMap, BTreeSet};

use super::{Compiler, Result, Word, ZERO};
use crate::ops::{Binary, Convert, Ternary};
use crate::tile::program::{
    Access, Affine, Block, Buffer, Fold, Inst, Offsets, Op, Reach, Reg, ScalarInst, Shape, Slot, Source, Target, Turns,
};
use crate::types::ScalarType;

/// The most instructions of a body that is looked at.
const MAX_BODY: usize = 128;

/// What a loop counts with, and what it carries.
pub(super) struct Counted {
    pub(super) counter: Affine,
    pub(super) high: Slot,
    pub(super) step: Slot,
    pub(super) unsigned: bool,
    /// Registers and slots of the values that it carries.
    pub(super) regs: Vec<Reg>,
    pub(super) slots: Vec<Slot>,
}

/// How a slot changes from turn to turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Still,
    /// Read in each turn, the same each time.
    Loaded,
    /// By the same distance each time.
    Linear,
    Other,
}

impl Course {
    fn constant(self) -> bool {
        matches!(self, Self::Still | Self::Loaded)
    }
}

/// What is found in a body.
struct Finder {
    counter: Slot,
    courses: BTreeMap<Slot, Course>,
    /// Slots that the body writes.
    written: BTreeSet<Slot>,
    /// Carried registers that the body writes.
    carried: BTreeSet<Reg>,
    folded: BTreeSet<Reg>,
    /// Registers with what this turn made.
    made: BTreeSet<Reg>,
    /// Registers that were read before the body wrote them.
    read: BTreeSet<Reg>,
    stores: bool,
    wide: bool,
    /// Affine values that are named, by the slot of their stride.
    lines: Vec<(Affine, Slot)>,
    reaches: Vec<Reach>,
    still: Vec<(ScalarType, Reg, Reg)>,
    zero: Slot,
    /// Scalar instructions whose results are the same in all turns.
    before: Vec<ScalarInst>,
    /// Those whose results move by as much from turn to turn.
    words: Vec<ScalarInst>,
}

impl Compiler<'_> {
    /// Emits an instruction that takes turns of the loop over `body` together, if that can be. Whether it was, and only folds.
    pub(super) fn turns_together(&mut self, body: Block, counted: &Counted) -> Result<(bool, bool)> {
        let mut insts = self.program.blocks[body.0 as usize].clone();
        if insts.len() > MAX_BODY {
            return Ok((false, false));
        }
        let counter = counted.counter.base;
        while matches!(insts.last(), Some(Inst::Scalar(inst)) if inst.to == counter) {
            insts.pop();
        }
        if insts.is_empty() {
            return Ok((false, false));
        }
        fold_in_place(&mut insts, &counted.regs);
        let Some((mut found, mut insts)) = self.find(insts, counted)? else {
            return Ok((false, false));
        };
        let starts = self.starts(&found, &mut insts);
        self.settle_strides(&mut found, &mut insts, counted.step)?;
        let block = Block(self.program.blocks.len() as u32);
        for _ in &insts {
            self.count()?;
        }
        self.program.blocks.push(insts);
        let wide = found.wide;
        self.emit(Inst::Turns(Box::new(Turns {
            counter: counted.counter,
            high: counted.high,
            step: counted.step,
            unsigned: counted.unsigned,
            strides: found.lines,
            reaches: found.reaches,
            starts,
            still: found.still,
            words: found.words,
            wide,
            body: block,
            otherwise: None,
        })))?;
        Ok((true, !wide))
    }

    fn find(&mut self, insts: Vec<Inst>, counted: &Counted) -> Result<Option<(Finder, Vec<Inst>)>> {
        let mut used = BTreeSet::new();
        let mut finder = Finder {
            counter: counted.counter.base,
            courses: BTreeMap::new(),
            written: BTreeSet::new(),
            carried: BTreeSet::new(),
            folded: BTreeSet::new(),
            made: BTreeSet::new(),
            read: BTreeSet::new(),
            stores: false,
            wide: false,
            lines: Vec::new(),
            reaches: Vec::new(),
            still: Vec::new(),
            zero: self.slot_of(ZERO),
            before: Vec::new(),
            words: Vec::new(),
        };
        for inst in &insts {
            match inst {
                Inst::Scalar(ScalarInst { to, .. }) | Inst::LoadScalar { to, .. } => {
                    finder.written.insert(*to);
                }
                Inst::Map { to, from, op } => {
                    used.extend(from[..op.operands()].iter().filter_map(source_reg));
                    match to {
                        Target::Reg(reg) => {
                            used.insert(*reg);
                            if counted.regs.contains(reg) {
                                finder.carried.insert(*reg);
                            }
                        }
                        Target::Memory(_) => finder.stores = true,
                    }
                }
                Inst::MapSegments { to, from, op } => {
                    used.extend(from[..op.operands()].iter().filter_map(source_reg));
                    used.insert(*to);
                }
                Inst::Spread { to, .. } => {
                    used.insert(*to);
                }
                _ => return Ok(None),
            }
        }
        if finder.written.contains(&finder.counter) || counted.slots.iter().any(|slot| finder.written.contains(slot)) {
            return Ok(None);
        }
        let mut out = Vec::with_capacity(insts.len());
        for inst in insts {
            if let Inst::Scalar(inst) = inst {
                let course = finder.scalar(&inst);
                finder.courses.insert(inst.to, course);
                match course {
                    Course::Still => finder.before.push(inst),
                    Course::Linear => finder.words.push(inst),
                    Course::Loaded => out.push(Inst::Scalar(inst)),
                    // What reads it is not taken.
                    Course::Other => {}
                }
                continue;
            }
            match self.take_together(&mut finder, inst, &mut used)? {
                Some(inst) => out.push(inst),
                None => return Ok(None),
            }
        }
        let wide_shape = matches!(self.program.shape, Shape::Groups | Shape::Group);
        if finder.folded != finder.carried || finder.wide && !wide_shape || !finder.wide && finder.folded.is_empty() {
            return Ok(None);
        }
        Ok(Some((finder, out)))
    }

    /// What is the same in all turns goes before the loop, and so does how far everything else moves: the slots of `found` and
    /// `insts` that stand for strides become those that hold them.
    fn settle_strides(&mut self, found: &mut Finder, insts: &mut [Inst], step: Slot) -> Result<()> {
        for inst in std::mem::take(&mut found.before) {
            self.emit(Inst::Scalar(inst))?;
        }
        let mut asked: BTreeSet<Slot> = found.lines.iter().map(|(line, _)| line.base).collect();
        for inst in found.words.iter().rev() {
            if asked.contains(&inst.to) {
                asked.extend(&inst.from[..inst.op.operands()]);
            }
        }
        found.words.retain(|inst| asked.contains(&inst.to));
        let mut moved = BTreeMap::from([(found.counter, self.held(step))]);
        for inst in &found.words {
            self.count()?;
            let by = self.moved_by(inst, &moved)?;
            moved.insert(inst.to, by);
        }
        let mut strides = BTreeMap::new();
        for (line, stride) in &mut found.lines {
            let by = self.slot_of(moved.get(&line.base).copied().unwrap_or(ZERO));
            strides.insert(*stride, by);
            *stride = by;
        }
        let settle = |slot: &mut Slot| *slot = strides.get(slot).copied().unwrap_or(*slot);
        found.reaches.iter_mut().for_each(|reach| settle(&mut reach.stride));
        for inst in insts {
            if let Inst::Fold(fold) = inst {
                fold.strides.iter_mut().for_each(settle);
            }
        }
        Ok(())
    }

    /// How far the result of `inst`, whose course is linear, moves from turn to turn, where the operands in `moved` do.
    fn moved_by(&mut self, inst: &ScalarInst, moved: &BTreeMap<Slot, Word>) -> Result<Word> {
        let by = |at: usize| moved.get(&inst.from[at]).copied();
        let [a, b, c] = [by(0), by(1), by(2)];
        let product = |this: &mut Self| match (a, b) {
            (Some(a), _) => {
                let b = this.held(inst.from[1]);
                this.mul(a, b)
            }
            (None, Some(b)) => {
                let a = this.held(inst.from[0]);
                this.mul(a, b)
            }
            (None, None) => Ok(ZERO),
        };
        let or_none = |by: Option<Word>| by.unwrap_or(ZERO);
        match inst.op {
            Op::Binary(Binary::AddI, _) => self.add(or_none(a), or_none(b)),
            Op::Binary(Binary::SubI, _) => self.sub(or_none(a), or_none(b)),
            Op::Binary(Binary::MulI, _) => product(self),
            Op::Binary(Binary::ShlI, _) => {
                let b = self.held(inst.from[1]);
                self.word(inst.op, &[or_none(a), b])
            }
            Op::Ternary(Ternary::FmaI, _) => {
                let product = product(self)?;
                self.add(product, or_none(c))
            }
            // A move, or another name of the same 64 bits.
            _ => Ok(or_none(a)),
        }
    }

    /// Lets the fold into `from`, if the loop that was just emitted is one, make the sum of each segment, `to`, too. Whether it
    /// does: the loop and `reduce` are then what is run if its turns are not taken together.
    pub(super) fn sum_of_fold(&mut self, from: Reg, to: Reg, reduce: Inst) -> Result<bool> {
        let here = self.at.0 as usize;
        let [.., Inst::Turns(turns), Inst::For { body, .. }] = &self.program.blocks[here][..] else {
            return Ok(false);
        };
        let (own, wide, body) = (turns.body.0 as usize, turns.wide, *body);
        let plain = |inst: &Inst| matches!(inst, Inst::Scalar(_) | Inst::LoadScalar { .. } | Inst::Map { .. });
        if !self.program.blocks[body.0 as usize].iter().all(plain) {
            return Ok(false);
        }
        let folds = self.program.blocks[own].iter_mut().filter_map(|inst| match inst {
            Inst::Fold(fold) => Some(fold),
            _ => None,
        });
        let mut folds: Vec<_> = folds.collect();
        let [fold] = &mut folds[..] else { return Ok(false) };
        // Nobody else may read the register.
        let held = self.frame.holders(from) > 1;
        if wide || held || fold.to != from || fold.op.result() != ScalarType::F32 || fold.start.is_none() {
            return Ok(false);
        }
        fold.sum = Some(to);
        // Blocks come after those that name them.
        let insts = std::mem::take(&mut self.program.blocks[body.0 as usize]);
        let Some(mut loops) = self.program.blocks[here].pop() else { return Ok(false) };
        let otherwise = Block(self.program.blocks.len() as u32);
        if let Inst::For { body, .. } = &mut loops {
            *body = Block(otherwise.0 + 1);
        }
        self.count()?;
        self.program.blocks.extend([vec![loops, reduce], insts]);
        if let Some(Inst::Turns(turns)) = self.program.blocks[here].last_mut() {
            turns.otherwise = Some(otherwise);
        }
        Ok(true)
    }

    /// What folds start from, where the block filled a register with a slot's value right before the loop: that is left to them.
    fn starts(&mut self, found: &Finder, folds: &mut [Inst]) -> Vec<(ScalarType, Reg, Slot)> {
        let here = &mut self.program.blocks[self.at.0 as usize];
        let mut starts = Vec::new();
        for fold in folds {
            let Inst::Fold(fold) = fold else { continue };
            let ty = fold.op.result();
            let fill = |inst: &Inst| match inst {
                Inst::Map { op: Op::Move(moved), to: Target::Reg(to), from: [Source::Slot(slot), ..] } => {
                    (*moved == ty && *to == fold.to).then_some(*slot)
                }
                _ => None,
            };
            let plain = |inst: &&Inst| matches!(inst, Inst::Scalar(_) | Inst::Map { .. });
            let run = here.len() - here.iter().rev().take_while(plain).count();
            let Some((at, slot)) =
                here.iter().enumerate().skip(run).rev().find_map(|(at, inst)| Some((at, fill(inst)?)))
            else {
                continue;
            };
            let later = |inst: &Inst| match inst {
                Inst::Scalar(inst) => inst.to == slot,
                inst => reads(inst, fold.to) > 0 || writes(inst, fold.to),
            };
            if here[at + 1..].iter().any(later) || found.written.contains(&slot) || slot == found.counter {
                continue;
            }
            here.remove(at);
            fold.start = Some(slot);
            starts.push((ty, fold.to, slot));
        }
        starts
    }

    fn take_together(&mut self, finder: &mut Finder, inst: Inst, used: &mut BTreeSet<Reg>) -> Result<Option<Inst>> {
        Ok(match inst {
            Inst::LoadScalar { to, offset, .. } => {
                if finder.stores || finder.course(offset) != Course::Still {
                    return Ok(None);
                }
                finder.courses.insert(to, Course::Loaded);
                Some(inst)
            }
            Inst::Map { op, to: Target::Reg(to), from } if finder.carried.contains(&to) => {
                let held = |source: &Source| *source == Source::Reg(to);
                let operands = &from[..op.operands()];
                let (Some(at), 1) = (operands.iter().position(held), operands.iter().filter(|s| held(s)).count())
                else {
                    return Ok(None);
                };
                if op.operand(at) != op.result() || !finder.folded.insert(to) {
                    return Ok(None);
                }
                let mut fold = Fold {
                    op,
                    to,
                    from,
                    at: at as u32,
                    strides: [finder.zero; 3],
                    still: [false; 3],
                    start: None,
                    sum: None,
                };
                for other in (0..op.operands()).filter(|&other| other != at) {
                    match from[other] {
                        Source::Reg(reg) if finder.carried.contains(&reg) => return Ok(None),
                        Source::Reg(reg) => {
                            fold.still[other] = !finder.made.contains(&reg);
                            if fold.still[other] {
                                finder.read.insert(reg);
                            }
                        }
                        Source::Slot(slot) if finder.course(slot).constant() => {}
                        Source::Segment(reg) if !finder.carried.contains(&reg) => {
                            finder.read.insert(reg);
                        }
                        Source::Segment(_) => return Ok(None),
                        Source::Slot(_) => return Ok(None),
                        Source::Memory(access) => match self.reach(finder, access, op.operand(other), false) {
                            Some(stride) => fold.strides[other] = stride,
                            None => return Ok(None),
                        },
                    }
                }
                Some(Inst::Fold(Box::new(fold)))
            }
            Inst::Map { op, to, mut from } => {
                finder.wide = true;
                for (at, source) in from.iter_mut().enumerate().take(op.operands()) {
                    match *source {
                        Source::Reg(reg) if finder.carried.contains(&reg) => return Ok(None),
                        Source::Reg(reg) if finder.made.contains(&reg) => {}
                        Source::Reg(reg) => *source = Source::Reg(self.repeated(finder, op.operand(at), reg, used)?),
                        Source::Slot(slot) if finder.course(slot).constant() => {}
                        Source::Segment(reg) if !finder.carried.contains(&reg) => {
                            finder.read.insert(reg);
                        }
                        Source::Segment(_) => return Ok(None),
                        Source::Slot(_) => return Ok(None),
                        Source::Memory(access) => {
                            if self.reach(finder, access, op.operand(at), false).is_none() {
                                return Ok(None);
                            }
                        }
                    }
                }
                match to {
                    Target::Reg(reg) if finder.read.contains(&reg) => return Ok(None),
                    Target::Reg(reg) => {
                        finder.made.insert(reg);
                    }
                    Target::Memory(access) => {
                        if self.reach(finder, access, op.result(), true).is_none() {
                            return Ok(None);
                        }
                    }
                }
                Some(Inst::Map { op, to, from })
            }
            Inst::Spread { to, value } => {
                finder.wide = true;
                let fits = self.line_stride(finder, value).is_some() && !finder.read.contains(&to);
                finder.made.insert(to);
                (fits && !finder.carried.contains(&to)).then_some(inst)
            }
            // What is the same for a segment is the same for its wide one.
            Inst::MapSegments { op, to, from } => {
                let fits = from[..op.operands()].iter().all(|source| match source {
                    Source::Reg(reg) => !finder.carried.contains(reg),
                    Source::Slot(slot) => finder.course(*slot).constant(),
                    Source::Segment(_) | Source::Memory(_) => false,
                });
                (fits && !finder.carried.contains(&to) && !finder.read.contains(&to)).then_some(inst)
            }
            _ => None,
        })
    }

    /// The slot of how far `access` moves from turn to turn, if it is one that turns may make together.
    fn reach(&mut self, finder: &mut Finder, access: Access, ty: ScalarType, store: bool) -> Option<Slot> {
        let Offsets::Affine(line) = access.offsets else { return None };
        // Scratch memory has parts.
        if !matches!(self.program.buffers[access.buffer as usize], Buffer::Argument(_) | Buffer::Constant { .. }) {
            return None;
        }
        let stride = self.line_stride(finder, line)?;
        finder.reaches.push(Reach { access, ty, stride, store });
        Some(stride)
    }

    fn line_stride(&mut self, finder: &mut Finder, line: Affine) -> Option<Slot> {
        let course = finder.course(line.base);
        let still = [line.l, line.g].into_iter().all(|slot| finder.course(slot) == Course::Still);
        if !still || !matches!(course, Course::Still | Course::Linear) {
            return None;
        }
        if let Some(&(_, stride)) = finder.lines.iter().find(|(known, _)| known.base == line.base) {
            if !finder.lines.iter().any(|(known, _)| *known == line) {
                finder.lines.push((line, stride));
            }
            return Some(stride);
        }
        let stride = self.slot();
        finder.lines.push((line, stride));
        Some(stride)
    }

    /// A register that holds `reg`'s element of each item for all turns.
    fn repeated(&mut self, finder: &mut Finder, ty: ScalarType, reg: Reg, used: &mut BTreeSet<Reg>) -> Result<Reg> {
        finder.read.insert(reg);
        if let Some(&(.., to)) = finder.still.iter().find(|&&(known, from, _)| (known, from) == (ty, reg)) {
            return Ok(to);
        }
        // The body's own registers are free by now, yet in use when this one is.
        let to = loop {
            let to = self.take(ty)?;
            if used.insert(to) {
                break to;
            }
        };
        finder.still.push((ty, reg, to));
        Ok(to)
    }
}

impl Finder {
    fn course(&self, slot: Slot) -> Course {
        if slot == self.counter {
            return Course::Linear;
        }
        match self.courses.get(&slot) {
            Some(&course) => course,
            // What the turn before left.
            None if self.written.contains(&slot) => Course::Other,
            None => Course::Still,
        }
    }

    fn scalar(&self, inst: &ScalarInst) -> Course {
        use Course::{Linear, Loaded, Other, Still};
        let from = inst.from.map(|slot| self.course(slot));
        let from = &from[..inst.op.operands()];
        if from.iter().all(|course| *course == Still) {
            return Still;
        }
        if from.iter().all(|course| course.constant()) {
            return Loaded;
        }
        let sum = |a: Course, b: Course| match (a, b) {
            (Still, Still) => Still,
            (Still | Linear, Still | Linear) => Linear,
            _ => Other,
        };
        let product = |a: Course, b: Course| match (a, b) {
            (Still, Still) => Still,
            (Still, Linear) | (Linear, Still) => Linear,
            _ => Other,
        };
        let wide = |ty: ScalarType| ty.bits() == 64 && !ty.is_float();
        match (inst.op, from) {
            (Op::Move(ty), [a]) if wide(ty) => *a,
            (Op::Binary(Binary::AddI | Binary::SubI, ty), [a, b]) if wide(ty) => sum(*a, *b),
            (Op::Binary(Binary::MulI, ty), [a, b]) if wide(ty) => product(*a, *b),
            (Op::Binary(Binary::ShlI, ty), [a, Still]) if wide(ty) => *a,
            (Op::Ternary(Ternary::FmaI, ty), [a, b, c]) if wide(ty) => sum(product(*a, *b), *c),
            (Op::Convert(Convert::ExtSI | Convert::ExtUI | Convert::TruncI | Convert::Bitcast, a, b), [course])
                if wide(a) && wide(b) =>
            {
                *course
            }
            _ => Other,
        }
    }
}

fn source_reg(source: &Source) -> Option<Reg> {
    match source {
        Source::Reg(reg) | Source::Segment(reg) => Some(*reg),
        Source::Memory(Access { offsets: Offsets::Gather(reg), .. }) => Some(*reg),
        Source::Slot(_) | Source::Memory(_) => None,
    }
}

/// Lets `t = op(acc, x); acc = t` write `acc` itself, where nothing else reads either.
fn fold_in_place(insts: &mut Vec<Inst>, carried: &[Reg]) {
    let mut at = 0;
    while at < insts.len() {
        let Inst::Map { op: Op::Move(_), to: Target::Reg(to), from: [Source::Reg(from), ..] } = insts[at] else {
            at += 1;
            continue;
        };
        let reads = |insts: &[Inst], reg: Reg| insts.iter().map(|inst| reads(inst, reg)).sum::<usize>();
        let writes = insts.iter().filter(|inst| writes(inst, to)).count();
        let made = insts[..at].iter().rposition(|inst| self::writes(inst, from));
        // What is moved is read by nobody else until the register is written again.
        let later = &insts[at + 1..];
        let rest = &later[..later.iter().position(|inst| self::writes(inst, from)).map_or(later.len(), |at| at + 1)];
        let moved = carried.contains(&to) && !carried.contains(&from) && writes == 1 && reads(insts, to) == 1;
        if let (true, Some(made), 0) = (moved, made, reads(rest, from))
            && reads(&insts[made + 1..at], from) == 0
            && reads(&insts[made..=made], to) == 1
            && let Inst::Map { to: made, .. } = &mut insts[made]
        {
            *made = Target::Reg(to);
            insts.remove(at);
        } else {
            at += 1;
        }
    }
}

/// How often `inst` reads `reg`.
fn reads(inst: &Inst, reg: Reg) -> usize {
    match inst {
        Inst::Map { op, from, .. } | Inst::MapSegments { op, from, .. } => {
            from[..op.operands()].iter().filter(|source| source_reg(source) == Some(reg)).count()
        }
        _ => 0,
    }
}

fn writes(inst: &Inst, reg: Reg) -> bool {
    match inst {
        Inst::Map { to: Target::Reg(to), .. } | Inst::Spread { to, .. } | Inst::MapSegments { to, .. } => *to == reg,
        _ => false,
    }
}
