//! Target records: what a kernel or function was written for, as far as it matters here.
//!
//! - A record names a machine; any selector word and any dictionary are read. Only the width of subgroups is kept: it
//!   decides what a kernel computes, and [`SUBGROUP_SIZES`] can be honoured.
//! - Records of machines without work-items are refused where they are used.

use crate::diag::{Built, refuse};
use crate::ir::Span;
use crate::lex::Kind;
use crate::ops::SUBGROUP_SIZES;
use crate::reader::{Attribute, Reader};

use super::Builder;

impl<'m> Builder<'m> {
    /// `(@t)` behind the word `target`: what the record asks for.
    pub(super) fn target_clause(&mut self, reader: &mut Reader<'m>) -> Built<Option<u32>> {
        reader.expect(Kind::ParenOpen)?;
        let (symbol, span) = reader.symbol()?;
        reader.expect(Kind::ParenClose)?;
        self.target_subgroups(symbol, span)
    }

    /// The work-items per subgroup that the record `@symbol` asks for, if it does.
    pub(super) fn target_subgroups(&mut self, symbol: &str, span: Span) -> Built<Option<u32>> {
        let module = self.module;
        let Some(op) = module.symbols.get(symbol).map(|at| &module.ops[*at]) else {
            return refuse(
                span,
                format!("`@{symbol}` is not defined; a target is a record such as `target.generic<reference> @t`"),
            );
        };
        let kind = module.op_name(op);
        if !(kind.ends_with(".target") || kind.starts_with("target.")) {
            return refuse(span, format!("`@{symbol}` is a `{kind}`, not a target record"));
        }
        if kind.starts_with("aie2p") {
            return refuse(span, format!("`@{symbol}` is an NPU: its kernels have no work-items"));
        }
        let mut reader = self.reader(op);
        while reader.peek().is_some_and(|kind| kind != Kind::BraceOpen) {
            reader.at += 1;
        }
        let mut found = None;
        for entry in reader.dictionary()?.into_iter().filter(|entry| entry.key == "subgroup_size") {
            found = match entry.value {
                Attribute::Int(size) => SUBGROUP_SIZES.into_iter().find(|legal| i64::from(*legal) == size),
                _ => None,
            };
            if found.is_none() {
                let [narrow, wide] = SUBGROUP_SIZES;
                let message = format!(
                    "`@{symbol}` asks for subgroups that are not compiled here; legal: {narrow} or {wide} work-items"
                );
                return refuse(span, message);
            }
        }
        Ok(found)
    }

    /// A function written for some machine is called by a kernel, or verified on its own.
    pub(super) fn function_target(&mut self, reader: &mut Reader<'m>) -> Built<()> {
        let span = reader.here();
        let Some(size) = self.target_clause(reader)? else {
            return Ok(());
        };
        if self.calls.is_empty() {
            self.subgroup_size = size;
        } else if size != self.subgroup_size {
            let ours = self.subgroup_size;
            let message = format!("the function is for subgroups of {size} work-items, the kernel has those of {ours}");
            return refuse(span, message);
        }
        Ok(())
    }
}
