//! Commands from operations: every value gets a home, and every operation writes its result there.
//!
//! - Homes are chosen from the end: whoever reads a value says where it wants it, and the last reader that can have its
//!   way has it. What nobody places gets scratch of its own, in the order its readers like best.
//! - A view has no home of its own; it is its operand's home, seen differently. Where strides cannot say that, it is
//!   copied once.
//! - A concatenation or a pad whose pieces all live in it already costs nothing.
//! - Not here: products (`contract`), what goes on with one (`epilogue`), and views as runs of bytes (`runs`).

mod contract;
mod epilogue;
mod runs;

use self::runs::{regions, reordered, runs};
use super::LowerError;
use super::expr::Expr;
use super::fuse::fuse;
use super::kernels::{self, Operand};
use super::known::{Address, Known, address};
use super::mid::{Mid, MidId, MidNode, MidOp};
use super::rewrite::rewrite;
use super::view::View;
use crate::graph::ValueId;
use crate::model::Model;
use lanes_core::plan::{Access, Argument, Command, KernelId, Plan, Region, Scalar, Storage, StorageId};
use lanes_core::{DType, Scope, Signature};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// More copies than this for one value are a kernel instead.
const COPIES_MOST: usize = 4;
/// More products than this for one operation mean that its operand is copied into order first.
const PRODUCTS_MOST: usize = 64;

/// A model as a plan.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// What runs each turn.
    pub plan: Plan,
    /// What it serves: the model's own, with initial values in the order in which rows are kept.
    pub signature: Signature,
    /// Why the plan can refuse a seat because of its data; when there are any, it has one output more than the
    /// signature, the last: one u32 a seat, 0 when it is good, else `n` for `reasons[n - 1]`.
    pub reasons: Vec<String>,
}

/// Lowers a model.
///
/// # Errors
/// The first node that has no lowering, and why.
pub fn lower(model: &Model) -> Result<Lowered, LowerError> {
    let (mut mid, place) = rewrite(&model.graph)?;
    let at = |id: &ValueId| place[id];
    let mut signature = model.signature.clone();
    let outputs: Vec<MidId> = model.outputs.iter().map(at).collect();
    let state_in: Vec<MidId> = model.states.iter().map(|state| at(&state.input)).collect();
    let state_out: Vec<MidId> = model.states.iter().map(|state| at(&state.output)).collect();
    let kept: Vec<MidId> = outputs.iter().chain(&state_out).copied().collect();
    fuse(&mut mid, &kept);
    let mut emitter = Emitter::new(mid, model.signature.name.clone());
    emitter.inputs(&model.inputs.iter().map(at).collect::<Vec<_>>(), &signature);
    let output_storages = emitter.outputs(&outputs, &signature);
    let state_storages = emitter.states(&state_in, &state_out, &signature)?;
    emitter.ask_readers();
    emitter.composites();
    let orders = emitter.gathers(&state_in, &state_storages, &kept)?;
    for node in emitter.nodes.clone().iter() {
        emitter.node(node)?;
    }
    for (id, storage) in outputs.iter().zip(&output_storages) {
        emitter.finish_output(*id, *storage)?;
    }
    emitter.scatters(&state_out, &state_storages, &orders)?;
    for (spec, order) in signature.states.iter_mut().zip(&orders) {
        if let Some(initial) = &spec.initial {
            spec.initial = Some(reordered(initial, order, spec.dtype.size()));
        }
    }
    let reasons = emitter.refusals(signature.outputs.len());
    Ok(Lowered { plan: emitter.plan, signature, reasons })
}

/// Where a value lies.
#[derive(Clone, Debug)]
struct Home {
    storage: StorageId,
    view: View,
}

impl Home {
    /// Whether every element lies where `other` has it. The stride of an axis of extent 1 places nothing.
    fn is(&self, other: &Self) -> bool {
        let (a, b) = (&self.view, &other.view);
        let steps = a.shape.iter().zip(a.strides.iter().zip(&b.strides));
        self.storage == other.storage
            && a.offset == b.offset
            && a.shape == b.shape
            && steps.into_iter().all(|(&extent, (a, b))| extent == 1 || a == b)
    }
}

