//! Lanes that lie anywhere in memory, and what `buffer.*` says of storages as such.
//!
//! `load.expand` and `store.compress` are gathers whose offsets count the active lanes before each.

use crate::diag::{Built, refuse};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Binary, Convert, OpKind};
use crate::reader::Reader;
use crate::types::{ScalarType, Type};

use super::element::with_element;
use super::names::Binding;
use super::{Builder, one};

/// What follows the view and its origin in the memory forms of this file.
struct Rest {
    offsets: Option<(ValueId, Span)>,
    mask: Option<(ValueId, Span)>,
    pass: Option<(ValueId, Span)>,
}

impl<'m> Builder<'m> {
    /// `[%idx]`, if `offsets`; `, %mask` and `, %pass`, if asked for; cache hints; `:`.
    fn rest(&mut self, reader: &mut Reader<'m>, offsets: bool, mask: bool, pass: bool) -> Built<Rest> {
        let mut rest = Rest { offsets: None, mask: None, pass: None };
        if offsets {
            reader.expect(Kind::BracketOpen)?;
            let span = reader.here();
            rest.offsets = Some((self.operand(reader)?, span));
            reader.expect(Kind::BracketClose)?;
        }
        for (wanted, place) in [(mask, &mut rest.mask), (pass, &mut rest.pass)] {
            if wanted {
                reader.expect(Kind::Comma)?;
                let span = reader.here();
                *place = Some((self.operand(reader)?, span));
            }
        }
        self.cache_hints(reader)?;
        reader.expect(Kind::Colon)?;
        Ok(rest)
    }

    /// The written types of the operands in `rest`, in the order of the operands.
    fn rest_types(&mut self, reader: &mut Reader<'m>, rest: &Rest) -> Built<()> {
        for (value, _) in [rest.offsets, rest.mask, rest.pass].into_iter().flatten() {
            reader.expect(Kind::Comma)?;
            self.typed(reader, value)?;
        }
        Ok(())
    }

    /// Offsets of the shape of `vector`, as `index`.
    fn offsets(&mut self, reader: &Reader<'m>, offsets: ValueId, span: Span, vector: &Type) -> Built<ValueId> {
        let found = self.ty(offsets).clone();
        let kind = match found.element() {
            Some(ScalarType::Index) => None,
            Some(ScalarType::I64) => Some(Convert::Bitcast),
            Some(ScalarType::I8 | ScalarType::I16 | ScalarType::I32) => Some(Convert::ExtSI),
            _ => return refuse(span, format!("`{}`: offsets are a vector of index, found {found}", reader.name())),
        };
        let expected = with_element(vector, ScalarType::Index);
        if with_element(&found, ScalarType::Index) != expected || !matches!(found, Type::Vector(_)) {
            return refuse(span, format!("`{}`: the offsets are {expected}, found {found}", reader.name()));
        }
        Ok(match kind {
            None => offsets,
            Some(kind) => self.converted(kind, offsets, ScalarType::Index),
        })
    }

    /// The element must be that of the view, and the view must have an axis to go along.
    fn check_gathered(&self, reader: &Reader<'m>, vector: &Type, view: &Type, span: Span) -> Built<()> {
        let Type::View(view) = view else { return Ok(()) };
        if !matches!(vector, Type::Vector(_)) {
            return refuse(span, format!("`{}`: expected a vector type, found {vector}", reader.name()));
        }
        if vector.element() != Some(view.element) {
            let message = format!("elements of the view are {}, found {vector}", view.element);
            return refuse(span, format!("`{}`: {message}", reader.name()));
        }
        if view.dims.is_empty() {
            return refuse(span, format!("`{}`: a view of rank 0 has no axis to go along", reader.name()));
        }
        Ok(())
    }

