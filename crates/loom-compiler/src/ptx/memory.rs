//! Places in memory, loads and stores.
//!
//! ```text
//! buffer ──view, subview──> Place { space, base, offset, constant }      address = base + constant, or base + offset + constant
//! ```
//!
//! - Without checks a place is one address; with them the offset from the buffer's start stays apart, and is compared.
//! - Addresses are 64 bits in global memory and 32 in workgroup and private memory. A place that may be in one or the other is
//!   generic.
//! - Lanes that lie side by side are one access, as wide as alignment proves, up to 16 bytes.
//! - Elements lie on multiples of their size: with checks that is compared too, where it is not proven.

use std::fmt::Write as _;

use super::BUFFER_ALIGN;
use super::emitter::{Emitter, Result};
use super::fault::SiteKind;
use super::text::{Class, Operand, Reg, class_of};
use crate::flow;
use crate::ir::{Body, Op, ValueId};
use crate::ops::{OpKind, Space as Scratch};
use crate::types::{Dim, ScalarType, Type, ViewType};

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Global,
    Shared,
    Local,
    /// Any of these.
    Generic,
}

impl Space {
    /// As instructions have it: with a dot before, or nothing.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::Global => ".global",
            Self::Shared => ".shared",
            Self::Local => ".local",
            Self::Generic => "",
        }
    }
}

/// Which spaces each buffer and view may be in.
pub(super) struct Spaces(Vec<u8>);

impl Spaces {
    const GLOBAL: u8 = 1;
    const SHARED: u8 = 2;
    const LOCAL: u8 = 4;
    /// Global, and written by nobody while the kernel runs.
    const CONSTANT: u8 = 8;

    /// Of launch arguments those are constant whose bit is set, of the first 64.
    pub(super) fn of(body: &Body, constants: u64) -> Self {
        let mut sets = vec![0u8; body.values.len()];
        for (at, argument) in body.block(Body::ENTRY).arguments.iter().enumerate() {
            let is_constant = at < 64 && constants >> at & 1 == 1;
            sets[argument.index()] = if is_constant { Self::CONSTANT } else { Self::GLOBAL };
        }
        let copies = flow::copies(body);
        loop {
            let before = sets.clone();
            for op in body.ops() {
                let Some(result) = op.result() else { continue };
                sets[result.index()] |= match &op.kind {
                    OpKind::Alloca { space: Scratch::Workgroup, .. } => Self::SHARED,
                    OpKind::Alloca { space: Scratch::Private, .. } => Self::LOCAL,
                    OpKind::Bytes(_) => Self::CONSTANT,
                    OpKind::BufferView | OpKind::Subview | OpKind::Refine => sets[op.operands[0].index()],
                    _ => 0,
                };
            }
            for (value, sources) in copies.iter().enumerate() {
                for source in sources {
                    sets[value] |= sets[source.index()];
                }
            }
            if sets == before {
                return Self(sets);
            }
        }
    }

    pub(super) fn space(&self, value: ValueId) -> Space {
        let set = self.0[value.index()];
        match if set & Self::CONSTANT == 0 { set } else { set & !Self::CONSTANT | Self::GLOBAL } {
            Self::GLOBAL => Space::Global,
            Self::SHARED => Space::Shared,
            Self::LOCAL => Space::Local,
            _ => Space::Generic,
        }
    }

    /// Whether nobody writes, while the kernel runs, wherever it may be.
    pub(super) fn is_constant(&self, value: ValueId) -> bool {
        self.0[value.index()] == Self::CONSTANT
    }
}

/// Memory that the text declares.
#[derive(Default)]
pub(super) struct Declared {
    shared: u64,
    shared_align: u64,
    local: Vec<(u64, u64)>,
    data: Vec<Vec<u8>>,
    /// Where the hidden storage of collectives of the workgroup begins.
    pub(super) scratch: Option<u64>,
    /// The address of the fault record.
    pub(super) faults: Option<Operand>,
}

impl Declared {
    /// Takes workgroup memory: its offset.
    pub(super) fn take_shared(&mut self, align: u64, bytes: u64) -> u64 {
        let offset = self.shared.next_multiple_of(align);
        self.shared = offset.saturating_add(bytes);
        self.shared_align = self.shared_align.max(align);
        offset
    }

    pub(super) const fn shared_bytes(&self) -> u64 {
        self.shared
    }

