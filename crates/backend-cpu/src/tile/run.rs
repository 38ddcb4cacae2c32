//! The executor: cuts a launch into tiles and runs the program's blocks over them.
//!
//! - The items of a tile that are active are a range, and, where that does not do, a mask of bytes over it. Ops compute
//!   over the whole range; memory and moves heed the mask.
//! - Registers are `frame + reg + i * size`; the compiler laid them out for `capacity` items, and no tile has more.
//! - Not here: the loops (`kernels`).

use std::ptr;

use loom_compiler::launch::Geometry;
use loom_compiler::ops::{Combine, IntPredicate, SUBGROUP_SIZE, ShuffleMode};
use loom_compiler::tile::{
    Access, Affine, Block, Buffer, Builtin, Condition, CpuImage, Group, Inst, Offsets, Op, Program, Reg, ScalarInst,
    Shape, SiteId, Slot, Source, Target,
};
use loom_compiler::types::ScalarType;
use loom_compiler::{math, ops::Binary};

use super::kernels::{Map, Operand, bits, set_bits};
use super::memory::Bytes;
use super::{Arg, Fault};

#[cfg(not(target_endian = "little"))]
compile_error!(
    "slots are read as narrower elements at their first byte: the tile executor is for little-endian machines"
);

/// The most scratch memory that the tiles of one launch may need: what a hostile kernel can make a thread allocate.
const MAX_LOCAL_BYTES: u64 = 256 << 20;

