//! What work-items of a subgroup or workgroup tell each other, and barriers.
//!
//! - Together are the items that came the same way. [`Mask`] follows who they are: control flow narrows it by ballots, so that every
//!   exchange names exactly its members, whatever order the hardware runs sides and turns in.
//! - Floats are reduced in the order that `ops` states: position `p` of a cluster joins chain `p mod 32`, chains combine as a butterfly
//!   does. Scans of float sums and products go one by one, as the interpreter's do.
//! - Whoever is missing counts as the value that changes nothing bit for bit: −0 in a sum, a NaN among numbers.
//! - Collectives of a workgroup of several subgroups go through hidden workgroup memory.

use super::emitter::{Emitter, Result};
use super::memory::Place;
use super::text::{Class, Operand, Reg, class_of};
use crate::eval;
use crate::ir::{Op, ValueId};
use crate::ops::{BarrierScope, Combine, Family, OpKind, Scan, ShuffleMode};
use crate::types::ScalarType;

/// How much is known of who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// All 32 lanes.
    Full,
    /// The lowest so many.
    Prefix,
    /// Any.
    Any,
}

/// The lanes of the subgroup that take part in an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mask {
    lanes: Operand,
    shape: Shape,
}

impl Mask {
    pub(super) const FULL: Self = Self { lanes: Operand::word(u32::MAX), shape: Shape::Full };

    pub(super) fn is_full(&self) -> bool {
        self.shape == Shape::Full
    }
}

/// What changes nothing, bit for bit, whatever it is combined with.
fn neutral(combine: Combine, ty: ScalarType) -> u64 {
    match combine {
        Combine::AddF => eval::from_f64(ty, -0.0),
        Combine::MinNumF | Combine::MaxNumF => eval::from_f64(ty, f64::NAN),
        _ => eval::identity(combine, ty),
    }
}

/// Whether another order could give another result.
const fn is_ordered(combine: Combine) -> bool {
    matches!(combine, Combine::AddF | Combine::MulF)
}

