//! Command programs: recorded sequences of launches. They are host programs, which the embedding interprets; here they are
//! verified, with everything unknown that their arguments give, and never compiled.

use crate::diag::{Built, refuse};
use crate::lex::Kind;
use crate::reader::Reader;
use crate::syntax;
use crate::types::{ScalarType, Type};

use super::control::Terminator;
use super::names::{Binding, Layout};
use super::{Builder, Place, one};

impl<'m> Builder<'m> {
    /// Verifies a `command.program.def`.
    pub(super) fn command_program(&mut self, op: &'m syntax::Op) -> Built<()> {
        let mut reader = self.reader(op);
        self.span = reader.span();
        self.head(&mut reader)?;
        let settings = self.signature(&mut reader)?;
        reader.expect_word("launch")?;
        let buffers = self.signature(&mut reader)?;
        for ((name, span), ty) in settings.parameters.iter().zip(self.abi_types(&reader, &settings)?) {
            if ty.scalar().is_none_or(ScalarType::is_float) {
                return refuse(
                    *span,
                    format!("what a command program is specialised by is an integer; `%{name}` is {ty}"),
                );
            }
            let value = self.new_value(ty);
            self.define(name, *span, Binding::Value(value));
        }
        for ((name, span), ty) in buffers.parameters.iter().zip(self.abi_types(&reader, &buffers)?) {
            if ty != Type::Buffer {
                return refuse(*span, format!("a command program is launched over buffers; `%{name}` is {ty}"));
            }
            let value = self.new_value(ty);
            self.define(name, *span, Binding::Value(value));
        }
        self.where_clause(&mut reader)?;
        let region = reader.region()?;
        reader.end()?;
        self.block_ops(region, Terminator::CommandReturn).map(drop)
    }

    /// An op of a command program, if it is one that stands only there or means something else there.
    pub(super) fn command_op(&mut self, reader: &mut Reader<'m>, name: &str) -> Option<Built<Vec<Binding>>> {
        Some(match name {
            "kernel.launch" | "command.program.launch" => self.record_launch(reader),
            "command.serial" | "command.concurrent" | "kernel.launch.serial" | "kernel.launch.concurrent" => {
                self.launches(reader)
            }
            "command.parameter" => self.packed_parameter(reader),
            "buffer.alloca" => self.transient(reader),
            _ if name.starts_with("command.") => self.unknown(
                reader,
                "kernel.launch, command.program.launch, command.serial, command.concurrent, command.parameter, \
                 command.return, command.yield",
            ),
            _ if name.starts_with("kernel.") || name.starts_with("view.") || name.starts_with("vector.") => refuse(
                reader.span(),
                format!(
                    "`{name}`: a command program runs on the host and has no work-items; legal: launches, index, scalar, \
                         scf, config.get, buffer.alloca<global>, buffer.view, func.call"
                ),
            ),
            _ => return None,
        })
    }

    /// `{ .. }` of launches, ended by an optional `command.yield`.
    fn launches(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let region = reader.region()?;
        reader.end()?;
        let (_, built) =
            self.in_block(Vec::new(), |builder| builder.region_ops(region, Vec::new(), Terminator::CommandYield));
        built.map(|_| Vec::new())
    }

    /// `@k[%w, ..](%a, ..) : [T, ..](T, ..)`.
    fn record_launch(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let kernel = reader.name() == "kernel.launch";
        let (callee, span) = reader.symbol()?;
        let mut groups = [Vec::new(), Vec::new()];
        let group = |builder: &mut Self, reader: &mut Reader<'m>, close: Kind| {
            if reader.accept(close) {
                return Ok(Vec::new());
            }
            let operands = builder.operands(reader)?;
            reader.expect(close)?;
            Ok(operands.into_iter().map(|(value, _)| value).collect::<Vec<_>>())
        };
        if reader.accept(Kind::BracketOpen) {
            groups[0] = group(self, reader, Kind::BracketClose)?;
        }
        reader.expect(Kind::ParenOpen)?;
        groups[1] = group(self, reader, Kind::ParenClose)?;
        reader.expect(Kind::Colon)?;
        if reader.accept(Kind::BracketOpen) {
            self.all_typed(reader, groups[0].iter().copied())?;
            reader.expect(Kind::BracketClose)?;
        } else if !groups[0].is_empty() {
            return reader.expected("`[` and the types of the workload");
        }
        reader.expect(Kind::ParenOpen)?;
        self.all_typed(reader, groups[1].iter().copied())?;
        reader.expect(Kind::ParenClose)?;
        reader.end()?;

