//! The part of `vector.*` that is not element-wise and not memory.
//!
//! Static movements of lanes are all [`OpKind::Lanes`]: each op here only says which lane comes from where.

use crate::diag::{Built, refuse};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Binary, Combine, Convert, OpKind};
use crate::reader::Reader;
use crate::types::{ScalarType, Type, VectorType};

use super::element::{Dialect, near, with_element};
use super::names::Binding;
use super::types::same;
use super::{Builder, Mode, one};

pub(super) const COMBINES: &str = "one of addi, addf, muli, mulf, minsi, maxsi, minui, maxui, andi, ori, xori, minimumf, \
                                   maximumf, minnumf, maxnumf";

pub(super) fn combine(word: &str) -> Option<Combine> {
    Some(match word {
        "addi" => Combine::AddI,
        "addf" => Combine::AddF,
        "muli" => Combine::MulI,
        "mulf" => Combine::MulF,
        "minsi" => Combine::MinSI,
        "maxsi" => Combine::MaxSI,
        "minui" => Combine::MinUI,
        "maxui" => Combine::MaxUI,
        "andi" => Combine::AndI,
        "ori" => Combine::OrI,
        "xori" => Combine::XorI,
        "minimumf" => Combine::MinimumF,
        "maximumf" => Combine::MaximumF,
        "minnumf" => Combine::MinNumF,
        "maxnumf" => Combine::MaxNumF,
        _ => return None,
    })
}

/// Static extents of a vector: known, since it was read in a mode where they must be, or there is nothing to emit.
pub(super) fn extents(vector: &VectorType) -> Option<Vec<usize>> {
    vector.dims.iter().map(|dim| dim.constant().map(|extent| extent as usize)).collect()
}

