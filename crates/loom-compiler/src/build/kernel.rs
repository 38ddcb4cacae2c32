//! `kernel.def`: the launch region, then the body; and the ops that only a kernel has.

use crate::diag::{Built, refuse};
use crate::flow;
use crate::ir::{Kernel, Lines, MAX_WORKGROUP_ITEMS, Parameter, ParameterKind, SourceDigest, Span, ValueId};
use crate::launch::LaunchProgram;
use crate::lex::Kind;
use crate::opaque::layout_opaque;
use crate::ops::{Axis, BarrierScope, IdKind, OpKind, SUBGROUP_SIZE, SUBGROUP_SIZES};
use crate::reader::{Attribute, Reader};
use crate::simplify;
use crate::syntax;
use crate::types::{ScalarType, Type};

use super::control::{Signature, Terminator};
use super::names::Binding;
use super::{Builder, MAX_OPS, Mode, Place, one};

/// The most ops that are verified of one text, those of inlined calls counted each time: some seconds.
const MAX_VERIFIED_OPS: u64 = 1 << 21;

/// The most workgroups of a cluster along one axis.
const MAX_CLUSTER_WORKGROUPS: u64 = 1024;

pub(super) const AXES: &str = "an axis: x, y or z";

pub(super) fn axis(word: &str) -> Option<Axis> {
    Some(match word {
        "x" => Axis::X,
        "y" => Axis::Y,
        "z" => Axis::Z,
        _ => return None,
    })
}

impl<'m> Builder<'m> {
    /// Verifies every kernel and function among the `chosen` ops of the module.
    pub(crate) fn verify_all(&mut self, chosen: &[bool]) {
        let module = self.module;
        if let (true, Some(first)) = (module.is_fragment(), module.ops.first()) {
            let span = module.tokens[first.name as usize].span;
            let message =
                "this text is a fragment, made to be pasted into a body: no kernel or function is defined in it";
            return self.report(crate::diag::Refusal::At(span, message.to_owned()));
        }
        let beyond = module.beyond_kernels();
        let mut verified = 0;
        for (at, (op, _)) in module.ops.iter().zip(chosen).enumerate().filter(|(_, (_, chosen))| **chosen) {
            // Each definition is verified with all that it calls, so what short ones hold together may be without end.
            verified += u64::from(std::mem::take(&mut self.built));
            if verified > MAX_VERIFIED_OPS {
                let span = module.tokens[op.name as usize].span;
                let message = format!(
                    "the definitions before this one have more than {MAX_VERIFIED_OPS} ops once their calls are inlined; \
                     divide the text"
                );
                return self.report(crate::diag::Refusal::At(span, message));
            }
            if self.diagnostics.is_full() {
                return;
            }
            match module.op_name(op) {
                "kernel.def" => {
                    self.kernel(op);
                }
                "func.def" | "func.template" | "template.def" if beyond[at] => {}
                "func.def" | "func.template" | "template.def" => {
                    self.function_alone(op);
                }
                "check.case" | "check.scenario" => {
                    self.check_case(op);
                }
                "check.benchmark" => {
                    self.benchmark(op);
                }
                "config.decl" | "config.def" | "global.constant" | "global.rodata.def" => {
                    self.built = 0;
                    let built = match module.op_name(op) {
                        "global.constant" | "global.rodata.def" => self.check_global(op),
                        _ => self.check_config(op),
                    };
                    if let Err(refusal) = built {
                        self.report(refusal);
                    }
                    self.take_body();
                }
                "command.program.def" => {
                    self.place = Place::Command;
                    self.built = 0;
                    self.workgroup_size = None;
                    self.target = None;
                    let built = self.isolated(|builder| builder.command_program(op));
                    if let Err(refusal) = built {
                        self.report(refusal);
                    }
                    self.take_body();
                }
                _ => {}
            }
        }
    }

    /// Verifies a function or template without a caller: right, if it is so in subgroups of some width.
    fn function_alone(&mut self, op: &'m syntax::Op) {
        let span = self.module.tokens[op.name as usize].span;
        let before = self.diagnostics.clone();
        let mut first = None;
        for size in SUBGROUP_SIZES {
            self.place = Place::Device;
            self.built = 0;
            self.workgroup_size = None;
            self.workgroups = [None; 3];
            self.target = None;
            self.subgroup_size = size;
            self.cluster_size = [1; 3];
            self.in_kernel = false;
            let built = self.isolated(|builder| builder.function_body(op, span, None));
            if let Err(refusal) = built {
                self.report(refusal);
            }
            self.take_body();
            // What is too long is so in subgroups of any width.
            if self.diagnostics == before || self.built > MAX_OPS {
                return;
            }
            let found = std::mem::replace(&mut self.diagnostics, before.clone());
            first.get_or_insert(found);
        }
        self.diagnostics = first.unwrap_or(before);
    }