    pub(super) fn shared_align(&self) -> u64 {
        self.shared_align.max(16)
    }

    pub(super) fn local_bytes(&self) -> u64 {
        self.local.iter().map(|(_, bytes)| bytes).sum()
    }

    pub(super) fn write_local(&self, text: &mut String) {
        for (at, (align, bytes)) in self.local.iter().enumerate() {
            let _ = writeln!(text, "    .local .align {align} .b8 local{at}[{bytes}];");
        }
    }

    pub(super) fn write_data(&self, text: &mut String) {
        for (at, bytes) in self.data.iter().enumerate() {
            let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
            let (length, lines) = (bytes.len().max(1), numbers.chunks(32).map(|line| line.join(", ")));
            let _ = write!(text, ".global .align 16 .b8 data{at}[{length}]");
            if !bytes.is_empty() {
                let _ = write!(text, " = {{\n    {}}}", lines.collect::<Vec<_>>().join(",\n    "));
            }
            text.push_str(";\n\n");
        }
    }
}

/// Somewhere in a buffer.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) space: Space,
    /// An address: of the buffer's start where `offset` is kept, of the place itself but for `constant` where not.
    pub(super) base: Operand,
    /// With checks: bytes from the buffer's start, 64 bits.
    pub(super) offset: Option<Operand>,
    /// Bytes more.
    pub(super) constant: i64,
    /// Bytes of the buffer, 64 bits, where lengths are known.
    pub(super) length: Option<Operand>,
    /// A power of two that divides the address, `constant` left out.
    pub(super) align: u64,
    /// Whether pieces of 16 bytes lie exchanged: bits 4 to 6 of the address are those of the place, exclusive or bits 7 to 9.
    pub(super) swizzled: bool,
}

/// What of a place varies when control flow decides it.
pub(super) struct Parts {
    pub(super) base: Operand,
    pub(super) offset: Operand,
    pub(super) length: Operand,
}

impl Place {
    /// The start of an argument.
    pub(super) const fn argument(base: Operand) -> Self {
        Self {
            space: Space::Global,
            base,
            offset: None,
            constant: 0,
            length: None,
            align: BUFFER_ALIGN,
            swizzled: false,
        }
    }

    /// At an address of which nothing is known.
    pub(super) const fn unknown(space: Space, base: Operand) -> Self {
        Self { space, base, offset: None, constant: 0, length: None, align: 1, swizzled: false }
    }

    pub(super) const fn address_class(space: Space) -> Class {
        match space {
            Space::Global | Space::Generic => Class::Long,
            Space::Shared | Space::Local => Class::Word,
        }
    }

    /// The power of two that divides the address, `more` bytes on.
    pub(super) fn align_at(&self, more: i64) -> u64 {
        self.align.min(power_of_two(self.constant.wrapping_add(more).unsigned_abs()))
    }
}

/// The power of two in a number, no more than is ever of use.
const fn power_of_two(number: u64) -> u64 {
    let zeros = number.trailing_zeros();
    1 << if zeros > 12 { 12 } else { zeros }
}