struct Emitter {
    mid: Mid,
    nodes: Rc<[MidNode]>,
    producers: Vec<Option<usize>>,
    consumers: Vec<Vec<usize>>,
    plan: Plan,
    homes: Vec<Option<Home>>,
    /// Concatenations that are only ever scattered into a state, piece by piece.
    scattered: Vec<bool>,
    /// For each value, the axis that its readers want innermost.
    likes: Vec<Option<usize>>,
    kernels: HashMap<String, KernelId>,
    /// Weights and biases of products.
    floats: Known<f32>,
    /// Weights that are several matrices, or one in another order, by what they were made of: see `contract`.
    matrices: HashMap<contract::Origin, Arc<[f32]>>,
    /// Contents of constants, and by the address of those in `mid` what stands for them.
    bytes: Known<u8>,
    constants: HashMap<Address, Arc<[u8]>>,
    status: Option<StorageId>,
    reasons: Vec<String>,
}

impl Emitter {
    fn new(mut mid: Mid, name: String) -> Self {
        let producers = mid.producers();
        let mut consumers = vec![Vec::new(); mid.values.len()];
        for (at, node) in mid.nodes.iter().enumerate() {
            for input in &node.inputs {
                consumers[input.0].push(at);
            }
        }
        let nodes = std::mem::take(&mut mid.nodes).into();
        Self {
            homes: vec![None; mid.values.len()],
            likes: vec![None; mid.values.len()],
            scattered: vec![false; mid.values.len()],
            plan: Plan { name, ..Plan::default() },
            mid,
            nodes,
            producers,
            consumers,
            kernels: HashMap::new(),
            floats: Known::default(),
            matrices: HashMap::new(),
            bytes: Known::default(),
            constants: HashMap::new(),
            status: None,
            reasons: Vec::new(),
        }
    }

    fn storage(&mut self, storage: Storage) -> StorageId {
        self.plan.storages.push(storage);
        StorageId(self.plan.storages.len() as u32 - 1)
    }

    fn scratch(&mut self, id: MidId, order: &[usize]) -> Home {
        let value = &self.mid.values[id.0];
        let (bytes, view) = (value.elements() * value.dtype.size(), View::ordered(&value.shape, order));
        Home { storage: self.storage(Storage::Scratch { bytes }), view }
    }

    /// Elements of type `dtype` between two seats of a storage; 0 when seats share it.
    fn seat_stride(&self, storage: StorageId, dtype: DType) -> usize {
        let storage = &self.plan.storages[storage.0 as usize];
        if storage.is_shared() { 0 } else { storage.bytes() / dtype.size() }
    }

    fn inputs(&mut self, inputs: &[MidId], signature: &Signature) {
        for (port, (id, declared)) in inputs.iter().zip(&signature.inputs).enumerate() {
            let bytes = declared.bytes();
            let storage = self.storage(match declared.scope {
                Scope::Seat => Storage::Input { port, bytes },
                Scope::Turn => Storage::SharedInput { port, bytes },
            });
            self.homes[id.0] = Some(Home { storage, view: View::row_major(self.mid.shape(*id)) });
        }
    }

    /// Places outputs where they are downloaded from.
    fn outputs(&mut self, outputs: &[MidId], signature: &Signature) -> Vec<StorageId> {
        let mut storages = Vec::with_capacity(outputs.len());
        for (port, (id, declared)) in outputs.iter().zip(&signature.outputs).enumerate() {
            let storage = self.storage(Storage::Output { port, bytes: declared.bytes() });
            let view = View::row_major(self.mid.shape(*id));
            self.place(*id, Home { storage, view });
            storages.push(storage);
        }
        storages
    }

    fn states(
        &mut self,
        inputs: &[MidId],
        outputs: &[MidId],
        signature: &Signature,
    ) -> Result<Vec<StorageId>, LowerError> {
        let mut storages = Vec::with_capacity(inputs.len());
        for (state, spec) in signature.states.iter().enumerate() {
            storages.push(self.storage(Storage::State { state, bytes: spec.bytes() }));
            let out = outputs[state];
            let made = self.producers[out.0].map(|at| &self.nodes[at].op);
            let only = self.consumers[out.0].is_empty() && outputs.iter().filter(|&&other| other == out).count() == 1;
            if matches!(made, Some(MidOp::Concat(_))) && only && self.homes[out.0].is_none() {
                self.scattered[out.0] = true;
            }
        }
        Ok(storages)
    }

    /// Gives every concatenation and pad a place, last first, and its pieces places inside it.
    fn composites(&mut self) {
        for at in (0..self.nodes.len()).rev() {
            let out = self.nodes[at].outputs[0];
            if !matches!(self.nodes[at].op, MidOp::Concat(_) | MidOp::Pad { .. })
                || self.homes[out.0].is_some()
                || self.scattered[out.0]
            {
                continue;
            }
            let order = self.liked_order(out);
            let home = self.scratch(out, &order);
            self.place(out, home);
        }
    }

