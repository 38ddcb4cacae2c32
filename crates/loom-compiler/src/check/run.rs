//! One sample of one case, run on a target.
//!
//! ```text
//! sample ──parameters──> scalars ─┐
//! generators, files ──> storages ─┴─ launch on the target ──> read back ──> expectations ──> Verdict
//! ```
//!
//! - A storage is the host's until a launch needs it, and comes back when an expectation, a view's reader or a file does.
//! - Launches run in the order of the text. A tensor and its views are one storage.
//! - What a case asks that nobody here has is `Unsupported`, neither passed nor failed.

use super::calls::calling;
use super::expect::{agrees, element, first_difference, shown};
use super::generate::{Uniform, iota, uniform};
use super::{
    Call, Case, Compare, Entropy, Interpreted, Literal, Matmul, Numeric, Operand, Relation, Requirement, Step,
    StepKind, TensorId,
};
use crate::eval;
use crate::ir::ValueId;
use crate::launch;
use crate::module::it_has;
use crate::ops::{Binary, Convert};
use crate::types::{Dim, ScalarType};
use std::collections::BTreeSet;
use std::ops::Range;

/// What came of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Every expectation held.
    Passed,
    /// One did not.
    Failed,
    /// The case asks for a device that this is not.
    Skipped,
    /// The case, or its kernel, needs what nobody here has.
    Unsupported,
    /// It could not be run.
    Error,
}

/// What came of a sample, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// In a word.
    pub status: Status,
    /// Of anything but [`Status::Passed`]: what, where in the text, and with which values.
    pub message: Option<String>,
    /// How many expectations were compared.
    pub expectations: u64,
}

/// Why a launch, or a whole sample, went no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The target does not have it.
    Unsupported(String),
    /// It is wrong, or went wrong.
    Error(String),
}

/// An argument of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actual {
    /// A slot whose low bits hold the value.
    Scalar(u64),
    /// Bytes of a storage.
    Tensor {
        /// Which.
        storage: usize,
        /// Where in it.
        bytes: Range<u64>,
        /// Whether the kernel may have written it: a target that knows better clears it.
        written: bool,
    },
}

/// Whether a provider's requirement holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provided {
    /// Nobody answers for this key.
    NotRegistered,
    /// Somebody would, and cannot say.
    Unavailable,
    /// It holds, or not.
    Is(bool),
}

/// Where kernels run. Storages are numbered by the runner.
pub trait Target {
    /// Storage `storage` has these bytes from now on, and is as long as they are.
    ///
    /// # Errors
    /// No memory for it.
    fn write(&mut self, storage: usize, bytes: &[u8]) -> Result<(), Stop>;

    /// All bytes of a storage that was written.
    ///
    /// # Errors
    /// What the device reports.
    fn read(&mut self, storage: usize, into: &mut [u8]) -> Result<(), Stop>;

    /// Runs kernel `kernel`, a symbol of the module, to its end: one slot for each workload argument.
    ///
    /// # Errors
    /// A kernel that does not build or run there.
    fn launch(&mut self, kernel: &str, workload: &[u64], arguments: &mut [Actual]) -> Result<(), Stop>;

    /// Forgets all storages.
    fn clear(&mut self);

    /// Whether a requirement of a case holds.
    fn provides(&self, requirement: &Requirement) -> Provided {
        let _ = requirement;
        Provided::NotRegistered
    }
}

/// An array in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Of one element; integers of either signedness.
    pub element: ScalarType,
    /// Outermost first.
    pub shape: Vec<u64>,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// Files that cases read and write, by the path that the text gives, relative to the text's own.
pub trait Files {
    /// A NumPy file of at most `bytes_max` bytes of elements.
    ///
    /// # Errors
    /// In words.
    fn read(&mut self, path: &str, bytes_max: u64) -> Result<Array, String>;

    /// Writes one.
    ///
    /// # Errors
    /// In words.
    fn write(&mut self, path: &str, array: &Array) -> Result<(), String>;
}

/// No files: whatever is asked for is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&mut self, _: &str, _: u64) -> Result<Array, String> {
        Err("files are not read here".to_owned())
    }

    fn write(&mut self, _: &str, _: &Array) -> Result<(), String> {
        Err("files are not written here".to_owned())
    }
}

/// What one sample may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all its tensors, views not counted.
    pub tensor_bytes: u64,
    /// Steps, those of trials counted each time.
    pub steps: u64,
    /// Ops of scalars in one step.
    pub ops: u64,
    /// Products of a built-in oracle.
    pub products: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tensor_bytes: 4 << 30, steps: 1 << 20, ops: 1 << 20, products: 1 << 34 }
    }
}

