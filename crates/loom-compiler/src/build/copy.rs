//! `kernel.async.*`: copies that may end later.
//!
//! - A copy moves everything that its views cover; a token and a group are values like others, which loops may carry. What they
//!   become is decided for each target (`copies`).
//! - What only moves data by paths of one kind of hardware is refused.

use crate::diag::{Built, refuse};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::OpKind;
use crate::reader::{Attribute, Reader};
use crate::types::{Async, Dim, MAX_LANES, ScalarType, Type, VectorType, ViewType};

use super::memory::{CACHE_KEYS, SPACES};
use super::names::Binding;
use super::{Builder, Mode, one};

impl<'m> Builder<'m> {
    /// `async.*` of `kernel`; `None` if it is none.
    pub(super) fn async_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Option<Vec<Binding>>> {
        Ok(Some(match op {
            "async.copy" => self.async_copy(reader, false)?,
            "async.copy.mask" => self.async_copy(reader, true)?,
            "async.group" => {
                let mut tokens = Vec::new();
                if reader.peek() == Some(Kind::Value) {
                    tokens.push(self.async_operand(reader, Async::Token)?);
                    while reader.accept(Kind::Comma) {
                        tokens.push(self.async_operand(reader, Async::Token)?);
                    }
                    reader.expect(Kind::Colon)?;
                    for at in 0..tokens.len() {
                        if at > 0 {
                            reader.expect(Kind::Comma)?;
                        }
                        async_type(reader, Async::Token)?;
                    }
                }
                reader.expect(Kind::Arrow)?;
                async_type(reader, Async::Group)?;
                reader.end()?;
                one(self.emit_here(OpKind::AsyncGroup, &tokens, Type::Async(Async::Group)))
            }
            "async.wait" => {
                let group = self.async_operand(reader, Async::Group)?;
                let mut newer = 0;
                for entry in reader.dictionary()? {
                    match (entry.key, &entry.value) {
                        ("newer_groups", Attribute::Int(groups @ 0..)) => {
                            newer = u32::try_from(*groups).unwrap_or(u32::MAX)
                        }
                        _ => {
                            return refuse(
                                entry.span,
                                "legal here: `newer_groups`, how many later groups may go on, from 0",
                            );
                        }
                    }
                }
                reader.expect(Kind::Colon)?;
                async_type(reader, Async::Group)?;
                reader.end()?;
                self.push(OpKind::AsyncWait { newer }, &[group], Vec::new(), Vec::new());
                Vec::new()
            }
            "async.gather" | "async.gather.mask" => {
                return hardware(reader, "gathers into workgroup memory by the lanes of an AMD subgroup");
            }
            "async.cluster.gather" | "async.cluster.gather.mask" => {
                return hardware(reader, "broadcasts through the workgroup clusters of an AMD machine");
            }
            "async.tensor.load.to.lds" | "async.tensor.store.from.lds" | "tensor.lds.descriptor" => {
                return hardware(reader, "belongs to the tensor memory of an AMD machine");
            }
            _ => return Ok(None),
        }))
    }

    fn async_operand(&mut self, reader: &mut Reader<'m>, wanted: Async) -> Built<ValueId> {
        let (name, span) = reader.value_name()?;
        let value = self.value_named(name, span)?;
        if *self.ty(value) == Type::Async(wanted) {
            return Ok(value);
        }
        refuse(span, format!("`%{name}` is no {}", wanted.name()))
    }

