//! Matrix fragments in the payload layout of the IR, by loads, shuffles and plain arithmetic.
//!
//! - A lane of a result computes its own elements: it reads the rows of the left operand from the lanes that hold them, and its column
//!   of the right one from the first 16 lanes. Sums go in ascending `k`, as `fragment::Product` states: the bits are the
//!   interpreter's.
//! - Integers of 8 bits are multiplied four at a time.

use super::emitter::{Emitter, Result};
use super::memory::Place;
use super::text::{Class, Operand, class_of};
use crate::eval;
use crate::fragment::{Format, Fragment, Product, Role, TILE};
use crate::ir::{Op, ValueId};
use crate::ops::{Convert, OpKind, Ternary};
use crate::types::ScalarType;

/// The slots with data, and their places, so that what lies side by side stands side by side: one access for several.
fn in_memory_order(places: Vec<Option<Place>>) -> (Vec<usize>, Vec<Place>) {
    let mut data: Vec<(usize, Place)> =
        places.into_iter().enumerate().filter_map(|(slot, place)| Some((slot, place?))).collect();
    let first = data.first().map(|(_, place)| (place.base, place.offset));
    if data.iter().all(|(_, place)| Some((place.base, place.offset)) == first) {
        data.sort_by_key(|(_, place)| place.constant);
    }
    data.into_iter().unzip()
}

