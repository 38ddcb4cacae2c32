//! The graph while it is being built: values, constants, nodes; folding; scopes; what is known of lanes.
//!
//! - A node whose operands are all constants never reaches the graph: it is evaluated by the oracle at once.
//! - A constant of integers may know which of its elements were taken from the lane axis's extent (`lane_dims`),
//!   so that a `Reshape` by `Shape` says where it puts the lanes.
//! - In a lenient import a node that fails is noted, its results are unknown, and what needs them is skipped.

use super::axis::Lane;
use crate::error::ModelError;
use crate::graph::{Binary, Graph, Node, Op, ValueId, ValueInfo};
use crate::model::{MixesLanes, PerLane};
use crate::onnx::file::TensorSource;
use crate::oracle;
use crate::tensor::{Tensor, elements};
use lanes_core::DType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// One value is at most so large: what a lane holds is far smaller, and a hostile file asks for far more.
const VALUE_BYTES_MAX: usize = 1 << 32;
/// A node is folded when it costs at most so many steps, and all that are folded at most sixteen times as many: weights
/// are rearranged at import, a hostile file is not computed there.
const FOLD_STEPS_MAX: usize = 1 << 26;

/// Why a node could not be translated.
pub(super) enum Fault {
    /// It is sound, and not supported.
    Unsupported(String),
    /// It breaks the rules of its operator or of the file format.
    Malformed(String),
    /// Reading its data failed.
    Data(ModelError),
    /// A value it needs is unknown because another node failed.
    Unknown,
}

impl From<ModelError> for Fault {
    fn from(error: ModelError) -> Self {
        Self::Data(error)
    }
}

/// A node that is not supported, as `inspect` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The node's name.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// What was found, and what is supported.
    pub why: String,
}

#[derive(Clone)]
struct Constant {
    tensor: Arc<Tensor>,
    lane_dims: Option<Vec<bool>>,
}

/// The node being translated.
#[derive(Clone, Default)]
pub(super) struct Current {
    pub(super) name: String,
    pub(super) op: String,
}

/// See the module.
pub(super) struct Builder<'a> {
    pub(super) data: &'a TensorSource,
    pub(super) opset: i64,
    /// Whether the file itself says that the lane axis has extent 1.
    pub(super) baked: bool,
    pub(super) lenient: bool,
    pub(super) current: Current,
    pub(super) unsupported: Vec<Unsupported>,
    pub(super) mixes: Option<MixesLanes>,
    pub(super) per_lane: Vec<PerLane>,
    values: Vec<ValueInfo>,
    lanes: Vec<Lane>,
    constants: HashMap<ValueId, Constant>,
    nodes: Vec<Node>,
    inputs: Vec<ValueId>,
    /// Innermost last. A name without a value belongs to a node that failed.
    scopes: Vec<HashMap<String, Option<ValueId>>>,
    /// Values up to here have their final name.
    named: usize,
    /// Steps that may still be spent on folding.
    fold_steps: usize,
}

impl<'a> Builder<'a> {
    pub(super) fn new(data: &'a TensorSource, opset: i64, baked: bool, lenient: bool) -> Self {
        Self {
            data,
            opset,
            baked,
            lenient,
            current: Current::default(),
            unsupported: Vec::new(),
            mixes: None,
            per_lane: Vec::new(),
            values: Vec::new(),
            lanes: Vec::new(),
            constants: HashMap::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            scopes: vec![HashMap::new()],
            named: 0,
            fold_steps: 16 * FOLD_STEPS_MAX,
        }
    }

    // Names.

