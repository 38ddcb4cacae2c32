//! Predicates, and config values: text bound to keys, checked by the declaration's predicates.

use std::rc::Rc;

use crate::diag::{Built, Refusal, refuse};
use crate::eval;
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::reader::{Reader, parse_int};
use crate::syntax;
use crate::types::{ScalarType, Type};

use super::encoding::Encoding;
use super::names::Binding;
use super::types::{Literal, literal_bits};
use super::{Builder, Mode, one};

/// The most predicates of one list.
const MAX_PREDICATES: usize = 16;

/// A named fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Range,
    MultipleOf,
    Min,
    Max,
    Pow2,
    NotNan,
    NotInf,
    Finite,
}

impl Fact {
    /// Whether only floats have it.
    const fn is_of_floats(self) -> bool {
        matches!(self, Self::NotNan | Self::NotInf | Self::Finite)
    }
}

const FACTS: &str = "eq, ne, lt, le, gt, ge, range, multiple_of (mul), min, max, pow2, not_nan, not_inf or finite";

fn fact(word: &str) -> Option<(Fact, usize)> {
    Some(match word {
        "eq" => (Fact::Eq, 2),
        "ne" => (Fact::Ne, 2),
        "lt" => (Fact::Lt, 2),
        "le" => (Fact::Le, 2),
        "gt" => (Fact::Gt, 2),
        "ge" => (Fact::Ge, 2),
        "range" => (Fact::Range, 3),
        "multiple_of" | "mul" => (Fact::MultipleOf, 2),
        "min" => (Fact::Min, 2),
        "max" => (Fact::Max, 2),
        "pow2" => (Fact::Pow2, 1),
        "not_nan" => (Fact::NotNan, 1),
        "not_inf" => (Fact::NotInf, 1),
        "finite" => (Fact::Finite, 1),
        _ => return None,
    })
}

/// One argument of a predicate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument<'m> {
    Int(i64),
    Name(&'m str, Span),
}

/// `fact(arguments)`.
#[derive(Clone, Debug)]
pub(super) struct Predicate<'m> {
    pub(super) fact: Fact,
    pub(super) arguments: Vec<Argument<'m>>,
    span: Span,
    pub(super) text: &'m str,
}

impl Predicate<'_> {
    /// Whether it holds of integers, all names standing for `value`.
    fn holds(&self, value: i64) -> bool {
        let argument = |at: usize| match self.arguments.get(at) {
            Some(Argument::Int(int)) => *int,
            _ => value,
        };
        let (a, b) = (argument(0), argument(1));
        match self.fact {
            Fact::Eq => a == b,
            Fact::Ne => a != b,
            Fact::Lt | Fact::Gt | Fact::Le | Fact::Ge | Fact::Min | Fact::Max => match self.fact {
                Fact::Lt => a < b,
                Fact::Gt => a > b,
                Fact::Le | Fact::Max => a <= b,
                _ => a >= b,
            },
            Fact::Range => b <= a && a <= argument(2),
            Fact::MultipleOf => b != 0 && a.checked_rem(b).unwrap_or(0) == 0,
            Fact::Pow2 => a > 0 && a & (a - 1) == 0,
            // Of integers, always.
            Fact::NotNan | Fact::NotInf | Fact::Finite => true,
        }
    }

    /// [`Self::holds`] of a float. Of a NaN only what says so.
    fn holds_of_float(&self, value: f64) -> bool {
        let argument = |at: usize| match self.arguments.get(at) {
            Some(Argument::Int(int)) => *int as f64,
            _ => value,
        };
        let (a, b) = (argument(0), argument(1));
        match self.fact {
            Fact::Eq => a == b,
            Fact::Ne => a != b,
            Fact::Lt => a < b,
            Fact::Gt => a > b,
            Fact::Le | Fact::Max => a <= b,
            Fact::Ge | Fact::Min => a >= b,
            Fact::Range => b <= a && a <= argument(2),
            Fact::MultipleOf => b != 0.0 && a % b == 0.0,
            // A finite number whose only bits are those of its exponent.
            Fact::Pow2 => a > 0.0 && a.is_finite() && a.log2().fract() == 0.0,
            Fact::NotNan => !a.is_nan(),
            Fact::NotInf => !a.is_infinite(),
            Fact::Finite => a.is_finite(),
        }
    }
}

