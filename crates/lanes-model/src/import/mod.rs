//! From an ONNX file to a [`Model`]: one lane's graph, checked, with states paired and lanes proved independent.
//!
//! ```text
//! file ─> declared ─> states (pairs by name) ─> bind (lane axes, extents) ─> nodes (ops, folding, If) ─> Model
//!                                                                              └─ axis (where the lanes go)
//! ```
//!
//! - A model means its graph at lane extent 1, for each lane; so the graph is built at lane extent 1, and what is
//!   refused is an op that names the lane axis.
//! - Where a file allows several lane axes, they are tried in order; the first that proves independent is meant.
//! - Not here: how a graph is run (`oracle`, `lower`).

mod attributes;
mod axis;
mod bind;
mod builder;
mod composed;
mod declared;
mod einsum;
mod elementwise;
mod inspect;
mod layers;
mod nodes;
mod options;
mod order;
mod placed;
mod shaping;
mod states;
mod windows;

pub use bind::Role;
pub use builder::Unsupported;
pub use declared::Dim;
pub use inspect::{Inspection, PortInspection, StateInspection, inspect, inspect_bytes};
pub use options::{Given, ImportOptions, StatePair};

use crate::error::ModelError;
use crate::graph::{Graph, Op, ValueId};
use crate::model::{MixesLanes, Model, PerLane, StateValues};
use crate::onnx::file::{OnnxFile, TensorSource};
use crate::onnx::proto::ModelProto;
use crate::oracle;
use crate::tensor::Tensor;
use axis::Lane;
use bind::{Binding, Bound};
use builder::{Builder, Current, Fault};
use bytes::Bytes;
use declared::Declared;
use lanes_core::{DType, Port, Scope, Signature, StateKind, StateSpec};
use states::Pair;
use std::collections::BTreeMap;
use std::path::Path;

/// Versions of the default operator set that are read.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=27;

/// Imports the model at `path`, bound by `options`.
///
/// # Errors
/// [`ModelError`] when the file is damaged or uses what is not supported, when an extent or a state is left open, and
/// when it mixes lanes by name.
pub fn load(path: impl AsRef<Path>, options: &ImportOptions) -> Result<Model, ModelError> {
    let path = path.as_ref();
    load_file(&OnnxFile::open(path)?, &stem(path), options)
}

/// Imports a model from memory; it cannot have external data. `name` labels metrics and errors.
///
/// # Errors
/// As [`load`].
pub fn load_bytes(bytes: impl Into<Bytes>, name: &str, options: &ImportOptions) -> Result<Model, ModelError> {
    load_file(&OnnxFile::from_bytes(bytes.into())?, name, options)
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned())
}

fn load_file(file: &OnnxFile, name: &str, options: &ImportOptions) -> Result<Model, ModelError> {
    let plan = Plan::read(file, options)?;
    let ways = match bind::bind(&plan.inputs, &plan.pairs, options, None) {
        Ok(ways) => ways,
        Err(missing) => return Err(growing(&plan, name, options).unwrap_or(missing)),
    };
    let mut refusal = None;
    for way in &ways {
        let built = build(&plan, way, name, options, false).map_err(|error| with_axes(error, options))?;
        match built.mixes.clone() {
            None => return assemble(&plan, way, built, options),
            // What the likeliest reading says is what is reported.
            Some(mixes) => refusal = refusal.or(Some(mixes)),
        }
    }
    Err(refusal.map_or_else(|| ModelError::malformed("the model has no inputs"), ModelError::MixesLanes))
}

/// What was declared of lane axes that a node may not have been able to read: " (…)", or nothing.
fn declared_axes(options: &ImportOptions) -> String {
    let axes = options.states.iter().filter_map(|StatePair { input, output, axis }| {
        let axis = (*axis)?;
        Some(format!("state {input} is read with its lanes on axis {axis}, as --state {input}={output}@{axis} says"))
    });
    let axes: Vec<String> = axes.collect();
    if axes.is_empty() { String::new() } else { format!(" ({})", axes.join(", ")) }
}

/// A node's refusal of a shape names the node, and not the option that the shape came from.
fn with_axes(error: ModelError, options: &ImportOptions) -> ModelError {
    let axes = declared_axes(options);
    match error {
        ModelError::Malformed { what } => ModelError::Malformed { what: what + &axes },
        ModelError::Unsupported { node, op, why } => ModelError::Unsupported { node, op, why: why + &axes },
        other => other,
    }
}

