//! The checked graph: one lane's worth of a model, every shape known.
//!
//! `bytes --proto--> model --import--> Graph --oracle--> values, --lower--> plans`
//!
//! - The graph is the model **at lane extent 1**: the lane axis, wherever a value has it, has extent 1. Dropping an
//!   axis of extent 1 moves no byte, so one seat's value of an input, output or state is the graph's value.
//! - Nodes are in topological order, every value has one producer (a node, a constant or an input), no node is dead.
//! - Every attribute is resolved: axes are non-negative, pads explicit, slices in bounds, shapes known. What differs
//!   between opsets has been normalised away, and what has one answer at import (`Shape`, `Size`, `Range`,
//!   `ConstantOfShape`, `If`, anything of constants) has been folded.
//! - Not here: the meaning of protobuf fields (`import`), lanes (`lanes`), how an op is computed (`oracle`).

use crate::tensor::Tensor;
use lanes_core::DType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A value of a graph: an index into [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

impl ValueId {
    /// Its place in [`Graph::values`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is known of a value before anything runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// The name in the model; made up, and unique, for a value that normalisation added.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The extents at lane extent 1.
    pub shape: Vec<usize>,
}

impl ValueInfo {
    /// Elements of one lane's value. Import has checked that the product fits.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one lane's value.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Node {
    /// The node's name in the model, or its first output's name when it has none.
    pub name: String,
    /// The operator's name in the model, for messages and counts: `Squeeze` where `op` is [`Op::Reshape`].
    pub onnx: String,
    /// What it computes.
    pub op: Op,
    /// Operands by position; `None` where an optional one was left out. Trailing `None`s are not kept.
    pub inputs: Vec<Option<ValueId>>,
    /// Results by position; `None` where nobody asked for one.
    pub outputs: Vec<Option<ValueId>>,
}

/// A model at lane extent 1. See the module for what holds.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The model's name, for messages.
    pub name: String,
    /// The version of the default operator set the model was written in.
    pub opset: i64,
    /// Every value, named by [`ValueId`].
    pub values: Vec<ValueInfo>,
    /// In topological order.
    pub nodes: Vec<Node>,
    /// Values known at import.
    pub constants: BTreeMap<ValueId, Arc<Tensor>>,
    /// What a turn brings: stream inputs, shared inputs and states, in the model's order; fixed inputs are constants.
    pub inputs: Vec<ValueId>,
    /// What a turn produces, in the model's order. One may be an input or a constant, and two may be the same value.
    pub outputs: Vec<ValueId>,
}

impl Graph {
    /// The value's declaration.
    pub fn value(&self, id: ValueId) -> &ValueInfo {
        &self.values[id.index()]
    }

    /// The value's contents when it is known at import.
    pub fn constant(&self, id: ValueId) -> Option<&Arc<Tensor>> {
        self.constants.get(&id)
    }
}

/// An elementwise function of one operand. Result and operand have one type and shape. f16 and bf16 are computed in
/// f32 and rounded once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// √x (`Sqrt`).
    Sqrt,
    /// |x| (`Abs`); of integers, wrapping.
    Abs,
    /// −x (`Neg`); of integers, wrapping.
    Neg,
    /// eˣ (`Exp`).
    Exp,
    /// ln x (`Log`).
    Log,
    /// 2/√π ∫₀ˣ e^(−t²) dt (`Erf`).
    Erf,
    /// max(x, 0); NaN stays NaN (`Relu`).
    Relu,
    /// x where x ≥ 0, else alpha·x (`LeakyRelu`).
    LeakyRelu {
        /// The slope below zero.
        alpha: f32,
    },
    /// 1 / (1 + e⁻ˣ) (`Sigmoid`).
    Sigmoid,
    /// tanh x (`Tanh`).
    Tanh,
    /// ln(1 + eˣ), without overflow (`Softplus`).
    Softplus,
    /// x/2 · (1 + erf(x/√2)) (`Gelu`, approximate "none").
    Gelu,
    /// x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))) (`Gelu`, approximate "tanh").
    GeluTanh,
    /// The greatest integer not above x (`Floor`).
    Floor,
    /// The least integer not below x (`Ceil`).
    Ceil,
    /// The nearest integer, halves to even (`Round`).
    Round,
    /// sin x (`Sin`).
    Sin,
    /// cos x (`Cos`).
    Cos,
    /// Logical negation of a boolean (`Not`).
    Not,
}

