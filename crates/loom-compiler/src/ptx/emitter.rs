//! One pass over a kernel's body that writes its instructions.
//!
//! ```text
//! value ──> Held   lanes, each a register or known bits │ a place in memory
//! ```
//!
//! - A value is defined before it is used, so one pass is enough; what loops carry has registers of its own that are written
//!   at the end of a turn, all at once.
//! - An `index` or `offset` whose facts fit 32 signed bits is held in a 32-bit register and widened where 64 bits are read.
//! - Here: values, ids, parameters, and which part of this module an op belongs to.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::rc::Rc;

use super::collective::Mask;
use super::early;
use super::fault::fault_function;
use super::group::{Flight, Groups};
use super::memory::{Place, Spaces};
use super::text::{Class, Operand, Reg, Text, class_of, comment_of};
use super::{BUFFER_ALIGN, Image, Options, Passed, STATIC_SHARED_BYTES, Site, Slot, Sm, Start, Unsupported, Version};
use crate::eval;
use crate::facts::Facts;
use crate::ir::{Block, BlockId, Body, Kernel, Op, ParameterKind, Span, ValueId};
use crate::ops::{Axis, Binary, Convert, Element, IdKind, IntPredicate, OpKind, Ternary};
use crate::tile::varying_in_subgroup;
use crate::types::{ScalarType, Type};

pub(super) type Result<T = ()> = std::result::Result<T, Unsupported>;

/// The most instructions of a kernel: what a hostile text can make the emitter write.
const MAX_INSTRUCTIONS: usize = 1 << 19;

/// What is known of a value.
#[derive(Clone, Debug)]
pub(super) enum Held {
    /// Its definition was not reached.
    Unset,
    /// A scalar or vector. A scalar `index` or `offset` may be narrow.
    Lanes(Rc<[Operand]>),
    /// A buffer or view.
    Place(Place),
}

/// What a kernel turned out to need.
struct Needs {
    target: Sm,
    version: Version,
}

