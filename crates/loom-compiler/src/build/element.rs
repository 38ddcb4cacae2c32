//! `index.*`, `scalar.*` and the element-wise part of `vector.*`: three spellings of the same ops.

use crate::diag::{Built, refuse};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Binary, Classify, Convert, Flags, FloatPredicate, IntPredicate, OpKind, Ternary, Unary};
use crate::reader::{Attribute, Reader};
use crate::spelling;
use crate::types::{ScalarType, Type, VectorType};

use super::names::Binding;
use super::types::literal_bits;
use super::{Builder, one};

/// Which dialect spells the op: it decides the types that are legal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Index,
    Scalar,
    Vector,
}

/// What an element-wise op takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// i8 to i64 (in vectors `index` and `offset` too).
    Integer,
    /// The same, and i1.
    Bits,
    /// f16, bf16, f32, f64.
    Float,
    /// Every float, fp8 too: only sign bits are touched.
    FloatBits,
}

/// What `table` has for `name`.
fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, op)| *op)
}

const UNARY: [(&str, Unary); 43] = [
    ("negi", Unary::NegI),
    ("absi", Unary::AbsI),
    ("ctlzi", Unary::CtlzI),
    ("cttzi", Unary::CttzI),
    ("ctpopi", Unary::CtpopI),
    ("signi", Unary::SignI),
    ("negf", Unary::NegF),
    ("absf", Unary::AbsF),
    ("signf", Unary::SignF),
    ("ceilf", Unary::CeilF),
    ("floorf", Unary::FloorF),
    ("truncf", Unary::TruncF),
    ("roundf", Unary::RoundF),
    ("roundevenf", Unary::RoundEvenF),
    ("expf", Unary::ExpF),
    ("exp2f", Unary::Exp2F),
    ("expm1f", Unary::Expm1F),
    ("logf", Unary::LogF),
    ("log2f", Unary::Log2F),
    ("log10f", Unary::Log10F),
    ("log1pf", Unary::Log1pF),
    ("sqrtf", Unary::SqrtF),
    ("rsqrtf", Unary::RsqrtF),
    ("cbrtf", Unary::CbrtF),
    ("sinf", Unary::SinF),
    ("cosf", Unary::CosF),
    ("tanf", Unary::TanF),
    ("asinf", Unary::AsinF),
    ("acosf", Unary::AcosF),
    ("atanf", Unary::AtanF),
    ("sinhf", Unary::SinhF),
    ("coshf", Unary::CoshF),
    ("tanhf", Unary::TanhF),
    ("asinhf", Unary::AsinhF),
    ("acoshf", Unary::AcoshF),
    ("atanhf", Unary::AtanhF),
    ("erff", Unary::ErfF),
    ("erfcf", Unary::ErfcF),
    ("sinturnsf", Unary::SinTurnsF),
    ("costurnsf", Unary::CosTurnsF),
    ("logisticf", Unary::LogisticF),
    ("siluf", Unary::SiluF),
    ("softplusf", Unary::SoftplusF),
];

fn unary(name: &str) -> Option<Unary> {
    named(&UNARY, name)
}

const BINARY: [(&str, Binary); 34] = [
    ("addi", Binary::AddI),
    ("subi", Binary::SubI),
    ("muli", Binary::MulI),
    ("divsi", Binary::DivSI),
    ("remsi", Binary::RemSI),
    ("divui", Binary::DivUI),
    ("remui", Binary::RemUI),
    ("ceildivsi", Binary::CeilDivSI),
    ("ceildivui", Binary::CeilDivUI),
    ("floordivsi", Binary::FloorDivSI),
    ("minsi", Binary::MinSI),
    ("maxsi", Binary::MaxSI),
    ("minui", Binary::MinUI),
    ("maxui", Binary::MaxUI),
    ("andi", Binary::AndI),
    ("ori", Binary::OrI),
    ("xori", Binary::XorI),
    ("shli", Binary::ShlI),
    ("shrsi", Binary::ShrSI),
    ("shrui", Binary::ShrUI),
    ("rotli", Binary::RotLI),
    ("rotri", Binary::RotRI),
    ("addf", Binary::AddF),
    ("subf", Binary::SubF),
    ("mulf", Binary::MulF),
    ("divf", Binary::DivF),
    ("remf", Binary::RemF),
    ("copysignf", Binary::CopySignF),
    ("minnumf", Binary::MinNumF),
    ("maxnumf", Binary::MaxNumF),
    ("minimumf", Binary::MinimumF),
    ("maximumf", Binary::MaximumF),
    ("powf", Binary::PowF),
    ("atan2f", Binary::Atan2F),
];

