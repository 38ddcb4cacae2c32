//! Packed lanes: dot products, bit fields, bit streams, tables, and reductions along axes.
//!
//! Most are compositions of element-wise ops and [`OpKind::Lanes`] over whole vectors, so that a vector of K lanes costs a
//! few ops and not a few times K. Bits are numbered from 0, the lowest; lane 0 holds the lowest bits of a vector.

use crate::diag::{Built, refuse};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Binary, Convert, FloatPredicate, OpKind, Ternary};
use crate::reader::{Attribute, Reader};
use crate::types::{Dim, ScalarType, Type, VectorType};

use super::element::with_element;
use super::names::Binding;
use super::vector::{COMBINES, combine, extents, flat, positions};
use super::{Builder, MAX_OPS, one};

/// A vector of rank 1.
pub(super) fn row(element: ScalarType, lanes: usize) -> Type {
    Type::Vector(VectorType { element, dims: vec![Dim::Static(lanes as u64)] })
}

/// The integer of so many bits.
pub(super) fn integer(bits: u32) -> ScalarType {
    match bits {
        1 => ScalarType::I1,
        8 => ScalarType::I8,
        16 => ScalarType::I16,
        32 => ScalarType::I32,
        _ => ScalarType::I64,
    }
}

/// Some bits of one lane: which lane, from which bit, how many, and where in the result they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) lane: u32,
    pub(super) from: u32,
    pub(super) width: u32,
    pub(super) to: u32,
}

impl Bits {
    /// The `width` bits from bit `at` on of a stream of lanes of `size` bits, each read from its bit 0: the parts that lie
    /// in different lanes.
    pub(super) fn of_stream(at: usize, width: usize, size: usize) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut done = 0;
        while done < width {
            let (lane, from) = ((at + done) / size, (at + done) % size);
            let part = (size - from).min(width - done);
            parts.push(Self { lane: lane as u32, from: from as u32, width: part as u32, to: done as u32 });
            done += part;
        }
        parts
    }
}

impl<'m> Builder<'m> {
    /// Counts ops that one op of the text becomes, over vectors of so many lanes.
    pub(super) fn spend(&mut self, ops: usize, lanes: usize) -> Built<()> {
        let cost = ops.saturating_mul(1 + lanes / 64);
        self.built = self.built.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        if self.built > MAX_OPS {
            return refuse(self.span, format!("the kernel has more than {MAX_OPS} ops once its calls are inlined"));
        }
        Ok(())
    }

    // Vectors of rank 1, as pieces of compositions.

    /// Lanes of `values` laid end to end, by number.
    pub(super) fn pick(&mut self, values: &[ValueId], lanes: Vec<u32>, element: ScalarType) -> ValueId {
        let ty = row(element, lanes.len());
        let same = |at: (usize, &u32)| at.0 == *at.1 as usize;
        if values.len() == 1 && *self.ty(values[0]) == ty && lanes.iter().enumerate().all(same) {
            return values[0];
        }
        self.emit(OpKind::Lanes(lanes.into_boxed_slice()), values, ty)
    }

    /// The same lanes as a vector of rank 1.
    pub(super) fn flattened(&mut self, value: ValueId) -> ValueId {
        let (Some(lanes), Some(element)) = (self.ty(value).lanes(), self.ty(value).element()) else {
            return value;
        };
        self.pick(&[value], (0..lanes as u32).collect(), element)
    }

    /// The lanes of a vector of rank 1 in the shape of `ty`.
    pub(super) fn shaped(&mut self, value: ValueId, ty: Type) -> ValueId {
        if *self.ty(value) == ty {
            return value;
        }
        let lanes = self.ty(value).lanes().unwrap_or(0) as u32;
        self.emit(OpKind::Lanes((0..lanes).collect()), &[value], ty)
    }

    /// These numbers, one a lane.
    pub(super) fn numbers(&mut self, element: ScalarType, numbers: &[u64]) -> ValueId {
        let ty = row(element, numbers.len());
        if let Some(first) = numbers.first()
            && numbers.iter().all(|number| number == first)
        {
            return self.constant(ty, *first);
        }
        let lanes: Vec<ValueId> = numbers.iter().map(|number| self.constant(Type::Scalar(element), *number)).collect();
        self.emit(OpKind::FromElements, &lanes, ty)
    }

