//! Fragments as `mma.sync` has them, for kernels that do not see how a fragment is laid out.
//!
//! ```text
//! lane = 4·g + c                                             rows and columns of slot i, for each 16 of the depth
//! lhs  16 bits   row g + 8·(i/2 mod 2)      column 2·c + i mod 2 + 8·(i/4)
//!       8 bits   row g + 8·(i/4)            column 4·c + i mod 4
//! rhs  as lhs, rows and columns swapped, of which columns 8.. of the tile are the second half of the slots
//! sums           row g + 8·(i/2 mod 2)      column 2·c + i mod 2 + 8·(i/4)
//! ```
//!
//! - The depth of 16-bit operands may be taken in any order, as long as both sides take the same: an instruction adds what stands in
//!   equal places. Where nothing is repacked, a lane has a stretch of the depth in one piece, the quarter `c` of it: what an
//!   instruction takes at `2·c + j + 8·u` of step `s` is then `4·s + 2·u + j` of the quarter. A tile of depth 32 and of rows that
//!   lie in one piece is so two loads of 16 bytes.
//! - Where all operands of 16 bits are staged in workgroup memory with the depth in one piece, they are read by `ldmatrix`, which has the
//!   depth as above: 8×8 elements from rows of 16 bytes each, four such at once.
//! - A product of 16×16 is two instructions of 16×8. Half of an operand's slots carry data: the IR's layout holds each element
//!   twice.
//! - Sums are f32 or i32; a 16-bit sum is widened before and rounded behind. The hardware's order within a step of 16 is its own, and
//!   the same for every step: results differ from the interpreter's by the rounding of a sum, those of integers not at all.
//! - Source: PTX ISA 9.0, sections on `mma.m16n8k16` and `ldmatrix`. From sm_80 on; all 32 lanes take part.

use super::emitter::{Emitter, Result};
use super::memory::{Place, Space, Spaces};
use super::text::{Class, Operand, Reg, class_of};
use crate::fragment::{Format, Fragment, Product, Role};
use crate::ir::{Body, Kernel, Op, ValueId};
use crate::opaque::layout_opaque;
use crate::ops::{Family, OpKind};
use crate::types::{ScalarType, Type};

/// A coordinate: what depends on the lane, and two constants: `plus`, which keeps the sum below 8 (16 for operands of 8 bits, the
/// depth where a lane has a stretch of it), and a multiple of that.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    lane: Operand,
    /// What divides `lane`.
    multiple: u64,
    plus: u32,
    high: u32,
}

/// The formats that have an instruction.
const fn is_multiplied(product: &Product) -> bool {
    matches!(
        (product.lhs, product.rhs),
        (Format::F16, Format::F16) | (Format::BF16, Format::BF16) | (Format::I8 | Format::U8, Format::I8 | Format::U8)
    )
}

/// Whether the fragments of a kernel may be laid out for `mma.sync`: nobody sees it, every product has an instruction, and
/// whole subgroups come to it.
pub(super) fn may_lay_out(kernel: &Kernel, varies: &[bool]) -> bool {
    let body = &kernel.body;
    let is_mma = |op: &Op| matches!(op.kind, OpKind::Mma(_));
    if !kernel.items().is_multiple_of(32) || !body.ops().any(is_mma) || layout_opaque(kernel).is_err() {
        return false;
    }
    body.ops().all(|op| match &op.kind {
        OpKind::Mma(product) => {
            let bits = [product.lhs, product.rhs].map(Format::bits);
            let own = |value: ValueId, bits: u32| body.ty(value).element().is_some_and(|ty| ty.bits() == bits);
            is_multiplied(product) && own(op.operands[0], bits[0]) && own(op.operands[1], bits[1])
        }
        OpKind::FragmentRepack { .. } => body.ty(op.operands[0]).element().is_some_and(|ty| ty.bits() >= 16),
        OpKind::Exit => false,
        kind => match kind.family() {
            Family::Branch(_) => !varies[op.operands[0].index()] || !body.any_within(op, &mut { is_mma }),
            Family::Counted => {
                let parts = op.operands[..3].iter().any(|bound| varies[bound.index()]);
                !parts || !body.any_within(op, &mut { is_mma })
            }
            Family::Unbounded => {
                let test = body.block(op.blocks[0]).ops.last().and_then(|end| end.operands.first());
                let parts = test.is_none_or(|test| varies[test.index()]);
                !parts || !body.any_within(op, &mut { is_mma })
            }
            _ => true,
        },
    })
}

