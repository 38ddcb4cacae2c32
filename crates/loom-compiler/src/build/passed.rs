//! What functions and templates take and give: values, and encodings, which are known while building.
//!
//! - `-> (%x as T)` ties a result to a parameter or operand of that name. Values are not storage here: it is a `T`.
//! - A name that only the type of a parameter has (`%a: tensor<[%m]xf32>`) is introduced there: an extent of the argument.

use std::fmt;

use crate::diag::{Built, Refusal, refuse};
use crate::ir::Span;
use crate::lex::Kind;
use crate::reader::Reader;
use crate::types::{Dim, Type};

use super::Builder;
use super::control::Signature;
use super::names::{Binding, Layout};
use super::types::same;

/// A type of a function's signature.
#[derive(Clone, Debug)]
pub(super) enum Passed<'m> {
    Value(Type),
    /// `encoding<role>`; without a role, any.
    Encoding(&'m str),
}

impl fmt::Display for Passed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(ty) => ty.fmt(f),
            Self::Encoding("") => f.write_str("encoding"),
            Self::Encoding(role) => write!(f, "encoding<{role}>"),
        }
    }
}

/// Whether two lists of types are the same.
pub(super) fn fit(a: &[Passed<'_>], b: &[Passed<'_>]) -> bool {
    let fits = |pair: (&Passed<'_>, &Passed<'_>)| match pair {
        (Passed::Value(a), Passed::Value(b)) => same(a, b),
        (Passed::Encoding(a), Passed::Encoding(b)) => a == b || a.is_empty() || b.is_empty(),
        (Passed::Value(_), Passed::Encoding(_)) | (Passed::Encoding(_), Passed::Value(_)) => false,
    };
    a.len() == b.len() && a.iter().zip(b).all(fits)
}

/// What stands for an encoding that only a caller knows. What is made with it is not looked at until there is one.
pub(super) fn unknown_encoding(role: &str) -> Binding {
    if role == "layout" { Binding::Layout(Layout::Dense) } else { Binding::Reported }
}

