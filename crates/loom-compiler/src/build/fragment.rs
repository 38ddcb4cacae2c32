//! `vector.fragment*` and `vector.mma`: tile products over the lanes of a subgroup.
//!
//! - A fragment is a vector, the payload of one lane, laid out as [`crate::fragment`] says. Which vectors are payloads of which
//!   role is decided here, and nowhere else.
//! - An operand may be loaded as f32, and is one of a product once element-wise ops rounded it to a type that is multiplied.
//! - Where memory and payload hold different floats, or a payload packs bytes into words, the conversion is an op of its own.
//! - What `vector.mma` multiplies depends on where its operands come from: [`crate::flow`] follows them once the body is built.

use crate::diag::{Built, refuse};
use crate::fragment::{Format, Fragment, MAX_DEPTH, Product, Role, TILE};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Convert, OpKind};
use crate::reader::Reader;
use crate::types::{Dim, ScalarType, Type, VectorType, ViewType};

use super::names::Binding;
use super::{Builder, Mode, one};

/// A role, and the shape of its tile if that is known.
struct Tile {
    role: Role,
    shape: Option<[u32; 2]>,
    span: Span,
}

fn vector_of(element: ScalarType, lanes: u32) -> Type {
    Type::Vector(VectorType { element, dims: vec![Dim::Static(u64::from(lanes))] })
}

/// A float that converts to the others: as wide as a half at least.
fn converts(ty: ScalarType) -> bool {
    ty.is_float() && ty.bits() >= 16
}

/// The numbers of an operand that lies as `fragment`, if `count` elements can be its payload.
fn carried(fragment: &Fragment, element: ScalarType, count: u64, schema: Option<Format>) -> Option<Format> {
    let slots = u64::from(fragment.slots());
    let own = match element {
        ScalarType::F16 => Some(Format::F16),
        ScalarType::BF16 => Some(Format::BF16),
        ScalarType::F8E4M3 => Some(Format::F8E4M3),
        ScalarType::F8E5M2 => Some(Format::F8E5M2),
        ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64 => match count * u64::from(element.bits())
        {
            bits if bits == 8 * slots => Some(Format::I8),
            bits if bits == 4 * slots => Some(Format::I4),
            _ => schema,
        },
        _ => None,
    };
    schema.or(own).filter(|format| {
        let fits = count * u64::from(element.bits()) == slots * u64::from(format.bits());
        fits && (element.is_integer() && element != ScalarType::I1 || format.float() == Some(element))
    })
}

