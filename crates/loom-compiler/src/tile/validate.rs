//! What an executor relies on in an image that the compiler did not just make.
//!
//! - The program: every slot, buffer, block, site and argument that is named exists; every register holds a tile of the type
//!   it is used with inside the frame, aligned; sizes are within the bounds of the compiler.
//! - Blocks form a tree: each is named once, by an instruction of a block before it, and not too deep. So a run ends, up to
//!   loops, which count against a budget.
//! - The launch program: the same of its values and blocks; each op has the operands and blocks that its evaluation takes.
//! - Arguments and workgroup sizes are the same wherever they are written down.
//! - Not here: what needs no check. Byte offsets are checked when they are used, and arithmetic is total (`eval`), whatever the
//!   bits; so a program that passes may compute nonsense, but it touches its own buffers only and does not panic.

use super::encode::ImageError;
use super::frame::MAX_FRAME_BYTES;
use super::program::*;
use super::{CpuImage, compile};
use crate::fragment::Fragment;
use crate::ir::{self, Body, MAX_WORKGROUP_ITEMS, ParameterKind};
use crate::launch::LaunchProgram;
use crate::ops::{Combine, OpKind, SUBGROUP_SIZES};
use crate::types::{ScalarType, Type};

/// The deepest nesting of blocks: each level takes stack when it runs.
const MAX_DEPTH: u32 = 1024;

/// More than any program of the most instructions takes.
const MAX_SLOTS: u32 = 4 * compile::MAX_INSTRUCTIONS as u32;

type Valid = Result<(), ImageError>;

fn wrong(at: impl Into<String>, what: impl Into<String>) -> ImageError {
    ImageError::Inconsistent { at: at.into(), what: what.into() }
}

/// `index` names one of `count` things.
fn within(at: &str, what: &str, index: u32, count: usize) -> Valid {
    if (index as usize) < count { Ok(()) } else { Err(wrong(at, format!("{what} {index}, there are {count}"))) }
}

/// All of it.
pub(super) fn image(image: &CpuImage) -> Valid {
    let program = &image.program;
    if image.launch.workgroup_size != program.workgroup_size {
        let (launch, own) = (image.launch.workgroup_size, program.workgroup_size);
        return Err(wrong("launch", format!("workgroups of {launch:?} items, the program is for {own:?}")));
    }
    let scalars = |kind: ParameterKind| matches!(kind, ParameterKind::Scalar(_));
    for &(_, argument, ty) in &program.arguments {
        match image.parameters.get(argument as usize).map(|parameter| parameter.kind) {
            Some(ParameterKind::Scalar(declared)) if declared == ty => {}
            found => return Err(wrong("arguments", format!("argument {argument} as {ty}, it is {found:?}"))),
        }
    }
    for buffer in &program.buffers {
        if let Buffer::Constant { start, len } = *buffer
            && u64::from(start) + u64::from(len) > program.data.len() as u64
        {
            let data = program.data.len();
            return Err(wrong("buffers", format!("{len} bytes at {start} of {data} bytes of data")));
        }
        if let Buffer::Argument(argument) = *buffer {
            match image.parameters.get(argument as usize).map(|parameter| parameter.kind) {
                Some(ParameterKind::Buffer) => {}
                found => return Err(wrong("buffers", format!("argument {argument} as a buffer, it is {found:?}"))),
            }
        }
    }
    if let Some(parameter) = image.launch.workload.iter().find(|parameter| !scalars(parameter.kind)) {
        return Err(wrong("launch", format!("workload argument {} is a buffer", parameter.name)));
    }
    Check { program }.program()?;
    launch(&image.launch)
}

struct Check<'a> {
    program: &'a Program,
}