/// An elementwise function of two operands of one type, broadcast against each other as NumPy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// a + b (`Add`); integers wrap.
    Add,
    /// a − b (`Sub`); integers wrap.
    Sub,
    /// a · b (`Mul`); integers wrap.
    Mul,
    /// a / b (`Div`); integers truncate towards zero.
    Div,
    /// a to the b (`Pow`). The result has a's type; b is converted to it first where that is exact, see `import`.
    Pow,
    /// The lesser (`Min`); NaN if either is.
    Min,
    /// The greater (`Max`); NaN if either is.
    Max,
    /// Whether a = b (`Equal`); the result is boolean.
    Equal,
    /// Whether a < b (`Less`); the result is boolean.
    Less,
    /// Whether a ≤ b (`LessOrEqual`); the result is boolean.
    LessOrEqual,
    /// Whether a > b (`Greater`); the result is boolean.
    Greater,
    /// Whether a ≥ b (`GreaterOrEqual`); the result is boolean.
    GreaterOrEqual,
    /// Logical and of booleans (`And`).
    And,
    /// Logical or of booleans (`Or`).
    Or,
}

/// What a reduction computes of the elements it takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Σx / n (`ReduceMean`).
    Mean,
    /// Σx (`ReduceSum`).
    Sum,
    /// The greatest (`ReduceMax`); NaN if any is.
    Max,
    /// The least (`ReduceMin`); NaN if any is.
    Min,
}

/// What a pad fills the border with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// Operand 1, a scalar; zero when left out.
    Constant,
    /// The mirror image without the edge itself.
    Reflect,
    /// The edge.
    Edge,
}

/// A slice along one axis: elements `start + i·step` for `i` in `0..len`; every one is in bounds. `step` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceAxis {
    /// Which axis.
    pub axis: usize,
    /// The first element.
    pub start: usize,
    /// The distance, which may be negative.
    pub step: isize,
    /// How many.
    pub len: usize,
}

/// A window's geometry, per spatial axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Extent of the kernel.
    pub kernel: Vec<usize>,
    /// Distance between windows.
    pub strides: Vec<usize>,
    /// Distance between a window's taps.
    pub dilations: Vec<usize>,
    /// Zeros before the first element.
    pub pads_begin: Vec<usize>,
    /// Zeros after the last.
    pub pads_end: Vec<usize>,
}

/// Which cell a recurrence runs. Gate order of W, R, B is ONNX's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// H = f(X Wᵀ + H Rᵀ + Wb + Rb). One activation f. (`RNN`)
    Rnn,
    /// Gates z, r, h. z = f(X Wzᵀ + H Rzᵀ + Wbz + Rbz), r likewise, h = g(X Whᵀ + (r⊙H) Rhᵀ + Rbh + Wbh), or
    /// with `linear_before_reset` h = g(X Whᵀ + r⊙(H Rhᵀ + Rbh) + Wbh); H = (1 − z)⊙h + z⊙H. Activations f, g. (`GRU`)
    Gru {
        /// Whether the recurrent product of h is taken before the reset gate is applied.
        linear_before_reset: bool,
    },
    /// Gates i, o, f, c. i = f(X Wiᵀ + H Riᵀ + Pi⊙C + Wbi + Rbi), f likewise with Pf; c = g(X Wcᵀ + H Rcᵀ + Wbc + Rbc);
    /// C' = f⊙C + i⊙c; o = f(X Woᵀ + H Roᵀ + Po⊙C' + Wbo + Rbo); H' = o⊙h(C'). Activations f, g, h. (`LSTM`)
    Lstm {
        /// Whether f = 1 − i (input and forget gates coupled).
        input_forget: bool,
    },
}

impl Cell {
    /// Gates: rows of W, R and B come in so many groups of `hidden`.
    pub const fn gates(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 3,
            Self::Lstm { .. } => 4,
        }
    }

    /// Activation functions per direction.
    pub const fn activations(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 2,
            Self::Lstm { .. } => 3,
        }
    }
}

/// An activation function of a recurrent cell, with its alpha and beta.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CellActivation {
    /// max(0, x).
    Relu,
    /// tanh x.
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// alpha·x + beta.
    Affine {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// x where x ≥ 0, else alpha·x.
    LeakyRelu {
        /// The slope below zero.
        alpha: f32,
    },
    /// x where x ≥ alpha, else 0.
    ThresholdedRelu {
        /// The threshold.
        alpha: f32,
    },
    /// alpha·tanh(beta·x).
    ScaledTanh {
        /// Outer scale.
        alpha: f32,
        /// Inner scale.
        beta: f32,
    },
    /// min(max(alpha·x + beta, 0), 1).
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// x where x ≥ 0, else alpha·(eˣ − 1).
    Elu {
        /// The limit below zero, negated.
        alpha: f32,
    },
    /// x / (1 + |x|).
    Softsign,
    /// ln(1 + eˣ).
    Softplus,
}

/// The order in which a direction of a recurrence reads its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// First to last.
    Forward,
    /// Last to first.
    Reverse,
}

