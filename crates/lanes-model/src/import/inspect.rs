//! What a model asks for, as far as its file and the options say; never refuses what can be read.

use super::bind::{self, Binding, Role};
use super::builder::Unsupported;
use super::declared::{Declared, Dim};
use super::options::ImportOptions;
use super::{Built, Plan, build, check_pairs, output_axis, stem};
use crate::error::ModelError;
use crate::model::PerLane;
use crate::onnx::file::OnnxFile;
use crate::onnx::proto::GraphProto;
use bytes::Bytes;
use lanes_core::DType;
use std::collections::BTreeMap;
use std::path::Path;

/// An input or output of an inspected model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInspection {
    /// Its name.
    pub name: String,
    /// Its type, when known.
    pub dtype: Option<DType>,
    /// Its extents: as the file declares them where they are still open, and the lane axis as the file has it.
    pub shape: Vec<Dim>,
    /// `stream`, `state`, `shared` or `fixed`; of an output `stream` or `state`.
    pub role: Role,
    /// The axis that holds the lanes.
    pub lane_axis: Option<usize>,
}

/// A state of an inspected model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateInspection {
    /// The input that reads it.
    pub input: String,
    /// The output that feeds it.
    pub output: String,
    /// Its type.
    pub dtype: DType,
    /// One lane's extents.
    pub lane_shape: Vec<Dim>,
    /// The lane axis of the input.
    pub lane_axis: Option<usize>,
    /// One lane's bytes, when every extent is known.
    pub bytes_per_lane: Option<usize>,
}

/// What a model asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The model's name.
    pub name: String,
    /// The version of the default operator set.
    pub opset: i64,
    /// In the file's order.
    pub inputs: Vec<PortInspection>,
    /// In the file's order.
    pub outputs: Vec<PortInspection>,
    /// In the order of their inputs.
    pub states: Vec<StateInspection>,
    /// Whether every op was followed and none mixes lanes.
    pub lane_independent: bool,
    /// Why it is not known to be independent, or what an import would fail on.
    pub why: Option<String>,
    /// Ops that are computed per lane although they take the lane axis in.
    pub per_lane: Vec<PerLane>,
    /// How many of each operator are left after folding; of a model that cannot be folded, how many the file has.
    pub ops: BTreeMap<String, usize>,
    /// Nodes that an import would refuse.
    pub unsupported: Vec<Unsupported>,
    /// Elements of the constants that are left.
    pub parameters: usize,
    /// Their bytes.
    pub weight_bytes: usize,
    /// Extents that were assumed, by name, because no option gives them: the analysis holds for these.
    pub assumed: BTreeMap<String, usize>,
}

/// Inspects the model at `path`.
///
/// # Errors
/// When the file cannot be read as ONNX at all, or an option names what it does not have.
pub fn inspect(path: impl AsRef<Path>, options: &ImportOptions) -> Result<Inspection, ModelError> {
    let path = path.as_ref();
    inspect_file(&OnnxFile::open(path)?, stem(path), options)
}

/// Inspects a model in memory.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_bytes(bytes: impl Into<Bytes>, name: &str, options: &ImportOptions) -> Result<Inspection, ModelError> {
    inspect_file(&OnnxFile::from_bytes(bytes.into())?, name.into(), options)
}

/// Extents to assume where none is given, until one lets the model through: frames, samples, and small ones.
const ASSUMED: [usize; 8] = [512, 576, 1, 16, 64, 160, 1024, 4096];