        let module = self.module;
        let Some(op) = module.symbols.get(callee).map(|at| &module.ops[*at]) else {
            return refuse(span, format!("`@{callee}` is not defined in this text, nor in what is linked to it"));
        };
        let legal: [&str; 2] =
            if kernel { ["kernel.def", "kernel.decl"] } else { ["command.program.def", "command.program.decl"] };
        let kind = module.op_name(op);
        if !legal.contains(&kind) {
            return refuse(span, format!("`@{callee}` is a `{kind}`; `{}` takes a `{}`", reader.name(), legal[0]));
        }
        let expected = self.launch_types(op)?;
        for ((found, expected), what) in groups.iter().zip(&expected).zip(["workload", "launch"]) {
            if found.len() != expected.len() {
                let message = format!("`@{callee}` has {} {what} arguments, {} are given", expected.len(), found.len());
                return refuse(span, message);
            }
            for (at, (value, ty)) in found.iter().zip(expected).enumerate() {
                let found = self.ty(*value);
                // A view is passed as the bytes that it covers.
                if found != ty && !(*ty == Type::Buffer && matches!(found, Type::View(_))) {
                    return refuse(span, format!("{what} argument {at} of `@{callee}` is {ty}, found {found}"));
                }
            }
        }
        Ok(Vec::new())
    }

    /// The two lists of a kernel's or command program's signature.
    fn launch_types(&mut self, op: &'m syntax::Op) -> Built<[Vec<Type>; 2]> {
        self.isolated(|builder| {
            let mut reader = builder.reader(op);
            builder.head(&mut reader)?;
            let first = builder.signature(&mut reader)?;
            if reader.peek() == Some(Kind::BraceOpen) {
                reader.region()?;
            }
            let first_types = builder.abi_types(&reader, &first)?;
            if !reader.accept_word("launch") || reader.peek() != Some(Kind::ParenOpen) {
                return Ok([first_types.clone(), first_types]);
            }
            let second = builder.signature(&mut reader)?;
            Ok([first_types, builder.abi_types(&reader, &second)?])
        })
    }

    /// `%pack, "name.{}"[%i, ..] : view`: a parameter inside a packed buffer, found by the embedding.
    fn packed_parameter(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let pack = self.operand(reader)?;
        if *self.ty(pack) != Type::Buffer {
            return refuse(span, format!("`command.parameter`: expected a buffer, found {}", self.ty(pack)));
        }
        reader.expect(Kind::Comma)?;
        let name_span = reader.here();
        let name = reader.string()?;
        let indices = if reader.peek() == Some(Kind::BracketOpen) { self.indices(reader)? } else { Vec::new() };
        let holes = name.matches("{}").count();
        if holes != indices.len() {
            return refuse(
                name_span,
                format!("the name has {holes} places `{{}}`, {} indices are given", indices.len()),
            );
        }
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        let ty = match self.written(reader)? {
            (Type::View(view), layout) => Type::View(self.place(view, layout)?),
            (other, Layout::Dense | Layout::Strided(_)) => {
                return refuse(span, format!("`command.parameter` gives a view, found {other}"));
            }
        };
        reader.end()?;
        Ok(one(self.new_value(ty)))
    }

    /// `<global> align(A) %bytes : buffer`: storage for one run of the program.
    fn transient(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        reader
            .keyword("`global`: a command program allocates global memory", |word| (word == "global").then_some(()))?;
        if reader.accept_word("align") {
            reader.expect(Kind::ParenOpen)?;
            let (align, span) = reader.int()?;
            if align < 1 || align.count_ones() != 1 {
                return refuse(span, format!("an alignment is a positive power of two, found {align}"));
            }
            reader.expect(Kind::ParenClose)?;
        }
        let span = reader.here();
        let bytes = self.operand(reader)?;
        self.require(reader, bytes, span, ScalarType::Offset)?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        if self.plain_type(reader)? != Type::Buffer {
            return refuse(span, "`buffer.alloca` gives a buffer");
        }
        reader.end()?;
        Ok(one(self.new_value(Type::Buffer)))
    }

    /// Whether ops stand in a command program.
    pub(super) fn in_command(&self) -> bool {
        self.place == Place::Command
    }
}