    /// `vector.gather %w[..][%idx] : view, indices -> vector`, or with `, %mask, %pass`.
    pub(super) fn gather(&mut self, reader: &mut Reader<'m>, masked: bool) -> Built<Vec<Binding>> {
        self.volatile(reader)?;
        let (view, ty, span) = self.view_operand(reader)?;
        let indices = self.view_origin(reader, &ty, span)?;
        let rest = self.rest(reader, true, masked, masked)?;
        self.typed(reader, view)?;
        self.rest_types(reader, &rest)?;
        let (result, span) = match rest.pass {
            Some((pass, span)) => {
                if reader.accept(Kind::Arrow) {
                    self.typed(reader, pass)?;
                }
                (self.ty(pass).clone(), span)
            }
            None => {
                reader.expect(Kind::Arrow)?;
                let span = reader.here();
                (self.plain_type(reader)?, span)
            }
        };
        reader.end()?;
        self.check_gathered(reader, &result, &Type::View(ty), span)?;
        let mut operands = vec![view];
        operands.extend(indices);
        if let Some((offsets, span)) = rest.offsets {
            operands.push(self.offsets(reader, offsets, span, &result)?);
        }
        if let (Some((mask, mask_span)), Some((pass, _))) = (rest.mask, rest.pass) {
            self.check_mask(reader, mask, mask_span, &result)?;
            operands.extend([mask, pass]);
        }
        let kind = if masked { OpKind::GatherMask } else { OpKind::Gather };
        Ok(one(self.emit_here(kind, &operands, result)))
    }

