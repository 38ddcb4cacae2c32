//! `view.atomic.*`, `vector.atomic.*` and `buffer.fence`.
//!
//! - Orderings and scopes must be written; a load does not release, a store does not acquire, and neither does an exchange that
//!   fails release.
//! - Cache hints and `volatile` change nothing: an atomic access is made as often as it is written.

use crate::diag::{Built, refuse};
use crate::ir::{Span, ValueId};
use crate::lex::Kind;
use crate::ops::{Atomic, Combine, OpKind, Ordering, Scope};
use crate::reader::{Attribute, Reader};
use crate::types::{ScalarType, Type, ViewType};

use super::element::{FLAGS, flag, with_element};
use super::memory::CACHE_KEYS;
use super::names::Binding;
use super::{Builder, one};

/// What the language calls what an atomic access does.
const KINDS: &str = "one of xchgi, xchgf, addi, addf, subi, andi, ori, xori, minsi, maxsi, minui, maxui, minimumf, maximumf, \
                     minnumf, maxnumf";

/// What the element must be for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Integer,
    Float,
    /// fp8 too: bits are moved only.
    FloatBits,
    Any,
}

fn kind(word: &str) -> Option<(Atomic, Class)> {
    let combine = |combine: Combine| {
        let class = if combine.binary().is_float() { Class::Float } else { Class::Integer };
        Some((Atomic::Combine(combine), class))
    };
    match word {
        "xchgi" => Some((Atomic::Exchange, Class::Integer)),
        "xchgf" => Some((Atomic::Exchange, Class::FloatBits)),
        "subi" => Some((Atomic::SubI, Class::Integer)),
        "addi" => combine(Combine::AddI),
        "addf" => combine(Combine::AddF),
        "andi" => combine(Combine::AndI),
        "ori" => combine(Combine::OrI),
        "xori" => combine(Combine::XorI),
        "minsi" => combine(Combine::MinSI),
        "maxsi" => combine(Combine::MaxSI),
        "minui" => combine(Combine::MinUI),
        "maxui" => combine(Combine::MaxUI),
        "minimumf" => combine(Combine::MinimumF),
        "maximumf" => combine(Combine::MaximumF),
        "minnumf" => combine(Combine::MinNumF),
        "maxnumf" => combine(Combine::MaxNumF),
        _ => None,
    }
}

const ORDERINGS: &str = "relaxed, acquire, release, acq_rel or seq_cst";

fn ordering(word: &str) -> Option<Ordering> {
    Some(match word {
        "relaxed" => Ordering::Relaxed,
        "acquire" => Ordering::Acquire,
        "release" => Ordering::Release,
        "acq_rel" => Ordering::AcqRel,
        "seq_cst" => Ordering::SeqCst,
        _ => return None,
    })
}

const SCOPES: &str = "thread, subgroup, workgroup, device or system";

fn scope(word: &str) -> Option<Scope> {
    Some(match word {
        "thread" => Scope::Thread,
        "subgroup" => Scope::Subgroup,
        "workgroup" => Scope::Workgroup,
        "device" => Scope::Device,
        "system" => Scope::System,
        _ => return None,
    })
}

impl<'m> Builder<'m> {
    /// `scope(system) ordering(acquire)`.
    pub(super) fn fence(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        reader.expect_word("scope")?;
        reader.expect(Kind::ParenOpen)?;
        let scope = reader.choose(SCOPES, scope)?;
        reader.expect(Kind::ParenClose)?;
        reader.expect_word("ordering")?;
        reader.expect(Kind::ParenOpen)?;
        let span = reader.here();
        let ordering = reader.choose(ORDERINGS, ordering)?;
        reader.expect(Kind::ParenClose)?;
        reader.end()?;
        if ordering == Ordering::Relaxed {
            return refuse(span, "a relaxed fence orders nothing; legal: acquire, release, acq_rel or seq_cst");
        }
        self.push(OpKind::Fence { ordering, scope }, &[], Vec::new(), Vec::new());
        Ok(Vec::new())
    }

    /// `<kind[, volatile]>`; where there is no kind, `<volatile>` or nothing.
    fn atomic_kind(&mut self, reader: &mut Reader<'m>, what: &str) -> Built<(Atomic, Class)> {
        let plain = match what {
            "load" => Some(Atomic::Load),
            "store" => Some(Atomic::Store),
            "cmpxchg" => Some(Atomic::CompareExchange { failure: Ordering::Relaxed }),
            _ => None,
        };
        if let Some(atomic) = plain {
            self.volatile(reader)?;
            return Ok((atomic, Class::Any));
        }
        reader.expect(Kind::Less)?;
        let found = reader.choose(KINDS, kind)?;
        while reader.accept(Kind::Comma) || reader.accept(Kind::Pipe) {
            reader.choose(&format!("`volatile` or {FLAGS}"), |word| {
                (word == "volatile" || flag(word).is_some()).then_some(())
            })?;
        }
        reader.expect(Kind::Greater)?;
        Ok(found)
    }

