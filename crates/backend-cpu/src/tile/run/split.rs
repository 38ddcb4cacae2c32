//! Which items go on: the active ones that satisfy a condition, and those that do not.
//!
//! - A comparison of an affine value splits a range into ranges where that can be told; everything else takes a mask.
//! - Masks are a stack: one is in use until `depth` is set back. A mask is read before it is written over.

use std::ptr;

use loom_compiler::ops::IntPredicate;
use loom_compiler::tile::{Affine, Condition, Slot};
use loom_compiler::types::ScalarType;

use super::super::memory::Bytes;
use super::{Exec, Line, Run};

impl Run<'_> {
    /// A mask for a tile, in use until `depth` is set back.
    fn take_mask(&mut self) -> *mut u8 {
        // A loop skips masks that its condition may turn out not to need.
        while self.masks.len() <= self.depth {
            self.masks.push(Bytes::default());
        }
        let mask = &mut self.masks[self.depth];
        mask.reserve(self.program.capacity as usize);
        self.depth += 1;
        mask.as_mut_ptr()
    }

    /// From where to where the base of `counter` may be without any item of a tile past `last`, or below the least number, where
    /// numbers begin anew from the most: nowhere, if the first is above the second.
    pub(super) fn far_from_ends(&self, counter: Affine, last: Slot) -> (i64, i64) {
        // There are no more items to a segment, nor segments, than to a tile.
        let capacity = i128::from(self.program.capacity);
        let reach = |factor: Slot| i128::from((self.slot(factor) as i64).unsigned_abs()) * capacity;
        let reach = reach(counter.l) + reach(counter.g);
        let (least, most) = (i128::from(i64::MIN) + reach, i128::from(self.slot(last) as i64) - reach);
        if least > most { (1, 0) } else { (least as i64, most as i64) }
    }

    /// The active items that satisfy `condition`, and, if `both`, those that do not.
    pub(super) unsafe fn split(&mut self, condition: Condition, exec: Exec, both: bool) -> (Exec, Exec) {
        let none = Exec { hi: exec.lo, ..exec };
        match condition {
            Condition::Slot(slot) => {
                if self.slot(slot) & 1 == 1 {
                    (exec, none)
                } else {
                    (none, exec)
                }
            }
            Condition::Compare { predicate, value, limit } => {
                let (line, limit) = (self.numbers(value), self.slot(limit));
                if let Some(found) = self.split_range(predicate, line, limit, exec, both) {
                    return found;
                }
                let mask = self.take_mask();
                self.runs(exec, |segment, item, first, count| {
                    let start = line.base.wrapping_add(line.g.wrapping_mul(segment as i64));
                    let start = start.wrapping_add(line.l.wrapping_mul(item as i64));
                    for i in 0..count {
                        let value = start.wrapping_add(line.l.wrapping_mul(i as i64));
                        let on = holds(predicate, value, limit);
                        // SAFETY: the masks cover the tile.
                        unsafe {
                            let old = exec.mask.is_null() || *exec.mask.add(first + i) != 0;
                            *mask.add(first + i) = u8::from(on) | (u8::from(old) << 1);
                        }
                    }
                    true
                });
                // SAFETY: as above.
                unsafe { self.split_mask(mask, exec, both) }
            }
            Condition::Reg(reg) => {
                let mask = self.take_mask();
                // SAFETY: the register and the masks cover the tile.
                unsafe {
                    let on = self.element(reg, ScalarType::I1, 0);
                    for i in exec.lo..exec.hi {
                        let old = exec.mask.is_null() || *exec.mask.add(i) != 0;
                        *mask.add(i) = (*on.add(i) & 1) | (u8::from(old) << 1);
                    }
                    self.split_mask(mask, exec, both)
                }
            }
        }
    }

    /// Splits by bytes of which bit 0 says whether the condition holds, bit 1 whether the item was active.
    unsafe fn split_mask(&mut self, mask: *mut u8, exec: Exec, both: bool) -> (Exec, Exec) {
        let none = Exec { hi: exec.lo, ..exec };
        let (mut yes, mut no) = (0, 0);
        // SAFETY: for all of it, masks cover the tile.
        unsafe {
            for i in exec.lo..exec.hi {
                yes += usize::from(*mask.add(i) == 3);
                no += usize::from(*mask.add(i) == 2);
            }
            if yes == 0 {
                return (none, exec);
            }
            if no == 0 && !ptr::eq(mask, exec.mask) {
                return (exec, none);
            }
            let rest = if both && no > 0 {
                let rest = self.take_mask();
                for i in exec.lo..exec.hi {
                    *rest.add(i) = u8::from(*mask.add(i) == 2);
                }
                Exec { mask: rest, ..exec }
            } else {
                none
            };
            for i in exec.lo..exec.hi {
                *mask.add(i) = u8::from(*mask.add(i) == 3);
            }
            (Exec { mask, ..exec }, rest)
        }
    }

    /// [`Self::split`] into ranges, where the items that satisfy the comparison are one.
    fn split_range(
        &mut self,
        predicate: IntPredicate,
        line: Line,
        limit: u64,
        exec: Exec,
        both: bool,
    ) -> Option<(Exec, Exec)> {
        use IntPredicate as P;
        let none = Exec { hi: exec.lo, ..exec };
        let (predicate, negated) = match predicate {
            P::Ne => (P::Eq, true),
            P::Sge => (P::Slt, true),
            P::Sgt => (P::Sle, true),
            P::Uge => (P::Ult, true),
            P::Ugt => (P::Ule, true),
            P::Eq | P::Slt | P::Sle | P::Ult | P::Ule => (predicate, false),
        };
        let Some(stride) = self.stride(line, exec) else {
            // Segments far apart: at least all or none can be told.
            let ends = [
                (exec.lo / self.width, 0),
                (exec.lo / self.width, self.width - 1),
                ((exec.hi - 1) / self.width, 0),
                ((exec.hi - 1) / self.width, self.width - 1),
            ];
            let small = |x: i64| x.unsigned_abs() < 1 << 40;
            if ![line.base, line.l, line.g, limit as i64].into_iter().all(small) || predicate == P::Eq {
                return None;
            }
            let values = ends.map(|(segment, item)| line.base + line.g * segment as i64 + line.l * item as i64);
            if matches!(predicate, P::Ult | P::Ule) && values.iter().any(|&value| value < 0) {
                return None;
            }
            let all = values.iter().all(|&value| holds(predicate, value, limit));
            let any = values.iter().any(|&value| holds(predicate, value, limit));
            if all != any {
                return None;
            }
            return Some(if all != negated { (exec, none) } else { (none, exec) });
        };
        // Small enough that nothing below can overflow.
        let small = |x: i64| x.unsigned_abs() < 1 << 60;
        let limit = limit as i64;
        if !small(line.base) || !small(limit) || stride.unsigned_abs() >= 1 << 40 {
            return None;
        }
        let (lo, hi) = (exec.lo as i64, exec.hi as i64);
        // Items with value < bound: a prefix if the values ascend, a suffix if they descend, all or none otherwise.
        let below = |bound: i64| -> (i64, i64) {
            if stride > 0 {
                (lo, ceil_div(bound - line.base, stride).clamp(lo, hi))
            } else if stride < 0 {
                // base + stride·i < bound  <=>  i > (base - bound) / -stride
                ((line.base - bound).div_euclid(-stride).saturating_add(1).clamp(lo, hi), hi)
            } else if line.base < bound {
                (lo, hi)
            } else {
                (lo, lo)
            }
        };
        let without = |(from, to): (i64, i64), (gone_from, gone_to): (i64, i64)| {
            // Both prefixes, or both suffixes, of one range.
            if gone_from >= gone_to {
                (from, to)
            } else if gone_from <= from {
                (gone_to.max(from), to.max(gone_to))
            } else {
                (from, gone_from.min(to))
            }
        };
        let (from, to) = match predicate {
            P::Slt => below(limit),
            P::Sle => below(limit + 1),
            // A negative value is huge; so is a negative limit.
            P::Ult | P::Ule if limit < 0 => return None,
            P::Ult => without(below(limit), below(0)),
            P::Ule => without(below(limit + 1), below(0)),
            _ => without(below(limit + 1), below(limit)),
        };
        let inside = if from < to { Exec { lo: from as usize, hi: to as usize, ..exec } } else { none };
        let outside = if inside.is_empty() {
            exec
        } else if inside.lo == exec.lo {
            Exec { lo: inside.hi, ..exec }
        } else if inside.hi == exec.hi {
            Exec { hi: inside.lo, ..exec }
        } else if both || negated {
            return None; // two pieces
        } else {
            none
        };
        Some(if negated { (outside, inside) } else { (inside, outside) })
    }
}

/// Whether `value predicate limit`.
fn holds(predicate: IntPredicate, value: i64, limit: u64) -> bool {
    loom_compiler::eval::compare_int(predicate, ScalarType::I64, value as u64, limit)
}

/// `a / b` rounded up, for positive `b`.
fn ceil_div(a: i64, b: i64) -> i64 {
    if b == 1 { a } else { a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0) }
}