/// One choice of a case's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its number: the first parameter varies fastest.
    pub ordinal: u64,
    /// By parameter.
    pub values: Vec<Literal>,
}

impl Case {
    /// Sample `ordinal`; `None` past the last.
    pub fn sample(&self, ordinal: u64) -> Option<Sample> {
        let mut rest = ordinal;
        let mut values = Vec::new();
        for parameter in &self.parameters {
            let count = parameter.domain.count();
            values.push(parameter.domain.value(rest % count));
            rest /= count;
        }
        (rest == 0).then_some(Sample { ordinal, values })
    }
}

impl Case {
    /// The samples in which parameters have the values that a benchmark binds them to.
    ///
    /// # Errors
    /// A name that is no parameter's, and a value that its parameter does not take.
    pub fn bound(&self, bound: &[(String, Literal)]) -> Result<Vec<Sample>, String> {
        let mut places = Vec::new();
        for (name, value) in bound {
            let Some(at) = self.parameters.iter().position(|parameter| parameter.name == *name) else {
                let names: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
                return Err(format!("`{name}` is no parameter of `@{}`; {}", self.name, it_has(&names)));
            };
            // As the parameter has it: what is near in f64 may be one number in its type.
            let super::Parameter { ty, domain, .. } = &self.parameters[at];
            let rounded = |value: Literal| match value {
                Literal::Float(value) => Literal::Float(eval::to_f64(*ty, eval::from_f64(*ty, value))),
                Literal::Int(_) => value,
            };
            let mut values = (0..domain.count()).map(|ordinal| domain.value(ordinal));
            let Some(taken) = values.find(|taken| rounded(*taken) == rounded(*value)) else {
                let value = match value {
                    Literal::Int(value) => value.to_string(),
                    Literal::Float(value) => format!("{value:?}"),
                };
                return Err(format!("parameter `{name}` of `@{}` does not take the value {value}", self.name));
            };
            places.push((at, taken));
        }
        let samples = (0..self.samples()).filter_map(|ordinal| self.sample(ordinal));
        Ok(samples.filter(|sample| places.iter().all(|(at, value)| sample.values[*at] == *value)).collect())
    }
}

/// Runs one sample of `case`: kernels on `target`, reference functions on `host`. Both are cleared first.
pub fn run(
    case: &Case,
    sample: &Sample,
    target: &mut dyn Target,
    host: &mut Interpreted<'_>,
    files: &mut dyn Files,
    limits: Limits,
) -> Verdict {
    target.clear();
    host.clear();
    if let Some(reason) = skipped(case, target) {
        return Verdict { status: Status::Skipped, message: Some(reason), expectations: 0 };
    }
    let mut values = vec![0; case.body.values.len()];
    for (parameter, value) in case.parameters.iter().zip(&sample.values) {
        values[parameter.value.index()] = match *value {
            Literal::Int(value) => value as u64 & (u64::MAX >> (64 - parameter.ty.bits())),
            Literal::Float(value) => eval::from_f64(parameter.ty, value),
        };
    }
    for (at, value) in case.body.values.iter().enumerate() {
        if let Some(bits) = value.constant {
            values[at] = bits;
        }
    }
    let mut runner = Runner {
        case,
        limits,
        values,
        tensors: vec![None; case.tensors.len()],
        entropies: vec![Entropy::default(); case.entropies],
        storages: Vec::new(),
        bytes: 0,
        steps: 0,
        ordinal: sample.ordinal,
        expectations: 0,
        unsupported: None,
        failure: None,
        late_writes: Vec::new(),
    };
    let ended = runner.steps(&case.steps, target, host, files).and_then(|()| runner.settle(target, files));
    let expectations = runner.expectations;
    let (status, message) = match (ended, runner.failure, runner.unsupported) {
        (Err(Stop::Error(why)), ..) => (Status::Error, Some(why)),
        (_, Some(why), _) => (Status::Failed, Some(why)),
        (Err(Stop::Unsupported(why)), ..) | (Ok(()), None, Some(why)) => (Status::Unsupported, Some(why)),
        (Ok(()), None, None) => (Status::Passed, None),
    };
    Verdict { status, message, expectations }
}

