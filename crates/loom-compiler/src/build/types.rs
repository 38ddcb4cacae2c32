//! Types as written, and literals of them.
//!
//! - A shape is read from the text, not from tokens: in it a lone `x` separates, and `0xf32` is extent 0 of f32.
//! - A dimension that names a constant is that constant. Two dimensions are equal iff they are the same constant or the
//!   same value, and equal expressions are the same value.
//! - A view's strides belong to the value, not to the type written at a use: `view.subview` keeps its source's.

use crate::diag::{Built, refuse};
use crate::eval;
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Binary, OpKind};
use crate::reader::{Reader, parse_float};
use crate::types::{Async, Dim, MAX_LANES, ScalarType, Type, VectorType, ViewType};

use super::Builder;
use super::names::{Binding, Layout};

/// The most dimensions of a shape.
const MAX_RANK: usize = 16;

/// Where reading a shape stopped: behind the element type.
struct Shape {
    dims: Vec<Dim>,
    element: ScalarType,
}

/// Skips whitespace and comments.
fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match bytes.get(at) {
            Some(b' ' | b'\t' | b'\r' | b'\n') => at += 1,
            Some(b'/') if bytes.get(at + 1) == Some(&b'/') => {
                while bytes.get(at).is_some_and(|byte| *byte != b'\n') {
                    at += 1;
                }
            }
            _ => return at,
        }
    }
}

/// The type without what is no part of a written one.
pub(super) fn without_strides(ty: &Type) -> Type {
    match ty {
        Type::View(view) => Type::View(ViewType { strides: Vec::new(), ..view.clone() }),
        other => other.clone(),
    }
}

/// Whether two types are the same but for strides.
pub(super) fn same(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::View(a), Type::View(b)) => a.element == b.element && a.dims == b.dims,
        _ => a == b,
    }
}

