//! Every operator taken apart into the few ops of [`Mid`].

mod recurrent;

use super::LowerError;
use super::expr::{Expr, Instr};
use super::mid::{Derived, Mid, MidId, MidOp};
use crate::graph::{Binary, Graph, Node, Op, PadMode, Reduction, SliceAxis, Unary, ValueId, Window};
use crate::tensor::Tensor;
use lanes_core::DType;
use lanes_core::plan::Activation;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A reduction over at most so many elements is unrolled into one elementwise operation over slices.
const UNROLLED_MOST: usize = 8;
/// A depthwise convolution of at most so many taps is one elementwise operation over shifted slices.
const TAPS_MOST: usize = 64;

/// The graph in few ops, and where each of its values went.
pub fn rewrite(graph: &Graph) -> Result<(Mid, BTreeMap<ValueId, MidId>), LowerError> {
    let mut rewriter = Rewriter { graph, mid: Mid::default(), place: BTreeMap::new() };
    for &id in &graph.inputs {
        let info = graph.value(id);
        let place = rewriter.mid.value(&info.name, info.dtype, info.shape.clone());
        rewriter.place.insert(id, place);
    }
    for (&id, tensor) in &graph.constants {
        let place = rewriter.mid.constant(&graph.value(id).name, tensor.clone());
        rewriter.place.insert(id, place);
    }
    for node in &graph.nodes {
        rewriter.node(node)?;
    }
    Ok((rewriter.mid, rewriter.place))
}

struct Rewriter<'a> {
    graph: &'a Graph,
    mid: Mid,
    place: BTreeMap<ValueId, MidId>,
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

