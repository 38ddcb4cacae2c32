//! LSTM, GRU and RNN, step by step. Gates are f64; H and C are rounded to the graph's type after every step, as they
//! are when steps come in separate turns.

use super::EvalError;
use super::elementwise::{sigmoid, softplus};
use super::numbers::{Numbers, floats};
use crate::graph::{Cell, CellActivation, Direction, Recurrent};
use crate::tensor::Tensor;
use lanes_core::DType;

fn activate(function: CellActivation, x: f64) -> f64 {
    match function {
        CellActivation::Relu => x.max(0.0),
        CellActivation::Tanh => x.tanh(),
        CellActivation::Sigmoid => sigmoid(x),
        CellActivation::Affine { alpha, beta } => f64::from(alpha) * x + f64::from(beta),
        CellActivation::LeakyRelu { alpha } => {
            if x < 0.0 {
                f64::from(alpha) * x
            } else {
                x
            }
        }
        CellActivation::ThresholdedRelu { alpha } => {
            if x >= f64::from(alpha) {
                x
            } else {
                0.0
            }
        }
        CellActivation::ScaledTanh { alpha, beta } => f64::from(alpha) * (f64::from(beta) * x).tanh(),
        CellActivation::HardSigmoid { alpha, beta } => (f64::from(alpha) * x + f64::from(beta)).clamp(0.0, 1.0),
        CellActivation::Elu { alpha } => {
            if x < 0.0 {
                f64::from(alpha) * x.exp_m1()
            } else {
                x
            }
        }
        CellActivation::Softsign => x / (1.0 + x.abs()),
        CellActivation::Softplus => softplus(x),
    }
}

/// What one direction computes with.
struct Weights<'a> {
    op: &'a Recurrent,
    functions: &'a [CellActivation],
    inputs: usize,
    /// `[gates·hidden, inputs]`, `[gates·hidden, hidden]`.
    w: &'a [f64],
    r: &'a [f64],
    /// `[gates·hidden]` each: of the input and of the recurrent product.
    wb: &'a [f64],
    rb: &'a [f64],
    /// Peepholes `[3·hidden]`, in the order i, o, f.
    p: &'a [f64],
}