    /// Has `id` made at `home`, and what it is made of in its parts, wherever nobody has placed them yet and the maker can
    /// write there. A list of what is left instead of recursion: a file says how deep its graph is.
    fn place(&mut self, id: MidId, home: Home) {
        let nodes = self.nodes.clone();
        let mut left = vec![(id, home, false)];
        while let Some((id, home, is_piece)) = left.pop() {
            if self.homes[id.0].is_some() {
                continue;
            }
            let Some(at) = self.producers[id.0] else {
                // A state that is a piece of something is gathered right there.
                if is_piece && !self.mid.constants.contains_key(&id) {
                    self.homes[id.0] = Some(home);
                }
                continue;
            };
            let inputs = &nodes[at].inputs;
            let contiguous = |axis: usize| home.view.shape[axis] == 1 || home.view.strides[axis] == 1;
            match &nodes[at].op {
                MidOp::Reshape => {
                    if let Some(view) = home.view.reshape(self.mid.shape(inputs[0])) {
                        left.push((inputs[0], Home { view, ..home }, false));
                    }
                    continue;
                }
                MidOp::Transpose(perm) => {
                    left.push((inputs[0], Home { view: home.view.untranspose(perm), ..home }, false));
                    continue;
                }
                MidOp::Slice(_) | MidOp::Broadcast => continue,
                MidOp::Linear { .. } if !contiguous(home.view.shape.len() - 1) => continue,
                MidOp::Conv { .. } if !contiguous(1) => continue,
                MidOp::Concat(axis) => {
                    let mut start = 0;
                    for &piece in inputs {
                        let len = self.mid.shape(piece)[*axis];
                        let view = home.view.narrow(*axis, start, len);
                        left.push((piece, Home { storage: home.storage, view }, true));
                        start += len;
                    }
                }
                MidOp::Pad { before } => {
                    let view = padded_part(&home.view, before, self.mid.shape(inputs[0]));
                    left.push((inputs[0], Home { storage: home.storage, view }, true));
                }
                MidOp::Linear { .. }
                | MidOp::Conv { .. }
                | MidOp::Map(_)
                | MidOp::Reduce { .. }
                | MidOp::Softmax { .. }
                | MidOp::CumSum { .. }
                | MidOp::MatMul
                | MidOp::Gather
                | MidOp::Divide => {}
            }
            self.homes[id.0] = Some(home);
        }
    }

    /// Finds out, for every value, which axis its readers want innermost: readers first.
    fn ask_readers(&mut self) {
        let nodes = self.nodes.clone();
        for node in nodes.iter().rev() {
            for out in &node.outputs {
                self.likes[out.0] = self.liked_by_readers(*out);
            }
        }
        for id in (0..self.mid.values.len()).map(MidId) {
            if self.producers[id.0].is_none() {
                self.likes[id.0] = self.liked_by_readers(id);
            }
        }
    }

    /// The axis that the readers of `id` want innermost; what their results' readers want is known.
    fn liked_by_readers(&self, id: MidId) -> Option<usize> {
        let shape = self.mid.shape(id);
        let rank = shape.len();
        // Products feel the order most, so they are asked first.
        let is_product = |at: &&usize| matches!(self.nodes[**at].op, MidOp::Conv { .. } | MidOp::Linear { .. });
        let readers = &self.consumers[id.0];
        let products = readers.iter().filter(is_product);
        products.chain(readers.iter().filter(|at| !is_product(at))).find_map(|&at| {
            let node = &self.nodes[at];
            let out = node.outputs[0];
            let liked = self.likes[out.0];
            // An axis of a broadcast result, as the operand counts it.
            let aligned = || {
                let new = self.mid.shape(out).len() - rank;
                liked.and_then(|axis| axis.checked_sub(new)).filter(|&axis| shape[axis] > 1)
            };
            match &node.op {
                MidOp::Conv { .. } => Some(if shape[1] > 1 { 1 } else { rank - 1 }),
                MidOp::Linear { .. } => rank.checked_sub(1),
                MidOp::Softmax { .. }
                | MidOp::CumSum { .. }
                | MidOp::Reduce { .. }
                | MidOp::Gather
                | MidOp::Divide
                | MidOp::MatMul => None,
                // What a border is made of.
                MidOp::Pad { .. } if node.inputs[0] != id => None,
                MidOp::Slice(_) | MidOp::Concat(_) | MidOp::Pad { .. } => liked,
                MidOp::Map(_) | MidOp::Broadcast => aligned(),
                MidOp::Transpose(perm) => liked.map(|axis| perm[axis]),
                MidOp::Reshape => liked.and_then(|axis| same_axis(self.mid.shape(out), axis, shape)),
            }
        })
    }