impl Rewriter<'_> {
    fn node(&mut self, node: &Node) -> Result<(), LowerError> {
        let refuse = |why: String| LowerError { node: node.name.clone(), op: node.onnx.clone(), why };
        let label = node.name.as_str();
        let operand = |n: usize| node.inputs.get(n).copied().flatten().map(|id| self.place[&id]);
        let inputs: Vec<Option<MidId>> = (0..node.inputs.len()).map(operand).collect();
        let optional = |n: usize| inputs.get(n).copied().flatten();
        let required = |n: usize| optional(n).ok_or_else(|| refuse(format!("operand {n} is left out")));
        if let Op::Recurrent(recurrent) = &node.op {
            return self.recurrent(node, recurrent, &inputs);
        }
        let [Some(out)] = node.outputs[..] else {
            return Err(refuse(format!("{} results are asked for; one is supported", node.outputs.len())));
        };
        let info = self.graph.value(out);
        let (dtype, shape) = (info.dtype, info.shape.clone());
        for id in inputs.iter().flatten() {
            let found = self.mid.dtype(*id);
            if !super::expr::supported(found) {
                return Err(refuse(format!("operands of type {found} are not supported")));
            }
        }
        let mid = &mut self.mid;
        let made = match &node.op {
            Op::Unary(op) => {
                let x = required(0)?;
                let mut expr = Expr::of(&[mid.dtype(x)]);
                let result = expr.unary(*op, 0);
                mid.map(label, expr.result(result), vec![x], shape)
            }
            Op::Binary(op) => {
                let (a, b) = (required(0)?, required(1)?);
                let divides = *op == Binary::Div && !is_float(dtype);
                if *op == Binary::Pow {
                    power(mid, label, a, b, shape).map_err(refuse)?
                } else if divides && !known_without_zero(mid, b) {
                    let operands = [a, b].map(|id| spread(mid, label, id, &shape));
                    mid.node(label, MidOp::Divide, operands.into(), dtype, shape)
                } else {
                    let mut expr = Expr::of(&[mid.dtype(a), mid.dtype(b)]);
                    let result = expr.binary(*op, 0, 1);
                    mid.map(label, expr.result(result), vec![a, b], shape)
                }
            }
            Op::Where => {
                let (condition, a, b) = (required(0)?, required(1)?, required(2)?);
                let mut expr = Expr::of(&[DType::Bool, dtype, dtype]);
                let result = expr.select(0, 1, 2);
                mid.map(label, expr.result(result), vec![condition, a, b], shape)
            }
            Op::Clip => {
                let x = required(0)?;
                let bounds = [(optional(1), Binary::Max), (optional(2), Binary::Min)];
                let operands: Vec<MidId> = std::iter::once(x).chain(bounds.iter().filter_map(|&(id, _)| id)).collect();
                let mut expr = Expr::of(&vec![dtype; operands.len()]);
                let mut result = 0;
                for (n, (_, op)) in bounds.iter().filter(|(id, _)| id.is_some()).enumerate() {
                    result = expr.binary(*op, result, n + 1);
                }
                mid.map(label, expr.result(result), operands, shape)
            }
            Op::Cast => {
                let x = required(0)?;
                cast(mid, label, x, dtype)
            }
            Op::Reshape => mid.reshape(label, required(0)?, shape),
            Op::Transpose { perm } => mid.transpose(label, required(0)?, perm.clone()),
            Op::Expand => {
                let x = required(0)?;
                mid.node(label, MidOp::Broadcast, vec![x], dtype, shape)
            }
            Op::Concat { axis } => {
                let pieces: Vec<MidId> =
                    inputs.iter().flatten().copied().filter(|&piece| mid.shape(piece)[*axis] > 0).collect();
                if pieces.is_empty() {
                    return Err(refuse("all its operands are empty".to_owned()));
                }
                mid.concat(label, pieces, *axis)
            }
            Op::Slice { axes } => {
                let x = required(0)?;
                mid.node(label, MidOp::Slice(axes.clone()), vec![x], dtype, shape)
            }
            Op::Gather { axis } => gather(mid, label, required(0)?, required(1)?, *axis, shape).map_err(refuse)?,
            Op::Pad { before, after, mode } => {
                let x = required(0)?;
                match mode {
                    PadMode::Constant => {
                        let value = match optional(1) {
                            Some(value) => mid.reshape(label, value, Vec::new()),
                            None => mid.constant("zero", Arc::new(Tensor::zeros(dtype, Vec::new()))),
                        };
                        mid.node(label, MidOp::Pad { before: before.clone() }, vec![x, value], dtype, shape)
                    }
                    PadMode::Reflect | PadMode::Edge => border(mid, label, x, before, after, *mode),
                }
            }
            Op::MatMul => matmul(mid, label, required(0)?, required(1)?, &shape).map_err(refuse)?,
            Op::Gemm { alpha, beta, trans_a, trans_b } => {
                // Halves are rounded once, at the end.
                let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
                let [mut a, mut b] = [required(0)?, required(1)?].map(|id| cast(mid, label, id, wide));
                if *trans_a {
                    a = mid.transpose(label, a, vec![1, 0]);
                }
                if *trans_b {
                    b = transposed(mid, label, b);
                }
                let mut product = matmul(mid, label, a, b, &shape).map_err(refuse)?;
                if *alpha != 1.0 {
                    product = scaled(mid, label, product, *alpha);
                }
                if let Some(c) = optional(2).filter(|_| *beta != 0.0) {
                    let mut c = cast(mid, label, c, wide);
                    if *beta != 1.0 {
                        c = scaled(mid, label, c, *beta);
                    }
                    let mut expr = Expr::of(&[wide, wide]);
                    let sum = expr.binary(Binary::Add, 0, 1);
                    product = mid.map(label, expr.result(sum), vec![product, c], shape);
                }
                cast(mid, label, product, dtype)
            }
            Op::Conv { window, group } => {
                conv(mid, label, required(0)?, required(1)?, optional(2), window, *group, &shape)?
            }
            Op::LayerNorm { axis, epsilon } => {
                let x = required(0)?;
                layer_norm(mid, label, x, required(1)?, optional(2), *axis, *epsilon, dtype)
            }
            Op::BatchNorm { epsilon } => {
                let x = required(0)?;
                let channels = mid.shape(x)[1];
                let mut by_channel = vec![1; mid.shape(x).len() - 1];
                by_channel[0] = channels;
                let mut operands = vec![x];
                for n in 1..5 {
                    let id = required(n)?;
                    operands.push(mid.reshape(label, id, by_channel.clone()));
                }
                // Statistics may have a type of their own, and half precision is rounded once.
                let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
                let operands: Vec<MidId> = operands.into_iter().map(|id| cast(mid, label, id, wide)).collect();
                let mut expr = Expr::of(&[wide; 5]);
                let epsilon = expr.number((*epsilon).into(), 4);
                let variance = expr.binary(Binary::Add, 4, epsilon);
                let deviation = expr.unary(Unary::Sqrt, variance);
                let centred = expr.binary(Binary::Sub, 0, 3);
                let normal = expr.binary(Binary::Div, centred, deviation);
                let sized = expr.binary(Binary::Mul, normal, 1);
                let result = expr.binary(Binary::Add, sized, 2);
                let made = mid.map(label, expr.result(result), operands, shape);
                cast(mid, label, made, dtype)
            }
            Op::Softmax { axis } => {
                let x = required(0)?;
                mid.node(label, MidOp::Softmax { axis: *axis }, vec![x], dtype, shape)
            }
            Op::Reduce { kind, axes, .. } => {
                // Halves are rounded once, and a mean of integers may have a sum that they do not hold.
                let wide = match dtype {
                    DType::F16 | DType::BF16 => DType::F32,
                    _ if is_float(dtype) || *kind != Reduction::Mean => dtype,
                    _ => DType::I64,
                };
                let x = required(0)?;
                let mut x = cast(mid, label, x, wide);
                if *kind == Reduction::Mean && !is_float(dtype) {
                    let count: usize = axes.iter().map(|&axis| mid.shape(x)[axis]).product();
                    x = axes.iter().fold(x, |x, &axis| reduce(mid, label, x, Reduction::Sum, axis));
                    x = divided(mid, label, x, count);
                } else {
                    x = axes.iter().fold(x, |x, &axis| reduce(mid, label, x, *kind, axis));
                }
                let x = cast(mid, label, x, dtype);
                mid.reshape(label, x, shape)
            }
            Op::CumSum { axis, exclusive, reverse } => {
                let x = required(0)?;
                let op = MidOp::CumSum { axis: *axis, exclusive: *exclusive, reverse: *reverse };
                mid.node(label, op, vec![x], dtype, shape)
            }
            Op::Recurrent(_) => return Err(refuse("a recurrence has results of its own".to_owned())),
        };
        self.place.insert(out, made);
        Ok(())
    }
}

