//! Recurrences, step by step: the products of all gates, then one elementwise cell.
//!
//! - Weights and gates stand in ONNX's order: z, r, h of a GRU; i, o, f, c of an LSTM.
//! - All steps have the very same matrices and constants, however many there are.
//! - A sequence shorter than X leaves zeros behind it.

use super::{Rewriter, cast, linear};
use crate::graph::{Binary, Cell, CellActivation, Direction, Node, Recurrent};
use crate::lower::LowerError;
use crate::lower::expr::{Expr, Reg};
use crate::lower::mid::{Arrangement, Mid, MidId, MidNode, MidOp};
use crate::tensor::Tensor;
use lanes_core::DType;
use std::sync::Arc;

impl Rewriter<'_> {
    /// A recurrence, step by step: the products of all gates, then one elementwise cell.
    pub(super) fn recurrent(
        &mut self,
        node: &Node,
        recurrent: &Recurrent,
        inputs: &[Option<MidId>],
    ) -> Result<(), LowerError> {
        let refuse = |why: String| LowerError { node: node.name.clone(), op: node.onnx.clone(), why };
        let label = node.name.as_str();
        let mid = &mut self.mid;
        let input = |n: usize| inputs.get(n).copied().flatten();
        let (Some(x), Some(w), Some(r)) = (input(0), input(1), input(2)) else {
            return Err(refuse("operands X, W and R are needed".to_owned()));
        };
        let dtype = mid.dtype(x);
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(refuse(format!("its type is {dtype}; float32, float16 and bfloat16 are supported")));
        }
        let [steps, batch, width] = mid.shape(x)[..] else { return Err(refuse("X is not of rank 3".to_owned())) };
        let (hidden, gates) = (recurrent.hidden, recurrent.cell.gates());
        if hidden == 0 || width == 0 {
            return Err(refuse("an extent is 0".to_owned()));
        }
        let mut length = steps;
        if let Some(lengths) = input(4) {
            let known = mid.constants.get(&lengths).and_then(|tensor| tensor.to_i64s());
            let one = known.filter(|all| all.iter().all(|each| *each == all[0]));
            length = one
                .and_then(|all| usize::try_from(*all.first()?).ok())
                .filter(|&length| length <= steps)
                .ok_or_else(|| refuse("sequence_lens that are not one known length are not supported".to_owned()))?;
        }
        let (w, r) = (mid.floats(w, label, &node.onnx)?, mid.floats(r, label, &node.onnx)?);
        let bias = input(3).map(|b| mid.floats(b, label, &node.onnx)).transpose()?;
        let peephole = input(7).map(|p| mid.floats(p, label, &node.onnx)).transpose()?;
        let functions = recurrent.cell.activations();
        let (mut all, mut last_h, mut last_c) = (Vec::new(), Vec::new(), Vec::new());
        for (at, direction) in recurrent.directions.iter().enumerate() {
            fn part(all: &[f32], at: usize, each: usize) -> &[f32] {
                &all[at * each..][..each]
            }
            let peepholes = peephole.as_ref().map(|all| part(all, at, 3 * hidden).chunks_exact(hidden));
            let peepholes = peepholes.into_iter().flatten().map(|part| {
                let tensor = Tensor::from_vec(vec![1, hidden], part.to_vec());
                let known = mid.constant(format!("{label}.peephole"), Arc::new(tensor));
                cast(mid, label, known, dtype)
            });
            let peepholes = peepholes.collect();
            let weights = Weights {
                hidden,
                w: part(&w, at, gates * hidden * width),
                r: part(&r, at, gates * hidden * hidden),
                bias: bias.as_ref().map(|bias| part(bias, at, 2 * gates * hidden)),
                peepholes,
                clip: recurrent.clip,
                functions: &recurrent.activations[at * functions..][..functions],
            };
            let zeros = mid.constant(format!("{label}.zeros"), Arc::new(Tensor::zeros(dtype, vec![batch, hidden])));
            let initial = |mid: &mut Mid, id: Option<MidId>| match id {
                Some(id) => {
                    let own = mid.narrow(label, id, 0, at, 1);
                    mid.reshape(label, own, vec![batch, hidden])
                }
                None => zeros,
            };
            let (mut h, mut c) = (initial(mid, input(5)), initial(mid, input(6)));
            let mut outputs = vec![zeros; steps];
            for step in 0..length {
                let step = if *direction == Direction::Forward { step } else { length - 1 - step };
                let now = mid.narrow(label, x, 0, step, 1);
                let now = mid.reshape(label, now, vec![batch, width]);
                (h, c) = match recurrent.cell {
                    Cell::Rnn => (weights.rnn(mid, label, now, h), c),
                    Cell::Gru { linear_before_reset } => (weights.gru(mid, label, now, h, linear_before_reset), c),
                    Cell::Lstm { input_forget } => weights.lstm(mid, label, now, h, c, input_forget),
                };
                outputs[step] = h;
            }
            let outputs: Vec<MidId> =
                outputs.into_iter().map(|h| mid.reshape(label, h, vec![1, 1, batch, hidden])).collect();
            all.push(if steps == 0 { None } else { Some(mid.concat(label, outputs, 0)) });
            last_h.push(mid.reshape(label, h, vec![1, batch, hidden]));
            last_c.push(mid.reshape(label, c, vec![1, batch, hidden]));
        }
        for (n, out) in node.outputs.iter().enumerate() {
            let Some(out) = out else { continue };
            let made = match n {
                0 => {
                    let directions: Option<Vec<MidId>> = all.iter().copied().collect();
                    let directions = directions.ok_or_else(|| refuse("X has no steps".to_owned()))?;
                    mid.concat(label, directions, 1)
                }
                1 => mid.concat(label, last_h.clone(), 0),
                _ => mid.concat(label, last_c.clone(), 0),
            };
            self.place.insert(*out, made);
        }
        Ok(())
    }
}