/// A pair that grows leaves an extent open, and that it grows is what is wrong with it.
fn growing(plan: &Plan<'_>, name: &str, options: &ImportOptions) -> Option<ModelError> {
    let way = bind::bind(&plan.inputs, &plan.pairs, options, Some(4)).ok()?.swap_remove(0);
    let built = build(plan, &way, name, options, false).ok()?;
    match check_pairs(plan, &way, &built) {
        Err(error @ ModelError::States { .. }) => Some(error),
        _ => None,
    }
}

/// What is known before a node is looked at.
struct Plan<'a> {
    model: &'a ModelProto,
    data: &'a TensorSource,
    opset: i64,
    inputs: Vec<Declared>,
    outputs: Vec<Declared>,
    pairs: Vec<Pair>,
}

impl<'a> Plan<'a> {
    fn read(file: &'a OnnxFile, options: &ImportOptions) -> Result<Self, ModelError> {
        let mut plan = Self::declared(file)?;
        plan.check_opset()?;
        let free: Vec<Declared> =
            plan.inputs.iter().filter(|input| !options.fix.contains_key(&input.name)).cloned().collect();
        plan.pairs = states::pair(&free, &plan.outputs, options)?;
        if let Some(name) = options.init.keys().find(|name| !plan.pairs.iter().any(|pair| pair.input == **name)) {
            let states: Vec<&str> = plan.pairs.iter().map(|pair| pair.input.as_str()).collect();
            let states = if states.is_empty() { "none".into() } else { states.join(", ") };
            return Err(ModelError::option(format!("--init {name}: no such state; states are {states}")));
        }
        Ok(plan)
    }

    /// Without states.
    fn declared(file: &'a OnnxFile) -> Result<Self, ModelError> {
        let model = &file.model;
        let graph = model.graph.as_ref().ok_or_else(|| ModelError::malformed("the model has no graph"))?;
        let default = model.opset_import.iter().find(|set| matches!(set.domain.as_str(), "" | "ai.onnx"));
        let opset = default.map_or(0, |set| set.version);
        let (inputs, outputs) = declared::read(graph)?;
        if outputs.is_empty() {
            return Err(ModelError::malformed("the model has no outputs"));
        }
        Ok(Self { model, data: &file.data, opset, inputs, outputs, pairs: Vec::new() })
    }

    /// Whether its operators mean what this import reads them as.
    fn check_opset(&self) -> Result<(), ModelError> {
        if OPSETS.contains(&self.opset) {
            return Ok(());
        }
        Err(ModelError::malformed(format!(
            "the model is written in operator set {}; {} to {} are supported",
            self.opset,
            OPSETS.start(),
            OPSETS.end()
        )))
    }

    fn input(&self, name: &str) -> Option<(usize, &Declared)> {
        self.inputs.iter().enumerate().find(|(_, input)| input.name == name)
    }
}

/// A graph, and what was found on the way.
struct Built {
    graph: Graph,
    lanes: Vec<Lane>,
    /// Which of the plan's inputs each of the graph's inputs is.
    inputs: Vec<usize>,
    mixes: Option<MixesLanes>,
    per_lane: Vec<PerLane>,
    unsupported: Vec<Unsupported>,
    /// For each of the plan's outputs its place among the graph's; `None` where a lenient import does not know it.
    outputs: Vec<Option<usize>>,
}