/// Why the case is not for this target.
fn skipped(case: &Case, target: &dyn Target) -> Option<String> {
    case.requirements.iter().find_map(|requirement| {
        let provider = &requirement.provider;
        match (target.provides(requirement), &requirement.skip_reason) {
            (Provided::NotRegistered, _) => Some(format!("provider_not_registered: {provider}")),
            (Provided::Unavailable, _) => Some(format!("provider_unavailable: {provider}")),
            (Provided::Is(false), None) => Some(format!("requirement_not_satisfied: {provider}")),
            (Provided::Is(true), Some(reason)) => Some(format!("skip_predicate_matched: {provider}: {reason}")),
            (Provided::Is(true), None) | (Provided::Is(false), Some(_)) => None,
        }
    })
}

/// A launch that stopped is what an event behind it may be about: then nobody can say whether it is wrong.
fn expected_stop(stop: Stop, step: &Step, rest: &[Step]) -> Stop {
    let event = rest.iter().find(|step| matches!(step.kind, StepKind::Events { count: 1.., .. }));
    match (stop, &step.kind, event) {
        (Stop::Error(why), StepKind::Launch { .. } | StepKind::Call { .. }, Some(Step { line, .. })) => {
            let what = "event `device` is not observed: which one a launch ended with is not told apart";
            Stop::Unsupported(format!("line {line}: {what}; the launch ended: {why}"))
        }
        (stop, ..) => stop,
    }
}

/// Where a storage's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Current {
    Host,
    Both,
    Target,
}

#[derive(Debug)]
struct Storage {
    bytes: Vec<u8>,
    current: Current,
}

/// A tensor that was made.
#[derive(Clone, Debug)]
struct Held {
    storage: usize,
    bytes: Range<u64>,
    shape: Vec<u64>,
}

struct Runner<'c> {
    case: &'c Case,
    limits: Limits,
    values: Vec<u64>,
    tensors: Vec<Option<Held>>,
    entropies: Vec<Entropy>,
    storages: Vec<Storage>,
    bytes: u64,
    steps: u64,
    /// Of the sample.
    ordinal: u64,
    expectations: u64,
    unsupported: Option<String>,
    failure: Option<String>,
    /// Files that are written only if something failed.
    late_writes: Vec<(TensorId, &'c str)>,
}

type Done<T = ()> = Result<T, Stop>;

fn error<T>(line: usize, why: impl std::fmt::Display) -> Done<T> {
    Err(Stop::Error(format!("line {line}: {why}")))
}