    pub(super) fn binary(&mut self, kind: Binary, a: ValueId, b: ValueId) -> ValueId {
        let ty = self.ty(a).clone();
        self.emit(OpKind::Binary(kind), &[a, b], ty)
    }

    /// `value` with another element type; nothing if it has that.
    pub(super) fn converted(&mut self, kind: Convert, value: ValueId, element: ScalarType) -> ValueId {
        let ty = with_element(self.ty(value), element);
        if *self.ty(value) == ty {
            return value;
        }
        self.emit(OpKind::Convert(kind), &[value], ty)
    }

    /// An integer vector with other integer lanes: cut, or filled with zeros or the sign.
    pub(super) fn resized(&mut self, value: ValueId, element: ScalarType, sign: bool) -> ValueId {
        let bits = self.ty(value).element().map_or(64, ScalarType::bits);
        let kind = if element.bits() < bits {
            Convert::TruncI
        } else if element.bits() == bits {
            Convert::Bitcast
        } else if sign {
            Convert::ExtSI
        } else {
            Convert::ExtUI
        };
        self.converted(kind, value, element)
    }

    /// For each result lane, the bits of `source` (integer lanes, rank 1) that it is made of, as integers of type `wide`,
    /// which is at least as wide as a lane of `source` and as the result. `lists` has one list a lane.
    pub(super) fn gathered_bits(&mut self, source: ValueId, lists: &[Vec<Bits>], wide: ScalarType) -> Built<ValueId> {
        let element = self.ty(source).element().unwrap_or(ScalarType::I8);
        let lanes = lists.len();
        let rounds = lists.iter().map(Vec::len).max().unwrap_or(0);
        self.spend(6 * rounds, lanes)?;
        let count = self.ty(source).lanes().unwrap_or(0) as u32;
        let zero = self.constant(row(element, 1), 0);
        let mut sum: Option<ValueId> = None;
        for round in 0..rounds {
            // Where there is nothing, the zero behind the source.
            let parts: Vec<Bits> = lists
                .iter()
                .map(|list| {
                    list.get(round).copied().unwrap_or(Bits { lane: count, from: 0, width: wide.bits(), to: 0 })
                })
                .collect();
            let picked = self.pick(&[source, zero], parts.iter().map(|part| part.lane).collect(), element);
            let mut part = self.resized(picked, wide, false);
            let column = |of: fn(&Bits) -> u32| -> Vec<u64> { parts.iter().map(|part| u64::from(of(part))).collect() };
            let from = self.numbers(wide, &column(|part| part.from));
            part = self.binary(Binary::ShrUI, part, from);
            let masks: Vec<u64> = parts.iter().map(|part| u64::MAX >> (64 - part.width.clamp(1, 64))).collect();
            let whole = parts.iter().all(|part| part.from + part.width >= element.bits());
            if !whole {
                let masks: Vec<u64> = masks.iter().map(|mask| mask & (u64::MAX >> (64 - wide.bits()))).collect();
                let masks = self.numbers(wide, &masks);
                part = self.binary(Binary::AndI, part, masks);
            }
            let to = self.numbers(wide, &column(|part| part.to));
            part = self.binary(Binary::ShlI, part, to);
            sum = Some(match sum {
                Some(sum) => self.binary(Binary::OrI, sum, part),
                None => part,
            });
        }
        Ok(match sum {
            Some(sum) => sum,
            None => self.constant(row(wide, lanes), 0),
        })
    }

    // The ops.

    /// `vector.*` of this file, if `op` is one.
    pub(super) fn packed_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Option<Vec<Binding>>> {
        match op {
            "dot2f" => self.dot2f(reader),
            "dot4i" => self.dot4i(reader),
            "dot8i4" => self.dot8i4(reader),
            "dot4f8" => self.dot4f8(reader),
            "bitpack" => self.bit_stream(reader, None),
            "bitunpacku" => self.bit_stream(reader, Some(false)),
            "bitunpacks" => self.bit_stream(reader, Some(true)),
            "table.lookup" => self.table_lookup(reader),
            "table.quantize" => self.table_quantize(reader),
            "reduce.axes" => self.reduce_axes(reader),
            _ => return Ok(None),
        }
        .map(Some)
    }