    pub(super) fn open_scope(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub(super) fn close_scope(&mut self) {
        self.scopes.pop();
    }

    /// Gives `name` a value in the innermost scope; `None` marks it unknown.
    pub(super) fn bind(&mut self, name: &str, id: Option<ValueId>) -> Result<(), Fault> {
        if let Some(id) = id.filter(|id| id.index() >= self.named) {
            self.values[id.index()].name = name.into();
        }
        let scope = self.scopes.last_mut().expect("the outermost scope is never closed");
        match scope.insert(name.into(), id) {
            None => Ok(()),
            Some(_) => Err(Fault::Malformed(format!("the value {name:?} is defined twice"))),
        }
    }

    /// Values made so far keep their names.
    pub(super) fn settle_names(&mut self) {
        self.named = self.values.len();
    }

    pub(super) fn look_up(&self, name: &str) -> Result<ValueId, Fault> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        match found {
            Some(Some(id)) => Ok(*id),
            Some(None) => Err(Fault::Unknown),
            None => Err(Fault::Malformed(format!("the value {name:?} is not defined"))),
        }
    }

    // Values.

    pub(super) fn dtype(&self, id: ValueId) -> DType {
        self.values[id.index()].dtype
    }

    pub(super) fn shape(&self, id: ValueId) -> &[usize] {
        &self.values[id.index()].shape
    }

    pub(super) fn lane(&self, id: ValueId) -> Lane {
        self.lanes[id.index()]
    }

    pub(super) fn name(&self, id: ValueId) -> &str {
        &self.values[id.index()].name
    }

