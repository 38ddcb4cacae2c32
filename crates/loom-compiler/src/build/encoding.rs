//! Encodings: descriptions of packed numbers, and what decodes and encodes them.
//!
//! ```text
//! #family<key = value, ..>   a record, or an alias of one at the top of the file
//! role schema                numbers of some format in a stream of bits, with scales beside them; or blocks of ggml
//! role storage               a layout and a schema: what a view may carry
//! ```
//!
//! - An encoding is known while building; nothing of it is left in the IR. Decoding is integer arithmetic on whole vectors,
//!   exact up to the one rounding of each product and sum that a format asks for, all in f32.
//! - A stream is little-endian: element k of w bits lies at bit k·w.
//! - Blocks (`#ggml.*`) are decoded as the public sources describe them: <https://github.com/ggml-org/ggml>,
//!   `src/ggml-common.h` for the layouts and `src/ggml-quants.c` (`dequantize_row_*`) for the numbers. Small floats: OCP
//!   Microscaling Formats (MX) Specification 1.0, section 5.3; E8M0 scales: section 5.4.
//! - What has no public definition is refused by name.

use std::rc::Rc;

use crate::diag::{Built, Diagnostics, Refusal, refuse};
use crate::fragment;
use crate::ir::{Span, ValueId};
use crate::lex::{Kind, lex};
use crate::ops::{Binary, Convert, IntPredicate, OpKind, Unary};
use crate::reader::{Attribute, Reader};
use crate::syntax;
use crate::types::{ScalarType, Type};

use super::element::with_element;
use super::names::{Binding, Layout};
use super::packed::{Bits, integer, row};
use super::{Builder, one};

/// The longest chain of aliases.
const MAX_ALIASES: usize = 16;
/// The longest alias, in bytes: it is read wherever it is named.
const MAX_ALIAS_BYTES: u32 = 2048;
/// The most parameters of a record, and the longest name of one: each is compared with all before it.
const MAX_PARAMETERS: usize = 64;
const MAX_NAME_BYTES: usize = 256;

/// A parameter of a record.
#[derive(Clone, Debug, PartialEq)]
enum Parameter {
    Int(i64),
    Word(String),
    Other,
}

/// A record, with what it was given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Encoding {
    /// Without `#`.
    family: String,
    parameters: Vec<(String, Parameter)>,
    /// Of a storage.
    layout: Option<Layout>,
    /// Of a storage.
    schema: Option<Rc<Encoding>>,
}

impl Encoding {
    /// A record that is bound to a config key.
    pub(super) fn from_text(text: &str) -> Result<Self, String> {
        let refused = || format!("expected a record such as `#encoding.operand<element_format = i8>` or {BLOCKS}");
        let mut diagnostics = Diagnostics::new("");
        // As the value of an alias: one op.
        let source = format!("#value = {text}");
        let tokens = lex(&source, &mut diagnostics);
        let ops = syntax::parse(&source, &tokens, &mut diagnostics);
        let [op] = &ops[..] else {
            return Err(refused());
        };
        let mut reader = Reader::new(&source, &tokens, op);
        let read = reader.expect(Kind::Equal).and_then(|_| {
            let token = reader.expect(Kind::Hash)?;
            let encoding = Self::parameters(reader.text(token), &mut reader)?;
            reader.end().map(|()| encoding)
        });
        match read {
            Ok(encoding) if diagnostics.finish(()).is_ok() => Ok(encoding),
            _ => Err(refused()),
        }
    }

    /// `[<key = value, ..>]` of the record `#name`.
    fn parameters(name: &str, reader: &mut Reader<'_>) -> Built<Self> {
        if name.len() > MAX_NAME_BYTES {
            return refuse(reader.here(), format!("a record's name has at most {MAX_NAME_BYTES} bytes"));
        }
        let mut encoding = Self { family: name[1..].to_owned(), parameters: Vec::new(), layout: None, schema: None };
        if !reader.accept(Kind::Less) || reader.accept(Kind::Greater) {
            return Ok(encoding);
        }
        loop {
            let (key, span) = reader.word("a parameter name")?;
            if encoding.parameters.len() == MAX_PARAMETERS || key.len() > MAX_NAME_BYTES {
                let most = format!("at most {MAX_PARAMETERS} parameters, with names of at most {MAX_NAME_BYTES} bytes");
                return refuse(span, format!("`{}`: a record has {most}", reader.name()));
            }
            if encoding.parameters.iter().any(|(name, _)| name == key) {
                return refuse(span, format!("`{}`: parameter `{key}` is given twice", reader.name()));
            }
            reader.expect(Kind::Equal)?;
            let value = match reader.attribute()?.0 {
                Attribute::Int(int) => Parameter::Int(int),
                // What is longer is no word that is known.
                Attribute::Word(word) if word.len() <= MAX_NAME_BYTES => Parameter::Word(word.to_owned()),
                Attribute::Text(text) if text.len() <= MAX_NAME_BYTES => Parameter::Word(text),
                Attribute::Word(_) | Attribute::Text(_) | Attribute::Float(_) | Attribute::Other => Parameter::Other,
            };
            encoding.parameters.push((key.to_owned(), value));
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::Greater)?;
                return Ok(encoding);
            }
        }
    }

    /// How a view that carries it finds its elements.
    pub(super) fn layout(&self) -> Layout {
        self.layout.clone().unwrap_or(Layout::Dense)
    }

    /// The same of a record written in a view's type: `#dense`, or numbers that are known, whose elements lie as a dense
    /// view's.
    pub(super) fn view_layout(&self, span: Span) -> Built<Layout> {
        if self.family == "dense" || self.is_stream() || block(&self.family).is_some() {
            return Ok(Layout::Dense);
        }
        refuse(
            span,
            format!(
                "expected a layout: `#dense`, a value from `encoding.layout.*` or `encoding.define`, or a known record \
                 (`#encoding.operand<..>`, {BLOCKS}), found `#{}`",
                self.family
            ),
        )
    }

    /// The numbers of an operand of a tile product, if it describes such, or their name.
    pub(super) fn operand_format(&self) -> Result<fragment::Format, &str> {
        let schema = self.schema.as_deref().unwrap_or(self);
        let name = schema.word("element_format").unwrap_or(&schema.family);
        Ok(match format(name) {
            Some(Format::Float(ScalarType::F16)) => fragment::Format::F16,
            Some(Format::Float(ScalarType::BF16)) => fragment::Format::BF16,
            Some(Format::Float(ScalarType::F8E4M3)) => fragment::Format::F8E4M3,
            Some(Format::Float(ScalarType::F8E5M2)) => fragment::Format::F8E5M2,
            Some(Format::Int { bits: 8, signed: true }) => fragment::Format::I8,
            Some(Format::Int { bits: 8, signed: false }) => fragment::Format::U8,
            Some(Format::Int { bits: 4, signed: true }) => fragment::Format::I4,
            Some(Format::Int { bits: 4, signed: false }) => fragment::Format::U4,
            _ => return Err(name),
        })
    }

    /// Whether it describes a stream of numbers.
    fn is_stream(&self) -> bool {
        matches!(self.family.as_str(), "encoding.operand" | "matrix_operand")
    }

    fn word(&self, key: &str) -> Option<&str> {
        self.parameters.iter().find(|(name, _)| name == key).and_then(|(_, value)| match value {
            Parameter::Word(word) => Some(word.as_str()),
            Parameter::Int(_) | Parameter::Other => None,
        })
    }

    fn int(&self, key: &str) -> Option<i64> {
        self.parameters.iter().find(|(name, _)| name == key).and_then(|(_, value)| match value {
            Parameter::Int(int) => Some(*int),
            Parameter::Word(_) | Parameter::Other => None,
        })
    }
}