    /// `%src to %dst[, %p] {..} : view to view[, i1] -> kernel.async.token`.
    fn async_copy(&mut self, reader: &mut Reader<'m>, masked: bool) -> Built<Vec<Binding>> {
        let (source, source_ty, _) = self.view_operand(reader)?;
        reader.expect_word("to")?;
        let (target, target_ty, span) = self.view_operand(reader)?;
        let mut condition = None;
        if masked {
            reader.expect(Kind::Comma)?;
            let span = reader.here();
            let value = self.operand(reader)?;
            self.require(reader, value, span, ScalarType::I1)?;
            condition = Some(value);
        }
        for entry in reader.dictionary()? {
            let word = if let Attribute::Word(word) = entry.value { word } else { "" };
            let way =
                || word.split_once("_to_").is_some_and(|(from, to)| SPACES.contains(&from) && SPACES.contains(&to));
            match entry.key {
                "direction" if way() => {}
                key if CACHE_KEYS.contains(&key) && !word.is_empty() => {}
                _ => {
                    return refuse(
                        entry.span,
                        "legal here: direction, such as global_to_workgroup, cache_scope, cache_temporal, each a keyword",
                    );
                }
            }
        }
        reader.expect(Kind::Colon)?;
        self.typed(reader, source)?;
        reader.expect_word("to")?;
        self.typed(reader, target)?;
        if let Some(condition) = condition {
            reader.expect(Kind::Comma)?;
            self.typed(reader, condition)?;
        }
        reader.expect(Kind::Arrow)?;
        async_type(reader, Async::Token)?;
        reader.end()?;
        let token = Type::Async(Async::Token);
        let Some((source, target)) = self.copied(source, &source_ty, target, &target_ty, span)? else {
            return Ok(one(self.constant(token, 0)));
        };
        let mut operands = vec![source, target];
        operands.extend(condition);
        Ok(one(self.emit_here(OpKind::AsyncCopy { masked: condition.is_some() }, &operands, token)))
    }

    /// Views of one element type and of the same extents, for all bytes of one view to go to those of another; nothing where
    /// there are none.
    fn copied(
        &mut self,
        source: ValueId,
        source_ty: &ViewType,
        target: ValueId,
        target_ty: &ViewType,
        span: Span,
    ) -> Built<Option<(ValueId, ValueId)>> {
        let bytes = |view: &ViewType| {
            let mut elements = view.dims.iter().map(|dim| dim.constant());
            elements.try_fold(view.element.bytes(), |product, extent| product.checked_mul(extent?))
        };
        let size = match (bytes(source_ty), bytes(target_ty)) {
            (Some(from), Some(to)) if from == to => from,
            (None, _) | (_, None) if self.mode == Mode::Verify => return Ok(None),
            (from, to) => {
                let said =
                    |bytes: Option<u64>| bytes.map_or("an unknown number of".to_owned(), |bytes| bytes.to_string());
                let message =
                    format!("the views of a copy have one constant size, found {} and {} bytes", said(from), said(to));
                return refuse(span, message);
            }
        };
        if size == 0 {
            return Ok(None);
        }
        let same = source_ty.element == target_ty.element && source_ty.dims == target_ty.dims;
        let (mut from, mut to, mut vector) =
            (source, target, VectorType { element: source_ty.element, dims: source_ty.dims.clone() });
        if !same {
            // Byte by byte: what lies where does not depend on what it is called.
            for (view, ty) in [(&mut from, source_ty), (&mut to, target_ty)] {
                if self.dense_strides(&ty.dims)? != ty.strides {
                    return refuse(span, "views of a copy whose types differ must be dense");
                }
                let bytes =
                    ViewType { element: ScalarType::I8, dims: vec![Dim::Static(size)], strides: vec![Dim::Static(1)] };
                *view = self.emit(OpKind::Refine, &[*view], Type::View(bytes));
            }
            vector = VectorType { element: ScalarType::I8, dims: vec![Dim::Static(size)] };
        }
        if vector.lanes().is_none_or(|lanes| lanes > MAX_LANES) {
            return refuse(span, format!("a copy moves at most {MAX_LANES} elements, bytes where the types differ"));
        }
        Ok(Some((from, to)))
    }
}

fn hardware<T>(reader: &Reader<'_>, why: &str) -> Built<T> {
    refuse(reader.span(), format!("`{}` is for one kind of hardware only: it {why}", reader.name()))
}

fn async_type(reader: &mut Reader<'_>, ty: Async) -> Built<()> {
    let name = ty.name();
    if reader.token().is_some_and(|token| token.kind == Kind::OpName && reader.text(token) == name) {
        reader.at += 1;
        return Ok(());
    }
    reader.expected(&format!("the type `{name}`"))
}
