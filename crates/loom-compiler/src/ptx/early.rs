//! Kernels that begin before those that they come after have ended, and wait for them by themselves.
//!
//! ```text
//! before   ────────────────┐ writes            griddepcontrol.wait: all before have ended, their writes are seen
//! kernel        constants ─┴─ wait, may follow ── everything else
//! next                             constants ───── wait …         griddepcontrol.launch_dependents: those behind may begin
//! ```
//!
//! - Before the wait stands what touches no memory but constants and the workgroup's own. No item leaves before it: a kernel that
//!   has ended has so waited for all before it, and whoever waits for it needs not wait for those.
//! - Those behind are let in right after the wait, and not before: what they come after by way of this kernel has then ended.

use super::emitter::Emitter;
use super::memory::{Space, Spaces};
use crate::ir::{Body, Op};
use crate::ops::{Family, OpKind};

/// The first op of the entry that may touch what others write, or let items leave; its end if none does.
pub(super) fn first_to_wait(body: &Body, spaces: &Spaces) -> usize {
    let ops = &body.block(Body::ENTRY).ops;
    let end = ops.len().saturating_sub(1);
    ops.iter().take(end).position(|op| !is_harmless(op, spaces)).unwrap_or(end)
}

fn is_harmless(op: &Op, spaces: &Spaces) -> bool {
    let of_constant = || op.operands.first().is_some_and(|from| spaces.is_constant(*from));
    match op.kind.family() {
        Family::Constant(_)
        | Family::Element(_)
        | Family::Vector
        | Family::Scratch(_)
        | Family::Place
        | Family::Id(_) => true,
        Family::Read => of_constant(),
        Family::Write => match op.kind {
            OpKind::AsyncCopy { .. } => of_constant() && spaces.space(op.operands[1]) == Space::Shared,
            OpKind::AsyncGroup => true,
            _ => false,
        },
        Family::ReadLane
        | Family::WriteLane
        | Family::Branch(_)
        | Family::Counted
        | Family::Unbounded
        | Family::End(_)
        | Family::Exchange
        | Family::Meeting
        | Family::Atomic
        | Family::Exit
        | Family::Check => false,
    }
}

impl Emitter<'_> {
    pub(super) fn wait_for_those_before(&mut self) {
        self.text.raw("griddepcontrol.wait");
        self.text.raw("griddepcontrol.launch_dependents");
    }
}