/// The numbers of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// A float type of the language.
    Float(ScalarType),
    /// A smaller float: a sign, exponent and mantissa bits. Neither infinities nor NaN.
    Small { exponent: u32, mantissa: u32, bias: u32 },
    /// An integer of so many bits.
    Int { bits: u32, signed: bool },
}

const FORMATS: &str = "f8e4m3, f8e5m2, f6e2m3, f6e3m2, f4e2m1, f16, bf16, f32, i2, i4, i8, i16, u1, u2, u3, u4, u5, u6, u8, \
                       u16";

fn format(name: &str) -> Option<Format> {
    Some(match name {
        "f8e4m3" | "f8e4m3fn" | "f8E4M3" | "fp8" => Format::Float(ScalarType::F8E4M3),
        "f8e5m2" | "f8E5M2" | "bf8" => Format::Float(ScalarType::F8E5M2),
        "f16" => Format::Float(ScalarType::F16),
        "bf16" => Format::Float(ScalarType::BF16),
        "f32" => Format::Float(ScalarType::F32),
        "f4e2m1" | "f4e2m1fn" | "fp4" => Format::Small { exponent: 2, mantissa: 1, bias: 1 },
        "f6e2m3" | "f6e2m3fn" => Format::Small { exponent: 2, mantissa: 3, bias: 1 },
        "f6e3m2" | "f6e3m2fn" => Format::Small { exponent: 3, mantissa: 2, bias: 3 },
        "i2" | "s2" => Format::Int { bits: 2, signed: true },
        "i4" | "s4" => Format::Int { bits: 4, signed: true },
        "i8" | "s8" => Format::Int { bits: 8, signed: true },
        "i16" | "s16" => Format::Int { bits: 16, signed: true },
        "u1" => Format::Int { bits: 1, signed: false },
        "u2" => Format::Int { bits: 2, signed: false },
        "u3" => Format::Int { bits: 3, signed: false },
        "u4" => Format::Int { bits: 4, signed: false },
        "u5" => Format::Int { bits: 5, signed: false },
        "u6" => Format::Int { bits: 6, signed: false },
        "u8" => Format::Int { bits: 8, signed: false },
        "u16" => Format::Int { bits: 16, signed: false },
        _ => return None,
    })
}

impl Format {
    fn bits(self) -> u32 {
        match self {
            Self::Float(ty) => ty.bits(),
            Self::Small { exponent, mantissa, .. } => 1 + exponent + mantissa,
            Self::Int { bits, .. } => bits,
        }
    }
}

/// A block of ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Mxfp4,
}

const BLOCKS: &str = "#ggml.q4_0, q4_1, q5_0, q5_1, q8_0, q8_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, mxfp4";

/// What the codes of IQ4_NL stand for.
const IQ4_NL: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

fn block(family: &str) -> Option<Block> {
    let name = family.strip_prefix("ggml.").or_else(|| family.strip_prefix("ggml_"))?;
    Some(match name.to_ascii_lowercase().as_str() {
        "q4_0" => Block::Q4_0,
        "q4_1" => Block::Q4_1,
        "q5_0" => Block::Q5_0,
        "q5_1" => Block::Q5_1,
        "q8_0" => Block::Q8_0,
        "q8_1" => Block::Q8_1,
        "q2_k" | "q2k" => Block::Q2K,
        "q3_k" | "q3k" => Block::Q3K,
        "q4_k" | "q4k" => Block::Q4K,
        "q5_k" | "q5k" => Block::Q5K,
        "q6_k" | "q6k" => Block::Q6K,
        "iq4_nl" => Block::Iq4Nl,
        "mxfp4" => Block::Mxfp4,
        _ => return None,
    })
}

impl Block {
    /// Elements of a block.
    const fn elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Q8_1 | Self::Iq4Nl | Self::Mxfp4 => {
                32
            }
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    const fn bytes(self) -> usize {
        match self {
            Self::Mxfp4 => 17,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q8_1 => 36,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Where the codes start: behind what lies before them.
    const fn codes(self) -> usize {
        match self {
            Self::Mxfp4 => 1,
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Iq4Nl => 2,
            Self::Q4_1 | Self::Q5_1 | Self::Q8_1 => 4,
            Self::Q2K | Self::Q4K | Self::Q5K => 16,
            Self::Q3K | Self::Q6K => 0,
        }
    }

    /// Bytes of the codes alone.
    const fn code_bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Iq4Nl | Self::Mxfp4 => 16,
            Self::Q5_0 | Self::Q5_1 => 20,
            Self::Q8_0 | Self::Q8_1 => 32,
            Self::Q2K => 64,
            Self::Q3K => 96,
            Self::Q4K => 128,
            Self::Q5K => 160,
            Self::Q6K => 192,
        }
    }