    fn add(&mut self, dtype: DType, shape: Vec<usize>, lane: Lane) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        // Made-up names hold a space, which no exporter puts in one.
        let name = format!("{} #{}", self.current.name, id.0);
        self.values.push(ValueInfo { name, dtype, shape });
        self.lanes.push(lane);
        id
    }

    pub(super) fn input(&mut self, dtype: DType, shape: Vec<usize>, lane: Lane) -> Result<ValueId, Fault> {
        check_size(dtype, &shape)?;
        let id = self.add(dtype, shape, lane);
        self.inputs.push(id);
        Ok(id)
    }

    pub(super) fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.constant_of_dims(tensor, None)
    }

    /// A constant of which some elements were taken from the lane axis's extent.
    pub(super) fn constant_of_dims(&mut self, tensor: Tensor, lane_dims: Option<Vec<bool>>) -> ValueId {
        let id = self.add(tensor.dtype(), tensor.shape().to_vec(), Lane::Free);
        let lane_dims = lane_dims.filter(|dims| dims.contains(&true));
        self.constants.insert(id, Constant { tensor: Arc::new(tensor), lane_dims });
        id
    }

    pub(super) fn known(&self, id: ValueId) -> Option<&Tensor> {
        self.constants.get(&id).map(|constant| constant.tensor.as_ref())
    }

    /// For each element of a constant, whether it was taken from the lane axis's extent.
    pub(super) fn lane_dims(&self, id: ValueId) -> Vec<bool> {
        let constant = self.constants.get(&id);
        let dims = constant.and_then(|constant| constant.lane_dims.clone());
        dims.unwrap_or_else(|| vec![false; constant.map_or(0, |constant| constant.tensor.len())])
    }

    /// The integers of a value that must be known at import. `what` names it, for the refusal.
    pub(super) fn integers(&self, id: ValueId, what: &str) -> Result<Vec<i64>, Fault> {
        let tensor = self.known(id).ok_or_else(|| self.not_known(id, what))?;
        tensor
            .to_i64s()
            .ok_or_else(|| Fault::Malformed(format!("{what} is {}, and integers are expected", tensor.dtype())))
    }

    /// The refusal of a value that is not known at import, with what it depends on.
    pub(super) fn not_known(&self, id: ValueId, what: &str) -> Fault {
        let inputs: Vec<String> = self.inputs_of(id).into_iter().map(|name| format!("{name:?}")).collect();
        let bind = match self.inputs_of(id).first() {
            Some(name) => format!("; if that is a setting, bind it with --fix {name}=VALUE"),
            None => String::new(),
        };
        Fault::Unsupported(format!(
            "{what} is not known at import, it depends on the data of input {}; supported are constants and what is \
             derived from shapes{bind}",
            inputs.join(", ")
        ))
    }

    /// The inputs that a value is computed from, in order.
    fn inputs_of(&self, id: ValueId) -> Vec<String> {
        let mut wanted = BTreeSet::from([id]);
        for node in self.nodes.iter().rev() {
            if node.outputs.iter().flatten().any(|output| wanted.contains(output)) {
                wanted.extend(node.inputs.iter().flatten());
            }
        }
        self.inputs.iter().filter(|input| wanted.contains(input)).map(|input| self.name(*input).into()).collect()
    }

    // Nodes.

    /// The lanes of a result, or a note that the node mixes them; import goes on, so that all can be said at once.
    pub(super) fn place(&mut self, place: Result<Lane, String>) -> Lane {
        place.unwrap_or_else(|why| {
            let Current { name: node, op } = self.current.clone();
            self.mixes.get_or_insert(MixesLanes { node, op, why });
            Lane::Gone
        })
    }

    /// Notes that the current node takes the lane axis in by default and is computed per lane.
    pub(super) fn note_per_lane(&mut self, why: String) {
        let Current { name: node, op } = self.current.clone();
        let note = PerLane { node, op, why };
        if !self.per_lane.contains(&note) {
            self.per_lane.push(note);
        }
    }

    /// A node with one result.
    pub(super) fn emit(
        &mut self,
        op: Op,
        operands: &[ValueId],
        dtype: DType,
        shape: Vec<usize>,
        lane: Lane,
    ) -> Result<ValueId, Fault> {
        let operands: Vec<Option<ValueId>> = operands.iter().copied().map(Some).collect();
        Ok(self.emit_all(op, operands, vec![(dtype, shape, lane)])?[0])
    }

    /// A node with optional operands, or several results.
    pub(super) fn emit_all(
        &mut self,
        op: Op,
        mut operands: Vec<Option<ValueId>>,
        results: Vec<(DType, Vec<usize>, Lane)>,
    ) -> Result<Vec<ValueId>, Fault> {
        while operands.last() == Some(&None) {
            operands.pop();
        }
        for (dtype, shape, _) in &results {
            check_size(*dtype, shape)?;
        }
        if operands.iter().flatten().all(|id| self.constants.contains_key(id)) {
            let steps = self.steps(&op, &operands, &results);
            if steps <= FOLD_STEPS_MAX.min(self.fold_steps) {
                self.fold_steps -= steps;
                return self.fold(&op, &operands, &results);
            }
        }
        let ids: Vec<ValueId> = results.into_iter().map(|(dtype, shape, lane)| self.add(dtype, shape, lane)).collect();
        self.nodes.push(Node {
            name: self.current.name.clone(),
            onnx: self.current.op.clone(),
            op,
            inputs: operands,
            outputs: ids.iter().copied().map(Some).collect(),
        });
        Ok(ids)
    }

    /// About how many steps an op takes.
    fn steps(&self, op: &Op, operands: &[Option<ValueId>], results: &[(DType, Vec<usize>, Lane)]) -> usize {
        let count = |shape: &[usize]| shape.iter().product::<usize>();
        let written: usize = results.iter().map(|(_, shape, _)| count(shape)).sum();
        let read: usize = operands.iter().flatten().map(|&id| count(self.shape(id))).sum();
        // What is summed into one element of the result.
        let summed = match (op, operands) {
            (Op::MatMul, [Some(a), ..]) => self.shape(*a).last().copied().unwrap_or(1),
            (Op::Gemm { .. }, [Some(a), ..]) => count(self.shape(*a)),
            (Op::Conv { .. }, [_, Some(w), ..]) => count(&self.shape(*w)[1..]),
            (Op::Recurrent(_), [_, Some(w), Some(r), ..]) => count(self.shape(*w)) + count(self.shape(*r)),
            _ => 1,
        };
        written.saturating_mul(summed.max(1)).saturating_add(read)
    }

    fn fold(
        &mut self,
        op: &Op,
        operands: &[Option<ValueId>],
        results: &[(DType, Vec<usize>, Lane)],
    ) -> Result<Vec<ValueId>, Fault> {
        let tensors: Vec<Option<&Tensor>> = operands.iter().map(|id| id.and_then(|id| self.known(id))).collect();
        let infos: Vec<_> = results.iter().map(|(dtype, shape, _)| (*dtype, &shape[..])).collect();
        let values = oracle::apply(op, &tensors, &infos)
            .map_err(|error| Fault::Malformed(format!("it is constant, and {error}")))?;
        let lane_dims = self.fold_lane_dims(op, operands, &results[0].1);
        Ok(values.into_iter().map(|value| self.constant_of_dims(value, lane_dims.clone())).collect())
    }

    /// Which elements of a folded result are multiples of the lane axis's extent: the flags go the way the elements do.
    fn fold_lane_dims(&self, op: &Op, operands: &[Option<ValueId>], shape: &[usize]) -> Option<Vec<bool>> {
        let flagged = |id: &Option<ValueId>| id.is_some_and(|id| self.constants[&id].lane_dims.is_some());
        if !operands.iter().any(flagged) {
            return None;
        }
        let flags = |id: ValueId| Tensor::from_bools(self.shape(id).to_vec(), self.lane_dims(id));
        let (moved, as_op): (usize, Op) = match op {
            Op::Reshape | Op::Transpose { .. } | Op::Expand | Op::Slice { .. } | Op::Gather { .. } => (1, op.clone()),
            Op::Cast => (1, Op::Reshape),
            Op::Concat { .. } => (operands.len(), op.clone()),
            // A multiple of a multiple.
            Op::Binary(Binary::Mul) => (2, Op::Binary(Binary::Or)),
            _ => return None,
        };
        let tensors: Vec<Option<Tensor>> = (operands.iter().enumerate())
            .map(|(at, id)| {
                id.map(|id| if at < moved { flags(id) } else { self.constants[&id].tensor.as_ref().clone() })
            })
            .collect();
        let tensors: Vec<Option<&Tensor>> = tensors.iter().map(Option::as_ref).collect();
        let result = oracle::apply(&as_op, &tensors, &[(DType::Bool, shape)]).ok()?.swap_remove(0);
        Some(result.bools().iter().map(|&flag| flag != 0).collect())
    }

    /// The graph of what `outputs` need, compacted, with the lanes of each value, and where `outputs` went.
    pub(super) fn finish(mut self, name: String, outputs: &[ValueId]) -> (Graph, Vec<Lane>) {
        let mut wanted: BTreeSet<ValueId> = outputs.iter().chain(&self.inputs).copied().collect();
        let mut live = Vec::new();
        for mut node in std::mem::take(&mut self.nodes).into_iter().rev() {
            if node.outputs.iter().flatten().any(|output| wanted.contains(output)) {
                for output in &mut node.outputs {
                    *output = output.filter(|id| wanted.contains(id));
                }
                wanted.extend(node.inputs.iter().flatten());
                live.push(node);
            }
        }
        live.reverse();
        let renumbered: BTreeMap<ValueId, ValueId> =
            wanted.iter().enumerate().map(|(new, &old)| (old, ValueId(new as u32))).collect();
        for node in &mut live {
            for id in node.inputs.iter_mut().chain(&mut node.outputs).flatten() {
                *id = renumbered[id];
            }
        }
        let constants =
            wanted.iter().filter_map(|old| Some((renumbered[old], self.constants.get(old)?.tensor.clone())));
        let graph = Graph {
            name,
            opset: self.opset,
            values: wanted.iter().map(|id| self.values[id.index()].clone()).collect(),
            nodes: live,
            constants: constants.collect(),
            inputs: self.inputs.iter().map(|id| renumbered[id]).collect(),
            outputs: outputs.iter().map(|id| renumbered[id]).collect(),
        };
        (graph, wanted.iter().map(|id| self.lanes[id.index()]).collect())
    }
}

fn check_size(dtype: DType, shape: &[usize]) -> Result<(), Fault> {
    let bytes = elements(shape).and_then(|count| count.checked_mul(dtype.size()));
    match bytes.filter(|&bytes| bytes <= VALUE_BYTES_MAX) {
        Some(_) => Ok(()),
        None => Err(Fault::Unsupported(format!(
            "a value of shape {shape:?} of {dtype}; at most {VALUE_BYTES_MAX} bytes are supported"
        ))),
    }
}