impl<'m> Builder<'m> {
    /// `<4x[%n]xf32` up to the element type; the cursor is behind it.
    fn shape(&mut self, reader: &mut Reader<'m>) -> Built<Shape> {
        let open = reader.expect(Kind::Less)?;
        let bytes = reader.source.as_bytes();
        let here = |at: usize| Span { start: at as u32, end: at as u32 + 1 };
        let mut at = open.span.end as usize;
        let mut dims = Vec::new();
        loop {
            at = skip_space(bytes, at);
            let start = at;
            match bytes.get(at) {
                Some(b'0'..=b'9') => {
                    let mut extent = 0u64;
                    while let Some(digit @ b'0'..=b'9') = bytes.get(at) {
                        extent = match extent.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit - b'0')))
                        {
                            Some(extent) if extent <= i64::MAX as u64 => extent,
                            _ => {
                                return refuse(here(start), "this extent does not fit a signed 64-bit integer");
                            }
                        };
                        at += 1;
                    }
                    dims.push(Dim::Static(extent));
                }
                Some(b'[') => {
                    at = skip_space(bytes, at + 1);
                    let name = at;
                    at += usize::from(bytes.get(at) == Some(&b'%'));
                    while bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_$-".contains(byte)) {
                        at += 1;
                    }
                    let text = reader.source.get(name..at).unwrap_or_default();
                    let Some(text) = text.strip_prefix('%') else {
                        return refuse(here(name), "expected a value `%name` as a dynamic extent");
                    };
                    let span = Span { start: name as u32, end: at as u32 };
                    self.introduce(text, span, dims.len());
                    dims.push(self.dim(text, span)?);
                    at = skip_space(bytes, at);
                    if bytes.get(at) != Some(&b']') {
                        return refuse(here(at), "expected `]` behind a dynamic extent");
                    }
                    at += 1;
                }
                _ => break,
            }
            if dims.len() > MAX_RANK {
                return refuse(here(start), format!("more than {MAX_RANK} dimensions"));
            }
            at = skip_space(bytes, at);
            if bytes.get(at) != Some(&b'x') {
                return refuse(here(at), "expected `x` behind an extent");
            }
            at += 1;
        }
        let start = at;
        while bytes.get(at).is_some_and(u8::is_ascii_alphanumeric) {
            at += 1;
        }
        let Some(element) = ScalarType::from_name(reader.source.get(start..at).unwrap_or_default()) else {
            // What is no word is the sign of an extent, with its digits, or a character of another kind, which layout may part from them.
            let is_sign = bytes.get(start).is_some_and(|byte| b"+-".contains(byte));
            let digits = bytes.iter().skip(start + 1).take_while(|byte| is_sign && byte.is_ascii_digit()).count();
            let width = reader.source.get(start..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
            let end = if at > start { at } else { start + width + digits };
            let text = reader.source.get(start..end).unwrap_or_default();
            let message = format!("expected an element type or an extent, found `{text}`; legal: {}", scalar_names());
            return refuse(Span { start: start as u32, end: end as u32 }, message);
        };
        // Tokens were cut without knowing of shapes: go on behind the element type.
        while reader.token().is_some_and(|token| (token.span.start as usize) < at) {
            reader.at += 1;
        }
        Ok(Shape { dims, element })
    }

    /// [`Self::shape`] of a type that has extents and an element type, and nothing else that is read here.
    pub(super) fn dims_and_element(&mut self, reader: &mut Reader<'m>) -> Built<(Vec<Dim>, ScalarType)> {
        self.shape(reader).map(|shape| (shape.dims, shape.element))
    }

    /// The extent that a name stands for.
    fn dim(&mut self, name: &str, span: Span) -> Built<Dim> {
        let value = self.value_named(name, span)?;
        if *self.ty(value) != Type::Scalar(ScalarType::Index) {
            return refuse(span, format!("an extent is an index; `%{name}` is {}", self.ty(value)));
        }
        match self.constant_of(value) {
            Some(extent) if extent > i64::MAX as u64 => {
                refuse(span, format!("an extent is not negative; `%{name}` is {}", extent as i64))
            }
            Some(extent) => Ok(Dim::Static(extent)),
            None => Ok(Dim::Value(value)),
        }
    }

    /// A type as written. A view has no strides yet; its layout comes with it.
    pub(super) fn written(&mut self, reader: &mut Reader<'m>) -> Built<(Type, Layout)> {
        let span = reader.here();
        let Some(token) = reader.token() else {
            return reader.expected("a type");
        };
        let word = reader.text(token);
        if let Some(ty) = Async::from_name(word) {
            reader.at += 1;
            return Ok((Type::Async(ty), Layout::Dense));
        }
        if token.kind != Kind::Word {
            return reader.expected("a type");
        }
        if let Some(scalar) = ScalarType::from_name(word) {
            reader.at += 1;
            return Ok((Type::Scalar(scalar), Layout::Dense));
        }
        match word {
            "buffer" => {
                reader.at += 1;
                Ok((Type::Buffer, Layout::Dense))
            }
            "vector" => {
                reader.at += 1;
                let Shape { dims, element } = self.shape(reader)?;
                reader.expect(Kind::Greater)?;
                let vector = VectorType { element, dims };
                if vector.dims.is_empty() {
                    return refuse(span, "a vector has at least one dimension");
                }
                let known = vector.dims.iter().all(|dim| dim.constant().is_some());
                match vector.lanes() {
                    Some(0..=MAX_LANES) => {}
                    Some(lanes) => {
                        return refuse(span, format!("a vector has at most {MAX_LANES} lanes; this one has {lanes}"));
                    }
                    None if known => {
                        return refuse(span, format!("a vector has at most {MAX_LANES} lanes; this one has more"));
                    }
                    None if self.mode == super::Mode::Specialise => {
                        return refuse(span, "the extents of a vector must be constant once config is bound");
                    }
                    None => {}
                }
                Ok((Type::Vector(vector), Layout::Dense))
            }
            "view" => {
                reader.at += 1;
                let Shape { dims, element } = self.shape(reader)?;
                let layout = if reader.accept(Kind::Comma) { self.layout(reader, dims.len())? } else { Layout::Dense };
                reader.expect(Kind::Greater)?;
                if element == ScalarType::I1 {
                    return refuse(span, "a view of i1 has no layout in memory; use i8");
                }
                Ok((Type::View(ViewType { element, dims, strides: Vec::new() }), layout))
            }
            "tensor" | "tile" | "encoding" | "pool" | "reg" | "group" | "channel" | "read" | "write" => refuse(
                span,
                format!("`{word}` is no type of a kernel's values; legal: {}, vector, view, buffer", scalar_names()),
            ),
            _ => refuse(
                span,
                format!("expected a type, found `{word}`; legal: {}, vector, view, buffer", scalar_names()),
            ),
        }
    }

    /// The layout behind the comma of a view type.
    pub(super) fn layout(&mut self, reader: &mut Reader<'m>, rank: usize) -> Built<Layout> {
        if reader.peek() == Some(Kind::Hash) {
            let span = reader.here();
            return self.record(reader)?.view_layout(span);
        }
        if reader.peek() != Some(Kind::Value) {
            return reader
                .expected("a layout: `#dense`, or a value from `encoding.layout.dense` or `encoding.layout.strided`");
        }
        let (name, span) = reader.value_name()?;
        match self.names.get(name) {
            Some(Binding::Layout(Layout::Strided(strides))) if strides.len() != rank => {
                refuse(span, format!("`%{name}` has {} strides, the view {rank} dimensions", strides.len()))
            }
            Some(Binding::Layout(layout)) => Ok(layout.clone()),
            Some(Binding::Encoding(encoding)) => Ok(encoding.layout()),
            Some(Binding::Reported) => Err(crate::diag::Refusal::Reported),
            Some(Binding::Value(_) | Binding::Host(_)) => refuse(span, format!("`%{name}` is not a layout")),
            None => refuse(span, format!("`%{name}` is not defined here")),
        }
    }

    /// A type without a layout of its own.
    pub(super) fn plain_type(&mut self, reader: &mut Reader<'m>) -> Built<Type> {
        self.written(reader).map(|(ty, _)| ty)
    }

    /// A written type that must be that of `value`.
    pub(super) fn typed(&mut self, reader: &mut Reader<'m>, value: ValueId) -> Built<()> {
        let span = reader.here();
        let written = self.plain_type(reader)?;
        self.check_type(reader, value, &written, Span { start: span.start, end: reader_end(reader, span) })
    }

    /// `T, U`: the written types of `values`, in order.
    pub(super) fn all_typed(
        &mut self,
        reader: &mut Reader<'m>,
        values: impl IntoIterator<Item = ValueId>,
    ) -> Built<()> {
        for (at, value) in values.into_iter().enumerate() {
            if at > 0 {
                reader.expect(Kind::Comma)?;
            }
            self.typed(reader, value)?;
        }
        Ok(())
    }

    pub(super) fn check_type(&self, reader: &Reader<'m>, value: ValueId, written: &Type, span: Span) -> Built<()> {
        let actual = self.ty(value);
        if same(actual, written) {
            return Ok(());
        }
        refuse(span, format!("`{}`: the type written is {written}, the value's is {actual}", reader.name()))
    }

    /// A vector type.
    pub(super) fn vector_type(&mut self, reader: &mut Reader<'m>) -> Built<VectorType> {
        let span = reader.here();
        match self.plain_type(reader)? {
            Type::Vector(vector) => Ok(vector),
            other => refuse(span, format!("`{}`: expected a vector type, found {other}", reader.name())),
        }
    }

    /// Row-major element strides of `dims`.
    pub(super) fn dense_strides(&mut self, dims: &[Dim]) -> Built<Vec<Dim>> {
        let mut strides = vec![Dim::Static(1); dims.len()];
        for axis in (1..dims.len()).rev() {
            strides[axis - 1] = match (strides[axis], dims[axis]) {
                (Dim::Static(a), Dim::Static(b)) => match a.checked_mul(b) {
                    Some(stride) if stride <= i64::MAX as u64 => Dim::Static(stride),
                    _ => return refuse(self.span, "the view has more than 2^63 bytes"),
                },
                (a, b) => {
                    let (a, b) = (self.dim_value(a), self.dim_value(b));
                    let index = Type::Scalar(ScalarType::Index);
                    let product = self.emit(OpKind::Binary(Binary::MulI), &[a, b], index);
                    self.constant_of(product).map_or(Dim::Value(product), Dim::Static)
                }
            };
        }
        Ok(strides)
    }

    /// A dimension as a value.
    pub(super) fn dim_value(&mut self, dim: Dim) -> ValueId {
        match dim {
            Dim::Static(extent) => self.index(extent as i64),
            Dim::Value(value) => value,
        }
    }

    /// Gives a written view type its strides. As far as they are known, no element lies 2^63 bytes from the first.
    pub(super) fn place(&mut self, mut view: ViewType, layout: Layout) -> Built<ViewType> {
        view.strides = match layout {
            Layout::Dense => self.dense_strides(&view.dims)?,
            Layout::Strided(strides) => strides,
        };
        let mut steps = 1u128;
        for (dim, stride) in view.dims.iter().zip(&view.strides) {
            if let (Some(extent), Some(stride)) = (dim.constant(), stride.constant()) {
                let last = u128::from(extent.saturating_sub(1));
                steps = steps.saturating_add(last.saturating_mul(u128::from(stride)));
            }
        }
        let bytes = steps.saturating_mul(u128::from(view.element.bytes()));
        if bytes > i64::MAX as u128 {
            return refuse(self.span, "the view has more than 2^63 bytes");
        }
        Ok(view)
    }

    /// A literal of element type `ty`, as bits.
    pub(super) fn literal(&mut self, reader: &mut Reader<'m>) -> Built<(Literal, Span)> {
        let span = reader.here();
        let Some(token) = reader.token() else {
            return reader.expected("a literal");
        };
        let literal = match (token.kind, reader.text(token)) {
            (Kind::Int, _) => {
                return reader.int().map(|(value, span)| (Literal::Int(value), span));
            }
            (Kind::Float, text) => Literal::Float(parse_float(text)),
            (Kind::Word, "true") => Literal::Bool(true),
            (Kind::Word, "false") => Literal::Bool(false),
            (Kind::Word, "inf") => Literal::Float(f64::INFINITY),
            (Kind::Word, "nan") => Literal::Float(f64::NAN),
            _ => {
                return reader.expected("a literal: an integer, a float, `inf`, `nan`, `true` or `false`");
            }
        };
        reader.at += 1;
        Ok((literal, span))
    }
}