impl Emitter<'_> {
    pub(super) fn fragment(&mut self, op: &Op) -> Result {
        if self.grouped(op)? {
            return Ok(());
        }
        match op.kind {
            OpKind::FragmentLabel(..) => {
                let lanes = self.lanes(op.operands[0])?;
                self.set_lanes(op.results[0], lanes.to_vec());
                Ok(())
            }
            OpKind::FragmentLoad(fragment) => {
                let ty = self.element_type(op.results[0])?;
                if let Some(lanes) = self.load_matrices(op.operands[0], &op.operands[1..], fragment)? {
                    self.set_lanes(op.results[0], lanes);
                    return Ok(());
                }
                let places = self.tile_places(op.operands[0], &op.operands[1..], fragment)?;
                let (slots, mut data) = in_memory_order(places);
                // A stride of 0 has several slots in one place.
                let same = |a: &Place, b: &Place| (a.base, a.offset, a.constant) == (b.base, b.offset, b.constant);
                let mut of_slot = Vec::with_capacity(slots.len());
                let mut found = 0;
                for (at, place) in data.iter().enumerate() {
                    found += usize::from(at > 0 && !same(&data[at - 1], place));
                    of_slot.push(found);
                }
                data.dedup_by(|a, b| same(a, b));
                let loaded = self.load_lanes(ty, &data, None, None);
                let mut lanes = vec![Operand::Bits(class_of(ty), 0); fragment.slots() as usize];
                for (slot, at) in slots.into_iter().zip(of_slot) {
                    lanes[slot] = loaded[at];
                }
                self.set_lanes(op.results[0], lanes);
                Ok(())
            }
            OpKind::FragmentStore(fragment) => {
                let ty = self.element_type(op.operands[0])?;
                let places = self.tile_places(op.operands[1], &op.operands[2..], fragment)?;
                let lanes = self.lanes(op.operands[0])?;
                let (slots, data) = in_memory_order(places);
                let lanes: Vec<Operand> = slots.into_iter().map(|slot| lanes[slot]).collect();
                self.store_lanes(ty, &data, &lanes, None);
                Ok(())
            }
            OpKind::FragmentRepack { from, to } if self.tensor => self.repack_own(op, from, to),
            OpKind::FragmentRepack { from, to } => self.repack(op, from, to),
            OpKind::Mma(product) if self.tensor => self.mma_own(op, product),
            OpKind::Mma(product) => self.mma(op, product),
            _ => self.refuse("a fragment op of another kind"),
        }
    }

    /// Row and column of slot `slot` of a lane, or nothing where it carries no data.
    fn element_at(&mut self, fragment: Fragment, lane: Operand, slot: u32) -> Option<[Operand; 2]> {
        let across = self.word_op("and.b32", lane, Operand::word(TILE - 1));
        match fragment.role {
            Role::Lhs => Some([across, Operand::word(slot)]),
            Role::Rhs => Some([Operand::word(slot), across]),
            Role::Init | Role::Result if slot.is_multiple_of(fragment.spread) => {
                let group = self.word_op("shr.u32", lane, Operand::word(TILE.trailing_zeros()));
                let row = self.word_op("add.s32", group, Operand::word(fragment.groups() * (slot / fragment.spread)));
                Some([row, across])
            }
            Role::Init | Role::Result => None,
        }
    }

    /// Where each slot of the own part of a tile lies.
    fn tile_places(&mut self, view: ValueId, indices: &[ValueId], fragment: Fragment) -> Result<Vec<Option<Place>>> {
        let first = self.element_place(view, indices)?;
        if self.tensor {
            return self.own_places(view, &first, fragment);
        }
        let lane = self.lane();
        // What depends on the lane once; slots are a constant distance on.
        let across = self.word_op("and.b32", lane, Operand::word(TILE - 1));
        let zero = Operand::word(0);
        let own = match fragment.role {
            Role::Lhs => self.tile_place(view, &first, across, zero, [1, 1])?,
            Role::Rhs => self.tile_place(view, &first, zero, across, [1, 1])?,
            Role::Init | Role::Result => {
                let group = self.word_op("shr.u32", lane, Operand::word(TILE.trailing_zeros()));
                self.tile_place(view, &first, group, across, [1, 1])?
            }
        };
        let mut places = Vec::new();
        for slot in 0..fragment.slots() {
            let [row, column] = match fragment.role {
                Role::Lhs => [0, slot],
                Role::Rhs => [slot, 0],
                Role::Init | Role::Result if slot.is_multiple_of(fragment.spread) => {
                    [fragment.groups() * (slot / fragment.spread), 0]
                }
                Role::Init | Role::Result => {
                    places.push(None);
                    continue;
                }
            };
            let multiples = [u64::from(row.max(1)), u64::from(column.max(1))];
            places.push(Some(self.tile_place(view, &own, Operand::word(row), Operand::word(column), multiples)?));
        }
        Ok(places)
    }

    /// A value of lane `lane`, zero if that is missing.
    fn read_or_zero(&mut self, value: Operand, lane: Operand) -> Operand {
        let there = self.is_member(lane);
        let found = self.read_lane(value, lane);
        self.choose(there, found, Operand::Bits(value.class(), 0))
    }

    fn repack(&mut self, op: &Op, from: Fragment, to: Fragment) -> Result {
        let ty = self.element_type(op.operands[0])?;
        let payload = self.lanes(op.operands[0])?;
        let own = self.lane();
        let mut lanes = Vec::new();
        for slot in 0..to.slots() {
            let Some([row, column]) = self.element_at(to, own, slot) else {
                lanes.push(Operand::Bits(class_of(ty), 0));
                continue;
            };
            // The first lane, and the slot, that hold it: the inverse of `element_at`.
            let (lane, place) = match from.role {
                Role::Lhs => (row, column),
                Role::Rhs => (column, row),
                Role::Init | Role::Result => {
                    let groups = from.groups();
                    let group = self.word_op("and.b32", row, Operand::word(groups - 1));
                    let group = self.word_op("mul.lo.s32", group, Operand::word(TILE));
                    let slot = self.word_op("shr.u32", row, Operand::word(groups.trailing_zeros()));
                    let slot = self.word_op("mul.lo.s32", slot, Operand::word(from.spread));
                    (self.word_op("add.s32", group, column), slot)
                }
            };
            if let Some(place) = place.bits() {
                lanes.push(self.read_or_zero(payload[place as usize], lane));
                continue;
            }
            let mut found = Operand::Bits(class_of(ty), 0);
            for candidate in (0..from.slots()).step_by(from.spread as usize) {
                let value = self.read_or_zero(payload[candidate as usize], lane);
                let here = self.make(Class::Pred, "setp.eq.s32", &[place, Operand::word(candidate)]);
                found = self.choose(here, value, found);
            }
            lanes.push(found);
        }
        self.set_lanes(op.results[0], lanes);
        Ok(())
    }

    /// The numbers in words of an operand, floats in f32.
    fn numbers(&mut self, format: Format, words: &[Operand]) -> Result<Vec<Operand>> {
        let mut numbers = Vec::new();
        if let Some(ty) = format.float() {
            let count = words.len() * (32 / ty.bits()) as usize;
            for lane in self.unpack(ty, words, count) {
                let extend = eval::Op::Convert(Convert::ExtF, ty, ScalarType::F32);
                numbers.push(self.evaluate(extend, [lane; 3], None)?);
            }
            return Ok(numbers);
        }
        let sign = if matches!(format, Format::I8 | Format::I4) { "s32" } else { "u32" };
        for word in words {
            for at in 0..32 / format.bits() {
                let bits = [*word, Operand::word(at * format.bits()), Operand::word(format.bits())];
                numbers.push(self.make(Class::Word, &format!("bfe.{sign}"), &bits));
            }
        }
        Ok(numbers)
    }

    fn mma(&mut self, op: &Op, product: Product) -> Result {
        let [lhs, rhs, init] = [op.operands[0], op.operands[1], op.operands[2]];
        let (lhs_ty, rhs_ty, ty) = (self.element_type(lhs)?, self.element_type(rhs)?, self.element_type(init)?);
        let (a, b) = (self.lanes(lhs)?, self.lanes(rhs)?);
        let (a, b) = (self.pack(lhs_ty, &a), self.pack(rhs_ty, &b));
        let words = (product.depth * product.lhs.bits()).div_ceil(32) as usize;
        if a.len() < words || b.len() < words {
            return self.refuse("vector.mma of a fragment that is shorter than its product");
        }
        let own = self.lane();
        let across = self.word_op("and.b32", own, Operand::word(TILE - 1));
        let column: Vec<Operand> = b[..words].iter().map(|word| self.read_or_zero(*word, across)).collect();
        let packed = product.lhs.bits() == 8 && product.lhs.is_integer();
        let right = if packed { Vec::new() } else { self.numbers(product.rhs, &column)? };
        let mut sums = self.lanes(init)?.to_vec();
        for (slot, sum) in sums.iter_mut().enumerate() {
            let Some([row, _]) = self.element_at(product.sum, own, slot as u32) else { continue };
            let line: Vec<Operand> = a[..words].iter().map(|word| self.read_or_zero(*word, row)).collect();
            if packed {
                let sign = |format: Format| if format == Format::I8 { "s32" } else { "u32" };
                let mnemonic = format!("dp4a.{}.{}", sign(product.lhs), sign(product.rhs));
                for (a, b) in line.iter().zip(&column) {
                    *sum = self.make(Class::Word, &mnemonic, &[*a, *b, *sum]);
                }
                continue;
            }
            let left = self.numbers(product.lhs, &line)?;
            let terms = left.iter().zip(&right).take(product.depth as usize);
            if product.lhs.is_integer() {
                for (a, b) in terms {
                    *sum = self.make(Class::Word, "mad.lo.s32", &[*a, *b, *sum]);
                }
                continue;
            }
            let mut wide = self.extended(ty, *sum)?;
            for (a, b) in terms {
                wide = self.evaluate(eval::Op::Ternary(Ternary::FmaF, ScalarType::F32), [*a, *b, wide], None)?;
            }
            *sum = self.rounded(ty, wide)?;
        }
        self.set_lanes(op.results[0], sums);
        Ok(())
    }
}
