//! Products of four subgroups at once, `wgmma`, where these multiply rows of their own by the same columns.
//!
//! ```text
//! subgroup 4g + w      lhs: 16 rows of its own, in registers ──┐
//!                      rhs: columns, the same for all ─────────┴─> mma, mma, … of one lhs      one wgmma of 64 rows, all columns
//!                           in workgroup memory, 128 bytes each
//! ```
//!
//! - A run of products of one left operand, whose right ones are loaded from places side by side that are the same for
//!   all four, is one instruction for each 16 of the depth: registers of the left operand and of sums lie as `mma.sync` has them,
//!   and the right ones are not loaded at all. Its bits are those of `mma.sync` (compared on an H200, see `docs/performance.md`).
//! - It reads columns of 128 bytes whose pieces of 16 are exchanged by the eighth of 1024 bytes that they lie in, so that eight
//!   columns read at once are in banks of their own. All of such an allocation is laid out so; every access but its own goes to
//!   where a piece lies ([`Place::swizzled`](super::memory::Place)).
//! - Sums are in flight until something other than addresses, copies and further products comes. What generic accesses have
//!   written is made seen before each barrier.
//! - Source: PTX ISA 9.0, sections on `wgmma.mma_async`, its matrix descriptors and shared memory layouts, and `fence.proxy`.
//!   On sm_90a alone.

use super::emitter::{Emitter, Result};
use super::memory::{Place, Space, Spaces};
use super::text::{Class, Operand, Reg};
use super::{Options, Sm, Version};
use crate::fragment::{Format, Product, Role, TILE};
use crate::ir::{Body, Kernel, Op, ValueId};
use crate::ops::{Family, OpKind, Space as Scratch};
use crate::tile::varying_in_subgroups;
use crate::types::{Dim, ScalarType, Type};
use std::collections::{HashMap, HashSet};

/// What has `wgmma`, and the language that knows it.
const TARGET: Sm = Sm { architecture: 90, specific: true };
const VERSION: Version = (8, 0);

/// Whether four subgroups that share columns in workgroup memory multiply at once there.
pub fn multiplies_in_groups(target: Sm, version: Version) -> bool {
    target == TARGET && version >= VERSION
}

/// Bytes of a column in workgroup memory, and of the eight that are exchanged together.
const COLUMN: u64 = 128;
const EIGHT: u64 = 8 * COLUMN;

/// The most columns of an instruction.
const COLUMNS_MAX: usize = 256;

/// Subgroups that multiply together.
const SUBGROUPS: u32 = 4;

/// Which products of a kernel go together.
#[derive(Default)]
pub(super) struct Groups {
    /// By the result of the first product of each run: results of all, and what each is added to.
    runs: HashMap<ValueId, Vec<[ValueId; 2]>>,
    /// Results of the other products.
    others: HashSet<ValueId>,
    /// Right operands, which are not loaded.
    staged: HashSet<ValueId>,
    /// Allocations whose pieces are exchanged.
    swizzled: HashSet<ValueId>,
    /// What only the one op reads that it is an operand of, and may be written in its place.
    own: HashSet<ValueId>,
}

/// What has to do with products in flight while a kernel is written.
#[derive(Default)]
pub(super) struct Flight {
    /// Where right operands lie.
    places: HashMap<ValueId, Place>,
    /// Whether sums are in flight.
    is_on: bool,
}

