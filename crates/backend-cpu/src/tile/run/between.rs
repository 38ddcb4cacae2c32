//! What items of a tile tell each other: reductions, scans, shuffles and masks of lanes.
//!
//! - Whoever meets lies in one tile whole, so that meeting is reading each other's registers.
//! - A reduction has one order, whatever the tiles: a group without gaps takes the vector loops, any other the same by hand.

use loom_compiler::eval::identity;
use loom_compiler::ops::{Binary, Combine, REDUCTION_CHAINS, Scan, ShuffleMode};
use loom_compiler::tile::{Group, Landing, Op, Reg, Shape, Term};
use loom_compiler::types::ScalarType;

use super::super::kernels::{Operand, bits, set_bits};
use super::access::fetch;
use super::{Exec, Run};

impl Run<'_> {
    /// Combines each group's values in the order of `OpKind::SubgroupReduce`, and gives every item of the group the result;
    /// with a slot to fill, the tile is one group. What lies at `ahead`, if anywhere, an element for each item, is fetched meanwhile.
    pub(super) unsafe fn reduce(
        &mut self,
        (combine, ty): (Combine, ScalarType),
        term: Term,
        to: Landing,
        [from, other]: [Operand; 2],
        group: Group,
        (exec, ahead): (Exec, *const u8),
    ) {
        // A workgroup is a segment, or the whole tile.
        let workgroup = if self.program.shape == Shape::Groups { self.width } else { exec.hi };
        let subgroup_size = self.program.subgroup_size as usize;
        let n = exec.hi - exec.lo;
        // Whole groups side by side.
        let whole = match group {
            Group::Workgroup => Some(workgroup),
            Group::Lanes { size, stride: 1 } if self.width.is_multiple_of(subgroup_size) => Some(size as usize),
            Group::Lanes { .. } => None,
        };
        let whole = whole.filter(|&length| exec.mask.is_null() && exec.lo == 0 && exec.hi.is_multiple_of(length));
        // Where each group has one element, or one for each item, of the other operand, its terms are made as they are added.
        let together = whole.is_some_and(|length| {
            from.is_each()
                && match term {
                    Term::Value => true,
                    Term::Product(_) => other.is_each(),
                    Term::SquaredDifference(_) => other.run >= length,
                }
        });
        // SAFETY: for all of it, registers and the staging area hold the tile's items.
        let from = unsafe {
            let staged = self.staging.add(2 * 8 * self.program.capacity as usize);
            let make = |op: Op, operands: [Operand; 3]| {
                (self.loops.map)(op, staged, operands, n);
                staged.cast_const()
            };
            match term {
                Term::Value if from.is_each() => from.at,
                Term::Value => make(Op::Move(ty), [from; 3]),
                _ if together => from.at,
                Term::Product(_) => make(Op::Binary(Binary::MulF, ty), [from, other, other]),
                Term::SquaredDifference(_) => {
                    make(Op::Binary(Binary::SubF, ty), [from, other, other]);
                    make(Op::Binary(Binary::MulF, ty), [Operand::each(staged); 3])
                }
            }
        };
        // Item 0's, though only those from `lo` on are there.
        let from = from.wrapping_sub(exec.lo * ty.bytes() as usize);
        let fold = |start: usize, length: usize| {
            if !ahead.is_null() {
                let bytes = ty.bytes() as usize;
                fetch(ahead.wrapping_add(start * bytes), length * bytes);
            }
            let from = from.wrapping_add(start * ty.bytes() as usize);
            let other = other.at.wrapping_add(other.index(start) * ty.bytes() as usize);
            // SAFETY: as above; the range starts at item 0 where there are whole groups.
            unsafe {
                match term {
                    Term::Product(_) if together => (self.loops.fold_products)(from, other, length),
                    Term::SquaredDifference(_) if together => (self.loops.fold_squares)(from, other, length),
                    _ => (self.loops.fold)(combine, ty, from, length),
                }
            }
        };
        let (to, each_item) = match to {
            // SAFETY: as above.
            Landing::Reg(reg) => (unsafe { self.element(reg, ty, 0) }, true),
            // SAFETY: as above; there are no more segments than items.
            Landing::Segments(reg) => (unsafe { self.element(reg, ty, 0) }, false),
            Landing::Slot(slot) => {
                let value = if whole.is_some() && exec.hi > 0 {
                    Some(fold(0, exec.hi))
                } else {
                    self.combined(combine, ty, from, exec.lo..exec.hi, 0, 1, exec)
                };
                if let Some(value) = value {
                    self.slots[slot.0 as usize] = value;
                }
                return;
            }
        };
        if let Some(length) = whole {
            for start in (0..exec.hi).step_by(length) {
                let at = start * ty.bytes() as usize;
                // SAFETY: as above; a value is little-endian at its own address.
                unsafe {
                    let value = fold(start, length);
                    if each_item {
                        let every = Operand::one((&raw const value).cast());
                        (self.loops.map)(Op::Move(ty), to.add(at), [every; 3], length);
                    } else {
                        set_bits(ty, to, start / length, value);
                    }
                }
            }
            return;
        }
        let each = |first: usize, end: usize, stride: usize| {
            let items = first..end.min(exec.hi);
            if let Some(value) = self.combined(combine, ty, from, items.clone(), first, stride, exec) {
                if !each_item {
                    // SAFETY: as above.
                    return unsafe { set_bits(ty, to, first / workgroup.max(1), value) };
                }
                for i in items.step_by(stride) {
                    // SAFETY: as above.
                    unsafe { set_bits(ty, to, i, value) };
                }
            }
        };
        for start in (0..exec.hi).step_by(workgroup.max(1)) {
            let end = start + workgroup;
            match group {
                Group::Workgroup => each(start, end, 1),
                Group::Lanes { size, stride } => {
                    let (size, stride) = (size as usize, stride as usize);
                    for subgroup in (start..end).step_by(subgroup_size) {
                        let end = (subgroup + subgroup_size).min(end);
                        for cluster in (subgroup..end).step_by(size * stride) {
                            for first in cluster..(cluster + stride).min(end) {
                                each(first, (first + size * stride).min(end), stride);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The values of the active ones of `items`, every `stride`th, the group's position 0 being item `first`; `None` if
    /// there are none.
    #[allow(clippy::too_many_arguments, reason = "a group, and whose values")]
    fn combined(
        &self,
        combine: Combine,
        ty: ScalarType,
        from: *const u8,
        items: std::ops::Range<usize>,
        first: usize,
        stride: usize,
        exec: Exec,
    ) -> Option<u64> {
        let op = Op::Binary(combine.binary(), ty);
        let either = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(op.evaluate([a, b, 0])),
            (one, None) | (None, one) => one,
        };
        let mut sums = [None; REDUCTION_CHAINS];
        for i in items.step_by(stride).skip_while(|&i| i < exec.lo) {
            // SAFETY: the mask and the register cover the tile.
            let value = unsafe { Self::is_on(exec, i).then(|| bits(ty, from, i)) };
            let chain = (i - first) / stride % REDUCTION_CHAINS;
            sums[chain] = either(sums[chain], value);
        }
        let mut width = REDUCTION_CHAINS / 2;
        while width > 0 {
            for c in 0..width {
                sums[c] = either(sums[c], sums[c + width]);
            }
            width /= 2;
        }
        sums[0]
    }

    /// The parts of the tile that are a subgroup each, and in the range: first item of the whole, first and last one in the
    /// range.
    fn each_subgroup(&self, exec: Exec, mut visit: impl FnMut(usize, usize, usize)) {
        let length = if self.program.shape == Shape::Groups { self.width } else { exec.hi };
        let size = self.program.subgroup_size as usize;
        for group in (0..exec.hi).step_by(length.max(1)) {
            let end = (group + length).min(exec.hi);
            for start in (group..end).step_by(size) {
                let (from, to) = (start.max(exec.lo), (start + size).min(end));
                if from < to {
                    visit(start, from, to);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn is_on(exec: Exec, i: usize) -> bool {
        // SAFETY: the mask covers the tile.
        exec.mask.is_null() || unsafe { *exec.mask.add(i) } != 0
    }

    pub(super) unsafe fn scan(
        &mut self,
        combine: Combine,
        scan: Scan,
        ty: ScalarType,
        [to, from]: [Reg; 2],
        group: Group,
        exec: Exec,
    ) {
        let op = Op::Binary(combine.binary(), ty);
        // SAFETY: for all of it, registers hold the tile's items.
        let (to, from) = unsafe { (self.element(to, ty, 0), self.element(from, ty, 0)) };
        // Items `start`, `start + stride`, .. below `end`, of which those in the range and on take part.
        let along = |start: usize, end: usize, stride: usize| {
            let mut sum = None;
            let mut visit = |i: usize| {
                // SAFETY: `i` is an item of the tile.
                unsafe {
                    if i < exec.lo || !Self::is_on(exec, i) {
                        return;
                    }
                    let value = bits(ty, from, i);
                    let next = sum.map_or(value, |sum| op.evaluate([sum, value, 0]));
                    let before = if scan.exclusive { sum.unwrap_or_else(|| identity(combine, ty)) } else { next };
                    set_bits(ty, to, i, before);
                    sum = Some(next);
                }
            };
            let count = end.saturating_sub(start).div_ceil(stride);
            for k in 0..count {
                visit(start + stride * if scan.reverse { count - 1 - k } else { k });
            }
        };
        match group {
            Group::Workgroup => {
                let length = if self.program.shape == Shape::Groups { self.width } else { exec.hi };
                for start in (0..exec.hi).step_by(length.max(1)) {
                    along(start, (start + length).min(exec.hi), 1);
                }
            }
            Group::Lanes { size, stride } => {
                let (size, stride) = (size as usize, stride as usize);
                self.each_subgroup(exec, |start, _, end| {
                    for cluster in (start..end).step_by(size * stride) {
                        for first in cluster..(cluster + stride).min(end) {
                            along(first, (cluster + size * stride).min(end), stride);
                        }
                    }
                });
            }
        }
    }

    pub(super) unsafe fn broadcast(&mut self, ty: ScalarType, [to, from]: [Reg; 2], lane: Option<Operand>, exec: Exec) {
        // SAFETY: for all of it, registers hold the tile's items, and operands the range's.
        unsafe {
            let (to, from) = (self.element(to, ty, 0), self.element(from, ty, 0));
            self.each_subgroup(exec, |start, lo, hi| {
                let first = (lo..hi).find(|&i| Self::is_on(exec, i));
                for i in lo..hi {
                    let source = match lane {
                        None => first,
                        Some(lane) => {
                            let lane = bits(ScalarType::I32, lane.at, lane.index(i - exec.lo)) as usize;
                            Some(start.saturating_add(lane)).filter(|&i| (lo..hi).contains(&i) && Self::is_on(exec, i))
                        }
                    };
                    set_bits(ty, to, i, bits(ty, from, source.unwrap_or(i)));
                }
            });
        }
    }

    pub(super) unsafe fn ballot(&mut self, ty: ScalarType, to: Reg, vote: Operand, exec: Exec) {
        // SAFETY: for all of it, registers hold the tile's items, and operands the range's.
        unsafe {
            let to = self.element(to, ty, 0);
            self.each_subgroup(exec, |start, lo, hi| {
                let votes = |i: &usize| {
                    let vote = bits(ScalarType::I1, vote.at, vote.index(i - exec.lo));
                    vote & 1 == 1 && Self::is_on(exec, *i)
                };
                let mask = (lo..hi).filter(votes).fold(0u64, |mask, i| mask | 1 << (i - start));
                (lo..hi).for_each(|i| set_bits(ty, to, i, mask));
            });
        }
    }

    pub(super) unsafe fn matching(
        &mut self,
        ty: ScalarType,
        from: Reg,
        mask_ty: ScalarType,
        to: Reg,
        all: Option<Reg>,
        exec: Exec,
    ) {
        // SAFETY: for all of it, registers hold the tile's items.
        unsafe {
            let (to, from) = (self.element(to, mask_ty, 0), self.element(from, ty, 0));
            let all = all.map(|all| self.element(all, ScalarType::I1, 0));
            self.each_subgroup(exec, |start, lo, hi| {
                let mask = |holds: &dyn Fn(usize) -> bool| {
                    let counts = |i: &usize| Self::is_on(exec, *i) && holds(*i);
                    (lo..hi).filter(counts).fold(0u64, |mask, i| mask | 1 << (i - start))
                };
                let same = |a: usize, b: usize| bits(ty, from, a) == bits(ty, from, b);
                match all {
                    None => (lo..hi).for_each(|i| set_bits(mask_ty, to, i, mask(&|other| same(i, other)))),
                    Some(all) => {
                        let active = mask(&|_| true);
                        let first = (lo..hi).find(|&i| Self::is_on(exec, i)).unwrap_or(lo);
                        let equal = mask(&|other| same(first, other)) == active;
                        for i in lo..hi {
                            set_bits(mask_ty, to, i, if equal { active } else { 0 });
                            all.add(i).write(u8::from(equal));
                        }
                    }
                }
            });
        }
    }

    pub(super) unsafe fn shuffle(
        &mut self,
        mode: ShuffleMode,
        ty: ScalarType,
        [to, from]: [Reg; 2],
        valid: Option<Reg>,
        [offset, width]: [Operand; 2],
        exec: Exec,
    ) {
        let length = if self.program.shape == Shape::Groups { self.width } else { exec.hi };
        // SAFETY: for all of it, registers hold the tile's items, and a source is one of them.
        unsafe {
            let (to, from) = (self.element(to, ty, 0), self.element(from, ty, 0));
            let valid = valid.map(|valid| self.element(valid, ScalarType::I1, 0));
            let uniform =
                |operand: Operand| (operand.run >= exec.hi).then(|| bits(ScalarType::I32, operand.at, 0) as u32);
            let dense = exec.mask.is_null() && exec.lo == 0 && exec.hi.is_multiple_of(32) && length.is_multiple_of(32);
            if let (ShuffleMode::Xor, true, Some(distance), Some(32)) = (mode, dense, uniform(offset), uniform(width))
                && distance < 32
            {
                (self.loops.swap)(ty.bytes(), to, from, exec.hi, distance as usize);
                if let Some(valid) = valid {
                    valid.write_bytes(1, exec.hi);
                }
                return;
            }
            let number =
                |operand: Operand, i: usize| bits(ScalarType::I32, operand.at, operand.index(i - exec.lo)) as u32;
            for i in exec.lo..exec.hi {
                let local = i % length;
                let (offset, width) = (number(offset, i), number(width, i));
                // What is no width has no lanes that are valid.
                let fits = width.is_power_of_two() && width <= self.program.subgroup_size;
                let lane = if fits { local as u32 % width } else { 0 };
                let (source, ok) = match mode {
                    ShuffleMode::Xor => (lane ^ offset, true),
                    ShuffleMode::Up => (lane.wrapping_sub(offset), offset <= lane),
                    ShuffleMode::Down => (lane.wrapping_add(offset), offset < width && lane + offset < width),
                    ShuffleMode::Index => (offset, true),
                };
                let other = (i - lane as usize) + source as usize;
                let ok =
                    ok && fits && source < width && other < exec.hi && other >= exec.lo && other / length == i / length;
                let ok = ok && Self::is_on(exec, other);
                set_bits(ty, to, i, bits(ty, from, if ok { other } else { i }));
                if let Some(valid) = valid {
                    valid.add(i).write(u8::from(ok));
                }
            }
        }
    }
}
