//! From a node to ops of the graph: which operator it is, with which operands; control flow.
//!
//! What an operator means is in `elementwise`, `shaping` and `layers`; here are the table, and `If`, which is folded:
//! its condition must be known at import, and the branch taken becomes part of the graph.

use super::attributes::Attributes;
use super::builder::{Builder, Current, Fault, Unsupported};
use super::order;
use crate::error::ModelError;
use crate::graph::ValueId;
use crate::onnx::proto::{GraphProto, NodeProto};
use lanes_core::DType;

/// Every operator that is supported.
const OPERATORS: &str = "Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast CastLike Ceil Clip Concat \
    Constant ConstantOfShape Conv ConvTranspose Cos CumSum DequantizeLinear Div Dropout \
    DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand Flatten Floor GRU Gather Gelu Gemm \
    GlobalAveragePool Greater GreaterOrEqual HardSigmoid HardSwish Identity If \
    InstanceNormalization LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax \
    MatMul MatMulInteger Max MaxPool Mean Min Mish Mod Mul Neg Not OneHot Or PRelu Pad Pow \
    QuantizeLinear RNN Range Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin \
    ReduceSum ReduceSumSquare Relu Reshape Round ScatterND Selu Shape Sigmoid Sign Sin Size Slice \
    Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Swish Tanh Tile Transpose Trilu Unsqueeze \
    Where Xor";

/// One node, being translated.
pub(super) struct Call<'n> {
    pub(super) attributes: Attributes<'n>,
    pub(super) operands: Vec<Option<ValueId>>,
    /// For each result, whether anybody asked for it.
    pub(super) wanted: Vec<bool>,
}

impl Call<'_> {
    /// An operand that must be there.
    pub(super) fn operand(&self, at: usize) -> Result<ValueId, Fault> {
        self.optional(at).ok_or_else(|| Fault::Malformed(format!("operand {at} is missing")))
    }

    /// An operand that may be left out.
    pub(super) fn optional(&self, at: usize) -> Option<ValueId> {
        self.operands.get(at).copied().flatten()
    }

    /// Refuses results past the first `count`.
    pub(super) fn only_results(&self, count: usize) -> Result<(), Fault> {
        match self.wanted.iter().skip(count).position(|&wanted| wanted) {
            None => Ok(()),
            Some(past) => Err(Fault::Unsupported(format!(
                "result {} is used; only the first {count} of it are supported",
                past + count
            ))),
        }
    }
}

/// Results of a call: one value each.
pub(super) type Results = Result<Vec<ValueId>, Fault>;