/// Where a buffer of the program lies during one launch.
#[derive(Clone, Copy, Debug)]
struct Binding {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: bindings are written and followed within one `launch`, on one thread; between launches nobody reads them.
unsafe impl Send for Binding {}

/// What a thread keeps between launches.
#[derive(Debug, Default)]
pub(super) struct State {
    slots: Vec<u64>,
    buffers: Vec<Binding>,
    frame: Bytes,
    staging: Bytes,
    local: Bytes,
    masks: Vec<Bytes>,
}

/// The active items: those of `lo..hi` whose byte in `mask` is 1 (all, if it is null).
#[derive(Clone, Copy)]
struct Exec {
    lo: usize,
    hi: usize,
    mask: *const u8,
}

impl Exec {
    fn is_empty(&self) -> bool {
        self.lo >= self.hi
    }
}

/// Runs `image` over `geometry`.
///
/// # Safety
///
/// As [`super::run`]; the arguments were checked against the image, and `map` is for an available set of instructions.
pub(super) unsafe fn launch(
    image: &CpuImage,
    geometry: &Geometry,
    args: &[Arg],
    state: &mut State,
    map: Map,
    step_limit: u64,
) -> Result<(), Fault> {
    let program = image.program();
    let [gx, gy, gz] = geometry.workgroups.map(u64::from);
    let [sx, sy, sz] = program.workgroup_size.map(u64::from);
    if gx == 0 || gy == 0 || gz == 0 {
        return Ok(());
    }
    if state.slots.len() < program.slots as usize {
        state.slots.resize(program.slots as usize, 0);
    }
    let slots = &mut state.slots[..program.slots as usize];
    for &(slot, bits) in &program.constants {
        slots[slot.0 as usize] = bits;
    }
    for &(slot, argument, ty) in &program.arguments {
        if let Some(Arg::Scalar(bits)) = args.get(argument as usize) {
            slots[slot.0 as usize] = bits & (u64::MAX >> (64 - ty.bits()));
        }
    }
    for &(slot, builtin) in &program.builtins {
        if let Builtin::WorkGroupCount(axis) = builtin {
            slots[slot.0 as usize] = [gx, gy, gz][usize::from(axis).min(2)];
        }
    }
    for inst in &program.prologue {
        scalar(slots, inst);
    }
    let row = if program.shape == Shape::Group { sx * sy * sz } else { gx * sx };
    let row = program.clip.map_or(row, |(slot, signed)| {
        let limit = slots[slot.0 as usize];
        if signed && (limit as i64) < 0 { 0 } else { row.min(limit) }
    });
    if row == 0 {
        return Ok(());
    }
    let (total, width) = match program.shape {
        Shape::Line { divisor } => (row, divisor.map_or(row, |slot| slots[slot.0 as usize])),
        Shape::Rows => (row * gy, row),
        Shape::Groups | Shape::Group => (row, sx),
    };
    let width = if width == 0 { total } else { width };
    let mut again = false;
    for &(slot, builtin) in &program.builtins {
        if builtin == Builtin::Width {
            slots[slot.0 as usize] = width;
            again = true;
        }
    }
    if again {
        // What a width depends on does not depend on it, but other things may.
        for inst in &program.prologue {
            scalar(slots, inst);
        }
    }
    let capacity = program.capacity as usize;
    state.frame.reserve(program.frame_bytes as usize);
    state.staging.reserve(4 * 8 * capacity);
    let groups_per_tile = match program.shape {
        Shape::Groups => (capacity as u64 / sx).max(1),
        Shape::Line { .. } | Shape::Rows | Shape::Group => 1,
    };
    let local = bind(image, program, args, &mut state.buffers, &mut state.local, groups_per_tile)?;
    let mut run = Run {
        program,
        name: &image.name,
        map,
        slots,
        frame: state.frame.as_mut_ptr(),
        staging: state.staging.as_mut_ptr(),
        buffers: &state.buffers,
        masks: &mut state.masks,
        depth: 0,
        width: 1,
        steps: 0,
        step_limit,
    };
    let clear = (state.local.as_mut_ptr(), local);
    let (outer_x, outer_y, outer_z) = match program.shape {
        Shape::Group => (gx, gy, gz),
        Shape::Rows => (1, 1, gz),
        Shape::Line { .. } | Shape::Groups => (1, gy, gz),
    };
    for z in 0..outer_z {
        for y in 0..outer_y {
            for x in 0..outer_x {
                // SAFETY: the caller's promises.
                unsafe { run.line(total, width, [x, y, z], clear) }.map_err(|stop| *stop)?;
            }
        }
    }
    Ok(())
}

/// Fills in where the program's buffers lie. Returns the bytes of scratch memory used.
fn bind(
    image: &CpuImage,
    program: &Program,
    args: &[Arg],
    buffers: &mut Vec<Binding>,
    memory: &mut Bytes,
    groups_per_tile: u64,
) -> Result<usize, Fault> {
    let size = |buffer: &Buffer| match *buffer {
        Buffer::Argument(_) => 0,
        Buffer::Workgroup { bytes } => bytes.saturating_mul(groups_per_tile),
        Buffer::Private { bytes } => bytes.saturating_mul(u64::from(program.capacity)),
    };
    let total = program.buffers.iter().map(size).fold(0u64, |sum, size| sum.saturating_add(size.saturating_add(63)));
    if total > MAX_LOCAL_BYTES {
        let what = format!("{total} bytes of scratch memory for one tile, at most {MAX_LOCAL_BYTES}");
        return Err(Fault::Launch { kernel: image.name.clone(), what });
    }
    memory.reserve(total as usize);
    let mut at = 0;
    buffers.clear();
    for buffer in &program.buffers {
        buffers.push(match *buffer {
            Buffer::Argument(argument) => match args.get(argument as usize) {
                Some(&Arg::Buffer { ptr, len }) => Binding { ptr, len },
                Some(Arg::Scalar(_)) | None => Binding { ptr: ptr::null_mut(), len: 0 },
            },
            Buffer::Workgroup { .. } | Buffer::Private { .. } => {
                let len = size(buffer) as usize;
                // SAFETY: `at + len <= total`, which is reserved.
                let ptr = unsafe { memory.as_mut_ptr().add(at) };
                at += len.next_multiple_of(64);
                Binding { ptr, len }
            }
        });
    }
    Ok(at)
}

/// One scalar instruction: the ops of addresses directly, all others through their one definition.
#[inline(always)]
fn scalar(slots: &mut [u64], inst: &ScalarInst) {
    let [a, b, c] = inst.from.map(|slot| slots[slot.0 as usize]);
    slots[inst.to.0 as usize] = match inst.op {
        Op::Move(_) => a,
        Op::Binary(Binary::AddI, ty) if ty.bits() == 64 => a.wrapping_add(b),
        Op::Binary(Binary::MulI, ty) if ty.bits() == 64 => a.wrapping_mul(b),
        op => op.evaluate([a, b, c]),
    };
}

/// A fault, behind a pointer: every access returns one or none.
type Stop = Box<Fault>;

struct Run<'a> {
    program: &'a Program,
    name: &'a str,
    map: Map,
    slots: &'a mut [u64],
    frame: *mut u8,
    /// Four runs of `capacity` elements of 8 bytes: three operands and a result.
    staging: *mut u8,
    buffers: &'a [Binding],
    masks: &'a mut Vec<Bytes>,
    /// Masks in use.
    depth: usize,
    /// Items per segment of the tile at hand.
    width: usize,
    steps: u64,
    step_limit: u64,
}

/// The numbers of an affine value: `base + l·(i % width) + g·(i / width)`.
#[derive(Clone, Copy)]
struct Line {
    base: i64,
    l: i64,
    g: i64,
}

/// Active items of a tile whose elements are evenly spaced: `count` of them from item `first` (counted from the
/// range's start), element `i` at `at + i·step` bytes.
struct Stretch<T> {
    first: usize,
    at: *mut T,
    step: isize,
    count: usize,
}

impl<T> Stretch<T> {
    fn element(&self, i: usize) -> *mut T {
        self.at.wrapping_byte_offset(self.step * i as isize)
    }
}

