//! Work-items that end before the others: `kernel.exit`, `kernel.assert`.

use crate::diag::{Built, refuse};
use crate::lex::Kind;
use crate::ops::{Flags, OpKind};
use crate::reader::Reader;
use crate::types::ScalarType;

use super::Builder;
use super::control::Terminator;
use super::names::Binding;

/// The longest text of an assertion: each may end in an image.
const MAX_ASSERT_BYTES: usize = 1024;

impl<'m> Builder<'m> {
    /// `%done : i1 [{ .. kernel.return }]`.
    pub(super) fn exit(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let condition = self.operand(reader)?;
        self.require(reader, condition, span, ScalarType::I1)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, condition)?;
        let region = if reader.peek() == Some(Kind::BraceOpen) { Some(reader.region()?) } else { None };
        reader.end()?;
        if !self.in_kernel || !self.calls.is_empty() || self.names.depth() != 1 {
            return refuse(reader.span(), "`kernel.exit` stands at the top level of a kernel's body only");
        }
        let op_span = self.span;
        let (block, built) = self.in_block(Vec::new(), |builder| {
            if let Some(region) = region {
                builder.region_ops(region, Vec::new(), Terminator::Exit)?;
            }
            builder.flags = Flags::default();
            builder.push(OpKind::Return, &[], Vec::new(), Vec::new());
            Ok(())
        });
        self.span = op_span;
        built?;
        if self.constant_of(condition) != Some(0) {
            self.push(OpKind::Exit, &[condition], Vec::new(), vec![block]);
        }
        Ok(Vec::new())
    }

    /// `%ok ["text"] : i1`.
    pub(super) fn assert(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let span = reader.here();
        let condition = self.operand(reader)?;
        self.require(reader, condition, span, ScalarType::I1)?;
        let text_span = reader.here();
        let bracket = reader.accept(Kind::BracketOpen);
        let text = if bracket || reader.peek() == Some(Kind::Str) { reader.string()? } else { String::new() };
        if bracket {
            reader.expect(Kind::BracketClose)?;
        }
        if text.len() > MAX_ASSERT_BYTES {
            let message =
                format!("the text of an assertion has at most {MAX_ASSERT_BYTES} bytes, found {}", text.len());
            return refuse(text_span, message);
        }
        reader.expect(Kind::Colon)?;
        self.typed(reader, condition)?;
        reader.end()?;
        if self.constant_of(condition) != Some(1) {
            self.push(OpKind::Assert(text.into_boxed_str()), &[condition], Vec::new(), Vec::new());
        }
        Ok(Vec::new())
    }
}