    /// Whether the extents of these values are known; only while config is unknown they are not.
    fn known(&self, values: &[ValueId]) -> bool {
        values.iter().all(|value| self.ty(*value).lanes().is_some())
    }

    fn unknown_value(&mut self, ty: Type) -> Built<Vec<Binding>> {
        Ok(one(self.new_value(ty)))
    }

    /// `%a, %b, %acc : A, B, C`. One type stands for all three, two for the factors and the sum.
    fn dot_operands(&mut self, reader: &mut Reader<'m>) -> Built<([ValueId; 3], [VectorType; 3], Span)> {
        let span = reader.here();
        let operands = self.same_operands::<3>(reader)?;
        reader.expect(Kind::Colon)?;
        let mut written = vec![(self.plain_type(reader)?, reader.here())];
        while reader.accept(Kind::Comma) {
            let at = reader.here();
            written.push((self.plain_type(reader)?, at));
        }
        let order: &[usize] = match written.len() {
            1 => &[0, 0, 0],
            2 => &[0, 0, 1],
            3 => &[0, 1, 2],
            count => return refuse(span, format!("`{}`: {count} types for 3 operands", reader.name())),
        };
        for (operand, at) in operands.iter().zip(order) {
            self.check_type(reader, *operand, &written[*at].0, written[*at].1)?;
        }
        if reader.accept(Kind::Arrow) {
            self.typed(reader, operands[2])?;
        }
        reader.end()?;
        let mut types = Vec::with_capacity(3);
        for operand in operands {
            match self.ty(operand) {
                Type::Vector(vector) => types.push(vector.clone()),
                other => return refuse(span, format!("`{}` takes vectors, found {other}", reader.name())),
            }
        }
        let [a, b, acc] = [0, 1, 2].map(|at| types[at].clone());
        Ok((operands, [a, b, acc], span))
    }

    /// Whether `packed` has `parts` lanes for each of `sum`, on the last axis.
    fn packs(packed: &VectorType, sum: &VectorType, parts: u64) -> bool {
        let (Some((last, lead)), Some((sum_last, sum_lead))) = (packed.dims.split_last(), sum.dims.split_last()) else {
            return false;
        };
        let fits = match (last.constant(), sum_last.constant()) {
            (Some(last), Some(sum)) => sum.checked_mul(parts) == Some(last),
            _ => true,
        };
        fits && lead == sum_lead
    }

    fn dot2f(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        self.element_flags(reader)?;
        let (operands, [a, b, acc], span) = self.dot_operands(reader)?;
        let narrow = matches!(a.element, ScalarType::F16 | ScalarType::BF16);
        if !narrow || a != b || acc.element != ScalarType::F32 || !Self::packs(&a, &acc, 2) {
            let message = format!(
                "`vector.dot2f` takes two equal vectors of f16 or bf16 and one of half as many f32, found {}, {}, {}",
                Type::Vector(a),
                Type::Vector(b),
                Type::Vector(acc)
            );
            return refuse(span, message);
        }
        Ok(one(self.emit(OpKind::Dot2F, &operands, Type::Vector(acc))))
    }

    fn signs(reader: &mut Reader<'m>, width: u32) -> Built<(bool, bool)> {
        let words = if width == 8 { ["s8s8", "u8s8", "s8u8", "u8u8"] } else { ["s4s4", "u4s4", "s4u4", "u4u4"] };
        let legal = format!("one of {}", words.join(", "));
        reader.keyword(&legal, |word| {
            let at = words.iter().position(|name| *name == word)?;
            Some((at % 2 == 0, at < 2))
        })
    }

    fn dot4i(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (a_signed, b_signed) = Self::signs(reader, 8)?;
        let (operands, [a, b, acc], span) = self.dot_operands(reader)?;
        if a.element != ScalarType::I8 || a != b || acc.element != ScalarType::I32 || !Self::packs(&a, &acc, 4) {
            let message = format!(
                "`vector.dot4i` takes two equal vectors of i8 and one of a quarter as many i32, found {}, {}, {}",
                Type::Vector(a),
                Type::Vector(b),
                Type::Vector(acc)
            );
            return refuse(span, message);
        }
        Ok(one(self.emit(OpKind::Dot4I { a_signed, b_signed }, &operands, Type::Vector(acc))))
    }

