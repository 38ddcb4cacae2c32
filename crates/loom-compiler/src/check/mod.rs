//! Checks that a text carries: cases and scenarios as plain typed programs of the host, and how they are run.
//!
//! ```text
//! check.case ──Module::case──> Case { parameters, steps } ──run──> a Verdict for each sample, on any Target
//! ```
//!
//! - A case's scalars are values of one [`Body`], computed on the host; its tensors are bytes, dense and row-major.
//! - A sample is one choice of all parameters; the first parameter varies fastest.
//! - Sizes come from the text: bytes, samples, trials and steps are bounded by [`Limits`], and nothing panics.
//! - Not here: how the text is read (`build::check`), devices and files ([`Target`], [`Files`]).

mod calls;
mod entropy;
mod expect;
mod generate;
mod interpreted;
mod run;

pub use entropy::Entropy;
pub use generate::Uniform;
pub use interpreted::Interpreted;
pub use run::{Actual, Array, Files, Limits, NoFiles, Provided, Sample, Status, Stop, Target, Verdict, run};

use crate::ir::{BlockId, Body, ValueId};
use crate::types::{Dim, ScalarType};
use std::ops::Range;

/// The most samples of one case.
pub const MAX_SAMPLES: u64 = 1 << 16;

/// Where a case is in its text, and whether a runner finds it by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseName {
    /// The symbol, without `@`.
    pub name: String,
    /// Whether it runs unless others are named.
    pub public: bool,
    /// Whether it is a `check.scenario`.
    pub scenario: bool,
}

/// `check.benchmark`: a case to time, some of its parameters bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// Its own symbol, or the case's.
    pub name: String,
    /// The case's symbol.
    pub case: String,
    /// Parameter names and their values as written.
    pub bound: Vec<(String, Literal)>,
}

/// A number as written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Literal {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
}

impl Eq for Literal {}

/// One verified case or scenario.
#[derive(Clone, Debug)]
pub struct Case {
    /// The symbol, without `@`.
    pub name: String,
    /// In order of appearance.
    pub parameters: Vec<Parameter>,
    /// What must hold of the device, or the case is skipped.
    pub requirements: Vec<Requirement>,
    /// By [`TensorId`].
    pub tensors: Vec<Tensor>,
    /// How many entropy values there are.
    pub(crate) entropies: usize,
    /// The scalars.
    pub(crate) body: Body,
    /// In order.
    pub(crate) steps: Vec<Step>,
}

/// What varies between samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its `name(..)`, or the name of its value.
    pub name: String,
    /// Of its value.
    pub ty: ScalarType,
    /// The values it takes.
    pub domain: Domain,
    pub(crate) value: ValueId,
}

/// The values of a parameter, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Domain {
    /// `first + k·step`, integers.
    Linear {
        /// The value at 0.
        first: i64,
        /// Above zero.
        step: i64,
        /// At least 1.
        count: u64,
    },
    /// `first + k·step`, floats.
    LinearFloat {
        /// The value at 0.
        first: f64,
        /// Above zero.
        step: f64,
        /// At least 1.
        count: u64,
    },
    /// `first·2^k`.
    PowersOfTwo {
        /// A power of two.
        first: i64,
        /// At least 1.
        count: u64,
    },
    /// Listed.
    Choice(Vec<i64>),
}

/// `check.requires` or `check.skip_if`.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirement {
    /// The provider's key.
    pub provider: String,
    /// What is asked of it; entries other than numbers and words have no value.
    pub entries: Vec<(String, Option<String>)>,
    /// For `check.skip_if`, why a case is skipped where it holds.
    pub skip_reason: Option<String>,
}

/// A tensor of one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub(crate) u32);

/// An entropy value of one scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntropyId(pub(crate) u32);

/// The type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name in the text, without `%`.
    pub name: String,
    /// Of one element.
    pub element: ScalarType,
    /// Outermost first.
    pub dims: Vec<Dim>,
}

/// What an op of a case names: a scalar, or a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Computed on the host.
    Scalar(ValueId),
    /// Bytes.
    Tensor(TensorId),
}

/// One op, and the line it is on.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) kind: StepKind,
}