impl Groups {
    pub fn of(kernel: &Kernel, spaces: &Spaces, options: &Options) -> Self {
        if options.checked
            || !multiplies_in_groups(options.target, options.version)
            || !kernel.items().is_multiple_of(SUBGROUPS * 32)
        {
            return Self::default();
        }
        let body = &kernel.body;
        let varies = varying_in_subgroups(body, SUBGROUPS.into());
        if !comes_whole(body, &varies) {
            return Self::default();
        }
        let mut uses = vec![0u32; body.values.len()];
        body.ops().flat_map(|op| &op.operands).for_each(|value| uses[value.index()] += 1);
        let made: HashMap<ValueId, &Op> = body.ops().filter_map(|op| Some((op.result()?, op))).collect();
        let known = Known { kernel, made, uses, varies, spaces, rooms: rooms(body).collect() };
        let Known { made, uses, .. } = &known;
        let mut groups = Self::default();
        for block in &body.blocks {
            // Not what is read further in: there it may be read again in the next turn.
            let products = block.ops.iter().filter(|op| matches!(op.kind, OpKind::Mma(_)));
            let sums: HashSet<ValueId> = products.clone().map(|op| op.operands[2]).collect();
            let made_here = block.arguments.iter().copied().chain(products.map(|op| op.results[0]));
            groups.own.extend(made_here.filter(|value| uses[value.index()] == 1 && sums.contains(value)));
            let mut at = 0;
            while at < block.ops.len() {
                let count = known.run(&block.ops[at..]);
                if count > 1 && is_still_there(&block.ops[..at], &block.ops[at..at + count]) {
                    let ops = &block.ops[at..at + count];
                    groups.others.extend(ops[1..].iter().map(|op| op.results[0]));
                    groups.staged.extend(ops.iter().map(|op| op.operands[1]));
                    let view = made[&ops[0].operands[1]].operands[0];
                    groups.swizzled.insert(made[&view].operands[0]);
                    let sums = ops.iter().map(|op| [op.results[0], op.operands[2]]).collect();
                    groups.runs.insert(ops[0].results[0], sums);
                }
                at += count.max(1);
            }
        }
        groups
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether the pieces of an allocation are exchanged.
    pub fn is_swizzled(&self, allocation: ValueId) -> bool {
        self.swizzled.contains(&allocation)
    }
}

/// Whether the right operands of `products` are loaded among the ops `before` them, and nobody may have written there since: the hardware
/// reads them when it multiplies.
fn is_still_there(before: &[Op], products: &[Op]) -> bool {
    let keeps = |op: &Op| {
        matches!(
            op.kind.family(),
            Family::Constant(_)
                | Family::Element(_)
                | Family::Vector
                | Family::Place
                | Family::Id(_)
                | Family::Read
                | Family::ReadLane
                | Family::Exchange
        )
    };
    products.iter().all(|product| {
        let load = before.iter().rposition(|op| op.result() == Some(product.operands[1]));
        load.is_some_and(|load| before[load..].iter().all(keeps))
    })
}

/// Whether all four subgroups come to every product.
fn comes_whole(body: &Body, varies: &[bool]) -> bool {
    let is_mma = |op: &Op| matches!(op.kind, OpKind::Mma(_));
    body.ops().all(|op| {
        let parts = match op.kind.family() {
            Family::Branch(_) => varies[op.operands[0].index()],
            Family::Counted => op.operands[..3].iter().any(|bound| varies[bound.index()]),
            Family::Unbounded => true,
            Family::Exit => return false,
            _ => false,
        };
        !parts || !body.any_within(op, &mut { is_mma })
    })
}

/// Allocations of the workgroup that every access finds its way in: by views of their own.
fn rooms(body: &Body) -> impl Iterator<Item = ValueId> {
    let is_found = |value: ValueId| {
        let mut views = vec![value];
        let mut at = 0;
        while let Some(&view) = views.get(at) {
            at += 1;
            for op in body.ops().filter(|op| op.operands.contains(&view)) {
                match op.kind {
                    OpKind::BufferView | OpKind::Subview => views.push(op.results[0]),
                    OpKind::Load
                    | OpKind::LoadMask
                    | OpKind::Store
                    | OpKind::StoreMask
                    | OpKind::FragmentLoad(_)
                    | OpKind::FragmentStore(_)
                    | OpKind::AsyncCopy { .. } => {}
                    _ => return false,
                }
            }
        }
        true
    };
    body.ops().filter_map(move |op| match op.kind {
        OpKind::Alloca { space: Scratch::Workgroup, align, .. } if align.is_multiple_of(EIGHT) => {
            Some(op.results[0]).filter(|value| is_found(*value))
        }
        _ => None,
    })
}

/// What is known of a kernel where runs are looked for.
struct Known<'k> {
    kernel: &'k Kernel,
    /// By value: the op that makes it, how often it is read, and whether it differs within four subgroups.
    made: HashMap<ValueId, &'k Op>,
    uses: Vec<u32>,
    varies: Vec<bool>,
    spaces: &'k Spaces,
    rooms: HashSet<ValueId>,
}