    /// Eight nibbles a lane, the lowest first.
    fn dot8i4(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (a_signed, b_signed) = Self::signs(reader, 4)?;
        let ([a, b, acc], [left, right, sum], span) = self.dot_operands(reader)?;
        if left.element != ScalarType::I32 || left != right || left != sum {
            let message = format!(
                "`vector.dot8i4` takes three equal vectors of i32, found {}, {}, {}",
                Type::Vector(left),
                Type::Vector(right),
                Type::Vector(sum)
            );
            return refuse(span, message);
        }
        let ty = Type::Vector(left);
        let Some(lanes) = ty.lanes() else {
            return self.unknown_value(ty);
        };
        self.spend(40, lanes as usize)?;
        let down = self.constant(ty.clone(), 28);
        let mut sum = acc;
        for nibble in 0..8u64 {
            let up = self.constant(ty.clone(), 28 - 4 * nibble);
            let [x, y] = [(a, a_signed), (b, b_signed)].map(|(value, signed)| {
                let high = self.binary(Binary::ShlI, value, up);
                self.binary(if signed { Binary::ShrSI } else { Binary::ShrUI }, high, down)
            });
            sum = self.emit(OpKind::Ternary(Ternary::FmaI), &[x, y, sum], ty.clone());
        }
        Ok(one(sum))
    }

    /// Four fp8 numbers a lane of i32, the lowest first; a chain of fused multiply-adds in f32.
    fn dot4f8(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let legal = "one of fp8fp8, fp8bf8, bf8fp8, bf8bf8";
        let formats = reader.keyword(legal, |word| {
            let format = |word: &str| match word {
                "fp8" => Some(ScalarType::F8E4M3),
                "bf8" => Some(ScalarType::F8E5M2),
                _ => None,
            };
            let (a, b) = word.split_at_checked(3)?;
            Some([format(a)?, format(b)?])
        })?;
        let ([a, b, acc], [left, right, sum], span) = self.dot_operands(reader)?;
        let shapes = left == right && left.dims == sum.dims;
        if left.element != ScalarType::I32 || sum.element != ScalarType::F32 || !shapes {
            let message = format!(
                "`vector.dot4f8` takes two equal vectors of i32 and one of as many f32, found {}, {}, {}",
                Type::Vector(left),
                Type::Vector(right),
                Type::Vector(sum)
            );
            return refuse(span, message);
        }
        let ty = Type::Vector(sum);
        let Some(lanes) = ty.lanes() else {
            return self.unknown_value(ty);
        };
        let lanes = lanes as usize;
        self.spend(24, 4 * lanes)?;
        let wide = [(a, formats[0]), (b, formats[1])].map(|(value, format)| {
            let words = self.flattened(value);
            let bytes = self.emit(OpKind::Convert(Convert::Bitcast), &[words], row(format, 4 * lanes));
            self.converted(Convert::ExtF, bytes, ScalarType::F32)
        });
        let mut sum = self.flattened(acc);
        for part in 0..4 {
            let [x, y] = wide.map(|value| {
                self.pick(&[value], (0..lanes as u32).map(|lane| 4 * lane + part).collect(), ScalarType::F32)
            });
            sum = self.emit(OpKind::Ternary(Ternary::FmaF), &[x, y, sum], row(ScalarType::F32, lanes));
        }
        Ok(one(self.shaped(sum, ty)))
    }

    /// `{offset = o, width = w}` inside `bits` bits.
    fn field(&mut self, reader: &mut Reader<'m>) -> Built<(i64, i64, Span)> {
        let span = reader.here();
        let (mut offset, mut width) = (None, None);
        for entry in reader.dictionary()? {
            match (entry.key, &entry.value) {
                ("offset", Attribute::Int(bits)) => offset = Some(*bits),
                ("width", Attribute::Int(bits)) => width = Some(*bits),
                _ => return refuse(entry.span, "legal here: `offset` and `width`, both integers"),
            }
        }
        match (offset, width) {
            (Some(offset), Some(width)) => Ok((offset, width, span)),
            _ => refuse(span, "needs `{offset = .., width = ..}`"),
        }
    }