    /// Builds the kernel that `op` defines; refusals are reported.
    pub(crate) fn kernel(&mut self, op: &'m syntax::Op) -> Option<Kernel> {
        let built = self.kernel_def(op);
        if let Err(refusal) = built {
            self.report(refusal);
            self.take_body();
            return None;
        }
        built.ok()
    }

    fn kernel_def(&mut self, op: &'m syntax::Op) -> Built<Kernel> {
        let mut reader = self.reader(op);
        self.span = reader.span();
        self.built = 0;
        self.workgroup_size = None;
        self.subgroup_size = SUBGROUP_SIZE;
        self.cluster_size = [1; 3];
        self.in_kernel = true;
        self.workgroup_bytes = 0;
        self.private_bytes = 0;
        self.target = self.module.target_of(op);
        self.workgroups = [None; 3];
        let name = self.kernel_head(&mut reader)?;
        let workload_signature = self.signature(&mut reader)?;
        let config = reader.region()?;
        reader.expect_word("launch")?;
        // Before June 2026 one list stood for both.
        let launch_signature =
            if reader.peek() == Some(Kind::ParenOpen) { Some(self.signature(&mut reader)?) } else { None };
        let where_at = reader.clone();
        if reader.accept_word("where") {
            while reader.peek().is_some_and(|kind| kind != Kind::BraceOpen) {
                reader.at += 1;
            }
        }
        let body = reader.region()?;
        reader.end()?;

        let both = launch_signature.is_none();
        let (launch, workgroups) = match self.launch_program(&reader, &workload_signature, both, config) {
            // What is wrong with the geometry says nothing about the body: both are verified in one run.
            Err(refusal) if self.mode == Mode::Verify => {
                self.report(refusal);
                self.take_body();
                (LaunchProgram { workload: Vec::new(), workgroup_size: [1; 3], body: self.take_body() }, [None; 3])
            }
            launch => launch?,
        };
        let workgroup_size = launch.workgroup_size;

        self.place = Place::Device;
        self.workgroup_size = (self.mode == Mode::Specialise).then_some(workgroup_size);
        self.workgroups = workgroups;
        let signature = launch_signature.as_ref().unwrap_or(&workload_signature);
        let types = self.abi_types(&reader, signature)?;
        let parameters = parameters(&signature.parameters, &types);
        let arguments = self.arguments(&signature.parameters, &types)?;
        let mark = self.names.enter();
        for (name, span, binding) in arguments {
            self.define(name, span, binding);
        }
        let mut clause = where_at;
        self.where_clause(&mut clause)?;
        if clause.peek() != Some(Kind::BraceOpen) {
            return clause.expected("the kernel's body `{ .. }`");
        }
        let ended = self.block_ops(body, Terminator::KernelReturn);
        self.names.leave(mark);
        ended?;
        self.push(OpKind::Return, &[], Vec::new(), Vec::new());
        let facts = self.facts.take();
        let mut body = self.take_body();
        if let Err((span, message)) = flow::resolve(&mut body) {
            return refuse(span, message);
        }
        self.check_read_only(&body)?;
        // The passes that follow find what is left of the workgroup memory.
        let subgroup_size = self.subgroup_size;
        // A kernel that is only verified is thrown away; these cost as much as the whole text is long, for each kernel.
        let (source, lines) = match self.mode {
            Mode::Specialise => {
                let files = self.module.files.iter().map(|file| file.start);
                (self.module.digest(op, self.config), Lines::new(&self.module.source, files, &body))
            }
            Mode::Verify => (SourceDigest([0; 32]), Lines::default()),
        };
        let kernel = Kernel {
            name,
            source,
            parameters,
            launch,
            workgroup_size,
            subgroup_size,
            workgroup_bytes: 0,
            lines,
            body,
            facts,
        };
        let split = |op: &crate::ir::Op| match op.kind {
            OpKind::FragmentLoad(fragment) | OpKind::FragmentLabel(fragment, _) => fragment.split,
            OpKind::Mma(product) => product.split,
            _ => false,
        };
        if self.mode == Mode::Specialise
            && kernel.body.ops().any(split)
            && let Err(seen) = layout_opaque(&kernel)
        {
            let message = format!(
                "`{}`: {}; how a gfx12 lays its fragments out is not known here, so a kernel may not see it",
                seen.op, seen.what
            );
            return refuse(seen.at, message);
        }
        Ok(kernel)
    }