fn build(
    plan: &Plan<'_>,
    way: &Binding,
    name: &str,
    options: &ImportOptions,
    lenient: bool,
) -> Result<Built, ModelError> {
    let mut builder = Builder::new(plan.data, plan.opset, way.baked, lenient);
    let mut inputs = Vec::new();
    for (at, (input, bound)) in plan.inputs.iter().zip(&way.inputs).enumerate() {
        builder.current = Current { name: input.name.clone(), op: "input".into() };
        let dtype = input.dtype.expect("an input has a type");
        let id = match options.fix.get(&input.name) {
            Some(given) => Ok(builder.constant(given_tensor(given, dtype, &bound.shape, "--fix", &input.name)?)),
            None => {
                inputs.push(at);
                builder.input(dtype, bound.shape.clone(), lane_of(bound))
            }
        };
        let bind = id.and_then(|id| builder.bind(&input.name, Some(id)));
        bind.map_err(|fault| builder.error(fault))?;
    }
    builder.graph(plan.model.graph.as_ref().expect("a plan has a graph"))?;
    let mut ids: Vec<ValueId> = Vec::new();
    let mut outputs = Vec::new();
    for output in &plan.outputs {
        builder.current = Current { name: output.name.clone(), op: "output".into() };
        match builder.look_up(&output.name) {
            Ok(id) => {
                outputs.push(Some(ids.len()));
                ids.push(id);
            }
            Err(Fault::Unknown) if lenient => outputs.push(None),
            Err(_) => {
                return Err(ModelError::malformed(format!("the output {:?} is computed by no node", output.name)));
            }
        }
    }
    let (mixes, per_lane) = (builder.mixes.take(), std::mem::take(&mut builder.per_lane));
    let unsupported = std::mem::take(&mut builder.unsupported);
    let (graph, lanes) = builder.finish(name.into(), &ids);
    Ok(Built { graph, lanes, inputs, mixes, per_lane, unsupported, outputs })
}

fn lane_of(bound: &Bound) -> Lane {
    match bound.role {
        Role::Fixed | Role::Shared => Lane::Free,
        Role::Stream | Role::State => bound.lane_axis.map_or(Lane::Gone, Lane::on),
    }
}

/// A given value as a tensor of `dtype` and `shape`.
fn given_tensor(given: &Given, dtype: DType, shape: &[usize], option: &str, name: &str) -> Result<Tensor, ModelError> {
    let tensor = match given {
        Given::Number(number) => Tensor::scalar(*number),
        Given::Tensor(tensor) => tensor.clone(),
    };
    let apply = |op: Op, operand: &Tensor, dtype: DType, shape: &[usize]| {
        oracle::apply(&op, &[Some(operand)], &[(dtype, shape)]).map(|mut values| values.swap_remove(0))
    };
    let count = crate::tensor::elements(shape).filter(|&count| count <= 1 << 28);
    let result = match (given, count) {
        (_, None) => None,
        (Given::Number(_), Some(_)) => {
            let cast = apply(Op::Cast, &tensor, dtype, &[]);
            cast.and_then(|cast| apply(Op::Expand, &cast, dtype, shape)).ok()
        }
        (Given::Tensor(_), Some(count)) if count == tensor.len() => {
            apply(Op::Cast, &tensor.reshaped(shape.to_vec()), dtype, shape).ok()
        }
        _ => None,
    };
    result.ok_or_else(|| {
        let found = tensor.shape();
        ModelError::option(format!(
            "{option} {name}: a value of shape {found:?}; shape {shape:?} of {dtype} or a number is expected"
        ))
    })
}

/// The shape without the lane axis.
fn lane_shape(shape: &[usize], lane_axis: Option<usize>) -> Vec<usize> {
    (0..shape.len()).filter(|&axis| Some(axis) != lane_axis).map(|axis| shape[axis]).collect()
}

/// The lane axis of a graph's output: the one that holds the lanes alone.
fn output_axis(built: &Built, at: usize) -> Option<usize> {
    match built.lanes[built.graph.outputs[at].index()] {
        Lane::In { axis, outer: 1, inner: 1 } => Some(axis),
        Lane::In { .. } | Lane::Free | Lane::Gone => None,
    }
}

