//! The plain per-node evaluator: the oracle of every faster path, and what folds constants. Nothing else uses it.
//!
//! `values of one lane --apply(op)--> values of one lane`
//!
//! - One lane at a time, one node at a time, in the order of the graph.
//! - Floating-point values are computed in f64 and rounded once, to the type of the node's result; so a sum is f64
//!   over its whole length. Integers are computed exactly and wrap to the width of their type.
//! - What depends on data and cannot be answered (an index out of range) is an [`EvalError`], never a panic.
//! - Not here: shapes and attributes, which import has checked; anything fast.

mod contract;
mod elementwise;
mod evaluator;
mod laned;
mod layout;
mod numbers;
mod recurrent;
mod reduce;

pub use evaluator::Evaluator;
pub use laned::OracleModel;
pub use numbers::erf;

use crate::graph::Op;
use crate::tensor::Tensor;
use lanes_core::DType;

/// Why a node has no value for these operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// An index that `Gather` cannot follow.
    #[error("index {index} is out of range for an axis of {extent}")]
    Index {
        /// What was found.
        index: i64,
        /// One more than the largest accepted; the smallest is its negative.
        extent: usize,
    },
    /// A sequence length that is negative or longer than the sequence.
    #[error("sequence length {length} is not in 0..={steps}")]
    SequenceLength {
        /// What was found.
        length: i64,
        /// The steps there are.
        steps: usize,
    },
    /// An integer was divided by zero.
    #[error("an integer is divided by zero")]
    DivisionByZero,
    /// An operand that the node needs is missing.
    #[error("operand {0} is missing")]
    Missing(usize),
}

/// The declared type and shape of one result.
pub type ResultInfo<'a> = (DType, &'a [usize]);

/// The results of `op`, one per entry of `results`, whose types and shapes import has inferred.
///
/// # Errors
/// When the operands' values have no answer. Panics on operands of other types or shapes than the graph declares.
pub fn apply(op: &Op, operands: &[Option<&Tensor>], results: &[ResultInfo<'_>]) -> Result<Vec<Tensor>, EvalError> {
    let operand = |at: usize| operands.get(at).copied().flatten().ok_or(EvalError::Missing(at));
    let optional = |at: usize| operands.get(at).copied().flatten();
    let (dtype, shape) = results[0];
    let one = |tensor: Tensor| Ok(vec![tensor]);
    match op {
        Op::Unary(unary) => one(elementwise::unary(*unary, operand(0)?)),
        Op::Binary(binary) => one(elementwise::binary(*binary, operand(0)?, operand(1)?, dtype, shape)?),
        Op::Where => one(layout::choose(operand(0)?, operand(1)?, operand(2)?, shape)),
        Op::Clip => one(elementwise::clip(operand(0)?, optional(1), optional(2))),
        Op::Cast => one(elementwise::cast(operand(0)?, dtype)),
        Op::Reshape => one(operand(0)?.reshaped(shape.to_vec())),
        Op::Transpose { perm } => one(layout::transpose(operand(0)?, perm)),
        Op::Expand => one(layout::expand(operand(0)?, shape)),
        Op::Concat { axis } => {
            let parts = (0..operands.len()).map(operand).collect::<Result<Vec<_>, _>>()?;
            one(layout::concat(&parts, *axis, shape))
        }
        Op::Slice { axes } => one(layout::slice(operand(0)?, axes, shape)),
        Op::Gather { axis } => one(layout::gather(operand(0)?, operand(1)?, *axis, shape)?),
        Op::Pad { before, mode, .. } => one(layout::pad(operand(0)?, optional(1), before, *mode, shape)),
        Op::MatMul => one(contract::matmul(operand(0)?, operand(1)?, shape)),
        Op::Gemm { alpha, beta, trans_a, trans_b } => {
            let (scales, transposed) = ((*alpha, *beta), (*trans_a, *trans_b));
            one(contract::gemm(operand(0)?, operand(1)?, optional(2), scales, transposed, shape))
        }
        Op::Conv { window, group } => one(contract::conv(operand(0)?, operand(1)?, optional(2), window, *group, shape)),
        Op::Recurrent(recurrent) => {
            let values = recurrent::run(recurrent, operands)?;
            Ok(values.into_iter().take(results.len()).collect())
        }
        Op::LayerNorm { axis, epsilon } => {
            one(reduce::layer_norm(operand(0)?, operand(1)?, optional(2), *axis, *epsilon))
        }
        Op::BatchNorm { epsilon } => {
            one(reduce::batch_norm([operand(0)?, operand(1)?, operand(2)?, operand(3)?, operand(4)?], *epsilon))
        }
        Op::Softmax { axis } => one(reduce::softmax(operand(0)?, *axis)),
        Op::Reduce { kind, axes, .. } => one(reduce::reduce(operand(0)?, *kind, axes, shape)),
        Op::CumSum { axis, exclusive, reverse } => one(reduce::cumsum(operand(0)?, *axis, *exclusive, *reverse)),
    }
}