impl<'k> Known<'k> {
    /// How many of `ops`, from the first on, are one instruction for each step of the depth.
    fn run(&self, ops: &[Op]) -> usize {
        let Some(OpKind::Mma(product)) = ops.first().map(|op| &op.kind) else { return 0 };
        let is_multiplied =
            matches!((product.lhs, product.rhs), (Format::F16, Format::F16) | (Format::BF16, Format::BF16));
        let is_wide = self.kernel.body.ty(ops[0].operands[2]).element() == Some(ScalarType::F32);
        let Some(first) = self.placed(&ops[0]).filter(|_| is_multiplied && is_wide) else { return 0 };
        let mut before = first;
        let mut count = 1;
        while let Some(next) = ops.get(count).filter(|_| (count + 1) * TILE as usize <= COLUMNS_MAX) {
            if next.kind != ops[0].kind || next.operands[0] != ops[0].operands[0] {
                break;
            }
            // Nor may one go on with the sums of another.
            if ops[..count].iter().any(|op| op.results[0] == next.operands[2]) {
                break;
            }
            let Some(place) = self.placed(next).filter(|place| self.follows(before, place)) else { break };
            before = place;
            count += 1;
        }
        count
    }

    /// The view and the indices of the right operand of a product, if it lies as one has to: the same for all, columns of 128 bytes
    /// from the start of eight on, of which a part of the depth is taken.
    fn placed(&self, op: &Op) -> Option<&'k [ValueId]> {
        let load = *self.made.get(&op.operands[1])?;
        let OpKind::FragmentLoad(fragment) = load.kind else { return None };
        let (view, indices) = load.operands.split_first()?;
        let Type::View(ty) = self.kernel.body.ty(*view) else { return None };
        let of = self.made.get(view).filter(|of| of.kind == OpKind::BufferView)?;
        let is_whole = fragment.role == Role::Rhs && self.uses[op.operands[1].index()] == 1;
        let strides = [Dim::Static(1), Dim::Static(COLUMN / 2)];
        let lies = ty.strides.ends_with(&strides) && self.spaces.space(*view) == Space::Shared;
        let varying = indices.iter().chain(&of.operands).any(|value| self.varies[value.index()]);
        if !is_whole || !lies || varying || !self.rooms.contains(&of.operands[0]) {
            return None;
        }
        let starts =
            |value: ValueId, unit: u64| self.kernel.facts(value).multiple_of.wrapping_mul(unit).is_multiple_of(EIGHT);
        let deep = indices.len().checked_sub(2)?;
        let is_start = indices.iter().zip(&ty.strides).enumerate().all(|(at, (&index, stride))| match stride {
            // Whole steps of 16 within a column.
            _ if at == deep => self.kernel.body.constant(index).is_some_and(|first| {
                let end = first.checked_add(u64::from(fragment.rows));
                first.is_multiple_of(16) && end.is_some_and(|end| end <= COLUMN / 2)
            }),
            Dim::Static(stride) => starts(index, stride.wrapping_mul(2)),
            Dim::Value(_) => false,
        });
        (is_start && starts(of.operands[1], 1)).then_some(&load.operands)
    }

    /// Whether what lies at `next` lies behind what lies at `before`: one index is another number, and as much more.
    fn follows(&self, before: &[ValueId], next: &[ValueId]) -> bool {
        let body = &self.kernel.body;
        let Type::View(ty) = body.ty(before[0]) else { return false };
        let mut apart = before.iter().zip(next).enumerate().filter(|(_, (a, b))| a != b);
        let (Some((at, (a, b))), None) = (apart.next(), apart.next()) else { return false };
        let Some(stride) = at.checked_sub(1).and_then(|at| ty.strides.get(at)?.constant()) else { return false };
        let (Some(a), Some(b)) = (body.constant(*a), body.constant(*b)) else { return false };
        b.wrapping_sub(a).wrapping_mul(stride) == u64::from(TILE) * COLUMN / 2
    }
}