    /// `{ordering = .., scope = ..}`, for an exchange that compares `{success_ordering = .., failure_ordering = .., scope = ..}`,
    /// and cache hints.
    fn atomic_attributes(&self, reader: &mut Reader<'m>, atomic: Atomic) -> Built<(Atomic, Ordering, Scope)> {
        let compares = matches!(atomic, Atomic::CompareExchange { .. });
        let (main, main_legal) = if compares { ("success_ordering", ORDERINGS) } else { ("ordering", ORDERINGS) };
        let (mut found, mut failed) = (None, None);
        let mut seen: Option<Scope> = None;
        for entry in reader.dictionary()? {
            let word = if let Attribute::Word(word) = entry.value { word } else { "" };
            let order = |legal: &str| match ordering(word) {
                Some(ordering) => Ok(Some((ordering, entry.value_span))),
                None => refuse(entry.value_span, format!("`{}` is {legal}", entry.key)),
            };
            match entry.key {
                key if key == main => found = order(main_legal)?,
                "failure_ordering" if compares => failed = order("relaxed, acquire or seq_cst")?,
                "scope" => match scope(word) {
                    Some(scope) => seen = Some(scope),
                    None => return refuse(entry.value_span, format!("`scope` is {SCOPES}")),
                },
                key if CACHE_KEYS.contains(&key) && !word.is_empty() => {}
                _ => {
                    let more = if compares { ", failure_ordering" } else { "" };
                    let message =
                        format!("legal here: {main}{more}, scope, cache_scope, cache_temporal, each a keyword");
                    return refuse(entry.span, message);
                }
            }
        }
        let missing = |key: &str| refuse(reader.span(), format!("`{}` needs `{key}` in its `{{..}}`", reader.name()));
        let Some((ordering, span)) = found else {
            return missing(main);
        };
        let Some(scope) = seen else {
            return missing("scope");
        };
        let legal = match atomic {
            Atomic::Load => (!matches!(ordering, Ordering::Release | Ordering::AcqRel)).then_some(atomic),
            Atomic::Store => (!matches!(ordering, Ordering::Acquire | Ordering::AcqRel)).then_some(atomic),
            Atomic::CompareExchange { .. } => match failed {
                None => return missing("failure_ordering"),
                Some((Ordering::Release | Ordering::AcqRel, span)) => {
                    return refuse(
                        span,
                        "an exchange that fails stores nothing to release; legal: relaxed, acquire or seq_cst",
                    );
                }
                Some((failure, _)) => Some(Atomic::CompareExchange { failure }),
            },
            Atomic::Exchange | Atomic::SubI | Atomic::Combine(_) => Some(atomic),
        };
        match legal {
            Some(atomic) => Ok((atomic, ordering, scope)),
            None if atomic == Atomic::Load => refuse(span, "an atomic load is relaxed, acquire or seq_cst"),
            None => refuse(span, "an atomic store is relaxed, release or seq_cst"),
        }
    }

    fn check_atomic_element(&self, reader: &Reader<'m>, view: &ViewType, class: Class, span: Span) -> Built<()> {
        let ty = view.element;
        let (legal, takes) = match class {
            Class::Integer => (!ty.is_float() && ty != ScalarType::I1, "integers"),
            Class::Float => (ty.is_float() && ty.bits() >= 16, "f16, bf16, f32 or f64"),
            Class::FloatBits => (ty.is_float(), "floats"),
            Class::Any => (true, ""),
        };
        if legal {
            return Ok(());
        }
        refuse(span, format!("`{}`: this kind takes {takes}, the view's elements are {ty}", reader.name()))
    }