    /// The physical order that the readers of `id` want, outermost first.
    fn liked_order(&mut self, id: MidId) -> Vec<usize> {
        let rank = self.mid.shape(id).len();
        let inner = self.likes[id.0];
        (0..rank).filter(|&axis| Some(axis) != inner).chain(inner).collect()
    }

    /// Gathers every state that is read, or is itself one of `kept`, to its home; the order in which each state's rows
    /// are kept.
    fn gathers(&mut self, states: &[MidId], storages: &[StorageId], kept: &[MidId]) -> Result<Vec<View>, LowerError> {
        let mut orders = Vec::with_capacity(states.len());
        for (&id, &storage) in states.iter().zip(storages) {
            let home = match self.homes[id.0].clone() {
                Some(home) => home,
                None => {
                    let order = self.liked_order(id);
                    self.scratch(id, &order)
                }
            };
            self.homes[id.0] = Some(home.clone());
            let row = View::ordered(self.mid.shape(id), &home.view.order());
            if !self.consumers[id.0].is_empty() || kept.contains(&id) {
                self.rows(id, &row, storage, &home, true)?;
            }
            orders.push(row);
        }
        Ok(orders)
    }

    /// Gather or scatter commands between a row and a home.
    fn rows(&mut self, id: MidId, row: &View, state: StorageId, home: &Home, gather: bool) -> Result<(), LowerError> {
        let size = self.mid.dtype(id).size();
        let runs = runs(&home.view, row, size).filter(|runs| runs.len() <= PRODUCTS_MOST);
        let Some(runs) = runs else {
            let name = &self.mid.values[id.0].name;
            return Err(LowerError {
                node: name.clone(),
                op: "state".to_owned(),
                why: format!("its row and its value lie too differently ({row:?}, {:?})", home.view),
            });
        };
        for (place, row) in runs {
            self.plan.commands.push(if gather {
                Command::Gather { state, row, to: (home.storage, place) }
            } else {
                Command::Scatter { from: (home.storage, place), state, row }
            });
        }
        Ok(())
    }

    fn scatters(&mut self, states: &[MidId], storages: &[StorageId], orders: &[View]) -> Result<(), LowerError> {
        for ((&id, &storage), row) in states.iter().zip(storages).zip(orders) {
            let mut pieces = vec![(id, row.clone())];
            if self.scattered[id.0]
                && let Some(at) = self.producers[id.0]
                && let MidOp::Concat(axis) = self.nodes[at].op
            {
                pieces.clear();
                let mut start = 0;
                for &piece in &self.nodes[at].inputs {
                    let len = self.mid.shape(piece)[axis];
                    pieces.push((piece, row.narrow(axis, start, len)));
                    start += len;
                }
            }
            for (piece, row) in pieces {
                let home = self.home(piece)?;
                let constant = self.plan.storages[home.storage.0 as usize].is_shared();
                let dense =
                    runs(&home.view, &row, self.mid.dtype(piece).size()).is_some_and(|runs| runs.len() <= COPIES_MOST);
                let home = if constant || !dense {
                    // Scatters copy runs from a seat's own memory.
                    let own = self.scratch(piece, &row.order());
                    self.copy(piece, &home, &own)?;
                    own
                } else {
                    home
                };
                self.rows(piece, &row, storage, &home, false)?;
            }
        }
        Ok(())
    }

    /// Where a value lies, copying it first if it is a view that strides cannot say.
    fn home(&mut self, id: MidId) -> Result<Home, LowerError> {
        if let Some(home) = &self.homes[id.0] {
            return Ok(home.clone());
        }
        if let Some(tensor) = self.mid.constants.get(&id) {
            let (label, bytes) = (self.mid.values[id.0].name.clone(), tensor.bytes());
            let known = self.constants.entry(address(bytes)).or_insert_with(|| self.bytes.copy(bytes));
            let bytes = Arc::clone(known);
            let storage = self.storage(Storage::Constant { label, bytes });
            let home = Home { storage, view: View::row_major(self.mid.shape(id)) };
            self.homes[id.0] = Some(home.clone());
            return Ok(home);
        }
        let nodes = self.nodes.clone();
        let Some(node) = self.producers[id.0].map(|at| &nodes[at]) else {
            let name = self.mid.values[id.0].name.clone();
            return Err(LowerError { node: name, op: "input".to_owned(), why: "nothing makes this value".to_owned() });
        };
        let Home { storage, view } = self.home(node.inputs[0])?;
        let shape = self.mid.shape(id).to_vec();
        let seen = match &node.op {
            MidOp::Transpose(perm) => Some(view.transpose(perm)),
            MidOp::Slice(axes) => Some(view.slice(axes)),
            MidOp::Broadcast => Some(view.broadcast(&shape)),
            MidOp::Reshape => view.reshape(&shape),
            _ => {
                let why = "it is used before it is made".to_owned();
                return Err(LowerError { node: node.label.clone(), op: "order".to_owned(), why });
            }
        };
        let home = match seen {
            Some(view) => Home { storage, view },
            None => {
                // A reshape that strides cannot say is a row-major copy, seen in the new shape.
                let order: Vec<usize> = (0..view.shape.len()).collect();
                let own = self.scratch(node.inputs[0], &order);
                self.copy(node.inputs[0], &Home { storage, view }, &own)?;
                Home { storage: own.storage, view: View::row_major(&shape) }
            }
        };
        self.homes[id.0] = Some(home.clone());
        Ok(home)
    }