/// What declares a config key: its type, the value of a definition, and predicates.
type Declared<'m> = (ScalarType, Option<(Literal, Span)>, Vec<Predicate<'m>>);

impl<'m> Builder<'m> {
    /// `[fact(args), ..]`, its names not looked up.
    fn predicate_list(&self, reader: &mut Reader<'m>) -> Built<Vec<Predicate<'m>>> {
        reader.expect(Kind::BracketOpen)?;
        let mut predicates = Vec::new();
        if reader.accept(Kind::BracketClose) {
            return Ok(predicates);
        }
        loop {
            let (word, span) = reader.word(&format!("a predicate: {FACTS}"))?;
            let Some((fact, arity)) = fact(word) else {
                return refuse(span, format!("`{word}` is no predicate; legal: {FACTS}"));
            };
            if predicates.len() == MAX_PREDICATES {
                return refuse(span, format!("more than {MAX_PREDICATES} predicates in one list"));
            }
            reader.expect(Kind::ParenOpen)?;
            let mut arguments = Vec::new();
            loop {
                arguments.push(match reader.peek() {
                    Some(Kind::Int) => Argument::Int(reader.int()?.0),
                    Some(Kind::Value) => {
                        let (name, span) = reader.value_name()?;
                        Argument::Name(name, span)
                    }
                    _ => return reader.expected("an integer or a value `%name`"),
                });
                if !reader.accept(Kind::Comma) {
                    break;
                }
            }
            let close = reader.expect(Kind::ParenClose)?;
            if arguments.len() != arity {
                return refuse(span, format!("`{word}` takes {arity} arguments, found {}", arguments.len()));
            }
            let text = reader.source.get(span.start as usize..close.span.end as usize).unwrap_or(word);
            predicates.push(Predicate { fact, arguments, span, text });
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::BracketClose)?;
                return Ok(predicates);
            }
        }
    }

    /// A predicate list over values in scope.
    pub(super) fn predicates(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Predicate<'m>>> {
        let predicates = self.predicate_list(reader)?;
        for predicate in &predicates {
            for argument in &predicate.arguments {
                if let Argument::Name(name, span) = argument {
                    let value = self.value_named(name, *span)?;
                    if predicate.fact.is_of_floats() && self.ty(value).element().is_none_or(|ty| !ty.is_float()) {
                        let message = format!("`{}` is about floats; `%{name}` is {}", predicate.text, self.ty(value));
                        return refuse(*span, message);
                    }
                }
            }
        }
        Ok(predicates)
    }

    /// `where [..]`, if there: believed from here on.
    pub(super) fn where_clause(&mut self, reader: &mut Reader<'m>) -> Built<()> {
        if reader.accept_word("where") {
            let predicates = self.predicates(reader)?;
            self.promise(&predicates);
        }
        Ok(())
    }

    /// `config.*` inside a body.
    pub(super) fn config_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        if op != "get" {
            return self.unknown(reader, "config.get");
        }
        let (key, span) = reader.symbol()?;
        reader.expect(Kind::Colon)?;
        let type_span = reader.here();
        if reader.token().is_some_and(|token| reader.text(token) == "encoding") {
            let role = self.encoding_type(reader)?;
            reader.end()?;
            return Ok(vec![self.config_encoding(key, role, span)?]);
        }
        let ty = self.plain_type(reader)?;
        reader.end()?;
        let value = self.config_value(key, span)?;
        let Type::Scalar(declared) = *self.ty(value) else {
            return Err(Refusal::Reported);
        };
        if ty != Type::Scalar(declared) {
            return refuse(type_span, format!("`@{key}` is declared as {declared}, found {ty}"));
        }
        Ok(one(value))
    }

    /// What declares or defines a key.
    fn config_op_of(&self, key: &str, span: Span) -> Built<&'m syntax::Op> {
        let module = self.module;
        let Some(op) = module.symbols.get(key).map(|at| &module.ops[*at]) else {
            return refuse(
                span,
                format!("`@{key}` is not defined; a key is declared by `config.decl` or `config.def`"),
            );
        };
        let kind = module.op_name(op);
        if kind != "config.decl" && kind != "config.def" {
            return refuse(span, format!("`@{key}` is a `{kind}`, not a config value"));
        }
        Ok(op)
    }

    /// The text bound to a key.
    fn bound_text(&self, key: &str) -> Option<&'m String> {
        self.config.get(key).or_else(|| self.config.get(&format!("@{key}")))
    }

    /// The encoding of a key: bound text, else the definition's record.
    fn config_encoding(&mut self, key: &'m str, role: &str, span: Span) -> Built<Binding> {
        let op = self.config_op_of(key, span)?;
        let (record, declared, type_span) = self.encoding_declaration(op)?;
        if declared != role {
            return refuse(span, format!("`@{key}` is declared as encoding<{declared}>, found encoding<{role}>"));
        }
        if role != "schema" {
            return refuse(
                type_span,
                format!("a config value is a scalar or encoding<schema>, found encoding<{role}>"),
            );
        }
        let encoding = match self.bound_text(key) {
            Some(text) => match Encoding::from_text(text) {
                Ok(encoding) => encoding,
                Err(message) => {
                    return refuse(span, format!("config `{key}` = `{}`: {message}", text.escape_default()));
                }
            },
            None => match record {
                Some(record) => record,
                None if self.mode == Mode::Verify => return Ok(Binding::Reported),
                None => return refuse(span, format!("config `{key}` has no value; bind it as encoding<schema>")),
            },
        };
        Ok(Binding::Encoding(Rc::new(encoding)))
    }

    /// The record of a definition, and the role that is declared.
    fn encoding_declaration(&mut self, op: &'m syntax::Op) -> Built<(Option<Encoding>, &'m str, Span)> {
        let mut declaration = self.reader(op);
        while declaration.peek() == Some(Kind::Word) {
            declaration.skip_group()?;
        }
        declaration.symbol()?;
        let mut record = None;
        if declaration.name() == "config.def" {
            declaration.expect(Kind::Equal)?;
            record = Some(self.record(&mut declaration)?);
        }
        declaration.expect(Kind::Colon)?;
        if declaration.peek() == Some(Kind::Value) {
            declaration.value_name()?;
            declaration.expect(Kind::Colon)?;
        }
        let span = declaration.here();
        let role = self.encoding_type(&mut declaration)?;
        if declaration.accept_word("where") {
            let predicates = self.predicate_list(&mut declaration)?;
            if let Some(first) = predicates.first() {
                return refuse(first.span, "predicates are about numbers; an encoding has none");
            }
        }
        declaration.end()?;
        Ok((record, role, span))
    }

    /// The value of a key: bound text, else the definition's literal.
    fn config_value(&mut self, key: &'m str, span: Span) -> Built<ValueId> {
        let module = self.module;
        let op = self.config_op_of(key, span)?;
        let (scalar, literal, mut predicates) = self.config_declaration(op, key)?;
        // What promises the key in this file or another has conditions as well.
        let declarations: &'m [usize] = module.declarations.get(key).map_or(&[], Vec::as_slice);
        for declaration in declarations.iter().map(|at| &module.ops[*at]) {
            if !std::ptr::eq(declaration, op) && module.op_name(declaration) == "config.decl" {
                predicates.extend(self.config_declaration(declaration, key)?.2);
            }
        }
        let ty = Type::Scalar(scalar);
        let at_key = self.bound_text(key);
        let bits = match (at_key, literal) {
            (Some(text), _) => match bound_bits(text, scalar) {
                Ok(bits) => bits,
                Err(message) => {
                    return refuse(span, format!("config `{key}` = `{}`: {message}", text.escape_default()));
                }
            },
            (None, Some((literal, span))) => match literal_bits(literal, scalar) {
                Ok(bits) => bits,
                Err(message) => return refuse(span, message),
            },
            (None, None) if self.mode == Mode::Verify => {
                if let Some(value) = self.unknowns.get(key) {
                    return Ok(*value);
                }
                let value = self.new_value(ty);
                self.unknowns.insert(key.to_owned(), value);
                return Ok(value);
            }
            (None, None) => {
                return refuse(span, format!("config `{key}` has no value; bind it as {scalar}"));
            }
        };
        let (broken, shown) = if scalar.is_float() {
            let value = eval::to_f64(scalar, bits);
            (predicates.iter().find(|predicate| !predicate.holds_of_float(value)), value.to_string())
        } else {
            let value = if scalar == ScalarType::I1 { bits as i64 } else { eval::signed(scalar, bits) };
            (predicates.iter().find(|predicate| !predicate.holds(value)), value.to_string())
        };
        if let Some(broken) = broken {
            let at = if at_key.is_some() { span } else { broken.span };
            return refuse(at, format!("config `{key}` = {shown} breaks its predicate `{}`", broken.text));
        }
        Ok(self.constant(ty, bits))
    }

    /// Verifies the declaration of a key, whether it is used or not.
    pub(super) fn check_config(&mut self, op: &'m syntax::Op) -> Built<()> {
        let key = self.module.symbol_of(op).map_or("", |(key, _)| key);
        let tokens = op.rest.start..op.rest.end;
        if tokens.into_iter().any(|at| self.module.text(at) == "encoding") {
            return self.encoding_declaration(op).map(drop);
        }
        let (scalar, literal, _) = self.config_declaration(op, key)?;
        if let Some((literal, span)) = literal
            && let Err(message) = literal_bits(literal, scalar)
        {
            return refuse(span, message);
        }
        Ok(())
    }

    /// The type, the literal of a definition, and the predicates that `op` gives to `key`.
    fn config_declaration(&mut self, op: &'m syntax::Op, key: &str) -> Built<Declared<'m>> {
        let mut declaration = self.reader(op);
        while declaration.peek() == Some(Kind::Word) {
            declaration.skip_group()?;
        }
        declaration.symbol()?;
        let mut literal = None;
        if declaration.name() == "config.def" {
            declaration.expect(Kind::Equal)?;
            literal = Some(self.literal(&mut declaration)?);
        }
        declaration.expect(Kind::Colon)?;
        let mut named = None;
        if declaration.peek() == Some(Kind::Value) {
            named = Some(declaration.value_name()?.0);
            declaration.expect(Kind::Colon)?;
        }
        let type_span = declaration.here();
        let ty = self.plain_type(&mut declaration)?;
        let Type::Scalar(scalar) = ty else {
            return refuse(type_span, format!("a config value is a scalar here, found {ty}"));
        };
        let predicates =
            if declaration.accept_word("where") { self.predicate_list(&mut declaration)? } else { Vec::new() };
        declaration.end()?;
        for predicate in &predicates {
            for argument in &predicate.arguments {
                if let Argument::Name(name, span) = argument
                    && Some(*name) != named
                {
                    return refuse(*span, format!("`%{name}` is not the declared value of `@{key}`"));
                }
            }
            if predicate.fact.is_of_floats() && !scalar.is_float() {
                return refuse(predicate.span, format!("`{}` is about floats; `@{key}` is {scalar}", predicate.text));
            }
        }
        Ok((scalar, literal, predicates))
    }
}

/// The bits of bound text, by the declared type.
pub(crate) fn bound_bits(text: &str, ty: ScalarType) -> Result<u64, String> {
    let text = text.trim();
    let literal = match ty {
        ScalarType::I1 => match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Literal::Bool(true),
            "false" | "0" => Literal::Bool(false),
            _ => return Err("expected true, false, 0 or 1".to_owned()),
        },
        ty if ty.is_float() => match text.parse::<f64>() {
            Ok(value) => Literal::Float(value),
            Err(_) => return Err(format!("expected a decimal number of type {ty}")),
        },
        ty => match parse_int(text) {
            Some(value) => Literal::Int(value),
            None => return Err(format!("expected an integer of type {ty}")),
        },
    };
    literal_bits(literal, ty)
}