impl<'m> Builder<'m> {
    /// `vector.fragment*` and `vector.mma`.
    pub(super) fn fragment_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "fragment" => self.fragment_label(reader),
            "fragment.load" => self.fragment_load(reader),
            "fragment.store" => self.fragment_store(reader),
            "fragment.repack" => self.fragment_repack(reader),
            _ => self.mma(reader),
        }
    }

    fn role(&self, reader: &mut Reader<'m>) -> Built<Role> {
        reader.keyword("one of lhs, rhs, init, result", |word| {
            [Role::Lhs, Role::Rhs, Role::Init, Role::Result].into_iter().find(|role| role.name() == word)
        })
    }

    /// `shape [rows, columns]`.
    fn tile(&mut self, reader: &mut Reader<'m>, role: Role) -> Built<Tile> {
        reader.expect_word("shape")?;
        let span = reader.here();
        let indices = self.indices(reader)?;
        let [(rows, _), (columns, _)] = indices[..] else {
            return refuse(
                span,
                format!("`{}`: a tile has rows and columns, found {} sizes", reader.name(), indices.len()),
            );
        };
        let (Some(rows), Some(columns)) = (self.constant_of(rows), self.constant_of(columns)) else {
            if self.mode == Mode::Verify {
                return Ok(Tile { role, shape: None, span });
            }
            return refuse(
                span,
                format!("`{}`: the shape of a tile must be constant once config is bound", reader.name()),
            );
        };
        let depth = |size: u64| size.is_multiple_of(u64::from(TILE)) && (1..=u64::from(MAX_DEPTH)).contains(&size);
        let tile = u64::from(TILE);
        let (legal, says) = match role {
            Role::Lhs => (rows == tile && depth(columns), "[16, k]"),
            Role::Rhs => (depth(rows) && columns == tile, "[k, 16]"),
            Role::Init | Role::Result => (rows == tile && columns == tile, "[16, 16]"),
        };
        if !legal {
            let found = format!("[{}, {}]", rows as i64, columns as i64);
            let with = if role.is_accumulator() {
                String::new()
            } else {
                format!(" with k a multiple of {TILE} up to {MAX_DEPTH}")
            };
            let message = format!("`{}`: the tile of a {} is {says}{with}, found {found}", reader.name(), role.name());
            return refuse(span, message);
        }
        Ok(Tile { role, shape: Some([rows as u32, columns as u32]), span })
    }

    /// `using {schema = %s : encoding<schema>}`, if there; and a `where [..]`.
    fn using(&mut self, reader: &mut Reader<'m>) -> Built<Option<Format>> {
        let mut format = None;
        if reader.accept_word("using") {
            reader.expect(Kind::BraceOpen)?;
            reader.expect_word("schema")?;
            reader.expect(Kind::Equal)?;
            format = self.schema(reader)?;
            reader.expect(Kind::Colon)?;
            reader.expect_word("encoding")?;
            reader.keyword("`schema`", |word| (word == "schema").then_some(()))?;
            reader.expect(Kind::BraceClose)?;
        }
        self.where_clause(reader)?;
        Ok(format)
    }

    /// How a payload of type `ty` holds the tile, and which numbers it holds, if it may.
    fn payload(
        &self,
        reader: &Reader<'m>,
        tile: &Tile,
        shape: [u32; 2],
        ty: &VectorType,
        schema: Option<Format>,
        span: Span,
    ) -> Built<(Fragment, Option<Format>)> {
        let lanes = self.subgroup_size;
        let role = tile.role;
        let mut fragment = Fragment { role, rows: shape[0], columns: shape[1], lanes, spread: 1, split: false };
        let (Some(count), [_]) = (ty.lanes(), &ty.dims[..]) else {
            let found = Type::Vector(ty.clone());
            return refuse(span, format!("`{}`: a payload is a vector of rank 1, found {found}", reader.name()));
        };
        let element = ty.element;
        if role.is_accumulator() {
            let sixteen = matches!(element, ScalarType::F16 | ScalarType::BF16);
            let legal = sixteen || matches!(element, ScalarType::F32 | ScalarType::I32);
            if legal && sixteen && count == 2 * u64::from(fragment.slots()) {
                fragment.spread = 2;
            } else if !legal || count != u64::from(fragment.slots()) {
                let slots = fragment.slots();
                let message = format!(
                    "`{}`: in a subgroup of {lanes} the payload of a {} is {slots} f32 or i32, or {slots} or {} f16 or bf16, \
                     found {}",
                    reader.name(),
                    role.name(),
                    2 * slots,
                    Type::Vector(ty.clone())
                );
                return refuse(span, message);
            }
            return Ok((fragment, None));
        }
        for split in self.ways(element) {
            let fragment = Fragment { split: *split, ..fragment };
            if let Some(format) = carried(&fragment, element, count, schema) {
                return Ok((fragment, Some(format)));
            }
        }
        let (depth, part) = (fragment.depth(), fragment.depth() / fragment.groups());
        let with = schema.map_or(String::new(), |format| format!(" of {format:?}"));
        let message = format!(
            "`{}`: the payload of a {} is {depth} elements{with} of the tile: {depth} f16, bf16, fp8 or i8, or words that pack \
             {depth} of 8 or 4 bits (on gfx12 {part} of each); found {}",
            reader.name(),
            role.name(),
            Type::Vector(ty.clone())
        );
        refuse(span, message)
    }

    /// Whether lanes share an operand in elements of this type, as may be. Words may pack several numbers: only the target tells
    /// how many lanes share them.
    fn ways(&self, element: ScalarType) -> &'static [bool] {
        match (self.splits_operands(), element.is_float()) {
            (true, _) => &[true, false],
            (false, true) => &[false, true],
            (false, false) => &[false],
        }
    }

    /// How an operand of f32 lies that was not rounded yet to what is multiplied: as the one that it will be.
    fn unrounded(&self, tile: &Tile, shape: [u32; 2], ty: &VectorType) -> Option<Fragment> {
        let (count, [_]) = (ty.lanes()?, &ty.dims[..]) else { return None };
        if tile.role.is_accumulator() || ty.element != ScalarType::F32 {
            return None;
        }
        let [rows, columns] = shape;
        let lies = |split: &bool| Fragment {
            role: tile.role,
            rows,
            columns,
            lanes: self.subgroup_size,
            spread: 1,
            split: *split,
        };
        self.ways(ty.element).iter().map(lies).find(|fragment| u64::from(fragment.slots()) == count)
    }

    /// Whether the kernel is for a machine whose lanes hold no operand twice.
    fn splits_operands(&self) -> bool {
        let module = self.module;
        let record = self.target.and_then(|target| module.symbols.get(target)).map(|at| &module.ops[*at]);
        record.is_some_and(|record| module.selector(record).starts_with("gfx12"))
    }

    /// `<role> %v shape [..] [using {..}] : T`.
    fn fragment_label(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let role = self.role(reader)?;
        let span = reader.here();
        let value = self.operand(reader)?;
        let tile = self.tile(reader, role)?;
        let schema = self.using(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.end()?;
        let Type::Vector(vector) = self.ty(value).clone() else {
            return refuse(span, format!("`{}`: expected a vector, found {}", reader.name(), self.ty(value)));
        };
        let Some(shape) = tile.shape else {
            return Ok(one(self.new_value(Type::Vector(vector))));
        };
        let (fragment, format) = self.payload(reader, &tile, shape, &vector, schema, span)?;
        let label = OpKind::FragmentLabel(fragment, format);
        Ok(one(self.emit(label, &[value], Type::Vector(vector))))
    }

    /// The view must hold the tile along its last two axes.
    fn check_tile(&self, reader: &Reader<'m>, view: &ViewType, tile: &Tile, span: Span) -> Built<()> {
        let Some(lead) = view.dims.len().checked_sub(2) else {
            return refuse(
                span,
                format!("`{}`: a tile lies in a view of rank 2 or more, found rank {}", reader.name(), view.dims.len()),
            );
        };
        for (dim, size) in view.dims[lead..].iter().zip(tile.shape.into_iter().flatten()) {
            if dim.constant().is_some_and(|extent| extent < u64::from(size)) {
                return refuse(tile.span, format!("`{}`: a tile of {size} along an extent of {dim}", reader.name()));
            }
        }
        Ok(())
    }

    /// `<role> %w[i, j] shape [..] [using {..}] [{cache}] : view -> T`.
    fn fragment_load(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let role = self.role(reader)?;
        let (view, view_ty, view_span) = self.view_operand(reader)?;
        let indices = self.view_indices(reader, &view_ty, view_span)?;
        let tile = self.tile(reader, role)?;
        let schema = self.using(reader)?;
        self.cache_hints(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, view)?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        let result = self.vector_type(reader)?;
        reader.end()?;
        self.check_tile(reader, &view_ty, &tile, view_span)?;
        let Some(shape) = tile.shape else {
            return Ok(one(self.new_value(Type::Vector(result))));
        };
        let (fragment, format) = match self.unrounded(&tile, shape, &result) {
            Some(fragment) if schema.is_none() => (fragment, None),
            _ => self.payload(reader, &tile, shape, &result, schema, span)?,
        };
        let (memory, payload) = (view_ty.element, result.element);
        let packed = payload.is_integer() && !role.is_accumulator();
        // Of a packed operand the elements of the view are the numbers themselves.
        let legal = if packed {
            let number =
                format.filter(|format| format.bits() == 8).map(|format| format.float().unwrap_or(ScalarType::I8));
            number == Some(memory)
        } else {
            memory == payload || converts(memory) && converts(payload)
        };
        if !legal {
            let message = format!(
                "`{}`: elements of {memory} do not become a payload of {}; legal: the same type, another float of 16 or more \
                 bits, or i8 and fp8 into words",
                reader.name(),
                Type::Vector(result)
            );
            return refuse(view_span, message);
        }
        let mut operands = vec![view];
        operands.extend(indices);
        let loaded = self.emit_here(OpKind::FragmentLoad(fragment), &operands, vector_of(memory, fragment.slots()));
        let value = self.as_float(loaded, payload);
        let ty = Type::Vector(result);
        let value = if *self.ty(value) == ty {
            value
        } else {
            self.emit(OpKind::Convert(Convert::Bitcast), &[value], ty.clone())
        };
        Ok(one(match format {
            // Says which numbers the words hold.
            Some(format) if packed => self.emit(OpKind::FragmentLabel(fragment, Some(format)), &[value], ty),
            _ => value,
        }))
    }

    /// A vector of floats in elements of `to`: widened, or rounded once. Other elements stay as they are.
    fn as_float(&mut self, value: ValueId, to: ScalarType) -> ValueId {
        let ty = self.ty(value).clone();
        let Some(from) = ty.element().filter(|from| *from != to && converts(*from) && converts(to)) else {
            return value;
        };
        let into = |element: ScalarType| super::element::with_element(&ty, element);
        if from.bits() == to.bits() {
            // f16 and bf16 have no order: through the float that holds both.
            let wide = self.emit(OpKind::Convert(Convert::ExtF), &[value], into(ScalarType::F32));
            return self.emit(OpKind::Convert(Convert::TruncF), &[wide], into(to));
        }
        let kind = if from.bits() < to.bits() { Convert::ExtF } else { Convert::TruncF };
        self.emit(OpKind::Convert(kind), &[value], into(to))
    }

    /// `<role> %v, %w[i, j] shape [..] [{cache}] : T, view`.
    fn fragment_store(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let role = self.role(reader)?;
        let span = reader.here();
        let value = self.operand(reader)?;
        reader.expect(Kind::Comma)?;
        let (view, view_ty, view_span) = self.view_operand(reader)?;
        let indices = self.view_indices(reader, &view_ty, view_span)?;
        let tile = self.tile(reader, role)?;
        let schema = self.using(reader)?;
        self.cache_hints(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, view)?;
        reader.end()?;
        let Type::Vector(vector) = self.ty(value).clone() else {
            return refuse(span, format!("`{}`: expected a vector, found {}", reader.name(), self.ty(value)));
        };
        self.check_tile(reader, &view_ty, &tile, view_span)?;
        let Some(shape) = tile.shape else {
            return Ok(Vec::new());
        };
        let (fragment, _) = self.payload(reader, &tile, shape, &vector, schema, span)?;
        let (memory, payload) = (view_ty.element, vector.element);
        let one_each = vector.lanes() == Some(u64::from(fragment.slots()));
        if !one_each || memory != payload && !(converts(memory) && converts(payload)) {
            let message = format!(
                "`{}`: a payload of {} does not become elements of {memory}; legal: the same type, or another float of 16 or \
                 more bits",
                reader.name(),
                Type::Vector(vector)
            );
            return refuse(span, message);
        }
        let value = self.as_float(value, memory);
        let mut operands = vec![value, view];
        operands.extend(indices);
        self.push(OpKind::FragmentStore(fragment), &operands, Vec::new(), Vec::new());
        Ok(Vec::new())
    }

    /// `<role> %d shape [..] : T -> U`: an accumulator, laid out as the role says.
    fn fragment_repack(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let role = self.role(reader)?;
        let span = reader.here();
        let value = self.operand(reader)?;
        let tile = self.tile(reader, role)?;
        let schema = self.using(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Arrow)?;
        let result_span = reader.here();
        let result = self.vector_type(reader)?;
        reader.end()?;
        let Type::Vector(vector) = self.ty(value).clone() else {
            return refuse(span, format!("`{}`: expected a vector, found {}", reader.name(), self.ty(value)));
        };
        let Some(shape) = tile.shape else {
            return Ok(one(self.new_value(Type::Vector(result))));
        };
        let source = Tile { role: Role::Result, shape: tile.shape, span: tile.span };
        if shape != [TILE; 2] {
            let [rows, columns] = shape;
            let message =
                format!("`{}`: an accumulator is a tile of [16, 16], found [{rows}, {columns}]", reader.name());
            return refuse(tile.span, message);
        }
        let (from, _) = self.payload(reader, &source, shape, &vector, None, span)?;
        let (to, _) = self.payload(reader, &tile, shape, &result, schema, result_span)?;
        if vector.element != result.element && !(converts(vector.element) && converts(result.element)) {
            let message = format!(
                "`{}`: the elements of {} do not become those of {}; legal: the same type, or another float of 16 or more bits",
                reader.name(),
                Type::Vector(vector),
                Type::Vector(result)
            );
            return refuse(span, message);
        }
        let value = self.as_float(value, result.element);
        Ok(one(self.emit_here(OpKind::FragmentRepack { from, to }, &[value], Type::Vector(result))))
    }

    /// `%a, %b, %c : A, B, C`.
    fn mma(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let mut operands = Vec::new();
        for at in 0..3 {
            if at > 0 {
                reader.expect(Kind::Comma)?;
            }
            let span = reader.here();
            operands.push((self.operand(reader)?, span));
        }
        reader.expect(Kind::Colon)?;
        self.all_typed(reader, operands.iter().map(|(value, _)| *value))?;
        reader.end()?;
        let sum_ty = self.ty(operands[2].0).clone();
        let groups = u64::from(self.subgroup_size / TILE);
        let mut parts = Vec::new();
        for ((value, span), role) in operands.iter().zip([Role::Lhs, Role::Rhs, Role::Init]) {
            let Type::Vector(vector) = self.ty(*value).clone() else {
                return refuse(*span, format!("`vector.mma`: expected a vector, found {}", self.ty(*value)));
            };
            let Some(count) = vector.lanes() else {
                return Ok(one(self.new_value(sum_ty)));
            };
            // Without a label that says otherwise, a word holds bytes, and two words a tile of nibbles.
            let depth = match vector.element.bits() {
                _ if role.is_accumulator() => u64::from(TILE),
                bits if vector.element.is_integer() => {
                    let bytes = count * u64::from(bits) / 8 * if self.splits_operands() { groups } else { 1 };
                    if bytes == 8 { 16 } else { bytes }
                }
                _ if self.splits_operands() || count < u64::from(TILE) => count * groups,
                _ => count,
            };
            let depth = u32::try_from(depth).unwrap_or(u32::MAX);
            let shape = match role {
                Role::Lhs => [TILE, depth],
                Role::Rhs => [depth, TILE],
                Role::Init | Role::Result => [TILE; 2],
            };
            let whole = depth.is_multiple_of(TILE) && (TILE..=MAX_DEPTH).contains(&depth);
            if !whole {
                let message = format!(
                    "`vector.mma`: a {} holds a multiple of {TILE} elements up to {MAX_DEPTH}, found {}",
                    role.name(),
                    Type::Vector(vector)
                );
                return refuse(*span, message);
            }
            let tile = Tile { role, shape: Some(shape), span: *span };
            parts.push((self.payload(reader, &tile, shape, &vector, None, *span)?, depth));
        }
        let [((a, Some(lhs)), depth), ((_, Some(rhs)), other), ((sum, _), _)] = parts[..] else {
            return refuse(reader.span(), "`vector.mma` takes an lhs, an rhs and an init");
        };
        if depth != other {
            let message = format!("`vector.mma`: the lhs has {depth} columns, the rhs {other} rows");
            return refuse(operands[1].1, message);
        }
        // As `flow` finds once the body is there, unless nothing laid the operands out.
        let product = Product { depth, lhs, rhs, sum, split: a.split };
        let values: Vec<ValueId> = operands.into_iter().map(|(value, _)| value).collect();
        Ok(one(self.emit_here(OpKind::Mma(product), &values, sum_ty)))
    }

    /// `%s`: a schema, and the numbers it says.
    fn schema(&mut self, reader: &mut Reader<'m>) -> Built<Option<Format>> {
        let (name, span) = reader.value_name()?;
        match self.names.get(name) {
            Some(Binding::Reported) => Err(crate::diag::Refusal::Reported),
            Some(Binding::Encoding(encoding)) => match encoding.operand_format() {
                Ok(format) => Ok(Some(format)),
                Err(found) => refuse(
                    span,
                    format!(
                        "`{}`: `{found}` has no public layout of a fragment; legal: f16, bf16, f8e4m3, f8e5m2, i8, u8, i4, u4",
                        reader.name()
                    ),
                ),
            },
            _ => refuse(span, format!("`%{name}` is not a schema")),
        }
    }
}