/// Where the type that began at `start` ended.
fn reader_end(reader: &Reader<'_>, start: Span) -> u32 {
    reader.tokens[reader.at.max(1) - 1].span.end.max(start.end)
}

/// A literal whose type is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Literal {
    Int(i64),
    Float(f64),
    Bool(bool),
}

/// The bits of `literal` in type `ty`, or what would be legal.
pub(super) fn literal_bits(literal: Literal, ty: ScalarType) -> Result<u64, String> {
    match (literal, ty) {
        (Literal::Float(value), ty) if ty.is_float() => Ok(eval::from_f64(ty, value)),
        (Literal::Int(_), ty) if ty.is_float() => {
            Err(format!("a constant of type {ty} is written as a float, such as `1.0`"))
        }
        (Literal::Bool(value), ScalarType::I1) => Ok(u64::from(value)),
        (Literal::Int(value @ (0 | 1)), ScalarType::I1) => Ok(value as u64),
        (_, ScalarType::I1) => Err("a constant of type i1 is `true`, `false`, `0` or `1`".to_owned()),
        (Literal::Int(value), ScalarType::Offset) if value < 0 => {
            Err(format!("{value} is out of range for offset: 0 to {}", i64::MAX))
        }
        (Literal::Int(value), ty) => {
            let bits = ty.bits();
            let limit = i64::MAX >> (64 - bits);
            if value > limit || value < -limit - 1 {
                return Err(format!("{value} is out of range for {ty}: {} to {limit}", -limit - 1));
            }
            Ok(value as u64 & (u64::MAX >> (64 - bits)))
        }
        (Literal::Float(_) | Literal::Bool(_), ty) => Err(format!("a constant of type {ty} is written as an integer")),
    }
}

/// For messages.
pub(super) fn scalar_names() -> String {
    ScalarType::ALL.map(ScalarType::name).join(", ")
}
