//! Turns of a loop taken together: a wide tile for what maps, and folds that keep what items hold in registers.
//!
//! - Turns are taken if all of them can be: all accesses in bounds, all turns side by side where that is asked for, no store on
//!   anything else that the body touches. If not, nothing is done, and the loop that follows does what there is to do, and
//!   finds what is wrong.
//! - Not here: the loops of folds (`folds`), and which bodies can be taken so (`loom_compiler::tile`).

use std::ops::Range;
use std::ptr;

use loom_compiler::ops::Combine;
use loom_compiler::tile::{Access, Affine, Fold, Offsets, Op, Reach, Reg, Slot, Source, Target, Turns};
use loom_compiler::types::ScalarType;

use super::super::folds::Course;
use super::super::kernels::{Operand, set_bits};
use super::{Exec, Line, Owner, Run, Stop, scalar};

/// The turns and items of what runs: `segments` of `items` each, from item `first` of segment `segment` of the tile on, `turns`
/// times.
#[derive(Clone, Copy, Default)]
pub(super) struct Batch {
    turns: usize,
    segments: usize,
    items: usize,
    first: usize,
    pub(super) segment: usize,
    /// Whether these are the first turns that their items take.
    fresh: bool,
}

impl Batch {
    /// Whether turns are being taken together.
    pub(super) fn is_some(self) -> bool {
        self.turns > 0
    }

    /// Where `line` is for the first item.
    #[inline(always)]
    fn start(self, line: Line) -> Option<i64> {
        if self.first == 0 { Some(line.base) } else { line.base.checked_add(line.l.checked_mul(self.first as i64)?) }
    }
}