    /// Copies the value `id` from one place to another.
    fn copy(&mut self, id: MidId, from: &Home, to: &Home) -> Result<(), LowerError> {
        let (name, dtype) = (self.mid.values[id.0].name.clone(), self.mid.dtype(id));
        if let Some(runs) = runs(&to.view, &from.view, dtype.size()).filter(|runs| runs.len() <= COPIES_MOST) {
            for (place, source) in runs {
                self.plan.commands.push(Command::Copy { from: (from.storage, source), to: (to.storage, place) });
            }
            return Ok(());
        }
        let expr = Expr::of(&[dtype]).result(0);
        self.map(&name, &expr, &[(dtype, to.clone())], &[(dtype, from.clone())])
    }

    /// The home that a node's result is to be written to.
    fn target(&mut self, out: MidId, order: &[usize]) -> Home {
        match &self.homes[out.0] {
            Some(home) => home.clone(),
            None => {
                let home = self.scratch(out, order);
                self.homes[out.0] = Some(home.clone());
                home
            }
        }
    }

    fn node(&mut self, node: &MidNode) -> Result<(), LowerError> {
        let out = node.outputs[0];
        let rank = self.mid.shape(out).len();
        let row_major: Vec<usize> = (0..rank).collect();
        if node.outputs.iter().any(|out| self.mid.values[out.0].elements() == 0) {
            let why = "a result without elements is not supported".to_owned();
            return Err(LowerError { node: node.label.clone(), op: "shape".to_owned(), why });
        }
        match &node.op {
            // Views are resolved in order, so that no chain of them is walked more than a step at a time.
            MidOp::Reshape | MidOp::Transpose(_) | MidOp::Slice(_) | MidOp::Broadcast => self.home(out).map(drop),
            MidOp::Map(expr) => {
                let mut sources = Vec::with_capacity(node.inputs.len());
                for &input in &node.inputs {
                    let Home { storage, view } = self.home(input)?;
                    let view = view.broadcast(self.mid.shape(out));
                    sources.push((self.mid.dtype(input), Home { storage, view }));
                }
                let mut targets = Vec::with_capacity(node.outputs.len());
                for &out in &node.outputs {
                    let order = match self.likes[out.0] {
                        Some(_) => self.liked_order(out),
                        None => {
                            let seated = |home: &&(DType, Home)| self.seat_stride(home.1.storage, home.0) > 0;
                            sources
                                .iter()
                                .filter(seated)
                                .find(|(_, home)| {
                                    home.view.strides.iter().zip(&home.view.shape).all(|(&s, &d)| s != 0 || d == 1)
                                })
                                .map_or(row_major.clone(), |(_, home)| home.view.order())
                        }
                    };
                    targets.push((self.mid.dtype(out), self.target(out, &order)));
                }
                self.map(&node.label, expr, &targets, &sources)
            }
            MidOp::Linear { weights, bias, activation } => {
                let to = self.target(out, &row_major);
                self.linear(node, weights, bias.as_ref(), *activation, &to)
            }
            MidOp::Conv { .. } => {
                let channels_last: Vec<usize> = (0..rank).filter(|&axis| axis != 1).chain([1]).collect();
                let to = self.target(out, &channels_last);
                self.conv(node, &to)
            }
            MidOp::Concat(axis) => {
                if self.scattered[out.0] {
                    return Ok(());
                }
                let to = self.target(out, &row_major);
                let mut start = 0;
                for &piece in &node.inputs {
                    let len = self.mid.shape(piece)[*axis];
                    let place = Home { storage: to.storage, view: to.view.narrow(*axis, start, len) };
                    self.fill_piece(piece, &place)?;
                    start += len;
                }
                Ok(())
            }
            MidOp::Pad { before } => {
                let to = self.target(out, &row_major);
                let inner = padded_part(&to.view, before, self.mid.shape(node.inputs[0]));
                self.border(node, &to, before)?;
                self.fill_piece(node.inputs[0], &Home { storage: to.storage, view: inner })
            }
            MidOp::Reduce { kind, axis } => {
                let (to, from) = (self.target(out, &row_major), self.home(node.inputs[0])?);
                let (extent, stride) = (from.view.shape[*axis], from.view.strides[*axis]);
                let first = Home { storage: from.storage, view: from.view.narrow(*axis, 0, 1) };
                let dtype = self.mid.dtype(out);
                self.dispatch(
                    &node.label,
                    &[(dtype, to, Access::Write)],
                    &[(dtype, first, from.view)],
                    |name, buffers, operands| kernels::reduce_kernel(name, buffers, *kind, (extent, stride), operands),
                )
            }
            MidOp::Softmax { axis } | MidOp::CumSum { axis, .. } => {
                let (to, from) = (self.target(out, &row_major), self.home(node.inputs[0])?);
                let dtype = self.mid.dtype(out);
                let (extent, mut strides) =
                    (from.view.shape[*axis], [to.view.strides[*axis], from.view.strides[*axis]]);
                let mut start = 0;
                if matches!(node.op, MidOp::CumSum { reverse: true, .. }) {
                    strides = strides.map(|stride| -stride);
                    start = extent - 1;
                }
                let first = |home: &Home| Home { storage: home.storage, view: home.view.narrow(*axis, start, 1) };
                let (to_first, from_first) = (first(&to), first(&from));
                let op = node.op.clone();
                self.dispatch_over(
                    &node.label,
                    &[(dtype, to_first, to.view, Access::Write)],
                    &[(dtype, from_first, from.view)],
                    |name, buffers, operands| match op {
                        MidOp::CumSum { exclusive, .. } => {
                            kernels::cumsum_kernel(name, buffers, extent, strides, exclusive, operands)
                        }
                        _ => kernels::softmax_kernel(name, buffers, extent, strides, operands),
                    },
                )
            }
            MidOp::MatMul => {
                let to = self.target(out, &row_major);
                let (left, right) = (self.home(node.inputs[0])?, self.home(node.inputs[1])?);
                let dtype = self.mid.dtype(out);
                let k = left.view.shape[2];
                let strides = [left.view.strides[2], right.view.strides[1]];
                let shape = to.view.shape.clone();
                let a = Home { storage: left.storage, view: left.view.narrow(2, 0, 1).broadcast(&shape) };
                let b = Home { storage: right.storage, view: right.view.narrow(1, 0, 1).broadcast(&shape) };
                let sources = [(dtype, a, left.view), (dtype, b, right.view)];
                self.dispatch(&node.label, &[(dtype, to, Access::Write)], &sources, |name, buffers, operands| {
                    kernels::matmul_kernel(name, buffers, k, strides, operands)
                })
            }
            MidOp::Gather => self.gather(node, out),
            MidOp::Divide => self.divide(node, out, &row_major),
        }
    }

