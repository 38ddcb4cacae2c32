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
//! - Not here: which values are uniform (`uniform`), where registers lie (`frame`).

use std::collections::{BTreeMap, BTreeSet};

use super::Unsupported;
use super::frame::Frame;
use super::liveness::Liveness;
use super::program::*;
use super::uniform::{self, Ids};
use crate::ir::{BlockId, Body, Kernel, Op as IrOp, ParameterKind, Span, ValueId};
use crate::ops::{Axis, Binary, Combine, Convert, IdKind, IntPredicate, OpKind, Space, Ternary};
use crate::types::{Dim, ScalarType, Type, ViewType};

/// Items of a tile, unless a workgroup that must lie in one tile is larger.
const TILE: u32 = 256;
/// From this segment length on, a tile of one segment is full enough to be worth keeping more values uniform.
const LONG_SEGMENT: u64 = 32;
/// The most instructions of a program: what a hostile kernel can make the compiler emit.
pub(super) const MAX_INSTRUCTIONS: usize = 1 << 20;

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
    /// A load that its only user will make.
    Memory(Access),
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
    let wide = Compiler::new(kernel, true)?;
    let segment = wide.segment;
    let (program, lost) = wide.run()?;
    // With one segment a tile, what depends on the segment alone is uniform.
    let whole_plane = program.whole_groups && program.shape == Shape::Group;
    if lost && segment >= LONG_SEGMENT && !whole_plane {
        return Ok(Compiler::new(kernel, false)?.run()?.0);
    }
    Ok(program)
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
    program: Program,
    frame: Frame,
    constants: BTreeMap<u64, Slot>,
    builtins: BTreeMap<u8, Slot>,
    values: Vec<Option<Value>>,
    /// The block being filled.
    at: Block,
    emitted: usize,
    span: Span,
    /// Values whose load has not been made yet.
    pending: BTreeSet<ValueId>,
    /// Stores already made by the op that computed their value: (block, op).
    stored: BTreeSet<(u32, usize)>,
    /// Registers that a value must be computed into: what a loop carries.
    wanted: BTreeMap<ValueId, Reg>,
}

impl<'a> Compiler<'a> {
    fn new(kernel: &'a Kernel, many: bool) -> Result<Self> {
        let body = &kernel.body;
        let [sx, sy, sz] = kernel.workgroup_size;
        let traits = Traits::of(body);
        let (mut shape, segment) = if sy > 1 || sz > 1 {
            (Shape::Group, u64::from(sx))
        } else if traits.groups || traits.meets {
            (Shape::Groups, u64::from(sx))
        } else {
            let short = traits.clip(body).and_then(|(_, limit, _)| body.constant(limit));
            match short.filter(|&items| items > 0 && items <= u64::from(TILE) / 2) {
                // Several short lines fill a tile.
                Some(items) if many && traits.rows && traits.divisors.is_empty() => (Shape::Rows, items),
                _ => (Shape::Line { divisor: None }, u64::MAX),
            }
        };
        let whole_groups = traits.meets;
        let capacity = if whole_groups { kernel.items().max(TILE) } else { TILE };
        // Workgroups along x differ within a tile only where segments are workgroups and a tile holds many.
        let group_x_varies = matches!(shape, Shape::Groups) && many;
        let group_y_varies = matches!(shape, Shape::Rows);
        let varies = uniform::varying(body, Ids { group_x_varies, group_y_varies });
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
            program: Program {
                shape,
                workgroup_size: kernel.workgroup_size,
                clip: None,
                whole_groups,
                many_segments: many,
                capacity,
                slots: 0,
                constants: Vec::new(),
                arguments: Vec::new(),
                builtins: Vec::new(),
                prologue: Vec::new(),
                frame_bytes: 0,
                buffers: Vec::new(),
                blocks: vec![Vec::new()],
                sites: Vec::new(),
            },
            frame: Frame::new(capacity),
            constants: BTreeMap::new(),
            builtins: BTreeMap::new(),
            values: vec![None; body.values.len()],
            at: Block(0),
            emitted: 0,
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
                    Value::Lanes(vec![Lane::Uniform(Word::Slot { slot, launch: true })])
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
        self.block(Body::ENTRY)?;
        self.program.frame_bytes = self.frame.bytes();
        self.program.constants = self.constants.iter().map(|(&bits, &slot)| (slot, bits)).collect();
        Ok((self.program, self.lost))
    }

