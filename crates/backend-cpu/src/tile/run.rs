//! The executor: cuts a launch into tiles and runs the program's blocks over them.
//!
//! - The items of a tile that are active are a range, and, where that does not do, a mask of bytes over it. Ops compute
//!   over the whole range; memory and moves heed the mask.
//! - Registers are `frame + reg + i * size`; the compiler laid them out for `capacity` items, and no tile has more.
//! - Not here: the loops (`kernels`), memory (`access`), who goes on (`split`), which tiles a thread runs (`share`), and what items tell each other (`between`, and `fragment` of tile products).

mod access;
mod atomic;
mod between;
mod fragment;
mod heads;
mod share;
mod split;
mod turns;

use std::ops::Range;
use std::ptr;

use loom_compiler::launch::Geometry;
use loom_compiler::ops::{Binary, IntPredicate};
use loom_compiler::tile::{
    Affine, Block, Buffer, Builtin, Condition, CpuImage, Inst, Op, Program, Reg, ScalarInst, Shape, SiteId, Slot,
    Source, Target, Term,
};
use loom_compiler::types::ScalarType;

use super::kernels::{Loops, Operand, bits, fetches, set_bits};
use super::memory::Bytes;
use super::{Arg, Fault};

pub(super) use share::{Patience, Role, Share};

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
    /// Bytes of each owner's part; without owners, all.
    part: usize,
    owner: Owner,
}

/// Whose the parts of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Everybody may touch all of it.
    Launch,
    /// Each segment of the tile has a part.
    Segment,
    /// Each item of the tile has a part.
    Item,
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

/// Runs `image` over `geometry`: all of it, or what falls to this thread of a launch that is shared.
///
/// # Safety
///
/// As [`super::run`]; the arguments were checked against the image, and `loops` are for an available set of instructions.
pub(super) unsafe fn launch(
    image: &CpuImage,
    geometry: &Geometry,
    args: &[Arg],
    state: &mut State,
    loops: Loops,
    step_limit: u64,
    share: Option<(&Share<'_>, Role<'_>)>,
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
        match builtin {
            Builtin::WorkGroupCount(axis) => slots[slot.0 as usize] = [gx, gy, gz][usize::from(axis).min(2)],
            Builtin::Length(argument) => {
                if let Some(Arg::Buffer { len, .. }) = args.get(argument as usize) {
                    slots[slot.0 as usize] = *len as u64;
                }
            }
            Builtin::Segment | Builtin::First | Builtin::Flat | Builtin::WorkGroup(_) | Builtin::Width => {}
        }
    }
    // Where segments are workgroups, or parts of one, their length is known before anything is computed from it.
    let fixed = matches!(program.shape, Shape::Groups | Shape::Group);
    if fixed {
        set_width(program, slots, sx);
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
    if !fixed && set_width(program, slots, width) {
        // What a width depends on does not depend on it, but other things may.
        for inst in &program.prologue {
            scalar(slots, inst);
        }
    }
    let capacity = program.capacity as usize;
    state.frame.reserve(program.frame_bytes as usize);
    state.staging.reserve(4 * 8 * capacity);
    let groups_per_tile = match program.shape {
        Shape::Groups if program.many_segments => (u64::from(program.items) / sx).max(1),
        Shape::Groups | Shape::Line { .. } | Shape::Rows | Shape::Group => 1,
    };
    let local = bind(image, program, args, &mut state.buffers, &mut state.local, groups_per_tile)?;
    let mut run = Run {
        program,
        name: &image.name,
        loops,
        slots,
        frame: state.frame.as_mut_ptr(),
        staging: state.staging.as_mut_ptr(),
        buffers: &state.buffers,
        masks: &mut state.masks,
        depth: 0,
        width: 1,
        batch: turns::Batch::default(),
        place: Place { at: 0, row: 1, group: [0; 3] },
        steps: 0,
        steps_max: step_limit,
        pause: step_limit,
        tiles: 0,
        step_limit,
        share: None,
        rest: &[],
        fetched: ptr::null(),
        ahead: loops.fetch && gx.saturating_mul(gy).saturating_mul(gz).saturating_mul(sx * sy * sz) >= MANY_ITEMS,
    };
    let clear = (state.local.as_mut_ptr(), local);
    let outer = match program.shape {
        Shape::Group => [gx, gy, gz],
        Shape::Rows => [1, 1, gz],
        Shape::Line { .. } | Shape::Groups => [1, gy, gz],
    };
    let lines = Lines::new(program, total, width, outer);
    // SAFETY: the caller's promises.
    unsafe {
        match share {
            None => run.tiles(&lines, 0..lines.tiles(), clear).map_err(|stop| *stop),
            Some((share, role)) => {
                run.share = Some(share);
                share.work(&mut run, &lines, clear, role);
                Ok(())
            }
        }
    }
}