impl Check<'_> {
    fn program(&self) -> Valid {
        let program = self.program;
        let items = program.workgroup_size.iter().try_fold(1u32, |items, &size| items.checked_mul(size));
        if !items.is_some_and(|items| (1..=MAX_WORKGROUP_ITEMS).contains(&items)) {
            let size = program.workgroup_size;
            return Err(wrong(
                "program",
                format!("workgroups of {size:?}, 1 to {MAX_WORKGROUP_ITEMS} items are accepted"),
            ));
        }
        if !SUBGROUP_SIZES.contains(&program.subgroup_size) {
            let found = program.subgroup_size;
            return Err(wrong(
                "program",
                format!("subgroups of {found} items, accepted are those of {SUBGROUP_SIZES:?}"),
            ));
        }
        for (what, found, least, most) in [
            ("capacity", program.capacity, 1, compile::TILE_MAX),
            ("items", program.items, 1, program.capacity),
            ("frame_bytes", program.frame_bytes, 0, MAX_FRAME_BYTES),
            ("slots", program.slots, 0, MAX_SLOTS),
        ] {
            if !(least..=most).contains(&found) {
                return Err(wrong("program", format!("{what} {found}, {least} to {most} are accepted")));
            }
        }
        if let Shape::Line { divisor: Some(slot) } = program.shape {
            self.slot(slot)?;
        }
        let named = program.constants.iter().map(|&(slot, _)| slot);
        let named = named.chain(program.arguments.iter().map(|&(slot, ..)| slot));
        let named = named.chain(program.builtins.iter().map(|&(slot, _)| slot));
        named.chain(program.clip.map(|(slot, _)| slot)).try_for_each(|slot| self.slot(slot))?;
        program.prologue.iter().try_for_each(|inst| self.scalar(inst))?;
        if program.blocks.is_empty() {
            return Err(wrong("program", "no block"));
        }
        // Depth of each block, once a block before it has named it.
        let mut depths = vec![None::<u32>; program.blocks.len()];
        depths[0] = Some(0);
        for (at, block) in program.blocks.iter().enumerate() {
            for inst in block {
                self.inst(inst)?;
                for Block(inner) in blocks(inst).into_iter().flatten() {
                    within("program", "block", inner, depths.len())?;
                    let depth = depths[at].map(|depth| depth + 1).filter(|&depth| depth <= MAX_DEPTH);
                    if inner as usize <= at || depths[inner as usize].is_some() || depth.is_none() {
                        let what = format!("block {at} names block {inner}: not a tree of at most {MAX_DEPTH} levels");
                        return Err(wrong("program", what));
                    }
                    depths[inner as usize] = depth;
                }
            }
        }
        Ok(())
    }

    fn slot(&self, slot: Slot) -> Valid {
        within("program", "slot", slot.0, self.program.slots as usize)
    }

    fn affine(&self, value: &Affine) -> Valid {
        [value.base, value.l, value.g].into_iter().try_for_each(|slot| self.slot(slot))
    }

    /// A tile of `ty` starts at `reg`, inside the frame and on a cache line.
    fn reg(&self, reg: Reg, ty: ScalarType) -> Valid {
        self.elements(reg, ty, self.program.capacity)
    }

    /// A register of one element a segment.
    fn segments(&self, reg: Reg, ty: ScalarType) -> Valid {
        self.elements(reg, ty, self.program.segments_max())
    }

    fn elements(&self, reg: Reg, ty: ScalarType, count: u32) -> Valid {
        let end = u64::from(reg.0) + u64::from(count) * ty.bytes();
        if reg.0.is_multiple_of(64) && end <= u64::from(self.program.frame_bytes) {
            return Ok(());
        }
        let frame = self.program.frame_bytes;
        Err(wrong("program", format!("{count} {ty} at byte {} of a frame of {frame} bytes", reg.0)))
    }

    fn buffer(&self, buffer: u32, site: SiteId) -> Valid {
        within("program", "buffer", buffer, self.program.buffers.len())?;
        self.site(site)
    }

    fn site(&self, site: SiteId) -> Valid {
        within("program", "site", site.0, self.program.sites.len())
    }

    fn access(&self, access: &Access) -> Valid {
        self.buffer(access.buffer, access.site)?;
        match &access.offsets {
            Offsets::Affine(value) => self.affine(value),
            Offsets::Gather(reg) => self.reg(*reg, ScalarType::I64),
        }
    }

    fn source(&self, source: &Source, ty: ScalarType) -> Valid {
        match source {
            Source::Reg(reg) => self.reg(*reg, ty),
            Source::Segment(reg) => self.segments(*reg, ty),
            Source::Slot(slot) => self.slot(*slot),
            Source::Memory(access) => self.access(access),
        }
    }

    fn condition(&self, condition: &Condition) -> Valid {
        match condition {
            Condition::Slot(slot) => self.slot(*slot),
            Condition::Compare { predicate: _, value, limit } => {
                self.affine(value)?;
                self.slot(*limit)
            }
            Condition::Reg(reg) => self.reg(*reg, ScalarType::I1),
        }
    }

    fn scalar(&self, inst: &ScalarInst) -> Valid {
        inst.from.into_iter().chain([inst.to]).try_for_each(|slot| self.slot(slot))
    }

    /// Clusters fit a subgroup.
    fn group(&self, group: Group) -> Valid {
        let Group::Lanes { size, stride } = group else {
            return Ok(());
        };
        let cluster = size.checked_mul(stride);
        let subgroup = self.program.subgroup_size;
        if cluster.is_some_and(|lanes| lanes.is_power_of_two() && lanes <= subgroup) {
            return Ok(());
        }
        let what = format!("clusters of {size} lanes, {stride} apart, in a subgroup of {subgroup}");
        Err(wrong("program", what))
    }

    fn inst(&self, inst: &Inst) -> Valid {
        match inst {
            Inst::Scalar(inst) => self.scalar(inst),
            Inst::LoadScalar { ty: _, to, buffer, offset, site } => {
                self.buffer(*buffer, *site)?;
                self.slot(*to)?;
                self.slot(*offset)
            }
            Inst::Map { op, to, from } => {
                match to {
                    Target::Reg(reg) => self.reg(*reg, op.result())?,
                    Target::Memory(access) => self.access(access)?,
                }
                (0..op.operands()).try_for_each(|at| self.source(&from[at], op.operand(at)))
            }
            Inst::MapSegments { op, to, from } => {
                self.segments(*to, op.result())?;
                (0..op.operands()).try_for_each(|at| match &from[at] {
                    Source::Reg(reg) => self.segments(*reg, op.operand(at)),
                    Source::Memory(_) | Source::Segment(_) => Err(wrong("program", "memory as an operand of segments")),
                    source => self.source(source, op.operand(at)),
                })
            }
            Inst::Spread { to, value } => {
                self.reg(*to, ScalarType::I64)?;
                self.affine(value)
            }
            Inst::If { condition, then: _, otherwise: _ } => self.condition(condition),
            Inst::For { to, low, high, step, unsigned: _, body: _, site } => {
                [*to, *low, *high, *step].into_iter().try_for_each(|slot| self.slot(slot))?;
                self.site(*site)
            }
            Inst::Heads(heads) => self.heads(heads),
            Inst::Turns(turns) => self.turns(turns),
            Inst::Fold(fold) => self.fold(fold),
            Inst::Fence => Ok(()),
            Inst::Loop { head: _, condition, last, body: _, site } => {
                self.condition(condition)?;
                if let Some((counter, last)) = last {
                    self.affine(counter)?;
                    self.slot(*last)?;
                }
                self.site(*site)
            }
            Inst::Reduce { combine, ty, to, from, term, group } => {
                if let Term::Product(other) | Term::SquaredDifference(other) = term {
                    if (*combine, *ty) != (Combine::AddF, ScalarType::F32) {
                        return Err(wrong("program", "products combined other than by adding f32"));
                    }
                    self.source(other, *ty)?;
                }
                match to {
                    Landing::Reg(to) => self.reg(*to, *ty)?,
                    Landing::Slot(to) => self.slot(*to)?,
                    Landing::Segments(to) if *group == Group::Workgroup && program_groups(self.program) => {
                        self.segments(*to, *ty)?;
                    }
                    Landing::Segments(_) => return Err(wrong("program", "a result a segment, which is no group")),
                }
                self.source(from, *ty)?;
                self.group(*group)
            }
            Inst::Scan { combine: _, scan: _, ty, to, from, group } => {
                self.reg(*to, *ty)?;
                self.reg(*from, *ty)?;
                self.group(*group)
            }
            Inst::Broadcast { ty, to, from, lane } => {
                self.reg(*to, *ty)?;
                self.reg(*from, *ty)?;
                lane.as_ref().map_or(Ok(()), |lane| self.source(lane, ScalarType::I32))
            }
            Inst::Ballot { ty, to, from } => {
                self.reg(*to, *ty)?;
                self.source(from, ScalarType::I1)
            }
            Inst::Match { ty, from, mask, to, all } => {
                self.reg(*from, *ty)?;
                self.reg(*to, *mask)?;
                all.map_or(Ok(()), |all| self.reg(all, ScalarType::I1))
            }
            Inst::Atomic { atomic, ty, to, from, access } => {
                if ty.bits() < 8 {
                    return Err(wrong("program", "an atomic access to less than a byte"));
                }
                to.map_or(Ok(()), |to| self.reg(to, *ty))?;
                from[..atomic.values()].iter().try_for_each(|value| self.source(value, *ty))?;
                self.access(access)
            }
            Inst::Assert { condition, text: _, site } => {
                self.condition(condition)?;
                self.site(*site)
            }
            Inst::Shuffle { mode: _, ty, to, valid, from, offset, width } => {
                self.reg(*to, *ty)?;
                self.reg(*from, *ty)?;
                valid.map_or(Ok(()), |valid| self.reg(valid, ScalarType::I1))?;
                self.source(offset, ScalarType::I32)?;
                self.source(width, ScalarType::I32)
            }
            Inst::FragmentLoad(access) | Inst::FragmentStore(access) => self.tile_access(access),
            Inst::Mma(inst) => self.tile_product(inst),
            Inst::FragmentRepack(repack) => {
                self.payload(repack.from, repack.ty, &repack.values)?;
                self.payload(repack.to, repack.ty, &repack.results)?;
                let (from, to) = (repack.from, repack.to);
                if (from.rows, from.columns, from.lanes) != (to.rows, to.columns, to.lanes) {
                    return Err(wrong("program", format!("{from:?} repacked as {to:?}")));
                }
                self.apart(&repack.results, &repack.values)
            }
        }
    }

    /// The body has instructions that run over a wide tile as over any, and no others.
    fn turns(&self, turns: &Turns) -> Valid {
        self.affine(&turns.counter)?;
        [turns.high, turns.step].into_iter().try_for_each(|slot| self.slot(slot))?;
        for (line, to) in &turns.strides {
            self.affine(line)?;
            self.slot(*to)?;
        }
        turns.words.iter().try_for_each(|inst| self.scalar(inst))?;
        for Reach { access, ty: _, stride, store: _ } in &turns.reaches {
            self.access(access)?;
            self.slot(*stride)?;
        }
        for &(ty, from, to) in &turns.still {
            self.reg(from, ty)?;
            self.reg(to, ty)?;
        }
        for &(ty, reg, slot) in &turns.starts {
            self.reg(reg, ty)?;
            self.slot(slot)?;
        }
        within("program", "block", turns.body.0, self.program.blocks.len())?;
        let plain = |inst: &Inst| match inst {
            Inst::Scalar(_) | Inst::LoadScalar { .. } => true,
            // Without a bound on the turns no register holds one element for each.
            Inst::Fold(fold) => {
                let each = |at: usize| matches!(fold.from[at], Source::Reg(_)) && !fold.still[at];
                let each = (0..fold.op.operands()).any(|at| at != fold.at as usize && each(at));
                // A sum is of all turns, and takes the place of what is run else.
                let sums = fold.sum.is_none() || !turns.wide && turns.otherwise.is_some();
                sums && (turns.wide || !each)
            }
            Inst::Map { .. } | Inst::MapSegments { .. } | Inst::Spread { .. } => turns.wide,
            _ => false,
        };
        if (turns.wide || turns.still.is_empty()) && self.program.blocks[turns.body.0 as usize].iter().all(plain) {
            return Ok(());
        }
        Err(wrong("program", "turns taken together that are more than maps and folds"))
    }

    fn heads(&self, heads: &Heads) -> Valid {
        self.condition(&heads.condition)?;
        self.slot(heads.item)?;
        within("program", "block", heads.body.0, self.program.blocks.len())?;
        let plain = |inst: &Inst| {
            matches!(inst, Inst::Scalar(_) | Inst::Map { .. } | Inst::MapSegments { .. } | Inst::Spread { .. })
        };
        match self.program.blocks[heads.body.0 as usize].iter().all(plain) {
            true => Ok(()),
            false => Err(wrong("program", "items of segments that do more than maps")),
        }
    }

    fn fold(&self, fold: &Fold) -> Valid {
        let Fold { op, to, from, at, strides, still: _, start, sum } = fold;
        let at = *at as usize;
        if at >= op.operands() || from[at] != Source::Reg(*to) || op.operand(at) != op.result() {
            return Err(wrong("program", format!("{op:?} folded into operand {at}")));
        }
        self.reg(*to, op.result())?;
        if let Some(sum) = sum {
            if op.result() != ScalarType::F32 || !program_groups(self.program) {
                return Err(wrong("program", format!("the sum a segment of {op:?}")));
            }
            self.segments(*sum, ScalarType::F32)?;
        }
        strides.iter().chain(start).try_for_each(|&slot| self.slot(slot))?;
        (0..op.operands()).try_for_each(|at| self.source(&from[at], op.operand(at)))
    }

    /// A fragment that can be laid out in the subgroups of this program, with a register for each slot.
    fn payload(&self, fragment: Fragment, ty: ScalarType, registers: &[Reg]) -> Valid {
        if !fragment.is_valid() || fragment.lanes != self.program.subgroup_size {
            return Err(wrong("program", format!("{fragment:?}")));
        }
        if registers.len() != fragment.slots() as usize || ty.bits() < 8 {
            return Err(wrong("program", format!("{} registers of {ty} for {fragment:?}", registers.len())));
        }
        registers.iter().try_for_each(|&reg| self.reg(reg, ty))
    }

    fn tile_access(&self, access: &TileAccess) -> Valid {
        self.payload(access.fragment, access.ty, &access.registers)?;
        self.buffer(access.buffer, access.site)?;
        let [rows, columns] = &access.steps;
        for source in [&access.origin, rows, columns] {
            if matches!(source, Source::Segment(_) | Source::Memory(_)) {
                return Err(wrong("program", "a tile's place read by its access"));
            }
            self.source(source, ScalarType::I64)?;
        }
        Ok(())
    }

    fn tile_product(&self, inst: &TileProduct) -> Valid {
        let product = &inst.product;
        self.payload(product.sum, inst.ty, &inst.from)?;
        self.payload(product.sum, inst.ty, &inst.to)?;
        if !product.sum.role.is_accumulator() || product.check(inst.ty).is_err() {
            return Err(wrong("program", format!("{product:?} into {}", inst.ty)));
        }
        let operands =
            [(product.lhs_fragment(), product.lhs, &inst.lhs), (product.rhs_fragment(), product.rhs, &inst.rhs)];
        for (fragment, format, (ty, registers)) in operands {
            let carrier = ty.is_integer() && ty.bits() >= format.bits() || format.float() == Some(*ty);
            let bits = registers.len() as u64 * u64::from(ty.bits());
            if !fragment.is_valid() || !carrier || bits != u64::from(fragment.slots() * format.bits()) {
                return Err(wrong(
                    "program",
                    format!("{} registers of {ty} for {fragment:?} of {format:?}", registers.len()),
                ));
            }
            registers.iter().try_for_each(|&reg| self.reg(reg, *ty))?;
            self.apart(&inst.to, registers)?;
        }
        self.apart(&inst.to, &inst.from)
    }

    /// No result is an operand too: results are written while operands are read.
    fn apart(&self, results: &[Reg], operands: &[Reg]) -> Valid {
        match results.iter().find(|result| operands.contains(result)) {
            Some(Reg(at)) => Err(wrong("program", format!("a tile's result in its operand, at byte {at}"))),
            None => Ok(()),
        }
    }
}