impl Builder<'_> {
    /// Translates the initializers and nodes of a graph or branch into the innermost scope.
    pub(super) fn graph(&mut self, graph: &GraphProto) -> Result<(), ModelError> {
        if !graph.sparse_initializer.is_empty() {
            return Err(ModelError::malformed("the model has sparse initializers; dense ones are supported"));
        }
        for initializer in &graph.initializer {
            self.current = Current { name: initializer.name.clone(), op: "initializer".into() };
            let tensor = self.data.tensor(initializer, &format!("initializer {:?}", initializer.name));
            let id = match tensor {
                Ok(tensor) => Some(self.constant(tensor)),
                Err(error) if self.lenient => {
                    self.note_unsupported(error.to_string());
                    None
                }
                Err(error) => return Err(error),
            };
            self.bind(&initializer.name, id).map_err(|fault| self.error(fault))?;
        }
        self.settle_names();
        for node in order::topological(graph)? {
            let name =
                if node.name.is_empty() { node.output.iter().find(|name| !name.is_empty()) } else { Some(&node.name) };
            self.current = Current { name: name.cloned().unwrap_or_default(), op: node.op_type.clone() };
            let here = self.current.clone();
            let results = self.node(node);
            self.current = here;
            let results = match results {
                Ok(results) => results.into_iter().map(Some).collect(),
                Err(fault) => {
                    let error = self.error(fault);
                    if !self.lenient {
                        return Err(error);
                    }
                    vec![None; node.output.len()]
                }
            };
            for (at, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                let Some(&id) = results.get(at) else {
                    let why = format!("it has {} results, and {} are named", results.len(), node.output.len());
                    return Err(self.error(Fault::Malformed(why)));
                };
                self.bind(name, id).map_err(|fault| self.error(fault))?;
            }
            self.settle_names();
        }
        Ok(())
    }

    fn note_unsupported(&mut self, why: String) {
        let Current { name: node, op } = self.current.clone();
        self.unsupported.push(Unsupported { node, op, why });
    }

    /// The error that a fault of the current node is; a lenient import notes it too.
    pub(super) fn error(&mut self, fault: Fault) -> ModelError {
        let Current { name: node, op } = self.current.clone();
        match fault {
            Fault::Unsupported(why) => {
                self.note_unsupported(why.clone());
                // That it mixes lanes is the stronger reason: no support would help.
                match self.mixes.clone().filter(|mixes| mixes.node == node) {
                    Some(mixes) => ModelError::MixesLanes(mixes),
                    None => ModelError::Unsupported { node, op, why },
                }
            }
            Fault::Malformed(why) => {
                self.note_unsupported(why.clone());
                ModelError::malformed(format!("node {node} ({op}): {why}"))
            }
            Fault::Data(error) => error,
            Fault::Unknown => ModelError::malformed(format!("node {node} ({op}) needs a value that is not known")),
        }
    }

    fn node(&mut self, node: &NodeProto) -> Results {
        if !matches!(node.domain.as_str(), "" | "ai.onnx") {
            return Err(Fault::Unsupported(format!(
                "operators of domain {:?}; those of the default domain are supported",
                node.domain
            )));
        }
        let look_up = |name: &String| {
            if name.is_empty() { Ok(None) } else { self.look_up(name).map(Some) }
        };
        let call = Call {
            attributes: Attributes::of(node)?,
            operands: node.input.iter().map(look_up).collect::<Result<_, _>>()?,
            wanted: node.output.iter().map(|name| !name.is_empty()).collect(),
        };
        let results = self.call(&node.op_type, &call)?;
        call.attributes.finish()?;
        Ok(results)
    }

    fn call(&mut self, op: &str, call: &Call<'_>) -> Results {
        if let Some(results) = self.elementwise(op, call)? {
            return Ok(results);
        }
        if let Some(results) = self.shaping(op, call)? {
            return Ok(results);
        }
        if let Some(results) = self.layers(op, call)? {
            return Ok(results);
        }
        if let Some(results) = self.composed(op, call)? {
            return Ok(results);
        }
        if let Some(results) = self.placed(op, call)? {
            return Ok(results);
        }
        match op {
            "If" => self.branch(call),
            "Einsum" => Ok(vec![self.einsum(call)?]),
            _ => Err(Fault::Unsupported(format!("no such operator here; supported are {OPERATORS}"))),
        }
    }

    /// `If`: the branch that its condition, known at import, takes.
    fn branch(&mut self, call: &Call<'_>) -> Results {
        let condition = call.operand(0)?;
        let known = self.known(condition).ok_or_else(|| self.not_known(condition, "its condition"))?;
        if known.dtype() != DType::Bool || known.len() != 1 {
            let found = format!("its condition is {} of shape {:?}", known.dtype(), known.shape());
            return Err(Fault::Malformed(format!("{found}, and one boolean is expected")));
        }
        let truth = known.bools()[0] != 0;
        // Both are asked for, so that neither is an unknown attribute.
        let (then, other) = (call.attributes.graph("then_branch")?, call.attributes.graph("else_branch")?);
        let taken = if truth { then } else { other };
        self.open_scope();
        let body = self.graph(taken);
        let results = taken.output.iter().map(|output| self.look_up(&output.name)).collect::<Results>();
        self.close_scope();
        body?;
        results
    }

    // What operands must be.

    pub(super) fn expect_float(&self, id: ValueId) -> Result<(), Fault> {
        match self.dtype(id) {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Ok(()),
            other => Err(Fault::Unsupported(format!("operands of {other}; floating-point ones are supported"))),
        }
    }

    pub(super) fn expect_number(&self, id: ValueId) -> Result<(), Fault> {
        match self.dtype(id) {
            DType::Bool => Err(Fault::Unsupported("operands of bool; numbers are supported".into())),
            _ => Ok(()),
        }
    }

    pub(super) fn expect_bool(&self, id: ValueId) -> Result<(), Fault> {
        match self.dtype(id) {
            DType::Bool => Ok(()),
            other => Err(Fault::Unsupported(format!("operands of {other}; bool is supported"))),
        }
    }

    pub(super) fn expect_same_dtype(&self, ids: &[ValueId]) -> Result<(), Fault> {
        match ids.iter().find(|&&id| self.dtype(id) != self.dtype(ids[0])) {
            None => Ok(()),
            Some(&other) => Err(Fault::Malformed(format!(
                "operands of {} and {}; one type is expected",
                self.dtype(ids[0]),
                self.dtype(other)
            ))),
        }
    }

    pub(super) fn expect_rank(
        &self,
        id: ValueId,
        rank: std::ops::RangeInclusive<usize>,
        what: &str,
    ) -> Result<(), Fault> {
        let shape = self.shape(id);
        if rank.contains(&shape.len()) {
            return Ok(());
        }
        let wanted = if rank.start() == rank.end() {
            format!("{}", rank.start())
        } else {
            format!("{} to {}", rank.start(), rank.end())
        };
        Err(Fault::Unsupported(format!("{what} has shape {shape:?}; rank {wanted} is supported")))
    }

    pub(super) fn expect_shape(&self, id: ValueId, shape: &[usize], what: &str) -> Result<(), Fault> {
        match self.shape(id) {
            found if found == shape => Ok(()),
            found => Err(Fault::Malformed(format!("{what} has shape {found:?}, and {shape:?} is expected"))),
        }
    }
}

/// A position of one of `rank` axes, counted from the end when negative.
pub(super) fn axis_of(axis: i64, rank: usize) -> Result<usize, Fault> {
    let found = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    found
        .and_then(|axis| usize::try_from(axis).ok())
        .filter(|&axis| axis < rank)
        .ok_or_else(|| Fault::Malformed(format!("axis {axis} of a value of rank {rank}")))
}

/// Positions of `rank` axes, ascending, none twice.
pub(super) fn axes_of(axes: &[i64], rank: usize) -> Result<Vec<usize>, Fault> {
    let mut found = axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?;
    found.sort_unstable();
    if found.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Fault::Malformed(format!("axes {axes:?} name one axis twice")));
    }
    Ok(found)
}

/// The shape that operands broadcast to, as NumPy does.
pub(super) fn broadcast_shape(shapes: &[&[usize]]) -> Result<Vec<usize>, Fault> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut result = vec![1; rank];
    for shape in shapes {
        for (at, &extent) in (rank - shape.len()..).zip(*shape) {
            match (result[at], extent) {
                (_, 1) => {}
                (1, extent) => result[at] = extent,
                (found, extent) if found == extent => {}
                _ => {
                    return Err(Fault::Malformed(format!("operands of shapes {shapes:?} do not broadcast")));
                }
            }
        }
    }
    Ok(result)
}