/// A product in f32, whatever float type its operands have.
fn linear(
    mid: &mut Mid,
    label: &str,
    inputs: Vec<MidId>,
    weights: Vec<Arc<[f32]>>,
    bias: Option<Arc<[f32]>>,
    n: usize,
) -> MidId {
    let dtype = mid.dtype(inputs[0]);
    let inputs: Vec<MidId> = inputs.into_iter().map(|input| cast(mid, label, input, DType::F32)).collect();
    let mut shape = mid.shape(inputs[0]).to_vec();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    let op = MidOp::Linear { weights, bias, activation: Activation::None };
    let product = mid.node(label, op, inputs, DType::F32, shape);
    cast(mid, label, product, dtype)
}

fn cast(mid: &mut Mid, label: &str, x: MidId, to: DType) -> MidId {
    let from = mid.dtype(x);
    if from == to {
        return x;
    }
    // Known halves widen exactly, and stay known: weights are.
    if let (DType::F16 | DType::BF16, DType::F32, Some(values)) = (from, to, mid.known_floats(x)) {
        return mid.derived(x, Derived::Wide, |mid| {
            let wide = Arc::new(Tensor::from_vec(mid.shape(x).to_vec(), values.to_vec()));
            mid.constant(format!("{label}.wide"), wide)
        });
    }
    let mut expr = Expr::of(&[from]);
    let result = expr.push(Instr::Cast(0), to);
    let shape = mid.shape(x).to_vec();
    mid.map(label, expr.result(result), vec![x], shape)
}

