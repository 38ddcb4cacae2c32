//! `global.*`: constants are folded, read-only bytes are buffers, variables are refused.

use crate::diag::{Built, refuse};
use crate::ir::{Body, Op, Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Family, OpKind};
use crate::reader::Reader;
use crate::syntax;
use crate::types::Type;

use super::names::Binding;
use super::types::literal_bits;
use super::{Builder, Mode, one};

/// The most bytes of read-only data that one kernel uses.
const MAX_CONSTANT_BYTES: usize = 1 << 20;

impl<'m> Builder<'m> {
    /// `global.*` inside a body.
    pub(super) fn global_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        if !matches!(op, "load" | "store") {
            return self.unknown(reader, "global.load");
        }
        let store = op == "store";
        if store {
            self.operand(reader)?;
            reader.expect(Kind::Comma)?;
        }
        let (symbol, span) = reader.symbol()?;
        let module = self.module;
        let Some(op) = module.symbols.get(symbol).map(|at| &module.ops[*at]) else {
            return refuse(
                span,
                format!("`@{symbol}` is not defined; a global is a `global.rodata.def` or `global.constant`"),
            );
        };
        let kind = module.op_name(op);
        if kind == "global.variable" {
            return refuse(
                span,
                format!("`@{symbol}` is a variable: kernels have none that outlive a launch; use a buffer"),
            );
        }
        if store {
            return refuse(span, format!("`@{symbol}` is a `{kind}`, which nothing is stored to"));
        }
        reader.expect(Kind::Colon)?;
        let type_span = reader.here();
        let ty = self.plain_type(reader)?;
        reader.end()?;
        match kind {
            "global.constant" => {
                let mut constant = self.reader(op);
                let (declared, bits) = self.global_constant(&mut constant)?;
                if ty != declared {
                    return refuse(type_span, format!("`@{symbol}` is of type {declared}, found {ty}"));
                }
                Ok(one(self.constant(ty, bits)))
            }
            "global.rodata.def" | "global.rodata.decl" if ty != Type::Buffer => {
                refuse(type_span, format!("`@{symbol}` is a buffer, found {ty}"))
            }
            "global.rodata.def" => {
                let bytes = self.rodata(op)?;
                self.constant_bytes(bytes, span).map(one)
            }
            "global.rodata.decl" if self.mode == Mode::Verify => Ok(one(self.new_value(ty))),
            _ if kind.ends_with(".decl") => {
                refuse(span, format!("`@{symbol}` is only declared; no text that is linked defines it"))
            }
            _ => refuse(span, format!("`@{symbol}` is a `{kind}`, not a global")),
        }
    }

    /// Verifies a constant or read-only bytes, whether they are used or not.
    pub(super) fn check_global(&mut self, op: &'m syntax::Op) -> Built<()> {
        let mut reader = self.reader(op);
        if reader.name() == "global.constant" {
            self.global_constant(&mut reader).map(drop)
        } else {
            self.rodata(op).map(drop)
        }
    }

    /// `[modifiers] @s : T = literal`.
    fn global_constant(&mut self, reader: &mut Reader<'m>) -> Built<(Type, u64)> {
        while reader.peek().is_some_and(|kind| kind != Kind::Symbol) {
            reader.skip_group()?;
        }
        reader.symbol()?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        let ty = self.plain_type(reader)?;
        let Some(scalar) = ty.scalar() else {
            return refuse(span, format!("a constant is a scalar here, found {ty}"));
        };
        reader.expect(Kind::Equal)?;
        let (literal, span) = self.literal(reader)?;
        reader.end()?;
        match literal_bits(literal, scalar) {
            Ok(bits) => Ok((ty, bits)),
            Err(message) => refuse(span, message),
        }
    }

    /// `[modifiers] @name = bytes("hex")`.
    fn rodata(&mut self, op: &'m syntax::Op) -> Built<Vec<u8>> {
        let mut reader = self.reader(op);
        while reader.peek().is_some_and(|kind| kind != Kind::Symbol) {
            reader.skip_group()?;
        }
        reader.symbol()?;
        reader.expect(Kind::Equal)?;
        reader.expect_word("bytes")?;
        reader.expect(Kind::ParenOpen)?;
        let span = reader.here();
        let text = reader.string()?;
        reader.expect(Kind::ParenClose)?;
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        match digits {
            Some(digits) if digits.len() % 2 == 0 => {
                Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
            }
            _ => refuse(span, "bytes are an even number of hex digits"),
        }
    }

    /// A buffer of these bytes, which kernels read.
    fn constant_bytes(&mut self, bytes: Vec<u8>, span: Span) -> Built<ValueId> {
        if bytes.len() > MAX_CONSTANT_BYTES {
            return refuse(
                span,
                format!("at most {MAX_CONSTANT_BYTES} bytes of read-only data, found {}", bytes.len()),
            );
        }
        if self.mode == Mode::Verify {
            return Ok(self.new_value(Type::Buffer));
        }
        Ok(self.emit(OpKind::Bytes(bytes.into_boxed_slice()), &[], Type::Buffer))
    }

    /// Read-only bytes are only read, as far as it is seen what a store is to.
    pub(super) fn check_read_only(&self, body: &Body) -> Built<()> {
        let mut read_only = vec![false; body.values.len()];
        let mut found = false;
        for op in body.ops() {
            let constant = match op.kind.family() {
                Family::Place => {
                    matches!(op.kind, OpKind::Bytes(_))
                        || op.operands.first().is_some_and(|from| read_only[from.index()])
                }
                _ => false,
            };
            for result in op.results.iter().filter(|_| constant) {
                read_only[result.index()] = true;
                found = true;
            }
        }
        let stores = body.ops().filter(|op| found && op.kind.family() == Family::Write);
        let written = |op: &Op| match op.kind {
            OpKind::AsyncCopy { .. } => read_only[op.operands[1].index()],
            _ => op.operands.iter().any(|operand| read_only[operand.index()]),
        };
        match stores.into_iter().find(|op| written(op)) {
            Some(op) => refuse(op.span, "this stores to read-only data (`global.rodata.def`)"),
            None => Ok(()),
        }
    }
}