    fn divide(&mut self, node: &MidNode, out: MidId, row_major: &[usize]) -> Result<(), LowerError> {
        let to = self.target(out, row_major);
        let (dividend, divisor) = (self.home(node.inputs[0])?, self.home(node.inputs[1])?);
        let code = self.reason(format!("{}: an integer is divided by zero", node.label));
        let flag = self.flag(&to.view.shape);
        let dtype = self.mid.dtype(out);
        let sources = [(dtype, dividend.clone(), dividend.view), (dtype, divisor.clone(), divisor.view), flag];
        self.dispatch(&node.label, &[(dtype, to, Access::Write)], &sources, |name, buffers, operands| {
            kernels::divide_kernel(name, buffers, code, operands)
        })
    }

    fn gather(&mut self, node: &MidNode, out: MidId) -> Result<(), LowerError> {
        let to = self.target(out, &[0, 1, 2]);
        let (data, indices) = (self.home(node.inputs[0])?, self.home(node.inputs[1])?);
        let (extent, stride) = (data.view.shape[1], data.view.strides[1]);
        let shape = to.view.shape.clone();
        let code = self.reason(format!("{}: an index is out of bounds for an axis of extent {extent}", node.label));
        let flag = self.flag(&shape);
        let entry = Home { storage: data.storage, view: data.view.narrow(1, 0, 1).broadcast(&shape) };
        let count = View {
            shape: vec![1, shape[1], 1],
            strides: vec![0, indices.view.strides[0], 0],
            offset: indices.view.offset,
        };
        let index = Home { storage: indices.storage, view: count.broadcast(&shape) };
        let (dtype, index_type) = (self.mid.dtype(out), self.mid.dtype(node.inputs[1]));
        let targets = [(dtype, to.clone(), to.view, Access::Write)];
        let sources = [(dtype, entry, data.view), (index_type, index, indices.view), flag];
        self.dispatch_over(&node.label, &targets, &sources, |name, buffers, operands| {
            kernels::gather_kernel(name, buffers, (extent, stride), code, operands)
        })
    }