    /// What is taken from a code to make it a number with a sign.
    const fn bias(self) -> u64 {
        match self {
            Self::Q3K => 4,
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q6K => 32,
            Self::Q4_1
            | Self::Q5_1
            | Self::Q8_0
            | Self::Q8_1
            | Self::Q2K
            | Self::Q4K
            | Self::Q5K
            | Self::Iq4Nl
            | Self::Mxfp4 => 0,
        }
    }

    /// The bits of the code of element `at`, in bytes counted from the first byte of the codes.
    fn code(self, at: usize) -> Vec<Bits> {
        let bits = |lane: usize, from: usize, width: usize, to: usize| Bits {
            lane: lane as u32,
            from: from as u32,
            width: width as u32,
            to: to as u32,
        };
        // 32 elements in 16 bytes: the low nibbles are the first half.
        let nibble = |start: usize| bits(start + at % 16, 4 * (at / 16), 4, 0);
        // 64 elements in 32 bytes, likewise.
        let (group, inner) = (at / 64, at % 64);
        let wide_nibble = |start: usize| bits(start + 32 * group + inner % 32, 4 * (inner / 32), 4, 0);
        // 128 elements in 32 bytes, two bits each.
        let (half, quarter, l) = (at / 128, at % 128 / 32, at % 32);
        let pair = |start: usize| bits(start + 32 * half + l, 2 * quarter, 2, 0);
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Iq4Nl | Self::Mxfp4 => vec![nibble(0)],
            // Fifth bits first: bit `at` of 32.
            Self::Q5_0 | Self::Q5_1 => vec![nibble(4), bits(at / 8, at % 8, 1, 4)],
            Self::Q8_0 | Self::Q8_1 => vec![bits(at, 0, 8, 0)],
            Self::Q2K => vec![pair(0)],
            // 32 bytes of third bits first: byte by element, bit by quarter.
            Self::Q3K => vec![pair(32), bits(l, 4 * half + quarter, 1, 2)],
            Self::Q4K => vec![wide_nibble(0)],
            // 32 bytes of fifth bits: byte by element, bit by half group.
            Self::Q5K => vec![wide_nibble(32), bits(inner % 32, 2 * group + inner / 32, 1, 4)],
            // Two halves of 128 elements, each 64 bytes of nibbles and 32 bytes of upper pairs of bits.
            Self::Q6K => vec![
                bits(64 * half + 32 * (quarter % 2) + l, 4 * (quarter / 2), 4, 0),
                bits(128 + 32 * half + l, 2 * quarter, 2, 4),
            ],
        }
    }
}

/// Bits of scale `at` (or of minimum, with `minimum`) of the eight groups of 32 in Q4_K and Q5_K; bytes counted from the
/// first of twelve.
fn group_scale(at: usize, minimum: bool) -> Vec<Bits> {
    let bits = |lane: usize, from: u32, width: u32, to: u32| Bits { lane: lane as u32, from, width, to };
    let behind = if minimum { 4 } else { 0 };
    if at < 4 {
        return vec![bits(at + behind, 0, 6, 0)];
    }
    vec![bits(at + 4, if minimum { 4 } else { 0 }, 4, 0), bits(at - 4 + behind, 6, 2, 4)]
}