fn scaled(mid: &mut Mid, label: &str, x: MidId, by: f32) -> MidId {
    let mut expr = Expr::of(&[mid.dtype(x)]);
    let factor = expr.number(by.into(), 0);
    let result = expr.binary(Binary::Mul, 0, factor);
    let shape = mid.shape(x).to_vec();
    mid.map(label, expr.result(result), vec![x], shape)
}

/// The transpose of a matrix, done now when it is known.
fn transposed(mid: &mut Mid, label: &str, x: MidId) -> MidId {
    if !mid.constants.contains_key(&x) {
        return mid.transpose(label, x, vec![1, 0]);
    }
    mid.derived(x, Derived::Transposed, |mid| transposed_now(mid, label, x))
}

fn transposed_now(mid: &mut Mid, label: &str, x: MidId) -> MidId {
    let Some(tensor) = mid.constants.get(&x) else { return mid.transpose(label, x, vec![1, 0]) };
    let ([rows, columns], size) = ([tensor.shape()[0], tensor.shape()[1]], tensor.dtype().size());
    let element = |at: usize| &tensor.bytes()[at * size..][..size];
    let places = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    let bytes: Vec<u8> = places.flat_map(element).copied().collect();
    match Tensor::new(tensor.dtype(), vec![columns, rows], bytes.into()) {
        Some(turned) => mid.constant(format!("{label}.transposed"), Arc::new(turned)),
        None => mid.transpose(label, x, vec![1, 0]),
    }
}

/// A value repeated to a shape, or itself.
fn spread(mid: &mut Mid, label: &str, id: MidId, shape: &[usize]) -> MidId {
    if mid.shape(id) == shape {
        return id;
    }
    mid.node(label, MidOp::Broadcast, vec![id], mid.dtype(id), shape.to_vec())
}

/// Whether a value is known to hold integers other than 0.
fn known_without_zero(mid: &Mid, id: MidId) -> bool {
    // A u64 that is no i64 is not 0 either, but is divided by as if it were computed.
    mid.constants.get(&id).and_then(|tensor| tensor.to_i64s()).is_some_and(|all| !all.contains(&0))
}

/// Integers by a count that is not 0.
fn divided(mid: &mut Mid, label: &str, x: MidId, count: usize) -> MidId {
    let mut expr = Expr::of(&[mid.dtype(x)]);
    let count = expr.number(count as f64, 0);
    let result = expr.binary(Binary::Div, 0, count);
    let shape = mid.shape(x).to_vec();
    mid.map(label, expr.result(result), vec![x], shape)
}

/// The one number that a known value repeats everywhere.
fn known_number(mid: &Mid, id: MidId) -> Option<f64> {
    let tensor = mid.constants.get(&id)?;
    let number = |values: &[f64]| values.iter().all(|v| *v == values[0]).then(|| values[0]);
    if tensor.is_empty() {
        return None;
    }
    if tensor.dtype() == DType::F64 {
        return number(&tensor.values::<f64>());
    }
    if let Some(values) = tensor.to_f32s() {
        return number(&values.iter().map(|&v| v.into()).collect::<Vec<_>>());
    }
    // Integers beyond 2^53 are no exact f64; they are not taken for a number here.
    let values = tensor.to_i64s()?;
    values
        .iter()
        .all(|v| v.unsigned_abs() <= 1 << 53)
        .then(|| values.iter().map(|&v| v as f64).collect::<Vec<_>>())
        .and_then(|v| number(&v))
}