pub(super) struct Emitter<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) body: &'a Body,
    source: &'a str,
    pub(super) options: &'a Options,
    pub(super) text: Text,
    values: Vec<Held>,
    /// By value: whether a scalar address is held in 32 bits.
    narrow: Vec<bool>,
    /// By value: whether it may differ between the lanes of a subgroup.
    varies: Vec<bool>,
    pub(super) spaces: Spaces,
    /// Whether buffers' lengths are parameters.
    pub(super) lengths: bool,
    /// Whether fragments lie as `mma.sync` has them, and not as the IR does.
    pub(super) tensor: bool,
    /// Whether a lane then has a stretch of an operand's depth: nothing asks in which lane an element lies.
    pub(super) stretched: bool,
    /// Products of four subgroups at once.
    pub(super) groups: Groups,
    pub(super) flight: Flight,
    /// By value: whether a product by instructions takes it for an operand.
    multiplied: Vec<bool>,
    /// The words that two halves, the lower one first, are the parts of: nothing writes either again.
    pub(super) words: HashMap<(Reg, Reg), Reg>,
    /// Who takes part in exchanges.
    pub(super) mask: Mask,
    /// Widened and narrowed registers, by block: what was computed in a block is gone behind it.
    memo: Vec<HashMap<(Reg, Class), Operand>>,
    needs: Needs,
    pub(super) span: Span,
    line: u32,
    pub(super) sites: Vec<Site>,
    pub(super) memory: super::memory::Declared,
    slots: Vec<Slot>,
    /// Before which op of the entry it waits for the kernels that it comes after.
    waits_at: Option<usize>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(kernel: &'a Kernel, source: &'a str, options: &'a Options) -> Result<Self> {
        let body = &kernel.body;
        let mut emitter = Self {
            kernel,
            body,
            source,
            options,
            text: Text::default(),
            values: vec![Held::Unset; body.values.len()],
            narrow: narrow(kernel),
            varies: varying_in_subgroup(body),
            spaces: Spaces::of(body, if let Start::Early { constants } = options.start { constants } else { 0 }),
            waits_at: None,
            lengths: options.checked || body.ops().any(|op| op.kind == OpKind::BufferLength),
            tensor: false,
            stretched: false,
            groups: Groups::default(),
            flight: Flight::default(),
            multiplied: vec![false; body.values.len()],
            words: HashMap::new(),
            mask: Mask::FULL,
            memo: vec![HashMap::new()],
            needs: Needs { target: Sm::LEAST, version: (6, 3) },
            span: Span::default(),
            line: 0,
            sites: Vec::new(),
            memory: super::memory::Declared::default(),
            slots: Vec::new(),
        };
        let has = options.target.architecture >= 80 && options.version >= (7, 0);
        emitter.tensor = has && super::tensor::may_lay_out(kernel, &emitter.varies);
        for op in body.ops().filter(|op| emitter.tensor && matches!(op.kind, OpKind::Mma(_))) {
            op.operands[..2].iter().for_each(|operand| emitter.multiplied[operand.index()] = true);
        }
        emitter.stretched = super::tensor::stretches(body, &emitter.spaces);
        if emitter.tensor && !emitter.stretched {
            emitter.groups = Groups::of(kernel, &emitter.spaces, options);
        }
        if kernel.subgroup_size != 32 {
            let size = kernel.subgroup_size;
            return emitter.refuse(format!("a subgroup of {size} work-items (a warp has 32)"));
        }
        if !emitter.may(75, (6, 3)) {
            let (major, minor) = options.version;
            return emitter.refuse(format!("PTX {major}.{minor} (6.3 is the oldest that is emitted)"));
        }
        if options.start != Start::Behind && emitter.may(90, (7, 8)) {
            // An access that is refused lets its item leave.
            let first = if options.checked { 0 } else { early::first_to_wait(body, &emitter.spaces) };
            emitter.waits_at = Some(first);
        }
        Ok(emitter)
    }

    pub(super) fn run(mut self) -> Result<Image> {
        let entry = entry_name(&self.kernel.name);
        self.parameters(&entry);
        self.start_mask();
        self.block(Body::ENTRY)?;
        self.text.raw("ret");
        let mut module = String::new();
        let (kernel, needs) = (self.kernel, &self.needs);
        let (major, minor) = needs.version;
        let _ = writeln!(module, "// {}", comment_of(&kernel.name));
        let _ = write!(module, ".version {major}.{minor}\n.target {}\n.address_size 64\n\n", needs.target);
        self.memory.write_data(&mut module);
        let shared = self.memory.shared_bytes();
        let dynamic = shared > STATIC_SHARED_BYTES;
        if dynamic {
            let _ = writeln!(module, ".extern .shared .align {} .b8 shared[];\n", self.memory.shared_align());
        }
        if !self.sites.is_empty() {
            module.push_str(&fault_function());
        }
        let [x, y, z] = kernel.workgroup_size;
        let _ = writeln!(module, ".visible .entry {entry}(");
        for (at, slot) in self.slots.iter().enumerate() {
            let comma = if at + 1 < self.slots.len() { "," } else { "" };
            let name = self.name_of(slot.passed);
            let _ = writeln!(module, "    .param .b{} {entry}_{at}{comma} // {name}", slot.bytes * 8);
        }
        let _ = writeln!(module, ")\n.reqntid {x}, {y}, {z}\n{{");
        if shared > 0 && !dynamic {
            let _ = writeln!(module, "    .shared .align {} .b8 shared[{shared}];", self.memory.shared_align());
        }
        self.memory.write_local(&mut module);
        module.push_str(&self.text.finish());
        module.push_str("}\n");
        Ok(Image {
            name: kernel.name.clone(),
            entry,
            source: kernel.source,
            text: module,
            target: self.needs.target,
            version: self.needs.version,
            parameters: kernel.parameters.clone(),
            slots: self.slots,
            launch: kernel.launch.clone(),
            static_shared_bytes: if dynamic { 0 } else { shared },
            dynamic_shared_bytes: if dynamic { shared } else { 0 },
            local_bytes: self.memory.local_bytes(),
            // A multiprocessor has 65536 registers, and an item at most 255.
            registers_max: (65536 / kernel.items().next_multiple_of(32)).min(255) / 8 * 8,
            checked: self.options.checked,
            waits: self.waits_at.is_some(),
            sites: self.sites,
        })
    }

    fn name_of(&self, passed: Passed) -> String {
        let name = |argument: usize| comment_of(&self.kernel.parameters[argument].name);
        match passed {
            Passed::Buffer { argument } => format!("{}: buffer", name(argument)),
            Passed::Scalar { argument, ty } => format!("{}: {ty}", name(argument)),
            Passed::Length { argument } => format!("{}: its length in bytes", name(argument)),
            Passed::Faults => "the fault record".to_owned(),
        }
    }

    // ---- what the target has

    /// Whether the target and the version of the language have something; what uses it needs them.
    pub(super) fn may(&mut self, architecture: u32, version: Version) -> bool {
        // The version that knows the target.
        let knows = match architecture {
            ..=75 => (6, 3),
            76..=80 => (7, 0),
            81..=90 => (7, 8),
            _ => (8, 7),
        };
        let version = version.max(knows);
        let has = self.options.target.architecture >= architecture && self.options.version >= version;
        if has {
            self.needs.target = self.needs.target.max(Sm::new(architecture));
            self.needs.version = self.needs.version.max(version);
        }
        has
    }

    /// Whether the target is `target`, whose features no other has; what uses one needs it.
    pub(super) fn may_specific(&mut self, target: Sm, version: Version) -> bool {
        let has = self.options.target == target && self.may(target.architecture, version);
        if has {
            self.needs.target = self.needs.target.max(target);
        }
        has
    }

    pub(super) fn refuse<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Unsupported {
            kernel: self.kernel.name.clone(),
            what: what.into(),
            target: self.options.target,
            span: self.span,
        })
    }

    // ---- parameters

    fn parameters(&mut self, entry: &str) {
        let arguments = self.body.block(Body::ENTRY).arguments.clone();
        let parameters: Vec<_> = self.kernel.parameters.iter().map(|parameter| parameter.kind).enumerate().collect();
        let buffers = || parameters.iter().filter(|(_, kind)| *kind == ParameterKind::Buffer).map(|(at, _)| *at);
        let mut places = HashMap::new();
        for argument in buffers() {
            let from = self.passed(Passed::Buffer { argument }, 8);
            let generic = self.define(Class::Long, "ld.param.u64", from, entry);
            let base = self.make(Class::Long, "cvta.to.global.u64", &[generic]);
            places.insert(argument, Place::argument(base));
        }
        for &(argument, kind) in &parameters {
            let ParameterKind::Scalar(ty) = kind else { continue };
            let bytes = if ty.bits() <= 32 { 4 } else { 8 };
            let from = self.passed(Passed::Scalar { argument, ty }, bytes);
            let value = match ty.bits() {
                64 => self.define(Class::Long, "ld.param.b64", from, entry),
                _ if class_of(ty) == Class::Half => self.define(Class::Half, "ld.param.b16", from, entry),
                32 => self.define(Class::Word, "ld.param.b32", from, entry),
                width => {
                    let word = self.define(Class::Word, "ld.param.b32", from, entry);
                    let mask = Operand::word(u32::MAX >> (32 - width));
                    let low = self.make(Class::Word, "and.b32", &[word, mask]);
                    if ty == ScalarType::I1 { self.truth_of(low) } else { low }
                }
            };
            self.set_scalar(arguments[argument], value);
        }
        if self.lengths {
            for argument in buffers() {
                let from = self.passed(Passed::Length { argument }, 8);
                let length = self.define(Class::Long, "ld.param.u64", from, entry);
                if let Some(place) = places.get_mut(&argument) {
                    place.length = Some(length);
                }
            }
        }
        let asserts = self.body.ops().any(|op| matches!(op.kind, OpKind::Assert(_)));
        if self.options.checked || asserts {
            let from = self.passed(Passed::Faults, 8);
            let generic = self.define(Class::Long, "ld.param.u64", from, entry);
            let faults = self.make(Class::Long, "cvta.to.global.u64", &[generic]);
            self.memory.faults = Some(faults);
        }
        for (argument, place) in places {
            self.values[arguments[argument].index()] = Held::Place(place);
        }
    }

    /// Adds a parameter: its number.
    fn passed(&mut self, passed: Passed, bytes: usize) -> usize {
        let end = self.slots.last().map_or(0, |slot| slot.offset + slot.bytes);
        self.slots.push(Slot { passed, offset: end.next_multiple_of(bytes), bytes });
        self.slots.len() - 1
    }

    /// Reads parameter `from`.
    fn define(&mut self, class: Class, mnemonic: &str, from: usize, entry: &str) -> Operand {
        let to = self.text.reg(class);
        self.text.raw(&format!("{mnemonic} {to}, [{entry}_{from}]"));
        to.into()
    }

    // ---- instructions

    /// A new register that `mnemonic` defines.
    pub(super) fn make(&mut self, class: Class, mnemonic: &str, operands: &[Operand]) -> Operand {
        let to = Operand::from(self.text.reg(class));
        self.emit(mnemonic, to, operands);
        to
    }

    /// `mnemonic` into `to`.
    pub(super) fn emit(&mut self, mnemonic: &str, to: Operand, operands: &[Operand]) {
        let mut all = Vec::with_capacity(4);
        all.push(to);
        let suffix = mnemonic.rsplit('.').next().unwrap_or_default();
        for operand in operands {
            // What has no immediates gets a register.
            let needs_register = operand.bits().is_some()
                && (operand.class() == Class::Pred || matches!(suffix, "f16" | "bf16" | "f16x2" | "bf16x2"));
            all.push(if needs_register { self.in_register(*operand).into() } else { *operand });
        }
        self.text.instruction(mnemonic, &all);
    }

    /// The operand, in a register.
    pub(super) fn in_register(&mut self, operand: Operand) -> Reg {
        match operand {
            Operand::Reg(reg) => reg,
            Operand::Bits(Class::Pred, bits) => {
                let to = self.text.reg(Class::Pred);
                let equal = Operand::word(bits as u32);
                self.text.instruction("setp.ne.u32", &[to.into(), equal, Operand::word(0)]);
                to
            }
            Operand::Bits(class, _) => {
                let to = self.text.reg(class);
                self.text.instruction(&format!("mov.{}", class.bits_type()), &[to.into(), operand]);
                to
            }
        }
    }

    /// Copies `from` to `to`, of the same class.
    pub(super) fn copy(&mut self, to: Reg, from: Operand) {
        if from == to.into() {
            return;
        }
        match (to.class, from.bits()) {
            (Class::Pred, Some(bits)) => {
                self.text.instruction("setp.ne.u32", &[to.into(), Operand::word(bits as u32), Operand::word(0)]);
            }
            _ => self.text.instruction(&format!("mov.{}", to.class.bits_type()), &[to.into(), from]),
        }
    }

    /// `c ? a : b`, of one class.
    pub(super) fn choose(&mut self, c: Operand, a: Operand, b: Operand) -> Operand {
        if let Some(bits) = c.bits() {
            return if bits & 1 == 1 { a } else { b };
        }
        if a == b {
            return a;
        }
        match a.class() {
            Class::Pred => {
                let (a, b) = (self.and(c, a), self.and_not(b, c));
                self.or(a, b)
            }
            class => self.make(class, &format!("selp.{}", class.bits_type()), &[a, b, c]),
        }
    }

    /// `a && b`.
    pub(super) fn and(&mut self, a: Operand, b: Operand) -> Operand {
        match (a.bits(), b.bits()) {
            (Some(bits), _) => {
                if bits == 0 {
                    Operand::truth(false)
                } else {
                    b
                }
            }
            (_, Some(bits)) => {
                if bits == 0 {
                    Operand::truth(false)
                } else {
                    a
                }
            }
            _ => self.make(Class::Pred, "and.pred", &[a, b]),
        }
    }

    /// `a || b`.
    pub(super) fn or(&mut self, a: Operand, b: Operand) -> Operand {
        match (a.bits(), b.bits()) {
            (Some(bits), _) => {
                if bits == 1 {
                    Operand::truth(true)
                } else {
                    b
                }
            }
            (_, Some(bits)) => {
                if bits == 1 {
                    Operand::truth(true)
                } else {
                    a
                }
            }
            _ => self.make(Class::Pred, "or.pred", &[a, b]),
        }
    }

    /// `!a`.
    pub(super) fn not(&mut self, a: Operand) -> Operand {
        match a.bits() {
            Some(bits) => Operand::truth(bits == 0),
            None => self.make(Class::Pred, "not.pred", &[a]),
        }
    }

    /// `a && !b`.
    pub(super) fn and_not(&mut self, a: Operand, b: Operand) -> Operand {
        let b = self.not(b);
        self.and(a, b)
    }

    /// Whether a 32-bit number is not zero.
    pub(super) fn truth_of(&mut self, word: Operand) -> Operand {
        match word.bits() {
            Some(bits) => Operand::truth(bits != 0),
            None => self.make(Class::Pred, "setp.ne.s32", &[word, Operand::word(0)]),
        }
    }

    /// 1 or 0 in 32 bits.
    pub(super) fn number_of(&mut self, truth: Operand) -> Operand {
        match truth.bits() {
            Some(bits) => Operand::word(bits as u32),
            None => self.make(Class::Word, "selp.b32", &[Operand::word(1), Operand::word(0), truth]),
        }
    }

    // ---- addresses of 32 and of 64 bits

    fn remembered(&mut self, reg: Reg, class: Class, mnemonic: &str) -> Operand {
        if let Some(known) = self.memo.iter().rev().find_map(|scope| scope.get(&(reg, class))) {
            return *known;
        }
        let made = self.make(class, mnemonic, &[reg.into()]);
        if let Some(scope) = self.memo.last_mut() {
            scope.insert((reg, class), made);
        }
        made
    }

    /// A 32-bit number in 64 bits, its sign kept.
    pub(super) fn wide(&mut self, operand: Operand) -> Operand {
        match operand {
            Operand::Bits(Class::Word, bits) => Operand::long(bits as u32 as i32 as i64 as u64),
            Operand::Reg(reg) if reg.class == Class::Word => self.remembered(reg, Class::Long, "cvt.s64.s32"),
            _ => operand,
        }
    }

    /// The low 32 bits of a 64-bit number.
    pub(super) fn low(&mut self, operand: Operand) -> Operand {
        match operand {
            Operand::Bits(Class::Long, bits) => Operand::word(bits as u32),
            Operand::Reg(reg) if reg.class == Class::Long => self.remembered(reg, Class::Word, "cvt.u32.u64"),
            _ => operand,
        }
    }

    /// What is computed from here on is gone behind [`Self::close`].
    pub(super) fn open(&mut self) {
        self.memo.push(HashMap::new());
    }

    pub(super) fn close(&mut self) {
        self.memo.pop();
    }

    // ---- values

    pub(super) fn facts(&self, value: ValueId) -> Facts {
        self.kernel.facts(value)
    }

    pub(super) fn varies(&self, value: ValueId) -> bool {
        self.varies[value.index()]
    }

    /// The type of one number of `value`.
    pub(super) fn element_type(&self, value: ValueId) -> Result<ScalarType> {
        match self.body.ty(value).element() {
            Some(element) => Ok(element),
            None => self.refuse("arithmetic on a buffer"),
        }
    }

    /// How many registers a value of a scalar or vector type takes.
    pub(super) fn lane_count(&self, value: ValueId) -> Result<usize> {
        match self.body.ty(value).lanes() {
            Some(lanes) => Ok(lanes as usize),
            None => self.refuse("a buffer or view used as a number"),
        }
    }

    pub(super) fn held(&self, value: ValueId) -> Result<Held> {
        match &self.values[value.index()] {
            Held::Unset => self.refuse("a value that is not defined yet"),
            held => Ok(held.clone()),
        }
    }

    /// The lanes of a scalar or vector; addresses are 64 bits wide.
    pub(super) fn lanes(&mut self, value: ValueId) -> Result<Rc<[Operand]>> {
        let lanes = self.raw_lanes(value)?;
        let long = matches!(self.body.ty(value).element(), Some(ty) if class_of(ty) == Class::Long);
        if long && lanes.iter().any(|lane| lane.class() == Class::Word) {
            return Ok(lanes.iter().map(|lane| self.wide(*lane)).collect());
        }
        Ok(lanes)
    }

    /// The lanes as they are held.
    fn raw_lanes(&mut self, value: ValueId) -> Result<Rc<[Operand]>> {
        match self.held(value)? {
            Held::Lanes(lanes) => Ok(lanes),
            Held::Place(_) | Held::Unset => self.refuse("a buffer or view used as a number"),
        }
    }

    /// A scalar; addresses are 64 bits wide.
    pub(super) fn scalar(&mut self, value: ValueId) -> Result<Operand> {
        let lanes = self.lanes(value)?;
        match lanes.first() {
            Some(lane) => Ok(*lane),
            None => self.refuse("an empty vector"),
        }
    }

    /// A scalar as it is held: an address may be 32 bits.
    pub(super) fn raw(&mut self, value: ValueId) -> Result<Operand> {
        let lanes = self.raw_lanes(value)?;
        match lanes.first() {
            Some(lane) => Ok(*lane),
            None => self.refuse("an empty vector"),
        }
    }

    pub(super) fn place(&self, value: ValueId) -> Result<Place> {
        match self.held(value)? {
            Held::Place(place) => Ok(place),
            Held::Lanes(_) | Held::Unset => self.refuse("a number used as memory"),
        }
    }

    pub(super) fn set_place(&mut self, value: ValueId, place: Place) {
        self.values[value.index()] = Held::Place(place);
    }

    pub(super) fn set_lanes(&mut self, value: ValueId, lanes: Vec<Operand>) {
        self.values[value.index()] = Held::Lanes(lanes.into());
    }

    /// As the value is to be held, whatever width it was computed in.
    pub(super) fn set_scalar(&mut self, value: ValueId, operand: Operand) {
        let operand = self.as_held(value, operand);
        self.set_lanes(value, vec![operand]);
    }

    /// An operand as `value` is held.
    pub(super) fn as_held(&mut self, value: ValueId, operand: Operand) -> Operand {
        match self.class(value) {
            Some(Class::Word) => self.low(operand),
            Some(Class::Long) => self.wide(operand),
            _ => operand,
        }
    }

    /// The class of the registers that a value is held in.
    pub(super) fn class(&self, value: ValueId) -> Option<Class> {
        let ty = self.body.ty(value).element()?;
        Some(if self.narrow[value.index()] { Class::Word } else { class_of(ty) })
    }

    // ---- ops

    /// The ops of a block but its terminator, which is returned.
    pub(super) fn block(&mut self, id: BlockId) -> Result<&'a Op> {
        let body = self.body;
        let block: &'a Block = body.block(id);
        let Some((terminator, ops)) = block.ops.split_last() else {
            return self.refuse("a block without an end");
        };
        let waits_at = self.waits_at.filter(|_| id == Body::ENTRY);
        for (at, op) in ops.iter().enumerate() {
            if waits_at == Some(at) {
                self.wait_for_those_before();
            }
            self.span = op.span;
            self.land_before(op);
            self.comment_line();
            self.op(op)?;
            if self.text.instructions() > MAX_INSTRUCTIONS {
                return self.refuse("a kernel of more than half a million instructions");
            }
        }
        self.land();
        if waits_at == Some(ops.len()) {
            self.wait_for_those_before();
        }
        self.span = terminator.span;
        Ok(terminator)
    }

    /// The line of the source that the following instructions are of, once.
    fn comment_line(&mut self) {
        let line = self.kernel.lines.line(self.span.start);
        if line == self.line {
            return;
        }
        self.line = line;
        let at = (self.span.start as usize).min(self.source.len());
        let (before, behind) = (self.source.get(..at), self.source.get(at..));
        let words = match (before, behind) {
            (Some(before), Some(behind)) if !behind.is_empty() => {
                let start = before.rfind('\n').map_or(0, |at| at + 1);
                let end = at + behind.find('\n').unwrap_or(behind.len());
                comment_of(&self.source[start..end])
            }
            _ => String::new(),
        };
        self.text.comment(format!("{line}: {words}").trim_end().trim_end_matches(':').to_owned());
    }

    fn op(&mut self, op: &'a Op) -> Result {
        match &op.kind {
            OpKind::Constant(bits) => {
                let (ty, count) = (self.element_type(op.results[0])?, self.lane_count(op.results[0])?);
                let lane = self.as_held(op.results[0], Operand::Bits(class_of(ty), *bits));
                self.set_lanes(op.results[0], vec![lane; count]);
                Ok(())
            }
            OpKind::Unary(unary) => self.element(op, Element::Unary(*unary)),
            OpKind::Binary(binary) => self.element(op, Element::Binary(*binary)),
            OpKind::Ternary(ternary) => self.element(op, Element::Ternary(*ternary)),
            OpKind::CompareI(predicate) => self.element(op, Element::CompareI(*predicate)),
            OpKind::CompareF(predicate) => self.element(op, Element::CompareF(*predicate)),
            OpKind::Classify(class) => self.element(op, Element::Classify(*class)),
            OpKind::Convert(Convert::Bitcast) => self.bitcast(op),
            OpKind::Convert(convert) => self.element(op, Element::Convert(*convert)),
            OpKind::Select => self.select(op),
            OpKind::Splat
            | OpKind::FromElements
            | OpKind::Iota
            | OpKind::MaskRange
            | OpKind::Extract
            | OpKind::Insert
            | OpKind::Reduce(_)
            | OpKind::Dot
            | OpKind::Dot2F
            | OpKind::Dot4I { .. }
            | OpKind::Lanes(_) => self.vector(op),
            OpKind::Alloca { .. }
            | OpKind::Bytes(_)
            | OpKind::BufferView
            | OpKind::Subview
            | OpKind::Refine
            | OpKind::BufferLength
            | OpKind::Load
            | OpKind::LoadMask
            | OpKind::Store
            | OpKind::StoreMask
            | OpKind::Gather
            | OpKind::GatherMask
            | OpKind::Scatter
            | OpKind::ScatterMask => self.memory_op(op),
            OpKind::AsyncCopy { .. } | OpKind::AsyncGroup | OpKind::AsyncWait { .. } => self.asynchronous(op),
            OpKind::FragmentLabel(..)
            | OpKind::FragmentLoad(_)
            | OpKind::FragmentStore(_)
            | OpKind::FragmentRepack { .. }
            | OpKind::Mma(_) => self.fragment(op),
            OpKind::If
            | OpKind::For
            | OpKind::While
            | OpKind::Switch(_)
            | OpKind::Exit
            | OpKind::Assert(_)
            | OpKind::Yield
            | OpKind::Condition
            | OpKind::Return => self.control(op),
            OpKind::Id(id) => {
                let id = self.id(*id);
                self.set_scalar(op.results[0], id);
                Ok(())
            }
            OpKind::Barrier(_)
            | OpKind::SubgroupShuffle(_)
            | OpKind::SubgroupReduce { .. }
            | OpKind::SubgroupBroadcast
            | OpKind::SubgroupBroadcastFirst
            | OpKind::SubgroupScan { .. }
            | OpKind::SubgroupBallot
            | OpKind::SubgroupMatchAny
            | OpKind::SubgroupMatchAll
            | OpKind::WorkgroupReduce(_)
            | OpKind::WorkgroupScan(..) => self.collective(op),
            OpKind::Atomic { .. } | OpKind::Fence { .. } => self.atomic(op),
        }
    }

    /// An element-wise op, lane by lane.
    fn element(&mut self, op: &Op, element: Element) -> Result {
        let result = op.results[0];
        if let Some(operand) = self.narrow_address(op, element)? {
            self.set_scalar(result, operand);
            return Ok(());
        }
        let (from, to) = (self.element_type(op.operands[0])?, self.element_type(result)?);
        let kind = eval::Op::new(element, from, to);
        let mut operands = Vec::with_capacity(3);
        for operand in &op.operands {
            operands.push(self.lanes(*operand)?);
        }
        if element == Element::Convert(Convert::TruncF)
            && self.multiplied[result.index()]
            && let Some(lanes) = self.rounded_pairs(from, to, &operands[0])
        {
            self.set_lanes(result, lanes);
            return Ok(());
        }
        let divisor = op.operands.get(1).map(|divisor| self.facts(*divisor));
        let mut lanes = Vec::new();
        for lane in 0..self.lane_count(result)? {
            let mut from = [Operand::word(0); 3];
            for (from, operand) in from.iter_mut().zip(&operands) {
                *from = operand[lane];
            }
            lanes.push(self.evaluate(kind, from, divisor)?);
        }
        if let [lane] = lanes[..] {
            self.set_scalar(result, lane);
        } else {
            self.set_lanes(result, lanes);
        }
        Ok(())
    }

    /// Arithmetic on scalar addresses where 32 bits do, or 32 bits make 64. `None` leaves it to the general way.
    fn narrow_address(&mut self, op: &Op, element: Element) -> Result<Option<Operand>> {
        let body = self.body;
        let scalar_address = |value: ValueId| body.ty(value).scalar().is_some_and(ScalarType::is_address);
        let result = op.results[0];
        if let (Element::Convert(convert), Some(from)) = (element, body.ty(op.operands[0]).scalar()) {
            let operand = self.raw(op.operands[0])?;
            let to = body.ty(result).scalar();
            return Ok(match convert {
                // The register of an i32 is that of a narrow address.
                Convert::ExtSI if scalar_address(result) && from == ScalarType::I32 => Some(operand),
                Convert::ExtUI if self.narrow[result.index()] && from.bits() > 1 && from.bits() <= 32 => Some(operand),
                Convert::TruncI if from.is_address() && to == Some(ScalarType::I32) => Some(self.low(operand)),
                _ => None,
            });
        }
        if !op.operands.iter().all(|operand| scalar_address(*operand)) {
            return Ok(None);
        }
        let mut operands = Vec::with_capacity(3);
        for operand in &op.operands {
            operands.push(self.raw(*operand)?);
        }
        let fits = |operand: Operand| match operand {
            Operand::Reg(reg) => reg.class == Class::Word,
            Operand::Bits(_, bits) => bits as i64 == i64::from(bits as i64 as i32),
        };
        let all_fit = operands.iter().all(|operand| fits(*operand));
        let natural = op.operands.iter().all(|operand| self.facts(*operand).low >= 0);
        let narrow = self.narrow[result.index()];
        let positive = op.operands.get(1).is_some_and(|divisor| self.facts(*divisor).low > 0);
        Ok(match element {
            Element::Binary(
                binary @ (Binary::DivUI | Binary::DivSI | Binary::FloorDivSI | Binary::RemUI | Binary::RemSI),
            ) if narrow && all_fit && natural && operands[1].bits().is_some_and(u64::is_power_of_two) => {
                let a = self.low(operands[0]);
                let is_rest = matches!(binary, Binary::RemUI | Binary::RemSI);
                Some(self.by_power(Class::Word, is_rest, a, operands[1]))
            }
            Element::Binary(binary) if narrow => {
                let mnemonic = match binary {
                    Binary::AddI => "add.s32",
                    Binary::SubI => "sub.s32",
                    Binary::MulI => "mul.lo.s32",
                    Binary::AndI => "and.b32",
                    Binary::OrI => "or.b32",
                    Binary::XorI => "xor.b32",
                    Binary::MinSI if all_fit => "min.s32",
                    Binary::MaxSI if all_fit => "max.s32",
                    Binary::MinUI if all_fit && natural => "min.u32",
                    Binary::MaxUI if all_fit && natural => "max.u32",
                    Binary::DivUI | Binary::DivSI | Binary::FloorDivSI if all_fit && natural && positive => "div.u32",
                    Binary::RemUI | Binary::RemSI if all_fit && natural && positive => "rem.u32",
                    Binary::ShlI => match operands[1].bits() {
                        Some(..32) => "shl.b32",
                        _ => return Ok(None),
                    },
                    Binary::ShrUI | Binary::ShrSI if all_fit && natural => match operands[1].bits() {
                        Some(..32) => "shr.u32",
                        _ => return Ok(None),
                    },
                    _ => return Ok(None),
                };
                let (a, b) = (self.low(operands[0]), self.low(operands[1]));
                Some(self.make(Class::Word, mnemonic, &[a, b]))
            }
            Element::Binary(Binary::MulI) if all_fit => {
                let (a, b) = (self.low(operands[0]), self.low(operands[1]));
                Some(self.make(Class::Long, "mul.wide.s32", &[a, b]))
            }
            Element::Ternary(Ternary::FmaI) if narrow => {
                let [a, b, c] = [operands[0], operands[1], operands[2]].map(|operand| self.low(operand));
                Some(self.make(Class::Word, "mad.lo.s32", &[a, b, c]))
            }
            Element::Ternary(Ternary::FmaI) if fits(operands[0]) && fits(operands[1]) => {
                let [a, b] = [operands[0], operands[1]].map(|operand| self.low(operand));
                let c = self.wide(operands[2]);
                Some(self.make(Class::Long, "mad.wide.s32", &[a, b, c]))
            }
            Element::CompareI(predicate) if all_fit => {
                let (a, b) = (self.low(operands[0]), self.low(operands[1]));
                Some(self.compare_words(predicate, a, b))
            }
            _ => None,
        })
    }

    /// A comparison of 32-bit numbers.
    pub(super) fn compare_words(&mut self, predicate: IntPredicate, a: Operand, b: Operand) -> Operand {
        if let (Some(a), Some(b)) = (a.bits(), b.bits()) {
            return Operand::truth(eval::compare_int(predicate, ScalarType::I32, a, b));
        }
        let mnemonic = format!("setp.{}32", super::arithmetic::int_comparison(predicate));
        self.make(Class::Pred, &mnemonic, &[a, b])
    }

    fn select(&mut self, op: &Op) -> Result {
        let (result, body) = (op.results[0], self.body);
        if !matches!(body.ty(op.operands[0]), Type::Scalar(_)) {
            return self.element(op, Element::Select);
        }
        let condition = self.scalar(op.operands[0])?;
        if matches!(body.ty(result), Type::Buffer | Type::View(_)) {
            let (a, b) = (self.place(op.operands[1])?, self.place(op.operands[2])?);
            let space = self.spaces.space(result);
            let place = self.choose_place(condition, &a, &b, space);
            self.set_place(result, place);
            return Ok(());
        }
        let (a, b) = (self.raw_lanes(op.operands[1])?, self.raw_lanes(op.operands[2])?);
        let mut lanes = Vec::with_capacity(a.len());
        for (a, b) in a.iter().zip(b.iter()) {
            let (a, b) = (self.as_held(result, *a), self.as_held(result, *b));
            lanes.push(self.choose(condition, a, b));
        }
        self.set_lanes(result, lanes);
        Ok(())
    }

    // ---- ids

    /// A special register.
    pub(super) fn special(&mut self, name: &str) -> Operand {
        let to = self.text.reg(Class::Word);
        self.text.raw(&format!("mov.u32 {to}, %{name}"));
        to.into()
    }

    /// Position in the workgroup, `x + sx·(y + sy·z)`, in 32 bits.
    pub(super) fn flat(&mut self) -> Operand {
        let [sx, sy, sz] = self.kernel.workgroup_size;
        let mut flat = self.special("tid.x");
        if sy > 1 || sz > 1 {
            let y = self.special("tid.y");
            let mut row = y;
            if sz > 1 {
                let z = self.special("tid.z");
                row = self.make(Class::Word, "mad.lo.s32", &[z, Operand::word(sy), y]);
            }
            flat = self.make(Class::Word, "mad.lo.s32", &[row, Operand::word(sx), flat]);
        }
        flat
    }

    /// The lane of the subgroup, in 32 bits.
    pub(super) fn lane(&mut self) -> Operand {
        let flat = self.flat();
        if self.kernel.items() <= 32 { flat } else { self.make(Class::Word, "and.b32", &[flat, Operand::word(31)]) }
    }

    fn id(&mut self, id: IdKind) -> Operand {
        let name = |axis: Axis| ["x", "y", "z"][axis.index()];
        match id {
            IdKind::WorkItem(axis) if self.kernel.workgroup_size[axis.index()] == 1 => Operand::word(0),
            IdKind::WorkItem(axis) => self.special(&format!("tid.{}", name(axis))),
            IdKind::WorkGroup(axis) => self.special(&format!("ctaid.{}", name(axis))),
            IdKind::WorkGroupCount(axis) => self.special(&format!("nctaid.{}", name(axis))),
            IdKind::Dispatch(axis) => {
                let size = self.kernel.workgroup_size[axis.index()];
                let group = self.special(&format!("ctaid.{}", name(axis)));
                if size == 1 {
                    return group;
                }
                let item = self.special(&format!("tid.{}", name(axis)));
                let item = self.make(Class::Long, "cvt.u64.u32", &[item]);
                self.make(Class::Long, "mad.wide.u32", &[group, Operand::word(size), item])
            }
            IdKind::Subgroup => {
                let flat = self.flat();
                if self.kernel.items() <= 32 {
                    return Operand::word(0);
                }
                self.make(Class::Word, "shr.u32", &[flat, Operand::word(5)])
            }
            IdKind::SubgroupLane => self.lane(),
        }
    }
}

