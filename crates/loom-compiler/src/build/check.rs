//! `check.case`, `check.scenario` and `check.benchmark`: text to the program of a check.
//!
//! - Scalars are values of one body: what a literal gives folds, so that it can be an extent; what a parameter, an entropy
//!   value or a call gives is an argument of the entry block.
//! - A body is straight-line and sees nothing from outside but symbols.
//! - Not here: running it (`check::run`).

use std::ops::Range;

use crate::check::{
    Benchmark, Call, Case, Compare, Domain, EntropyId, Literal as Number, MAX_SAMPLES, Matmul, Numeric, Operand,
    Parameter, Relation, Requirement, Step, StepKind, Tensor, TensorId,
};
use crate::diag::{Built, Refusal, refuse};
use crate::ir::{Body, Span, ValueId};
use crate::lex::Kind;
use crate::reader::{Attribute, Reader};
use crate::syntax::{self, Region};
use crate::types::{Dim, ScalarType, Type};

use super::names::{Binding, Host, Layout};
use super::types::{Literal, literal_bits};
use super::{Builder, Place};

const LEGAL: &str = "check.requires, check.skip_if, check.param.range, check.param.choice, check.param.seed, \
    check.literal, check.generate.fill, check.generate.iota, check.generate.random.uniform, check.file.read.npy, \
    check.file.write.npy, check.tensor.view, kernel.launch, kernel.launch.serial, kernel.launch.concurrent, func.call, \
    check.oracle.call, check.expect.equal, check.expect.bitwise, check.expect.close, check.expect.shape, \
    check.expect<key>, check.expect.event, check.trial, check.entropy.fork, check.entropy.read, check.compare, \
    index.*, scalar.*, scf.* and check.return";

/// The most ops of one case.
const MAX_STEPS: usize = 1 << 14;

/// A case being read.
#[derive(Default)]
struct Draft {
    parameters: Vec<Parameter>,
    requirements: Vec<Requirement>,
    tensors: Vec<Tensor>,
    entropies: u32,
    steps: Vec<Step>,
    /// Ops of the current block that are in a step already.
    taken: usize,
    trials: u64,
    all_steps: usize,
}

/// Which ops stand in a region, and how it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Case,
    Scenario,
    Trial,
    Launches,
    Compare,
}

impl<'m> Builder<'m> {
    /// Builds the case or scenario that `op` defines; refusals are reported.
    pub(crate) fn check_case(&mut self, op: &'m syntax::Op) -> Option<Case> {
        self.place = Place::Check;
        self.built = 0;
        self.workgroup_size = None;
        let mut draft = Draft::default();
        let built = self.isolated(|builder| builder.case_def(op, &mut draft));
        let constants = self.constant_ops.len();
        let mut body = self.take_body();
        self.place = Place::Device;
        let name = match built {
            Ok(name) if self.diagnostics.items.is_empty() => name,
            Ok(_) | Err(Refusal::Reported) => return None,
            Err(refusal) => {
                self.report(refusal);
                return None;
            }
        };
        // Constants stand at the head of the entry block.
        shift(&mut draft.steps, constants);
        draft.steps.insert(0, Step { line: 0, kind: StepKind::Compute(Body::ENTRY, 0..constants) });
        body.blocks[0].arguments.clear();
        Some(Case {
            name,
            parameters: draft.parameters,
            requirements: draft.requirements,
            tensors: draft.tensors,
            entropies: draft.entropies as usize,
            body,
            steps: draft.steps,
        })
    }

    fn case_def(&mut self, op: &'m syntax::Op, draft: &mut Draft) -> Built<String> {
        let mut reader = self.reader(op);
        self.span = reader.span();
        reader.accept_word("public");
        let (name, _) = reader.symbol()?;
        let region = reader.region()?;
        reader.end()?;
        let inside = if reader.name() == "check.scenario" { Inside::Scenario } else { Inside::Case };
        self.check_region(region, inside, draft)?;
        let samples = draft.parameters.iter().try_fold(1u64, |all, parameter| {
            all.checked_mul(parameter.domain.count()).filter(|all| *all <= MAX_SAMPLES)
        });
        if samples.is_none() {
            return refuse(reader.span(), format!("`@{name}` has more than {MAX_SAMPLES} samples"));
        }
        Ok(name.to_owned())
    }

    fn check_region(&mut self, region: &'m Region, inside: Inside, draft: &mut Draft) -> Built<()> {
        let close = self.module.tokens[region.close as usize].span;
        let [block] = &region.blocks[..] else {
            return refuse(close, "this region has several blocks; a check is straight-line");
        };
        if let Some(label) = block.label {
            return refuse(self.module.tokens[label as usize].span, "a check is straight-line: it has no labels");
        }
        for (at, op) in block.ops.iter().enumerate() {
            let reader = self.reader(op);
            let name = reader.name();
            let ends = match inside {
                Inside::Case | Inside::Scenario => name == "check.return",
                Inside::Trial | Inside::Compare => matches!(name, "check.yield" | "check.return"),
                Inside::Launches => matches!(name, "check.yield" | "kernel.yield" | "kernel.launch.yield"),
            };
            if ends {
                let mut reader = reader;
                reader.end()?;
                if let Some(after) = block.ops.get(at + 1) {
                    let span = self.reader(after).span();
                    return refuse(span, format!("nothing may follow `{name}` in its region"));
                }
                return Ok(());
            }
            self.check_op(op, inside, draft);
        }
        match inside {
            Inside::Case | Inside::Scenario => refuse(close, "this region must end in `check.return`"),
            Inside::Trial | Inside::Compare | Inside::Launches => Ok(()),
        }
    }