impl<'m> Builder<'m> {
    /// `encoding.define/isa/assume.spec`.
    pub(super) fn encoding_value(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "define" => {
                let mut encoding = self.record(reader)?;
                if reader.peek() == Some(Kind::BraceOpen) {
                    self.record_operands(reader, &mut encoding)?;
                }
                let role = self.encoding_role(reader)?;
                reader.end()?;
                if role == "layout" {
                    return Ok(vec![Binding::Layout(encoding.layout())]);
                }
                Ok(vec![Binding::Encoding(Rc::new(encoding))])
            }
            "isa" => {
                let (name, span) = reader.value_name()?;
                reader.expect(Kind::Comma)?;
                let category = reader.string()?;
                reader.expect(Kind::Colon)?;
                let type_span = reader.here();
                let ty = self.plain_type(reader)?;
                if ty != Type::Scalar(ScalarType::I1) {
                    return refuse(type_span, format!("`encoding.isa` gives i1, found {ty}"));
                }
                reader.end()?;
                let is = match self.names.get(name) {
                    // The family, what it belongs to, or the role.
                    Some(Binding::Encoding(encoding)) => {
                        let of = |family: &str| {
                            family == category
                                || family.strip_prefix(&category).is_some_and(|rest| rest.starts_with('.'))
                        };
                        of(&encoding.family) || encoding.schema.as_ref().is_some_and(|schema| of(&schema.family))
                    }
                    Some(Binding::Layout(layout)) => {
                        category == "layout" || (category == "dense") == (*layout == Layout::Dense)
                    }
                    Some(Binding::Reported) => return Err(Refusal::Reported),
                    _ => return refuse(span, format!("`%{name}` is no encoding")),
                };
                Ok(one(self.constant(ty, u64::from(is))))
            }
            "assume.spec" => {
                let (name, span) = reader.value_name()?;
                let assumed = self.names.get(name).cloned();
                reader.expect(Kind::Comma)?;
                let mut encoding = self.record(reader)?;
                self.encoding_role(reader)?;
                reader.end()?;
                match assumed {
                    Some(Binding::Encoding(known)) => {
                        encoding.layout = encoding.layout.or_else(|| known.layout.clone());
                        encoding.schema = encoding.schema.or_else(|| known.schema.clone());
                    }
                    Some(Binding::Layout(layout)) => encoding.layout = Some(layout),
                    Some(Binding::Reported) => return Err(Refusal::Reported),
                    _ => return refuse(span, format!("`%{name}` is no encoding")),
                }
                Ok(vec![Binding::Encoding(Rc::new(encoding))])
            }
            _ => self.unknown(
                reader,
                "encoding.layout.dense, layout.strided, layout.assume.dense, layout.assume.strided, define, isa, assume.spec",
            ),
        }
    }

    /// `: encoding<role>`.
    fn encoding_role(&mut self, reader: &mut Reader<'m>) -> Built<&'m str> {
        reader.expect(Kind::Colon)?;
        self.encoding_type(reader)
    }

    /// `encoding` or `encoding<role>`.
    pub(super) fn encoding_type(&mut self, reader: &mut Reader<'m>) -> Built<&'m str> {
        reader.expect_word("encoding")?;
        if !reader.accept(Kind::Less) {
            return Ok("");
        }
        let legal = "one of layout, schema, storage, transform";
        let (role, span) = reader.word(legal)?;
        if !matches!(role, "layout" | "schema" | "storage" | "transform") {
            return refuse(span, format!("`{}`: expected {legal}, found `{role}`", reader.name()));
        }
        reader.expect(Kind::Greater)?;
        Ok(role)
    }

    /// `#family[<key = value, ..>]`, aliases resolved.
    pub(super) fn record(&mut self, reader: &mut Reader<'m>) -> Built<Encoding> {
        self.record_within(reader, MAX_ALIASES)
    }

    /// The alias of this name in the file that names it.
    fn alias(&mut self, name: &'m str, span: Span) -> Option<&'m syntax::Op> {
        let module = self.module;
        let aliases = self.aliases.get_or_insert_with(|| {
            let aliases = module.ops.iter().filter(|op| module.op_name(op).starts_with('#'));
            aliases
                .map(|op| ((module.file_of(module.tokens[op.name as usize].span.start), module.op_name(op)), op))
                .collect()
        });
        aliases.get(&(module.file_of(span.start), name)).copied()
    }

    fn record_within(&mut self, reader: &mut Reader<'m>, depth: usize) -> Built<Encoding> {
        let token = reader.expect(Kind::Hash)?;
        let name = reader.text(token);
        if reader.peek() != Some(Kind::Less)
            && let Some(alias) = self.alias(name, token.span)
        {
            if depth == 0 {
                return refuse(token.span, format!("`{name}` is an alias of an alias, {MAX_ALIASES} times over"));
            }
            let tokens = &self.module.tokens;
            let (first, last) = (tokens[alias.name as usize].span, tokens[alias.rest.end.max(1) as usize - 1].span);
            if last.end.saturating_sub(first.start) > MAX_ALIAS_BYTES {
                return refuse(token.span, format!("the alias `{name}` is longer than {MAX_ALIAS_BYTES} bytes"));
            }
            let mut record = self.reader(alias);
            record.expect(Kind::Equal)?;
            return self.record_within(&mut record, depth - 1);
        }
        Encoding::parameters(name, reader)
    }

    /// `{layout = %l : encoding<layout>, schema = %s : encoding<schema>}`.
    fn record_operands(&mut self, reader: &mut Reader<'m>, encoding: &mut Encoding) -> Built<()> {
        reader.expect(Kind::BraceOpen)?;
        if reader.accept(Kind::BraceClose) {
            return Ok(());
        }
        loop {
            let (key, key_span) = reader.word("`layout` or `schema`")?;
            reader.expect(Kind::Equal)?;
            let (name, span) = reader.value_name()?;
            reader.expect(Kind::Colon)?;
            self.encoding_type(reader)?;
            match (key, self.names.get(name)) {
                (_, Some(Binding::Reported)) => return Err(Refusal::Reported),
                ("layout", Some(Binding::Layout(layout))) => encoding.layout = Some(layout.clone()),
                ("schema", Some(Binding::Encoding(schema))) => encoding.schema = Some(Rc::clone(schema)),
                ("layout" | "schema", _) => return refuse(span, format!("`%{name}` is no {key}")),
                _ => return refuse(key_span, "legal here: `layout` and `schema`, each an encoding"),
            }
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::BraceClose)?;
                return Ok(());
            }
        }
    }

    /// `%schema` or a record, behind `using`.
    fn coding_schema(&mut self, reader: &mut Reader<'m>) -> Built<(Rc<Encoding>, Span)> {
        let span = reader.here();
        let encoding = if reader.peek() == Some(Kind::Hash) {
            Rc::new(self.record(reader)?)
        } else {
            let (name, span) = reader.value_name()?;
            match self.names.get(name) {
                Some(Binding::Encoding(encoding)) => Rc::clone(encoding),
                Some(Binding::Reported) => return Err(Refusal::Reported),
                _ => return refuse(span, format!("`%{name}` is no encoding; one is made by encoding.define")),
            }
        };
        Ok((encoding.schema.clone().unwrap_or(encoding), span))
    }

    /// `{scale = %s : T, ..}`: values by name.
    fn coding_operands(&mut self, reader: &mut Reader<'m>) -> Built<Vec<(&'m str, ValueId, Span)>> {
        let mut operands: Vec<(&str, ValueId, Span)> = Vec::new();
        if !reader.accept(Kind::BraceOpen) || reader.accept(Kind::BraceClose) {
            return Ok(operands);
        }
        loop {
            let legal = "legal here: `scale`, `min` and `zero_point`, each once";
            let (key, span) = reader.word(legal)?;
            if !matches!(key, "scale" | "min" | "zero_point") || operands.iter().any(|(name, ..)| *name == key) {
                return refuse(span, legal);
            }
            reader.expect(Kind::Equal)?;
            let value_span = reader.here();
            let value = self.operand(reader)?;
            reader.expect(Kind::Colon)?;
            self.typed(reader, value)?;
            operands.push((key, value, value_span));
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::BraceClose)?;
                return Ok(operands);
            }
        }
    }

    /// What both directions have behind the first value: schema, operands, and the types.
    #[allow(clippy::type_complexity, reason = "the parts of one op, taken apart at once")]
    fn coding(
        &mut self,
        reader: &mut Reader<'m>,
    ) -> Built<(ValueId, Rc<Encoding>, Span, Vec<(&'m str, ValueId, Span)>, Type, Span)> {
        let (value, _) = self.vector_operand(reader)?;
        reader.expect_word("using")?;
        let (schema, span) = self.coding_schema(reader)?;
        let operands = self.coding_operands(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, value)?;
        if reader.accept(Kind::Comma) {
            self.encoding_type(reader)?;
        }
        reader.expect(Kind::Arrow)?;
        let result_span = reader.here();
        let result = Type::Vector(self.vector_type(reader)?);
        reader.end()?;
        Ok((value, schema, span, operands, result, result_span))
    }

    /// The format of a stream of numbers, if this is one.
    fn stream_format(&self, reader: &Reader<'m>, schema: &Encoding, span: Span) -> Built<Format> {
        let Some(name) = schema.word("element_format").filter(|_| schema.is_stream()) else {
            let message = format!(
                "`{}`: `#{}` has no public definition that could be followed; known are `#encoding.operand<element_format = ..>` \
                 (`#matrix_operand`), and {BLOCKS}",
                reader.name(),
                schema.family
            );
            return refuse(span, message);
        };
        let Some(format) = format(name) else {
            let message = format!(
                "`{}`: element format `{name}` is that of one device and has no public definition; known are {FORMATS}",
                reader.name()
            );
            return refuse(span, message);
        };
        for key in ["payload_packing", "codebook", "sparsity", "affine"] {
            if let Some(word) = schema.word(key).filter(|word| !matches!(*word, "dense" | "linear" | "none" | "scale"))
            {
                let message =
                    format!("`{}`: `{key} = {word}` depends on a device's registers or tables", reader.name());
                return refuse(span, format!("{message}; legal: absent, or dense"));
            }
        }
        Ok(format)
    }

    /// `%p using %schema [{scale = %s : T}] : vector, encoding<schema> -> vector`.
    pub(super) fn decode(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (payload, schema, span, operands, result, result_span) = self.coding(reader)?;
        let (Some(bits), Some(lanes)) = (self.bits_of(payload), result.lanes()) else {
            return Ok(one(self.new_value(result)));
        };
        let element = result.element().unwrap_or(ScalarType::F32);
        let whole = element.is_integer() && element != ScalarType::I1;
        if !(whole || element.is_float() && element.bits() >= 16) {
            return refuse(
                result_span,
                format!("`vector.decode` gives f16, bf16, f32, f64 or integers, found {result}"),
            );
        }
        if let Some(kind) = block(&schema.family) {
            if whole {
                return refuse(result_span, format!("`vector.decode`: blocks are floats, found {result}"));
            }
            let numbers = self.decode_blocks(reader, kind, payload, bits, &operands, lanes as usize, span)?;
            return Ok(one(self.finished(numbers, result)));
        }
        let format = self.stream_format(reader, &schema, span)?;
        if bits != lanes * u64::from(format.bits()) {
            let message = format!("{lanes} elements of {} bits are not the {bits} bits of the payload", format.bits());
            return refuse(result_span, format!("`vector.decode`: {message}"));
        }
        let lanes = lanes as usize;
        if whole {
            let Format::Int { bits, signed } = format else {
                return refuse(result_span, format!("`vector.decode`: floats are not decoded to {result}"));
            };
            if bits > element.bits() || !operands.is_empty() {
                return refuse(result_span, format!("`vector.decode`: scaled or wider numbers do not fit {result}"));
            }
            let codes = self.codes(payload, bits, lanes)?;
            let codes = if signed { self.signed_codes(codes, bits) } else { codes };
            let codes = self.resized(codes, element, signed);
            return Ok(one(self.shaped(codes, result)));
        }
        let mut numbers = self.numbers_of(payload, format, lanes)?;
        let group = schema.int("scale_group_elements");
        let scale_format = schema.word("scale_format");
        for key in ["zero_point", "scale", "min"] {
            let Some((_, value, span)) = operands.iter().find(|(name, ..)| *name == key) else { continue };
            let format = if key == "scale" { scale_format } else { None };
            let parameter = self.per_group(reader, *value, *span, format, group, lanes)?;
            let kind = match key {
                "zero_point" => Binary::SubF,
                "scale" => Binary::MulF,
                _ => Binary::AddF,
            };
            numbers = self.binary(kind, numbers, parameter);
        }
        Ok(one(self.finished(numbers, result)))
    }

    /// `%x using %schema [{scale = %s : T}] : vector, encoding<schema> -> vector`.
    pub(super) fn encode(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (value, schema, span, operands, result, result_span) = self.coding(reader)?;
        if block(&schema.family).is_some() {
            let message = "blocks are made by a search for their scales, which no op states; only decoding is defined";
            return refuse(span, format!("`vector.encode`: `#{}`: {message}", schema.family));
        }
        let format = self.stream_format(reader, &schema, span)?;
        let element = self.ty(value).element().unwrap_or(ScalarType::F32);
        if !element.is_float() || element.bits() < 16 {
            return refuse(span, format!("`vector.encode` takes f16, bf16, f32 or f64, found {}", self.ty(value)));
        }
        let to = result.element().unwrap_or(ScalarType::I8);
        if !(to.is_integer() && to != ScalarType::I1 || Format::Float(to) == format) {
            return refuse(result_span, format!("`vector.encode` gives a payload of integers, found {result}"));
        }
        let (Some(lanes), Some(bits)) = (self.ty(value).lanes(), result.lanes().map(|n| n * u64::from(to.bits())))
        else {
            return Ok(one(self.new_value(result)));
        };
        if bits != lanes * u64::from(format.bits()) {
            let message = format!("{lanes} elements of {} bits are not the {bits} bits of the payload", format.bits());
            return refuse(result_span, format!("`vector.encode`: {message}"));
        }
        let finite = match schema.word("rounding") {
            None | Some("nearest_even" | "rne" | "ieee") => false,
            Some("finite_only") => true,
            Some(other) => {
                let message =
                    format!("`rounding = {other}` has no public definition; legal: nearest_even, finite_only");
                return refuse(span, format!("`vector.encode`: {message}"));
            }
        };
        let lanes = lanes as usize;
        self.spend(24, lanes)?;
        let mut numbers = self.flattened(value);
        let mut element = element;
        if !operands.is_empty() {
            numbers = self.in_f32(numbers);
            element = ScalarType::F32;
        }
        let group = schema.int("scale_group_elements");
        for (key, kind) in [("min", Binary::SubF), ("scale", Binary::DivF), ("zero_point", Binary::AddF)] {
            let Some((_, operand, span)) = operands.iter().find(|(name, ..)| *name == key) else { continue };
            let format = if key == "scale" { schema.word("scale_format") } else { None };
            let parameter = self.per_group(reader, *operand, *span, format, group, lanes)?;
            numbers = self.binary(kind, numbers, parameter);
        }
        let ty = row(element, lanes);
        let constant = |this: &mut Self, value: f64| this.constant(ty.clone(), crate::eval::from_f64(element, value));
        let codes = match format {
            Format::Float(float) => {
                if finite && float == ScalarType::F8E5M2 {
                    // NaN stays NaN: both comparisons are false of it.
                    let (low, high) = (constant(self, -57344.0), constant(self, 57344.0));
                    let clamp = OpKind::Ternary(crate::ops::Ternary::ClampOrderedF);
                    numbers = self.emit(clamp, &[numbers, low, high], ty.clone());
                }
                let kind = if float.bits() < element.bits() { Convert::TruncF } else { Convert::ExtF };
                if float.bits() == element.bits() && float != element {
                    let message = format!("`vector.encode`: {element} is not narrowed to {float}");
                    return refuse(span, message);
                }
                let narrow = self.converted(kind, numbers, float);
                self.converted(Convert::Bitcast, narrow, integer(float.bits()))
            }
            Format::Int { bits, signed } => {
                // Halves go to even; what is out of range becomes the nearest code, NaN zero.
                let rounded = self.emit(OpKind::Unary(Unary::RoundEvenF), &[numbers], ty.clone());
                let (low, high) =
                    if signed { (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1) } else { (0, (1i64 << bits) - 1) };
                let whole = self.converted(Convert::FToSi, rounded, ScalarType::I32);
                let whole_ty = row(ScalarType::I32, lanes);
                let low = self.constant(whole_ty.clone(), low as u64 & 0xffff_ffff);
                let high = self.constant(whole_ty, high as u64 & 0xffff_ffff);
                let raised = self.binary(Binary::MaxSI, whole, low);
                let code = self.binary(Binary::MinSI, raised, high);
                self.resized(code, if bits <= 8 { ScalarType::I8 } else { ScalarType::I16 }, false)
            }
            Format::Small { .. } => {
                let message = "only decoding of floats below 8 bits is defined";
                return refuse(span, format!("`vector.encode`: {message}"));
            }
        };
        // Codes into the payload's lanes.
        let size = to.bits() as usize;
        let width = format.bits() as usize;
        let payload = integer(to.bits());
        let held = self.ty(codes).element().map_or(8, ScalarType::bits);
        let made = if held as usize == width {
            self.emit(OpKind::Convert(Convert::Bitcast), &[codes], row(payload, bits as usize / size))
        } else {
            let wide = if held > to.bits() { integer(held) } else { payload };
            let lists: Vec<_> =
                (0..bits as usize / size).map(|lane| Bits::of_stream(lane * size, size, width)).collect();
            let packed = self.gathered_bits(codes, &lists, wide)?;
            self.resized(packed, payload, false)
        };
        let made = self.converted(Convert::Bitcast, made, to);
        Ok(one(self.shaped(made, result)))
    }

    fn bits_of(&self, value: ValueId) -> Option<u64> {
        let ty = self.ty(value);
        Some(ty.lanes()? * u64::from(ty.element()?.bits()))
    }

    /// f32 numbers of rank 1 as lanes of `result`.
    fn finished(&mut self, numbers: ValueId, result: Type) -> ValueId {
        let element = result.element().unwrap_or(ScalarType::F32);
        let kind = if element.bits() > 32 { Convert::ExtF } else { Convert::TruncF };
        let numbers = self.converted(kind, numbers, element);
        self.shaped(numbers, result)
    }

    fn in_f32(&mut self, numbers: ValueId) -> ValueId {
        let bits = self.ty(numbers).element().map_or(32, ScalarType::bits);
        self.converted(if bits > 32 { Convert::TruncF } else { Convert::ExtF }, numbers, ScalarType::F32)
    }

    /// The payload as lanes of another width, rank 1.
    fn as_lanes(&mut self, payload: ValueId, element: ScalarType) -> ValueId {
        let flat = self.flattened(payload);
        let lanes = self.bits_of(payload).unwrap_or(0) / u64::from(element.bits());
        let ty = row(element, lanes as usize);
        if *self.ty(flat) == ty { flat } else { self.emit(OpKind::Convert(Convert::Bitcast), &[flat], ty) }
    }

    /// Codes of `bits` bits each, as i32.
    fn codes(&mut self, payload: ValueId, bits: u32, lanes: usize) -> Built<ValueId> {
        let bytes = self.as_lanes(payload, ScalarType::I8);
        let lists: Vec<_> = (0..lanes).map(|at| Bits::of_stream(at * bits as usize, bits as usize, 8)).collect();
        self.gathered_bits(bytes, &lists, ScalarType::I32)
    }

    /// i32 codes whose bit `bits - 1` is the sign.
    fn signed_codes(&mut self, codes: ValueId, bits: u32) -> ValueId {
        let distance = self.constant(self.ty(codes).clone(), u64::from(32 - bits));
        let high = self.binary(Binary::ShlI, codes, distance);
        self.binary(Binary::ShrSI, high, distance)
    }

    /// The numbers of a stream, in f32.
    fn numbers_of(&mut self, payload: ValueId, format: Format, lanes: usize) -> Built<ValueId> {
        Ok(match format {
            Format::Float(float) => {
                let numbers = self.as_lanes(payload, float);
                self.in_f32(numbers)
            }
            Format::Int { bits, signed } => {
                let codes = self.codes(payload, bits, lanes)?;
                let codes = if signed { self.signed_codes(codes, bits) } else { codes };
                self.converted(Convert::SiToF, codes, ScalarType::F32)
            }
            Format::Small { exponent, mantissa, bias } => {
                let codes = self.codes(payload, 1 + exponent + mantissa, lanes)?;
                self.small_floats(codes, exponent, mantissa, bias)
            }
        })
    }

    /// The numbers of i32 codes: a sign, an exponent and a mantissa of so many bits.
    fn small_floats(&mut self, codes: ValueId, exponent: u32, mantissa: u32, bias: u32) -> ValueId {
        let ty = self.ty(codes).clone();
        let sign = exponent + mantissa;
        let constant = |this: &mut Self, bits: u64| this.constant(ty.clone(), bits);
        let (mask, up) = (constant(self, (1 << sign) - 1), constant(self, u64::from(23 - mantissa)));
        let (top, down) = (constant(self, 31), constant(self, u64::from(sign)));
        // Exponent and mantissa where f32 has them: the number times 2^(bias - 127), subnormals included.
        let magnitude = self.binary(Binary::AndI, codes, mask);
        let magnitude = self.binary(Binary::ShlI, magnitude, up);
        let negative = self.binary(Binary::ShrUI, codes, down);
        let negative = self.binary(Binary::ShlI, negative, top);
        let bits = self.binary(Binary::OrI, magnitude, negative);
        let small = self.converted(Convert::Bitcast, bits, ScalarType::F32);
        let factor = crate::eval::from_f64(ScalarType::F32, 2f64.powi(127 - bias as i32));
        let factor = self.constant(with_element(&ty, ScalarType::F32), factor);
        self.binary(Binary::MulF, small, factor)
    }

    /// 2^(x - 127) of i8 lanes `x` without a sign: E8M0. 255 is NaN.
    fn powers(&mut self, exponents: ValueId) -> ValueId {
        // An exponent field, but for 0, which is the subnormal 2^-127, and 255.
        let wide = self.resized(exponents, ScalarType::I32, false);
        let ty = self.ty(wide).clone();
        let mask = with_element(&ty, ScalarType::I1);
        let up = self.constant(ty.clone(), 23);
        let mut bits = self.binary(Binary::ShlI, wide, up);
        for (code, stands) in [(0u64, 0x0040_0000u64), (255, 0x7fc0_0000)] {
            let (code, stands) = (self.constant(ty.clone(), code), self.constant(ty.clone(), stands));
            let is = self.emit(OpKind::CompareI(IntPredicate::Eq), &[wide, code], mask.clone());
            bits = self.emit(OpKind::Select, &[is, stands, bits], ty.clone());
        }
        self.converted(Convert::Bitcast, bits, ScalarType::F32)
    }

    /// A scale or the like for each lane, in f32: one for each group of lanes.
    fn per_group(
        &mut self,
        reader: &Reader<'m>,
        value: ValueId,
        span: Span,
        format: Option<&str>,
        group: Option<i64>,
        lanes: usize,
    ) -> Built<ValueId> {
        let ty = self.ty(value).clone();
        let (count, element) = match (&ty, ty.lanes(), ty.element()) {
            (Type::Scalar(_) | Type::Vector(_), Some(count @ 1..), Some(element)) => (count as usize, element),
            _ => {
                return refuse(span, format!("`{}`: expected a number or a vector of them, found {ty}", reader.name()));
            }
        };
        let flat = match ty {
            Type::Scalar(_) => self.emit(OpKind::Splat, &[value], row(element, 1)),
            _ => self.flattened(value),
        };
        let exponents = format.is_some_and(|name| name.to_ascii_lowercase().contains("e8m0"));
        let numbers = match element {
            ScalarType::I8 if exponents => self.powers(flat),
            element if element.is_float() => self.in_f32(flat),
            element if element.is_integer() && element != ScalarType::I1 && format.is_none() => {
                self.converted(Convert::SiToF, flat, ScalarType::F32)
            }
            _ => {
                let message = format!("scales are floats, or i8 with `scale_format = f8e8m0`, found {element}");
                return refuse(span, format!("`{}`: {message}", reader.name()));
            }
        };
        let size = match group {
            Some(size) if count > 1 || size < lanes as i64 => usize::try_from(size).unwrap_or(0),
            _ => lanes.div_ceil(count),
        };
        if size == 0 || lanes.div_ceil(size) != count {
            let message = format!("{count} scales for {lanes} elements in groups of {size}");
            return refuse(span, format!("`{}`: {message}", reader.name()));
        }
        Ok(self.pick(&[numbers], (0..lanes).map(|lane| (lane / size) as u32).collect(), ScalarType::F32))
    }

    /// `bytes[at], bytes[at + 1]` of each block as f16, in f32.
    fn halves(&mut self, bytes: ValueId, blocks: usize, size: usize, at: usize) -> ValueId {
        let lanes = (0..blocks).flat_map(|block| [block * size + at, block * size + at + 1]).map(|lane| lane as u32);
        let pairs = self.pick(&[bytes], lanes.collect(), ScalarType::I8);
        let halves = self.emit(OpKind::Convert(Convert::Bitcast), &[pairs], row(ScalarType::F16, blocks));
        self.converted(Convert::ExtF, halves, ScalarType::F32)
    }

    /// Blocks as they lie in memory, or their codes alone with `scale` (and `min`) beside them.
    #[allow(clippy::too_many_arguments, reason = "the parts of one op")]
    fn decode_blocks(
        &mut self,
        reader: &Reader<'m>,
        kind: Block,
        payload: ValueId,
        bits: u64,
        operands: &[(&'m str, ValueId, Span)],
        lanes: usize,
        span: Span,
    ) -> Built<ValueId> {
        let blocks = lanes / kind.elements();
        let apart = !operands.is_empty();
        let size = if apart { kind.code_bytes() } else { kind.bytes() };
        if lanes == 0 || !lanes.is_multiple_of(kind.elements()) || bits != (8 * size * blocks) as u64 {
            let message = format!(
                "{lanes} elements of blocks of {} in {bits} bits; a block has {} bytes, or {} of codes with `scale` beside",
                kind.elements(),
                kind.bytes(),
                kind.code_bytes()
            );
            return refuse(span, format!("`{}`: {message}", reader.name()));
        }
        self.spend(40, lanes)?;
        let bytes = self.as_lanes(payload, ScalarType::I8);
        let start = if apart { 0 } else { kind.codes() };
        let shifted = |list: Vec<Bits>, by: usize| -> Vec<Bits> {
            list.into_iter().map(|part| Bits { lane: part.lane + by as u32, ..part }).collect()
        };
        let lists: Vec<_> = (0..lanes)
            .map(|at| shifted(kind.code(at % kind.elements()), at / kind.elements() * size + start))
            .collect();
        let mut codes = self.gathered_bits(bytes, &lists, ScalarType::I32)?;
        if matches!(kind, Block::Q8_0 | Block::Q8_1) {
            codes = self.signed_codes(codes, 8);
        }
        let numbers = match kind {
            Block::Mxfp4 => self.small_floats(codes, 2, 1, 1),
            Block::Iq4Nl => {
                let ty = row(ScalarType::F32, lanes);
                let entries = IQ4_NL.map(|number| self.constant(ty.clone(), u64::from(number.to_bits())));
                self.entry_of(entries.to_vec(), codes, &ty)
            }
            _ => {
                let bias = self.constant(row(ScalarType::I32, lanes), kind.bias());
                let codes = self.binary(Binary::SubI, codes, bias);
                self.converted(Convert::SiToF, codes, ScalarType::F32)
            }
        };
        if apart {
            let mut numbers = numbers;
            let signed_minimum = matches!(kind, Block::Q4_1 | Block::Q5_1);
            let minimum = matches!(kind, Block::Q2K | Block::Q4K | Block::Q5K);
            let group = if matches!(kind, Block::Q2K | Block::Q3K | Block::Q6K) { 16 } else { 32 };
            let format = (kind == Block::Mxfp4).then_some("e8m0");
            for (key, value, span) in operands {
                let kind = match *key {
                    "scale" => Binary::MulF,
                    "min" if signed_minimum => Binary::AddF,
                    "min" if minimum => Binary::SubF,
                    _ => return refuse(*span, format!("`{}`: these blocks have no `{key}`", reader.name())),
                };
                let parameter = self.per_group(reader, *value, *span, format, Some(group), lanes)?;
                numbers = self.binary(kind, numbers, parameter);
            }
            return Ok(numbers);
        }
        let spread = |this: &mut Self, value: ValueId, of: usize| {
            this.pick(&[value], (0..lanes).map(|lane| (lane / of) as u32).collect(), ScalarType::F32)
        };
        let per_block = |this: &mut Self, value: ValueId| spread(this, value, kind.elements());
        Ok(match kind {
            Block::Q4_0 | Block::Q5_0 | Block::Q8_0 | Block::Q8_1 | Block::Iq4Nl => {
                let scale = self.halves(bytes, blocks, size, 0);
                let scale = per_block(self, scale);
                self.binary(Binary::MulF, numbers, scale)
            }
            Block::Q4_1 | Block::Q5_1 => {
                let (scale, minimum) = (self.halves(bytes, blocks, size, 0), self.halves(bytes, blocks, size, 2));
                let (scale, minimum) = (per_block(self, scale), per_block(self, minimum));
                let product = self.binary(Binary::MulF, numbers, scale);
                self.binary(Binary::AddF, product, minimum)
            }
            Block::Mxfp4 => {
                let first = (0..blocks).map(|block| (block * size) as u32).collect();
                let exponents = self.pick(&[bytes], first, ScalarType::I8);
                let scale = self.powers(exponents);
                let scale = per_block(self, scale);
                self.binary(Binary::MulF, numbers, scale)
            }
            Block::Q2K => {
                // Behind the codes: the scale of the scales, then of the minima; before them a byte with both for each 16.
                let mut parameters = [numbers; 2];
                for (at, parameter) in parameters.iter_mut().enumerate() {
                    let whole = self.halves(bytes, blocks, size, 80 + 2 * at);
                    let whole = spread(self, whole, 256);
                    let nibble = |group: usize| Bits {
                        lane: (group / 16 * size + group % 16) as u32,
                        from: 4 * at as u32,
                        width: 4,
                        to: 0,
                    };
                    let lists: Vec<_> = (0..16 * blocks).map(|group| vec![nibble(group)]).collect();
                    let parts = self.gathered_bits(bytes, &lists, ScalarType::I32)?;
                    let parts = self.converted(Convert::SiToF, parts, ScalarType::F32);
                    let parts = spread(self, parts, 16);
                    *parameter = self.binary(Binary::MulF, whole, parts);
                }
                let product = self.binary(Binary::MulF, parameters[0], numbers);
                self.binary(Binary::SubF, product, parameters[1])
            }
            Block::Q3K => {
                let whole = self.halves(bytes, blocks, size, 108);
                let whole = spread(self, whole, 256);
                // Twelve bytes from 96 on: sixteen lower nibbles, then sixteen upper pairs of bits.
                let six = |group: usize| {
                    let (start, at) = (group / 16 * size + 96, group % 16);
                    let bits = |lane: usize, from: usize, width: u32, to: u32| Bits {
                        lane: (start + lane) as u32,
                        from: from as u32,
                        width,
                        to,
                    };
                    vec![bits(at % 8, 4 * (at / 8), 4, 0), bits(8 + at % 4, 2 * (at / 4), 2, 4)]
                };
                let lists: Vec<_> = (0..16 * blocks).map(six).collect();
                let parts = self.gathered_bits(bytes, &lists, ScalarType::I32)?;
                let bias = self.constant(row(ScalarType::I32, 16 * blocks), 32);
                let parts = self.binary(Binary::SubI, parts, bias);
                let parts = self.converted(Convert::SiToF, parts, ScalarType::F32);
                let parts = spread(self, parts, 16);
                let scale = self.binary(Binary::MulF, whole, parts);
                self.binary(Binary::MulF, scale, numbers)
            }
            Block::Q4K | Block::Q5K => {
                let mut parameters = [numbers; 2];
                for (at, parameter) in parameters.iter_mut().enumerate() {
                    let whole = self.halves(bytes, blocks, size, 2 * at);
                    let whole = spread(self, whole, 256);
                    let lists: Vec<_> = (0..8 * blocks)
                        .map(|group| shifted(group_scale(group % 8, at == 1), group / 8 * size + 4))
                        .collect();
                    let parts = self.gathered_bits(bytes, &lists, ScalarType::I32)?;
                    let parts = self.converted(Convert::SiToF, parts, ScalarType::F32);
                    let parts = spread(self, parts, 32);
                    *parameter = self.binary(Binary::MulF, whole, parts);
                }
                let product = self.binary(Binary::MulF, parameters[0], numbers);
                self.binary(Binary::SubF, product, parameters[1])
            }
            Block::Q6K => {
                let whole = self.halves(bytes, blocks, size, 208);
                let whole = spread(self, whole, 256);
                let lanes = (0..16 * blocks).map(|group| (group / 16 * size + 192 + group % 16) as u32).collect();
                let parts = self.pick(&[bytes], lanes, ScalarType::I8);
                let parts = self.converted(Convert::SiToF, parts, ScalarType::F32);
                let parts = spread(self, parts, 16);
                let scale = self.binary(Binary::MulF, whole, parts);
                self.binary(Binary::MulF, scale, numbers)
            }
        })
    }
}