impl Weights<'_> {
    /// `Wx + wb` of one row.
    fn input(&self, row: usize, x: &[f64]) -> f64 {
        dot(&self.w[row * self.inputs..][..self.inputs], x) + self.wb[row]
    }

    /// `Rh` of one row, without its bias.
    fn recurrent(&self, row: usize, h: &[f64]) -> f64 {
        dot(&self.r[row * self.op.hidden..][..self.op.hidden], h)
    }

    fn gate(&self, function: usize, x: f64) -> f64 {
        let x = self.op.clip.map_or(x, |clip| x.clamp(-f64::from(clip), f64::from(clip)));
        activate(self.functions[function], x)
    }

    /// The next `h` and `c`.
    fn step(&self, x: &[f64], h: &[f64], c: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let hidden = self.op.hidden;
        let plain = |gate: usize, j: usize| {
            let row = gate * hidden + j;
            self.input(row, x) + self.recurrent(row, h) + self.rb[row]
        };
        match self.op.cell {
            Cell::Rnn => ((0..hidden).map(|j| self.gate(0, plain(0, j))).collect(), Vec::new()),
            Cell::Gru { linear_before_reset } => {
                let z: Vec<f64> = (0..hidden).map(|j| self.gate(0, plain(0, j))).collect();
                let r: Vec<f64> = (0..hidden).map(|j| self.gate(0, plain(1, j))).collect();
                let reset: Vec<f64> = r.iter().zip(h).map(|(r, h)| r * h).collect();
                let next = |j: usize| {
                    let row = 2 * hidden + j;
                    let recurrent = if linear_before_reset {
                        r[j] * (self.recurrent(row, h) + self.rb[row])
                    } else {
                        self.recurrent(row, &reset) + self.rb[row]
                    };
                    let candidate = self.gate(1, self.input(row, x) + recurrent);
                    (1.0 - z[j]) * candidate + z[j] * h[j]
                };
                ((0..hidden).map(next).collect(), Vec::new())
            }
            Cell::Lstm { input_forget } => {
                let (mut next_h, mut next_c) = (Vec::with_capacity(hidden), Vec::with_capacity(hidden));
                for (j, &c) in c.iter().enumerate() {
                    let i = self.gate(0, plain(0, j) + self.p[j] * c);
                    let f = if input_forget { 1.0 - i } else { self.gate(0, plain(2, j) + self.p[2 * hidden + j] * c) };
                    let candidate = self.gate(1, plain(3, j));
                    let cell = f * c + i * candidate;
                    let o = self.gate(0, plain(1, j) + self.p[hidden + j] * cell);
                    next_h.push(o * activate(self.functions[2], cell));
                    next_c.push(cell);
                }
                (next_h, next_c)
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Y, Y_h and, of an LSTM, Y_c.
pub(super) fn run(op: &Recurrent, operands: &[Option<&Tensor>]) -> Result<Vec<Tensor>, EvalError> {
    let operand = |at: usize| operands.get(at).copied().flatten();
    let x = operand(0).ok_or(EvalError::Missing(0))?;
    let w = floats(operand(1).ok_or(EvalError::Missing(1))?);
    let r = floats(operand(2).ok_or(EvalError::Missing(2))?);
    let &[steps, batch, inputs] = x.shape() else { unreachable!("import gives X three axes") };
    let (hidden, gates, directions) = (op.hidden, op.cell.gates(), op.directions.len());
    let or_zeros = |at: usize, count: usize| operand(at).map_or_else(|| vec![0.0; count], floats);
    let b = or_zeros(3, directions * 2 * gates * hidden);
    let lengths = match operand(4) {
        Some(lengths) => lengths
            .to_i64s()
            .unwrap_or_default()
            .into_iter()
            .map(|length| {
                let good = usize::try_from(length).ok().filter(|&length| length <= steps);
                good.ok_or(EvalError::SequenceLength { length, steps })
            })
            .collect::<Result<Vec<_>, _>>()?,
        None => vec![steps; batch],
    };
    let (h0, c0) = (or_zeros(5, directions * batch * hidden), or_zeros(6, directions * batch * hidden));
    let p = or_zeros(7, directions * 3 * hidden);
    let xs = floats(x);
    let dtype = x.dtype();

    let mut y = vec![0.0; steps * directions * batch * hidden];
    let (mut y_h, mut y_c) = (Vec::new(), Vec::new());
    for direction in 0..directions {
        let part = |values: &[f64], count: usize| -> Vec<f64> { values[direction * count..][..count].to_vec() };
        let rows = gates * hidden;
        let (w, r, b, p) = (part(&w, rows * inputs), part(&r, rows * hidden), part(&b, 2 * rows), part(&p, 3 * hidden));
        let count = op.cell.activations();
        let weights = Weights {
            op,
            functions: &op.activations[direction * count..][..count],
            inputs,
            w: &w,
            r: &r,
            wb: &b[..rows],
            rb: &b[rows..],
            p: &p,
        };
        for (lane, &length) in lengths.iter().enumerate() {
            let start = (direction * batch + lane) * hidden;
            let (mut h, mut c) = (h0[start..][..hidden].to_vec(), c0[start..][..hidden].to_vec());
            for step in 0..length {
                let at = match op.directions[direction] {
                    Direction::Forward => step,
                    Direction::Reverse => length - 1 - step,
                };
                let (next_h, next_c) = weights.step(&xs[(at * batch + lane) * inputs..][..inputs], &h, &c);
                (h, c) = (round(next_h, dtype), round(next_c, dtype));
                y[((at * directions + direction) * batch + lane) * hidden..][..hidden].copy_from_slice(&h);
            }
            y_h.extend(h);
            y_c.extend(c);
        }
    }
    let state = [directions, batch, hidden];
    let mut results = vec![
        Numbers::Float(y).write(dtype, &[steps, directions, batch, hidden]),
        Numbers::Float(y_h).write(dtype, &state),
    ];
    if let Cell::Lstm { .. } = op.cell {
        results.push(Numbers::Float(y_c).write(dtype, &state));
    }
    Ok(results)
}

/// The values as `dtype` holds them.
fn round(values: Vec<f64>, dtype: DType) -> Vec<f64> {
    let count = values.len();
    floats(&Numbers::Float(values).write(dtype, &[count]))
}