/// A recurrence: operands X, W, R, B, sequence_lens, initial_h and, of an LSTM, initial_c, P; results Y, Y_h and, of an
/// LSTM, Y_c. Shapes are ONNX's for layout 0 (X `[steps, batch, input]`, W `[directions, gates·hidden, input]`,
/// initial_h `[directions, batch, hidden]`, Y `[steps, directions, batch, hidden]`); import turns layout 1 into
/// [`Op::Transpose`] around it. `sequence_lens` is i32 `[batch]`: a step at or past the length leaves H and C as they
/// are and gives zeros in Y; a reversed direction starts at the sequence's own last step.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// The cell.
    pub cell: Cell,
    /// Extent of H.
    pub hidden: usize,
    /// One entry a direction, in the order of W's axis 0.
    pub directions: Vec<Direction>,
    /// `cell.activations()` functions per direction, direction after direction.
    pub activations: Vec<CellActivation>,
    /// Bounds gate pre-activations to [−clip, clip].
    pub clip: Option<f32>,
}

/// What a node computes. Reference: <https://onnx.ai/onnx/operators/>; the operator's name is in brackets.
///
/// The result's shape and type are in the graph's [`ValueInfo`]s and are not repeated in attributes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Elementwise, one operand.
    Unary(Unary),
    /// Elementwise, two operands, broadcast.
    Binary(Binary),
    /// b where a is true, else c, broadcast (`Where`).
    Where,
    /// min(max(x, low), high); operands x, low, high: scalars of x's type, each may be left out (`Clip`).
    Clip,
    /// Conversion to the result's type as C converts; to boolean: x ≠ 0; float to integer truncates and saturates,
    /// NaN gives 0 (`Cast`).
    Cast,
    /// The same elements in order, in the result's shape (`Reshape`, `Flatten`, `Squeeze`, `Unsqueeze`, `Identity`).
    Reshape,
    /// Axis `i` of the result is axis `perm[i]` of the operand (`Transpose`).
    Transpose {
        /// A permutation.
        perm: Vec<usize>,
    },
    /// Broadcasts operand 0 to the result's shape (`Expand`). The wanted shape has been resolved and is no operand.
    Expand,
    /// The operands one after the other along `axis` (`Concat`).
    Concat {
        /// Along which axis.
        axis: usize,
    },
    /// Part of the operand (`Slice`; every piece of a `Split`).
    Slice {
        /// One entry per axis that is not taken whole, no axis twice.
        axes: Vec<SliceAxis>,
    },
    /// Entries of operand 0 along `axis`, chosen by the integers of operand 1, whose axes take its place; an index
    /// below zero counts from the end; one out of bounds fails the seat (`Gather`).
    Gather {
        /// Along which axis.
        axis: usize,
    },
    /// A border around the operand (`Pad`; a negative pad has become a [`Op::Slice`]).
    Pad {
        /// Elements added before, per axis.
        before: Vec<usize>,
        /// Elements added after, per axis.
        after: Vec<usize>,
        /// What they are.
        mode: PadMode,
    },
    /// Matrix product over the last two axes, outer axes broadcast, as `numpy.matmul` (`MatMul`). An operand of rank
    /// 1 is a row on the left, a column on the right, and that axis is not in the result.
    MatMul,
    /// alpha·A'B' + beta·C, A' being A or its transpose; C is broadcast and may be left out (`Gemm`).
    Gemm {
        /// Scale of the product.
        alpha: f32,
        /// Scale of C.
        beta: f32,
        /// Whether A is `[K, M]`.
        trans_a: bool,
        /// Whether B is `[N, K]`.
        trans_b: bool,
    },
    /// Cross-correlation of X `[N, C, …]` with W `[M, C/group, …]`, plus B `[M]` (`Conv`), with one to three spatial axes.
    Conv {
        /// The geometry.
        window: Window,
        /// Groups that channels are split into.
        group: usize,
    },
    /// `LSTM`, `GRU`, `RNN`.
    Recurrent(Recurrent),
    /// (x − mean) / √(variance + epsilon) · scale + bias over the axes from `axis` on; operands x, scale, bias, the
    /// latter two of the shape of those axes or broadcast to it; bias may be left out (`LayerNormalization`). Only the
    /// first result is supported.
    LayerNorm {
        /// First normalised axis.
        axis: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// (x − mean) / √(variance + epsilon) · scale + bias by channel (axis 1); operands x, scale, bias, mean,
    /// variance, each of the latter `[C]` (`BatchNormalization` at inference).
    BatchNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// e^(x − max) / Σ e^(x − max) along `axis` (`Softmax`; before opset 13, between reshapes).
    Softmax {
        /// Along which axis.
        axis: usize,
    },
    /// A reduction (`Reduce…`). No axis: the operand itself.
    Reduce {
        /// Of which kind.
        kind: Reduction,
        /// Which axes, ascending.
        axes: Vec<usize>,
        /// Whether they stay, with extent 1.
        keepdims: bool,
    },
    /// Running sums along `axis` (`CumSum`); the axis operand has been resolved.
    CumSum {
        /// Along which axis.
        axis: usize,
        /// Whether an element's own value is left out.
        exclusive: bool,
        /// Whether sums run from the end.
        reverse: bool,
    },
}
