//! An imported model: the graph, and what is declared and proved about its lanes.

use crate::graph::{Graph, ValueId};
use lanes_core::{Port, Scope, Signature};
use std::collections::BTreeMap;

/// A state of an imported model: `output` of one turn is `input` of the lane's next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateValues {
    /// Among [`Graph::inputs`].
    pub input: ValueId,
    /// Among [`Graph::outputs`].
    pub output: ValueId,
}

/// An op that takes the lane axis in unless told otherwise, and is computed per lane here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerLane {
    /// The node's name.
    pub node: String,
    /// The operator's name in the model.
    pub op: String,
    /// What it would mix at a lane extent above 1.
    pub why: String,
}

/// A node that mixes lanes by name, so that the model cannot be laned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} ({op}) mixes lanes: {why}")]
pub struct MixesLanes {
    /// The node's name.
    pub node: String,
    /// The operator's name in the model.
    pub op: String,
    /// Which axis it names, and where the lanes lie.
    pub why: String,
}

/// A model, ready to be lowered or to be run by the oracle.
#[derive(Clone, Debug)]
pub struct Model {
    /// One lane's worth of it.
    pub graph: Graph,
    /// What a laned model declares: stream and shared inputs, outputs that are no state, states.
    pub signature: Signature,
    /// The graph's value for each of `signature.inputs`.
    pub inputs: Vec<ValueId>,
    /// The graph's value for each of `signature.outputs`.
    pub outputs: Vec<ValueId>,
    /// The graph's values for each of `signature.states`.
    pub states: Vec<StateValues>,
    /// The lane axis of every model input and output that has one, by name.
    pub lane_axes: BTreeMap<String, usize>,
    /// Ops that were rewritten per lane, in graph order.
    pub per_lane: Vec<PerLane>,
}

impl Model {
    /// The same model with more of its values as outputs, after its own and named as in the graph: for whoever
    /// compares what lies between inputs and outputs.
    pub fn with_outputs(&self, extra: &[ValueId]) -> Self {
        let mut model = self.clone();
        for &id in extra {
            let info = self.graph.value(id);
            model.signature.outputs.push(Port {
                name: info.name.clone(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                scope: Scope::Seat,
            });
            model.graph.outputs.push(id);
            model.outputs.push(id);
        }
        model
    }
}
