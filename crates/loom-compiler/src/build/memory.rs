//! `encoding.layout.*`, `buffer.*`, `view.*`, and the memory forms of `vector.*`.

use crate::diag::{Built, refuse};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{OpKind, Space};
use crate::reader::{Attribute, Entry, Reader};
use crate::types::{Dim, ScalarType, Type, VectorType, ViewType};

use super::element::with_element;
use super::names::{Binding, Layout};
use super::{Builder, Mode, one};

/// The most bytes one workgroup may ask for as shared memory.
const MAX_WORKGROUP_BYTES: u64 = 1 << 20;

/// The most bytes one work-item may ask for as private memory.
const MAX_PRIVATE_BYTES: u64 = 1 << 16;

/// The memory spaces of the language.
pub(super) const SPACES: [&str; 8] =
    ["unknown", "global", "workgroup", "private", "constant", "host", "descriptor", "generic"];

/// Attributes that only hint at caches; any value is accepted.
pub(super) const CACHE_KEYS: [&str; 2] = ["cache_scope", "cache_temporal"];

fn is_space(entry: &Entry<'_>) -> bool {
    matches!(&entry.value, Attribute::Word(word) if SPACES.contains(word))
}

impl<'m> Builder<'m> {
    /// `encoding.*`: layouts of views.
    pub(super) fn encoding_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        let layout = match op {
            "layout.dense" => Layout::Dense,
            "layout.strided" => {
                let mut strides = Vec::new();
                for (value, span) in self.indices(reader)? {
                    strides.push(match self.constant_of(value) {
                        Some(stride) if (stride as i64) < 0 => {
                            return refuse(span, "a stride is not negative");
                        }
                        Some(stride) => Dim::Static(stride),
                        None => Dim::Value(value),
                    });
                }
                Layout::Strided(strides)
            }
            "layout.assume.dense" | "layout.assume.strided" => {
                let (name, span) = reader.value_name()?;
                reader.dictionary()?;
                match self.names.get(name) {
                    Some(Binding::Layout(layout)) => layout.clone(),
                    Some(Binding::Reported) => return Err(crate::diag::Refusal::Reported),
                    _ => return refuse(span, format!("`%{name}` is not a layout")),
                }
            }
            _ => return self.encoding_value(reader, op),
        };
        reader.expect(Kind::Colon)?;
        reader.expect_word("encoding")?;
        reader.keyword("`layout`", |word| (word == "layout").then_some(()))?;
        reader.end()?;
        Ok(vec![Binding::Layout(layout)])
    }

    /// `buffer.*`.
    pub(super) fn buffer_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "view" => self.buffer_view(reader),
            "alloca" => self.alloca(reader),
            "assume.noalias" | "assume.alignment" | "assume.memory_space" | "assume.same_root" => {
                self.assume_buffer(reader, op)
            }
            "length" => self.buffer_length(reader),
            "fence" => self.fence(reader),
            "copy" | "fill" | "compare" => self.host_buffer_op(reader),
            op if op.starts_with("load.") || op.starts_with("store.") => self.host_buffer_op(reader),
            _ => self.unknown(
                reader,
                "buffer.view, alloca, length, pack, fence, assume.noalias, assume.alignment, assume.memory_space, \
                 assume.same_root",
            ),
        }
    }

    pub(super) fn view_operand(&mut self, reader: &mut Reader<'m>) -> Built<(ValueId, ViewType, Span)> {
        let span = reader.here();
        let value = self.operand(reader)?;
        match self.ty(value) {
            Type::View(view) => Ok((value, view.clone(), span)),
            other => refuse(span, format!("`{}`: expected a view, found {other}", reader.name())),
        }
    }

    /// `%b[%off] : buffer -> view<..>`.
    fn buffer_view(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let buffer = self.operand(reader)?;
        if *self.ty(buffer) != Type::Buffer {
            return refuse(span, format!("`buffer.view`: expected a buffer, found {}", self.ty(buffer)));
        }
        reader.expect(Kind::BracketOpen)?;
        let offset_span = reader.here();
        let offset = if reader.peek() == Some(Kind::Int) {
            let (bytes, span) = reader.int()?;
            if bytes < 0 {
                return refuse(span, "a byte offset is not negative");
            }
            self.constant(Type::Scalar(ScalarType::Offset), bytes as u64)
        } else {
            self.operand(reader)?
        };
        self.require(reader, offset, offset_span, ScalarType::Offset)?;
        reader.expect(Kind::BracketClose)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, buffer)?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        let (Type::View(view), layout) = self.written(reader)? else {
            return refuse(span, "`buffer.view` gives a view");
        };
        reader.end()?;
        let view = self.place(view, layout)?;
        Ok(one(self.emit(OpKind::BufferView, &[buffer, offset], Type::View(view))))
    }

    /// `buffer.alloca<space> align(A) %bytes : buffer`, or `%bytes {base_alignment = A, memory_space = space}`.
    fn alloca(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let mut space: Option<(&str, Span)> = None;
        let mut align = (1i64, reader.span());
        if reader.accept(Kind::Less) {
            space = Some(reader.word("a memory space: workgroup or private")?);
            reader.expect(Kind::Greater)?;
        }
        if reader.accept_word("align") {
            reader.expect(Kind::ParenOpen)?;
            align = reader.int()?;
            reader.expect(Kind::ParenClose)?;
        }
        let bytes_span = reader.here();
        let bytes = self.operand(reader)?;
        self.require(reader, bytes, bytes_span, ScalarType::Offset)?;
        for entry in reader.dictionary()? {
            match (entry.key, &entry.value) {
                ("base_alignment", Attribute::Int(value)) => align = (*value, entry.value_span),
                ("memory_space", Attribute::Word(word)) if space.is_none() => space = Some((*word, entry.value_span)),
                _ => {
                    return refuse(
                        entry.span,
                        "legal here: `base_alignment` (an integer) and `memory_space`, each once",
                    );
                }
            }
        }
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        if self.plain_type(reader)? != Type::Buffer {
            return refuse(span, "`buffer.alloca` gives a buffer");
        }
        reader.end()?;
        let space = match space {
            Some(("workgroup", _)) => Space::Workgroup,
            Some(("private", _)) => Space::Private,
            Some((other, span)) => {
                return refuse(span, format!("a kernel allocates workgroup or private memory, found `{other}`"));
            }
            None => {
                return refuse(reader.span(), "`buffer.alloca` needs a memory space: workgroup or private");
            }
        };
        let align = match u64::try_from(align.0) {
            Ok(value) if value.is_power_of_two() && value <= 4096 => value,
            _ => {
                return refuse(align.1, format!("an alignment is a power of two from 1 to 4096, found {}", align.0));
            }
        };
        let bytes = match self.constant_of(bytes) {
            Some(bytes) => bytes,
            None if self.mode == Mode::Verify => 0,
            None => {
                return refuse(bytes_span, "the size of scratch must be constant once config is bound");
            }
        };
        let (total, limit) = match space {
            Space::Workgroup => (&mut self.workgroup_bytes, MAX_WORKGROUP_BYTES),
            Space::Private => (&mut self.private_bytes, MAX_PRIVATE_BYTES),
        };
        let sum = total.next_multiple_of(align).saturating_add(bytes);
        if sum > limit {
            return refuse(
                bytes_span,
                format!("at most {limit} bytes may be allocated in this space; with this it is {sum}"),
            );
        }
        *total = sum;
        Ok(one(self.emit_here(OpKind::Alloca { space, align, bytes }, &[], Type::Buffer)))
    }

    /// Promises about buffers: the results are the operands.
    fn assume_buffer(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        let mut spaced = false;
        if op == "assume.memory_space" && reader.accept(Kind::Less) {
            reader.choose(&format!("a memory space: {}", SPACES.join(", ")), |word| {
                SPACES.contains(&word).then_some(())
            })?;
            reader.expect(Kind::Greater)?;
            spaced = true;
        }
        let operands = self.operands(reader)?;
        for entry in reader.dictionary()? {
            let legal = match (op, entry.key, &entry.value) {
                ("assume.alignment", "minimum_alignment", Attribute::Int(value)) => {
                    *value > 0 && value.count_ones() == 1
                }
                ("assume.memory_space", "memory_space", _) => !spaced && is_space(&entry),
                _ => false,
            };
            if !legal {
                return refuse(entry.value_span, format!("`{}` does not take this attribute value", reader.name()));
            }
        }
        reader.expect(Kind::Colon)?;
        for (at, (operand, span)) in operands.iter().enumerate() {
            if *self.ty(*operand) != Type::Buffer {
                return refuse(*span, format!("`{}`: expected a buffer, found {}", reader.name(), self.ty(*operand)));
            }
            // `same_root` names one type for its one result.
            if at > 0 && !reader.accept(Kind::Comma) {
                break;
            }
            self.typed(reader, *operand)?;
        }
        reader.end()?;
        let results = if op == "assume.same_root" { &operands[..1] } else { &operands[..] };
        Ok(results.iter().map(|(value, _)| Binding::Value(*value)).collect())
    }

    /// `view.*`.
    pub(super) fn view_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "load" => self.load(reader, false),
            "store" => self.store(reader, false),
            "subview" => self.subview(reader),
            "refine" => self.refine(reader),
            "prefetch" => {
                let (view, ty, span) = self.view_operand(reader)?;
                self.view_indices(reader, &ty, span)?;
                reader.dictionary()?;
                reader.expect(Kind::Colon)?;
                self.typed(reader, view)?;
                reader.end()?;
                Ok(Vec::new())
            }
            "atomic.load" | "atomic.store" | "atomic.reduce" | "atomic.rmw" | "atomic.cmpxchg" => {
                self.atomic(reader, op, false)
            }
            _ => self.unknown(
                reader,
                "view.load, store, subview, refine, prefetch, atomic.load, atomic.store, atomic.reduce, atomic.rmw, \
                 atomic.cmpxchg",
            ),
        }
    }

    /// Whether the index at `span` is written as a number. One that only turns out to be known may stand where it is never
    /// reached: an unrolled turn, or an inlined function, behind a condition of the run.
    pub(super) fn is_written(&self, span: Span) -> bool {
        let text = self.module.source.as_bytes();
        text.get(span.start as usize).is_some_and(|first| *first == b'-' || first.is_ascii_digit())
    }

    /// One index per dimension of the view.
    fn ranked(&mut self, reader: &mut Reader<'m>, view: &ViewType, span: Span) -> Built<Vec<(ValueId, Span)>> {
        let indices = self.indices(reader)?;
        if indices.len() != view.dims.len() {
            let message =
                format!("`{}`: {} indices for a view of rank {}", reader.name(), indices.len(), view.dims.len());
            return refuse(span, message);
        }
        Ok(indices)
    }

    /// Where lanes are counted from of which some may be off, or that have offsets of their own. No lane need lie there, so it
    /// may be outside the view.
    pub(super) fn view_origin(&mut self, reader: &mut Reader<'m>, view: &ViewType, span: Span) -> Built<Vec<ValueId>> {
        Ok(self.ranked(reader, view, span)?.into_iter().map(|(index, _)| index).collect())
    }

    /// One index per dimension of the view, those that are written as numbers inside their extent.
    pub(super) fn view_indices(&mut self, reader: &mut Reader<'m>, view: &ViewType, span: Span) -> Built<Vec<ValueId>> {
        let indices = self.ranked(reader, view, span)?;
        for ((index, span), dim) in indices.iter().zip(&view.dims) {
            if let Some(index) = self.constant_of(*index).filter(|_| self.is_written(*span)) {
                let index = index as i64;
                if index < 0 || dim.constant().is_some_and(|extent| index as u64 >= extent) {
                    return refuse(*span, format!("index {index} is outside the extent {dim}"));
                }
            }
        }
        Ok(indices.into_iter().map(|(index, _)| index).collect())
    }

    /// `<volatile>`, if there: a promise about devices that others write to; plain accesses keep it here.
    pub(super) fn volatile(&self, reader: &mut Reader<'m>) -> Built<()> {
        if reader.peek() == Some(Kind::Less) {
            reader.keyword("`volatile`", |word| (word == "volatile").then_some(()))?;
        }
        Ok(())
    }

    pub(super) fn cache_hints(&self, reader: &mut Reader<'m>) -> Built<()> {
        for entry in reader.dictionary()? {
            if !CACHE_KEYS.contains(&entry.key) || !matches!(entry.value, Attribute::Word(_)) {
                return refuse(entry.span, "legal here: `cache_scope` and `cache_temporal`, each a keyword");
            }
        }
        Ok(())
    }

    /// A vector access covers the trailing axes of the view, and no more of them than there is if all its lanes are on.
    fn check_vector(&self, reader: &Reader<'m>, vector: &Type, view: &ViewType, span: Span) -> Built<()> {
        self.check_masked(reader, vector, view, span)?;
        let Type::Vector(VectorType { dims, .. }) = vector else { return Ok(()) };
        let trailing = &view.dims[view.dims.len() - dims.len()..];
        for (lanes, extent) in dims.iter().zip(trailing) {
            if let (Some(lanes), Some(extent)) = (lanes.constant(), extent.constant())
                && lanes > extent
            {
                return refuse(span, format!("`{}`: {lanes} lanes along an extent of {extent}", reader.name()));
            }
        }
        Ok(())
    }

    /// The same of one whose lanes may be off.
    fn check_masked(&self, reader: &Reader<'m>, vector: &Type, view: &ViewType, span: Span) -> Built<()> {
        let Type::Vector(VectorType { element, dims }) = vector else {
            return refuse(span, format!("`{}`: expected a vector type, found {vector}", reader.name()));
        };
        if *element != view.element {
            let message = format!("`{}`: elements are {element}, those of the view {}", reader.name(), view.element);
            return refuse(span, message);
        }
        if dims.len() > view.dims.len() {
            let message =
                format!("`{}`: a vector of rank {} in a view of rank {}", reader.name(), dims.len(), view.dims.len());
            return refuse(span, message);
        }
        Ok(())
    }

    /// `%v[i, ..] {cache} : view -> T`.
    pub(super) fn load(&mut self, reader: &mut Reader<'m>, vector: bool) -> Built<Vec<Binding>> {
        self.volatile(reader)?;
        let (view, ty, span) = self.view_operand(reader)?;
        let indices = self.view_indices(reader, &ty, span)?;
        self.cache_hints(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, view)?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        let result = self.plain_type(reader)?;
        reader.end()?;
        if vector {
            self.check_vector(reader, &result, &ty, span)?;
        } else if result != Type::Scalar(ty.element) {
            return refuse(span, format!("`view.load`: elements are {}, found {result}", ty.element));
        }
        let mut operands = vec![view];
        operands.extend(indices);
        Ok(one(self.emit_here(OpKind::Load, &operands, result)))
    }

    /// `%x, %v[i, ..] {cache} : T, view`.
    pub(super) fn store(&mut self, reader: &mut Reader<'m>, vector: bool) -> Built<Vec<Binding>> {
        self.volatile(reader)?;
        let value_span = reader.here();
        let value = self.operand(reader)?;
        reader.expect(Kind::Comma)?;
        let (view, ty, span) = self.view_operand(reader)?;
        let indices = self.view_indices(reader, &ty, span)?;
        self.cache_hints(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, view)?;
        reader.end()?;
        if vector {
            self.check_vector(reader, self.ty(value), &ty, value_span)?;
        } else if *self.ty(value) != Type::Scalar(ty.element) {
            let found = self.ty(value);
            return refuse(value_span, format!("`view.store`: elements are {}, found {found}", ty.element));
        }
        let mut operands = vec![value, view];
        operands.extend(indices);
        self.push(OpKind::Store, &operands, Vec::new(), Vec::new());
        Ok(Vec::new())
    }

    pub(super) fn check_mask(&self, reader: &Reader<'m>, mask: ValueId, span: Span, vector: &Type) -> Built<()> {
        let expected = with_element(vector, ScalarType::I1);
        if *self.ty(mask) != expected {
            return refuse(span, format!("`{}`: the mask is {expected}, found {}", reader.name(), self.ty(mask)));
        }
        Ok(())
    }

    /// `vector.load.mask %w[..], %m, %pass : view, mask, vector`.
    pub(super) fn load_mask(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        self.volatile(reader)?;
        let (view, ty, span) = self.view_operand(reader)?;
        let indices = self.view_origin(reader, &ty, span)?;
        reader.expect(Kind::Comma)?;
        let mask_span = reader.here();
        let mask = self.operand(reader)?;
        reader.expect(Kind::Comma)?;
        let pass_span = reader.here();
        let pass = self.operand(reader)?;
        self.cache_hints(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, view)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, mask)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, pass)?;
        if reader.accept(Kind::Arrow) {
            self.typed(reader, pass)?;
        }
        reader.end()?;
        let result = self.ty(pass).clone();
        self.check_masked(reader, &result, &ty, pass_span)?;
        self.check_mask(reader, mask, mask_span, &result)?;
        let mut operands = vec![view];
        operands.extend(indices);
        operands.extend([mask, pass]);
        Ok(one(self.emit_here(OpKind::LoadMask, &operands, result)))
    }

    /// `vector.store.mask %v, %w[..], %m : vector, view, mask`.
    pub(super) fn store_mask(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        self.volatile(reader)?;
        let value_span = reader.here();
        let value = self.operand(reader)?;
        reader.expect(Kind::Comma)?;
        let (view, ty, span) = self.view_operand(reader)?;
        let indices = self.view_origin(reader, &ty, span)?;
        reader.expect(Kind::Comma)?;
        let mask_span = reader.here();
        let mask = self.operand(reader)?;
        self.cache_hints(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, view)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, mask)?;
        reader.end()?;
        self.check_masked(reader, self.ty(value), &ty, value_span)?;
        self.check_mask(reader, mask, mask_span, self.ty(value))?;
        let mut operands = vec![value, view];
        operands.extend(indices);
        operands.push(mask);
        self.push(OpKind::StoreMask, &operands, Vec::new(), Vec::new());
        Ok(Vec::new())
    }

    /// `%v[i, ..] : view -> view`.
    fn subview(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (view, ty, span) = self.view_operand(reader)?;
        let indices = self.view_indices(reader, &ty, span)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, view)?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        let Type::View(mut result) = self.plain_type(reader)? else {
            return refuse(span, "`view.subview` gives a view");
        };
        reader.end()?;
        if result.element != ty.element || result.dims.len() != ty.dims.len() {
            let message = format!(
                "`view.subview` keeps element type and rank, found {} to {}",
                Type::View(ty),
                Type::View(result)
            );
            return refuse(span, message);
        }
        result.strides = ty.strides;
        let mut operands = vec![view];
        operands.extend(indices);
        Ok(one(self.emit(OpKind::Subview, &operands, Type::View(result))))
    }

    /// `%v : view -> view`: other extents for the same bytes.
    fn refine(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (view, ty, _) = self.view_operand(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, view)?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        let Type::View(mut result) = self.plain_type(reader)? else {
            return refuse(span, "`view.refine` gives a view");
        };
        reader.end()?;
        let dense = self.dense_strides(&ty.dims)? == ty.strides;
        if result.element != ty.element || (!dense && result.dims.len() != ty.dims.len()) {
            let message = format!(
                "`view.refine` keeps the element type, and the rank unless the view is dense, found {} to {}",
                Type::View(ty),
                Type::View(result)
            );
            return refuse(span, message);
        }
        result.strides = if dense { self.dense_strides(&result.dims)? } else { ty.strides };
        Ok(one(self.emit(OpKind::Refine, &[view], Type::View(result))))
    }
}