#[derive(Clone, Debug)]
pub(crate) enum StepKind {
    /// Ops of a block of the body.
    Compute(BlockId, Range<usize>),
    /// Every element has these bits.
    Fill { to: TensorId, bits: u64 },
    /// `offset + i·step`, `i` taken modulo the period.
    Iota { to: TensorId, offset: Literal, step: Literal, period: Option<u64> },
    /// The generator of `generate::Uniform`.
    Uniform { to: TensorId, seed: ValueId, low: Literal, high: Literal },
    /// A NumPy file.
    Read { to: TensorId, path: String },
    /// The same, written.
    Write { from: TensorId, path: String, on_failure: bool },
    /// The same storage, from byte `offset` on.
    View { to: TensorId, from: TensorId, offset: ValueId },
    /// A kernel.
    Launch { kernel: String, workload: Vec<ValueId>, arguments: Vec<Operand> },
    /// A function on the host.
    Call { call: Call, results: Vec<ValueId> },
    /// The built-in matrix product.
    Matmul { matmul: Matmul, to: TensorId },
    /// An expectation.
    Expect { actual: Operand, expected: Operand, relation: Relation },
    /// `check.expect.shape`.
    Shape { value: TensorId, dims: Vec<Dim> },
    /// A comparator or oracle that no runner of ours has.
    Unsupported { what: String },
    /// As many events of a device as this, of those that match a pattern.
    Events {
        count: u64,
        /// What a launch that was fine did not report, where a target would have; else `None`, for what none looks for.
        seen: Option<&'static str>,
    },
    /// Runs its steps `count` times.
    Trial { count: ValueId, index: ValueId, entropy: Option<EntropyId>, ordinal: u64, steps: Vec<Step> },
    /// `entropy::Entropy::fork`.
    Fork { to: EntropyId, from: EntropyId, name: String },
    /// `entropy::Entropy::read`.
    ReadEntropy { to: ValueId, from: EntropyId, at: ValueId },
    /// Two runs on copies of what they touch, and what is expected of them.
    Compare { compare: Compare, expect: Vec<Step> },
}

/// A call of a `func.def`, or of a kernel that takes no workload.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) callee: String,
    /// Whether it is a kernel.
    pub(crate) kernel: bool,
    pub(crate) workload: Vec<ValueId>,
    pub(crate) arguments: Vec<Operand>,
    /// Types of the results, all scalars.
    pub(crate) results: Vec<ScalarType>,
}

#[derive(Clone, Debug)]
pub(crate) struct Compare {
    /// Run on the target.
    pub(crate) actual: Call,
    /// Run by the interpreter.
    pub(crate) expected: Call,
    /// Where the scalar results go.
    pub(crate) actual_results: Vec<ValueId>,
    pub(crate) expected_results: Vec<ValueId>,
}

/// How two values are to agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Relation {
    /// As numbers: the zeros are equal, a NaN equals nothing.
    Equal,
    /// The same bits.
    Bitwise,
    /// `|a − e| ≤ absolute + relative·|e|` in f64.
    Close { absolute: f64, relative: f64, nan_is_nan: bool },
}

/// `lhs[M, K] · rhs[K, N] (+ start[M, N])`.
#[derive(Clone, Debug)]
pub(crate) struct Matmul {
    pub(crate) lhs: (TensorId, Numeric),
    pub(crate) rhs: (TensorId, Numeric),
    pub(crate) start: Option<TensorId>,
    pub(crate) accumulator: Numeric,
    pub(crate) result: Numeric,
}

/// What an element's bits mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numeric {
    pub(crate) ty: ScalarType,
    /// Of an integer.
    pub(crate) signed: bool,
}

impl Domain {
    /// How many values; at least one.
    pub fn count(&self) -> u64 {
        match self {
            Self::Linear { count, .. } | Self::LinearFloat { count, .. } | Self::PowersOfTwo { count, .. } => *count,
            Self::Choice(values) => values.len() as u64,
        }
    }

    /// Value `at`, which is below the count.
    pub fn value(&self, at: u64) -> Literal {
        match self {
            Self::Linear { first, step, .. } => Literal::Int(first.wrapping_add(step.wrapping_mul(at as i64))),
            Self::LinearFloat { first, step, .. } => Literal::Float(first + step * at as f64),
            Self::PowersOfTwo { first, .. } => Literal::Int(first << at.min(62)),
            Self::Choice(values) => Literal::Int(values.get(at as usize).copied().unwrap_or_default()),
        }
    }
}

impl Case {
    /// How many samples: the product of the parameters' counts, at most [`MAX_SAMPLES`].
    pub fn samples(&self) -> u64 {
        self.parameters.iter().map(|parameter| parameter.domain.count()).product()
    }
}