    /// Another reason for refusing a seat; its code.
    fn reason(&mut self, reason: String) -> u32 {
        self.reasons.push(reason);
        self.reasons.len() as u32
    }

    /// The seat's status word as an operand that is walked with `shape`.
    fn flag(&mut self, shape: &[usize]) -> (DType, Home, View) {
        let word = View::row_major(&[1]);
        (DType::I32, Home { storage: self.status(), view: word.broadcast(shape) }, word)
    }

    /// The seats' status words: zero until a kernel refuses its seat.
    fn status(&mut self) -> StorageId {
        if let Some(status) = self.status {
            return status;
        }
        // The port is known once all outputs are.
        let status = self.storage(Storage::Output { port: usize::MAX, bytes: 4 });
        self.plan.commands.insert(0, Command::Fill { to: (status, Region::contiguous(0, 4)), pattern: 0 });
        for epilogue in &mut self.plan.epilogues {
            epilogue.contraction += 1;
            epilogue.dispatch += 1;
        }
        self.status = Some(status);
        status
    }

    /// The reasons for refusing a seat; the status words become the output after the last.
    fn refusals(&mut self, outputs: usize) -> Vec<String> {
        if let Some(status) = self.status
            && let Storage::Output { port, .. } = &mut self.plan.storages[status.0 as usize]
        {
            *port = outputs;
        }
        std::mem::take(&mut self.reasons)
    }

    /// Makes sure that a piece lies at `place`.
    fn fill_piece(&mut self, piece: MidId, place: &Home) -> Result<(), LowerError> {
        let home = self.home(piece)?;
        if home.is(place) {
            return Ok(());
        }
        self.copy(piece, &home, place)
    }

    /// Fills what a pad adds: slabs below and above, axis by axis.
    fn border(&mut self, node: &MidNode, to: &Home, before: &[usize]) -> Result<(), LowerError> {
        let dtype = self.mid.dtype(node.outputs[0]);
        // A fill repeats 4 bytes.
        let pattern = self.mid.constants.get(&node.inputs[1]).and_then(|tensor| {
            let element = tensor.bytes();
            let repeated: Vec<u8> = element.iter().copied().cycle().take(element.len().max(4)).collect();
            let (low, high) = repeated.split_first_chunk::<4>()?;
            (high.is_empty() || high == low).then(|| u32::from_le_bytes(*low))
        });
        let inner = self.mid.shape(node.inputs[0]).to_vec();
        let mut left = to.view.clone();
        let mut slabs = Vec::new();
        for axis in 0..before.len() {
            let high = left.shape[axis] - before[axis] - inner[axis];
            for (start, len) in [(0, before[axis]), (before[axis] + inner[axis], high)] {
                if len > 0 {
                    slabs.push(left.narrow(axis, start, len));
                }
            }
            left = left.narrow(axis, before[axis], inner[axis]);
        }
        for view in slabs {
            let filled = runs(&view, &view, dtype.size()).filter(|runs| {
                runs.len() <= COPIES_MOST
                    && runs.iter().all(|(region, _)| region.row_bytes % 4 == 0 && region.offset % 4 == 0)
            });
            match (pattern, filled) {
                (Some(pattern), Some(runs)) => {
                    for (region, _) in runs {
                        self.plan.commands.push(Command::Fill { to: (to.storage, region), pattern });
                    }
                }
                _ => {
                    let from = self.home(node.inputs[1])?;
                    let from = Home { view: from.view.broadcast(&view.shape), ..from };
                    let (expr, to) = (Expr::of(&[dtype]).result(0), Home { storage: to.storage, view });
                    self.map(&node.label, &expr, &[(dtype, to)], &[(dtype, from)])?;
                }
            }
        }
        Ok(())
    }