/// Powers: small whole exponents as products, which is what they mean and faster than a logarithm.
fn power(mid: &mut Mid, label: &str, a: MidId, b: MidId, shape: Vec<usize>) -> Result<MidId, String> {
    let dtype = mid.dtype(a);
    let exponent = known_number(mid, b).filter(|e| e.fract() == 0.0 && (1.0..=4.0).contains(e));
    if let Some(exponent) = exponent {
        // Halves are rounded once, not after every product.
        let half = matches!(dtype, DType::F16 | DType::BF16);
        let mut expr = Expr::of(&[dtype]);
        let base = if half { expr.push(Instr::Cast(0), DType::F32) } else { 0 };
        let mut product = base;
        for _ in 1..exponent as u32 {
            product = expr.binary(Binary::Mul, product, base);
        }
        if half {
            product = expr.push(Instr::Cast(product), dtype);
        }
        let made = mid.map(label, expr.result(product), vec![a], mid.shape(a).to_vec());
        return Ok(spread(mid, label, made, &shape));
    }
    if !is_float(dtype) {
        return Err(format!("powers of {dtype} need a constant exponent from 1 to 4"));
    }
    let b = cast(mid, label, b, dtype);
    let mut expr = Expr::of(&[dtype, dtype]);
    let result = expr.binary(Binary::Pow, 0, 1);
    Ok(mid.map(label, expr.result(result), vec![a, b], shape))
}

fn gather(
    mid: &mut Mid,
    label: &str,
    data: MidId,
    indices: MidId,
    axis: usize,
    shape: Vec<usize>,
) -> Result<MidId, String> {
    let source = mid.shape(data).to_vec();
    let extent = source[axis];
    if let Some(known) = mid.constants.get(&indices) {
        let known = known.to_i64s().ok_or_else(|| "its indices are not integers".to_owned())?;
        let mut at = Vec::with_capacity(known.len());
        for index in known {
            let place = if index < 0 { index.checked_add(extent as i64) } else { Some(index) };
            match place.and_then(|place| usize::try_from(place).ok()).filter(|&place| place < extent) {
                Some(place) => at.push(place),
                None => return Err(format!("index {index} is out of bounds for axis {axis} of extent {extent}")),
            }
        }
        if at.is_empty() {
            return Err("it gathers nothing".to_owned());
        }
        // Runs of evenly spaced indices are slices.
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < at.len() {
            let step = at.get(start + 1).map_or(1, |&next| next as isize - at[start] as isize);
            let mut len = 1;
            while step != 0
                && at.get(start + len).is_some_and(|&next| next as isize == at[start] as isize + step * len as isize)
            {
                len += 1;
            }
            let step = if len == 1 { 1 } else { step };
            pieces.push(mid.slice(label, data, SliceAxis { axis, start: at[start], step, len }));
            start += len;
        }
        let joined = mid.concat(label, pieces, axis);
        return Ok(mid.reshape(label, joined, shape));
    }
    if !matches!(mid.dtype(indices), DType::I32 | DType::I64) {
        return Err(format!("its indices are {}; int32 and int64 are supported", mid.dtype(indices)));
    }
    let (outer, inner) = (source[..axis].iter().product(), source[axis + 1..].iter().product());
    let count = mid.values[indices.0].elements();
    let flat = mid.reshape(label, data, vec![outer, extent, inner]);
    let indices = mid.reshape(label, indices, vec![count]);
    let dtype = mid.dtype(data);
    let found = mid.node(label, MidOp::Gather, vec![flat, indices], dtype, vec![outer, count, inner]);
    Ok(mid.reshape(label, found, shape))
}

