//! Syntax to verified, folded IR, one op at a time: config is bound, calls are inlined, dead branches are not entered.
//!
//! ```text
//! Module ── Builder ──> Body
//!             names: %x -> value | layout | already reported
//!             emit:  fold, else reuse an equal op in scope, else append to the current block
//! ```
//!
//! - An op is read, verified and emitted by one function of the file of its family; a refusal ends that op only. Its
//!   results are then known as reported, so that one fault gives one message.
//! - Constants live at the head of the entry block, each once.
//! - Work is bounded: nesting by the syntax, inlining by [`MAX_CALL_DEPTH`] and recursion being refused, and everything
//!   by [`MAX_OPS`].
//! - In [`Mode::Verify`] config values are unknown and both branches of every `scf.if` are built; the body is thrown away.
//! - Not here: what is foldable (`fold`), what is dead (`simplify`).

mod atomic;
mod check;
mod collective;
mod command;
mod config;
mod control;
mod copy;
mod element;
mod encoding;
mod fragment;
mod gather;
mod global;
mod graph;
mod kernel;
mod leave;
mod memory;
mod names;
mod packed;
mod passed;
mod prove;
mod strides;
mod target;
mod template;
mod types;
mod vector;

use std::collections::{BTreeMap, HashMap};

use crate::diag::{Built, Diagnostics, Refusal, refuse};
use crate::eval;
use crate::facts::{Facts, Table};
use crate::fold::{Folded, fold};
use crate::ir::{Block, BlockId, Body, Op, Span, Value, ValueId};
use crate::lex::Kind;
use crate::module::Module;
use crate::ops::{Flags, OpKind, SUBGROUP_SIZE};
use crate::reader::Reader;
use crate::syntax;
use crate::types::{Dim, ScalarType, Type};

pub(crate) use config::bound_bits;

use names::{Binding, Host, Names};
use prove::Entering;

/// The most ops built for one kernel, inlined ones counted each time.
pub(crate) const MAX_OPS: u32 = 1 << 18;

/// The deepest chain of calls.
const MAX_CALL_DEPTH: usize = 32;

/// What is known while building.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Config is unknown, every branch is looked at, the result is thrown away.
    Verify,
    /// Config is bound and only live branches are built.
    Specialise,
}

/// Where ops stand: which of them are legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The launch-config region: host code, pure.
    Launch,
    /// A check: host code, pure but for its own ops.
    Check,
    /// A kernel's body, and functions called from it.
    Device,
    /// A command program.
    Command,
}

/// An op that may be reused instead of built again.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Known {
    kind: OpKind,
    operands: Vec<ValueId>,
    ty: Type,
}

/// The state of building one body.
pub(crate) struct Builder<'m> {
    pub(crate) diagnostics: Diagnostics,
    module: &'m Module,
    config: &'m BTreeMap<String, String>,
    mode: Mode,
    place: Place,
    body: Body,
    block: BlockId,
    names: Names<'m>,
    constants: HashMap<(Type, u64), ValueId>,
    constant_ops: Vec<Op>,
    known: HashMap<Known, ValueId>,
    /// Insertions into `known`, so that leaving a block takes back what does not dominate the rest.
    known_log: Vec<Known>,
    /// In [`Mode::Verify`], the value that stands for each config key.
    unknowns: HashMap<String, ValueId>,
    /// The aliases of each file, once one was asked for.
    aliases: Option<HashMap<(usize, &'m str), &'m syntax::Op>>,
    /// The block each value is defined in, by [`ValueId`], and the blocks being built, outermost first.
    home: Vec<BlockId>,
    open: Vec<BlockId>,
    /// Functions being inlined, outermost first.
    calls: Vec<&'m str>,
    /// What is known of the values of the body.
    facts: Table,
    /// What holds in the block that is opened next.
    entering: Option<Entering>,
    /// Extents of the argument whose parameter's type is read: what names stand for that the type introduces.
    introduced: Option<Vec<Dim>>,
    /// Whether some work-items may have left the kernel before this op.
    exits: bool,
    /// The target record of the kernel being built.
    target: Option<&'m str>,
    workgroup_size: Option<[u32; 3]>,
    /// Workgroups per axis, where the launch region gives constants.
    workgroups: [Option<u32>; 3],
    /// Work-items per subgroup of the kernel being built.
    subgroup_size: u32,
    /// Workgroups per cluster of the kernel being built.
    cluster_size: [u32; 3],
    /// Whether it is a kernel that is built, not a function on its own.
    in_kernel: bool,
    workgroup_bytes: u64,
    private_bytes: u64,
    /// The op being built.
    span: Span,
    flags: Flags,
    built: u32,
}

