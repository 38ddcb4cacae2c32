//! Regions, `scf.*`, and calls.
//!
//! - A branch on a constant is not built as a branch, and a loop that never runs is its initial values.
//! - A called function's body is built in place of the call, with only its own names in scope.

use crate::diag::{Built, Refusal, refuse};
use crate::eval;
use crate::facts::Facts;
use crate::ir::{BlockId, Span, ValueId};
use crate::lex::Kind;
use crate::module::Module;
use crate::ops::{IntPredicate, OpKind};
use crate::reader::Reader;
use crate::syntax::{self, Region};
use crate::types::{Dim, ScalarType, Type};

use super::names::{Binding, Layout};
use super::passed::{Passed, fit, unknown_encoding};
use super::prove::Entering;
use super::strides::Loose;
use super::types::{same, without_strides};
use super::{Builder, Mode, one};

/// How a region must end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Terminator {
    Yield,
    Condition,
    FuncReturn,
    TemplateReturn,
    KernelReturn,
    /// As `KernelReturn`, and may be left out.
    Exit,
    LaunchConfig,
    CommandReturn,
    CommandYield,
}

impl Terminator {
    const ALL: [Self; 8] = [
        Self::Yield,
        Self::Condition,
        Self::FuncReturn,
        Self::TemplateReturn,
        Self::KernelReturn,
        Self::LaunchConfig,
        Self::CommandReturn,
        Self::CommandYield,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Yield => "scf.yield",
            Self::Condition => "scf.condition",
            Self::FuncReturn => "func.return",
            Self::TemplateReturn => "template.return",
            Self::KernelReturn | Self::Exit => "kernel.return",
            Self::LaunchConfig => "kernel.launch.config",
            Self::CommandReturn => "command.return",
            Self::CommandYield => "command.yield",
        }
    }
}

/// The most arguments of one signature.
const MAX_PARAMETERS: usize = 256;

/// A function's `(%a: T, ..)`: names, and where each type is written.
pub(super) struct Signature<'m> {
    pub(super) parameters: Vec<(&'m str, Span)>,
    pub(super) types_at: Vec<usize>,
}

impl<'m> Builder<'m> {
    /// Builds the ops of `region` into the current block and reads its terminator: the values it gives.
    ///
    /// Refusals inside are reported here; what comes back is `Reported` if the terminator's values are not known.
    pub(super) fn region_ops(
        &mut self,
        region: &'m Region,
        arguments: Vec<(&'m str, Span, Binding)>,
        ends: Terminator,
    ) -> Built<Vec<ValueId>> {
        let mark = self.names.enter();
        for (name, span, binding) in arguments {
            self.define(name, span, binding);
        }
        let built = self.block_ops(region, ends);
        self.names.leave(mark);
        Ok(built?
            .into_iter()
            .filter_map(|left| if let Binding::Value(value) = left { Some(value) } else { None })
            .collect())
    }

    /// [`Self::region_ops`] in the region of names that is current. Only functions give encodings too.
    pub(super) fn block_ops(&mut self, region: &'m Region, ends: Terminator) -> Built<Vec<Binding>> {
        let close = self.module.tokens[region.close as usize].span;
        let whole = matches!(ends, Terminator::FuncReturn | Terminator::TemplateReturn | Terminator::KernelReturn);
        if whole && (region.blocks.len() > 1 || region.blocks.iter().any(|block| block.label.is_some())) {
            return self.graph_ops(region, ends);
        }
        let [block] = &region.blocks[..] else {
            return refuse(close, "this region has several blocks; only functions and kernels are graphs of blocks");
        };
        if let Some(label) = block.label {
            let span = self.module.tokens[label as usize].span;
            return refuse(span, "only blocks of a function or kernel have labels");
        }
        for (at, op) in block.ops.iter().enumerate() {
            let name = self.module.op_name(op);
            if !Terminator::ALL.into_iter().any(|terminator| terminator.name() == name) {
                self.op(op);
                continue;
            }
            let given = self.returned_by(op, ends);
            if given.is_ok()
                && let Some(after) = block.ops.get(at + 1)
            {
                let span = self.reader(after).span();
                self.report(Refusal::At(span, format!("nothing may follow `{name}` in its region")));
            }
            return given;
        }
        if matches!(ends, Terminator::Yield | Terminator::Exit | Terminator::CommandYield) {
            return Ok(Vec::new());
        }
        refuse(close, format!("this region must end in `{}`", ends.name()))
    }

    /// What the terminator `op` gives.
    pub(super) fn returned_by(&mut self, op: &'m syntax::Op, ends: Terminator) -> Built<Vec<Binding>> {
        let mut reader = self.reader(op);
        if reader.name() != ends.name() {
            return refuse(reader.span(), format!("this region ends in `{}`, found `{}`", ends.name(), reader.name()));
        }
        self.span = reader.span();
        let values = match ends {
            Terminator::FuncReturn | Terminator::TemplateReturn => return self.passed_read(&mut reader),
            Terminator::Yield => self.values_read(&mut reader),
            Terminator::Condition => {
                let operands = self.values_read(&mut reader)?;
                match operands.first() {
                    Some(first) if *self.ty(*first) == Type::Scalar(ScalarType::I1) => Ok(operands),
                    _ => refuse(reader.span(), "`scf.condition` takes an i1 first"),
                }
            }
            Terminator::KernelReturn | Terminator::Exit | Terminator::CommandReturn | Terminator::CommandYield => {
                reader.end().map(|()| Vec::new())
            }
            Terminator::LaunchConfig => self.launch_config(&mut reader),
        };
        Ok(values?.into_iter().map(Binding::Value).collect())
    }

    /// `[%a, %b : t, t]` and the end of the op.
    fn values_read(&mut self, reader: &mut Reader<'m>) -> Built<Vec<ValueId>> {
        if reader.peek() != Some(Kind::Value) {
            reader.end()?;
            return Ok(Vec::new());
        }
        let operands = self.operands(reader)?;
        reader.expect(Kind::Colon)?;
        self.all_typed(reader, operands.iter().map(|(operand, _)| *operand))?;
        reader.end()?;
        Ok(operands.into_iter().map(|(value, _)| value).collect())
    }

    /// `-> (t, t)` or `-> t`, if there.
    pub(super) fn result_types(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Type>> {
        if !reader.accept(Kind::Arrow) {
            return Ok(Vec::new());
        }
        if !reader.accept(Kind::ParenOpen) {
            return Ok(vec![self.plain_type(reader)?]);
        }
        let mut types = Vec::new();
        if reader.accept(Kind::ParenClose) {
            return Ok(types);
        }
        loop {
            types.push(self.plain_type(reader)?);
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::ParenClose)?;
                return Ok(types);
            }
        }
    }