    fn check_field(&self, offset: i64, width: i64, bits: u32, span: Span) -> Built<()> {
        let bits = i64::from(bits);
        if offset < 0 || width < 1 || offset.checked_add(width).is_none_or(|end| end > bits) {
            return refuse(span, format!("bits {offset} to {offset} + {width} are not inside {bits} bits"));
        }
        Ok(())
    }

    fn integer_lanes(&self, reader: &Reader<'m>, ty: &Type, span: Span) -> Built<ScalarType> {
        match ty.element() {
            Some(element) if element.is_integer() && element != ScalarType::I1 && !matches!(ty, Type::View(_)) => {
                Ok(element)
            }
            _ => refuse(span, format!("`{}` takes i8, i16, i32 or i64, found {ty}", reader.name())),
        }
    }

    /// `bitfield.extract* %x {offset = o, width = w} : T -> U`: shifted up, then down, then of the result's width.
    pub(super) fn bitfield_extract(
        &mut self,
        reader: &mut Reader<'m>,
        vector: bool,
        sign: bool,
    ) -> Built<Vec<Binding>> {
        let value = self.operand(reader)?;
        let (offset, width, span) = self.field(reader)?;
        reader.expect(Kind::Colon)?;
        let type_span = reader.here();
        self.typed(reader, value)?;
        let ty = self.ty(value).clone();
        let element = self.integer_lanes(reader, &ty, type_span)?;
        let mut result = ty.clone();
        let mut result_span = type_span;
        if reader.accept(Kind::Arrow) {
            result_span = reader.here();
            result = self.plain_type(reader)?;
        }
        reader.end()?;
        let to = self.integer_lanes(reader, &result, result_span)?;
        if with_element(&ty, to) != result || matches!(ty, Type::Vector(_)) != vector {
            return refuse(result_span, format!("`{}` keeps the shape, found {ty} to {result}", reader.name()));
        }
        self.check_field(offset, width, element.bits(), span)?;
        if width > i64::from(to.bits()) {
            return refuse(result_span, format!("`{}`: {width} bits do not fit {to}", reader.name()));
        }
        let bits = i64::from(element.bits());
        let up = self.constant(ty.clone(), (bits - offset - width) as u64);
        let down = self.constant(ty, (bits - width) as u64);
        let high = self.binary(Binary::ShlI, value, up);
        let field = self.binary(if sign { Binary::ShrSI } else { Binary::ShrUI }, high, down);
        Ok(one(self.resized(field, to, sign)))
    }

    /// `bitfield.insert %f into %b {offset = o, width = w} : T, U`: `%b` with these bits replaced by the low ones of `%f`.
    pub(super) fn bitfield_insert(&mut self, reader: &mut Reader<'m>, vector: bool) -> Built<Vec<Binding>> {
        let field = self.operand(reader)?;
        reader.expect_word("into")?;
        let base = self.operand(reader)?;
        let (offset, width, span) = self.field(reader)?;
        reader.expect(Kind::Colon)?;
        let type_span = reader.here();
        self.typed(reader, field)?;
        if reader.accept(Kind::Comma) {
            self.typed(reader, base)?;
        } else {
            let ty = self.ty(field).clone();
            self.check_type(reader, base, &ty, type_span)?;
        }
        if reader.accept(Kind::Arrow) {
            self.typed(reader, base)?;
        }
        reader.end()?;
        let (from, ty) = (self.ty(field).clone(), self.ty(base).clone());
        let element = self.integer_lanes(reader, &ty, type_span)?;
        let narrow = self.integer_lanes(reader, &from, type_span)?;
        if with_element(&from, element) != ty || matches!(ty, Type::Vector(_)) != vector {
            return refuse(
                type_span,
                format!("`{}` takes two values of one shape, found {from} and {ty}", reader.name()),
            );
        }
        self.check_field(offset, width, element.bits(), span)?;
        if width > i64::from(narrow.bits()) {
            return refuse(type_span, format!("`{}`: {narrow} has no {width} bits", reader.name()));
        }
        let ones = u64::MAX >> (64 - element.bits());
        let mask = u64::MAX >> (64 - width);
        let field = self.resized(field, element, false);
        let low = self.constant(ty.clone(), mask);
        let up = self.constant(ty.clone(), offset as u64);
        let keep = self.constant(ty, !(mask << offset) & ones);
        let field = self.binary(Binary::AndI, field, low);
        let field = self.binary(Binary::ShlI, field, up);
        let rest = self.binary(Binary::AndI, base, keep);
        Ok(one(self.binary(Binary::OrI, rest, field)))
    }