/// Fills in the length of segments. Whether the program asks for it.
fn set_width(program: &Program, slots: &mut [u64], width: u64) -> bool {
    let mut asked = false;
    for &(slot, builtin) in &program.builtins {
        if builtin == Builtin::Width {
            slots[slot.0 as usize] = width;
            asked = true;
        }
    }
    asked
}

/// Fills in where the program's buffers lie. Returns the bytes of scratch memory used, those of constants left out.
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
        Buffer::Constant { len, .. } => u64::from(len),
        Buffer::Workgroup { bytes } => bytes.saturating_mul(groups_per_tile),
        Buffer::Private { bytes } => bytes.saturating_mul(u64::from(program.items)),
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
                Some(&Arg::Buffer { ptr, len }) => Binding { ptr, len, part: len, owner: Owner::Launch },
                Some(Arg::Scalar(_)) | None => Binding { ptr: ptr::null_mut(), len: 0, part: 0, owner: Owner::Launch },
            },
            Buffer::Workgroup { .. } | Buffer::Private { .. } => {
                let len = size(buffer) as usize;
                // SAFETY: `at + len <= total`, which is reserved.
                let ptr = unsafe { memory.as_mut_ptr().add(at) };
                at += len.next_multiple_of(64);
                let (owner, part) = match *buffer {
                    Buffer::Private { bytes } => (Owner::Item, bytes as usize),
                    Buffer::Workgroup { bytes } if groups_per_tile > 1 => (Owner::Segment, bytes as usize),
                    Buffer::Workgroup { .. } | Buffer::Constant { .. } | Buffer::Argument(_) => (Owner::Launch, len),
                };
                Binding { ptr, len, part, owner }
            }
            // Below.
            Buffer::Constant { .. } => Binding { ptr: ptr::null_mut(), len: 0, part: 0, owner: Owner::Launch },
        });
    }
    let scratch = at;
    // Behind what is cleared for every tile.
    for (binding, buffer) in buffers.iter_mut().zip(&program.buffers) {
        if let Buffer::Constant { start, len } = *buffer
            && let Some(bytes) = program.data.get(start as usize..start as usize + len as usize)
        {
            // SAFETY: `at + len <= total`, which is reserved.
            let ptr = unsafe { memory.as_mut_ptr().add(at) };
            // SAFETY: `len` bytes from `ptr` are ours, and no part of the image.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), ptr, bytes.len()) };
            at += bytes.len().next_multiple_of(64);
            *binding = Binding { ptr, len: bytes.len(), part: bytes.len(), owner: Owner::Launch };
        }
    }
    Ok(scratch)
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

/// The fault of a loop beyond the budget.
fn still_running(kernel: &str, program: &Program, site: SiteId, limit: u64) -> Fault {
    let site = &program.sites[site.0 as usize];
    Fault::Steps { kernel: kernel.to_owned(), op: site.op.clone(), at: site.span.start, line: site.line, limit }
}