impl Emitter<'_> {
    /// Whether an op is part of products that go together, and is then done with.
    pub(super) fn grouped(&mut self, op: &Op) -> Result<bool> {
        let Some(result) = op.result() else { return Ok(false) };
        match op.kind {
            OpKind::FragmentLoad(_) if self.groups.staged.contains(&result) => {
                let place = self.element_place(op.operands[0], &op.operands[1..])?;
                self.flight.places.insert(result, place);
                Ok(true)
            }
            OpKind::Mma(product) if self.groups.runs.contains_key(&result) => {
                self.multiply(op, product, result)?;
                Ok(true)
            }
            OpKind::Mma(_) => Ok(self.groups.others.contains(&result)),
            _ => Ok(false),
        }
    }

    fn multiply(&mut self, op: &Op, product: Product, first: ValueId) -> Result {
        let run = self.groups.runs[&first].clone();
        if !self.may_specific(TARGET, VERSION) {
            return self.refuse("products of four subgroups");
        }
        let lhs_ty = self.element_type(op.operands[0])?;
        let (lanes, depth) = (self.lanes(op.operands[0])?, product.depth as usize);
        let words = self.pack(lhs_ty, &lanes[..lanes.len().min(depth / 2)]);
        let Some(place) = self.flight.places.get(&op.operands[1]).cloned() else {
            return self.refuse("a product of an operand that is not there");
        };
        // The depth is a part of each column, from the start of eight on.
        let is_start =
            place.swizzled && place.align >= EIGHT && place.constant.rem_euclid(EIGHT as i64) < COLUMN as i64;
        if !is_start || words.len() < depth / 4 {
            return self.refuse("a product of columns that lie elsewhere than at eights of 1024 bytes");
        }
        let mut sums: Vec<Reg> = Vec::with_capacity(run.len() * 8);
        let mut from = Vec::new();
        for [_, init] in &run {
            for lane in self.lanes(*init)?.iter() {
                match lane {
                    // Nobody reads it again.
                    Operand::Reg(reg) if self.groups.own.contains(init) => sums.push(*reg),
                    _ => {
                        let to = self.text.reg(Class::Word);
                        from.push((to, *lane));
                        sums.push(to);
                    }
                }
            }
        }
        if !from.is_empty() {
            self.land();
            from.into_iter().for_each(|(to, lane)| self.copy(to, lane));
        }
        let left: Vec<Reg> = words.iter().map(|word| self.in_register(*word)).collect();
        let (base, constant) = (self.in_register(place.base), place.constant as u32);
        let at = self.make(Class::Word, "add.s32", &[base.into(), Operand::word(constant)]);
        let low = self.make(Class::Word, "bfe.u32", &[at, Operand::word(4), Operand::word(14)]);
        // From eight columns to the next; of 128 bytes, exchanged.
        let high = Operand::word(1 << 30 | (EIGHT >> 4) as u32);
        let yes = self.in_register(Operand::truth(true));
        let name = if product.lhs == Format::F16 { "f16" } else { "bf16" };
        let columns = run.len() * TILE as usize;
        let listed = |regs: &[Reg]| regs.iter().map(Reg::to_string).collect::<Vec<_>>().join(", ");
        let mut steps = Vec::new();
        for step in 0..depth / 16 {
            let low = self.make(Class::Word, "add.s32", &[low, Operand::word(1 << 16 | (step as u32 * 2))]);
            let (low, high) = (self.in_register(low), self.in_register(high));
            let descriptor = self.text.reg(Class::Long);
            self.text.raw(&format!("mov.b64 {descriptor}, {{{low}, {high}}}"));
            steps.push(descriptor);
        }
        self.text.raw("wgmma.fence.sync.aligned");
        for (step, descriptor) in steps.into_iter().enumerate() {
            self.text.raw(&format!(
                "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{name}.{name} {{{}}}, {{{}}}, {descriptor}, {yes}, 1, 1, 0",
                listed(&sums),
                listed(&left[step * 4..][..4]),
            ));
        }
        self.text.raw("wgmma.commit_group.sync.aligned");
        self.flight.is_on = true;
        for ([result, _], sums) in run.into_iter().zip(sums.chunks(8)) {
            self.set_lanes(result, sums.iter().map(|sum| Operand::from(*sum)).collect());
        }
        Ok(())
    }

    /// Waits for sums in flight before an op that may read them.
    pub(super) fn land_before(&mut self, op: &Op) {
        if !self.flight.is_on {
            return;
        }
        let goes_on = match op.kind {
            OpKind::Mma(_) => op
                .result()
                .is_some_and(|result| self.groups.runs.contains_key(&result) || self.groups.others.contains(&result)),
            OpKind::FragmentLoad(fragment) => !fragment.role.is_accumulator(),
            OpKind::AsyncCopy { .. } | OpKind::AsyncGroup | OpKind::Subview | OpKind::BufferView => true,
            _ => match op.kind.family() {
                Family::Constant(_) | Family::Id(_) => true,
                Family::Element(_) => {
                    let is_scalar = |value: &ValueId| self.body.ty(*value).scalar().is_some();
                    op.results.iter().chain(&op.operands).all(is_scalar)
                }
                _ => false,
            },
        };
        if !goes_on {
            self.land();
        }
    }

    /// Waits for sums in flight.
    pub(super) fn land(&mut self) {
        if std::mem::take(&mut self.flight.is_on) {
            self.text.raw("wgmma.wait_group.sync.aligned 0");
        }
    }
}