    /// The launch-config region, and the counts of workgroups that are known. `both`: its arguments are the device's too.
    fn launch_program(
        &mut self,
        reader: &Reader<'m>,
        signature: &Signature<'m>,
        both: bool,
        config: &'m syntax::Region,
    ) -> Built<(LaunchProgram, [Option<u32>; 3])> {
        self.place = Place::Launch;
        let types = self.abi_types(reader, signature)?;
        let (mut names, mut scalars) = (Vec::new(), Vec::new());
        for (ty, (name, span)) in types.into_iter().zip(&signature.parameters) {
            match ty {
                // The geometry is computed before there is memory.
                Type::Buffer if both => {}
                Type::Buffer => {
                    return refuse(*span, format!("a workload argument is a scalar; `%{name}` is a buffer"));
                }
                scalar => {
                    names.push((*name, *span));
                    scalars.push(scalar);
                }
            }
        }
        let workload = parameters(&names, &scalars);
        let arguments = self.arguments(&names, &scalars)?;
        let launch = self.region_ops(config, arguments, Terminator::LaunchConfig)?;
        let workgroup_size = self.constant_sizes(&launch[3..6])?;
        let constant = |count: &ValueId| self.constant_of(*count).and_then(|count| u32::try_from(count).ok());
        let workgroups = [0, 1, 2].map(|axis| constant(&launch[axis]));
        self.span = reader.span();
        self.push(OpKind::Yield, &launch[..3], Vec::new(), Vec::new());
        let mut body = self.take_body();
        simplify::remove_dead(&mut body);
        Ok((LaunchProgram { workload, workgroup_size, body }, workgroups))
    }

    /// `[retain] [target(@t)] [export("name")] [linkage(..)] @sym`: the kernel's name.
    fn kernel_head(&mut self, reader: &mut Reader<'m>) -> Built<String> {
        let mut export = None;
        loop {
            if reader.peek() == Some(Kind::Symbol) {
                let (symbol, _) = reader.symbol()?;
                return Ok(export.unwrap_or_else(|| symbol.to_owned()));
            }
            let (word, span) =
                reader.word("retain, target(@t), export(\"name\"), linkage(..) or the kernel's symbol")?;
            match word {
                "retain" => {}
                "export" => {
                    reader.expect(Kind::ParenOpen)?;
                    export = Some(reader.string()?);
                    if reader.accept(Kind::Comma) {
                        reader.dictionary()?;
                    }
                    reader.expect(Kind::ParenClose)?;
                }
                "linkage" => {
                    reader.expect(Kind::ParenOpen)?;
                    reader
                        .choose("default or dso_local", |word| matches!(word, "default" | "dso_local").then_some(()))?;
                    reader.expect(Kind::ParenClose)?;
                }
                "target" => {
                    if let Some(size) = self.target_clause(reader)? {
                        self.subgroup_size = size;
                    }
                }
                _ => {
                    return refuse(
                        span,
                        format!("`{word}` is no modifier of a kernel; legal: retain, target, export, linkage"),
                    );
                }
            }
        }
    }

