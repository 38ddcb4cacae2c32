//! One pass over a kernel's body that emits the tile program.
//!
//! ```text
//! value ──> lanes, each  Uniform (a slot) │ Affine (three slots) │ Reg │ Memory (a load not made yet) │ a comparison
//! ```
//!
//! - What is uniform becomes scalar instructions; what depends on nothing but arguments runs once per launch.
//! - What is affine in the item costs scalar instructions only, until something needs it in a register. Dividing the id
//!   of an item by a constant stays affine: tiles are cut at the multiples of the divisor.
//! - A load that one op uses, with nothing in between that could write, is read by that op; a result that one store uses
//!   is written by the op that computes it.
//! - A comparison of an affine value with a uniform one that guards an `if` or a loop becomes a range of items.
//! - Not here: which values are uniform (`uniform`), where registers lie (`frame`); and, in modules of this one, words and
//!   affine arithmetic, memory, control flow, and what decides the shape of tiles.

mod atomic;
mod collective;
mod control;
mod fragment;
mod heads;
mod lines;
mod memory;
mod packed;
mod simpler;
mod traits;
mod turns;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use self::simpler::Simpler;
use self::traits::Traits;
use super::Unsupported;
use super::frame::Frame;
use super::liveness::Liveness;
use super::program::*;
use super::uniform::{self, Ids};
use crate::ir::{BlockId, Body, Kernel, Op as IrOp, ParameterKind, Span, ValueId};
use crate::ops::{Axis, Binary, Combine, Convert, Element, IdKind, IntPredicate, OpKind, Ternary, Unary};
use crate::types::{Dim, ScalarType, Type};

/// Items of a tile, unless a workgroup that must lie in one tile is larger, or there is room for more.
const TILE: u32 = 256;
/// The most items of a tile. Each instruction costs some thirty elements' time whatever it computes.
pub(super) const TILE_MAX: u32 = 4096;
/// Bytes of registers that leave the first-level cache room for the memory that is read and written.
const FRAME_TARGET: u32 = 12 << 10;
/// The same where loops are folds, which read memory turn by turn.
const FRAME_OF_FOLDS: u32 = 16 << 10;
/// The same where turns are taken together: a part of the registers is theirs.
const FRAME_OF_TURNS: u32 = 48 << 10;
/// The most elements of a register that a batch of turns is given.
const BATCH_MAX: u32 = 2048;
/// Turns that a batch has room for, whatever the tile.
const TURNS_AT_LEAST: u32 = 4;
/// From this many items on, a workgroup fills a tile well enough to have one of its own.
const FULL_GROUP: u32 = 128;
/// From this segment length on, a tile of one segment is full enough to be worth keeping more values uniform.
const LONG_SEGMENT: u64 = 32;
/// The most instructions of a program: what a hostile kernel can make the compiler emit.
pub(super) const MAX_INSTRUCTIONS: usize = 1 << 20;
/// How many ops past one are looked at for what reads its result. A value that is read later is put into a register.
pub(super) const AHEAD: usize = 1024;
/// The most lanes that ops read and make, counted for each op as it is compiled. Lanes that are alike need no instruction,
/// yet are looked at one by one: some seconds.
const MAX_LANES: u64 = 1 << 23;

/// A 64-bit word that all items of a tile share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Constant(u64),
    /// `launch`: the same for all tiles of a launch.
    Slot {
        slot: Slot,
        launch: bool,
    },
}

const ZERO: Word = Word::Constant(0);
const ONE: Word = Word::Constant(1);

/// `base + l·item + g·segment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    base: Word,
    l: Word,
    g: Word,
}

/// One lane of a value.
#[derive(Clone, Debug)]
enum Lane {
    Uniform(Word),
    /// 64-bit integers only.
    Affine(Line),
    Reg(Reg),
    /// A load that its users will make, each for himself.
    Memory(Access),
    /// One element a segment.
    Segment(Reg),
    /// An op that has not been made: its users take it into their own.
    Later {
        op: Op,
        from: Box<[Lane]>,
    },
    /// `i1`: `value predicate limit`, 64 bits.
    Compare {
        predicate: IntPredicate,
        value: Line,
        limit: Word,
    },
    /// `i1`.
    Both(Box<[Lane; 2]>),
}

/// What is known of an SSA value.
#[derive(Clone, Debug)]
enum Value {
    Lanes(Vec<Lane>),
    /// Storage, and the byte where the item's own part starts.
    Buffer {
        buffer: u32,
        origin: Lane,
    },
    View {
        buffer: u32,
        offset: Lane,
    },
}

type Result<T> = std::result::Result<T, Unsupported>;

/// The program of `kernel`.
pub(super) fn program(kernel: &Kernel) -> Result<Program> {
    let wide = Compiler::new(kernel, true, TILE)?;
    let segment = wide.segment;
    let (mut program, lost) = wide.run()?;
    // With one segment a tile, what depends on the segment alone is uniform.
    let whole_plane = program.whole_groups && program.shape == Shape::Group;
    let many = !(lost && segment >= LONG_SEGMENT && !whole_plane);
    if !many {
        program = Compiler::new(kernel, false, TILE)?.run()?.0;
    }
    let items = program.capacity;
    let wide = program.blocks.iter().flatten().any(|inst| matches!(inst, Inst::Turns(turns) if turns.wide));
    let tile = if wide { spacious(&program) } else { roomy(&program) };
    if tile > program.capacity {
        program = Compiler::new(kernel, many, tile)?.run()?.0;
    }
    if wide {
        // What is left of the registers is for turns.
        program.items = items.max(program.capacity / TURNS_AT_LEAST);
    }
    Ok(program)
}

/// How many elements registers may have so that those of a batch of turns, which are some of all, stay in the first-level cache.
fn spacious(program: &Program) -> u32 {
    let fitting = (program.capacity * FRAME_OF_TURNS).checked_div(program.frame_bytes).unwrap_or(BATCH_MAX);
    (1 << fitting.max(1).ilog2()).min(BATCH_MAX).max(program.capacity)
}

/// How many items a tile of `program` may have so that its registers stay in the first-level cache.
fn roomy(program: &Program) -> u32 {
    let one_group = program.shape == Shape::Group || program.shape == Shape::Groups && !program.many_segments;
    if one_group || program.buffers.iter().any(|buffer| !matches!(buffer, Buffer::Argument(_))) {
        return program.capacity;
    }
    let folds = program.blocks.iter().flatten().any(|inst| matches!(inst, Inst::Turns(_)));
    let target = if folds { FRAME_OF_FOLDS } else { FRAME_TARGET };
    let fitting = (program.capacity * target).checked_div(program.frame_bytes).unwrap_or(TILE_MAX);
    // A power of two, so that workgroups of such sizes fill it.
    if fitting < 2 * program.capacity { program.capacity } else { (1 << fitting.ilog2()).min(TILE_MAX) }
}