/// A reflected or repeated border, axis by axis, as pieces of the operand itself.
fn border(mid: &mut Mid, label: &str, mut x: MidId, before: &[usize], after: &[usize], mode: PadMode) -> MidId {
    for axis in 0..before.len() {
        let (low, high, extent) = (before[axis], after[axis], mid.shape(x)[axis]);
        let edge = |mid: &mut Mid, at: usize, len: usize| {
            let one = mid.narrow(label, x, axis, at, 1);
            let mut shape = mid.shape(one).to_vec();
            shape[axis] = len;
            let dtype = mid.dtype(x);
            mid.node(label, MidOp::Broadcast, vec![one], dtype, shape)
        };
        let mut pieces = Vec::new();
        if low > 0 {
            pieces.push(match mode {
                PadMode::Reflect => mid.slice(label, x, SliceAxis { axis, start: low, step: -1, len: low }),
                _ => edge(mid, 0, low),
            });
        }
        pieces.push(x);
        if high > 0 {
            pieces.push(match mode {
                // Import has checked that a reflection stays inside: high < extent.
                PadMode::Reflect => {
                    mid.slice(label, x, SliceAxis { axis, start: extent.saturating_sub(2), step: -1, len: high })
                }
                _ => edge(mid, extent - 1, high),
            });
        }
        x = mid.concat(label, pieces, axis);
    }
    x
}

fn matmul(mid: &mut Mid, label: &str, a: MidId, b: MidId, shape: &[usize]) -> Result<MidId, String> {
    let dtype = mid.dtype(a);
    let row = |mid: &mut Mid, id: MidId, at_end: bool| {
        let mut own = mid.shape(id).to_vec();
        if own.len() == 1 {
            own.insert(if at_end { 1 } else { 0 }, 1);
        }
        mid.reshape(label, id, own)
    };
    let (left, right) = (row(mid, a, false), row(mid, b, true));
    let (ls, rs) = (mid.shape(left).to_vec(), mid.shape(right).to_vec());
    let (m, k, n) = (ls[ls.len() - 2], ls[ls.len() - 1], rs[rs.len() - 1]);
    let one_matrix = dtype != DType::F64 && rs[..rs.len() - 2].iter().all(|&d| d == 1) && k > 0 && n > 0;
    if let Some(weights) = mid.known_floats(right).filter(|_| one_matrix) {
        let product = linear(mid, label, vec![left], vec![weights], None, n);
        return Ok(mid.reshape(label, product, shape.to_vec()));
    }
    if !is_float(dtype) {
        return Err(format!("products of {dtype} are not supported; floats are"));
    }
    // Outer axes broadcast, then one batch axis.
    let rank = ls.len().max(rs.len());
    let outer: Vec<usize> = (0..rank - 2)
        .map(|axis| {
            let of = |s: &[usize]| (axis + s.len()).checked_sub(rank).map_or(1, |own| s[own]);
            of(&ls).max(of(&rs))
        })
        .collect();
    let batched = |mid: &mut Mid, id: MidId| {
        let own = mid.shape(id).to_vec();
        let tail = own[own.len() - 2..].to_vec();
        let full: Vec<usize> = outer.iter().chain(&tail).copied().collect();
        let id = spread(mid, label, id, &full);
        mid.reshape(label, id, vec![outer.iter().product(), tail[0], tail[1]])
    };
    let (left, right) = (batched(mid, left), batched(mid, right));
    let product = mid.node(label, MidOp::MatMul, vec![left, right], dtype, vec![outer.iter().product(), m, n]);
    Ok(mid.reshape(label, product, shape.to_vec()))
}