/// Writes `base + step·i` for `count` elements from `to` on, which is valid for them. Several at a time: a sum for each is less
/// than a product, and no element waits for the one before.
unsafe fn ramp(to: *mut i64, base: i64, step: i64, count: usize) {
    const WIDE: usize = 8;
    let mut values: [i64; WIDE] = std::array::from_fn(|i| base.wrapping_add(step.wrapping_mul(i as i64)));
    let by = step.wrapping_mul(WIDE as i64);
    let whole = count - count % WIDE;
    for at in (0..whole).step_by(WIDE) {
        // SAFETY: the caller's promise.
        unsafe { to.add(at).cast::<[i64; WIDE]>().write_unaligned(values) };
        values = values.map(|value| value.wrapping_add(by));
    }
    for (at, value) in (whole..count).zip(values) {
        // SAFETY: as above.
        unsafe { to.add(at).write(value) };
    }
}

/// A fault, behind a pointer: every access returns one or none.
type Stop = Box<Fault>;

struct Run<'a> {
    program: &'a Program,
    name: &'a str,
    loops: Loops,
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
    /// What folds run over.
    batch: turns::Batch,
    place: Place,
    /// Turns of loops so far: of the launch or, where it is shared, of the tiles at hand.
    steps: u64,
    /// How many these may be.
    steps_max: u64,
    /// After how many to look whether to go on: `steps_max`, or earlier.
    pause: u64,
    /// Tiles of the launch up to the one at hand: a kernel with no loop takes time too.
    tiles: u64,
    step_limit: u64,
    share: Option<&'a Share<'a>>,
    /// Whether memory is fetched ahead: a launch of few items finds it in a cache.
    ahead: bool,
    /// What comes after the instruction at hand in its block.
    rest: &'a [Inst],
    /// What was fetched last.
    fetched: *const u8,
}

/// Which of the launch's items a tile has.
#[derive(Clone, Copy)]
struct Place {
    /// Position of item 0 among those of the line.
    at: u64,
    /// Segment length of the launch.
    row: u64,
    /// The workgroup, as far as it is the same for the line.
    group: [u64; 3],
}

/// Work-items from which on a launch is taken to run over more memory than the second-level cache holds.
const MANY_ITEMS: u64 = 1 << 16;

/// The tiles of a launch: `outer` lines of `total` items each, `width` of them a segment, one line like the other.
struct Lines {
    total: u64,
    width: u64,
    /// Whole segments of a tile; 0 where a segment is cut into tiles.
    segments: u64,
    /// Tiles of a line.
    each: u64,
    outer: [u64; 3],
}

impl Lines {
    fn new(program: &Program, total: u64, width: u64, outer: [u64; 3]) -> Self {
        let capacity = u64::from(program.items);
        let segments = if program.many_segments { capacity / width } else { 0 };
        let (whole, rest) = (total / width, total % width);
        let each = if segments > 0 {
            whole.div_ceil(segments) + u64::from(rest > 0)
        } else {
            whole * width.div_ceil(capacity) + rest.div_ceil(capacity)
        };
        Self { total, width, segments, each, outer }
    }

    /// How many there are. No more than items, which [`super::check_items`] has counted.
    fn tiles(&self) -> u64 {
        self.each * self.outer[0] * self.outer[1] * self.outer[2]
    }

    /// The first item of a tile of a line, its segment, and its place there.
    fn start(&self, tile: u64, capacity: u64) -> (u64, u64, u64) {
        if tile == 0 {
            (0, 0, 0)
        } else if self.segments > 0 {
            let segment = (tile * self.segments).min(self.total / self.width);
            (segment * self.width, segment, 0)
        } else {
            let cut = self.width.div_ceil(capacity);
            let (segment, first) = (tile / cut, tile % cut * capacity);
            (segment * self.width + first, segment, first)
        }
    }
}

/// The numbers of an affine value: `base + l·(i % width) + g·(i / width)`.
#[derive(Clone, Copy)]
struct Line {
    base: i64,
    l: i64,
    g: i64,
}