struct Compiler<'a> {
    kernel: &'a Kernel,
    body: &'a Body,
    live: Liveness,
    /// The `if` around all that the kernel does, if items past a limit do nothing.
    clip: Option<(usize, ValueId, bool)>,
    /// Scalar instructions already emitted, by what they compute: once a launch, or in a block.
    words: BTreeMap<(Option<Block>, String, [Slot; 3]), Slot>,
    varies: Vec<bool>,
    /// Segments per tile: many, or one.
    many: bool,
    /// Segment length as far as it is known now.
    segment: u64,
    /// Whether a value that one segment a tile would keep uniform or affine went to registers.
    lost: bool,
    /// Whether rows of a workgroup each lie apart, so that a tile of one is the better.
    apart: bool,
    /// Whether a tile is one workgroup.
    one_group: bool,
    program: Program,
    frame: Frame,
    constants: BTreeMap<u64, Slot>,
    /// Slots that hold the same throughout a launch.
    known: BTreeMap<Slot, Word>,
    builtins: BTreeMap<u32, Slot>,
    values: Vec<Option<Value>>,
    /// The block being filled.
    at: Block,
    emitted: usize,
    /// Lanes looked at until now.
    looked: u64,
    span: Span,
    /// Values whose load has not been made yet.
    pending: BTreeSet<ValueId>,
    /// Stores already made by the op that computed their value: (block, op).
    stored: BTreeSet<(u32, usize)>,
    /// Registers that a value must be computed into: what a loop carries.
    wanted: BTreeMap<ValueId, Reg>,
}

impl<'a> Compiler<'a> {
    fn new(kernel: &'a Kernel, many: bool, tile: u32) -> Result<Self> {
        let body = &kernel.body;
        let [sx, sy, sz] = kernel.workgroup_size;
        let traits = Traits::of(body);
        let (mut shape, segment) = if sy > 1 || sz > 1 {
            (Shape::Group, u64::from(sx))
        } else if traits.groups || traits.meets {
            (Shape::Groups, u64::from(sx))
        } else {
            let short = traits.clip(body).and_then(|(_, limit, _)| body.constant(limit));
            match short.filter(|&items| items > 0 && items <= u64::from(tile) / 2) {
                // Several short lines fill a tile.
                Some(items) if many && traits.rows && traits.divisors.is_empty() => (Shape::Rows, items),
                _ => (Shape::Line { divisor: None }, u64::MAX),
            }
        };
        let whole_groups = traits.meets;
        let capacity = if whole_groups { kernel.items().max(tile) } else { tile };
        // Workgroups along x differ within a tile only where segments are workgroups and a tile holds many.
        let group_x_varies = matches!(shape, Shape::Groups) && many;
        let group_y_varies = matches!(shape, Shape::Rows);
        let one_group = whole_groups && (matches!(shape, Shape::Group) || matches!(shape, Shape::Groups) && !many);
        let varies = uniform::varying(
            body,
            Ids { group_x_varies, group_y_varies, one_group, subgroup_varies: true, subgroups: 0 },
        );
        let mut compiler = Self {
            kernel,
            body,
            live: Liveness::new(body),
            clip: traits.clip(body).filter(|_| matches!(shape, Shape::Line { .. } | Shape::Rows)),
            words: BTreeMap::new(),
            varies,
            many,
            segment,
            lost: false,
            apart: false,
            one_group,
            program: Program {
                shape,
                workgroup_size: kernel.workgroup_size,
                subgroup_size: kernel.subgroup_size,
                clip: None,
                whole_groups,
                many_segments: many,
                capacity,
                items: capacity,
                slots: 0,
                constants: Vec::new(),
                arguments: Vec::new(),
                builtins: Vec::new(),
                prologue: Vec::new(),
                frame_bytes: 0,
                buffers: Vec::new(),
                data: Vec::new(),
                blocks: vec![Vec::new()],
                sites: Vec::new(),
            },
            frame: Frame::new(),
            constants: BTreeMap::new(),
            known: BTreeMap::new(),
            builtins: BTreeMap::new(),
            values: vec![None; body.values.len()],
            at: Block(0),
            emitted: 0,
            looked: 0,
            span: Span::default(),
            pending: BTreeSet::new(),
            stored: BTreeSet::new(),
            wanted: BTreeMap::new(),
        };
        for (at, (parameter, &value)) in kernel.parameters.iter().zip(&body.block(Body::ENTRY).arguments).enumerate() {
            let held = match parameter.kind {
                ParameterKind::Buffer => {
                    compiler.program.buffers.push(Buffer::Argument(at as u32));
                    Value::Buffer { buffer: compiler.program.buffers.len() as u32 - 1, origin: Lane::Uniform(ZERO) }
                }
                ParameterKind::Scalar(ty) => {
                    let slot = compiler.slot();
                    compiler.program.arguments.push((slot, at as u32, ty));
                    let word = Word::Slot { slot, launch: true };
                    compiler.known.insert(slot, word);
                    Value::Lanes(vec![Lane::Uniform(word)])
                }
            };
            compiler.values[value.index()] = Some(held);
        }
        if let Shape::Line { divisor } = &mut shape
            && let Some(value) = traits.divisor(body)
        {
            let word = match (body.constant(value), &compiler.values[value.index()]) {
                (Some(bits), _) => Some(Word::Constant(bits)),
                (None, Some(Value::Lanes(lanes))) => match lanes[..] {
                    [Lane::Uniform(word)] => Some(word),
                    _ => None,
                },
                _ => None,
            };
            if let Some(word) = word {
                *divisor = Some(compiler.slot_of(word));
                compiler.segment = match word {
                    Word::Constant(bits) => bits,
                    Word::Slot { .. } => LONG_SEGMENT,
                };
            }
            compiler.program.shape = shape;
        }
        Ok(compiler)
    }

    /// The finished program, and whether one segment a tile would have kept more values uniform.
    fn run(mut self) -> Result<(Program, bool)> {
        self.entry(0)?;
        self.program.frame_bytes = self.frame.bytes();
        self.program.constants = self.constants.iter().map(|(&bits, &slot)| (slot, bits)).collect();
        Ok((self.program, self.lost || self.apart))
    }