impl<'c> Runner<'c> {
    fn steps(
        &mut self,
        steps: &'c [Step],
        target: &mut dyn Target,
        host: &mut Interpreted<'_>,
        files: &mut dyn Files,
    ) -> Done {
        for (at, step) in steps.iter().enumerate() {
            self.steps += 1;
            if self.steps > self.limits.steps {
                return error(step.line, format!("more than {} steps in one sample", self.limits.steps));
            }
            self.step(step, target, host, files).map_err(|stop| expected_stop(stop, step, &steps[at + 1..]))?;
            // What follows a failed expectation says nothing more; what follows an unsupported one may.
            if self.failure.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        step: &'c Step,
        target: &mut dyn Target,
        host: &mut Interpreted<'_>,
        files: &mut dyn Files,
    ) -> Done {
        let line = step.line;
        match &step.kind {
            StepKind::Compute(block, ops) => {
                launch::run_ops(&self.case.body, &mut self.values, *block, ops.clone(), self.limits.ops)
                    .map_err(|why| Stop::Error(format!("line {line}: {why}")))
            }
            StepKind::Fill { to, bits } => {
                let bits = *bits;
                self.generate(line, *to, move |_| Ok(bits))
            }
            StepKind::Iota { to, offset, step, period } => {
                let (offset, step, period) = (*offset, *step, *period);
                let ty = self.element(*to);
                self.generate(line, *to, move |at| {
                    let at = period.map_or(at, |period| at % period);
                    iota(ty, offset, step, at)
                        .map_err(|value| format!("element {at} is {value}, which {ty} does not have"))
                })
            }
            StepKind::Uniform { to, seed, low, high } => {
                let mut generator = Uniform::new(self.values[seed.index()]);
                let (ty, low, high) = (self.element(*to), *low, *high);
                self.generate(line, *to, move |_| Ok(uniform(&mut generator, ty, low, high)))
            }
            StepKind::Read { to, path } => self.read_file(line, *to, path, files),
            StepKind::Write { from, path, on_failure } => {
                if *on_failure {
                    self.late_writes.push((*from, path));
                    return Ok(());
                }
                self.write_file(line, *from, path, target, files)
            }
            StepKind::View { to, from, offset } => self.view(line, *to, *from, *offset),
            StepKind::Launch { kernel, workload, arguments } => {
                let workload = self.slots(workload);
                self.launch(kernel, &workload, arguments, target).map_err(|stop| at_line(line, stop))
            }
            StepKind::Call { call, results } => {
                let values = self.on_host(call, target, host).map_err(|stop| at_line(line, stop))?;
                for (to, value) in results.iter().zip(values) {
                    self.values[to.index()] = value;
                }
                Ok(())
            }
            StepKind::Matmul { matmul, to } => self.matmul(line, matmul, *to, target),
            StepKind::Expect { actual, expected, relation } => {
                let both = [self.operand(line, *actual, target)?, self.operand(line, *expected, target)?];
                self.compared(line, *relation, *actual, both);
                Ok(())
            }
            StepKind::Shape { value, dims } => {
                let expected = self.extents(line, dims)?;
                let found = self.held(line, *value)?.shape.clone();
                self.expectations += 1;
                if found != expected {
                    self.failed(line, format!("the shape is {found:?}, expected {expected:?}"));
                }
                Ok(())
            }
            StepKind::Unsupported { what } => {
                self.unsupported.get_or_insert_with(|| format!("line {line}: {what}"));
                Ok(())
            }
            StepKind::Events { count, seen } => {
                self.events(line, *count, *seen);
                Ok(())
            }
            StepKind::Trial { count, index, entropy, ordinal, steps } => {
                let trials = self.values[count.index()];
                for trial in 0..trials {
                    self.steps += 1;
                    if self.steps > self.limits.steps {
                        return error(line, format!("more than {} steps in one sample", self.limits.steps));
                    }
                    self.values[index.index()] = trial;
                    if let Some(entropy) = entropy {
                        let scenario = Entropy::root(0).fork(&self.case.name);
                        self.entropies[entropy.0 as usize] =
                            scenario.fork("loom.check.trial").at(self.ordinal).at(*ordinal).at(trial);
                    }
                    self.steps(steps, target, host, files)?;
                    if let Some(failure) = &mut self.failure {
                        failure.push_str(&format!(", in trial {trial}"));
                        return Ok(());
                    }
                    self.forget(steps);
                }
                Ok(())
            }
            StepKind::Fork { to, from, name } => {
                self.entropies[to.0 as usize] = self.entropies[from.0 as usize].fork(name);
                Ok(())
            }
            StepKind::ReadEntropy { to, from, at } => {
                self.values[to.index()] = self.entropies[from.0 as usize].read(self.values[at.index()]);
                Ok(())
            }
            StepKind::Compare { compare, expect } => self.compare(line, compare, expect, target, host),
        }
    }

    /// Gives back the storages that a trial made.
    fn forget(&mut self, steps: &[Step]) {
        for step in steps {
            let (StepKind::Fill { to, .. }
            | StepKind::Iota { to, .. }
            | StepKind::Uniform { to, .. }
            | StepKind::Read { to, .. }
            | StepKind::Matmul { to, .. }) = &step.kind
            else {
                continue;
            };
            if let Some(held) = self.tensors[to.0 as usize].take() {
                let bytes = std::mem::take(&mut self.storages[held.storage].bytes);
                self.bytes -= bytes.len() as u64;
            }
        }
    }

    // Scalars and shapes.

    fn slots(&self, values: &[ValueId]) -> Vec<u64> {
        values.iter().map(|value| self.values[value.index()]).collect()
    }

    fn element(&self, tensor: TensorId) -> ScalarType {
        self.case.tensors[tensor.0 as usize].element
    }

    fn extents(&self, line: usize, dims: &[Dim]) -> Done<Vec<u64>> {
        let extent = |dim: &Dim| {
            let extent = match dim {
                Dim::Static(extent) => *extent as i64,
                Dim::Value(value) => self.values[value.index()] as i64,
            };
            u64::try_from(extent).or_else(|_| error(line, format!("an extent is not negative, found {extent}")))
        };
        dims.iter().map(extent).collect()
    }

    fn held(&self, line: usize, tensor: TensorId) -> Done<&Held> {
        match &self.tensors[tensor.0 as usize] {
            Some(held) => Ok(held),
            None => error(line, format!("`%{}` was not made", self.case.tensors[tensor.0 as usize].name)),
        }
    }

    // Tensors.

    /// Shape and bytes of a tensor that is to be made, within the limit.
    fn sized(&self, line: usize, tensor: TensorId) -> Done<(Vec<u64>, u64)> {
        let ty = &self.case.tensors[tensor.0 as usize];
        let shape = self.extents(line, &ty.dims)?;
        let bytes = shape.iter().try_fold(ty.element.bytes(), |bytes, extent| bytes.checked_mul(*extent));
        let all = bytes.and_then(|bytes| bytes.checked_add(self.bytes));
        match (bytes, all) {
            (Some(bytes), Some(all)) if all <= self.limits.tensor_bytes => Ok((shape, bytes)),
            _ => error(
                line,
                format!(
                    "`%{}` of shape {shape:?} brings the sample's tensors past {} bytes",
                    ty.name, self.limits.tensor_bytes
                ),
            ),
        }
    }

    fn make(&mut self, tensor: TensorId, shape: Vec<u64>, bytes: Vec<u8>) {
        let length = bytes.len() as u64;
        self.bytes += length;
        let storage = self.storages.len();
        self.storages.push(Storage { bytes, current: Current::Host });
        self.tensors[tensor.0 as usize] = Some(Held { storage, bytes: 0..length, shape });
    }

    fn generate(&mut self, line: usize, to: TensorId, mut element: impl FnMut(u64) -> Result<u64, String>) -> Done {
        let (shape, bytes) = self.sized(line, to)?;
        let size = self.element(to).bytes() as usize;
        let mut data = Vec::with_capacity(bytes as usize);
        for at in 0..bytes / size as u64 {
            match element(at) {
                Ok(bits) => data.extend_from_slice(&bits.to_le_bytes()[..size]),
                Err(why) => return error(line, why),
            }
        }
        self.make(to, shape, data);
        Ok(())
    }

    fn read_file(&mut self, line: usize, to: TensorId, path: &str, files: &mut dyn Files) -> Done {
        let (shape, bytes) = self.sized(line, to)?;
        let array = match files.read(path, bytes) {
            Ok(array) => array,
            Err(why) => return error(line, why),
        };
        let element = self.element(to);
        if array.element != element || array.shape != shape || array.bytes.len() as u64 != bytes {
            let found = format!("{} of shape {:?}", array.element, array.shape);
            return error(line, format!("{path} holds {found}, expected {element} of shape {shape:?}"));
        }
        self.make(to, shape, array.bytes);
        Ok(())
    }

    fn write_file(
        &mut self,
        line: usize,
        from: TensorId,
        path: &str,
        target: &mut dyn Target,
        files: &mut dyn Files,
    ) -> Done {
        let held = self.held(line, from)?.clone();
        self.fetch(held.storage, target)?;
        let bytes = self.bytes_of(&held).to_vec();
        let array = Array { element: self.element(from), shape: held.shape, bytes };
        files.write(path, &array).or_else(|why| error(line, why))
    }

    /// What is written only where something failed.
    fn settle(&mut self, target: &mut dyn Target, files: &mut dyn Files) -> Done {
        if self.failure.is_some() {
            for (tensor, path) in std::mem::take(&mut self.late_writes) {
                self.write_file(0, tensor, path, target, files)?;
            }
        }
        Ok(())
    }

    fn view(&mut self, line: usize, to: TensorId, from: TensorId, offset: ValueId) -> Done {
        let offset = self.values[offset.index()];
        let shape = self.extents(line, &self.case.tensors[to.0 as usize].dims)?;
        let size = self.element(to).bytes();
        let source = self.held(line, from)?;
        let start = source.bytes.start.checked_add(offset);
        let bytes = shape.iter().try_fold(size, |bytes, extent| bytes.checked_mul(*extent));
        let end = start.zip(bytes).and_then(|(start, bytes)| start.checked_add(bytes));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= source.bytes.end)) else {
            let found = source.bytes.end - source.bytes.start;
            return error(
                line,
                format!("a view of shape {shape:?} from byte {offset} on ends past the {found} bytes of its tensor"),
            );
        };
        let storage = source.storage;
        self.tensors[to.0 as usize] = Some(Held { storage, bytes: start..end, shape });
        Ok(())
    }

    fn bytes_of(&self, held: &Held) -> &[u8] {
        &self.storages[held.storage].bytes[held.bytes.start as usize..held.bytes.end as usize]
    }

    /// The host has the storage's bytes.
    fn fetch(&mut self, storage: usize, target: &mut dyn Target) -> Done {
        let held = &mut self.storages[storage];
        if held.current == Current::Target {
            target.read(storage, &mut held.bytes)?;
            held.current = Current::Both;
        }
        Ok(())
    }

    // Invocations.

    fn actuals(&mut self, arguments: &[Operand]) -> Done<Vec<Actual>> {
        let actual = |argument: &Operand| match argument {
            Operand::Scalar(value) => Ok(Actual::Scalar(self.values[value.index()])),
            Operand::Tensor(tensor) => {
                let held = self.held(0, *tensor)?;
                Ok(Actual::Tensor { storage: held.storage, bytes: held.bytes.clone(), written: true })
            }
        };
        arguments.iter().map(actual).collect()
    }

    fn launch(&mut self, kernel: &str, workload: &[u64], arguments: &[Operand], target: &mut dyn Target) -> Done {
        let mut actuals = self.actuals(arguments)?;
        for storage in storages(&actuals) {
            let held = &mut self.storages[storage];
            if held.current == Current::Host {
                target.write(storage, &held.bytes)?;
                held.current = Current::Both;
            }
        }
        target.launch(kernel, workload, &mut actuals)?;
        for actual in &actuals {
            if let Actual::Tensor { storage, written: true, .. } = actual {
                self.storages[*storage].current = Current::Target;
            }
        }
        Ok(())
    }

    /// A kernel, or a function in a kernel of its own, on storages that `target` has: the bits of a function's results.
    fn invoke(&self, call: &Call, actuals: &mut Vec<Actual>, target: &mut dyn Target) -> Done<Vec<u64>> {
        if call.kernel {
            return target.launch(&call.callee, &self.slots(&call.workload), actuals).map(|()| Vec::new());
        }
        // Storages of the runner are numbered from zero.
        let results: Vec<(usize, ScalarType)> =
            call.results.iter().enumerate().map(|(at, ty)| (usize::MAX - at, *ty)).collect();
        for (storage, ty) in &results {
            target.write(*storage, &vec![0; ty.bytes() as usize])?;
            actuals.push(Actual::Tensor { storage: *storage, bytes: 0..ty.bytes(), written: true });
        }
        target.launch(&calling(&call.callee), &[], actuals)?;
        actuals.truncate(actuals.len() - results.len());
        let bits = |(storage, ty): &(usize, ScalarType)| {
            let mut word = [0; 8];
            target.read(*storage, &mut word[..ty.bytes() as usize])?;
            Ok(u64::from_le_bytes(word))
        };
        results.iter().map(bits).collect()
    }

    /// A function of the host, on the bytes that the host has: the bits of its results.
    fn on_host(&mut self, call: &Call, target: &mut dyn Target, host: &mut Interpreted<'_>) -> Done<Vec<u64>> {
        let mut actuals = self.actuals(&call.arguments)?;
        for storage in storages(&actuals) {
            self.fetch(storage, target)?;
            host.write(storage, &self.storages[storage].bytes)?;
        }
        let results = self.invoke(call, &mut actuals, host)?;
        for storage in storages(&actuals) {
            let held = &mut self.storages[storage];
            host.read(storage, &mut held.bytes)?;
            held.current = Current::Host;
        }
        Ok(results)
    }

    /// Both sides on copies of their own, and what is expected of them.
    fn compare(
        &mut self,
        line: usize,
        compare: &'c Compare,
        expect: &'c [Step],
        target: &mut dyn Target,
        host: &mut Interpreted<'_>,
    ) -> Done {
        let mut actuals = self.actuals(&compare.actual.arguments)?;
        let touched = storages(&actuals);
        for storage in &touched {
            self.fetch(*storage, target)?;
        }
        // The reference side, on the interpreter's own copies.
        for storage in &touched {
            host.write(*storage, &self.storages[*storage].bytes)?;
        }
        let mut reference = self.actuals(&compare.expected.arguments)?;
        let expected = self.invoke(&compare.expected, &mut reference, host).map_err(|stop| at_line(line, stop))?;
        // The side under test, on the target's.
        for storage in &touched {
            target.write(*storage, &self.storages[*storage].bytes)?;
        }
        let found = self.invoke(&compare.actual, &mut actuals, target).map_err(|stop| at_line(line, stop))?;
        for (values, results) in [(&compare.actual_results, found), (&compare.expected_results, expected)] {
            for (to, bits) in values.iter().zip(results) {
                self.values[to.index()] = bits;
            }
        }
        for step in expect {
            self.steps += 1;
            match &step.kind {
                StepKind::Expect { actual, expected, relation } => {
                    let actual_value = match actual {
                        Operand::Scalar(_) => self.operand(step.line, *actual, target)?,
                        Operand::Tensor(tensor) => {
                            let held = self.held(step.line, *tensor)?.clone();
                            let mut all = vec![0; self.storages[held.storage].bytes.len()];
                            if touched.contains(&held.storage) {
                                target.read(held.storage, &mut all)?;
                            } else {
                                self.fetch(held.storage, target)?;
                                all.copy_from_slice(&self.storages[held.storage].bytes);
                            }
                            Value::of(&all, &held, self.element(*tensor))
                        }
                    };
                    let expected_value = match expected {
                        Operand::Scalar(_) => self.operand(step.line, *expected, target)?,
                        Operand::Tensor(tensor) => {
                            let held = self.held(step.line, *tensor)?.clone();
                            let all = if touched.contains(&held.storage) {
                                host.bytes(held.storage)
                            } else {
                                &self.storages[held.storage].bytes
                            };
                            Value::of(all, &held, self.element(*tensor))
                        }
                    };
                    self.compared(step.line, *relation, *actual, [actual_value, expected_value]);
                }
                StepKind::Unsupported { what } => {
                    self.unsupported.get_or_insert_with(|| format!("line {}: {what}", step.line));
                }
                StepKind::Events { count, seen } => self.events(step.line, *count, *seen),
                _ => {}
            }
        }
        // What the target made of its copies ends with the comparison.
        for storage in touched {
            self.storages[storage].current = Current::Host;
        }
        Ok(())
    }

    /// `count` events, where every launch was fine: what a device reports ends a launch, and none was.
    fn events(&mut self, line: usize, count: u64, seen: Option<&str>) {
        match (count, seen) {
            (0, _) => self.expectations += 1,
            (_, Some(event)) => {
                self.expectations += 1;
                self.failed(line, format!("no event `{event}` was observed, expected {count}"));
            }
            (_, None) => {
                let what = "event `device` is not observed: but for accesses outside their buffers no device here looks for any";
                self.unsupported.get_or_insert_with(|| format!("line {line}: {what}"));
            }
        }
    }

    /// Products accumulated in ascending `k`, in the accumulator's type.
    fn matmul(&mut self, line: usize, matmul: &Matmul, to: TensorId, target: &mut dyn Target) -> Done {
        let (shape, bytes) = self.sized(line, to)?;
        let mut inputs = Vec::new();
        for tensor in [Some(matmul.lhs.0), Some(matmul.rhs.0), matmul.start].into_iter().flatten() {
            let held = self.held(line, tensor)?.clone();
            self.fetch(held.storage, target)?;
            inputs.push((self.bytes_of(&held).to_vec(), held.shape, self.element(tensor)));
        }
        let (lhs, rhs) = (&inputs[0], &inputs[1]);
        let (&[m, k], &[k2, n]) = (&lhs.1[..], &rhs.1[..]) else {
            return error(line, "a matrix has two dimensions");
        };
        let fits = k == k2 && shape == [m, n] && inputs.get(2).is_none_or(|start| start.1 == [m, n]);
        if !fits {
            let shapes: Vec<_> = inputs.iter().map(|(_, shape, _)| shape).collect();
            return error(line, format!("matrices of shapes {shapes:?} give none of shape {shape:?}"));
        }
        let products = m.checked_mul(n).and_then(|mn| mn.checked_mul(k));
        if products.is_none_or(|products| products > self.limits.products) {
            return error(line, format!("more than {} products", self.limits.products));
        }
        let wide = matmul.accumulator;
        let (m, n, k) = (m as usize, n as usize, k as usize);
        let convert_all = |(bytes, _, element): &(Vec<u8>, Vec<u64>, ScalarType), numeric: Numeric| -> Vec<u64> {
            let count = bytes.len() / element.bytes() as usize;
            (0..count).map(|at| converted(numeric, wide, self::element(*element, bytes, at))).collect()
        };
        let (a, b) = (convert_all(lhs, matmul.lhs.1), convert_all(rhs, matmul.rhs.1));
        let start = inputs.get(2).map(|start| convert_all(start, Numeric { ty: start.2, signed: wide.signed }));
        let (times, plus) =
            if wide.ty.is_float() { (Binary::MulF, Binary::AddF) } else { (Binary::MulI, Binary::AddI) };
        let size = self.element(to).bytes() as usize;
        let mut out = Vec::with_capacity(bytes as usize);
        for row in 0..m {
            for column in 0..n {
                let mut sum = start.as_ref().map_or(0, |start| start[row * n + column]);
                for at in 0..k {
                    let product = eval::binary(times, wide.ty, a[row * k + at], b[at * n + column]);
                    sum = eval::binary(plus, wide.ty, sum, product);
                }
                out.extend_from_slice(&converted(wide, matmul.result, sum).to_le_bytes()[..size]);
            }
        }
        self.make(to, shape, out);
        Ok(())
    }

    // Expectations.

    fn operand(&mut self, line: usize, operand: Operand, target: &mut dyn Target) -> Done<Value> {
        match operand {
            Operand::Scalar(value) => {
                let ty = self.case.body.ty(value).scalar().unwrap_or(ScalarType::I64);
                let bytes = self.values[value.index()].to_le_bytes()[..ty.bytes() as usize].to_vec();
                Ok(Value { ty, shape: Vec::new(), bytes })
            }
            Operand::Tensor(tensor) => {
                let held = self.held(line, tensor)?.clone();
                self.fetch(held.storage, target)?;
                Ok(Value::of(&self.storages[held.storage].bytes, &held, self.element(tensor)))
            }
        }
    }

    fn compared(&mut self, line: usize, relation: Relation, operand: Operand, [actual, expected]: [Value; 2]) {
        self.expectations += 1;
        let what = match operand {
            Operand::Tensor(tensor) => format!("`%{}`", self.case.tensors[tensor.0 as usize].name),
            Operand::Scalar(_) => "the value".to_owned(),
        };
        if actual.shape != expected.shape {
            let (found, wanted) = (actual.shape, expected.shape);
            self.failed(line, format!("{what} has shape {found:?}, expected {wanted:?}"));
            return;
        }
        let ty = actual.ty;
        let Some(at) = first_difference(relation, ty, &actual.bytes, &expected.bytes) else {
            return;
        };
        let pair = |at| (element(ty, &actual.bytes, at), element(ty, &expected.bytes, at));
        let (found, wanted) = pair(at);
        let count = actual.bytes.len() / ty.bytes() as usize;
        let wrong = (at..count).filter(|at| {
            let (found, wanted) = pair(*at);
            !agrees(relation, ty, found, wanted)
        });
        let wrong = wrong.count();
        let place = match operand {
            Operand::Tensor(_) => format!("{what}{:?}", index_of(&actual.shape, at)),
            Operand::Scalar(_) => what,
        };
        let (found, wanted) = (shown(relation, ty, found), shown(relation, ty, wanted));
        self.failed(line, format!("{place} is {found}, expected {wanted} ({wrong} of {count} elements differ)"));
    }

    fn failed(&mut self, line: usize, what: String) {
        self.failure.get_or_insert_with(|| format!("line {line}: {what}"));
    }
}

