//! Asynchronous copies as the hardware has them.
//!
//! ```text
//! copy   cp.async.cg 16 bytes, .ca 8 or 4        group  cp.async.commit_group        wait  cp.async.wait_group newer
//! ```
//!
//! - Pieces are as wide as both sides prove their alignment. A copy with a piece that has no form (another direction than from
//!   global to workgroup memory, less than 4 bytes side by side, alignment that is not proven) is a load and a store as a whole,
//!   and a line says so. It has then ended before its group does, which is no less than was asked for.
//! - `.cg` goes by the second-level cache alone: what is staged is not read again. The language's cache attributes are hints that
//!   it maps to nothing, and are not looked at.
//! - Why a wait may count groups, and what it then waits for: `copies`.

use super::emitter::{Emitter, Result};
use super::memory::{Place, Space};
use super::text::Operand;
use crate::ir::{Op, ValueId};
use crate::ops::OpKind;

impl Emitter<'_> {
    pub(super) fn asynchronous(&mut self, op: &Op) -> Result {
        if !self.may(80, (7, 0)) {
            return self.refuse("a copy that was not made at once");
        }
        match op.kind {
            OpKind::AsyncCopy { masked } => self.copy_views(op, masked)?,
            OpKind::AsyncGroup => self.text.raw("cp.async.commit_group"),
            OpKind::AsyncWait { newer } => self.text.raw(&format!("cp.async.wait_group {newer}")),
            _ => return self.refuse("a copy of another kind"),
        }
        Ok(())
    }

    /// Where the elements of a view lie.
    fn covered(&mut self, view: ValueId) -> Result<Vec<Place>> {
        let ty = self.view_type(view)?;
        let first = self.place(view)?;
        self.trailing_places(first, &ty, &ty.dims)
    }

    fn copy_views(&mut self, op: &Op, masked: bool) -> Result {
        let mask = if masked { self.scalar(op.operands[2])? } else { Operand::truth(true) };
        if mask == Operand::truth(false) {
            return Ok(());
        }
        let mask = Some(mask).filter(|mask| mask.bits().is_none());
        let element = self.element_type(op.operands[0])?;
        let size = element.bytes();
        let (from, to) = (self.covered(op.operands[0])?, self.covered(op.operands[1])?);
        let Some(pieces) = self.pieces_of_copy(&from, &to, size) else {
            self.text.note("no form of cp.async: a load and a store");
            let end = self.text.label();
            if let Some(mask) = mask {
                self.branch(mask, false, end);
            }
            self.open();
            let lanes = self.load_lanes(element, &from, None, None);
            self.store_lanes(element, &to, &lanes, None);
            self.close();
            if mask.is_some() {
                self.text.at(end);
            }
            return Ok(());
        };
        for (at, bytes) in pieces {
            let (target, _) = self.address(&to[at], bytes, bytes, None);
            let (source, _) = self.address(&from[at], bytes, bytes, None);
            let guard = Self::guard(mask, self);
            let level = if bytes == 16 { "cg" } else { "ca" };
            self.text.raw(&format!("{guard}cp.async.{level}.shared.global {target}, {source}, {bytes}"));
        }
        Ok(())
    }

    /// From which element on so many bytes are one instruction; nothing if some are in none.
    fn pieces_of_copy(&self, from: &[Place], to: &[Place], size: u64) -> Option<Vec<(usize, u64)>> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < from.len().min(to.len()) {
            let count = self.chunk(from, at, size).min(self.chunk(to, at, size));
            let bytes = count as u64 * size;
            let spaces = (from[at].space, to[at].space) == (Space::Global, Space::Shared);
            // A single element may lie on less than its size.
            let aligned = [from, to].iter().all(|places| places[at].align_at(0) >= bytes);
            if !spaces || !aligned || !matches!(bytes, 4 | 8 | 16) {
                return None;
            }
            pieces.push((at, bytes));
            at += count;
        }
        Some(pieces)
    }
}