fn binary(name: &str) -> Option<Binary> {
    named(&BINARY, name)
}

/// The unary ops of `index`.
fn index_unary(name: &str) -> Option<Unary> {
    matches!(name, "ctlzi" | "cttzi" | "ctpopi").then(|| unary(name)).flatten()
}

/// The binary ops of `index`, and whether `offset` may have them.
fn index_binary(name: &str) -> Option<(Binary, bool)> {
    Some(match name {
        "add" => (Binary::AddI, true),
        "sub" => (Binary::SubI, true),
        "mul" => (Binary::MulI, false),
        "div" => (Binary::DivUI, false),
        "rem" => (Binary::RemUI, false),
        "min" => (Binary::MinSI, false),
        "max" => (Binary::MaxSI, false),
        "andi" | "ori" | "xori" | "shli" | "shrsi" | "shrui" | "rotli" | "rotri" => (binary(name)?, false),
        _ => return None,
    })
}

fn unary_class(op: Unary) -> Class {
    match op {
        Unary::NegF | Unary::AbsF => Class::FloatBits,
        op if op.is_float() => Class::Float,
        _ => Class::Integer,
    }
}

fn binary_class(op: Binary) -> Class {
    match op {
        Binary::AndI | Binary::OrI | Binary::XorI => Class::Bits,
        Binary::CopySignF => Class::FloatBits,
        op if op.is_float() => Class::Float,
        _ => Class::Integer,
    }
}

const CONVERT: [(&str, Convert); 10] = [
    ("extsi", Convert::ExtSI),
    ("extui", Convert::ExtUI),
    ("trunci", Convert::TruncI),
    ("sitofp", Convert::SiToF),
    ("uitofp", Convert::UiToF),
    ("fptosi", Convert::FToSi),
    ("fptoui", Convert::FToUi),
    ("extf", Convert::ExtF),
    ("fptrunc", Convert::TruncF),
    ("bitcast", Convert::Bitcast),
];

fn convert(name: &str) -> Option<Convert> {
    named(&CONVERT, name)
}

/// Whether `op` goes from `from` to `to`, and if not, what it does.
fn check_convert(op: Convert, from: ScalarType, to: ScalarType) -> Result<(), &'static str> {
    let arithmetic = |ty: ScalarType| ty.is_float() && ty.bits() >= 16;
    let (legal, says) = match op {
        Convert::ExtSI | Convert::ExtUI => {
            (from.is_integer() && to.is_integer() && from.bits() < to.bits(), "goes from an integer to a wider one")
        }
        Convert::TruncI => {
            (from.is_integer() && to.is_integer() && from.bits() > to.bits(), "goes from an integer to a narrower one")
        }
        Convert::SiToF | Convert::UiToF => {
            (from.is_integer() && arithmetic(to), "goes from i1, i8, i16, i32 or i64 to f16, bf16, f32 or f64")
        }
        Convert::FToSi | Convert::FToUi => (
            arithmetic(from) && to.is_integer() && to != ScalarType::I1,
            "goes from f16, bf16, f32 or f64 to i8, i16, i32 or i64",
        ),
        Convert::ExtF => {
            (from.is_float() && to.is_float() && from.bits() < to.bits(), "goes from a float to a wider one")
        }
        Convert::TruncF => {
            (from.is_float() && to.is_float() && from.bits() > to.bits(), "goes from a float to a narrower one")
        }
        Convert::Bitcast => (!from.is_address() && !to.is_address(), "goes between integers and floats of one width"),
    };
    if legal { Ok(()) } else { Err(says) }
}