/// Which scalar addresses fit 32 bits.
fn narrow(kernel: &Kernel) -> Vec<bool> {
    let body = &kernel.body;
    let address = |value: ValueId| body.ty(value).scalar().is_some_and(ScalarType::is_address);
    let fits = |value: ValueId| address(value) && kernel.facts(value).fits(32);
    let mut narrow: Vec<bool> = (0..body.values.len()).map(|value| fits(ValueId(value as u32))).collect();
    for op in body.ops() {
        match &op.kind {
            // No device has 2^31 workgroups on an axis, or as many items in one.
            OpKind::Id(id) if !matches!(id, IdKind::Dispatch(_)) => narrow[op.results[0].index()] = true,
            // A counter goes as far as its bounds do.
            OpKind::For => {
                let counter = body.block(op.blocks[0]).arguments[0];
                let bounded = op.operands[..3].iter().all(|bound| fits(*bound));
                narrow[counter.index()] &= bounded;
            }
            _ => {}
        }
    }
    narrow
}

/// A name for the `.entry`: identifiers of PTX have letters, digits, `_` and `$`, and some words are taken.
fn entry_name(kernel: &str) -> String {
    let plain = |char: char| if char.is_ascii_alphanumeric() { char } else { '_' };
    format!("loom_{}", kernel.chars().take(200).map(plain).collect::<String>())
}

// The alignment that `memory` relies on is that of every allocation of a driver.
const _: () = assert!(BUFFER_ALIGN.is_power_of_two());