    /// `bitpack<w>`, or, with what fills the lanes, `bitunpack*<w>`: `%p : vector -> vector`. Field k of the stream lies at
    /// bit k·w of the packed side.
    fn bit_stream(&mut self, reader: &mut Reader<'m>, unpack: Option<bool>) -> Built<Vec<Binding>> {
        reader.expect(Kind::Less)?;
        let (width, width_span) = reader.int()?;
        reader.expect(Kind::Greater)?;
        let value = self.operand(reader)?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        self.typed(reader, value)?;
        reader.expect(Kind::Arrow)?;
        let result_span = reader.here();
        let result = self.plain_type(reader)?;
        reader.end()?;
        let ty = self.ty(value).clone();
        let (from, to) = (self.integer_lanes(reader, &ty, span)?, self.integer_lanes(reader, &result, result_span)?);
        if !matches!((&ty, &result), (Type::Vector(_), Type::Vector(_))) {
            return refuse(span, format!("`{}` goes from a vector to a vector, found {ty} to {result}", reader.name()));
        }
        let (fields, packed) = if unpack.is_some() { (&result, &ty) } else { (&ty, &result) };
        let most = fields.element().map_or(0, ScalarType::bits);
        let Some(width) = usize::try_from(width).ok().filter(|width| (1..=most as usize).contains(width)) else {
            return refuse(width_span, format!("`{}`: a field has 1 to {most} bits, found {width}", reader.name()));
        };
        let (Some(field_lanes), Some(packed_lanes)) = (fields.lanes(), packed.lanes()) else {
            return self.unknown_value(result);
        };
        let size = packed.element().map_or(8, ScalarType::bits) as usize;
        if field_lanes as usize * width != packed_lanes as usize * size {
            let message = format!("{field_lanes} fields of {width} bits are not the bits of {packed}");
            return refuse(result_span, format!("`{}`: {message}", reader.name()));
        }
        let wide = if from.bits() > to.bits() { from } else { to };
        let lanes = result.lanes().unwrap_or(0) as usize;
        let source = self.flattened(value);
        let made = match unpack {
            Some(sign) => {
                let lists: Vec<_> = (0..lanes).map(|lane| Bits::of_stream(lane * width, width, size)).collect();
                let field = self.gathered_bits(source, &lists, wide)?;
                if sign {
                    let top = self.constant(row(wide, lanes), u64::from(wide.bits()) - width as u64);
                    let high = self.binary(Binary::ShlI, field, top);
                    self.binary(Binary::ShrSI, high, top)
                } else {
                    field
                }
            }
            None => {
                let lists: Vec<_> = (0..lanes).map(|lane| Bits::of_stream(lane * size, size, width)).collect();
                self.gathered_bits(source, &lists, wide)?
            }
        };
        let made = self.resized(made, to, unpack == Some(true));
        Ok(one(self.shaped(made, result)))
    }