/// Whether every state's output is what its input can read.
fn check_pairs(plan: &Plan<'_>, way: &Binding, built: &Built) -> Result<(), ModelError> {
    for pair in &plan.pairs {
        let (Some((at, input)), Some(out)) =
            (plan.input(&pair.input), plan.outputs.iter().position(|output| output.name == pair.output))
        else {
            continue;
        };
        let Some(place) = built.outputs[out] else {
            continue;
        };
        let bound = &way.inputs[at];
        let value = built.graph.value(built.graph.outputs[place]);
        let out_axis = output_axis(built, place);
        let names = format!("{}={}", pair.input, pair.output);
        let fail = |what: String| Err(ModelError::States { what });
        let dtype = input.dtype.expect("an input has a type");
        if value.dtype != dtype {
            return fail(format!("state {names}: the input is {dtype} and the output {}", value.dtype));
        }
        // A state that came through untouched, or a constant, has the input's lane axis.
        let out_axis = out_axis.or_else(|| (value.shape == bound.shape).then_some(bound.lane_axis).flatten());
        let (want, have) = (lane_shape(&bound.shape, bound.lane_axis), lane_shape(&value.shape, out_axis));
        if want != have {
            let grown: Vec<usize> = (0..want.len().min(have.len())).filter(|&axis| want[axis] != have[axis]).collect();
            let full = |axis: usize| axis + usize::from(bound.lane_axis.is_some_and(|lane| lane <= axis));
            if let (&[axis], true) = (&grown[..], want.len() == have.len())
                && have[axis] > want[axis]
            {
                return fail(format!(
                    "state {names} grows along axis {}: {} elements come in and {} go out; a state keeps its shape, as \
                     a cache of fixed length does",
                    full(axis),
                    want[axis],
                    have[axis]
                ));
            }
            return fail(format!(
                "state {names}: one lane's input has shape {want:?} and its output {have:?}; declare another pair with --state {}=OUTPUT",
                pair.input
            ));
        }
        if out_axis != bound.lane_axis && value.shape != bound.shape {
            return fail(format!(
                "state {names}: lanes lie on axis {:?} of the input and on axis {out_axis:?} of the output; declare the axis with --state {names}@AXIS",
                bound.lane_axis
            ));
        }
    }
    Ok(())
}

fn assemble(plan: &Plan<'_>, way: &Binding, built: Built, options: &ImportOptions) -> Result<Model, ModelError> {
    check_pairs(plan, way, &built)?;
    let graph = &built.graph;
    let value_of_input = |at: usize| {
        let place = built.inputs.iter().position(|&input| input == at);
        place.map(|place| graph.inputs[place])
    };
    let mut lane_axes = BTreeMap::new();
    let mut signature = Signature { name: graph.name.clone(), ..Signature::default() };
    let (mut inputs, mut outputs, mut states) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (input, bound)) in plan.inputs.iter().zip(&way.inputs).enumerate() {
        if let Some(axis) = bound.lane_axis {
            lane_axes.insert(input.name.clone(), axis);
        }
        let scope = match bound.role {
            Role::Stream => Scope::Seat,
            Role::Shared => Scope::Turn,
            Role::State | Role::Fixed => continue,
        };
        let Some(id) = value_of_input(at) else {
            continue;
        };
        let shape = lane_shape(&bound.shape, bound.lane_axis);
        signature.inputs.push(Port { name: input.name.clone(), dtype: graph.value(id).dtype, shape, scope });
        inputs.push(id);
    }
    for (at, output) in plan.outputs.iter().enumerate() {
        let place = built.outputs[at].expect("a strict import knows every output");
        let (id, axis) = (graph.outputs[place], output_axis(&built, place));
        if let Some(axis) = axis {
            lane_axes.insert(output.name.clone(), axis);
        }
        if plan.pairs.iter().any(|pair| pair.output == output.name) {
            continue;
        }
        let value = graph.value(id);
        let shape = lane_shape(&value.shape, axis);
        signature.outputs.push(Port { name: output.name.clone(), dtype: value.dtype, shape, scope: Scope::Seat });
        outputs.push(id);
    }
    for pair in &plan.pairs {
        let (at, input) = plan.input(&pair.input).expect("pairs name inputs");
        let out = plan.outputs.iter().position(|output| output.name == pair.output).expect("pairs name outputs");
        let bound = &way.inputs[at];
        let id = value_of_input(at).expect("a state is no constant");
        let dtype = graph.value(id).dtype;
        let initial = match options.init.get(&pair.input) {
            Some(given) => {
                Some(given_tensor(given, dtype, &bound.shape, "--init", &input.name)?.bytes().to_vec().into())
            }
            None => None,
        };
        signature.states.push(StateSpec {
            input: pair.input.clone(),
            output: pair.output.clone(),
            dtype,
            lane_shape: lane_shape(&bound.shape, bound.lane_axis),
            initial,
            kind: StateKind::Replaced,
        });
        let place = built.outputs[out].expect("a strict import knows every output");
        states.push(StateValues { input: id, output: graph.outputs[place] });
    }
    Ok(Model { signature, inputs, outputs, states, lane_axes, per_lane: built.per_lane, graph: built.graph })
}