impl<'m> Builder<'m> {
    /// Nothing built yet.
    pub(crate) fn new(module: &'m Module, config: &'m BTreeMap<String, String>, mode: Mode) -> Self {
        Self {
            diagnostics: Diagnostics::of_files(&module.name, &module.files),
            module,
            config,
            mode,
            place: Place::Device,
            body: Body { values: Vec::new(), blocks: vec![Block::default()] },
            block: Body::ENTRY,
            names: Names::default(),
            constants: HashMap::new(),
            constant_ops: Vec::new(),
            known: HashMap::new(),
            known_log: Vec::new(),
            unknowns: HashMap::new(),
            aliases: None,
            home: Vec::new(),
            open: vec![Body::ENTRY],
            calls: Vec::new(),
            facts: Table::default(),
            entering: None,
            introduced: None,
            exits: false,
            target: None,
            workgroups: [None; 3],
            workgroup_size: None,
            subgroup_size: SUBGROUP_SIZE,
            cluster_size: [1; 3],
            in_kernel: false,
            workgroup_bytes: 0,
            private_bytes: 0,
            span: Span::default(),
            flags: Flags::default(),
            built: 0,
        }
    }

    /// Forgets the body built so far, to build another.
    fn take_body(&mut self) -> Body {
        let mut body = std::mem::replace(&mut self.body, Body { values: Vec::new(), blocks: vec![Block::default()] });
        self.block = Body::ENTRY;
        self.names = Names::default();
        self.constants.clear();
        self.known.clear();
        self.known_log.clear();
        self.unknowns.clear();
        self.home.clear();
        self.facts = Table::default();
        self.exits = false;
        self.open = vec![Body::ENTRY];
        let constants = std::mem::take(&mut self.constant_ops);
        body.blocks[0].ops.splice(0..0, constants);
        body
    }