/// Calls `lane` with each position of `extents` in row-major order.
pub(super) fn positions(extents: &[usize], mut lane: impl FnMut(&[usize])) {
    let total: usize = extents.iter().product();
    let mut at = vec![0; extents.len()];
    for _ in 0..total {
        lane(&at);
        for axis in (0..extents.len()).rev() {
            at[axis] += 1;
            if at[axis] < extents[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}

/// The row-major number of a position.
pub(super) fn flat(extents: &[usize], at: &[usize]) -> usize {
    extents.iter().zip(at).fold(0, |flat, (extent, at)| flat * extent + at)
}

impl<'m> Builder<'m> {
    /// `vector.*`.
    pub(super) fn vector_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "constant" => self.constant_op(reader, Dialect::Vector),
            // What neither holds must not be seen.
            "poison" | "empty" => {
                reader.expect(Kind::Colon)?;
                let vector = self.vector_type(reader)?;
                reader.end()?;
                Ok(one(self.constant(Type::Vector(vector), 0)))
            }
            "splat" => self.splat(reader),
            "from_elements" => self.elements(reader),
            "iota" => self.iota(reader),
            "mask.range" => self.mask_range(reader),
            "select" => self.vector_select(reader),
            "extract" => self.extract(reader),
            "insert" => self.insert(reader),
            "reduce" => self.reduce(reader),
            "dotf" => self.dot(reader),
            "load" => self.load(reader, true),
            "store" => self.store(reader, true),
            "gather" => self.gather(reader, false),
            "gather.mask" => self.gather(reader, true),
            "scatter" => self.scatter(reader, false),
            "scatter.mask" => self.scatter(reader, true),
            "load.expand" => self.load_expand(reader),
            "store.compress" => self.store_compress(reader),
            "load.mask" => self.load_mask(reader),
            "store.mask" => self.store_mask(reader),
            "atomic.reduce" | "atomic.reduce.mask" | "atomic.rmw" | "atomic.rmw.mask" | "atomic.cmpxchg" => {
                self.atomic(reader, op, true)
            }
            "slice" | "concat" | "broadcast" | "transpose" | "shuffle" | "interleave" | "deinterleave" => {
                self.move_lanes(reader, op)
            }
            "fragment" | "fragment.load" | "fragment.store" | "fragment.repack" | "mma" => self.fragment_op(reader, op),
            "decode" => self.decode(reader),
            "encode" => self.encode(reader),
            "transform" => refuse(
                reader.span(),
                "`vector.transform`: encodings of role `transform` have no public definition, so it is not compiled",
            ),
            _ => {
                if let Some(results) = self.packed_op(reader, op)? {
                    return Ok(results);
                }
                match self.element_op(reader, op, Dialect::Vector)? {
                    Some(results) => Ok(results),
                    None => {
                        let legal = "the element-wise ops, and vector.constant, poison, empty, splat, from_elements, iota, mask.range, \
                         select, extract, insert, reduce, reduce.axes, dotf, dot2f, dot4i, dot8i4, dot4f8, bitpack, \
                         bitunpacku, bitunpacks, table.lookup, table.quantize, decode, encode, load, store, load.mask, \
                         store.mask, load.expand, store.compress, gather, gather.mask, scatter, scatter.mask, slice, concat, \
                         broadcast, transpose, shuffle, interleave, deinterleave, fragment, fragment.load, fragment.store, \
                         fragment.repack, mma, atomic.reduce, atomic.reduce.mask, atomic.rmw, atomic.rmw.mask, \
                         atomic.cmpxchg";
                        self.unknown(reader, &(legal.to_owned() + &near(op)))
                    }
                }
            }
        }
    }

    fn splat(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let scalar = self.operand(reader)?;
        reader.expect(Kind::Colon)?;
        let vector = self.vector_type(reader)?;
        reader.end()?;
        self.require(reader, scalar, span, vector.element)?;
        Ok(one(self.emit(OpKind::Splat, &[scalar], Type::Vector(vector))))
    }

    fn elements(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let operands = self.operands(reader)?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        let vector = self.vector_type(reader)?;
        reader.end()?;
        if vector.lanes().is_some_and(|lanes| lanes != operands.len() as u64) {
            let message = format!("{} elements for {}", operands.len(), Type::Vector(vector));
            return refuse(span, format!("`vector.from_elements`: {message}"));
        }
        for (operand, span) in &operands {
            self.require(reader, *operand, *span, vector.element)?;
        }
        let operands: Vec<_> = operands.into_iter().map(|(value, _)| value).collect();
        Ok(one(self.emit(OpKind::FromElements, &operands, Type::Vector(vector))))
    }

    fn iota(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let base_span = reader.here();
        let base = self.operand(reader)?;
        reader.expect_word("step")?;
        let step_span = reader.here();
        let step = self.operand(reader)?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        let vector = self.vector_type(reader)?;
        reader.end()?;
        if vector.element == ScalarType::I1 {
            return refuse(span, "`vector.iota` has lanes of numbers, found i1".to_owned());
        }
        self.require(reader, base, base_span, vector.element)?;
        self.require(reader, step, step_span, vector.element)?;
        if vector.element.is_float() {
            // The product and the sum are each rounded, as where a text writes them out.
            let ty = Type::Vector(vector);
            let lanes = with_element(&ty, ScalarType::I32);
            let [zero, one_more] = [0, 1].map(|lane| self.constant(Type::Scalar(ScalarType::I32), lane));
            let lanes = self.emit(OpKind::Iota, &[zero, one_more], lanes);
            let lanes = self.emit(OpKind::Convert(Convert::SiToF), &[lanes], ty.clone());
            let [base, step] = [base, step].map(|value| self.emit(OpKind::Splat, &[value], ty.clone()));
            let product = self.binary(Binary::MulF, lanes, step);
            return Ok(one(self.binary(Binary::AddF, base, product)));
        }
        Ok(one(self.emit(OpKind::Iota, &[base, step], Type::Vector(vector))))
    }

    /// `[%lo to %hi step %s] : index -> vector<8xi1>`.
    fn mask_range(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        reader.expect(Kind::BracketOpen)?;
        let mut operands = [ValueId(0); 3];
        for (at, word) in ["to", "step", ""].into_iter().enumerate() {
            let span = reader.here();
            operands[at] = self.bound(reader, ScalarType::Index)?;
            self.require(reader, operands[at], span, ScalarType::Index)?;
            if !word.is_empty() {
                reader.expect_word(word)?;
            }
        }
        reader.expect(Kind::BracketClose)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, operands[0])?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        let vector = self.vector_type(reader)?;
        reader.end()?;
        if vector.element != ScalarType::I1 || vector.dims.len() != 1 {
            return refuse(span, format!("a range mask is a vector of i1 of rank 1, found {}", Type::Vector(vector)));
        }
        Ok(one(self.emit(OpKind::MaskRange, &operands, Type::Vector(vector))))
    }

    /// A value, or an integer of type `ty`.
    pub(super) fn bound(&mut self, reader: &mut Reader<'m>, ty: ScalarType) -> Built<ValueId> {
        if reader.peek() == Some(Kind::Int) {
            let (value, _) = reader.int()?;
            return Ok(self.constant(Type::Scalar(ty), value as u64));
        }
        self.operand(reader)
    }

    fn vector_select(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let operands = self.same_operands::<3>(reader)?;
        reader.expect(Kind::Colon)?;
        let type_span = reader.here();
        let ty = Type::Vector(self.vector_type(reader)?);
        self.check_type(reader, operands[1], &ty, type_span)?;
        self.check_type(reader, operands[2], &ty, type_span)?;
        reader.end()?;
        let mask = super::element::with_element(&ty, ScalarType::I1);
        if *self.ty(operands[0]) != mask {
            return refuse(span, format!("`vector.select`: the mask is {mask}, found {}", self.ty(operands[0])));
        }
        Ok(one(self.emit(OpKind::Select, &operands, ty)))
    }

    pub(super) fn vector_operand(&mut self, reader: &mut Reader<'m>) -> Built<(ValueId, VectorType)> {
        let span = reader.here();
        let value = self.operand(reader)?;
        match self.ty(value) {
            Type::Vector(vector) => Ok((value, vector.clone())),
            other => refuse(span, format!("`{}`: expected a vector, found {other}", reader.name())),
        }
    }

    /// At most one index per dimension, those that are written as numbers inside their extent; and the type of what they name.
    fn lane_indices(&mut self, reader: &mut Reader<'m>, vector: &VectorType) -> Built<(Vec<ValueId>, Type)> {
        let span = reader.here();
        let indices = self.indices(reader)?;
        if indices.is_empty() || indices.len() > vector.dims.len() {
            let message = format!("{} indices for a vector of rank {}", indices.len(), vector.dims.len());
            return refuse(span, format!("`{}`: {message}", reader.name()));
        }
        for ((index, span), dim) in indices.iter().zip(&vector.dims) {
            if dim.constant() == Some(0) {
                return refuse(*span, "an extent of 0 has no lanes");
            }
            if let (Some(index), Some(extent)) = (self.constant_of(*index), dim.constant())
                && index >= extent
                && self.is_written(*span)
            {
                return refuse(*span, format!("lane {} is outside the extent {extent}", index as i64));
            }
        }
        let rest = &vector.dims[indices.len()..];
        let part = if rest.is_empty() {
            Type::Scalar(vector.element)
        } else {
            Type::Vector(VectorType { element: vector.element, dims: rest.to_vec() })
        };
        Ok((indices.into_iter().map(|(index, _)| index).collect(), part))
    }

    fn extract(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (value, vector) = self.vector_operand(reader)?;
        let (indices, part) = self.lane_indices(reader, &vector)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        let result = self.plain_type(reader)?;
        reader.end()?;
        if result != part {
            return refuse(span, format!("`vector.extract`: these indices name {part}, found {result}"));
        }
        let mut operands = vec![value];
        operands.extend(indices);
        Ok(one(self.emit(OpKind::Extract, &operands, result)))
    }

    fn insert(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let part = self.operand(reader)?;
        reader.expect_word("into")?;
        let (value, vector) = self.vector_operand(reader)?;
        let (indices, named) = self.lane_indices(reader, &vector)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, part)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, value)?;
        reader.end()?;
        if *self.ty(part) != named {
            return refuse(span, format!("`vector.insert`: these indices name {named}, found {}", self.ty(part)));
        }
        let mut operands = vec![part, value];
        operands.extend(indices);
        Ok(one(self.emit(OpKind::Insert, &operands, Type::Vector(vector))))
    }

    /// The element must be of the kind that is combined.
    pub(super) fn check_combine(
        &self,
        reader: &Reader<'m>,
        kind: Combine,
        element: ScalarType,
        span: Span,
    ) -> Built<()> {
        let bitwise = matches!(kind, Combine::AndI | Combine::OrI | Combine::XorI);
        let legal = if kind.binary().is_float() {
            element.is_float() && element.bits() >= 16
        } else {
            !element.is_float() && (element != ScalarType::I1 || bitwise)
        };
        if legal { Ok(()) } else { refuse(span, format!("`{}`: {element} is not combined this way", reader.name())) }
    }

    /// `<kind[, flags]> %v, %init : vector, T`.
    fn reduce(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let kind = self.keyword_and_flags(reader, COMBINES, combine)?;
        let span = reader.here();
        let (value, vector) = self.vector_operand(reader)?;
        reader.expect(Kind::Comma)?;
        let init_span = reader.here();
        let init = self.operand(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        reader.expect(Kind::Comma)?;
        self.typed(reader, init)?;
        reader.end()?;
        self.require(reader, init, init_span, vector.element)?;
        self.check_combine(reader, kind, vector.element, span)?;
        Ok(one(self.emit(OpKind::Reduce(kind), &[value, init], Type::Scalar(vector.element))))
    }

    /// `%a, %b, %acc : vector, vector, T`.
    fn dot(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        self.element_flags(reader)?;
        let span = reader.here();
        let operands = self.same_operands::<3>(reader)?;
        reader.expect(Kind::Colon)?;
        self.all_typed(reader, operands.iter().copied())?;
        reader.end()?;
        let [a, b, acc] = operands;
        let element = match (self.ty(a), self.ty(b), self.ty(acc)) {
            (Type::Vector(left), Type::Vector(right), Type::Scalar(acc))
                if left == right && left.element == *acc && acc.is_float() && acc.bits() >= 16 =>
            {
                *acc
            }
            (a, b, acc) => {
                return refuse(
                    span,
                    format!("`vector.dotf` takes two equal float vectors and their element, found {a}, {b}, {acc}"),
                );
            }
        };
        Ok(one(self.emit(OpKind::Dot, &operands, Type::Scalar(element))))
    }

    /// `<int>`, or `<[int, ..]>`.
    fn static_ints(&self, reader: &mut Reader<'m>) -> Built<Vec<usize>> {
        reader.expect(Kind::Less)?;
        let list = reader.accept(Kind::BracketOpen);
        let mut ints = Vec::new();
        loop {
            let (value, span) = reader.int()?;
            match usize::try_from(value) {
                Ok(value) => ints.push(value),
                Err(_) => return refuse(span, "expected an integer that is not negative"),
            }
            if !list || !reader.accept(Kind::Comma) {
                break;
            }
        }
        if list {
            reader.expect(Kind::BracketClose)?;
        }
        reader.expect(Kind::Greater)?;
        Ok(ints)
    }

    /// `vector.slice/concat/broadcast/transpose/shuffle/interleave/deinterleave`.
    fn move_lanes(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        let numbers = if matches!(op, "slice" | "broadcast") { Vec::new() } else { self.static_ints(reader)? };
        let span = reader.here();
        let mut operands = Vec::new();
        loop {
            operands.push(self.vector_operand(reader)?);
            if !reader.accept(Kind::Comma) {
                break;
            }
        }
        let origin = if op == "slice" { self.indices(reader)? } else { Vec::new() };
        reader.expect(Kind::Colon)?;
        self.all_typed(reader, operands.iter().map(|(operand, _)| *operand))?;
        let mut results = Vec::new();
        if reader.accept(Kind::Arrow) {
            loop {
                results.push(self.vector_type(reader)?);
                if !reader.accept(Kind::Comma) {
                    break;
                }
            }
        } else {
            results.push(operands[0].1.clone());
        }
        reader.end()?;
        let all = operands.iter().map(|(_, vector)| vector).chain(&results);
        let Some(shapes) = all.map(extents).collect::<Option<Vec<_>>>() else {
            // Only while config is unknown: nothing can be said of the lanes yet.
            let unknown = results.into_iter().map(|vector| Binding::Value(self.new_value(Type::Vector(vector))));
            return Ok(unknown.collect());
        };
        let (sources, targets) = shapes.split_at(operands.len());
        let mut start = Vec::new();
        for (index, span) in origin {
            match self.constant_of(index) {
                Some(at) => start.push(at as usize),
                None if self.mode == Mode::Verify => start.push(0),
                None => return refuse(span, "the origin of a slice is constant"),
            }
        }
        let element = operands[0].1.element;
        let one_element =
            operands.iter().map(|(_, vector)| vector).chain(&results).all(|vector| vector.element == element);
        let lanes = if one_element { lane_maps(op, &numbers, &start, sources, targets) } else { None };
        let Some(lanes) = lanes else {
            let spelled = |vector: VectorType| Type::Vector(vector).to_string();
            let from: Vec<String> = operands.into_iter().map(|(_, vector)| spelled(vector)).collect();
            let to: Vec<String> = results.into_iter().map(spelled).collect();
            let (from, to) = (from.join(", "), to.join(", "));
            let message = format!("`{}`: {from} to {to} do not fit; legal: {}", reader.name(), fitting(op));
            return refuse(span, message);
        };
        let values: Vec<ValueId> = operands.into_iter().map(|(value, _)| value).collect();
        let mut bindings = Vec::new();
        for (map, vector) in lanes.into_iter().zip(results) {
            let same_lanes = values.len() == 1 && map.iter().enumerate().all(|(at, lane)| at == *lane as usize);
            let ty = Type::Vector(vector);
            let value = if same_lanes && same(self.ty(values[0]), &ty) {
                values[0]
            } else {
                self.emit(OpKind::Lanes(map.into_boxed_slice()), &values, ty)
            };
            bindings.push(Binding::Value(value));
        }
        Ok(bindings)
    }

    /// A vector type of rank 1 or a scalar: what moves between work-items.
    pub(super) fn check_exchanged(&self, reader: &Reader<'m>, value: ValueId, span: Span) -> Built<ScalarType> {
        match self.ty(value) {
            Type::Scalar(scalar) => Ok(*scalar),
            Type::Vector(VectorType { element, dims }) if dims.len() == 1 => Ok(*element),
            other => refuse(span, format!("`{}` takes a scalar or a vector of rank 1, found {other}", reader.name())),
        }
    }
}