impl Run<'_> {
    /// Runs the items `0..total`, `width` of them a segment, tile by tile.
    unsafe fn line(&mut self, total: u64, width: u64, group: [u64; 3], local: (*mut u8, usize)) -> Result<(), Stop> {
        let capacity = u64::from(self.program.capacity);
        let segments = if self.program.many_segments { capacity / width } else { 0 };
        let (mut at, mut segment, mut first) = (0, 0, 0);
        let segment_width = width;
        while at < total {
            let left = total - at;
            let (count, width) = if segments > 0 && left >= width {
                // As many whole segments as are left; a division only at the end.
                let whole = if left >= segments * width { segments } else { left / width };
                (whole * width, width)
            } else {
                let count = capacity.min(width - first).min(left);
                (count, count)
            };
            for &(slot, builtin) in &self.program.builtins {
                self.slots[slot.0 as usize] = match builtin {
                    Builtin::Segment => segment,
                    Builtin::First => first,
                    Builtin::Flat => at,
                    Builtin::WorkGroup(axis) => group[usize::from(axis).min(2)],
                    Builtin::Width | Builtin::WorkGroupCount(_) => continue,
                };
            }
            self.width = width as usize;
            if local.1 > 0 {
                // SAFETY: `local` are the reserved bytes of scratch memory.
                unsafe { ptr::write_bytes(local.0, 0, local.1) };
            }
            let exec = Exec { lo: 0, hi: count as usize, mask: ptr::null() };
            // SAFETY: the caller's promises; `count <= capacity`.
            unsafe { self.block(Block(0), exec)? };
            at += count;
            first += count;
            while first >= segment_width {
                first -= segment_width;
                segment += 1;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn slot(&self, slot: Slot) -> u64 {
        self.slots[slot.0 as usize]
    }

    /// Element `i` of a register.
    #[inline(always)]
    unsafe fn element(&self, reg: Reg, ty: ScalarType, i: usize) -> *mut u8 {
        // SAFETY: registers of the program lie in the frame with room for `capacity` elements, and `i` is one of a tile's.
        unsafe { self.frame.add(reg.0 as usize + i * ty.bytes() as usize) }
    }

    unsafe fn block(&mut self, block: Block, exec: Exec) -> Result<(), Stop> {
        let program = self.program;
        for inst in &program.blocks[block.0 as usize] {
            // SAFETY: for all arms, `exec` is of this tile, and the caller's promises.
            unsafe {
                match inst {
                    Inst::Scalar(inst) => scalar(self.slots, inst),
                    Inst::Map { op, to, from } => self.map(*op, *to, from, exec)?,
                    Inst::LoadScalar { ty, to, buffer, offset, site } => {
                        let at = self.checked(*buffer, self.slot(*offset) as i64, ty.bytes() as usize, *site)?;
                        self.slots[to.0 as usize] = bits(*ty, at, 0);
                    }
                    Inst::Spread { to, value } => self.spread(*to, self.numbers(*value), exec),
                    Inst::If { condition, then, otherwise } => {
                        let depth = self.depth;
                        let (yes, no) = self.split(*condition, exec, otherwise.is_some());
                        if !yes.is_empty() {
                            self.block(*then, yes)?;
                        }
                        if let (Some(otherwise), false) = (otherwise, no.is_empty()) {
                            self.block(*otherwise, no)?;
                        }
                        self.depth = depth;
                    }
                    Inst::For { to, low, high, step, unsigned, body, site } => {
                        let (mut at, high, step) = (self.slot(*low), self.slot(*high), self.slot(*step));
                        loop {
                            let below = if *unsigned { at < high } else { (at as i64) < high as i64 };
                            if !below {
                                break;
                            }
                            self.slots[to.0 as usize] = at;
                            self.step(*site)?;
                            self.block(*body, exec)?;
                            // Past the end of the numbers is past `high`.
                            let next = if *unsigned {
                                at.checked_add(step)
                            } else {
                                (at as i64).checked_add(step as i64).map(|at| at as u64)
                            };
                            match next {
                                Some(next) => at = next,
                                None => break,
                            }
                        }
                    }
                    Inst::Loop { head, condition, body, site } => {
                        let depth = self.depth;
                        let mut exec = exec;
                        loop {
                            self.block(*head, exec)?;
                            // Each turn may use the mask of the turn before: it is read before it is written.
                            self.depth = depth;
                            exec = self.split(*condition, exec, false).0;
                            if exec.is_empty() {
                                break;
                            }
                            self.step(*site)?;
                            self.depth = depth + 2;
                            self.block(*body, exec)?;
                        }
                        self.depth = depth;
                    }
                    Inst::Reduce { combine, ty, to, from, group } => {
                        self.reduce(*combine, *ty, *to, *from, *group, exec)
                    }
                    Inst::Shuffle { mode, ty, to, valid, from, offset, width } => {
                        let offset = self.source(*offset, ScalarType::I32, exec, 0)?;
                        let width = self.source(*width, ScalarType::I32, exec, 1)?;
                        self.shuffle(*mode, *ty, [*to, *valid, *from], offset, width, exec);
                    }
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, site: SiteId) -> Result<(), Stop> {
        self.steps += 1;
        if self.steps <= self.step_limit {
            return Ok(());
        }
        let site = &self.program.sites[site.0 as usize];
        Err(Box::new(Fault::Steps {
            kernel: self.name.to_owned(),
            op: site.op.clone(),
            at: site.span.start,
            limit: self.step_limit,
        }))
    }

    // ---- element-wise

    #[inline]
    unsafe fn map(&mut self, op: Op, to: Target, from: &[Source; 3], exec: Exec) -> Result<(), Stop> {
        let mut operands = [Operand { at: ptr::null(), each: false }; 3];
        let count = op.operands();
        let n = exec.hi - exec.lo;
        let ty = op.result();
        // SAFETY: for all of it, operands hold `n` elements from `lo` on, or one; so does the target.
        unsafe {
            for (at, operand) in operands.iter_mut().enumerate().take(count) {
                *operand = self.source(from[at], op.operand(at), exec, at)?;
            }
            match to {
                // Moves decide what an item keeps; everything else makes new values, which nobody reads where the mask is off.
                Target::Reg(reg) if !exec.mask.is_null() && matches!(op, Op::Move(_)) => {
                    let target = self.element(reg, ty, exec.lo);
                    for i in 0..n {
                        if *exec.mask.add(exec.lo + i) != 0 {
                            set_bits(ty, target, i, bits(ty, operands[0].at, if operands[0].each { i } else { 0 }));
                        }
                    }
                }
                Target::Reg(reg) => (self.map)(op, self.element(reg, ty, exec.lo), operands, n),
                Target::Memory(access) => {
                    if let Some(at) = self.contiguous(access, ty, exec)? {
                        (self.map)(op, at, operands, n);
                    } else {
                        let staged = self.staging.add(3 * 8 * self.program.capacity as usize);
                        (self.map)(op, staged, operands, n);
                        self.scatter(access, ty, exec, staged)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The operand's elements, the first of them item `lo`'s. `stage` is free for a copy.
    #[inline(always)]
    unsafe fn source(&mut self, source: Source, ty: ScalarType, exec: Exec, stage: usize) -> Result<Operand, Stop> {
        // SAFETY: the caller's promises; registers and slots are the program's.
        unsafe {
            Ok(match source {
                Source::Reg(reg) => Operand { at: self.element(reg, ty, exec.lo), each: true },
                Source::Slot(slot) => Operand { at: (&raw const self.slots[slot.0 as usize]).cast(), each: false },
                Source::Memory(access) => match self.contiguous(access, ty, exec)? {
                    Some(at) => Operand { at, each: true },
                    None => {
                        let staged = self.staging.add(stage * 8 * self.program.capacity as usize);
                        self.gather(access, ty, exec, staged)?;
                        Operand { at: staged, each: true }
                    }
                },
            })
        }
    }

    #[inline(always)]
    fn numbers(&self, value: Affine) -> Line {
        Line { base: self.slot(value.base) as i64, l: self.slot(value.l) as i64, g: self.slot(value.g) as i64 }
    }

    /// The distance between neighbours, if it is the same for all items of the range.
    #[inline(always)]
    fn stride(&self, line: Line, exec: Exec) -> Option<i64> {
        (exec.hi <= self.width || line.g == line.l.wrapping_mul(self.width as i64)).then_some(line.l)
    }

    unsafe fn spread(&mut self, to: Reg, line: Line, exec: Exec) {
        // SAFETY: the register holds the tile's items.
        let to = unsafe { self.element(to, ScalarType::I64, 0) }.cast::<i64>();
        self.runs(exec, |segment, item, first, count| {
            let base = line.base.wrapping_add(line.g.wrapping_mul(segment as i64));
            let base = base.wrapping_add(line.l.wrapping_mul(item as i64));
            for i in 0..count {
                // SAFETY: as above.
                unsafe { to.add(first + i).write(base.wrapping_add(line.l.wrapping_mul(i as i64))) };
            }
            true
        });
    }

    /// Calls `visit(segment, item in it, item of the tile, count)` for each segment's part of the range, until it says no.
    fn runs(&self, exec: Exec, mut visit: impl FnMut(usize, usize, usize, usize) -> bool) {
        let mut at = exec.lo;
        let (mut segment, mut item) = if exec.hi <= self.width { (0, at) } else { (at / self.width, at % self.width) };
        while at < exec.hi {
            let count = (self.width - item).min(exec.hi - at);
            if !visit(segment, item, at, count) {
                return;
            }
            at += count;
            segment += 1;
            item = 0;
        }
    }

    // ---- memory

    #[cold]
    fn out_of_bounds(&self, buffer: u32, index: i64, site: SiteId) -> Stop {
        let site = &self.program.sites[site.0 as usize];
        Box::new(Fault::OutOfBounds {
            kernel: self.name.to_owned(),
            op: site.op.clone(),
            at: site.span.start,
            index,
            buffer,
            limit: self.buffers[buffer as usize].len,
        })
    }

    /// The address of `bytes` bytes at `offset`, if the buffer has them.
    fn checked(&self, buffer: u32, offset: i64, bytes: usize, site: SiteId) -> Result<*mut u8, Stop> {
        let binding = self.buffers[buffer as usize];
        let fits = usize::try_from(offset).is_ok_and(|offset| bytes <= binding.len && offset <= binding.len - bytes);
        if fits {
            // SAFETY: inside of the buffer.
            Ok(unsafe { binding.ptr.add(offset as usize) })
        } else {
            Err(self.out_of_bounds(buffer, offset, site))
        }
    }

    /// The address of item `lo`'s element, if the range's elements lie side by side and all of them are accessed.
    #[inline(always)]
    fn contiguous(&self, access: Access, ty: ScalarType, exec: Exec) -> Result<Option<*mut u8>, Stop> {
        let Offsets::Affine(offsets) = access.offsets else {
            return Ok(None);
        };
        let line = self.numbers(offsets);
        let size = ty.bytes() as i64;
        if !exec.mask.is_null() || self.stride(line, exec) != Some(size) {
            return Ok(None);
        }
        let start = line.base.wrapping_add(size * exec.lo as i64);
        self.checked(access.buffer, start, (exec.hi - exec.lo) * size as usize, access.site).map(Some)
    }

    /// Copies the active items' elements to `to`, item `lo`'s first.
    unsafe fn gather(&self, access: Access, ty: ScalarType, exec: Exec, to: *mut u8) -> Result<(), Stop> {
        // SAFETY: `to` holds a tile; addresses are checked.
        unsafe {
            match ty.bytes() {
                1 => self.gather_as::<u8>(access, exec, to.cast()),
                2 => self.gather_as::<u16>(access, exec, to.cast()),
                4 => self.gather_as::<u32>(access, exec, to.cast()),
                _ => self.gather_as::<u64>(access, exec, to.cast()),
            }
        }
    }

    unsafe fn gather_as<T: Copy>(&self, access: Access, exec: Exec, to: *mut T) -> Result<(), Stop> {
        let copy = |run: Stretch<T>| {
            // SAFETY: the run's addresses are in bounds and may be unaligned; `to` holds the range's items.
            unsafe {
                let to = to.add(run.first);
                if run.step == size_of::<T>() as isize {
                    // Rows of a tensor are what most runs are: copied whole.
                    ptr::copy_nonoverlapping(run.at.cast::<u8>(), to.cast::<u8>(), run.count * size_of::<T>());
                } else if run.step == 0 {
                    let value = run.at.read_unaligned();
                    (0..run.count).for_each(|i| to.add(i).write(value));
                } else {
                    (0..run.count).for_each(|i| to.add(i).write(run.element(i).read_unaligned()));
                }
            }
        };
        // SAFETY: as the caller's.
        unsafe { self.each_run(access, exec, copy) }
    }

    /// Copies elements from `from` to the active items' places, in ascending order.
    unsafe fn scatter(&self, access: Access, ty: ScalarType, exec: Exec, from: *const u8) -> Result<(), Stop> {
        // SAFETY: `from` holds a tile; addresses are checked.
        unsafe {
            match ty.bytes() {
                1 => self.scatter_as::<u8>(access, exec, from.cast()),
                2 => self.scatter_as::<u16>(access, exec, from.cast()),
                4 => self.scatter_as::<u32>(access, exec, from.cast()),
                _ => self.scatter_as::<u64>(access, exec, from.cast()),
            }
        }
    }

    unsafe fn scatter_as<T: Copy>(&self, access: Access, exec: Exec, from: *const T) -> Result<(), Stop> {
        let copy = |run: Stretch<T>| {
            // SAFETY: the run's addresses are in bounds and may be unaligned; `from` holds the range's items, in memory
            // of the executor's own.
            unsafe {
                let from = from.add(run.first);
                if run.step == size_of::<T>() as isize {
                    ptr::copy_nonoverlapping(from.cast::<u8>(), run.at.cast::<u8>(), run.count * size_of::<T>());
                } else {
                    (0..run.count).for_each(|i| run.element(i).write_unaligned(from.add(i).read()));
                }
            }
        };
        // SAFETY: as the caller's.
        unsafe { self.each_run(access, exec, copy) }
    }

    /// Calls `visit` for runs of active items in ascending order, all their addresses being in bounds.
    #[inline(always)]
    unsafe fn each_run<T>(&self, access: Access, exec: Exec, visit: impl Fn(Stretch<T>)) -> Result<(), Stop> {
        let size = size_of::<T>();
        let one = |place: usize, at: *mut u8| Stretch { first: place, at: at.cast(), step: 0, count: 1 };
        let mut fault = None;
        match access.offsets {
            Offsets::Affine(offsets) => {
                let line = self.numbers(offsets);
                let binding = self.buffers[access.buffer as usize];
                self.runs(exec, |segment, item, first, count| {
                    let start = line.base.wrapping_add(line.g.wrapping_mul(segment as i64));
                    let start = start.wrapping_add(line.l.wrapping_mul(item as i64));
                    // Both ends inside: everything between is.
                    let last = line.l.checked_mul(count as i64 - 1).and_then(|span| start.checked_add(span));
                    let room = binding.len.checked_sub(size).map_or(-1, |room| room.min(i64::MAX as usize) as i64);
                    let inside = last.is_some_and(|last| start.min(last) >= 0 && start.max(last) <= room);
                    if inside && exec.mask.is_null() {
                        // SAFETY: the start is inside.
                        let at = unsafe { binding.ptr.add(start as usize) }.cast();
                        visit(Stretch { first: first - exec.lo, at, step: line.l as isize, count });
                        return true;
                    }
                    for i in 0..count {
                        // SAFETY: the mask covers the tile.
                        if !exec.mask.is_null() && unsafe { *exec.mask.add(first + i) } == 0 {
                            continue;
                        }
                        let offset = start.wrapping_add(line.l.wrapping_mul(i as i64));
                        match self.checked(access.buffer, offset, size, access.site) {
                            Ok(at) => visit(one(first - exec.lo + i, at)),
                            Err(found) => {
                                fault = Some(found);
                                return false;
                            }
                        }
                    }
                    true
                });
            }
            Offsets::Gather(reg) => {
                // SAFETY: the register holds the tile's items.
                let offsets = unsafe { self.element(reg, ScalarType::I64, 0) }.cast::<i64>();
                for i in exec.lo..exec.hi {
                    // SAFETY: the mask and the register cover the tile.
                    let (on, offset) =
                        unsafe { (exec.mask.is_null() || *exec.mask.add(i) != 0, offsets.add(i).read()) };
                    if on {
                        visit(one(i - exec.lo, self.checked(access.buffer, offset, size, access.site)?));
                    }
                }
            }
        }
        fault.map_or(Ok(()), Err)
    }

    // ---- conditions

    /// A mask for a tile, in use until `depth` is set back.
    fn take_mask(&mut self) -> *mut u8 {
        // A loop skips masks that its condition may turn out not to need.
        while self.masks.len() <= self.depth {
            self.masks.push(Bytes::default());
        }
        let mask = &mut self.masks[self.depth];
        mask.reserve(self.program.capacity as usize);
        self.depth += 1;
        mask.as_mut_ptr()
    }

    /// The active items that satisfy `condition`, and, if `both`, those that do not.
    unsafe fn split(&mut self, condition: Condition, exec: Exec, both: bool) -> (Exec, Exec) {
        let none = Exec { hi: exec.lo, ..exec };
        match condition {
            Condition::Slot(slot) => {
                if self.slot(slot) & 1 == 1 {
                    (exec, none)
                } else {
                    (none, exec)
                }
            }
            Condition::Compare { predicate, value, limit } => {
                let (line, limit) = (self.numbers(value), self.slot(limit));
                if let Some(found) = self.split_range(predicate, line, limit, exec, both) {
                    return found;
                }
                let mask = self.take_mask();
                self.runs(exec, |segment, item, first, count| {
                    let start = line.base.wrapping_add(line.g.wrapping_mul(segment as i64));
                    let start = start.wrapping_add(line.l.wrapping_mul(item as i64));
                    for i in 0..count {
                        let value = start.wrapping_add(line.l.wrapping_mul(i as i64));
                        let on = holds(predicate, value, limit);
                        // SAFETY: the masks cover the tile.
                        unsafe {
                            let old = exec.mask.is_null() || *exec.mask.add(first + i) != 0;
                            *mask.add(first + i) = u8::from(on) | (u8::from(old) << 1);
                        }
                    }
                    true
                });
                // SAFETY: as above.
                unsafe { self.split_mask(mask, exec, both) }
            }
            Condition::Reg(reg) => {
                let mask = self.take_mask();
                // SAFETY: the register and the masks cover the tile.
                unsafe {
                    let on = self.element(reg, ScalarType::I1, 0);
                    for i in exec.lo..exec.hi {
                        let old = exec.mask.is_null() || *exec.mask.add(i) != 0;
                        *mask.add(i) = (*on.add(i) & 1) | (u8::from(old) << 1);
                    }
                    self.split_mask(mask, exec, both)
                }
            }
        }
    }

    /// Splits by bytes of which bit 0 says whether the condition holds, bit 1 whether the item was active.
    unsafe fn split_mask(&mut self, mask: *mut u8, exec: Exec, both: bool) -> (Exec, Exec) {
        let none = Exec { hi: exec.lo, ..exec };
        let (mut yes, mut no) = (0, 0);
        // SAFETY: for all of it, masks cover the tile.
        unsafe {
            for i in exec.lo..exec.hi {
                yes += usize::from(*mask.add(i) == 3);
                no += usize::from(*mask.add(i) == 2);
            }
            if yes == 0 {
                return (none, exec);
            }
            if no == 0 && !ptr::eq(mask, exec.mask) {
                return (exec, none);
            }
            let rest = if both && no > 0 {
                let rest = self.take_mask();
                for i in exec.lo..exec.hi {
                    *rest.add(i) = u8::from(*mask.add(i) == 2);
                }
                Exec { mask: rest, ..exec }
            } else {
                none
            };
            for i in exec.lo..exec.hi {
                *mask.add(i) = u8::from(*mask.add(i) == 3);
            }
            (Exec { mask, ..exec }, rest)
        }
    }

    /// [`Self::split`] into ranges, where the items that satisfy the comparison are one.
    fn split_range(
        &mut self,
        predicate: IntPredicate,
        line: Line,
        limit: u64,
        exec: Exec,
        both: bool,
    ) -> Option<(Exec, Exec)> {
        use IntPredicate as P;
        let none = Exec { hi: exec.lo, ..exec };
        let (predicate, negated) = match predicate {
            P::Ne => (P::Eq, true),
            P::Sge => (P::Slt, true),
            P::Sgt => (P::Sle, true),
            P::Uge => (P::Ult, true),
            P::Ugt => (P::Ule, true),
            P::Eq | P::Slt | P::Sle | P::Ult | P::Ule => (predicate, false),
        };
        let Some(stride) = self.stride(line, exec) else {
            // Segments far apart: at least all or none can be told.
            let ends = [
                (exec.lo / self.width, 0),
                (exec.lo / self.width, self.width - 1),
                ((exec.hi - 1) / self.width, 0),
                ((exec.hi - 1) / self.width, self.width - 1),
            ];
            let small = |x: i64| x.unsigned_abs() < 1 << 40;
            if ![line.base, line.l, line.g, limit as i64].into_iter().all(small) || predicate == P::Eq {
                return None;
            }
            let values = ends.map(|(segment, item)| line.base + line.g * segment as i64 + line.l * item as i64);
            if matches!(predicate, P::Ult | P::Ule) && values.iter().any(|&value| value < 0) {
                return None;
            }
            let all = values.iter().all(|&value| holds(predicate, value, limit));
            let any = values.iter().any(|&value| holds(predicate, value, limit));
            if all != any {
                return None;
            }
            return Some(if all != negated { (exec, none) } else { (none, exec) });
        };
        // Small enough that nothing below can overflow.
        let small = |x: i64| x.unsigned_abs() < 1 << 60;
        let limit = limit as i64;
        if !small(line.base) || !small(limit) || stride.unsigned_abs() >= 1 << 40 {
            return None;
        }
        let (lo, hi) = (exec.lo as i64, exec.hi as i64);
        // Items with value < bound: a prefix if the values ascend, a suffix if they descend, all or none otherwise.
        let below = |bound: i64| -> (i64, i64) {
            if stride > 0 {
                (lo, ceil_div(bound - line.base, stride).clamp(lo, hi))
            } else if stride < 0 {
                // base + stride·i < bound  <=>  i > (base - bound) / -stride
                ((line.base - bound).div_euclid(-stride).saturating_add(1).clamp(lo, hi), hi)
            } else if line.base < bound {
                (lo, hi)
            } else {
                (lo, lo)
            }
        };
        let without = |(from, to): (i64, i64), (gone_from, gone_to): (i64, i64)| {
            // Both prefixes, or both suffixes, of one range.
            if gone_from >= gone_to {
                (from, to)
            } else if gone_from <= from {
                (gone_to.max(from), to.max(gone_to))
            } else {
                (from, gone_from.min(to))
            }
        };
        let (from, to) = match predicate {
            P::Slt => below(limit),
            P::Sle => below(limit + 1),
            // A negative value is huge; so is a negative limit.
            P::Ult | P::Ule if limit < 0 => return None,
            P::Ult => without(below(limit), below(0)),
            P::Ule => without(below(limit + 1), below(0)),
            _ => without(below(limit + 1), below(limit)),
        };
        let inside = if from < to { Exec { lo: from as usize, hi: to as usize, ..exec } } else { none };
        let outside = if inside.is_empty() {
            exec
        } else if inside.lo == exec.lo {
            Exec { lo: inside.hi, ..exec }
        } else if inside.hi == exec.hi {
            Exec { hi: inside.lo, ..exec }
        } else if both || negated {
            return None; // two pieces
        } else {
            none
        };
        Some(if negated { (outside, inside) } else { (inside, outside) })
    }

    // ---- between items

    unsafe fn reduce(&mut self, combine: Combine, ty: ScalarType, to: Reg, from: Reg, group: Group, exec: Exec) {
        // SAFETY: for all of it, registers hold the tile's items.
        unsafe {
            let (to, from) = (self.element(to, ty, 0), self.element(from, ty, 0));
            let (from32, to32) = (from.cast::<f32>(), to.cast::<f32>());
            macro_rules! floats {
                ($f:expr) => {
                    self.groups(group, exec, |i| from32.add(i).read(), $f, |i, value| to32.add(i).write(value))
                };
            }
            match (combine, ty) {
                (Combine::AddF, ScalarType::F32) => floats!(|a: f32, b: f32| a + b),
                (Combine::MulF, ScalarType::F32) => floats!(|a: f32, b: f32| a * b),
                (Combine::MaxNumF, ScalarType::F32) => floats!(math::maxnum),
                (Combine::MinNumF, ScalarType::F32) => floats!(math::minnum),
                (Combine::MaximumF, ScalarType::F32) => floats!(math::maximum),
                (Combine::MinimumF, ScalarType::F32) => floats!(math::minimum),
                _ => {
                    let op = Op::Binary(combine.binary(), ty);
                    self.groups(
                        group,
                        exec,
                        |i| bits(ty, from, i),
                        |a, b| op.evaluate([a, b, 0]),
                        |i, value| set_bits(ty, to, i, value),
                    );
                }
            }
        }
    }

    /// Combines each group's values, ascending, and gives every item of the group the result.
    #[inline(always)]
    fn groups<T: Copy>(
        &self,
        group: Group,
        exec: Exec,
        get: impl Fn(usize) -> T,
        combine: impl Fn(T, T) -> T,
        set: impl Fn(usize, T),
    ) {
        // SAFETY: the mask covers the tile.
        let on = |i: usize| exec.mask.is_null() || unsafe { *exec.mask.add(i) } != 0;
        let each = |start: usize, end: usize, stride: usize| {
            let items = || (start..end.min(exec.hi)).step_by(stride).skip_while(|&i| i < exec.lo);
            let mut sum = None;
            for i in items() {
                if on(i) {
                    let value = get(i);
                    sum = Some(sum.map_or(value, |sum| combine(sum, value)));
                }
            }
            if let Some(sum) = sum {
                for i in items() {
                    set(i, sum);
                }
            }
        };
        // Whole groups side by side: several chains at a time, since each waits for its own last addition only.
        const CHAINS: usize = 4;
        let whole = match group {
            Group::Workgroup => Some(if self.program.shape == Shape::Groups { self.width } else { exec.hi }),
            Group::Lanes { size: SUBGROUP_SIZE, .. } if self.width.is_multiple_of(SUBGROUP_SIZE as usize) => {
                Some(SUBGROUP_SIZE as usize)
            }
            Group::Lanes { .. } => None,
        };
        if let (Some(length), true, 0) = (whole, exec.mask.is_null(), exec.lo)
            && exec.hi.is_multiple_of(length)
        {
            let mut start = 0;
            while start < exec.hi {
                let chains = ((exec.hi - start) / length).min(CHAINS);
                // A chain too many reads what the first reads.
                let firsts: [usize; CHAINS] = std::array::from_fn(|c| start + if c < chains { c * length } else { 0 });
                let mut sums = firsts.map(&get);
                for i in 1..length {
                    for c in 0..CHAINS {
                        sums[c] = combine(sums[c], get(firsts[c] + i));
                    }
                }
                for (first, sum) in firsts.into_iter().zip(sums).take(chains) {
                    for i in first..first + length {
                        set(i, sum);
                    }
                }
                start += chains * length;
            }
            return;
        }
        // A workgroup is a segment, or the whole tile.
        let length = if self.program.shape == Shape::Groups { self.width } else { exec.hi };
        let mut start = 0;
        while start < exec.hi {
            let end = start + length;
            match group {
                Group::Workgroup => each(start, end, 1),
                Group::Lanes { size, stride } => {
                    let (size, stride) = (size as usize, stride as usize);
                    for subgroup in (start..end).step_by(SUBGROUP_SIZE as usize) {
                        let end = (subgroup + SUBGROUP_SIZE as usize).min(end);
                        for cluster in (subgroup..end).step_by(size * stride) {
                            for first in cluster..(cluster + stride).min(end) {
                                each(first, (first + size * stride).min(end), stride);
                            }
                        }
                    }
                }
            }
            start = end;
        }
    }

    unsafe fn shuffle(
        &mut self,
        mode: ShuffleMode,
        ty: ScalarType,
        [to, valid, from]: [Reg; 3],
        offset: Operand,
        width: Operand,
        exec: Exec,
    ) {
        let length = if self.program.shape == Shape::Groups { self.width } else { exec.hi };
        // SAFETY: for all of it, registers hold the tile's items, and a source is one of them.
        unsafe {
            let (to, from) = (self.element(to, ty, 0), self.element(from, ty, 0));
            let valid = self.element(valid, ScalarType::I1, 0);
            let number = |operand: Operand, i: usize| {
                bits(ScalarType::I32, operand.at, if operand.each { i - exec.lo } else { 0 }) as u32
            };
            for i in exec.lo..exec.hi {
                let local = i % length;
                let (offset, width) = (number(offset, i), number(width, i).clamp(1, SUBGROUP_SIZE));
                let lane = local as u32 % width;
                let (source, ok) = match mode {
                    ShuffleMode::Xor => (lane ^ offset, true),
                    ShuffleMode::Up => (lane.wrapping_sub(offset), offset <= lane),
                    ShuffleMode::Down => (lane.wrapping_add(offset), offset < width && lane + offset < width),
                    ShuffleMode::Index => (offset, true),
                };
                let other = (i - lane as usize) + source as usize;
                let ok = ok && source < width && other < exec.hi && other >= exec.lo && other / length == i / length;
                set_bits(ty, to, i, bits(ty, from, if ok { other } else { i }));
                valid.add(i).write(u8::from(ok));
            }
        }
    }
}

/// Whether `value predicate limit`.
fn holds(predicate: IntPredicate, value: i64, limit: u64) -> bool {
    loom_compiler::eval::compare_int(predicate, ScalarType::I64, value as u64, limit)
}

/// `a / b` rounded up, for positive `b`.
fn ceil_div(a: i64, b: i64) -> i64 {
    if b == 1 { a } else { a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0) }
}