impl Run<'_> {
    /// Takes the turns that all items take, if that can be done together; else fills what they would start from.
    pub(super) unsafe fn turns(&mut self, turns: &Turns, exec: Exec) -> Result<(), Stop> {
        let Some((whole, all)) = self.may_take(turns, exec) else {
            for &(ty, reg, slot) in &turns.starts {
                // SAFETY: as the caller's.
                unsafe { self.map(Op::Move(ty), Target::Reg(reg), &[Source::Slot(slot); 3], exec)? };
            }
            // SAFETY: as the caller's.
            return turns.otherwise.map_or(Ok(()), |block| unsafe { self.block(block, exec) });
        };
        let (base, step) = (turns.counter.base.0 as usize, self.slot(turns.step));
        let (start, width) = (self.slots[base], self.width);
        // Few segments and many turns of them: their elements make longer rows than those of many segments and few turns.
        let (per, most) = if turns.wide {
            let capacity = self.program.capacity as usize;
            let per = (capacity / whole.items.saturating_mul(all)).clamp(1, whole.segments);
            (per, capacity / (whole.items * per))
        } else {
            (whole.segments, all)
        };
        // Batches of a size, but for the last one.
        let most = all.div_ceil(all.div_ceil(most));
        for segment in (0..whole.segments).step_by(per) {
            let mut batch = Batch { turns: 0, segments: per.min(whole.segments - segment), segment, ..whole };
            let (mut at, mut left) = (start, all);
            while left > 0 {
                let count = most.min(left);
                batch.fresh = left == all;
                if batch.turns != count {
                    batch.turns = count;
                    // SAFETY: registers hold the items of all turns of the batch.
                    unsafe { self.repeat_still(turns, batch) };
                }
                // Those of the first turn were computed to look where it goes.
                if at != self.slots[base] {
                    self.slots[base] = at;
                    self.words(turns);
                }
                let mut wide = exec;
                if turns.wide {
                    wide.hi = batch.segments * batch.items * count;
                    self.width = batch.items * count;
                }
                let outer = std::mem::replace(&mut self.batch, batch);
                // SAFETY: as the caller's; a wide tile has at most `capacity` items, or is none: then only folds look at it.
                let done = unsafe { self.block(turns.body, wide) };
                (self.width, self.batch) = (width, outer);
                done?;
                at = at.wrapping_add(step.wrapping_mul(count as u64));
                left -= count;
                if segment == 0 {
                    self.steps += count as u64;
                    if self.steps > self.pause {
                        self.look_up()?;
                    }
                }
            }
        }
        self.slots[base] = start.wrapping_add(step.wrapping_mul(all as u64));
        Ok(())
    }

    /// All segments and one turn, and how many turns all items take; the strides are in their slots.
    fn may_take(&mut self, turns: &Turns, exec: Exec) -> Option<(Batch, usize)> {
        let one = exec.hi <= self.width;
        if !exec.mask.is_null() || exec.is_empty() {
            return None;
        }
        let batch = if one {
            Batch { turns: 1, segments: 1, items: exec.hi - exec.lo, first: exec.lo, ..Batch::default() }
        } else {
            Batch { turns: 1, segments: exec.hi / self.width, items: self.width, ..Batch::default() }
        };
        if !one && (exec.lo != 0 || !exec.hi.is_multiple_of(self.width)) || turns.wide && exec.lo != 0 {
            return None;
        }
        // A sum is of a whole segment.
        if turns.otherwise.is_some() && (exec.lo != 0 || !exec.hi.is_multiple_of(self.width)) {
            return None;
        }
        let all = self.shared_turns(turns, batch)?;
        self.words(turns);
        let line = |access: Access| match access.offsets {
            Offsets::Affine(offsets) => Some(self.numbers(offsets)),
            Offsets::Gather(_) => None,
        };
        let stride = |reach: &Reach| self.slot(reach.stride) as i64;
        if turns.wide {
            // Alone, a turn is done as well by the loop.
            if all < 2 || self.program.capacity as usize / batch.items < 2 {
                return None;
            }
            let beside = |&(line, stride): &(Affine, Slot)| {
                let row = (self.slot(line.l) as i64).checked_mul(batch.items as i64);
                row == Some(self.slot(stride) as i64)
            };
            if !turns.strides.iter().all(beside) {
                return None;
            }
        }
        for reach in &turns.reaches {
            let (line, size) = (line(reach.access)?, reach.ty.bytes() as i64);
            // A value for each item, or one for all.
            if !(line.l == size || line.l == 0 && !reach.store) {
                return None;
            }
            self.extent(reach.access, reach.ty, stride(reach), Batch { turns: all, ..batch })?;
        }
        for (at, store) in turns.reaches.iter().enumerate().filter(|(_, reach)| reach.store) {
            for (other_at, other) in turns.reaches.iter().enumerate() {
                if other_at != at && !self.apart(store, other, Batch { turns: all, ..batch })? {
                    return None;
                }
            }
        }
        Some((batch, all))
    }

    /// The turns that all items take, if the budget has them: at least one.
    fn shared_turns(&self, turns: &Turns, batch: Batch) -> Option<usize> {
        let (high, step) = (self.slot(turns.high) as i64, self.slot(turns.step) as i64);
        let line = self.numbers(turns.counter);
        let (least, most) =
            ends(batch.start(line)?, [(line.l, batch.items - 1), (line.g, batch.segments - 1), (0, 0)])?;
        // Unsigned numbers of the lower half are what signed ones are.
        let fits = !turns.unsigned || least >= 0 && high >= 0;
        if step <= 0 || most >= high || !fits {
            return None;
        }
        let count = high.checked_sub(most)?.checked_sub(1)? / step + 1;
        // The counter goes one step past the last turn.
        most.checked_add(count.checked_mul(step)?)?;
        let left = self.steps_max.saturating_sub(self.steps);
        usize::try_from(count).ok().filter(|&count| count as u64 <= left)
    }

    /// Computes what the body's places of the turn at hand are made of.
    #[inline(always)]
    fn words(&mut self, turns: &Turns) {
        for inst in &turns.words {
            scalar(self.slots, inst);
        }
    }

    /// The bytes of its buffer that all items touch in all turns, if it has them.
    fn extent(&self, access: Access, ty: ScalarType, stride: i64, batch: Batch) -> Option<Range<i64>> {
        let Offsets::Affine(offsets) = access.offsets else { return None };
        let line = self.numbers(offsets);
        let binding = self.buffers[access.buffer as usize];
        let spans = [(line.l, batch.items - 1), (line.g, batch.segments - 1), (stride, batch.turns - 1)];
        let (least, most) = ends(batch.start(line)?, spans)?;
        let past = most.checked_add(ty.bytes() as i64)?;
        let inside = binding.owner == Owner::Launch && least >= 0 && past as u64 <= binding.len as u64;
        inside.then_some(least..past)
    }

    /// Whether `store` writes nothing that `other` accesses, but what is the same for each item and turn.
    fn apart(&self, store: &Reach, other: &Reach, batch: Batch) -> Option<bool> {
        let place = |reach: &Reach| {
            let Offsets::Affine(offsets) = reach.access.offsets else { return None };
            let (line, stride) = (self.numbers(offsets), self.slot(reach.stride) as i64);
            let start = self.buffers[reach.access.buffer as usize].ptr as i64;
            let extent = self.extent(reach.access, reach.ty, stride, batch)?;
            // An address of memory that there is, as a distance.
            let bytes = start.wrapping_add(extent.start)..start.wrapping_add(extent.end);
            Some((start.wrapping_add(line.base), line.l, line.g, stride, reach.ty.bytes(), bytes))
        };
        let (a, b) = (place(store)?, place(other)?);
        let same = (a.0, a.1, a.2, a.3, a.4) == (b.0, b.1, b.2, b.3, b.4);
        Some(same || a.5.end <= b.5.start || b.5.end <= a.5.start)
    }

    /// Repeats registers that are the same in all turns.
    unsafe fn repeat_still(&mut self, turns: &Turns, batch: Batch) {
        for &(ty, from, to) in &turns.still {
            let bytes = batch.items * ty.bytes() as usize;
            for segment in 0..batch.segments {
                // SAFETY: registers hold the items of a tile, and of a batch.
                unsafe {
                    let from = self.element(from, ty, (batch.segment + segment) * batch.items);
                    let to = self.element(to, ty, segment * batch.items * batch.turns);
                    if !bytes.is_multiple_of(64) {
                        for turn in 0..batch.turns {
                            ptr::copy(from, to.add(turn * bytes), bytes);
                        }
                        continue;
                    }
                    // Few bytes, many times: without a call for each.
                    for part in (0..bytes).step_by(64) {
                        let line = from.add(part).cast::<[u64; 8]>().read_unaligned();
                        for turn in 0..batch.turns {
                            to.add(turn * bytes + part).cast::<[u64; 8]>().write_unaligned(line);
                        }
                    }
                }
            }
        }
    }

    pub(super) unsafe fn fold(&mut self, fold: &Fold) -> Result<(), Stop> {
        let batch = self.batch;
        let Batch { turns, segments, items, first, segment, fresh } = batch;
        if turns == 0 {
            return Ok(());
        }
        let ty = fold.op.result();
        let nothing = Course { first: Operand::one(ptr::null()), step: 0, row: 0 };
        let mut from = [nothing; 3];
        for at in (0..fold.op.operands()).filter(|&at| at != fold.at as usize) {
            let ty = fold.op.operand(at);
            let size = ty.bytes() as isize;
            from[at] = match fold.from[at] {
                Source::Reg(reg) => {
                    let still = fold.still[at];
                    let (step, row) = if still { (0, items) } else { (items as isize * size, items * turns) };
                    let item = if still { segment * items + first } else { first };
                    // SAFETY: registers hold the items of a tile, of which this is one.
                    let at = unsafe { self.element(reg, ty, item) }.cast_const();
                    Course { first: Operand::each(at), step, row: row as isize * size }
                }
                Source::Slot(Slot(slot)) => {
                    let at = (&raw const self.slots[slot as usize]).cast();
                    Course { first: Operand::one(at), ..nothing }
                }
                Source::Segment(reg) => {
                    // SAFETY: such a register holds an element for each segment.
                    let at = unsafe { self.element(reg, ty, segment) }.cast_const();
                    Course { first: Operand::one(at), step: 0, row: size }
                }
                Source::Memory(access) => {
                    let step = self.slot(fold.strides[at]) as i64;
                    let (at, line) = self.place_of(access, ty, step, batch)?;
                    let first = if line.l == 0 { Operand::one(at) } else { Operand::each(at) };
                    Course { first, step: step as isize, row: line.g as isize }
                }
            };
        }
        // SAFETY: registers hold the items of a tile, and of a batch if it is wide; all accesses are in bounds.
        unsafe {
            let to = self.element(fold.to, ty, segment * items + first);
            let start = match fold.start {
                Some(Slot(slot)) if fresh => (&raw const self.slots[slot as usize]).cast(),
                _ => ptr::null(),
            };
            let extents = [segments, items, turns];
            let sums = fold.sum.map(|sum| self.element(sum, ty, segment));
            if let Some(sums) = sums
                && (self.loops.sums)(fold.op, fold.at as usize, sums, start, &from, extents)
            {
                return Ok(());
            }
            (self.loops.chain)(self.loops.map, fold.op, fold.at as usize, to, start, &from, extents);
            if let Some(sums) = sums {
                for row in 0..segments {
                    let held = to.wrapping_add(row * items * ty.bytes() as usize);
                    set_bits(ty, sums, row, (self.loops.fold)(Combine::AddF, ty, held, items));
                }
            }
        }
        Ok(())
    }

    /// A map of a wide tile whose elements in memory lie side by side in each segment, if it is one.
    pub(super) unsafe fn map_rows(&mut self, op: Op, to: Target, from: &[Source; 3], exec: Exec) -> Result<bool, Stop> {
        let (width, segments) = (self.width, exec.hi / self.width);
        let batch = Batch { turns: 1, segments, items: width, ..Batch::default() };
        let count = op.operands();
        let apart = |access: Access| match access.offsets {
            Offsets::Affine(offsets) => self.stride(self.numbers(offsets), exec).is_none_or(|stride| stride == 0),
            Offsets::Gather(_) => true,
        };
        let source_apart = |source: &Source| matches!(source, Source::Memory(access) if apart(*access));
        let target_apart = matches!(to, Target::Memory(access) if apart(access));
        if segments < 2 || !(target_apart || from[..count].iter().any(source_apart)) {
            return Ok(false);
        }
        let row = |reg: Reg, ty: ScalarType| {
            // SAFETY: registers hold the items of a tile.
            let at = unsafe { self.element(reg, ty, 0) };
            (at, width as isize * ty.bytes() as isize)
        };
        let mut operands = [(Operand::one(ptr::null()), 0); 3];
        for (at, operand) in operands.iter_mut().enumerate().take(count) {
            let ty = op.operand(at);
            *operand = match from[at] {
                Source::Reg(reg) => {
                    let (at, row) = row(reg, ty);
                    (Operand::each(at), row)
                }
                Source::Slot(Slot(slot)) => (Operand::one((&raw const self.slots[slot as usize]).cast()), 0),
                Source::Segment(reg) => {
                    // SAFETY: such a register holds an element for each segment.
                    (Operand::one(unsafe { self.element(reg, ty, self.batch.segment) }), ty.bytes() as isize)
                }
                Source::Memory(access) => {
                    let (at, line) = self.place_of(access, ty, 0, batch)?;
                    (if line.l == 0 { Operand::one(at) } else { Operand::each(at) }, line.g as isize)
                }
            };
        }
        let (to, next) = match to {
            Target::Reg(reg) => row(reg, op.result()),
            Target::Memory(access) => {
                let (at, line) = self.place_of(access, op.result(), 0, batch)?;
                if line.l == 0 {
                    return Ok(false);
                }
                (at.cast_mut(), line.g as isize)
            }
        };
        for segment in 0..segments as isize {
            let from = operands
                .map(|(operand, row)| Operand { at: operand.at.wrapping_offset(row.wrapping_mul(segment)), ..operand });
            let to = to.wrapping_offset(next.wrapping_mul(segment));
            // SAFETY: registers hold the items of a tile, all accesses are in bounds, and what overlaps is the same element.
            unsafe { (self.loops.map)(op, to, from, width) };
        }
        Ok(true)
    }

    /// Where the first item's element of the first turn is, all elements of the batch being in bounds and side by side, or one
    /// for all items. The turns were looked at before: in a program that was compiled all is well.
    fn place_of(&self, access: Access, ty: ScalarType, stride: i64, batch: Batch) -> Result<(*const u8, Line), Stop> {
        let line = match access.offsets {
            Offsets::Affine(offsets) => self.numbers(offsets),
            Offsets::Gather(_) => Line { base: -1, l: -1, g: 0 },
        };
        let fits = line.l == 0 || line.l == ty.bytes() as i64;
        if !fits || self.extent(access, ty, stride, batch).is_none() {
            let limit = self.buffers[access.buffer as usize].len;
            return Err(self.out_of_bounds(access.buffer, line.base, ty.bytes() as usize, limit, access.site));
        }
        let start = line.base.wrapping_add(line.l.wrapping_mul(batch.first as i64));
        let at = self.buffers[access.buffer as usize].ptr.wrapping_offset(start as isize);
        Ok((at.cast_const(), line))
    }
}