    /// `<kind> [%x[, %y],] %v[i, ..][[%offsets][, %mask[, %pass]]] {..} : T, view[, offsets[, mask[, pass]]] [-> T]`. `op` is
    /// `atomic.` and what, with vectors perhaps `.mask`.
    pub(super) fn atomic(&mut self, reader: &mut Reader<'m>, op: &str, vector: bool) -> Built<Vec<Binding>> {
        let what = op.strip_prefix("atomic.").unwrap_or(op);
        let (what, masked) = match what.strip_suffix(".mask") {
            Some(what) => (what, true),
            None => (what, false),
        };
        let (atomic, class) = self.atomic_kind(reader, what)?;
        let has_result = !matches!(what, "reduce" | "store");
        let mut operands = Vec::new();
        let mut values = Vec::new();
        for _ in 0..atomic.values() {
            let span = reader.here();
            values.push((self.operand(reader)?, span));
            reader.expect(Kind::Comma)?;
        }
        operands.extend(values.iter().map(|(value, _)| *value));
        let (view, view_ty, view_span) = self.view_operand(reader)?;
        operands.push(view);
        operands.extend(match vector {
            true => self.view_origin(reader, &view_ty, view_span)?,
            false => self.view_indices(reader, &view_ty, view_span)?,
        });
        let first = values.first().map(|(value, _)| self.ty(*value).clone());
        let mut extra: Vec<ValueId> = Vec::new();
        if vector {
            reader.expect(Kind::BracketOpen)?;
            let span = reader.here();
            let offsets = self.operand(reader)?;
            reader.expect(Kind::BracketClose)?;
            extra.push(offsets);
            self.check_offsets(reader, &view_ty, first.as_ref(), offsets, span)?;
            if masked {
                reader.expect(Kind::Comma)?;
                let span = reader.here();
                let mask = self.operand(reader)?;
                extra.push(mask);
                let wanted = with_element(self.ty(offsets), ScalarType::I1);
                self.require_type(reader, mask, &wanted, span)?;
                if has_result {
                    reader.expect(Kind::Comma)?;
                    let span = reader.here();
                    let pass = self.operand(reader)?;
                    extra.push(pass);
                    let wanted = with_element(self.ty(offsets), view_ty.element);
                    self.require_type(reader, pass, &wanted, span)?;
                }
            }
        }
        let element = match extra.first() {
            Some(offsets) => with_element(self.ty(*offsets), view_ty.element),
            None => Type::Scalar(view_ty.element),
        };
        for (value, span) in &values {
            self.require_type(reader, *value, &element, *span)?;
        }
        let (atomic, ordering, scope) = self.atomic_attributes(reader, atomic)?;
        reader.expect(Kind::Colon)?;
        if let Some((value, _)) = values.first() {
            self.typed(reader, *value)?;
            reader.expect(Kind::Comma)?;
        }
        // Of an exchange that compares, both values' types may be written, or one for both.
        if let (Some((value, _)), true) =
            (values.get(1), reader.token().is_some_and(|token| reader.text(token) != "view"))
        {
            self.typed(reader, *value)?;
            reader.expect(Kind::Comma)?;
        }
        self.typed(reader, view)?;
        for value in &extra {
            reader.expect(Kind::Comma)?;
            self.typed(reader, *value)?;
        }
        // The type of what was there follows from that of the value, and need not be written with one.
        if has_result && (values.is_empty() || reader.peek() == Some(Kind::Arrow)) {
            reader.expect(Kind::Arrow)?;
            let span = reader.here();
            let result = self.plain_type(reader)?;
            if result != element {
                return refuse(span, format!("`{}` gives {element}, found {result}", reader.name()));
            }
        }
        reader.end()?;
        self.check_atomic_element(reader, &view_ty, class, view_span)?;
        operands.extend(extra);
        let kind = OpKind::Atomic { atomic, ordering, scope, gathered: vector, masked };
        if has_result {
            return Ok(one(self.emit_here(kind, &operands, element)));
        }
        self.push(kind, &operands, Vec::new(), Vec::new());
        Ok(Vec::new())
    }

    fn require_type(&self, reader: &Reader<'m>, value: ValueId, wanted: &Type, span: Span) -> Built<()> {
        let found = self.ty(value);
        if found == wanted {
            return Ok(());
        }
        refuse(span, format!("`{}`: expected a value of type {wanted}, found {found}", reader.name()))
    }

    /// Offsets are integers, one per lane, along the last axis of the view.
    fn check_offsets(
        &self,
        reader: &Reader<'m>,
        view: &ViewType,
        value: Option<&Type>,
        offsets: ValueId,
        span: Span,
    ) -> Built<()> {
        if view.dims.is_empty() {
            return refuse(span, format!("`{}`: a view of rank 0 has no axis for offsets", reader.name()));
        }
        match (self.ty(offsets), value) {
            (Type::Vector(found), _) if found.element.is_float() || found.element == ScalarType::I1 => {
                refuse(span, format!("`{}`: offsets are index or integers, found {}", reader.name(), self.ty(offsets)))
            }
            (Type::Vector(found), Some(Type::Vector(value))) if found.dims == value.dims => Ok(()),
            (Type::Vector(_), None) => Ok(()),
            (found, Some(value)) => refuse(
                span,
                format!("`{}`: a vector of offsets with the shape of {value}, found {found}", reader.name()),
            ),
            (found, None) => refuse(span, format!("`{}`: expected a vector of offsets, found {found}", reader.name())),
        }
    }
}