    /// Entry arguments and their names.
    fn arguments(&mut self, names: &[(&'m str, Span)], types: &[Type]) -> Built<Vec<(&'m str, Span, Binding)>> {
        let mut arguments = Vec::new();
        for ((name, span), ty) in names.iter().zip(types) {
            let value = self.new_value(ty.clone());
            self.body.blocks[0].arguments.push(value);
            arguments.push((*name, *span, Binding::Value(value)));
        }
        Ok(arguments)
    }

    /// `workgroups(%x, %y, %z) workgroup_size(%x, %y, %z) [cluster_size(%x, %y, %z)] : index`: counts, then sizes.
    pub(super) fn launch_config(&mut self, reader: &mut Reader<'m>) -> Built<Vec<ValueId>> {
        let mut values = Vec::new();
        for (clause, optional) in [("workgroups", false), ("workgroup_size", false), ("cluster_size", true)] {
            if optional && reader.peek() == Some(Kind::Colon) {
                break;
            }
            reader.expect_word(clause)?;
            reader.expect(Kind::ParenOpen)?;
            for at in 0..3 {
                if at > 0 {
                    reader.expect(Kind::Comma)?;
                }
                let span = reader.here();
                let value = self.bound(reader, ScalarType::Index)?;
                self.require(reader, value, span, ScalarType::Index)?;
                if optional {
                    match (self.constant_of(value), self.mode) {
                        (Some(size @ 1..=MAX_CLUSTER_WORKGROUPS), _) => self.cluster_size[at] = size as u32,
                        (None, Mode::Verify) => {}
                        _ => {
                            let message = format!("a cluster size is a constant from 1 to {MAX_CLUSTER_WORKGROUPS}");
                            return refuse(span, message);
                        }
                    }
                }
                values.push(value);
            }
            reader.expect(Kind::ParenClose)?;
        }
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        if self.plain_type(reader)? != Type::Scalar(ScalarType::Index) {
            return refuse(span, "the launch geometry is of type index");
        }
        reader.end()?;
        Ok(values)
    }

    /// The workgroup size, which must be known now.
    fn constant_sizes(&mut self, sizes: &[ValueId]) -> Built<[u32; 3]> {
        let mut constants = [1u32; 3];
        for (constant, size) in constants.iter_mut().zip(sizes) {
            match self.constant_of(*size) {
                Some(value @ 1..=1024) => *constant = value as u32,
                Some(value) => {
                    let message = format!("a workgroup size is 1 to {MAX_WORKGROUP_ITEMS}, found {}", value as i64);
                    return refuse(self.span, message);
                }
                None if self.mode == Mode::Verify => {}
                None => {
                    return refuse(self.span, "the workgroup size must be constant once config is bound");
                }
            }
        }
        let items: u64 = constants.iter().map(|size| u64::from(*size)).product();
        if items > u64::from(MAX_WORKGROUP_ITEMS) {
            return refuse(
                self.span,
                format!("a workgroup has at most {MAX_WORKGROUP_ITEMS} work-items, found {items}"),
            );
        }
        Ok(constants)
    }

    /// `kernel.*` and `target.*` inside a body.
    pub(super) fn kernel_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        if reader.name() == "target.subgroup.size" {
            self.index_type(reader)?;
            return Ok(one(self.index(i64::from(self.subgroup_size))));
        }
        if self.place != Place::Device {
            return refuse(
                reader.span(),
                format!("`{}`: the launch-config region runs on the host, before there are work-items", reader.name()),
            );
        }
        match op {
            "workitem.id" => self.axis_id(reader, IdKind::WorkItem),
            "workgroup.id" => self.axis_id(reader, IdKind::WorkGroup),
            "workgroup.count" => self.axis_id(reader, IdKind::WorkGroupCount),
            "workitem.dispatch.id" => self.axis_id(reader, IdKind::Dispatch),
            "workgroup.size" => {
                let axis = reader.keyword(AXES, axis)?;
                self.index_type(reader)?;
                let size = self.workgroup_size.map(|size| size[axis.index()]);
                Ok(one(self.known_index(size)))
            }
            "subgroup.id" => self.place_id(reader, IdKind::Subgroup),
            "subgroup.lane.id" => self.place_id(reader, IdKind::SubgroupLane),
            "subgroup.size" => {
                self.index_type(reader)?;
                Ok(one(self.index(i64::from(self.subgroup_size))))
            }
            "subgroup.count" => {
                self.index_type(reader)?;
                let items = self.workgroup_size.map(|size| size.iter().product::<u32>());
                Ok(one(self.known_index(items.map(|items| items.div_ceil(self.subgroup_size)))))
            }
            "barrier" => self.barrier(reader),
            "exit" => self.exit(reader),
            "assert" => self.assert(reader),
            _ => {
                if let Some(results) = self.collective_op(reader, op)? {
                    return Ok(results);
                }
                if let Some(results) = self.async_op(reader, op)? {
                    return Ok(results);
                }
                self.unknown(
                    reader,
                    "kernel.workitem.id, workitem.dispatch.id, workgroup.id, workgroup.size, workgroup.count, subgroup.id, \
                     subgroup.count, subgroup.size, subgroup.lane.id, barrier, subgroup.shuffle, subgroup.broadcast, \
                     subgroup.broadcast.first, subgroup.reduce, subgroup.scan, subgroup.vote.any, subgroup.vote.all, \
                     subgroup.vote.ballot, subgroup.active.mask, subgroup.match.any, subgroup.match.all, \
                     workgroup.reduce, workgroup.scan, workgroup.vote.any, workgroup.vote.all, workgroup.vote.count, \
                     cluster.id, cluster.size, cluster.count, cluster.workgroup.id, cluster.workgroup.flat_id, exit, \
                     assert, async.copy, async.copy.mask, async.group, async.wait, return",
                )
            }
        }
    }

    pub(super) fn index_type(&mut self, reader: &mut Reader<'m>) -> Built<()> {
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        if self.plain_type(reader)? != Type::Scalar(ScalarType::Index) {
            return refuse(span, format!("`{}` is an index", reader.name()));
        }
        reader.end()
    }

    /// The constant, or while config is unknown, some index.
    fn known_index(&mut self, value: Option<u32>) -> ValueId {
        match value {
            Some(value) => self.index(i64::from(value)),
            None => self.new_value(Type::Scalar(ScalarType::Index)),
        }
    }

    fn axis_id(&mut self, reader: &mut Reader<'m>, kind: fn(Axis) -> IdKind) -> Built<Vec<Binding>> {
        let axis = reader.keyword(AXES, axis)?;
        self.place_id(reader, kind(axis))
    }

    fn place_id(&mut self, reader: &mut Reader<'m>, kind: IdKind) -> Built<Vec<Binding>> {
        self.index_type(reader)?;
        let index = Type::Scalar(ScalarType::Index);
        let Some(size) = self.workgroup_size else {
            return Ok(one(self.emit(OpKind::Id(kind), &[], index)));
        };
        let items: u32 = size.iter().product();
        // An axis of one work-item, or a workgroup of one subgroup, leaves nothing to ask.
        let kind = match kind {
            IdKind::WorkItem(axis) if size[axis.index()] == 1 => return Ok(one(self.index(0))),
            IdKind::Subgroup if items <= self.subgroup_size => return Ok(one(self.index(0))),
            IdKind::Dispatch(axis) if size[axis.index()] == 1 => IdKind::WorkGroup(axis),
            IdKind::SubgroupLane if items <= self.subgroup_size && size[0] == items => IdKind::WorkItem(Axis::X),
            kind => kind,
        };
        if kind == IdKind::WorkItem(Axis::X) && items == 1 {
            return Ok(one(self.index(0)));
        }
        Ok(one(self.emit(OpKind::Id(kind), &[], index)))
    }

    /// `<space> scope(s) ordering(o)`, or `<space> {ordering = o, scope = s}`.
    fn barrier(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let space = reader.keyword("`workgroup` or `global`", |word| match word {
            "workgroup" => Some(false),
            "global" => Some(true),
            _ => None,
        })?;
        let span = reader.here();
        let (scope, ordering) = if reader.peek() == Some(Kind::BraceOpen) {
            let (mut scope, mut ordering) = (None, None);
            for entry in reader.dictionary()? {
                match (entry.key, entry.value) {
                    ("scope", Attribute::Word(word)) => scope = Some(word),
                    ("ordering", Attribute::Word(word)) => ordering = Some(word),
                    _ => {
                        return refuse(entry.span, "legal here: `scope` and `ordering`, each a keyword");
                    }
                }
            }
            (scope, ordering)
        } else {
            let (mut scope, mut ordering) = (None, None);
            while scope.is_none() || ordering.is_none() {
                let legal = "`scope(..)` and `ordering(..)`, each once";
                let (word, at) = reader.word(legal)?;
                let clause = match word {
                    "scope" if scope.is_none() => &mut scope,
                    "ordering" if ordering.is_none() => &mut ordering,
                    _ => return refuse(at, format!("`kernel.barrier`: expected {legal}, found `{word}`")),
                };
                reader.expect(Kind::ParenOpen)?;
                *clause = Some(reader.word("a scope or an ordering")?.0);
                reader.expect(Kind::ParenClose)?;
            }
            (scope, ordering)
        };
        reader.end()?;
        let scope = match (space, scope, ordering) {
            (false, Some("workgroup"), Some("acq_rel")) => BarrierScope::Workgroup,
            (false, Some("subgroup"), Some("acq_rel")) => BarrierScope::Subgroup,
            (true, Some("workgroup"), Some("acquire" | "release" | "acq_rel")) => BarrierScope::Workgroup,
            _ => {
                let [scope, ordering] = [scope, ordering].map(|found| found.unwrap_or("none"));
                let message = format!(
                    "legal barriers: workgroup memory with scope workgroup or subgroup and ordering acq_rel; global memory \
                     with scope workgroup and ordering acquire, release or acq_rel; found {} memory with scope {scope} and \
                     ordering {ordering}",
                    if space { "global" } else { "workgroup" }
                );
                return refuse(span, message);
            }
        };
        self.push(OpKind::Barrier(scope), &[], Vec::new(), Vec::new());
        Ok(Vec::new())
    }
}

fn parameters(names: &[(&str, Span)], types: &[Type]) -> Vec<Parameter> {
    let kind = |ty: &Type| ty.scalar().map_or(ParameterKind::Buffer, ParameterKind::Scalar);
    names.iter().zip(types).map(|((name, _), ty)| Parameter { name: (*name).to_owned(), kind: kind(ty) }).collect()
}