    /// Values that leave a region must have the types promised.
    fn check_leaving(&self, what: &str, span: Span, values: &[ValueId], types: &[Type]) -> Built<()> {
        if values.len() != types.len() {
            return refuse(span, format!("{what}: {} values for {} results", values.len(), types.len()));
        }
        for (value, ty) in values.iter().zip(types) {
            if !same(self.ty(*value), ty) {
                return refuse(span, format!("{what}: a result is {ty}, found {}", self.ty(*value)));
            }
        }
        Ok(())
    }

    /// A region as a block of its own, ended by `kind` with the values it gives.
    fn region_block(
        &mut self,
        region: &'m Region,
        block_arguments: Vec<ValueId>,
        names: Vec<(&'m str, Span, Binding)>,
        ends: Terminator,
    ) -> (BlockId, Built<Vec<ValueId>>) {
        self.in_block(block_arguments, |builder| {
            let values = builder.region_ops(region, names, ends)?;
            let kind = if ends == Terminator::Condition { OpKind::Condition } else { OpKind::Yield };
            builder.flags = crate::ops::Flags::default();
            builder.push(kind, &values, Vec::new(), Vec::new());
            Ok(values)
        })
    }

    fn condition(&mut self, reader: &mut Reader<'m>) -> Built<ValueId> {
        let span = reader.here();
        let condition = self.operand(reader)?;
        self.require(reader, condition, span, ScalarType::I1)?;
        Ok(condition)
    }

    /// `scf.*`.
    pub(super) fn scf_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "if" => self.scf_if(reader),
            "for" => self.scf_for(reader),
            "while" => self.scf_while(reader),
            "switch" => self.scf_switch(reader),
            "lookup" => self.scf_lookup(reader),
            "select" => self.scf_select(reader),
            "schedule.fence" => {
                reader.end()?;
                Ok(Vec::new())
            }
            _ => self.unknown(reader, "scf.if, for, while, switch, lookup, select, yield, condition, schedule.fence"),
        }
    }

    /// Branches as an op of `kind`, all leaving the same types.
    fn branches(
        &mut self,
        kind: OpKind,
        selector: ValueId,
        regions: &[Option<&'m Region>],
        types: &[Type],
        what: &str,
    ) -> Built<Vec<Binding>> {
        let span = self.span;
        // Views made alike in several regions then have the same strides.
        for ty in types {
            if let Type::View(view) = ty {
                self.dense_strides(&view.dims)?;
            }
        }
        let mut blocks = Vec::with_capacity(regions.len());
        let mut reported = false;
        let mut leaving: Vec<Vec<ValueId>> = Vec::with_capacity(regions.len());
        let mut facts: Vec<Facts> = Vec::new();
        for (at, region) in regions.iter().enumerate() {
            let (block, values) = match region {
                Some(region) => {
                    self.entering = match kind {
                        OpKind::If => Some(Entering::Condition(selector, at == 0)),
                        _ => None,
                    };
                    self.region_block(region, Vec::new(), Vec::new(), Terminator::Yield)
                }
                None => self.in_block(Vec::new(), |builder| {
                    builder.push(OpKind::Yield, &[], Vec::new(), Vec::new());
                    Ok(Vec::new())
                }),
            };
            self.span = span;
            blocks.push(block);
            match values.and_then(|values| self.check_leaving(what, span, &values, types).map(|()| values)) {
                Ok(values) => {
                    if at == 0 {
                        facts = values.iter().map(|value| self.facts.get(*value)).collect();
                    } else {
                        for (facts, value) in facts.iter_mut().zip(&values) {
                            *facts = facts.either(self.facts.get(*value));
                        }
                    }
                    leaving.push(values);
                }
                Err(refusal) => {
                    self.report(refusal);
                    reported = true;
                }
            }
        }
        if reported {
            return Err(Refusal::Reported);
        }
        let mut results = Vec::with_capacity(types.len());
        let mut strides = Vec::new();
        for at in 0..types.len() {
            let found: Vec<Type> = leaving.iter().map(|values| self.ty(values[at]).clone()).collect();
            let ty = self.met(found, &blocks, &mut strides);
            results.push(self.new_value(ty));
        }
        for (result, facts) in results.iter().zip(facts) {
            self.facts.refine(*result, facts);
        }
        let all = [results.as_slice(), strides.as_slice()].concat();
        self.push(kind, &[selector], all, blocks);
        Ok(results.into_iter().map(Binding::Value).collect())
    }

    /// The type of what is `found[i]` where block `i` ran. Strides that the blocks do not share leave them as `strides`, further
    /// results of the op that owns them.
    fn met(&mut self, found: Vec<Type>, blocks: &[BlockId], strides: &mut Vec<ValueId>) -> Type {
        let mut met = found[0].clone();
        let Type::View(view) = &mut met else {
            return met;
        };
        for axis in 0..view.strides.len() {
            let each: Vec<Dim> = found
                .iter()
                .map(|ty| if let Type::View(view) = ty { view.strides[axis] } else { Dim::Static(1) })
                .collect();
            let known = |dim: Dim| if let Dim::Value(value) = dim { self.is_visible(value) } else { true };
            if known(each[0]) && each.iter().all(|dim| *dim == each[0]) {
                continue;
            }
            for (block, dim) in blocks.iter().zip(each) {
                let stride = self.dim_value(dim);
                if let Some(end) = self.body.blocks[block.index()].ops.last_mut() {
                    end.operands.push(stride);
                }
            }
            let stride = self.new_value(Type::Scalar(ScalarType::Index));
            strides.push(stride);
            view.strides[axis] = Dim::Value(stride);
        }
        met
    }

    /// Builds one region in place of the op.
    fn taken(&mut self, region: Option<&'m Region>, types: &[Type], what: &str) -> Built<Vec<Binding>> {
        let span = self.span;
        let values = match region {
            Some(region) => self.region_ops(region, Vec::new(), Terminator::Yield)?,
            None => Vec::new(),
        };
        self.check_leaving(what, span, &values, types)?;
        Ok(values.into_iter().map(Binding::Value).collect())
    }

    fn scf_if(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let condition = self.condition(reader)?;
        let types = self.result_types(reader)?;
        let then = reader.region()?;
        let otherwise = if reader.accept_word("else") { Some(reader.region()?) } else { None };
        reader.end()?;
        if otherwise.is_none() && !types.is_empty() {
            return refuse(reader.span(), "`scf.if` with results needs an `else`");
        }
        let condition = self.settled(condition);
        match self.constant_of(condition) {
            Some(bits) if self.mode == Mode::Specialise => {
                self.taken(if bits == 1 { Some(then) } else { otherwise }, &types, "scf.if")
            }
            _ => self.branches(OpKind::If, condition, &[Some(then), otherwise], &types, "scf.if"),
        }
    }

    /// `(%a = %x : T, ..)` or `(%a = %x, %b = %y : T, U)`.
    fn bindings(&mut self, reader: &mut Reader<'m>) -> Built<Vec<(&'m str, Span, ValueId)>> {
        let mut bindings = Vec::new();
        reader.expect(Kind::ParenOpen)?;
        if reader.accept(Kind::ParenClose) {
            return Ok(bindings);
        }
        loop {
            let group = bindings.len();
            loop {
                let (name, span) = reader.value_name()?;
                reader.expect(Kind::Equal)?;
                let value = self.operand(reader)?;
                bindings.push((name, span, value));
                if !reader.accept(Kind::Comma) {
                    break;
                }
            }
            reader.expect(Kind::Colon)?;
            self.all_typed(reader, bindings[group..].iter().map(|(_, _, value)| *value))?;
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::ParenClose)?;
                return Ok(bindings);
            }
        }
    }

    fn scf_for(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let (induction, induction_span) = reader.value_name()?;
        reader.expect(Kind::Equal)?;
        reader.expect(Kind::BracketOpen)?;
        let span = reader.here();
        let low = self.bound(reader, ScalarType::Index)?;
        let ty = match self.ty(low).scalar() {
            Some(ty) if ty.is_address() => ty,
            _ => {
                return refuse(span, format!("a loop bound is an index or offset, found {}", self.ty(low)));
            }
        };
        reader.expect_word("to")?;
        let span = reader.here();
        let high = self.bound(reader, ty)?;
        self.require(reader, high, span, ty)?;
        reader.expect_word("step")?;
        let span = reader.here();
        let step = self.bound(reader, ty)?;
        self.require(reader, step, span, ty)?;
        reader.expect(Kind::BracketClose)?;
        if self.constant_of(step).is_some_and(|step| step as i64 <= 0) {
            return refuse(span, "the step of a loop is positive");
        }
        let carried = if reader.peek() == Some(Kind::ParenOpen) { self.bindings(reader)? } else { Vec::new() };
        let types = self.result_types(reader)?;
        let unroll = self.loop_hints(reader)?;
        let region = reader.region()?;
        reader.end()?;
        let op_span = self.span;
        let inits: Vec<ValueId> = carried.iter().map(|(_, _, value)| *value).collect();
        self.check_leaving("scf.for: initial values", op_span, &inits, &types)?;
        if let (Mode::Specialise, Some(low), Some(high)) = (self.mode, self.constant_of(low), self.constant_of(high)) {
            let predicate = if ty == ScalarType::Index { IntPredicate::Slt } else { IntPredicate::Ult };
            if !eval::compare_int(predicate, ty, low, high) {
                return Ok(inits.into_iter().map(Binding::Value).collect());
            }
        }
        if self.mode == Mode::Specialise {
            let turns = self.constant_turns(low, high, step);
            // A hint: where the number of turns depends on the item or on an argument, the loop stays.
            if let Some(turns) = turns.filter(|turns| self.is_short(*turns, region, unroll, !carried.is_empty())) {
                let names: Vec<(&'m str, Span)> = carried.iter().map(|(name, span, _)| (*name, *span)).collect();
                return self.unrolled(region, (induction, induction_span), (low, step, turns), &names, inits);
            }
        }
        let types: Vec<Type> = inits.iter().map(|init| self.ty(*init).clone()).collect();
        let mut loose = Loose::new();
        let block = loop {
            let attempt = self.attempt();
            let counter = self.new_value(Type::Scalar(ty));
            self.counts(counter, low, high, step);
            let (arguments, strides) = self.carried(&types, &loose);
            let mut names = vec![(induction, induction_span, Binding::Value(counter))];
            let named = carried.iter().zip(&arguments);
            names.extend(named.map(|((name, span, _), argument)| (*name, *span, Binding::Value(*argument))));
            self.entering = Some(Entering::Compare(IntPredicate::Slt, counter, high));
            let arguments = [&[counter], &arguments[..], &strides].concat();
            let (block, values) = self.region_block(region, arguments, names, Terminator::Yield);
            self.span = op_span;
            let values = values?;
            self.check_leaving("scf.for: carried values", op_span, &values, &types)?;
            let changed = self.changed(&values, &types, &loose);
            if changed.is_empty() {
                self.give_strides(block, &values, &loose);
                break block;
            }
            if self.failed(&attempt) {
                return Err(Refusal::Reported);
            }
            loose.extend(changed);
            self.take_back(attempt);
        };
        let operands = [&[low, high, step], &inits[..], &self.loose_strides(&inits, &loose)].concat();
        let (results, strides) = self.carried(&types, &loose);
        self.push(OpKind::For, &operands, [&results[..], &strides].concat(), vec![block]);
        Ok(results.into_iter().map(Binding::Value).collect())
    }

    /// What a loop's bounds say of its variable.
    fn counts(&mut self, at: ValueId, low: ValueId, high: ValueId, step: ValueId) {
        let (low, high, step) = (self.facts.get(low), self.facts.get(high), self.facts.get(step));
        let any = self.facts.get(at);
        // A step that may be negative or zero promises nothing.
        if step.low >= 1 && low.low < high.high {
            let range = Facts { low: low.low, high: high.high - 1, multiple_of: 1 };
            let divides = low.either(step).multiple_of;
            self.facts.refine(at, Facts { multiple_of: divides.max(1), ..any.both(range) });
        }
    }

    /// How often a loop runs, if its bounds and step are constant.
    fn constant_turns(&self, low: ValueId, high: ValueId, step: ValueId) -> Option<u64> {
        let [low, high, step] = [low, high, step].map(|value| self.constant_of(value));
        // The loop runs, and its step is positive: the difference of either type fits.
        Some((high?.wrapping_sub(low?)).div_ceil(step?))
    }

    /// Whether a loop is replaced by its turns, one after the other. One that folds rows of memory stays: that is more to an
    /// executor than what each turn does.
    fn is_short(&self, turns: u64, region: &Region, asked: bool, carries: bool) -> bool {
        const SHORT: u64 = 64;
        const ASKED: u64 = 2048;
        /// Ops of a region, or nothing if unrolling would multiply what must not be: storage.
        fn ops(module: &Module, region: &Region) -> Option<u64> {
            let mut count = 0u64;
            for op in region.blocks.iter().flat_map(|block| &block.ops) {
                count += match module.op_name(op) {
                    "buffer.alloca" => return None,
                    // Calls are built in place; most are short.
                    "func.call" | "func.apply" | "template.apply" | "template.call" => 16,
                    _ => 1,
                };
                for inner in &op.regions {
                    count += ops(module, inner)?;
                }
            }
            Some(count)
        }
        /// Whether a region does nothing but scalar arithmetic on what it loads: an executor takes such turns together.
        fn rows(module: &Module, region: &Region) -> bool {
            let mut loads = false;
            let plain = region.blocks.iter().flat_map(|block| &block.ops).all(|op| {
                let name = module.op_name(op);
                loads |= name == "view.load";
                let known = ["scalar.", "index.", "view.load", "view.store", "scf.yield", "scf.select"];
                op.regions.is_empty() && known.iter().any(|known| name.starts_with(known))
            });
            plain && loads
        }
        if !asked && carries && turns > 1 && rows(self.module, region) {
            return false;
        }
        let most = if asked { ASKED } else { SHORT };
        turns <= most && ops(self.module, region).is_some_and(|ops| turns.saturating_mul(ops) <= most)
    }

    /// The turns of a loop one after the other, with its counter constant in each.
    fn unrolled(
        &mut self,
        region: &'m Region,
        (induction, induction_span): (&'m str, Span),
        (low, step, turns): (ValueId, ValueId, u64),
        carried: &[(&'m str, Span)],
        mut values: Vec<ValueId>,
    ) -> Built<Vec<Binding>> {
        let span = self.span;
        let counter_type = self.ty(low).clone();
        let types: Vec<Type> = values.iter().map(|value| self.ty(*value).clone()).collect();
        let (low, step) = (self.constant_of(low).unwrap_or(0), self.constant_of(step).unwrap_or(1));
        let faults = self.diagnostics.items.len();
        for turn in 0..turns {
            let counter = self.constant(counter_type.clone(), low.wrapping_add(turn.wrapping_mul(step)));
            let mut names = vec![(induction, induction_span, Binding::Value(counter))];
            names.extend(
                carried.iter().zip(&values).map(|((name, span), value)| (*name, *span, Binding::Value(*value))),
            );
            values = self.region_ops(region, names, Terminator::Yield)?;
            self.check_leaving("scf.for: carried values", span, &values, &types)?;
            if self.diagnostics.items.len() > faults {
                // The other turns have the same.
                return Err(Refusal::Reported);
            }
        }
        Ok(values.into_iter().map(Binding::Value).collect())
    }

    /// `pipeline(%d)`, `unroll`, `unroll(%f)`, `schedule(word)`: none changes a result. Whether all turns are asked for.
    fn loop_hints(&mut self, reader: &mut Reader<'m>) -> Built<bool> {
        let mut all = false;
        loop {
            if reader.accept_word("unroll") {
                if reader.accept(Kind::ParenOpen) {
                    let span = reader.here();
                    let factor = self.bound(reader, ScalarType::Index)?;
                    match self.constant_of(factor) {
                        Some(factor) if (factor as i64) < 1 => {
                            return refuse(span, format!("a loop is unrolled by 1 or more, found {}", factor as i64));
                        }
                        None if self.mode == Mode::Specialise => {
                            return refuse(span, "what a loop is unrolled by must be constant once config is bound");
                        }
                        _ => {}
                    }
                    reader.expect(Kind::ParenClose)?;
                } else {
                    all = true;
                }
            } else if reader.accept_word("pipeline") {
                reader.expect(Kind::ParenOpen)?;
                self.bound(reader, ScalarType::Index)?;
                reader.expect(Kind::ParenClose)?;
            } else if reader.accept_word("schedule") {
                reader.expect(Kind::ParenOpen)?;
                let legal = "one of linear, interleaved, recurrence";
                reader.choose(legal, |word| matches!(word, "linear" | "interleaved" | "recurrence").then_some(()))?;
                reader.expect(Kind::ParenClose)?;
            } else {
                return Ok(all);
            }
        }
    }

    fn scf_while(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let carried = if reader.peek() == Some(Kind::ParenOpen) { self.bindings(reader)? } else { Vec::new() };
        let types = self.result_types(reader)?;
        let before = reader.region()?;
        reader.expect_word("do")?;
        let mut forwarded = Vec::new();
        if reader.accept(Kind::ParenOpen) && !reader.accept(Kind::ParenClose) {
            loop {
                let (name, span) = reader.value_name()?;
                reader.expect(Kind::Colon)?;
                forwarded.push((name, span, self.plain_type(reader)?));
                if !reader.accept(Kind::Comma) {
                    reader.expect(Kind::ParenClose)?;
                    break;
                }
            }
        }
        let after = reader.region()?;
        reader.end()?;
        let op_span = self.span;
        let inits: Vec<ValueId> = carried.iter().map(|(_, _, init)| *init).collect();
        let state: Vec<Type> = inits.iter().map(|init| self.ty(*init).clone()).collect();
        let mut loose = Loose::new();
        let (blocks, types, leaving) = loop {
            let attempt = self.attempt();
            let (arguments, strides) = self.carried(&state, &loose);
            let named = carried.iter().zip(&arguments);
            let names = named.map(|((name, span, _), argument)| (*name, *span, Binding::Value(*argument))).collect();
            let arguments = [&arguments[..], &strides].concat();
            let (before, values) = self.region_block(before, arguments, names, Terminator::Condition);
            self.span = op_span;
            let values = values?;
            self.check_leaving("scf.while", op_span, &values[1..], &types)?;
            let found: Vec<Type> = values[1..].iter().map(|value| self.ty(*value).clone()).collect();
            let leaving = self.unseen(&found);
            self.give_strides(before, &values[1..], &leaving);
            if forwarded.len() != found.len() {
                let message = format!("`scf.while` forwards {} values, `do` takes {}", found.len(), forwarded.len());
                return refuse(op_span, message);
            }
            for ((name, span, written), ty) in forwarded.iter().zip(&found) {
                if !same(written, ty) {
                    return refuse(*span, format!("`%{name}` is forwarded as {ty}, found {written}"));
                }
            }
            let (arguments, strides) = self.carried(&found, &leaving);
            let named = forwarded.iter().zip(&arguments);
            let names = named.map(|((name, span, _), argument)| (*name, *span, Binding::Value(*argument))).collect();
            let arguments = [&arguments[..], &strides].concat();
            let (after, values) = self.region_block(after, arguments, names, Terminator::Yield);
            self.span = op_span;
            let values = values?;
            self.check_leaving("scf.while: state", op_span, &values, &state)?;
            let changed = self.changed(&values, &state, &loose);
            if changed.is_empty() {
                self.give_strides(after, &values, &loose);
                break (vec![before, after], found, leaving);
            }
            if self.failed(&attempt) {
                return Err(Refusal::Reported);
            }
            loose.extend(changed);
            self.take_back(attempt);
        };
        let operands = [&inits[..], &self.loose_strides(&inits, &loose)].concat();
        let (results, strides) = self.carried(&types, &leaving);
        self.push(OpKind::While, &operands, [&results[..], &strides].concat(), blocks);
        Ok(results.into_iter().map(Binding::Value).collect())
    }

    fn selector(&mut self, reader: &mut Reader<'m>) -> Built<ValueId> {
        let span = reader.here();
        let selector = self.operand(reader)?;
        self.require(reader, selector, span, ScalarType::Index)?;
        Ok(selector)
    }

    fn scf_switch(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let selector = self.selector(reader)?;
        let types = self.result_types(reader)?;
        reader.expect(Kind::BraceOpen)?;
        let mut keys: Vec<i64> = Vec::new();
        let mut regions = Vec::new();
        let mut default = None;
        while !reader.accept(Kind::BraceClose) {
            let span = reader.here();
            if reader.accept_word("default") {
                if default.replace(reader.region()?).is_some() {
                    return refuse(span, "`scf.switch` has one `default`");
                }
                continue;
            }
            if !reader.accept_word("case") {
                return reader.expected("`case`, `default` or `}`");
            }
            let (key, span) = reader.int()?;
            if keys.last().is_some_and(|last| *last >= key) {
                return refuse(span, "the keys of a switch ascend and are unique");
            }
            keys.push(key);
            regions.push(Some(reader.region()?));
        }
        reader.end()?;
        let Some(default) = default else {
            return refuse(reader.span(), "`scf.switch` needs a `default`");
        };
        if let (Mode::Specialise, Some(selected)) = (self.mode, self.constant_of(selector)) {
            let region = keys.binary_search(&(selected as i64)).map_or(Some(default), |at| regions[at]);
            return self.taken(region, &types, "scf.switch");
        }
        regions.push(Some(default));
        self.branches(OpKind::Switch(keys.into_boxed_slice()), selector, &regions, &types, "scf.switch")
    }

    /// `%sel { 0 = (%x, %y), .. } default(%p, %q) : [index,] T, U`: a chain of selects, the rows being values already.
    fn scf_lookup(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let selector = self.selector(reader)?;
        let mut rows: Vec<(i64, Vec<ValueId>)> = Vec::new();
        reader.expect(Kind::BraceOpen)?;
        while !reader.accept(Kind::BraceClose) {
            if !rows.is_empty() {
                reader.expect(Kind::Comma)?;
            }
            let (key, span) = reader.int()?;
            if rows.last().is_some_and(|(last, _)| *last >= key) {
                return refuse(span, "the keys of a lookup ascend and are unique");
            }
            reader.expect(Kind::Equal)?;
            rows.push((key, self.row(reader)?));
        }
        reader.expect_word("default")?;
        let default = self.row(reader)?;
        reader.expect(Kind::Colon)?;
        // The types of the results, with or without the selector's before them: texts have both.
        let typed = if reader.parts_left() == default.len() { None } else { Some(selector) };
        for (at, value) in typed.iter().chain(&default).enumerate() {
            if at > 0 {
                reader.expect(Kind::Comma)?;
            }
            self.typed(reader, *value)?;
        }
        reader.end()?;
        let types: Vec<Type> = default.iter().map(|value| without_strides(self.ty(*value))).collect();
        let mut results = default;
        for (key, row) in rows {
            self.check_leaving("scf.lookup: a row", self.span, &row, &types)?;
            let key = self.index(key);
            let hit = self.emit(OpKind::CompareI(IntPredicate::Eq), &[selector, key], Type::Scalar(ScalarType::I1));
            for (result, value) in results.iter_mut().zip(row) {
                *result = self.chosen(hit, value, *result);
            }
        }
        Ok(results.into_iter().map(Binding::Value).collect())
    }

    /// `(%x, %y)`.
    fn row(&mut self, reader: &mut Reader<'m>) -> Built<Vec<ValueId>> {
        reader.expect(Kind::ParenOpen)?;
        let values = self.operands(reader)?;
        reader.expect(Kind::ParenClose)?;
        Ok(values.into_iter().map(|(value, _)| value).collect())
    }

    fn scf_select(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let condition = self.condition(reader)?;
        reader.expect(Kind::Comma)?;
        let [a, b] = self.same_operands::<2>(reader)?;
        reader.expect(Kind::Colon)?;
        self.typed(reader, a)?;
        reader.end()?;
        self.check_type(reader, b, &self.ty(a).clone(), reader.span())?;
        Ok(one(self.chosen(condition, a, b)))
    }

    /// `a` if `condition` else `b`. Strides that views do not share are chosen with them.
    fn chosen(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> ValueId {
        let mut ty = self.ty(a).clone();
        if let (Type::View(met), Type::View(other)) = (&mut ty, self.ty(b).clone()) {
            for (stride, other) in met.strides.iter_mut().zip(other.strides) {
                if *stride != other {
                    let (a, b) = (self.dim_value(*stride), self.dim_value(other));
                    let chosen = self.emit(OpKind::Select, &[condition, a, b], Type::Scalar(ScalarType::Index));
                    *stride = self.constant_of(chosen).map_or(Dim::Value(chosen), Dim::Static);
                }
            }
        }
        self.emit(OpKind::Select, &[condition, a, b], ty)
    }

    // Functions.

    /// `(%a: T, ..)`: names at once, types later, when the names have values.
    pub(super) fn signature(&mut self, reader: &mut Reader<'m>) -> Built<Signature<'m>> {
        reader.expect(Kind::ParenOpen)?;
        let mut signature = Signature { parameters: Vec::new(), types_at: Vec::new() };
        if reader.accept(Kind::ParenClose) {
            return Ok(signature);
        }
        loop {
            let (name, span) = reader.value_name()?;
            if signature.parameters.len() == MAX_PARAMETERS {
                return refuse(span, format!("more than {MAX_PARAMETERS} arguments"));
            }
            if signature.parameters.iter().any(|(other, _)| *other == name) {
                return refuse(span, format!("`%{name}` is already a parameter"));
            }
            reader.expect(Kind::Colon)?;
            signature.parameters.push((name, span));
            signature.types_at.push(reader.at);
            let mut depth = 0usize;
            loop {
                match reader.peek() {
                    Some(Kind::Less | Kind::BracketOpen | Kind::ParenOpen) => depth += 1,
                    Some(Kind::Comma | Kind::ParenClose) if depth == 0 => break,
                    Some(Kind::Greater | Kind::BracketClose | Kind::ParenClose) => depth = depth.saturating_sub(1),
                    Some(_) => {}
                    None => return reader.expected("`,` or `)`"),
                }
                reader.at += 1;
            }
            if !reader.accept(Kind::Comma) {
                reader.expect(Kind::ParenClose)?;
                return Ok(signature);
            }
        }
    }

    /// The scalar or buffer type of each parameter of a kernel's signature.
    pub(super) fn abi_types(&mut self, reader: &Reader<'m>, signature: &Signature<'m>) -> Built<Vec<Type>> {
        let mut types = Vec::new();
        for (at, (name, span)) in signature.types_at.iter().zip(&signature.parameters) {
            let mut reader = reader.clone();
            reader.at = *at;
            let ty = self.plain_type(&mut reader)?;
            if !matches!(ty, Type::Scalar(_) | Type::Buffer) {
                return refuse(*span, format!("a kernel's arguments are scalars and buffers; `%{name}` is {ty}"));
            }
            types.push(ty);
        }
        Ok(types)
    }

    /// `func.*` inside a body.
    pub(super) fn func_op(&mut self, reader: &mut Reader<'m>, op: &str) -> Built<Vec<Binding>> {
        match op {
            "apply" => self.apply(reader),
            "call" => {
                self.modifiers(reader, &["pure", "hot", "cold", "inline", "noinline"]);
                let (callee, span) = reader.symbol()?;
                let (arguments, results) = self.call_operands(reader)?;
                self.call(callee, span, &arguments, &results, &["func.def"])
            }
            _ => self.unknown(reader, "func.call, func.apply"),
        }
    }

    pub(super) fn modifiers(&self, reader: &mut Reader<'m>, words: &[&str]) {
        for word in words {
            reader.accept_word(word);
        }
    }

    /// The modifiers of a `func.def` up to its symbol.
    fn function_head(&mut self, reader: &mut Reader<'m>) -> Built<()> {
        loop {
            match reader.peek() {
                // The family, or the symbol.
                Some(Kind::Less) if reader.at == reader.op.rest.start as usize => reader.skip_group()?,
                Some(Kind::Symbol) => {
                    reader.symbol()?;
                    return Ok(());
                }
                Some(Kind::Word) => {
                    let (word, span) = reader.word("a modifier")?;
                    match word {
                        "public" | "retain" | "host" | "device" | "initializer" | "deinitializer" | "pure" | "hot"
                        | "cold" | "inline" | "noinline" => {}
                        "requires" | "priority" => reader.skip_group()?,
                        "target" => self.function_target(reader)?,
                        "abi" | "export" | "import" => {
                            reader.expect(Kind::ParenOpen)?;
                            while !reader.accept(Kind::ParenClose) {
                                reader.attribute()?;
                                reader.accept(Kind::Comma);
                            }
                        }
                        _ => return refuse(span, format!("`{word}` is no modifier of a function")),
                    }
                }
                _ => return reader.expected("a modifier or the function's symbol"),
            }
        }
    }

    /// Builds a function's body into the current block. Without a call, parameters are unknown values.
    pub(super) fn function_body(
        &mut self,
        op: &'m syntax::Op,
        span: Span,
        call: Option<(&[Binding], &[Passed])>,
    ) -> Built<Vec<Binding>> {
        let mut reader = self.reader(op);
        self.function_head(&mut reader)?;
        let signature = self.signature(&mut reader)?;
        let mark = self.names.enter();
        let built = self.function_inner(&mut reader, &signature, span, call);
        self.names.leave(mark);
        built
    }

    fn function_inner(
        &mut self,
        reader: &mut Reader<'m>,
        signature: &Signature<'m>,
        span: Span,
        call: Option<(&[Binding], &[Passed])>,
    ) -> Built<Vec<Binding>> {
        match call {
            Some((arguments, _)) => {
                if let Some(why) = self.parameters_taken(reader, signature, arguments)? {
                    return refuse(span, why);
                }
            }
            None => self.unknown_parameters(reader, signature)?,
        }
        let declared = self.passed_types(reader)?;
        if let Some((_, results)) = call
            && !fit(&declared, results)
        {
            return refuse(span, "the results written here are not those of the function");
        }
        if call.is_some() {
            self.preconditions(reader, span)?;
        } else {
            self.where_clause(reader)?;
        }
        let region = reader.region()?;
        reader.end()?;
        let close = self.module.tokens[region.close as usize].span;
        let ends = if reader.name() == "template.def" { Terminator::TemplateReturn } else { Terminator::FuncReturn };
        let given = self.block_ops(region, ends)?;
        if given.len() != declared.len() {
            return refuse(close, format!("{}: {} values for {} results", ends.name(), given.len(), declared.len()));
        }
        for (given, promised) in given.iter().zip(&declared) {
            if !self.is_passed(given, promised)? {
                let found = self.passed_name(given);
                return refuse(close, format!("{}: a result is {promised}, found {found}", ends.name()));
            }
        }
        Ok(given)
    }

    /// Values to verify a function on its own with: scalars first, since the types of others name them.
    fn unknown_parameters(&mut self, reader: &Reader<'m>, signature: &Signature<'m>) -> Built<()> {
        for pass in 0..2 {
            for (at, (name, span)) in signature.types_at.iter().zip(&signature.parameters) {
                let mut typed = reader.clone();
                typed.at = *at;
                let shaped = matches!(typed.token(), Some(token) if matches!(typed.text(token), "view" | "vector"));
                if shaped != (pass == 1) {
                    continue;
                }
                let binding = if typed.token().is_some_and(|token| typed.text(token) == "encoding") {
                    unknown_encoding(self.encoding_type(&mut typed)?)
                } else {
                    let (ty, layout) = self.introducing(Vec::new(), |builder| builder.written(&mut typed))?;
                    Binding::Value(self.new_placed(ty, layout)?)
                };
                self.define(name, *span, binding);
            }
        }
        Ok(())
    }

    /// A value of which nothing is known but its type.
    pub(super) fn new_placed(&mut self, ty: Type, layout: Layout) -> Built<ValueId> {
        let ty = match ty {
            Type::View(view) => Type::View(self.place(view, layout)?),
            other => other,
        };
        Ok(self.new_value(ty))
    }

    /// Puts the names of the caller away while `build` runs.
    pub(super) fn isolated<T>(&mut self, build: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::take(&mut self.names);
        let built = build(self);
        self.names = outer;
        built
    }
}