#[expect(clippy::too_many_arguments, reason = "the operands and attributes of one operator")]
fn conv(
    mid: &mut Mid,
    label: &str,
    x: MidId,
    w: MidId,
    b: Option<MidId>,
    window: &Window,
    group: usize,
    shape: &[usize],
) -> Result<MidId, LowerError> {
    let own = mid.dtype(x);
    let refuse = |why: String| LowerError { node: label.to_owned(), op: "Conv".to_owned(), why };
    if own == DType::F64 {
        return Err(refuse("float64 is not supported; float32, float16 and bfloat16 are".to_owned()));
    }
    let x = cast(mid, label, x, DType::F32);
    let weights = mid.floats(w, label, "Conv")?;
    let bias = b.map(|b| mid.floats(b, label, "Conv")).transpose()?;
    let source = mid.shape(x).to_vec();
    if source[0] != 1 {
        // A batch within one lane: one after the other.
        let one: Vec<usize> = [1].iter().chain(&shape[1..]).copied().collect();
        let mut made = Vec::with_capacity(source[0]);
        for at in 0..source[0] {
            let part = mid.narrow(label, x, 0, at, 1);
            let part = conv(mid, label, part, w, b, window, group, &one)?;
            made.push(cast(mid, label, part, own));
        }
        return Ok(mid.concat(label, made, 0));
    }
    let padded = if window.pads_begin.iter().chain(&window.pads_end).any(|&pad| pad > 0) {
        let before: Vec<usize> = [0, 0].iter().chain(&window.pads_begin).copied().collect();
        let after: Vec<usize> = [0, 0].iter().chain(&window.pads_end).copied().collect();
        let full = source.iter().zip(before.iter().zip(&after)).map(|(&d, (&b, &a))| d + b + a).collect();
        let zero = mid.constant("zero", Arc::new(Tensor::scalar(0f32)));
        mid.node(label, MidOp::Pad { before }, vec![x, zero], DType::F32, full)
    } else {
        x
    };
    let (channels, maps) = (source[1], shape[1]);
    let taps: usize = window.kernel.iter().product();
    let made = if group > 1 && group == channels && maps == channels && taps <= TAPS_MOST {
        depthwise(mid, label, padded, &weights, bias.as_deref(), window, shape)
    } else {
        let op = MidOp::Conv {
            weights,
            kernel: window.kernel.clone(),
            strides: window.strides.clone(),
            dilations: window.dilations.clone(),
            group,
            bias,
            activation: Activation::None,
        };
        mid.node(label, op, vec![padded], DType::F32, shape.to_vec())
    };
    Ok(cast(mid, label, made, own))
}

/// Each channel by itself: one fused multiply-add per tap over shifted slices.
fn depthwise(
    mid: &mut Mid,
    label: &str,
    x: MidId,
    weights: &[f32],
    bias: Option<&[f32]>,
    window: &Window,
    shape: &[usize],
) -> MidId {
    let (channels, taps) = (shape[1], window.kernel.iter().product::<usize>());
    let mut by_channel = vec![1; shape.len()];
    by_channel[1] = channels;
    let mut operands = Vec::with_capacity(2 * taps + 1);
    for tap in 0..taps {
        let mut part = x;
        let mut rest = tap;
        for axis in (0..window.kernel.len()).rev() {
            let at = rest % window.kernel[axis];
            rest /= window.kernel[axis];
            let (start, step) = (at * window.dilations[axis], window.strides[axis] as isize);
            part = mid.slice(label, part, SliceAxis { axis: axis + 2, start, step, len: shape[axis + 2] });
        }
        operands.push(part);
        let values = (0..channels).map(|channel| weights[channel * taps + tap]).collect();
        operands
            .push(mid.constant(format!("{label}.tap{tap}"), Arc::new(Tensor::from_vec(by_channel.clone(), values))));
    }
    if let Some(bias) = bias {
        operands.push(mid.constant(format!("{label}.bias"), Arc::new(Tensor::from_vec(by_channel, bias.to_vec()))));
    }
    let mut expr = Expr::of(&vec![DType::F32; operands.len()]);
    let mut sum = expr.binary(Binary::Mul, 0, 1);
    for tap in 1..taps {
        sum = expr.push(Instr::Fma(2 * tap, 2 * tap + 1, sum), DType::F32);
    }
    if bias.is_some() {
        sum = expr.binary(Binary::Add, sum, 2 * taps);
    }
    mid.map(label, expr.result(sum), operands, shape.to_vec())
}