/// A value to be compared.
struct Value {
    ty: ScalarType,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

impl Value {
    fn of(storage: &[u8], held: &Held, ty: ScalarType) -> Self {
        let bytes = storage[held.bytes.start as usize..held.bytes.end as usize].to_vec();
        Self { ty, shape: held.shape.clone(), bytes }
    }
}

fn storages(actuals: &[Actual]) -> BTreeSet<usize> {
    let storage = |actual: &Actual| match actual {
        Actual::Tensor { storage, .. } => Some(*storage),
        Actual::Scalar(_) => None,
    };
    actuals.iter().filter_map(storage).collect()
}

fn at_line(line: usize, stop: Stop) -> Stop {
    match stop {
        Stop::Unsupported(why) => Stop::Unsupported(format!("line {line}: {why}")),
        Stop::Error(why) => Stop::Error(format!("line {line}: {why}")),
    }
}

/// The index of element `at` of a dense shape.
fn index_of(shape: &[u64], at: usize) -> Vec<u64> {
    let mut rest = at as u64;
    let mut index: Vec<u64> = shape
        .iter()
        .rev()
        .map(|extent| {
            let at = rest % extent;
            rest /= extent;
            at
        })
        .collect();
    index.reverse();
    index
}

/// A number of one kind as one of another.
fn converted(from: Numeric, to: Numeric, bits: u64) -> u64 {
    let op = match (from.ty.is_float(), to.ty.is_float()) {
        (true, true) => Convert::ExtF,
        (true, false) if to.signed => Convert::FToSi,
        (true, false) => Convert::FToUi,
        (false, true) if from.signed => Convert::SiToF,
        (false, true) => Convert::UiToF,
        (false, false) if from.ty.bits() >= to.ty.bits() => Convert::TruncI,
        (false, false) if from.signed => Convert::ExtSI,
        (false, false) => Convert::ExtUI,
    };
    eval::convert(op, from.ty, to.ty, bits)
}