/// Elements of a row of a matrix that `ldmatrix` reads: 16 bytes of 16-bit elements.
const MATRIX: u64 = 8;

/// Whether a fragment of an operand lies as `ldmatrix` reads it, but for where its first row begins.
fn is_staged(body: &Body, spaces: &Spaces, view: ValueId, role: Role) -> bool {
    let Type::View(ty) = body.ty(view) else { return false };
    let (deep, across) = match (role, &ty.strides[..]) {
        (Role::Rhs, [.., deep, across]) | (Role::Lhs, [.., across, deep]) => (deep.constant(), across.constant()),
        _ => return false,
    };
    let is_apart = across.is_some_and(|across| across.is_multiple_of(MATRIX));
    ty.element.bits() == 16 && spaces.space(view) == Space::Shared && deep == Some(1) && is_apart
}

/// Whether a lane of a kernel's operands of 16 bits has a stretch of the depth: not if something is repacked, nor if `ldmatrix` reads
/// all of them.
pub(super) fn stretches(body: &Body, spaces: &Spaces) -> bool {
    let stretches = |op: &Op| match op.kind {
        OpKind::FragmentLoad(fragment) if !fragment.role.is_accumulator() => {
            !is_staged(body, spaces, op.operands[0], fragment.role)
        }
        _ => false,
    };
    body.ops().any(stretches) && !body.ops().any(|op| matches!(op.kind, OpKind::FragmentRepack { .. }))
}

