//! Whether the order in which workgroups run can be seen in what a kernel leaves.
//!
//! - Tiles share nothing but buffer arguments. Plain accesses of one workgroup to what another writes are a race on any
//!   device, so no kernel that is correct sees an order by them. Atomics are no race, so these are looked at.
//! - Atomics whose result nobody is given, all of one kind that commutes on bits, leave the same in any order, if the memory
//!   is accessed in no other way.
//! - A loop that may wait until another workgroup has written needs the others to have run before, or never ends.

use loom_compiler::ops::{Atomic, Combine};
use loom_compiler::tile::{Access, Buffer, Inst, Program, Source, Target, Term};
use loom_compiler::types::ScalarType;

use super::Arg;

/// What is known of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// It can be seen: workgroups run ascending, on one thread.
    Seen,
    /// Any order leaves the same.
    Free,
    /// Any order leaves the same unless two of the buffer arguments share bytes, one of them at a place that is written.
    FreeApart {
        /// By position among the arguments.
        written: Box<[bool]>,
    },
}

/// How a program uses one buffer argument.
#[derive(Clone, Copy, Default)]
struct Uses {
    loaded: bool,
    stored: bool,
    /// Within a loop that may wait.
    watched: bool,
    atomics: Option<Kind>,
}

/// What atomics do to a buffer: kinds that are equal commute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Commutes(Combine, ScalarType),
    Ordered,
}

impl Kind {
    fn of(atomic: Atomic, ty: ScalarType, result: bool) -> Self {
        use Combine::{AddI, AndI, MaxSI, MaxUI, MinSI, MinUI, OrI, XorI};
        match atomic {
            _ if result => Self::Ordered,
            // Subtracting is adding what is negated.
            Atomic::SubI => Self::Commutes(AddI, ty),
            Atomic::Combine(combine @ (AddI | MinSI | MaxSI | MinUI | MaxUI | AndI | OrI | XorI)) => {
                Self::Commutes(combine, ty)
            }
            // Multiplication commutes too, but nobody asks for it; floats round, and zeros and NaNs differ in their bits.
            Atomic::Combine(_) | Atomic::Load | Atomic::Store | Atomic::Exchange | Atomic::CompareExchange { .. } => {
                Self::Ordered
            }
        }
    }
}

impl Order {
    pub fn of(program: &Program) -> Self {
        let mut arguments: Vec<Uses> = Vec::new();
        let mut constants_stored = false;
        let waits = waiting(program);
        for (block, &waits) in program.blocks.iter().zip(&waits) {
            for inst in block {
                each_touch(inst, &mut |buffer, touch| {
                    let at = match program.buffers.get(buffer as usize) {
                        Some(&Buffer::Argument(at)) => at as usize,
                        Some(Buffer::Constant { .. }) => {
                            constants_stored |= touch != Touch::Load;
                            return;
                        }
                        // A tile has its own.
                        Some(Buffer::Workgroup { .. } | Buffer::Private { .. }) | None => return,
                    };
                    if arguments.len() <= at {
                        arguments.resize(at + 1, Uses::default());
                    }
                    let uses = &mut arguments[at];
                    match touch {
                        Touch::Load => {
                            uses.loaded = true;
                            uses.watched |= waits;
                        }
                        Touch::Store => uses.stored = true,
                        Touch::Atomic(kind) => {
                            let one = uses.atomics.is_none_or(|known| known == kind);
                            uses.atomics = Some(if one { kind } else { Kind::Ordered });
                        }
                    }
                });
            }
        }
        let seen = |uses: &Uses| match uses.atomics {
            Some(Kind::Ordered) => true,
            Some(Kind::Commutes(..)) => uses.loaded || uses.stored,
            None => uses.watched && uses.stored,
        };
        if constants_stored || arguments.iter().any(seen) {
            return Self::Seen;
        }
        if arguments.iter().all(|uses| uses.atomics.is_none() && !uses.watched) {
            return Self::Free;
        }
        Self::FreeApart { written: arguments.iter().map(|uses| uses.stored || uses.atomics.is_some()).collect() }
    }