impl Emitter<'_> {
    /// Who is there when the kernel starts.
    pub(super) fn start_mask(&mut self) {
        let exchanges = |op: &Op| matches!(op.kind.family(), Family::Exchange | Family::Meeting);
        let items = self.kernel.items();
        if items.is_multiple_of(32) || !self.body.ops().any(exchanges) {
            return;
        }
        let last = u32::MAX >> (32 - items % 32);
        let lanes = if items < 32 {
            Operand::word(last)
        } else {
            let flat = self.flat();
            let inside = Operand::word(items / 32 * 32);
            let partial = self.make(Class::Pred, "setp.ge.u32", &[flat, inside]);
            self.choose(partial, Operand::word(last), Operand::word(u32::MAX))
        };
        self.mask = Mask { lanes, shape: Shape::Prefix };
    }

    /// Those of the mask for whom `condition` holds.
    pub(super) fn ballot_of(&mut self, condition: Operand) -> Mask {
        let lanes = self.text.reg(Class::Word);
        self.ballot(lanes, condition);
        Mask { lanes: lanes.into(), shape: Shape::Any }
    }

    fn ballot(&mut self, to: Reg, condition: Operand) {
        let (condition, mask) = (self.in_register(condition), self.mask_text());
        self.text.raw(&format!("vote.sync.ballot.b32 {to}, {condition}, {mask}"));
    }

    /// Those of the mask who are not in `taken`, which is part of it.
    pub(super) fn rest_of(&mut self, taken: &Mask) -> Mask {
        let lanes = self.make(Class::Word, "xor.b32", &[self.mask.lanes, taken.lanes]);
        Mask { lanes, shape: Shape::Any }
    }

    /// A mask that a loop narrows turn by turn, to start with those for whom `condition` holds.
    pub(super) fn shrinking_mask(&mut self, condition: Operand) -> Mask {
        self.ballot_of(condition)
    }

    /// Narrows the mask of a loop.
    pub(super) fn shrink(&mut self, mask: &Mask, condition: Operand) {
        if let Operand::Reg(lanes) = mask.lanes {
            self.ballot(lanes, condition);
        }
    }

    fn mask_text(&self) -> String {
        match self.mask.lanes {
            Operand::Reg(reg) => reg.to_string(),
            Operand::Bits(_, bits) => format!("{:#x}", bits as u32),
        }
    }

    pub(super) fn collective(&mut self, op: &Op) -> Result {
        match op.kind {
            OpKind::Barrier(scope) => {
                if !self.groups.is_empty() {
                    self.text.raw("fence.proxy.async.shared::cta");
                }
                match scope {
                    BarrierScope::Workgroup => self.text.raw("bar.sync 0"),
                    BarrierScope::Subgroup => {
                        let mask = self.mask_text();
                        self.text.raw(&format!("bar.warp.sync {mask}"));
                    }
                }
            }
            OpKind::SubgroupShuffle(mode) => return self.shuffle(op, mode),
            OpKind::SubgroupReduce { combine, size, stride } => {
                return self.each_lane(op, |this, ty, lane| this.reduce(combine, ty, lane, size, stride));
            }
            OpKind::SubgroupScan { combine, scan, size, stride } => {
                return self.each_lane(op, |this, ty, lane| this.scan(combine, scan, ty, lane, size, stride));
            }
            OpKind::SubgroupBroadcast => {
                let from = self.scalar(op.operands[1])?;
                let from = self.member_or_own(from);
                return self.each_lane(op, |this, _, lane| Ok(this.read_lane(lane, from)));
            }
            OpKind::SubgroupBroadcastFirst => {
                let from = match self.mask.shape {
                    Shape::Full | Shape::Prefix => Operand::word(0),
                    Shape::Any => {
                        let reversed = self.make(Class::Word, "brev.b32", &[self.mask.lanes]);
                        self.make(Class::Word, "clz.b32", &[reversed])
                    }
                };
                return self.each_lane(op, |this, _, lane| Ok(this.read_lane(lane, from)));
            }
            OpKind::SubgroupBallot => {
                let condition = self.scalar(op.operands[0])?;
                let lanes = match condition.bits() {
                    Some(1) => self.mask.lanes,
                    Some(_) => Operand::word(0),
                    None => self.ballot_of(condition).lanes,
                };
                self.set_mask_value(op.results[0], lanes)?;
            }
            OpKind::SubgroupMatchAny | OpKind::SubgroupMatchAll => return self.matches(op),
            OpKind::WorkgroupReduce(combine) => {
                return self.each_lane(op, |this, ty, lane| this.workgroup_reduce(combine, ty, lane));
            }
            OpKind::WorkgroupScan(combine, scan) => {
                return self.each_lane(op, |this, ty, lane| this.workgroup_scan(combine, scan, ty, lane));
            }
            _ => return self.refuse("a collective of another kind"),
        }
        Ok(())
    }

    /// A result for each lane of the first operand.
    fn each_lane(
        &mut self,
        op: &Op,
        mut each: impl FnMut(&mut Self, ScalarType, Operand) -> Result<Operand>,
    ) -> Result {
        let ty = self.element_type(op.operands[0])?;
        let mut lanes = Vec::new();
        for lane in self.lanes(op.operands[0])?.iter() {
            lanes.push(each(self, ty, *lane)?);
        }
        if let [lane] = lanes[..] {
            self.set_scalar(op.results[0], lane);
        } else {
            self.set_lanes(op.results[0], lanes);
        }
        Ok(())
    }

    /// A mask of lanes as a number of 32 or 64 bits.
    fn set_mask_value(&mut self, value: ValueId, lanes: Operand) -> Result {
        let ty = self.element_type(value)?;
        let number = match (ty.bits(), lanes.bits()) {
            (64, Some(bits)) => Operand::long(bits),
            (64, None) => self.make(Class::Long, "cvt.u64.u32", &[lanes]),
            _ => lanes,
        };
        self.set_lanes(value, vec![number]);
        Ok(())
    }

    // ---- reading other lanes

    /// Applies `each` to the words of a value.
    fn by_words(&mut self, value: Operand, mut each: impl FnMut(&mut Self, Operand) -> Operand) -> Operand {
        match value.class() {
            Class::Pred => {
                let word = self.number_of(value);
                let word = each(self, word);
                self.truth_of(word)
            }
            Class::Half => {
                let word = self.same_bits(ScalarType::I16, value);
                let word = each(self, word);
                self.same_bits(ScalarType::F16, word)
            }
            Class::Word => each(self, value),
            Class::Long => {
                let [low, high] = self.halves(value);
                let (low, high) = (each(self, low), each(self, high));
                self.joined(low, high)
            }
        }
    }

    /// The value of lane `from`, which takes part.
    pub(super) fn read_lane(&mut self, value: Operand, from: Operand) -> Operand {
        if value.bits().is_some() {
            return value;
        }
        self.by_words(value, |this, word| this.exchange("idx", word, from, 31))
    }

    fn exchange(&mut self, mode: &str, word: Operand, by: Operand, clamp: u32) -> Operand {
        let (word, mask, to) = (self.in_register(word), self.mask_text(), self.text.reg(Class::Word));
        let by = match by {
            Operand::Reg(reg) => reg.to_string(),
            Operand::Bits(_, bits) => bits.to_string(),
        };
        self.text.raw(&format!("shfl.sync.{mode}.b32 {to}, {word}, {by}, {clamp}, {mask}"));
        to.into()
    }

    /// Whether lane `lane`, below 32, takes part.
    pub(super) fn is_member(&mut self, lane: Operand) -> Operand {
        if self.mask.is_full() {
            return Operand::truth(true);
        }
        let mask = self.mask.lanes;
        let bit = match (mask.bits(), lane.bits()) {
            (Some(mask), Some(lane)) => return Operand::truth(mask >> lane & 1 == 1),
            (None, Some(lane)) => self.make(Class::Word, "and.b32", &[mask, Operand::word(1 << lane)]),
            _ => {
                let moved = self.make(Class::Word, "shr.u32", &[mask, lane]);
                self.make(Class::Word, "and.b32", &[moved, Operand::word(1)])
            }
        };
        self.truth_of(bit)
    }

    /// Lane `lane` if it is one that takes part, else the own.
    fn member_or_own(&mut self, lane: Operand) -> Operand {
        if let (Some(..32), true) = (lane.bits(), self.mask.is_full()) {
            return lane;
        }
        let exists = match lane.bits() {
            Some(lane) => Operand::truth(lane < 32),
            None => self.make(Class::Pred, "setp.lt.u32", &[lane, Operand::word(32)]),
        };
        let low = self.word_op("and.b32", lane, Operand::word(31));
        let member = self.is_member(low);
        let there = self.and(exists, member);
        let own = self.lane();
        self.choose(there, low, own)
    }

    /// 32-bit arithmetic of which constants are folded.
    pub(super) fn word_op(&mut self, mnemonic: &str, a: Operand, b: Operand) -> Operand {
        if let (Some(x), Some(y)) = (a.bits(), b.bits()) {
            let (x, y) = (x as u32, y as u32);
            let folded = match mnemonic {
                "and.b32" => Some(x & y),
                "or.b32" => Some(x | y),
                "add.s32" => Some(x.wrapping_add(y)),
                "mul.lo.s32" => Some(x.wrapping_mul(y)),
                "shl.b32" => x.checked_shl(y),
                "shr.u32" => x.checked_shr(y),
                _ => None,
            };
            if let Some(folded) = folded {
                return Operand::word(folded);
            }
        }
        self.make(Class::Word, mnemonic, &[a, b])
    }

    fn shuffle(&mut self, op: &Op, mode: ShuffleMode) -> Result {
        let (offset, width) = (self.scalar(op.operands[1])?, self.scalar(op.operands[2])?);
        let values = self.lanes(op.operands[0])?;
        let simple = match (mode, offset.bits(), width.bits()) {
            (ShuffleMode::Xor, Some(by), Some(width @ 1..=32)) if width.is_power_of_two() => by < width,
            _ => false,
        };
        let (lanes, ok) = if simple && self.mask.is_full() {
            let exchange =
                |value: &Operand| self.by_words(*value, |this, word| this.exchange("bfly", word, offset, 31));
            (values.iter().map(exchange).collect::<Vec<_>>(), Operand::truth(true))
        } else {
            let (source, ok) = self.shuffle_source(mode, offset, width);
            let own = self.lane();
            let source = self.choose(ok, source, own);
            (values.iter().map(|value| self.read_lane(*value, source)).collect(), ok)
        };
        if let [lane] = lanes[..] {
            self.set_scalar(op.results[0], lane);
        } else {
            self.set_lanes(op.results[0], lanes);
        }
        if let Some(valid) = op.results.get(1) {
            self.set_lanes(*valid, vec![ok]);
        }
        Ok(())
    }

    /// The lane that a shuffle reads, below 32, and whether it may.
    fn shuffle_source(&mut self, mode: ShuffleMode, offset: Operand, width: Operand) -> (Operand, Operand) {
        let lane = self.lane();
        let legal = match width.bits() {
            Some(width) => Operand::truth(width.is_power_of_two() && width <= 32),
            None => {
                let ones = self.make(Class::Word, "popc.b32", &[width]);
                let power = self.make(Class::Pred, "setp.eq.s32", &[ones, Operand::word(1)]);
                let small = self.make(Class::Pred, "setp.le.u32", &[width, Operand::word(32)]);
                self.and(power, small)
            }
        };
        let top = self.word_op("add.s32", width, Operand::word(u32::MAX));
        let local = self.make(Class::Word, "and.b32", &[lane, top]);
        // Unsigned, a lane before the first is far past the last; so is a sum that wraps.
        let source = match mode {
            ShuffleMode::Xor => self.make(Class::Word, "xor.b32", &[local, offset]),
            ShuffleMode::Up => self.make(Class::Word, "sub.s32", &[local, offset]),
            ShuffleMode::Down => self.make(Class::Word, "add.s32", &[local, offset]),
            ShuffleMode::Index => offset,
        };
        let inside = match (source.bits(), width.bits()) {
            (Some(source), Some(width)) => Operand::truth(source < width),
            _ => self.make(Class::Pred, "setp.lt.u32", &[source, width]),
        };
        let inside = match mode {
            // A wrapped sum may be small again.
            ShuffleMode::Down => {
                let bounded = match (offset.bits(), width.bits()) {
                    (Some(offset), Some(width)) => Operand::truth(offset < width),
                    _ => self.make(Class::Pred, "setp.lt.u32", &[offset, width]),
                };
                self.and(inside, bounded)
            }
            ShuffleMode::Up => {
                let bounded = match (offset.bits(), width.bits()) {
                    (Some(offset), Some(width)) => Operand::truth(offset < width),
                    _ => self.make(Class::Pred, "setp.lt.u32", &[offset, width]),
                };
                self.and(inside, bounded)
            }
            ShuffleMode::Xor | ShuffleMode::Index => inside,
        };
        let first = self.make(Class::Word, "sub.s32", &[lane, local]);
        let source = self.word_op("add.s32", first, source);
        let source = self.word_op("and.b32", source, Operand::word(31));
        let valid = self.and(legal, inside);
        let member = self.is_member(source);
        (source, self.and(valid, member))
    }

    fn matches(&mut self, op: &Op) -> Result {
        let value = self.scalar(op.operands[0])?;
        let value = match value.class() {
            Class::Pred => self.number_of(value),
            Class::Half => self.same_bits(ScalarType::I16, value),
            Class::Word | Class::Long => value,
        };
        let (bits, value) = (value.class().bits_type(), self.in_register(value));
        let (mask, to) = (self.mask_text(), self.text.reg(Class::Word));
        if op.kind == OpKind::SubgroupMatchAny {
            self.text.raw(&format!("match.any.sync.{bits} {to}, {value}, {mask}"));
            return self.set_mask_value(op.results[0], to.into());
        }
        let all = self.text.reg(Class::Pred);
        self.text.raw(&format!("match.all.sync.{bits} {to}|{all}, {value}, {mask}"));
        self.set_mask_value(op.results[0], to.into())?;
        if let Some(same) = op.results.get(1) {
            self.set_lanes(*same, vec![all.into()]);
        }
        Ok(())
    }

    // ---- clusters of a subgroup

    /// The first lane of the own cluster.
    fn cluster_start(&mut self, size: u32, stride: u32) -> Operand {
        if size * stride >= 32 && stride == 1 {
            return Operand::word(0);
        }
        let lane = self.lane();
        let kept = !(size * stride - 1) & 31 | (stride - 1);
        self.make(Class::Word, "and.b32", &[lane, Operand::word(kept)])
    }

    /// The own position in the cluster.
    fn position(&mut self, size: u32, stride: u32) -> Operand {
        let lane = self.lane();
        let inside = self.make(Class::Word, "and.b32", &[lane, Operand::word(size * stride - 1)]);
        if stride == 1 {
            return inside;
        }
        self.make(Class::Word, "shr.u32", &[inside, Operand::word(stride.trailing_zeros())])
    }

    pub(super) fn combine(&mut self, combine: Combine, ty: ScalarType, a: Operand, b: Operand) -> Result<Operand> {
        self.pair(combine.binary(), ty, a, b)
    }

    fn reduce(&mut self, combine: Combine, ty: ScalarType, value: Operand, size: u32, stride: u32) -> Result<Operand> {
        if size == 1 {
            return Ok(value);
        }
        let in_one = match combine {
            Combine::AddI => Some("add.s32"),
            Combine::MinSI => Some("min.s32"),
            Combine::MaxSI => Some("max.s32"),
            Combine::MinUI => Some("min.u32"),
            Combine::MaxUI => Some("max.u32"),
            Combine::AndI => Some("and.b32"),
            Combine::OrI => Some("or.b32"),
            Combine::XorI => Some("xor.b32"),
            _ => None,
        };
        if let Some(kind) = in_one.filter(|_| ty == ScalarType::I32 && size == 32)
            && self.may(80, (7, 0))
        {
            let (value, mask, to) = (self.in_register(value), self.mask_text(), self.text.reg(Class::Word));
            self.text.raw(&format!("redux.sync.{kind} {to}, {value}, {mask}"));
            return Ok(to.into());
        }
        let missing = Operand::Bits(class_of(ty), neutral(combine, ty));
        match self.mask.shape {
            Shape::Full => {
                let mut sum = value;
                let mut distance = size / 2;
                while distance > 0 {
                    let by = Operand::word(distance * stride);
                    let other = self.by_words(sum, |this, word| this.exchange("bfly", word, by, 31));
                    sum = self.combine(combine, ty, sum, other)?;
                    distance /= 2;
                }
                Ok(sum)
            }
            Shape::Prefix => {
                // The lowest position takes all in; it is there if any of its cluster is.
                let mut sum = value;
                let own = self.lane();
                let mut distance = size / 2;
                while distance > 0 {
                    let other = self.make(Class::Word, "add.s32", &[own, Operand::word(distance * stride)]);
                    let exists = self.make(Class::Pred, "setp.lt.u32", &[other, Operand::word(32)]);
                    let low = self.make(Class::Word, "and.b32", &[other, Operand::word(31)]);
                    let member = self.is_member(low);
                    let there = self.and(exists, member);
                    let source = self.choose(there, low, own);
                    let found = self.read_lane(sum, source);
                    let found = self.choose(there, found, missing);
                    sum = self.combine(combine, ty, sum, found)?;
                    distance /= 2;
                }
                let first = self.cluster_start(size, stride);
                Ok(self.read_lane(sum, first))
            }
            Shape::Any => {
                let mut chains = self.members(value, missing, size, stride);
                while chains.len() > 1 {
                    let upper = chains.split_off(chains.len() / 2);
                    for (chain, other) in chains.iter_mut().zip(upper) {
                        *chain = self.combine(combine, ty, *chain, other)?;
                    }
                }
                Ok(chains[0])
            }
        }
    }

    /// The values of all positions of the own cluster, `missing` for those who are not there.
    fn members(&mut self, value: Operand, missing: Operand, size: u32, stride: u32) -> Vec<Operand> {
        let first = self.cluster_start(size, stride);
        let mut values = Vec::new();
        for position in 0..size {
            let lane = self.word_op("add.s32", first, Operand::word(position * stride));
            let there = self.is_member(lane);
            let found = self.read_lane(value, lane);
            values.push(self.choose(there, found, missing));
        }
        values
    }

    fn scan(
        &mut self,
        combine: Combine,
        scan: Scan,
        ty: ScalarType,
        value: Operand,
        size: u32,
        stride: u32,
    ) -> Result<Operand> {
        let position = self.position(size, stride);
        let identity = Operand::Bits(class_of(ty), eval::identity(combine, ty));
        let missing = Operand::Bits(class_of(ty), neutral(combine, ty));
        if is_ordered(combine) || self.mask.shape == Shape::Any {
            let mut values: Vec<(u32, Operand)> = self
                .members(value, missing, size, stride)
                .into_iter()
                .enumerate()
                .map(|(at, v)| (at as u32, v))
                .collect();
            if scan.reverse {
                values.reverse();
            }
            let comparison = match (scan.reverse, scan.exclusive) {
                (false, false) => "le",
                (false, true) => "lt",
                (true, false) => "ge",
                (true, true) => "gt",
            };
            let first = self.cluster_start(size, stride);
            let (mut sum, mut any) = (missing, Operand::truth(false));
            for (at, found) in values {
                let counts = self.make(Class::Pred, &format!("setp.{comparison}.u32"), &[Operand::word(at), position]);
                let taken = self.choose(counts, found, missing);
                sum = self.combine(combine, ty, sum, taken)?;
                if scan.exclusive {
                    let lane = self.word_op("add.s32", first, Operand::word(at * stride));
                    let there = self.is_member(lane);
                    let here = self.and(counts, there);
                    any = self.or(any, here);
                }
            }
            return Ok(if scan.exclusive { self.choose(any, sum, identity) } else { sum });
        }
        // Doubling distances: the order does not matter here.
        let mut sum = value;
        let mut distance = 1;
        while distance < size {
            let (found, there) = self.neighbour(sum, position, distance, size, stride, scan.reverse);
            let more = self.combine(combine, ty, found, sum)?;
            sum = self.choose(there, more, sum);
            distance *= 2;
        }
        if scan.exclusive {
            let (found, there) = self.neighbour(sum, position, 1, size, stride, scan.reverse);
            sum = self.choose(there, found, identity);
        }
        Ok(sum)
    }

    /// The value `distance` positions before (behind, if `reverse`), and whether that is one of the cluster who is there.
    fn neighbour(
        &mut self,
        value: Operand,
        position: Operand,
        distance: u32,
        size: u32,
        stride: u32,
        reverse: bool,
    ) -> (Operand, Operand) {
        let own = self.lane();
        let (inside, by) = if reverse {
            let inside = self.make(Class::Pred, "setp.lt.u32", &[position, Operand::word(size - distance)]);
            (inside, distance * stride)
        } else {
            let inside = self.make(Class::Pred, "setp.ge.u32", &[position, Operand::word(distance)]);
            (inside, (distance * stride).wrapping_neg())
        };
        let other = self.make(Class::Word, "add.s32", &[own, Operand::word(by)]);
        let low = self.make(Class::Word, "and.b32", &[other, Operand::word(31)]);
        let member = self.is_member(low);
        let there = self.and(inside, member);
        let source = self.choose(there, low, own);
        (self.read_lane(value, source), there)
    }

    // ---- the workgroup

    /// Bytes of a value in the hidden storage.
    const fn cell_bytes(ty: ScalarType) -> u64 {
        if ty.bits() == 64 { 8 } else { 4 }
    }

    /// Hidden storage: a cell an item, whole subgroups of them; a word an item that says who is there; and one cell for a result.
    fn scratch(&mut self) -> u64 {
        if let Some(offset) = self.memory.scratch {
            return offset;
        }
        let items = u64::from(self.kernel.items().next_multiple_of(32));
        let offset = self.memory.take_shared(16, 8 + items * (self.widest_cell() + 4));
        self.memory.scratch = Some(offset);
        offset
    }

    /// The widest cell of any collective of the workgroup.
    fn widest_cell(&self) -> u64 {
        let wide = |op: &Op| {
            let collective = matches!(op.kind, OpKind::WorkgroupReduce(_) | OpKind::WorkgroupScan(..));
            collective && self.body.ty(op.operands[0]).element().is_some_and(|ty| ty.bits() == 64)
        };
        if self.body.ops().any(wide) { 8 } else { 4 }
    }

    /// A cell of the hidden storage, `index` cells on.
    fn cell_place(&mut self, offset: u64, index: Operand, cell: u64) -> Place {
        let base = self.text.reg(Class::Word);
        self.text.raw(&format!("mov.u32 {base}, shared"));
        let base = match index.bits() {
            Some(index) => return shared_place(base.into(), (offset + index * cell) as i64),
            None => self.make(Class::Word, "mad.lo.s32", &[index, Operand::word(cell as u32), base.into()]),
        };
        shared_place(base, offset as i64)
    }

    fn put(&mut self, place: &Place, value: Operand) {
        let value = match value.class() {
            Class::Pred => self.number_of(value),
            Class::Half => self.same_bits(ScalarType::I16, value),
            Class::Word | Class::Long => value,
        };
        let (value, base) = (self.in_register(value), self.in_register(place.base));
        self.text.raw(&format!("st.shared.{} [{base}+{}], {value}", value.class.bits_type(), place.constant));
    }

    fn get(&mut self, place: &Place, ty: ScalarType) -> Operand {
        let class = if ty.bits() == 64 { Class::Long } else { Class::Word };
        let (to, base) = (self.text.reg(class), self.in_register(place.base));
        self.text.raw(&format!("ld.shared.{} {to}, [{base}+{}]", class.bits_type(), place.constant));
        match class_of(ty) {
            Class::Pred => self.truth_of(to.into()),
            Class::Half => self.same_bits(ty, to.into()),
            Class::Word | Class::Long => to.into(),
        }
    }

    /// Every item's value in its cell, seen by all. Where items may have left, theirs are neutral, and words say who is there.
    fn spread(&mut self, combine: Combine, ty: ScalarType, value: Operand) {
        let (scratch, flat, cell) = (self.scratch(), self.flat(), Self::cell_bytes(ty));
        let items = self.kernel.items().next_multiple_of(32);
        if self.mask.shape == Shape::Any || self.kernel.items() != items {
            // Whoever is there clears all cells: nobody knows who is not.
            let missing = Operand::Bits(class_of(ty), neutral(combine, ty));
            let missing = if missing.class() == Class::Pred { self.number_of(missing) } else { missing };
            let missing: Operand = self.in_register(missing).into();
            let at = self.text.reg(Class::Word);
            self.copy(at, Operand::word(0));
            let turn = self.text.label();
            self.text.at(turn);
            let place = self.cell_place(scratch + 8, at.into(), cell);
            self.put(&place, missing);
            let place = self.presence(at.into());
            self.put(&place, Operand::word(0));
            self.emit("add.s32", at.into(), &[at.into(), Operand::word(1)]);
            let more = self.make(Class::Pred, "setp.lt.u32", &[at.into(), Operand::word(items)]);
            self.branch(more, true, turn);
            self.text.raw("bar.sync 0");
        }
        let place = self.cell_place(scratch + 8, flat, cell);
        self.put(&place, value);
        if self.mask.shape == Shape::Any {
            let place = self.presence(flat);
            self.put(&place, Operand::word(1));
        }
        self.text.raw("bar.sync 0");
    }

    /// The word that says whether item `item` is there.
    fn presence(&mut self, item: Operand) -> Place {
        let items = u64::from(self.kernel.items().next_multiple_of(32));
        let offset = self.scratch() + 8 + items * self.widest_cell();
        self.cell_place(offset, item, 4)
    }

    fn workgroup_reduce(&mut self, combine: Combine, ty: ScalarType, value: Operand) -> Result<Operand> {
        if self.kernel.items() <= 32 {
            self.text.raw("bar.sync 0");
            return self.reduce(combine, ty, value, 32, 1);
        }
        self.spread(combine, ty, value);
        let (scratch, cell) = (self.scratch(), Self::cell_bytes(ty));
        let groups = self.kernel.items().div_ceil(32);
        if self.mask.shape == Shape::Any {
            // Nobody can be relied on: each item goes through all chains.
            let mut chains = Vec::new();
            for chain in 0..32 {
                let place = self.cell_place(scratch + 8, Operand::word(chain), cell);
                let first = self.get(&place, ty);
                let sum = self.text.reg(class_of(ty));
                self.copy(sum, first);
                chains.push(sum);
            }
            let at = self.text.reg(Class::Word);
            self.copy(at, Operand::word(32));
            let turn = self.text.label();
            self.text.at(turn);
            let place = self.cell_place(scratch + 8, at.into(), cell);
            for (chain, sum) in chains.iter().enumerate() {
                let next = self.get(&shared_place(place.base, place.constant + (chain as u64 * cell) as i64), ty);
                let more = self.combine(combine, ty, (*sum).into(), next)?;
                self.copy(*sum, more);
            }
            self.emit("add.s32", at.into(), &[at.into(), Operand::word(32)]);
            let more = self.make(Class::Pred, "setp.lt.u32", &[at.into(), Operand::word(groups * 32)]);
            self.branch(more, true, turn);
            let mut sums: Vec<Operand> = chains.into_iter().map(Operand::from).collect();
            while sums.len() > 1 {
                let upper = sums.split_off(sums.len() / 2);
                for (sum, other) in sums.iter_mut().zip(upper) {
                    *sum = self.combine(combine, ty, *sum, other)?;
                }
            }
            self.text.raw("bar.sync 0");
            return Ok(sums[0]);
        }
        // The first subgroup has a chain a lane.
        let flat = self.flat();
        let others = self.make(Class::Pred, "setp.ge.u32", &[flat, Operand::word(32)]);
        let done = self.text.label();
        self.branch(others, true, done);
        let place = self.cell_place(scratch + 8, flat, cell);
        let mut sum = self.get(&place, ty);
        for group in 1..groups {
            let next = self.get(&shared_place(place.base, place.constant + (u64::from(group) * 32 * cell) as i64), ty);
            sum = self.combine(combine, ty, sum, next)?;
        }
        let outer = std::mem::replace(&mut self.mask, Mask::FULL);
        let sum = self.reduce(combine, ty, sum, 32, 1)?;
        self.mask = outer;
        let place = self.cell_place(scratch, Operand::word(0), 8);
        self.put(&place, sum);
        self.text.at(done);
        self.text.raw("bar.sync 0");
        let place = self.cell_place(scratch, Operand::word(0), 8);
        Ok(self.get(&place, ty))
    }

    fn workgroup_scan(&mut self, combine: Combine, scan: Scan, ty: ScalarType, value: Operand) -> Result<Operand> {
        let items = self.kernel.items();
        if items <= 32 {
            self.text.raw("bar.sync 0");
            return self.scan(combine, scan, ty, value, 32, 1);
        }
        self.spread(combine, ty, value);
        let (scratch, cell, flat) = (self.scratch(), Self::cell_bytes(ty), self.flat());
        let (identity, missing) = (eval::identity(combine, ty), neutral(combine, ty));
        let (sum, at) = (self.text.reg(class_of(ty)), self.text.reg(Class::Word));
        let any = self.text.reg(Class::Word);
        self.copy(sum, Operand::Bits(class_of(ty), missing));
        self.copy(any, Operand::word(0));
        let (turn, done) = (self.text.label(), self.text.label());
        self.copy(at, if scan.reverse { Operand::word(items - 1) } else { Operand::word(0) });
        self.text.at(turn);
        let over = match (scan.reverse, scan.exclusive) {
            (false, false) => "gt",
            (false, true) => "ge",
            (true, false) => "lt",
            (true, true) => "le",
        };
        let over = self.make(Class::Pred, &format!("setp.{over}.s32"), &[at.into(), flat]);
        self.branch(over, true, done);
        let place = self.cell_place(scratch + 8, at.into(), cell);
        let next = self.get(&place, ty);
        let more = self.combine(combine, ty, sum.into(), next)?;
        self.copy(sum, more);
        if scan.exclusive {
            let there = if self.mask.shape == Shape::Any {
                let place = self.presence(at.into());
                self.get(&place, ScalarType::I32)
            } else {
                Operand::word(1)
            };
            self.emit("or.b32", any.into(), &[any.into(), there]);
        }
        let by = if scan.reverse { u32::MAX } else { 1 };
        self.emit("add.s32", at.into(), &[at.into(), Operand::word(by)]);
        self.jump(turn);
        self.text.at(done);
        let value = if scan.exclusive {
            let any = self.truth_of(any.into());
            self.choose(any, sum.into(), Operand::Bits(class_of(ty), identity))
        } else {
            sum.into()
        };
        self.text.raw("bar.sync 0");
        Ok(value)
    }
}

/// A place in workgroup memory.
fn shared_place(base: Operand, constant: i64) -> Place {
    Place { constant, ..Place::unknown(super::memory::Space::Shared, base) }
}
