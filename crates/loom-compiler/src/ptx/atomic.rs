//! Atomic accesses and fences.
//!
//! - Integers of 32 and 64 bits, exchanges and comparisons are single instructions. Sums and extremes of floats go through a
//!   compare-and-swap loop: the instruction for f32 flushes subnormals, and has neither these extremes nor their zeros.
//! - Cells of 8 bits are swapped within the word around them, those of 16 by themselves.
//! - A failed compare-and-swap orders at least what it has to: the stronger of both orderings is used for either.

use super::emitter::{Emitter, Result};
use super::memory::Place;
use super::text::{Class, Operand, Reg, class_of};
use crate::ir::Op;
use crate::ops::{Atomic, Binary, Combine, OpKind, Ordering, Scope};
use crate::types::ScalarType;

const fn scope_name(scope: Scope) -> &'static str {
    match scope {
        // The narrowest there is.
        Scope::Thread | Scope::Subgroup | Scope::Workgroup => "cta",
        Scope::Device => "gpu",
        Scope::System => "sys",
    }
}

/// The ordering of a read-modify-write; sequential consistency is a fence before.
const fn ordering_name(ordering: Ordering) -> &'static str {
    match ordering {
        Ordering::Relaxed => "relaxed",
        Ordering::Acquire => "acquire",
        Ordering::Release => "release",
        Ordering::AcqRel | Ordering::SeqCst => "acq_rel",
    }
}

/// How a cell is accessed.
struct Access {
    atomic: Atomic,
    ty: ScalarType,
    ordering: Ordering,
    scope: Scope,
    /// `.global` and the like.
    space: &'static str,
}

