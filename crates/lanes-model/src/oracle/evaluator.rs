//! Runs a graph, node by node, for one lane.

use super::{EvalError, apply};
use crate::graph::{Graph, ValueId};
use crate::tensor::Tensor;
use std::sync::Arc;

/// One run of a graph after another, one lane at a time; every value of the last run can be looked at.
#[derive(Clone, Debug)]
pub struct Evaluator {
    graph: Arc<Graph>,
    values: Vec<Option<Tensor>>,
}

/// A node that has no value for its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} ({op}): {source}")]
pub struct NodeError {
    /// The node's name.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Why.
    #[source]
    pub source: EvalError,
}

impl Evaluator {
    /// An evaluator of `graph`.
    pub fn new(graph: Arc<Graph>) -> Self {
        let mut values = vec![None; graph.values.len()];
        for (id, tensor) in &graph.constants {
            values[id.index()] = Some(tensor.as_ref().clone());
        }
        Self { graph, values }
    }

    /// The graph it runs.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Runs one lane's step: one tensor per graph input, in order, each of the declared type and as many elements.
    /// Returns one per graph output.
    ///
    /// # Errors
    /// The first node that has no value for these inputs. Panics when an input is not of its declared type and size.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, NodeError> {
        let graph = self.graph.clone();
        assert_eq!(inputs.len(), graph.inputs.len(), "one tensor per graph input");
        for (&id, tensor) in graph.inputs.iter().zip(inputs) {
            let declared = graph.value(id);
            assert_eq!(tensor.dtype(), declared.dtype, "input {}", declared.name);
            self.values[id.index()] = Some(tensor.reshaped(declared.shape.clone()));
        }
        for node in &graph.nodes {
            let operands: Vec<Option<&Tensor>> =
                node.inputs.iter().map(|id| id.and_then(|id| self.values[id.index()].as_ref())).collect();
            // A result that nobody asked for still has its place; its declaration is never read.
            let results: Vec<_> = node
                .outputs
                .iter()
                .map(|id| {
                    id.map_or((lanes_core::DType::F32, &[][..]), |id| (graph.value(id).dtype, &graph.value(id).shape))
                })
                .collect();
            let values = apply(&node.op, &operands, &results).map_err(|source| NodeError {
                node: node.name.clone(),
                op: node.onnx.clone(),
                source,
            })?;
            for (id, value) in node.outputs.iter().zip(values) {
                if let Some(id) = id {
                    debug_assert_eq!(value.shape(), graph.value(*id).shape, "node {}", node.name);
                    self.values[id.index()] = Some(value);
                }
            }
        }
        Ok(graph
            .outputs
            .iter()
            .map(|id| self.values[id.index()].clone().expect("every output has a producer"))
            .collect())
    }

    /// The value that the last run gave `id`: any input, constant or node's result. `None` before the first run.
    pub fn value(&self, id: ValueId) -> Option<&Tensor> {
        self.values[id.index()].as_ref()
    }
}