/// Whether the segments of a tile are its workgroups.
fn program_groups(program: &Program) -> bool {
    program.shape == Shape::Groups
}

/// The blocks that an instruction names.
fn blocks(inst: &Inst) -> [Option<Block>; 2] {
    match *inst {
        Inst::If { then, otherwise, .. } => [Some(then), otherwise],
        Inst::For { body, .. } => [Some(body), None],
        Inst::Loop { head, body, .. } => [Some(head), Some(body)],
        Inst::Heads(ref heads) => [Some(heads.then), Some(heads.body)],
        Inst::Turns(ref turns) => [Some(turns.body), turns.otherwise],
        Inst::Scalar(_)
        | Inst::LoadScalar { .. }
        | Inst::Map { .. }
        | Inst::MapSegments { .. }
        | Inst::Spread { .. }
        | Inst::Fold(_)
        | Inst::Fence
        | Inst::Reduce { .. }
        | Inst::Shuffle { .. }
        | Inst::Scan { .. }
        | Inst::Broadcast { .. }
        | Inst::Ballot { .. }
        | Inst::Match { .. }
        | Inst::Atomic { .. }
        | Inst::Assert { .. }
        | Inst::FragmentLoad(_)
        | Inst::FragmentStore(_)
        | Inst::Mma(_)
        | Inst::FragmentRepack(_) => [None; 2],
    }
}