    fn unsupported<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Unsupported { kernel: self.kernel.name.clone(), what: what.into(), span: self.span })
    }

    // ---- slots and words

    fn slot(&mut self) -> Slot {
        self.program.slots += 1;
        Slot(self.program.slots - 1)
    }

    /// A slot holding `word`.
    fn slot_of(&mut self, word: Word) -> Slot {
        match word {
            Word::Slot { slot, .. } => slot,
            Word::Constant(bits) => match self.constants.get(&bits) {
                Some(&slot) => slot,
                None => {
                    let slot = self.slot();
                    self.constants.insert(bits, slot);
                    slot
                }
            },
        }
    }

    fn builtin(&mut self, builtin: Builtin) -> Word {
        let (key, launch) = match builtin {
            Builtin::Segment => (0, false),
            Builtin::First => (1, false),
            Builtin::Flat => (2, false),
            Builtin::Width => (3, true),
            Builtin::WorkGroup(axis) => (4 + axis, false),
            Builtin::WorkGroupCount(axis) => (7 + axis, true),
        };
        let slot = match self.builtins.get(&key) {
            Some(&slot) => slot,
            None => {
                let slot = self.slot();
                self.builtins.insert(key, slot);
                self.program.builtins.push((slot, builtin));
                slot
            }
        };
        Word::Slot { slot, launch }
    }

    /// `op` of words, folded, simplified, or emitted: before the first tile if it may be.
    fn word(&mut self, op: Op, from: &[Word]) -> Result<Word> {
        if let (Op::Binary(binary, ty), &[a, b]) = (op, from)
            && ty.bits() == 64
        {
            match binary {
                Binary::AddI if a == ZERO => return Ok(b),
                Binary::AddI | Binary::SubI if b == ZERO => return Ok(a),
                Binary::MulI if a == ZERO || b == ZERO => return Ok(ZERO),
                Binary::MulI if a == ONE => return Ok(b),
                Binary::MulI | Binary::DivUI if b == ONE => return Ok(a),
                _ => {}
            }
        }
        let constants: Vec<u64> =
            from.iter().filter_map(|word| if let Word::Constant(bits) = word { Some(*bits) } else { None }).collect();
        if constants.len() == from.len() {
            let mut bits = [0; 3];
            bits[..constants.len()].copy_from_slice(&constants);
            return Ok(Word::Constant(op.evaluate(bits)));
        }
        let launch = from.iter().all(|word| !matches!(word, Word::Slot { launch: false, .. }));
        let mut slots = [Slot(0); 3];
        for (slot, &word) in slots.iter_mut().zip(from) {
            *slot = self.slot_of(word);
        }
        // The same value is computed once in a block: addresses repeat.
        let key = ((!launch).then_some(self.at), format!("{op:?}"), slots);
        if let Some(&slot) = self.words.get(&key) {
            return Ok(Word::Slot { slot, launch });
        }
        let to = self.slot();
        self.words.insert(key, to);
        let inst = ScalarInst { op, to, from: slots };
        if launch {
            self.count()?;
            self.program.prologue.push(inst);
        } else {
            self.emit(Inst::Scalar(inst))?;
        }
        Ok(Word::Slot { slot: to, launch })
    }

    fn add(&mut self, a: Word, b: Word) -> Result<Word> {
        self.word(Op::Binary(Binary::AddI, ScalarType::I64), &[a, b])
    }

    fn sub(&mut self, a: Word, b: Word) -> Result<Word> {
        self.word(Op::Binary(Binary::SubI, ScalarType::I64), &[a, b])
    }

    fn mul(&mut self, a: Word, b: Word) -> Result<Word> {
        self.word(Op::Binary(Binary::MulI, ScalarType::I64), &[a, b])
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
        self.program.sites.push(Site { op: op.into(), span: self.span });
        SiteId(self.program.sites.len() as u32 - 1)
    }

    fn take(&mut self, ty: ScalarType) -> Result<Reg> {
        match self.frame.take(ty) {
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

    /// The id of an item on the line, in a `Line` program.
    fn line_id(&mut self) -> Line {
        if self.program.shape == Shape::Rows {
            let base = self.builtin(Builtin::First);
            return Line { base, l: ONE, g: ZERO };
        }
        let base = self.builtin(Builtin::Flat);
        let g = if self.many && self.has_divisor() { self.builtin(Builtin::Width) } else { ZERO };
        Line { base, l: ONE, g }
    }

    fn has_divisor(&self) -> bool {
        !matches!(self.program.shape, Shape::Line { divisor: None })
    }

    fn segment_line(&mut self) -> Lane {
        let base = self.builtin(Builtin::Segment);
        if self.many { Lane::Affine(Line { base, l: ZERO, g: ONE }) } else { Lane::Uniform(base) }
    }

    fn first_line(&mut self) -> Lane {
        Lane::Affine(Line { base: self.builtin(Builtin::First), l: ONE, g: ZERO })
    }

    /// An affine lane, uniform if nothing depends on the item.
    fn line(base: Word, l: Word, g: Word) -> Lane {
        if l == ZERO && g == ZERO { Lane::Uniform(base) } else { Lane::Affine(Line { base, l, g }) }
    }

    fn as_line(lane: &Lane) -> Option<Line> {
        match lane {
            Lane::Uniform(word) => Some(Line { base: *word, l: ZERO, g: ZERO }),
            Lane::Affine(line) => Some(*line),
            Lane::Reg(_) | Lane::Memory(_) | Lane::Compare { .. } | Lane::Both(_) => None,
        }
    }

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
        self.map(op, from, to)
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

    /// `op` without a register, where that is possible.
    fn affine_op(&mut self, op: Op, from: &[Lane]) -> Result<Option<Lane>> {
        Ok(match (op, from) {
            (Op::Binary(Binary::AndI, ScalarType::I1), [a, b]) => {
                let lazy = |lane: &Lane| matches!(lane, Lane::Compare { .. } | Lane::Both(_));
                (lazy(a) || lazy(b)).then(|| Lane::Both(Box::new([a.clone(), b.clone()])))
            }
            (Op::Binary(binary, ty), [a, b]) if ty.bits() == 64 && !ty.is_float() => {
                let (Some(x), Some(y)) = (Self::as_line(a), Self::as_line(b)) else {
                    return Ok(None);
                };
                let uniform = |line: &Line| line.l == ZERO && line.g == ZERO;
                match binary {
                    Binary::AddI => {
                        Some(Self::line(self.add(x.base, y.base)?, self.add(x.l, y.l)?, self.add(x.g, y.g)?))
                    }
                    Binary::SubI => {
                        Some(Self::line(self.sub(x.base, y.base)?, self.sub(x.l, y.l)?, self.sub(x.g, y.g)?))
                    }
                    Binary::MulI if uniform(&y) => Some(self.scale(x, y.base)?),
                    Binary::MulI if uniform(&x) => Some(self.scale(y, x.base)?),
                    Binary::ShlI => match y.base {
                        Word::Constant(count) if uniform(&y) => Some(self.scale(x, Word::Constant(1 << (count & 63)))?),
                        _ => None,
                    },
                    Binary::DivUI | Binary::RemUI if uniform(&y) => self.divide(binary, x, y.base)?,
                    _ => None,
                }
            }
            (Op::Ternary(Ternary::FmaI, ty), [a, b, c]) if ty.bits() == 64 => {
                let product = self.affine_op(Op::Binary(Binary::MulI, ty), &[a.clone(), b.clone()])?;
                match product {
                    Some(product) => self.affine_op(Op::Binary(Binary::AddI, ty), &[product, c.clone()])?,
                    None => None,
                }
            }
            (Op::CompareI(predicate, ty), [a, b]) if ty.bits() == 64 => match (a, b) {
                (Lane::Affine(value), Lane::Uniform(limit)) => {
                    Some(Lane::Compare { predicate, value: *value, limit: *limit })
                }
                (Lane::Uniform(limit), Lane::Affine(value)) => {
                    Some(Lane::Compare { predicate: swapped(predicate), value: *value, limit: *limit })
                }
                _ => None,
            },
            (Op::Convert(convert, source, target), [lane @ Lane::Affine(_)])
                if source.bits() == 64 && target.bits() == 64 && !target.is_float() =>
            {
                match convert {
                    Convert::ExtSI | Convert::ExtUI | Convert::TruncI | Convert::Bitcast => Some(lane.clone()),
                    Convert::SiToF
                    | Convert::UiToF
                    | Convert::FToSi
                    | Convert::FToUi
                    | Convert::ExtF
                    | Convert::TruncF => None,
                }
            }
            _ => None,
        })
    }

    fn scale(&mut self, line: Line, by: Word) -> Result<Lane> {
        Ok(Self::line(self.mul(line.base, by)?, self.mul(line.l, by)?, self.mul(line.g, by)?))
    }

    /// `line / by` or `line % by`, where the tiles are cut so that it is affine.
    fn divide(&mut self, op: Binary, line: Line, by: Word) -> Result<Option<Lane>> {
        if let Shape::Line { divisor: Some(divisor) } = self.program.shape
            && line == self.line_id()
        {
            if self.slot_of(by) == divisor {
                return Ok(Some(if op == Binary::DivUI { self.segment_line() } else { self.first_line() }));
            }
            // A multiple of the segment: whole segments share the quotient.
            if let (Word::Constant(by), Some(length)) = (by, self.constant_divisor(divisor))
                && !self.many
                && length > 0
                && by % length == 0
            {
                let segment = self.builtin(Builtin::Segment);
                let factor = Word::Constant(by / length);
                let part = self.word(Op::Binary(op, ScalarType::I64), &[segment, factor])?;
                if op == Binary::DivUI {
                    return Ok(Some(Lane::Uniform(part)));
                }
                let start = self.mul(part, Word::Constant(length))?;
                let first = self.builtin(Builtin::First);
                return Ok(Some(Lane::Affine(Line { base: self.add(start, first)?, l: ONE, g: ZERO })));
            }
        }
        self.lost |= self.many && line.g != ZERO;
        Ok(None)
    }

    fn constant_divisor(&self, divisor: Slot) -> Option<u64> {
        self.constants.iter().find(|&(_, &slot)| slot == divisor).map(|(&bits, _)| bits)
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
                Lane::Reg(reg) => visit(*reg),
                Lane::Memory(Access { offsets: Offsets::Gather(reg), .. }) => visit(*reg),
                Lane::Both(both) => both.iter().for_each(|part| self::Compiler::each_lane_reg(part, visit)),
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

    fn block(&mut self, block: BlockId) -> Result<()> {
        let body = self.body;
        for (at, op) in body.block(block).ops.iter().enumerate() {
            self.span = op.span;
            if !self.stored.contains(&(block.0, at)) {
                self.op(block, at, op)?;
            }
            for index in 0..self.live.dying(block, at).len() {
                let value = self.live.dying(block, at)[index];
                self.forget(value);
            }
            self.frame.settle();
        }
        Ok(())
    }

    fn op(&mut self, block: BlockId, at: usize, op: &IrOp) -> Result<()> {
        match &op.kind {
            OpKind::Constant(_) | OpKind::Return | OpKind::Barrier(_) => Ok(()),
            // Terminators: whoever runs the block reads their operands.
            OpKind::Yield | OpKind::Condition => Ok(()),
            OpKind::Unary(unary) => self.element_wise(block, at, op, |ty, _| Op::Unary(*unary, ty)),
            OpKind::Binary(binary) => self.element_wise(block, at, op, |ty, _| Op::Binary(*binary, ty)),
            OpKind::Ternary(ternary) => self.element_wise(block, at, op, |ty, _| Op::Ternary(*ternary, ty)),
            OpKind::CompareI(predicate) => self.element_wise(block, at, op, |ty, _| Op::CompareI(*predicate, ty)),
            OpKind::CompareF(predicate) => self.element_wise(block, at, op, |ty, _| Op::CompareF(*predicate, ty)),
            OpKind::Classify(class) => self.element_wise(block, at, op, |ty, _| Op::Classify(*class, ty)),
            OpKind::Convert(convert) => {
                let (from, to) = (self.body.ty(op.operands[0]).lanes(), self.body.ty(op.results[0]).lanes());
                if from != to {
                    return self.unsupported("vector.bitcast that changes the number of lanes");
                }
                self.element_wise(block, at, op, |from, to| Op::Convert(*convert, from, to))
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
                let valid = self.take(ScalarType::I1)?;
                let mut lanes = Vec::new();
                for lane in self.lanes(op.operands[0])? {
                    let from = self.reg(&lane, ty)?;
                    let to = self.take(ty)?;
                    self.emit(Inst::Shuffle { mode: *mode, ty, to, valid, from, offset, width })?;
                    lanes.push(Lane::Reg(to));
                }
                self.define_lanes(op.results[0], lanes);
                self.define_lanes(op.results[1], vec![Lane::Reg(valid)]);
                Ok(())
            }
            OpKind::SubgroupReduce { combine, size, stride } => {
                self.reduce(op, *combine, Group::Lanes { size: *size, stride: *stride })
            }
            OpKind::WorkgroupReduce(combine) => self.reduce(op, *combine, Group::Workgroup),
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
            Lane::Memory(_) => Ok(Lane::Reg(self.reg(&lane, self.scalar_type(value)?)?)),
            lane => Ok(lane),
        }
    }

    fn element_wise(
        &mut self,
        block: BlockId,
        at: usize,
        op: &IrOp,
        make: impl Fn(ScalarType, ScalarType) -> Op,
    ) -> Result<()> {
        let make = make(self.scalar_type(op.operands[0])?, self.scalar_type(op.results[0])?);
        let operands: Vec<Vec<Lane>> = op.operands.iter().map(|&value| self.lanes(value)).collect::<Result<_>>()?;
        self.map_lanes(block, at, op, make, &operands)
    }

    fn select(&mut self, block: BlockId, at: usize, op: &IrOp) -> Result<()> {
        let result = op.results[0];
        let Some(ty) = (match self.body.ty(result) {
            Type::Scalar(ty) => Some(*ty),
            Type::Vector(vector) => Some(vector.element),
            Type::Buffer | Type::View(_) => None,
        }) else {
            return self.unsupported("scf.select of buffers or views");
        };
        let mut operands: Vec<Vec<Lane>> = op.operands.iter().map(|&value| self.lanes(value)).collect::<Result<_>>()?;
        let count = operands[1].len();
        if operands[0].len() == 1 && count > 1 {
            let condition = self.source(&operands[0][0].clone())?;
            let lane = match condition {
                Source::Reg(reg) => Lane::Reg(reg),
                Source::Slot(_) | Source::Memory(_) => operands[0][0].clone(),
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
        let Some((store_at, store)) = ops.iter().enumerate().skip(at + 1).find(|(_, other)| {
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
            && self.pending.iter().all(|value| op.operands.contains(value));
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
        let mut dynamic = None;
        for (dim, &index) in ty.dims.iter().zip(indices) {
            let extent = dim.constant().unwrap_or(1).max(1) as usize;
            part /= extent;
            match self.lane(index)? {
                Lane::Uniform(Word::Constant(at)) if (at as usize) < extent => start += at as usize * part,
                // Out of range is out of contract; lane 0 is as good as any.
                Lane::Uniform(Word::Constant(_)) => {}
                lane if ty.dims.len() == 1 => dynamic = Some(lane),
                _ => return self.unsupported("a lane of a matrix chosen at run time"),
            }
        }
        let element = ty.element;
        let Some(index) = dynamic else {
            if insert {
                let value = self.lanes(op.operands[0])?;
                lanes[start..start + part].clone_from_slice(&value[..part]);
                self.define_lanes(op.results[0], lanes);
            } else {
                self.define_lanes(op.results[0], lanes[start..start + part].to_vec());
            }
            return Ok(());
        };
        let index = match self.source(&index)? {
            Source::Reg(reg) => Lane::Reg(reg),
            Source::Slot(_) | Source::Memory(_) => index,
        };
        let equals = |this: &mut Self, at: usize| {
            let at = Lane::Uniform(Word::Constant(at as u64));
            this.map(Op::CompareI(IntPredicate::Eq, ScalarType::Index), &[index.clone(), at], None)
        };
        if insert {
            let value = self.lane(op.operands[0])?;
            let value = self.settled(value, op.operands[0])?;
            for (at, lane) in lanes.iter_mut().enumerate() {
                let here = equals(self, at)?;
                *lane = self.map(Op::Select(element), &[here, value.clone(), lane.clone()], None)?;
            }
            self.define_lanes(op.results[0], lanes);
        } else {
            let mut found = lanes[0].clone();
            for (at, lane) in lanes.iter().enumerate().skip(1) {
                let here = equals(self, at)?;
                found = self.map(Op::Select(element), &[here, lane.clone(), found], None)?;
            }
            self.define_lanes(op.results[0], vec![found]);
        }
        Ok(())
    }

    fn reduce(&mut self, op: &IrOp, combine: Combine, group: Group) -> Result<()> {
        let ty = self.scalar_type(op.operands[0])?;
        let mut lanes = Vec::new();
        for lane in self.lanes(op.operands[0])? {
            let from = self.reg(&lane, ty)?;
            let to = self.take(ty)?;
            self.emit(Inst::Reduce { combine, ty, to, from, group })?;
            lanes.push(Lane::Reg(to));
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
                let size = crate::ops::SUBGROUP_SIZE;
                if self.kernel.items() <= size {
                    if id == IdKind::Subgroup { Lane::Uniform(ZERO) } else { flat }
                } else {
                    self.map(index(op), &[flat, constant(size)], None)?
                }
            }
        })
    }

    // ---- memory

    fn alloca(&mut self, op: &IrOp, space: Space, bytes: u64) -> Result<()> {
        let (kind, per) = match space {
            Space::Workgroup => (Buffer::Workgroup { bytes }, Space::Workgroup),
            Space::Private => (Buffer::Private { bytes }, Space::Private),
        };
        self.program.buffers.push(kind);
        let buffer = self.program.buffers.len() as u32 - 1;
        let bytes = Word::Constant(bytes);
        let origin = match per {
            // Only where segments are workgroups does a tile hold several of them.
            Space::Workgroup if self.program.shape == Shape::Groups && self.many => Self::line(ZERO, ZERO, bytes),
            Space::Workgroup => Lane::Uniform(ZERO),
            Space::Private => {
                let g = if self.many && self.has_divisor() {
                    let width = self.builtin(Builtin::Width);
                    self.mul(width, bytes)?
                } else {
                    ZERO
                };
                Self::line(ZERO, bytes, g)
            }
        };
        self.define(op.results[0], Value::Buffer { buffer, origin });
        Ok(())
    }

    fn view_type(&self, view: ValueId) -> Result<&'a ViewType> {
        match self.body.ty(view) {
            Type::View(ty) => Ok(ty),
            Type::Scalar(_) | Type::Vector(_) | Type::Buffer => {
                self.unsupported("an access to something that is no view")
            }
        }
    }

    /// Buffer, byte offset and element type of the element at `indices`.
    fn address(&mut self, view: ValueId, indices: &[ValueId]) -> Result<(u32, Lane, ScalarType)> {
        let ty = self.view_type(view)?;
        let Some(Value::View { buffer, offset }) = self.values[view.index()].clone() else {
            return self.unsupported("a view chosen at run time");
        };
        let mut address = offset;
        for (&index, &stride) in indices.iter().zip(&ty.strides) {
            let (index, stride) = (self.lane(index)?, self.dim(stride)?);
            address = self.advance(address, &index, &stride, ty.element)?;
        }
        Ok((buffer, address, ty.element))
    }

    /// `address + index · stride · size`.
    fn advance(&mut self, address: Lane, index: &Lane, stride: &Lane, ty: ScalarType) -> Result<Lane> {
        let (mul, add) = (Op::Binary(Binary::MulI, ScalarType::I64), Op::Binary(Binary::AddI, ScalarType::I64));
        let stride = self.apply(mul, &[stride.clone(), Lane::Uniform(Word::Constant(ty.bytes()))], None)?;
        let distance = self.apply(mul, &[index.clone(), stride], None)?;
        self.apply(add, &[address, distance], None)
    }

    fn access(&mut self, buffer: u32, offset: &Lane, ty: ScalarType, op: &'static str) -> Result<Access> {
        let offsets = match Self::as_line(offset) {
            Some(line) => Offsets::Affine(self.affine(line)),
            None => Offsets::Gather(self.reg(offset, ScalarType::I64)?),
        };
        debug_assert!(ty.bits() >= 8);
        Ok(Access { buffer, offsets, site: self.site(op) })
    }

    /// The byte offsets of a vector's lanes, from its first on.
    fn lane_addresses(
        &mut self,
        view: ValueId,
        indices: &[ValueId],
        dims: &[Dim],
    ) -> Result<(u32, Vec<Lane>, ScalarType)> {
        let (buffer, first, ty) = self.address(view, indices)?;
        let view = self.view_type(view)?;
        let strides = &view.strides[view.strides.len().saturating_sub(dims.len())..];
        let mut all = vec![first];
        for (&dim, &stride) in dims.iter().zip(strides) {
            let (extent, stride) = (dim.constant().unwrap_or(0), self.dim(stride)?);
            let mut next = Vec::with_capacity(all.len() * extent as usize);
            for lane in all {
                for at in 0..extent {
                    next.push(self.advance(lane.clone(), &Lane::Uniform(Word::Constant(at)), &stride, view.element)?);
                }
            }
            all = next;
        }
        Ok((buffer, all, ty))
    }

    fn vector_dims(&self, value: ValueId) -> Vec<Dim> {
        match self.body.ty(value) {
            Type::Vector(ty) => ty.dims.clone(),
            Type::Scalar(_) | Type::Buffer | Type::View(_) => Vec::new(),
        }
    }

    /// Reads one element: into a slot if all items share it, else as `to`, or a register of its own.
    fn read(&mut self, buffer: u32, offset: &Lane, ty: ScalarType, to: Option<Reg>) -> Result<Lane> {
        if let (Lane::Uniform(offset), None) = (offset, to) {
            let site = self.site("view.load");
            let (to, offset) = (self.slot(), self.slot_of(*offset));
            self.emit(Inst::LoadScalar { ty, to, buffer, offset, site })?;
            return Ok(Lane::Uniform(Word::Slot { slot: to, launch: false }));
        }
        let access = self.access(buffer, offset, ty, "view.load")?;
        let to = match to {
            Some(to) => to,
            None => self.take(ty)?,
        };
        self.emit(Inst::Map { op: Op::Move(ty), to: Target::Reg(to), from: [Source::Memory(access); 3] })?;
        Ok(Lane::Reg(to))
    }

    fn load(&mut self, block: BlockId, at: usize, op: &IrOp) -> Result<()> {
        let (view, indices, result) = (op.operands[0], &op.operands[1..], op.results[0]);
        if let Type::Vector(_) = self.body.ty(result) {
            let (buffer, offsets, ty) = self.lane_addresses(view, indices, &self.vector_dims(result))?;
            let mut lanes = Vec::with_capacity(offsets.len());
            for offset in &offsets {
                lanes.push(self.read(buffer, offset, ty, None)?);
            }
            self.define_lanes(result, lanes);
            return Ok(());
        }
        let (buffer, offset, ty) = self.address(view, indices)?;
        if !matches!(offset, Lane::Uniform(_)) && self.read_by_user(block, at, result) {
            let access = self.access(buffer, &offset, ty, "view.load")?;
            self.define_lanes(result, vec![Lane::Memory(access)]);
            self.pending.insert(result);
            return Ok(());
        }
        let lane = self.read(buffer, &offset, ty, None)?;
        self.define_lanes(result, vec![lane]);
        Ok(())
    }

    /// Whether one element-wise op of the same block uses `value`, and nothing before it may write memory.
    fn read_by_user(&self, block: BlockId, at: usize, value: ValueId) -> bool {
        if self.live.uses[value.index()] != 1 {
            return false;
        }
        for op in &self.body.block(block).ops[at + 1..] {
            let simple = matches!(
                op.kind,
                OpKind::Unary(_)
                    | OpKind::Binary(_)
                    | OpKind::Ternary(_)
                    | OpKind::CompareI(_)
                    | OpKind::CompareF(_)
                    | OpKind::Classify(_)
                    | OpKind::Convert(_)
                    | OpKind::Select
            );
            if op.operands.contains(&value) {
                return simple && op.results.iter().all(|&result| matches!(self.body.ty(result), Type::Scalar(_)));
            }
            if !simple && !matches!(op.kind, OpKind::Constant(_) | OpKind::Load | OpKind::Id(_)) {
                return false;
            }
        }
        false
    }

    fn load_mask(&mut self, op: &IrOp) -> Result<()> {
        let result = op.results[0];
        let count = op.operands.len();
        let (mask, pass) = (op.operands[count - 2], op.operands[count - 1]);
        let (buffer, offsets, ty) =
            self.lane_addresses(op.operands[0], &op.operands[1..count - 2], &self.vector_dims(result))?;
        let (masks, passes) = (self.lanes(mask)?, self.lanes(pass)?);
        let mut lanes = Vec::with_capacity(offsets.len());
        for ((offset, condition), pass) in offsets.iter().zip(&masks).zip(&passes) {
            let to = self.take(ty)?;
            self.frame.hold(to);
            self.move_to(ty, to, pass)?;
            self.guard(condition, |this| this.read(buffer, offset, ty, Some(to)).map(|_| ()))?;
            lanes.push(Lane::Reg(to));
        }
        self.define_lanes(result, lanes.clone());
        for lane in &lanes {
            Self::each_lane_reg(lane, &mut |reg| self.frame.release(reg));
        }
        Ok(())
    }

    fn write(&mut self, buffer: u32, offset: &Lane, ty: ScalarType, value: &Lane) -> Result<()> {
        let access = self.access(buffer, offset, ty, "view.store")?;
        let from = self.source(value)?;
        self.emit(Inst::Map { op: Op::Move(ty), to: Target::Memory(access), from: [from; 3] })
    }

    fn store(&mut self, op: &IrOp) -> Result<()> {
        let value = op.operands[0];
        let lanes = self.lanes(value)?;
        let (buffer, offsets, ty) = self.lane_addresses(op.operands[1], &op.operands[2..], &self.vector_dims(value))?;
        for (offset, lane) in offsets.iter().zip(&lanes) {
            self.write(buffer, offset, ty, lane)?;
        }
        Ok(())
    }

    fn store_mask(&mut self, op: &IrOp) -> Result<()> {
        let value = op.operands[0];
        let mask = op.operands[op.operands.len() - 1];
        let (lanes, masks) = (self.lanes(value)?, self.lanes(mask)?);
        let indices = &op.operands[2..op.operands.len() - 1];
        let (buffer, offsets, ty) = self.lane_addresses(op.operands[1], indices, &self.vector_dims(value))?;
        for ((offset, lane), condition) in offsets.iter().zip(&lanes).zip(&masks) {
            self.guard(condition, |this| this.write(buffer, offset, ty, lane))?;
        }
        Ok(())
    }

    // ---- control flow

    fn condition(&mut self, lane: &Lane) -> Result<Condition> {
        Ok(match lane {
            Lane::Uniform(word) => Condition::Slot(self.slot_of(*word)),
            Lane::Compare { predicate, value, limit } => {
                Condition::Compare { predicate: *predicate, value: self.affine(*value), limit: self.slot_of(*limit) }
            }
            Lane::Affine(_) | Lane::Reg(_) | Lane::Memory(_) | Lane::Both(_) => {
                Condition::Reg(self.reg(lane, ScalarType::I1)?)
            }
        })
    }

    /// Runs what `fill` emits for the items that satisfy `lane`. Both sides of an `and` narrow one after the other.
    fn guard(&mut self, lane: &Lane, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match lane {
            Lane::Uniform(Word::Constant(bits)) => {
                if *bits & 1 == 1 {
                    fill(self)
                } else {
                    Ok(())
                }
            }
            Lane::Both(both) => {
                let inner = &both[1];
                // Boxed, or the compiler of this compiler would build this function for ever deeper closures.
                let mut fill = Some(fill);
                let fill: &mut dyn FnMut(&mut Self) -> Result<()> =
                    &mut |this| fill.take().map_or(Ok(()), |fill| fill(this));
                self.guard_dyn(&both[0], &mut |this| this.guard_dyn(inner, fill))
            }
            _ => {
                let condition = self.condition(lane)?;
                let then = self.nested(fill)?;
                self.emit(Inst::If { condition, then, otherwise: None })
            }
        }
    }

    fn guard_dyn(&mut self, lane: &Lane, fill: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.guard(lane, fill)
    }

    /// Where an op with blocks puts each lane of each of its results.
    fn results(&mut self, op: &IrOp) -> Result<Vec<Vec<Place>>> {
        let mut all = Vec::with_capacity(op.results.len());
        for &result in &op.results {
            all.push(self.places(result)?);
        }
        Ok(all)
    }

    fn places(&mut self, value: ValueId) -> Result<Vec<Place>> {
        let ty = match self.body.ty(value) {
            Type::Scalar(ty) => *ty,
            Type::Vector(vector) => vector.element,
            Type::Buffer | Type::View(_) => {
                return self.unsupported("a buffer or view carried through control flow");
            }
        };
        let mut places = Vec::new();
        for _ in 0..self.count_lanes(value)? {
            let home = if self.varies[value.index()] {
                let reg = self.take(ty)?;
                self.frame.hold(reg);
                Home::Reg(reg)
            } else {
                Home::Slot(self.slot())
            };
            places.push(Place { ty, home });
        }
        Ok(places)
    }

    fn lanes_of(places: &[Place]) -> Vec<Lane> {
        places
            .iter()
            .map(|place| match place.home {
                Home::Reg(reg) => Lane::Reg(reg),
                Home::Slot(slot) => Lane::Uniform(Word::Slot { slot, launch: false }),
            })
            .collect()
    }

    fn release(&mut self, places: &[Place]) {
        for place in places {
            if let Home::Reg(reg) = place.home {
                self.frame.release(reg);
            }
        }
    }

    fn define_results(&mut self, op: &IrOp, results: Vec<Vec<Place>>) {
        for (&result, places) in op.results.iter().zip(&results) {
            self.define_lanes(result, Self::lanes_of(places));
            self.release(places);
        }
    }

    fn place(&mut self, place: Place, lane: &Lane) -> Result<()> {
        match (place.home, lane) {
            (Home::Reg(reg), lane) => self.move_to(place.ty, reg, lane),
            (Home::Slot(to), Lane::Uniform(word)) => {
                let from = self.slot_of(*word);
                if from == to {
                    return Ok(());
                }
                self.emit(Inst::Scalar(ScalarInst { op: Op::Move(place.ty), to, from: [from; 3] }))
            }
            (Home::Slot(_), _) => self.unsupported("a uniform value that was not computed as one"),
        }
    }

    /// Moves lanes to places at once: what a place still holds may be read by a later move.
    fn place_all(&mut self, places: &[Place], lanes: &[Lane]) -> Result<()> {
        let written = |lane: &Lane, upto: usize| {
            places[..upto].iter().any(|place| match (place.home, lane) {
                (Home::Reg(to), lane) => {
                    let mut reads = false;
                    Self::each_lane_reg(lane, &mut |reg| reads |= reg == to);
                    reads
                }
                (Home::Slot(to), Lane::Uniform(Word::Slot { slot, .. })) => *slot == to,
                (Home::Slot(to), Lane::Affine(line)) | (Home::Slot(to), Lane::Compare { value: line, .. }) => {
                    [line.base, line.l, line.g]
                        .iter()
                        .any(|word| matches!(word, Word::Slot { slot, .. } if *slot == to))
                }
                (Home::Slot(_), _) => false,
            })
        };
        let mut safe = Vec::with_capacity(lanes.len());
        for (at, (place, lane)) in places.iter().zip(lanes).enumerate() {
            if !written(lane, at) {
                safe.push(lane.clone());
                continue;
            }
            safe.push(match (place.home, lane) {
                (Home::Slot(_), Lane::Uniform(word)) => {
                    let (from, to) = (self.slot_of(*word), self.slot());
                    self.emit(Inst::Scalar(ScalarInst { op: Op::Move(place.ty), to, from: [from; 3] }))?;
                    Lane::Uniform(Word::Slot { slot: to, launch: false })
                }
                _ => {
                    let to = self.take(place.ty)?;
                    self.move_to(place.ty, to, lane)?;
                    Lane::Reg(to)
                }
            });
        }
        for (place, lane) in places.iter().zip(&safe) {
            self.place(*place, lane)?;
        }
        Ok(())
    }

    /// The operands of `block`'s terminator from `skip` on, to `places`.
    fn leave(&mut self, block: BlockId, skip: usize, places: &[Vec<Place>]) -> Result<()> {
        let Some(terminator) = self.body.block(block).ops.last() else {
            return Ok(());
        };
        let mut lanes = Vec::new();
        for &value in &terminator.operands[skip.min(terminator.operands.len())..] {
            lanes.extend(self.lanes(value)?);
        }
        let places: Vec<Place> = places.iter().flatten().copied().collect();
        self.place_all(&places, &lanes)
    }

    /// A block whose values still live when `then` runs at its end.
    fn body_block(&mut self, block: BlockId, then: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let body = self.body;
        let ops = &body.block(block).ops;
        for (at, op) in ops.iter().enumerate() {
            self.span = op.span;
            if at + 1 == ops.len() {
                break;
            }
            if !self.stored.contains(&(block.0, at)) {
                self.op(block, at, op)?;
            }
            for index in 0..self.live.dying(block, at).len() {
                let value = self.live.dying(block, at)[index];
                self.forget(value);
            }
            self.frame.settle();
        }
        then(self)?;
        if let Some(last) = ops.len().checked_sub(1) {
            for index in 0..self.live.dying(block, last).len() {
                let value = self.live.dying(block, last)[index];
                self.forget(value);
            }
        }
        self.frame.settle();
        Ok(())
    }

    fn branch(&mut self, lane: &Lane, then: BlockId, otherwise: Option<BlockId>, results: &[Vec<Place>]) -> Result<()> {
        let arm = |this: &mut Self, block: BlockId| this.body_block(block, |this| this.leave(block, 0, results));
        let empty = |this: &Self, block: BlockId| this.body.block(block).ops.len() <= 1 && results.is_empty();
        let otherwise = otherwise.filter(|&block| !empty(self, block));
        match (lane, otherwise) {
            (Lane::Uniform(Word::Constant(bits)), _) => {
                if bits & 1 == 1 {
                    return arm(self, then);
                }
                otherwise.map_or(Ok(()), |block| arm(self, block))
            }
            (_, None) => self.guard(lane, |this| arm(this, then)),
            (_, Some(block)) => {
                let condition = self.condition(lane)?;
                let held = if let Condition::Reg(reg) = condition { Some(reg) } else { None };
                if let Some(reg) = held {
                    self.frame.hold(reg);
                }
                let then = self.nested(|this| arm(this, then))?;
                let otherwise = self.nested(|this| arm(this, block))?;
                if let Some(reg) = held {
                    self.frame.release(reg);
                }
                self.emit(Inst::If { condition, then, otherwise: Some(otherwise) })
            }
        }
    }

    fn switch(
        &mut self,
        selector: &Lane,
        ty: ScalarType,
        keys: &[i64],
        blocks: &[BlockId],
        results: &[Vec<Place>],
    ) -> Result<()> {
        // An `if` per key, each after the ones before it: the nest is as deep as there are keys.
        const MAX_KEYS: usize = 256;
        if keys.len() > MAX_KEYS || blocks.len() != keys.len() + 1 {
            return self.unsupported("scf.switch with more than 256 keys");
        }
        let arm = |this: &mut Self, block: BlockId| this.body_block(block, |this| this.leave(block, 0, results));
        let Some((&key, rest)) = keys.split_first() else {
            return arm(self, blocks[0]);
        };
        let key = Lane::Uniform(Word::Constant(
            Op::Convert(Convert::TruncI, ScalarType::I64, ty).evaluate([key as u64, 0, 0]),
        ));
        let equal = self.apply(Op::CompareI(IntPredicate::Eq, ty), &[selector.clone(), key], None)?;
        let condition = self.condition(&equal)?;
        let held = if let Condition::Reg(reg) = condition { Some(reg) } else { None };
        if let Some(reg) = held {
            self.frame.hold(reg);
        }
        let then = self.nested(|this| arm(this, blocks[0]))?;
        let otherwise = self.nested(|this| this.switch(selector, ty, rest, &blocks[1..], results))?;
        if let Some(reg) = held {
            self.frame.release(reg);
        }
        self.emit(Inst::If { condition, then, otherwise: Some(otherwise) })
    }

    fn for_loop(&mut self, op: &IrOp) -> Result<()> {
        let block = op.blocks[0];
        let arguments = &self.body.block(block).arguments;
        let (counter, carried) = (arguments[0], &arguments[1..]);
        let ty = self.scalar_type(counter)?;
        let [low, high, step] = [0, 1, 2].map(|at| self.lane(op.operands[at]));
        let (low, high, step) = (low?, high?, step?);
        let mut places = Vec::with_capacity(carried.len());
        for (&argument, &initial) in carried.iter().zip(&op.operands[3..]) {
            let lanes = self.lanes(initial)?;
            let home = self.places(argument)?;
            for (place, lane) in home.iter().zip(&lanes) {
                self.place(*place, lane)?;
            }
            self.define_lanes(argument, Self::lanes_of(&home));
            places.push(home);
        }
        let site = self.site("scf.for");
        let below = if ty == ScalarType::Offset { IntPredicate::Ult } else { IntPredicate::Slt };
        match (&low, &high, &step) {
            (Lane::Uniform(low), Lane::Uniform(high), Lane::Uniform(step)) => {
                let (low, high, step) = (self.slot_of(*low), self.slot_of(*high), self.slot_of(*step));
                let to = self.slot();
                self.define_lanes(counter, vec![Lane::Uniform(Word::Slot { slot: to, launch: false })]);
                self.want(block, carried, &places);
                let body = self.nested(|this| this.body_block(block, |this| this.leave(block, 0, &places)))?;
                self.emit(Inst::For { to, low, high, step, unsigned: ty == ScalarType::Offset, body, site })?;
            }
            (Lane::Uniform(_) | Lane::Affine(_), _, Lane::Uniform(step)) => {
                // The counter of every item moves alike: one slot moves for all.
                let Some(line) = Self::as_line(&low) else {
                    return Ok(());
                };
                let to = self.slot();
                let base = self.slot_of(line.base);
                self.emit(Inst::Scalar(ScalarInst { op: Op::Move(ScalarType::I64), to, from: [base; 3] }))?;
                let line = Line { base: Word::Slot { slot: to, launch: false }, ..line };
                let now = Self::line(line.base, line.l, line.g);
                self.define_lanes(counter, vec![now.clone()]);
                let step = *step;
                self.turns(op, &now, &high, below, ty, block, &places, site, |this| {
                    let next = this.add(line.base, step)?;
                    this.place(Place { ty: ScalarType::I64, home: Home::Slot(to) }, &Lane::Uniform(next))
                })?;
            }
            _ => {
                let to = self.take(ty)?;
                self.frame.hold(to);
                self.move_to(ty, to, &low)?;
                self.define_lanes(counter, vec![Lane::Reg(to)]);
                let now = Lane::Reg(to);
                self.turns(op, &now.clone(), &high, below, ty, block, &places, site, |this| {
                    let next = this.map(Op::Binary(Binary::AddI, ty), &[now.clone(), step.clone()], None)?;
                    this.move_to(ty, to, &next)
                })?;
                self.frame.release(to);
            }
        }
        for (&argument, home) in carried.iter().zip(&places) {
            self.forget(argument);
            let _ = home;
        }
        self.define_results(op, places);
        Ok(())
    }

    /// A loop whose items leave one by one: while `now` is below `high`.
    #[allow(clippy::too_many_arguments, reason = "the parts of one loop, used once each")]
    fn turns(
        &mut self,
        op: &IrOp,
        now: &Lane,
        high: &Lane,
        below: IntPredicate,
        ty: ScalarType,
        block: BlockId,
        places: &[Vec<Place>],
        site: SiteId,
        next: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        debug_assert_eq!(op.kind, OpKind::For);
        let mut condition = None;
        let head = self.nested(|this| {
            let goes_on = this.apply(Op::CompareI(below, ty), &[now.clone(), high.clone()], None)?;
            condition = Some(this.condition(&goes_on)?);
            Ok(())
        })?;
        let Some(condition) = condition else {
            return Ok(());
        };
        let held = if let Condition::Reg(reg) = condition { Some(reg) } else { None };
        if let Some(reg) = held {
            self.frame.hold(reg);
        }
        let body = self.nested(|this| {
            this.body_block(block, |this| {
                this.leave(block, 0, places)?;
                next(this)
            })
        })?;
        if let Some(reg) = held {
            self.frame.release(reg);
        }
        self.emit(Inst::Loop { head, condition, body, site })
    }

    /// Lets the op that computes what a loop carries write it in place, where the old value is not read later.
    fn want(&mut self, block: BlockId, carried: &[ValueId], places: &[Vec<Place>]) {
        let ops = &self.body.block(block).ops;
        let Some(terminator) = ops.last() else { return };
        for ((&argument, &yielded), home) in carried.iter().zip(&terminator.operands).zip(places) {
            let [Place { home: Home::Reg(reg), .. }] = home[..] else {
                continue;
            };
            let Some(at) = ops.iter().position(|op| op.results.contains(&yielded)) else {
                continue;
            };
            let element_wise = matches!(
                ops[at].kind,
                OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Ternary(_) | OpKind::Select | OpKind::Convert(_)
            );
            let unread_later = (at + 1..ops.len()).all(|later| !self.reads(block, later, argument));
            // These give a register a second name.
            let shared = ops.iter().any(|op| {
                op.operands.contains(&argument)
                    && matches!(
                        op.kind,
                        OpKind::Splat | OpKind::FromElements | OpKind::Extract | OpKind::Insert | OpKind::Lanes(_)
                    )
            });
            let once = terminator.operands.iter().filter(|&&value| value == yielded).count() == 1;
            let integer =
                self.body.ty(yielded).scalar().is_none_or(|ty| ty.bits() == 64 && !ty.is_float() || ty.bits() == 1);
            if element_wise && unread_later && !shared && once && !integer {
                self.wanted.insert(yielded, reg);
            }
        }
    }

    /// Whether op `at` of `block`, or anything in its blocks, reads `value`.
    fn reads(&self, block: BlockId, at: usize, value: ValueId) -> bool {
        let op = &self.body.block(block).ops[at];
        op.operands.contains(&value)
            || op
                .blocks
                .iter()
                .any(|&nested| (0..self.body.block(nested).ops.len()).any(|at| self.reads(nested, at, value)))
    }

    fn while_loop(&mut self, op: &IrOp) -> Result<()> {
        let (head, tail) = (op.blocks[0], op.blocks[1]);
        let site = self.site("scf.while");
        let state_values = &self.body.block(head).arguments;
        let forwarded_values = &self.body.block(tail).arguments;
        let mut state = Vec::with_capacity(state_values.len());
        for (&argument, &initial) in state_values.iter().zip(&op.operands) {
            let lanes = self.lanes(initial)?;
            let home = self.places(argument)?;
            for (place, lane) in home.iter().zip(&lanes) {
                self.place(*place, lane)?;
            }
            self.define_lanes(argument, Self::lanes_of(&home));
            state.push(home);
        }
        let results = self.results(op)?;
        let mut condition = None;
        let head_block = self.nested(|this| {
            this.body_block(head, |this| {
                let Some(terminator) = this.body.block(head).ops.last() else {
                    return Ok(());
                };
                let goes_on = this.lane(terminator.operands[0])?;
                // The test is made before what it reads can be overwritten; those who stay forward again next time.
                let test = this.condition(&goes_on)?;
                if let Condition::Reg(reg) = test {
                    this.frame.hold(reg);
                }
                condition = Some(test);
                this.leave(head, 1, &results)
            })
        })?;
        let Some(condition) = condition else {
            return self.unsupported("scf.while without a condition");
        };
        for (&argument, home) in forwarded_values.iter().zip(&results) {
            self.define_lanes(argument, Self::lanes_of(home));
        }
        let body = self.nested(|this| this.body_block(tail, |this| this.leave(tail, 0, &state)))?;
        if let Condition::Reg(reg) = condition {
            self.frame.release(reg);
        }
        self.emit(Inst::Loop { head: head_block, condition, body, site })?;
        for &value in state_values.iter().chain(forwarded_values) {
            self.forget(value);
        }
        for home in &state {
            self.release(home);
        }
        self.define_results(op, results);
        Ok(())
    }
}

/// Where a lane is kept while control flow decides what it is.
#[derive(Clone, Copy, Debug)]
struct Place {
    ty: ScalarType,
    home: Home,
}

#[derive(Clone, Copy, Debug)]
enum Home {
    Reg(Reg),
    Slot(Slot),
}

fn constant(value: u32) -> Lane {
    Lane::Uniform(Word::Constant(u64::from(value)))
}

/// The predicate with its sides exchanged.
fn swapped(predicate: IntPredicate) -> IntPredicate {
    match predicate {
        IntPredicate::Eq => IntPredicate::Eq,
        IntPredicate::Ne => IntPredicate::Ne,
        IntPredicate::Slt => IntPredicate::Sgt,
        IntPredicate::Sle => IntPredicate::Sge,
        IntPredicate::Sgt => IntPredicate::Slt,
        IntPredicate::Sge => IntPredicate::Sle,
        IntPredicate::Ult => IntPredicate::Ugt,
        IntPredicate::Ule => IntPredicate::Uge,
        IntPredicate::Ugt => IntPredicate::Ult,
        IntPredicate::Uge => IntPredicate::Ule,
    }
}

/// What decides how a kernel's items are cut into tiles.
struct Traits {
    /// Workgroups or positions in them are named.
    groups: bool,
    /// Items of a workgroup meet or share memory.
    meets: bool,
    /// Workgroups along y are told apart.
    rows: bool,
    /// The dispatch id along x.
    ids: BTreeSet<ValueId>,
    /// Values that the dispatch id is divided by.
    divisors: Vec<ValueId>,
}

impl Traits {
    fn of(body: &Body) -> Self {
        let mut traits = Self { groups: false, meets: false, rows: false, ids: BTreeSet::new(), divisors: Vec::new() };
        for op in body.blocks.iter().flat_map(|block| &block.ops) {
            match op.kind {
                OpKind::Id(IdKind::Dispatch(Axis::X)) => traits.ids.extend(op.result()),
                OpKind::Id(IdKind::Dispatch(Axis::Y) | IdKind::WorkGroup(Axis::Y)) => traits.rows = true,
                OpKind::Id(
                    IdKind::WorkGroup(Axis::X) | IdKind::WorkItem(Axis::X) | IdKind::Subgroup | IdKind::SubgroupLane,
                ) => {
                    traits.groups = true;
                }
                OpKind::Barrier(_)
                | OpKind::SubgroupShuffle(_)
                | OpKind::SubgroupReduce { .. }
                | OpKind::WorkgroupReduce(_)
                | OpKind::Alloca { space: Space::Workgroup, .. } => traits.meets = true,
                _ => {}
            }
        }
        for op in body.blocks.iter().flat_map(|block| &block.ops) {
            if let (OpKind::Binary(Binary::DivUI | Binary::RemUI), &[id, by]) = (&op.kind, &op.operands[..])
                && traits.ids.contains(&id)
            {
                traits.divisors.push(by);
            }
        }
        traits
    }

    /// The `if` that all effects of the kernel are in, when it only asks whether the dispatch id is below a limit: where
    /// it stands in the entry block, the limit, and whether the comparison is signed.
    fn clip(&self, body: &Body) -> Option<(usize, ValueId, bool)> {
        let ops = &body.block(Body::ENTRY).ops;
        let (at, guard) = ops.iter().enumerate().find(|(_, op)| !op.blocks.is_empty())?;
        let harmless = |kind: &OpKind| {
            !matches!(kind, OpKind::Store | OpKind::StoreMask | OpKind::Load | OpKind::LoadMask | OpKind::Barrier(_))
        };
        let alone = ops.iter().enumerate().all(|(other, op)| other == at || op.blocks.is_empty() && harmless(&op.kind));
        let nothing_else = guard.blocks.get(1).is_none_or(|&block| body.block(block).ops.len() <= 1);
        if guard.kind != OpKind::If || !guard.results.is_empty() || !alone || !nothing_else {
            return None;
        }
        let test = ops[..at].iter().find(|op| op.result() == guard.operands.first().copied())?;
        let (signed, id, limit) = match (&test.kind, &test.operands[..]) {
            (OpKind::CompareI(IntPredicate::Slt), &[id, limit]) => (true, id, limit),
            (OpKind::CompareI(IntPredicate::Ult), &[id, limit]) => (false, id, limit),
            _ => return None,
        };
        self.ids.contains(&id).then_some((at, limit, signed))
    }

    /// The divisor to cut tiles by: the least constant, else the first of all.
    fn divisor(&self, body: &Body) -> Option<ValueId> {
        let constants = self.divisors.iter().filter(|&&value| body.constant(value).is_some_and(|bits| bits > 0));
        constants.min_by_key(|&&value| body.constant(value)).or(self.divisors.first()).copied()
    }
}