/// Which shapes `lane_maps` finds lanes for.
fn fitting(op: &str) -> &'static str {
    match op {
        "slice" => "a part that lies inside the operand, of its rank and element type",
        "concat" => "vectors that differ along the axis alone, where their extents add up to the result's",
        "transpose" => {
            "each axis of the operand once; extent i of the result is that of the operand's axis i of the list"
        }
        "shuffle" => "a vector of rank 1, and for each of its lanes the number of one",
        "broadcast" => "trailing extents of the result that are the operand's, or 1 in the operand",
        _ => "two equal narrow vectors, and a wide one of twice their extent along the axis",
    }
}

/// For each result, which lane of the operands laid end to end each of its lanes is; `None` if the shapes do not fit.
fn lane_maps(
    op: &str,
    numbers: &[usize],
    start: &[usize],
    sources: &[Vec<usize>],
    targets: &[Vec<usize>],
) -> Option<Vec<Vec<u32>>> {
    let source = sources.first()?;
    let target = targets.first()?;
    let mut maps = vec![Vec::new(); targets.len()];
    let rank = source.len();
    match (op, sources.len(), targets.len()) {
        ("slice", 1, 1) => {
            let fits = start.len() == rank
                && target.len() == rank
                && (0..rank).all(|axis| start[axis].checked_add(target[axis]).is_some_and(|end| end <= source[axis]));
            if !fits {
                return None;
            }
            positions(target, |at| {
                let from: Vec<usize> = at.iter().zip(start).map(|(at, start)| at + start).collect();
                maps[0].push(flat(source, &from) as u32);
            });
        }
        ("concat", 1.., 1) => {
            let axis = *numbers.first().filter(|axis| **axis < rank)?;
            let mut total = 0;
            for other in sources {
                let fits = other.len() == rank && (0..rank).all(|at| at == axis || other[at] == source[at]);
                if !fits {
                    return None;
                }
                total += other[axis];
            }
            let mut expected = source.clone();
            expected[axis] = total;
            if *target != expected {
                return None;
            }
            positions(target, |at| {
                let mut from = at.to_vec();
                let mut base = 0;
                for other in sources {
                    if from[axis] < other[axis] {
                        maps[0].push((base + flat(other, &from)) as u32);
                        return;
                    }
                    from[axis] -= other[axis];
                    base += other.iter().product::<usize>();
                }
            });
        }
        ("broadcast", 1, 1) => {
            let lead = target.len().checked_sub(rank)?;
            if !(0..rank).all(|axis| source[axis] == 1 || source[axis] == target[lead + axis]) {
                return None;
            }
            positions(target, |at| {
                let from: Vec<usize> =
                    (0..rank).map(|axis| if source[axis] == 1 { 0 } else { at[lead + axis] }).collect();
                maps[0].push(flat(source, &from) as u32);
            });
        }
        ("transpose", 1, 1) => {
            let mut sorted = numbers.to_vec();
            sorted.sort_unstable();
            if sorted != (0..rank).collect::<Vec<_>>() || target.len() != rank {
                return None;
            }
            if !(0..rank).all(|axis| target[axis] == source[numbers[axis]]) {
                return None;
            }
            positions(target, |at| {
                let mut from = vec![0; rank];
                for axis in 0..rank {
                    from[numbers[axis]] = at[axis];
                }
                maps[0].push(flat(source, &from) as u32);
            });
        }
        ("shuffle", 1, 1) => {
            if rank != 1
                || target != source
                || numbers.len() != source[0]
                || numbers.iter().any(|lane| *lane >= source[0])
            {
                return None;
            }
            maps[0] = numbers.iter().map(|lane| *lane as u32).collect();
        }
        ("interleave", 2, 1) => {
            let axis = *numbers.first().filter(|axis| **axis < rank)?;
            let mut expected = source.clone();
            expected[axis] *= 2;
            if sources[1] != *source || *target != expected {
                return None;
            }
            let lanes: usize = source.iter().product();
            positions(target, |at| {
                let mut from = at.to_vec();
                from[axis] /= 2;
                maps[0].push(((at[axis] % 2) * lanes + flat(source, &from)) as u32);
            });
        }
        ("deinterleave", 1, 2) => {
            let axis = *numbers.first().filter(|axis| **axis < rank)?;
            let mut expected = source.clone();
            expected[axis] /= 2;
            if source[axis] % 2 != 0 || targets.iter().any(|target| *target != expected) {
                return None;
            }
            for (odd, map) in maps.iter_mut().enumerate() {
                positions(target, |at| {
                    let mut from = at.to_vec();
                    from[axis] = 2 * from[axis] + odd;
                    map.push(flat(source, &from) as u32);
                });
            }
        }
        _ => return None,
    }
    Some(maps)
}