    /// `%t[%idx] : table, indices -> vector`: by the bits of the index, halving the table. An index out of range finds some
    /// entry, or zero.
    fn table_lookup(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let table_span = reader.here();
        let table = self.operand(reader)?;
        reader.expect(Kind::BracketOpen)?;
        let index_span = reader.here();
        let index = self.operand(reader)?;
        reader.expect(Kind::BracketClose)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, table)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, index)?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        let result = self.plain_type(reader)?;
        reader.end()?;
        let entries = match self.ty(table) {
            Type::Vector(vector) if vector.dims.len() == 1 => vector.clone(),
            other => return refuse(table_span, format!("`vector.table.lookup`: a table has rank 1, found {other}")),
        };
        let indices = match self.ty(index) {
            Type::Vector(vector) if !vector.element.is_float() && vector.element != ScalarType::I1 => vector.clone(),
            other => return refuse(index_span, format!("`vector.table.lookup`: indices are integers, found {other}")),
        };
        let ty = Type::Vector(VectorType { element: entries.element, dims: indices.dims.clone() });
        if result != ty {
            return refuse(span, format!("`vector.table.lookup`: the result is {ty}, found {result}"));
        }
        let (Some(count), Some(lanes)) = (entries.lanes(), indices.lanes()) else {
            return self.unknown_value(ty);
        };
        let levels = count.max(1).next_power_of_two().trailing_zeros();
        if levels > indices.element.bits() {
            return refuse(index_span, format!("indices of {} do not reach {count} entries", indices.element));
        }
        self.spend(3 * count as usize, lanes as usize)?;
        let mut level: Vec<ValueId> = Vec::with_capacity(count as usize);
        for entry in 0..count {
            let at = self.index(entry as i64);
            let entry = self.emit(OpKind::Extract, &[table, at], Type::Scalar(entries.element));
            level.push(self.emit(OpKind::Splat, &[entry], ty.clone()));
        }
        Ok(one(self.entry_of(level, index, &ty)))
    }

    /// The lanes of `entries`, vectors of type `ty`, that the integer lanes of `index` name.
    pub(super) fn entry_of(&mut self, entries: Vec<ValueId>, index: ValueId, ty: &Type) -> ValueId {
        let indices = self.ty(index).clone();
        let mask = with_element(ty, ScalarType::I1);
        let zero = self.constant(ty.clone(), 0);
        let mut level = entries;
        for bit in 0.. {
            if level.len() <= 1 {
                break;
            }
            let distance = self.constant(indices.clone(), bit);
            let shifted = self.binary(Binary::ShrUI, index, distance);
            let odd = self.emit(OpKind::Convert(Convert::TruncI), &[shifted], mask.clone());
            level = level
                .chunks(2)
                .map(|pair| {
                    let high = pair.get(1).copied().unwrap_or(zero);
                    self.emit(OpKind::Select, &[odd, high, pair[0]], ty.clone())
                })
                .collect();
        }
        level.first().copied().unwrap_or(zero)
    }

    /// `%x, %thr {nan = zero|max, tie = lower|upper} : vector, thresholds -> bins`: how many thresholds lie below (with
    /// `upper`: not above) the value. Absent, the first keyword of each.
    fn table_quantize(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let [value, thresholds] = self.same_operands::<2>(reader)?;
        let (mut nan_max, mut upper) = (false, false);
        for entry in reader.dictionary()? {
            match (entry.key, &entry.value) {
                ("nan", Attribute::Word(word @ ("zero" | "max"))) => nan_max = *word == "max",
                ("tie", Attribute::Word(word @ ("lower" | "upper"))) => upper = *word == "upper",
                _ => return refuse(entry.span, "legal here: `nan = zero|max` and `tie = lower|upper`"),
            }
        }
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, thresholds)?;
        reader.expect(Kind::Arrow)?;
        let result_span = reader.here();
        let result = self.plain_type(reader)?;
        reader.end()?;
        let (ty, table) = (self.ty(value).clone(), self.ty(thresholds).clone());
        let element = match (&ty, &table) {
            (Type::Vector(values), Type::Vector(table))
                if values.element == table.element
                    && table.dims.len() == 1
                    && values.element.is_float()
                    && values.element.bits() >= 16 =>
            {
                values.element
            }
            _ => {
                let message = "a float vector and thresholds of rank 1 of the same element";
                return refuse(span, format!("`vector.table.quantize` takes {message}, found {ty}, {table}"));
            }
        };
        let to = self.integer_lanes(reader, &result, result_span)?;
        if with_element(&ty, to) != result {
            return refuse(
                result_span,
                format!("`vector.table.quantize`: the result has the shape of {ty}, found {result}"),
            );
        }
        let (Some(count), Some(lanes)) = (table.lanes(), ty.lanes()) else {
            return self.unknown_value(result);
        };
        if to.bits() < 64 && count >> to.bits() != 0 {
            return refuse(result_span, format!("{} bins do not fit {to}", count + 1));
        }
        self.spend(5 * count as usize, lanes as usize)?;
        let predicate = match (upper, nan_max) {
            (false, false) => FloatPredicate::Ogt,
            (false, true) => FloatPredicate::Ugt,
            (true, false) => FloatPredicate::Oge,
            (true, true) => FloatPredicate::Uge,
        };
        let mask = with_element(&ty, ScalarType::I1);
        let mut sum = self.constant(result.clone(), 0);
        for at in 0..count {
            let at = self.index(at as i64);
            let threshold = self.emit(OpKind::Extract, &[thresholds, at], Type::Scalar(element));
            let threshold = self.emit(OpKind::Splat, &[threshold], ty.clone());
            let above = self.emit(OpKind::CompareF(predicate), &[value, threshold], mask.clone());
            let step = self.converted(Convert::ExtUI, above, to);
            sum = self.binary(Binary::AddI, sum, step);
        }
        Ok(one(sum))
    }

    /// `<kind[, flags]> %v, %init axes [0, ..] : vector, T`: `%init` first, then along the axes in row-major order.
    fn reduce_axes(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let kind = self.keyword_and_flags(reader, COMBINES, combine)?;
        let span = reader.here();
        let (value, vector) = self.vector_operand(reader)?;
        reader.expect(Kind::Comma)?;
        let init = self.operand(reader)?;
        reader.expect_word("axes")?;
        let axes_span = reader.here();
        reader.expect(Kind::BracketOpen)?;
        let mut reduced = vec![false; vector.dims.len()];
        loop {
            let (axis, span) = reader.int()?;
            match usize::try_from(axis).ok().and_then(|axis| reduced.get_mut(axis)) {
                Some(reduced) if !*reduced => *reduced = true,
                _ => {
                    let rank = vector.dims.len();
                    return refuse(span, format!("`{}`: axes of a vector of rank {rank}, each once", reader.name()));
                }
            }
            if !reader.accept(Kind::Comma) {
                break;
            }
        }
        reader.expect(Kind::BracketClose)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, init)?;
        if reader.accept(Kind::Arrow) {
            self.typed(reader, init)?;
        }
        reader.end()?;
        self.check_combine(reader, kind, vector.element, span)?;
        let kept: Vec<Dim> =
            vector.dims.iter().zip(&reduced).filter(|(_, reduced)| !**reduced).map(|(dim, _)| *dim).collect();
        let ty = if kept.is_empty() {
            Type::Scalar(vector.element)
        } else {
            Type::Vector(VectorType { element: vector.element, dims: kept })
        };
        if *self.ty(init) != ty {
            return refuse(axes_span, format!("`{}`: these axes leave {ty}, found {}", reader.name(), self.ty(init)));
        }
        if !self.known(&[value]) {
            return self.unknown_value(ty);
        }
        if kept_is_scalar(&ty) {
            return Ok(one(self.emit(OpKind::Reduce(kind), &[value, init], ty)));
        }
        let Some(shape) = extents(&vector) else {
            return self.unknown_value(ty);
        };
        let part = |wanted: bool| -> Vec<usize> {
            shape.iter().zip(&reduced).map(|(extent, reduced)| if *reduced == wanted { *extent } else { 1 }).collect()
        };
        let (along, across) = (part(true), part(false));
        self.spend(2 * along.iter().product::<usize>(), across.iter().product())?;
        let mut rows = Vec::new();
        positions(&along, |origin| {
            let mut lanes = Vec::new();
            positions(&across, |at| {
                let from: Vec<usize> = at.iter().zip(origin).map(|(at, origin)| at + origin).collect();
                lanes.push(flat(&shape, &from) as u32);
            });
            rows.push(lanes);
        });
        let mut sum = init;
        for lanes in rows {
            let part = self.emit(OpKind::Lanes(lanes.into_boxed_slice()), &[value], ty.clone());
            sum = self.binary(kind.binary(), sum, part);
        }
        Ok(one(sum))
    }
}

fn kept_is_scalar(ty: &Type) -> bool {
    matches!(ty, Type::Scalar(_))
}