impl<'m> Builder<'m> {
    /// A type, or `encoding<role>`.
    fn passed_type(&mut self, reader: &mut Reader<'m>) -> Built<Passed<'m>> {
        match reader.token() {
            Some(token) if reader.text(token) == "encoding" => self.encoding_type(reader).map(Passed::Encoding),
            _ => self.plain_type(reader).map(Passed::Value),
        }
    }

    /// `-> (t, %x as t)` or `-> t`, if there.
    pub(super) fn passed_types(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Passed<'m>>> {
        let mut types = Vec::new();
        if !reader.accept(Kind::Arrow) {
            return Ok(types);
        }
        if !reader.accept(Kind::ParenOpen) {
            types.push(self.passed_type(reader)?);
            return Ok(types);
        }
        if reader.accept(Kind::ParenClose) {
            return Ok(types);
        }
        loop {
            let mut tied = None;
            if reader.peek() == Some(Kind::Value) {
                let (name, span) = reader.value_name()?;
                tied = Some((name, span, self.value_named(name, span)?));
                reader.expect_word("as")?;
            }
            let ty = self.passed_type(reader)?;
            if let (Some((name, span, value)), Passed::Value(ty)) = (tied, &ty)
                && !same(self.ty(value), ty)
            {
                return refuse(
                    span,
                    format!("a result tied to `%{name}` has its type, {}, found {ty}", self.ty(value)),
                );
            }
            types.push(ty);
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::ParenClose)?;
                return Ok(types);
            }
        }
    }

    /// The value or encoding that the next token names.
    fn passed(&mut self, reader: &mut Reader<'m>) -> Built<Binding> {
        let (name, span) = reader.value_name()?;
        match self.names.get(name) {
            Some(known @ (Binding::Layout(_) | Binding::Encoding(_))) => Ok(known.clone()),
            _ => self.value_named(name, span).map(Binding::Value),
        }
    }

    /// `T, ..`: the written types of what is passed, in order.
    fn all_passed(&mut self, reader: &mut Reader<'m>, passed: &[Binding]) -> Built<()> {
        for (at, passed) in passed.iter().enumerate() {
            if at > 0 {
                reader.expect(Kind::Comma)?;
            }
            let span = reader.here();
            match passed {
                Binding::Value(value) => self.typed(reader, *value)?,
                other => {
                    let written = self.passed_type(reader)?;
                    if !self.is_passed(other, &written)? {
                        let found = self.passed_name(other);
                        return refuse(span, format!("`{}`: expected {found}, found {written}", reader.name()));
                    }
                }
            }
        }
        Ok(())
    }

    /// `[%a, %l : T, encoding<layout>]` and the end of the op.
    pub(super) fn passed_read(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let mut passed = Vec::new();
        if reader.peek() == Some(Kind::Value) {
            passed.push(self.passed(reader)?);
            while reader.accept(Kind::Comma) {
                passed.push(self.passed(reader)?);
            }
            reader.expect(Kind::Colon)?;
            self.all_passed(reader, &passed)?;
        }
        reader.end()?;
        Ok(passed)
    }

    /// `(%a, ..) [pure] : (T, ..) [-> (T, ..)]` and the end of the op.
    pub(super) fn call_operands(&mut self, reader: &mut Reader<'m>) -> Built<(Vec<Binding>, Vec<Passed<'m>>)> {
        reader.expect(Kind::ParenOpen)?;
        let mut arguments = Vec::new();
        if !reader.accept(Kind::ParenClose) {
            arguments.push(self.passed(reader)?);
            while reader.accept(Kind::Comma) {
                arguments.push(self.passed(reader)?);
            }
            reader.expect(Kind::ParenClose)?;
        }
        self.modifiers(reader, &["pure"]);
        reader.expect(Kind::Colon)?;
        reader.expect(Kind::ParenOpen)?;
        self.all_passed(reader, &arguments)?;
        reader.expect(Kind::ParenClose)?;
        let results = self.passed_types(reader)?;
        reader.end()?;
        Ok((arguments, results))
    }

    /// Whether `binding` is what a type of a signature asks for.
    pub(super) fn is_passed(&self, binding: &Binding, ty: &Passed<'m>) -> Built<bool> {
        Ok(match (binding, ty) {
            (Binding::Reported, _) => return Err(Refusal::Reported),
            (Binding::Value(value), Passed::Value(ty)) => same(self.ty(*value), ty),
            (Binding::Layout(_), Passed::Encoding(role)) => matches!(*role, "" | "layout"),
            (Binding::Encoding(_), Passed::Encoding(role)) => *role != "layout",
            _ => false,
        })
    }

    /// What `binding` is, for a message.
    pub(super) fn passed_name(&self, binding: &Binding) -> String {
        match binding {
            Binding::Value(value) => self.ty(*value).to_string(),
            Binding::Layout(_) => "encoding<layout>".to_owned(),
            _ => "an encoding of another role".to_owned(),
        }
    }

    /// Gives `arguments` to the parameters of a signature, whose names they get; `Some` says why they do not fit.
    pub(super) fn parameters_taken(
        &mut self,
        reader: &Reader<'m>,
        signature: &Signature<'m>,
        arguments: &[Binding],
    ) -> Built<Option<String>> {
        if arguments.len() != signature.parameters.len() {
            let (given, taken) = (arguments.len(), signature.parameters.len());
            return Ok(Some(format!("it takes {taken} arguments, {given} are given")));
        }
        for ((name, at), argument) in signature.parameters.iter().zip(arguments) {
            self.define(name, *at, argument.clone());
        }
        for ((at, (name, _)), argument) in signature.types_at.iter().zip(&signature.parameters).zip(arguments) {
            let mut typed = reader.clone();
            typed.at = *at;
            let dims = match argument {
                Binding::Value(value) => match self.ty(*value) {
                    Type::View(view) => view.dims.clone(),
                    Type::Vector(vector) => vector.dims.clone(),
                    Type::Scalar(_) | Type::Buffer | Type::Async(_) => Vec::new(),
                },
                _ => Vec::new(),
            };
            let written = self.introducing(dims, |builder| builder.passed_type(&mut typed))?;
            if !self.is_passed(argument, &written)? {
                let found = self.passed_name(argument);
                return Ok(Some(format!("its `%{name}` is {written}, the argument is {found}")));
            }
        }
        Ok(None)
    }

    /// Runs `read`; a name without a meaning that it finds as extent `at` then stands for `dims[at]`, or for what is not known.
    pub(super) fn introducing<T>(&mut self, dims: Vec<Dim>, read: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.introduced.replace(dims);
        let result = read(self);
        self.introduced = outer;
        result
    }

    /// Gives a name that a parameter's type introduces its meaning.
    pub(super) fn introduce(&mut self, name: &'m str, span: Span, at: usize) {
        let Some(dims) = self.introduced.as_ref().filter(|_| self.names.get(name).is_none()) else {
            return;
        };
        let value = match dims.get(at) {
            Some(dim) => self.dim_value(*dim),
            None => self.new_value(Type::Scalar(crate::types::ScalarType::Index)),
        };
        self.define(name, span, Binding::Value(value));
    }

    /// What is given by something of which only the types are known.
    pub(super) fn unknown_results(&mut self, types: &[Passed<'m>]) -> Built<Vec<Binding>> {
        let mut results = Vec::new();
        for ty in types {
            results.push(match ty {
                Passed::Value(ty) => Binding::Value(self.new_placed(ty.clone(), Layout::Dense)?),
                Passed::Encoding(role) => unknown_encoding(role),
            });
        }
        Ok(results)
    }
}
