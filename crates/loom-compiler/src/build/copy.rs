//! `kernel.async.*`: copies that may end later, made at once.
//!
//! - A copy is a load and a store of everything that its views cover; a token and a group stand for copies that have ended, so
//!   waiting is nothing to do. Other work-items still need a barrier to see the bytes.
//! - What only moves data by paths of one kind of hardware is refused.

use crate::diag::{Built, Refusal, refuse};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Flags, OpKind};
use crate::reader::{Attribute, Reader};
use crate::types::{Dim, MAX_LANES, ScalarType, Type, VectorType, ViewType};

use super::memory::{CACHE_KEYS, SPACES};
use super::names::{Async, Binding};
use super::{Builder, Mode};

impl<'m> Builder<'m> {
    /// `async.*` of `kernel`; `None` if it is none.
    pub(super) fn async_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Option<Vec<Binding>>> {
        Ok(Some(match op {
            "async.copy" => self.async_copy(reader, false)?,
            "async.copy.mask" => self.async_copy(reader, true)?,
            "async.group" => {
                if reader.peek() == Some(Kind::Value) {
                    let mut tokens = 1;
                    self.async_operand(reader, Async::Token)?;
                    while reader.accept(Kind::Comma) {
                        self.async_operand(reader, Async::Token)?;
                        tokens += 1;
                    }
                    reader.expect(Kind::Colon)?;
                    for at in 0..tokens {
                        if at > 0 {
                            reader.expect(Kind::Comma)?;
                        }
                        async_type(reader, Async::Token)?;
                    }
                }
                reader.expect(Kind::Arrow)?;
                async_type(reader, Async::Group)?;
                reader.end()?;
                vec![Binding::Async(Async::Group)]
            }
            "async.wait" => {
                self.async_operand(reader, Async::Group)?;
                for entry in reader.dictionary()? {
                    if !matches!((entry.key, &entry.value), ("newer_groups", Attribute::Int(0..))) {
                        return refuse(
                            entry.span,
                            "legal here: `newer_groups`, how many later groups may go on, from 0",
                        );
                    }
                }
                reader.expect(Kind::Colon)?;
                async_type(reader, Async::Group)?;
                reader.end()?;
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

    fn async_operand(&mut self, reader: &mut Reader<'m>, wanted: Async) -> Built<()> {
        let (name, span) = reader.value_name()?;
        match self.names.get(name) {
            Some(Binding::Async(found)) if *found == wanted => Ok(()),
            Some(Binding::Reported) => Err(Refusal::Reported),
            Some(_) => refuse(span, format!("`%{name}` is no {}", async_name(wanted))),
            None => refuse(span, format!("`%{name}` is not defined here")),
        }
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
        match condition {
            None => self.copy(source, &source_ty, target, &target_ty, span)?,
            Some(condition) => {
                let flags = Flags::default();
                let (then, copied) = self.in_block(Vec::new(), |builder| {
                    builder.copy(source, &source_ty, target, &target_ty, span)?;
                    builder.flags = flags;
                    builder.push(OpKind::Yield, &[], Vec::new(), Vec::new());
                    Ok(())
                });
                copied?;
                let (otherwise, _) = self.in_block(Vec::new(), |builder| {
                    builder.push(OpKind::Yield, &[], Vec::new(), Vec::new());
                    Ok(())
                });
                self.push(OpKind::If, &[condition], Vec::new(), vec![then, otherwise]);
            }
        }
        Ok(vec![Binding::Async(Async::Token)])
    }

    /// Moves all bytes of one view to those of another.
    fn copy(
        &mut self,
        source: ValueId,
        source_ty: &ViewType,
        target: ValueId,
        target_ty: &ViewType,
        span: Span,
    ) -> Built<()> {
        let bytes = |view: &ViewType| {
            let mut elements = view.dims.iter().map(|dim| dim.constant());
            elements.try_fold(view.element.bytes(), |product, extent| product.checked_mul(extent?))
        };
        let size = match (bytes(source_ty), bytes(target_ty)) {
            (Some(from), Some(to)) if from == to => from,
            (None, _) | (_, None) if self.mode == Mode::Verify => return Ok(()),
            (from, to) => {
                let said =
                    |bytes: Option<u64>| bytes.map_or("an unknown number of".to_owned(), |bytes| bytes.to_string());
                let message =
                    format!("the views of a copy have one constant size, found {} and {} bytes", said(from), said(to));
                return refuse(span, message);
            }
        };
        if size == 0 {
            return Ok(());
        }
        let same = source_ty.element == target_ty.element && source_ty.dims == target_ty.dims;
        if same && source_ty.dims.is_empty() {
            let value = self.emit_here(OpKind::Load, &[source], Type::Scalar(source_ty.element));
            self.push(OpKind::Store, &[value, target], Vec::new(), Vec::new());
            return Ok(());
        }
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
        let zero = self.index(0);
        let origin = vec![zero; vector.dims.len()];
        let mut operands = vec![from];
        operands.extend(&origin);
        let value = self.emit_here(OpKind::Load, &operands, Type::Vector(vector));
        let mut operands = vec![value, to];
        operands.extend(&origin);
        self.push(OpKind::Store, &operands, Vec::new(), Vec::new());
        Ok(())
    }
}

fn hardware<T>(reader: &Reader<'_>, why: &str) -> Built<T> {
    refuse(reader.span(), format!("`{}` is for one kind of hardware only: it {why}", reader.name()))
}

const fn async_name(ty: Async) -> &'static str {
    match ty {
        Async::Token => "kernel.async.token",
        Async::Group => "kernel.async.group",
    }
}

fn async_type(reader: &mut Reader<'_>, ty: Async) -> Built<()> {
    let name = async_name(ty);
    if reader.token().is_some_and(|token| token.kind == Kind::OpName && reader.text(token) == name) {
        reader.at += 1;
        return Ok(());
    }
    reader.expected(&format!("the type `{name}`"))
}