const INT_PREDICATES: &str = "one of eq, ne, slt, sle, sgt, sge, ult, ule, ugt, uge";

pub(super) fn int_predicate(word: &str) -> Option<IntPredicate> {
    Some(match word {
        "eq" => IntPredicate::Eq,
        "ne" => IntPredicate::Ne,
        "slt" => IntPredicate::Slt,
        "sle" => IntPredicate::Sle,
        "sgt" => IntPredicate::Sgt,
        "sge" => IntPredicate::Sge,
        "ult" => IntPredicate::Ult,
        "ule" => IntPredicate::Ule,
        "ugt" => IntPredicate::Ugt,
        "uge" => IntPredicate::Uge,
        _ => return None,
    })
}

const FLOAT_PREDICATES: &str = "one of oeq, ogt, oge, olt, ole, one, ord, ueq, ugt, uge, ult, ule, une, uno";

fn float_predicate(word: &str) -> Option<FloatPredicate> {
    Some(match word {
        "oeq" => FloatPredicate::Oeq,
        "ogt" => FloatPredicate::Ogt,
        "oge" => FloatPredicate::Oge,
        "olt" => FloatPredicate::Olt,
        "ole" => FloatPredicate::Ole,
        "one" => FloatPredicate::One,
        "ord" => FloatPredicate::Ord,
        "ueq" => FloatPredicate::Ueq,
        "ugt" => FloatPredicate::Ugt,
        "uge" => FloatPredicate::Uge,
        "ult" => FloatPredicate::Ult,
        "ule" => FloatPredicate::Ule,
        "une" => FloatPredicate::Une,
        "uno" => FloatPredicate::Uno,
        _ => return None,
    })
}

pub(super) const FLAGS: &str =
    "a flag: reassoc, nnan, ninf, nsz, arcp, contract, afn, fast (floats), nsw, nuw (integers)";

pub(super) fn flag(word: &str) -> Option<Flags> {
    Some(match word {
        "reassoc" => Flags::REASSOC,
        "nnan" => Flags::NNAN,
        "ninf" => Flags::NINF,
        "nsz" => Flags::NSZ,
        "arcp" => Flags::ARCP,
        "contract" => Flags::CONTRACT,
        "afn" => Flags::AFN,
        "fast" => Flags::FAST,
        "nsw" => Flags::NSW,
        "nuw" => Flags::NUW,
        _ => return None,
    })
}

const CLASSIFY: [(&str, Classify); 3] =
    [("isnanf", Classify::IsNan), ("isinff", Classify::IsInf), ("isfinitef", Classify::IsFinite)];

fn classify(name: &str) -> Option<Classify> {
    named(&CLASSIFY, name)
}

/// Element-wise ops that are neither of the tables above.
const OTHERS: [&str; 9] =
    ["fmaf", "fmai", "clampf", "geluf", "cmpi", "cmpf", "bitfield.extractu", "bitfield.extracts", "bitfield.insert"];

/// Of the element-wise ops those that are spelt most like `name`, as the end of a refusal; nothing if none is.
pub(super) fn near(name: &str) -> String {
    let unary = UNARY.iter().map(|(name, _)| *name).chain(BINARY.iter().map(|(name, _)| *name));
    let all = unary.chain(CONVERT.iter().map(|(name, _)| *name)).chain(CLASSIFY.iter().map(|(name, _)| *name));
    let found = spelling::nearest(name, all.chain(OTHERS), 3);
    if found.is_empty() { found } else { format!("; spelt most like it: {found}") }
}

/// The same shape with another element type.
pub(super) fn with_element(ty: &Type, element: ScalarType) -> Type {
    match ty {
        Type::Vector(vector) => Type::Vector(VectorType { element, dims: vector.dims.clone() }),
        _ => Type::Scalar(element),
    }
}