/// A launch program can be evaluated: ids are in range, blocks nest, and ops have what their evaluation takes.
fn launch(launch: &LaunchProgram) -> Valid {
    let body = &launch.body;
    let bad = |what: String| Err(wrong("launch", what));
    let Some(entry) = body.blocks.first() else {
        // The default, of no kernel.
        return Ok(());
    };
    if entry.arguments.len() != launch.workload.len() {
        return bad(format!("{} values for {} workload arguments", entry.arguments.len(), launch.workload.len()));
    }
    // A value that no op names, one of those that were removed, may be anything.
    let scalar = |value: ir::ValueId| {
        within("launch", "value", value.0, body.values.len())?;
        match &body.values[value.index()].ty {
            Type::Scalar(_) => Ok(()),
            ty => bad(format!("a value of type {ty}, only scalars are accepted")),
        }
    };
    // What the block ends with, when it is asked for its results: so many operands at least, of a `Yield` or `Condition`.
    let mut depths = vec![None::<u32>; body.blocks.len()];
    depths[0] = Some(0);
    let mut waiting = vec![Body::ENTRY];
    while let Some(id) = waiting.pop() {
        let block = &body.blocks[id.index()];
        block.arguments.iter().try_for_each(|&value| scalar(value))?;
        for op in &block.ops {
            op.operands.iter().chain(&op.results).try_for_each(|&value| scalar(value))?;
            for inner in &op.blocks {
                within("launch", "block", inner.0, body.blocks.len())?;
                let depth = depths[id.index()].map(|depth| depth + 1).filter(|&depth| depth <= MAX_DEPTH);
                if depths[inner.index()].is_some() || depth.is_none() {
                    return bad(format!("{id} names {inner}: not a tree of at most {MAX_DEPTH} levels"));
                }
                depths[inner.index()] = depth;
                waiting.push(*inner);
            }
            if !fits(body, op) {
                return bad(format!(
                    "{:?} with {} operands and {} blocks",
                    op.kind,
                    op.operands.len(),
                    op.blocks.len()
                ));
            }
        }
    }
    if ends(body, Body::ENTRY) == 3 { Ok(()) } else { bad("its entry does not end in three counts".into()) }
}