    fn report(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::At(span, message) => self.diagnostics.push(&self.module.source, span, message),
            Refusal::Reported => {}
        }
    }

    fn reader(&self, op: &'m syntax::Op) -> Reader<'m> {
        Reader::new(&self.module.source, &self.module.tokens, op)
    }

    // Values.

    fn new_value(&mut self, ty: Type) -> ValueId {
        let id = ValueId(self.body.values.len() as u32);
        self.facts.define(Facts::of_type(&ty));
        self.body.values.push(Value { ty, constant: None });
        self.home.push(self.block);
        id
    }

    /// Whether `value` is defined in a block that is being built.
    fn is_visible(&self, value: ValueId) -> bool {
        self.constant_of(value).is_some() || self.open.contains(&self.home[value.index()])
    }

    fn ty(&self, value: ValueId) -> &Type {
        self.body.ty(value)
    }

    fn constant_of(&self, value: ValueId) -> Option<u64> {
        self.body.constant(value)
    }

    /// The constant with these bits in every lane.
    fn constant(&mut self, ty: Type, bits: u64) -> ValueId {
        if let Some(value) = self.constants.get(&(ty.clone(), bits)) {
            return *value;
        }
        let value = self.new_value(ty.clone());
        self.body.values[value.index()].constant = Some(bits);
        match ty.scalar() {
            Some(ScalarType::I1) => self.facts.refine(value, Facts::exactly(bits as i64)),
            Some(scalar) if !scalar.is_float() => {
                self.facts.refine(value, Facts::exactly(eval::signed(scalar, bits)));
            }
            _ => {}
        }
        self.constants.insert((ty, bits), value);
        self.constant_ops.push(Op {
            kind: OpKind::Constant(bits),
            operands: Vec::new(),
            results: vec![value],
            blocks: Vec::new(),
            flags: Flags::default(),
            span: self.span,
        });
        value
    }

    fn index(&mut self, value: i64) -> ValueId {
        self.constant(Type::Scalar(ScalarType::Index), value as u64)
    }

    // Ops.

    fn push(&mut self, kind: OpKind, operands: &[ValueId], results: Vec<ValueId>, blocks: Vec<BlockId>) {
        let op = Op { kind, operands: operands.to_vec(), results, blocks, flags: self.flags, span: self.span };
        self.body.blocks[self.block.index()].ops.push(op);
    }

    /// The result of a pure op: folded, reused, or appended.
    fn emit(&mut self, kind: OpKind, operands: &[ValueId], ty: Type) -> ValueId {
        match fold(&self.body, &kind, operands, &ty) {
            Some(Folded::Constant(bits)) => return self.constant(ty, bits),
            Some(Folded::Value(value)) => return value,
            Some(Folded::Op(kind, operands)) => return self.emit(kind, &operands, ty),
            None => {}
        }
        if let Some(value) = self.decided(&kind, operands, &ty) {
            return value;
        }
        let known = Known { kind: kind.clone(), operands: operands.to_vec(), ty };
        if let Some(value) = self.known.get(&known) {
            return self.settled(*value);
        }
        let facts = self.derived(&kind, operands, &known.ty);
        let value = self.new_value(known.ty.clone());
        self.facts.refine(value, facts);
        if known.ty == Type::Scalar(ScalarType::I1) {
            self.facts.condition(value, kind.clone(), operands);
        }
        if facts.number().is_some() {
            let settled = self.settled(value);
            if settled != value {
                return settled;
            }
        }
        self.push(kind, operands, vec![value], Vec::new());
        self.known.insert(known.clone(), value);
        self.known_log.push(known);
        value
    }

    /// The result of an op that is neither folded nor reused: it reads memory, or its place matters.
    fn emit_here(&mut self, kind: OpKind, operands: &[ValueId], ty: Type) -> ValueId {
        let value = self.new_value(ty);
        self.push(kind, operands, vec![value], Vec::new());
        value
    }

    /// Runs `build` with a new block as the current one; what it names and emits is in scope only there.
    fn in_block<T>(
        &mut self,
        arguments: Vec<ValueId>,
        build: impl FnOnce(&mut Self) -> Built<T>,
    ) -> (BlockId, Built<T>) {
        let id = BlockId(self.body.blocks.len() as u32);
        for argument in &arguments {
            self.home[argument.index()] = id;
        }
        self.body.blocks.push(Block { arguments, ops: Vec::new() });
        let outer = std::mem::replace(&mut self.block, id);
        self.open.push(id);
        let mark = self.known_log.len();
        let facts = self.facts.enter();
        if let Some(known) = self.entering.take() {
            self.entered(known);
        }
        let built = build(self);
        self.facts.leave(facts);
        for known in self.known_log.drain(mark..) {
            self.known.remove(&known);
        }
        self.block = outer;
        self.open.pop();
        (id, built)
    }

    // Reading operands.

    /// The value named by the next token.
    fn operand(&mut self, reader: &mut Reader<'m>) -> Built<ValueId> {
        let (name, span) = reader.value_name()?;
        self.value_named(name, span)
    }

    fn value_named(&self, name: &str, span: Span) -> Built<ValueId> {
        match self.names.get(name) {
            Some(Binding::Value(value)) => Ok(*value),
            Some(Binding::Reported) => Err(Refusal::Reported),
            Some(Binding::Layout(_) | Binding::Encoding(_)) => {
                refuse(span, format!("`%{name}` is a layout or encoding; expected a scalar, vector, buffer or view"))
            }
            Some(Binding::Host(Host::Tensor(_))) => refuse(span, format!("`%{name}` is a tensor; expected a scalar")),
            Some(Binding::Host(Host::Entropy(_))) => {
                refuse(span, format!("`%{name}` is entropy; expected a scalar, such as `check.entropy.read` gives"))
            }
            None => refuse(
                span,
                format!(
                    "`%{name}` is not defined here; a use must follow its definition, in the same or an enclosing region"
                ),
            ),
        }
    }

    /// `%a, %b, ..`, at least one.
    fn operands(&mut self, reader: &mut Reader<'m>) -> Built<Vec<(ValueId, Span)>> {
        let mut operands = Vec::new();
        loop {
            let span = reader.here();
            operands.push((self.operand(reader)?, span));
            if !reader.accept(Kind::Comma) {
                return Ok(operands);
            }
        }
    }

    /// `[0, %i, ..]`: `index` values, integers becoming constants. May be empty.
    fn indices(&mut self, reader: &mut Reader<'m>) -> Built<Vec<(ValueId, Span)>> {
        reader.expect(Kind::BracketOpen)?;
        let mut indices = Vec::new();
        if reader.accept(Kind::BracketClose) {
            return Ok(indices);
        }
        loop {
            let span = reader.here();
            let index = if reader.peek() == Some(Kind::Int) {
                let (value, _) = reader.int()?;
                self.index(value)
            } else if reader.peek() == Some(Kind::Value) {
                let value = self.operand(reader)?;
                self.require(reader, value, span, ScalarType::Index)?;
                value
            } else {
                return reader.expected("an integer or a value `%name`");
            };
            indices.push((index, span));
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::BracketClose)?;
                return Ok(indices);
            }
        }
    }

    /// The value must be a scalar of this type.
    fn require(&self, reader: &Reader<'m>, value: ValueId, span: Span, ty: ScalarType) -> Built<()> {
        if *self.ty(value) == Type::Scalar(ty) {
            return Ok(());
        }
        let found = self.ty(value);
        refuse(span, format!("`{}`: expected a value of type {ty}, found {found}", reader.name()))
    }

    // One op.

    /// Reads, verifies and emits `op`; a refusal is reported.
    fn op(&mut self, op: &'m syntax::Op) {
        if self.diagnostics.is_full() || self.built > MAX_OPS {
            return;
        }
        let mut reader = self.reader(op);
        self.span = reader.span();
        self.flags = Flags::default();
        self.built += 1;
        let built = if self.built > MAX_OPS {
            refuse(self.span, format!("the kernel has more than {MAX_OPS} ops once its calls are inlined"))
        } else {
            self.results(&mut reader)
        };
        let results = match built {
            Ok(results) if results.len() == op.results.len() => results,
            Ok(results) => {
                let message =
                    format!("`{}` has {} results; {} names are given", reader.name(), results.len(), op.results.len());
                self.report(Refusal::At(reader.span(), message));
                Vec::new()
            }
            Err(refusal) => {
                self.report(refusal);
                Vec::new()
            }
        };
        let mut results = results.into_iter();
        for token in &op.results {
            let binding = results.next().unwrap_or(Binding::Reported);
            self.define(&reader.text_at(*token)[1..], self.module.tokens[*token as usize].span, binding);
        }
    }

    fn define(&mut self, name: &'m str, span: Span, binding: Binding) {
        if !self.names.define(name, binding) {
            self.report(Refusal::At(span, format!("`%{name}` is already defined in this region")));
        }
    }

    /// Dispatches on the family of the op.
    fn results(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let name = reader.name();
        let (family, op) = name.split_once('.').unwrap_or((name, ""));
        self.exits |= name == "kernel.exit";
        if self.in_command()
            && let Some(results) = self.command_op(reader, name)
        {
            return results;
        }
        match family {
            "vector" | "encoding" | "buffer" | "view" | "kernel" | "func" if self.place == Place::Check => refuse(
                reader.span(),
                format!("`{name}`: a check computes with scalars only; legal here: index, scalar, scf, config"),
            ),
            "index" => self.index_op(reader, op),
            "scalar" => self.scalar_op(reader, op),
            "vector" => self.vector_op(reader, op),
            "scf" => self.scf_op(reader, op),
            "func" => self.func_op(reader, op),
            "template" => self.template_op(reader, op),
            "global" => self.global_op(reader, op),
            "config" => self.config_op(reader, op),
            "encoding" => self.encoding_op(reader, op),
            // Only arithmetic.
            "buffer" if op == "pack" => self.pack(reader),
            "buffer" | "view" if self.place == Place::Launch => refuse(
                reader.span(),
                format!(
                    "`{name}`: the launch-config region has no memory; legal: index, scalar, scf, config, func.call"
                ),
            ),
            "buffer" => self.buffer_op(reader, op),
            "view" => self.view_op(reader, op),
            "kernel" | "target" => self.kernel_op(reader, op),
            // Aborts where a fact does not hold; as the other promises, it is believed.
            "sanitizer" if op == "assert.value" => self.assume(reader),
            "low" | "amdgpu" | "aie2p" | "x86" => {
                refuse(reader.span(), format!("`{name}`: ops of one machine (target assembly) are not compiled here"))
            }
            "pipeline" | "channel" => refuse(reader.span(), format!("`{name}`: NPU dataflow is not compiled here")),
            "cfg" => refuse(
                reader.span(),
                format!(
                    "`{name}` ends a block of a function or kernel; legal here: scf.if, scf.for, scf.while, scf.switch"
                ),
            ),
            _ if name.starts_with('@') => {
                refuse(reader.span(), format!("`{name}` is a hole of a text template; it must be filled in first"))
            }
            _ => refuse(
                reader.span(),
                format!(
                    "`{name}` is no op of a kernel; legal families: index, scalar, vector, scf, cfg, func, template, config, global, encoding, buffer, view, target, kernel"
                ),
            ),
        }
    }

    /// The refusal of an op that its family does not have, or that is not compiled here.
    fn unknown<T>(&self, reader: &Reader<'m>, legal: &str) -> Built<T> {
        refuse(reader.span(), format!("`{}` is not an op that is compiled here; legal: {legal}", reader.name()))
    }
}

/// One result.
fn one(value: ValueId) -> Vec<Binding> {
    vec![Binding::Value(value)]
}