    /// Whether a launch with `args` may run its workgroups in any order.
    pub fn is_free(&self, args: &[Arg]) -> bool {
        let Self::FreeApart { written } = self else {
            return *self == Self::Free;
        };
        let place = |at: usize| match args[at] {
            Arg::Buffer { ptr, len } => (ptr as usize, len),
            Arg::Scalar(_) => (0, 0),
        };
        let apart = |a: usize, b: usize| {
            let ((a, a_len), (b, b_len)) = (place(a), place(b));
            a_len == 0 || b_len == 0 || if a < b { b - a >= a_len } else { a - b >= b_len }
        };
        let written = written.iter().enumerate().take(args.len()).filter(|(_, written)| **written);
        written.into_iter().all(|(at, _)| (0..args.len()).all(|other| other == at || apart(at, other)))
    }
}

/// By block: whether it lies in a loop that goes on for as long as its condition says, and may so wait for a value in memory.
/// That a condition has nothing to do with what the loop reads is not looked for; a counted loop waits for nothing.
fn waiting(program: &Program) -> Vec<bool> {
    let mut waits = vec![false; program.blocks.len()];
    // A block is named by blocks before it only.
    for at in 0..program.blocks.len() {
        for inst in &program.blocks[at] {
            let (inner, waiting) = match inst {
                Inst::If { then, otherwise, .. } => ([Some(*then), *otherwise], false),
                Inst::For { body, .. } => ([Some(*body), None], false),
                Inst::Heads(heads) => ([Some(heads.then), Some(heads.body)], false),
                Inst::Turns(turns) => ([Some(turns.body), turns.otherwise], false),
                Inst::Loop { head, body, site, .. } => {
                    let counted = program.sites.get(site.0 as usize).is_some_and(|site| site.op == "scf.for");
                    ([Some(*head), Some(*body)], !counted)
                }
                _ => continue,
            };
            for block in inner.into_iter().flatten() {
                waits[block.0 as usize] |= waits[at] || waiting;
            }
        }
    }
    waits
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    Load,
    Store,
    Atomic(Kind),
}

/// Calls `visit` with each buffer that `inst` accesses by itself. Fields are named one by one, so that none is missed.
fn each_touch(inst: &Inst, visit: &mut dyn FnMut(u32, Touch)) {
    fn load(source: &Source, visit: &mut dyn FnMut(u32, Touch)) {
        if let Source::Memory(Access { buffer, .. }) = source {
            visit(*buffer, Touch::Load);
        }
    }
    match inst {
        Inst::LoadScalar { ty: _, to: _, buffer, offset: _, site: _ } => visit(*buffer, Touch::Load),
        Inst::Map { op: _, to, from } => {
            from.iter().for_each(|source| load(source, visit));
            if let Target::Memory(access) = to {
                visit(access.buffer, Touch::Store);
            }
        }
        Inst::Fold(fold) => fold.from.iter().for_each(|source| load(source, visit)),
        Inst::MapSegments { op: _, to: _, from } => from.iter().for_each(|source| load(source, visit)),
        Inst::Reduce { combine: _, ty: _, to: _, from, term, group: _ } => {
            load(from, visit);
            if let Term::Product(other) | Term::SquaredDifference(other) = term {
                load(other, visit);
            }
        }
        Inst::Ballot { ty: _, to: _, from } => load(from, visit),
        Inst::Shuffle { mode: _, ty: _, to: _, valid: _, from: _, offset, width } => {
            [offset, width].into_iter().for_each(|source| load(source, visit))
        }
        Inst::Broadcast { ty: _, to: _, from: _, lane } => lane.iter().for_each(|source| load(source, visit)),
        Inst::Atomic { atomic, ty, to, from, access } => {
            from.iter().for_each(|source| load(source, visit));
            visit(access.buffer, Touch::Atomic(Kind::of(*atomic, *ty, to.is_some())));
        }
        Inst::FragmentLoad(access) | Inst::FragmentStore(access) => {
            [&access.origin, &access.steps[0], &access.steps[1]].into_iter().for_each(|source| load(source, visit));
            visit(access.buffer, if matches!(inst, Inst::FragmentLoad(_)) { Touch::Load } else { Touch::Store });
        }
        Inst::Scalar(_)
        | Inst::Spread { .. }
        | Inst::If { .. }
        | Inst::Heads(_)
        | Inst::Turns(_)
        | Inst::For { .. }
        | Inst::Loop { .. }
        | Inst::Fence
        | Inst::Scan { .. }
        | Inst::Match { .. }
        | Inst::Assert { .. }
        | Inst::Mma(_)
        | Inst::FragmentRepack(_) => {}
    }
}
