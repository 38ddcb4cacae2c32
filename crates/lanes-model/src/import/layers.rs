//! Operators that sum over axes: products, convolutions, recurrences, normalisations, reductions.

use super::axis::{self, Lane};
use super::builder::{Builder, Fault};
use super::elementwise::scalar;
use super::nodes::{Call, axes_of, axis_of, broadcast_shape};
use crate::graph::{Binary, Cell, CellActivation, Direction, Op, Recurrent, Reduction, Unary, ValueId, Window};
use lanes_core::DType;

impl Builder<'_> {
    /// The operator's results, if it is one of this file's.
    pub(super) fn layers(&mut self, op: &str, call: &Call<'_>) -> Result<Option<Vec<ValueId>>, Fault> {
        let one = |id: ValueId| Ok(Some(vec![id]));
        match op {
            "MatMul" => one(self.product(call.operand(0)?, call.operand(1)?)?),
            "Gemm" => one(self.gemm(call)?),
            "Conv" => one(self.conv(call)?),
            "RNN" | "GRU" | "LSTM" => Ok(Some(self.recurrent(op, call)?)),
            "LayerNormalization" => Ok(Some(self.layer_norm(call)?)),
            "BatchNormalization" => one(self.batch_norm(call)?),
            "Softmax" | "LogSoftmax" => one(self.softmax(op == "LogSoftmax", call)?),
            "CumSum" => one(self.cumsum(call)?),
            "GlobalAveragePool" => {
                let x = call.operand(0)?;
                self.expect_float(x)?;
                self.expect_rank(x, 3..=5, "the operand")?;
                let axes: Vec<usize> = (2..self.shape(x).len()).collect();
                self.refuse_lanes_among(x, &axes, "averages over");
                one(self.reduced(Reduction::Mean, x, &axes, true)?)
            }
            "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceL1" | "ReduceL2" | "ReduceSumSquare" => {
                one(self.reduction(op, call)?)
            }
            _ => Ok(None),
        }
    }

    /// `MatMul`.
    pub(super) fn product(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Fault> {
        self.expect_number(a)?;
        self.expect_same_dtype(&[a, b])?;
        let (mut a_shape, mut b_shape) = (self.shape(a).to_vec(), self.shape(b).to_vec());
        let (mut a_lane, b_lane) = (self.lane(a), self.lane(b));
        if a_shape.is_empty() || b_shape.is_empty() {
            return Err(Fault::Malformed(format!("operands of shapes {a_shape:?} and {b_shape:?}")));
        }
        // Rank 1 is a row on the left, a column on the right.
        let (row, column) = (a_shape.len() == 1, b_shape.len() == 1);
        if row {
            a_shape.insert(0, 1);
            a_lane = axis::unsqueeze(a_lane, &[0]);
        }
        if column {
            b_shape.push(1);
        }
        let (m, k) = (a_shape[a_shape.len() - 2], a_shape[a_shape.len() - 1]);
        let (k_b, n) = (b_shape[b_shape.len() - 2], b_shape[b_shape.len() - 1]);
        if k != k_b {
            return Err(Fault::Malformed(format!("a product of shapes {:?} and {:?}", self.shape(a), self.shape(b))));
        }
        let mut shape = broadcast_shape(&[&a_shape[..a_shape.len() - 2], &b_shape[..b_shape.len() - 2]])?;
        shape.extend([m, n]);
        let place = axis::matmul((a_lane, &a_shape), (b_lane, &b_shape), shape.len());
        let mut lane = self.place(place);
        if let Some(axis) = lane.axis().filter(|&axis| axis < shape.len() - 2 && shape[axis] != 1) {
            let why = format!(
                "an operand that is the same for every lane has {} entries along axis {axis}, which holds the lanes",
                shape[axis]
            );
            let merged =
                [a_lane, b_lane].iter().any(|lane| matches!(lane, Lane::In { outer, inner, .. } if outer * inner > 1));
            if !merged {
                lane = self.place(Err(why));
            }
        }
        // The axis that was put in goes again.
        let rank = shape.len();
        let dropped: Vec<usize> =
            [(row, rank - 2), (column, rank - 1)].iter().filter(|(was, _)| *was).map(|&(_, axis)| axis).collect();
        let lane = axis::squeeze(lane, &dropped);
        let shape = (0..rank).filter(|axis| !dropped.contains(axis)).map(|axis| shape[axis]).collect();
        self.emit(Op::MatMul, &[a, b], self.dtype(a), shape, lane)
    }

    fn gemm(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (a, b, c) = (call.operand(0)?, call.operand(1)?, call.optional(2));
        let attributes = &call.attributes;
        self.expect_float(a)?;
        self.expect_same_dtype(&[a, b])?;
        self.expect_rank(a, 2..=2, "A")?;
        self.expect_rank(b, 2..=2, "B")?;
        let (alpha, beta) = (attributes.float("alpha")?.unwrap_or(1.0), attributes.float("beta")?.unwrap_or(1.0));
        let (trans_a, trans_b) = (attributes.flag("transA", false)?, attributes.flag("transB", false)?);
        let turned = |id: ValueId, turn: bool| {
            let (shape, lane) = (self.shape(id).to_vec(), self.lane(id));
            if turn { ([shape[1], shape[0]], axis::transpose(lane, &[1, 0])) } else { ([shape[0], shape[1]], lane) }
        };
        let ((a_shape, a_lane), (b_shape, b_lane)) = (turned(a, trans_a), turned(b, trans_b));
        if a_shape[1] != b_shape[0] {
            return Err(Fault::Malformed(format!("a product of {a_shape:?} and {b_shape:?}")));
        }
        let shape = vec![a_shape[0], b_shape[1]];
        let mut place = axis::matmul((a_lane, &a_shape), (b_lane, &b_shape), 2);
        if let Some(c) = c {
            self.expect_same_dtype(&[a, c])?;
            if broadcast_shape(&[self.shape(c), &shape])? != shape {
                return Err(Fault::Malformed(format!(
                    "C of shape {:?} does not broadcast to {shape:?}",
                    self.shape(c)
                )));
            }
            place = place.and_then(|lane| axis::broadcast(&[(lane, &shape), (self.lane(c), self.shape(c))], &shape));
        }
        let lane = self.place(place);
        let op = Op::Gemm { alpha, beta, trans_a, trans_b };
        Ok(self.emit_all(op, vec![Some(a), Some(b), c], vec![(self.dtype(a), shape, lane)])?[0])
    }

    fn conv(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let (x, w, bias) = (call.operand(0)?, call.operand(1)?, call.optional(2));
        let attributes = &call.attributes;
        self.expect_float(x)?;
        self.expect_rank(x, 3..=5, "X")?;
        let mut operands = vec![x, w];
        operands.extend(bias);
        self.expect_same_dtype(&operands)?;
        let (x_shape, w_shape) = (self.shape(x).to_vec(), self.shape(w).to_vec());
        let rank = x_shape.len() - 2;
        if w_shape.len() != x_shape.len() {
            return Err(Fault::Malformed(format!("X has shape {x_shape:?} and W {w_shape:?}")));
        }
        let group = positive(attributes.int("group")?.unwrap_or(1), "group")?;
        let (channels, filters) = (x_shape[1], w_shape[0]);
        if channels % group != 0 || filters % group != 0 || w_shape[1] != channels / group {
            return Err(Fault::Malformed(format!("X has shape {x_shape:?} and W {w_shape:?} in {group} groups")));
        }
        if let Some(bias) = bias {
            self.expect_shape(bias, &[filters], "B")?;
        }
        let each = |name, default: usize| -> Result<Vec<usize>, Fault> {
            match attributes.ints(name)? {
                None => Ok(vec![default; rank]),
                Some(found) if found.len() == rank => found.iter().map(|&value| positive(value, name)).collect(),
                Some(found) => Err(Fault::Malformed(format!("{name} {found:?} for {rank} spatial axes"))),
            }
        };
        let kernel = w_shape[2..].to_vec();
        if attributes.ints("kernel_shape")?.is_some() && each("kernel_shape", 1)? != kernel {
            return Err(Fault::Malformed(format!("kernel_shape is not that of W, {w_shape:?}")));
        }
        let (strides, dilations) = (each("strides", 1)?, each("dilations", 1)?);
        if kernel.contains(&0) {
            return Err(Fault::Malformed(format!("W has shape {w_shape:?}")));
        }
        // What a kernel covers, from its first tap to its last.
        let reach =
            |axis: usize| (kernel[axis] - 1).checked_mul(dilations[axis]).and_then(|reach| reach.checked_add(1));
        let too_large = || Fault::Malformed(format!("a window of {kernel:?} dilated by {dilations:?}"));
        let reaches = (0..rank).map(|axis| reach(axis).ok_or_else(too_large)).collect::<Result<Vec<_>, _>>()?;
        let auto = attributes.text("auto_pad")?.unwrap_or("NOTSET");
        let pads = attributes.ints("pads")?;
        let (pads_begin, pads_end) = match auto {
            "NOTSET" => match pads {
                None => (vec![0; rank], vec![0; rank]),
                Some(pads) if pads.len() == 2 * rank => {
                    let sizes = pads.iter().map(|&pad| usize::try_from(pad)).collect::<Result<Vec<_>, _>>();
                    let sizes = sizes
                        .map_err(|_| Fault::Unsupported(format!("pads {pads:?}; none below zero is supported")))?;
                    (sizes[..rank].to_vec(), sizes[rank..].to_vec())
                }
                Some(pads) => {
                    return Err(Fault::Malformed(format!("pads {pads:?} for {rank} spatial axes")));
                }
            },
            "VALID" => (vec![0; rank], vec![0; rank]),
            "SAME_UPPER" | "SAME_LOWER" => {
                let total = |axis: usize| {
                    let out = x_shape[axis + 2].div_ceil(strides[axis]);
                    (out.saturating_sub(1).saturating_mul(strides[axis]).saturating_add(reaches[axis]))
                        .saturating_sub(x_shape[axis + 2])
                };
                let small: Vec<usize> = (0..rank).map(|axis| total(axis) / 2).collect();
                let large: Vec<usize> = (0..rank).map(|axis| total(axis) - total(axis) / 2).collect();
                if auto == "SAME_UPPER" { (small, large) } else { (large, small) }
            }
            other => return Err(Fault::Malformed(format!("auto_pad {other:?}"))),
        };
        let mut shape = vec![x_shape[0], filters];
        for axis in 0..rank {
            let padded =
                x_shape[axis + 2].checked_add(pads_begin[axis]).and_then(|size| size.checked_add(pads_end[axis]));
            let room = padded.and_then(|padded| padded.checked_sub(reaches[axis])).ok_or_else(|| {
                let size = x_shape[axis + 2];
                Fault::Malformed(format!(
                    "a window of {} over {size} elements and pads of {} and {}",
                    reaches[axis], pads_begin[axis], pads_end[axis]
                ))
            })?;
            shape.push(room / strides[axis] + 1);
        }
        let place = match (self.lane(x), self.lane(w)) {
            (_, Lane::In { axis, .. }) => Err(format!("lanes lie on axis {axis} of its weights")),
            (Lane::In { axis, .. }, _) if axis > 0 => {
                Err(format!("it convolves over axis {axis}, which holds the lanes; they may lie on axis 0"))
            }
            (Lane::Free, Lane::Gone) => Ok(Lane::Gone),
            (lane, _) => Ok(lane),
        };
        let lane = self.place(place);
        let window = Window { kernel, strides, dilations, pads_begin, pads_end };
        Ok(self.emit_all(
            Op::Conv { window, group },
            vec![Some(x), Some(w), bias],
            vec![(self.dtype(x), shape, lane)],
        )?[0])
    }

    fn recurrent(&mut self, op: &str, call: &Call<'_>) -> Result<Vec<ValueId>, Fault> {
        let attributes = &call.attributes;
        let (x, w, r) = (call.operand(0)?, call.operand(1)?, call.operand(2)?);
        self.expect_float(x)?;
        for (id, what) in [(x, "X"), (w, "W"), (r, "R")] {
            self.expect_rank(id, 3..=3, what)?;
        }
        let cell = match op {
            "RNN" => Cell::Rnn,
            "GRU" => Cell::Gru { linear_before_reset: attributes.flag("linear_before_reset", false)? },
            _ => Cell::Lstm { input_forget: attributes.flag("input_forget", false)? },
        };
        attributes.ignore(&["output_sequence"]);
        let directions = match attributes.text("direction")?.unwrap_or("forward") {
            "forward" => vec![Direction::Forward],
            "reverse" => vec![Direction::Reverse],
            "bidirectional" => vec![Direction::Forward, Direction::Reverse],
            other => return Err(Fault::Malformed(format!("direction {other:?}"))),
        };
        let hidden = self.shape(r)[2];
        if attributes.int("hidden_size")?.is_some_and(|size| size != hidden as i64) {
            return Err(Fault::Malformed(format!("hidden_size is not that of R, {:?}", self.shape(r))));
        }
        let activations = self.activations(cell, directions.len(), call)?;
        let batch_first = attributes.int("layout")?.unwrap_or(0) == 1;

        let turn = |builder: &mut Self, id: ValueId| {
            if batch_first { builder.transposed(id, &[1, 0, 2]) } else { Ok(id) }
        };
        let x = turn(self, x)?;
        let &[steps, batch, inputs] = self.shape(x) else { unreachable!("its rank was checked") };
        let rows = cell.gates() * hidden;
        let count = directions.len();
        self.expect_shape(w, &[count, rows, inputs], "W")?;
        self.expect_shape(r, &[count, rows, hidden], "R")?;
        let mut operands = vec![Some(x), Some(w), Some(r), call.optional(3), call.optional(4)];
        if let Some(b) = call.optional(3) {
            self.expect_shape(b, &[count, 2 * rows], "B")?;
        }
        if let Some(lengths) = call.optional(4) {
            self.expect_shape(lengths, &[batch], "sequence_lens")?;
            if self.dtype(lengths) != DType::I32 {
                return Err(Fault::Malformed(format!("sequence_lens of {}; int32 is expected", self.dtype(lengths))));
            }
        }
        let states = if matches!(cell, Cell::Lstm { .. }) { 2 } else { 1 };
        for state in 0..states {
            let initial = call.optional(5 + state).map(|id| turn(self, id)).transpose()?;
            if let Some(initial) = initial {
                self.expect_shape(initial, &[count, batch, hidden], "an initial state")?;
            }
            operands.push(initial);
        }
        if states == 2 {
            if let Some(p) = call.optional(7) {
                self.expect_shape(p, &[count, 3 * hidden], "P")?;
            }
            operands.push(call.optional(7));
        }
        let mut typed: Vec<ValueId> = operands.iter().flatten().copied().collect();
        typed.retain(|id| Some(*id) != call.optional(4));
        self.expect_same_dtype(&typed)?;

        let place = self.recurrent_lanes(&operands, steps, batch);
        let lane = self.place(place);
        let clip = attributes.float("clip")?;
        let on = |axis: usize| match lane {
            Lane::In { outer, inner, .. } => Lane::In { axis, outer, inner },
            other => other,
        };
        let dtype = self.dtype(x);
        let state = (dtype, vec![count, batch, hidden], on(1));
        let mut results = vec![(dtype, vec![steps, count, batch, hidden], on(2)), state.clone()];
        if states == 2 {
            results.push(state);
        }
        call.only_results(results.len())?;
        let op = Op::Recurrent(Recurrent { cell, hidden, directions, activations, clip });
        let mut results = self.emit_all(op, operands, results)?;
        if batch_first {
            results[0] = self.transposed(results[0], &[2, 0, 1, 3])?;
            for result in &mut results[1..] {
                *result = self.transposed(*result, &[1, 0, 2])?;
            }
        }
        Ok(results)
    }

    /// Where the lanes are on the batch axis of a recurrence: `axis` is 1 whenever there is one.
    fn recurrent_lanes(&self, operands: &[Option<ValueId>], steps: usize, batch: usize) -> Result<Lane, String> {
        // Which axis of each operand is the batch; the weights have none.
        let batch_axes = [Some(1), None, None, None, Some(0), Some(1), Some(1), None];
        let mut found = Lane::Free;
        for (at, (operand, batch_axis)) in operands.iter().zip(batch_axes).enumerate() {
            let lane = operand.map_or(Lane::Free, |id| self.lane(id));
            let on_batch = match (lane, batch_axis) {
                (Lane::In { axis, outer, inner }, Some(batch_axis)) if axis == batch_axis => {
                    Lane::In { axis: 1, outer, inner }
                }
                (Lane::In { axis: 0, .. }, Some(1)) if at == 0 => {
                    return Err(format!(
                        "lanes lie on axis 0 of X, its time axis ({steps} steps at lane extent 1), so one lane would follow another; \
                         if the model has no batch, feed a seat's value with all its axes, the steps among them"
                    ));
                }
                // In a file that says that there is one lane, a batch of several entries is that lane's own: its state's
                // first axis, of the directions, is all that its lane axis can be.
                (Lane::In { axis: 0, outer: 1, inner: 1 }, Some(1)) if at >= 5 && self.baked && batch > 1 => Lane::Gone,
                (Lane::In { axis, .. }, _) => {
                    return Err(format!("lanes lie on axis {axis} of operand {at}, which is not its batch axis"));
                }
                (other, _) => other,
            };
            found = match (found, on_batch) {
                (Lane::Free | Lane::Gone, Lane::In { .. }) => on_batch,
                (Lane::Free, other) => other,
                (found, Lane::Free | Lane::Gone) => found,
                (found, other) if found == other => found,
                _ => return Err("lanes lie at different places of its operands' batch axes".into()),
            };
        }
        Ok(found)
    }

    fn activations(&self, cell: Cell, directions: usize, call: &Call<'_>) -> Result<Vec<CellActivation>, Fault> {
        let attributes = &call.attributes;
        let defaults: &[&str] = match cell {
            Cell::Rnn => &["Tanh"],
            Cell::Gru { .. } => &["Sigmoid", "Tanh"],
            Cell::Lstm { .. } => &["Sigmoid", "Tanh", "Tanh"],
        };
        let names = match attributes.texts("activations")? {
            Some(names) if !names.is_empty() => names,
            _ => defaults.iter().copied().cycle().take(defaults.len() * directions).map(String::from).collect(),
        };
        if names.len() != defaults.len() * directions {
            let wanted = defaults.len() * directions;
            return Err(Fault::Malformed(format!("activations {names:?}; {wanted} are expected")));
        }
        // Values are listed for those functions that take one, in order.
        let mut alphas = attributes.floats("activation_alpha")?.unwrap_or_default().iter().copied();
        let mut betas = attributes.floats("activation_beta")?.unwrap_or_default().iter().copied();
        let mut function = |name: &String| {
            Ok(match name.to_ascii_lowercase().as_str() {
                "relu" => CellActivation::Relu,
                "tanh" => CellActivation::Tanh,
                "sigmoid" => CellActivation::Sigmoid,
                "softsign" => CellActivation::Softsign,
                "softplus" => CellActivation::Softplus,
                "affine" => {
                    CellActivation::Affine { alpha: alphas.next().unwrap_or(1.0), beta: betas.next().unwrap_or(0.0) }
                }
                "leakyrelu" => CellActivation::LeakyRelu { alpha: alphas.next().unwrap_or(0.01) },
                "thresholdedrelu" => CellActivation::ThresholdedRelu { alpha: alphas.next().unwrap_or(1.0) },
                "scaledtanh" => CellActivation::ScaledTanh {
                    alpha: alphas.next().unwrap_or(1.0),
                    beta: betas.next().unwrap_or(1.0),
                },
                "hardsigmoid" => CellActivation::HardSigmoid {
                    alpha: alphas.next().unwrap_or(0.2),
                    beta: betas.next().unwrap_or(0.5),
                },
                "elu" => CellActivation::Elu { alpha: alphas.next().unwrap_or(1.0) },
                _ => {
                    let known = "Relu, Tanh, Sigmoid, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign and Softplus";
                    return Err(Fault::Unsupported(format!("activation {name:?}; {known} are supported")));
                }
            })
        };
        names.iter().map(&mut function).collect()
    }

    /// Notes a refusal when the lanes lie on one of `axes`, which the op names.
    pub(super) fn refuse_lanes_among(&mut self, x: ValueId, axes: &[usize], verb: &str) {
        if let Some(axis) = self.lane(x).axis().filter(|axis| axes.contains(axis)) {
            self.place(Err(format!("it {verb} axis {axis}, which holds the lanes")));
        }
    }

    fn layer_norm(&mut self, call: &Call<'_>) -> Result<Vec<ValueId>, Fault> {
        let (x, scale, bias) = (call.operand(0)?, call.operand(1)?, call.optional(2));
        self.expect_float(x)?;
        call.only_results(3)?;
        let dtype = self.dtype(x);
        let shape = self.shape(x).to_vec();
        let axis = axis_of(call.attributes.int("axis")?.unwrap_or(-1), shape.len())?;
        let epsilon = call.attributes.float("epsilon")?.unwrap_or(1e-5);
        // Statistics are f32 or better here whatever it says.
        call.attributes.ignore(&["stash_type"]);
        let axes: Vec<usize> = (axis..shape.len()).collect();
        self.refuse_lanes_among(x, &axes, "normalises over");
        let mut operands = vec![Some(x)];
        for id in [Some(scale), bias].into_iter().flatten() {
            self.expect_same_dtype(&[x, id])?;
            if broadcast_shape(&[self.shape(id), &shape[axis..]])? != shape[axis..] {
                let (found, wanted) = (self.shape(id), &shape[axis..]);
                return Err(Fault::Unsupported(format!("scale or bias of shape {found:?} for {wanted:?}")));
            }
            operands.push(Some(id));
        }
        let lane = self.lane(x);
        let mut results = self.emit_all(Op::LayerNorm { axis, epsilon }, operands, vec![(dtype, shape, lane)])?;
        if call.wanted.iter().skip(1).any(|&wanted| wanted) {
            let [mean, variance] = self.statistics(x, &axes)?;
            let raised = self.pair_scalar(Binary::Add, variance, epsilon.into())?;
            let deviation = self.map(Op::Unary(Unary::Sqrt), raised)?;
            let one = self.constant(scalar(1.0, dtype));
            results.extend([mean, self.pair(Binary::Div, one, deviation)?]);
        }
        Ok(results)
    }

    /// Mean and variance over `axes`, which stay with extent 1.
    pub(super) fn statistics(&mut self, x: ValueId, axes: &[usize]) -> Result<[ValueId; 2], Fault> {
        let mean = self.reduced(Reduction::Mean, x, axes, true)?;
        let away = self.pair(Binary::Sub, x, mean)?;
        let squares = self.pair(Binary::Mul, away, away)?;
        Ok([mean, self.reduced(Reduction::Mean, squares, axes, true)?])
    }

    fn batch_norm(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let attributes = &call.attributes;
        let x = call.operand(0)?;
        self.expect_float(x)?;
        call.only_results(1)?;
        attributes.ignore(&["momentum"]);
        if attributes.flag("training_mode", false)? {
            return Err(Fault::Unsupported("training_mode; inference is supported".into()));
        }
        if !attributes.flag("spatial", true)? {
            return Err(Fault::Unsupported("spatial 0; statistics by channel are supported".into()));
        }
        let epsilon = attributes.float("epsilon")?.unwrap_or(1e-5);
        let shape = self.shape(x).to_vec();
        self.expect_rank(x, 2..=5, "X")?;
        let mut operands = vec![x];
        for at in 1..5 {
            let id = call.operand(at)?;
            self.expect_shape(id, &[shape[1]], "a statistic")?;
            // Statistics may be wider than X.
            let id = self.cast(id, self.dtype(x))?;
            operands.push(id);
        }
        self.refuse_lanes_among(x, &[1], "has a scale for each place of");
        self.emit(Op::BatchNorm { epsilon }, &operands, self.dtype(x), shape, self.lane(x))
    }

    /// `Softmax` and `LogSoftmax`. Before opset 13 all axes from `axis` on are taken as one.
    fn softmax(&mut self, log: bool, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        self.expect_float(x)?;
        let shape = self.shape(x).to_vec();
        let lane = self.lane(x);
        let flattens = self.opset < 13;
        let given = call.attributes.int("axis")?;
        let axis = given.unwrap_or(if flattens { 1 } else { -1 });
        let axis = if flattens && axis == shape.len() as i64 { shape.len() } else { axis_of(axis, shape.len())? };
        if !flattens {
            self.refuse_lanes_among(x, &[axis], "sums over");
            return self.softmax_along(log, x, axis);
        }
        match lane.axis() {
            // Over all axes, or over the lanes because they lie behind the axis that was named.
            Some(at) if at >= axis && shape.len() > 1 && (axis == 0 || at > axis || given.is_none()) => {
                self.note_per_lane(format!("it sums over all axes from {axis} on, the lane axis {at} among them"));
            }
            Some(at) if at >= axis => {
                self.place(Err(format!("it sums over axis {at}, which holds the lanes")));
            }
            _ => {}
        }
        let flat = vec![shape[..axis].iter().product(), shape[axis..].iter().product()];
        let rows = self.renamed(x, flat, Lane::Gone)?;
        let result = self.softmax_along(log, rows, 1)?;
        self.renamed(result, shape, lane)
    }

    fn softmax_along(&mut self, log: bool, x: ValueId, axis: usize) -> Result<ValueId, Fault> {
        if !log {
            return self.map(Op::Softmax { axis }, x);
        }
        let largest = self.reduced(Reduction::Max, x, &[axis], true)?;
        let below = self.pair(Binary::Sub, x, largest)?;
        let powers = self.map(Op::Unary(Unary::Exp), below)?;
        let sum = self.reduced(Reduction::Sum, powers, &[axis], true)?;
        let log = self.map(Op::Unary(Unary::Log), sum)?;
        self.pair(Binary::Sub, below, log)
    }

    fn cumsum(&mut self, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        self.expect_number(x)?;
        let axes = self.integers(call.operand(1)?, "the axis")?;
        let &[axis] = &axes[..] else {
            return Err(Fault::Malformed(format!("axes {axes:?}; one is expected")));
        };
        let axis = axis_of(axis, self.shape(x).len())?;
        let exclusive = call.attributes.flag("exclusive", false)?;
        let reverse = call.attributes.flag("reverse", false)?;
        self.refuse_lanes_among(x, &[axis], "sums along");
        self.map(Op::CumSum { axis, exclusive, reverse }, x)
    }

    /// Axes of a reduction, over the lanes only by default.
    fn reduction(&mut self, op: &str, call: &Call<'_>) -> Result<ValueId, Fault> {
        let x = call.operand(0)?;
        if !matches!(op, "ReduceMax" | "ReduceMin") {
            self.expect_number(x)?;
        }
        let rank = self.shape(x).len();
        let keepdims = call.attributes.flag("keepdims", true)?;
        // `ReduceSum` took its axes as an operand first.
        let since = if op == "ReduceSum" { 13 } else { 18 };
        let given = self.axes(call, since)?.filter(|axes| !axes.is_empty());
        let noop = self.opset >= since && call.attributes.flag("noop_with_empty_axes", false)?;
        let axes = match &given {
            Some(axes) => axes_of(axes, rank)?,
            None if noop => Vec::new(),
            None => (0..rank).collect(),
        };
        if let Some(axis) = self.lane(x).axis().filter(|axis| axes.contains(axis)) {
            let all = axes.len() == rank && (given.is_none() || rank > 1);
            if all {
                self.note_per_lane(format!("it reduces over all axes, the lane axis {axis} among them"));
            } else {
                self.place(Err(format!("it reduces over axis {axis}, which holds the lanes")));
            }
        }
        let (kind, operand) = match op {
            "ReduceMean" => (Reduction::Mean, x),
            "ReduceSum" => (Reduction::Sum, x),
            "ReduceMax" => (Reduction::Max, x),
            "ReduceMin" => (Reduction::Min, x),
            "ReduceL1" => (Reduction::Sum, self.map(Op::Unary(Unary::Abs), x)?),
            _ => (Reduction::Sum, self.pair(Binary::Mul, x, x)?),
        };
        let result = self.reduced(kind, operand, &axes, keepdims)?;
        if op == "ReduceL2" {
            self.expect_float(x)?;
            return self.map(Op::Unary(Unary::Sqrt), result);
        }
        Ok(result)
    }

    pub(super) fn reduced(
        &mut self,
        kind: Reduction,
        x: ValueId,
        axes: &[usize],
        keepdims: bool,
    ) -> Result<ValueId, Fault> {
        let from = self.shape(x).to_vec();
        let lane = axis::reduce(self.lane(x), axes, keepdims);
        let shape: Vec<usize> = (0..from.len())
            .filter(|axis| keepdims || !axes.contains(axis))
            .map(|axis| if axes.contains(&axis) { 1 } else { from[axis] })
            .collect();
        if axes.is_empty() {
            return Ok(x);
        }
        self.emit(Op::Reduce { kind, axes: axes.to_vec(), keepdims }, &[x], self.dtype(x), shape, lane)
    }
}

fn positive(value: i64, what: &str) -> Result<usize, Fault> {
    let found = usize::try_from(value).ok().filter(|&value| value > 0);
    found.ok_or_else(|| Fault::Malformed(format!("{what} {value}; 1 or more is expected")))
}