impl Emitter<'_> {
    /// An operand's fragment by `ldmatrix`; `None` where that is not possible.
    pub(super) fn load_matrices(
        &mut self,
        view: ValueId,
        indices: &[ValueId],
        fragment: Fragment,
    ) -> Result<Option<Vec<Operand>>> {
        let is_whole = self.tensor && !self.stretched && !self.options.checked && self.mask.is_full();
        let depth = if fragment.role == Role::Rhs { fragment.rows } else { fragment.columns };
        if !is_whole || !depth.is_multiple_of(16) || !is_staged(self.body, &self.spaces, view, fragment.role) {
            return Ok(None);
        }
        let (ty, first) = (self.element_type(view)?, self.element_place(view, indices)?);
        if first.align_at(0) < 16 {
            return Ok(None);
        }
        if !self.may(75, (6, 5)) {
            return Ok(None);
        }
        // A lane says where a row of one matrix is: which matrix, its eighth of the lanes tells.
        let lane = self.lane();
        let [low, eight] = [7, 8].map(|mask| self.word_op("and.b32", lane, Operand::word(mask)));
        let half = self.word_op("shr.u32", lane, Operand::word(1));
        let sixteen = self.word_op("and.b32", half, Operand::word(8));
        // Words of a step are the halves of the rows of a left operand first, and the halves of the depth of a right one.
        let (across, deep) = if fragment.role == Role::Rhs { (sixteen, eight) } else { (eight, sixteen) };
        let across = self.word_op("or.b32", low, across);
        let place = |this: &mut Self, from: &Place, across: Operand, deep: Operand, multiple: u64| match fragment.role {
            Role::Rhs => this.tile_place(view, from, deep, across, [multiple, 1]),
            _ => this.tile_place(view, from, across, deep, [1, multiple]),
        };
        let own = place(self, &first, across, deep, MATRIX)?;
        let mut words = Vec::new();
        for step in 0..depth / 16 {
            let at = place(self, &own, Operand::word(0), Operand::word(step * 16), 16)?;
            let (address, _) = self.address(&at, 16, 16, None);
            let regs: Vec<Reg> = (0..4).map(|_| self.text.reg(Class::Word)).collect();
            let listed = regs.iter().map(Reg::to_string).collect::<Vec<_>>().join(", ");
            self.text.raw(&format!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{listed}}}, {address}"));
            words.extend(regs.into_iter().map(Operand::from));
        }
        let mut lanes = self.unpack(ty, &words, 2 * words.len());
        for (pair, word) in lanes.chunks(2).zip(&words) {
            if let ([Operand::Reg(low), Operand::Reg(high)], Operand::Reg(word)) = (pair, word) {
                self.words.insert((*low, *high), *word);
            }
        }
        lanes.resize(fragment.slots() as usize, Operand::Bits(class_of(ty), 0));
        Ok(Some(lanes))
    }

    /// `g` and `c` of the own lane.
    fn group_and_column(&mut self) -> (Operand, Operand) {
        let lane = self.lane();
        (self.word_op("shr.u32", lane, Operand::word(2)), self.word_op("and.b32", lane, Operand::word(3)))
    }

    /// Row and column of each slot of the own lane; nothing for slots without data. `ty`: of one slot.
    pub(super) fn own_elements(&mut self, fragment: Fragment, ty: ScalarType) -> Vec<Option<[At; 2]>> {
        let (g, c) = self.group_and_column();
        let bytes = ty.bits() == 8 && !fragment.role.is_accumulator();
        let depth = match fragment.role {
            Role::Lhs => fragment.columns,
            Role::Rhs => fragment.rows,
            Role::Init | Role::Result => 16,
        };
        let stretched = self.stretched && !bytes && !fragment.role.is_accumulator();
        let width = match () {
            () if stretched => depth / 4,
            () if bytes => 4,
            () => 2,
        };
        let along = self.word_op("mul.lo.s32", c, Operand::word(width));
        let element = |slot: u32| {
            let data = slot / fragment.spread;
            let (step, i) = (data / 8, data % 8);
            if !slot.is_multiple_of(fragment.spread) || step * 16 >= depth {
                return None;
            }
            let across = |high: u32| At { lane: g, multiple: 1, plus: 0, high };
            let deep = |high: u32| match stretched {
                true => At { lane: along, multiple: width.into(), plus: step * 4 + high / 4 + i % 2, high: 0 },
                false => At { lane: along, multiple: width.into(), plus: i % width, high: step * 16 + high },
            };
            Some(match fragment.role {
                Role::Lhs if bytes => [across(8 * (i / 4)), deep(0)],
                Role::Lhs | Role::Init | Role::Result => [across(8 * (i / 2 % 2)), deep(8 * (i / 4))],
                Role::Rhs if bytes => [deep(0), across(8 * (i / 4))],
                Role::Rhs => [deep(8 * (i / 2 % 2)), across(8 * (i / 4))],
            })
        };
        (0..fragment.slots()).map(element).collect()
    }

    /// Where the slots of the own part of a tile lie, from its first element on.
    pub(super) fn own_places(
        &mut self,
        view: ValueId,
        first: &Place,
        fragment: Fragment,
    ) -> Result<Vec<Option<Place>>> {
        let ty = self.element_type(view)?;
        let elements = self.own_elements(fragment, ty);
        let Some([row, column]) = elements.iter().flatten().next().copied() else {
            return Ok(vec![None; elements.len()]);
        };
        // What depends on the lane is one place; slots are constant distances on.
        let own = self.tile_place(view, first, row.lane, column.lane, [row.multiple, column.multiple])?;
        let mut places = Vec::with_capacity(elements.len());
        for element in elements {
            places.push(match element {
                Some(element) => {
                    let [row, column] = element.map(|at| at.plus + at.high);
                    let multiples = [row, column].map(|at| u64::from(at.max(1)));
                    Some(self.tile_place(view, &own, Operand::word(row), Operand::word(column), multiples)?)
                }
                None => None,
            });
        }
        Ok(places)
    }

    /// The lane that holds an element of a fragment of 16-bit or wider slots, and its slot: a constant, and what the lane adds.
    fn own_place(&mut self, fragment: Fragment, [row, column]: [At; 2]) -> (Operand, u32, Operand) {
        let (across, deep) = if fragment.role == Role::Rhs { (column, row) } else { (row, column) };
        let [across_low, deep_low] = [across, deep].map(|at| self.word_op("add.s32", at.lane, Operand::word(at.plus)));
        let first = self.word_op("shl.b32", across_low, Operand::word(2));
        let second = self.word_op("shr.u32", deep_low, Operand::word(1));
        let lane = self.word_op("add.s32", first, second);
        let odd = self.word_op("and.b32", deep_low, Operand::word(1));
        let (half, upper) = (across.high / 8 % 2, deep.high / 8 % 2);
        // The second half of the slots is of columns 8.. of an rhs, and of the depth of others.
        let slot = if fragment.role == Role::Rhs { 4 * half + 2 * upper } else { 4 * upper + 2 * half };
        (lane, (deep.high / 16 * 8 + slot) * fragment.spread, odd)
    }

    /// The elements of one fragment, laid out as another.
    pub(super) fn repack_own(&mut self, op: &Op, from: Fragment, to: Fragment) -> Result {
        let ty = self.element_type(op.operands[0])?;
        let payload = self.lanes(op.operands[0])?;
        let zero = Operand::Bits(super::text::class_of(ty), 0);
        let mut lanes = Vec::new();
        for element in self.own_elements(to, ty) {
            let Some(element) = element else {
                lanes.push(zero);
                continue;
            };
            let (lane, slot, odd) = self.own_place(from, element);
            let candidates = [slot, slot + from.spread].map(|slot| payload.get(slot as usize).copied().unwrap_or(zero));
            let [even, odd_one] = candidates.map(|value| self.read_lane(value, lane));
            let is_odd = self.truth_of(odd);
            lanes.push(self.choose(is_odd, odd_one, even));
        }
        self.set_lanes(op.results[0], lanes);
        Ok(())
    }

    /// A product by instructions of 16 rows, 8 columns and a depth of 16.
    pub(super) fn mma_own(&mut self, op: &Op, product: Product) -> Result {
        let [lhs, rhs, init] = [op.operands[0], op.operands[1], op.operands[2]];
        let (lhs_ty, rhs_ty, ty) = (self.element_type(lhs)?, self.element_type(rhs)?, self.element_type(init)?);
        if !self.may(80, (7, 0)) || !self.mask.is_full() {
            return self.refuse("vector.mma where not all lanes come to it");
        }
        let (a, b) = (self.lanes(lhs)?, self.lanes(rhs)?);
        // Behind these are slots without data.
        let with_data = |lanes: usize| lanes.min(product.depth as usize / 2);
        let a = self.pack(lhs_ty, &a[..with_data(a.len())]);
        let b = self.pack(rhs_ty, &b[..with_data(b.len())]);
        let mut sums = self.lanes(init)?.to_vec();
        let spread = product.sum.spread as usize;
        let mut wide = Vec::with_capacity(8);
        for sum in sums.iter().step_by(spread) {
            wide.push(if ty.is_float() { self.extended(ty, *sum)? } else { *sum });
        }
        let (name, words) = match product.lhs {
            Format::F16 => ("f32.f16.f16.f32".to_owned(), 4),
            Format::BF16 => ("f32.bf16.bf16.f32".to_owned(), 4),
            lhs => {
                let sign = |format: Format| if format == Format::I8 { "s8" } else { "u8" };
                (format!("s32.{}.{}.s32", sign(lhs), sign(product.rhs)), 2)
            }
        };
        let steps = product.depth as usize / 16;
        if a.len() < steps * words || b.len() < steps * words || wide.len() < 8 {
            return self.refuse("vector.mma of a fragment that is shorter than its product");
        }
        let listed = |regs: &[Reg]| regs.iter().map(Reg::to_string).collect::<Vec<_>>().join(", ");
        for step in 0..steps {
            let left: Vec<Reg> = a[step * words..][..words].iter().map(|word| self.in_register(*word)).collect();
            for half in 0..2 {
                let first = step * words + half * words / 2;
                let right: Vec<Reg> = b[first..][..words / 2].iter().map(|word| self.in_register(*word)).collect();
                let before: Vec<Reg> = wide[half * 4..][..4].iter().map(|sum| self.in_register(*sum)).collect();
                let after: Vec<Reg> = (0..4).map(|_| self.text.reg(Class::Word)).collect();
                self.text.raw(&format!(
                    "mma.sync.aligned.m16n8k16.row.col.{name} {{{}}}, {{{}}}, {{{}}}, {{{}}}",
                    listed(&after),
                    listed(&left),
                    listed(&right),
                    listed(&before)
                ));
                for (sum, reg) in wide[half * 4..].iter_mut().zip(after) {
                    *sum = reg.into();
                }
            }
        }
        for (sum, value) in sums.iter_mut().step_by(spread).zip(wide) {
            *sum = if ty.is_float() { self.rounded(ty, value)? } else { value };
        }
        self.set_lanes(op.results[0], sums);
        Ok(())
    }
}