impl Run<'_> {
    /// Runs these tiles of the launch, ascending.
    unsafe fn tiles(&mut self, lines: &Lines, tiles: Range<u64>, clear: (*mut u8, usize)) -> Result<(), Stop> {
        self.tiles = tiles.start;
        let [columns, rows, _] = lines.outer;
        let (mut line, mut first) = (0, 0);
        if tiles.start > 0 {
            (line, first) = (tiles.start / lines.each, tiles.start % lines.each);
        }
        let mut group = if line > 0 { [line % columns, line / columns % rows, line / columns / rows] } else { [0; 3] };
        while self.tiles < tiles.end {
            let count = (lines.each - first).min(tiles.end - self.tiles);
            // SAFETY: the caller's promises.
            unsafe { self.line(lines, first..first + count, group, clear)? };
            first = 0;
            group[0] += 1;
            if group[0] == columns {
                (group[0], group[1]) = (0, group[1] + 1);
            }
            if group[1] == rows {
                (group[1], group[2]) = (0, group[2] + 1);
            }
        }
        Ok(())
    }

    /// Runs these tiles of the line of `group`.
    unsafe fn line(
        &mut self,
        lines: &Lines,
        tiles: Range<u64>,
        group: [u64; 3],
        local: (*mut u8, usize),
    ) -> Result<(), Stop> {
        let capacity = u64::from(self.program.items);
        let Lines { total, width, segments, .. } = *lines;
        let (mut at, mut segment, mut first) = lines.start(tiles.start, capacity);
        let segment_width = width;
        for _ in tiles {
            self.tiles += 1;
            if self.tiles > self.step_limit {
                let what = format!("still running after {} tiles of work-items", self.step_limit);
                return Err(Box::new(Fault::Launch { kernel: self.name.to_owned(), what }));
            }
            if let Some(share) = self.share {
                share.go_on(self.tiles, self.name)?;
            }
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
                    Builtin::Width | Builtin::WorkGroupCount(_) | Builtin::Length(_) => continue,
                };
            }
            self.width = width as usize;
            self.place = Place { at, row: segment_width, group };
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
        let insts = &program.blocks[block.0 as usize];
        for (at, inst) in insts.iter().enumerate() {
            // SAFETY: for all arms, `exec` is of this tile, and the caller's promises.
            unsafe {
                match inst {
                    Inst::Scalar(inst) => scalar(self.slots, inst),
                    Inst::Map { op, to, from } => {
                        if self.ahead {
                            self.rest = &insts[at + 1..];
                        }
                        self.map(*op, *to, from, exec)?;
                    }
                    Inst::MapSegments { op, to, from } => self.map_segments(*op, *to, from, exec),
                    Inst::LoadScalar { ty, to, buffer, offset, site } => {
                        let at = self.checked(*buffer, self.slot(*offset) as i64, ty.bytes() as usize, *site)?;
                        self.slots[to.0 as usize] = bits(*ty, at, 0);
                    }
                    Inst::Spread { to, value } => self.spread(*to, self.numbers(*value), exec),
                    Inst::Fence => std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst),
                    Inst::If { condition, then, otherwise } => self.branch(*condition, *then, *otherwise, exec)?,
                    Inst::Heads(heads) => {
                        if !self.heads(heads, exec)? {
                            self.branch(heads.condition, heads.then, None, exec)?;
                        }
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
                    Inst::Loop { head, condition, last, body, site } => {
                        let depth = self.depth;
                        let mut exec = exec;
                        let far = last.map(|(counter, last)| self.far_from_ends(counter, last));
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
                            let mut stay = exec;
                            if let (Some((value, limit)), Some((least, most))) = (*last, far) {
                                let base = self.slot(value.base) as i64;
                                if base < least || base > most {
                                    let stays = Condition::Compare { predicate: IntPredicate::Sle, value, limit };
                                    stay = self.split(stays, exec, false).0;
                                    self.depth = depth + 4;
                                }
                            }
                            self.block(*body, exec)?;
                            exec = stay;
                            if exec.is_empty() {
                                break;
                            }
                        }
                        self.depth = depth;
                    }
                    Inst::Turns(turns) => self.turns(turns, exec)?,
                    Inst::Fold(fold) => self.fold(fold)?,
                    Inst::Reduce { combine, ty, to, from, term, group } => {
                        let fresh = matches!(from, Source::Memory(_)) && !matches!(term, Term::SquaredDifference(_));
                        let from = self.source(*from, *ty, exec, 0)?;
                        // What the next tile will most likely read here.
                        let ahead = if fresh && self.ahead && from.is_each() {
                            from.at.wrapping_add((exec.hi - exec.lo) * ty.bytes() as usize)
                        } else {
                            ptr::null()
                        };
                        let other = match term {
                            Term::Value => from,
                            Term::Product(other) | Term::SquaredDifference(other) => {
                                self.source(*other, *ty, exec, 1)?
                            }
                        };
                        self.reduce((*combine, *ty), *term, *to, [from, other], *group, (exec, ahead))
                    }
                    Inst::Shuffle { mode, ty, to, valid, from, offset, width } => {
                        let offset = self.source(*offset, ScalarType::I32, exec, 0)?;
                        let width = self.source(*width, ScalarType::I32, exec, 1)?;
                        self.shuffle(*mode, *ty, [*to, *from], *valid, [offset, width], exec);
                    }
                    Inst::Scan { combine, scan, ty, to, from, group } => {
                        self.scan(*combine, *scan, *ty, [*to, *from], *group, exec);
                    }
                    Inst::Broadcast { ty, to, from, lane } => {
                        let lane = match lane {
                            Some(lane) => Some(self.source(*lane, ScalarType::I32, exec, 0)?),
                            None => None,
                        };
                        self.broadcast(*ty, [*to, *from], lane, exec);
                    }
                    Inst::Ballot { ty, to, from } => {
                        let from = self.source(*from, ScalarType::I1, exec, 0)?;
                        self.ballot(*ty, *to, from, exec);
                    }
                    Inst::Match { ty, from, mask, to, all } => self.matching(*ty, *from, *mask, *to, *all, exec),
                    Inst::Atomic { atomic, ty, to, from, access } => {
                        self.atomic(*atomic, *ty, *to, from, *access, exec)?;
                    }
                    Inst::Assert { condition, text, site } => self.assert(*condition, text, *site, exec)?,
                    Inst::FragmentLoad(access) => self.fragment_load(access, exec)?,
                    Inst::FragmentStore(access) => self.fragment_store(access, exec)?,
                    Inst::Mma(inst) => self.mma(inst, exec)?,
                    Inst::FragmentRepack(repack) => self.fragment_repack(repack, exec)?,
                }
            }
        }
        Ok(())
    }

    /// Each side for the items that take it, if there are any.
    unsafe fn branch(
        &mut self,
        condition: Condition,
        then: Block,
        otherwise: Option<Block>,
        exec: Exec,
    ) -> Result<(), Stop> {
        let depth = self.depth;
        // SAFETY: as the caller's.
        unsafe {
            let (yes, no) = self.split(condition, exec, otherwise.is_some());
            if !yes.is_empty() {
                self.block(then, yes)?;
            }
            if let (Some(otherwise), false) = (otherwise, no.is_empty()) {
                self.block(otherwise, no)?;
            }
        }
        self.depth = depth;
        Ok(())
    }

    /// A fault, if the condition is false for an active item.
    unsafe fn assert(&mut self, condition: Condition, text: &str, site: SiteId, exec: Exec) -> Result<(), Stop> {
        let depth = self.depth;
        // SAFETY: as the caller's.
        let no = unsafe { self.split(condition, exec, true) }.1;
        self.depth = depth;
        // SAFETY: the mask covers the tile.
        let first = (no.lo..no.hi).find(|&i| no.mask.is_null() || unsafe { *no.mask.add(i) } != 0);
        first.map_or(Ok(()), |item| {
            Err(Box::new(Fault::Assert {
                kernel: self.name.to_owned(),
                text: text.to_owned(),
                at: self.program.sites[site.0 as usize].span.start,
                line: self.program.sites[site.0 as usize].line,
                item: self.dispatch_id(item as u64),
            }))
        })
    }

    /// The dispatch id of item `i` of the tile.
    fn dispatch_id(&self, i: u64) -> [u64; 3] {
        let Place { at, row, group: [x, y, z] } = self.place;
        let [sx, sy, sz] = self.program.workgroup_size.map(u64::from);
        let at = at + i;
        match self.program.shape {
            Shape::Line { .. } | Shape::Groups => [at, y * sy, z * sz],
            Shape::Rows => [at % row.max(1), at / row.max(1), z * sz],
            Shape::Group => [x * sx + at % sx, y * sy + at / sx % sy, z * sz + at / (sx * sy)],
        }
    }

    #[inline(always)]
    fn step(&mut self, site: SiteId) -> Result<(), Stop> {
        self.steps += 1;
        if self.steps <= self.pause { Ok(()) } else { self.paused(site) }
    }

    /// Whether to take the turn of a loop that is beyond `pause`.
    #[cold]
    fn paused(&mut self, site: SiteId) -> Result<(), Stop> {
        if self.steps <= self.steps_max && self.share.is_some() {
            return self.look_up();
        }
        Err(Box::new(still_running(self.name, self.program, site, self.step_limit)))
    }

    /// Whether a shared launch goes on.
    #[cold]
    fn look_up(&mut self) -> Result<(), Stop> {
        let Some(share) = self.share else {
            return Ok(());
        };
        self.pause = share.pause(self.steps, self.steps_max);
        share.go_on(self.tiles, self.name)
    }

    // ---- element-wise

    #[inline]
    unsafe fn map(&mut self, op: Op, to: Target, from: &[Source; 3], exec: Exec) -> Result<(), Stop> {
        // SAFETY: the caller's promises; a wide tile is whole.
        if self.batch.is_some() && unsafe { self.map_rows(op, to, from, exec)? } {
            return Ok(());
        }
        let mut operands = [Operand::one(ptr::null()); 3];
        let count = op.operands();
        let n = exec.hi - exec.lo;
        let ty = op.result();
        // SAFETY: for all of it, operands hold `n` elements from `lo` on, or one; so does the target.
        unsafe {
            for (at, operand) in operands.iter_mut().enumerate().take(count) {
                *operand = self.source(from[at], op.operand(at), exec, at)?;
            }
            if self.ahead && fetches(op) {
                // What the next tile will most likely read here, where there are two operands to spare, and what this tile will.
                if count == 1 && matches!(from[0], Source::Memory(_)) && operands[0].is_each() {
                    operands[1] = Operand::each(operands[0].at.wrapping_add(n * ty.bytes() as usize));
                }
                operands[2] = Operand::each(self.next_access(exec));
            }
            match to {
                // Moves decide what an item keeps; everything else makes new values, which nobody reads where the mask is off.
                Target::Reg(reg) if !exec.mask.is_null() && matches!(op, Op::Move(_)) => {
                    let target = self.element(reg, ty, exec.lo);
                    for i in 0..n {
                        if *exec.mask.add(exec.lo + i) != 0 {
                            set_bits(ty, target, i, bits(ty, operands[0].at, operands[0].index(i)));
                        }
                    }
                }
                Target::Reg(reg) => (self.loops.map)(op, self.element(reg, ty, exec.lo), operands, n),
                Target::Memory(access) => {
                    if let Some(at) = self.contiguous(access, ty, exec)? {
                        (self.loops.map)(op, at, operands, n);
                    } else {
                        let staged = self.staging.add(3 * 8 * self.program.capacity as usize);
                        (self.loops.map)(op, staged, operands, n);
                        self.scatter(access, ty, exec, staged)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Where one of the next maps will access memory, unless it was the last to be fetched; null, if that is not seen from here.
    fn next_access(&mut self, exec: Exec) -> *const u8 {
        const FAR: usize = 8;
        for inst in self.rest.iter().take(FAR) {
            let Inst::Map { op, to, from } = inst else {
                match inst {
                    Inst::Scalar(_) | Inst::MapSegments { .. } | Inst::Reduce { .. } => continue,
                    _ => break,
                }
            };
            // These fetch what they read themselves.
            let sources = if fetches(*op) { &from[..0] } else { &from[..op.operands()] };
            let sources = sources.iter().enumerate().filter_map(|(at, source)| match source {
                Source::Memory(access) => Some((*access, op.operand(at))),
                _ => None,
            });
            let target = match to {
                Target::Memory(access) => Some((*access, op.result())),
                Target::Reg(_) => None,
            };
            for (access, ty) in sources.chain(target) {
                // An address that is not known yet is a guess.
                if let Ok(Some(at)) = self.contiguous(access, ty, exec)
                    && at.cast_const() != self.fetched
                    && ty.bytes() == 4
                {
                    self.fetched = at;
                    return at;
                }
            }
        }
        ptr::null()
    }

    /// One element per segment of the range; segments before it are computed too, to no effect.
    unsafe fn map_segments(&mut self, op: Op, to: Reg, from: &[Source; 3], exec: Exec) {
        // SAFETY: a register has room for as many elements as a tile has items, and so for one a segment.
        unsafe {
            let mut operands = [Operand::one(ptr::null()); 3];
            // Those that the op does not have were not validated.
            let first = self.batch.segment;
            for (at, operand) in operands.iter_mut().enumerate().take(op.operands()) {
                *operand = match from[at] {
                    Source::Reg(reg) => Operand::each(self.element(reg, op.operand(at), first).cast_const()),
                    Source::Slot(slot) => Operand::one((&raw const self.slots[slot.0 as usize]).cast()),
                    // Not in a program that was compiled or validated.
                    Source::Segment(_) | Source::Memory(_) => Operand::one(self.staging.cast_const()),
                };
            }
            (self.loops.map)(op, self.element(to, op.result(), first), operands, exec.hi.div_ceil(self.width));
        }
    }

    /// The elements of the segments that the range's items are of.
    unsafe fn segments(&self, reg: Reg, ty: ScalarType, exec: Exec, stage: usize) -> Operand {
        // SAFETY: the register holds an element for each segment; the staging area holds a tile.
        unsafe {
            let at = |segment: usize| self.element(reg, ty, self.batch.segment + segment).cast_const();
            let (segment, item) = (exec.lo / self.width, exec.lo % self.width);
            if item == 0 {
                return Operand { at: at(segment), run: self.width };
            }
            // The first segment has fewer items than the others.
            let staged = self.staging.add(stage * 8 * self.program.capacity as usize);
            let size = ty.bytes() as usize;
            self.runs(exec, |segment, _, first, count| {
                let to = staged.wrapping_add((first - exec.lo) * size);
                (self.loops.map)(Op::Move(ty), to, [Operand::one(at(segment)); 3], count);
                true
            });
            Operand::each(staged)
        }
    }

    /// The operand's elements, the first of them item `lo`'s. `stage` is free for a copy.
    #[inline(always)]
    unsafe fn source(&mut self, source: Source, ty: ScalarType, exec: Exec, stage: usize) -> Result<Operand, Stop> {
        // SAFETY: the caller's promises; registers and slots are the program's.
        unsafe {
            Ok(match source {
                Source::Reg(reg) => Operand::each(self.element(reg, ty, exec.lo)),
                Source::Slot(slot) => Operand::one((&raw const self.slots[slot.0 as usize]).cast()),
                Source::Segment(reg) => self.segments(reg, ty, exec, stage),
                Source::Memory(access) => match self.contiguous(access, ty, exec)? {
                    Some(at) => Operand::each(at),
                    None => {
                        let staged = self.staging.add(stage * 8 * self.program.capacity as usize);
                        self.gather(access, ty, exec, staged)?;
                        Operand::each(staged)
                    }
                },
            })
        }
    }

    #[inline(always)]
    fn numbers(&self, value: Affine) -> Line {
        let (base, l, g) = (self.slot(value.base) as i64, self.slot(value.l) as i64, self.slot(value.g) as i64);
        Line { base: base.wrapping_add(g.wrapping_mul(self.batch.segment as i64)), l, g }
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
            // SAFETY: as above.
            unsafe { ramp(to.add(first), base, line.l, count) };
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
}