fn inspect_file(file: &OnnxFile, name: String, options: &ImportOptions) -> Result<Inspection, ModelError> {
    // What an import fails on before it looks at a node is said, not thrown.
    let declared = Plan::declared(file)?;
    let foreign = declared.check_opset().err().map(|error| error.to_string());
    let (plan, why) = match Plan::read(file, options) {
        Ok(plan) => (plan, None),
        Err(_) if foreign.is_some() => (declared, None),
        Err(error @ ModelError::States { .. }) => (declared, Some(error.to_string())),
        Err(error) => return Err(error),
    };
    let attempt = attempt(&plan, &name, options)?;
    let (way, built) = (&attempt.way, &attempt.built);
    let mut why = why;
    if why.is_none() && !built.unsupported.is_empty() {
        let first = &built.unsupported[0];
        let axes = super::declared_axes(options);
        why = Some(format!("node {} ({}) is not supported: {}{axes}", first.node, first.op, first.why));
    }
    if let Some(mixes) = &built.mixes {
        why = Some(mixes.to_string());
    } else if why.is_none() {
        why = attempt.error.clone().or_else(|| check_pairs(&plan, way, built).err().map(|error| error.to_string()));
    }
    // Nothing that was followed holds where operators may mean something else.
    let known = foreign.is_none();
    let why = foreign.or(why);
    let inputs = plan.inputs.iter().zip(&way.inputs).map(|(input, bound)| PortInspection {
        name: input.name.clone(),
        dtype: input.dtype,
        shape: open_shape(input, &bound.shape, bound.lane_axis, &attempt),
        role: bound.role,
        lane_axis: bound.lane_axis,
    });
    let outputs = plan.outputs.iter().enumerate().map(|(at, output)| {
        let place = built.outputs.get(at).copied().flatten();
        let value = place.map(|place| built.graph.value(built.graph.outputs[place]));
        let lane_axis = place.and_then(|place| output_axis(built, place));
        let shape = match value {
            Some(value) => open_shape(output, &value.shape, lane_axis, &attempt),
            None => output.dims.clone().unwrap_or_default(),
        };
        let state = plan.pairs.iter().any(|pair| pair.output == output.name);
        PortInspection {
            name: output.name.clone(),
            dtype: value.map(|value| value.dtype).or(output.dtype),
            shape,
            role: if state { Role::State } else { Role::Stream },
            lane_axis,
        }
    });
    let states = plan.pairs.iter().filter_map(|pair| {
        let (at, input) = plan.input(&pair.input)?;
        let bound = &way.inputs[at];
        let dtype = input.dtype?;
        let shape = open_shape(input, &bound.shape, bound.lane_axis, &attempt);
        let lane_shape: Vec<Dim> =
            (0..shape.len()).filter(|&axis| Some(axis) != bound.lane_axis).map(|axis| shape[axis].clone()).collect();
        let known = lane_shape.iter().all(|dim| matches!(dim, Dim::Known(_)));
        let bytes = super::lane_shape(&bound.shape, bound.lane_axis).iter().product::<usize>() * dtype.size();
        Some(StateInspection {
            input: pair.input.clone(),
            output: pair.output.clone(),
            dtype,
            lane_shape,
            lane_axis: bound.lane_axis,
            bytes_per_lane: known.then_some(bytes),
        })
    });
    let folded = attempt.error.is_none() && built.unsupported.is_empty();
    let mut ops = BTreeMap::new();
    if folded {
        // An operator that became several ops counts once.
        let mut seen = std::collections::BTreeSet::new();
        for node in &built.graph.nodes {
            if seen.insert((&node.name, &node.onnx)) {
                *ops.entry(node.onnx.clone()).or_default() += 1;
            }
        }
    } else if let Some(graph) = &plan.model.graph {
        count_ops(graph, &mut ops);
    }
    let constants = built.graph.constants.values();
    Ok(Inspection {
        name: name.clone(),
        opset: plan.opset,
        inputs: inputs.collect(),
        outputs: outputs.collect(),
        states: states.collect(),
        lane_independent: built.mixes.is_none() && folded && known,
        why,
        per_lane: built.per_lane.clone(),
        ops,
        unsupported: built.unsupported.clone(),
        parameters: constants.clone().map(|tensor| tensor.len()).sum(),
        weight_bytes: constants.map(|tensor| tensor.bytes().len()).sum(),
        assumed: way.assumed.clone(),
    })
}

/// The best import that could be had.
struct Attempt {
    way: Binding,
    built: Built,
    /// What a strict import would fail on before or besides its nodes.
    error: Option<String>,
}

fn attempt(plan: &Plan<'_>, name: &str, options: &ImportOptions) -> Result<Attempt, ModelError> {
    let assumptions: Vec<Option<usize>> = match bind::bind(&plan.inputs, &plan.pairs, options, None) {
        Ok(_) => vec![None],
        // An extent is open; anything else is wrong with every assumption too.
        Err(_) => ASSUMED.iter().copied().map(Some).collect(),
    };
    let mut first: Option<Attempt> = None;
    let mut failure = None;
    for assumption in assumptions {
        for way in bind::bind(&plan.inputs, &plan.pairs, options, assumption)? {
            match build(plan, &way, name, options, true) {
                Ok(built) => {
                    let good = built.unsupported.is_empty() && built.mixes.is_none();
                    let attempt = Attempt { way, built, error: None };
                    if good {
                        return Ok(attempt);
                    }
                    first.get_or_insert(attempt);
                }
                Err(error) => failure = failure.or(Some((way, error))),
            }
        }
    }
    match (first, failure) {
        (Some(attempt), _) => Ok(attempt),
        (None, Some((_, error))) => Err(error),
        (None, None) => Err(ModelError::malformed("the model has no inputs")),
    }
}

/// Extents for a reader: those that were assumed, and the lane axis, as the file declares them.
fn open_shape(declared: &Declared, shape: &[usize], lane_axis: Option<usize>, attempt: &Attempt) -> Vec<Dim> {
    let dims = declared.dims.as_deref().unwrap_or_default();
    let assumed = !attempt.way.assumed.is_empty();
    let extent = |(axis, &extent): (usize, &usize)| match dims.get(axis) {
        Some(dim) if Some(axis) == lane_axis => dim.clone(),
        Some(dim @ (Dim::Named(_) | Dim::Unknown)) if assumed => dim.clone(),
        _ => Dim::Known(extent),
    };
    shape.iter().enumerate().map(extent).collect()
}

fn count_ops(graph: &GraphProto, ops: &mut BTreeMap<String, usize>) {
    for node in &graph.node {
        *ops.entry(node.op_type.clone()).or_default() += 1;
        node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()).for_each(|body| count_ops(body, ops));
    }
}