    /// One op of a check: a refusal is reported, and its results are known as that.
    fn check_op(&mut self, op: &'m syntax::Op, inside: Inside, draft: &mut Draft) {
        if self.diagnostics.is_full() {
            return;
        }
        let mut reader = self.reader(op);
        let name = reader.name();
        let family = name.split('.').next().unwrap_or(name);
        let is_host = matches!(family, "index" | "scalar" | "scf" | "config");
        if is_host && matches!(inside, Inside::Case | Inside::Scenario | Inside::Trial) {
            self.op(op);
            self.flush(draft, op);
            return;
        }
        self.span = reader.span();
        draft.all_steps += 1;
        let built = if draft.all_steps > MAX_STEPS {
            refuse(self.span, format!("a check has at most {MAX_STEPS} ops"))
        } else {
            self.check_step(&mut reader, inside, draft)
        };
        let results = match built {
            Ok(results) if results.len() == op.results.len() => results,
            Ok(results) => {
                let message = format!("`{name}` has {} results; {} names are given", results.len(), op.results.len());
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

    /// What was emitted since the last step is computed here.
    fn flush(&mut self, draft: &mut Draft, op: &syntax::Op) {
        let length = self.body.block(self.block).ops.len();
        if length > draft.taken {
            let line = self.line(op);
            let kind = StepKind::Compute(self.block, draft.taken..length);
            draft.steps.push(Step { line, kind });
            draft.taken = length;
        }
    }

    fn line(&self, op: &syntax::Op) -> usize {
        self.line_at(self.module.tokens[op.name as usize].span)
    }

    fn step(&self, reader: &Reader<'m>, draft: &mut Draft, kind: StepKind) {
        let line = self.line_at(reader.span());
        draft.steps.push(Step { line, kind });
    }

    fn line_at(&self, span: Span) -> usize {
        let end = (span.start as usize).min(self.module.source.len());
        1 + self.module.source.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count()
    }

    fn check_step(&mut self, reader: &mut Reader<'m>, inside: Inside, draft: &mut Draft) -> Built<Vec<Binding>> {
        let name = reader.name();
        let misplaced = |wanted: &str| refuse(reader.span(), format!("`{name}` stands in {wanted} only"));
        match inside {
            Inside::Launches if !matches!(name, "kernel.launch" | "func.call") => {
                return refuse(reader.span(), format!("`{name}` in a group of launches; legal: kernel.launch"));
            }
            Inside::Compare if !name.starts_with("check.expect") => {
                return refuse(reader.span(), format!("`{name}` in a comparison; legal: check.expect.*"));
            }
            _ => {}
        }
        let none = Ok(Vec::new());
        match name {
            "check.requires" | "check.skip_if" if inside == Inside::Trial => misplaced("a case or scenario"),
            "check.requires" | "check.skip_if" => self.requirement(reader, draft).and(none),
            "check.param.range" | "check.param.choice" | "check.param.seed" if inside == Inside::Trial => {
                misplaced("a case or scenario")
            }
            "check.param.range" => self.param_range(reader, draft),
            "check.param.choice" => self.param_choice(reader, draft),
            "check.param.seed" => self.param_seed(reader, draft),
            "check.literal" => self.check_literal(reader),
            "check.generate.fill" => self.generate_fill(reader, draft),
            "check.generate.iota" => self.generate_iota(reader, draft),
            "check.generate.random.uniform" => self.generate_uniform(reader, draft),
            "check.file.read.npy" => self.read_npy(reader, draft),
            "check.file.write.npy" => self.write_npy(reader, draft).and(none),
            "check.tensor.view" => self.tensor_view(reader, draft),
            "kernel.launch" => self.launch(reader, draft).and(none),
            "kernel.launch.serial" | "kernel.launch.concurrent" => {
                // A group's launches have no order, or this one.
                let region = reader.region()?;
                reader.end()?;
                self.check_region(region, Inside::Launches, draft).and(none)
            }
            "func.call" => self.check_call(reader, draft),
            "check.oracle.call" => self.oracle(reader, draft),
            "check.expect.equal" | "check.expect.bitwise" | "check.expect.close" => {
                self.expect(reader, draft).and(none)
            }
            "check.expect.shape" => self.expect_shape(reader, draft).and(none),
            "check.expect" => {
                let key = self.key(reader)?;
                self.skip_rest(reader);
                let what = format!("comparator `{key}` is not registered");
                self.step(reader, draft, StepKind::Unsupported { what });
                none
            }
            "check.expect.event" => self.expect_event(reader, draft).and(none),
            "check.trial" if inside != Inside::Scenario => misplaced("a scenario"),
            "check.trial" => self.trial(reader, draft).and(none),
            "check.entropy.fork" | "check.entropy.read" | "check.compare" if inside != Inside::Trial => {
                misplaced("a trial")
            }
            "check.entropy.fork" => self.entropy_fork(reader, draft),
            "check.entropy.read" => self.entropy_read(reader, draft),
            "check.compare" => self.check_compare(reader, draft).and(none),
            _ => refuse(reader.span(), format!("`{name}` is no op of a check; legal: {LEGAL}")),
        }
    }

    /// `check.expect.event<device> [{type = "..", count = n, ..}]`: what is given of an event must be so, and `count` events
    /// of the sample, one without, must match.
    fn expect_event(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<()> {
        const TYPES: [&str; 7] =
            ["asan_report", "ubsan_report", "tsan_report", "driver_failure", "printf", "host_call", "none"];
        const SEVERITIES: [&str; 5] = ["trace", "info", "warning", "error", "fatal"];
        let provider = self.key(reader)?;
        if provider != "device" {
            self.skip_rest(reader);
            let what = format!("events of `{provider}` are not registered");
            self.step(reader, draft, StepKind::Unsupported { what });
            return Ok(());
        }
        let (mut count, mut seen) = (1, None);
        for entry in reader.dictionary()? {
            let one_of = |legal: &[&'static str]| {
                let found = match &entry.value {
                    Attribute::Text(text) => legal.iter().find(|known| *known == text),
                    _ => None,
                };
                match found {
                    Some(known) => Ok(*known),
                    None => {
                        let message = format!("`{}` of an event; legal: {}", entry.key, legal.join(", "));
                        refuse(entry.value_span, message)
                    }
                }
            };
            match entry.key {
                "count" => match entry.value {
                    Attribute::Int(value) if value >= 0 => count = value as u64,
                    _ => return refuse(entry.value_span, "`count` is an integer that is not negative"),
                },
                // An access outside its buffer is the one report that every device here makes.
                "type" => seen = one_of(&TYPES)?.eq("asan_report").then_some("asan_report"),
                "severity" => one_of(&SEVERITIES).map(|_| ())?,
                "driver" | "device" | "source_file" | "function" | "operation" => {
                    if !matches!(entry.value, Attribute::Text(_)) {
                        return refuse(entry.value_span, format!("`{}` is a text", entry.key));
                    }
                }
                "physical_device" | "queue" | "export" | "site_id" => {
                    if !matches!(entry.value, Attribute::Int(_)) {
                        return refuse(entry.value_span, format!("`{}` is an integer", entry.key));
                    }
                }
                // What a report says of itself: looked at no further.
                "asan" | "ubsan" | "tsan" => {
                    if !matches!(entry.value, Attribute::Other) {
                        return refuse(entry.value_span, format!("`{}` is `{{key = value, ..}}`", entry.key));
                    }
                }
                key => {
                    let message = format!(
                        "`{key}` is nothing of an event; legal: count, type, severity, driver, device, physical_device, queue, \
                         export, site_id, source_file, function, operation, asan, ubsan, tsan"
                    );
                    return refuse(entry.span, message);
                }
            }
        }
        reader.end()?;
        self.step(reader, draft, StepKind::Events { count, seen });
        Ok(())
    }

    /// Whatever is left of an op that this version does not look into.
    fn skip_rest(&self, reader: &mut Reader<'m>) {
        reader.at = reader.op.rest.end as usize;
    }

    // Clauses.

    /// `word(`.
    fn open(&self, reader: &mut Reader<'m>, word: &str) -> Built<()> {
        reader.expect_word(word)?;
        reader.expect(Kind::ParenOpen).map(|_| ())
    }

    fn close(&self, reader: &mut Reader<'m>) -> Built<()> {
        reader.expect(Kind::ParenClose).map(|_| ())
    }

    /// Whether the next token is this word.
    fn at_word(reader: &Reader<'m>, word: &str) -> bool {
        reader.clone().accept_word(word)
    }

    /// `[name("m")]`: else the name of the op's result.
    fn param_name(&self, reader: &mut Reader<'m>) -> Built<String> {
        if Self::at_word(reader, "name") {
            self.open(reader, "name")?;
            let name = reader.string()?;
            self.close(reader)?;
            return Ok(name);
        }
        let result = reader.op.results.first().map(|token| reader.text_at(*token)[1..].to_owned());
        Ok(result.unwrap_or_default())
    }

    /// `<provider.key>`.
    fn key(&self, reader: &mut Reader<'m>) -> Built<String> {
        reader.expect(Kind::Less)?;
        let key = match reader.token() {
            Some(token) if matches!(token.kind, Kind::OpName | Kind::Word) => {
                reader.at += 1;
                reader.text(token).to_owned()
            }
            _ => return reader.expected("a key such as `target.feature`"),
        };
        reader.expect(Kind::Greater)?;
        Ok(key)
    }

    /// A number, as written, that is one of type `ty`.
    fn number(&mut self, reader: &mut Reader<'m>, ty: ScalarType) -> Built<(Number, u64)> {
        let (literal, span) = self.literal(reader)?;
        let bits = literal_bits(literal, ty).or_else(|message| refuse(span, message))?;
        let number = match literal {
            Literal::Int(value) => Number::Int(value),
            Literal::Bool(value) => Number::Int(value.into()),
            Literal::Float(value) => Number::Float(value),
        };
        Ok((number, bits))
    }

    fn scalar_type(&mut self, reader: &mut Reader<'m>) -> Built<ScalarType> {
        let span = reader.here();
        match self.plain_type(reader)? {
            Type::Scalar(ty) => Ok(ty),
            other => refuse(span, format!("`{}`: expected a scalar type, found {other}", reader.name())),
        }
    }

    /// The scalar type behind the op's last `:`, read ahead: literals come before it.
    fn type_ahead(&mut self, reader: &Reader<'m>) -> Built<ScalarType> {
        let mut ahead = self.ahead(reader)?;
        self.scalar_type(&mut ahead)
    }

    /// The element type of the tensor behind the op's last `:`.
    fn element_ahead(&mut self, reader: &Reader<'m>) -> Built<ScalarType> {
        let mut ahead = self.ahead(reader)?;
        self.tensor_type(&mut ahead).map(|(element, _)| element)
    }

    fn ahead(&self, reader: &Reader<'m>) -> Built<Reader<'m>> {
        let mut ahead = reader.clone();
        let mut depth = 0usize;
        while let Some(kind) = ahead.peek() {
            ahead.at += 1;
            match kind {
                Kind::ParenOpen | Kind::BracketOpen | Kind::BraceOpen | Kind::Less => depth += 1,
                Kind::ParenClose | Kind::BracketClose | Kind::BraceClose | Kind::Greater => {
                    depth = depth.saturating_sub(1);
                }
                Kind::Colon if depth == 0 => return Ok(ahead),
                _ => {}
            }
        }
        ahead.expected("`:` and a type")
    }

    /// `tensor<4x[%n]xf32>`. A record behind the element type says what its elements stand for; they lie row by row.
    fn tensor_type(&mut self, reader: &mut Reader<'m>) -> Built<(ScalarType, Vec<Dim>)> {
        let span = reader.here();
        if !reader.accept_word("tensor") {
            return reader.expected("a tensor type such as `tensor<4x[%n]xf32>`");
        }
        let (dims, element) = self.dims_and_element(reader)?;
        if reader.accept(Kind::Comma) {
            let span = reader.here();
            if self.layout(reader, dims.len())? != Layout::Dense {
                return refuse(
                    span,
                    "the elements of a tensor of a check lie row by row; legal: `#dense`, or a record",
                );
            }
        }
        reader.expect(Kind::Greater)?;
        if element == ScalarType::I1 {
            return refuse(span, "a tensor of i1 has no layout in memory; use i8");
        }
        Ok((element, dims))
    }

    /// `: tensor<..>` and the end of the op: a new tensor.
    fn tensor_result(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<TensorId> {
        reader.expect(Kind::Colon)?;
        let tensor = self.tensor_written(reader, draft)?;
        reader.end()?;
        Ok(tensor)
    }

    fn tensor_written(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<TensorId> {
        let (element, dims) = self.tensor_type(reader)?;
        let name = reader.op.results.first().map_or("", |token| &reader.text_at(*token)[1..]).to_owned();
        let id = TensorId(draft.tensors.len() as u32);
        draft.tensors.push(Tensor { name, element, dims });
        Ok(id)
    }

    fn tensor_named(&self, name: &str, span: Span) -> Built<TensorId> {
        match self.names.get(name) {
            Some(Binding::Host(Host::Tensor(id))) => Ok(*id),
            Some(Binding::Reported) => Err(Refusal::Reported),
            Some(_) => refuse(span, format!("`%{name}` is no tensor")),
            None => self.value_named(name, span).and(Err(Refusal::Reported)),
        }
    }

    fn tensor_operand(&self, reader: &mut Reader<'m>) -> Built<TensorId> {
        let (name, span) = reader.value_name()?;
        self.tensor_named(name, span)
    }

    /// The written type must be that of the tensor.
    fn tensor_typed(&mut self, reader: &mut Reader<'m>, id: TensorId, draft: &Draft) -> Built<()> {
        let span = reader.here();
        let (element, dims) = self.tensor_type(reader)?;
        let tensor = &draft.tensors[id.0 as usize];
        if (tensor.element, &tensor.dims) != (element, &dims) {
            let message = format!(
                "the type written is {}, that of `%{}` is {}",
                spelled(element, &dims),
                tensor.name,
                spelled(tensor.element, &tensor.dims)
            );
            return refuse(span, message);
        }
        Ok(())
    }

    /// A scalar or tensor.
    fn check_operand(&mut self, reader: &mut Reader<'m>) -> Built<Operand> {
        let (name, span) = reader.value_name()?;
        match self.names.get(name) {
            Some(Binding::Host(Host::Tensor(id))) => Ok(Operand::Tensor(*id)),
            _ => self.value_named(name, span).map(Operand::Scalar),
        }
    }

    fn operand_typed(&mut self, reader: &mut Reader<'m>, operand: Operand, draft: &Draft) -> Built<()> {
        match operand {
            Operand::Tensor(id) => self.tensor_typed(reader, id, draft),
            Operand::Scalar(value) => {
                if Self::at_word(reader, "tensor") {
                    let found = self.ty(value);
                    return refuse(reader.here(), format!("the type written is a tensor, the value's is {found}"));
                }
                self.typed(reader, value)
            }
        }
    }

    // Requirements and parameters.

    fn requirement(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<()> {
        let provider = self.key(reader)?;
        let entries = reader.dictionary()?.into_iter().map(|entry| {
            let value = match entry.value {
                Attribute::Int(value) => Some(value.to_string()),
                Attribute::Float(value) => Some(value.to_string()),
                Attribute::Text(text) => Some(text),
                Attribute::Word(word) => Some(word.to_owned()),
                Attribute::Other => None,
            };
            (entry.key.to_owned(), value)
        });
        let entries = entries.collect();
        let mut skip_reason = None;
        if reader.name() == "check.skip_if" {
            self.open(reader, "reason")?;
            skip_reason = Some(reader.string()?);
            self.close(reader)?;
        }
        reader.end()?;
        draft.requirements.push(Requirement { provider, entries, skip_reason });
        Ok(())
    }

    fn parameter(
        &mut self,
        reader: &Reader<'m>,
        draft: &mut Draft,
        (name, ty, domain): (String, ScalarType, Domain),
    ) -> Built<Vec<Binding>> {
        if draft.parameters.iter().any(|other| other.name == name) {
            return refuse(reader.span(), format!("two parameters are called `{}`", name.escape_debug()));
        }
        let value = self.new_value(Type::Scalar(ty));
        draft.parameters.push(Parameter { name, ty, domain, value });
        Ok(super::one(value))
    }

    /// `linear bounds(1 to 64) [step(4)] [name("m")] : index`, or `po2`.
    fn param_range(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let ty = self.type_ahead(reader)?;
        let powers = reader.choose("linear or po2", |word| match word {
            "linear" => Some(false),
            "po2" => Some(true),
            _ => None,
        })?;
        self.open(reader, "bounds")?;
        let (low, _) = self.number(reader, ty)?;
        reader.expect_word("to")?;
        let span = reader.here();
        let (high, _) = self.number(reader, ty)?;
        self.close(reader)?;
        let step_span = reader.here();
        let step = if Self::at_word(reader, "step") {
            self.open(reader, "step")?;
            let (step, _) = self.number(reader, ty)?;
            self.close(reader)?;
            Some(step)
        } else {
            None
        };
        let name = self.param_name(reader)?;
        reader.expect(Kind::Colon)?;
        self.scalar_type(reader)?;
        reader.end()?;
        let domain = match (low, high, step) {
            (Number::Int(low), Number::Int(high), step) if powers => {
                if step.is_some() {
                    return refuse(step_span, "powers of two have no `step`");
                }
                let first = power_from(low.max(1)).filter(|first| *first <= high);
                let Some(first) = first else {
                    return refuse(span, format!("no power of two lies in {low} to {high}"));
                };
                let count = u64::from(high.ilog2() - first.ilog2() + 1);
                Domain::PowersOfTwo { first, count }
            }
            (Number::Int(low), Number::Int(high), step) => {
                let step = match step {
                    None => 1,
                    Some(Number::Int(step)) if step > 0 => step,
                    Some(_) => return refuse(step_span, "a step is above zero"),
                };
                if low > high {
                    return refuse(span, format!("{low} to {high} is empty: the first bound is the lower one"));
                }
                let count = (i128::from(high) - i128::from(low)) / i128::from(step) + 1;
                Domain::Linear { first: low, step, count: u64::try_from(count).unwrap_or(u64::MAX) }
            }
            (Number::Float(_), ..) if powers => return refuse(step_span, "powers of two are of an integer type"),
            (Number::Float(low), Number::Float(high), Some(Number::Float(step))) => {
                if !(low <= high && low.is_finite() && high.is_finite()) {
                    return refuse(span, "the bounds are finite, the first one the lower");
                }
                if !(step > 0.0 && step.is_finite()) {
                    return refuse(step_span, "a step is finite and above zero");
                }
                // A cast saturates; more samples than are legal are refused later.
                let count = (((high - low) / step).floor() as u64).saturating_add(1);
                Domain::LinearFloat { first: low, step, count }
            }
            _ => return refuse(step_span, "a range of floats needs a `step(..)`"),
        };
        self.parameter(reader, draft, (name, ty, domain))
    }

    /// `values([1, 7, 64]) [name("k")] : index`.
    fn param_choice(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let ty = self.type_ahead(reader)?;
        if ty.is_float() || ty == ScalarType::I1 {
            return refuse(reader.span(), format!("a choice is of an integer type other than i1, found {ty}"));
        }
        self.open(reader, "values")?;
        reader.expect(Kind::BracketOpen)?;
        let mut values = Vec::new();
        loop {
            if let (Number::Int(value), _) = self.number(reader, ty)? {
                values.push(value);
            }
            if !reader.accept(Kind::Comma) {
                break;
            }
        }
        reader.expect(Kind::BracketClose)?;
        self.close(reader)?;
        let name = self.param_name(reader)?;
        reader.expect(Kind::Colon)?;
        self.scalar_type(reader)?;
        reader.end()?;
        self.parameter(reader, draft, (name, ty, Domain::Choice(values)))
    }

    /// `base(0x1234) count(8) [name("seed")] : i64`.
    fn param_seed(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let ty = self.type_ahead(reader)?;
        if ty.is_float() || ty == ScalarType::I1 {
            return refuse(reader.span(), format!("a seed is an integer, found {ty}"));
        }
        self.open(reader, "base")?;
        let (base, _) = self.number(reader, ty)?;
        self.close(reader)?;
        self.open(reader, "count")?;
        let (count, span) = reader.int()?;
        self.close(reader)?;
        let name = self.param_name(reader)?;
        reader.expect(Kind::Colon)?;
        self.scalar_type(reader)?;
        reader.end()?;
        let (Number::Int(first), Ok(count @ 1..)) = (base, u64::try_from(count)) else {
            return refuse(span, format!("a count of seeds is at least 1, found {count}"));
        };
        self.parameter(reader, draft, (name, ty, Domain::Linear { first, step: 1, count }))
    }

    // Values.

    fn check_literal(&mut self, reader: &mut Reader<'m>) -> Built<Vec<Binding>> {
        let ty = self.type_ahead(reader)?;
        self.open(reader, "value")?;
        let (_, bits) = self.number(reader, ty)?;
        self.close(reader)?;
        reader.expect(Kind::Colon)?;
        self.scalar_type(reader)?;
        reader.end()?;
        Ok(super::one(self.constant(Type::Scalar(ty), bits)))
    }

    fn generate_fill(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let ty = self.element_ahead(reader)?;
        self.open(reader, "value")?;
        let (_, bits) = self.number(reader, ty)?;
        self.close(reader)?;
        let to = self.tensor_result(reader, draft)?;
        self.step(reader, draft, StepKind::Fill { to, bits });
        Ok(tensor(to))
    }

    fn generate_iota(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let ty = self.element_ahead(reader)?;
        self.open(reader, "offset")?;
        let (offset, _) = self.number(reader, ty)?;
        self.close(reader)?;
        self.open(reader, "step")?;
        let (step, _) = self.number(reader, if ty == ScalarType::Offset { ScalarType::I64 } else { ty })?;
        self.close(reader)?;
        let mut period = None;
        if Self::at_word(reader, "period") {
            self.open(reader, "period")?;
            let (value, span) = reader.int()?;
            self.close(reader)?;
            let Ok(value @ 1..) = u64::try_from(value) else {
                return refuse(span, format!("a period is at least 1, found {value}"));
            };
            period = Some(value);
        }
        let to = self.tensor_result(reader, draft)?;
        self.step(reader, draft, StepKind::Iota { to, offset, step, period });
        Ok(tensor(to))
    }

    fn generate_uniform(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let ty = self.element_ahead(reader)?;
        if matches!(ty, ScalarType::F8E4M3 | ScalarType::F8E5M2) {
            return refuse(reader.span(), format!("no generator is defined for {ty}; generate i8 and view it"));
        }
        self.open(reader, "seed")?;
        let span = reader.here();
        let seed = if reader.peek() == Some(Kind::Int) {
            let (value, _) = reader.int()?;
            self.constant(Type::Scalar(ScalarType::I64), value as u64)
        } else {
            self.operand(reader)?
        };
        match self.ty(seed) {
            Type::Scalar(ty) if !ty.is_float() => {}
            other => return refuse(span, format!("a seed is an integer, found {other}")),
        }
        self.close(reader)?;
        self.open(reader, "range")?;
        let span = reader.here();
        let (low, _) = self.number(reader, ty)?;
        reader.expect_word("to")?;
        let (high, _) = self.number(reader, ty)?;
        let ordered = match (low, high) {
            (Number::Int(low), Number::Int(high)) => low <= high,
            (Number::Float(low), Number::Float(high)) => low <= high && (high - low).is_finite(),
            _ => false,
        };
        if !ordered {
            return refuse(span, "a range goes from its lower end to its upper, both finite");
        }
        self.close(reader)?;
        let to = self.tensor_result(reader, draft)?;
        self.step(reader, draft, StepKind::Uniform { to, seed, low, high });
        Ok(tensor(to))
    }

    fn path(&self, reader: &mut Reader<'m>) -> Built<String> {
        self.open(reader, "path")?;
        let path = reader.string()?;
        self.close(reader)?;
        Ok(path)
    }

    fn read_npy(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let path = self.path(reader)?;
        let to = self.tensor_result(reader, draft)?;
        self.step(reader, draft, StepKind::Read { to, path });
        Ok(tensor(to))
    }

    fn write_npy(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<()> {
        self.open(reader, "value")?;
        let from = self.tensor_operand(reader)?;
        self.close(reader)?;
        let path = self.path(reader)?;
        let mut on_failure = false;
        if Self::at_word(reader, "mode") {
            self.open(reader, "mode")?;
            on_failure = reader.choose("always or on_failure", |word| match word {
                "always" => Some(false),
                "on_failure" => Some(true),
                _ => None,
            })?;
            self.close(reader)?;
        }
        reader.expect(Kind::Colon)?;
        self.tensor_typed(reader, from, draft)?;
        reader.end()?;
        self.step(reader, draft, StepKind::Write { from, path, on_failure });
        Ok(())
    }

    fn tensor_view(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let from = self.tensor_operand(reader)?;
        self.open(reader, "offset")?;
        let span = reader.here();
        let offset = if reader.peek() == Some(Kind::Int) {
            let (value, _) = reader.int()?;
            if value < 0 {
                return refuse(span, format!("a byte offset is not negative, found {value}"));
            }
            self.constant(Type::Scalar(ScalarType::Offset), value as u64)
        } else {
            self.operand(reader)?
        };
        if !matches!(self.ty(offset), Type::Scalar(ScalarType::Offset | ScalarType::Index)) {
            return refuse(span, "a byte offset is an integer, an offset or an index");
        }
        self.close(reader)?;
        reader.expect(Kind::Colon)?;
        self.tensor_typed(reader, from, draft)?;
        reader.expect(Kind::Arrow)?;
        let to = self.tensor_written(reader, draft)?;
        reader.end()?;
        self.step(reader, draft, StepKind::View { to, from, offset });
        Ok(tensor(to))
    }

    // Invocations.

    /// Workload and launch argument types of the kernel `name`.
    fn kernel_types(&mut self, name: &str, span: Span) -> Built<KernelTypes> {
        let module = self.module;
        let Some(op) = module.symbols.get(name).map(|at| &module.ops[*at]) else {
            return refuse(span, format!("`@{name}` is not defined; a launch needs a `kernel.def`"));
        };
        let kind = module.op_name(op);
        if kind != "kernel.def" && kind != "kernel.decl" {
            return refuse(span, format!("`@{name}` is a `{kind}`; a launch needs a `kernel.def`"));
        }
        let mut reader = self.reader(op);
        // Modifiers are verified with the kernel.
        while reader.peek().is_some_and(|kind| kind != Kind::Symbol) {
            if reader.accept_word("target") {
                reader.expect(Kind::ParenOpen)?;
                while reader.token().is_some() && !reader.accept(Kind::ParenClose) {
                    reader.at += 1;
                }
            } else {
                reader.at += 1;
            }
        }
        reader.symbol()?;
        let workload = self.signature(&mut reader)?;
        if kind == "kernel.def" {
            reader.region()?;
        }
        reader.expect_word("launch")?;
        // Before June 2026 one list stood for both.
        let launch = if reader.peek() == Some(Kind::ParenOpen) { Some(self.signature(&mut reader)?) } else { None };
        let arguments = self.abi_types(&reader, launch.as_ref().unwrap_or(&workload))?;
        let one_list = launch.is_none();
        let workload = match launch {
            Some(_) => self.abi_types(&reader, &workload)?,
            None => arguments.iter().filter(|ty| **ty != Type::Buffer).cloned().collect(),
        };
        Ok(KernelTypes { workload, arguments, one_list })
    }

    /// The workload of a launch that fits the kernel. Where one list stands for both, the scalars in it are the workload, and
    /// a launch need not repeat them in brackets.
    fn workload(&mut self, kernel: &str, span: Span, given: &[Operand], arguments: &[Operand]) -> Built<Vec<ValueId>> {
        let types = self.kernel_types(kernel, span)?;
        let repeated = if types.one_list && given.is_empty() { arguments } else { given };
        let repeated: Vec<Operand> = repeated
            .iter()
            .copied()
            .filter(|operand| !types.one_list || matches!(operand, Operand::Scalar(_)))
            .collect();
        self.fits("workload", span, &repeated, &types.workload)?;
        self.fits("launch", span, arguments, &types.arguments)?;
        Ok(scalars(&repeated))
    }

    fn fits(&self, what: &str, span: Span, given: &[Operand], wanted: &[Type]) -> Built<()> {
        if given.len() != wanted.len() {
            let message = format!("{} {what} arguments are given, the kernel has {}", given.len(), wanted.len());
            return refuse(span, message);
        }
        for (at, (given, wanted)) in given.iter().zip(wanted).enumerate() {
            match (given, wanted) {
                (Operand::Tensor(_), Type::Buffer) => {}
                (Operand::Scalar(value), wanted) if self.ty(*value) == wanted => {}
                (Operand::Tensor(_), wanted) => {
                    return refuse(span, format!("{what} argument {at} is a tensor, the kernel takes {wanted}"));
                }
                (Operand::Scalar(value), wanted) => {
                    let found = self.ty(*value);
                    return refuse(span, format!("{what} argument {at} is {found}, the kernel takes {wanted}"));
                }
            }
        }
        Ok(())
    }

    /// `(%a, %b)`, or `[%a, %b]`; may be empty.
    fn operand_list(&mut self, reader: &mut Reader<'m>, open: Kind, close: Kind) -> Built<Vec<Operand>> {
        reader.expect(open)?;
        let mut operands = Vec::new();
        if reader.accept(close) {
            return Ok(operands);
        }
        loop {
            operands.push(self.check_operand(reader)?);
            if !reader.accept(Kind::Comma) {
                reader.expect(close)?;
                return Ok(operands);
            }
        }
    }

    /// The same number of types, in the same brackets.
    fn type_list(
        &mut self,
        reader: &mut Reader<'m>,
        (open, close): (Kind, Kind),
        operands: &[Operand],
        draft: &Draft,
    ) -> Built<()> {
        reader.expect(open)?;
        for (at, operand) in operands.iter().enumerate() {
            if at > 0 {
                reader.expect(Kind::Comma)?;
            }
            self.operand_typed(reader, *operand, draft)?;
        }
        reader.expect(close).map(|_| ())
    }

    /// `[%w](%a, %b) : [index](index, tensor<..>)`: workload and launch arguments; the brackets stand where there is a workload.
    fn launch_operands(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<(Vec<Operand>, Vec<Operand>)> {
        let has_workload = reader.peek() == Some(Kind::BracketOpen);
        let mut workload = Vec::new();
        if has_workload {
            workload = self.operand_list(reader, Kind::BracketOpen, Kind::BracketClose)?;
        }
        let arguments = self.operand_list(reader, Kind::ParenOpen, Kind::ParenClose)?;
        reader.expect(Kind::Colon)?;
        if has_workload {
            self.type_list(reader, (Kind::BracketOpen, Kind::BracketClose), &workload, draft)?;
        }
        self.type_list(reader, (Kind::ParenOpen, Kind::ParenClose), &arguments, draft)?;
        Ok((workload, arguments))
    }

    /// `@k[%w](%a, %b) : [index](index, tensor<..>)`.
    fn launch(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<()> {
        let (kernel, span) = reader.symbol()?;
        let (workload, arguments) = self.launch_operands(reader, draft)?;
        reader.end()?;
        let workload = self.workload(kernel, span, &workload, &arguments)?;
        self.step(reader, draft, StepKind::Launch { kernel: kernel.to_owned(), workload, arguments });
        Ok(())
    }

    /// `[pure] @f(%a) : (T) -> (T)`: a function of the host, or a kernel in June's spelling.
    fn check_call(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        for word in ["pure", "hot", "cold", "inline", "noinline"] {
            reader.accept_word(word);
        }
        let (callee, span) = reader.symbol()?;
        let arguments = self.operand_list(reader, Kind::ParenOpen, Kind::ParenClose)?;
        reader.expect(Kind::Colon)?;
        self.type_list(reader, (Kind::ParenOpen, Kind::ParenClose), &arguments, draft)?;
        let types = self.result_types(reader)?;
        reader.end()?;
        let call = self.callee(callee, span, arguments, &types)?;
        if call.kernel {
            let Call { callee: kernel, workload, arguments, .. } = call;
            self.step(reader, draft, StepKind::Launch { kernel, workload, arguments });
            return Ok(Vec::new());
        }
        let results: Vec<ValueId> = call.results.iter().map(|ty| self.new_value(Type::Scalar(*ty))).collect();
        let bindings = results.iter().map(|value| Binding::Value(*value)).collect();
        self.step(reader, draft, StepKind::Call { call, results });
        Ok(bindings)
    }

    /// What `callee` is, and that it takes these arguments and gives these results.
    fn callee(&mut self, callee: &str, span: Span, arguments: Vec<Operand>, results: &[Type]) -> Built<Call> {
        let module = self.module;
        let kind = module.symbols.get(callee).map(|at| module.op_name(&module.ops[*at]));
        let kernel = matches!(kind, Some("kernel.def" | "kernel.decl"));
        let mut workload = Vec::new();
        if kernel {
            let types = self.kernel_types(callee, span)?;
            if !types.workload.is_empty() && !types.one_list {
                let message = format!("`@{callee}` takes a workload: launch it by `kernel.launch @{callee}[..](..)`");
                return refuse(span, message);
            }
            if !results.is_empty() {
                return refuse(span, format!("`@{callee}` is a kernel, and has no results"));
            }
            workload = self.workload(callee, span, &[], &arguments)?;
        } else if kind != Some("func.def") {
            let found = kind.map_or("not defined".to_owned(), |kind| format!("a `{kind}`"));
            return refuse(span, format!("`@{callee}` is {found}; a call needs a `func.def` or a kernel"));
        }
        let mut types = Vec::new();
        for result in results {
            let Type::Scalar(ty) = result else {
                return refuse(span, format!("a function called from a check gives scalars, found {result}"));
            };
            types.push(*ty);
        }
        Ok(Call { callee: callee.to_owned(), kernel, workload, arguments, results: types })
    }

    /// `<reference.matmul> [{..}] callee(@f) inputs(%a, %b[, %c]) : (T, T) -> (T)`.
    fn oracle(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let key = self.key(reader)?;
        let kinds = reader.dictionary()?;
        self.open(reader, "callee")?;
        let (callee, span) = reader.symbol()?;
        if !self.module.symbols.contains_key(callee) {
            return refuse(span, format!("`@{callee}` is not defined"));
        }
        self.close(reader)?;
        reader.expect_word("inputs")?;
        let span = reader.here();
        let inputs = self.operand_list(reader, Kind::ParenOpen, Kind::ParenClose)?;
        reader.expect(Kind::Colon)?;
        self.type_list(reader, (Kind::ParenOpen, Kind::ParenClose), &inputs, draft)?;
        reader.expect(Kind::Arrow)?;
        let grouped = reader.accept(Kind::ParenOpen);
        let to = self.tensor_written(reader, draft)?;
        if grouped {
            self.close(reader)?;
        }
        reader.end()?;
        if !matches!(key.as_str(), "reference.matmul" | "reference.tiled_matmul") {
            self.step(reader, draft, StepKind::Unsupported { what: format!("oracle `{key}` is not registered") });
            return Ok(tensor(to));
        }
        let mut tensors = Vec::new();
        for input in &inputs {
            let Operand::Tensor(id) = input else {
                return refuse(span, format!("`{key}` takes tensors"));
            };
            if draft.tensors[id.0 as usize].dims.len() != 2 {
                return refuse(span, format!("`{key}` takes matrices: tensors of rank 2"));
            }
            tensors.push(*id);
        }
        let (lhs, rhs, start) = match tensors[..] {
            [lhs, rhs] => (lhs, rhs, None),
            [lhs, rhs, start] => (lhs, rhs, Some(start)),
            _ => return refuse(span, format!("`{key}` takes two or three tensors, found {}", tensors.len())),
        };
        let kind = |name: &str, default: Numeric| match kinds.iter().find(|entry| entry.key == name) {
            None => Ok(default),
            Some(entry) => match &entry.value {
                Attribute::Word(word) => numeric(word),
                Attribute::Text(text) => numeric(text),
                _ => None,
            }
            .ok_or_else(|| Refusal::At(entry.value_span, format!("a numeric kind is one of {NUMERICS}"))),
        };
        if let Some(entry) = kinds.iter().find(|entry| !matches!(entry.key, "lhs" | "rhs" | "accumulator" | "result")) {
            return refuse(entry.span, "legal: lhs, rhs, accumulator and result");
        }
        let own = |id: TensorId| Numeric { ty: draft.tensors[id.0 as usize].element, signed: true };
        let result = kind("result", own(to))?;
        let accumulator = kind("accumulator", result)?;
        let (lhs, rhs) = ((lhs, kind("lhs", own(lhs))?), (rhs, kind("rhs", own(rhs))?));
        for (id, numeric) in [lhs, rhs, (to, result)] {
            let element = draft.tensors[id.0 as usize].element;
            if element.bits() != numeric.ty.bits() {
                return refuse(
                    span,
                    format!("elements of {element} are not of a numeric kind of {} bits", numeric.ty.bits()),
                );
            }
        }
        let matmul = Matmul { lhs, rhs, start, accumulator, result };
        self.step(reader, draft, StepKind::Matmul { matmul, to });
        Ok(tensor(to))
    }

    // Expectations.

    fn expect(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<()> {
        self.open(reader, "actual")?;
        let actual = self.check_operand(reader)?;
        self.close(reader)?;
        self.open(reader, "expected")?;
        let expected = self.check_operand(reader)?;
        self.close(reader)?;
        let relation = match reader.name() {
            "check.expect.equal" => Relation::Equal,
            "check.expect.bitwise" => Relation::Bitwise,
            _ => {
                let mut bounds = [0.0; 2];
                for (bound, word) in bounds.iter_mut().zip(["atol", "rtol"]) {
                    self.open(reader, word)?;
                    let span = reader.here();
                    let (Number::Float(value), _) = self.number(reader, ScalarType::F64)? else {
                        return refuse(span, "a tolerance is a float");
                    };
                    if value.is_nan() || value < 0.0 {
                        return refuse(span, format!("a tolerance is not negative, found {value}"));
                    }
                    *bound = value;
                    self.close(reader)?;
                }
                self.open(reader, "nan")?;
                let nan_is_nan = reader.choose("same or different", |word| match word {
                    "same" => Some(true),
                    "different" => Some(false),
                    _ => None,
                })?;
                self.close(reader)?;
                Relation::Close { absolute: bounds[0], relative: bounds[1], nan_is_nan }
            }
        };
        reader.expect(Kind::Colon)?;
        let mut second = reader.clone();
        let span = reader.here();
        self.operand_typed(reader, actual, draft)?;
        self.operand_typed(&mut second, expected, draft)?;
        reader.end()?;
        let element = match actual {
            Operand::Tensor(id) => draft.tensors[id.0 as usize].element,
            Operand::Scalar(value) => self.ty(value).scalar().unwrap_or(ScalarType::I64),
        };
        if matches!(relation, Relation::Close { .. }) && !element.is_float() {
            return refuse(span, format!("`check.expect.close` takes floats, found {element}; use check.expect.equal"));
        }
        self.step(reader, draft, StepKind::Expect { actual, expected, relation });
        Ok(())
    }

    /// `value(%v) shape([%m, 4]) : T`.
    fn expect_shape(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<()> {
        self.open(reader, "value")?;
        let value = self.tensor_operand(reader)?;
        self.close(reader)?;
        self.open(reader, "shape")?;
        let indices = self.indices(reader)?;
        self.close(reader)?;
        reader.expect(Kind::Colon)?;
        self.tensor_typed(reader, value, draft)?;
        reader.end()?;
        let dim = |(value, _): &(ValueId, Span)| self.constant_of(*value).map_or(Dim::Value(*value), Dim::Static);
        let dims = indices.iter().map(dim).collect();
        self.step(reader, draft, StepKind::Shape { value, dims });
        Ok(())
    }

    // Scenarios.

    /// `[64](%trial: index, %entropy: check.entropy) { .. }`.
    fn trial(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<()> {
        reader.expect(Kind::BracketOpen)?;
        let span = reader.here();
        let count = if reader.peek() == Some(Kind::Int) {
            let (count, _) = reader.int()?;
            if count < 0 {
                return refuse(span, format!("a count of trials is not negative, found {count}"));
            }
            self.index(count)
        } else {
            let count = self.operand(reader)?;
            self.require(reader, count, span, ScalarType::Index)?;
            count
        };
        reader.expect(Kind::BracketClose)?;
        reader.expect(Kind::ParenOpen)?;
        let (index_name, index_span) = reader.value_name()?;
        reader.expect(Kind::Colon)?;
        let span = reader.here();
        if self.scalar_type(reader)? != ScalarType::Index {
            return refuse(span, "a trial's number is an index");
        }
        let mut entropy_name = None;
        if reader.accept(Kind::Comma) {
            entropy_name = Some(reader.value_name()?);
            reader.expect(Kind::Colon)?;
            self.entropy_type(reader)?;
        }
        self.close(reader)?;
        let region = reader.region()?;
        reader.end()?;
        let line = self.line_at(reader.span());
        let index = self.new_value(Type::Scalar(ScalarType::Index));
        let entropy = entropy_name.map(|_| self.new_entropy(draft));
        let outer = (std::mem::take(&mut draft.steps), std::mem::take(&mut draft.taken));
        let mark = self.names.enter();
        self.define(index_name, index_span, Binding::Value(index));
        if let (Some((name, span)), Some(id)) = (entropy_name, entropy) {
            self.define(name, span, Binding::Host(Host::Entropy(id)));
        }
        let (_, built) = self.in_block(vec![index], |builder| builder.check_region(region, Inside::Trial, draft));
        self.names.leave(mark);
        let steps = std::mem::replace(&mut draft.steps, outer.0);
        draft.taken = outer.1;
        built?;
        let ordinal = draft.trials;
        draft.trials += 1;
        draft.steps.push(Step { line, kind: StepKind::Trial { count, index, entropy, ordinal, steps } });
        Ok(())
    }

    fn new_entropy(&self, draft: &mut Draft) -> EntropyId {
        draft.entropies += 1;
        EntropyId(draft.entropies - 1)
    }

    fn entropy_type(&self, reader: &mut Reader<'m>) -> Built<()> {
        match reader.token() {
            Some(token) if reader.text(token) == "check.entropy" => {
                reader.at += 1;
                Ok(())
            }
            _ => reader.expected("`check.entropy`"),
        }
    }

    fn entropy_operand(&self, reader: &mut Reader<'m>) -> Built<EntropyId> {
        let (name, span) = reader.value_name()?;
        match self.names.get(name) {
            Some(Binding::Host(Host::Entropy(id))) => Ok(*id),
            Some(Binding::Reported) => Err(Refusal::Reported),
            Some(_) => refuse(span, format!("`%{name}` is no entropy")),
            None => self.value_named(name, span).and(Err(Refusal::Reported)),
        }
    }

    /// `%entropy name("lhs") : check.entropy`.
    fn entropy_fork(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let from = self.entropy_operand(reader)?;
        self.open(reader, "name")?;
        let name = reader.string()?;
        self.close(reader)?;
        reader.expect(Kind::Colon)?;
        self.entropy_type(reader)?;
        reader.end()?;
        let to = self.new_entropy(draft);
        self.step(reader, draft, StepKind::Fork { to, from, name });
        Ok(vec![Binding::Host(Host::Entropy(to))])
    }

    /// `%e[%trial] : check.entropy -> i64`.
    fn entropy_read(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<Vec<Binding>> {
        let from = self.entropy_operand(reader)?;
        let span = reader.here();
        let indices = self.indices(reader)?;
        let [(at, _)] = indices[..] else {
            return refuse(span, format!("entropy is read at one index, found {}", indices.len()));
        };
        reader.expect(Kind::Colon)?;
        self.entropy_type(reader)?;
        reader.expect(Kind::Arrow)?;
        let span = reader.here();
        if self.scalar_type(reader)? != ScalarType::I64 {
            return refuse(span, "entropy is read as i64");
        }
        reader.end()?;
        let to = self.new_value(Type::Scalar(ScalarType::I64));
        self.step(reader, draft, StepKind::ReadEntropy { to, from, at });
        Ok(super::one(to))
    }

    /// `<@f[, @oracle]>[[%w]](%x) : [[T]](T) -> [actual(%a: T), expected(%b: T)] { .. }`, or `-> ()`.
    fn check_compare(&mut self, reader: &mut Reader<'m>, draft: &mut Draft) -> Built<()> {
        reader.expect(Kind::Less)?;
        let (actual, actual_span) = reader.symbol()?;
        let (expected, expected_span) =
            if reader.accept(Kind::Comma) { reader.symbol()? } else { (actual, actual_span) };
        reader.expect(Kind::Greater)?;
        let (workload, arguments) = self.launch_operands(reader, draft)?;
        reader.expect(Kind::Arrow)?;
        let mut sides: [Vec<(&'m str, Span, ScalarType)>; 2] = [Vec::new(), Vec::new()];
        if reader.accept(Kind::BracketOpen) {
            while !reader.accept(Kind::BracketClose) {
                let side = reader.choose("actual(..) or expected(..)", |word| match word {
                    "actual" => Some(0),
                    "expected" => Some(1),
                    _ => None,
                })?;
                reader.expect(Kind::ParenOpen)?;
                while !reader.accept(Kind::ParenClose) {
                    let (name, span) = reader.value_name()?;
                    reader.expect(Kind::Colon)?;
                    let ty = self.scalar_type(reader)?;
                    sides[side].push((name, span, ty));
                    reader.accept(Kind::Comma);
                }
                reader.accept(Kind::Comma);
            }
        } else {
            reader.expect(Kind::ParenOpen)?;
            self.close(reader)?;
        }
        let region = reader.region()?;
        reader.end()?;
        let types = |side: &[(&str, Span, ScalarType)]| side.iter().map(|(.., ty)| *ty).collect::<Vec<_>>();
        if types(&sides[0]) != types(&sides[1]) {
            return refuse(reader.span(), "both sides of a comparison give the same number and types of results");
        }
        let results: Vec<Type> = types(&sides[0]).into_iter().map(Type::Scalar).collect();
        let call = |builder: &mut Self, name: &str, span| {
            let kind = builder.module.symbols.get(name).map(|at| builder.module.op_name(&builder.module.ops[*at]));
            if !workload.is_empty() && matches!(kind, Some("kernel.def" | "kernel.decl")) {
                let workload = builder.workload(name, span, &workload, &arguments)?;
                let (callee, arguments) = (name.to_owned(), arguments.clone());
                return Ok(Call { callee, kernel: true, workload, arguments, results: Vec::new() });
            }
            builder.callee(name, span, arguments.clone(), &results)
        };
        let actual = call(self, actual, actual_span)?;
        let expected = call(self, expected, expected_span)?;
        let mut values = [Vec::new(), Vec::new()];
        let mark = self.names.enter();
        for (side, values) in sides.into_iter().zip(&mut values) {
            for (name, span, ty) in side {
                let value = self.new_value(Type::Scalar(ty));
                self.define(name, span, Binding::Value(value));
                values.push(value);
            }
        }
        let line = self.line_at(reader.span());
        let outer = std::mem::take(&mut draft.steps);
        let built = self.check_region(region, Inside::Compare, draft);
        self.names.leave(mark);
        let expect = std::mem::replace(&mut draft.steps, outer);
        built?;
        let [actual_results, expected_results] = values;
        let compare = Compare { actual, expected, actual_results, expected_results };
        draft.steps.push(Step { line, kind: StepKind::Compare { compare, expect } });
        Ok(())
    }

    // Benchmarks.

    /// `<@case> [@name] [{param = value, ..}]`.
    pub(crate) fn benchmark(&mut self, op: &'m syntax::Op) -> Option<Benchmark> {
        let built = self.benchmark_def(op);
        match built {
            Ok(benchmark) => Some(benchmark),
            Err(refusal) => {
                self.report(refusal);
                None
            }
        }
    }

    fn benchmark_def(&mut self, op: &'m syntax::Op) -> Built<Benchmark> {
        let mut reader = self.reader(op);
        reader.expect(Kind::Less)?;
        let (case, span) = reader.symbol()?;
        reader.expect(Kind::Greater)?;
        match self.module.symbols.get(case).map(|at| self.module.op_name(&self.module.ops[*at])) {
            Some("check.case" | "check.scenario") => {}
            Some(kind) => return refuse(span, format!("`@{case}` is a `{kind}`; a benchmark is of a `check.case`")),
            None => return refuse(span, format!("`@{case}` is not defined; a benchmark is of a `check.case`")),
        }
        let name = if reader.peek() == Some(Kind::Symbol) { reader.symbol()?.0 } else { case };
        let mut bound = Vec::new();
        for entry in reader.dictionary()? {
            let value = match entry.value {
                Attribute::Int(value) => Number::Int(value),
                Attribute::Float(value) => Number::Float(value),
                _ => return refuse(entry.value_span, "a parameter is bound to a number"),
            };
            bound.push((entry.key.to_owned(), value));
        }
        reader.end()?;
        Ok(Benchmark { name: name.to_owned(), case: case.to_owned(), bound })
    }
}

/// What a kernel takes.
struct KernelTypes {
    workload: Vec<Type>,
    /// Of the launch.
    arguments: Vec<Type>,
    /// Whether the text has one list for both.
    one_list: bool,
}

fn tensor(id: TensorId) -> Vec<Binding> {
    vec![Binding::Host(Host::Tensor(id))]
}

fn scalars(operands: &[Operand]) -> Vec<ValueId> {
    let scalar = |operand: &Operand| match operand {
        Operand::Scalar(value) => Some(*value),
        Operand::Tensor(_) => None,
    };
    operands.iter().filter_map(scalar).collect()
}

fn spelled(element: ScalarType, dims: &[Dim]) -> String {
    let dims: String = dims.iter().map(|dim| format!("{dim}x")).collect();
    format!("tensor<{dims}{element}>")
}

/// Moves what is computed in the entry block behind its constants.
fn shift(steps: &mut [Step], by: usize) {
    for step in steps {
        match &mut step.kind {
            StepKind::Compute(Body::ENTRY, Range { start, end }) => {
                *start += by;
                *end += by;
            }
            StepKind::Trial { steps, .. } => shift(steps, by),
            _ => {}
        }
    }
}

const NUMERICS: &str = "f8e4m3, f8e5m2, f16, bf16, f32, f64, i8, u8, i16, u16, i32, u32, i64";

fn numeric(word: &str) -> Option<Numeric> {
    let (ty, signed) = match word {
        "f8e4m3" => (ScalarType::F8E4M3, true),
        "f8e5m2" => (ScalarType::F8E5M2, true),
        "f16" => (ScalarType::F16, true),
        "bf16" => (ScalarType::BF16, true),
        "f32" => (ScalarType::F32, true),
        "f64" => (ScalarType::F64, true),
        "i8" => (ScalarType::I8, true),
        "u8" => (ScalarType::I8, false),
        "i16" => (ScalarType::I16, true),
        "u16" => (ScalarType::I16, false),
        "i32" => (ScalarType::I32, true),
        "u32" => (ScalarType::I32, false),
        "i64" => (ScalarType::I64, true),
        _ => return None,
    };
    Some((ty, signed)).map(|(ty, signed)| Numeric { ty, signed })
}

/// The least power of two that is not below a positive number, where there is one.
fn power_from(low: i64) -> Option<i64> {
    let power = u64::try_from(low).ok()?.checked_next_power_of_two()?;
    i64::try_from(power).ok()
}