#[expect(clippy::too_many_arguments, reason = "the operands and attributes of one operator")]
fn layer_norm(
    mid: &mut Mid,
    label: &str,
    x: MidId,
    scale: MidId,
    bias: Option<MidId>,
    axis: usize,
    epsilon: f32,
    dtype: DType,
) -> MidId {
    // Statistics are of f32 whatever the operand: `stash_type` 1.
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let full = mid.shape(x).to_vec();
    let (outer, inner) = (full[..axis].to_vec(), full[axis..].iter().product::<usize>());
    let rows: Vec<usize> = outer.iter().copied().chain([inner]).collect();
    let flat = mid.reshape(label, x, rows.clone());
    let flat = cast(mid, label, flat, wide);
    let mean = reduce(mid, label, flat, Reduction::Mean, axis);
    let mut expr = Expr::of(&[wide, wide]);
    let centred = expr.binary(Binary::Sub, 0, 1);
    let square = expr.binary(Binary::Mul, centred, centred);
    let square = mid.map(label, expr.result(square), vec![flat, mean], rows.clone());
    let variance = reduce(mid, label, square, Reduction::Mean, axis);
    let mut operands = vec![flat, mean, variance];
    for id in [Some(scale), bias].into_iter().flatten() {
        let spread = mid.shape(id).to_vec();
        let tail = &full[axis..];
        let id = if spread == tail || spread.iter().product::<usize>() == inner && spread.len() <= tail.len() {
            id
        } else {
            mid.node(label, MidOp::Broadcast, vec![id], mid.dtype(id), tail.to_vec())
        };
        let id = mid.reshape(label, id, vec![inner]);
        operands.push(cast(mid, label, id, wide));
    }
    let mut expr = Expr::of(&vec![wide; operands.len()]);
    let centred = expr.binary(Binary::Sub, 0, 1);
    let epsilon = expr.number(epsilon.into(), 0);
    let variance = expr.binary(Binary::Add, 2, epsilon);
    let deviation = expr.unary(Unary::Sqrt, variance);
    let normal = expr.binary(Binary::Div, centred, deviation);
    let mut result = expr.binary(Binary::Mul, normal, 3);
    if bias.is_some() {
        result = expr.binary(Binary::Add, result, 4);
    }
    let made = mid.map(label, expr.result(result), operands, rows);
    let made = cast(mid, label, made, dtype);
    mid.reshape(label, made, full)
}

/// One axis reduced, staying with extent 1.
fn reduce(mid: &mut Mid, label: &str, x: MidId, kind: Reduction, axis: usize) -> MidId {
    let (dtype, mut shape) = (mid.dtype(x), mid.shape(x).to_vec());
    let extent = shape[axis];
    shape[axis] = 1;
    if extent == 1 {
        return x;
    }
    let combine = match kind {
        Reduction::Mean | Reduction::Sum => Binary::Add,
        Reduction::Max => Binary::Max,
        Reduction::Min => Binary::Min,
    };
    if extent <= UNROLLED_MOST && extent > 0 {
        let pieces: Vec<MidId> = (0..extent).map(|at| mid.narrow(label, x, axis, at, 1)).collect();
        let mut expr = Expr::of(&vec![dtype; extent]);
        let mut result = 0;
        for piece in 1..extent {
            result = expr.binary(combine, result, piece);
        }
        if kind == Reduction::Mean {
            let count = expr.number(extent as f64, 0);
            result = expr.binary(Binary::Div, result, count);
        }
        return mid.map(label, expr.result(result), pieces, shape);
    }
    let sum = matches!(kind, Reduction::Mean | Reduction::Sum);
    if sum && matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        // A sum is a product with ones: the contraction's fixed order and speed.
        let weight = if kind == Reduction::Mean { 1.0 / extent as f32 } else { 1.0 };
        let rank = shape.len();
        let to_last: Vec<usize> = (0..rank).filter(|&a| a != axis).chain([axis]).collect();
        let back: Vec<usize> = (0..rank)
            .map(|a| {
                if a == axis {
                    rank - 1
                } else if a > axis {
                    a - 1
                } else {
                    a
                }
            })
            .collect();
        let last = mid.transpose(label, x, to_last);
        let done = linear(mid, label, vec![last], vec![vec![weight; extent].into()], None, 1);
        return mid.transpose(label, done, back);
    }
    mid.node(label, MidOp::Reduce { kind, axis }, vec![x], dtype, shape)
}
