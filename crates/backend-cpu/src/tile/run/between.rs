//! What items of a tile tell each other: reductions and shuffles.
//!
//! - Whoever meets lies in one tile whole, so that meeting is reading each other's registers.
//! - A reduction combines in ascending item order.

use loom_compiler::math;
use loom_compiler::ops::{Combine, ShuffleMode};
use loom_compiler::tile::{Group, Op, Reg, Shape};
use loom_compiler::types::ScalarType;

use super::super::kernels::{Operand, bits, set_bits};
use super::{Exec, Run};

impl Run<'_> {
    pub(super) unsafe fn reduce(
        &mut self,
        combine: Combine,
        ty: ScalarType,
        to: Reg,
        from: Reg,
        group: Group,
        exec: Exec,
    ) {
        // SAFETY: for all of it, registers hold the tile's items.
        unsafe {
            let (to, from) = (self.element(to, ty, 0), self.element(from, ty, 0));
            let (from32, to32) = (from.cast::<f32>(), to.cast::<f32>());
            macro_rules! floats {
                ($f:expr) => {
                    self.groups(group, exec, |i| from32.add(i).read(), $f, |i, value| to32.add(i).write(value))
                };
            }
            match (combine, ty) {
                (Combine::AddF, ScalarType::F32) => floats!(|a: f32, b: f32| a + b),
                (Combine::MulF, ScalarType::F32) => floats!(|a: f32, b: f32| a * b),
                (Combine::MaxNumF, ScalarType::F32) => floats!(math::maxnum),
                (Combine::MinNumF, ScalarType::F32) => floats!(math::minnum),
                (Combine::MaximumF, ScalarType::F32) => floats!(math::maximum),
                (Combine::MinimumF, ScalarType::F32) => floats!(math::minimum),
                _ => {
                    let op = Op::Binary(combine.binary(), ty);
                    self.groups(
                        group,
                        exec,
                        |i| bits(ty, from, i),
                        |a, b| op.evaluate([a, b, 0]),
                        |i, value| set_bits(ty, to, i, value),
                    );
                }
            }
        }
    }

    /// Combines each group's values, ascending, and gives every item of the group the result.
    #[inline(always)]
    fn groups<T: Copy>(
        &self,
        group: Group,
        exec: Exec,
        get: impl Fn(usize) -> T,
        combine: impl Fn(T, T) -> T,
        set: impl Fn(usize, T),
    ) {
        // SAFETY: the mask covers the tile.
        let on = |i: usize| exec.mask.is_null() || unsafe { *exec.mask.add(i) } != 0;
        let each = |start: usize, end: usize, stride: usize| {
            let items = || (start..end.min(exec.hi)).step_by(stride).skip_while(|&i| i < exec.lo);
            let mut sum = None;
            for i in items() {
                if on(i) {
                    let value = get(i);
                    sum = Some(sum.map_or(value, |sum| combine(sum, value)));
                }
            }
            if let Some(sum) = sum {
                for i in items() {
                    set(i, sum);
                }
            }
        };
        // Whole groups side by side: several chains at a time, since each waits for its own last addition only.
        const CHAINS: usize = 4;
        let subgroup_size = self.program.subgroup_size as usize;
        let whole = match group {
            Group::Workgroup => Some(if self.program.shape == Shape::Groups { self.width } else { exec.hi }),
            Group::Lanes { size, stride: 1 } if self.width.is_multiple_of(subgroup_size) => Some(size as usize),
            Group::Lanes { .. } => None,
        };
        if let (Some(length), true, 0) = (whole, exec.mask.is_null(), exec.lo)
            && exec.hi.is_multiple_of(length)
        {
            let mut start = 0;
            while start < exec.hi {
                let chains = ((exec.hi - start) / length).min(CHAINS);
                // A chain too many reads what the first reads.
                let firsts: [usize; CHAINS] = std::array::from_fn(|c| start + if c < chains { c * length } else { 0 });
                let mut sums = firsts.map(&get);
                for i in 1..length {
                    for c in 0..CHAINS {
                        sums[c] = combine(sums[c], get(firsts[c] + i));
                    }
                }
                for (first, sum) in firsts.into_iter().zip(sums).take(chains) {
                    for i in first..first + length {
                        set(i, sum);
                    }
                }
                start += chains * length;
            }
            return;
        }
        // A workgroup is a segment, or the whole tile.
        let length = if self.program.shape == Shape::Groups { self.width } else { exec.hi };
        let mut start = 0;
        while start < exec.hi {
            let end = start + length;
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
            start = end;
        }
    }

    pub(super) unsafe fn shuffle(
        &mut self,
        mode: ShuffleMode,
        ty: ScalarType,
        [to, valid, from]: [Reg; 3],
        offset: Operand,
        width: Operand,
        exec: Exec,
    ) {
        let length = if self.program.shape == Shape::Groups { self.width } else { exec.hi };
        // SAFETY: for all of it, registers hold the tile's items, and a source is one of them.
        unsafe {
            let (to, from) = (self.element(to, ty, 0), self.element(from, ty, 0));
            let valid = self.element(valid, ScalarType::I1, 0);
            let number = |operand: Operand, i: usize| {
                bits(ScalarType::I32, operand.at, if operand.each { i - exec.lo } else { 0 }) as u32
            };
            for i in exec.lo..exec.hi {
                let local = i % length;
                let (offset, width) = (number(offset, i), number(width, i).clamp(1, self.program.subgroup_size));
                let lane = local as u32 % width;
                let (source, ok) = match mode {
                    ShuffleMode::Xor => (lane ^ offset, true),
                    ShuffleMode::Up => (lane.wrapping_sub(offset), offset <= lane),
                    ShuffleMode::Down => (lane.wrapping_add(offset), offset < width && lane + offset < width),
                    ShuffleMode::Index => (offset, true),
                };
                let other = (i - lane as usize) + source as usize;
                let ok = ok && source < width && other < exec.hi && other >= exec.lo && other / length == i / length;
                set_bits(ty, to, i, bits(ty, from, if ok { other } else { i }));
                valid.add(i).write(u8::from(ok));
            }
        }
    }
}