/// One direction's weights of a recurrence, gate by gate in ONNX's order.
struct Weights<'a> {
    hidden: usize,
    w: &'a [f32],
    r: &'a [f32],
    bias: Option<&'a [f32]>,
    /// Of gates i, o, f, each `[1, hidden]`; none where the model has none.
    peepholes: Vec<MidId>,
    clip: Option<f32>,
    functions: &'a [CellActivation],
}

impl Weights<'_> {
    /// Gates `from..to` of `[gates·hidden, K]`, as `[K, (to − from)·hidden]`.
    fn gates(&self, mid: &mut Mid, all: &[f32], from: usize, to: usize) -> Arc<[f32]> {
        let k = all.len() / (self.r.len() / self.hidden);
        let rows = (to - from) * self.hidden;
        let part = &all[from * self.hidden * k..to * self.hidden * k];
        mid.arranged(part, Arrangement::Turned { rows }, |part| turned(part, rows, k))
    }

    /// Input bias (`which` 0) or recurrent bias (1) of gates `from..to`.
    fn bias(&self, which: usize, from: usize, to: usize) -> Option<&[f32]> {
        let bias = self.bias?;
        let half = bias.len() / 2;
        Some(&bias[which * half + from * self.hidden..which * half + to * self.hidden])
    }

    /// Both biases of gates `from..to`, added.
    fn biases(&self, mid: &mut Mid, from: usize, to: usize) -> Option<Arc<[f32]>> {
        let (w, r) = (self.bias(0, from, to)?, self.bias(1, from, to)?);
        let distance = self.bias?.len() / 2;
        Some(mid.arranged(w, Arrangement::Added { distance }, |w| w.iter().zip(r).map(|(w, r)| w + r).collect()))
    }

    /// `operand·all + b` of gates `from..to`, `which` as of [`bias`](Self::bias).
    #[expect(clippy::too_many_arguments, reason = "one product, and which of its weights")]
    fn one(
        &self,
        mid: &mut Mid,
        label: &str,
        operand: MidId,
        all: &[f32],
        which: usize,
        from: usize,
        to: usize,
    ) -> MidId {
        let weights = self.gates(mid, all, from, to);
        let bias = self.bias(which, from, to).map(|bias| mid.arranged(bias, Arrangement::Part, |bias| bias.into()));
        linear(mid, label, vec![operand], vec![weights], bias, (to - from) * self.hidden)
    }

    /// `x·W + h·R + b` of gates `from..to`, `[batch, (to − from)·hidden]`.
    fn both(&self, mid: &mut Mid, label: &str, x: MidId, h: MidId, from: usize, to: usize) -> MidId {
        let weights = vec![self.gates(mid, self.w, from, to), self.gates(mid, self.r, from, to)];
        let bias = self.biases(mid, from, to);
        linear(mid, label, vec![x, h], weights, bias, (to - from) * self.hidden)
    }

    /// Registers for `count` gates of `sums`, each clipped; `sums` is cut into gates as operands.
    fn cut(&self, mid: &mut Mid, label: &str, sums: MidId, count: usize) -> Vec<MidId> {
        (0..count).map(|gate| mid.narrow(label, sums, 1, gate * self.hidden, self.hidden)).collect()
    }

    fn gate(&self, expr: &mut Expr, function: CellActivation, mut sum: Reg) -> Reg {
        if let Some(clip) = self.clip {
            let (low, high) = (expr.number(-f64::from(clip), sum), expr.number(clip.into(), sum));
            sum = expr.binary(Binary::Max, sum, low);
            sum = expr.binary(Binary::Min, sum, high);
        }
        expr.activation(function, sum)
    }

    fn rnn(&self, mid: &mut Mid, label: &str, x: MidId, h: MidId) -> MidId {
        let sum = self.both(mid, label, x, h, 0, 1);
        let mut expr = Expr::of(&[mid.dtype(sum)]);
        let result = self.gate(&mut expr, self.functions[0], 0);
        let shape = mid.shape(sum).to_vec();
        mid.map(label, expr.result(result), vec![sum], shape)
    }

    fn gru(&self, mid: &mut Mid, label: &str, x: MidId, h: MidId, linear_before_reset: bool) -> MidId {
        let (dtype, shape) = (mid.dtype(h), mid.shape(h).to_vec());
        let zr = self.both(mid, label, x, h, 0, 2);
        let zr = self.cut(mid, label, zr, 2);
        if linear_before_reset {
            let input = self.one(mid, label, x, self.w, 0, 2, 3);
            let recurrent = self.one(mid, label, h, self.r, 1, 2, 3);
            let mut expr = Expr::of(&[dtype; 5]);
            let z = self.gate(&mut expr, self.functions[0], 0);
            let r = self.gate(&mut expr, self.functions[0], 1);
            let reset = expr.binary(Binary::Mul, r, 3);
            let sum = expr.binary(Binary::Add, 2, reset);
            let next = self.gate(&mut expr, self.functions[1], sum);
            let result = blend(&mut expr, z, next, 4);
            return mid.map(label, expr.result(result), vec![zr[0], zr[1], input, recurrent, h], shape);
        }
        let mut expr = Expr::of(&[dtype; 2]);
        let r = self.gate(&mut expr, self.functions[0], 0);
        let reset = expr.binary(Binary::Mul, r, 1);
        let reset = mid.map(label, expr.result(reset), vec![zr[1], h], shape.clone());
        let sum = self.both(mid, label, x, reset, 2, 3);
        let mut expr = Expr::of(&[dtype; 3]);
        let z = self.gate(&mut expr, self.functions[0], 0);
        let next = self.gate(&mut expr, self.functions[1], 1);
        let result = blend(&mut expr, z, next, 2);
        mid.map(label, expr.result(result), vec![zr[0], sum, h], shape)
    }

    fn lstm(&self, mid: &mut Mid, label: &str, x: MidId, h: MidId, c: MidId, input_forget: bool) -> (MidId, MidId) {
        let (dtype, shape) = (mid.dtype(h), mid.shape(h).to_vec());
        let sums = self.both(mid, label, x, h, 0, 4);
        let mut operands = self.cut(mid, label, sums, 4);
        operands.push(c);
        operands.extend(&self.peepholes);
        let mut expr = Expr::of(&vec![dtype; operands.len()]);
        let peek = |expr: &mut Expr, sum: Reg, which: usize, cell: Reg| {
            if self.peepholes.is_empty() {
                return sum;
            }
            let seen = expr.binary(Binary::Mul, 5 + which, cell);
            expr.binary(Binary::Add, sum, seen)
        };
        // Gates arrive as i, o, f, c; peepholes as i, o, f.
        let sum = peek(&mut expr, 0, 0, 4);
        let i = self.gate(&mut expr, self.functions[0], sum);
        let f = if input_forget {
            let one = expr.number(1.0, i);
            expr.binary(Binary::Sub, one, i)
        } else {
            let sum = peek(&mut expr, 2, 2, 4);
            self.gate(&mut expr, self.functions[0], sum)
        };
        let g = self.gate(&mut expr, self.functions[1], 3);
        let keep = expr.binary(Binary::Mul, f, 4);
        let add = expr.binary(Binary::Mul, i, g);
        let next_c = expr.binary(Binary::Add, keep, add);
        let sum = peek(&mut expr, 1, 1, next_c);
        let o = self.gate(&mut expr, self.functions[0], sum);
        let shown = expr.activation(self.functions[2], next_c);
        let next_h = expr.binary(Binary::Mul, o, shown);
        expr.results = vec![next_h, next_c];
        let (out_h, out_c) =
            (mid.value(format!("{label}.h"), dtype, shape.clone()), mid.value(format!("{label}.c"), dtype, shape));
        mid.nodes.push(MidNode {
            label: label.to_owned(),
            op: MidOp::Map(expr),
            inputs: operands,
            outputs: vec![out_h, out_c],
        });
        (out_h, out_c)
    }
}

/// (1 − z)·next + z·old.
fn blend(expr: &mut Expr, z: Reg, next: Reg, old: Reg) -> Reg {
    let one = expr.number(1.0, z);
    let rest = expr.binary(Binary::Sub, one, z);
    let new = expr.binary(Binary::Mul, rest, next);
    let kept = expr.binary(Binary::Mul, z, old);
    expr.binary(Binary::Add, new, kept)
}

/// `[rows, columns]` as `[columns, rows]`.
fn turned(matrix: &[f32], rows: usize, columns: usize) -> Arc<[f32]> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])).collect()
}