    fn unsupported<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Unsupported { kernel: self.kernel.name.clone(), what: what.into(), span: self.span })
    }

    // ---- instructions and registers

    fn count(&mut self) -> Result<()> {
        self.emitted += 1;
        if self.emitted > MAX_INSTRUCTIONS {
            self.unsupported("a kernel of more than a million instructions")
        } else {
            Ok(())
        }
    }

    fn emit(&mut self, inst: Inst) -> Result<()> {
        self.count()?;
        self.program.blocks[self.at.0 as usize].push(inst);
        Ok(())
    }

    fn site(&mut self, op: &'static str) -> SiteId {
        let line = self.kernel.lines.line(self.span.start);
        // As it was written: several ops of the language may be one here.
        let op = self.kernel.lines.spelling(self.span.start).map_or(op.into(), |op| op.to_owned().into());
        self.program.sites.push(Site { op, span: self.span, line });
        SiteId(self.program.sites.len() as u32 - 1)
    }

    fn take(&mut self, ty: ScalarType) -> Result<Reg> {
        self.take_few(ty, self.program.capacity)
    }

    /// A register of one element a segment.
    fn take_segments(&mut self, ty: ScalarType) -> Result<Reg> {
        self.take_few(ty, self.program.segments_max())
    }

    fn take_few(&mut self, ty: ScalarType, elements: u32) -> Result<Reg> {
        match self.frame.take(ty, elements) {
            Some(reg) => Ok(reg),
            None => self.unsupported("a kernel with more than 64 MiB of live values in a tile"),
        }
    }

    /// Fills a new block by `fill`; the block filled until now goes on afterwards.
    fn nested(&mut self, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<Block> {
        let block = Block(self.program.blocks.len() as u32);
        self.program.blocks.push(Vec::new());
        let outer = std::mem::replace(&mut self.at, block);
        let filled = fill(self);
        self.at = outer;
        filled.map(|()| block)
    }

    fn affine(&mut self, line: Line) -> Affine {
        Affine { base: self.slot_of(line.base), l: self.slot_of(line.l), g: self.slot_of(line.g) }
    }

    /// `lane` as an operand of an instruction.
    fn source(&mut self, lane: &Lane) -> Result<Source> {
        Ok(match lane {
            Lane::Uniform(word) => Source::Slot(self.slot_of(*word)),
            Lane::Reg(reg) => Source::Reg(*reg),
            Lane::Memory(access) => Source::Memory(*access),
            Lane::Segment(reg) => Source::Segment(*reg),
            Lane::Later { op, from } => {
                let made = self.map(*op, from, None)?;
                self.source(&made)?
            }
            Lane::Affine(line) => {
                let to = self.take(ScalarType::I64)?;
                let value = self.affine(*line);
                self.emit(Inst::Spread { to, value })?;
                Source::Reg(to)
            }
            Lane::Compare { predicate, value, limit } => {
                let left = self.source(&Lane::Affine(*value))?;
                let right = Source::Slot(self.slot_of(*limit));
                let to = self.take(ScalarType::I1)?;
                let op = Op::CompareI(*predicate, ScalarType::I64);
                self.emit(Inst::Map { op, to: Target::Reg(to), from: [left, right, right] })?;
                Source::Reg(to)
            }
            Lane::Both(both) => {
                let (left, right) = (self.source(&both[0])?, self.source(&both[1])?);
                let to = self.take(ScalarType::I1)?;
                let op = Op::Binary(Binary::AndI, ScalarType::I1);
                self.emit(Inst::Map { op, to: Target::Reg(to), from: [left, right, right] })?;
                Source::Reg(to)
            }
        })
    }

    /// `lane` in a register.
    fn reg(&mut self, lane: &Lane, ty: ScalarType) -> Result<Reg> {
        match self.source(lane)? {
            Source::Reg(reg) => Ok(reg),
            source => {
                let to = self.take(ty)?;
                self.emit(Inst::Map { op: Op::Move(ty), to: Target::Reg(to), from: [source; 3] })?;
                Ok(to)
            }
        }
    }

    fn move_to(&mut self, ty: ScalarType, to: Reg, lane: &Lane) -> Result<()> {
        match lane {
            Lane::Reg(reg) if *reg == to => Ok(()),
            Lane::Affine(line) if ty.bits() == 64 => {
                // Under a mask the items that are off keep what they have, so not straight into `to`.
                let source = self.source(&Lane::Affine(*line))?;
                self.emit(Inst::Map { op: Op::Move(ty), to: Target::Reg(to), from: [source; 3] })
            }
            _ => {
                let source = self.source(lane)?;
                self.emit(Inst::Map { op: Op::Move(ty), to: Target::Reg(to), from: [source; 3] })
            }
        }
    }

    // ---- element-wise arithmetic on lanes

    /// `op` of lanes, into `to` if that is given and a register is needed.
    fn apply(&mut self, op: Op, from: &[Lane], to: Option<Target>) -> Result<Lane> {
        let words: Vec<Word> =
            from.iter().filter_map(|lane| if let Lane::Uniform(word) = lane { Some(*word) } else { None }).collect();
        if words.len() == from.len() {
            return Ok(Lane::Uniform(self.word(op, &words)?));
        }
        if let Some(lane) = self.affine_op(op, from)? {
            return Ok(lane);
        }
        if to.is_none() && from.iter().all(|lane| matches!(lane, Lane::Uniform(_) | Lane::Segment(_))) {
            return self.map_segments(op, from);
        }
        match simpler::simpler(op, from) {
            // Where the result is to be written, an op writes it.
            Some(Simpler::Operand(at)) if to.is_none() => Ok(from[at].clone()),
            Some(Simpler::Op(op, by)) => self.map(op, &[from[0].clone(), Lane::Uniform(Word::Constant(by))], to),
            _ => self.map(op, from, to),
        }
    }

    /// `op` of lanes that are the same for all items of a segment.
    fn map_segments(&mut self, op: Op, from: &[Lane]) -> Result<Lane> {
        let mut sources = [Source::Slot(Slot(0)); 3];
        for (source, lane) in sources.iter_mut().zip(from) {
            *source = match lane {
                Lane::Segment(reg) => Source::Reg(*reg),
                lane => self.source(lane)?,
            };
        }
        let to = self.take_segments(op.result())?;
        self.emit(Inst::MapSegments { op, to, from: sources })?;
        Ok(Lane::Segment(to))
    }

    fn map(&mut self, op: Op, from: &[Lane], to: Option<Target>) -> Result<Lane> {
        let mut sources = [Source::Slot(Slot(0)); 3];
        for (source, lane) in sources.iter_mut().zip(from) {
            *source = self.source(lane)?;
        }
        let to = match to {
            Some(to) => to,
            None => Target::Reg(self.take(op.result())?),
        };
        self.emit(Inst::Map { op, to, from: sources })?;
        Ok(match to {
            Target::Reg(reg) => Lane::Reg(reg),
            // Nothing else reads it.
            Target::Memory(_) => Lane::Uniform(ZERO),
        })
    }

    // ---- values

    fn lanes(&self, value: ValueId) -> Result<Vec<Lane>> {
        if let Some(bits) = self.body.constant(value) {
            let lanes = self.body.ty(value).lanes().unwrap_or(1) as usize;
            return Ok(vec![Lane::Uniform(Word::Constant(bits)); lanes]);
        }
        match &self.values[value.index()] {
            Some(Value::Lanes(lanes)) => Ok(lanes.clone()),
            Some(Value::Buffer { .. } | Value::View { .. }) => self.unsupported("a buffer or view used as a number"),
            None => self.unsupported("a value used before it is computed"),
        }
    }

    fn lane(&self, value: ValueId) -> Result<Lane> {
        match self.lanes(value)?.into_iter().next() {
            Some(lane) => Ok(lane),
            None => self.unsupported("an empty vector"),
        }
    }

    fn dim(&self, dim: Dim) -> Result<Lane> {
        match dim {
            Dim::Static(extent) => Ok(Lane::Uniform(Word::Constant(extent))),
            Dim::Value(value) => self.lane(value),
        }
    }

    fn each_reg(value: &Value, visit: &mut impl FnMut(Reg)) {
        fn lane(lane: &Lane, visit: &mut impl FnMut(Reg)) {
            match lane {
                Lane::Reg(reg) | Lane::Segment(reg) => visit(*reg),
                Lane::Memory(Access { offsets: Offsets::Gather(reg), .. }) => visit(*reg),
                Lane::Both(both) => both.iter().for_each(|part| self::Compiler::each_lane_reg(part, visit)),
                Lane::Later { from, .. } => from.iter().for_each(|part| self::Compiler::each_lane_reg(part, visit)),
                Lane::Uniform(_) | Lane::Affine(_) | Lane::Memory(_) | Lane::Compare { .. } => {}
            }
        }
        match value {
            Value::Lanes(lanes) => lanes.iter().for_each(|part| lane(part, visit)),
            Value::Buffer { origin: part, .. } | Value::View { offset: part, .. } => lane(part, visit),
        }
    }

    fn each_lane_reg(lane: &Lane, visit: &mut impl FnMut(Reg)) {
        Self::each_reg(&Value::Lanes(vec![lane.clone()]), visit);
    }

    fn define(&mut self, value: ValueId, held: Value) {
        Self::each_reg(&held, &mut |reg| self.frame.hold(reg));
        self.values[value.index()] = Some(held);
    }

    fn define_lanes(&mut self, value: ValueId, lanes: Vec<Lane>) {
        self.define(value, Value::Lanes(lanes));
    }

    fn forget(&mut self, value: ValueId) {
        if let Some(held) = self.values[value.index()].take() {
            Self::each_reg(&held, &mut |reg| self.frame.release(reg));
        }
        self.pending.remove(&value);
    }

    fn scalar_type(&self, value: ValueId) -> Result<ScalarType> {
        match self.body.ty(value).element() {
            Some(ty) => Ok(ty),
            None => self.unsupported("a buffer used as a number"),
        }
    }

    // ---- ops

    fn op(&mut self, block: BlockId, at: usize, op: &IrOp) -> Result<()> {
        let values = op.operands.iter().chain(&op.results);
        self.looked += values.filter_map(|&value| self.body.ty(value).lanes()).sum::<u64>();
        if self.looked > MAX_LANES {
            return self.unsupported("a kernel whose ops have more than eight million lanes");
        }
        match &op.kind {
            OpKind::Constant(_) | OpKind::Return | OpKind::Barrier(_) => Ok(()),
            // Terminators: whoever runs the block reads their operands.
            OpKind::Yield | OpKind::Condition => Ok(()),
            OpKind::Unary(unary) => self.element_wise(block, at, op, Element::Unary(*unary)),
            OpKind::Binary(binary) => self.element_wise(block, at, op, Element::Binary(*binary)),
            OpKind::Ternary(ternary) => self.element_wise(block, at, op, Element::Ternary(*ternary)),
            OpKind::CompareI(predicate) => self.element_wise(block, at, op, Element::CompareI(*predicate)),
            OpKind::CompareF(predicate) => self.element_wise(block, at, op, Element::CompareF(*predicate)),
            OpKind::Classify(class) => self.element_wise(block, at, op, Element::Classify(*class)),
            OpKind::Convert(convert) => {
                let (from, to) = (self.body.ty(op.operands[0]).lanes(), self.body.ty(op.results[0]).lanes());
                if from != to {
                    return self.regroup(op);
                }
                self.element_wise(block, at, op, Element::Convert(*convert))
            }
            OpKind::Select => self.select(block, at, op),
            OpKind::Splat => {
                let lane = self.lane(op.operands[0])?;
                let count = self.count_lanes(op.results[0])?;
                let lane = self.settled(lane, op.operands[0])?;
                self.define_lanes(op.results[0], vec![lane; count]);
                Ok(())
            }
            OpKind::FromElements => {
                let mut lanes = Vec::with_capacity(op.operands.len());
                for &operand in &op.operands {
                    lanes.extend(self.lanes(operand)?);
                }
                self.define_lanes(op.results[0], lanes);
                Ok(())
            }
            OpKind::Iota => {
                let (base, step) = (self.lane(op.operands[0])?, self.lane(op.operands[1])?);
                let ty = self.scalar_type(op.results[0])?;
                let mut lanes = Vec::new();
                for lane in 0..self.count_lanes(op.results[0])? as u64 {
                    lanes.push(self.iota_lane(ty, &base, &step, lane)?);
                }
                self.define_lanes(op.results[0], lanes);
                Ok(())
            }
            OpKind::MaskRange => {
                let [low, high, step] = [0, 1, 2].map(|at| self.lane(op.operands[at]));
                let (low, high, step) = (low?, high?, step?);
                let mut lanes = Vec::new();
                for lane in 0..self.count_lanes(op.results[0])? as u64 {
                    let value = self.iota_lane(ScalarType::Index, &low, &step, lane)?;
                    lanes.push(self.apply(
                        Op::CompareI(IntPredicate::Slt, ScalarType::Index),
                        &[value, high.clone()],
                        None,
                    )?);
                }
                self.define_lanes(op.results[0], lanes);
                Ok(())
            }
            OpKind::Extract | OpKind::Insert => self.extract_or_insert(op),
            OpKind::Reduce(combine) => {
                let ty = self.scalar_type(op.operands[0])?;
                let mut sum = self.lane(op.operands[1])?;
                for lane in self.lanes(op.operands[0])? {
                    sum = self.apply(Op::Binary(combine.binary(), ty), &[sum, lane], None)?;
                }
                self.define_lanes(op.results[0], vec![sum]);
                Ok(())
            }
            OpKind::Dot => {
                let ty = self.scalar_type(op.operands[0])?;
                let mut sum = self.lane(op.operands[2])?;
                for (a, b) in self.lanes(op.operands[0])?.into_iter().zip(self.lanes(op.operands[1])?) {
                    sum = self.apply(Op::Ternary(Ternary::FmaF, ty), &[a, b, sum], None)?;
                }
                self.define_lanes(op.results[0], vec![sum]);
                Ok(())
            }
            OpKind::Dot2F => self.dot2f(op),
            OpKind::Dot4I { a_signed, b_signed } => self.dot4i(op, *a_signed, *b_signed),
            OpKind::Lanes(order) => {
                let mut all = Vec::new();
                for &operand in &op.operands {
                    all.extend(self.lanes(operand)?);
                }
                let lanes: Option<Vec<Lane>> = order.iter().map(|&lane| all.get(lane as usize).cloned()).collect();
                match lanes {
                    Some(lanes) => self.define_lanes(op.results[0], lanes),
                    None => return self.unsupported("a lane beyond the operands"),
                }
                Ok(())
            }
            OpKind::Bytes(bytes) => self.constant_bytes(op, bytes),
            OpKind::Alloca { space, bytes, align } => self.alloca(op, *space, bytes.next_multiple_of((*align).max(1))),
            OpKind::BufferView => {
                let Some(Value::Buffer { buffer, origin }) = self.values[op.operands[0].index()].clone() else {
                    return self.unsupported("a buffer chosen at run time");
                };
                let offset = self.lane(op.operands[1])?;
                let offset = self.apply(Op::Binary(Binary::AddI, ScalarType::Offset), &[origin, offset], None)?;
                self.define(op.results[0], Value::View { buffer, offset });
                Ok(())
            }
            OpKind::Subview => {
                let (buffer, offset, _) = self.address(op.operands[0], &op.operands[1..])?;
                self.define(op.results[0], Value::View { buffer, offset });
                Ok(())
            }
            OpKind::Refine => {
                let Some(view @ Value::View { .. }) = self.values[op.operands[0].index()].clone() else {
                    return self.unsupported("a view chosen at run time");
                };
                self.define(op.results[0], view);
                Ok(())
            }
            OpKind::Load => self.load(block, at, op),
            OpKind::LoadMask => self.load_mask(op),
            OpKind::Store => self.store(op),
            OpKind::StoreMask => self.store_mask(op),
            OpKind::Gather | OpKind::GatherMask => self.gather(op),
            OpKind::Scatter | OpKind::ScatterMask => self.scatter(op),
            OpKind::AsyncCopy { .. } | OpKind::AsyncGroup | OpKind::AsyncWait { .. } => {
                self.unsupported("a copy that was not made at once")
            }
            OpKind::BufferLength => self.buffer_length(op),
            OpKind::If => {
                let condition = self.lane(op.operands[0])?;
                if let Some((clip, _, signed)) = self.clip
                    && (block, at) == (Body::ENTRY, clip)
                    && let Lane::Compare { limit, .. } = condition
                    && !matches!(limit, Word::Slot { launch: false, .. })
                {
                    let limit = self.slot_of(limit);
                    self.program.clip = Some((limit, signed));
                    let then = op.blocks[0];
                    return self.body_block(then, |this| this.leave(then, 0, &[]));
                }
                let results = self.results(op)?;
                self.branch(&condition, op.blocks[0], op.blocks.get(1).copied(), &results)?;
                self.define_results(op, results);
                Ok(())
            }
            OpKind::For => self.for_loop(op),
            OpKind::While => self.while_loop(op),
            OpKind::Switch(keys) => {
                let selector = self.lane(op.operands[0])?;
                let ty = self.scalar_type(op.operands[0])?;
                let results = self.results(op)?;
                self.switch(&selector, ty, keys, &op.blocks, &results)?;
                self.define_results(op, results);
                Ok(())
            }
            OpKind::Id(id) => {
                let lane = self.id(*id)?;
                self.define_lanes(op.results[0], vec![lane]);
                Ok(())
            }
            OpKind::SubgroupShuffle(mode) => {
                let ty = self.scalar_type(op.operands[0])?;
                let (offset, width) = (self.lane(op.operands[1])?, self.lane(op.operands[2])?);
                let (offset, width) = (self.source(&offset)?, self.source(&width)?);
                let asked = self.live.uses[op.results[1].index()] > 0;
                let valid = if asked { Some(self.take(ScalarType::I1)?) } else { None };
                let mut lanes = Vec::new();
                for lane in self.lanes(op.operands[0])? {
                    let from = self.reg(&lane, ty)?;
                    let to = self.take(ty)?;
                    self.emit(Inst::Shuffle { mode: *mode, ty, to, valid, from, offset, width })?;
                    lanes.push(Lane::Reg(to));
                }
                self.define_lanes(op.results[0], lanes);
                if let Some(valid) = valid {
                    self.define_lanes(op.results[1], vec![Lane::Reg(valid)]);
                }
                Ok(())
            }
            OpKind::SubgroupReduce { combine, size, stride } => {
                self.reduce(op, *combine, Group::Lanes { size: *size, stride: *stride })
            }
            OpKind::WorkgroupReduce(combine) => self.reduce(op, *combine, Group::Workgroup),
            OpKind::SubgroupScan { combine, scan, size, stride } => {
                self.scan(op, *combine, *scan, Group::Lanes { size: *size, stride: *stride })
            }
            OpKind::WorkgroupScan(combine, scan) => self.scan(op, *combine, *scan, Group::Workgroup),
            OpKind::SubgroupBroadcast | OpKind::SubgroupBroadcastFirst => self.broadcast(op),
            OpKind::SubgroupBallot => self.ballot(op),
            OpKind::SubgroupMatchAny | OpKind::SubgroupMatchAll => self.matching(op),
            OpKind::Atomic { .. } => self.atomic(op),
            OpKind::Fence { .. } => self.emit(Inst::Fence),
            OpKind::Assert(text) => self.assert(op, text),
            // Wherever it may stand, `entry` has taken it.
            OpKind::Exit => self.unsupported("kernel.exit in a region"),
            OpKind::FragmentLabel(..) => {
                let mut lanes = self.lanes(op.operands[0])?;
                for lane in &mut lanes {
                    *lane = self.settled(lane.clone(), op.operands[0])?;
                }
                self.define_lanes(op.results[0], lanes);
                Ok(())
            }
            OpKind::FragmentLoad(fragment) => self.fragment_load(op, *fragment),
            OpKind::FragmentStore(fragment) => self.fragment_store(op, *fragment),
            OpKind::FragmentRepack { from, to } => self.fragment_repack(op, *from, *to),
            OpKind::Mma(product) => self.mma(op, *product),
        }
    }

    fn count_lanes(&self, value: ValueId) -> Result<usize> {
        match self.body.ty(value).lanes() {
            Some(lanes) => Ok(lanes as usize),
            None => self.unsupported("a vector of unknown length"),
        }
    }

    fn iota_lane(&mut self, ty: ScalarType, base: &Lane, step: &Lane, lane: u64) -> Result<Lane> {
        let lane =
            Lane::Uniform(Word::Constant(Op::Convert(Convert::TruncI, ScalarType::I64, ty).evaluate([lane, 0, 0])));
        let distance = self.apply(Op::Binary(Binary::MulI, ty), &[lane, step.clone()], None)?;
        self.apply(Op::Binary(Binary::AddI, ty), &[base.clone(), distance], None)
    }

    /// A lane that may be used more than once: a load not made yet is made.
    fn settled(&mut self, lane: Lane, value: ValueId) -> Result<Lane> {
        match lane {
            Lane::Memory(_) | Lane::Later { .. } => Ok(Lane::Reg(self.reg(&lane, self.scalar_type(value)?)?)),
            lane => Ok(lane),
        }
    }

    fn element_wise(&mut self, block: BlockId, at: usize, op: &IrOp, element: Element) -> Result<()> {
        let make = Op::new(element, self.scalar_type(op.operands[0])?, self.scalar_type(op.results[0])?);
        let operands: Vec<Vec<Lane>> = op.operands.iter().map(|&value| self.lanes(value)).collect::<Result<_>>()?;
        if let Some(from) = self.later(block, at, op, make, &operands) {
            let result = op.results[0];
            self.define_lanes(result, vec![Lane::Later { op: make, from }]);
            self.pending.insert(result);
            return Ok(());
        }
        if let (Op::Ternary(Ternary::FmaF, ScalarType::F32), [a, b, c]) = (make, &operands[..])
            && let ([a], [b]) = (&a[..], &b[..])
        {
            let extended = |lane: &Lane| match lane {
                Lane::Later { op: Op::Convert(Convert::ExtF, ty, _), from } => Some((*ty, from.to_vec())),
                _ => None,
            };
            if let (Some((ty, a)), Some((same, b))) = (extended(a), extended(b))
                && ty == same
            {
                return self.map_lanes(block, at, op, Op::FmaExtended(ty), &[a, b, c.clone()]);
            }
            for (difference, other) in [(a, b), (b, a)] {
                if let Some([x, _]) = difference_of(difference) {
                    // What is subtracted is what is added: `later` saw to it.
                    let operands = [vec![other.clone()], vec![x.clone()], vec![c[0].clone()]];
                    return self.map_lanes(block, at, op, Op::Blend, &operands);
                }
            }
        }
        if let (Op::Binary(Binary::MulF, ScalarType::F32), [a, b]) = (make, &operands[..])
            && let ([a], [b]) = (&a[..], &b[..])
        {
            for (difference, other) in [(a, b), (b, a)] {
                if let Some([x, y]) = difference_of(difference) {
                    let operands = [vec![x.clone()], vec![y.clone()], vec![other.clone()]];
                    return self.map_lanes(block, at, op, Op::ScaledDifference, &operands);
                }
            }
        }
        if let (Op::Unary(exp @ (Unary::ExpF | Unary::ApproximateExpF), ScalarType::F32), [a]) = (make, &operands[..])
            && let [a] = &a[..]
            && let Some([x, y]) = difference_of(a)
        {
            let exp = Op::ExpDifference { approximate: exp == Unary::ApproximateExpF };
            return self.map_lanes(block, at, op, exp, &[vec![x.clone()], vec![y.clone()]]);
        }
        self.map_lanes(block, at, op, make, &operands)
    }

    /// The operands of an op that its users will make together with their own: an extension to f32 that is a factor of a fused
    /// multiply-add, a difference that is scaled or the exponential is taken of, or a product that is summed over work-items.
    fn later(&self, block: BlockId, at: usize, op: &IrOp, make: Op, operands: &[Vec<Lane>]) -> Option<Box<[Lane]>> {
        let square = make == Op::Binary(Binary::MulF, ScalarType::F32) && op.operands[0] == op.operands[1];
        let mut from = Vec::with_capacity(operands.len());
        for lanes in operands {
            match &lanes[..] {
                [lane @ (Lane::Memory(_) | Lane::Reg(_) | Lane::Segment(_) | Lane::Uniform(_))] => from.push(lane),
                [lane] if square && difference_of(lane).is_some() => from.push(lane),
                _ => return None,
            }
        }
        // A loop may give the register of what it carries a new value before the user comes.
        let carried = |lane: &&Lane| matches!(lane, Lane::Reg(reg) if self.wanted.values().any(|wanted| wanted == reg));
        let per_item = |lane: &&Lane| matches!(lane, Lane::Memory(_) | Lane::Reg(_) | Lane::Later { .. });
        if from.iter().any(carried) || !from.iter().any(per_item) {
            return None;
        }
        let result = op.results[0];
        let factor = |user: &IrOp| {
            user.kind == OpKind::Ternary(Ternary::FmaF)
                && user.operands[..2].contains(&result)
                && user.operands[2] != result
        };
        let takes = |user: &IrOp| match make {
            Op::Convert(Convert::ExtF, ScalarType::BF16 | ScalarType::F16, ScalarType::F32) => factor(user),
            Op::Binary(Binary::SubF, ScalarType::F32) => {
                matches!(user.kind, OpKind::Binary(Binary::MulF) | OpKind::Unary(Unary::ExpF | Unary::ApproximateExpF))
                    || factor(user) && user.operands[2] == op.operands[1]
            }
            Op::Binary(Binary::MulF, ScalarType::F32) => matches!(
                user.kind,
                OpKind::WorkgroupReduce(Combine::AddF) | OpKind::SubgroupReduce { combine: Combine::AddF, .. }
            ),
            _ => false,
        };
        let again = make == Op::Binary(Binary::SubF, ScalarType::F32);
        let ops = self.body.block(block).ops.iter().skip(at + 1).take(AHEAD);
        let taken = ops.filter(|user| user.operands.contains(&result)).all(takes);
        (taken && self.read_in_place(block, at, result, again)).then(|| from.into_iter().cloned().collect())
    }

    fn select(&mut self, block: BlockId, at: usize, op: &IrOp) -> Result<()> {
        let result = op.results[0];
        let Some(ty) = (match self.body.ty(result) {
            Type::Scalar(ty) => Some(*ty),
            Type::Vector(vector) => Some(vector.element),
            Type::Buffer | Type::View(_) | Type::Async(_) => None,
        }) else {
            return self.unsupported("scf.select of buffers or views");
        };
        let mut operands: Vec<Vec<Lane>> = op.operands.iter().map(|&value| self.lanes(value)).collect::<Result<_>>()?;
        let count = operands[1].len();
        if operands[0].len() == 1 && count > 1 {
            let condition = self.source(&operands[0][0].clone())?;
            let lane = match condition {
                Source::Reg(reg) => Lane::Reg(reg),
                Source::Slot(_) | Source::Segment(_) | Source::Memory(_) => operands[0][0].clone(),
            };
            operands[0] = vec![lane; count];
        }
        self.map_lanes(block, at, op, Op::Select(ty), &operands)
    }

    fn map_lanes(&mut self, block: BlockId, at: usize, op: &IrOp, make: Op, operands: &[Vec<Lane>]) -> Result<()> {
        let count = operands.iter().map(Vec::len).min().unwrap_or(0);
        let result = op.results[0];
        let mut lanes = Vec::with_capacity(count);
        for lane in 0..count {
            let from: Vec<Lane> = operands.iter().map(|lanes| lanes[lane].clone()).collect();
            // A uniform result is a slot, whatever the analysis expected.
            let uniform = from.iter().all(|lane| matches!(lane, Lane::Uniform(_)));
            let to = if count == 1 && !uniform { self.target(block, at, op, make)? } else { None };
            lanes.push(self.apply(make, &from, to)?);
        }
        self.define_lanes(result, lanes);
        Ok(())
    }

    /// Where the only lane of the op's result should go, if not to a register of its own.
    fn target(&mut self, block: BlockId, at: usize, op: &IrOp, make: Op) -> Result<Option<Target>> {
        let result = op.results[0];
        if let Some(&reg) = self.wanted.get(&result) {
            return Ok(Some(Target::Reg(reg)));
        }
        // What is computed without a register is not stored by this instruction.
        if self.live.uses[result.index()] != 1 || !self.varies[result.index()] || make.result().bits() == 1 {
            return Ok(None);
        }
        if make.result().bits() == 64 && !make.result().is_float() {
            return Ok(None);
        }
        let ops = &self.body.block(block).ops;
        let Some((store_at, store)) = ops.iter().enumerate().skip(at + 1).take(AHEAD).find(|(_, other)| {
            // Nothing between that touches memory or branches.
            !matches!(other.kind, OpKind::Constant(_) | OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Ternary(_))
        }) else {
            return Ok(None);
        };
        let fits = store.kind == OpKind::Store
            && store.operands[0] == result
            && store.operands[1..]
                .iter()
                .all(|&value| self.body.constant(value).is_some() || self.values[value.index()].is_some())
            // Nor a load that someone between would still make.
            && self.pending.iter().all(|value| {
                op.operands.contains(value) && self.live.dying(block, at).contains(value)
            });
        if !fits {
            return Ok(None);
        }
        let (buffer, offset, ty) = self.address(store.operands[1], &store.operands[2..])?;
        let span = std::mem::replace(&mut self.span, store.span);
        let access = self.access(buffer, &offset, ty, "view.store");
        self.span = span;
        self.stored.insert((block.0, store_at));
        Ok(Some(Target::Memory(access?)))
    }

    fn extract_or_insert(&mut self, op: &IrOp) -> Result<()> {
        let insert = op.kind == OpKind::Insert;
        let vector = op.operands[usize::from(insert)];
        let indices = &op.operands[1 + usize::from(insert)..];
        let Type::Vector(ty) = self.body.ty(vector).clone() else {
            return self.unsupported("lanes of something that is no vector");
        };
        let mut lanes = self.lanes(vector)?;
        let mut part = lanes.len();
        let mut start = 0;
        // Distance from `start`, in parts, of what is chosen at run time.
        let mut dynamic: Option<Lane> = None;
        let index = |op: Binary| Op::Binary(op, ScalarType::Index);
        let parts: u64 = ty.dims[..indices.len()].iter().map(|dim| dim.constant().unwrap_or(1)).product();
        let mut rest = parts;
        for (dim, &at) in ty.dims.iter().zip(indices) {
            let extent = dim.constant().unwrap_or(1).max(1);
            part /= extent as usize;
            rest /= extent;
            match self.lane(at)? {
                Lane::Uniform(Word::Constant(at)) if at < extent => start += (at * rest) as usize,
                // Out of range is out of contract; lane 0 is as good as any.
                Lane::Uniform(Word::Constant(_)) => {}
                lane => {
                    let lane = self.settled(lane, at)?;
                    let lane = self.apply(index(Binary::MulI), &[lane, Lane::Uniform(Word::Constant(rest))], None)?;
                    dynamic = Some(match dynamic {
                        Some(sum) => self.apply(index(Binary::AddI), &[sum, lane], None)?,
                        None => lane,
                    });
                }
            }
        }
        let element = ty.element;
        let Some(distance) = dynamic else {
            let first = start * part;
            if insert {
                let value = self.lanes(op.operands[0])?;
                lanes[first..first + part].clone_from_slice(&value[..part]);
                self.define_lanes(op.results[0], lanes);
            } else {
                self.define_lanes(op.results[0], lanes[first..first + part].to_vec());
            }
            return Ok(());
        };
        let distance = match self.source(&distance)? {
            Source::Reg(reg) => Lane::Reg(reg),
            Source::Slot(_) | Source::Segment(_) | Source::Memory(_) => distance,
        };
        let equals = |this: &mut Self, at: usize| {
            let at = Lane::Uniform(Word::Constant((at - start) as u64));
            this.map(Op::CompareI(IntPredicate::Eq, ScalarType::Index), &[distance.clone(), at], None)
        };
        if insert {
            let mut value = self.lanes(op.operands[0])?;
            for lane in &mut value {
                *lane = self.settled(lane.clone(), op.operands[0])?;
            }
            for at in start..parts as usize {
                let here = equals(self, at)?;
                for (lane, value) in lanes[at * part..(at + 1) * part].iter_mut().zip(&value) {
                    *lane = self.map(Op::Select(element), &[here.clone(), value.clone(), lane.clone()], None)?;
                }
            }
            self.define_lanes(op.results[0], lanes);
        } else {
            let mut found = lanes[start * part..(start + 1) * part].to_vec();
            for at in start + 1..parts as usize {
                let here = equals(self, at)?;
                for (found, lane) in found.iter_mut().zip(&lanes[at * part..(at + 1) * part]) {
                    *found = self.map(Op::Select(element), &[here.clone(), lane.clone(), found.clone()], None)?;
                }
            }
            self.define_lanes(op.results[0], found);
        }
        Ok(())
    }

    fn reduce(&mut self, op: &IrOp, combine: Combine, group: Group) -> Result<()> {
        let ty = self.scalar_type(op.operands[0])?;
        let items = self.kernel.items();
        // A workgroup of one whole subgroup is both.
        let whole = group == Group::Workgroup || group == Group::Lanes { size: items, stride: 1 };
        let group = if whole { Group::Workgroup } else { group };
        let segments = whole && self.many && self.program.shape == Shape::Groups;
        let mut lanes = Vec::new();
        for lane in self.lanes(op.operands[0])? {
            let (from, term) = match &lane {
                Lane::Memory(access) => (Source::Memory(*access), Term::Value),
                Lane::Later { op: Op::Binary(Binary::MulF, _), from } => match difference_of(&from[0]) {
                    Some([a, b]) => (self.source(a)?, Term::SquaredDifference(self.source(b)?)),
                    None => (self.source(&from[0])?, Term::Product(self.source(&from[1])?)),
                },
                lane => (Source::Reg(self.reg(lane, ty)?), Term::Value),
            };
            let (to, lane) =
                if group == Group::Workgroup && self.one_group && matches!(op.kind, OpKind::WorkgroupReduce(_)) {
                    let slot = self.slot();
                    (Landing::Slot(slot), Lane::Uniform(Word::Slot { slot, launch: false }))
                } else if segments {
                    let reg = self.take_segments(ty)?;
                    (Landing::Segments(reg), Lane::Segment(reg))
                } else {
                    let reg = self.take(ty)?;
                    (Landing::Reg(reg), Lane::Reg(reg))
                };
            let reduce = Inst::Reduce { combine, ty, to, from, term, group };
            let sum = match (combine, ty, to, from, term) {
                (Combine::AddF, ScalarType::F32, Landing::Segments(to), Source::Reg(from), Term::Value)
                    if self.live.uses[op.operands[0].index()] == 1 =>
                {
                    self.sum_of_fold(from, to, reduce.clone())?
                }
                _ => false,
            };
            if !sum {
                self.emit(reduce)?;
            }
            lanes.push(lane);
        }
        self.define_lanes(op.results[0], lanes);
        Ok(())
    }

    // ---- ids

    fn id(&mut self, id: IdKind) -> Result<Lane> {
        let [sx, sy, sz] = self.kernel.workgroup_size;
        let index = |op: Binary| Op::Binary(op, ScalarType::Index);
        Ok(match id {
            IdKind::WorkGroupCount(axis) => Lane::Uniform(self.builtin(Builtin::WorkGroupCount(axis.index() as u8))),
            IdKind::WorkGroup(Axis::X) if self.program.shape == Shape::Groups => self.segment_line(),
            IdKind::WorkGroup(Axis::Y) if self.program.shape == Shape::Rows => self.segment_line(),
            IdKind::WorkGroup(axis) => Lane::Uniform(self.builtin(Builtin::WorkGroup(axis.index() as u8))),
            IdKind::WorkItem(Axis::X) => self.first_line(),
            IdKind::WorkItem(Axis::Y) if sy == 1 => Lane::Uniform(ZERO),
            IdKind::WorkItem(Axis::Z) if sz == 1 => Lane::Uniform(ZERO),
            IdKind::WorkItem(Axis::Y) => {
                let row = self.segment_line();
                if sz == 1 { row } else { self.apply(index(Binary::RemUI), &[row, constant(sy)], None)? }
            }
            IdKind::WorkItem(Axis::Z) => {
                let row = self.segment_line();
                self.apply(index(Binary::DivUI), &[row, constant(sy)], None)?
            }
            IdKind::Dispatch(Axis::X) if self.program.shape != Shape::Group => {
                let mut line = self.line_id();
                if self.program.shape == Shape::Groups && self.many {
                    line.g = Word::Constant(u64::from(sx));
                }
                Lane::Affine(line)
            }
            IdKind::Dispatch(axis) => {
                let size = [sx, sy, sz][axis.index()];
                let (group, item) = (self.id(IdKind::WorkGroup(axis))?, self.id(IdKind::WorkItem(axis))?);
                let start = self.apply(index(Binary::MulI), &[group, constant(size)], None)?;
                self.apply(index(Binary::AddI), &[start, item], None)?
            }
            IdKind::Subgroup | IdKind::SubgroupLane => {
                let flat = if self.program.shape == Shape::Groups {
                    self.first_line()
                } else {
                    let g = if self.many { Word::Constant(u64::from(sx)) } else { ZERO };
                    Lane::Affine(Line { base: self.builtin(Builtin::Flat), l: ONE, g })
                };
                let op = if id == IdKind::Subgroup { Binary::DivUI } else { Binary::RemUI };
                let size = self.kernel.subgroup_size;
                if self.kernel.items() <= size {
                    if id == IdKind::Subgroup { Lane::Uniform(ZERO) } else { flat }
                } else {
                    self.map(index(op), &[flat, constant(size)], None)?
                }
            }
        })
    }
}

fn constant(value: u32) -> Lane {
    Lane::Uniform(Word::Constant(u64::from(value)))
}

/// The operands of a difference that has not been made.
fn difference_of(lane: &Lane) -> Option<[&Lane; 2]> {
    match lane {
        Lane::Later { op: Op::Binary(Binary::SubF, _), from } => Some([&from[0], &from[1]]),
        _ => None,
    }
}