/// How many values a block hands to its owner.
fn ends(body: &Body, block: ir::BlockId) -> usize {
    let ends = |op: &&ir::Op| matches!(op.kind, OpKind::Yield | OpKind::Condition);
    body.blocks[block.index()].ops.iter().find(ends).map_or(0, |op| op.operands.len())
}

/// Whether evaluating `op`, whose blocks exist, finds the operands, arguments and blocks that it takes.
fn fits(body: &Body, op: &ir::Op) -> bool {
    let arguments = |at: usize| body.blocks[op.blocks[at].index()].arguments.len();
    match &op.kind {
        OpKind::If => op.blocks.len() == 2 && !op.operands.is_empty(),
        OpKind::Switch(keys) => op.blocks.len() == keys.len() + 1 && !op.operands.is_empty(),
        OpKind::For => op.blocks.len() == 1 && op.operands.len() >= 3 && arguments(0) == op.operands.len() - 2,
        OpKind::While => op.blocks.len() == 2 && ends(body, op.blocks[0]) > 0,
        _ => op.blocks.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A sum of products over the items of each workgroup.
    const SUM: &str = "kernel.def export(\"k\") @k() {
  kernel.launch.config workgroups(4, 1, 1) workgroup_size(64, 1, 1) : index
} launch(%x: buffer, %y: buffer, %o: buffer) {
  %base = index.constant 0 : offset
  %zero = index.constant 0 : index
  %step = index.constant 64 : index
  %high = index.constant 640 : index
  %none = scalar.constant 0.0 : f32
  %xv = buffer.view %x[%base] : buffer -> view<4x640xf32>
  %yv = buffer.view %y[%base] : buffer -> view<4x640xf32>
  %ov = buffer.view %o[%base] : buffer -> view<4xf32>
  %row = kernel.workgroup.id<x> : index
  %tid = kernel.workitem.id<x> : index
  %part = scf.for %at = [%zero to %high step %step](%acc = %none : f32) -> (f32) {
    %c = index.add %at, %tid : index
    %v = view.load %xv[%row, %c] : view<4x640xf32> -> f32
    %w = view.load %yv[%row, %c] : view<4x640xf32> -> f32
    %next = scalar.fmaf %v, %w, %acc : f32
    scf.yield %next : f32
  }
  %sum = kernel.workgroup.reduce<addf> %part : f32
  view.store %sum, %ov[%row] : f32, view<4xf32>
  kernel.return
}
";

    #[test]
    fn what_folds_start_from_and_add_up_to_is_looked_at() {
        let good = crate::compile_cpu("sum", SUM, "k", &BTreeMap::new()).unwrap();
        image(&good).unwrap();
        let refused = |alter: &dyn Fn(&mut Turns, &mut Fold)| {
            let mut image = good.clone();
            let blocks = &mut image.program.blocks;
            let body = blocks.iter().position(|block| block.iter().any(|inst| matches!(inst, Inst::Fold(_)))).unwrap();
            let mut insts = std::mem::take(&mut blocks[body]);
            let fold = insts.iter_mut().find_map(|inst| if let Inst::Fold(fold) = inst { Some(fold) } else { None });
            let turns =
                blocks[0].iter_mut().find_map(|inst| if let Inst::Turns(turns) = inst { Some(turns) } else { None });
            let (turns, fold) = (turns.unwrap(), fold.unwrap());
            assert!(fold.start.is_some() && fold.sum.is_some() && turns.otherwise.is_some() && turns.starts.len() == 1);
            alter(turns, fold);
            image.program.blocks[body] = insts;
            super::image(&image).unwrap_err().to_string()
        };
        let (slots, frame) = (good.program.slots, good.program.frame_bytes);
        assert!(refused(&|turns, _| turns.starts[0].2 = Slot(slots)).contains("slot"));
        assert!(refused(&|turns, _| turns.words[0].to = Slot(slots)).contains("slot"));
        assert!(refused(&|turns, _| turns.starts[0].1 = Reg(frame)).contains("of a frame of"));
        assert!(refused(&|turns, _| turns.otherwise = Some(Block(0))).contains("not a tree"));
        assert!(refused(&|turns, _| turns.otherwise = Some(Block(99))).contains("block 99"));
        // Then nothing would add what was not taken together.
        assert!(refused(&|turns, _| turns.otherwise = None).contains("more than maps and folds"));
        assert!(refused(&|turns, _| turns.wide = true).contains("more than maps and folds"));
        assert!(refused(&|_, fold| fold.start = Some(Slot(slots))).contains("slot"));
        assert!(refused(&|_, fold| fold.sum = Some(Reg(frame))).contains("of a frame of"));
        assert!(refused(&|_, fold| fold.sum = Some(Reg(4))).contains("at byte 4"));
        assert!(refused(&|_, fold| fold.op = Op::Ternary(crate::ops::Ternary::FmaI, ScalarType::I32)).contains("sum"));
    }
}