    fn finish_output(&mut self, id: MidId, storage: StorageId) -> Result<(), LowerError> {
        let home = self.home(id)?;
        let place = Home { storage, view: View::row_major(self.mid.shape(id)) };
        if home.is(&place) {
            return Ok(());
        }
        self.copy(id, &home, &place)
    }

    fn map(
        &mut self,
        label: &str,
        expr: &Expr,
        targets: &[(DType, Home)],
        sources: &[(DType, Home)],
    ) -> Result<(), LowerError> {
        let written: Vec<_> = targets.iter().map(|(dtype, home)| (*dtype, home.clone(), Access::Write)).collect();
        let read: Vec<_> = sources.iter().map(|(dtype, home)| (*dtype, home.clone(), home.view.clone())).collect();
        self.dispatch(label, &written, &read, |name, buffers, operands| {
            kernels::map_kernel(name, buffers, expr, operands)
        })?;
        self.note_epilogue(expr, targets, sources);
        Ok(())
    }

    fn dispatch(
        &mut self,
        label: &str,
        targets: &[(DType, Home, Access)],
        sources: &[(DType, Home, View)],
        text: impl FnOnce(&str, usize, &[Operand]) -> String,
    ) -> Result<(), LowerError> {
        let targets: Vec<_> =
            targets.iter().map(|(dtype, home, access)| (*dtype, home.clone(), home.view.clone(), *access)).collect();
        self.dispatch_over(label, &targets, sources, text)
    }

    /// Records a kernel over strided operands. Each has the view that the grid walks, and the view of all it touches.
    fn dispatch_over(
        &mut self,
        label: &str,
        targets: &[(DType, Home, View, Access)],
        sources: &[(DType, Home, View)],
        text: impl FnOnce(&str, usize, &[Operand]) -> String,
    ) -> Result<(), LowerError> {
        let all = targets.iter().map(|(dtype, home, touched, access)| (*dtype, home, touched, *access)).chain(
            sources.iter().map(|(dtype, home, touched)| {
                // A status word is the one source that may be written.
                let access = if Some(home.storage) == self.status { Access::ReadWrite } else { Access::Read };
                (*dtype, home, touched, access)
            }),
        );
        let mut buffers: Vec<(StorageId, Vec<(Region, Access)>)> = Vec::new();
        let mut operands = Vec::new();
        for (dtype, home, touched, access) in all {
            let at = buffers.iter().position(|(storage, _)| *storage == home.storage).unwrap_or_else(|| {
                buffers.push((home.storage, Vec::new()));
                buffers.len() - 1
            });
            for region in regions(touched, dtype.size()) {
                if !buffers[at].1.contains(&(region, access)) {
                    buffers[at].1.push((region, access));
                }
            }
            let seat_stride = self.seat_stride(home.storage, dtype);
            let reach = kernels::reach(touched);
            operands.push(Operand { buffer: at, dtype, view: home.view.clone(), seat_stride, reach });
        }
        const NAME: &str = "kernel";
        let source = text(NAME, buffers.len(), &operands);
        let kernel = match self.kernels.get(&source) {
            Some(&known) => known,
            None => {
                let image =
                    loom_compiler::compile_cpu(label, &source, NAME, &BTreeMap::new()).map_err(|log| LowerError {
                        node: label.to_owned(),
                        op: "kernel".to_owned(),
                        why: format!("its kernel does not compile: {log}"),
                    })?;
                self.plan.kernels.push(Arc::new(image));
                let id = KernelId(self.plan.kernels.len() as u32 - 1);
                self.kernels.insert(source, id);
                id
            }
        };
        let buffers = buffers.into_iter().map(|(storage, uses)| Argument::Buffer { storage, window: None, uses });
        self.plan.commands.push(Command::Dispatch {
            label: label.to_owned(),
            kernel,
            workload: vec![Scalar::Seats],
            arguments: std::iter::once(Argument::Scalar(Scalar::Seats)).chain(buffers).collect(),
        });
        Ok(())
    }
}

/// The part of a padded view that the operand itself fills.
fn padded_part(view: &View, before: &[usize], inner: &[usize]) -> View {
    let mut part = view.clone();
    for (axis, (&start, &len)) in before.iter().zip(inner).enumerate() {
        part = part.narrow(axis, start, len);
    }
    part
}

/// The axis of `to` that is axis `axis` of `from`: of the same extent, with as many elements before it.
fn same_axis(from: &[usize], axis: usize, to: &[usize]) -> Option<usize> {
    let before: usize = from[..axis].iter().product();
    (0..to.len()).find(|&other| to[other] == from[axis] && to[..other].iter().product::<usize>() == before)
}
