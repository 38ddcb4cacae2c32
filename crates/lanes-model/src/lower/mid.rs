//! The graph between ONNX's operators and plans: few ops, each of which has one way to become commands.
//!
//! `Graph --rewrite--> Mid --fuse--> Mid --emit--> Plan`
//!
//! - [`MidOp::Map`] is every elementwise operation; chains of them are fused into one.
//! - [`MidOp::Linear`] is every product with known weights: matmul, gemm, the products of recurrent cells, means.
//! - `Reshape`, `Transpose`, `Slice` and `Broadcast` move nothing: they are views.
//! - Not here: how an operator is taken apart (`rewrite`), and where values lie (`emit`).

use super::LowerError;
use super::expr::Expr;
use super::known::{Address, address};
use crate::graph::{Reduction, SliceAxis};
use crate::tensor::Tensor;
use lanes_core::DType;
use lanes_core::plan::Activation;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A value: an index into [`Mid::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MidId(pub usize);

/// What is known of a value.
#[derive(Clone, Debug)]
pub struct MidValue {
    /// For labels.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// One seat's extents.
    pub shape: Vec<usize>,
}

impl MidValue {
    /// How many elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An operation.
#[derive(Clone, Debug)]
pub struct MidNode {
    /// The model's node it came from.
    pub label: String,
    /// What it does.
    pub op: MidOp,
    /// Operands.
    pub inputs: Vec<MidId>,
    /// Results.
    pub outputs: Vec<MidId>,
}

/// The operations.
#[derive(Clone, Debug)]
pub enum MidOp {
    /// Operands broadcast to the results' common shape, then one expression per element.
    Map(Expr),
    /// `activation(Σ operand_i · weights_i + bias)` over the operands' last axes; `weights_i` is `[K_i, N]` row-major.
    /// Operands have the result's outer axes.
    Linear {
        /// One `[K_i, N]` matrix per operand.
        weights: Vec<Arc<[f32]>>,
        /// `[N]`.
        bias: Option<Arc<[f32]>>,
        /// Applied last.
        activation: Activation,
    },
    /// Cross-correlation of `[1, C, spatial…]`, already padded, with known weights `[M, C/group, kernel…]`.
    Conv {
        /// `[M, C/group, kernel…]`, row-major.
        weights: Arc<[f32]>,
        /// Extents of the kernel.
        kernel: Vec<usize>,
        /// Distance between windows.
        strides: Vec<usize>,
        /// Distance between taps.
        dilations: Vec<usize>,
        /// Groups of channels.
        group: usize,
        /// `[M]`.
        bias: Option<Arc<[f32]>>,
        /// Applied last.
        activation: Activation,
    },
    /// A reduction over `axis`, which stays with extent 1.
    Reduce {
        /// Of which kind.
        kind: Reduction,
        /// Which axis.
        axis: usize,
    },
    /// Softmax over `axis`.
    Softmax {
        /// Which axis.
        axis: usize,
    },
    /// Running sums along `axis`.
    CumSum {
        /// Which axis.
        axis: usize,
        /// Whether an element's own value is left out.
        exclusive: bool,
        /// Whether sums run from the end.
        reverse: bool,
    },
    /// Product of two computed operands `[batch, M, K]` and `[batch, K, N]`.
    MatMul,
    /// Entries of operand 0 `[outer, D, inner]` along its middle axis by the integers of operand 1 `[count]`.
    Gather,
    /// Same elements, row-major, in the result's shape.
    Reshape,
    /// Axis `i` of the result is axis `perm[i]`.
    Transpose(Vec<usize>),
    /// Part of the operand.
    Slice(Vec<SliceAxis>),
    /// Repeated to the result's shape.
    Broadcast,
    /// One after the other along an axis.
    Concat(usize),
    /// A border around operand 0, everywhere of the one element of operand 1.
    Pad {
        /// Elements added before, per axis.
        before: Vec<usize>,
    },
    /// Operand 0 by operand 1, integers of the result's shape, towards zero; a zero divisor refuses the seat.
    Divide,
}

/// The whole.
#[derive(Debug, Default)]
pub struct Mid {
    /// Every value.
    pub values: Vec<MidValue>,
    /// In topological order.
    pub nodes: Vec<MidNode>,
    /// Values that are known; none is ever removed.
    pub constants: BTreeMap<MidId, Arc<Tensor>>,
    /// What was made of known numbers, so that it is made once: a recurrence asks for its weights at every step.
    arranged: HashMap<(Address, Arrangement), Arc<[f32]>>,
    /// What was made of known values.
    derived: HashMap<(MidId, Derived), MidId>,
}

/// What is made of numbers that lie somewhere in the constants, or in what was made of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// A tensor of this type, as f32.
    Floats(DType),
    /// The numbers themselves.
    Part,
    /// A matrix of so many rows, transposed.
    Turned {
        /// Rows before.
        rows: usize,
    },
    /// Each with the one that lies so much further in the same constant.
    Added {
        /// How far.
        distance: usize,
    },
}

/// What is made of a known value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Derived {
    /// Its transpose.
    Transposed,
    /// Its elements as f32.
    Wide,
}

impl Mid {
    /// A new value.
    pub fn value(&mut self, name: impl Into<String>, dtype: DType, shape: Vec<usize>) -> MidId {
        self.values.push(MidValue { name: name.into(), dtype, shape });
        MidId(self.values.len() - 1)
    }

    /// A new known value.
    pub fn constant(&mut self, name: impl Into<String>, tensor: Arc<Tensor>) -> MidId {
        let id = self.value(name, tensor.dtype(), tensor.shape().to_vec());
        self.constants.insert(id, tensor);
        id
    }

    /// Its shape.
    pub fn shape(&self, id: MidId) -> &[usize] {
        &self.values[id.0].shape
    }

    /// Its type.
    pub fn dtype(&self, id: MidId) -> DType {
        self.values[id.0].dtype
    }

    /// Appends an operation with one new result.
    pub fn node(&mut self, label: &str, op: MidOp, inputs: Vec<MidId>, dtype: DType, shape: Vec<usize>) -> MidId {
        let out = self.value(format!("{label}.{}", self.values.len()), dtype, shape);
        self.nodes.push(MidNode { label: label.to_owned(), op, inputs, outputs: vec![out] });
        out
    }

    /// A reshape, or the value itself when it has that shape.
    pub fn reshape(&mut self, label: &str, id: MidId, shape: Vec<usize>) -> MidId {
        if self.shape(id) == shape {
            return id;
        }
        if let Some(known) = self.constants.get(&id) {
            let tensor = Arc::new(known.reshaped(shape));
            return self.constant(format!("{label}.reshaped"), tensor);
        }
        self.node(label, MidOp::Reshape, vec![id], self.dtype(id), shape)
    }

    /// A transpose, or the value itself.
    pub fn transpose(&mut self, label: &str, id: MidId, perm: Vec<usize>) -> MidId {
        if perm.iter().enumerate().all(|(i, &axis)| i == axis) {
            return id;
        }
        let shape = perm.iter().map(|&axis| self.shape(id)[axis]).collect();
        self.node(label, MidOp::Transpose(perm), vec![id], self.dtype(id), shape)
    }

    /// Elements `start, start + step, …` of one axis.
    pub fn slice(&mut self, label: &str, id: MidId, part: SliceAxis) -> MidId {
        if part.start == 0 && part.step == 1 && part.len == self.shape(id)[part.axis] {
            return id;
        }
        let mut shape = self.shape(id).to_vec();
        shape[part.axis] = part.len;
        self.node(label, MidOp::Slice(vec![part]), vec![id], self.dtype(id), shape)
    }

    /// Elements `start..start + len` of one axis.
    pub fn narrow(&mut self, label: &str, id: MidId, axis: usize, start: usize, len: usize) -> MidId {
        self.slice(label, id, SliceAxis { axis, start, step: 1, len })
    }

    /// An elementwise operation of one result over operands broadcast to `shape`.
    pub fn map(&mut self, label: &str, expr: Expr, inputs: Vec<MidId>, shape: Vec<usize>) -> MidId {
        let dtype = expr.dtype(expr.results[0]);
        self.node(label, MidOp::Map(expr), inputs, dtype, shape)
    }

    /// Pieces along an axis; a single piece is itself.
    pub fn concat(&mut self, label: &str, pieces: Vec<MidId>, axis: usize) -> MidId {
        if let [only] = pieces[..] {
            return only;
        }
        let mut shape = self.shape(pieces[0]).to_vec();
        shape[axis] = pieces.iter().map(|&piece| self.shape(piece)[axis]).sum();
        let dtype = self.dtype(pieces[0]);
        self.node(label, MidOp::Concat(axis), pieces, dtype, shape)
    }

    /// For each value, how many operands name it.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        for id in self.nodes.iter().flat_map(|node| &node.inputs) {
            uses[id.0] += 1;
        }
        uses
    }

    /// For each value, the node that makes it.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.values.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for out in &node.outputs {
                producers[out.0] = Some(at);
            }
        }
        producers
    }

    /// Removes nodes that nothing in `kept` needs.
    pub fn sweep(&mut self, kept: &[MidId]) {
        let mut needed = vec![false; self.values.len()];
        for id in kept {
            needed[id.0] = true;
        }
        let mut live: Vec<MidNode> = Vec::with_capacity(self.nodes.len());
        for node in std::mem::take(&mut self.nodes).into_iter().rev() {
            if node.outputs.iter().any(|out| needed[out.0]) {
                for input in &node.inputs {
                    needed[input.0] = true;
                }
                live.push(node);
            }
        }
        live.reverse();
        self.nodes = live;
    }

    /// What `source` becomes in `arrangement`: made by `make` when it is first asked for. `source` lies in one of the
    /// constants, or in what this gave, so its address is its own for as long as the graph lives.
    pub fn arranged(
        &mut self,
        source: &[f32],
        arrangement: Arrangement,
        make: impl FnOnce(&[f32]) -> Arc<[f32]>,
    ) -> Arc<[f32]> {
        self.arranged.entry((address(source), arrangement)).or_insert_with(|| make(source)).clone()
    }

    /// The known value that is `derived` from another: made by `make` when it is first asked for.
    pub fn derived(&mut self, id: MidId, derived: Derived, make: impl FnOnce(&mut Self) -> MidId) -> MidId {
        if let Some(&known) = self.derived.get(&(id, derived)) {
            return known;
        }
        let made = make(self);
        self.derived.insert((id, derived), made);
        made
    }

    /// The elements of a known value as f32, if they are floats.
    pub fn known_floats(&mut self, id: MidId) -> Option<Arc<[f32]>> {
        let tensor = self.constants.get(&id)?;
        let key = (address(tensor.bytes()), Arrangement::Floats(tensor.dtype()));
        if let Some(known) = self.arranged.get(&key) {
            return Some(known.clone());
        }
        let floats = Arc::from(&tensor.to_f32s()?[..]);
        self.arranged.insert(key, Arc::clone(&floats));
        Some(floats)
    }

    /// The elements of a known value as f32, for weights.
    pub fn floats(&mut self, id: MidId, label: &str, what: &str) -> Result<Arc<[f32]>, LowerError> {
        if let Some(floats) = self.known_floats(id) {
            return Ok(floats);
        }
        let name = &self.values[id.0].name;
        let why = match self.constants.get(&id) {
            None => format!("`{name}` is computed at run time, and must be a constant"),
            Some(tensor) => format!("`{name}` is {}, and must be a float", tensor.dtype()),
        };
        Err(LowerError { node: label.to_owned(), op: what.to_owned(), why })
    }
}