    /// What scattering and compressing stores share: value, view and indices, in this order; what follows them; the value's type.
    fn stored(&mut self, reader: &mut Reader<'m>, gathered: bool, masked: bool) -> Built<(Vec<ValueId>, Rest, Type)> {
        self.volatile(reader)?;
        let value_span = reader.here();
        let value = self.operand(reader)?;
        reader.expect(Kind::Comma)?;
        let (view, ty, span) = self.view_operand(reader)?;
        let indices = self.view_origin(reader, &ty, span)?;
        let rest = self.rest(reader, gathered, masked, false)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, view)?;
        self.rest_types(reader, &rest)?;
        reader.end()?;
        let vector = self.ty(value).clone();
        self.check_gathered(reader, &vector, &Type::View(ty), value_span)?;
        let mut operands = vec![value, view];
        operands.extend(indices);
        Ok((operands, rest, vector))
    }

    /// `vector.scatter %v, %w[..][%idx] : vector, view, indices`, or with `, %mask`.
    pub(super) fn scatter(&mut self, reader: &mut Reader<'m>, masked: bool) -> Built<Vec<Binding>> {
        let (mut operands, rest, vector) = self.stored(reader, true, masked)?;
        if let Some((offsets, span)) = rest.offsets {
            operands.push(self.offsets(reader, offsets, span, &vector)?);
        }
        if let Some((mask, span)) = rest.mask {
            self.check_mask(reader, mask, span, &vector)?;
            operands.push(mask);
        }
        self.push(if masked { OpKind::ScatterMask } else { OpKind::Scatter }, &operands, Vec::new(), Vec::new());
        Ok(Vec::new())
    }

    /// For each lane of a mask of rank 1, how many lanes before it are active, as `index`.
    fn before(&mut self, reader: &Reader<'m>, mask: ValueId, span: Span) -> Built<Option<ValueId>> {
        let Type::Vector(vector) = self.ty(mask).clone() else {
            return refuse(span, format!("`{}`: the mask is a vector", reader.name()));
        };
        if vector.dims.len() != 1 {
            let found = Type::Vector(vector);
            return refuse(span, format!("`{}` takes vectors of rank 1, found {found}", reader.name()));
        }
        let Some(lanes) = vector.lanes() else { return Ok(None) };
        self.spend(3 * lanes as usize, 1)?;
        let index = Type::Scalar(ScalarType::Index);
        let mut count = self.index(0);
        let mut counts = Vec::with_capacity(lanes as usize);
        for lane in 0..lanes {
            counts.push(count);
            let at = self.index(lane as i64);
            let active = self.emit(OpKind::Extract, &[mask, at], Type::Scalar(ScalarType::I1));
            let active = self.converted(Convert::ExtUI, active, ScalarType::Index);
            count = self.emit(OpKind::Binary(Binary::AddI), &[count, active], index.clone());
        }
        Ok(Some(self.emit(OpKind::FromElements, &counts, with_element(&Type::Vector(vector), ScalarType::Index))))
    }

    /// `vector.load.expand %w[..], %m, %pass : view, mask, vector`.
    pub(super) fn load_expand(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        self.volatile(reader)?;
        let (view, ty, span) = self.view_operand(reader)?;
        let indices = self.view_origin(reader, &ty, span)?;
        let rest = self.rest(reader, false, true, true)?;
        self.typed(reader, view)?;
        self.rest_types(reader, &rest)?;
        let (Some((mask, mask_span)), Some((pass, pass_span))) = (rest.mask, rest.pass) else {
            return reader.expected("a mask and a vector for the lanes that are off");
        };
        if reader.accept(Kind::Arrow) {
            self.typed(reader, pass)?;
        }
        reader.end()?;
        let result = self.ty(pass).clone();
        self.check_gathered(reader, &result, &Type::View(ty), pass_span)?;
        self.check_mask(reader, mask, mask_span, &result)?;
        let Some(offsets) = self.before(reader, mask, mask_span)? else {
            return Ok(one(self.new_value(result)));
        };
        let mut operands = vec![view];
        operands.extend(indices);
        operands.extend([offsets, mask, pass]);
        Ok(one(self.emit_here(OpKind::GatherMask, &operands, result)))
    }

    /// `vector.store.compress %v, %w[..], %m : vector, view, mask`.
    pub(super) fn store_compress(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (mut operands, rest, vector) = self.stored(reader, false, true)?;
        let Some((mask, mask_span)) = rest.mask else {
            return reader.expected("a mask");
        };
        self.check_mask(reader, mask, mask_span, &vector)?;
        if let Some(offsets) = self.before(reader, mask, mask_span)? {
            operands.extend([offsets, mask]);
            self.push(OpKind::ScatterMask, &operands, Vec::new(), Vec::new());
        }
        Ok(Vec::new())
    }

    /// `buffer.length %b`: bytes of the storage.
    pub(super) fn buffer_length(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let buffer = self.operand(reader)?;
        if *self.ty(buffer) != Type::Buffer {
            return refuse(span, format!("`buffer.length`: expected a buffer, found {}", self.ty(buffer)));
        }
        let offset = Type::Scalar(ScalarType::Offset);
        if reader.accept(Kind::Colon) {
            let span = reader.here();
            let written = self.plain_type(reader)?;
            if written != offset {
                return refuse(span, format!("`buffer.length` gives an offset, found {written}"));
            }
        }
        reader.end()?;
        let scratch = self.body.ops().find(|op| op.results.contains(&buffer)).and_then(|op| match op.kind {
            OpKind::Alloca { bytes, .. } => Some(bytes),
            _ => None,
        });
        Ok(one(match scratch {
            Some(bytes) => self.constant(offset, bytes),
            None => self.emit(OpKind::BufferLength, &[buffer], offset),
        }))
    }

    /// `buffer.pack [align(A) %len, ..] : offset`: the total, then where each part starts.
    pub(super) fn pack(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        reader.expect(Kind::BracketOpen)?;
        let offset = Type::Scalar(ScalarType::Offset);
        let mut end = self.constant(offset.clone(), 0);
        let mut largest = 1u64;
        let mut starts = Vec::new();
        let round_up = |this: &mut Self, value: ValueId, align: u64| {
            let (slack, mask) = (this.constant(offset.clone(), align - 1), this.constant(offset.clone(), !(align - 1)));
            let raised = this.binary(Binary::AddI, value, slack);
            this.binary(Binary::AndI, raised, mask)
        };
        loop {
            let mut align = 1;
            if reader.accept_word("align") {
                reader.expect(Kind::ParenOpen)?;
                let (value, span) = reader.int()?;
                reader.expect(Kind::ParenClose)?;
                align = match u64::try_from(value) {
                    Ok(value) if value.is_power_of_two() => value,
                    _ => return refuse(span, format!("an alignment is a positive power of two, found {value}")),
                };
            }
            let span = reader.here();
            let length = self.operand(reader)?;
            self.require(reader, length, span, ScalarType::Offset)?;
            largest = largest.max(align);
            let start = round_up(self, end, align);
            starts.push(start);
            end = self.binary(Binary::AddI, start, length);
            if !reader.accept(Kind::Comma) {
                break;
            }
        }
        reader.expect(Kind::BracketClose)?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        let written = self.plain_type(reader)?;
        if written != offset {
            return refuse(span, format!("`buffer.pack` gives offsets, found {written}"));
        }
        reader.end()?;
        let mut results = one(round_up(self, end, largest));
        results.extend(starts.into_iter().map(Binding::Value));
        Ok(results)
    }

    /// Byte-level ops of host programs.
    pub(super) fn host_buffer_op<T>(&self, reader: &Reader<'m>) -> Built<T> {
        refuse(
            reader.span(),
            format!(
                "`{}` moves bytes on the host, in command programs and host functions; a kernel uses buffer.view with \
                 view.load and view.store, or vector.load and vector.store",
                reader.name()
            ),
        )
    }
}