impl<'m> Builder<'m> {
    /// `index.*`.
    pub(super) fn index_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        let index = Type::Scalar(ScalarType::Index);
        match op {
            "constant" => return self.constant_op(reader, Dialect::Index),
            "assume" => return self.assume(reader),
            "cast" => return self.index_cast(reader),
            "cmp" => return self.compare(reader, Dialect::Index, true),
            "madd" => {
                let operands = self.same_operands::<3>(reader)?;
                let (ty, span) = self.operand_type(reader, &operands)?;
                self.check_address(reader, &ty, span, false)?;
                let kind = OpKind::Ternary(Ternary::FmaI);
                reader.end()?;
                return Ok(one(self.emit(kind, &operands, ty)));
            }
            "scale" => {
                let [value, stride] = self.same_operands::<2>(reader)?;
                reader.expect(Kind::Colon)?;
                self.typed(reader, value)?;
                reader.expect(Kind::Comma)?;
                self.typed(reader, stride)?;
                reader.expect(Kind::Arrow)?;
                let span = reader.here();
                let result = self.plain_type(reader)?;
                let offset = Type::Scalar(ScalarType::Offset);
                if *self.ty(value) != index || *self.ty(stride) != offset || result != offset {
                    return refuse(span, "`index.scale` goes from (index, offset) to offset");
                }
                reader.end()?;
                let wide = self.emit(OpKind::Convert(Convert::Bitcast), &[value], offset.clone());
                return Ok(one(self.emit(OpKind::Binary(Binary::MulI), &[wide, stride], offset)));
            }
            _ => {}
        }
        if let Some((kind, with_offset)) = index_binary(op) {
            self.element_flags(reader)?;
            let operands = self.same_operands::<2>(reader)?;
            let (ty, span) = self.operand_type(reader, &operands)?;
            self.check_address(reader, &ty, span, with_offset)?;
            reader.end()?;
            return Ok(one(self.emit(OpKind::Binary(kind), &operands, ty)));
        }
        if let Some(kind) = index_unary(op) {
            let operands = self.same_operands::<1>(reader)?;
            let (ty, span) = self.operand_type(reader, &operands)?;
            self.check_address(reader, &ty, span, false)?;
            reader.end()?;
            return Ok(one(self.emit(OpKind::Unary(kind), &operands, ty)));
        }
        self.unknown(
            reader,
            "index.constant, add, sub, mul, madd, scale, div, rem, min, max, andi, ori, xori, shli, shrsi, shrui, rotli, \
             rotri, ctlzi, cttzi, ctpopi, cmp, cast, assume",
        )
    }

    /// `scalar.*`.
    pub(super) fn scalar_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "constant" => self.constant_op(reader, Dialect::Scalar),
            "poison" => {
                reader.expect(Kind::Colon)?;
                let span = reader.here();
                let ty = self.plain_type(reader)?;
                if ty.scalar().is_none() {
                    return refuse(span, format!("`scalar.poison` has a scalar type, found {ty}"));
                }
                reader.end()?;
                // It must not reach anything that can be seen, so any value will do.
                Ok(one(self.constant(ty, 0)))
            }
            "assume" => self.assume(reader),
            _ => match self.element_op(reader, op, Dialect::Scalar)? {
                Some(results) => Ok(results),
                None => {
                    let legal = "scalar.constant, poison, assume, the integer, float, rounding, math, compare, classify and \
                                 conversion ops; values of any type are chosen by scf.select";
                    self.unknown(reader, &(legal.to_owned() + &near(op)))
                }
            },
        }
    }

    /// An element-wise op of `scalar` or `vector`, if `op` is one.
    pub(super) fn element_op(
        &mut self,
        reader: &mut Reader<'m>,
        op: &str,
        dialect: Dialect,
    ) -> Built<Option<Vec<Binding>>> {
        if let Some(kind) = binary(op) {
            self.element_flags(reader)?;
            let operands = self.same_operands::<2>(reader)?;
            let ty = self.element_type(reader, &operands, dialect, binary_class(kind))?;
            self.check_flags(reader, kind.is_float())?;
            return Ok(Some(one(self.emit(OpKind::Binary(kind), &operands, ty))));
        }
        if let Some(kind) = unary(op) {
            self.element_flags(reader)?;
            let operands = self.same_operands::<1>(reader)?;
            let ty = self.element_type(reader, &operands, dialect, unary_class(kind))?;
            let kind = match kind {
                Unary::ExpF if self.flags.0 & Flags::AFN.0 != 0 && ty.element() == Some(ScalarType::F32) => {
                    Unary::ApproximateExpF
                }
                kind => kind,
            };
            return Ok(Some(one(self.emit(OpKind::Unary(kind), &operands, ty))));
        }
        if let Some(kind) = convert(op) {
            return self.convert_op(reader, kind, dialect).map(Some);
        }
        if let Some(class) = classify(op) {
            self.element_flags(reader)?;
            let operands = self.same_operands::<1>(reader)?;
            let ty = self.compared_type(reader, &operands, dialect, Class::Float)?;
            let result = with_element(&ty, ScalarType::I1);
            return Ok(Some(one(self.emit(OpKind::Classify(class), &operands, result))));
        }
        match op {
            "fmaf" | "fmai" => {
                self.element_flags(reader)?;
                let (kind, class) =
                    if op == "fmaf" { (Ternary::FmaF, Class::Float) } else { (Ternary::FmaI, Class::Integer) };
                let operands = self.same_operands::<3>(reader)?;
                let ty = self.element_type(reader, &operands, dialect, class)?;
                Ok(Some(one(self.emit(OpKind::Ternary(kind), &operands, ty))))
            }
            "clampf" => self.clamp(reader, dialect).map(Some),
            "geluf" => self.gelu(reader, dialect).map(Some),
            "cmpi" => self.compare(reader, dialect, true).map(Some),
            "cmpf" => self.compare(reader, dialect, false).map(Some),
            "bitfield.extractu" | "bitfield.extracts" => {
                self.bitfield_extract(reader, dialect == Dialect::Vector, op == "bitfield.extracts").map(Some)
            }
            "bitfield.insert" => self.bitfield_insert(reader, dialect == Dialect::Vector).map(Some),
            _ => Ok(None),
        }
    }

    /// `<reassoc|nnan>`, if there.
    pub(super) fn element_flags(&mut self, reader: &mut Reader<'m>) -> Built<()> {
        if reader.accept(Kind::Less) {
            self.flags_until_close(reader)?;
        }
        Ok(())
    }

    /// Flags of floats and of integers are not each other's.
    fn check_flags(&self, reader: &Reader<'m>, float: bool) -> Built<()> {
        let (others, legal) = if float {
            (Flags::NSW.union(Flags::NUW), "reassoc, nnan, ninf, nsz, arcp, contract, afn or fast")
        } else {
            (Flags::FAST, "nsw or nuw")
        };
        if self.flags.0 & others.0 == 0 {
            return Ok(());
        }
        refuse(reader.span(), format!("`{}` takes the flags {legal}", reader.name()))
    }

    fn flags_until_close(&mut self, reader: &mut Reader<'m>) -> Built<()> {
        loop {
            self.flags = self.flags.union(reader.choose(FLAGS, flag)?);
            if !reader.accept(Kind::Pipe) {
                reader.expect(Kind::Greater)?;
                return Ok(());
            }
        }
    }

    /// `<keyword[, flags]>`.
    pub(super) fn keyword_and_flags<T>(
        &mut self,
        reader: &mut Reader<'m>,
        legal: &str,
        find: impl Fn(&str) -> Option<T>,
    ) -> Built<T> {
        reader.expect(Kind::Less)?;
        let keyword = reader.choose(legal, find)?;
        if reader.accept(Kind::Comma) {
            self.flags_until_close(reader)?;
        } else {
            reader.expect(Kind::Greater)?;
        }
        Ok(keyword)
    }

    /// `%a, %b, ..`: exactly N.
    pub(super) fn same_operands<const N: usize>(&mut self, reader: &mut Reader<'m>) -> Built<[ValueId; N]> {
        let mut operands = [ValueId(0); N];
        for (at, operand) in operands.iter_mut().enumerate() {
            if at > 0 {
                reader.expect(Kind::Comma)?;
            }
            *operand = self.operand(reader)?;
        }
        Ok(operands)
    }

    /// `: T`, the type of every operand.
    fn operand_type(&mut self, reader: &mut Reader<'m>, operands: &[ValueId]) -> Built<(Type, Span)> {
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        let ty = self.plain_type(reader)?;
        for operand in operands {
            self.check_type(reader, *operand, &ty, span)?;
        }
        Ok((ty, span))
    }

    fn check_address(&self, reader: &Reader<'m>, ty: &Type, span: Span, with_offset: bool) -> Built<()> {
        match ty {
            Type::Scalar(ScalarType::Index) => Ok(()),
            Type::Scalar(ScalarType::Offset) if with_offset => Ok(()),
            _ => {
                let legal = if with_offset { "index or offset" } else { "index" };
                refuse(span, format!("`{}` takes {legal}, found {ty}", reader.name()))
            }
        }
    }

    fn check_class(&self, reader: &Reader<'m>, ty: &Type, span: Span, dialect: Dialect, class: Class) -> Built<()> {
        let element = match (dialect, ty) {
            (Dialect::Vector, Type::Vector(vector)) => vector.element,
            (Dialect::Scalar, Type::Scalar(scalar)) => *scalar,
            (Dialect::Vector, _) => {
                return refuse(span, format!("`{}` takes vectors, found {ty}", reader.name()));
            }
            _ => {
                return refuse(span, format!("`{}` takes scalars, found {ty}", reader.name()));
            }
        };
        let integer =
            (element.is_integer() && element != ScalarType::I1) || (dialect == Dialect::Vector && element.is_address());
        let (legal, says) = match class {
            Class::Integer => (integer, "i8, i16, i32 or i64"),
            Class::Bits => (integer || element == ScalarType::I1, "i1, i8, i16, i32 or i64"),
            Class::Float => (element.is_float() && element.bits() >= 16, "f16, bf16, f32 or f64"),
            Class::FloatBits => (element.is_float(), "a float"),
        };
        if legal { Ok(()) } else { refuse(span, format!("`{}` takes {says}, found {ty}", reader.name())) }
    }

    /// `: T` and the end of the op; `T` is of the class.
    fn element_type(
        &mut self,
        reader: &mut Reader<'m>,
        operands: &[ValueId],
        dialect: Dialect,
        class: Class,
    ) -> Built<Type> {
        let (ty, span) = self.operand_type(reader, operands)?;
        self.check_class(reader, &ty, span, dialect, class)?;
        reader.end()?;
        Ok(ty)
    }

    /// `: T`, for vectors also `-> vector<..xi1>`, and the end of the op.
    fn compared_type(
        &mut self,
        reader: &mut Reader<'m>,
        operands: &[ValueId],
        dialect: Dialect,
        class: Class,
    ) -> Built<Type> {
        let (ty, span) = self.operand_type(reader, operands)?;
        // Unlike arithmetic, comparison is defined on i1.
        let class = if class == Class::Integer { Class::Bits } else { class };
        self.check_class(reader, &ty, span, dialect, class)?;
        if dialect == Dialect::Vector {
            reader.expect(Kind::Arrow)?;
            let span = reader.here();
            let mask = self.plain_type(reader)?;
            let expected = with_element(&ty, ScalarType::I1);
            if mask != expected {
                return refuse(span, format!("`{}`: the result is {expected}, found {mask}", reader.name()));
            }
        }
        reader.end()?;
        Ok(ty)
    }

    /// `cmp pred, %a, %b : T`.
    fn compare(&mut self, reader: &mut Reader<'m>, dialect: Dialect, integer: bool) -> Built<Vec<Binding>> {
        let kind = if integer {
            OpKind::CompareI(reader.choose(INT_PREDICATES, int_predicate)?)
        } else {
            self.element_flags(reader)?;
            OpKind::CompareF(reader.choose(FLOAT_PREDICATES, float_predicate)?)
        };
        reader.expect(Kind::Comma)?;
        let operands = self.same_operands::<2>(reader)?;
        let ty = if dialect == Dialect::Index {
            let (ty, span) = self.operand_type(reader, &operands)?;
            self.check_address(reader, &ty, span, true)?;
            reader.end()?;
            ty
        } else {
            let class = if integer { Class::Integer } else { Class::Float };
            self.compared_type(reader, &operands, dialect, class)?
        };
        let result = with_element(&ty, ScalarType::I1);
        Ok(one(self.emit(kind, &operands, result)))
    }

    /// `op %x : From to To`.
    fn convert_op(&mut self, reader: &mut Reader<'m>, kind: Convert, dialect: Dialect) -> Built<Vec<Binding>> {
        let value = self.operand(reader)?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        self.typed(reader, value)?;
        reader.expect_word("to")?;
        let to = self.plain_type(reader)?;
        reader.end()?;
        let from = self.ty(value).clone();
        let (from_element, to_element) = match (dialect, &from, &to) {
            (Dialect::Vector, Type::Vector(from), Type::Vector(to)) => (from.element, to.element),
            (Dialect::Scalar, Type::Scalar(from), Type::Scalar(to)) => (*from, *to),
            _ => {
                let legal = if dialect == Dialect::Vector { "vectors" } else { "scalars" };
                return refuse(span, format!("`{}` converts {legal}, found {from} to {to}", reader.name()));
            }
        };
        if let Err(says) = check_convert(kind, from_element, to_element) {
            return refuse(span, format!("`{}` {says}, found {from} to {to}", reader.name()));
        }
        let bits = |ty: &Type, element: ScalarType| ty.lanes().map(|lanes| lanes * u64::from(element.bits()));
        let fits = if kind == Convert::Bitcast {
            bits(&from, from_element) == bits(&to, to_element)
        } else {
            from.lanes() == to.lanes() && with_element(&from, to_element) == to
        };
        if !fits {
            let what = if kind == Convert::Bitcast { "total bits" } else { "shape" };
            return refuse(span, format!("`{}` keeps the {what}, found {from} to {to}", reader.name()));
        }
        if from == to {
            return Ok(one(value));
        }
        Ok(one(self.emit(OpKind::Convert(kind), &[value], to)))
    }

    fn index_cast(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let value = self.operand(reader)?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        self.typed(reader, value)?;
        reader.expect_word("to")?;
        let result = self.plain_type(reader)?;
        reader.end()?;
        let (Some(from), Some(to)) = (self.ty(value).scalar(), result.scalar()) else {
            return refuse(span, format!("`index.cast` converts scalars, found {} to {result}", self.ty(value)));
        };
        if from.is_float() || to.is_float() || !(from.is_address() || to.is_address()) {
            let message = format!(
                "`index.cast` goes between index or offset and an integer, index or offset, found {from} to {to}"
            );
            return refuse(span, message);
        }
        if from == to {
            return Ok(one(value));
        }
        let kind = match (from.bits().cmp(&to.bits()), from, to) {
            (std::cmp::Ordering::Equal, _, _) => Convert::Bitcast,
            (std::cmp::Ordering::Greater, _, _) => Convert::TruncI,
            (std::cmp::Ordering::Less, ScalarType::I1, _) | (_, _, ScalarType::Offset) => Convert::ExtUI,
            (std::cmp::Ordering::Less, _, _) => Convert::ExtSI,
        };
        Ok(one(self.emit(OpKind::Convert(kind), &[value], result)))
    }

    /// `constant lit : T`.
    pub(super) fn constant_op(&mut self, reader: &mut Reader<'m>, dialect: Dialect) -> Built<Vec<Binding>> {
        let (literal, literal_span) = self.literal(reader)?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        let ty = self.plain_type(reader)?;
        let element = match (dialect, &ty) {
            (Dialect::Index, Type::Scalar(scalar)) if scalar.is_address() => *scalar,
            (Dialect::Scalar, Type::Scalar(scalar)) if !scalar.is_address() => *scalar,
            (Dialect::Vector, Type::Vector(vector)) => vector.element,
            (Dialect::Index, _) => {
                return refuse(span, format!("`index.constant` is an index or offset, found {ty}"));
            }
            (Dialect::Scalar, _) => {
                return refuse(span, format!("`scalar.constant` is an integer or float, found {ty}"));
            }
            (Dialect::Vector, _) => {
                return refuse(span, format!("`vector.constant` is a vector, found {ty}"));
            }
        };
        reader.end()?;
        match literal_bits(literal, element) {
            Ok(bits) => Ok(one(self.constant(ty, bits))),
            Err(message) => refuse(literal_span, message),
        }
    }

    fn clamp(&mut self, reader: &mut Reader<'m>, dialect: Dialect) -> Built<Vec<Binding>> {
        #[derive(Clone, Copy)]
        enum Mode {
            Ordered,
            Through(Binary, Binary),
        }
        let mode = self.keyword_and_flags(reader, "one of ordered, number, ieee", |word| match word {
            "ordered" => Some(Mode::Ordered),
            "number" => Some(Mode::Through(Binary::MaxNumF, Binary::MinNumF)),
            "ieee" => Some(Mode::Through(Binary::MaximumF, Binary::MinimumF)),
            _ => None,
        })?;
        let operands = self.same_operands::<3>(reader)?;
        let ty = self.element_type(reader, &operands, dialect, Class::Float)?;
        let [value, low, high] = operands;
        Ok(one(match mode {
            Mode::Ordered => self.emit(OpKind::Ternary(Ternary::ClampOrderedF), &operands, ty),
            Mode::Through(max, min) => {
                let raised = self.emit(OpKind::Binary(max), &[value, low], ty.clone());
                self.emit(OpKind::Binary(min), &[raised, high], ty)
            }
        }))
    }

    fn gelu(&mut self, reader: &mut Reader<'m>, dialect: Dialect) -> Built<Vec<Binding>> {
        let form = self.keyword_and_flags(reader, "one of erf, tanh, logistic", |word| match word {
            "erf" => Some(Some(Unary::GeluErfF)),
            "tanh" => Some(Some(Unary::GeluTanhF)),
            "logistic" => Some(None),
            _ => None,
        })?;
        let operands = self.same_operands::<1>(reader)?;
        let span = reader.here();
        let attributes = reader.dictionary()?;
        let ty = self.element_type(reader, &operands, dialect, Class::Float)?;
        match (form, &attributes[..]) {
            (Some(kind), []) => Ok(one(self.emit(OpKind::Unary(kind), &operands, ty))),
            (None, [entry]) if entry.key == "scale" => {
                let Attribute::Float(scale) = entry.value else {
                    return refuse(entry.value_span, "the `scale` of `geluf<logistic>` is a float");
                };
                let element = ty.element().unwrap_or(ScalarType::F32);
                let scale = self.constant(ty.clone(), crate::eval::from_f64(element, scale));
                Ok(one(self.emit(OpKind::Binary(Binary::GeluLogisticF), &[operands[0], scale], ty)))
            }
            (None, _) => refuse(span, "`geluf<logistic>` needs exactly `{scale = 1.702}` or another float"),
            (Some(_), _) => refuse(span, "only `geluf<logistic>` has attributes"),
        }
    }

    /// `assume %a[, %b] [preds] : T[, T]`: its operands.
    pub(super) fn assume(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let operands = self.operands(reader)?;
        let index = reader.name() == "index.assume";
        let sanitizer = reader.name().starts_with("sanitizer.");
        for (operand, span) in &operands {
            match self.ty(*operand) {
                Type::Scalar(ty) if sanitizer || ty.is_address() == index => {}
                found => {
                    let legal = match (sanitizer, index) {
                        (true, _) => "a scalar",
                        (false, true) => "index or offset",
                        (false, false) => "an integer or float",
                    };
                    return refuse(*span, format!("`{}` takes {legal}, found {found}", reader.name()));
                }
            }
        }
        let predicates = self.predicates(reader)?;
        if predicates.is_empty() {
            return reader.expected("a predicate list such as `[range(%a, 0, 7)]`");
        }
        reader.expect(Kind::Colon)?;
        self.all_typed(reader, operands.iter().map(|(operand, _)| *operand))?;
        reader.end()?;
        self.promise(&predicates);
        // The executable variant may stand without results.
        let named = if sanitizer && reader.op.results.is_empty() { 0 } else { operands.len() };
        Ok(operands.into_iter().take(named).map(|(value, _)| Binding::Value(value)).collect())
    }
}