/// The least and the most of `base` and up to so many of each distance. `None` where that leaves 64 bits.
#[inline(always)]
fn ends(base: i64, parts: [(i64, usize); 3]) -> Option<(i64, i64)> {
    // As buffers and counts go nothing comes near, and then one look at all of them does.
    const FAR: u32 = 40;
    const MANY: u32 = 20;
    let size = |number: i64| (number ^ (number >> 63)) as u64;
    let far = parts.iter().fold(size(base), |all, (distance, _)| all | size(*distance)) >> FAR;
    let many = parts.iter().fold(0, |all, (_, count)| all | count) >> MANY;
    if far != 0 || many != 0 {
        return far_ends(base, parts);
    }
    Some(parts.into_iter().fold((base, base), |(least, most), (distance, count)| {
        let span = distance * count as i64;
        (least + span.min(0), most + span.max(0))
    }))
}

/// [`ends`], whatever the numbers.
#[cold]
fn far_ends(base: i64, parts: [(i64, usize); 3]) -> Option<(i64, i64)> {
    parts.into_iter().try_fold((base, base), |(least, most), (distance, count)| {
        let span = distance.checked_mul(i64::try_from(count).ok()?)?;
        Some((least.checked_add(span.min(0))?, most.checked_add(span.max(0))?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways where both may be taken, and what 64 bits do not hold.
    #[test]
    fn ends_are_those_of_all_sums() {
        let numbers = [0, 1, -1, 7, -4096, (1 << 40) - 1, -(1 << 40), 1 << 40, i64::MAX, i64::MIN];
        let counts = [0, 1, 3, (1 << 20) - 1, 1 << 20, usize::MAX];
        for base in numbers {
            for (a, b) in numbers.into_iter().flat_map(|a| numbers.map(|b| (a, b))) {
                for (m, n) in counts.into_iter().flat_map(|m| counts.map(|n| (m, n))) {
                    let parts = [(a, m), (b, n), (-3, 2)];
                    let all = parts.map(|(distance, count)| i128::from(distance) * count as i128);
                    let least = all.iter().fold(i128::from(base), |sum, span| sum.saturating_add(*span.min(&0)));
                    let most = all.iter().fold(i128::from(base), |sum, span| sum.saturating_add(*span.max(&0)));
                    let held = i64::try_from(least).ok().zip(i64::try_from(most).ok());
                    // A count beyond 64 bits is none of a tile.
                    let known = parts.iter().all(|(_, count)| *count <= i64::MAX as usize);
                    assert_eq!(ends(base, parts), held.filter(|_| known), "{base} {parts:?}");
                }
            }
        }
    }
}