impl Emitter<'_> {
    pub(super) fn atomic(&mut self, op: &Op) -> Result {
        match op.kind {
            OpKind::Fence { ordering: Ordering::Relaxed, .. } => Ok(()),
            OpKind::Fence { ordering, scope } => {
                let kind = if ordering == Ordering::SeqCst { "sc" } else { "acq_rel" };
                self.text.raw(&format!("fence.{kind}.{}", scope_name(scope)));
                Ok(())
            }
            OpKind::Atomic { atomic, ordering, scope, gathered, masked } => {
                let ordering = match atomic {
                    Atomic::CompareExchange { failure } => stronger(ordering, failure),
                    _ => ordering,
                };
                self.accesses(op, atomic, ordering, scope, gathered, masked)
            }
            _ => self.refuse("an atomic of another kind"),
        }
    }

    fn accesses(
        &mut self,
        op: &Op,
        atomic: Atomic,
        ordering: Ordering,
        scope: Scope,
        gathered: bool,
        masked: bool,
    ) -> Result {
        let (values, rest) = op.operands.split_at(atomic.values());
        let view = rest[0];
        let has_result = !op.results.is_empty();
        let end = rest.len() - usize::from(gathered) - usize::from(masked) - usize::from(masked && has_result);
        let places = if gathered {
            self.gathered(view, &rest[1..end], rest[end])?
        } else {
            vec![self.element_place(view, &rest[1..end])?]
        };
        let mask = if masked { Some(self.lanes(rest[end + 1])?) } else { None };
        let pass = if masked && has_result { Some(self.lanes(rest[end + 2])?) } else { None };
        let ty = self.element_type(view)?;
        let mut given = Vec::with_capacity(2);
        for value in values {
            given.push(self.lanes(*value)?);
        }
        let space = self.spaces.space(view);
        if ordering == Ordering::SeqCst {
            self.text.raw(&format!("fence.sc.{}", scope_name(scope)));
        }
        let access = Access { atomic, ty, ordering, scope, space: space.suffix() };
        let mut old = Vec::with_capacity(places.len());
        for (lane, place) in places.iter().enumerate() {
            let condition = mask.as_ref().map(|mask| mask[lane]).filter(|condition| *condition != Operand::truth(true));
            let operands: Vec<Operand> = given.iter().map(|lanes| lanes[lane]).collect();
            let pass = pass.as_ref().map(|pass| pass[lane]);
            old.push(self.access(&access, place, &operands, condition, pass)?);
        }
        match (op.results.first(), &old[..]) {
            (Some(result), [old]) => self.set_scalar(*result, *old),
            (Some(result), _) => self.set_lanes(*result, old),
            (None, _) => {}
        }
        Ok(())
    }

    /// One access: what the cell held.
    fn access(
        &mut self,
        access: &Access,
        place: &Place,
        values: &[Operand],
        condition: Option<Operand>,
        pass: Option<Operand>,
    ) -> Result<Operand> {
        let (ty, class) = (access.ty, class_of(access.ty));
        let old = self.text.reg(class);
        let (address, fits) = self.address(place, ty.bytes(), ty.bytes(), condition);
        let skip = match fits {
            Some(fits) => {
                self.copy(old, pass.unwrap_or(Operand::Bits(class, 0)));
                let label = self.text.label();
                self.branch(fits, false, label);
                Some(label)
            }
            None => None,
        };
        self.open();
        self.cell(access, &address, values, old)?;
        self.close();
        if let Some(label) = skip {
            self.text.at(label);
        }
        Ok(old.into())
    }

    fn cell(&mut self, access: &Access, address: &str, values: &[Operand], old: Reg) -> Result {
        let Access { atomic, ty, ordering, scope, space } = *access;
        let (scope, order) = (scope_name(scope), ordering_name(ordering));
        let unit = match (ty.bits(), old.class) {
            (8, _) => "u8",
            (16, Class::Half) => "b16",
            (16, _) => "u16",
            (32, _) => "b32",
            _ => "b64",
        };
        if space == ".local" {
            // Nobody else sees it.
            self.text.raw(&format!("ld.local.{unit} {old}, {address}"));
            if atomic != Atomic::Load {
                let new = self.renewed(access, values, old.into())?;
                let new = self.in_register(new);
                self.text.raw(&format!("st.local.{unit} {address}, {new}"));
            }
            return Ok(());
        }
        match atomic {
            Atomic::Load => {
                let order = if ordering == Ordering::Relaxed { "relaxed" } else { "acquire" };
                self.text.raw(&format!("ld.{order}.{scope}{space}.{unit} {old}, {address}"));
                return Ok(());
            }
            Atomic::Store => {
                let order = if ordering == Ordering::Relaxed { "relaxed" } else { "release" };
                let value = self.in_register(values[0]);
                self.text.raw(&format!("st.{order}.{scope}{space}.{unit} {address}, {value}"));
                return Ok(());
            }
            Atomic::Exchange | Atomic::SubI | Atomic::Combine(_) | Atomic::CompareExchange { .. } => {}
        }
        let prefix = format!("atom.{order}.{scope}{space}");
        if ty.bits() >= 32 {
            let width = ty.bits();
            let single = match atomic {
                Atomic::Exchange => Some((format!("exch.b{width}"), values[0])),
                Atomic::Combine(Combine::AddI) => Some((format!("add.u{width}"), values[0])),
                Atomic::Combine(Combine::MinSI) => Some((format!("min.s{width}"), values[0])),
                Atomic::Combine(Combine::MaxSI) => Some((format!("max.s{width}"), values[0])),
                Atomic::Combine(Combine::MinUI) => Some((format!("min.u{width}"), values[0])),
                Atomic::Combine(Combine::MaxUI) => Some((format!("max.u{width}"), values[0])),
                Atomic::Combine(Combine::AndI) => Some((format!("and.b{width}"), values[0])),
                Atomic::Combine(Combine::OrI) => Some((format!("or.b{width}"), values[0])),
                Atomic::Combine(Combine::XorI) => Some((format!("xor.b{width}"), values[0])),
                Atomic::SubI => {
                    let zero = Operand::Bits(class_of(ty), 0);
                    let negative = self.pair(Binary::SubI, ty, zero, values[0])?;
                    Some((format!("add.u{width}"), negative))
                }
                _ => None,
            };
            if let Some((kind, value)) = single {
                let value = self.in_register(value);
                self.text.raw(&format!("{prefix}.{kind} {old}, {address}, {value}"));
                return Ok(());
            }
            if let Atomic::CompareExchange { .. } = atomic {
                let (expected, new) = (self.in_register(values[0]), self.in_register(values[1]));
                self.text.raw(&format!("{prefix}.cas.b{width} {old}, {address}, {expected}, {new}"));
                return Ok(());
            }
        }
        self.swap_loop(access, &prefix, address, values, old)
    }

    /// The value that a cell gets where it holds `old`.
    fn renewed(&mut self, access: &Access, values: &[Operand], old: Operand) -> Result<Operand> {
        match access.atomic {
            Atomic::Exchange | Atomic::Store => Ok(values[0]),
            Atomic::Load => Ok(old),
            Atomic::SubI => self.pair(Binary::SubI, access.ty, old, values[0]),
            Atomic::Combine(combine) => self.pair(combine.binary(), access.ty, old, values[0]),
            Atomic::CompareExchange { .. } => {
                let (a, b) = (self.same_bits(ScalarType::I16, old), self.same_bits(ScalarType::I16, values[0]));
                let width = if a.class() == Class::Long { 64 } else { 32 };
                let equal = self.make(Class::Pred, &format!("setp.eq.s{width}"), &[a, b]);
                Ok(self.choose(equal, values[1], old))
            }
        }
    }

    /// Reads, computes, and tries again while somebody else was faster. For 8 bits, of the word around them.
    fn swap_loop(&mut self, access: &Access, prefix: &str, address: &str, values: &[Operand], old: Reg) -> Result {
        let ty = access.ty;
        let space = access.space;
        let narrow = ty.bits() == 8;
        let width = if narrow { 32 } else { ty.bits() };
        // In the class of the compared cell.
        let class = match width {
            16 => Class::Half,
            32 => Class::Word,
            _ => Class::Long,
        };
        let mut address = address.to_owned();
        let mut shift = Operand::word(0);
        if narrow {
            let (word, within) = self.word_around(&address);
            address = format!("[{word}]");
            shift = within;
        }
        let (found, expected) = (self.text.reg(class), self.text.reg(class));
        self.text.raw(&format!("ld{space}.b{width} {found}, {address}"));
        let turn = self.text.label();
        self.text.at(turn);
        self.copy(expected, found.into());
        let current: Operand = if narrow {
            let moved = self.make(Class::Word, "shr.u32", &[found.into(), shift]);
            self.make(Class::Word, "and.b32", &[moved, Operand::word(0xff)])
        } else {
            self.same_bits(ty, found.into())
        };
        self.copy(old, current);
        let new = self.renewed(access, values, current)?;
        let new = if narrow {
            let mask = self.make(Class::Word, "shl.b32", &[Operand::word(0xff), shift]);
            let mask = self.make(Class::Word, "not.b32", &[mask]);
            let rest = self.make(Class::Word, "and.b32", &[found.into(), mask]);
            let moved = self.make(Class::Word, "shl.b32", &[new, shift]);
            self.make(Class::Word, "or.b32", &[rest, moved])
        } else if class == Class::Half {
            self.same_bits(ScalarType::F16, new)
        } else {
            new
        };
        let new = self.in_register(new);
        self.text.raw(&format!("{prefix}.cas.b{width} {found}, {address}, {expected}, {new}"));
        let again = if class == Class::Half {
            let (a, b) =
                (self.same_bits(ScalarType::I16, found.into()), self.same_bits(ScalarType::I16, expected.into()));
            self.make(Class::Pred, "setp.ne.s32", &[a, b])
        } else {
            self.make(Class::Pred, &format!("setp.ne.s{width}"), &[found.into(), expected.into()])
        };
        self.branch(again, true, turn);
        Ok(())
    }

    /// The word that the byte at `[register+constant]` is in, and the byte's shift there.
    fn word_around(&mut self, address: &str) -> (Reg, Operand) {
        let inside = address.trim_matches(['[', ']']);
        let (base, constant) = inside.split_once('+').unwrap_or((inside, "0"));
        let long = base.starts_with("%rd");
        let (class, width) = if long { (Class::Long, 64) } else { (Class::Word, 32) };
        let (byte, word) = (self.text.reg(class), self.text.reg(class));
        self.text.raw(&format!("add.s{width} {byte}, {base}, {constant}"));
        self.text.raw(&format!("and.b{width} {word}, {byte}, -4"));
        let low = self.low(byte.into());
        let within = self.make(Class::Word, "and.b32", &[low, Operand::word(3)]);
        (word, self.make(Class::Word, "shl.b32", &[within, Operand::word(3)]))
    }
}

/// An ordering that does what both do.
fn stronger(a: Ordering, b: Ordering) -> Ordering {
    use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
    match (a, b) {
        (SeqCst, _) | (_, SeqCst) => SeqCst,
        (AcqRel, _) | (_, AcqRel) | (Acquire, Release) | (Release, Acquire) => AcqRel,
        (Acquire, _) | (_, Acquire) => Acquire,
        (Release, _) | (_, Release) => Release,
        (Relaxed, Relaxed) => Relaxed,
    }
}