impl Emitter<'_> {
    pub(super) fn memory_op(&mut self, op: &Op) -> Result {
        match &op.kind {
            OpKind::Alloca { space, align, bytes } => {
                let mut place = self.alloca(*space, *align, *bytes);
                place.swizzled = self.groups.is_swizzled(op.results[0]);
                self.set_place(op.results[0], place);
            }
            OpKind::Bytes(bytes) => {
                let to = self.text.reg(Class::Long);
                self.text.raw(&format!("mov.u64 {to}, data{}", self.memory.data.len()));
                self.memory.data.push(bytes.to_vec());
                let mut place = Place::argument(to.into());
                place.length = self.lengths.then_some(Operand::long(bytes.len() as u64));
                self.set_place(op.results[0], place);
            }
            OpKind::BufferView => {
                let place = self.place(op.operands[0])?;
                let multiple = power_of_two(self.facts(op.operands[1]).multiple_of);
                let offset = self.raw(op.operands[1])?;
                let place = self.moved(place, offset, Operand::long(1), multiple);
                self.set_place(op.results[0], place);
            }
            OpKind::Subview => {
                let place = self.element_place(op.operands[0], &op.operands[1..])?;
                self.set_place(op.results[0], place);
            }
            OpKind::Refine => {
                let place = self.place(op.operands[0])?;
                self.set_place(op.results[0], place);
            }
            OpKind::BufferLength => {
                let length = self.place(op.operands[0])?.length;
                let Some(length) = length else { return self.refuse("the length of a buffer that has none") };
                self.set_scalar(op.results[0], length);
            }
            OpKind::Load | OpKind::LoadMask => {
                let masked = op.kind == OpKind::LoadMask;
                let end = op.operands.len() - if masked { 2 } else { 0 };
                let (mask, pass) = match masked {
                    true => (Some(self.lanes(op.operands[end])?), Some(self.lanes(op.operands[end + 1])?)),
                    false => (None, None),
                };
                let ty = self.element_type(op.results[0])?;
                let places = self.lane_places(op.operands[0], &op.operands[1..end], op.results[0])?;
                let lanes = self.load_lanes(ty, &places, mask.as_deref(), pass.as_deref());
                self.set_loaded(op.results[0], lanes);
            }
            OpKind::Store | OpKind::StoreMask => {
                let masked = op.kind == OpKind::StoreMask;
                let end = op.operands.len() - usize::from(masked);
                let mask = if masked { Some(self.lanes(op.operands[end])?) } else { None };
                let ty = self.element_type(op.operands[0])?;
                let values = self.lanes(op.operands[0])?;
                let places = self.lane_places(op.operands[1], &op.operands[2..end], op.operands[0])?;
                self.store_lanes(ty, &places, &values, mask.as_deref());
            }
            OpKind::Gather | OpKind::GatherMask => {
                let masked = op.kind == OpKind::GatherMask;
                let end = op.operands.len() - if masked { 3 } else { 1 };
                let ty = self.element_type(op.results[0])?;
                let places = self.gathered(op.operands[0], &op.operands[1..end], op.operands[end])?;
                let (mask, pass) = match masked {
                    true => (Some(self.lanes(op.operands[end + 1])?), Some(self.lanes(op.operands[end + 2])?)),
                    false => (None, None),
                };
                let lanes = self.load_lanes(ty, &places, mask.as_deref(), pass.as_deref());
                self.set_loaded(op.results[0], lanes);
            }
            OpKind::Scatter | OpKind::ScatterMask => {
                let masked = op.kind == OpKind::ScatterMask;
                let end = op.operands.len() - if masked { 2 } else { 1 };
                let ty = self.element_type(op.operands[0])?;
                let values = self.lanes(op.operands[0])?;
                let places = self.gathered(op.operands[1], &op.operands[2..end], op.operands[end])?;
                let mask = if masked { Some(self.lanes(op.operands[end + 1])?) } else { None };
                self.store_lanes(ty, &places, &values, mask.as_deref());
            }
            _ => return self.refuse("an access of another kind"),
        }
        Ok(())
    }

    fn set_loaded(&mut self, value: ValueId, lanes: Vec<Operand>) {
        if let [lane] = lanes[..] {
            self.set_scalar(value, lane);
        } else {
            self.set_lanes(value, lanes);
        }
    }

    fn alloca(&mut self, space: Scratch, align: u64, bytes: u64) -> Place {
        let to = self.text.reg(Class::Word);
        let (space, constant) = match space {
            Scratch::Workgroup => {
                let offset = self.memory.take_shared(align, bytes);
                self.text.raw(&format!("mov.u32 {to}, shared"));
                (Space::Shared, offset as i64)
            }
            Scratch::Private => {
                self.text.raw(&format!("mov.u32 {to}, local{}", self.memory.local.len()));
                self.memory.local.push((align.max(16), bytes.max(1)));
                (Space::Local, 0)
            }
        };
        let mut place = Place { align: align.max(16), constant, ..Place::unknown(space, to.into()) };
        if self.lengths {
            place.length = Some(Operand::long(bytes));
        }
        if self.options.checked {
            // The offset is from the start of this allocation alone.
            place.base = self.plus(place.base, constant);
            place.constant = 0;
        }
        place
    }

    // ---- addresses

    /// An address some bytes on.
    fn plus(&mut self, address: Operand, bytes: i64) -> Operand {
        match (bytes, address.class()) {
            (0, _) => address,
            (_, Class::Long) => self.make(Class::Long, "add.s64", &[address, Operand::long(bytes as u64)]),
            _ => self.make(Class::Word, "add.s32", &[address, Operand::word(bytes as u32)]),
        }
    }

    /// The place `index · unit` bytes on, of which `multiple` is a divisor. Addresses wrap as the hardware's do; with checks the
    /// offset is compared before it is used.
    fn moved(&mut self, mut place: Place, index: Operand, unit: Operand, multiple: u64) -> Place {
        let known = match (index, unit.bits()) {
            (Operand::Bits(class, bits), Some(unit)) => {
                let index = if class == Class::Word { i64::from(bits as u32 as i32) } else { bits as i64 };
                index.checked_mul(unit as i64)
            }
            _ => None,
        };
        if let Some(sum) = known.and_then(|bytes| place.constant.checked_add(bytes)) {
            place.constant = sum;
            return place;
        }
        place.align = place.align.min(multiple);
        if self.options.checked {
            let so_far = place.offset.unwrap_or(Operand::long(0));
            place.offset = Some(self.further(so_far, index, unit));
        } else if Place::address_class(place.space) == Class::Long {
            place.base = self.further(place.base, index, unit);
        } else {
            let (index, unit) = (self.low(index), self.low(unit));
            place.base = match unit.bits() {
                Some(1) => self.make(Class::Word, "add.s32", &[index, place.base]),
                _ => self.make(Class::Word, "mad.lo.s32", &[index, unit, place.base]),
            };
        }
        place
    }

    /// `so_far + index · unit` in 64 bits.
    fn further(&mut self, so_far: Operand, index: Operand, unit: Operand) -> Operand {
        let narrow_unit = match unit {
            Operand::Bits(_, bits) => i32::try_from(bits as i64).is_ok(),
            Operand::Reg(reg) => reg.class == Class::Word,
        };
        if unit.bits() == Some(1) {
            let index = self.wide(index);
            if so_far.bits() == Some(0) {
                return index;
            }
            return self.make(Class::Long, "add.s64", &[so_far, index]);
        }
        if index.class() == Class::Word && narrow_unit {
            let unit = self.low(unit);
            return self.make(Class::Long, "mad.wide.s32", &[index, unit, so_far]);
        }
        let (index, unit) = (self.wide(index), self.wide(unit));
        self.make(Class::Long, "mad.lo.s64", &[index, unit, so_far])
    }

    pub(super) fn view_type(&self, view: ValueId) -> Result<ViewType> {
        match self.body.ty(view) {
            Type::View(ty) => Ok(ty.clone()),
            Type::Scalar(_) | Type::Vector(_) | Type::Buffer | Type::Async(_) => {
                self.refuse("an access to something that is no view")
            }
        }
    }

    /// Bytes of a step along an axis, and what divides them.
    fn unit(&mut self, stride: Dim, size: u64) -> Result<(Operand, u64)> {
        Ok(match stride {
            Dim::Static(stride) => {
                let bytes = stride.wrapping_mul(size);
                (Operand::long(bytes), power_of_two(bytes))
            }
            Dim::Value(value) => {
                let multiple = power_of_two(self.facts(value).multiple_of) * size;
                let stride = self.raw(value)?;
                let bytes = if size == 1 {
                    stride
                } else if stride.class() == Class::Word {
                    self.make(Class::Long, "mul.wide.s32", &[stride, Operand::word(size as u32)])
                } else {
                    self.make(Class::Long, "mul.lo.s64", &[stride, Operand::long(size)])
                };
                (bytes, power_of_two(multiple))
            }
        })
    }

    /// The element of a view at some indices.
    pub(super) fn element_place(&mut self, view: ValueId, indices: &[ValueId]) -> Result<Place> {
        let ty = self.view_type(view)?;
        let mut place = self.place(view)?;
        for (&index, &stride) in indices.iter().zip(&ty.strides) {
            let raw = self.raw(index)?;
            if raw.bits() == Some(0) {
                continue;
            }
            let (unit, multiple) = self.unit(stride, ty.element.bytes())?;
            let multiple = power_of_two(power_of_two(self.facts(index).multiple_of) * multiple);
            place = self.moved(place, raw, unit, multiple);
        }
        Ok(place)
    }

    /// Where the lanes of a scalar or vector lie.
    fn lane_places(&mut self, view: ValueId, indices: &[ValueId], value: ValueId) -> Result<Vec<Place>> {
        let body = self.body;
        let first = self.element_place(view, indices)?;
        let Type::Vector(vector) = body.ty(value) else {
            return Ok(vec![first]);
        };
        let ty = self.view_type(view)?;
        self.trailing_places(first, &ty, &vector.dims)
    }

    /// Where the elements of `dims`, along the last axes of a view, lie from `first` on, row-major.
    pub(super) fn trailing_places(&mut self, first: Place, ty: &ViewType, dims: &[Dim]) -> Result<Vec<Place>> {
        let strides = &ty.strides[ty.strides.len().saturating_sub(dims.len())..];
        let mut all = vec![first];
        for (&dim, &stride) in dims.iter().zip(strides) {
            let extent = dim.constant().unwrap_or(1);
            let (unit, multiple) = self.unit(stride, ty.element.bytes())?;
            let mut next = Vec::with_capacity(all.len() * extent as usize);
            for place in all {
                for at in 0..extent {
                    next.push(match at {
                        0 => place.clone(),
                        _ => self.moved(place.clone(), Operand::long(at), unit, power_of_two(multiple * at)),
                    });
                }
            }
            all = next;
        }
        Ok(all)
    }

    /// Where lanes lie that are so many elements beyond the indices along the last axis.
    pub(super) fn gathered(&mut self, view: ValueId, indices: &[ValueId], offsets: ValueId) -> Result<Vec<Place>> {
        let ty = self.view_type(view)?;
        let first = self.element_place(view, indices)?;
        let Some(&stride) = ty.strides.last() else { return Ok(vec![first]) };
        let (unit, multiple) = self.unit(stride, ty.element.bytes())?;
        let offsets = self.lanes(offsets)?;
        Ok(offsets.iter().map(|offset| self.moved(first.clone(), *offset, unit, multiple)).collect())
    }

    /// Where a fragment's element lies, `row` and `column` on from the indices along the last two axes.
    pub(super) fn tile_place(
        &mut self,
        view: ValueId,
        first: &Place,
        row: Operand,
        column: Operand,
        multiples: [u64; 2],
    ) -> Result<Place> {
        let ty = self.view_type(view)?;
        let mut place = first.clone();
        let rank = ty.strides.len();
        for (axis, at, multiple) in
            [(rank.wrapping_sub(2), row, multiples[0]), (rank.wrapping_sub(1), column, multiples[1])]
        {
            let Some(&stride) = ty.strides.get(axis) else { continue };
            if at.bits() == Some(0) {
                continue;
            }
            let (unit, of_unit) = self.unit(stride, ty.element.bytes())?;
            if unit.bits() == Some(0) {
                continue;
            }
            place = self.moved(place, at, unit, power_of_two(of_unit * multiple));
        }
        Ok(place)
    }

    // ---- accesses

    /// `[register+constant]`, and where the access may be made; `None` for everywhere. Reports what fails.
    pub(super) fn address(
        &mut self,
        place: &Place,
        bytes: u64,
        size: u64,
        mask: Option<Operand>,
    ) -> (String, Option<Operand>) {
        let mut fits = mask;
        let mut base = place.base;
        let mut constant = place.constant;
        if self.options.checked {
            let so_far = place.offset.unwrap_or(Operand::long(0));
            let offset = match so_far.bits() {
                Some(bits) => Operand::long((bits as i64).wrapping_add(constant) as u64),
                None => self.plus(so_far, constant),
            };
            constant = 0;
            let length = place.length.unwrap_or(Operand::long(0));
            let ok = self.within(offset, length, bytes);
            if ok != Operand::truth(true) {
                let mut bad = self.not(ok);
                if let Some(mask) = mask {
                    bad = self.and(bad, mask);
                }
                let site = self.site(SiteKind::Access);
                self.report(bad, site, offset, length);
                fits = Some(fits.map_or(ok, |mask| self.and(mask, ok)));
            }
            if place.align_at(0) < size {
                let low = self.low(offset);
                let rest = self.make(Class::Word, "and.b32", &[low, Operand::word(size as u32 - 1)]);
                let bad = self.truth_of(rest);
                let reported = mask.map_or(bad, |mask| self.and(bad, mask));
                let site = self.site(SiteKind::Access);
                self.report(reported, site, offset, Operand::long(0));
                let good = self.not(bad);
                fits = Some(fits.map_or(good, |fits| self.and(fits, good)));
            }
            let distance = if base.class() == Class::Word { self.low(offset) } else { offset };
            match distance.bits() {
                Some(bits) => constant = bits as i64,
                None => {
                    let width = if base.class() == Class::Word { 32 } else { 64 };
                    base = self.make(base.class(), &format!("add.s{width}"), &[base, distance]);
                }
            }
        }
        if i32::try_from(constant).is_err() {
            base = self.plus(base, constant);
            constant = 0;
        }
        if place.swizzled {
            // What is a multiple of 1024 changes none of these bits.
            let whole = constant & !1023;
            let at = self.plus(base, constant - whole);
            let eighth = self.make(Class::Word, "shr.u32", &[at, Operand::word(3)]);
            let bits = self.make(Class::Word, "and.b32", &[eighth, Operand::word(0x70)]);
            (base, constant) = (self.make(Class::Word, "xor.b32", &[at, bits]), whole);
        }
        let base = self.in_register(base);
        let written = if constant == 0 { format!("[{base}]") } else { format!("[{base}+{constant}]") };
        (written, fits.filter(|fits| *fits != Operand::truth(true)))
    }

    /// Whether `bytes` bytes from `offset` on lie inside `length`.
    fn within(&mut self, offset: Operand, length: Operand, bytes: u64) -> Operand {
        if let (Some(offset), Some(length)) = (offset.bits(), length.bits()) {
            return Operand::truth(offset.checked_add(bytes).is_some_and(|end| end <= length));
        }
        let last = match length.bits() {
            Some(length) => Operand::long(length.wrapping_sub(bytes)),
            None => self.make(Class::Long, "sub.s64", &[length, Operand::long(bytes)]),
        };
        let long_enough = match last.bits() {
            Some(last) => Operand::truth(last as i64 >= 0),
            None => self.make(Class::Pred, "setp.ge.s64", &[last, Operand::long(0)]),
        };
        let inside = self.make(Class::Pred, "setp.le.u64", &[offset, last]);
        self.and(long_enough, inside)
    }

    /// How many lanes from `at` on are one access, and its bytes.
    pub(super) fn chunk(&self, places: &[Place], at: usize, size: u64) -> usize {
        let first = &places[at];
        let side_by_side = |(count, place): (usize, &Place)| {
            place.base == first.base
                && place.offset == first.offset
                && place.constant == first.constant.wrapping_add((count as u64 * size) as i64)
        };
        let run = places[at..].iter().enumerate().take_while(|pair| side_by_side(*pair)).count();
        let align = first.align_at(0).min(16);
        let mut count = 1;
        while count * 2 <= run && (count as u64) * 2 * size <= align {
            count *= 2;
        }
        count
    }

    pub(super) fn guard(fits: Option<Operand>, this: &mut Self) -> String {
        fits.map_or(String::new(), |fits| format!("@{} ", this.in_register(fits)))
    }

    /// Loads lanes of type `ty`. Lanes masked off keep what `pass` has.
    pub(super) fn load_lanes(
        &mut self,
        ty: ScalarType,
        places: &[Place],
        mask: Option<&[Operand]>,
        pass: Option<&[Operand]>,
    ) -> Vec<Operand> {
        let size = ty.bytes();
        let mut lanes = Vec::with_capacity(places.len());
        while lanes.len() < places.len() {
            let at = lanes.len();
            let condition = mask.map(|mask| mask[at]);
            if condition.is_some_and(|condition| condition == Operand::truth(false)) {
                lanes.push(pass.map_or(Operand::Bits(class_of(ty), 0), |pass| pass[at]));
                continue;
            }
            let condition = condition.filter(|condition| condition.bits().is_none());
            let count = if mask.is_some() { 1 } else { self.chunk(places, at, size) };
            let (address, fits) = self.address(&places[at], size * count as u64, size, condition);
            let guard = Self::guard(fits, self);
            let space = places[at].space.suffix();
            let pieces = pieces(ty, count);
            let regs: Vec<Reg> = (0..pieces.count).map(|_| self.text.reg(pieces.class)).collect();
            if fits.is_some() {
                let kept = pass.map(|pass| pass[at]);
                for reg in &regs {
                    self.copy(*reg, kept.unwrap_or(Operand::Bits(reg.class, 0)));
                }
            }
            self.text.raw(&format!("{guard}ld{space}{}.{} {}, {address}", pieces.vector(), pieces.ty, listed(&regs)));
            let words: Vec<Operand> = regs.into_iter().map(Operand::from).collect();
            if pieces.count == count {
                lanes.extend(words);
            } else {
                lanes.extend(self.unpack(ty, &words, count));
            }
        }
        lanes
    }

    /// Stores lanes of type `ty`; those masked off touch nothing.
    pub(super) fn store_lanes(
        &mut self,
        ty: ScalarType,
        places: &[Place],
        values: &[Operand],
        mask: Option<&[Operand]>,
    ) {
        let size = ty.bytes();
        let mut at = 0;
        while at < places.len() {
            let condition = mask.map(|mask| mask[at]);
            if condition.is_some_and(|condition| condition == Operand::truth(false)) {
                at += 1;
                continue;
            }
            let condition = condition.filter(|condition| condition.bits().is_none());
            let count = if mask.is_some() { 1 } else { self.chunk(places, at, size) };
            let pieces = pieces(ty, count);
            let mut parts = values[at..at + count].to_vec();
            if pieces.count != count {
                parts = self.pack(ty, &parts);
            }
            let (address, fits) = self.address(&places[at], size * count as u64, size, condition);
            let guard = Self::guard(fits, self);
            let regs: Vec<Reg> = parts.iter().map(|part| self.in_register(*part)).collect();
            let space = places[at].space.suffix();
            self.text.raw(&format!("{guard}st{space}{}.{} {address}, {}", pieces.vector(), pieces.ty, listed(&regs)));
            at += count;
        }
    }

    // ---- places that control flow decides

    /// The parts of a place as one in `space`.
    pub(super) fn place_parts(&mut self, place: &Place, space: Space) -> Parts {
        let (mut base, mut offset) = (place.base, Operand::long(0));
        if self.options.checked {
            let so_far = place.offset.unwrap_or(Operand::long(0));
            offset = match so_far.bits() {
                Some(bits) => Operand::long((bits as i64).wrapping_add(place.constant) as u64),
                None => self.plus(so_far, place.constant),
            };
        } else {
            base = self.plus(base, place.constant);
        }
        if place.space != space {
            if base.class() == Class::Word {
                base = self.make(Class::Long, "cvt.u64.u32", &[base]);
            }
            base = self.make(Class::Long, &format!("cvta{}.u64", place.space.suffix()), &[base]);
        }
        Parts { base, offset, length: place.length.unwrap_or(Operand::long(0)) }
    }

    /// One place or the other.
    pub(super) fn choose_place(&mut self, condition: Operand, a: &Place, b: &Place, space: Space) -> Place {
        let align = a.align_at(0).min(b.align_at(0));
        let (a, b) = (self.place_parts(a, space), self.place_parts(b, space));
        let base = self.choose(condition, a.base, b.base);
        let mut place = Place { align, ..Place::unknown(space, base) };
        if self.options.checked {
            place.offset = Some(self.choose(condition, a.offset, b.offset));
        }
        if self.lengths {
            place.length = Some(self.choose(condition, a.length, b.length));
        }
        place
    }
}

/// How an access of several lanes is written.
struct Pieces {
    class: Class,
    ty: &'static str,
    count: usize,
}

impl Pieces {
    const fn vector(&self) -> &'static str {
        match self.count {
            1 => "",
            2 => ".v2",
            _ => ".v4",
        }
    }
}

/// Of `count` lanes of type `ty`, at most 16 bytes: a register a lane while there are at most four, else words.
fn pieces(ty: ScalarType, count: usize) -> Pieces {
    if count > 4 {
        let bytes = ty.bytes() as usize * count;
        return Pieces { class: Class::Word, ty: "b32", count: bytes / 4 };
    }
    let class = class_of(ty);
    let ty = match (ty.bits(), class) {
        (64, _) => "b64",
        (16, Class::Half) => "b16",
        (16, _) => "u16",
        (32, _) => "b32",
        _ => "u8",
    };
    Pieces { class, ty, count }
}

/// One register, or several in braces.
fn listed(regs: &[Reg]) -> String {
    match regs {
        [reg] => reg.to_string(),
        _ => format!("{{{}}}", regs.iter().map(Reg::to_string).collect::<Vec<_>>().join(", ")),
    }
}
